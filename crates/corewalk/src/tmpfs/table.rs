//! The inodes of a tmpfs, by number.
//!
//! Every call passes an inode number, so all threads of a tmpfs use this table. It is a growing
//! array of slots. The number contains the slot, which is reached without a lock or a reference
//! count. Each slot has its own lock, so threads meet only at the same inode.
//!
//! # Mechanism
//! The lower half of an inode number is its slot. The upper half counts the earlier uses of the
//! slot. So slots are reused and inode numbers are not, and no stale handle reaches a new file
//! (trap P11 in `traps.md`). A slot whose count is at its maximum is retired. A caller locks the
//! slot, and compares the inode number in it with its own. If they differ, the inode is gone
//! (`ESTALE`).
//!
//! A segment is 64 slots. The segments are in arrays (levels), each twice as long as the one
//! before, so none is ever copied. A thread takes free slots from the list of its shard. The list
//! exchanges batches with a pool of free slots for all shards, the depot (`depot`). New slots are
//! made only if the depot is empty.
//!
//! # Returning memory
//! A segment is freed when all its slots are free; a few spare segments are kept. A caller that
//! holds the number of a removed inode finds no segment, or a vacant slot, and gets `ESTALE`.
//!
//! The table keeps the highest use count of each segment. When the segment is allocated again, its
//! slots continue from that count, so no inode number repeats. Callers use slots in an RCU read
//! section ([`Entered`]), so the memory of a segment is freed after a grace period.
//!
//! # Locks
//! - The lock of a slot protects the inode in the slot. For the order of several slot locks see the
//!   module `names`.
//! - The lock of a free list is taken before that of `depot` (a pool of free slots). A thread that
//!   takes the lock of a free list holds no other lock than that of a file's content.
//!
//! # Invariants
//! - I.1: an inode enters its slot before its first directory entry exists. It stays there until it
//!   has no links and is forgotten. So each inode number in a locked directory is in the table.
//! - I.2: a vacant slot of an allocated segment is in one free list or in the depot, or a thread
//!   moves it between them. Retired slots and slot 0 are in no list.
//! - I.3: `Segment::uses` is at least the use count of each vacant slot of the segment.
//!
//! Source: traps P1, P2 and P11 in `traps.md`; Bonwick, Adams, "Magazines and Vmem", USENIX 2001.

mod depot;

use std::sync::OnceLock;

use corewalk_base::primitives::atomic::{AtomicU32, AtomicU64, Ordering};
use corewalk_base::primitives::{SHARDS, shard_index};
use corewalk_base::{CachePadded, Mutex, OwnLine, RwLock, RwLockReadGuard, RwLockWriteGuard};
use corewalk_sync::{RcuOption, rcu};

use super::inode::Inode;
use crate::Errno;
use depot::Depot;

/// The number of the root directory.
pub(super) const ROOT_INO: u64 = 1;

/// The inode number in a vacant slot. No segment contains the slot of this number, so no inode has
/// it.
pub(super) const NO_NUMBER: u64 = u64::MAX;

const SEGMENT_SLOTS: u32 = 64;
/// Number of levels of segments. Level n has 2^n segments, so all levels together have a slot for
/// each 32-bit number.
const LEVELS: usize = 27;
/// Maximum number of segments. The last segment of the 32-bit range is left out, so that no slot
/// has the number `NO_NUMBER`.
const SEGMENTS_MAX: u64 = (1 << (u32::BITS - SEGMENT_SLOTS.ilog2())) - 1;
const USES_SHIFT: u32 = 32;

type Slots = [OwnLine<RwLock<Inode>>; SEGMENT_SLOTS as usize];

#[derive(Default)]
struct Segment {
    /// The slots, each protected by its own lock. A thread may write this pointer only while it
    /// owns all slots of the segment. Such a thread has just made them, or has taken them from the
    /// depot (the pool of free slots).
    slots: RcuOption<Slots>,
    /// An upper bound of the use counts of the segment's slots (invariant I.3).
    uses: AtomicU32,
}

/// The inodes of a tmpfs, by number. Analogous to Linux's `inode_hashtable`.
///
/// # Invariants
/// I.1, I.2 and I.3 of the module documentation.
pub(super) struct InodeTable {
    /// Each level is written once.
    levels: [OnceLock<Box<[Segment]>>; LEVELS],
    /// The lists of free slots, one for each shard of threads. Each list is protected by its own
    /// mutex.
    free: Box<[OwnLine<Mutex<Vec<u32>>>]>,
    /// The pool of free slots for all shards. A thread that locks both a list in `free` and the
    /// depot locks the list first.
    depot: CachePadded<Mutex<Depot>>,
    segments: CachePadded<AtomicU64>,
}

/// Access to an inode table within an RCU read section, during which no slot is freed.
pub(super) struct Entered<'t> {
    table: &'t InodeTable,
    section: rcu::ReadGuard,
}

impl InodeTable {
    /// Returns a table with one segment of slots. The root directory's slot is vacant, but in no
    /// free list.
    pub(super) fn new() -> InodeTable {
        let table = InodeTable {
            levels: [const { OnceLock::new() }; LEVELS],
            free: (0..SHARDS).map(|_| OwnLine::default()).collect(),
            depot: CachePadded::default(),
            segments: CachePadded::default(),
        };
        table.take_segment(&mut table.free[shard_index()].lock());
        table
    }

    /// Begins an RCU read section for one call. It ends before a callback of the caller runs,
    /// because a callback may block.
    #[inline]
    pub(super) fn enter(&self) -> Entered<'_> {
        Entered { table: self, section: rcu::read_lock() }
    }

    pub(super) fn bytes(&self) -> u64 {
        let retired = self.depot.lock().retired() as u64;
        // ORDERING: Relaxed. Statistic.
        let taken = self.segments.load(Ordering::Relaxed).min(SEGMENTS_MAX);
        taken.saturating_sub(retired) * size_of::<Slots>() as u64
    }

    #[inline]
    fn segment(&self, index: u32) -> Option<&Segment> {
        let nth = index / SEGMENT_SLOTS + 1;
        let level = nth.ilog2();
        let segments = self.levels.get(level as usize)?.get()?;
        segments.get((nth - (1 << level)) as usize)
    }

    fn alloc_slot(&self) -> Option<u32> {
        let mut free = self.free[shard_index()].lock();
        if free.is_empty() {
            self.refill(&mut free);
        }
        free.pop()
    }

    fn free_slot(&self, index: u32) {
        let mut free = self.free[shard_index()].lock();
        free.push(index);
        if free.len() < 2 * SEGMENT_SLOTS as usize {
            return;
        }
        let mut retired = Vec::new();
        let slots = free.drain(..SEGMENT_SLOTS as usize);
        self.depot.lock().put(slots, |segment| retired.push(segment));
        drop(free);
        for segment in retired {
            if let Some(it) = self.segment(segment * SEGMENT_SLOTS) {
                it.slots.replace(None);
            }
            // From here on another thread may allocate the segment again.
            self.depot.lock().note_retired(segment);
        }
    }

    #[cold]
    fn refill(&self, free: &mut Vec<u32>) {
        let retired = {
            let mut depot = self.depot.lock();
            depot.take(free);
            if free.is_empty() { depot.take_retired() } else { None }
        };
        match retired {
            Some(segment) => self.make_segment(segment, free),
            None if free.is_empty() => self.take_segment(free),
            None => {}
        }
    }

    fn take_segment(&self, free: &mut Vec<u32>) {
        // ORDERING: Relaxed. This only gives each thread its own segment number. The store to
        // `Segment::slots` publishes the segment.
        let nth = self.segments.fetch_add(1, Ordering::Relaxed);
        if nth < SEGMENTS_MAX {
            self.make_segment(nth as u32, free);
        }
    }

    /// Allocates the slots of the segment `nth`, and adds them to the list `free`. No other thread
    /// can find these slots yet.
    fn make_segment(&self, nth: u32, free: &mut Vec<u32>) {
        let start = nth * SEGMENT_SLOTS;
        let level = (nth + 1).ilog2();
        let segments = self.levels[level as usize]
            .get_or_init(|| (0..1_u32 << level).map(|_| Segment::default()).collect());
        let segment = &segments[(nth + 1 - (1 << level)) as usize];
        // ORDERING: Relaxed. `remove` stores a use count before it frees the slot. The locks of the
        // free lists order that store before this load.
        let uses = segment.uses.load(Ordering::Relaxed);
        let slot = |_| OwnLine::new(RwLock::new(Inode::vacant(uses)));
        segment.slots.replace(Some(Box::new(std::array::from_fn(slot))));
        // The lowest slot is pushed last, so that it is used first. Slot 0, which is no inode, and
        // slot 1, the root directory, are not pushed.
        let first = start.max(ROOT_INO as u32 + 1);
        free.extend((first..start + SEGMENT_SLOTS).rev());
    }
}

impl Drop for InodeTable {
    /// Drops all inodes. The memory of the segments is freed after a grace period.
    fn drop(&mut self) {
        let section = rcu::read_lock();
        let segments = self.levels.iter().filter_map(OnceLock::get).flat_map(|level| level.iter());
        for slot in segments.filter_map(|segment| segment.slots.read(&section)).flatten() {
            *slot.write() = Inode::vacant(0);
        }
    }
}

impl Entered<'_> {
    #[inline]
    pub(super) fn read(&self, ino: u64) -> Result<RwLockReadGuard<'_, Inode>, Errno> {
        let inode = self.slot(ino).ok_or(Errno::STALE)?.read();
        if inode.ino() == ino { Ok(inode) } else { Err(Errno::STALE) }
    }

    #[inline]
    pub(super) fn write(&self, ino: u64) -> Result<RwLockWriteGuard<'_, Inode>, Errno> {
        let inode = self.slot(ino).ok_or(Errno::STALE)?.write();
        if inode.ino() == ino { Ok(inode) } else { Err(Errno::STALE) }
    }

    pub(super) fn alloc(&self) -> Result<RwLockWriteGuard<'_, Inode>, Errno> {
        let index = self.table.alloc_slot().ok_or(Errno::NOSPC)?;
        let mut slot = self.slot(u64::from(index)).expect("a allocated slot exists").write();
        let uses = slot.uses_of_vacant();
        slot.set_number(u64::from(uses) << USES_SHIFT | u64::from(index));
        Ok(slot)
    }

    /// Returns the slot of the root directory, locked for writing. Called once.
    pub(super) fn alloc_root(&self) -> RwLockWriteGuard<'_, Inode> {
        let mut slot = self.slot(ROOT_INO).expect("the first segment exists").write();
        slot.set_number(ROOT_INO);
        slot
    }

    pub(super) fn remove(&self, mut slot: RwLockWriteGuard<'_, Inode>) -> Inode {
        let number = slot.ino();
        let (index, uses) = (number as u32, (number >> USES_SHIFT) as u32);
        let next = uses.saturating_add(1);
        let inode = std::mem::replace(&mut *slot, Inode::vacant(next));
        drop(slot);
        if uses < u32::MAX {
            let segment = self.table.segment(index).expect("the segment of an inode exists");
            // ORDERING: Relaxed. The store raises an upper bound of use counts. The locks of the
            // free lists order it before the load of this bound in `make_segment`. The bound is
            // usually high enough already, so load it first and avoid the store.
            if segment.uses.load(Ordering::Relaxed) < next {
                // ORDERING: Relaxed. As above.
                segment.uses.fetch_max(next, Ordering::Relaxed);
            }
            self.table.free_slot(index);
        }
        inode
    }

    #[inline]
    fn slot(&self, ino: u64) -> Option<&RwLock<Inode>> {
        let index = ino as u32;
        let slots = self.table.segment(index)?.slots.read(&self.section)?;
        Some(&slots[(index % SEGMENT_SLOTS) as usize])
    }
}

/// Returns the position of an inode's lock in the lock order: the number of its slot. Two inodes
/// that have used one slot have the same position.
pub(super) fn rank(ino: u64) -> u32 {
    ino as u32
}

#[cfg(all(test, not(any(corewalk_loom, corewalk_shuttle))))]
mod tests {
    use std::collections::HashSet;

    use corewalk_base::primitives::thread;

    use super::*;

    /// An inode number must never be reused, because it would lead an old handle to a new file.
    /// Trap P11 in `traps.md`.
    #[test]
    fn alloc_never_repeats_a_number() {
        let table = InodeTable::new();
        let alloc = || {
            let table = table.enter();
            let mut allocated = Vec::new();
            let mut kept = Vec::new();
            for n in 0..10_000 {
                let ino = table.alloc().unwrap().ino();
                allocated.push(ino);
                kept.push(ino);
                // Remove the newest inode in every third round, and sometimes 300 inodes together.
                // The other inodes stay.
                if n % 3 == 0 || n % 1_000 == 500 {
                    let count = if n % 3 == 0 { 1 } else { 300 };
                    for ino in kept.split_off(kept.len() - count) {
                        table.remove(table.write(ino).unwrap());
                        assert!(table.write(ino).is_err() && table.read(ino).is_err());
                    }
                }
            }
            assert!(kept.iter().all(|&ino| table.read(ino).unwrap().ino() == ino));
            allocated
        };
        let allocated: Vec<u64> = thread::scope(|scope| {
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(alloc)).collect();
            threads.into_iter().flat_map(|t| t.join().unwrap()).collect()
        });
        assert!(allocated.iter().all(|&ino| ino > ROOT_INO));
        assert_eq!(allocated.iter().collect::<HashSet<_>>().len(), 40_000);
        let again = allocated.iter().filter(|&&ino| ino >> USES_SHIFT > 0).count();
        assert!(again > 10_000, "slots are not reused: {again}");
    }

    #[test]
    fn unused_numbers_are_estale() {
        let table = InodeTable::new();
        let table = table.enter();
        let ino = table.alloc().unwrap().ino();
        let next_use = ino | 1 << USES_SHIFT;
        for none in [0, ROOT_INO, ino + 1, next_use, NO_NUMBER, u64::from(u32::MAX), 64, 1 << 20] {
            assert!(table.read(none).is_err(), "{none}");
        }
        table.remove(table.write(ino).unwrap());
        assert!(table.read(next_use).is_err(), "a vacant slot was found by its next number");
        assert_eq!(table.alloc().unwrap().ino(), next_use);
    }

    #[test]
    fn slot_with_the_highest_use_count_is_retired() {
        let table = InodeTable::new();
        let table = table.enter();
        let ino = table.alloc().unwrap().ino();
        let last = u64::from(u32::MAX) << USES_SHIFT | ino;
        table.write(ino).unwrap().set_number(last);
        table.remove(table.write(last).unwrap());
        let allocated: Vec<u64> = (0..1_000).map(|_| table.alloc().unwrap().ino()).collect();
        assert!(allocated.iter().all(|&other| rank(other) != rank(ino)));
    }

    fn make_and_remove(table: &InodeTable, count: usize) -> Vec<u64> {
        let table = table.enter();
        let numbers: Vec<u64> = (0..count).map(|_| table.alloc().unwrap().ino()).collect();
        numbers.iter().for_each(|&ino| drop(table.remove(table.write(ino).unwrap())));
        numbers
    }

    /// An inode number (a slot and its use count) must never be reused. So slots whose memory is
    /// freed and allocated again must continue their counts. Trap P11 in `traps.md`.
    #[test]
    fn numbers_are_not_used_again_when_segments_are_given_back() {
        const COUNT: usize = 50 * SEGMENT_SLOTS as usize;
        let table = InodeTable::new();
        let mut seen = HashSet::new();
        for _ in 0..5 {
            let numbers = make_and_remove(&table, COUNT);
            assert!(numbers.iter().all(|&ino| seen.insert(ino)), "a number repeats");
            let left = table.bytes() as usize / size_of::<Slots>();
            assert!(left < 10, "{left} segments are left");
            let table = table.enter();
            assert!(
                numbers.iter().all(|&ino| table.read(ino).is_err() && table.write(ino).is_err())
            );
        }
        let slots: HashSet<u32> = seen.iter().map(|&ino| rank(ino)).collect();
        assert!(slots.len() < 2 * COUNT, "slots are not reused: {} numbers", seen.len());
    }

    /// The numbers of removed inodes must stay invalid (`ESTALE`) while other threads make and
    /// remove inodes. These threads make the table free and allocate segments of 64 slots again and
    /// again.
    #[test]
    fn old_numbers_are_estale_while_segments_are_given_back() {
        const ROUNDS: usize = if cfg!(miri) { 2 } else { 60 };
        let table = InodeTable::new();
        let old = make_and_remove(&table, 20 * SEGMENT_SLOTS as usize);
        thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| (0..ROUNDS).for_each(|_| drop(make_and_remove(&table, 1_000))));
            }
            for _ in 0..ROUNDS {
                for &ino in &old {
                    let table = table.enter();
                    assert!(table.read(ino).is_err() && table.write(ino).is_err());
                }
            }
        });
    }
}
