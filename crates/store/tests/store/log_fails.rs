//! Tests of a host that cannot write or sync the log. An fsync must still make changes durable, or
//! return an error.

use corewalk::{Errno, FileKind, FileSystem, Make, Name, Node};
use corewalk_store::{Store, fsck_devices};

use crate::differential::{Tree, tree};
use crate::memory::{Disks, Shared, quiet};

const META: usize = 0;
const DATA: usize = 1;
const LOG: usize = 3;

type Set = fn(&mut Shared, Vec<usize>);
const WRITES: Set = |shared, devices| shared.writes_fail_on = devices;
const SYNCS: Set = |shared, devices| shared.syncs_fail_on = devices;

const LENGTHS: Set = |shared, devices| shared.lengths_fail_on = devices;

pub(crate) fn add(store: &Store, name: &str) -> Result<(), Errno> {
    let (root, this) =
        (Node::detached(1, FileKind::Directory), Name::new(name.as_bytes()).unwrap());
    let made = store.make(root, this, &Make::new(0o644, 0, 0))?;
    let file = Node::detached(made.ino, FileKind::Regular);
    store.write(file, 0, name.as_bytes())?;
    store.fsync(file, false)
}

fn tree_without_log(disks: &Disks) -> Tree {
    let mut contents = disks.contents();
    contents[LOG].fill(0);
    let disks = Disks::with(contents);
    assert_eq!(fsck_devices(&disks.devices()).unwrap().findings, []);
    tree(&disks.open(&quiet()))
}

#[test]
fn transaction_that_the_log_fails_to_take_is_durable_in_the_database() {
    for set in [WRITES, SYNCS] {
        let disks = Disks::new();
        let store = disks.open(&quiet());
        add(&store, "logged").unwrap();
        assert_eq!((store.stats().logged_commits, store.stats().commits), (1, 1));
        set(&mut disks.shared.lock(), vec![LOG]);
        for number in 0..3 {
            assert_eq!(add(&store, &format!("failed{number}")), Ok(()));
            assert_eq!(tree_without_log(&disks), tree(&store));
        }
        let stats = store.stats();
        assert_eq!((stats.logged_commits, stats.commits, stats.log_failures), (1, 4, 3));
        assert!(!stats.is_read_only);
        set(&mut disks.shared.lock(), vec![]);
        // Once the log can be written again, the next transaction must be at its start.
        add(&store, "after").unwrap();
        assert_eq!((store.stats().logged_commits, store.stats().commits), (2, 5));
        assert_ne!(tree_without_log(&disks), tree(&store));
        let killed = disks.killed();
        assert_eq!(fsck_devices(&killed.devices()).unwrap().findings, []);
        assert_eq!(tree(&killed.open(&quiet())), tree(&store));
    }
}

#[test]
fn failure_of_the_log_and_of_the_rest_is_eio_then_read_only() {
    for set in [WRITES, SYNCS] {
        for other in [META, DATA] {
            let disks = Disks::new();
            let store = disks.open(&quiet());
            add(&store, "logged").unwrap();
            let before = tree(&store);
            let (root, name) =
                (Node::detached(1, FileKind::Directory), Name::new(b"lost").unwrap());
            store.make(root, name, &Make::new(0o644, 0, 0)).unwrap();
            let first = store.lookup(root, Name::new(b"logged").unwrap()).unwrap();
            store.write(Node::detached(first.ino, FileKind::Regular), 0, b"LOGGED").unwrap();
            let mut shared = disks.shared.lock();
            shared.syncs_fail_on = vec![other];
            set(&mut shared, vec![LOG, other]);
            drop(shared);
            for _ in 0..2 {
                assert_eq!(store.fsync(root, false), Err(Errno::IO));
            }
            assert_eq!(add(&store, "more"), Err(Errno::ROFS));
            assert!(store.stats().is_read_only);
            let mut shared = disks.shared.lock();
            (shared.writes_fail_on, shared.syncs_fail_on) = (vec![], vec![]);
            drop(shared);
            drop(store);
            assert_eq!(fsck_devices(&disks.devices()).unwrap().findings, []);
            let after = tree(&disks.open(&quiet()));
            assert!(before.keys().all(|path| after.contains_key(path)));
        }
    }
}

fn without_log() -> Disks {
    let disks = Disks::new();
    let store = disks.open(&quiet().with_log_bytes(0));
    add(&store, "first").unwrap();
    drop(store);
    Disks::with(disks.contents())
}

fn assert_works_without_log(disks: &Disks, store: &Store) {
    assert_eq!(store.stats().log_bytes, 0);
    add(store, "more").unwrap();
    let stats = store.stats();
    assert_eq!((stats.logged_commits, stats.commits, stats.is_read_only), (0, 1, false));
    assert_eq!(tree_without_log(disks), tree(store));
}

#[test]
fn store_whose_log_fails_at_the_mount_works_without_it() {
    for set in [SYNCS, LENGTHS] {
        let disks = without_log();
        set(&mut disks.shared.lock(), vec![LOG]);
        let store = disks.open(&quiet());
        assert_works_without_log(&disks, &store);
        set(&mut disks.shared.lock(), vec![]);
        let expected = tree(&store);
        drop(store);
        let store = disks.open(&quiet());
        assert_eq!((store.stats().log_bytes, tree(&store)), (256 << 10, expected));
    }
}

/// A host that has space for the reserve (space for commits) but not for the log must let files
/// grow.
#[test]
fn reserve_comes_before_the_log() {
    const RESERVE: u64 = 2 << 20;
    let disks = without_log();
    let room = disks.used() + RESERVE + (200 << 10);
    disks.shared.lock().room = Some(room);
    let store = disks.open(&quiet());
    assert!(store.stats().has_reserve);
    assert_works_without_log(&disks, &store);
    drop(store);
    // If the reserve does not fit, a mount truncates the existing log.
    let disks = without_log();
    drop(disks.open(&quiet()));
    let disks = Disks::with(disks.contents());
    assert!(disks.used() + RESERVE > room);
    disks.shared.lock().room = Some(room);
    let store = disks.open(&quiet());
    assert!(store.stats().has_reserve);
    assert_works_without_log(&disks, &store);
}

/// Control: on a host with enough space, a mount allocates both the reserve and the log.
#[test]
fn control_room_for_reserve_and_log_is_taken_for_both() {
    let disks = without_log();
    const COMMIT: u64 = 1 << 20;
    disks.shared.lock().room = Some(disks.used() + (2 << 20) + (256 << 10) + COMMIT);
    let stats = disks.open(&quiet()).stats();
    assert_eq!((stats.has_reserve, stats.log_bytes), (true, 256 << 10));
}
