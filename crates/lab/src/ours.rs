//! corewalk itself as a variant.
//!
//! A lookup takes a parent's inode number and a name. It returns an inode number and adds one
//! reference for the client. The FUSE server makes this call too, and reads the attributes from the
//! file system below afterwards, which is not measured. All names are made before the measurement
//! and stay in the cache, which evicts none. The cache counts its calls of the file system below.
//! There must be none during a measurement.
//!
//! Source: `corewalk::vfs`.

use std::sync::Arc;

use corewalk::{
    Cred, FileKind, FsStruct, Make, Name, Removal, RenameMode, Vfs, VfsOptions, WalkFlags,
};

use crate::baseline::{Namespace, ask};
use crate::before::timed::timed_if_moved;
use crate::before::{Dentries, filled};
use crate::corpus::Corpus;
use crate::crew::{Laps, Turn};
use crate::job::User;
use crate::questions::{Op, Questions};
use crate::ramfs::Ramfs;

/// The budget of the cache in bytes. It is larger than any tree, so nothing is evicted.
const CACHE_BYTES: u64 = 4 << 30;

/// A namespace with a tree in its cache.
pub(crate) struct Ours {
    vfs: Arc<Vfs>,
    cred: Cred,
}

impl Ours {
    /// Returns a namespace in which all of `corpus` is cached.
    ///
    /// # Errors
    /// If the namespace cannot be made.
    pub(crate) fn load(corpus: &Corpus) -> anyhow::Result<Ours> {
        Ok(filled(Ours::empty(corpus.len())?, corpus))
    }

    /// Returns a namespace with a root and room for `capacity` names. All names must stay in its
    /// cache, since the file system below keeps none.
    ///
    /// # Errors
    /// If the namespace cannot be made.
    pub(crate) fn empty(capacity: usize) -> anyhow::Result<Ours> {
        let entries_max = u32::try_from(4 * capacity + 65_536)?;
        let options =
            VfsOptions::default().with_cache_bytes(CACHE_BYTES).with_entries_max(entries_max);
        Ok(Ours { vfs: Vfs::new(Arc::new(Ramfs::new()), options)?, cred: Cred::prechecked(0, 0) })
    }

    /// Asks questions of whole paths. Takes the reference of the root once, as a server does.
    fn walks(&self, questions: &Questions, first: usize, turn: Turn) -> Laps {
        let root = self.vfs.root_path();
        let at = FsStruct { cwd: root.clone(), root };
        questions.ask(first, turn, |target, path| {
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
        let found = self.vfs.lookup_by_ino(&self.cred, parent, name).ok()?;
        Some(found.inode.into_lookups())
    }

    #[inline]
    fn path(&self, ino: u64) -> Option<Vec<u8>> {
        timed_if_moved(|| self.vfs.path_of_ino(ino).ok(), || self.vfs.stats().fallbacks)
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

    fn work(&self, op: Op, questions: &Questions, first: usize, turn: Turn) -> Laps {
        if op == Op::Walk {
            return self.walks(questions, first, turn);
        }
        ask(self, op, questions, first, turn)
    }

    fn retries(&self) -> Option<u64> {
        Some(self.vfs.stats().retries)
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
    fn create(&self, parent: u64, name: &[u8], kind: FileKind) -> Option<u64> {
        let dir = self.vfs.inode(parent).ok()?;
        let permissions = if kind == FileKind::Directory { 0o755 } else { 0o644 };
        let what = Make::new(kind.to_mode() | permissions, 0, 0);
        let (_, attr) = self.vfs.make(&self.cred, &dir, Name::new(name).ok()?, what).ok()?;
        Some(attr.ino)
    }

    #[inline]
    fn unlink(&self, parent: u64, name: &[u8]) -> bool {
        let (Ok(dir), Ok(name)) = (self.vfs.inode(parent), Name::new(name)) else { return false };
        self.vfs.remove(&self.cred, &dir, name, Removal::Unlink).is_ok()
    }

    /// Does jobs with its own root and working directory, as a process has them.
    fn be_user(&self, user: &User, turn: Turn) -> Laps {
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
        user.work(self, turn, stat, open)
    }
}
