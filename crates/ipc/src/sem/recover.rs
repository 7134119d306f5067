//! Recovery of a set after the death of a task in the middle of a change.
//!
//! A dead task can leave three things behind:
//!
//! - the set's lock ([`recover`]),
//! - words that it froze without the lock ([`thaw_dead`]),
//! - a set that it removed only in part ([`end_slot`]).
//!
//! Recovery trusts the words of the semaphores, `COMMIT` and the logs that it makes valid, the
//! nodes, and the undo records. It builds queues and lists anew.
//!
//! Each step can be repeated and then has the same result. So if the recovering task dies too, the
//! next one starts over.
//!
//! Source: the essays of `txn`, `several` and `log`; `ARCHITECTURE.md`.

use corewalk_base::primitives::atomic::Ordering;
use rustix::io::Errno;

use super::get::Remains;
use super::log::Log;
use super::queue::{self, Completed, Node, nodes_of, wake};
use super::set::{
    COMMIT, COMMITTING, LIVE, OWED, Place, REDO, SETTINGS, Set, SetGuard, TICKET, WORD,
};
use super::undo;
use super::word::Word;
use crate::field::get;
use crate::ids::{Ids, Object};
use crate::namespace::Shared;
use crate::process::Identity;
use crate::task::{identity, task_line};

/// Repairs a set whose lock a dead task held. The caller has taken over the lock.
///
/// # Errors
///
/// `EIO` if another task does not thaw a semaphore. The next holder of the lock tries again.
#[cold]
pub(super) fn recover(guard: &SetGuard<'_>) -> Result<(), Errno> {
    let set = guard.set;
    if get(guard.field(LIVE)) == 0 {
        return Ok(());
    }
    let commit = get(guard.field(COMMIT));
    let is_committed = commit & COMMITTING != 0;
    // ORDERING(ipc-commit): Release. The list of undo records is empty for a moment. Until it is
    // complete, `OWED` makes calls without the lock check for dead tasks.
    guard.field(COMMIT).store(commit | OWED, Ordering::Release);
    undo::rebuild(guard);
    for num in 0..set.place.nsems as u16 {
        if let Ok(word) = set.word(num)
            && word.is_frozen_locked()
        {
            undo::records(guard)
                .for_each(|record| undo::settle_adj(set.shared, record, num, is_committed));
            settle(set, num, word, is_committed);
        }
    }
    let wakes = settle_nodes(set, is_committed).tell(set.shared);
    // ORDERING(ipc-commit): Release. As in `Txn::commit`.
    guard.field(COMMIT).store(OWED | commit & SETTINGS, Ordering::Release);
    rebuild_queues(guard);
    restore_bits(guard)?;
    // The holder of a lock must not reap. Later calls find the tasks that may have died: `OWED` is
    // set.
    let _absent = wake(set.shared, &wakes);
    Ok(())
}

/// Ends the freeze of a dead task. Stores the logged word if its commit is valid, or else the
/// present value.
fn settle(set: Set<'_>, num: u16, seen: Word, is_committed: bool) {
    let redo = Word(get(&set.sem(num)[REDO]));
    if is_committed && redo.is_of(set.place.tag) && !redo.is_frozen() {
        // ORDERING(ipc-word): Release. As `Set::thaw`.
        set.sem(num)[WORD].store(redo.0, Ordering::Release);
        return;
    }
    // The log may belong to an earlier freeze, if the task died before it wrote one.
    Log::Void.write(&set, num, seen);
    let pid = set.shared.pid_of(seen.frozen_by());
    set.thaw(num, seen.with(seen.value(), pid));
}

/// Returns the waiting calls whose outcomes a valid commit has logged. If the commit is not valid,
/// makes these logs void.
fn settle_nodes(set: Set<'_>, is_committed: bool) -> Completed {
    let mut completed = Completed::default();
    for (node, _) in nodes_of(set) {
        let Some(errno) = node.pending() else { continue };
        // A task that has its outcome may have gone on. Only a grant that is taken back gets a
        // second outcome.
        let is_to_be_told = node.outcome().is_none() || node.is_taken_back();
        match (is_committed, is_to_be_told) {
            (true, true) => completed.push(node, errno),
            (false, true) => node.set_pending(None),
            (_, false) => {}
        }
    }
    completed
}

/// Builds the queues of a set from the nodes that wait for it.
pub(super) fn rebuild_queues(guard: &SetGuard<'_>) {
    queue::clear(guard);
    let next = get(guard.field(TICKET));
    let mut waiting: Vec<(u64, u32)> =
        waiting(guard.set).map(|node| (node.turn(next), node.line)).collect();
    waiting.sort_unstable();
    for (_, line) in waiting {
        queue::link(guard, Node::at(guard.set.shared, line));
    }
}

/// Sets the bits for waiting calls in the words of the semaphores.
fn restore_bits(guard: &SetGuard<'_>) -> Result<(), Errno> {
    let nsems = guard.set.place.nsems;
    for node in waiting(guard.set) {
        let sops = node.sops(nsems);
        for sop in &sops {
            match guard.add_waiters(sop.sem_num, queue::bit_of(&sops, *sop)) {
                Ok(_) | Err(Errno::IDRM) => {}
                Err(errno) => return Err(errno),
            }
        }
    }
    Ok(())
}

fn waiting<'s>(set: Set<'s>) -> impl Iterator<Item = Node<'s>> {
    let nsems = set.place.nsems;
    let nodes = nodes_of(set).map(|(node, _)| node);
    nodes.filter(move |node| node.outcome().is_none() && node.is_within(nsems))
}

/// Ends the operation of the dead task that froze semaphore `num`. The caller holds the set's lock.
///
/// The function ends all freezes of that task in the set. The words of a call of several operations
/// are ended together. The first semaphore of that call comes last, since its log tells whether the
/// call is committed.
///
/// `dead` is the identity in the task's line. If the line has another identity, another task may
/// have its number. Then the function leaves words frozen under that number alone.
#[cold]
pub(super) fn thaw_dead(guard: &SetGuard<'_>, num: u16, seen: Word, dead: Identity) {
    let set = guard.set;
    if seen.is_frozen_locked() {
        settle(set, num, seen, false);
        return;
    }
    let task = seen.frozen_by();
    let frozen = |num| {
        let word = set.word(num).ok()?;
        let is_left = word.is_frozen() && !word.is_frozen_locked() && word.frozen_by() == task;
        // Read the identity last. If a later task with this number froze the word, it stored its
        // identity before.
        (is_left && identity(task_line(set.shared, task)) == dead).then_some(word)
    };
    for is_turn_of_first in [false, true] {
        for num in 0..set.place.nsems as u16 {
            let Some(word) = frozen(num) else { continue };
            let log = Log::read(&set, num, word);
            let is_first = matches!(log, Log::Several { first, .. } if first == num);
            if is_first != is_turn_of_first {
                continue;
            }
            let is_committed = match log {
                Log::Void => false,
                Log::Single { record, adj } => {
                    if undo::is_record_of(set.shared, record, task) == Some(set.index) {
                        undo::store_adj(set.shared, record, num, adj);
                    }
                    false
                }
                Log::Several { first, .. } => frozen(first).is_some_and(|word| {
                    let log = Log::read(&set, first, word);
                    log == Log::Several { first, is_committed: true }
                }),
            };
            settle(set, num, word, is_committed);
        }
    }
}

/// Returns the number of semaphores of a set.
pub(crate) fn size_of(shared: &Shared, object: &Object) -> u64 {
    u64::from(Set::new(shared, object).place.nsems)
}

/// Ends what remains of a set in a slot that has no object. The caller holds the kind's lock.
pub(crate) fn end_slot(ids: Ids<'_>, index: u32) -> Remains {
    let shared = ids.shared;
    let Some(set) = Set::at(shared, index) else { return Remains::None };
    match set.remove(ids.owner) {
        Ok((wakes, remains)) => {
            // This grants nothing to a task, so dead tasks do not matter.
            let _absent = wake(shared, &wakes);
            remains
        }
        Err(Errno::IDRM) => Remains::None,
        Err(_) => Remains::Some,
    }
}

/// Frees lines of semaphores that belong to no set. The caller holds the kind's lock.
pub(crate) fn recover_sems(ids: Ids<'_>) {
    let shared = ids.shared;
    let pool = shared.layout.sems;
    let (_, lost) = pool.collect_used(&shared.region, |line, index| {
        let set = shared.region.line(shared.layout.sets.wrapping_add(index));
        let place = Place::from_payload(get(&set[LIVE]));
        (index >= ids.slots() || place.base != line).then_some(line)
    });
    lost.into_iter().for_each(|line| pool.free(shared, line, ids.owner));
}
