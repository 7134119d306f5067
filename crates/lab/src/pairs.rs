//! Multimaps from keys to values, in which pairs are unique: what the table `mbcache` compares.
//!
//! | variant | design |
//! |---|---|
//! | `corewalk` | `corewalk-mbcache` |
//! | `mutex-shards` | 64 hash tables with a mutex each; two values stand beside the key |
//! | `rwlock-ahash` | one read-write lock around such a table |
//!
//! The maps have room for all keys from the beginning, know no budget and drop nothing, and mark
//! nothing as used. A find of theirs copies a value under the lock; that of `corewalk` counts a
//! user of the entry and releases it.
//!
//! Source: document 004 (Kara, December 2015).

mod maps;

pub(crate) use maps::{Locked, Shards};

use corewalk_mbcache::{Mbcache, MbcacheOptions};

/// A multimap of pairs.
pub(crate) trait Pairs: Sync {
    /// Returns the name in the rows.
    fn variant(&self) -> &'static str;

    /// Returns true if the pair is there.
    fn get(&self, key: u64, value: u64) -> bool;

    /// Returns a value of the key.
    fn find(&self, key: u64) -> Option<u64>;

    /// Enters a pair; false if it is there.
    fn create(&self, key: u64, value: u64) -> bool;

    /// Removes a pair. Returns false if it is in use or missing.
    fn delete(&self, key: u64, value: u64) -> bool;
}

/// `corewalk`.
pub(crate) struct Ours(Mbcache);

impl Ours {
    /// Returns an empty cache with its default budget.
    ///
    /// # Errors
    /// If there is no address space.
    pub(crate) fn new() -> anyhow::Result<Ours> {
        Ok(Ours(Mbcache::new(MbcacheOptions::default())?))
    }

    /// Returns how many entries were dropped.
    pub(crate) fn dropped(&self) -> u64 {
        self.0.stats().reclaimed
    }
}

impl Pairs for Ours {
    fn variant(&self) -> &'static str {
        "corewalk"
    }

    #[inline]
    fn get(&self, key: u64, value: u64) -> bool {
        self.0.get(key, value).is_some()
    }

    #[inline]
    fn find(&self, key: u64) -> Option<u64> {
        self.0.find_first(key).map(|entry| entry.value())
    }

    #[inline]
    fn create(&self, key: u64, value: u64) -> bool {
        self.0.create(key, value).is_ok()
    }

    #[inline]
    fn delete(&self, key: u64, value: u64) -> bool {
        self.0.delete_or_get(key, value).is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_design_is_a_multimap_of_unique_pairs() {
        let all: [Box<dyn Pairs>; 3] = [
            Box::new(Ours::new().unwrap()),
            Box::new(Shards::new(100)),
            Box::new(Locked::new(100)),
        ];
        for pairs in all {
            let name = pairs.variant();
            for value in 0..1_000 {
                assert!(
                    pairs.create(value % 50, value) && !pairs.create(value % 50, value),
                    "{name}"
                );
            }
            for value in 0..1_000 {
                assert!(
                    pairs.get(value % 50, value) && !pairs.get(value % 50 + 1, value),
                    "{name}"
                );
                assert_eq!(
                    pairs.find(value % 50).map(|found| found % 50),
                    Some(value % 50),
                    "{name}"
                );
                assert!(pairs.delete(value % 50, value) && !pairs.get(value % 50, value), "{name}");
            }
            assert_eq!(pairs.find(7), None, "{name}");
        }
    }
}
