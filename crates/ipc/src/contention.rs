//! Counts of waits for a lock that another call holds, like those of the kernel's lock_stat.
//!
//! A wait begins when a call finds a lock held, or the word of a semaphore frozen (locked by
//! another call). It ends when the call has the lock or the word, or takes the set's lock instead.
//!
//! Failed compare-exchanges are not counted. Nor are waits for a semaphore's value or for a
//! message.
//!
//! The table `lock-share` of `corewalk-lab` shows the counts. Waits are counted only with
//! [`NamespaceOptions::is_contention_counted`]. A call that counts a wait reads the clock twice,
//! which takes as long as a call holds a lock.
//!
//! Source: Linux `Documentation/locking/lockstat.rst`, `contentions` and `waittime-total`.
//!
//! [`NamespaceOptions::is_contention_counted`]: crate::NamespaceOptions::is_contention_counted

use corewalk_base::CachePadded;
use corewalk_base::futex;
use corewalk_base::primitives::unmodelled::{AtomicU64, Ordering};

/// The number and the total time of the waits for locks, as
/// [`Namespace::contention`](crate::Namespace::contention) returns them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Contention {
    /// The number of times that a call found a lock held, or a semaphore frozen (locked by another
    /// call).
    pub contentions: u64,
    /// The total time of the counted waits, in nanoseconds of the wall clock.
    pub waited_ns: u64,
}

/// The counters behind [`Contention`], or none if waits are not counted. They have their own cache
/// lines, apart from the fields that every call reads.
#[derive(Default)]
pub(crate) struct Counts(pub(crate) Option<CachePadded<[AtomicU64; 2]>>);

/// A wait that is being counted. Its drop ends the wait.
pub(crate) struct Waits<'c> {
    sums: &'c [AtomicU64; 2],
    start_ns: u64,
}

impl Counts {
    /// Begins a wait for another call.
    #[inline]
    pub(crate) fn begin(&self) -> Option<Waits<'_>> {
        self.0.as_ref().map(|sums| Waits { sums, start_ns: futex::now().monotonic_ns })
    }

    pub(crate) fn sum(&self) -> Contention {
        // ORDERING: Relaxed. Statistics.
        let get = |at: usize| self.0.as_ref().map_or(0, |sums| sums[at].load(Ordering::Relaxed));
        Contention { contentions: get(0), waited_ns: get(1) }
    }
}

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        let waited_ns = futex::now().monotonic_ns.saturating_sub(self.start_ns);
        for (sum, more) in self.sums.iter().zip([1, waited_ns]) {
            // ORDERING: Relaxed. Statistics.
            sum.fetch_add(more, Ordering::Relaxed);
        }
    }
}
