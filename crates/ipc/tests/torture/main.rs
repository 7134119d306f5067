//! Processes that are killed by SIGKILL at any moment, many times, while others go on.
//!
//! Children work on one namespace in every way there is; one of them at a time is killed a moment after
//! its start, and replaced. After some kills all are killed, and what is left is checked. Semaphores, messages
//! and segments have a namespace and a file of this directory each, which says what has to be true; all of them
//! have children that clean up after others, so that recovery is killed too. No call takes longer than [`STUCK`],
//! except waits that nobody ends, and who waits so is killed long before.
//!
//! Each has a control, whose children leave out one step: that has to be noticed.
//!
//! `cargo test --release -p corewalk-ipc --test torture -- 20000` kills 20,000 times.
//!
//! Source: the torture of the undo protocol in research/ipc 5.1.

mod msg;
mod sem;
mod shm;

use corewalk_sync::Region;
use corewalk_sync::primitives::atomic::{AtomicU64, Ordering};
use corewalk_testkit::fork::Forked;
use corewalk_testkit::rng::{ReportSeed, Rng, Seed};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

/// Kills of a run without an argument, which is bounded by [`SHORT`] for each kind too.
const KILLS: usize = 900;
const SHORT: Duration = Duration::from_secs(10);

/// Kills between two checks.
const EPOCH: usize = 40;
const CHILDREN: usize = 2;
/// Places for children: one that is being replaced has another than its successor.
const PLACES: usize = 2 * CHILDREN;
const STUCK: Duration = Duration::from_secs(20);

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    Real,
    /// A step is left out.
    Control,
}

/// What children work on.
pub(crate) trait Arena {
    /// Makes a namespace with what is checked.
    fn new(mode: Mode) -> Self;

    /// What the child in a place does until it is killed.
    fn work(&self, place: usize, rng: Rng);

    /// Notes that the child in a place was killed.
    fn note_kill(&mut self, _place: usize) {}

    /// Checks what is left once all children are gone; returns what is wrong.
    fn check(&mut self) -> Result<(), String>;

    /// Returns the word in which a child counts what it has done.
    fn steps(&self, place: usize) -> &AtomicU64;
}

/// Returns memory that children share.
pub(crate) fn shared_lines(lines: u32) -> Region {
    let words = memory("shared");
    ftruncate(&words, u64::from(lines) * 64).expect("room");
    Region::shared(&words, lines).expect("a mapping")
}

pub(crate) fn memory(name: &str) -> OwnedFd {
    memfd_create(name, MemfdFlags::CLOEXEC).expect("a memfd")
}

/// A child that is there.
struct Child {
    forked: Forked,
    place: usize,
    /// What it had done when it was seen last, and when that changed.
    seen: (u64, Instant),
}

impl Child {
    fn start(arena: &impl Arena, place: usize, rng: Rng) -> Self {
        let forked = Forked::start(|| arena.work(place, rng)).expect("a child");
        Self { forked, place, seen: (0, Instant::now()) }
    }

    /// Returns what is wrong with it.
    fn look(&mut self, arena: &impl Arena) -> Result<(), String> {
        if self.forked.try_wait().map_err(|error| error.to_string())?.is_some() {
            return Err("a child ended by itself".to_owned());
        }
        // ORDERING: Relaxed. A sign of life.
        let steps = arena.steps(self.place).load(Ordering::Relaxed);
        if steps != self.seen.0 {
            self.seen = (steps, Instant::now());
        } else if self.seen.1.elapsed() > STUCK {
            return Err(format!("the child in place {} is stuck in a call", self.place));
        }
        Ok(())
    }

    fn kill(self, arena: &mut impl Arena) -> Result<(), String> {
        self.forked.kill().map_err(|error| error.to_string())?;
        arena.note_kill(self.place);
        Ok(())
    }
}

/// Kills `kills` times, or until `limit`; returns how often it was, or what is wrong.
fn torture<A: Arena>(
    kills: usize,
    limit: Duration,
    mode: Mode,
    rng: &mut Rng,
) -> Result<usize, String> {
    let mut arena = A::new(mode);
    let start = Instant::now();
    let mut killed = 0;
    while killed < kills && start.elapsed() < limit {
        let child =
            |place| Child::start(&arena, place, rng.fork(rng.clone().next_u64() ^ place as u64));
        let mut children: Vec<Child> = (0..CHILDREN).map(child).collect();
        for _ in 0..EPOCH {
            std::hint::black_box(rng.next_u64());
            pause(Duration::from_micros(100 + rng.below(2900)));
            children.iter_mut().try_for_each(|child| child.look(&arena))?;
            let child = &mut children[rng.index(CHILDREN)];
            let place = (child.place + CHILDREN) % PLACES;
            let fresh = Child::start(&arena, place, rng.fork(killed as u64));
            std::mem::replace(child, fresh).kill(&mut arena)?;
            killed += 1;
        }
        killed += children.len();
        children.into_iter().try_for_each(|child| child.kill(&mut arena))?;
        arena.check().map_err(|what| format!("after {killed} kills: {what}"))?;
    }
    Ok(killed)
}

fn pause(time: Duration) {
    let time = rustix::time::Timespec { tv_sec: 0, tv_nsec: i64::from(time.subsec_nanos()) };
    // Shorter than it should be is as good.
    let _slept = rustix::thread::nanosleep(&time);
}

/// Kills children at work on one kind, and then those of its control; returns how many of the former.
fn run<A: Arena>(name: &str, kills: usize, limit: Duration, rng: &mut Rng) -> usize {
    let start = Instant::now();
    let killed = torture::<A>(kills, limit, Mode::Real, rng);
    let killed = killed.unwrap_or_else(|what| panic!("{name}: {what}"));
    let took = start.elapsed().as_secs_f64();
    println!("{name}: {killed} kills in {took:.1} s: nothing lost, nobody stuck");
    let noticed = torture::<A>(2000, 3 * SHORT, Mode::Control, rng);
    println!("{name}: control: {noticed:?}");
    assert!(noticed.is_err(), "{name}: the check notices nothing");
    killed
}

fn main() {
    let wanted: Option<usize> = std::env::args().skip(1).find_map(|arg| arg.parse().ok());
    let limit = wanted.map_or(SHORT, |_| Duration::from_secs(400));
    let kills = wanted.unwrap_or(KILLS);
    let seed = Seed::choose();
    let report = ReportSeed::new(seed);
    let mut rng = Rng::new(seed);
    let killed = run::<sem::Sets>("semaphores", kills.div_ceil(2), limit, &mut rng)
        + run::<msg::Queues>("messages", (kills * 3).div_ceil(10), limit, &mut rng)
        + run::<shm::Segments>("segments", kills.div_ceil(5), limit, &mut rng);
    println!("{killed} kills");
    if wanted.is_some_and(|wanted| killed < wanted) {
        panic!("only {killed} kills in the time there is");
    }
    drop(report);
}
