//! What may still be taken of bytes or inodes.
//!
//! A budget counts what is taken and, with a limit, refuses more. With a limit the count is one
//! word that every taker writes, because only an exact count can refuse exactly; without one it is
//! spread over cache lines, so that an unlimited file system pays nothing for its statistics.
//!
//! # Invariants
//! - B.1: with a limit, what is taken never exceeds it.
//! - B.2: what was taken is given back once, by whoever drops the thing it was taken for.
//!
//! # What it refuses
//! There is no waiting for others to give back: `ENOSPC` at once, as the kernel's tmpfs has it.
//! No locks.
//!
//! Source: Linux `mm/shmem.c` (`shmem_inode_acct_blocks`).

use corewalk_sync::ShardedCounter;
use corewalk_sync::primitives::atomic::{AtomicU64, Ordering};

use crate::Errno;

/// A count of what is taken, with or without a limit.
pub(super) enum Budget {
    /// At most `limit`.
    Limited { limit: u64, used: AtomicU64 },
    /// As much as there is memory.
    Unlimited { used: Box<ShardedCounter> },
}

impl Budget {
    /// Returns a budget of which nothing is taken.
    pub(super) fn new(limit: Option<u64>) -> Budget {
        match limit {
            Some(limit) => Budget::Limited { limit, used: AtomicU64::new(0) },
            None => Budget::Unlimited { used: Box::default() },
        }
    }

    /// Takes `amount` or nothing. `ENOSPC` if the limit does not allow it.
    pub(super) fn take(&self, amount: u64) -> Result<(), Errno> {
        match self.take_units(1, amount) {
            1 => Ok(()),
            _ => Err(Errno::NOSPC),
        }
    }

    /// Takes as many of `count` units of size `unit` as there is room for, and returns how many.
    pub(super) fn take_units(&self, count: u64, unit: u64) -> u64 {
        match self {
            Budget::Unlimited { used } => {
                used.add((count * unit) as i64);
                count
            }
            Budget::Limited { limit, used } => {
                let mut granted = 0;
                // ORDERING: Relaxed, both. The word is the whole of the shared state.
                let _ = used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |used| {
                    granted = match unit {
                        0 => count,
                        _ => count.min((limit - used) / unit),
                    };
                    Some(used + granted * unit)
                });
                granted
            }
        }
    }

    /// Gives back `amount` that was taken.
    pub(super) fn give_back(&self, amount: u64) {
        match self {
            Budget::Unlimited { used } => used.add(-(amount as i64)),
            Budget::Limited { used, .. } => {
                // ORDERING: Relaxed. The word is the whole of the shared state.
                let before = used.fetch_sub(amount, Ordering::Relaxed);
                debug_assert!(before >= amount, "B.2: more given back than taken");
            }
        }
    }

    /// Takes `after` for what `before` was taken for. `ENOSPC` if the limit does not allow the
    /// difference; then nothing has changed.
    pub(super) fn exchange(&self, before: u64, after: u64) -> Result<(), Errno> {
        if before >= after {
            if before > after {
                self.give_back(before - after);
            }
            return Ok(());
        }
        self.take(after - before)
    }

    /// Returns what is taken.
    pub(super) fn used(&self) -> u64 {
        match self {
            // The shards are read one by one, so a sum taken amid changes may even be negative.
            Budget::Unlimited { used } => used.sum().max(0) as u64,
            // ORDERING: Relaxed. A statistic.
            Budget::Limited { used, .. } => used.load(Ordering::Relaxed),
        }
    }

    /// Returns the limit.
    pub(super) fn limit(&self) -> Option<u64> {
        match self {
            Budget::Unlimited { .. } => None,
            Budget::Limited { limit, .. } => Some(*limit),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn take_beyond_the_limit_takes_what_fits() {
        let budget = Budget::new(Some(10));
        assert_eq!(budget.take_units(2, 4), 2);
        assert_eq!(budget.take_units(1, 4), 0);
        assert_eq!(budget.take(3), Err(Errno::NOSPC));
        assert_eq!(budget.take(2), Ok(()));
        assert_eq!((budget.used(), budget.take(0)), (10, Ok(())));
        budget.give_back(6);
        assert_eq!(budget.take_units(5, 4), 1);
        assert_eq!(budget.used(), 8);
    }

    #[test]
    fn unlimited_budget_counts() {
        let budget = Budget::new(None);
        assert_eq!(budget.take_units(1 << 20, 4096), 1 << 20);
        budget.give_back(4096);
        assert_eq!((budget.used(), budget.limit()), ((1 << 32) - 4096, None));
    }
}
