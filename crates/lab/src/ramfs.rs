//! A file system that stores no names, for comparisons of corewalk with the dentry caches of old
//! kernels (`before`).
//!
//! In ramfs of an old kernel, only the dentry cache has the names of files. corewalk also asks its
//! file system before it changes its cache. If that file system stored names, corewalk would do
//! more work than the kernels of `before`.
//!
//! `Ramfs` only hands out inode numbers and allows every change. corewalk's cache has room for all
//! names, so a name that is not in the cache does not exist.
//!
//! # Limits
//! `readdir`, `read`, and renames that replace or exchange names return an error. Attributes never
//! change. The name of an evicted entry would be lost, so the cache must never be full.
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
    /// The lowest inode number that is in no shard's batch yet.
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
            // ORDERING: Relaxed. The addition alone gives each batch to one shard.
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
