//! Stress tests with lookups during renames: no lookup may miss an existing name, and no answer may
//! mix two files.

use std::sync::Arc;
use std::time::Duration;

use corewalk::tmpfs::{Tmpfs, TmpfsOptions};
use corewalk::{Cred, Errno, FsStruct, PathKind, PathRef, RenameMode, WalkFlags};
use corewalk_base::primitives::atomic::{AtomicBool, AtomicU64, Ordering};
use corewalk_base::primitives::thread;
use corewalk_testkit::race::{self, Watchdog};
use corewalk_testkit::rng::Seed;

use crate::fixtures::{at, name, new, rename, tree, walk};

const LOOKUPS: u64 = 10_000_000;
const THREADS: u64 = 4;

fn under_storm(
    seed: Seed,
    readers: u64,
    each: u64,
    storm: impl Fn(u64) + Sync,
    read: impl Fn(&mut race::Racer) + Sync,
) -> u64 {
    let (left, storms) = (AtomicU64::new(readers), AtomicU64::new(0));
    race::run(readers as usize + 1, seed, |mut racer| {
        if racer.thread == 0 {
            // ORDERING: Relaxed. The count only ends the storm.
            while left.load(Ordering::Relaxed) > 0 {
                // ORDERING: Relaxed. Statistic.
                storm(storms.fetch_add(1, Ordering::Relaxed));
            }
        } else {
            let _leaving = Leaving(&left);
            for _ in 0..each {
                read(&mut racer);
            }
        }
    });
    // ORDERING: Relaxed. All threads have been joined.
    storms.load(Ordering::Relaxed)
}

/// Counts down the running threads when it is dropped, even after a panic.
pub(crate) struct Leaving<'a>(pub(crate) &'a AtomicU64);

impl Drop for Leaving<'_> {
    fn drop(&mut self) {
        // ORDERING: Relaxed. The count only ends the storm.
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Two directories, each with a file, are exchanged repeatedly. Each path must always lead to one
/// of the two files. Traps T12, T13 and T15 in `traps.md`.
#[test]
fn ten_million_lookups_under_a_rename_storm_miss_nothing() {
    let _watchdog = Watchdog::start("lookups under a rename storm", Duration::from_secs(600));
    let vfs = new();
    tree(&vfs, &["x/", "x/d/", "x/d/f", "y/", "y/d/", "y/d/f"]);
    let files = [walk(&vfs, "x/d/f").unwrap().ino(), walk(&vfs, "y/d/f").unwrap().ino()];
    let (root, cred, place) = (vfs.root(), Cred::root(), at(&vfs));
    let storms = under_storm(
        Seed::choose(),
        THREADS,
        LOOKUPS / THREADS,
        |_| {
            let (x, y) = ((&root, name("x")), (&root, name("y")));
            vfs.rename(&cred, x, y, RenameMode::Exchange).unwrap();
        },
        |racer| {
            let path: &[u8] = if racer.rng.chance(1, 2) { b"/x/d/f" } else { b"/y/d/f" };
            let found = vfs.resolve_path(&cred, &place, path, WalkFlags::FOLLOW).unwrap();
            assert!(files.contains(&found.ino));
        },
    );
    assert!(storms > 1000, "too few renames: {storms}");
}

/// A file is moved between two directories. A lookup in the first directory, or a later one in the
/// second, must find the file, unless two renames overlap the lookups. Trap T13 in `traps.md`.
#[test]
fn renamed_file_is_never_without_a_name() {
    let _watchdog = Watchdog::start("never without a name", Duration::from_secs(300));
    let vfs = new();
    tree(&vfs, &["a/", "b/", "a/f"]);
    let (a, b) = (walk(&vfs, "a").unwrap(), walk(&vfs, "b").unwrap());
    let (cred, begun, ended) = (Cred::root(), AtomicU64::new(0), AtomicU64::new(0));
    let judged = AtomicU64::new(0);
    under_storm(
        Seed::choose(),
        2,
        100_000,
        |i| {
            let (from, to) = if i % 2 == 0 { (&a, &b) } else { (&b, &a) };
            // ORDERING(moves): SeqCst. The test compares lookups with the renames that have begun
            // and ended. That needs one order of all accesses to `begun`, `ended`, and the names
            // `a/f` and `b/f`.
            begun.fetch_add(1, Ordering::SeqCst);
            vfs.rename(&cred, (from, name("f")), (to, name("f")), RenameMode::Replace).unwrap();
            // ORDERING(moves): SeqCst. As above.
            ended.fetch_add(1, Ordering::SeqCst);
            for _ in 0..200 {
                corewalk_base::primitives::hint::spin_loop();
            }
        },
        |_| {
            // ORDERING(moves): SeqCst. As above.
            let before = ended.load(Ordering::SeqCst);
            let (from, to) = if before % 2 == 0 { (&a, &b) } else { (&b, &a) };
            let first = vfs.lookup(&cred, from, name("f"));
            let second = vfs.lookup(&cred, to, name("f"));
            // ORDERING(moves): SeqCst. As above.
            if begun.load(Ordering::SeqCst) <= before + 1 {
                assert!(first.is_ok() || second.is_ok(), "the file was found under neither name");
                // ORDERING: Relaxed. Statistic.
                judged.fetch_add(1, Ordering::Relaxed);
            }
        },
    );
    // ORDERING: Relaxed. All threads have been joined.
    assert!(judged.load(Ordering::Relaxed) > 1000, "too few lookups were judged");
}

/// A file and its directories are renamed between names of 1 and of 255 bytes. Each translated path
/// must have existed at one instant. Traps T1, T2 and P8 in `traps.md`.
#[test]
fn translated_paths_existed_at_one_instant() {
    let _watchdog = Watchdog::start("paths under renames", Duration::from_secs(300));
    let vfs = new();
    let long = "n".repeat(255);
    let odd: Vec<u8> = (1..=255).filter(|&b| b != b'/').collect();
    tree(&vfs, &["d/", "d/e/", "d/e/f"]);
    let f = walk(&vfs, "d/e/f").unwrap();
    let (root, cred) = (vfs.root(), Cred::root());
    let odd = corewalk::Name::new(&odd).unwrap();
    let steps = [(name("d"), name(&long)), (name(&long), odd), (odd, name("d"))];
    let right: Vec<Vec<u8>> = [b"d".as_slice(), long.as_bytes(), odd.as_bytes()]
        .iter()
        .map(|outer| [b"/", *outer, b"/e/f"].concat())
        .collect();
    under_storm(
        Seed::choose(),
        2,
        200_000,
        |i| {
            let (from, to) = steps[i as usize % 3];
            vfs.rename(&cred, (&root, from), (&root, to), RenameMode::Replace).unwrap();
        },
        |_| {
            let path = f.path().unwrap();
            assert!(right.contains(&path), "no such path: {}", path.escape_ascii());
        },
    );
}

/// A directory on the path of a confined walk is moved out of the walk's root and back. A confined
/// walk must never end outside of its root. Trap T20 in `traps.md`.
#[test]
fn confined_walk_never_leaves_its_root() {
    let _watchdog = Watchdog::start("confined walk", Duration::from_secs(300));
    let vfs = new();
    tree(&vfs, &["jail/", "jail/in/", "jail/in/deep/", "jail/f", "free/", "free/f", "f"]);
    let jail = vfs.walk(&Cred::root(), &at(&vfs), b"jail", WalkFlags::empty()).unwrap();
    let inside = walk(&vfs, "jail/f").unwrap().ino();
    let place = FsStruct { root: vfs.root_path(), cwd: jail };
    let (jail, free) = (walk(&vfs, "jail").unwrap(), walk(&vfs, "free").unwrap());
    let cred = Cred::root();
    let found = AtomicU64::new(0);
    under_storm(
        Seed::choose(),
        2,
        100_000,
        |i| {
            let (from, to) = if i % 2 == 0 { (&jail, &free) } else { (&free, &jail) };
            vfs.rename(&cred, (from, name("in")), (to, name("in")), RenameMode::Replace).unwrap();
        },
        |racer| {
            let flag = if racer.rng.chance(1, 2) { WalkFlags::BENEATH } else { WalkFlags::IN_ROOT };
            match vfs.resolve_path(&cred, &place, b"in/deep/../../f", flag) {
                Ok(at) => {
                    assert_eq!(at.ino, inside, "the walk left its root");
                    // ORDERING: Relaxed. Statistic.
                    found.fetch_add(1, Ordering::Relaxed);
                }
                Err(error) => assert!([Errno::NOENT, Errno::XDEV].contains(&error), "{error}"),
            }
        },
    );
    // ORDERING: Relaxed. All threads have been joined.
    assert!(found.load(Ordering::Relaxed) > 0, "no walk succeeded");
}

/// Concurrent renames between all pairs of directories, including parents and children, must end.
/// Trap P9 in `traps.md`.
#[test]
fn renames_between_all_pairs_end() {
    let _watchdog = Watchdog::start("renames between all pairs", Duration::from_secs(120));
    let vfs = new();
    let places = ["p", "q", "p/p", "p/q", "q/p", "q/q", "p/p/p", "q/q/q"];
    tree(&vfs, &["p/", "q/", "p/p/", "q/q/", "p/q", "q/p"]);
    race::run(4, Seed::choose(), |mut racer| {
        for _ in 0..20_000 {
            let (from, to) = (*racer.rng.pick(&places), *racer.rng.pick(&places));
            let mode = *racer.rng.pick(&[RenameMode::Replace, RenameMode::Exchange]);
            let _ = rename(&vfs, from, to, mode);
        }
    });
    let dir = vfs.root();
    let mut left = vec![dir];
    let mut count = 0;
    while let Some(dir) = left.pop() {
        count += 1;
        assert!(count < 100, "a loop");
        let mut names = Vec::new();
        vfs.readdir(&dir, 0, &mut |entry| {
            names.push(entry.name.as_bytes().to_vec());
            std::ops::ControlFlow::Continue(())
        })
        .unwrap();
        for entry in names {
            let child =
                vfs.lookup(&Cred::root(), &dir, corewalk::Name::new(&entry).unwrap()).unwrap();
            assert!(child.path().unwrap().ends_with(&entry));
            if child.kind() == corewalk::FileKind::Directory {
                left.push(child);
            }
        }
    }
}

/// A directory is moved back and forth between two parents, while all unused entries are evicted.
/// Each call that returns the directory's parent or path must show one of the two parents. Traps
/// T19 and T49 in `traps.md`.
#[test]
fn parent_is_one_that_the_directory_had() {
    let _watchdog = Watchdog::start("parent under moves", Duration::from_secs(120));
    let vfs = new();
    tree(&vfs, &["a/", "b/", "a/d/", "a/d/f"]);
    let (a, b) = (walk(&vfs, "a").unwrap(), walk(&vfs, "b").unwrap());
    let d = vfs.walk(&Cred::root(), &at(&vfs), b"a/d", WalkFlags::empty()).unwrap();
    let (cred, stop) = (Cred::root(), AtomicBool::new(false));
    thread::scope(|scope| {
        scope.spawn(|| {
            // ORDERING: Relaxed. A flag.
            while !stop.load(Ordering::Relaxed) {
                vfs.prune();
            }
        });
        under_storm(
            Seed::choose(),
            2,
            50_000,
            |i| {
                let (from, to) = if i % 2 == 0 { (&a, &b) } else { (&b, &a) };
                vfs.rename(&cred, (from, name("d")), (to, name("d")), RenameMode::Replace).unwrap();
            },
            |_| {
                let parent = vfs.parent_ino(&d.inode()).unwrap();
                assert!(parent == a.ino() || parent == b.ino());
                let (path, kind) = d.path_of(&vfs.root_path());
                assert_eq!(kind, PathKind::Linked);
                assert!(path == b"/a/d" || path == b"/b/d");
            },
        );
        // ORDERING: Relaxed. As above.
        stop.store(true, Ordering::Relaxed);
    });
}

/// Renames two directories in turn, one above a mount point and one in the mount, to a, b and c.
///
/// The renames make only six of the nine possible pairs of names. A path with another pair combines
/// names of different instants.
fn translate_across_mounts(
    each: u64,
    translate: impl Fn(&PathRef<'_>, [&PathRef<'_>; 2]) -> Vec<u8> + Sync,
) {
    const NAMES: [&str; 3] = ["a", "b", "c"];
    let vfs = new();
    tree(&vfs, &["a/", "a/m/"]);
    let place = |path: &str| {
        vfs.walk(&Cred::root(), &at(&vfs), path.as_bytes(), WalkFlags::FOLLOW).unwrap()
    };
    vfs.mount(Arc::new(Tmpfs::new(TmpfsOptions::default())), &place("a/m")).unwrap();
    tree(&vfs, &["a/m/a/", "a/m/a/f"]);
    let (inner, f) = (place("a/m"), place("a/m/a/f"));
    let (outer, inside, cred) = (vfs.root(), inner.inode(), Cred::root());
    let root = vfs.root_path();
    let right: Vec<String> = (0..6_usize)
        .map(|turn| format!("/{}/m/{}/f", NAMES[turn.div_ceil(2) % 3], NAMES[turn / 2]))
        .collect();
    under_storm(
        Seed::choose(),
        2,
        each,
        |i| {
            let dir = if i % 2 == 0 { &outer } else { &inside };
            let from = i as usize / 2 % 3;
            let (from, to) = (name(NAMES[from]), name(NAMES[(from + 1) % 3]));
            vfs.rename(&cred, (dir, from), (dir, to), RenameMode::NoReplace).unwrap();
        },
        |_| {
            let path = translate(&f, [&inner, &root]);
            let is_right = right.iter().any(|right| right.as_bytes() == path);
            assert!(is_right, "no such path: {}", path.escape_ascii());
        },
    );
}

/// A path that crosses a mount point must have existed as a whole at one instant. Traps T8 and P8
/// in `traps.md`.
#[test]
fn path_across_mounts_is_valid_at_one_instant() {
    let _watchdog = Watchdog::start("paths across mounts", Duration::from_secs(300));
    translate_across_mounts(200_000, |f, [_, root]| f.d_path(root));
}

/// Control (a variant with the bug must fail): a path is joined from two translations, one on each
/// side of the mount point. On one CPU it needs many attempts, because a rename seldom comes
/// between the two translations.
#[test]
#[should_panic(expected = "no such path")]
fn control_path_joined_from_two_translations_is_caught() {
    let _watchdog = Watchdog::start("joined paths", Duration::from_secs(300));
    translate_across_mounts(100_000_000, |f, [inner, root]| {
        [inner.d_path(root), f.d_path(inner)].concat()
    });
}
