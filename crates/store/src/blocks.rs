//! Attribute blocks, shared by inodes with equal extended attributes.
//!
//! A block has an id, a content and a count of users, in two records, so that a new user does not
//! rewrite the content. The content of a *shared* block never changes, except when its only user
//! sets another content. Then a new block takes over its id. Shared blocks stay in memory while
//! they are in use. The [`ShareIndex`] finds blocks with equal contents. A shared block enters the
//! index when it is read from disk or made. Lookups, changes and frees of blocks follow the
//! protocol of `corewalk-mbcache`.
//!
//! A *private* block has one user, and only that inode refers to it in memory. Its record has no
//! hash ([`UNHASHED`]), and the block is in neither the table nor the index. So a change of the
//! block takes no lock but that of the inode. Sets that change often are private until a commit
//! shares them (`late`). Sets longer than [`SHARED_BYTES_MAX`], and all sets of a store without
//! sharing, are always private.
//!
//! The index key of a block is the hash of its content, or of samples of a long content (`hash`).
//! After [`COMPARISONS_MAX`] different contents with one key, the hash of all bytes is the key. So
//! crafted collisions cost bounded time, and equal contents are still shared.
//!
//! # Invariants
//! - K.1: the users of a block are the inodes whose records contain its id.
//! - K.2: a block has at most as many users as the index allows.
//! - K.3: a block without users has no records and is not in the index. Otherwise an inode could
//!   find the block and use it while its last user frees it (trap T34).
//! - K.4: a change in place first looks up the new content, while the old block is out of the
//!   index. Otherwise the lookup could find the changing block itself (trap T38).
//! - K.5: a block is in memory at most once. It is in the table before its id is visible, and until
//!   its records are removed. A block made and freed in one transaction leaves no record.
//! - K.6: the count of users of a block is locked from before the block is put into the table until
//!   the block is in the index. So the index has a block before the count of the block changes
//!   (rule H.5 of [`ShareIndex`]), and no freed block enters the index.
//! - K.7: unused blocks take no more memory than used ones, or at most [`SHARD_BYTES`] per shard,
//!   whichever is more. A shard is scanned for unused blocks after at most [`SHARD_BLOCKS`] new
//!   ones.
//! - K.8: a private block is reached only through its inode. `get_for` refuses its record if the id
//!   comes from the index, because such an id is outdated.
//!
//! # Locks
//! In this order: an inode, a block's count of users, a shard of the table, records and the index.
//! A thread locks one count at a time, apart from the count of a block that it has just made.

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

/// Number of shards of the table of shared blocks.
const SHARDS: usize = 64;
/// A shard is scanned, and its unused blocks are dropped, after at most this many new blocks.
const SHARD_BLOCKS: usize = 1024;
/// A shard with more bytes of content than this is scanned, and its unused blocks are dropped.
const SHARD_BYTES: usize = 512 << 10;
/// The longest content that is shared, in bytes. Longer contents are rarely equal, and to compare
/// them is slow.
const SHARED_BYTES_MAX: usize = 128 << 10;
/// Maximum number of different contents with one index key that `find` compares. After that, `find`
/// searches with the hash of all bytes as the key.
const COMPARISONS_MAX: u32 = 4;

/// The attribute blocks of a store.
pub(crate) struct Blocks {
    /// The table of shared blocks, by id. Each shard is protected by its own mutex.
    shards: Box<[OwnLine<Mutex<Shard>>]>,
    ids: BlockIds,
    pub(crate) index: Arc<dyn ShareIndex>,
    secret: Secret,
    /// False if every inode has its own block.
    is_sharing: bool,
    blocks: ShardedCounter,
    users: ShardedCounter,
    /// Searches that found an equal block, and searches that found none.
    hits: ShardedCounter,
    misses: ShardedCounter,
}

/// The numbers of attribute blocks that a mount has counted.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct BlockTotals {
    pub(crate) blocks: u64,
    /// The sum of the users of all blocks.
    pub(crate) users: u64,
    /// The largest id of a block.
    pub(crate) last_id: u64,
}

/// The locked count of users of a block. The caller is about to remove one user from the count.
struct LockedUsers<'a> {
    users: MutexGuard<'a, u32>,
    /// True if the leaving user is the only one.
    is_last: bool,
}

/// The time at which a new attribute set of an inode is de-duplicated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum When {
    AtOnce,
    /// The block stays private until [`Blocks::share_late`].
    Late,
}

/// Tells from where the id of a requested block comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LookupOrigin {
    /// From the record of an inode that uses the block.
    User,
    Index,
}

/// A part of the table of shared blocks in memory. All fields are protected by the mutex of the
/// shard.
#[derive(Default)]
struct Shard {
    blocks: HashMap<u64, Arc<Block>, foldhash::fast::FixedState>,
    /// Bytes of the contents of `blocks`.
    bytes: usize,
    /// The shard is scanned for unused blocks when it has more blocks than `bound`, or more bytes
    /// than `bytes_bound`.
    bound: usize,
    bytes_bound: usize,
    /// Blocks added since the last scan.
    kept: usize,
}

/// A block in memory.
pub(crate) struct Block {
    id: u64,
    content: Arc<[u8]>,
    hash: Hash,
    is_private: bool,
    /// The number of users, or 0 after the block was freed. Its mutex is the lock of the block. It
    /// also protects the records of the block and its entry in the index.
    users: Mutex<u32>,
}

/// The two hashes of a content.
#[derive(Clone, Copy)]
struct Hash {
    /// The hash in the record of the block.
    stored: u64,
    /// The key in the index, if the block is shared.
    key: u64,
}

impl Block {
    /// Returns the id of the block.
    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    /// Returns the content.
    pub(crate) fn content(&self) -> &Arc<[u8]> {
        &self.content
    }

    /// Returns true if only its inode can reach the block.
    pub(crate) fn is_private(&self) -> bool {
        self.is_private
    }

    /// Returns true if the index may find the block.
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

    /// Saves the records of a new block. No committed record has the id of the block. So if the
    /// block is freed before the commit, the commit writes no record of it.
    fn save_new(&self, view: &View) {
        view.put_new(Key::of(Kind::XattrUsers, self.id), &self.users_record(1).encode());
        view.put_new_shared(Key::of(Kind::Xattr, self.id), self.content.clone());
    }

    fn users_record(&self, users: u32) -> UsersRecord {
        UsersRecord { hash: self.hash.stored, users, len: self.content.len() as u32 }
    }
}

impl Blocks {
    /// Returns the table of attribute blocks. `found` has the counts of the blocks that the mount
    /// has read from the database and the log.
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

    /// Returns true if inodes may share a block.
    pub(crate) fn is_sharing(&self) -> bool {
        self.is_sharing
    }

    /// Adds the counters of the blocks and of the index to `stats`.
    pub(crate) fn add_stats(&self, stats: &mut StoreStats) {
        let get = |counter: &ShardedCounter| counter.sum().max(0) as u64;
        (stats.xattr_blocks, stats.xattr_users) = (get(&self.blocks), get(&self.users));
        (stats.xattr_hits, stats.xattr_misses) = (get(&self.hits), get(&self.misses));
        // Assume that each attribute set takes one block of 4096 bytes, since nearly all sets are
        // shorter.
        stats.xattr_saved_blocks = stats.xattr_users.saturating_sub(stats.xattr_blocks);
        let index = self.index.stats();
        (stats.xattr_entries, stats.xattr_reclaimed) = (index.entries, index.reclaimed);
    }

    /// Returns the block `id`, which an inode uses. `EIO` if the block cannot be read.
    pub(crate) fn get(&self, id: u64, view: &View) -> Result<Arc<Block>, Errno> {
        self.get_for(LookupOrigin::User, id, view)
    }

    fn get_for(&self, origin: LookupOrigin, id: u64, view: &View) -> Result<Arc<Block>, Errno> {
        let mut shard = self.shard(id).lock();
        if let Some(block) = shard.blocks.get(&id) {
            return Ok(block.clone());
        }
        // Keep the mutex of the table's shard locked while the record is read. No thread can load
        // or drop the block meanwhile, so the record is current.
        let users = view.get(&Key::of(Kind::XattrUsers, id))?.ok_or(Errno::IO)?;
        let UsersRecord { hash, users, len } = UsersRecord::decode(&users)?;
        // Invariant K.8: a block whose record has no hash is private. An outdated id from the index
        // must not lead to such a block.
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
        // Invariant K.6: lock the block before it is put into the table, and unlock it after it is
        // in the index. Otherwise another thread could free the block before it is in the index,
        // and then a freed block would enter the index.
        let users = block.users.lock();
        shard.keep(&block);
        drop(shard);
        self.enter(&block, *users);
        drop(users);
        Ok(block)
    }

    /// Returns a block with this content, and counts one more user of it. The block is private (it
    /// has only this user) if the content cannot be shared.
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

    /// De-duplicates a private block. Returns true if the inode now uses a block with another id,
    /// so that the record of the inode must change. The call charges no space, so it never fails
    /// for lack of space.
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

    /// Removes a user from a block. If no user is left, frees the block. If the count of users is
    /// damaged, the block does not change.
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

    /// Replaces the content for one user of the block `own`. Sets `own` to the block with the new
    /// content, which may be another block than before.
    ///
    /// # Errors
    /// `ENOSPC`; `EIO` if the count of users is damaged. After an error nothing has changed.
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
                // There is no space for a private block. So look for a shared block with equal
                // content. To join that block takes no space.
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

    /// Replaces the content for one user of the block `old`, like [`Blocks::replace`]. The caller
    /// has found no block with the new content. Returns the block with the new content.
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
        // Invariant K.4: `lock_to_leave` has removed the block from the index. So no other thread
        // can find the block and add a user.
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

    /// Gives one user of the block `own` a private block with the new content.
    ///
    /// # Errors
    /// The errors of [`Blocks::replace`].
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
        // Invariant K.8: the record of a block and its entry in the table change together. So make
        // both changes under one lock of the shard. Otherwise `get_for` could see only one of them.
        let mut shard = self.shard(own.id).lock();
        new.save(view);
        new.save_users(1, view);
        shard.drop_block(own.id);
        drop(shard);
        drop(users);
        *own = new;
        Ok(())
    }

    /// Turns a private block into a shared one. The caller has found no other block with equal
    /// content.
    fn publish(&self, own: &Block, hash: Hash, view: &View) -> Arc<Block> {
        let block = Block::new(own.id, own.content.clone(), hash, 1);
        let users = block.users.lock();
        let mut shard = self.shard(block.id).lock();
        // Invariant K.8: the record of a block and its entry in the table change together. So make
        // both changes under one lock of the shard. Otherwise `get_for` could see only one of them.
        block.save_users(1, view);
        shard.keep(&block);
        drop(shard);
        self.enter(&block, 1);
        drop(users);
        block
    }

    /// Enters a block into the index. Does nothing for a block that is never shared: its content is
    /// too long, or it has no hash.
    fn enter(&self, block: &Block, users: u32) {
        if block.is_hashed() && block.content.len() <= SHARED_BYTES_MAX {
            self.index.insert(block.hash.key, block.id, users);
        }
    }

    /// Returns a shared block with this content, and counts one more user of it. If there is no
    /// such block, returns the hashes for a new one.
    fn find(&self, content: &[u8], view: &View) -> Result<Arc<Block>, Hash> {
        let stored = self.secret.hash(content);
        let mut hash = Hash { stored, key: stored };
        let (mut found, mut others) = (None, 0);
        let mut look = |key: u64| {
            self.index.find(key, &mut |id| {
                // Do not share a block that cannot be read.
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

    /// Returns the index key of a content that was read from disk. `hash` is the hash in its
    /// record.
    fn key_to_enter(&self, hash: u64, content: &[u8]) -> u64 {
        let mut others = 0;
        self.index.find(hash, &mut |_| {
            others += 1;
            others == COMPARISONS_MAX
        });
        if others < COMPARISONS_MAX { hash } else { self.secret.hash_whole(content) }
    }

    /// Adds a user to the block if the block has this content. Returns `Some(false)` if the content
    /// of the block differs, and None if the block cannot get another user.
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

    /// Makes a shared block. The caller has charged its space.
    fn make(&self, hash: Hash, content: &[u8], view: &View) -> Arc<Block> {
        let block = Block::new(self.ids.take(), content.into(), hash, 1);
        let users = block.users.lock();
        let mut shard = self.shard(block.id).lock();
        // Invariant K.5: save the records before the block is in the table. Otherwise a thread with
        // an outdated id could find an incomplete block.
        block.save_new(view);
        shard.keep(&block);
        drop(shard);
        self.enter(&block, 1);
        drop(users);
        self.blocks.add(1);
        self.users.add(1);
        block
    }

    /// Makes a private block. The caller has charged its space.
    fn make_private(&self, content: &[u8], view: &View) -> Arc<Block> {
        let block = Block::private(self.ids.take(), content.into());
        block.save_new(view);
        self.blocks.add(1);
        self.users.add(1);
        block
    }

    /// Returns true if a block with this content may be shared.
    fn can_share(&self, content: &[u8]) -> bool {
        self.is_sharing && content.len() <= SHARED_BYTES_MAX
    }

    /// Locks the count of users of a block, from which the caller will remove one user. If the
    /// block has no other user, removes the block from the index first. Otherwise the caller must
    /// call `ShareIndex::left` after it has unlocked the count. Private blocks are not in the
    /// index.
    ///
    /// # Errors
    /// `EIO` if the count is 0. Then more inodes use the block than were counted, against invariant
    /// K.1, and the space of the block was already freed.
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
            // While this thread waited, another thread may have become a user of the block. Then
            // the block stays in use, so make sure that the index has it.
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

    /// Removes a user from a block that has other users, and unlocks the block.
    fn leave(&self, block: &Block, mut users: MutexGuard<'_, u32>, view: &View) {
        *users -= 1;
        // The index does not have blocks longer than `SHARED_BYTES_MAX`, which only an earlier
        // version has shared. So do not inform it of their users.
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
    /// Adds a block to the table. No other thread has seen the block, and the caller has locked the
    /// block's count of users (invariant K.6).
    fn keep(&mut self, block: &Arc<Block>) {
        debug_assert!(block.users.try_lock().is_none(), "K.6");
        self.bytes += block.content.len();
        let old = self.blocks.insert(block.id, block.clone());
        self.bytes -= old.map_or(0, |old| old.content.len());
        self.kept += 1;
        // If many more blocks were in use at the last scan than now, that scan has set the bounds
        // too high. So scan the shard also after `SHARD_BLOCKS` new blocks.
        let has_few =
            self.blocks.len() <= self.bound.max(SHARD_BLOCKS) && self.kept <= SHARD_BLOCKS;
        if has_few && self.bytes <= self.bytes_bound.max(SHARD_BYTES) {
            return;
        }
        self.blocks.retain(|_, block| Arc::strong_count(block) > 1);
        self.bytes = self.blocks.values().map(|block| block.content.len()).sum();
        // Let the next scan start when the shard has twice as many blocks or bytes as now. So the
        // cost of all scans together is proportional to the number of additions.
        (self.bound, self.bytes_bound) = (2 * self.blocks.len(), 2 * self.bytes);
        self.kept = 0;
    }

    fn drop_block(&mut self, id: u64) {
        let old = self.blocks.remove(&id);
        self.bytes -= old.map_or(0, |old| old.content.len());
    }
}

/// Returns how many blocks of the space budget a content takes.
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

    /// Invariant K.7: unused blocks with long contents must be dropped by their bytes, long before
    /// their number reaches `SHARD_BLOCKS`.
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
        // A block with the same id replaces the older one.
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

    /// Invariant K.7: after a peak of used blocks, the number of blocks at which the next scan
    /// starts is high. Nevertheless few unused blocks may stay in memory.
    #[test]
    fn bound_of_a_peak_is_not_kept() {
        let mut shard = Shard::default();
        // While the used blocks are added, the last scan finds about 4 times `SHARD_BLOCKS` of
        // them, and sets `bound` to twice that number. If only `bound` started a scan, the next
        // scan would come only when the shard has that many blocks.
        let peak = 5 * SHARD_BLOCKS as u64;
        let used: Vec<_> = (0..peak).map(|id| block(id, 10)).collect();
        used.iter().for_each(|block| keep(&mut shard, block));
        assert!(used.iter().all(|block| shard.blocks.contains_key(&block.id)), "K.5");
        drop(used);
        (peak..peak + 2 * SHARD_BLOCKS as u64).for_each(|id| keep(&mut shard, &block(id, 10)));
        assert!(shard.blocks.len() <= SHARD_BLOCKS, "{} blocks", shard.blocks.len());
    }

    /// In a shard with short contents, unused blocks must be dropped by their number and not by
    /// their bytes.
    #[test]
    fn short_contents_are_kept() {
        let mut shard = Shard::default();
        (0..SHARD_BLOCKS as u64).for_each(|id| keep(&mut shard, &block(id, 300)));
        assert_eq!(shard.blocks.len(), SHARD_BLOCKS);
    }
}
