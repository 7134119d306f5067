//! A robust lock in one word of a namespace's memory: the lock stays usable if its holder dies.
//!
//! The owner is the task that holds the lock. One compare-exchange writes the whole word of the
//! lock, so a held lock always names its owner:
//! - The low half contains the owner's task number plus one, and a bit for threads that sleep by
//!   futex(2) on this half.
//! - The high half is the owner's generation, which tells the owner from a later task with the same
//!   number.
//!
//! | low half | meaning |
//! |---|---|
//! | 0 | free |
//! | owner | held |
//! | owner, `SLEEPERS` | held, and threads may sleep |
//! | [`NOBODY`] | free, but the protected data must be repaired first |
//!
//! # Dead holders
//!
//! A thread that waits for a lock sleeps for [`BEAT_NS`], and then checks whether the lock's owner
//! is still alive ([`Shared::is_over`]). It checks again after ever longer sleeps.
//!
//! If the owner of a lock is dead, or its process now runs another program, the waiting thread
//! takes the lock. That thread then calls the caller's `recover`, which repairs the protected data.
//! If the thread dies during the repair, the next thread repairs them. In a private namespace an
//! owner cannot die alone, so these checks are omitted.
//!
//! A stopped or hostile process may be alive and yet never release its lock. In a shared namespace,
//! a call therefore fails with `EIO` after one of two time limits:
//! - [`WAIT_MAX_NS`] for one owner. This limit starts anew with each owner and each unlock.
//! - [`Wait::Long`] for all owners together, or [`Wait::Short`] for work that a later call can do.
//!
//! # Lock order
//!
//! The crate's documentation defines the lock order. No code from outside this crate runs under a
//! lock of this module, except a [`crate::SecurityHook`] under the lock of an object kind.
//!
//! Source: Drepper, "Futexes Are Tricky", 2011, mutex 2; pthread_mutexattr_setrobust(3).

use corewalk_base::futex::{self, Deadline, Ended, Scope};
use corewalk_base::primitives::IS_MODEL;
use corewalk_base::primitives::atomic::{AtomicU64, Ordering};
use corewalk_base::primitives::hint;
use rustix::io::Errno;

use crate::field::{high, low, pair, refuse_if};
use crate::shared::Shared;

pub(crate) const SLEEPERS: u64 = 1 << 31;

/// The owner number in the word of a lock whose last owner could not repair the protected data. The
/// next thread that takes the lock repairs them.
const NOBODY: u64 = SLEEPERS - 1;

/// The number of attempts to take the lock before the thread sleeps. These attempts take about as
/// long as a typical critical section.
const SPIN_ROUNDS: u32 = if IS_MODEL { 1 } else { 100 };

/// The length of a thread's first sleep, in nanoseconds. After it, the thread checks whether the
/// owner of the lock is alive.
pub(crate) const BEAT_NS: u64 = if cfg!(corewalk_crash) { 100_000 } else { 2_000_000 };

/// The maximum length of a sleep. Each sleep is twice as long as the previous one. Otherwise,
/// hundreds of waiting threads could wake so often that a preempted owner gets no processor.
const BEAT_MAX_NS: u64 = 16 * BEAT_NS;

/// The time for which a call waits for one live holder of a lock: 10 s, and 3 s in tests.
pub(crate) const WAIT_MAX_NS: u64 = if cfg!(test) { 3_000_000_000 } else { 10_000_000_000 };

#[repr(u64)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    /// A call waits at most [`WAIT_MAX_NS`] for one owner of the lock, and 120 s for all owners
    /// together.
    Long = 120_000_000_000,
    /// A call waits at most 1 s for all owners of the lock together. Used for work that a later
    /// call can do instead, such as the end of a removal.
    Short = 1_000_000_000,
}

/// A task as the owner of a lock. The generation tells the task from earlier tasks with the same
/// number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Owner {
    pub(crate) index: u32,
    pub(crate) generation: u32,
}

#[must_use = "the lock is free when the guard is dropped"]
pub(crate) struct Held<'s> {
    word: &'s AtomicU64,
    scope: Scope,
}

/// Takes the lock `word` for `owner`. The thread sleeps at most for `wait`. If the last holder has
/// died, `recover` repairs the protected data.
#[inline]
pub(crate) fn lock<'s>(
    shared: &'s Shared,
    word: &'s AtomicU64,
    owner: Owner,
    wait: Wait,
    recover: impl FnOnce() -> Result<(), Errno>,
) -> Result<Held<'s>, Errno> {
    let mine = pair(owner.index + 1, owner.generation);
    // ORDERING(ipc-lock): Acquire. The last holder unlocks with Release when it drops its `Held`.
    // Without this order, this thread could miss stores of the last holder.
    let free = word.compare_exchange(0, mine, Ordering::Acquire, Ordering::Relaxed);
    let was_left = free.is_err() && lock_slow(shared, word, mine, wait)?;
    let held = Held { word, scope: shared.scope };
    if was_left && let Err(errno) = recover() {
        held.give_up();
        return Err(errno);
    }
    Ok(held)
}

/// Returns true if the last holder has died, so that the protected data need repair.
#[cold]
fn lock_slow(shared: &Shared, word: &AtomicU64, mine: u64, wait: Wait) -> Result<bool, Errno> {
    let _waits = shared.contention.begin();
    for _ in 0..SPIN_ROUNDS {
        // ORDERING(ipc-lock): Acquire. As in `lock`.
        if word.compare_exchange(0, mine, Ordering::Acquire, Ordering::Relaxed).is_ok() {
            return Ok(false);
        }
        hint::spin_loop();
    }
    let mut patience = Patience::new(shared, wait);
    loop {
        // ORDERING: Relaxed. Only a guess, which the exchange below checks.
        let seen = word.load(Ordering::Relaxed);
        // A thread that has slept takes the lock with the bit `SLEEPERS` set. Its unlock then wakes
        // the threads that may still sleep at this lock.
        let next = if seen == 0 { mine | SLEEPERS } else { seen | SLEEPERS };
        // ORDERING(ipc-lock): Acquire. As in `lock`.
        if word.compare_exchange(seen, next, Ordering::Acquire, Ordering::Relaxed).is_err() {
            continue;
        }
        if seen == 0 {
            return Ok(false);
        }
        if !patience.sleep(word, next)? || !is_left(shared, next) {
            continue;
        }
        // The holder has died, so try to take its place. If another task has taken the lock by now,
        // the word has changed, and this exchange fails.
        // ORDERING(ipc-lock): Acquire. The repair of the data must see the stores of the dead
        // holder.
        let taken =
            word.compare_exchange(next, mine | SLEEPERS, Ordering::Acquire, Ordering::Relaxed);
        if taken.is_ok() {
            return Ok(true);
        }
    }
}

/// Returns true if the owner in the lock word `seen` is gone: it has died, or its process now runs
/// another program.
pub(crate) fn is_left(shared: &Shared, seen: u64) -> bool {
    let holder = low(seen) & (SLEEPERS - 1) as u32;
    seen != 0 && shared.is_over(holder.wrapping_sub(1), Some(high(seen)))
}

pub(crate) struct Patience<'s> {
    pub(crate) shared: &'s Shared,
    wait: Wait,
    /// The value of the word at the last sleep. If the word still has this value at the deadline,
    /// the call fails with `EIO`.
    seen: Option<(u64, Deadline)>,
    /// The deadline of all sleeps together.
    end: Option<Deadline>,
    /// The length of the next sleep.
    beat_ns: u64,
}

impl<'s> Patience<'s> {
    pub(crate) fn new(shared: &'s Shared, wait: Wait) -> Self {
        Self { shared, wait, seen: None, end: None, beat_ns: BEAT_NS }
    }

    /// Sleeps while `word` has the value `seen`. In a shared namespace, the sleep also ends after a
    /// while. The function then returns true, and the caller must check whether the lock's owner is
    /// alive.
    pub(crate) fn sleep(&mut self, word: &AtomicU64, seen: u64) -> Result<bool, Errno> {
        if self.shared.scope == Scope::Private {
            futex::wait(word, low(seen), Deadline::NEVER, Scope::Private);
            return Ok(false);
        }
        let beat_ns = self.beat_ns;
        self.beat_ns = (2 * beat_ns).min(BEAT_MAX_NS);
        self.nap(word, seen, beat_ns)
    }

    /// Returns true if the sleep timed out.
    ///
    /// # Errors
    ///
    /// In a shared namespace, `EIO` if `word` keeps the value `seen` for too long, or if all sleeps
    /// of this `Patience` together take too long.
    pub(crate) fn nap(&mut self, word: &AtomicU64, seen: u64, nap_ns: u64) -> Result<bool, Errno> {
        let now = futex::now();
        let within = |ns| Deadline { monotonic_ns: now.monotonic_ns + ns };
        let end = *self.end.get_or_insert(within(self.wait as u64));
        let (_, of_seen) = *match &mut self.seen {
            Some(last) if last.0 == seen => last,
            // The lock has a new owner, so the time limit for one owner starts anew.
            other => other.insert((seen, within(WAIT_MAX_NS))),
        };
        refuse_if(now >= end.min(of_seen) && self.shared.scope == Scope::Shared, Errno::IO)?;
        let ended = futex::wait(word, low(seen), within(nap_ns), self.shared.scope);
        if ended == Ended::Woken {
            self.seen = None;
        }
        Ok(ended == Ended::TimedOut)
    }
}

impl Held<'_> {
    /// Releases the lock after a failed repair. The next holder tries the repair again.
    #[cold]
    fn give_up(self) {
        // ORDERING(ipc-lock): Release. See `lock`.
        self.word.swap(NOBODY, Ordering::Release);
        futex::wake(self.word, 1, self.scope);
        std::mem::forget(self);
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
    use crate::{Capacity, Namespace, NamespaceOptions};
    use corewalk_base::primitives::{Arc, thread};
    use rustix::fs::{MemfdFlags, memfd_create};

    #[test]
    fn lock_beside_others_loses_no_step() {
        const ROUNDS: u64 = 20_000;
        let namespace = Namespace::new(NamespaceOptions::default()).unwrap();
        let words = Arc::new((AtomicU64::new(0), AtomicU64::new(0)));
        let threads: Vec<_> = (0..3)
            .map(|index| {
                let (words, namespace) = (Arc::clone(&words), namespace.clone());
                thread::spawn(move || {
                    let owner = Owner { index, generation: 7 };
                    for _ in 0..ROUNDS {
                        let _held =
                            lock(namespace.shared(), &words.0, owner, Wait::Long, || Ok(()))
                                .expect("private");
                        crate::field::put(&words.1, crate::field::get(&words.1) + 1);
                    }
                })
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!(crate::field::get(&words.1), 3 * ROUNDS);
        assert_eq!(crate::field::get(&words.0), 0);
    }

    fn shared_namespace() -> Namespace {
        let capacity = Capacity { tasks: 4, ..Capacity::LEAST };
        let file = memfd_create("lock", MemfdFlags::CLOEXEC).unwrap();
        Namespace::open_fd(&file, NamespaceOptions { capacity, ..Default::default() }).unwrap()
    }

    /// A call that waits while two other tasks take turns with the lock must not fail after
    /// [`WAIT_MAX_NS`], the time limit for one owner.
    #[test]
    fn holders_that_take_turns_do_not_exhaust_the_wait() {
        let namespace = shared_namespace();
        let shared = namespace.shared();
        let word = AtomicU64::new(0);
        let held = |turn: u64| pair(1 + (turn % 2) as u32, 1);
        let mut patience = Patience::new(shared, Wait::Long);
        let end = futex::now().monotonic_ns + WAIT_MAX_NS + WAIT_MAX_NS / 2;
        let mut turn = 0;
        while futex::now().monotonic_ns < end {
            turn += 1;
            crate::field::put(&word, held(turn));
            let slept = patience.sleep(&word, held(turn));
            assert!(slept.is_ok(), "turn {turn}");
        }
    }

    #[test]
    fn control_one_holder_that_does_not_let_go_exhausts_the_wait() {
        let namespace = shared_namespace();
        let word = AtomicU64::new(pair(1, 1));
        let mut patience = Patience::new(namespace.shared(), Wait::Long);
        let start = futex::now().monotonic_ns;
        while patience.sleep(&word, pair(1, 1)).is_ok() {}
        assert!(futex::now().monotonic_ns - start >= WAIT_MAX_NS);
    }
}
