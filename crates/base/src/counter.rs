//! A counter that threads change without sharing a cache line.
//!
//! Statistics and byte budgets change on every operation and are seldom read. One atomic word for
//! all threads would move its cache line between cores at every change. That costs 20 to 30 ns with
//! two cores, and more with more cores.
//!
//! A [`ShardedCounter`] consists of shards with a cache line each. A thread adds to one shard, and
//! `sum` reads all shards.
//!
//! # Guarantees
//!
//! - `sum` is exact if no thread is inside `add`, and every `add` happens before `sum`. This
//!   order follows from a join of the adding threads, or from a lock that all threads take.
//! - While other threads add positive amounts only, `sum` returns a value between the counter's
//!   values before and after the call.
//! - If they also add negative amounts, `sum` may return a value that the counter never had, even a
//!   negative one.
//!
//! # Limits
//!
//! The counter cannot serve as a reference count: while other threads add, a sum of zero means
//! nothing. So no protocol depends on it, and model checkers need not see its words. It uses the
//! atomics of `std` in every build, and may be a `static`.
//!
//! Analogous to Linux's `struct percpu_counter`.
//!
//! Source: McKenney, "Is Parallel Programming Hard", chapter 5 (statistical counters).

use crate::{
    own_line::OwnLine,
    primitives::{
        SHARDS, shard_index,
        unmodelled::{AtomicI64, Ordering},
    },
};

/// A signed counter with one cache line per shard.
///
/// # Examples
///
/// ```
/// let entries = corewalk_base::ShardedCounter::new();
/// entries.add(3);
/// entries.add(-1);
/// assert_eq!(entries.sum(), 2);
/// ```
#[derive(Debug)]
pub struct ShardedCounter {
    shards: [OwnLine<AtomicI64>; SHARDS],
}

impl ShardedCounter {
    /// Returns a counter at zero.
    #[must_use]
    pub const fn new() -> Self {
        Self { shards: [const { OwnLine::new(AtomicI64::new(0)) }; SHARDS] }
    }

    /// Adds `amount`, which may be negative. The counter wraps around at the limits of `i64`.
    #[inline]
    pub fn add(&self, amount: i64) {
        // ORDERING: Relaxed. Statistic; nothing is published through it.
        self.shards[shard_index()].fetch_add(amount, Ordering::Relaxed);
    }

    /// Returns the sum over all shards.
    #[must_use]
    pub fn sum(&self) -> i64 {
        // ORDERING: Relaxed. Statistic; nothing is published through it.
        let read = |shard: &OwnLine<AtomicI64>| shard.load(Ordering::Relaxed);
        self.shards.iter().map(read).fold(0, i64::wrapping_add)
    }
}

impl Default for ShardedCounter {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(all(test, not(any(corewalk_loom, corewalk_shuttle))))]
mod tests {
    use super::*;
    use crate::primitives::{Arc, thread};

    #[test]
    fn sum_after_join_is_exact() {
        let counter = Arc::new(ShardedCounter::new());
        let rounds = if cfg!(miri) { 20 } else { 10_000 };
        let threads: Vec<_> = (0..4)
            .map(|_| {
                let counter = Arc::clone(&counter);
                thread::spawn(move || {
                    for _ in 0..rounds {
                        counter.add(3);
                        counter.add(-1);
                    }
                })
            })
            .collect();
        for thread in threads {
            thread.join().unwrap();
        }
        assert_eq!(counter.sum(), 4 * 2 * rounds);
    }
}
