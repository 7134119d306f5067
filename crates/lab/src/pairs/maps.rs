//! The usual maps from a key to its values.

use ahash::RandomState;
use corewalk_base::{CachePadded, Mutex, RwLock};
use hashbrown::HashTable;
use smallvec::SmallVec;

use super::Pairs;

/// Shards of `mutex-shards`.
const SHARDS: usize = 64;

type Values = SmallVec<[u64; 2]>;
type Table = HashTable<(u64, Values)>;

/// `mutex-shards`.
pub(crate) struct Shards {
    shards: Box<[CachePadded<Mutex<Table>>]>,
    hasher: RandomState,
}

/// `rwlock-ahash`.
pub(crate) struct Locked {
    table: RwLock<Table>,
    hasher: RandomState,
}

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
        values(&shard.lock(), hash, key).is_some_and(|values| values.contains(&value))
    }

    #[inline]
    fn find(&self, key: u64) -> Option<u64> {
        let (hash, shard) = self.at(key);
        values(&shard.lock(), hash, key)?.last().copied()
    }

    #[inline]
    fn create(&self, key: u64, value: u64) -> bool {
        let (hash, shard) = self.at(key);
        create(&mut shard.lock(), hash, (key, value), &self.hasher)
    }

    #[inline]
    fn delete(&self, key: u64, value: u64) -> bool {
        let (hash, shard) = self.at(key);
        delete(&mut shard.lock(), hash, (key, value))
    }
}

impl Locked {
    /// Returns an empty map with room for so many keys.
    pub(crate) fn new(keys: usize) -> Locked {
        Locked { table: RwLock::new(Table::with_capacity(keys)), hasher: RandomState::new() }
    }
}

impl Pairs for Locked {
    fn variant(&self) -> &'static str {
        "rwlock-ahash"
    }

    #[inline]
    fn get(&self, key: u64, value: u64) -> bool {
        let hash = self.hasher.hash_one(key);
        values(&self.table.read(), hash, key).is_some_and(|values| values.contains(&value))
    }

    #[inline]
    fn find(&self, key: u64) -> Option<u64> {
        let hash = self.hasher.hash_one(key);
        values(&self.table.read(), hash, key)?.last().copied()
    }

    #[inline]
    fn create(&self, key: u64, value: u64) -> bool {
        let hash = self.hasher.hash_one(key);
        create(&mut self.table.write(), hash, (key, value), &self.hasher)
    }

    #[inline]
    fn delete(&self, key: u64, value: u64) -> bool {
        delete(&mut self.table.write(), self.hasher.hash_one(key), (key, value))
    }
}

#[inline]
fn values(table: &Table, hash: u64, key: u64) -> Option<&Values> {
    table.find(hash, |entry| entry.0 == key).map(|entry| &entry.1)
}

#[inline]
fn create(table: &mut Table, hash: u64, (key, value): (u64, u64), hasher: &RandomState) -> bool {
    let entry = table.entry(hash, |entry| entry.0 == key, |entry| hasher.hash_one(entry.0));
    let values = &mut entry.or_insert_with(|| (key, Values::new())).into_mut().1;
    let is_new = !values.contains(&value);
    if is_new {
        values.push(value);
    }
    is_new
}

#[inline]
fn delete(table: &mut Table, hash: u64, (key, value): (u64, u64)) -> bool {
    let Ok(mut entry) = table.find_entry(hash, |entry| entry.0 == key) else { return false };
    let is_deleted = take(&mut entry.get_mut().1, value);
    if entry.get().1.is_empty() {
        entry.remove();
    }
    is_deleted
}

#[inline]
fn take(values: &mut Values, value: u64) -> bool {
    let at = values.iter().position(|&other| other == value);
    at.map(|at| values.swap_remove(at)).is_some()
}
