//! Requests about locks of files, for back ends that manage them.

use corewalk::{Errno, FileLock, InodeRef};

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
        self.vfs.set_lock(&self.inode(node)?, handle, lock)?;
        self.lock_owners.locked(node, handle, lock);
        Ok(())
    }

    /// Ends the locks that end with an open file: those of flock(2), whose owner is `flock_owner`,
    /// and those of owners that have taken locks through this file.
    pub(super) fn end_locks_of_file(
        &self,
        inode: &InodeRef<'_>,
        (node, handle): (u64, u64),
        flock_owner: Option<u64>,
    ) {
        let owners = self.lock_owners.released(node, handle).into_iter();
        let owners = owners.map(|owner| (owner, false));
        for (owner, is_flock) in owners.chain(flock_owner.map(|owner| (owner, true))) {
            if let Err(error) = self.vfs.unlock_owner(inode, handle, owner, is_flock) {
                log::warn!("the locks of a closed file were not dropped: {error}");
            }
        }
    }
}
