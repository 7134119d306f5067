//! The interface to a back end that knows its files only by path.
//!
//! [`PathFileSystem`] is the form of libfuse's high-level interface and of `fuse_mt`. [`ByPath`]
//! makes a [`FileSystem`](crate::FileSystem) of it:
//! - `files` keeps the open files, and gives each a handle.
//! - `listings` gives each name of a directory a cookie, so a back end only reports names.
//! - The cache numbers the files, keeps paths valid during a call (F.6), and gives an unlinked open
//!   file a hidden name ([`Addressing::PathOnly`](crate::Addressing::PathOnly)).
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
use crate::fs::{AclKind, Fallocate, Make, OpenFlags, RenameMode, Seek, XattrMode};

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
    /// The attributes, if the back end has them at hand. With them, `ls -l` calls no `getattr`.
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
/// root itself is the empty path. So `directory.join(path)` is the file's place in a directory of
/// the host. Four methods are required, six more make changes, and the others have a useful
/// default.
///
/// # What a back end may rely on
/// - A path leads to the same file until the call returns: the cache makes no rename or removal of
///   the file, or of a directory above it, meanwhile. So no call fails because of a rename.
/// - A file that is removed or replaced while it is open stays usable. The cache first renames it
///   to a hidden name in the root directory, and removes that name when the file is closed.
/// - Permissions are checked, umask, ACLs and set-group-ID rules are applied, and names are valid.
///   The back end must run with the rights to make each change.
/// - Two calls for the same name never overlap; all other calls do.
/// - The calls on an open file get the back end's [`PathFileSystem::File`]. A call without an open
///   file that fits opens the path again, so all open files of a path must show the same bytes.
///
/// # Inode numbers
/// A back end leaves [`Attr::ino`] at 0, and the cache numbers the files. A back end whose files
/// have hard links must report its own numbers, for all of its files. Two paths with one number and
/// one generation are two names of one file.
///
/// # Errors
/// Any method may return `EIO` if the storage fails, and `ENOENT` for a file that is gone. The
/// default of a change is `EROFS`. [`errno_of`](crate::errno_of) gives the errno of an error of the
/// standard library.
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
    /// The back end's state of an open file, `()` if it has none. It is dropped when the file is
    /// closed.
    type File: Send + Sync + 'static;

    /// Returns the attributes of the file at `path`, and does not follow a symbolic link. `ENOENT`
    /// if there is none.
    #[doc(alias = "lookup")]
    fn getattr(&self, path: &Path) -> Result<Attr, Errno>;

    /// Returns the attributes of an open file. The default calls [`PathFileSystem::getattr`]. Linux
    /// passes the open file for an lseek(2) to the end, and not for an fstat(2).
    #[doc(alias = "fgetattr")]
    fn getattr_open(&self, path: &Path, file: &Self::File) -> Result<Attr, Errno> {
        self.getattr(path)
    }

    /// Passes all entries of the directory at `path` to `sink`, in any order. `.` and `..` may be
    /// left out.
    fn readdir(&self, path: &Path, sink: &mut dyn FnMut(PathEntry<'_>)) -> Result<(), Errno>;

    /// Opens the regular file at `path`. `flags` are those of open(2) without the
    /// creation flags, `O_APPEND` and `O_DIRECT`.
    ///
    /// A call about a file that is not open, such as a write-back of the kernel's pages after the
    /// last close, opens the file for this call alone.
    fn open(&self, path: &Path, flags: u32) -> Result<Self::File, Errno>;

    /// Returns how a server treats a file that was just opened.
    fn open_flags(&self, file: &Self::File) -> OpenFlags {
        OpenFlags::empty()
    }

    /// Tells the back end that a client closes a descriptor of an open file, as
    /// [`FileSystem::flush`] does. When the last descriptor is closed, `file` is dropped later.
    ///
    /// [`FileSystem::flush`]: crate::FileSystem::flush
    fn flush(&self, path: &Path, file: &Self::File) -> Result<(), Errno> {
        Err(Errno::NOSYS)
    }

    /// Reads at `offset` into `buf` and returns the number of bytes. The number is smaller than the
    /// length of `buf` only at the end of the file.
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

    /// Writes `bytes` at the end of the file (`O_APPEND`), as [`FileSystem::append`] does. `end` is
    /// the end that the client knows. Override it if other programs append to the files.
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
    /// bytes. Each file comes with its offset. The ranges do not overlap. For `EOPNOTSUPP`, the
    /// default, a server reads and writes.
    fn copy_file_range(
        &self,
        from: (&Self::File, u64),
        to: (&Self::File, u64),
        len: u64,
    ) -> Result<u64, Errno> {
        Err(Errno::OPNOTSUPP)
    }

    /// Changes attributes, all or none, and returns the new ones.
    #[doc(alias = "chmod")]
    #[doc(alias = "chown")]
    #[doc(alias = "truncate")]
    #[doc(alias = "utimens")]
    fn setattr(&self, path: &Path, set: &SetAttr) -> Result<Attr, Errno> {
        Err(Errno::ROFS)
    }

    /// Makes a file of any kind at `path` and returns its attributes. `EEXIST` if there is one.
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

    /// Renames `from` to `to` in the way that `mode` names. A back end without
    /// [`RenameMode::NoReplace`] or [`RenameMode::Exchange`] returns `EINVAL` for it.
    fn rename(&self, from: &Path, to: &Path, mode: RenameMode) -> Result<(), Errno> {
        Err(Errno::ROFS)
    }

    /// Adds the name `to` for the file at `from`, and returns its attributes.
    fn link(&self, from: &Path, to: &Path) -> Result<Attr, Errno> {
        Err(Errno::PERM)
    }

    /// Returns the target of a symbolic link.
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
    /// then calls it from separate threads.
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

    /// Returns the offset of the next data or hole at or behind `offset`. `ENXIO` behind the end.
    #[doc(alias = "lseek")]
    fn seek(&self, path: &Path, file: &Self::File, offset: u64, what: Seek) -> Result<u64, Errno> {
        let size = self.getattr(path)?.size;
        match what {
            _ if offset >= size => Err(Errno::NXIO),
            Seek::Data => Ok(offset),
            Seek::Hole => Ok(size),
        }
    }

    /// Returns the value of an extended attribute. `ENODATA` if there is none.
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

    /// Returns an ACL of the file, or None if its mode expresses the ACL.
    fn get_acl(&self, path: &Path, kind: AclKind) -> Result<Option<Acl>, Errno> {
        Ok(None)
    }

    /// Sets an ACL, or removes it with None. An access ACL comes with the mode that it implies, and
    /// the back end changes the two at once.
    fn set_acl(
        &self,
        path: &Path,
        kind: AclKind,
        acl: Option<&Acl>,
        mode: Option<u32>,
    ) -> Result<(), Errno> {
        Err(Errno::OPNOTSUPP)
    }
}
