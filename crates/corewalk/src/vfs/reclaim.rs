//! Reclaim: the eviction of entries, for a server whose client can be asked to forget.

use super::{EntryId, Pinned, Vfs};

impl Vfs {
    /// Evicts all unused entries. Returns their number.
    ///
    /// # Examples
    /// ```
    /// # use std::sync::Arc;
    /// # use corewalk::tmpfs::{Tmpfs, TmpfsOptions};
    /// # use corewalk::{Cred, Make, Name, Vfs, VfsOptions};
    /// # let fs = Arc::new(Tmpfs::new(TmpfsOptions::default()));
    /// # let vfs = Vfs::new(fs, VfsOptions::default())?;
    /// # let (cred, root, name) = (Cred::root(), vfs.root(), Name::new(b"f")?);
    /// # let (file, _) = vfs.make(&cred, &root, name, Make::new(0o100_644, 1000, 1000))?;
    /// drop(file);
    /// assert_eq!(vfs.stats().entries, 2);
    /// assert_eq!((vfs.prune(), vfs.stats().entries), (1, 1));
    /// # Ok::<(), corewalk::Errno>(())
    /// ```
    pub fn prune(&self) -> u64 {
        self.dcache.prune()
    }

    /// Evicts unused entries, first those that have not been used for long. Reports each pinned
    /// entry (one that only lookups of the client keep) to `pinned`. Stops when the number of
    /// evicted and reported entries reaches `want`, or when each entry was examined once. Returns
    /// the number of evicted entries.
    ///
    /// For a large `want`, call this on a thread that serves no requests. When the client has
    /// forgotten an entry that was passed to `pinned`, evict it with [`Vfs::evict`].
    ///
    /// # Examples
    /// ```
    /// use std::sync::Arc;
    /// use corewalk::{Cred, Make, Name, Vfs, VfsOptions, tmpfs::{Tmpfs, TmpfsOptions}};
    ///
    /// let fs = Arc::new(Tmpfs::new(TmpfsOptions::default()));
    /// let vfs = Vfs::new(fs, VfsOptions::default())?;
    /// let (cred, root) = (Cred::root(), vfs.root());
    /// let make = |name| vfs.make(&cred, &root, Name::new(name)?, Make::new(0o644, 0, 0));
    /// drop(make(b"unused")?);
    /// let held = make(b"used")?.0.into_lookups();
    /// let mut pinned = vec![];
    /// // The first call spares an entry that was used lately, so call twice.
    /// let evicted: u64 = (0..2)
    ///     .map(|_| vfs.reclaim(10, &mut |entry| pinned.push((entry.entry, entry.ino))))
    ///     .sum();
    /// assert_eq!((evicted, pinned.len(), pinned[0].1), (1, 1, held));
    /// assert_eq!(vfs.evict(pinned[0].0), 0, "an entry in use was evicted");
    /// vfs.forget(held, 1);
    /// assert_eq!(vfs.evict(pinned[0].0), 1);
    /// # Ok::<(), corewalk::Errno>(())
    /// ```
    pub fn reclaim(&self, want: u64, pinned: &mut dyn FnMut(Pinned<'_>)) -> u64 {
        let inodes = &self.dcache.inodes;
        self.dcache.reclaim(want, &mut |slot, inode, parent, name| {
            if inodes.superblock(inode) == 0 {
                let (ino, kind) = (inodes.ino(inode), inodes.kind(inode));
                pinned(Pinned {
                    entry: EntryId(slot),
                    ino,
                    kind,
                    parent: inodes.ino(parent),
                    name,
                });
            }
        })
    }

    /// Evicts an entry that [`Vfs::reclaim`] reported, unless it is in use. It also evicts each
    /// parent directory that becomes unused and has no children. Returns the number of evicted
    /// entries.
    pub fn evict(&self, entry: EntryId) -> u64 {
        self.dcache.evict_entry(entry.0)
    }
}
