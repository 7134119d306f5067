//! The counters of a server.
//!
//! - Each counter is spread over several cache lines, so that threads do not contend for it.
//! - A hit is a name that the cache resolved for a request, without the back end. The number of
//!   hits is the number of requested names minus the number of misses.
//! - A running request may have counted its names but not its misses. So the number of hits is
//!   exact only while no request runs.
//! - The name of a new file is neither a hit nor a miss.

use std::fmt::Write as _;

use corewalk::Stats;
use corewalk_base::ShardedCounter;

#[derive(Debug, Default)]
pub(crate) struct Tallies {
    pub(crate) requests: ShardedCounter,
    pub(crate) names: ShardedCounter,
    pub(crate) lookups: ShardedCounter,
    pub(crate) refused_forgets: ShardedCounter,
    pub(crate) panics: ShardedCounter,
}

/// The state of a mount, and the numbers of events since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counters {
    /// The number of names in the cache, with the root.
    pub entries: u64,
    /// The number of cached names that do not exist (negative dentries).
    pub negatives: u64,
    /// The number of dentries of removed names that are still referenced, or that still have cached
    /// children.
    pub removed: u64,
    /// The inodes in the cache now.
    pub inodes: u64,
    /// The bytes that the cache uses now.
    pub bytes: u64,
    /// The bytes that the cache may use.
    pub budget_bytes: u64,
    /// The number of names that were resolved without the back end.
    pub hits: u64,
    /// The number of names that the back end has resolved.
    pub misses: u64,
    /// The number of retries of path walks and of translations from an inode to its path. A
    /// concurrent change makes an attempt fail.
    pub retries: u64,
    /// The number of operations that took a slow path after several failed attempts. They are path
    /// walks that took references, and path translations that blocked renames of directories.
    pub fallbacks: u64,
    /// The number of back-end answers that the cache refused, because the name was invalidated
    /// during the back-end call.
    pub refused_fills: u64,
    /// Evicted entries.
    pub reclaimed: u64,
    /// Renames, including exchanges.
    pub renames: u64,
    /// Invalidations.
    pub invalidations: u64,
    /// Requests.
    pub requests: u64,
    /// The number of lookups that the kernel holds now: the sum of `nlookup` over all inodes.
    pub lookups: u64,
    /// The number of forgets that the server refused, because they returned more lookups than the
    /// kernel held.
    pub refused_forgets: u64,
    /// Requests that panicked.
    pub panics: u64,
}

impl Tallies {
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
    /// Returns each counter with its name, in a fixed order.
    ///
    /// # Examples
    /// ```
    /// let counters = corewalk_fuse::Counters::default();
    /// assert!(counters.fields().any(|(name, value)| name == "hits" && value == 0));
    /// ```
    pub fn fields(&self) -> impl Iterator<Item = (&'static str, u64)> + use<> {
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
        .into_iter()
    }

    /// Returns the counters as one JSON object, in the order of [`Counters::fields`].
    ///
    /// # Examples
    /// ```
    /// let mut counters = corewalk_fuse::Counters::default();
    /// counters.hits = 7;
    /// assert!(counters.to_json().starts_with("{\"entries\":0,"));
    /// assert!(counters.to_json().contains("\"hits\":7"));
    /// ```
    pub fn to_json(&self) -> String {
        self.to_json_with(&[], None)
    }

    /// Returns the counters as one JSON object, with the additional counters `own` and the string
    /// `transport`. That string must contain no character that JSON would escape.
    pub(crate) fn to_json_with(
        self,
        own: &[(&'static str, u64)],
        transport: Option<&str>,
    ) -> String {
        let mut json = String::from("{");
        for (at, (name, value)) in self.fields().chain(own.iter().copied()).enumerate() {
            let comma = if at == 0 { "" } else { "," };
            write!(json, "{comma}\"{name}\":{value}").expect("a string grows");
        }
        if let Some(transport) = transport {
            write!(json, ",\"transport\":\"{transport}\"").expect("a string grows");
        }
        json.push('}');
        json
    }
}
