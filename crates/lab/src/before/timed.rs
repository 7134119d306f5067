//! Measures how long threads wait for locks and hold them, for the benchmark table `lock-share`.
//!
//! Two readings of the clock cost more than most lock sections. So only the designs of that table
//! time their lock sections ([`Before::timed`](super::Before::timed)).
//!
//! # The lock sections
//! A lock section begins when a thread asks for the rename lock or for `dcache_lock`, and ends with
//! the release. The time before the thread has the lock is its waiting time; the rest is its
//! holding time.
//!
//! A path translation takes the lock of a dentry only inside a lock section, so a wait for it
//! counts as holding time. A reader of a sequence may wait for the end of a rename. This wait is in
//! no section, and a profile of the kernel's spin locks does not show it either.
//!
//! Source: the column "% spinlock" of Long, February 2013 (document 000 in `documents.md`).

use std::cell::Cell;
use std::time::Instant;

/// The time that one thread spent in lock sections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Spent {
    /// Nanoseconds for which the thread waited for its locks.
    pub waiting_ns: u64,
    /// Nanoseconds for which the thread held its locks.
    pub holding_ns: u64,
}

thread_local! {
    static SPENT: Cell<Spent> = const { Cell::new(Spent { waiting_ns: 0, holding_ns: 0 }) };
}

/// A lock section.
#[must_use = "the section ends when this is dropped"]
pub(crate) struct Timed<G> {
    _guard: G,
    since: Option<Instant>,
}

impl Spent {
    /// Adds the time of another thread.
    pub(crate) fn add(&mut self, other: &Spent) {
        self.waiting_ns += other.waiting_ns;
        self.holding_ns += other.holding_ns;
    }
}

/// Takes locks by `take`. Begins a lock section, which ends with the drop of the result. Measures
/// its times only if `is_timed` is true.
#[inline]
pub(super) fn timed<G>(is_timed: bool, take: impl FnOnce() -> G) -> Timed<G> {
    if !is_timed {
        return Timed { _guard: take(), since: None };
    }
    let asked = Instant::now();
    let _guard = take();
    let since = Instant::now();
    let mut spent = SPENT.get();
    spent.waiting_ns += (since - asked).as_nanos() as u64;
    SPENT.set(spent);
    Timed { _guard, since: Some(since) }
}

/// Returns the time that this thread spent since the last call.
pub(crate) fn take_spent() -> Spent {
    SPENT.take()
}

impl<G> Drop for Timed<G> {
    #[inline]
    fn drop(&mut self) {
        if let Some(since) = self.since {
            let mut spent = SPENT.get();
            spent.holding_ns += since.elapsed().as_nanos() as u64;
            SPENT.set(spent);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use corewalk_base::Mutex;

    #[test]
    fn section_is_counted_if_it_is_timed() {
        take_spent();
        let lock = Mutex::new(());
        drop(timed(false, || lock.lock()));
        assert_eq!(take_spent(), Spent::default());
        drop(timed(true, || lock.lock()));
        assert!(lock.try_lock().is_some(), "the section has ended");
        assert!(take_spent().holding_ns > 0);
        assert_eq!(take_spent(), Spent::default());
    }
}
