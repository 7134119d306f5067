//! While reads of the database fail, calls must fail with `EIO`. Afterwards all calls must succeed.

use std::time::Duration;

use corewalk::{Errno, FileKind, FileSystem, Make, Name, Node, XattrMode};
use corewalk_base::primitives::thread;
use corewalk_store::Store;
use corewalk_testkit::race::Watchdog;

use crate::memory::{Disks, quiet};

const FILES: usize = 1_500;

fn name(number: usize) -> String {
    format!("{number:0100}")
}

/// The store has more files than the database can cache, so some lookups must read the device.
fn disks() -> Disks {
    let disks = Disks::new();
    let store = disks.open(&quiet());
    let root = Node::detached(1, FileKind::Directory);
    for number in 0..FILES {
        let name = name(number);
        store.make(root, Name::new(name.as_bytes()).unwrap(), &Make::new(0o644, 0, 0)).unwrap();
    }
    drop(store);
    disks
}

fn count_found(store: &Store) -> usize {
    let root = Node::detached(1, FileKind::Directory);
    let found = (0..FILES).filter(|&number| {
        match store.lookup(root, Name::new(name(number).as_bytes()).unwrap()) {
            Ok(attr) => {
                store.forget(attr.ino, attr.generation);
                true
            }
            Err(errno) => {
                assert_eq!(errno, Errno::IO);
                false
            }
        }
    });
    found.count()
}

#[test]
fn sync_with_nothing_to_commit_ends_eio_of_reads() {
    let disks = disks();
    let store = disks.open(&quiet().with_cache_bytes(0));
    disks.shared.lock().is_read_failing = true;
    assert!(count_found(&store) < FILES);
    // Nothing was changed, so failed reads must not make the store read-only.
    for _ in 0..3 {
        assert_eq!(store.sync(), Ok(()));
        assert!(count_found(&store) < FILES);
        assert!(!store.stats().is_read_only);
    }
    disks.shared.lock().is_read_failing = false;
    let commits = store.stats().commits;
    assert!(count_found(&store) < FILES, "the database does not try again by itself");
    assert_eq!(store.sync(), Ok(()));
    assert_eq!((count_found(&store), store.stats().commits), (FILES, commits));
    let root = Node::detached(1, FileKind::Directory);
    store.make(root, Name::new(b"new").unwrap(), &Make::new(0o644, 0, 0)).unwrap();
    assert_eq!(store.sync(), Ok(()));
    drop(store);
    let store = disks.open(&quiet());
    assert_eq!(count_found(&store), FILES);
    assert!(store.lookup(root, Name::new(b"new").unwrap()).is_ok());
}

/// A change is made while the database is closed, because reads and a reopening have failed. The
/// next fsync must reopen the database and commit the change.
#[test]
fn change_after_a_failed_attempt_is_committed() {
    let disks = disks();
    let store = disks.open(&quiet().with_cache_bytes(0));
    let root = Node::detached(1, FileKind::Directory);
    let first = store.lookup(root, Name::new(name(0).as_bytes()).unwrap()).unwrap();
    let first = Node::detached(first.ino, FileKind::Regular);
    assert_eq!(store.read(first, 0, &mut [0]), Ok(0));
    assert_eq!(store.sync(), Ok(()));
    disks.shared.lock().is_read_failing = true;
    assert!(count_found(&store) < FILES);
    assert_eq!(store.sync(), Ok(()));
    disks.shared.lock().is_read_failing = false;
    store.write(first, 0, b"kept").unwrap();
    assert_eq!(store.fsync(first, false), Ok(()));
    assert_eq!(count_found(&store), FILES);
    drop(store);
    let store = disks.open(&quiet());
    let mut bytes = [0; 4];
    assert_eq!((store.read(first, 0, &mut bytes), bytes), (Ok(4), *b"kept"));
}

/// A commit on a host that has failed to read and is now full must reopen the database and use the
/// reserve (space for commits).
#[test]
fn commit_after_a_failed_read_has_the_reserve() {
    let disks = disks();
    let store = disks.open(&quiet().with_cache_bytes(0));
    assert!(store.stats().has_reserve);
    let root = Node::detached(1, FileKind::Directory);
    let new: Vec<_> = (0..400).map(|number| format!("new{number:0200}")).collect();
    for name in &new {
        let name = Name::new(name.as_bytes()).unwrap();
        let made = store.make(root, name, &Make::new(0o644, 0, 0)).unwrap();
        let file = Node::detached(made.ino, FileKind::Regular);
        let value = name.as_bytes().repeat(2);
        store.setxattr(file, b"user.a", &value, XattrMode::Set).unwrap();
    }
    disks.shared.lock().is_read_failing = true;
    assert!(count_found(&store) < FILES);
    disks.shared.lock().is_read_failing = false;
    disks.shared.lock().room = Some(disks.used());
    // The sync reopens the database and then writes the records. Only that write needs the reserve.
    assert_eq!(store.fsync(root, false), Ok(()));
    let stats = store.stats();
    assert!(!stats.is_read_only && !stats.has_reserve, "the reserve was needed");
    assert_eq!(count_found(&store), FILES);
    let again = disks.killed().open(&quiet());
    assert_eq!(count_found(&again), FILES);
    for name in &new {
        assert!(again.lookup(root, Name::new(name.as_bytes()).unwrap()).is_ok());
    }
}

/// A thread that only reads must get no more errors once reads succeed again.
#[test]
fn eio_of_reads_ends_in_time() {
    let _watchdog = Watchdog::start("the end of EIO", Duration::from_secs(120));
    let disks = disks();
    let every = Some(Duration::from_millis(20));
    let store = disks.open(&quiet().with_cache_bytes(0).with_commit_every(every));
    disks.shared.lock().is_read_failing = true;
    assert!(count_found(&store) < FILES);
    disks.shared.lock().is_read_failing = false;
    while count_found(&store) < FILES {
        thread::yield_now();
    }
    assert!(!store.stats().is_read_only);
}
