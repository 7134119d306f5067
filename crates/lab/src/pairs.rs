//! The multimaps of unique (key, value) pairs that the table `mbcache` compares.
//!
//! | variant | design |
//! |---|---|
//! | `corewalk` | `corewalk-mbcache` |
//! | `mutex-shards` | 64 hash tables with a mutex each; two values stand beside the key |
//!
//! The hash tables have room for all keys from the start. They have no byte budget, drop no entry,
//! and cannot tell which entry is in use. Their find copies a value under the lock. The find of
//! `corewalk` takes a reference of the entry and drops it.
//!
//! Source: document 004 (Kara, December 2015).

use ahash::RandomState;
use corewalk_base::{CachePadded, Mutex};
use corewalk_mbcache::{Mbcache, MbcacheOptions};
use hashbrown::HashTable;
use smallvec::SmallVec;

/// Shards of `mutex-shards`.
const SHARDS: usize = 64;

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

    /// Removes a pair. Returns false if the pair is missing, or another thread uses it.
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
        self.0.get(key, value)
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

/// `mutex-shards`.
pub(crate) struct Shards {
    shards: Box<[CachePadded<Mutex<Table>>]>,
    hasher: RandomState,
}

type Table = HashTable<(u64, SmallVec<[u64; 2]>)>;

impl Shards {
    /// Returns an empty map with room for so many keys.
    pub(crate) fn new(keys: usize) -> Shards {
        let shard = |_| CachePadded::new(Mutex::new(Table::with_capacity(keys / SHARDS)));
        Shards { shards: (0..SHARDS).map(shard).collect(), hasher: RandomState::new() }
    }

    #[inline]
    fn at(&self, key: u64) -> (u64, &Mutex<Table>) {
        // The table takes its bits from both ends.
        let hash = self.hasher.hash_one(key);
        (hash, &self.shards[(hash >> 20) as usize % SHARDS])
    }
}

impl Pairs for Shards {
    fn variant(&self) -> &'static str {
        "mutex-shards"
    }

    #[inline]
    fn get(&self, key: u64, value: u64) -> bool {
        let (hash, shard) = self.at(key);
        shard
            .lock()
            .find(hash, |entry| entry.0 == key)
            .is_some_and(|entry| entry.1.contains(&value))
    }

    #[inline]
    fn find(&self, key: u64) -> Option<u64> {
        let (hash, shard) = self.at(key);
        shard.lock().find(hash, |entry| entry.0 == key)?.1.last().copied()
    }

    #[inline]
    fn create(&self, key: u64, value: u64) -> bool {
        let (hash, shard) = self.at(key);
        let mut table = shard.lock();
        let rehash = |entry: &(u64, _)| self.hasher.hash_one(entry.0);
        let entry = table.entry(hash, |entry| entry.0 == key, rehash);
        let values = &mut entry.or_insert_with(|| (key, SmallVec::new())).into_mut().1;
        let is_new = !values.contains(&value);
        if is_new {
            values.push(value);
        }
        is_new
    }

    #[inline]
    fn delete(&self, key: u64, value: u64) -> bool {
        let (hash, shard) = self.at(key);
        let mut table = shard.lock();
        let Ok(mut entry) = table.find_entry(hash, |entry| entry.0 == key) else { return false };
        let values = &mut entry.get_mut().1;
        let at = values.iter().position(|&other| other == value);
        let is_deleted = at.map(|at| values.swap_remove(at)).is_some();
        if values.is_empty() {
            entry.remove();
        }
        is_deleted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_design_is_a_multimap_of_unique_pairs() {
        let all: [Box<dyn Pairs>; 2] = [Box::new(Ours::new().unwrap()), Box::new(Shards::new(100))];
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
