//! Requests that open, read, write and close files, that read symbolic links, or that ask for the
//! state of the file system (statfs).

use std::os::fd::OwnedFd;
use std::sync::Arc;

use corewalk::{
    Caller, Caps, Cred, Errno, Fallocate, Fsync, InodeRef, May, Opened, PATH_MAX, Seek, StatFs,
};
use rustix::fs::OFlags;

use super::{Server, SetId};
use crate::credentials::{prechecked, resolve};
use crate::options::{Ownership, Permissions, WriteCache};

const OPEN_FOR_EXEC: u32 = 0x20;
/// Maximum number of bytes that the server copies for one request, if it reads and writes the data
/// itself. A client continues a longer copy with its next request.
const COPY_BYTES_MAX: u64 = 16 << 20;
/// Maximum number of bytes that the back end copies for one request. A longer copy would hold up
/// other requests.
const BACK_END_COPY_BYTES_MAX: u64 = 128 << 20;
const COPY_CHUNK_BYTES: usize = 128 << 10;

/// Tells why the kernel sends a write request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteOrigin {
    /// A process has called write(2) and waits for the answer.
    Call,
    /// A process has called write(2) for a file that is open with `O_APPEND`. The offset in the
    /// request is the end of the file as the kernel has cached it. The true end may be higher.
    ///
    /// A pwritev2(2) with `RWF_NOAPPEND` looks like an append, because the request contains only
    /// the flags of the open file. Its offset may lie before the end of the file. But so may the
    /// offset of an append, if another program has extended the file. So the server cannot
    /// distinguish the two.
    Append,
    /// The kernel writes back dirty pages. The write request does not name the user that has
    /// written the data, so the server cannot check that user's permission.
    Cache,
}

impl Server {
    /// Opens `node` with the open(2) flags `flags`, and returns the back end's answer. `O_TRUNC`
    /// truncates the file.
    ///
    /// # Errors
    /// `EACCES`; `EISDIR`; the errors of the back end.
    pub fn open(&self, caller: Caller, node: u64, flags: u32) -> Result<Opened, Errno> {
        // An open for execution needs the current mode for the permission check. An open that
        // truncates needs it to clear set-user-ID and set-group-ID.
        let inode = match flags & (OPEN_FOR_EXEC | OFlags::TRUNC.bits()) {
            0 => self.inode(node)?,
            _ => self.inode_refreshed(node)?,
        };
        self.open_checked(caller, &self.cred(caller), &inode, flags, SetId::Unsaid)
    }

    pub(crate) fn passes_through(&self) -> bool {
        // Passthrough needs three conditions:
        // - This process is root: only root may register files.
        // - There is no write-back cache, with which the kernel allows no passthrough.
        // - The kernel checks permissions. Otherwise it would not know which users may read.
        rustix::process::geteuid().is_root()
            && self.has_backing_files
            && self.has_open_state
            && self.options.passthrough
            && self.options.write_cache == WriteCache::Through
            && self.options.permissions == Permissions::Kernel
    }

    /// Returns the file of the host to which the kernel may pass reads and writes. Returns `None`
    /// if there is none, or if the server must clear set-user-ID or set-group-ID at each write.
    pub(crate) fn backing_file(&self, node: u64, handle: u64) -> Option<Arc<OwnedFd>> {
        let inode = self.counted(node).ok()?;
        match self.vfs.mode(&inode) {
            Ok(mode) if !self.clears_bits_of(mode) => self.vfs.backing_file(&inode, handle),
            _ => None,
        }
    }

    /// Opens a directory for a listing, and returns the back end's answer.
    ///
    /// # Errors
    /// `EACCES`; `ENOTDIR`; `ESTALE`; the errors of the back end.
    pub fn opendir(&self, caller: Caller, node: u64) -> Result<Opened, Errno> {
        let inode = self.inode(node)?;
        if inode.kind() != corewalk::FileKind::Directory {
            return Err(Errno::NOTDIR);
        }
        if self.options.permissions == Permissions::Server {
            self.vfs.access(&self.cred(caller), &inode, May::READ)?;
        }
        match self.has_open_state {
            true => self.vfs.opendir(&inode),
            false => Ok(Opened::default()),
        }
    }

    /// Closes a handle of [`Server::opendir`].
    ///
    /// # Errors
    /// `ESTALE`.
    pub fn releasedir(&self, node: u64, handle: u64) -> Result<(), Errno> {
        let inode = self.inode(node)?;
        if self.has_open_state {
            self.vfs.releasedir(&inode, handle);
        }
        Ok(())
    }

    /// Tells the back end that a client closes a descriptor of an open file. If the back end
    /// manages locks, the locks of `lock_owner` end.
    ///
    /// # Errors
    /// `ENOSYS` if the back end does nothing when a descriptor is closed; the errors of the back
    /// end.
    pub fn flush(&self, node: u64, handle: u64, lock_owner: u64) -> Result<(), Errno> {
        let inode = self.inode(node)?;
        let flushed = self.vfs.flush(&inode, handle);
        if !self.has_locks {
            return flushed;
        }
        self.lock_owners.flushed(node, lock_owner);
        let unlocked = self.vfs.unlock_owner(&inode, handle, lock_owner, false);
        // After `ENOSYS` the kernel would send no more flushes, but later ones must end locks too.
        if flushed == Err(Errno::NOSYS) { unlocked } else { flushed.and(unlocked) }
    }

    /// Opens `inode` after a check of the permissions of `cred`. The server always truncates the
    /// file and clears set-user-ID and set-group-ID itself, even if the kernel checks permissions.
    pub(super) fn open_checked(
        &self,
        caller: Caller,
        cred: &Cred,
        inode: &InodeRef<'_>,
        flags: u32,
        set_id: SetId,
    ) -> Result<Opened, Errno> {
        let has = |flag: OFlags| OFlags::from_bits_retain(flags).contains(flag);
        let mut may = match OFlags::from_bits_retain(flags) & OFlags::RWMODE {
            OFlags::WRONLY => May::WRITE,
            OFlags::RDWR => May::READ | May::WRITE,
            _ if flags & OPEN_FOR_EXEC != 0 => May::EXEC,
            _ => May::READ,
        };
        if has(OFlags::TRUNC) {
            may |= May::WRITE;
        }
        let opened = self.vfs.open(cred, inode, flags, may)?;
        if has(OFlags::TRUNC) {
            let handle = opened.handle;
            if let Err(error) = self.truncate_opened(caller, cred, inode, handle, set_id) {
                self.vfs.release(inode, handle);
                return Err(error);
            }
        }
        Ok(opened)
    }

    fn truncate_opened(
        &self,
        caller: Caller,
        cred: &Cred,
        inode: &InodeRef<'_>,
        handle: u64,
        set_id: SetId,
    ) -> Result<(), Errno> {
        self.remove_capability(inode)?;
        let before = self.vfs.mode(inode)?;
        let cred = cred.clone().with_caps(cred.caps | Caps::DAC_OVERRIDE);
        let who = || {
            let mut caller = resolve(caller, self.namespace);
            match set_id {
                SetId::Unsaid => {}
                SetId::Keep => caller.caps.insert(Caps::FSETID),
                SetId::Clear => caller.caps.remove(Caps::FSETID),
            }
            caller
        };
        self.vfs.truncate_with_lazy_cred(&cred, inode, handle, 0, who)?;
        self.drop_changed_mode(inode, before);
        Ok(())
    }

    /// Closes a handle of [`Server::open`] or [`Server::create`]. If the client has taken locks of
    /// flock(2) through the handle, the locks of `flock_owner` end.
    ///
    /// # Errors
    /// `ESTALE`.
    pub fn release(&self, node: u64, handle: u64, flock_owner: Option<u64>) -> Result<(), Errno> {
        let inode = self.inode(node)?;
        if self.has_locks {
            self.end_locks_of_file(&inode, (node, handle), flock_owner);
        }
        if self.has_open_state {
            self.vfs.release(&inode, handle);
        }
        Ok(())
    }

    /// Reads at `offset` into `buf`. Returns the number of bytes, which is below the length of
    /// `buf` only at the end of the file.
    ///
    /// # Errors
    /// `EISDIR`; `ESTALE`; the errors of the back end.
    pub fn read(
        &self,
        node: u64,
        handle: u64,
        offset: u64,
        buf: &mut [u8],
    ) -> Result<usize, Errno> {
        self.vfs.read(&self.inode(node)?, handle, offset, buf)
    }

    /// Writes at `offset` and returns the number of written bytes.
    ///
    /// - If other programs change the file too, an append goes to the end of the file in the back
    ///   end.
    /// - Exception: with a write-back cache, the kernel may have extended the file without telling
    ///   the back end. An append then goes to `offset`.
    ///
    /// # Errors
    /// `ENOSPC`, `EFBIG`; `ESTALE`; the errors of the back end.
    ///
    /// # Examples
    /// ```
    /// # use std::sync::Arc;
    /// # use corewalk::tmpfs::{Tmpfs, TmpfsOptions};
    /// # use corewalk_fuse::{Caller, NewFile, Options, Server, WriteOrigin};
    /// # let fs = Arc::new(Tmpfs::new(TmpfsOptions::default()));
    /// # let server = Server::new(fs, Options::exclusive())?;
    /// # let caller = Caller { uid: 0, gid: 0, pid: 0 };
    /// let (file, opened) = server.create(caller, 1, b"f", &NewFile::new(0o644), 2)?;
    /// server.write(caller, file.node, opened.handle, 0, b"data", WriteOrigin::Call)?;
    /// let mut buf = [0; 8];
    /// assert_eq!(server.read(file.node, opened.handle, 2, &mut buf)?, 2);
    /// server.release(file.node, opened.handle, None)?;
    /// # Ok::<(), corewalk::Errno>(())
    /// ```
    pub fn write(
        &self,
        caller: Caller,
        node: u64,
        handle: u64,
        offset: u64,
        bytes: &[u8],
        origin: WriteOrigin,
    ) -> Result<usize, Errno> {
        self.write_as(caller, (node, handle), offset, bytes, origin, SetId::Unsaid)
    }

    pub(crate) fn write_as(
        &self,
        caller: Caller,
        to: (u64, u64),
        offset: u64,
        bytes: &[u8],
        origin: WriteOrigin,
        set_id: SetId,
    ) -> Result<usize, Errno> {
        let (inode, handle) = (self.inode(to.0)?, to.1);
        if origin != WriteOrigin::Cache {
            self.refresh_set_id(&inode);
            self.remove_capability(&inode)?;
        }
        match origin {
            WriteOrigin::Append if self.ends_move() => {
                self.append_for(caller, &inode, (handle, offset), bytes, set_id)
            }
            WriteOrigin::Call | WriteOrigin::Append => {
                self.write_for(caller, &inode, (handle, offset), bytes, set_id)
            }
            WriteOrigin::Cache => {
                self.vfs.write(&prechecked(caller), &inode, handle, offset, bytes)
            }
        }
    }

    fn ends_move(&self) -> bool {
        let options = &self.options;
        options.ownership == Ownership::Shared && options.write_cache == WriteCache::Through
    }

    /// Writes `bytes` for `caller`. Reads the caller's groups and capabilities from `/proc` only if
    /// the file has set-user-ID or set-group-ID.
    fn write_for(
        &self,
        caller: Caller,
        inode: &InodeRef<'_>,
        (handle, offset): (u64, u64),
        bytes: &[u8],
        set_id: SetId,
    ) -> Result<usize, Errno> {
        match self.options.permissions {
            Permissions::Kernel => {
                let write = |cred: &_| self.vfs.write(cred, inode, handle, offset, bytes);
                self.change(caller, inode, set_id, write)
            }
            Permissions::Server => {
                let who = || resolve(caller, self.namespace);
                self.vfs.write_with_lazy_cred(inode, handle, offset, bytes, who)
            }
        }
    }

    /// Appends `bytes` for `caller`. `end` is the end of the file in the kernel's cache, and the
    /// true end may be higher.
    fn append_for(
        &self,
        caller: Caller,
        inode: &InodeRef<'_>,
        (handle, end): (u64, u64),
        bytes: &[u8],
        set_id: SetId,
    ) -> Result<usize, Errno> {
        match self.options.permissions {
            Permissions::Kernel => {
                let append = |cred: &_| self.vfs.append(cred, inode, handle, end, bytes);
                self.change(caller, inode, set_id, append)
            }
            Permissions::Server => {
                let who = || resolve(caller, self.namespace);
                self.vfs.append_with_lazy_cred(inode, handle, end, bytes, who)
            }
        }
    }

    /// Makes a file or directory durable.
    ///
    /// # Errors
    /// The errors of the back end.
    pub fn fsync(&self, node: u64, handle: u64, what: Fsync) -> Result<(), Errno> {
        self.vfs.fsync(&self.inode(node)?, handle, what)
    }

    /// Allocates or deallocates a range of a file. `offset` and `len` are in bytes, and `flags` are
    /// those of fallocate(2).
    ///
    /// # Errors
    /// `EOPNOTSUPP` for flags that are unknown or not supported; `EINVAL`, `EFBIG` and `ENOSPC` as
    /// in fallocate(2).
    pub fn fallocate(
        &self,
        caller: Caller,
        node: u64,
        handle: u64,
        range: (u64, u64),
        flags: u32,
    ) -> Result<(), Errno> {
        let inode = self.inode(node)?;
        let how = Fallocate::from_bits(flags).ok_or(Errno::OPNOTSUPP)?;
        self.refresh_set_id(&inode);
        self.remove_capability(&inode)?;
        self.change(caller, &inode, SetId::Unsaid, |cred| {
            self.vfs.fallocate(cred, &inode, handle, range.0, range.1, how)
        })
    }

    /// Returns the offset of the next data or hole.
    ///
    /// # Errors
    /// - `ENXIO` behind the end of the file;
    /// - `EINVAL` if `whence` is neither `SEEK_DATA` nor `SEEK_HOLE`;
    /// - `ENOSYS` with [`WriteCache::Back`]. The kernel does not write its cached pages back before
    ///   this request, so the server could report a hole where the kernel has data. After `ENOSYS`
    ///   the kernel treats the whole file as data.
    pub fn seek(&self, node: u64, handle: u64, offset: i64, whence: i32) -> Result<u64, Errno> {
        if self.options.write_cache == WriteCache::Back {
            return Err(Errno::NOSYS);
        }
        let inode = self.inode(node)?;
        let what = match whence {
            // `SEEK_DATA` is 3, and `SEEK_HOLE` is 4.
            3 => Seek::Data,
            4 => Seek::Hole,
            _ => return Err(Errno::INVAL),
        };
        let offset = u64::try_from(offset).map_err(|_| Errno::NXIO)?;
        self.vfs.seek(&inode, handle, offset, what)
    }

    /// Copies up to `len` bytes from one file to another, and returns the number of copied bytes.
    /// Each file is given by node, handle and offset. If the back end cannot copy, or the server
    /// checks permissions, the server reads and writes itself, at most 16 MiB per request.
    ///
    /// # Errors
    /// The errors of [`Server::read`] and [`Server::write`], if nothing was copied.
    pub fn copy_file_range(
        &self,
        caller: Caller,
        from: (u64, u64, u64),
        to: (u64, u64, u64),
        len: u64,
    ) -> Result<u64, Errno> {
        let source = self.inode(from.0)?;
        let target = self.counted(to.0)?;
        self.refresh_set_id(&target);
        self.remove_capability(&target)?;
        if self.options.permissions == Permissions::Kernel {
            let (source, target) = ((&source, from.1, from.2), (&target, to.1, to.2));
            // No range may end above the maximum of `loff_t`, so that the back end need not check
            // for an overflow.
            let left = (i64::MAX as u64).saturating_sub(from.2.max(to.2));
            let len = len.min(BACK_END_COPY_BYTES_MAX).min(left);
            let copy = |cred: &_| self.vfs.copy_file_range(cred, source, target, len);
            match self.change(caller, target.0, SetId::Unsaid, copy) {
                Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::XDEV) => {}
                copied => return copied,
            }
        }
        let len = len.min(COPY_BYTES_MAX);
        let mut chunk = vec![0; COPY_CHUNK_BYTES.min(len as usize)];
        let mut done = 0;
        while done < len {
            let want = chunk.len().min((len - done) as usize);
            let step =
                self.vfs.read(&source, from.1, from.2 + done, &mut chunk[..want]).and_then(|got| {
                    match got {
                        0 => Ok(0),
                        _ => {
                            let at = (to.1, to.2 + done);
                            self.write_for(caller, &target, at, &chunk[..got], SetId::Unsaid)
                        }
                    }
                });
            match step {
                Ok(0) => break,
                Ok(copied) => done += copied as u64,
                Err(error) if done == 0 => return Err(error),
                Err(_) => break,
            }
        }
        Ok(done)
    }

    /// Returns the target of a symbolic link.
    ///
    /// # Errors
    /// `EINVAL` if `node` is no symbolic link; `ENAMETOOLONG` if the target has more than 4,095
    /// bytes; the errors of the back end.
    pub fn readlink(&self, node: u64) -> Result<Vec<u8>, Errno> {
        self.vfs.readlink(&self.inode(node)?).and_then(checked_target)
    }

    /// Returns the values of statfs(2).
    ///
    /// # Errors
    /// The errors of the back end.
    pub fn statfs(&self, node: u64) -> Result<StatFs, Errno> {
        self.vfs.statfs(&self.inode(node)?)
    }
}

/// `ENAMETOOLONG` if the target of a symbolic link is longer than the kernel accepts.
pub(crate) fn checked_target<T: AsRef<[u8]>>(target: T) -> Result<T, Errno> {
    if target.as_ref().len() < PATH_MAX { Ok(target) } else { Err(Errno::NAMETOOLONG) }
}
