//! What may still be taken of bytes, blocks or inodes.
//!
//! A file system promises not to grow beyond a size, and answers at any time how much is left. With a
//! limit the count is one word that every taker writes, because only an exact count can refuse exactly;
//! without one it is spread over cache lines, so that a file system without a limit pays next to nothing
//! for its statistics.
//!
//! # Guarantees
//!
//! - U.1: with a limit, no more is granted than it allows, by any number of threads. A budget that begins
//!   with more than that taken grants nothing until enough is given back.
//! - U.2: what one thread gives back another can take at once: an amount is refused only if it did not
//!   fit at some moment of the call.
//!
//! # What it refuses
//!
//! There is no waiting for others to give back: `ENOSPC` at once, as the kernel's tmpfs has it. It orders
//! nothing but itself: what was taken is handed on by other means. No locks.
//!
//! Source: Linux `mm/shmem.c` (`shmem_inode_acct_blocks`).

use crate::counter::ShardedCounter;
use crate::primitives::atomic::{AtomicU64, Ordering};
use rustix::io::Errno;
use std::fmt;

/// A count of what is taken, with or without a limit.
///
/// Whoever takes gives back the same amount once, when what it was taken for is gone.
///
/// # Examples
///
/// ```
/// let space = corewalk_sync::Budget::new(Some(10), 0);
/// assert!(space.take(8).is_ok() && space.take(3).is_err());
/// assert_eq!(space.take_up_to(3, 1), 2);
/// space.give_back(8);
/// assert_eq!((space.used(), space.limit()), (2, Some(10)));
/// ```
pub struct Budget(Kind);

enum Kind {
    /// At most `limit`.
    Limited { limit: u64, used: AtomicU64, refusals: AtomicU64 },
    /// As much as there is.
    Unlimited { used: Box<ShardedCounter> },
}

impl Budget {
    /// Returns a budget of `limit`, if there is one, of which `used` is taken.
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

    /// Takes `amount` or nothing.
    ///
    /// # Errors
    ///
    /// `ENOSPC`: the limit does not allow it. To take 0 is always allowed.
    pub fn take(&self, amount: u64) -> Result<(), Errno> {
        if self.take_up_to(1, amount) == 1 { Ok(()) } else { Err(Errno::NOSPC) }
    }

    /// Takes as many of `count` units of `unit` each as there is room for, and returns how many units.
    #[must_use = "what was taken is to be given back"]
    pub fn take_up_to(&self, count: u64, unit: u64) -> u64 {
        match &self.0 {
            Kind::Unlimited { used } => {
                used.add((count * unit) as i64);
                count
            }
            Kind::Limited { limit, used, refusals } => {
                let mut granted = 0;
                // ORDERING: Relaxed, both. The word is the whole of the shared state.
                let _ = used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |used| {
                    let room = limit.saturating_sub(used);
                    granted = room.checked_div(unit).map_or(count, |units| units.min(count));
                    Some(used + granted * unit)
                });
                if granted < count {
                    // ORDERING: Relaxed. A statistic; who was refused reads what it wrote itself.
                    refusals.fetch_add(1, Ordering::Relaxed);
                }
                granted
            }
        }
    }

    /// Gives back `amount` that was taken.
    pub fn give_back(&self, amount: u64) {
        match &self.0 {
            Kind::Unlimited { used } => used.add(-(amount as i64)),
            Kind::Limited { used, .. } => {
                // ORDERING: Relaxed. The word is the whole of the shared state.
                let before = used.fetch_sub(amount, Ordering::Relaxed);
                debug_assert!(before >= amount, "more was given back than taken");
            }
        }
    }

    /// Takes `after` for what `before` was taken for.
    ///
    /// # Errors
    ///
    /// `ENOSPC`: the limit does not allow the difference; then nothing has changed.
    ///
    /// # Examples
    ///
    /// ```
    /// let space = corewalk_sync::Budget::new(Some(10), 6);
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

    /// Returns what is taken; exact while nobody takes or gives back.
    #[must_use]
    pub fn used(&self) -> u64 {
        match &self.0 {
            // The shards are read one by one, so a sum taken amid changes may even be negative.
            Kind::Unlimited { used } => used.sum().max(0) as u64,
            // ORDERING: Relaxed. A statistic.
            Kind::Limited { used, .. } => used.load(Ordering::Relaxed),
        }
    }

    /// Returns how often less was granted than was asked for: so who gets `ENOSPC` from something that takes
    /// can tell whether it is for want of this. Others may have been refused meanwhile.
    ///
    /// # Examples
    ///
    /// ```
    /// let space = corewalk_sync::Budget::new(Some(10), 6);
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

    /// Returns the limit.
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

/// Models of a limit that two threads meet at.
#[cfg(all(test, corewalk_loom))]
mod loom_models {
    use super::*;
    use crate::primitives::{Arc, thread};
    use crate::tally::{Tally, assert_all_reached};

    /// Two threads take 2 with `take` where there is room for 3; returns how often the spawned one was
    /// (refused, granted it).
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

    /// The look and the count are two steps.
    #[test]
    #[should_panic(expected = "U.1: ")]
    fn control_take_in_two_steps_is_caught() {
        two_at_the_limit(|budget| {
            let Kind::Limited { limit, used, .. } = &budget.0 else { return false };
            // ORDERING: Relaxed. As in `take_up_to`; it is the second step that is wrong.
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
