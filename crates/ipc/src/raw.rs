//! The calls with the numbers of the system call interface, for a preload library or a layer that
//! serves system calls.
//!
//! The functions take ids and flags as integers, and return an errno. Buffers are slices and
//! structures of this process. A caller that gets addresses from another program copies first. A
//! command without the argument that it needs is `EFAULT`.
//!
//! # Examples
//!
//! ```
//! use corewalk_ipc::raw::{self, Arg};
//! use corewalk_ipc::{Cred, IPC_PRIVATE, Namespace, NamespaceOptions, SETVAL, SemBuf, SemFlags};
//! use rustix::io::Errno;
//!
//! let namespace = Namespace::new(NamespaceOptions::default())?;
//! let task = namespace.register(Cred::root(), 1)?;
//! let id = raw::semget(&task, IPC_PRIVATE, 1, 0o600)?;
//! raw::semctl(&task, id, 0, SETVAL, Arg::Val(3))?;
//! raw::semtimedop(&task, id, &[SemBuf::new(0, -3, SemFlags::empty())], None)?;
//! assert_eq!(raw::semctl(&task, id, 0, 99, Arg::None), Err(Errno::INVAL));
//! # Ok::<(), Errno>(())
//! ```
//!
//! Source: `include/uapi/linux/sem.h`; semctl(2).

mod msg;
mod shm;

use rustix::io::Errno;
use std::time::Duration;

pub use msg::{MsgArg, Msginfo, msgctl, msgget, msgrcv, msgrcv_owned, msgsnd, msgsnd_check};
pub use shm::{ShmArg, ShmUsage, Shminfo, shmat, shmctl, shmget};

use crate::ctl::{IPC_INFO, IPC_RMID, IPC_SET, IPC_STAT};
use crate::flags::{GetFlags, MODE_MASK};
use crate::handle::SemId;
use crate::limits::{SEMAEM, SEMVMX};
use crate::sem::{
    GETALL, GETNCNT, GETPID, GETVAL, GETZCNT, SEM_INFO, SEM_STAT, SEM_STAT_ANY, SETALL, SETVAL,
    SemBuf, SemStat,
};
use crate::task::Task;

/// The size of an undo structure that `IPC_INFO` returns, as in Linux.
const SEMUSZ: i32 = 20;

/// The fixed part of the result of `IPC_INFO`: `SEMMAP` and `SEMMNU`, and `SEMUME`.
const SEMMNU: i32 = 1_024_000_000;
const SEMUME: i32 = 500;

/// A timeout as it comes from outside. Laid out like `struct timespec` on 64-bit machines.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Timespec {
    /// Seconds.
    pub sec: i64,
    /// Nanoseconds below a second.
    pub nsec: i64,
}

/// The limits as `IPC_INFO` and `SEM_INFO` tell them. Laid out like `struct seminfo`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names of semctl(2)")]
pub struct Seminfo {
    pub semmap: i32,
    pub semmni: i32,
    pub semmns: i32,
    pub semmnu: i32,
    pub semmsl: i32,
    pub semopm: i32,
    pub semume: i32,
    /// With `SEM_INFO`: sets that there are.
    pub semusz: i32,
    pub semvmx: i32,
    /// With `SEM_INFO`: semaphores that there are.
    pub semaem: i32,
}

/// The last argument of semctl(2).
#[doc(alias = "semun")]
#[derive(Debug)]
pub enum Arg<'a> {
    /// Nothing.
    None,
    /// A value, for `SETVAL`.
    Val(i32),
    /// Values to read, for `SETALL`: at least one per semaphore.
    Values(&'a [u16]),
    /// Room for values, for `GETALL`: at least one per semaphore.
    Array(&'a mut [u16]),
    /// The structure that `IPC_SET` reads, and `IPC_STAT` and its like write.
    Buf(&'a mut SemStat),
    /// The structure that `IPC_INFO` and `SEM_INFO` write.
    Seminfo(&'a mut Seminfo),
}

/// semget(2).
///
/// # Errors
///
/// Those of [`Task::semget`].
pub fn semget(task: &Task, key: i32, nsems: i32, semflg: i32) -> Result<i32, Errno> {
    let (flags, mode) = get_flags(semflg);
    task.semget(key, nsems, flags, mode).map(SemId::raw)
}

/// semtimedop(2); without a timeout semop(2).
///
/// # Errors
///
/// Those of [`Task::semtimedop`]; `EINVAL` also for a negative timeout or `nsec` out of range.
///
/// # Examples
///
/// ```
/// use corewalk_ipc::raw::{self, Timespec};
/// use corewalk_ipc::{Cred, IPC_PRIVATE, Namespace, NamespaceOptions, SemBuf, SemFlags};
/// use rustix::io::Errno;
///
/// let namespace = Namespace::new(NamespaceOptions::default())?;
/// let task = namespace.register(Cred::root(), 1)?;
/// let id = raw::semget(&task, IPC_PRIVATE, 1, 0o600)?;
/// let take = [SemBuf::new(0, -1, SemFlags::empty())];
/// let timeout = |sec, nsec| Some(Timespec { sec, nsec });
/// assert_eq!(raw::semtimedop(&task, id, &take, timeout(0, 1000)), Err(Errno::AGAIN));
/// assert_eq!(raw::semtimedop(&task, id, &take, timeout(-1, 0)), Err(Errno::INVAL));
/// # Ok::<(), Errno>(())
/// ```
pub fn semtimedop(
    task: &Task,
    semid: i32,
    sops: &[SemBuf],
    timeout: Option<Timespec>,
) -> Result<(), Errno> {
    let semid = SemId::from_raw(semid);
    let Some(Timespec { sec, nsec }) = timeout else { return task.semop(semid, sops) };
    if sops.len() > task.limits().semopm as usize {
        return Err(Errno::TOOBIG);
    }
    let nsec = u32::try_from(nsec).ok().filter(|nsec| *nsec < 1_000_000_000);
    let sec = u64::try_from(sec).map_err(|_| Errno::INVAL)?;
    let timeout = Duration::new(sec, nsec.ok_or(Errno::INVAL)?);
    task.semtimedop(semid, sops, Some(timeout))
}

/// semctl(2).
///
/// # Errors
///
/// Those of the command's own method of [`Task`]; `EINVAL` for an unknown command or a negative
/// `semid`; `EFAULT` if `arg` is not what the command needs.
///
/// # Examples
///
/// ```
/// use corewalk_ipc::raw::{self, Arg};
/// use corewalk_ipc::{Cred, IPC_PRIVATE, IPC_STAT, Namespace, NamespaceOptions, SETVAL, SemStat};
/// use rustix::io::Errno;
///
/// let namespace = Namespace::new(NamespaceOptions::default())?;
/// let task = namespace.register(Cred::root(), 1)?;
/// let id = raw::semget(&task, IPC_PRIVATE, 1, 0o600)?;
/// assert_eq!(raw::semctl(&task, id, 0, SETVAL, Arg::Val(3)), Ok(0));
/// let mut stat = SemStat::default();
/// raw::semctl(&task, id, 0, IPC_STAT, Arg::Buf(&mut stat))?;
/// assert_eq!((stat.id.raw(), stat.nsems), (id, 1));
/// assert_eq!(raw::semctl(&task, id, 0, IPC_STAT, Arg::None), Err(Errno::FAULT));
/// # Ok::<(), Errno>(())
/// ```
pub fn semctl(task: &Task, semid: i32, semnum: i32, cmd: i32, arg: Arg<'_>) -> Result<i32, Errno> {
    if semid < 0 {
        return Err(Errno::INVAL);
    }
    let id = SemId::from_raw(semid);
    match cmd {
        IPC_RMID => task.sem_rmid(id).map(|()| 0),
        GETVAL => task.sem_getval(id, semnum),
        GETPID => task.sem_getpid(id, semnum).map(u32::cast_signed),
        GETNCNT => task.sem_getncnt(id, semnum),
        GETZCNT => task.sem_getzcnt(id, semnum),
        IPC_INFO | SEM_INFO => info(task, cmd, arg),
        IPC_STAT | SEM_STAT | SEM_STAT_ANY => stat(task, semid, cmd, arg),
        IPC_SET => {
            let Arg::Buf(buf) = arg else { return Err(Errno::FAULT) };
            task.sem_set(id, buf.perm.uid, buf.perm.gid, buf.perm.mode).map(|()| 0)
        }
        SETVAL => {
            let Arg::Val(value) = arg else { return Err(Errno::FAULT) };
            task.sem_setval(id, semnum, value).map(|()| 0)
        }
        SETALL => {
            let Arg::Values(values) = arg else { return Err(Errno::FAULT) };
            let nsems = task.sem_nsems(id)?;
            task.sem_setall(id, values.get(..nsems).unwrap_or(values)).map(|()| 0)
        }
        GETALL => {
            let values = task.sem_getall(id)?;
            let Arg::Array(array) = arg else { return Err(Errno::FAULT) };
            array.get_mut(..values.len()).ok_or(Errno::FAULT)?.copy_from_slice(&values);
            Ok(0)
        }
        _ => Err(Errno::INVAL),
    }
}

/// Splits the last argument of a `*get` call into flags and mode.
fn get_flags(word: i32) -> (GetFlags, u16) {
    let mode = word & i32::from(MODE_MASK);
    (GetFlags::from_bits_retain(word & !mode), mode as u16)
}

fn stat(task: &Task, semid: i32, cmd: i32, arg: Arg<'_>) -> Result<i32, Errno> {
    let stat = match cmd {
        IPC_STAT => task.sem_stat(SemId::from_raw(semid))?,
        SEM_STAT => task.sem_stat_index(semid)?,
        _ => task.sem_stat_any(semid)?,
    };
    let Arg::Buf(buf) = arg else { return Err(Errno::FAULT) };
    *buf = stat;
    Ok(if cmd == IPC_STAT { 0 } else { stat.id.raw() })
}

fn info(task: &Task, cmd: i32, arg: Arg<'_>) -> Result<i32, Errno> {
    let totals = task.sem_totals()?;
    let limits = task.limits();
    let Arg::Seminfo(seminfo) = arg else { return Err(Errno::FAULT) };
    let is_totals = cmd == SEM_INFO;
    *seminfo = Seminfo {
        semmap: SEMMNU,
        semmni: limits.semmni.cast_signed(),
        semmns: limits.semmns.cast_signed(),
        semmnu: SEMMNU,
        semmsl: limits.semmsl.cast_signed(),
        semopm: limits.semopm.cast_signed(),
        semume: SEMUME,
        semusz: if is_totals { totals.sets.cast_signed() } else { SEMUSZ },
        semvmx: SEMVMX,
        semaem: if is_totals { i32::try_from(totals.sems).unwrap_or(i32::MAX) } else { SEMAEM },
    };
    Ok(totals.index_max.cast_signed())
}
