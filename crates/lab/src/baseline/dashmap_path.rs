//! A sharded map from whole paths: what many servers that began with paths have.
//!
//! Path to inode number and inode number to path, each a `DashMap`. A path is one clone and a walk
//! one probe. A lookup by (parent, name) has to build the path first, and moving a directory
//! re-keys everything below it, entry by entry.
//!
//! # What it refuses
//! Consistency: while a directory moves, names below it are found under neither path, or under
//! both. Its wrong answers are reported, not hidden.
//!
//! Source: SeaweedFS (`weed/mount/inode_to_path.go`) and fuse_mt (`inode_table.rs`) have this shape,
//! with one lock; the sharded map is the crate `dashmap`.

use ahash::RandomState;
use corewalk_base::primitives::atomic::{AtomicU64, Ordering};
use dashmap::DashMap;

use super::Namespace;
use crate::corpus::{Corpus, ROOT};

/// The two maps.
pub(crate) struct DashmapPath {
    by_path: DashMap<Box<[u8]>, Inode, RandomState>,
    by_ino: DashMap<u64, Box<[u8]>, RandomState>,
}

struct Inode {
    ino: u64,
    nlookup: AtomicU64,
}

impl DashmapPath {
    /// Returns the maps of `corpus`.
    pub(crate) fn load(corpus: &Corpus) -> DashmapPath {
        let table = DashmapPath {
            by_path: DashMap::with_capacity_and_hasher(corpus.len(), RandomState::new()),
            by_ino: DashMap::with_capacity_and_hasher(corpus.len(), RandomState::new()),
        };
        for ino in corpus.inodes() {
            let path: Box<[u8]> = corpus.path(ino).into();
            table.by_ino.insert(ino, path.clone());
            table.by_path.insert(path, Inode { ino, nlookup: AtomicU64::new(1) });
        }
        table
    }

    fn child_path(&self, parent: u64, name: &[u8]) -> Option<Vec<u8>> {
        let directory = self.by_ino.get(&parent)?;
        let mut path = Vec::with_capacity(directory.len() + 1 + name.len());
        if parent != ROOT {
            path.extend_from_slice(&directory);
        }
        path.push(b'/');
        path.extend_from_slice(name);
        Some(path)
    }
}

impl Namespace for DashmapPath {
    fn variant(&self) -> &'static str {
        "dashmap-path"
    }

    #[inline]
    fn lookup(&self, parent: u64, name: &[u8]) -> Option<u64> {
        let path = self.child_path(parent, name)?;
        let inode = self.by_path.get(&path[..])?;
        // ORDERING: Relaxed. A count.
        inode.nlookup.fetch_add(1, Ordering::Relaxed);
        Some(inode.ino)
    }

    #[inline]
    fn path(&self, ino: u64) -> Option<Vec<u8>> {
        Some(self.by_ino.get(&ino)?.to_vec())
    }

    #[inline]
    fn walk(&self, path: &[u8]) -> Option<u64> {
        Some(self.by_path.get(path)?.ino)
    }

    fn rename(&self, from: (u64, &[u8]), to: (u64, &[u8])) -> bool {
        let (Some(old), Some(new)) = (self.child_path(from.0, from.1), self.child_path(to.0, to.1))
        else {
            return false;
        };
        if !self.by_path.contains_key(&old[..]) {
            return false;
        }
        let is_moved = |path: &[u8]| {
            path.strip_prefix(&old[..]).is_some_and(|tail| tail.is_empty() || tail[0] == b'/')
        };
        let moved: Vec<Box<[u8]>> = self
            .by_path
            .iter()
            .filter(|entry| is_moved(entry.key()))
            .map(|entry| entry.key().clone())
            .collect();
        for path in moved {
            let Some((_, inode)) = self.by_path.remove(&path) else { continue };
            let target: Box<[u8]> = [&new[..], &path[old.len()..]].concat().into();
            self.by_ino.insert(inode.ino, target.clone());
            self.by_path.insert(target, inode);
        }
        true
    }

    fn is_exact(&self) -> bool {
        false
    }
}
