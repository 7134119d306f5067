//! corewalk itself as a variant.
//!
//! The calls are those of a FUSE server: an inode number and a name come in, an inode number with
//! one more lookup on it goes out ([`corewalk::Vfs::inode`], [`corewalk::Vfs::lookup`],
//! `into_lookups`). Everything is looked up once before measuring, and stays in the cache because
//! the client holds it; the back end counts what it is asked, and must not be asked again.
//!
//! Source: `corewalk::vfs`.

use std::sync::Arc;

use corewalk::{Cred, FsStruct, Name, RenameMode, Vfs, VfsOptions, WalkFlags};

use crate::baseline::Namespace;
use crate::corpus::{Corpus, ROOT};
use crate::index::Index;
use crate::lane::{Lane, Op, Stop, Tally};

/// Bytes of cache: more than the largest tree takes, so that nothing is evicted.
const CACHE_BYTES: u64 = 4 << 30;

/// A namespace with a tree in its cache.
pub(crate) struct Ours {
    vfs: Arc<Vfs>,
    cred: Cred,
}

impl Ours {
    /// Returns a namespace in which all of `corpus` is cached, the move of its renamer included.
    ///
    /// # Errors
    /// What the namespace says; it has no reason to fail.
    pub(crate) fn load(corpus: &Arc<Corpus>) -> anyhow::Result<Ours> {
        let entries_max = u32::try_from(4 * corpus.len() + 4096)?;
        let options = VfsOptions { cache_bytes: CACHE_BYTES, entries_max, hash_seed: None };
        let vfs = Vfs::new(Arc::new(Index::new(corpus)), options)?;
        let ours = Ours { vfs, cred: Cred::prechecked(0, 0) };
        ours.vfs.root().into_lookups();
        for ino in corpus.inodes().filter(|&ino| ino != ROOT) {
            let found = ours.lookup(corpus.parent(ino), corpus.name(ino));
            anyhow::ensure!(found == Some(ino), "entry {ino} was not found");
        }
        let moved = corpus.movable();
        let (home, away) = ((moved.home.0, &moved.home.1[..]), (moved.away.0, &moved.away.1[..]));
        anyhow::ensure!(ours.rename(home, away) && ours.rename(away, home), "a move failed");
        Ok(ours)
    }

    /// Asks for whole paths, with the root taken once, as a server has it.
    fn walks(&self, lane: &Lane, first: usize, stop: &Stop) -> Tally {
        let root = self.vfs.root_path();
        let at = FsStruct { cwd: root.clone(), root };
        lane.ask(first, stop, |target, path| {
            let found = self.vfs.resolve_path(&self.cred, &at, path, WalkFlags::empty());
            found.is_ok_and(|found| found.ino == target.ino)
        })
    }
}

impl Namespace for Ours {
    fn variant(&self) -> &'static str {
        "corewalk"
    }

    #[inline]
    fn lookup(&self, parent: u64, name: &[u8]) -> Option<u64> {
        self.vfs.lookup_number(&self.cred, parent, name).ok()
    }

    #[inline]
    fn path(&self, ino: u64) -> Option<Vec<u8>> {
        self.vfs.path_of_number(ino).ok()
    }

    fn walk(&self, path: &[u8]) -> Option<u64> {
        let root = self.vfs.root_path();
        let at = FsStruct { cwd: root.clone(), root };
        let found = self.vfs.resolve_path(&self.cred, &at, path, WalkFlags::empty());
        found.ok().map(|found| found.ino)
    }

    fn rename(&self, from: (u64, &[u8]), to: (u64, &[u8])) -> bool {
        let (Ok(old), Ok(new)) = (self.vfs.inode(from.0), self.vfs.inode(to.0)) else {
            return false;
        };
        let (Ok(old_name), Ok(new_name)) = (Name::new(from.1), Name::new(to.1)) else {
            return false;
        };
        let (from, to) = ((&old, old_name), (&new, new_name));
        self.vfs.rename(&self.cred, from, to, RenameMode::NoReplace).is_ok()
    }

    fn misses(&self) -> u64 {
        self.vfs.stats().misses
    }

    fn arena_bytes(&self) -> u64 {
        self.vfs.stats().bytes
    }

    fn work(&self, op: Op, lane: &Lane, first: usize, stop: &Stop) -> Tally {
        match op {
            Op::Lookup => lane.ask(first, stop, |target, name| {
                self.lookup(target.parent, name) == Some(target.ino)
            }),
            Op::Walk => self.walks(lane, first, stop),
            Op::Path => {
                let mut turn = 0_u64;
                lane.ask(first, stop, move |target, expected| {
                    turn += 1;
                    lane.is_path(target, expected, self.path(target.ino).as_deref(), turn)
                })
            }
        }
    }
}
