//! Read-copy update: readers that wait for nothing, and memory that outlives them.
//!
//! A reader opens a section with [`read_lock`] and may use whatever it finds published until it
//! drops the guard. A writer publishes a new version, and hands the old one to a *grace period*:
//! it is freed once every section that was open at that moment has ended. The grace periods are
//! those of `crossbeam-epoch`; this module gives them the kernel's words, ties every borrow to a
//! guard, and watches over them.
//!
//! The weak spot of every epoch scheme is a guard that stays: a section that sleeps holds up the
//! freeing of *all* garbage of the process (trap T57). The guard therefore cannot leave its
//! thread, so a future that holds one across an await is not `Send`; [`stats`] tells how much
//! garbage waits and for how long the oldest section has been seen; and a thread that retires
//! memory faster than it can be freed is made to help.
//!
//! # Guarantees
//!
//! - A.1: a value read through a guard stays valid until that guard is dropped, even if the cell
//!   is dropped before.
//! - A.2: a reader that sees a new version sees all of it.
//! - A.3: a deferred closure runs once, after every section that was open when it was deferred.
//! - A.4: while sections come and go, the garbage stays bounded; only an open section lets it
//!   grow, and [`stats`] shows it.
//!
//! # Rules
//!
//! - No blocking call and no callback of a user inside a section.
//! - Deferred closures and destructors run on any thread, inside that thread's own calls to this
//!   module; they must not block, nor take a lock that is held around such a call.
//!
//! # Model checkers
//!
//! Under loom, shuttle and Miri a small domain stands in (`rcu/modelled.rs`), which frees as soon
//! as no section is open; it is `RcuCell` that is checked, not `crossbeam-epoch`.
//!
//! Source: McKenney, Sarma, Soni, "Scaling dcache with RCU", Linux Journal 2004; McKenney, "Is
//! Parallel Programming Hard", chapter 9; Fraser, "Practical lock-freedom", 2004 (epochs).

mod cell;
#[cfg(not(any(miri, corewalk_loom, corewalk_shuttle)))]
mod epoch;
#[cfg(any(miri, corewalk_loom, corewalk_shuttle))]
mod modelled;
#[cfg(not(any(miri, corewalk_loom, corewalk_shuttle)))]
mod watch;

#[cfg(not(any(miri, corewalk_loom, corewalk_shuttle)))]
use epoch as domain;
#[cfg(any(miri, corewalk_loom, corewalk_shuttle))]
use modelled as domain;

pub use cell::{RcuCell, RcuOption};
use std::{fmt, marker::PhantomData, time::Duration};

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

/// Runs `reclaim` once every section that is open now has ended, on any thread.
///
/// It may run at once if none is open, and much later if nobody calls this module any more.
#[doc(alias = "call_rcu")]
pub fn defer(reclaim: impl FnOnce() + Send + 'static) {
    domain::defer(reclaim);
}

/// Waits until every section that is open now has ended.
///
/// What this thread deferred before has run by then; what others deferred may not have.
///
/// # Panics
///
/// Panics inside a section, which would wait for itself.
#[doc(alias = "synchronize_rcu")]
pub fn synchronize() {
    domain::synchronize();
}

/// Returns how much garbage waits and how long sections have been open.
#[must_use]
pub fn stats() -> Stats {
    domain::stats()
}

/// What a watchdog wants to know about grace periods.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Stats {
    /// Deferred closures that have not run yet.
    pub garbage: u64,
    /// Threads inside a section.
    pub readers: u64,
    /// For how long the oldest section has been open at least.
    ///
    /// Sections carry no time stamp, as a clock costs more than a section. The age counts from
    /// the first call of `stats` that met the section, so a watchdog that calls it every second
    /// knows the age to a second.
    pub oldest_section_age: Duration,
}

/// An open read section. It ends when this is dropped, on the thread that opened it.
///
/// It cannot be sent:
///
/// ```compile_fail,E0277
/// fn assert_send<T: Send>(_: T) {}
/// assert_send(corewalk_sync::rcu::read_lock());
/// ```
///
/// So a future that is to move between threads cannot hold it across an await:
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
/// It can if the section ends before:
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
