//! Processes that are killed by SIGKILL at any moment, many times, while others go on.
//!
//! Children work on one namespace in every way there is; one of them at a time is killed a moment after
//! its start, and replaced. After some kills all are killed, and what is left is checked:
//!
//! - operations of several semaphores have moved units, and none is lost or made;
//! - who waited for units and was killed has taken none, and given none;
//! - adjustments have brought back the values from before;
//! - sets that were made and removed all the time leave room for as many as before;
//! - no call takes longer than [`STUCK`], except waits that nobody ends, of which there are none.
//!
//! The control moves units by two calls of one operation each: a kill between them has to be noticed.
//!
//! `cargo test --release -p corewalk-ipc --test torture -- 20000` kills 20,000 times.
//!
//! Source: the torture of the undo protocol in research/ipc 5.1.

use corewalk_ipc::{
    Capacity, Cred, IPC_CREAT, IPC_NOWAIT, IPC_PRIVATE, Namespace, NamespaceOptions, SEM_UNDO,
    SemBuf, Task,
};
use corewalk_sync::Region;
use corewalk_sync::primitives::atomic::Ordering;
use corewalk_testkit::fork::Forked;
use corewalk_testkit::rng::{ReportSeed, Rng, Seed};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::io::Errno;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

/// Kills of a run without an argument, which is bounded by [`SHORT`] too.
const KILLS: usize = 600;
const SHORT: Duration = Duration::from_secs(10);

/// Kills between two checks.
const EPOCH: usize = 40;
const CHILDREN: usize = 2;
const UNITS: u16 = 50;
const SEMS: u16 = 4;
const STUCK: Duration = Duration::from_secs(20);

/// Keys of what all use: units that are moved, values with adjustments, units that are waited for.
const MOVES: i32 = 1;
const UNDO: i32 = 2;
const WAITS: i32 = 3;
const CHURN: i32 = 4;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    Real,
    /// Units are moved by two calls.
    Control,
}

struct Arena {
    file: OwnedFd,
    progress: Region,
    mode: Mode,
}

fn options() -> NamespaceOptions {
    let capacity =
        Capacity { sets: 64, sems: 512, undos: 2048, waits: 512, tasks: 64, ..Capacity::LEAST };
    NamespaceOptions { capacity, ..NamespaceOptions::default() }
}

impl Arena {
    fn new(mode: Mode) -> Self {
        let memory = |name| memfd_create(name, MemfdFlags::CLOEXEC).expect("a memfd");
        let (file, words) = (memory("torture"), memory("progress"));
        ftruncate(&words, 4096).expect("room");
        let progress = Region::shared(&words, 64).expect("a mapping");
        let arena = Self { file, progress, mode };
        let task = arena.task();
        for key in [MOVES, UNDO, WAITS] {
            let id = task.semget(key, i32::from(SEMS), IPC_CREAT | 0o600).expect("a set");
            task.sem_setall(id, &[UNITS; SEMS as usize]).expect("values");
        }
        arena
    }

    fn namespace(&self) -> Namespace {
        Namespace::open_fd(&self.file, options()).expect("the namespace")
    }

    fn task(&self) -> Task {
        self.namespace().register(Cred::root(), std::process::id()).expect("a task")
    }

    fn steps(&self, child: usize) -> u64 {
        // ORDERING: Relaxed. A sign of life.
        self.progress.line(1 + child as u32)[0].load(Ordering::Relaxed)
    }

    fn start(&self, child: usize, rng: Rng) -> Forked {
        Forked::start(|| self.work(child, rng)).expect("a child")
    }

    /// What a child does until it is killed.
    fn work(&self, child: usize, mut rng: Rng) {
        let mut task = self.task();
        // What takes long would be all that a kill ever meets: so most children do one thing only.
        let chores = [0..64, 0..24, 24..44, 0..44, 44..56, 56..62];
        let chores = rng.pick(&chores).clone();
        let mut ids = [MOVES, UNDO, WAITS].map(|key| task.semget(key, 0, 0).expect("the set"));
        loop {
            // ORDERING: Relaxed. A sign of life.
            self.progress.line(1 + child as u32)[0].fetch_add(1, Ordering::Relaxed);
            let done = match rng.range(chores.clone()) {
                0..24 => self.move_unit(&task, ids[0], &mut rng),
                24..44 => with_undo(&task, ids[1], &mut rng),
                44..56 => wait(&task, ids[2], &mut rng),
                56..62 => churn(&task, &mut rng),
                62 => task.semget(MOVES, 0, 0).map(|id| ids[0] = id),
                _ => {
                    // A process that ends well, and who cleans up after others.
                    self.namespace().recover().expect("recovery");
                    task = self.task();
                    Ok(())
                }
            };
            let is_good = matches!(
                done,
                Ok(()) | Err(Errno::AGAIN | Errno::RANGE | Errno::IDRM | Errno::INVAL)
            );
            assert!(is_good, "{done:?}");
        }
    }

    fn move_unit(&self, task: &Task, id: i32, rng: &mut Rng) -> Result<(), Errno> {
        let [from, to, over] = two_and_one(rng);
        let take = SemBuf::new(from, -1, IPC_NOWAIT);
        let give = SemBuf::new(to, 1, 0);
        if self.mode == Mode::Control {
            return task.semop(id, &[take]).and_then(|()| task.semop(id, &[give]));
        }
        match rng.below(3) {
            0 => task.semop(id, &[take, give]),
            1 => task.semop(id, &[give, take]),
            // Three, with a visit of a third.
            _ => task.semop(id, &[take, SemBuf::new(over, 1, 0), give, SemBuf::new(over, -1, 0)]),
        }
    }

    /// Checks what is left once all children are gone.
    fn check(&self) -> Result<(), String> {
        let task = self.task();
        let failed = |errno: Errno| format!("a check failed with {errno}");
        self.namespace().recover().map_err(failed)?;
        let wanted = u64::from(UNITS) * u64::from(SEMS);
        for (name, key) in [("moved", MOVES), ("waited for", WAITS), ("undone", UNDO)] {
            let id = task.semget(key, 0, 0).map_err(failed)?;
            let values = task.sem_getall(id).map_err(failed)?;
            let sum: u64 = values.iter().map(|value| u64::from(*value)).sum();
            let is_back = key != UNDO || values.iter().all(|value| *value == UNITS);
            if sum != wanted || !is_back {
                return Err(format!("{name}: {values:?} are {sum}, not {wanted}"));
            }
            let waiting = (0..i32::from(SEMS)).map(|num| task.sem_getncnt(id, num));
            if waiting.collect::<Result<Vec<_>, _>>().map_err(failed)? != [0; SEMS as usize] {
                return Err("somebody who is dead waits".to_owned());
            }
        }
        self.check_room(&task).map_err(|errno| format!("room is lost: {errno}"))
    }

    /// Nothing is lost if all of it can be had again.
    fn check_room(&self, task: &Task) -> Result<(), Errno> {
        for index in 0..64 {
            if let Ok(stat) = task.sem_stat_any(index)
                && ![MOVES, UNDO, WAITS].contains(&stat.perm.key)
            {
                task.sem_rmid(stat.id)?;
            }
        }
        let totals = task.sem_totals()?;
        assert_eq!((totals.sets, totals.sems), (3, 3 * u64::from(SEMS)), "counts are wrong");
        let ids: Vec<i32> =
            (0..61).map(|_| task.semget(IPC_PRIVATE, 4, 0o600)).collect::<Result<_, _>>()?;
        ids.into_iter().try_for_each(|id| task.sem_rmid(id))
    }
}

fn two_and_one(rng: &mut Rng) -> [u16; 3] {
    let mut nums = [0, 1, 2, 3];
    rng.shuffle(&mut nums);
    [nums[0], nums[1], nums[2]]
}

/// Operations that are all undone at the end of their process.
fn with_undo(task: &Task, id: i32, rng: &mut Rng) -> Result<(), Errno> {
    let [one, other, _] = two_and_one(rng);
    let op = rng.below(5) as i16 - 2;
    let first = SemBuf::new(one, op, SEM_UNDO | IPC_NOWAIT);
    match rng.below(3) {
        0 => task.semop(id, &[first, SemBuf::new(other, 1 - op, SEM_UNDO | IPC_NOWAIT)]),
        _ => task.semop(id, &[first]),
    }
}

/// Waits for many units at once, in one place, and puts as many in another.
fn wait(task: &Task, id: i32, rng: &mut Rng) -> Result<(), Errno> {
    let [from, to, _] = two_and_one(rng);
    let count = 1 + rng.below(u64::from(UNITS) * 2) as i16;
    let sops = [SemBuf::new(from, -count, 0), SemBuf::new(to, count, 0)];
    task.semtimedop(id, &sops, Some(Duration::from_micros(rng.below(400))))
}

/// Makes, uses and removes sets.
fn churn(task: &Task, rng: &mut Rng) -> Result<(), Errno> {
    let key = CHURN + rng.below(3) as i32;
    let id = task.semget(key, 3, IPC_CREAT | 0o600)?;
    let flags = if rng.chance(1, 2) { SEM_UNDO } else { 0 };
    let down = [SemBuf::new(rng.below(3) as u16, -1, flags)];
    match rng.below(5) {
        0 => task.sem_rmid(id),
        1 => task.sem_setall(id, &[1, 2, 3]),
        2 => task.sem_set(id, 0, 0, 0o600),
        3 => task.semtimedop(id, &down, Some(Duration::from_micros(rng.below(200)))),
        _ => task.semop(id, &[SemBuf::new(rng.below(3) as u16, 1, flags)]),
    }
}

/// Kills `kills` times, or until `limit`; returns how often it was, or what is wrong.
fn torture(kills: usize, limit: Duration, mode: Mode, rng: &mut Rng) -> Result<usize, String> {
    let arena = Arena::new(mode);
    let start = Instant::now();
    let mut killed = 0;
    while killed < kills && start.elapsed() < limit {
        let mut children: Vec<Forked> = (0..CHILDREN)
            .map(|child| arena.start(child, rng.fork(rng.clone().next_u64())))
            .collect();
        let mut seen = [(0, Instant::now()); CHILDREN];
        for _ in 0..EPOCH {
            std::hint::black_box(rng.next_u64());
            pause(Duration::from_micros(100 + rng.below(2900)));
            let child = rng.index(CHILDREN);
            for (at, forked) in children.iter_mut().enumerate() {
                if forked.try_wait().map_err(|error| error.to_string())?.is_some() {
                    return Err("a child ended by itself".to_owned());
                }
                let steps = arena.steps(at);
                if steps != seen[at].0 {
                    seen[at] = (steps, Instant::now());
                } else if seen[at].1.elapsed() > STUCK {
                    return Err(format!("child {at} is stuck in a call"));
                }
            }
            let fresh = arena.start(child, rng.fork(killed as u64));
            let old = std::mem::replace(&mut children[child], fresh);
            old.kill().map_err(|error| error.to_string())?;
            seen[child].1 = Instant::now();
            killed += 1;
        }
        killed += children.len();
        drop(children);
        arena.check().map_err(|what| format!("after {killed} kills: {what}"))?;
    }
    Ok(killed)
}

fn pause(time: Duration) {
    let time = rustix::time::Timespec { tv_sec: 0, tv_nsec: i64::from(time.subsec_nanos()) };
    // Shorter than it should be is as good.
    let _slept = rustix::thread::nanosleep(&time);
}

fn main() {
    let wanted: Option<usize> = std::env::args().skip(1).find_map(|arg| arg.parse().ok());
    let (kills, limit) = wanted.map_or((KILLS, SHORT), |kills| (kills, Duration::from_secs(600)));
    let seed = Seed::choose();
    let report = ReportSeed::new(seed);
    let mut rng = Rng::new(seed);
    let start = Instant::now();
    let killed =
        torture(kills, limit, Mode::Real, &mut rng).unwrap_or_else(|what| panic!("{what}"));
    println!(
        "{killed} kills in {:.1} s: nothing lost, nobody stuck",
        start.elapsed().as_secs_f64()
    );
    if wanted.is_some_and(|wanted| killed < wanted) {
        panic!("only {killed} kills in the time there is");
    }
    let noticed = torture(2000, 3 * SHORT, Mode::Control, &mut rng);
    println!("control, with two calls instead of one: {noticed:?}");
    assert!(noticed.is_err(), "the check notices nothing");
    drop(report);
}
