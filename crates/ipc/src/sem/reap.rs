//! Cleanup of semaphore sets after a task: the words that the task has frozen (locked), its waiting
//! calls, and its undo records.
//!
//! # Grants to dead tasks
//!
//! A *grant* is the completion of another task's waiting call. The other task may have been killed
//! before it returned from the granted call. The cleanup after that task then reverts as much of
//! the granted call as the semaphores' values permit:
//! 1. all its operations;
//! 2. or else only the operations without `SEM_UNDO`;
//! 3. or else nothing.
//!
//! The task's undo adjustments revert operations with `SEM_UNDO` that are left.
//!
//! A call of a live task may fail with `EIO` and leave its wait node in the queues. If another task
//! grants this call later, `exit_sem` reverts the grant by the same rules.
//!
//! The cleanup does not revert a call that was granted before a `SETVAL` or `SETALL`
//! (`set::SETTINGS`). These commands overwrite the effect of earlier calls, and clear undo
//! adjustments.
//!
//! The cleanup cannot tell whether a task died before or after its waiting call was granted, so it
//! reverts the call in both cases. Linux grants no call after the kill, and does not revert a call
//! that was granted before the kill.
//!
//! A program can notice this difference from Linux in two cases:
//! - The process ends before the grant. In corewalk, the dead process then gets units. If the
//!   killed task was asleep, the granting call itself reverts the grant. Otherwise the next call
//!   that would fail or that reads a value does so, or the watcher (`crate::watch`). A waiting call
//!   that the granted call has made possible is not reverted.
//! - The process is killed after the grant, but before it returns from its call. In Linux it keeps
//!   the units. No program can rely on that, since the kill may also come before the grant.
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

#[derive(Clone, Copy)]
pub(super) struct Reaper<'s> {
    pub(super) shared: &'s Shared,
    pub(super) owner: Owner,
    pub(super) gone: u32,
}

/// Cleans up after the dead task number `gone`, and applies its undo adjustments. Returns the tasks
/// whose calls this completes and that may have died. The caller must reap these tasks. The calling
/// task `owner` holds the lock `REAPER` of `gone`.
///
/// # Errors
///
/// `EIO` if a live task does not release a lock or thaw (unlock) a semaphore. The caller must then
/// clean up after the task later.
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

/// Like [`reap`], but keeps the undo adjustments of the task.
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
        // While this thread holds the dead task's lock `REAPER`, the record keeps the dead task's
        // identity: only a holder of that lock frees the record.
        let dead = identity(task_line(self.shared, self.gone));
        for num in nums().filter(is_left) {
            if let Ok(word) = set.word(num) {
                thaw_dead(&guard, num, word, dead);
            }
        }
        Ok(())
    }

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

    pub(super) fn end_record(self, line: u32) -> Result<Absent, Errno> {
        let (shared, gone) = (self.shared, self.gone);
        let mut wakes = Wakes::new();
        if let Some(index) = undo::is_record_of(shared, line, gone)
            && let Some(set) = Set::at(shared, index)
            && let Some(guard) = set.lock_remains(self.owner, Wait::Long)?
            // Check the undo record again under the set's lock. It may belong to another task or
            // set by now.
            && undo::is_at(&guard, line, gone)
        {
            // If no lookup finds the set any more, its removal has begun, and no call reads its
            // values. Then the undo need not be applied.
            if set.is_published() {
                let mut txn = Txn::new(&guard);
                let nums = apply(&mut txn, line, shared.pid_of(gone))?;
                update(&mut txn, Changed::Nums(&nums))?;
                wakes = txn.commit();
                set.touch_otime(0, now_s());
            }
            undo::free(&guard, line);
        }
        // The dead task may have died while it made or freed this undo record. Free the record's
        // first cache line if it still belongs to the task `gone`.
        if shared.layout.undos.whose(&shared.region, line) == Some(gone) {
            undo::discard(shared, line, self.owner);
        }
        Ok(node::wake(shared, &wakes))
    }
}

/// Applies the undo adjustments of a record in a transaction. Returns the numbers of the changed
/// semaphores.
///
/// A task that ends applies its undo adjustments without waiting for other tasks. So a value that
/// would be below 0 or above `SEMVMX` becomes 0 or `SEMVMX`.
fn apply(txn: &mut Txn<'_, '_>, record: u32, pid: u32) -> Result<Vec<u16>, Errno> {
    let set = txn.set();
    let mut nums = Vec::new();
    for num in 0..set.place.nsems as u16 {
        // If the adjustment is 0, the semaphore's word need not be frozen (locked), because the
        // adjustment stays 0. The record's owner has ended, and other tasks change the record only
        // under the set's lock.
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

fn take_back(guard: &SetGuard<'_>, gone: u32, node: Node<'_>) -> Result<Wakes, Errno> {
    if node.settings() != (get(guard.field(COMMIT)) & SETTINGS) >> SETTINGS_SHIFT {
        return Ok(Wakes::new());
    }
    let sops = node.sops(guard.set.place.nsems);
    let mut whole: Sops = sops.iter().rev().filter(|sop| sop.sem_op != 0).copied().collect();
    // To revert the call, negate its operations. Only a hostile process can have written
    // `i16::MIN`, which has no negation. A decrement by it is never possible, so `wrapping_neg` may
    // leave it unchanged: then nothing is reverted.
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
    /// The task has undo adjustments, or has not returned from a completed call. If the task dies,
    /// the cleanup after it changes values of semaphores.
    Values,
    /// Values, and waiting calls.
    Waits,
}

/// Returns the tasks for which the caller must check whether they are dead. With `Concern::Waits`
/// these include tasks that wait. The caller holds the set's lock.
///
/// Clears the bit `OWED` if no wait node of a completed call is left, so that calls stop looking
/// for dead tasks.
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

/// Checks all waiting calls, on behalf of the watcher (the one waiting call that looks for dead
/// tasks). Repairs a set whose lock has a dead holder, and completes an interrupted removal.
/// Returns the tasks that the watcher must check for death.
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
            // `lock` repairs the set if the holder is dead. If the lock cannot be taken, the
            // watcher (the waiting call that looks for dead tasks) tries again at its next check.
            drop(set.lock_remains(owner, Wait::Short));
        }
    }
    suspects
}
