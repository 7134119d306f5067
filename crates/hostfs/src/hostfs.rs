//! The file system itself: from an inode to a descriptor, and from a call to its operation.
//!
//! [`HostFs::at`] is where every call begins. An inode that was used lately, was unlinked, or is open
//! has a descriptor. For any other inode the cache gives a path, which is resolved beneath the root
//! and checked by number. The path stays true until the call returns, as far as this server renames
//! (`FileSystem`, F.6). A path that leads elsewhere was changed on the host: the other names that the
//! cache knows are tried, and an inode that none of them leads to is `ESTALE`.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use corewalk::acl::Acl;
use corewalk::{
    AclKind, Addressing, AtimePolicy, Attr, DirSink, Errno, Fallocate, FileKind, FileSystem, Make,
    Name, Node, RenameMode, Seek, SetAttr, StatFs, XattrMode,
};
use rustix::fs::{AtFlags, Mode, OFlags, Statx, StatxFlags, fstatfs, fstatvfs, open, statx};
use rustix::process::{Resource, getegid, geteuid, getrlimit};

use crate::beneath::Resolver;
use crate::descriptors::{Descriptors, SharedFd, Shares};
use crate::generations::Generations;
use crate::handles::Handles;
use crate::places::Places;

/// What statx(2) is asked for.
const WANTED: StatxFlags = StatxFlags::BASIC_STATS.union(StatxFlags::BTIME);

/// The magic numbers (statfs(2)) of file systems that know all about their files: btrfs, ext4, f2fs, tmpfs,
/// xfs. Not those that may lie over others, as overlayfs.
const LOCAL: [u32; 5] = [0x9123_683e, 0xef53, 0xf2f5_2010, 0x0102_1994, 0x5846_5342];

/// How a host directory is served.
#[derive(Clone, Copy, Debug)]
pub struct HostFsOptions {
    /// Descriptors of recently used inodes that are kept for reuse.
    pub reusable: usize,
    /// Descriptors of inodes that were unlinked while in use, at most. A file that is open is
    /// reached through its open descriptor as well.
    pub orphans: usize,
    /// Descriptors that clients' open files leave to calls while they run and to the rest of the
    /// process: about five for each thread that makes calls. The limit (`RLIMIT_NOFILE`) is asked for
    /// by [`HostFs::new`]. Where it is low, all three are less.
    pub reserved: usize,
    /// When reading sets the time of the last access: `Never` opens with `O_NOATIME` where the host
    /// allows it (a file of the server's user, or `CAP_FOWNER`). Otherwise the host decides by its
    /// own mount.
    pub atime: AtimePolicy,
}

impl Default for HostFsOptions {
    /// Returns 64 of each, 32 reserved, and access times as the host keeps them.
    fn default() -> HostFsOptions {
        let atime = AtimePolicy::default();
        HostFsOptions { reusable: 64, orphans: 64, reserved: 32, atime }
    }
}

/// A directory of the host. See the crate's text.
pub struct HostFs {
    pub(crate) root: SharedFd,
    pub(crate) root_ino: u64,
    /// The device of the root; nothing else is entered.
    pub(crate) device: (u32, u32),
    resolver: Resolver,
    pub(crate) descriptors: Descriptors,
    places: Places,
    pub(crate) generations: Generations,
    /// None if the host file system has no handles.
    pub(crate) handles: Option<Handles>,
    /// Whether the host file system asks another machine, or process, about its files.
    reach: Reach,
    /// Whether the host file system has POSIX ACLs.
    pub(crate) acls: AclSupport,
    pub(crate) atime: AtimePolicy,
    /// The user and the group that new files belong to.
    pub(crate) owner: (u32, u32),
}

/// Whether a host file system asks another machine, or process, about its files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reach {
    /// Never.
    Local,
    /// It does, or may do.
    Remote,
}

/// Whether a host file system has POSIX ACLs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AclSupport {
    /// It has, or may have.
    Yes,
    /// Asking for one is `EOPNOTSUPP`.
    No,
}

impl HostFs {
    /// Returns the file system whose root is the directory `root`, through whatever symbolic links
    /// lead there.
    ///
    /// # Errors
    /// `ENOENT`, `ENOTDIR`, `EACCES` for the directory; `ENOSYS` without `/proc`.
    pub fn new(root: &Path, options: HostFsOptions) -> Result<HostFs, Errno> {
        let flags = OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = match open(root, flags, Mode::empty()) {
            // It may be searched and not read.
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
            places: Places::default(),
            generations: Generations::default(),
            acls: AclSupport::Yes,
            owner: (geteuid().as_raw(), getegid().as_raw()),
        };
        if fs.acl_of(fs.root.as_fd(), AclKind::Access).err() == Some(Errno::OPNOTSUPP) {
            fs.acls = AclSupport::No;
        }
        Ok(fs)
    }

    /// Returns a descriptor of the inode: of a directory one to read it with, if that is allowed, of
    /// anything else one that is good for what `O_PATH` is good for.
    ///
    /// # Errors
    /// `ESTALE` if no path of the cache leads to it any more (H.1); `ENFILE`.
    pub(crate) fn at(&self, node: Node<'_>) -> Result<SharedFd, Errno> {
        let ino = node.ino();
        if let Some(fd) = self.kept(ino) {
            return Ok(fd);
        }
        // Without a name only a descriptor could have reached it, and it may have been removed, and
        // kept, while this call waited for the removal.
        let Ok(path) = node.path() else {
            return self.descriptors.get(ino).map_or_else(|| self.nameless(ino), Ok);
        };
        if let Some(fd) = self.open_if(node, &path)? {
            return Ok(fd);
        }
        // That name may have been removed on the host, and another be there.
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

    /// Returns a descriptor of an inode that has no name in the cache, if it was asked for by number.
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

    /// Returns a descriptor of what `path` leads to if that is inode `ino`, and keeps it for reuse.
    fn open_if(&self, node: Node<'_>, path: &[u8]) -> Result<Option<SharedFd>, Errno> {
        let fd = match self.open_beneath(path, node.kind()) {
            Ok(fd) => fd,
            Err(
                error @ (Errno::NFILE | Errno::NOMEM | Errno::ACCESS | Errno::IO | Errno::INTR),
            ) => {
                return Err(error);
            }
            // The name is gone, or something else has taken it or a name above.
            Err(_) => return Ok(None),
        };
        if !self.is_node(node, fd.as_fd(), b"", &stat_fd(fd.as_fd())?) {
            return Ok(None);
        }
        let fd = Arc::new(fd);
        self.descriptors.keep(node.ino(), Arc::clone(&fd));
        Ok(Some(fd))
    }

    /// Returns a descriptor of what `path` leads to, which should be of `kind`.
    pub(crate) fn open_beneath(&self, path: &[u8], kind: FileKind) -> Result<OwnedFd, Errno> {
        let open = |how| self.retry_full(|| self.resolver.open(self.root.as_fd(), path, how));
        if kind == FileKind::Directory {
            match open(OFlags::DIRECTORY) {
                // It may be searched and not read, or something would be mounted on it first.
                Err(Errno::ACCESS | Errno::XDEV) => {}
                opened => return opened,
            }
        }
        open(OFlags::PATH)
    }

    /// Runs `open`, and once more without the descriptors kept for reuse if there are too many.
    ///
    /// # Errors
    /// `ENFILE` for `EMFILE`: the limit is that of this process, and not of the client's.
    pub(crate) fn retry_full<R>(&self, open: impl Fn() -> Result<R, Errno>) -> Result<R, Errno> {
        match open() {
            Err(Errno::MFILE | Errno::NFILE) => {
                self.descriptors.drop_reusable();
                open().map_err(|error| if error == Errno::MFILE { Errno::NFILE } else { error })
            }
            other => other,
        }
    }

    /// Returns the attributes of an inode, which may have an ACL. One that has no descriptor gets none
    /// for this, unless it is a directory, which others are reached by.
    ///
    /// # Errors
    /// As [`HostFs::at`] and [`HostFs::status`].
    pub(crate) fn attr_now(&self, node: Node<'_>) -> Result<Attr, Errno> {
        if let Some(fd) = self.kept(node.ino()) {
            return self.attr_of_any(fd.as_fd());
        }
        if node.kind() != FileKind::Directory
            && let Some(attr) = self.attr_by_name(node)
        {
            return Ok(attr);
        }
        self.attr_of_any(self.at(node)?.as_fd())
    }

    /// Returns the attributes of an inode as its directory has it, if the first path that the cache
    /// gives leads there.
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
                self.places.forget(above);
                None
            }
        }
    }

    /// Returns a descriptor of the directory that `path` leads to, or has led to a while ago: what is
    /// found in it must be checked by its number.
    fn directory(&self, path: &[u8]) -> Option<SharedFd> {
        if let Some(ino) = self.places.get(path)
            && let Some(fd) = self.descriptors.get(ino)
        {
            return Some(fd);
        }
        let fd = self.open_beneath(path, FileKind::Directory).ok()?;
        let (ino, fd) = (stat_fd(fd.as_fd()).ok()?.stx_ino, Arc::new(fd));
        self.descriptors.keep(ino, Arc::clone(&fd));
        self.places.note(path, ino);
        Some(fd)
    }

    /// Returns the status of `name` in a directory, or of the directory itself for an empty name.
    ///
    /// What is mounted on the name is not asked for anything: it is not served, and if it is the mount
    /// that this call comes from, perhaps nobody else can answer. Its device is known without.
    ///
    /// # Errors
    /// `EXDEV` if it is on another file system, or the root of a mount.
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

/// Returns the status of what a descriptor refers to.
#[inline]
pub(crate) fn stat_fd(fd: BorrowedFd<'_>) -> Result<Statx, Errno> {
    statx(fd, c"", AtFlags::EMPTY_PATH | AtFlags::NO_AUTOMOUNT, WANTED)
}

/// Returns the path under which the kernel shows what a descriptor refers to: for calls that take no
/// `O_PATH` descriptor. What it leads to is not followed any further.
pub(crate) fn magic(fd: BorrowedFd<'_>) -> String {
    format!("/proc/self/fd/{}", fd.as_raw_fd())
}

/// Opens what an `O_PATH` descriptor refers to, for reading or writing.
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
        self.attr_now(node)
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

    fn read(
        &self,
        node: Node<'_>,
        handle: u64,
        offset: u64,
        buf: &mut [u8],
    ) -> Result<usize, Errno> {
        self.read_at(node, handle, offset, buf)
    }

    fn write(
        &self,
        node: Node<'_>,
        handle: u64,
        offset: u64,
        bytes: &[u8],
    ) -> Result<usize, Errno> {
        self.write_at(node, handle, offset, bytes)
    }

    fn append(&self, node: Node<'_>, handle: u64, end: u64, bytes: &[u8]) -> Result<usize, Errno> {
        self.write_at_end(node, handle, end, bytes)
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

    fn open(&self, node: Node<'_>, flags: u32) -> Result<u64, Errno> {
        self.open_file(node, flags)
    }

    fn has_open_state(&self) -> bool {
        true
    }

    fn release(&self, node: Node<'_>, handle: u64) {
        self.descriptors.close(node.ino(), handle);
    }

    fn fsync_waits(&self) -> bool {
        true
    }

    fn fsync(&self, node: Node<'_>, handle: u64, data_only: bool) -> Result<(), Errno> {
        self.sync(node, handle, data_only)
    }

    fn statfs(&self) -> Result<StatFs, Errno> {
        let all = fstatvfs(&*self.root)?;
        Ok(StatFs {
            bsize: all.f_frsize as u32,
            blocks: all.f_blocks,
            bfree: all.f_bfree,
            bavail: all.f_bavail,
            files: all.f_files,
            ffree: all.f_ffree,
            namelen: all.f_namemax as u32,
        })
    }

    fn fallocate(
        &self,
        node: Node<'_>,
        handle: u64,
        offset: u64,
        len: u64,
        how: Fallocate,
    ) -> Result<(), Errno> {
        self.allocate(node, handle, (offset, len), how)
    }

    fn seek(&self, node: Node<'_>, handle: u64, offset: u64, what: Seek) -> Result<u64, Errno> {
        self.find_data(node, handle, offset, what)
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

    fn forget(&self, ino: u64) {
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
    fn attributes_of_files_need_a_descriptor_of_their_directory_alone() {
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
        // Where they are is found out once more by each path.
        fs.descriptors.drop_reusable();
        for _ in 0..2 {
            assert_eq!((vfs.getattr(&a).unwrap().size, vfs.getattr(&b).unwrap().size), (5, 5));
        }
        let has = |path| fs.descriptors.get(ino(path)).is_some();
        assert_eq!(["d", "d/e", "d/a", "d/e/b"].map(has), [true, true, false, false]);
        // Another directory behind the same path.
        std::fs::rename(root.join("d/e"), root.join("old")).unwrap();
        std::fs::create_dir(root.join("d/e")).unwrap();
        std::fs::rename(root.join("old/b"), root.join("d/e/b")).unwrap();
        assert_eq!(vfs.getattr(&b).unwrap().ino, ino("d/e/b"));
        // Another file under the same name.
        std::fs::write(root.join("new"), b"1").unwrap();
        std::fs::rename(root.join("new"), root.join("d/a")).unwrap();
        assert_eq!(vfs.getattr(&a), Err(Errno::STALE));
        std::fs::remove_dir_all(&root).unwrap();
    }

    #[test]
    fn file_made_to_be_opened_is_opened_once_and_as_it_was_meant() {
        let root = std::env::temp_dir().join(format!("corewalk-fresh-{}", std::process::id()));
        std::fs::create_dir_all(&root).unwrap();
        let fs = Arc::new(HostFs::new(&root, HostFsOptions::default()).unwrap());
        let shared: Arc<dyn FileSystem> = Arc::<HostFs>::clone(&fs);
        let vfs = Vfs::new(shared, VfsOptions::default()).unwrap();
        let (cred, write) = (Cred::root(), OFlags::WRONLY.bits());
        let make = |name: &[u8]| {
            let what = Make { open: Some(write), ..Make::new(S_IFREG | 0o444, 0, 0) };
            vfs.make(&cred, &vfs.root(), Name::new(name).unwrap(), what).unwrap().0
        };
        let is_fresh = |ino| fs.descriptors.take_fresh(ino, OFlags::WRONLY).is_some();
        let (a, b) = (make(b"a"), make(b"b"));
        let reader = vfs.open(&cred, &a, 0, May::READ).unwrap();
        let writer = vfs.open(&cred, &a, write, May::empty()).unwrap();
        assert!(!is_fresh(a.ino()));
        assert_eq!(vfs.write(&cred, &a, writer, 0, b"text"), Ok(4));
        assert_eq!(vfs.read(&a, reader, 0, &mut [0; 8]), Ok(4));
        let ino = b.ino();
        vfs.remove(&cred, &vfs.root(), Name::new(b"b").unwrap(), Removal::Unlink).unwrap();
        drop(b);
        assert!(!is_fresh(ino), "nobody uses it");
        std::fs::remove_dir_all(&root).unwrap();
    }
}
