//! The interface to an asynchronous back end.

use std::future::Future;
use std::pin::Pin;

use bytes::Bytes;
use corewalk::{
    Attr, Errno, Fallocate, FileKind, FileLock, Make, Name, Opened, Removal, RenameMode, SetAttr,
    StatFs, XattrMode,
};

use super::AsyncNode;

/// The future that serves one request. The server passes it to [`Spawn::spawn`].
pub type BoxedFuture = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Runs futures on a runtime. Every closure that takes a [`BoxedFuture`] implements this trait.
///
/// # Examples
/// ```
/// use corewalk_fuse::{BoxedFuture, Spawn};
///
/// fn on(runtime: tokio::runtime::Handle) -> impl Spawn {
///     move |future: BoxedFuture| drop(runtime.spawn(future))
/// }
/// ```
pub trait Spawn: Send + Sync + 'static {
    /// Makes the runtime run `future` to its end, and does not wait for that. A runtime that is
    /// shut down may drop the future. The request then fails with `EIO`.
    fn spawn(&self, future: BoxedFuture);
}

impl<S: Fn(BoxedFuture) + Send + Sync + 'static> Spawn for S {
    fn spawn(&self, future: BoxedFuture) {
        self(future);
    }
}

/// An entry of a directory, as [`AsyncFileSystem::readdir`] returns it.
///
/// # Examples
/// ```
/// use corewalk::{Attr, FileKind};
/// use corewalk_fuse::OwnedDirEntry;
///
/// let entry = OwnedDirEntry::new(b"etc", 7, FileKind::Directory, 1);
/// assert_eq!((&*entry.name, entry.attr), (&b"etc"[..], None));
/// let entry = OwnedDirEntry::from_attr(b"etc", Attr::dir(7), 1);
/// assert_eq!((entry.ino, entry.kind), (7, FileKind::Directory));
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct OwnedDirEntry {
    /// The name: never `.` or `..`, which the server adds.
    pub name: Box<[u8]>,
    /// Inode number, or 0 if the back end has no numbers.
    pub ino: u64,
    /// File type.
    pub kind: FileKind,
    /// The position in the directory after this entry. A listing that continues there passes this
    /// number to `readdir`. The number is unique within the directory, and stays valid when the
    /// directory changes. It is never 0, and at most 2^63 - 3. If a cookie is out of this range,
    /// the listing fails with `EIO`.
    pub cookie: u64,
    /// The attributes that a `lookup` of the name would return. With them, a listing that needs
    /// attributes does not call `lookup`.
    pub attr: Option<Attr>,
}

impl OwnedDirEntry {
    /// Returns an entry for the file `name` of kind `kind` with inode number `ino`, without
    /// attributes. To continue after this entry, a listing passes `cookie` to `readdir`.
    pub fn new(name: &[u8], ino: u64, kind: FileKind, cookie: u64) -> OwnedDirEntry {
        OwnedDirEntry { name: name.into(), ino, kind, cookie, attr: None }
    }

    /// Returns an entry with the attributes `attr`, which also give its inode number and kind.
    pub fn from_attr(name: &[u8], attr: Attr, cookie: u64) -> OwnedDirEntry {
        let (ino, kind) = (attr.ino, attr.kind());
        OwnedDirEntry { name: name.into(), ino, kind, cookie, attr: Some(attr) }
    }
}

/// A file system whose calls are futures. An [`AsyncServer`](crate::AsyncServer) serves it.
///
/// Five methods are required. By default, `make`, `remove`, `rename`, `setattr` and `write` fail
/// with `EROFS`. The description of a method tells its default if the default is another error. An
/// implementation writes each method as an `async fn`. The futures run on the runtime of the
/// program ([`Spawn`]).
///
/// # What a back end may rely on
/// - Calls that change one name never overlap, and no `lookup` of the name runs during such a call.
///   Calls of `setattr` for one inode do not overlap. All other calls may overlap.
/// - The kernel has checked permissions by the mode, and names are valid. The kind of file fits the
///   call, except in `remove`: another machine may have replaced the file, so `remove` compares its
///   kind with `removal`.
/// - Some calls run to their end, even if the client is killed. They are `make`, `link`, `remove`,
///   `rename`, `setattr`, `write`, `fallocate`, `copy_file_range`, `setxattr`, `removexattr`,
///   `open`, `release`, `flush` and `unlock_owner`. Only the end of the runtime may drop them.
/// - During such a call, a killed client gets `EINTR` immediately. Requests for the same names wait
///   for the end of the call. There are two exceptions, in which the killed client waits for the
///   end. One is a `flush` or a change of content. The other is any change by a client that the
///   server cannot find in `/proc`.
/// - Any other call is dropped if its client is killed, also `fsync` and `set_lock`. A `set_lock`
///   that waits is dropped by any signal. [`AsyncNode::caller`] returns the client.
/// - [`AsyncFileSystem::forget`] is called after the last use of a file, when the cache has dropped
///   the file. Until then, calls may use the file even if it has no name any more.
///
/// # What a back end must do
/// - It never reuses a pair (`ino`, `generation`) for another file.
/// - With inode numbers, it needs only `ino` to find any file that has a name, even after `forget`.
///   The server may call `forget` while an answer with the file is on its way. The server may then
///   use the file again.
/// - Without inode numbers, it reports 0 for all of its files. Then the server numbers them, and no
///   file has two names. The back end finds a file by [`AsyncNode::path`]. It keeps nothing under
///   [`AsyncNode::ino`], because that number changes, and `forget` gets 0.
/// - A call that fails changes nothing.
/// - The kind of a file never changes, and no size exceeds 2^63 - 1.
/// - A future must be safe to drop at each of its `await` points.
///
/// # Differences from a `FileSystem`
/// | in a [`FileSystem`](corewalk::FileSystem) | here |
/// |---|---|
/// | `get_acl`, `set_acl` | no ACLs; `system.posix_acl_*` is `EOPNOTSUPP` |
/// | `append` | `write` at the size in the kernel; two machines must not append to one file |
/// | `seek` | lseek(2) shows a file as data without holes |
/// | `tmpfile` | `O_TMPFILE` is `EOPNOTSUPP` |
/// | `poll` | poll(2) shows each file as ready |
/// | `ioctl`, `inode_flags`, `set_inode_flags` | `ENOTTY` |
/// | `opendir`, `releasedir` | `readdir` gets no handle |
/// | `by_number`, `parent` | no file handles for NFS |
/// | `backing_file`, `leases` | none |
/// | `Request::current` | `None`; [`AsyncNode::caller`], which `statfs` lacks |
/// | `WriteCache::Back`, `Permissions::Server` | refused by [`Options::check_async`] |
/// | io_uring by default | only with [`Transport::Uring`] |
///
/// [`Options::check_async`]: crate::Options::check_async
/// [`Transport::Uring`]: crate::Transport::Uring
///
/// # Errors
/// Any method may return `EIO` if the storage fails, and `ESTALE` for an inode that is gone. Each
/// method names only the errors that the server cannot detect itself.
///
/// # Examples
/// A read-only file system with one file:
/// ```
/// use bytes::Bytes;
/// use corewalk::{Attr, Errno, Name};
/// use corewalk_fuse::{AsyncFileSystem, AsyncNode, OwnedDirEntry};
///
/// const TEXT: &[u8] = b"hello";
///
/// struct Hello;
///
/// impl AsyncFileSystem for Hello {
///     async fn root(&self) -> Result<Attr, Errno> {
///         Ok(Attr::dir(1))
///     }
///
///     async fn lookup(&self, _: &AsyncNode, name: Name<'_>) -> Result<Attr, Errno> {
///         if name.as_bytes() == TEXT { Ok(Attr::file(2, 5)) } else { Err(Errno::NOENT) }
///     }
///
///     async fn getattr(&self, node: &AsyncNode) -> Result<Attr, Errno> {
///         Ok(if node.ino() == 1 { Attr::dir(1) } else { Attr::file(2, 5) })
///     }
///
///     async fn readdir(&self, _: &AsyncNode, cookie: u64) -> Result<Vec<OwnedDirEntry>, Errno> {
///         let entry = OwnedDirEntry::from_attr(TEXT, Attr::file(2, 5), 1);
///         Ok(if cookie == 0 { vec![entry] } else { vec![] })
///     }
///
///     async fn read(&self, _: &AsyncNode, offset: u64, size: u32) -> Result<Bytes, Errno> {
///         let rest = TEXT.get(offset as usize..).unwrap_or_default();
///         Ok(Bytes::from_static(&rest[..rest.len().min(size as usize)]))
///     }
/// }
/// ```
#[allow(unused_variables)]
pub trait AsyncFileSystem: Send + Sync + 'static {
    /// Returns the attributes of the root directory. Called once, when the server starts.
    fn root(&self) -> impl Future<Output = Result<Attr, Errno>> + Send;

    /// Looks up `name` in `dir`, and returns the attributes of the file. `ENOENT` if there is no
    /// such name.
    fn lookup(
        &self,
        dir: &AsyncNode,
        name: Name<'_>,
    ) -> impl Future<Output = Result<Attr, Errno>> + Send;

    /// Returns the attributes of `node`. The server ignores the generation in them.
    fn getattr(&self, node: &AsyncNode) -> impl Future<Output = Result<Attr, Errno>> + Send;

    /// Returns a page of the entries of `dir` after the entry with the cookie `cookie`, or from the
    /// start if `cookie` is 0. The back end chooses the length of the page. An empty page is the
    /// end of the directory. The server keeps a page until the directory is closed, so a listing
    /// asks for each page once.
    fn readdir(
        &self,
        dir: &AsyncNode,
        cookie: u64,
    ) -> impl Future<Output = Result<Vec<OwnedDirEntry>, Errno>> + Send;

    /// Reads up to `size` bytes at `offset`. Fewer bytes mean the end of the file.
    fn read(
        &self,
        node: &AsyncNode,
        offset: u64,
        size: u32,
    ) -> impl Future<Output = Result<Bytes, Errno>> + Send;

    /// Makes all changes of attributes in `set`, or none of them, and returns the new attributes. A
    /// change of the size may fail with `EFBIG` or `ENOSPC`.
    fn setattr(
        &self,
        node: &AsyncNode,
        set: &SetAttr,
    ) -> impl Future<Output = Result<Attr, Errno>> + Send {
        async { Err(Errno::ROFS) }
    }

    /// Makes a new file of any kind, and returns its attributes. Fails with `EEXIST` or `ENOSPC`,
    /// or with `ENOENT` if `dir` was removed.
    fn make(
        &self,
        dir: &AsyncNode,
        name: Name<'_>,
        what: &Make<'_>,
    ) -> impl Future<Output = Result<Attr, Errno>> + Send {
        async { Err(Errno::ROFS) }
    }

    /// Gives `node` the name `name` in `dir` too, and returns its attributes. `EPERM`, the default,
    /// means that the back end has no hard links.
    fn link(
        &self,
        node: &AsyncNode,
        dir: &AsyncNode,
        name: Name<'_>,
    ) -> impl Future<Output = Result<Attr, Errno>> + Send {
        async { Err(Errno::PERM) }
    }

    /// Removes a name, by unlink(2) or rmdir(2). `ENOENT` if there is no such name; `ENOTEMPTY` for
    /// a directory that is not empty; `ENOTDIR` and `EISDIR` if the file is not of the right kind.
    fn remove(
        &self,
        dir: &AsyncNode,
        name: Name<'_>,
        removal: Removal,
    ) -> impl Future<Output = Result<(), Errno>> + Send {
        async { Err(Errno::ROFS) }
    }

    /// Renames `from` to `to`. `mode` tells how to treat an existing target. The server refuses to
    /// move a directory into itself. Moves of directories to other parents never overlap. If other
    /// machines move directories too, their moves and those of this server could together make a
    /// loop. Only the back end can refuse such a move. `ENOENT` if the name `from` does not exist;
    /// `ENOTEMPTY` for a target directory that is not empty.
    fn rename(
        &self,
        from: (&AsyncNode, Name<'_>),
        to: (&AsyncNode, Name<'_>),
        mode: RenameMode,
    ) -> impl Future<Output = Result<(), Errno>> + Send {
        async { Err(Errno::ROFS) }
    }

    /// Writes `data` at `offset`, and returns the number of written bytes.
    fn write(
        &self,
        node: &AsyncNode,
        offset: u64,
        data: Bytes,
    ) -> impl Future<Output = Result<usize, Errno>> + Send {
        async { Err(Errno::ROFS) }
    }

    /// Returns the target of a symbolic link. If the target is longer than 4,095 bytes, readlink(2)
    /// fails with `ENAMETOOLONG`. `EINVAL`, the default, means that the back end has no symbolic
    /// links.
    fn readlink(&self, node: &AsyncNode) -> impl Future<Output = Result<Bytes, Errno>> + Send {
        async { Err(Errno::INVAL) }
    }

    /// Returns true if the back end keeps state for each open file. If false, the server calls
    /// neither `open` nor `release`.
    fn has_open_state(&self) -> bool {
        false
    }

    /// Opens a regular file. Later calls through the open file get the returned handle in
    /// [`AsyncNode::handle`].
    ///
    /// `flags` are those of open(2) without `O_CREAT`, `O_EXCL`, `O_NOCTTY` and `O_TRUNC`. A
    /// truncation arrives as a `setattr` of the size. Unknown bits may be set, so mask the flags
    /// before you pass them to openat2(2).
    fn open(
        &self,
        node: &AsyncNode,
        flags: u32,
    ) -> impl Future<Output = Result<Opened, Errno>> + Send {
        async { Ok(Opened::default()) }
    }

    /// Closes an open file. [`AsyncNode::handle`] of `node` is the handle that `open` has returned.
    fn release(&self, node: &AsyncNode) -> impl Future<Output = ()> + Send {
        async {}
    }

    /// Tells the back end that a client closes a descriptor of an open file. close(2) fails with
    /// the error of this method. `ENOSYS`, the default, means that the back end needs no such call
    /// for any file.
    fn flush(&self, node: &AsyncNode) -> impl Future<Output = Result<(), Errno>> + Send {
        async { Err(Errno::NOSYS) }
    }

    /// Makes the data of a file durable. Also makes its attributes durable, unless `data_only` is
    /// true. Does nothing by default.
    fn fsync(
        &self,
        node: &AsyncNode,
        data_only: bool,
    ) -> impl Future<Output = Result<(), Errno>> + Send {
        async { Ok(()) }
    }

    /// Returns the values of statfs(2), by default those of [`StatFs::default`].
    fn statfs(&self) -> impl Future<Output = Result<StatFs, Errno>> + Send {
        async { Ok(StatFs::default()) }
    }

    /// Changes the allocated space of a regular file, as fallocate(2) does. May fail with `ENOSPC`
    /// or `EFBIG`. `EOPNOTSUPP`, the default, means that the back end cannot do it.
    fn fallocate(
        &self,
        node: &AsyncNode,
        offset: u64,
        len: u64,
        how: Fallocate,
    ) -> impl Future<Output = Result<(), Errno>> + Send {
        async { Err(Errno::OPNOTSUPP) }
    }

    /// Copies up to `len` bytes from one file to another, and returns the number of copied bytes.
    /// `EOPNOTSUPP`, the default, makes the kernel copy with reads and writes.
    fn copy_file_range(
        &self,
        from: (&AsyncNode, u64),
        to: (&AsyncNode, u64),
        len: u64,
    ) -> impl Future<Output = Result<u64, Errno>> + Send {
        async { Err(Errno::OPNOTSUPP) }
    }

    /// Returns the value of an extended attribute. `ENODATA` if the attribute does not exist.
    /// `ENOSYS`, the default here and in the next three methods, means that no file has extended
    /// attributes. Then the kernel does not ask again.
    fn getxattr(
        &self,
        node: &AsyncNode,
        name: &[u8],
    ) -> impl Future<Output = Result<Bytes, Errno>> + Send {
        async { Err(Errno::NOSYS) }
    }

    /// Sets an extended attribute. Fails with `EEXIST` or `ENODATA` as [`XattrMode`] tells, and
    /// with `ENOSPC` if there is no space for the value.
    fn setxattr(
        &self,
        node: &AsyncNode,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
    ) -> impl Future<Output = Result<(), Errno>> + Send {
        async { Err(Errno::NOSYS) }
    }

    /// Returns the names of all extended attributes, each with a NUL byte at its end.
    fn listxattr(&self, node: &AsyncNode) -> impl Future<Output = Result<Bytes, Errno>> + Send {
        async { Err(Errno::NOSYS) }
    }

    /// Removes an extended attribute. `ENODATA` if the attribute does not exist.
    fn removexattr(
        &self,
        node: &AsyncNode,
        name: &[u8],
    ) -> impl Future<Output = Result<(), Errno>> + Send {
        async { Err(Errno::NOSYS) }
    }

    /// Returns true if the back end manages locks, because other machines use the files too. If
    /// false, the default, the kernel manages the locks of this mount, and other machines do not
    /// see them. The server then calls none of the next three methods.
    fn has_locks(&self) -> bool {
        false
    }

    /// Returns a lock of another owner that conflicts with `lock`, if there is one. `ENOSYS` by
    /// default.
    fn get_lock(
        &self,
        node: &AsyncNode,
        lock: &FileLock,
    ) -> impl Future<Output = Result<Option<FileLock>, Errno>> + Send {
        async { Err(Errno::NOSYS) }
    }

    /// Takes, changes or drops a lock. If another owner has a conflicting lock, waits if `waits` is
    /// true, and otherwise fails with `EAGAIN`. The server drops a waiting call if its client gets
    /// a signal. A dropped call must not take the lock. `EDEADLK` if the call would wait for ever;
    /// `ENOSYS` by default.
    fn set_lock(
        &self,
        node: &AsyncNode,
        lock: &FileLock,
        waits: bool,
    ) -> impl Future<Output = Result<(), Errno>> + Send {
        async { Err(Errno::NOSYS) }
    }

    /// Drops the locks of `owner` on `node`: those of flock(2) if `is_flock`, else those of
    /// fcntl(2). A process that closes any descriptor of a file loses its fcntl(2) locks of the
    /// file.
    fn unlock_owner(
        &self,
        node: &AsyncNode,
        owner: u64,
        is_flock: bool,
    ) -> impl Future<Output = Result<(), Errno>> + Send {
        async { Ok(()) }
    }

    /// Tells the back end that the cache has dropped an inode. `ino` is 0 if the back end has no
    /// inode numbers. Any thread may call this method. It must neither wait nor call the server.
    fn forget(&self, ino: u64, generation: u64) {}
}
