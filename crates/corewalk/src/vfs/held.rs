//! The references that an operation on names holds: directories, found names, dentries.

use super::{InodeRef, Vfs};
use crate::dcache::Directory;
use crate::dentry::ParentKey;
use crate::slot::{DentrySlot, InodeSlot};

/// A directory's dentry with a reference, which keeps the slot from being reused.
pub(crate) struct Dir<'v> {
    pub(super) vfs: &'v Vfs,
    pub(crate) now: Directory,
}

/// The result of a lookup: an inode, and the dentry of the name if it has one. If there is a
/// dentry, a `FoundName` holds a reference only on that dentry. The dentry holds the inode until a
/// thread with the in-lookup lock removes the name.
pub(crate) struct FoundName<'v> {
    pub(super) vfs: &'v Vfs,
    pub(crate) inode: InodeSlot,
    pub(super) dentry: Result<DentrySlot, Unattached>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unattached {
    /// The inode is a directory. Another operation is moving its dentry, or has just added one
    /// under another name. The caller can try again.
    Overtaken,
    /// The back end reports a directory below itself.
    Loop,
    /// No slot is left for a dentry, or the parent directory was removed.
    NoRoom,
}

pub(crate) struct DentryHold<'v> {
    pub(super) vfs: &'v Vfs,
    pub(super) slot: DentrySlot,
}

/// A reference on a dentry and one on its inode. The dentry alone would not keep the inode when the
/// name is removed.
pub(crate) struct DentryAndInode<'v> {
    pub(crate) dentry: DentryHold<'v>,
    pub(crate) inode: InodeRef<'v>,
}

impl Dir<'_> {
    pub(crate) fn key(&self) -> ParentKey {
        self.vfs.dcache.key_of_held(self.now.slot)
    }
}

impl Drop for Dir<'_> {
    fn drop(&mut self) {
        self.vfs.dcache.put(self.now.slot);
    }
}

impl<'v> FoundName<'v> {
    /// Returns a `FoundName` that takes over the references. `dentry`, if there is one, must be a
    /// dentry of `inode`.
    pub(super) fn new(
        inode: InodeRef<'v>,
        dentry: Result<DentryHold<'v>, Unattached>,
    ) -> FoundName<'v> {
        let (vfs, slot) = (inode.vfs, inode.slot);
        let dentry = dentry.map(DentryHold::into_slot);
        debug_assert!(
            dentry.is_err()
                || dentry.is_ok_and(|at| vfs.dcache.dentries.snapshot(at).body.inode() == slot),
            "a dentry of another inode"
        );
        if dentry.is_err() {
            // The new value takes over the inode reference.
            std::mem::forget(inode);
        }
        FoundName { vfs, inode: slot, dentry }
    }

    #[inline]
    pub(super) fn is_directory(&self) -> bool {
        self.vfs.dcache.inodes.is_directory(self.inode)
    }

    pub(crate) fn dentry(&self) -> Result<DentrySlot, Unattached> {
        self.dentry
    }

    pub(super) fn directory(&self) -> Option<DentrySlot> {
        self.dentry.ok().filter(|_| self.is_directory())
    }

    pub(crate) fn inode_ref(&self) -> InodeRef<'v> {
        self.vfs.dcache.inodes.lockref(self.inode).get();
        InodeRef { vfs: self.vfs, slot: self.inode }
    }

    pub(super) fn into_inode(self) -> InodeRef<'v> {
        self.inode_ref()
    }

    pub(crate) fn into_dentry(self) -> Result<DentryHold<'v>, Unattached> {
        let slot = self.dentry?;
        let vfs = self.vfs;
        std::mem::forget(self);
        Ok(DentryHold { vfs, slot })
    }
}

impl Drop for FoundName<'_> {
    fn drop(&mut self) {
        match self.dentry {
            Ok(slot) => self.vfs.dcache.put(slot),
            Err(_) => self.vfs.dcache.put_inode(self.inode, 1),
        }
    }
}

impl<'v> DentryHold<'v> {
    /// Returns a value that takes over the caller's reference on the dentry. `slot` may be
    /// `DentrySlot::NONE`.
    pub(super) fn adopt(vfs: &'v Vfs, slot: DentrySlot) -> DentryHold<'v> {
        DentryHold { vfs, slot }
    }

    pub(crate) fn slot(&self) -> DentrySlot {
        self.slot
    }

    /// Returns the slot of the dentry. The caller takes over the reference on the dentry.
    pub(crate) fn into_slot(self) -> DentrySlot {
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
