//! Inodes with a stale generation: another inode has their number now.
//!
//! A back end may reuse a number with another generation while the older file is in use. The older
//! inode then leaves the table, so no lookup by number finds it. A client that counts lookups by
//! number alone, as the kernel does, forgets the lookups of both inodes under that number.

use std::collections::BTreeSet;

use corewalk_base::Mutex;
use corewalk_base::primitives::atomic::{AtomicUsize, Ordering};

use crate::slot::InodeSlot;

/// The live inodes with a stale generation: (superblock, number, slot).
pub(super) struct StaleGenerations {
    /// Protected by its own mutex, which also serialises [`StaleGenerations::alone`].
    list: Mutex<BTreeSet<(u32, u64, InodeSlot)>>,
    /// The length of `list`, which a caller reads without the lock. It is stored under the lock of
    /// `list`.
    len: AtomicUsize,
}

impl StaleGenerations {
    pub(super) fn new() -> StaleGenerations {
        StaleGenerations { list: Mutex::new(BTreeSet::new()), len: AtomicUsize::new(0) }
    }

    /// Enters an inode that the caller is about to replace by one with the same number and another
    /// generation. The caller holds a reference on the old inode, and the lock of its stripe of the
    /// inode table. The caller enters the new inode in the table after this call.
    pub(super) fn insert(&self, superblock: u32, ino: u64, slot: InodeSlot) {
        let mut list = self.list.lock();
        list.insert((superblock, ino, slot));
        // ORDERING: Relaxed. The caller enters the new inode in the table later, and that entry
        // publishes the length.
        self.len.store(list.len(), Ordering::Relaxed);
    }

    /// Removes a dead inode.
    pub(super) fn remove(&self, superblock: u32, ino: u64, slot: InodeSlot) {
        let mut list = self.list.lock();
        list.remove(&(superblock, ino, slot));
        // ORDERING: Relaxed. A thread that reads the old length in `get` only makes a useless
        // search.
        self.len.store(list.len(), Ordering::Relaxed);
    }

    /// Calls `get` with each slot of the list that has this inode number. Returns the slots for
    /// which `get` returned true. No slot leaves the list during a call of `get`.
    #[inline]
    pub(super) fn get(
        &self,
        superblock: u32,
        ino: u64,
        get: impl Fn(InodeSlot) -> bool,
    ) -> Vec<InodeSlot> {
        // ORDERING: Relaxed. A thread that has found the newer inode in the table sees the length,
        // because `insert` stored the length before that inode was entered.
        if self.len.load(Ordering::Relaxed) == 0 {
            return Vec::new();
        }
        let list = self.list.lock();
        let range = list.range(
            (superblock, ino, InodeSlot::NONE)..=(superblock, ino, InodeSlot::new(u32::MAX)),
        );
        range.map(|&(_, _, slot)| slot).filter(|&slot| get(slot)).collect()
    }

    /// Runs `work` under the lock of the list.
    pub(super) fn alone<R>(&self, work: impl FnOnce() -> R) -> R {
        let _list = self.list.lock();
        work()
    }
}
