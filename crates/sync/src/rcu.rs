//! Read-copy update: readers never wait, and a replaced value lives until its last reader has
//! ended.
//!
//! A reader opens a section with [`read_lock`] and may use every published value that it finds
//! until it drops the guard. A writer publishes a new version with `RcuCell` and retires the old
//! one. The old version is freed after a *grace period*: once every section has ended that was open
//! when it was retired.
//!
//! The grace periods are those of `crossbeam-epoch`. This module uses the names of the kernel's RCU
//! and ties every borrow to a guard.
//!
//! If a read section stays open, the process cannot free any garbage (trap T57 in `traps.md`), as
//! in every epoch scheme. To keep sections short, a guard cannot leave its thread, so a future that
//! holds it across an await is not `Send`. A thread that retires memory too fast has to help with
//! the freeing.
//!
//! # Guarantees
//!
//! - A.1: a value read through a guard stays valid until that guard is dropped, even if the cell
//!   is dropped before.
//! - A.2: a reader that sees a new version sees all of it.
//! - A.3: a retired value is dropped once, after every section that was open when it was retired.
//! - A.4: if all sections end, the garbage stays bounded. It grows only if a section stays open.
//!
//! # Rules
//!
//! - Inside a read section, a thread must neither block nor run a callback of other code.
//! - Any call to this module, on any thread, may run the destructors of retired values. So a
//!   destructor must not block, nor take a lock that a caller may hold during such a call.
//!
//! # Model checkers
//!
//! Under loom, shuttle and Miri a small implementation of grace periods replaces `crossbeam-epoch`
//! (`rcu/modelled.rs`). So the model checkers check `RcuCell`, not `crossbeam-epoch`.
//!
//! Source: McKenney, Sarma, Soni, "Scaling dcache with RCU", Linux Journal 2004; McKenney, "Is
//! Parallel Programming Hard", chapter 9; Fraser, "Practical lock-freedom", 2004 (epochs).

mod cell;
#[cfg(not(any(miri, corewalk_loom, corewalk_shuttle)))]
mod epoch;
#[cfg(any(miri, corewalk_loom, corewalk_shuttle))]
mod modelled;

#[cfg(not(any(miri, corewalk_loom, corewalk_shuttle)))]
use epoch as domain;
#[cfg(any(miri, corewalk_loom, corewalk_shuttle))]
use modelled as domain;

pub use cell::{RcuCell, RcuOption};
use std::{fmt, marker::PhantomData};

/// Returns the guard of a read section, which ends when the guard is dropped. Sections nest.
///
/// # Examples
///
/// ```
/// use corewalk_sync::{RcuCell, rcu};
///
/// let limit = RcuCell::new(10);
/// let section = rcu::read_lock();
/// let seen = limit.read(&section);
/// limit.replace(20);
/// assert_eq!(*seen, 10);
/// assert_eq!(*limit.read(&section), 20);
/// ```
#[doc(alias = "rcu_read_lock")]
#[inline]
pub fn read_lock() -> ReadGuard {
    ReadGuard { _section: domain::enter(), not_send: PhantomData }
}

/// Waits until every read section that is open now has ended. When the call returns, the values
/// that this thread retired before the call have been dropped.
///
/// # Panics
///
/// Panics inside a section, which would wait for itself.
///
/// # Examples
/// ```
/// use corewalk_sync::{RcuCell, rcu};
///
/// let limit = RcuCell::new(10);
/// limit.replace(20);
/// rcu::synchronize();
/// // No reader has the 10 any more.
/// assert_eq!(*limit.read(&rcu::read_lock()), 20);
/// ```
#[doc(alias = "synchronize_rcu")]
pub fn synchronize() {
    domain::synchronize();
}

/// An open read section. It ends when the guard is dropped, on the thread that opened it.
///
/// The guard cannot be sent:
///
/// ```compile_fail,E0277
/// fn assert_send<T: Send>(_: T) {}
/// assert_send(corewalk_sync::rcu::read_lock());
/// ```
///
/// A future that moves between threads cannot hold the guard of a read section across an await:
///
/// ```compile_fail
/// fn assert_send<T: Send>(_: T) {}
/// assert_send(async {
///     let section = corewalk_sync::rcu::read_lock();
///     std::future::ready(()).await;
///     drop(section);
/// });
/// ```
///
/// The future is `Send` if the section ends before the await:
///
/// ```
/// fn assert_send<T: Send>(_: T) {}
/// assert_send(async {
///     drop(corewalk_sync::rcu::read_lock());
///     std::future::ready(()).await;
/// });
/// ```
#[must_use = "the section ends when the guard is dropped"]
pub struct ReadGuard {
    _section: domain::Section,
    not_send: PhantomData<*const ()>,
}

impl fmt::Debug for ReadGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReadGuard").finish_non_exhaustive()
    }
}
