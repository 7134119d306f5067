//! Reading tmpfs directories during changes.

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::time::Duration;

use corewalk::attr::mode;
use corewalk::tmpfs::{Tmpfs, TmpfsOptions};
use corewalk::{Errno, FileKind, FileSystem, Make, Name, Node, RenameMode};
use corewalk_base::primitives::atomic::{AtomicBool, Ordering};
use corewalk_testkit::race::{self, Watchdog};
use corewalk_testkit::rng::{ReportSeed, Rng, Seed};

const ROOT: u64 = 1;

fn dir(ino: u64) -> Node<'static> {
    Node::detached(ino, FileKind::Directory)
}

fn make(fs: &Tmpfs, name: &str) -> u64 {
    let name = Name::new(name.as_bytes()).unwrap();
    fs.make(dir(ROOT), name, &Make::new(0o644, 0, 0)).unwrap().ino
}

fn remove(fs: &Tmpfs, name: &str) -> Result<(), Errno> {
    let name = Name::new(name.as_bytes()).unwrap();
    let ino = fs.lookup(dir(ROOT), name)?.ino;
    fs.remove(dir(ROOT), name, Node::detached(ino, FileKind::Regular))?;
    fs.forget(ino, 0);
    Ok(())
}

fn rename(fs: &Tmpfs, from: &str, to: &str, mode: RenameMode) -> Result<(), Errno> {
    let [from, to] = [from, to].map(|name| (dir(ROOT), Name::new(name.as_bytes()).unwrap()));
    fs.rename(from, to, mode)
}

fn pass(fs: &Tmpfs, step: usize, mut between: impl FnMut()) -> Vec<String> {
    let (mut names, mut cookie) = (Vec::new(), 0);
    loop {
        let mut taken = 0;
        fs.readdir(dir(ROOT), cookie, &mut |entry| {
            if taken == step {
                return ControlFlow::Break(());
            }
            assert!(entry.cookie > cookie, "cookies do not ascend");
            (taken, cookie) = (taken + 1, entry.cookie);
            names.push(String::from_utf8(entry.name.as_bytes().to_vec()).unwrap());
            ControlFlow::Continue(())
        })
        .unwrap();
        if taken == 0 {
            return names;
        }
        assert!(names.len() < 2_000_000, "the pass does not end");
        between();
    }
}

fn assert_each_once(names: &[String], prefix: &str, count: usize, seed: Seed) {
    let stable = || names.iter().filter(|name| name.starts_with(prefix));
    let distinct: BTreeSet<_> = stable().collect();
    assert_eq!((stable().count(), distinct.len()), (count, count), "{prefix}: {seed}");
}

/// A listing must report each entry that exists during the whole listing exactly once. Traps T48
/// and P13 in `traps.md`.
#[test]
fn readdir_during_changes_reports_each_stable_entry_once() {
    let report = ReportSeed::new(Seed::choose());
    let mut rng = Rng::new(report.seed());
    for step in [1, 2, 7, 33, 400] {
        let fs = Tmpfs::new(TmpfsOptions::default());
        for n in 0..700 {
            make(&fs, &format!("stable{n}"));
            make(&fs, &format!("going{n}"));
        }
        let (mut coming, mut target) = (0, 0);
        let names = pass(&fs, step, || {
            for _ in 0..rng.below(8) {
                let _ = remove(&fs, &format!("going{}", rng.below(700)));
                // Make at most 700 new files, so that the listing ends.
                if coming < 700 {
                    make(&fs, &format!("coming{coming}"));
                    coming += 1;
                }
                // Rename a file onto a name `stableN`, and exchange two names `stableN`. Each must
                // keep its directory entry, and so its position in the listing.
                if target < 300 {
                    let stable = format!("stable{}", rng.below(700));
                    make(&fs, &format!("file{target}"));
                    let modes = [RenameMode::Replace, RenameMode::Exchange];
                    rename(&fs, &format!("file{target}"), &stable, *rng.pick(&modes)).unwrap();
                    target += 1;
                }
                let other = format!("stable{}", rng.below(700));
                rename(&fs, &format!("stable{}", rng.below(700)), &other, RenameMode::Exchange)
                    .unwrap();
            }
        });
        assert_each_once(&names, "stable", 700, report.seed());
        let distinct: BTreeSet<_> = names.iter().collect();
        assert_eq!(distinct.len(), names.len(), "a name that was not reused is reported twice");
        // After the removals, no removed entry may be listed.
        let left = pass(&fs, 100, || {});
        assert_each_once(&left, "stable", 700, report.seed());
        assert!(
            left.iter()
                .all(|name| fs.lookup(dir(ROOT), Name::new(name.as_bytes()).unwrap()).is_ok())
        );
    }
}

/// A listing must report a file that is renamed within its directory once. It must end even if each
/// reported file is renamed.
#[test]
fn readdir_during_renames_reports_each_file_once() {
    const COUNT: usize = 500;
    for step in [1, 7, 100] {
        let fs = Tmpfs::new(TmpfsOptions::default());
        let files: BTreeSet<u64> = (0..COUNT).map(|n| make(&fs, &format!("f{n}"))).collect();
        let (mut seen, mut cookie, mut renamed) = (Vec::new(), 0, 0);
        loop {
            let mut batch = Vec::new();
            fs.readdir(dir(ROOT), cookie, &mut |entry| {
                if batch.len() == step {
                    return ControlFlow::Break(());
                }
                cookie = entry.cookie;
                batch.push((String::from_utf8(entry.name.as_bytes().to_vec()).unwrap(), entry.ino));
                ControlFlow::Continue(())
            })
            .unwrap();
            if batch.is_empty() {
                break;
            }
            for (name, ino) in batch {
                seen.push(ino);
                assert!(seen.len() <= COUNT, "the pass does not end");
                rename(&fs, &name, &format!("r{renamed}"), RenameMode::NoReplace).unwrap();
                renamed += 1;
            }
            // Also rename a file that the listing may not have reported yet.
            let ahead = (renamed * 7919) % COUNT;
            let _ = rename(&fs, &format!("f{ahead}"), &format!("x{ahead}"), RenameMode::NoReplace);
        }
        assert_eq!((seen.len(), seen.into_iter().collect::<BTreeSet<_>>()), (COUNT, files));
    }
}

/// If other threads change the directory, a listing must still report each stable entry exactly
/// once. Traps T48 and P13 in `traps.md`.
#[test]
fn readdir_during_concurrent_changes_reports_each_stable_entry_once() {
    let _watchdog = Watchdog::start("readdir amid threads", Duration::from_secs(120));
    let fs = Tmpfs::new(TmpfsOptions::default());
    for n in 0..3_000 {
        make(&fs, &format!("stable{n}"));
    }
    let (seed, is_done) = (Seed::choose(), AtomicBool::new(false));
    race::run(4, seed, |mut racer| {
        if racer.thread == 0 {
            for round in 0..30 {
                let names = pass(&fs, 1 + round * 13, || {});
                assert_each_once(&names, "stable", 3_000, seed);
            }
            // ORDERING: Relaxed. The threads only stop earlier or later.
            is_done.store(true, Ordering::Relaxed);
        }
        let mut made = BTreeSet::new();
        // ORDERING: Relaxed. The threads only stop earlier or later.
        while !is_done.load(Ordering::Relaxed) {
            let name = format!("other{}-{}", racer.thread, racer.rng.below(500));
            if made.insert(name.clone()) {
                make(&fs, &name);
            } else if racer.rng.chance(1, 2) {
                remove(&fs, &name).unwrap();
                made.remove(&name);
            } else {
                let stable = format!("stable{}", racer.rng.below(3_000));
                rename(&fs, &name, &stable, RenameMode::Exchange).unwrap();
            }
        }
    });
}

/// A directory of a million files changes during a listing by many short `readdir` calls. The
/// listing must contain each file that exists throughout. Trap P13 in `traps.md`.
#[test]
fn readdir_of_a_million_entries_during_changes_is_complete() {
    const COUNT: usize = 1_000_000;
    let _watchdog = Watchdog::start("directory of a million entries", Duration::from_secs(300));
    let fs = Tmpfs::new(TmpfsOptions::default());
    for n in 0..COUNT {
        make(&fs, &format!("s{n}"));
    }
    let (mut calls, mut sum) = (0, 0);
    let names = pass(&fs, 100, || {
        // Stop making files, because each call would find a new entry, and the listing would not
        // end.
        if calls < COUNT / 100 {
            make(&fs, &format!("coming{calls}"));
        }
        if calls % 2 == 1 && calls < COUNT / 100 {
            remove(&fs, &format!("coming{}", calls - 1)).unwrap();
        }
        calls += 1;
        let probe = format!("s{}", (calls * 7919) % COUNT);
        sum += fs.lookup(dir(ROOT), Name::new(probe.as_bytes()).unwrap()).unwrap().ino;
    });
    assert!(calls >= COUNT / 100 && sum > 0);
    let mut seen = vec![false; COUNT];
    for name in names.iter().filter_map(|name| name.strip_prefix('s')) {
        let seen = &mut seen[name.parse::<usize>().unwrap()];
        assert!(!*seen, "{name} is reported twice");
        *seen = true;
    }
    assert!(seen.iter().all(|&seen| seen));
    assert_eq!(fs.getattr(dir(ROOT)).unwrap().nlink, 2);
}

#[test]
fn readdir_ends_at_the_end_or_a_break() {
    let fs = Tmpfs::new(TmpfsOptions::default());
    for count in 0..3_000 {
        if [0, 1, 31, 32, 33, 96, 1_000].contains(&count) || count > 2_998 {
            let mut cookies = Vec::new();
            fs.readdir(dir(ROOT), 0, &mut |entry| {
                cookies.push(entry.cookie);
                ControlFlow::Continue(())
            })
            .unwrap();
            assert_eq!(cookies.len(), count, "one call does not report everything");
            let mut calls = 0;
            fs.readdir(dir(ROOT), 0, &mut |_| {
                calls += 1;
                if calls > count / 2 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            })
            .unwrap();
            assert_eq!(calls, count.min(count / 2 + 1), "entries are reported after a break");
        }
        make(&fs, &format!("f{count}"));
    }
}

#[test]
fn readdir_reports_kind_number_and_place() {
    let fs = Tmpfs::new(TmpfsOptions::default());
    let what = Make::new(mode::S_IFDIR | 0o755, 0, 0);
    let d = fs.make(dir(ROOT), Name::new(b"d").unwrap(), &what).unwrap().ino;
    let f = make(&fs, "f");
    let mut entries = Vec::new();
    let mut sink = |entry: corewalk::DirEntry<'_>| {
        entries.push((entry.name.as_bytes().to_vec(), entry.ino, entry.kind));
        ControlFlow::Continue(())
    };
    fs.readdir(dir(ROOT), 0, &mut sink).unwrap();
    fs.readdir(dir(d), 0, &mut sink).unwrap();
    fs.readdir(dir(ROOT), u64::MAX, &mut sink).unwrap();
    let expected = [(b"d".to_vec(), d, FileKind::Directory), (b"f".to_vec(), f, FileKind::Regular)];
    assert_eq!(entries, expected);
    assert_eq!(fs.readdir(dir(f), 0, &mut |_| ControlFlow::Continue(())), Err(Errno::NOTDIR));
}
