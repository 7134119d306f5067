//! The designs `plain-lru` and `lru-per-shard` of the mbcache: each hash chain has its own lock,
//! and entries are in LRU lists.
//!
//! Entries are reference-counted (`Arc`). A lookup searches a hash chain under the lock of the
//! chain. Each use moves the entry to the end of its LRU list, under the lock of the list. A full
//! list drops its first entry.
//!
//! `plain-lru` has one list. `lru-per-shard` has one list per processor, and the key of an entry
//! selects its list.
//!
//! By rule H.2 of `ShareIndex`, no lookup gets a removed entry. `plain-lru` and `lru-per-shard`
//! break this rule, as in Kara's patches: a thread may delete the entry that a lookup is about to
//! return. The caller of the lookup then takes the block's own lock, and sees that the block has no
//! users or another content.
//!
//! Locks and their order: a chain, then a list.
//!
//! Source: Kara, "ext\[24\]: MBCache rewrite", December 2015 (document 004 in `documents.md`),
//! which measured `plain-lru` and `lru-per-shard`, but proposed another design. The LRU list per
//! shard is that of Linux `mm/list_lru.c`.

use corewalk_base::primitives::Arc;
use corewalk_base::{CachePadded, Mutex};
use corewalk_mbcache::Stats;
use corewalk_store::{Removal, ShareIndex};

use super::rings::Rings;
use super::{chain, chains};
use crate::blocks::USERS_MAX;

/// The index.
pub(crate) struct Lru {
    chains: Vec<CachePadded<Mutex<Chain>>>,
    lists: Vec<CachePadded<Mutex<List>>>,
}

/// The entries of one hash chain. The newest entry is the last one.
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
    /// The entries, by their numbers in `order`.
    entries: Vec<Option<Arc<Entry>>>,
    free: Vec<u32>,
}

impl Lru {
    /// Returns an empty index for at least `entries` entries, divided over `lists` LRU lists.
    pub(crate) fn new(entries: usize, lists: usize) -> Lru {
        let each = if lists == 1 { entries } else { entries.div_ceil(lists) * 2 };
        let list = || List {
            order: Rings::new(each, 1),
            entries: (0..each).map(|_| None).collect(),
            free: (0..each as u32).rev().collect(),
        };
        Lru {
            chains: (0..chains(entries)).map(|_| CachePadded::default()).collect(),
            lists: (0..lists).map(|_| CachePadded::new(Mutex::new(list()))).collect(),
        }
    }

    fn chain(&self, key: u64) -> &Mutex<Chain> {
        &self.chains[chain(key, self.chains.len())]
    }

    fn list(&self, key: u64) -> &Mutex<List> {
        &self.lists[(key >> 32) as usize % self.lists.len()]
    }

    /// Drops the least recently used entry of the LRU list that `key` selects, if there is one.
    fn forget_oldest(&self, key: u64) -> bool {
        let mut list = self.list(key).lock();
        let Some(at) = list.order.first(0) else { return false };
        list.order.unlink(at);
        let oldest = list.entries[at as usize].take().expect("an entry in the order is there");
        drop(list);
        let mut chain = self.chain(oldest.key).lock();
        // Another thread may have deleted the oldest entry since. Then `retain` removes nothing.
        chain.retain(|entry| !Arc::ptr_eq(entry, &oldest));
        drop(chain);
        self.list(key).lock().free.push(at);
        true
    }

    /// Returns the newest entry with the key `key`, or the newest one that is older than the entry
    /// `found`. If another thread has deleted `found` meanwhile, returns None. Then the lookup ends
    /// early, and may miss a block that could be shared.
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
            if let Some(at) = list.free.pop() {
                let entry = Arc::new(Entry { key, block, at });
                list.entries[at as usize] = Some(Arc::clone(&entry));
                list.order.push_back(0, at);
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

    fn stats(&self) -> Stats {
        let mut stats = Stats::default();
        stats.entries = self.chains.iter().map(|chain| chain.lock().len() as u64).sum();
        stats
    }
}

impl List {
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
