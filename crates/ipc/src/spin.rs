//! Decides whether a call that has to wait polls for a moment before it sleeps.
//!
//! A sleep and a wake-up cost two system calls, and more if the processor has become idle
//! meanwhile. In all they cost 1.4 to 28 us (table `wakeup` of `corewalk-lab`). If the awaited
//! event comes sooner than that, polling costs less than sleeping. If the event comes later, or
//! another program needs the processor, the polling is wasted.
//!
//! A thread that has polled in vain does not poll in its next [`REST_MIN`] waits. Each further
//! futile poll doubles this number.
//!
//! A poll is useful if the awaited event comes during the poll. Each thread keeps its own history
//! of useful and futile polls, because the threads of a program differ.
//!
//! | [`Spin`] | the thread polls |
//! |---|---|
//! | `Instant` | at the semaphore, before the call is queued; saves the queue and the lock |
//! | `Queued` | at the status of the queued call |
//! | `Arrival` | at the message queue, before the receiver is queued |
//!
//! Source: Karlin and others, "Competitive randomized algorithms for nonuniform problems", 1990:
//! poll for as long as a sleep costs.

use corewalk_base::primitives::IS_MODEL;
use std::cell::Cell;

/// The number of waits of a thread without a poll after its first futile poll.
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
    /// Two numbers for each kind of poll. The first one is how many of the next waits must sleep
    /// without a poll. The second one is how many waits the last futile poll has suppressed.
    static HISTORIES: Cell<[(u32, u32); 3]> = const { Cell::new([(0, 0); 3]) };
}

impl Spin {
    /// Returns true if a call that has to wait should poll first. In a loom model the result is
    /// always true.
    pub(crate) fn is_worth_it(self) -> bool {
        let mut histories = HISTORIES.get();
        let (rest, _) = &mut histories[self as usize];
        let is_worth_it = *rest == 0;
        *rest = rest.saturating_sub(1);
        HISTORIES.set(histories);
        IS_MODEL || is_worth_it
    }

    /// Notes whether the poll was useful.
    pub(crate) fn tell(self, was_of_use: bool) {
        let mut histories = HISTORIES.get();
        let (rest, last_rest) = &mut histories[self as usize];
        if !was_of_use {
            *last_rest = last_rest.saturating_mul(2).clamp(REST_MIN, REST_MAX);
            *rest = *last_rest;
        } else if *last_rest > REST_MIN {
            // This poll was useful, so the next futile poll suppresses fewer polls. The step is
            // small, because one futile poll among many useful ones must not stop the polling for
            // long.
            *last_rest -= *last_rest / 64;
        }
        HISTORIES.set(histories);
    }
}

#[cfg(all(test, not(any(corewalk_loom, corewalk_shuttle))))]
mod tests {
    use super::*;
    use corewalk_base::primitives::thread;

    /// Returns how many polls a new thread makes before `waits` waits. `of_use` says whether a poll
    /// before a wait is useful.
    fn looks(waits: u32, of_use: fn(u32) -> bool) -> u32 {
        let looks = move |wait: &u32| {
            let looks = Spin::Queued.is_worth_it();
            if looks {
                Spin::Queued.tell(of_use(*wait));
            }
            looks
        };
        thread::spawn(move || (0..waits).filter(looks).count()).join().unwrap() as u32
    }

    #[test]
    fn looking_that_is_always_of_use_goes_on() {
        assert_eq!(looks(10_000, |_| true), 10_000);
    }

    #[test]
    fn looking_in_vain_is_given_up_for_longer_and_longer() {
        // After the first futile poll, 64 waits sleep without a poll. Each later futile poll
        // doubles this number, up to 65,536.
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
