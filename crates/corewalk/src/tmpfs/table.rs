//! The inodes of a tmpfs, by number.
//!
//! Every call names an inode by its number, so this is the one place that all threads of a tmpfs
//! pass. It is an array of slots that grows: a number tells the slot, which is reached without a
//! lock or a count, and each slot has a lock of its own. Two threads meet here only if they work on
//! one inode.
//!
//! # How it works
//! The lower half of a number is its slot, the upper half counts how often the slot was used
//! before. So a slot can be used again and a number never is: (number, generation 0) names an inode
//! for ever (trap P11). A slot whose count has come to its end is left alone. A caller compares the
//! number after it has locked a slot; a caller with an old number gets `ESTALE`.
//!
//! Slots come in segments of 64, and segments in levels that double, so that neither is ever
//! copied. A thread has a list of free slots in its shard, and takes or gives a batch at a time from
//! or to a depot (`depot`). Fresh slots are used when the depot has none. Numbers say nothing about
//! the order of creation.
//!
//! # Memory is given back
//! A segment whose slots are all in the depot is freed, except for a few. Callers reach slots in a
//! read section of `rcu` ([`Entered`]), and the memory is freed after a grace period. A caller with
//! an old number finds no segment, or a vacant slot, and gets `ESTALE`. The table keeps the highest
//! count of uses of each segment, and a segment that is made anew begins there, so no number comes
//! back.
//!
//! A section lasts as long as a call holds locks of inodes. A call may wait for such a lock, but
//! for no disk and no code of a caller. Memory that is to be freed waits meanwhile.
//!
//! # Locks
//! - A slot's: see `names` for the order of several.
//! - A shard of `free`, then `depot`: innermost. Taken with at most a file's content locked.
//!
//! # Invariants
//! - I.1: an inode is in its slot from before its first directory entry until it is forgotten
//!   without links; a number that a locked directory names is here.
//! - I.2: a slot is in one list of free slots, or on its way between two, if and only if it is
//!   vacant, may be used again, and its segment is there.
//! - I.3: `uses` of a segment is at least the count of uses of each of its vacant slots that have
//!   been used.
//!
//! # What it refuses
//! It counts no references: the caller of the back end says when an inode has gone out of use.
//!
//! Source: research on inode tables of user-space file systems (traps P1, P2, P11); Bonwick and
//! Adams, "Magazines and Vmem", USENIX 2001.

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

/// What is the number of no inode: its slot is never made.
pub(super) const NO_NUMBER: u64 = u64::MAX;

/// Slots of a segment, and of a batch of free ones.
const SEGMENT_SLOTS: u32 = 64;
/// Levels of segments: level n has 2^n, so there are enough for all slots that 32 bits can tell.
const LEVELS: usize = 27;
/// How many segments there can be. The last one that 32 bits tell is none, so that `NO_NUMBER` tells no
/// slot.
const SEGMENTS_MAX: u64 = (1 << (u32::BITS - SEGMENT_SLOTS.ilog2())) - 1;
/// Where the count of uses begins in a number.
const USES_SHIFT: u32 = 32;

type Slots = [OwnLine<RwLock<Inode>>; SEGMENT_SLOTS as usize];

/// Slots that are made, and given back, together.
///
/// - `slots`: changed by the thread that has all of them, out of the depot or fresh.
#[derive(Default)]
struct Segment {
    slots: RcuOption<Slots>,
    /// How many inodes have used a slot of this segment, at most: I.3.
    uses: AtomicU32,
}

/// The inodes of a tmpfs, by number.
///
/// - `levels`: written once each.
/// - `free`, `depot`: protected by their own locks.
///
/// # Invariants
/// I.1, I.2, I.3.
pub(super) struct InodeTable {
    levels: [OnceLock<Box<[Segment]>>; LEVELS],
    free: Box<[OwnLine<Mutex<Vec<u32>>>]>,
    depot: CachePadded<Mutex<Depot>>,
    /// The number of segments that were ever taken.
    segments: CachePadded<AtomicU64>,
}

/// A table whose slots can be reached: none of them is freed meanwhile.
pub(super) struct Entered<'t> {
    table: &'t InodeTable,
    section: rcu::ReadGuard,
}

impl InodeTable {
    /// Returns a table in which the slot of the root directory, which is not in a list, is vacant.
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

    /// Returns the table for a call. To be dropped before code of a caller runs.
    #[inline]
    pub(super) fn enter(&self) -> Entered<'_> {
        Entered { table: self, section: rcu::read_lock() }
    }

    /// Returns the bytes of all slots, in use or not.
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

    /// Takes a slot from a list of free ones. None if 32 bits tell no more.
    fn draw_index(&self) -> Option<u32> {
        let mut free = self.free[shard_index()].lock();
        if free.is_empty() {
            self.refill(&mut free);
        }
        free.pop()
    }

    /// Puts a slot in a list of free ones.
    fn give_back(&self, index: u32) {
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
            // From here on others may make it anew.
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

    /// Takes a segment that never was, if there can be another one, and adds its slots to `free`.
    fn take_segment(&self, free: &mut Vec<u32>) {
        // ORDERING: Relaxed. The count only hands out numbers; a segment is published by its cell.
        let nth = self.segments.fetch_add(1, Ordering::Relaxed);
        if nth < SEGMENTS_MAX {
            self.make_segment(nth as u32, free);
        }
    }

    /// Makes a segment, which no other thread makes, and adds its slots to `free`.
    fn make_segment(&self, nth: u32, free: &mut Vec<u32>) {
        let start = nth * SEGMENT_SLOTS;
        let level = (nth + 1).ilog2();
        let segments = self.levels[level as usize]
            .get_or_init(|| (0..1_u32 << level).map(|_| Segment::default()).collect());
        let segment = &segments[(nth + 1 - (1 << level)) as usize];
        // ORDERING: Relaxed. The locks of the lists of free slots order this after `remove`.
        let uses = segment.uses.load(Ordering::Relaxed);
        let slot = |_| OwnLine::new(RwLock::new(Inode::vacant(uses)));
        segment.slots.replace(Some(Box::new(std::array::from_fn(slot))));
        // Lowest on top. Number 0 is no inode, and the root directory's is nobody else's.
        let first = start.max(ROOT_INO as u32 + 1);
        free.extend((first..start + SEGMENT_SLOTS).rev());
    }
}

impl Drop for InodeTable {
    /// Drops what is in the inodes now, and not after a grace period.
    fn drop(&mut self) {
        let section = rcu::read_lock();
        let segments = self.levels.iter().filter_map(OnceLock::get).flat_map(|level| level.iter());
        for slot in segments.filter_map(|segment| segment.slots.read(&section)).flatten() {
            *slot.write() = Inode::vacant(0);
        }
    }
}

impl Entered<'_> {
    /// Returns an inode, locked for reading. `ESTALE` if there is none with this number any more.
    #[inline]
    pub(super) fn read(&self, ino: u64) -> Result<RwLockReadGuard<'_, Inode>, Errno> {
        let inode = self.slot(ino).ok_or(Errno::STALE)?.read();
        if inode.ino() == ino { Ok(inode) } else { Err(Errno::STALE) }
    }

    /// Returns an inode, locked. `ESTALE` if there is none with this number any more.
    #[inline]
    pub(super) fn write(&self, ino: u64) -> Result<RwLockWriteGuard<'_, Inode>, Errno> {
        let inode = self.slot(ino).ok_or(Errno::STALE)?.write();
        if inode.ino() == ino { Ok(inode) } else { Err(Errno::STALE) }
    }

    /// Returns a vacant slot, locked, that has a number which was never used before. Nobody else knows
    /// the number yet. `ENOSPC` if there are no slots left.
    pub(super) fn draw(&self) -> Result<RwLockWriteGuard<'_, Inode>, Errno> {
        let index = self.table.draw_index().ok_or(Errno::NOSPC)?;
        let mut slot = self.slot(u64::from(index)).expect("a drawn slot exists").write();
        let uses = slot.uses_of_vacant();
        slot.set_number(u64::from(uses) << USES_SHIFT | u64::from(index));
        Ok(slot)
    }

    /// Returns the slot of the root directory, locked, which is vacant once.
    pub(super) fn draw_root(&self) -> RwLockWriteGuard<'_, Inode> {
        let mut slot = self.slot(ROOT_INO).expect("the first segment is there").write();
        slot.set_number(ROOT_INO);
        slot
    }

    /// Makes the slot of an inode vacant, and returns what was in it.
    pub(super) fn remove(&self, mut slot: RwLockWriteGuard<'_, Inode>) -> Inode {
        let number = slot.ino();
        let (index, uses) = (number as u32, (number >> USES_SHIFT) as u32);
        let next = uses.saturating_add(1);
        let inode = std::mem::replace(&mut *slot, Inode::vacant(next));
        drop(slot);
        if uses < u32::MAX {
            let segment = self.table.segment(index).expect("the inode was in it");
            // ORDERING: Relaxed. See `make_segment`. A look first, so that most removals write nothing.
            if segment.uses.load(Ordering::Relaxed) < next {
                // ORDERING: Relaxed. As above.
                segment.uses.fetch_max(next, Ordering::Relaxed);
            }
            self.table.give_back(index);
        }
        inode
    }

    /// Returns the slot that a number tells, whatever is in it.
    #[inline]
    fn slot(&self, ino: u64) -> Option<&RwLock<Inode>> {
        let index = ino as u32;
        let slots = self.table.segment(index)?.slots.read(&self.section)?;
        Some(&slots[(index % SEGMENT_SLOTS) as usize])
    }
}

/// Returns what orders the locks of two inodes: their slots, which old numbers tell as well.
pub(super) fn rank(ino: u64) -> u32 {
    ino as u32
}

#[cfg(all(test, not(any(corewalk_loom, corewalk_shuttle))))]
mod tests {
    use std::collections::HashSet;

    use corewalk_base::primitives::thread;

    use super::*;

    /// Trap P11.
    #[test]
    fn draw_never_repeats_a_number() {
        let table = InodeTable::new();
        let draw = || {
            let table = table.enter();
            let mut drawn = Vec::new();
            let mut kept = Vec::new();
            for n in 0..10_000 {
                let ino = table.draw().unwrap().ino();
                drawn.push(ino);
                kept.push(ino);
                // Some stay, some go at once, and some go later, many together.
                if n % 3 == 0 || n % 1_000 == 500 {
                    let count = if n % 3 == 0 { 1 } else { 300 };
                    for ino in kept.split_off(kept.len() - count) {
                        table.remove(table.write(ino).unwrap());
                        assert!(table.write(ino).is_err() && table.read(ino).is_err());
                    }
                }
            }
            assert!(kept.iter().all(|&ino| table.read(ino).unwrap().ino() == ino));
            drawn
        };
        let drawn: Vec<u64> = thread::scope(|scope| {
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(draw)).collect();
            threads.into_iter().flat_map(|t| t.join().unwrap()).collect()
        });
        assert!(drawn.iter().all(|&ino| ino > ROOT_INO));
        assert_eq!(drawn.iter().collect::<HashSet<_>>().len(), 40_000);
        let again = drawn.iter().filter(|&&ino| ino >> USES_SHIFT > 0).count();
        assert!(again > 10_000, "slots are used again: {again}");
    }

    #[test]
    fn numbers_that_nobody_has_are_estale() {
        let table = InodeTable::new();
        let table = table.enter();
        let ino = table.draw().unwrap().ino();
        let next_use = ino | 1 << USES_SHIFT;
        for none in [0, ROOT_INO, ino + 1, next_use, NO_NUMBER, u64::from(u32::MAX), 64, 1 << 20] {
            assert!(table.read(none).is_err(), "{none}");
        }
        table.remove(table.write(ino).unwrap());
        assert!(table.read(next_use).is_err(), "vacant, though its next number is known");
        assert_eq!(table.draw().unwrap().ino(), next_use);
    }

    #[test]
    fn slot_whose_uses_are_counted_to_the_end_is_left_alone() {
        let table = InodeTable::new();
        let table = table.enter();
        let ino = table.draw().unwrap().ino();
        let last = u64::from(u32::MAX) << USES_SHIFT | ino;
        table.write(ino).unwrap().set_number(last);
        table.remove(table.write(last).unwrap());
        let drawn: Vec<u64> = (0..1_000).map(|_| table.draw().unwrap().ino()).collect();
        assert!(drawn.iter().all(|&other| rank(other) != rank(ino)));
    }

    /// Makes `count` inodes and removes them, and returns their numbers.
    fn make_and_remove(table: &InodeTable, count: usize) -> Vec<u64> {
        let table = table.enter();
        let numbers: Vec<u64> = (0..count).map(|_| table.draw().unwrap().ino()).collect();
        numbers.iter().for_each(|&ino| drop(table.remove(table.write(ino).unwrap())));
        numbers
    }

    /// Trap P11: a segment that is made anew knows how often its slots were used.
    #[test]
    fn numbers_are_not_used_again_when_segments_are_given_back() {
        const COUNT: usize = 50 * SEGMENT_SLOTS as usize;
        let table = InodeTable::new();
        let mut seen = HashSet::new();
        for _ in 0..5 {
            let numbers = make_and_remove(&table, COUNT);
            assert!(numbers.iter().all(|&ino| seen.insert(ino)), "a number was used again");
            let left = table.bytes() as usize / size_of::<Slots>();
            assert!(left < 10, "{left} segments are left");
            let table = table.enter();
            assert!(
                numbers.iter().all(|&ino| table.read(ino).is_err() && table.write(ino).is_err())
            );
        }
        let slots: HashSet<u32> = seen.iter().map(|&ino| rank(ino)).collect();
        assert!(slots.len() < 2 * COUNT, "slots are used again: {} numbers", seen.len());
    }

    /// Calls with old numbers, and makers, beside segments that come and go.
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
