//! Allocation of ids for attribute blocks.
//!
//! Each attribute block has an id. The ids of freed blocks are reused before new ids are handed
//! out. The threads are divided into shards, and each shard has its own list of free ids. So
//! threads do not contend.
//!
//! A thread whose shard has an empty list takes over the list of another shard. This is needed
//! because the thread that runs deferred de-duplication only frees ids. Otherwise its list would
//! grow without bound.
//!
//! # Invariants
//! - U.1: an id was never used, or is in exactly one list of free ids, or belongs to one block. The
//!   only exception is an id that a thread has just taken for a new block.
//! - U.2: no new id is handed out while a list has a free id. But a thread may miss the free ids of
//!   a list that another thread is changing.
//!
//! # Locks
//! The list of free ids of each shard has a mutex. A thread holds one of them at a time, and takes
//! no other lock under it.

use corewalk_base::primitives::atomic::{AtomicU64, Ordering};
use corewalk_base::primitives::{SHARDS, shard_index};
use corewalk_base::{Mutex, OwnLine};

pub(crate) struct BlockIds {
    free: Box<[OwnLine<List>]>,
    next: AtomicU64,
}

#[derive(Default)]
struct List {
    /// Protected by its own mutex.
    numbers: Mutex<Vec<u64>>,
    /// Number of ids in `numbers`. Stored under the mutex of `numbers`, but loaded without it.
    len: AtomicU64,
}

impl BlockIds {
    pub(crate) fn from(first: u64) -> BlockIds {
        let free = (0..SHARDS).map(|_| OwnLine::default()).collect();
        BlockIds { free, next: AtomicU64::new(first) }
    }

    pub(crate) fn take(&self) -> u64 {
        let own = &self.free[shard_index()];
        let free = own.change(Vec::pop).or_else(|| {
            // ORDERING: Relaxed. `len` is only a hint: `take` then locks the list and takes an id
            // only if there is one.
            let is_some = |list: &&OwnLine<List>| list.len.load(Ordering::Relaxed) > 0;
            self.free.iter().filter(is_some).find_map(|list| {
                let mut numbers = list.change(std::mem::take);
                let number = numbers.pop()?;
                own.change(|own| own.append(&mut numbers));
                Some(number)
            })
        });
        // ORDERING: Relaxed. The atomic addition alone gives different ids to two threads.
        free.unwrap_or_else(|| self.next.fetch_add(1, Ordering::Relaxed))
    }

    pub(crate) fn give(&self, number: u64) {
        self.free[shard_index()].change(|numbers| numbers.push(number));
    }
}

impl List {
    fn change<R>(&self, change: impl FnOnce(&mut Vec<u64>) -> R) -> R {
        let mut numbers = self.numbers.lock();
        let done = change(&mut numbers);
        // ORDERING: Relaxed. `len` is stored under the mutex of `numbers`. Without the mutex it is
        // only a hint.
        self.len.store(numbers.len() as u64, Ordering::Relaxed);
        done
    }
}

#[cfg(test)]
mod tests {
    use corewalk_base::primitives::thread;

    use super::*;

    /// Invariant U.2: free ids are used before new ones, even if another thread has freed them.
    #[test]
    fn numbers_that_others_have_freed_are_given_out_again() {
        const BLOCKS: u64 = 100;
        let numbers = BlockIds::from(7);
        for _ in 0..20 {
            let mut taken: Vec<u64> = (0..BLOCKS).map(|_| numbers.take()).collect();
            taken.sort_unstable();
            assert!(taken.iter().copied().eq(7..7 + BLOCKS), "{taken:?}");
            let (one, other) = taken.split_at(30);
            for part in [one, other] {
                thread::scope(|scope| {
                    scope.spawn(|| part.iter().for_each(|number| numbers.give(*number)));
                });
            }
        }
    }

    /// Invariant U.1: two threads never get the same id.
    #[test]
    fn no_number_is_given_out_twice() {
        let numbers = BlockIds::from(1);
        let held: Vec<Vec<u64>> = thread::scope(|scope| {
            let work = |_| {
                scope.spawn(|| {
                    let mut held = Vec::new();
                    for step in 0..20_000_usize {
                        match step % 5 {
                            0..3 => held.push(numbers.take()),
                            _ => numbers.give(held.swap_remove(step % held.len())),
                        }
                    }
                    held
                })
            };
            let threads: Vec<_> = (0..3).map(work).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        let mut all = held.concat();
        let count = all.len();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), count);
    }
}
