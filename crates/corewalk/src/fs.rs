//! The interface to a back end: the trait that a file system implements.
//!
//! A [`FileSystem`] is a back end that stores files. Its methods get one name at a time. The cache
//! handles path walks, permission checks, missing names, mounts and reference counts.
//!
//! The documentation of [`FileSystem`] contains the rules F.1 to F.6, because this module is
//! private.
//!
//! Source: Linux `struct inode_operations`. In other implementations, one slow call of the back end
//! stopped the others (traps P6 and P7 in `traps.md`).

mod calls;
mod leases;
mod lock;
mod node;
mod values;

use std::os::fd::OwnedFd;
use std::sync::Arc;

use crate::Errno;
use crate::acl::Acl;
use crate::attr::{Attr, SetAttr, StatFs};
use crate::name::Name;

pub use calls::{InodeFlags, IoctlReply, PollEvents, PollWaker};
pub use leases::{ClientCache, Leases};
pub use lock::{FileLock, LockKind};
pub use node::Node;
pub(crate) use node::PathSource;
pub use values::{
    AclKind, DirEntry, DirSink, Fallocate, OpenFlags, Opened, RenameMode, Seek, XattrMode,
};

/// How a back end identifies the file of a call. A back end whose files have numbers chooses
/// `Number`. Any other chooses `Path` if it can keep a removed file usable, and else `PathOnly`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Addressing {
    /// The back end finds a file by its inode number. [`Node::path`] fails with `EOPNOTSUPP`.
    #[default]
    Number,
    /// The back end finds a file by its path, while the file has a name. After the last name is
    /// removed, the back end itself must keep the file usable until `forget` (rule F.4), for
    /// example with an open descriptor.
    Path,
    /// The back end finds a file only by its path, so a file keeps a name while it is in use. An
    /// unlinked open file gets a hidden name in the root directory until it is closed, and a
    /// replaced file until it is forgotten. [`ByPath`](crate::ByPath) uses this variant.
    ///
    /// The back end gets a `rename` or a `link` to the hidden name, and later a `remove`. If it
    /// refuses both `rename` and `link`, the file is removed immediately, and later calls for it
    /// fail with `ESTALE`.
    PathOnly,
}

/// A new file with its initial attributes.
///
/// # Examples
/// ```
/// use corewalk::{Make, attr::mode};
///
/// let link = Make::new(mode::S_IFLNK | 0o777, 1000, 1000).with_target(b"to/where");
/// assert_eq!(link.target, b"to/where");
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Make<'a> {
    /// Type bits and permission bits, after the umask, ACL inheritance and the rules for the
    /// set-group-ID bit have been applied.
    pub mode: u32,
    /// The permission bits to clear (umask(2)). They are cleared in `mode` before the back end is
    /// called, unless the directory has a default ACL. A back end ignores this field.
    pub umask: u32,
    /// The owner.
    pub uid: u32,
    /// The group.
    pub gid: u32,
    /// The device number of a device node.
    pub rdev: u64,
    /// The target of a symbolic link; empty otherwise.
    pub target: &'a [u8],
    /// The access ACL that the file inherits from the default ACL of the directory. None if there
    /// is no default ACL, or if `mode` alone expresses the access ACL.
    pub access_acl: Option<Acl>,
    /// The inherited default ACL of a new directory.
    pub default_acl: Option<Acl>,
    /// The flags of open(2), if the client opens the file right after its creation. A back end may
    /// use them to create and open the file in one step. The back end then keeps the open file for
    /// the `open` call that follows.
    pub open: Option<u32>,
}

impl<'a> Make<'a> {
    /// Returns a new file with `mode`, owned by `uid` and `gid`, with a umask of 0. A mode without
    /// type bits means a regular file.
    ///
    /// # Examples
    /// ```
    /// # use corewalk::tmpfs::{Tmpfs, TmpfsOptions};
    /// # use corewalk::{FileKind, FileSystem, Make, Name, Node};
    /// # let fs = Tmpfs::new(TmpfsOptions::default());
    /// let root = Node::detached(fs.root()?.ino, FileKind::Directory);
    /// let attr = fs.make(root, Name::new(b"f")?, &Make::new(0o644, 1000, 100))?;
    /// assert_eq!((attr.kind(), attr.uid, attr.gid), (FileKind::Regular, 1000, 100));
    /// # Ok::<(), corewalk::Errno>(())
    /// ```
    pub fn new(mode: u32, uid: u32, gid: u32) -> Make<'a> {
        let (access_acl, default_acl) = (None, None);
        let (umask, rdev, target, open) = (0, 0, b"", None);
        Make { mode, umask, uid, gid, rdev, target, access_acl, default_acl, open }
    }

    corewalk_base::setters! {
        with_umask: umask = u32;
        with_rdev: rdev = u64;
        with_target: target = &'a [u8];
        with_access_acl: access_acl = impl Into<Option<Acl>>;
        with_default_acl: default_acl = impl Into<Option<Acl>>;
        with_open: open = impl Into<Option<u32>>;
    }
}

/// A file system that corewalk serves.
///
/// `open` and `opendir` return a handle of 64 bits. Calls through the open file (`read`, `write`,
/// `fsync`, `flush` and so on) get the handle in [`Node::handle`]. `setattr` gets the handle for
/// ftruncate(2), and `getattr` in some cases. Linux passes no handle for fstat(2) and fchmod(2). A
/// back end without open state keeps the default `open` and ignores handles.
///
/// Below, the *cache* is the [`Vfs`](crate::Vfs) that calls the back end, and a *client* is a
/// process that uses the files.
///
/// # What a back end may rely on
/// - F.1: two calls for the same name in the same directory never overlap, lookups included. Calls
///   for different names may overlap.
/// - F.2: during a call, the cache holds only path locks (rule F.6) and the in-lookup and attribute
///   locks of the call's names and inodes. So a slow call delays only operations that need its
///   answer. A panic in a call reaches the server, and waiting threads go on. A panic in a `forget`
///   during unwinding is caught.
/// - F.3: the kernel or the cache has checked permissions, names are valid, and the kind of file
///   fits the call. For example, `read` gets a regular file.
/// - F.4: each time an inode enters the cache, `forget` is called once, after the last use of the
///   inode. An inode enters the cache when `root`, `lookup`, `make`, `link` or `by_number` returns
///   it and the cache does not have it. It may also enter when `readdir` reports it with
///   attributes. An inode without links stays usable until `forget`. Two generations of one number
///   are two inodes. Each of them is forgotten, in any order. At the end of the server, the inodes
///   in the cache are not forgotten. So a back end that keeps unlinked files on a disk removes them
///   when it is dropped, or at its next start.
/// - F.5: calls of `setattr` and `set_acl` for one inode do not overlap.
/// - F.6: a path from [`Node::path`] stays valid until the call returns. Until then, the back end
///   gets no rename or removal of that file or of a directory above it. If such a rename or removal
///   is already in progress, `path` waits for it. Renames of other files are not delayed.
///
/// # What a back end must do
/// - It never reuses a pair of `ino` and `generation` for another file within the mount. Otherwise
///   an old file handle would lead to the new file. A back end without inode numbers reports 0 for
///   all of its files. Then the cache numbers the files, and no file may have two names.
/// - A call that fails changes nothing.
/// - It keeps times and link counts as the man pages say. For example, `write` sets the
///   modification and change times, and `make`, `remove` and `rename` also set those of the
///   directory. The back end decides whether a read sets the access time. It need not clear
///   set-user-ID and set-group-ID: it gets a `setattr` for that.
/// - If `readdir` reports an entry with attributes, later calls may use its inode without a
///   `lookup`. The cache may also ignore the attributes, without a `forget`. So a back end that
///   keeps state per looked-up inode reports none.
/// - During a call, the back end must not call the `Vfs` for the names of that call. It must not
///   change the attributes of the call's inode through the `Vfs` either. Between [`Node::path`] and
///   the end of the call it must not call the `Vfs` at all.
///
/// # Errors
/// Any method may return `EIO` if the storage fails, and `ESTALE` for an inode that does not exist
/// any more. A back end by path may return `ENOENT` instead, which the cache turns into `ESTALE`.
/// Each method lists only the errors that the cache cannot detect itself.
///
/// By default, `make`, `remove`, `rename`, `setattr` and `write` fail with `EROFS`, and `link` with
/// `EPERM`. `listxattr` and `get_acl` find nothing. Other features fail with `EOPNOTSUPP`, except
/// locks, `flush` and `poll` (`ENOSYS`), inode flags and `ioctl` (`ENOTTY`).
///
/// # Examples
/// A read-only back end implements six methods:
/// ```
/// use corewalk::{Attr, Cred, DirEntry, DirSink, Errno, FileSystem, Make, Name, Node};
/// use corewalk::{Removal, RenameMode, SetAttr, StatFs, Vfs, VfsOptions};
/// use std::sync::Arc;
///
/// const TEXT: &[u8] = b"hello";
///
/// /// A directory with one file, `hello`.
/// struct Hello;
///
/// impl FileSystem for Hello {
///     fn root(&self) -> Result<Attr, Errno> {
///         Ok(Attr::dir(1))
///     }
///
///     fn lookup(&self, _: Node<'_>, name: Name<'_>) -> Result<Attr, Errno> {
///         if name.as_bytes() == TEXT { Ok(Attr::file(2, 5)) } else { Err(Errno::NOENT) }
///     }
///
///     fn getattr(&self, node: Node<'_>) -> Result<Attr, Errno> {
///         Ok(if node.ino() == 1 { Attr::dir(1) } else { Attr::file(2, 5) })
///     }
///
///     fn readdir(&self, _: Node<'_>, cookie: u64, sink: &mut DirSink<'_>) -> Result<(), Errno> {
///         if cookie == 0 {
///             let _ = sink(DirEntry::from_attr(Name::new(TEXT)?, Attr::file(2, 5), 1));
///         }
///         Ok(())
///     }
///
///     fn read(&self, _: Node<'_>, at: u64, buf: &mut [u8]) -> Result<usize, Errno> {
///         let rest = TEXT.get(at as usize..).unwrap_or_default();
///         let count = rest.len().min(buf.len());
///         buf[..count].copy_from_slice(&rest[..count]);
///         Ok(count)
///     }
///
///     fn statfs(&self) -> Result<StatFs, Errno> {
///         Ok(StatFs::default().with_files(2))
///     }
/// }
///
/// let vfs = Vfs::new(Arc::new(Hello), VfsOptions::default())?;
/// let (cred, root) = (Cred::root(), vfs.root());
/// let (name, new) = (Name::new(TEXT)?, Name::new(b"new")?);
/// let file = vfs.lookup(&cred, &root, name)?;
/// let mut buf = [0; 8];
/// assert_eq!(vfs.read(&file, 0, 1, &mut buf), Ok(4));
/// assert_eq!(&buf[..4], b"ello");
/// let read_only = Some(Errno::ROFS);
/// assert_eq!(vfs.make(&cred, &root, new, Make::new(0o644, 0, 0)).err(), read_only);
/// assert_eq!(vfs.remove(&cred, &root, name, Removal::Unlink).err(), read_only);
/// let renamed = vfs.rename(&cred, (&root, name), (&root, new), RenameMode::Replace);
/// assert_eq!(renamed.err(), read_only);
/// let chmod = SetAttr::default().with_mode(0o600);
/// assert_eq!(vfs.setattr(&cred, &file, &chmod).err(), read_only);
/// assert_eq!(vfs.write(&cred, &file, 0, 0, TEXT).err(), read_only);
/// # Ok::<(), Errno>(())
/// ```
#[allow(unused_variables)]
pub trait FileSystem: Send + Sync + 'static {
    /// Returns how the back end identifies files. Called once, when the file system is mounted.
    fn addressing(&self) -> Addressing {
        Addressing::Number
    }

    /// Returns the attributes of the root directory.
    fn root(&self) -> Result<Attr, Errno>;

    /// Looks up `name` in the directory `dir`, and returns the attributes of the file. `ENOENT` if
    /// there is no such name, or if `dir` was removed.
    fn lookup(&self, dir: Node<'_>, name: Name<'_>) -> Result<Attr, Errno>;

    /// Returns the attributes of the inode with the number `ino`, for a client with a file handle.
    /// The cache may know no name of this inode. `ESTALE` if the inode does not exist, or has no
    /// name any more.
    ///
    /// `generation`, if given, is the generation that the inode must have. A FUSE client gives
    /// none: the back end returns the current inode with this number, and the kernel compares the
    /// generations.
    ///
    /// A back end with this method must also implement [`FileSystem::parent`]. Its other methods
    /// may get [nodes](Node) without a path.
    ///
    /// # Examples
    /// ```
    /// # use std::collections::HashMap;
    /// # use corewalk::{Attr, Errno, FileKind, Node};
    /// /// The attributes of each inode, and the number of its parent, by number.
    /// type Inodes = HashMap<u64, (Attr, u64)>;
    ///
    /// fn by_number(all: &Inodes, ino: u64, generation: Option<u64>) -> Result<Attr, Errno> {
    ///     let (attr, _) = all.get(&ino).ok_or(Errno::STALE)?;
    ///     let is_it = attr.nlink > 0 && generation.is_none_or(|it| it == attr.generation);
    ///     if is_it { Ok(*attr) } else { Err(Errno::STALE) }
    /// }
    ///
    /// fn parent(all: &Inodes, dir: Node<'_>) -> Result<u64, Errno> {
    ///     all.get(&dir.ino()).map(|(_, parent)| *parent).ok_or(Errno::STALE)
    /// }
    /// # let all = HashMap::from([(7, (Attr::dir(7), 1))]);
    /// # assert_eq!(by_number(&all, 7, Some(1)).err(), Some(Errno::STALE));
    /// # assert_eq!(parent(&all, Node::detached(7, FileKind::Directory)), Ok(1));
    /// ```
    #[doc(alias = "fh_to_dentry")]
    fn by_number(&self, ino: u64, generation: Option<u64>) -> Result<Attr, Errno> {
        Err(Errno::STALE)
    }

    /// Returns the inode number of the parent of the directory `dir`. The parent of the root is the
    /// root itself. Called only for inodes from [`FileSystem::by_number`]. `ESTALE` for a removed
    /// directory.
    #[doc(alias = "get_parent")]
    fn parent(&self, dir: Node<'_>) -> Result<u64, Errno> {
        Err(Errno::STALE)
    }

    /// Returns the attributes of `node`. The cache ignores their generation.
    fn getattr(&self, node: Node<'_>) -> Result<Attr, Errno>;

    /// Makes all changes of attributes in `set`, or none of them, and returns the new attributes. A
    /// new mode also changes an access ACL, as chmod(2) does. A new size may fail with `EFBIG` or
    /// `ENOSPC`.
    fn setattr(&self, node: Node<'_>, set: &SetAttr) -> Result<Attr, Errno> {
        Err(Errno::ROFS)
    }

    /// Makes a new file of any kind. May fail with `EEXIST` or `ENOSPC`, or with `ENOENT` if `dir`
    /// was removed.
    fn make(&self, dir: Node<'_>, name: Name<'_>, what: &Make<'_>) -> Result<Attr, Errno> {
        Err(Errno::ROFS)
    }

    /// Removes the name `name` of `node` in `dir`. `ENOTEMPTY` for a directory that is not empty.
    /// After a directory is removed, no file can be made in it.
    fn remove(&self, dir: Node<'_>, name: Name<'_>, node: Node<'_>) -> Result<(), Errno> {
        Err(Errno::ROFS)
    }

    /// Renames `from` to `to`. `mode` tells how to treat an existing target. The cache has checked
    /// that the rename makes no loop, that the kinds of files fit, and that no name is `.` or `..`.
    /// `ENOENT` if `from` does not exist; `EEXIST` as `mode` says; `ENOTEMPTY` for a target
    /// directory that is not empty; `EINVAL` for an unsupported mode; `ENOSPC`, `EMLINK`, `EXDEV`.
    ///
    /// If the cache does not know the target, it first uses [`RenameMode::NoReplace`]. After
    /// `EEXIST` it looks `to` up and calls `rename` with [`RenameMode::Replace`]. A back end
    /// without [`RenameMode::NoReplace`] returns `EINVAL` or `ENOSYS`, with the same effect.
    fn rename(
        &self,
        from: (Node<'_>, Name<'_>),
        to: (Node<'_>, Name<'_>),
        mode: RenameMode,
    ) -> Result<(), Errno> {
        Err(Errno::ROFS)
    }

    /// Reports the entries of `dir` after the position `cookie` to `sink`, in a fixed order. Stops
    /// at the end, or when `sink` returns `Break`. An entry that exists during a whole listing,
    /// from cookie 0 to the end, is reported exactly once, however other entries change.
    ///
    /// `readdir` may return after any entry, for example at the end of a storage block. The cache
    /// then continues with the cookie of the last entry. A call without entries ends the listing.
    fn readdir(&self, dir: Node<'_>, cookie: u64, sink: &mut DirSink<'_>) -> Result<(), Errno>;

    /// Reads at `offset` into `buf` and returns the number of bytes read. The back end fills `buf`
    /// completely, except at the end of the file or if the file is open with
    /// [`OpenFlags::DIRECT_IO`].
    fn read(&self, node: Node<'_>, offset: u64, buf: &mut [u8]) -> Result<usize, Errno>;

    /// Writes `bytes` at `offset` and returns the number of bytes written. May fail with `ENOSPC`
    /// or `EFBIG`.
    fn write(&self, node: Node<'_>, offset: u64, bytes: &[u8]) -> Result<usize, Errno> {
        Err(Errno::ROFS)
    }

    /// Writes `bytes` at the current end of the file (`O_APPEND`) and returns the number of bytes
    /// written. `end` is the end of the file as far as the client knows. May fail with `ENOSPC` or
    /// `EFBIG`.
    ///
    /// A server calls this method only if other programs may change the files. Such a back end must
    /// find the end and write there in one step. The default writes at `end`, which is right if
    /// only this client changes the file, because the client serializes its appends.
    ///
    /// Appending is a property of the call, not of the open file. fcntl(2) can change `O_APPEND`,
    /// and the client's writeback through the same handle has its own offsets.
    fn append(&self, node: Node<'_>, end: u64, bytes: &[u8]) -> Result<usize, Errno> {
        self.write(node, end, bytes)
    }

    /// Adds the name `name` in `dir` for the file `node`, and returns the attributes of the file.
    /// May fail with `EMLINK`, `EEXIST` or `ENOSPC`. The default is `EPERM`: there are no hard
    /// links.
    fn link(&self, node: Node<'_>, dir: Node<'_>, name: Name<'_>) -> Result<Attr, Errno> {
        Err(Errno::PERM)
    }

    /// Returns the target of a symbolic link. For more than 4,095 bytes, a FUSE client gets
    /// `ENAMETOOLONG`.
    fn readlink(&self, node: Node<'_>) -> Result<Vec<u8>, Errno> {
        Err(Errno::INVAL)
    }

    /// Makes a regular file without a name (`O_TMPFILE`). A later call of `link` can give the file
    /// a name.
    fn tmpfile(&self, dir: Node<'_>, what: &Make<'_>) -> Result<Attr, Errno> {
        Err(Errno::OPNOTSUPP)
    }

    /// Opens a file. May fail with `EACCES`, `EMFILE` or `ENFILE`. A back end that returns
    /// [`OpenFlags`] must also implement [`FileSystem::has_open_state`].
    ///
    /// `flags` are those of open(2) without `O_CREAT`, `O_EXCL`, `O_NOCTTY` and `O_TRUNC`. A
    /// truncation comes as a `setattr` of the size. Unknown bits may be set, so mask the flags
    /// before you pass them to openat2(2).
    fn open(&self, node: Node<'_>, flags: u32) -> Result<Opened, Errno> {
        Ok(Opened::default())
    }

    /// Returns true if the back end keeps state per open file. Otherwise a server may skip `open`
    /// and `release`, except for a back end with [`Addressing::PathOnly`], where the cache must
    /// know which files are open.
    fn has_open_state(&self) -> bool {
        false
    }

    /// Returns true if the back end has files of the host for passthrough. Then some open files
    /// have their content in a file of the host, which [`FileSystem::backing_file`] returns.
    fn has_backing_files(&self) -> bool {
        false
    }

    /// Returns the file of the host that has the content of the open file [`Node::handle`], if
    /// there is one.
    ///
    /// A server calls this at the first open of an inode, and the answer holds until the inode is
    /// not open any more. If the kernel accepts the file (FUSE passthrough), it opens the file
    /// again for each client. The kernel uses the rights of the server and the flags of the client.
    /// The access mode of the returned descriptor does not matter. The kernel then reads and writes
    /// the file directly, and calls `read` and `write` only for files with
    /// [`OpenFlags::DIRECT_IO`].
    fn backing_file(&self, node: Node<'_>) -> Option<Arc<OwnedFd>> {
        None
    }

    /// Lets the back end report an error, such as that of an earlier write, when a client closes a
    /// descriptor of an open file. The error becomes that of close(2). After dup(2) or fork(2) an
    /// open file has several descriptors, so this method may be called several times. The default
    /// is `ENOSYS`: the back end needs no such calls, and a server may skip them.
    fn flush(&self, node: Node<'_>) -> Result<(), Errno> {
        Err(Errno::NOSYS)
    }

    /// Opens a directory for a listing, if the back end keeps state per listing. `readdir`, `fsync`
    /// and `releasedir` get the handle in [`Node::handle`]. A server may skip this call if
    /// [`FileSystem::has_open_state`] returns false.
    fn opendir(&self, dir: Node<'_>) -> Result<Opened, Errno> {
        Ok(Opened::default())
    }

    /// Closes a handle of `opendir`.
    fn releasedir(&self, dir: Node<'_>) {}

    /// Closes a handle of `open`.
    fn release(&self, node: Node<'_>) {}

    /// Returns true if calls of the back end may wait long, for example for another machine. A
    /// server then lets any idle thread take the next request. Otherwise it may bind the requests
    /// of a processor to one thread, which is faster. [`FileSystem::fsync_waits`] tells the same
    /// about `fsync`.
    fn waits(&self) -> bool {
        true
    }

    /// Returns true if `fsync` may wait for a disk or another machine. A server then calls it from
    /// separate threads.
    fn fsync_waits(&self) -> bool {
        false
    }

    /// Makes the data of a file durable. Unless `data_only` is true, makes its attributes durable
    /// too.
    fn fsync(&self, node: Node<'_>, data_only: bool) -> Result<(), Errno> {
        Ok(())
    }

    /// Returns the values of statfs(2).
    fn statfs(&self) -> Result<StatFs, Errno>;

    /// Allocates or frees blocks of a regular file, as fallocate(2) does. May fail with `ENOSPC`,
    /// `EFBIG` or `EOPNOTSUPP`.
    fn fallocate(
        &self,
        node: Node<'_>,
        offset: u64,
        len: u64,
        how: Fallocate,
    ) -> Result<(), Errno> {
        Err(Errno::OPNOTSUPP)
    }

    /// Copies up to `len` bytes from one file to another, and returns the number of copied bytes.
    /// Each file comes with the offset of its range; the ranges do not overlap. After `EOPNOTSUPP`,
    /// the default, or `EXDEV`, a server copies with `read` and `write`.
    fn copy_file_range(
        &self,
        from: (Node<'_>, u64),
        to: (Node<'_>, u64),
        len: u64,
    ) -> Result<u64, Errno> {
        Err(Errno::OPNOTSUPP)
    }

    /// Returns the offset of the first data or hole at `offset` or after it. `ENXIO` if `offset` is
    /// at the end of the file or behind it, and for [`Seek::Data`] if no data follows. A FUSE
    /// server with a write-back cache does not call this method.
    fn seek(&self, node: Node<'_>, offset: u64, what: Seek) -> Result<u64, Errno> {
        let size = self.getattr(node)?.size;
        match what {
            _ if offset >= size => Err(Errno::NXIO),
            Seek::Data => Ok(offset),
            Seek::Hole => Ok(size),
        }
    }

    /// Returns the whole value of an extended attribute. The back end need not know the size of the
    /// client's buffer: the server compares the two (`ERANGE`). `ENODATA` if the file has no such
    /// attribute.
    fn getxattr(&self, node: Node<'_>, name: &[u8]) -> Result<Vec<u8>, Errno> {
        Err(Errno::OPNOTSUPP)
    }

    /// Sets an extended attribute. May fail with `EEXIST`, `ENODATA` or `ENOSPC`, and with
    /// `EOPNOTSUPP` for an unsupported name. The cache has checked the lengths of name and value.
    fn setxattr(
        &self,
        node: Node<'_>,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
    ) -> Result<(), Errno> {
        Err(Errno::OPNOTSUPP)
    }

    /// Returns the names of all extended attributes, each ended by a NUL. The server compares the
    /// answer with the client's buffer.
    fn listxattr(&self, node: Node<'_>) -> Result<Vec<u8>, Errno> {
        Ok(Vec::new())
    }

    /// Removes an extended attribute. `ENODATA` if there is none.
    fn removexattr(&self, node: Node<'_>, name: &[u8]) -> Result<(), Errno> {
        Err(Errno::OPNOTSUPP)
    }

    /// Returns the access ACL or the default ACL of `node`. None if there is no such ACL, or if the
    /// mode alone expresses it. Reads of the `system.posix_acl_*` attributes use this method.
    /// `ls -l` reads the access ACL of each file that it shows, so this method should be cheap.
    fn get_acl(&self, node: Node<'_>, kind: AclKind) -> Result<Option<Acl>, Errno> {
        Ok(None)
    }

    /// Sets an ACL of a file. None removes it. `mode` is the mode that an access ACL implies. The
    /// back end changes both in one step. May fail with `ENOSPC`.
    fn set_acl(
        &self,
        node: Node<'_>,
        kind: AclKind,
        acl: Option<&Acl>,
        mode: Option<u32>,
    ) -> Result<(), Errno> {
        Err(Errno::OPNOTSUPP)
    }

    /// Returns true if the back end manages locks, because other machines or other programs lock
    /// the files too. If false, the kernel manages the locks of this mount, and a server calls
    /// neither `get_lock` nor `set_lock` nor `unlock_owner`.
    fn has_locks(&self) -> bool {
        false
    }

    /// Returns a lock of another owner that conflicts with `lock`, if there is one.
    fn get_lock(&self, node: Node<'_>, lock: &FileLock) -> Result<Option<FileLock>, Errno> {
        Err(Errno::NOSYS)
    }

    /// Takes, changes or drops a lock, as `lock.kind` says; see [`FileLock`]. `EAGAIN` if another
    /// owner has a lock that conflicts, `ENOLCK` if there are too many locks. The method does not
    /// wait for that lock. If the client waits, the server calls this method again later, first
    /// after a few milliseconds. After the server has seen an unlock of the same file, it calls the
    /// method immediately.
    fn set_lock(&self, node: Node<'_>, lock: &FileLock) -> Result<(), Errno> {
        Err(Errno::NOSYS)
    }

    /// Drops all locks of `owner` on a file. Called for locks of fcntl(2) when a process closes the
    /// file, and for locks of flock(2) when the open file is closed.
    fn unlock_owner(&self, node: Node<'_>, owner: u64, is_flock: bool) -> Result<(), Errno> {
        Err(Errno::NOSYS)
    }

    /// Returns the inode flags, which lsattr(1) shows. `ENOTTY`, the default, if files have none.
    #[doc(alias = "FS_IOC_GETFLAGS")]
    fn inode_flags(&self, node: Node<'_>) -> Result<InodeFlags, Errno> {
        Err(Errno::NOTTY)
    }

    /// Sets the inode flags, as chattr(1) does. The server has checked that the client owns the
    /// file, and that it has `CAP_LINUX_IMMUTABLE` if it changes [`InodeFlags::IMMUTABLE`] or
    /// [`InodeFlags::APPEND`]. `EOPNOTSUPP` for a flag that the back end does not have.
    #[doc(alias = "FS_IOC_SETFLAGS")]
    fn set_inode_flags(&self, node: Node<'_>, flags: InodeFlags) -> Result<(), Errno> {
        Err(Errno::NOTTY)
    }

    /// Serves any other ioctl(2) on a regular file or a directory. `command` tells the size and the
    /// direction of the argument (`_IOR`, `_IOW`). `input` is the argument. The answer has at most
    /// as many bytes as the argument. `ENOTTY`, the default, for an unknown command.
    ///
    /// The caches do not know which commands change a file. If a command changes the size or other
    /// attributes, report the file with a time to live of 0 ([`Attr::ttl`]).
    ///
    /// # Examples
    /// ```
    /// use corewalk::{Errno, IoctlReply};
    /// use rustix::ioctl::opcode;
    ///
    /// /// `_IOR('E', 0, size_t)`.
    /// const GET_SIZE: u32 = opcode::read::<usize>(b'E', 0);
    ///
    /// fn ioctl(size: usize, command: u32) -> Result<IoctlReply, Errno> {
    ///     match command {
    ///         GET_SIZE => Ok(IoctlReply::new(size.to_ne_bytes().to_vec())),
    ///         _ => Err(Errno::NOTTY),
    ///     }
    /// }
    ///
    /// assert_eq!(ioctl(7, GET_SIZE).unwrap().output, 7_usize.to_ne_bytes());
    /// ```
    fn ioctl(&self, node: Node<'_>, command: u32, input: &[u8]) -> Result<IoctlReply, Errno> {
        Err(Errno::NOTTY)
    }

    /// Returns the events that the file has now: those of `wanted`, and also `ERR` and `HUP`. If
    /// `waker` is given, the back end keeps it until the file has new events, and then wakes it
    /// ([`PollWaker`] has an example).
    ///
    /// The default is `ENOSYS`: reads and writes of this back end's files never wait. The server
    /// then need not ask again. An example of a file system that needs this method is lxcfs.
    fn poll(
        &self,
        node: Node<'_>,
        wanted: PollEvents,
        waker: Option<PollWaker>,
    ) -> Result<PollEvents, Errno> {
        Err(Errno::NOSYS)
    }

    /// Tells the back end that the cache has dropped an inode, so that the back end can free its
    /// state for the inode. Called once for each time that the inode entered the cache (rule F.4).
    fn forget(&self, ino: u64, generation: u64) {}

    /// Returns the `Leases` of a back end that decides how long clients keep its answers. The
    /// default is None: the options of the server decide.
    fn leases(&self) -> Option<&dyn Leases> {
        None
    }

    /// Does deferred work of the back end. A server calls this method about once per second, from a
    /// thread that serves no requests. A back end must also work without these calls, but may then
    /// use more memory.
    fn maintain(&self) {}

    /// Calls `sink` with each counter of the back end: its name and its value.
    fn counters(&self, sink: &mut dyn FnMut(&'static str, u64)) {}
}
