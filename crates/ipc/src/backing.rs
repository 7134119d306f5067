//! The memory of segments.
//!
//! A segment has a name that no other segment of the namespace ever gets. So a new segment with the
//! same id never gets the memory of an older one (trap I10). In one process the memory is a memfd.
//! If processes share a namespace, the host program must supply files that all of them can open.
//!
//! # Holds
//!
//! After fork(2) a child has its parent's mappings before nattch counts them. If the parent is
//! killed then, no record shows the child's attaches. So if processes share a namespace, a task
//! with attaches has a *hold*: an open file with a lock (flock(2)), which the host program maps.
//! Each child inherits that mapping, however it is created, and unmaps it once its attaches are
//! counted. execve(2) and the end of the process also remove it. So the lock of a dead task exists
//! exactly as long as an uncounted process has its attaches. Until then nattch counts the attaches.
//! The parent cannot record the child instead, since it does not know the child's pid before the
//! child exists.
//!
//! Source: flock(2), mmap(2); memfd_create(2), sysinfo(2); proc(5) `overcommit_memory`.

use crate::field::refuse_if;
use corewalk_base::Mutex;
use rustix::fs::{self, MemfdFlags, ftruncate};
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};
use rustix::system::sysinfo;
use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

/// The name of a segment. It is unique among all segments that a namespace has ever had.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SegmentName {
    /// The index of its slot.
    pub index: u32,
    /// The serial number of the segment among all segments that had this index.
    pub serial: u64,
}

/// The access with which a segment is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// The memory will be mapped for reading.
    Read,
    /// The memory will be mapped for reading and writing.
    Write,
}

/// Creates, opens and removes the memory of segments.
///
/// The namespace may call `create`, `remove`, `is_held` and `forget` under one of its locks. To
/// avoid a deadlock, these functions must not call the namespace.
#[expect(unused_variables, reason = "a default has no holds")]
pub trait Backing: Send + Sync {
    /// Creates the memory of a new segment: `size_bytes` zero bytes.
    ///
    /// # Errors
    ///
    /// The errno for the caller of shmget(2): `ENOMEM` if there is no memory.
    fn create(&self, name: SegmentName, size_bytes: u64) -> Result<(), Errno>;

    /// Returns the memory of a segment, for mmap(2). For [`Access::Read`] it need not be writable.
    ///
    /// # Errors
    ///
    /// The errno for the caller of shmat(2).
    fn open(&self, name: SegmentName, access: Access) -> Result<Arc<OwnedFd>, Errno>;

    /// Removes the memory of a segment. Existing mappings stay. Returns true if the memory is gone.
    ///
    /// Returns false if the caller may not remove the memory. The namespace then tries again on
    /// behalf of other tasks, which may have the permission.
    ///
    /// After a process was killed, the namespace may call this again for the same segment, also
    /// from two tasks at once. It may also call it for a segment without memory. The call must then
    /// do nothing.
    fn remove(&self, name: SegmentName) -> bool;

    /// Returns the hold of the task with number `task`: an open file with a lock. The host program
    /// maps the hold while the task has attaches, and closes the descriptor. No other living task
    /// has this number.
    ///
    /// # Errors
    ///
    /// The errors of open(2) and flock(2). Without a hold, the namespace does not notice a forked
    /// child whose attaches are not counted yet.
    fn hold(&self, task: u32) -> Result<OwnedFd, Errno> {
        Err(Errno::OPNOTSUPP)
    }

    /// Returns true if a process has the hold of the task with number `task`, or if that is
    /// unknown. The namespace calls this for a dead task with attaches.
    fn is_held(&self, task: u32) -> bool {
        false
    }

    /// Called when the task with number `task` has no attaches and gets none any more. The hold can
    /// be removed.
    fn forget(&self, task: u32) {}
}

/// The source of segment memory for a process that does not use segments, in a namespace whose
/// other processes may use them. It has no access to the memory, so it can neither remove memory
/// nor see holds.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoBacking;

impl Backing for NoBacking {
    fn create(&self, _: SegmentName, _: u64) -> Result<(), Errno> {
        Err(Errno::ACCESS)
    }

    fn open(&self, _: SegmentName, _: Access) -> Result<Arc<OwnedFd>, Errno> {
        Err(Errno::ACCESS)
    }

    fn remove(&self, _: SegmentName) -> bool {
        false
    }

    fn is_held(&self, _: u32) -> bool {
        true
    }
}

/// The memory of segments in one process: one memfd per segment.
///
/// A segment larger than memory and swap together is refused, as Linux does by default.
#[derive(Debug, Default)]
pub struct Memfds {
    files: Mutex<HashMap<SegmentName, Arc<OwnedFd>>>,
}

impl Memfds {
    /// Returns the number of segments that have memory.
    #[must_use]
    pub fn count(&self) -> usize {
        self.files.lock().len()
    }
}

impl Backing for Memfds {
    fn create(&self, name: SegmentName, size_bytes: u64) -> Result<(), Errno> {
        refuse_if(size_bytes > memory_of_machine(), Errno::NOMEM)?;
        let file = fs::memfd_create("corewalk-shm", MemfdFlags::CLOEXEC)?;
        lengthen(&file, size_bytes).map_err(|_| Errno::NOMEM)?;
        self.files.lock().insert(name, Arc::new(file));
        Ok(())
    }

    /// Returns the segment's only descriptor, which allows reading and writing.
    fn open(&self, name: SegmentName, _: Access) -> Result<Arc<OwnedFd>, Errno> {
        self.files.lock().get(&name).map(Arc::clone).ok_or(Errno::NOMEM)
    }

    fn remove(&self, name: SegmentName) -> bool {
        let file = self.files.lock().remove(&name);
        drop(file);
        true
    }
}

/// Lengthens an empty file. It first checks the limit of `ulimit -f` itself, because the kernel
/// would send SIGXFSZ, which ends the process unless the program handles it.
///
/// # Errors
///
/// `EFBIG` if the length is over the limit, and the errors of ftruncate(2).
pub(crate) fn lengthen(file: impl AsFd, len: u64) -> Result<(), Errno> {
    refuse_if(getrlimit(Resource::Fsize).current.is_some_and(|most| len > most), Errno::FBIG)?;
    ftruncate(file, len)
}

/// Returns the size of memory and swap in bytes.
fn memory_of_machine() -> u64 {
    let info = sysinfo();
    let units = (info.totalram as u64).saturating_add(info.totalswap as u64);
    units.saturating_mul(u64::from(info.mem_unit))
}
