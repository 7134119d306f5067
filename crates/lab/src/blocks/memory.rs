//! A store of attribute blocks in memory. Each call of `set` looks for an equal block to share.
//!
//! # How it works
//! `set` hashes samples of the content ([`key_of`]), and looks the hash up in the index. If it
//! finds a block with the same content and fewer than [`USERS_MAX`] users, that block gets one more
//! user. Otherwise `set` makes a block and copies the content. Then the old block of the file loses
//! a user, and is freed if that was its last one.
//!
//! A block stores its hash, so no thread computes it twice.
//!
//! Each worker has its own list of the blocks that it freed, so no cache line is written by all
//! workers. They contend only for the index, which the benchmark measures.
//!
//! # Locks and their order
//! 1. The lock of a file.
//! 2. The lock of an entry of the index.
//! 3. The lock of a block, which protects `users`, `key` and `content`.
//!
//! The locks of the lists of free blocks are innermost: under them no other lock is taken.
//!
//! # Limits
//! A changed value always gets a new block. No block is changed in place, since in a tmpfs a reader
//! may be using it.
//!
//! Source: document 004 in `documents.md`; Linux `fs/ext4/xattr.c` for the steps.

use anyhow::ensure;
use corewalk_base::primitives::Arc;
use corewalk_base::{CachePadded, Mutex, MutexGuard};
use corewalk_store::{Removal, ShareIndex};
use foldhash::fast::FixedState;
use std::hash::BuildHasher;

use super::{AttrStore, BLOCK_BYTES, Design, USERS_MAX};

/// A content of at most this many bytes is hashed as a whole.
const HASHED_WHOLE_MAX: usize = 512;
/// Number of hashed pieces of a content that is longer than [`HASHED_WHOLE_MAX`]. `PIECE_BYTES` is
/// the length of a piece.
const PIECES: usize = 5;
const PIECE_BYTES: usize = 64;

/// The store.
pub(crate) struct MemoryStore {
    variant: &'static str,
    index: Arc<dyn ShareIndex>,
    hasher: FixedState,
    /// Files of each worker, with the numbers of their blocks.
    files: Vec<Vec<Mutex<Option<u32>>>>,
    blocks: Vec<CachePadded<Mutex<Block>>>,
    /// The numbers of free blocks, by worker.
    free: Vec<CachePadded<Mutex<Vec<u32>>>>,
}

/// A block of attributes. It is free if it has no users.
#[derive(Default)]
struct Block {
    users: u32,
    /// Bytes of the content; the block is filled up with zeros.
    len: u32,
    key: u64,
    content: Box<[u8]>,
}

impl MemoryStore {
    /// Returns a store for `workers` workers with `files` files each, all without an attribute.
    pub(crate) fn new(design: Design, size: (usize, usize)) -> MemoryStore {
        let ((variant, index), (workers, files)) = (design, size);
        // `set` makes a new block before it frees the old one, so each worker needs one block more
        // than files.
        let each = files as u32 + 1;
        let free = |worker: u32| {
            let numbers = (worker * each..(worker + 1) * each).rev().collect();
            CachePadded::new(Mutex::new(numbers))
        };
        MemoryStore {
            variant,
            index,
            hasher: FixedState::with_seed(4),
            files: (0..workers).map(|_| (0..files).map(|_| Mutex::default()).collect()).collect(),
            blocks: (0..workers as u32 * each).map(|_| CachePadded::default()).collect(),
            free: (0..workers as u32).map(free).collect(),
        }
    }

    /// Returns true if blocks are shared.
    fn is_on(&self) -> bool {
        self.index.users_max() > 1
    }

    /// Looks for a block with this content and fewer than [`USERS_MAX`] users, and adds a user.
    /// Returns the number of the block.
    fn share(&self, key: u64, value: &[u8]) -> Option<u32> {
        let found = self.index.find(key, &mut |number| {
            let mut block = self.block(number as u32);
            let has_room = (1..USERS_MAX).contains(&block.users);
            let is_it = has_room && block.key == key && block.is(value);
            if is_it {
                block.users += 1;
                if block.users == USERS_MAX {
                    self.index.note_users(key, number, USERS_MAX);
                }
            }
            is_it
        });
        found.map(|number| number as u32)
    }

    /// Makes a block with this content.
    fn make(&self, worker: usize, key: u64, value: &[u8]) -> u32 {
        let mut content = Vec::with_capacity(BLOCK_BYTES);
        content.extend_from_slice(value);
        content.resize(BLOCK_BYTES, 0);
        let number = self.take_number(worker);
        let mut block = self.block(number);
        debug_assert_eq!(block.users, 0, "a block that is free has no users");
        *block = Block { users: 1, len: value.len() as u32, key, content: content.into() };
        drop(block);
        self.index.insert(key, u64::from(number), 1);
        number
    }

    /// Takes a user off a block.
    fn release(&self, worker: usize, number: u32) {
        let block_number = u64::from(number);
        loop {
            self.index.leave(block_number);
            let mut block = self.block(number);
            let key = block.key;
            if block.users > 1 {
                block.users -= 1;
                if block.users + 1 == USERS_MAX {
                    self.index.note_users(key, block_number, block.users);
                }
                drop(block);
                return self.index.left(block_number);
            }
            if self.index.remove(key, block_number) == Removal::Done {
                let content = std::mem::take(&mut *block).content;
                drop((block, content));
                return self.free[worker].lock().push(number);
            }
            drop(block);
            self.index.left(block_number);
            self.index.wait(key, block_number);
            // During `wait`, another thread may have become a user of the block. Then the block
            // stays, and the index must have it.
            let users = self.block(number).users;
            if users > 1 {
                self.index.insert(key, block_number, users);
            }
        }
    }

    /// Takes a free block from the worker's own list, or from that of another worker. Returns its
    /// number.
    fn take_number(&self, worker: usize) -> u32 {
        let workers = self.free.len();
        let mut free = (worker..).map(|next| &self.free[next % workers]);
        free.find_map(|free| free.lock().pop()).expect("a store has workers")
    }

    fn block(&self, number: u32) -> MutexGuard<'_, Block> {
        self.blocks[number as usize].lock()
    }
}

/// Returns the key of a content: the hash of its length and of five pieces, from its start to its
/// end.
///
/// Long contents are hashed as in corewalk's tmpfs and store, since hashing 4 KiB would take longer
/// than copying it. Contents with equal hashes are compared. All designs use this function, so
/// their keys cost the same.
fn key_of(hasher: &FixedState, value: &[u8]) -> u64 {
    if value.len() <= HASHED_WHOLE_MAX {
        return hasher.hash_one(value);
    }
    let mut sample = [0; PIECES * PIECE_BYTES];
    for (nth, piece) in sample.chunks_exact_mut(PIECE_BYTES).enumerate() {
        let start = (value.len() - PIECE_BYTES) * nth / (PIECES - 1);
        piece.copy_from_slice(&value[start..start + PIECE_BYTES]);
    }
    hasher.hash_one((value.len(), &sample[..]))
}

impl AttrStore for MemoryStore {
    fn variant(&self) -> &'static str {
        self.variant
    }

    fn set(&self, worker: usize, file: usize, value: &[u8]) {
        let key = if self.is_on() { key_of(&self.hasher, value) } else { 0 };
        let mut file = self.files[worker][file].lock();
        let new = self.share(key, value).unwrap_or_else(|| self.make(worker, key, value));
        if let Some(old) = file.replace(new) {
            self.release(worker, old);
        }
    }

    fn has(&self, worker: usize, file: usize, value: &[u8]) -> bool {
        let number = *self.files[worker][file].lock();
        number.is_some_and(|number| self.block(number).is(value))
    }

    fn clear(&self, worker: usize) {
        for file in &self.files[worker] {
            let old = file.lock().take();
            if let Some(old) = old {
                self.release(worker, old);
            }
        }
    }

    fn audit(&self) -> anyhow::Result<u64> {
        let (variant, mut users) = (self.variant, vec![0_u32; self.blocks.len()]);
        let files = self.files.iter().flatten().filter_map(|file| *file.lock());
        files.for_each(|number| users[number as usize] += 1);
        let (mut in_use, mut expected) = (0, 0);
        for (number, users) in users.into_iter().enumerate() {
            let block = self.block(number as u32);
            let (counted, is_right) = (block.users, block.users == users && users <= USERS_MAX);
            ensure!(is_right, "{variant}: block {number} counts {counted} users and has {users}");
            in_use += u64::from(users > 0);
            // Only the index of corewalk has no entries for full blocks.
            let keeps_full = variant != "corewalk";
            let is_entered = self.is_on() && (keeps_full || users < USERS_MAX);
            expected += u64::from(users > 0 && is_entered);
        }
        let free: usize = self.free.iter().map(|free| free.lock().len()).sum();
        let all = self.blocks.len();
        let is_right = in_use as usize + free == all;
        ensure!(is_right, "{variant}: {in_use} blocks are in use and {free} of {all} free");
        let entries = self.index.stats().entries;
        let is_right = entries == expected;
        ensure!(is_right, "{variant}: {entries} entries for {expected} blocks that may be shared");
        Ok(in_use)
    }
}

impl Block {
    fn is(&self, value: &[u8]) -> bool {
        self.len as usize == value.len() && self.content.get(..value.len()) == Some(value)
    }
}

#[cfg(test)]
pub(super) mod tests;
