//! `before-mbcache`: one lock, and one list of the entries that nobody holds (Linux before 4.6).
//!
//! # How it works
//! An entry is found by its key by those who may become users of its block, and by its block's number
//! by those who leave it. The former share it, the latter have it alone, and both wait for each other:
//! a lock for reading and writing in each entry, with one queue for all that wait. An entry that is
//! held by nobody stands in the list, and is taken off it and put back behind all others each time it
//! is used; what is first in it goes when there is no room.
//!
//! A finder counts itself before it waits, so that those who want an entry alone come after all that
//! only look.
//!
//! Source: Linux 4.5 `fs/mbcache.c` and `fs/ext4/xattr.c`; document 004.

use corewalk_base::{Condvar, Mutex, MutexGuard};

use super::rings::Rings;
use super::{chain, chains};
use crate::blocks::{BlockIndex, Held};

/// The index.
pub(crate) struct OneLock {
    /// Everything is protected by this.
    state: Mutex<State>,
    /// Where all wait, whatever for.
    queue: Condvar,
}

struct State {
    entries: Vec<Entry>,
    free: Vec<u32>,
    by_key: Rings,
    by_block: Rings,
    /// Those that nobody holds, in the order in which they were last used.
    unused: Rings,
    chains: usize,
}

#[derive(Clone, Copy, Default)]
struct Entry {
    key: u64,
    block: u64,
    /// Who holds it.
    used: u32,
    is_alone: bool,
    /// Who waits for it.
    queued: u32,
}

/// An entry that is shared with others that look.
pub(crate) struct Shared<'a> {
    index: &'a OneLock,
    at: u32,
    key: u64,
    block: u64,
}

/// An entry that one has alone; none if the block has none.
pub(crate) struct Alone<'a> {
    index: &'a OneLock,
    at: Option<u32>,
}

impl OneLock {
    /// Returns an empty index for so many entries.
    pub(crate) fn new(entries: usize) -> OneLock {
        let chains = chains(entries);
        let state = State {
            entries: vec![Entry::default(); entries],
            free: (0..entries as u32).rev().collect(),
            by_key: Rings::new(entries, chains),
            by_block: Rings::new(entries, chains),
            unused: Rings::new(entries, 1),
            chains,
        };
        OneLock { state: Mutex::new(state), queue: Condvar::new() }
    }

    /// Returns the first entry under `key` from `next` on, once nobody has it alone.
    fn share_from<'a>(
        &'a self,
        state: &mut MutexGuard<'_, State>,
        mut next: Option<u32>,
        key: u64,
    ) -> Option<Shared<'a>> {
        while let Some(at) = next {
            if state.entries[at as usize].key != key {
                next = state.by_key.next(at);
                continue;
            }
            state.unused.unlink(at);
            state.entries[at as usize].used += 1;
            while state.entries[at as usize].is_alone {
                self.wait(state, at);
            }
            if state.by_key.is_linked(at) {
                let block = state.entries[at as usize].block;
                return Some(Shared { index: self, at, key, block });
            }
            // It was deleted meanwhile.
            self.release(state, at);
            next = state.by_key.first(chain(key, state.chains));
        }
        None
    }

    /// Waits until nobody has the entry of a block, and takes it alone; None if the block has none.
    pub(crate) fn take_alone(&self, block: u64) -> Option<u32> {
        let mut state = self.state.lock();
        loop {
            let at = state.find_block(block)?;
            state.unused.unlink(at);
            if state.entries[at as usize].used == 0 {
                state.entries[at as usize].used = 1;
                state.entries[at as usize].is_alone = true;
                return Some(at);
            }
            self.wait(&mut state, at);
            // Whoever lets go of an entry that is awaited leaves it to those who wait.
            let entry = state.entries[at as usize];
            if !state.by_key.is_linked(at) && entry.used == 0 && entry.queued == 0 {
                state.free.push(at);
            }
        }
    }

    /// Lets go of the entry of a block, which the caller has alone if there is one.
    pub(crate) fn let_go(&self, block: u64) {
        let mut state = self.state.lock();
        if let Some(at) = state.find_block(block) {
            self.end_alone(&mut state, at);
        }
    }

    /// Takes the entry of a block out, which the caller has alone if there is one.
    pub(crate) fn delete_alone(&self, block: u64) {
        let mut state = self.state.lock();
        if let Some(at) = state.find_block(block) {
            state.unlink(at);
            self.end_alone(&mut state, at);
        }
    }

    fn end_alone(&self, state: &mut State, at: u32) {
        state.entries[at as usize].is_alone = false;
        self.release(state, at);
    }

    fn wait(&self, state: &mut MutexGuard<'_, State>, at: u32) {
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

impl BlockIndex for OneLock {
    const VARIANT: &'static str = "before-mbcache";
    type Held<'a> = Shared<'a>;
    type Leaving<'a> = Alone<'a>;

    fn find_first(&self, key: u64) -> Option<Shared<'_>> {
        let mut state = self.state.lock();
        let first = state.by_key.first(chain(key, state.chains));
        self.share_from(&mut state, first, key)
    }

    fn find_next<'a>(&'a self, held: &Shared<'a>) -> Option<Shared<'a>> {
        let mut state = self.state.lock();
        // It is held, so it is where it was.
        let next = state.by_key.next(held.at);
        self.share_from(&mut state, next, held.key)
    }

    fn create(&self, key: u64, block: u64) {
        let mut state = self.state.lock();
        let state = &mut *state;
        let at = state.free.pop().or_else(|| state.forget_oldest());
        // Without room the block is just not shared.
        let Some(at) = at else { return };
        state.entries[at as usize] = Entry { key, block, ..Entry::default() };
        state.by_key.push_front(chain(key, state.chains), at);
        state.by_block.push_front(chain(block, state.chains), at);
        state.unused.push_back(0, at);
    }

    fn leave(&self, block: u64) -> Alone<'_> {
        Alone { index: self, at: self.take_alone(block) }
    }

    fn delete_or_get<'a>(
        &'a self,
        leaving: &mut Alone<'a>,
        _key: u64,
        _block: u64,
    ) -> Option<impl FnOnce() + 'a> {
        if let Some(at) = leaving.at {
            self.state.lock().unlink(at);
        }
        None::<fn()>
    }

    fn entries(&self) -> u64 {
        let state = self.state.lock();
        (state.entries.len() - state.free.len()) as u64
    }
}

impl State {
    fn find_block(&self, block: u64) -> Option<u32> {
        let first = self.by_block.first(chain(block, self.chains));
        let mut chain = std::iter::successors(first, |&at| self.by_block.next(at));
        chain.find(|&at| self.entries[at as usize].block == block)
    }

    fn unlink(&mut self, at: u32) {
        self.by_key.unlink(at);
        self.by_block.unlink(at);
    }

    /// Takes the entry out that was not used for longest, and returns it.
    fn forget_oldest(&mut self) -> Option<u32> {
        let at = self.unused.first(0)?;
        self.unused.unlink(at);
        self.unlink(at);
        Some(at)
    }
}

impl Held for Shared<'_> {
    fn block(&self) -> u64 {
        self.block
    }
}

impl Drop for Shared<'_> {
    fn drop(&mut self) {
        self.index.release(&mut self.index.state.lock(), self.at);
    }
}

impl Drop for Alone<'_> {
    fn drop(&mut self) {
        if let Some(at) = self.at {
            self.index.end_alone(&mut self.index.state.lock(), at);
        }
    }
}
