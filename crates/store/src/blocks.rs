//! Attribute blocks, shared by inodes with equal extended attributes.
//!
//! An attribute block has an id, an attribute set as its content, and a count of users (inodes).
//! Content and count are in two records, so that a new user does not rewrite the content.
//!
//! The content of a *shared* block never changes. If its only user sets another content, a new
//! block with the same id replaces it. Shared blocks stay in memory while they are in use. The
//! [`ShareIndex`], which finds blocks with equal contents, follows the protocol of
//! `corewalk-mbcache`.
//!
//! A *private* block belongs to one inode. Its record has no hash ([`UNHASHED`]), and it is in
//! neither table nor index. So a change of it takes only the inode's lock. Sets that change often
//! are private until a commit (`late`). Sets over [`SHARED_BYTES_MAX`], and all sets of a store
//! without sharing, are always private.
//!
//! The key of a block in the index is the hash of its content, which covers only samples of a long
//! content. If [`COMPARISONS_MAX`] contents already have one key, the next one gets the hash of all
//! its bytes. So crafted collisions cost bounded time, and equal contents are still shared.
//!
//! # Invariants
//! - K.1: the users of a block are the inodes whose records contain its id.
//! - K.2: a block has at most as many users as the index allows.
//! - K.3: a block without users has no records, and is not in the index. Otherwise an inode could
//!   find the block there while its last user frees it (trap T34 in `traps.md`).
//! - K.4: a change of a block in place first searches for another block with the new content. A
//!   search after the change could find the block itself (trap T38). During the change, the block
//!   is not in the index.
//! - K.5: a shared block is in memory at most once. It enters the table before other threads can
//!   learn its id. It leaves the table when its records are removed.
//! - K.6: the user count of a new block stays locked until the block is in the table and in the
//!   index. So the index has the block before its count changes (rule H.5 of [`ShareIndex`]), and
//!   no freed block enters the index.
//! - K.7: unused blocks take at most as much memory as used blocks, or [`SHARD_BYTES`] per shard if
//!   that is more. A shard is scanned for unused blocks after at most [`SHARD_BLOCKS`] new ones.
//! - K.8: a private block is reached only through its inode. If the index yields the id of a
//!   private block, that id is outdated, and `get_for` refuses it.
//!
//! # Locks
//! The locks are taken in this order: an inode, a block's user count, a shard of the table, records
//! and the index. A thread locks one existing count at a time, and that of a block that it makes.

use std::collections::HashMap;
use std::sync::Arc;

use corewalk::Errno;
use corewalk_base::{Budget, Mutex, MutexGuard, OwnLine, ShardedCounter};

use crate::block_ids::BlockIds;
use crate::content::BLOCK_BYTES;
use crate::hash::Secret;
use crate::journal::View;
use crate::record::{Key, Kind, UNHASHED, UsersRecord};
use crate::share::{Removal, ShareIndex};
use crate::store::StoreStats;

const SHARDS: usize = 64;
const SHARD_BLOCKS: usize = 1024;
const SHARD_BYTES: usize = 512 << 10;
/// Maximum length in bytes of an attribute set that inodes may share. Longer sets are rarely equal,
/// and comparing them is slow.
const SHARED_BYTES_MAX: usize = 128 << 10;
/// Maximum number of contents that `find` compares under one key. After that, `find` searches with
/// the hash of all bytes as the key. The usual hash of a long content covers only samples of it.
const COMPARISONS_MAX: u32 = 4;

pub(crate) struct Blocks {
    /// The shared blocks by id. Each shard is protected by its own mutex.
    shards: Box<[OwnLine<Mutex<Shard>>]>,
    ids: BlockIds,
    pub(crate) index: Arc<dyn ShareIndex>,
    secret: Secret,
    is_sharing: bool,
    blocks: ShardedCounter,
    users: ShardedCounter,
    hits: ShardedCounter,
    misses: ShardedCounter,
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct BlockTotals {
    pub(crate) blocks: u64,
    pub(crate) users: u64,
    pub(crate) last_id: u64,
}

struct LockedUsers<'a> {
    users: MutexGuard<'a, u32>,
    is_last: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum When {
    AtOnce,
    Late,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LookupOrigin {
    User,
    Index,
}

#[derive(Default)]
struct Shard {
    blocks: HashMap<u64, Arc<Block>, foldhash::fast::FixedState>,
    bytes: usize,
    bound: usize,
    bytes_bound: usize,
    kept: usize,
}

pub(crate) struct Block {
    id: u64,
    content: Arc<[u8]>,
    hash: Hash,
    is_private: bool,
    /// The number of users (inodes), or 0 after the block was freed. The mutex also protects the
    /// records of the block and its entry in the index.
    users: Mutex<u32>,
}

#[derive(Clone, Copy)]
struct Hash {
    stored: u64,
    key: u64,
}

impl Block {
    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    pub(crate) fn content(&self) -> &Arc<[u8]> {
        &self.content
    }

    pub(crate) fn is_private(&self) -> bool {
        self.is_private
    }

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

    /// Saves the records of a new block, which is in no earlier transaction. If the block is freed
    /// before the next commit, that commit writes nothing for it.
    fn save_new(&self, view: &View) {
        view.put_new(Key::of(Kind::XattrUsers, self.id), &self.users_record(1).encode());
        view.put_new_shared(Key::of(Kind::Xattr, self.id), self.content.clone());
    }

    fn users_record(&self, users: u32) -> UsersRecord {
        UsersRecord { hash: self.hash.stored, users, len: self.content.len() as u32 }
    }
}

impl Blocks {
    pub(crate) fn new(index: Arc<dyn ShareIndex>, secret: Secret, found: BlockTotals) -> Blocks {
        let table = Blocks {
            is_sharing: index.users_max() > 1,
            shards: (0..SHARDS).map(|_| OwnLine::new(Mutex::default())).collect(),
            ids: BlockIds::from(found.last_id + 1),
            index,
            secret,
            blocks: ShardedCounter::new(),
            users: ShardedCounter::new(),
            hits: ShardedCounter::new(),
            misses: ShardedCounter::new(),
        };
        table.blocks.add(found.blocks as i64);
        table.users.add(found.users as i64);
        table
    }

    pub(crate) fn is_sharing(&self) -> bool {
        self.is_sharing
    }

    pub(crate) fn add_stats(&self, stats: &mut StoreStats) {
        let get = |counter: &ShardedCounter| counter.sum().max(0) as u64;
        (stats.xattr_blocks, stats.xattr_users) = (get(&self.blocks), get(&self.users));
        (stats.xattr_hits, stats.xattr_misses) = (get(&self.hits), get(&self.misses));
        stats.xattr_saved_blocks = stats.xattr_users.saturating_sub(stats.xattr_blocks);
        let index = self.index.stats();
        (stats.xattr_entries, stats.xattr_reclaimed) = (index.entries, index.reclaimed);
    }

    /// Returns the attribute block `id`, from memory or from its records. `EIO` if the block cannot
    /// be read.
    pub(crate) fn get(&self, id: u64, view: &View) -> Result<Arc<Block>, Errno> {
        self.get_for(LookupOrigin::User, id, view)
    }

    fn get_for(&self, origin: LookupOrigin, id: u64, view: &View) -> Result<Arc<Block>, Errno> {
        let mut shard = self.shard(id).lock();
        if let Some(block) = shard.blocks.get(&id) {
            return Ok(block.clone());
        }
        // The shard stays locked while the record is read. So no other thread can load or drop the
        // block meanwhile.
        let users = view.get(&Key::of(Kind::XattrUsers, id))?.ok_or(Errno::IO)?;
        let UsersRecord { hash, users, len } = UsersRecord::decode(&users)?;
        // Invariant K.8: the index contains no private blocks. So the index meant an earlier, freed
        // block that had the same id.
        if hash == UNHASHED && origin == LookupOrigin::Index {
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
        // Invariant K.6: keep the user count locked until the block is in the table and in the
        // index. Otherwise another thread could free it in between, and the index would get a freed
        // block.
        let users = block.users.lock();
        shard.keep(&block);
        drop(shard);
        self.enter(&block, *users);
        drop(users);
        Ok(block)
    }

    /// Adds a user (an inode) to a block with the content `content`; the block is private if the
    /// content cannot be shared.
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

    /// Removes one user (an inode) from `block`, and frees the block if it has no other user. Does
    /// nothing if the user count is damaged.
    pub(crate) fn release(&self, block: &Block, view: &View, space: &Budget) {
        let Ok(LockedUsers { mut users, is_last }) = self.lock_to_leave(block) else { return };
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
        self.ids.give(block.id);
        self.blocks.add(-1);
        self.users.add(-1);
    }

    /// Replaces the content of an inode's attribute block `own` by `content`. If other inodes use
    /// the block too, or another block has that content, `own` becomes another block.
    ///
    /// # Errors
    /// `ENOSPC`; `EIO` if the user count of the old block is damaged. After an error nothing has
    /// changed.
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
                Err(Errno::NOSPC) if can_share => {}
                done => return done,
            }
        }
        match self.find(content, view) {
            Ok(block) => {
                self.release(own, view, space);
                *own = block;
            }
            Err(hash) => *own = self.replace_with_new(own, content, hash, view, space)?,
        }
        Ok(())
    }

    fn replace_with_new(
        &self,
        old: &Arc<Block>,
        content: &[u8],
        hash: Hash,
        view: &View,
        space: &Budget,
    ) -> Result<Arc<Block>, Errno> {
        let LockedUsers { mut users, is_last } = self.lock_to_leave(old)?;
        let before = if is_last { charge(&old.content) } else { 0 };
        if let Err(errno) = space.exchange(before, charge(content)) {
            self.stay(old, LockedUsers { users, is_last });
            return Err(errno);
        }
        if !is_last {
            self.leave(old, users, view);
            return Ok(self.make(hash, content, view));
        }
        // Invariant K.4: `lock_to_leave` has removed the block `old` from the index, so no other
        // inode finds it while its content changes.
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
        let LockedUsers { mut users, is_last } = self.lock_to_leave(own)?;
        let before = if is_last { charge(&own.content) } else { 0 };
        if let Err(errno) = space.exchange(before, charge(content)) {
            self.stay(own, LockedUsers { users, is_last });
            return Err(errno);
        }
        if !is_last {
            self.leave(own, users, view);
            *own = self.make_private(content, view);
            return Ok(());
        }
        *users = 0;
        let new = Block::private(own.id, content.into());
        // Invariant K.8: the record of the block and its entry in the table change together, under
        // the lock of the shard.
        let mut shard = self.shard(own.id).lock();
        new.save(view);
        new.save_users(1, view);
        shard.drop_block(own.id);
        drop(shard);
        drop(users);
        *own = new;
        Ok(())
    }

    /// Makes the private block `own` a shared one, with a hash and in the index. The caller has
    /// found no other block with the same content.
    fn publish(&self, own: &Block, hash: Hash, view: &View) -> Arc<Block> {
        let block = Block::new(own.id, own.content.clone(), hash, 1);
        let users = block.users.lock();
        let mut shard = self.shard(block.id).lock();
        // Invariant K.8: the record of the block and its entry in the table change together, under
        // the lock of the shard. Otherwise `get_for` could find the new record without the entry.
        block.save_users(1, view);
        shard.keep(&block);
        drop(shard);
        self.enter(&block, 1);
        drop(users);
        block
    }

    fn enter(&self, block: &Block, users: u32) {
        if block.is_hashed() && block.content.len() <= SHARED_BYTES_MAX {
            self.index.insert(block.hash.key, block.id, users);
        }
    }

    fn find(&self, content: &[u8], view: &View) -> Result<Arc<Block>, Hash> {
        let stored = self.secret.hash(content);
        let mut hash = Hash { stored, key: stored };
        let (mut found, mut others) = (None, 0);
        let mut look = |key: u64| {
            self.index.find(key, &mut |id| {
                let Ok(block) = self.get_for(LookupOrigin::Index, id, view) else { return false };
                match self.take(&block, key, content, view) {
                    Some(true) => found = Some(block),
                    Some(false) => others += 1,
                    None => {}
                }
                found.is_some() || others == COMPARISONS_MAX
            });
            found.is_none() && others == COMPARISONS_MAX
        };
        if look(hash.key) {
            hash.key = self.secret.hash_whole(content);
            look(hash.key);
        }
        let searches = if found.is_some() { &self.hits } else { &self.misses };
        searches.add(1);
        found.inspect(|_| self.users.add(1)).ok_or(hash)
    }

    fn key_to_enter(&self, hash: u64, content: &[u8]) -> u64 {
        let mut others = 0;
        self.index.find(hash, &mut |_| {
            others += 1;
            others == COMPARISONS_MAX
        });
        if others < COMPARISONS_MAX { hash } else { self.secret.hash_whole(content) }
    }

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

    fn make(&self, hash: Hash, content: &[u8], view: &View) -> Arc<Block> {
        let block = Block::new(self.ids.take(), content.into(), hash, 1);
        let users = block.users.lock();
        let mut shard = self.shard(block.id).lock();
        // Invariant K.5: save the records before the block enters the table. Another thread may
        // still look up an earlier, freed block with the same id, and must not find the new one
        // without records.
        block.save_new(view);
        shard.keep(&block);
        drop(shard);
        self.enter(&block, 1);
        drop(users);
        self.blocks.add(1);
        self.users.add(1);
        block
    }

    fn make_private(&self, content: &[u8], view: &View) -> Arc<Block> {
        let block = Block::private(self.ids.take(), content.into());
        block.save_new(view);
        self.blocks.add(1);
        self.users.add(1);
        block
    }

    fn can_share(&self, content: &[u8]) -> bool {
        self.is_sharing && content.len() <= SHARED_BYTES_MAX
    }

    /// Locks the user count of `block`, so that the caller can remove one user. If that user is the
    /// last one, the block is also removed from the index. If other users remain, the caller calls
    /// `ShareIndex::left` after it has unlocked the count.
    ///
    /// # Errors
    /// `EIO` if the user count is 0: more inodes use the block than were counted.
    fn lock_to_leave<'a>(&self, block: &'a Block) -> Result<LockedUsers<'a>, Errno> {
        if block.is_private {
            return Ok(LockedUsers { users: block.users.lock(), is_last: true });
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
                return Ok(LockedUsers { users, is_last: false });
            }
            if self.index.remove(key, block.id) == Removal::Done {
                return Ok(LockedUsers { users, is_last: true });
            }
            drop(users);
            self.index.left(block.id);
            self.index.wait(key, block.id);
            // While this thread waited, another inode may have begun to use the block. Then make
            // sure that the block is in the index.
            let users = block.users.lock();
            if *users > 1 {
                self.enter(block, *users);
            }
        }
    }

    /// Undoes [`Blocks::lock_to_leave`].
    fn stay(&self, block: &Block, locked: LockedUsers<'_>) {
        let LockedUsers { users, is_last } = locked;
        match (is_last, block.is_private) {
            (true, true) => {}
            (true, false) => self.enter(block, *users),
            (false, _) => {
                drop(users);
                self.index.left(block.id);
            }
        }
    }

    fn leave(&self, block: &Block, mut users: MutexGuard<'_, u32>, view: &View) {
        *users -= 1;
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
    /// Adds a block to the shard, and drops unused blocks if the shard has reached a limit
    /// (invariant K.7). The caller has locked the block's user count (invariant K.6).
    fn keep(&mut self, block: &Arc<Block>) {
        debug_assert!(block.users.try_lock().is_none(), "K.6");
        self.bytes += block.content.len();
        let old = self.blocks.insert(block.id, block.clone());
        self.bytes -= old.map_or(0, |old| old.content.len());
        self.kept += 1;
        // If many blocks were in use at the last scan, the limits are high now. So a scan also
        // starts after `SHARD_BLOCKS` new blocks.
        let has_few =
            self.blocks.len() <= self.bound.max(SHARD_BLOCKS) && self.kept <= SHARD_BLOCKS;
        if has_few && self.bytes <= self.bytes_bound.max(SHARD_BYTES) {
            return;
        }
        self.blocks.retain(|_, block| Arc::strong_count(block) > 1);
        self.bytes = self.blocks.values().map(|block| block.content.len()).sum();
        // Set the limits to twice what is left. So all scans together cost only a constant time per
        // added block.
        (self.bound, self.bytes_bound) = (2 * self.blocks.len(), 2 * self.bytes);
        self.kept = 0;
    }

    fn drop_block(&mut self, id: u64) {
        let old = self.blocks.remove(&id);
        self.bytes -= old.map_or(0, |old| old.content.len());
    }
}

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

    /// Invariant K.7: the memory of unused blocks is also limited in bytes, because long contents
    /// would exceed it before their number reaches a limit.
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

    /// Invariant K.7: after many blocks were in use and freed, few unused blocks stay in memory.
    #[test]
    fn bound_of_a_peak_is_not_kept() {
        let mut shard = Shard::default();
        let peak = 5 * SHARD_BLOCKS as u64;
        let used: Vec<_> = (0..peak).map(|id| block(id, 10)).collect();
        used.iter().for_each(|block| keep(&mut shard, block));
        assert!(used.iter().all(|block| shard.blocks.contains_key(&block.id)), "K.5");
        drop(used);
        (peak..peak + 2 * SHARD_BLOCKS as u64).for_each(|id| keep(&mut shard, &block(id, 10)));
        assert!(shard.blocks.len() <= SHARD_BLOCKS, "{} blocks", shard.blocks.len());
    }

    #[test]
    fn short_contents_are_kept() {
        let mut shard = Shard::default();
        (0..SHARD_BLOCKS as u64).for_each(|id| keep(&mut shard, &block(id, 300)));
        assert_eq!(shard.blocks.len(), SHARD_BLOCKS);
    }
}
