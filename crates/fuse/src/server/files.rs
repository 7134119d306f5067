//! Requests about open files and their content.

use corewalk::{Caps, Cred, Errno, Fallocate, Fsync, InodeRef, May, Seek, StatFs};
use rustix::fs::OFlags;

use super::Server;
use crate::credentials::Caller;
use crate::options::{Ownership, Permissions, WriteCache};

/// The flag that execve(2) opens a file with.
const OPEN_FOR_EXEC: u32 = 0x20;
/// The most bytes that one request copies; callers go on behind a short copy.
const COPY_BYTES_MAX: u64 = 16 << 20;
/// Bytes copied at once.
const COPY_CHUNK_BYTES: usize = 128 << 10;

/// What a write request is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteOrigin {
    /// A write(2) that waits for its answer.
    Call,
    /// As `Call`, of a file that is open with `O_APPEND`: its offset is where the kernel takes the end
    /// to be. A pwritev2(2) with `RWF_NOAPPEND`, whose offset is meant, looks the same: a request has the flags of the
    /// open file, not those of the call. An offset before the end does not tell them apart, since the end is
    /// where others have moved it.
    Append,
    /// Pages that the kernel writes back, in nobody's name.
    Cache,
}

impl Server {
    /// Opens `node` with `flags` (of open(2); `O_TRUNC` truncates) and returns the handle.
    ///
    /// # Errors
    /// `EACCES`; `EISDIR`; what the back end says.
    pub fn open(&self, caller: Caller, node: u64, flags: u32) -> Result<u64, Errno> {
        // Nobody runs what is not executable, and what is truncated may have bits to lose.
        let inode = match flags & (OPEN_FOR_EXEC | OFlags::TRUNC.bits()) {
            0 => self.inode(node)?,
            _ => self.inode_now(node)?,
        };
        self.open_checked(caller, &self.cred(caller), &inode, flags)
    }

    /// Opens a directory, which has no state.
    ///
    /// # Errors
    /// `EACCES`; `ENOTDIR`; `ESTALE`.
    pub fn opendir(&self, caller: Caller, node: u64) -> Result<(), Errno> {
        let inode = self.inode(node)?;
        if inode.kind() != corewalk::FileKind::Directory {
            return Err(Errno::NOTDIR);
        }
        match self.options.permissions {
            Permissions::Kernel => Ok(()),
            Permissions::Server => self.vfs.access(&self.cred(caller), &inode, May::READ),
        }
    }

    /// Opens for `caller`, whose credentials the check takes to be `cred`. The kernel leaves it to the server to
    /// truncate, and to take away the set-user-ID and set-group-ID bits then, whoever checks permissions.
    pub(super) fn open_checked(
        &self,
        caller: Caller,
        cred: &Cred,
        inode: &InodeRef<'_>,
        flags: u32,
    ) -> Result<u64, Errno> {
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
        let handle = self.vfs.open(cred, inode, flags, may)?;
        if has(OFlags::TRUNC) {
            let cred = Cred { caps: cred.caps | Caps::DAC_OVERRIDE, ..cred.clone() };
            let who = || caller.resolve(self.namespace);
            if let Err(error) = self.vfs.truncate_with_lazy_cred(&cred, inode, 0, who) {
                self.vfs.release(inode, handle);
                return Err(error);
            }
        }
        Ok(handle)
    }

    /// Closes what was opened.
    ///
    /// # Errors
    /// `ESTALE`.
    pub fn release(&self, node: u64, handle: u64) -> Result<(), Errno> {
        let inode = self.inode(node)?;
        if self.has_open_state {
            self.vfs.release(&inode, handle);
        }
        Ok(())
    }

    /// Reads at `offset` into `buf` and returns the count of bytes: fewer only at the end.
    ///
    /// # Errors
    /// `EISDIR`; `ESTALE`; what the back end says.
    pub fn read(
        &self,
        node: u64,
        handle: u64,
        offset: u64,
        buf: &mut [u8],
    ) -> Result<usize, Errno> {
        self.vfs.read(&self.inode(node)?, handle, offset, buf)
    }

    /// Writes at `offset` and returns the count of bytes. What is appended to a file that others change
    /// too goes where the end is now, unless the kernel collects writes: then it knows of an end that
    /// the back end does not know yet.
    ///
    /// # Errors
    /// `ENOSPC`, `EFBIG`; `ESTALE`; what the back end says.
    pub fn write(
        &self,
        caller: Caller,
        node: u64,
        handle: u64,
        offset: u64,
        bytes: &[u8],
        origin: WriteOrigin,
    ) -> Result<usize, Errno> {
        let inode = self.inode(node)?;
        match origin {
            WriteOrigin::Append if self.ends_move() => {
                self.append_for(caller, &inode, handle, offset, bytes)
            }
            WriteOrigin::Call | WriteOrigin::Append => {
                self.write_for(caller, &inode, handle, offset, bytes)
            }
            WriteOrigin::Cache => {
                self.vfs.write(&caller.prechecked(), &inode, handle, offset, bytes)
            }
        }
    }

    /// Returns true if the end of a file may be elsewhere than the kernel says.
    fn ends_move(&self) -> bool {
        let options = &self.options;
        options.ownership == Ownership::Shared && options.write_cache == WriteCache::Through
    }

    /// Writes for a caller that may have no right to keep the set-user-ID and set-group-ID bits of the
    /// file. The caller's groups and capabilities are looked up only if the file has such bits, which few
    /// files have. Where the kernel checks permissions, it has taken all bits but set-group-ID alone, and it
    /// keeps others from changing the mode until the request has been answered.
    fn write_for(
        &self,
        caller: Caller,
        inode: &InodeRef<'_>,
        handle: u64,
        offset: u64,
        bytes: &[u8],
    ) -> Result<usize, Errno> {
        match self.options.permissions {
            Permissions::Kernel => {
                let write = |cred: &_| self.vfs.write(cred, inode, handle, offset, bytes);
                self.change(caller, inode, write)
            }
            Permissions::Server => {
                let who = || caller.resolve(self.namespace);
                self.vfs.write_with_lazy_cred(inode, handle, offset, bytes, who)
            }
        }
    }

    /// As `write_for`, at the end that the file has now; the kernel takes it to be at `end`.
    fn append_for(
        &self,
        caller: Caller,
        inode: &InodeRef<'_>,
        handle: u64,
        end: u64,
        bytes: &[u8],
    ) -> Result<usize, Errno> {
        match self.options.permissions {
            Permissions::Kernel => {
                let append = |cred: &_| self.vfs.append(cred, inode, handle, end, bytes);
                self.change(caller, inode, append)
            }
            Permissions::Server => {
                let who = || caller.resolve(self.namespace);
                self.vfs.append_with_lazy_cred(inode, handle, end, bytes, who)
            }
        }
    }

    /// Makes a file or directory durable.
    ///
    /// # Errors
    /// What the back end says.
    pub fn fsync(&self, node: u64, handle: u64, what: Fsync) -> Result<(), Errno> {
        self.vfs.fsync(&self.inode(node)?, handle, what)
    }

    /// Changes the allocation of a file; `flags` are those of fallocate(2).
    ///
    /// # Errors
    /// `EOPNOTSUPP` for flags that are unknown or not supported; `EINVAL`, `EFBIG`, `ENOSPC`.
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
        self.change(caller, &inode, |cred| {
            self.vfs.fallocate(cred, &inode, handle, range.0, range.1, how)
        })
    }

    /// Returns the offset of the next data or hole.
    ///
    /// # Errors
    /// `ENXIO` behind the end; `EINVAL` for another `whence`; `ENOSYS` with a writeback cache, since
    /// the kernel asks without having written back what it has, and would report holes where there
    /// is data. It takes the whole file for data then.
    pub fn seek(&self, node: u64, handle: u64, offset: i64, whence: i32) -> Result<u64, Errno> {
        if self.options.write_cache == WriteCache::Back {
            return Err(Errno::NOSYS);
        }
        let inode = self.inode(node)?;
        let what = match whence {
            // The numbers of SEEK_DATA and SEEK_HOLE.
            3 => Seek::Data,
            4 => Seek::Hole,
            _ => return Err(Errno::INVAL),
        };
        let offset = u64::try_from(offset).map_err(|_| Errno::NXIO)?;
        self.vfs.seek(&inode, handle, offset, what)
    }

    /// Copies up to `len` bytes between files (node, handle, offset) and returns the count; a
    /// single call copies at most 16 MiB, so that no request takes for ever.
    ///
    /// # Errors
    /// As reading and writing, if nothing was copied.
    pub fn copy_file_range(
        &self,
        caller: Caller,
        from: (u64, u64, u64),
        to: (u64, u64, u64),
        len: u64,
    ) -> Result<u64, Errno> {
        let source = self.inode(from.0)?;
        let target = self.counted(to.0)?;
        let len = len.min(COPY_BYTES_MAX);
        let mut chunk = vec![0; COPY_CHUNK_BYTES.min(len as usize)];
        let mut done = 0;
        while done < len {
            let want = chunk.len().min((len - done) as usize);
            let step =
                self.vfs.read(&source, from.1, from.2 + done, &mut chunk[..want]).and_then(|got| {
                    match got {
                        0 => Ok(0),
                        _ => self.write_for(caller, &target, to.1, to.2 + done, &chunk[..got]),
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
    /// `EINVAL` if it is none; what the back end says.
    pub fn readlink(&self, node: u64) -> Result<Vec<u8>, Errno> {
        self.vfs.readlink(&self.inode(node)?)
    }

    /// Returns what statfs(2) reports.
    ///
    /// # Errors
    /// What the back end says.
    pub fn statfs(&self, node: u64) -> Result<StatFs, Errno> {
        self.vfs.statfs(&self.inode(node)?)
    }
}
