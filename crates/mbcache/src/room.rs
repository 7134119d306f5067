//! Lines that are in no bucket.
//!
//! A bucket that has no slot left takes a line, and keeps it: a line is given back only by reclaim, when
//! nobody has one to give. Lines that were never used come from a counter, those that were given back
//! from lists, of which there are some so that few meet at one.
//!
//! # Invariants
//! - R.1: a line is in one list, or in a bucket, or in the hands of one thread; or it was never used.
//!
//! # Locks
//! The lock of a list is taken inside a bucket's, and nothing inside it.

use corewalk_base::primitives::IS_MODEL;
use corewalk_base::primitives::atomic::{AtomicU64, Ordering};
use corewalk_base::{CachePadded, Mutex, OwnLine};

use crate::index::{self, Index};
use crate::order::{Rank, take};

/// Lists of lines.
const LISTS: usize = if IS_MODEL { 1 } else { 8 };

/// Where buckets get lines from.
pub(crate) struct Room {
    /// First line of each list, 0 if it is empty: protected by its own lock.
    lists: [OwnLine<Mutex<u32>>; LISTS],
    /// First line that was never used.
    next_fresh: CachePadded<AtomicU64>,
    /// How many lines there are.
    lines_max: u32,
}

impl Room {
    /// Returns the lines of `index` that are not first in a bucket.
    pub(crate) fn new(index: &Index, spare: u32) -> Room {
        Room {
            lists: std::array::from_fn(|_| OwnLine::default()),
            next_fresh: CachePadded::new(AtomicU64::new(u64::from(index.buckets()))),
            lines_max: index.buckets() + spare,
        }
    }

    /// Takes a line, first from the list that is next to `hint`.
    pub(crate) fn take(&self, index: &Index, hint: u32) -> Option<u32> {
        let from = |nth: usize| self.pop(index, hint as usize + nth);
        from(0).or_else(|| self.fresh(index)).or_else(|| (1..LISTS).find_map(from))
    }

    /// Gives a line back.
    pub(crate) fn give(&self, index: &Index, hint: u32, line: u32) {
        let mut first = take(Rank::Room, || self.lists[hint as usize % LISTS].lock());
        index::set_link(index.line(line), *first);
        *first = line;
    }

    fn pop(&self, index: &Index, list: usize) -> Option<u32> {
        let mut first = take(Rank::Room, || self.lists[list % LISTS].lock());
        let line = *first;
        if line == 0 {
            return None;
        }
        *first = index::link_of(index.line(line));
        Some(line)
    }

    fn fresh(&self, index: &Index) -> Option<u32> {
        // ORDERING: Relaxed. The counter only hands out numbers; lines are zero from the beginning.
        let mut next = self.next_fresh.load(Ordering::Relaxed);
        while next < u64::from(self.lines_max) {
            // ORDERING: Relaxed. As above.
            match self.next_fresh.compare_exchange_weak(
                next,
                next + 1,
                Ordering::Relaxed,
                Ordering::Relaxed,
            ) {
                Ok(_) => {
                    index.extend_to(next as u32);
                    return Some(next as u32);
                }
                Err(now) => next = now,
            }
        }
        None
    }
}

/// Returns the bytes of the lists.
pub(crate) const fn bytes() -> u64 {
    (LISTS * 64) as u64
}
