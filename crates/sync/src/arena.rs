//! Type-stable memory: slots that stay slots of words for as long as the arena lives.
//!
//! A lock-free reader may follow a link to an object that is freed and reused while it looks. If
//! the memory behind the link could become anything else, every such reader would need a guard
//! that delays the freeing, which costs 8 to 11 ns per section (crossbeam-epoch on a Xeon). Here
//! the memory never becomes anything else: a slot is `WORDS` atomic words from the arena's
//! creation to its drop, freed or not. Whatever a late reader loads is a valid word, and a
//! sequence count or generation kept *in* the slot tells it whether the words belong together.
//!
//! The address space of all slots is reserved at once and costs nothing until a slot is touched;
//! the kernel backs it page by page with zeroes. Allocation takes a slot from the thread's shard,
//! which trades with a common depot in batches, and the depot is filled from slots never used.
//!
//! # Guarantees
//!
//! - A.1: a slot's words are valid to load and store from `new` until the arena is dropped.
//! - A.2: a slot that was never allocated holds zeroes; `free` changes no word of a slot, and
//!   `alloc` neither. No free list runs through a slot (trap T7).
//! - A.3: slot 0 is never handed out, so index 0 can mean "none".
//! - A.4: fresh slots are used only when neither the shard nor the depot has a freed one of the group,
//!   nor the depot many of the other one; so the touched memory follows the peak of what was in use,
//!   plus at most two batches of each group per shard and [`SPARE`] slots.
//! - A.5: `alloc` returns `None` only if no free slot was found in any shard.
//! - A.6: a small arena takes small pages: see `arena/memory` for when huge ones are used.
//!
//! # Groups
//!
//! Objects that are few and often read, strewn among many that are not, lie on a page each, and every
//! look at one misses the processor's cache of addresses. So slots come in two groups ([`Group`]), of
//! which each has batches of its own; a slot that was lent to the other group goes back to its own. A
//! cache of names keeps its directories together so, since a translation of a path reads one per name.
//!
//! # Slots by number
//!
//! An array that grows, such as the buckets of a hash table, needs no `alloc`: all slots can be
//! reached by `get` from the beginning. It says how far it has come with `extend_to`, so that
//! `bytes_committed` counts its slots and huge pages follow it.
//!
//! # Locks
//!
//! Per shard a mutex (its free slots), then the depot's mutex. At most one shard is locked at a
//! time, and nothing of the caller runs under either.
//!
//! # What it refuses
//!
//! Giving memory back before the drop, growing past `max_slots`, and detecting a double free.
//!
//! Source: `SLAB_TYPESAFE_BY_RCU` in Linux `include/linux/slab.h`; Bonwick and Adams, "Magazines
//! and Vmem", USENIX 2001.

mod memory;

use crate::{
    locks::{Mutex, MutexGuard},
    own_line::OwnLine,
    primitives::{
        SHARDS,
        atomic::{AtomicI64, AtomicU64, Ordering},
        shard_index,
    },
};
use crossbeam_utils::CachePadded;
use memory::SlotMemory;
use std::{fmt, io, sync::OnceLock};

/// Slots that move between a shard and the depot, or from fresh memory, at once.
const BATCH: usize = if crate::primitives::IS_MODEL { 2 } else { 64 };

/// How far apart slots of [`Group::Few`] are taken. The words that go with a slot elsewhere, such as a
/// count, may lie four to a line: those of two that are made one after the other do not.
const STRIDE: u64 = 4;

/// Free slots of a group in the depot from which on the other group takes some.
const SPARE: usize = 16 * BATCH;

/// An arena of slots of `WORDS` words each.
///
/// With eight words a slot is one 64-byte cache line.
///
/// # Examples
///
/// ```
/// use corewalk_sync::{SlotArena, primitives::atomic::Ordering};
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
    /// All that readers need: at the beginning of a line, away from what allocation writes.
    memory: SlotMemory<WORDS>,
    name: &'static str,
    /// First index that was never handed to a shard.
    next_fresh: CachePadded<AtomicU64>,
    depot: CachePadded<Mutex<Free>>,
    shards: [OwnLine<Shard>; SHARDS],
    /// One bit per batch of slots, set if they are of [`Group::Few`]; made for the first of those.
    few: OnceLock<Box<[AtomicU64]>>,
}

/// Which slots an object lies among.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Group {
    /// Among nearly all the others.
    Many,
    /// Among those that are few, and read often.
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

/// Free slots of some threads.
///
/// - `free`: protected by its own lock.
/// - `in_use`: written under the lock of `free`, read by anybody.
struct Shard {
    free: Mutex<Free>,
    /// Slots allocated less slots freed by this shard; negative if it frees what others allocated.
    in_use: AtomicI64,
}

impl<const WORDS: usize> SlotArena<WORDS> {
    /// Returns an arena for `max_slots` slots, slot 0 included, all of them zero.
    ///
    /// `name` shows up in `Debug` output only.
    ///
    /// # Errors
    ///
    /// - `EINVAL`: `max_slots` or `WORDS` is 0, or the size does not fit in a `usize`.
    /// - `ENOMEM`: the address space, or a limit on it, is too small.
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

    /// Returns the words of slot `index`, whatever its state.
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

    /// Returns the name given to `new`.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Returns how many slots are allocated; exact when no thread allocates or frees.
    #[must_use]
    pub fn in_use(&self) -> u64 {
        // ORDERING: Relaxed. Statistic; nothing is published through it.
        let read = |shard: &OwnLine<Shard>| shard.in_use.load(Ordering::Relaxed);
        let sum: i64 = self.shards.iter().map(read).sum();
        u64::try_from(sum).unwrap_or(0)
    }

    /// Returns how many slots, from index 0 up, were ever handed to a shard.
    ///
    /// A scan over all objects needs to visit no index at or above this.
    #[must_use]
    pub fn len_touched(&self) -> u32 {
        // ORDERING: Relaxed. The number never passes `max_slots`, and a scan that misses a slot
        // handed out meanwhile is as good as one that ran a moment earlier.
        let next = self.next_fresh.load(Ordering::Relaxed);
        u32::try_from(next).expect("next_fresh never passes max_slots")
    }

    /// Returns the bytes of the slots ever handed to a shard.
    ///
    /// The kernel commits whole pages as they are touched; with huge pages, which are used from 2
    /// MiB on, it may commit up to 2 MiB more.
    #[must_use]
    pub fn bytes_committed(&self) -> u64 {
        u64::from(self.len_touched()) * (WORDS * size_of::<u64>()) as u64
    }

    /// Counts every slot up to `index` as handed out, for an arena whose slots are used by number.
    ///
    /// To be called before slot `index` is first written, by whoever makes the array longer; going
    /// back, or again to the same index, does nothing. `alloc` hands out none of these slots.
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
    /// assert_eq!(buckets.bytes_committed(), 256 * 64);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn extend_to(&self, index: u32) {
        assert!(index < self.max_slots(), "slot {index} is out of range");
        let now = u64::from(index) + 1;
        // ORDERING: Relaxed. As in `take_fresh`; a look first, so that what is known writes nothing.
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
    /// The first 64 bytes of the slot come into the caches while the caller does something else. An
    /// index out of range does nothing. On processors without such a hint in stable Rust (all but
    /// x86-64), and under a model checker, this is a no-op.
    #[inline]
    pub fn prefetch(&self, index: u32) {
        self.memory.prefetch(index);
    }

    /// Returns a free slot among the many, or `None` if all are in use. The slot's words are as they were
    /// left.
    #[must_use = "the slot is lost unless it is freed"]
    pub fn alloc(&self) -> Option<u32> {
        self.alloc_in(Group::Many)
    }

    /// Returns a free slot of `group`, or of the other one if there is none, or `None` if all are in use.
    /// The slot's words are as they were left.
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

    /// Gives back a slot that `alloc` returned. Its words stay as they are.
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
            // The oldest go: they have had the most time to be forgotten by late readers.
            self.depot.lock().of(group).extend(slots.drain(..BATCH));
        }
    }

    /// Returns the group of a slot that was handed out.
    fn group_of(&self, index: u32) -> Group {
        let batch = index as usize / BATCH;
        let is_few = self.few.get().is_some_and(|few| {
            // ORDERING: Relaxed. Written before the slot was first handed out, which happened before.
            few[batch / 64].load(Ordering::Relaxed) >> (batch % 64) & 1 != 0
        });
        if is_few { Group::Few } else { Group::Many }
    }

    /// Notes that the batch that slot `start` is in is of [`Group::Few`].
    fn note_few(&self, start: u64) {
        let words = (self.max_slots() as usize).div_ceil(64 * BATCH);
        let few = self.few.get_or_init(|| (0..words).map(|_| AtomicU64::new(0)).collect());
        let batch = start as usize / BATCH;
        // ORDERING: Relaxed. See `group_of`.
        few[batch / 64].fetch_or(1 << (batch % 64), Ordering::Relaxed);
    }

    /// Fills a shard's empty list from the depot, else with fresh slots, unless there are many of the
    /// other group in the depot: those are there because that group has become smaller.
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

    /// Takes a batch of slots that were never used, or what is left of them.
    fn take_fresh(&self, group: Group, free: &mut Vec<u32>) {
        let max = u64::from(self.max_slots());
        // ORDERING: Relaxed. The counter only hands out numbers; a slot's words are zero since
        // before the arena was shared.
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
                    // Lowest on top, so that a small population stays on the first pages.
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

    /// Returns a slot from any shard or the depot; for a shard that found nothing else.
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

    /// Takes a slot of `group`, or of the other one if there is none.
    fn pop(&mut self, group: Group) -> Option<u32> {
        let [many, few] = &mut self.0;
        let (own, other) = if group == Group::Many { (many, few) } else { (few, many) };
        own.pop().or_else(|| other.pop())
    }
}

impl Shard {
    /// Adds `amount` to the shard's share of the slots in use. The guard is the witness.
    fn count(&self, amount: i64, _free: &MutexGuard<'_, Free>) {
        // ORDERING: Relaxed. Statistic; the shard's lock keeps writers apart.
        let now = self.in_use.load(Ordering::Relaxed);
        // ORDERING: Relaxed. As above.
        self.in_use.store(now + amount, Ordering::Relaxed);
    }
}

/// Returns where the batch ends that a fresh slot is in.
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
