//! Operations that leave out one step of the protocol, for the models that have to notice.

use corewalk_sync::primitives::atomic::Ordering;
use rustix::io::Errno;

use super::set::{Set, WORD};
use super::undo;
use super::word::Word;
use crate::task::Task;

/// Adds one to the first semaphore of a set, whoever waits, and whatever the word's tag says.
pub(crate) fn blind_add(task: &Task, id: i32) -> Result<(), Errno> {
    let object = task.sem_ids().obtain_object_check(id)?;
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
pub(crate) fn blind_undo(task: &Task, id: i32) -> Result<(), Errno> {
    let object = task.sem_ids().obtain_object_check(id)?;
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
