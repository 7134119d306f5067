//! Checks the consistency of all semaphore sets of a namespace, for the crash models. No call may
//! be running.

use super::node::nodes_of;
use super::queue;
use super::set::{COMMIT, COMMITTING, LIVE, OWED, Set};
use super::undo;
use crate::field::get;
use crate::task::Task;

/// Checks all semaphore sets. The error describes the first fault.
pub(crate) fn audit(task: &Task) -> Result<(), String> {
    let shared = &*task.shared;
    let layout = &shared.layout;
    [layout.sems, layout.undos, layout.waits]
        .iter()
        .try_for_each(|pool| pool.audit(&shared.region))?;
    let (objects, used) = task.sem_ids().audit()?;
    let (mut sems, mut listed) = (0, Vec::new());
    for object in &objects {
        let set = Set::new(shared, object);
        let is_committing = get(&set.line()[COMMIT]) & COMMITTING != 0;
        if get(&set.line()[LIVE]) != set.place.payload() || is_committing {
            return Err(
                "the line of a set differs from its slot, or has an unfinished commit".to_owned()
            );
        }
        let guard = set.lock(task.owner).map_err(|errno| errno.to_string())?;
        for num in 0..set.place.nsems as u16 {
            let word = set.word(num).map_err(|errno| errno.to_string())?;
            if word.is_frozen() {
                return Err(format!("semaphore {num} is frozen"));
            }
        }
        listed.extend(undo::list(&guard).iter().take(100));
        drop(guard);
        queue::audit::audit(set)?;
        let is_granted = nodes_of(set).any(|(node, _)| node.is_granted());
        if is_granted && !set.may_be_owed() {
            return Err(
                "a call was granted its operations, but its set does not have `OWED`".to_owned()
            );
        }
        sems += u64::from(set.place.nsems);
    }
    if sems != used {
        return Err(format!("{used} semaphores are counted, but the sets have {sems}"));
    }
    let mut bases: Vec<u32> =
        objects.iter().map(|object| Set::new(shared, object).place.base).collect();
    let mut ranges: Vec<u32> = layout.sems.used(&shared.region).map(|(line, _)| line).collect();
    let mut records: Vec<u32> = layout.undos.used(&shared.region).map(|(line, _)| line).collect();
    [&mut bases, &mut ranges, &mut records, &mut listed]
        .into_iter()
        .for_each(|it| it.sort_unstable());
    if bases != ranges {
        return Err(format!("semaphores are allocated at {ranges:?}, but sets are at {bases:?}"));
    }
    if records != listed {
        return Err(format!(
            "undo records {records:?} are allocated, but the lists have {listed:?}"
        ));
    }
    let live = (0..layout.sem_ids.slots).filter(|index| Set::at(shared, *index).is_some());
    if live.count() != objects.len() {
        return Err("a line has a set that no lookup finds".to_owned());
    }
    Ok(())
}

/// For a control test: clears the recovery logs of all semaphore sets and semaphores, so that
/// recovery cannot use them.
pub(crate) fn forget_logs(task: &Task) {
    for set in sets(task) {
        crate::field::put(&set.line()[COMMIT], 0);
        for num in 0..set.place.nsems as u16 {
            crate::field::put(&set.sem(num)[super::set::LOG], 0);
        }
    }
}

/// For a control test: clears the bit `OWED` in all sets, so that no call looks for dead tasks with
/// completed calls.
pub(crate) fn forget_owed(task: &Task) {
    for commit in sets(task).map(|set| &set.line()[COMMIT]) {
        crate::field::put(commit, get(commit) & !OWED);
    }
}

/// For a control test: marks the locks of semaphore sets and memory pools as free. So recovery
/// repairs nothing.
pub(crate) fn forget_locks(task: &Task) {
    let shared = &*task.shared;
    let layout = &shared.layout;
    for pool in [layout.sems, layout.undos, layout.waits] {
        crate::field::put(&shared.region.line(pool.head)[0], 0);
    }
    crate::field::put(&shared.region.line(layout.sem_ids.head)[0], 0);
    (0..layout.sem_ids.slots)
        .for_each(|index| crate::field::put(&shared.region.line(layout.sets + index)[0], 0));
}

fn sets(task: &Task) -> impl Iterator<Item = Set<'_>> {
    (0..task.shared.layout.sem_ids.slots).filter_map(|index| Set::at(&task.shared, index))
}
