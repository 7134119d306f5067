//! Forget: a client returns lookups, by inode number.

use super::{InodeRef, LOOKUP, LOOKUPS_MAX, Vfs};

impl Vfs {
    /// Drops `n` lookups of the inode with this number in the root file system.
    /// [`InodeRef::into_lookups`] has counted these lookups for a client.
    ///
    /// If the inode has fewer than `n` lookups, returns false and drops nothing. A wrong count of
    /// one client must not free an inode that others use. An inode with 2^32 or more lookups keeps
    /// all of them (its count is saturated).
    ///
    /// The back end may have given a deleted file's inode number to a new file, with another
    /// generation. The `forget` calls for both have the same number. The lookups of the older file
    /// are dropped first, because only the newer file can still be reached by the number.
    ///
    /// # Examples
    /// ```
    /// # use std::sync::Arc;
    /// # use corewalk::tmpfs::{Tmpfs, TmpfsOptions};
    /// # use corewalk::{Cred, Errno, Make, Name, Vfs, VfsOptions};
    /// # let fs = Arc::new(Tmpfs::new(TmpfsOptions::default()));
    /// # let vfs = Vfs::new(fs, VfsOptions::default())?;
    /// # let (cred, root, name) = (Cred::root(), vfs.root(), Name::new(b"f")?);
    /// # let (file, _) = vfs.make(&cred, &root, name, Make::new(0o100_644, 1000, 1000))?;
    /// let ino = file.into_lookups();
    /// assert_eq!(vfs.inode(ino)?.ino(), ino);
    /// assert!(vfs.forget(ino, 1));
    /// assert!(!vfs.forget(ino, 1), "there is no lookup left");
    /// # Ok::<(), corewalk::Errno>(())
    /// ```
    pub fn forget(&self, ino: u64, n: u64) -> bool {
        let current = self.in_use(ino);
        let older = self.stale_generations(ino);
        if !older.is_empty() {
            // `current` may also be in `older`, if another file got its number after `in_use` found
            // it.
            let is_other = |inode: &InodeRef<'_>| older.iter().all(|old| old.slot != inode.slot);
            return self.forget_oldest_first(
                &older,
                current.as_ref().filter(|&it| is_other(it)),
                n,
            );
        }
        let Some(inode) = current else { return n == 0 };
        if !inode.drop_lookups(n) {
            return false;
        }
        // Mark the inode as recently used. A lookup in the cache by the number of the directory
        // does not mark the inode that it finds.
        self.dcache.inodes.touch(inode.slot);
        true
    }

    /// Drops all lookups (references of clients) of the inode with this number in the root file
    /// system. Also drops those of older inodes that had the same number. Returns the number of
    /// dropped lookups. A server calls this when its only client has gone.
    pub fn forget_all(&self, ino: u64) -> u64 {
        let current = self.in_use(ino);
        let older = self.stale_generations(ino);
        older.iter().chain(&current).map(InodeRef::drop_all_lookups).sum()
    }

    fn stale_generations(&self, ino: u64) -> Vec<InodeRef<'_>> {
        let slots = self.dcache.inodes.stale_generations(0, ino);
        slots.into_iter().map(|slot| InodeRef { vfs: self, slot }).collect()
    }

    #[cold]
    fn forget_oldest_first(
        &self,
        older: &[InodeRef<'_>],
        current: Option<&InodeRef<'_>>,
        n: u64,
    ) -> bool {
        // The lookups may be spread over several inodes that had this number. So one thread at a
        // time drops lookups. Otherwise two threads could both count enough lookups for their
        // request, although there are too few for both.
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
