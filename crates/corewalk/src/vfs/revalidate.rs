//! Names that others change as well: what is cached of one is held against the back end.
//!
//! Source: Linux `d_revalidate` (`Documentation/filesystems/vfs.rst`).

use crate::Errno;
use crate::dentry::LookupKey;
use crate::name::Name;

use super::held::{Dir, Found};
use super::names::Cached;
use super::{InodeRef, Vfs};

impl Vfs {
    /// Makes what is cached of `name` unknown, unless the back end says the same: for a server of what others change,
    /// too, before it uses a name. Nothing is asked about a name that is not cached.
    ///
    /// What is cached below a directory that is still there stays. What is known of the permissions of the inode is
    /// unknown afterwards.
    ///
    /// # Errors
    /// `ENOTDIR`; `ENOENT` if `dir` has been removed.
    ///
    /// # Examples
    /// ```
    /// use corewalk::tmpfs::{Tmpfs, TmpfsOptions};
    /// use corewalk::{Cred, Errno, FileKind, FileSystem, Make, Name, Node, Vfs, VfsOptions};
    /// use std::sync::Arc;
    ///
    /// let fs = Arc::new(Tmpfs::new(TmpfsOptions::default()));
    /// let vfs = Vfs::new(fs.clone(), VfsOptions::default())?;
    /// let (cred, root, name) = (Cred::root(), vfs.root(), Name::new(b"late")?);
    /// assert_eq!(vfs.lookup(&cred, &root, name).err(), Some(Errno::NOENT));
    /// // Behind the back of the cache, which still knows that there is no such name.
    /// fs.make(Node::detached(root.ino(), FileKind::Directory), name, &Make::new(0o644, 0, 0))?;
    /// assert_eq!(vfs.lookup(&cred, &root, name).err(), Some(Errno::NOENT));
    /// vfs.revalidate(&root, name)?;
    /// assert!(vfs.lookup(&cred, &root, name).is_ok());
    /// # Ok::<(), Errno>(())
    /// ```
    #[doc(alias = "d_revalidate")]
    pub fn revalidate(&self, dir: &InodeRef<'_>, name: Name<'_>) -> Result<(), Errno> {
        let dir = self.dir(dir.slot)?;
        let lookup_key = self.dcache.lookup_key(name);
        if self.dcache.find(dir.key(), &lookup_key).is_none() {
            return Ok(());
        }
        // Nobody changes the name through this namespace while the back end is asked.
        let in_lookup =
            self.dcache.in_lookup.lock(self.dcache.in_lookup_key(dir.now.slot, &lookup_key));
        let is_so = match self.cached(&dir, &lookup_key) {
            Cached::Unknown => true,
            // To ask now would be to ask twice, if somebody is about to use the name.
            Cached::Known(None) => false,
            Cached::Known(Some(found)) => self.is_still(&dir, &lookup_key, &found),
        };
        if !is_so {
            self.make_unknown(&dir, &lookup_key);
        }
        drop(in_lookup);
        Ok(())
    }

    /// Returns true if the back end agrees with the cached name. The caller holds its in-lookup
    /// lock.
    fn is_still(&self, dir: &Dir<'_>, lookup_key: &LookupKey<'_>, found: &Found<'_>) -> bool {
        let changes = self.dcache.inodes.changes();
        let answer = self.with_node(dir.now.inode, |fs, node| fs.lookup(node, lookup_key.name));
        // What another answer leads to is told that it is not used, as after every lookup.
        let entered = answer.and_then(|attr| self.enter(dir.now.inode, &attr, changes, None));
        let is_same = entered.is_ok_and(|inode| inode.slot == found.inode);
        if is_same {
            if let Ok(slot) = found.dentry() {
                self.dcache.inodes.prefer_alias(found.inode, slot, &self.dcache.dentries);
            }
            self.invalidate_attributes(&found.inode_ref());
        }
        is_same
    }
}
