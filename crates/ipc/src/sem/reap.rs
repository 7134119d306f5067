//! Cleanup after a task: words that it has frozen, its waiting calls, its undo records.
//!
//! # Grants to dead tasks
//!
//! A call that changes a semaphore may complete waiting calls. The task of such a call may just
//! have been killed, so it never returns from its call. If the whole call can be reverted, it is.
//! Otherwise its operations without `SEM_UNDO` are reverted, or nothing. The end of the process
//! then reverts the operations with `SEM_UNDO`, with its other adjustments.
//!
//! The end of a live task (`exit_sem`) also takes grants back in this way. Such grants are those to
//! calls that failed with `EIO` while their nodes were queued.
//!
//! `SETVAL` and `SETALL` clear adjustments, and their values do not contain earlier grants. So a
//! grant from before such a call is not taken back (`set::SETTINGS`).
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
//!   call counts. In corewalk the grant is taken back, as with `SEM_UNDO`. A user of Linux cannot
//!   rely on such a call either, since a kill may come before or after the grant.
//!
//! Source: Linux `ipc/sem.c` (`exit_sem`, `semtimedop`).

use corewalk_base::futex;
use rustix::io::Errno;
use std::collections::BTreeSet;

use super::freeze::thaw_dead;
use super::node::{self, Call, Node, Sops, TAKEN_BACK, Wakes, nodes_of};
use super::queue::{self, Changed, update};
use super::recover::SETS;
use super::set::{COMMIT, LOCK, OWED, SETTINGS, SETTINGS_SHIFT, Set, SetGuard};
use super::txn::{Txn, Verdict};
use super::undo;
use crate::field::{get, put};
use crate::ids::Ids;
use crate::limits::SEMVMX;
use crate::lock::{Owner, Wait, is_left};
use crate::shared::{Shared, now_s};
use crate::status::is_waiting;
use crate::task_line::{Absent, identity, task_line};

/// The cleanup after the task numbered `gone`, which ends or has died. The task `owner` does the
/// work.
#[derive(Clone, Copy)]
pub(super) struct Reaper<'s> {
    pub(super) shared: &'s Shared,
    pub(super) owner: Owner,
    pub(super) gone: u32,
}

/// Ends everything that the task `gone` has in semaphore sets. The task `owner` holds the lock
/// `REAPER` of `gone`. The cleanup may grant waiting calls of other tasks. Returns those of the
/// granted tasks that may have died; the caller reaps them.
///
/// # Errors
///
/// `EIO` if a live task does not release a lock or a semaphore. The caller must reap the task again
/// later.
pub(crate) fn reap(shared: &Shared, owner: Owner, gone: u32) -> Result<Absent, Errno> {
    let mut absent = settle(shared, owner, gone)?;
    let reaper = Reaper { shared, owner, gone };
    let of = |line, task| (task == gone).then_some(line);
    let (_, records) = shared.layout.undos.collect_used(&shared.region, of);
    for line in records {
        absent.extend(reaper.end_record(line)?);
    }
    Ok(absent)
}

/// Ends the freezes and waiting calls of the task `gone`, like [`reap`], but keeps its adjustments.
///
/// # Errors
///
/// The errors of [`reap`].
pub(crate) fn settle(shared: &Shared, owner: Owner, gone: u32) -> Result<Absent, Errno> {
    let mut absent = Absent::new();
    let reaper = Reaper { shared, owner, gone };
    for set in (0..shared.layout.sem_ids.slots).filter_map(|index| Set::at(shared, index)) {
        reaper.thaw_set(set)?;
    }
    let waits = shared.layout.waits.used(&shared.region);
    for (line, _) in waits.filter(|(_, task)| *task == gone) {
        absent.extend(reaper.end_node(line)?);
    }
    Ok(absent)
}

impl<'s> Reaper<'s> {
    /// Ends the freezes in a set.
    fn thaw_set(self, set: Set<'s>) -> Result<(), Errno> {
        let is_left = |num: &u16| {
            set.word(*num).is_ok_and(|word| word.is_frozen() && word.frozen_by() == self.gone)
        };
        let nums = || 0..set.place.nsems as u16;
        if !set.is_locked_by(self.gone) && !nums().any(|num| is_left(&num)) {
            return Ok(());
        }
        let Some(guard) = set.lock_remains(self.owner, Wait::Long)? else { return Ok(()) };
        // Only the holder of `REAPER` frees the line of a dead task, and this thread holds it. So
        // the identity is still that of the dead task.
        let dead = identity(task_line(self.shared, self.gone));
        for num in nums().filter(is_left) {
            if let Ok(word) = set.word(num) {
                thaw_dead(&guard, num, word, dead);
            }
        }
        Ok(())
    }

    /// Ends the waiting call of the node at a line, and frees the node. If the set still exists and
    /// has granted the call, takes the grant back.
    pub(super) fn end_node(self, line: u32) -> Result<Absent, Errno> {
        let node = Node { shared: self.shared, line };
        let mut wakes = Wakes::new();
        if let Some(set) = node.awaited()
            && let Some(guard) = set.lock_remains(self.owner, Wait::Long)?
        {
            match node.outcome() {
                None => queue::withdraw(&guard, node),
                Some(Ok(())) if set.is_published() => wakes = take_back(&guard, self.gone, node)?,
                Some(_) => {}
            }
        }
        node.free(self.owner);
        Ok(node::wake(self.shared, &wakes))
    }

    /// Applies and frees the undo record at a line, if the line has one.
    pub(super) fn end_record(self, line: u32) -> Result<Absent, Errno> {
        let (shared, gone) = (self.shared, self.gone);
        let mut wakes = Wakes::new();
        if let Some(index) = undo::is_record_of(shared, line, gone)
            && let Some(set) = Set::at(shared, index)
            && let Some(guard) = set.lock_remains(self.owner, Wait::Long)?
            // Check the record again under the lock: the set may have been removed, and the
            // record's line may belong to another task or set now.
            && undo::is_at(&guard, line, gone)
        {
            // An unpublished set was removed, but not completely. No call reads its values any
            // more, so the adjustments need not be applied.
            if set.is_published() {
                let mut txn = Txn::new(&guard);
                let nums = apply(&mut txn, line, shared.pid_of(gone))?;
                update(&mut txn, Changed::Nums(&nums))?;
                wakes = txn.commit();
                set.touch_otime(0, now_s());
            }
            undo::free(&guard, line);
        }
        // The line may have an incomplete record, or a record of a removed set. If the line still
        // belongs to the task `gone`, free it.
        if shared.layout.undos.whose(&shared.region, line) == Some(gone) {
            undo::discard(shared, line, self.owner);
        }
        Ok(node::wake(shared, &wakes))
    }
}

/// Adds the adjustments of an undo record to the values, as part of `txn`. Returns the numbers of
/// the changed semaphores.
///
/// A value that would leave the range from 0 to `SEMVMX` becomes the nearer end of the range, since
/// a task that ends does not wait.
fn apply(txn: &mut Txn<'_, '_>, record: u32, pid: u32) -> Result<Vec<u16>, Errno> {
    let set = txn.set();
    let mut nums = Vec::new();
    for num in 0..set.place.nsems as u16 {
        // Only the task of the record changes its adjustments without the set's lock, and that task
        // has ended. So an adjustment that is 0 stays 0, and its word need not be frozen.
        let adj = undo::load_adj(set.shared, record, num);
        if adj != 0 {
            let value = (txn.frozen(num)?.value + adj).clamp(0, SEMVMX);
            txn.set_value(num, value, pid)?;
            txn.cell(record, num)?.adj = 0;
            nums.push(num);
        }
    }
    Ok(nums)
}

/// Takes back the grant of a task that cannot use it. The function reverts the whole call, or its
/// operations without `SEM_UNDO`, or nothing. If `SETVAL` or `SETALL` ran after the grant, the
/// values do not contain the grant. Then nothing is reverted.
fn take_back(guard: &SetGuard<'_>, gone: u32, node: Node<'_>) -> Result<Wakes, Errno> {
    if node.settings() != (get(guard.field(COMMIT)) & SETTINGS) >> SETTINGS_SHIFT {
        return Ok(Wakes::new());
    }
    let sops = node.sops(guard.set.place.nsems);
    let mut whole: Sops = sops.iter().rev().filter(|sop| sop.sem_op != 0).copied().collect();
    // The lowest `i16` has no negation, so its reverse is again a decrement. No semaphore is large
    // enough for that decrement, so such a call is not reverted. Only a hostile process writes that
    // number, since no such decrement is granted.
    whole.iter_mut().for_each(|sop| sop.sem_op = sop.sem_op.wrapping_neg());
    let plain: Sops = whole.iter().filter(|sop| !sop.is_undo()).copied().collect();
    let Call { undo, .. } = node.call(&sops);
    let is_whole = plain == whole || undo::is_at(guard, undo, gone);
    let ways = [whole, plain];
    for sops in &ways[usize::from(!is_whole)..] {
        let mut txn = Txn::new(guard);
        match txn.perform(Call { sops, undo, pid: guard.set.shared.pid_of(gone) }) {
            Verdict::Done => {}
            // A value or an adjustment would be out of range.
            Verdict::Blocks(_) | Verdict::Fails(Errno::AGAIN | Errno::RANGE) => continue,
            Verdict::Fails(errno) => return Err(errno),
        }
        update(&mut txn, Changed::By(sops))?;
        txn.completed.push((node.line, TAKEN_BACK));
        return Ok(txn.commit());
    }
    Ok(Wakes::new())
}

/// The remains of a dead task that matter to a caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Concern {
    /// The task has adjustments, or an unacknowledged grant. Its death then changes values.
    Values,
    /// Values, and waiting calls.
    Waits,
}

/// Returns the tasks whose death would change the set, except the holder of its lock. Clears `OWED`
/// if all grants are acknowledged.
pub(super) fn tasks_of(guard: &SetGuard<'_>, concern: Concern) -> BTreeSet<u32> {
    let shared = guard.set.shared;
    let whose = |record| shared.layout.undos.whose(&shared.region, record);
    let mut tasks: BTreeSet<u32> = undo::list(guard).iter().filter_map(whose).collect();
    let mut is_any_granted = false;
    for (node, task) in nodes_of(guard.set) {
        let is_granted = node.is_granted();
        is_any_granted |= is_granted;
        if is_granted || concern == Concern::Waits {
            tasks.insert(task);
        }
    }
    let commit = get(guard.field(COMMIT));
    if !is_any_granted && commit & OWED != 0 {
        put(guard.field(COMMIT), commit & !OWED);
    }
    tasks.remove(&guard.owner.index);
    tasks
}

/// Checks all calls that wait at sets, for the watcher. Repairs a set whose lock has a dead holder,
/// and completes an interrupted removal. Wakes a call that was completed or whose set is gone.
/// Returns the tasks whose death would change the outcome of a waiting call.
pub(crate) fn look_at_waits(shared: &Shared, owner: Owner) -> Vec<u32> {
    let (mut suspects, mut sets) = (Vec::new(), BTreeSet::new());
    for (line, task) in shared.layout.waits.used(&shared.region) {
        let node = Node { shared, line };
        if node.is_granted() {
            suspects.push(task);
        }
        match node.awaited().filter(|_| is_waiting(node.status())) {
            Some(set) => drop(sets.insert(set.index)),
            None => drop(futex::wake(node.status(), 1, shared.scope)),
        }
    }
    let is_of_these = |(record, task): &(u32, u32)| {
        let set = undo::is_record_of(shared, *record, *task);
        set.is_some_and(|set| sets.contains(&set))
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
