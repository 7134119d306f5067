//! A test of how many lock-free attempts a path translation makes at most before it takes the lock
//! that blocks moves of directories.

use std::time::Duration;

use corewalk::Stats;
use corewalk_base::primitives::atomic::{AtomicBool, Ordering};
use corewalk_base::primitives::thread;
use corewalk_testkit::race::Watchdog;
use corewalk_testkit::rng::{ReportSeed, Rng, Seed};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::doors::{PASSES, ROOM, translations};
use crate::fixtures;
use crate::judge::VARIABLES;
use crate::tree::{Deep, MOVED, TOP, Tree};

const TREES: [Deep; 2] =
    [Deep { below_top: 600, above_moved: 300 }, Deep { below_top: 0, above_moved: 900 }];
const TRANSLATIONS: usize = 50_000;
const TRANSLATIONS_MAX: usize = 200 * TRANSLATIONS;
const RENAMES: u64 = 10_000;
const FALLBACKS: u64 = 20;

/// However often directories on the path are renamed, each translation must end after a fixed
/// number of attempts. The last one is under the lock that blocks moves of directories. The
/// renaming thread must make progress meanwhile. Trap T9 in `traps.md`.
#[test]
fn translation_makes_a_bounded_number_of_passes() {
    let _watchdog = Watchdog::start("passes of translations", Duration::from_secs(300));
    let report = ReportSeed::new(Seed::choose());
    // Some translations must fall back to the lock, except on one CPU, where few renames happen
    // during a translation.
    let processors = processors();
    let fallbacks_min = if processors.len() > 1 { FALLBACKS } else { 0 };
    for deep in TREES {
        let vfs = fixtures::new();
        let tree = Tree::new(&vfs, deep);
        let done = AtomicBool::new(false);
        let rng = Rng::new(report.seed());
        thread::scope(|scope| {
            scope.spawn(|| {
                stay_on(processors[processors.len() - 1]);
                rename(&tree, rng.fork(1), &done);
            });
            scope.spawn(|| {
                let _done = Done(&done);
                stay_on(processors[0]);
                translate(&tree, rng.fork(0), fallbacks_min);
            });
        });
    }
}

fn processors() -> Vec<usize> {
    let all = sched_getaffinity(None).expect("the kernel returns the CPU set");
    (0..CpuSet::MAX_CPU).filter(|&cpu| all.is_set(cpu)).collect()
}

/// Binds the calling thread to a CPU. Otherwise a busy machine may run both threads of the test on
/// one.
fn stay_on(cpu: usize) {
    let mut only = CpuSet::new();
    only.set(cpu);
    sched_setaffinity(None, &only).expect("the CPU is in the allowed set");
}

fn translate(tree: &Tree<'_>, mut rng: Rng, fallbacks_min: u64) {
    let (vfs, doors) = (tree.vfs, translations(tree));
    let start = vfs.stats();
    let is_enough = |turn: usize, now: Stats| {
        let (renames, fallbacks) = (now.renames - start.renames, now.fallbacks - start.fallbacks);
        turn >= TRANSLATIONS && renames >= RENAMES && fallbacks >= fallbacks_min
    };
    let (mut buf, mut last, mut turns) = (vec![0; ROOM], start, 0);
    while turns < TRANSLATIONS_MAX && !is_enough(turns, last) {
        let door = rng.pick(&doors);
        (door.ask)(&mut rng, &mut buf).expect("the path exists");
        let now = vfs.stats();
        let (retries, locked) = (now.retries - last.retries, now.fallbacks - last.fallbacks);
        assert!(retries <= door.passes_max, "{}: {retries} passes", door.name);
        assert!(locked <= 1, "{}: {locked} locked passes", door.name);
        assert!(locked == 0 || retries >= PASSES, "{}: locked after {retries}", door.name);
        (turns, last) = (turns + 1, now);
    }
    assert!(is_enough(turns, last), "{turns} translations: {start:?} {last:?}");
}

fn rename(tree: &Tree<'_>, mut rng: Rng, done: &AtomicBool) {
    let mut values = [0; VARIABLES];
    // ORDERING: Relaxed. A flag; nothing is published through it.
    while !done.load(Ordering::Relaxed) {
        let variable = if rng.chance(1, 100) { MOVED } else { TOP };
        let value = tree.draw(&mut rng, variable, values[variable]);
        tree.change(variable, values[variable], value);
        values[variable] = value;
    }
}

struct Done<'a>(&'a AtomicBool);

impl Drop for Done<'_> {
    fn drop(&mut self) {
        // ORDERING: Relaxed. As above.
        self.0.store(true, Ordering::Relaxed);
    }
}
