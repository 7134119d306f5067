//! Numbers of blocks of attributes: which one comes next.
//!
//! Numbers that are free again are given out before new ones. Each thread has a list, so that those who make and remove
//! blocks do not meet. Whose own is empty takes over that of another one: who shares sets late removes blocks
//! and makes none, so else its list would grow for as long as the store is mounted.
//!
//! # Invariants
//! - U.1: a number is in one list, or of one block, or in the hands of one thread; or it was never given out.
//! - U.2: no number is drawn anew while a list that somebody has left alone has one.
//!
//! # Locks
//! One list at a time; leaves.

use corewalk_base::primitives::atomic::{AtomicU64, Ordering};
use corewalk_base::primitives::{SHARDS, shard_index};
use corewalk_base::{Mutex, OwnLine};

/// The numbers that blocks may have. See the module's text.
pub(crate) struct Numbers {
    free: Box<[OwnLine<List>]>,
    next: AtomicU64,
}

/// Numbers that are free, by the threads that freed them.
#[derive(Default)]
struct List {
    numbers: Mutex<Vec<u64>>,
    /// How many there are.
    len: AtomicU64,
}

impl Numbers {
    /// Returns all from `first` on.
    pub(crate) fn from(first: u64) -> Numbers {
        let free = (0..SHARDS).map(|_| OwnLine::default()).collect();
        Numbers { free, next: AtomicU64::new(first) }
    }

    /// Returns a number that no block has.
    pub(crate) fn take(&self) -> u64 {
        let own = &self.free[shard_index()];
        let free = own.change(Vec::pop).or_else(|| {
            // ORDERING: Relaxed. A hint; the lock decides.
            let is_some = |list: &&OwnLine<List>| list.len.load(Ordering::Relaxed) > 0;
            self.free.iter().filter(is_some).find_map(|list| {
                let mut numbers = list.change(std::mem::take);
                let number = numbers.pop()?;
                own.change(|own| own.append(&mut numbers));
                Some(number)
            })
        });
        // ORDERING: Relaxed. Only the numbers must differ.
        free.unwrap_or_else(|| self.next.fetch_add(1, Ordering::Relaxed))
    }

    /// Takes back the number of a block that is gone.
    pub(crate) fn give(&self, number: u64) {
        self.free[shard_index()].change(|numbers| numbers.push(number));
    }
}

impl List {
    fn change<R>(&self, change: impl FnOnce(&mut Vec<u64>) -> R) -> R {
        let mut numbers = self.numbers.lock();
        let done = change(&mut numbers);
        // ORDERING: Relaxed. It changes under the lock; who reads it without takes it for a hint.
        self.len.store(numbers.len() as u64, Ordering::Relaxed);
        done
    }
}

#[cfg(test)]
mod tests {
    use corewalk_base::primitives::thread;

    use super::*;

    /// U.2: one makes blocks, and others remove them.
    #[test]
    fn numbers_that_others_have_freed_are_given_out_again() {
        const BLOCKS: u64 = 100;
        let numbers = Numbers::from(7);
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

    /// U.1.
    #[test]
    fn no_number_is_given_out_twice() {
        let numbers = Numbers::from(1);
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
