//! Type-stable memory: a slot consists of atomic words for as long as the arena lives.
//!
//! A lock-free reader may follow a link to an object that is freed and reused at the same time. If
//! the memory of the object could change its type, every reader would need a guard that delays the
//! freeing. Such a guard costs 8 to 11 ns per section (crossbeam-epoch on a Xeon).
//!
//! A slot of this arena is `WORDS` atomic words from the arena's creation to its drop, freed or
//! not. So a reader that comes late always loads a valid word. A sequence count or generation in
//! the slot tells the reader whether the words belong together.
//!
//! The arena reserves the address space of all slots in one step. The kernel adds memory page by
//! page, at the first access. A thread allocates from its shard (a list of free slots), and shards
//! trade slots with a common depot in batches.
//!
//! Analogous to Linux's `SLAB_TYPESAFE_BY_RCU`.
//!
//! # Guarantees
//! - A.1: a slot's words are valid to load and store from `new` until the arena is dropped.
//! - A.2: a slot that was never allocated holds zeroes. Neither `alloc` nor `free` changes a word
//!   of a slot. Links of a free list would overwrite the reference count of a freed object, which a
//!   late reader may still access (trap T7 in `traps.md`).
//! - A.3: slot 0 is never handed out, so index 0 can mean "none".
//! - A.4: the arena prefers freed slots to fresh (never used) ones. A shard that has no slot of the
//!   requested [`Group`] takes a batch of such slots from the depot (the free slots of no shard).
//!   If the depot has none, but [`SPARE`] slots of the other group, the shard takes a batch of
//!   those. Otherwise the shard takes fresh slots. So the touched memory exceeds the peak use by at
//!   most two batches of each group per shard and [`SPARE`] slots.
//! - A.5: `alloc` returns `None` only if it found no free slot in any shard.
//! - A.6: a small arena uses small pages; `arena/memory` says when an arena uses huge ones.
//!
//! # Locks
//! Each shard (the free slots of some threads) has a mutex. The depot (the free slots that no shard
//! has) has one too. Lock order: shard, then depot. A thread locks at most one shard at a time. No
//! code of the caller runs under these mutexes.
//!
//! # Limits
//! The arena returns no memory before its drop, does not grow past `max_slots`, and does not detect
//! a double free.
//!
//! Source: Linux `include/linux/slab.h`; Bonwick and Adams, "Magazines and Vmem", USENIX 2001.

mod memory;

use corewalk_base::{
    Mutex, MutexGuard, OwnLine,
    primitives::{
        SHARDS,
        atomic::{AtomicI64, AtomicU64, Ordering},
        shard_index,
    },
};
use crossbeam_utils::CachePadded;
use memory::SlotMemory;
use std::{fmt, io, sync::OnceLock};

/// Shards take slots from the depot, and give slots back, in batches of this size.
const BATCH: usize = if corewalk_base::primitives::IS_MODEL { 2 } else { 64 };

/// Distance between the numbers of two slots of [`Group::Few`] (the group of the few often-read
/// objects) that are handed out one after the other.
///
/// The owner of an arena may keep more words for each slot in another array. Because of this
/// distance, the words of the two slots are on different cache lines of that array.
const STRIDE: u64 = 4;

/// Number of free slots that the depot must have of one [`Group`] before a shard takes them for the
/// other group.
const SPARE: usize = 16 * BATCH;

/// An arena of slots of `WORDS` words each. With eight words a slot is one 64-byte cache line.
///
/// An arena can also serve as a growing array, such as the buckets of a hash table, without
/// `alloc`: `get` reaches every slot. The owner calls `extend_to` for each new length, so that
/// `bytes_committed` is right and a long array gets huge pages.
///
/// # Examples
///
/// ```
/// use corewalk_sync::SlotArena;
/// use std::sync::atomic::Ordering;
///
/// let arena: SlotArena<8> = SlotArena::new("dentry", 1024)?;
/// let index = arena.alloc().expect("the arena is empty");
/// arena.get(index)[0].store(7, Ordering::Relaxed);
/// arena.free(index);
/// assert_eq!(arena.get(index)[0].load(Ordering::Relaxed), 7);
/// # Ok::<(), std::io::Error>(())
/// ```
#[repr(C)]
pub struct SlotArena<const WORDS: usize> {
    /// The slots. This field, which every lookup reads, shares no cache line with words that an
    /// allocation writes.
    memory: SlotMemory<WORDS>,
    name: &'static str,
    /// The smallest slot number that no shard has taken yet. Threads raise it by compare-exchange.
    next_fresh: CachePadded<AtomicU64>,
    /// The depot: the free slots that no shard has. Protected by its own mutex. A thread that also
    /// locks a shard locks the shard first.
    depot: CachePadded<Mutex<Free>>,
    shards: [OwnLine<Shard>; SHARDS],
    /// One bit per batch, set if the batch belongs to [`Group::Few`]. A bit is set before a slot of
    /// its batch is handed out, and is never cleared.
    few: OnceLock<Box<[AtomicU64]>>,
}

/// The group of slots that an object is allocated in.
///
/// A few often-read objects that are spread over the pages of many others cause TLB misses. So the
/// arena has two groups of slots, and each batch of neighbouring slots belongs to one group.
///
/// A name cache puts its directories into a group of their own, because a path translation reads
/// one directory per name.
///
/// # Examples
///
/// ```
/// use corewalk_sync::{Group, SlotArena};
///
/// let arena: SlotArena<8> = SlotArena::new("inode", 1024)?;
/// let directory = arena.alloc_in(Group::Few).expect("the arena is empty");
/// let file = arena.alloc_in(Group::Many).expect("the arena is nearly empty");
/// assert!(directory.abs_diff(file) > 1);
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Group {
    /// For ordinary objects, which are the majority.
    Many,
    /// For the few objects that are read often.
    Few,
}

impl Group {
    fn other(self) -> Group {
        match self {
            Group::Many => Group::Few,
            Group::Few => Group::Many,
        }
    }
}

/// Free slots by group.
#[derive(Default)]
struct Free([Vec<u32>; 2]);

/// The free slots of some threads.
struct Shard {
    /// Protected by its own mutex.
    free: Mutex<Free>,
    /// Number of allocations minus number of frees by this shard; it may be negative. Written under
    /// the mutex of `free`, read by any thread.
    in_use: AtomicI64,
}

impl<const WORDS: usize> SlotArena<WORDS> {
    /// Returns an arena for `max_slots` slots, slot 0 included, all of them zero.
    ///
    /// `name` appears in the `Debug` output only.
    ///
    /// # Errors
    ///
    /// - `EINVAL` if `max_slots` or `WORDS` is 0, or if the size does not fit in a `usize`.
    /// - `ENOMEM` if the address space, or a limit on it, is too small.
    pub fn new(name: &'static str, max_slots: u32) -> io::Result<Self> {
        let shard = || Shard { free: Mutex::new(Free::default()), in_use: AtomicI64::new(0) };
        Ok(Self {
            name,
            memory: SlotMemory::reserve(max_slots)?,
            next_fresh: CachePadded::new(AtomicU64::new(1)),
            depot: CachePadded::new(Mutex::new(Free::default())),
            shards: std::array::from_fn(|_| OwnLine::new(shard())),
            few: OnceLock::new(),
        })
    }

    /// Returns the words of slot `index`, in any state of the slot.
    ///
    /// # Panics
    ///
    /// Panics if `index` is not below `max_slots`.
    #[inline]
    #[must_use]
    pub fn get(&self, index: u32) -> &[AtomicU64; WORDS] {
        self.memory.slot(index)
    }

    /// Returns the number of slots, slot 0 included.
    #[inline]
    #[must_use]
    pub fn max_slots(&self) -> u32 {
        self.memory.max_slots()
    }

    /// Returns the number of allocated slots. It is exact if no thread allocates or frees
    /// meanwhile.
    #[must_use]
    pub fn in_use(&self) -> u64 {
        // ORDERING: Relaxed. Statistic; nothing is published through it.
        let read = |shard: &OwnLine<Shard>| shard.in_use.load(Ordering::Relaxed);
        let sum: i64 = self.shards.iter().map(read).sum();
        u64::try_from(sum).unwrap_or(0)
    }

    /// Returns the number of slots, from index 0 up, that were ever handed to a shard.
    ///
    /// A scan over all objects needs no index at or above this number.
    #[must_use]
    pub fn len_touched(&self) -> u32 {
        // ORDERING: Relaxed. A scan of all slots may miss a slot that is handed out during the
        // scan, as if the scan had run a moment earlier.
        let next = self.next_fresh.load(Ordering::Relaxed);
        u32::try_from(next).expect("next_fresh never passes max_slots")
    }

    /// Counts every slot up to `index` as handed out, for an arena that is used as an array.
    ///
    /// Call this method before the first write to slot `index`. A lower or repeated index has no
    /// effect. `alloc` never returns one of the slots up to `index`.
    ///
    /// # Panics
    ///
    /// Panics if `index` is not below `max_slots`.
    ///
    /// # Examples
    ///
    /// ```
    /// let buckets: corewalk_sync::SlotArena<8> = corewalk_sync::SlotArena::new("bucket", 1024)?;
    /// buckets.extend_to(255);
    /// assert_eq!(buckets.len_touched(), 256);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn extend_to(&self, index: u32) {
        assert!(index < self.max_slots(), "slot {index} is out of range");
        let now = u64::from(index) + 1;
        // ORDERING: Relaxed. `next_fresh` only gives each caller its own slot numbers.
        if self.next_fresh.load(Ordering::Relaxed) >= now {
            return;
        }
        // ORDERING: Relaxed. As above.
        let before = self.next_fresh.fetch_max(now, Ordering::Relaxed);
        if before < now {
            self.memory.note_handed_out(before, now);
        }
    }

    /// Hints to the processor that slot `index` is about to be read.
    ///
    /// The processor fetches the first 64 bytes of the slot into its caches while the caller goes
    /// on. An index out of range has no effect. The call does nothing on processors other than
    /// x86-64.
    #[inline]
    pub fn prefetch(&self, index: u32) {
        self.memory.prefetch(index);
    }

    /// Returns a free slot of [`Group::Many`]. Returns `None` if all slots are in use.
    ///
    /// The words of the slot keep their last values.
    ///
    /// # Examples
    /// ```
    /// let arena: corewalk_sync::SlotArena<8> = corewalk_sync::SlotArena::new("entry", 1024)?;
    /// let slot = arena.alloc().expect("the arena is empty");
    /// assert_eq!(arena.in_use(), 1);
    /// arena.free(slot);
    /// assert_eq!(arena.in_use(), 0);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    #[must_use = "the slot is lost unless it is freed"]
    pub fn alloc(&self) -> Option<u32> {
        self.alloc_in(Group::Many)
    }

    /// Returns a free slot of `group`, or of the other group if `group` has none.
    ///
    /// Returns `None` if all slots are in use. Allocation does not change the words of the slot.
    #[must_use = "the slot is lost unless it is freed"]
    pub fn alloc_in(&self, group: Group) -> Option<u32> {
        let shard = &self.shards[shard_index()];
        let mut free = shard.free.lock();
        if free.of(group).is_empty() {
            self.refill(group, &mut free);
        }
        if let Some(index) = free.pop(group) {
            shard.count(1, &free);
            return Some(index);
        }
        drop(free);
        let index = self.steal(group)?;
        shard.count(1, &shard.free.lock());
        Some(index)
    }

    /// Frees a slot that `alloc` returned. Its words keep their values.
    ///
    /// # Panics
    ///
    /// Panics if `index` was never handed out. A double free is not detected.
    pub fn free(&self, index: u32) {
        assert!(index != 0 && index < self.len_touched(), "slot {index} was never handed out");
        let group = self.group_of(index);
        let shard = &self.shards[shard_index()];
        let mut free = shard.free.lock();
        shard.count(-1, &free);
        let slots = free.of(group);
        slots.push(index);
        if slots.len() >= 2 * BATCH {
            // Move the oldest slots of this list to the depot (the free slots that no shard has).
            // Late readers of their former objects have had the most time to finish.
            self.depot.lock().of(group).extend(slots.drain(..BATCH));
        }
    }

    /// Returns the group of slot `index`, which was handed out before.
    fn group_of(&self, index: u32) -> Group {
        let batch = index as usize / BATCH;
        let is_few = self.few.get().is_some_and(|few| {
            // ORDERING: Relaxed. A bit of `few` is set before the first slot of its batch is handed
            // out, and the caller has such a slot.
            few[batch / 64].load(Ordering::Relaxed) >> (batch % 64) & 1 != 0
        });
        if is_few { Group::Few } else { Group::Many }
    }

    /// Marks the batch that contains slot `start` as one of [`Group::Few`].
    fn note_few(&self, start: u64) {
        let words = (self.max_slots() as usize).div_ceil(64 * BATCH);
        let few = self.few.get_or_init(|| (0..words).map(|_| AtomicU64::new(0)).collect());
        let batch = start as usize / BATCH;
        // ORDERING: Relaxed. See `group_of`.
        few[batch / 64].fetch_or(1 << (batch % 64), Ordering::Relaxed);
    }

    /// If the depot has no slot of `group`, takes slots of the other group, provided it has at
    /// least [`SPARE`] of them. Only then takes slots that were never used.
    fn refill(&self, group: Group, free: &mut Free) {
        let slots = free.of(group);
        {
            let mut depot = self.depot.lock();
            let own = depot.of(group);
            let keep = own.len().saturating_sub(BATCH);
            slots.extend(own.drain(keep..));
            let other = depot.of(group.other());
            if slots.is_empty() && other.len() >= SPARE {
                slots.extend(other.drain(..BATCH));
            }
        }
        if slots.is_empty() {
            self.take_fresh(group, slots);
        }
    }

    /// Takes a batch of slots that were never used, and adds the slots to `free`. At the start and
    /// at the end of the arena, a batch may be shorter.
    fn take_fresh(&self, group: Group, free: &mut Vec<u32>) {
        let max = u64::from(self.max_slots());
        // ORDERING: Relaxed. `next_fresh` only gives each caller its own slot numbers. Fresh slots
        // have held zeroes since the arena was made.
        let mut start = self.next_fresh.load(Ordering::Relaxed);
        while start < max {
            let end = max.min(end_of_batch(start));
            // ORDERING: Relaxed. As above.
            match self.next_fresh.compare_exchange_weak(
                start,
                end,
                Ordering::Relaxed,
                Ordering::Relaxed,
            ) {
                Ok(_) => {
                    if group == Group::Few {
                        self.note_few(start);
                    }
                    self.memory.note_handed_out(start, end);
                    // Push the lowest index last, so that it is popped first: an arena with few
                    // objects touches only its first pages.
                    let as_index = |n| u32::try_from(n).expect("below max_slots");
                    let stride = if group == Group::Few { STRIDE } else { 1 };
                    let every = |first: u64| {
                        let count = (end - start).saturating_sub(first).div_ceil(stride);
                        (0..count).rev().map(move |i| start + first + i * stride)
                    };
                    free.extend((0..stride).rev().flat_map(every).map(as_index));
                    return;
                }
                Err(now) => start = now,
            }
        }
    }

    /// Takes a free slot of any shard, or of the depot. In each of them, prefers a slot of `group`.
    /// `alloc_in` calls this function if the thread's shard is empty and no fresh slots are left.
    #[cold]
    fn steal(&self, group: Group) -> Option<u32> {
        let first = shard_index();
        let nth = |step| &self.shards[(first + step) % SHARDS];
        (0..SHARDS)
            .find_map(|step| nth(step).free.lock().pop(group))
            .or_else(|| self.depot.lock().pop(group))
    }
}

impl Free {
    fn of(&mut self, group: Group) -> &mut Vec<u32> {
        &mut self.0[group as usize]
    }

    fn pop(&mut self, group: Group) -> Option<u32> {
        let [many, few] = &mut self.0;
        let (own, other) = if group == Group::Many { (many, few) } else { (few, many) };
        own.pop().or_else(|| other.pop())
    }
}

impl Shard {
    /// Adds `amount` to the shard's count `in_use`. The guard proves that the caller has locked the
    /// shard.
    fn count(&self, amount: i64, _free: &MutexGuard<'_, Free>) {
        // ORDERING: Relaxed. Statistic; the shard's lock excludes other writers.
        let now = self.in_use.load(Ordering::Relaxed);
        // ORDERING: Relaxed. As above.
        self.in_use.store(now + amount, Ordering::Relaxed);
    }
}

fn end_of_batch(start: u64) -> u64 {
    (start / BATCH as u64 + 1) * BATCH as u64
}

impl<const WORDS: usize> fmt::Debug for SlotArena<WORDS> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SlotArena")
            .field("name", &self.name)
            .field("words", &WORDS)
            .field("max_slots", &self.max_slots())
            .field("len_touched", &self.len_touched())
            .field("in_use", &self.in_use())
            .finish()
    }
}

#[cfg(all(test, corewalk_loom))]
mod loom_models;

#[cfg(all(test, not(any(corewalk_loom, corewalk_shuttle))))]
mod tests;
