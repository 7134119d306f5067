//! The order of the locks, checked in builds with debug assertions.
//!
//! Two stripes at once, or a stripe inside of the depot, would be a deadlock that shows once in a
//! million runs. Every lock of this crate is taken through [`take`], which knows what the thread holds.
//! Under a model checker all threads are one thread of the system, so nothing is checked there: the
//! checker finds deadlocks itself.
//!
//! Source: Linux lockdep.

use corewalk_sync::MutexGuard;
use std::ops::{Deref, DerefMut};

/// The locks by rank; a lock is taken only if the thread holds none of its own rank or a later one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rank {
    /// A stripe of the index.
    Stripe = 1,
    /// The depot of free slots.
    Depot = 2,
    /// The list of waiting tasks, which is taken with nothing else held.
    Sleepers = 4,
}

/// A lock that is held, and known to be.
pub(crate) struct Held<'a, T> {
    guard: MutexGuard<'a, T>,
    _place: Place,
}

/// Takes a lock of `rank` by calling `lock`.
///
/// # Panics
/// With debug assertions, if the thread holds a lock that does not come before it.
#[inline]
pub(crate) fn take<'a, T>(rank: Rank, lock: impl FnOnce() -> MutexGuard<'a, T>) -> Held<'a, T> {
    let place = Place::enter(rank);
    Held { guard: lock(), _place: place }
}

impl<T> Deref for Held<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.guard
    }
}

impl<T> DerefMut for Held<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        &mut self.guard
    }
}

#[cfg(all(debug_assertions, not(any(corewalk_loom, corewalk_shuttle))))]
mod checked {
    use super::Rank;
    use std::cell::Cell;

    thread_local! {
        static HELD: Cell<u8> = const { Cell::new(0) };
    }

    /// A rank that the thread holds.
    pub(super) struct Place(Rank);

    impl Place {
        pub(super) fn enter(rank: Rank) -> Place {
            let held = HELD.get();
            let before = if rank == Rank::Depot { Rank::Stripe as u8 } else { 0 };
            assert!(held & !before == 0, "T42: {rank:?} is taken with {held:#b} held");
            HELD.set(held | rank as u8);
            Place(rank)
        }
    }

    impl Drop for Place {
        fn drop(&mut self) {
            HELD.set(HELD.get() & !(self.0 as u8));
        }
    }
}

#[cfg(not(all(debug_assertions, not(any(corewalk_loom, corewalk_shuttle)))))]
mod checked {
    /// Nothing is checked in this build.
    pub(super) struct Place;

    impl Place {
        #[inline]
        pub(super) fn enter(_rank: super::Rank) -> Place {
            Place
        }
    }
}

use checked::Place;

#[cfg(all(test, debug_assertions, not(any(corewalk_loom, corewalk_shuttle))))]
mod tests {
    use super::*;
    use corewalk_sync::Mutex;

    /// Trap T42.
    #[test]
    fn depot_inside_of_a_stripe_is_in_order() {
        let (stripe, depot) = (Mutex::new(1), Mutex::new(2));
        for _ in 0..2 {
            let first = take(Rank::Stripe, || stripe.lock());
            let second = take(Rank::Depot, || depot.lock());
            assert_eq!((*first, *second), (1, 2));
        }
        drop(take(Rank::Sleepers, || stripe.lock()));
    }

    /// Trap T42: two stripes at once are caught, before there is a second thread to lock up with.
    #[test]
    #[should_panic(expected = "T42: Stripe is taken")]
    fn control_two_stripes_are_caught() {
        let (one, other) = (Mutex::new(1), Mutex::new(2));
        let _first = take(Rank::Stripe, || one.lock());
        let _second = take(Rank::Stripe, || other.lock());
    }

    /// Trap T42: the order turned around.
    #[test]
    #[should_panic(expected = "T42: Stripe is taken")]
    fn control_stripe_inside_of_the_depot_is_caught() {
        let (depot, stripe) = (Mutex::new(1), Mutex::new(2));
        let _first = take(Rank::Depot, || depot.lock());
        let _second = take(Rank::Stripe, || stripe.lock());
    }
}
