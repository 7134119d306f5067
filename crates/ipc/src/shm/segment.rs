//! What is known of a segment, and who has attached it. All of it under the lock of the kind.
//!
//! The truth about attaches is in the records: `WHOSE` says which task and which segment, and is 0 in a
//! record that is free. The list of a segment's records can be told from them.
//!
//! # A task that dies
//!
//! | it died | then |
//! |---|---|
//! | while it had the lock of the kind | [`recover_slot`] makes the lists anew, and ends segments that were due |
//! | with attaches, or with lines for records that are none yet or no more | [`reap`] frees those by the pool's headers |
//! | while a child that is not yet counted has its attaches | [`reap`] leaves them until it is, or has ended (`backing`) |
//! | before it gave the memory of a segment back | `HAS_MEMORY` says so, and whoever comes by gives it back |
//!
//! Memory is given back without the lock, so two may do it at once: names are never used again, and the backing
//! takes note of the end of a segment once more, or of one that it never heard of.

use corewalk_base::Line;
use corewalk_base::primitives::atomic::Ordering;
use rustix::io::Errno;

use super::backing::SegmentName;
use crate::field::{get, high, low, pair, put};
use crate::ids::{Ids, IdsGuard, Object};
use crate::list::List;
use crate::lock::Owner;
use crate::namespace::{Shared, now_s};
use crate::sem::Remains;

/// Lines of a segment.
pub(crate) const SEGMENT_LINES: u32 = 1;

/// In the mode: the segment goes with its last attach.
pub const SHM_DEST: u16 = 0o1000;

/// In the mode: the segment is locked into memory.
pub const SHM_LOCKED: u16 = 0o2000;

// Words of a segment's line.
const SIZE: usize = 0;
/// The records of the segment.
const ATTACHES: usize = 1;
const ATIME: usize = 2;
const DTIME: usize = 3;
/// Who made it, and who attached or detached last.
const PIDS: usize = 4;
/// The number of the task that made it, plus one, while it runs; and [`WAS_ATTACHED`].
const CREATOR: usize = 5;
/// The serial number of the last segment of this slot, and [`HAS_MEMORY`].
const SERIAL: usize = 6;

// Words of a record; 1 is the links, 6 and 7 are the pool's.
const WHOSE: usize = 0;
const COUNT: usize = 2;

/// In `CREATOR`: somebody has had the segment attached.
const WAS_ATTACHED: u64 = 1 << 63;
/// In `SERIAL`: the memory of the segment with this number may be there.
const HAS_MEMORY: u64 = 1 << 63;

const SERIAL_MASK: u64 = (1 << 48) - 1;
/// Tells a payload from 0.
const PAYLOAD: u64 = 1 << 63;

/// In `WHOSE`, above the slot (15 bits) and the task (22 bits).
const IS_RECORD: u64 = 1 << 63;
const TASK_SHIFT: u32 = 15;
const TASK_MASK: u32 = (1 << 22) - 1;
const WHOSE_SERIAL_SHIFT: u32 = 37;

/// Segments that are gone; their memory is given back once the lock is free.
#[derive(Default)]
#[must_use]
pub(super) struct Gone(Vec<SegmentName>);

/// A segment that is there: the lock of its kind is held.
#[derive(Clone, Copy)]
pub(super) struct Segment<'g, 's> {
    shared: &'s Shared,
    ids: &'g IdsGuard<'s>,
    pub(super) object: Object,
}

/// What is known of a segment beside its permissions.
#[derive(Clone, Copy, Debug)]
pub(super) struct Numbers {
    pub(super) size_bytes: u64,
    pub(super) atime_s: u64,
    pub(super) dtime_s: u64,
    pub(super) cpid: u32,
    pub(super) lpid: u32,
    pub(super) nattch: u64,
}

/// Returns the name of the segment that a lookup has found.
pub(super) fn name_of(object: &Object) -> SegmentName {
    SegmentName { index: object.index, serial: object.payload & SERIAL_MASK }
}

/// Fills the line of a new segment in slot `index`; returns its payload and name.
pub(super) fn make(
    shared: &Shared,
    index: u32,
    size_bytes: u64,
    (task, pid): (u32, u32),
) -> (u64, SegmentName) {
    // Whoever was to do it has died, or will do it once more.
    give_back_left(shared, index);
    let line = line(shared, index);
    let serial = get(&line[SERIAL]).wrapping_add(1) & SERIAL_MASK;
    for (word, value) in [
        (SIZE, size_bytes),
        (ATTACHES, 0),
        (ATIME, 0),
        (DTIME, 0),
        (PIDS, pair(pid, 0)),
        (CREATOR, u64::from(task) + 1),
        (SERIAL, serial | HAS_MEMORY),
    ] {
        put(&line[word], value);
    }
    (PAYLOAD | serial, SegmentName { index, serial })
}

fn line(shared: &Shared, index: u32) -> &Line {
    shared.region.line(shared.layout.segments + SEGMENT_LINES * index)
}

impl<'g, 's> Segment<'g, 's> {
    /// Returns the segment that a lookup has found before the lock was taken.
    ///
    /// # Errors
    ///
    /// `EIDRM` if it is gone, whatever has its id by now.
    pub(super) fn again(
        shared: &'s Shared,
        ids: &'g IdsGuard<'s>,
        found: &Object,
    ) -> Result<Self, Errno> {
        let object = ids.obtain_object_check(found.id()).map_err(|_| Errno::IDRM)?;
        if object.payload != found.payload {
            return Err(Errno::IDRM);
        }
        Ok(Self { shared, ids, object })
    }

    /// Returns the segment with this name, or none if it is gone.
    pub(super) fn named(
        shared: &'s Shared,
        ids: &'g IdsGuard<'s>,
        name: SegmentName,
    ) -> Option<Self> {
        let object = ids.at(name.index).filter(|object| name_of(object) == name)?;
        Some(Self { shared, ids, object })
    }

    /// Returns the segment in slot `index`.
    pub(super) fn at(shared: &'s Shared, ids: &'g IdsGuard<'s>, index: u32) -> Option<Self> {
        Some(Self { shared, ids, object: ids.at(index)? })
    }

    pub(super) fn name(&self) -> SegmentName {
        name_of(&self.object)
    }

    pub(super) fn size_bytes(&self) -> u64 {
        get(&self.line()[SIZE])
    }

    pub(super) fn numbers(&self) -> Numbers {
        let line = self.line();
        let pids = get(&line[PIDS]);
        Numbers {
            size_bytes: self.size_bytes(),
            atime_s: get(&line[ATIME]),
            dtime_s: get(&line[DTIME]),
            cpid: low(pids),
            lpid: high(pids),
            nattch: self.nattch(),
        }
    }

    /// Returns how often the segment is attached.
    #[doc(alias = "shm_nattch")]
    pub(super) fn nattch(&self) -> u64 {
        let counts = self.records().iter().map(|record| get(&self.record(record)[COUNT]));
        counts.fold(0, u64::saturating_add)
    }

    /// Returns the tasks that have it attached.
    pub(super) fn attachers(&self) -> Vec<u32> {
        let whose = self.records().iter().map(|record| get(&self.record(record)[WHOSE]));
        whose.map(|whose| (whose >> TASK_SHIFT) as u32 & TASK_MASK).collect()
    }

    /// Counts `count` more attaches of a task.
    ///
    /// # Errors
    ///
    /// `ENOMEM` if there is no room for a record.
    pub(super) fn attach(&self, task: u32, count: u64, owner: Owner) -> Result<(), Errno> {
        let whose = self.whose(task);
        if let Some(record) = self.find(whose) {
            let cell = &self.record(record)[COUNT];
            put(cell, get(cell).saturating_add(count));
            return Ok(());
        }
        let pool = &self.shared.layout.attaches;
        let record = pool.alloc(self.shared, 1, owner, task)?;
        let line = self.record(record);
        put(&line[COUNT], count);
        put(&line[WHOSE], whose);
        self.records().push(record);
        let creator = &self.line()[CREATOR];
        put(creator, get(creator) | WAS_ATTACHED);
        Ok(())
    }

    /// Counts `count` fewer attaches of a task.
    pub(super) fn detach(&self, task: u32, count: u64, owner: Owner) {
        let Some(record) = self.find(self.whose(task)) else { return };
        let cell = &self.record(record)[COUNT];
        let left = get(cell).saturating_sub(count);
        put(cell, left);
        if left == 0 {
            put(&self.record(record)[WHOSE], 0);
            self.records().unlink(record);
            self.shared.layout.attaches.free(self.shared, record, owner);
        }
    }

    /// Notes who has attached, and when.
    pub(super) fn note_attach(&self, pid: u32) {
        self.note(ATIME, pid);
    }

    /// Notes who has detached, and when.
    pub(super) fn note_detach(&self, pid: u32) {
        self.note(DTIME, pid);
    }

    /// Removes the segment if it is to go with its last attach and has none.
    #[doc(alias = "shm_may_destroy")]
    pub(super) fn destroy_if_due(&self, gone: &mut Gone) {
        // As it is now: it may have been marked since it was looked up.
        let object = self.ids.at(self.object.index).unwrap_or(self.object);
        let is_marked = self.shared.limits.is_shm_rmid_forced || object.mode() & SHM_DEST != 0;
        if is_marked && self.records().is_empty() {
            self.destroy(gone);
        }
    }

    /// Marks a segment that is attached, and removes one that is not: `IPC_RMID`.
    #[doc(alias = "do_shm_rmid")]
    pub(super) fn remove(&self, gone: &mut Gone) {
        if self.records().is_empty() {
            self.destroy(gone);
        } else {
            self.ids.set_key_private(&self.object, SHM_DEST);
        }
    }

    /// Takes note that the task that made the segment has ended; it goes if that is forced.
    #[doc(alias = "exit_shm")]
    pub(super) fn orphan(&self, task: u32, gone: &mut Gone) {
        let creator = &self.line()[CREATOR];
        let seen = get(creator);
        if seen & !WAS_ATTACHED != u64::from(task) + 1 {
            return;
        }
        put(creator, seen & WAS_ATTACHED);
        self.destroy_if_due(gone);
    }

    #[doc(alias = "shm_destroy")]
    fn destroy(&self, gone: &mut Gone) {
        let pages = super::get::pages(self.size_bytes()).unwrap_or(0);
        self.ids.set_used(self.ids.used().saturating_sub(pages));
        self.ids.unpublish(&self.object);
        gone.0.push(self.name());
    }

    fn note(&self, time: usize, pid: u32) {
        let line = self.line();
        put(&line[time], now_s());
        put(&line[PIDS], pair(low(get(&line[PIDS])), pid));
    }

    fn find(&self, whose: u64) -> Option<u32> {
        self.records().iter().find(|record| get(&self.record(*record)[WHOSE]) == whose)
    }

    fn records(&self) -> List<'s> {
        list(self.shared, self.line())
    }

    fn whose(&self, task: u32) -> u64 {
        whose(&self.object, task)
    }

    fn record(&self, record: u32) -> &'s Line {
        self.shared.region.line(record)
    }

    fn line(&self) -> &'s Line {
        line(self.shared, self.object.index)
    }
}

impl Gone {
    /// Gives the memory back. No lock is held.
    pub(super) fn give_back(self, shared: &Shared) {
        self.0.into_iter().for_each(|name| give_back(shared, name));
    }
}

/// Gives the memory of a segment that is gone back.
pub(super) fn give_back(shared: &Shared, name: SegmentName) {
    if !shared.backing.remove(name) {
        // Others may.
        return;
    }
    let word = &line(shared, name.index)[SERIAL];
    // The next segment of the slot may be there by now, whose memory it then is.
    // ORDERING: Relaxed. Nothing is published with it: to remove it again does no harm.
    let _noted = word.compare_exchange(
        name.serial | HAS_MEMORY,
        name.serial,
        Ordering::Relaxed,
        Ordering::Relaxed,
    );
}

/// Gives the memory back that the last segment of slot `index`, which is gone, may have. The lock of the kind is
/// held.
fn give_back_left(shared: &Shared, index: u32) {
    let serial = get(&line(shared, index)[SERIAL]);
    if serial & HAS_MEMORY != 0 {
        give_back(shared, SegmentName { index, serial: serial & SERIAL_MASK });
    }
}

/// Gives back what segments that are gone have left, but for slot `but`, which is being filled.
pub(crate) fn give_back_all(shared: &Shared, ids: &IdsGuard<'_>, but: Option<u32>) {
    for index in (0..shared.layout.shm_ids.slots).filter(|index| Some(*index) != but) {
        if ids.at(index).is_none() {
            give_back_left(shared, index);
        }
    }
}

/// Detaches all that a task has attached, orphans all that it has made, and gives back what it was about to, by
/// the records alone: for a task that died. Costs a look at every segment and its records, and at all records.
///
/// Returns false if a child that is not yet counted has its attaches: they stay, for somebody to come by again.
///
/// # Errors
///
/// `EIO` if the lock cannot be had.
pub(crate) fn reap(ids: Ids<'_>, (task, pid): (u32, u32)) -> Result<bool, Errno> {
    let (shared, owner, slots) = (ids.shared, ids.owner, ids.slots());
    let mut gone = Gone::default();
    let mut is_held = None;
    let ids = ids.lock()?;
    for index in 0..slots {
        let Some(segment) = Segment::at(shared, &ids, index) else {
            give_back_left(shared, index);
            continue;
        };
        let is_attached = segment.find(segment.whose(task)).is_some();
        // A child is counted before it lets go of the hold.
        if is_attached && !*is_held.get_or_insert_with(|| shared.backing.is_held(task)) {
            segment.note_detach(pid);
            segment.detach(task, u64::MAX, owner);
            segment.destroy_if_due(&mut gone);
        }
        if let Some(segment) = Segment::at(shared, &ids, index) {
            segment.orphan(task, &mut gone);
        }
    }
    if is_held == Some(true) {
        drop(ids);
        gone.give_back(shared);
        return Ok(false);
    }
    shared.backing.forget(task);
    // What is left was about to become a record, or was one.
    let pool = shared.layout.attaches;
    for (record, _) in pool.used(&shared.region).filter(|(_, whose)| *whose == task) {
        put(&shared.region.line(record)[WHOSE], 0);
        pool.free(shared, record, owner);
    }
    drop(ids);
    gone.give_back(shared);
    Ok(true)
}

/// Gives back what the segment that was in slot `index` last has left.
pub(crate) fn end_slot(ids: Ids<'_>, index: u32) -> Remains {
    give_back_left(ids.shared, index);
    Remains::None
}

/// Puts a segment in order; returns its pages. For who has taken the lock of the kind over.
///
/// The list of records is made anew from the records alone. What was marked loses its key, and what was to go
/// with its last attach goes if there is none.
pub(crate) fn recover_slot(ids: Ids<'_>, object: &Object) -> u64 {
    let (shared, index) = (ids.shared, object.index);
    let records = rebuild(shared, object);
    let line = line(shared, index);
    let is_marked = object.mode() & SHM_DEST != 0;
    if is_marked {
        ids.forget_key(index);
    }
    // A segment that nobody has had attached yet stays until its maker ends.
    let creator = get(&line[CREATOR]);
    let is_forced =
        shared.limits.is_shm_rmid_forced && (creator == 0 || creator & WAS_ATTACHED != 0);
    if records.is_empty() && (is_marked || is_forced) {
        // Its memory is what is left of it then.
        ids.forget_slot(index);
        return 0;
    }
    super::get::pages(get(&line[SIZE])).unwrap_or(0)
}

/// Makes the list of records of a segment anew.
fn rebuild<'s>(shared: &'s Shared, object: &Object) -> List<'s> {
    let line = line(shared, object.index);
    let own = whose(object, 0);
    let is_own = |record: &u32| {
        let whose = get(&shared.region.line(*record)[WHOSE]);
        whose & !(((1 << 22) - 1) << TASK_SHIFT) == own
    };
    let used = shared.layout.attaches.used(&shared.region).map(|(record, _)| record);
    let records = list(shared, line);
    records.set(used.filter(is_own));
    records
}

/// Returns the list of the records of the segment with this line.
fn list<'s>(shared: &'s Shared, line: &'s Line) -> List<'s> {
    List { region: &shared.region, ends: &line[ATTACHES], max: shared.layout.attaches.lines }
}

/// Returns what the record of a task for a segment says.
fn whose(object: &Object, task: u32) -> u64 {
    let SegmentName { index, serial } = name_of(object);
    IS_RECORD
        | u64::from(index)
        | u64::from(task) << TASK_SHIFT
        | (serial << WHOSE_SERIAL_SHIFT & !IS_RECORD)
}

/// Returns the records of a segment, for who looks whether all is in order.
#[cfg(all(test, corewalk_crash))]
pub(super) fn listed(shared: &Shared, _ids: &IdsGuard<'_>, object: &Object) -> Vec<u32> {
    list(shared, line(shared, object.index)).iter().collect()
}
