//! Requests about locks of files, for back ends that manage them.

use corewalk::{Errno, FileLock};

use super::Server;

impl Server {
    /// Returns true if the back end manages locks. If not, the kernel manages them, and sends none
    /// of these requests.
    pub fn has_locks(&self) -> bool {
        self.has_locks
    }

    /// Returns a lock of another owner that conflicts with `lock`, if there is one.
    ///
    /// # Errors
    /// `EINVAL` for an invalid range; the errors of the back end.
    pub fn get_lock(
        &self,
        node: u64,
        handle: u64,
        lock: &FileLock,
    ) -> Result<Option<FileLock>, Errno> {
        self.vfs.get_lock(&self.inode(node)?, handle, lock)
    }

    /// Takes, changes or drops a lock. Does not wait.
    ///
    /// # Errors
    /// `EAGAIN` if another owner has a lock that conflicts; `EINVAL` for an invalid range; the
    /// other errors of the back end.
    pub fn set_lock(&self, node: u64, handle: u64, lock: &FileLock) -> Result<(), Errno> {
        self.vfs.set_lock(&self.inode(node)?, handle, lock)
    }
}
