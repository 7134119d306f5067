//! A pool of cache lines of one type. The pool hands out ranges of lines. The size of a range is a
//! power of two.
//!
//! A cache line never moves to another pool, so a semaphore's line is always reused for a
//! semaphore. A thread that still has the number of a freed line may read a later object of the
//! same type. The thread notices the change by the object's tag (version number).
//!
//! A range (a run of lines that are allocated together) keeps its size. If no range of the right
//! size is free, the pool uses a larger one. Only some pools join free ranges, when none is large
//! enough (`join`).
//!
//! The pool uses words 6 and 7 of the first cache line of a range (a run of lines). They contain
//! the range's header and the link of the free list. Any line may become the first of a joined
//! range. So objects do not use words 6 and 7 in any line, except for the texts of messages.
//!
//! # The truth
//! The header of a range (a run of cache lines) contains the range's size, whether it is used, and
//! its user. The user is a task, or the slot of an object. If a task dies with the pool's lock
//! held, [`Pool::rebuild`] rebuilds the free lists by a walk over all headers. The cleanup after a
//! dead task finds its ranges by such a walk, too ([`Pool::used`]).
//!
//! | bits of a header | field |
//! |---|---|
//! | 0-7 | class plus one, or 0 for lines that were never used |
//! | 8 | used |
//! | 32-63 | user |
//!
//! # Memory
//! On a full file system the first access to a page of the mapped file can end in `SIGBUS`. So
//! before the pool uses its cache lines, it reserves memory for them, [`CHUNK`] lines at a time.
//! The pool also reserves one more line, which a walk over the ranges reads.
//!
//! # Limits
//! A pool returns no memory to the system. The pools of wait nodes and of attach records do not
//! join ranges (runs of cache lines). There, an allocation fails with `ENOMEM` if every single free
//! range is too small.
//!
//! Source: Bonwick, "The Slab Allocator", 1994, for type-stable memory.

use corewalk_base::Region;
use corewalk_base::primitives::atomic::{AtomicU64, Ordering};
use rustix::io::Errno;
use std::ops::Range;

use crate::field::{get, put};
use crate::lock::{Held, Owner, Wait, lock};
use crate::shared::Shared;

/// The pool's lock and its free lists.
pub(crate) const HEAD_LINES: u32 = 4;

/// Sizes of ranges: 1 to 65,536 lines.
const CLASSES: u32 = 17;

const LOCK: usize = 0;
const NEXT_FRESH: usize = 1;
/// The number of cache lines freed since the pool last joined free ranges.
const GIVEN: usize = 2;
/// How often ranges were joined.
const JOINS: usize = 3;
/// The number of lines for which the pool has reserved memory.
const RESERVED: usize = 4;
const HEADER: usize = 6;
const NEXT_FREE: usize = 7;

/// Memory is reserved in steps of 64 KiB.
const CHUNK: u64 = 1024;

const CLASS_MASK: u64 = 0xff;
const USED: u64 = 1 << 8;
const WHOSE_SHIFT: u32 = 32;

/// The lines of a pool in a region, and the rule by which it joins free ranges.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pool {
    /// The first line of the pool's head: its lock and its free lists.
    pub(crate) head: u32,
    /// The first line to hand out.
    pub(crate) first: u32,
    /// The number of lines that ranges can use.
    pub(crate) lines: u32,
    pub(crate) joins: Joins,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Joins {
    /// Ranges keep their sizes.
    Never,
    /// Free ranges are joined, and the joined lines are not zeroed. A semaphore's line must keep
    /// the tag (version number) of its last set, since the next set needs a newer tag. Freed lines
    /// of undo records are already zero.
    Keeping,
    /// Free ranges are joined if 1/256 of the pool's lines were freed since the last join. The
    /// first line of each new range is zeroed, since it may contain old text of a message.
    Clearing,
}

impl Pool {
    pub(crate) fn alloc(
        &self,
        shared: &Shared,
        lines: u32,
        owner: Owner,
        whose: u32,
    ) -> Result<u32, Errno> {
        let wanted = class_of(lines).ok_or(Errno::NOMEM)?;
        let _held = self.lock(shared, owner)?;
        let region = &shared.region;
        let take = || self.take(region, wanted, whose);
        let line = take().or_else(|| self.join(region).then(take)?).ok_or(Errno::NOMEM)?;
        self.set_whose(region, line, whose);
        Ok(line)
    }

    /// Frees the range at `line`. If the pool's lock cannot be taken, the range is lost.
    pub(crate) fn free(&self, shared: &Shared, line: u32, owner: Owner) {
        let region = &shared.region;
        if let Ok(_held) = self.lock(shared, owner) {
            self.give_back(region, line);
        }
    }

    /// Like [`Pool::free`]. The caller holds the lock.
    fn give_back(&self, region: &Region, line: u32) {
        let Some(header) = self.header(region, line).filter(|header| header.is_used()) else {
            return;
        };
        // ORDERING(ipc-pool): Release. `header` loads this word with Acquire. Without this order,
        // the next user of these cache lines could miss stores of the last user.
        region.line(line)[HEADER].store(header.0 & (CLASS_MASK), Ordering::Release);
        self.push(region, line, header.class());
        let given = &region.line(self.head)[GIVEN];
        put(given, get(given).saturating_add(1 << header.class()));
    }

    /// Sets the user of the used range at `line`.
    pub(crate) fn set_whose(&self, region: &Region, line: u32, whose: u32) {
        let header = &region.line(line)[HEADER];
        let next = get(header) & CLASS_MASK | USED | u64::from(whose) << WHOSE_SHIFT;
        // ORDERING(ipc-pool): Release. `header` loads this word with Acquire. Without this order, a
        // walk could read this header but miss earlier stores to its range.
        header.store(next, Ordering::Release);
    }

    /// Returns the user of the range at `line`, or none if the range is free.
    pub(crate) fn whose(&self, region: &Region, line: u32) -> Option<u32> {
        self.header(region, line).filter(|header| header.is_used()).map(Header::whose)
    }

    /// Returns the number of lines of the range at `line`.
    pub(crate) fn len(&self, region: &Region, line: u32) -> u32 {
        self.header(region, line).map_or(1, |header| 1 << header.class())
    }

    /// Returns the first line and the user of each used range. In a pool that joins free ranges,
    /// use [`Pool::collect_used`] instead.
    pub(crate) fn used<'r>(
        &self,
        region: &'r Region,
    ) -> impl Iterator<Item = (u32, u32)> + use<'r> {
        let used = self.ranges(region).filter(|(_, header)| header.is_used());
        used.map(|(line, header)| (line, header.whose()))
    }

    /// Rebuilds the free lists from the headers of the ranges. The caller holds the pool's lock.
    pub(crate) fn rebuild(&self, region: &Region) {
        (0..CLASSES).for_each(|class| put(self.list(region, class), 0));
        let mut end = self.first;
        for (line, header) in self.ranges(region) {
            if !header.is_used() {
                self.push(region, line, header.class());
            }
            end = line + (1 << header.class());
        }
        put(&region.line(self.head)[NEXT_FRESH], u64::from(end - self.first));
        self.note_joins(region);
    }

    /// Takes the pool's lock. If the last holder of the lock has died, first rebuilds the free
    /// lists.
    pub(crate) fn lock<'s>(&self, shared: &'s Shared, owner: Owner) -> Result<Held<'s>, Errno> {
        lock(shared, &shared.region.line(self.head)[LOCK], owner, Wait::Long, || {
            self.rebuild(&shared.region);
            Ok(())
        })
    }

    /// Returns the first line and the header of each range. Without the pool's lock, a range that
    /// is just being made may be missing.
    fn ranges<'r>(&self, region: &'r Region) -> impl Iterator<Item = (u32, Header)> + use<'r> {
        let pool = *self;
        let at = move |line| Some((line, pool.header(region, line)?));
        let next = move |(line, header): &(u32, Header)| at(line + (1 << header.class()));
        std::iter::successors(at(pool.first), next)
    }

    /// Returns the header of a range, or none if the line was never the first of a range.
    fn header(&self, region: &Region, line: u32) -> Option<Header> {
        let at = line.checked_sub(self.first).filter(|at| *at < self.lines)?;
        // ORDERING(ipc-pool): Acquire. `give_back` frees a range with Release. Without this order,
        // this thread could miss stores of the last user of the range.
        let header = Header(region.line(line)[HEADER].load(Ordering::Acquire));
        // Ignore a header whose size class is too large for the pool. Only a hostile process can
        // have written it.
        let is_class = (1..=u64::from(CLASSES)).contains(&(header.0 & CLASS_MASK));
        (is_class && at + (1 << header.class()) <= self.lines).then_some(header)
    }

    /// Takes a range of the size class `wanted`: a free one, or one of cache lines that were never
    /// used, or a larger free one. The caller holds the pool's lock.
    fn take(&self, region: &Region, wanted: u32, whose: u32) -> Option<u32> {
        let reused = |class| {
            let line = self.pop(region, class)?;
            if !self.ensure(region, line..line + (1 << wanted)) {
                self.push(region, line, class);
                return None;
            }
            self.cut(region, line, class, wanted);
            Some(line)
        };
        let line = reused(wanted).or_else(|| self.fresh(region, wanted, whose));
        line.or_else(|| (wanted + 1..CLASSES).find_map(reused))
    }

    fn fresh(&self, region: &Region, class: u32, whose: u32) -> Option<u32> {
        let fresh = &region.line(self.head)[NEXT_FRESH];
        let taken = get(fresh);
        let after = taken.checked_add(1 << class).filter(|end| *end <= u64::from(self.lines))?;
        let line = self.first + u32::try_from(taken).ok()?;
        self.reserve(region, after + 1)?;
        // Store the header first, and then `NEXT_FRESH`, the end of the used lines. If this task
        // dies in between, `rebuild` finds the header, and computes the new end from it.
        let header = (u64::from(class) + 1) | USED | u64::from(whose) << WHOSE_SHIFT;
        // ORDERING(ipc-pool): Release. As in `set_whose`.
        region.line(line)[HEADER].store(header, Ordering::Release);
        put(fresh, after);
        Some(line)
    }

    /// Reserves memory for the first `count` lines of the pool. Returns none if no memory is left.
    /// The caller holds the pool's lock.
    fn reserve(&self, region: &Region, count: u64) -> Option<()> {
        let word = &region.line(self.head)[RESERVED];
        let (all, done) = (u64::from(self.lines), get(word));
        let count = count.min(all);
        if count <= done {
            return Some(());
        }
        let is_reserved = |end: &u64| {
            let lines = self.first + done as u32..self.first + *end as u32;
            region.reserve(lines).is_ok()
        };
        // If the file system is too full for a whole step of [`CHUNK`] lines, reserve only the
        // `count` lines that the caller needs.
        let end = [count.next_multiple_of(CHUNK).min(all), count].into_iter().find(is_reserved)?;
        put(word, end);
        Some(())
    }

    /// Reserves memory for `lines` if they have none yet. Returns false if no memory is left. The
    /// caller holds the pool's lock.
    fn ensure(&self, region: &Region, lines: Range<u32>) -> bool {
        let done = get(&region.line(self.head)[RESERVED]);
        u64::from(lines.end - self.first) <= done || region.reserve(lines).is_ok()
    }

    fn pop(&self, region: &Region, class: u32) -> Option<u32> {
        let list = self.list(region, class);
        let line = u32::try_from(get(list)).ok().filter(|line| *line != 0)?;
        let header = self.header(region, line);
        if header.is_none_or(|header| header.is_used() || header.class() != class) {
            // The pool's free list is damaged. Rebuild all free lists from the headers of the
            // ranges of cache lines.
            self.rebuild(region);
            return None;
        }
        put(list, get(&region.line(line)[NEXT_FREE]));
        Some(line)
    }

    fn push(&self, region: &Region, line: u32, class: u32) {
        let list = self.list(region, class);
        put(&region.line(line)[NEXT_FREE], get(list));
        put(list, u64::from(line));
    }

    fn list<'r>(&self, region: &'r Region, class: u32) -> &'r AtomicU64 {
        &region.line(self.head + 1 + class / 8)[class as usize % 8]
    }
}

#[cfg(all(test, corewalk_crash))]
mod audit;
#[cfg(all(test, corewalk_crash))]
mod crash_models;
mod join;

/// A copy of a range's header.
#[derive(Clone, Copy, Debug)]
struct Header(u64);

impl Header {
    fn class(self) -> u32 {
        ((self.0 & CLASS_MASK) as u32).clamp(1, CLASSES) - 1
    }

    fn is_used(self) -> bool {
        self.0 & USED != 0
    }

    fn whose(self) -> u32 {
        (self.0 >> WHOSE_SHIFT) as u32
    }
}

fn class_of(lines: u32) -> Option<u32> {
    let class = lines.max(1).checked_next_power_of_two()?.trailing_zeros();
    (class < CLASSES).then_some(class)
}

#[cfg(all(test, not(any(corewalk_loom, corewalk_shuttle))))]
mod tests {
    use super::*;
    use crate::{Capacity, Namespace, NamespaceOptions};

    const ME: Owner = Owner { index: 0, generation: 1 };

    fn pool(lines: u32) -> (Namespace, Pool) {
        let capacity = Capacity { sets: 1, sems: 1, undos: 1, waits: lines, ..Capacity::LEAST };
        let options = NamespaceOptions { capacity, ..NamespaceOptions::default() };
        let namespace = Namespace::new(options).unwrap();
        let pool = namespace.shared().layout.waits;
        (namespace, pool)
    }

    #[test]
    fn ranges_are_apart_and_come_back() {
        let (namespace, pool) = pool(16);
        let shared = namespace.shared();
        let a = pool.alloc(shared, 3, ME, 0).unwrap();
        let b = pool.alloc(shared, 4, ME, 0).unwrap();
        assert!(b >= a + 4);
        pool.free(shared, a, ME);
        assert_eq!(pool.alloc(shared, 4, ME, 0), Ok(a));
        assert_eq!(pool.alloc(shared, 8, ME, 0), Ok(b + 4));
        assert_eq!(pool.alloc(shared, 1, ME, 0), Err(Errno::NOMEM));
    }

    #[test]
    fn larger_range_serves_and_stays_large() {
        let (namespace, pool) = pool(8);
        let shared = namespace.shared();
        let a = pool.alloc(shared, 8, ME, 0).unwrap();
        pool.free(shared, a, ME);
        assert_eq!(pool.alloc(shared, 1, ME, 0), Ok(a));
        pool.free(shared, a, ME);
        assert_eq!(pool.alloc(shared, 8, ME, 0), Ok(a));
    }

    #[test]
    fn range_of_too_many_lines_is_refused() {
        let (namespace, pool) = pool(8);
        assert_eq!(pool.alloc(namespace.shared(), 9, ME, 0), Err(Errno::NOMEM));
        assert_eq!(pool.alloc(namespace.shared(), u32::MAX, ME, 0), Err(Errno::NOMEM));
    }

    #[test]
    fn lists_that_are_made_anew_hold_what_the_headers_say() {
        let (namespace, pool) = pool(16);
        let shared = namespace.shared();
        let [a, b, c] = [1, 2, 4].map(|lines| pool.alloc(shared, lines, ME, lines).unwrap());
        pool.free(shared, b, ME);
        pool.free(shared, b, ME);
        // Damage the pool: each free list begins with the range `a`, which is in use, and all lines
        // count as never used.
        (0..CLASSES).for_each(|class| put(pool.list(&shared.region, class), u64::from(a)));
        put(&shared.region.line(pool.head)[NEXT_FRESH], 0);
        pool.rebuild(&shared.region);
        assert_eq!(pool.used(&shared.region).collect::<Vec<_>>(), [(a, 1), (c, 4)]);
        assert_eq!(pool.alloc(shared, 2, ME, 0), Ok(b));
        assert_eq!(pool.alloc(shared, 2, ME, 0), Ok(c + 4));
    }
}
