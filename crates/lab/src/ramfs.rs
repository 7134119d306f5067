//! A file system that keeps nothing, below the corewalk that is compared with the designs of
//! `before`.
//!
//! In the kernels of these designs, the dentry cache itself holds the names of a file system in
//! memory: ramfs keeps no names. corewalk asks its file system before it changes its cache, and a
//! file system that keeps names would be measured too. So `Ramfs` only hands out inode numbers and
//! allows every change. The cache has room for all names and evicts none. A name that is not in the
//! cache does not exist.
//!
//! # What it refuses
//! Content, listings and changes of attributes. The cache must never be full, since an evicted name
//! would be lost.
//!
//! Source: Linux `fs/ramfs/inode.c`, `simple_lookup` of `fs/libfs.c`; `corewalk::fs`.

use std::ops::Range;

use corewalk::{Attr, DirSink, Errno, FileSystem, Make, Name, Node, RenameMode, StatFs};
use corewalk_base::primitives::{
    SHARDS, shard_index,
    unmodelled::{AtomicU64, Ordering},
};
use corewalk_base::{CachePadded, Mutex};

use crate::corpus::ROOT;
use crate::ours::mode_of;

/// Inode numbers that a shard takes at once.
const BATCH: u64 = 1024;

/// A file system that keeps nothing but the next inode numbers.
pub(crate) struct Ramfs {
    /// The first number that no shard has.
    fresh: CachePadded<AtomicU64>,
    /// The inode numbers that each shard has in reserve (as `get_next_ino`).
    batches: [CachePadded<Mutex<Range<u64>>>; SHARDS],
}

impl Ramfs {
    /// Returns a file system with a root.
    pub(crate) fn new() -> Ramfs {
        let fresh = CachePadded::new(AtomicU64::new(ROOT + 1));
        Ramfs { fresh, batches: std::array::from_fn(|_| CachePadded::default()) }
    }

    /// Returns an unused inode number. A single thread gets consecutive numbers.
    fn next_ino(&self) -> u64 {
        let mut batch = self.batches[shard_index()].lock();
        if batch.is_empty() {
            // ORDERING: Relaxed. Each batch has one owner.
            let first = self.fresh.fetch_add(BATCH, Ordering::Relaxed);
            *batch = first..first + BATCH;
        }
        batch.next().expect("the batch was just filled")
    }
}

impl FileSystem for Ramfs {
    fn root(&self) -> Result<Attr, Errno> {
        Ok(Attr::dir(ROOT))
    }

    fn lookup(&self, _dir: Node<'_>, _name: Name<'_>) -> Result<Attr, Errno> {
        Err(Errno::NOENT)
    }

    fn getattr(&self, node: Node<'_>) -> Result<Attr, Errno> {
        Ok(Attr::new(node.ino(), mode_of(node.kind())))
    }

    fn make(&self, _dir: Node<'_>, _name: Name<'_>, what: &Make<'_>) -> Result<Attr, Errno> {
        Ok(Attr::new(self.next_ino(), what.mode))
    }

    fn remove(&self, _dir: Node<'_>, _name: Name<'_>, _node: Node<'_>) -> Result<(), Errno> {
        Ok(())
    }

    fn rename(
        &self,
        _from: (Node<'_>, Name<'_>),
        _to: (Node<'_>, Name<'_>),
        mode: RenameMode,
    ) -> Result<(), Errno> {
        if mode == RenameMode::NoReplace { Ok(()) } else { Err(Errno::OPNOTSUPP) }
    }

    fn readdir(&self, _dir: Node<'_>, _cookie: u64, _sink: &mut DirSink<'_>) -> Result<(), Errno> {
        Err(Errno::OPNOTSUPP)
    }

    fn read(&self, _: Node<'_>, _: u64, _: &mut [u8]) -> Result<usize, Errno> {
        Err(Errno::OPNOTSUPP)
    }

    fn statfs(&self) -> Result<StatFs, Errno> {
        Ok(StatFs::default())
    }
}
