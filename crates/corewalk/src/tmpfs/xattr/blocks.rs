//! Shared sets of attributes: each block is a set that several inodes use.
//!
//! # Mechanism
//! A shared set of attributes is a *block* with a number. An `Mbcache` maps the key (a hash) of a
//! content to the numbers of blocks that may have it. A growing array of slots maps a number to the
//! block and its user count, under a lock per slot.
//!
//! An inode points directly at its block. So reading attributes uses neither the cache nor the
//! slots, and writes no shared memory.
//!
//! The protocol is that of `corewalk_mbcache`. To share a block, a thread finds the block's entry
//! in the cache, locks the block's slot, compares the sets, and increments the user count. The last
//! user removes the entry before it frees the block (trap T34 in `traps.md`).
//!
//! A block does not change while it is in a slot. To change its attributes, the last user takes the
//! block out of the slot and the cache, and afterwards searches for an equal block. So the search
//! cannot find its own block (trap T38 in `traps.md`).
//!
//! # Invariants
//! - K.1: `users` of a slot is the number of inodes that point at the slot's block. It is 0 if the
//!   slot has no block.
//! - K.2: a block number is reused only if no entry of the `Mbcache` leads to it.
//! - K.3: the content of a block does not change while the block is in a slot.
//!
//! # Locks
//! The lock of a block's slot is taken after that of the inode. No thread holds two slot locks. The
//! locks of the cache and of the list of free block numbers are taken inside a slot lock.
//!
//! The last user of a block, with its inode's lock held, may wait for a thread that uses the
//! block's cache entry. That thread waits only for slot locks, so there is no deadlock.
//!
//! # Limits
//! A search compares at most [`LOOKS_MAX`] blocks that have the key of the wanted set. If all
//! differ from it, the set is not shared, so an attacker's sets with equal hashes make no long
//! chains (trap T54 in `traps.md`). A set also stays private if there is no cache or no free block
//! number.
//!
//! Source: Linux `fs/ext4/xattr.c` (`ext4_xattr_block_set`, `ext4_xattr_release_block`).

use std::sync::{Arc, OnceLock};

use corewalk_base::{Mutex, ShardedCounter};
use corewalk_mbcache::{Mbcache, MbcacheOptions};
use corewalk_sync::SlotArena;

use super::set::Set;

/// Maximum number of users of a block, as in ext4. With more, threads would often wait for the lock
/// of the user count.
pub(super) const USERS_MAX: u32 = 1024;
/// The maximum number of blocks that a search compares with the wanted set. All of these blocks
/// have the key (hash) of the set.
const LOOKS_MAX: u32 = 4;
const SEGMENT_SLOTS: u32 = 64;
const LEVELS: usize = 26;

#[derive(Debug, Default)]
pub(in crate::tmpfs) struct Block {
    pub(super) set: Set,
    key: u64,
    /// 0 while the block is private.
    number: u32,
    /// True if the set belongs to one inode, which waits in `Xattrs::queued` for de-duplication.
    pub(super) is_queued: bool,
}

impl Block {
    pub(super) fn private(set: Set) -> Block {
        Block { set, ..Block::default() }
    }

    pub(super) fn is_private(&self) -> bool {
        self.number == 0
    }

    pub(in crate::tmpfs) fn set(&self) -> &Set {
        &self.set
    }
}

/// A shared block, if the slot has one, and the number of its users. All fields are protected by
/// the mutex of the slot.
#[derive(Default)]
struct BlockSlot {
    users: u32,
    block: Option<Arc<Block>>,
}

type Segment = OnceLock<Box<[Mutex<BlockSlot>; SEGMENT_SLOTS as usize]>>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Leave {
    Always,
    /// Release the shared set only if the caller is its last user. The caller then gets the
    /// content. Otherwise the caller stays a user.
    IfLast,
}

pub(super) enum Released {
    Last(Block),
    Shared(Arc<Block>),
    Left,
}

/// # Invariants
/// K.1 to K.3.
pub(super) struct Blocks {
    cache: Mbcache,
    /// Allocates the block numbers. An arena is used only for its slot numbers, so its words are
    /// unused.
    numbers: SlotArena<1>,
    /// The slots of the shared blocks, indexed by block number. Each slot is protected by its own
    /// mutex.
    levels: [OnceLock<Box<[Segment]>>; LEVELS],
    hits: ShardedCounter,
    misses: ShardedCounter,
}

impl Blocks {
    pub(super) fn new() -> Option<Blocks> {
        let options = MbcacheOptions::default().with_users_max(USERS_MAX);
        let cache = Mbcache::new(options).ok()?;
        let numbers = SlotArena::new("xattr block", cache.entries_max()).ok()?;
        let levels = [const { OnceLock::new() }; LEVELS];
        let (hits, misses) = (ShardedCounter::new(), ShardedCounter::new());
        Some(Blocks { cache, numbers, levels, hits, misses })
    }

    pub(super) fn find(&self, key: u64, set: &Set) -> FindResult {
        let result = self.search(key, set);
        let searches = match result {
            FindResult::Block(_) => &self.hits,
            FindResult::NotFound | FindResult::Collisions => &self.misses,
        };
        searches.add(1);
        result
    }

    fn search(&self, key: u64, set: &Set) -> FindResult {
        let mut found = self.cache.find_first(key);
        for _ in 0..LOOKS_MAX {
            let Some(entry) = found else { return FindResult::NotFound };
            let mut slot = self.slot(entry.value() as u32).lock();
            if let Some(block) = slot.block.as_ref()
                && block.key == key
                && slot.users < USERS_MAX
                && block.set == *set
            {
                let block = Arc::clone(block);
                slot.users += 1;
                if slot.users == USERS_MAX {
                    entry.note_users(slot.users);
                }
                drop(slot);
                entry.touch();
                return FindResult::Block(block);
            }
            drop(slot);
            found = self.cache.find_next(&entry);
        }
        if found.is_none() { FindResult::NotFound } else { FindResult::Collisions }
    }

    /// Makes a private block shareable: stores it in a slot and in the cache. If no block number is
    /// free, the block stays private.
    pub(super) fn enter(&self, key: u64, mut block: Block) -> Arc<Block> {
        let Some(number) = self.numbers.alloc() else { return Arc::new(block) };
        (block.key, block.number) = (key, number);
        let block = Arc::new(block);
        *self.slot(number).lock() = BlockSlot { users: 1, block: Some(Arc::clone(&block)) };
        // A free block number has no entry in the cache (invariant K.2), so `create` fails only if
        // the cache is full. Then the block is not in the cache, and later searches do not find it,
        // which is harmless.
        let entered = self.cache.create(key, u64::from(number));
        debug_assert_ne!(entered, Err(corewalk_mbcache::CreateError::Exists), "K.2");
        block
    }

    pub(super) fn release(&self, block: Arc<Block>, leave: Leave) -> Released {
        let (key, number) = (block.key, block.number);
        let mut slot = self.slot(number).lock();
        loop {
            debug_assert!(slot.users > 0, "K.1");
            if slot.users > 1 {
                if leave == Leave::IfLast {
                    return Released::Shared(block);
                }
                slot.users -= 1;
                if slot.users + 1 == USERS_MAX {
                    self.cache.note_users(key, u64::from(number), slot.users);
                }
                // After the unlock, another thread may release the block as its last user, and take
                // the content out. That works only if no other pointer to the block exists. So drop
                // this thread's pointer before the unlock.
                drop(block);
                return Released::Left;
            }
            let Some(busy) = self.cache.delete_or_get(key, u64::from(number)) else { break };
            drop(slot);
            busy.wait();
            slot = self.slot(number).lock();
        }
        *slot = BlockSlot::default();
        drop(slot);
        self.numbers.free(number);
        let block = Arc::into_inner(block).expect("K.1: no other inode points at it");
        Released::Last(Block::private(block.set))
    }

    pub(super) fn len(&self) -> u64 {
        self.numbers.in_use()
    }

    pub(super) fn counts(&self) -> IndexCounts {
        let get = |counter: &ShardedCounter| counter.sum().max(0) as u64;
        let (hits, misses, stats) = (get(&self.hits), get(&self.misses), self.cache.stats());
        IndexCounts { hits, misses, entries: stats.entries, reclaimed: stats.reclaimed }
    }

    #[inline]
    fn slot(&self, number: u32) -> &Mutex<BlockSlot> {
        let nth = number / SEGMENT_SLOTS + 1;
        let level = nth.ilog2();
        let segments = self.levels[level as usize]
            .get_or_init(|| (0..1_u32 << level).map(|_| Segment::new()).collect());
        let segment = segments[(nth - (1 << level)) as usize]
            .get_or_init(|| Box::new(std::array::from_fn(|_| Mutex::default())));
        &segment[(number % SEGMENT_SLOTS) as usize]
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::tmpfs) struct IndexCounts {
    pub(in crate::tmpfs) hits: u64,
    pub(in crate::tmpfs) misses: u64,
    pub(in crate::tmpfs) entries: u64,
    pub(in crate::tmpfs) reclaimed: u64,
}

pub(super) enum FindResult {
    /// A block, with the caller as a new user.
    Block(Arc<Block>),
    NotFound,
    /// The search has given up. It has compared [`LOOKS_MAX`] blocks with the key, and no block was
    /// equal and had space for another user.
    Collisions,
}

#[cfg(all(test, not(any(corewalk_loom, corewalk_shuttle))))]
pub(super) mod audit {
    use super::*;

    impl Blocks {
        pub(in crate::tmpfs::xattr) fn number_of(block: &Block) -> Option<u32> {
            (!block.is_private()).then_some(block.number)
        }

        pub(in crate::tmpfs::xattr) fn collect_users(&self) -> Vec<(u32, u32)> {
            let slots = (1..self.numbers.len_touched()).map(|number| {
                let slot = self.slot(number).lock();
                assert_eq!(slot.users > 0, slot.block.is_some(), "K.1: block {number}");
                (number, slot.users)
            });
            slots.filter(|&(_, users)| users > 0).collect()
        }

        pub(in crate::tmpfs::xattr) fn entries(&self) -> u64 {
            self.cache.stats().entries
        }
    }
}
