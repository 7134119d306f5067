//! Tests of a host that fails to write dirty pages. The host reports the failure only once, and
//! still returns these pages to readers. So after a failed sync, data may not be on disk, although
//! reads and later syncs succeed.
//!
//! Source: Rebello et al., "Can Applications Recover from fsync Failures?", USENIX ATC 2020.

use corewalk::{Errno, FileKind, FileSystem, Make, Name, Node};
use corewalk_store::fsck_devices;

use crate::differential::tree;
use crate::log_fails::add;
use crate::memory::{Disks, quiet};

const META: usize = 0;
const DATA: usize = 1;
const LOG: usize = 3;

fn root() -> Node<'static> {
    Node::detached(1, FileKind::Directory)
}

/// A commit makes the log void in the host's page cache, but its sync fails. On disk the log is
/// still valid. The next mount must show all confirmed changes.
#[test]
fn commit_whose_sync_failed_does_not_make_the_log_void() {
    let disks = Disks::new();
    let store = disks.open(&quiet());
    for name in ["one", "two"] {
        add(&store, name).unwrap();
    }
    let confirmed = tree(&store);
    let mut shared = disks.shared.lock();
    (shared.writes_fail_on, shared.syncs_fail_on) = (vec![LOG], vec![META]);
    drop(shared);
    assert_eq!(add(&store, "lost"), Err(Errno::IO));
    drop(store);
    let mut shared = disks.shared.lock();
    (shared.writes_fail_on, shared.syncs_fail_on) = (vec![], vec![]);
    drop(shared);
    let store = disks.open(&quiet());
    assert!(tree(&store) == confirmed);
    add(&store, "after").unwrap();
    let after = tree(&store);
    let left = disks.without_power();
    assert_eq!(fsck_devices(&left.devices()).unwrap().findings, []);
    assert!(tree(&left.open(&quiet())) == after);
    drop(store);
    let left = disks.without_power();
    assert_eq!(fsck_devices(&left.devices()).unwrap().findings, []);
    assert!(tree(&left.open(&quiet())) == after);
}

/// The host treats pages whose sync failed as clean, so no later fsync would write them. The next
/// mount must not show them.
#[test]
fn bytes_whose_sync_failed_are_not_taken_for_durable() {
    let disks = Disks::new();
    let store = disks.open(&quiet());
    add(&store, "file").unwrap();
    let found = store.lookup(root(), Name::new(b"file").unwrap()).unwrap();
    let file = Node::detached(found.ino, FileKind::Regular);
    store.write(file, 0, &[1; 200_000]).unwrap();
    store.fsync(file, false).unwrap();
    store.write(file, 0, &[2; 200_000]).unwrap();
    disks.shared.lock().syncs_fail_on = vec![DATA];
    assert_eq!(store.fsync(file, true), Err(Errno::IO));
    drop(store);
    disks.shared.lock().syncs_fail_on = vec![];
    let read = |disks: &Disks| {
        let store = disks.open(&quiet());
        let mut bytes = vec![0; 200_000];
        assert_eq!(store.read(file, 0, &mut bytes), Ok(200_000));
        store.fsync(file, false).unwrap();
        bytes
    };
    assert!(read(&disks) == [1; 200_000]);
    assert!(read(&disks.without_power()) == [1; 200_000]);
}

/// A sync that fails while the database is reopened must not be forgotten.
#[test]
fn sync_that_fails_while_the_database_is_opened_again_is_not_forgotten() {
    let disks = Disks::new();
    let store = disks.open(&quiet());
    let names: Vec<_> = (0..1_500).map(|number| format!("{number:0100}")).collect();
    for name in &names {
        store.make(root(), Name::new(name.as_bytes()).unwrap(), &Make::new(0o644, 0, 0)).unwrap();
    }
    drop(store);
    for is_failing in [true, false] {
        let store = disks.open(&quiet().with_cache_bytes(0));
        disks.shared.lock().is_read_failing = true;
        let lookup = |name: &String| store.lookup(root(), Name::new(name.as_bytes()).unwrap());
        assert!(names.iter().any(|name| lookup(name) == Err(Errno::IO)));
        let mut shared = disks.shared.lock();
        shared.is_read_failing = false;
        shared.syncs_fail_on = if is_failing { vec![META] } else { vec![] };
        drop(shared);
        let expected = if is_failing { Err(Errno::IO) } else { Ok(()) };
        assert_eq!(store.sync(), expected);
        disks.shared.lock().syncs_fail_on = vec![];
        assert_eq!((store.sync(), store.stats().is_read_only), (expected, is_failing));
        drop(store);
        assert_eq!(fsck_devices(&disks.devices()).unwrap().findings, []);
    }
}
