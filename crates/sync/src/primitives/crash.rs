//! A word that stops its thread before a store of choice, for tests of what a killed process leaves.
//!
//! Under `--cfg corewalk_crash` this is the `AtomicU64` of all protocols. [`run`] gives the calling thread
//! a number of stores. Before the next one the thread unwinds, and until `run` returns nothing that it stores
//! arrives: destructors change nothing, as if the process had been killed. Other threads go on as
//! ever. An exchange that fails is no store.
//!
//! A process is killed between two instructions, and what it stored before is there for others: to stop before
//! each store in turn is to be killed at every instruction, as far as others can tell.
//!
//! Source: the same idea as the crash points of `ext4`'s and `SQLite`'s tests.

use std::cell::Cell;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicU64 as Word, Ordering};

thread_local! {
    /// Stores that are left, if they are counted.
    static LEFT: Cell<Option<u64>> = const { Cell::new(None) };
    static IS_STOPPED: Cell<bool> = const { Cell::new(false) };
}

/// What is thrown where a thread stops.
struct Stopped;

/// How a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended<T> {
    /// There were stores left.
    Finished(T),
    /// It was stopped.
    Stopped,
}

/// Runs `body` until it has made `stores` stores and is about to make another.
///
/// # Panics
///
/// Panics as `body` does.
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

/// Returns true if the store that is about to be made arrives.
#[inline]
fn arrives() -> bool {
    if IS_STOPPED.get() {
        return false;
    }
    match LEFT.get() {
        None => true,
        Some(0) => {
            IS_STOPPED.set(true);
            // Not `panic_any`: nothing is to be printed.
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
        // ORDERING: Relaxed. The thread has stopped.
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

    /// As the standard library's; each round is a store of its own.
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
                    // ORDERING: Relaxed. The thread has stopped.
                    if arrives() { self.0.$name(value, order) } else { self.0.load(Ordering::Relaxed) }
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
