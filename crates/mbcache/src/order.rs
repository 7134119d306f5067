//! The order of the locks, checked in builds with debug assertions.
//!
//! Two buckets at once, or a bucket inside of a list of lines, would be a deadlock that shows once in a
//! million runs. Every lock of this crate is taken through [`take`], which knows what the thread holds.
//! Under a model checker all threads are one thread of the system, so nothing is checked there: the
//! checker finds deadlocks itself.
//!
//! Source: Linux lockdep.

use corewalk_base::MutexGuard;
use std::ops::{Deref, DerefMut};

/// The locks by rank; a lock is taken only if the thread holds none of its own rank or a later one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rank {
    /// The turn of reclaim.
    Turn = 8,
    /// A bucket of the index.
    Bucket = 1,
    /// A list of lines that are in no bucket.
    Room = 2,
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
    let place = enter(rank);
    Held { guard: lock(), _place: place }
}

/// Notes that the thread is about to take a lock of `rank`, which it has until the result is dropped.
///
/// # Panics
/// As [`take`].
#[inline]
pub(crate) fn enter(rank: Rank) -> Place {
    Place::enter(rank)
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
    pub(crate) struct Place(Rank);

    impl Place {
        pub(super) fn enter(rank: Rank) -> Place {
            let held = HELD.get();
            let before = match rank {
                Rank::Turn | Rank::Sleepers => 0,
                Rank::Bucket => Rank::Turn as u8,
                Rank::Room => Rank::Turn as u8 | Rank::Bucket as u8,
            };
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
    pub(crate) struct Place;

    impl Place {
        #[inline]
        pub(super) fn enter(_rank: super::Rank) -> Place {
            Place
        }
    }
}

pub(crate) use checked::Place;

#[cfg(all(test, debug_assertions, not(any(corewalk_loom, corewalk_shuttle))))]
mod tests {
    use super::*;
    use corewalk_base::Mutex;

    /// Trap T42.
    #[test]
    fn room_inside_of_a_bucket_is_in_order() {
        let (bucket, room) = (Mutex::new(1), Mutex::new(2));
        for _ in 0..2 {
            let first = take(Rank::Bucket, || bucket.lock());
            let second = take(Rank::Room, || room.lock());
            assert_eq!((*first, *second), (1, 2));
        }
        drop(take(Rank::Sleepers, || bucket.lock()));
    }

    /// Trap T42: two buckets at once are caught, before there is a second thread to lock up with.
    #[test]
    #[should_panic(expected = "T42: Bucket is taken")]
    fn control_two_buckets_are_caught() {
        let (one, other) = (Mutex::new(1), Mutex::new(2));
        let _first = take(Rank::Bucket, || one.lock());
        let _second = take(Rank::Bucket, || other.lock());
    }

    /// Trap T42: the order turned around.
    #[test]
    #[should_panic(expected = "T42: Bucket is taken")]
    fn control_bucket_inside_of_the_room_is_caught() {
        let (room, bucket) = (Mutex::new(1), Mutex::new(2));
        let _first = take(Rank::Room, || room.lock());
        let _second = take(Rank::Bucket, || bucket.lock());
    }
}
