//! corewalk itself as a variant.
//!
//! The calls are those of a FUSE server: an inode number and a name come in, an inode number with
//! one more lookup on it goes out ([`corewalk::Vfs::inode`], [`corewalk::Vfs::lookup`],
//! `into_lookups`). Everything is looked up once before measuring, and stays in the cache because
//! the client holds it; the back end counts what it is asked, and must not be asked again.
//!
//! Source: `corewalk::vfs`.

use std::sync::Arc;

use corewalk::attr::mode;
use corewalk::{
    Cred, FileSystem, FsStruct, Make, Name, Removal, RenameMode, Vfs, VfsOptions, WalkFlags,
};

use crate::baseline::Namespace;
use crate::before::timed::timed_if_moved;
use crate::before::{Dentries, Kind, Passes};
use crate::corpus::{Corpus, ROOT};
use crate::index::Index;
use crate::job::User;
use crate::lane::{Lane, Op, Stop, Tally};
use crate::ramfs::Ramfs;

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
        let ours = Ours::over(Arc::new(Index::new(corpus)), 4 * corpus.len() + 4096)?;
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

    /// Returns a namespace with a root and room for `capacity` names, all of which stay in its cache: the
    /// back end keeps none.
    ///
    /// # Errors
    /// What the namespace says; it has no reason to fail.
    pub(crate) fn empty(capacity: usize) -> anyhow::Result<Ours> {
        Ours::over(Arc::new(Ramfs::new()), 4 * capacity + 65_536)
    }

    fn over(fs: Arc<dyn FileSystem>, entries_max: usize) -> anyhow::Result<Ours> {
        let entries_max = u32::try_from(entries_max)?;
        let options = VfsOptions { cache_bytes: CACHE_BYTES, entries_max, hash_seed: None };
        Ok(Ours { vfs: Vfs::new(fs, options)?, cred: Cred::prechecked(0, 0) })
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
        timed_if_moved(|| self.vfs.path_of_number(ino).ok(), || self.vfs.stats().fallbacks)
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

impl Dentries for Ours {
    #[inline]
    fn open(&self, path: &[u8]) -> Option<u64> {
        let root = self.vfs.root_path();
        let at = FsStruct { cwd: root.clone(), root };
        let place = self.vfs.walk(&self.cred, &at, path, WalkFlags::empty()).ok()?;
        Some(place.inode().ino())
    }

    fn look(&self, parent: u64, name: &[u8]) -> Option<u64> {
        let dir = self.vfs.inode(parent).ok()?;
        Some(self.vfs.lookup(&self.cred, &dir, Name::new(name).ok()?).ok()?.ino())
    }

    #[inline]
    fn create(&self, parent: u64, name: &[u8], kind: Kind) -> Option<u64> {
        let dir = self.vfs.inode(parent).ok()?;
        let mode = match kind {
            Kind::File => mode::S_IFREG | 0o644,
            Kind::Directory => mode::S_IFDIR | 0o755,
        };
        let what = Make::new(mode, 0, 0);
        let (_, attr) = self.vfs.make(&self.cred, &dir, Name::new(name).ok()?, what).ok()?;
        Some(attr.ino)
    }

    #[inline]
    fn unlink(&self, parent: u64, name: &[u8]) -> bool {
        let (Ok(dir), Ok(name)) = (self.vfs.inode(parent), Name::new(name)) else { return false };
        self.vfs.remove(&self.cred, &dir, name, Removal::Unlink).is_ok()
    }

    /// Does jobs with a root and a working directory of its own, as a process has them.
    fn be_user(&self, user: &User, stop: &Stop) -> Tally {
        let root = self.vfs.root_path();
        let at = FsStruct { cwd: root.clone(), root };
        let stat = |path: &[u8]| {
            let found = self.vfs.resolve_path(&self.cred, &at, path, WalkFlags::empty());
            found.ok().map(|found| found.ino)
        };
        let open = |path: &[u8]| {
            let place = self.vfs.walk(&self.cred, &at, path, WalkFlags::empty()).ok()?;
            Some(place.inode().ino())
        };
        user.work(self, stop, stat, open)
    }

    fn passes(&self) -> Option<Passes> {
        let stats = self.vfs.stats();
        Some(Passes { retries: stats.retries, fallbacks: stats.fallbacks })
    }
}
