//! The layer that serves a [`PathFileSystem`].

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;

use super::PathFileSystem;
use super::files::Files;
use super::listings::Listings;
use crate::Errno;
use crate::acl::Acl;
use crate::attr::{Attr, FileKind, SetAttr, StatFs};
use crate::fs::{
    AclKind, Addressing, DirSink, Fallocate, FileLock, FileSystem, InodeFlags, IoctlReply, Make,
    Node, Opened, PollEvents, PollWaker, RenameMode, Seek, XattrMode,
};
use crate::name::Name;

/// The values are those of `O_ACCMODE` in open(2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
enum Access {
    Read = 0,
    Write = 1,
}

const O_ACCMODE: u32 = 3;
const O_RDWR: u32 = 2;
/// The flags of open(2) that are not passed to a back end:
/// - `O_APPEND` would move all writes through the open file to the end of the file, also those of
///   the kernel's page cache. Instead, calls that append are marked.
/// - `O_DIRECT` is about the pages of the client. The buffers of a back end need not be aligned for
///   it.
const NOT_PASSED: OFlags = OFlags::APPEND.union(OFlags::DIRECT);

/// Serves a [`PathFileSystem`]: a [`FileSystem`] that calls it with paths. Locks and `poll` need an
/// open file, and fail with `EBADF` otherwise. Linux sends such requests only for open files.
///
/// # Examples
/// ```
/// use corewalk::{ByPath, FileSystem, PathFileSystem};
///
/// fn served(fs: impl PathFileSystem) -> impl FileSystem {
///     ByPath::new(fs)
/// }
/// ```
///
/// The documentation of [`PathFileSystem`] has a whole file system.
pub struct ByPath<F: PathFileSystem> {
    fs: F,
    files: Files<OpenFile<F::File>>,
    listings: Listings,
}

impl<F: PathFileSystem> ByPath<F> {
    /// Returns the layer over `fs`. The documentation of [`PathFileSystem`] has an example.
    pub fn new(fs: F) -> ByPath<F> {
        ByPath { fs, files: Files::new(), listings: Listings::new() }
    }

    /// Returns the back end.
    ///
    /// # Examples
    /// ```
    /// # use std::{path::{Path, PathBuf}, sync::{Arc, Mutex}};
    /// # use corewalk::{Attr, ByPath, Cred, Errno, Name, PathEntry, PathFileSystem};
    /// # use corewalk::{Vfs, VfsOptions};
    /// /// An empty file system with a list of the paths that were looked up.
    /// #[derive(Default)]
    /// struct Empty(Mutex<Vec<PathBuf>>);
    ///
    /// # impl PathFileSystem for Empty {
    /// #     type File = ();
    /// #     fn getattr(&self, path: &Path) -> Result<Attr, Errno> {
    /// #         self.0.lock().unwrap().push(path.into());
    /// #         if path == Path::new("") { Ok(Attr::dir(0)) } else { Err(Errno::NOENT) }
    /// #     }
    /// #     fn readdir(&self, _: &Path, _: &mut dyn FnMut(PathEntry<'_>)) -> Result<(), Errno> {
    /// #         Ok(())
    /// #     }
    /// #     fn open(&self, _: &Path, _: u32) -> Result<(), Errno> {
    /// #         Ok(())
    /// #     }
    /// #     fn read(&self, _: &Path, _: &(), _: u64, _: &mut [u8]) -> Result<usize, Errno> {
    /// #         Ok(0)
    /// #     }
    /// # }
    /// let served = Arc::new(ByPath::new(Empty::default()));
    /// let vfs = Vfs::new(served.clone(), VfsOptions::default())?;
    /// assert!(vfs.lookup(&Cred::root(), &vfs.root(), Name::new(b"f")?).is_err());
    /// // The program reads the list while the back end is served.
    /// assert_eq!(served.get_ref().0.lock().unwrap().last(), Some(&PathBuf::from("f")));
    /// # Ok::<(), corewalk::Errno>(())
    /// ```
    pub fn get_ref(&self) -> &F {
        &self.fs
    }

    /// If the node's handle does not allow `access`, opens the file for this call alone. That
    /// happens with a writeback cache: the kernel may read through a handle that is open only for
    /// writing.
    fn with_file<T>(
        &self,
        node: Node<'_>,
        access: Access,
        call: impl FnOnce(&Path, &F::File) -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        let path = path_of(node)?;
        match self.files.get(node.handle()) {
            Some(open) if [access as u32, O_RDWR].contains(&open.access) => call(&path, &open.file),
            _ => call(&path, &self.fs.open(&path, access as u32)?),
        }
    }

    fn with_open<T>(
        &self,
        node: Node<'_>,
        call: impl FnOnce(&Path, &F::File) -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        let open = self.files.get(node.handle()).ok_or(Errno::BADF)?;
        call(&path_of(node)?, &open.file)
    }
}

struct OpenFile<T> {
    access: u32,
    file: T,
}

fn path_of(node: Node<'_>) -> Result<PathBuf, Errno> {
    let mut path = node.path()?;
    if path.first() == Some(&b'/') {
        path.remove(0);
    }
    Ok(OsString::from_vec(path).into())
}

fn child(dir: Node<'_>, name: Name<'_>) -> Result<PathBuf, Errno> {
    Ok(path_of(dir)?.join(OsStr::from_bytes(name.as_bytes())))
}

impl<F: PathFileSystem> FileSystem for ByPath<F> {
    fn addressing(&self) -> Addressing {
        Addressing::PathOnly
    }

    fn root(&self) -> Result<Attr, Errno> {
        self.fs.getattr(Path::new(""))
    }

    fn lookup(&self, dir: Node<'_>, name: Name<'_>) -> Result<Attr, Errno> {
        self.fs.getattr(&child(dir, name)?)
    }

    fn getattr(&self, node: Node<'_>) -> Result<Attr, Errno> {
        match self.files.get(node.handle()) {
            Some(open) => self.fs.getattr_open(&path_of(node)?, &open.file),
            None => self.fs.getattr(&path_of(node)?),
        }
    }

    fn setattr(&self, node: Node<'_>, set: &SetAttr) -> Result<Attr, Errno> {
        self.fs.setattr(&path_of(node)?, set)
    }

    fn make(&self, dir: Node<'_>, name: Name<'_>, what: &Make<'_>) -> Result<Attr, Errno> {
        self.fs.make(&child(dir, name)?, what)
    }

    fn remove(&self, dir: Node<'_>, name: Name<'_>, node: Node<'_>) -> Result<(), Errno> {
        let path = child(dir, name)?;
        match node.kind() {
            FileKind::Directory => self.fs.rmdir(&path),
            _ => self.fs.unlink(&path),
        }
    }

    fn rename(
        &self,
        from: (Node<'_>, Name<'_>),
        to: (Node<'_>, Name<'_>),
        mode: RenameMode,
    ) -> Result<(), Errno> {
        self.fs.rename(&child(from.0, from.1)?, &child(to.0, to.1)?, mode)
    }

    fn link(&self, node: Node<'_>, dir: Node<'_>, name: Name<'_>) -> Result<Attr, Errno> {
        self.fs.link(&path_of(node)?, &child(dir, name)?)
    }

    fn readlink(&self, node: Node<'_>) -> Result<Vec<u8>, Errno> {
        Ok(self.fs.readlink(&path_of(node)?)?.into_os_string().into_vec())
    }

    fn readdir(&self, dir: Node<'_>, cookie: u64, sink: &mut DirSink<'_>) -> Result<(), Errno> {
        let identity = (dir.ino(), dir.generation());
        self.listings.read((identity, path_of(dir)?), cookie, sink, |path, all| {
            self.fs.readdir(path, &mut |entry| all.add(entry))
        })
    }

    fn open(&self, node: Node<'_>, flags: u32) -> Result<Opened, Errno> {
        if node.kind() != FileKind::Regular {
            return Ok(Opened::default());
        }
        let file = self.fs.open(&path_of(node)?, flags & !NOT_PASSED.bits())?;
        let open_flags = self.fs.open_flags(&file);
        let handle = self.files.add(OpenFile { access: flags & O_ACCMODE, file });
        Ok(Opened::new(handle).with_flags(open_flags))
    }

    fn has_open_state(&self) -> bool {
        true
    }

    fn release(&self, node: Node<'_>) {
        self.files.remove(node.handle());
    }

    fn read(&self, node: Node<'_>, offset: u64, buf: &mut [u8]) -> Result<usize, Errno> {
        let read = |path: &Path, file: &_| self.fs.read(path, file, offset, buf);
        self.with_file(node, Access::Read, read)
    }

    fn write(&self, node: Node<'_>, offset: u64, bytes: &[u8]) -> Result<usize, Errno> {
        let write = |path: &Path, file: &_| self.fs.write(path, file, offset, bytes);
        self.with_file(node, Access::Write, write)
    }

    fn append(&self, node: Node<'_>, end: u64, bytes: &[u8]) -> Result<usize, Errno> {
        let append = |path: &Path, file: &_| self.fs.append(path, file, end, bytes);
        self.with_file(node, Access::Write, append)
    }

    fn flush(&self, node: Node<'_>) -> Result<(), Errno> {
        match self.files.get(node.handle()) {
            Some(open) => self.fs.flush(&path_of(node)?, &open.file),
            None => Ok(()),
        }
    }

    fn copy_file_range(
        &self,
        from: (Node<'_>, u64),
        to: (Node<'_>, u64),
        len: u64,
    ) -> Result<u64, Errno> {
        let (Some(source), Some(target)) =
            (self.files.get(from.0.handle()), self.files.get(to.0.handle()))
        else {
            return Err(Errno::OPNOTSUPP);
        };
        self.fs.copy_file_range((&source.file, from.1), (&target.file, to.1), len)
    }

    fn waits(&self) -> bool {
        self.fs.waits()
    }

    fn fsync_waits(&self) -> bool {
        self.fs.fsync_waits()
    }

    fn fsync(&self, node: Node<'_>, data_only: bool) -> Result<(), Errno> {
        if node.kind() == FileKind::Directory {
            return self.fs.fsync_dir(&path_of(node)?, data_only);
        }
        // Use the client's own open file. The back end may keep unwritten bytes in it, or errors of
        // earlier writes.
        match self.files.get(node.handle()) {
            Some(open) => self.fs.fsync(&path_of(node)?, &open.file, data_only),
            None => self
                .with_file(node, Access::Write, |path, file| self.fs.fsync(path, file, data_only)),
        }
    }

    fn maintain(&self) {
        self.listings.age();
    }

    fn statfs(&self) -> Result<StatFs, Errno> {
        self.fs.statfs()
    }

    fn fallocate(
        &self,
        node: Node<'_>,
        offset: u64,
        len: u64,
        how: Fallocate,
    ) -> Result<(), Errno> {
        let fallocate = |path: &Path, file: &_| self.fs.fallocate(path, file, offset, len, how);
        self.with_file(node, Access::Write, fallocate)
    }

    fn seek(&self, node: Node<'_>, offset: u64, what: Seek) -> Result<u64, Errno> {
        let seek = |path: &Path, file: &_| self.fs.seek(path, file, offset, what);
        self.with_file(node, Access::Read, seek)
    }

    fn getxattr(&self, node: Node<'_>, name: &[u8]) -> Result<Vec<u8>, Errno> {
        self.fs.getxattr(&path_of(node)?, OsStr::from_bytes(name))
    }

    fn setxattr(
        &self,
        node: Node<'_>,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
    ) -> Result<(), Errno> {
        self.fs.setxattr(&path_of(node)?, OsStr::from_bytes(name), value, mode)
    }

    fn listxattr(&self, node: Node<'_>) -> Result<Vec<u8>, Errno> {
        self.fs.listxattr(&path_of(node)?)
    }

    fn removexattr(&self, node: Node<'_>, name: &[u8]) -> Result<(), Errno> {
        self.fs.removexattr(&path_of(node)?, OsStr::from_bytes(name))
    }

    fn get_acl(&self, node: Node<'_>, kind: AclKind) -> Result<Option<Acl>, Errno> {
        self.fs.get_acl(&path_of(node)?, kind)
    }

    fn set_acl(
        &self,
        node: Node<'_>,
        kind: AclKind,
        acl: Option<&Acl>,
        mode: Option<u32>,
    ) -> Result<(), Errno> {
        self.fs.set_acl(&path_of(node)?, kind, acl, mode)
    }

    fn has_locks(&self) -> bool {
        self.fs.has_locks()
    }

    fn get_lock(&self, node: Node<'_>, lock: &FileLock) -> Result<Option<FileLock>, Errno> {
        self.with_open(node, |path, file| self.fs.get_lock(path, file, lock))
    }

    fn set_lock(&self, node: Node<'_>, lock: &FileLock) -> Result<(), Errno> {
        self.with_open(node, |path, file| self.fs.set_lock(path, file, lock))
    }

    fn unlock_owner(&self, node: Node<'_>, owner: u64, is_flock: bool) -> Result<(), Errno> {
        self.with_open(node, |path, file| self.fs.unlock_owner(path, file, owner, is_flock))
    }

    fn inode_flags(&self, node: Node<'_>) -> Result<InodeFlags, Errno> {
        self.fs.inode_flags(&path_of(node)?)
    }

    fn set_inode_flags(&self, node: Node<'_>, flags: InodeFlags) -> Result<(), Errno> {
        self.fs.set_inode_flags(&path_of(node)?, flags)
    }

    fn ioctl(&self, node: Node<'_>, command: u32, input: &[u8]) -> Result<IoctlReply, Errno> {
        let open = self.files.get(node.handle());
        let file = open.as_ref().map(|open| &open.file);
        self.fs.ioctl(&path_of(node)?, file, command, input)
    }

    fn poll(
        &self,
        node: Node<'_>,
        wanted: PollEvents,
        waker: Option<PollWaker>,
    ) -> Result<PollEvents, Errno> {
        self.with_open(node, |path, file| self.fs.poll(path, file, wanted, waker))
    }
}

impl<F: PathFileSystem> std::fmt::Debug for ByPath<F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ByPath").finish_non_exhaustive()
    }
}
