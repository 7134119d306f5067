//! Requests that create, remove and rename files.

use corewalk::attr::mode;
use corewalk::{
    Caller, Cred, Errno, FileKind, InodeRef, Make, May, Name, Opened, Removal, RenameMode,
};
use rustix::fs::OFlags;

use super::{EntryOut, Server, SetId};
use crate::credentials::{prechecked, resolve};

/// The new file of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct NewFile<'a> {
    /// Type bits and permission bits, before the umask is applied.
    pub mode: u32,
    /// The umask of the caller.
    pub umask: u32,
    /// The device number of a device node.
    pub rdev: u64,
    /// The target of a symbolic link.
    pub target: &'a [u8],
    /// Whether the request keeps or clears set-user-ID and set-group-ID. The value is used only if
    /// the file exists already and the request truncates the file.
    pub set_id: SetId,
}

impl<'a> NewFile<'a> {
    /// Returns the values for a new file with `mode`, to which no umask is applied.
    pub fn new(mode: u32) -> NewFile<'a> {
        NewFile { mode, ..NewFile::default() }
    }

    corewalk_base::setters! {
        with_umask: umask = u32;
        with_rdev: rdev = u64;
        with_target: target = &'a [u8];
        with_set_id: set_id = SetId;
    }
}

impl Server {
    /// Creates a file of any type.
    ///
    /// # Errors
    /// `EEXIST`, `ENAMETOOLONG`, `EACCES`, `EPERM` and `ENOSPC` as in mknod(2); the errors of the
    /// back end.
    pub fn make(
        &self,
        caller: Caller,
        parent: u64,
        name: &[u8],
        new: &NewFile<'_>,
    ) -> Result<EntryOut, Errno> {
        let dir = self.inode_refreshed(parent)?;
        let cred = self.cred_to_make(caller, new);
        let (inode, attr) = self.make_in(&cred, &dir, name, new, None)?;
        self.hand_out(inode, attr)
    }

    /// Creates a regular file, and opens it with the open(2) flags `flags`. Also returns the back
    /// end's answer to the open. If another program has created the name, and the kernel does not
    /// know it yet, the server opens the existing file, unless `flags` contains `O_EXCL`.
    ///
    /// # Errors
    /// The errors of [`Server::make`] and [`Server::open`]; `ESTALE` if the existing file is not
    /// regular.
    pub fn create(
        &self,
        caller: Caller,
        parent: u64,
        name: &[u8],
        new: &NewFile<'_>,
        flags: u32,
    ) -> Result<(EntryOut, Opened), Errno> {
        let dir = self.inode_refreshed(parent)?;
        let new = NewFile { mode: mode::S_IFREG | new.mode & 0o7777, ..*new };
        let open = self.has_open_state.then_some(flags);
        match self.make_in(&self.cred_to_make(caller, &new), &dir, name, &new, open) {
            Ok((inode, attr)) => {
                let opened = self.open_new(caller, &inode, flags)?;
                self.hand_out_open(inode, attr, opened)
            }
            Err(Errno::EXIST) if flags & OFlags::EXCL.bits() == 0 => {
                self.open_existing(caller, &dir, name, (flags, new.set_id))
            }
            Err(error) => Err(error),
        }
    }

    /// Opens a file that another program has made under `name`.
    ///
    /// - The kernel believes that the file is new, and checks no permission to open it. So the
    ///   server does.
    /// - For a file that is not regular, the kernel would fail with `EIO`, and would never return
    ///   the lookup and the handle. So the server returns `ESTALE`, and the kernel looks the name
    ///   up.
    fn open_existing(
        &self,
        caller: Caller,
        dir: &InodeRef<'_>,
        name: &[u8],
        (flags, set_id): (u32, SetId),
    ) -> Result<(EntryOut, Opened), Errno> {
        let cred = resolve(caller, self.namespace);
        let inode = self.look_up(&cred, dir, self.name(name)?)?.inode;
        if inode.kind() != FileKind::Regular {
            return Err(Errno::STALE);
        }
        let opened = self.open_checked(caller, &cred, &inode, flags, set_id)?;
        match self.vfs.getattr(&inode) {
            Ok(attr) => self.hand_out_open(inode, attr, opened),
            Err(error) => {
                self.vfs.release(&inode, opened.handle);
                Err(error)
            }
        }
    }

    /// Creates a regular file without a name (`O_TMPFILE`), and opens it with the open(2) flags
    /// `flags`. Also returns the back end's answer to the open.
    ///
    /// # Errors
    /// `EOPNOTSUPP` if the back end has no files without a name; the errors of [`Server::make`].
    pub fn tmpfile(
        &self,
        caller: Caller,
        parent: u64,
        new: &NewFile<'_>,
        flags: u32,
    ) -> Result<(EntryOut, Opened), Errno> {
        let dir = self.inode_refreshed(parent)?;
        let new = NewFile { mode: mode::S_IFREG | new.mode & 0o7777, ..*new };
        let make = Make::new(new.mode, caller.uid, caller.gid).with_umask(new.umask);
        let (inode, attr) = self.vfs.tmpfile(&self.cred_to_make(caller, &new), &dir, make)?;
        // Remove `O_TMPFILE`, which has taken effect in the creation. It contains the bit
        // `O_DIRECTORY`, but the file is no directory.
        let flags = flags & !OFlags::TMPFILE.bits();
        let opened = self.open_new(caller, &inode, flags)?;
        self.hand_out_open(inode, attr, opened)
    }

    /// Counts a lookup of the open file, and returns the answer of the request. If the lookup
    /// cannot be counted, closes the file.
    fn hand_out_open(
        &self,
        inode: InodeRef<'_>,
        attr: corewalk::Attr,
        opened: Opened,
    ) -> Result<(EntryOut, Opened), Errno> {
        if !self.has_open_state {
            return Ok((self.hand_out(inode, attr)?, opened));
        }
        let entry = self.hand_out(inode.clone(), attr);
        if entry.is_err() {
            self.vfs.release(&inode, opened.handle);
        }
        Ok((entry?, opened))
    }

    /// Opens a file that the caller has just made. Checks no permission, because the creator may
    /// open a new file whatever its mode is.
    fn open_new(&self, caller: Caller, inode: &InodeRef<'_>, flags: u32) -> Result<Opened, Errno> {
        match self.has_open_state {
            true => self.vfs.open(&prechecked(caller), inode, flags, May::empty()),
            false => Ok(Opened::default()),
        }
    }

    /// Gives `node` another name.
    ///
    /// # Errors
    /// `EPERM` if the file is a directory; `EEXIST`, `EMLINK` and `EACCES` as in link(2); the
    /// errors of the back end.
    pub fn link(
        &self,
        caller: Caller,
        node: u64,
        parent: u64,
        name: &[u8],
    ) -> Result<EntryOut, Errno> {
        let inode = self.inode(node)?;
        let dir = self.counted(parent)?;
        let name = self.revalidated(&dir, Name::new(name)?)?;
        let attr = self.vfs.link(&self.cred(caller), &inode, &dir, name)?;
        self.hand_out(inode, attr)
    }

    /// Removes a name.
    ///
    /// # Errors
    /// `ENOENT`, `EISDIR`, `ENOTDIR`, `ENOTEMPTY`, `EACCES` and `EPERM` as in unlink(2) and
    /// rmdir(2); the errors of the back end.
    pub fn remove(
        &self,
        caller: Caller,
        parent: u64,
        name: &[u8],
        removal: Removal,
    ) -> Result<(), Errno> {
        let dir = self.inode(parent)?;
        let name = self.revalidated(&dir, self.name(name)?)?;
        self.vfs.remove(&self.cred(caller), &dir, name, removal)
    }

    /// Renames a file. The `flags` are those of renameat2(2), except `RENAME_WHITEOUT`.
    ///
    /// # Errors
    /// `EINVAL` for other flags, or if a directory would move into itself. `EEXIST`, `ENOENT`,
    /// `ENOTEMPTY`, `EISDIR`, `ENOTDIR`, `EACCES` and `EPERM` as in rename(2). The errors of the
    /// back end.
    ///
    /// # Examples
    /// ```
    /// # use std::sync::Arc;
    /// # use corewalk::tmpfs::{Tmpfs, TmpfsOptions};
    /// # use corewalk_fuse::{Caller, NewFile, Options, Server};
    /// # let fs = Arc::new(Tmpfs::new(TmpfsOptions::default()));
    /// # let server = Server::new(fs, Options::exclusive())?;
    /// # let caller = Caller { uid: 0, gid: 0, pid: 0 };
    /// let _file = server.make(caller, 1, b"old", &NewFile::new(0o100_644))?;
    /// server.rename(caller, (1, b"old"), (1, b"new"), 0)?;
    /// assert!(server.lookup(caller, 1, b"old").is_err());
    /// # Ok::<(), corewalk::Errno>(())
    /// ```
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
        let (old, new) = (self.revalidated(&old_dir, old)?, self.revalidated(&new_dir, new)?);
        self.vfs.rename(&self.cred(caller), (&old_dir, old), (&new_dir, new), mode)
    }

    /// Returns the credentials with which the caller makes a file. A file that its group may
    /// execute must not get set-group-ID, unless the caller is in that group. Kernels before 6.0
    /// leave this check to the server, which needs the caller's groups.
    fn cred_to_make(&self, caller: Caller, new: &NewFile<'_>) -> Cred {
        let marked = mode::S_ISGID | 0o010;
        match new.mode & marked == marked && !self.has_stripped_new_modes() {
            true => self.cred_in_groups(caller),
            false => self.cred(caller),
        }
    }

    fn make_in(
        &self,
        cred: &Cred,
        dir: &InodeRef<'_>,
        name: &[u8],
        new: &NewFile<'_>,
        open: Option<u32>,
    ) -> Result<(InodeRef<'_>, corewalk::Attr), Errno> {
        let name = self.revalidated(dir, Name::new(name)?)?;
        let make = Make::new(new.mode, cred.uid, cred.gid)
            .with_rdev(new.rdev)
            .with_target(new.target)
            .with_umask(new.umask)
            .with_open(open);
        self.vfs.make(cred, dir, name, make)
    }
}
