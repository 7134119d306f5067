//! Joining adjacent free ranges into larger ones, and cutting large ranges.
//!
//! Messages of one size may fill the pool of messages, and messages of another size may follow. If
//! the pool did not join ranges of cache lines, these would keep their first sizes for ever. The
//! same holds for semaphore sets and undo records. So an allocation that finds no range joins free
//! ranges, under the pool's lock.
//!
//! # One store at a time
//!
//! To join a run of adjacent free ranges, the pool splits the run into new ranges, which are as
//! large as possible. It writes the headers of the new ranges one by one, the last range first:
//! - A new header overwrites an old one, or lies where no walk over the headers looks yet.
//! - Where the new range ends, the next new header is already written.
//!
//! After each store of a new header, the headers of the pool are valid. If the thread dies in
//! between, only some of the ranges are joined.
//!
//! # Walks without the lock
//!
//! A walk over the headers of a pool's ranges (runs of cache lines) takes no lock. Another thread
//! may meanwhile join the range that the walk has reached to the previous range, and allocate the
//! result. Then the walk may mistake text of a message for the next header. Two checks prevent
//! harm:
//! - The count `JOINS` changes after a join, before the joined ranges are used. If it has changed
//!   by the end of a walk, [`Pool::collect_used`] repeats the walk.
//! - [`Pool::free_seen`] frees a range that a walk has found only after a check under the lock.
//!
//! # Cost
//!
//! Each time a pool joins free ranges, it walks over all its ranges twice. In a full pool of
//! messages, each msgsnd(2) would do that. So this pool joins ranges only after 1/256 of its cache
//! lines were freed since the last join.
//!
//! The other pools that join ranges do so after any line was freed. There, a slow semget(2) is
//! better than one that fails although enough lines are free.
//!
//! Source: Knuth, The Art of Computer Programming 1, 2.5, for the joining of free ranges; Linux
//! `include/linux/seqlock.h` for the count `JOINS`.

use corewalk_base::Region;
use corewalk_base::primitives::atomic::{Ordering, fence};

use super::{CLASSES, GIVEN, HEADER, JOINS, Joins, NEXT_FRESH, Pool};
use crate::field::{get, put};
use crate::lock::Owner;
use crate::shared::Shared;

const GIVEN_SHARE: u32 = 256;

/// The maximum number of walks in one call: a hostile process could change `JOINS` during each
/// walk.
const WALKS_MAX: u32 = 16;

impl Pool {
    /// Joins adjacent free ranges, if enough cache lines were freed since the last join. Returns
    /// true if ranges were joined. The caller holds the pool's lock.
    #[cold]
    pub(super) fn join(&self, region: &Region) -> bool {
        let least = match self.joins {
            Joins::Never => return false,
            Joins::Keeping => 1,
            Joins::Clearing => (self.lines / GIVEN_SHARE).max(1),
        };
        let head = region.line(self.head);
        if get(&head[GIVEN]) < u64::from(least) {
            return false;
        }
        let (mut start, mut count) = (self.first, 0);
        // Lines that were never used count as free. They may be joined to the free range before
        // them. The headers of the new ranges need memory; without memory, leave these lines as
        // they are.
        let fresh = self.first + get(&head[NEXT_FRESH]).min(u64::from(self.lines)) as u32;
        let all = self.first + self.lines;
        let is_room = pieces(fresh, all).all(|(line, _)| self.ensure(region, line..line + 1));
        let end = if is_room { all } else { fresh };
        self.divide(region, fresh, end);
        for (line, header) in self.ranges(region) {
            count += 1;
            if header.is_used() {
                if count > 2 {
                    self.divide(region, start, line);
                }
                (start, count) = (line + (1 << header.class()), 0);
            }
        }
        if count > 1 {
            self.divide(region, start, end);
        }
        self.rebuild(region);
        put(&head[GIVEN], 0);
        true
    }

    /// Cuts the free range at `line`, which is in no free list, to the size class `wanted`. Puts
    /// the rest into the free lists. If no memory can be reserved for the header of the rest, the
    /// range stays larger. The caller holds the pool's lock.
    pub(super) fn cut(&self, region: &Region, line: u32, class: u32, wanted: u32) {
        if self.joins == Joins::Never {
            return;
        }
        for class in (wanted..class).rev() {
            let rest = line + (1 << class);
            if !self.ensure(region, rest..rest + 1) {
                return;
            }
            self.write_free(region, rest, class);
            // This store shortens the free range of cache lines to its first half. The header of
            // the second half was stored before, so that a walk finds it.
            self.write_free(region, line, class);
            self.push(region, rest, class);
        }
    }

    fn divide(&self, region: &Region, start: u32, end: u32) {
        let pieces: Vec<(u32, u32)> = pieces(start, end).collect();
        for (line, class) in pieces.into_iter().rev() {
            self.write_free(region, line, class);
        }
    }

    /// Writes the header of a free range. Before, `line` may have been in the middle of another
    /// range.
    fn write_free(&self, region: &Region, line: u32, class: u32) {
        let words = region.line(line);
        if self.joins == Joins::Clearing {
            // Zero the first line of the new range, since old text of a message could look like the
            // state of a new message.
            words[..HEADER].iter().for_each(|word| put(word, 0));
        }
        // ORDERING(ipc-pool): Release. As in `set_whose`.
        words[HEADER].store(u64::from(class) + 1, Ordering::Release);
    }

    /// Makes walks without the lock notice that free ranges may have been joined. The caller holds
    /// the pool's lock.
    pub(super) fn note_joins(&self, region: &Region) {
        if self.joins != Joins::Never {
            let head = region.line(self.head);
            // ORDERING(ipc-joins): Release. A walk loads the count with Acquire at its start.
            // Without this order, it could read the new count but old headers.
            head[JOINS].store(get(&head[JOINS]).wrapping_add(1), Ordering::Release);
            // After a task's death, the number of lines freed since the last join is unknown.
            // Assume that all were freed.
            put(&head[GIVEN], u64::from(self.lines));
        }
    }

    fn joins(&self, region: &Region) -> u64 {
        // ORDERING(ipc-joins): Acquire. See `note_joins`.
        region.line(self.head)[JOINS].load(Ordering::Acquire)
    }

    /// Calls `of` with the first cache line and the user of each used range. Returns the results,
    /// and the count `JOINS` at the start of the walk.
    ///
    /// If a range of cache lines is allocated or freed during the walk, the walk may miss it. The
    /// same holds for [`Pool::used`].
    pub(crate) fn collect_used<T>(
        &self,
        region: &Region,
        of: impl Fn(u32, u32) -> Option<T>,
    ) -> (u64, Vec<T>) {
        let walk = || {
            let joins = self.joins(region);
            let found = self.used(region).filter_map(|(line, whose)| of(line, whose)).collect();
            (joins, found)
        };
        let mut seen = walk();
        for _ in 1..WALKS_MAX {
            // ORDERING(ipc-joins): Acquire fence. `Message::fill` has a Release fence before it
            // writes a text. If this walk has mistaken text for a header, the load below returns a
            // new count `JOINS`.
            fence(Ordering::Acquire);
            if self.joins(region) == seen.0 {
                break;
            }
            seen = walk();
        }
        seen
    }

    /// Frees a range that an earlier [`Pool::collect_used`] has found, if a range still begins
    /// there and `is_left` returns true.
    ///
    /// If the lock cannot be taken, the range is lost.
    pub(crate) fn free_seen(
        &self,
        shared: &Shared,
        line: u32,
        joins: u64,
        owner: Owner,
        is_left: impl FnOnce() -> bool,
    ) {
        let region = &shared.region;
        let Ok(_held) = self.lock(shared, owner) else { return };
        let is_range =
            || self.joins(region) == joins || self.ranges(region).any(|(at, _)| at == line);
        if is_range() && is_left() {
            self.give_back(region, line);
        }
    }
}

fn pieces(start: u32, end: u32) -> impl Iterator<Item = (u32, u32)> {
    let piece = move |at: u32| (at < end).then(|| (at, (end - at).ilog2().min(CLASSES - 1)));
    std::iter::successors(piece(start), move |(at, class)| piece(at + (1 << class)))
}

#[cfg(all(test, not(any(corewalk_loom, corewalk_shuttle))))]
mod tests {
    use std::cell::Cell;
    use std::collections::BTreeMap;

    use corewalk_testkit::rng::{ReportSeed, Rng, Seed};
    use rustix::io::Errno;

    use super::*;
    use crate::{
        Capacity, Cred, GetFlags, IPC_PRIVATE, MsgFlags, Namespace, NamespaceOptions, Task,
    };

    const ME: Owner = Owner { index: 0, generation: 1 };

    fn pool(lines: u32) -> (Namespace, Pool) {
        let capacity = Capacity { queues: 2, msgs: lines, tasks: 4, ..Capacity::LEAST };
        let options = NamespaceOptions { capacity, ..NamespaceOptions::default() };
        let namespace = Namespace::new(options).unwrap();
        let pool = namespace.shared().layout.msgs;
        (namespace, pool)
    }

    fn fill_and_drain(task: &Task, id: crate::MsgId, size: usize) -> usize {
        let send = || task.msgsnd(id, 1, &vec![7; size], MsgFlags::NOWAIT);
        let count = (0..).take_while(|_| send() == Ok(())).count();
        assert_eq!(send(), Err(Errno::NOMEM), "the queue has enough space");
        for _ in 0..count {
            let mut text = vec![0; size];
            assert_eq!(task.msgrcv(id, &mut text, 0, MsgFlags::empty()).unwrap().size_bytes, size);
            assert!(text.iter().all(|byte| *byte == 7));
        }
        count
    }

    #[test]
    fn messages_of_each_size_find_room_after_those_of_another_have_gone() {
        let (namespace, _) = pool(256);
        let task = namespace.register(Cred::root(), 1).unwrap();
        let id = task.msgget(IPC_PRIVATE, GetFlags::empty(), 0o600).unwrap();
        for _ in 0..3 {
            // Texts of 64, 1000 and 300 bytes need ranges of 2, 32 and 8 cache lines. The task
            // keeps one range for its next message.
            let counts = [64, 1000, 300].map(|size| fill_and_drain(&task, id, size));
            assert!(counts[0] >= 127 && counts[1] >= 6 && counts[2] >= 30, "{counts:?}");
        }
    }

    fn scribble(region: &Region, line: u32, lines: u32, whose: u32) {
        for at in line + 1..line + lines {
            region.line(at).iter().for_each(|word| put(word, looks_used(whose)));
        }
    }

    fn looks_used(whose: u32) -> u64 {
        1 | super::super::USED | u64::from(whose) << super::super::WHOSE_SHIFT
    }

    #[test]
    fn ranges_never_overlap_after_joins_and_cuts() {
        const LINES: u32 = 64;
        let seed = Seed::choose();
        let _report = ReportSeed::new(seed);
        let mut rng = Rng::new(seed);
        let (namespace, pool) = pool(LINES);
        let shared = namespace.shared();
        let mut model = BTreeMap::new();
        let (mut refused, joins) = (0, pool.joins(&shared.region));
        for _ in 0..20_000 {
            if rng.chance(1, 2) {
                let wanted = 1 << rng.below(5) as u32;
                let Ok(line) = pool.alloc(shared, wanted, ME, 9) else {
                    refused += 1;
                    continue;
                };
                assert_eq!(pool.len(&shared.region, line), wanted);
                assert_eq!(get(&shared.region.line(line)[0]), 0, "the range has no user yet");
                scribble(&shared.region, line, wanted, 77);
                model.insert(line, wanted);
            } else if !model.is_empty() {
                let line = *model.keys().nth(rng.index(model.len())).unwrap();
                model.remove(&line);
                pool.free(shared, line, ME);
            }
            let used: Vec<_> = pool.used(&shared.region).collect();
            let wanted: Vec<_> = model.keys().map(|line| (*line, 9)).collect();
            assert_eq!(used, wanted);
            let ends = model.iter().map(|(line, lines)| line + lines);
            assert!(ends.zip(model.keys().skip(1)).all(|(end, next)| end <= *next));
        }
        let joined = pool.joins(&shared.region).wrapping_sub(joins);
        assert!(refused > 100 && joined > 100, "{refused} refused, {joined} joined");
        for line in model.into_keys() {
            pool.free(shared, line, ME);
        }
        let all = pool.alloc(shared, LINES, ME, 9).unwrap();
        assert_eq!((all, pool.len(&shared.region, all)), (pool.first, LINES));
    }

    #[test]
    fn full_pool_is_not_walked_by_each_call() {
        let (namespace, pool) = pool(1024);
        let shared = namespace.shared();
        while pool.alloc(shared, 1, ME, 0).is_ok() {}
        // Free every second line, so that no two free lines are adjacent.
        for line in (pool.first..pool.first + 1024).step_by(2) {
            pool.free(shared, line, ME);
        }
        let before = pool.joins(&shared.region);
        for _ in 0..100 {
            assert_eq!(pool.alloc(shared, 2, ME, 0), Err(Errno::NOMEM));
        }
        assert_eq!(pool.joins(&shared.region), before + 1);
    }

    /// Joins ranges while a test walks over them. Frees all but the first, allocates a joined
    /// range, and fills it with words that look like headers.
    ///
    /// Returns a cache line that is now inside the joined range.
    fn join_beside(shared: &Shared, pool: &Pool, ranges: &[u32]) -> u32 {
        for line in &ranges[1..] {
            pool.free(shared, *line, ME);
        }
        let line = pool.alloc(shared, 8, ME, 6).unwrap();
        assert_eq!(line, ranges[1], "the ranges were joined");
        scribble(&shared.region, line, 8, 77);
        ranges[2]
    }

    fn eight_ranges(shared: &Shared, pool: &Pool) -> Vec<u32> {
        (0..8).map(|_| pool.alloc(shared, 2, ME, 5).unwrap()).collect()
    }

    #[test]
    fn walk_beside_a_join_sees_no_range_in_the_middle_of_a_text() {
        let (namespace, pool) = pool(16);
        let shared = namespace.shared();
        let ranges = eight_ranges(shared, &pool);
        let is_first = Cell::new(true);
        let (_, seen) = pool.collect_used(&shared.region, |line, whose| {
            if is_first.replace(false) {
                join_beside(shared, &pool, &ranges);
            }
            Some((line, whose))
        });
        assert_eq!(seen, [(ranges[0], 5), (ranges[1], 6)]);
    }

    #[test]
    fn control_walk_that_is_not_made_again_sees_such_a_range() {
        let (namespace, pool) = pool(16);
        let shared = namespace.shared();
        let ranges = eight_ranges(shared, &pool);
        let mut used = pool.used(&shared.region);
        assert_eq!(used.next(), Some((ranges[0], 5)));
        let middle = join_beside(shared, &pool, &ranges);
        assert!(used.any(|seen| seen == (middle, 77)));
    }

    #[test]
    fn range_that_was_seen_and_then_joined_is_not_given_back() {
        let (namespace, pool) = pool(16);
        let shared = namespace.shared();
        let ranges = eight_ranges(shared, &pool);
        let (joins, _) = pool.collect_used(&shared.region, |line, _| Some(line));
        let middle = join_beside(shared, &pool, &ranges);
        assert_eq!(
            pool.whose(&shared.region, middle),
            Some(77),
            "the text looks like a used range"
        );
        pool.free_seen(shared, middle, joins, ME, || true);
        assert_eq!(pool.whose(&shared.region, middle), Some(77), "the text is unchanged");
        for is_left in [false, true] {
            pool.free_seen(shared, ranges[1], joins, ME, || is_left);
            assert_eq!(pool.whose(&shared.region, ranges[1]).is_none(), is_left);
        }
    }
}
