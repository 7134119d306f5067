//! How often one translation tries before it takes the lock.

use std::time::Duration;

use corewalk::Stats;
use corewalk_sync::primitives::atomic::{AtomicBool, Ordering};
use corewalk_sync::primitives::thread;
use corewalk_testkit::race::Watchdog;
use corewalk_testkit::rng::{ReportSeed, Rng, Seed};
use rustix::thread::sched_getaffinity;

use crate::doors::{PASSES, ROOM, translations};
use crate::fixtures;
use crate::judge::VARIABLES;
use crate::tree::{Deep, MOVED, TOP, Tree};

/// One tree whose paths have so many names that hardly a pass gets through undisturbed, and one whose
/// paths are now deep, now not, for which a translation into a buffer begins again with more room.
const TREES: [Deep; 2] =
    [Deep { below_top: 600, above_moved: 300 }, Deep { below_top: 0, above_moved: 900 }];
/// Translations at least, and at most.
const TRANSLATIONS: usize = 50_000;
const TRANSLATIONS_MAX: usize = 200 * TRANSLATIONS;
/// Renames that get through meanwhile, at least.
const RENAMES: u64 = 10_000;
/// Translations that had to take the lock, at least.
const FALLBACKS: u64 = 20;

/// Trap T9: whatever is renamed above, each translation ends after a fixed number of passes, the last one
/// under the lock; and the renamer goes on meanwhile.
#[test]
fn translation_makes_a_bounded_number_of_passes() {
    let _watchdog = Watchdog::start("passes of translations", Duration::from_secs(300));
    let report = ReportSeed::new(Seed::choose());
    for deep in TREES {
        let vfs = fixtures::new();
        let tree = Tree::new(&vfs, deep);
        let done = AtomicBool::new(false);
        let rng = Rng::new(report.seed());
        thread::scope(|scope| {
            let _done = Done(&done);
            scope.spawn(|| rename(&tree, rng.fork(1), &done));
            translate(&tree, rng.fork(0));
        });
    }
}

/// Translates through all doors by turns and counts the passes of each call.
fn translate(tree: &Tree<'_>, mut rng: Rng) {
    let (vfs, doors) = (tree.vfs, translations(tree));
    let start = vfs.stats();
    // Threads that share a processor do not disturb one translation that often.
    let fallbacks_min = if sched_getaffinity(None).unwrap().count() > 1 { FALLBACKS } else { 0 };
    let is_enough = |turn: usize, now: Stats| {
        let (renames, fallbacks) = (now.renames - start.renames, now.fallbacks - start.fallbacks);
        turn >= TRANSLATIONS && renames >= RENAMES && fallbacks >= fallbacks_min
    };
    let (mut buf, mut last, mut turns) = (vec![0; ROOM], start, 0);
    while turns < TRANSLATIONS_MAX && !is_enough(turns, last) {
        let door = rng.pick(&doors);
        (door.ask)(&mut rng, &mut buf).expect("a path that there is");
        let now = vfs.stats();
        let (retries, locked) = (now.retries - last.retries, now.fallbacks - last.fallbacks);
        assert!(retries <= door.passes_max, "{}: {retries} passes", door.name);
        assert!(locked <= 1, "{}: {locked} locked passes", door.name);
        assert!(locked == 0 || retries >= PASSES, "{}: locked after {retries}", door.name);
        (turns, last) = (turns + 1, now);
    }
    assert!(is_enough(turns, last), "{turns} translations: {start:?} {last:?}");
}

/// Renames what lies above, mostly at the top, until the translator is done.
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

/// Ends the renamer, also when the translator fails.
struct Done<'a>(&'a AtomicBool);

impl Drop for Done<'_> {
    fn drop(&mut self) {
        // ORDERING: Relaxed. As above.
        self.0.store(true, Ordering::Relaxed);
    }
}
