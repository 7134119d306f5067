//! Operations on an inode: data, symbolic links, extended attributes. Each operation makes the
//! checks of its system call, and then calls the back end.

use std::borrow::Borrow;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::fs::OFlags;

use super::attributes::acl_kind;
use super::capability::{XATTR_CAPABILITY, is_capability};
use super::paths::Nesting;
use super::{InodeRef, Vfs};
use crate::Errno;
use crate::attr::{FileKind, StatFs, mode};
use crate::cred::{Caps, Cred, May};
use crate::fs::{Fallocate, FileSystem, Node, Opened, Seek, XattrMode};

/// The longest name of an extended attribute, in bytes (`XATTR_NAME_MAX`).
const XATTR_NAME_MAX: usize = 255;
/// The largest value of an extended attribute, in bytes (`XATTR_SIZE_MAX`).
const XATTR_SIZE_MAX: usize = 65536;

/// The flags of open(2) that concern only the creation of a file. A client may pass them on, but
/// the back end does not get them, because the file exists.
const CREATION_FLAGS: u32 =
    OFlags::CREATE.union(OFlags::EXCL).union(OFlags::NOCTTY).union(OFlags::TRUNC).bits();

impl Vfs {
    /// Opens a file and returns the back end's answer. `cred` must have the permissions `what`.
    /// `flags` are those of open(2). Creation flags such as `O_TRUNC` are dropped, so the caller
    /// must truncate the file itself.
    ///
    /// # Errors
    /// `EACCES`; `EISDIR` for writing to a directory; the errors of the back end.
    ///
    /// # Examples
    /// ```
    /// # use std::sync::Arc;
    /// # use corewalk::tmpfs::{Tmpfs, TmpfsOptions};
    /// # use corewalk::{Cred, Make, May, Name, Vfs, VfsOptions};
    /// # let fs = Arc::new(Tmpfs::new(TmpfsOptions::default()));
    /// # let vfs = Vfs::new(fs, VfsOptions::default())?;
    /// let cred = Cred::root();
    /// let (file, _) = vfs.make(&cred, &vfs.root(), Name::new(b"f")?, Make::new(0o644, 0, 0))?;
    /// let handle = vfs.open(&cred, &file, 2, May::READ | May::WRITE)?.handle;
    /// assert_eq!(vfs.write(&cred, &file, handle, 0, b"data")?, 4);
    /// let mut buf = [0; 8];
    /// assert_eq!(vfs.read(&file, handle, 2, &mut buf)?, 2);
    /// assert_eq!(&buf[..2], b"ta");
    /// vfs.release(&file, handle);
    /// # Ok::<(), corewalk::Errno>(())
    /// ```
    pub fn open(
        &self,
        cred: &Cred,
        inode: &InodeRef<'_>,
        flags: u32,
        what: May,
    ) -> Result<Opened, Errno> {
        if inode.kind() == FileKind::Directory && what.contains(May::WRITE) {
            return Err(Errno::ISDIR);
        }
        let opening = Opening::of(inode);
        let opened = self.ask(inode, |fs, node| {
            self.permission(cred, inode.slot, what)?;
            fs.open(node, flags & !CREATION_FLAGS)
        })?;
        std::mem::forget(opening);
        Ok(opened)
    }

    /// Opens a directory for a listing by [`Vfs::readdir_through`]. The caller has checked the
    /// permission.
    ///
    /// # Errors
    /// `ENOTDIR`; the errors of the back end.
    ///
    /// # Examples
    /// ```
    /// # use std::ops::ControlFlow;
    /// # use std::sync::Arc;
    /// # use corewalk::tmpfs::{Tmpfs, TmpfsOptions};
    /// # use corewalk::{Vfs, VfsOptions};
    /// # let vfs = Vfs::new(Arc::new(Tmpfs::new(TmpfsOptions::default())), VfsOptions::default())?;
    /// let root = vfs.root();
    /// let handle = vfs.opendir(&root)?.handle;
    /// let mut names = 0;
    /// vfs.readdir_through(&root, handle, 0, &mut |_| {
    ///     names += 1;
    ///     ControlFlow::Continue(())
    /// })?;
    /// vfs.releasedir(&root, handle);
    /// assert_eq!(names, 0);
    /// # Ok::<(), corewalk::Errno>(())
    /// ```
    pub fn opendir(&self, dir: &InodeRef<'_>) -> Result<Opened, Errno> {
        if dir.kind() != FileKind::Directory {
            return Err(Errno::NOTDIR);
        }
        self.ask(dir, |fs, node| fs.opendir(node))
    }

    /// Closes a handle that [`Vfs::opendir`] returned.
    pub fn releasedir(&self, dir: &InodeRef<'_>, handle: u64) {
        let released = self.with_inode(dir.slot, |fs, node| {
            fs.releasedir(node.with_handle(handle));
            Ok(())
        });
        released.expect("a release has no errors");
    }

    /// Tells the back end that a client closes a descriptor of an open file.
    ///
    /// # Errors
    /// `ENOSYS` if the back end does not need to know when a descriptor is closed; the other errors
    /// of the back end.
    pub fn flush(&self, inode: &InodeRef<'_>, handle: u64) -> Result<(), Errno> {
        self.ask(inode, |fs, node| fs.flush(node.with_handle(handle)))
    }

    /// Returns the file of the host that has the content of an open file, if there is one.
    pub fn backing_file(&self, inode: &InodeRef<'_>, handle: u64) -> Option<Arc<OwnedFd>> {
        self.with_node(inode.slot, |fs, node| Ok(fs.backing_file(node.with_handle(handle)))).ok()?
    }

    /// Copies up to `len` bytes from one file to another inside the back end, and returns the
    /// number of copied bytes. Each file comes with its handle and its offset. The source is open
    /// for reading, the destination for writing. Clears set-user-ID and set-group-ID as
    /// [`Vfs::write`] does.
    ///
    /// # Errors
    /// `EOPNOTSUPP` if the back end cannot copy; `EXDEV` for files of two file systems; `EINVAL`
    /// for anything but regular files, or for ranges of one file that overlap; the errors of the
    /// back end.
    ///
    /// # Examples
    /// A tmpfs cannot copy, so the caller reads and writes:
    /// ```
    /// # use std::sync::Arc;
    /// # use corewalk::tmpfs::{Tmpfs, TmpfsOptions};
    /// # use corewalk::{Cred, Errno, Make, Name, Vfs, VfsOptions};
    /// # let vfs = Vfs::new(Arc::new(Tmpfs::new(TmpfsOptions::default())), VfsOptions::default())?;
    /// # let (cred, root) = (Cred::root(), vfs.root());
    /// # let make = |name: &'static [u8]| {
    /// #     vfs.make(&cred, &root, Name::new(name)?, Make::new(0o644, 0, 0)).map(|made| made.0)
    /// # };
    /// let (from, to) = (make(b"from")?, make(b"to")?);
    /// vfs.write(&cred, &from, 0, 0, b"text")?;
    /// let copied = match vfs.copy_file_range(&cred, (&from, 0, 0), (&to, 0, 0), 4) {
    ///     Err(Errno::OPNOTSUPP) => {
    ///         let mut bytes = [0; 4];
    ///         let count = vfs.read(&from, 0, 0, &mut bytes)?;
    ///         vfs.write(&cred, &to, 0, 0, &bytes[..count])? as u64
    ///     }
    ///     copied => copied?,
    /// };
    /// assert_eq!(copied, 4);
    /// # Ok::<(), Errno>(())
    /// ```
    pub fn copy_file_range(
        &self,
        cred: &Cred,
        from: (&InodeRef<'_>, u64, u64),
        to: (&InodeRef<'_>, u64, u64),
        len: u64,
    ) -> Result<u64, Errno> {
        let ((source, source_handle, source_offset), (target, handle, offset)) = (from, to);
        is_regular(source)?;
        is_regular(target)?;
        let inodes = &self.dcache.inodes;
        if inodes.superblock(source.slot) != inodes.superblock(target.slot) {
            return Err(Errno::XDEV);
        }
        if source.slot == target.slot && source_offset.abs_diff(offset) < len {
            return Err(Errno::INVAL);
        }
        let slot = source.slot;
        self.awaiting_removal(&[source.slot, target.slot], || {
            let _locked = match cred.has(Caps::FSETID) {
                true => None,
                false => Some(self.clear_set_id(target, || cred)?),
            };
            let call = self.call(source.slot);
            let (source, target) = (call.node(source.slot), call.node(target.slot));
            let from = (source.node().with_handle(source_handle), source_offset);
            let to = (target.node().with_handle(handle), offset);
            call.fs()
                .copy_file_range(from, to, len)
                .map_err(|error| self.stale_if_gone(slot, error))
        })
    }

    /// Closes a handle that [`Vfs::open`] returned.
    pub fn release(&self, inode: &InodeRef<'_>, handle: u64) {
        let released = self.with_inode(inode.slot, |fs, node| {
            fs.release(node.with_handle(handle));
            Ok(())
        });
        released.expect("a release has no errors");
        self.closed(inode);
    }

    /// Reads at `offset` into `buf` and returns the number of bytes. The number is smaller than the
    /// length of `buf` only at the end of the file. The caller has opened the file for reading.
    ///
    /// # Errors
    /// `EISDIR`, `EINVAL` for anything but a regular file; the errors of the back end.
    pub fn read(
        &self,
        inode: &InodeRef<'_>,
        handle: u64,
        offset: u64,
        buf: &mut [u8],
    ) -> Result<usize, Errno> {
        is_regular(inode)?;
        self.ask(inode, |fs, node| fs.read(node.with_handle(handle), offset, buf))
    }

    /// Writes `bytes` at `offset` and returns the number of bytes. The caller has opened the file
    /// for writing. A write of 0 bytes changes nothing.
    ///
    /// Without `CAP_FSETID` in `cred`, the write clears set-user-ID and set-group-ID, and no thread
    /// can set them until the bytes are written. Set-group-ID stays if the group may not execute
    /// the file and `cred` is in the group.
    ///
    /// # Errors
    /// `EISDIR`, `EINVAL` for anything but a regular file; `ENOSPC`, `EFBIG`; the errors of the
    /// back end.
    ///
    /// # Examples
    /// ```
    /// # use std::sync::Arc;
    /// # use corewalk::tmpfs::{Tmpfs, TmpfsOptions};
    /// # use corewalk::{Cred, Make, May, Name, Vfs, VfsOptions};
    /// # let fs = Arc::new(Tmpfs::new(TmpfsOptions::default()));
    /// # let vfs = Vfs::new(fs, VfsOptions::default())?;
    /// # let (cred, root, name) = (Cred::root(), vfs.root(), Name::new(b"f")?);
    /// # let (file, _) = vfs.make(&cred, &root, name, Make::new(0o100_644, 1000, 1000))?;
    /// let handle = vfs.open(&cred, &file, 0, May::READ | May::WRITE)?.handle;
    /// assert_eq!(vfs.write(&cred, &file, handle, 0, b"hello")?, 5);
    /// let mut buf = [0; 8];
    /// assert_eq!(vfs.read(&file, handle, 1, &mut buf)?, 4);
    /// assert_eq!(&buf[..4], b"ello");
    /// vfs.release(&file, handle);
    /// # Ok::<(), corewalk::Errno>(())
    /// ```
    pub fn write(
        &self,
        cred: &Cred,
        inode: &InodeRef<'_>,
        handle: u64,
        offset: u64,
        bytes: &[u8],
    ) -> Result<usize, Errno> {
        if !cred.has(Caps::FSETID) {
            let write = |fs: &dyn FileSystem, node: Node<'_>| {
                fs.write(node.with_handle(handle), offset, bytes)
            };
            return self.write_by(inode, bytes, || cred, write);
        }
        is_regular(inode)?;
        self.ask(inode, |fs, node| fs.write(node.with_handle(handle), offset, bytes))
    }

    /// Writes as [`Vfs::write`] does, for a server that looks up the writer's credentials only if
    /// needed. `load_cred` returns them. It is called only if the file has set-user-ID or
    /// set-group-ID. From that call on, no other thread changes the file's attributes until the
    /// bytes are written.
    ///
    /// # Errors
    /// The errors of [`Vfs::write`].
    pub fn write_with_lazy_cred(
        &self,
        inode: &InodeRef<'_>,
        handle: u64,
        offset: u64,
        bytes: &[u8],
        load_cred: impl FnOnce() -> Cred,
    ) -> Result<usize, Errno> {
        self.write_by(inode, bytes, load_cred, |fs, node| {
            fs.write(node.with_handle(handle), offset, bytes)
        })
    }

    fn write_by<C: Borrow<Cred>>(
        &self,
        inode: &InodeRef<'_>,
        bytes: &[u8],
        load_cred: impl FnOnce() -> C,
        write: impl FnOnce(&dyn FileSystem, Node<'_>) -> Result<usize, Errno>,
    ) -> Result<usize, Errno> {
        is_regular(inode)?;
        self.ask(inode, |fs, node| {
            let _locked = match bytes {
                [] => None,
                _ => Some(self.clear_set_id(inode, load_cred)?),
            };
            write(fs, node)
        })
    }

    /// Writes as [`Vfs::write`] does, but at the end of the file. `end` is the file size that the
    /// caller knows. If other programs may change the files, the back end finds the current end
    /// itself. See [`FileSystem::append`].
    ///
    /// # Errors
    /// The errors of [`Vfs::write`].
    ///
    /// # Examples
    /// ```
    /// # use std::sync::Arc;
    /// # use corewalk::tmpfs::{Tmpfs, TmpfsOptions};
    /// # use corewalk::{Cred, Errno, Make, Name, Vfs, VfsOptions};
    /// # let vfs = Vfs::new(Arc::new(Tmpfs::new(TmpfsOptions::default())), VfsOptions::default())?;
    /// # let (cred, root) = (Cred::root(), vfs.root());
    /// # let (file, _) = vfs.make(&cred, &root, Name::new(b"f")?, Make::new(0o644, 0, 0))?;
    /// vfs.write(&cred, &file, 0, 0, b"one")?;
    /// assert_eq!(vfs.append(&cred, &file, 0, 3, b"two"), Ok(3));
    /// let mut buf = [0; 8];
    /// assert_eq!(vfs.read(&file, 0, 0, &mut buf), Ok(6));
    /// assert_eq!(&buf[..6], b"onetwo");
    /// # Ok::<(), Errno>(())
    /// ```
    pub fn append(
        &self,
        cred: &Cred,
        inode: &InodeRef<'_>,
        handle: u64,
        end: u64,
        bytes: &[u8],
    ) -> Result<usize, Errno> {
        if !cred.has(Caps::FSETID) {
            let append = |fs: &dyn FileSystem, node: Node<'_>| {
                fs.append(node.with_handle(handle), end, bytes)
            };
            return self.write_by(inode, bytes, || cred, append);
        }
        is_regular(inode)?;
        self.ask(inode, |fs, node| fs.append(node.with_handle(handle), end, bytes))
    }

    /// Appends as [`Vfs::append`] does, but looks up the writer's credentials only if they are
    /// needed; see [`Vfs::write_with_lazy_cred`].
    ///
    /// # Errors
    /// The errors of [`Vfs::write`].
    pub fn append_with_lazy_cred(
        &self,
        inode: &InodeRef<'_>,
        handle: u64,
        end: u64,
        bytes: &[u8],
        load_cred: impl FnOnce() -> Cred,
    ) -> Result<usize, Errno> {
        self.write_by(inode, bytes, load_cred, |fs, node| {
            fs.append(node.with_handle(handle), end, bytes)
        })
    }

    /// Returns the inode number of a directory's parent. The parent of the root is the root.
    ///
    /// # Errors
    /// `ENOENT` if the directory was removed.
    pub fn parent_ino(&self, dir: &InodeRef<'_>) -> Result<u64, Errno> {
        let dir = self.dir(dir.slot)?;
        loop {
            let (parent, seq) = self.dcache.parent(dir.now.slot);
            let parent = self.dcache.directory(parent).map(|now| self.dcache.inodes.ino(now.inode));
            // If `dir` was moved after the read, `parent` may be a wrong directory. Repeat the
            // read.
            if self.dcache.dentries.is_unchanged(dir.now.slot, seq) {
                return parent.ok_or(Errno::NOENT);
            }
        }
    }

    /// Returns the target of a symbolic link.
    ///
    /// # Errors
    /// `EINVAL` if the inode is not a symbolic link; the errors of the back end.
    ///
    /// # Examples
    /// ```
    /// # use std::sync::Arc;
    /// # use corewalk::tmpfs::{Tmpfs, TmpfsOptions};
    /// # use corewalk::{Cred, Make, Name, Vfs, VfsOptions};
    /// # let fs = Arc::new(Tmpfs::new(TmpfsOptions::default()));
    /// # let vfs = Vfs::new(fs, VfsOptions::default())?;
    /// let new = Make::new(0o120_777, 0, 0).with_target(b"to/where");
    /// let (link, _) = vfs.make(&Cred::root(), &vfs.root(), Name::new(b"link")?, new)?;
    /// assert_eq!(vfs.readlink(&link)?, b"to/where");
    /// # Ok::<(), corewalk::Errno>(())
    /// ```
    pub fn readlink(&self, inode: &InodeRef<'_>) -> Result<Vec<u8>, Errno> {
        if inode.kind() != FileKind::Symlink {
            return Err(Errno::INVAL);
        }
        self.ask(inode, |fs, node| fs.readlink(node))
    }

    /// Makes data durable. With [`Fsync::All`], makes all attributes durable too.
    ///
    /// # Errors
    /// The errors of the back end.
    pub fn fsync(&self, inode: &InodeRef<'_>, handle: u64, what: Fsync) -> Result<(), Errno> {
        self.ask(inode, |fs, node| fs.fsync(node.with_handle(handle), what == Fsync::Data))
    }

    /// Returns the statfs(2) values of the inode's file system.
    ///
    /// # Errors
    /// The errors of the back end.
    ///
    /// # Examples
    /// ```
    /// # use std::sync::Arc;
    /// # use corewalk::tmpfs::{Tmpfs, TmpfsOptions};
    /// # use corewalk::{Cred, Errno, Make, Name, Vfs, VfsOptions};
    /// # let vfs = Vfs::new(Arc::new(Tmpfs::new(TmpfsOptions::default())), VfsOptions::default())?;
    /// # let (cred, root) = (Cred::root(), vfs.root());
    /// # let (file, _) = vfs.make(&cred, &root, Name::new(b"f")?, Make::new(0o644, 0, 0))?;
    /// let before = vfs.statfs(&root)?.bfree;
    /// vfs.write(&cred, &file, 0, 0, &[1; 8192])?;
    /// assert!(vfs.statfs(&root)?.bfree < before);
    /// # Ok::<(), Errno>(())
    /// ```
    pub fn statfs(&self, inode: &InodeRef<'_>) -> Result<StatFs, Errno> {
        self.fs(inode.slot).statfs()
    }

    /// Lets the inode's back end do its deferred work; see [`FileSystem::maintain`].
    ///
    /// [`FileSystem::maintain`]: crate::FileSystem::maintain
    pub fn maintain_backend(&self, inode: &InodeRef<'_>) {
        self.fs(inode.slot).maintain();
    }

    /// Calls `sink` with the counters of the inode's back end; see [`FileSystem::counters`].
    ///
    /// [`FileSystem::counters`]: crate::FileSystem::counters
    pub fn backend_counters(&self, inode: &InodeRef<'_>, sink: &mut dyn FnMut(&'static str, u64)) {
        self.fs(inode.slot).counters(sink);
    }

    /// Allocates or frees blocks of a file (fallocate(2)), which the caller has opened for writing.
    /// Clears set-user-ID and set-group-ID as a write does.
    ///
    /// # Errors
    /// In this order: `EINVAL` for a length of 0; `EOPNOTSUPP` for conflicting flags; `ESPIPE` for
    /// a FIFO, `EISDIR`, `ENODEV` for anything else but a regular file; `EFBIG` for a range beyond
    /// the largest offset; `ENOSPC` and the other errors of the back end.
    ///
    /// # Examples
    /// ```
    /// # use std::sync::Arc;
    /// # use corewalk::tmpfs::{Tmpfs, TmpfsOptions};
    /// # use corewalk::{Cred, Errno, Fallocate, Make, Name, Seek, Vfs, VfsOptions};
    /// # let vfs = Vfs::new(Arc::new(Tmpfs::new(TmpfsOptions::default())), VfsOptions::default())?;
    /// # let (cred, root) = (Cred::root(), vfs.root());
    /// # let (file, _) = vfs.make(&cred, &root, Name::new(b"f")?, Make::new(0o644, 0, 0))?;
    /// vfs.write(&cred, &file, 0, 0, &[1; 8192])?;
    /// let hole = Fallocate::PUNCH_HOLE | Fallocate::KEEP_SIZE;
    /// vfs.fallocate(&cred, &file, 0, 0, 4096, hole)?;
    /// assert_eq!(vfs.seek(&file, 0, 0, Seek::Data), Ok(4096));
    /// assert_eq!(vfs.fallocate(&cred, &file, 0, 0, 0, hole), Err(Errno::INVAL));
    /// # Ok::<(), Errno>(())
    /// ```
    pub fn fallocate(
        &self,
        cred: &Cred,
        inode: &InodeRef<'_>,
        handle: u64,
        offset: u64,
        len: u64,
        how: Fallocate,
    ) -> Result<(), Errno> {
        if len == 0 {
            return Err(Errno::INVAL);
        }
        check_together(how)?;
        match inode.kind() {
            FileKind::Regular => {}
            FileKind::Fifo => return Err(Errno::SPIPE),
            FileKind::Directory => return Err(Errno::ISDIR),
            _ => return Err(Errno::NODEV),
        }
        if offset.checked_add(len).is_none_or(|end| end > i64::MAX as u64) {
            return Err(Errno::FBIG);
        }
        self.ask(inode, |fs, node| {
            let _locked = match cred.has(Caps::FSETID) {
                true => None,
                false => Some(self.clear_set_id(inode, || cred)?),
            };
            fs.fallocate(node.with_handle(handle), offset, len, how)
        })
    }

    /// Returns the offset of the next data or hole from `offset` on.
    ///
    /// # Errors
    /// `ENXIO` if `offset` is behind the end of the file; `ESPIPE` for a FIFO. `EINVAL` for
    /// anything else but a regular file, as the kernel's tmpfs does for a directory.
    ///
    /// # Examples
    /// ```
    /// # use std::sync::Arc;
    /// # use corewalk::tmpfs::{Tmpfs, TmpfsOptions};
    /// # use corewalk::{Cred, Errno, Make, Name, Seek, Vfs, VfsOptions};
    /// # let vfs = Vfs::new(Arc::new(Tmpfs::new(TmpfsOptions::default())), VfsOptions::default())?;
    /// # let (cred, root) = (Cred::root(), vfs.root());
    /// # let (file, _) = vfs.make(&cred, &root, Name::new(b"f")?, Make::new(0o644, 0, 0))?;
    /// vfs.write(&cred, &file, 0, 8192, b"behind a hole")?;
    /// assert_eq!(vfs.seek(&file, 0, 0, Seek::Data), Ok(8192));
    /// assert_eq!(vfs.seek(&file, 0, 0, Seek::Hole), Ok(0));
    /// assert_eq!(vfs.seek(&file, 0, 9000, Seek::Data), Err(Errno::NXIO));
    /// # Ok::<(), Errno>(())
    /// ```
    pub fn seek(
        &self,
        inode: &InodeRef<'_>,
        handle: u64,
        offset: u64,
        what: Seek,
    ) -> Result<u64, Errno> {
        match inode.kind() {
            FileKind::Regular => {}
            FileKind::Fifo => return Err(Errno::SPIPE),
            _ => return Err(Errno::INVAL),
        }
        self.ask(inode, |fs, node| fs.seek(node.with_handle(handle), offset, what))
    }

    /// Returns the value of an extended attribute.
    ///
    /// # Errors
    /// `ENODATA` if the file does not have the attribute; `EOPNOTSUPP` for an unknown attribute
    /// namespace; `EACCES`; `ERANGE` for a name that is too long.
    ///
    /// # Examples
    /// ```
    /// # use std::sync::Arc;
    /// # use corewalk::tmpfs::{Tmpfs, TmpfsOptions};
    /// # use corewalk::{Cred, Errno, Make, Name, Vfs, VfsOptions, XattrMode};
    /// # let fs = Arc::new(Tmpfs::new(TmpfsOptions::default()));
    /// # let vfs = Vfs::new(fs, VfsOptions::default())?;
    /// # let (cred, root, name) = (Cred::root(), vfs.root(), Name::new(b"f")?);
    /// # let (file, _) = vfs.make(&cred, &root, name, Make::new(0o100_644, 1000, 1000))?;
    /// vfs.setxattr(&cred, &file, b"user.a", b"1", XattrMode::Set)?;
    /// assert_eq!(vfs.getxattr(&cred, &file, b"user.a")?, b"1");
    /// assert_eq!(vfs.listxattr(&cred, &file)?, b"user.a\0");
    /// vfs.removexattr(&cred, &file, b"user.a")?;
    /// assert_eq!(vfs.getxattr(&cred, &file, b"user.a"), Err(Errno::NODATA));
    /// # Ok::<(), corewalk::Errno>(())
    /// ```
    pub fn getxattr(
        &self,
        cred: &Cred,
        inode: &InodeRef<'_>,
        name: &[u8],
    ) -> Result<Vec<u8>, Errno> {
        self.ask(inode, |fs, node| {
            if let Some(kind) = acl_kind(name) {
                return self.get_acl_xattr(inode, kind);
            }
            self.xattr_permission(cred, inode, name, May::READ)?;
            match name == XATTR_CAPABILITY {
                true => self.get_capability(inode, fs, node),
                false => fs.getxattr(node, name),
            }
        })
    }

    /// Sets an extended attribute.
    ///
    /// # Errors
    /// `EEXIST` or `ENODATA` as `mode` requires; `EPERM` or `EACCES` if the caller lacks the right;
    /// `ERANGE` for a name that is too long; `E2BIG` for a value that is too long; `ENOSPC`;
    /// `EOPNOTSUPP` for a name that is not supported; `EINVAL` for an invalid ACL or
    /// `security.capability`.
    ///
    /// # Examples
    /// ```
    /// # use std::sync::Arc;
    /// # use corewalk::tmpfs::{Tmpfs, TmpfsOptions};
    /// # use corewalk::{Cred, Make, Name, XattrMode, Vfs, VfsOptions};
    /// # let fs = Arc::new(Tmpfs::new(TmpfsOptions::default()));
    /// # let vfs = Vfs::new(fs, VfsOptions::default())?;
    /// let cred = Cred::root();
    /// let (file, _) = vfs.make(&cred, &vfs.root(), Name::new(b"f")?, Make::new(0o644, 0, 0))?;
    /// vfs.setxattr(&cred, &file, b"user.color", b"blue", XattrMode::Create)?;
    /// assert_eq!(vfs.getxattr(&cred, &file, b"user.color")?, b"blue");
    /// assert_eq!(vfs.listxattr(&cred, &file)?, b"user.color\0");
    /// # Ok::<(), corewalk::Errno>(())
    /// ```
    pub fn setxattr(
        &self,
        cred: &Cred,
        inode: &InodeRef<'_>,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
    ) -> Result<(), Errno> {
        if value.len() > XATTR_SIZE_MAX {
            return Err(Errno::TOOBIG);
        }
        self.ask(inode, |fs, node| {
            if let Some(kind) = acl_kind(name) {
                return self.set_acl_xattr(cred, inode, kind, value, mode);
            }
            if name == XATTR_CAPABILITY && !value.is_empty() && !is_capability(value) {
                return Err(Errno::INVAL);
            }
            self.xattr_permission(cred, inode, name, May::WRITE)?;
            match name == XATTR_CAPABILITY {
                true => self.set_capability(inode, value, mode),
                false => fs.setxattr(node, name, value, mode),
            }
        })
    }

    /// Returns the names of all extended attributes that the caller may see, each ended by a NUL.
    ///
    /// # Errors
    /// The errors of the back end.
    pub fn listxattr(&self, cred: &Cred, inode: &InodeRef<'_>) -> Result<Vec<u8>, Errno> {
        let mut names = self.ask(inode, |fs, node| fs.listxattr(node))?;
        if !cred.has(Caps::SYS_ADMIN) {
            let all = std::mem::take(&mut names);
            for name in all.split_inclusive(|&b| b == 0) {
                if !name.starts_with(b"trusted.") {
                    names.extend_from_slice(name);
                }
            }
        }
        for name in [crate::acl::XATTR_ACCESS, crate::acl::XATTR_DEFAULT] {
            let kind = acl_kind(name).expect("both are ACLs");
            if self.get_acl_xattr(inode, kind).is_ok() {
                names.extend_from_slice(name);
                names.push(0);
            }
        }
        Ok(names)
    }

    /// Removes an extended attribute.
    ///
    /// # Errors
    /// `ENODATA`; `EPERM`, `EACCES`; `EOPNOTSUPP`.
    pub fn removexattr(&self, cred: &Cred, inode: &InodeRef<'_>, name: &[u8]) -> Result<(), Errno> {
        self.ask(inode, |fs, node| {
            if let Some(kind) = acl_kind(name) {
                // Linux returns success if the ACL does not exist.
                return self.set_acl_xattr(cred, inode, kind, b"", XattrMode::Set);
            }
            self.xattr_permission(cred, inode, name, May::WRITE)?;
            fs.removexattr(node, name)
        })
    }

    /// Calls the back end for an inode. If the back end has already removed the inode, waits until
    /// its name has left the cache.
    #[inline]
    pub(super) fn ask<T>(
        &self,
        inode: &InodeRef<'_>,
        question: impl FnOnce(&dyn FileSystem, Node<'_>) -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        self.awaiting_removal(&[inode.slot], || self.with_inode(inode.slot, question))
    }

    /// Checks the rules of xattr(7). For `security.` attributes, the rules are those of Linux
    /// without a security module (`cap_inode_setxattr`). Linux also lets any caller set an empty
    /// `security.capability`; corewalk does not.
    fn xattr_permission(
        &self,
        cred: &Cred,
        inode: &InodeRef<'_>,
        name: &[u8],
        what: May,
    ) -> Result<(), Errno> {
        let Some(dot) = name.iter().position(|&b| b == b'.') else { return Err(Errno::OPNOTSUPP) };
        if name.len() > XATTR_NAME_MAX {
            return Err(Errno::RANGE);
        }
        let refused = if what == May::WRITE { Errno::PERM } else { Errno::NODATA };
        match (&name[..dot], name.len() > dot + 1) {
            (b"security", true) if what == May::WRITE => {
                let needed = if name == XATTR_CAPABILITY { Caps::SETFCAP } else { Caps::SYS_ADMIN };
                if cred.has(needed) { Ok(()) } else { Err(refused) }
            }
            (b"security" | b"system", true) => Ok(()),
            (b"trusted", true) if cred.has(Caps::SYS_ADMIN) => Ok(()),
            (b"trusted", true) => Err(refused),
            (b"user", true) => {
                let perm = self.perm(inode.slot)?;
                let is_dir = inode.kind() == FileKind::Directory;
                if inode.kind() != FileKind::Regular && !is_dir {
                    return Err(refused);
                }
                let is_owner = cred.uid == perm.uid || cred.has(Caps::FOWNER);
                if is_dir && perm.mode & mode::S_ISVTX != 0 && what == May::WRITE && !is_owner {
                    return Err(Errno::PERM);
                }
                self.permission(cred, inode.slot, what)
            }
            // The class `system.` has only a few known names, such as those of ACLs. A name without
            // a suffix fails like any unknown name of this class.
            (b"user" | b"trusted" | b"security", false) => Err(Errno::INVAL),
            _ => Err(Errno::OPNOTSUPP),
        }
    }
}

/// Counts an open of a file before the back end opens it, and undoes that if the open fails. When a
/// back end by path removes a file with opens, the file is renamed to a hidden name, so that it
/// stays usable.
struct Opening<'a>(&'a InodeRef<'a>);

impl<'a> Opening<'a> {
    fn of(inode: &'a InodeRef<'a>) -> Opening<'a> {
        if let Some(paths) = &inode.vfs.superblock(inode.slot).paths
            && paths.hides()
        {
            // Count the open under the path lock, which excludes removals of the file. A removal is
            // then complete before the count, or it sees the count and gives the file a hidden
            // name.
            let _lock = paths.lock(&inode.vfs.dcache, inode.slot, Nesting::First);
            paths.count_open(inode.slot);
        }
        Opening(inode)
    }
}

impl Drop for Opening<'_> {
    fn drop(&mut self) {
        self.0.vfs.closed(self.0);
    }
}

/// The attributes that a call makes durable besides the data, as fsync(2) or fdatasync(2) does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fsync {
    /// Data and attributes.
    All,
    /// Data, and the attributes that are needed to read the data.
    Data,
}

/// Checks the flags of a fallocate(2) call, as Linux does since 6.12. At most one operation is
/// allowed. Punching a hole needs `KEEP_SIZE`; collapsing and inserting forbid it.
fn check_together(how: Fallocate) -> Result<(), Errno> {
    let is_size_kept = how.contains(Fallocate::KEEP_SIZE);
    match how - Fallocate::KEEP_SIZE {
        Fallocate::ZERO_RANGE => Ok(()),
        Fallocate::PUNCH_HOLE if is_size_kept => Ok(()),
        Fallocate::COLLAPSE_RANGE | Fallocate::INSERT_RANGE if !is_size_kept => Ok(()),
        what if what.is_empty() => Ok(()),
        _ => Err(Errno::OPNOTSUPP),
    }
}

fn is_regular(inode: &InodeRef<'_>) -> Result<(), Errno> {
    match inode.kind() {
        FileKind::Regular => Ok(()),
        FileKind::Directory => Err(Errno::ISDIR),
        _ => Err(Errno::INVAL),
    }
}
