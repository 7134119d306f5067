//! shmctl(2), one method per command.
//!
//! Source: shmctl(2); Linux `ipc/shm.c` (`shmctl_down`, `shmctl_stat`, `shmctl_do_lock`).

use rustix::io::Errno;

use super::READ;
use super::segment::{Gone, SHM_LOCKED, Segment};
use crate::ids::{Object, SLOTS_MAX};
use crate::ipcget::obtain_own;
use crate::namespace::now_s;
use crate::perm::{CAP_IPC_LOCK, Perm};
use crate::sem::{IPC_RMID, IPC_SET, IPC_STAT};
use crate::task::Task;

/// Keep the segment in memory.
pub const SHM_LOCK: i32 = 11;
/// Let the segment be swapped out.
pub const SHM_UNLOCK: i32 = 12;
/// As `IPC_STAT`, by index.
pub const SHM_STAT: i32 = 13;
/// Tell what is used.
pub const SHM_INFO: i32 = 14;
/// As `SHM_STAT`, without a permission check.
pub const SHM_STAT_ANY: i32 = 15;

/// What `IPC_STAT` tells of a segment.
#[doc(alias = "shmid_ds")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ShmStat {
    /// The segment's id.
    pub id: i32,
    /// Its permissions; the mode with [`crate::SHM_DEST`] and [`crate::SHM_LOCKED`].
    pub perm: Perm,
    /// Its size.
    pub size_bytes: u64,
    /// The last shmat(2), in seconds since 1970, or 0.
    pub atime_s: u64,
    /// The last shmdt(2), in seconds since 1970, or 0.
    pub dtime_s: u64,
    /// The last change, in seconds since 1970.
    pub ctime_s: u64,
    /// Who made it.
    pub cpid: u32,
    /// Who attached or detached last.
    pub lpid: u32,
    /// How often it is attached.
    pub nattch: u64,
}

/// What `SHM_INFO` tells beside the limits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ShmTotals {
    /// Segments that there are.
    pub segments: u32,
    /// Pages of all segments.
    pub pages: u64,
    /// The highest index in use, or 0.
    pub index_max: u32,
}

impl Task {
    /// Returns what there is to know about a segment: `IPC_STAT`.
    ///
    /// # Errors
    ///
    /// `EACCES`: no read permission; `EIDRM`: the segment was removed meanwhile; `EINVAL`: there is no
    /// such segment.
    #[doc(alias = "shmctl_stat")]
    pub fn shm_stat(&self, shmid: i32) -> Result<ShmStat, Errno> {
        self.reap_attachers(shmid);
        let object = self.shm_ids().obtain_object_check(shmid)?;
        self.permission(&object, READ)?;
        self.shm_stat_of(&object, IPC_STAT)
    }

    /// As [`Task::shm_stat`] of the segment at an index, with its id: `SHM_STAT`.
    ///
    /// # Errors
    ///
    /// Those of [`Task::shm_stat`].
    #[doc(alias = "ipc_obtain_object")]
    pub fn shm_stat_index(&self, index: i32) -> Result<ShmStat, Errno> {
        let object = self.segment_at(index)?;
        self.permission(&object, READ)?;
        self.shm_stat_of(&object, SHM_STAT)
    }

    /// As [`Task::shm_stat_index`] for everybody: `SHM_STAT_ANY`.
    ///
    /// # Errors
    ///
    /// `EINVAL`: there is no segment at this index; `EIDRM`: it was removed meanwhile.
    pub fn shm_stat_any(&self, index: i32) -> Result<ShmStat, Errno> {
        let object = self.segment_at(index)?;
        self.shm_stat_of(&object, SHM_STAT_ANY)
    }

    /// Changes owner, group and the nine permission bits: `IPC_SET`.
    ///
    /// # Errors
    ///
    /// `EINVAL`: there is no such segment, or an id of `-1`; `EPERM`: the caller is neither its owner
    /// nor its creator, and has no `CAP_SYS_ADMIN`.
    #[doc(alias = "ipcctl_pre_down_nolock")]
    #[doc(alias = "shmctl_down")]
    pub fn shm_set(&self, shmid: i32, uid: u32, gid: u32, mode: u16) -> Result<(), Errno> {
        let ids = self.shm_ids().lock()?;
        let object = obtain_own(self, &ids, shmid)?;
        self.may_shmctl(Some(&object.perm()), IPC_SET)?;
        if uid == u32::MAX || gid == u32::MAX {
            return Err(Errno::INVAL);
        }
        ids.update_perm(&object, uid, gid, mode, now_s());
        Ok(())
    }

    /// Removes a segment once nobody has it attached: `IPC_RMID`. Its key is free at once.
    ///
    /// # Errors
    ///
    /// `EINVAL`: there is no such segment; `EPERM`: the caller is neither its owner nor its creator, and
    /// has no `CAP_SYS_ADMIN`.
    #[doc(alias = "ipcctl_pre_down_nolock")]
    #[doc(alias = "do_shm_rmid")]
    pub fn shm_rmid(&self, shmid: i32) -> Result<(), Errno> {
        self.reap_attachers(shmid);
        let shared = &*self.shared;
        let mut gone = Gone::default();
        let ids = self.shm_ids().lock()?;
        let object = obtain_own(self, &ids, shmid)?;
        self.may_shmctl(Some(&object.perm()), IPC_RMID)?;
        Segment::again(shared, &ids, &object)?.remove(&mut gone);
        drop(ids);
        gone.give_back(shared);
        Ok(())
    }

    /// Marks a segment as locked into memory: `SHM_LOCK`.
    ///
    /// # Errors
    ///
    /// `EIDRM`: the segment was removed meanwhile; `EINVAL`: there is no such segment; `EPERM`: the caller is
    /// neither its owner nor its creator, and has no `CAP_IPC_LOCK`.
    #[doc(alias = "shmctl_do_lock")]
    pub fn shm_lock(&self, shmid: i32) -> Result<(), Errno> {
        self.set_locked(shmid, SHM_LOCK, SHM_LOCKED)
    }

    /// Takes the mark of [`Task::shm_lock`] back: `SHM_UNLOCK`.
    ///
    /// # Errors
    ///
    /// Those of [`Task::shm_lock`].
    pub fn shm_unlock(&self, shmid: i32) -> Result<(), Errno> {
        self.set_locked(shmid, SHM_UNLOCK, 0)
    }

    /// Returns what is used: `SHM_INFO`, and `IPC_INFO` for the highest index.
    ///
    /// # Errors
    ///
    /// What the security hook returns.
    pub fn shm_totals(&self) -> Result<ShmTotals, Errno> {
        self.may_shmctl(None, SHM_INFO)?;
        let ids = self.shm_ids().lock()?;
        let index_max = ids.index_max().unwrap_or(0);
        Ok(ShmTotals { segments: ids.in_use(), pages: ids.used(), index_max })
    }

    fn set_locked(&self, shmid: i32, cmd: i32, flags: u16) -> Result<(), Errno> {
        let found = self.shm_ids().obtain_object_check(shmid)?;
        self.may_shmctl(Some(&found.perm()), cmd)?;
        let ids = self.shm_ids().lock()?;
        let segment = Segment::again(&self.shared, &ids, &found)?;
        let (euid, _) = self.cred.ids();
        let perm = segment.object.perm();
        if euid != perm.uid && euid != perm.cuid && !self.cred.is_capable(CAP_IPC_LOCK) {
            return Err(Errno::PERM);
        }
        ids.set_mode_flags(&segment.object, SHM_LOCKED, flags);
        Ok(())
    }

    fn may_shmctl(&self, perm: Option<&Perm>, cmd: i32) -> Result<(), Errno> {
        match &self.shared.hook {
            None => Ok(()),
            Some(hook) => hook.shm_shmctl(&self.cred.whole(), perm, cmd),
        }
    }

    fn segment_at(&self, index: i32) -> Result<Object, Errno> {
        self.reap_attachers(index);
        let index = u32::try_from(index).map_err(|_| Errno::INVAL)?;
        self.shm_ids().obtain_object(index & (SLOTS_MAX - 1))
    }

    fn shm_stat_of(&self, found: &Object, cmd: i32) -> Result<ShmStat, Errno> {
        self.may_shmctl(Some(&found.perm()), cmd)?;
        let ids = self.shm_ids().lock()?;
        let segment = Segment::again(&self.shared, &ids, found)?;
        let (object, numbers) = (segment.object, segment.numbers());
        Ok(ShmStat {
            id: object.id(),
            perm: object.perm(),
            size_bytes: numbers.size_bytes,
            atime_s: numbers.atime_s,
            dtime_s: numbers.dtime_s,
            ctime_s: object.ctime,
            cpid: numbers.cpid,
            lpid: numbers.lpid,
            nattch: numbers.nattch,
        })
    }
}
