//! The inodes of a tmpfs, by number.
//!
//! Every call names an inode by its number, so this is the one place that all threads of a tmpfs
//! meet. It is cut into shards, each with a lock that is held for one step in a hash map; numbers
//! that follow each other are in different shards.
//!
//! # How it works
//! Numbers come from one count and are never used again within a mount, so (number, generation 0)
//! names an inode for ever (trap P11): at a thousand million inodes per second the count lasts
//! 584 years. So that the count is no meeting point either, a thread draws 256 numbers at a time
//! into its shard of `ranges`. Numbers say nothing about the order of creation.
//!
//! # Locks
//! - `ranges`: a shard each, around the rest of the numbers it drew. Taken with no other lock held.
//! - `shards`: innermost, taken under any lock of an inode, and nothing is taken under it.
//!
//! # Invariants
//! - I.1: an inode is here from before its first directory entry until it is forgotten without
//!   links; a number that a locked directory names is here.
//!
//! # What it refuses
//! It counts no references: the caller of the back end says when an inode has gone out of use.
//!
//! Source: research on inode tables of user-space file systems (traps P1, P2, P11).

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::ops::Range;
use std::sync::Arc;

use corewalk_sync::primitives::atomic::{AtomicU64, Ordering};
use corewalk_sync::primitives::{SHARDS, shard_index};
use corewalk_sync::{CachePadded, Mutex, RwLock};

use super::inode::Inode;

/// The number of the root directory.
pub(super) const ROOT_INO: u64 = 1;

/// Shards of the table; a power of two, and a power of two more than the threads one expects.
const TABLE_SHARDS: u64 = 64;
/// How many numbers a thread draws at a time.
const RANGE_LEN: u64 = 256;

type Shard = CachePadded<RwLock<HashMap<u64, Arc<Inode>, BuildHasherDefault<NumberHasher>>>>;

/// The inodes of a tmpfs, by number.
///
/// # Invariants
/// I.1.
pub(super) struct InodeTable {
    shards: Box<[Shard]>,
    ranges: Box<[CachePadded<Mutex<Range<u64>>>]>,
    next: AtomicU64,
}

impl InodeTable {
    /// Returns an empty table.
    pub(super) fn new() -> InodeTable {
        InodeTable {
            shards: (0..TABLE_SHARDS).map(|_| Shard::default()).collect(),
            ranges: (0..SHARDS).map(|_| CachePadded::new(Mutex::new(0..0))).collect(),
            next: AtomicU64::new(ROOT_INO + 1),
        }
    }

    /// Returns an inode.
    pub(super) fn get(&self, ino: u64) -> Option<Arc<Inode>> {
        self.shard(ino).read().get(&ino).cloned()
    }

    /// Returns a number that was never returned before.
    pub(super) fn draw_number(&self) -> u64 {
        let mut range = self.ranges[shard_index()].lock();
        if range.is_empty() {
            // ORDERING: Relaxed. The word is the whole of the shared state.
            let start = self.next.fetch_add(RANGE_LEN, Ordering::Relaxed);
            *range = start..start + RANGE_LEN;
        }
        range.start += 1;
        range.start - 1
    }

    /// Adds an inode.
    pub(super) fn insert(&self, inode: Arc<Inode>) {
        let old = self.shard(inode.ino()).write().insert(inode.ino(), inode);
        debug_assert!(old.is_none(), "numbers are never used again");
    }

    /// Removes an inode.
    pub(super) fn remove(&self, ino: u64) -> Option<Arc<Inode>> {
        self.shard(ino).write().remove(&ino)
    }

    fn shard(&self, ino: u64) -> &Shard {
        &self.shards[(ino % TABLE_SHARDS) as usize]
    }
}

/// Hashes numbers that only this table hands out, so nobody can craft them to collide.
#[derive(Default)]
struct NumberHasher(u64);

impl Hasher for NumberHasher {
    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(u64::from(byte));
        }
    }

    fn write_u64(&mut self, number: u64) {
        // Fibonacci hashing; the top bits, which the map also uses, are the well-mixed ones.
        let mixed = (self.0 ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = mixed ^ mixed >> 32;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

#[cfg(all(test, not(any(corewalk_loom, corewalk_shuttle))))]
mod tests {
    use std::collections::HashSet;

    use corewalk_sync::primitives::thread;

    use super::*;

    /// Trap P11.
    #[test]
    fn draw_number_never_repeats() {
        let table = InodeTable::new();
        let draw = || (0..10_000).map(|_| table.draw_number()).collect::<Vec<_>>();
        let drawn: Vec<u64> = thread::scope(|scope| {
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(draw)).collect();
            threads.into_iter().flat_map(|t| t.join().unwrap()).collect()
        });
        assert!(drawn.iter().all(|&ino| ino > ROOT_INO));
        assert_eq!(drawn.iter().collect::<HashSet<_>>().len(), 40_000);
    }
}
