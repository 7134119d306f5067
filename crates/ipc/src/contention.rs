//! How often, and for how long, calls wait for what another call has: what the kernel's lock_stat tells.
//!
//! Counted is a lock that is found taken, and a word that is found frozen, with the time until the caller has
//! it, or goes on to the lock of the set instead. A compare-exchange that is lost is tried again at once and is
//! not counted; nor is a semaphore that is too small, or a queue that is empty: that is a wait for its own sake.
//!
//! The clock is read on slow paths only, and only if [`NamespaceOptions::is_contention_counted`]: two looks at it
//! are as long as a lock is held.
//!
//! Source: Linux `Documentation/locking/lockstat.rst`, `contentions` and `waittime-total`.
//!
//! [`NamespaceOptions::is_contention_counted`]: crate::NamespaceOptions::is_contention_counted

use corewalk_base::CachePadded;
use corewalk_base::futex;
use corewalk_base::primitives::unmodelled::{AtomicU64, Ordering};

/// What [`Namespace::contention`](crate::Namespace::contention) tells.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Contention {
    /// How often a lock was found taken, or a semaphore in the middle of another operation.
    pub contentions: u64,
    /// How long calls have waited for that, in nanoseconds by the wall clock, all together.
    pub waited_ns: u64,
}

/// The counts of a namespace in this process.
#[derive(Default)]
pub(crate) struct Counts {
    is_counted: bool,
    /// Apart from what every call reads.
    sums: CachePadded<Sums>,
}

#[derive(Default)]
struct Sums {
    contentions: AtomicU64,
    waited_ns: AtomicU64,
}

/// A wait that is counted when it ends.
pub(crate) struct Waits<'c> {
    sums: &'c Sums,
    start_ns: u64,
}

impl Counts {
    pub(crate) fn new(is_counted: bool) -> Self {
        Self { is_counted, ..Self::default() }
    }

    /// Begins a wait, which lasts until what is returned is dropped.
    #[inline]
    pub(crate) fn begin(&self) -> Option<Waits<'_>> {
        self.is_counted.then(|| Waits { sums: &self.sums, start_ns: futex::now().monotonic_ns })
    }

    pub(crate) fn sum(&self) -> Contention {
        // ORDERING: Relaxed. Statistics.
        let get = |count: &AtomicU64| count.load(Ordering::Relaxed);
        Contention {
            contentions: get(&self.sums.contentions),
            waited_ns: get(&self.sums.waited_ns),
        }
    }
}

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        let waited_ns = futex::now().monotonic_ns.saturating_sub(self.start_ns);
        // ORDERING: Relaxed. Statistics.
        self.sums.waited_ns.fetch_add(waited_ns, Ordering::Relaxed);
        // ORDERING: Relaxed. As above.
        self.sums.contentions.fetch_add(1, Ordering::Relaxed);
    }
}
