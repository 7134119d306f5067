//! Tests with many reclaimers, many entries or many references.

use std::time::Duration;

use corewalk::attr::mode::S_IFREG;
use corewalk::tmpfs::{Tmpfs, TmpfsOptions};
use corewalk::{Cred, Errno, InodeRef, Make, PathKind, Removal, Vfs, VfsOptions, WalkFlags};
use corewalk_base::primitives::atomic::{AtomicBool, Ordering};
use corewalk_testkit::race::{self, Watchdog};
use corewalk_testkit::reexec::{self, Reexec};
use corewalk_testkit::rng::Seed;

use super::cpu_time;
use crate::fixtures::{at, name, new, remove, tree, walk};

fn fill(vfs: &Vfs, dir: &InodeRef<'_>, count: u32) {
    for i in 0..count {
        let file = format!("f{i}");
        vfs.make(&Cred::root(), dir, name(&file), Make::new(S_IFREG | 0o644, 0, 0)).unwrap();
    }
}

fn invalidate_and_evict(threads: usize, children: u32) -> Duration {
    let vfs = new();
    tree(&vfs, &["d/"]);
    let dir = walk(&vfs, "d").unwrap();
    fill(&vfs, &dir, children);
    let before = vfs.stats();
    let times = race::run(threads, Seed::choose(), |_| {
        cpu_time(|| {
            vfs.invalidate_dir(&dir).unwrap();
            vfs.prune()
        })
    });
    let evicted: u64 = times.iter().map(|(_, evicted)| evicted).sum();
    assert_eq!(evicted, u64::from(children), "an entry was not evicted exactly once");
    assert_eq!(vfs.stats().entries, before.entries - u64::from(children));
    times.iter().map(|(time, _)| *time).sum()
}

/// Sixteen threads that invalidate one directory of 200,000 names must together do about the work
/// of one thread. If they skipped each other's entries again and again, the work would be at least
/// sixteen times as much. Trap T45 in `traps.md`.
#[test]
fn sixteen_invalidators_of_a_huge_directory_cost_little_more_than_one() {
    let _watchdog = Watchdog::start("sixteen invalidators", Duration::from_secs(300));
    const CHILDREN: u32 = 200_000;
    let one = (0..3).map(|_| invalidate_and_evict(1, CHILDREN)).min().expect("three runs");
    let sixteen = (0..3).map(|_| invalidate_and_evict(16, CHILDREN)).min().expect("three runs");
    // When other programs used the caches of the machine, sixteen threads took six times the time
    // of one. So allow twelve times the time.
    assert!(sixteen < one * 12, "one: {one:?}, sixteen: {sixteen:?}");
}

/// An invalidation of a directory must take no longer for 200,000 names than for 200. Trap T45 in
/// `traps.md`.
#[test]
fn invalidation_does_not_depend_on_the_size_of_the_directory() {
    const TIMES: u32 = 100;
    let cost = |children| {
        let vfs = new();
        let dir = vfs.root();
        fill(&vfs, &dir, children);
        let run = || cpu_time(|| (0..TIMES).for_each(|_| vfs.invalidate_dir(&dir).unwrap())).0;
        (0..5).map(|_| run()).min().expect("five runs")
    };
    let (small, large) = (cost(200), cost(200_000));
    assert!(large < small * 20 + Duration::from_micros(100), "200: {small:?}, 200,000: {large:?}");
}

/// Reclaim evicts entries that a walker on the same CPU needs. Neither may spin. Together they must
/// take about as much CPU time as if they ran one after the other. Trap T46 in `traps.md`.
#[test]
fn reclaim_and_walker_on_one_processor_both_end() {
    const NAME: &str = "traps_lifetime::crowds::reclaim_and_walker_on_one_processor_both_end";
    const WALKS: u32 = 60_000;
    const PRUNES: u32 = 6_000;
    if reexec::role().is_none() {
        let child = Reexec::test(NAME).on_one_cpu().timeout(Duration::from_secs(120)).run();
        return child.assert_success();
    }
    let vfs = new();
    tree(&vfs, &["a/", "a/b/", "a/b/c/", "a/b/c/f"]);
    let (cred, place) = (Cred::root(), at(&vfs));
    let f = walk(&vfs, "a/b/c/f").unwrap().ino();
    let walks = || {
        for _ in 0..WALKS {
            let found = vfs.resolve_path(&cred, &place, b"/a/b/c/f", WalkFlags::FOLLOW);
            assert_eq!(found.unwrap().ino, f);
        }
    };
    let prunes = || {
        for _ in 0..PRUNES {
            vfs.prune();
        }
    };
    // Measure the same work on one thread. Each prune makes the walker load at most four names.
    let alone = cpu_time(|| {
        for _ in 0..PRUNES {
            vfs.prune();
            vfs.resolve_path(&cred, &place, b"/a/b/c/f", WalkFlags::FOLLOW).unwrap();
        }
        walks();
    });
    let together = race::run(2, Seed::choose(), |racer| {
        cpu_time(|| if racer.thread == 0 { walks() } else { prunes() }).0
    });
    let together: Duration = together.iter().sum();
    assert!(together < alone.0 * 5, "one after the other: {:?}, together: {together:?}", alone.0);
}

/// An entry must never show a parent that it did not have, and no entry may be left at the end.
/// Trap T49 in `traps.md`.
#[test]
fn parent_and_child_evicted_together_leave_no_stale_entry() {
    let _watchdog = Watchdog::start("parent and child", Duration::from_secs(300));
    let vfs = new();
    let start = vfs.stats();
    let names = ["p", "q", "r"];
    for a in names {
        tree(&vfs, &[&format!("{a}/")]);
        for b in names {
            tree(&vfs, &[&format!("{a}/{b}/"), &format!("{a}/{b}/f")]);
        }
    }
    let done = AtomicBool::new(false);
    race::run(4, Seed::choose(), |mut racer| {
        if racer.thread < 2 {
            // ORDERING: Relaxed. A flag; nothing is published through it.
            while !done.load(Ordering::Relaxed) {
                vfs.prune();
            }
            return;
        }
        let _done = Done(&done);
        for _ in 0..60_000 {
            let path = format!("/{}/{}/f", racer.rng.pick(&names), racer.rng.pick(&names));
            let place = at(&vfs);
            let found = vfs.walk(&Cred::root(), &place, path.as_bytes(), WalkFlags::empty());
            let (seen, kind) = found.unwrap().path_of(&place.root);
            assert_eq!((seen, kind), (path.into_bytes(), PathKind::Linked));
        }
    });
    vfs.prune();
    let end = vfs.stats();
    assert_eq!((end.entries, end.negatives, end.inodes), (start.entries, 0, start.inodes));
}

struct Done<'a>(&'a AtomicBool);

impl Drop for Done<'_> {
    fn drop(&mut self) {
        // ORDERING: Relaxed. As above.
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A client that forgets more lookups than it has must drop no other references. In the reference
/// count of an inode, one lookup counts as much as 2^28 other references. For some numbers of
/// lookups in this test, that product overflows. `corewalk_sync::Lockref` tests the limit of the
/// count itself. Trap T51 in `traps.md`.
#[test]
fn forget_of_too_many_lookups_drops_nothing() {
    let vfs = new();
    tree(&vfs, &["f"]);
    let f = walk(&vfs, "f").unwrap();
    let ino = f.clone().into_lookups();
    for excess in [2, 1 << 20, 1 << 41, (1 << 44) + 1, 1 << 44, u64::MAX / 2, u64::MAX] {
        assert!(!vfs.forget(ino, excess), "{excess} of one");
        assert_eq!(vfs.getattr(&f).unwrap().ino, ino);
    }
    assert!(vfs.forget(ino, 1));
    assert!(!vfs.forget(ino, 1));
    drop(f);
    assert_eq!(walk(&vfs, "f").unwrap().ino(), ino);
}

/// `forget` must not mistake an inode's many references for lookups of a client, and must drop none
/// of them. Trap T51 in `traps.md`.
#[test]
fn many_references_are_no_lookups() {
    let vfs = new();
    tree(&vfs, &["f"]);
    let f = walk(&vfs, "f").unwrap();
    let many: Vec<_> = (0..(1 << 20) + 5).map(|_| f.clone()).collect();
    assert!(!vfs.forget(f.ino(), 1), "forget succeeds without a lookup");
    assert_eq!(vfs.forget_all(f.ino()), 0);
    drop(many);
    remove(&vfs, "f", Removal::Unlink).unwrap();
    assert_eq!(
        vfs.getattr(&f).map(|attr| attr.nlink),
        Ok(0),
        "the file is gone though a reference is held"
    );
}

#[test]
fn forget_all_drops_lookups_alone() {
    let vfs = new();
    tree(&vfs, &["f", "g"]);
    let f = walk(&vfs, "f").unwrap();
    for _ in 0..3 {
        f.clone().into_lookups();
    }
    let ino = f.ino();
    assert_eq!(vfs.forget_all(ino), 3);
    assert_eq!(vfs.forget_all(ino), 0);
    assert!(!vfs.forget(ino, 1));
    assert_eq!(vfs.getattr(&f).map(|attr| attr.ino), Ok(ino));
    let g = walk(&vfs, "g").unwrap().into_lookups();
    remove(&vfs, "g", Removal::Unlink).unwrap();
    assert_eq!(vfs.forget_all(g), 1);
    assert_eq!(
        vfs.inode(g).map(drop),
        Err(Errno::STALE),
        "the inode is in use after its last lookup"
    );
    assert_eq!(vfs.forget_all(g), 0);
}

/// A cache of 4 MiB over 200,000 files may exceed its budget by at most 1/10, and every file must
/// be found.
#[test]
fn cache_of_4_mib_stays_in_its_budget_over_200_000_files() {
    const BUDGET: u64 = 4 << 20;
    const DIRS: u32 = 200;
    const FILES: u32 = 1000;
    let fs = std::sync::Arc::new(Tmpfs::new(TmpfsOptions::default()));
    let options =
        VfsOptions::default().with_cache_bytes(BUDGET).with_entries_max(1 << 20).with_hash_seed(1);
    let vfs = Vfs::new(fs, options).unwrap();
    let mut most = 0;
    for d in 0..DIRS {
        tree(&vfs, &[&format!("d{d}/")]);
        fill(&vfs, &walk(&vfs, &format!("d{d}")).unwrap(), FILES);
        most = most.max(vfs.stats().bytes);
    }
    for pass in 0..2 {
        for d in 0..DIRS {
            let dir = walk(&vfs, &format!("d{d}")).unwrap();
            for i in 0..FILES {
                let file = format!("f{i}");
                let found = vfs.lookup(&Cred::root(), &dir, name(&file));
                assert!(found.is_ok(), "pass {pass}: d{d}/{file}: {found:?}");
            }
            most = most.max(vfs.stats().bytes);
        }
    }
    assert!(most <= BUDGET + BUDGET / 10, "{most} bytes of {BUDGET}");
    assert!(vfs.stats().reclaimed > u64::from(DIRS * FILES), "no entry was reclaimed");
}
