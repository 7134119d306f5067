//! The ranges of the data device that the running transaction has written. If they are too long or
//! too many for the log, only a flag is kept.
//!
//! A small transaction puts its file data into the log, so a commit must know which ranges were
//! written. Above [`LOGGED_BYTES_MAX`] bytes, a sync of the data device is cheaper than writing the
//! bytes twice. Then `Dirty` drops the ranges and sets a flag.
//!
//! # Locks
//! While the mutex of `written` is held, no other lock is taken.

use corewalk_base::Mutex;
use corewalk_base::primitives::atomic::{AtomicBool, Ordering};

const LOGGED_BYTES_MAX: u64 = 64 << 10;
const RANGES_MAX: usize = 64;

#[derive(Default)]
pub(crate) struct Dirty {
    /// Protected by its own mutex.
    written: Mutex<Written>,
    /// True if the ranges are too long or too many for the log. Stored while the mutex of `written`
    /// is held, but loaded without it.
    is_large: AtomicBool,
}

#[derive(Default)]
struct Written {
    ranges: Vec<(u64, u32)>,
    bytes: u64,
}

impl Dirty {
    /// Adds a range that the caller is about to write. The caller holds a handle of the journal, so
    /// no commit can call `take` meanwhile.
    pub(crate) fn note(&self, offset: u64, len: usize) {
        if self.is_large() {
            return;
        }
        let mut written = self.written.lock();
        written.bytes += len as u64;
        if written.bytes > LOGGED_BYTES_MAX || written.ranges.len() == RANGES_MAX {
            written.ranges = Vec::new();
            // ORDERING: Relaxed. The caller holds the transaction barrier for reading, and a commit
            // closes it before `take` loads the flag. So `take` sees the value. For `is_large` it
            // is only a hint.
            self.is_large.store(true, Ordering::Relaxed);
        } else if written.ranges.last() != Some(&(offset, len as u32)) {
            written.ranges.push((offset, len as u32));
        }
    }

    pub(crate) fn is_large(&self) -> bool {
        // ORDERING: Relaxed. A caller with a handle of the journal sees the swap in an earlier
        // `take`, since the commit held the transaction barrier. For other callers the value is
        // only a hint.
        self.is_large.load(Ordering::Relaxed)
    }

    /// Returns the ranges written since the last call, or None if they are too long or too many for
    /// the log. The caller has closed the transaction barrier, so no thread is calling `note`.
    pub(crate) fn take(&self) -> Option<Vec<(u64, u32)>> {
        let written = std::mem::take(&mut *self.written.lock());
        // ORDERING: Relaxed. The commit has closed the transaction barrier, which orders all stores
        // of `note` before the swap.
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
