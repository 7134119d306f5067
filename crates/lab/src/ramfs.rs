//! corewalk over a back end that keeps nothing, to be held against the designs of `before`.
//!
//! In the kernels that those designs are taken from, the dentry cache of a file system in memory is the
//! file system: ramfs keeps no names of its own. corewalk's back end is asked before the cache
//! changes, and one that kept names would be measured with it. So this one gives out inode numbers
//! and agrees to everything else, and the cache, which has room for all and evicts nothing, is where
//! the names are. A name that the cache does not know does not exist.
//!
//! # What it refuses
//! Content, listing, attributes that change, and a cache that is full: an evicted name would be gone.
//!
//! Source: Linux `fs/ramfs/inode.c`, `simple_lookup` of `fs/libfs.c`; `corewalk::fs`.

use std::ops::Range;
use std::sync::Arc;

use corewalk::attr::mode;
use corewalk::{
    Attr, Cred, DirSink, Errno, FileKind, FileSystem, FsStruct, Make, Name, Node, Removal,
    RenameMode, SetAttr, StatFs, Timespec, Vfs, VfsOptions, WalkFlags,
};
use corewalk_sync::primitives::{
    SHARDS, shard_index,
    unmodelled::{AtomicU64, Ordering},
};
use corewalk_sync::{CachePadded, Mutex};

use crate::baseline::Namespace;
use crate::before::timed::timed_if_moved;
use crate::before::{Dentries, Kind, Passes};
use crate::corpus::ROOT;
use crate::job::User;
use crate::lane::{Stop, Tally};

/// Bytes of cache: more than any table here fills, so that nothing is evicted.
const CACHE_BYTES: u64 = 4 << 30;

/// Inode numbers that a shard takes at once.
const BATCH: u64 = 1024;

/// A namespace in which everything is in the cache.
pub(crate) struct Cached {
    vfs: Arc<Vfs>,
    cred: Cred,
}

/// A file system that keeps nothing but the next inode numbers.
struct Ramfs {
    /// The first number that no shard has.
    fresh: CachePadded<AtomicU64>,
    /// The numbers that a shard has and has not given out (`get_next_ino`).
    batches: [CachePadded<Mutex<Range<u64>>>; SHARDS],
}

impl Cached {
    /// Returns a namespace with a root and room for `capacity` names.
    ///
    /// # Errors
    /// What the namespace says, if there is no room.
    pub(crate) fn new(capacity: usize) -> anyhow::Result<Cached> {
        let entries_max = u32::try_from(4 * capacity + 65_536)?;
        let options = VfsOptions { cache_bytes: CACHE_BYTES, entries_max, hash_seed: None };
        let vfs = Vfs::new(Arc::new(Ramfs::new()), options)?;
        Ok(Cached { vfs, cred: Cred::prechecked(0, 0) })
    }
}

impl Namespace for Cached {
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

    #[inline]
    fn walk(&self, path: &[u8]) -> Option<u64> {
        let root = self.vfs.root_path();
        let at = FsStruct { cwd: root.clone(), root };
        let found = self.vfs.resolve_path(&self.cred, &at, path, WalkFlags::empty());
        found.ok().map(|found| found.ino)
    }

    #[inline]
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
}

impl Dentries for Cached {
    #[inline]
    fn open(&self, path: &[u8]) -> Option<u64> {
        let root = self.vfs.root_path();
        let at = FsStruct { cwd: root.clone(), root };
        let place = self.vfs.walk(&self.cred, &at, path, WalkFlags::empty()).ok()?;
        Some(place.inode().ino())
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

impl Ramfs {
    fn new() -> Ramfs {
        let empty = |_| CachePadded::new(Mutex::new(0..0));
        Ramfs {
            fresh: CachePadded::new(AtomicU64::new(ROOT + 1)),
            batches: std::array::from_fn(empty),
        }
    }

    /// Returns a number that was never given out; one thread alone gets them in turn.
    fn next_ino(&self) -> u64 {
        let mut batch = self.batches[shard_index()].lock();
        if batch.is_empty() {
            // ORDERING: Relaxed. Numbers that nobody else gets.
            let first = self.fresh.fetch_add(BATCH, Ordering::Relaxed);
            *batch = first..first + BATCH;
        }
        batch.next().expect("the batch was just filled")
    }

    fn attr(ino: u64, kind: FileKind) -> Attr {
        let zero = Timespec::default();
        let (permissions, nlink) =
            if kind == FileKind::Directory { (0o755, 2) } else { (0o644, 1) };
        Attr {
            ino,
            generation: 0,
            mode: kind.to_mode() | permissions,
            nlink,
            uid: 0,
            gid: 0,
            rdev: 0,
            size: 0,
            blocks: 0,
            blksize: 4096,
            atime: zero,
            mtime: zero,
            ctime: zero,
            btime: zero,
            has_acl: false,
        }
    }
}

impl FileSystem for Ramfs {
    fn root(&self) -> Result<Attr, Errno> {
        Ok(Ramfs::attr(ROOT, FileKind::Directory))
    }

    fn lookup(&self, _dir: Node<'_>, _name: Name<'_>) -> Result<Attr, Errno> {
        Err(Errno::NOENT)
    }

    fn getattr(&self, node: Node<'_>) -> Result<Attr, Errno> {
        Ok(Ramfs::attr(node.ino(), node.kind()))
    }

    fn setattr(&self, _node: Node<'_>, _set: &SetAttr) -> Result<Attr, Errno> {
        Err(Errno::ROFS)
    }

    fn make(&self, _dir: Node<'_>, _name: Name<'_>, what: &Make<'_>) -> Result<Attr, Errno> {
        let kind = FileKind::from_mode(what.mode).ok_or(Errno::INVAL)?;
        Ok(Ramfs::attr(self.next_ino(), kind))
    }

    fn remove(&self, _dir: Node<'_>, _name: Name<'_>, _node: Node<'_>) -> Result<(), Errno> {
        Ok(())
    }

    fn rename(
        &self,
        _from: (Node<'_>, Name<'_>),
        _to: (Node<'_>, Name<'_>),
        mode: RenameMode,
    ) -> Result<(), Errno> {
        if mode == RenameMode::NoReplace { Ok(()) } else { Err(Errno::OPNOTSUPP) }
    }

    fn readdir(&self, _dir: Node<'_>, _cookie: u64, _sink: &mut DirSink<'_>) -> Result<(), Errno> {
        Err(Errno::OPNOTSUPP)
    }

    fn read(
        &self,
        _node: Node<'_>,
        _handle: u64,
        _offset: u64,
        _buf: &mut [u8],
    ) -> Result<usize, Errno> {
        Err(Errno::OPNOTSUPP)
    }

    fn write(
        &self,
        _node: Node<'_>,
        _handle: u64,
        _offset: u64,
        _bytes: &[u8],
    ) -> Result<usize, Errno> {
        Err(Errno::ROFS)
    }

    fn statfs(&self) -> Result<StatFs, Errno> {
        Ok(StatFs { bsize: 4096, namelen: 255, ..StatFs::default() })
    }
}
