//! Crash models: a task is killed before each store of its call. Then the task that runs recovery
//! is killed before each store of the recovery.
//!
//! A [`Case`] prepares a semaphore set, and names the call during which a task, the victim, is
//! killed. Two runs give the allowed states: the victim dies before its call, or after it. After
//! each kill, the namespace must be in one of these two states, and [`audit`] must find nothing
//! wrong.
//!
//! Two controls (mutation tests) must fail. In the first, recovery finds no logs. In the second,
//! the locks of dead tasks count as free, so recovery repairs nothing.
//!
//! `RUSTFLAGS="--cfg corewalk_crash" cargo test --release -p corewalk-ipc --lib crash_`

use corewalk_base::primitives::crash::{self, Ended};
use corewalk_base::primitives::{Arc, thread};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::io::Errno;
use std::time::Duration;

use crate::sem::audit::{audit, forget_locks, forget_logs};
use crate::{
    Capacity, Cred, GetFlags, IPC_PRIVATE, Namespace, NamespaceOptions, SemBuf, SemFlags, SemId,
    Task,
};

const KEY: i32 = 77;

/// The maximum number of stores of one call. A test fails if its call makes more stores, so that no
/// test runs for ever.
const STORES_MAX: u64 = 3000;

struct World {
    namespace: Namespace,
    /// The task that is killed; none once it is dead.
    victim: Option<Task>,
    survivor: Task,
    waiters: Vec<Waiter>,
    id: SemId,
}

struct Waiter {
    task: Arc<Task>,
    thread: thread::JoinHandle<Result<(), Errno>>,
}

/// The state before a call, and the call of the victim.
#[derive(Clone, Copy)]
struct Case {
    name: &'static str,
    prepare: fn(&mut World),
    act: fn(&Task, SemId) -> Result<(), Errno>,
}

/// The state of the namespace, as the calls of other tasks return it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Seen {
    values: Result<Vec<u16>, Errno>,
    mode: Option<(u16, u32, u32)>,
    waiting: Vec<usize>,
    keyed: bool,
    sets: u32,
}

impl World {
    fn new(case: Case) -> Self {
        let capacity =
            Capacity { sets: 4, sems: 16, undos: 64, waits: 16, tasks: 8, ..Capacity::LEAST };
        let options = NamespaceOptions { capacity, ..NamespaceOptions::default() };
        let file = memfd_create("crash", MemfdFlags::CLOEXEC).unwrap();
        let namespace = Namespace::open_fd(&file, options).unwrap();
        let task = |pid| namespace.register(Cred::root(), pid).unwrap();
        let (survivor, victim) = (task(1), task(2));
        let id = survivor.semget(IPC_PRIVATE, 3, GetFlags::empty(), 0o600).unwrap();
        survivor.sem_setall(id, &[5, 5, 0]).unwrap();
        let mut world = Self { namespace, victim: Some(victim), survivor, waiters: Vec::new(), id };
        (case.prepare)(&mut world);
        world
    }

    fn victim(&self) -> &Task {
        self.victim.as_ref().unwrap()
    }

    /// Registers another task that waits for `sops`.
    fn wait_for<const N: usize>(&mut self, sops: [SemBuf; N]) {
        let task = self.namespace.register(Cred::root(), 10).unwrap();
        let (task, id) = (Arc::new(task), self.id);
        let thread = thread::spawn({
            let task = Arc::clone(&task);
            move || task.semop(id, &sops)
        });
        while task.waiting() == 0 {
            thread::yield_now();
        }
        // The task that has begun to wait may still hold the set's lock. `GETNCNT` takes this lock,
        // too. So when it returns, the waiting task has released the lock.
        self.survivor.sem_getncnt(self.id, 0).unwrap();
        self.waiters.push(Waiter { task, thread });
    }

    /// Ends the victim like a kill of its process.
    fn kill_victim(&mut self) {
        kill(self.victim.take().unwrap());
    }

    fn seen(&self) -> Seen {
        let stat = self.survivor.sem_stat(self.id).ok();
        Seen {
            values: self.survivor.sem_getall(self.id),
            mode: stat.map(|stat| (stat.perm.mode, stat.perm.uid, stat.perm.gid)),
            waiting: self.waiters.iter().map(|waiter| waiter.task.waiting()).collect(),
            keyed: self.survivor.semget(KEY, 0, GetFlags::empty(), 0).is_ok(),
            sets: self.survivor.sem_totals().unwrap().sets,
        }
    }

    fn settle(&self) -> Result<Seen, String> {
        self.namespace.recover().map_err(|errno| format!("recover: {errno}"))?;
        let seen = self.seen();
        // The semop(2) calls of these threads were completed. Wait until the threads have returned
        // and freed their wait nodes.
        let told = self.waiters.iter().filter(|waiter| waiter.task.waiting() == 0);
        for waiter in told {
            while !waiter.thread.is_finished() {
                // The killed task may have died after it completed a waiting call and before it
                // woke the waiting thread. So wake the thread here.
                wake_waiting(&waiter.task);
                thread::yield_now();
            }
        }
        audit(&self.survivor)?;
        Ok(seen)
    }

    fn end(self) {
        // This removal fails if the case has already removed the set.
        let _gone = self.survivor.sem_rmid(self.id);
        for waiter in self.waiters {
            while !waiter.thread.is_finished() {
                waiter.task.interrupt();
                thread::yield_now();
            }
            waiter.thread.join().unwrap().ok();
        }
    }
}

fn wake_waiting(task: &Task) {
    task.waiting.collect(|node| {
        let status = &task.shared.region.line(node)[crate::status::STATUS];
        corewalk_base::futex::wake(status, 1, task.shared.scope) != 0
    });
}

/// Marks the process of the task as gone, then drops the `Task` with all later stores suppressed.
pub(crate) fn kill(task: Task) {
    crate::task_line::forget_process(&task.shared, task.owner.index);
    crash::run(0, || drop(task));
}

/// The step of recovery that a control leaves out.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Protocol {
    Whole,
    WithoutLogs,
    WithoutLocks,
}

impl Protocol {
    fn apply(self, world: &World) {
        match self {
            Self::Whole => {}
            Self::WithoutLogs => forget_logs(&world.survivor),
            Self::WithoutLocks => forget_locks(&world.survivor),
        }
    }
}

fn expected(case: Case) -> [Seen; 2] {
    [false, true].map(|acts| {
        let mut world = World::new(case);
        if acts {
            (case.act)(world.victim(), world.id).ok();
        }
        world.kill_victim();
        let seen = world.settle().unwrap();
        world.end();
        seen
    })
}

fn stop_everywhere(case: Case, protocol: Protocol) -> Result<u64, String> {
    let expected = expected(case);
    for stores in 0..STORES_MAX {
        let mut world = World::new(case);
        let ended = crash::run(stores, || (case.act)(world.victim(), world.id));
        world.kill_victim();
        protocol.apply(&world);
        let seen = world.settle();
        world.end();
        let at = |what: String| format!("{}, stopped after {stores} stores: {what}", case.name);
        let seen = seen.map_err(at)?;
        if !expected.contains(&seen) {
            return Err(at(format!("{seen:?} is neither of {expected:?}")));
        }
        if ended != Ended::Stopped {
            return Ok(stores);
        }
    }
    Err(format!("{} never ends", case.name))
}

fn stop_recovery_everywhere(case: Case) -> Result<u64, String> {
    let expected = expected(case);
    let mut count = 0;
    for stores in 0..STORES_MAX {
        let mut is_stopped = true;
        for more in 0..STORES_MAX {
            let mut world = World::new(case);
            let ended = crash::run(stores, || (case.act)(world.victim(), world.id));
            is_stopped = ended == Ended::Stopped;
            world.kill_victim();
            let second = world.namespace.register(Cred::root(), 3).unwrap();
            let recovered = crash::run(more, || {
                // First use the set, then reap the dead tasks.
                second.sem_getall(world.id).ok();
                crate::recover::reap_all(&second.shared, second.owner).ok();
            });
            kill(second);
            let seen = world.settle();
            world.end();
            let at = |what| {
                format!("{}, after {stores} stores, and {more} of recovery: {what}", case.name)
            };
            let seen = seen.map_err(at)?;
            if !expected.contains(&seen) {
                return Err(at(format!("{seen:?} is neither of {expected:?}")));
            }
            count += 1;
            if recovered != Ended::Stopped {
                break;
            }
        }
        if !is_stopped {
            return Ok(count);
        }
    }
    Err(format!("{} never ends", case.name))
}

/// The namespace has no free task record. So a new process takes over the record of the killed
/// task, and is killed before each of its stores.
fn stop_take_over_everywhere(case: Case) -> Result<u64, String> {
    let expected = expected(case);
    let half = stop_everywhere(case, Protocol::Whole)? / 2;
    for stores in 0..STORES_MAX {
        let mut world = World::new(case);
        let register = || world.namespace.register(Cred::root(), 3);
        let others: Vec<Task> = std::iter::from_fn(|| register().ok()).collect();
        crash::run(half, || (case.act)(world.victim(), world.id));
        let line = world.victim().owner.index;
        world.kill_victim();
        let ended =
            crash::run(stores, || std::mem::forget(world.namespace.register(Cred::root(), 3)));
        crate::task_line::forget_process(&world.survivor.shared, line);
        let seen = world.settle();
        world.end();
        drop(others);
        let at = |what| format!("{}, stopped after {stores} stores: {what}", case.name);
        let seen = seen.map_err(at)?;
        if !expected.contains(&seen) {
            return Err(at(format!("{seen:?} is neither of {expected:?}")));
        }
        if ended != Ended::Stopped {
            return Ok(stores);
        }
    }
    Err(format!("{} never ends", case.name))
}

const CASES: [Case; 14] = [
    Case {
        name: "single, first with undo",
        prepare: |_| {},
        act: |task, id| task.semop(id, &[SemBuf::new(0, -2, SemFlags::UNDO)]),
    },
    Case {
        name: "single, with undo",
        prepare: |world| {
            let one = [SemBuf::new(0, 1, SemFlags::UNDO)];
            world.victim().semop(world.id, &one).unwrap();
            // The log of an earlier operation is left here, and recovery must not mistake it for
            // that of the tested call.
            world.victim().semop(world.id, &one).unwrap();
            world.survivor.sem_getall(world.id).unwrap();
        },
        act: |task, id| task.semop(id, &[SemBuf::new(0, -3, SemFlags::UNDO)]),
    },
    Case {
        name: "several",
        prepare: |_| {},
        act: |task, id| {
            task.semop(
                id,
                &[SemBuf::new(0, -2, SemFlags::empty()), SemBuf::new(1, 2, SemFlags::empty())],
            )
        },
    },
    Case {
        name: "several in another order",
        prepare: |_| {},
        act: |task, id| {
            task.semop(
                id,
                &[
                    SemBuf::new(2, 3, SemFlags::empty()),
                    SemBuf::new(0, -2, SemFlags::empty()),
                    SemBuf::new(1, 1, SemFlags::empty()),
                ],
            )
        },
    },
    Case {
        name: "several that fail",
        prepare: |_| {},
        act: |task, id| {
            let nowait = crate::SemFlags::NOWAIT;
            task.semop(id, &[SemBuf::new(0, -2, nowait), SemBuf::new(2, -1, nowait)])
        },
    },
    Case {
        name: "several under the lock",
        prepare: |_| {},
        act: |task, id| {
            task.semop(
                id,
                &[
                    SemBuf::new(1, -2, SemFlags::empty()),
                    SemBuf::new(0, 2, SemFlags::UNDO),
                    SemBuf::new(2, 1, SemFlags::empty()),
                ],
            )
        },
    },
    Case {
        name: "a wait that times out",
        prepare: |world| {
            world.wait_for([
                SemBuf::new(2, -9, SemFlags::empty()),
                SemBuf::new(0, 1, SemFlags::empty()),
            ])
        },
        act: |task, id| {
            task.semtimedop(id, &[SemBuf::new(2, -1, SemFlags::UNDO)], Some(Duration::ZERO)).ok();
            task.semtimedop(
                id,
                &[SemBuf::new(2, -1, SemFlags::empty()), SemBuf::new(0, 0, SemFlags::empty())],
                Some(Duration::ZERO),
            )
        },
    },
    Case {
        name: "an operation that several wait for",
        prepare: |world| {
            world.wait_for([SemBuf::new(2, -1, SemFlags::empty())]);
            world.wait_for([
                SemBuf::new(2, -2, SemFlags::empty()),
                SemBuf::new(1, 1, SemFlags::empty()),
            ]);
            world.wait_for([SemBuf::new(2, -9, SemFlags::empty())]);
        },
        act: |task, id| task.semop(id, &[SemBuf::new(2, 4, SemFlags::empty())]),
    },
    Case {
        name: "removal",
        prepare: |world| {
            world.survivor.semop(world.id, &[SemBuf::new(1, 1, SemFlags::UNDO)]).unwrap();
            world.victim().semop(world.id, &[SemBuf::new(1, 1, SemFlags::UNDO)]).unwrap();
            world.wait_for([SemBuf::new(2, -1, SemFlags::empty())]);
            world.wait_for([
                SemBuf::new(2, -1, SemFlags::empty()),
                SemBuf::new(1, 1, SemFlags::empty()),
            ]);
        },
        act: |task, id| task.sem_rmid(id),
    },
    Case {
        name: "SETALL",
        prepare: |world| {
            world.survivor.semop(world.id, &[SemBuf::new(1, 1, SemFlags::UNDO)]).unwrap();
            world.wait_for([SemBuf::new(2, -3, SemFlags::empty())]);
        },
        act: |task, id| task.sem_setall(id, &[7, 8, 3]),
    },
    Case {
        name: "a new set",
        prepare: |_| {},
        act: |task, _| task.semget(KEY, 2, GetFlags::CREATE, 0o600).map(|_| ()),
    },
    Case { name: "IPC_SET", prepare: |_| {}, act: |task, id| task.sem_set(id, 70, 71, 0o640) },
    Case {
        name: "undo at the end of a task",
        prepare: |world| {
            let two = [SemBuf::new(2, 3, SemFlags::UNDO), SemBuf::new(0, -4, SemFlags::UNDO)];
            world.victim().semop(world.id, &two).unwrap();
            world.wait_for([SemBuf::new(0, -5, SemFlags::empty())]);
        },
        act: |task, _| crate::sem::exit_sem(task).map(drop),
    },
    Case {
        name: "reaping a task whose wait was granted",
        prepare: |world| {
            let granted = world.namespace.register(Cred::root(), 4).unwrap();
            crate::sem::dead::wait_without_sleep(
                &granted,
                world.id,
                &[SemBuf::new(2, -1, SemFlags::empty())],
            );
            world.survivor.semop(world.id, &[SemBuf::new(2, 1, SemFlags::empty())]).unwrap();
            kill(granted);
        },
        act: |task, _| crate::recover::reap_all(&task.shared, task.owner).map(drop),
    },
];

#[test]
fn crash_before_every_store_leaves_all_of_a_call_or_nothing() {
    for case in CASES {
        let stores = stop_everywhere(case, Protocol::Whole).unwrap();
        println!("{}: {stores} stores", case.name);
    }
}

#[test]
fn crash_of_recovery_before_every_store_leaves_the_rest_to_the_next() {
    for case in CASES {
        let stops = stop_recovery_everywhere(case).unwrap();
        println!("{}: {stops} pairs of stops", case.name);
    }
}

#[test]
fn crash_of_a_take_over_before_every_store_leaves_the_rest_to_the_next() {
    for case in CASES {
        let stores = stop_take_over_everywhere(case).unwrap();
        println!("{}: {stores} stores", case.name);
        assert!(stores > 8, "the line was not taken over");
    }
}

fn failing(protocol: Protocol) -> Vec<&'static str> {
    let fails = |case: &Case| stop_everywhere(*case, protocol).is_err();
    CASES.into_iter().filter(fails).map(|case| case.name).collect()
}

#[test]
fn crash_control_without_logs_is_caught() {
    let failing = failing(Protocol::WithoutLogs);
    println!("caught by {failing:?}");
    for name in [
        "single, with undo",
        "several",
        "several in another order",
        "several under the lock",
        "SETALL",
    ] {
        assert!(failing.contains(&name), "case {name} does not fail");
    }
}

#[test]
fn crash_control_without_locks_that_change_hands_is_caught() {
    let failing = failing(Protocol::WithoutLocks);
    println!("caught by {failing:?}");
    for name in ["a wait that times out", "removal", "a new set"] {
        assert!(failing.contains(&name), "case {name} does not fail");
    }
}
