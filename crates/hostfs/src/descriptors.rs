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
//! One for all three, since a miss has to look at each of them; a leaf: descriptors are opened and
//! closed outside of it.

use std::collections::{BTreeMap, HashMap};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use corewalk_sync::Mutex;
use corewalk_sync::primitives::atomic::{AtomicU64, Ordering};

/// A descriptor that several calls may use at once; it is closed after the last one.
pub(crate) type SharedFd = Arc<OwnedFd>;

/// The descriptors of one file system.
pub(crate) struct Descriptors {
    kept: Mutex<Kept>,
    next_handle: AtomicU64,
}

/// What is kept.
struct Kept {
    reusable: Recent,
    orphans: Recent,
    /// Open files by inode number and handle.
    open: BTreeMap<(u64, u64), SharedFd>,
}

/// At most so many descriptors by inode number, of which the one used longest ago goes first.
struct Recent {
    max: usize,
    now: u64,
    by_ino: HashMap<u64, (SharedFd, u64)>,
}

impl Descriptors {
    pub(crate) fn new(reusable: usize, orphans: usize) -> Descriptors {
        let (reusable, orphans) = (Recent::new(reusable), Recent::new(orphans));
        let kept = Kept { reusable, orphans, open: BTreeMap::new() };
        Descriptors { kept: Mutex::new(kept), next_handle: AtomicU64::new(1) }
    }

    /// Returns a descriptor of an inode, if one is kept.
    pub(crate) fn get(&self, ino: u64) -> Option<SharedFd> {
        let mut kept = self.kept.lock();
        let found = kept.reusable.get(ino).or_else(|| kept.orphans.get(ino));
        found.or_else(|| {
            let mut open = kept.open.range((ino, 0)..=(ino, u64::MAX));
            open.next().map(|(_, fd)| Arc::clone(fd))
        })
    }

    /// Keeps a descriptor for reuse.
    pub(crate) fn keep(&self, ino: u64, fd: SharedFd) {
        let evicted = self.kept.lock().reusable.insert(ino, fd);
        drop(evicted);
    }

    /// Keeps a descriptor of an inode that is about to lose its last name.
    pub(crate) fn keep_orphan(&self, ino: u64, fd: SharedFd) {
        let mut kept = self.kept.lock();
        let gone = (kept.reusable.remove(ino), kept.orphans.insert(ino, fd));
        drop(kept);
        drop(gone);
    }

    /// Undoes [`Descriptors::keep_orphan`].
    pub(crate) fn adopt_orphan(&self, ino: u64) {
        let orphan = self.kept.lock().orphans.remove(ino);
        drop(orphan);
    }

    /// Closes what is kept of an inode that nobody uses any more.
    pub(crate) fn forget(&self, ino: u64) {
        let mut kept = self.kept.lock();
        let gone = (kept.reusable.remove(ino), kept.orphans.remove(ino));
        drop(kept);
        drop(gone);
    }

    /// Closes what is kept for reuse: the process has run out of descriptors.
    pub(crate) fn drop_reusable(&self) {
        let all = std::mem::take(&mut self.kept.lock().reusable.by_ino);
        drop(all);
    }

    /// Files an open file and returns its handle.
    pub(crate) fn add_open(&self, ino: u64, fd: OwnedFd) -> u64 {
        // ORDERING: Relaxed. Only hands out different numbers.
        let handle = self.next_handle.fetch_add(1, Ordering::Relaxed);
        let fd = Arc::new(fd);
        self.kept.lock().open.insert((ino, handle), fd);
        handle
    }

    /// Returns an open file; None for a handle that is not one of this inode.
    pub(crate) fn get_open(&self, ino: u64, handle: u64) -> Option<SharedFd> {
        self.kept.lock().open.get(&(ino, handle)).map(Arc::clone)
    }

    /// Closes an open file.
    pub(crate) fn close(&self, ino: u64, handle: u64) {
        let open = self.kept.lock().open.remove(&(ino, handle));
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
        descriptors.close(6, handle);
        assert!(descriptors.get(5).is_some() && descriptors.get(6).is_none());
        descriptors.close(5, handle);
        assert!(descriptors.get_open(5, handle).is_none() && descriptors.get(5).is_none());
    }
}
