//! Requests about locks of files.
//!
//! The kernel tells the server when locks end. A flush ends the locks of fcntl(2) of a process, and
//! a release ends the locks of flock(2) of an open file.
//!
//! Source: Linux `fs/fuse/file.c` (`fuse_setlk`, `fuse_flush`, `fuse_release_common`).

use corewalk::{Errno, FileLock, LockKind};

use super::{Body, Message, Opcode};

/// A flag of a request about a lock: it is a lock of flock(2).
const LK_FLOCK: u32 = 1;
/// A flag of a release: it ends the locks of flock(2) (`FUSE_RELEASE_FLOCK_UNLOCK`).
const RELEASE_FLOCK_UNLOCK: u32 = 1 << 1;
/// `F_RDLCK`, `F_WRLCK` and `F_UNLCK`.
const KINDS: [LockKind; 3] = [LockKind::Read, LockKind::Write, LockKind::Unlock];

/// The owner of locks that end with a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LockOwner {
    pub(crate) owner: u64,
    pub(crate) is_flock: bool,
}

impl Message<'_> {
    /// Returns the open file's handle and the lock that a request is about.
    ///
    /// # Errors
    /// `EINVAL` for an unknown kind of lock, for a range that ends before it starts, and for an end
    /// above [`FileLock::END_MAX`].
    pub(crate) fn lock(&self) -> Result<(u64, FileLock), Errno> {
        let mut args = self.args();
        let (handle, owner) = (args.u64()?, args.u64()?);
        let (start, end) = (args.u64()?, args.u64()?);
        let (kind, pid, flags) = (args.u32()?, args.u32()?, args.u32()?);
        if start > end || end > FileLock::END_MAX {
            return Err(Errno::INVAL);
        }
        let kind = *KINDS.get(kind as usize).ok_or(Errno::INVAL)?;
        let lock = FileLock { owner, kind, start, end, pid, is_flock: flags & LK_FLOCK != 0 };
        Ok((handle, lock))
    }

    pub(crate) fn ended_locks(&self) -> Result<(u64, Option<LockOwner>), Errno> {
        let mut args = self.args();
        let (handle, _flags, flags, owner) = (args.u64()?, args.u32()?, args.u32()?, args.u64()?);
        let is_flock = self.header.opcode == Opcode::RELEASE;
        let ends = !is_flock || flags & RELEASE_FLOCK_UNLOCK != 0;
        Ok((handle, ends.then_some(LockOwner { owner, is_flock })))
    }
}

impl Body<'_> {
    pub(crate) fn lock_out(&mut self, lock: &FileLock) -> Result<(), Errno> {
        self.u64(lock.start)?;
        self.u64(lock.end)?;
        let kind = KINDS.iter().position(|kind| *kind == lock.kind).unwrap_or(2);
        self.u32(kind as u32)?;
        self.u32(lock.pid)
    }
}
