//! The inodes in memory, by number.
//!
//! # Invariants
//! - T.1: an inode is in memory at most once. It is read and dropped under the lock of its shard,
//!   and dropped only while no thread uses it. So no thread changes a stale copy.
//! - T.2: an inode that is forgotten while a thread uses it is dropped later. A read or drop of any
//!   inode in the same shard drops it.
//!
//! # Locks
//! A shard stays locked while a record is read into it. Under this lock a thread takes only the
//! locks that the read needs.

use std::collections::HashMap;
use std::sync::Arc;

use corewalk::Errno;
use corewalk_base::{OwnLine, RwLock};

use crate::inode::Inode;
use crate::journal::View;
use crate::record::{Key, Kind};

const SHARDS: usize = 256;

/// Inodes in memory by number, and the numbers of the inodes whose drop is deferred. Both are
/// protected by the lock of the shard.
#[derive(Default)]
struct Shard {
    inodes: HashMap<u64, Arc<Inode>, foldhash::fast::FixedState>,
    deferred: Vec<u64>,
}

impl Shard {
    fn drop_deferred(&mut self) {
        let Shard { inodes, deferred } = self;
        deferred.retain(|ino| match inodes.get(ino) {
            Some(inode) if Arc::strong_count(inode) == 1 => {
                inodes.remove(ino);
                false
            }
            found => found.is_some(),
        });
    }
}

/// The inodes in memory. Analogous to Linux's `inode_hashtable`.
pub(crate) struct InodeTable {
    /// The inodes in memory, distributed over shards by their numbers. Each shard has its own lock.
    shards: Box<[OwnLine<RwLock<Shard>>]>,
}

impl InodeTable {
    pub(crate) fn new() -> InodeTable {
        InodeTable {
            shards: (0..SHARDS).map(|_| OwnLine::new(RwLock::new(Shard::default()))).collect(),
        }
    }

    #[inline]
    pub(crate) fn find(&self, ino: u64) -> Option<Arc<Inode>> {
        self.shard(ino).read().inodes.get(&ino).cloned()
    }

    /// Returns the inode `ino`. An inode that is not in memory is read from its record. `ESTALE` if
    /// no inode has this number; `EIO` if its record cannot be read.
    pub(crate) fn get(&self, ino: u64, view: &View) -> Result<Arc<Inode>, Errno> {
        if let Some(inode) = self.find(ino) {
            return Ok(inode);
        }
        let mut shard = self.shard(ino).write();
        shard.drop_deferred();
        if let Some(inode) = shard.inodes.get(&ino) {
            return Ok(inode.clone());
        }
        let value = view.get(&Key::of(Kind::Inode, ino))?.ok_or(Errno::STALE)?;
        let inode = Arc::new(Inode::load(ino, &value, view)?);
        shard.inodes.insert(ino, inode.clone());
        Ok(inode)
    }

    pub(crate) fn insert(&self, inode: Arc<Inode>) {
        self.shard(inode.ino).write().inodes.insert(inode.ino, inode);
    }

    /// Drops an inode from memory. If a thread still uses the inode, the drop is deferred
    /// (invariant T.2).
    pub(crate) fn release(&self, inode: Arc<Inode>) {
        let mut shard = self.shard(inode.ino).write();
        shard.drop_deferred();
        if Arc::strong_count(&inode) <= 2 {
            shard.inodes.remove(&inode.ino);
        } else if !shard.deferred.contains(&inode.ino) {
            shard.deferred.push(inode.ino);
        }
    }

    pub(crate) fn remove(&self, ino: u64) {
        self.shard(ino).write().inodes.remove(&ino);
    }

    #[inline]
    fn shard(&self, ino: u64) -> &RwLock<Shard> {
        &self.shards[ino as usize % SHARDS]
    }
}

#[cfg(test)]
mod tests {
    use corewalk::{FileSystem as _, Make, Name, Node};

    use super::*;
    use crate::store::{Store, StoreOptions};

    /// An inode that is forgotten during an operation must not stay in memory.
    #[test]
    fn inode_that_is_forgotten_in_use_is_dropped_later() {
        let path = std::env::temp_dir().join(format!("inode-table-{}", std::process::id()));
        let log_bytes = 64 << 10;
        let options = StoreOptions { commit_every: None, log_bytes, ..StoreOptions::default() };
        let store = Store::open(&path, &options).unwrap();
        let root = Node::detached(store.root().unwrap().ino, corewalk::FileKind::Directory);
        let made: Vec<u64> = (0..2 * SHARDS)
            .map(|number| {
                let name = number.to_string();
                let name = Name::new(name.as_bytes()).unwrap();
                store.make(root, name, &Make::new(0o644, 0, 0)).unwrap().ino
            })
            .collect();
        let is_there = |ino| store.table.shard(ino).read().inodes.contains_key(&ino);
        let (first, second) = (made[0], made[SHARDS]);
        assert_eq!(first as usize % SHARDS, second as usize % SHARDS);
        let used = store.table.find(first);
        store.forget(first, 0);
        store.forget(first, 0);
        assert!(used.is_some() && is_there(first), "somebody has it");
        drop(used);
        store.forget(second, 0);
        assert!(!is_there(first) && !is_there(second));
        assert_eq!(
            store.getattr(Node::detached(first, corewalk::FileKind::Regular)).unwrap().ino,
            first
        );
        drop(store);
        std::fs::remove_dir_all(&path).unwrap();
    }
}
