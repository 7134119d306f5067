//! Implements shmat(2) and shmdt(2), and handles attached segments at fork(2) and at the end of a
//! task.
//!
//! Addresses belong to one process, so the table from addresses to segments is in the task's own
//! memory. Shared memory contains only how often each task has attached a segment. These numbers
//! remain if a task dies.
//!
//! Source: shmop(2); Linux `ipc/shm.c` (`do_shmat`, `shm_open`, `shm_close`, `ksys_shmdt`,
//! `exit_shm`).

use corewalk_base::primitives::Arc as TaskArc;
use rustix::io::Errno;
use rustix::param::page_size;
use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use super::segment::{ATIME, DTIME, Gone, SHM_DEST, Segment, locked, name_of};
use crate::backing::{Access, SegmentName};
use crate::field::refuse_if;
use crate::flags::ShmFlags;
use crate::handle::ShmId;
use crate::ids::IdsGuard;
use crate::perm::{READ, WRITE};
use crate::recover;
use crate::task::Task;

/// The segments that a task has created and attached.
#[derive(Default)]
pub(crate) struct Own {
    /// The slots of the segments that the task has created.
    pub(super) made: Vec<u32>,
    /// The attached segments by address.
    attached: BTreeMap<usize, Attached>,
    /// True if the task has a hold (an open file with a lock). By the hold, other tasks see that
    /// some process still has the task's mappings.
    has_hold: bool,
}

#[derive(Clone, Copy, Debug)]
struct Attached {
    name: SegmentName,
    size_bytes: u64,
}

/// A segment that the host program must map. It already counts as attached. A drop without a call
/// of [`Mapping::attached_at`] detaches it again.
#[derive(Debug)]
#[must_use = "the segment is detached again when this is dropped"]
pub struct Mapping<'t> {
    task: &'t Task,
    attached: Attached,
    memory: Arc<OwnedFd>,
    address: Option<usize>,
    shmflg: ShmFlags,
    is_kept: bool,
}

impl Mapping<'_> {
    /// Returns the size of the segment in bytes. The host program must map this many bytes from the
    /// start of the segment's memory. As usual, mmap(2) rounds the size up to whole pages.
    #[must_use]
    pub fn size_bytes(&self) -> u64 {
        self.attached.size_bytes
    }

    /// Returns the address at which the host must map the segment: a multiple of the page size.
    /// Returns `None` if the host may choose the address.
    #[must_use]
    pub fn address(&self) -> Option<usize> {
        self.address
    }

    /// Returns the flags of the shmat(2) call. Without `RDONLY` the mapping must be writable, and
    /// with `EXEC` executable. With `REMAP` the mapping must replace existing ones. Without `REMAP`
    /// the address range must be free.
    #[must_use]
    pub fn flags(&self) -> ShmFlags {
        self.shmflg
    }

    /// Records that the host has mapped the segment at `address`. If another segment was attached
    /// at that address, detaches that other segment.
    pub fn attached_at(mut self, address: usize) {
        let task = self.task;
        self.is_kept = true;
        let before = task.shm.lock().attached.insert(address, self.attached);
        // If the lock of all segments cannot be acquired, the segment counts as attached all the
        // same. But the time and the pid are not recorded, and a replaced segment stays attached.
        let _noted = locked(task.shm_ids(), |ids, gone| {
            if let Ok(segment) = Segment::named(ids, self.attached.name) {
                segment.note(ATIME, task.pid);
            }
            if let Some(before) = before {
                detach(task, ids, before.name, gone);
            }
            Ok(())
        });
    }
}

impl AsFd for Mapping<'_> {
    /// Returns the memory of the segment, for mmap(2).
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.memory.as_fd()
    }
}

impl Drop for Mapping<'_> {
    fn drop(&mut self) {
        if !self.is_kept {
            // The host program has not mapped the segment, so the attach must not count. No time or
            // pid is recorded.
            self.task.uncount(self.attached.name);
        }
    }
}

impl Task {
    /// Attaches a segment: checks the permission, counts the attach, and returns a description of
    /// the mapping that the host must make.
    ///
    /// With `address` 0 the host chooses the address. `shmflg` may contain `SHM_RDONLY`,
    /// `SHM_EXEC`, `SHM_RND` and `SHM_REMAP`.
    ///
    /// # Errors
    ///
    /// - `EACCES`: the mode does not permit the access, and the caller lacks `CAP_IPC_OWNER`.
    /// - `EIDRM`: the segment was removed during the call.
    /// - `EINVAL`: there is no such segment; or `address` is not a multiple of the page size and
    ///   `SHM_RND` is not given; or `SHM_REMAP` is given with address 0.
    /// - `ENOMEM`: there is no free attach record, or no memory.
    ///
    /// # Examples
    ///
    /// ```
    /// use corewalk_ipc::{Cred, GetFlags, IPC_PRIVATE, Namespace, NamespaceOptions, ShmFlags};
    /// use std::os::fd::AsFd;
    ///
    /// let namespace = Namespace::new(NamespaceOptions::default())?;
    /// let task = namespace.register(Cred::root(), 1)?;
    /// let id = task.shmget(IPC_PRIVATE, 4096, GetFlags::empty(), 0o600)?;
    /// let mapping = task.shmat(id, 0, ShmFlags::empty())?;
    /// // The host maps `size_bytes` of it and reports the address.
    /// let (_memory, _size_bytes) = (mapping.as_fd(), mapping.size_bytes());
    /// mapping.attached_at(0x1000_0000);
    /// task.shm_rmid(id)?;
    /// assert_eq!(task.shm_stat(id)?.nattch, 1);
    /// assert_eq!(task.shmdt(0x1000_0000), Ok(4096));
    /// assert!(task.shm_stat(id).is_err());
    /// # Ok::<(), rustix::io::Errno>(())
    /// ```
    #[doc(alias = "do_shmat")]
    pub fn shmat(
        &self,
        shmid: ShmId,
        address: usize,
        shmflg: ShmFlags,
    ) -> Result<Mapping<'_>, Errno> {
        let address = rounded(address, shmflg)?;
        let shared = &*self.shared;
        let mut found = self.shm_ids().obtain_object_check(shmid.raw())?;
        if found.mode() & SHM_DEST != 0 {
            // The segment may exist only because a dead task has it attached. So clean up after
            // dead tasks, and look the segment up again.
            self.reap_attachers(shmid.raw());
            found = self.shm_ids().obtain_object_check(shmid.raw())?;
        }
        let write = if shmflg.contains(ShmFlags::RDONLY) { 0 } else { WRITE };
        let execute = if shmflg.contains(ShmFlags::EXEC) { 0o111 } else { 0 };
        self.permission(&found, READ | write | execute)?;
        self.ask(|hook, cred| hook.shm_shmat(cred, &found.perm(), shmflg))?;
        let name = name_of(&found);
        let size_bytes = recover::with_room(shared, self.owner, || {
            let ids = self.shm_ids().lock()?;
            // The segment may have been removed since the lookup. So look it up again under the
            // lock.
            let segment = Segment::named(&ids, name)?;
            segment.attach(self.owner.index, 1)?;
            Ok(segment.size_bytes())
        })?;
        let access = if write == 0 { Access::Read } else { Access::Write };
        let memory = shared.backing.open(name, access).inspect_err(|_| self.uncount(name))?;
        let attached = Attached { name, size_bytes };
        Ok(Mapping { task: self, attached, memory, address, shmflg, is_kept: false })
    }

    /// Detaches the segment at `address` and returns its size in bytes. The host may unmap it
    /// before or after this call.
    ///
    /// # Errors
    ///
    /// Returns `EINVAL` if no segment is attached at this address. Returns `EIO` if a living
    /// process holds a lock for 10 s. The segment then counts as attached until the task ends.
    ///
    /// # Examples
    ///
    /// ```
    /// use corewalk_ipc::{Cred, GetFlags, IPC_PRIVATE, Namespace, NamespaceOptions, ShmFlags};
    /// use rustix::io::Errno;
    ///
    /// let namespace = Namespace::new(NamespaceOptions::default())?;
    /// let task = namespace.register(Cred::root(), 1)?;
    /// let id = task.shmget(IPC_PRIVATE, 4096, GetFlags::empty(), 0o600)?;
    /// task.shmat(id, 0, ShmFlags::empty())?.attached_at(0x1000_0000);
    /// assert_eq!(task.shmdt(0x2000_0000), Err(Errno::INVAL));
    /// assert_eq!(task.shmdt(0x1000_0000), Ok(4096));
    /// assert_eq!(task.shm_stat(id)?.nattch, 0);
    /// # Ok::<(), Errno>(())
    /// ```
    pub fn shmdt(&self, address: usize) -> Result<u64, Errno> {
        self.shmdt_with(address, |size_bytes| size_bytes)
    }

    /// Detaches a segment like [`Task::shmdt`], for a host that shares the namespace with other
    /// processes. Calls `unmap` with the number of bytes to unmap, in whole pages, and returns its
    /// result. `unmap` runs before the detach, so `shm_nattch` == 0 means that no mapping is left.
    ///
    /// # Errors
    ///
    /// Those of [`Task::shmdt`].
    ///
    /// # Examples
    ///
    /// ```
    /// use corewalk_ipc::{Cred, GetFlags, IPC_PRIVATE, Namespace, NamespaceOptions, ShmFlags};
    /// use rustix::io::Errno;
    ///
    /// let namespace = Namespace::new(NamespaceOptions::default())?;
    /// let task = namespace.register(Cred::root(), 1)?;
    /// let id = task.shmget(IPC_PRIVATE, 4096, GetFlags::empty(), 0o600)?;
    /// task.shmat(id, 0, ShmFlags::empty())?.attached_at(0x1000_0000);
    /// // The host calls munmap(2) for this many bytes.
    /// let unmap = |size_bytes| (size_bytes, task.shm_stat(id).unwrap().nattch);
    /// assert_eq!(task.shmdt_with(0x1000_0000, unmap), Ok((4096, 1)));
    /// assert_eq!(task.shm_stat(id)?.nattch, 0);
    /// assert_eq!(task.shmdt_with(0x1000_0000, unmap), Err(Errno::INVAL));
    /// # Ok::<(), Errno>(())
    /// ```
    pub fn shmdt_with<T>(&self, address: usize, unmap: impl FnOnce(u64) -> T) -> Result<T, Errno> {
        let attached = self.shm.lock().attached.remove(&address).ok_or(Errno::INVAL)?;
        let unmapped = unmap(attached.size_bytes);
        locked(self.shm_ids(), |ids, gone| {
            detach(self, ids, attached.name, gone);
            Ok(unmapped)
        })
    }

    /// Creates the hold of the task, an open and locked file; see [`crate::Backing::hold`].
    ///
    /// # Errors
    ///
    /// The errors of the backing.
    pub fn hold(&self) -> Result<OwnedFd, Errno> {
        self.shm.lock().has_hold = true;
        self.shared.backing.hold(self.owner.index)
    }

    /// Returns the number of attaches of the task.
    #[must_use]
    pub fn attached(&self) -> usize {
        self.shm.lock().attached.len()
    }

    /// Returns a new task with the credentials and attaches of this task, as after fork(2). The new
    /// task has no undo adjustments.
    ///
    /// If processes share the namespace, the child calls this function on its copy of the parent's
    /// task. After the call the child must forget that copy, because only the process that created
    /// a task may end it.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`crate::Namespace::register`]. Also returns `ENOMEM` if there are too
    /// few free attach records. Returns `EIDRM` if an attached segment was removed, since the
    /// child's mapping could not be counted.
    ///
    /// # Examples
    ///
    /// ```
    /// use corewalk_ipc::{
    ///     Cred, GetFlags, IPC_PRIVATE, Namespace, NamespaceOptions, SemBuf, SemFlags, ShmFlags,
    /// };
    /// use rustix::io::Errno;
    ///
    /// let namespace = Namespace::new(NamespaceOptions::default())?;
    /// let task = namespace.register(Cred::root(), 1)?;
    /// let id = task.shmget(IPC_PRIVATE, 4096, GetFlags::empty(), 0o600)?;
    /// task.shmat(id, 0, ShmFlags::empty())?.attached_at(0x1000_0000);
    /// let set = task.semget(IPC_PRIVATE, 1, GetFlags::empty(), 0o600)?;
    /// task.semop(set, &[SemBuf::new(0, 1, SemFlags::UNDO)])?;
    /// let child = task.fork(2)?;
    /// assert_eq!(child.shm_stat(id)?.nattch, 2);
    /// child.exit();
    /// // The child had no undo.
    /// assert_eq!((task.shm_stat(id)?.nattch, task.sem_getval(set, 0)?), (1, 1));
    /// // Pids are below 2^22.
    /// assert_eq!(task.fork(1 << 22).err(), Some(Errno::INVAL));
    /// # Ok::<(), Errno>(())
    /// ```
    pub fn fork(&self, pid: u32) -> Result<Self, Errno> {
        let child = Self::register(TaskArc::clone(&self.shared), self.cred.whole(), pid)?;
        recover::with_room(&self.shared, child.owner, || self.copy_attached(&child))?;
        Ok(child)
    }

    /// Attaches the segments of this task to `child`. Skips attaches that `child` already has.
    fn copy_attached(&self, child: &Self) -> Result<(), Errno> {
        let ids = child.shm_ids().lock()?;
        let attached = self.shm.lock().attached.clone();
        attached.iter().try_for_each(|(address, attached)| {
            if child.shm.lock().attached.contains_key(address) {
                return Ok(());
            }
            let segment = Segment::named(&ids, attached.name)?;
            segment.attach(child.owner.index, 1)?;
            segment.note(ATIME, self.pid);
            child.shm.lock().attached.insert(*address, *attached);
            Ok(())
        })
    }

    /// Subtracts the attach that [`Task::shmat`] has counted.
    fn uncount(&self, name: SegmentName) {
        // If the lock cannot be acquired, the attach stays counted.
        let _uncounted = locked(self.shm_ids(), |ids, gone| {
            Segment::named(ids, name).map(|segment| segment.detach(self.owner.index, 1, gone))
        });
    }
}

/// Detaches all segments of a task that ends, and records the end in the segments that it has
/// created.
///
/// # Errors
///
/// `EBUSY` if a forked child has the task's mappings, but no attach records of its own. After an
/// error, another task cleans up later.
pub(crate) fn exit_shm(task: &Task) -> Result<(), Errno> {
    let Own { made, attached, has_hold } = std::mem::take(&mut *task.shm.lock());
    let shared = &*task.shared;
    refuse_if(!attached.is_empty() && shared.backing.is_held(task.owner.index), Errno::BUSY)?;
    if !made.is_empty() || !attached.is_empty() {
        locked(task.shm_ids(), |ids, gone| {
            attached.values().for_each(|attached| detach(task, ids, attached.name, gone));
            for segment in made.into_iter().filter_map(|index| Segment::at(ids, index)) {
                segment.orphan(task.owner.index, gone);
            }
            Ok(())
        })?;
    }
    if has_hold {
        shared.backing.forget(task.owner.index);
    }
    Ok(())
}

fn detach(task: &Task, ids: &IdsGuard<'_>, name: SegmentName, gone: &mut Gone) {
    if let Ok(segment) = Segment::named(ids, name) {
        // Record the time first, and detach the segment second. If the task is killed after the
        // first step, the cleanup after it detaches the segment.
        segment.note(DTIME, task.pid);
        segment.detach(task.owner.index, 1, gone);
    }
}

fn rounded(address: usize, shmflg: ShmFlags) -> Result<Option<usize>, Errno> {
    let start = address - address % page_size();
    let is_aligned = address == start || shmflg.contains(ShmFlags::ROUND);
    refuse_if(!is_aligned || (start == 0 && shmflg.contains(ShmFlags::REMAP)), Errno::INVAL)?;
    // With `SHM_RND`, an `address` within the first page is rounded down to 0. Return 0 then, so
    // that the host program fails to map there. Only an `address` of 0 lets the host program
    // choose.
    Ok((address != 0).then_some(start))
}
