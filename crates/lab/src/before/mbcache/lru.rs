//! `plain-lru` and `lru-per-shard`: chains with locks of their own, and entries in the order of their
//! last use.
//!
//! # How it works
//! An entry is counted, and found under the lock of its chain. Each use moves it to the end of its
//! list, under the lock of that list; what is first in it goes when there is no room. There is one
//! list, or one for each processor; an entry stays in the one that its key chose.
//!
//! A finder may hold an entry that was deleted meanwhile: nobody waits, and it is the block's own lock
//! under which the finder sees that the block has no users or other content.
//!
//! Locks and their order: a chain, then a list.
//!
//! Source: document 004, which measured both and submitted neither; Linux `mm/list_lru.c` for lists
//! in shards.

use std::marker::PhantomData;

use corewalk_base::primitives::Arc;
use corewalk_base::{CachePadded, Mutex};

use super::rings::Rings;
use super::{chain, chains};
use crate::blocks::{BlockIndex, Held};
use crate::machine::cores;

/// How many lists there are.
pub(crate) trait Lists: Sync {
    /// The name in the rows.
    const VARIANT: &'static str;

    /// Returns how many lists there are.
    fn count() -> usize;
}

/// One list.
pub(crate) struct OneList;

/// One list for each processor.
pub(crate) struct ListPerShard;

/// The index.
pub(crate) struct Lru<L> {
    chains: Vec<CachePadded<Mutex<Chain>>>,
    lists: Vec<CachePadded<Mutex<List>>>,
    kind: PhantomData<L>,
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
    /// What is in the order, by place.
    entries: Vec<Option<Arc<Entry>>>,
    free: Vec<u32>,
}

/// An entry that was found, counted.
pub(crate) struct Found<'a, L> {
    index: &'a Lru<L>,
    entry: Arc<Entry>,
}

impl Lists for OneList {
    const VARIANT: &'static str = "plain-lru";

    fn count() -> usize {
        1
    }
}

impl Lists for ListPerShard {
    const VARIANT: &'static str = "lru-per-shard";

    fn count() -> usize {
        cores().max(2)
    }
}

impl<L: Lists> Lru<L> {
    /// Returns an empty index for at least so many entries.
    pub(crate) fn new(entries: usize) -> Lru<L> {
        let each = if L::count() == 1 { entries } else { entries.div_ceil(L::count()) * 2 };
        Lru {
            chains: (0..chains(entries)).map(|_| CachePadded::default()).collect(),
            lists: (0..L::count()).map(|_| CachePadded::new(Mutex::new(List::new(each)))).collect(),
            kind: PhantomData,
        }
    }

    fn chain(&self, key: u64) -> &Mutex<Chain> {
        &self.chains[chain(key, self.chains.len())]
    }

    fn list(&self, key: u64) -> &Mutex<List> {
        &self.lists[(key >> 32) as usize % self.lists.len()]
    }

    fn touch(&self, entry: &Arc<Entry>) {
        self.list(entry.key).lock().touch(entry);
    }

    /// Drops the entry of a list that was not used for longest. Returns false if there is none.
    fn forget_oldest(&self, key: u64) -> bool {
        let mut list = self.list(key).lock();
        let Some(at) = list.order.first(0) else { return false };
        list.order.unlink(at);
        let oldest = list.entries[at as usize].take().expect("what is in the order is there");
        drop(list);
        let mut chain = self.chain(oldest.key).lock();
        // Somebody may have deleted it since.
        chain.retain(|entry| !Arc::ptr_eq(entry, &oldest));
        drop(chain);
        self.list(key).lock().free.push(at);
        true
    }

    fn found(&self, entry: &Arc<Entry>) -> Found<'_, L> {
        Found { index: self, entry: Arc::clone(entry) }
    }
}

impl<L: Lists> BlockIndex for Lru<L> {
    const VARIANT: &'static str = L::VARIANT;
    type Held<'a>
        = Found<'a, L>
    where
        L: 'a;
    type Leaving<'a>
        = ()
    where
        L: 'a;

    fn find_first(&self, key: u64) -> Option<Found<'_, L>> {
        let chain = self.chain(key).lock();
        chain.iter().rev().find(|entry| entry.key == key).map(|entry| self.found(entry))
    }

    fn find_next<'a>(&'a self, held: &Found<'a, L>) -> Option<Found<'a, L>> {
        let key = held.entry.key;
        let chain = self.chain(key).lock();
        // Whose entry is gone has seen it; a block that is not met for that is not shared once.
        let at = chain.iter().position(|entry| Arc::ptr_eq(entry, &held.entry))?;
        let mut older = chain[..at].iter().rev();
        older.find(|entry| entry.key == key).map(|entry| self.found(entry))
    }

    fn create(&self, key: u64, block: u64) {
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

    fn leave(&self, _block: u64) {}

    fn delete_or_get<'a>(
        &'a self,
        _leaving: &mut (),
        key: u64,
        block: u64,
    ) -> Option<impl FnOnce() + 'a> {
        let mut chain = self.chain(key).lock();
        let is_it = |entry: &Arc<Entry>| entry.key == key && entry.block == block;
        if let Some(at) = chain.iter().rposition(is_it) {
            let entry = chain.remove(at);
            self.list(key).lock().remove(&entry);
        }
        None::<fn()>
    }

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

    /// Takes an entry out, unless somebody has who drops it for want of room.
    fn remove(&mut self, entry: &Arc<Entry>) {
        if self.has(entry) {
            self.order.unlink(entry.at);
            self.entries[entry.at as usize] = None;
            self.free.push(entry.at);
        }
    }
}

impl<L: Lists> Held for Found<'_, L> {
    fn block(&self) -> u64 {
        self.entry.block
    }

    fn touch(&self) {
        self.index.touch(&self.entry);
    }
}
