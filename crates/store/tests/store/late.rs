//! Tests of deferred de-duplication. A store with it must have the same contents as a store that
//! de-duplicates at once. Further tests are about several threads, a lack of space, and remounts.

use std::collections::BTreeSet;

use corewalk::{Errno, FileKind, FileSystem, Make, Name, Node, RenameMode, XattrMode};
use corewalk_base::primitives::{Arc, thread};
use corewalk_store::{Store, StoreOptions, fsck_devices};
use corewalk_testkit::require::{Need, skip};
use corewalk_testkit::rng::{ReportSeed, Rng, Seed};
use proptest::prelude::*;

use crate::differential::tree;
use crate::memory::{Disks, quiet};

const FILES: u64 = 6;

fn root() -> Node<'static> {
    Node::detached(1, FileKind::Directory)
}

fn at_once() -> StoreOptions {
    quiet().with_sharing_late(false)
}

/// Returns the file with the number `number`. Makes the file if it does not exist.
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
    store.forget(node.ino());
}

/// Changes the attribute set of each file until the file is queued. The argument `value` computes
/// the last value from the number of the file.
fn queue_all(store: &Store, nodes: &[Node<'_>], value: impl Fn(u64) -> u64) {
    for (number, node) in nodes.iter().enumerate() {
        (100..120)
            .chain([value(number as u64)])
            .for_each(|value| set(store, *node, value).unwrap());
    }
}

/// Returns the number of different sets in a tree.
fn distinct(store: &Store) -> u64 {
    let sets: BTreeSet<_> = tree(store).into_values().map(|leaf| leaf.xattrs).collect();
    sets.iter().filter(|set| !set.is_empty()).count() as u64
}

#[derive(Clone, Debug)]
enum Step {
    Set(u64, u64),
    /// Sets a value after ten others.
    SetOften(u64, u64),
    Long(u64),
    Clear(u64),
    Remove(u64),
    Rename(u64, u64),
    /// Drops the inode from memory.
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

/// Performs a step. Returns true if it leaves no inode queued.
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
            store.forget(target.ino());
        }
        Step::Rename(..) => {}
        Step::Evict(number) => store.forget(file(store, number).ino()),
        Step::Share => store.share_xattrs(),
        Step::Fsync(number) => store.fsync(file(store, number), 0, false).unwrap(),
        Step::Sync => store.sync().unwrap(),
        Step::Mount => {
            *store = Disks::new().open(&quiet());
            *store = disks.open(options);
        }
    }
    matches!(step, Step::Share | Step::Sync | Step::Mount)
}

/// Performs the steps in a store with deferred de-duplication and in one without. Whenever no inode
/// is queued, both stores must have the same attributes and the same number of users. The first
/// must then have one block per different set.
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

/// A private block must not be found until it is shared, even if its inode is dropped from memory
/// and read again. So an older block with the same content stays the only shared one.
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

/// Control for the test above: before the queued inodes are de-duplicated, each has a block of its
/// own.
#[test]
fn files_that_change_often_are_shared_at_the_commit() {
    let disks = Disks::new();
    let store = disks.open(&quiet());
    let nodes: Vec<_> = (0..20).map(|number| file(&store, number)).collect();
    queue_all(&store, &nodes, |number| number % 2);
    let stats = store.stats();
    assert_eq!((stats.xattr_waiting, stats.xattr_blocks, stats.xattr_users), (20, 20, 20));
    // Drop the store as a crash would do. The transaction is not committed, so none of its blocks
    // exists afterwards.
    assert_eq!(fsck_devices(&disks.killed().devices()).unwrap().xattr_blocks, 0);
    store.fsync(nodes[3], 0, false).unwrap();
    let stats = store.stats();
    assert_eq!((stats.xattr_waiting, stats.xattr_blocks, stats.xattr_users), (0, 2, 20));
    let report = fsck_devices(&disks.killed().devices()).unwrap();
    assert_eq!((report.xattr_blocks, report.xattr_users, &report.findings[..]), (2, 20, &[][..]));
    // The first change in a transaction is shared at once.
    set(&store, nodes[0], 1).unwrap();
    assert_eq!((store.stats().xattr_waiting, store.stats().xattr_blocks), (0, 2));
}

/// The second change in a transaction must queue an inode. Once its thread has queued 256, an inode
/// whose block has many users must be shared at once. When the block has only few users left,
/// inodes are queued again.
#[test]
fn second_change_queues_an_inode_within_limits() {
    let disks = Disks::new();
    let store = disks.open(&quiet());
    let nodes: Vec<_> = (0..356).map(|number| file(&store, number)).collect();
    let set_all = |from: usize, value: u64| {
        nodes[from..].iter().for_each(|node| set(&store, *node, value).unwrap());
        store.stats().xattr_waiting
    };
    assert_eq!([1, 2].map(|value| set_all(0, value)), [0, 0]);
    assert_eq!(set_all(256, 3), 100);
    store.sync().unwrap();
    // Make the next changes in a new transaction.
    assert_eq!([4, 5].map(|value| set_all(100, value)), [0, 256]);
    assert_eq!([6, 7].map(|value| set_all(100, value)), [256, 256]);
    nodes[..100].iter().for_each(|node| set(&store, *node, 8).unwrap());
    assert_eq!(store.stats().xattr_waiting, 256);
    nodes[..100].iter().for_each(|node| set(&store, *node, 9).unwrap());
    assert_eq!(store.stats().xattr_waiting, 260);
    store.sync().unwrap();
    assert_eq!((store.stats().xattr_waiting, store.stats().xattr_blocks), (0, 2));
    drop(store);
    assert_eq!(fsck_devices(&disks.devices()).unwrap().findings, []);
}

/// L.4: an inode that changed while it was queued is busy. Its first change in the next transaction
/// must queue it, if its block has few users.
#[test]
fn first_change_queues_a_busy_inode() {
    let disks = Disks::new();
    let store = disks.open(&quiet());
    let nodes: Vec<_> = (0..9).map(|number| file(&store, number)).collect();
    // Changes a file to each value and then commits. Returns the length of the queue after each
    // change.
    let waiting = |nodes: &[Node<'_>], values: &[u64]| -> Vec<u64> {
        let set = |value: &u64| {
            nodes.iter().for_each(|node| set(&store, *node, *value).unwrap());
            store.stats().xattr_waiting
        };
        let waiting = values.iter().map(set).collect();
        store.sync().unwrap();
        waiting
    };
    let one = &nodes[..1];
    assert_eq!(waiting(one, &[1]), [0], "first set");
    assert_eq!(waiting(one, &[2, 3]), [0, 1]);
    assert_eq!(waiting(one, &[4]), [0], "not changed while it was queued");
    assert_eq!(waiting(one, &[5, 6, 7]), [0, 1, 1]);
    assert_eq!(waiting(one, &[8, 9]), [1, 1], "busy");
    assert_eq!(waiting(one, &[10]), [1], "busy");
    // Make one change per transaction, as a program does that gives each file of a tree a new
    // security label.
    assert_eq!([11, 12, 13].map(|value| waiting(one, &[value])), [[0], [0], [0]]);
    // A file whose block has many users must not be queued, since an equal set probably exists.
    assert_eq!(waiting(&nodes, &[14]), [0]);
    assert_eq!(waiting(&nodes, &[15, 16, 17]), [0, 9, 9]);
    assert_eq!(waiting(&nodes, &[18]), [4], "the last users of the block");
    assert_eq!(store.stats().xattr_blocks, 1);
    drop(store);
    assert_eq!(fsck_devices(&disks.devices()).unwrap().findings, []);
}

/// L.4: a commit without de-duplication leaves an inode queued. A change in the next transaction
/// must still count as its first.
#[test]
fn file_that_changes_once_per_transaction_is_not_busy() {
    let disks = Disks::new();
    let store = disks.open(&quiet().with_dirsync(true));
    let node = file(&store, 0);
    [1, 2, 3].iter().for_each(|value| set(&store, node, *value).unwrap());
    for number in 1..4 {
        let commits = store.stats().commits;
        file(&store, number);
        assert_eq!(store.stats().commits, commits + 1);
        set(&store, node, 3 + number).unwrap();
        assert_eq!(store.stats().xattr_waiting, 1, "still queued");
    }
    store.sync().unwrap();
    set(&store, node, 9).unwrap();
    assert_eq!(store.stats().xattr_waiting, 0);
}

/// Each thread has a limit on queued inodes. The limit for all threads together depends on the
/// number of processors. With many threads, some share a list.
#[test]
fn limit_of_queued_inodes_is_per_thread_and_in_all() {
    const EACH: usize = 300;
    const CACHED: u64 = 256;
    let processors = thread::available_parallelism().map_or(1, |number| number.get());
    if processors > 16 {
        skip(Need::Machine, "the limit for this many processors exceeds the queue");
        return;
    }
    let disks = Disks::new();
    let store = disks.open(&quiet());
    let nodes: Vec<_> = (0..EACH * (processors + 2)).map(|n| file(&store, n as u64)).collect();
    let set_all =
        |nodes: &[Node<'_>], value| nodes.iter().for_each(|n| set(&store, *n, value).unwrap());
    [1, 2].iter().for_each(|value| set_all(&nodes, *value));
    assert_eq!(store.stats().xattr_waiting, 0);
    for part in nodes.chunks(EACH) {
        thread::scope(|scope| {
            scope.spawn(|| set_all(part, 3));
        });
    }
    // The last users of a block are queued beyond the limit.
    let last = 4 * (nodes.len() as u64 / 1024 + 1);
    let (least, most) = [processors.min(2), processors].map(|caches| CACHED * caches as u64).into();
    let waiting = store.stats().xattr_waiting;
    assert!((least..=most + last).contains(&waiting), "{waiting} queued, {processors} processors");
}

/// If a block on disk belongs to a queued inode alone, the inode must keep the block, and no copy
/// of it may be written. So the database must get one inode per file, and one block per pair of
/// files.
#[test]
fn late_sharing_keeps_the_blocks_that_the_disk_has() {
    const PAIRS: u64 = 300;
    let disks = Disks::new();
    let store = disks.open(&quiet());
    let nodes: Vec<_> = (0..2 * PAIRS).map(|number| file(&store, number)).collect();
    let put = |number: u64, value: u64| {
        let value = [&value.to_le_bytes()[..], &[7; 600]].concat();
        store.setxattr(nodes[number as usize], b"user.a", &value, XattrMode::Set).unwrap();
    };
    (0..2 * PAIRS).for_each(|number| put(number, number / 2));
    store.sync().unwrap();
    // Queue the first files of all pairs, then the second ones. The first file of a pair gets a new
    // block, and the second keeps the old one.
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

/// K.2: deferred de-duplication keeps the limit of users per block.
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

/// Private blocks that are about to go do not cause `ENOSPC`.
#[test]
fn deferred_sharing_makes_room_before_enospc() {
    let options = quiet().with_size_bytes(10 * 4096);
    let disks = Disks::new();
    let store = disks.open(&options);
    let nodes: Vec<_> = (0..8).map(|number| file(&store, number)).collect();
    queue_all(&store, &nodes, |_| 7);
    assert_eq!((store.stats().xattr_waiting, store.stats().blocks), (8, 8));
    // Make a write that fits, and then one that does not.
    assert_eq!(store.write(nodes[0], 0, 0, &[1; 4 * 4096]), Ok(2 * 4096));
    assert_eq!(store.stats().xattr_waiting, 8);
    assert_eq!(store.write(nodes[0], 0, 8192, &[1; 2 * 4096]), Ok(2 * 4096));
    assert_eq!((store.stats().xattr_waiting, store.stats().blocks), (0, 5));
    // If de-duplication frees too little space, the call must fail. Equal sets must be shared
    // nevertheless.
    assert_eq!(store.write(nodes[0], 0, 16_384, &[1; 5 * 4096]), Ok(5 * 4096));
    assert_eq!(set(&store, nodes[1], 8), Err(Errno::NOSPC));
    remove(&store, 7);
    let new = file(&store, 9);
    assert_eq!(set(&store, new, 7), Ok(()));
    assert_eq!(store.stats().blocks, 10);
    store.sync().unwrap();
    drop(store);
    assert_eq!(fsck_devices(&disks.devices()).unwrap().findings, []);
}

/// De-duplication frees no inodes. So a call that finds no free inode must not start it.
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

/// After a failed commit the store must be read-only and must not de-duplicate any more. All
/// confirmed changes must still be there.
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

/// Several threads change, remove, forget, share and commit the same files.
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
                        2 => store.forget(node.ino()),
                        3 => store.share_xattrs(),
                        4 => store.fsync(node, 0, false).unwrap(),
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
