//! How long locks are waited for and held, in builds that count it.
//!
//! Reading the clock twice per section costs more than most sections, so a build counts this only
//! with the feature `lock-share`, and says with every other table that its numbers are not for keeping.
//! In any other build a section is the guard and nothing else.
//!
//! # What is counted
//! The sections of the rename lock and of `dcache_lock`: the time until the lock is ours, and the
//! time until it is given back. A lock of a dentry is only taken inside of them by a translation and is
//! part of their time. Waiting of an optimistic reader for a rename that is under way is no lock
//! section; a profile of the kernel's spin locks does not have it either.
//!
//! Source: the column "% spinlock" of document 000.

#[cfg(feature = "lock-share")]
use std::cell::Cell;
use std::ops::{Deref, DerefMut};
#[cfg(feature = "lock-share")]
use std::time::Instant;

/// True if this build counts.
pub(crate) const IS_COUNTED: bool = cfg!(feature = "lock-share");

/// What one thread has spent in lock sections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Spent {
    /// Nanoseconds until locks were ours.
    pub waiting_ns: u64,
    /// Nanoseconds until they were given back.
    pub holding_ns: u64,
    /// Sections.
    pub sections: u64,
    /// Nanoseconds that the counting itself took, where that is much.
    pub aside_ns: u64,
}

impl Spent {
    /// Adds what another thread has spent.
    pub(crate) fn add(&mut self, other: &Spent) {
        self.waiting_ns += other.waiting_ns;
        self.holding_ns += other.holding_ns;
        self.sections += other.sections;
        self.aside_ns += other.aside_ns;
    }
}

#[cfg(feature = "lock-share")]
thread_local! {
    static SPENT: Cell<Spent> = const {
        Cell::new(Spent { waiting_ns: 0, holding_ns: 0, sections: 0, aside_ns: 0 })
    };
}

/// A lock section.
#[must_use = "the section ends when this is dropped"]
pub(crate) struct Timed<G> {
    guard: G,
    #[cfg(feature = "lock-share")]
    since: Instant,
}

/// Returns the section that `take` opens.
#[inline]
pub(super) fn timed<G>(take: impl FnOnce() -> G) -> Timed<G> {
    #[cfg(feature = "lock-share")]
    let asked = Instant::now();
    let guard = take();
    #[cfg(feature = "lock-share")]
    {
        let since = Instant::now();
        let mut spent = SPENT.get();
        spent.waiting_ns += (since - asked).as_nanos() as u64;
        spent.sections += 1;
        SPENT.set(spent);
        Timed { guard, since }
    }
    #[cfg(not(feature = "lock-share"))]
    Timed { guard }
}

/// Returns what `work` returns, and takes all of it for a section if `count` has moved meanwhile: for
/// a design that takes its locks where nothing can be put around them, and counts.
#[cfg(feature = "lock-share")]
pub(crate) fn timed_if_moved<R>(work: impl FnOnce() -> R, count: impl Fn() -> u64) -> R {
    let asked = Instant::now();
    let before = count();
    let start = Instant::now();
    let result = work();
    let end = Instant::now();
    let has_moved = count() != before;
    let mut spent = SPENT.get();
    if has_moved {
        spent.holding_ns += (end - start).as_nanos() as u64;
        spent.sections += 1;
    }
    spent.aside_ns += ((start - asked) + end.elapsed()).as_nanos() as u64;
    SPENT.set(spent);
    result
}

/// Returns what `work` returns.
#[cfg(not(feature = "lock-share"))]
#[inline]
pub(crate) fn timed_if_moved<R>(work: impl FnOnce() -> R, _count: impl Fn() -> u64) -> R {
    work()
}

/// Returns what the calling thread has spent since it last asked.
pub(crate) fn take_spent() -> Spent {
    #[cfg(feature = "lock-share")]
    return SPENT.take();
    #[cfg(not(feature = "lock-share"))]
    Spent::default()
}

impl<G> Deref for Timed<G> {
    type Target = G;

    fn deref(&self) -> &G {
        &self.guard
    }
}

impl<G> DerefMut for Timed<G> {
    fn deref_mut(&mut self) -> &mut G {
        &mut self.guard
    }
}

#[cfg(feature = "lock-share")]
impl<G> Drop for Timed<G> {
    #[inline]
    fn drop(&mut self) {
        let mut spent = SPENT.get();
        spent.holding_ns += self.since.elapsed().as_nanos() as u64;
        SPENT.set(spent);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use corewalk_base::Mutex;

    #[test]
    fn section_is_counted_in_builds_that_count() {
        take_spent();
        let lock = Mutex::new(());
        drop(timed(|| lock.lock()));
        assert!(lock.try_lock().is_some(), "the section has ended");
        let spent = take_spent();
        assert_eq!(spent.sections, u64::from(IS_COUNTED));
        assert_eq!(take_spent(), Spent::default());
    }

    #[test]
    fn work_is_a_section_if_the_count_moves_meanwhile() {
        take_spent();
        let count = std::cell::Cell::new(0);
        timed_if_moved(|| (), || count.get());
        assert_eq!(take_spent().sections, 0);
        timed_if_moved(|| count.set(1), || count.get());
        assert_eq!(take_spent().sections, u64::from(IS_COUNTED));
    }
}
