//! Putting a set in order that a task has left in the middle of something.
//!
//! Three things can be left: the lock of the set ([`recover`]), words that are frozen without it
//! ([`thaw_dead`]), and a set that is not found any more but still there ([`recover_slot`]). What counts
//! is in the words of the semaphores, in `COMMIT` with what it makes valid, and in the nodes and undo
//! records themselves; queues and lists are made anew.
//!
//! Each step leaves something from which the same step, done again, comes to the same result: who dies
//! here leaves no more than was found.
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

/// Puts a set in order whose lock was held by a task that has died; it is ours now.
///
/// # Errors
///
/// `EIO` if somebody else does not let go of a semaphore: the next one has to try again.
#[cold]
pub(super) fn recover(guard: &SetGuard<'_>) -> Result<(), Errno> {
    let set = guard.set;
    if get(guard.field(LIVE)) == 0 {
        return Ok(());
    }
    let commit = get(guard.field(COMMIT));
    let is_committed = commit & COMMITTING != 0;
    // ORDERING(ipc-commit): Release. Who takes no lock is to look closely until the list of undo records is there again.
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
    // Who is absent is left to whoever is owed what it was granted: who holds a lock does not reap.
    let _absent = wake(set.shared, &wakes);
    Ok(())
}

/// Ends a freeze of a task that has died, with the word that it has logged or with the value that was there.
fn settle(set: Set<'_>, num: u16, seen: Word, is_committed: bool) {
    let redo = Word(get(&set.sem(num)[REDO]));
    if is_committed && redo.is_of(set.place.tag) && !redo.is_frozen() {
        // ORDERING(ipc-word): Release. As `Set::thaw`.
        set.sem(num)[WORD].store(redo.0, Ordering::Release);
        return;
    }
    // The log may be of an earlier freeze, if this one came not so far.
    Log::Void.write(&set, num, seen);
    let pid = set.shared.pid_of(seen.frozen_by());
    set.thaw(num, seen.with(seen.value(), pid));
}

/// Returns the waiting calls that a commit was about to tell, or makes void what would have been told.
fn settle_nodes(set: Set<'_>, is_committed: bool) -> Completed {
    let mut completed = Completed::default();
    for (node, _) in nodes_of(set) {
        let Some(errno) = node.pending() else { continue };
        // Who was told may have gone on; only what is taken back from the dead is told twice.
        let is_to_be_told = node.outcome().is_none() || node.is_taken_back();
        match (is_committed, is_to_be_told) {
            (true, true) => completed.push(node, errno),
            (false, true) => node.set_pending(None),
            (_, false) => {}
        }
    }
    completed
}

/// Makes the queues of a set anew from the nodes that wait for it.
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

/// Says in the words of the semaphores who waits for them.
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

/// Ends what the task that froze semaphore `num`, and has died, was about to do. The set's lock is held.
///
/// All semaphores that it has frozen are looked at: those of a call of several are ended as one, and the
/// one that says what is to become of them comes last.
///
/// `dead` is what the line of the task says. Once it says something else, another task may have the line, and
/// nothing that is frozen by its number is taken for what the dead one left.
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
        // The line is looked at last: who froze the word as the next task with this number took it before.
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

/// Returns how many semaphores an object has.
pub(crate) fn size_of(shared: &Shared, object: &Object) -> u64 {
    u64::from(Set::new(shared, object).place.nsems)
}

/// Ends what is left of a set in a slot of the kind, whose lock is held, and in which there is no object.
pub(crate) fn end_slot(ids: Ids<'_>, index: u32) -> Remains {
    let shared = ids.shared;
    let Some(set) = Set::at(shared, index) else { return Remains::None };
    match set.remove(ids.owner) {
        Ok((wakes, remains)) => {
            // Who has died was granted nothing by this.
            let _absent = wake(shared, &wakes);
            remains
        }
        Err(Errno::IDRM) => Remains::None,
        Err(_) => Remains::Some,
    }
}

/// Gives back semaphores that belong to no set. The lock of the kind is held.
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
