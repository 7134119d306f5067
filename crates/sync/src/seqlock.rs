//! A sequence lock: readers write nothing, and take a lock only if writers disturb them too often.
//!
//! A `SeqLock` is a `SeqCount` together with the lock of its writers. With this lock:
//! - writers need no other lock;
//! - a reader can sleep until a running writer has finished, so a preempted writer does not make
//!   readers spin (trap T30 in `traps.md`);
//! - a reader that was disturbed too often can take the lock, which keeps writers out.
//!
//! The retry loop is one function with a closure, `read_or_lock`. Linux has a pair of calls instead
//! (`read_seqbegin_or_lock`, `need_seqretry`). There the caller must make the sequence odd for the
//! second pass. Code that forgets this retries without ever taking the lock (trap T29 in
//! `traps.md`).
//!
//! Analogous to Linux's `seqlock_t`.
//!
//! # Guarantees
//!
//! - A.1: `read_or_lock` first runs its closure without the lock (an optimistic pass). It returns
//!   the result of such a pass only if no write section overlapped the pass.
//! - A.2: the last pass holds the lock, which excludes writers. It does not change the sequence, so
//!   it disturbs no optimistic reader.
//! - A.3: `read_or_lock` runs the closure at most `OPTIMISTIC_PASSES + 1` times.
//! - A.4: a panic in a write section or in the closure releases the lock.
//!
//! # Rules
//!
//! - Words read in a section are atomics, read with `Relaxed`. Plain reads are a data race (trap
//!   T31 in `traps.md`).
//! - `read_or_lock` may run its closure several times. The closure must keep no state from a failed
//!   run (trap T8 in `traps.md`).
//! - No recursion: a thread inside `write` or `read_excl` must call neither of them again. Inside
//!   `write` it must not call `read_begin`.
//!
//! # Locks
//!
//! There is one mutex. Writers and locking readers hold it. A reader in `read_begin` may sleep
//! until a writer has unlocked it.
//!
//! Source: Linux `include/linux/seqlock.h` (`seqlock_t`, `read_seqlock_excl`); Nesterov's
//! `need_seqretry_xxx` proposal on its pitfall.

use crate::seqcount::{SeqCount, SeqWriteGuard};
use corewalk_base::{Mutex, MutexGuard};

/// Optimistic passes of a reader before it takes the lock.
pub(crate) const OPTIMISTIC_PASSES: u32 = if corewalk_base::primitives::IS_MODEL { 1 } else { 3 };

/// The kind of pass in which `read_or_lock` runs its closure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Pass {
    /// The closure runs without the writers' lock. If a write section overlaps the run, the result
    /// of the run is dropped.
    Optimistic,
    /// Writers are excluded. The result is final.
    Locked,
}

impl Pass {
    /// Returns true if writers are excluded.
    #[must_use]
    pub fn is_locked(self) -> bool {
        self == Self::Locked
    }
}

/// A sequence count with a lock for its writers.
///
/// # Examples
///
/// ```
/// use corewalk_sync::SeqLock;
/// use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
///
/// let lock = SeqLock::new();
/// let (low, high) = (AtomicU64::new(1), AtomicU64::new(10));
/// {
///     let _section = lock.write();
///     low.store(2, Relaxed);
///     high.store(20, Relaxed);
/// }
/// let pair = lock.read_or_lock(|_pass| (low.load(Relaxed), high.load(Relaxed)));
/// assert_eq!(pair, (2, 20));
/// ```
#[doc(alias = "seqlock_t")]
#[derive(Debug, Default)]
pub struct SeqLock {
    /// The sequence count. A writer changes it while it holds `writers`. Any thread reads it.
    seq: SeqCount,
    /// The lock of the writers. It protects the stores to `seq`, and the caller's data.
    writers: Mutex<()>,
}

impl SeqLock {
    /// Returns an unlocked lock with the sequence count 0.
    #[cfg(not(any(corewalk_loom, corewalk_shuttle)))]
    #[must_use]
    pub const fn new() -> Self {
        Self { seq: SeqCount::new(), writers: Mutex::new(()) }
    }

    /// Returns an unlocked lock with the sequence count 0.
    #[cfg(any(corewalk_loom, corewalk_shuttle))]
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns an even count. If a writer is inside a section, waits for its end: spins briefly,
    /// then sleeps.
    #[doc(alias = "read_seqbegin")]
    #[inline]
    #[must_use]
    pub fn read_begin(&self) -> u64 {
        self.seq.read_begin_or(|| drop(self.writers.lock()))
    }

    /// Returns true if a writer was in a write section since `read_begin` returned `start`.
    #[doc(alias = "read_seqretry")]
    #[inline]
    #[must_use]
    pub fn read_retry(&self, start: u64) -> bool {
        self.seq.read_retry(start)
    }

    /// Runs the closure `read` until a run of it (a pass) is not disturbed by a writer. Returns the
    /// result of that pass.
    ///
    /// The first passes are optimistic. The last pass holds the lock.
    ///
    /// # Examples
    /// ```
    /// use corewalk_sync::{Pass, SeqLock};
    ///
    /// let lock = SeqLock::new();
    /// let mut passes = vec![];
    /// let answer = lock.read_or_lock(|pass| {
    ///     passes.push(pass);
    ///     42
    /// });
    /// assert_eq!((answer, passes), (42, vec![Pass::Optimistic]));
    /// ```
    #[doc(alias = "read_seqbegin_or_lock")]
    pub fn read_or_lock<R>(&self, mut read: impl FnMut(Pass) -> R) -> R {
        for _ in 0..OPTIMISTIC_PASSES {
            let start = self.read_begin();
            let result = read(Pass::Optimistic);
            if !self.read_retry(start) {
                return result;
            }
        }
        let _locked = self.read_excl();
        read(Pass::Locked)
    }

    /// Returns a guard that excludes writers and other locking readers. The sequence stays
    /// unchanged.
    #[doc(alias = "read_seqlock_excl")]
    pub fn read_excl(&self) -> SeqLockExclGuard<'_> {
        SeqLockExclGuard { _lock: self.writers.lock() }
    }

    /// Returns a guard of a write section.
    #[doc(alias = "write_seqlock")]
    pub fn write(&self) -> SeqLockWriteGuard<'_> {
        let lock = self.writers.lock();
        SeqLockWriteGuard { _section: self.seq.write(), _lock: lock }
    }
}

/// A guard of a reader that has locked a `SeqLock`, so that no writer runs.
///
/// The guard stays on its thread:
///
/// ```compile_fail,E0277
/// fn assert_send<T: Send>(_: T) {}
/// let lock = corewalk_sync::SeqLock::new();
/// assert_send(lock.read_excl());
/// ```
#[must_use = "the lock is released when the guard is dropped"]
#[derive(Debug)]
pub struct SeqLockExclGuard<'a> {
    _lock: MutexGuard<'a, ()>,
}

/// A write section of a `SeqLock`.
///
/// The guard stays on its thread:
///
/// ```compile_fail,E0277
/// fn assert_send<T: Send>(_: T) {}
/// let lock = corewalk_sync::SeqLock::new();
/// assert_send(lock.write());
/// ```
#[must_use = "the section ends when the guard is dropped"]
#[derive(Debug)]
pub struct SeqLockWriteGuard<'a> {
    // INVARIANT: `_section` is declared before `_lock`, so it is dropped first, and the sequence is
    // even again before the next writer can take the lock.
    _section: SeqWriteGuard<'a>,
    _lock: MutexGuard<'a, ()>,
}

#[cfg(all(test, corewalk_loom))]
mod loom_models;

#[cfg(all(test, not(any(corewalk_loom, corewalk_shuttle))))]
mod tests {
    use super::*;
    use corewalk_base::primitives::{Arc, thread};

    #[test]
    fn read_or_lock_undisturbed_makes_one_optimistic_pass() {
        let mut passes = Vec::new();
        SeqLock::new().read_or_lock(|pass| passes.push(pass));
        assert_eq!(passes, [Pass::Optimistic]);
    }

    /// If a writer disturbs each attempt of a reader without the lock, the reader must read under
    /// the lock. Trap T29 in `traps.md`.
    #[test]
    fn read_or_lock_disturbed_in_every_pass_ends_locked() {
        let lock = SeqLock::new();
        let mut passes = Vec::new();
        let is_excluded = lock.read_or_lock(|pass| {
            passes.push(pass);
            if pass.is_locked() {
                return lock.writers.try_lock().is_none();
            }
            drop(lock.write());
            false
        });
        assert!(is_excluded, "the locked pass excludes writers");
        assert_eq!(passes.len(), OPTIMISTIC_PASSES as usize + 1);
        assert!(passes.iter().rev().skip(1).all(|pass| !pass.is_locked()));
    }

    /// A reader must not wait for ever after a panic in a write section. Trap T30 in `traps.md`.
    #[test]
    fn panic_in_a_write_section_releases_the_lock() {
        let lock = Arc::new(SeqLock::new());
        let panicked = thread::spawn({
            let lock = Arc::clone(&lock);
            move || {
                let _section = lock.write();
                panic!("in the section");
            }
        });
        assert!(panicked.join().is_err());
        assert_eq!(lock.read_begin(), 2);
        drop(lock.read_excl());
        drop(lock.write());
    }

    #[test]
    fn panic_in_a_locked_pass_releases_the_lock() {
        let lock = Arc::new(SeqLock::new());
        let panicked = thread::spawn({
            let lock = Arc::clone(&lock);
            move || {
                lock.read_or_lock(|pass| {
                    assert!(!pass.is_locked(), "in the locked pass");
                    drop(lock.write());
                });
            }
        });
        assert!(panicked.join().is_err());
        drop(lock.write());
    }

    #[test]
    fn locking_readers_leave_the_sequence() {
        let lock = SeqLock::new();
        let start = lock.read_begin();
        drop(lock.read_excl());
        assert!(!lock.read_retry(start));
        drop(lock.write());
        assert!(lock.read_retry(start));
    }
}
