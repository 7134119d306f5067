//! Notifications that make the kernel drop cached names and inodes, for example after another
//! program has changed them.
//!
//! A back end must not call the functions of this module while it serves a request. To drop a name,
//! the kernel locks the directory. The client of the request may hold that lock until it gets the
//! answer. So the server would wait for its own answer.
//!
//! The module [`shrinker`](crate::shrinker) sends the notifications that keep the cache within its
//! budget.
//!
//! Source: Linux `fuse_reverse_inval_entry` and `fuse_reverse_inval_inode`.

use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::sync::{Arc, Weak};

use corewalk::{Errno, FileKind, Name};

use crate::mount::{Device, MountsBelow, Pages};
use crate::service::Service;

/// The kernel's cache of a mount.
///
/// Call the methods of a `KernelCache` after a change that was not made through the mount. Each
/// method drops the cached answer from corewalk's cache, and then from the kernel's cache. The
/// methods wait for the kernel, so a [`FileSystem`](corewalk::FileSystem) must not call them while
/// it serves a request.
///
/// # Examples
/// ```no_run
/// use std::{path::Path, sync::Arc};
/// use corewalk::tmpfs::{Tmpfs, TmpfsOptions};
/// use corewalk_fuse::{Mount, MountOptions, Options};
///
/// let fs = Arc::new(Tmpfs::new(TmpfsOptions::default()));
/// let mount = Mount::new(fs, Path::new("/mnt"), Options::exclusive(), &MountOptions::default())?;
/// let name = corewalk::Name::new(b"file")?;
/// let root = mount.server().vfs().root().ino();
/// mount.kernel_cache().invalidate_entry(root, name)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct KernelCache {
    server: Arc<dyn Service>,
    device: Arc<Device>,
}

impl KernelCache {
    pub(crate) fn new(server: Arc<dyn Service>, device: Arc<Device>) -> KernelCache {
        KernelCache { server, device }
    }

    /// Drops the cached answer for `name` in the directory with inode number `parent`.
    /// [`KernelCache`] has an example.
    ///
    /// If the name is that of a directory, the kernel also detaches every file system mounted on or
    /// below the directory, as umount(2) would.
    ///
    /// # Errors
    /// The errors of the kernel, such as `ENOTDIR`. If the kernel has nothing cached, that is no
    /// error.
    pub fn invalidate_entry(&self, parent: u64, name: Name<'_>) -> Result<(), Errno> {
        let mut nodes = self.server.nodes_of(parent).into_iter();
        nodes.try_for_each(|node| self.drop_entry(node, name, false))
    }

    /// Drops the name `name` of the directory with node number `parent` from corewalk's cache and
    /// from the kernel's cache. Also makes the kernel drop the listings of the directories at and
    /// below the name. With `with_files`, the kernel drops the attributes and pages of the files
    /// there too.
    fn drop_entry(&self, parent: u64, name: Name<'_>, with_files: bool) -> Result<(), Errno> {
        let mut nodes = Vec::new();
        let dropped = self.server.invalidate_name(parent, name, &mut |node, kind| {
            if with_files || kind == FileKind::Directory {
                nodes.push(node);
            }
        });
        match dropped {
            // `ENOENT` means that the directory was removed, so corewalk's cache has no names of
            // it.
            Ok(()) | Err(Errno::NOENT) => {}
            Err(Errno::STALE) => return Ok(()),
            Err(error) => return Err(error),
        }
        self.device.notify_inval_entry(parent, name.as_bytes())?;
        nodes.into_iter().try_for_each(|node| self.device.notify_inval_inode(node, Pages::Drop))
    }

    /// Drops the cached answer for the name at `path`, for example because a file was made, renamed
    /// or removed there. If the name is that of a directory, everything below it is dropped too.
    /// `path` is relative to the root of the mount, with or without a slash in front.
    ///
    /// # Errors
    /// The errors of [`KernelCache::invalidate_entry`]; `EINVAL` for the root; the errors of
    /// [`Name::new`]. If nothing is cached, that is no error.
    ///
    /// # Examples
    /// ```
    /// use std::path::Path;
    /// use corewalk::Errno;
    /// use corewalk_fuse::KernelCache;
    ///
    /// /// Another program has renamed `from` to `to`, so both names have changed.
    /// fn renamed(kernel: &KernelCache, from: &Path, to: &Path) -> Result<(), Errno> {
    ///     kernel.invalidate_entry_at(from)?;
    ///     kernel.invalidate_entry_at(to)
    /// }
    /// ```
    pub fn invalidate_entry_at(&self, path: &Path) -> Result<(), Errno> {
        self.drop_path(path, false)
    }

    /// Drops the last name of `path` in each directory that the rest of `path` leads to. The rest
    /// may lead to several directories. Besides the current one, these are directories that the
    /// names led to before an invalidation, and that are still in use. The kernel may know names in
    /// them.
    fn drop_path(&self, path: &Path, with_files: bool) -> Result<(), Errno> {
        let vfs = self.server.vfs();
        let path = path.as_os_str().as_bytes();
        let mut names = path.split(|&byte| byte == b'/').filter(|name| !name.is_empty()).peekable();
        let mut dirs = vec![vfs.root()];
        while let Some(name) = names.next() {
            let (name, is_last) = (Name::new(name)?, names.peek().is_none());
            let mut below = Vec::new();
            for dir in &dirs {
                let known = match is_last {
                    true => Vec::new(),
                    false => vfs.directories_at(dir, name).unwrap_or_default(),
                };
                // The kernel may have a directory that corewalk's cache lacks. So make the kernel
                // drop the name of that directory, with everything below it.
                if known.is_empty() {
                    self.drop_entry(self.server.translate(dir.ino()), name, with_files)?;
                }
                below.extend(known);
            }
            if is_last || below.is_empty() {
                return Ok(());
            }
            dirs = below;
        }
        Err(Errno::INVAL)
    }

    /// Drops all cached names, also those of missing files, and all cached listings. The next use
    /// of a name asks the back end for the name and its attributes. Call this method when anything
    /// may have changed, for example after notifications of the back end were lost.
    ///
    /// The kernel also detaches every file system that is mounted on a directory of this mount, as
    /// umount(2) would.
    ///
    /// The kernel keeps the pages and the attributes of files that are open.
    /// [`KernelCache::invalidate_inode`] drops them. If the server answers a listing during the
    /// call, the kernel may cache that listing after the call. The listing stays there until the
    /// timeouts of its entries end. A second call a little later drops it earlier.
    ///
    /// # Errors
    /// `EINVAL` if the kernel is older than 6.16. Then only corewalk's cache has dropped its names,
    /// and the caller has to drop the kernel's names one by one.
    ///
    /// # Examples
    /// ```
    /// use std::path::Path;
    /// use corewalk::Errno;
    /// use corewalk_fuse::KernelCache;
    ///
    /// /// `names` are the names in the root directory. Each stands for everything below it.
    /// fn expire_all(kernel: &KernelCache, names: &[&Path]) -> Result<(), Errno> {
    ///     match kernel.expire_all_names() {
    ///         Err(Errno::INVAL) => {
    ///             names.iter().try_for_each(|name| kernel.invalidate_entry_at(name))
    ///         }
    ///         done => done,
    ///     }
    /// }
    /// ```
    #[doc(alias = "FUSE_NOTIFY_INC_EPOCH")]
    pub fn expire_all_names(&self) -> Result<(), Errno> {
        let mut directories = Vec::new();
        self.server.invalidate_all(&mut |node| directories.push(node));
        self.device.notify_inc_epoch()?;
        // The kernel caches a listing with its directory, so the expiry of names does not drop it.
        directories
            .into_iter()
            .try_for_each(|node| self.device.notify_inval_inode(node, Pages::Drop))
    }

    /// Drops the cached attributes and pages of the file at `path`, because its content or its
    /// attributes have changed. If there is no file at `path`, drops the cached answer for the
    /// name.
    ///
    /// `path` is relative to the root of the mount, as in [`KernelCache::invalidate_entry_at`]. The
    /// lookup of the path may call the back end. For an
    /// [`AsyncFileSystem`](crate::AsyncFileSystem), it uses only the cache.
    ///
    /// # Errors
    /// The errors of [`KernelCache::invalidate_inode`], of [`Name::new`] and of the back end.
    ///
    /// # Examples
    /// ```
    /// use std::path::Path;
    /// use corewalk::Errno;
    /// use corewalk_fuse::KernelCache;
    ///
    /// /// Another program has written the files at these paths.
    /// fn written(kernel: &KernelCache, paths: &[&Path]) -> Result<(), Errno> {
    ///     paths.iter().try_for_each(|path| kernel.invalidate_inode_at(path))
    /// }
    /// ```
    pub fn invalidate_inode_at(&self, path: &Path) -> Result<(), Errno> {
        let bytes = path.as_os_str().as_bytes();
        let names = bytes.split(|&byte| byte == b'/').filter(|name| !name.is_empty());
        let names: Vec<Name<'_>> = names.map(Name::new).collect::<Result<_, _>>()?;
        match self.server.resolve(&mut names.into_iter()) {
            Ok(node) => self.drop_inode(node),
            Err(Errno::NOENT | Errno::NOTDIR) => self.drop_path(path, true),
            Err(error) => Err(error),
        }
    }

    /// Drops the cached attributes and pages of the inode with number `ino`.
    ///
    /// # Errors
    /// The errors of the kernel. If the kernel has nothing cached, that is no error.
    ///
    /// # Examples
    /// ```
    /// use std::sync::mpsc::Receiver;
    /// use corewalk_fuse::KernelCache;
    ///
    /// /// The storage reports the numbers of the inodes that another machine has changed.
    /// fn follow(kernel: &KernelCache, changed: &Receiver<u64>) {
    ///     for ino in changed {
    ///         if let Err(error) = kernel.invalidate_inode(ino) {
    ///             eprintln!("programs may read old content of inode {ino}: {error}");
    ///         }
    ///     }
    /// }
    /// ```
    pub fn invalidate_inode(&self, ino: u64) -> Result<(), Errno> {
        self.server.nodes_of(ino).into_iter().try_for_each(|node| self.drop_inode(node))
    }

    fn drop_inode(&self, node: u64) -> Result<(), Errno> {
        match self.server.invalidate_attributes(node) {
            Ok(()) => {}
            // The kernel holds no lookup of the inode, so it has cached nothing about the inode.
            Err(Errno::STALE) => return Ok(()),
            Err(error) => return Err(error),
        }
        self.device.notify_inval_inode(node, Pages::Drop)
    }
}

/// Sends notifications to the kernel. The server needs one, for example, if a request makes an
/// answer in the kernel's cache wrong, and its own answer cannot correct that. After the mount has
/// ended, no method has an effect.
#[derive(Clone, Debug)]
pub(crate) struct Notifier {
    /// The `/dev/fuse` of the mount. The reference is weak, because a server that lives longer than
    /// its mount would otherwise keep the device open.
    device: Weak<Device>,
    below: Arc<MountsBelow>,
}

impl Notifier {
    pub(crate) fn new(device: &Arc<Device>, below: MountsBelow) -> Notifier {
        Notifier { device: Arc::downgrade(device), below: Arc::new(below) }
    }

    pub(crate) fn device(&self) -> Option<Arc<Device>> {
        self.device.upgrade()
    }

    /// Returns true if no file system is mounted on a directory of the mount. Otherwise the names
    /// in the kernel must not expire, because the kernel would detach that file system.
    pub(crate) fn can_expire_names(&self) -> bool {
        !self.below.is_any()
    }

    /// Makes the kernel look up each name again. Any thread may call this method.
    ///
    /// # Errors
    /// `EBUSY` if a file system is mounted on a directory of the mount, because the kernel would
    /// detach that file system. `EINVAL` if the kernel is older than 6.16. `ENODEV` if the mount
    /// has ended.
    pub(crate) fn expire_names(&self) -> Result<(), Errno> {
        let device = self.device.upgrade().ok_or(Errno::NODEV)?;
        match self.can_expire_names() {
            true => device.notify_inc_epoch(),
            false => Err(Errno::BUSY),
        }
    }

    /// Makes the kernel drop the cached attributes of `node`, but not its pages. A thread that
    /// serves requests may call this method, because the kernel takes no lock of the inode.
    pub(crate) fn drop_attributes(&self, node: u64) {
        self.drop_inode(node, Pages::Keep);
    }

    /// Makes the kernel drop the cached attributes of `node`. With [`Pages::Drop`], the kernel
    /// drops the cached pages too. Then a thread that serves requests must not call this method,
    /// because the kernel may first have to write pages.
    pub(crate) fn drop_inode(&self, node: u64, pages: Pages) {
        let Some(device) = self.device.upgrade() else { return };
        if let Err(error) = device.notify_inval_inode(node, pages) {
            log::debug!("cannot make the kernel drop node {node}: {error}");
        }
    }

    /// Makes the kernel drop the cached name `name` in the directory `parent`. A thread that serves
    /// requests must not call this method, because the kernel locks the directory.
    pub(crate) fn drop_entry(&self, parent: u64, name: &[u8]) {
        let Some(device) = self.device.upgrade() else { return };
        if let Err(error) = device.notify_inval_entry(parent, name) {
            log::debug!("cannot make the kernel drop a name in node {parent}: {error}");
        }
    }

    /// Makes clients that wait for an open file in poll(2) ask for its events again.
    /// `kernel_handle` is the kernel's number of the open file. Any thread may call this method,
    /// because the kernel takes no lock of a file for it.
    pub(crate) fn wake_pollers(&self, kernel_handle: u64) {
        let Some(device) = self.device.upgrade() else { return };
        if let Err(error) = device.notify_poll(kernel_handle) {
            log::debug!("cannot wake the clients that poll a file: {error}");
        }
    }
}
