//! Requests about locks of files, for back ends that manage such locks.

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

    /// Returns true if the kernel must drop its cached pages of a file when a lock is taken. It
    /// must do so if other machines may have written the file.
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

    /// Takes, changes or drops a lock. Does not wait for other owners.
    ///
    /// A new lock may make the kernel drop pages, which the kernel may first have to read or write.
    /// In that case, a thread that serves reads or writes must not call this method.
    ///
    /// # Errors
    /// `EAGAIN` if another owner has a lock that conflicts; `EINVAL` for an invalid range; the
    /// other errors of the back end.
    pub fn set_lock(&self, node: u64, handle: u64, lock: &FileLock) -> Result<(), Errno> {
        let done = self.vfs.set_lock(&self.inode(node)?, handle, lock);
        self.lock_owners.requested((node, handle), lock, done);
        done?;
        if self.locks_drop_pages()
            && lock.kind != LockKind::Unlock
            && let Some(notifier) = self.notifier.get()
        {
            notifier.drop_inode(node, Pages::Drop);
        }
        Ok(())
    }

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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use corewalk::{Attr, DirSink, FileSystem, Name, Node, Opened, StatFs};
    use corewalk_base::Mutex;

    use super::*;
    use crate::{Caller, Options};

    /// A back end that grants locks and then loses its answers.
    #[derive(Default)]
    struct Forgetful {
        owners: Mutex<Vec<u64>>,
    }

    impl FileSystem for Forgetful {
        fn root(&self) -> Result<Attr, Errno> {
            Ok(Attr::dir(1))
        }

        fn lookup(&self, _: Node<'_>, _: Name<'_>) -> Result<Attr, Errno> {
            Ok(Attr::file(2, 1))
        }

        fn getattr(&self, node: Node<'_>) -> Result<Attr, Errno> {
            Ok(if node.ino() == 2 { Attr::file(2, 1) } else { Attr::dir(1) })
        }

        fn readdir(&self, _: Node<'_>, _: u64, _: &mut DirSink<'_>) -> Result<(), Errno> {
            Ok(())
        }

        fn read(&self, _: Node<'_>, _: u64, _: &mut [u8]) -> Result<usize, Errno> {
            Ok(0)
        }

        fn statfs(&self) -> Result<StatFs, Errno> {
            Ok(StatFs::default())
        }

        fn open(&self, _: Node<'_>, _: u32) -> Result<Opened, Errno> {
            Ok(Opened::new(10))
        }

        fn has_open_state(&self) -> bool {
            true
        }

        fn has_locks(&self) -> bool {
            true
        }

        fn set_lock(&self, _: Node<'_>, lock: &FileLock) -> Result<(), Errno> {
            self.owners.lock().push(lock.owner);
            Err(Errno::IO)
        }

        fn unlock_owner(&self, _: Node<'_>, owner: u64, _: bool) -> Result<(), Errno> {
            self.owners.lock().retain(|other| *other != owner);
            Ok(())
        }
    }

    /// The back end grants a lock, but its answer is lost. The lock must end with its open file:
    /// for a lock of an open file description, the kernel sends no flush.
    #[test]
    fn lock_whose_answer_was_lost_ends_with_its_file() {
        let fs = Arc::new(Forgetful::default());
        let server = Server::new(Arc::clone(&fs) as _, Options::exclusive()).unwrap();
        let caller = Caller { uid: 0, gid: 0, pid: 0 };
        let node = server.lookup(caller, crate::server::ROOT_NODE, b"f").unwrap().node;
        let handle = server.open(caller, node, 2).unwrap().handle;
        let done = server.set_lock(node, handle, &FileLock::new(7, LockKind::Write));
        assert_eq!((done, fs.owners.lock().clone()), (Err(Errno::IO), vec![7]));
        server.release(node, handle, None).unwrap();
        assert_eq!(*fs.owners.lock(), [0; 0]);
    }
}
