//! Tests of a closed store. End marks in its log tell a mount that the log is empty, and which
//! commit was the last.

use std::time::Duration;

use corewalk::{FileKind, FileSystem, Make, Name, Node};
use corewalk_store::{Finding, OpenError, Store, fsck_devices};
use corewalk_testkit::race::Watchdog;

use crate::differential::{Tree, tree};
use crate::log_fails::add;
use crate::memory::{Disks, quiet};

const META: usize = 0;
const LOG: usize = 3;
const BLOCK: u64 = 4096;

fn closed() -> (Disks, Tree) {
    let disks = Disks::new();
    let store = disks.open(&quiet());
    for name in ["one", "two", "three"] {
        add(&store, name).unwrap();
    }
    assert_eq!(store.stats().logged_commits, 3);
    let tree = tree(&store);
    drop(store);
    (disks, tree)
}

fn open(disks: &Disks) -> Result<Store, OpenError> {
    Store::open_devices(disks.devices(), &quiet())
}

/// The log of a closed store is known to be empty, so an unreadable block in it must not prevent a
/// mount.
#[test]
fn closed_store_is_mounted_whatever_block_of_its_log_cannot_be_read() {
    let (disks, expected) = closed();
    let contents = disks.contents();
    for at in (0..contents[LOG].len() as u64).step_by(BLOCK as usize) {
        let disks = Disks::with(contents.clone());
        disks.shared.lock().bad_byte = Some((LOG, at));
        assert_eq!(fsck_devices(&disks.devices()).unwrap().findings, [], "byte {at}");
        assert!(disks.contents()[LOG] == contents[LOG], "byte {at}: changed by a check");
        let store = open(&disks).unwrap_or_else(|error| panic!("byte {at}: {error}"));
        assert_eq!(tree(&store), expected, "byte {at}");
        assert!(disks.contents()[LOG].iter().all(|&byte| byte == 0), "byte {at}: not made anew");
        add(&store, "more").unwrap();
        assert_eq!(store.stats().logged_commits, 1, "byte {at}");
        let killed = disks.killed();
        assert_eq!(tree(&open(&killed).unwrap()), tree(&store), "byte {at}");
    }
}

/// After a second mount, any block of the log may have confirmed entries. So an unreadable block
/// must prevent the next mount.
#[test]
fn store_that_was_mounted_again_is_refused_for_an_unreadable_block() {
    let (disks, _) = closed();
    let store = disks.open(&quiet());
    let root = Node::detached(1, FileKind::Directory);
    store.make(root, Name::new(b"new").unwrap(), &Make::new(0o644, 0, 0)).unwrap();
    store.fsync(root, false).unwrap();
    assert_eq!(store.stats().logged_bytes, BLOCK, "an entry of one block");
    let expected = tree(&store);
    let contents = disks.killed().contents();
    for at in (0..contents[LOG].len() as u64).step_by(BLOCK as usize) {
        let disks = Disks::with(contents.clone());
        disks.shared.lock().bad_byte = Some((LOG, at));
        match open(&disks).map(drop) {
            Err(OpenError::LogRead { at: said, .. }) => assert_eq!(said, at),
            other => panic!("byte {at}: {other:?}"),
        }
        assert_eq!(fsck_devices(&disks.devices()).unwrap().findings, [Finding::LogRead(at)]);
        disks.shared.lock().bad_byte = None;
        assert_eq!(tree(&open(&disks).unwrap()), expected, "byte {at}");
    }
}

/// The log got no entry since the close, so only its end marks show that the database is too old.
#[test]
fn older_database_of_a_closed_store_is_refused() {
    let (disks, before) = closed();
    let older = disks.contents()[META].clone();
    // A mount and a close without changes do not increment the generation, so the older database
    // still fits the log.
    drop(disks.open(&quiet()));
    let mut same = disks.contents();
    same[META] = older.clone();
    assert_eq!(tree(&open(&Disks::with(same)).unwrap()), before, "the control");
    let store = disks.open(&quiet());
    let root = Node::detached(1, FileKind::Directory);
    store.make(root, Name::new(b"newer").unwrap(), &Make::new(0o644, 0, 0)).unwrap();
    drop(store);
    let mut contents = disks.contents();
    contents[META] = older;
    // A newer log must be refused even if its first block is zeroed or unreadable.
    for (is_lost, bad_byte) in [(false, None), (true, None), (false, Some((LOG, 0)))] {
        let mut contents = contents.clone();
        contents[LOG][..BLOCK as usize * usize::from(is_lost)].fill(0);
        let disks = Disks::with(contents.clone());
        disks.shared.lock().bad_byte = bad_byte;
        match open(&disks).map(drop) {
            Err(OpenError::DatabaseBehind { database, log, .. }) => assert_eq!(log, database + 1),
            // The log was in use, so its unreadable block may hold a confirmed entry.
            Err(OpenError::LogRead { at: 0, .. }) if bad_byte.is_some() => {}
            other => panic!("{is_lost}, {bad_byte:?}: {other:?}"),
        }
        let found = fsck_devices(&disks.devices()).unwrap().findings;
        let is_said = matches!(found[..], [Finding::DatabaseBehind(..) | Finding::LogRead(0)]);
        assert!(is_said, "{is_lost}, {bad_byte:?}: {found:?}");
    }
}

#[test]
fn check_of_a_killed_store_changes_no_byte() {
    let disks = Disks::new();
    let store = disks.open(&quiet());
    add(&store, "in the database").unwrap();
    drop(store);
    let store = disks.open(&quiet());
    for number in 0..5 {
        add(&store, &format!("in the log {number}")).unwrap();
    }
    let killed = disks.killed();
    let before = killed.contents();
    killed.shared.lock().log = Some(Vec::new());
    let report = fsck_devices(&killed.devices()).unwrap();
    assert_eq!((report.findings, report.inodes), (vec![], 7), "what is in the log was looked at");
    assert!(killed.contents() == before, "changed");
    let steps = killed.shared.lock().log.take().unwrap();
    let is_sync = |step| matches!(step, &crate::memory::Step::Sync { .. });
    assert!(steps.iter().all(is_sync), "{} steps", steps.len());
    assert_eq!(tree(&killed.open(&quiet())), tree(&store));
    // Control: a mount changes the devices.
    assert!(killed.contents() != before);
}

#[test]
fn store_dropped_during_a_panic_is_closed() {
    let _watchdog = Watchdog::start("close during a panic", Duration::from_secs(60));
    let disks = Disks::new();
    let store = disks.open(&quiet());
    for name in ["one", "two"] {
        add(&store, name).unwrap();
    }
    let expected = tree(&store);
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let _store = store;
        panic!("a panic that the test expects");
    }));
    assert!(panicked.is_err());
    assert_eq!(fsck_devices(&disks.devices()).unwrap().findings, []);
    assert_eq!(tree(&open(&disks).unwrap()), expected);
}
