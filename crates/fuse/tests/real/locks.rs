//! Tests of locks that an asynchronous back end manages, on a real mount. The tests of synchronous
//! back ends also use `Locks` and the `check_` functions of this file.

use std::fs::File;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use corewalk::{Attr, Errno, FileLock, LockKind, Name};
use corewalk_base::Mutex;
use corewalk_base::primitives::thread;
use corewalk_fuse::{AsyncFileSystem, AsyncNode, Options, OwnedDirEntry, Transport};
use rustix::fs::{FlockOperation, fcntl_lock, flock};
use tokio::sync::Notify;

use crate::site::{AsyncSite, async_mount_options};

const PATIENCE: Duration = Duration::from_secs(20);
const FILE_INO: u64 = 2;

/// The locks of files that a back end of a test manages. The tests lock whole files, so a part of a
/// lock cannot be unlocked.
#[derive(Default)]
pub(crate) struct Locks(Mutex<Vec<FileLock>>);

impl Locks {
    pub(crate) fn get(&self, lock: &FileLock) -> Option<FileLock> {
        self.0.lock().iter().find(|other| lock.conflicts(other)).copied()
    }

    pub(crate) fn set(&self, lock: &FileLock) -> Result<(), Errno> {
        let mut locks = self.0.lock();
        if locks.iter().any(|other| lock.conflicts(other)) {
            return Err(Errno::AGAIN);
        }
        locks.retain(|own| own.owner != lock.owner || own.is_flock != lock.is_flock);
        if lock.kind != LockKind::Unlock {
            locks.push(*lock);
        }
        Ok(())
    }

    pub(crate) fn unlock_owner(&self, owner: u64, is_flock: bool) {
        self.0.lock().retain(|lock| lock.owner != owner || lock.is_flock != is_flock);
    }

    pub(crate) fn all(&self) -> Vec<FileLock> {
        self.0.lock().clone()
    }
}

#[derive(Default)]
struct Locked {
    locks: Locks,
    changed: Notify,
}

impl AsyncFileSystem for Locked {
    async fn root(&self) -> Result<Attr, Errno> {
        Ok(Attr::dir(1))
    }

    async fn lookup(&self, _: &AsyncNode, name: Name<'_>) -> Result<Attr, Errno> {
        if name.as_bytes() == b"f" { Ok(Attr::file(FILE_INO, 1)) } else { Err(Errno::NOENT) }
    }

    async fn getattr(&self, node: &AsyncNode) -> Result<Attr, Errno> {
        Ok(if node.ino() == FILE_INO { Attr::file(FILE_INO, 1) } else { Attr::dir(1) })
    }

    async fn readdir(&self, _: &AsyncNode, _: u64) -> Result<Vec<OwnedDirEntry>, Errno> {
        Ok(Vec::new())
    }

    async fn read(&self, _: &AsyncNode, _: u64, _: u32) -> Result<Bytes, Errno> {
        Ok(Bytes::from_static(b"x"))
    }

    fn has_locks(&self) -> bool {
        true
    }

    async fn get_lock(&self, _: &AsyncNode, lock: &FileLock) -> Result<Option<FileLock>, Errno> {
        Ok(self.locks.get(lock))
    }

    async fn set_lock(&self, node: &AsyncNode, lock: &FileLock, waits: bool) -> Result<(), Errno> {
        assert_eq!(node.caller().uid, rustix::process::geteuid().as_raw());
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            // Register for notifications before `set` is called. Otherwise an unlock between a
            // failed `set` and the `await` would be missed.
            changed.as_mut().enable();
            match self.locks.set(lock) {
                Err(Errno::AGAIN) if waits => changed.await,
                result => {
                    self.changed.notify_waiters();
                    return result;
                }
            }
        }
    }

    async fn unlock_owner(&self, _: &AsyncNode, owner: u64, is_flock: bool) -> Result<(), Errno> {
        self.locks.unlock_owner(owner, is_flock);
        self.changed.notify_waiters();
        Ok(())
    }
}

fn mounted() -> Option<(Arc<Locked>, AsyncSite<Locked>)> {
    let fs = Arc::new(Locked::default());
    // Locks cannot be served over io_uring.
    let options = async_mount_options().with_transport(Transport::Device);
    let site = AsyncSite::new(Arc::clone(&fs), Options::exclusive(), &options)?;
    Some((fs, site))
}

fn until(what: &str, condition: impl Fn() -> bool) {
    let begin = Instant::now();
    while !condition() {
        assert!(begin.elapsed() < PATIENCE, "{what}");
        thread::sleep(Duration::from_millis(1));
    }
}

pub(crate) fn check_flock(path: &Path, locks: &Locks) {
    let first = File::open(path).expect("open the file");
    flock(&first, FlockOperation::LockExclusive).expect("lock the file");
    assert_eq!(locks.all().len(), 1);
    let second = File::open(path).expect("open the file");
    let refused = flock(&second, FlockOperation::NonBlockingLockShared);
    assert_eq!(refused, Err(Errno::AGAIN));
    // flock(1) gets a time limit, so a timer sends it a signal, which it handles. That signal must
    // end its wait for the lock.
    let begin = Instant::now();
    let mut command = Command::new("flock");
    let status = command.args(["-w", "0.3"]).arg(path).arg("true").status();
    assert_eq!(status.expect("run flock(1)").code(), Some(1), "the wait ends");
    assert!(begin.elapsed() < PATIENCE / 2, "{:?}", begin.elapsed());
    let waiting = thread::spawn(move || {
        flock(&second, FlockOperation::LockShared).expect("get the lock");
        second
    });
    thread::sleep(Duration::from_millis(300));
    assert!(!waiting.is_finished());
    drop(first);
    let second = waiting.join().expect("the thread ends");
    let held = locks.all();
    assert!(matches!(held[..], [FileLock { kind: LockKind::Read, is_flock: true, .. }]));
    drop(second);
    until("the lock ends with its file", || locks.all().is_empty());
}

/// A lock of fcntl(2) ends when the process closes any descriptor of the file.
pub(crate) fn check_posix_lock(path: &Path, locks: &Locks) {
    let first = File::open(path).expect("open the file");
    fcntl_lock(&first, FlockOperation::LockShared).expect("lock the file");
    let held = locks.all();
    let [lock] = held[..] else { panic!("{held:?}") };
    assert_eq!((lock.kind, lock.start, lock.is_flock), (LockKind::Read, 0, false));
    assert_eq!(lock.end, FileLock::END_MAX);
    fcntl_lock(&first, FlockOperation::Unlock).expect("unlock the file");
    assert!(locks.all().is_empty());
    fcntl_lock(&first, FlockOperation::NonBlockingLockShared).expect("lock the file");
    drop(File::open(path).expect("open the file"));
    until("the lock ends", || locks.all().is_empty());
}

#[test]
fn async_flock_reaches_the_back_end_and_can_be_interrupted() {
    let Some((fs, site)) = mounted() else { return };
    check_flock(&site.path("f"), &fs.locks);
    site.wait_for("all requests end", |waiting| waiting == 0);
}

#[test]
fn async_posix_lock_ends_when_the_process_closes_the_file() {
    let Some((fs, site)) = mounted() else { return };
    check_posix_lock(&site.path("f"), &fs.locks);
}
