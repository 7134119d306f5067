//! The part of [`crate::watch`] for calls that wait at semaphores.

use corewalk_base::futex;

use super::node::Node;
use super::recover::SETS;
use super::set::{LOCK, Set};
use super::undo;
use crate::ids::Ids;
use crate::lock::{Owner, Wait, is_left};
use crate::shared::Shared;
use crate::status::is_waiting;
use crate::watch::Concerns;

/// Adds to `concerns` the tasks and sets on which waiting calls at semaphores depend. Wakes calls
/// that were completed, or whose set is gone.
pub(crate) fn collect_concerns(shared: &Shared, concerns: &mut Concerns) {
    for (line, task) in shared.layout.waits.used(&shared.region) {
        let node = Node::at(shared, line);
        if node.is_granted() {
            concerns.suspects.push(task);
        }
        match node.awaited().filter(|_| is_waiting(node.status())) {
            Some(set) => concerns.sets.push(set.index),
            None => drop(futex::wake(node.status(), 1, shared.scope)),
        }
    }
}

/// Repairs the awaited set in a slot if the holder of its lock has died. Completes the removal of
/// the set if that was interrupted.
pub(crate) fn look_at(shared: &Shared, owner: Owner, index: u32) {
    let Some(set) = Set::at(shared, index) else { return };
    let ids = Ids { shared, kind: SETS, owner };
    if !set.is_published()
        && let Ok(ids) = ids.lock()
    {
        ids.end_left_at(index);
    }
    if is_left(shared, &set.line()[LOCK]) {
        // Taking the lock from the dead holder repairs the set. If that fails, a later check tries
        // again.
        drop(set.lock_remains(owner, Wait::Short));
    }
}

/// Returns the tasks that have adjustments of the sets in the slots `sets`, which are sorted.
pub(crate) fn undo_holders(shared: &Shared, sets: &[u32]) -> Vec<u32> {
    let is_of_these = |(record, task): &(u32, u32)| {
        let set = undo::is_record_of(shared, *record, *task);
        set.is_some_and(|set| sets.binary_search(&set).is_ok())
    };
    let records = shared.layout.undos.used(&shared.region).filter(is_of_these);
    records.map(|(_, task)| task).collect()
}
