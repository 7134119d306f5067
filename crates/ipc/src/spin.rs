//! Whether a call that has to wait polls for a moment before it sleeps.
//!
//! A sleep and a wake-up cost two system calls. They cost more if the processor has become idle
//! meanwhile: 1.4 to 28 us in all (table `wakeup` of `corewalk-lab`). If the awaited event comes
//! sooner than that, polling costs less than sleeping. If it comes later, or another program needs
//! the processor, the polling is wasted. So a thread that has polled in vain does not poll in its
//! next [`REST_MIN`] waits. The number doubles each time the thread polls in vain again.
//!
//! Each thread decides for itself, because the threads of a task have different roles. In the table
//! `wakeup`, one thread asks 8 to 400 others in turn. Its answers come soon, but each answering
//! thread waits long for its next turn.
//!
//! | [`Spin`] | the thread polls |
//! |---|---|
//! | `Instant` | at the semaphore, before the call is queued; saves the queue and the lock |
//! | `Queued` | at the status of the queued call |
//! | `Arrival` | at the message queue, before the receiver is queued |
//!
//! Source: Karlin and others, "Competitive randomized algorithms for nonuniform problems", 1990,
//! for polling as long as a sleep costs.

use corewalk_base::primitives::IS_MODEL;
use std::cell::Cell;

/// After a poll in vain, this many waits sleep at once. After a further poll in vain, the number
/// doubles.
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
    /// The last looks of each kind: the number of waits that are still to sleep at once, and how
    /// many those were the last time.
    static HISTORIES: Cell<[(u32, u32); 3]> = const { Cell::new([(0, 0); 3]) };
}

impl Spin {
    /// Returns true if the next wait of this thread should poll before it sleeps. The threads of a
    /// model share one history, so in a model the result is always true.
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
            // A single poll in vain among many useful ones must not stop the polling for long.
            *last_rest -= *last_rest / 64;
        }
        HISTORIES.set(histories);
    }
}

#[cfg(all(test, not(any(corewalk_loom, corewalk_shuttle))))]
mod tests {
    use super::*;
    use corewalk_base::primitives::thread;

    /// Returns how many of `waits` waits of a new thread poll. `of_use` tells whether the poll of a
    /// given wait is useful.
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
        // After each poll in vain the pause doubles: 64, 128, ... up to 65,536 waits without a
        // poll. From then on, one wait in 65,536 polls.
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
