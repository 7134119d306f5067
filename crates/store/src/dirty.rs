//! Records which ranges of the data device the running transaction has written, unless they are too
//! many.
//!
//! A small transaction puts its file data into the log, so it must know where that data is. Beyond
//! [`LOGGED_BYTES_MAX`] it is cheaper to sync the data device than to write the bytes twice. Then
//! `Dirty` drops the ranges and keeps only a flag.
//!
//! # Locks
//! No other lock is taken under the mutex of `written`.

use corewalk_base::Mutex;
use corewalk_base::primitives::atomic::{AtomicBool, Ordering};

/// Maximum number of bytes of file data in one log entry.
const LOGGED_BYTES_MAX: u64 = 64 << 10;
/// Maximum number of ranges in one log entry.
const RANGES_MAX: usize = 64;

/// The ranges written since the last [`Dirty::take`]. If the ranges are too many, the flag
/// `Dirty::is_large` replaces them.
#[derive(Default)]
pub(crate) struct Dirty {
    /// Protected by its own mutex.
    written: Mutex<Written>,
    /// True if the ranges are too many or too long for the log. Stored under the mutex of
    /// `written`, read without it.
    is_large: AtomicBool,
}

/// The ranges. All fields are protected by `Dirty::written`.
#[derive(Default)]
struct Written {
    /// Offset and length in bytes.
    ranges: Vec<(u64, u32)>,
    bytes: u64,
}

impl Dirty {
    /// Records a range that the caller is about to write. The caller holds a handle of the journal,
    /// so no commit calls `take` meanwhile.
    pub(crate) fn note(&self, offset: u64, len: usize) {
        if self.is_large() {
            return;
        }
        let mut written = self.written.lock();
        written.bytes += len as u64;
        if written.bytes > LOGGED_BYTES_MAX || written.ranges.len() == RANGES_MAX {
            written.ranges = Vec::new();
            // ORDERING: Relaxed. `take` must see this store. A commit calls `take` after it has
            // closed the transaction barrier, which orders this store before the load in `take`.
            // For callers of `is_large` the value is only a hint.
            self.is_large.store(true, Ordering::Relaxed);
        } else if written.ranges.last() != Some(&(offset, len as u32)) {
            written.ranges.push((offset, len as u32));
        }
    }

    /// Returns true if more was written than one log entry takes.
    pub(crate) fn is_large(&self) -> bool {
        // ORDERING: Relaxed. `note` must see the swap of an earlier `take`. The caller of `note`
        // holds a handle of the journal, which orders this load after that swap. For other callers
        // the value is only a hint.
        self.is_large.load(Ordering::Relaxed)
    }

    /// Removes and returns the written ranges. Returns None if the ranges were too many to record.
    /// The caller has closed the transaction barrier, so no thread is inside `note`.
    pub(crate) fn take(&self) -> Option<Vec<(u64, u32)>> {
        let written = std::mem::take(&mut *self.written.lock());
        // ORDERING: Relaxed. The transaction barrier is closed. So all earlier calls of `note` have
        // ended, and their stores are visible.
        let is_large = self.is_large.swap(false, Ordering::Relaxed);
        (!is_large).then_some(written.ranges)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_known_while_they_are_few() {
        let dirty = Dirty::default();
        dirty.note(0, 100);
        dirty.note(0, 100);
        dirty.note(4096, 1);
        assert_eq!(dirty.take(), Some(vec![(0, 100), (4096, 1)]));
        assert_eq!(dirty.take(), Some(vec![]));
        dirty.note(8192, 65_000);
        assert!(!dirty.is_large());
        dirty.note(0, 1000);
        assert!(dirty.is_large());
        assert_eq!(dirty.take(), None);
        for at in 0..=RANGES_MAX as u64 {
            dirty.note(at, 1);
        }
        assert_eq!(dirty.take(), None);
        assert_eq!(dirty.take(), Some(vec![]));
    }
}
