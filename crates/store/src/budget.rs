//! What may still be taken of blocks or inodes.
//!
//! With a limit the count is one word that every taker writes, because only an exact count can refuse
//! exactly; without one it is spread over cache lines.
//!
//! # Invariants
//! - B.1: with a limit, no more is granted than it allows. A store that is mounted with a smaller limit
//!   than it has taken grants nothing until enough is given back.
//! - B.2: what was taken is given back once.
//!
//! Source: Linux `mm/shmem.c` (`shmem_inode_acct_blocks`).

use corewalk::Errno;
use corewalk_sync::ShardedCounter;
use corewalk_sync::primitives::atomic::{AtomicU64, Ordering};

/// A count of what is taken, with or without a limit.
pub(crate) enum Budget {
    /// At most `limit`.
    Limited { limit: u64, used: AtomicU64 },
    /// As much as the host has.
    Unlimited { used: Box<ShardedCounter> },
}

impl Budget {
    /// Returns a budget of which `used` is taken.
    pub(crate) fn new(limit: Option<u64>, used: u64) -> Budget {
        match limit {
            Some(limit) => Budget::Limited { limit, used: AtomicU64::new(used) },
            None => {
                let counter = ShardedCounter::new();
                counter.add(used as i64);
                Budget::Unlimited { used: Box::new(counter) }
            }
        }
    }

    /// Takes `amount` or nothing. `ENOSPC` if the limit does not allow it.
    pub(crate) fn take(&self, amount: u64) -> Result<(), Errno> {
        match self.take_up_to(amount, amount) {
            taken if taken == amount => Ok(()),
            _ => Err(Errno::NOSPC),
        }
    }

    /// Takes as much of `amount` as there is room for, but nothing if that is less than `least`, and
    /// returns how much.
    pub(crate) fn take_up_to(&self, amount: u64, least: u64) -> u64 {
        match self {
            Budget::Unlimited { used } => {
                used.add(amount as i64);
                amount
            }
            Budget::Limited { limit, used } => {
                let mut granted = 0;
                // ORDERING: Relaxed, both. The word is the whole of the shared state.
                let _ = used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |used| {
                    let room = amount.min(limit.saturating_sub(used));
                    granted = if room < least { 0 } else { room };
                    Some(used + granted)
                });
                granted
            }
        }
    }

    /// Gives back `amount` that was taken.
    pub(crate) fn give_back(&self, amount: u64) {
        match self {
            Budget::Unlimited { used } => used.add(-(amount as i64)),
            Budget::Limited { used, .. } => {
                // ORDERING: Relaxed. The word is the whole of the shared state.
                let before = used.fetch_sub(amount, Ordering::Relaxed);
                debug_assert!(before >= amount, "B.2: more given back than taken");
            }
        }
    }

    /// Returns what is taken.
    pub(crate) fn used(&self) -> u64 {
        match self {
            // The shards are read one by one, so a sum taken amid changes may even be negative.
            Budget::Unlimited { used } => used.sum().max(0) as u64,
            // ORDERING: Relaxed. A statistic.
            Budget::Limited { used, .. } => used.load(Ordering::Relaxed),
        }
    }

    /// Returns the limit.
    pub(crate) fn limit(&self) -> Option<u64> {
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
        let budget = Budget::new(Some(10), 2);
        assert_eq!(budget.take_up_to(5, 1), 5);
        assert_eq!(budget.take(4), Err(Errno::NOSPC));
        assert_eq!(budget.take_up_to(4, 1), 3);
        assert_eq!((budget.take_up_to(1, 1), budget.take(0), budget.used()), (0, Ok(()), 10));
        budget.give_back(6);
        assert_eq!((budget.take(6), budget.used()), (Ok(()), 10));
    }

    #[test]
    fn budget_that_is_overdrawn_grants_nothing() {
        let budget = Budget::new(Some(10), 12);
        assert_eq!((budget.take(1), budget.take(0)), (Err(Errno::NOSPC), Ok(())));
        budget.give_back(3);
        assert_eq!((budget.take(1), budget.used()), (Ok(()), 10));
    }
}
