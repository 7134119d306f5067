//! A value that readers borrow in place and writers replace as a whole.
//!
//! The cell is one pointer. A reader loads it inside a read section and borrows the value until the
//! section ends. A writer builds the next value elsewhere, swaps the pointer, and lets the old
//! value be freed after a grace period.
//!
//! The cell suits values that are read on every operation and seldom changed: options, limits, a
//! table that grows.
//!
//! Analogous to a Linux pointer marked `__rcu`, with `rcu_dereference` and `rcu_assign_pointer`.
//!
//! # Invariants
//!
//! - C.1: `ptr` came from `Box::into_raw` and is not null.
//! - C.2: exactly one thread takes a given pointer out of `ptr`. That thread retires it, once.
//!
//! # Rules
//!
//! - `update` holds no lock, and may call its closure several times, so the closure must be free of
//!   side effects.
//! - The old value is dropped later and on any thread, so `T` is `Send` and `'static`.
//!
//! # Limits
//!
//! Every read needs the guard of a read section. (A read that returned an `Arc` would write to a
//! shared cache line.) A writer cannot change the value in place.
//!
//! Source: Linux `include/linux/rcupdate.h`; `arc-swap`, which was rejected for its 15 to 27 ns per
//! load on a virtual machine with two cores.
#![expect(unsafe_code, reason = "the value lives behind a pointer that is swapped")]

use super::{ReadGuard, domain::defer, read_lock};
use corewalk_base::primitives::atomic::{AtomicPtr, Ordering};
use std::fmt;

/// A value that a reader borrows during a read section, and that a writer replaces as a whole.
///
/// The borrow of the value ends with the section:
///
/// ```compile_fail,E0505
/// use corewalk_sync::{RcuCell, rcu};
///
/// let cell = RcuCell::new(1);
/// let section = rcu::read_lock();
/// let value = cell.read(&section);
/// drop(section);
/// assert_eq!(*value, 1);
/// ```
///
/// # Examples
///
/// ```
/// use corewalk_sync::{RcuCell, rcu};
///
/// let words = RcuCell::new(vec!["dentry"]);
/// words.update(|old| [old.as_slice(), &["inode"]].concat());
/// let section = rcu::read_lock();
/// assert_eq!(*words.read(&section), ["dentry", "inode"]);
/// ```
pub struct RcuCell<T: Send + Sync + 'static> {
    ptr: AtomicPtr<T>,
}

impl<T: Send + Sync + 'static> RcuCell<T> {
    /// Returns a cell that holds `value`.
    #[must_use]
    pub fn new(value: T) -> Self {
        Self { ptr: AtomicPtr::new(Box::into_raw(Box::new(value))) }
    }

    /// Returns the current value, which stays valid until the section ends.
    #[doc(alias = "rcu_dereference")]
    #[inline]
    #[must_use]
    pub fn read<'g>(&self, _section: &'g ReadGuard) -> &'g T {
        // ORDERING(rcu-publish): Acquire. `replace` and `update` publish the pointer with Release.
        // Without this order, the reader could miss parts of the value.
        let ptr = self.ptr.load(Ordering::Acquire);
        // SAFETY: the pointer is not null (invariant C.1). The value was in the cell after the
        // section began, so its grace period waits for the end of the section. No thread writes to
        // a published value.
        unsafe { &*ptr }
    }

    /// Replaces the value of the cell. The old value is dropped after a grace period.
    #[doc(alias = "rcu_assign_pointer")]
    pub fn replace(&self, value: T) {
        let new = Box::into_raw(Box::new(value));
        // ORDERING(rcu-publish): AcqRel. A reader of the new pointer sees the whole new value. This
        // thread sees the whole old value before it drops it.
        let old = self.ptr.swap(new, Ordering::AcqRel);
        retire(old);
    }

    /// Replaces the value by `next(value)`. If another writer replaces the value meanwhile, runs
    /// `next` again on that value, so no update is lost.
    ///
    /// # Examples
    /// ```
    /// let count = corewalk_sync::RcuCell::new(0);
    /// std::thread::scope(|scope| {
    ///     for _ in 0..4 {
    ///         scope.spawn(|| count.update(|old| old + 1));
    ///     }
    /// });
    /// assert_eq!(*count.read(&corewalk_sync::rcu::read_lock()), 4);
    /// ```
    pub fn update(&self, mut next: impl FnMut(&T) -> T) {
        let section = read_lock();
        loop {
            let seen = self.read(&section);
            let old = std::ptr::from_ref(seen).cast_mut();
            let new = Box::into_raw(Box::new(next(seen)));
            // ORDERING(rcu-publish): AcqRel, as in `replace`: readers of the new pointer see the
            // whole value. The open section keeps `old` from being freed and its address from being
            // reused. An equal pointer therefore means the same value.
            match self.ptr.compare_exchange(old, new, Ordering::AcqRel, Ordering::Relaxed) {
                // Do not retire `old`, which was made from a shared reference: to free a value
                // through such a pointer is undefined behavior.
                Ok(taken) => return retire(taken),
                // SAFETY: `new` was made above and published to no other thread.
                Err(_) => drop(unsafe { Box::from_raw(new) }),
            }
        }
    }
}

impl<T: Send + Sync + 'static> Drop for RcuCell<T> {
    fn drop(&mut self) {
        // ORDERING: Relaxed. `&mut self` happens after every use of the cell.
        retire(self.ptr.load(Ordering::Relaxed));
    }
}

impl<T: Send + Sync + Default + 'static> Default for RcuCell<T> {
    fn default() -> Self {
        Self::new(T::default())
    }
}

impl<T: Send + Sync + fmt::Debug + 'static> fmt::Debug for RcuCell<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("RcuCell").field(self.read(&read_lock())).finish()
    }
}

/// An [`RcuCell`] that may be empty.
///
/// # Invariants
///
/// `ptr` is null or came from `Box::into_raw`. If a thread takes a pointer out of `ptr`, no other
/// thread gets the same pointer (invariant C.2).
///
/// # Examples
///
/// ```
/// use corewalk_sync::RcuOption;
/// use corewalk_sync::rcu;
///
/// let cell = RcuOption::default();
/// let section = rcu::read_lock();
/// assert_eq!(cell.read(&section), None);
/// cell.replace(Some(Box::new(1)));
/// let value = cell.read(&section);
/// cell.replace(None);
/// assert_eq!((value, cell.read(&section)), (Some(&1), None));
/// ```
pub struct RcuOption<T: Send + Sync + 'static> {
    ptr: AtomicPtr<T>,
}

impl<T: Send + Sync + 'static> RcuOption<T> {
    /// Returns the current value, which stays valid until the read section `_section` ends. Returns
    /// None if there is no value.
    #[inline]
    #[must_use]
    pub fn read<'g>(&self, _section: &'g ReadGuard) -> Option<&'g T> {
        // ORDERING(rcu-publish): Acquire. `replace` publishes the pointer with Release. Without
        // this order, the reader could miss parts of the value.
        let ptr = self.ptr.load(Ordering::Acquire);
        // SAFETY: the pointer is null, or it points to a value that was not retired before this
        // read section began. A retired value is dropped after a grace period, which waits for the
        // read section. No thread writes to a published value.
        unsafe { ptr.as_ref() }
    }

    /// Replaces the value of the cell, or makes the cell empty. The old value is dropped after a
    /// grace period.
    pub fn replace(&self, value: Option<Box<T>>) {
        let new = value.map_or(std::ptr::null_mut(), Box::into_raw);
        // ORDERING(rcu-publish): AcqRel. A reader of the new pointer sees the whole new value. This
        // thread sees the whole old value before it drops it.
        let old = self.ptr.swap(new, Ordering::AcqRel);
        if !old.is_null() {
            retire(old);
        }
    }
}

impl<T: Send + Sync + 'static> Default for RcuOption<T> {
    /// Returns an empty cell.
    fn default() -> Self {
        Self { ptr: AtomicPtr::new(std::ptr::null_mut()) }
    }
}

impl<T: Send + Sync + 'static> Drop for RcuOption<T> {
    fn drop(&mut self) {
        self.replace(None);
    }
}

/// A pointer to a replaced value. The value is freed after a grace period.
///
/// # Invariants
///
/// Only one thread takes a pointer out of its [`RcuCell`] or [`RcuOption`] and makes the `Retired`,
/// so the value is freed once (invariant C.2).
struct Retired<T>(*mut T);

// SAFETY: the pointer owns the value, and `T` is `Send`.
unsafe impl<T: Send> Send for Retired<T> {}

impl<T> Retired<T> {
    /// Drops the value. The caller has waited for a grace period.
    fn free(self) {
        // SAFETY: the pointer came from `Box::into_raw` (invariant C.1). It was taken out of its
        // `RcuCell` or `RcuOption` by one thread, which retires it once (invariant C.2). All read
        // sections that could have read it have ended.
        drop(unsafe { Box::from_raw(self.0) });
    }
}

/// Frees `old` after a grace period. The caller has taken `old` out of an [`RcuCell`] or
/// [`RcuOption`].
fn retire<T: Send + 'static>(old: *mut T) {
    let retired = Retired(old);
    // Call a method, so that the closure captures `retired` as a whole and not its bare pointer,
    // which is not `Send`.
    defer(move || retired.free());
}

#[cfg(all(test, corewalk_loom))]
mod loom_models;

#[cfg(all(test, not(any(corewalk_loom, corewalk_shuttle))))]
mod tests {
    use super::*;
    use corewalk_base::primitives::{Arc, thread};

    #[test]
    fn read_after_replace_keeps_the_old_value_for_the_section() {
        let cell = RcuCell::new(String::from("old"));
        let section = read_lock();
        let old = cell.read(&section);
        cell.replace(String::from("new"));
        assert_eq!(old, "old");
        assert_eq!(cell.read(&section), "new");
    }

    #[test]
    fn read_outlives_the_cell_for_the_section() {
        let cell = RcuCell::new(vec![1, 2, 3]);
        let section = read_lock();
        let value = cell.read(&section);
        drop(cell);
        assert_eq!(*value, [1, 2, 3]);
    }

    #[test]
    fn update_by_many_threads_loses_none() {
        const ROUNDS: u64 = if cfg!(miri) { 10 } else { 2_000 };
        let cell = Arc::new(RcuCell::new(0_u64));
        let threads: Vec<_> = (0..3)
            .map(|_| {
                let cell = Arc::clone(&cell);
                thread::spawn(move || (0..ROUNDS).for_each(|_| cell.update(|old| old + 1)))
            })
            .collect();
        for thread in threads {
            thread.join().unwrap();
        }
        assert_eq!(*cell.read(&read_lock()), 3 * ROUNDS);
    }

    #[test]
    fn update_that_panics_keeps_the_value() {
        let cell = Arc::new(RcuCell::new(7));
        let panicked = thread::spawn({
            let cell = Arc::clone(&cell);
            move || cell.update(|_| panic!("in the closure"))
        });
        assert!(panicked.join().is_err());
        assert_eq!(*cell.read(&read_lock()), 7);
    }

    #[test]
    fn cell_that_is_emptied_keeps_the_value_for_the_section() {
        let cell = RcuOption::default();
        cell.replace(Some(Box::new(vec![1, 2, 3])));
        let section = read_lock();
        let value = cell.read(&section);
        cell.replace(None);
        assert_eq!(cell.read(&section), None);
        assert_eq!(value, Some(&vec![1, 2, 3]));
        drop(section);
    }

    #[test]
    fn every_version_is_dropped_once() {
        struct Version(Arc<corewalk_base::ShardedCounter>);
        impl Drop for Version {
            fn drop(&mut self) {
                self.0.add(1);
            }
        }
        let drops = Arc::new(corewalk_base::ShardedCounter::new());
        let cell = RcuCell::new(Version(Arc::clone(&drops)));
        for _ in 0..5 {
            cell.replace(Version(Arc::clone(&drops)));
        }
        drop(cell);
        // `crossbeam-epoch` frees garbage as a side effect of later calls, so the test makes such
        // calls.
        let other = RcuCell::new(0);
        (0..1_000_000).take_while(|_| drops.sum() < 6).for_each(|round| other.replace(round));
        (0..1_000).for_each(|round| other.replace(round));
        assert_eq!(drops.sum(), 6);
    }
}
