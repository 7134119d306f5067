//! Sets of attributes that several inodes have, each stored once.
//!
//! # How it works
//! A shared set is a *block* with a number. `Mbcache` leads from the key of a content to the numbers of
//! blocks that may have it; an array of places, which grows and never moves, leads from a number to the
//! block and has its number of users, under a lock of its own. An inode points at its block, so that
//! who reads attributes neither looks for a number nor writes anything that others read.
//!
//! The protocol is that of `corewalk_mbcache`: who finds an entry locks the place, compares, and becomes
//! a user under that lock; the last user takes the entry out before the block is freed (trap T34). A
//! block is never changed while it has a number: its last user takes it out of here, changes it, and
//! only then looks whether the new content is there already, so it cannot find itself (trap T38).
//!
//! # Invariants
//! - K.1: `users` of a place is the number of inodes that point at its block; 0 if it has none.
//! - K.2: a number is given out again only when no entry of the cache leads to it.
//! - K.3: a block that stands in a place is not changed.
//!
//! # Locks
//! A place, after that of the inode; nobody has two places. The locks of the cache and those of free
//! numbers are taken within. Who has found an entry waits for nothing but a place, so the last user may
//! wait for it with its inode locked.
//!
//! # What it refuses
//! To compare more than [`LOOKS_MAX`] blocks for one content: what is behind so many that have its key
//! and differ is not shared, so that chosen contents make no chains (trap T54). To share when the cache
//! cannot be made or all numbers are in use.
//!
//! Source: Linux `fs/ext4/xattr.c` (`ext4_xattr_block_set`, `ext4_xattr_release_block`).

use std::sync::{Arc, OnceLock};

use corewalk_base::Mutex;
use corewalk_mbcache::{Mbcache, MbcacheOptions};
use corewalk_sync::SlotArena;

use super::set::Set;

/// The most users of a block, as in ext4: more would meet at its count.
pub(super) const USERS_MAX: u32 = 1024;
/// The most blocks of one key that are compared with a content.
const LOOKS_MAX: u32 = 4;
/// Places of a segment.
const SEGMENT_PLACES: u32 = 64;
/// Levels of segments: level n has 2^n.
const LEVELS: usize = 26;

/// A set of attributes, of one inode or shared.
#[derive(Debug, Default)]
pub(in crate::tmpfs) struct Block {
    pub(super) set: Set,
    /// The key it was entered with, if it has a number.
    key: u64,
    /// 0 while the block is private.
    number: u32,
    /// Set while an inode waits in `Deferred` with this private block.
    pub(super) is_queued: bool,
}

impl Block {
    /// Returns a private block.
    pub(super) fn private(set: Set) -> Block {
        Block { set, ..Block::default() }
    }

    /// Returns true if only one inode can have it.
    pub(super) fn is_private(&self) -> bool {
        self.number == 0
    }

    /// Returns what is in it.
    pub(in crate::tmpfs) fn set(&self) -> &Set {
        &self.set
    }
}

/// A block and its users.
#[derive(Default)]
struct Place {
    users: u32,
    block: Option<Arc<Block>>,
}

type Segment = OnceLock<Box<[Mutex<Place>; SEGMENT_PLACES as usize]>>;

/// When a user gives a block up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Leave {
    /// In any case.
    Always,
    /// If it is the only one, who then has the content for itself.
    IfLast,
}

/// What became of a block that a user gave up, or wanted to.
pub(super) enum Released {
    /// That was its only user, who has the content for itself.
    Last(Block),
    /// Others have it too, and with [`Leave::IfLast`] the caller still.
    Shared(Arc<Block>),
    /// Others have it too, and with [`Leave::Always`] the caller no more.
    Left,
}

/// Blocks that are shared, by content.
///
/// # Invariants
/// K.1 to K.3.
pub(super) struct Blocks {
    cache: Mbcache,
    /// Gives out numbers; the words are not used.
    numbers: SlotArena<1>,
    levels: [OnceLock<Box<[Segment]>>; LEVELS],
}

impl Blocks {
    /// Returns an empty store; None if there is no address space for it.
    pub(super) fn new() -> Option<Blocks> {
        let options = MbcacheOptions { users_max: USERS_MAX, ..MbcacheOptions::default() };
        let cache = Mbcache::new(options).ok()?;
        let numbers = SlotArena::new("xattr block", cache.entries_max()).ok()?;
        Some(Blocks { cache, numbers, levels: [const { OnceLock::new() }; LEVELS] })
    }

    /// Returns a block with the content of `set`, of which the caller is a user now, if there is one.
    pub(super) fn find(&self, key: u64, set: &Set) -> Found {
        let mut found = self.cache.find_first(key);
        for _ in 0..LOOKS_MAX {
            let Some(entry) = found else { return Found::Nothing };
            let mut place = self.place(entry.value() as u32).lock();
            if let Some(block) = place.block.as_ref()
                && block.key == key
                && place.users < USERS_MAX
                && block.set == *set
            {
                let block = Arc::clone(block);
                place.users += 1;
                if place.users == USERS_MAX {
                    entry.note_users(place.users);
                }
                drop(place);
                entry.touch();
                return Found::Block(block);
            }
            drop(place);
            found = self.cache.find_next(&entry);
        }
        if found.is_none() { Found::Nothing } else { Found::Others }
    }

    /// Stores a private block for others to find, and returns it with the caller as its user. It stays
    /// private if there are too many.
    pub(super) fn enter(&self, key: u64, mut block: Block) -> Arc<Block> {
        let Some(number) = self.numbers.alloc() else { return Arc::new(block) };
        (block.key, block.number) = (key, number);
        let block = Arc::new(block);
        *self.place(number).lock() = Place { users: 1, block: Some(Arc::clone(&block)) };
        // K.2: no entry leads here, so the pair is new. Without an entry it is just not found.
        let entered = self.cache.create(key, u64::from(number));
        debug_assert_ne!(entered, Err(corewalk_mbcache::CreateError::Exists), "K.2");
        block
    }

    /// Takes a user from a block with a number, as `leave` says.
    pub(super) fn release(&self, block: Arc<Block>, leave: Leave) -> Released {
        let (key, number) = (block.key, block.number);
        let mut place = self.place(number).lock();
        loop {
            debug_assert!(place.users > 0, "K.1");
            if place.users > 1 {
                if leave == Leave::IfLast {
                    return Released::Shared(block);
                }
                place.users -= 1;
                if place.users + 1 == USERS_MAX {
                    self.cache.note_users(key, u64::from(number), place.users);
                }
                // Before the place is unlocked: the next to leave may be the last, and K.1 says that
                // nobody else points at the block then.
                drop(block);
                return Released::Left;
            }
            let Some(busy) = self.cache.delete_or_get(key, u64::from(number)) else { break };
            drop(place);
            busy.wait();
            place = self.place(number).lock();
        }
        *place = Place::default();
        drop(place);
        self.numbers.free(number);
        let block = Arc::into_inner(block).expect("K.1: nobody else points at it");
        Released::Last(Block::private(block.set))
    }

    /// Returns how many blocks there are.
    pub(super) fn len(&self) -> u64 {
        self.numbers.in_use()
    }

    #[inline]
    fn place(&self, number: u32) -> &Mutex<Place> {
        let nth = number / SEGMENT_PLACES + 1;
        let level = nth.ilog2();
        let segments = self.levels[level as usize]
            .get_or_init(|| (0..1_u32 << level).map(|_| Segment::new()).collect());
        let segment = segments[(nth - (1 << level)) as usize]
            .get_or_init(|| Box::new(std::array::from_fn(|_| Mutex::default())));
        &segment[(number % SEGMENT_PLACES) as usize]
    }
}

/// What a look for a content found.
pub(super) enum Found {
    /// A block, with the caller as one more user.
    Block(Arc<Block>),
    /// No block that may have it.
    Nothing,
    /// Several blocks that have the key and another content.
    Others,
}

#[cfg(all(test, not(any(corewalk_loom, corewalk_shuttle))))]
pub(super) mod audit {
    use super::*;

    impl Blocks {
        /// Returns the number of a shared block.
        pub(in crate::tmpfs::xattr) fn number_of(block: &Block) -> Option<u32> {
            (!block.is_private()).then_some(block.number)
        }

        /// Returns the users of every block that has some, by number, and checks K.2 for the others.
        pub(in crate::tmpfs::xattr) fn collect_users(&self) -> Vec<(u32, u32)> {
            let places = (1..self.numbers.len_touched()).map(|number| {
                let place = self.place(number).lock();
                assert_eq!(place.users > 0, place.block.is_some(), "K.1: block {number}");
                (number, place.users)
            });
            places.filter(|&(_, users)| users > 0).collect()
        }

        /// Returns how many entries the cache has.
        pub(in crate::tmpfs::xattr) fn entries(&self) -> u64 {
            self.cache.count()
        }
    }
}
