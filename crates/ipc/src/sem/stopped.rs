//! Processes that are stopped in the middle of an operation, for tests: a word stays frozen, and nobody dies.

use corewalk_sync::primitives::thread;
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::io::Errno;

use super::dead::{kill, wait_without_sleep};
use super::set::{Set, WORD};
use crate::field::put;
use crate::{Capacity, Cred, IPC_PRIVATE, Namespace, NamespaceOptions, SEM_UNDO, SemBuf, Task};

const DOWN: SemBuf = SemBuf::new(1, -1, 0);

fn namespace(sets: u32) -> Namespace {
    let capacity = Capacity { sets, sems: 8, undos: 32, waits: 16, tasks: 6, ..Capacity::LEAST };
    let options = NamespaceOptions { capacity, ..NamespaceOptions::default() };
    let file = memfd_create("stopped", MemfdFlags::CLOEXEC).unwrap();
    Namespace::open_fd(&file, options).unwrap()
}

fn task(namespace: &Namespace, pid: u32) -> Task {
    namespace.register(Cred::root(), pid).unwrap()
}

fn set<'t>(task: &'t Task, id: i32) -> Set<'t> {
    Set::new(&task.shared, &task.sem_ids().obtain_object_check(id).unwrap())
}

/// Leaves the first semaphore of a set frozen, as an operation does in the middle; returns what ends that.
fn stop<'t>(task: &'t Task, id: i32) -> impl FnOnce() + use<'t> {
    let set = set(task, id);
    let before = set.word(0).unwrap();
    put(&set.sem(0)[WORD], before.freeze(task.owner.index).0);
    move || set.thaw(0, before)
}

fn used(task: &Task) -> [usize; 3] {
    let (layout, region) = (&task.shared.layout, &task.shared.region);
    [layout.sems, layout.undos, layout.waits].map(|pool| pool.used(region).count())
}

#[test]
fn removal_beside_a_stopped_operation_ends_waits_and_keeps_its_lines_until_it_goes_on() {
    let namespace = namespace(1);
    let (stopped, waiter, other) = (task(&namespace, 1), task(&namespace, 2), task(&namespace, 3));
    let id = other.semget(IPC_PRIVATE, 2, 0o600).unwrap();
    stopped.semop(id, &[SemBuf::new(0, 1, SEM_UNDO)]).unwrap();
    other.semop(id, &[SemBuf::new(0, 1, SEM_UNDO)]).unwrap();
    thread::scope(|scope| {
        let waits = scope.spawn(|| waiter.semop(id, &[DOWN]));
        while other.sem_getncnt(id, 1) != Ok(1) {
            thread::yield_now();
        }
        let go_on = stop(&stopped, id);
        assert_eq!(other.sem_rmid(id), Ok(()));
        assert_eq!(waits.join().unwrap(), Err(Errno::IDRM));
        assert_eq!(other.semop(id, &[DOWN]), Err(Errno::INVAL));
        assert_eq!(used(&other)[..2], [1, 2], "what the stopped one will store into stays");
        assert_eq!(other.semget(IPC_PRIVATE, 1, 0o600), Err(Errno::NOSPC));
        // Another ends that has adjustments of it: they are void.
        drop(other);
        go_on();
    });
    let next = task(&namespace, 4);
    let id = next.semget(IPC_PRIVATE, 2, 0o600).unwrap();
    assert_eq!((next.sem_getall(id), used(&next)), (Ok(vec![0, 0]), [1, 0, 0]));
}

#[test]
fn what_is_left_of_a_removed_set_ends_with_the_stopped_process() {
    let namespace = namespace(2);
    let (stopped, other) = (task(&namespace, 1), task(&namespace, 2));
    let id = other.semget(IPC_PRIVATE, 2, 0o600).unwrap();
    stopped.semop(id, &[SemBuf::new(0, 1, SEM_UNDO)]).unwrap();
    drop(stop(&stopped, id));
    other.sem_rmid(id).unwrap();
    assert_eq!(used(&other), [1, 1, 0]);
    kill(stopped);
    namespace.recover().unwrap();
    assert_eq!(used(&other), [0, 0, 0]);
}

/// Who removed it had to leave it, or is thought to be still at it.
#[test]
fn waiter_at_a_set_that_cannot_be_found_ends_it() {
    let namespace = namespace(2);
    let (waiter, other) = (task(&namespace, 1), task(&namespace, 2));
    let id = other.semget(IPC_PRIVATE, 2, 0o600).unwrap();
    thread::scope(|scope| {
        let waits = scope.spawn(|| waiter.semop(id, &[DOWN]));
        while other.sem_getncnt(id, 1) != Ok(1) {
            thread::yield_now();
        }
        let ids = other.sem_ids().lock().unwrap();
        ids.unpublish(&ids.obtain_object_check(id).unwrap());
        drop(ids);
        assert_eq!(waits.join().unwrap(), Err(Errno::IDRM));
    });
    assert_eq!(used(&other), [0, 0, 0]);
}

/// Nobody enters a set any more that was removed and could not be ended.
#[test]
fn call_that_found_a_set_before_its_removal_does_not_wait_there() {
    let namespace = namespace(2);
    let (stopped, other) = (task(&namespace, 1), task(&namespace, 2));
    let id = other.semget(IPC_PRIVATE, 2, 0o600).unwrap();
    let found = set(&other, id);
    let go_on = stop(&stopped, id);
    other.sem_rmid(id).unwrap();
    assert_eq!(found.lock(other.owner).err(), Some(Errno::IDRM));
    go_on();
    assert_eq!(found.lock(other.owner).err(), Some(Errno::IDRM));
}

#[test]
fn control_dead_operation_is_ended_by_the_removal() {
    let namespace = namespace(1);
    let (dead, waiter, other) = (task(&namespace, 1), task(&namespace, 2), task(&namespace, 3));
    let id = other.semget(IPC_PRIVATE, 2, 0o600).unwrap();
    drop(stop(&dead, id));
    wait_without_sleep(&waiter, id, &[DOWN]);
    kill(dead);
    other.sem_rmid(id).unwrap();
    kill(waiter);
    namespace.recover().unwrap();
    assert_eq!(used(&other), [0, 0, 0]);
}
