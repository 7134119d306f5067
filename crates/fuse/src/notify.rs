//! Telling the kernel to drop what it has cached, since somebody else has changed the files.
//!
//! To drop a name the kernel takes the lock of its directory, which whoever waits for a request in
//! that directory holds: a thread that serves requests would wait for itself. So none of this may be
//! called by a back end while it serves. What is dropped because the cache is over its budget is the
//! matter of [`room`](crate::room).
//!
//! Source: Linux `fuse_reverse_inval_entry` and `fuse_reverse_inval_inode`.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::sync::Arc;

use corewalk::{Errno, Name};
use fuser::{INodeNo, Notifier};

use crate::server::Server;

/// What the kernel has cached of a mount.
///
/// Its methods are for changes that were not made through the mount: they drop what corewalk has
/// cached, then what the kernel has. They wait for the kernel, so they must not be called by a
/// [`FileSystem`](corewalk::FileSystem) while it serves a request.
#[derive(Clone, Debug)]
pub struct KernelCache {
    server: Arc<Server>,
    notifier: Notifier,
}

impl KernelCache {
    pub(crate) fn new(server: Arc<Server>, notifier: Notifier) -> KernelCache {
        KernelCache { server, notifier }
    }

    pub(crate) fn notifier(&self) -> &Notifier {
        &self.notifier
    }

    /// Drops what is known of `name` in the directory with inode number `parent`.
    ///
    /// # Errors
    /// What the kernel says, `ENOTDIR` among it; that it knows nothing is no error.
    pub fn invalidate_entry(&self, parent: u64, name: Name<'_>) -> Result<(), Errno> {
        match self.server.vfs().inode(parent) {
            Ok(dir) => match self.server.vfs().invalidate(&dir, name) {
                // Removed: there are no names in it.
                Err(Errno::NOENT) => {}
                result => result?,
            },
            // Not in use: the kernel has no name in it.
            Err(Errno::STALE) => return Ok(()),
            Err(error) => return Err(error),
        }
        let node = INodeNo(self.server.translate(parent));
        let name = OsStr::from_bytes(name.as_bytes());
        self.notifier.inval_entry(node, name).map_err(errno)
    }

    /// Drops the attributes and the content of the inode with number `ino`.
    ///
    /// # Errors
    /// What the kernel says; that it knows nothing is no error.
    pub fn invalidate_inode(&self, ino: u64) -> Result<(), Errno> {
        match self.server.vfs().inode(ino) {
            Ok(inode) => self.server.vfs().invalidate_attributes(&inode),
            // Not in use: the kernel has nothing of it.
            Err(Errno::STALE) => return Ok(()),
            Err(error) => return Err(error),
        }
        let node = INodeNo(self.server.translate(ino));
        self.notifier.inval_inode(node, 0, 0).map_err(errno)
    }
}

fn errno(error: std::io::Error) -> Errno {
    Errno::from_io_error(&error).unwrap_or(Errno::IO)
}
