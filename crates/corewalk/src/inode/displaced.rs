//! Inodes whose number another inode has by now.
//!
//! A back end may use a number again, with another generation, while somebody holds the file that had
//! it before. The older inode leaves the table then: nobody finds it by its number. But whoever counts
//! lookups by number alone, as the kernel does, gives back those of both under that one number.

use std::collections::BTreeSet;

use corewalk_base::Mutex;
use corewalk_base::primitives::atomic::{AtomicUsize, Ordering};

/// The displaced inodes that live: (superblock, number, slot).
pub(super) struct Displaced {
    list: Mutex<BTreeSet<(u32, u64, u32)>>,
    /// How many there are, so that who asks for one number rarely takes the lock.
    len: AtomicUsize,
}

impl Displaced {
    pub(super) fn new() -> Displaced {
        Displaced { list: Mutex::new(BTreeSet::new()), len: AtomicUsize::new(0) }
    }

    /// Enters an inode that somebody holds. The caller holds the lock of its stripe, and enters the new
    /// one after this.
    pub(super) fn insert(&self, superblock: u32, ino: u64, slot: u32) {
        let mut list = self.list.lock();
        list.insert((superblock, ino, slot));
        // ORDERING: Relaxed. Who has found the new inode in the table sees this, too.
        self.len.store(list.len(), Ordering::Relaxed);
    }

    /// Takes a dead inode out.
    pub(super) fn remove(&self, superblock: u32, ino: u64, slot: u32) {
        let mut list = self.list.lock();
        list.remove(&(superblock, ino, slot));
        // ORDERING: Relaxed. One that is seen late costs a look.
        self.len.store(list.len(), Ordering::Relaxed);
    }

    /// Returns the slots that had this number, and for which `get` returned true: they are in the list
    /// until it has.
    #[inline]
    pub(super) fn get(&self, superblock: u32, ino: u64, get: impl Fn(u32) -> bool) -> Vec<u32> {
        // ORDERING: Relaxed. See `insert`.
        if self.len.load(Ordering::Relaxed) == 0 {
            return Vec::new();
        }
        let list = self.list.lock();
        let range = list.range((superblock, ino, 0)..=(superblock, ino, u32::MAX));
        range.map(|&(_, _, slot)| slot).filter(|&slot| get(slot)).collect()
    }

    /// Keeps others from [`Displaced::alone`] while `work` runs.
    pub(super) fn alone<R>(&self, work: impl FnOnce() -> R) -> R {
        let _list = self.list.lock();
        work()
    }
}
