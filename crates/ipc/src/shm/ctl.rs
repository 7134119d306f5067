//! shmget(2) and shmctl(2), one method per command.
//!
//! Source: shmget(2), shmctl(2); Linux `ipc/shm.c` (`newseg`, `shmctl_down`, `shmctl_stat`,
//! `shmctl_do_lock`).

use rustix::io::Errno;

use super::segment::{self, SHM_LOCKED, Segment, ShmStat, locked, name_of, pages};

use crate::ctl::{By, IPC_RMID, IPC_SET, IPC_STAT, Totals, ipcget};
use crate::field::refuse_if;
use crate::flags::GetFlags;
use crate::handle::ShmId;
use crate::ids::{IdsGuard, Object, SLOTS_MAX};
use crate::perm::{CAP_IPC_LOCK, Perm, READ};
use crate::recover;
use crate::shared::now_s;
use crate::task::Task;

/// Keep the segment in memory.
pub const SHM_LOCK: i32 = 11;
/// Allow the segment's memory to be swapped out.
pub const SHM_UNLOCK: i32 = 12;
/// As `IPC_STAT`, by index.
pub const SHM_STAT: i32 = 13;
/// Return the totals of all segments.
pub const SHM_INFO: i32 = 14;
/// As `SHM_STAT`, without a permission check.
pub const SHM_STAT_ANY: i32 = 15;

/// The totals of all segments that `SHM_INFO` returns. `SHM_INFO` also returns limits, which are
/// not here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ShmTotals {
    /// The number of segments.
    pub segments: u32,
    /// The pages of all segments.
    pub pages: u64,
    /// The highest index in use, or 0 if there is no segment.
    pub index_max: u32,
}

impl Task {
    /// Returns the id of the segment with this key, or creates a segment of `size_bytes` zero bytes
    /// and returns its id.
    ///
    /// `IPC_PRIVATE` always creates a new segment. For a new segment, the nine bits of `mode`
    /// become its mode. For an existing segment, they are the permissions that the call requests.
    /// `NORESERVE` has no effect.
    ///
    /// # Errors
    ///
    /// - `EACCES`: the segment exists, and its mode does not grant the permissions in `mode`.
    /// - `EEXIST`: the segment exists, and both `CREATE` and `EXCLUSIVE` are given.
    /// - `EINVAL`: for a new segment, `size_bytes` is 0, above `SHMMAX` or above the largest file,
    ///   or `HUGETLB` is given. For an existing segment, `size_bytes` is above its size.
    /// - `ENOENT`: no segment has this key, and `CREATE` is not given.
    /// - `ENOMEM`: there is no memory for the segment.
    /// - `ENOSPC`: with the new segment there would be more than `SHMMNI` segments or `SHMALL`
    ///   pages.
    ///
    /// # Examples
    ///
    /// ```
    /// use corewalk_ipc::{Cred, GetFlags, Namespace, NamespaceOptions};
    /// use rustix::io::Errno;
    ///
    /// let namespace = Namespace::new(NamespaceOptions::default())?;
    /// let task = namespace.register(Cred::root(), 1)?;
    /// let id = task.shmget(5, 56, GetFlags::CREATE, 0o600)?;
    /// assert_eq!(task.shmget(5, 57, GetFlags::empty(), 0), Err(Errno::INVAL));
    /// assert_eq!(task.shm_stat(id)?.size_bytes, 56);
    /// # Ok::<(), Errno>(())
    /// ```
    pub fn shmget(
        &self,
        key: i32,
        size_bytes: u64,
        flags: GetFlags,
        mode: u16,
    ) -> Result<ShmId, Errno> {
        let ids = self.shm_ids().lock()?;
        let check = |object: &Object| {
            let has = Segment::named(&ids, name_of(object))?.size_bytes();
            if has < size_bytes { Err(Errno::INVAL) } else { Ok(()) }
        };
        let make = |perm| self.new_segment(&ids, perm, size_bytes, flags);
        Ok(ShmId::from_raw(ipcget(self, &ids, key, flags, mode, check, make)?))
    }

    /// Creates a segment with its memory, and returns its id. Analogous to Linux's `newseg`.
    fn new_segment(
        &self,
        ids: &IdsGuard<'_>,
        perm: Perm,
        size_bytes: u64,
        flags: GetFlags,
    ) -> Result<i32, Errno> {
        let shared = &*self.shared;
        let limits = &shared.limits;
        refuse_if(!(1..=limits.shmmax).contains(&size_bytes), Errno::INVAL)?;
        let used = pages(size_bytes).and_then(|pages| ids.used().checked_add(pages));
        let used = used.filter(|used| *used <= limits.shmall).ok_or(Errno::NOSPC)?;
        let is_file_size = i64::try_from(size_bytes).is_ok();
        refuse_if(flags.contains(GetFlags::HUGETLB) || !is_file_size, Errno::INVAL)?;
        self.ask(|hook, cred| hook.alloc(cred, &perm))?;
        let id = ids.add(perm, limits.shmmni, |index| {
            let (payload, name) = segment::make(ids.ids, index, size_bytes, self.pid);
            let mut created = shared.backing.create(name, size_bytes);
            if created == Err(Errno::NOSPC) {
                // The file system is full, perhaps with the memory of removed segments. Remove that
                // memory, and try again.
                segment::give_back_all(shared, ids, Some(index));
                created = shared.backing.create(name, size_bytes);
            }
            created.inspect_err(|_| segment::give_back(shared, name))?;
            Ok(payload)
        })?;
        ids.set_used(used);
        self.shm.lock().made.push(id.cast_unsigned() & (SLOTS_MAX - 1));
        Ok(id)
    }

    /// Returns the state of a segment: `IPC_STAT`.
    ///
    /// # Errors
    ///
    /// Returns `EACCES` if the caller has no read permission. Returns `EIDRM` if the segment was
    /// removed during the call, and `EINVAL` if there is no such segment.
    ///
    /// # Examples
    ///
    /// ```
    /// use corewalk_ipc::{
    ///     Cred, GetFlags, IPC_PRIVATE, Namespace, NamespaceOptions, ShmFlags, ShmId,
    /// };
    /// use rustix::io::Errno;
    ///
    /// let namespace = Namespace::new(NamespaceOptions::default())?;
    /// let task = namespace.register(Cred::root(), 1)?;
    /// let id = task.shmget(IPC_PRIVATE, 4096, GetFlags::empty(), 0o600)?;
    /// task.shmat(id, 0, ShmFlags::empty())?.attached_at(0x1000_0000);
    /// let stat = task.shm_stat(id)?;
    /// assert_eq!((stat.size_bytes, stat.nattch, stat.cpid), (4096, 1, 1));
    /// assert_eq!(task.shm_stat(ShmId::from_raw(-1)), Err(Errno::INVAL));
    /// # Ok::<(), Errno>(())
    /// ```
    #[doc(alias = "shmctl_stat")]
    pub fn shm_stat(&self, shmid: ShmId) -> Result<ShmStat, Errno> {
        self.shm_stat_by(By::Id, shmid.raw(), IPC_STAT)
    }

    /// Like [`Task::shm_stat`], for the segment at an index of the id table: `SHM_STAT`. The result
    /// contains the id of the segment.
    ///
    /// # Errors
    ///
    /// The errors of [`Task::shm_stat`].
    ///
    /// # Examples
    ///
    /// ```
    /// use corewalk_ipc::{Cred, GetFlags, IPC_PRIVATE, Namespace, NamespaceOptions, ShmId};
    /// use rustix::io::Errno;
    ///
    /// let namespace = Namespace::new(NamespaceOptions::default())?;
    /// let task = namespace.register(Cred::root(), 1)?;
    /// let id = task.shmget(IPC_PRIVATE, 56, GetFlags::empty(), 0o600)?;
    /// // As ipcs(1) lists all segments.
    /// let indices = 0..=task.shm_totals()?.index_max.cast_signed();
    /// let found: Vec<ShmId> =
    ///     indices.filter_map(|index| Some(task.shm_stat_index(index).ok()?.id)).collect();
    /// assert_eq!(found, [id]);
    /// assert_eq!(task.shm_stat_index(99), Err(Errno::INVAL));
    /// # Ok::<(), Errno>(())
    /// ```
    pub fn shm_stat_index(&self, index: i32) -> Result<ShmStat, Errno> {
        self.shm_stat_by(By::Index, index, SHM_STAT)
    }

    /// Like [`Task::shm_stat_index`], but without a permission check: `SHM_STAT_ANY`.
    ///
    /// # Errors
    ///
    /// Returns `EINVAL` if there is no segment at this index, and `EIDRM` if the segment was
    /// removed during the call.
    ///
    /// # Examples
    ///
    /// ```
    /// use corewalk_ipc::{Cred, GetFlags, IPC_PRIVATE, Namespace, NamespaceOptions};
    /// use rustix::io::Errno;
    ///
    /// let namespace = Namespace::new(NamespaceOptions::default())?;
    /// let owner = namespace.register(Cred::user(1000, 1000), 1)?;
    /// let other = namespace.register(Cred::user(1001, 1001), 2)?;
    /// let id = owner.shmget(IPC_PRIVATE, 56, GetFlags::empty(), 0o600)?;
    /// // The first object has the index 0.
    /// assert_eq!(other.shm_stat_index(0), Err(Errno::ACCESS));
    /// assert_eq!(other.shm_stat_any(0)?.id, id);
    /// # Ok::<(), Errno>(())
    /// ```
    pub fn shm_stat_any(&self, index: i32) -> Result<ShmStat, Errno> {
        self.shm_stat_by(By::AnyIndex, index, SHM_STAT_ANY)
    }

    /// Changes owner, group and the nine permission bits: `IPC_SET`.
    ///
    /// # Errors
    ///
    /// Returns `EINVAL` if there is no such segment, or if an id is `-1`. Returns `EPERM` if the
    /// caller is neither owner nor creator of the segment, and lacks `CAP_SYS_ADMIN`.
    ///
    /// # Examples
    ///
    /// ```
    /// use corewalk_ipc::{Cred, GetFlags, IPC_PRIVATE, Namespace, NamespaceOptions};
    /// use rustix::io::Errno;
    ///
    /// let namespace = Namespace::new(NamespaceOptions::default())?;
    /// let owner = namespace.register(Cred::user(1000, 1000), 1)?;
    /// let other = namespace.register(Cred::user(1001, 1001), 2)?;
    /// let id = owner.shmget(IPC_PRIVATE, 56, GetFlags::empty(), 0o600)?;
    /// assert_eq!(other.shm_set(id, 1001, 1001, 0o600), Err(Errno::PERM));
    /// owner.shm_set(id, 1001, 1001, 0o640)?;
    /// assert_eq!(other.shm_stat(id)?.perm.mode & 0o777, 0o640);
    /// # Ok::<(), Errno>(())
    /// ```
    #[doc(alias = "shmctl_down")]
    pub fn shm_set(&self, shmid: ShmId, uid: u32, gid: u32, mode: u16) -> Result<(), Errno> {
        let ids = self.shm_ids().lock()?;
        let object = self.obtain_own(&ids, shmid.raw(), IPC_SET)?;
        refuse_if([uid, gid].contains(&u32::MAX), Errno::INVAL)?;
        ids.update_perm(&object, uid, gid, mode, now_s());
        Ok(())
    }

    /// Removes a segment as soon as no task has it attached: `IPC_RMID`. The key of the segment is
    /// free immediately.
    ///
    /// # Errors
    ///
    /// Returns `EINVAL` if there is no such segment. Returns `EPERM` if the caller is neither owner
    /// nor creator of the segment, and lacks `CAP_SYS_ADMIN`.
    ///
    /// # Examples
    ///
    /// ```
    /// use corewalk_ipc::{Cred, GetFlags, Namespace, NamespaceOptions, ShmFlags};
    /// use rustix::io::Errno;
    ///
    /// let namespace = Namespace::new(NamespaceOptions::default())?;
    /// let task = namespace.register(Cred::root(), 1)?;
    /// let id = task.shmget(5, 4096, GetFlags::CREATE, 0o600)?;
    /// task.shmat(id, 0, ShmFlags::empty())?.attached_at(0x1000_0000);
    /// task.shm_rmid(id)?;
    /// // The segment exists as long as it is attached, without its key.
    /// assert_eq!(task.shm_stat(id)?.nattch, 1);
    /// assert_eq!(task.shmget(5, 4096, GetFlags::empty(), 0), Err(Errno::NOENT));
    /// task.shmdt(0x1000_0000)?;
    /// assert_eq!(task.shm_rmid(id), Err(Errno::INVAL));
    /// # Ok::<(), Errno>(())
    /// ```
    pub fn shm_rmid(&self, shmid: ShmId) -> Result<(), Errno> {
        self.reap_attachers(shmid.raw());
        locked(self.shm_ids(), |ids, gone| {
            let object = self.obtain_own(ids, shmid.raw(), IPC_RMID)?;
            Segment::named(ids, name_of(&object))?.remove(gone);
            Ok(())
        })
    }

    /// Marks a segment as locked into memory: `SHM_LOCK`. The mark does not keep any memory
    /// resident.
    ///
    /// # Errors
    ///
    /// Returns `EIDRM` if the segment was removed during the call, and `EINVAL` if there is no such
    /// segment. Returns `EPERM` if the caller is neither owner nor creator of the segment, and
    /// lacks `CAP_IPC_LOCK`.
    ///
    /// # Examples
    ///
    /// ```
    /// use corewalk_ipc::{Cred, GetFlags, IPC_PRIVATE, Namespace, NamespaceOptions, SHM_LOCKED};
    /// use rustix::io::Errno;
    ///
    /// let namespace = Namespace::new(NamespaceOptions::default())?;
    /// let owner = namespace.register(Cred::user(1000, 1000), 1)?;
    /// let other = namespace.register(Cred::user(1001, 1001), 2)?;
    /// let id = owner.shmget(IPC_PRIVATE, 4096, GetFlags::empty(), 0o600)?;
    /// assert_eq!(other.shm_lock(id), Err(Errno::PERM));
    /// owner.shm_lock(id)?;
    /// assert_ne!(owner.shm_stat(id)?.perm.mode & SHM_LOCKED, 0);
    /// owner.shm_unlock(id)?;
    /// assert_eq!(owner.shm_stat(id)?.perm.mode & SHM_LOCKED, 0);
    /// # Ok::<(), Errno>(())
    /// ```
    #[doc(alias = "shmctl_do_lock")]
    pub fn shm_lock(&self, shmid: ShmId) -> Result<(), Errno> {
        self.set_locked(shmid, SHM_LOCK, SHM_LOCKED)
    }

    /// Clears the mark that [`Task::shm_lock`] has set: `SHM_UNLOCK`.
    ///
    /// # Errors
    ///
    /// The errors of [`Task::shm_lock`].
    pub fn shm_unlock(&self, shmid: ShmId) -> Result<(), Errno> {
        self.set_locked(shmid, SHM_UNLOCK, 0)
    }

    /// Returns the number of segments in the namespace, the number of their pages, and the highest
    /// index of the id table in use. Corresponds to the commands `SHM_INFO` and `IPC_INFO`.
    ///
    /// # Errors
    ///
    /// The error of the security hook.
    ///
    /// # Examples
    ///
    /// ```
    /// use corewalk_ipc::{Cred, GetFlags, IPC_PRIVATE, Namespace, NamespaceOptions};
    ///
    /// let namespace = Namespace::new(NamespaceOptions::default())?;
    /// let task = namespace.register(Cred::root(), 1)?;
    /// task.shmget(IPC_PRIVATE, 1, GetFlags::empty(), 0o600)?;
    /// let totals = task.shm_totals()?;
    /// // A segment of one byte occupies a page.
    /// assert_eq!((totals.segments, totals.pages), (1, 1));
    /// # Ok::<(), rustix::io::Errno>(())
    /// ```
    pub fn shm_totals(&self) -> Result<ShmTotals, Errno> {
        let Totals { objects, used, index_max } = self.totals(self.shm_ids(), SHM_INFO)?;
        Ok(ShmTotals { segments: objects, pages: used, index_max })
    }

    fn set_locked(&self, shmid: ShmId, cmd: i32, flags: u16) -> Result<(), Errno> {
        let found = self.shm_ids().obtain_object_check(shmid.raw())?;
        self.ask(|hook, cred| hook.shm_shmctl(cred, Some(&found.perm()), cmd))?;
        let ids = self.shm_ids().lock()?;
        let segment = Segment::named(&ids, name_of(&found))?;
        refuse_if(!self.cred.may_control(&segment.object.perm(), CAP_IPC_LOCK), Errno::PERM)?;
        ids.set_mode_flags(&segment.object, SHM_LOCKED, flags);
        Ok(())
    }

    /// Cleans up after the dead tasks that have the segment attached. The caller holds no lock.
    ///
    /// If a cleanup fails, `shm_nattch` stays too high. This is safe: a caller that waits until
    /// `shm_nattch` is 0 then waits too long, but is never misled.
    pub(super) fn reap_attachers(&self, shmid: i32) {
        let index = shmid.cast_unsigned() & (SLOTS_MAX - 1);
        let attachers = |ids| Segment::at(&ids, index).map(|segment| segment.attachers());
        for task in self.shm_ids().lock().ok().and_then(attachers).unwrap_or_default() {
            if task != self.owner.index && self.shared.is_dead(task, None) {
                let _reaped = recover::reap(&self.shared, self.owner, task);
            }
        }
    }

    fn shm_stat_by(&self, by: By, id: i32, cmd: i32) -> Result<ShmStat, Errno> {
        self.reap_attachers(id);
        let found = self.obtain(self.shm_ids(), by, id, READ, cmd)?;
        let ids = self.shm_ids().lock()?;
        Ok(Segment::named(&ids, name_of(&found))?.stat())
    }
}
