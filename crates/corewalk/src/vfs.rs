//! The namespace: what a server calls.
//!
//! A [`Vfs`] puts a dentry cache, permission checks, mounts and reference counts in front of a
//! [`FileSystem`]. There are two ways in. By inode: an [`InodeRef`] is a counted inode, and
//! `lookup`, `make`, `remove`, `rename` and the rest take one and a name; this is what FUSE, virtiofs
//! and NFS servers want, whose kernels and clients hold inode numbers. By path: `walk` resolves a
//! whole path to a [`PathRef`](crate::PathRef), for 9P servers and library operating systems.
//!
//! # Guarantees
//! - V.1: operations on names appear to happen at one instant each (they are linearizable), as long
//!   as the back end is changed through this `Vfs` alone.
//! - V.2: a lookup that is answered from the cache takes no lock and waits for nobody.
//! - V.3: an operation that a back end is slow at delays only operations on the same name.
//!
//! # Examples
//! ```
//! use std::sync::Arc;
//! use corewalk::{Cred, Make, Name, Vfs, VfsOptions, attr::mode, tmpfs::{Tmpfs, TmpfsOptions}};
//!
//! let vfs = Vfs::new(Arc::new(Tmpfs::new(TmpfsOptions::default())), VfsOptions::default())?;
//! let root = vfs.root();
//! let cred = Cred::root();
//! let name = Name::new(b"etc")?;
//! vfs.make(&cred, &root, name, Make::new(mode::S_IFDIR | 0o755, 0, 0))?;
//! let etc = vfs.lookup(&cred, &root, name)?;
//! assert!(vfs.getattr(&etc)?.is_dir());
//! # Ok::<(), corewalk::Errno>(())
//! ```

mod attributes;
mod io;
mod names;
mod rename;

pub(crate) use attributes::Checked;
pub use io::Fsync;
pub use names::Removal;
pub(crate) use names::{Place, Unattached};

use std::fmt;
use std::sync::{Arc, OnceLock};

use corewalk_sync::Mutex;

use crate::Errno;
use crate::attr::FileKind;
use crate::cred::Security;
use crate::dcache::{Dcache, Host};
use crate::fs::{FileSystem, Node, PathSource};
use crate::mount::Mounts;
use crate::name::Name;
use rename::Moves;

/// What one lookup held outside adds to an inode's count. Below it are 20 bits for references held
/// inside (dentries and `InodeRef`s), above it 41 bits for lookups: both in one word, so that a
/// forget is checked and done in one step.
const LOOKUP: u64 = 1 << 20;
/// File systems a namespace can hold over its life.
const SUPERBLOCKS_MAX: usize = 1024;

/// How a namespace is set up.
#[derive(Clone, Debug)]
pub struct VfsOptions {
    /// Bytes that dentries, inodes, names and tables may take. Reclaim keeps to it as long as
    /// something is not in use.
    pub cache_bytes: u64,
    /// The most dentries (and inodes) there can ever be: address space is reserved for them, memory
    /// is not. Operations fail with `ENOMEM` beyond.
    pub entries_max: u32,
    /// A fixed seed for the hash, for runs that must repeat. None takes a random one, which a
    /// server that strangers can make files on needs (trap T54).
    pub hash_seed: Option<u64>,
}

impl Default for VfsOptions {
    /// Returns 256 MiB of cache, at most 64 million entries, a random seed.
    fn default() -> VfsOptions {
        VfsOptions { cache_bytes: 256 << 20, entries_max: 1 << 26, hash_seed: None }
    }
}

/// Who wants to hear that the cache needs room.
///
/// A FUSE server answers by asking the kernel to forget the entry; it must not do so on the thread
/// that it is called on, which serves a request.
pub trait Pressure: Send + Sync {
    /// The entry `name` of the directory `parent` is only kept because the host uses its inode.
    fn please_forget(&self, parent: u64, name: Name<'_>);
}

/// A namespace. See the module's text.
pub struct Vfs {
    pub(crate) dcache: Dcache,
    pub(crate) supers: Arc<Supers>,
    pub(crate) mounts: Mounts,
    moves: Moves,
    security: OnceLock<Box<dyn Security>>,
}

/// A file system in use.
pub(crate) struct Superblock {
    pub(crate) fs: Arc<dyn FileSystem>,
}

/// All file systems of a namespace; they are added and never taken away, so that an inode's number
/// for its superblock stays good.
pub(crate) struct Supers {
    list: Box<[OnceLock<Superblock>]>,
    used: Mutex<u32>,
    pressure: OnceLock<Box<dyn Pressure>>,
}

impl Vfs {
    /// Returns a namespace whose root is that of `fs`.
    ///
    /// # Errors
    /// What `fs.root()` says; `ENOTDIR` if it is no directory; `ENOMEM` if the address space for
    /// the cache cannot be had.
    pub fn new(fs: Arc<dyn FileSystem>, options: VfsOptions) -> Result<Arc<Vfs>, Errno> {
        let supers = Arc::new(Supers {
            list: (0..SUPERBLOCKS_MAX).map(|_| OnceLock::new()).collect(),
            used: Mutex::new(0),
            pressure: OnceLock::new(),
        });
        let host = Box::new(Arc::clone(&supers));
        // Half of the slot numbers mean something else to the tables.
        let entries_max = options.entries_max.clamp(1024, 1 << 30);
        let dcache = Dcache::new(entries_max, options.hash_seed, host).map_err(|_| Errno::NOMEM)?;
        dcache.set_budget(options.cache_bytes);
        let vfs = Vfs {
            dcache,
            supers,
            mounts: Mounts::new(),
            moves: Moves::new(),
            security: OnceLock::new(),
        };
        let root = vfs.add_superblock(fs)?;
        vfs.mounts.set_root(root);
        Ok(Arc::new(vfs))
    }

    /// Sets the security hook, once, before the namespace is used.
    ///
    /// # Errors
    /// `EBUSY` if one is set.
    pub fn set_security(&self, hook: Box<dyn Security>) -> Result<(), Errno> {
        self.security.set(hook).map_err(|_| Errno::BUSY)
    }

    /// Sets who hears that the cache needs room, once.
    ///
    /// # Errors
    /// `EBUSY` if one is set.
    pub fn set_pressure(&self, pressure: Box<dyn Pressure>) -> Result<(), Errno> {
        self.supers.pressure.set(pressure).map_err(|_| Errno::BUSY)
    }

    /// Returns the root directory.
    pub fn root(&self) -> InodeRef<'_> {
        let dentry = self.mounts.root();
        let inode = self.dcache.directory(dentry).expect("the root is a directory").inode;
        self.dcache.inodes.lockref(inode).get();
        InodeRef { vfs: self, slot: inode }
    }

    /// Returns the inode of the root's file system with this number, if it is in use: looked up
    /// before and not forgotten since.
    ///
    /// # Errors
    /// `ESTALE` if it is not.
    pub fn inode(&self, ino: u64) -> Result<InodeRef<'_>, Errno> {
        let slot = self.dcache.inodes.get(0, ino, |stray| self.dcache.put_inode(stray, 1));
        slot.map(|slot| InodeRef { vfs: self, slot }).ok_or(Errno::STALE)
    }

    /// Drops `n` lookups that [`InodeRef::into_lookups`] gave out on an inode of the root's file
    /// system. Returns false, and drops nothing, if the inode has fewer: a count that a client gets
    /// wrong must not free what others use (trap P5).
    pub fn forget(&self, ino: u64, n: u64) -> bool {
        let Ok(inode) = self.inode(ino) else { return n == 0 };
        let mut guard = self.dcache.inodes.lockref(inode.slot).lock();
        if guard.count() / LOOKUP < n {
            return false;
        }
        guard.sub(n * LOOKUP);
        true
    }

    /// Returns the file system that an inode belongs to.
    pub(crate) fn fs(&self, inode: u32) -> &dyn FileSystem {
        let superblock = self.dcache.inodes.superblock(inode);
        &*self.supers.get(superblock).fs
    }

    /// Returns the inode as its back end sees it.
    pub(crate) fn node<'a>(&'a self, source: &'a AliasPath<'a>) -> Node<'a> {
        let inodes = &self.dcache.inodes;
        Node::with_source(inodes.ino(source.inode), inodes.kind(source.inode), source)
    }

    pub(crate) fn source(&self, inode: u32) -> AliasPath<'_> {
        AliasPath { vfs: self, inode }
    }

    pub(crate) fn security(&self) -> Option<&dyn Security> {
        self.security.get().map(|hook| &**hook)
    }

    /// Takes in a file system and returns its root dentry, counted for whoever mounts it.
    pub(crate) fn add_superblock(&self, fs: Arc<dyn FileSystem>) -> Result<u32, Errno> {
        let attr = fs.root()?;
        if !attr.is_dir() {
            return Err(Errno::NOTDIR);
        }
        let superblock = self.supers.add(fs)?;
        let inodes = &self.dcache.inodes;
        let entered = inodes
            .get_or_insert(superblock, &attr, attr.has_acl, inodes.changes())
            .ok_or(Errno::NOMEM)?;
        self.dcache.publish_root(entered.slot)
    }

    /// Evicts everything that is not in use. Returns how many entries that were.
    pub fn prune(&self) -> u64 {
        self.dcache.prune()
    }

    /// Returns what the cache holds and has done.
    pub fn stats(&self) -> Stats {
        let counters = &self.dcache.counters;
        let count = |counter: &corewalk_sync::ShardedCounter| counter.sum().max(0) as u64;
        let (negatives, removed) = (count(&counters.negatives), count(&counters.unhashed));
        Stats {
            entries: self.dcache.dentries.in_use().saturating_sub(negatives + removed),
            negatives,
            removed,
            inodes: self.dcache.inodes.in_use(),
            bytes: self.dcache.bytes(),
            budget_bytes: self.dcache.budget(),
            misses: counters.fills.sum() as u64,
            refused_fills: counters.refused_fills.sum() as u64,
            reclaimed: counters.reclaimed.sum() as u64,
            renames: counters.renames.sum() as u64,
            invalidations: counters.invalidations.sum() as u64,
        }
    }
}

impl fmt::Debug for Vfs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Vfs").field("stats", &self.stats()).finish()
    }
}

/// What a namespace holds and has done. Counts of entries, unless a field says bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Positive dentries.
    pub entries: u64,
    /// Negative dentries.
    pub negatives: u64,
    /// Dentries of removed names that are still held, or wait for what is cached below them.
    pub removed: u64,
    /// Inodes.
    pub inodes: u64,
    /// Bytes taken.
    pub bytes: u64,
    /// Bytes allowed.
    pub budget_bytes: u64,
    /// Names that the back end was asked for.
    pub misses: u64,
    /// Answers that were not cached, since an invalidation came in between.
    pub refused_fills: u64,
    /// Entries evicted.
    pub reclaimed: u64,
    /// Renames and exchanges.
    pub renames: u64,
    /// Invalidations.
    pub invalidations: u64,
}

/// A counted inode. Cheap to take, write-free to keep.
#[doc(alias = "struct inode")]
pub struct InodeRef<'v> {
    pub(crate) vfs: &'v Vfs,
    pub(crate) slot: u32,
}

impl<'v> InodeRef<'v> {
    /// Returns the inode number.
    pub fn ino(&self) -> u64 {
        self.vfs.dcache.inodes.ino(self.slot)
    }

    /// Returns the generation that goes with the number.
    pub fn generation(&self) -> u64 {
        self.vfs.dcache.inodes.generation(self.slot)
    }

    /// Returns the kind of file.
    pub fn kind(&self) -> FileKind {
        self.vfs.dcache.inodes.kind(self.slot)
    }

    /// Turns the reference into one lookup held by somebody outside, who returns it by
    /// [`Vfs::forget`], and returns the inode number. A FUSE server calls this for each entry it
    /// replies (`nlookup`).
    pub fn into_lookups(self) -> u64 {
        let ino = self.ino();
        // The reference itself becomes part of the unit.
        self.vfs.dcache.inodes.lockref(self.slot).get_many(LOOKUP - 1);
        std::mem::forget(self);
        ino
    }

    /// Returns a path of the inode from the root of its file system, as it was at one instant.
    ///
    /// # Errors
    /// `ENOENT` if it has no name left.
    pub fn path(&self) -> Result<Vec<u8>, Errno> {
        let mut out = Vec::new();
        self.vfs.source(self.slot).append_path(&mut out)?;
        Ok(out)
    }
}

impl Clone for InodeRef<'_> {
    fn clone(&self) -> Self {
        self.vfs.dcache.inodes.lockref(self.slot).get();
        InodeRef { vfs: self.vfs, slot: self.slot }
    }
}

impl Drop for InodeRef<'_> {
    fn drop(&mut self) {
        self.vfs.dcache.put_inode(self.slot, 1);
    }
}

impl fmt::Debug for InodeRef<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InodeRef").field("ino", &self.ino()).field("kind", &self.kind()).finish()
    }
}

/// The path of an inode by whatever name it has, for a back end that works by path.
pub(crate) struct AliasPath<'a> {
    vfs: &'a Vfs,
    inode: u32,
}

impl PathSource for AliasPath<'_> {
    fn append_path(&self, out: &mut Vec<u8>) -> Result<(), Errno> {
        crate::dpath::append_inode_path(&self.vfs.dcache, self.inode, out)
    }
}

impl Supers {
    pub(crate) fn get(&self, superblock: u32) -> &Superblock {
        self.list[superblock as usize].get().expect("an inode's superblock exists")
    }

    fn add(&self, fs: Arc<dyn FileSystem>) -> Result<u32, Errno> {
        let mut used = self.used.lock();
        let index = *used;
        let place = self.list.get(index as usize).ok_or(Errno::NFILE)?;
        place.set(Superblock { fs }).ok().expect("each place is taken once");
        *used += 1;
        Ok(index)
    }
}

impl Host for Arc<Supers> {
    fn forget(&self, superblock: u32, ino: u64) {
        self.get(superblock).fs.forget(ino);
    }

    fn ask_to_forget(&self, superblock: u32, parent: u64, name: Name<'_>) {
        if superblock == 0
            && let Some(pressure) = self.pressure.get()
        {
            pressure.please_forget(parent, name);
        }
    }
}
