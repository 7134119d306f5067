//! Cleanup after a task: words that it has frozen, its waiting calls, its undo records.
//!
//! # Grants to dead tasks
//!
//! A call that changes a semaphore may complete waiting calls. The task of such a call may just
//! have been killed, so it never returns from its call. If the whole call can be reverted, it is.
//! Otherwise its operations without `SEM_UNDO` are reverted, or nothing. The end of the process
//! then reverts the operations with `SEM_UNDO`, with its other adjustments.
//!
//! At the end of a live task, this also happens to a call that failed with `EIO` while its node was
//! queued (`exit`).
//!
//! `SETVAL` and `SETALL` clear adjustments, and their values do not contain earlier grants. So a
//! grant from before such a call is not taken back (`SetGuard::settings`).
//!
//! This code cannot tell whether the task died before the grant or after it. It takes the grant
//! back in both cases. Linux removes the call of a killed task from its queue: grants before the
//! kill stay, and none follow. A user can see the difference in two cases:
//!
//! - The process ended before the granting operation. A call that is refused, or that reads a
//!   value, first takes the grant back. A waiting call gets the permit soon (`crate::watch`). If
//!   the killed task slept, the granting operation takes the grant back before it returns. The dead
//!   task's call may have made a further waiting call possible. That call keeps its permit.
//! - The process was killed after the grant, but before it returned from its call. In Linux its
//!   call counts. Here it is taken back, as with `SEM_UNDO`. A user of Linux cannot rely on its
//!   call either, since a kill may come before or after the grant.
//!
//! Source: Linux `ipc/sem.c` (`exit_sem`, `semtimedop`).

use corewalk_base::futex::{self, Deadline};
use rustix::io::Errno;
use smallvec::SmallVec;

use super::SemBuf;
use super::freeze::thaw_dead;
use super::node::{self, Call, Node, Wakes, nodes_of};
use super::queue::{self, Changed, update};
use super::recover::SETS;
use super::set::{LOCK, Set, SetGuard, TICKET, TICKET_BITS, TICKET_MASK};
use super::txn::Txn;
use super::undo;
use crate::field::{get, put};
use crate::ids::Ids;
use crate::limits::{SEMAEM, SEMVMX};
use crate::lock::{Owner, Wait, is_left};
use crate::shared::{Shared, now_s};
use crate::status::is_waiting;
use crate::task_line::{Absent, identity, task_line};
use crate::watch::TURN_NS;

/// The shortest time between two close checks of a set's tasks, by all calls together.
const LOOK_MS: u64 = TURN_NS / 1_000_000 * 9 / 10;

/// Numbers of tasks.
pub(super) type Tasks = SmallVec<[u32; 8]>;

/// A task that ends or has died.
#[derive(Clone, Copy)]
pub(crate) struct Gone {
    pub(crate) task: u32,
    pub(crate) pid: u32,
}

/// The state for an end of task `gone`. The task `owner` does the work.
#[derive(Clone, Copy)]
pub(super) struct Reaper<'s> {
    pub(super) shared: &'s Shared,
    pub(super) owner: Owner,
    pub(super) gone: Gone,
}

/// Ends everything that `gone` has in semaphore sets. `owner` holds its `REAPER`. This may grant
/// calls of other tasks. Returns those of their tasks that may have died; the caller reaps them.
///
/// # Errors
///
/// `EIO` if a live task does not release a lock or a semaphore. The caller must reap the task again
/// later.
pub(crate) fn reap(shared: &Shared, owner: Owner, gone: Gone) -> Result<Absent, Errno> {
    let mut absent = settle(shared, owner, gone)?;
    let reaper = Reaper { shared, owner, gone };
    let (_, records) = shared
        .layout
        .undos
        .collect_used(&shared.region, |line, task| (task == gone.task).then_some(line));
    for line in records {
        absent.extend(reaper.end_record(line)?);
    }
    Ok(absent)
}

/// Ends the freezes and waiting calls of `gone`, like [`reap`], but keeps its adjustments.
///
/// # Errors
///
/// The errors of [`reap`].
pub(crate) fn settle(shared: &Shared, owner: Owner, gone: Gone) -> Result<Absent, Errno> {
    let mut absent = Absent::new();
    let reaper = Reaper { shared, owner, gone };
    for set in (0..shared.layout.sem_ids.slots).filter_map(|index| Set::at(shared, index)) {
        reaper.thaw_set(set)?;
    }
    let waits = shared.layout.waits.used(&shared.region);
    for line in waits.filter(|(_, task)| *task == gone.task).map(|(line, _)| line) {
        absent.extend(reaper.end_node(line)?);
    }
    Ok(absent)
}

impl<'s> Reaper<'s> {
    /// Takes the lock of a set. Returns none if the set is gone.
    fn lock(self, set: Set<'s>) -> Result<Option<SetGuard<'s>>, Errno> {
        match set.lock_remains(self.owner, Wait::Long) {
            Ok(guard) => Ok(Some(guard)),
            Err(Errno::IDRM) => Ok(None),
            Err(errno) => Err(errno),
        }
    }

    /// Ends the freezes in a set.
    fn thaw_set(self, set: Set<'s>) -> Result<(), Errno> {
        let is_left = |num: &u16| {
            let word = set.word(*num);
            word.is_ok_and(|word| word.is_frozen() && word.frozen_by() == self.gone.task)
        };
        let nums = || 0..set.place.nsems as u16;
        if !set.is_locked_by(self.gone.task) && !nums().any(|num| is_left(&num)) {
            return Ok(());
        }
        let Some(guard) = self.lock(set)? else { return Ok(()) };
        // Only the holder of `REAPER` frees the line of a dead task, and this thread holds it. So
        // the identity is still that of the dead task.
        let dead = identity(task_line(self.shared, self.gone.task));
        for num in nums().filter(is_left) {
            if let Ok(word) = set.word(num) {
                thaw_dead(&guard, num, word, dead);
            }
        }
        Ok(())
    }

    /// Ends the waiting call of the node at a line, if its set still exists. If the call was
    /// granted, takes the grant back. Then frees the node.
    pub(super) fn end_node(self, line: u32) -> Result<Absent, Errno> {
        let node = Node::at(self.shared, line);
        let mut wakes = Wakes::new();
        if let Some(set) = node.awaited()
            && let Some(guard) = self.lock(set)?
        {
            match node.outcome() {
                None => queue::withdraw(&guard, node),
                Some(Ok(())) if guard.is_published() => wakes = take_back(&guard, self.gone, node)?,
                Some(_) => {}
            }
        }
        node.free(self.owner);
        Ok(node::wake(self.shared, &wakes))
    }

    /// Applies and frees the undo record at a line, if the line has one.
    pub(super) fn end_record(self, line: u32) -> Result<Absent, Errno> {
        let mut absent = Absent::new();
        if let Some(index) = undo::is_record_of(self.shared, line, self.gone.task)
            && let Some(set) = Set::at(self.shared, index)
        {
            absent = self.end_record_of(set, line)?;
        }
        // The line has no complete record, or its set is gone. If the line belongs to the task,
        // free it.
        if self.shared.layout.undos.whose(&self.shared.region, line) == Some(self.gone.task) {
            undo::discard(self.shared, line, self.owner);
        }
        Ok(absent)
    }

    /// Applies and frees one record. Does nothing if the set was removed, which has freed the
    /// record.
    fn end_record_of(self, set: Set<'s>, record: u32) -> Result<Absent, Errno> {
        let Some(guard) = self.lock(set)? else { return Ok(Absent::new()) };
        // The set may be gone, and the record's line may belong to another task or set now.
        if !undo::is_at(&guard, record, self.gone.task) {
            return Ok(Absent::new());
        }
        let mut wakes = Wakes::new();
        // A set that is not published is one whose removal could not be completed. Its values do
        // not matter.
        if guard.is_published() {
            let mut txn = Txn::new(&guard);
            let nums = apply(&mut txn, record, self.gone.pid)?;
            let completed = update(&mut txn, Changed::Nums(&nums))?;
            wakes = txn.commit(completed);
            set.touch_otime(0, now_s());
        }
        undo::free(&guard, record);
        drop(guard);
        Ok(node::wake(self.shared, &wakes))
    }
}

/// Applies a record as part of `txn`. Returns the semaphores that it has changed.
///
/// Values are limited to the range from 0 to `SEMVMX`, since a task that ends does not wait.
fn apply(txn: &mut Txn<'_, '_>, record: u32, pid: u32) -> Result<Vec<u16>, Errno> {
    let set = txn.set();
    let mut nums = Vec::new();
    for num in 0..set.place.nsems as u16 {
        // No other task adds to these adjustments, and only the holder of the lock clears them. So
        // a 0 that is read without a freeze is right.
        let adj = undo::load_adj(set.shared, record, num);
        if adj != 0 {
            let value = (txn.value(num)? + adj).clamp(0, SEMVMX);
            txn.set_value(num, value, pid)?;
            txn.set_adj(record, num, 0)?;
            nums.push(num);
        }
    }
    Ok(nums)
}

/// Takes back the grant of a task that cannot use it. It reverts the whole call, or its operations
/// without `SEM_UNDO`, or nothing. If `SETVAL` or `SETALL` ran after the grant, the values do not
/// contain it. Then nothing is reverted.
fn take_back(guard: &SetGuard<'_>, gone: Gone, node: Node<'_>) -> Result<Wakes, Errno> {
    if node.settings() != guard.settings() {
        return Ok(Wakes::new());
    }
    let sops = node.sops(guard.set.place.nsems);
    let changing = |sop: &&SemBuf| sop.sem_op != 0;
    let whole: SmallVec<[SemBuf; 4]> = sops.iter().filter(changing).copied().collect();
    let plain: SmallVec<[SemBuf; 4]> = whole.iter().filter(|sop| !sop.is_undo()).copied().collect();
    let undo = node.call(&sops).undo;
    let is_whole = plain == whole || undo::is_at(guard, undo, gone.task);
    let ways = [whole, plain];
    for sops in &ways[usize::from(!is_whole)..] {
        let mut txn = Txn::new(guard);
        if !revert(&mut txn, Call { sops, undo, pid: gone.pid })? {
            continue;
        }
        let nums: SmallVec<[u16; 4]> = sops.iter().map(|sop| sop.sem_num).collect();
        let mut completed = update(&mut txn, Changed::Nums(&nums))?;
        completed.push_taken_back(node);
        return Ok(txn.commit(completed));
    }
    Ok(Wakes::new())
}

/// Reverts the changes of a call. Returns false if a value or an adjustment would be out of range.
fn revert(txn: &mut Txn<'_, '_>, call: Call<'_>) -> Result<bool, Errno> {
    for sop in call.sops.iter().rev() {
        let value = txn.value(sop.sem_num)? - i32::from(sop.sem_op);
        if !(0..=SEMVMX).contains(&value) {
            return Ok(false);
        }
        txn.set_value(sop.sem_num, value, call.pid)?;
        if sop.is_undo() {
            let adj = txn.adj(call.undo, sop.sem_num)? + i32::from(sop.sem_op);
            if !(-SEMAEM - 1..=SEMAEM).contains(&adj) {
                return Ok(false);
            }
            txn.set_adj(call.undo, sop.sem_num, adj)?;
        }
    }
    Ok(true)
}

impl SetGuard<'_> {
    /// Returns true if a close check of the set's tasks is due. Records the time of that check.
    pub(super) fn is_time_to_look(&self, now: Deadline) -> bool {
        let ticket = get(self.field(TICKET));
        let now_ms = now.monotonic_ns / 1_000_000;
        let is_time =
            now_ms.wrapping_sub(ticket >> TICKET_BITS) & (u64::MAX >> TICKET_BITS) >= LOOK_MS;
        if is_time {
            put(self.field(TICKET), ticket & TICKET_MASK | now_ms << TICKET_BITS);
        }
        is_time
    }
}

/// The remains of a dead task that matter to a caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Concern {
    /// The task has adjustments, or a grant from which it may not have returned. Both change
    /// values.
    Values,
    /// Values, and waiting calls.
    Waits,
}

/// Returns the tasks whose death would change the set. Clears `OWED` if all grants are
/// acknowledged.
pub(super) fn tasks_of(guard: &SetGuard<'_>, owner: Owner, concern: Concern) -> Tasks {
    let mut tasks: Tasks =
        undo::records(guard).map(|record| undo::task_of(guard.set.shared, record)).collect();
    let mut is_any_granted = false;
    for (node, task) in nodes_of(guard.set) {
        let is_granted = node.is_granted();
        is_any_granted |= is_granted;
        if is_granted || concern == Concern::Waits {
            tasks.push(task);
        }
    }
    if !is_any_granted {
        guard.forget_owed();
    }
    tasks.retain(|task| *task != owner.index);
    tasks.sort_unstable();
    tasks.dedup();
    tasks
}

/// Looks after the calls that wait at sets, for the watcher. Repairs the sets whose lock has a dead
/// holder and those whose removal was interrupted. Wakes calls that were completed or whose set is
/// gone. Returns the tasks whose death would change the outcome of a waiting call.
pub(crate) fn look_at_waits(shared: &Shared, owner: Owner) -> Vec<u32> {
    let (mut suspects, mut sets) = (Vec::new(), Vec::new());
    for (line, task) in shared.layout.waits.used(&shared.region) {
        let node = Node::at(shared, line);
        if node.is_granted() {
            suspects.push(task);
        }
        match node.awaited().filter(|_| is_waiting(node.status())) {
            Some(set) => sets.push(set.index),
            None => drop(futex::wake(node.status(), 1, shared.scope)),
        }
    }
    sets.sort_unstable();
    sets.dedup();
    let is_of_these = |(record, task): &(u32, u32)| {
        let set = undo::is_record_of(shared, *record, *task);
        set.is_some_and(|set| sets.binary_search(&set).is_ok())
    };
    let records = shared.layout.undos.used(&shared.region).filter(is_of_these);
    suspects.extend(records.map(|(_, task)| task));
    for set in sets.into_iter().filter_map(|index| Set::at(shared, index)) {
        if !set.is_published()
            && let Ok(ids) = (Ids { shared, kind: SETS, owner }).lock()
        {
            ids.end_left_at(set.index);
        }
        if is_left(shared, get(&set.line()[LOCK])) {
            // Taking the lock from the dead holder repairs the set. If that fails, a later check
            // tries again.
            drop(set.lock_remains(owner, Wait::Short));
        }
    }
    suspects
}
