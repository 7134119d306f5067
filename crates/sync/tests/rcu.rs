//! Tests of grace periods. A read section of any thread delays the freeing of values. The garbage
//! (the values that are not freed yet) must stay bounded.
//!
//! All threads of a process share its grace periods, so these tests run one at a time.
#![cfg(not(any(miri, corewalk_loom, corewalk_shuttle)))]

use corewalk_base::{
    Condvar, Mutex, ShardedCounter,
    primitives::{
        Arc,
        atomic::{AtomicBool, Ordering},
        thread,
    },
};
use corewalk_sync::{RcuCell, rcu};

static TURN: Mutex<()> = Mutex::new(());

/// Versions that were made and not dropped yet.
static ALIVE: ShardedCounter = ShardedCounter::new();

/// Number of values that `churn` replaces. It is far above the some hundred values that a thread
/// keeps as garbage before it frees any.
const CHURN: u64 = 10_000;

/// A value of several words, counted in `ALIVE`.
struct Version([u64; 4]);

impl Version {
    fn new(number: u64) -> Self {
        ALIVE.add(1);
        Self([number; 4])
    }
}

impl Drop for Version {
    fn drop(&mut self) {
        ALIVE.add(-1);
    }
}

fn churn() {
    let cell = RcuCell::new(0);
    (0..CHURN).for_each(|round| cell.replace(round));
}

/// Calls `churn` until at most `limit` versions are alive. Panics if there are still more after
/// 1000 calls.
fn churn_down_to(limit: i64) {
    for _ in 0..1_000 {
        if ALIVE.sum() <= limit {
            return;
        }
        churn();
    }
    panic!("{} versions are not freed", ALIVE.sum());
}

/// The progress of a `SittingReader`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Step {
    Starts,
    Sits,
    MayLeave,
}

struct SittingReader {
    step: Arc<(Mutex<Step>, Condvar)>,
    thread: thread::JoinHandle<()>,
}

impl SittingReader {
    /// Starts a thread that opens a read section. Returns when the section is open.
    fn sit() -> Self {
        let step = Arc::new((Mutex::new(Step::Starts), Condvar::new()));
        let thread = thread::spawn({
            let step = Arc::clone(&step);
            move || {
                let _section = rcu::read_lock();
                Self::advance(&step, Step::Sits);
                Self::wait_for(&step, Step::MayLeave);
            }
        });
        Self::wait_for(&step, Step::Sits);
        Self { step, thread }
    }

    fn leave(self) {
        Self::advance(&self.step, Step::MayLeave);
        self.thread.join().unwrap();
    }

    fn advance(step: &(Mutex<Step>, Condvar), to: Step) {
        *step.0.lock() = to;
        step.1.notify_all();
    }

    fn wait_for(step: &(Mutex<Step>, Condvar), wanted: Step) {
        let mut now = step.0.lock();
        while *now < wanted {
            step.1.wait(&mut now);
        }
    }
}

#[test]
fn version_retired_under_an_open_section_lives_until_the_section_ends() {
    let _turn = TURN.lock();
    let cell = RcuCell::new(Version::new(0));
    let reader = SittingReader::sit();
    cell.replace(Version::new(1));
    churn();
    assert_eq!(ALIVE.sum(), 2, "the grace period ended under an open section");
    reader.leave();
    churn_down_to(1);
    drop(cell);
    churn_down_to(0);
}

#[test]
fn sections_nest_and_only_the_last_end_counts() {
    let _turn = TURN.lock();
    let cell = RcuCell::new(Version::new(0));
    let outer = rcu::read_lock();
    let inner = rcu::read_lock();
    cell.replace(Version::new(1));
    drop(outer);
    churn();
    assert_eq!(ALIVE.sum(), 2, "the grace period ended with the outer guard");
    drop(inner);
    churn_down_to(1);
    drop(cell);
    churn_down_to(0);
}

#[test]
fn synchronize_returns_when_the_values_retired_before_are_dropped() {
    let _turn = TURN.lock();
    let cell = Arc::new(RcuCell::new(Version::new(0)));
    let reader = SittingReader::sit();
    let waiting = thread::spawn({
        let cell = Arc::clone(&cell);
        move || {
            cell.replace(Version::new(1));
            rcu::synchronize();
            ALIVE.sum()
        }
    });
    while ALIVE.sum() < 2 {
        thread::yield_now();
    }
    churn();
    assert_eq!(ALIVE.sum(), 2, "the grace period ended under an open section");
    assert!(!waiting.is_finished(), "synchronize returned under an open section");
    reader.leave();
    assert_eq!(waiting.join().unwrap(), 1);
    drop(cell);
    rcu::synchronize();
    assert_eq!(ALIVE.sum(), 0);
}

#[test]
#[should_panic(expected = "waits for itself")]
fn synchronize_inside_a_section_panics() {
    let _section = rcu::read_lock();
    rcu::synchronize();
}

/// If readers keep leaving their sections, the garbage must stay bounded, however fast a writer is.
/// Trap T57 in `traps.md`.
#[test]
fn garbage_under_churn_is_bounded() {
    // While a reader is preempted inside a read section, some ten thousand values are not freed.
    // The limit is far above that.
    const ROUNDS: u64 = 1_500_000;
    const GARBAGE_MAX: i64 = ROUNDS as i64 / 4;
    let _turn = TURN.lock();
    let cell = Arc::new(RcuCell::new(Version::new(0)));
    let is_done = Arc::new(AtomicBool::new(false));
    let readers: Vec<_> = (0..2)
        .map(|_| {
            let (cell, is_done) = (Arc::clone(&cell), Arc::clone(&is_done));
            thread::spawn(move || {
                // ORDERING: Relaxed. The flag only tells the readers when to stop.
                while !is_done.load(Ordering::Relaxed) {
                    let section = rcu::read_lock();
                    let value = cell.read(&section).0;
                    assert!(value.iter().all(|word| *word == value[0]), "A.2: torn {value:?}");
                }
            })
        })
        .collect();
    let mut peak = 0;
    for round in 1..=ROUNDS {
        cell.replace(Version::new(round));
        if round.is_multiple_of(64) {
            peak = peak.max(ALIVE.sum());
        }
    }
    // ORDERING: Relaxed. The flag only tells the readers when to stop.
    is_done.store(true, Ordering::Relaxed);
    for reader in readers {
        reader.join().unwrap();
    }
    assert!(peak <= GARBAGE_MAX, "A.4: {peak} versions waited");
    drop(cell);
    churn_down_to(0);
}

/// Control of `garbage_under_churn_is_bounded`: while one read section stays open, no replaced
/// value is freed. Trap T57 in `traps.md`.
#[test]
fn control_garbage_behind_an_open_section_grows() {
    const ROUNDS: u64 = 100_000;
    let _turn = TURN.lock();
    let reader = SittingReader::sit();
    let cell = RcuCell::new(Version::new(0));
    (1..=ROUNDS).for_each(|number| cell.replace(Version::new(number)));
    assert_eq!(ALIVE.sum(), ROUNDS as i64 + 1);
    reader.leave();
    drop(cell);
    churn_down_to(0);
}
