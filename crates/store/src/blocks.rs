//! Attribute blocks, shared by inodes with equal extended attributes.
//!
//! An attribute block has an id, an attribute set as its content, and a count of its users: the
//! inodes that refer to it. Two records hold content and count, so a new user rewrites no content.
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
//! - K.4: a change in place looks up the new content before the block has it. Otherwise the lookup
//!   could find this block (trap T38). During the change, the block is out of the index.
//! - K.5: a shared block is in memory at most once. It enters the table before other threads can
//!   learn its id. It leaves the table when its records are removed.
//! - K.6: the user count of a new block is locked before the block enters the table, and unlocked
//!   after it has entered the index. So the index has the block before its count changes (rule H.5
//!   of [`ShareIndex`]), and gets no freed block.
//! - K.7: unused blocks take at most as much memory as used blocks, or [`SHARD_BYTES`] per shard if
//!   that is more. A shard is scanned for unused blocks after at most [`SHARD_BLOCKS`] new ones.
//! - K.8: a private block is reached only through its inode. If the index yields the id of a
//!   private block, that id is outdated, and `get_for` refuses it.
//!
//! # Locks
//! The locks are taken in this order: an inode, a block's user count, a shard of the table, records
//! and the index. A thread locks one count at a time, and besides it that of a block which no other
//! thread knows yet.

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
/// When this many attribute blocks were added to a shard of the table, the shard is scanned, and
/// its unused blocks are dropped.
const SHARD_BLOCKS: usize = 1024;
/// When the attribute blocks in a shard of the table exceed this many bytes, the shard is scanned,
/// and its unused blocks are dropped.
const SHARD_BYTES: usize = 512 << 10;
/// Maximum length in bytes of an attribute set that several inodes share. Longer sets are rarely
/// equal, and comparing them is slow.
const SHARED_BYTES_MAX: usize = 128 << 10;
/// Number of attribute blocks that `find` compares with a new content before it searches with
/// another key.
///
/// The hash of a long content covers only samples of it, so different contents may have the same
/// key. After this many comparisons, `find` searches again, with the hash of all bytes as the key.
const COMPARISONS_MAX: u32 = 4;

/// The attribute blocks of a store.
pub(crate) struct Blocks {
    /// The table of shared attribute blocks, by id. Each shard is protected by its own mutex.
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

/// The locked user count of an attribute block that is about to lose a user (an inode).
struct LockedUsers<'a> {
    users: MutexGuard<'a, u32>,
    /// True if the leaving user is the only one.
    is_last: bool,
}

/// Tells when a new attribute set of an inode is de-duplicated.
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

/// A shard of the table of shared attribute blocks. All fields are protected by its mutex.
#[derive(Default)]
struct Shard {
    blocks: HashMap<u64, Arc<Block>, foldhash::fast::FixedState>,
    /// Bytes of the contents of `blocks`.
    bytes: usize,
    /// The limits on the number and on the bytes of attribute blocks in this shard. If a new block
    /// exceeds one of them, unused blocks are dropped.
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
    /// The number of users (inodes), or 0 after the block was freed. This mutex is the lock of the
    /// block. It also protects the records of the block and its entry in the index.
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

    /// Saves the records of a new attribute block, of which no earlier transaction contains a
    /// record. So if the block is freed before the next commit, that commit writes nothing for it.
    fn save_new(&self, view: &View) {
        view.put_new(Key::of(Kind::XattrUsers, self.id), &self.users_record(1).encode());
        view.put_new_shared(Key::of(Kind::Xattr, self.id), self.content.clone());
    }

    fn users_record(&self, users: u32) -> UsersRecord {
        UsersRecord { hash: self.hash.stored, users, len: self.content.len() as u32 }
    }
}

impl Blocks {
    /// Returns the table of attribute blocks. `found` has the numbers of blocks and users and the
    /// largest block id on disk.
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

    /// Adds the statistics of the attribute blocks and of their index to `stats`.
    pub(crate) fn add_stats(&self, stats: &mut StoreStats) {
        let get = |counter: &ShardedCounter| counter.sum().max(0) as u64;
        (stats.xattr_blocks, stats.xattr_users) = (get(&self.blocks), get(&self.users));
        (stats.xattr_hits, stats.xattr_misses) = (get(&self.hits), get(&self.misses));
        // Assume one block of 4096 bytes per attribute set. Nearly all sets are short enough.
        stats.xattr_saved_blocks = stats.xattr_users.saturating_sub(stats.xattr_blocks);
        let index = self.index.stats();
        (stats.xattr_entries, stats.xattr_reclaimed) = (index.entries, index.reclaimed);
    }

    /// Returns the attribute block `id`. The caller has read this id from an inode. `EIO` if the
    /// block cannot be read.
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
        // Invariant K.8: a block whose record has no hash is private, and the index contains no
        // private blocks. So the index meant an earlier block with this id, which was freed.
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
        // Invariant K.6: the user count stays locked until the block is in both the table and the
        // index. Otherwise another thread could free the block in between, and a freed block would
        // enter the index.
        let users = block.users.lock();
        shard.keep(&block);
        drop(shard);
        self.enter(&block, *users);
        drop(users);
        Ok(block)
    }

    /// Adds a user (an inode) to an attribute block with the content `content`, and returns the
    /// block. If the content cannot be shared, the block is private.
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

    /// De-duplicates a private block, which has one user (an inode) and is not in the index.
    /// Returns true if the inode's record must change, because the inode has another block now.
    /// Charges no space, so it cannot fail with `ENOSPC`.
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

    /// Removes a user (an inode) from an attribute block, and frees the block if it was the last
    /// one. Does nothing if the user count is damaged.
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

    /// Gives one inode the attribute set `content`. `own` is the inode's block, before and after
    /// the call. If other inodes use the old block too, the inode gets another block.
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
                // There is no space for a private block. Try to join a shared block with equal
                // content, which takes no space.
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

    /// Performs [`Blocks::replace`] if no block has the new content yet. Returns the block with the
    /// new content.
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
        // Invariant K.4: `lock_to_leave` has removed the block `old` from the index. So no other
        // inode can find it while its content changes.
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

    /// Gives one inode a private block with the content `content`. `own` is the block of that
    /// inode, before and after the call.
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

    /// Turns a private attribute block into a shared one. The caller has found no other block with
    /// the same content.
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

    /// Enters an attribute block into the index of equal contents, unless the block can never be
    /// shared.
    fn enter(&self, block: &Block, users: u32) {
        if block.is_hashed() && block.content.len() <= SHARED_BYTES_MAX {
            self.index.insert(block.hash.key, block.id, users);
        }
    }

    /// Adds a user (an inode) to a shared block with the content `content`, and returns the block.
    /// If there is no such block, returns the hashes for a new block.
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

    /// Returns the key under which an attribute block whose content was read from disk is entered
    /// into the index.
    fn key_to_enter(&self, hash: u64, content: &[u8]) -> u64 {
        let mut others = 0;
        self.index.find(hash, &mut |_| {
            others += 1;
            others == COMPARISONS_MAX
        });
        if others < COMPARISONS_MAX { hash } else { self.secret.hash_whole(content) }
    }

    /// Adds a user (an inode) to `block` if the block has the content `content`. Returns true if
    /// the user was added, and false if the content differs. Returns None if the block has no users
    /// any more, or the maximum number.
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
        // Invariant K.5: save the records before the block enters the table. Another thread may
        // still look up the same id of an earlier, freed block, and must not find this block before
        // its records exist.
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

    /// Locks the user count of an attribute block from which the caller will remove one user (an
    /// inode). If this is the last user, first removes the block from the index. Otherwise the
    /// caller must call `ShareIndex::left` after it has unlocked the count.
    ///
    /// # Errors
    /// `EIO` if the user count of the block is 0: more inodes use the block than were counted
    /// (against invariant K.1), and its space was already freed.
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
            // While this thread waited, another inode may have begun to use the block. Then the
            // block stays in use and must be in the index.
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

    /// Removes one of several users (inodes) from an attribute block, and unlocks the block.
    fn leave(&self, block: &Block, mut users: MutexGuard<'_, u32>, view: &View) {
        *users -= 1;
        // An earlier version of corewalk shared blocks longer than `SHARED_BYTES_MAX`. They are not
        // in the index.
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
    /// Adds a block that no other thread knows yet to this shard of the table. The caller has
    /// locked the block's user count (invariant K.6).
    fn keep(&mut self, block: &Arc<Block>) {
        debug_assert!(block.users.try_lock().is_none(), "K.6");
        self.bytes += block.content.len();
        let old = self.blocks.insert(block.id, block.clone());
        self.bytes -= old.map_or(0, |old| old.content.len());
        self.kept += 1;
        // The last scan of the shard set `bound` and `bytes_bound` to twice what was in use then.
        // If less is in use now, they are too high. So scan the shard also after `SHARD_BLOCKS` new
        // blocks.
        let has_few =
            self.blocks.len() <= self.bound.max(SHARD_BLOCKS) && self.kept <= SHARD_BLOCKS;
        if has_few && self.bytes <= self.bytes_bound.max(SHARD_BYTES) {
            return;
        }
        self.blocks.retain(|_, block| Arc::strong_count(block) > 1);
        self.bytes = self.blocks.values().map(|block| block.content.len()).sum();
        // The next scan starts at twice as many blocks or bytes as now. So all scans together cost
        // no more than a constant per added block.
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

    /// Invariant K.7 (unused blocks take little memory): checks the limit on the bytes of unused
    /// blocks. Long contents reach it before the limit on their number.
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

    /// Invariant K.7 (unused blocks take little memory): few unused blocks stay in memory after
    /// many blocks were in use at the same time.
    ///
    /// Each scan of a shard sets `bound` to twice the number of used blocks. After a peak of used
    /// blocks, `bound` is too high to start a scan soon. So the number of new blocks must start
    /// one.
    #[test]
    fn bound_of_a_peak_is_not_kept() {
        let mut shard = Shard::default();
        // Without the limit `SHARD_BLOCKS`, only `bound` would start scans. It is twice the number
        // of used blocks of the last scan, so it is too high for a further scan in this test.
        let peak = 5 * SHARD_BLOCKS as u64;
        let used: Vec<_> = (0..peak).map(|id| block(id, 10)).collect();
        used.iter().for_each(|block| keep(&mut shard, block));
        assert!(used.iter().all(|block| shard.blocks.contains_key(&block.id)), "K.5");
        drop(used);
        (peak..peak + 2 * SHARD_BLOCKS as u64).for_each(|id| keep(&mut shard, &block(id, 10)));
        assert!(shard.blocks.len() <= SHARD_BLOCKS, "{} blocks", shard.blocks.len());
    }

    /// Checks that `SHARD_BLOCKS` unused blocks with short contents stay in memory, since they
    /// exceed neither the limit on bytes nor the one on blocks.
    #[test]
    fn short_contents_are_kept() {
        let mut shard = Shard::default();
        (0..SHARD_BLOCKS as u64).for_each(|id| keep(&mut shard, &block(id, 300)));
        assert_eq!(shard.blocks.len(), SHARD_BLOCKS);
    }
}
