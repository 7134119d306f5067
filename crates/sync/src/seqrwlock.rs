//! A sequence read/write lock: a seqlock whose fallback readers share the lock.
//!
//! A steady stream of writers may disturb every retry of a long read, such as a walk from a dentry
//! up to the root. The reader then has to take a lock that excludes the writers.
//!
//! On a plain seqlock, readers that take the lock also exclude each other. On a seqrwlock they
//! share the lock. (In 2013 a database that asked Linux for many paths spent up to two thirds of
//! its processor time on the writers' lock.)
//!
//! The table shows what happens if two threads use the lock at the same time:
//!
//! | | optimistic reader | shared reader | writer |
//! |---|---|---|---|
//! | optimistic reader | both run | both run | the reader retries |
//! | shared reader | both run | both run | one waits for the other |
//! | writer | the reader retries | one waits for the other | one waits for the other |
//!
//! Analogous to the `seqrwlock` that Long proposed for Linux. Linux merged an exclusive locking
//! reader instead; see `SeqLock::read_excl`.
//!
//! # Guarantees
//!
//! - A.1: `read_or_lock` returns the result of a run without the lock (an optimistic run) only if
//!   no write section overlapped the run.
//! - A.2: shared readers exclude writers but not each other. They leave the sequence unchanged, so
//!   optimistic readers never notice them.
//! - A.3: no thread starves. A shared reader queues behind a waiting writer, and about every half
//!   millisecond a writer hands the lock to the longest waiter (`corewalk_base::RwLock`). An
//!   optimistic reader becomes a shared reader after `OPTIMISTIC_PASSES` disturbed runs.
//! - A.4: a panic in a write section or in the closure releases the lock.
//!
//! # Rules
//!
//! - The rules of `SeqLock` hold.
//! - A thread that holds the shared lock must not take it again. If a writer waits, the second
//!   request queues behind the writer (guarantee A.3 above), and both wait forever.
//!
//! Source: Long, "dcache: introduce a new sequence read/write lock type", February 2013;
//! `parking_lot` `src/rwlock.rs` for the policy.

use crate::{
    seqcount::{SeqCount, SeqWriteGuard},
    seqlock::{OPTIMISTIC_PASSES, Pass},
};
use corewalk_base::{RwLock, RwLockReadGuard, RwLockWriteGuard};

/// A sequence lock whose locking readers exclude writers but not each other. A writer excludes
/// locking readers and other writers.
///
/// # Examples
///
/// ```
/// use corewalk_sync::{Pass, SeqRwLock};
/// use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
///
/// let rename_lock = SeqRwLock::new();
/// let parent = AtomicU64::new(1);
/// let first = rename_lock.read_shared();
/// let second = rename_lock.read_shared();
/// drop((first, second));
/// {
///     let _section = rename_lock.write();
///     parent.store(2, Relaxed);
/// }
/// assert_eq!(rename_lock.read_or_lock(|_: Pass| parent.load(Relaxed)), 2);
/// ```
#[derive(Debug, Default)]
pub struct SeqRwLock {
    /// The sequence count. A writer changes it while it holds `lock` for writing. Any thread reads
    /// it.
    seq: SeqCount,
    /// The lock of the writers and of the shared readers. It protects the stores to `seq`, and the
    /// caller's data.
    lock: RwLock<()>,
}

impl SeqRwLock {
    /// Returns an unlocked lock with the sequence count 0.
    #[cfg(not(any(corewalk_loom, corewalk_shuttle)))]
    #[must_use]
    pub const fn new() -> Self {
        Self { seq: SeqCount::new(), lock: RwLock::new(()) }
    }

    /// Returns an unlocked lock with the sequence count 0.
    #[cfg(any(corewalk_loom, corewalk_shuttle))]
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns an even count, with which a read section starts. If a writer is inside a section,
    /// waits for its end: spins briefly, then sleeps.
    ///
    /// # Examples
    /// ```
    /// let lock = corewalk_sync::SeqRwLock::new();
    /// let start = lock.read_begin();
    /// drop(lock.read_shared());
    /// assert!(!lock.read_retry(start), "readers do not disturb readers");
    /// drop(lock.write());
    /// assert!(lock.read_retry(start), "a writer was inside");
    /// ```
    #[inline]
    #[must_use]
    pub fn read_begin(&self) -> u64 {
        self.seq.read_begin_or(|| drop(self.lock.read()))
    }

    /// Returns true if a writer was in a write section since `read_begin` returned `start`.
    #[inline]
    #[must_use]
    pub fn read_retry(&self, start: u64) -> bool {
        self.seq.read_retry(start)
    }

    /// Runs the closure `read`, and runs it again if a writer has disturbed it. Returns the result
    /// of the run that was not disturbed.
    ///
    /// The first runs of `read` are without the lock. If writers disturb all of them, the last run
    /// holds the lock, shared with other readers.
    pub fn read_or_lock<R>(&self, mut read: impl FnMut(Pass) -> R) -> R {
        for _ in 0..OPTIMISTIC_PASSES {
            let start = self.read_begin();
            let result = read(Pass::Optimistic);
            if !self.read_retry(start) {
                return result;
            }
        }
        let _shared = self.read_shared();
        read(Pass::Locked)
    }

    /// Returns a guard that excludes writers but not other readers. The sequence stays unchanged.
    pub fn read_shared(&self) -> SeqRwLockReadGuard<'_> {
        SeqRwLockReadGuard { _lock: self.lock.read() }
    }

    /// Returns the guard of a write section, which excludes shared readers and other writers.
    pub fn write(&self) -> SeqRwLockWriteGuard<'_> {
        let lock = self.lock.write();
        SeqRwLockWriteGuard { _section: self.seq.write(), _lock: lock }
    }
}

/// A guard of a reader that shares the lock of a `SeqRwLock`.
///
/// The guard stays on its thread:
///
/// ```compile_fail,E0277
/// fn assert_send<T: Send>(_: T) {}
/// let lock = corewalk_sync::SeqRwLock::new();
/// assert_send(lock.read_shared());
/// ```
#[must_use = "the lock is released when the guard is dropped"]
#[derive(Debug)]
pub struct SeqRwLockReadGuard<'a> {
    _lock: RwLockReadGuard<'a, ()>,
}

/// A write section of a `SeqRwLock`.
///
/// The guard stays on its thread:
///
/// ```compile_fail,E0277
/// fn assert_send<T: Send>(_: T) {}
/// let lock = corewalk_sync::SeqRwLock::new();
/// assert_send(lock.write());
/// ```
#[must_use = "the section ends when the guard is dropped"]
#[derive(Debug)]
pub struct SeqRwLockWriteGuard<'a> {
    // INVARIANT: `_section` is declared before `_lock`, so it is dropped first, and the sequence is
    // even again before the next writer can take the lock.
    _section: SeqWriteGuard<'a>,
    _lock: RwLockWriteGuard<'a, ()>,
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
        SeqRwLock::new().read_or_lock(|pass| passes.push(pass));
        assert_eq!(passes, [Pass::Optimistic]);
    }

    /// A reader must use the shared lock after writers have disturbed all its runs without the
    /// lock. Trap T29 in `traps.md`.
    #[test]
    fn read_or_lock_disturbed_in_every_pass_ends_locked() {
        let lock = SeqRwLock::new();
        let mut passes = Vec::new();
        let is_excluded = lock.read_or_lock(|pass| {
            passes.push(pass);
            if pass.is_locked() {
                return lock.lock.try_write().is_none() && lock.lock.try_read().is_some();
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
        let lock = Arc::new(SeqRwLock::new());
        let panicked = thread::spawn({
            let lock = Arc::clone(&lock);
            move || {
                let _section = lock.write();
                panic!("in the section");
            }
        });
        assert!(panicked.join().is_err());
        assert_eq!(lock.read_begin(), 2);
        drop(lock.read_shared());
        drop(lock.write());
    }

    #[test]
    fn panic_in_a_locked_pass_releases_the_lock() {
        let lock = Arc::new(SeqRwLock::new());
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
        let lock = SeqRwLock::new();
        let start = lock.read_begin();
        drop(lock.read_shared());
        assert!(!lock.read_retry(start));
        drop(lock.write());
        assert!(lock.read_retry(start));
    }

    #[test]
    fn read_shared_by_two_threads_overlaps_and_excludes_writers() {
        let lock = Arc::new(SeqRwLock::new());
        let mine = lock.read_shared();
        let theirs = thread::spawn({
            let lock = Arc::clone(&lock);
            move || {
                // Use `try_read`: if the lock is not shared, the test then fails. With `read` it
                // would wait for ever.
                assert!(lock.lock.try_read().is_some());
                let _theirs = lock.read_shared();
                lock.lock.try_write().is_none()
            }
        });
        assert!(theirs.join().unwrap(), "two readers exclude writers");
        assert!(lock.lock.try_write().is_none(), "one reader does");
        drop(mine);
        assert!(lock.lock.try_write().is_some(), "no reader is left");
    }
}
