//! The designs with which the tables `lookup` and `path` compare corewalk. All of these variants
//! implement one trait.
//!
//! A variant answers three kinds of questions (`questions::Op`): lookups of a name, walks of a
//! path, and the path of an inode. Each variant has its own compiled copy of the measuring loop, so
//! no virtual call is part of an operation.
//!
//! | variant | design |
//! |---|---|
//! | `rwlock-ahash` | one lock over two flat maps: the simple strong design, and the baseline |
//! | `libfuse-node` | one mutex over a node table |
//! | `dashmap-path`, `papaya-path`, `scc-path` | concurrent maps from whole paths, for walks only |
//! | `linux` | the host kernel, through system calls |
//!
//! Source: the inode tables of libfuse (`lib/fuse.c`), SeaweedFS (`weed/mount/inode_to_path.go`),
//! mountpoint-s3 (`superblock.rs`) and fuse_mt (`inode_table.rs`), and concurrent maps of other
//! crates.

mod libfuse_node;
mod linux;
mod path_maps;
mod rwlock_ahash;

pub(crate) use linux::{Linux, path_of_fd, syscall_ns};

use anyhow::bail;
use corewalk::Stats;

use crate::corpus::Corpus;
use crate::crew::{Laps, Turn};
use crate::ours::{OurTable, Ours};
use crate::questions::{Op, Questions, is_path};
use crate::race::{Reader, Writer};
use libfuse_node::LibfuseNode;
use path_maps::{dashmap_path, papaya_path, scc_path};
use rwlock_ahash::RwLockAhash;

/// A table of names and inodes, loaded with a tree.
pub(crate) trait Namespace: Send + Sync {
    /// Returns the name of this variant in the result rows.
    fn variant(&self) -> &'static str;

    /// Returns the inode number of `name` in the directory `parent`, and adds one client lookup
    /// (`nlookup`).
    fn lookup(&self, _parent: u64, _name: &[u8]) -> Option<u64> {
        None
    }

    /// Returns the path of an inode.
    fn path(&self, _ino: u64) -> Option<Vec<u8>> {
        None
    }

    /// Returns the inode number at an absolute path.
    fn walk(&self, _path: &[u8]) -> Option<u64> {
        None
    }

    /// Renames a file to a name that does not exist. Returns false if `from` does not exist.
    fn rename(&self, _from: (u64, &[u8]), _to: (u64, &[u8])) -> bool {
        false
    }

    /// Returns the inode number of an entry in this implementation. `ino` is its number in the tree
    /// of names (`Corpus`).
    fn number(&self, ino: u64) -> u64 {
        ino
    }

    /// Prepares the calling thread for its operations.
    fn begin(&self) {}

    /// Returns the counters of this implementation. They count lookups sent to its file system,
    /// bytes in use, and restarts of walks or path translations because of a rename. All are 0
    /// without counters.
    fn stats(&self) -> Stats {
        Stats::default()
    }

    /// Translates the targets of `reader` to paths until the race is over.
    fn translate(&self, reader: &Reader, turn: Turn<'_>) -> Laps {
        self.begin();
        reader.ask(turn, |ino| self.path(ino))
    }

    /// Renames the file of `writer` until the race is over.
    fn rename_until(&self, writer: &Writer, turn: Turn<'_>) -> Laps {
        writer.go(turn, |from, to| self.rename(from, to))
    }

    /// Does the operations in `questions`, from number `first` on, until the slice is over.
    fn work(&self, op: Op, questions: &Questions, first: usize, turn: Turn<'_>) -> Laps {
        let mut asked = 0_u64;
        match op {
            Op::Lookup => questions.ask(first, turn, |target, name| {
                self.lookup(target.parent, name) == Some(self.number(target.ino))
            }),
            Op::Walk => self.walks(questions, first, turn),
            Op::Path => questions.ask(first, turn, |target, expected| {
                asked += 1;
                is_path(expected, self.path(target.ino).as_deref(), asked)
            }),
        }
    }

    /// Resolves the whole paths in `questions` for [`Namespace::work`].
    fn walks(&self, questions: &Questions, first: usize, turn: Turn<'_>) -> Laps {
        questions.ask(first, turn, |target, path| self.walk(path) == Some(self.number(target.ino)))
    }
}

/// Returns the loaded table of `variant`.
///
/// # Errors
/// There is no such variant, or it cannot be loaded.
pub(crate) fn load(variant: &str, corpus: &Corpus) -> anyhow::Result<Box<dyn Namespace>> {
    Ok(match variant {
        "corewalk" => Box::new(Ours::load(corpus)?),
        "corewalk-table" => Box::new(OurTable::load(corpus)?),
        "rwlock-ahash" => Box::new(RwLockAhash::load(corpus)),
        "libfuse-node" => Box::new(LibfuseNode::load(corpus)),
        "dashmap-path" => dashmap_path(corpus),
        "papaya-path" => papaya_path(corpus),
        "scc-path" => scc_path(corpus),
        _ => bail!("no such variant"),
    })
}

/// Joins names, in order from the leaf to the root, to an absolute path.
///
/// The length of the path is computed first, so the path is allocated only once.
pub(crate) fn join(names: &[&[u8]]) -> Vec<u8> {
    let mut path =
        Vec::with_capacity(names.iter().map(|name| name.len() + 1).sum::<usize>().max(1));
    for name in names.iter().rev() {
        path.push(b'/');
        path.extend_from_slice(name);
    }
    if path.is_empty() {
        path.push(b'/');
    }
    path
}

/// Returns the components of an absolute path.
pub(crate) fn components(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    path.split(|&byte| byte == b'/').filter(|name| !name.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the variants that do all operations on the whole tree.
    fn all(corpus: &Corpus) -> [Box<dyn Namespace>; 4] {
        ["corewalk", "corewalk-table", "rwlock-ahash", "libfuse-node"]
            .map(|variant| load(variant, corpus).expect("the tree fits"))
    }

    #[test]
    fn every_variant_answers_every_question_about_the_tree() {
        let corpus = Corpus::collect(2000);
        for table in all(&corpus) {
            for ino in corpus.inodes().skip(1) {
                let (parent, name) = (corpus.parent(ino), corpus.name(ino));
                assert_eq!(table.lookup(parent, name), Some(ino), "{}", table.variant());
                let path = corpus.path(ino);
                assert_eq!(table.path(ino).as_deref(), Some(&path[..]), "{}", table.variant());
                assert_eq!(table.walk(&path), Some(ino), "{}", table.variant());
            }
            assert_eq!(table.lookup(1, b"no-such-name"), None, "{}", table.variant());
            assert_eq!(table.walk(b"/usr/no-such-name"), None, "{}", table.variant());
            assert_eq!(table.path(1 << 40), None, "{}", table.variant());
        }
    }

    #[test]
    fn path_of_no_names_is_the_root() {
        assert_eq!(join(&[]), b"/");
        assert_eq!(join(&[b"b", b"a"]), b"/a/b");
        assert_eq!(components(b"//a/b/").collect::<Vec<_>>(), [b"a", b"b"]);
    }
}
