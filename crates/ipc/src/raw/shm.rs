//! Shared memory. shmat(2) and shmdt(2) are [`Task::shmat`] and [`Task::shmdt`]: the host maps.
//!
//! Source: `include/uapi/linux/shm.h`; shmctl(2).

use rustix::io::Errno;

use super::get_flags;
use crate::ctl::{IPC_INFO, IPC_RMID, IPC_SET, IPC_STAT};
use crate::flags::ShmFlags;
use crate::handle::ShmId;
use crate::shm::{Mapping, SHM_INFO, SHM_LOCK, SHM_STAT, SHM_STAT_ANY, SHM_UNLOCK, ShmStat};
use crate::task::Task;

/// The limits as `IPC_INFO` tells them. Laid out like `struct shminfo`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names of shmctl(2)")]
pub struct Shminfo {
    pub shmmax: u64,
    pub shmmin: u64,
    pub shmmni: u64,
    pub shmseg: u64,
    pub shmall: u64,
    /// Nothing, as much as the structure has room for.
    pub unused: [u64; 4],
}

/// The result of `SHM_INFO`. Laid out like `struct shm_info`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names of shmctl(2)")]
pub struct ShmUsage {
    /// The number of segments.
    pub used_ids: i32,
    /// Pages of all segments.
    pub shm_tot: u64,
    pub shm_rss: u64,
    pub shm_swp: u64,
    pub swap_attempts: u64,
    pub swap_successes: u64,
}

/// The last argument of shmctl(2).
#[derive(Debug)]
pub enum ShmArg<'a> {
    /// Nothing.
    None,
    /// The structure that `IPC_SET` reads, and `IPC_STAT` and its like write.
    Buf(&'a mut ShmStat),
    /// The structure that `IPC_INFO` writes.
    Shminfo(&'a mut Shminfo),
    /// The structure that `SHM_INFO` writes.
    ShmUsage(&'a mut ShmUsage),
}

/// shmget(2).
///
/// # Errors
///
/// Those of [`Task::shmget`].
pub fn shmget(task: &Task, key: i32, size: u64, shmflg: i32) -> Result<i32, Errno> {
    let (flags, mode) = get_flags(shmflg);
    task.shmget(key, size, flags, mode).map(ShmId::raw)
}

/// shmat(2).
///
/// # Errors
///
/// Those of [`Task::shmat`].
pub fn shmat(task: &Task, shmid: i32, address: usize, shmflg: i32) -> Result<Mapping<'_>, Errno> {
    task.shmat(ShmId::from_raw(shmid), address, ShmFlags::from_bits_retain(shmflg))
}

/// shmctl(2).
///
/// # Errors
///
/// Those of the command's own method of [`Task`]; `EINVAL` for an unknown command or a negative
/// `shmid`; `EFAULT` if `arg` is not what the command needs.
///
/// # Examples
///
/// ```
/// use corewalk_ipc::raw::{self, ShmArg};
/// use corewalk_ipc::{Cred, IPC_PRIVATE, IPC_RMID, IPC_STAT, Namespace, NamespaceOptions, ShmStat};
/// use rustix::io::Errno;
///
/// let namespace = Namespace::new(NamespaceOptions::default())?;
/// let task = namespace.register(Cred::root(), 1)?;
/// let id = raw::shmget(&task, IPC_PRIVATE, 4096, 0o600)?;
/// let mut stat = ShmStat::default();
/// raw::shmctl(&task, id, IPC_STAT, ShmArg::Buf(&mut stat))?;
/// assert_eq!((stat.size_bytes, stat.nattch), (4096, 0));
/// assert_eq!(raw::shmctl(&task, id, IPC_STAT, ShmArg::None), Err(Errno::FAULT));
/// raw::shmctl(&task, id, IPC_RMID, ShmArg::None)?;
/// # Ok::<(), Errno>(())
/// ```
pub fn shmctl(task: &Task, shmid: i32, cmd: i32, arg: ShmArg<'_>) -> Result<i32, Errno> {
    if shmid < 0 {
        return Err(Errno::INVAL);
    }
    let id = ShmId::from_raw(shmid);
    match cmd {
        IPC_RMID => task.shm_rmid(id).map(|()| 0),
        SHM_LOCK => task.shm_lock(id).map(|()| 0),
        SHM_UNLOCK => task.shm_unlock(id).map(|()| 0),
        IPC_SET => {
            let ShmArg::Buf(ShmStat { perm, .. }) = arg else { return Err(Errno::FAULT) };
            task.shm_set(id, perm.uid, perm.gid, perm.mode).map(|()| 0)
        }
        IPC_STAT | SHM_STAT | SHM_STAT_ANY => {
            let stat = match cmd {
                IPC_STAT => task.shm_stat(id)?,
                SHM_STAT => task.shm_stat_index(shmid)?,
                _ => task.shm_stat_any(shmid)?,
            };
            let ShmArg::Buf(buf) = arg else { return Err(Errno::FAULT) };
            *buf = stat;
            Ok(if cmd == IPC_STAT { 0 } else { stat.id.raw() })
        }
        IPC_INFO | SHM_INFO => info(task, cmd, arg),
        _ => Err(Errno::INVAL),
    }
}

fn info(task: &Task, cmd: i32, arg: ShmArg<'_>) -> Result<i32, Errno> {
    let totals = task.shm_totals()?;
    let limits = task.limits();
    match (cmd, arg) {
        (IPC_INFO, ShmArg::Shminfo(shminfo)) => {
            let shmmni = u64::from(limits.shmmni);
            let (shmmax, shmall) = (limits.shmmax, limits.shmall);
            *shminfo =
                Shminfo { shmmax, shmmin: 1, shmmni, shmseg: shmmni, shmall, unused: [0; 4] };
        }
        (SHM_INFO, ShmArg::ShmUsage(shm_info)) => {
            let used_ids = totals.segments.cast_signed();
            *shm_info = ShmUsage { used_ids, shm_tot: totals.pages, ..ShmUsage::default() };
        }
        _ => return Err(Errno::FAULT),
    }
    Ok(totals.index_max.cast_signed())
}
