//! Maps from whole paths to inode numbers, of the crates `dashmap`, `papaya` and `scc`.
//!
//! Such a map needs one step for a path of any length. So the table `lookup` compares a walk of
//! corewalk with the best of these maps. The maps only walk: a rename of a directory would have to
//! remove and insert every path below it.
//!
//! Source: the crates `dashmap`, `papaya` and `scc`.

use ahash::RandomState;

use super::Namespace;
use crate::corpus::Corpus;

/// A lock-free map.
pub(crate) type PapayaPath = papaya::HashMap<Box<[u8]>, u64, RandomState>;
/// A map with a lock per bucket.
pub(crate) type SccPath = scc::HashMap<Box<[u8]>, u64, RandomState>;
/// A map with a lock per shard.
pub(crate) type DashmapPath = dashmap::DashMap<Box<[u8]>, u64, RandomState>;

/// Returns a map of all paths of `corpus`.
pub(crate) fn papaya_path(corpus: &Corpus) -> PapayaPath {
    let map = PapayaPath::with_capacity_and_hasher(corpus.len(), RandomState::new());
    for ino in corpus.inodes() {
        map.pin().insert(corpus.path(ino).into(), ino);
    }
    map
}

/// Returns a map of all paths of `corpus`.
pub(crate) fn scc_path(corpus: &Corpus) -> SccPath {
    let map = SccPath::with_capacity_and_hasher(corpus.len(), RandomState::new());
    for ino in corpus.inodes() {
        let is_new = map.insert_sync(corpus.path(ino).into(), ino).is_ok();
        debug_assert!(is_new, "every entry has a path of its own");
    }
    map
}

/// Returns a map of all paths of `corpus`.
pub(crate) fn dashmap_path(corpus: &Corpus) -> DashmapPath {
    let map = DashmapPath::with_capacity_and_hasher(corpus.len(), RandomState::new());
    for ino in corpus.inodes() {
        map.insert(corpus.path(ino).into(), ino);
    }
    map
}

impl Namespace for PapayaPath {
    fn variant(&self) -> &'static str {
        "papaya-path"
    }

    #[inline]
    fn walk(&self, path: &[u8]) -> Option<u64> {
        self.pin().get(path).copied()
    }
}

impl Namespace for SccPath {
    fn variant(&self) -> &'static str {
        "scc-path"
    }

    #[inline]
    fn walk(&self, path: &[u8]) -> Option<u64> {
        self.read_sync(path, |_, ino| *ino)
    }
}

impl Namespace for DashmapPath {
    fn variant(&self) -> &'static str {
        "dashmap-path"
    }

    #[inline]
    fn walk(&self, path: &[u8]) -> Option<u64> {
        self.get(path).map(|ino| *ino)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_path_leads_to_its_entry_and_no_other_does() {
        let corpus = Corpus::collect(2000);
        let maps: [Box<dyn Namespace>; 3] = [
            Box::new(papaya_path(&corpus)),
            Box::new(scc_path(&corpus)),
            Box::new(dashmap_path(&corpus)),
        ];
        for map in maps {
            for ino in corpus.inodes() {
                assert_eq!(map.walk(&corpus.path(ino)), Some(ino), "{}", map.variant());
            }
            assert_eq!(map.walk(b"/usr/no-such-name"), None, "{}", map.variant());
        }
    }
}
