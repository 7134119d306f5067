//! Operations that leave out one step of the protocol, for the models that have to notice.

use corewalk_base::primitives::atomic::Ordering;
use rustix::io::Errno;

use super::SemBuf;
use super::log::Log;
use super::queue::{Completed, Node};
use super::set::{Set, WORD};
use super::txn::Call;
use super::undo;
use super::word::Word;
use crate::field::{get, put};
use crate::flags::SemFlags;
use crate::handle::SemId;
use crate::task::Task;

/// Adds one to the first semaphore of a set, whoever waits, and whatever the word's tag says.
pub(crate) fn blind_add(task: &Task, id: SemId) -> Result<(), Errno> {
    let object = task.sem_ids().obtain_object_check(id.raw())?;
    let cell = &Set::new(&task.shared, &object).sem(0)[WORD];
    for _ in 0..4 {
        // ORDERING: Acquire. Strong enough; it is the check that is left out.
        let seen = Word(cell.load(Ordering::Acquire));
        let next = seen.with(seen.value() + 1, task.pid);
        // ORDERING: AcqRel. As above.
        if cell.compare_exchange(seen.0, next.0, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
            break;
        }
    }
    Ok(())
}

/// Adds one to the first semaphore of a set, and to the adjustment once the word was let go.
pub(crate) fn blind_undo(task: &Task, id: SemId) -> Result<(), Errno> {
    let object = task.sem_ids().obtain_object_check(id.raw())?;
    let set = Set::new(&task.shared, &object);
    let record = undo::cached(set, task).expect("it was used before");
    let seen = set.word(0)?;
    let next = seen.with(seen.value() + 1, task.pid);
    // ORDERING: AcqRel. Strong enough; it is the freeze that is left out.
    let swapped =
        set.sem(0)[WORD].compare_exchange(seen.0, next.0, Ordering::AcqRel, Ordering::Relaxed);
    swapped.map_err(|_| Errno::IDRM)?;
    let adj = undo::load_adj(&task.shared, record, 0);
    undo::store_adj(&task.shared, record, 0, adj - 1);
    Ok(())
}

/// Returns the line of a node whose task looks at it.
pub(crate) fn watched_node(task: &Task) -> u32 {
    let call = Call { sops: &[SemBuf::new(0, -1, SemFlags::empty())], undo: 0, pid: task.pid };
    Node::alloc(&task.shared, call, 0, (task.owner, true)).unwrap().line
}

/// Goes to sleep at a node; returns whether it sleeps.
pub(crate) fn sleeps(task: &Task, line: u32) -> bool {
    let node = Node::at(&task.shared, line);
    node.stop_watching();
    // What futex(2) compares.
    node.outcome().is_none()
}

/// Completes the call of a node; returns whether its task is woken.
pub(crate) fn completes(task: &Task, line: u32) -> bool {
    let mut completed = Completed::default();
    completed.push(Node::at(&task.shared, line), 0);
    completed.tell(&task.shared)[0].is_asleep()
}

/// As [`completes`], in two steps.
pub(crate) fn completes_in_two_steps(task: &Task, line: u32) -> bool {
    let status = Node::at(&task.shared, line).status();
    let before = get(status);
    put(status, 1);
    before == 0
}

/// Begins to add one more to the first semaphore of a set with undo, as one does who is killed before the word is
/// let go of.
pub(crate) fn stop_in_undo(task: &Task, id: SemId) {
    let object = task.sem_ids().obtain_object_check(id.raw()).expect("the set");
    let set = Set::new(&task.shared, &object);
    let record = undo::cached(set, task).expect("it was used before");
    let seen = set.word(0).expect("the set");
    // ORDERING: Release. Nobody else is there yet.
    set.sem(0)[WORD].store(seen.freeze(task.owner.index).0, Ordering::Release);
    let adj = undo::load_adj(&task.shared, record, 0);
    Log::Single { record, adj }.write(&set, 0, seen);
    undo::store_adj(&task.shared, record, 0, adj - 1);
}
