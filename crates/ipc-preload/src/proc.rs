//! The files of proc(5) that tell of IPC objects and their limits, for programs that read them.
//!
//! A file is opened by the kernel first, so its path, its permissions and its flags are judged as
//! ever. If it is then one of these files, a memfd takes the place of the descriptor: it has the
//! text that the kernel would have for the objects of the namespace.
//!
//! | file | text |
//! |---|---|
//! | `/proc/sysvipc/sem`, `msg`, `shm` | a head, and a row per object |
//! | `/proc/sys/kernel/sem`, `msg*`, `shm*`, `*_next_id` | limits |
//!
//! Files about shared memory are the kernel's unless `COREWALK_IPC_SHM` is set.
//!
//! # What differs from the kernel
//!
//! - The text is that of the moment of the open: a program that keeps a file open and reads it
//!   again reads the same.
//! - The limits of a namespace are fixed when it is made. To open one of them for writing is
//!   `EACCES`, also for root.
//! - Columns `rss` and `swap` of segments are 0.
//! - fstat(2) tells of the memfd.
//!
//! Source: proc(5), proc_sysvipc(5), proc_sys_kernel(5), memfd_create(2).

use corewalk_ipc::{Limits, Perm, Task};
use libc::{c_char, c_int};
use rustix::fs::{
    MemfdFlags, OFlags, SealFlags, SeekFrom, fcntl_add_seals, fcntl_getfl, memfd_create, readlink,
    seek,
};
use rustix::io::{DupFlags, Errno, FdFlags, dup3, fcntl_getfd};
use std::ffi::CStr;
use std::fmt::Write as _;
use std::mem::ManuallyDrop;
use std::os::fd::{BorrowedFd, FromRawFd as _, OwnedFd};

use crate::process;
use crate::shm;

const SEM_HEAD: &str =
    "       key      semid perms      nsems   uid   gid  cuid  cgid      otime      ctime\n";
const MSG_HEAD: &str = "       key      msqid perms      cbytes       qnum lspid lrpid   uid   gid  \
                        cuid  cgid      stime      rtime      ctime\n";
const SHM_HEAD: &str = "       key      shmid perms                  size  cpid  lpid nattch   \
                        uid   gid  cuid  cgid      atime      dtime      ctime                   \
                        rss                  swap\n";

/// A file that is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Sets,
    Queues,
    Segments,
    Sem,
    Msgmax,
    Msgmnb,
    Msgmni,
    Shmmax,
    Shmall,
    Shmmni,
    ShmRmidForced,
    /// `sem_next_id` and its like: no id is asked for.
    NextId,
}

/// Their folders, names and kinds.
const FILES: [(&str, &str, Kind); 14] = [
    ("/proc/sysvipc/", "sem", Kind::Sets),
    ("/proc/sysvipc/", "msg", Kind::Queues),
    ("/proc/sysvipc/", "shm", Kind::Segments),
    ("/proc/sys/kernel/", "sem", Kind::Sem),
    ("/proc/sys/kernel/", "msgmax", Kind::Msgmax),
    ("/proc/sys/kernel/", "msgmnb", Kind::Msgmnb),
    ("/proc/sys/kernel/", "msgmni", Kind::Msgmni),
    ("/proc/sys/kernel/", "shmmax", Kind::Shmmax),
    ("/proc/sys/kernel/", "shmall", Kind::Shmall),
    ("/proc/sys/kernel/", "shmmni", Kind::Shmmni),
    ("/proc/sys/kernel/", "shm_rmid_forced", Kind::ShmRmidForced),
    ("/proc/sys/kernel/", "sem_next_id", Kind::NextId),
    ("/proc/sys/kernel/", "msg_next_id", Kind::NextId),
    ("/proc/sys/kernel/", "shm_next_id", Kind::NextId),
];

/// Gives the descriptor `fd`, which was opened by `path`, the namespace's text if it is of one of
/// these files.
///
/// # Errors
///
/// `EACCES` if it is open for writing, or the process cannot join the namespace; `EMFILE`, `ENFILE`
/// and `ENOMEM` as open(2). The descriptor is to be closed then.
///
/// # Safety
///
/// `path` is a string of C, and `fd` is open and new: no other thread uses it.
pub(crate) unsafe fn replace(fd: c_int, path: *const c_char) -> Result<(), Errno> {
    // SAFETY: the caller's promise.
    let path = unsafe { CStr::from_ptr(path) }.to_bytes();
    let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or(path);
    if !FILES.iter().any(|(_, known, _)| known.as_bytes() == name) {
        return Ok(());
    }
    // SAFETY: the caller's promise.
    let file = unsafe { BorrowedFd::borrow_raw(fd) };
    replace_file(file, fd)
}

/// Puts the namespace's text in the place of a file, if it is one of these.
fn replace_file(file: BorrowedFd<'_>, number: c_int) -> Result<(), Errno> {
    // Without a /proc there are no such files.
    let Ok(path) = readlink(format!("/proc/self/fd/{number}"), Vec::new()) else { return Ok(()) };
    let path = path.to_str().unwrap_or_default();
    let is_path = |(folder, name, _): &&(&str, &str, Kind)| {
        path.strip_prefix(folder).is_some_and(|rest| rest == *name)
    };
    let Some((_, name, kind)) = FILES.iter().find(is_path) else { return Ok(()) };
    let flags = fcntl_getfl(file)?;
    if name.starts_with("shm") && !shm::is_on() || flags.contains(OFlags::PATH) {
        return Ok(());
    }
    if flags & OFlags::ACCMODE != OFlags::RDONLY {
        return Err(Errno::ACCESS);
    }
    // The kernel has these files for every process, so one that cannot join need not end.
    let task = process::register().map_err(|_| Errno::ACCESS)?;
    let text = memfd(text(task, *kind).as_bytes())?;
    let mut dup = DupFlags::empty();
    dup.set(DupFlags::CLOEXEC, fcntl_getfd(file)?.contains(FdFlags::CLOEXEC));
    // SAFETY: the number is that of an open descriptor, which is the caller's.
    let mut target = ManuallyDrop::new(unsafe { OwnedFd::from_raw_fd(number) });
    dup3(text, &mut target, dup)
}

/// Returns a file in memory with this text, which is sealed against changes.
fn memfd(text: &[u8]) -> Result<OwnedFd, Errno> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = memfd_create("corewalk-proc", flags)?;
    let mut rest = text;
    while !rest.is_empty() {
        let written = rustix::io::write(&file, rest)?;
        rest = &rest[written..];
    }
    seek(&file, SeekFrom::Start(0))?;
    let seals = SealFlags::WRITE | SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
    fcntl_add_seals(&file, seals)?;
    Ok(file)
}

/// Returns what a file says.
fn text(task: &Task, kind: Kind) -> String {
    let limits = task.limits();
    match kind {
        Kind::Sets => sets(task),
        Kind::Queues => queues(task),
        Kind::Segments => segments(task),
        Kind::Sem => {
            let Limits { semmsl, semmns, semopm, semmni, .. } = limits;
            format!("{semmsl}\t{semmns}\t{semopm}\t{semmni}\n")
        }
        Kind::Msgmax => format!("{}\n", limits.msgmax),
        Kind::Msgmnb => format!("{}\n", limits.msgmnb),
        Kind::Msgmni => format!("{}\n", limits.msgmni),
        Kind::Shmmax => format!("{}\n", limits.shmmax),
        Kind::Shmall => format!("{}\n", limits.shmall),
        Kind::Shmmni => format!("{}\n", limits.shmmni),
        Kind::ShmRmidForced => format!("{}\n", i32::from(limits.is_shm_rmid_forced)),
        Kind::NextId => "-1\n".to_owned(),
    }
}

fn sets(task: &Task) -> String {
    let index_max = task.sem_totals().map_or(0, |totals| totals.index_max);
    let stats = (0..=index_max).filter_map(|index| task.sem_stat_any(index.cast_signed()).ok());
    rows(SEM_HEAD, stats, |text, stat| {
        let (id, nsems, ids) = (stat.id, stat.nsems, owners(&stat.perm));
        let (key, mode) = (stat.perm.key, stat.perm.mode);
        let times = [stat.otime_s, stat.ctime_s].map(|time| format!("{time:10}")).join(" ");
        writeln!(text, "{key:10} {id:10}  {mode:4o} {nsems:10} {ids} {times}")
    })
}

fn queues(task: &Task) -> String {
    let index_max = task.msg_totals().map_or(0, |totals| totals.index_max);
    let stats = (0..=index_max).filter_map(|index| task.msg_stat_any(index.cast_signed()).ok());
    rows(MSG_HEAD, stats, |text, stat| {
        let (id, cbytes, qnum, ids) = (stat.id, stat.cbytes, stat.qnum, owners(&stat.perm));
        let (key, mode) = (stat.perm.key, stat.perm.mode);
        let pids = format!("{:5} {:5}", stat.lspid, stat.lrpid);
        let times = [stat.stime_s, stat.rtime_s, stat.ctime_s].map(|time| format!("{time:10}"));
        let times = times.join(" ");
        writeln!(text, "{key:10} {id:10}  {mode:4o}  {cbytes:10} {qnum:10} {pids} {ids} {times}")
    })
}

fn segments(task: &Task) -> String {
    let index_max = task.shm_totals().map_or(0, |totals| totals.index_max);
    let stats = (0..=index_max).filter_map(|index| task.shm_stat_any(index.cast_signed()).ok());
    rows(SHM_HEAD, stats, |text, stat| {
        let (id, bytes, nattch, ids) = (stat.id, stat.size_bytes, stat.nattch, owners(&stat.perm));
        let (key, mode) = (stat.perm.key, stat.perm.mode);
        let pids = format!("{:5} {:5}", stat.cpid, stat.lpid);
        let times = [stat.atime_s, stat.dtime_s, stat.ctime_s].map(|time| format!("{time:10}"));
        let times = times.join(" ");
        write!(text, "{key:10} {id:10}  {mode:4o} {bytes:21} {pids}  {nattch:5} {ids} {times} ")?;
        writeln!(text, "{0:21} {0:21}", 0)
    })
}

/// Returns a head and a row per object.
fn rows<T>(
    head: &str,
    stats: impl Iterator<Item = T>,
    mut row: impl FnMut(&mut String, T) -> std::fmt::Result,
) -> String {
    let mut text = head.to_owned();
    for stat in stats {
        row(&mut text, stat).expect("a string takes all that is written to it");
    }
    text
}

/// Returns the columns of owner and creator.
fn owners(perm: &Perm) -> String {
    format!("{:5} {:5} {:5} {:5}", perm.uid, perm.gid, perm.cuid, perm.cgid)
}
