//! A lock that is a word of the region, and that survives its holder.
//!
//! The low half of the word is 0 when free, and otherwise the owner's task number plus one, with a
//! bit that says that somebody may sleep. The high half is the owner's generation, so that a task
//! which has the number of one that died is not taken for it. All of it is written by the step that
//! takes the lock, so that whoever meets a dead owner knows it. Sleeping is futex(2) on the low half.
//!
//! | low half | meaning |
//! |---|---|
//! | 0 | free |
//! | owner | held |
//! | owner, `SLEEPERS` | held, and somebody may sleep |
//! | [`NOBODY`] | what the lock protects waits to be put in order |
//!
//! # A holder that has died
//!
//! Who has slept for [`BEAT_NS`], and then after ever longer sleeps, asks whether the owner is still there
//! ([`Shared::is_over`]). If it is not, or its process has another program by now, the lock changes hands, and the
//! new holder first puts in order what the lock protects: the caller says how. Who dies at that leaves the same to
//! the next. Within one process nobody dies alone, and nothing of this runs.
//!
//! A holder that is there and does not let go (a stopped process, or one that means harm) is waited
//! for [`WAIT_MAX_NS`], and then the call fails with `EIO`. That is counted anew with each holder, and whenever the
//! lock was let go of: those who take turns hold up nobody. All of them together are waited for [`WAIT_ALL_NS`].
//!
//! # Lock order
//!
//! See the crate's essay. Nothing of the caller runs under one of these locks, except a
//! [`crate::SecurityHook`] under the lock of a kind.
//!
//! Source: Drepper, "Futexes Are Tricky", 2011, mutex 2; pthread_mutexattr_setrobust(3).

use corewalk_base::futex::{self, Deadline, Ended, Scope};
use corewalk_base::primitives::IS_MODEL;
use corewalk_base::primitives::atomic::{AtomicU64, Ordering};
use corewalk_base::primitives::hint;
use rustix::io::Errno;

use crate::field::{high, low, pair};
use crate::namespace::Shared;

pub(crate) const SLEEPERS: u64 = 1 << 31;

/// The owner of a lock that was given up by who could not put in order what it protects.
const NOBODY: u64 = SLEEPERS - 1;

/// Looks before a thread sleeps: about the time that a holder needs.
const SPIN_ROUNDS: u32 = if IS_MODEL { 1 } else { 100 };

/// How long to sleep before the owner is looked at.
pub(crate) const BEAT_NS: u64 = if cfg!(corewalk_crash) { 100_000 } else { 2_000_000 };

/// How long a sleep becomes at most, each being twice as long as the one before. Where hundreds wait for one who
/// has no processor, looks in short turns are what keeps it from getting one.
const BEAT_MAX_NS: u64 = 16 * BEAT_NS;

/// How long to wait for who is there and does not let go: 10 s. Tests that look at what then follows wait less.
pub(crate) const WAIT_MAX_NS: u64 = if cfg!(test) { 3_000_000_000 } else { 10_000_000_000 };

/// How long to wait for those who take turns.
pub(crate) const WAIT_ALL_NS: u64 = 120_000_000_000;

/// How long to wait for what can also be done later.
const WAIT_SHORT_NS: u64 = 1_000_000_000;

/// How long a call waits for those who do not let go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    /// [`WAIT_MAX_NS`] for one of them, and [`WAIT_ALL_NS`] for all.
    Long,
    /// [`WAIT_SHORT_NS`] for all.
    Short,
}

/// Who takes a lock: a task, and which of those that have had its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Owner {
    pub(crate) index: u32,
    pub(crate) generation: u32,
}

/// A word of the region, held. It is free again when this is dropped, also by a panic.
#[must_use = "the lock is free when the guard is dropped"]
pub(crate) struct Held<'s> {
    word: &'s AtomicU64,
    scope: Scope,
}

/// Takes the lock `word` for `owner`, sleeping while another holds it. If the holder has died,
/// `recover` puts in order what the lock protects.
///
/// # Errors
///
/// `EIO` if the holder is there and does not let go; what `recover` returns.
#[inline]
pub(crate) fn lock<'s>(
    shared: &'s Shared,
    word: &'s AtomicU64,
    owner: Owner,
    recover: impl FnOnce() -> Result<(), Errno>,
) -> Result<Held<'s>, Errno> {
    lock_within(shared, word, owner, Wait::Long, recover)
}

/// As [`lock`], with less patience perhaps.
///
/// # Errors
///
/// Those of [`lock`].
#[inline]
pub(crate) fn lock_within<'s>(
    shared: &'s Shared,
    word: &'s AtomicU64,
    owner: Owner,
    wait: Wait,
    recover: impl FnOnce() -> Result<(), Errno>,
) -> Result<Held<'s>, Errno> {
    let mine = pair(owner.index + 1, owner.generation);
    // ORDERING(ipc-lock): Acquire. What the last holder did happens before this one.
    let free = word.compare_exchange(0, mine, Ordering::Acquire, Ordering::Relaxed);
    let taken = if free.is_ok() { Taken::Free } else { lock_slow(shared, word, mine, wait)? };
    let held = Held { word, scope: shared.scope };
    if taken == Taken::Dead
        && let Err(errno) = recover()
    {
        held.give_up();
        return Err(errno);
    }
    Ok(held)
}

/// Whom a lock was taken from.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Taken {
    Free,
    Dead,
}

#[cold]
fn lock_slow(shared: &Shared, word: &AtomicU64, mine: u64, wait: Wait) -> Result<Taken, Errno> {
    let _waits = shared.contention.begin();
    for _ in 0..SPIN_ROUNDS {
        // ORDERING(ipc-lock): Acquire. As in `lock`.
        if word.compare_exchange(0, mine, Ordering::Acquire, Ordering::Relaxed).is_ok() {
            return Ok(Taken::Free);
        }
        hint::spin_loop();
    }
    let mut patience = Patience::new(shared, wait);
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
            return Ok(Taken::Free);
        }
        let holder = low(next) & (SLEEPERS - 1) as u32;
        if !patience.sleep(word, next)? || !is_over(shared, holder, high(next)) {
            continue;
        }
        // The generation in the word makes this fail if it was let go and taken again meanwhile.
        // ORDERING(ipc-lock): Acquire. What the holder did before it died happens before this one.
        let taken =
            word.compare_exchange(next, mine | SLEEPERS, Ordering::Acquire, Ordering::Relaxed);
        if taken.is_ok() {
            return Ok(Taken::Dead);
        }
    }
}

/// Returns true if the holder of a lock has died, or has another program by now: the next holder repairs what the lock
/// protects.
pub(crate) fn is_left(shared: &Shared, word: &AtomicU64) -> bool {
    // ORDERING: Relaxed. A guess: taking the lock looks again.
    let seen = word.load(Ordering::Relaxed);
    let holder = low(seen) & (SLEEPERS - 1) as u32;
    seen != 0 && is_over(shared, holder, high(seen))
}

fn is_over(shared: &Shared, holder: u32, generation: u32) -> bool {
    let index = holder.wrapping_sub(1);
    shared.is_over(index, Some(generation))
}

/// Sleeps in turns on a word that somebody is to change, until patience is over.
pub(crate) struct Patience<'s> {
    pub(crate) shared: &'s Shared,
    wait: Wait,
    /// What was seen in the word last, and how long that may last.
    seen: Option<(u64, Deadline)>,
    /// How long all of it may last.
    end: Option<Deadline>,
    /// How long the next sleep is at most.
    beat_ns: u64,
}

impl<'s> Patience<'s> {
    pub(crate) fn new(shared: &'s Shared, wait: Wait) -> Self {
        Self { shared, wait, seen: None, end: None, beat_ns: BEAT_NS }
    }

    /// Sleeps while the low half of `word` is that of `seen`; returns true if it is time to look at its owner.
    ///
    /// # Errors
    ///
    /// Those of `nap`.
    pub(crate) fn sleep(&mut self, word: &AtomicU64, seen: u64) -> Result<bool, Errno> {
        if self.shared.scope == Scope::Private {
            futex::wait(word, low(seen), Deadline::NEVER, Scope::Private);
            return Ok(false);
        }
        let beat_ns = self.beat_ns;
        self.beat_ns = (2 * beat_ns).min(BEAT_MAX_NS);
        self.nap(word, seen, beat_ns)
    }

    /// Sleeps at most `nap_ns` while the low half of `word` is `value`; returns true if it was so long.
    ///
    /// # Errors
    ///
    /// `EIO` if others share the word, and it has been `seen`, or patience as a whole has lasted, for too long.
    pub(crate) fn nap(&mut self, word: &AtomicU64, seen: u64, nap_ns: u64) -> Result<bool, Errno> {
        let now = futex::now();
        let within = |ns| Deadline { monotonic_ns: now.monotonic_ns + ns };
        let end = *self.end.get_or_insert(within(match self.wait {
            Wait::Long => WAIT_ALL_NS,
            Wait::Short => WAIT_SHORT_NS,
        }));
        let (_, of_seen) = *match &mut self.seen {
            Some(last) if last.0 == seen => last,
            // Somebody else, or the same one again: who waits behind those that go on is not held up.
            other => other.insert((seen, within(WAIT_MAX_NS))),
        };
        if now >= end.min(of_seen) && self.shared.scope == Scope::Shared {
            return Err(Errno::IO);
        }
        let ended = futex::wait(word, low(seen), within(nap_ns), self.shared.scope);
        if ended == Ended::Woken {
            self.seen = None;
        }
        Ok(ended == Ended::TimedOut)
    }
}

impl Held<'_> {
    /// Lets go of a lock whose structures are not in order: the next one is to try.
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
                            lock(namespace.shared(), &words.0, owner, || Ok(())).expect("private");
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

    fn shared_namespace() -> Namespace {
        let capacity = Capacity { tasks: 4, ..Capacity::LEAST };
        let file = memfd_create("lock", MemfdFlags::CLOEXEC).unwrap();
        Namespace::open_fd(&file, NamespaceOptions { capacity, ..Default::default() }).unwrap()
    }

    /// Two others take turns with a lock, for much longer than one of them is waited for.
    #[test]
    fn those_who_take_turns_do_not_end_patience() {
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
    fn control_one_who_does_not_let_go_ends_patience() {
        let namespace = shared_namespace();
        let word = AtomicU64::new(pair(1, 1));
        let mut patience = Patience::new(namespace.shared(), Wait::Long);
        let start = futex::now().monotonic_ns;
        while patience.sleep(&word, pair(1, 1)).is_ok() {}
        assert!(futex::now().monotonic_ns - start >= WAIT_MAX_NS);
    }
}
