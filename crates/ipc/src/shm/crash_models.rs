//! Crash models of segments: a task is killed before each store of its call. Then the task that
//! runs recovery is killed before each store of the recovery.
//!
//! After each kill and recovery, the state must be that before the killed call, or that after it.
//! No attach record and no memory may be left without a segment. `Counted`, the source of memory in
//! this test, records in shared words which segments have memory. The task is also killed before
//! stores to these words.
//!
//! `RUSTFLAGS="--cfg corewalk_crash" cargo test --release -p corewalk-ipc --lib crash_`

use corewalk_base::primitives::Arc;
use corewalk_base::primitives::atomic::{AtomicU64, Ordering};
use corewalk_base::primitives::crash::{self, Ended};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::io::Errno;
use std::os::fd::OwnedFd;

use super::segment;
use crate::backing::{Access, Backing, SegmentName};
use crate::field::put;
use crate::{
    Capacity, Cred, GetFlags, IPC_PRIVATE, Limits, Namespace, NamespaceOptions, ShmFlags, ShmId,
    Task,
};

/// The keys of a new segment and of the existing one.
const NEW: i32 = 7;
const KEY: i32 = 8;
const SEGMENTS: u32 = 4;

/// The addresses of the victim's attaches.
const HERE: usize = 0x10_000;
const THERE: usize = 0x20_000;

/// The maximum number of stores of one call.
const STORES_MAX: u64 = 1000;

/// Records which segments have memory: one word for each slot, with one bit for each serial number.
struct Memory {
    file: Arc<OwnedFd>,
    there: [AtomicU64; SEGMENTS as usize],
}

#[derive(Clone)]
struct Counted(Arc<Memory>);

impl Counted {
    fn new() -> Self {
        let file = Arc::new(memfd_create("memory", MemfdFlags::CLOEXEC).unwrap());
        Self(Arc::new(Memory { file, there: [const { AtomicU64::new(0) }; SEGMENTS as usize] }))
    }

    fn word(&self, name: SegmentName) -> (&AtomicU64, u64) {
        (&self.0.there[name.index as usize], 1 << (name.serial % 64))
    }

    fn count(&self) -> u32 {
        // ORDERING: Relaxed. No other thread runs.
        self.0.there.iter().map(|word| word.load(Ordering::Relaxed).count_ones()).sum()
    }
}

impl Backing for Counted {
    fn create(&self, name: SegmentName, _size_bytes: u64) -> Result<(), Errno> {
        let (word, bit) = self.word(name);
        // ORDERING: Relaxed. The model runs one task at a time.
        word.fetch_or(bit, Ordering::Relaxed);
        Ok(())
    }

    fn open(&self, _name: SegmentName, _access: Access) -> Result<Arc<OwnedFd>, Errno> {
        Ok(Arc::clone(&self.0.file))
    }

    fn remove(&self, name: SegmentName) -> bool {
        let (word, bit) = self.word(name);
        // ORDERING: Relaxed. The model runs one task at a time.
        word.fetch_and(!bit, Ordering::Relaxed);
        true
    }
}

struct World {
    namespace: Namespace,
    memory: Counted,
    victim: Option<Task>,
    survivor: Task,
    /// A segment with [`KEY`].
    id: ShmId,
}

#[derive(Clone, Copy)]
struct Case {
    name: &'static str,
    is_forced: bool,
    prepare: fn(&mut World),
    act: fn(&Task, ShmId) -> Result<(), Errno>,
}

/// The state that another task sees.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Seen {
    /// For each segment the number of attaches and the mode, or the error of `IPC_STAT`.
    segments: Vec<Result<(u64, u16), Errno>>,
    keyed: [bool; 2],
    count: u32,
    pages: u64,
}

impl World {
    fn new(case: Case) -> Self {
        let capacity = Capacity { segments: SEGMENTS, attaches: 16, tasks: 8, ..Capacity::LEAST };
        let limits = Limits { is_shm_rmid_forced: case.is_forced, ..Limits::default() };
        let memory = Counted::new();
        let backing: Option<Box<dyn Backing>> = Some(Box::new(memory.clone()));
        let options = NamespaceOptions { capacity, limits, backing, ..<_>::default() };
        let file = memfd_create("crash", MemfdFlags::CLOEXEC).unwrap();
        let namespace = Namespace::open_fd(&file, options).unwrap();
        let task = |pid| namespace.register(Cred::root(), pid).unwrap();
        let (survivor, victim) = (task(1), task(2));
        let id = survivor.shmget(KEY, 5000, GetFlags::CREATE, 0o600).unwrap();
        let mut world = Self { namespace, memory, victim: Some(victim), survivor, id };
        (case.prepare)(&mut world);
        world
    }

    fn victim(&self) -> &Task {
        self.victim.as_ref().unwrap()
    }

    fn kill_victim(&mut self) {
        kill(self.victim.take().unwrap());
    }

    fn seen(&self) -> Seen {
        let totals = self.survivor.shm_totals().unwrap();
        let stat = |index| self.survivor.shm_stat_any(index).map(|it| (it.nattch, it.perm.mode));
        Seen {
            segments: (0..SEGMENTS as i32).map(stat).collect(),
            keyed: [NEW, KEY].map(|key| self.survivor.shmget(key, 0, GetFlags::empty(), 0).is_ok()),
            count: totals.segments,
            pages: totals.pages,
        }
    }

    fn settle(&self) -> Result<Seen, String> {
        self.namespace.recover().map_err(|errno| format!("recover: {errno}"))?;
        let seen = self.seen();
        self.audit()?;
        Ok(seen)
    }

    /// Checks that attach records and memory exist only for existing segments. The error describes
    /// the first fault.
    fn audit(&self) -> Result<(), String> {
        let shared = &*self.survivor.shared;
        let pool = shared.layout.attaches;
        pool.audit(&shared.region)?;
        let (objects, _) = self.survivor.shm_ids().audit()?;
        let mut used: Vec<u32> = pool.used(&shared.region).map(|(line, _)| line).collect();
        let _guard = self.survivor.shm_ids().lock().map_err(|errno| errno.to_string())?;
        let mut listed: Vec<u32> = objects
            .iter()
            .map(|object| object.index)
            .flat_map(|index| segment::list(shared, segment::line(shared, index)).iter())
            .collect();
        used.sort_unstable();
        listed.sort_unstable();
        if used != listed {
            return Err(format!("lines {used:?} are in use, but {listed:?} are records"));
        }
        let memory = self.memory.count() as usize;
        if memory != objects.len() {
            return Err(format!("{memory} segments have memory, but {} exist", objects.len()));
        }
        Ok(())
    }
}

/// Marks the process of the task as gone, then drops the `Task` with all later stores suppressed.
fn kill(task: Task) {
    crate::task_line::forget_process(&task.shared, task.owner.index);
    crash::run(0, || drop(task));
}

fn attach(task: &Task, id: ShmId, address: usize) -> Result<(), Errno> {
    task.shmat(id, address, ShmFlags::empty()).map(|mapping| mapping.attached_at(address))
}

/// The recovery protocol, or a weakened one.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Protocol {
    Whole,
    /// A control, which must fail: the locks of dead tasks count as free, so that recovery repairs
    /// no segment.
    WithoutLocks,
}

fn forget_locks(task: &Task) {
    let shared = &task.shared;
    for head in [shared.layout.shm_ids.head, shared.layout.attaches.head] {
        put(&shared.region.line(head)[0], 0);
    }
}

fn expected(case: Case) -> [Seen; 2] {
    [false, true].map(|acts| {
        let mut world = World::new(case);
        if acts {
            (case.act)(world.victim(), world.id).unwrap();
        }
        world.kill_victim();
        world.settle().unwrap_or_else(|what| panic!("{}: {what}", case.name))
    })
}

fn stop_everywhere(case: Case, protocol: Protocol) -> Result<u64, String> {
    let expected = expected(case);
    for stores in 0..STORES_MAX {
        let mut world = World::new(case);
        let ended = crash::run(stores, || (case.act)(world.victim(), world.id));
        world.kill_victim();
        if protocol == Protocol::WithoutLocks {
            forget_locks(&world.survivor);
        }
        let at = |what: String| format!("{}, stopped after {stores} stores: {what}", case.name);
        let seen = world.settle().map_err(at)?;
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
                second.shm_totals().ok();
                crate::recover::reap_all(&second.shared, second.owner).ok();
            });
            kill(second);
            let at = |what: String| {
                format!("{}, after {stores} stores, and {more} of recovery: {what}", case.name)
            };
            let seen = world.settle().map_err(at)?;
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

const PLAIN: Case = Case { name: "", is_forced: false, prepare: |_| {}, act: |_, _| Ok(()) };

const CASES: [Case; 9] = [
    Case {
        name: "a new segment",
        act: |task, _| task.shmget(NEW, 4096, GetFlags::CREATE, 0o600).map(drop),
        ..PLAIN
    },
    Case { name: "an attach", act: |task, id| attach(task, id, HERE), ..PLAIN },
    Case {
        name: "an attach in place of another",
        prepare: |world| {
            let other = world.survivor.shmget(IPC_PRIVATE, 4096, GetFlags::empty(), 0o600).unwrap();
            attach(world.victim(), other, HERE).unwrap();
            world.survivor.shm_rmid(other).unwrap();
        },
        act: |task, id| {
            task.shmat(id, HERE, ShmFlags::REMAP).map(|mapping| mapping.attached_at(HERE))
        },
        ..PLAIN
    },
    Case {
        name: "one of two detaches",
        prepare: |world| {
            attach(world.victim(), world.id, HERE).unwrap();
            attach(world.victim(), world.id, THERE).unwrap();
        },
        act: |task, _| task.shmdt(HERE).map(drop),
        ..PLAIN
    },
    Case {
        name: "the last detach of a marked segment",
        prepare: |world| {
            attach(world.victim(), world.id, HERE).unwrap();
            world.survivor.shm_rmid(world.id).unwrap();
        },
        act: |task, _| task.shmdt(HERE).map(drop),
        ..PLAIN
    },
    Case {
        name: "a mark",
        prepare: |world| {
            attach(&world.survivor, world.id, HERE).unwrap();
            // This key has the hash of the first segment's key, so the hash chain contains two
            // segments.
            world.survivor.shmget(KEY + SEGMENTS as i32, 1, GetFlags::CREATE, 0o600).unwrap();
        },
        act: |task, id| task.shm_rmid(id),
        ..PLAIN
    },
    Case { name: "a removal", act: |task, id| task.shm_rmid(id), ..PLAIN },
    Case {
        name: "the end of one who made and attached, with forced removal",
        is_forced: true,
        prepare: |world| {
            attach(world.victim(), world.id, HERE).unwrap();
            world.victim().shmget(NEW, 4096, GetFlags::CREATE, 0o600).unwrap();
        },
        act: |task, _| super::exit_shm(task),
    },
    Case {
        name: "reaping one who made and attached, with forced removal",
        is_forced: true,
        prepare: |world| {
            let dead = world.namespace.register(Cred::root(), 4).unwrap();
            attach(&dead, world.id, HERE).unwrap();
            dead.shmget(NEW, 4096, GetFlags::CREATE, 0o600).unwrap();
            kill(dead);
        },
        act: |task, _| crate::recover::reap_all(&task.shared, task.owner).map(drop),
    },
];

#[test]
fn crash_on_segments_before_every_store_leaves_all_of_a_call_or_nothing() {
    for case in CASES {
        let stores = stop_everywhere(case, Protocol::Whole).unwrap();
        println!("{}: {stores} stores", case.name);
    }
}

#[test]
fn crash_of_recovery_of_segments_before_every_store_leaves_it_to_the_next() {
    for case in CASES {
        let stops = stop_recovery_everywhere(case).unwrap();
        println!("{}: {stops} pairs of stops", case.name);
    }
}

#[test]
fn crash_control_on_segments_without_locks_that_change_hands_is_caught() {
    let fails = |case: &Case| stop_everywhere(*case, Protocol::WithoutLocks).is_err();
    let failing: Vec<&str> = CASES.into_iter().filter(fails).map(|case| case.name).collect();
    println!("caught by {failing:?}");
    for name in ["a new segment", "an attach", "the last detach of a marked segment", "a mark"] {
        assert!(failing.contains(&name), "the case {name} does not fail without the locks");
    }
}
