//! Permits that are granted to waiting tasks that have died, by one who is stopped before every store.
//!
//! Nobody sleeps and nobody looks any more, as after a kill. Whatever was done of the call that grants, who tries
//! next has to be as right as who comes after everything was put in order: a permit that is there then was not
//! refused before. Nobody else cleans up in between.
//!
//! `RUSTFLAGS="--cfg corewalk_crash" cargo test --release -p corewalk-ipc --lib crash_`

use corewalk_base::primitives::crash::{self, Ended};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::io::Errno;

use super::SemBuf;
use super::audit::{audit, forget_logs, forget_owed};
use super::dead::wait_looking;
use crate::crash_models::kill;
use crate::{
    Capacity, Cred, GetFlags, IPC_PRIVATE, Namespace, NamespaceOptions, SemFlags, SemId, Task,
};

/// Stores of a call at most.
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

/// How a permit comes to be granted.
#[derive(Clone, Copy)]
struct Case {
    name: &'static str,
    /// Before somebody waits.
    prepare: fn(&World),
    /// How many have died.
    dead: u32,
    /// By the one who is stopped.
    act: fn(&Task, SemId) -> Result<(), Errno>,
    /// Whether its death grants the permit too.
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
    Case { name: "an operation, to the first of two", dead: 2, ..PLAIN },
    Case {
        name: "an operation, and a question",
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

    /// Has the victim act until it is stopped, and die.
    fn stop(&mut self, case: Case, stores: u64) -> bool {
        let victim = self.victim.take().unwrap();
        let ended = crash::run(stores, || (case.act)(&victim, self.id));
        kill(victim);
        ended == Ended::Stopped
    }

    /// Tries as the next one. Returns whether that got the permit, or what is wrong.
    fn try_next(&self) -> Result<bool, String> {
        let tried = self.survivor.semop(self.id, &[TRY]);
        self.namespace.recover().map_err(|errno| errno.to_string())?;
        audit(&self.survivor)?;
        let left = self.survivor.sem_getval(self.id, 0).map_err(|errno| errno.to_string())?;
        match (tried, left) {
            (Ok(()), 0) => Ok(true),
            (Err(Errno::AGAIN), 0) => Ok(false),
            _ => Err(format!("who tries gets {tried:?}, and then the value is {left}")),
        }
    }
}

/// What is left out.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Protocol {
    Whole,
    /// Nobody is said to have been granted anything.
    WithoutOwed,
}

/// Who tries was refused, where that can be, and was not.
fn assert_all_reached(case: Case, tries: [u32; 2]) {
    assert_eq!(tries.map(|count| count > 0), [!case.is_granted_by_death, true], "not reached");
}

/// Returns how often who tries was refused and not, or what is wrong.
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
fn crash_of_one_who_grants_to_the_dead_leaves_the_permit_to_who_tries() {
    for case in CASES {
        for is_watched in [false, true] {
            let tries = stop_everywhere(case, is_watched, Protocol::Whole).unwrap();
            println!("{}, looking {is_watched}: refused, not refused: {tries:?}", case.name);
            assert_all_reached(case, tries);
        }
    }
}

/// And who looks after the dead is stopped too.
#[test]
fn crash_of_one_who_asks_after_that_leaves_the_permit_to_who_tries() {
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
                    panic!("{}, {stores} stores, {more} of who asks: {what}", case.name)
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

/// A thread has left its wait, which was granted, and is stopped while it takes that back. Returns whether it was stopped
/// so soon, or what is wrong.
fn stop_who_takes_back(stores: u64, is_with_logs: bool) -> Result<bool, String> {
    let mut world = World::new(Case { dead: 0, ..PLAIN }, false);
    let (id, left) = (world.id, world.victim.take().unwrap());
    // One operation is taken back with its adjustment, one without.
    let sops = [SemBuf::new(0, -1, SemFlags::UNDO), SemBuf::new(1, -1, SemFlags::empty())];
    let node = wait_looking(&left, id, &sops, false);
    world.survivor.semop(id, &[UP, SemBuf::new(1, 1, SemFlags::empty())]).unwrap();
    let is_stopped = crash::run(stores, || super::abandon(&left, node)) == Ended::Stopped;
    if is_stopped {
        kill(left);
    } else {
        left.exit();
    }
    if !is_with_logs {
        forget_logs(&world.survivor);
    }
    world.namespace.recover().map_err(|errno| errno.to_string())?;
    audit(&world.survivor)?;
    match world.survivor.sem_getall(id).as_deref() {
        Ok([1, 1]) => Ok(is_stopped),
        other => Err(format!("{stores} stores: {other:?}")),
    }
}

#[test]
fn crash_of_one_who_takes_back_what_it_was_granted_leaves_all_of_it() {
    let stops = (0..STORES_MAX).take_while(|stores| stop_who_takes_back(*stores, true).unwrap());
    let count = stops.count();
    println!("{count} stops");
    assert!((10..STORES_MAX as usize).contains(&count));
}

#[test]
fn crash_control_of_a_taking_back_whose_log_is_not_looked_at_is_caught() {
    assert!((0..STORES_MAX).any(|stores| stop_who_takes_back(stores, false).is_err()));
}

#[test]
fn crash_control_of_grants_that_nobody_notes_is_caught() {
    for is_watched in [false, true] {
        for case in CASES {
            let ended = stop_everywhere(case, is_watched, Protocol::WithoutOwed);
            println!("{}, looking {is_watched}: {ended:?}", case.name);
            assert!(ended.is_err(), "{}, looking {is_watched}: not noticed", case.name);
        }
    }
}
