//! Lookups that a client holds and returns by number.

use super::{InodeRef, LOOKUP, LOOKUPS_MAX, Vfs};

impl Vfs {
    /// Drops `n` lookups that [`InodeRef::into_lookups`] gave out on an inode of the root's file
    /// system. Returns false, and drops nothing, if the inode has fewer: a count that a client gets
    /// wrong must not free what others use (trap P5). An inode that has been given out 2 to the 32nd
    /// times stays whatever is forgotten.
    ///
    /// If the back end has used the number again, with another generation, both inodes have been given
    /// out under it, and the lookups of the older one go first: the newer one, which can still be used
    /// by its number, stays until all are back.
    pub fn forget(&self, ino: u64, n: u64) -> bool {
        let current = self.in_use(ino);
        let older = self.stale_generations(ino);
        if !older.is_empty() {
            // It may have become a stale generation since it was found.
            let is_other = |inode: &InodeRef<'_>| older.iter().all(|old| old.slot != inode.slot);
            return self.forget_in_turn(&older, current.as_ref().filter(|&it| is_other(it)), n);
        }
        let Some(inode) = current else { return n == 0 };
        if !inode.drop_lookups(n) {
            return false;
        }
        // A lookup itself leaves no mark but its count.
        self.dcache.inodes.touch(inode.slot);
        true
    }

    /// Drops all lookups of an inode of the root's file system, also those of older ones with the same
    /// number, and returns how many there were: for a server whose only client has gone.
    pub fn forget_all(&self, ino: u64) -> u64 {
        let current = self.in_use(ino);
        let older = self.stale_generations(ino);
        older.iter().chain(&current).map(InodeRef::drop_all_lookups).sum()
    }

    /// Returns the inodes that have had this number before, and are held.
    fn stale_generations(&self, ino: u64) -> Vec<InodeRef<'_>> {
        let slots = self.dcache.inodes.stale_generations(0, ino);
        slots.into_iter().map(|slot| InodeRef { vfs: self, slot }).collect()
    }

    #[cold]
    fn forget_in_turn(
        &self,
        older: &[InodeRef<'_>],
        current: Option<&InodeRef<'_>>,
        n: u64,
    ) -> bool {
        // Two that give back the same lookups would each find them all.
        self.dcache.inodes.alone(|| {
            let all = || older.iter().chain(current);
            if all().map(InodeRef::lookups).sum::<u64>() < n {
                return false;
            }
            let mut left = n;
            for inode in all() {
                let some = left.min(inode.lookups());
                if inode.drop_lookups(some) {
                    left -= some;
                }
            }
            left == 0
        })
    }
}

impl InodeRef<'_> {
    fn lookups(&self) -> u64 {
        self.vfs.dcache.inodes.lockref(self.slot).count() / LOOKUP
    }

    /// Drops `n` lookups; false if there are fewer.
    fn drop_lookups(&self, n: u64) -> bool {
        let mut guard = self.vfs.dcache.inodes.lockref(self.slot).lock();
        let lookups = guard.count() / LOOKUP;
        if lookups < n {
            return false;
        }
        if lookups < LOOKUPS_MAX {
            guard.sub(n * LOOKUP);
        }
        true
    }

    fn drop_all_lookups(&self) -> u64 {
        let mut guard = self.vfs.dcache.inodes.lockref(self.slot).lock();
        let lookups = guard.count() / LOOKUP;
        guard.sub(lookups * LOOKUP);
        lookups
    }
}
