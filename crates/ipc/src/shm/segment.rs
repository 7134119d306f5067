//! The state of a segment and its attaches. One lock, which all segments share, protects this
//! state.
//!
//! An attach record says which segment a task has attached, and how often:
//! - Its word `WHOSE` contains the slot and the serial number of the segment, or 0 in a free
//!   record.
//! - The pool, which allocates the records, stores the number of the owning task in each record.
//!
//! The attach records are authoritative. A segment's list can be rebuilt from them.
//!
//! # Death of a task
//!
//! Recovery depends on what the dead task was doing:
//! - It held the lock of all segments: [`recover_slot`] rebuilds the lists of attach records, and
//!   removes the segments that the task should have removed.
//! - It had attached segments, or was making or freeing an attach record: [`reap`] frees all attach
//!   records that the pool assigns to the task.
//! - A forked child has the dead task's mappings, but no attach records of its own: [`reap`] keeps
//!   the dead task's records. It keeps them until the child has made its own or has ended
//!   (`backing`).
//! - It had removed a segment, but not yet the segment's memory: `HAS_MEMORY` is set, and a later
//!   task removes the memory.
//!
//! Two tasks may remove the memory of a segment at the same time, since they do so without the lock
//! of all segments. That is safe: `Backing::remove` may be called twice, and no later segment has
//! the same name.

use corewalk_base::Line;
use corewalk_base::primitives::atomic::Ordering;
use rustix::io::Errno;
use rustix::param::page_size;

use crate::backing::SegmentName;
use crate::field::{get, high, low, pair, put};
use crate::handle::ShmId;
use crate::ids::{INDEX_BITS, Ids, IdsGuard, Kind, Object};
use crate::layout::SEGMENT_LINES;
use crate::list::List;
use crate::perm::Perm;
use crate::shared::{Shared, now_s};

/// The bit of a segment's mode that says that the segment is removed at the last detach.
pub const SHM_DEST: u16 = 0o1000;

/// The bit of a segment's mode that says that the segment is locked into memory.
pub const SHM_LOCKED: u16 = 0o2000;

// Words of a segment's line.
const SIZE: usize = 0;
/// The word with the ends of the list of the segment's attach records.
const ATTACHES: usize = 1;
/// The time of the last attach.
pub(super) const ATIME: usize = 2;
/// The time of the last detach.
pub(super) const DTIME: usize = 3;
/// Two pids: of the creator, and of the process that attached or detached last.
const PIDS: usize = 4;
/// The word with the creator's task number plus one, or 0 once the creator has ended. The word's
/// highest bit is [`WAS_ATTACHED`].
const CREATOR: usize = 5;
/// The serial number of the newest segment of this slot, and the bit [`HAS_MEMORY`].
const SERIAL: usize = 6;

// Words of an attach record. Words 6 and 7 belong to the memory pool.
const WHOSE: usize = 0;
const LINKS: usize = 1;
const COUNT: usize = 2;

/// A bit of the word `CREATOR`: the segment was attached at least once.
const WAS_ATTACHED: u64 = 1 << 63;
/// A bit of the word `SERIAL`: the segment's memory exists.
const HAS_MEMORY: u64 = 1 << 63;

const SERIAL_MASK: u64 = (1 << 48) - 1;
/// A bit that is set in every payload, so that no payload is 0.
const PAYLOAD: u64 = 1 << 63;

/// A bit of the word `WHOSE` that is set in each attach record in use.
const IS_RECORD: u64 = 1 << 63;

/// Segments, for the code that all kinds share.
pub(crate) const SEGMENTS: &Kind = &Kind {
    layout: |layout| layout.shm_ids,
    repair: recover_slot,
    end: end_slot,
    sweep: |_| {},
    may_ctl: |hook, cred, perm, cmd| hook.shm_shmctl(cred, perm, cmd),
};

/// The removed segments whose memory must still be removed, after the lock of all segments was
/// released.
pub(super) type Gone = Vec<SegmentName>;

/// An existing segment. The caller holds the lock of all segments while this value exists.
pub(super) struct Segment<'g, 's> {
    ids: &'g IdsGuard<'s>,
    pub(super) object: Object,
}

/// The answer to `IPC_STAT`.
#[doc(alias = "shmid_ds")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ShmStat {
    /// The segment's id.
    pub id: ShmId,
    /// The permissions. The mode includes [`crate::SHM_DEST`] and [`crate::SHM_LOCKED`].
    pub perm: Perm,
    /// The size in bytes.
    pub size_bytes: u64,
    /// The time of the last shmat(2), in seconds since 1970, or 0.
    pub atime_s: u64,
    /// The time of the last shmdt(2), in seconds since 1970, or 0.
    pub dtime_s: u64,
    /// The time of the creation or of the last `IPC_SET`, in seconds since 1970.
    pub ctime_s: u64,
    /// The pid of the creator.
    pub cpid: u32,
    /// The pid of the process that attached or detached last, or 0.
    pub lpid: u32,
    /// The number of attaches.
    pub nattch: u64,
}

/// Returns the name of a segment that a lookup has found.
pub(super) fn name_of(object: &Object) -> SegmentName {
    SegmentName { index: object.index, serial: object.payload & SERIAL_MASK }
}

pub(super) fn make(ids: Ids<'_>, index: u32, size_bytes: u64, pid: u32) -> (u64, SegmentName) {
    let shared = ids.shared;
    // Remove the memory of the slot's previous segment, if the task that removed that segment has
    // died or has not finished yet.
    give_back_left(shared, index);
    let line = line(shared, index);
    let serial = get(&line[SERIAL]).wrapping_add(1) & SERIAL_MASK;
    for (word, value) in [
        (SIZE, size_bytes),
        (ATTACHES, 0),
        (ATIME, 0),
        (DTIME, 0),
        (PIDS, pair(pid, 0)),
        (CREATOR, u64::from(ids.owner.index) + 1),
        (SERIAL, serial | HAS_MEMORY),
    ] {
        put(&line[word], value);
    }
    (PAYLOAD | serial, SegmentName { index, serial })
}

pub(super) fn line(shared: &Shared, index: u32) -> &Line {
    shared.region.line(shared.layout.segments + SEGMENT_LINES * index)
}

impl<'g, 's> Segment<'g, 's> {
    /// Returns the segment called `name`.
    ///
    /// # Errors
    ///
    /// `EIDRM` if the segment is gone, even if its slot now contains a later segment.
    pub(super) fn named(ids: &'g IdsGuard<'s>, name: SegmentName) -> Result<Self, Errno> {
        let segment = Self::at(ids, name.index).filter(|segment| name_of(&segment.object) == name);
        segment.ok_or(Errno::IDRM)
    }

    /// Returns the segment in slot `index`.
    pub(super) fn at(ids: &'g IdsGuard<'s>, index: u32) -> Option<Self> {
        Some(Self { ids, object: ids.ids.live(index)? })
    }

    fn shared(&self) -> &'s Shared {
        self.ids.ids.shared
    }

    pub(super) fn size_bytes(&self) -> u64 {
        get(&self.line()[SIZE])
    }

    pub(super) fn stat(&self) -> ShmStat {
        let line = self.line();
        let pids = get(&line[PIDS]);
        let counts = self.records().iter().map(|record| get(&self.record(record)[COUNT]));
        ShmStat {
            id: ShmId::from_raw(self.object.id()),
            perm: self.object.perm(),
            size_bytes: self.size_bytes(),
            atime_s: get(&line[ATIME]),
            dtime_s: get(&line[DTIME]),
            ctime_s: self.object.ctime,
            cpid: low(pids),
            lpid: high(pids),
            // Analogous to Linux's `shm_nattch`.
            nattch: counts.fold(0, u64::saturating_add),
        }
    }

    /// Returns the tasks that have the segment attached.
    pub(super) fn attachers(&self) -> Vec<u32> {
        self.records().iter().filter_map(|record| self.whose(record)).collect()
    }

    /// Adds `count` attaches of a task to the segment.
    ///
    /// # Errors
    ///
    /// `ENOMEM` if there is no free attach record.
    pub(super) fn attach(&self, task: u32, count: u64) -> Result<(), Errno> {
        if let Some(record) = self.find(task) {
            let cell = &self.record(record)[COUNT];
            put(cell, get(cell).saturating_add(count));
            return Ok(());
        }
        let shared = self.shared();
        let record = shared.layout.attaches.alloc(shared, 1, self.ids.ids.owner, task)?;
        let line = self.record(record);
        put(&line[COUNT], count);
        put(&line[WHOSE], whose(&self.object));
        self.records().push(record);
        let creator = &self.line()[CREATOR];
        put(creator, get(creator) | WAS_ATTACHED);
        Ok(())
    }

    /// Subtracts `count` attaches of a task. After the last detach, removes the segment if it is
    /// marked for removal, or if `is_shm_rmid_forced` is set.
    pub(super) fn detach(&self, task: u32, count: u64, gone: &mut Gone) {
        let shared = self.shared();
        if let Some(record) = self.find(task) {
            let cell = &self.record(record)[COUNT];
            let left = get(cell).saturating_sub(count);
            put(cell, left);
            if left == 0 {
                put(&self.record(record)[WHOSE], 0);
                self.records().unlink(record);
                shared.layout.attaches.free(shared, record, self.ids.ids.owner);
            }
        }
        self.destroy_if_due(gone);
    }

    /// Records the pid and the time of an attach or a detach. `time` is [`ATIME`] for an attach,
    /// and [`DTIME`] for a detach.
    pub(super) fn note(&self, time: usize, pid: u32) {
        let line = self.line();
        put(&line[time], now_s());
        put(&line[PIDS], pair(low(get(&line[PIDS])), pid));
    }

    /// Removes the segment if no task has it attached and it may be removed: it is marked for
    /// removal, or `is_shm_rmid_forced` is set. Analogous to Linux's `shm_may_destroy` and
    /// `shm_destroy`.
    fn destroy_if_due(&self, gone: &mut Gone) {
        // Look the segment up again: its mode may have got the mark for removal after the copy in
        // `self` was made.
        let object = self.ids.ids.live(self.object.index).unwrap_or(self.object);
        let is_marked = self.shared().limits.is_shm_rmid_forced || object.mode() & SHM_DEST != 0;
        if is_marked && self.records().is_empty() {
            let pages = pages(self.size_bytes()).unwrap_or(0);
            self.ids.set_used(self.ids.used().saturating_sub(pages));
            self.ids.unpublish(&object);
            gone.push(name_of(&object));
        }
    }

    /// Marks the segment for removal, and removes it if no task has it attached. If this task dies
    /// after the mark, recovery removes the segment. Analogous to Linux's `do_shm_rmid`.
    pub(super) fn remove(&self, gone: &mut Gone) {
        self.ids.set_key_private(&self.object, SHM_DEST);
        self.destroy_if_due(gone);
    }

    /// Records the end of a task, if this task is the creator of the segment. May then remove the
    /// segment. Analogous to Linux's `exit_shm`.
    pub(super) fn orphan(&self, task: u32, gone: &mut Gone) {
        let creator = &self.line()[CREATOR];
        let seen = get(creator);
        if seen & !WAS_ATTACHED != u64::from(task) + 1 {
            return;
        }
        put(creator, seen & WAS_ATTACHED);
        self.destroy_if_due(gone);
    }

    /// Returns the record of a task.
    fn find(&self, task: u32) -> Option<u32> {
        let is_own = |record: u32| get(&self.record(record)[WHOSE]) == whose(&self.object);
        self.records().iter().find(|record| self.whose(*record) == Some(task) && is_own(*record))
    }

    /// Returns the task of a record.
    fn whose(&self, record: u32) -> Option<u32> {
        self.shared().layout.attaches.whose(&self.shared().region, record)
    }

    fn records(&self) -> List<'s> {
        list(self.shared(), self.line())
    }

    fn record(&self, record: u32) -> &'s Line {
        self.shared().region.line(record)
    }

    fn line(&self) -> &'s Line {
        line(self.shared(), self.object.index)
    }
}

/// Runs `act` under the lock of all segments. After it has released the lock, removes the memory of
/// the segments that `act` has removed. The caller holds no lock.
pub(super) fn locked<'r, T>(
    ids: Ids<'r>,
    act: impl FnOnce(&IdsGuard<'r>, &mut Gone) -> Result<T, Errno>,
) -> Result<T, Errno> {
    let mut gone = Gone::new();
    let guard = ids.lock()?;
    let done = act(&guard, &mut gone);
    drop(guard);
    gone.into_iter().for_each(|name| give_back(ids.shared, name));
    done
}

pub(super) fn pages(size_bytes: u64) -> Option<u64> {
    let page = page_size() as u64;
    let pages = size_bytes.div_ceil(page);
    pages.checked_mul(page).map(|_| pages)
}

/// Removes the memory of a removed segment.
pub(super) fn give_back(shared: &Shared, name: SegmentName) {
    if !shared.backing.remove(name) {
        // This task lacks the permission to remove the segment's memory. `HAS_MEMORY` stays set, so
        // another task removes it later.
        return;
    }
    let word = &line(shared, name.index)[SERIAL];
    // Clear `HAS_MEMORY`, unless a later segment uses the slot: then `SERIAL` contains another
    // serial number, and the compare-exchange fails.
    // ORDERING: Relaxed. The exchange publishes no data, and removing the memory twice is safe.
    let _noted = word.compare_exchange(
        name.serial | HAS_MEMORY,
        name.serial,
        Ordering::Relaxed,
        Ordering::Relaxed,
    );
}

/// Removes the memory that the last segment of a slot still has. The caller holds the lock of all
/// segments, and no segment uses the slot.
fn give_back_left(shared: &Shared, index: u32) {
    let serial = get(&line(shared, index)[SERIAL]);
    if serial & HAS_MEMORY != 0 {
        give_back(shared, SegmentName { index, serial: serial & SERIAL_MASK });
    }
}

/// Removes the memory of all removed segments. Skips slot `but`, in which the caller is creating a
/// segment.
pub(crate) fn give_back_all(shared: &Shared, ids: &IdsGuard<'_>, but: Option<u32>) {
    for index in (0..shared.layout.shm_ids.slots).filter(|index| Some(*index) != but) {
        if ids.ids.live(index).is_none() {
            give_back_left(shared, index);
        }
    }
}

/// Detaches the segments of a dead task, and frees its attach records. Returns false if attaches
/// must stay for a forked child that has the task's mappings, but no attach records of its own. A
/// later call tries again.
pub(crate) fn reap(ids: Ids<'_>, task: u32) -> Result<bool, Errno> {
    let (shared, owner, slots) = (ids.shared, ids.owner, ids.slots());
    let mut is_held = None;
    locked(ids, |ids, gone| {
        for index in 0..slots {
            let Some(segment) = Segment::at(ids, index) else {
                give_back_left(shared, index);
                continue;
            };
            let is_attached = segment.find(task).is_some();
            // A forked child may have the dead task's mappings, but no attach records of its own
            // yet. Such a child has also inherited the dead task's hold (a mapped and locked file).
            // If no process has the hold, no child needs the dead task's records.
            if is_attached && !*is_held.get_or_insert_with(|| shared.backing.is_held(task)) {
                segment.note(DTIME, shared.pid_of(task));
                segment.detach(task, u64::MAX, gone);
            }
            if let Some(segment) = Segment::at(ids, index) {
                segment.orphan(task, gone);
            }
        }
        if is_held == Some(true) {
            return Ok(false);
        }
        shared.backing.forget(task);
        // The attach records that the pool still assigns to the dead task are in no list. The task
        // was making or freeing them when it died.
        let pool = shared.layout.attaches;
        for (record, _) in pool.used(&shared.region).filter(|(_, whose)| *whose == task) {
            put(&shared.region.line(record)[WHOSE], 0);
            pool.free(shared, record, owner);
        }
        Ok(true)
    })
}

/// Removes the memory of the last segment of slot `index`.
fn end_slot(ids: Ids<'_>, index: u32) -> bool {
    give_back_left(ids.shared, index);
    true
}

/// Repairs a segment after a task has died with the lock of all segments held. Rebuilds the list of
/// attach records, and removes the key of a segment that is marked for removal. Removes the segment
/// if that was due at its last detach.
///
/// Returns the number of the segment's pages, from which the caller computes the total. The caller
/// has taken over the lock.
pub(super) fn recover_slot(ids: Ids<'_>, object: &Object) -> u64 {
    let (shared, index) = (ids.shared, object.index);
    let line = line(shared, index);
    let is_own = |record: &u32| get(&shared.region.line(*record)[WHOSE]) == whose(object);
    let used = shared.layout.attaches.used(&shared.region).map(|(record, _)| record);
    let records = list(shared, line);
    records.set(used.filter(is_own));
    let is_marked = object.mode() & SHM_DEST != 0;
    if is_marked {
        ids.forget_key(index);
    }
    // A segment that was never attached stays until its creator ends.
    let creator = get(&line[CREATOR]);
    let is_forced =
        shared.limits.is_shm_rmid_forced && (creator == 0 || creator & WAS_ATTACHED != 0);
    if records.is_empty() && (is_marked || is_forced) {
        // Only the segment's memory is left after this. A later call removes it.
        ids.forget_slot(index);
        return 0;
    }
    pages(get(&line[SIZE])).unwrap_or(0)
}

pub(super) fn list<'s>(shared: &'s Shared, line: &'s Line) -> List<'s> {
    let max = shared.layout.attaches.lines;
    List { region: &shared.region, ends: &line[ATTACHES], links: LINKS, max }
}

/// Returns the word `WHOSE` of the records of a segment.
fn whose(object: &Object) -> u64 {
    IS_RECORD | name_of(object).serial << INDEX_BITS | u64::from(object.index)
}
