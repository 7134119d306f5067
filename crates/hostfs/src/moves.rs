//! The last renames, for paths that are out of date for an instant.
//!
//! A rename is first made on the host and then in the cache, which readers are answered from all the
//! while. In between the cache gives an old path for whatever was moved, and for all that lies
//! below. Waiting for the cache would mean a lock across its work; instead the last renames are kept,
//! and a path that leads nowhere is tried again as each of them would have it, and as two of them
//! would. Whatever is found is checked by its number, so that a rename that is long over, or has not
//! been made at all, costs a look and nothing else: that is why a rename is noted before it is made,
//! and whoever no longer finds the old name knows the new one.
//!
//! Exchanges are two moves. The oldest are dropped: with more than [`MOVES_MAX`] renames under way at
//! once the caller asks the cache again, which by then has some of them.

use std::collections::{HashSet, VecDeque};

use corewalk_sync::Mutex;

/// Renames that are remembered.
const MOVES_MAX: usize = 128;
/// Paths that one path may have become, at most.
const SUCCESSORS_MAX: usize = 64;

/// The last renames.
#[derive(Default)]
pub(crate) struct Moves {
    list: Mutex<VecDeque<(Vec<u8>, Vec<u8>)>>,
}

impl Moves {
    /// Notes that `from` is about to become `to`.
    pub(crate) fn add(&self, from: Vec<u8>, to: Vec<u8>) {
        let mut list = self.list.lock();
        if list.len() == MOVES_MAX {
            list.pop_front();
        }
        list.push_back((from, to));
    }

    /// Returns the paths that `path` may have become, the latest first.
    pub(crate) fn collect_successors(&self, path: &[u8]) -> Vec<Vec<u8>> {
        let list = self.list.lock();
        // The same few names moving to and fro fill the list with the same few paths.
        let mut seen = HashSet::from([path.to_vec()]);
        let mut step = |path: &[u8]| -> Vec<Vec<u8>> {
            let all = list.iter().rev().filter_map(|(from, to)| successor(path, from, to));
            all.filter(|next| seen.insert(next.clone())).collect()
        };
        let mut found = step(path);
        for i in 0..found.len() {
            let further = step(&found[i]);
            found.extend(further);
        }
        found.truncate(SUCCESSORS_MAX);
        found
    }
}

/// Returns what becomes of `path` when `from` is renamed to `to`, if that concerns it.
fn successor(path: &[u8], from: &[u8], to: &[u8]) -> Option<Vec<u8>> {
    let rest = path.strip_prefix(from)?;
    (rest.is_empty() || rest[0] == b'/').then(|| [to, rest].concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn successor_is_of_the_name_itself_or_of_what_lies_below() {
        assert_eq!(successor(b"/a", b"/a", b"/b").as_deref(), Some(&b"/b"[..]));
        assert_eq!(successor(b"/a/c", b"/a", b"/b").as_deref(), Some(&b"/b/c"[..]));
        assert_eq!(successor(b"/ab", b"/a", b"/b"), None);
    }

    #[test]
    fn two_renames_under_way_are_put_together() {
        let moves = Moves::default();
        moves.add(b"/a".to_vec(), b"/x".to_vec());
        moves.add(b"/a/b".to_vec(), b"/a/c".to_vec());
        moves.add(b"/x/b".to_vec(), b"/x/c".to_vec());
        let found = moves.collect_successors(b"/a/b/f");
        assert_eq!(found, [&b"/a/c/f"[..], b"/x/b/f", b"/x/c/f"]);
    }

    #[test]
    fn oldest_move_is_forgotten() {
        let moves = Moves::default();
        for i in 0..=MOVES_MAX {
            moves.add(format!("/{i}").into_bytes(), b"/to".to_vec());
        }
        assert!(moves.collect_successors(b"/0").is_empty());
        assert_eq!(moves.collect_successors(b"/1/f"), [b"/to/f".to_vec()]);
    }
}
