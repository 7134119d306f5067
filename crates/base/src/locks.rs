//! Parking locks: `Mutex`, `RwLock` and `Condvar`. They have the same interface in a normal build
//! and under a model checker.
//!
//! In a normal build these are the locks of `parking_lot`. They spin briefly and then sleep, so a
//! wait for a preempted lock holder uses no processor time. They have no poisoning: after a panic
//! of a lock holder, later calls go on.
//!
//! Under loom and shuttle the locks are thin wrappers around those of the model checker, so a
//! protocol is written only once.
//!
//! # Fairness
//!
//! - `Mutex` is unfair for speed, but about every half millisecond it is handed to the longest
//!   sleeper, so no thread starves.
//! - `RwLock` is task-fair: a reader that arrives while a writer waits queues behind the writer. So
//!   a thread must never take the read side twice.
//!
//! # Limits
//!
//! Under a model checker, the locks have only the calls that modelled code uses: no timed waits and
//! no upgrade. A guard stays on its thread.
//!
//! Source: `parking_lot` 0.12 (`src/rwlock.rs` documents the policy); WTF::Lock.

#[cfg(not(any(corewalk_loom, corewalk_shuttle)))]
pub use parking_lot::{Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};

#[cfg(any(corewalk_loom, corewalk_shuttle))]
pub use modelled::{Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};

#[cfg(any(corewalk_loom, corewalk_shuttle))]
mod modelled {
    #[cfg(corewalk_loom)]
    use loom::sync as checker;
    #[cfg(all(corewalk_shuttle, not(corewalk_loom)))]
    use shuttle::sync as checker;
    use std::ops::{Deref, DerefMut};

    /// Returns the guard of a model checker's lock, poisoned or not.
    fn unpoison<G>(result: Result<G, std::sync::PoisonError<G>>) -> G {
        result.unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn unpoison_try<G>(result: Result<G, std::sync::TryLockError<G>>) -> Option<G> {
        match result {
            Ok(guard) => Some(guard),
            Err(std::sync::TryLockError::Poisoned(poison)) => Some(poison.into_inner()),
            Err(std::sync::TryLockError::WouldBlock) => None,
        }
    }

    /// A mutual exclusion lock.
    #[derive(Debug, Default)]
    pub struct Mutex<T> {
        inner: checker::Mutex<T>,
    }

    impl<T> Mutex<T> {
        /// Returns an unlocked mutex that contains `value`.
        pub fn new(value: T) -> Self {
            Self { inner: checker::Mutex::new(value) }
        }

        /// Locks the mutex. Waits while another thread holds it.
        pub fn lock(&self) -> MutexGuard<'_, T> {
            MutexGuard { inner: Some(unpoison(self.inner.lock())) }
        }

        /// Locks the mutex if no thread holds it. Otherwise returns `None`.
        pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
            unpoison_try(self.inner.try_lock()).map(|guard| MutexGuard { inner: Some(guard) })
        }
    }

    /// A held `Mutex`.
    #[derive(Debug)]
    pub struct MutexGuard<'a, T> {
        /// `None` only inside `Condvar::wait`.
        inner: Option<checker::MutexGuard<'a, T>>,
    }

    impl<T> Deref for MutexGuard<'_, T> {
        type Target = T;

        fn deref(&self) -> &T {
            self.inner.as_ref().expect("the guard is whole outside of wait")
        }
    }

    impl<T> DerefMut for MutexGuard<'_, T> {
        fn deref_mut(&mut self) -> &mut T {
            self.inner.as_mut().expect("the guard is whole outside of wait")
        }
    }

    /// A condition variable: a thread releases a `Mutex` and waits for a notification.
    #[derive(Debug, Default)]
    pub struct Condvar {
        inner: checker::Condvar,
    }

    impl Condvar {
        /// Returns a condition variable on which no thread waits.
        pub fn new() -> Self {
            Self { inner: checker::Condvar::new() }
        }

        /// Releases the mutex, sleeps until notified, and takes the mutex again.
        pub fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
            let held = guard.inner.take().expect("the guard is whole outside of wait");
            guard.inner = Some(unpoison(self.inner.wait(held)));
        }

        /// Wakes every waiter.
        pub fn notify_all(&self) {
            self.inner.notify_all();
        }
    }

    /// A lock with shared readers and exclusive writers.
    #[derive(Debug, Default)]
    pub struct RwLock<T> {
        inner: checker::RwLock<T>,
    }

    /// A `RwLock` held shared.
    pub type RwLockReadGuard<'a, T> = checker::RwLockReadGuard<'a, T>;

    /// A `RwLock` held exclusively.
    pub type RwLockWriteGuard<'a, T> = checker::RwLockWriteGuard<'a, T>;

    impl<T> RwLock<T> {
        /// Returns an unlocked lock that contains `value`.
        pub fn new(value: T) -> Self {
            Self { inner: checker::RwLock::new(value) }
        }

        /// Locks for reading, together with other readers. Waits while a writer holds the lock.
        pub fn read(&self) -> RwLockReadGuard<'_, T> {
            unpoison(self.inner.read())
        }

        /// Locks for writing. Waits while another thread holds the lock.
        pub fn write(&self) -> RwLockWriteGuard<'_, T> {
            unpoison(self.inner.write())
        }

        /// Locks for writing if no thread holds the lock. Otherwise returns `None`.
        pub fn try_write(&self) -> Option<RwLockWriteGuard<'_, T>> {
            unpoison_try(self.inner.try_write())
        }
    }
}

#[cfg(all(test, not(any(corewalk_loom, corewalk_shuttle))))]
mod tests {
    use super::*;
    use crate::primitives::{Arc, thread};

    #[test]
    fn condvar_wait_after_notify_all_goes_on() {
        let shared = Arc::new((Mutex::new(false), Condvar::new()));
        let waiter = thread::spawn({
            let shared = Arc::clone(&shared);
            move || {
                let mut is_done = shared.0.lock();
                while !*is_done {
                    shared.1.wait(&mut is_done);
                }
            }
        });
        *shared.0.lock() = true;
        shared.1.notify_all();
        waiter.join().unwrap();
    }

    #[test]
    fn mutex_after_a_panic_is_not_poisoned() {
        let mutex = Arc::new(Mutex::new(1));
        let panicked = thread::spawn({
            let mutex = Arc::clone(&mutex);
            move || {
                let _guard = mutex.lock();
                panic!("in the section");
            }
        });
        assert!(panicked.join().is_err());
        assert_eq!(*mutex.lock(), 1);
    }
}
