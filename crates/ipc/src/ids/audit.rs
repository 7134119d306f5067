//! Checks the consistency of the id table of one object kind while no task uses the table.

use corewalk_sync::SeqCount;

use super::{IN_USE, IPC_PRIVATE, Ids, KEY, LOCK, Object, SEQ, USED, read};
use crate::field::{get, high, low};

impl Ids<'_> {
    pub(crate) fn audit(self) -> Result<(Vec<Object>, u64), String> {
        let head = self.head();
        if get(&head[LOCK]) != 0 {
            return Err("the lock of the kind is held".to_owned());
        }
        let mut objects = Vec::new();
        let mut keyed = 0;
        for index in 0..self.slots() {
            let slot = self.slot(index);
            if SeqCount::is_write_in_progress(get(&slot[SEQ])) {
                return Err(format!("somebody is in slot {index}"));
            }
            let object = read(slot, index);
            let is_live = object.is_live();
            if is_live != self.is_taken(index) {
                return Err(format!("the bitmap is wrong about slot {index}"));
            }
            if !is_live {
                continue;
            }
            objects.push(object);
            if object.key() != IPC_PRIVATE {
                keyed += 1;
                let guard = self.lock().map_err(|errno| errno.to_string())?;
                if guard.find_key(object.key()).map(|found| found.index) != Some(index) {
                    return Err(format!("key {} is not found", object.key()));
                }
            }
        }
        let mut chained = 0;
        for bucket in 0..self.slots() {
            let mut next = low(get(self.bucket_at(bucket)));
            while let Some(index) = next.checked_sub(1) {
                chained += 1;
                next = high(get(&self.slot(index)[KEY]));
                if chained > self.slots() {
                    return Err("a chain of keys has no end".to_owned());
                }
            }
        }
        if chained != keyed || get(&head[IN_USE]) != objects.len() as u64 {
            return Err(format!("{keyed} keys of {} objects, {chained} in chains", objects.len()));
        }
        Ok((objects, get(&head[USED])))
    }
}
