//! Requests about locks of files, for back ends that manage them.

use corewalk::{Errno, FileLock, InodeRef, LockKind};

use super::Server;
use crate::mount::Pages;
use crate::options::Ownership;

impl Server {
    /// Returns true if the back end manages locks. If not, the kernel manages them, and sends none
    /// of these requests.
    pub fn has_locks(&self) -> bool {
        self.has_locks
    }

    /// Returns true if the kernel must drop its pages of a file when a lock is taken, because other
    /// machines may have written the file.
    ///
    /// A new modification time alone is not enough. The kernel ignores attributes if a write of the
    /// same mount ends while these attributes are under way.
    pub(crate) fn locks_drop_pages(&self) -> bool {
        self.has_locks && self.options.ownership == Ownership::Shared
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

    /// Takes, changes or drops a lock. Does not wait for other owners. If locks drop pages of the
    /// kernel, a thread that serves reads or writes must not take a lock.
    ///
    /// # Errors
    /// `EAGAIN` if another owner has a lock that conflicts; `EINVAL` for an invalid range; the
    /// other errors of the back end.
    pub fn set_lock(&self, node: u64, handle: u64, lock: &FileLock) -> Result<(), Errno> {
        self.vfs.set_lock(&self.inode(node)?, handle, lock)?;
        self.lock_owners.locked(node, handle, lock);
        if self.locks_drop_pages()
            && lock.kind != LockKind::Unlock
            && let Some(notifier) = self.notifier.get()
        {
            notifier.drop_inode(node, Pages::Drop);
        }
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
