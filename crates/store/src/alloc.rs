//! The allocator of blocks of the data device.
//!
//! A block has 4096 bytes. If no run of free blocks is long enough, the device grows. The store
//! does not save which blocks are free. Each mount computes them: a block is free if no extent
//! contains it.
//!
//! # How it works
//! A tree contains the runs of free blocks, ordered by their first block. The threads are divided
//! into shards. Each shard has a window: a run that it has taken from the tree.
//! - A small request takes its blocks from the window of its thread's shard. So threads that write
//!   many small files neither contend nor interleave their blocks.
//! - A large request takes its blocks from the tree.
//!
//! # Invariants
//! - A.1: a block is in exactly one of four places. They are the tree of free runs, the window of a
//!   shard, an extent of a file, and a transaction's list of freed blocks. A freed block is
//!   allocated again only after the commit that removes its old extent is durable (see `journal`).
//!
//! # Locks
//! Each window has a mutex, and the tree has one. A thread locks the mutex of a window before the
//! mutex of the tree. While a thread holds these mutexes, it takes no other lock.

use std::collections::BTreeMap;

use corewalk_base::primitives::{SHARDS, shard_index};
use corewalk_base::{Mutex, OwnLine};

/// Length of a new window in blocks (1 MiB). A window is a run of free blocks for the small
/// requests of some threads.
const WINDOW_BLOCKS: u64 = 256;
/// Requests for at least this many blocks are served from the tree of all free runs, not from a
/// window.
const LARGE_BLOCKS: u64 = 64;
/// Maximum number of free runs that one search of the tree examines. It bounds the time of a
/// search.
const EXAMINED_RUNS: usize = 8;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Run {
    pub(crate) start: u64,
    pub(crate) len: u64,
}

pub(crate) struct Allocator {
    /// Protected by its own mutex.
    windows: Box<[OwnLine<Mutex<Run>>]>,
    /// The runs of free blocks that are in no window. Protected by its own mutex, which is locked
    /// after the mutex of a window.
    tree: Mutex<Tree>,
}

#[derive(Default)]
struct Tree {
    free: BTreeMap<u64, u64>,
    count: u64,
    end: u64,
    rover: u64,
}

impl Allocator {
    /// Makes the allocator at a mount. `used` yields the allocated runs in ascending order and
    /// without overlaps. The blocks between them are free.
    pub(crate) fn new(used: impl IntoIterator<Item = Run>) -> Allocator {
        let mut tree = Tree::default();
        for run in used {
            if run.start > tree.end {
                tree.give(Run { start: tree.end, len: run.start - tree.end });
            }
            tree.end = tree.end.max(run.start + run.len);
        }
        let windows = (0..SHARDS).map(|_| OwnLine::new(Mutex::new(Run::default()))).collect();
        Allocator { windows, tree: Mutex::new(tree) }
    }

    /// Allocates a run of at most `wanted` blocks. The run of a large request begins at the block
    /// `goal`, if that block is free.
    pub(crate) fn take(&self, goal: Option<u64>, wanted: u64) -> Run {
        if wanted >= LARGE_BLOCKS {
            return self.tree.lock().take(goal, wanted);
        }
        let mut window = self.windows[shard_index()].lock();
        if window.len == 0 {
            *window = self.tree.lock().take(goal, WINDOW_BLOCKS);
        }
        let run = Run { start: window.start, len: wanted.min(window.len) };
        *window = Run { start: run.start + run.len, len: window.len - run.len };
        run
    }

    /// Makes the blocks of `run` free again. The caller ensures that no durable extent contains one
    /// of them.
    pub(crate) fn give(&self, run: Run) {
        if run.len > 0 {
            self.tree.lock().give(run);
        }
    }
}

impl Tree {
    fn take(&mut self, goal: Option<u64>, wanted: u64) -> Run {
        let at_goal = goal.and_then(|goal| {
            let (&start, &len) = self.free.range(..=goal).next_back()?;
            (goal < start + len).then_some((start, len, goal))
        });
        if let Some((start, len, goal)) = at_goal {
            return self.cut(start, len, goal, wanted);
        }
        let looked = self.free.range(self.rover..).take(EXAMINED_RUNS);
        let best =
            looked.max_by_key(|&(_, &len)| len.min(wanted)).map(|(&start, &len)| (start, len));
        match best {
            Some((start, len)) if len >= wanted || self.count > self.end / 4 => {
                self.rover = start;
                self.cut(start, len, start, wanted)
            }
            _ => {
                // Extend the device, since at most a quarter of it is free and no examined run is
                // long enough.
                self.rover = best.map_or(0, |(start, len)| start + len);
                let run = Run { start: self.end, len: wanted };
                self.end += wanted;
                run
            }
        }
    }

    fn cut(&mut self, start: u64, len: u64, from: u64, wanted: u64) -> Run {
        let run = Run { start: from, len: wanted.min(start + len - from) };
        self.free.remove(&start);
        self.count -= len;
        self.give(Run { start, len: from - start });
        self.give(Run { start: run.start + run.len, len: start + len - run.start - run.len });
        run
    }

    fn give(&mut self, run: Run) {
        if run.len == 0 {
            return;
        }
        let Run { mut start, mut len } = run;
        self.count += len;
        if let Some((&before, &before_len)) = self.free.range(..start).next_back() {
            debug_assert!(before + before_len <= start, "A.1: freed twice");
            if before + before_len == start {
                self.free.remove(&before);
                (start, len) = (before, before_len + len);
            }
        }
        if let Some(after_len) = self.free.remove(&(start + len)) {
            len += after_len;
        }
        self.free.insert(start, len);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_between_used_runs_are_free() {
        let run = |start, len| Run { start, len };
        let alloc = Allocator::new([run(2, 3), run(5, 1), run(100, 50)]);
        assert_eq!(alloc.take(None, 94), run(6, 94));
        assert_eq!(alloc.take(Some(1), 64), run(1, 1));
        assert_eq!(alloc.tree.lock().count, 1);
        assert_eq!(alloc.take(None, 64), run(150, 64));
        alloc.give(run(8, 90));
        assert_eq!(alloc.take(Some(20), 64), run(20, 64));
    }

    #[test]
    fn small_requests_follow_each_other() {
        let alloc = Allocator::new([]);
        let first = alloc.take(None, 1);
        assert_eq!(alloc.take(None, 2), Run { start: first.start + 1, len: 2 });
        assert_eq!(alloc.take(None, 63).len, 63);
        let mut taken = 66;
        while taken < WINDOW_BLOCKS {
            taken += alloc.take(None, 60).len;
        }
        assert_eq!(taken, WINDOW_BLOCKS, "a window ends where it ends");
    }

    #[test]
    fn no_block_is_given_twice() {
        let mut rng = corewalk_testkit::rng::Rng::new(corewalk_testkit::rng::Seed(7));
        let (alloc, mut held, mut owned) = (Allocator::new([]), Vec::new(), BTreeMap::new());
        for _ in 0..20_000 {
            if rng.chance(3, 5) || held.is_empty() {
                let goal = rng.chance(1, 4).then(|| rng.below(5_000));
                let run = alloc.take(goal, 1 + rng.below(200));
                assert!(run.len > 0);
                for block in run.start..run.start + run.len {
                    assert_eq!(owned.insert(block, ()), None, "block {block} twice");
                }
                held.push(run);
            } else {
                let run: Run = held.swap_remove(rng.index(held.len()));
                for block in run.start..run.start + run.len {
                    assert_eq!(owned.remove(&block), Some(()), "block {block} not owned");
                }
                alloc.give(run);
            }
        }
        let tree = alloc.tree.lock();
        assert_eq!(tree.free.values().sum::<u64>(), tree.count);
        let windows: u64 = alloc.windows.iter().map(|window| window.lock().len).sum();
        assert_eq!(tree.count + windows + owned.len() as u64, tree.end);
    }
}
