//! A count of used bytes, blocks or inodes, with or without a limit.
//!
//! A file system must not grow beyond its size, and must report how much space is left. So the
//! budget counts the units (bytes, blocks or inodes) in use.
//!
//! With a limit, the count is one atomic word, because only an exact count keeps the limit exactly.
//! Without a limit, the count is spread over several cache lines, so that threads do not contend
//! for one line.
//!
//! # Guarantees
//!
//! - U.1: the amounts granted to all threads together stay within the limit. A budget that starts
//!   above its limit grants nothing until callers have returned enough units.
//! - U.2: an amount that one thread returns is available to other threads immediately. A call
//!   refuses an amount only if the amount did not fit at some moment of that call.
//!
//! # Limits
//!
//! A budget never waits until another thread returns units. If too few units are left, the caller
//! gets `ENOSPC` immediately, as in the kernel's tmpfs. A budget has no locks, and its atomic
//! operations order no accesses to other memory.
//!
//! Analogous to the block and inode counts of Linux's `struct shmem_sb_info`.
//!
//! Source: Linux `mm/shmem.c` (`shmem_inode_acct_blocks`).

use crate::counter::ShardedCounter;
use crate::primitives::atomic::{AtomicU64, Ordering};
use rustix::io::Errno;
use std::fmt;

/// A count of used units, with or without a limit.
///
/// For each object that it makes, a caller takes units (bytes, blocks or inodes). When it removes
/// the object, it returns the same number of units, exactly once.
///
/// # Examples
///
/// ```
/// let space = corewalk_base::Budget::new(Some(10), 0);
/// assert!(space.take(8).is_ok() && space.take(3).is_err());
/// assert_eq!(space.take_up_to(3, 1), 2);
/// space.give_back(8);
/// assert_eq!((space.used(), space.limit()), (2, Some(10)));
/// ```
pub struct Budget(Kind);

enum Kind {
    /// A budget of at most `limit` units. Its atomic words order no accesses to other memory.
    Limited { limit: u64, used: AtomicU64, refusals: AtomicU64 },
    /// Any number of units.
    Unlimited { used: Box<ShardedCounter> },
}

impl Budget {
    /// Returns a budget with `used` units already taken. `limit` is None for a budget without a
    /// limit.
    #[must_use]
    pub fn new(limit: Option<u64>, used: u64) -> Budget {
        Budget(match limit {
            Some(limit) => {
                Kind::Limited { limit, used: AtomicU64::new(used), refusals: AtomicU64::new(0) }
            }
            None => {
                let counter = ShardedCounter::new();
                counter.add(used as i64);
                Kind::Unlimited { used: Box::new(counter) }
            }
        })
    }

    /// Takes `amount` units. If the limit does not allow all of them, takes none.
    ///
    /// # Errors
    ///
    /// `ENOSPC` if the budget's limit does not allow `amount` more units. Taking 0 units always
    /// succeeds.
    pub fn take(&self, amount: u64) -> Result<(), Errno> {
        if self.take_up_to(1, amount) == 1 { Ok(()) } else { Err(Errno::NOSPC) }
    }

    /// Takes up to `count` portions of `unit` units each, as many as the budget's limit allows.
    /// Returns the number of portions.
    #[must_use = "what was taken is to be given back"]
    pub fn take_up_to(&self, count: u64, unit: u64) -> u64 {
        match &self.0 {
            Kind::Unlimited { used } => {
                used.add((count * unit) as i64);
                count
            }
            Kind::Limited { limit, used, refusals } => {
                let mut granted = 0;
                // ORDERING: Relaxed, on success and on failure. `used` is a single word that
                // publishes no other memory.
                let _ = used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |used| {
                    let room = limit.saturating_sub(used);
                    granted = room.checked_div(unit).map_or(count, |units| units.min(count));
                    Some(used + granted * unit)
                });
                if granted < count {
                    // ORDERING: Relaxed. The number of refusals is a statistic. A refused thread
                    // sees at least its own increment in `refusals`.
                    refusals.fetch_add(1, Ordering::Relaxed);
                }
                granted
            }
        }
    }

    /// Returns `amount` units to the budget. The caller must have taken them before.
    pub fn give_back(&self, amount: u64) {
        match &self.0 {
            Kind::Unlimited { used } => used.add(-(amount as i64)),
            Kind::Limited { used, .. } => {
                // ORDERING: Relaxed. `used` is a single word that publishes no other memory.
                let before = used.fetch_sub(amount, Ordering::Relaxed);
                debug_assert!(before >= amount, "more was given back than taken");
            }
        }
    }

    /// Changes the number of units that the caller has taken from `before` to `after`.
    ///
    /// # Errors
    ///
    /// `ENOSPC` if the budget's limit does not allow the additional `after - before` units. The
    /// budget then still counts the amount `before`.
    ///
    /// # Examples
    ///
    /// ```
    /// let space = corewalk_base::Budget::new(Some(10), 6);
    /// assert!(space.exchange(6, 11).is_err() && space.exchange(6, 10).is_ok());
    /// assert!(space.exchange(10, 1).is_ok());
    /// assert_eq!(space.used(), 1);
    /// ```
    pub fn exchange(&self, before: u64, after: u64) -> Result<(), Errno> {
        if before >= after {
            if before > after {
                self.give_back(before - after);
            }
            return Ok(());
        }
        self.take(after - before)
    }

    /// Returns how many units (bytes, blocks or inodes) of the budget are in use. The number is
    /// exact if no other thread takes or returns units during the call.
    #[must_use]
    pub fn used(&self) -> u64 {
        match &self.0 {
            // If other threads change the counter during the call, the sum may be negative. Return
            // 0 then.
            Kind::Unlimited { used } => used.sum().max(0) as u64,
            // ORDERING: Relaxed. A statistic.
            Kind::Limited { used, .. } => used.load(Ordering::Relaxed),
        }
    }

    /// Returns the number of refusals: how many calls got fewer units of the budget than they asked
    /// for.
    ///
    /// To find out which of several budgets has refused an operation with `ENOSPC`, compare each
    /// budget's number before and after the operation. A budget with an equal number has refused
    /// nothing. If the number of a budget has grown, that budget has refused this thread or another
    /// one.
    ///
    /// # Examples
    ///
    /// ```
    /// let space = corewalk_base::Budget::new(Some(10), 6);
    /// assert!(space.take(5).is_err() && space.take_up_to(8, 1) == 4 && space.take(0).is_ok());
    /// assert_eq!(space.refusals(), 2);
    /// ```
    #[must_use]
    pub fn refusals(&self) -> u64 {
        match &self.0 {
            Kind::Unlimited { .. } => 0,
            // ORDERING: Relaxed. A statistic.
            Kind::Limited { refusals, .. } => refusals.load(Ordering::Relaxed),
        }
    }

    /// Returns the limit, if there is one.
    #[must_use]
    pub fn limit(&self) -> Option<u64> {
        match &self.0 {
            Kind::Unlimited { .. } => None,
            Kind::Limited { limit, .. } => Some(*limit),
        }
    }
}

impl fmt::Debug for Budget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Budget").field("limit", &self.limit()).field("used", &self.used()).finish()
    }
}

#[cfg(all(test, not(any(corewalk_loom, corewalk_shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn take_beyond_the_limit_takes_what_fits() {
        let budget = Budget::new(Some(10), 0);
        assert_eq!(budget.take_up_to(2, 4), 2);
        assert_eq!(budget.take_up_to(1, 4), 0);
        assert_eq!(budget.take(3), Err(Errno::NOSPC));
        assert_eq!(budget.take(2), Ok(()));
        assert_eq!((budget.used(), budget.take(0), budget.take_up_to(7, 0)), (10, Ok(()), 7));
        budget.give_back(6);
        assert_eq!((budget.take_up_to(5, 4), budget.used()), (1, 8));
        assert_eq!((budget.take_up_to(5, 1), budget.take_up_to(5, 1)), (2, 0));
    }

    #[test]
    fn budget_that_is_overdrawn_grants_nothing() {
        let budget = Budget::new(Some(10), 12);
        let asked = (budget.take(1), budget.take(0), budget.take_up_to(3, 1));
        assert_eq!(asked, (Err(Errno::NOSPC), Ok(()), 0));
        budget.give_back(3);
        assert_eq!((budget.take(1), budget.used()), (Ok(()), 10));
    }

    #[test]
    fn exchange_that_is_refused_changes_nothing() {
        let budget = Budget::new(Some(10), 4);
        assert_eq!((budget.exchange(4, 11), budget.used()), (Err(Errno::NOSPC), 4));
        assert_eq!((budget.exchange(4, 4), budget.exchange(4, 10)), (Ok(()), Ok(())));
        assert_eq!((budget.exchange(10, 3), budget.used()), (Ok(()), 3));
    }

    #[test]
    fn unlimited_budget_counts() {
        let budget = Budget::new(None, 5);
        assert_eq!(budget.take_up_to(1 << 20, 4096), 1 << 20);
        budget.give_back(4096);
        assert_eq!((budget.used(), budget.limit()), ((1 << 32) + 5 - 4096, None));
    }
}

/// Models of two threads at the limit.
#[cfg(all(test, corewalk_loom))]
mod loom_models {
    use super::*;
    use crate::primitives::{Arc, thread};
    use crate::tally::{Tally, assert_all_reached};

    fn two_at_the_limit(take: fn(&Budget) -> bool) -> [usize; 2] {
        Tally::of(move |tally| {
            let budget = Arc::new(Budget::new(Some(3), 0));
            let other = thread::spawn({
                let budget = Arc::clone(&budget);
                move || take(&budget)
            });
            let is_mine = take(&budget);
            let is_theirs = other.join().unwrap();
            assert!(is_mine != is_theirs, "U.1: both or neither were granted it");
            assert_eq!(budget.used(), 2, "U.1: the count is not what was granted");
            budget.give_back(2);
            assert!(budget.take(3).is_ok(), "U.2: what was given back is not to be had");
            tally.hit(usize::from(is_theirs));
        })
    }

    #[test]
    fn one_of_two_is_refused_at_the_limit() {
        assert_all_reached(&two_at_the_limit(|budget| budget.take(2).is_ok()));
    }

    /// Control (a variant with the bug must fail): `take` checks the limit in one step and counts
    /// in another. Then both threads may exceed the limit.
    #[test]
    #[should_panic(expected = "U.1: ")]
    fn control_take_in_two_steps_is_caught() {
        two_at_the_limit(|budget| {
            let Kind::Limited { limit, used, .. } = &budget.0 else { return false };
            // ORDERING: Relaxed. As in `take_up_to`. This variant is wrong on purpose: it changes
            // `used` by a load and a separate store.
            let now = used.load(Ordering::Relaxed);
            if limit - now < 2 {
                return false;
            }
            // ORDERING: Relaxed. As above.
            used.store(now + 2, Ordering::Relaxed);
            true
        });
    }
}
