//! The namespace, which a server calls.
//!
//! A [`Vfs`] puts a dentry cache, permission checks, mounts and reference counts in front of a
//! [`FileSystem`]. It has two interfaces:
//! - By inode. An [`InodeRef`] is a counted inode; `lookup`, `make`, `remove`, `rename` and the
//!   other operations take an `InodeRef` and a name. FUSE, virtiofs and NFS servers use this
//!   interface, because their kernels and clients hold inode numbers.
//! - By path, for 9P servers and library operating systems. `walk` resolves a whole path.
//!
//! # Guarantees
//! - V.1: operations on names are linearizable, as long as the back end is changed through this
//!   `Vfs` alone.
//! - V.2: a lookup that the cache answers takes no lock.
//! - V.3: a slow call of the back end delays only operations on the same name. A slow change of
//!   attributes, and a slow write that clears set-user-ID, delay only other operations on the same
//!   inode.
//!
//! Guarantee V.3 (a slow call delays only its own name) has two exceptions:
//! - An operation that fails because its file is gone first waits for operations on the name of
//!   that file.
//! - With a back end by path, a call and a rename on the call's path wait for each other (rule F.6
//!   of `FileSystem`).

mod attributes;
mod by_number;
mod call;
mod capability;
mod forget;
mod held;
mod hidden;
mod inherit;
mod invalidate;
mod io;
mod ioctl;
mod listing;
mod locks;
mod lookup;
mod names;
mod numbers;
mod paths;
mod reclaim;
mod rename;
mod revalidate;

pub(crate) use attributes::Checked;
pub(crate) use held::{DentryAndInode, Unattached};
pub use io::Fsync;
pub use listing::Listing;
pub use lookup::LookedUp;
pub use names::Removal;

use std::fmt;
use std::sync::{Arc, OnceLock};

use corewalk_base::{Mutex, ShardedCounter};

use crate::Errno;
use crate::attr::{Attr, FileKind};
use crate::dcache::{Dcache, Host};
use crate::fs::FileSystem;
use crate::inode::{LOOKUP, REFS_MAX};
use crate::key_lock::{KeyLocks, SHARDS_FEW};
use crate::mount::Mounts;
use crate::name::Name;
use crate::slot::{DentrySlot, InodeSlot};
use numbers::Numbers;
use paths::Paths;
use rename::{InFlightMoves, InFlightRenames};

/// The number of lookups at which an inode's lookup count is saturated: then only
/// [`Vfs::forget_all`] resets the count. So a client that never forgets cannot make it overflow.
const LOOKUPS_MAX: u64 = 1 << 32;
/// Maximum number of file systems that a namespace can mount during its life; see [`Vfs::mount`].
const SUPERBLOCKS_MAX: usize = 1024;

/// The settings of a namespace.
///
/// # Examples
/// ```
/// let options = corewalk::VfsOptions::default().with_cache_bytes(1 << 20);
/// assert_eq!(options.hash_seed, None);
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct VfsOptions {
    /// The memory limit for dentries, inodes, names and tables, in bytes. Reclaim keeps the memory
    /// below this limit as long as there are unused entries.
    pub cache_bytes: u64,
    /// Maximum number of dentries, and also of inodes. The namespace reserves address space for
    /// them, but no memory. Beyond this number, operations fail with `ENOMEM`.
    pub entries_max: u32,
    /// A fixed seed for the hash, for repeatable runs. `None` takes a random seed. A server on
    /// which untrusted users can create files needs a random one, or they could craft names that
    /// collide.
    pub hash_seed: Option<u64>,
}

impl VfsOptions {
    corewalk_base::setters! {
        with_cache_bytes: cache_bytes = u64;
        with_entries_max: entries_max = u32;
        with_hash_seed: hash_seed = impl Into<Option<u64>>;
    }
}

impl Default for VfsOptions {
    /// Returns settings with 256 MiB of cache, at most 64 million entries and a random seed.
    fn default() -> VfsOptions {
        VfsOptions { cache_bytes: 256 << 20, entries_max: 1 << 26, hash_seed: None }
    }
}

/// A callback for memory pressure in the cache.
///
/// `please_forget` is called on a thread that serves a request, so it must not do long work. A FUSE
/// server wakes another thread, which calls [`Vfs::reclaim`] and asks the kernel to forget inodes.
///
/// # Examples
/// ```
/// # use std::sync::Arc;
/// # use corewalk::tmpfs::{Tmpfs, TmpfsOptions};
/// # use corewalk::{Name, Pressure, Vfs, VfsOptions};
/// # use std::sync::mpsc::{Sender, channel};
/// /// Wakes the thread that makes the client forget.
/// struct Wake(Sender<()>);
///
/// impl Pressure for Wake {
///     fn please_forget(&self, _: u64, _: Name<'_>) {
///         let _ = self.0.send(());
///     }
/// }
///
/// # let fs = Arc::new(Tmpfs::new(TmpfsOptions::default()));
/// # let vfs = Vfs::new(fs, VfsOptions::default())?;
/// let (sender, _receiver) = channel();
/// vfs.set_pressure(Box::new(Wake(sender)))?;
/// # Ok::<(), corewalk::Errno>(())
/// ```
pub trait Pressure: Send + Sync {
    /// Asks the server to make its client forget the inode of the entry `name` in the directory
    /// `parent`. Called when reclaim cannot evict the entry, because the client still holds lookups
    /// of the inode.
    fn please_forget(&self, parent: u64, name: Name<'_>);
}

/// A cache entry that only the client's lookups of its inode keep. Reclaim can evict it when the
/// client has forgotten the inode.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Pinned<'a> {
    /// The entry, for [`Vfs::evict`].
    pub entry: EntryId,
    /// The inode number.
    pub ino: u64,
    /// The kind of file.
    pub kind: FileKind,
    /// The inode number of the entry's directory.
    pub parent: u64,
    /// Its name in that directory.
    pub name: Name<'a>,
}

/// The slot of a dentry in the cache. After an eviction, another dentry may reuse it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EntryId(DentrySlot);

/// A namespace: a dentry cache, permission checks, mounts and reference counts in front of a
/// [`FileSystem`].
///
/// # Examples
/// ```
/// use std::sync::Arc;
/// use corewalk::{Cred, Make, Name, Vfs, VfsOptions, attr::mode, tmpfs::{Tmpfs, TmpfsOptions}};
///
/// let vfs = Vfs::new(Arc::new(Tmpfs::new(TmpfsOptions::default())), VfsOptions::default())?;
/// let root = vfs.root();
/// let cred = Cred::root();
/// let name = Name::new(b"etc")?;
/// vfs.make(&cred, &root, name, Make::new(mode::S_IFDIR | 0o755, 0, 0))?;
/// let etc = vfs.lookup(&cred, &root, name)?;
/// assert!(vfs.getattr(&etc)?.is_dir());
/// # Ok::<(), corewalk::Errno>(())
/// ```
pub struct Vfs {
    pub(crate) dcache: Dcache,
    pub(crate) supers: Arc<Supers>,
    pub(crate) mounts: Mounts,
    in_flight_moves: InFlightMoves,
    in_flight_renames: InFlightRenames,
    /// The attribute locks, by inode, which order attribute changes in the back end; see
    /// `attributes`. Analogous to Linux's `i_rwsem`, which the caller of `notify_change` holds.
    attr_locks: KeyLocks,
}

/// A file system of a namespace. Analogous to Linux's `struct super_block`.
pub(crate) struct Superblock {
    pub(crate) fs: Arc<dyn FileSystem>,
    root_ino: u64,
    paths: Option<Paths>,
    numbers: Option<Numbers>,
}

/// The file systems of a namespace. No file system is removed, so the superblock index in an inode
/// stays valid.
pub(crate) struct Supers {
    /// The file systems by superblock index. Each element is written once, under `used`.
    list: Box<[OnceLock<Superblock>]>,
    /// The number of superblocks in `list`. Protected by its own mutex.
    used: Mutex<u32>,
    pressure: OnceLock<Box<dyn Pressure>>,
}

impl Vfs {
    /// Returns a namespace. Its root directory is the root of `fs`.
    ///
    /// # Errors
    /// - The errors of `fs.root()`; `ENOTDIR` if the root is not a directory.
    /// - `ENOMEM` if the cache cannot reserve its address space, or allocate its first entry.
    ///
    /// # Examples
    /// ```
    /// # use std::sync::Arc;
    /// use corewalk::{Vfs, VfsOptions, tmpfs::{Tmpfs, TmpfsOptions}};
    ///
    /// let fs = Arc::new(Tmpfs::new(TmpfsOptions::default()));
    /// let vfs = Vfs::new(fs, VfsOptions::default().with_cache_bytes(16 << 20))?;
    /// assert_eq!((vfs.stats().entries, vfs.stats().budget_bytes), (1, 16 << 20));
    /// # Ok::<(), corewalk::Errno>(())
    /// ```
    pub fn new(fs: Arc<dyn FileSystem>, options: VfsOptions) -> Result<Arc<Vfs>, Errno> {
        let supers = Arc::new(Supers {
            list: (0..SUPERBLOCKS_MAX).map(|_| OnceLock::new()).collect(),
            used: Mutex::new(0),
            pressure: OnceLock::new(),
        });
        let host = Box::new(Arc::clone(&supers));
        // A slot number must fit into 30 bits, because the list of an inode's dentries is linked by
        // such numbers in the dentry records (`dentry::cold`).
        let entries_max = options.entries_max.clamp(1024, 1 << 30);
        let dcache = Dcache::new(entries_max, options.hash_seed, host).map_err(|_| Errno::NOMEM)?;
        dcache.set_budget(options.cache_bytes);
        let vfs = Vfs {
            dcache,
            supers,
            mounts: Mounts::new(),
            in_flight_moves: InFlightMoves::new(),
            in_flight_renames: InFlightRenames::new(),
            attr_locks: KeyLocks::new(SHARDS_FEW),
        };
        let attr = root_of(&*fs)?;
        let root = vfs.add_superblock(fs, &attr)?;
        vfs.mounts.set_root(root);
        Ok(Arc::new(vfs))
    }

    /// Sets the callback for memory pressure. It can be set once.
    ///
    /// # Errors
    /// `EBUSY` if it is already set.
    pub fn set_pressure(&self, pressure: Box<dyn Pressure>) -> Result<(), Errno> {
        self.supers.pressure.set(pressure).map_err(|_| Errno::BUSY)
    }

    /// Returns the root directory.
    ///
    /// # Panics
    /// Panics at more than 2^27 references to it.
    pub fn root(&self) -> InodeRef<'_> {
        let dentry = self.mounts.root();
        let inode = self.dcache.directory(dentry).expect("the root is a directory").inode;
        self.dcache.inodes.lockref(inode).get();
        let root = InodeRef { vfs: self, slot: inode };
        assert!(!root.is_saturated(), "too many references to the root");
        root
    }

    /// Returns the inode with this inode number in the file system that is mounted at the
    /// namespace's root. Works only for an inode in use: a client has looked it up and not
    /// forgotten it.
    ///
    /// # Errors
    /// `ESTALE` if no inode in use has this number; `ENFILE` at more than 2^27 references to the
    /// inode.
    pub fn inode(&self, ino: u64) -> Result<InodeRef<'_>, Errno> {
        self.in_use(ino).ok_or(Errno::STALE)?.unless_saturated()
    }

    fn in_use(&self, ino: u64) -> Option<InodeRef<'_>> {
        let slot = self.dcache.inodes.get(0, ino, |stray| self.dcache.put_inode(stray, 1));
        slot.map(|slot| InodeRef { vfs: self, slot })
    }

    pub(crate) fn fs(&self, inode: InodeSlot) -> &dyn FileSystem {
        &*self.superblock(inode).fs
    }

    #[inline]
    pub(crate) fn superblock(&self, inode: InodeSlot) -> &Superblock {
        self.supers.get(self.dcache.inodes.superblock(inode))
    }

    /// Adds a file system to the namespace. Returns the dentry of its root, with a reference for
    /// the caller.
    ///
    /// # Errors
    /// `ENFILE` after 1024 file systems; `ENOMEM`.
    pub(crate) fn add_superblock(
        &self,
        fs: Arc<dyn FileSystem>,
        attr: &Attr,
    ) -> Result<DentrySlot, Errno> {
        let (attr, numbers) = numbers::of_root(attr);
        let superblock = self.supers.add(fs, attr.ino, numbers)?;
        let inodes = &self.dcache.inodes;
        let (dentries, beside, has_acl) = (&self.dcache.dentries, DentrySlot::NONE, attr.has_acl);
        let enter = || {
            let changes = inodes.changes();
            inodes.get_or_insert(dentries, superblock, beside, &attr, has_acl, changes)
        };
        let entered = enter().or_else(|| {
            self.dcache.prune();
            enter()
        });
        let Some(entered) = entered else {
            self.supers.get(superblock).fs.forget(attr.ino, attr.generation);
            return Err(Errno::NOMEM);
        };
        let publish = || self.dcache.publish_root(entered.slot);
        let published = publish().or_else(|_| {
            self.dcache.prune();
            publish()
        });
        published.inspect_err(|_| self.dcache.put_inode(entered.slot, 1))
    }

    /// Returns the statistics of the cache.
    pub fn stats(&self) -> Stats {
        let counters = &self.dcache.counters;
        let count = |counter: &ShardedCounter| counter.sum().max(0) as u64;
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
            retries: count(&counters.retries),
            fallbacks: count(&counters.fallbacks),
        }
    }
}

impl Drop for Vfs {
    fn drop(&mut self) {
        // A back end by path keeps an unlinked file under a hidden name until the client forgets
        // the file. Remove these names.
        for superblock in self.supers.list.iter().map_while(OnceLock::get) {
            let hidden = superblock.paths.as_ref().map_or_else(Vec::new, Paths::take_all_hidden);
            hidden.iter().for_each(|hidden| superblock.remove_hidden(hidden));
        }
    }
}

impl fmt::Debug for Vfs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Vfs").field("stats", &self.stats()).finish()
    }
}

/// The statistics of a namespace. Most fields count entries or events. The fields with `bytes` in
/// their name are sizes in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Positive dentries.
    pub entries: u64,
    /// Negative dentries.
    pub negatives: u64,
    /// Dentries of removed names that have references or cached children.
    pub removed: u64,
    /// Inodes.
    pub inodes: u64,
    /// Memory in use, in bytes.
    pub bytes: u64,
    /// The memory limit, in bytes.
    pub budget_bytes: u64,
    /// Lookups sent to the back end.
    pub misses: u64,
    /// Answers that were not cached, because the name was invalidated meanwhile.
    pub refused_fills: u64,
    /// Entries evicted.
    pub reclaimed: u64,
    /// Failed lock-free attempts of walks and path translations: a dentry that was read has changed
    /// before the end of the attempt.
    pub retries: u64,
    /// Walks and path translations that gave up lock-free attempts after several of them had
    /// failed. Such a walk became a ref-walk. Such a translation blocked renames of directories.
    pub fallbacks: u64,
    /// Renames and exchanges.
    pub renames: u64,
    /// Invalidations.
    pub invalidations: u64,
}

/// A counted reference to an inode. Taking it costs one atomic addition.
///
/// `clone` panics at more than 2^27 references to the inode.
///
/// # Examples
/// ```
/// # use std::sync::Arc;
/// # use corewalk::tmpfs::{Tmpfs, TmpfsOptions};
/// # use corewalk::{Cred, Errno, Make, Name, Vfs, VfsOptions};
/// # let fs = Arc::new(Tmpfs::new(TmpfsOptions::default()));
/// # let vfs = Vfs::new(fs, VfsOptions::default())?;
/// let (file, _) = vfs.make(&Cred::root(), &vfs.root(), Name::new(b"f")?, Make::new(0o644, 0, 0))?;
/// // A server hands the number to its client, which gives it back later.
/// let ino = file.into_lookups();
/// assert_eq!(vfs.inode(ino)?.path()?, b"/f");
/// assert!(vfs.forget(ino, 1) && !vfs.forget(ino, 1));
/// # Ok::<(), corewalk::Errno>(())
/// ```
#[doc(alias = "struct inode")]
pub struct InodeRef<'v> {
    pub(crate) vfs: &'v Vfs,
    pub(crate) slot: InodeSlot,
}

impl<'v> InodeRef<'v> {
    /// Returns the inode number.
    pub fn ino(&self) -> u64 {
        self.vfs.dcache.inodes.ino(self.slot)
    }

    /// Returns the inode generation. Inode number and generation together are never reused.
    pub fn generation(&self) -> u64 {
        self.vfs.dcache.inodes.generation(self.slot)
    }

    /// Returns the kind of file.
    pub fn kind(&self) -> FileKind {
        self.vfs.dcache.inodes.kind(self.slot)
    }

    /// Turns the reference into one lookup that a client holds, and returns the inode number.
    /// [`Vfs::forget`] drops the lookup. A FUSE server calls this for each entry in a reply
    /// (`nlookup`).
    #[inline]
    pub fn into_lookups(self) -> u64 {
        let ino = self.ino();
        let lockref = self.vfs.dcache.inodes.lockref(self.slot);
        // A plain reference weighs 1 in the inode's reference count, a client's lookup `LOOKUP`.
        // Add the difference to turn one into the other.
        if lockref.get_if(LOOKUP - 1, |count| count < LOOKUPS_MAX * LOOKUP) {
            std::mem::forget(self);
        }
        ino
    }

    /// Returns this reference, or drops it and fails if the inode has too many references.
    ///
    /// # Errors
    /// `ENFILE` above the limit of references.
    #[inline]
    pub(crate) fn unless_saturated(self) -> Result<InodeRef<'v>, Errno> {
        if self.is_saturated() { Err(Errno::NFILE) } else { Ok(self) }
    }

    #[inline]
    fn is_saturated(&self) -> bool {
        self.vfs.dcache.inodes.lockref(self.slot).count() % LOOKUP > REFS_MAX
    }

    /// Returns a path of the inode from the root of its file system. All names on the path exist at
    /// one instant.
    ///
    /// # Errors
    /// `ENOENT` if the inode has no name any more.
    pub fn path(&self) -> Result<Vec<u8>, Errno> {
        let mut out = Vec::new();
        crate::dpath::append_inode_path(&self.vfs.dcache, self.slot, &mut out)?;
        Ok(out)
    }
}

impl Clone for InodeRef<'_> {
    fn clone(&self) -> Self {
        self.vfs.dcache.inodes.lockref(self.slot).get();
        let clone = InodeRef { vfs: self.vfs, slot: self.slot };
        assert!(!clone.is_saturated(), "too many references to one inode");
        clone
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

/// Asks the back end for the attributes of its root.
///
/// # Errors
/// `ENOTDIR` if the root is not a directory; the errors of `fs`.
pub(crate) fn root_of(fs: &dyn FileSystem) -> Result<Attr, Errno> {
    let attr = fs.root()?;
    if attr.is_dir() { Ok(attr) } else { Err(Errno::NOTDIR) }
}

impl Supers {
    pub(crate) fn get(&self, superblock: u32) -> &Superblock {
        self.list[superblock as usize].get().expect("an inode's superblock exists")
    }

    fn add(
        &self,
        fs: Arc<dyn FileSystem>,
        root_ino: u64,
        numbers: Option<Numbers>,
    ) -> Result<u32, Errno> {
        let paths = Paths::new(fs.addressing());
        let mut used = self.used.lock();
        let index = *used;
        let place = self.list.get(index as usize).ok_or(Errno::NFILE)?;
        let superblock = Superblock { fs, root_ino, paths, numbers };
        place.set(superblock).ok().expect("each index is used once");
        *used += 1;
        Ok(index)
    }
}

impl Host for Arc<Supers> {
    fn forget(&self, superblock: u32, ino: u64, generation: u64, slot: InodeSlot) {
        let superblock = self.get(superblock);
        if let Some(hidden) = superblock.paths.as_ref().and_then(|paths| paths.forget(slot)) {
            superblock.remove_hidden(&hidden);
        }
        hidden::contain_panic(|| superblock.fs.forget(ino, generation));
    }

    fn ask_to_forget(&self, superblock: u32, parent: u64, name: Name<'_>) {
        if superblock == 0
            && let Some(pressure) = self.pressure.get()
        {
            pressure.please_forget(parent, name);
        }
    }
}

#[cfg(all(test, not(any(corewalk_loom, corewalk_shuttle))))]
mod tests {
    use super::*;
    use crate::cred::Cred;
    use crate::fs::Make;
    use crate::tmpfs::{Tmpfs, TmpfsOptions};

    fn new() -> Arc<Vfs> {
        let options = VfsOptions { entries_max: 1024, ..VfsOptions::default() };
        Vfs::new(Arc::new(Tmpfs::new(TmpfsOptions::default())), options).unwrap()
    }

    /// Inode number 0 marks unused entries of the index, so a lookup of this number must find no
    /// inode.
    #[test]
    fn number_zero_is_no_inode() {
        let vfs = new();
        assert_eq!(vfs.inode(0).err(), Some(Errno::STALE));
        assert_eq!(vfs.path_of_ino(0), Err(Errno::STALE));
        assert!(!vfs.forget(0, 1));
    }

    /// A directory must get a slot on pages that only directories use, even if a negative dentry of
    /// its name exists. Its dentry and its inode must share the slot.
    #[test]
    fn directories_lie_together() {
        let vfs = new();
        let (cred, root) = (Cred::root(), vfs.root());
        let mut batches = [vec![], vec![]];
        for i in 0..200 {
            let name = format!("n{i}");
            let name = Name::new(name.as_bytes()).unwrap();
            assert_eq!(vfs.lookup(&cred, &root, name).map(drop), Err(Errno::NOENT));
            let kind = [0o100_644, 0o040_755][i % 2];
            let (inode, _) = vfs.make(&cred, &root, name, Make::new(kind, 0, 0)).unwrap();
            assert_eq!(
                vfs.dcache.inodes.alias(inode.slot),
                inode.slot.dentry_half(),
                "the dentry and its inode have different slots"
            );
            batches[i % 2].push(inode.slot.get() / 64);
        }
        assert!(batches[0].iter().all(|batch| !batches[1].contains(batch)), "{batches:?}");
    }

    /// After another file has taken over a name, the name must lead to this file only, even if the
    /// cache has missed the earlier dentry. Trap T15 in `traps.md`.
    #[test]
    fn name_that_another_file_has_taken_leads_to_the_new_file() {
        let vfs = new();
        let (cred, root) = (Cred::root(), vfs.root());
        let [old, new, moved] =
            [&b"old"[..], b"new", b"moved"].map(|name| Name::new(name).unwrap());
        let make = |name| vfs.make(&cred, &root, name, Make::new(0o644, 0, 0)).unwrap().0;
        let files = [make(old), make(new), make(moved)];
        let (dcache, parent) = (&vfs.dcache, vfs.mounts.root());
        let key = dcache.key_of_held(parent);
        let lookup_key = dcache.lookup_key(old);
        let in_lookup = dcache.in_lookup.lock(dcache.in_lookup_key(parent, &lookup_key));
        let inode_of = |name| {
            let mut found = vec![];
            let lookup_key = dcache.lookup_key(name);
            while let Some((slot, seen)) = dcache.find_exact(key, &lookup_key) {
                found.push(seen.body.inode());
                assert!(dcache.get(slot, seen.seq));
                dcache.make_stale(slot);
            }
            found
        };
        let node = crate::dcache::DentryInode { inode: files[1].slot, kind: FileKind::Regular };
        let slot = dcache.publish(key, &lookup_key, Some(node), &in_lookup).unwrap();
        dcache.put(slot);
        assert_eq!(inode_of(old), [files[1].slot]);
        let slot = dcache.publish(key, &lookup_key, Some(node), &in_lookup).unwrap();
        dcache.put(slot);
        let from = dcache.lookup_key(moved);
        let (slot, seen) = dcache.find_exact(key, &from).unwrap();
        assert!(dcache.get(slot, seen.seq));
        assert_eq!(
            dcache.d_move(slot, &from, key, &lookup_key, None, &in_lookup),
            Ok(DentrySlot::NONE)
        );
        dcache.put(slot);
        assert_eq!(inode_of(old), [files[2].slot]);
        assert_eq!(inode_of(moved), []);
    }

    /// A cached name stores the lower half of its directory's child generation. A lookup finds the
    /// name only if the stored half is current. When the lower half wraps around, names that were
    /// cached long before must not be found. Trap T32 in `traps.md`.
    #[test]
    fn name_from_before_a_generation_wrap_is_not_found() {
        let vfs = new();
        let (cred, root, name) = (Cred::root(), vfs.root(), Name::new(b"f").unwrap());
        let (f, _) = vfs.make(&cred, &root, name, Make::new(0o644, 0, 0)).unwrap();
        vfs.invalidate_dir(&root).unwrap();
        let (dentries, slot) = (&vfs.dcache.dentries, vfs.mounts.root());
        let guard = dentries.lockref(slot).lock();
        let section = dentries.seq(slot).write();
        dentries.store_child_generation(slot, u64::from(u32::MAX));
        drop((section, guard));
        vfs.invalidate_dir(&root).unwrap();
        let misses = vfs.stats().misses;
        assert_eq!(vfs.lookup(&cred, &root, name).map(|found| found.ino()), Ok(f.ino()));
        assert_eq!(vfs.stats().misses, misses + 1, "the lookup does not ask the back end");
    }

    #[test]
    fn references_beyond_the_limit_are_refused_and_count_stays() {
        let vfs = new();
        let root = vfs.root();
        let lockref = vfs.dcache.inodes.lockref(root.slot);
        let extra = REFS_MAX - lockref.count();
        lockref.get_many(extra);
        let ino = root.ino();
        assert_eq!(vfs.inode(ino).map(drop), Err(Errno::NFILE));
        let clone = std::panic::AssertUnwindSafe(|| root.clone());
        assert!(std::panic::catch_unwind(clone).is_err());
        assert!(!vfs.forget(ino, 1), "forget succeeds though no lookup is held");
        assert_eq!(vfs.forget_all(ino), 0);
        assert_eq!(lockref.count(), REFS_MAX, "the failed call took a reference");
        lockref.put_many(extra);
        assert_eq!(vfs.inode(ino).map(|inode| inode.ino()), Ok(ino));
    }

    #[test]
    fn lookup_at_the_reference_limit_is_refused_and_count_stays() {
        let vfs = new();
        let (cred, root, name) = (Cred::root(), vfs.root(), Name::new(b"f").unwrap());
        let (f, _) = vfs.make(&cred, &root, name, Make::new(0o644, 0, 0)).unwrap();
        let lockref = vfs.dcache.inodes.lockref(f.slot);
        let lookup = || vfs.lookup(&cred, &root, name).map(|found| found.ino());
        let extra = REFS_MAX - lockref.count();
        lockref.get_many(extra - 1);
        assert_eq!(lookup(), Ok(f.ino()), "the lookup below the limit fails");
        lockref.get();
        let by_ino = vfs.lookup_by_ino(&cred, root.ino(), b"f").map(|found| found.inode.ino());
        assert_eq!((lookup(), by_ino), (Err(Errno::NFILE), Err(Errno::NFILE)));
        assert_eq!(lockref.count(), REFS_MAX, "the failed call took a reference");
        vfs.invalidate(&root, name).unwrap();
        assert_eq!(lookup(), Err(Errno::NFILE), "a lookup in the back end at the limit");
        lockref.put_many(extra);
        assert_eq!(lookup(), Ok(f.ino()));
    }

    #[test]
    fn lookups_at_their_limit_keep_the_inode_until_all_are_forgotten() {
        let vfs = new();
        let root = vfs.root();
        let (ino, lockref) = (root.ino(), vfs.dcache.inodes.lockref(root.slot));
        let before = lockref.count();
        lockref.get_many((LOOKUPS_MAX - 1) * LOOKUP);
        root.clone().into_lookups();
        assert_eq!(lockref.count(), before + LOOKUPS_MAX * LOOKUP);
        root.clone().into_lookups();
        assert_eq!(
            lockref.count(),
            before + LOOKUPS_MAX * LOOKUP,
            "a saturated lookup count was incremented"
        );
        assert!(vfs.forget(ino, LOOKUPS_MAX));
        assert_eq!(
            lockref.count(),
            before + LOOKUPS_MAX * LOOKUP,
            "a saturated lookup count was decremented"
        );
        assert_eq!(vfs.forget_all(ino), LOOKUPS_MAX);
        assert_eq!(lockref.count(), before);
    }
}
