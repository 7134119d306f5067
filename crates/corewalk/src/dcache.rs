//! The dentry cache: which names exist in a directory, as far as is known.
//!
//! A lookup hashes (number of the directory, name), scans one line of the table and compares one
//! dentry; it takes no lock and writes nothing. Changes are made by whoever holds the claim of the name
//! (`claim`), after the back end has agreed: they appear to readers at one instant, the end of a
//! write section (or the entry into the table, for a name that was not cached).
//!
//! A directory's children know it by its slot and its child generation. Invalidating a directory of
//! any size is one increment of that generation: the children can no longer be found. They go when
//! reclaim passes, or are put back when their name is entered again; the hash of a name does not
//! depend on the generation, so whoever enters it meets them.
//!
//! # Guarantees
//! - C.1: a cached answer is the one of the last committed change, or of a fill that no change,
//!   invalidation or removal overlapped (traps T15, T25, P12).
//! - C.2: a rename appears at once: no reader finds neither name, nor, with a target, two files
//!   under one name (traps T12, T13).
//! - C.3: nobody waits for a dying entry (trap T47); nothing here calls a back end while it holds a
//!   lock, and the last reference to an inode is dropped outside of all of them (trap T50).
//!
//! # Lock order
//! claims, `topology`, dentry locks (by slot), an inode's lock. A stripe of the table is locked with
//! no dentry lock held, since a stripe's exact lookup may wait for a dentry's writer.
//!
//! Source: Linux `fs/dcache.c`, path-lookup.rst; documents 001 and 003.

mod change;
mod reclaim;

use corewalk_base::ShardedCounter;
use corewalk_base::primitives::atomic::Ordering;
use corewalk_sync::SeqRwLock;

use crate::Errno;
use crate::claim::{Claims, SHARDS_MANY};
use crate::dentry::{
    Body, Dentries, Flags, Glimpse, Image, Key, Line, NameCopy, Needle, SHORT_MAX, ShortNeedle,
    directory_id,
};
use crate::hash::{Keys, NameHash};
use crate::inode::{self, Inodes};
use crate::name::Name;
use crate::table::{Extent, Table};

pub(crate) use change::{Mounted, Node, is_attached};
pub(crate) use reclaim::Hand;

/// Who is told what the cache lets go of, and asked to let go of what it holds.
pub(crate) trait Host: Send + Sync {
    /// The cache has let go of an inode. Its slot is free once this returns.
    fn forget(&self, superblock: u32, ino: u64, slot: u32);

    /// The cache is over its budget, and the host's use of the inode called `name` keeps it.
    fn ask_to_forget(&self, superblock: u32, parent: u64, name: Name<'_>);
}

/// The names and inodes of one namespace.
pub(crate) struct Dcache {
    pub(crate) keys: Keys,
    pub(crate) dentries: Dentries,
    pub(crate) inodes: Inodes,
    table: Table,
    pub(crate) claims: Claims,
    /// Written while a directory is moved; locking readers keep directories in place.
    pub(crate) topology: SeqRwLock,
    hand: Hand,
    pub(crate) counters: Counters,
    host: Box<dyn Host>,
}

/// What has happened so far. Nothing here is written by a lookup that hits.
#[derive(Default)]
pub(crate) struct Counters {
    pub(crate) negatives: ShardedCounter,
    /// Dentries of removed names that somebody still holds, or that have children.
    pub(crate) unhashed: ShardedCounter,
    pub(crate) fills: ShardedCounter,
    pub(crate) refused_fills: ShardedCounter,
    pub(crate) reclaimed: ShardedCounter,
    pub(crate) renames: ShardedCounter,
    pub(crate) invalidations: ShardedCounter,
    pub(crate) retries: ShardedCounter,
    pub(crate) fallbacks: ShardedCounter,
}

/// A directory, as its children's key was at one instant.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Directory {
    pub(crate) slot: u32,
    pub(crate) seq: u64,
    pub(crate) inode: u32,
    pub(crate) key: Key,
    pub(crate) flags: Flags,
}

/// A dentry as it was seen under a name.
pub(crate) struct Child<'a> {
    pub(crate) slot: u32,
    pub(crate) seen: Glimpse,
    pub(crate) line: Line<'a>,
}

impl Dcache {
    pub(crate) fn new(
        slots_max: u32,
        seed: Option<u64>,
        host: Box<dyn Host>,
    ) -> std::io::Result<Dcache> {
        let keys = Keys::new(seed);
        Ok(Dcache {
            dentries: Dentries::new(slots_max)?,
            inodes: Inodes::new(slots_max, keys.clone())?,
            table: Table::new("corewalk-dentry-table", slots_max, 6)?,
            claims: Claims::new(SHARDS_MANY),
            topology: SeqRwLock::new(),
            hand: Hand::new(),
            counters: Counters::default(),
            keys,
            host,
        })
    }

    // Lookup.

    /// Returns `name` with its hash.
    #[inline]
    pub(crate) fn needle<'a>(&self, name: Name<'a>) -> Needle<'a> {
        Needle::new(name, &self.keys)
    }

    /// Returns what the children of a directory, on whose dentry the caller has a reference, are entered
    /// under now. Those of one that has been removed are found by nobody.
    #[inline]
    pub(crate) fn key_of_held(&self, slot: u32) -> Key {
        Key::new(slot, self.dentries.child_generation_now(slot))
    }

    /// Returns the directory in `slot`, or None if there is none.
    pub(crate) fn directory(&self, slot: u32) -> Option<Directory> {
        loop {
            let seen = self.dentries.glimpse(slot);
            let key = Key::new(slot, self.dentries.child_generation(slot));
            if self.dentries.is_unchanged(slot, seen.seq) {
                let flags = seen.body.flags();
                return (flags.contains(Flags::DIRECTORY) && !seen.body.is_negative()).then(|| {
                    Directory { slot, seq: seen.seq, inode: seen.body.inode(), key, flags }
                });
            }
        }
    }

    /// Returns the dentry of a name. None means that none is cached or that it was missed; only
    /// [`Dcache::find_exact`] knows.
    #[inline]
    pub(crate) fn find(&self, key: Key, needle: &Needle<'_>) -> Option<(u32, Glimpse)> {
        let hash = self.hash(key.parent(), needle.hash);
        self.table
            .find(hash, |slot| self.dentries.compare(slot, key, needle).map(|seen| (slot, seen)))
    }

    /// As [`Dcache::find`], of the component that begins at `start` of a path and ends with it, in the
    /// directory that `id` tells apart. Only what is neither a symbolic link nor a mount point is found;
    /// the caller validates what it was seen under.
    pub(crate) fn find_plain(
        &self,
        (id, key): (u64, Key),
        (path, start): (&[u8], usize),
    ) -> Option<(u32, Glimpse)> {
        let needle = Needle::of_component(path, start, &self.keys);
        self.table.find(needle.hash.child(id) as u32, |slot| {
            let line = self.dentries.line(slot);
            let seen = line.glimpse_now();
            let is_plain = !seen.body.flags().intersects(Flags::SYMLINK | Flags::MOUNTED);
            let is_it = is_plain && seen.key == key && line.is_named(seen, &needle, &self.dentries);
            is_it.then_some((slot, seen))
        })
    }

    /// As [`Dcache::find_plain`], if one look is enough for it and it has the flags in `needed`. `before` is called with the slot that may
    /// be the name's, before it is looked at.
    #[inline(always)]
    pub(crate) fn find_at_once(
        &self,
        extent: Extent,
        (id, key): (u64, Key),
        (path, start): (&[u8], usize),
        needed: Flags,
        before: impl Fn(u32),
    ) -> Option<Child<'_>> {
        if path.len() - start > SHORT_MAX {
            return None;
        }
        let needle = ShortNeedle::of_component((path, start), needed, &self.keys);
        let slot = self.table.first_within(extent, needle.hash.child(id) as u32)?;
        before(slot);
        let line = self.dentries.line(slot);
        line.plain(key, &needle).map(|seen| Child { slot, seen, line })
    }

    /// Returns the size of the index, for [`Dcache::find_at_once`].
    #[inline]
    pub(crate) fn extent(&self) -> Extent {
        self.table.extent()
    }

    /// Returns the dentry of a name, for sure if the caller holds the name's claim.
    pub(crate) fn find_exact(&self, key: Key, needle: &Needle<'_>) -> Option<(u32, Glimpse)> {
        self.table
            .lock(self.hash(key.parent(), needle.hash))
            .find(|slot| self.dentries.compare(slot, key, needle).map(|seen| (slot, seen)))
    }

    /// Takes `n` references on the inode of `needle` in the directory numbered `ino` of the first file
    /// system, and returns its number. Nothing else of that directory is looked at but whether it
    /// still is the parent. None if that needs more than a look: the name is not cached, was missed,
    /// is negative, or changes.
    ///
    /// The instant of the answer is the look at the parent's generation: the dentry was the same
    /// before it and after the count went up.
    #[inline]
    pub(crate) fn count_by_number(&self, ino: u64, name: &[u8], n: u64) -> Option<u64> {
        let needle = Needle::new(Name::unchecked(name), &self.keys);
        let hash = needle.hash.child(directory_id(0, ino)) as u32;
        let (dentry, seen) = self.table.find(hash, |slot| {
            self.inodes.prefetch(slot);
            let dentry = self.dentries.line(slot);
            let seen = dentry.glimpse_now();
            let is_it =
                dentry.is_named(seen, &needle, &self.dentries) && self.is_parent(seen.key, ino);
            is_it.then_some((dentry, seen))
        })?;
        let inode = seen.body.inode();
        if seen.body.superblock() != 0 || inode == 0 {
            return None;
        }
        let (lockref, number) = self.inodes.counted(inode);
        // One at first: before the dentry is validated they are not the client's, and one that forgets
        // more than it has would take them, and with them what the slot is reused for.
        if !lockref.get_not_dead() {
            return None;
        }
        // Counts that are as good as full are left to the slow path, which lets them be.
        if !dentry.is_unchanged(seen.seq) || !lockref.get_many_below(n - 1, n << 32) {
            return self.uncount(inode);
        }
        // ORDERING: Relaxed. Fixed while a reference is held.
        Some(number.load(Ordering::Relaxed))
    }

    #[cold]
    #[inline(never)]
    fn uncount(&self, inode: u32) -> Option<u64> {
        self.put_inode(inode, 1);
        None
    }

    /// Returns true if `key`, of a child in the first file system, is that of the directory numbered
    /// `ino`. As good as the child's sequence says afterwards: a child holds its parent, whose number
    /// is fixed (D.3, D.4), and the generation is one word, which tells the instant. A directory that
    /// is removed gets another generation, so it need not be looked at whether it has a name.
    #[inline]
    fn is_parent(&self, key: Key, ino: u64) -> bool {
        let now = self.dentries.line(key.parent()).directory_words();
        now.ino == ino && now.child_generation as u32 == key.0 as u32
    }

    /// Returns the claim key of a name in a directory. The generation has no part in it: a name is
    /// the same name before and after an invalidation.
    pub(crate) fn claim_key(&self, directory: u32, needle: &Needle<'_>) -> u64 {
        needle.hash.child(u64::from(directory) << 32)
    }

    #[inline]
    fn hash(&self, parent: u32, name_hash: NameHash) -> u32 {
        name_hash.child(self.dentries.directory_id(parent)) as u32
    }

    /// Returns the table hash of what `image` says. The caller holds the dentry's lock or owns it.
    fn hash_of(&self, slot: u32, image: &Image) -> u32 {
        let mut copy = NameCopy::new();
        self.dentries.copy_name(slot, image.body, &mut copy);
        let name = Name::new(copy.as_bytes()).expect("a hashed dentry has a valid name");
        self.hash(image.key.parent(), self.needle(name).hash)
    }

    // References.

    /// Takes a reference on a dentry that was seen under `seq`. Fails if it has changed since.
    pub(crate) fn get(&self, slot: u32, seq: u64) -> bool {
        if !self.dentries.lockref(slot).get_not_dead() {
            return false;
        }
        if self.dentries.is_unchanged(slot, seq) {
            self.dentries.cold(slot).touch();
            return true;
        }
        self.put(slot);
        false
    }

    /// Takes a reference on the inode of a dentry that was seen under `seq`. Fails if the dentry has
    /// changed since.
    #[inline]
    pub(crate) fn get_inode(&self, slot: u32, seq: u64, inode: u32) -> bool {
        if !self.inodes.lockref(inode).get_not_dead() {
            return false;
        }
        if self.dentries.is_unchanged(slot, seq) {
            return true;
        }
        self.put_inode(inode, 1);
        false
    }

    /// Drops a reference on a dentry. An unhashed one dies with its last reference, and then drops
    /// its own on its parent: a loop, however deep the tree (trap T43).
    pub(crate) fn put(&self, slot: u32) {
        let mut slot = slot;
        while slot != 0 {
            let Some(mut guard) = self.dentries.lockref(slot).put_or_lock() else { return };
            guard.sub(1);
            if guard.count() > 0 {
                return;
            }
            let image = self.dentries.image(slot);
            if image.body.is_hashed() || image.body.flags().contains(Flags::ROOT) {
                return;
            }
            let dead = self.kill(slot, guard);
            self.end_life(slot, &dead);
            self.counters.unhashed.add(-1);
            slot = dead.parent;
        }
    }

    /// Drops `n` references on an inode, and tells the back end if they were the last.
    pub(crate) fn put_inode(&self, inode: u32, n: u64) {
        if self.inodes.put(inode, n) {
            let (superblock, ino) = (self.inodes.superblock(inode), self.inodes.ino(inode));
            let _end = EndOfInode { dcache: self, inode };
            self.host.forget(superblock, ino, inode);
        }
    }

    /// Returns a counted dentry of a directory inode, if it has one.
    pub(crate) fn get_directory(&self, inode: u32) -> Option<Directory> {
        loop {
            let slot = self.inodes.alias(inode);
            if slot != 0 && self.dentries.lockref(slot).get_not_dead() {
                match self.directory(slot) {
                    Some(directory) if directory.inode == inode => return Some(directory),
                    _ => self.put(slot),
                }
            }
            if self.inodes.alias(inode) == slot {
                return None;
            }
        }
    }

    /// Returns a counted dentry of an inode, if it has one.
    pub(crate) fn get_alias(&self, inode: u32) -> Option<u32> {
        loop {
            let slot = self.inodes.alias(inode);
            if slot != 0 && self.dentries.lockref(slot).get_not_dead() {
                if self.dentries.glimpse(slot).body.inode() == inode {
                    return Some(slot);
                }
                self.put(slot);
            }
            if self.inodes.alias(inode) == slot {
                return None;
            }
        }
    }

    /// Returns the parent's slot; the root is its own parent.
    pub(crate) fn parent(&self, slot: u32) -> (u32, u64) {
        loop {
            let seen = self.dentries.glimpse(slot);
            if self.dentries.is_unchanged(slot, seen.seq) {
                return (seen.key.parent(), seen.seq);
            }
        }
    }

    /// Returns the parent's slot and the name of a dentry, as they were at one instant.
    pub(crate) fn name_of(&self, slot: u32) -> (u32, NameCopy) {
        let mut copy = NameCopy::new();
        loop {
            let seen = self.dentries.glimpse(slot);
            self.dentries.copy_name(slot, seen.body, &mut copy);
            if self.dentries.is_unchanged(slot, seen.seq) {
                return (seen.key.parent(), copy);
            }
        }
    }

    /// Returns true if `slot` is `ancestor` or below it. The caller holds `topology`, so that no
    /// directory moves; otherwise the answer is a guess.
    pub(crate) fn is_subdir(&self, slot: u32, ancestor: u32) -> bool {
        let mut at = slot;
        loop {
            if at == ancestor {
                return true;
            }
            let (parent, _) = self.parent(at);
            if parent == at || parent == 0 {
                return false;
            }
            at = parent;
        }
    }

    // Statistics.

    /// Returns the bytes that the cache takes: dentries, inodes, names and tables in use.
    pub(crate) fn bytes(&self) -> u64 {
        self.dentries.bytes(inode::WORDS) + self.inodes.table_bytes() + self.table.bytes()
    }
}

/// Ends the life of an inode, also if the back end panics when it is told.
struct EndOfInode<'a> {
    dcache: &'a Dcache,
    inode: u32,
}

impl Drop for EndOfInode<'_> {
    fn drop(&mut self) {
        self.dcache.inodes.free(self.inode, &self.dcache.dentries);
    }
}

/// Returns `ENOMEM` where an arena has no slot left.
pub(crate) fn full<T>(slot: Option<T>) -> Result<T, Errno> {
    slot.ok_or(Errno::NOMEM)
}

/// Returns the body of a dentry that nobody can find any more: without an inode, too.
fn unhashed(body: Body) -> Body {
    body.with_flags(body.flags() - Flags::HASHED).with_inode(0)
}

#[cfg(all(test, corewalk_loom))]
mod loom_models;
