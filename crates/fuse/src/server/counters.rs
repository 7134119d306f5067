//! What a server counts, and how it shows it.
//!
//! Each count is spread over the threads, so that counting moves no cache line between them. A hit
//! is a name that a request had to resolve and that the back end was not asked for: the difference
//! of two counts, exact while nothing runs. Names that are made anew are neither hits nor misses.

use std::fmt::Write as _;

use corewalk::Stats;
use corewalk_base::ShardedCounter;

/// The counts of a server.
#[derive(Debug, Default)]
pub(crate) struct Tallies {
    pub(crate) requests: ShardedCounter,
    /// Names that requests had to resolve.
    pub(crate) names: ShardedCounter,
    pub(crate) lookups: ShardedCounter,
    pub(crate) refused_forgets: ShardedCounter,
    pub(crate) panics: ShardedCounter,
}

/// What a mount holds and has done. Counts since the start, unless it says otherwise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// The names in the cache now, the root included.
    pub entries: u64,
    /// The names in the cache now that are known not to exist.
    pub negatives: u64,
    /// Entries of removed names that are held still, or wait for what is cached below them.
    pub removed: u64,
    /// The inodes in the cache now.
    pub inodes: u64,
    /// Bytes that the cache takes now.
    pub bytes: u64,
    /// Bytes that the cache may take.
    pub budget_bytes: u64,
    /// Names resolved without the back end.
    pub hits: u64,
    /// Names that the back end was asked for.
    pub misses: u64,
    /// Passes of a walk that a change made begin again.
    pub retries: u64,
    /// Walks that became a ref-walk, since too many passes failed.
    pub fallbacks: u64,
    /// Answers of the back end that were not cached, since an invalidation came in between.
    pub refused_fills: u64,
    /// Entries evicted.
    pub reclaimed: u64,
    /// Renames and exchanges.
    pub renames: u64,
    /// Invalidations.
    pub invalidations: u64,
    /// Requests served.
    pub requests: u64,
    /// Lookups that the kernel holds now, in all (the sum of `nlookup`).
    pub lookups: u64,
    /// Forgets that named more lookups than the kernel held.
    pub refused_forgets: u64,
    /// Requests that panicked.
    pub panics: u64,
}

impl Tallies {
    /// Returns the counts together with those of the cache.
    pub(crate) fn read(&self, stats: &Stats) -> Counters {
        let count = |counter: &ShardedCounter| counter.sum().max(0) as u64;
        Counters {
            entries: stats.entries,
            negatives: stats.negatives,
            removed: stats.removed,
            inodes: stats.inodes,
            bytes: stats.bytes,
            budget_bytes: stats.budget_bytes,
            hits: count(&self.names).saturating_sub(stats.misses),
            misses: stats.misses,
            retries: stats.retries,
            fallbacks: stats.fallbacks,
            refused_fills: stats.refused_fills,
            reclaimed: stats.reclaimed,
            renames: stats.renames,
            invalidations: stats.invalidations,
            requests: count(&self.requests),
            lookups: count(&self.lookups),
            refused_forgets: count(&self.refused_forgets),
            panics: count(&self.panics),
        }
    }
}

impl Counters {
    /// Returns each count with its name, in a fixed order.
    pub fn fields(&self) -> [(&'static str, u64); 18] {
        [
            ("entries", self.entries),
            ("negatives", self.negatives),
            ("removed", self.removed),
            ("inodes", self.inodes),
            ("bytes", self.bytes),
            ("budget_bytes", self.budget_bytes),
            ("hits", self.hits),
            ("misses", self.misses),
            ("retries", self.retries),
            ("fallbacks", self.fallbacks),
            ("refused_fills", self.refused_fills),
            ("reclaimed", self.reclaimed),
            ("renames", self.renames),
            ("invalidations", self.invalidations),
            ("requests", self.requests),
            ("lookups", self.lookups),
            ("refused_forgets", self.refused_forgets),
            ("panics", self.panics),
        ]
    }

    /// Returns the counts as one JSON object, in the order of [`Counters::fields`].
    ///
    /// # Examples
    /// ```
    /// let json = corewalk_fuse::Counters { hits: 7, ..Default::default() }.to_json();
    /// assert!(json.starts_with("{\"entries\":0,"));
    /// assert!(json.contains("\"hits\":7"));
    /// ```
    pub fn to_json(&self) -> String {
        self.to_json_with(&[])
    }

    /// Returns the counts, and behind them those of the back end, as one JSON object.
    pub(crate) fn to_json_with(self, own: &[(&'static str, u64)]) -> String {
        let mut json = String::from("{");
        for (at, (name, value)) in self.fields().iter().chain(own).enumerate() {
            let comma = if at == 0 { "" } else { "," };
            write!(json, "{comma}\"{name}\":{value}").expect("a string grows");
        }
        json.push('}');
        json
    }
}
