//! Loom models of semaphore sets. They cover publication, lookup and removal of an id; undo during
//! a removal; calls with several operations against calls with one; and a wait against the
//! operation that completes it.
//!
//! In each model the spawned thread counts the outcomes (see `tally` in `corewalk-base`), so that
//! the test can require each outcome. The namespace of a model is so small that slots, lines and
//! undo records are reused immediately.

use corewalk_base::primitives::atomic::Ordering;
use corewalk_base::primitives::{Arc, thread};
use corewalk_base::tally::{Tally, assert_all_reached};
use rustix::io::Errno;

use crate::namespace::{Namespace, NamespaceOptions};
use crate::sem::models::{
    blind_add, blind_undo, completes, completes_in_two_steps, sleeps, watched_node,
};
use crate::{Capacity, Cred, GetFlags, IPC_PRIVATE, SemBuf, SemFlags, SemId, Task};

const UP: SemBuf = SemBuf::new(0, 1, SemFlags::empty());
const DOWN: SemBuf = SemBuf::new(0, -1, SemFlags::NOWAIT);
const UP_UNDO: SemBuf = SemBuf::new(0, 1, SemFlags::UNDO);

fn namespace() -> Namespace {
    let capacity = Capacity { sets: 1, sems: 2, undos: 4, waits: 2, tasks: 2, ..Capacity::LEAST };
    Namespace::new(NamespaceOptions { capacity, ..Default::default() }).unwrap()
}

fn task(namespace: &Namespace, pid: u32) -> Arc<Task> {
    Arc::new(namespace.register(Cred::root(), pid).unwrap())
}

fn sleep_against(complete: fn(&Task, u32) -> bool) -> [usize; 3] {
    Tally::of(move |tally| {
        let namespace = namespace();
        let (waiter, waker) = (task(&namespace, 1), task(&namespace, 2));
        let node = watched_node(&waiter);
        let sleeper = thread::spawn(move || sleeps(&waiter, node));
        let wakes = complete(&waker, node);
        tally.hit(match (sleeper.join().unwrap(), wakes) {
            (true, true) => 0,
            (true, false) => panic!("asleep, and no thread wakes it"),
            (false, false) => 1,
            (false, true) => 2,
        });
    })
}

/// If a call is completed while its task goes to sleep, the task must either not sleep or get a
/// wake-up.
#[test]
fn task_that_goes_to_sleep_beside_its_completion_is_woken() {
    assert_all_reached(&sleep_against(completes));
}

#[test]
#[should_panic(expected = "asleep, and no thread wakes it")]
fn control_completion_in_two_steps_is_caught() {
    sleep_against(completes_in_two_steps);
}

/// The model explores schedules with at most one preemption, in which either thread may run first.
/// That is enough to run one thread in the middle of the other thread's operation.
fn remove_against(add: fn(&Task, SemId) -> Result<(), Errno>) -> [usize; 3] {
    Tally::of_bounded(1, move |tally| {
        let namespace = namespace();
        let (one, other) = (task(&namespace, 1), task(&namespace, 2));
        let id = one.semget(IPC_PRIVATE, 1, GetFlags::empty(), 0o600).unwrap();
        let adder = thread::spawn(move || add(&other, id));
        let remover = thread::spawn({
            let one = Arc::clone(&one);
            move || {
                one.sem_rmid(id).unwrap();
                one.semget(IPC_PRIVATE, 1, GetFlags::empty(), 0o600).unwrap()
            }
        });
        let (outcome, next) = (adder.join().unwrap(), remover.join().unwrap());
        assert_ne!(next, id, "an id came back at once");
        assert_eq!(one.sem_getval(next, 0), Ok(0), "a stale operation reached the next set");
        assert_eq!(one.sem_getpid(next, 0), Ok(0), "a stale operation reached the next set");
        tally.hit(match outcome {
            Ok(()) => 0,
            Err(Errno::INVAL) => 1,
            Err(Errno::IDRM) => 2,
            Err(other) => panic!("{other}"),
        });
    })
}

/// A set may be removed between its lookup and the operation. The step that changes a semaphore
/// must notice that. Traps I3 and I10 in `traps.md`.
#[test]
fn operation_beside_removal_reaches_its_own_set_or_none() {
    assert_all_reached(&remove_against(|task, id| task.semop(id, &[UP])));
}

/// Control (a variant with the bug must fail): the operation does not compare the set's tag. The
/// tag tells the set from later sets in the same slot. Trap I10 in `traps.md`.
#[test]
#[should_panic(expected = "a stale operation reached the next set")]
fn control_operation_without_the_tag_is_caught() {
    remove_against(blind_add);
}

fn remove_against_undo(add: fn(&Task, SemId) -> Result<(), Errno>) -> [usize; 3] {
    Tally::of_bounded(1, move |tally| {
        let namespace = namespace();
        let (one, other) = (task(&namespace, 1), task(&namespace, 2));
        let id = one.semget(IPC_PRIVATE, 1, GetFlags::empty(), 0o600).unwrap();
        other.semop(id, &[UP_UNDO]).unwrap();
        let adder = thread::spawn(move || {
            let outcome = add(&other, id);
            (outcome, other)
        });
        let remover = thread::spawn({
            let one = Arc::clone(&one);
            move || {
                one.sem_rmid(id).unwrap();
                let next = one.semget(IPC_PRIVATE, 1, GetFlags::empty(), 0o600).unwrap();
                one.semop(next, &[UP_UNDO]).unwrap();
                next
            }
        });
        let ((outcome, other), next) = (adder.join().unwrap(), remover.join().unwrap());
        drop(other);
        assert_eq!(
            one.sem_getval(next, 0),
            Ok(1),
            "I8: a task applied an adjustment of another task"
        );
        one.semop(next, &[SemBuf::new(0, 5, SemFlags::empty())]).unwrap();
        let last = task(&namespace, 3);
        drop(one);
        assert_eq!(last.sem_getval(next, 0), Ok(5), "I8: an adjustment was lost or is wrong");
        tally.hit(match outcome {
            Ok(()) => 0,
            Err(Errno::INVAL) => 1,
            Err(Errno::IDRM) => 2,
            Err(other) => panic!("{other}"),
        });
    })
}

/// An undo record belongs to one task and one set. After the set is removed, a late operation on it
/// must not change an undo record of the set that is created next. Trap I8 in `traps.md`.
#[test]
fn undo_beside_removal_changes_its_own_record_or_none() {
    let task = |task: &Task, id| task.semop(id, &[UP_UNDO]);
    assert_all_reached(&remove_against_undo(task));
}

/// Control (a variant with the bug must fail): the undo adjustment is stored after the word of the
/// semaphore is unlocked. Trap I8 in `traps.md`.
#[test]
#[should_panic(expected = "I8")]
fn control_undo_without_a_freeze_is_caught() {
    remove_against_undo(blind_undo);
}

fn several_against_single(add_both: fn(&Task, SemId)) -> [usize; 2] {
    Tally::of_bounded(2, move |tally| {
        let namespace = namespace();
        let (one, other) = (task(&namespace, 1), task(&namespace, 2));
        let id = one.semget(IPC_PRIVATE, 2, GetFlags::empty(), 0o600).unwrap();
        let taker = thread::spawn(move || {
            let first = other.semop(id, &[DOWN]);
            (first, other.semop(id, &[SemBuf { sem_num: 1, ..DOWN }]))
        });
        add_both(&one, id);
        let got = taker.join().unwrap();
        assert_ne!(got, (Ok(()), Err(Errno::AGAIN)), "half of a call was seen");
        tally.hit(usize::from(got.0.is_ok()));
    })
}

/// A call with one operation and a call with several must exclude each other by the words of the
/// semaphores alone. (In Linux, `sem_array.use_global_lock` decides which locks a call takes. A
/// call could see an old value of it.) Traps I4 and I9 in `traps.md`.
#[test]
fn several_operations_beside_single_ones_appear_at_once() {
    assert_all_reached(&several_against_single(|task, id| {
        task.semop(id, &[UP, SemBuf { sem_num: 1, ..UP }]).unwrap();
    }));
}

/// A call with several operations and undo takes the set's lock. It must also exclude calls with
/// one operation, which do not take that lock. Traps I4 and I9 in `traps.md`.
#[test]
fn several_operations_with_undo_appear_at_once() {
    assert_all_reached(&several_against_single(|task, id| {
        task.semop(id, &[UP, SemBuf { sem_num: 1, ..UP_UNDO }]).unwrap();
    }));
}

/// Control (a variant with the bug must fail): `add_both` makes a separate call for each operation.
/// Traps I4 and I9 in `traps.md`.
#[test]
#[should_panic(expected = "half of a call was seen")]
fn control_operations_one_by_one_are_caught() {
    several_against_single(|task, id| {
        task.semop(id, &[UP]).unwrap();
        task.semop(id, &[SemBuf { sem_num: 1, ..UP }]).unwrap();
    });
}

fn wait_against(add: fn(&Task, SemId) -> Result<(), Errno>) -> [usize; 2] {
    Tally::of_bounded(2, move |tally| {
        let namespace = namespace();
        let (one, other) = (task(&namespace, 1), task(&namespace, 2));
        let id = one.semget(IPC_PRIVATE, 1, GetFlags::empty(), 0o600).unwrap();
        let waiter = thread::spawn({
            let other = Arc::clone(&other);
            move || other.semop(id, &[SemBuf::new(0, -1, SemFlags::empty())])
        });
        let was_waiting = other.waiting() != 0;
        add(&one, id).unwrap();
        assert_eq!(waiter.join().unwrap(), Ok(()));
        assert_eq!(one.sem_getval(id, 0), Ok(0));
        tally.hit(usize::from(was_waiting));
    })
}

/// A call must, in one step, find that it has to wait and become visible as waiting. Otherwise the
/// increment that it waits for could miss it. Trap I5 in `traps.md`.
#[test]
fn waiter_beside_the_operation_it_waits_for_goes_on() {
    assert_all_reached(&wait_against(|task, id| task.semop(id, &[UP])));
}

/// Control (a variant with the bug must fail): the operation does not check whether a call waits.
/// Trap I5 in `traps.md`.
#[test]
#[should_panic(expected = "branches")]
fn control_operation_without_a_wake_up_is_caught() {
    wait_against(blind_add);
}

fn publish_against_lookup() -> [usize; 2] {
    Tally::of_bounded(2, |tally| {
        let namespace = namespace();
        let (one, other) = (task(&namespace, 1), task(&namespace, 2));
        let looker = thread::spawn(move || {
            let stat = other.sem_stat_index(0).ok()?;
            assert_eq!((stat.nsems, stat.perm.mode), (1, 0o640), "I7: half made");
            assert_eq!(other.sem_getval(stat.id, 0), Ok(0), "I7: its semaphores are missing");
            Some(stat)
        });
        one.semget(IPC_PRIVATE, 1, GetFlags::empty(), 0o640).unwrap();
        tally.hit(usize::from(looker.join().unwrap().is_some()));
    })
}

/// A set that a lookup finds must be complete. Traps I7 and I11 in `traps.md`.
#[test]
fn set_beside_its_lookup_is_complete_or_not_there() {
    assert_all_reached(&publish_against_lookup());
}

/// Control (a variant with the bug must fail): the lookup does not check the slot's sequence count.
/// Trap I7 in `traps.md`.
#[test]
#[should_panic(expected = "I7")]
fn control_lookup_without_the_sequence_is_caught() {
    Tally::<1>::of_bounded(2, |_| {
        let namespace = namespace();
        let (one, other) = (task(&namespace, 1), task(&namespace, 2));
        let looker = thread::spawn(move || {
            let slot = other.shared.region.line(other.shared.layout.sem_ids.head + 3);
            // ORDERING: Relaxed. Wrong on purpose: this control reads the state and the payload
            // without a check of the sequence count.
            let is_live = slot[1].load(Ordering::Relaxed) >> 63 != 0;
            // ORDERING: Relaxed. As above.
            let payload = slot[4].load(Ordering::Relaxed);
            assert!(!is_live || payload != 0, "I7: half made");
        });
        one.semget(IPC_PRIVATE, 1, GetFlags::empty(), 0o640).unwrap();
        looker.join().unwrap();
    });
}
