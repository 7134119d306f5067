//! The oracle: no path that never existed, and no reader blocked by a rename.
//!
//! Renamers change a tree as fast as they can, on every level of the paths that are asked for: names
//! change and come back, directories are moved and exchanged, a mount point goes along. Translators ask
//! for paths through every door there is. Renames and answers are recorded with the ticks of one clock
//! around them, and each answer is judged: was there an instant, between the question and the answer, at
//! which the tree could have had all the names that it says (`judge`)? Ten million answers are judged, in
//! windows, so that none has to be kept (`windows`).
//!
//! | module | what |
//! |---|---|
//! | `tree` | the tree, and the renames that change it |
//! | `formatting` | the steps of the tree that a formatted path names |
//! | `doors` | the ways to ask |
//! | `judge` | whether an answer was right at one instant |
//! | `windows` | renamers and translators side by side |
//! | `bound` | how often a single translation tries |
//! | `stuck` | readers beside a rename that hangs in its back end |
//!
//! Source: Herlihy and Wing, 1990; traps T1, T8, T9, T12, T13, P7, P8.

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
/// How many paths are judged, at least.
const PATHS: u64 = 10_000_000;
const ALL: Extent = Extent { windows: 100, windows_max: 1000, questions: 50_000 };
const TENTH: Extent = Extent { windows: 10, windows_max: 1000, questions: 50_000 };
const LOCKED: Extent = Extent { windows: 10, windows_max: 1000, questions: 2_500 };
const WALKS: Extent = Extent { windows: 20, windows_max: 1000, questions: 20_000 };

/// Traps T1, T8, T9, P8: ten million paths, through every door, of a tree whose names change on all
/// levels at once, each were there at one instant; both sides make progress in every window.
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

/// Traps T9, P8: the same of translations that take the lock, which paths of so many names do when they go
/// into a buffer.
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

/// Traps T12, T13: a lookup finds a name, or misses it, as it was at one instant.
#[test]
fn lookups_and_misses_were_right_at_one_instant() {
    let _watchdog = Watchdog::start("lookups and misses", Duration::from_secs(300));
    let report = ReportSeed::new(Seed::choose());
    let vfs = fixtures::new();
    let tree = Tree::new(&vfs, SHALLOW);
    let found = run(report.seed(), &tree, &doors::lookups(&tree), TENTH);
    assert_judged(&found, TENTH.answers());
}

/// Traps T12, T20: a walk that finds something has gone along a path that was there at one instant.
#[test]
fn walks_found_what_was_there_at_one_instant() {
    let _watchdog = Watchdog::start("walks", Duration::from_secs(300));
    let report = ReportSeed::new(Seed::choose());
    let vfs = fixtures::new();
    let tree = Tree::new(&vfs, Deep { below_top: 100, above_moved: 2 });
    let found = run(report.seed(), &tree, &[doors::walk(&tree)], WALKS);
    assert_judged(&found, WALKS.answers());
}

/// Checks that so many answers were judged, all of them right, and that it was not too easy.
fn assert_judged(found: &Report, answers: u64) {
    assert_eq!(found.wrong, None);
    assert!(found.answers >= answers && found.disturbed >= DISTURBED, "{found:?}");
}

/// Asks through a door that is wrong until it is found out, within as many answers as the right ones give,
/// and says how.
fn found_out(door: impl for<'a> FnOnce(&'a Tree<'a>) -> Door<'a>) -> String {
    let _watchdog = Watchdog::start("a wrong door", Duration::from_secs(300));
    let report = ReportSeed::new(Seed::choose());
    let vfs = fixtures::new();
    let tree = Tree::new(&vfs, SHALLOW);
    let found = run(report.seed(), &tree, &[door(&tree)], ALL);
    found.wrong.expect("a wrong answer")
}

/// Trap P8: names that are each right, but not of one instant.
#[test]
fn control_path_collected_level_by_level_is_found_out() {
    let wrong = found_out(doors::level_by_level);
    assert!(wrong.starts_with("level by level: "), "{wrong}");
}

/// Control: paths that did exist, but before the question.
#[test]
fn control_path_from_before_the_question_is_found_out() {
    let wrong = found_out(doors::one_call_late);
    assert!(wrong.starts_with("one call late: no one instant"), "{wrong}");
}
