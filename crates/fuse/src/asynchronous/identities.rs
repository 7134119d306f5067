//! An index that finds inodes of the server by the inode numbers of the back end.
//!
//! The cache's table assigns its own inode numbers. With the index, the server recognises a file
//! that it already knows. The file may have a second name (a hard link), or another machine may
//! have moved a directory.
//!
//! The index also counts the inodes of each file. A file may have several, because the table may
//! drop an inode while a lookup enters the same file again.
//!
//! # Invariants
//! - J.1: an identity is an inode number with a generation. The index has the identity of a file
//!   from the time when the first inode enters the table until the last one is dropped.
//! - J.2: `forget` of the back end is called when the last inode of a file is dropped. The mutex of
//!   the shard is held during the call, so no new inode of the file is added meanwhile.
//!
//! A file for which the back end reports the number 0 is not in the index. Its only name identifies
//! it.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use corewalk_base::Mutex;
use foldhash::fast::RandomState;

use super::node::Inode;

const SHARDS: u64 = 16;

pub(super) type Identity = (u64, u64);

pub(super) struct Identities {
    /// The entries of the index, by the inode number of the back end. Each shard is protected by
    /// its mutex. A number has several entries if the back end has used it for several files.
    shards: [Mutex<HashMap<u64, Vec<Entry>, RandomState>>; SHARDS as usize],
}

pub(super) enum Known {
    None,
    Dying,
    /// The inode of the file. The table may have dropped it.
    Inode(Arc<Inode>),
}

struct Entry {
    generation: u64,
    current: Weak<Inode>,
    inodes: u64,
}

impl Identities {
    pub(super) fn new() -> Identities {
        Identities { shards: std::array::from_fn(|_| Mutex::new(HashMap::default())) }
    }

    fn shard(&self, ino: u64) -> &Mutex<HashMap<u64, Vec<Entry>, RandomState>> {
        &self.shards[(ino % SHARDS) as usize]
    }

    pub(super) fn find(&self, identity: Identity) -> Known {
        if identity.0 == 0 {
            return Known::None;
        }
        let shard = self.shard(identity.0).lock();
        let entries = shard.get(&identity.0).into_iter().flatten();
        let mut entries = entries.filter(|entry| entry.generation == identity.1);
        let Some(entry) = entries.next() else { return Known::None };
        // Unlock the shard first: dropping the result of `upgrade` may run the destructor of the
        // inode, which locks the shard.
        let current = Weak::clone(&entry.current);
        drop(shard);
        current.upgrade().map_or(Known::Dying, Known::Inode)
    }

    pub(super) fn numbers(&self, ino: u64) -> Vec<u64> {
        let shard = self.shard(ino).lock();
        let entries: Vec<Weak<Inode>> =
            shard.get(&ino).into_iter().flatten().map(|entry| entry.current.clone()).collect();
        drop(shard);
        entries.iter().filter_map(|inode| Some(inode.upgrade()?.number())).collect()
    }

    /// Adds `inode` to the index. Returns an earlier inode of the same file, if there is one. The
    /// table may be dropping that inode.
    pub(super) fn add(&self, inode: &Arc<Inode>) -> Option<Arc<Inode>> {
        let (ino, generation) = inode.identity();
        if ino == 0 {
            return None;
        }
        let mut shard = self.shard(ino).lock();
        let entries = shard.entry(ino).or_default();
        let Some(entry) = entries.iter_mut().find(|entry| entry.generation == generation) else {
            entries.push(Entry { generation, current: Arc::downgrade(inode), inodes: 1 });
            return None;
        };
        entry.inodes += 1;
        let earlier = entry.current.upgrade();
        if earlier.is_none() {
            entry.current = Arc::downgrade(inode);
        }
        // Return `earlier` instead of dropping it here: its destructor may lock the shard.
        earlier
    }

    /// Makes later lookups of the file find `inode` instead of `earlier`. If they already find a
    /// third inode, changes nothing and returns that inode.
    pub(super) fn replace(&self, inode: &Arc<Inode>, earlier: &Arc<Inode>) -> Option<Arc<Inode>> {
        let (ino, generation) = inode.identity();
        let mut shard = self.shard(ino).lock();
        let mut entries = shard.get_mut(&ino).into_iter().flatten();
        let entry = entries.find(|entry| entry.generation == generation)?;
        let current = entry.current.upgrade();
        match current {
            Some(current) if !Arc::ptr_eq(&current, earlier) => Some(current),
            _ => {
                entry.current = Arc::downgrade(inode);
                None
            }
        }
    }

    /// Removes one inode with `identity` from the index. Calls `forget` if it was the last one.
    pub(super) fn remove(&self, identity: Identity, forget: impl FnOnce()) {
        let mut shard = self.shard(identity.0).lock();
        let Some(entries) = shard.get_mut(&identity.0) else { return };
        let Some(at) = entries.iter().position(|entry| entry.generation == identity.1) else {
            return;
        };
        entries[at].inodes -= 1;
        if entries[at].inodes == 0 {
            entries.swap_remove(at);
            if entries.is_empty() {
                shard.remove(&identity.0);
            }
            forget();
        }
    }
}
