//! What an operation on names holds while it runs: directories, names that were found, dentries.

use super::{InodeRef, Vfs};
use crate::dcache::Directory;
use crate::dentry::ParentKey;

/// A counted directory dentry. While it lives the dentry's slot is not reused.
pub(crate) struct Dir<'v> {
    pub(super) vfs: &'v Vfs,
    pub(crate) now: Directory,
}

/// A name that the back end or the cache knows, with its inode, under the in-lookup lock of the
/// name. It has a counted dentry, which keeps the inode until a holder of the lock removes it. Or
/// it has a counted inode without a dentry.
pub(crate) struct Found<'v> {
    pub(super) vfs: &'v Vfs,
    pub(crate) inode: u32,
    pub(super) dentry: Result<u32, Unattached>,
}

/// Why an inode that the back end named has no dentry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unattached {
    /// Somebody is changing the name the directory is known by: it is known in a moment.
    Overtaken,
    /// The back end shows a directory below itself.
    Loop,
    /// There is no room, or the directory it would be in is gone.
    NoRoom,
}

/// A counted dentry slot.
pub(crate) struct DentryHold<'v> {
    pub(super) vfs: &'v Vfs,
    pub(super) slot: u32,
}

/// A counted dentry with its inode, which a dentry alone may lose to a removal.
pub(crate) struct Place<'v> {
    pub(crate) dentry: DentryHold<'v>,
    pub(crate) inode: InodeRef<'v>,
}

impl Dir<'_> {
    /// Returns what the directory's children are entered under now.
    pub(crate) fn key(&self) -> ParentKey {
        self.vfs.dcache.key_of_held(self.now.slot)
    }
}

impl Drop for Dir<'_> {
    fn drop(&mut self) {
        self.vfs.dcache.put(self.now.slot);
    }
}

impl<'v> Found<'v> {
    /// Returns what has a counted dentry with that inode, or no dentry.
    pub(super) fn new(
        inode: InodeRef<'v>,
        dentry: Result<DentryHold<'v>, Unattached>,
    ) -> Found<'v> {
        let (vfs, slot) = (inode.vfs, inode.slot);
        let dentry = dentry.map(DentryHold::into_slot);
        debug_assert!(
            dentry.is_err()
                || dentry.is_ok_and(|at| vfs.dcache.dentries.snapshot(at).body.inode() == slot),
            "a dentry of another inode"
        );
        if dentry.is_err() {
            // Its reference goes along.
            std::mem::forget(inode);
        }
        Found { vfs, inode: slot, dentry }
    }

    #[inline]
    pub(super) fn is_directory(&self) -> bool {
        self.vfs.dcache.inodes.is_directory(self.inode)
    }

    /// Returns the slot of the dentry, if there is one.
    pub(crate) fn dentry(&self) -> Result<u32, Unattached> {
        self.dentry
    }

    /// Returns the slot of the dentry, if there is one and it is that of a directory.
    pub(super) fn directory(&self) -> Option<u32> {
        self.dentry.ok().filter(|_| self.is_directory())
    }

    /// Returns another reference on the inode.
    pub(crate) fn inode_ref(&self) -> InodeRef<'v> {
        self.vfs.dcache.inodes.lockref(self.inode).get();
        InodeRef { vfs: self.vfs, slot: self.inode }
    }

    /// Returns the inode.
    pub(super) fn into_inode(self) -> InodeRef<'v> {
        self.inode_ref()
    }

    /// Returns the dentry.
    pub(crate) fn into_dentry(self) -> Result<DentryHold<'v>, Unattached> {
        let slot = self.dentry?;
        let vfs = self.vfs;
        std::mem::forget(self);
        Ok(DentryHold { vfs, slot })
    }
}

impl Drop for Found<'_> {
    fn drop(&mut self) {
        match self.dentry {
            Ok(slot) => self.vfs.dcache.put(slot),
            Err(_) => self.vfs.dcache.put_inode(self.inode, 1),
        }
    }
}

impl<'v> DentryHold<'v> {
    /// Returns a hold of a slot that the caller has counted; 0 is none.
    pub(super) fn adopt(vfs: &'v Vfs, slot: u32) -> DentryHold<'v> {
        DentryHold { vfs, slot }
    }

    pub(crate) fn slot(&self) -> u32 {
        self.slot
    }

    /// Returns the slot with its reference, which is then the caller's.
    pub(crate) fn into_slot(self) -> u32 {
        let slot = self.slot;
        std::mem::forget(self);
        slot
    }
}

impl Drop for DentryHold<'_> {
    fn drop(&mut self) {
        self.vfs.dcache.put(self.slot);
    }
}
