//! Tests of locks that an asynchronous back end manages, on a real mount.

use std::fs::File;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use corewalk::{Attr, Errno, Name};
use corewalk_base::Mutex;
use corewalk_base::primitives::thread;
use corewalk_fuse::{AsyncFileSystem, AsyncNode, FileLock, LockKind, Options, OwnedDirEntry};
use rustix::fs::{FlockOperation, fcntl_lock, flock};
use tokio::sync::Notify;

use crate::site::{AsyncSite, async_mount_options};

/// How long a test waits for something that happens at once on an idle machine.
const PATIENCE: Duration = Duration::from_secs(20);
const FILE_INO: u64 = 2;

/// A directory with one file, whose locks are kept in a list.
#[derive(Default)]
struct Locked {
    locks: Mutex<Vec<FileLock>>,
    changed: Notify,
}

fn conflicts(a: &FileLock, b: &FileLock) -> bool {
    let is_shared = a.kind == LockKind::Read && b.kind == LockKind::Read;
    let is_same_kind = a.is_flock == b.is_flock && a.owner != b.owner && !is_shared;
    is_same_kind && a.start <= b.end && b.start <= a.end
}

impl Locked {
    /// Takes or drops a lock, unless another one conflicts. The locks of an owner are not split,
    /// because the tests lock whole files.
    fn try_lock(&self, lock: &FileLock) -> bool {
        let mut locks = self.locks.lock();
        if lock.kind != LockKind::Unlock && locks.iter().any(|other| conflicts(lock, other)) {
            return false;
        }
        locks.retain(|own| own.owner != lock.owner || own.is_flock != lock.is_flock);
        if lock.kind != LockKind::Unlock {
            locks.push(*lock);
        }
        drop(locks);
        self.changed.notify_waiters();
        true
    }
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
        Ok(self.locks.lock().iter().find(|other| conflicts(lock, other)).copied())
    }

    async fn set_lock(&self, node: &AsyncNode, lock: &FileLock, waits: bool) -> Result<(), Errno> {
        assert_eq!(node.caller().uid, rustix::process::geteuid().as_raw());
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            // Register before the attempt, so that no change after it is missed.
            changed.as_mut().enable();
            if self.try_lock(lock) {
                return Ok(());
            }
            if !waits {
                return Err(Errno::AGAIN);
            }
            changed.await;
        }
    }

    async fn unlock_owner(&self, _: &AsyncNode, owner: u64, is_flock: bool) -> Result<(), Errno> {
        self.locks.lock().retain(|lock| lock.owner != owner || lock.is_flock != is_flock);
        self.changed.notify_waiters();
        Ok(())
    }
}

/// Mounts the back end.
fn mounted() -> Option<(Arc<Locked>, AsyncSite<Locked>)> {
    let fs = Arc::new(Locked::default());
    let site = AsyncSite::new(Arc::clone(&fs), Options::exclusive(), &async_mount_options())?;
    Some((fs, site))
}

fn until(what: &str, condition: impl Fn() -> bool) {
    let begin = Instant::now();
    while !condition() {
        assert!(begin.elapsed() < PATIENCE, "{what}");
        thread::sleep(Duration::from_millis(1));
    }
}

/// Locks of flock(2) reach the back end, and end when the file is closed. A signal must end a wait.
#[test]
fn async_flock_reaches_the_back_end_and_can_be_interrupted() {
    let Some((fs, site)) = mounted() else { return };
    let path = &site.path("f");
    let first = File::open(path).expect("open the file");
    flock(&first, FlockOperation::LockExclusive).expect("lock the file");
    assert_eq!(fs.locks.lock().len(), 1);
    let second = File::open(path).expect("open the file");
    let refused = flock(&second, FlockOperation::NonBlockingLockShared);
    assert_eq!(refused, Err(Errno::AGAIN));
    // flock(1) ends its wait by a timer signal, which it handles.
    let begin = Instant::now();
    let mut command = Command::new("flock");
    let status = command.args(["-w", "0.3"]).arg(path).arg("true").status();
    assert_eq!(status.expect("run flock(1)").code(), Some(1), "the wait ends");
    assert!(begin.elapsed() < PATIENCE / 2, "{:?}", begin.elapsed());
    site.wait_for("the request ends", |waiting| waiting == 0);

    let waiting = thread::spawn(move || {
        flock(&second, FlockOperation::LockShared).expect("get the lock");
        second
    });
    site.wait_for("a request waits", |waiting| waiting == 1);
    drop(first);
    let second = waiting.join().expect("the thread ends");
    let locks = fs.locks.lock().clone();
    assert!(matches!(locks[..], [FileLock { kind: LockKind::Read, is_flock: true, .. }]));
    drop(second);
    until("the lock ends with its file", || fs.locks.lock().is_empty());
}

/// Locks of fcntl(2) reach the back end, and end when the process closes any descriptor.
#[test]
fn async_posix_lock_ends_when_the_process_closes_the_file() {
    let Some((fs, site)) = mounted() else { return };
    let path = &site.path("f");
    let first = File::open(path).expect("open the file");
    fcntl_lock(&first, FlockOperation::LockShared).expect("lock the file");
    let locks = fs.locks.lock().clone();
    let [lock] = locks[..] else { panic!("{locks:?}") };
    assert_eq!((lock.kind, lock.start, lock.is_flock), (LockKind::Read, 0, false));
    assert_eq!(lock.end, i64::MAX as u64);
    fcntl_lock(&first, FlockOperation::Unlock).expect("unlock the file");
    assert!(fs.locks.lock().is_empty());
    fcntl_lock(&first, FlockOperation::NonBlockingLockShared).expect("lock the file");
    // POSIX: closing another descriptor of the file ends the lock, too.
    drop(File::open(path).expect("open the file"));
    until("the lock ends", || fs.locks.lock().is_empty());
}
