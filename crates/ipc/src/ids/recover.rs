//! Putting the ids of a kind in order whose lock was held by a task that has died.
//!
//! A slot says whether there is an object in it, and the object says whether all of it is there; the index of
//! keys, the bitmap and the counts follow from the slots and are made anew.
//!
//! Source: the essay of `ids`.

use corewalk_sync::SeqCount;
use rustix::io::Errno;

use super::{
    BITS, IN_USE, IPC_PRIVATE, Ids, KEY, Kind, LIVE, Object, REDO, SEQ, USED, read, redo_perm,
};
use crate::field::{get, low, pair, put};
use crate::{msg, sem, shm};

/// Finishes or takes back what was left half done. The lock is ours.
///
/// # Errors
///
/// `EIO` if somebody does not let go of an object that is to be ended.
#[cold]
pub(super) fn recover(ids: Ids<'_>) -> Result<(), Errno> {
    let slots = ids.slots();
    for index in 0..slots {
        let seq = SeqCount::from_word(&ids.slot(index)[SEQ]);
        if SeqCount::is_write_in_progress(seq.raw_begin()) {
            if get(&ids.head()[REDO]) & LIVE != 0 && low(get(&ids.head()[REDO])) >> 16 == index {
                redo_perm(ids, index);
            }
            seq.write_end();
        }
    }
    put(&ids.head()[REDO], 0);
    let (mut in_use, mut used) = (0, 0);
    (0..slots).step_by(BITS as usize).for_each(|index| put(ids.bits(index / BITS), 0));
    (0..slots).for_each(|bucket| put(ids.bucket_at(bucket), 0));
    for index in 0..slots {
        let live = live(ids, index);
        used += match ids.kind {
            Kind::Sem => sem::recover_slot(ids, index, live)?,
            Kind::Msg => msg::recover_slot(ids, index).map(|()| 0)?,
            Kind::Shm => live.as_ref().map_or(0, |object| shm::recover_slot(ids, object)),
        };
        let Some(object) = live else { continue };
        in_use += 1;
        let bits = ids.bits(index / BITS);
        put(bits, get(bits) | 1 << (index % BITS));
        let key = object.key();
        if key != IPC_PRIVATE {
            let bucket = ids.bucket(key);
            put(&ids.slot(index)[KEY], pair(key.cast_unsigned(), low(get(bucket))));
            put(bucket, u64::from(index) + 1);
        }
    }
    put(&ids.head()[IN_USE], in_use);
    put(&ids.head()[USED], used);
    match ids.kind {
        Kind::Sem => sem::recover_sems(ids),
        Kind::Msg | Kind::Shm => {}
    }
    Ok(())
}

fn live(ids: Ids<'_>, index: u32) -> Option<Object> {
    Some(read(ids.slot(index), index)).filter(Object::is_live)
}
