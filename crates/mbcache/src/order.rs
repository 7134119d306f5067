//! A check of the order of locks, in builds with debug assertions. Trap T42 is a thread that takes
//! locks in an order that can deadlock.
//!
//! The cache has one kind of lock: each cache line of the index has one. `create` waits only for
//! the lock of the home line (the line that the hash of its key selects). While it holds that lock,
//! it waits for no other.
//!
//! If two threads waited for each other's line, they would deadlock. Such a deadlock is rare, so
//! `enter` panics as soon as one thread locks two home lines.
//!
//! Under a model checker this module checks nothing: there one system thread runs all threads of
//! the model. The checker itself finds deadlocks.
//!
//! Source: Linux lockdep.

#[cfg(all(debug_assertions, not(any(corewalk_loom, corewalk_shuttle))))]
mod checked {
    use std::cell::Cell;

    thread_local! {
        static IS_HELD: Cell<bool> = const { Cell::new(false) };
    }

    /// The thread's lock.
    pub(crate) struct Held(());

    /// Records that this thread holds the lock of a key's home line (the cache line that the key's
    /// hash selects), until the returned value is dropped. The record shows if the thread locks a
    /// second home line.
    ///
    /// # Panics
    /// If this thread has a home line locked already.
    pub(crate) fn enter() -> Held {
        assert!(!IS_HELD.replace(true), "T42: a thread locks two homes");
        Held(())
    }

    impl Drop for Held {
        fn drop(&mut self) {
            IS_HELD.set(false);
        }
    }
}

#[cfg(not(all(debug_assertions, not(any(corewalk_loom, corewalk_shuttle)))))]
mod checked {
    /// Nothing is checked in this build.
    pub(crate) struct Held;

    #[inline(always)]
    pub(crate) fn enter() -> Held {
        Held
    }
}

pub(crate) use checked::{Held, enter};

#[cfg(all(test, debug_assertions, not(any(corewalk_loom, corewalk_shuttle))))]
mod tests {
    use super::*;

    /// Trap T42: checks that a thread may lock a cache line of the index, unlock it, and then lock
    /// another line.
    #[test]
    fn locks_one_after_the_other_are_in_order() {
        for _ in 0..2 {
            drop(enter());
        }
    }

    /// Control of trap T42: the check must find a thread that locks two home lines (cache lines
    /// that the hashes of keys select) at once, even if no deadlock occurs.
    #[test]
    #[should_panic(expected = "T42: a thread locks two homes")]
    fn control_two_homes_are_caught() {
        let _first = enter();
        let _second = enter();
    }
}
