//! Crash models: a task is killed while it grants a permit (one unit of a semaphore) to waiting
//! tasks that have died.
//!
//! One or two tasks wait for the permit (one unit of a semaphore), and have died. Another task, the
//! victim, makes a call that grants the permit to one of them. In one run for each store of this
//! call, the victim is killed before that store.
//!
//! Before any cleanup, a third task, the survivor, tries to take the permit (the unit of the
//! semaphore). If it is refused, no permit may be free after recovery.
//!
//! The tasks that count as dead have no thread. So they neither sleep on their wait nodes nor poll
//! them, as if they had been killed.
//!
//! `RUSTFLAGS="--cfg corewalk_crash" cargo test --release -p corewalk-ipc --lib crash_`

use corewalk_base::primitives::crash::{self, Ended};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::io::Errno;

use super::SemBuf;
use super::audit::{audit, forget_owed};
use super::dead::wait_looking;
use crate::crash_models::kill;
use crate::{
    Capacity, Cred, GetFlags, IPC_PRIVATE, Namespace, NamespaceOptions, SemFlags, SemId, Task,
};

/// The maximum number of stores of one call. A test fails if its call makes more stores.
const STORES_MAX: u64 = 3000;

const UP: SemBuf = SemBuf::new(0, 1, SemFlags::empty());
const DOWN: SemBuf = SemBuf::new(0, -1, SemFlags::empty());
const TRY: SemBuf = SemBuf::new(0, -1, SemFlags::NOWAIT);

struct World {
    namespace: Namespace,
    victim: Option<Task>,
    survivor: Task,
    id: SemId,
}

/// A call that grants a permit.
#[derive(Clone, Copy)]
struct Case {
    name: &'static str,
    /// Runs before any task waits.
    prepare: fn(&World),
    /// The number of tasks that waited and have died.
    dead: u32,
    /// The call of the victim.
    act: fn(&Task, SemId) -> Result<(), Errno>,
    /// True if the victim's death also grants the permit, since the victim has an undo adjustment.
    is_granted_by_death: bool,
}

const PLAIN: Case = Case {
    name: "an operation",
    prepare: |_| {},
    dead: 1,
    act: |task, id| task.semop(id, &[UP]),
    is_granted_by_death: false,
};

const CASES: [Case; 6] = [
    PLAIN,
    Case { name: "an operation, with two dead waiting tasks", dead: 2, ..PLAIN },
    Case {
        name: "an operation, and GETVAL",
        dead: 2,
        act: |task, id| {
            task.semop(id, &[UP])?;
            task.sem_getval(id, 0).map(drop)
        },
        ..PLAIN
    },
    Case {
        name: "several operations",
        act: |task, id| task.semop(id, &[UP, SemBuf::new(1, 1, SemFlags::empty())]),
        ..PLAIN
    },
    Case { name: "SETVAL", act: |task, id| task.sem_setval(id, 0, 1), ..PLAIN },
    Case {
        name: "the end of a task",
        prepare: |world| {
            world.survivor.sem_setval(world.id, 0, 1).unwrap();
            let down = SemBuf::new(0, -1, SemFlags::UNDO);
            world.victim.as_ref().unwrap().semop(world.id, &[down]).unwrap();
        },
        dead: 2,
        act: |task, _| super::exit_sem(task).map(drop),
        is_granted_by_death: true,
    },
];

impl World {
    fn new(case: Case, is_watched: bool) -> Self {
        let capacity =
            Capacity { sets: 2, sems: 8, undos: 32, waits: 16, tasks: 8, ..Capacity::LEAST };
        let options = NamespaceOptions { capacity, ..NamespaceOptions::default() };
        let file = memfd_create("granted", MemfdFlags::CLOEXEC).unwrap();
        let namespace = Namespace::open_fd(&file, options).unwrap();
        let task = |pid| namespace.register(Cred::root(), pid).unwrap();
        let (survivor, victim) = (task(1), task(2));
        let id = survivor.semget(IPC_PRIVATE, 2, GetFlags::empty(), 0o600).unwrap();
        let world = Self { namespace, victim: Some(victim), survivor, id };
        (case.prepare)(&world);
        for pid in 0..case.dead {
            let dead = world.namespace.register(Cred::root(), 3 + pid).unwrap();
            wait_looking(&dead, id, &[DOWN], is_watched);
            kill(dead);
        }
        world
    }

    fn stop(&mut self, case: Case, stores: u64) -> bool {
        let victim = self.victim.take().unwrap();
        let ended = crash::run(stores, || (case.act)(&victim, self.id));
        kill(victim);
        ended == Ended::Stopped
    }

    /// Lets the surviving task try to take the permit (one unit of the semaphore), and then
    /// recovers the namespace. Returns true if the task got the permit, and false if it was
    /// refused.
    fn try_next(&self) -> Result<bool, String> {
        let tried = self.survivor.semop(self.id, &[TRY]);
        self.namespace.recover().map_err(|errno| errno.to_string())?;
        audit(&self.survivor)?;
        let left = self.survivor.sem_getval(self.id, 0).map_err(|errno| errno.to_string())?;
        match (tried, left) {
            (Ok(()), 0) => Ok(true),
            (Err(Errno::AGAIN), 0) => Ok(false),
            _ => Err(format!("the survivor got {tried:?}, and then the value is {left}")),
        }
    }
}

/// The step that is left out.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Protocol {
    Whole,
    /// A control, which must fail: after the kill, the bit `OWED` is cleared. Then no call looks
    /// for dead tasks with granted units.
    WithoutOwed,
}

/// Checks that the runs of a case have reached each outcome. In some runs the survivor must get the
/// permit (the unit of the semaphore), and in others be refused. If the victim's death grants a
/// permit, too, the survivor must never be refused.
fn assert_all_reached(case: Case, tries: [u32; 2]) {
    assert_eq!(tries.map(|count| count > 0), [!case.is_granted_by_death, true], "not reached");
}

/// Returns how often the survivor was refused the permit, and how often it got it.
fn stop_everywhere(case: Case, is_watched: bool, protocol: Protocol) -> Result<[u32; 2], String> {
    let mut tries = [0; 2];
    for stores in 0..STORES_MAX {
        let mut world = World::new(case, is_watched);
        let is_stopped = world.stop(case, stores);
        if protocol == Protocol::WithoutOwed {
            forget_owed(&world.survivor);
        }
        let at = |what| format!("{}, looking {is_watched}, {stores} stores: {what}", case.name);
        tries[usize::from(world.try_next().map_err(at)?)] += 1;
        if !is_stopped {
            return Ok(tries);
        }
    }
    Err(format!("{} never ends", case.name))
}

#[test]
fn crash_in_a_grant_to_the_dead_leaves_the_permit_to_the_next_task() {
    for case in CASES {
        for is_watched in [false, true] {
            let tries = stop_everywhere(case, is_watched, Protocol::Whole).unwrap();
            println!("{}, looking {is_watched}: refused, not refused: {tries:?}", case.name);
            assert_all_reached(case, tries);
        }
    }
}

/// Kills the victim in a call that grants a semaphore unit to dead tasks. Then kills a second task
/// in `GETVAL`, which returns the unit of a dead task to the semaphore.
///
/// After both kills, the survivor tries to take the unit. If it is refused, recovery must leave no
/// free unit.
#[test]
fn crash_in_getval_after_a_grant_to_the_dead_leaves_the_permit_to_the_next_task() {
    for case in CASES {
        let (mut pairs, mut tries) = (0, [0; 2]);
        for stores in 0..STORES_MAX {
            let mut is_stopped = true;
            for more in 0..STORES_MAX {
                let mut world = World::new(case, true);
                is_stopped = world.stop(case, stores);
                let second = world.namespace.register(Cred::root(), 7).unwrap();
                let asked = crash::run(more, || second.sem_getval(world.id, 0));
                kill(second);
                let tried = world.try_next().unwrap_or_else(|what| {
                    panic!("{}, {stores} stores, {more} stores of GETVAL: {what}", case.name)
                });
                tries[usize::from(tried)] += 1;
                pairs += 1;
                if asked != Ended::Stopped {
                    break;
                }
            }
            if !is_stopped {
                break;
            }
        }
        println!("{}: {pairs} pairs of stops, refused, not refused: {tries:?}", case.name);
        assert_all_reached(case, tries);
    }
}

#[test]
fn crash_control_grants_without_owed_are_caught() {
    for is_watched in [false, true] {
        for case in CASES {
            let ended = stop_everywhere(case, is_watched, Protocol::WithoutOwed);
            println!("{}, looking {is_watched}: {ended:?}", case.name);
            assert!(ended.is_err(), "{}, looking {is_watched}: not noticed", case.name);
        }
    }
}
