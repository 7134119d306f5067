//! One lock over two flat hash maps: the simplest good design.
//!
//! One map finds the inode number by parent and name, and the other map finds parent and name by
//! inode number. Readers share a single lock. The design is hard to beat on few cores, since a name
//! costs one probe of a hash table. So it is the baseline.
//!
//! # How it works
//! One hash map leads from parent and name to the inode number, the other one back. Both refer to
//! the same copy of a name. The first map also contains the client's lookup count of an inode, so a
//! lookup touches one entry.
//!
//! The lock is that of the standard library. On two cores of a Xeon it is faster than that of
//! `parking_lot`. A read costs 19 ns with one thread and 52 ns with two, instead of 22 and 54 ns.
//!
//! # Limits
//! No negative entries, eviction, hard links or permissions, for which corewalk and the host kernel
//! pay.
//!
//! Source: `std::sync::RwLock`, and the crates `hashbrown` and `ahash`.

use std::hash::Hash;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};

use ahash::RandomState;
use corewalk_base::CachePadded;
use corewalk_base::primitives::atomic::{AtomicU64, Ordering};
use hashbrown::{Equivalent, HashMap};

use super::{Namespace, components, join};
use crate::corpus::{Corpus, ROOT};

/// The two maps.
pub(crate) struct RwLockAhash(CachePadded<RwLock<Maps>>);

struct Maps {
    by_name: HashMap<Key, Inode, RandomState>,
    by_ino: HashMap<u64, (u64, Arc<[u8]>), RandomState>,
}

/// The inode of a name.
struct Inode {
    ino: u64,
    nlookup: AtomicU64,
}

/// A name in a directory.
#[derive(Hash, PartialEq, Eq)]
pub(super) struct Key {
    pub(super) parent: u64,
    pub(super) name: Arc<[u8]>,
}

/// The same, borrowed.
#[derive(Hash)]
pub(super) struct Probe<'a> {
    pub(super) parent: u64,
    pub(super) name: &'a [u8],
}

impl Equivalent<Key> for Probe<'_> {
    #[inline]
    fn equivalent(&self, key: &Key) -> bool {
        self.parent == key.parent && *self.name == *key.name
    }
}

impl RwLockAhash {
    /// Returns the maps of `corpus`.
    pub(crate) fn load(corpus: &Corpus) -> RwLockAhash {
        let mut maps = Maps {
            by_name: HashMap::with_capacity_and_hasher(corpus.len(), RandomState::new()),
            by_ino: HashMap::with_capacity_and_hasher(corpus.len(), RandomState::new()),
        };
        for ino in corpus.inodes() {
            let name: Arc<[u8]> = corpus.name(ino).into();
            let parent = corpus.parent(ino);
            maps.by_ino.insert(ino, (parent, Arc::clone(&name)));
            if ino != ROOT {
                let inode = Inode { ino, nlookup: AtomicU64::new(1) };
                maps.by_name.insert(Key { parent, name }, inode);
            }
        }
        RwLockAhash(CachePadded::new(RwLock::new(maps)))
    }

    #[inline]
    fn read(&self) -> RwLockReadGuard<'_, Maps> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Namespace for RwLockAhash {
    fn variant(&self) -> &'static str {
        "rwlock-ahash"
    }

    #[inline]
    fn lookup(&self, parent: u64, name: &[u8]) -> Option<u64> {
        let maps = self.read();
        let inode = maps.by_name.get(&Probe { parent, name })?;
        // ORDERING: Relaxed. A count; the lock orders everything else.
        inode.nlookup.fetch_add(1, Ordering::Relaxed);
        Some(inode.ino)
    }

    #[inline]
    fn path(&self, ino: u64) -> Option<Vec<u8>> {
        let maps = self.read();
        let mut names: Vec<&[u8]> = Vec::with_capacity(16);
        let mut at = ino;
        while at != ROOT {
            let (parent, name) = maps.by_ino.get(&at)?;
            names.push(name);
            at = *parent;
        }
        Some(join(&names))
    }

    #[inline]
    fn walk(&self, path: &[u8]) -> Option<u64> {
        let maps = self.read();
        components(path)
            .try_fold(ROOT, |parent, name| Some(maps.by_name.get(&Probe { parent, name })?.ino))
    }
}
