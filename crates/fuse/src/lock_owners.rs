//! The owners of fcntl(2) locks, grouped by the open files through which they took the locks.
//!
//! When a process closes a file, the kernel sends a flush with the number of the lock owner, which
//! ends the owner's locks. For two kinds of locks no such flush comes:
//! - a lock of an open file description (`F_OFD_SETLK`), whose owner is the open file itself;
//! - a lock that one thread got while another thread of its process closed the descriptor.
//!
//! The server ends locks of both kinds when the open file is released. So until the release, it
//! remembers the owners that have requested locks through each open file. It remembers none for
//! handle 0, which all files of a back end without handles share.
//!
//! Source: Linux `fs/fuse/file.c` (`fuse_setlk`, `fuse_flush`), `fs/locks.c` (`fcntl_setlk`).

use std::collections::HashMap;

use corewalk::{Errno, FileLock, LockKind};
use corewalk_base::Mutex;
use foldhash::fast::RandomState;

#[derive(Debug, Default)]
pub(crate) struct LockOwners {
    /// For each node, the pairs of an open file and a lock owner. Protected by its own mutex, under
    /// which no other lock is taken.
    by_node: Mutex<HashMap<u64, Vec<Pair>, RandomState>>,
}

type Pair = (u64, u64);

impl LockOwners {
    /// Remembers the owner of a requested lock, unless the request was refused with `EAGAIN`. After
    /// any other error, the back end may have granted the lock and lost the answer.
    pub(crate) fn requested(
        &self,
        (node, handle): (u64, u64),
        lock: &FileLock,
        done: Result<(), Errno>,
    ) {
        let is_refused = done == Err(Errno::AGAIN);
        if is_refused || lock.is_flock || lock.kind == LockKind::Unlock || handle == 0 {
            return;
        }
        let mut by_node = self.by_node.lock();
        let owners = by_node.entry(node).or_default();
        let pair = (handle, lock.owner);
        if !owners.contains(&pair) {
            owners.push(pair);
        }
    }

    pub(crate) fn flushed(&self, node: u64, owner: u64) {
        let mut by_node = self.by_node.lock();
        if let Some(owners) = by_node.get_mut(&node) {
            owners.retain(|pair| pair.1 != owner);
            if owners.is_empty() {
                by_node.remove(&node);
            }
        }
    }

    pub(crate) fn released(&self, node: u64, handle: u64) -> Vec<u64> {
        let mut by_node = self.by_node.lock();
        let Some(owners) = by_node.get_mut(&node) else { return Vec::new() };
        let (ended, kept) = owners.iter().partition::<Vec<_>, _>(|pair| pair.0 == handle);
        *owners = kept;
        if owners.is_empty() {
            by_node.remove(&node);
        }
        ended.into_iter().map(|pair| pair.1).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owner_is_known_until_its_flush_or_the_release_of_its_file() {
        let (owners, lock) = (LockOwners::default(), FileLock::new(7, LockKind::Read));
        let other = FileLock { owner: 8, ..lock };
        owners.requested((1, 10), &lock, Ok(()));
        owners.requested((1, 10), &lock, Err(Errno::IO));
        owners.requested((1, 10), &other, Ok(()));
        owners.requested((1, 11), &lock, Ok(()));
        owners.requested((2, 10), &FileLock { is_flock: true, ..lock }, Ok(()));
        owners.requested((2, 10), &FileLock { kind: LockKind::Unlock, ..lock }, Ok(()));
        owners.requested((2, 10), &lock, Err(Errno::AGAIN));
        owners.requested((2, 0), &lock, Ok(()));
        assert_eq!((owners.released(2, 10), owners.released(2, 0)), (vec![], vec![]));
        assert_eq!(owners.released(1, 10), [7, 8]);
        owners.flushed(1, 7);
        assert_eq!(owners.released(1, 11), [0; 0]);
        assert!(owners.by_node.lock().is_empty());
    }
}
