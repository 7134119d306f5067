//! Free slots: of each stripe its own, and a depot for all.
//!
//! A stripe takes its slots from a list that its own lock protects, so that to create and to delete an
//! entry take one lock. A list that has become long gives some to the depot, an empty one takes some
//! from there, or slots that were never used. There are so many more slots than entries promised as the
//! lists can keep to themselves: so an entry has to be reclaimed only if there are as many as promised.
//!
//! # Invariants
//! - R.1: a slot is free in one list, or in a bucket, or in the hands of one thread, which has just ended
//!   its entry or is about to fill it.
//! - R.2: a stripe's list has at most [`KEEP`] slots while its lock is free.
//!
//! # Locks
//! The depot's lock is taken inside a stripe's, and nothing inside it.
//!
//! Source: Bonwick and Adams, "Magazines and Vmem", USENIX 2001.

use corewalk_sync::primitives::atomic::{AtomicU64, Ordering};
use corewalk_sync::{CachePadded, Mutex};

use crate::order::{Rank, take};
use crate::slots::Slots;

/// Slots that move at once.
const BATCH: u32 = if corewalk_sync::primitives::IS_MODEL { 1 } else { 8 };
/// Slots that a stripe keeps at most.
pub(crate) const KEEP: u32 = 2 * BATCH;

/// A list of free slots; protected by the lock of what it is part of.
#[derive(Debug, Default)]
pub(crate) struct FreeList {
    first: u32,
    len: u32,
}

impl FreeList {
    pub(crate) fn pop(&mut self, slots: &Slots) -> Option<u32> {
        let slot = self.first;
        if slot == 0 {
            return None;
        }
        self.first = slots.next_free(slot);
        self.len -= 1;
        Some(slot)
    }

    pub(crate) fn push(&mut self, slots: &Slots, slot: u32) {
        slots.set_next_free(slot, self.first);
        self.first = slot;
        self.len += 1;
    }

    pub(crate) fn len(&self) -> u32 {
        self.len
    }
}

/// Where stripes get slots from.
pub(crate) struct Room {
    depot: CachePadded<Mutex<FreeList>>,
    /// First slot that was never handed out.
    next_fresh: CachePadded<AtomicU64>,
    slots_max: u32,
}

impl Room {
    pub(crate) fn new(slots_max: u32) -> Room {
        Room {
            depot: CachePadded::new(Mutex::new(FreeList::default())),
            next_fresh: CachePadded::new(AtomicU64::new(1)),
            slots_max,
        }
    }

    /// Takes a slot out of a stripe's list, which is filled first if it is empty.
    #[inline]
    pub(crate) fn take(&self, slots: &Slots, list: &mut FreeList) -> Option<u32> {
        list.pop(slots).or_else(|| {
            self.refill(slots, list);
            list.pop(slots)
        })
    }

    /// Gives a slot to a stripe's list, and some of a long list to the depot.
    #[inline]
    pub(crate) fn give(&self, slots: &Slots, list: &mut FreeList, slot: u32) {
        list.push(slots, slot);
        if list.len() > KEEP {
            self.unload(slots, list);
        }
    }

    /// Returns the number of slots handed out, slot 0 included: none at or above it is in use.
    pub(crate) fn len_touched(&self) -> u32 {
        // ORDERING: Relaxed. A scan that misses a slot handed out meanwhile is as good as one that ran
        // a moment earlier.
        self.next_fresh.load(Ordering::Relaxed) as u32
    }

    #[cold]
    fn refill(&self, slots: &Slots, list: &mut FreeList) {
        let mut depot = take(Rank::Depot, || self.depot.lock());
        for _ in 0..BATCH {
            let Some(slot) = depot.pop(slots) else { break };
            list.push(slots, slot);
        }
        if list.len() > 0 {
            return;
        }
        // ORDERING: Relaxed. Changed under the depot's lock only; a hint for others.
        let start = self.next_fresh.load(Ordering::Relaxed) as u32;
        let end = (start + BATCH).min(self.slots_max + 1);
        if start < end {
            slots.extend_to(end - 1);
            (start..end).rev().for_each(|slot| list.push(slots, slot));
            // ORDERING: Relaxed. As above.
            self.next_fresh.store(u64::from(end), Ordering::Relaxed);
        }
    }

    #[cold]
    fn unload(&self, slots: &Slots, list: &mut FreeList) {
        let mut depot = take(Rank::Depot, || self.depot.lock());
        for _ in 0..BATCH {
            if let Some(slot) = list.pop(slots) {
                depot.push(slots, slot);
            }
        }
    }
}
