//! The seam between attribute blocks and the cache that finds equal ones.
//!
//! A [`ShareIndex`] leads from the hash of a set of attributes to blocks that may hold it. The store
//! uses `corewalk-mbcache` ([`MbcacheIndex`]); [`NoSharing`] is for stores in which every inode has a
//! block of its own, and others can be plugged in to be measured.
//!
//! # Rules
//! - H.1: `find` calls `take` with no lock held that `insert`, `note_users` or `remove` needs.
//! - H.2: while `find` is within `take` for a pair, `remove` of that pair returns [`Removal::Busy`]; once
//!   it has returned [`Removal::Done`], `take` is not called for the pair until it is inserted again
//!   (trap T34).
//! - H.3: an index may forget: what is not found costs a second block, no more.
//!
//! Source: `corewalk-mbcache`, "The protocol".

use std::io;

use corewalk_mbcache::{Mbcache, MbcacheOptions, Reusable};

/// What became of a pair that was to be removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Removal {
    /// It is not in the index, and nobody is about to use it.
    Done,
    /// Somebody is about to use it: wait, and decide anew.
    Busy,
}

/// An index from the hash of content to the blocks that may hold it. See the module's text.
pub trait ShareIndex: Send + Sync + 'static {
    /// Calls `take` with blocks under `key` until one is taken (it returns true), and returns that one.
    fn find(&self, key: u64, take: &mut dyn FnMut(u64) -> bool) -> Option<u64>;

    /// Enters a block that has `users`. A pair that is there already stays.
    fn insert(&self, key: u64, block: u64, users: u32);

    /// Says how many users a block has now. The caller holds the block's lock.
    fn note_users(&self, key: u64, block: u64, users: u32);

    /// Takes a pair out, if it is there. The caller holds the block's lock.
    fn remove(&self, key: u64, block: u64) -> Removal;

    /// Returns once nobody is about to use the pair, at some moment. The caller holds no block's lock.
    fn wait(&self, key: u64, block: u64);

    /// Returns how many users a block may have.
    fn users_max(&self) -> u32;
}

/// The index that the store uses by itself.
#[derive(Debug)]
pub struct MbcacheIndex(Mbcache);

impl MbcacheIndex {
    /// Returns an empty index.
    ///
    /// # Errors
    /// Those of [`Mbcache::new`].
    pub fn new(options: MbcacheOptions) -> io::Result<MbcacheIndex> {
        Mbcache::new(options).map(MbcacheIndex)
    }

    /// Returns the cache.
    #[must_use]
    pub fn cache(&self) -> &Mbcache {
        &self.0
    }
}

impl ShareIndex for MbcacheIndex {
    fn find(&self, key: u64, take: &mut dyn FnMut(u64) -> bool) -> Option<u64> {
        let mut found = self.0.find_first(key);
        while let Some(entry) = found {
            let block = entry.value();
            if take(block) {
                entry.touch();
                return Some(block);
            }
            found = self.0.find_next(&entry);
        }
        None
    }

    fn insert(&self, key: u64, block: u64, users: u32) {
        let reusable = if users < self.0.users_max() { Reusable::Yes } else { Reusable::No };
        // H.3.
        let _ = self.0.create(key, block, reusable);
    }

    fn note_users(&self, key: u64, block: u64, users: u32) {
        // Below the bound nothing changes unless it comes from there.
        if users + 1 >= self.0.users_max() {
            self.0.note_users(key, block, users);
        }
    }

    fn remove(&self, key: u64, block: u64) -> Removal {
        self.0.delete_or_get(key, block).map_or(Removal::Done, |_| Removal::Busy)
    }

    fn wait(&self, key: u64, block: u64) {
        // If it can be taken out by now the caller, who decides anew, enters it again.
        if let Some(busy) = self.0.delete_or_get(key, block) {
            busy.wait();
        }
    }

    fn users_max(&self) -> u32 {
        self.0.users_max()
    }
}

/// The index of a store that shares nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoSharing;

impl ShareIndex for NoSharing {
    fn find(&self, _: u64, _: &mut dyn FnMut(u64) -> bool) -> Option<u64> {
        None
    }

    fn insert(&self, _: u64, _: u64, _: u32) {}

    fn note_users(&self, _: u64, _: u64, _: u32) {}

    fn remove(&self, _: u64, _: u64) -> Removal {
        Removal::Done
    }

    fn wait(&self, _: u64, _: u64) {}

    fn users_max(&self) -> u32 {
        1
    }
}
