//! Commits with several waiting threads.

use std::io;
use std::time::Duration;

use corewalk::{Errno, FileKind, FileSystem, Make, Name, Node};
use corewalk_base::primitives::{Arc, thread};
use corewalk_base::{Condvar, Mutex};
use corewalk_store::{Device, Store, StoreStats};
use corewalk_testkit::race::Watchdog;

use crate::differential::tree;
use crate::memory::{Disks, quiet};

fn root() -> Node<'static> {
    Node::detached(1, FileKind::Directory)
}

fn make(store: &Store, name: &str) -> Result<Node<'static>, Errno> {
    let attr = store.make(root(), Name::new(name.as_bytes()).unwrap(), &Make::new(0o644, 0, 0))?;
    Ok(Node::detached(attr.ino, FileKind::Regular))
}

/// A device whose next sync can be made to wait for a signal and then fail. As on a real host,
/// later syncs succeed.
#[derive(Debug)]
struct Slow {
    inner: Arc<dyn Device>,
    state: Mutex<(bool, bool)>,
    changed: Condvar,
}

impl Slow {
    fn set(&self, change: impl FnOnce(&mut (bool, bool))) {
        change(&mut self.state.lock());
        self.changed.notify_all();
    }
}

impl Device for Slow {
    fn len(&self) -> io::Result<u64> {
        self.inner.len()
    }
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.inner.read_at(offset, buf)
    }
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.inner.write_at(offset, bytes)
    }
    fn set_len(&self, len: u64) -> io::Result<()> {
        self.inner.set_len(len)
    }
    fn reserve(&self, len: u64) -> io::Result<()> {
        self.inner.reserve(len)
    }
    fn sync(&self) -> io::Result<()> {
        let mut state = self.state.lock();
        if !std::mem::take(&mut state.0) {
            return Ok(());
        }
        state.1 = true;
        self.changed.notify_all();
        self.changed.wait_while(&mut state, |state| state.1);
        Err(io::ErrorKind::Other.into())
    }
}

/// The host reports a failed sync only once. So every thread that waits for a failed sync of file
/// data must get the error.
///
/// If instead the sync of the log fails, the transaction goes to the database, and no thread gets
/// an error.
#[test]
fn failed_sync_of_data_is_heard_by_those_who_wait() {
    let _watchdog = Watchdog::start("a failed sync", Duration::from_secs(60));
    for is_log in [true, false] {
        sync_that_fails(is_log);
    }
}

fn sync_that_fails(is_log: bool) {
    let disks = Disks::new();
    let mut devices = disks.devices();
    let place = if is_log { &mut devices.log } else { &mut devices.data };
    let (state, changed) = (Mutex::new((false, false)), Condvar::new());
    let slow = Arc::new(Slow { inner: place.clone(), state, changed });
    *place = slow.clone();
    let store = Store::open_devices(devices, &quiet()).unwrap();
    let file = make(&store, "a").unwrap();
    let len = if is_log { 5_000 } else { 100_000 };
    store.write(file, 0, &vec![1; len]).unwrap();
    store.sync().unwrap();
    store.write(file, 10, &vec![2; len - 10]).unwrap();
    make(&store, "b").unwrap();
    slow.set(|state| state.0 = true);
    thread::scope(|scope| {
        let first = scope.spawn(|| store.fsync(file, true));
        slow.changed.wait_while(&mut slow.state.lock(), |state| !state.1);
        let others = [scope.spawn(|| store.sync()), scope.spawn(|| store.fsync(file, true))];
        // A thread that starts to wait later gets the same result.
        thread::sleep(Duration::from_millis(20));
        slow.set(|state| state.1 = false);
        let expected = if is_log { Ok(()) } else { Err(Errno::IO) };
        assert_eq!(first.join().unwrap(), expected);
        for other in others {
            assert_eq!(other.join().unwrap(), expected);
        }
    });
    if is_log {
        assert_eq!(store.stats().log_failures, 1);
        // The transaction must be in the database, so the tree survives the loss of the log.
        let mut contents = disks.contents();
        contents[3].fill(0);
        assert_eq!(tree(&Disks::with(contents).open(&quiet())), tree(&store));
    }
}

#[test]
fn full_host_with_several_writers_is_enospc_only() {
    let _watchdog = Watchdog::start("a full host", Duration::from_secs(120));
    for room in [9_u64 << 20, 13 << 20, 17 << 20] {
        let disks = Disks::new();
        let store = disks.open(&quiet());
        disks.shared.lock().room = Some(room);
        thread::scope(|scope| {
            for writer in 0..3 {
                let store = &store;
                scope.spawn(move || {
                    let mut errors = 0;
                    for number in 0..2_000 {
                        let done = make(store, &format!("{writer}-{number}")).and_then(|file| {
                            store.write(file, 0, &vec![7; 1 + number * 97 % 60_000]).map(drop)
                        });
                        let synced = if number % 20 == 19 { store.sync() } else { Ok(()) };
                        for error in [done.err(), synced.err()].into_iter().flatten() {
                            assert_eq!(error, Errno::NOSPC, "{room}");
                            errors += 1;
                        }
                        if errors > 40 {
                            return;
                        }
                    }
                });
            }
        });
        disks.shared.lock().room = None;
        make(&store, "again").unwrap();
        assert_eq!(store.sync(), Ok(()), "{room}");
    }
}

/// Threads that write during a slow commit must wait, or the records in memory would grow without
/// limit.
#[test]
fn writers_wait_while_a_commit_is_slow() {
    const BYTES: u64 = 256 << 10;
    let _watchdog = Watchdog::start("a slow commit", Duration::from_secs(60));
    let disks = Disks::new();
    let mut devices = disks.devices();
    let (state, changed) = (Mutex::new((false, false)), Condvar::new());
    let slow = Arc::new(Slow { inner: devices.log.clone(), state, changed });
    devices.log = slow.clone();
    let options = quiet().with_transaction_bytes(BYTES / 2);
    let store = Store::open_devices(devices, &options).unwrap();
    make(&store, "first").unwrap();
    slow.set(|state| state.0 = true);
    thread::scope(|scope| {
        let first = scope.spawn(|| store.sync());
        slow.changed.wait_while(&mut slow.state.lock(), |state| !state.1);
        let writer = scope.spawn(|| {
            (0..20_000).map(|number| make(&store, &format!("{number:0100}"))).find_map(Result::err)
        });
        while store.stats().waits == 0 {
            thread::yield_now();
        }
        let held = store.stats().running_bytes;
        println!("{held} bytes are held");
        assert!((BYTES / 2..BYTES * 3 / 2).contains(&held), "{held}");
        slow.set(|state| state.1 = false);
        assert_eq!(first.join().unwrap(), Ok(()));
        assert_eq!(writer.join().unwrap(), None);
    });
}

/// The committer must make each change durable without a call of sync, and commit it only once.
#[test]
fn commits_come_in_time() {
    let _watchdog = Watchdog::start("a commit in time", Duration::from_secs(60));
    let disks = Disks::new();
    let every = Duration::from_millis(20);
    let store = disks.open(&quiet().with_commit_every(every));
    for number in 0..3 {
        let before = store.stats();
        let file = make(&store, &format!("f{number}")).unwrap();
        let in_database = |stats: StoreStats| stats.commits - stats.logged_commits;
        if number > 0 {
            // A transaction that an fsync put into the log must reach the database too.
            store.fsync(file, false).unwrap();
        }
        while in_database(store.stats()) == in_database(before) {
            thread::yield_now();
        }
    }
    let commits = store.stats().commits;
    thread::sleep(5 * every);
    assert_eq!(store.stats().commits, commits, "no further commit");
}
