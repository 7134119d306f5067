//! `plain-lru` and `lru-per-shard`: each chain has its own lock, and entries stand in the order of
//! their last use.
//!
//! An entry is counted, and a finder reads its chain under the chain's lock. Each use moves the
//! entry to the end of its list, under the lock of that list. The first entry of the list goes when
//! there is no room. There is one list, or one for each processor; the key of an entry selects its
//! list.
//!
//! A finder may hold an entry that another thread has deleted. No thread waits for the finder:
//! under the block's own lock the finder sees that the block has no users or another content. That
//! breaks rule H.2 of the seam, as the document's designs did.
//!
//! Locks and their order: a chain, then a list.
//!
//! Source: document 004, which measured both and submitted neither; Linux `mm/list_lru.c` for lists
//! in shards.

use corewalk_base::primitives::Arc;
use corewalk_base::{CachePadded, Mutex};
use corewalk_store::{Removal, ShareIndex};

use super::rings::Rings;
use super::{chain, chains};
use crate::blocks::{Index, USERS_MAX};

/// The index.
pub(crate) struct Lru {
    chains: Vec<CachePadded<Mutex<Chain>>>,
    lists: Vec<CachePadded<Mutex<List>>>,
}

/// The entries whose keys have a hash in common, the newest last.
type Chain = Vec<Arc<Entry>>;

struct Entry {
    key: u64,
    block: u64,
    /// Its place in its list.
    at: u32,
}

/// Entries in the order of their last use.
struct List {
    order: Rings,
    /// The entries in the order, by place.
    entries: Vec<Option<Arc<Entry>>>,
    free: Vec<u32>,
}

impl Lru {
    /// Returns an empty index for at least so many entries, in so many lists.
    pub(crate) fn new(entries: usize, lists: usize) -> Lru {
        let each = if lists == 1 { entries } else { entries.div_ceil(lists) * 2 };
        Lru {
            chains: (0..chains(entries)).map(|_| CachePadded::default()).collect(),
            lists: (0..lists).map(|_| CachePadded::new(Mutex::new(List::new(each)))).collect(),
        }
    }

    fn chain(&self, key: u64) -> &Mutex<Chain> {
        &self.chains[chain(key, self.chains.len())]
    }

    fn list(&self, key: u64) -> &Mutex<List> {
        &self.lists[(key >> 32) as usize % self.lists.len()]
    }

    /// Drops the entry of a list whose last use is the oldest. Returns false if there is none.
    fn forget_oldest(&self, key: u64) -> bool {
        let mut list = self.list(key).lock();
        let Some(at) = list.order.first(0) else { return false };
        list.order.unlink(at);
        let oldest = list.entries[at as usize].take().expect("an entry in the order is there");
        drop(list);
        let mut chain = self.chain(oldest.key).lock();
        // Another thread may have deleted it since.
        chain.retain(|entry| !Arc::ptr_eq(entry, &oldest));
        drop(chain);
        self.list(key).lock().free.push(at);
        true
    }

    /// Returns the newest entry under `key`, or the newest that is older than `found`. Returns None
    /// if `found` was deleted: a block that is missed for that is shared one time less.
    fn older(&self, key: u64, found: Option<&Arc<Entry>>) -> Option<Arc<Entry>> {
        let chain = self.chain(key).lock();
        let end = match found {
            Some(found) => chain.iter().position(|entry| Arc::ptr_eq(entry, found))?,
            None => chain.len(),
        };
        chain[..end].iter().rev().find(|entry| entry.key == key).cloned()
    }
}

impl ShareIndex for Lru {
    fn find(&self, key: u64, take: &mut dyn FnMut(u64) -> bool) -> Option<u64> {
        let mut found = self.older(key, None);
        while let Some(entry) = found {
            if take(entry.block) {
                self.list(key).lock().touch(&entry);
                return Some(entry.block);
            }
            found = self.older(key, Some(&entry));
        }
        None
    }

    fn insert(&self, key: u64, block: u64, _: u32) {
        loop {
            let mut chain = self.chain(key).lock();
            let mut list = self.list(key).lock();
            if let Some(entry) = list.add(key, block) {
                drop(list);
                chain.push(entry);
                return;
            }
            drop((list, chain));
            if !self.forget_oldest(key) {
                return;
            }
        }
    }

    fn note_users(&self, _: u64, _: u64, _: u32) {}

    fn remove(&self, key: u64, block: u64) -> Removal {
        let mut chain = self.chain(key).lock();
        let is_it = |entry: &Arc<Entry>| entry.key == key && entry.block == block;
        if let Some(at) = chain.iter().rposition(is_it) {
            let entry = chain.remove(at);
            self.list(key).lock().remove(&entry);
        }
        Removal::Done
    }

    fn wait(&self, _: u64, _: u64) {}

    fn users_max(&self) -> u32 {
        USERS_MAX
    }
}

impl Index for Lru {
    fn entries(&self) -> u64 {
        self.chains.iter().map(|chain| chain.lock().len() as u64).sum()
    }
}

impl List {
    fn new(entries: usize) -> List {
        List {
            order: Rings::new(entries, 1),
            entries: (0..entries).map(|_| None).collect(),
            free: (0..entries as u32).rev().collect(),
        }
    }

    /// Returns a new entry, the last in the order, if there is room.
    fn add(&mut self, key: u64, block: u64) -> Option<Arc<Entry>> {
        let at = self.free.pop()?;
        let entry = Arc::new(Entry { key, block, at });
        self.entries[at as usize] = Some(Arc::clone(&entry));
        self.order.push_back(0, at);
        Some(entry)
    }

    fn has(&self, entry: &Arc<Entry>) -> bool {
        let there = self.entries[entry.at as usize].as_ref();
        there.is_some_and(|there| Arc::ptr_eq(there, entry))
    }

    fn touch(&mut self, entry: &Arc<Entry>) {
        if self.has(entry) {
            self.order.unlink(entry.at);
            self.order.push_back(0, entry.at);
        }
    }

    /// Removes an entry, unless `forget_oldest` has taken it.
    fn remove(&mut self, entry: &Arc<Entry>) {
        if self.has(entry) {
            self.order.unlink(entry.at);
            self.entries[entry.at as usize] = None;
            self.free.push(entry.at);
        }
    }
}
