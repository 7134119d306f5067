//! A check of the order of locks, in builds with debug assertions (trap T42 in `traps.md`).
//!
//! Each line of the index has a lock. `create` waits only for the lock of its key's home line, the
//! line that the hash of the key selects. While it holds that lock, it waits for no other.
//!
//! Two threads that wait for each other's line deadlock, which is rare. So `enter` panics as soon
//! as one thread locks two home lines.
//!
//! Under a model checker this module checks nothing: one system thread runs all threads of a model,
//! and the checker itself finds deadlocks.
//!
//! Source: Linux lockdep.

#[cfg(all(debug_assertions, not(any(corewalk_loom, corewalk_shuttle))))]
mod checked {
    use std::cell::Cell;

    thread_local! {
        static IS_HELD: Cell<bool> = const { Cell::new(false) };
    }

    pub(crate) struct Held(());

    /// Notes that this thread has locked a home line, until the returned value is dropped.
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

    /// A thread may lock one home line after it has unlocked another. Trap T42 in `traps.md`.
    #[test]
    fn locks_one_after_the_other_are_in_order() {
        for _ in 0..2 {
            drop(enter());
        }
    }

    /// Control test: the check must find a thread with two locked home lines, even without a
    /// deadlock.
    #[test]
    #[should_panic(expected = "T42: a thread locks two homes")]
    fn control_two_homes_are_caught() {
        let _first = enter();
        let _second = enter();
    }
}
