//! Blocks of extended attributes, shared by the inodes whose attributes are equal.
//!
//! A block is a number, a content that never changes while it has more than one user, and a count of
//! users. It is stored as two records, so that one more user does not write the content again.
//! Blocks that are in use are in memory; equal ones are found through a [`ShareIndex`], which is filled
//! as blocks are read and made. The steps are those of the protocol of `corewalk-mbcache`.
//!
//! # Invariants
//! - K.1: the users of a block are the inodes that name it.
//! - K.2: a block has at most as many users as the index allows.
//! - K.3: a block without users has no records, and is never in the index (trap T34).
//! - K.4: a block that is changed in place leaves the index first, and looks for its new content before
//!   it enters it again, so that it does not find itself (trap T38).
//!
//! # Locks
//! A shard of the table, then nothing of the store but records: it is held while a block is read. A
//! block's, within which are records and the index. Both are taken with inodes locked.

use std::collections::HashMap;
use std::sync::Arc;

use corewalk::Errno;
use corewalk_sync::primitives::atomic::{AtomicU64, Ordering};
use corewalk_sync::{Mutex, MutexGuard, OwnLine, ShardedCounter};

use crate::budget::Budget;
use crate::content::BLOCK_BYTES;
use crate::hash::Secret;
use crate::journal::View;
use crate::record::{Key, Kind, UsersRecord};
use crate::share::{Removal, ShareIndex};

/// Shards of the table.
const SHARDS: usize = 64;
/// Blocks of a shard from which on those that nobody uses in memory are dropped.
const SHARD_BLOCKS: usize = 1024;

/// The blocks of a store. See the module's text.
pub(crate) struct Blocks {
    shards: Box<[OwnLine<Mutex<Shard>>]>,
    next: AtomicU64,
    pub(crate) index: Arc<dyn ShareIndex>,
    secret: Secret,
    blocks: ShardedCounter,
    users: ShardedCounter,
}

#[derive(Default)]
struct Shard {
    blocks: HashMap<u64, Arc<Block>, foldhash::fast::FixedState>,
    /// How many there may be before the next look for what can go.
    bound: usize,
}

/// A block in memory.
pub(crate) struct Block {
    id: u64,
    state: Mutex<State>,
}

struct State {
    content: Arc<[u8]>,
    hash: u64,
    /// 0 once it is gone.
    users: u32,
}

impl Block {
    /// Returns the number of the block.
    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    /// Returns the content.
    pub(crate) fn content(&self) -> Arc<[u8]> {
        self.state.lock().content.clone()
    }

    fn save_users(&self, state: &State, view: &View) {
        let len = state.content.len() as u32;
        let record = UsersRecord { hash: state.hash, users: state.users, len };
        view.put(Key::of(Kind::XattrUsers, self.id), &record.encode());
    }
}

impl Blocks {
    /// Returns the table of a store in which there are `blocks` with `users`, none above `last`.
    pub(crate) fn new(
        index: Arc<dyn ShareIndex>,
        secret: Secret,
        (blocks, users, last): (u64, u64, u64),
    ) -> Blocks {
        let table = Blocks {
            shards: (0..SHARDS).map(|_| OwnLine::new(Mutex::default())).collect(),
            next: AtomicU64::new(last + 1),
            index,
            secret,
            blocks: ShardedCounter::new(),
            users: ShardedCounter::new(),
        };
        table.blocks.add(blocks as i64);
        table.users.add(users as i64);
        table
    }

    /// Returns how many blocks there are, and how many users they have in all.
    pub(crate) fn counts(&self) -> (u64, u64) {
        (self.blocks.sum().max(0) as u64, self.users.sum().max(0) as u64)
    }

    /// Returns a block. `EIO` if it cannot be read.
    pub(crate) fn get(&self, id: u64, view: &View) -> Result<Arc<Block>, Errno> {
        let mut shard = self.shard(id).lock();
        if let Some(block) = shard.blocks.get(&id) {
            return Ok(block.clone());
        }
        // Within the lock: who drops a block from memory has it as well, so this is not out of date.
        let users = view.get(&Key::of(Kind::XattrUsers, id))?.ok_or(Errno::IO)?;
        let UsersRecord { hash, users, len } = UsersRecord::decode(&users)?;
        let content = view.get(&Key::of(Kind::Xattr, id))?.ok_or(Errno::IO)?;
        if content.len() != len as usize || users == 0 {
            return Err(Errno::IO);
        }
        let block = Arc::new(Block { id, state: Mutex::new(State { content, hash, users }) });
        shard.keep(&block);
        drop(shard);
        // Others may count users meanwhile, and enter it themselves.
        let state = block.state.lock();
        if state.users > 0 {
            self.index.insert(state.hash, id, state.users);
        }
        drop(state);
        Ok(block)
    }

    /// Returns a block with this content for one user more.
    ///
    /// # Errors
    /// `ENOSPC`.
    pub(crate) fn share(
        &self,
        content: &[u8],
        view: &View,
        space: &Budget,
    ) -> Result<Arc<Block>, Errno> {
        let hash = self.secret.hash(content);
        if let Some(block) = self.find(hash, content, view) {
            return Ok(block);
        }
        self.make(hash, content, view, space)
    }

    /// Takes a user off a block, and the block away if that was the last.
    pub(crate) fn release(&self, block: &Block, view: &View, space: &Budget) {
        self.users.add(-1);
        let (mut state, is_last) = self.lock_to_leave(block);
        if is_last {
            self.free(block, &mut state, view, space);
        } else {
            state.users -= 1;
            self.index.note_users(state.hash, block.id, state.users);
            block.save_users(&state, view);
        }
    }

    /// Returns a block with this content for a user of `old`, who is none of `old` then.
    ///
    /// # Errors
    /// `ENOSPC`, with nothing changed.
    pub(crate) fn replace(
        &self,
        old: &Arc<Block>,
        content: &[u8],
        view: &View,
        space: &Budget,
    ) -> Result<Arc<Block>, Errno> {
        let hash = self.secret.hash(content);
        let (mut state, is_last) = self.lock_to_leave(old);
        if !is_last {
            drop(state);
            let new = match self.find(hash, content, view) {
                Some(new) => new,
                None => self.make(hash, content, view, space)?,
            };
            self.release(old, view, space);
            return Ok(new);
        }
        // K.4: it is out of the index, and nobody can become a user of it.
        if let Some(new) = self.find_but(old.id, hash, content, view) {
            self.users.add(-1);
            self.free(old, &mut state, view, space);
            return Ok(new);
        }
        let (before, after) = (charge(&state.content), charge(content));
        if let Err(errno) = space.take(after.saturating_sub(before)) {
            self.index.insert(state.hash, old.id, state.users);
            return Err(errno);
        }
        space.give_back(before.saturating_sub(after));
        let has_moved = state.hash != hash || state.content.len() != content.len();
        state.hash = hash;
        state.content = content.into();
        if has_moved {
            old.save_users(&state, view);
        }
        view.put_shared(Key::of(Kind::Xattr, old.id), state.content.clone());
        self.index.insert(hash, old.id, state.users);
        Ok(old.clone())
    }

    /// Returns a block of this content, with one user more.
    fn find(&self, hash: u64, content: &[u8], view: &View) -> Option<Arc<Block>> {
        self.find_but(0, hash, content, view)
    }

    /// As `find`, but not the block `own`, whose lock is held.
    fn find_but(&self, own: u64, hash: u64, content: &[u8], view: &View) -> Option<Arc<Block>> {
        let mut found = None;
        self.index.find(hash, &mut |id| {
            if id == own {
                return false;
            }
            // What cannot be read is not shared.
            let Ok(block) = self.get(id, view) else { return false };
            let is_taken = self.take(&block, own, (hash, content), view);
            found = is_taken.then_some(block);
            is_taken
        })?;
        self.users.add(1);
        found
    }

    /// Makes one user more of a block, if it has this content and room; false if not.
    fn take(&self, block: &Block, own: u64, (hash, content): (u64, &[u8]), view: &View) -> bool {
        let state = match own {
            0 => Some(block.state.lock()),
            // Another thread may be here the other way round.
            _ => block.state.try_lock(),
        };
        let Some(mut state) = state else { return false };
        let fits = (1..self.index.users_max()).contains(&state.users);
        if !fits || state.hash != hash || *state.content != *content {
            return false;
        }
        state.users += 1;
        self.index.note_users(hash, block.id, state.users);
        block.save_users(&state, view);
        true
    }

    fn make(
        &self,
        hash: u64,
        content: &[u8],
        view: &View,
        space: &Budget,
    ) -> Result<Arc<Block>, Errno> {
        space.take(charge(content))?;
        // ORDERING: Relaxed. Only the numbers must differ.
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let state = State { content: content.into(), hash, users: 1 };
        view.put_shared(Key::of(Kind::Xattr, id), state.content.clone());
        let block = Arc::new(Block { id, state: Mutex::new(state) });
        block.save_users(&block.state.lock(), view);
        self.shard(id).lock().keep(&block);
        self.index.insert(hash, id, 1);
        self.blocks.add(1);
        self.users.add(1);
        Ok(block)
    }

    /// Returns the lock of a block of which the caller is a user, and true if it is the only one; then
    /// the block is out of the index.
    fn lock_to_leave<'a>(&self, block: &'a Block) -> (MutexGuard<'a, State>, bool) {
        loop {
            let state = block.state.lock();
            if state.users > 1 {
                return (state, false);
            }
            let hash = state.hash;
            if self.index.remove(hash, block.id) == Removal::Done {
                return (state, true);
            }
            drop(state);
            self.index.wait(hash, block.id);
            // If it has got another user it may be out of the index; then it comes back.
            let state = block.state.lock();
            if state.users > 1 {
                self.index.insert(hash, block.id, state.users);
            }
        }
    }

    /// Removes a block that is out of the index and has one user.
    fn free(&self, block: &Block, state: &mut State, view: &View, space: &Budget) {
        state.users = 0;
        space.give_back(charge(&state.content));
        view.remove(Key::of(Kind::Xattr, block.id));
        view.remove(Key::of(Kind::XattrUsers, block.id));
        self.shard(block.id).lock().blocks.remove(&block.id);
        self.blocks.add(-1);
    }

    fn shard(&self, id: u64) -> &Mutex<Shard> {
        &self.shards[id as usize % SHARDS]
    }
}

impl Shard {
    fn keep(&mut self, block: &Arc<Block>) {
        self.blocks.insert(block.id, block.clone());
        if self.blocks.len() > self.bound.max(SHARD_BLOCKS) {
            self.blocks.retain(|_, block| Arc::strong_count(block) > 1);
            self.bound = 2 * self.blocks.len();
        }
    }
}

/// Returns the blocks of space that content is charged for.
pub(crate) fn charge(content: &[u8]) -> u64 {
    (content.len() as u64).div_ceil(BLOCK_BYTES)
}
