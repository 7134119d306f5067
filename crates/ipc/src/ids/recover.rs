//! Recovery of the ids of an object kind after a task has died with the lock of that kind held.
//!
//! The state word of a slot says whether the slot has an object. The object's own words say whether
//! it is complete. Recovery rebuilds the hash table of keys, the bitmap and the counts of objects
//! from the slots.
//!
//! Source: the essay of `ids`.

use super::{BITS, IN_USE, IPC_PRIVATE, Ids, IdsGuard, KEY, STATE, USED};
use crate::field::{get, low, pair, put};

/// Repairs the ids of an object kind. The caller has taken over the lock of the kind from a dead
/// task.
///
/// If a live process still uses a removed object, a later call frees the rest of the object's
/// memory.
#[cold]
pub(super) fn recover(ids: Ids<'_>) {
    let slots = ids.slots();
    for index in 0..slots {
        ids.closed(index);
    }
    let (mut in_use, mut used) = (0, 0);
    (0..slots).step_by(BITS as usize).for_each(|index| put(ids.bits(index / BITS), 0));
    (0..slots).for_each(|bucket| put(ids.bucket_at(bucket), 0));
    for index in 0..slots {
        if let Some(object) = ids.live(index) {
            used += (ids.kind.repair)(ids, &object);
        }
        // `repair` may have removed the object or its key, so read the slot again.
        let Some(object) = ids.live(index) else {
            ids.set_bit(index, !(ids.kind.end)(ids, index));
            continue;
        };
        in_use += 1;
        ids.set_bit(index, true);
        let key = object.key();
        if key != IPC_PRIVATE {
            let bucket = ids.bucket(key);
            put(&ids.slot(index)[KEY], pair(key.cast_unsigned(), low(get(bucket))));
            put(bucket, u64::from(index) + 1);
        }
    }
    put(&ids.head()[IN_USE], in_use);
    put(&ids.head()[USED], used);
    (ids.kind.sweep)(ids);
}

impl IdsGuard<'_> {
    /// Marks a slot as used. So no new object gets the slot before all memory of the removed object
    /// is free.
    pub(crate) fn keep_slot(&self, index: u32) {
        self.ids.set_bit(index, true);
    }

    /// Frees the memory that removed objects still have. Returns true if a slot has become free.
    #[cold]
    pub(crate) fn end_left(&self) -> bool {
        self.ids.taken().filter(|index| self.end_left_at(*index)).count() != 0
    }

    pub(crate) fn end_left_at(&self, index: u32) -> bool {
        let ids = self.ids;
        if index >= ids.slots() || ids.live(index).is_some() {
            return false;
        }
        let is_whole = (ids.kind.end)(ids, index);
        ids.set_bit(index, !is_whole);
        is_whole
    }
}

impl Ids<'_> {
    /// Removes the key of an object from its slot, but leaves the object in the hash table of keys.
    /// Only recovery calls this function, and rebuilds that table afterwards.
    pub(crate) fn forget_key(self, index: u32) {
        let _section = self.closed(index).write();
        put(&self.slot(index)[KEY], pair(IPC_PRIVATE.cast_unsigned(), 0));
    }

    /// Marks a slot as empty. Leaves the hash table of keys and the bitmap unchanged.
    pub(crate) fn forget_slot(self, index: u32) {
        let _section = self.closed(index).write();
        put(&self.slot(index)[STATE], 0);
    }
}
