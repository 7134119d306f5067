//! Records that are not in the database yet: a transaction in memory.
//!
//! A layer maps keys to new values, or to "gone". While it is the running one, operations put records
//! in; then it is frozen, read from, written out, and dropped. See `journal`.
//!
//! Records that are asked for one by one are in hash maps, those of a directory or a file that are gone
//! through in order (names, extents) in trees. Both are spread over shards by the first number of the
//! key, so that a range is within one shard.
//!
//! # Locks
//! A shard's, a leaf.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use corewalk_sync::primitives::atomic::{AtomicBool, Ordering};
use corewalk_sync::{Mutex, OwnLine, ShardedCounter};

use crate::alloc::Run;
use crate::record::{Key, Kind};

/// Shards of a layer; a power of two.
const SHARDS: usize = 64;
/// What a record takes beyond its value, in bytes, by estimate.
const RECORD_BYTES: i64 = 96;

/// A new value, or None where the record is to go.
pub(crate) type Record = Option<Arc<[u8]>>;

/// A transaction in memory. See the module's text.
pub(crate) struct Layer {
    shards: Box<[OwnLine<Mutex<Shard>>]>,
    bytes: ShardedCounter,
    has_begun: AtomicBool,
}

#[derive(Default)]
struct Shard {
    points: HashMap<Key, Record, foldhash::fast::FixedState>,
    ranges: BTreeMap<Key, Record>,
    freed: Vec<Run>,
}

impl Layer {
    /// Returns a layer without records.
    pub(crate) fn new() -> Layer {
        let shards = (0..SHARDS).map(|_| OwnLine::new(Mutex::default())).collect();
        Layer { shards, bytes: ShardedCounter::new(), has_begun: AtomicBool::new(false) }
    }

    /// Returns the record; None if the layer does not know.
    pub(crate) fn get(&self, key: &Key) -> Option<Record> {
        let shard = self.shard(key.major).lock();
        if is_ranged(key.kind) { shard.ranges.get(key) } else { shard.points.get(key) }.cloned()
    }

    /// Puts a record in.
    pub(crate) fn put(&self, key: Key, record: Record) {
        let bytes = record.as_ref().map_or(0, |value| value.len() as i64) + RECORD_BYTES;
        let mut shard = self.shard(key.major).lock();
        let old = match is_ranged(key.kind) {
            true => shard.ranges.insert(key, record),
            false => shard.points.insert(key, record),
        };
        drop(shard);
        let old_bytes =
            old.map_or(0, |old| old.map_or(0, |value| value.len() as i64) + RECORD_BYTES);
        if bytes != old_bytes {
            self.bytes.add(bytes - old_bytes);
        }
    }

    /// Notes blocks that this transaction lets go of.
    pub(crate) fn free(&self, owner: u64, runs: impl IntoIterator<Item = Run>) {
        self.shard(owner).lock().freed.extend(runs);
    }

    /// Returns up to `count_max` records of `kind` and `major` with `minor` in order, from `from` on.
    pub(crate) fn collect_from(
        &self,
        (kind, major): (Kind, u64),
        from: u64,
        count_max: usize,
    ) -> Vec<(u64, Record)> {
        debug_assert!(is_ranged(kind));
        let shard = self.shard(major).lock();
        let range = shard.ranges.range(Key::at(kind, major, from)..=Key::at(kind, major, u64::MAX));
        range.take(count_max).map(|(key, record)| (key.minor, record.clone())).collect()
    }

    /// Returns all records in the order of their keys.
    pub(crate) fn collect_sorted(&self) -> Vec<(Key, Record)> {
        let mut all = Vec::new();
        for shard in &self.shards {
            let shard = shard.lock();
            let both = shard.points.iter().chain(shard.ranges.iter());
            all.extend(both.map(|(key, record)| (*key, record.clone())));
        }
        all.sort_unstable_by_key(|(key, _)| *key);
        all
    }

    /// Returns the blocks that this transaction lets go of.
    pub(crate) fn take_freed(&self) -> Vec<Run> {
        self.shards.iter().flat_map(|shard| std::mem::take(&mut shard.lock().freed)).collect()
    }

    /// Returns what the records take, in bytes, about.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.sum().max(0) as u64
    }

    /// Says that an operation is about to change something, and returns true if it is the first.
    #[inline]
    pub(crate) fn begin(&self) -> bool {
        // ORDERING: Relaxed, both. It says that somebody should look sometime.
        !self.has_begun.load(Ordering::Relaxed) && !self.has_begun.swap(true, Ordering::Relaxed)
    }

    #[inline]
    fn shard(&self, major: u64) -> &Mutex<Shard> {
        let mixed = major.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        &self.shards[mixed as usize % SHARDS]
    }
}

#[inline]
fn is_ranged(kind: Kind) -> bool {
    matches!(kind, Kind::Name | Kind::Extent)
}
