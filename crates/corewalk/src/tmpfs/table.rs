//! The inodes of a tmpfs, by number.
//!
//! Every call names an inode by its number, so this is the one place that all threads of a tmpfs
//! pass. It is an array of slots that grows and never moves: a number tells the slot, which is
//! reached without a lock, a count or a store, and each slot has a lock of its own. Two threads
//! meet here only if they work on one inode.
//!
//! # How it works
//! The lower half of a number is its slot, the upper half counts how often the slot was used
//! before. So a slot can be used again and a number never is: (number, generation 0) names an inode
//! for ever (trap P11). A slot whose count has come to its end is left alone. Who has locked a slot
//! compares the number; a caller with an old one gets `ESTALE`.
//!
//! Slots come in segments of 64, and segments in levels that double, so that neither is ever
//! copied. A thread has a list of free slots in its shard, and takes or gives a batch at a time from
//! or to a depot; fresh slots are used when the depot has none. Numbers say nothing about the order
//! of creation.
//!
//! # Locks
//! - A slot's: see `names` for the order of several.
//! - A shard of `free`, then `depot`: innermost. Taken with at most a file's content locked.
//!
//! # Invariants
//! - I.1: an inode is in its slot from before its first directory entry until it is forgotten
//!   without links; a number that a locked directory names is here.
//! - I.2: a slot is in one list of free slots, or on its way between two, if and only if it is
//!   vacant and may be used again.
//!
//! # What it refuses
//! It counts no references: the caller of the back end says when an inode has gone out of use. It
//! gives no memory back: the slots are as many as there were inodes at one time.
//!
//! Source: research on inode tables of user-space file systems (traps P1, P2, P11); Bonwick and
//! Adams, "Magazines and Vmem", USENIX 2001.

use std::sync::OnceLock;

use corewalk_base::primitives::atomic::{AtomicU64, Ordering};
use corewalk_base::primitives::{SHARDS, shard_index};
use corewalk_base::{CachePadded, Mutex, OwnLine, RwLock, RwLockReadGuard, RwLockWriteGuard};

use super::inode::Inode;
use crate::Errno;

/// The number of the root directory.
pub(super) const ROOT_INO: u64 = 1;

/// What is the number of no inode: its slot is never made.
pub(super) const NO_NUMBER: u64 = u64::MAX;

/// Slots of a segment, and of a batch of free ones.
const SEGMENT_SLOTS: u32 = 64;
/// Levels of segments: level n has 2^n, so there are enough for all slots that 32 bits can tell.
const LEVELS: usize = 27;
/// Where the count of uses begins in a number.
const USES_SHIFT: u32 = 32;

type Segment = OnceLock<Box<[OwnLine<RwLock<Inode>>; SEGMENT_SLOTS as usize]>>;

/// The inodes of a tmpfs, by number.
///
/// - `levels`: written once each.
/// - `free`, `depot`: protected by their own locks.
///
/// # Invariants
/// I.1, I.2.
pub(super) struct InodeTable {
    levels: [OnceLock<Box<[Segment]>>; LEVELS],
    free: Box<[OwnLine<Mutex<Vec<u32>>>]>,
    depot: CachePadded<Mutex<Vec<u32>>>,
    /// The number of segments that were ever taken.
    segments: CachePadded<AtomicU64>,
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
        let index = self.draw_index().ok_or(Errno::NOSPC)?;
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
        let uses = (number >> USES_SHIFT) as u32;
        let inode = std::mem::replace(&mut *slot, Inode::vacant(uses.saturating_add(1)));
        drop(slot);
        if uses < u32::MAX {
            self.give_back(number as u32);
        }
        inode
    }

    /// Returns the slot that a number tells, whatever is in it.
    #[inline]
    fn slot(&self, ino: u64) -> Option<&RwLock<Inode>> {
        let index = ino as u32;
        let nth = index / SEGMENT_SLOTS + 1;
        let level = nth.ilog2();
        let segments = self.levels.get(level as usize)?.get()?;
        let segment = segments.get((nth - (1 << level)) as usize)?.get()?;
        Some(&segment[(index % SEGMENT_SLOTS) as usize])
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
        if free.len() >= 2 * SEGMENT_SLOTS as usize {
            self.depot.lock().extend(free.drain(..SEGMENT_SLOTS as usize));
        }
    }

    #[cold]
    fn refill(&self, free: &mut Vec<u32>) {
        {
            let mut depot = self.depot.lock();
            let rest = depot.len().saturating_sub(SEGMENT_SLOTS as usize);
            free.extend(depot.drain(rest..));
        }
        if free.is_empty() {
            self.take_segment(free);
        }
    }

    /// Makes a segment, if there can be another one, and adds its slots to `free`.
    fn take_segment(&self, free: &mut Vec<u32>) {
        // ORDERING: Relaxed. The count only hands out numbers; a segment is published by its own
        // `OnceLock`.
        let nth = self.segments.fetch_add(1, Ordering::Relaxed);
        let end = (nth + 1) * u64::from(SEGMENT_SLOTS);
        // The last one is never made, so that `NO_NUMBER` tells no slot.
        let Ok(end) = u32::try_from(end) else { return };
        let start = end - SEGMENT_SLOTS;
        let nth = start / SEGMENT_SLOTS + 1;
        let level = nth.ilog2();
        let segments = self.levels[level as usize]
            .get_or_init(|| (0..1_u32 << level).map(|_| Segment::new()).collect());
        let slot = |_| OwnLine::new(RwLock::new(Inode::vacant(0)));
        segments[(nth - (1 << level)) as usize].get_or_init(|| Box::new(std::array::from_fn(slot)));
        // Lowest on top. Number 0 is no inode, and the root directory's is nobody else's.
        let first = start.max(ROOT_INO as u32 + 1);
        free.extend((first..end).rev());
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
        let ino = table.draw().unwrap().ino();
        let last = u64::from(u32::MAX) << USES_SHIFT | ino;
        table.write(ino).unwrap().set_number(last);
        table.remove(table.write(last).unwrap());
        let drawn: Vec<u64> = (0..1_000).map(|_| table.draw().unwrap().ino()).collect();
        assert!(drawn.iter().all(|&other| rank(other) != rank(ino)));
    }
}
