//! Sleeping on the address of an atomic word, within one process.
//!
//! The holder of a lock can be preempted for a whole time slice. A thread that spins during that
//! time uses the processor that the holder needs (trap T30 in `traps.md`). So every wait of this
//! workspace spins a bounded number of rounds and then sleeps in this module.
//!
//! A thread sleeps until another thread changes a word. As in futex(2), the queue of sleepers lives
//! outside the word, and is found by the word's address. No wake-up is lost:
//! - [`wait`] checks the word once more under the lock of the queue, before it queues its thread.
//! - A waker changes the word first and calls [`wake_all`] afterwards.
//!
//! Under a model checker the sleep is a loop that yields.
//!
//! # Rules
//!
//! - A wait may end without a wake-up. So the caller of a wait must read its word again, in a loop.
//! - A thread that wakes sleepers must change their word first.
//! - Each word has one purpose. For example, only `Lockref` wakes the words of a `Lockref`.
//!
//! # Rejected
//!
//! `parking_lot_core::park` takes the condition of a wait as a closure. This module takes a mask
//! and a value instead: a closure would run code of the caller under the lock of the queue.
//!
//! Source: futex(2); WebKit's ParkingLot; `parking_lot_core`.
#![cfg_attr(
    not(any(corewalk_loom, corewalk_shuttle)),
    expect(
        unsafe_code,
        reason = "parking_lot_core leaves it to the caller that callbacks are tame"
    )
)]

use crate::primitives::atomic::{AtomicU64, Ordering};

/// The reason why a thread sleeps on the word of a lock. It decides which sleepers [`unlock`]
/// wakes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sleeper {
    /// The sleeper takes the lock after it is woken, and wakes the other sleepers when it unlocks
    /// the lock. So an `unlock` wakes only one `Locker`.
    Locker,
    /// The sleeper waits until the lock is free, but neither takes nor unlocks it. So an `unlock`
    /// wakes every `Passer`.
    Passer,
}

/// Sleeps while `word & mask == value`, until another thread wakes this thread. The call may also
/// return early.
pub fn wait(word: &AtomicU64, mask: u64, value: u64) {
    wait_as(word, mask, value, Sleeper::Passer);
}

/// Wakes every thread that sleeps on `word`. The caller must have changed the word before.
pub fn wake_all(word: &AtomicU64) {
    imp::wake_all(word);
}

/// Sleeps on the state word of a lock, as [`wait`] does. `sleeper` says whether this thread will
/// take the lock when it wakes.
pub fn wait_as(word: &AtomicU64, mask: u64, value: u64, sleeper: Sleeper) {
    imp::wait(word, mask, value, sleeper);
}

/// Clears the bit `locked` of `word`. Wakes one [`Sleeper::Locker`], and every [`Sleeper::Passer`].
///
/// `unlock` also clears the bit `waiters`, unless another `Locker` still sleeps on `word`. If
/// `waiters` stays set, the next holder of the lock must call `unlock`, too, so that it wakes the
/// next `Locker`.
pub fn unlock(word: &AtomicU64, locked: u64, waiters: u64) {
    imp::unlock(word, locked, waiters);
}

/// Returns true if the condition of a wait holds, so that the thread must sleep.
fn must_wait(word: &AtomicU64, mask: u64, value: u64) -> bool {
    // ORDERING: Relaxed. The load only decides whether to sleep. The caller reads `word` again.
    word.load(Ordering::Relaxed) & mask == value
}

#[cfg(not(any(corewalk_loom, corewalk_shuttle)))]
mod imp {
    use super::{AtomicU64, Ordering, Sleeper, must_wait};
    use parking_lot_core::{DEFAULT_UNPARK_TOKEN, FilterOp, ParkToken};

    const LOCKER: ParkToken = ParkToken(1);
    const PASSER: ParkToken = ParkToken(2);

    fn key(word: &AtomicU64) -> usize {
        std::ptr::from_ref(word).addr()
    }

    pub(super) fn wait(word: &AtomicU64, mask: u64, value: u64, sleeper: Sleeper) {
        let token = match sleeper {
            Sleeper::Locker => LOCKER,
            Sleeper::Passer => PASSER,
        };
        // SAFETY: the closures neither panic nor call into parking_lot: the first reads one word,
        // and the others do nothing. The key of the queue is the address of a word that the caller
        // borrows. So no other user of parking_lot uses this key.
        unsafe {
            parking_lot_core::park(
                key(word),
                || must_wait(word, mask, value),
                || {},
                |_, _| {},
                token,
                None,
            );
        }
    }

    pub(super) fn wake_all(word: &AtomicU64) {
        // SAFETY: the key of the queue is the address of a word that the caller borrows.
        // `unpark_all` takes no callback that could panic.
        unsafe {
            parking_lot_core::unpark_all(key(word), DEFAULT_UNPARK_TOKEN);
        }
    }

    pub(super) fn unlock(word: &AtomicU64, locked: u64, waiters: u64) {
        let mut has_locker = false;
        let pick = |token| {
            if token == LOCKER && std::mem::replace(&mut has_locker, true) {
                return FilterOp::Skip;
            }
            FilterOp::Unpark
        };
        // SAFETY: the closures neither panic nor call into parking_lot. `pick` compares tokens, and
        // the other closure makes one atomic operation. The key is the address of a word that the
        // caller borrows.
        unsafe {
            parking_lot_core::unpark_filter(key(word), pick, |result| {
                let clear = if result.have_more_threads { locked } else { locked | waiters };
                // ORDERING(lockref-unlock): Release. The next thread that takes the lock must see
                // this holder's writes. parking_lot runs this closure under the mutex of the word's
                // wait queue, under which a thread also checks the word before it sleeps. So a
                // thread is in the queue before this store, or sees the cleared bits and does not
                // sleep.
                word.fetch_and(!clear, Ordering::Release);
                DEFAULT_UNPARK_TOKEN
            });
        }
    }
}

#[cfg(any(corewalk_loom, corewalk_shuttle))]
mod imp {
    use super::{AtomicU64, Ordering, Sleeper, must_wait};
    use crate::primitives::thread;

    pub(super) fn wait(word: &AtomicU64, mask: u64, value: u64, _sleeper: Sleeper) {
        while must_wait(word, mask, value) {
            thread::yield_now();
        }
    }

    pub(super) fn wake_all(_word: &AtomicU64) {}

    pub(super) fn unlock(word: &AtomicU64, locked: u64, waiters: u64) {
        // ORDERING(lockref-unlock): Release. The next holder of the lock sees the writes of this
        // holder. In a model, sleepers poll `word`, so they need no wake-up.
        word.fetch_and(!(locked | waiters), Ordering::Release);
    }
}

#[cfg(all(test, not(any(corewalk_loom, corewalk_shuttle))))]
mod tests {
    use super::*;
    use crate::primitives::{Arc, thread};

    #[test]
    fn wait_on_a_word_that_differs_returns() {
        let word = AtomicU64::new(1);
        wait(&word, u64::MAX, 0);
        wait(&word, 2, 2);
    }

    #[test]
    fn wait_after_a_change_and_wake_all_ends_everywhere() {
        let word = Arc::new(AtomicU64::new(0));
        let sleepers: Vec<_> = (0..3)
            .map(|_| {
                let word = Arc::clone(&word);
                // ORDERING(park-test): Acquire. Pairs with the main thread's store of 1.
                thread::spawn(move || {
                    while word.load(Ordering::Acquire) == 0 {
                        wait(&word, u64::MAX, 0);
                    }
                })
            })
            .collect();
        // ORDERING(park-test): Release. The store publishes the waker's work to the sleepers.
        word.store(1, Ordering::Release);
        wake_all(&word);
        for sleeper in sleepers {
            sleeper.join().unwrap();
        }
    }

    #[test]
    fn wake_all_after_each_change_passes_a_token_on() {
        const ROUNDS: u64 = if cfg!(miri) { 10 } else { 2_000 };
        let word = Arc::new(AtomicU64::new(0));
        let turns = |word: &AtomicU64, mine: u64| {
            for _ in 0..ROUNDS {
                // ORDERING(park-turn): Acquire. The other thread ends its turn by a `fetch_add`
                // with Release. Without this order, the next turn could miss the stores of the turn
                // before.
                while word.load(Ordering::Acquire) % 2 != mine {
                    wait(word, 1, 1 - mine);
                }
                // ORDERING(park-turn): Release. The other thread loads `word` with Acquire before
                // its turn. Without this order, it could miss the stores of this turn.
                word.fetch_add(1, Ordering::Release);
                wake_all(word);
            }
        };
        let other = thread::spawn({
            let word = Arc::clone(&word);
            move || turns(&word, 1)
        });
        turns(&word, 0);
        other.join().unwrap();
        // ORDERING: Relaxed. The threads were joined, so this load sees all their additions.
        assert_eq!(word.load(Ordering::Relaxed), 2 * ROUNDS);
    }
}
