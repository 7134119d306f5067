//! Requests about locks of files, for back ends that other machines use too.
//!
//! Any signal cancels a request that waits for a lock, as fcntl(2) and flock(2) demand. If its
//! future gets the lock at the same time, the request succeeds in spite of the signal.
//!
//! Source: Linux `fs/fuse/file.c` (`fuse_setlk`).

use corewalk::{Errno, FileLock, LockKind};

use super::answer::Answer;
use super::server::AsyncServer;
use super::{AsyncFileSystem, AsyncNode};
use crate::wire::{LockOwner, Message, Opcode};

impl<F: AsyncFileSystem> AsyncServer<F> {
    fn lock_of(&self, message: &Message<'_>) -> Result<(AsyncNode, FileLock), Errno> {
        let (handle, lock) = message.lock()?;
        Ok((self.file(message)?.with_handle(handle), lock))
    }

    pub(super) async fn get_lock(&self, message: &Message<'_>) -> Result<Answer, Errno> {
        let (node, lock) = self.lock_of(message)?;
        let found = self.fs.get_lock(&node, &lock).await?;
        Answer::with_body(|body| {
            body.lock_out(&found.unwrap_or(FileLock { kind: LockKind::Unlock, ..lock }))
        })
    }

    pub(super) async fn set_lock(&self, message: &Message<'_>) -> Result<Answer, Errno> {
        let (node, lock) = self.lock_of(message)?;
        let waits = message.header.opcode == Opcode::SETLKW;
        let done = self.fs.set_lock(&node, &lock, waits).await;
        self.lock_owners.requested((node.number(), node.handle()), &lock, done);
        done?;
        Ok(Answer::default())
    }

    pub(super) async fn end_locks(
        &self,
        message: &Message<'_>,
        node: &AsyncNode,
    ) -> Result<(), Errno> {
        if !self.fs.has_locks() {
            return Ok(());
        }
        let (handle, ended) = message.ended_locks()?;
        let mut unlocked = Ok(());
        if message.header.opcode == Opcode::FLUSH {
            let owner = ended.map_or(0, |ended| ended.owner);
            self.lock_owners.flushed(node.number(), owner);
        } else {
            for owner in self.lock_owners.released(node.number(), handle) {
                unlocked = unlocked.and(self.fs.unlock_owner(node, owner, false).await);
            }
        }
        match ended {
            Some(LockOwner { owner, is_flock }) => {
                unlocked.and(self.fs.unlock_owner(node, owner, is_flock).await)
            }
            None => unlocked,
        }
    }
}
