//! Tests of the tree of names: it has the wanted size, and each path leads to its entry.

use super::*;

/// A directory that a renamer moves there and back.
#[derive(Clone, Debug)]
pub(crate) struct Move {
    /// The inode number of the directory.
    pub ino: u64,
    /// The parent and the name of the directory before the rename.
    pub home: (u64, Vec<u8>),
    /// The parent and the name of the directory after the rename.
    pub away: (u64, Vec<u8>),
    /// The number of entries below the directory.
    pub descendants: u32,
}

impl Corpus {
    /// Returns the child of `parent` with this name.
    pub(crate) fn child(&self, parent: u64, name: &[u8]) -> Option<u64> {
        let mut children = self.children(parent);
        children.find(|&child| self.name(child) == name)
    }

    /// Returns true if `ino` is `ancestor` or below it.
    pub(crate) fn is_below(&self, ino: u64, ancestor: u64) -> bool {
        let mut at = ino;
        while at > ancestor {
            at = self.parent(at);
        }
        at == ancestor
    }

    /// Returns a rename for the tests: another parent and another name for the directory whose
    /// subtree is closest to a hundredth of all entries.
    pub(crate) fn movable(&self) -> Move {
        let mut below = vec![0_u32; self.entries.len()];
        for index in (1..self.entries.len()).rev() {
            below[self.entries[index].parent as usize] += below[index] + 1;
        }
        let wanted = (self.entries.len() / 100).max(2) as u32;
        let candidates = self.inodes().filter(|&ino| {
            self.is_directory(ino) && ino > SYNTHETIC && self.parent(ino) != SYNTHETIC
        });
        let ino = candidates
            .min_by_key(|&ino| below[ino as usize - 1].abs_diff(wanted))
            .expect("a tree has directories below its first two");
        Move {
            ino,
            home: (self.parent(ino), self.name(ino).to_vec()),
            away: (SYNTHETIC, b"moved-away".to_vec()),
            descendants: below[ino as usize - 1],
        }
    }
}

#[test]
fn tree_of_any_size_has_as_many_entries_as_wanted() {
    for wanted in [4, 50, 1000] {
        let corpus = Corpus::collect(wanted);
        assert_eq!(corpus.len(), wanted);
    }
}

#[test]
fn child_of_every_entry_is_found_by_its_name() {
    let corpus = Corpus::collect(2000);
    for ino in corpus.inodes().skip(1) {
        assert!(corpus.parent(ino) < ino);
        assert_eq!(corpus.child(corpus.parent(ino), corpus.name(ino)), Some(ino));
    }
    assert_eq!(corpus.child(ROOT, b"no-such-name"), None);
}

#[test]
fn path_names_every_ancestor_once() {
    let corpus = Corpus::collect(2000);
    assert_eq!(corpus.path(ROOT), b"/");
    for ino in corpus.inodes().skip(1).step_by(37) {
        let mut at = ROOT;
        for name in corpus.path(ino)[1..].split(|&b| b == b'/') {
            at = corpus.child(at, name).expect("each part of a path exists");
        }
        assert_eq!(at, ino);
    }
}

#[test]
fn made_up_names_fill_a_tree_that_is_short_of_real_ones() {
    let root = Entry { parent: 0, children: 0..0, name: Box::default(), is_directory: true };
    let mut corpus = Corpus { entries: vec![root], made_up: 0 };
    corpus.push_children(0, &[(b"synthetic".to_vec(), true), (b"usr".to_vec(), true)]);
    corpus.make_up(20_000);
    assert_eq!((corpus.len(), corpus.made_up), (20_000, 19_997));
    let mut lengths: Vec<usize> = vec![];
    let mut depths = 0;
    for ino in corpus.inodes().skip(3) {
        assert_eq!(corpus.child(corpus.parent(ino), corpus.name(ino)), Some(ino));
        lengths.push(corpus.name(ino).len());
        depths += corpus.path(ino).iter().filter(|&&byte| byte == b'/').count();
    }
    let mean = lengths.iter().sum::<usize>() as f64 / lengths.len() as f64;
    assert!((18.0..=20.0).contains(&mean), "{mean} bytes");
    let depth = depths as f64 / lengths.len() as f64;
    assert!((5.5..=7.0).contains(&depth), "{depth} levels");
    assert!(lengths.iter().any(|&len| len > 40) && lengths.contains(&4));
}

#[test]
fn moved_directory_does_not_go_below_itself() {
    let corpus = Corpus::collect(2000);
    let moved = corpus.movable();
    assert!(moved.descendants > 0);
    assert!(!corpus.is_below(moved.away.0, moved.ino));
    assert_ne!(moved.home.0, moved.away.0);
}
