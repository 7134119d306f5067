//! The inodes in memory, by number.
//!
//! # Invariants
//! - T.1: an inode is in memory once. It is read, and dropped, under the lock of its shard, and dropped
//!   only if nobody else has it: so nobody changes one that another thread has just read anew.
//!
//! # Locks
//! A shard's: held while a record is read, and for no other lock of the store.

use std::collections::HashMap;
use std::sync::Arc;

use corewalk::Errno;
use corewalk_sync::{OwnLine, RwLock};

use crate::inode::Inode;
use crate::journal::View;
use crate::record::{Key, Kind};

/// Shards of the table.
const SHARDS: usize = 256;

type Shard = HashMap<u64, Arc<Inode>, foldhash::fast::FixedState>;

/// The inodes in memory. See the module's text.
pub(crate) struct Table {
    shards: Box<[OwnLine<RwLock<Shard>>]>,
}

impl Table {
    /// Returns an empty table.
    pub(crate) fn new() -> Table {
        Table { shards: (0..SHARDS).map(|_| OwnLine::new(RwLock::new(Shard::default()))).collect() }
    }

    /// Returns an inode that is in memory.
    #[inline]
    pub(crate) fn find(&self, ino: u64) -> Option<Arc<Inode>> {
        self.shard(ino).read().get(&ino).cloned()
    }

    /// Returns an inode.
    ///
    /// # Errors
    /// `ESTALE` if there is none of this number; `EIO`.
    pub(crate) fn get(&self, ino: u64, view: &View) -> Result<Arc<Inode>, Errno> {
        if let Some(inode) = self.find(ino) {
            return Ok(inode);
        }
        let mut shard = self.shard(ino).write();
        if let Some(inode) = shard.get(&ino) {
            return Ok(inode.clone());
        }
        let value = view.get(&Key::of(Kind::Inode, ino))?.ok_or(Errno::STALE)?;
        let inode = Arc::new(Inode::load(ino, &value, view)?);
        shard.insert(ino, inode.clone());
        Ok(inode)
    }

    /// Enters a new inode.
    pub(crate) fn insert(&self, inode: Arc<Inode>) {
        self.shard(inode.ino).write().insert(inode.ino, inode);
    }

    /// Drops an inode from memory, if nobody but the caller has it.
    pub(crate) fn release(&self, inode: Arc<Inode>) {
        let mut shard = self.shard(inode.ino).write();
        // The table's and the caller's.
        if Arc::strong_count(&inode) <= 2 {
            shard.remove(&inode.ino);
        }
    }

    /// Drops an inode that is gone for good.
    pub(crate) fn remove(&self, ino: u64) {
        self.shard(ino).write().remove(&ino);
    }

    #[inline]
    fn shard(&self, ino: u64) -> &RwLock<Shard> {
        &self.shards[ino as usize % SHARDS]
    }
}
