//! The growable index: a multimap from a 32-bit hash to a slot number.
//!
//! A bucket is one cache line of eight words, each (hash, slot). Readers take no lock and write
//! nothing: they scan one line, and follow a link only where a bucket has overflowed. What they
//! find is a hint, which the dentry or inode in the slot confirms; what they miss is looked for
//! again under the bucket's lock by whoever is about to act on it.
//!
//! It grows by linear hashing: one bucket is split at a time, in order, so no insert ever moves
//! more than one bucket and no reader ever looks in two tables. The hash in the word is all that a
//! split needs; the slot is not looked at. Buckets live in a [`SlotArena`], whose memory never
//! moves.
//!
//! # Guarantees
//! - T.1: a reader that starts after `insert` returned and ends before `remove` is called sees the
//!   entry, unless its bucket was split meanwhile. A miss proves nothing; `Stripe` lookups do.
//! - T.2: a split never makes an entry invisible under its stripe's lock.
//!
//! # Locks
//! A stripe lock covers every bucket whose number ends in the same bits, and so the two halves of a
//! split too. `grow` is taken before a stripe lock, never inside one.
//!
//! Source: Litwin, "Linear hashing", VLDB 1980; DLHT (HPDC 2024) for the bucket of one line.

use corewalk_sync::primitives::atomic::{AtomicU64, Ordering};
use corewalk_sync::{CachePadded, Mutex, MutexGuard, SlotArena};

/// Stripe locks; also the smallest table, in buckets. A power of two.
#[cfg(not(any(corewalk_loom, corewalk_shuttle)))]
const STRIPES: u32 = 256;
#[cfg(all(corewalk_shuttle, not(corewalk_loom)))]
const STRIPES: u32 = 2;
#[cfg(corewalk_loom)]
const STRIPES: u32 = 1;
/// Words of a bucket. The last one can turn into a link.
const WORDS: usize = 8;
/// Mean entries per bucket at which the table grows.
const LOAD: u32 = 6;
/// Marks the word of an overflow link, in the slot half.
const LINK: u32 = 1 << 31;

/// A multimap from hash to slot, with readers that write nothing.
pub(crate) struct Table {
    /// Buckets in use: [`STRIPES`] to the capacity. Only grows.
    buckets_in_use: AtomicU64,
    buckets: SlotArena<WORDS>,
    overflow: SlotArena<WORDS>,
    stripes: Box<[CachePadded<Mutex<StripeState>>]>,
    grow: Mutex<()>,
}

/// What a stripe's lock protects, besides its buckets.
struct StripeState {
    entries: u32,
}

/// A locked stripe: lookups in it are exact and changes to it are possible.
pub(crate) struct Stripe<'a> {
    table: &'a Table,
    hash: u32,
    state: MutexGuard<'a, StripeState>,
}

impl Table {
    /// Returns an empty table for at most `entries_max` entries.
    pub(crate) fn new(name: &'static str, entries_max: u32) -> std::io::Result<Table> {
        let buckets_max = (entries_max / 4).max(STRIPES).next_power_of_two();
        Ok(Table {
            buckets_in_use: AtomicU64::new(u64::from(STRIPES)),
            buckets: SlotArena::new(name, buckets_max)?,
            overflow: SlotArena::new(name, buckets_max)?,
            stripes: (0..STRIPES)
                .map(|_| CachePadded::new(Mutex::new(StripeState { entries: 0 })))
                .collect(),
            grow: Mutex::new(()),
        })
    }

    /// Calls `probe` with each slot that may be stored under `hash`, until it returns something.
    #[inline]
    pub(crate) fn find<R>(&self, hash: u32, mut probe: impl FnMut(u32) -> Option<R>) -> Option<R> {
        // ORDERING: Acquire. A reader that sees the larger table also sees the bucket filled by
        // the split (see `split`).
        let mut line =
            self.buckets.get(bucket_of(hash, self.buckets_in_use.load(Ordering::Acquire)));
        loop {
            let mut matches = 0_u32;
            for (i, word) in line.iter().enumerate() {
                // ORDERING: Relaxed. The word is loaded again below before it is believed.
                let word = word.load(Ordering::Relaxed);
                matches |= u32::from((word >> 32) as u32 == hash) << i;
            }
            while matches != 0 {
                // ORDERING(table-entry): Acquire. The slot was filled before it was entered here.
                let word = line[matches.trailing_zeros() as usize].load(Ordering::Acquire);
                matches &= matches - 1;
                let slot = word as u32;
                if (word >> 32) as u32 == hash
                    && slot != 0
                    && slot & LINK == 0
                    && let Some(found) = probe(slot)
                {
                    return Some(found);
                }
            }
            // ORDERING(table-link): Acquire. The linked line was filled before it was linked.
            let last = line[WORDS - 1].load(Ordering::Acquire) as u32;
            if last & LINK == 0 {
                return None;
            }
            line = self.overflow.get(last & !LINK);
        }
    }

    /// Locks the stripe of `hash`.
    pub(crate) fn lock(&self, hash: u32) -> Stripe<'_> {
        let state = self.stripes[(hash & (STRIPES - 1)) as usize].lock();
        Stripe { table: self, hash, state }
    }

    /// Enters `slot` under `hash`, and splits a bucket if the table has become crowded.
    pub(crate) fn insert(&self, hash: u32, slot: u32) {
        let mut stripe = self.lock(hash);
        stripe.insert(slot);
        let crowded = stripe.is_crowded();
        drop(stripe);
        if crowded {
            self.grow();
        }
    }

    /// Takes one entry of `slot` under `hash` out.
    ///
    /// # Panics
    /// If there is none.
    pub(crate) fn remove(&self, hash: u32, slot: u32) {
        assert!(self.lock(hash).remove(slot), "slot {slot} is not under hash {hash:#x}");
    }

    /// Splits the next buckets, unless another thread is at it.
    pub(crate) fn grow(&self) {
        let Some(_grow) = self.grow.try_lock() else { return };
        for _ in 0..2 {
            if !self.split() {
                return;
            }
        }
    }

    /// Returns the bytes of buckets in use.
    pub(crate) fn bytes(&self) -> u64 {
        // ORDERING: Relaxed. Statistic.
        let buckets = self.buckets_in_use.load(Ordering::Relaxed) + self.overflow.in_use();
        buckets * (WORDS as u64) * 8
    }

    /// Splits one bucket. The caller holds `grow`. Returns false if the table is at its capacity.
    fn split(&self) -> bool {
        // ORDERING: Relaxed. Written only under `grow`, which the caller holds.
        let n = self.buckets_in_use.load(Ordering::Relaxed);
        if n >= u64::from(self.buckets.max_slots()) {
            return false;
        }
        let old = (n - (1 << n.ilog2())) as u32;
        let new = n as u32;
        let mut stripe = self.lock(old);
        let mut staying = Vec::with_capacity(2 * WORDS);
        let mut moving = Vec::with_capacity(2 * WORDS);
        let wide = n + 1;
        stripe.drain_bucket(old, |word| {
            let home = bucket_of((word >> 32) as u32, wide);
            if home == new { moving.push(word) } else { staying.push(word) }
        });
        // The moved entries are entered in their new bucket first, then the size is published, and
        // only then the old bucket loses them: a reader of either size finds them, and a reader
        // that took the old size too early misses at worst, which proves nothing (T.1).
        for &word in &moving {
            stripe.push_into(new, word);
        }
        // ORDERING: Release. Pairs with the Acquire load of the size in `find`.
        self.buckets_in_use.store(wide, Ordering::Release);
        stripe.rewrite_bucket(old, &staying);
        true
    }
}

impl Stripe<'_> {
    /// Calls `probe` with each slot under the hash; exact, as the stripe is locked.
    pub(crate) fn find<R>(&self, probe: impl FnMut(u32) -> Option<R>) -> Option<R> {
        self.table.find(self.hash, probe)
    }

    /// Enters `slot`.
    pub(crate) fn insert(&mut self, slot: u32) {
        self.state.entries += 1;
        self.push_into(self.bucket(), pack(self.hash, slot));
    }

    /// Takes one entry of `slot` out; false if there is none.
    pub(crate) fn remove(&mut self, slot: u32) -> bool {
        let gone = pack(self.hash, slot);
        let mut line = self.table.buckets.get(self.bucket());
        let mut before = None;
        loop {
            for word in line {
                // ORDERING: Relaxed. Written only under the stripe's lock, which is held.
                if word.load(Ordering::Relaxed) == gone {
                    // ORDERING: Relaxed. A reader that still sees the entry asks the slot.
                    word.store(0, Ordering::Relaxed);
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

    /// Gives an overflow line that has become empty back.
    fn unlink_if_empty(&self, before: &[AtomicU64; WORDS], line: &[AtomicU64; WORDS]) {
        // ORDERING: Relaxed. Written only under the stripe's lock.
        if line.iter().all(|word| word.load(Ordering::Relaxed) == 0)
            && let Some(index) = self.link_of(before)
        {
            // ORDERING: Relaxed. A reader on its way into the line finds it empty, or in use for
            // another bucket, whose entries its hash does not match.
            before[WORDS - 1].store(0, Ordering::Relaxed);
            self.table.overflow.free(index);
        }
    }

    /// Returns true when the stripe holds more than its share of a full table.
    pub(crate) fn is_crowded(&self) -> bool {
        // ORDERING: Relaxed. A hint.
        let buckets = self.table.buckets_in_use.load(Ordering::Relaxed) as u32;
        self.state.entries > (buckets / STRIPES) * LOAD
    }

    /// Returns the bucket of the hash: stable while the stripe is locked.
    fn bucket(&self) -> u32 {
        // ORDERING: Relaxed. A split of this stripe's buckets needs its lock; a split of others
        // changes the number but not where this hash lives.
        bucket_of(self.hash, self.table.buckets_in_use.load(Ordering::Relaxed))
    }

    fn link_of(&self, line: &[AtomicU64; WORDS]) -> Option<u32> {
        // ORDERING: Relaxed. Links change only under the stripe's lock.
        let last = line[WORDS - 1].load(Ordering::Relaxed) as u32;
        (last & LINK != 0).then_some(last & !LINK)
    }

    /// Puts `entry` into a free word of `bucket`, linking an overflow line if there is none.
    fn push_into(&self, bucket: u32, entry: u64) {
        let mut line = self.table.buckets.get(bucket);
        loop {
            for word in line {
                // ORDERING: Relaxed. Written only under the stripe's lock.
                if word.load(Ordering::Relaxed) == 0 {
                    // ORDERING(table-entry): Release. See `Table::find`.
                    word.store(entry, Ordering::Release);
                    return;
                }
            }
            line = match self.link_of(line) {
                Some(next) => self.table.overflow.get(next),
                None => return self.link_overflow(line, entry),
            };
        }
    }

    /// Moves the last word of a full line to a fresh overflow line, adds `entry` and links it.
    fn link_overflow(&self, line: &[AtomicU64; WORDS], entry: u64) {
        let index = self.table.overflow.alloc().expect("as many overflow lines as buckets");
        let fresh = self.table.overflow.get(index);
        // ORDERING: Relaxed. Written only under the stripe's lock.
        let moved = line[WORDS - 1].load(Ordering::Relaxed);
        // ORDERING: Relaxed. The line is published by the link below.
        fresh[0].store(moved, Ordering::Relaxed);
        // ORDERING: Relaxed. As above.
        fresh[1].store(entry, Ordering::Relaxed);
        for word in &fresh[2..] {
            // ORDERING: Relaxed. As above.
            word.store(0, Ordering::Relaxed);
        }
        // ORDERING(table-link): Release. See `Table::find`.
        line[WORDS - 1].store(u64::from(LINK | index), Ordering::Release);
    }

    /// Calls `each` with every entry of `bucket`, which keeps them.
    fn drain_bucket(&mut self, bucket: u32, mut each: impl FnMut(u64)) {
        let mut line = self.table.buckets.get(bucket);
        loop {
            for word in line {
                // ORDERING: Relaxed. Written only under the stripe's lock.
                let word = word.load(Ordering::Relaxed);
                if word as u32 & LINK == 0 && word != 0 {
                    each(word);
                }
            }
            match self.link_of(line) {
                Some(next) => line = self.table.overflow.get(next),
                None => return,
            }
        }
    }

    /// Makes `bucket` hold `entries` alone and gives its overflow lines back.
    fn rewrite_bucket(&self, bucket: u32, entries: &[u64]) {
        let line = self.table.buckets.get(bucket);
        let mut link = self.link_of(line);
        let (head, rest) = entries.split_at(entries.len().min(WORDS));
        for (i, word) in line.iter().enumerate() {
            // ORDERING(table-entry): Release. See `Table::find`.
            word.store(head.get(i).copied().unwrap_or(0), Ordering::Release);
        }
        for &entry in rest {
            self.push_into(bucket, entry);
        }
        // A reader may still scan a line that is given back; it then sees entries of another
        // bucket, which its hash does not match, or misses.
        while let Some(index) = link {
            let freed = self.table.overflow.get(index);
            link = self.link_of(freed);
            for word in freed {
                // ORDERING: Relaxed. Nothing is published.
                word.store(0, Ordering::Relaxed);
            }
            self.table.overflow.free(index);
        }
    }
}

/// Returns the bucket of `hash` in a table of `n` buckets.
#[inline]
fn bucket_of(hash: u32, n: u64) -> u32 {
    let mask = u64::MAX.unbounded_shr((n - 1).leading_zeros());
    let bucket = u64::from(hash) & mask;
    (if bucket < n { bucket } else { bucket & (mask >> 1) }) as u32
}

fn pack(hash: u32, slot: u32) -> u64 {
    debug_assert!(slot != 0 && slot & LINK == 0);
    (u64::from(hash) << 32) | u64::from(slot)
}

#[cfg(all(test, corewalk_loom))]
mod loom_models;
