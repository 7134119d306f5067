//! shmat(2), shmdt(2), and what fork(2) and the end of a task do.
//!
//! Addresses belong to a process, so the table of what is attached where is the task's own and not in the
//! region; there, only counts are. A task that dies leaves its counts, under its number.
//!
//! Source: shmop(2); Linux `ipc/shm.c` (`do_shmat`, `shm_open`, `shm_close`, `ksys_shmdt`, `exit_shm`).

use corewalk_base::primitives::Arc as TaskArc;
use rustix::io::Errno;
use rustix::param::page_size;
use std::collections::BTreeMap;
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use super::READ;
use super::backing::{Access, SegmentName};
use super::segment::{Gone, SHM_DEST, Segment, name_of};
use crate::flags::ShmFlags;
use crate::handle::ShmId;
use crate::ids::IdsGuard;
use crate::recover;
use crate::task::Task;

/// What a task has made and attached.
#[derive(Default)]
pub(crate) struct Own {
    /// Slots of segments that it has made.
    pub(super) made: Vec<u32>,
    /// What is attached where.
    attached: BTreeMap<usize, Attached>,
    /// Whether it has had a hold, which is to be forgotten.
    has_hold: bool,
}

#[derive(Clone, Copy, Debug)]
struct Attached {
    name: SegmentName,
    size_bytes: u64,
}

/// A segment that is about to be mapped: it is counted as attached, and no more if this is dropped.
#[must_use = "the segment is detached again when this is dropped"]
pub struct Mapping<'t> {
    task: &'t Task,
    name: SegmentName,
    size_bytes: u64,
    memory: Arc<OwnedFd>,
    address: Option<usize>,
    shmflg: ShmFlags,
    is_kept: bool,
}

impl Mapping<'_> {
    /// Returns how many bytes to map, from the start of the descriptor. Pages are mapped whole.
    #[must_use]
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// Returns where to map, a multiple of the page size; or none if that is left to the host.
    #[must_use]
    pub fn address(&self) -> Option<usize> {
        self.address
    }

    /// Returns true if what is mapped at the address is to be replaced; otherwise nothing may be there.
    #[must_use]
    pub fn is_remap(&self) -> bool {
        self.shmflg.contains(ShmFlags::REMAP)
    }

    /// Returns true if the mapping is to be writable.
    #[must_use]
    pub fn is_writable(&self) -> bool {
        !self.shmflg.contains(ShmFlags::RDONLY)
    }

    /// Returns true if the mapping is to be executable.
    #[must_use]
    pub fn is_executable(&self) -> bool {
        self.shmflg.contains(ShmFlags::EXEC)
    }

    /// Takes note that the segment was mapped at `address`, in place of what was attached there.
    pub fn attached_at(mut self, address: usize) {
        let task = self.task;
        let shared = &*task.shared;
        let mut gone = Gone::default();
        let ids = task.shm_ids().lock();
        let attached = Attached { name: self.name, size_bytes: self.size_bytes };
        let before = task.shm.lock().attached.insert(address, attached);
        self.is_kept = true;
        // Without the lock it is counted all the same; only who and when is not noted.
        let Ok(ids) = ids else { return };
        if let Some(segment) = Segment::named(shared, &ids, self.name) {
            segment.note_attach(task.pid);
        }
        if let Some(before) = before {
            detach(task, &ids, before.name, &mut gone);
        }
        drop(ids);
        gone.give_back(shared);
    }
}

impl AsFd for Mapping<'_> {
    /// Returns the memory of the segment, for mmap(2).
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.memory.as_fd()
    }
}

impl fmt::Debug for Mapping<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("Mapping");
        debug.field("name", &self.name).field("size_bytes", &self.size_bytes);
        debug.field("address", &self.address).finish_non_exhaustive()
    }
}

impl Drop for Mapping<'_> {
    fn drop(&mut self) {
        if !self.is_kept {
            // As if it had never been: no time, no pid.
            self.task.uncount(self.name);
        }
    }
}

/// A segment that is about to be unmapped: it is counted as attached until this is dropped.
#[must_use = "the segment is detached when this is dropped"]
pub struct Unmapping<'t> {
    task: &'t Task,
    attached: Attached,
}

impl Unmapping<'_> {
    /// Returns how many bytes the host has to unmap. Pages are unmapped whole.
    #[must_use]
    pub fn size_bytes(&self) -> u64 {
        self.attached.size_bytes
    }

    /// Detaches the segment, which is mapped no more.
    ///
    /// # Errors
    ///
    /// `EIO` if a process that lives does not let go of a lock for 10 s: the segment stays counted until the task ends.
    pub fn detach(self) -> Result<(), Errno> {
        let this = std::mem::ManuallyDrop::new(self);
        this.uncount()
    }

    fn uncount(&self) -> Result<(), Errno> {
        let mut gone = Gone::default();
        let ids = self.task.shm_ids().lock()?;
        detach(self.task, &ids, self.attached.name, &mut gone);
        drop(ids);
        gone.give_back(&self.task.shared);
        Ok(())
    }
}

impl fmt::Debug for Unmapping<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Unmapping").field("attached", &self.attached).finish_non_exhaustive()
    }
}

impl Drop for Unmapping<'_> {
    fn drop(&mut self) {
        // What cannot be detached now is when the task ends.
        let _detached = self.uncount();
    }
}

impl Task {
    /// Attaches a segment: checks and counts, and returns what the host is to map.
    ///
    /// With `address` 0 the host chooses the address.
    ///
    /// # Errors
    ///
    /// - `EACCES`: the mode does not allow what is asked for, and there is no `CAP_IPC_OWNER`.
    /// - `EIDRM`: the segment was removed meanwhile.
    /// - `EINVAL`: there is no such segment; `address` is not a multiple of the page size, and
    ///   `ROUND` is not given; `REMAP` is given with an address of 0.
    /// - `ENOMEM`: no room for the attach, or no memory.
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
    /// // The host maps `size_bytes` of it, and says where.
    /// let (_memory, _size_bytes) = (mapping.as_fd(), mapping.size_bytes());
    /// mapping.attached_at(0x1000_0000);
    /// task.shm_rmid(id)?;
    /// assert_eq!(task.shm_stat(id)?.nattch, 1);
    /// assert_eq!(task.shmdt(0x1000_0000), Ok(4096));
    /// assert!(task.shm_stat(id).is_err());
    /// # Ok::<(), rustix::io::Errno>(())
    /// ```
    #[doc(alias = "do_shmat")]
    #[doc(alias = "ipc_obtain_object_check")]
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
            // It may be there only because nobody has noticed a death.
            self.reap_attachers(shmid.raw());
            found = self.shm_ids().obtain_object_check(shmid.raw())?;
        }
        let write = if shmflg.contains(ShmFlags::RDONLY) { 0 } else { 0o222 };
        let execute = if shmflg.contains(ShmFlags::EXEC) { 0o111 } else { 0 };
        self.permission(&found, READ | write | execute)?;
        if let Some(hook) = &shared.hook {
            hook.shm_shmat(&self.cred.whole(), &found.perm(), shmflg)?;
        }
        let size_bytes = recover::with_room(shared, self.owner, || {
            let ids = self.shm_ids().lock()?;
            // Trap I2: only what is looked up again under the lock is counted.
            let segment = Segment::again(shared, &ids, &found)?;
            segment.attach(self.owner.index, 1, self.owner)?;
            Ok(segment.size_bytes())
        })?;
        let name = name_of(&found);
        let access = if write == 0 { Access::Read } else { Access::Write };
        let memory = shared.backing.open(name, access).inspect_err(|_| self.uncount(name))?;
        Ok(Mapping { task: self, name, size_bytes, memory, address, shmflg, is_kept: false })
    }

    /// Detaches what is attached at `address`, which the host has unmapped or is about to; returns how many bytes that are.
    ///
    /// # Errors
    ///
    /// `EINVAL`: nothing is attached at this address. `EIO` if a process that lives does not let go of a lock for 10 s:
    /// the segment stays counted until the task ends.
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
        let unmapping = self.unmapping(address)?;
        let size_bytes = unmapping.size_bytes();
        unmapping.detach().map(|()| size_bytes)
    }

    /// As [`Task::shmdt`], for a host that shares the namespace with others: it unmaps what is there before the segment is
    /// counted no more, so that who counts nobody can rely on it.
    ///
    /// # Errors
    ///
    /// `EINVAL`: nothing is attached at this address.
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
    /// let unmapping = task.unmapping(0x1000_0000)?;
    /// // The host calls munmap(2) for this many bytes.
    /// assert_eq!((unmapping.size_bytes(), task.shm_stat(id)?.nattch), (4096, 1));
    /// unmapping.detach()?;
    /// assert_eq!(task.shm_stat(id)?.nattch, 0);
    /// assert_eq!(task.unmapping(0x1000_0000).err(), Some(Errno::INVAL));
    /// # Ok::<(), Errno>(())
    /// ```
    pub fn unmapping(&self, address: usize) -> Result<Unmapping<'_>, Errno> {
        let attached = self.shm.lock().attached.remove(&address).ok_or(Errno::INVAL)?;
        Ok(Unmapping { task: self, attached })
    }

    /// Returns the hold of the task, see [`crate::Backing::hold`].
    ///
    /// # Errors
    ///
    /// Those of the backing.
    pub fn hold(&self) -> Result<OwnedFd, Errno> {
        self.shm.lock().has_hold = true;
        self.shared.backing.hold(self.owner.index)
    }

    /// Returns how many attaches the task has.
    #[must_use]
    pub fn attached(&self) -> usize {
        self.shm.lock().attached.len()
    }

    /// Returns a new task with what fork(2) hands on: credentials and attached segments, but no undo.
    ///
    /// Where processes share the namespace it is the child that calls this, on its copy of the parent's task,
    /// which it must then forget: a task is known by the process that makes it.
    ///
    /// # Errors
    ///
    /// Those of [`crate::Namespace::register`]; `ENOMEM` also if there is no room for its attaches; `EIDRM` if a
    /// segment is gone that is attached: the child would have memory that nobody counts.
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

    /// Attaches to `child` what it has not yet of what this task has.
    fn copy_attached(&self, child: &Self) -> Result<(), Errno> {
        let ids = child.shm_ids().lock()?;
        let attached = self.shm.lock().attached.clone();
        attached.iter().try_for_each(|(address, attached)| {
            if child.shm.lock().attached.contains_key(address) {
                return Ok(());
            }
            let segment = Segment::named(&self.shared, &ids, attached.name).ok_or(Errno::IDRM)?;
            segment.attach(child.owner.index, 1, child.owner)?;
            segment.note_attach(self.pid);
            child.shm.lock().attached.insert(*address, *attached);
            Ok(())
        })
    }

    /// Takes back what [`Task::shmat`] has counted.
    fn uncount(&self, name: SegmentName) {
        let shared = &*self.shared;
        let mut gone = Gone::default();
        let Ok(ids) = self.shm_ids().lock() else { return };
        if let Some(segment) = Segment::named(shared, &ids, name) {
            segment.detach(self.owner.index, 1, self.owner);
            segment.destroy_if_due(&mut gone);
        }
        drop(ids);
        gone.give_back(shared);
    }
}

/// Detaches all that a task has attached, and then orphans what it has made.
///
/// # Errors
///
/// `EIO` if the lock cannot be had, `EBUSY` if a child that is not yet counted has its attaches: the line of the task has to
/// stay its own, so that it is reaped.
pub(crate) fn exit_shm(task: &Task) -> Result<(), Errno> {
    let Own { made, attached, has_hold } = std::mem::take(&mut *task.shm.lock());
    let shared = &*task.shared;
    if made.is_empty() && attached.is_empty() {
        if has_hold {
            shared.backing.forget(task.owner.index);
        }
        return Ok(());
    }
    if !attached.is_empty() && shared.backing.is_held(task.owner.index) {
        return Err(Errno::BUSY);
    }
    let mut gone = Gone::default();
    // What cannot be detached now is found to be that of a task that has gone.
    let ids = task.shm_ids().lock()?;
    for attached in attached.values() {
        detach(task, &ids, attached.name, &mut gone);
    }
    for index in made {
        if let Some(segment) = Segment::at(shared, &ids, index) {
            segment.orphan(task.owner.index, &mut gone);
        }
    }
    drop(ids);
    gone.give_back(shared);
    if has_hold {
        shared.backing.forget(task.owner.index);
    }
    Ok(())
}

fn detach(task: &Task, ids: &IdsGuard<'_>, name: SegmentName, gone: &mut Gone) {
    if let Some(segment) = Segment::named(&task.shared, ids, name) {
        // In this order: who is killed in between is detached, and that is noted.
        segment.note_detach(task.pid);
        segment.detach(task.owner.index, 1, task.owner);
        segment.destroy_if_due(gone);
    }
}

/// Returns where to attach, or none if that is left to the host.
fn rounded(address: usize, shmflg: ShmFlags) -> Result<Option<usize>, Errno> {
    let is_remap = shmflg.contains(ShmFlags::REMAP);
    let start = address - address % page_size();
    if address != start && !shmflg.contains(ShmFlags::ROUND) {
        return Err(Errno::INVAL);
    }
    if start == 0 && is_remap {
        return Err(Errno::INVAL);
    }
    // An address that is rounded to 0 is one: the host will find that nothing can be mapped there.
    Ok((address != 0).then_some(start))
}
