//! Reclaim: a hand that goes round over the slots.
//!
//! There is no list of entries in the order of their use, and so no lock that every use would take. The
//! hand clears the referenced bit of what was used since it came by last, and takes the rest. What is
//! held stays in the index, or who frees its value could not find its holder (trap T35).
//!
//! Source: Kara's "referenced bit" variant; Linux `mb_cache_shrink`, which turns a list instead.

use corewalk_sync::primitives::atomic::Ordering;

use crate::cache::Mbcache;
use crate::slots::Spare;

/// What the hand found.
enum Look {
    /// No entry.
    Free,
    /// An entry that stays.
    Stays,
    /// The slot of an entry that was taken out; it is the caller's.
    Taken(u32),
}

impl Mbcache {
    /// Returns how many entries there are: what a shrinker could ask for at most.
    #[doc(alias = "mb_cache_count")]
    #[must_use]
    pub fn count(&self) -> u64 {
        self.stats().entries
    }

    /// Looks at `entries` entries, at most once at each, and drops those that are neither held nor were
    /// used since the last look; returns how many were dropped.
    ///
    /// The memory of what is dropped is used for other entries; it is not given back to the system.
    ///
    /// # Examples
    ///
    /// ```
    /// use corewalk_mbcache::{Mbcache, MbcacheOptions, Reusable};
    ///
    /// let cache = Mbcache::new(MbcacheOptions::default())?;
    /// cache.create(1, 10, Reusable::Yes)?;
    /// cache.create(1, 11, Reusable::Yes)?;
    /// cache.get(1, 10);
    /// assert_eq!(cache.scan(2), 1);
    /// assert!(cache.get(1, 10).is_some() && cache.get(1, 11).is_none());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[doc(alias = "mb_cache_scan")]
    pub fn scan(&self, entries: u64) -> u64 {
        let (mut looked, mut dropped) = (0, 0);
        for _ in 1..self.room.len_touched() {
            if looked == entries {
                break;
            }
            match self.look() {
                Look::Free => {}
                Look::Stays => looked += 1,
                Look::Taken(slot) => {
                    (looked, dropped) = (looked + 1, dropped + 1);
                    // Any stripe will do, and the numbers of slots are spread over them.
                    let stripe = &mut self.index.lock(slot);
                    self.room.give(&self.slots, &mut stripe.free, slot);
                }
            }
        }
        dropped
    }

    /// Takes an entry out to use its slot for another one; `None` if all are in use.
    #[cold]
    pub(crate) fn reclaim_slot(&self) -> Option<u32> {
        // In one turn every bit is cleared, in the next one what is not used meanwhile is found.
        (0..2 * u64::from(self.room.len_touched())).find_map(|_| match self.look() {
            Look::Taken(slot) => Some(slot),
            Look::Free | Look::Stays => None,
        })
    }

    /// Moves the hand on by one slot.
    fn look(&self) -> Look {
        let slots = u64::from(self.room.len_touched() - 1).max(1);
        // ORDERING: Relaxed. The hand only spreads looks over the slots.
        let slot = 1 + (self.hand.fetch_add(1, Ordering::Relaxed) % slots) as u32;
        if slot >= self.room.len_touched() {
            return Look::Free;
        }
        let Some(copied) = self.slots.copy(slot) else { return Look::Free };
        if copied.state.is_referenced() {
            self.slots.age(slot, copied.state);
            return Look::Stays;
        }
        if copied.state.count() > 0 {
            return Look::Stays;
        }
        let bucket = self.index.bucket(self.secret.hash(copied.key));
        let mut stripe = self.index.lock(bucket);
        if !self.slots.end(slot, copied.state, Spare::Referenced) {
            return Look::Stays;
        }
        // It is the entry that was copied, since that one has just ended, and pairs are there once.
        let found = self.index.position(&self.slots, &stripe, bucket, (copied.key, copied.value));
        let at = found.expect("an entry is in its bucket until it is taken out (S.1)");
        debug_assert_eq!(at.1, slot);
        self.index.unlink(&self.slots, &mut stripe, bucket, at);
        stripe.counts.reclaimed += 1;
        Look::Taken(slot)
    }
}
