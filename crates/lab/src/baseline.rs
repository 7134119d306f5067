//! What every variant of the tables `lookup` and `path` can do, and the designs it is compared with.
//!
//! A variant answers three questions (`lane::Op`) and renames. The loop that asks is generated once
//! per variant, so that no virtual call stands between two operations; only a whole slice of work
//! is called through the trait object.
//!
//! | variant | design |
//! |---|---|
//! | `rwlock-ahash` | one lock over two flat maps: the simple strong design, and the baseline |
//! | `libfuse-node` | one mutex over a chained node table |
//! | `dashmap-path`, `papaya-path`, `scc-path` | concurrent maps from whole paths, for walks only |
//! | `linux` | the host kernel, through system calls |
//!
//! Source: the inode tables of libfuse (`lib/fuse.c`), SeaweedFS (`weed/mount/inode_to_path.go`),
//! mountpoint-s3 (`superblock.rs`) and fuse_mt (`inode_table.rs`), and the crates they could use.

mod libfuse_node;
mod linux;
mod path_maps;
mod rwlock_ahash;

pub(crate) use libfuse_node::LibfuseNode;
pub(crate) use linux::{Cwd, Linux, getcwd, go_to, syscall_ns};
pub(crate) use path_maps::{dashmap_path, papaya_path, scc_path};
pub(crate) use rwlock_ahash::RwLockAhash;

use crate::crew::{Laps, Turn};
use crate::lane::{Lane, Op};

/// A table of names and inodes, loaded with a tree.
pub(crate) trait Namespace: Send + Sync {
    /// Returns the name in the rows.
    fn variant(&self) -> &'static str;

    /// Returns what `name` in the directory `parent` refers to, and takes one reference on it for
    /// the client.
    fn lookup(&self, _parent: u64, _name: &[u8]) -> Option<u64> {
        None
    }

    /// Returns the path of an inode.
    fn path(&self, _ino: u64) -> Option<Vec<u8>> {
        None
    }

    /// Returns what an absolute path leads to.
    fn walk(&self, _path: &[u8]) -> Option<u64> {
        None
    }

    /// Moves a name. The target does not exist. Returns false if `from` does not either.
    fn rename(&self, _from: (u64, &[u8]), _to: (u64, &[u8])) -> bool {
        false
    }

    /// Returns the number that answers give for an entry of the tree.
    fn number(&self, ino: u64) -> u64 {
        ino
    }

    /// Returns true if the design promises right answers while names move. One that does not has
    /// its wrong answers reported; one that does fails the run with the first.
    fn is_exact(&self) -> bool {
        true
    }

    /// Returns how often something behind the table was asked. It must not move while measuring.
    fn misses(&self) -> u64 {
        0
    }

    /// Returns the bytes of type-stable memory that the design counts as its own, if it has any.
    fn arena_bytes(&self) -> u64 {
        0
    }

    /// Gets the calling thread ready to ask.
    fn begin(&self) {}

    /// Asks the questions of `lane` from `first` on until the slice is over.
    fn work(&self, op: Op, lane: &Lane, first: usize, turn: Turn) -> Laps {
        ask(self, op, lane, first, turn)
    }
}

/// Asks the questions of `lane`, as [`Namespace::work`] does.
#[inline]
pub(crate) fn ask<N: Namespace + ?Sized>(
    table: &N,
    op: Op,
    lane: &Lane,
    first: usize,
    turn: Turn,
) -> Laps {
    match op {
        Op::Lookup => lane.ask(first, turn, |target, name| {
            table.lookup(target.parent, name) == Some(table.number(target.ino))
        }),
        Op::Walk => {
            lane.ask(first, turn, |target, path| table.walk(path) == Some(table.number(target.ino)))
        }
        Op::Path => {
            let mut asked = 0_u64;
            lane.ask(first, turn, move |target, expected| {
                asked += 1;
                lane.is_path(target, expected, table.path(target.ino).as_deref(), asked)
            })
        }
    }
}

/// Appends names to a path from its leaf to the root, and returns it the right way round.
///
/// The names are collected first, so that the path is allocated once with its length.
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
pub(crate) mod tests {
    use super::*;
    use crate::corpus::{Corpus, Move};
    use crate::lane::Stop;
    use crate::ours::Ours;
    use corewalk_base::primitives::{Arc, thread};

    /// Returns every variant that holds its own names.
    pub(crate) fn all(corpus: &Arc<Corpus>) -> Vec<Box<dyn Namespace>> {
        vec![
            Box::new(Ours::load(corpus).expect("the tree fits")),
            Box::new(RwLockAhash::load(corpus)),
            Box::new(LibfuseNode::load(corpus)),
        ]
    }

    #[test]
    fn every_variant_answers_every_question_about_the_tree() {
        let corpus = Arc::new(Corpus::collect(2000));
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
    fn every_variant_moves_a_directory_with_all_below_it() {
        let corpus = Arc::new(Corpus::collect(2000));
        let moved = corpus.movable();
        let below = corpus
            .inodes()
            .find(|&ino| ino != moved.ino && corpus.is_below(ino, moved.ino))
            .expect("the directory has entries");
        let home = corpus.path(below);
        let tail = &home[corpus.path(moved.ino).len()..];
        let away = [b"/synthetic/moved-away", tail].concat();
        for table in all(&corpus) {
            let variant = table.variant();
            let (old, new) = ((moved.home.0, &moved.home.1[..]), (moved.away.0, &moved.away.1[..]));
            assert!(table.rename(old, new), "{variant}");
            assert_eq!(table.path(below).as_deref(), Some(&away[..]), "{variant}");
            assert_eq!(table.walk(&away), Some(below), "{variant}");
            assert_eq!(table.walk(&home), None, "{variant}");
            assert_eq!(table.lookup(old.0, old.1), None, "{variant}");
            assert_eq!(table.lookup(new.0, new.1), Some(moved.ino), "{variant}");
            assert!(!table.rename(old, new), "{variant}");
            assert!(table.rename(new, old), "{variant}");
            assert_eq!(table.path(below).as_deref(), Some(&home[..]), "{variant}");
        }
    }

    /// Trap T1. A directory is moved away, renamed there,
    /// renamed back and moved home, again and again; its other name at home never exists, so a
    /// translation that mixes two instants is caught.
    #[test]
    fn path_of_every_exact_variant_existed_at_one_instant() {
        let corpus = Arc::new(Corpus::collect(3000));
        let moved = corpus.movable();
        let inner = corpus
            .inodes()
            .find(|&ino| corpus.parent(ino) == moved.ino)
            .expect("the directory has entries");
        for table in all(&corpus).into_iter().filter(|table| table.is_exact()) {
            storm(&*table, &corpus, &moved, inner);
        }
    }

    /// Translates `inner` while it and the directory it is in are renamed in turn.
    fn storm(table: &dyn Namespace, corpus: &Corpus, moved: &Move, inner: u64) {
        const PATHS: usize = 300_000;
        // A renamer that gets no processor for a while is waited for, but not for ever.
        const PATHS_MAX: usize = 100 * PATHS;
        let name = corpus.name(inner);
        let home = corpus.path(inner);
        let under = |name: &[u8]| [b"/synthetic/moved-away/", name].concat();
        let right = [home, under(name), under(b"renamed")];
        let done = Stop::default();
        thread::scope(|scope| {
            scope.spawn(|| {
                let home = (moved.home.0, &moved.home.1[..]);
                let away = (moved.away.0, &moved.away.1[..]);
                let (old, new) = ((moved.ino, name), (moved.ino, &b"renamed"[..]));
                while !done.is_set() {
                    for (from, to) in [(home, away), (old, new), (new, old), (away, home)] {
                        assert!(table.rename(from, to), "{}", table.variant());
                    }
                }
            });
            let mut seen = [0_u32; 3];
            let mut wrong = None;
            for turn in 0..PATHS_MAX {
                if turn >= PATHS && seen.iter().all(|&count| count > 0) {
                    break;
                }
                let path = table.path(inner).unwrap_or_default();
                match right.iter().position(|right| *right == path) {
                    Some(which) => seen[which] += 1,
                    None => {
                        wrong = Some(path);
                        break;
                    }
                }
            }
            done.set();
            let wrong = wrong.map(|path| path.escape_ascii().to_string());
            assert_eq!(wrong, None, "{}: a path that never existed", table.variant());
            assert!(seen.iter().all(|&count| count > 0), "{}: {seen:?}", table.variant());
        });
    }

    #[test]
    fn path_of_no_names_is_the_root() {
        assert_eq!(join(&[]), b"/");
        assert_eq!(join(&[b"b", b"a"]), b"/a/b");
        assert_eq!(components(b"//a/b/").collect::<Vec<_>>(), [b"a", b"b"]);
    }
}
