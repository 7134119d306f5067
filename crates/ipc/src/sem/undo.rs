//! Adjustments for `SEM_UNDO`, and their application at the end of a task.
//!
//! A task has one undo record per set that it has used with `SEM_UNDO`. A record is a line with its
//! owner and a line per semaphore, its *cell*. So threads of a task that use different semaphores
//! write no common line. A cell belongs to the task that has frozen the semaphore's word.
//!
//! # Owners
//!
//! A record is in the list of its set, which the set's lock protects. The task also keeps the line
//! numbers of its records in its own memory. The removal of the set frees the records. So a task
//! that ends takes the set's lock, and then checks whether the record is still its own (trap I8).
//!
//! Neither list decides whether a line is a record. It is a record of a task for a set if `WHOSE`
//! says so, and the pool's header names the same task. A task that frees another task's record
//! first makes itself its owner in the header.
//!
//! # A single operation
//!
//! 1. Freeze the word.
//! 2. Log the old adjustment (`log`).
//! 3. Store the new adjustment.
//! 4. Store the new word, which also thaws it.
//!
//! If the task dies before step 4, the word still has its old value. The log contains the old
//! adjustment, so recovery restores it. Without a log, the adjustment has not changed.
//!
//! Source: Linux `ipc/sem.c` (`find_alloc_undo`, `exit_sem`); research on crash-safe undo.

use corewalk_base::Line;
use corewalk_base::primitives::atomic::{AtomicU64, Ordering};
use rustix::io::Errno;

use super::queue::{Absent, Changed, update, wake};
use super::reap::{end_abandoned, there};
use super::set::{Set, SetGuard, UNDO_LIST};
use super::txn::Txn;
use crate::field::{get, high, low, pair, put};
use crate::lock::{Owner, Wait};
use crate::namespace::{SEMVMX, Shared, now_s};
use crate::task::Task;

// Words of a record's first line; 6 and 7 are the pool's.
/// [`IS_RECORD`], the task, and the slot of the set.
const WHOSE: usize = 0;
/// The neighbours in the set's list.
const SET_LINKS: usize = 1;
/// The payload of the set: its lines and its tag. The tag alone does not identify a set.
const PAYLOAD: usize = 2;
/// The number of cells.
const CELLS: usize = 3;

// Words of a cell.
const ADJ: usize = 0;
/// The redo log: the adjustment that a transaction is about to store.
const REDO_ADJ: usize = 1;

const IS_RECORD: u64 = 1 << 63;

const LOG_VALID: u64 = 1 << 63;

/// The number of records that a task keeps before it drops those that were freed.
const UNDOS_KEPT: usize = 64;

/// Returns the cell of semaphore `num` in a record.
#[inline]
fn cell(shared: &Shared, record: u32, num: u16) -> &Line {
    shared.region.line(record.wrapping_add(1 + u32::from(num)))
}

/// Returns an adjustment. The caller has frozen the semaphore.
#[inline]
pub(super) fn load_adj(shared: &Shared, record: u32, num: u16) -> i32 {
    i32::from(get(&cell(shared, record, num)[ADJ]) as u16 as i16)
}

/// Stores an adjustment. The caller has frozen the semaphore.
#[inline]
pub(super) fn store_adj(shared: &Shared, record: u32, num: u16, adj: i32) {
    // ORDERING(ipc-undo): Release. The log is stored before the adjustment changes.
    cell(shared, record, num)[ADJ].store(u64::from(adj as i16 as u16), Ordering::Release);
}

/// Writes the redo log: the adjustment that `store_adj` is about to store.
pub(super) fn log_adj(shared: &Shared, record: u32, num: u16, adj: i32) {
    let redo = LOG_VALID | u64::from(adj as i16 as u16);
    // ORDERING(ipc-commit): Release. See `Txn::log`.
    cell(shared, record, num)[REDO_ADJ].store(redo, Ordering::Release);
}

/// Completes or discards the redo log of a dead task. The semaphore is frozen.
pub(super) fn settle_adj(shared: &Shared, record: u32, num: u16, is_committed: bool) {
    let redo = get(&cell(shared, record, num)[REDO_ADJ]);
    if redo & LOG_VALID != 0 {
        if is_committed {
            store_adj(shared, record, num, i32::from(redo as u16 as i16));
        }
        unlog_adj(shared, record, num);
    }
}

/// Clears the redo log. The adjustment is stored.
pub(super) fn unlog_adj(shared: &Shared, record: u32, num: u16) {
    // ORDERING(ipc-commit): Release. The adjustment is stored before its log is cleared.
    cell(shared, record, num)[REDO_ADJ].store(0, Ordering::Release);
}

/// Returns the undo record of `task` for the set. Allocates it if there is none.
///
/// # Errors
///
/// `ENOMEM` if the region has no space for a record.
#[doc(alias = "find_alloc_undo")]
pub(super) fn find_alloc(guard: &SetGuard<'_>, task: &Task) -> Result<u32, Errno> {
    let set = guard.set;
    if let Some(record) = cached(set, task) {
        return Ok(record);
    }
    let whose = whose(task.owner.index, set.index);
    let found = records(guard).find(|record| is_of_set(set, *record, task.owner.index));
    let record = match found {
        Some(record) => record,
        None => alloc(guard, task, whose)?,
    };
    task.cache_undo(set.index, set.place.tag, record);
    Ok(record)
}

/// Returns the undo record of `task` for the set, if it is in the task's cache.
///
/// The record is valid while the set exists. A freeze of one of the set's words shows that it does.
#[inline]
pub(super) fn cached(set: Set<'_>, task: &Task) -> Option<u32> {
    let record = task.cached_undo(set.index, set.place.tag)?;
    is_of_set(set, record, task.owner.index).then_some(record)
}

/// Returns true if a line is the record of task `task` for exactly this set.
#[inline]
fn is_of_set(set: Set<'_>, record: u32, task: u32) -> bool {
    let first = set.shared.region.line(record);
    // ORDERING(ipc-record): Acquire. See `alloc`.
    let is_whose = first[WHOSE].load(Ordering::Acquire) == whose(task, set.index);
    is_whose && get(&first[PAYLOAD]) == set.place.payload()
}

fn whose(task: u32, set: u32) -> u64 {
    IS_RECORD | pair(task, set)
}

fn alloc(guard: &SetGuard<'_>, task: &Task, whose: u64) -> Result<u32, Errno> {
    let set = guard.set;
    let shared = set.shared;
    let lines = 1 + set.place.nsems;
    let record = shared.layout.undos.alloc(shared, lines, task.owner, task.owner.index)?;
    let first = shared.region.line(record);
    put(&first[PAYLOAD], set.place.payload());
    put(&first[CELLS], u64::from(set.place.nsems));
    // ORDERING(ipc-record): Release. The record is complete before `WHOSE` makes it one.
    first[WHOSE].store(whose, Ordering::Release);
    push(shared, &set.line()[UNDO_LIST], SET_LINKS, record);
    let mut undos = task.undos.lock();
    if undos.len() >= UNDOS_KEPT && undos.len().is_power_of_two() {
        undos.retain(|record| is_record_of(shared, *record, task.owner.index).is_some());
    }
    undos.push(record);
    Ok(record)
}

/// Returns the slot of the set if a line is a record of task `task`, or none if it is not.
pub(super) fn is_record_of(shared: &Shared, record: u32, task: u32) -> Option<u32> {
    // ORDERING(ipc-record): Acquire. See `alloc`.
    let word = shared.region.line(record)[WHOSE].load(Ordering::Acquire);
    let set = high(word & !IS_RECORD);
    let is_own = word == whose(task, set) && set < shared.layout.sem_ids.slots;
    (is_own && shared.layout.undos.whose(&shared.region, record) == Some(task)).then_some(set)
}

/// Returns true if a line is the record of task `task` for this set, and is in the set's list.
pub(super) fn is_at(guard: &SetGuard<'_>, record: u32, task: u32) -> bool {
    let is_own = is_record_of(guard.set.shared, record, task) == Some(guard.set.index);
    is_own && records(guard).any(|other| other == record)
}

/// Returns the undo records of a set.
pub(super) fn records<'s>(guard: &SetGuard<'s>) -> impl Iterator<Item = u32> + use<'s> {
    let shared = guard.set.shared;
    let some = |record: u32| Some(record).filter(|record| *record != 0);
    let first = some(low(get(guard.field(UNDO_LIST))));
    let next = move |record: &u32| some(high(get(&shared.region.line(*record)[SET_LINKS])));
    // A hostile task may make the list a ring. So the walk ends after the number of records that
    // the pool can hold. Each record has a line for each semaphore.
    let records_max = shared.layout.undos.lines / (1 + guard.set.place.nsems);
    std::iter::successors(first, next).take(records_max as usize)
}

/// Clears all adjustments of semaphore `num`, as part of `txn`.
pub(super) fn clear(txn: &mut Txn<'_, '_>, num: u16) -> Result<(), Errno> {
    records(txn.guard()).try_for_each(|record| txn.set_adj(record, num, 0))
}

/// Frees all records of a set. The words of its semaphores are dead.
pub(super) fn free_all(guard: &SetGuard<'_>) {
    for _ in 0..guard.set.shared.layout.undos.lines {
        let record = low(get(guard.field(UNDO_LIST)));
        if record == 0 {
            return;
        }
        free(guard, record);
    }
}

/// Removes a record from its set's list, zeroes its lines and frees them.
fn free(guard: &SetGuard<'_>, record: u32) {
    let shared = guard.set.shared;
    unlink(shared, guard.field(UNDO_LIST), SET_LINKS, record);
    discard(shared, record, guard.owner);
}

/// Zeroes and frees the lines of a record that is in no list.
fn discard(shared: &Shared, record: u32, owner: Owner) {
    let first = shared.region.line(record);
    let pool = shared.layout.undos;
    // From here on it is not a record. If this task dies, its reaper frees the lines.
    pool.set_whose(&shared.region, record, owner.index);
    // ORDERING(ipc-record): Release. As in `alloc`.
    first[WHOSE].store(0, Ordering::Release);
    // The line may become a cell of another record. The old link must not be read as a redo log.
    put(&first[SET_LINKS], 0);
    let cells = pool.len(&shared.region, record).saturating_sub(1);
    for num in 0..get(&first[CELLS]).min(u64::from(cells)) as u16 {
        let cell = cell(shared, record, num);
        // A cell that was never used has no memory yet, and a store would allocate it.
        for word in [ADJ, REDO_ADJ] {
            if get(&cell[word]) != 0 {
                put(&cell[word], 0);
            }
        }
    }
    pool.free(shared, record, owner);
}

/// Applies the adjustments of a task that ends, set by set, and ends its abandoned waits. Returns
/// the tasks that got a grant by this and may have died.
///
/// Values are limited to 0 and `SEMVMX`, since a task that ends does not wait.
///
/// # Errors
///
/// `EIO` if another task does not release a set's lock or a semaphore. The other adjustments are
/// applied when the process has ended.
pub(crate) fn exit_sem(task: &Task) -> Result<Absent, Errno> {
    let undos = std::mem::take(&mut *task.undos.lock());
    let gone = Gone { task: task.owner.index, pid: task.pid };
    let mut absent = end_abandoned(task, None)?;
    for record in undos.into_iter().rev() {
        if let Some(set) = is_record_of(&task.shared, record, task.owner.index) {
            absent.extend(exit_set(&task.shared, task.owner, gone, set, record)?);
        }
    }
    Ok(absent)
}

/// A task that ends or has died.
#[derive(Clone, Copy)]
pub(crate) struct Gone {
    pub(crate) task: u32,
    pub(crate) pid: u32,
}

/// Applies and frees a record of a task that has ended. The line may have no record.
///
/// # Errors
///
/// `EIO` if another task does not release the set's lock or a semaphore.
pub(super) fn reap(shared: &Shared, owner: Owner, gone: Gone, line: u32) -> Result<Absent, Errno> {
    let mut absent = Absent::new();
    if let Some(set) = is_record_of(shared, line, gone.task) {
        absent = exit_set(shared, owner, gone, set, line)?;
    }
    // The line is not yet a record, or no longer one, or its set is gone.
    if shared.layout.undos.whose(&shared.region, line) == Some(gone.task) {
        discard(shared, line, owner);
    }
    Ok(absent)
}

/// Applies and frees one record, unless the set was removed, and the record with it.
fn exit_set(
    shared: &Shared,
    owner: Owner,
    gone: Gone,
    index: u32,
    record: u32,
) -> Result<Absent, Errno> {
    let Some(set) = Set::at(shared, index) else { return Ok(Absent::new()) };
    let Some(guard) = there(set.lock_remains(owner, Wait::Long))? else { return Ok(Absent::new()) };
    // The set may be gone, and another task or set may have the record's line.
    if !is_at(&guard, record, gone.task) {
        return Ok(Absent::new());
    }
    if !guard.is_published() {
        // The set was removed, but the removal could not be completed.
        free(&guard, record);
        return Ok(Absent::new());
    }
    let mut txn = Txn::new(&guard);
    let nums = apply(&mut txn, record, gone.pid)?;
    let completed = update(&mut txn, Changed::Nums(&nums))?;
    let wakes = txn.commit(completed);
    set.touch_otime(0, now_s());
    free(&guard, record);
    drop(guard);
    Ok(wake(shared, &wakes))
}

/// Builds the list of a set's records from the lines of the pool.
pub(super) fn rebuild(guard: &SetGuard<'_>) {
    let set = guard.set;
    let shared = set.shared;
    put(guard.field(UNDO_LIST), 0);
    let (_, records) = shared.layout.undos.collect_used(&shared.region, |record, task| {
        let is_record = is_record_of(shared, record, task).is_some();
        (is_record && is_of_set(set, record, task)).then_some(record)
    });
    for record in records {
        push(shared, guard.field(UNDO_LIST), SET_LINKS, record);
    }
}

/// Returns the number of the task to which a record belongs.
pub(super) fn task_of(shared: &Shared, record: u32) -> u32 {
    low(get(&shared.region.line(record)[WHOSE]))
}

/// Applies a record as part of `txn`. Returns the semaphores that it changed.
fn apply(txn: &mut Txn<'_, '_>, record: u32, pid: u32) -> Result<Vec<u16>, Errno> {
    let set = txn.set();
    let mut nums = Vec::new();
    for num in 0..set.place.nsems as u16 {
        // No other task adds to these adjustments. Only the holder of the lock clears them.
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
