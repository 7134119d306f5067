//! Chains of directories that no path could name, and what it takes to let go of them.

use std::time::Duration;

use corewalk::attr::mode::S_IFDIR;
use corewalk::{Cred, FsStruct, Make, PathRef, Removal, Vfs, WalkFlags};
use corewalk_sync::primitives::thread;
use corewalk_testkit::race::Watchdog;

use super::cpu_time;
use crate::fixtures::{name, new};

/// The stack of a thread that must get by without recursion.
const STACK_BYTES: usize = 64 << 10;

/// Makes a chain of `depth` directories, all called `d`, and returns the last one.
fn chain(vfs: &Vfs, depth: u32) -> PathRef<'_> {
    let cred = Cred::root();
    let mut at = vfs.root_path();
    for _ in 0..depth {
        let what = Make::new(S_IFDIR | 0o755, 0, 0);
        vfs.make(&cred, &at.inode(), name("d"), what).unwrap();
        let place = FsStruct { root: vfs.root_path(), cwd: at };
        at = vfs.walk(&cred, &place, b"d", WalkFlags::empty()).unwrap();
    }
    at
}

/// Runs `work` on a thread with a small stack.
fn on_a_small_stack(work: impl FnOnce() + Send) {
    thread::scope(|scope| {
        let thread = thread::Builder::new().stack_size(STACK_BYTES);
        thread.spawn_scoped(scope, work).unwrap().join().unwrap();
    });
}

/// Trap T43: a chain of a million directories, all removed and kept by whoever stands in the last
/// one, dies when he leaves it.
#[test]
fn chain_of_removed_directories_dies_without_recursion() {
    let _watchdog = Watchdog::start("removed chain", Duration::from_secs(300));
    const DEPTH: u32 = 1_000_000;
    let vfs = new();
    let start = vfs.stats();
    on_a_small_stack(|| {
        let leaf = chain(&vfs, DEPTH);
        let mut at = leaf.inode();
        for _ in 0..DEPTH {
            let parent = vfs.inode(vfs.parent_ino(&at).unwrap()).unwrap();
            vfs.remove(&Cred::root(), &parent, name("d"), Removal::Rmdir).unwrap();
            at = parent;
        }
        assert_eq!(vfs.stats().removed, u64::from(DEPTH), "the leaf keeps them");
        drop(leaf);
    });
    let end = vfs.stats();
    assert_eq!((end.entries, end.inodes), (start.entries, start.inodes));
}

/// Trap T43: a chain of a million directories is evicted, and then dropped with its back end.
#[test]
fn chain_of_directories_is_pruned_and_dropped_without_recursion() {
    let _watchdog = Watchdog::start("pruned chain", Duration::from_secs(300));
    const DEPTH: u32 = 1_000_000;
    let vfs = new();
    let start = vfs.stats();
    on_a_small_stack(move || {
        drop(chain(&vfs, DEPTH));
        vfs.prune();
        let end = vfs.stats();
        assert_eq!((end.entries, end.inodes), (start.entries, start.inodes));
        drop(vfs);
    });
}

/// Returns the least processor time that `work` took in three runs, each on a fresh chain.
fn time_at(depth: u32, work: impl Fn(&Vfs, PathRef<'_>)) -> Duration {
    let run = || {
        let vfs = new();
        let leaf = chain(&vfs, depth);
        cpu_time(|| work(&vfs, leaf)).0
    };
    (0..3).map(|_| run()).min().expect("three runs")
}

/// Trap T44: evicting a chain twice as deep takes about twice as long.
#[test]
fn prune_of_a_deep_chain_is_linear() {
    let _watchdog = Watchdog::start("linear prune", Duration::from_secs(300));
    let prune = |vfs: &Vfs, leaf: PathRef<'_>| {
        drop(leaf);
        assert!(vfs.prune() > 0);
    };
    let (half, whole) = (time_at(50_000, prune), time_at(100_000, prune));
    assert!(whole < half * 3, "50,000 levels: {half:?}, 100,000 levels: {whole:?}");
}

/// Control: the same gauge sees a way to let go that climbs to the root from every level.
#[test]
fn control_quadratic_work_on_a_deep_chain_is_seen() {
    let climb = |vfs: &Vfs, leaf: PathRef<'_>| {
        let mut at = leaf.inode();
        let mut count = 0_u32;
        while at.ino() != vfs.root().ino() {
            // Every 1000th level stands for all of them: the shape is the same.
            if count.is_multiple_of(1000) {
                assert!(at.path().unwrap().len() > 1);
            }
            count += 1;
            at = vfs.inode(vfs.parent_ino(&at).unwrap()).unwrap();
        }
    };
    let (half, whole) = (time_at(20_000, climb), time_at(40_000, climb));
    assert!(whole > half * 3, "20,000 levels: {half:?}, 40,000 levels: {whole:?}");
}
