//! The multimaps of unique (key, value) pairs that the benchmark table `mbcache` compares.
//!
//! | variant | design |
//! |---|---|
//! | `corewalk` | `corewalk-mbcache` |
//! | `mutex-shards` | 64 hash tables with a mutex each; two values stand beside the key |
//!
//! `mutex-shards` has less work to do than `corewalk`. Its hash tables have room for all keys from
//! the start. They have no byte budget, drop no entry, and do not know which entry is in use. A
//! find in `mutex-shards` copies a value under the lock. A find in `corewalk` takes and drops a
//! reference of the entry.
//!
//! Source: Kara, December 2015 (document 004 in `documents.md`).

use ahash::RandomState;
use corewalk_base::{CachePadded, Mutex, MutexGuard};
use corewalk_mbcache::Mbcache;
use hashbrown::HashMap;
use hashbrown::hash_map::Entry;
use smallvec::SmallVec;

/// Shards of `mutex-shards`.
const SHARDS: usize = 64;

/// A multimap of pairs.
pub(crate) trait Pairs: Sync {
    /// Returns the name of this variant in the result rows.
    fn variant(&self) -> &'static str;

    /// Returns true if the pair is there.
    fn get(&self, key: u64, value: u64) -> bool;

    /// Returns a value of the key.
    fn find(&self, key: u64) -> Option<u64>;

    /// Adds a pair. Returns false if the pair already exists.
    fn create(&self, key: u64, value: u64) -> bool;

    /// Removes a pair. Returns false if it does not exist, or if another thread uses it.
    fn delete(&self, key: u64, value: u64) -> bool;
}

impl Pairs for Mbcache {
    fn variant(&self) -> &'static str {
        "corewalk"
    }

    #[inline]
    fn get(&self, key: u64, value: u64) -> bool {
        Mbcache::get(self, key, value)
    }

    #[inline]
    fn find(&self, key: u64) -> Option<u64> {
        self.find_first(key).map(|entry| entry.value())
    }

    #[inline]
    fn create(&self, key: u64, value: u64) -> bool {
        Mbcache::create(self, key, value).is_ok()
    }

    #[inline]
    fn delete(&self, key: u64, value: u64) -> bool {
        self.delete_or_get(key, value).is_none()
    }
}

/// `mutex-shards`.
pub(crate) struct Shards(Box<[CachePadded<Mutex<Table>>]>);

type Table = HashMap<u64, SmallVec<[u64; 2]>, RandomState>;

impl Shards {
    /// Returns an empty map with room for `keys` keys.
    pub(crate) fn new(keys: usize) -> Shards {
        let table = || Table::with_capacity_and_hasher(keys / SHARDS, RandomState::new());
        Shards((0..SHARDS).map(|_| CachePadded::new(Mutex::new(table()))).collect())
    }

    #[inline]
    fn shard(&self, key: u64) -> MutexGuard<'_, Table> {
        // The keys of the benchmark differ in all bits, so any bits can select the shard.
        self.0[(key >> 32) as usize % SHARDS].lock()
    }
}

impl Pairs for Shards {
    fn variant(&self) -> &'static str {
        "mutex-shards"
    }

    #[inline]
    fn get(&self, key: u64, value: u64) -> bool {
        self.shard(key).get(&key).is_some_and(|values| values.contains(&value))
    }

    #[inline]
    fn find(&self, key: u64) -> Option<u64> {
        self.shard(key).get(&key)?.last().copied()
    }

    #[inline]
    fn create(&self, key: u64, value: u64) -> bool {
        let mut table = self.shard(key);
        let values = table.entry(key).or_default();
        let is_new = !values.contains(&value);
        if is_new {
            values.push(value);
        }
        is_new
    }

    #[inline]
    fn delete(&self, key: u64, value: u64) -> bool {
        let mut table = self.shard(key);
        let Entry::Occupied(mut entry) = table.entry(key) else { return false };
        let values = entry.get_mut();
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
        let ours = Mbcache::new(corewalk_mbcache::MbcacheOptions::default()).unwrap();
        let all: [Box<dyn Pairs>; 2] = [Box::new(ours), Box::new(Shards::new(100))];
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
