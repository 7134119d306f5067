//! For control tests: operations that leave out one step of the protocol. The models must detect
//! each of these faults.

use corewalk_base::primitives::atomic::Ordering;
use rustix::io::Errno;

use super::SemBuf;
use super::log::Log;
use super::node::{Call, Node, tell};
use super::set::{Set, WORD};
use super::undo;
use super::word::Word;
use crate::field::{get, put};
use crate::flags::SemFlags;
use crate::handle::SemId;
use crate::status::AWAKE;
use crate::task::Task;

/// A wrong variant of semop(2) that adds 1. It ignores waiting calls, and does not check the tag
/// that identifies the set.
pub(crate) fn blind_add(task: &Task, id: SemId) -> Result<(), Errno> {
    let object = task.sem_ids().obtain_object_check(id.raw())?;
    let cell = &Set::new(&task.shared, &object).sem(0)[WORD];
    for _ in 0..4 {
        // ORDERING: Acquire. As in `Set::word`. This control omits other checks, not the memory
        // ordering.
        let seen = Word(cell.load(Ordering::Acquire));
        let next = seen.with(seen.value() + 1, task.pid);
        // ORDERING: AcqRel. As above.
        if cell.compare_exchange(seen.0, next.0, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
            break;
        }
    }
    Ok(())
}

/// A wrong variant of semop(2) that adds 1 with `SEM_UNDO`. It does not freeze (lock) the
/// semaphore's word, and stores the undo adjustment after the word.
pub(crate) fn blind_undo(task: &Task, id: SemId) -> Result<(), Errno> {
    let object = task.sem_ids().obtain_object_check(id.raw())?;
    let set = Set::new(&task.shared, &object);
    let record = undo::cached(set, &task.undos, task.owner.index)
        .expect("an undo record from an earlier call");
    let seen = set.word(0)?;
    let next = seen.with(seen.value() + 1, task.pid);
    // ORDERING: AcqRel. As in `Task::semop_single`. This control only omits the freeze (the lock)
    // of the semaphore's word.
    let swapped =
        set.sem(0)[WORD].compare_exchange(seen.0, next.0, Ordering::AcqRel, Ordering::Relaxed);
    swapped.map_err(|_| Errno::IDRM)?;
    let adj = undo::load_adj(&task.shared, record, 0);
    undo::store_adj(&task.shared, record, 0, adj - 1);
    Ok(())
}

/// Allocates the wait node of a task that polls and does not sleep yet. Returns the node.
pub(crate) fn watched_node(task: &Task) -> u32 {
    let call = Call { sops: &[SemBuf::new(0, -1, SemFlags::empty())], undo: 0, pid: task.pid };
    let node = Node::alloc(&task.shared, task.owner, call, 0).unwrap();
    put(node.status(), AWAKE);
    node.line
}

/// Ends the polling of the task. Returns true if the call has no outcome yet, so that its task
/// would go to sleep.
pub(crate) fn sleeps(task: &Task, line: u32) -> bool {
    let node = Node { shared: &task.shared, line };
    node.stop_watching();
    // futex(2) makes this comparison.
    node.outcome().is_none()
}

/// Completes the call of a wait node. Returns true if the task must be woken.
pub(crate) fn completes(task: &Task, line: u32) -> bool {
    !tell(&task.shared, [(line, 0)].into_iter().collect()).is_empty()
}

/// Like [`completes`], in two steps.
pub(crate) fn completes_in_two_steps(task: &Task, line: u32) -> bool {
    let status = Node { shared: &task.shared, line }.status();
    let before = get(status);
    put(status, 1);
    before == 0
}

/// Leaves the semaphore's word frozen (locked), as if the task were killed at that point.
pub(crate) fn stop_in_undo(task: &Task, id: SemId) {
    let object = task.sem_ids().obtain_object_check(id.raw()).expect("the set");
    let set = Set::new(&task.shared, &object);
    let record = undo::cached(set, &task.undos, task.owner.index)
        .expect("an undo record from an earlier call");
    let seen = set.word(0).expect("the set");
    // ORDERING: Release. No other thread uses the set yet, so any memory ordering is correct.
    set.sem(0)[WORD].store(seen.freeze(task.owner.index).0, Ordering::Release);
    let adj = undo::load_adj(&task.shared, record, 0);
    Log::Single { record, adj }.write(&set, 0, seen);
    undo::store_adj(&task.shared, record, 0, adj - 1);
}
