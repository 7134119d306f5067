//! The descriptors that are kept, and why each of them.
//!
//! | kept | for | until | how many |
//! |---|---|---|---|
//! | reusable | an inode that was used lately (`O_PATH`) | it is the one used longest ago | `reusable` |
//! | orphans | an inode that lost its last name (`O_PATH`) | `forget`, or it is the oldest | `orphans` |
//! | open files | a handle that the client has | `release` | what the client opens |
//!
//! A descriptor keeps its inode, so the number it is filed under cannot come to mean another file.
//! An orphan that is dropped because there are too many can still be reached through an open file.
//!
//! # Locks
//! One for each of the three, all leaves: descriptors are opened and closed outside of them.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use corewalk_sync::Mutex;
use corewalk_sync::primitives::atomic::{AtomicU64, Ordering};

/// A descriptor that several calls may use at once; it is closed after the last one.
pub(crate) type SharedFd = Arc<OwnedFd>;

/// The descriptors of one file system.
pub(crate) struct Descriptors {
    reusable: Mutex<Recent>,
    orphans: Mutex<Recent>,
    open: Mutex<HashMap<u64, Open>>,
    next_handle: AtomicU64,
}

/// An open file.
#[derive(Clone)]
pub(crate) struct Open {
    pub(crate) ino: u64,
    pub(crate) fd: SharedFd,
}

/// At most so many descriptors by inode number, of which the one used longest ago goes first.
struct Recent {
    max: usize,
    now: u64,
    by_ino: HashMap<u64, (SharedFd, u64)>,
}

impl Descriptors {
    pub(crate) fn new(reusable: usize, orphans: usize) -> Descriptors {
        Descriptors {
            reusable: Mutex::new(Recent::new(reusable)),
            orphans: Mutex::new(Recent::new(orphans)),
            open: Mutex::new(HashMap::new()),
            next_handle: AtomicU64::new(1),
        }
    }

    /// Returns a descriptor of an inode, if one is kept.
    pub(crate) fn get(&self, ino: u64) -> Option<SharedFd> {
        let reusable = self.reusable.lock().get(ino);
        let kept = reusable.or_else(|| self.orphans.lock().get(ino));
        kept.or_else(|| {
            let open = self.open.lock();
            open.values().find(|open| open.ino == ino).map(|open| Arc::clone(&open.fd))
        })
    }

    /// Keeps a descriptor for reuse.
    pub(crate) fn keep(&self, ino: u64, fd: SharedFd) {
        let evicted = self.reusable.lock().insert(ino, fd);
        drop(evicted);
    }

    /// Keeps a descriptor of an inode that is about to lose its last name.
    pub(crate) fn keep_orphan(&self, ino: u64, fd: SharedFd) {
        let reusable = self.reusable.lock().remove(ino);
        let evicted = self.orphans.lock().insert(ino, fd);
        drop((reusable, evicted));
    }

    /// Undoes [`Descriptors::keep_orphan`].
    pub(crate) fn adopt_orphan(&self, ino: u64) {
        let orphan = self.orphans.lock().remove(ino);
        drop(orphan);
    }

    /// Closes what is kept of an inode that nobody uses any more.
    pub(crate) fn forget(&self, ino: u64) {
        let reusable = self.reusable.lock().remove(ino);
        let orphan = self.orphans.lock().remove(ino);
        drop((reusable, orphan));
    }

    /// Closes what is kept for reuse: the process has run out of descriptors.
    pub(crate) fn drop_reusable(&self) {
        let all = std::mem::take(&mut self.reusable.lock().by_ino);
        drop(all);
    }

    /// Files an open file and returns its handle.
    pub(crate) fn add_open(&self, ino: u64, fd: OwnedFd) -> u64 {
        // ORDERING: Relaxed. Only hands out different numbers.
        let handle = self.next_handle.fetch_add(1, Ordering::Relaxed);
        self.open.lock().insert(handle, Open { ino, fd: Arc::new(fd) });
        handle
    }

    /// Returns an open file; None for a handle that is not one of this inode.
    pub(crate) fn get_open(&self, ino: u64, handle: u64) -> Option<SharedFd> {
        let open = self.open.lock();
        open.get(&handle).filter(|open| open.ino == ino).map(|open| Arc::clone(&open.fd))
    }

    /// Closes an open file.
    pub(crate) fn close(&self, handle: u64) {
        let open = self.open.lock().remove(&handle);
        drop(open);
    }
}

impl Recent {
    fn new(max: usize) -> Recent {
        Recent { max, now: 0, by_ino: HashMap::new() }
    }

    fn get(&mut self, ino: u64) -> Option<SharedFd> {
        self.now += 1;
        let (fd, used) = self.by_ino.get_mut(&ino)?;
        *used = self.now;
        Some(Arc::clone(fd))
    }

    /// Returns what had to go; the caller drops it outside of the lock.
    fn insert(&mut self, ino: u64, fd: SharedFd) -> Option<SharedFd> {
        if self.max == 0 {
            return Some(fd);
        }
        let oldest = if self.by_ino.len() < self.max || self.by_ino.contains_key(&ino) {
            None
        } else {
            self.by_ino.iter().min_by_key(|(_, (_, used))| *used).map(|(ino, _)| *ino)
        };
        let evicted = oldest.and_then(|oldest| self.remove(oldest));
        self.now += 1;
        let replaced = self.by_ino.insert(ino, (fd, self.now));
        evicted.or(replaced.map(|(fd, _)| fd))
    }

    fn remove(&mut self, ino: u64) -> Option<SharedFd> {
        self.by_ino.remove(&ino).map(|(fd, _)| fd)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fd() -> SharedFd {
        Arc::new(std::fs::File::open("/dev/null").unwrap().into())
    }

    #[test]
    fn descriptor_used_longest_ago_goes_first() {
        let descriptors = Descriptors::new(2, 1);
        descriptors.keep(1, fd());
        descriptors.keep(2, fd());
        assert!(descriptors.get(1).is_some());
        descriptors.keep(3, fd());
        assert!(descriptors.get(2).is_none());
        assert!(descriptors.get(1).is_some() && descriptors.get(3).is_some());
    }

    #[test]
    fn handle_of_another_inode_is_refused() {
        let descriptors = Descriptors::new(1, 1);
        let handle = descriptors.add_open(5, fd().try_clone().unwrap());
        assert!(descriptors.get_open(5, handle).is_some());
        assert!(descriptors.get_open(6, handle).is_none());
        descriptors.close(handle);
        assert!(descriptors.get_open(5, handle).is_none());
    }
}
