//! Locks of files that the back end manages.
//!
//! Other machines and programs can lock the files too, so locks are not cached here.
//!
//! Source: fcntl(2), flock(2).

use super::{InodeRef, Vfs};
use crate::Errno;
use crate::fs::FileLock;

impl Vfs {
    /// Returns a lock of another owner that conflicts with `lock`, if there is one. `handle` is the
    /// open file of the client.
    ///
    /// # Errors
    /// `EINVAL` for a lock that ends before it starts; `ENOSYS` if the back end has no locks; the
    /// other errors of the back end.
    pub fn get_lock(
        &self,
        inode: &InodeRef<'_>,
        handle: u64,
        lock: &FileLock,
    ) -> Result<Option<FileLock>, Errno> {
        check_range(lock)?;
        self.ask(inode, |fs, node| fs.get_lock(node.with_handle(handle), lock))
    }

    /// Takes, changes or drops a lock. Does not wait.
    ///
    /// # Errors
    /// `EAGAIN` if another owner has a lock that conflicts; `EINVAL` for a lock that ends before it
    /// starts; `ENOSYS` if the back end has no locks; the other errors of the back end.
    ///
    /// # Examples
    /// ```
    /// # use std::sync::Arc;
    /// # use corewalk::tmpfs::{Tmpfs, TmpfsOptions};
    /// # use corewalk::{Errno, Vfs, VfsOptions};
    /// use corewalk::{FileLock, LockKind};
    ///
    /// # let vfs = Vfs::new(Arc::new(Tmpfs::new(TmpfsOptions::default())), VfsOptions::default())?;
    /// // A tmpfs leaves locks to the client.
    /// let (root, lock) = (vfs.root(), FileLock::new(1, LockKind::Write));
    /// assert_eq!(vfs.set_lock(&root, 0, &lock), Err(Errno::NOSYS));
    /// # Ok::<(), Errno>(())
    /// ```
    pub fn set_lock(
        &self,
        inode: &InodeRef<'_>,
        handle: u64,
        lock: &FileLock,
    ) -> Result<(), Errno> {
        check_range(lock)?;
        self.ask(inode, |fs, node| fs.set_lock(node.with_handle(handle), lock))
    }

    /// Drops all locks of `owner` on a file.
    ///
    /// # Errors
    /// `ENOSYS` if the back end has no locks; the other errors of the back end.
    pub fn unlock_owner(
        &self,
        inode: &InodeRef<'_>,
        handle: u64,
        owner: u64,
        is_flock: bool,
    ) -> Result<(), Errno> {
        self.ask(inode, |fs, node| fs.unlock_owner(node.with_handle(handle), owner, is_flock))
    }
}

fn check_range(lock: &FileLock) -> Result<(), Errno> {
    let is_valid = lock.start <= lock.end && lock.end <= FileLock::END_MAX;
    if is_valid { Ok(()) } else { Err(Errno::INVAL) }
}
