//! Measures how long threads wait for locks and hold them, for the benchmark table `lock-share`.
//!
//! Two readings of the clock cost more than most lock sections. So lock sections are timed only
//! while the table `lock-share` keeps a value of [`Counting`]. Otherwise a section costs one load
//! of a shared word that no thread changes.
//!
//! # The lock sections
//! A lock section begins when a thread asks for the rename lock or for `dcache_lock`, and ends with
//! the release. The time before the thread has the lock is its waiting time; the rest is its
//! holding time.
//!
//! A path translation takes the lock of a dentry only inside a lock section, so a wait for it
//! counts as holding time. A wait of a reader of a sequence for the end of a rename is in no
//! section: a profile of the kernel's spin locks does not show it either.
//!
//! Source: the column "% spinlock" of Long, February 2013 (document 000 in `documents.md`).

use std::cell::Cell;
use std::time::Instant;

use corewalk_base::primitives::unmodelled::{AtomicU64, Ordering};

/// How many tables count.
static COUNTING: AtomicU64 = AtomicU64::new(0);

/// Counts the sections of all threads until it is dropped.
pub(crate) struct Counting(());

/// The time that one thread spent in lock sections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Spent {
    /// Nanoseconds until the thread had its locks.
    pub waiting_ns: u64,
    /// Nanoseconds until it released them.
    pub holding_ns: u64,
    /// Sections.
    pub sections: u64,
    /// Nanoseconds that the counting itself took, where that is much.
    pub aside_ns: u64,
}

thread_local! {
    static SPENT: Cell<Spent> = const {
        Cell::new(Spent { waiting_ns: 0, holding_ns: 0, sections: 0, aside_ns: 0 })
    };
}

/// A lock section.
#[must_use = "the section ends when this is dropped"]
pub(crate) struct Timed<G> {
    _guard: G,
    since: Option<Instant>,
}

impl Counting {
    /// Begins to count.
    pub(crate) fn start() -> Counting {
        // ORDERING: Relaxed. A switch; threads that matter are spawned later.
        COUNTING.fetch_add(1, Ordering::Relaxed);
        Counting(())
    }

    #[inline]
    fn is_on() -> bool {
        // ORDERING: Relaxed. See `start`.
        COUNTING.load(Ordering::Relaxed) > 0
    }
}

impl Drop for Counting {
    fn drop(&mut self) {
        // ORDERING: Relaxed. See `start`.
        COUNTING.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Spent {
    /// Adds the time of another thread.
    pub(crate) fn add(&mut self, other: &Spent) {
        self.waiting_ns += other.waiting_ns;
        self.holding_ns += other.holding_ns;
        self.sections += other.sections;
        self.aside_ns += other.aside_ns;
    }
}

/// Begins a section with the guard that `take` returns.
#[inline]
pub(super) fn timed<G>(take: impl FnOnce() -> G) -> Timed<G> {
    if !Counting::is_on() {
        return Timed { _guard: take(), since: None };
    }
    let asked = Instant::now();
    let _guard = take();
    let since = Instant::now();
    let mut spent = SPENT.get();
    spent.waiting_ns += (since - asked).as_nanos() as u64;
    spent.sections += 1;
    SPENT.set(spent);
    Timed { _guard, since: Some(since) }
}

/// Runs `work`. If `work` took a lock, counts its time as a lock section of this thread. `count`
/// returns how many calls took a lock so far, so two calls of it show that. Their time is added to
/// `aside_ns`.
#[inline]
pub(crate) fn timed_if_moved<R>(work: impl FnOnce() -> R, count: impl Fn() -> u64) -> R {
    if !Counting::is_on() {
        return work();
    }
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
    fn section_is_counted_while_a_table_counts() {
        let _counting = Counting::start();
        take_spent();
        let lock = Mutex::new(());
        drop(timed(|| lock.lock()));
        assert!(lock.try_lock().is_some(), "the section has ended");
        assert_eq!(take_spent().sections, 1);
        assert_eq!(take_spent(), Spent::default());
    }

    #[test]
    fn work_is_a_section_if_the_count_moves_meanwhile() {
        let _counting = Counting::start();
        take_spent();
        let count = std::cell::Cell::new(0);
        timed_if_moved(|| (), || count.get());
        assert_eq!(take_spent().sections, 0);
        timed_if_moved(|| count.set(1), || count.get());
        assert_eq!(take_spent().sections, 1);
    }
}
