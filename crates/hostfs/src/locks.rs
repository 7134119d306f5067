//! Locks of files, which the host manages (`HostFsOptions::host_locks`).
//!
//! A lock of flock(2) belongs to an open file, so it is taken on the descriptor of that open file.
//!
//! A lock of fcntl(2) belongs to a process of the client. On the host it becomes a lock of an open
//! file description (`F_OFD_SETLK`). Each owner gets an open file of its own for each inode, so
//! owners conflict with each other and with programs on the host. Closing that open file drops all
//! locks of the owner.
//!
//! For a lock of an open file description, `F_GETLK` names no process, so [`FileLock::pid`] is 0.
//!
//! Source: fcntl(2), flock(2).

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use corewalk::{Errno, FileLock, LockKind, Node};
use corewalk_base::Mutex;
use foldhash::fast::RandomState;
use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;
use rustix::fs::{FlockOperation, OFlags, flock};

use crate::descriptors::SharedFd;
use crate::files::access_of;
use crate::hostfs::HostFs;

type Key = (u64, u64);

#[derive(Debug, Default)]
pub(crate) struct Locks {
    /// Each open file carries the locks of one owner on one inode. Protected by its own mutex,
    /// which is not held during a call of the host.
    files: Mutex<HashMap<Key, Arc<OwnedFd>, RandomState>>,
}

impl HostFs {
    pub(crate) fn find_lock(
        &self,
        node: Node<'_>,
        lock: &FileLock,
    ) -> Result<Option<FileLock>, Errno> {
        // `F_GETLK` finds the locks of all other owners. It works with any open file of the inode,
        // so open one if this owner has none.
        let file = match self.locks.get((node.ino(), lock.owner)) {
            Some(file) => file,
            None => Arc::new(self.reopen_file(&*self.at(node)?, OFlags::RDONLY)?),
        };
        let mut found = host_lock(lock);
        fcntl(&*file, FcntlArg::F_OFD_GETLK(&mut found)).map_err(errno)?;
        let kind = match i32::from(found.l_type) {
            libc::F_RDLCK => LockKind::Read,
            libc::F_WRLCK => LockKind::Write,
            _ => return Ok(None),
        };
        let start = found.l_start as u64;
        let end = match found.l_len {
            0 => FileLock::END_MAX,
            len => start + len as u64 - 1,
        };
        let pid = u32::try_from(found.l_pid).unwrap_or(0);
        Ok(Some(FileLock { owner: 0, kind, start, end, pid, is_flock: false }))
    }

    pub(crate) fn take_lock(&self, node: Node<'_>, lock: &FileLock) -> Result<(), Errno> {
        if lock.is_flock {
            let file = self.descriptors.get_open(node.ino(), node.handle()).ok_or(Errno::BADF)?;
            return flock(
                &file,
                match lock.kind {
                    LockKind::Read => FlockOperation::NonBlockingLockShared,
                    LockKind::Write => FlockOperation::NonBlockingLockExclusive,
                    LockKind::Unlock => FlockOperation::Unlock,
                },
            );
        }
        if lock.kind == LockKind::Unlock && self.locks.get((node.ino(), lock.owner)).is_none() {
            return Ok(());
        }
        let file = self.lock_file(node, lock.owner, lock.kind)?;
        match fcntl(&*file, FcntlArg::F_OFD_SETLK(&host_lock(lock))) {
            Ok(_) => Ok(()),
            Err(nix::Error::EACCES) => Err(Errno::AGAIN),
            // The owner's first lock was a read lock, so its open file permits only reading. Such a
            // file cannot carry a write lock.
            Err(nix::Error::EBADF) => Err(Errno::NOLCK),
            Err(error) => Err(errno(error)),
        }
    }

    pub(crate) fn drop_locks(
        &self,
        node: Node<'_>,
        owner: u64,
        is_flock: bool,
    ) -> Result<(), Errno> {
        if !is_flock {
            // The drop of the last reference to the open file closes it, which ends the owner's
            // locks.
            drop(self.locks.files.lock().remove(&(node.ino(), owner)));
            return Ok(());
        }
        match self.descriptors.get_open(node.ino(), node.handle()) {
            Some(file) => flock(&file, FlockOperation::Unlock),
            None => Ok(()),
        }
    }

    pub(crate) fn check_open_limit(&self) -> Result<(), Errno> {
        let lock_files = self.locks.files.lock().len();
        self.descriptors.check_open_limit(lock_files)
    }

    /// Opens the file for the owner's first lock. The host demands a file that is open for reading
    /// or for writing, as `kind` says.
    fn lock_file(&self, node: Node<'_>, owner: u64, kind: LockKind) -> Result<Arc<OwnedFd>, Errno> {
        let key = (node.ino(), owner);
        if let Some(file) = self.locks.get(key) {
            return Ok(file);
        }
        self.check_open_limit().map_err(|_| Errno::NOLCK)?;
        let at = self.at(node)?;
        let open = self.descriptors.get_open(node.ino(), node.handle());
        let is_read_only = |file: &SharedFd| {
            rustix::fs::fcntl_getfl(file).is_ok_and(|flags| access_of(flags.bits()).is_empty())
        };
        // Open the file only for reading if the client does so too: the host does not run a program
        // that is open for writing. Otherwise open it for reading and writing, so that it can carry
        // both kinds of locks.
        let file = if kind == LockKind::Read && open.as_ref().is_some_and(is_read_only) {
            self.reopen_file(&*at, OFlags::RDONLY)?
        } else {
            let access = if kind == LockKind::Read { OFlags::RDONLY } else { OFlags::WRONLY };
            match self.reopen_file(&*at, OFlags::RDWR) {
                Err(Errno::ACCESS | Errno::ROFS | Errno::PERM | Errno::TXTBSY) => {
                    self.reopen_file(&*at, access)?
                }
                opened => opened?,
            }
        };
        Ok(match self.locks.files.lock().entry(key) {
            Entry::Occupied(entry) => Arc::clone(entry.get()),
            Entry::Vacant(entry) => Arc::clone(entry.insert(Arc::new(file))),
        })
    }
}

impl Locks {
    fn get(&self, key: Key) -> Option<Arc<OwnedFd>> {
        self.files.lock().get(&key).cloned()
    }
}

fn host_lock(lock: &FileLock) -> libc::flock {
    let kind = match lock.kind {
        LockKind::Read => libc::F_RDLCK,
        LockKind::Write => libc::F_WRLCK,
        LockKind::Unlock => libc::F_UNLCK,
    };
    // In fcntl(2), length 0 stands for the rest of the file.
    let len = if lock.end >= FileLock::END_MAX { 0 } else { lock.end - lock.start + 1 };
    libc::flock {
        l_type: kind as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: lock.start as libc::off_t,
        l_len: len as libc::off_t,
        l_pid: 0,
    }
}

fn errno(error: nix::Error) -> Errno {
    Errno::from_raw_os_error(error as i32)
}
