//! The files of proc(5) that show IPC objects and their limits.
//!
//! When a program opens a file, the kernel opens it first, so it checks the path, the permissions
//! and the flags as usual. If the file is in the table `FILES`, the library replaces it by a memfd
//! under the same descriptor number. The memfd has the text that the kernel would show for the
//! objects of the namespace.
//!
//! | file | text |
//! |---|---|
//! | `/proc/sysvipc/sem`, `msg`, `shm` | a header, and a row per object |
//! | `/proc/sys/kernel/sem`, `msg*`, `shm*`, `*_next_id` | limits |
//!
//! The library replaces files whose names begin with `shm` only if `COREWALK_IPC_SHM` is set.
//! Otherwise the program reads the kernel's text.
//!
//! # What differs from the kernel
//!
//! A file that the library has replaced differs in these points from the kernel's file:
//! - The text is made when the program opens the file, and does not change afterwards.
//! - The limits of a namespace are fixed. Opening a file under `/proc/sys/kernel` for writing fails
//!   with `EACCES`, also for root.
//! - In `/proc/sysvipc/shm`, the columns `rss` and `swap` are 0.
//! - fstat(2) describes the memfd.
//!
//! Source: proc(5), proc_sysvipc(5), proc_sys_kernel(5), memfd_create(2).

use corewalk_base::errno_of;
use corewalk_ipc::{Limits, MsgStat, Perm, ShmStat, Task};
use libc::{c_char, c_int};
use rustix::fs::{
    MemfdFlags, OFlags, SealFlags, fcntl_add_seals, fcntl_getfl, memfd_create, readlink,
};
use rustix::io::{DupFlags, Errno, FdFlags, dup3, fcntl_getfd};
use std::ffi::CStr;
use std::fs::File;
use std::mem::ManuallyDrop;
use std::os::fd::{BorrowedFd, FromRawFd as _, OwnedFd};
use std::os::unix::fs::FileExt as _;

use crate::process;
use crate::shm;

const SEM_HEAD: &str =
    "       key      semid perms      nsems   uid   gid  cuid  cgid      otime      ctime\n";
const MSG_HEAD: &str = "       key      msqid perms      cbytes       qnum lspid lrpid   uid   gid  \
                        cuid  cgid      stime      rtime      ctime\n";
const SHM_HEAD: &str = "       key      shmid perms                  size  cpid  lpid nattch   \
                        uid   gid  cuid  cgid      atime      dtime      ctime                   \
                        rss                  swap\n";

/// The text of a file.
type Text = fn(&Task) -> String;

/// The files of proc(5) that the library replaces, each with a function that formats its text.
/// Files whose names end with `next_id` contain -1, which means that the next id is not fixed.
const FILES: [(&str, Text); 14] = [
    ("/proc/sysvipc/sem", sets),
    ("/proc/sysvipc/msg", queues),
    ("/proc/sysvipc/shm", segments),
    ("/proc/sys/kernel/sem", |task| {
        let Limits { semmsl, semmns, semopm, semmni, .. } = task.limits();
        format!("{semmsl}\t{semmns}\t{semopm}\t{semmni}\n")
    }),
    ("/proc/sys/kernel/msgmax", |task| format!("{}\n", task.limits().msgmax)),
    ("/proc/sys/kernel/msgmnb", |task| format!("{}\n", task.limits().msgmnb)),
    ("/proc/sys/kernel/msgmni", |task| format!("{}\n", task.limits().msgmni)),
    ("/proc/sys/kernel/shmmax", |task| format!("{}\n", task.limits().shmmax)),
    ("/proc/sys/kernel/shmall", |task| format!("{}\n", task.limits().shmall)),
    ("/proc/sys/kernel/shmmni", |task| format!("{}\n", task.limits().shmmni)),
    ("/proc/sys/kernel/shm_rmid_forced", |task| {
        format!("{}\n", i32::from(task.limits().is_shm_rmid_forced))
    }),
    ("/proc/sys/kernel/sem_next_id", |_| "-1\n".to_owned()),
    ("/proc/sys/kernel/msg_next_id", |_| "-1\n".to_owned()),
    ("/proc/sys/kernel/shm_next_id", |_| "-1\n".to_owned()),
];

/// Returns the last component of a path.
fn last_name(path: &[u8]) -> &[u8] {
    path.rsplit(|byte| *byte == b'/').next().unwrap_or(path)
}

/// Replaces the open file `fd` by a memfd, if it is a file of proc(5) in the table `FILES`. The
/// program has opened `fd` by `path`.
///
/// # Errors
///
/// `EACCES` if the program has opened the file for writing, since the limits are read-only, or if
/// the process cannot join the namespace. After an error, the caller closes `fd`.
///
/// # Safety
///
/// `path` is a C string, and `fd` is a new descriptor that no other thread uses.
pub(crate) unsafe fn replace(fd: c_int, path: *const c_char) -> Result<(), Errno> {
    // SAFETY: the caller's promise.
    let path = unsafe { CStr::from_ptr(path) }.to_bytes();
    if !FILES.iter().any(|(known, _)| last_name(known.as_bytes()) == last_name(path)) {
        return Ok(());
    }
    // If this fails, no /proc is mounted, so `fd` cannot be one of these files.
    let Ok(path) = readlink(format!("/proc/self/fd/{fd}"), Vec::new()) else { return Ok(()) };
    let is_path = |(known, _): &&(&str, Text)| known.as_bytes() == path.as_bytes();
    let Some((known, text)) = FILES.iter().find(is_path) else { return Ok(()) };
    // SAFETY: the caller's promise.
    let file = unsafe { BorrowedFd::borrow_raw(fd) };
    let flags = fcntl_getfl(file)?;
    if known.contains("/shm") && !shm::is_on() || flags.contains(OFlags::PATH) {
        return Ok(());
    }
    if flags & OFlags::ACCMODE != OFlags::RDONLY {
        return Err(Errno::ACCESS);
    }
    let task = process::register().map_err(|_| Errno::ACCESS)?;
    let text = memfd(text(task).as_bytes())?;
    let mut dup = DupFlags::empty();
    dup.set(DupFlags::CLOEXEC, fcntl_getfd(file)?.contains(FdFlags::CLOEXEC));
    // SAFETY: `fd` is the number of an open descriptor that the caller owns.
    let mut target = ManuallyDrop::new(unsafe { OwnedFd::from_raw_fd(fd) });
    dup3(text, &mut target, dup)
}

/// Returns a memfd with the given text, sealed against changes.
fn memfd(text: &[u8]) -> Result<OwnedFd, Errno> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = File::from(memfd_create("corewalk-proc", flags)?);
    file.write_all_at(text, 0).map_err(errno_of)?;
    let seals = SealFlags::WRITE | SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
    fcntl_add_seals(&file, seals)?;
    Ok(file.into())
}

fn sets(task: &Task) -> String {
    let index_max = task.sem_totals().map(|totals| totals.index_max);
    rows(SEM_HEAD, index_max, |index| {
        let stat = task.sem_stat_any(index)?;
        let (first, owners) = columns(stat.id.raw(), &stat.perm);
        Ok(format!("{first} {:10} {owners}{}", stat.nsems, times([stat.otime_s, stat.ctime_s])))
    })
}

fn queues(task: &Task) -> String {
    let index_max = task.msg_totals().map(|totals| totals.index_max);
    rows(MSG_HEAD, index_max, |index| {
        let stat = task.msg_stat_any(index)?;
        let MsgStat { id, perm, cbytes, qnum, lspid, lrpid, .. } = stat;
        let (first, owners) = columns(id.raw(), &perm);
        let times = times([stat.stime_s, stat.rtime_s, stat.ctime_s]);
        Ok(format!("{first}  {cbytes:10} {qnum:10} {lspid:5} {lrpid:5} {owners}{times}"))
    })
}

fn segments(task: &Task) -> String {
    let index_max = task.shm_totals().map(|totals| totals.index_max);
    rows(SHM_HEAD, index_max, |index| {
        let stat = task.shm_stat_any(index)?;
        let ShmStat { id, perm, size_bytes, cpid, lpid, nattch, .. } = stat;
        let (first, owners) = columns(id.raw(), &perm);
        let times = times([stat.atime_s, stat.dtime_s, stat.ctime_s]);
        let pids = format!("{cpid:5} {lpid:5}");
        Ok(format!("{first} {size_bytes:21} {pids}  {nattch:5} {owners}{times} {0:21} {0:21}", 0))
    })
}

fn rows(
    head: &str,
    index_max: Result<u32, Errno>,
    row: impl Fn(i32) -> Result<String, Errno>,
) -> String {
    let indices = 0..=index_max.unwrap_or(0).cast_signed();
    let rows = indices.filter_map(|index| row(index).ok());
    rows.fold(head.to_owned(), |text, row| text + &row + "\n")
}

fn columns(id: i32, perm: &Perm) -> (String, String) {
    let Perm { key, mode, uid, gid, cuid, cgid, .. } = perm;
    let owners = format!("{uid:5} {gid:5} {cuid:5} {cgid:5}");
    (format!("{key:10} {id:10}  {mode:4o}"), owners)
}

/// Formats each time as a column, with a space before the column.
fn times<const COUNT: usize>(times: [u64; COUNT]) -> String {
    times.map(|time| format!(" {time:10}")).concat()
}
