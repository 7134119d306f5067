//! The file system `HostFs`, and how a call gets a descriptor of the inode that it works on.
//!
//! [`HostFs::at`], with which almost every call starts, returns a descriptor of an inode. It tries,
//! in this order:
//! 1. a kept descriptor, if the inode was used recently, was unlinked while in use, or is open;
//! 2. the path of the inode in the dentry cache, resolved beneath the root directory;
//! 3. other paths of the inode in the dentry cache;
//! 4. the file handle of the inode.
//!
//! The file at a path must have the right inode number and generation. If it does not, another
//! program has changed the tree. A rename through this server cannot be the reason, because it
//! waits until the call returns (rule F.6 of `FileSystem`). If no way leads to the inode, the call
//! fails with `ESTALE`.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use corewalk::acl::Acl;
use corewalk::{
    AclKind, Addressing, Atime, AtimePolicy, Attr, DirSink, Errno, Fallocate, FileKind, FileLock,
    FileSystem, InodeFlags, Make, Name, Node, Opened, RenameMode, Seek, SetAttr, StatFs, XattrMode,
};
use rustix::fs::{AtFlags, Mode, OFlags, Statx, StatxFlags, fstatfs, fstatvfs, open, statx};
use rustix::process::{Resource, getegid, geteuid, getrlimit};

use crate::beneath::Resolver;
use crate::descriptors::{Descriptors, SharedFd, Shares};
use crate::directory_paths::DirectoryPaths;
use crate::generations::Generations;
use crate::handles::Handles;
use crate::locks::Locks;

const WANTED: StatxFlags = StatxFlags::BASIC_STATS.union(StatxFlags::BTIME);

/// Magic numbers (statfs(2)) of btrfs, ext4, f2fs, tmpfs and xfs. On other file systems, the
/// attributes that the host kernel has cached may be out of date.
const LOCAL: [u32; 5] = [0x9123_683e, 0xef53, 0xf2f5_2010, 0x0102_1994, 0x5846_5342];

/// The options of a [`HostFs`].
///
/// # Examples
/// ```
/// use corewalk::AtimePolicy;
/// use corewalk_hostfs::{HostFs, HostFsOptions};
///
/// let options = HostFsOptions::default().with_reusable(16).with_atime(AtimePolicy::NEVER);
/// assert!(HostFs::new("/usr".as_ref(), options).is_ok());
/// ```
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct HostFsOptions {
    /// Maximum number of descriptors that are kept of recently used inodes.
    pub reusable: usize,
    /// Maximum number of descriptors kept for inodes that were unlinked while in use. An inode is
    /// in use until [`forget`](corewalk::FileSystem::forget), which a mount may call some hundred
    /// microseconds after the unlink. For an inode that a client has open, calls can also use the
    /// descriptor of the open file.
    pub orphans: usize,
    /// Number of descriptors that open files must leave free, for running calls and for the rest of
    /// the process. An open that would leave fewer fails. Allow about five descriptors per thread
    /// that makes calls.
    ///
    /// [`HostFs::new`] reads the limit of the process (`RLIMIT_NOFILE`). If that limit is low,
    /// `reusable`, `orphans` and `reserved` are reduced.
    pub reserved: usize,
    /// Selects the reads that set the access time. With `Never`, files are opened with `O_NOATIME`
    /// if the host permits that flag. It does if the server's user owns the file, or the server has
    /// `CAP_FOWNER`. With any other value, the mount options of the host decide.
    pub atime: AtimePolicy,
    /// True if the host manages the locks of fcntl(2) and flock(2). Then clients of the mount and
    /// other programs on the host exclude each other. False, the default, if the kernel of the
    /// clients manages the locks for this mount alone, which is faster.
    pub host_locks: bool,
}

impl HostFsOptions {
    corewalk_base::setters! {
        with_reusable: reusable = usize;
        with_orphans: orphans = usize;
        with_reserved: reserved = usize;
        with_atime: atime = AtimePolicy;
        with_host_locks: host_locks = bool;
    }
}

impl Default for HostFsOptions {
    /// Returns the default options. `HostFs` keeps descriptors of at most 64 recently used inodes
    /// and of at most 128 files that were unlinked while in use. Open files leave 32 descriptors to
    /// running calls. The mount options of the host decide on access times.
    fn default() -> HostFsOptions {
        let atime = AtimePolicy::default();
        HostFsOptions { reusable: 64, orphans: 128, reserved: 32, atime, host_locks: false }
    }
}

/// A directory of the host as a file system. [The crate](crate) explains how it works.
///
/// # Examples
/// ```
/// use corewalk::FileSystem;
/// use corewalk_hostfs::{HostFs, HostFsOptions};
///
/// let fs = HostFs::new("/".as_ref(), HostFsOptions::default())?;
/// assert!(fs.root()?.is_dir());
/// # Ok::<(), corewalk::Errno>(())
/// ```
pub struct HostFs {
    pub(crate) root: SharedFd,
    pub(crate) root_ino: u64,
    /// The device of the root directory. Calls on files of other devices fail with `EXDEV`.
    pub(crate) device: (u32, u32),
    resolver: Resolver,
    pub(crate) descriptors: Descriptors,
    directory_paths: DirectoryPaths,
    pub(crate) generations: Generations,
    pub(crate) handles: Option<Handles>,
    reach: Reach,
    pub(crate) acls: AclSupport,
    pub(crate) atime: AtimePolicy,
    has_locks: bool,
    pub(crate) locks: Locks,
    pub(crate) owner: (u32, u32),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reach {
    Local,
    Remote,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AclSupport {
    Yes,
    /// The host file system has no ACLs: reading an ACL fails with `EOPNOTSUPP`.
    No,
}

impl HostFs {
    /// Returns a file system that exports the directory `root` of the host. Symbolic links in the
    /// path `root` are followed.
    ///
    /// # Errors
    /// `ENOENT`, `ENOTDIR` or `EACCES` if `root` cannot be opened; `ENOSYS` if `/proc` is not
    /// mounted.
    pub fn new(root: &Path, options: HostFsOptions) -> Result<HostFs, Errno> {
        let flags = OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = match open(root, flags, Mode::empty()) {
            // A directory that cannot be read may still be searched, so open it with `O_PATH`.
            Err(Errno::ACCESS) => open(root, flags | OFlags::PATH, Mode::empty())?,
            opened => opened?,
        };
        let status = stat_fd(root.as_fd())?;
        let through_proc =
            statx(rustix::fs::CWD, magic(root.as_fd()), AtFlags::empty(), StatxFlags::BASIC_STATS);
        if through_proc.map(|seen| seen.stx_ino) != Ok(status.stx_ino) {
            return Err(Errno::NOSYS);
        }
        let mut fs = HostFs {
            root_ino: status.stx_ino,
            device: (status.stx_dev_major, status.stx_dev_minor),
            resolver: Resolver::detect(root.as_fd()),
            reach: Reach::of(root.as_fd()),
            handles: Handles::new(root.as_fd(), status.stx_ino),
            root: Arc::new(root),
            descriptors: Descriptors::new(Shares::new(
                &options,
                getrlimit(Resource::Nofile).current,
            )),
            atime: options.atime,
            has_locks: options.host_locks,
            locks: Locks::default(),
            directory_paths: DirectoryPaths::default(),
            generations: Generations::default(),
            acls: AclSupport::Yes,
            owner: (geteuid().as_raw(), getegid().as_raw()),
        };
        if fs.acl_of(fs.root.as_fd(), AclKind::Access).err() == Some(Errno::OPNOTSUPP) {
            fs.acls = AclSupport::No;
        }
        Ok(fs)
    }

    /// Returns an `O_RDONLY` descriptor for a directory that this process may read, otherwise an
    /// `O_PATH` one.
    ///
    /// # Errors
    /// `ESTALE` if neither a path in the dentry cache nor the file handle leads to the inode. See
    /// guarantee H.1: a call never uses a wrong file. `ENFILE` if the process has no descriptor
    /// left.
    pub(crate) fn at(&self, node: Node<'_>) -> Result<SharedFd, Errno> {
        let ino = node.ino();
        if let Some(fd) = self.kept(ino) {
            return Ok(fd);
        }
        // A removal may have kept a descriptor since the first search, so look for one again.
        let Ok(path) = node.path() else {
            return self.descriptors.get(ino).map_or_else(|| self.nameless(ino), Ok);
        };
        if let Some(fd) = self.open_if(node, &path)? {
            return Ok(fd);
        }
        // Another program may have removed or reused the first name, so try the other names of the
        // inode.
        for path in node.other_paths() {
            if let Some(fd) = self.open_if(node, &path)? {
                return Ok(fd);
            }
        }
        if let Some(fd) = self.open_renamed(node)? {
            return Ok(fd);
        }
        self.descriptors.get(ino).ok_or(Errno::STALE)
    }

    /// Opens an inode by its number, for a call without a path of the inode, and keeps the
    /// descriptor. Fails unless `attr_by_number` has found the inode before.
    fn nameless(&self, ino: u64) -> Result<SharedFd, Errno> {
        let fd = Arc::new(self.open_nameless(ino)?);
        self.descriptors.keep(ino, Arc::clone(&fd));
        Ok(fd)
    }

    fn kept(&self, ino: u64) -> Option<SharedFd> {
        if ino == self.root_ino {
            return Some(Arc::clone(&self.root));
        }
        self.descriptors.get(ino)
    }

    fn open_if(&self, node: Node<'_>, path: &[u8]) -> Result<Option<SharedFd>, Errno> {
        let fd = match self.open_beneath(path, node.kind()) {
            Ok(fd) => fd,
            Err(
                error @ (Errno::NFILE | Errno::NOMEM | Errno::ACCESS | Errno::IO | Errno::INTR),
            ) => {
                return Err(error);
            }
            // The path is wrong because another program has renamed or removed files on the host.
            Err(_) => return Ok(None),
        };
        if !self.is_node(node, fd.as_fd(), b"", &stat_fd(fd.as_fd())?) {
            return Ok(None);
        }
        let fd = Arc::new(fd);
        self.descriptors.keep(node.ino(), Arc::clone(&fd));
        Ok(Some(fd))
    }

    pub(crate) fn open_beneath(&self, path: &[u8], kind: FileKind) -> Result<OwnedFd, Errno> {
        let open = |how| self.retry_full(|| self.resolver.open(self.root.as_fd(), path, how));
        if kind == FileKind::Directory {
            match open(OFlags::DIRECTORY) {
                // Opening the directory for reading fails if the directory may only be searched, or
                // if the open would trigger an automount. Open such a directory with `O_PATH`.
                Err(Errno::ACCESS | Errno::XDEV) => {}
                opened => return opened,
            }
        }
        open(OFlags::PATH)
    }

    /// Repeats `open` after closing all reusable descriptors, if the process has no descriptor
    /// left.
    ///
    /// # Errors
    /// `ENFILE` instead of `EMFILE`, since the limit is that of this process, and not that of the
    /// client's process.
    pub(crate) fn retry_full<R>(&self, open: impl Fn() -> Result<R, Errno>) -> Result<R, Errno> {
        match open() {
            Err(Errno::MFILE | Errno::NFILE) => {
                self.descriptors.drop_reusable();
                open().map_err(|error| if error == Errno::MFILE { Errno::NFILE } else { error })
            }
            other => other,
        }
    }

    /// Returns the attributes of an inode. If no descriptor of it is kept, reads them by name,
    /// which needs only a descriptor of the directory. The ACL is not read, so `has_acl` may be
    /// true for an inode without an ACL.
    ///
    /// # Errors
    /// The errors of [`HostFs::at`] and [`HostFs::status`].
    pub(crate) fn attr_by_fd_or_name(&self, node: Node<'_>) -> Result<Attr, Errno> {
        if let Some(fd) = self.kept(node.ino()) {
            return self.attr_maybe_acl(fd.as_fd());
        }
        if node.kind() != FileKind::Directory
            && let Some(attr) = self.attr_by_name(node)
        {
            return Ok(attr);
        }
        self.attr_maybe_acl(self.at(node)?.as_fd())
    }

    fn attr_by_name(&self, node: Node<'_>) -> Option<Attr> {
        let path = node.path().ok()?;
        let slash = path.iter().rposition(|&b| b == b'/')?;
        let (above, name) = (&path[..slash], &path[slash + 1..]);
        let dir = match above {
            b"" => Arc::clone(&self.root),
            above => self.directory(above)?,
        };
        match self.status(dir.as_fd(), name) {
            Ok(status) if self.is_node(node, dir.as_fd(), name, &status) => {
                let may_have_acl = self.has_acl(&status, || Ok(true)).ok()?;
                Some(self.attr(&status, may_have_acl))
            }
            _ => {
                self.directory_paths.forget(above);
                None
            }
        }
    }

    /// Returns a descriptor of the directory at `path`, or `None` if it cannot be opened. Another
    /// program may have replaced the directory. So the caller checks the inode number of each file
    /// that it finds there.
    fn directory(&self, path: &[u8]) -> Option<SharedFd> {
        if let Some(ino) = self.directory_paths.get(path)
            && let Some(fd) = self.descriptors.get(ino)
        {
            return Some(fd);
        }
        let fd = self.open_beneath(path, FileKind::Directory).ok()?;
        let (ino, fd) = (stat_fd(fd.as_fd()).ok()?.stx_ino, Arc::new(fd));
        self.descriptors.keep(ino, Arc::clone(&fd));
        self.directory_paths.note(path, ino);
        Some(fd)
    }

    /// Returns the status of `name` in a directory, or of the directory itself for an empty name.
    ///
    /// If another file system is mounted on `name`, the call fails immediately: this process may
    /// serve that file system, and would wait for itself.
    ///
    /// # Errors
    /// `EXDEV` if `name` is the root of a mount, or on another file system.
    #[inline]
    pub(crate) fn status(&self, dir: BorrowedFd<'_>, name: &[u8]) -> Result<Statx, Errno> {
        if name.is_empty() {
            return self.check_device(stat_fd(dir)?);
        }
        let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
        let known = statx(dir, name, flags | AtFlags::STATX_DONT_SYNC, WANTED)?;
        let known = self.check_device(known)?;
        match self.reach {
            Reach::Local => Ok(known),
            Reach::Remote => self.check_device(statx(dir, name, flags, WANTED)?),
        }
    }

    #[inline]
    fn check_device(&self, status: Statx) -> Result<Statx, Errno> {
        let is_root = status.stx_ino == self.root_ino;
        let is_mount = status.stx_attributes.contains(rustix::fs::StatxAttributes::MOUNT_ROOT);
        if (status.stx_dev_major, status.stx_dev_minor) != self.device || (is_mount && !is_root) {
            return Err(Errno::XDEV);
        }
        Ok(status)
    }
}

impl Reach {
    fn of(root: BorrowedFd<'_>) -> Reach {
        match fstatfs(root) {
            Ok(all) if LOCAL.contains(&(all.f_type as u32)) => Reach::Local,
            _ => Reach::Remote,
        }
    }
}

#[inline]
pub(crate) fn stat_fd(fd: BorrowedFd<'_>) -> Result<Statx, Errno> {
    statx(fd, c"", AtFlags::EMPTY_PATH | AtFlags::NO_AUTOMOUNT, WANTED)
}

/// Returns the path of the file in `/proc`, for system calls that refuse an `O_PATH` descriptor.
/// Even for a symbolic link, the path leads to the file itself.
pub(crate) fn magic(fd: BorrowedFd<'_>) -> String {
    format!("/proc/self/fd/{}", fd.as_raw_fd())
}

pub(crate) fn reopen(fd: BorrowedFd<'_>, flags: OFlags) -> Result<OwnedFd, Errno> {
    open(magic(fd), flags | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY, Mode::empty())
}

impl FileSystem for HostFs {
    fn addressing(&self) -> Addressing {
        Addressing::Path
    }

    fn root(&self) -> Result<Attr, Errno> {
        self.attr_of(self.root.as_fd())
    }

    fn lookup(&self, dir: Node<'_>, name: Name<'_>) -> Result<Attr, Errno> {
        self.lookup_name(dir, name)
    }

    fn by_number(&self, ino: u64, generation: Option<u64>) -> Result<Attr, Errno> {
        self.attr_by_number(ino, generation)
    }

    fn parent(&self, dir: Node<'_>) -> Result<u64, Errno> {
        self.parent_of(dir)
    }

    fn getattr(&self, node: Node<'_>) -> Result<Attr, Errno> {
        self.attr_by_fd_or_name(node)
    }

    fn setattr(&self, node: Node<'_>, set: &SetAttr) -> Result<Attr, Errno> {
        self.change_attr(node, set)
    }

    fn make(&self, dir: Node<'_>, name: Name<'_>, what: &Make<'_>) -> Result<Attr, Errno> {
        self.make_name(dir, name, what)
    }

    fn remove(&self, dir: Node<'_>, name: Name<'_>, node: Node<'_>) -> Result<(), Errno> {
        self.remove_name(dir, name, node)
    }

    fn rename(
        &self,
        from: (Node<'_>, Name<'_>),
        to: (Node<'_>, Name<'_>),
        mode: RenameMode,
    ) -> Result<(), Errno> {
        self.rename_name(from, to, mode)
    }

    fn readdir(&self, dir: Node<'_>, cookie: u64, sink: &mut DirSink<'_>) -> Result<(), Errno> {
        self.list(dir, cookie, sink)
    }

    fn read(&self, node: Node<'_>, offset: u64, buf: &mut [u8]) -> Result<usize, Errno> {
        self.read_at(node, offset, buf)
    }

    fn write(&self, node: Node<'_>, offset: u64, bytes: &[u8]) -> Result<usize, Errno> {
        self.write_at(node, offset, bytes)
    }

    fn append(&self, node: Node<'_>, end: u64, bytes: &[u8]) -> Result<usize, Errno> {
        self.write_at_end(node, end, bytes)
    }

    fn link(&self, node: Node<'_>, dir: Node<'_>, name: Name<'_>) -> Result<Attr, Errno> {
        self.link_name(node, dir, name)
    }

    fn readlink(&self, node: Node<'_>) -> Result<Vec<u8>, Errno> {
        let target = rustix::fs::readlinkat(&*self.at(node)?, c"", Vec::new())?;
        Ok(target.into_bytes())
    }

    fn tmpfile(&self, dir: Node<'_>, what: &Make<'_>) -> Result<Attr, Errno> {
        self.make_nameless(dir, what)
    }

    fn open(&self, node: Node<'_>, flags: u32) -> Result<Opened, Errno> {
        self.open_file(node, flags)
    }

    fn has_open_state(&self) -> bool {
        true
    }

    /// Returns false if files are opened with `O_NOATIME`, because the kernel would open a backing
    /// file again without that flag.
    fn has_backing_files(&self) -> bool {
        self.atime.others != Atime::Never
    }

    /// Opens the file only for reading. With a descriptor for writing, the host would refuse to run
    /// the file as a program (`ETXTBSY`).
    fn backing_file(&self, node: Node<'_>) -> Option<SharedFd> {
        let open = self.descriptors.get_open(node.ino(), node.handle())?;
        Some(SharedFd::new(self.reopen_file(&*open, OFlags::RDONLY).ok()?))
    }

    fn release(&self, node: Node<'_>) {
        self.descriptors.close(node.ino(), node.handle());
    }

    fn waits(&self) -> bool {
        false
    }

    fn fsync_waits(&self) -> bool {
        true
    }

    fn fsync(&self, node: Node<'_>, data_only: bool) -> Result<(), Errno> {
        self.sync(node, data_only)
    }

    fn statfs(&self) -> Result<StatFs, Errno> {
        Ok(StatFs::from(&fstatvfs(&*self.root)?))
    }

    fn fallocate(
        &self,
        node: Node<'_>,
        offset: u64,
        len: u64,
        how: Fallocate,
    ) -> Result<(), Errno> {
        self.allocate(node, offset, len, how)
    }

    fn copy_file_range(
        &self,
        from: (Node<'_>, u64),
        to: (Node<'_>, u64),
        len: u64,
    ) -> Result<u64, Errno> {
        self.copy_range(from, to, len)
    }

    fn seek(&self, node: Node<'_>, offset: u64, what: Seek) -> Result<u64, Errno> {
        self.find_data(node, offset, what)
    }

    fn getxattr(&self, node: Node<'_>, name: &[u8]) -> Result<Vec<u8>, Errno> {
        self.xattr_of(self.at(node)?.as_fd(), name)
    }

    fn setxattr(
        &self,
        node: Node<'_>,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
    ) -> Result<(), Errno> {
        self.set_xattr_of(self.at(node)?.as_fd(), name, value, mode)
    }

    fn listxattr(&self, node: Node<'_>) -> Result<Vec<u8>, Errno> {
        self.xattrs_of(self.at(node)?.as_fd())
    }

    fn removexattr(&self, node: Node<'_>, name: &[u8]) -> Result<(), Errno> {
        rustix::fs::removexattr(magic(self.at(node)?.as_fd()), name)
    }

    fn get_acl(&self, node: Node<'_>, kind: AclKind) -> Result<Option<Acl>, Errno> {
        if self.acls == AclSupport::No || node.kind() == FileKind::Symlink {
            return Ok(None);
        }
        self.acl_of(self.at(node)?.as_fd(), kind)
    }

    fn set_acl(
        &self,
        node: Node<'_>,
        kind: AclKind,
        acl: Option<&Acl>,
        mode: Option<u32>,
    ) -> Result<(), Errno> {
        self.set_acl_of(self.at(node)?.as_fd(), kind, acl, mode)
    }

    fn has_locks(&self) -> bool {
        self.has_locks
    }

    fn get_lock(&self, node: Node<'_>, lock: &FileLock) -> Result<Option<FileLock>, Errno> {
        self.find_lock(node, lock)
    }

    fn set_lock(&self, node: Node<'_>, lock: &FileLock) -> Result<(), Errno> {
        self.take_lock(node, lock)
    }

    fn unlock_owner(&self, node: Node<'_>, owner: u64, is_flock: bool) -> Result<(), Errno> {
        self.drop_locks(node, owner, is_flock)
    }

    fn inode_flags(&self, node: Node<'_>) -> Result<InodeFlags, Errno> {
        self.flags_of(node)
    }

    fn set_inode_flags(&self, node: Node<'_>, flags: InodeFlags) -> Result<(), Errno> {
        self.set_flags(node, flags)
    }

    fn forget(&self, ino: u64, _: u64) {
        self.descriptors.forget(ino);
        if let Some(handles) = &self.handles {
            handles.forget(ino);
        }
    }
}

impl std::fmt::Debug for HostFs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut text = f.debug_struct("HostFs");
        text.field("root", &self.root).field("resolver", &self.resolver);
        text.field("acls", &self.acls).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use corewalk::attr::mode::S_IFREG;
    use corewalk::{Cred, May, Removal, Vfs, VfsOptions};

    use super::*;

    #[test]
    fn attributes_of_files_need_only_a_descriptor_of_their_directory() {
        let root = std::env::temp_dir().join(format!("corewalk-attributes-{}", std::process::id()));
        std::fs::create_dir_all(root.join("d/e")).unwrap();
        let ino = |path: &str| std::fs::metadata(root.join(path)).unwrap().ino();
        for path in ["d/a", "d/e/b"] {
            std::fs::write(root.join(path), b"12345").unwrap();
        }
        let fs = Arc::new(HostFs::new(&root, HostFsOptions::default()).unwrap());
        let shared: Arc<dyn FileSystem> = Arc::<HostFs>::clone(&fs);
        let vfs = Vfs::new(shared, VfsOptions::default()).unwrap();
        let lookup = |dir: &_, name: &[u8]| {
            vfs.lookup(&Cred::root(), dir, Name::new(name).unwrap()).unwrap()
        };
        let d = lookup(&vfs.root(), b"d");
        let (a, e) = (lookup(&d, b"a"), lookup(&d, b"e"));
        let b = lookup(&e, b"b");
        fs.descriptors.drop_reusable();
        for _ in 0..2 {
            assert_eq!((vfs.getattr(&a).unwrap().size, vfs.getattr(&b).unwrap().size), (5, 5));
        }
        let has = |path| fs.descriptors.get(ino(path)).is_some();
        assert_eq!(["d", "d/e", "d/a", "d/e/b"].map(has), [true, true, false, false]);
        std::fs::rename(root.join("d/e"), root.join("old")).unwrap();
        std::fs::create_dir(root.join("d/e")).unwrap();
        std::fs::rename(root.join("old/b"), root.join("d/e/b")).unwrap();
        assert_eq!(vfs.getattr(&b).unwrap().ino, ino("d/e/b"));
        std::fs::write(root.join("new"), b"1").unwrap();
        std::fs::rename(root.join("new"), root.join("d/a")).unwrap();
        assert_eq!(vfs.getattr(&a), Err(Errno::STALE));
        std::fs::remove_dir_all(&root).unwrap();
    }

    #[test]
    fn fresh_file_is_taken_once_and_with_its_access_mode() {
        let root = std::env::temp_dir().join(format!("corewalk-fresh-{}", std::process::id()));
        std::fs::create_dir_all(&root).unwrap();
        let fs = Arc::new(HostFs::new(&root, HostFsOptions::default()).unwrap());
        let shared: Arc<dyn FileSystem> = Arc::<HostFs>::clone(&fs);
        let vfs = Vfs::new(shared, VfsOptions::default()).unwrap();
        let (cred, write) = (Cred::root(), OFlags::WRONLY.bits());
        let make = |name: &[u8]| {
            let what = Make::new(S_IFREG | 0o444, 0, 0).with_open(write);
            vfs.make(&cred, &vfs.root(), Name::new(name).unwrap(), what).unwrap().0
        };
        let is_fresh = |ino| fs.descriptors.take_fresh(ino, OFlags::WRONLY).is_some();
        let (a, b) = (make(b"a"), make(b"b"));
        let reader = vfs.open(&cred, &a, 0, May::READ).unwrap().handle;
        let writer = vfs.open(&cred, &a, write, May::empty()).unwrap().handle;
        assert!(!is_fresh(a.ino()));
        assert_eq!(vfs.write(&cred, &a, writer, 0, b"text"), Ok(4));
        assert_eq!(vfs.read(&a, reader, 0, &mut [0; 8]), Ok(4));
        let ino = b.ino();
        vfs.remove(&cred, &vfs.root(), Name::new(b"b").unwrap(), Removal::Unlink).unwrap();
        drop(b);
        assert!(!is_fresh(ino), "the inode is not in use");
        std::fs::remove_dir_all(&root).unwrap();
    }
}
