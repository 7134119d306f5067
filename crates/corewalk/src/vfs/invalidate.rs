//! Invalidation: another program has changed the back end.

use super::{InodeRef, Vfs};
use crate::Errno;
use crate::name::Name;

impl Vfs {
    /// Invalidates a name: drops its cached dentry. The answer of a running lookup will not be
    /// cached. Call this after another program has changed the name in the back end. It never
    /// waits.
    ///
    /// # Errors
    /// `ENOTDIR`; `ENOENT` if `dir` was removed.
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
    /// let misses = vfs.stats().misses;
    /// vfs.lookup(&cred, &root, name)?;
    /// assert_eq!(vfs.stats().misses, misses);
    /// vfs.invalidate(&root, name)?;
    /// vfs.lookup(&cred, &root, name)?;
    /// assert_eq!(vfs.stats().misses, misses + 1);
    /// # Ok::<(), corewalk::Errno>(())
    /// ```
    pub fn invalidate(&self, dir: &InodeRef<'_>, name: Name<'_>) -> Result<(), Errno> {
        let dir = self.dir(dir.slot)?;
        self.dcache.invalidate_name(dir.now.slot, &self.dcache.lookup_key(name));
        Ok(())
    }

    /// Invalidates the permission record of `inode` (its cached mode and owner). Call this after
    /// another program has changed permissions in the back end.
    pub fn invalidate_attributes(&self, inode: &InodeRef<'_>) {
        self.dcache.inodes.invalidate(inode.slot);
        self.dcache.sync_searchable(inode.slot);
    }

    /// Invalidates all names in `dir`, in constant time.
    ///
    /// # Errors
    /// Those of [`Vfs::invalidate`].
    pub fn invalidate_dir(&self, dir: &InodeRef<'_>) -> Result<(), Errno> {
        let dir = self.dir(dir.slot)?;
        self.dcache.invalidate_directory(dir.now.slot);
        Ok(())
    }
}
