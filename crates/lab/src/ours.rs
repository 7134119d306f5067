//! corewalk as a variant: the whole library ([`Ours`]), and its inode table alone ([`OurTable`]).
//!
//! A lookup takes a parent's inode number and a name, returns an inode number, and adds one client
//! lookup. corewalk's FUSE server does the same for a LOOKUP request. The server then also reads
//! attributes, which is not measured here.
//!
//! All names are made before the measurement and stay in the cache. A measurement fails if the
//! cache calls its file system.
//!
//! The inode table is for a server that finds its files itself. It checks no permissions, and has
//! no call that resolves a path. So a walk looks up one name after the other, and references each
//! node. Each entry has a client lookup count of 1, as in other tables of inodes.
//!
//! Source: `corewalk::vfs`, `corewalk::InodeTable`.

use std::sync::Arc;

use anyhow::ensure;
use corewalk::tmpfs::{Tmpfs, TmpfsOptions};
use corewalk::{
    Cred, FileKind, FileSystem, FsStruct, InodeRef, InodeTable, Make, Name, Removal, RenameMode,
    Stats, Vfs, VfsOptions, WalkFlags,
};

use crate::baseline::{Namespace, components};
use crate::before::{Dentries, filled};
use crate::corpus::{Corpus, ROOT};
use crate::crew::{Laps, Turn};
use crate::job::User;
use crate::questions::Questions;
use crate::ramfs::Ramfs;

/// The memory budget of the cache in bytes, so large that no entry is evicted.
const CACHE_BYTES: u64 = 4 << 30;
/// Maximum number of entries in a cache over a tmpfs.
const TMPFS_ENTRIES_MAX: u32 = 1 << 22;

/// A namespace with a tree in its cache.
pub(crate) struct Ours {
    pub(crate) vfs: Arc<Vfs>,
    pub(crate) cred: Cred,
}

/// The inode table alone, without data for the inodes.
pub(crate) struct OurTable(InodeTable<()>);

impl Ours {
    /// Returns a namespace in which all of `corpus` is cached.
    ///
    /// # Errors
    /// If the namespace cannot be made.
    pub(crate) fn load(corpus: &Corpus) -> anyhow::Result<Ours> {
        Ok(filled(Ours::empty(corpus.len())?, corpus))
    }

    /// Returns a namespace with a root and room for `capacity` names. The file system below keeps
    /// no names.
    ///
    /// # Errors
    /// If the namespace cannot be made.
    pub(crate) fn empty(capacity: usize) -> anyhow::Result<Ours> {
        Ours::over(Arc::new(Ramfs::new()), entries_max(capacity)?)
    }

    /// Returns a namespace over an empty tmpfs.
    ///
    /// # Errors
    /// If the namespace cannot be made.
    pub(crate) fn on_tmpfs() -> anyhow::Result<Ours> {
        Ours::over(Arc::new(Tmpfs::new(TmpfsOptions::default())), TMPFS_ENTRIES_MAX)
    }

    fn over(fs: Arc<dyn FileSystem>, entries_max: u32) -> anyhow::Result<Ours> {
        Ok(Ours { vfs: Vfs::new(fs, options(entries_max))?, cred: Cred::prechecked(0, 0) })
    }

    /// Returns references to the root and the working directory, like those of a process. A thread
    /// gets them once, before its operations.
    pub(crate) fn fs_struct(&self) -> FsStruct<'_> {
        let root = self.vfs.root_path();
        FsStruct { cwd: root.clone(), root }
    }

    /// Returns the inode number of the file at `path`.
    #[inline]
    pub(crate) fn resolve(&self, at: &FsStruct<'_>, path: &[u8]) -> Option<u64> {
        let found = self.vfs.resolve_path(&self.cred, at, path, WalkFlags::empty());
        found.ok().map(|found| found.ino)
    }

    /// Returns a reference to the inode at `path`.
    #[inline]
    pub(crate) fn find<'v>(&'v self, at: &FsStruct<'v>, path: &[u8]) -> Option<InodeRef<'v>> {
        Some(self.vfs.walk(&self.cred, at, path, WalkFlags::empty()).ok()?.inode())
    }

    /// Makes a directory or an empty file, and returns its inode number.
    #[inline]
    pub(crate) fn make(&self, dir: &InodeRef<'_>, name: &[u8], kind: FileKind) -> Option<u64> {
        let what = Make::new(mode_of(kind), 0, 0);
        let (_, attr) = self.vfs.make(&self.cred, dir, Name::new(name).ok()?, what).ok()?;
        Some(attr.ino)
    }

    /// Removes the name of a file.
    #[inline]
    pub(crate) fn remove(&self, dir: &InodeRef<'_>, name: &[u8]) -> bool {
        let Ok(name) = Name::new(name) else { return false };
        self.vfs.remove(&self.cred, dir, name, Removal::Unlink).is_ok()
    }

    /// Moves a name to another one.
    pub(crate) fn move_name(
        &self,
        from: (&InodeRef<'_>, &[u8]),
        to: (&InodeRef<'_>, &[u8]),
        mode: RenameMode,
    ) -> bool {
        let (Ok(old), Ok(new)) = (Name::new(from.1), Name::new(to.1)) else { return false };
        self.vfs.rename(&self.cred, (from.0, old), (to.0, new), mode).is_ok()
    }
}

/// Returns how many entries a cache for `capacity` names may have.
fn entries_max(capacity: usize) -> anyhow::Result<u32> {
    Ok(u32::try_from(4 * capacity + 65_536)?)
}

fn options(entries_max: u32) -> VfsOptions {
    VfsOptions::default().with_cache_bytes(CACHE_BYTES).with_entries_max(entries_max)
}

/// Returns the type bits and permission bits of a new file.
pub(crate) fn mode_of(kind: FileKind) -> u32 {
    kind.to_mode() | if kind == FileKind::Directory { 0o755 } else { 0o644 }
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
        self.vfs.path_of_ino(ino).ok()
    }

    fn walk(&self, path: &[u8]) -> Option<u64> {
        self.resolve(&self.fs_struct(), path)
    }

    fn rename(&self, from: (u64, &[u8]), to: (u64, &[u8])) -> bool {
        let (Ok(old), Ok(new)) = (self.vfs.inode(from.0), self.vfs.inode(to.0)) else {
            return false;
        };
        self.move_name((&old, from.1), (&new, to.1), RenameMode::NoReplace)
    }

    fn stats(&self) -> Stats {
        self.vfs.stats()
    }

    fn walks(&self, questions: &Questions, first: usize, turn: Turn<'_>) -> Laps {
        let at = self.fs_struct();
        questions.ask(first, turn, |target, path| self.resolve(&at, path) == Some(target.ino))
    }
}

impl Dentries for Ours {
    #[inline]
    fn create(&self, parent: u64, name: &[u8], kind: FileKind) -> Option<u64> {
        self.make(&self.vfs.inode(parent).ok()?, name, kind)
    }

    #[inline]
    fn unlink(&self, parent: u64, name: &[u8]) -> bool {
        self.vfs.inode(parent).is_ok_and(|dir| self.remove(&dir, name))
    }

    /// Does the jobs of one simulated user, which has its own references to a root and a working
    /// directory, as a process has.
    fn be_user(&self, user: &User, turn: Turn<'_>) -> Laps {
        let at = self.fs_struct();
        let open = |path: &[u8]| Some(self.find(&at, path)?.ino());
        user.work(self, turn, |path| self.resolve(&at, path), open)
    }
}

impl OurTable {
    /// Returns corewalk's inode table with all entries of `corpus`, each with a lookup count of 1.
    ///
    /// # Errors
    /// If the table cannot be made.
    pub(crate) fn load(corpus: &Corpus) -> anyhow::Result<OurTable> {
        let table = InodeTable::new((), options(entries_max(corpus.len())?))?;
        for ino in corpus.inodes().filter(|&ino| ino != ROOT) {
            let (parent, name) = (table.get(corpus.parent(ino))?, Name::new(corpus.name(ino))?);
            let entered = table.entered(&parent, name, corpus.kind(ino), ())?.into_lookups();
            ensure!(entered == ino, "entries are numbered in turn");
        }
        Ok(OurTable(table))
    }
}

impl Namespace for OurTable {
    fn variant(&self) -> &'static str {
        "corewalk-table"
    }

    #[inline]
    fn lookup(&self, parent: u64, name: &[u8]) -> Option<u64> {
        Some(self.0.child(parent, name).ok()?.into_lookups())
    }

    #[inline]
    fn path(&self, ino: u64) -> Option<Vec<u8>> {
        self.0.path(ino).ok()
    }

    #[inline]
    fn walk(&self, path: &[u8]) -> Option<u64> {
        components(path).try_fold(ROOT, |dir, name| Some(self.0.child(dir, name).ok()?.ino()))
    }

    fn stats(&self) -> Stats {
        self.0.stats()
    }
}
