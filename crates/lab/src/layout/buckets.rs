//! The table that both layouts find names through: eight (tag, index) words per cache line.
//!
//! It is as small as the comparison allows: fixed in size, with a lock for writers and none for
//! readers, who take what they find for a hint. A full bucket goes on in the next one.
//!
//! Source: DESIGN 4.7.

use std::io;

use corewalk_sync::primitives::atomic::{AtomicU64, Ordering};
use corewalk_sync::{Mutex, SlotArena};

/// Words of a bucket.
const WORDS: usize = 8;
/// Mean entries per bucket.
const LOAD: usize = 4;
/// A place that was given up: a tag with index 0.
const TOMBSTONE: u64 = 1 << 32;

/// A multimap from hash to index.
pub(super) struct Buckets {
    lines: SlotArena<WORDS>,
    mask: u32,
    writers: Mutex<()>,
}

impl Buckets {
    /// Returns an empty table for `entries` entries.
    pub(super) fn new(entries: usize) -> io::Result<Buckets> {
        let lines = (entries / LOAD + 1).next_power_of_two() as u32;
        Ok(Buckets {
            lines: SlotArena::new("lab-names", lines)?,
            mask: lines - 1,
            writers: Mutex::new(()),
        })
    }

    /// Calls `probe` with each index that may be stored under `hash`, until it returns something.
    #[inline]
    pub(super) fn find<R>(&self, hash: u64, mut probe: impl FnMut(u32) -> Option<R>) -> Option<R> {
        let tag = (hash >> 32) as u32;
        let mut at = hash as u32 & self.mask;
        loop {
            let mut is_full = true;
            for word in self.lines.get(at) {
                // ORDERING(lab-entry): Acquire. The entry was filled before it was put here.
                let word = word.load(Ordering::Acquire);
                is_full &= word != 0;
                if (word >> 32) as u32 == tag
                    && word as u32 != 0
                    && let Some(found) = probe(word as u32)
                {
                    return Some(found);
                }
            }
            if !is_full {
                return None;
            }
            at = (at + 1) & self.mask;
        }
    }

    /// Puts `index` under `hash`.
    pub(super) fn insert(&self, hash: u64, index: u32) {
        let _writer = self.writers.lock();
        self.replace_word(hash, 0, (hash >> 32) << 32 | u64::from(index));
    }

    /// Takes `index` under `hash` out. The place stays taken by a word that nobody asks for, so that
    /// a reader goes on behind it; the next insert there uses it again.
    pub(super) fn remove(&self, hash: u64, index: u32) {
        let _writer = self.writers.lock();
        self.replace_word(hash, (hash >> 32) << 32 | u64::from(index), TOMBSTONE);
    }

    /// Replaces the first word that is `old` (or, for a free one, given up) by `new`. The caller
    /// holds the writers' lock.
    fn replace_word(&self, hash: u64, old: u64, new: u64) {
        let mut at = hash as u32 & self.mask;
        for _ in 0..=self.mask {
            let fits = |word: &&AtomicU64| {
                // ORDERING: Relaxed. Written only under the lock that the caller holds.
                let now = word.load(Ordering::Relaxed);
                now == old || (old == 0 && now == TOMBSTONE)
            };
            if let Some(word) = self.lines.get(at).iter().find(fits) {
                // ORDERING(lab-entry): Release. See `find`.
                word.store(new, Ordering::Release);
                return;
            }
            at = (at + 1) & self.mask;
        }
        unreachable!("the table has room for all entries, and holds what is taken out");
    }
}
