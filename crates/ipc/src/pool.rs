//! Ranges of lines of one type, in sizes that are powers of two.
//!
//! A range serves objects of its own type and size for ever: it is never split, joined or given to
//! another pool. So a line of a semaphore stays a line of a semaphore, whoever still holds its
//! number, and what was written into it last (a tag, above all) is still there when it is handed
//! out again.
//!
//! Words 6 and 7 of the first line of a range belong to the pool: its size class, and the next free
//! range. Where no range of the right size is left, a larger one serves.
//!
//! # What it refuses
//!
//! It gives nothing back to the system, and a workload whose sizes change all the time may find
//! its lines in ranges of the wrong size: it gets `ENOMEM`.
//!
//! Source: Bonwick, "The Slab Allocator", 1994, for memory that keeps its type.

use corewalk_sync::Region;
use corewalk_sync::futex::Scope;

use crate::field::{get, put};
use crate::lock::lock;

/// Lines of a pool's head: its lock, and the free lists.
pub(crate) const HEAD_LINES: u32 = 4;

/// Sizes of ranges: 1 to 65,536 lines.
const CLASSES: u32 = 17;

const LOCK: usize = 0;
const NEXT_FRESH: usize = 1;
const CLASS: usize = 6;
const NEXT_FREE: usize = 7;

/// Where a pool lies in a region.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pool {
    /// The first line of the head.
    pub(crate) head: u32,
    /// The first line to hand out.
    pub(crate) first: u32,
    /// How many lines there are to hand out.
    pub(crate) lines: u32,
}

impl Pool {
    /// Returns the first line of a range of at least `lines` lines, or none if there is none.
    pub(crate) fn alloc(&self, region: &Region, lines: u32, owner: u32) -> Option<u32> {
        let wanted = class_of(lines)?;
        let _held = lock(&region.line(self.head)[LOCK], owner, Scope::Private);
        if let Some(line) = self.pop(region, wanted) {
            return Some(line);
        }
        let fresh = &region.line(self.head)[NEXT_FRESH];
        let taken = get(fresh);
        let after = taken.saturating_add(1 << wanted);
        if after <= u64::from(self.lines) {
            put(fresh, after);
            let line = self.first + u32::try_from(taken).ok()?;
            put(&region.line(line)[CLASS], u64::from(wanted));
            return Some(line);
        }
        (wanted + 1..CLASSES).find_map(|class| self.pop(region, class))
    }

    /// Gives the range back that begins at `line`. The caller has `alloc`ed it.
    pub(crate) fn free(&self, region: &Region, line: u32, owner: u32) {
        let _held = lock(&region.line(self.head)[LOCK], owner, Scope::Private);
        let class = get(&region.line(line)[CLASS]).min(u64::from(CLASSES - 1)) as u32;
        let list = self.list(region, class);
        put(&region.line(line)[NEXT_FREE], get(list));
        put(list, u64::from(line));
    }

    fn pop(&self, region: &Region, class: u32) -> Option<u32> {
        let list = self.list(region, class);
        let line = u32::try_from(get(list)).ok().filter(|line| *line != 0)?;
        put(list, get(&region.line(line)[NEXT_FREE]));
        Some(line)
    }

    fn list<'r>(
        &self,
        region: &'r Region,
        class: u32,
    ) -> &'r corewalk_sync::primitives::atomic::AtomicU64 {
        &region.line(self.head + 1 + class / 8)[class as usize % 8]
    }
}

/// Returns the smallest class whose ranges have `lines` lines, or none if there is none.
fn class_of(lines: u32) -> Option<u32> {
    let class = lines.max(1).checked_next_power_of_two()?.trailing_zeros();
    (class < CLASSES).then_some(class)
}

#[cfg(all(test, not(any(corewalk_loom, corewalk_shuttle))))]
mod tests {
    use super::*;

    fn pool(lines: u32) -> (Region, Pool) {
        let region = Region::private(1 + HEAD_LINES + lines).unwrap();
        (region, Pool { head: 1, first: 1 + HEAD_LINES, lines })
    }

    #[test]
    fn ranges_are_apart_and_come_back() {
        let (region, pool) = pool(16);
        let a = pool.alloc(&region, 3, 0).unwrap();
        let b = pool.alloc(&region, 4, 0).unwrap();
        assert!(b >= a + 4);
        pool.free(&region, a, 0);
        assert_eq!(pool.alloc(&region, 4, 0), Some(a));
        assert_eq!(pool.alloc(&region, 8, 0), Some(b + 4));
        assert_eq!(pool.alloc(&region, 1, 0), None);
    }

    #[test]
    fn larger_range_serves_and_stays_large() {
        let (region, pool) = pool(8);
        let a = pool.alloc(&region, 8, 0).unwrap();
        pool.free(&region, a, 0);
        assert_eq!(pool.alloc(&region, 1, 0), Some(a));
        pool.free(&region, a, 0);
        assert_eq!(pool.alloc(&region, 8, 0), Some(a));
    }

    #[test]
    fn range_of_too_many_lines_is_refused() {
        let (region, pool) = pool(8);
        assert_eq!(pool.alloc(&region, 9, 0), None);
        assert_eq!(pool.alloc(&region, u32::MAX, 0), None);
    }
}
