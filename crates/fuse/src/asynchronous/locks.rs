//! Requests about locks of files, for back ends that other machines use too.
//!
//! A request that waits for a lock is cancelled by any signal, as fcntl(2) and flock(2) demand. If
//! its future gets the lock at the same time, the request succeeds all the same.
//!
//! The kernel tells the server when locks end: a flush ends the locks of fcntl(2) of a process, and
//! a release ends the locks of flock(2) of an open file.
//!
//! Source: Linux `fs/fuse/file.c` (`fuse_setlk`, `fuse_flush`, `fuse_release_common`).

use corewalk::Errno;

use super::answer::Answer;
use super::server::AsyncServer;
use super::{AsyncFileSystem, AsyncNode, FileLock, LockKind};
use crate::wire::{Message, Opcode};

/// The flag of a request about a lock of flock(2) (`FUSE_LK_FLOCK`).
const LK_FLOCK: u32 = 1;
/// The flag of a release that ends the locks of flock(2) (`FUSE_RELEASE_FLOCK_UNLOCK`).
const RELEASE_FLOCK_UNLOCK: u32 = 1 << 1;
/// The largest position of a lock, which stands for the end of the file.
const END_MAX: u64 = i64::MAX as u64;
/// The numbers of the kinds of locks (`F_RDLCK`, `F_WRLCK`, `F_UNLCK`).
const KINDS: [LockKind; 3] = [LockKind::Read, LockKind::Write, LockKind::Unlock];

impl<F: AsyncFileSystem> AsyncServer<F> {
    /// Reads the arguments of a request about a lock.
    fn lock_of(&self, message: &Message<'_>) -> Result<(AsyncNode, FileLock), Errno> {
        let mut args = message.args();
        let (handle, owner) = (args.u64()?, args.u64()?);
        let (start, end) = (args.u64()?, args.u64()?);
        let (kind, pid, flags) = (args.u32()?, args.u32()?, args.u32()?);
        if start > end || end > END_MAX {
            return Err(Errno::INVAL);
        }
        let kind = *KINDS.get(kind as usize).ok_or(Errno::INVAL)?;
        let lock = FileLock { owner, kind, start, end, pid, is_flock: flags & LK_FLOCK != 0 };
        Ok((self.file(message)?.with_handle(handle), lock))
    }

    pub(super) async fn get_lock(&self, message: &Message<'_>) -> Result<Answer, Errno> {
        let (node, lock) = self.lock_of(message)?;
        let found = self.fs.get_lock(&node, &lock).await?;
        let found = found.unwrap_or(FileLock { kind: LockKind::Unlock, ..lock });
        let kind = KINDS.iter().position(|kind| *kind == found.kind).unwrap_or(2);
        Answer::with_body(|body| {
            body.u64(found.start)?;
            body.u64(found.end)?;
            body.u32(kind as u32)?;
            body.u32(found.pid)
        })
    }

    pub(super) async fn set_lock(&self, message: &Message<'_>) -> Result<Answer, Errno> {
        let (node, lock) = self.lock_of(message)?;
        let waits = message.header.opcode == Opcode::SETLKW;
        self.fs.set_lock(&node, &lock, waits).await?;
        Ok(Answer::default())
    }

    /// Ends the locks that end with a flush or a release.
    pub(super) async fn end_locks(
        &self,
        message: &Message<'_>,
        node: &AsyncNode,
    ) -> Result<(), Errno> {
        if !self.fs.has_locks() {
            return Ok(());
        }
        let mut args = message.args();
        let (_handle, _flags, flags, owner) = (args.u64()?, args.u32()?, args.u32()?, args.u64()?);
        match message.header.opcode {
            Opcode::FLUSH => self.fs.unlock_owner(node, owner, false).await,
            _ if flags & RELEASE_FLOCK_UNLOCK != 0 => self.fs.unlock_owner(node, owner, true).await,
            _ => Ok(()),
        }
    }
}
