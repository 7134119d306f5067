//! Adjustments for `SEM_UNDO`. The end of a task applies them (`reap`).
//!
//! A task has one undo record for each set that it has used with `SEM_UNDO`. A record is a line
//! that names its owner, and one line for each semaphore, its *cell*. So threads of a task that use
//! different semaphores write no common line. A cell belongs to the task that has frozen the
//! semaphore's word.
//!
//! # Owners
//!
//! A record is in the list of its set, which the set's lock protects. The task also keeps the line
//! numbers of its records in its own memory. The removal of a set frees the set's records. So a
//! task that ends takes the set's lock, and then checks whether the record still belongs to it
//! (trap I8).
//!
//! Neither the set's list nor the task's list decides whether a line is a record. A line is a
//! record if its word `WHOSE` names a task and a set, and the pool's header names the same task. A
//! task that frees another task's record first makes itself the owner in the header.
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

use corewalk_base::primitives::IS_MODEL;
use corewalk_base::primitives::atomic::{AtomicU64, Ordering};
use corewalk_base::{Line, Mutex};
use rustix::io::Errno;

use super::SemBuf;
use super::set::{Set, SetGuard, UNDO_LIST};
use crate::field::{get, high, low, pair, put};
use crate::limits::SEMAEM;
use crate::list::List;
use crate::lock::Owner;
use crate::shared::Shared;

// The indices of words in the first line of a record. Words 6 and 7 belong to the pool.
/// The word with [`IS_RECORD`], the task (low half), and the slot of the set (high half). It is 0
/// in a line that is no record.
const WHOSE: usize = 0;
/// The neighbours in the set's list.
const SET_LINKS: usize = 1;
/// The word with the payload of the set: its lines and its tag. The tag alone does not identify a
/// set.
const PAYLOAD: usize = 2;
/// The number of cells.
const CELLS: usize = 3;

// Words of a cell.
const ADJ: usize = 0;
/// The word of a cell with the redo log: the adjustment that a transaction is about to store.
const REDO_ADJ: usize = 1;

const IS_RECORD: u64 = 1 << 63;

const LOG_VALID: u64 = 1 << 63;

/// When a task adds a record to its list of undo records, it may first remove freed records from
/// the list. It does so if the list has at least this length, and the length is a power of two.
const UNDOS_KEPT: usize = 64;

/// The number of entries in a task's cache of undo records.
const UNDO_CACHE: usize = if IS_MODEL { 1 } else { 256 };

/// Returns the cell of semaphore `num` in a record.
#[inline]
fn cell(shared: &Shared, record: u32, num: u16) -> &Line {
    shared.region.line(record.wrapping_add(1 + u32::from(num)))
}

/// Returns an adjustment. The caller has frozen the semaphore's word.
#[inline]
pub(super) fn load_adj(shared: &Shared, record: u32, num: u16) -> i32 {
    i32::from(get(&cell(shared, record, num)[ADJ]) as u16 as i16)
}

/// Stores an adjustment. The caller has frozen the semaphore's word.
#[inline]
pub(super) fn store_adj(shared: &Shared, record: u32, num: u16, adj: i32) {
    // ORDERING(ipc-undo): Release. Recovery that sees the new adjustment also sees the log written
    // before.
    cell(shared, record, num)[ADJ].store(u64::from(adj as i16 as u16), Ordering::Release);
}

/// Returns the adjustment after an operation with `SEM_UNDO`: `adj` less the number that the
/// operation adds.
///
/// # Errors
///
/// `ERANGE` if the adjustment would exceed `SEMAEM`.
#[inline]
pub(super) fn adjusted(adj: i32, sop: SemBuf) -> Result<i32, Errno> {
    let adj = adj - i32::from(sop.sem_op);
    if (-SEMAEM - 1..=SEMAEM).contains(&adj) { Ok(adj) } else { Err(Errno::RANGE) }
}

/// Writes the redo log: the adjustment that `store_adj` is about to store. With `None`, clears the
/// log after the adjustment was stored.
pub(super) fn log_adj(shared: &Shared, record: u32, num: u16, adj: Option<i32>) {
    let redo = adj.map_or(0, |adj| LOG_VALID | u64::from(adj as i16 as u16));
    // ORDERING(ipc-commit): Release. See `Txn::log`. Recovery that sees no log sees the adjustment
    // stored.
    cell(shared, record, num)[REDO_ADJ].store(redo, Ordering::Release);
}

/// Ends the redo log that a dead task has left in a cell. If the task had committed, stores the
/// logged adjustment. The semaphore's word is still frozen.
pub(super) fn settle_adj(shared: &Shared, record: u32, num: u16, is_committed: bool) {
    let redo = get(&cell(shared, record, num)[REDO_ADJ]);
    if redo & LOG_VALID != 0 {
        if is_committed {
            store_adj(shared, record, num, i32::from(redo as u16 as i16));
        }
        log_adj(shared, record, num, None);
    }
}

/// The undo records of a task.
pub(crate) struct Undos {
    /// The line numbers of the task's undo records. Some records may have been freed with their
    /// set.
    pub(super) records: Mutex<Vec<u32>>,
    /// A cache of the task's undo records, indexed by the slot of the set; see [`cached`].
    cache: Box<[AtomicU64]>,
}

impl Default for Undos {
    fn default() -> Self {
        let cache = (0..UNDO_CACHE).map(|_| AtomicU64::new(0)).collect();
        Self { records: Mutex::default(), cache }
    }
}

/// Returns the undo record of the guard's owner for the set. Allocates it if there is none.
/// Analogous to Linux's `find_alloc_undo`.
///
/// # Errors
///
/// `ENOMEM` if the region has no room for a record.
pub(super) fn find_alloc(guard: &SetGuard<'_>, undos: &Undos) -> Result<u32, Errno> {
    let (set, task) = (guard.set, guard.owner.index);
    if let Some(record) = cached(set, undos, task) {
        return Ok(record);
    }
    let found = list(guard).iter().find(|record| is_of_set(set, *record, task));
    let record = found.map_or_else(|| alloc(guard, undos), Ok)?;
    let entry = u64::from(record) | cache_check(set) << 32;
    // ORDERING: Relaxed. See `cached`.
    undos.cache[set.index as usize % UNDO_CACHE].store(entry, Ordering::Relaxed);
    Ok(record)
}

/// Returns the undo record of task `task` for the set, if it is in the task's cache.
///
/// The record is valid while the set exists. A caller that then freezes a word of the set, and
/// finds the right tag in it, knows that the set exists.
#[inline]
pub(super) fn cached(set: Set<'_>, undos: &Undos, task: u32) -> Option<u32> {
    // ORDERING: Relaxed. Only a guess, which is checked below.
    let entry = undos.cache[set.index as usize % UNDO_CACHE].load(Ordering::Relaxed);
    let is_hit = low(entry) != 0 && entry >> 32 == cache_check(set);
    (is_hit && is_of_set(set, low(entry), task)).then_some(low(entry))
}

/// Returns the high half of a cache entry, which identifies the set: its tag, and the high bits of
/// its slot.
#[inline]
fn cache_check(set: Set<'_>) -> u64 {
    set.place.tag << 8 | (u64::from(set.index) / UNDO_CACHE as u64) & 0xff
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

fn alloc(guard: &SetGuard<'_>, undos: &Undos) -> Result<u32, Errno> {
    let (set, owner) = (guard.set, guard.owner);
    let shared = set.shared;
    let record = shared.layout.undos.alloc(shared, 1 + set.place.nsems, owner, owner.index)?;
    let first = shared.region.line(record);
    put(&first[PAYLOAD], set.place.payload());
    put(&first[CELLS], u64::from(set.place.nsems));
    // ORDERING(ipc-record): Release. A thread that reads `WHOSE` as a record sees the record
    // complete.
    first[WHOSE].store(whose(owner.index, set.index), Ordering::Release);
    list(guard).push(record);
    let mut records = undos.records.lock();
    if records.len() >= UNDOS_KEPT && records.len().is_power_of_two() {
        records.retain(|record| is_record_of(shared, *record, owner.index).is_some());
    }
    records.push(record);
    Ok(record)
}

/// If a line is a record of task `task`, returns the slot of its set, otherwise none.
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
    is_own && list(guard).iter().any(|other| other == record)
}

/// Returns the list of the undo records of a set.
pub(super) fn list<'s>(guard: &SetGuard<'s>) -> List<'s> {
    let shared = guard.set.shared;
    // A hostile process may make the list a ring. So a walk ends after as many records as fit into
    // the pool. Each record has a line for each semaphore.
    let max = shared.layout.undos.lines / (1 + guard.set.place.nsems);
    List { region: &shared.region, ends: guard.field(UNDO_LIST), links: SET_LINKS, max }
}

/// Removes a record from its set's list, zeroes its lines and frees them.
pub(super) fn free(guard: &SetGuard<'_>, record: u32) {
    list(guard).unlink(record);
    discard(guard.set.shared, record, guard.owner);
}

/// Zeroes and frees the lines of a record that is in no list.
pub(super) fn discard(shared: &Shared, record: u32, owner: Owner) {
    let first = shared.region.line(record);
    let pool = shared.layout.undos;
    // From here on, the line is no record, and its lines belong to the calling task. If that task
    // dies, its reaper frees them.
    pool.set_whose(&shared.region, record, owner.index);
    // ORDERING(ipc-record): Release. As in `alloc`.
    first[WHOSE].store(0, Ordering::Release);
    // Clear the link to other records. The line may become a cell of another record, where the old
    // link would look like a redo log.
    put(&first[SET_LINKS], 0);
    let cells = pool.len(&shared.region, record).saturating_sub(1);
    for num in 0..get(&first[CELLS]).min(u64::from(cells)) as u16 {
        let cell = cell(shared, record, num);
        // A cell that was never used may have no memory, and a store would allocate it. So zero
        // only words that are not 0.
        for word in [ADJ, REDO_ADJ] {
            if get(&cell[word]) != 0 {
                put(&cell[word], 0);
            }
        }
    }
    pool.free(shared, record, owner);
}

/// Rebuilds the list of a set's records from the lines of the pool.
pub(super) fn rebuild(guard: &SetGuard<'_>) {
    let set = guard.set;
    let shared = set.shared;
    let (_, records) = shared.layout.undos.collect_used(&shared.region, |record, task| {
        let is_record = is_record_of(shared, record, task).is_some();
        (is_record && is_of_set(set, record, task)).then_some(record)
    });
    list(guard).set(records);
}
