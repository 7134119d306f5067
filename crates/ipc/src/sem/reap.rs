//! Cleanup after a dead task: words that it froze, its waiting calls, its undo records.
//!
//! # Grants to dead tasks
//!
//! A call that changes a semaphore carries out waiting calls. The task of such a call may just have
//! been killed, so it never returns from its call. If all of the call can be taken back, it is
//! taken back. Otherwise the part without `SEM_UNDO` is taken back, or nothing. The end of the
//! process then takes back the part with `SEM_UNDO`, with its other adjustments.
//!
//! The same happens to a call that failed with `EIO` while its node was queued ([`end_abandoned`]).
//!
//! `SETVAL` and `SETALL` clear adjustments, and their values do not contain earlier grants. So no
//! grant is taken back after them (`SetGuard::settings`).
//!
//! This code cannot tell whether the task died before the grant or after it. It takes the grant
//! back in both cases. Linux removes the call of a killed task from its queue: earlier grants stay,
//! and later ones do not occur. A user can see the difference in two cases:
//!
//! - The process ended before the granting operation. Calls that are refused, or that read a value,
//!   first give the grant back. A waiting call gets the permit soon (`crate::watch`). If the killed
//!   task slept, the granting operation gives the grant back before it returns. The dead task's
//!   call may have made a further waiting call possible. That call keeps its permit.
//! - The process was killed after the grant, but before it returned from its call. In Linux its
//!   call counts. Here it is taken back, as with `SEM_UNDO`. A user of Linux cannot rely on either:
//!   the process may have been killed before or after its return.
//!
//! Source: Linux `ipc/sem.c` (`exit_sem`, and `semtimedop`, which a signal ends before it looks).

use rustix::io::Errno;
use smallvec::SmallVec;

use super::SemBuf;
use super::op::Tasks;
use super::queue::{self, Absent, Changed, Completed, Node, Wakes, update};
use super::recover::thaw_dead;
use super::set::{Set, SetGuard};
use super::txn::{Call, Txn};
use super::undo::{self, Gone};
use crate::lock::{Owner, Wait};
use crate::namespace::{SEMAEM, SEMVMX, Shared};
use crate::task::{Task, identity, task_line};

/// Ends all that `gone` has in semaphore sets. `owner` holds its `REAPER`. Calls of other tasks may
/// be granted by this. Returns those of their tasks that may have died; the caller reaps them.
///
/// # Errors
///
/// `EIO` if a live task does not release a lock or a semaphore. The caller must reap the task
/// again.
pub(crate) fn reap(shared: &Shared, owner: Owner, gone: Gone) -> Result<Absent, Errno> {
    let mut absent = settle(shared, owner, gone)?;
    let (_, records) = shared
        .layout
        .undos
        .collect_used(&shared.region, |line, task| (task == gone.task).then_some(line));
    for line in records {
        absent.extend(undo::reap(shared, owner, gone, line)?);
    }
    Ok(absent)
}

/// Ends the freezes and waiting calls of `gone`, as [`reap`] does, but keeps its adjustments.
///
/// # Errors
///
/// Those of [`reap`].
pub(crate) fn settle(shared: &Shared, owner: Owner, gone: Gone) -> Result<Absent, Errno> {
    let mut absent = Absent::new();
    for index in 0..shared.layout.sem_ids.slots {
        thaw_set(shared, owner, gone, index)?;
    }
    let waits = shared.layout.waits.used(&shared.region);
    for line in waits.filter(|(_, task)| *task == gone.task).map(|(line, _)| line) {
        let node = Node::at(shared, line);
        absent.extend(end_node(shared, owner, gone, node)?);
        node.free(owner);
    }
    Ok(absent)
}

/// Ends waiting calls of a live task that failed with `EIO`: all, or those at one set. Grants since
/// then are taken back. Returns the tasks that got a grant by this and may have died.
///
/// # Errors
///
/// `EIO` if a task still does not release a set's lock or a semaphore.
#[cold]
pub(super) fn end_abandoned(task: &Task, set: Option<Set<'_>>) -> Result<Absent, Errno> {
    let (shared, owner) = (&*task.shared, task.owner);
    let is_meant = |line: &mut u32| {
        let awaited = Node::at(shared, *line).awaited();
        let is_set = |set: Set<'_>| awaited.is_some_and(|it| it.index == set.index);
        set.is_none_or(is_set)
    };
    let mut lines: Vec<u32> = task.abandoned.lock().extract_if(.., is_meant).collect();
    let mut absent = Absent::new();
    let gone = Gone { task: owner.index, pid: task.pid };
    while let Some(line) = lines.pop() {
        let node = Node::at(shared, line);
        match end_node(shared, owner, gone, node) {
            Ok(more) => absent.extend(more),
            Err(errno) => {
                lines.push(line);
                task.abandoned.lock().append(&mut lines);
                return Err(errno);
            }
        }
        node.free(owner);
    }
    Ok(absent)
}

/// Ends the freezes of `gone` in the set in slot `index`, if there is one.
fn thaw_set(shared: &Shared, owner: Owner, gone: Gone, index: u32) -> Result<(), Errno> {
    let Some(set) = Set::at(shared, index) else { return Ok(()) };
    let is_left = |num: &u16| {
        let word = set.word(*num);
        word.is_ok_and(|word| word.is_frozen() && word.frozen_by() == gone.task)
    };
    let mut nums = 0..set.place.nsems as u16;
    let is_any = set.is_locked_by(gone.task) || nums.any(|num| is_left(&num));
    if !is_any {
        return Ok(());
    }
    let Some(guard) = there(set.lock_remains(owner, Wait::Long))? else { return Ok(()) };
    // Only the holder of `REAPER` frees the line of a dead task, and that is this thread.
    let dead = identity(task_line(shared, gone.task));
    for num in (0..set.place.nsems as u16).filter(is_left) {
        if let Ok(word) = set.word(num) {
            thaw_dead(&guard, num, word, dead);
        }
    }
    Ok(())
}

/// Turns `EIDRM` into none: the set is gone, so there is no lock.
pub(super) fn there<T>(lock: Result<T, Errno>) -> Result<Option<T>, Errno> {
    match lock {
        Ok(guard) => Ok(Some(guard)),
        Err(Errno::IDRM) => Ok(None),
        Err(errno) => Err(errno),
    }
}

/// Ends the waiting call of a node, or takes its grant back, if its set still exists.
fn end_node(shared: &Shared, owner: Owner, gone: Gone, node: Node<'_>) -> Result<Absent, Errno> {
    let Some(set) = node.awaited() else { return Ok(Absent::new()) };
    let Some(guard) = there(set.lock_remains(owner, Wait::Long))? else { return Ok(Absent::new()) };
    let wakes = match node.outcome() {
        None => {
            queue::withdraw(&guard, node);
            Wakes::new()
        }
        Some(Ok(())) if guard.is_published() => take_back(&guard, gone, node)?,
        Some(Ok(())) => Wakes::new(),
        Some(Err(_)) => Wakes::new(),
    };
    drop(guard);
    Ok(queue::wake(shared, &wakes))
}

/// Takes back the grant of a task that cannot use it: the whole call, or its part without
/// `SEM_UNDO`, or nothing. If a later `SETVAL` or `SETALL` set values, they do not contain the
/// grant. Then nothing is taken back.
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
        let mut completed: Completed = update(&mut txn, Changed::Nums(&nums))?;
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

/// The effects of a task's death that matter to a caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Concern {
    /// Values: the task holds adjustments, or has a grant that it may not have returned with.
    Values,
    /// Values, and waiting calls.
    Waits,
}

/// Returns the tasks whose death would change the set. Clears `OWED` if no grant is unacknowledged.
pub(super) fn tasks_of(guard: &SetGuard<'_>, owner: Owner, concern: Concern) -> Tasks {
    let mut tasks: Tasks =
        undo::records(guard).map(|record| undo::task_of(guard.set.shared, record)).collect();
    let mut is_any_granted = false;
    for (node, task) in queue::nodes_of(guard.set) {
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
