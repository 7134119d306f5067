//! Adjustments for `SEM_UNDO`, and the end of a task.
//!
//! A task has one undo record per set that it has used with `SEM_UNDO`: a line that says whose it
//! is, and a line per semaphore, so that threads of a task that work on different semaphores share no
//! written line. The cell of a semaphore belongs to whoever has frozen the semaphore's word.
//!
//! # Owners
//!
//! A record is in two lists: that of the set, under the set's lock, and that of the task, under the
//! task's lock, which is a leaf inside of the set's (trap I8). Whoever removes the set frees it; a task
//! that ends looks at the head of its list, takes the set's lock, and looks whether it is still there.
//!
//! # A single operation
//!
//! Freeze the word; log the old adjustment; store the new one; store the new word, which thaws.
//! If the task dies in between, the word still has its old value, and the log says what the adjustment
//! was; it belongs to this freeze if its phase is that of the word. Until the log is written the
//! adjustment has not been changed.
//!
//! Source: Linux `ipc/sem.c` (`find_alloc_undo`, `exit_sem`); research on crash-safe undo.

use corewalk_sync::Line;
use corewalk_sync::primitives::atomic::{AtomicU64, Ordering};
use rustix::io::Errno;

use super::queue::{Changed, update, wake};
use super::set::{LIVE, Place, Set, SetGuard, UNDO_LIST, UNDO_LOG};
use super::txn::Txn;
use super::word::Word;
use crate::field::{get, high, low, pair, put};
use crate::namespace::{SEMVMX, Shared, now_s};
use crate::task::{TASK_UNDOS, Task, lock_task, task_line};

// Words of a record's first line; 6 and 7 are the pool's.
/// Task and slot of the set.
const WHOSE: usize = 0;
/// Neighbours in the set's list.
const SET_LINKS: usize = 1;
/// Neighbours in the task's list.
const TASK_LINKS: usize = 2;
/// How many semaphores there are cells for.
const CELLS: usize = 3;

// Words of a cell.
const ADJ: usize = 0;
/// What a change of several semaphores is about to store.
const REDO_ADJ: usize = 1;

const LOG_VALID: u64 = 1 << 63;
const LOG_PHASE_SHIFT: u32 = 62;

/// Records of a set or task at most, whatever the region says.
const WALK_MAX: usize = 1 << 22;

/// Returns the line of an adjustment.
#[inline]
fn cell(shared: &Shared, record: u32, num: u16) -> &Line {
    shared.region.line(record.wrapping_add(1 + u32::from(num)))
}

/// Returns an adjustment; its semaphore is frozen.
#[inline]
pub(super) fn load_adj(shared: &Shared, record: u32, num: u16) -> i32 {
    i32::from(get(&cell(shared, record, num)[ADJ]) as u16 as i16)
}

/// Stores an adjustment; its semaphore is frozen.
#[inline]
pub(super) fn store_adj(shared: &Shared, record: u32, num: u16, adj: i32) {
    // ORDERING(ipc-undo): Release. The log is in place before what it takes back is changed.
    cell(shared, record, num)[ADJ].store(u64::from(adj as i16 as u16), Ordering::Release);
}

/// Writes what `store_adj` is about to store into the redo log.
pub(super) fn log_adj(shared: &Shared, record: u32, num: u16, adj: i32) {
    let redo = LOG_VALID | u64::from(adj as i16 as u16);
    // ORDERING(ipc-commit): Release. See `Txn::log`.
    cell(shared, record, num)[REDO_ADJ].store(redo, Ordering::Release);
}

/// Makes void what `log_adj` wrote: the adjustment is stored.
pub(super) fn unlog_adj(shared: &Shared, record: u32, num: u16) {
    // ORDERING(ipc-commit): Release. The adjustment is stored before its log goes.
    cell(shared, record, num)[REDO_ADJ].store(0, Ordering::Release);
}

/// Notes the adjustment that a single operation is about to change; `word` is that of the freeze.
#[inline]
pub(super) fn log_old_adj(set: &Set<'_>, record: u32, num: u16, adj: i32, word: Word) {
    let log = LOG_VALID
        | word.phase() << LOG_PHASE_SHIFT
        | u64::from(adj as i16 as u16) << 32
        | u64::from(record);
    // ORDERING(ipc-undo): Release. See `store_adj`.
    set.sem(num)[UNDO_LOG].store(log, Ordering::Release);
}

/// Returns the undo record of `task` for the set, which is made if there is none.
///
/// # Errors
///
/// `ENOMEM` if there is no room.
#[doc(alias = "find_alloc_undo")]
pub(super) fn find_alloc(guard: &SetGuard<'_>, task: &Task) -> Result<u32, Errno> {
    let set = guard.set;
    let shared = set.shared;
    if let Some(record) = task.cached_undo(set.index, set.place.tag) {
        return Ok(record);
    }
    let whose = pair(task.index, set.index);
    let found = records(guard).find(|record| get(&shared.region.line(*record)[WHOSE]) == whose);
    let record = match found {
        Some(record) => record,
        None => alloc(guard, task, whose)?,
    };
    task.cache_undo(set.index, set.place.tag, record);
    Ok(record)
}

fn alloc(guard: &SetGuard<'_>, task: &Task, whose: u64) -> Result<u32, Errno> {
    let set = guard.set;
    let shared = set.shared;
    let lines = 1 + set.place.nsems;
    let record =
        shared.layout.undos.alloc(&shared.region, lines, task.index).ok_or(Errno::NOMEM)?;
    let first = shared.region.line(record);
    put(&first[WHOSE], whose);
    put(&first[CELLS], u64::from(set.place.nsems));
    push(shared, &set.line()[UNDO_LIST], SET_LINKS, record);
    let _task = lock_task(shared, task.index);
    push(shared, &task.line()[TASK_UNDOS], TASK_LINKS, record);
    Ok(record)
}

/// Returns the undo records of a set.
pub(super) fn records<'s>(guard: &SetGuard<'s>) -> impl Iterator<Item = u32> + use<'s> {
    let shared = guard.set.shared;
    let some = |record: u32| Some(record).filter(|record| *record != 0);
    let first = some(low(get(guard.field(UNDO_LIST))));
    let next = move |record: &u32| some(high(get(&shared.region.line(*record)[SET_LINKS])));
    std::iter::successors(first, next).take(WALK_MAX)
}

/// Forgets all adjustments of semaphore `num`, as part of `txn`.
pub(super) fn clear(txn: &mut Txn<'_, '_>, num: u16) -> Result<(), Errno> {
    records(txn.guard()).try_for_each(|record| txn.set_adj(record, num, 0))
}

/// Frees all records of a set whose words are dead.
pub(super) fn free_all(guard: &SetGuard<'_>) {
    for _ in 0..WALK_MAX {
        let record = low(get(guard.field(UNDO_LIST)));
        if record == 0 {
            return;
        }
        free(guard, record);
    }
}

/// Takes a record out of both lists and gives its lines back, zeroed.
fn free(guard: &SetGuard<'_>, record: u32) {
    let shared = guard.set.shared;
    let first = shared.region.line(record);
    let task = low(get(&first[WHOSE]));
    unlink(shared, guard.field(UNDO_LIST), SET_LINKS, record);
    {
        let _task = lock_task(shared, task);
        unlink(shared, &task_line(shared, task)[TASK_UNDOS], TASK_LINKS, record);
    }
    for num in 0..get(&first[CELLS]).min(u64::from(guard.set.place.nsems)) as u16 {
        let cell = cell(shared, record, num);
        // Cells that were never used have no memory yet.
        if get(&cell[ADJ]) != 0 {
            put(&cell[ADJ], 0);
        }
    }
    shared.layout.undos.free(&shared.region, record, guard.owner);
}

/// Applies the adjustments of a task that ends, set by set.
///
/// Values are kept between 0 and `SEMVMX`: a task that ends waits for nothing.
pub(crate) fn exit_sem(task: &Task) {
    let shared = &*task.shared;
    for _ in 0..WALK_MAX {
        let record = {
            let _task = lock_task(shared, task.index);
            low(get(&task.line()[TASK_UNDOS]))
        };
        if record == 0 {
            return;
        }
        exit_set(task, record);
    }
}

/// Applies and frees one record, unless the set was removed meanwhile, and the record with it.
fn exit_set(task: &Task, record: u32) {
    let shared = &*task.shared;
    let index = high(get(&shared.region.line(record)[WHOSE]));
    if index >= shared.layout.sem_ids.slots {
        return;
    }
    let line = shared.region.line(shared.layout.sets + index);
    let place = Place::from_payload(get(&line[LIVE]));
    let set = Set { shared, index, place };
    let Ok(guard) = set.lock(task.index) else { return };
    // The set may have been removed, and the record serve another task or set by now.
    let is_own = get(&shared.region.line(record)[WHOSE]) == pair(task.index, index);
    if !is_own || !records(&guard).any(|other| other == record) {
        return;
    }
    let mut txn = Txn::new(&guard);
    let completed =
        apply(&mut txn, record, task.pid).and_then(|nums| update(&mut txn, Changed::Nums(&nums)));
    let Ok(completed) = completed else { return };
    txn.commit();
    set.touch_otime(0, now_s());
    free(&guard, record);
    let wakes = completed.tell(shared);
    drop(guard);
    wake(shared, &wakes);
}

/// Applies a record as part of `txn`; returns which semaphores it changed.
fn apply(txn: &mut Txn<'_, '_>, record: u32, pid: u32) -> Result<Vec<u16>, Errno> {
    let set = txn.set();
    let mut nums = Vec::new();
    for num in 0..set.place.nsems as u16 {
        // Nobody else adds to the adjustments of a task that ends, and who forgets them has the lock.
        let adj = load_adj(set.shared, record, num);
        if adj != 0 {
            let value = (txn.value(num)? + adj).clamp(0, SEMVMX);
            txn.set_value(num, value, pid)?;
            txn.set_adj(record, num, 0)?;
            nums.push(num);
        }
    }
    Ok(nums)
}

fn push(shared: &Shared, ends: &AtomicU64, links: usize, record: u32) {
    let first = low(get(ends));
    put(&shared.region.line(record)[links], pair(0, first));
    if first != 0 {
        let second = &shared.region.line(first)[links];
        put(second, pair(record, high(get(second))));
    }
    put(ends, u64::from(record));
}

fn unlink(shared: &Shared, ends: &AtomicU64, links: usize, record: u32) {
    let own = get(&shared.region.line(record)[links]);
    let (before, after) = (low(own), high(own));
    if before == 0 {
        put(ends, u64::from(after));
    } else {
        let links = &shared.region.line(before)[links];
        put(links, pair(low(get(links)), after));
    }
    if after != 0 {
        let links = &shared.region.line(after)[links];
        put(links, pair(before, high(get(links))));
    }
}
