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
//! - V.3: an operation that a back end is slow at delays only operations on the same name; a change
//!   of attributes, and a write that takes set-user-ID away, only others on the same inode. An error
//!   that says that something is gone (`ENOENT`, `ESTALE`) also waits for whoever works on the name of
//!   the directory or file that was asked about. A back end by path that asks for a path waits for
//!   renames of what is on it, and they wait for the call (`FileSystem`, F.6).
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
mod by_number;
mod call;
mod forget;
mod held;
mod hidden;
mod io;
mod names;
mod paths;
mod rename;
mod revalidate;

pub(crate) use attributes::Checked;
pub(crate) use held::{Place, Unattached};
pub use io::Fsync;
pub use names::Removal;

use std::fmt;
use std::sync::{Arc, OnceLock};

use corewalk_base::{Mutex, ShardedCounter};

use crate::Errno;
use crate::attr::{Attr, FileKind};
use crate::dcache::{Dcache, Host};
use crate::fs::FileSystem;
use crate::key_lock::{KeyLocks, SHARDS_FEW};
use crate::mount::Mounts;
use crate::name::Name;
use paths::Paths;
use rename::{InFlightMoves, InFlightRenames};

/// What one lookup held outside adds to an inode's count. Below it are 28 bits for references held
/// inside (dentries and `InodeRef`s), above it 33 bits for lookups: both in one word, so that a
/// forget is checked and done in one step.
const LOOKUP: u64 = 1 << 28;
/// References held inside from which on no more are given out: half of what there is room for. The rest
/// is for dentries, and for threads that have counted and not looked yet.
const REFS_MAX: u64 = LOOKUP / 2;
/// Lookups from which on an inode is kept for good (unless [`Vfs::forget_all`] ends it) and they are
/// no longer counted: a client that never forgets does not wrap the count around.
const LOOKUPS_MAX: u64 = 1 << 32;
/// File systems a namespace can hold over its life; see [`Vfs::mount`].
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
/// A FUSE server wakes a thread that calls [`Vfs::reclaim`] and asks the kernel to forget; it must not
/// do so on the thread that it is called on, which serves a request.
pub trait Pressure: Send + Sync {
    /// The entry `name` of the directory `parent` is only kept because the host uses its inode.
    fn please_forget(&self, parent: u64, name: Name<'_>);
}

/// An entry that is kept only because somebody outside uses its inode.
#[derive(Clone, Copy, Debug)]
pub struct Pinned<'a> {
    /// The entry, for [`Vfs::evict`].
    pub entry: EntryId,
    /// The number of its inode.
    pub ino: u64,
    /// The kind of file.
    pub kind: FileKind,
    /// The number of the directory that it is in.
    pub parent: u64,
    /// Its name there.
    pub name: Name<'a>,
}

/// The place of an entry in the cache. Another may have it by the time it is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EntryId(u32);

/// A namespace. See the module's text.
pub struct Vfs {
    pub(crate) dcache: Dcache,
    pub(crate) supers: Arc<Supers>,
    pub(crate) mounts: Mounts,
    in_flight_moves: InFlightMoves,
    in_flight_renames: InFlightRenames,
    /// Who changes the attributes of an inode: see `attributes`.
    attr_locks: KeyLocks,
}

/// A file system in use.
pub(crate) struct Superblock {
    pub(crate) fs: Arc<dyn FileSystem>,
    root_ino: u64,
    /// The path locks, for a back end by path.
    paths: Option<Paths>,
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
    /// the cache, or the memory for its first entry, cannot be had.
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
            in_flight_moves: InFlightMoves::new(),
            in_flight_renames: InFlightRenames::new(),
            attr_locks: KeyLocks::new(SHARDS_FEW),
        };
        let attr = root_of(&*fs)?;
        let root = vfs.add_superblock(fs, &attr)?;
        vfs.mounts.set_root(root);
        Ok(Arc::new(vfs))
    }

    /// Sets who hears that the cache needs room, once.
    ///
    /// # Errors
    /// `EBUSY` if one is set.
    pub fn set_pressure(&self, pressure: Box<dyn Pressure>) -> Result<(), Errno> {
        self.supers.pressure.set(pressure).map_err(|_| Errno::BUSY)
    }

    /// Returns the root directory.
    ///
    /// # Panics
    /// Panics if 2 to the 27th references on it are held.
    pub fn root(&self) -> InodeRef<'_> {
        let dentry = self.mounts.root();
        let inode = self.dcache.directory(dentry).expect("the root is a directory").inode;
        self.dcache.inodes.lockref(inode).get();
        let root = InodeRef { vfs: self, slot: inode };
        assert!(!root.is_saturated(), "too many references to the root");
        root
    }

    /// Returns the inode of the root's file system with this number, if it is in use: looked up
    /// before and not forgotten since.
    ///
    /// # Errors
    /// `ESTALE` if it is not; `ENFILE` if 2 to the 27th references on it are held.
    pub fn inode(&self, ino: u64) -> Result<InodeRef<'_>, Errno> {
        self.in_use(ino).ok_or(Errno::STALE)?.unless_saturated()
    }

    fn in_use(&self, ino: u64) -> Option<InodeRef<'_>> {
        let slot = self.dcache.inodes.get(0, ino, |stray| self.dcache.put_inode(stray, 1));
        slot.map(|slot| InodeRef { vfs: self, slot })
    }

    /// Returns the file system that an inode belongs to.
    pub(crate) fn fs(&self, inode: u32) -> &dyn FileSystem {
        &*self.superblock(inode).fs
    }

    /// Returns the file system that an inode belongs to, with what is kept for it.
    #[inline]
    pub(crate) fn superblock(&self, inode: u32) -> &Superblock {
        self.supers.get(self.dcache.inodes.superblock(inode))
    }

    /// Takes in a file system whose root `attr` is, and returns its root dentry, counted for whoever
    /// mounts it. The caller holds no lock.
    ///
    /// # Errors
    /// `ENFILE` if there have been too many; `ENOMEM`.
    pub(crate) fn add_superblock(
        &self,
        fs: Arc<dyn FileSystem>,
        attr: &Attr,
    ) -> Result<u32, Errno> {
        let superblock = self.supers.add(fs, attr.ino)?;
        let inodes = &self.dcache.inodes;
        let (dentries, place) = (&self.dcache.dentries, (superblock, 0));
        let enter = || inodes.get_or_insert(dentries, place, attr, attr.has_acl, inodes.changes());
        let entered = enter().or_else(|| {
            self.dcache.prune();
            enter()
        });
        let Some(entered) = entered else {
            self.supers.get(superblock).fs.forget(attr.ino);
            return Err(Errno::NOMEM);
        };
        let publish = || self.dcache.publish_root(entered.slot);
        let published = publish().or_else(|_| {
            self.dcache.prune();
            publish()
        });
        published.inspect_err(|_| self.dcache.put_inode(entered.slot, 1))
    }

    /// Evicts everything that is not in use. Returns how many entries that were.
    pub fn prune(&self) -> u64 {
        self.dcache.prune()
    }

    /// Makes room, also of what the fills that go along make none of: evicts entries that are not in
    /// use, at first those that were not used lately, and reports to `pinned` those that only the use
    /// of their inode outside keeps, until both together are `want` or each entry was looked at once.
    /// Returns how many were evicted.
    ///
    /// It works as long as it takes, so it is for a thread that serves nobody. An entry that was
    /// reported and has been let go of since goes with [`Vfs::evict`].
    ///
    /// # Examples
    /// ```
    /// use std::sync::Arc;
    /// use corewalk::{Cred, Make, Name, Vfs, VfsOptions, tmpfs::{Tmpfs, TmpfsOptions}};
    ///
    /// let fs = Arc::new(Tmpfs::new(TmpfsOptions::default()));
    /// let vfs = Vfs::new(fs, VfsOptions::default())?;
    /// let (cred, root) = (Cred::root(), vfs.root());
    /// let make = |name| vfs.make(&cred, &root, Name::new(name)?, Make::new(0o644, 0, 0));
    /// drop(make(b"unused")?);
    /// let held = make(b"used")?.0.into_lookups();
    /// let mut pinned = vec![];
    /// // The first time an entry that was used lately gets a second chance.
    /// let evicted: u64 = (0..2)
    ///     .map(|_| vfs.reclaim(10, &mut |entry| pinned.push((entry.entry, entry.ino))))
    ///     .sum();
    /// assert_eq!((evicted, pinned.len(), pinned[0].1), (1, 1, held));
    /// assert_eq!(vfs.evict(pinned[0].0), 0, "it is in use");
    /// vfs.forget(held, 1);
    /// assert_eq!(vfs.evict(pinned[0].0), 1);
    /// # Ok::<(), corewalk::Errno>(())
    /// ```
    pub fn reclaim(&self, want: u64, pinned: &mut dyn FnMut(Pinned<'_>)) -> u64 {
        let inodes = &self.dcache.inodes;
        self.dcache.reclaim(want, &mut |slot, inode, parent, name| {
            if inodes.superblock(inode) == 0 {
                let (ino, kind) = (inodes.ino(inode), inodes.kind(inode));
                pinned(Pinned {
                    entry: EntryId(slot),
                    ino,
                    kind,
                    parent: inodes.ino(parent),
                    name,
                });
            }
        })
    }

    /// Evicts an entry that [`Vfs::reclaim`] reported, unless it is in use; and the parents that are
    /// left without children. Returns how many entries went.
    pub fn evict(&self, entry: EntryId) -> u64 {
        self.dcache.evict_entry(entry.0)
    }

    /// Returns what the cache holds and has done.
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
        // Unlinked files that a client has never forgotten.
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
    /// Passes of walks and of path translations that came to nothing, since something on the way had
    /// changed.
    pub retries: u64,
    /// Walks that began again so often that they took references on the way, and translations that
    /// kept directories in place.
    pub fallbacks: u64,
    /// Renames and exchanges.
    pub renames: u64,
    /// Invalidations.
    pub invalidations: u64,
}

/// A counted inode. Cheap to take, write-free to keep.
///
/// A clone panics if 2 to the 27th references to the inode are held.
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
        let lockref = self.vfs.dcache.inodes.lockref(self.slot);
        // As many threads as there are may pass this at once: there is room for as many again.
        if lockref.count() < LOOKUPS_MAX * LOOKUP {
            // The reference itself becomes part of the unit.
            lockref.get_many(LOOKUP - 1);
            std::mem::forget(self);
        }
        ino
    }

    /// Returns the reference, unless so many are held that it should not be.
    ///
    /// # Errors
    /// `ENFILE`; the reference is then dropped.
    #[inline]
    pub(crate) fn unless_saturated(self) -> Result<InodeRef<'v>, Errno> {
        if self.is_saturated() { Err(Errno::NFILE) } else { Ok(self) }
    }

    /// Returns true if so many references are held that no more should be.
    #[inline]
    fn is_saturated(&self) -> bool {
        self.vfs.dcache.inodes.lockref(self.slot).count() % LOOKUP > REFS_MAX
    }

    /// Returns a path of the inode from the root of its file system, as it was at one instant.
    ///
    /// # Errors
    /// `ENOENT` if it has no name left.
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

/// Returns the attributes of the root of `fs`, which is asked.
///
/// # Errors
/// `ENOTDIR` if it is no directory; what `fs` says.
pub(crate) fn root_of(fs: &dyn FileSystem) -> Result<Attr, Errno> {
    fs.root().and_then(|attr| if attr.is_dir() { Ok(attr) } else { Err(Errno::NOTDIR) })
}

impl Supers {
    pub(crate) fn get(&self, superblock: u32) -> &Superblock {
        self.list[superblock as usize].get().expect("an inode's superblock exists")
    }

    fn add(&self, fs: Arc<dyn FileSystem>, root_ino: u64) -> Result<u32, Errno> {
        let paths = Paths::new(fs.addressing());
        let mut used = self.used.lock();
        let index = *used;
        let place = self.list.get(index as usize).ok_or(Errno::NFILE)?;
        place.set(Superblock { fs, root_ino, paths }).ok().expect("each place is taken once");
        *used += 1;
        Ok(index)
    }
}

impl Host for Arc<Supers> {
    fn forget(&self, superblock: u32, ino: u64, slot: u32) {
        let superblock = self.get(superblock);
        if let Some(hidden) = superblock.paths.as_ref().and_then(|paths| paths.forget(slot)) {
            superblock.remove_hidden(&hidden);
        }
        hidden::contained(|| superblock.fs.forget(ino));
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

    /// No inode has number 0, which entries of the index that are not in use look like.
    #[test]
    fn number_zero_is_no_inode() {
        let vfs = new();
        assert_eq!(vfs.inode(0).err(), Some(Errno::STALE));
        assert_eq!(vfs.path_of_number(0), Err(Errno::STALE));
        assert!(!vfs.forget(0, 1));
    }

    /// Directories have slots beside each other, also where their names were known to be missing, and
    /// their inodes lie in the same ones.
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
            assert_eq!(vfs.dcache.inodes.alias(inode.slot), inode.slot, "one slot for both");
            batches[i % 2].push(inode.slot / 64);
        }
        assert!(batches[0].iter().all(|batch| !batches[1].contains(batch)), "{batches:?}");
    }

    /// Trap T15: a name that was missed before the back end was asked, and which stands for another file
    /// there by then, is that of the new file alone.
    #[test]
    fn name_that_was_missed_and_became_another_file_leads_to_that() {
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
        // As a fill that missed the name.
        let node = crate::dcache::DentryInode { inode: files[1].slot, kind: FileKind::Regular };
        let slot = dcache.publish(key, &lookup_key, Some(node), &in_lookup).unwrap();
        dcache.put(slot);
        assert_eq!(inode_of(old), [files[1].slot]);
        // As a rename that missed its target.
        let slot = dcache.publish(key, &lookup_key, Some(node), &in_lookup).unwrap();
        dcache.put(slot);
        let from = dcache.lookup_key(moved);
        let (slot, seen) = dcache.find_exact(key, &from).unwrap();
        assert!(dcache.get(slot, seen.seq));
        assert_eq!(dcache.d_move((slot, &from), key, &lookup_key, None, &in_lookup), Ok(0));
        dcache.put(slot);
        assert_eq!(inode_of(old), [files[2].slot]);
        assert_eq!(inode_of(moved), []);
    }

    /// Trap T32: the half of a directory's child generation that keys hold comes round, and what is held
    /// since before is not found.
    #[test]
    fn name_from_before_the_generation_came_round_is_not_found() {
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
        assert_eq!(vfs.stats().misses, misses + 1, "the back end was asked");
    }

    #[test]
    fn references_at_their_limit_are_refused_and_counted_right() {
        let vfs = new();
        let root = vfs.root();
        let lockref = vfs.dcache.inodes.lockref(root.slot);
        let extra = REFS_MAX - lockref.count();
        lockref.get_many(extra);
        let ino = root.ino();
        assert_eq!(vfs.inode(ino).map(drop), Err(Errno::NFILE));
        let clone = std::panic::AssertUnwindSafe(|| root.clone());
        assert!(std::panic::catch_unwind(clone).is_err());
        assert!(!vfs.forget(ino, 1), "no lookup is held");
        assert_eq!(vfs.forget_all(ino), 0);
        assert_eq!(lockref.count(), REFS_MAX, "what failed took nothing");
        lockref.put_many(extra);
        assert_eq!(vfs.inode(ino).map(|inode| inode.ino()), Ok(ino));
    }

    #[test]
    fn lookup_of_what_is_held_too_often_is_refused_and_takes_nothing() {
        let vfs = new();
        let (cred, root, name) = (Cred::root(), vfs.root(), Name::new(b"f").unwrap());
        let (f, _) = vfs.make(&cred, &root, name, Make::new(0o644, 0, 0)).unwrap();
        let lockref = vfs.dcache.inodes.lockref(f.slot);
        let lookup = || vfs.lookup(&cred, &root, name).map(|found| found.ino());
        let extra = REFS_MAX - lockref.count();
        lockref.get_many(extra - 1);
        assert_eq!(lookup(), Ok(f.ino()), "one is left");
        lockref.get();
        assert_eq!(lookup(), Err(Errno::NFILE));
        assert_eq!(lockref.count(), REFS_MAX, "what failed took nothing");
        vfs.invalidate(&root, name).unwrap();
        assert_eq!(lookup(), Err(Errno::NFILE), "also past the cache");
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
        assert_eq!(lockref.count(), before + LOOKUPS_MAX * LOOKUP, "no more are counted");
        assert!(vfs.forget(ino, LOOKUPS_MAX));
        assert_eq!(lockref.count(), before + LOOKUPS_MAX * LOOKUP, "none are taken away");
        assert_eq!(vfs.forget_all(ino), LOOKUPS_MAX);
        assert_eq!(lockref.count(), before);
    }
}
