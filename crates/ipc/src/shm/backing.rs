//! Where the memory of segments comes from.
//!
//! A segment has a name that no other segment of the namespace ever has, so memory cannot be taken for
//! that of a segment which had the same id before (trap I10). Within a process, memory is a memfd;
//! a host whose processes share a namespace brings files that all of them can open.
//!
//! # Holds
//!
//! A child that was just forked has attached what its parent has, and is not yet counted: if the parent is killed
//! then, nobody counts. So where processes share a namespace, one that has something attached has a *hold*: an open file
//! with a lock (flock(2)), which the host maps. Every child has that mapping too, however it was made, and
//! gives it up once it is counted; the kernel ends it with execve(2) and with the process. So the lock of a task that has died
//! is there exactly as long as somebody has its attaches and is not counted, and for that long they are left as they are.
//! To write the number of the child down would not do: the parent does not know it before there is a child.
//!
//! Source: flock(2), mmap(2); memfd_create(2), sysinfo(2); proc(5) `overcommit_memory`.

use corewalk_base::Mutex;
use rustix::fs::{self, MemfdFlags};
use rustix::io::Errno;
use rustix::system::sysinfo;
use std::collections::HashMap;
use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use crate::file::lengthen;

/// A segment, among all that a namespace has ever had.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SegmentName {
    /// The index of its slot.
    pub index: u32,
    /// Which of the segments of this slot.
    pub serial: u64,
}

/// What a segment is opened for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// To be mapped for reading.
    Read,
    /// To be mapped for reading and writing.
    Write,
}

/// Makes, opens and removes the memory of segments.
///
/// `create`, `remove`, `is_held` and `forget` may be called under a lock of the namespace, so they must not call the namespace.
pub trait Backing: Send + Sync {
    /// Makes the memory of a new segment: `size_bytes` zeroes.
    ///
    /// # Errors
    ///
    /// What the caller of shmget(2) is to see: `ENOMEM` if there is none.
    fn create(&self, name: SegmentName, size_bytes: u64) -> Result<(), Errno>;

    /// Returns the memory of a segment, for mmap(2). For reading it need not be writable.
    ///
    /// # Errors
    ///
    /// What the caller of shmat(2) is to see.
    fn open(&self, name: SegmentName, access: Access) -> Result<Arc<OwnedFd>, Errno>;

    /// Takes note that a segment is gone; returns true if nothing is left of its memory. What is mapped stays mapped.
    ///
    /// Where it returns false, because the caller may not remove it, others are asked to.
    ///
    /// If a process was killed in the middle it is told again, perhaps by two tasks at once, and perhaps of a
    /// segment that was never made: there is nothing to be done then.
    fn remove(&self, name: SegmentName) -> bool;

    /// Returns the hold of the task numbered `task`: the host maps it while the task has something attached, and closes it.
    /// No other task that lives has this number.
    ///
    /// # Errors
    ///
    /// Those of open(2) and flock(2). Without a hold a child that is not yet counted is not seen.
    fn hold(&self, task: u32) -> Result<OwnedFd, Errno> {
        let _ = task;
        Err(Errno::OPNOTSUPP)
    }

    /// Returns true if somebody has the hold of the task numbered `task`, or may have: it is asked for a task
    /// that has died with something attached.
    fn is_held(&self, task: u32) -> bool {
        let _ = task;
        false
    }

    /// Takes note that the task numbered `task` has nothing attached any more, and never will have.
    fn forget(&self, task: u32) {
        let _ = task;
    }
}

/// The memory of segments for a process that does not use any, in a namespace where others may: it is elsewhere, so this process can
/// neither remove it nor tell who is there.
#[derive(Clone, Copy, Debug, Default)]
pub struct Elsewhere;

impl Backing for Elsewhere {
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

/// Memory of this process: one memfd per segment.
///
/// A segment larger than memory and swap together is refused, as Linux does by default.
#[derive(Default)]
pub struct Memfds {
    files: Mutex<HashMap<SegmentName, Arc<OwnedFd>>>,
}

impl Memfds {
    /// Returns how many segments there is memory for.
    #[must_use]
    pub fn count(&self) -> usize {
        self.files.lock().len()
    }
}

impl Backing for Memfds {
    fn create(&self, name: SegmentName, size_bytes: u64) -> Result<(), Errno> {
        if size_bytes > memory_of_machine() {
            return Err(Errno::NOMEM);
        }
        let file = fs::memfd_create("corewalk-shm", MemfdFlags::CLOEXEC)?;
        lengthen(&file, size_bytes).map_err(|_| Errno::NOMEM)?;
        self.files.lock().insert(name, Arc::new(file));
        Ok(())
    }

    /// Returns the one descriptor that there is, whatever it is for.
    fn open(&self, name: SegmentName, _: Access) -> Result<Arc<OwnedFd>, Errno> {
        self.files.lock().get(&name).map(Arc::clone).ok_or(Errno::NOMEM)
    }

    fn remove(&self, name: SegmentName) -> bool {
        let file = self.files.lock().remove(&name);
        drop(file);
        true
    }
}

/// Returns the bytes of memory and swap.
fn memory_of_machine() -> u64 {
    let info = sysinfo();
    let units = (info.totalram as u64).saturating_add(info.totalswap as u64);
    units.saturating_mul(u64::from(info.mem_unit))
}

impl fmt::Debug for Memfds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Memfds").field("count", &self.count()).finish()
    }
}
