//! An atomic word that can stop a thread before a chosen store. With it, tests check the memory
//! that a killed process leaves behind.
//!
//! Under `--cfg corewalk_crash` every protocol uses this word as its `AtomicU64`.
//!
//! [`run`] limits the number of stores of the calling thread. Before the first store over the
//! limit, the thread unwinds. Until `run` returns, none of its stores takes effect, so destructors
//! change nothing, as if the process had been killed. Other threads go on. A failed
//! compare-exchange is no store.
//!
//! A process is killed between two instructions, and other processes see its earlier stores. So a
//! test that stops before each store in turn covers every state that a kill can leave.
//!
//! Source: the crash points in the tests of `ext4` and `SQLite`, which use the same idea.

use std::cell::Cell;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicU64 as Word, Ordering};

thread_local! {
    /// Stores left until `run` stops this thread.
    static LEFT: Cell<Option<u64>> = const { Cell::new(None) };
    static IS_STOPPED: Cell<bool> = const { Cell::new(false) };
}

/// The panic payload of a stopped thread.
struct Stopped;

/// The end of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended<T> {
    /// The body has returned without being stopped.
    Finished(T),
    /// The body was stopped before a store.
    Stopped,
}

/// Runs `body` until it has made `stores` stores, and stops it at the next store.
///
/// # Panics
///
/// Panics if `body` panics.
pub fn run<T>(stores: u64, body: impl FnOnce() -> T) -> Ended<T> {
    LEFT.set(Some(stores));
    let outcome = catch_unwind(AssertUnwindSafe(body));
    LEFT.set(None);
    IS_STOPPED.set(false);
    match outcome {
        Ok(value) => Ended::Finished(value),
        Err(thrown) if thrown.is::<Stopped>() => Ended::Stopped,
        Err(thrown) => resume_unwind(thrown),
    }
}

/// Counts the next store, and returns true if it takes effect. If no store is left, unwinds the
/// thread instead of returning.
#[inline]
fn arrives() -> bool {
    if IS_STOPPED.get() {
        return false;
    }
    match LEFT.get() {
        None => true,
        Some(0) => {
            IS_STOPPED.set(true);
            // Do not call `panic_any`, which would print a message.
            resume_unwind(Box::new(Stopped))
        }
        Some(left) => {
            LEFT.set(Some(left - 1));
            true
        }
    }
}

/// A word whose stores are counted.
#[derive(Default)]
#[repr(transparent)]
pub struct AtomicU64(Word);

#[expect(missing_docs, reason = "the names of the standard library")]
impl AtomicU64 {
    #[inline]
    pub const fn new(value: u64) -> Self {
        Self(Word::new(value))
    }

    #[inline]
    pub fn load(&self, order: Ordering) -> u64 {
        self.0.load(order)
    }

    #[inline]
    pub fn store(&self, value: u64, order: Ordering) {
        if arrives() {
            self.0.store(value, order);
        }
    }

    #[inline]
    pub fn swap(&self, value: u64, order: Ordering) -> u64 {
        // ORDERING: Relaxed. The thread is stopped, so it may read any value.
        if arrives() { self.0.swap(value, order) } else { self.0.load(Ordering::Relaxed) }
    }

    #[inline]
    pub fn compare_exchange(
        &self,
        current: u64,
        new: u64,
        success: Ordering,
        failure: Ordering,
    ) -> Result<u64, u64> {
        let seen = self.0.load(failure);
        if seen != current {
            return Err(seen);
        }
        if !arrives() {
            return Ok(current);
        }
        self.0.compare_exchange(current, new, success, failure)
    }

    #[inline]
    pub fn compare_exchange_weak(
        &self,
        current: u64,
        new: u64,
        success: Ordering,
        failure: Ordering,
    ) -> Result<u64, u64> {
        self.compare_exchange(current, new, success, failure)
    }

    /// Like [`std::sync::atomic::AtomicU64::fetch_update`]. Each attempt is a store that [`run`]
    /// counts.
    #[inline]
    pub fn fetch_update(
        &self,
        success: Ordering,
        failure: Ordering,
        mut update: impl FnMut(u64) -> Option<u64>,
    ) -> Result<u64, u64> {
        let mut seen = self.load(failure);
        while let Some(next) = update(seen) {
            match self.compare_exchange(seen, next, success, failure) {
                Ok(seen) => return Ok(seen),
                Err(other) => seen = other,
            }
        }
        Err(seen)
    }
}

macro_rules! fetch {
    ($($name:ident),*) => {
        #[expect(missing_docs, reason = "the names of the standard library")]
        impl AtomicU64 {
            $(
                #[inline]
                pub fn $name(&self, value: u64, order: Ordering) -> u64 {
                    if arrives() {
                        return self.0.$name(value, order);
                    }
                    // ORDERING: Relaxed. The thread is stopped, so it may read any value.
                    self.0.load(Ordering::Relaxed)
                }
            )*
        }
    };
}

fetch!(fetch_add, fetch_sub, fetch_or, fetch_and, fetch_xor, fetch_max, fetch_min);

impl fmt::Debug for AtomicU64 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
