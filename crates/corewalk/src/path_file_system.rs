//! The interface to a back end that knows its files only by path.
//!
//! [`PathFileSystem`] is like libfuse's high-level interface and like `fuse_mt`. [`ByPath`] turns
//! it into a [`FileSystem`](crate::FileSystem):
//! - The module `files` keeps the open files and gives each of them a handle.
//! - The module `listings` gives each name in a directory a cookie, so a back end reports only
//!   names.
//! - The cache numbers the files, and keeps paths valid during a call (rule F.6 of `FileSystem`).
//!   It gives an unlinked open file a hidden name
//!   ([`Addressing::PathOnly`](crate::Addressing::PathOnly)).
//!
//! Source: libfuse `struct fuse_operations`.

mod files;
mod layer;
mod listings;

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use crate::Errno;
use crate::acl::Acl;
use crate::attr::{Attr, FileKind, SetAttr, StatFs};
use crate::fs::{
    AclKind, Fallocate, FileLock, InodeFlags, IoctlReply, Make, OpenFlags, PollEvents, PollWaker,
    RenameMode, Seek, XattrMode,
};

pub use layer::ByPath;

/// One entry of a directory, as [`PathFileSystem::readdir`] reports it.
///
/// # Examples
/// ```
/// use corewalk::{FileKind, PathEntry};
///
/// let entry = PathEntry::new("etc", FileKind::Directory).with_ino(7);
/// assert_eq!((entry.name, entry.ino), ("etc".as_ref(), 7));
/// ```
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct PathEntry<'a> {
    /// The name.
    pub name: &'a OsStr,
    /// The kind of file.
    pub kind: FileKind,
    /// The inode number, if the back end has numbers; otherwise 0.
    pub ino: u64,
    /// The attributes of the file, if the back end knows them at no extra cost. With them, `ls -l`
    /// needs no `getattr`.
    pub attr: Option<Attr>,
}

impl<'a> PathEntry<'a> {
    /// Returns an entry without a number and without attributes.
    pub fn new(name: &'a (impl AsRef<OsStr> + ?Sized), kind: FileKind) -> PathEntry<'a> {
        PathEntry { name: name.as_ref(), kind, ino: 0, attr: None }
    }

    corewalk_base::setters! {
        with_ino: ino = u64;
        with_attr: attr = impl Into<Option<Attr>>;
    }
}

/// A file system whose methods take paths. [`ByPath`] serves it.
///
/// A path is relative to the root of the file system, and has no `.`, `..` or empty components. The
/// root itself is the empty path. A back end that serves a directory of the host finds the file at
/// `directory.join(path)`. Four methods are required, and six more make changes.
///
/// # What a back end may rely on
/// - A path leads to the same file until the call returns. Until then, the cache does not rename or
///   remove the file, or a directory above it.
/// - A file that is removed or replaced while it is open stays usable. The cache first renames it
///   to a hidden name in the root directory, and removes that name when the file is closed.
/// - The kernel or the cache has checked permissions, and names are valid. The umask, ACLs and the
///   rules for the set-group-ID bit have been applied. The back end must run with the rights to
///   make each change.
/// - Two calls for the same name never overlap. All other calls may overlap.
/// - A call on an open file gets the [`PathFileSystem::File`] of that open. If its access mode does
///   not fit, or the file is not open, corewalk opens the file for this call. So all open files of
///   a path must show the same bytes.
///
/// The back end sets times and link counts, as for a [`FileSystem`](crate::FileSystem).
///
/// # Inode numbers
/// A back end leaves [`Attr::ino`] at 0, and the cache numbers the files. A back end whose files
/// have hard links must report inode numbers of its own, for all of its files. Two paths with the
/// same number and the same generation are two names of one file.
///
/// # Errors
/// The errors are those of [`FileSystem`](crate::FileSystem), with `ENOENT` if the file has been
/// removed. By default, `make`, `unlink`, `rmdir`, `rename`, `setattr` and `write` fail with
/// `EROFS`, and `link` with `EPERM`. Other features are off, as in `FileSystem`.
/// [`errno_of`](crate::errno_of) converts an error of the standard library to an errno.
///
/// # Examples
/// ```
/// use std::path::Path;
/// use std::sync::Arc;
/// use corewalk::{Attr, ByPath, Cred, Errno, FileKind, Name, PathEntry, PathFileSystem};
/// use corewalk::{Vfs, VfsOptions};
///
/// /// A directory with one file, `hello`.
/// struct Hello;
///
/// impl PathFileSystem for Hello {
///     type File = ();
///
///     fn getattr(&self, path: &Path) -> Result<Attr, Errno> {
///         match path.to_str() {
///             Some("") => Ok(Attr::dir(0)),
///             Some("hello") => Ok(Attr::file(0, 5)),
///             _ => Err(Errno::NOENT),
///         }
///     }
///
///     fn readdir(&self, _: &Path, sink: &mut dyn FnMut(PathEntry<'_>)) -> Result<(), Errno> {
///         sink(PathEntry::new("hello", FileKind::Regular));
///         Ok(())
///     }
///
///     fn open(&self, _: &Path, _flags: u32) -> Result<(), Errno> {
///         Ok(())
///     }
///
///     fn read(&self, _: &Path, _: &(), at: u64, buf: &mut [u8]) -> Result<usize, Errno> {
///         let rest = b"hello".get(at as usize..).unwrap_or_default();
///         let count = rest.len().min(buf.len());
///         buf[..count].copy_from_slice(&rest[..count]);
///         Ok(count)
///     }
/// }
///
/// let vfs = Vfs::new(Arc::new(ByPath::new(Hello)), VfsOptions::default())?;
/// let file = vfs.lookup(&Cred::root(), &vfs.root(), Name::new(b"hello")?)?;
/// let mut buf = [0; 8];
/// assert_eq!(vfs.read(&file, 0, 1, &mut buf), Ok(4));
/// assert_eq!((&buf[..4], file.path()), (&b"ello"[..], Ok(b"/hello".to_vec())));
/// # Ok::<(), Errno>(())
/// ```
#[allow(unused_variables)]
pub trait PathFileSystem: Send + Sync + 'static {
    /// The back end's state of an open file; `()` if it needs none. It is dropped when the file is
    /// closed.
    type File: Send + Sync + 'static;

    /// Returns the attributes of the file at `path`. A symbolic link is not followed. `ENOENT` if
    /// there is no such file.
    #[doc(alias = "lookup")]
    fn getattr(&self, path: &Path) -> Result<Attr, Errno>;

    /// Returns the attributes of an open file. The default calls [`PathFileSystem::getattr`], and
    /// is right for most back ends: a removed open file has a hidden path. Linux passes the open
    /// file for lseek(2) to the end, but not for fstat(2).
    #[doc(alias = "fgetattr")]
    fn getattr_open(&self, path: &Path, file: &Self::File) -> Result<Attr, Errno> {
        self.getattr(path)
    }

    /// Passes all entries of the directory at `path` to `sink`, in any order. The back end may
    /// leave out `.` and `..`.
    fn readdir(&self, path: &Path, sink: &mut dyn FnMut(PathEntry<'_>)) -> Result<(), Errno>;

    /// Opens the regular file at `path`. `flags` are those of [`FileSystem::open`], without
    /// `O_APPEND` and `O_DIRECT`.
    ///
    /// For a call about a file that is not open, the file is opened for this call alone. For
    /// example, the kernel writes pages back after the last close.
    ///
    /// [`FileSystem::open`]: crate::FileSystem::open
    fn open(&self, path: &Path, flags: u32) -> Result<Self::File, Errno>;

    /// Returns how a server treats a file that was just opened.
    fn open_flags(&self, file: &Self::File) -> OpenFlags {
        OpenFlags::empty()
    }

    /// Called when a client closes a descriptor of an open file, like [`FileSystem::flush`]. After
    /// the last descriptor is closed, `file` is dropped some time later.
    ///
    /// [`FileSystem::flush`]: crate::FileSystem::flush
    fn flush(&self, path: &Path, file: &Self::File) -> Result<(), Errno> {
        Err(Errno::NOSYS)
    }

    /// Reads at `offset` into `buf` and returns the number of bytes read. The back end fills `buf`
    /// completely, except at the end of the file.
    fn read(
        &self,
        path: &Path,
        file: &Self::File,
        offset: u64,
        buf: &mut [u8],
    ) -> Result<usize, Errno>;

    /// Writes `bytes` at `offset` and returns the number of bytes.
    fn write(
        &self,
        path: &Path,
        file: &Self::File,
        offset: u64,
        bytes: &[u8],
    ) -> Result<usize, Errno> {
        Err(Errno::ROFS)
    }

    /// Writes `bytes` at the end of the file (`O_APPEND`), like [`FileSystem::append`]. `end` is
    /// the end of the file as far as the client knows. A back end whose files other programs append
    /// to must implement this method.
    ///
    /// [`FileSystem::append`]: crate::FileSystem::append
    fn append(
        &self,
        path: &Path,
        file: &Self::File,
        end: u64,
        bytes: &[u8],
    ) -> Result<usize, Errno> {
        self.write(path, file, end, bytes)
    }

    /// Copies up to `len` bytes from one open file to another, and returns the number of copied
    /// bytes. Each file comes with the offset of its range; the ranges do not overlap. After
    /// `EOPNOTSUPP`, the default, a server copies with `read` and `write`.
    fn copy_file_range(
        &self,
        from: (&Self::File, u64),
        to: (&Self::File, u64),
        len: u64,
    ) -> Result<u64, Errno> {
        Err(Errno::OPNOTSUPP)
    }

    /// Changes attributes, all or none, and returns the new ones. ftruncate(2) calls this method
    /// too, without the open file.
    #[doc(alias = "chmod")]
    #[doc(alias = "chown")]
    #[doc(alias = "truncate")]
    #[doc(alias = "utimens")]
    fn setattr(&self, path: &Path, set: &SetAttr) -> Result<Attr, Errno> {
        Err(Errno::ROFS)
    }

    /// Makes a file of any kind at `path` and returns its attributes. `EEXIST` if a file exists at
    /// `path`.
    #[doc(alias = "mkdir")]
    #[doc(alias = "mknod")]
    #[doc(alias = "symlink")]
    #[doc(alias = "create")]
    fn make(&self, path: &Path, what: &Make<'_>) -> Result<Attr, Errno> {
        Err(Errno::ROFS)
    }

    /// Removes the name `path` of a file that is no directory.
    fn unlink(&self, path: &Path) -> Result<(), Errno> {
        Err(Errno::ROFS)
    }

    /// Removes a directory. `ENOTEMPTY` if it has entries.
    fn rmdir(&self, path: &Path) -> Result<(), Errno> {
        Err(Errno::ROFS)
    }

    /// Renames `from` to `to`. `mode` tells how to treat an existing target. A back end that does
    /// not support [`RenameMode::NoReplace`] or [`RenameMode::Exchange`] returns `EINVAL` for that
    /// mode.
    fn rename(&self, from: &Path, to: &Path, mode: RenameMode) -> Result<(), Errno> {
        Err(Errno::ROFS)
    }

    /// Makes a hard link: adds the name `to` for the file at `from`, and returns the file's
    /// attributes.
    fn link(&self, from: &Path, to: &Path) -> Result<Attr, Errno> {
        Err(Errno::PERM)
    }

    /// Returns the target of a symbolic link. For more than 4,095 bytes, a FUSE client gets
    /// `ENAMETOOLONG`.
    fn readlink(&self, path: &Path) -> Result<PathBuf, Errno> {
        Err(Errno::INVAL)
    }

    /// Returns true if calls may wait long, as [`FileSystem::waits`] does.
    ///
    /// [`FileSystem::waits`]: crate::FileSystem::waits
    fn waits(&self) -> bool {
        true
    }

    /// Returns true if [`PathFileSystem::fsync`] may wait for a disk or another machine. A server
    /// then uses separate threads.
    fn fsync_waits(&self) -> bool {
        false
    }

    /// Makes data durable, and attributes unless `data_only`.
    fn fsync(&self, path: &Path, file: &Self::File, data_only: bool) -> Result<(), Errno> {
        Ok(())
    }

    /// Makes the entries of a directory durable.
    #[doc(alias = "fsyncdir")]
    fn fsync_dir(&self, path: &Path, data_only: bool) -> Result<(), Errno> {
        Ok(())
    }

    /// Returns the values of statfs(2).
    fn statfs(&self) -> Result<StatFs, Errno> {
        Ok(StatFs::default())
    }

    /// Changes the allocation of a regular file.
    fn fallocate(
        &self,
        path: &Path,
        file: &Self::File,
        offset: u64,
        len: u64,
        how: Fallocate,
    ) -> Result<(), Errno> {
        Err(Errno::OPNOTSUPP)
    }

    /// Returns the offset of the first data or hole at `offset` or after it, like
    /// [`FileSystem::seek`]. `ENXIO` if `offset` is at the end of the file or behind it.
    ///
    /// [`FileSystem::seek`]: crate::FileSystem::seek
    #[doc(alias = "lseek")]
    fn seek(&self, path: &Path, file: &Self::File, offset: u64, what: Seek) -> Result<u64, Errno> {
        let size = self.getattr(path)?.size;
        match what {
            _ if offset >= size => Err(Errno::NXIO),
            Seek::Data => Ok(offset),
            Seek::Hole => Ok(size),
        }
    }

    /// Returns the whole value of an extended attribute, like [`FileSystem::getxattr`]. `ENODATA`
    /// if the file has no such attribute.
    ///
    /// [`FileSystem::getxattr`]: crate::FileSystem::getxattr
    fn getxattr(&self, path: &Path, name: &OsStr) -> Result<Vec<u8>, Errno> {
        Err(Errno::OPNOTSUPP)
    }

    /// Sets an extended attribute.
    fn setxattr(
        &self,
        path: &Path,
        name: &OsStr,
        value: &[u8],
        mode: XattrMode,
    ) -> Result<(), Errno> {
        Err(Errno::OPNOTSUPP)
    }

    /// Returns the names of all extended attributes, each ended by a NUL.
    fn listxattr(&self, path: &Path) -> Result<Vec<u8>, Errno> {
        Ok(Vec::new())
    }

    /// Removes an extended attribute. `ENODATA` if there is none.
    fn removexattr(&self, path: &Path, name: &OsStr) -> Result<(), Errno> {
        Err(Errno::OPNOTSUPP)
    }

    /// Returns an ACL of the file. None if there is no such ACL, or if the mode alone expresses it.
    fn get_acl(&self, path: &Path, kind: AclKind) -> Result<Option<Acl>, Errno> {
        Ok(None)
    }

    /// Sets an ACL of the file. If `acl` is None, removes the ACL. `mode` is the mode that an
    /// access ACL implies. The back end changes both in one step.
    fn set_acl(
        &self,
        path: &Path,
        kind: AclKind,
        acl: Option<&Acl>,
        mode: Option<u32>,
    ) -> Result<(), Errno> {
        Err(Errno::OPNOTSUPP)
    }

    /// Returns true if the back end manages locks, like [`FileSystem::has_locks`].
    ///
    /// [`FileSystem::has_locks`]: crate::FileSystem::has_locks
    fn has_locks(&self) -> bool {
        false
    }

    /// Returns a lock of another owner that conflicts with `lock`, if there is one.
    #[doc(alias = "lock")]
    fn get_lock(
        &self,
        path: &Path,
        file: &Self::File,
        lock: &FileLock,
    ) -> Result<Option<FileLock>, Errno> {
        Err(Errno::NOSYS)
    }

    /// Takes, changes or drops a lock, and does not wait, like [`FileSystem::set_lock`].
    ///
    /// [`FileSystem::set_lock`]: crate::FileSystem::set_lock
    #[doc(alias = "flock")]
    fn set_lock(&self, path: &Path, file: &Self::File, lock: &FileLock) -> Result<(), Errno> {
        Err(Errno::NOSYS)
    }

    /// Drops all locks of `owner` on an open file, like [`FileSystem::unlock_owner`].
    ///
    /// [`FileSystem::unlock_owner`]: crate::FileSystem::unlock_owner
    fn unlock_owner(
        &self,
        path: &Path,
        file: &Self::File,
        owner: u64,
        is_flock: bool,
    ) -> Result<(), Errno> {
        Err(Errno::NOSYS)
    }

    /// Returns the inode flags of a file, like [`FileSystem::inode_flags`].
    ///
    /// [`FileSystem::inode_flags`]: crate::FileSystem::inode_flags
    fn inode_flags(&self, path: &Path) -> Result<InodeFlags, Errno> {
        Err(Errno::NOTTY)
    }

    /// Sets the inode flags of a file, like [`FileSystem::set_inode_flags`].
    ///
    /// [`FileSystem::set_inode_flags`]: crate::FileSystem::set_inode_flags
    fn set_inode_flags(&self, path: &Path, flags: InodeFlags) -> Result<(), Errno> {
        Err(Errno::NOTTY)
    }

    /// Serves any other ioctl(2), like [`FileSystem::ioctl`]. `file` is the open file, if the
    /// client has opened a regular file.
    ///
    /// [`FileSystem::ioctl`]: crate::FileSystem::ioctl
    fn ioctl(
        &self,
        path: &Path,
        file: Option<&Self::File>,
        command: u32,
        input: &[u8],
    ) -> Result<IoctlReply, Errno> {
        Err(Errno::NOTTY)
    }

    /// Returns the events that an open file has now, like [`FileSystem::poll`].
    ///
    /// [`FileSystem::poll`]: crate::FileSystem::poll
    fn poll(
        &self,
        path: &Path,
        file: &Self::File,
        wanted: PollEvents,
        waker: Option<PollWaker>,
    ) -> Result<PollEvents, Errno> {
        Err(Errno::NOSYS)
    }
}
