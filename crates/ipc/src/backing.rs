//! The memory of segments.
//!
//! The name of a shared memory segment is never used again in its namespace. So a new segment with
//! a reused id never gets the memory of an older one (trap I10 in `traps.md`).
//!
//! If only one process uses the namespace, the memory of a segment is a memfd. If processes share
//! the namespace, the host program (the program that uses this crate) must supply files that all of
//! them can open.
//!
//! # Holds
//!
//! After fork(2), a child has its parent's segments mapped. But nattch (the number of attaches)
//! includes the child only later, when its pid is known. If the parent is killed in between, the
//! child still uses the segments. So nattch must then keep the attaches of the dead parent.
//!
//! To show that such a child exists, a task with attaches has a *hold*. A hold is an open file with
//! a flock(2) lock, which the host program maps.
//! - Each child inherits the mapping, and unmaps it when nattch includes the child.
//! - execve(2) and the end of the process remove the mapping, too.
//! - As long as the lock of a dead task's hold exists, nattch keeps the attaches of that task.
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
    /// The serial number of the segment among all segments that have used the slot `index`.
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
/// The namespace may hold a lock when it calls `create`, `remove`, `is_held` or `forget`. So these
/// functions must not call functions of the namespace, which could wait for that lock for ever.
#[expect(unused_variables, reason = "a default has no holds")]
pub trait Backing: Send + Sync {
    /// Creates the memory of a new segment: `size_bytes` zero bytes.
    ///
    /// # Errors
    ///
    /// Returns an errno, which shmget(2) passes to its caller: `ENOMEM` if there is no memory.
    fn create(&self, name: SegmentName, size_bytes: u64) -> Result<(), Errno>;

    /// Returns a file with the memory of a segment, which the caller passes to mmap(2). For
    /// [`Access::Read`] the file need not be writable.
    ///
    /// # Errors
    ///
    /// The errno for the caller of shmat(2).
    fn open(&self, name: SegmentName, access: Access) -> Result<Arc<OwnedFd>, Errno>;

    /// Removes the memory of a segment. Existing mappings stay. Returns true if the memory is gone.
    ///
    /// Returns false if this process lacks the permission to remove the segment's memory. The
    /// namespace later calls `remove` again in other processes, which may have the permission.
    ///
    /// The namespace may call `remove` again for the same segment, also from two tasks at the same
    /// time, and for a segment without memory. In these cases `remove` must do nothing.
    fn remove(&self, name: SegmentName) -> bool;

    /// Returns the hold of task number `task`: an open file with a flock(2) lock. The host program
    /// maps this file while the task has segments attached. The host program then closes the
    /// descriptor, since the mapping keeps the lock.
    ///
    /// # Errors
    ///
    /// Returns the errors of open(2) and flock(2). The task then has no hold: if it dies, nattch
    /// drops its attaches, even if a forked child is not counted yet.
    fn hold(&self, task: u32) -> Result<OwnedFd, Errno> {
        Err(Errno::OPNOTSUPP)
    }

    /// Returns true if the hold (the locked file) of the dead task number `task` is still locked,
    /// or if this is unknown. Then a forked child may still use the segments, and nattch keeps the
    /// attaches of the task.
    fn is_held(&self, task: u32) -> bool {
        false
    }

    /// May delete the hold (the locked file) of task number `task`. The namespace calls this
    /// function when the task has no attaches and will get no more.
    fn forget(&self, task: u32) {}
}

/// The [`Backing`] of a process that uses no segments, in a namespace whose other processes may use
/// them. It cannot remove memory of segments, nor see whether a hold is still locked.
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

/// Sets the length of a file. Returns `EFBIG` if the length is above the limit of `ulimit -f`: for
/// such a length, ftruncate(2) would also send the signal SIGXFSZ.
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
