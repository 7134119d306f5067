//! File capabilities: the extended attribute `security.capability`.
//!
//! A write, a truncation and a change of the owner remove the capabilities of a file. Almost no
//! file has any, so asking the back end before each write costs too much.
//!
//! The permission record of an inode has a bit "no capabilities". It saves most calls of the back
//! end for `security.capability`. The back end's answer sets the bit, and a change of attributes
//! clears it. Analogous to `S_NOSEC` of Linux.
//!
//! The bit decides only whether [`Vfs::remove_capability`] asks the back end. [`Vfs::getxattr`]
//! always asks.
//!
//! Source: capabilities(7), xattr(7); Linux `cap_inode_killpriv`, `inode_has_no_xattr`.

use super::{InodeRef, Vfs};
use crate::Errno;
use crate::attr::FileKind;
use crate::fs::{FileSystem, Node, XattrMode};

/// The attribute of file capabilities (`XATTR_NAME_CAPS`).
pub(super) const XATTR_CAPABILITY: &[u8] = b"security.capability";

impl Vfs {
    /// Removes the file capabilities of a regular file, before a change of its content or owner.
    /// Asks the back end only if the cache does not know that the file has none.
    ///
    /// # Errors
    /// The errors of the back end.
    ///
    /// # Examples
    /// ```
    /// # use std::sync::Arc;
    /// # use corewalk::tmpfs::{Tmpfs, TmpfsOptions};
    /// # use corewalk::{Cred, Errno, Make, Name, Vfs, VfsOptions, XattrMode};
    /// # let vfs = Vfs::new(Arc::new(Tmpfs::new(TmpfsOptions::default())), VfsOptions::default())?;
    /// let (cred, name) = (Cred::root(), &b"security.capability"[..]);
    /// let (file, _) = vfs.make(&cred, &vfs.root(), Name::new(b"f")?, Make::new(0o644, 0, 0))?;
    /// let mut value = [0; 20];
    /// value[3] = 2;
    /// vfs.setxattr(&cred, &file, name, &value, XattrMode::Set)?;
    /// vfs.remove_capability(&file)?;
    /// assert_eq!(vfs.getxattr(&cred, &file, name), Err(Errno::NODATA));
    /// # Ok::<(), Errno>(())
    /// ```
    pub fn remove_capability(&self, inode: &InodeRef<'_>) -> Result<(), Errno> {
        if !self.may_have_capability(inode) {
            return Ok(());
        }
        let inodes = &self.dcache.inodes;
        self.ask(inode, |fs, node| {
            let _locked = self.lock_attributes(inode.slot);
            match self.get_capability(inode, fs, node) {
                Ok(_) => {}
                Err(error) if is_absent(error) => return Ok(()),
                Err(error) => return Err(error),
            }
            let ticket = inodes.ticket(inode.slot);
            match fs.removexattr(node, XATTR_CAPABILITY) {
                Err(error) if !is_absent(error) => return Err(error),
                _ => inodes.note_no_capability(inode.slot, ticket),
            }
            Ok(())
        })
    }

    /// Returns false if a file certainly has no capabilities: the cache knows it, or the file is
    /// not a regular file.
    pub fn may_have_capability(&self, inode: &InodeRef<'_>) -> bool {
        inode.kind() == FileKind::Regular && !self.dcache.inodes.lacks_capability(inode.slot)
    }

    pub(super) fn get_capability(
        &self,
        inode: &InodeRef<'_>,
        fs: &dyn FileSystem,
        node: Node<'_>,
    ) -> Result<Vec<u8>, Errno> {
        let ticket = self.dcache.inodes.ticket(inode.slot);
        let value = fs.getxattr(node, XATTR_CAPABILITY);
        if value.as_ref().is_err_and(|&error| is_absent(error)) {
            self.dcache.inodes.note_no_capability(inode.slot, ticket);
        }
        value
    }

    /// Sets the file capabilities in the back end. The cache treats the call as a change of
    /// attributes, so it will not remember an older answer of the back end.
    pub(super) fn set_capability(
        &self,
        inode: &InodeRef<'_>,
        value: &[u8],
        how: XattrMode,
    ) -> Result<(), Errno> {
        let _locked = self.lock_attributes(inode.slot);
        let set = |fs: &dyn FileSystem, node: Node<'_>| {
            fs.setxattr(node, XATTR_CAPABILITY, value, how)?;
            fs.getattr(node)
        };
        self.change(inode.slot, || self.with_inode(inode.slot, set)).map(drop)
    }
}

fn is_absent(error: Errno) -> bool {
    matches!(error, Errno::NODATA | Errno::OPNOTSUPP | Errno::NOSYS)
}

/// Returns true if `value` is a `struct vfs_cap_data` of version 2, or of version 3, which names
/// the root user of a user namespace.
pub(super) fn is_capability(value: &[u8]) -> bool {
    /// The bit of the effective flag. It is in the first word of `value`, together with the
    /// version.
    const EFFECTIVE: u32 = 1;
    let Some((magic, _)) = value.split_first_chunk() else { return false };
    matches!(
        (value.len(), u32::from_le_bytes(*magic) & !EFFECTIVE),
        (20, 0x0200_0000) | (24, 0x0300_0000)
    )
}
