//! Reclaim: a hand that goes round over the slots, and a search for lines when there is none left.
//!
//! There is no list of entries in the order of their use, and so no lock that every use would take. The
//! hand clears the referenced bit of what was used since it came by last, and ends the rest, each in one
//! step without a lock. What is held stays in the index, or who frees its value could not find its
//! holder (trap T35).
//!
//! A bucket that needs a line when there is none takes one from another bucket. The search goes round over
//! the buckets that have more than one line. First it only takes lines that a bucket does not need, now
//! that some of its entries have ended. When it has come round and found none, everything is full, and it
//! drops entries for some time; then it makes sure again.
//!
//! Source: Kara's "referenced bit" variant; Linux `mb_cache_shrink`, which turns a list instead.

use corewalk_base::primitives::atomic::Ordering;

use crate::cache::Mbcache;
use crate::counts::Event;
use crate::index::{self, Extent, Locked, SLOTS};
use crate::order::{Rank, take};
use crate::slots::{self, Spare, Words};

/// What the hand found.
enum Look {
    /// No entry.
    Free,
    /// An entry that stays.
    Stays,
    /// An entry that was dropped.
    Dropped,
}

/// How far the search for lines has come.
#[derive(Debug, Default)]
pub(crate) struct Turn {
    /// The bucket that it looks at next.
    bucket: u32,
    /// Buckets in a row, at most all of them, in which there was no line to spare.
    tight: u32,
    /// Lines for which entries may be dropped before it makes sure again.
    drops: u32,
}

impl Mbcache {
    /// Returns how many entries there are: what a shrinker could ask for at most.
    ///
    /// # Examples
    ///
    /// ```
    /// use corewalk_mbcache::{Mbcache, MbcacheOptions};
    ///
    /// let cache = Mbcache::new(MbcacheOptions::default())?;
    /// cache.create(1, 10)?;
    /// cache.create(1, 11)?;
    /// assert_eq!(cache.count(), 2);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[doc(alias = "mb_cache_count")]
    #[must_use]
    pub fn count(&self) -> u64 {
        self.stats().entries
    }

    /// Looks at `entries` entries, at most once at each, and drops those that are neither held nor were
    /// used since the last look; returns how many were dropped.
    ///
    /// The memory of what is dropped is used for other entries; it is not given back to the system. The
    /// hand passes over slots that are free, too: in a cache that is nearly empty an entry is far away.
    ///
    /// # Examples
    ///
    /// ```
    /// use corewalk_mbcache::{Mbcache, MbcacheOptions};
    ///
    /// let cache = Mbcache::new(MbcacheOptions::default())?;
    /// cache.create(1, 10)?;
    /// cache.create(1, 11)?;
    /// cache.get(1, 10);
    /// assert_eq!(cache.scan(2), 1);
    /// assert!(cache.get(1, 10).is_some() && cache.get(1, 11).is_none());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[doc(alias = "mb_cache_scan")]
    pub fn scan(&self, entries: u64) -> u64 {
        let (mut looked, mut dropped) = (0, 0);
        for _ in 0..u64::from(self.index.lines()) * u64::from(SLOTS) {
            if looked == entries {
                break;
            }
            match self.look() {
                Look::Free => {}
                Look::Stays => looked += 1,
                Look::Dropped => (looked, dropped) = (looked + 1, dropped + 1),
            }
        }
        dropped
    }

    /// Moves the hand on by one slot.
    fn look(&self) -> Look {
        let slots = u64::from(self.index.lines()) * u64::from(SLOTS);
        // A position, not a count of looks: that would be another position when there are more slots.
        let next = |at| Some(if at + 1 < slots { at + 1 } else { 0 });
        // ORDERING: Relaxed, both. The hand only spreads looks over the slots.
        let at = self.hand.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next);
        let slot = at.unwrap_or(0) as u32;
        let words = self.index.slot(slot);
        let state = slots::state(words);
        if !state.is_live() {
            return Look::Free;
        }
        if state.is_referenced() {
            slots::age(words, state);
            return Look::Stays;
        }
        if !slots::end(words, state, Spare::Referenced) {
            return Look::Stays;
        }
        self.counts.add(Event::Reclaimed);
        Look::Dropped
    }

    /// Takes a line from a bucket, at last from one whose entries it drops; `None` if all that could give
    /// one are in use.
    #[cold]
    pub(crate) fn reclaim_line(&self) -> Option<u32> {
        let mut turn = take(Rank::Turn, || self.turn.lock());
        // Who had the turn before may have left some.
        if let Some(line) = self.room.take(&self.index, turn.bucket) {
            return Some(line);
        }
        let buckets = self.index.buckets();
        // One turn to make sure, one in which every bit is cleared, and one in which what was not used
        // meanwhile is found.
        for _ in 0..3 * u64::from(buckets) {
            let bucket = turn.bucket;
            turn.bucket = (bucket + 1) % buckets;
            if turn.drops == 0 && turn.tight >= buckets {
                // Somebody may have found that he did not need his.
                if let Some(line) = self.room.take(&self.index, bucket) {
                    return Some(line);
                }
                (turn.drops, turn.tight) = (buckets / 4 + 1, 0);
            }
            match self.thin_out(bucket, turn.drops > 0) {
                Thinned::Kept => turn.tight = (turn.tight + 1).min(buckets),
                Thinned::Spared(line) => {
                    turn.tight = 0;
                    return Some(line);
                }
                Thinned::Dropped(line) => {
                    turn.drops -= 1;
                    if line.is_some() {
                        return line;
                    }
                }
            }
        }
        None
    }

    /// Takes lines out of a bucket that it does not need, and if `may_drop`, so many entries before that
    /// it needs one less, unless those were used. What is held keeps its line in the bucket, so nothing is
    /// dropped for a bucket that has such an entry in each line but the first.
    fn thin_out(&self, bucket: u32, may_drop: bool) -> Thinned {
        if index::link_of(self.index.line(bucket)) == 0 {
            return Thinned::Kept;
        }
        let mut locked = self.index.lock(bucket);
        let (all, to_empty) = locked.extents();
        let is_tight = all.too_many() > 0;
        if is_tight {
            match to_empty {
                Some(part) if may_drop && self.make_idle(&locked, part) => {}
                _ => return Thinned::Kept,
            }
        }
        let mut spared = None;
        locked.close_ranks(|line| match spared {
            None => spared = Some(line),
            Some(_) => self.room.give(&self.index, bucket, line),
        });
        match spared {
            // Handles were taken meanwhile.
            line if is_tight => Thinned::Dropped(line),
            None => Thinned::Kept,
            Some(line) => Thinned::Spared(line),
        }
    }

    /// Ends as many entries of a part of a bucket as it has too many, if so many were not used; else says
    /// that they were not, and returns false. A handle that is taken meanwhile may save one.
    fn make_idle(&self, locked: &Locked<'_>, part: Extent) -> bool {
        let (mut too_many, mut idle) = (part.too_many(), 0);
        locked.each(part.lines, |words| {
            let state = slots::state(words);
            idle += u32::from(!state.is_referenced() && state.count() == 0);
        });
        if idle < too_many {
            locked.each(part.lines, |words| slots::age(words, slots::state(words)));
            return false;
        }
        locked.each(part.lines, |words| {
            too_many -= u32::from(too_many > 0 && self.drop_unused(words));
        });
        true
    }

    /// Drops an entry of a bucket that was not used since the last look, and is not held, and returns its
    /// slot. If all were used, they will have to be used again.
    pub(crate) fn drop_one<'a>(&self, locked: &Locked<'a>) -> Option<&'a Words> {
        let mut dropped = None;
        locked.each(u32::MAX, |words| {
            if dropped.is_none() && self.drop_unused(words) {
                dropped = Some(words);
            }
        });
        dropped
    }

    /// Ends an entry that was not used since this was called last, and is not held.
    fn drop_unused(&self, words: &Words) -> bool {
        let state = slots::state(words);
        if state.is_referenced() {
            slots::age(words, state);
            return false;
        }
        let is_dropped = slots::end(words, state, Spare::Referenced);
        if is_dropped {
            self.counts.add(Event::Reclaimed);
        }
        is_dropped
    }
}

/// What a look at a bucket brought.
enum Thinned {
    /// It needs all its lines.
    Kept,
    /// A line that it did not need.
    Spared(u32),
    /// A line for which entries were dropped, unless somebody took a handle of what stands in it.
    Dropped(Option<u32>),
}
