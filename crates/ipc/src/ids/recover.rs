//! Recovery of the ids of a kind after the holder of the lock of the object kind has died.
//!
//! The state of a slot says whether the slot has an object. The object's own words say whether the
//! object is complete. The index of keys, the bitmap and the counts follow from the slots, so
//! recovery rebuilds them.
//!
//! Source: the essay of `ids`.

use super::{BITS, IN_USE, IPC_PRIVATE, Ids, IdsGuard, KEY, STATE, USED};
use crate::field::{get, low, pair, put};

/// Completes or reverts the unfinished change that a dead holder of the lock of the object kind has
/// left. The caller holds the lock now.
///
/// A live process may still use a removed object. Recovery does not wait for that process: a later
/// call frees the rest of the object.
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
        // The repair may have removed the object or its key, so read the slot again.
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
    /// Marks the slot of a removed object as used, until no remains of the object are left.
    pub(crate) fn keep_slot(&self, index: u32) {
        self.ids.set_bit(index, true);
    }

    /// Frees the remains of all removed objects. Returns true if a slot has become free.
    #[cold]
    pub(crate) fn end_left(&self) -> bool {
        self.ids.taken().filter(|index| self.end_left_at(*index)).count() != 0
    }

    /// Frees the remains of the removed object in slot `index`. Returns true if none are left.
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
    /// Removes the key of the object in slot `index`. Only recovery calls this function, and then
    /// rebuilds the index of keys.
    pub(crate) fn forget_key(self, index: u32) {
        let _section = self.closed(index).write();
        put(&self.slot(index)[KEY], pair(IPC_PRIVATE.cast_unsigned(), 0));
    }

    /// Removes the object in slot `index`. The index of keys and the bitmap do not change.
    pub(crate) fn forget_slot(self, index: u32) {
        let _section = self.closed(index).write();
        put(&self.slot(index)[STATE], 0);
    }
}
