//! A lock that is a word of the region.
//!
//! The low half of the word is 0 when free, and otherwise the owner's task number plus one, with a
//! bit that says that somebody may sleep. The owner is written by the same step that takes the
//! lock, so that whoever meets a dead owner knows it. Sleeping is futex(2) on the low half.
//!
//! | low half | meaning |
//! |---|---|
//! | 0 | free |
//! | owner | held |
//! | owner, `SLEEPERS` | held, and somebody may sleep |
//!
//! # Lock order
//!
//! See the crate's essay. Nothing of the caller runs under one of these locks, except a
//! [`crate::SecurityHook`] under the lock of a kind.
//!
//! Source: Drepper, "Futexes Are Tricky", 2011, mutex 2.

use corewalk_sync::futex::{self, Deadline, Scope};
use corewalk_sync::primitives::IS_MODEL;
use corewalk_sync::primitives::atomic::{AtomicU64, Ordering};
use corewalk_sync::primitives::hint;

const SLEEPERS: u64 = 1 << 31;

/// Looks before a thread sleeps: about the time that a holder needs.
const SPIN_ROUNDS: u32 = if IS_MODEL { 1 } else { 100 };

/// A word of the region, held. It is free again when this is dropped, also by a panic.
#[must_use = "the lock is free when the guard is dropped"]
pub(crate) struct Held<'r> {
    word: &'r AtomicU64,
    scope: Scope,
}

/// Takes the lock `word` for the task numbered `owner`, sleeping while another holds it.
#[inline]
pub(crate) fn lock(word: &AtomicU64, owner: u32, scope: Scope) -> Held<'_> {
    let mine = u64::from(owner) + 1;
    // ORDERING(ipc-lock): Acquire. What the last holder did happens before this one.
    if word.compare_exchange(0, mine, Ordering::Acquire, Ordering::Relaxed).is_err() {
        lock_slow(word, mine, scope);
    }
    Held { word, scope }
}

#[cold]
fn lock_slow(word: &AtomicU64, mine: u64, scope: Scope) {
    for _ in 0..SPIN_ROUNDS {
        // ORDERING(ipc-lock): Acquire. As in `lock`.
        if word.compare_exchange(0, mine, Ordering::Acquire, Ordering::Relaxed).is_ok() {
            return;
        }
        hint::spin_loop();
    }
    loop {
        // ORDERING: Relaxed. A guess for the exchange below.
        let seen = word.load(Ordering::Relaxed);
        // Who has slept does not know whether others sleep: it keeps the bit for its unlock.
        let next = if seen == 0 { mine | SLEEPERS } else { seen | SLEEPERS };
        // ORDERING(ipc-lock): Acquire. As in `lock`.
        if word.compare_exchange(seen, next, Ordering::Acquire, Ordering::Relaxed).is_err() {
            continue;
        }
        if seen == 0 {
            return;
        }
        let low = (next & u64::from(u32::MAX)) as u32;
        futex::wait(word, low, Deadline::NEVER, scope);
    }
}

impl Drop for Held<'_> {
    #[inline]
    fn drop(&mut self) {
        // ORDERING(ipc-lock): Release. See `lock`.
        if self.word.swap(0, Ordering::Release) & SLEEPERS != 0 {
            futex::wake(self.word, 1, self.scope);
        }
    }
}

#[cfg(all(test, not(any(corewalk_loom, corewalk_shuttle))))]
mod tests {
    use super::*;
    use corewalk_sync::primitives::{Arc, thread};

    #[test]
    fn lock_beside_others_loses_no_step() {
        const ROUNDS: u64 = 20_000;
        let words = Arc::new((AtomicU64::new(0), AtomicU64::new(0)));
        let threads: Vec<_> = (0..3)
            .map(|owner| {
                let words = Arc::clone(&words);
                thread::spawn(move || {
                    for _ in 0..ROUNDS {
                        let _held = lock(&words.0, owner, Scope::Private);
                        // Not one atomic step: the lock has to keep the others out.
                        crate::field::put(&words.1, crate::field::get(&words.1) + 1);
                    }
                })
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!(crate::field::get(&words.1), 3 * ROUNDS);
        assert_eq!(crate::field::get(&words.0), 0);
    }
}
