//! The design `before-mbcache`: one lock for the whole mbcache, and one LRU list of unused entries
//! (Linux before 4.6).
//!
//! Each block in the index has an entry, which is a lock for readers and one writer. A thread that
//! wants to share a block finds the entry by key, and locks it shared. A thread that removes a user
//! finds the entry by the number of the block. It locks the entry exclusively before it locks the
//! block (rule H.4 of `ShareIndex`).
//!
//! All waiting threads share one queue. A thread that locks an entry takes it off the LRU list, and
//! puts it at the end when it unlocks it. If there is no free entry, the first one of the LRU list
//! is dropped.
//!
//! A lookup that waits for a thread with an exclusive hold counts itself as a shared holder first.
//! So the next thread that wants the entry exclusively waits for this lookup too.
//!
//! Source: Linux 4.5 `fs/mbcache.c` and `fs/ext4/xattr.c`; document 004 in `documents.md`.

use ahash::RandomState;
use corewalk_base::{Condvar, Mutex, MutexGuard};
use corewalk_mbcache::Stats;
use corewalk_store::{Removal, ShareIndex};
use hashbrown::HashMap;

use super::rings::Rings;
use super::{chain, chains};
use crate::blocks::USERS_MAX;

/// The index.
pub(crate) struct OneLock {
    /// Everything is protected by this.
    state: Mutex<State>,
    /// All waiting threads.
    queue: Condvar,
}

struct State {
    entries: Vec<Entry>,
    free: Vec<u32>,
    by_key: Rings,
    by_block: HashMap<u64, u32, RandomState>,
    /// The entries that no thread holds, the least recently used one first.
    unused: Rings,
    chains: usize,
}

#[derive(Clone, Copy, Default)]
struct Entry {
    key: u64,
    block: u64,
    /// Threads that hold it.
    used: u32,
    is_alone: bool,
    /// Threads that wait for it.
    queued: u32,
}

impl OneLock {
    /// Returns an empty index for `entries` entries.
    pub(crate) fn new(entries: usize) -> OneLock {
        let chains = chains(entries);
        let state = State {
            entries: vec![Entry::default(); entries],
            free: (0..entries as u32).rev().collect(),
            by_key: Rings::new(entries, chains),
            by_block: HashMap::with_capacity_and_hasher(entries, RandomState::new()),
            unused: Rings::new(entries, 1),
            chains,
        };
        OneLock { state: Mutex::new(state), queue: Condvar::new() }
    }

    /// Searches a hash chain from the entry `next` on, and locks the first entry with the key `key`
    /// shared. Waits while another thread holds it exclusively. Returns its index.
    fn share_from(
        &self,
        state: &mut MutexGuard<'_, State>,
        mut next: Option<u32>,
        key: u64,
    ) -> Option<u32> {
        while let Some(at) = next {
            if state.entries[at as usize].key != key {
                next = state.by_key.next(at);
                continue;
            }
            state.unused.unlink(at);
            state.entries[at as usize].used += 1;
            while state.entries[at as usize].is_alone {
                self.wait_for(state, at);
            }
            if state.by_key.is_linked(at) {
                return Some(at);
            }
            // It was deleted meanwhile.
            self.release(state, at);
            next = state.by_key.first(chain(key, state.chains));
        }
        None
    }

    fn end_alone(&self, state: &mut State, at: u32) {
        state.entries[at as usize].is_alone = false;
        self.release(state, at);
    }

    fn wait_for(&self, state: &mut MutexGuard<'_, State>, at: u32) {
        state.entries[at as usize].queued += 1;
        self.queue.wait(state);
        state.entries[at as usize].queued -= 1;
    }

    fn release(&self, state: &mut State, at: u32) {
        let entry = &mut state.entries[at as usize];
        entry.used -= 1;
        let (is_used, is_awaited) = (entry.used > 0, entry.queued > 0);
        if is_awaited {
            self.queue.notify_all();
        }
        if is_used || is_awaited {
            return;
        }
        if state.by_key.is_linked(at) {
            state.unused.push_back(0, at);
        } else {
            state.free.push(at);
        }
    }
}

impl ShareIndex for OneLock {
    fn find(&self, key: u64, take: &mut dyn FnMut(u64) -> bool) -> Option<u64> {
        let mut state = self.state.lock();
        let mut next = state.by_key.first(chain(key, state.chains));
        while let Some(at) = self.share_from(&mut state, next, key) {
            let block = state.entries[at as usize].block;
            drop(state);
            let is_taken = take(block);
            state = self.state.lock();
            // This lookup has locked the entry `at` shared, so no other thread has removed it from
            // its hash chain.
            next = state.by_key.next(at);
            self.release(&mut state, at);
            if is_taken {
                return Some(block);
            }
        }
        None
    }

    fn insert(&self, key: u64, block: u64, _: u32) {
        let mut state = self.state.lock();
        let state = &mut *state;
        let at = state.free.pop().or_else(|| state.forget_oldest());
        // Without a free entry, the block is left out of the index, and so not shared.
        let Some(at) = at else { return };
        state.entries[at as usize] = Entry { key, block, ..Entry::default() };
        state.by_key.push_front(chain(key, state.chains), at);
        state.by_block.insert(block, at);
        state.unused.push_back(0, at);
    }

    fn note_users(&self, _: u64, _: u64, _: u32) {}

    /// Locks the entry of the block exclusively, once no other thread holds it.
    fn leave(&self, block: u64) {
        let mut state = self.state.lock();
        while let Some(at) = state.by_block.get(&block).copied() {
            state.unused.unlink(at);
            if state.entries[at as usize].used == 0 {
                state.entries[at as usize].used = 1;
                state.entries[at as usize].is_alone = true;
                return;
            }
            self.wait_for(&mut state, at);
            // A thread that releases a deleted entry does not free it while others wait for it. The
            // last waiting thread must free it.
            let entry = state.entries[at as usize];
            if !state.by_key.is_linked(at) && entry.used == 0 && entry.queued == 0 {
                state.free.push(at);
            }
        }
    }

    fn left(&self, block: u64) {
        let mut state = self.state.lock();
        if let Some(at) = state.by_block.get(&block).copied() {
            self.end_alone(&mut state, at);
        }
    }

    fn remove(&self, _: u64, block: u64) -> Removal {
        let mut state = self.state.lock();
        if let Some(at) = state.by_block.get(&block).copied() {
            state.unlink(at);
            self.end_alone(&mut state, at);
        }
        Removal::Done
    }

    fn wait(&self, _: u64, _: u64) {}

    fn users_max(&self) -> u32 {
        USERS_MAX
    }

    fn stats(&self) -> Stats {
        let mut stats = Stats::default();
        let state = self.state.lock();
        stats.entries = (state.entries.len() - state.free.len()) as u64;
        stats
    }
}

impl State {
    fn unlink(&mut self, at: u32) {
        self.by_key.unlink(at);
        self.by_block.remove(&self.entries[at as usize].block);
    }

    /// Removes the least recently used entry, and returns its index.
    fn forget_oldest(&mut self) -> Option<u32> {
        let at = self.unused.first(0)?;
        self.unused.unlink(at);
        self.unlink(at);
        Some(at)
    }
}
