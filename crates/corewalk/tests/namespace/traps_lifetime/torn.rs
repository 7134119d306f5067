//! Tests of paths that combine names and parents of different instants.

use std::time::Duration;

use corewalk::{Cred, InodeRef, RenameMode, Vfs};
use corewalk_base::primitives::atomic::{AtomicBool, Ordering};
use corewalk_testkit::race::{self, Tally, Watchdog};
use corewalk_testkit::rng::Seed;

use crate::fixtures::{name, new, tree, walk};

const READS: usize = 300_000;
const READS_MAX: usize = 100 * READS;

fn read_paths(
    outcomes: &Tally<3>,
    wanted: &[&str],
    read: impl Fn(&Vfs, &InodeRef<'_>) -> Vec<u8> + Sync,
) {
    let vfs = new();
    tree(&vfs, &["a/", "b/", "a/x"]);
    let (a, b, f) =
        (walk(&vfs, "a").unwrap(), walk(&vfs, "b").unwrap(), walk(&vfs, "a/x").unwrap());
    let done = AtomicBool::new(false);
    race::run(2, Seed::choose(), |racer| {
        if racer.thread == 0 {
            let (first, second) = ((&a, name("x")), (&b, name("y")));
            let moves = [(first, second), (second, first)];
            // ORDERING: Relaxed. A flag; nothing is published through it.
            for i in (0..).take_while(|_| !done.load(Ordering::Relaxed)) {
                let (from, to) = moves[i % 2];
                vfs.rename(&Cred::root(), from, to, RenameMode::Replace).unwrap();
            }
            return;
        }
        for turn in 0..READS_MAX {
            if turn >= READS && wanted.iter().all(|name| outcomes.count(name) > 0) {
                break;
            }
            match read(&vfs, &f).as_slice() {
                b"/a/x" => outcomes.hit("first"),
                b"/b/y" => outcomes.hit("second"),
                _ => outcomes.hit("torn"),
            }
        }
        // ORDERING: Relaxed. As above.
        done.store(true, Ordering::Relaxed);
    });
}

/// The names on a path must all be of the same instant. Trap P8 in `traps.md`.
#[test]
fn path_of_a_file_that_changes_name_and_parent_at_once_is_never_torn() {
    let _watchdog = Watchdog::start("torn paths", Duration::from_secs(120));
    let outcomes = Tally::new(["first", "second", "torn"]);
    read_paths(&outcomes, &["first", "second"], |_, file| file.path().unwrap());
    assert_eq!(outcomes.count("torn"), 0, "{}", outcomes.counts_text());
    assert!(outcomes.count("first") > 0 && outcomes.count("second") > 0);
}

/// Control (a variant with the bug must fail): the parent and the name of a file are read
/// separately, so some paths mix two instants.
#[test]
fn control_parent_and_name_read_one_after_the_other_are_torn() {
    let _watchdog = Watchdog::start("torn paths, control", Duration::from_secs(120));
    let outcomes = Tally::new(["first", "second", "torn"]);
    read_paths(&outcomes, &["first", "second", "torn"], |_, file| {
        let (parent, name) = (file.path().unwrap(), file.path().unwrap());
        [&parent[..3], &name[3..]].concat()
    });
    outcomes.assert_all_reached();
}
