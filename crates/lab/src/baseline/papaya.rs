//! Two lock-free maps: the fastest readers a crate gives today.
//!
//! The same two maps as `rwlock-ahash`, without the lock. Each map is exact by itself; what is
//! missing is an instant that both share, and one that all components of a path share.
//!
//! # What it refuses
//! Consistency: a path can mix names of different instants (68 of 22 million beside a renamer, when
//! it was counted). Its wrong answers are reported.
//!
//! Source: the crate `papaya`.

use std::sync::Arc;

use ahash::RandomState;
use corewalk_base::primitives::atomic::{AtomicU64, Ordering};
use papaya::HashMap;

use super::rwlock_ahash::{Key, Probe};
use super::{Namespace, components, join};
use crate::corpus::{Corpus, ROOT};

/// The two maps.
pub(crate) struct Papaya {
    by_name: HashMap<Key, Inode, RandomState>,
    by_ino: HashMap<u64, (u64, Arc<[u8]>), RandomState>,
}

struct Inode {
    ino: u64,
    nlookup: AtomicU64,
}

impl Papaya {
    /// Returns the maps of `corpus`.
    pub(crate) fn load(corpus: &Corpus) -> Papaya {
        let table = Papaya {
            by_name: HashMap::with_capacity_and_hasher(corpus.len(), RandomState::new()),
            by_ino: HashMap::with_capacity_and_hasher(corpus.len(), RandomState::new()),
        };
        let (by_name, by_ino) = (table.by_name.pin(), table.by_ino.pin());
        for ino in corpus.inodes() {
            let name: Arc<[u8]> = corpus.name(ino).into();
            let parent = corpus.parent(ino);
            by_ino.insert(ino, (parent, Arc::clone(&name)));
            if ino != ROOT {
                by_name.insert(Key { parent, name }, Inode { ino, nlookup: AtomicU64::new(1) });
            }
        }
        drop((by_name, by_ino));
        table
    }
}

impl Namespace for Papaya {
    fn variant(&self) -> &'static str {
        "papaya"
    }

    #[inline]
    fn lookup(&self, parent: u64, name: &[u8]) -> Option<u64> {
        let by_name = self.by_name.pin();
        let inode = by_name.get(&Probe { parent, name })?;
        // ORDERING: Relaxed. A count.
        inode.nlookup.fetch_add(1, Ordering::Relaxed);
        Some(inode.ino)
    }

    #[inline]
    fn path(&self, ino: u64) -> Option<Vec<u8>> {
        let by_ino = self.by_ino.pin();
        let mut names: Vec<&[u8]> = Vec::with_capacity(16);
        let mut at = ino;
        while at != ROOT {
            let (parent, name) = by_ino.get(&at)?;
            names.push(name);
            at = *parent;
        }
        Some(join(&names))
    }

    #[inline]
    fn walk(&self, path: &[u8]) -> Option<u64> {
        let by_name = self.by_name.pin();
        components(path)
            .try_fold(ROOT, |parent, name| Some(by_name.get(&Probe { parent, name })?.ino))
    }

    fn rename(&self, from: (u64, &[u8]), to: (u64, &[u8])) -> bool {
        let (by_name, by_ino) = (self.by_name.pin(), self.by_ino.pin());
        let old = Probe { parent: from.0, name: from.1 };
        let Some(inode) = by_name.get(&old) else { return false };
        let name: Arc<[u8]> = to.1.into();
        // ORDERING: Relaxed. A count.
        let nlookup = AtomicU64::new(inode.nlookup.load(Ordering::Relaxed));
        let ino = inode.ino;
        by_name.insert(Key { parent: to.0, name: Arc::clone(&name) }, Inode { ino, nlookup });
        by_ino.insert(ino, (to.0, name));
        by_name.remove(&old).is_some()
    }

    fn is_exact(&self) -> bool {
        false
    }
}
