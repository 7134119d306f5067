//! Lookups for servers that reply with attributes.
//!
//! The back end's answer to a lookup contains the attributes of the file. The lookup returns them,
//! so that a server asks the back end at most once.

use super::held::Dir;
use super::names::{Cached, Missing};
use super::paths::Paths;
use super::{InodeRef, Vfs};
use crate::Errno;
use crate::attr::Attr;
use crate::cred::{Caps, Cred};
use crate::dentry::LookupKey;
use crate::inode::Perm;
use crate::key_lock::KeyGuard;
use crate::name::Name;
use crate::slot::InodeSlot;

/// An inode that a lookup found.
#[derive(Debug)]
pub struct LookedUp<'v> {
    /// The inode.
    pub inode: InodeRef<'v>,
    /// The attributes, if the lookup asked the back end. None if the lookup was answered from the
    /// cache.
    pub attr: Option<Attr>,
}

impl LookedUp<'_> {
    /// Returns the attributes of the found inode. After a cache hit, asks the back end for them.
    ///
    /// # Errors
    /// The errors of [`Vfs::getattr`].
    pub fn attr(&self) -> Result<Attr, Errno> {
        self.attr.map_or_else(|| self.inode.vfs.getattr(&self.inode), Ok)
    }
}

impl Vfs {
    /// Looks up a name as a FUSE server does: `parent` is the number of an inode in use. `name` is
    /// validated only on a cache miss, because an invalid name is never cached.
    ///
    /// The result has the attributes if the lookup asked the back end. On a cache hit, the only
    /// store to memory is the new reference on the inode.
    ///
    /// # Errors
    /// The errors of [`Vfs::lookup`] and [`Name::new`]; `ESTALE` if `parent` is not in use.
    ///
    /// # Examples
    /// ```
    /// use std::sync::Arc;
    /// use corewalk::tmpfs::{Tmpfs, TmpfsOptions};
    /// use corewalk::{Cred, Make, Name, Vfs, VfsOptions};
    ///
    /// let vfs = Vfs::new(Arc::new(Tmpfs::new(TmpfsOptions::default())), VfsOptions::default())?;
    /// let (cred, root) = (Cred::root(), vfs.root());
    /// drop(vfs.make(&cred, &root, Name::new(b"f")?, Make::new(0o644, 0, 0))?);
    /// vfs.prune();
    /// let found = vfs.lookup_by_ino(&cred, root.ino(), b"f")?;
    /// assert!(found.attr.is_some(), "the back end was asked for the name");
    /// let again = vfs.lookup_by_ino(&cred, root.ino(), b"f")?;
    /// assert_eq!((again.attr, again.attr()), (None, found.attr()));
    /// # Ok::<(), corewalk::Errno>(())
    /// ```
    pub fn lookup_by_ino(
        &self,
        cred: &Cred,
        parent: u64,
        name: &[u8],
    ) -> Result<LookedUp<'_>, Errno> {
        if cred.has(Caps::DAC_READ_SEARCH)
            && let Some(inode) = self.child_by_ino(parent, name)
        {
            return Ok(LookedUp { inode, attr: None });
        }
        self.lookup_by_ino_slow(cred, parent, name)
    }

    /// Looks up a name in the cache only, without a lock. None does not prove that the name is not
    /// cached: its inode may have too many references. [`Vfs::cached_child`] tells these cases
    /// apart.
    #[inline]
    pub(crate) fn child_by_ino(&self, parent: u64, name: &[u8]) -> Option<InodeRef<'_>> {
        let slot = self.dcache.get_by_ino(parent, name)?;
        Some(InodeRef { vfs: self, slot })
    }

    /// Returns the inode of a cached name, without asking the back end. A server that is notified
    /// of a changed path uses this method to find the cached directories on the path.
    ///
    /// # Errors
    /// `ENOENT` if the cache does not have the name, or `dir` was removed; `ENOTDIR`; `ENFILE`.
    ///
    /// # Examples
    /// ```
    /// use std::sync::Arc;
    /// use corewalk::tmpfs::{Tmpfs, TmpfsOptions};
    /// use corewalk::{Cred, Errno, Make, Name, Vfs, VfsOptions};
    ///
    /// let vfs = Vfs::new(Arc::new(Tmpfs::new(TmpfsOptions::default())), VfsOptions::default())?;
    /// let (cred, root, name) = (Cred::root(), vfs.root(), Name::new(b"f")?);
    /// let (file, _) = vfs.make(&cred, &root, name, Make::new(0o644, 0, 0))?;
    /// assert_eq!(vfs.cached_child(&root, name)?.ino(), file.ino());
    /// drop(file);
    /// vfs.prune();
    /// assert_eq!(vfs.cached_child(&root, name).err(), Some(Errno::NOENT));
    /// # Ok::<(), Errno>(())
    /// ```
    pub fn cached_child(&self, dir: &InodeRef<'_>, name: Name<'_>) -> Result<InodeRef<'_>, Errno> {
        let (dir, lookup_key) = (self.dir(dir.slot)?, self.dcache.lookup_key(name));
        let _in_lookup =
            self.dcache.in_lookup.lock(self.dcache.in_lookup_key(dir.now.slot, &lookup_key));
        while let Some((slot, seen)) = self.dcache.find_exact(dir.key(), &lookup_key) {
            let inode = seen.body.inode();
            if inode.is_none() {
                break;
            }
            if self.dcache.get_inode(slot, seen.seq, inode) {
                self.dcache.inodes.touch(inode);
                return InodeRef { vfs: self, slot: inode }.unless_saturated();
            }
        }
        Err(Errno::NOENT)
    }

    #[cold]
    #[inline(never)]
    fn lookup_by_ino_slow(
        &self,
        cred: &Cred,
        parent: u64,
        name: &[u8],
    ) -> Result<LookedUp<'_>, Errno> {
        let (dir, lookup_key) = (self.inode(parent)?, self.dcache.lookup_key(Name::new(name)?));
        self.may_search(cred, dir.slot)?;
        match self.lookup_cached(dir.slot, &lookup_key) {
            Some(inode) => Ok(LookedUp { inode: inode?, attr: None }),
            None => self.lookup_slow(dir.slot, &lookup_key, Vfs::resolve_with_attr),
        }
    }

    #[cold]
    pub(super) fn lookup_slow<'v>(
        &'v self,
        dir: InodeSlot,
        lookup_key: &LookupKey<'_>,
        resolve: impl FnOnce(
            &'v Vfs,
            &Dir<'_>,
            &LookupKey<'_>,
            &KeyGuard<'_>,
        ) -> Result<Option<LookedUp<'v>>, Errno>,
    ) -> Result<LookedUp<'v>, Errno> {
        let found = self.awaiting_removal(&[dir], || {
            let dir = self.dir(dir)?;
            let in_lookup =
                self.dcache.in_lookup.lock(self.dcache.in_lookup_key(dir.now.slot, lookup_key));
            resolve(self, &dir, lookup_key, &in_lookup)
        })?;
        let LookedUp { inode, attr } = found.ok_or(Errno::NOENT)?;
        Ok(LookedUp { inode: inode.unless_saturated()?, attr })
    }

    pub(super) fn resolve_with_attr(
        &self,
        dir: &Dir<'_>,
        lookup_key: &LookupKey<'_>,
        in_lookup: &KeyGuard<'_>,
    ) -> Result<Option<LookedUp<'_>>, Errno> {
        let (found, attr) = match self.cached(dir, lookup_key) {
            Cached::Known(found) => (found, None),
            Cached::Unknown => {
                let fill = self.fill(dir, lookup_key, in_lookup, Missing::Cached)?;
                fill.map_or((None, None), |(found, attr)| (Some(found), attr))
            }
        };
        Ok(found.map(|found| LookedUp { inode: found.into_inode(), attr }))
    }

    /// Returns the result of a lookup for which the back end has returned `attr`. `changes` is the
    /// count of attribute changes before the back end was asked.
    ///
    /// A client must not get attributes that are newer than the cached mode and owner. So these are
    /// invalidated if they differ from `attr`.
    ///
    /// The back end counts the hidden name of an unlinked open file as a link. Whether the file had
    /// a hidden name when the back end answered is not known here. So if `attr` may count a hidden
    /// name, the result has no attributes.
    pub(super) fn looked_up<'v>(
        &self,
        inode: InodeRef<'v>,
        attr: &Attr,
        changes: i64,
    ) -> LookedUp<'v> {
        let (inodes, perm) = (&self.dcache.inodes, Perm::of(attr, attr.has_acl));
        match inodes.perm(inode.slot) {
            Some(known) if known == perm || known == (Perm { has_acl: true, ..perm }) => {}
            Some(_) => self.invalidate_attributes(&inode),
            None => {
                inodes.install_unless_changed(inode.slot, changes, perm);
                self.dcache.sync_searchable(inode.slot);
            }
        }
        let paths = self.superblock(inode.slot).paths.as_ref();
        let may_be_hidden = attr.nlink > 1 && !attr.is_dir() && paths.is_some_and(Paths::hides);
        LookedUp { inode, attr: (!may_be_hidden).then_some(*attr) }
    }
}
