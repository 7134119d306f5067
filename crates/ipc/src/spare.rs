//! The spare task line: a process that finds all other task lines in use reaps dead tasks with it.
//!
//! A reaper needs a task line, since locks and frozen words name their owner by its number. If all
//! lines belonged to dead tasks, no process could register, and so no process could reap them. So
//! the last line is never given to a task. A process that would get `ENOMEM` takes the spare line,
//! reaps the dead tasks, and frees the spare line. Then it tries to register again.
//!
//! # Death of the holder
//!
//! A holder of the spare line has no waiting calls, attach records or adjustments. It freezes words
//! only under the lock of a set. So if it dies, it can leave only two things. One is locks, which
//! have its generation, so the next thread finds out that their holder has died. The other is undo
//! records that it was freeing, which belong to its line. The next holder takes over the line. It
//! waits until no other task reaps the line, and then cleans up after the dead holder first.
//!
//! If execve(2) replaces the program while one of its threads holds the spare line, the line stays
//! in use until the process ends.
//!
//! Source: none; the argument is above.

use corewalk_base::futex::Scope;
use corewalk_base::primitives::atomic::Ordering;
use rustix::io::Errno;

use crate::field::put;
use crate::lock::{Owner, Patience, Wait};
use crate::process::{Identity, Look};
use crate::recover;
use crate::shared::Shared;
use crate::task_line::{GENERATION, STATE, identity, next_generation, task_line};

/// Returns the number of task lines, not counting the spare one.
pub(crate) fn own_lines(shared: &Shared) -> u32 {
    shared.layout.tasks_max - 1
}

/// Reaps all dead tasks on behalf of a process without a task line.
///
/// # Errors
///
/// - `EIO`: a live process does not release the spare line or a lock.
/// - `ENOMEM`: the namespace is private. Its tasks cannot die alone, so there is nothing to reap.
#[cold]
pub(crate) fn reap_without_line(shared: &Shared) -> Result<(), Errno> {
    if shared.scope == Scope::Private {
        return Err(Errno::NOMEM);
    }
    let owner = claim(shared)?;
    let reaped =
        recover::end_spare(shared, owner).and_then(|()| recover::reap_all(shared, owner).map(drop));
    // ORDERING(ipc-task): Release. See `identity`.
    task_line(shared, owner.index)[STATE].store(0, Ordering::Release);
    reaped
}

/// Takes the spare line, also if its holder has died.
fn claim(shared: &Shared) -> Result<Owner, Errno> {
    let index = own_lines(shared);
    let line = task_line(shared, index);
    let own = Identity::own();
    let mut wait = Patience::new(shared, Wait::Long);
    loop {
        let seen = identity(line);
        if seen.0 != 0 && !seen.is_gone(Look::Close) {
            wait.sleep(&line[STATE], seen.0)?;
            continue;
        }
        // ORDERING(ipc-task): Acquire. See `identity`.
        let taken =
            line[STATE].compare_exchange(seen.0, own.0, Ordering::Acquire, Ordering::Relaxed);
        if taken.is_ok() {
            let generation = next_generation(shared);
            put(&line[GENERATION], u64::from(generation));
            return Ok(Owner { index, generation });
        }
    }
}

#[cfg(all(test, not(any(miri, corewalk_loom, corewalk_shuttle, corewalk_crash))))]
mod tests {
    use rustix::fs::{MemfdFlags, memfd_create};

    use super::*;
    use crate::sem::dead::kill;
    use crate::task_line::forget_process;
    use crate::{
        Capacity, Cred, GetFlags, IPC_PRIVATE, Namespace, NamespaceOptions, SemBuf, SemFlags, Task,
    };

    fn namespace() -> Namespace {
        let capacity =
            Capacity { sets: 1, sems: 4, undos: 8, waits: 4, tasks: 2, ..Capacity::LEAST };
        let options = NamespaceOptions { capacity, ..NamespaceOptions::default() };
        let file = memfd_create("spare", MemfdFlags::CLOEXEC).unwrap();
        Namespace::open_fd(&file, options).unwrap()
    }

    fn two(namespace: &Namespace) -> [Task; 2] {
        [1, 2].map(|pid| namespace.register(Cred::root(), pid).unwrap())
    }

    #[test]
    fn namespace_whose_tasks_have_all_died_takes_new_ones() {
        let namespace = namespace();
        let [first, second] = two(&namespace);
        let id = first.semget(IPC_PRIVATE, 1, GetFlags::empty(), 0o600).unwrap();
        for task in [&first, &second] {
            task.semop(id, &[SemBuf::new(0, 1, SemFlags::UNDO)]).unwrap();
        }
        kill(first);
        kill(second);
        let [third, _fourth] = two(&namespace);
        assert_eq!(third.sem_getval(id, 0), Ok(0));
    }

    #[test]
    fn control_namespace_of_live_tasks_takes_no_more() {
        let namespace = namespace();
        let _both = two(&namespace);
        assert!(matches!(namespace.register(Cred::root(), 3), Err(Errno::NOMEM)));
        let spare = own_lines(namespace.shared());
        assert_eq!(identity(task_line(namespace.shared(), spare)).0, 0, "the spare line is free");
    }

    #[test]
    fn spare_line_of_a_dead_holder_is_taken_over_with_its_records() {
        let namespace = namespace();
        let shared = namespace.shared();
        let [first, _second] = two(&namespace);
        let spare = Owner { index: own_lines(shared), generation: next_generation(shared) };
        // The dead holder was about to free an undo record when it died.
        let record = shared.layout.undos.alloc(shared, 2, spare, spare.index).unwrap();
        forget_process(shared, spare.index);
        kill(first);
        let _third = namespace.register(Cred::root(), 3).unwrap();
        assert_eq!(shared.layout.undos.whose(&shared.region, record), None);
        assert_eq!(identity(task_line(shared, spare.index)).0, 0, "the spare line is free");
    }
}
