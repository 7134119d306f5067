//! Inodes with a stale generation: another inode has their number now.
//!
//! A back end may give a number to a new file, with another generation, while the old file with
//! that number is still in use. The old inode then leaves the inode table, and lookups by number
//! find only the new one.
//!
//! The kernel counts its lookups by number alone. When it forgets the number, the server needs the
//! old inode too. So this module lists the old inodes.

use std::collections::BTreeSet;

use corewalk_base::Mutex;
use corewalk_base::primitives::atomic::{AtomicUsize, Ordering};

use crate::slot::InodeSlot;

/// The live inodes with a stale generation.
pub(super) struct StaleGenerations {
    /// The superblock, number and slot of each inode. The mutex also protects the work of
    /// [`StaleGenerations::alone`]: no two threads do such work at the same time.
    list: Mutex<BTreeSet<(u32, u64, InodeSlot)>>,
    /// The length of `list`. `get` reads it without a lock. It changes only under the lock of
    /// `list`.
    len: AtomicUsize,
}

impl StaleGenerations {
    pub(super) fn new() -> StaleGenerations {
        StaleGenerations { list: Mutex::new(BTreeSet::new()), len: AtomicUsize::new(0) }
    }

    /// Adds an inode to the list. The caller then inserts the new inode with the same number in the
    /// inode table. It holds a reference on the old inode, and the table's lock for this number.
    pub(super) fn insert(&self, superblock: u32, ino: u64, slot: InodeSlot) {
        let mut list = self.list.lock();
        list.insert((superblock, ino, slot));
        // ORDERING: Relaxed. The caller then inserts the new inode in the inode table, which
        // publishes the list's length.
        self.len.store(list.len(), Ordering::Relaxed);
    }

    pub(super) fn remove(&self, superblock: u32, ino: u64, slot: InodeSlot) {
        let mut list = self.list.lock();
        list.remove(&(superblock, ino, slot));
        // ORDERING: Relaxed. A `get` that loads the old length locks the list and searches it in
        // vain, which is harmless.
        self.len.store(list.len(), Ordering::Relaxed);
    }

    /// Returns the listed inodes with this number for which `get` returns true. No slot leaves the
    /// list while `get` runs.
    #[inline]
    pub(super) fn get(
        &self,
        superblock: u32,
        ino: u64,
        get: impl Fn(InodeSlot) -> bool,
    ) -> Vec<InodeSlot> {
        // ORDERING: Relaxed. The caller has searched the inode table before. If it found the new
        // inode there, it also sees that the list contains the old one, because `insert` stored the
        // length earlier.
        if self.len.load(Ordering::Relaxed) == 0 {
            return Vec::new();
        }
        let list = self.list.lock();
        let range = list.range(
            (superblock, ino, InodeSlot::NONE)..=(superblock, ino, InodeSlot::new(u32::MAX)),
        );
        range.map(|&(_, _, slot)| slot).filter(|&slot| get(slot)).collect()
    }

    pub(super) fn alone<R>(&self, work: impl FnOnce() -> R) -> R {
        let _list = self.list.lock();
        work()
    }
}
