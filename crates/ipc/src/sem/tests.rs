//! Tests of which cache lines an operation changes, and of waits that poll their wait node before
//! they sleep.

use std::collections::BTreeSet;
use std::time::Duration;

use corewalk_base::futex::{self, Deadline};
use corewalk_base::primitives::thread;
use corewalk_testkit::race::Watchdog;
use rustix::io::Errno;

use crate::field::{get, put};
use crate::sem::dead::wait_without_sleep;
use crate::sem::set::Set;
use crate::spin::Spin;
use crate::status::{INTERRUPTED, STATUS};
use crate::{
    Capacity, Cred, GetFlags, IPC_PRIVATE, Namespace, NamespaceOptions, SPIN_NS_MAX, SemBuf,
    SemFlags, SemId, Task,
};

fn task() -> Task {
    let capacity = Capacity { sets: 8, sems: 16, undos: 32, waits: 8, tasks: 4, ..Capacity::LEAST };
    let options = NamespaceOptions { capacity, ..NamespaceOptions::default() };
    Namespace::new(options).unwrap().register(Cred::root(), 7).unwrap()
}

fn snapshot(task: &Task) -> Vec<[u64; 8]> {
    let region = &task.shared.region;
    let line = |at| std::array::from_fn(|word| get(&region.line(at)[word]));
    (0..region.lines()).map(line).collect()
}

fn changed(task: &Task, act: impl FnOnce()) -> BTreeSet<usize> {
    let before = snapshot(task);
    act();
    let after = snapshot(task);
    (0..before.len()).filter(|at| before[*at] != after[*at]).collect()
}

#[test]
fn operations_on_different_semaphores_change_no_common_line() {
    let task = task();
    let id = task.semget(IPC_PRIVATE, 4, GetFlags::empty(), 0o600).unwrap();
    // The first operation on a semaphore allocates the undo record and stores the time. Perform it
    // before the measurement, so that no measured operation changes those lines.
    (0..4).for_each(|num| task.semop(id, &[SemBuf::new(num, 1, SemFlags::UNDO)]).unwrap());
    let by = |sops: &[SemBuf]| changed(&task, || task.semop(id, sops).unwrap());
    for undo in [SemFlags::empty(), SemFlags::UNDO] {
        let ways = [0, 1, 2, 3].map(|num| by(&[SemBuf::new(num, 1, undo)]));
        for (at, lines) in ways.iter().enumerate() {
            assert_eq!(lines.len(), 1 + usize::from(!undo.is_empty()), "{lines:?}");
            assert!(ways[at + 1..].iter().all(|other| lines.is_disjoint(other)));
        }
    }
    let pairs =
        [[0, 1], [2, 3]].map(|nums| by(&nums.map(|num| SemBuf::new(num, 1, SemFlags::empty()))));
    assert_eq!(pairs[0].len(), 2);
    assert!(pairs[0].is_disjoint(&pairs[1]));
}

#[test]
fn control_operations_on_one_semaphore_change_a_common_line() {
    let task = task();
    let id = task.semget(IPC_PRIVATE, 1, GetFlags::empty(), 0o600).unwrap();
    let ways = [1, 2].map(|op| {
        changed(&task, || task.semop(id, &[SemBuf::new(0, op, SemFlags::empty())]).unwrap())
    });
    assert!(!ways[0].is_disjoint(&ways[1]));
}

#[test]
fn lookups_queries_and_refusals_change_nothing() {
    let task = task();
    let id = task.semget(9, 2, GetFlags::CREATE, 0o600).unwrap();
    let lines = changed(&task, || {
        task.sem_stat(id).unwrap();
        task.sem_stat_any(id.raw()).unwrap();
        task.sem_getval(id, 1).unwrap();
        task.sem_getpid(id, 1).unwrap();
        let down = SemBuf::new(0, -1, SemFlags::NOWAIT);
        assert_eq!(task.semop(id, &[down]), Err(Errno::AGAIN));
        assert_eq!(task.semop(SemId::from_raw(id.raw() + 1), &[down]), Err(Errno::INVAL));
        task.set_cred(Cred::user(1, 1));
        assert_eq!(task.semop(id, &[down]), Err(Errno::ACCESS));
    });
    assert!(lines.is_empty(), "{lines:?}");
}

#[test]
fn region_after_a_set_is_removed_has_nothing_in_use() {
    let task = task();
    let round = || {
        let id = task.semget(IPC_PRIVATE, 3, GetFlags::empty(), 0o600).unwrap();
        task.semop(id, &[SemBuf::new(0, 3, SemFlags::UNDO), SemBuf::new(2, 1, SemFlags::UNDO)])
            .unwrap();
        task.semop(
            id,
            &[SemBuf::new(2, -1, SemFlags::UNDO), SemBuf::new(0, -1, SemFlags::empty())],
        )
        .unwrap();
        let never = Some(std::time::Duration::ZERO);
        assert_eq!(
            task.semtimedop(id, &[SemBuf::new(1, -1, SemFlags::empty())], never),
            Err(Errno::AGAIN)
        );
        let both = [SemBuf::new(1, -1, SemFlags::empty()), SemBuf::new(0, 0, SemFlags::empty())];
        assert_eq!(task.semtimedop(id, &both, never), Err(Errno::AGAIN));
        task.sem_rmid(id).unwrap();
    };
    // The namespace has so few sets, undo records and wait nodes that 100 rounds fail if one of
    // them leaks.
    (0..100).for_each(|_| round());
    let totals = task.sem_totals().unwrap();
    assert_eq!((totals.sets, totals.sems), (0, 0));
}

/// Two tasks in turns increment the semaphore for which the other task waits. No wake-up may be
/// lost, with any length of polling.
#[test]
fn waits_that_look_first_lose_no_wake() {
    const ROUNDS: u32 = 20_000;
    let _watchdog = Watchdog::start("waits that look first", Duration::from_secs(300));
    for spin_ns_max in [0, 1, SPIN_NS_MAX] {
        let options = NamespaceOptions { spin_ns_max, ..NamespaceOptions::default() };
        let namespace = Namespace::new(options).unwrap();
        let [ask, answer] = [1, 2].map(|pid| namespace.register(Cred::root(), pid).unwrap());
        let id = ask.semget(IPC_PRIVATE, 2, GetFlags::empty(), 0o600).unwrap();
        let go = |task: &Task, num, op| {
            task.semop(id, &[SemBuf::new(num, op, SemFlags::empty())]).unwrap()
        };
        thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..ROUNDS {
                    go(&answer, 0, -1);
                    go(&answer, 1, 1);
                }
            });
            for _ in 0..ROUNDS {
                go(&ask, 0, 1);
                go(&ask, 1, -1);
            }
        });
        assert_eq!(ask.sem_getall(id).unwrap(), [0, 0]);
    }
}

#[test]
fn wait_with_a_timeout_shorter_than_a_look_does_not_look() {
    let spins = |spin_ns_max| {
        let options = NamespaceOptions { spin_ns_max, ..NamespaceOptions::default() };
        Namespace::new(options).unwrap().register(Cred::root(), 1).unwrap()
    };
    let after = |ns| Deadline { monotonic_ns: futex::now().monotonic_ns + ns };
    let looks = |task: &Task, deadline| task.watch_until(deadline).is_some();
    let task = spins(SPIN_NS_MAX);
    assert!(!looks(&task, after(0)));
    assert!(!looks(&task, after(SPIN_NS_MAX / 2)));
    assert!(looks(&task, after(3_600_000_000_000)), "the control");
    assert!(looks(&task, Deadline::NEVER), "the control");
    assert!(!looks(&spins(0), Deadline::NEVER), "the namespace allows no look");
}

#[test]
fn call_that_need_not_wait_does_not_look_for_an_instant() {
    // A thread remembers whether its polls were useful, so use a new thread for each case.
    let looks_here = |spin_ns_max, value, flag| {
        let options = NamespaceOptions { spin_ns_max, ..NamespaceOptions::default() };
        let task = Namespace::new(options).unwrap().register(Cred::root(), 1).unwrap();
        let id = task.semget(IPC_PRIVATE, 1, GetFlags::empty(), 0o600).unwrap();
        task.sem_setval(id, 0, value).unwrap();
        let set = Set::new(&task.shared, &task.sem_ids().obtain_object_check(id.raw()).unwrap());
        assert!(
            !task.is_soon_possible(set, SemBuf::new(0, -1, flag)),
            "no other task changes the semaphore"
        );
        // `is_worth_it` returns false if this thread has just polled in vain. So the result tells
        // whether `is_soon_possible` has polled.
        !Spin::Instant.is_worth_it()
    };
    let looks = |spin_ns_max, value, flag| {
        thread::scope(|scope| scope.spawn(|| looks_here(spin_ns_max, value, flag)).join().unwrap())
    };
    assert!(looks(SPIN_NS_MAX, 0, SemFlags::empty()), "the control");
    assert!(!looks(0, 0, SemFlags::empty()));
    assert!(!looks(SPIN_NS_MAX, 1, SemFlags::empty()));
    assert!(!looks(SPIN_NS_MAX, 0, SemFlags::NOWAIT));
}

/// A wait must end by its timeout even if another process overwrites the status word of its wait
/// node.
#[test]
fn wait_whose_status_means_nothing_ends_in_time() {
    let _watchdog = Watchdog::start("an invalid status", Duration::from_secs(120));
    let task = task();
    let id = task.semget(IPC_PRIVATE, 1, GetFlags::empty(), 0o600).unwrap();
    let timeout = Some(Duration::from_millis(300));
    thread::scope(|scope| {
        let wait =
            scope.spawn(|| task.semtimedop(id, &[SemBuf::new(0, -1, SemFlags::empty())], timeout));
        let (region, waits) = (&task.shared.region, task.shared.layout.waits);
        while !wait.is_finished() {
            for (line, _) in waits.used(region) {
                put(&region.line(line)[STATUS], 2);
            }
            thread::yield_now();
        }
        assert_eq!(wait.join().unwrap(), Err(Errno::AGAIN));
    });
}

/// If a signal handler forks, the child has a copy of the interrupted thread's list of waits. The
/// child must not interrupt these waits, which belong to the parent.
#[test]
fn handler_ends_the_wait_of_its_own_task_alone() {
    let namespace = Namespace::new(NamespaceOptions::default()).unwrap();
    let [parent, child] = [1, 2].map(|pid| namespace.register(Cred::root(), pid).unwrap());
    let id = parent.semget(IPC_PRIVATE, 1, GetFlags::empty(), 0o600).unwrap();
    let node = wait_without_sleep(&parent, id, &[SemBuf::new(0, -1, SemFlags::empty())]);
    let is_interrupted = || get(&parent.shared.region.line(node)[STATUS]) & INTERRUPTED != 0;
    let outer = parent.begin_wait(node);
    child.interrupt_own();
    assert!(!is_interrupted());
    parent.interrupt_own();
    assert!(is_interrupted());
    assert!(parent.end_wait(node, outer));
}
