//! The file system below an [`InodeTable`](super::InodeTable). It knows no names, and accepts each
//! change.
//!
//! The server changes its own storage before it calls the `InodeTable`. So this file system has no
//! files to change: its methods only add or remove the user data of inodes.

use std::collections::HashMap;
use std::sync::Arc;

use corewalk_base::{CachePadded, Mutex};
use foldhash::fast::RandomState;

use crate::Errno;
use crate::attr::{Attr, SetAttr, StatFs};
use crate::fs::{DirSink, FileSystem, Make, Node, RenameMode};
use crate::name::Name;

/// The inode number of the root, as in the FUSE protocol.
pub(super) const ROOT_INO: u64 = 1;

const SHARDS: usize = 64;

type Shard<T> = CachePadded<Mutex<HashMap<u64, Arc<T>, RandomState>>>;

type Key = (u64, Box<[u8]>);

/// The user data of the inodes in a table, and the file system below its cache.
///
/// # Invariants
/// - N.1: an inode's data is stored before the inode's number enters the cache, and is dropped
///   after the cache has dropped the inode.
pub(super) struct NoBacking<T> {
    shards: Box<[Shard<T>]>,
    /// The names that a running [`InodeTable::moved`](super::InodeTable::moved) makes visible to
    /// `lookup`, each with the number of its directory and the inode's attributes.
    found: Mutex<HashMap<Key, Attr, RandomState>>,
}

/// A name that `lookup` finds until this value is dropped.
pub(super) struct Found<'t, T> {
    backing: &'t NoBacking<T>,
    key: Key,
    ino: u64,
}

impl<T> Drop for Found<'_, T> {
    fn drop(&mut self) {
        let mut found = self.backing.found.lock();
        // Another thread may have made the name lead to another inode meanwhile.
        if found.get(&self.key).is_some_and(|attr| attr.ino == self.ino) {
            found.remove(&self.key);
        }
    }
}

impl<T> NoBacking<T> {
    pub(super) fn new(root: T) -> NoBacking<T> {
        let shard = || CachePadded::new(Mutex::new(HashMap::default()));
        let this =
            NoBacking { shards: (0..SHARDS).map(|_| shard()).collect(), found: Mutex::default() };
        this.insert(ROOT_INO, root);
        this
    }

    fn shard(&self, ino: u64) -> &Shard<T> {
        // The table assigns numbers in order, so inodes that are made together are in different
        // shards.
        &self.shards[ino as usize % SHARDS]
    }

    pub(super) fn insert(&self, ino: u64, data: T) {
        self.shard(ino).lock().insert(ino, Arc::new(data));
    }

    pub(super) fn data(&self, ino: u64) -> Arc<T> {
        Arc::clone(self.shard(ino).lock().get(&ino).expect("N.1: an inode has data"))
    }

    pub(super) fn find(&self, dir: u64, name: Name<'_>, attr: Attr) -> Found<'_, T> {
        let key = (dir, Box::from(name.as_bytes()));
        self.found.lock().insert(key.clone(), attr);
        Found { backing: self, key, ino: attr.ino }
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().len()).sum()
    }

    pub(super) fn remove(&self, ino: u64) {
        // Drop the data without the lock, because its destructor is code of the server.
        let data = self.shard(ino).lock().remove(&ino);
        drop(data);
    }
}

impl<T: Send + Sync + 'static> FileSystem for Arc<NoBacking<T>> {
    fn root(&self) -> Result<Attr, Errno> {
        Ok(Attr::dir(ROOT_INO))
    }

    /// Returns the inode at a name that [`InodeTable::moved`](super::InodeTable::moved) is adding
    /// to the cache. No other name exists here.
    fn lookup(&self, dir: Node<'_>, name: Name<'_>) -> Result<Attr, Errno> {
        let found = self.found.lock();
        found.get(&(dir.ino(), Box::from(name.as_bytes()))).copied().ok_or(Errno::NOENT)
    }

    fn getattr(&self, node: Node<'_>) -> Result<Attr, Errno> {
        Ok(Attr::new(node.ino(), node.kind().to_mode()))
    }

    fn setattr(&self, node: Node<'_>, _: &SetAttr) -> Result<Attr, Errno> {
        self.getattr(node)
    }

    /// Makes an inode whose number the table has chosen and passes in `what.rdev`.
    fn make(&self, _: Node<'_>, _: Name<'_>, what: &Make<'_>) -> Result<Attr, Errno> {
        Ok(Attr::new(what.rdev, what.mode))
    }

    fn link(&self, node: Node<'_>, _: Node<'_>, _: Name<'_>) -> Result<Attr, Errno> {
        self.getattr(node)
    }

    fn remove(&self, _: Node<'_>, _: Name<'_>, _: Node<'_>) -> Result<(), Errno> {
        Ok(())
    }

    fn rename(
        &self,
        _: (Node<'_>, Name<'_>),
        _: (Node<'_>, Name<'_>),
        _: RenameMode,
    ) -> Result<(), Errno> {
        Ok(())
    }

    fn readdir(&self, _: Node<'_>, _: u64, _: &mut DirSink<'_>) -> Result<(), Errno> {
        Ok(())
    }

    fn read(&self, _: Node<'_>, _: u64, _: &mut [u8]) -> Result<usize, Errno> {
        Err(Errno::NOSYS)
    }

    fn write(&self, _: Node<'_>, _: u64, _: &[u8]) -> Result<usize, Errno> {
        Err(Errno::NOSYS)
    }

    fn statfs(&self) -> Result<StatFs, Errno> {
        Ok(StatFs::default())
    }

    fn forget(&self, ino: u64, _: u64) {
        NoBacking::remove(self, ino);
    }
}
