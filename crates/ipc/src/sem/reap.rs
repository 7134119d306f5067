//! What a task that has died still has: words that it froze, waiting calls, undo records.
//!
//! # A call that was granted to the dead
//!
//! Who changes a semaphore carries out waiting calls, also one whose task was killed a moment ago. That
//! task has never returned from its call: if everything that the call did can be taken back, it is, as if
//! the task had been killed before; otherwise it stays, as if the task had been killed after. What it did
//! with `SEM_UNDO` is taken back with its adjustments; where that is not possible, at the end of the process.
//!
//! The same is done for a call whose thread has left it while the process lives ([`abandon`]): the next thread that
//! wants a lock must not wait for the end of a process that does not know it has the lock. `SETVAL` and `SETALL` forget adjustments: what
//! a call was granted before that, with `SEM_UNDO` or without, cannot be told from what was set, and stays (`SetGuard::settings`).
//!
//! Whether a death came before the grant or after it is not known here, so both are treated alike. Linux takes the
//! call of a task that is killed out of its queue: what that was granted before stays granted, and nothing is granted
//! after. The two differ for who can tell which came first:
//!
//! - The process had ended (waitpid(2) has returned, or a descriptor of it can be read from) when the operation began
//!   that grants. Then what was granted is not the dead one's: it is given back before whoever is refused for it, or
//!   asks for a value, gets an answer, and soon for a call that waits (`crate::watch`). Where it slept when it was
//!   killed, that is before the operation returns. What cannot be given back is only what somebody took meanwhile
//!   whom the call of the dead has let go on.
//! - It was seen to be granted, and the process was killed then, before it went on. Linux keeps what the call has done;
//!   here it is given back, as `SEM_UNDO` does. Whoever wants a permit to be gone with a process that was killed
//!   cannot have that from Linux either: it does not know whether the call has returned.
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
use crate::recover::reap_absent;
use crate::task::{Task, identity, task_line};

/// Ends everything of `gone` that has to do with semaphore sets. Its `REAPER` is held by `owner`. Returns who
/// was let go on by that and may have died: what those were granted is taken back by reaping them.
///
/// # Errors
///
/// `EIO` if somebody does not let go of a lock: the task has to be reaped again.
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

/// Ends freezes and waiting calls of `gone`, as [`reap`] does, and leaves its adjustments.
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

/// Takes back a wait of a task that lives, whose thread has left it: the node in this line. What cannot be done now is
/// done with the next call that needs the set, or at the end of the task.
pub(crate) fn abandon(task: &Task, line: u32) {
    task.abandoned.lock().push(line);
    if let Ok(absent) = end_abandoned(task, None) {
        reap_absent(&task.shared, task.owner, absent);
    }
}

/// Ends waiting calls of a living task, or those of one set, that could not be ended when they failed with
/// `EIO`. What they were granted since is taken back. Returns who was let go on by that and may have died.
///
/// # Errors
///
/// `EIO` if somebody still does not let go of a set.
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

/// Ends the freezes of `gone` in the set in a slot, if there is one.
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
    // Nobody but the reaper, who is at this, ends the line of a dead task.
    let dead = identity(task_line(shared, gone.task));
    for num in (0..set.place.nsems as u16).filter(is_left) {
        if let Ok(word) = set.word(num) {
            thaw_dead(&guard, num, word, dead);
        }
    }
    Ok(())
}

/// Returns the lock of a set, or none if the set is gone.
pub(super) fn there<T>(lock: Result<T, Errno>) -> Result<Option<T>, Errno> {
    match lock {
        Ok(guard) => Ok(Some(guard)),
        Err(Errno::IDRM) => Ok(None),
        Err(errno) => Err(errno),
    }
}

/// Takes the waiting call of a node back, if its set is still there.
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

/// Takes back what was granted to who cannot take it: the whole call, or what it did without `SEM_UNDO`, or nothing.
/// Nothing also if values were set since: what they are now does not count the grant.
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

/// Takes the changes of a call back; returns false if a value or an adjustment would be out of range.
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

/// What the death of a task changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Concern {
    /// Values: the task holds adjustments, or was granted what it may not have.
    Values,
    /// Who waits as well.
    Waits,
}

/// Returns the tasks whose death would change what there is of a set. If nobody is left who was granted something and
/// may not have it, that is noted.
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
