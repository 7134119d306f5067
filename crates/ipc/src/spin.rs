//! Whether a call that has to wait looks for a moment before it sleeps.
//!
//! A sleep and a wake-up cost two system calls. They cost more where the processor has become idle
//! meanwhile: 1.4 to 28 us in all, half a round trip of the host's in the table `wakeup`. If the
//! answer comes sooner, a look costs less than a sleep. If it comes later, or another program needs
//! the processor, the look is wasted. So a thread whose look was in vain does not look again for
//! [`REST_MIN`] waits, and for twice as many after the next look in vain.
//!
//! Each thread decides for itself, because the threads of a task have roles. In the table `wakeup`
//! one thread asks a crowd of 8 to 400. Its answer comes soon, and the turn of each answering
//! thread late.
//!
//! | [`Spin`] | the thread looks |
//! |---|---|
//! | `Instant` | at the semaphore, before the call is queued; saves the queue and the lock |
//! | `Queued` | at the status of the queued call |
//! | `Arrival` | at the message queue, before the receiver is queued |
//!
//! Source: Karlin and others, "Competitive randomized algorithms for nonuniform problems", 1990,
//! for looking as long as a sleep costs.

use corewalk_base::primitives::IS_MODEL;
use std::cell::Cell;

/// Waits that sleep at once after a look in vain. The number doubles with each further one.
const REST_MIN: u32 = 64;
const REST_MAX: u32 = 1 << 16;

/// A kind of look before a sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Spin {
    Instant,
    Queued,
    Arrival,
}

thread_local! {
    /// The history of each kind of look.
    static HISTORIES: [History; 3] = const { [const { History::new() }; 3] };
}

impl Spin {
    /// Returns true if the next wait of this thread is to look before it sleeps. The threads of a
    /// model share one history, so there it is always true.
    pub(crate) fn is_worth_it(self) -> bool {
        IS_MODEL || HISTORIES.with(|histories| histories[self as usize].is_worth_it())
    }

    /// Notes whether the look was of use.
    pub(crate) fn tell(self, was_of_use: bool) {
        HISTORIES.with(|histories| histories[self as usize].tell(was_of_use));
    }
}

/// The last looks of a thread.
#[derive(Debug)]
struct History {
    /// Waits that are still to sleep at once.
    rest: Cell<u32>,
    /// How many those were the last time.
    last_rest: Cell<u32>,
}

impl History {
    const fn new() -> Self {
        Self { rest: Cell::new(0), last_rest: Cell::new(0) }
    }

    fn is_worth_it(&self) -> bool {
        let rest = self.rest.get();
        self.rest.set(rest.saturating_sub(1));
        rest == 0
    }

    fn tell(&self, was_of_use: bool) {
        let last = self.last_rest.get();
        if was_of_use {
            // One look in vain among many of use is no reason to rest for long.
            if last > REST_MIN {
                self.last_rest.set(last - last / 64);
            }
            return;
        }
        let rest = last.saturating_mul(2).clamp(REST_MIN, REST_MAX);
        self.last_rest.set(rest);
        self.rest.set(rest);
    }
}

#[cfg(all(test, not(any(corewalk_loom, corewalk_shuttle))))]
mod tests {
    use super::*;
    use corewalk_base::primitives::thread;

    /// Returns how many of `waits` waits look, if looking is of use when `of_use` says so.
    fn looks(waits: u32, mut of_use: impl FnMut(u32) -> bool) -> u32 {
        let history = History::new();
        let looks = (0..waits).filter(|wait| {
            let looks = history.is_worth_it();
            if looks {
                history.tell(of_use(*wait));
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

    #[test]
    fn look_in_vain_of_one_thread_or_kind_leaves_others_alone() {
        Spin::Queued.tell(false);
        assert!(!Spin::Queued.is_worth_it());
        assert!(Spin::Instant.is_worth_it());
        assert!(thread::spawn(|| Spin::Queued.is_worth_it()).join().unwrap());
    }
}
