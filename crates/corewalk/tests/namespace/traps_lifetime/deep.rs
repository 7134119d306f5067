//! Tests of chains of directories that are deeper than any path. Dropping such a chain must cost
//! linear time.

use std::time::Duration;

use corewalk::attr::mode::S_IFDIR;
use corewalk::{Cred, FsStruct, Make, PathRef, Removal, Vfs, WalkFlags};
use corewalk_base::primitives::thread;
use corewalk_testkit::race::Watchdog;

use super::cpu_time;
use crate::fixtures::{name, new};

const STACK_BYTES: usize = 64 << 10;

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

fn on_a_small_stack(work: impl FnOnce() + Send) {
    thread::scope(|scope| {
        let thread = thread::Builder::new().stack_size(STACK_BYTES);
        thread.spawn_scoped(scope, work).unwrap().join().unwrap();
    });
}

/// Dropping a chain of removed directories must not recurse. A reference on the last of 200,000
/// directories keeps them all. Trap T43 in `traps.md`.
#[test]
fn chain_of_removed_directories_is_dropped_without_recursion() {
    let _watchdog = Watchdog::start("removed chain", Duration::from_secs(300));
    const DEPTH: u32 = 200_000;
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
        assert_eq!(
            vfs.stats().removed,
            u64::from(DEPTH),
            "the reference does not keep all directories"
        );
        drop(leaf);
    });
    let end = vfs.stats();
    assert_eq!((end.entries, end.inodes), (start.entries, start.inodes));
}

/// Evicting 200,000 nested directories, and dropping them with their back end, must not recurse.
/// Trap T43 in `traps.md`.
#[test]
fn chain_of_directories_is_pruned_and_dropped_without_recursion() {
    let _watchdog = Watchdog::start("pruned chain", Duration::from_secs(300));
    const DEPTH: u32 = 200_000;
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

fn time_at(depth: u32, work: impl Fn(&Vfs, PathRef<'_>)) -> Duration {
    let vfs = new();
    let leaf = chain(&vfs, depth);
    cpu_time(|| work(&vfs, leaf)).0
}

/// Returns true if a chain that is four times as deep takes less than eight times as long.
/// Quadratic work would take sixteen times as long.
///
/// Other load on the machine makes single runs longer, never shorter, so the shortest of several
/// runs counts. The load may last for minutes. So runs with a short and with a deep chain of
/// directories alternate.
fn grows_linearly(depth: u32, work: impl Fn(&Vfs, PathRef<'_>)) -> (bool, [Duration; 2]) {
    let mut least = [Duration::MAX; 2];
    for _ in 0..5 {
        least[0] = least[0].min(time_at(depth, &work));
        least[1] = least[1].min(time_at(depth * 4, &work));
    }
    (least[1] < least[0] * 8, least)
}

/// Evicting a chain of nested directories that is four times as deep must take about four times as
/// long. Trap T44 in `traps.md`.
#[test]
fn prune_of_a_deep_chain_is_linear() {
    let _watchdog = Watchdog::start("linear prune", Duration::from_secs(300));
    let (linear, least) = grows_linearly(25_000, |vfs, leaf| {
        drop(leaf);
        assert!(vfs.prune() > 0);
    });
    assert!(linear, "25,000 and 100,000 levels: {least:?}");
}

/// Control (a variant with the bug must fail): work that goes up to the root from every level takes
/// quadratic time.
#[test]
fn control_quadratic_work_on_a_deep_chain_is_caught() {
    let _watchdog = Watchdog::start("quadratic climb", Duration::from_secs(300));
    let (linear, least) = grows_linearly(10_000, |vfs, leaf| {
        let mut at = leaf.inode();
        let mut count = 0_u32;
        while at.ino() != vfs.root().ino() {
            // Every 100th level is enough: the work is still quadratic.
            if count.is_multiple_of(100) {
                assert!(at.path().unwrap().len() > 1);
            }
            count += 1;
            at = vfs.inode(vfs.parent_ino(&at).unwrap()).unwrap();
        }
    });
    assert!(!linear, "10,000 and 40,000 levels: {least:?}");
}
