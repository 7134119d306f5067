//! Notifications that make the kernel drop cached names and inodes after another program has
//! changed them.
//!
//! To drop a name, the kernel locks the directory. A process that waits for the answer to a request
//! in that directory may hold the lock of the directory. If the thread that serves the request
//! tried to drop the name, it would wait for itself. So a back end must not call these functions
//! while it serves a request. The module [`shrinker`](crate::shrinker) sends the notifications that
//! keep the cache in its budget.
//!
//! Source: Linux `fuse_reverse_inval_entry` and `fuse_reverse_inval_inode`.

use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::sync::Arc;

use corewalk::{Cred, Errno, Name};

use crate::mount::{Device, Pages};
use crate::server::Server;

/// The kernel's cache of a mount.
///
/// Call its methods after a change that was not made through the mount. Each method drops the
/// cached answer from corewalk's cache, and then from the kernel's cache. The methods wait for the
/// kernel, so a [`FileSystem`](corewalk::FileSystem) must not call them while it serves a request.
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
    server: Arc<Server>,
    device: Arc<Device>,
}

impl KernelCache {
    pub(crate) fn new(server: Arc<Server>, device: Arc<Device>) -> KernelCache {
        KernelCache { server, device }
    }

    /// Drops the cached answer for `name` in the directory with inode number `parent`.
    ///
    /// # Errors
    /// The errors of the kernel, such as `ENOTDIR`. If the kernel has nothing cached, that is no
    /// error.
    pub fn invalidate_entry(&self, parent: u64, name: Name<'_>) -> Result<(), Errno> {
        match self.server.vfs().inode(parent) {
            Ok(dir) => match self.server.vfs().invalidate(&dir, name) {
                // A removed directory has no names.
                Err(Errno::NOENT) => {}
                result => result?,
            },
            // The kernel holds no lookup of the directory, so it cannot have cached a name in it.
            Err(Errno::STALE) => return Ok(()),
            Err(error) => return Err(error),
        }
        self.device.notify_inval_entry(self.server.translate(parent), name.as_bytes())
    }

    /// Drops the cached answer for the name at `path`, for example because a file was made, renamed
    /// or removed there. `path` is relative to the root of the mount, with or without a slash in
    /// front. A directory's path also stands for everything below it.
    ///
    /// # Errors
    /// The errors of [`KernelCache::invalidate_entry`]; `EINVAL` for the root; the errors of
    /// [`Name::new`]. If nothing is cached, that is no error.
    pub fn invalidate_entry_at(&self, path: &Path) -> Result<(), Errno> {
        let vfs = self.server.vfs();
        let path = path.as_os_str().as_bytes();
        let mut names = path.split(|&byte| byte == b'/').filter(|name| !name.is_empty()).peekable();
        let mut dir = vfs.root();
        while let Some(name) = names.next() {
            let name = Name::new(name)?;
            let child = match names.peek() {
                Some(_) => vfs.cached_child(&dir, name),
                None => Err(Errno::NOENT),
            };
            match child {
                Ok(child) => dir = child,
                // If the cache does not have a directory on the path, the kernel may still have it.
                // So drop that directory's name from the kernel, with everything below it.
                Err(Errno::NOENT) => return self.invalidate_entry(dir.ino(), name),
                Err(Errno::NOTDIR) => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        Err(Errno::INVAL)
    }

    /// Drops the cached attributes and pages of the file at `path`, because its content or its
    /// attributes have changed. `path` is as in [`KernelCache::invalidate_entry_at`]. The call
    /// looks the path up, so it may ask the back end. If there is no such file, drops its name.
    ///
    /// # Errors
    /// The errors of [`KernelCache::invalidate_inode`], of [`Name::new`] and of the back end.
    pub fn invalidate_inode_at(&self, path: &Path) -> Result<(), Errno> {
        let (vfs, cred) = (self.server.vfs(), Cred::root());
        let bytes = path.as_os_str().as_bytes();
        let mut names = bytes.split(|&byte| byte == b'/').filter(|name| !name.is_empty());
        let found =
            names.try_fold(vfs.root(), |dir, name| vfs.lookup(&cred, &dir, Name::new(name)?));
        match found {
            Ok(inode) => self.invalidate_inode(inode.ino()),
            Err(Errno::NOENT | Errno::NOTDIR) => self.invalidate_entry_at(path),
            Err(error) => Err(error),
        }
    }

    /// Drops the cached attributes and pages of the inode with number `ino`.
    ///
    /// # Errors
    /// The errors of the kernel. If the kernel has nothing cached, that is no error.
    pub fn invalidate_inode(&self, ino: u64) -> Result<(), Errno> {
        match self.server.vfs().inode(ino) {
            Ok(inode) => self.server.vfs().invalidate_attributes(&inode),
            // The kernel holds no lookup of the inode, so it cannot have cached anything of it.
            Err(Errno::STALE) => return Ok(()),
            Err(error) => return Err(error),
        }
        self.device.notify_inval_inode(self.server.translate(ino), Pages::Drop)
    }
}
