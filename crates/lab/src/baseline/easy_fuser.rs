//! One lock over a map of inodes and a map of directories: the mapper of easy_fuser.
//!
//! An inode number leads to (parent, name); a directory's number leads to a map of its own, from names
//! to inode numbers. So a lookup is three probes: the directory, the name in it, and the inode whose
//! references are counted. A path climbs from parent to parent, as in `rwlock-ahash`. The maps are those
//! of the standard library with its hash, and a name is a string behind a shared pointer, as there.
//!
//! # Locks
//! One, shared by readers.
//!
//! # What it refuses
//! What `rwlock-ahash` refuses.
//!
//! Source: easy_fuser 0.4 (`src/inode_mapper.rs`), the shape and nothing else.

use std::borrow::Borrow;
use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};

use corewalk_base::CachePadded;
use corewalk_base::primitives::atomic::{AtomicU64, Ordering};

use super::{Namespace, components, join};
use crate::corpus::{Corpus, ROOT};

/// The two maps.
pub(crate) struct EasyFuser {
    maps: CachePadded<RwLock<Maps>>,
}

struct Maps {
    inodes: HashMap<u64, Inode>,
    children: HashMap<u64, HashMap<SharedName, u64>>,
}

struct Inode {
    parent: u64,
    name: SharedName,
    nlookup: AtomicU64,
}

/// A name that both maps have.
#[derive(Clone, Hash, PartialEq, Eq)]
struct SharedName(Arc<Vec<u8>>);

impl Borrow<[u8]> for SharedName {
    #[inline]
    fn borrow(&self) -> &[u8] {
        &self.0
    }
}

impl EasyFuser {
    /// Returns the maps of `corpus`.
    pub(crate) fn load(corpus: &Corpus) -> EasyFuser {
        let mut maps = Maps { inodes: HashMap::new(), children: HashMap::new() };
        for ino in corpus.inodes() {
            let (parent, name) =
                (corpus.parent(ino), SharedName(Arc::new(corpus.name(ino).into())));
            if ino != ROOT {
                maps.children.entry(parent).or_default().insert(name.clone(), ino);
            }
            maps.inodes.insert(ino, Inode { parent, name, nlookup: AtomicU64::new(1) });
        }
        EasyFuser { maps: CachePadded::new(RwLock::new(maps)) }
    }

    #[inline]
    fn read(&self) -> RwLockReadGuard<'_, Maps> {
        self.maps.read().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Maps {
    #[inline]
    fn find(&self, parent: u64, name: &[u8]) -> Option<u64> {
        self.children.get(&parent)?.get(name).copied()
    }
}

impl Namespace for EasyFuser {
    fn variant(&self) -> &'static str {
        "easy-fuser"
    }

    #[inline]
    fn lookup(&self, parent: u64, name: &[u8]) -> Option<u64> {
        let maps = self.read();
        let ino = maps.find(parent, name)?;
        // ORDERING: Relaxed. A count; the lock orders everything else.
        maps.inodes.get(&ino)?.nlookup.fetch_add(1, Ordering::Relaxed);
        Some(ino)
    }

    #[inline]
    fn path(&self, ino: u64) -> Option<Vec<u8>> {
        let maps = self.read();
        let mut names: Vec<&[u8]> = vec![];
        let mut at = ino;
        while at != ROOT {
            let inode = maps.inodes.get(&at)?;
            names.push(&inode.name.0);
            at = inode.parent;
        }
        Some(join(&names))
    }

    #[inline]
    fn walk(&self, path: &[u8]) -> Option<u64> {
        let maps = self.read();
        components(path).try_fold(ROOT, |parent, name| maps.find(parent, name))
    }

    fn rename(&self, from: (u64, &[u8]), to: (u64, &[u8])) -> bool {
        let mut maps = self.maps.write().unwrap_or_else(PoisonError::into_inner);
        let removed = maps.children.get_mut(&from.0).and_then(|names| names.remove(from.1));
        let Some(ino) = removed else { return false };
        let name = SharedName(Arc::new(to.1.to_vec()));
        maps.children.entry(to.0).or_default().insert(name.clone(), ino);
        maps.inodes.get_mut(&ino).is_some_and(|inode| {
            (inode.parent, inode.name) = (to.0, name);
            true
        })
    }
}
