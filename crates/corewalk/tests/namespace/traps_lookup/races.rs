//! Lookups while other threads change names (traps T12, T15, T16, T19, T22, T26, T27 in
//! `traps.md`).

use std::sync::Mutex;
use std::time::Duration;

use corewalk::{Cred, Errno, FileKind, Make, Removal, RenameMode, Vfs, WalkFlags};
use corewalk_base::primitives::atomic::{AtomicU64, Ordering};
use corewalk_base::primitives::thread;
use corewalk_testkit::race::{self, Tally, Watchdog};
use corewalk_testkit::reexec::{self, Reexec};
use corewalk_testkit::rng::Seed;

use super::beside;
use crate::backends::{Call, HookedTmpfs};
use crate::fixtures::{at, name, new, over, remove, rename, tree, walk};

/// Names that are not changed must always be found while thousands of others are added, and the
/// hash table grows to many times its size. Trap T12 in `traps.md`.
#[test]
fn stable_names_are_found_while_the_table_grows() {
    let _watchdog = Watchdog::start("a growing table", Duration::from_secs(120));
    let vfs = new();
    let names: Vec<String> = (0..64).map(|i| format!("stable{i}")).collect();
    tree(&vfs, &names.iter().map(String::as_str).collect::<Vec<_>>());
    let inos: Vec<u64> = names.iter().map(|name| walk(&vfs, name).unwrap().ino()).collect();
    let misses = vfs.stats().misses;
    let (root, cred, place) = (vfs.root(), Cred::root(), at(&vfs));
    beside(
        30_000,
        |i| {
            let file = format!("new{i}");
            vfs.make(&cred, &root, name(&file), Make::new(0o644, 0, 0)).unwrap();
            if i % 3 == 0 {
                let to = format!("moved{i}");
                let (from, to) = ((&root, name(&file)), (&root, name(&to)));
                vfs.rename(&cred, from, to, RenameMode::Replace).unwrap();
            }
        },
        |racer| {
            let i = racer.rng.index(names.len());
            let path = names[i].as_bytes();
            let found = vfs.resolve_path(&cred, &place, path, WalkFlags::empty()).unwrap();
            assert_eq!(found.ino, inos[i]);
        },
    );
    assert_eq!(vfs.stats().misses - misses, 0);
}

fn lookups_under_eviction(vfs: &Vfs) {
    tree(vfs, &["d/", "d/f"]);
    let ino = walk(vfs, "d/f").unwrap().ino();
    let (cred, place) = (Cred::root(), at(vfs));
    let start = vfs.stats();
    beside(
        20_000,
        |_| {
            vfs.prune();
            thread::yield_now();
        },
        |racer| {
            let found = match racer.rng.chance(1, 2) {
                true => vfs.resolve_path(&cred, &place, b"d/f", WalkFlags::empty()).map(|f| f.ino),
                false => walk(vfs, "d/f").map(|found| found.ino()),
            };
            assert_eq!(found, Ok(ino), "an existing file was missed");
        },
    );
    assert!(vfs.stats().reclaimed > start.reclaimed, "nothing was evicted");
}

/// A lookup of an existing file must never return `ENOENT` during eviction. Trap T15 in `traps.md`.
#[test]
fn existing_file_under_eviction_is_never_missing() {
    let _watchdog = Watchdog::start("lookups under eviction", Duration::from_secs(600));
    lookups_under_eviction(&new());
}

/// Control (a variant with the bug must fail): the back end returns a single wrong ENOENT.
#[test]
#[should_panic(expected = "an existing file was missed")]
fn control_momentary_enoent_is_caught() {
    let _watchdog = Watchdog::start("a momentary ENOENT", Duration::from_secs(600));
    let fills = AtomicU64::new(0);
    lookups_under_eviction(&over(HookedTmpfs::new(move |_, call| {
        // ORDERING: Relaxed. A count.
        match call == Call::Lookup(b"f") && fills.fetch_add(1, Ordering::Relaxed) == 2 {
            true => Err(Errno::NOENT),
            false => Ok(()),
        }
    })));
}

fn assert_kind(ino: u64, kind: FileKind, right: &[(u64, FileKind)]) {
    assert!(right.contains(&(ino, kind)), "{kind:?} does not go with inode {ino}");
}

/// A name refers in turn to a file, a directory, a symbolic link and nothing. Each lookup must
/// report the kind and the inode of the same file. A positive dentry must have an inode. Trap T16
/// in `traps.md`.
#[test]
fn kind_and_inode_of_a_name_belong_together() {
    let _watchdog = Watchdog::start("kinds in turn", Duration::from_secs(120));
    let vfs = new();
    tree(&vfs, &["file", "dir/", "link -> nowhere"]);
    let (root, cred) = (vfs.root(), Cred::root());
    let sources = ["file", "dir", "link"];
    let right = sources.map(|source| {
        let found = vfs.lookup(&cred, &root, name(source)).unwrap();
        (found.ino(), found.kind())
    });
    let tally = Tally::new(["file", "dir", "link", "nothing"]);
    // A reader may be preempted for a whole round, and then sees few changes. So run many rounds.
    for _ in 0..50 {
        beside(
            60_000,
            |i| {
                let source = sources[i as usize / 2 % 3];
                let (from, to) = if i % 2 == 0 { (source, "x") } else { ("x", source) };
                let mode = RenameMode::NoReplace;
                vfs.rename(&cred, (&root, name(from)), (&root, name(to)), mode).unwrap();
            },
            |_| match vfs.walk(&cred, &at(&vfs), b"x", WalkFlags::empty()).map(|x| x.inode()) {
                Ok(x) => {
                    assert_kind(x.ino(), x.kind(), &right);
                    let at = right.iter().position(|(ino, _)| *ino == x.ino()).unwrap();
                    tally.hit(sources[at]);
                }
                Err(error) => {
                    assert_eq!(error, Errno::NOENT);
                    tally.hit("nothing");
                }
            },
        );
        if tally.is_complete() {
            break;
        }
    }
    tally.assert_all_reached();
}

/// Control (a variant with the bug must fail): the check gets the kind of one file with the inode
/// of another file, and must fail.
#[test]
#[should_panic(expected = "does not go with")]
fn control_kind_of_another_inode_is_caught() {
    let right = [(1, FileKind::Regular), (2, FileKind::Directory)];
    assert_kind(2, FileKind::Regular, &right);
}

/// The reported parent of a directory must be one that it had during the call, even if parents are
/// dropped and their slots reused. Trap T19 in `traps.md`.
#[test]
fn parent_of_a_directory_is_one_it_had_during_the_call() {
    let _watchdog = Watchdog::start("parents that come and go", Duration::from_secs(120));
    let vfs = new();
    tree(&vfs, &["p0/", "p0/d/"]);
    let d = walk(&vfs, "p0/d").unwrap();
    // All parents that the directory has had, in the order of the moves. The last move may still be
    // running.
    let allowed = Mutex::new(vec![walk(&vfs, "p0").unwrap().ino()]);
    beside(
        5_000,
        |i| {
            let (old, fresh) = (format!("p{i}"), format!("p{}", i + 1));
            tree(&vfs, &[&format!("{fresh}/")]);
            allowed.lock().unwrap().push(walk(&vfs, &fresh).unwrap().ino());
            let (from, to) = (format!("{old}/d"), format!("{fresh}/d"));
            rename(&vfs, &from, &to, RenameMode::Replace).unwrap();
            remove(&vfs, &old, Removal::Rmdir).unwrap();
            vfs.prune();
        },
        |_| {
            let before = allowed.lock().unwrap().len();
            let parent = vfs.parent_ino(&d).unwrap();
            let allowed = allowed.lock().unwrap();
            // Each new parent is added to `allowed` before the move. When the call began, the move
            // to the last element may not have happened yet. So the call may return this element,
            // the one before it, or a newer one.
            let since = before.saturating_sub(2);
            assert!(allowed[since..].contains(&parent), "a parent from before the call: {parent}");
        },
    );
}

fn contend_for_names(seed: Seed) {
    let vfs = over(HookedTmpfs::new(|_, _| Ok(())));
    race::run(4, seed, |mut racer| {
        let (root, cred) = (vfs.root(), Cred::root());
        for _ in 0..20_000 {
            let name = name(["a", "b"][racer.rng.index(2)]);
            let result = match racer.rng.below(4) {
                0 => vfs.make(&cred, &root, name, Make::new(0o644, 0, 0)).map(drop),
                1 => vfs.remove(&cred, &root, name, Removal::Unlink),
                2 => vfs.invalidate(&root, name),
                _ => vfs.lookup(&cred, &root, name).map(drop),
            };
            let expected = [Ok(()), Err(Errno::NOENT), Err(Errno::EXIST)];
            assert!(expected.contains(&result), "{result:?}");
        }
    });
}

/// Four threads on one CPU that change the same two names must finish in bounded time. If a waiting
/// thread spun, it would keep the other threads from running. Trap T22 in `traps.md`.
#[test]
fn contention_for_a_name_on_one_processor_ends() {
    const NAME: &str = "traps_lookup::races::contention_for_a_name_on_one_processor_ends";
    if reexec::role().is_some() {
        contend_for_names(Seed::choose());
        return;
    }
    let limit = Duration::from_secs(60);
    Reexec::test(NAME).role("contend").on_one_cpu().timeout(limit).run().assert_success();
}

/// Control (a variant with the bug must fail): on one CPU, a waiting thread spins for ever. The
/// time limit must stop the test.
#[test]
fn control_spinning_waiter_on_one_processor_is_caught() {
    const NAME: &str = "traps_lookup::races::control_spinning_waiter_on_one_processor_is_caught";
    if reexec::role().is_some() {
        loop {
            corewalk_base::primitives::hint::spin_loop();
        }
    }
    let limit = Duration::from_secs(1);
    let child = Reexec::test(NAME).role("spin").on_one_cpu().timeout(limit).run();
    assert!(child.timed_out, "{child}");
}

fn assert_is_tree(parents: impl Fn(u64) -> u64, dirs: &[u64], root: u64) {
    for &dir in dirs {
        let mut at = dir;
        for _ in 0..=dirs.len() {
            at = if at == root { root } else { parents(at) };
        }
        assert_eq!(at, root, "{dir} is below itself");
    }
}

/// Directories that are moved at random must stay a tree, and no thread may wait for ever. Names in
/// random directories are invalidated meanwhile, so some moves use names that are not cached, below
/// directories that no lookup finds. Traps T26 and T27 in `traps.md`.
#[test]
fn randomly_moved_directories_stay_a_tree() {
    let _watchdog = Watchdog::start("random moves", Duration::from_secs(120));
    let vfs = new();
    let names = ["a", "b", "c", "d", "e", "f"];
    tree(&vfs, &names.map(|name| format!("{name}/")).each_ref().map(String::as_str));
    let dirs = names.map(|name| walk(&vfs, name).unwrap());
    let tally = Tally::new(["moved", "loop", "other"]);
    let cred = Cred::root();
    race::run(4, Seed::choose(), |mut racer| {
        let root = vfs.root();
        for _ in 0..8_000 {
            let mut dir = || racer.rng.index(7);
            let (moved, from, to) = (dir() % 6, dir(), dir());
            let place = |i: usize| dirs.get(i).unwrap_or(&root);
            // A move keeps the directory's name, and changes only its parent.
            let (from, to) = ((place(from), name(names[moved])), (place(to), name(names[moved])));
            match vfs.rename(&cred, from, to, RenameMode::NoReplace) {
                Ok(()) => tally.hit("moved"),
                Err(Errno::INVAL) => tally.hit("loop"),
                Err(_) => tally.hit("other"),
            }
            if racer.rng.chance(1, 20) {
                vfs.invalidate_dir(place(racer.rng.index(7))).unwrap();
            }
        }
    });
    tally.assert_all_reached();
    let inos = dirs.each_ref().map(|dir| dir.ino());
    let parent = |ino| {
        let dir = dirs.iter().find(|dir| dir.ino() == ino).unwrap();
        vfs.parent_ino(dir).unwrap()
    };
    assert_is_tree(parent, &inos, vfs.root().ino());
}

/// Control (a variant with the bug must fail): two moves of directories are made together without a
/// check. Each alone is valid, but together they make a loop.
#[test]
#[should_panic(expected = "below itself")]
fn control_loop_of_two_moves_is_caught() {
    assert_is_tree(|ino| if ino == 2 { 3 } else { 2 }, &[2, 3], 1);
}

/// A rename between two removed directories must fail immediately, although they have no common
/// ancestor. Trap T27 in `traps.md`.
#[test]
fn rename_between_removed_directories_fails_at_once() {
    let vfs = new();
    tree(&vfs, &["a/", "b/", "f"]);
    let (a, b, root) = (walk(&vfs, "a").unwrap(), walk(&vfs, "b").unwrap(), vfs.root());
    remove(&vfs, "a", Removal::Rmdir).unwrap();
    remove(&vfs, "b", Removal::Rmdir).unwrap();
    let cred = Cred::root();
    for (from, to) in [(&a, &b), (&b, &a), (&a, &a), (&root, &a), (&a, &root)] {
        for mode in [RenameMode::Replace, RenameMode::NoReplace, RenameMode::Exchange] {
            let result = vfs.rename(&cred, (from, name("f")), (to, name("f")), mode);
            assert_eq!(result, Err(Errno::NOENT));
        }
    }
}
