//! Whether a call that has to wait looks for a moment before it sleeps.
//!
//! A sleep and a wake cost two system calls and, where the processor was idle, its way out of that: 1.4 to
//! 28 us (half a round trip of the host's in the table `wakeup`). Where the answer comes sooner, looking for it
//! costs less. Where it does not, or where a third program wants the processor, looking only costs: so a task
//! that has looked in vain does not look again for [`REST_MIN`] waits, and for more if that happens again.
//!
//! A call looks twice: for an instant at the semaphore before it is queued, where an answer makes both the queue and
//! the set's lock unnecessary, for it and for who answers; and then, queued, at its own status.
//!
//! Source: Karlin and others, "Competitive randomized algorithms for nonuniform problems", 1990, for looking
//! as long as a sleep costs.

use corewalk_base::primitives::atomic::{AtomicU32, Ordering};

/// Waits that sleep at once after one that has looked in vain; twice as many after the next such one.
const REST_MIN: u32 = 64;
const REST_MAX: u32 = 1 << 16;

/// What a task knows of its last waits.
#[derive(Debug, Default)]
pub(crate) struct Spin {
    /// Waits that are still to sleep at once.
    rest: AtomicU32,
    /// How many those were the last time.
    last_rest: AtomicU32,
}

impl Spin {
    /// Returns true if the next wait is to look before it sleeps.
    pub(crate) fn is_worth_it(&self) -> bool {
        // ORDERING: Relaxed. A guess about the future; threads of a task may count one wait twice.
        let rest = self.rest.load(Ordering::Relaxed);
        if rest != 0 {
            // ORDERING: Relaxed. As above.
            self.rest.store(rest - 1, Ordering::Relaxed);
        }
        rest == 0
    }

    /// Takes note whether looking was of use.
    pub(crate) fn tell(&self, was_of_use: bool) {
        // ORDERING: Relaxed. As in `is_worth_it`.
        let last = self.last_rest.load(Ordering::Relaxed);
        if was_of_use {
            // One in vain among many that are not is no reason to rest for long.
            if last > REST_MIN {
                // ORDERING: Relaxed. As in `is_worth_it`.
                self.last_rest.store(last - last / 64, Ordering::Relaxed);
            }
            return;
        }
        let rest = last.saturating_mul(2).clamp(REST_MIN, REST_MAX);
        // ORDERING: Relaxed. As in `is_worth_it`.
        self.last_rest.store(rest, Ordering::Relaxed);
        // ORDERING: Relaxed. As in `is_worth_it`.
        self.rest.store(rest, Ordering::Relaxed);
    }
}

#[cfg(all(test, not(any(corewalk_loom, corewalk_shuttle))))]
mod tests {
    use super::*;

    /// Returns how many of `waits` waits look, if looking is of use when `of_use` says so.
    fn looks(waits: u32, mut of_use: impl FnMut(u32) -> bool) -> u32 {
        let spin = Spin::default();
        let looks = (0..waits).filter(|wait| {
            let looks = spin.is_worth_it();
            if looks {
                spin.tell(of_use(*wait));
            }
            looks
        });
        looks.count() as u32
    }

    #[test]
    fn looking_that_is_always_of_use_goes_on() {
        assert_eq!(looks(10_000, |_| true), 10_000);
    }

    #[test]
    fn looking_in_vain_is_given_up_for_longer_and_longer() {
        // 64 + 128 + ... + 65,536 waits, and then one look in 65,536.
        assert_eq!(looks(64 * 2047 + 11, |_| false), 11);
        assert!(looks(10_000_000, |_| false) <= 11 + 10_000_000 / REST_MAX);
    }

    #[test]
    fn looking_that_was_in_vain_for_a_while_comes_back() {
        assert!(looks(1_000_000, |wait| wait > 5000) > 980_000);
    }
}
