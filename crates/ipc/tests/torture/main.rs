//! Processes that are killed by SIGKILL at any moment, many times, while others go on.
//!
//! Children work on one namespace in every way there is; one of them at a time is killed a moment after
//! its start, and replaced. After some kills all are killed, and what is left is checked. Semaphores, permits,
//! messages and segments have a namespace and a file of this directory each, which says what has to be true; all
//! of them have children that clean up after others, so that recovery is killed too. No call takes longer than
//! [`STUCK`], which is twice the time for which a call waits for a lock, except waits that nobody ends, and who waits
//! so is killed long before. Of permits one child is killed last, and must not wait for ever for what the dead had.
//!
//! A child notes what it is in the middle of. A run of a wanted number of kills must have met each [`Chore`].
//!
//! Each has a control, whose children leave out one step: that has to be noticed.
//!
//! `cargo test --release -p corewalk-ipc --test torture -- 20000` kills 20,000 times.
//!
//! Source: the torture of the undo protocol in research/ipc 5.1.

mod msg;
mod permit;
mod sem;
mod shm;

use corewalk_base::Region;
use corewalk_base::primitives::atomic::{AtomicU64, Ordering};
use corewalk_testkit::fork::Forked;
use corewalk_testkit::rng::{ReportSeed, Rng, Seed};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use std::collections::BTreeMap;
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

/// What a child can be in the middle of when it is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Chore {
    /// One operation of a semaphore.
    Single = 1,
    /// Several.
    Several,
    /// One or two with `SEM_UNDO`.
    Undo,
    Wait,
    /// A semaphore was taken with `SEM_UNDO`, and is not given back yet.
    Hold,
    Send,
    Receive,
    Attach,
    Detach,
    Fork,
    /// What makes an object, and `IPC_SET`.
    Make,
    Rmid,
    /// Cleaning up after others.
    Recover,
    /// The end of a task.
    Exit,
}

impl Chore {
    const ALL: [Self; 14] = [
        Self::Single,
        Self::Several,
        Self::Undo,
        Self::Wait,
        Self::Hold,
        Self::Send,
        Self::Receive,
        Self::Attach,
        Self::Detach,
        Self::Fork,
        Self::Make,
        Self::Rmid,
        Self::Recover,
        Self::Exit,
    ];

    /// Notes in the word of a child that it begins with this.
    pub(crate) fn begin(self, word: &AtomicU64) {
        // ORDERING: Relaxed. What a process has stored is there when it is killed.
        word.store(self as u64, Ordering::Relaxed);
    }
}

/// How many children were killed in the middle of what.
pub(crate) type Kills = BTreeMap<Chore, usize>;

/// What children work on.
pub(crate) trait Arena {
    /// What they do. A kill must have hit each.
    const CHORES: &'static [Chore];

    /// One child more works in place [`PLACES`] until the others are dead, and has to get on then.
    const IS_LAST_PATIENT: bool = false;

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

    /// Returns the word in which a child notes its chore.
    fn chore(&self, place: usize) -> &AtomicU64;
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
        // ORDERING: Relaxed. The child is not there yet.
        arena.chore(place).store(0, Ordering::Relaxed);
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

    fn kill(self, arena: &mut impl Arena, kills: &mut Kills) -> Result<(), String> {
        self.forked.kill().map_err(|error| error.to_string())?;
        arena.note_kill(self.place);
        // ORDERING: Relaxed. Its process has ended.
        let noted = arena.chore(self.place).load(Ordering::Relaxed);
        let chore = Chore::ALL.into_iter().find(|chore| *chore as u64 == noted);
        chore.into_iter().for_each(|chore| *kills.entry(chore).or_default() += 1);
        Ok(())
    }

    /// Returns once it has done something more; none of the others is there.
    fn get_on(&mut self, arena: &impl Arena, stuck: Duration) -> Result<(), String> {
        let steps = arena.steps(self.place);
        let done = || {
            // ORDERING: Relaxed. A sign of life.
            steps.load(Ordering::Relaxed)
        };
        // The first may have been on its way.
        let (wanted, start) = (done() + 2, Instant::now());
        while done() < wanted {
            self.look(arena)?;
            if start.elapsed() > stuck {
                return Err("what the dead had is not given to who waits for it".to_owned());
            }
            pause(Duration::from_millis(1));
        }
        Ok(())
    }
}

/// Kills `kills` times, or until `limit`; returns how often it was and notes in the middle of what, or returns what
/// is wrong.
fn torture<A: Arena>(
    kills: usize,
    limit: Duration,
    mode: Mode,
    rng: &mut Rng,
    met: &mut Kills,
) -> Result<usize, String> {
    let mut arena = A::new(mode);
    let start = Instant::now();
    let mut killed = 0;
    // What is to be noticed may be noticed sooner.
    let stuck = if mode == Mode::Real { STUCK } else { Duration::from_secs(2) };
    while killed < kills && start.elapsed() < limit {
        let child =
            |place| Child::start(&arena, place, rng.fork(rng.clone().next_u64() ^ place as u64));
        let mut children: Vec<Child> = (0..CHILDREN).map(child).collect();
        let mut last = A::IS_LAST_PATIENT.then(|| child(PLACES));
        for _ in 0..EPOCH {
            std::hint::black_box(rng.next_u64());
            pause(Duration::from_micros(100 + rng.below(2900)));
            children.iter_mut().chain(&mut last).try_for_each(|child| child.look(&arena))?;
            let child = &mut children[rng.index(CHILDREN)];
            let place = (child.place + CHILDREN) % PLACES;
            let fresh = Child::start(&arena, place, rng.fork(killed as u64));
            std::mem::replace(child, fresh).kill(&mut arena, met)?;
            killed += 1;
        }
        killed += children.len();
        children.into_iter().try_for_each(|child| child.kill(&mut arena, met))?;
        if let Some(mut last) = last.take() {
            last.get_on(&arena, stuck)?;
            last.kill(&mut arena, met)?;
            killed += 1;
        }
        arena.check().map_err(|what| format!("after {killed} kills: {what}"))?;
    }
    Ok(killed)
}

fn pause(time: Duration) {
    let time = rustix::time::Timespec { tv_sec: 0, tv_nsec: i64::from(time.subsec_nanos()) };
    // Shorter than it should be is as good.
    let _slept = rustix::thread::nanosleep(&time);
}

/// Returns a chore in the middle of which nobody was killed.
fn unmet(chores: &[Chore], met: &Kills) -> Option<Chore> {
    chores.iter().copied().find(|chore| !met.contains_key(chore))
}

/// Kills children at work on one kind, and then those of its control; returns how many of the former.
fn run<A: Arena>(name: &str, kills: usize, limit: Option<Duration>, rng: &mut Rng) -> usize {
    let (start, mut met) = (Instant::now(), Kills::new());
    let killed = torture::<A>(kills, limit.unwrap_or(SHORT), Mode::Real, rng, &mut met);
    let killed = killed.unwrap_or_else(|what| panic!("{name}: {what}"));
    let took = start.elapsed().as_secs_f64();
    println!("{name}: {killed} kills in {took:.1} s: nothing lost, nobody stuck");
    println!("{name}: in the middle of {met:?}");
    // A few kills need not meet all.
    let unmet = unmet(A::CHORES, &met).filter(|_| limit.is_some());
    assert_eq!(unmet, None, "{name}: nobody was killed in the middle of this");
    let noticed = torture::<A>(2000, 3 * SHORT, Mode::Control, rng, &mut Kills::new());
    println!("{name}: control: {noticed:?}");
    assert!(noticed.is_err(), "{name}: the check notices nothing");
    killed
}

fn main() {
    let wanted: Option<usize> = std::env::args().skip(1).find_map(|arg| arg.parse().ok());
    let limit = wanted.map(|_| Duration::from_secs(400));
    let kills = wanted.unwrap_or(KILLS);
    let seed = Seed::choose();
    let report = ReportSeed::new(seed);
    let mut rng = Rng::new(seed);
    let met = Kills::from([(Chore::Undo, 1)]);
    assert_eq!(unmet(&[Chore::Undo, Chore::Rmid], &met), Some(Chore::Rmid), "control");
    let part = |percent: usize| (kills * percent).div_ceil(100);
    let killed = run::<sem::Sets>("semaphores", part(45), limit, &mut rng)
        + run::<permit::Permits>("permits", part(5), limit, &mut rng)
        + run::<msg::Queues>("messages", part(30), limit, &mut rng)
        + run::<shm::Segments>("segments", part(20), limit, &mut rng);
    println!("{killed} kills");
    if wanted.is_some_and(|wanted| killed < wanted) {
        panic!("only {killed} kills in the time there is");
    }
    drop(report);
}
