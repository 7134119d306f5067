//! Requests about locks of files, for back ends that manage such locks.

use corewalk::{Errno, FileLock, LockKind};

use super::Requests;
use crate::wire::{Body, Message};

impl Requests {
    pub(super) fn get_lock(&self, message: &Message<'_>, body: &mut Body<'_>) -> Result<(), Errno> {
        let (handle, lock) = message.lock()?;
        let found = self.server.get_lock(message.header.node, handle, &lock)?;
        body.lock_out(&found.unwrap_or(FileLock { kind: LockKind::Unlock, ..lock }))
    }

    pub(super) fn set_lock(&self, message: &Message<'_>) -> Result<(), Errno> {
        let (handle, lock) = message.lock()?;
        self.server.set_lock(message.header.node, handle, &lock)
    }
}
