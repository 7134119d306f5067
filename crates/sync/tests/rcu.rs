//! Grace periods of a whole process: waiting, watching, and garbage that stays bounded.
//!
//! The domain is one per process, so these tests take turns.
#![cfg(not(any(miri, corewalk_loom, corewalk_shuttle)))]

use corewalk_sync::{
    Condvar, Mutex, RcuCell,
    primitives::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
        thread,
    },
    rcu,
};
use std::time::Duration;

static TURN: Mutex<()> = Mutex::new(());

/// What a sitting reader has done, and may do.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Step {
    Starts,
    Sits,
    MayLeave,
}

/// A thread that sits in a read section until told to leave.
struct SittingReader {
    step: Arc<(Mutex<Step>, Condvar)>,
    thread: thread::JoinHandle<()>,
}

impl SittingReader {
    /// Returns once the section is open.
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
fn synchronize_waits_for_a_section_that_is_open() {
    let _turn = TURN.lock();
    let reader = SittingReader::sit();
    let is_over = Arc::new(AtomicBool::new(false));
    let waiter = thread::spawn({
        let is_over = Arc::clone(&is_over);
        move || {
            rcu::synchronize();
            // ORDERING: Relaxed. The reader's flag below was stored before it left its section.
            is_over.load(Ordering::Relaxed)
        }
    });
    for _ in 0..200 {
        thread::yield_now();
        assert!(!waiter.is_finished(), "the grace period ended under an open section");
    }
    // ORDERING: Relaxed. Ordered before the end of the section by the mutex of the step.
    is_over.store(true, Ordering::Relaxed);
    reader.leave();
    assert!(waiter.join().unwrap(), "the waiter returned before the section ended");
}

#[test]
fn synchronize_runs_what_this_thread_deferred_before() {
    let _turn = TURN.lock();
    let runs = Arc::new(AtomicU64::new(0));
    for _ in 0..500 {
        let runs = Arc::clone(&runs);
        // ORDERING: Relaxed. Read after the grace period, which orders it.
        rcu::defer(move || {
            runs.fetch_add(1, Ordering::Relaxed);
        });
    }
    rcu::synchronize();
    // ORDERING: Relaxed. As above.
    assert_eq!(runs.load(Ordering::Relaxed), 500);
}

#[test]
fn synchronize_inside_a_section_panics() {
    let _turn = TURN.lock();
    let inside = thread::spawn(|| {
        let _section = rcu::read_lock();
        rcu::synchronize();
    });
    assert!(inside.join().is_err());
}

#[test]
fn sections_nest_and_only_the_last_end_counts() {
    let _turn = TURN.lock();
    let outer = rcu::read_lock();
    let inner = rcu::read_lock();
    drop(outer);
    assert_eq!(rcu::stats().readers, 1);
    drop(inner);
    assert_eq!(rcu::stats().readers, 0);
    rcu::synchronize();
}

/// Trap T57: a section that stays is seen, with its age and the garbage behind it.
#[test]
fn stats_of_a_stuck_section_show_age_and_garbage() {
    let _turn = TURN.lock();
    rcu::synchronize();
    let before = rcu::stats();
    assert_eq!((before.readers, before.oldest_section_age), (0, Duration::ZERO));

    let reader = SittingReader::sit();
    let cell = RcuCell::new(0);
    for version in 0..300 {
        cell.replace(version);
    }
    let first = rcu::stats();
    assert_eq!(first.readers, 1);
    assert!(first.garbage >= 300, "{first:?}");
    // The trap is about time: the age has to grow while the section stays.
    thread::sleep(Duration::from_millis(20));
    let second = rcu::stats();
    assert!(second.oldest_section_age >= Duration::from_millis(20), "{second:?}");

    reader.leave();
    rcu::synchronize();
    let after = rcu::stats();
    assert_eq!((after.readers, after.oldest_section_age), (0, Duration::ZERO));
    assert!(after.garbage < 300, "the garbage was not freed: {after:?}");
}

/// Trap T57: a new section is not taken for the old one that was met before.
#[test]
fn stats_of_short_sections_do_not_age() {
    let _turn = TURN.lock();
    let section = rcu::read_lock();
    assert_eq!(rcu::stats().readers, 1);
    thread::sleep(Duration::from_millis(20));
    drop(section);
    let _section = rcu::read_lock();
    assert_eq!(rcu::stats().oldest_section_age, Duration::ZERO);
}

/// Trap T57: sections that come and go keep the garbage bounded, however fast a writer is.
#[test]
fn garbage_under_churn_is_bounded() {
    // A reader that loses its processor inside a section keeps what is replaced in a time slice, some
    // ten thousands of versions; one that stayed would keep all.
    const ROUNDS: u64 = 1_500_000;
    const GARBAGE_MAX: u64 = ROUNDS / 4;
    let _turn = TURN.lock();
    let cell = Arc::new(RcuCell::new([0_u64; 4]));
    let is_done = Arc::new(AtomicBool::new(false));
    let readers: Vec<_> = (0..2)
        .map(|_| {
            let (cell, is_done) = (Arc::clone(&cell), Arc::clone(&is_done));
            thread::spawn(move || {
                // ORDERING: Relaxed. Only says when to stop.
                while !is_done.load(Ordering::Relaxed) {
                    let section = rcu::read_lock();
                    let value = cell.read(&section);
                    assert!(value.iter().all(|word| *word == value[0]), "A.2: torn {value:?}");
                }
            })
        })
        .collect();
    let mut peak = 0;
    for round in 1..=ROUNDS {
        cell.replace([round; 4]);
        if round.is_multiple_of(64) {
            peak = peak.max(rcu::stats().garbage);
        }
    }
    // ORDERING: Relaxed. As above.
    is_done.store(true, Ordering::Relaxed);
    for reader in readers {
        reader.join().unwrap();
    }
    assert!(peak <= GARBAGE_MAX, "A.4: {peak} versions waited");
    rcu::synchronize();
    assert!(rcu::stats().garbage <= 256, "{:?}", rcu::stats());
}

/// Trap T57: the bound above is the work of sections that end; one that stays breaks it.
#[test]
fn control_garbage_behind_a_stuck_section_grows() {
    const ROUNDS: u64 = 100_000;
    let _turn = TURN.lock();
    let reader = SittingReader::sit();
    let cell = RcuCell::new(0);
    (0..ROUNDS).for_each(|version| cell.replace(version));
    assert!(rcu::stats().garbage >= ROUNDS, "{:?}", rcu::stats());
    reader.leave();
    while rcu::stats().garbage > 256 {
        rcu::synchronize();
    }
}
