//! A store that defers de-duplication must have the same contents as one that does not.

use std::collections::BTreeSet;

use corewalk::{Errno, FileKind, FileSystem, Make, Name, Node, RenameMode, XattrMode};
use corewalk_base::primitives::{Arc, thread};
use corewalk_store::{Store, StoreOptions, fsck_devices};
use corewalk_testkit::rng::{ReportSeed, Rng, Seed};
use proptest::prelude::*;

use crate::differential::tree;
use crate::memory::{Disks, quiet};

const FILES: u64 = 6;
const QUEUED_MAX: u64 = 4096;

fn root() -> Node<'static> {
    Node::detached(1, FileKind::Directory)
}

fn at_once() -> StoreOptions {
    quiet().with_sharing_late(false)
}

fn file(store: &Store, number: u64) -> Node<'static> {
    let name = format!("f{number}");
    let name = Name::new(name.as_bytes()).unwrap();
    let found =
        store.lookup(root(), name).or_else(|_| store.make(root(), name, &Make::new(0o644, 0, 0)));
    Node::detached(found.unwrap().ino, FileKind::Regular)
}

fn set(store: &Store, node: Node<'_>, value: u64) -> Result<(), Errno> {
    store.setxattr(node, b"user.a", &[value as u8; 600], XattrMode::Set)
}

fn remove(store: &Store, number: u64) {
    let (node, name) = (file(store, number), format!("f{number}"));
    store.remove(root(), Name::new(name.as_bytes()).unwrap(), node).unwrap();
    store.forget(node.ino(), 0);
}

fn queue_all(store: &Store, nodes: &[Node<'_>], value: impl Fn(u64) -> u64) {
    for (number, node) in nodes.iter().enumerate() {
        (100..120)
            .chain([value(number as u64)])
            .for_each(|value| set(store, *node, value).unwrap());
    }
}

fn distinct(store: &Store) -> u64 {
    let sets: BTreeSet<_> = tree(store).into_values().map(|leaf| leaf.xattrs).collect();
    sets.iter().filter(|set| !set.is_empty()).count() as u64
}

#[derive(Clone, Debug)]
enum Step {
    Set(u64, u64),
    SetOften(u64, u64),
    Long(u64),
    Clear(u64),
    Remove(u64),
    Rename(u64, u64),
    Evict(u64),
    Share,
    Fsync(u64),
    Sync,
    Mount,
}

fn step() -> impl Strategy<Value = Step> {
    let (file, value) = (0..FILES, 0..3_u64);
    prop_oneof![
        4 => (file.clone(), value.clone()).prop_map(|(file, value)| Step::Set(file, value)),
        6 => (file.clone(), value).prop_map(|(file, value)| Step::SetOften(file, value)),
        1 => file.clone().prop_map(Step::Long),
        1 => file.clone().prop_map(Step::Clear),
        1 => file.clone().prop_map(Step::Remove),
        1 => (file.clone(), file.clone()).prop_map(|(from, to)| Step::Rename(from, to)),
        2 => file.clone().prop_map(Step::Evict),
        1 => Just(Step::Share),
        1 => file.prop_map(Step::Fsync),
        1 => Just(Step::Sync),
        1 => Just(Step::Mount),
    ]
}

fn act(store: &mut Store, disks: &Disks, options: &StoreOptions, step: &Step) -> bool {
    match *step {
        Step::Set(number, value) => set(store, file(store, number), value).unwrap(),
        Step::SetOften(number, value) => {
            let node = file(store, number);
            (20..30).chain([value]).for_each(|value| set(store, node, value).unwrap());
        }
        Step::Long(number) => {
            let long = [7; 5000];
            store.setxattr(file(store, number), b"user.a", &long, XattrMode::Set).unwrap();
        }
        Step::Clear(number) => {
            let cleared = store.removexattr(file(store, number), b"user.a");
            assert!(matches!(cleared, Ok(()) | Err(Errno::NODATA)));
        }
        Step::Remove(number) => remove(store, number),
        Step::Rename(from, to) if from != to => {
            file(store, from);
            let target = file(store, to);
            let [from, to] = [from, to].map(|number| format!("f{number}"));
            let [from, to] = [&from, &to].map(|name| Name::new(name.as_bytes()).unwrap());
            store.rename((root(), from), (root(), to), RenameMode::Replace).unwrap();
            store.forget(target.ino(), 0);
        }
        Step::Rename(..) => {}
        Step::Evict(number) => store.forget(file(store, number).ino(), 0),
        Step::Share => store.share_xattrs(),
        Step::Fsync(number) => store.fsync(file(store, number), false).unwrap(),
        Step::Sync => store.sync().unwrap(),
        Step::Mount => {
            *store = Disks::new().open(&quiet());
            *store = disks.open(options);
        }
    }
    matches!(step, Step::Share | Step::Sync | Step::Mount)
}

/// While no inode is queued, both stores have one block per distinct attribute set.
fn compare(steps: &[Step]) -> Result<(), TestCaseError> {
    let disks = [Disks::new(), Disks::new()];
    let options = [quiet(), at_once()];
    let [mut late, mut plain] = [0, 1].map(|at| disks[at].open(&options[at]));
    for step in steps {
        let is_quiet = act(&mut late, &disks[0], &options[0], step);
        act(&mut plain, &disks[1], &options[1], step);
        let xattrs = |store: &Store| -> Vec<_> {
            tree(store).into_iter().map(|(path, leaf)| (path, leaf.xattrs)).collect()
        };
        prop_assert_eq!(xattrs(&late), xattrs(&plain));
        let stats = [late.stats(), plain.stats()];
        prop_assert_eq!(stats[0].xattr_users, stats[1].xattr_users);
        prop_assert_eq!(stats[1].xattr_waiting, 0);
        if is_quiet {
            prop_assert_eq!(stats[0].xattr_waiting, 0);
            prop_assert_eq!(stats[0].xattr_blocks, distinct(&late), "{:?}", step);
            prop_assert_eq!(stats[0].blocks, stats[1].blocks);
        }
        if matches!(step, Step::Sync | Step::Fsync(_)) {
            let report = fsck_devices(&disks[0].killed().devices()).unwrap();
            prop_assert_eq!(&report.findings, &[]);
        }
    }
    drop((late, plain));
    for disks in &disks {
        prop_assert_eq!(fsck_devices(&disks.devices()).unwrap().findings, vec![]);
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn deferred_sharing_is_like_sharing_at_once(
        steps in prop::collection::vec(step(), 1..60),
    ) {
        compare(&steps)?;
    }
}

/// The index must not find the private block of a queued inode, even if the inode was read again.
/// Another inode with the same attributes must use the older shared block.
#[test]
fn private_block_is_not_found_when_it_is_read() {
    let steps = [
        Step::SetOften(0, 2),
        Step::Share,
        Step::SetOften(4, 2),
        Step::Evict(4),
        Step::Set(1, 2),
        Step::Sync,
    ];
    compare(&steps).unwrap();
}

#[test]
fn files_that_change_often_are_shared_at_the_commit() {
    let disks = Disks::new();
    let store = disks.open(&quiet());
    let nodes: Vec<_> = (0..20).map(|number| file(&store, number)).collect();
    queue_all(&store, &nodes, |number| number % 2);
    let stats = store.stats();
    assert_eq!((stats.xattr_waiting, stats.xattr_blocks, stats.xattr_users), (20, 20, 20));
    // The running transaction is not committed yet, so a crash must leave no attribute block on
    // disk.
    assert_eq!(fsck_devices(&disks.killed().devices()).unwrap().xattr_blocks, 0);
    store.fsync(nodes[3], false).unwrap();
    let stats = store.stats();
    assert_eq!((stats.xattr_waiting, stats.xattr_blocks, stats.xattr_users), (0, 2, 20));
    let report = fsck_devices(&disks.killed().devices()).unwrap();
    assert_eq!((report.xattr_blocks, report.xattr_users, &report.findings[..]), (2, 20, &[][..]));
    // An inode's first change in a transaction is shared at once.
    set(&store, nodes[0], 1).unwrap();
    assert_eq!((store.stats().xattr_waiting, store.stats().xattr_blocks), (0, 2));
}

/// The second change of an inode in a transaction queues it, unless `QUEUED_MAX` inodes are queued.
/// A commit must empty the queue.
#[test]
fn second_change_queues_an_inode_within_the_limit() {
    let disks = Disks::new();
    let store = disks.open(&quiet());
    let nodes: Vec<_> = (0..QUEUED_MAX + 100).map(|number| file(&store, number)).collect();
    let set_all = |nodes: &[Node<'_>], value: u64| {
        nodes.iter().for_each(|node| set(&store, *node, value).unwrap());
        store.stats().xattr_waiting
    };
    let (few, others) = nodes.split_at(100);
    assert_eq!(set_all(&nodes, 1), 0);
    assert_eq!([2, 3].map(|value| set_all(few, value)), [100, 100]);
    assert_eq!([4, 5].map(|value| set_all(others, value)), [QUEUED_MAX; 2]);
    store.sync().unwrap();
    let blocks = 1 + (others.len() as u64).div_ceil(1024);
    assert_eq!((store.stats().xattr_waiting, store.stats().xattr_blocks), (0, blocks));
    assert_eq!([6, 7].map(|value| set_all(others, value)), [0, QUEUED_MAX]);
    drop(store);
    assert_eq!(fsck_devices(&disks.devices()).unwrap().findings, []);
}

/// A queued inode must stay in the queue during commits for `dirsync`. A sync must de-duplicate its
/// attributes.
///
/// Invariant L.4: from then on, its attributes change once per transaction, so it is not queued
/// again.
#[test]
fn file_that_changes_once_per_transaction_is_not_queued() {
    let disks = Disks::new();
    let store = disks.open(&quiet().with_dirsync(true));
    let node = file(&store, 0);
    [1, 2].iter().for_each(|value| set(&store, node, *value).unwrap());
    for number in 1..4 {
        let commits = store.stats().commits;
        file(&store, number);
        assert_eq!(store.stats().commits, commits + 1);
        set(&store, node, 2 + number).unwrap();
        assert_eq!(store.stats().xattr_waiting, 1, "still queued");
    }
    for value in 6..9 {
        store.sync().unwrap();
        set(&store, node, value).unwrap();
        assert_eq!(store.stats().xattr_waiting, 0, "{value}");
    }
}

/// Two files share a block on disk. They are queued, and then get equal attributes again. After the
/// commit, both files must use the old block.
#[test]
fn late_sharing_keeps_the_blocks_that_the_disk_has() {
    const PAIRS: u64 = QUEUED_MAX / 2;
    let disks = Disks::new();
    let store = disks.open(&quiet());
    let nodes: Vec<_> = (0..2 * PAIRS).map(|number| file(&store, number)).collect();
    let put = |number: u64, value: u64| {
        let value = [&value.to_le_bytes()[..], &[7; 600]].concat();
        store.setxattr(nodes[number as usize], b"user.a", &value, XattrMode::Set).unwrap();
    };
    (0..2 * PAIRS).for_each(|number| put(number, number / 2));
    store.sync().unwrap();
    // The first file of each pair gets a private block. The second file keeps the old block as its
    // only user.
    for number in (0..2 * PAIRS).step_by(2).chain((1..2 * PAIRS).step_by(2)) {
        [1, 2].iter().for_each(|round| put(number, round * 10_000 + number / 2));
        put(number, 30_000 + number / 2);
    }
    let before = store.stats();
    assert_eq!((before.xattr_waiting, before.xattr_blocks), (2 * PAIRS, 2 * PAIRS));
    store.sync().unwrap();
    let after = store.stats();
    assert_eq!((after.xattr_blocks, after.xattr_users), (PAIRS, 2 * PAIRS));
    assert_eq!(after.records - before.records, 1 + 4 * PAIRS, "with the superblock");
}

/// Invariant K.2: deferred de-duplication keeps the limit of users per block.
#[test]
fn sets_that_are_shared_late_have_blocks_of_1024_users() {
    let disks = Disks::new();
    let store = disks.open(&quiet());
    let nodes: Vec<_> = (0..2_100).map(|number| file(&store, number)).collect();
    queue_all(&store, &nodes, |_| 7);
    assert_eq!(store.stats().xattr_waiting, 2_100);
    store.sync().unwrap();
    assert_eq!((store.stats().xattr_blocks, store.stats().xattr_users), (3, 2_100));
    drop(store);
    let report = fsck_devices(&disks.devices()).unwrap();
    assert_eq!((report.xattr_blocks, report.findings.len()), (3, 0));
}

/// Private blocks that de-duplication can free must not cause `ENOSPC`.
#[test]
fn deferred_sharing_makes_room_before_enospc() {
    let options = quiet().with_size_bytes(10 * 4096);
    let disks = Disks::new();
    let store = disks.open(&options);
    let nodes: Vec<_> = (0..8).map(|number| file(&store, number)).collect();
    queue_all(&store, &nodes, |_| 7);
    assert_eq!((store.stats().xattr_waiting, store.stats().blocks), (8, 8));
    // Two blocks are free, so the first write is short. The second finds none, so de-duplication
    // must free some.
    assert_eq!(store.write(nodes[0], 0, &[1; 4 * 4096]), Ok(2 * 4096));
    assert_eq!(store.stats().xattr_waiting, 8);
    assert_eq!(store.write(nodes[0], 8192, &[1; 2 * 4096]), Ok(2 * 4096));
    assert_eq!((store.stats().xattr_waiting, store.stats().blocks), (0, 5));
    // De-duplication can free no more blocks. So a set with new content must fail, and one that
    // equals a shared set must succeed.
    assert_eq!(store.write(nodes[0], 16_384, &[1; 5 * 4096]), Ok(5 * 4096));
    assert_eq!(set(&store, nodes[1], 8), Err(Errno::NOSPC));
    remove(&store, 7);
    let new = file(&store, 9);
    assert_eq!(set(&store, new, 7), Ok(()));
    assert_eq!(store.stats().blocks, 10);
    store.sync().unwrap();
    drop(store);
    assert_eq!(fsck_devices(&disks.devices()).unwrap().findings, []);
}

/// De-duplication frees no inodes, so a lack of inodes must not start it.
#[test]
fn deferred_sharing_is_not_tried_for_inodes() {
    let disks = Disks::new();
    let store = disks.open(&quiet().with_inodes_max(9));
    let nodes: Vec<_> = (0..8).map(|number| file(&store, number)).collect();
    queue_all(&store, &nodes, |_| 7);
    let name = Name::new(b"one more").unwrap();
    let made = store.make(root(), name, &Make::new(0o100_644, 0, 0));
    assert_eq!(made.map(|attr| attr.ino), Err(Errno::NOSPC));
    assert_eq!(store.stats().xattr_waiting, 8);
}

#[test]
fn failed_commit_keeps_earlier_sharing() {
    let disks = Disks::new();
    let store = disks.open(&quiet());
    let nodes: Vec<_> = (0..8).map(|number| file(&store, number)).collect();
    queue_all(&store, &nodes, |number| number % 2);
    store.sync().unwrap();
    queue_all(&store, &nodes, |_| 9);
    disks.shared.lock().is_write_failing = true;
    assert_eq!(store.sync(), Err(Errno::IO));
    assert_eq!(set(&store, nodes[0], 1), Err(Errno::ROFS));
    store.share_xattrs();
    disks.shared.lock().is_write_failing = false;
    drop(store);
    let report = fsck_devices(&disks.devices()).unwrap();
    assert_eq!((report.xattr_blocks, report.xattr_users, &report.findings[..]), (2, 8, &[][..]));
}

#[test]
fn threads_that_share_late_leave_counts_that_are_exact() {
    for seed in 0..3 {
        let seed = ReportSeed::new(Seed(seed));
        let disks = Disks::new();
        let store = Arc::new(disks.open(&quiet()));
        let rng = Rng::new(seed.seed());
        let threads = (0..4).map(|thread| {
            let (store, mut rng) = (store.clone(), rng.fork(thread));
            thread::spawn(move || {
                for _ in 0..1_500 {
                    let number = 10 * thread + rng.below(5);
                    let node = file(&store, number);
                    match rng.below(40) {
                        0 => remove(&store, number),
                        1 => drop(store.removexattr(node, b"user.a")),
                        2 => store.forget(node.ino(), 0),
                        3 => store.share_xattrs(),
                        4 => store.fsync(node, false).unwrap(),
                        _ => set(&store, node, rng.below(30)).unwrap(),
                    }
                }
            })
        });
        threads.collect::<Vec<_>>().into_iter().for_each(|thread| thread.join().unwrap());
        store.sync().unwrap();
        let (stats, before) = (store.stats(), tree(&*store));
        drop(store);
        let report = fsck_devices(&disks.devices()).unwrap();
        assert_eq!(report.findings, []);
        assert_eq!(
            (stats.xattr_blocks, stats.xattr_users, stats.xattr_waiting),
            (report.xattr_blocks, report.xattr_users, 0)
        );
        assert_eq!(stats.blocks, report.blocks + report.xattr_blocks);
        assert_eq!(tree(&disks.open(&quiet())), before);
    }
}
