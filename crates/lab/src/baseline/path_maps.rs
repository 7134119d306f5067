//! Maps from whole paths to inode numbers: the concurrent hash maps of the crates `dashmap`,
//! `papaya` and `scc`.
//!
//! A hash map from whole paths to inode numbers finds a path of any length in one step. So the
//! table `lookup` compares walks with it. The maps can only walk: to rename a directory, a map
//! would have to remove and insert every path below it.
//!
//! Source: the crates `dashmap`, `papaya` and `scc`.

use ahash::RandomState;

use super::Namespace;
use crate::corpus::Corpus;

/// A concurrent map from the paths of a tree to inode numbers. `get` looks a path up.
struct PathMap<F> {
    variant: &'static str,
    get: F,
}

impl<F: Fn(&[u8]) -> Option<u64> + Send + Sync> Namespace for PathMap<F> {
    fn variant(&self) -> &'static str {
        self.variant
    }

    #[inline]
    fn walk(&self, path: &[u8]) -> Option<u64> {
        (self.get)(path)
    }
}

/// Returns a namespace whose walks look up the whole path by `get`.
fn boxed<F>(variant: &'static str, get: F) -> Box<dyn Namespace>
where
    F: Fn(&[u8]) -> Option<u64> + Send + Sync + 'static,
{
    Box::new(PathMap { variant, get })
}

fn entries(corpus: &Corpus) -> impl Iterator<Item = (Box<[u8]>, u64)> {
    corpus.inodes().map(|ino| (corpus.path(ino).into(), ino))
}

/// Returns a lock-free map.
pub(crate) fn papaya_path(corpus: &Corpus) -> Box<dyn Namespace> {
    let map = papaya::HashMap::with_capacity_and_hasher(corpus.len(), RandomState::new());
    for (path, ino) in entries(corpus) {
        map.pin().insert(path, ino);
    }
    boxed("papaya-path", move |path| map.pin().get(path).copied())
}

/// Returns a map with a lock per bucket.
pub(crate) fn scc_path(corpus: &Corpus) -> Box<dyn Namespace> {
    let map = scc::HashMap::with_capacity_and_hasher(corpus.len(), RandomState::new());
    for (path, ino) in entries(corpus) {
        let _ = map.insert_sync(path, ino);
    }
    boxed("scc-path", move |path| map.read_sync(path, |_, ino| *ino))
}

/// Returns a map with a lock per shard.
pub(crate) fn dashmap_path(corpus: &Corpus) -> Box<dyn Namespace> {
    let map = dashmap::DashMap::with_capacity_and_hasher(corpus.len(), RandomState::new());
    for (path, ino) in entries(corpus) {
        map.insert(path, ino);
    }
    boxed("dashmap-path", move |path| map.get(path).map(|ino| *ino))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_path_leads_to_its_entry_and_no_other_does() {
        let corpus = Corpus::collect(2000);
        for map in [papaya_path(&corpus), scc_path(&corpus), dashmap_path(&corpus)] {
            for ino in corpus.inodes() {
                assert_eq!(map.walk(&corpus.path(ino)), Some(ino), "{}", map.variant());
            }
            assert_eq!(map.walk(b"/usr/no-such-name"), None, "{}", map.variant());
        }
    }
}
