//! Tests with processes that are stopped in the middle of an operation. A semaphore's word then
//! stays frozen (locked), although no process has died.

use corewalk_base::primitives::thread;
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::io::Errno;
use std::io::{Read, Write};
use std::process::{Command, Stdio};

use super::dead::{kill, wait_without_sleep};
use super::set::{LIVE, LOCK, Set, WORD};
use crate::field::{get, put};
use crate::lock::{Held, SLEEPERS, Wait, lock};
use crate::process::{Identity, stat};
use crate::task_line::{IMAGE, STATE, task_line};
use crate::{
    Capacity, Contention, Cred, GetFlags, IPC_PRIVATE, Namespace, NamespaceOptions, SemBuf,
    SemFlags, SemId, Task,
};

const DOWN: SemBuf = SemBuf::new(1, -1, SemFlags::empty());

fn namespace(sets: u32) -> Namespace {
    let capacity = Capacity { sets, sems: 8, undos: 32, waits: 16, tasks: 6, ..Capacity::LEAST };
    let is_contention_counted = true;
    let options = NamespaceOptions { capacity, is_contention_counted, ..Default::default() };
    let file = memfd_create("stopped", MemfdFlags::CLOEXEC).unwrap();
    Namespace::open_fd(&file, options).unwrap()
}

fn task(namespace: &Namespace, pid: u32) -> Task {
    namespace.register(Cred::root(), pid).unwrap()
}

fn set<'t>(task: &'t Task, id: SemId) -> Set<'t> {
    Set::new(&task.shared, &task.sem_ids().obtain_object_check(id.raw()).unwrap())
}

/// Leaves the word of the first semaphore frozen (locked), like a stopped process. Returns a
/// function that thaws the word.
fn stop<'t>(task: &'t Task, id: SemId) -> impl FnOnce() + use<'t> {
    let set = set(task, id);
    let before = set.word(0).unwrap();
    put(&set.sem(0)[WORD], before.freeze(task.owner.index).0);
    move || set.thaw(0, before)
}

/// Holds the lock of the pool of undo records, like a task that is stopped during an allocation.
fn task_pool(task: &Task) -> Held<'_> {
    let word = &task.shared.region.line(task.shared.layout.undos.head)[0];
    lock(&task.shared, word, task.owner, Wait::Long, || Ok(())).unwrap()
}

fn used(task: &Task) -> [usize; 3] {
    let (layout, region) = (&task.shared.layout, &task.shared.region);
    [layout.sems, layout.undos, layout.waits].map(|pool| pool.used(region).count())
}

#[test]
fn removal_beside_a_stopped_operation_ends_waits_and_keeps_its_lines_until_it_goes_on() {
    let namespace = namespace(1);
    let (stopped, waiter, other) = (task(&namespace, 1), task(&namespace, 2), task(&namespace, 3));
    let id = other.semget(IPC_PRIVATE, 2, GetFlags::empty(), 0o600).unwrap();
    stopped.semop(id, &[SemBuf::new(0, 1, SemFlags::UNDO)]).unwrap();
    other.semop(id, &[SemBuf::new(0, 1, SemFlags::UNDO)]).unwrap();
    thread::scope(|scope| {
        let waits = scope.spawn(|| waiter.semop(id, &[DOWN]));
        while other.sem_getncnt(id, 1) != Ok(1) {
            thread::yield_now();
        }
        let go_on = stop(&stopped, id);
        assert_eq!(other.sem_rmid(id), Ok(()));
        assert_eq!(waits.join().unwrap(), Err(Errno::IDRM));
        assert_eq!(other.semop(id, &[DOWN]), Err(Errno::INVAL));
        assert_eq!(used(&other)[..2], [1, 2], "the lines that the stopped task may write stay");
        assert_eq!(other.semget(IPC_PRIVATE, 1, GetFlags::empty(), 0o600), Err(Errno::NOSPC));
        // The removed set has an undo adjustment of the task `other`. The end of that task must not
        // apply it.
        drop(other);
        go_on();
    });
    let next = task(&namespace, 4);
    let id = next.semget(IPC_PRIVATE, 2, GetFlags::empty(), 0o600).unwrap();
    assert_eq!((next.sem_getall(id), used(&next)), (Ok(vec![0, 0]), [1, 0, 0]));
}

#[test]
fn remains_of_a_removed_set_end_with_the_stopped_process() {
    let namespace = namespace(2);
    let (stopped, other) = (task(&namespace, 1), task(&namespace, 2));
    let id = other.semget(IPC_PRIVATE, 2, GetFlags::empty(), 0o600).unwrap();
    stopped.semop(id, &[SemBuf::new(0, 1, SemFlags::UNDO)]).unwrap();
    drop(stop(&stopped, id));
    other.sem_rmid(id).unwrap();
    assert_eq!(used(&other), [1, 1, 0]);
    kill(stopped);
    namespace.recover().unwrap();
    assert_eq!(used(&other), [0, 0, 0]);
}

/// A stopped task has begun to remove a set. A call that waits at the set must complete the
/// removal.
#[test]
fn waiter_at_an_unpublished_set_ends_the_set() {
    let namespace = namespace(2);
    let (waiter, other) = (task(&namespace, 1), task(&namespace, 2));
    let id = other.semget(IPC_PRIVATE, 2, GetFlags::empty(), 0o600).unwrap();
    thread::scope(|scope| {
        let waits = scope.spawn(|| waiter.semop(id, &[DOWN]));
        while other.sem_getncnt(id, 1) != Ok(1) {
            thread::yield_now();
        }
        let ids = other.sem_ids().lock().unwrap();
        ids.unpublish(&ids.obtain_object_check(id.raw()).unwrap());
        drop(ids);
        assert_eq!(waits.join().unwrap(), Err(Errno::IDRM));
    });
    assert_eq!(used(&other), [0, 0, 0]);
}

/// A hostile process has overwritten the word `LIVE`, which identifies the set in its slot. The
/// calls that wait at the set must end, and `IPC_RMID` must work.
#[test]
fn set_that_was_overwritten_ends_its_waits_and_is_removed() {
    let namespace = namespace(2);
    let (waiter, other) = (task(&namespace, 1), task(&namespace, 2));
    let id = other.semget(IPC_PRIVATE, 2, GetFlags::empty(), 0o600).unwrap();
    thread::scope(|scope| {
        let waits = scope.spawn(|| waiter.semop(id, &[DOWN]));
        while other.sem_getncnt(id, 1) != Ok(1) {
            thread::yield_now();
        }
        let live = &set(&other, id).line()[LIVE];
        put(live, crate::field::get(live) ^ 1 << 63);
        assert_eq!(waits.join().unwrap(), Err(Errno::IDRM));
    });
    assert_eq!(other.sem_rmid(id), Ok(()));
    assert_eq!((other.sem_rmid(id), used(&other)), (Err(Errno::INVAL), [0, 0, 0]));
}

/// A call that has looked up a set before its removal must not wait at the set. This holds even if
/// a stopped process prevents the end of the removal.
#[test]
fn call_that_found_a_set_before_its_removal_does_not_wait_there() {
    let namespace = namespace(2);
    let (stopped, other) = (task(&namespace, 1), task(&namespace, 2));
    let id = other.semget(IPC_PRIVATE, 2, GetFlags::empty(), 0o600).unwrap();
    let found = set(&other, id);
    let go_on = stop(&stopped, id);
    other.sem_rmid(id).unwrap();
    assert_eq!(found.lock(other.owner).err(), Some(Errno::IDRM));
    go_on();
    assert_eq!(found.lock(other.owner).err(), Some(Errno::IDRM));
}

/// A process calls execve(2) while one of its threads is in the middle of an operation. Other tasks
/// must take over the set's lock, and thaw (unlock) the word that the operation has frozen.
#[test]
fn lock_and_freeze_of_a_program_that_was_replaced_are_taken_over() {
    let namespace = namespace(1);
    let (holder, other) = (task(&namespace, 1), task(&namespace, 2));
    let id = other.semget(IPC_PRIVATE, 2, GetFlags::empty(), 0o600).unwrap();
    holder.semop(id, &[SemBuf::new(1, 1, SemFlags::UNDO)]).unwrap();
    let mut child = Command::new("sh")
        .args(["-c", "echo there; read line; exec sleep 600"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut there = [0; 5];
    child.stdout.take().unwrap().read_exact(&mut there).unwrap();
    let image_of = |pid| stat(pid).map_or(0, |stat| stat.image);
    let start = stat(child.id()).map_or(0, |stat| stat.start);
    let (identity, image) = (Identity::new(child.id(), start), image_of(child.id()));
    let line = task_line(&other.shared, holder.owner.index);
    put(&line[STATE], identity.0);
    put(&line[IMAGE], image);
    let index = holder.owner.index;
    assert!(!other.shared.is_over(index, None), "the program is still the same");
    drop(stop(&holder, id));
    std::mem::forget(set(&holder, id).lock(holder.owner).unwrap());
    child.stdin.take().unwrap().write_all(b"go\n").unwrap();
    // Wait until the child has called execve(2) and `/proc` shows another program image.
    while image != 0 && image_of(child.id()) == image {
        thread::yield_now();
    }
    let seen = other.sem_getall(id);
    assert_eq!(seen, if image == 0 { Err(Errno::IO) } else { Ok(vec![0, 1]) });
    assert!(!other.shared.is_dead(index, None), "the adjustment of the replaced program stays");
    child.kill().unwrap();
    child.wait().unwrap();
    std::mem::forget(holder);
    namespace.recover().unwrap();
    assert_eq!(other.sem_getall(id), Ok(vec![0, 0]));
}

/// A task that allocates an undo record holds the set's lock while it waits for the lock of the
/// memory pool. Other tasks must still be able to perform operations that need not wait. Trap I15
/// in `traps.md`.
#[test]
fn undo_record_that_waits_for_its_pool_blocks_no_other_operation() {
    let namespace = namespace(1);
    let (stopped, waiter, other) = (task(&namespace, 1), task(&namespace, 2), task(&namespace, 3));
    let id = other.semget(IPC_PRIVATE, 2, GetFlags::empty(), 0o600).unwrap();
    other.semop(id, &[SemBuf::new(1, 1, SemFlags::UNDO)]).unwrap();
    let pool = task_pool(&stopped);
    thread::scope(|scope| {
        let waits = scope.spawn(|| waiter.semop(id, &[SemBuf::new(0, 1, SemFlags::UNDO)]));
        while !set(&other, id).is_locked_by(waiter.owner.index) && !waits.is_finished() {
            thread::yield_now();
        }
        for _ in 0..1000 {
            other.semop(id, &[SemBuf::new(0, 1, SemFlags::empty())]).unwrap();
            other.semop(id, &[SemBuf::new(0, -1, SemFlags::empty())]).unwrap();
            // The task `other` has its undo record already, so it needs no memory from the pool.
            other.semop(id, &[SemBuf::new(1, 1, SemFlags::UNDO)]).unwrap();
            other.semop(id, &[SemBuf::new(1, -1, SemFlags::UNDO)]).unwrap();
        }
        drop(pool);
        // If the rounds above take longer than the time limit for a lock, the call of `waiter`
        // fails with `EIO`. It must then have changed nothing.
        let done = waits.join().unwrap();
        assert!(matches!(done, Ok(()) | Err(Errno::IO)), "{done:?}");
        assert_eq!(other.sem_getval(id, 0), Ok(i32::from(done.is_ok())));
    });
    waiter.semop(id, &[SemBuf::new(0, 1, SemFlags::UNDO)]).unwrap();
    drop(waiter);
    assert_eq!(other.sem_getall(id), Ok(vec![0, 1]));
}

#[test]
fn waits_for_a_lock_are_counted() {
    let namespace = namespace(1);
    let (holder, other) = (task(&namespace, 1), task(&namespace, 2));
    let id = other.semget(IPC_PRIVATE, 2, GetFlags::empty(), 0o600).unwrap();
    other.sem_setval(id, 1, 1).unwrap();
    other.semop(id, &[DOWN]).unwrap();
    assert_eq!(namespace.contention(), Contention::default());
    let set = set(&holder, id);
    thread::scope(|scope| {
        let guard = set.lock(holder.owner).unwrap();
        let sets = scope.spawn(|| other.sem_setval(id, 0, 1));
        while get(&set.line()[LOCK]) & SLEEPERS == 0 {
            thread::yield_now();
        }
        drop(guard);
        sets.join().unwrap().unwrap();
    });
    let Contention { contentions, waited_ns } = namespace.contention();
    assert!(contentions == 1 && waited_ns > 0, "{contentions} {waited_ns}");
}

#[test]
fn waits_for_a_word_are_counted() {
    let namespace = namespace(1);
    let (holder, other) = (task(&namespace, 1), task(&namespace, 2));
    let id = other.semget(IPC_PRIVATE, 2, GetFlags::empty(), 0o600).unwrap();
    let set = set(&holder, id);
    let up = |num| SemBuf::new(num, 1, SemFlags::empty());
    let calls: [&(dyn Fn() -> Result<(), Errno> + Sync); 3] =
        [&|| other.semop(id, &[up(0)]), &|| other.semop(id, &[up(0), up(1)]), &|| {
            other.sem_setval(id, 0, 1)
        }];
    for (at, call) in calls.into_iter().enumerate() {
        // `other` must find the word frozen (locked), and wait for it. If `other` is slow, the word
        // is thawed before it looks. So repeat until `Namespace::contention` has counted a wait.
        let is_counted = (0..1000).any(|_| {
            let before = namespace.contention();
            let go_on = stop(&holder, id);
            thread::scope(|scope| {
                let waits = scope.spawn(call);
                while !set.is_locked_by(other.owner.index) {
                    thread::yield_now();
                }
                go_on();
                waits.join().unwrap().unwrap();
            });
            namespace.contention().contentions > before.contentions
        });
        assert!(is_counted, "call {at}");
    }
}

#[test]
fn control_dead_operation_is_ended_by_the_removal() {
    let namespace = namespace(1);
    let (dead, waiter, other) = (task(&namespace, 1), task(&namespace, 2), task(&namespace, 3));
    let id = other.semget(IPC_PRIVATE, 2, GetFlags::empty(), 0o600).unwrap();
    drop(stop(&dead, id));
    wait_without_sleep(&waiter, id, &[DOWN]);
    kill(dead);
    other.sem_rmid(id).unwrap();
    kill(waiter);
    namespace.recover().unwrap();
    assert_eq!(used(&other), [0, 0, 0]);
}
