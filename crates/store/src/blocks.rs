//! Blocks of extended attributes, shared by the inodes whose attributes are equal.
//!
//! A block is a number, a content, and a count of users. It is stored as two records, so that one more
//! user does not write the content again. A *shared* block never changes its content, and may have many users:
//! where it has one only, its place is taken by a block of the same number with another content.
//! Blocks that are shared are in memory while they are in use; equal ones are found through a [`ShareIndex`],
//! which is filled as blocks are read and made. The steps are those of the protocol of `corewalk-mbcache`.
//!
//! A *private* block has one user, which alone has it in memory, and no hash: its record says [`UNHASHED`]. It is
//! in neither table nor index (what is read of it later is in the table alone), so to change it takes no lock but that of its inode. So are the sets of files that
//! are changed again and again, until a commit (`late`); those that are too long to be shared; and all in a store
//! that does not share.
//!
//! A block is entered under the hash of its content. Of a long content that is one of samples
//! (`hash`), and who has compared [`LOOKS_MAX`] others with one hash takes that of all bytes instead: so
//! contents that were chosen to meet cost time, within a bound, and are shared even so.
//!
//! # Invariants
//! - K.1: the users of a block are the inodes that name it.
//! - K.2: a block has at most as many users as the index allows.
//! - K.3: a block without users has no records, and is never in the index (trap T34).
//! - K.4: what is to be changed in place looks for its new content first, is out of the index while it
//!   changes, and enters it again with what it has then, so that it does not find itself (trap T38).
//! - K.5: there is one block of a number in memory: it is in the table before anybody learns the number,
//!   and until its records are gone. Numbers that are free again are given out again, so that a
//!   transaction has no records of blocks that came and went within it.
//! - K.6: who has got a block from the table counts its users after the index has heard of it: a block is
//!   locked before it is in the table, until it is entered. So the index is never told of users of what it does
//!   not know (H.5), and a block that is gone is not entered.
//! - K.8: a private block is reached from its inode only. Its number, which an index that forgets to forget may
//!   hand out, leads nobody else to it: there is no such block in the table, and a record without a hash is
//!   believed only if an inode names it. What its record says of the hash changes with the table, under the lock
//!   of the shard.
//! - K.7: what nobody uses in memory takes no more of it than what is used, or [`SHARD_BYTES`] in each shard; or
//!   than what was used when a shard was looked through last, which is [`SHARD_BLOCKS`] new ones ago at most.
//!
//! Contents of more than [`SHARED_BYTES_MAX`] bytes are not shared: equal ones are not to be expected, and to
//! compare them takes long.
//!
//! # Locks
//! The users of a block, within which are records, the index and a shard of the table. A shard's, within which are
//! records: it is held while a block is read. Both are taken with inodes locked; nobody locks two blocks. The
//! lock of a block that nobody has seen is free, so it is also taken within others (K.6).
//! Lists of free numbers (`numbers`) are leaves.

use std::collections::HashMap;
use std::sync::Arc;

use corewalk::Errno;
use corewalk_base::{Budget, Mutex, MutexGuard, OwnLine, ShardedCounter};

use crate::content::BLOCK_BYTES;
use crate::hash::Secret;
use crate::journal::View;
use crate::numbers::Numbers;
use crate::record::{Key, Kind, UNHASHED, UsersRecord};
use crate::share::{Removal, ShareIndex};

/// Shards of the table.
const SHARDS: usize = 64;
/// Blocks of a shard from which on those that nobody uses in memory are dropped.
const SHARD_BLOCKS: usize = 1024;
/// Bytes of content of a shard from which on they are dropped, however few blocks have them.
const SHARD_BYTES: usize = 512 << 10;
/// Longer contents are not entered into the index, so that nobody else uses their blocks.
const SHARED_BYTES_MAX: usize = 128 << 10;
/// Blocks of one hash that are compared with a content before it is hashed as a whole.
const LOOKS_MAX: u32 = 4;

/// The blocks of a store. See the module's text.
pub(crate) struct Blocks {
    shards: Box<[OwnLine<Mutex<Shard>>]>,
    numbers: Numbers,
    pub(crate) index: Arc<dyn ShareIndex>,
    secret: Secret,
    /// False if every inode is to have its own block.
    is_sharing: bool,
    blocks: ShardedCounter,
    users: ShardedCounter,
}

/// When a set that replaces another one is shared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum When {
    AtOnce,
    /// It is private until [`Blocks::share_late`].
    Late,
}

/// Who asks for a block by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asker {
    /// An inode that names it.
    User,
    Index,
}

#[derive(Default)]
struct Shard {
    blocks: HashMap<u64, Arc<Block>, foldhash::fast::FixedState>,
    /// Bytes of their contents.
    bytes: usize,
    /// How many blocks, and bytes, there may be before the next look for what can go.
    bound: usize,
    bytes_bound: usize,
    /// How many have come since the last one.
    kept: usize,
}

/// A block in memory.
pub(crate) struct Block {
    id: u64,
    content: Arc<[u8]>,
    hash: Hash,
    is_private: bool,
    /// 0 once it is gone.
    users: Mutex<u32>,
}

/// What a content is stored and found by.
#[derive(Clone, Copy)]
struct Hash {
    /// What its record says.
    stored: u64,
    /// What it is entered under, if it is shared.
    key: u64,
}

impl Block {
    /// Returns the number of the block.
    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    /// Returns the content.
    pub(crate) fn content(&self) -> &Arc<[u8]> {
        &self.content
    }

    /// Returns how many users it has at the moment.
    pub(crate) fn users(&self) -> u32 {
        *self.users.lock()
    }

    /// Returns true if it is its user's alone, and nobody can find it.
    pub(crate) fn is_private(&self) -> bool {
        self.is_private
    }

    /// Returns true if others may find it.
    fn is_hashed(&self) -> bool {
        self.hash.stored != UNHASHED
    }

    fn new(id: u64, content: Arc<[u8]>, hash: Hash, users: u32) -> Arc<Block> {
        Arc::new(Block { id, content, hash, is_private: false, users: Mutex::new(users) })
    }

    fn private(id: u64, content: Arc<[u8]>) -> Arc<Block> {
        let hash = Hash { stored: UNHASHED, key: UNHASHED };
        Arc::new(Block { id, content, hash, is_private: true, users: Mutex::new(1) })
    }

    fn save(&self, view: &View) {
        view.put_shared(Key::of(Kind::Xattr, self.id), self.content.clone());
    }

    fn save_users(&self, users: u32, view: &View) {
        view.put(Key::of(Kind::XattrUsers, self.id), &self.users_record(users).encode());
    }

    /// Saves a block of a number that nobody has: one that is new, or whose records are gone. So if it goes
    /// before a commit, it leaves nothing that would have to be removed.
    fn save_new(&self, view: &View) {
        view.put_new(Key::of(Kind::XattrUsers, self.id), &self.users_record(1).encode());
        view.put_new_shared(Key::of(Kind::Xattr, self.id), self.content.clone());
    }

    fn users_record(&self, users: u32) -> UsersRecord {
        UsersRecord { hash: self.hash.stored, users, len: self.content.len() as u32 }
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
            is_sharing: index.users_max() > 1,
            shards: (0..SHARDS).map(|_| OwnLine::new(Mutex::default())).collect(),
            numbers: Numbers::from(last + 1),
            index,
            secret,
            blocks: ShardedCounter::new(),
            users: ShardedCounter::new(),
        };
        table.blocks.add(blocks as i64);
        table.users.add(users as i64);
        table
    }

    /// Returns true if inodes may have the same block.
    pub(crate) fn is_sharing(&self) -> bool {
        self.is_sharing
    }

    /// Returns how many blocks there are, and how many users they have in all.
    pub(crate) fn counts(&self) -> (u64, u64) {
        (self.blocks.sum().max(0) as u64, self.users.sum().max(0) as u64)
    }

    /// Returns the block that an inode names. `EIO` if it cannot be read.
    pub(crate) fn get(&self, id: u64, view: &View) -> Result<Arc<Block>, Errno> {
        self.get_for(Asker::User, id, view)
    }

    fn get_for(&self, asker: Asker, id: u64, view: &View) -> Result<Arc<Block>, Errno> {
        let mut shard = self.shard(id).lock();
        if let Some(block) = shard.blocks.get(&id) {
            return Ok(block.clone());
        }
        // Within the lock: who drops a block from memory has it as well, so this is not out of date.
        let users = view.get(&Key::of(Kind::XattrUsers, id))?.ok_or(Errno::IO)?;
        let UsersRecord { hash, users, len } = UsersRecord::decode(&users)?;
        // K.8.
        if hash == UNHASHED && asker == Asker::Index {
            return Err(Errno::IO);
        }
        let content = view.get(&Key::of(Kind::Xattr, id))?.ok_or(Errno::IO)?;
        if content.len() != len as usize || users == 0 {
            return Err(Errno::IO);
        }
        let key = match hash {
            UNHASHED => UNHASHED,
            _ => self.key_to_enter(hash, &content),
        };
        let hash = Hash { stored: hash, key };
        let block = Block::new(id, content, hash, users);
        // K.6.
        let users = block.users.lock();
        shard.keep(&block);
        drop(shard);
        self.enter(&block, *users);
        drop(users);
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
        if !self.can_share(content) {
            space.take(charge(content))?;
            return Ok(self.make_private(content, view));
        }
        let hash = match self.find(content, view) {
            Ok(block) => return Ok(block),
            Err(hash) => hash,
        };
        space.take(charge(content))?;
        Ok(self.make(hash, content, view))
    }

    /// Shares the content of a block whose user has kept it to itself, and returns true if the inode has to name
    /// another block from here on. It takes no room.
    pub(crate) fn share_late(&self, own: &mut Arc<Block>, view: &View, space: &Budget) -> bool {
        if own.is_hashed() || !self.can_share(&own.content) {
            return false;
        }
        match self.find(&own.content, view) {
            Ok(block) => {
                self.release(own, view, space);
                *own = block;
                true
            }
            Err(hash) => {
                *own = self.publish(own, hash, view);
                false
            }
        }
    }

    /// Takes a user off a block, and the block away if that was the last; does nothing with one whose count
    /// of users is damaged.
    pub(crate) fn release(&self, block: &Block, view: &View, space: &Budget) {
        let Ok((mut users, is_last)) = self.lock_to_leave(block) else { return };
        if !is_last {
            return self.leave(block, users, view);
        }
        *users = 0;
        space.give_back(charge(&block.content));
        let mut shard = self.shard(block.id).lock();
        view.remove(Key::of(Kind::Xattr, block.id));
        view.remove(Key::of(Kind::XattrUsers, block.id));
        shard.drop_block(block.id);
        drop(shard);
        drop(users);
        self.numbers.give(block.id);
        self.blocks.add(-1);
        self.users.add(-1);
    }

    /// Gives a user of `own` another content, in another block or the same one.
    ///
    /// # Errors
    /// `ENOSPC`, `EIO` if the count of users is damaged; with nothing changed.
    pub(crate) fn replace(
        &self,
        own: &mut Arc<Block>,
        content: &[u8],
        when: When,
        view: &View,
        space: &Budget,
    ) -> Result<(), Errno> {
        let can_share = self.can_share(content);
        if when == When::Late || !can_share {
            match self.keep_private(own, content, view, space) {
                // An equal one takes no room.
                Err(Errno::NOSPC) if can_share => {}
                done => return done,
            }
        }
        match self.find(content, view) {
            Ok(block) => {
                self.release(own, view, space);
                *own = block;
            }
            Err(hash) => *own = self.replace_with_new(own, (content, hash), view, space)?,
        }
        Ok(())
    }

    /// As [`Blocks::replace`], with a content that nobody has; returns the block.
    fn replace_with_new(
        &self,
        old: &Arc<Block>,
        (content, hash): (&[u8], Hash),
        view: &View,
        space: &Budget,
    ) -> Result<Arc<Block>, Errno> {
        let (mut users, is_last) = self.lock_to_leave(old)?;
        let before = if is_last { charge(&old.content) } else { 0 };
        if let Err(errno) = space.exchange(before, charge(content)) {
            self.stay(old, (users, is_last));
            return Err(errno);
        }
        if !is_last {
            self.leave(old, users, view);
            return Ok(self.make(hash, content, view));
        }
        // K.4: it is out of the index, and nobody can become a user of it.
        *users = 0;
        let new = Block::new(old.id, content.into(), hash, 1);
        let new_users = new.users.lock();
        let mut shard = self.shard(new.id).lock();
        new.save(view);
        if old.hash.stored != hash.stored || old.content.len() != content.len() {
            new.save_users(1, view);
        }
        shard.keep(&new);
        drop(shard);
        drop(users);
        self.enter(&new, 1);
        drop(new_users);
        Ok(new)
    }

    /// Gives a user of `own` another content, in a block of its own.
    ///
    /// # Errors
    /// As [`Blocks::replace`].
    fn keep_private(
        &self,
        own: &mut Arc<Block>,
        content: &[u8],
        view: &View,
        space: &Budget,
    ) -> Result<(), Errno> {
        if let Some(block) = Arc::get_mut(own).filter(|block| block.is_private) {
            space.exchange(charge(&block.content), charge(content))?;
            let has_other_len = block.content.len() != content.len();
            block.content = content.into();
            block.save(view);
            if has_other_len {
                block.save_users(1, view);
            }
            return Ok(());
        }
        let (mut users, is_last) = self.lock_to_leave(own)?;
        let before = if is_last { charge(&own.content) } else { 0 };
        if let Err(errno) = space.exchange(before, charge(content)) {
            self.stay(own, (users, is_last));
            return Err(errno);
        }
        if !is_last {
            self.leave(own, users, view);
            *own = self.make_private(content, view);
            return Ok(());
        }
        *users = 0;
        let new = Block::private(own.id, content.into());
        // K.8.
        let mut shard = self.shard(own.id).lock();
        new.save(view);
        new.save_users(1, view);
        shard.drop_block(own.id);
        drop(shard);
        drop(users);
        *own = new;
        Ok(())
    }

    /// Returns the block that a private one becomes when nobody has its content.
    fn publish(&self, own: &Block, hash: Hash, view: &View) -> Arc<Block> {
        let block = Block::new(own.id, own.content.clone(), hash, 1);
        let users = block.users.lock();
        let mut shard = self.shard(block.id).lock();
        // K.8.
        block.save_users(1, view);
        shard.keep(&block);
        drop(shard);
        self.enter(&block, 1);
        drop(users);
        block
    }

    /// Enters a block into the index, unless it is too long or has no hash.
    fn enter(&self, block: &Block, users: u32) {
        if block.is_hashed() && block.content.len() <= SHARED_BYTES_MAX {
            self.index.insert(block.hash.key, block.id, users);
        }
    }

    /// Returns a block of this content, with one user more, or the hash to make one with.
    fn find(&self, content: &[u8], view: &View) -> Result<Arc<Block>, Hash> {
        let stored = self.secret.hash(content);
        let mut hash = Hash { stored, key: stored };
        let (mut found, mut others) = (None, 0);
        let mut look = |key: u64| {
            self.index.find(key, &mut |id| {
                // What cannot be read is not shared.
                let Ok(block) = self.get_for(Asker::Index, id, view) else { return false };
                match self.take(&block, key, content, view) {
                    Some(true) => found = Some(block),
                    Some(false) => others += 1,
                    None => {}
                }
                found.is_some() || others == LOOKS_MAX
            });
            found.is_none() && others == LOOKS_MAX
        };
        if look(hash.key) {
            hash.key = self.secret.hash_whole(content);
            look(hash.key);
        }
        found.inspect(|_| self.users.add(1)).ok_or(hash)
    }

    /// Returns what a content with this hash is entered under that is read from the disk.
    fn key_to_enter(&self, hash: u64, content: &[u8]) -> u64 {
        let mut others = 0;
        self.index.find(hash, &mut |_| {
            others += 1;
            others == LOOKS_MAX
        });
        if others < LOOKS_MAX { hash } else { self.secret.hash_whole(content) }
    }

    /// Makes one user more of a block, if it has this content and room. Returns None if it has no room,
    /// false if it has another content.
    fn take(&self, block: &Block, key: u64, content: &[u8], view: &View) -> Option<bool> {
        if block.hash.key != key || *block.content != *content {
            return Some(false);
        }
        let mut users = block.users.lock();
        if !(1..self.index.users_max()).contains(&*users) {
            return None;
        }
        *users += 1;
        self.index.note_users(key, block.id, *users);
        block.save_users(*users, view);
        Some(true)
    }

    /// Makes a block, for which there is room.
    fn make(&self, hash: Hash, content: &[u8], view: &View) -> Arc<Block> {
        let block = Block::new(self.numbers.take(), content.into(), hash, 1);
        let users = block.users.lock();
        let mut shard = self.shard(block.id).lock();
        // K.5: whoever has the number from before finds no block, or all of this one.
        block.save_new(view);
        shard.keep(&block);
        drop(shard);
        self.enter(&block, 1);
        drop(users);
        self.blocks.add(1);
        self.users.add(1);
        block
    }

    /// Makes a private block, for which there is room.
    fn make_private(&self, content: &[u8], view: &View) -> Arc<Block> {
        let block = Block::private(self.numbers.take(), content.into());
        block.save_new(view);
        self.blocks.add(1);
        self.users.add(1);
        block
    }

    /// Returns true if somebody else may use a block of this content.
    fn can_share(&self, content: &[u8]) -> bool {
        self.is_sharing && content.len() <= SHARED_BYTES_MAX
    }

    /// Returns the users, locked, of a block of which the caller is one, and true if it is the only one;
    /// then the block is out of the index. If not, the caller says `left` once it has unlocked them. Nobody
    /// needs to be told of a private one.
    ///
    /// # Errors
    /// `EIO` for a block without users: its count was smaller than the inodes that name it, against K.1.
    /// Its room was given back already.
    fn lock_to_leave<'a>(&self, block: &'a Block) -> Result<(MutexGuard<'a, u32>, bool), Errno> {
        if block.is_private {
            return Ok((block.users.lock(), true));
        }
        let key = block.hash.key;
        loop {
            self.index.leave(block.id);
            let users = block.users.lock();
            if *users == 0 {
                drop(users);
                self.index.left(block.id);
                return Err(Errno::IO);
            }
            if *users > 1 {
                return Ok((users, false));
            }
            if self.index.remove(key, block.id) == Removal::Done {
                return Ok((users, true));
            }
            drop(users);
            self.index.left(block.id);
            self.index.wait(key, block.id);
            // If it has got another user it may be out of the index; then it comes back.
            let users = block.users.lock();
            if *users > 1 {
                self.enter(block, *users);
            }
        }
    }

    /// Undoes [`Blocks::lock_to_leave`].
    fn stay(&self, block: &Block, (users, is_last): (MutexGuard<'_, u32>, bool)) {
        match (is_last, block.is_private) {
            (true, true) => {}
            (true, false) => self.enter(block, *users),
            (false, _) => {
                drop(users);
                self.index.left(block.id);
            }
        }
    }

    /// Takes a user off a block that has others, and unlocks it.
    fn leave(&self, block: &Block, mut users: MutexGuard<'_, u32>, view: &View) {
        *users -= 1;
        // Stores of before may have longer ones with several users; those stay out of the index.
        if block.is_hashed() && block.content().len() <= SHARED_BYTES_MAX {
            self.index.note_users(block.hash.key, block.id, *users);
        }
        block.save_users(*users, view);
        drop(users);
        self.index.left(block.id);
        self.users.add(-1);
    }

    fn shard(&self, id: u64) -> &Mutex<Shard> {
        &self.shards[id as usize % SHARDS]
    }
}

impl Shard {
    /// Puts a block in that nobody has seen; its users are locked by the caller.
    fn keep(&mut self, block: &Arc<Block>) {
        debug_assert!(block.users.try_lock().is_none(), "K.6");
        self.bytes += block.content.len();
        let old = self.blocks.insert(block.id, block.clone());
        self.bytes -= old.map_or(0, |old| old.content.len());
        self.kept += 1;
        // The bounds are those of what was in use then, which may have been many more.
        let has_few =
            self.blocks.len() <= self.bound.max(SHARD_BLOCKS) && self.kept <= SHARD_BLOCKS;
        if has_few && self.bytes <= self.bytes_bound.max(SHARD_BYTES) {
            return;
        }
        self.blocks.retain(|_, block| Arc::strong_count(block) > 1);
        self.bytes = self.blocks.values().map(|block| block.content.len()).sum();
        // As much again may come before the next look: so looks cost as little as what comes.
        (self.bound, self.bytes_bound) = (2 * self.blocks.len(), 2 * self.bytes);
        self.kept = 0;
    }

    fn drop_block(&mut self, id: u64) {
        let old = self.blocks.remove(&id);
        self.bytes -= old.map_or(0, |old| old.content.len());
    }
}

/// Returns the blocks of space that content is charged for.
pub(crate) fn charge(content: &[u8]) -> u64 {
    (content.len() as u64).div_ceil(BLOCK_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(id: u64, bytes: usize) -> Arc<Block> {
        let hash = Hash { stored: id, key: id };
        Block::new(id, vec![7; bytes].into(), hash, 1)
    }

    fn keep(shard: &mut Shard, block: &Arc<Block>) {
        let _users = block.users.lock();
        shard.keep(block);
    }

    /// K.7: long contents that nobody uses are dropped long before there are many of them.
    #[test]
    fn contents_that_nobody_uses_are_bounded_in_bytes() {
        let mut shard = Shard::default();
        let used: Vec<_> = (0..40).map(|id| block(id, 60_000)).collect();
        used.iter().for_each(|block| keep(&mut shard, block));
        let used_bytes = 40 * 60_000;
        for id in 40..1000 {
            keep(&mut shard, &block(id, 60_000));
            let bytes: usize = shard.blocks.values().map(|block| block.content.len()).sum();
            assert_eq!(shard.bytes, bytes);
            assert!(bytes <= 2 * used_bytes + SHARD_BYTES, "{bytes} bytes with {id} blocks");
        }
        assert!(used.iter().all(|block| shard.blocks.contains_key(&block.id)), "K.5");
        // One of the same number takes the place of the one before.
        keep(&mut shard, &block(3, 10));
        used.iter().for_each(|block| shard.drop_block(block.id));
        drop(used);
        for id in 1000..2000 {
            keep(&mut shard, &block(id, 60_000));
        }
        assert!(shard.bytes <= 2 * used_bytes + SHARD_BYTES);
        let ids: Vec<_> = shard.blocks.keys().copied().collect();
        ids.iter().for_each(|id| shard.drop_block(*id));
        assert_eq!(shard.bytes, 0);
        for id in 2000..2008 {
            keep(&mut shard, &block(id, 10 << 20));
        }
        assert!(shard.blocks.len() <= 2, "the last, and one more");
    }

    /// K.7: the bound of a time when many were in use is not that of later times.
    #[test]
    fn bound_of_a_peak_is_not_kept() {
        let mut shard = Shard::default();
        // The last look was at about 4, and the next would be at 8.
        let peak = 5 * SHARD_BLOCKS as u64;
        let used: Vec<_> = (0..peak).map(|id| block(id, 10)).collect();
        used.iter().for_each(|block| keep(&mut shard, block));
        assert!(used.iter().all(|block| shard.blocks.contains_key(&block.id)), "K.5");
        drop(used);
        (peak..peak + 2 * SHARD_BLOCKS as u64).for_each(|id| keep(&mut shard, &block(id, 10)));
        assert!(shard.blocks.len() <= SHARD_BLOCKS, "{} blocks", shard.blocks.len());
    }

    /// As long as there are few bytes, the number of blocks is the bound.
    #[test]
    fn short_contents_are_kept() {
        let mut shard = Shard::default();
        (0..SHARD_BLOCKS as u64).for_each(|id| keep(&mut shard, &block(id, 300)));
        assert_eq!(shard.blocks.len(), SHARD_BLOCKS);
    }
}
