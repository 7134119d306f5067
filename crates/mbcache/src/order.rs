//! A check of the order of locks, in builds with debug assertions. Trap T42 is a lock that is taken
//! inside another one in the wrong order.
//!
//! The cache has one kind of lock, that of a home, and no thread waits for a second one while it
//! holds one. Two at once could deadlock, perhaps once in a million runs. Under a model checker all
//! threads are one thread of the system, so nothing is checked there. A model checker finds
//! deadlocks itself.
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

    /// Trap T42: locks must not nest in the wrong order. One lock after the other is in order.
    #[test]
    fn locks_one_after_the_other_are_in_order() {
        for _ in 0..2 {
            drop(enter());
        }
    }

    /// Trap T42: the check finds a thread that locks two homes at once, even if no second thread
    /// makes it a deadlock.
    #[test]
    #[should_panic(expected = "T42: a thread locks two homes")]
    fn control_two_homes_are_caught() {
        let _first = enter();
        let _second = enter();
    }
}
