//! A counter that threads bump without sharing a cache line.
//!
//! Statistics and byte budgets are bumped on every operation and read seldom. One atomic word for
//! all threads would move its cache line from core to core at every bump (20 to 30 ns on the
//! virtual machine with two cores, and worse with more cores); here each shard has its own line,
//! and the reader pays instead by visiting all of them.
//!
//! # Guarantees
//!
//! - `sum` is exact when no thread is inside `add`, and when it happens after every `add` (a
//!   join, or a lock that both sides took).
//! - While others add, `sum` is a value that lies between the sum of what had been added before
//!   it started and what has been added when it ends, for counters that only grow. With mixed
//!   signs it may pass through values that never held; a caller that must not see a negative
//!   total clamps it.
//!
//! # What it refuses
//!
//! It is no reference count: nothing can be decided on "the sum is zero" while others add. For
//! that reason model checkers do not see it, and a counter may be a `static` in every build.
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
/// let entries = corewalk_sync::ShardedCounter::new();
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

    /// Adds `amount`, which may be negative; wraps at the ends of `i64`.
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
