//! How often what happened, of what happens seldom.
//!
//! Creations are counted by the stamps of the buckets, and deletions follow from those and from how many
//! entries there are: so neither pays for it. Who asks looks at all lines. The rest is spread over lines by
//! threads, so that refusals on different keys do not meet here (G.7).

use corewalk_base::ShardedCounter;

/// What is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    Duplicate,
    Busy,
    Reclaimed,
}

/// The counts of a cache.
#[derive(Debug, Default)]
pub(crate) struct Counts([ShardedCounter; 3]);

impl Counts {
    /// Counts `event` once more.
    pub(crate) fn add(&self, event: Event) {
        self.0[event as usize].add(1);
    }

    /// Returns how often it happened.
    pub(crate) fn get(&self, event: Event) -> u64 {
        self.0[event as usize].sum().unsigned_abs()
    }
}
