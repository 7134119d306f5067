//! A check of the order of locks, in builds with debug assertions (trap T42).
//!
//! The cache has one kind of lock, that of a home, and no thread takes two of them. Two at once
//! would be a deadlock that shows once in a million runs. Under a model checker all threads are one
//! thread of the system, so nothing is checked there; a model checker finds deadlocks itself.
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

    /// Notes that the thread takes a lock, and holds it until the result is dropped.
    ///
    /// # Panics
    /// If the thread holds one.
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

    /// Trap T42.
    #[test]
    fn locks_one_after_the_other_are_in_order() {
        for _ in 0..2 {
            drop(enter());
        }
    }

    /// Trap T42: two homes at once are caught, before there is a second thread to lock up with.
    #[test]
    #[should_panic(expected = "T42: a thread locks two homes")]
    fn control_two_homes_are_caught() {
        let _first = enter();
        let _second = enter();
    }
}
