//! The growable index: a multimap from a 32-bit hash to a slot number.
//!
//! The index is a hash table. A bucket is one cache line of eight entries. An entry has a slot
//! number, and a tag of 16 bits of the hash.
//!
//! Readers take no lock and write nothing. They compare eight tags together, and follow a link to
//! another cache line only if the bucket has overflowed. A tag may match by chance, so the reader
//! checks the slot's content. A thread that acts on a miss first repeats the lookup under the
//! bucket's lock.
//!
//! ```text
//! word 0, 1  tags: the upper 16 bits of the hash of entries 0 to 3 and 4 to 7
//! word 2     the 8 bits of each hash that neither the tag nor the bucket's number holds
//! 3 .. 6     slots of two entries each, 32 bits each; 0 is no entry
//! word 7     link: the next overflow line; 0 is none
//! ```
//!
//! The table grows by linear hashing: it splits one bucket at a time, in order. So no insertion
//! moves all entries, and no reader looks in two tables.
//!
//! A split reads only the cache lines of the bucket, not the dentries or inodes. Buckets live in a
//! [`SlotArena`], whose memory never moves.
//!
//! # Guarantees
//! - T.1: a reader that starts after `insert` has returned, and ends before `remove` is called,
//!   sees the entry. It may miss the entry if the bucket is split, or an overflow line of the
//!   bucket is reused, during the lookup. So a miss proves nothing without the stripe's lock.
//! - T.2: a lookup under the stripe's lock finds every entry of the stripe, even if the stripe's
//!   buckets were split.
//!
//! # Locks
//! Buckets are divided into stripes with one lock each. The numbers of a stripe's buckets end in
//! the same bits, so both halves of a split bucket are in one stripe. `grow` is taken before a
//! stripe's lock, never after it.
//!
//! Source: Litwin, "Linear hashing", VLDB 1980; DLHT (HPDC 2024) for buckets of one cache line.

use std::marker::PhantomData;

use corewalk_base::primitives::atomic::{AtomicU64, Ordering};
use corewalk_base::{Lane, Lanes, Mutex, MutexGuard, OwnLine, WordPair};
use corewalk_sync::SlotArena;

use crate::slot::Slot;

/// The number of stripes (groups of buckets that share one lock), a power of two. The smallest
/// table has one bucket per stripe.
#[cfg(not(any(corewalk_loom, corewalk_shuttle)))]
const STRIPES: u32 = 256;
#[cfg(all(corewalk_shuttle, not(corewalk_loom)))]
const STRIPES: u32 = 2;
#[cfg(corewalk_loom)]
const STRIPES: u32 = 1;
const WORDS: usize = 8;
const ENTRIES: usize = 8;
const RESTS: usize = 2;
const SLOTS: usize = 3;
const LINK: usize = 7;
/// The number of low bits of a hash that select its stripe (a group of buckets with one lock).
const STRIPE_BITS: u32 = STRIPES.trailing_zeros();

pub(crate) struct Table<K> {
    /// The number of buckets in use, from [`STRIPES`] up to the capacity. It only grows.
    size: Size,
    /// The buckets. Written under the lock of their stripe.
    buckets: SlotArena<WORDS>,
    /// The overflow lines: cache lines that continue a full bucket. The lock of the bucket's stripe
    /// protects them.
    overflow: SlotArena<WORDS>,
    /// Maximum average number of entries per bucket in a stripe. The table grows when one stripe
    /// exceeds it, so the average of the whole table stays about one lower.
    load: u32,
    /// Each lock protects the state of its stripe, and the entries of the stripe's buckets.
    stripes: Box<[OwnLine<Mutex<StripeState>>]>,
    /// Held while a bucket is split into two, because the table grows. Protects the stores to
    /// `size`.
    grow: Mutex<()>,
    kind: PhantomData<K>,
}

/// The size of a table that a reader has loaded for one or more lookups. If the table grows
/// meanwhile, a lookup may miss an entry. A miss without a lock proves nothing anyway.
#[derive(Clone, Copy)]
pub(crate) struct Extent {
    buckets: u32,
    mask: u32,
}

/// The size of the table in one word, for a single load. The lower half is the number of buckets.
/// The upper half is a mask: the smallest power of two that is at least that number, minus 1.
struct Size(AtomicU64);

/// The number of entries in the buckets of a stripe. Protected by the lock of the stripe.
struct StripeState {
    entries: u32,
}

pub(crate) struct Stripe<'a, K> {
    table: &'a Table<K>,
    hash: u32,
    state: MutexGuard<'a, StripeState>,
}

impl<K: Copy> Table<K> {
    /// Returns an empty table for `entries_max` entries. It grows when it has `load` entries per
    /// bucket. A `load` of 7 takes the least memory; at most 6 avoids overflow lines.
    pub(crate) fn new(
        name: &'static str,
        entries_max: u32,
        load: u32,
    ) -> std::io::Result<Table<K>> {
        let buckets_max = (entries_max / 4).max(STRIPES).next_power_of_two();
        let buckets = SlotArena::new(name, buckets_max)?;
        buckets.extend_to(STRIPES - 1);
        Ok(Table {
            size: Size(AtomicU64::new(Size::word(STRIPES))),
            buckets,
            overflow: SlotArena::new(name, buckets_max)?,
            load,
            stripes: (0..STRIPES)
                .map(|_| OwnLine::new(Mutex::new(StripeState { entries: 0 })))
                .collect(),
            grow: Mutex::new(()),
            kind: PhantomData,
        })
    }

    #[inline]
    pub(crate) fn extent(&self) -> Extent {
        // ORDERING(table-size): Acquire. `split` stores the size with Release after the new
        // bucket's entries. With Relaxed, a reader of the larger size could miss these entries.
        Extent::of(self.size.0.load(Ordering::Acquire))
    }

    /// Calls `probe` with each slot that the table may have for `hash`, until `probe` returns Some.
    /// `probe` must check the slot's content, because only tags are compared. It may be called with
    /// [`Slot::NONE`].
    #[inline]
    pub(crate) fn find<R>(
        &self,
        hash: u32,
        mut probe: impl FnMut(Slot<K>) -> Option<R>,
    ) -> Option<R> {
        let mut line = self.buckets.get(self.extent().bucket_of(hash));
        loop {
            for lane in matches(line, hash) {
                if let Some(found) = probe(Slot::new(slot_at(line, lane))) {
                    return Some(found);
                }
            }
            // ORDERING(table-link): Acquire. `link_overflow` stores the link with Release after the
            // entry in the overflow line. With Relaxed, the reader could miss that entry.
            let link = line[LINK].load(Ordering::Acquire) as u32;
            if link == 0 {
                return None;
            }
            line = self.overflow.get(link);
        }
    }

    /// Returns the first slot whose tag matches `hash` in the first cache line of the bucket.
    /// `extent` may be out of date.
    #[inline(always)]
    pub(crate) fn first_within(&self, extent: Extent, hash: u32) -> Option<Slot<K>> {
        let line = self.buckets.get(extent.bucket_of(hash));
        matches(line, hash).next().map(|lane| Slot::new(slot_at(line, lane)))
    }

    pub(crate) fn lock(&self, hash: u32) -> Stripe<'_, K> {
        let state = self.stripes[(hash & (STRIPES - 1)) as usize].lock();
        Stripe { table: self, hash, state }
    }

    pub(crate) fn insert(&self, hash: u32, slot: Slot<K>) {
        self.insert_if(hash, slot, |_| Some(()));
    }

    /// Inserts an entry if `look` returns Some, and returns the result of `look`. `look` runs under
    /// the stripe's lock, before the insertion.
    pub(crate) fn insert_if<R>(
        &self,
        hash: u32,
        slot: Slot<K>,
        look: impl FnOnce(&Stripe<'_, K>) -> Option<R>,
    ) -> Option<R> {
        let mut stripe = self.lock(hash);
        let seen = look(&stripe)?;
        stripe.insert(slot);
        let needs_split = stripe.needs_split();
        drop(stripe);
        if needs_split {
            self.grow();
        }
        Some(seen)
    }

    /// Removes the entry of `slot` for `hash`.
    ///
    /// # Panics
    /// Panics if the table has no such entry.
    pub(crate) fn remove(&self, hash: u32, slot: Slot<K>) {
        let was_there = self.lock(hash).remove(slot);
        assert!(was_there, "slot {} is not under hash {hash:#x}", slot.get());
    }

    pub(crate) fn grow(&self) {
        let Some(_grow) = self.grow.try_lock() else { return };
        for _ in 0..2 {
            if !self.split() {
                return;
            }
        }
    }

    pub(crate) fn bytes(&self) -> u64 {
        (u64::from(self.size.get()) + self.overflow.in_use()) * (WORDS as u64) * 8
    }

    /// Splits one bucket in two. Returns false if the table cannot grow any more. The caller holds
    /// the mutex `grow`.
    fn split(&self) -> bool {
        let new = self.size.get();
        if new >= self.buckets.max_slots() {
            return false;
        }
        let old = new - (1 << new.ilog2());
        self.buckets.extend_to(new);
        let stripe = self.lock(old);
        let wide = Size::word(new + 1);
        // Store the moved entries in the new bucket, publish the size, and then remove them from
        // the old bucket. So a reader finds them with the old size until they are removed, and then
        // with the new size. A reader that keeps the old size may miss an entry, which guarantee
        // T.1 allows.
        stripe.each_entry(old, |line, entry| {
            let hash = hash_of(line, entry, old);
            if bucket_of(hash, wide) == new {
                stripe.push_into(new, hash, slot_of(line, entry));
            }
        });
        // ORDERING(table-size): Release. `extent` loads the size with Acquire. With Relaxed, a
        // reader of the larger size could miss the entries in the new bucket.
        self.size.0.store(wide, Ordering::Release);
        stripe.each_entry(old, |line, entry| {
            if bucket_of(hash_of(line, entry, old), wide) == new {
                store_slot(line, entry, 0);
            }
        });
        stripe.close_ranks(old);
        true
    }
}

impl<K: Copy> Stripe<'_, K> {
    /// Calls `probe` as [`Table::find`] does. This thread holds the stripe's lock, so no entry is
    /// missed.
    pub(crate) fn find<R>(&self, probe: impl FnMut(Slot<K>) -> Option<R>) -> Option<R> {
        self.table.find(self.hash, probe)
    }

    pub(crate) fn insert(&mut self, slot: Slot<K>) {
        debug_assert!(!slot.is_none());
        self.state.entries += 1;
        self.push_into(self.bucket(), self.hash, slot.get());
    }

    pub(crate) fn remove(&mut self, slot: Slot<K>) -> bool {
        let mut line = self.table.buckets.get(self.bucket());
        let mut before = None;
        loop {
            for entry in matches(line, self.hash).map(Lane::index) {
                if slot_of(line, entry) == slot.get() && rest_of(line, entry) == rest(self.hash) {
                    store_slot(line, entry, 0);
                    self.state.entries -= 1;
                    if let Some(before) = before {
                        self.unlink_if_empty(before, line);
                    }
                    return true;
                }
            }
            match self.link_of(line) {
                Some(next) => (before, line) = (Some(line), self.table.overflow.get(next)),
                None => return false,
            }
        }
    }

    fn unlink_if_empty(&self, before: &Line, line: &Line) {
        if (0..ENTRIES).all(|entry| slot_of(line, entry) == 0)
            && let Some(index) = self.link_of(before)
        {
            // Readers may still follow a link to the freed overflow line. They find it empty, or
            // with entries of other hashes.
            // ORDERING: Relaxed. Links change only under the lock of the bucket's stripe.
            before[LINK].store(line[LINK].load(Ordering::Relaxed), Ordering::Relaxed);
            self.table.overflow.free(index);
        }
    }

    pub(crate) fn needs_split(&self) -> bool {
        let buckets = self.table.size.get();
        // Tolerate a few entries more than `load` per bucket, because hashes are unevenly spread,
        // especially in a small table.
        self.state.entries > (buckets / STRIPES) * self.table.load + ENTRIES as u32
    }

    fn bucket(&self) -> u32 {
        // ORDERING: Relaxed. Only a split of this stripe could move the hash to another bucket, and
        // this thread holds the stripe's lock.
        bucket_of(self.hash, self.table.size.0.load(Ordering::Relaxed))
    }

    fn link_of(&self, line: &Line) -> Option<u32> {
        // ORDERING: Relaxed. Links change only under the stripe's lock.
        let link = line[LINK].load(Ordering::Relaxed) as u32;
        (link != 0).then_some(link)
    }

    fn push_into(&self, bucket: u32, hash: u32, slot: u32) {
        let mut line = self.table.buckets.get(bucket);
        loop {
            if let Some(entry) = (0..ENTRIES).find(|&entry| slot_of(line, entry) == 0) {
                return store_entry(line, entry, hash, slot);
            }
            line = match self.link_of(line) {
                Some(next) => self.table.overflow.get(next),
                None => return self.link_overflow(line, hash, slot),
            };
        }
    }

    fn link_overflow(&self, line: &Line, hash: u32, slot: u32) {
        let index = self.table.overflow.alloc().expect("as many overflow lines as buckets");
        let fresh = self.table.overflow.get(index);
        for word in fresh {
            // ORDERING: Relaxed. The store of the link below publishes the line. Readers of another
            // bucket that has freed this line may miss an entry, which guarantee T.1 allows.
            word.store(0, Ordering::Relaxed);
        }
        store_entry(fresh, 0, hash, slot);
        // ORDERING(table-link): Release. `Table::find` loads the link with Acquire. With Relaxed, a
        // reader of the link could miss the entry in the new overflow line.
        line[LINK].store(u64::from(index), Ordering::Release);
    }

    fn each_entry(&self, bucket: u32, each: impl Fn(&Line, usize)) {
        let mut line = self.table.buckets.get(bucket);
        loop {
            (0..ENTRIES).filter(|&entry| slot_of(line, entry) != 0).for_each(|i| each(line, i));
            match self.link_of(line) {
                Some(next) => line = self.table.overflow.get(next),
                None => return,
            }
        }
    }

    fn close_ranks(&self, bucket: u32) {
        let first = self.table.buckets.get(bucket);
        while let Some(index) = self.link_of(first) {
            let line = self.table.overflow.get(index);
            for entry in (0..ENTRIES).filter(|&entry| slot_of(line, entry) != 0) {
                let Some(free) = (0..ENTRIES).find(|&place| slot_of(first, place) == 0) else {
                    return;
                };
                // Store the entry at its new position before removing it from the old one. So it is
                // in at least one position at each instant.
                store_entry(first, free, hash_of(line, entry, bucket), slot_of(line, entry));
                store_slot(line, entry, 0);
            }
            self.unlink_if_empty(first, line);
        }
    }
}

type Line = [AtomicU64; WORDS];

impl Extent {
    #[inline(always)]
    fn of(size: u64) -> Extent {
        Extent { buckets: size as u32, mask: (size >> 32) as u32 }
    }

    #[inline(always)]
    fn bucket_of(self, hash: u32) -> u32 {
        let bucket = hash & self.mask;
        if bucket < self.buckets { bucket } else { hash & (self.mask >> 1) }
    }
}

impl Size {
    fn word(buckets: u32) -> u64 {
        let mask = u32::MAX.unbounded_shr((buckets - 1).leading_zeros());
        (u64::from(mask) << 32) | u64::from(buckets)
    }

    fn get(&self) -> u32 {
        // ORDERING: Relaxed. The size changes only under the mutex `grow`. Without it, the size is
        // only a hint.
        self.0.load(Ordering::Relaxed) as u32
    }
}

#[inline(always)]
fn bucket_of(hash: u32, size: u64) -> u32 {
    Extent::of(size).bucket_of(hash)
}

#[inline(always)]
fn matches(line: &Line, hash: u32) -> Lanes {
    let tags = line.first_chunk().expect("a line has more than two words");
    // ORDERING(table-entry): Acquire. `store_entry` stores an entry's tag last, with Release. With
    // Relaxed, a reader that sees the tag could miss the entry's slot number or the content of that
    // slot.
    WordPair::load_acquire(tags).lanes_equal((hash >> 16) as u16)
}

#[inline(always)]
fn slot_at(line: &Line, lane: Lane) -> u32 {
    let slots = line[SLOTS..].first_chunk().expect("there are four words of slots");
    // ORDERING(table-slot): Acquire. `store_slot` stores the slot number with Release, before the
    // tag. If a removed entry left an equal tag, a reader may see the slot number before its tag.
    // It must still see the slot's content, which was stored first.
    lane.half_of(slots)
}

fn slot_of(line: &Line, entry: usize) -> u32 {
    // ORDERING: Relaxed. The caller holds the stripe's lock, under which this word is written.
    let pair = line[SLOTS + entry / 2].load(Ordering::Relaxed);
    (pair >> (32 * (entry % 2))) as u32
}

fn rest_of(line: &Line, entry: usize) -> u8 {
    // ORDERING: Relaxed. The caller holds the stripe's lock, under which this word is written.
    (line[RESTS].load(Ordering::Relaxed) >> (8 * entry)) as u8
}

fn rest(hash: u32) -> u8 {
    (hash >> STRIPE_BITS) as u8
}

fn hash_of(line: &Line, entry: usize, bucket: u32) -> u32 {
    // ORDERING: Relaxed. The caller holds the stripe's lock, under which this word is written.
    let tag = (line[entry / 4].load(Ordering::Relaxed) >> (16 * (entry % 4))) as u16;
    let low = bucket & (STRIPES - 1);
    (u32::from(tag) << 16) | (u32::from(rest_of(line, entry)) << STRIPE_BITS) | low
}

/// Stores an entry in an unused position. The tag is stored last, so a reader that finds the tag
/// also finds the slot number.
fn store_entry(line: &Line, entry: usize, hash: u32, slot: u32) {
    store_slot(line, entry, slot);
    let rests = &line[RESTS];
    let (shift, mask) = (8 * entry, 0xff << (8 * entry));
    // ORDERING: Relaxed. This word is read and written only under the stripe's lock.
    let word = rests.load(Ordering::Relaxed) & !mask;
    // ORDERING: Relaxed. As above.
    rests.store(word | (u64::from(rest(hash)) << shift), Ordering::Relaxed);
    let tags = &line[entry / 4];
    let (shift, mask) = (16 * (entry % 4), 0xffff << (16 * (entry % 4)));
    // ORDERING: Relaxed. The caller holds the stripe's lock, under which this word is written.
    let word = tags.load(Ordering::Relaxed) & !mask;
    // ORDERING(table-entry): Release. `matches` loads the tag with Acquire. With Relaxed, a reader
    // that finds the tag could miss the slot number or the slot's content.
    tags.store(word | (u64::from(hash >> 16) << shift), Ordering::Release);
}

/// `slot` 0 removes the entry.
fn store_slot(line: &Line, entry: usize, slot: u32) {
    let pair = &line[SLOTS + entry / 2];
    let (shift, mask) = (32 * (entry % 2), 0xffff_ffff << (32 * (entry % 2)));
    // ORDERING: Relaxed. The caller holds the stripe's lock, under which this word is written.
    let word = pair.load(Ordering::Relaxed) & !mask;
    // ORDERING(table-slot): Release. `slot_at` loads the slot number with Acquire. With Relaxed, a
    // reader of the slot number could miss the slot's content.
    pair.store(word | (u64::from(slot) << shift), Ordering::Release);
}

#[cfg(all(test, corewalk_loom))]
mod loom_models;
