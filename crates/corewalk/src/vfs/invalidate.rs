//! Invalidation: another program has changed the back end.

use super::held::DentryHold;
use super::{InodeRef, Vfs};
use crate::Errno;
use crate::attr::FileKind;
use crate::fs::Leases;
use crate::name::Name;
use crate::slot::DentrySlot;

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

    /// Invalidates all names, and the permission records of all inodes that have a name. Call it
    /// when anything in the back end may have changed, for example after its notifications were
    /// lost. The call takes time for each cached name, but never waits.
    ///
    /// Before the names and attributes of an inode are invalidated, `before` gets its number and
    /// kind. It gets only inodes of the file system at the namespace's root, and an inode with
    /// several names several times.
    ///
    /// # Examples
    /// ```
    /// # use std::sync::Arc;
    /// # use corewalk::tmpfs::{Tmpfs, TmpfsOptions};
    /// # use corewalk::{Cred, FileKind, Make, Name, Vfs, VfsOptions};
    /// # let fs = Arc::new(Tmpfs::new(TmpfsOptions::default()));
    /// # let vfs = Vfs::new(fs, VfsOptions::default())?;
    /// # let (cred, root, name) = (Cred::root(), vfs.root(), Name::new(b"f")?);
    /// # let (file, _) = vfs.make(&cred, &root, name, Make::new(0o100_644, 1000, 1000))?;
    /// let misses = vfs.stats().misses;
    /// let mut directories = vec![];
    /// vfs.invalidate_all(&mut |ino, kind| {
    ///     if kind == FileKind::Directory {
    ///         directories.push(ino);
    ///     }
    /// });
    /// assert_eq!(directories, [root.ino()]);
    /// vfs.lookup(&cred, &root, name)?;
    /// assert_eq!(vfs.stats().misses, misses + 1);
    /// # Ok::<(), corewalk::Errno>(())
    /// ```
    pub fn invalidate_all(&self, before: &mut dyn FnMut(u64, FileKind)) {
        // The loop does not reach slots that are used for the first time after it began. That is
        // harmless: a directory in such a slot has no names yet, and the back end reports its names
        // only after this call began.
        for slot in self.dcache.slots() {
            if let Some(inode) = self.inode_of(slot) {
                self.invalidate_all_of(&inode, slot, before);
            }
        }
    }

    /// Invalidates a name like [`Vfs::invalidate`], and also everything below it if it leads to a
    /// directory. Without that, a directory that the back end still has comes back into the cache
    /// with all its names. Directories that earlier invalidations have hidden count too.
    ///
    /// For a directory, the call takes time for each cached name, and directories cannot be moved
    /// meanwhile. `before` is called for the inodes of the name and below it, as in
    /// [`Vfs::invalidate_all`].
    ///
    /// # Errors
    /// Those of [`Vfs::invalidate`].
    ///
    /// # Examples
    /// ```
    /// # use std::sync::Arc;
    /// # use corewalk::tmpfs::{Tmpfs, TmpfsOptions};
    /// # use corewalk::{Cred, Make, Name, Vfs, VfsOptions};
    /// # let fs = Arc::new(Tmpfs::new(TmpfsOptions::default()));
    /// # let vfs = Vfs::new(fs, VfsOptions::default())?;
    /// # let (cred, root, name) = (Cred::root(), vfs.root(), Name::new(b"d")?);
    /// let (dir, _) = vfs.make(&cred, &root, name, Make::new(0o040_755, 0, 0))?;
    /// let (file, _) = vfs.make(&cred, &dir, Name::new(b"f")?, Make::new(0o100_644, 0, 0))?;
    /// let mut inodes = vec![];
    /// vfs.invalidate_tree(&root, name, &mut |ino, _| inodes.push(ino))?;
    /// inodes.sort();
    /// assert_eq!(inodes, [dir.ino(), file.ino()]);
    /// # Ok::<(), corewalk::Errno>(())
    /// ```
    pub fn invalidate_tree(
        &self,
        dir: &InodeRef<'_>,
        name: Name<'_>,
        before: &mut dyn FnMut(u64, FileKind),
    ) -> Result<(), Errno> {
        self.invalidate(dir, name)?;
        let dir = self.dir(dir.slot)?;
        let tops = self.dcache.dentries_of_name(dir.now.slot, &self.dcache.lookup_key(name));
        for slot in self.tree(tops) {
            if let Some(inode) = self.inode_of(slot) {
                self.invalidate_all_of(&inode, slot, before);
            }
        }
        Ok(())
    }

    /// Returns the directories that the cache has at a name. Besides the current one, these are
    /// directories that the name led to before an invalidation, and that are still in use.
    ///
    /// # Errors
    /// Those of [`Vfs::invalidate`].
    pub fn directories_at(
        &self,
        dir: &InodeRef<'_>,
        name: Name<'_>,
    ) -> Result<Vec<InodeRef<'_>>, Errno> {
        let dir = self.dir(dir.slot)?;
        let slots = self.dcache.dentries_of_name(dir.now.slot, &self.dcache.lookup_key(name));
        let inodes = slots.into_iter().filter_map(|slot| self.inode_of(slot));
        Ok(inodes.filter(|inode| inode.kind() == FileKind::Directory).collect())
    }

    /// Invalidates the names below a directory, without a call of the back end. The caller may hold
    /// in-lookup locks.
    pub(super) fn invalidate_below(&self, dir: &DentryHold<'_>) {
        // Each cached child holds a reference on the dentry, and so does the caller.
        if self.dcache.dentries.lockref(dir.slot).count() > 1 {
            for slot in self.tree(vec![dir.slot]) {
                self.dcache.invalidate_directory(slot);
            }
        }
    }

    /// Returns `tops` and the dentries below them. The caller invalidates them without the lock
    /// `topology`, because `before` may take other locks. A directory that is moved away meanwhile
    /// is invalidated at its new place. Names that enter the tree meanwhile come from elsewhere, or
    /// were asked of the back end after the call began. If a slot gets another dentry, that one is
    /// invalidated too, which does no harm.
    fn tree(&self, tops: Vec<DentrySlot>) -> Vec<DentrySlot> {
        let dcache = &self.dcache;
        let _still = dcache.topology.read_shared();
        let mut tree = tops;
        let tops: Vec<DentrySlot> =
            tree.iter().copied().filter(|top| dcache.is_directory(*top)).collect();
        if !tops.is_empty() {
            let is_below =
                |slot| tops.iter().any(|top| *top != slot && dcache.is_subdir(slot, *top));
            tree.extend(dcache.slots().filter(|slot| dcache.has_inode(*slot) && is_below(*slot)));
        }
        tree
    }

    fn invalidate_all_of(
        &self,
        inode: &InodeRef<'_>,
        slot: DentrySlot,
        before: &mut dyn FnMut(u64, FileKind),
    ) {
        let is_of_root = self.dcache.inodes.superblock(inode.slot) == 0;
        if is_of_root {
            before(inode.ino(), inode.kind());
        }
        self.dcache.invalidate_directory(slot);
        self.invalidate_attributes(inode);
    }

    /// Returns the leases of the inode's back end; see [`FileSystem::leases`].
    ///
    /// [`FileSystem::leases`]: crate::FileSystem::leases
    pub fn leases(&self, inode: &InodeRef<'_>) -> Option<&dyn Leases> {
        self.fs(inode.slot).leases()
    }

    fn inode_of(&self, slot: DentrySlot) -> Option<InodeRef<'_>> {
        let dcache = &self.dcache;
        loop {
            let seen = dcache.dentries.snapshot(slot);
            let inode = seen.body.inode();
            if inode.is_none() {
                // A failing eviction hides the inode for a moment, under the dentry's lock. So
                // check again under that lock.
                let guard = dcache.dentries.lockref(slot).lock();
                if dcache.dentries.image(slot).body.inode().is_none() {
                    return None;
                }
                drop(guard);
                continue;
            }
            if dcache.get_inode(slot, seen.seq, inode) {
                return Some(InodeRef { vfs: self, slot: inode });
            }
            if dcache.dentries.is_unchanged(slot, seen.seq) {
                // The dentry has not changed, but its inode takes no more references because it is
                // dead. So the dentry is about to be freed.
                return None;
            }
        }
    }
}
