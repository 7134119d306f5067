//! Where the memory of segments comes from.
//!
//! A segment has a name that no other segment of the namespace ever has, so memory cannot be taken for
//! that of a segment which had the same id before (trap I10). Within a process, memory is a memfd;
//! a host whose processes share a namespace brings files that all of them can open.
//!
//! Source: memfd_create(2), sysinfo(2); proc(5) `overcommit_memory`.

use corewalk_sync::Mutex;
use rustix::fs::{self, MemfdFlags};
use rustix::io::Errno;
use rustix::system::sysinfo;
use std::collections::HashMap;
use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// A segment, among all that a namespace has ever had.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SegmentName {
    /// The index of its slot.
    pub index: u32,
    /// Which of the segments of this slot.
    pub serial: u64,
}

/// Makes, opens and removes the memory of segments.
///
/// `create` and `remove` may be called under a lock of the namespace, so they must not call the namespace.
pub trait Backing: Send + Sync {
    /// Makes the memory of a new segment: `size_bytes` zeroes.
    ///
    /// # Errors
    ///
    /// What the caller of shmget(2) is to see: `ENOMEM` if there is none.
    fn create(&self, name: SegmentName, size_bytes: u64) -> Result<(), Errno>;

    /// Returns the memory of a segment, for mmap(2).
    ///
    /// # Errors
    ///
    /// What the caller of shmat(2) is to see.
    fn open(&self, name: SegmentName) -> Result<Arc<OwnedFd>, Errno>;

    /// Takes note that a segment is gone. What is mapped stays mapped.
    ///
    /// If a process was killed in the middle it is told again, perhaps by two tasks at once, and perhaps of a
    /// segment that was never made: there is nothing to be done then.
    fn remove(&self, name: SegmentName);
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
        fs::ftruncate(&file, size_bytes).map_err(|_| Errno::NOMEM)?;
        self.files.lock().insert(name, Arc::new(file));
        Ok(())
    }

    fn open(&self, name: SegmentName) -> Result<Arc<OwnedFd>, Errno> {
        self.files.lock().get(&name).map(Arc::clone).ok_or(Errno::NOMEM)
    }

    fn remove(&self, name: SegmentName) {
        let file = self.files.lock().remove(&name);
        drop(file);
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
