//! Adjustments for `SEM_UNDO`. The end of a task applies them (`reap`).
//!
//! A task has one undo record for each set that it has used with `SEM_UNDO`. An undo record
//! consists of cache lines: one that names the task and the set, and one for each semaphore, its
//! *cell*. So threads that use different semaphores write no common line.
//!
//! The task that has frozen (locked) a semaphore's word is the only one that may change the
//! semaphore's cells (its lines in undo records).
//!
//! # Owners
//!
//! An undo record is in the list of its set, which the set's lock protects. The task also keeps the
//! numbers of its undo records in its own memory. The removal of a set frees its undo records. So a
//! task that ends checks under the set's lock whether a record still belongs to the task (trap I8
//! in `traps.md`).
//!
//! The set's list and the task's list are not authoritative. A cache line is the first of an undo
//! record if two conditions hold. Its word `WHOSE` names a task and a set. Its pool header names
//! the same task. A task that frees another task's record first stores its own number in the
//! header.
//!
//! # A single operation
//!
//! A single operation with `SEM_UNDO` takes four steps:
//! 1. It freezes (locks) the semaphore's word.
//! 2. It logs the old undo adjustment (`log`).
//! 3. It stores the new undo adjustment.
//! 4. It stores the semaphore's new word, which also thaws it.
//!
//! The task may die before it stores the semaphore's new word. Then the semaphore keeps its old
//! value, and recovery restores the old adjustment from the log. If there is no log yet, the
//! adjustment is unchanged.
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

// Words 6 and 7 of the first line of an undo record belong to the memory pool.
/// A word with the task number (low half), the slot of the set (high half), and the bit
/// [`IS_RECORD`].
///
/// In a later line of an undo record, this word is an undo adjustment, and [`IS_RECORD`] is never
/// set.
const WHOSE: usize = 0;
/// The neighbours in the set's list.
const SET_LINKS: usize = 1;
/// A copy of the set's payload. The tag alone is not enough, since a later set in the same slot may
/// have the same tag.
const PAYLOAD: usize = 2;
/// The number of cells.
const CELLS: usize = 3;

// Words of a cell.
const ADJ: usize = 0;
/// A transaction logs the new undo adjustment of a semaphore here.
const REDO_ADJ: usize = 1;

const IS_RECORD: u64 = 1 << 63;

const LOG_VALID: u64 = 1 << 63;

/// The minimum length at which a task removes freed records from its list. The task does so
/// whenever the length of the list is a power of two.
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
    // ORDERING(ipc-undo): Release. Without this order, recovery could see the new undo adjustment
    // but not the log that was written before.
    cell(shared, record, num)[ADJ].store(u64::from(adj as i16 as u16), Ordering::Release);
}

#[inline]
pub(super) fn adjusted(adj: i32, sop: SemBuf) -> Result<i32, Errno> {
    let adj = adj - i32::from(sop.sem_op);
    if (-SEMAEM - 1..=SEMAEM).contains(&adj) { Ok(adj) } else { Err(Errno::RANGE) }
}

/// `None` clears the log.
pub(super) fn log_adj(shared: &Shared, record: u32, num: u16, adj: Option<i32>) {
    let redo = adj.map_or(0, |adj| LOG_VALID | u64::from(adj as i16 as u16));
    // ORDERING(ipc-commit): Release. See `Txn::log`. Without this order, recovery could see that
    // this log is cleared but not the stored undo adjustment.
    cell(shared, record, num)[REDO_ADJ].store(redo, Ordering::Release);
}

/// Completes or discards a change that a dead task has logged. If the task had committed its
/// transaction, stores the undo adjustment from the redo log. The semaphore's word stays frozen
/// (locked).
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
    /// The first cache line of each undo record. Some records may have been freed since, together
    /// with their set.
    pub(super) records: Mutex<Vec<u32>>,
    /// A cache of undo records, indexed by the low bits of the set's slot; see [`cached`].
    cache: Box<[AtomicU64]>,
}

impl Default for Undos {
    fn default() -> Self {
        let cache = (0..UNDO_CACHE).map(|_| AtomicU64::new(0)).collect();
        Self { records: Mutex::default(), cache }
    }
}

/// Returns the undo record of the task for a set, and allocates one if there is none. Analogous to
/// Linux's `find_alloc_undo`.
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

/// Returns the undo record of a task for a set, if it is in the task's cache.
///
/// A caller without the set's lock must have frozen (locked) the word of one of the set's
/// semaphores. If that word contains the set's tag (version number), the set and the undo record
/// exist.
#[inline]
pub(super) fn cached(set: Set<'_>, undos: &Undos, task: u32) -> Option<u32> {
    // ORDERING: Relaxed. Only a guess, which is checked below.
    let entry = undos.cache[set.index as usize % UNDO_CACHE].load(Ordering::Relaxed);
    let is_hit = low(entry) != 0 && entry >> 32 == cache_check(set);
    (is_hit && is_of_set(set, low(entry), task)).then_some(low(entry))
}

/// Returns the bits by which a cache entry is recognised as that of `set`: the set's tag, and the
/// high bits of its slot.
#[inline]
fn cache_check(set: Set<'_>) -> u64 {
    set.place.tag << 8 | (u64::from(set.index) / UNDO_CACHE as u64) & 0xff
}

/// Returns true if the record is that of the task for this set, and not for an earlier set in the
/// same slot.
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
    // ORDERING(ipc-record): Release. A thread finds a record by a load of `WHOSE` with Acquire.
    // Without this order, it could see an incomplete record.
    first[WHOSE].store(whose(owner.index, set.index), Ordering::Release);
    list(guard).push(record);
    let mut records = undos.records.lock();
    if records.len() >= UNDOS_KEPT && records.len().is_power_of_two() {
        records.retain(|record| is_record_of(shared, *record, owner.index).is_some());
    }
    records.push(record);
    Ok(record)
}

/// Returns the slot of the record's set.
pub(super) fn is_record_of(shared: &Shared, record: u32, task: u32) -> Option<u32> {
    // ORDERING(ipc-record): Acquire. See `alloc`.
    let word = shared.region.line(record)[WHOSE].load(Ordering::Acquire);
    let set = high(word & !IS_RECORD);
    let is_own = word == whose(task, set) && set < shared.layout.sem_ids.slots;
    (is_own && shared.layout.undos.whose(&shared.region, record) == Some(task)).then_some(set)
}

/// Returns true if the record is the task's record for this set, and is in the set's list.
pub(super) fn is_at(guard: &SetGuard<'_>, record: u32, task: u32) -> bool {
    let is_own = is_record_of(guard.set.shared, record, task) == Some(guard.set.index);
    is_own && list(guard).iter().any(|other| other == record)
}

/// Returns the list of the undo records of a set.
pub(super) fn list<'s>(guard: &SetGuard<'s>) -> List<'s> {
    let shared = guard.set.shared;
    // A hostile process may link the list into a ring. So a walk visits at most as many records as
    // fit into their pool. A record has one cache line, and one more for each semaphore.
    let max = shared.layout.undos.lines / (1 + guard.set.place.nsems);
    List { region: &shared.region, ends: guard.field(UNDO_LIST), links: SET_LINKS, max }
}

pub(super) fn free(guard: &SetGuard<'_>, record: u32) {
    list(guard).unlink(record);
    discard(guard.set.shared, record, guard.owner);
}

pub(super) fn discard(shared: &Shared, record: u32, owner: Owner) {
    let first = shared.region.line(record);
    let pool = shared.layout.undos;
    // Make the calling task the user of the cache lines. If it dies before it has freed them, the
    // cleanup after it does so.
    pool.set_whose(&shared.region, record, owner.index);
    // ORDERING(ipc-record): Release. As in `alloc`.
    first[WHOSE].store(0, Ordering::Release);
    // The freed line may become a cell (the line for one semaphore) of another undo record. There,
    // the word with this index is the redo log, which must be 0 at first.
    put(&first[SET_LINKS], 0);
    let cells = pool.len(&shared.region, record).saturating_sub(1);
    for num in 0..get(&first[CELLS]).min(u64::from(cells)) as u16 {
        let cell = cell(shared, record, num);
        // A cell (a record's line for one semaphore) that was never used may have no memory yet. A
        // store would allocate it, so store 0 only to words that are not 0.
        for word in [ADJ, REDO_ADJ] {
            if get(&cell[word]) != 0 {
                put(&cell[word], 0);
            }
        }
    }
    pool.free(shared, record, owner);
}

pub(super) fn rebuild(guard: &SetGuard<'_>) {
    let set = guard.set;
    let shared = set.shared;
    let (_, records) = shared.layout.undos.collect_used(&shared.region, |record, task| {
        let is_record = is_record_of(shared, record, task).is_some();
        (is_record && is_of_set(set, record, task)).then_some(record)
    });
    list(guard).set(records);
}
