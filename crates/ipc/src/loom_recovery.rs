//! Loom models: two tasks reap the same dead task at once.
//!
//! A task that already has an undo adjustment is killed in the middle of a second operation with
//! `SEM_UNDO`. Two other tasks then clean up after it. A loom model has no clock, so `crash_models`
//! and `tests/torture` test how a thread notices that a lock's holder is dead.

use corewalk_base::Region;
use corewalk_base::futex::Scope;
use corewalk_base::primitives::{Arc, thread};
use corewalk_base::tally::{Tally, assert_all_reached};
use rustix::io::Errno;

use crate::backing::Memfds;
use crate::contention::Counts;
use crate::layout::Layout;
use crate::lock::Owner;
use crate::recover;
use crate::sem::models::stop_in_undo;
use crate::shared::Shared;
use crate::task_line::{forget_process, identity, task_line};
use crate::{Capacity, Cred, GetFlags, IPC_PRIVATE, Limits, SemBuf, SemFlags, Task};

/// Returns a small namespace that is marked as shared. Only in such a namespace do tasks clean up
/// after dead tasks.
fn shared() -> Arc<Shared> {
    let capacity = Capacity { sems: 1, undos: 2, tasks: 3, ..Capacity::LEAST };
    let layout = Layout::new(&capacity).unwrap();
    let region = Region::private(layout.lines).unwrap();
    let (limits, backing) = (Limits::default(), Box::new(Memfds::default()));
    let (hook, scope, spin_ns) = (None, Scope::Shared, 0);
    let contention = Counts::default();
    Arc::new(Shared { region, layout, limits, hook, backing, scope, spin_ns, contention })
}

fn task(shared: &Arc<Shared>, pid: u32) -> Task {
    Task::register(Arc::clone(shared), Cred::root(), pid).unwrap()
}

fn two_reap(reap: fn(&Shared, Owner, u32) -> Result<bool, Errno>) -> [usize; 2] {
    Tally::of_bounded(2, move |tally| {
        let shared = shared();
        let (one, other, dead) = (task(&shared, 1), task(&shared, 2), task(&shared, 3));
        let id = one.semget(IPC_PRIVATE, 1, GetFlags::empty(), 0o600).unwrap();
        one.sem_setval(id, 0, 4).unwrap();
        dead.semop(id, &[SemBuf::new(0, 1, SemFlags::UNDO)]).unwrap();
        stop_in_undo(&dead, id);
        let index = dead.owner.index;
        forget_process(&shared, index);
        let second = thread::spawn({
            let shared = Arc::clone(&shared);
            move || {
                let is_reaped = reap(&shared, other.owner, index).unwrap();
                (is_reaped, other)
            }
        });
        let first = reap(&shared, one.owner, index).unwrap();
        let (second, _other) = second.join().unwrap();
        assert!(first != second, "reaped by the first: {first}, by the second: {second}");
        assert_eq!(one.sem_getall(id), Ok(vec![4]), "the adjustment was not applied exactly once");
        let records = shared.layout.undos;
        assert_eq!(records.used(&shared.region).count(), 0, "an undo record is left");
        assert_eq!(
            identity(task_line(&shared, index)).0,
            0,
            "the line of the dead task is not free"
        );
        // The pool of undo records has room for one record. If the dead task's record was freed
        // exactly once, one allocation succeeds, and a second one fails.
        let again = [(); 2].map(|()| records.alloc(&shared, 2, one.owner, 0).is_ok());
        assert_eq!(again, [true, false], "the lines are free twice, or never");
        // The task is already reaped, so dropping its `Task` has nothing to clean up.
        drop(dead);
        tally.hit(usize::from(first));
    })
}

#[test]
fn loom_two_tasks_that_reap_one_reap_it_once() {
    let outcomes = two_reap(recover::reap);
    println!("by the second, by the first: {outcomes:?}");
    assert_all_reached(&outcomes);
}

/// Control (a variant with the bug must fail): the two threads clean up after the dead task without
/// its lock.
#[test]
#[should_panic(expected = "reaped by the first: true, by the second: true")]
fn loom_control_two_tasks_that_reap_without_its_lock_are_caught() {
    two_reap(reap_unlocked);
}

fn reap_unlocked(shared: &Shared, owner: Owner, index: u32) -> Result<bool, Errno> {
    let line = task_line(shared, index);
    if identity(line).0 != 0 {
        // Another thread may have reaped the task since the check.
        let state = identity(line);
        recover::reap_line(shared, owner, index, state).map(|(is_reaped, _)| is_reaped)
    } else {
        Ok(false)
    }
}
