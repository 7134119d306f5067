//! Tests of negative dentries below removed directories: they must be evicted with the directory.

use corewalk::{Cred, Errno, Removal, RenameMode, Vfs};
use corewalk_testkit::race;
use corewalk_testkit::rng::Seed;

use crate::fixtures::{name, new, remove, rename, tree, walk};

fn miss(vfs: &Vfs, path: &str) {
    assert_eq!(walk(vfs, path).map(drop), Err(Errno::NOENT));
}

fn fill_with_negatives(vfs: &Vfs, dir: &str) {
    tree(vfs, &[&format!("{dir}/"), &format!("{dir}/file")]);
    miss(vfs, &format!("{dir}/a"));
    miss(vfs, &format!("{dir}/b"));
    remove(vfs, &format!("{dir}/file"), Removal::Unlink).unwrap();
}

#[test]
fn negatives_of_a_removed_directory_are_evicted() {
    let vfs = new();
    let start = vfs.stats();
    for i in 0..200 {
        let dir = format!("d{i}");
        fill_with_negatives(&vfs, &dir);
        assert_eq!(vfs.stats().negatives, 3);
        remove(&vfs, &dir, Removal::Rmdir).unwrap();
        let now = vfs.stats();
        assert_eq!((now.negatives, now.entries), (0, start.entries), "round {i}");
    }
}

#[test]
fn negatives_of_a_replaced_directory_are_evicted() {
    let vfs = new();
    fill_with_negatives(&vfs, "target");
    tree(&vfs, &["moved/"]);
    miss(&vfs, "moved/a");
    rename(&vfs, "moved", "target", RenameMode::Replace).unwrap();
    assert_eq!(vfs.stats().negatives, 1, "the negative entry of the moved directory is lost");
}

#[test]
fn negatives_of_a_held_removed_directory_are_evicted() {
    let vfs = new();
    fill_with_negatives(&vfs, "d");
    let held = walk(&vfs, "d").unwrap();
    remove(&vfs, "d", Removal::Rmdir).unwrap();
    assert_eq!(vfs.stats().negatives, 0);
    assert_eq!(vfs.lookup(&Cred::root(), &held, name("a")).map(drop), Err(Errno::NOENT));
}

/// The work of a removal must be bounded, however many entries the cache has. The removal must keep
/// the negative dentries of other directories. It may leave some negative dentries of the removed
/// directory for later removals. Trap T53 in `traps.md`.
#[test]
fn removal_in_a_large_cache_scans_few_entries() {
    const FILES: u64 = 20_000;
    const ROUNDS: u64 = 4000;
    let vfs = new();
    tree(&vfs, &["live/"]);
    for i in 0..FILES {
        tree(&vfs, &[&format!("live/f{i}")]);
    }
    miss(&vfs, "live/none");
    let before = vfs.stats();
    let mut most = 0;
    for _ in 0..ROUNDS {
        fill_with_negatives(&vfs, "d");
        remove(&vfs, "d", Removal::Rmdir).unwrap();
        most = most.max(vfs.stats().negatives);
    }
    // Each round scans 256 entries.
    assert!(most <= 3 * FILES / 64, "{most} negative entries of removed directories");
    let after = vfs.stats();
    assert_eq!(after.entries, before.entries);
    let misses = after.misses;
    miss(&vfs, "live/none");
    assert_eq!(vfs.stats().misses, misses, "the negative entry of another directory is lost");
    vfs.prune();
    assert_eq!(vfs.stats().negatives, 0);
}

/// The count of negative dentries must stay right, even if a directory is removed during failing
/// lookups in it. Trap T60 in `traps.md`.
#[test]
fn negatives_are_counted_right_while_directories_are_removed() {
    let vfs = new();
    let start = vfs.stats();
    race::run(3, Seed::choose(), |racer| {
        for i in 0..2000 {
            if racer.thread == 0 {
                tree(&vfs, &["d/"]);
                remove(&vfs, "d", Removal::Rmdir).unwrap();
            } else {
                miss(&vfs, &format!("d/{}", i % 7));
            }
        }
    });
    vfs.prune();
    let end = vfs.stats();
    assert_eq!((end.negatives, end.entries), (0, start.entries));
}
