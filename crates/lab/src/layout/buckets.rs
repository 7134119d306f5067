//! The table that both layouts find names through: eight (tag, index) words per cache line.
//!
//! It is as small as the comparison allows: fixed in size, with a lock for writers and none for
//! readers, who take what they find for a hint. A full bucket goes on in the next one.
//!
//! Source: DLHT (HPDC 2024) for the bucket of one line.

use std::io;

use corewalk_base::Mutex;
use corewalk_base::primitives::atomic::{AtomicU64, Ordering};
use corewalk_sync::SlotArena;

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
        let buckets = Buckets {
            lines: SlotArena::new("lab-names", lines)?,
            mask: lines - 1,
            writers: Mutex::new(()),
        };
        buckets.lines.extend_to(buckets.mask);
        Ok(buckets)
    }

    /// Returns the bytes of all lines.
    pub(super) fn bytes_committed(&self) -> u64 {
        self.lines.bytes_committed()
    }

    /// Calls `probe` with each index that may be stored under `hash`, until it returns something.
    #[inline]
    pub(super) fn find<R>(&self, hash: u64, mut probe: impl FnMut(u32) -> Option<R>) -> Option<R> {
        let tag = (hash >> 32) as u32;
        let mut at = hash as u32 & self.mask;
        loop {
            let line = self.lines.get(at);
            // Which words match is found without a branch on the line, which is often not cached.
            let (mut matches, mut free) = (0_u32, 0_u32);
            for (i, word) in line.iter().enumerate() {
                // ORDERING: Relaxed. The word is loaded again before it is believed.
                let word = word.load(Ordering::Relaxed);
                matches |= u32::from((word >> 32) as u32 == tag) << i;
                free |= u32::from(word == 0) << i;
            }
            while matches != 0 {
                // ORDERING(lab-entry): Acquire. The entry was filled before it was put here.
                let word = line[matches.trailing_zeros() as usize].load(Ordering::Acquire);
                matches &= matches - 1;
                if word as u32 != 0
                    && (word >> 32) as u32 == tag
                    && let Some(found) = probe(word as u32)
                {
                    return Some(found);
                }
            }
            if free != 0 {
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
