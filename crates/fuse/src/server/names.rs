//! Requests that make, remove and move names.

use corewalk::attr::mode;
use corewalk::{Cred, Errno, FileKind, InodeRef, Make, May, Name, Removal, RenameMode};
use rustix::fs::OFlags;

use super::{Entry, Server};
use crate::credentials::Caller;

/// A new file as a request describes it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct New<'a> {
    /// Type bits and permission bits, before the umask.
    pub mode: u32,
    /// The umask of the caller.
    pub umask: u32,
    /// The device number of a device node.
    pub rdev: u64,
    /// The target of a symbolic link.
    pub target: &'a [u8],
}

impl Server {
    /// Makes a file of any kind.
    ///
    /// # Errors
    /// `EEXIST`; `ENAMETOOLONG`; `EACCES`, `EPERM`; `ENOSPC`; what the back end says.
    pub fn make(
        &self,
        caller: Caller,
        parent: u64,
        name: &[u8],
        new: &New<'_>,
    ) -> Result<Entry, Errno> {
        let dir = self.inode_now(parent)?;
        let cred = self.cred_to_make(caller, new);
        let (inode, attr) = self.make_in(&cred, &dir, name, new, None)?;
        self.hand_out(inode, attr)
    }

    /// Makes a regular file and opens it with `flags` (of open(2)); returns the handle too. A file
    /// that exists, though the kernel did not know, is opened unless `O_EXCL` forbids it.
    ///
    /// # Errors
    /// As [`Server::make`] and [`Server::open`]; `ESTALE` if what exists is no regular file.
    pub fn create(
        &self,
        caller: Caller,
        parent: u64,
        name: &[u8],
        new: &New<'_>,
        flags: u32,
    ) -> Result<(Entry, u64), Errno> {
        let dir = self.inode_now(parent)?;
        let new = New { mode: mode::S_IFREG | new.mode & 0o7777, ..*new };
        let open = self.has_open_state.then_some(flags);
        match self.make_in(&self.cred_to_make(caller, &new), &dir, name, &new, open) {
            Ok((inode, attr)) => {
                // Whoever makes a file may open it, whatever its mode.
                let handle = match self.has_open_state {
                    true => self.vfs.open(&caller.prechecked(), &inode, flags, May::empty())?,
                    false => 0,
                };
                Ok((self.hand_out(inode, attr)?, handle))
            }
            Err(Errno::EXIST) if flags & OFlags::EXCL.bits() == 0 => {
                self.open_existing(caller, &dir, name, flags)
            }
            Err(error) => Err(error),
        }
    }

    /// Opens what somebody else has made. The kernel checks nothing here, since it takes the file
    /// for one that it has just made. What is no regular file it would refuse with `EIO`, without taking back what has
    /// been counted and opened for it; `ESTALE` has it look the name up.
    fn open_existing(
        &self,
        caller: Caller,
        dir: &InodeRef<'_>,
        name: &[u8],
        flags: u32,
    ) -> Result<(Entry, u64), Errno> {
        let cred = caller.resolve(self.namespace);
        let name = self.fresh(dir, self.name(name)?)?;
        let inode = self.vfs.lookup(&cred, dir, name)?;
        if inode.kind() != FileKind::Regular {
            return Err(Errno::STALE);
        }
        self.refresh(&inode);
        let handle = self.open_checked(caller, &cred, &inode, flags)?;
        match self.vfs.getattr(&inode) {
            Ok(attr) => Ok((self.hand_out(inode, attr)?, handle)),
            Err(error) => {
                self.vfs.release(&inode, handle);
                Err(error)
            }
        }
    }

    /// Makes a regular file without a name (`O_TMPFILE`).
    ///
    /// # Errors
    /// `EOPNOTSUPP` if the back end has none; as [`Server::make`].
    pub fn tmpfile(&self, caller: Caller, parent: u64, new: &New<'_>) -> Result<Entry, Errno> {
        let dir = self.inode_now(parent)?;
        let new = New { mode: mode::S_IFREG | new.mode & 0o7777, ..*new };
        let make = Make { umask: new.umask, ..Make::new(new.mode, caller.uid, caller.gid) };
        let (inode, attr) = self.vfs.tmpfile(&self.cred_to_make(caller, &new), &dir, make)?;
        self.hand_out(inode, attr)
    }

    /// Gives `node` another name.
    ///
    /// # Errors
    /// `EEXIST`; `EPERM` for a directory; `EMLINK`; `EACCES`; what the back end says.
    pub fn link(
        &self,
        caller: Caller,
        node: u64,
        parent: u64,
        name: &[u8],
    ) -> Result<Entry, Errno> {
        let inode = self.inode(node)?;
        let dir = self.counted(parent)?;
        let name = self.fresh(&dir, Name::new(name)?)?;
        let attr = self.vfs.link(&self.cred(caller), &inode, &dir, name)?;
        self.hand_out(inode, attr)
    }

    /// Removes a name.
    ///
    /// # Errors
    /// `ENOENT`; `EISDIR`, `ENOTDIR`; `ENOTEMPTY`; `EACCES`, `EPERM`; what the back end says.
    pub fn remove(
        &self,
        caller: Caller,
        parent: u64,
        name: &[u8],
        removal: Removal,
    ) -> Result<(), Errno> {
        let dir = self.inode(parent)?;
        let name = self.fresh(&dir, self.name(name)?)?;
        self.vfs.remove(&self.cred(caller), &dir, name, removal)
    }

    /// Renames. `flags` are those of renameat2(2); `RENAME_WHITEOUT` is not for these back ends.
    ///
    /// # Errors
    /// `EINVAL` for other flags or a directory into itself; `EEXIST`, `ENOENT`, `ENOTEMPTY`,
    /// `EISDIR`, `ENOTDIR`; `EACCES`, `EPERM`; what the back end says.
    pub fn rename(
        &self,
        caller: Caller,
        from: (u64, &[u8]),
        to: (u64, &[u8]),
        flags: u32,
    ) -> Result<(), Errno> {
        use rustix::fs::RenameFlags;
        let mode = match RenameFlags::from_bits_retain(flags) {
            flags if flags.is_empty() => RenameMode::Replace,
            RenameFlags::NOREPLACE => RenameMode::NoReplace,
            RenameFlags::EXCHANGE => RenameMode::Exchange,
            _ => return Err(Errno::INVAL),
        };
        let old_dir = self.inode(from.0)?;
        let new_dir = self.counted(to.0)?;
        let (old, new) = (self.name(from.1)?, self.name(to.1)?);
        let (old, new) = (self.fresh(&old_dir, old)?, self.fresh(&new_dir, new)?);
        self.vfs.rename(&self.cred(caller), (&old_dir, old), (&new_dir, new), mode)
    }

    /// As `cred`, to make a file. One with set-group-ID and execution by the group keeps the bit in a directory
    /// of another group only if the caller is in that; kernels before 6.0 do not look.
    fn cred_to_make(&self, caller: Caller, new: &New<'_>) -> Cred {
        let marked = mode::S_ISGID | 0o010;
        match new.mode & marked == marked {
            true => self.cred_in_groups(caller),
            false => self.cred(caller),
        }
    }

    fn make_in(
        &self,
        cred: &Cred,
        dir: &InodeRef<'_>,
        name: &[u8],
        new: &New<'_>,
        open: Option<u32>,
    ) -> Result<(InodeRef<'_>, corewalk::Attr), Errno> {
        let name = self.fresh(dir, Name::new(name)?)?;
        let make = Make {
            rdev: new.rdev,
            target: new.target,
            umask: new.umask,
            open,
            ..Make::new(new.mode, cred.uid, cred.gid)
        };
        self.vfs.make(cred, dir, name, make)
    }
}
