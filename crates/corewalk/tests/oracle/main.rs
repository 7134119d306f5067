//! Linearizability of paths and lookups: every answer was true at one instant, and no rename blocks
//! a reader.
//!
//! Some threads (renamers) change a tree as fast as possible, on every level. They rename files and
//! directories and back again, exchange two directories, and move a mount point. Other threads
//! (translators) ask for the paths of files, through every interface.
//!
//! The clock is read before and after each rename and each answer. Then the module `judge` checks
//! each answer. Was there an instant during the call at which the tree could have had all the names
//! in the answer? The module `windows` divides the test into periods, so that no answer is stored
//! for long.
//!
//! | module | content |
//! |---|---|
//! | `tree` | the tree, and the renames that change it |
//! | `formatting` | the values of variables that a formatted path shows |
//! | `doors` | the interfaces to ask through |
//! | `judge` | whether an answer was true at one instant |
//! | `windows` | concurrent renamers and translators |
//! | `bound` | the number of passes of a single translation |
//! | `stuck` | readers during a rename that hangs in its back end |
//!
//! Source: Herlihy and Wing, 1990; traps T1, T8, T9, T12, T13, P7 and P8 in `traps.md`.

#[path = "../namespace/backends.rs"]
mod backends;
mod bound;
mod doors;
#[path = "../namespace/fixtures.rs"]
mod fixtures;
mod formatting;
mod judge;
#[path = "../namespace/pauses.rs"]
mod pauses;
mod stuck;
mod tree;
mod windows;

use std::time::Duration;

use corewalk_testkit::race::Watchdog;
use corewalk_testkit::rng::{ReportSeed, Seed};

use doors::Door;
use tree::{Deep, Tree};
use windows::{DISTURBED, Extent, Report, run};

const SHALLOW: Deep = Deep { below_top: 0, above_moved: 2 };
const PATHS: u64 = 10_000_000;
const ALL: Extent = Extent { windows: 100, windows_max: 1000, questions: 50_000 };
const TENTH: Extent = Extent { windows: 10, windows_max: 1000, questions: 50_000 };
const LOCKED: Extent = Extent { windows: 10, windows_max: 1000, questions: 2_500 };
const WALKS: Extent = Extent { windows: 20, windows_max: 1000, questions: 20_000 };

/// Ten million paths are translated, through every interface, while names change on all levels of
/// the tree. Each path must have existed at one instant. In each window (period) all renamers and
/// translators must make progress. Traps T1, T8, T9 and P8 in `traps.md`.
#[test]
fn ten_million_paths_existed_at_one_instant() {
    let _watchdog = Watchdog::start("ten million paths", Duration::from_secs(900));
    let report = ReportSeed::new(Seed::choose());
    let vfs = fixtures::new();
    let tree = Tree::new(&vfs, SHALLOW);
    let doors = doors::translations(&tree);
    let found = run(report.seed(), &tree, &doors, ALL);
    assert_judged(&found, PATHS);
    let stats = vfs.stats();
    assert!(stats.retries > 0 && stats.renames >= found.renames, "{stats:?} {found:?}");
}

/// A path that was translated under the lock against moves of directories must have existed at one
/// instant. The paths here have so many names that each translation into a buffer takes this lock.
/// Traps T9 and P8 in `traps.md`.
#[test]
fn paths_of_locked_passes_existed_at_one_instant() {
    let _watchdog = Watchdog::start("locked passes", Duration::from_secs(300));
    let report = ReportSeed::new(Seed::choose());
    let vfs = fixtures::new();
    let tree = Tree::new(&vfs, Deep { below_top: 1100, above_moved: 2 });
    let found = run(report.seed(), &tree, &doors::into_buffers(&tree), LOCKED);
    assert_judged(&found, LOCKED.answers());
    assert!(vfs.stats().fallbacks >= found.answers, "{found:?}");
}

/// Each result of a lookup, found or missing, must have been true at one instant. Traps T12 and T13
/// in `traps.md`.
#[test]
fn lookup_results_were_true_at_one_instant() {
    let _watchdog = Watchdog::start("lookups and misses", Duration::from_secs(300));
    let report = ReportSeed::new(Seed::choose());
    let vfs = fixtures::new();
    let tree = Tree::new(&vfs, SHALLOW);
    let found = run(report.seed(), &tree, &doors::lookups(&tree), TENTH);
    assert_judged(&found, TENTH.answers());
}

/// The path of a successful walk must have existed at one instant. Traps T12 and T20 in `traps.md`.
#[test]
fn walked_paths_existed_at_one_instant() {
    let _watchdog = Watchdog::start("walks", Duration::from_secs(300));
    let report = ReportSeed::new(Seed::choose());
    let vfs = fixtures::new();
    let tree = Tree::new(&vfs, Deep { below_top: 100, above_moved: 2 });
    let found = run(report.seed(), &tree, &[doors::walk(&tree)], WALKS);
    assert_judged(&found, WALKS.answers());
}

fn assert_judged(found: &Report, answers: u64) {
    assert_eq!(found.wrong, None);
    assert!(found.answers >= answers && found.disturbed >= DISTURBED, "{found:?}");
}

fn detect_wrong_door(door: impl for<'a> FnOnce(&'a Tree<'a>) -> Door<'a>) -> String {
    let _watchdog = Watchdog::start("a wrong door", Duration::from_secs(300));
    let report = ReportSeed::new(Seed::choose());
    let vfs = fixtures::new();
    let tree = Tree::new(&vfs, SHALLOW);
    let found = run(report.seed(), &tree, &[door(&tree)], ALL);
    found.wrong.expect("a wrong answer")
}

/// Control (a variant with the bug must fail): each name of a path was right when it was read, but
/// at different times.
#[test]
fn control_path_collected_level_by_level_is_caught() {
    let wrong = detect_wrong_door(doors::level_by_level);
    assert!(wrong.starts_with("level by level: "), "{wrong}");
}

/// Control (a variant with the bug must fail): each call returns the path that was right at the
/// call before. That path may not have existed since.
#[test]
fn control_path_from_before_the_question_is_caught() {
    let wrong = detect_wrong_door(doors::one_call_late);
    assert!(wrong.starts_with("one call late: no one instant"), "{wrong}");
}
