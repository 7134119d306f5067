//! The records that a transaction has in memory.
//!
//! A layer maps the keys of records to new values, or to "removed". Operations put records into the
//! running layer. A commit freezes that layer and writes it out (see `journal`).
//!
//! Directory entries and extents are also read in key order, so their records are in trees. All
//! other records are in hash maps. All records whose keys have the same first number are in one
//! shard.
//!
//! A record that is added and removed in one transaction leaves its layer. So most short-lived
//! files are never written to disk.
//!
//! # Invariants
//! - Y.1: a record of a layer is new if neither an older layer nor the database has its key. A key
//!   that an older layer removes counts as absent.
//!
//! # Locks
//! Each shard has a mutex. A thread holds one of them at a time, and takes no other lock under it.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use corewalk_base::primitives::atomic::{AtomicBool, Ordering};
use corewalk_base::{Mutex, OwnLine, ShardedCounter};

use crate::alloc::Run;
use crate::record::{Key, Kind};

const SHARDS: usize = 64;
const ADD_UP_BYTES: i64 = 64 << 10;
const RECORD_BYTES: i64 = 96;

pub(crate) type Record = Option<Arc<[u8]>>;

struct Slot {
    record: Record,
    is_new: bool,
}

pub(crate) struct Layer {
    shards: Box<[OwnLine<Mutex<Shard>>]>,
    bytes: ShardedCounter,
    bytes_max: u64,
    is_heavy: AtomicBool,
    has_begun: AtomicBool,
}

/// The records of one shard, and the blocks that the transaction frees. All fields are protected by
/// the mutex of the shard.
#[derive(Default)]
struct Shard {
    points: HashMap<Key, Slot, foldhash::fast::FixedState>,
    ranges: BTreeMap<Key, Slot>,
    freed: Vec<Run>,
    grown: i64,
}

impl Layer {
    pub(crate) fn new(bytes_max: u64) -> Layer {
        Layer {
            shards: (0..SHARDS).map(|_| OwnLine::new(Mutex::default())).collect(),
            bytes: ShardedCounter::new(),
            bytes_max,
            is_heavy: AtomicBool::new(false),
            has_begun: AtomicBool::new(false),
        }
    }

    pub(crate) fn get(&self, key: &Key) -> Option<Record> {
        let shard = self.shard(key.major).lock();
        shard.get(key).map(|slot| slot.record.clone())
    }

    pub(crate) fn put(&self, key: Key, record: Record) {
        self.put_slot(key, Slot { record, is_new: false });
    }

    /// Adds a new record. Its key may be in this transaction, but in no earlier one and not in the
    /// database (invariant Y.1).
    pub(crate) fn put_new(&self, key: Key, value: Arc<[u8]>) {
        self.put_slot(key, Slot { record: Some(value), is_new: true });
    }

    fn put_slot(&self, key: Key, mut slot: Slot) {
        let mut shard = self.shard(key.major).lock();
        let old = shard.get(&key);
        let old_bytes = old.map_or(0, Slot::bytes);
        // Keep `is_new` of the first change in this transaction. If a record of the database is
        // removed and set again, it is not new.
        slot.is_new = old.map_or(slot.is_new, |old| old.is_new);
        let is_nothing = slot.is_new && slot.record.is_none();
        let bytes = if is_nothing { 0 } else { slot.bytes() };
        match (is_ranged(key.kind), is_nothing) {
            (true, true) => drop(shard.ranges.remove(&key)),
            (true, false) => drop(shard.ranges.insert(key, slot)),
            (false, true) => drop(shard.points.remove(&key)),
            (false, false) => drop(shard.points.insert(key, slot)),
        }
        shard.grown += bytes - old_bytes;
        let is_due = shard.grown >= ADD_UP_BYTES.min(self.bytes_max as i64 / 2);
        shard.grown = if is_due { 0 } else { shard.grown };
        drop(shard);
        if bytes != old_bytes {
            self.bytes.add(bytes - old_bytes);
        }
        if is_due && self.bytes() > self.bytes_max {
            // ORDERING: Relaxed. The flag is only a hint for `is_heavy` to commit soon.
            self.is_heavy.store(true, Ordering::Relaxed);
        }
    }

    #[inline]
    pub(crate) fn is_heavy(&self) -> bool {
        // ORDERING: Relaxed. The flag, set in `put`, is only a hint to commit soon.
        self.is_heavy.load(Ordering::Relaxed)
    }

    pub(crate) fn free(&self, owner: u64, runs: impl IntoIterator<Item = Run>) {
        self.shard(owner).lock().freed.extend(runs);
    }

    /// Returns up to `count_max` records of `kind` with the first number `major`. They are in
    /// ascending order of `minor`, their second number, and begin at `from`.
    pub(crate) fn collect_from(
        &self,
        kind: Kind,
        major: u64,
        from: u64,
        count_max: usize,
    ) -> Vec<(u64, Record)> {
        debug_assert!(is_ranged(kind));
        let shard = self.shard(major).lock();
        let range = shard.ranges.range(Key::at(kind, major, from)..=Key::at(kind, major, u64::MAX));
        range.take(count_max).map(|(key, slot)| (key.minor, slot.record.clone())).collect()
    }

    pub(crate) fn collect_sorted(&self) -> Vec<(Key, Record)> {
        let mut all = Vec::new();
        self.each(|key, record| all.push((*key, record.clone())));
        all.sort_unstable_by_key(|(key, _)| *key);
        all
    }

    pub(crate) fn each(&self, mut visit: impl FnMut(&Key, &Record)) {
        self.each_slot(|key, slot| visit(key, &slot.record));
    }

    fn each_slot(&self, mut visit: impl FnMut(&Key, &Slot)) {
        for shard in &self.shards {
            let shard = shard.lock();
            let both = shard.points.iter().chain(shard.ranges.iter());
            both.for_each(|(key, slot)| visit(key, slot));
        }
    }

    pub(crate) fn absorb(&self, later: &Layer) {
        later.each_slot(|key, &Slot { ref record, is_new }| {
            self.put_slot(*key, Slot { record: record.clone(), is_new });
        });
    }

    pub(crate) fn take_freed(&self) -> Vec<Run> {
        self.shards.iter().flat_map(|shard| std::mem::take(&mut shard.lock().freed)).collect()
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.sum().max(0) as u64
    }

    pub(crate) fn has_begun(&self) -> bool {
        // ORDERING: Relaxed. The value must cover only changes that happened before the call.
        // `begin` has set the flag before them, so the load sees it.
        self.has_begun.load(Ordering::Relaxed)
    }

    /// Notes that a record is about to change. Returns true for the first change of this
    /// transaction.
    #[inline]
    pub(crate) fn begin(&self) -> bool {
        // ORDERING: Relaxed, for load and swap. The flag only wakes the committer, which checks it
        // again later.
        !self.has_begun.load(Ordering::Relaxed) && !self.has_begun.swap(true, Ordering::Relaxed)
    }

    #[inline]
    fn shard(&self, major: u64) -> &Mutex<Shard> {
        let mixed = major.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        &self.shards[mixed as usize % SHARDS]
    }
}

impl Slot {
    fn bytes(&self) -> i64 {
        self.record.as_ref().map_or(0, |value| value.len() as i64) + RECORD_BYTES
    }
}

impl Shard {
    fn get(&self, key: &Key) -> Option<&Slot> {
        if is_ranged(key.kind) { self.ranges.get(key) } else { self.points.get(key) }
    }
}

#[inline]
fn is_ranged(kind: Kind) -> bool {
    matches!(kind, Kind::Name | Kind::Extent)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_made_and_removed_leaves_no_trace() {
        let key = |kind, major| Key::at(kind, major, 1);
        for kind in [Kind::Name, Kind::Inode] {
            let (old, new) = (key(kind, 1), key(kind, 2));
            let value = || Arc::from(&b"1"[..]);
            let layer = Layer::new(u64::MAX);
            layer.put(old, None);
            layer.put_new(old, value());
            layer.put_new(new, value());
            layer.put(new, Some(value()));
            let bytes = layer.bytes();
            layer.put(old, None);
            layer.put(new, None);
            assert_eq!((layer.get(&old), layer.get(&new)), (Some(None), None));
            assert_eq!(layer.bytes(), bytes - 2 - RECORD_BYTES as u64);
        }
    }

    /// A layer absorbs a later layer that removes records. If a record is older than both layers,
    /// its removal must remain. If the earlier layer added the record, nothing of it must remain.
    #[test]
    fn absorbed_removals_leave_a_trace_of_what_was_before() {
        let (old, new, again) =
            (Key::of(Kind::Inode, 1), Key::of(Kind::Inode, 2), Key::of(Kind::Inode, 3));
        let value = || Arc::from(&b"1"[..]);
        let (first, second, third) =
            (Layer::new(u64::MAX), Layer::new(u64::MAX), Layer::new(u64::MAX));
        first.put(old, Some(value()));
        first.put_new(new, value());
        first.put(again, None);
        second.put(old, None);
        second.put(new, None);
        second.put_new(again, value());
        third.put(again, None);
        first.absorb(&second);
        assert_eq!((first.get(&old), first.get(&new)), (Some(None), None));
        first.absorb(&third);
        assert_eq!(first.get(&again), Some(None));
    }
}
