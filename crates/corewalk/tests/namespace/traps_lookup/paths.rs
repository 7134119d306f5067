//! Path translations while names change (traps T4, T5, T8, T9, T11, T17 in `traps.md`).

use std::sync::Arc;
use std::time::Duration;

use corewalk::tmpfs::{Tmpfs, TmpfsOptions};
use corewalk::{
    Cred, Errno, FsStruct, PathKind, PathRef, Removal, RenameMode, Vfs, VfsOptions, WalkFlags,
};
use corewalk_base::primitives::atomic::{AtomicU64, Ordering};
use corewalk_base::primitives::thread;
use corewalk_testkit::race::{self, Tally, Watchdog};
use corewalk_testkit::rng::Seed;

use super::beside;
use crate::fixtures::{at, name, new, remove, rename, tree, walk};

fn place<'v>(vfs: &'v Vfs, path: &str) -> PathRef<'v> {
    vfs.walk(&Cred::root(), &at(vfs), path.as_bytes(), WalkFlags::empty()).unwrap()
}

fn rename_over_a_held_name(a: &str, b: &str, mode: RenameMode) {
    let vfs = new();
    tree(&vfs, &["d/", &format!("d/{a}"), &format!("d/{b}")]);
    let root = vfs.root_path();
    let (moved, replaced) = (place(&vfs, &format!("d/{a}")), place(&vfs, &format!("d/{b}")));
    rename(&vfs, &format!("d/{a}"), &format!("d/{b}"), mode).unwrap();
    let path = format!("/d/{b}").into_bytes();
    assert_eq!(moved.path_of(&root), (path.clone(), PathKind::Linked));
    assert_eq!(replaced.path_of(&root), (path, PathKind::Unlinked), "the old target lost its name");
}

fn name_pairs() -> Vec<(String, String)> {
    let lens = [1, 39, 40, 41, 96, 255];
    let pairs = lens.iter().flat_map(|&a| lens.iter().map(move |&b| (a, b)));
    pairs.map(|(a, b)| ("a".repeat(a), "b".repeat(b))).collect()
}

/// After a rename over a file, the dentry of the replaced file must keep that file's own name. Trap
/// T4 in `traps.md`.
#[test]
fn replaced_file_keeps_its_own_name() {
    for (a, b) in name_pairs() {
        rename_over_a_held_name(&a, &b, RenameMode::Replace);
    }
}

/// Control (a variant with the bug must fail): a rename exchanges the names of the two dentries, as
/// Linux once did.
#[test]
#[should_panic(expected = "the old target lost its name")]
fn control_exchanged_names_are_caught() {
    rename_over_a_held_name("a", "b", RenameMode::Exchange);
}

/// Returns a name that consists of one letter, repeated. The letter determines the length. So the
/// test notices a name of which only a part was read.
fn uniform_name(letter: u8) -> Vec<u8> {
    let len = 30 + usize::from(letter - b'a') * 9;
    vec![letter; len]
}

fn assert_whole(path: &[u8]) {
    let letter = path[1];
    assert!(letter.is_ascii_lowercase(), "not a name: {}", path.escape_ascii());
    assert_eq!(&path[1..], uniform_name(letter), "torn: {}", path.escape_ascii());
}

/// Files with long names are made, removed and evicted, so that the memory of their names is reused
/// immediately. Every translated path must be complete, and no name memory may be leaked or freed
/// twice. Trap T5 in `traps.md`.
#[test]
fn reused_long_names_are_never_torn() {
    let _watchdog = Watchdog::start("reused long names", Duration::from_secs(300));
    // With 1024 entries the hash tables do not grow. So only entries and their names change
    // `Stats::bytes`.
    let options = VfsOptions::default().with_entries_max(1024);
    let vfs = Vfs::new(Arc::new(Tmpfs::new(TmpfsOptions::default())), options).unwrap();
    let start = vfs.stats();
    let tally = Tally::new(["named", "removed", "missing"]);
    race::run(4, Seed::choose(), |mut racer| {
        let (root, cred) = (vfs.root(), Cred::root());
        for _ in 0..20_000 {
            let from = uniform_name(b'a' + racer.rng.below(26) as u8);
            let to = uniform_name(b'a' + racer.rng.below(26) as u8);
            let (from, to) =
                (corewalk::Name::new(&from).unwrap(), corewalk::Name::new(&to).unwrap());
            match racer.rng.below(8) {
                0 => drop(vfs.make(&cred, &root, from, corewalk::Make::new(0o644, 0, 0))),
                1 => drop(vfs.remove(&cred, &root, from, Removal::Unlink)),
                2 => drop(vfs.rename(&cred, (&root, from), (&root, to), RenameMode::Replace)),
                3 => drop(vfs.invalidate(&root, from)),
                4 if racer.rng.chance(1, 20) => {
                    vfs.prune();
                }
                _ => match vfs.lookup(&cred, &root, from).map(|found| found.path()) {
                    Ok(Ok(path)) => {
                        assert_whole(&path);
                        tally.hit("named");
                    }
                    Ok(Err(error)) => {
                        assert_eq!(error, Errno::NOENT);
                        tally.hit("removed");
                    }
                    Err(error) => {
                        assert_eq!(error, Errno::NOENT);
                        tally.hit("missing");
                    }
                },
            }
        }
    });
    assert!(tally.count("named") > 0 && tally.count("missing") > 0, "{}", tally.counts_text());
    for letter in b'a'..=b'z' {
        let name = uniform_name(letter);
        let name = corewalk::Name::new(&name).unwrap();
        let _ = vfs.remove(&Cred::root(), &vfs.root(), name, Removal::Unlink);
    }
    vfs.prune();
    let end = vfs.stats();
    assert_eq!((end.entries, end.negatives, end.inodes), (start.entries, 0, start.inodes));
    assert_eq!(end.bytes, start.bytes, "memory of a name was leaked or freed twice");
}

/// Control (a variant with the bug must fail): some bytes of a name come from another name, as in a
/// torn read.
#[test]
#[should_panic(expected = "torn")]
fn control_torn_name_is_caught() {
    let (mut path, other) = ([b"/", &uniform_name(b'c')[..]].concat(), uniform_name(b'd'));
    path[32..40].copy_from_slice(&other[31..39]);
    assert_whole(&path);
}

/// Path translations and walks must end although another thread continually renames directories on
/// the path. Trap T9 in `traps.md`.
#[test]
fn translation_under_a_storm_of_ancestor_renames_ends() {
    let _watchdog = Watchdog::start("a storm of ancestor renames", Duration::from_secs(120));
    let vfs = new();
    tree(&vfs, &["a/", "a/b/", "a/b/c/", "a/b/c/d/", "a/b/c/d/e/", "a/b/c/d/e/f"]);
    let f = walk(&vfs, "a/b/c/d/e/f").unwrap();
    let (root, cred, place) = (vfs.root(), Cred::root(), at(&vfs));
    let dirs = [vfs.root(), walk(&vfs, "a").unwrap(), walk(&vfs, "a/b").unwrap()];
    let names = [("a", "A"), ("b", "B"), ("c", "C")];
    let found = AtomicU64::new(0);
    beside(
        50_000,
        |i| {
            let at = i as usize % 3;
            let (from, to) = names[at];
            let (from, to) = if i / 3 % 2 == 0 { (from, to) } else { (to, from) };
            let dir = &dirs[at];
            vfs.rename(&cred, (dir, name(from)), (dir, name(to)), RenameMode::Replace).unwrap();
        },
        |racer| {
            let path = f.path().unwrap();
            assert_eq!(path.to_ascii_lowercase(), b"/a/b/c/d/e/f");
            if racer.rng.chance(1, 4)
                && vfs.resolve_path(&cred, &place, &path, WalkFlags::FOLLOW).is_ok()
            {
                // ORDERING: Relaxed. Statistic.
                found.fetch_add(1, Ordering::Relaxed);
            }
        },
    );
    // ORDERING: Relaxed. All threads have been joined.
    assert!(found.load(Ordering::Relaxed) > 0, "no walk succeeded");
    assert_eq!(root.path().unwrap(), b"/");
}

/// A translation that starts again must keep no name from its previous attempt. The directory moves
/// between depths 1 and 6, so a leftover name would show. Trap T8 in `traps.md`.
#[test]
fn repeated_translation_keeps_nothing() {
    let _watchdog = Watchdog::start("moves between depths", Duration::from_secs(120));
    let vfs = new();
    tree(&vfs, &["p/", "p/q/", "p/q/r/", "p/q/r/s/", "p/q/r/s/t/", "d/", "d/f"]);
    let (root, deep) = (vfs.root(), walk(&vfs, "p/q/r/s/t").unwrap());
    let (cred, f) = (Cred::root(), walk(&vfs, "d/f").unwrap());
    let tally = Tally::new(["shallow", "deep"]);
    beside(
        50_000,
        |i| {
            let (from, to) = if i % 2 == 0 { (&root, &deep) } else { (&deep, &root) };
            vfs.rename(&cred, (from, name("d")), (to, name("d")), RenameMode::Replace).unwrap();
        },
        |_| match &f.path().unwrap()[..] {
            b"/d/f" => tally.hit("shallow"),
            b"/p/q/r/s/t/d/f" => tally.hit("deep"),
            path => panic!("no such path: {}", path.escape_ascii()),
        },
    );
    tally.assert_all_reached();
}

/// For each kind of path, each format must give the right text. Trap T11 in `traps.md`.
#[test]
fn path_results_have_their_kinds_and_formats() {
    use PathKind::{Linked, OutsideRoot, Unlinked};
    let vfs = new();
    let long = "n".repeat(255);
    tree(
        &vfs,
        &["jail/", "jail/in/", "out/", "out/f", "gone", "x (deleted)", "m/", &format!("{long}/")],
    );
    vfs.mount(Arc::new(Tmpfs::new(TmpfsOptions::default())), &place(&vfs, "m")).unwrap();
    tree(&vfs, &["m/sub/", "m/sub/g"]);
    let (root, jail) = (vfs.root_path(), place(&vfs, "jail"));
    let gone = place(&vfs, "gone");
    let gone_dir = place(&vfs, "jail/in");
    remove(&vfs, "gone", Removal::Unlink).unwrap();
    remove(&vfs, "jail/in", Removal::Rmdir).unwrap();
    let noent = Err(Errno::NOENT);
    let long_path = [b"/", long.as_bytes()].concat();
    type Formatted<'a> = Result<&'a [u8], Errno>;
    let table: [(PathRef<'_>, &PathRef<'_>, &[u8], PathKind, Formatted<'_>); 11] = [
        (root.clone(), &root, b"/", Linked, Ok(b"/")),
        (jail.clone(), &jail, b"/", Linked, Ok(b"/")),
        (place(&vfs, "out/f"), &root, b"/out/f", Linked, Ok(b"/out/f")),
        (place(&vfs, "m"), &root, b"/m", Linked, Ok(b"/m")),
        (place(&vfs, "m/sub/g"), &root, b"/m/sub/g", Linked, Ok(b"/m/sub/g")),
        (place(&vfs, "m/sub/g"), &place(&vfs, "m/sub"), b"/g", Linked, Ok(b"/g")),
        (place(&vfs, &long), &root, &long_path, Linked, Ok(&long_path)),
        (place(&vfs, "out/f"), &jail, b"/out/f", OutsideRoot, Ok(b"(unreachable)/out/f")),
        (root.clone(), &jail, b"/", OutsideRoot, Ok(b"(unreachable)/")),
        (gone_dir, &root, b"/jail/in", Unlinked, noent),
        (gone, &root, b"/gone", Unlinked, noent),
    ];
    for (place, from, path, kind, cwd) in table {
        assert_eq!(place.path_of(from), (path.to_vec(), kind));
        assert_eq!(place.getcwd(from).as_deref(), cwd.as_deref());
        let end: &[u8] = if kind == Unlinked { b" (deleted)" } else { b"" };
        assert_eq!(place.d_path(from), [path, end].concat());
    }
    let (odd, text) = (place(&vfs, "x (deleted)"), b"/x (deleted)".to_vec());
    assert_eq!(odd.d_path(&root), text);
    assert_eq!(odd.path_of(&root), (text, Linked));
}

/// Trap T11: a path must be complete, whatever its length.
#[test]
fn path_longer_than_any_buffer_is_complete() {
    let vfs = new();
    let part = "d".repeat(200);
    let (mut dir, mut path) = (vfs.root(), Vec::new());
    for _ in 0..100 {
        let what = corewalk::Make::new(corewalk::attr::mode::S_IFDIR | 0o755, 0, 0);
        dir = vfs.make(&Cred::root(), &dir, name(&part), what).unwrap().0;
        path.extend_from_slice(b"/");
        path.extend_from_slice(part.as_bytes());
        assert_eq!(dir.path().unwrap(), path);
    }
    assert!(path.len() > 4 * corewalk::PATH_MAX);
}

/// A thread walks from a directory that is being removed. Meanwhile the other references to the
/// directory are dropped, so that its dentry dies and the slot is reused. The walk must find that
/// directory, its old parent, or nothing. Trap T17 in `traps.md`.
#[test]
fn walk_from_a_removed_directory_stays_there() {
    let _watchdog = Watchdog::start("walks from a removed directory", Duration::from_secs(120));
    let vfs = new();
    tree(&vfs, &["p/"]);
    let parent = walk(&vfs, "p").unwrap().ino();
    let seed = Seed::choose();
    for i in 0..3_000 {
        tree(&vfs, &["p/d/"]);
        let (one, two) = (place(&vfs, "p/d"), place(&vfs, "p/d"));
        let ino = one.inode().ino();
        let cred = Cred::root();
        let visit = |cwd: PathRef<'_>| {
            let start = FsStruct { root: vfs.root_path(), cwd: cwd.clone() };
            drop(cwd);
            let go = |path: &[u8]| vfs.walk(&cred, &start, path, WalkFlags::FOLLOW);
            assert_eq!(go(b".").unwrap().inode().ino(), ino, "another directory");
            assert_eq!(go(b"x").err(), Some(Errno::NOENT));
            assert_eq!(go(b"..").unwrap().inode().ino(), parent, "another parent");
        };
        thread::scope(|scope| {
            scope.spawn(|| visit(one));
            scope.spawn(|| visit(two));
            remove(&vfs, "p/d", Removal::Rmdir).unwrap();
            tree(&vfs, &["p/e/", "p/e/x"]);
            vfs.prune();
            remove(&vfs, "p/e/x", Removal::Unlink).unwrap();
            remove(&vfs, "p/e", Removal::Rmdir).unwrap();
        });
        assert!(vfs.stats().inodes <= 3, "round {i} of {seed:?} left something behind");
    }
}
