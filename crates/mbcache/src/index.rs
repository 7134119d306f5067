//! The index: buckets of entries, walked without a lock.
//!
//! A bucket is the number of its first slot; each slot has the number of the next. Entries are put in
//! at the front and taken out anywhere, both under the lock of the bucket's stripe. A reader copies an
//! entry and then looks whether what led it there still does: so at each step it knows that the entry
//! was in this bucket at that moment, and that all that were in the bucket from the beginning to the end
//! and are not behind it are ahead. If the step does not hold, it starts again; after [`TRIES`] times
//! it takes the lock.
//!
//! The number of buckets is fixed, from half as many to as many as entries: a table that grows would
//! have to move entries that are held, or have a second place per entry. Buckets that are never used
//! take no memory.
//!
//! # Invariants
//! - I.1: a link is changed to a slot that is further behind, never to one that was not behind before.
//!   So if a link of an entry that has not ended leads to the same slot as before, that slot has been
//!   there all the time.
//!
//! # Locks
//! A stripe's lock covers all buckets whose number, halved, ends in the same bits: two buckets share
//! a word.
//!
//! Source: Linux `include/linux/rculist_nulls.h` for the problem; Michael, "High performance dynamic
//! lock-free hash tables and list-based sets", SPAA 2002, for looking back at each step.

use corewalk_sync::primitives::atomic::Ordering;
use corewalk_sync::{Mutex, OwnLine, SlotArena};

use crate::order::{Held, Rank, take};
use crate::room::FreeList;
use crate::slots::{self, Copied, Slots, State, Words};

/// Walks without the lock before one with it.
const TRIES: u32 = if corewalk_sync::primitives::IS_MODEL { 1 } else { 16 };

/// What a stripe's lock protects, besides its buckets.
#[derive(Debug, Default)]
pub(crate) struct Stripe {
    pub(crate) free: FreeList,
    pub(crate) entries: u32,
    pub(crate) counts: Counts,
}

/// How often what happened in a stripe.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counts {
    pub(crate) created: u64,
    pub(crate) duplicates: u64,
    pub(crate) deleted: u64,
    pub(crate) busy: u64,
    pub(crate) reclaimed: u64,
}

/// A stripe that is locked: the witness for changes in its buckets.
pub(crate) type Locked<'a> = Held<'a, Stripe>;

/// Where a walk stands.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Place<'s> {
    /// Before the first entry of this bucket.
    Bucket(u32),
    /// At an entry, which has this state or had it.
    Slot(&'s Words, State),
}

/// What is read next is not what stood behind the place where the walk was.
#[derive(Debug)]
pub(crate) struct Torn;

/// All buckets of a cache.
pub(crate) struct Index {
    heads: SlotArena<1>,
    stripes: Box<[OwnLine<Mutex<Stripe>>]>,
    bucket_mask: u32,
}

impl Index {
    /// Returns `buckets` empty buckets under `stripes` locks: powers of two, at least two buckets.
    pub(crate) fn new(buckets: u32, stripes: u32) -> std::io::Result<Index> {
        debug_assert!(buckets.is_power_of_two() && stripes.is_power_of_two() && buckets >= 2);
        Ok(Index {
            heads: SlotArena::new("mbcache buckets", buckets / 2)?,
            stripes: (0..stripes).map(|_| OwnLine::default()).collect(),
            bucket_mask: buckets - 1,
        })
    }

    /// Returns the bucket of a hash.
    #[inline]
    pub(crate) fn bucket(&self, hash: u64) -> u32 {
        hash as u32 & self.bucket_mask
    }

    /// Locks the stripe of `bucket`.
    #[inline]
    pub(crate) fn lock(&self, bucket: u32) -> Locked<'_> {
        let stripe = (bucket / 2) as usize & (self.stripes.len() - 1);
        take(Rank::Stripe, || self.stripes[stripe].lock())
    }

    /// Calls `each` with every stripe, locked one after the other.
    pub(crate) fn each_stripe(&self, mut each: impl FnMut(&Stripe)) {
        for stripe in &self.stripes {
            each(&take(Rank::Stripe, || stripe.lock()));
        }
    }

    /// Calls `probe` with every entry behind `from`, newest first, until it returns something.
    ///
    /// `from` is a bucket or an entry that the caller holds.
    #[inline]
    pub(crate) fn find<R>(
        &self,
        slots: &Slots,
        bucket: u32,
        from: Place<'_>,
        mut probe: impl FnMut(&Copied) -> Option<R>,
    ) -> Option<R> {
        for _ in 0..TRIES {
            if let Ok(found) = self.walk(slots, from, &mut probe) {
                return found;
            }
        }
        self.find_locked(slots, bucket, from, probe)
    }

    #[cold]
    fn find_locked<R>(
        &self,
        slots: &Slots,
        bucket: u32,
        from: Place<'_>,
        probe: impl FnMut(&Copied) -> Option<R>,
    ) -> Option<R> {
        let _stripe = self.lock(bucket);
        self.walk(slots, from, probe).expect("nothing moves in a locked stripe")
    }

    /// As `find`, once.
    #[inline]
    pub(crate) fn walk<R>(
        &self,
        slots: &Slots,
        from: Place<'_>,
        mut probe: impl FnMut(&Copied) -> Option<R>,
    ) -> Result<Option<R>, Torn> {
        let mut place = from;
        let mut next = match place {
            Place::Bucket(bucket) => self.first(bucket),
            Place::Slot(words, _) => slots::next_of(words),
        };
        while next != 0 {
            let words = slots.words(next);
            let copied = slots::copy(words, next).ok_or(Torn)?;
            if !self.leads_to(place, next) {
                return Err(Torn);
            }
            if let Some(found) = probe(&copied) {
                return Ok(Some(found));
            }
            (place, next) = (Place::Slot(words, copied.state), copied.next);
        }
        if self.leads_to(place, 0) { Ok(None) } else { Err(Torn) }
    }

    /// Returns true if `place` is still in its bucket and `next` stands behind it.
    #[inline]
    fn leads_to(&self, place: Place<'_>, next: u32) -> bool {
        match place {
            Place::Bucket(bucket) => self.first(bucket) == next,
            Place::Slot(words, state) => slots::leads_to(words, state, next),
        }
    }

    /// Returns the first slot of `bucket`; 0 is none.
    #[inline]
    pub(crate) fn first(&self, bucket: u32) -> u32 {
        // ORDERING(mbcache-head): Acquire. What a slot holds was stored before it became the first.
        let pair = self.heads.get(bucket / 2)[0].load(Ordering::Acquire);
        (pair >> (32 * (bucket % 2))) as u32
    }

    #[inline]
    fn set_first(&self, _stripe: &Locked<'_>, bucket: u32, slot: u32) {
        let pair = &self.heads.get(bucket / 2)[0];
        let shift = 32 * (bucket % 2);
        // ORDERING: Relaxed. Both halves are written under the stripe's lock only.
        let other = pair.load(Ordering::Relaxed) & !(u64::from(u32::MAX) << shift);
        // ORDERING(mbcache-head): Release. See `first`.
        pair.store(other | (u64::from(slot) << shift), Ordering::Release);
    }

    /// Returns the slot before the entry of a pair, which is 0 for the first, and that entry's.
    #[inline]
    pub(crate) fn position(
        &self,
        slots: &Slots,
        _stripe: &Locked<'_>,
        bucket: u32,
        pair: (u64, u64),
    ) -> Option<(u32, u32)> {
        let (mut before, mut slot) = (0, self.first(bucket));
        while slot != 0 {
            let words = slots.words(slot);
            if slots::pair_of(words) == pair {
                return Some((before, slot));
            }
            (before, slot) = (slot, slots::next_of(words));
        }
        None
    }

    /// Fills `slot` and puts it in front of `bucket`.
    #[inline]
    pub(crate) fn enter(
        &self,
        slots: &Slots,
        stripe: &mut Locked<'_>,
        bucket: u32,
        slot: u32,
        pair: (u64, u64),
        reusable: bool,
    ) {
        slots.fill(slot, pair, reusable, self.first(bucket));
        self.set_first(stripe, bucket, slot);
        stripe.entries += 1;
    }

    /// Takes `slot`, which has ended, out from behind `before`, or the front of `bucket`.
    #[inline]
    pub(crate) fn unlink(
        &self,
        slots: &Slots,
        stripe: &mut Locked<'_>,
        bucket: u32,
        (before, slot): (u32, u32),
    ) {
        let next = slots::next_of(slots.words(slot));
        if before == 0 {
            self.set_first(stripe, bucket, next);
        } else {
            slots.set_next(before, next);
        }
        stripe.entries -= 1;
    }
}
