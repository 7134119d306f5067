//! A lock and a count in one word, by the rules of Linux: who finds the lock taken takes it too.
//!
//! A thread that counts tries a compare-exchange for as long as the lock is free, at most 100 times,
//! and else takes the lock, counts and releases it. The lock is a fair one, so a thread that waits
//! shows in the word and the lock does not look free; then the next thread queues as well, and with
//! two threads that count again and again there is always one in the queue. So a lock that somebody
//! took for a moment sends everybody to the lock for as long as they keep counting.
//!
//! # Locks
//! The ticket lock in the word. A waiter spins, and yields now and then, since its turn may belong
//! to a thread that is not running.
//!
//! # What it refuses
//! Counts of 2 to the 32nd and more, and more than 65,535 waiters; a benchmark has neither.
//!
//! Source: Linux `lib/lockref.c` (the rules) and the ticket spinlock that it was written on; Guzik,
//! June 2024, on what becomes of it ("lockref: trywait").

use corewalk_base::CachePadded;
use corewalk_base::primitives::atomic::{AtomicU64, Ordering};
use corewalk_base::primitives::{hint, thread};

/// Lost compare-exchange races after which the lock is taken (`lib/lockref.c`).
const CAS_TRIES: u32 = 100;
/// Rounds that a waiter spins between two yields.
const SPIN_ROUNDS: u32 = 1_000;
/// One ticket handed out.
const TICKET: u64 = 1 << 16;
/// One reference.
const ONE: u64 = 1 << 32;
/// The mask of a ticket's number.
const NUMBER: u64 = TICKET - 1;

/// A count with a lock.
///
/// | bits | meaning |
/// |---|---|
/// | 0..16 | whose turn it is |
/// | 16..32 | the next ticket; the lock is free if it is that one's turn |
/// | 32..64 | count |
pub(super) struct LockrefOff {
    word: CachePadded<AtomicU64>,
}

impl LockrefOff {
    /// Returns an unlocked one that counts `count` references.
    pub(super) fn new(count: u32) -> LockrefOff {
        LockrefOff { word: CachePadded::new(AtomicU64::new(u64::from(count) * ONE)) }
    }

    /// Returns the count of this moment.
    pub(super) fn count(&self) -> u64 {
        // ORDERING: Relaxed. Read when nobody counts any more.
        self.word.load(Ordering::Relaxed) / ONE
    }

    /// Takes a reference.
    #[inline]
    pub(super) fn get(&self) {
        self.change(|word| word.wrapping_add(ONE));
    }

    /// Drops a reference, which is not the last one.
    #[inline]
    pub(super) fn put(&self) {
        self.change(|word| word.wrapping_sub(ONE));
    }

    /// Runs `inside` with the lock held.
    #[inline]
    pub(super) fn with_lock<R>(&self, inside: impl FnOnce() -> R) -> R {
        let ticket = self.take_ticket();
        let mut rounds = 0_u32;
        // ORDERING(ticket): Acquire. What the last owner did is before what we do.
        while self.word.load(Ordering::Acquire) & NUMBER != ticket {
            rounds += 1;
            if rounds.is_multiple_of(SPIN_ROUNDS) {
                thread::yield_now();
            }
            hint::spin_loop();
        }
        let result = inside();
        self.next_turn();
        result
    }

    #[inline]
    fn change(&self, next: impl Fn(u64) -> u64) {
        // ORDERING: Relaxed. Only the compare-exchange counts.
        let mut word = self.word.load(Ordering::Relaxed);
        for _ in 0..CAS_TRIES {
            if !is_free(word) {
                break;
            }
            // ORDERING: AcqRel. A reference orders the work of those who had it, as in a count.
            match self.word.compare_exchange(word, next(word), Ordering::AcqRel, Ordering::Relaxed)
            {
                Ok(_) => return,
                Err(seen) => word = seen,
            }
        }
        self.with_lock(|| self.replace(next));
    }

    fn take_ticket(&self) -> u64 {
        let next = |word: u64| word & !(NUMBER << 16) | word.wrapping_add(TICKET) & (NUMBER << 16);
        (self.replace(next) >> 16) & NUMBER
    }

    fn next_turn(&self) {
        self.replace(|word| word & !NUMBER | word.wrapping_add(1) & NUMBER);
    }

    /// Replaces the word and returns what it was.
    #[inline]
    fn replace(&self, next: impl Fn(u64) -> u64) -> u64 {
        // ORDERING: Relaxed. Only the compare-exchange counts.
        let mut word = self.word.load(Ordering::Relaxed);
        loop {
            // ORDERING(ticket): Release for who gets the next turn; Acquire as in `change`.
            match self.word.compare_exchange_weak(
                word,
                next(word),
                Ordering::AcqRel,
                Ordering::Relaxed,
            ) {
                Ok(before) => return before,
                Err(seen) => word = seen,
            }
        }
    }
}

/// Returns true if nobody has the lock or waits for it.
#[inline]
fn is_free(word: u64) -> bool {
    word & NUMBER == (word >> 16) & NUMBER
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn count_of_many_threads_comes_out_right_beside_a_locker() {
        let lockref = LockrefOff::new(1);
        thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    for _ in 0..20_000 {
                        lockref.get();
                        lockref.put();
                    }
                    lockref.get();
                });
            }
            for _ in 0..500 {
                let before = lockref.with_lock(|| (lockref.count(), lockref.count()));
                assert_eq!(before.0, before.1, "somebody counted under the lock");
            }
        });
        assert_eq!(lockref.count(), 3);
    }

    #[test]
    fn ticket_number_wraps_without_touching_the_count() {
        let lockref = LockrefOff::new(7);
        for _ in 0..70_000 {
            lockref.with_lock(|| ());
        }
        assert_eq!(lockref.count(), 7);
        lockref.get();
        assert_eq!(lockref.count(), 8);
    }
}
