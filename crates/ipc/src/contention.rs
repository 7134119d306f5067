//! Counts of waits for other calls, like those of the kernel's lock_stat.
//!
//! A wait begins when a call finds a lock held or a word frozen. It ends when the call has the lock
//! or the word, or goes on to the lock of the set. A failed compare-exchange is not counted, since
//! the call tries again at once. A wait for a semaphore's value or for a message is not counted
//! either.
//!
//! Only slow paths read the clock, and only with [`NamespaceOptions::is_contention_counted`]. Two
//! reads of the clock take as long as a lock is held.
//!
//! Source: Linux `Documentation/locking/lockstat.rst`, `contentions` and `waittime-total`.
//!
//! [`NamespaceOptions::is_contention_counted`]: crate::NamespaceOptions::is_contention_counted

use corewalk_base::CachePadded;
use corewalk_base::futex;
use corewalk_base::primitives::unmodelled::{AtomicU64, Ordering};

/// The result of [`Namespace::contention`](crate::Namespace::contention).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Contention {
    /// How often a call found a lock held, or a semaphore frozen.
    pub contentions: u64,
    /// The sum of the wall-clock times of all these waits, in nanoseconds.
    pub waited_ns: u64,
}

/// The counts of waits in this process, for one namespace.
#[derive(Default)]
pub(crate) struct Counts {
    is_counted: bool,
    /// The counts have their own cache lines, apart from the fields that every call reads.
    sums: CachePadded<Sums>,
}

#[derive(Default)]
struct Sums {
    contentions: AtomicU64,
    waited_ns: AtomicU64,
}

/// A wait that is being counted. Its drop ends the wait.
pub(crate) struct Waits<'c> {
    sums: &'c Sums,
    start_ns: u64,
}

impl Counts {
    pub(crate) fn new(is_counted: bool) -> Self {
        Self { is_counted, ..Self::default() }
    }

    /// Begins a wait, which ends when the result is dropped. Returns none if waits are not counted.
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
