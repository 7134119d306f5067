//! Torture test: processes that use one namespace are killed by `SIGKILL` at random moments, and
//! the namespace must stay consistent.
//!
//! Children make all kinds of calls on one namespace. The test kills one child at a time, a moment
//! after its start, and starts another in its place. After some kills it kills all children, and
//! checks the namespace. The children also recover the namespace, so the kills hit recovery too.
//!
//! There are four arenas (kinds of tests): semaphores, one permit, messages and segments. Each
//! arena has its own namespace, and a file in this directory that lists the properties that must
//! hold.
//!
//! No child may be in one call for longer than [`STUCK`], which is twice the time limit for a lock.
//! A call may wait longer for another child, but the test kills children long before that.
//!
//! In the arena of the permit (one semaphore unit), the test kills one child after all others. This
//! last child must get the permit that a dead child held.
//!
//! Each child notes which kind of work it does at the moment (its [`Chore`]). If the number of
//! kills is given as an argument, the test fails if some kind of work was hit by no kill.
//!
//! Each test also runs as a control: the children leave out one step on purpose, and the check must
//! fail.
//!
//! `cargo test --release -p corewalk-ipc --test torture -- 20000` kills children 20,000 times.

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

/// The number of children that a run without an argument kills. The run ends earlier after the time
/// [`SHORT`] for each arena.
const KILLS: usize = 900;
const SHORT: Duration = Duration::from_secs(10);

/// Kills of single children between two checks.
const EPOCH: usize = 40;
const CHILDREN: usize = 2;
/// The number of places. A place is a number that each living child has for itself. A killed child
/// and its replacement overlap for a moment, so they have different places.
const PLACES: usize = 2 * CHILDREN;
const STUCK: Duration = Duration::from_secs(20);

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    Real,
    /// A control run: the children leave out one step, and the check must fail.
    Control,
}

/// The kind of work in which a child may be killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Chore {
    /// A call of one semaphore operation.
    Single = 1,
    /// A call of several semaphore operations.
    Several,
    /// A call of one or two operations with `SEM_UNDO`.
    Undo,
    Wait,
    /// The child holds a semaphore that it took with `SEM_UNDO`.
    Hold,
    Send,
    Receive,
    Attach,
    Detach,
    Fork,
    /// A call that makes an object, or `IPC_SET`.
    Make,
    Rmid,
    /// Recovery of the namespace.
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

    pub(crate) fn begin(self, word: &AtomicU64) {
        // ORDERING: Relaxed. The test reads the word after it has waited for the death of the
        // child.
        word.store(self as u64, Ordering::Relaxed);
    }
}

/// The number of children that were killed in each chore.
pub(crate) type Kills = BTreeMap<Chore, usize>;

/// One kind of test: a namespace, the work of the children in it, and the check of the namespace.
pub(crate) trait Arena {
    /// The chores of the children. Kills must hit each of them.
    const CHORES: &'static [Chore];

    /// True if the test starts one additional child, in place [`PLACES`], and kills it after all
    /// others. Once the others are dead, this last child must complete further steps.
    const IS_LAST_PATIENT: bool = false;

    fn new(mode: Mode) -> Self;

    fn work(&self, place: usize, rng: Rng);

    /// Notes that the child in place `place` was killed.
    fn note_kill(&mut self, _place: usize) {}

    fn check(&mut self) -> Result<(), String>;

    /// Returns the word in which a child counts its steps.
    fn steps(&self, place: usize) -> &AtomicU64;

    /// Returns the word in which a child notes its chore.
    fn chore(&self, place: usize) -> &AtomicU64;
}

/// Returns memory that this process and its children share.
pub(crate) fn shared_lines(lines: u32) -> Region {
    let words = memory("shared");
    ftruncate(&words, u64::from(lines) * 64).expect("room");
    Region::shared(&words, lines).expect("a mapping")
}

pub(crate) fn memory(name: &str) -> OwnedFd {
    memfd_create(name, MemfdFlags::CLOEXEC).expect("a memfd")
}

/// A living child.
struct Child {
    forked: Forked,
    place: usize,
    /// The number of steps of the child at the last check, and the time at which this number last
    /// changed.
    seen: (u64, Instant),
}

impl Child {
    fn start(arena: &impl Arena, place: usize, rng: Rng) -> Self {
        // ORDERING: Relaxed. The child does not exist yet.
        arena.chore(place).store(0, Ordering::Relaxed);
        let forked = Forked::start(|| arena.work(place, rng)).expect("a child");
        Self { forked, place, seen: (0, Instant::now()) }
    }

    fn look(&mut self, arena: &impl Arena) -> Result<(), String> {
        if self.forked.try_wait().map_err(|error| error.to_string())?.is_some() {
            return Err("a child ended by itself".to_owned());
        }
        // ORDERING: Relaxed. The counter only shows progress, and publishes no data.
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
        // ORDERING: Relaxed. The process of the child has ended, so its last store is visible.
        let noted = arena.chore(self.place).load(Ordering::Relaxed);
        let chore = Chore::ALL.into_iter().find(|chore| *chore as u64 == noted);
        chore.into_iter().for_each(|chore| *kills.entry(chore).or_default() += 1);
        Ok(())
    }

    /// All other children are dead.
    fn get_on(&mut self, arena: &impl Arena, stuck: Duration) -> Result<(), String> {
        let steps = arena.steps(self.place);
        let done = || {
            // ORDERING: Relaxed. The counter only shows progress, and publishes no data.
            steps.load(Ordering::Relaxed)
        };
        // The last child may have been about to complete a step when the other children died. So
        // only a second step shows that it can go on without them.
        let (wanted, start) = (done() + 2, Instant::now());
        while done() < wanted {
            self.look(arena)?;
            if start.elapsed() > stuck {
                return Err("the last child does not get the permit of a dead child".to_owned());
            }
            pause(Duration::from_millis(1));
        }
        Ok(())
    }
}

/// Counts the kills in `met` by the children's kind of work.
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
    // Within this time, the last child must make progress. A control run expects no progress, so
    // two seconds are enough.
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
    // A shorter pause serves as well.
    let _slept = rustix::thread::nanosleep(&time);
}

fn unmet(chores: &[Chore], met: &Kills) -> Option<Chore> {
    chores.iter().copied().find(|chore| !met.contains_key(chore))
}

fn run<A: Arena>(name: &str, kills: usize, limit: Option<Duration>, rng: &mut Rng) -> usize {
    let (start, mut met) = (Instant::now(), Kills::new());
    let killed = torture::<A>(kills, limit.unwrap_or(SHORT), Mode::Real, rng, &mut met);
    let killed = killed.unwrap_or_else(|what| panic!("{name}: {what}"));
    let took = start.elapsed().as_secs_f64();
    println!("{name}: {killed} kills in {took:.1} s: nothing lost, no child stuck");
    println!("{name}: kills in each chore: {met:?}");
    // Only a run with an argument is long enough to kill a child in each chore (kind of work).
    let unmet = unmet(A::CHORES, &met).filter(|_| limit.is_some());
    assert_eq!(unmet, None, "{name}: no child was killed in this chore");
    let noticed = torture::<A>(2000, 3 * SHORT, Mode::Control, rng, &mut Kills::new());
    println!("{name}: control: {noticed:?}");
    assert!(noticed.is_err(), "{name}: the check of the control did not fail");
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
        panic!("only {killed} kills within the time limit");
    }
    drop(report);
}
