//! Concurrent maps from whole paths to inode numbers, and nothing else.
//!
//! One probe answers a walk of any depth. That is the least a walk can cost, so the tables hold
//! corewalk's against it; what such a map costs as soon as something is renamed shows in
//! `dashmap-path`, which has the other half of a namespace, too.
//!
//! | variant | map |
//! |---|---|
//! | `papaya-path` | `papaya::HashMap`: lock-free, with reclamation |
//! | `scc-path` | `scc::HashMap`: a lock per bucket |
//!
//! # What it refuses
//! Everything but a walk: these maps know no parents, and a directory that is moved would have to be
//! entered again with all below it.
//!
//! Source: the crates `papaya` and `scc`.

use ahash::RandomState;

use super::Namespace;
use crate::corpus::Corpus;

/// A lock-free map.
pub(crate) struct PapayaPath(papaya::HashMap<Box<[u8]>, u64, RandomState>);

/// A map with a lock per bucket.
pub(crate) struct SccPath(scc::HashMap<Box<[u8]>, u64, RandomState>);

impl PapayaPath {
    /// Returns the map of `corpus`.
    pub(crate) fn load(corpus: &Corpus) -> PapayaPath {
        let map = papaya::HashMap::with_capacity_and_hasher(corpus.len(), RandomState::new());
        let pinned = map.pin();
        corpus.inodes().for_each(|ino| {
            pinned.insert(corpus.path(ino).into(), ino);
        });
        drop(pinned);
        PapayaPath(map)
    }
}

impl SccPath {
    /// Returns the map of `corpus`.
    pub(crate) fn load(corpus: &Corpus) -> SccPath {
        let map = scc::HashMap::with_capacity_and_hasher(corpus.len(), RandomState::new());
        for ino in corpus.inodes() {
            let is_new = map.insert_sync(corpus.path(ino).into(), ino).is_ok();
            debug_assert!(is_new, "every entry has a path of its own");
        }
        SccPath(map)
    }
}

impl Namespace for PapayaPath {
    fn variant(&self) -> &'static str {
        "papaya-path"
    }

    fn lookup(&self, _parent: u64, _name: &[u8]) -> Option<u64> {
        None
    }

    fn path(&self, _ino: u64) -> Option<Vec<u8>> {
        None
    }

    #[inline]
    fn walk(&self, path: &[u8]) -> Option<u64> {
        self.0.pin().get(path).copied()
    }

    fn rename(&self, _from: (u64, &[u8]), _to: (u64, &[u8])) -> bool {
        false
    }
}

impl Namespace for SccPath {
    fn variant(&self) -> &'static str {
        "scc-path"
    }

    fn lookup(&self, _parent: u64, _name: &[u8]) -> Option<u64> {
        None
    }

    fn path(&self, _ino: u64) -> Option<Vec<u8>> {
        None
    }

    #[inline]
    fn walk(&self, path: &[u8]) -> Option<u64> {
        self.0.read_sync(path, |_, ino| *ino)
    }

    fn rename(&self, _from: (u64, &[u8]), _to: (u64, &[u8])) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_path_leads_to_its_entry_and_no_other_does() {
        let corpus = Corpus::collect(2000);
        let maps: [Box<dyn Namespace>; 2] =
            [Box::new(PapayaPath::load(&corpus)), Box::new(SccPath::load(&corpus))];
        for map in maps {
            for ino in corpus.inodes() {
                assert_eq!(map.walk(&corpus.path(ino)), Some(ino), "{}", map.variant());
            }
            assert_eq!(map.walk(b"/usr/no-such-name"), None, "{}", map.variant());
        }
    }
}
