//! How often what happened, of what happens seldom.
//!
//! Creations are counted by the buckets, under the lock that they take anyway, and deletions follow from
//! those and from how many entries there are: so neither pays for it with another locked instruction, a
//! third of what it takes. Who asks looks at all lines.

use corewalk_sync::primitives::unmodelled::{AtomicU64, Ordering};

/// What is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// Entries that were created; what the buckets have not counted.
    Created,
    Duplicate,
    Busy,
    Reclaimed,
}

/// The counts of a cache.
#[derive(Debug, Default)]
pub(crate) struct Counts([AtomicU64; 4]);

impl Counts {
    /// Counts `event` so many times more.
    pub(crate) fn add(&self, event: Event, times: u64) {
        // ORDERING: Relaxed. Statistic; nothing is published through it.
        self.0[event as usize].fetch_add(times, Ordering::Relaxed);
    }

    /// Returns how often it happened.
    pub(crate) fn get(&self, event: Event) -> u64 {
        // ORDERING: Relaxed. Statistic; nothing is published through it.
        self.0[event as usize].load(Ordering::Relaxed)
    }
}
