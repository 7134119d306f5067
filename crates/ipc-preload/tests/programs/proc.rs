//! The text of the files of proc(5) that show IPC objects and limits must be the kernel's, byte by
//! byte.
//!
//! Each test function here (a role) runs in a process of its own. It formats the text that a file
//! such as `/proc/sysvipc/sem` must have, as the kernel does. The values come from semctl(2),
//! msgctl(2) and shmctl(2). The roles pass on the host kernel as well.

use corewalk_testkit::sysv;
use libc::{c_char, c_int, c_long};
use std::ffi::{CStr, CString};
use std::fs::{self, File};
use std::io::Read as _;
use std::os::fd::{AsRawFd as _, FromRawFd as _};
use std::{mem, ptr};

use crate::roles::{remove, semop, set};

const SEM_HEAD: &str =
    "       key      semid perms      nsems   uid   gid  cuid  cgid      otime      ctime\n";
const MSG_HEAD: &str = "       key      msqid perms      cbytes       qnum lspid lrpid   uid   gid  \
                        cuid  cgid      stime      rtime      ctime\n";
const SHM_HEAD: &str = "       key      shmid perms                  size  cpid  lpid nattch   \
                        uid   gid  cuid  cgid      atime      dtime      ctime                   \
                        rss                  swap\n";

fn sem_row(id: c_int) -> String {
    // SAFETY: zeroes are a valid structure of numbers.
    let mut ds: libc::semid_ds = unsafe { mem::zeroed() };
    // SAFETY: `ds` has space for the result.
    assert_eq!(unsafe { libc::semctl(id, 0, libc::IPC_STAT, &raw mut ds) }, 0);
    let perm = ds.sem_perm;
    let ids = format!("{:5} {:5} {:5} {:5}", perm.uid, perm.gid, perm.cuid, perm.cgid);
    let (key, mode, nsems) = (perm.__key, perm.mode, ds.sem_nsems);
    let (otime, ctime) = (ds.sem_otime, ds.sem_ctime);
    format!("{key:10} {id:10}  {mode:4o} {nsems:10} {ids} {otime:10} {ctime:10}\n")
}

fn msg_row(id: c_int) -> String {
    // SAFETY: zeroes are a valid structure of numbers.
    let mut ds: libc::msqid_ds = unsafe { mem::zeroed() };
    // SAFETY: `ds` has space for the result.
    assert_eq!(unsafe { libc::msgctl(id, libc::IPC_STAT, &raw mut ds) }, 0);
    let perm = ds.msg_perm;
    let ids = format!("{:5} {:5} {:5} {:5}", perm.uid, perm.gid, perm.cuid, perm.cgid);
    let (key, mode, bytes, count) = (perm.__key, perm.mode, ds.__msg_cbytes, ds.msg_qnum);
    let pids = format!("{:5} {:5}", ds.msg_lspid, ds.msg_lrpid);
    let times = format!("{:10} {:10} {:10}", ds.msg_stime, ds.msg_rtime, ds.msg_ctime);
    format!("{key:10} {id:10}  {mode:4o}  {bytes:10} {count:10} {pids} {ids} {times}\n")
}

fn shm_row(id: c_int) -> String {
    // SAFETY: zeroes are a valid structure of numbers.
    let mut ds: libc::shmid_ds = unsafe { mem::zeroed() };
    // SAFETY: `ds` has space for the result.
    assert_eq!(unsafe { libc::shmctl(id, libc::IPC_STAT, &raw mut ds) }, 0);
    let perm = ds.shm_perm;
    let ids = format!("{:5} {:5} {:5} {:5}", perm.uid, perm.gid, perm.cuid, perm.cgid);
    let (key, mode, size, count) = (perm.__key, perm.mode, ds.shm_segsz, ds.shm_nattch);
    let pids = format!("{:5} {:5}", ds.shm_cpid, ds.shm_lpid);
    let times = format!("{:10} {:10} {:10}", ds.shm_atime, ds.shm_dtime, ds.shm_ctime);
    format!(
        "{key:10} {id:10}  {mode:4o} {size:21} {pids}  {count:5} {ids} {times} {0:21} {0:21}\n",
        0
    )
}

fn text(path: &str) -> String {
    fs::read_to_string(path).expect("a file of proc")
}

pub(crate) fn objects() {
    assert_eq!(text("/proc/sysvipc/sem"), SEM_HEAD);
    let sets = [set(3), set(1), sysv::semget(-77, 2, libc::IPC_CREAT | 0o4).expect("a set")];
    assert_eq!(semop(sets[0], (0, 1, 0)), Ok(0));
    let rows: String = sets.into_iter().map(sem_row).collect();
    assert_eq!(text("/proc/sysvipc/sem"), format!("{SEM_HEAD}{rows}"));
    remove(sets[1]);
    let rows: String = [sets[0], sets[2]].into_iter().map(sem_row).collect();
    assert_eq!(text("/proc/sysvipc/sem"), format!("{SEM_HEAD}{rows}"));
    remove(sets[0]);
    remove(sets[2]);

    assert_eq!(text("/proc/sysvipc/msg"), MSG_HEAD);
    let id = sysv::msg::msgget(0x7fff_ffff, libc::IPC_CREAT | 0o640).expect("a queue");
    let hello = sysv::msg::Buffer { mtype: 1, text: *b"hello" };
    assert_eq!(sysv::msg::msgsnd(id, &hello, 5, 0), Ok(0));
    assert_eq!(text("/proc/sysvipc/msg"), format!("{MSG_HEAD}{}", msg_row(id)));
    // SAFETY: the command takes no address.
    assert_eq!(unsafe { libc::msgctl(id, libc::IPC_RMID, ptr::null_mut()) }, 0);

    // SAFETY: the call takes numbers.
    let id = unsafe { libc::shmget(libc::IPC_PRIVATE, 123_456, 0o600) };
    assert_eq!(text("/proc/sysvipc/shm"), format!("{SHM_HEAD}{}", shm_row(id)));
    // SAFETY: the kernel or the library chooses the address, so no mapping is replaced.
    let at = unsafe { libc::shmat(id, ptr::null(), 0) };
    // SAFETY: the command takes no address.
    assert_eq!(unsafe { libc::shmctl(id, libc::IPC_RMID, ptr::null_mut()) }, 0);
    assert_eq!(text("/proc/sysvipc/shm"), format!("{SHM_HEAD}{}", shm_row(id)));
    // SAFETY: nothing uses the segment.
    assert_eq!(unsafe { libc::shmdt(at) }, 0);
    assert_eq!(text("/proc/sysvipc/shm"), SHM_HEAD);
}

pub(crate) fn limits() {
    let (_, sem) = sysv::totals(libc::IPC_INFO).expect("limits");
    let [_, semmni, semmns, _, semmsl, semopm, ..] = sem;
    let told = text("/proc/sys/kernel/sem");
    assert_eq!(told, format!("{semmsl}\t{semmns}\t{semopm}\t{semmni}\n"));
    let mut msg = [0_i32; 8];
    // SAFETY: `msg` has space for the result.
    assert!(unsafe { libc::msgctl(0, libc::IPC_INFO, msg.as_mut_ptr().cast()) } >= 0);
    for (name, limit) in [("msgmax", msg[2]), ("msgmnb", msg[3]), ("msgmni", msg[4])] {
        assert_eq!(text(&format!("/proc/sys/kernel/{name}")), format!("{limit}\n"));
    }
    let mut shm = [0_u64; 9];
    // SAFETY: as above.
    assert!(unsafe { libc::shmctl(0, libc::IPC_INFO, shm.as_mut_ptr().cast()) } >= 0);
    for (name, limit) in [("shmmax", shm[0]), ("shmmni", shm[2]), ("shmall", shm[4])] {
        assert_eq!(text(&format!("/proc/sys/kernel/{name}")), format!("{limit}\n"));
    }
    assert_eq!(text("/proc/sys/kernel/shm_rmid_forced"), "0\n");
}

/// Reads a descriptor to its end.
fn drained(fd: c_long) -> String {
    let fd = c_int::try_from(fd).expect("a descriptor");
    assert!(fd >= 0, "{}", std::io::Error::last_os_error());
    // SAFETY: the descriptor is new, and no other value owns it.
    let mut file = unsafe { File::from_raw_fd(fd) };
    let mut text = String::new();
    file.read_to_string(&mut text).expect("it is open for reading");
    text
}

unsafe extern "C" {
    fn __open_2(path: *const c_char, flags: c_int) -> c_int;
    fn __open64_2(path: *const c_char, flags: c_int) -> c_int;
    fn __openat_2(dirfd: c_int, path: *const c_char, flags: c_int) -> c_int;
    fn __openat64_2(dirfd: c_int, path: *const c_char, flags: c_int) -> c_int;
}

type Open = unsafe extern "C" fn(*const c_char, c_int, ...) -> c_int;
type Open2 = unsafe extern "C" fn(*const c_char, c_int) -> c_int;
type Openat = unsafe extern "C" fn(c_int, *const c_char, c_int, ...) -> c_int;
type Openat2 = unsafe extern "C" fn(c_int, *const c_char, c_int) -> c_int;

/// Each way to open `/proc/sysvipc/sem` must give the same text.
pub(crate) fn ways() {
    let id = set(5);
    let expected = format!("{SEM_HEAD}{}", sem_row(id));
    let path = c"/proc/sysvipc/sem".as_ptr();
    let here = libc::AT_FDCWD;
    let flags = libc::O_RDONLY | libc::O_CLOEXEC;
    let mut by_path = Vec::new();
    for open in [libc::open as Open, libc::open64] {
        // SAFETY: the path is a string of C.
        by_path.push(unsafe { open(path, flags) });
    }
    for open in [__open_2 as Open2, __open64_2] {
        // SAFETY: as above.
        by_path.push(unsafe { open(path, flags) });
    }
    for openat in [libc::openat as Openat, libc::openat64] {
        // SAFETY: as above.
        by_path.push(unsafe { openat(here, path, flags) });
    }
    for openat in [__openat_2 as Openat2, __openat64_2] {
        // SAFETY: as above.
        by_path.push(unsafe { openat(here, path, flags) });
    }
    for fd in by_path {
        // SAFETY: the call takes numbers.
        assert_eq!(unsafe { libc::fcntl(fd, libc::F_GETFD) }, libc::FD_CLOEXEC);
        assert_eq!(drained(fd.into()), expected);
    }
    let folder = File::open("/proc/sysvipc").expect("a folder");
    let name = c"./sem".as_ptr();
    // SAFETY: the name is a string of C.
    assert_eq!(drained(unsafe { libc::openat(folder.as_raw_fd(), name, 0) }.into()), expected);
    // SAFETY: as above.
    let by_number = unsafe { libc::syscall(libc::SYS_openat, folder.as_raw_fd(), name, 0) };
    assert_eq!(drained(by_number), expected);
    #[cfg(target_arch = "x86_64")]
    {
        // SAFETY: as above.
        let by_number = unsafe { libc::syscall(libc::SYS_open, path, 0) };
        assert_eq!(drained(by_number), expected);
    }
    for file in streams(c"/proc/sysvipc/sem") {
        assert!(!file.is_null(), "{}", std::io::Error::last_os_error());
        let mut bytes = vec![0_u8; 4096];
        // SAFETY: the stream is open, and `bytes` has room for the bytes read.
        let count = unsafe { libc::fread(bytes.as_mut_ptr().cast(), 1, bytes.len(), file) };
        assert_eq!(String::from_utf8_lossy(&bytes[..count]), expected);
        // SAFETY: nothing uses the stream any more.
        unsafe { libc::fclose(file) };
    }
    // The library replaces `/proc/sysvipc/sem`. It must not replace a file with the name `sem` in
    // another directory.
    let other = std::env::temp_dir().join(format!("corewalk-proc-{}", std::process::id()));
    fs::create_dir_all(&other).expect("a folder");
    fs::write(other.join("sem"), "other").expect("a file");
    assert_eq!(fs::read_to_string(other.join("sem")).expect("a file"), "other");
    fs::remove_dir_all(&other).expect("it is ours");
    let missing = CString::new("/proc/sysvipc/missing/sem").expect("no zero");
    // SAFETY: the path is a string of C.
    assert_eq!(unsafe { libc::open(missing.as_ptr(), 0) }, -1);
    // SAFETY: null is an address that the call refuses.
    assert_eq!(unsafe { libc::syscall(libc::SYS_openat, here, 0, 0) }, -1);
    assert_eq!(std::io::Error::last_os_error().raw_os_error(), Some(libc::EFAULT));
    remove(id);
}

/// Opens a stream in each way.
fn streams(path: &CStr) -> Vec<*mut libc::FILE> {
    let (path, mode) = (path.as_ptr(), c"re".as_ptr());
    let null = c"/dev/null".as_ptr();
    // SAFETY: both are strings of C.
    let first = unsafe { libc::fopen(path, mode) };
    // SAFETY: as above.
    let second = unsafe { libc::fopen64(path, mode) };
    // SAFETY: as above.
    let other = unsafe { libc::fopen(null, mode) };
    // SAFETY: as above; the stream is open.
    let again = unsafe { libc::freopen(path, mode, other) };
    vec![first, second, again]
}
