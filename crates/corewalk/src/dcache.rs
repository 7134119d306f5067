//! The dentry cache: the known names of each directory.
//!
//! To look up a name, a thread hashes the directory's inode number and the name. It scans one cache
//! line of the hash table, and compares one dentry. It takes no lock and writes nothing.
//!
//! A thread that changes a name holds the name's in-lookup lock (`key_lock`). It calls the back end
//! first, and then changes the cache. Readers see a new name once it is in the hash table, and any
//! other change at the end of the dentry's seqlock write section.
//!
//! Each directory has a counter, its child generation. The dentry of a child stores a parent key:
//! the directory's slot number, and the value that the counter had when the name was cached. No
//! lookup finds a dentry with an old parent key.
//!
//! One increment of a directory's child generation invalidates all names in the directory, because
//! their dentries then have an old parent key. Such stale dentries are evicted later.
//!
//! If a thread adds an invalidated name again, it reuses the stale dentry and gives it the current
//! parent key. It finds the dentry by the hash of the name, which does not depend on the child
//! generation.
//!
//! # Guarantees
//! - C.1: a cached answer comes from the last committed change of the name, or from a fill. (A fill
//!   adds an answer of the back end to the cache.) No change, invalidation or removal of the name
//!   overlapped that fill (traps T15, T25, P12 in `traps.md`).
//! - C.2: a rename appears at one instant. No reader misses both names, or finds two files under
//!   one name (traps T12, T13).
//! - C.3: no thread busy-waits for a dying dentry or inode (trap T47). No back end is called under
//!   the lock of a dentry, an inode or a table. The last reference to an inode is dropped outside
//!   of all locks (trap T50).
//!
//! # Lock order
//! Locks are taken in this order: in-lookup locks, `topology`, dentry locks (by slot), an inode's
//! lock. A thread that locks a stripe of the table (a group of buckets) holds no dentry lock. The
//! reason is that a lookup under the stripe's lock may wait for the writer of a dentry.
//!
//! Source: Linux `fs/dcache.c`, path-lookup.rst; documents 001 and 003.

mod change;
mod invalidate;
mod listings;
mod reclaim;

use corewalk_base::ShardedCounter;
use corewalk_sync::SeqRwLock;

use crate::Errno;
use crate::dentry::{
    Body, Component, Dentries, Flags, INLINE_MAX, Image, Line, LookupKey, NameCopy, ParentKey,
    SHORT_MAX, ShortLookupKey, Snapshot, directory_id,
};
use crate::hash::{HashKeys, NameHash};
use crate::inode::{self, Inodes};
use crate::key_lock::{KeyLocks, SHARDS_MANY};
use crate::name::Name;
use crate::slot::{DentrySlot, InodeSlot, OfDentry, Seq};
use crate::table::{Extent, Table};

pub(crate) use change::{DentryInode, Mounted};
pub(crate) use listings::{ListingMark, Listings};
pub(crate) use reclaim::Hand;

/// The callbacks of the dentry cache. The namespace that owns the cache implements them.
pub(crate) trait Host: Send + Sync {
    /// Tells the back end that the cache has dropped an inode. The inode's slot is reused after
    /// this method returns.
    fn forget(&self, superblock: u32, ino: u64, generation: u64, slot: InodeSlot);

    /// Asks the owner to drop its references on the inode of `name`, which keep the cache from
    /// evicting the name. The cache calls this method when it is over its memory budget.
    fn ask_to_forget(&self, superblock: u32, parent: u64, name: Name<'_>);
}

/// The names and inodes of one namespace. Analogous to Linux's `dentry_hashtable` and
/// `inode_hashtable`.
pub(crate) struct Dcache {
    pub(crate) keys: HashKeys,
    pub(crate) dentries: Dentries,
    pub(crate) inodes: Inodes,
    table: Table<OfDentry>,
    /// The in-lookup locks of names. A thread must hold a name's lock to add a dentry under that
    /// name, or to move one to it. Analogous to Linux's `in_lookup_hashtable`.
    pub(crate) in_lookup: KeyLocks,
    pub(crate) listings: Listings,
    /// A lock on the parents of all directories. A thread that moves a directory holds the lock for
    /// writing. A thread that holds it shared keeps all directories in place. Analogous to Linux's
    /// `rename_lock`.
    pub(crate) topology: SeqRwLock,
    hand: Hand,
    pub(crate) counters: Counters,
    host: Box<dyn Host>,
}

/// Counts of events. A lookup that hits the cache writes none of these counters.
#[derive(Default)]
pub(crate) struct Counters {
    pub(crate) negatives: ShardedCounter,
    /// The number of dentries of removed names that are still referenced, or have children.
    pub(crate) unhashed: ShardedCounter,
    pub(crate) fills: ShardedCounter,
    pub(crate) refused_fills: ShardedCounter,
    pub(crate) reclaimed: ShardedCounter,
    pub(crate) renames: ShardedCounter,
    pub(crate) invalidations: ShardedCounter,
    pub(crate) retries: ShardedCounter,
    pub(crate) fallbacks: ShardedCounter,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Directory {
    pub(crate) slot: DentrySlot,
    pub(crate) seq: Seq,
    pub(crate) inode: InodeSlot,
    pub(crate) key: ParentKey,
    pub(crate) flags: Flags,
}

#[derive(Clone, Copy)]
pub(crate) struct LookupParent {
    pub(crate) id: u64,
    pub(crate) key: ParentKey,
}

pub(crate) struct Child<'a> {
    pub(crate) slot: DentrySlot,
    pub(crate) seen: Snapshot,
    pub(crate) line: Line<'a>,
}

impl Dcache {
    pub(crate) fn new(
        slots_max: u32,
        seed: Option<u64>,
        host: Box<dyn Host>,
    ) -> std::io::Result<Dcache> {
        let keys = HashKeys::new(seed);
        Ok(Dcache {
            dentries: Dentries::new(slots_max)?,
            inodes: Inodes::new(slots_max, keys.clone())?,
            table: Table::new("corewalk-dentry-table", slots_max, 6)?,
            in_lookup: KeyLocks::new(SHARDS_MANY),
            listings: Listings::new(),
            topology: SeqRwLock::new(),
            hand: Hand::new(),
            counters: Counters::default(),
            keys,
            host,
        })
    }

    #[inline]
    pub(crate) fn lookup_key<'a>(&self, name: Name<'a>) -> LookupKey<'a> {
        LookupKey::new(name, &self.keys)
    }

    /// Returns the current parent key for children of a directory. The caller holds a reference on
    /// the directory's dentry.
    #[inline]
    pub(crate) fn key_of_held(&self, slot: DentrySlot) -> ParentKey {
        ParentKey::new(slot, self.dentries.child_generation_now(slot))
    }

    pub(crate) fn directory(&self, slot: DentrySlot) -> Option<Directory> {
        loop {
            let seen = self.dentries.snapshot(slot);
            let key = ParentKey::new(slot, self.dentries.child_generation(slot));
            if self.dentries.is_unchanged(slot, seen.seq) {
                let flags = seen.body.flags();
                return (flags.contains(Flags::DIRECTORY) && !seen.body.is_negative()).then(|| {
                    Directory { slot, seq: seen.seq, inode: seen.body.inode(), key, flags }
                });
            }
        }
    }

    /// Looks up the dentry of a name without a lock. None does not prove that the name has no
    /// dentry; [`Dcache::find_exact`] does.
    #[inline]
    pub(crate) fn find(
        &self,
        key: ParentKey,
        lookup_key: &LookupKey<'_>,
    ) -> Option<(DentrySlot, Snapshot)> {
        let hash = self.hash(key.parent(), lookup_key.hash);
        self.table.find(hash, |slot| {
            self.dentries.compare(slot, key, lookup_key).map(|seen| (slot, seen))
        })
    }

    /// Like [`Dcache::find`], but finds neither symbolic links nor mount points. The caller
    /// validates the returned snapshot.
    pub(crate) fn find_plain(
        &self,
        parent: LookupParent,
        component: Component<'_>,
    ) -> Option<(DentrySlot, Snapshot)> {
        let lookup_key = LookupKey::of_component(component, &self.keys);
        self.table.find(lookup_key.hash.child(parent.id) as u32, |slot| {
            let line = self.dentries.line(slot);
            let seen = line.snapshot_now();
            let is_plain = !seen.body.flags().intersects(Flags::SYMLINK | Flags::MOUNTED);
            let is_it = is_plain
                && seen.key == parent.key
                && line.is_named(seen, &lookup_key, &self.dentries);
            is_it.then_some((slot, seen))
        })
    }

    /// Looks up a component of at most [`SHORT_MAX`] bytes in as few steps as possible, and returns
    /// its dentry. Compares only the first dentry whose entry in the hash table matches the name's
    /// hash.
    ///
    /// Calls `before` with the dentry's slot before it reads the dentry, so that the caller can
    /// prefetch.
    #[inline(always)]
    pub(crate) fn find_at_once(
        &self,
        extent: Extent,
        parent: LookupParent,
        component: Component<'_>,
        needed: Flags,
        before: impl Fn(DentrySlot),
    ) -> Option<Child<'_>> {
        if component.len() > SHORT_MAX {
            return None;
        }
        let lookup_key = ShortLookupKey::of_component(component, needed, &self.keys);
        let slot = self.table.first_within(extent, lookup_key.hash.child(parent.id) as u32)?;
        before(slot);
        let line = self.dentries.line(slot);
        line.plain(parent.key, &lookup_key).map(|seen| Child { slot, seen, line })
    }

    #[inline]
    pub(crate) fn extent(&self) -> Extent {
        self.table.extent()
    }

    /// Looks up the dentry of a name under the lock of the name's hash bucket. If the caller also
    /// holds the name's in-lookup lock, None proves that the name has no dentry.
    pub(crate) fn find_exact(
        &self,
        key: ParentKey,
        lookup_key: &LookupKey<'_>,
    ) -> Option<(DentrySlot, Snapshot)> {
        self.table
            .lock(self.hash(key.parent(), lookup_key.hash))
            .find(|slot| self.dentries.compare(slot, key, lookup_key).map(|seen| (slot, seen)))
    }

    /// Returns the inode called `name` in the directory with the inode number `ino` of the root
    /// file system. Takes a reference on the inode.
    ///
    /// Returns None if the name is not cached, is negative, or changes during the call. The caller
    /// then looks up the directory and the name.
    ///
    /// The answer is right at the instant at which this function loads the parent's child
    /// generation. The function reads the child's dentry before this instant, and validates it
    /// afterwards.
    ///
    /// Compares only the first dentry whose entry in the hash table matches the name's hash. The
    /// function has so few instructions that the processor overlaps several lookups.
    pub(crate) fn get_by_ino(&self, ino: u64, name: &[u8]) -> Option<InodeSlot> {
        if name.len() <= INLINE_MAX {
            let lookup_key = LookupKey::new(Name::unchecked(name), &self.keys);
            let hash = lookup_key.hash.child(directory_id(0, ino)) as u32;
            if let Some(slot) = self.table.first_within(self.table.extent(), hash) {
                self.inodes.prefetch(slot.inode_half());
                let dentry = self.dentries.line(slot);
                let seen = dentry.snapshot_now();
                if dentry.is_named_inline(&lookup_key) && self.is_parent(seen.key, ino) {
                    return self.get_child(&dentry, seen);
                }
            }
        }
        self.get_by_ino_slow(ino, name)
    }

    #[inline(never)]
    fn get_by_ino_slow(&self, ino: u64, name: &[u8]) -> Option<InodeSlot> {
        let lookup_key = LookupKey::new(Name::unchecked(name), &self.keys);
        let hash = lookup_key.hash.child(directory_id(0, ino)) as u32;
        let (dentry, seen) = self.table.find(hash, |slot| {
            self.inodes.prefetch(slot.inode_half());
            let dentry = self.dentries.line(slot);
            let seen = dentry.snapshot_now();
            let is_it =
                dentry.is_named(seen, &lookup_key, &self.dentries) && self.is_parent(seen.key, ino);
            is_it.then_some((dentry, seen))
        })?;
        self.get_child(&dentry, seen)
    }

    #[inline(always)]
    fn get_child(&self, dentry: &Line<'_>, seen: Snapshot) -> Option<InodeSlot> {
        let inode = seen.body.inode();
        if seen.body.superblock() != 0 || inode.is_none() {
            return None;
        }
        if !self.inodes.get_unless_saturated(inode) {
            return None;
        }
        if !dentry.is_unchanged(seen.seq) {
            return self.undo_count(inode);
        }
        Some(inode)
    }

    #[cold]
    #[inline(never)]
    fn undo_count(&self, inode: InodeSlot) -> Option<InodeSlot> {
        self.put_inode(inode, 1);
        None
    }

    /// Returns true if `key` is the current parent key of the directory with the inode number
    /// `ino`. After a removal of the directory it is not, because the removal changes the child
    /// generation.
    ///
    /// `key` comes from a child's dentry, which the caller validates afterwards. A valid child held
    /// a reference on its parent during this function. So the parent's inode number could not
    /// change (invariants D.3 and D.4 of `dentry`).
    #[inline]
    fn is_parent(&self, key: ParentKey, ino: u64) -> bool {
        let now = self.dentries.line(key.parent()).directory_words();
        now.ino == ino && now.child_generation as u32 == key.0 as u32
    }

    /// Returns the key of a name's in-lookup lock. The key does not contain the directory's child
    /// generation, so a name keeps its lock after an invalidation.
    pub(crate) fn in_lookup_key(&self, directory: DentrySlot, lookup_key: &LookupKey<'_>) -> u64 {
        lookup_key.hash.child(u64::from(directory.get()) << 32)
    }

    #[inline]
    fn hash(&self, parent: DentrySlot, name_hash: NameHash) -> u32 {
        name_hash.child(self.dentries.directory_id(parent)) as u32
    }

    fn hash_of(&self, slot: DentrySlot, image: &Image) -> u32 {
        let mut copy = NameCopy::new();
        self.dentries.copy_name(slot, image.body, &mut copy);
        let name = Name::new(copy.as_bytes()).expect("a hashed dentry has a valid name");
        self.hash(image.key.parent(), self.lookup_key(name).hash)
    }

    pub(crate) fn get(&self, slot: DentrySlot, seq: Seq) -> bool {
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

    #[inline]
    pub(crate) fn get_inode(&self, slot: DentrySlot, seq: Seq, inode: InodeSlot) -> bool {
        if !self.inodes.lockref(inode).get_not_dead() {
            return false;
        }
        if self.dentries.is_unchanged(slot, seq) {
            return true;
        }
        self.put_inode(inode, 1);
        false
    }

    /// Drops a reference on a dentry. An unhashed dentry without references dies, and drops its
    /// reference on its parent. The function walks up the parents in a loop, because a recursion in
    /// a deep tree would overflow the stack.
    pub(crate) fn put(&self, slot: DentrySlot) {
        let mut slot = slot;
        while !slot.is_none() {
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

    pub(crate) fn put_inode(&self, inode: InodeSlot, n: u64) {
        if self.inodes.put(inode, n) {
            let (superblock, ino) = (self.inodes.superblock(inode), self.inodes.ino(inode));
            let generation = self.inodes.generation(inode);
            let _end = EndOfInode { dcache: self, inode };
            self.host.forget(superblock, ino, generation, inode);
        }
    }

    pub(crate) fn get_directory(&self, inode: InodeSlot) -> Option<Directory> {
        loop {
            let slot = self.inodes.alias(inode);
            if !slot.is_none() && self.dentries.lockref(slot).get_not_dead() {
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

    pub(crate) fn get_alias(&self, inode: InodeSlot) -> Option<DentrySlot> {
        loop {
            let slot = self.inodes.alias(inode);
            if !slot.is_none() && self.dentries.lockref(slot).get_not_dead() {
                if self.dentries.snapshot(slot).body.inode() == inode {
                    return Some(slot);
                }
                self.put(slot);
            }
            if self.inodes.alias(inode) == slot {
                return None;
            }
        }
    }

    /// Returns the parent of a dentry, and the sequence under which it was read. The root is its
    /// own parent.
    pub(crate) fn parent(&self, slot: DentrySlot) -> (DentrySlot, Seq) {
        loop {
            let seen = self.dentries.snapshot(slot);
            if self.dentries.is_unchanged(slot, seen.seq) {
                return (seen.key.parent(), seen.seq);
            }
        }
    }

    pub(crate) fn name_of(&self, slot: DentrySlot) -> (DentrySlot, NameCopy) {
        let mut copy = NameCopy::new();
        loop {
            let seen = self.dentries.snapshot(slot);
            self.dentries.copy_name(slot, seen.body, &mut copy);
            if self.dentries.is_unchanged(slot, seen.seq) {
                return (seen.key.parent(), copy);
            }
        }
    }

    /// Returns true if `slot` is `ancestor` or a directory below it. The caller holds the lock
    /// `topology`, so no directory moves.
    pub(crate) fn is_subdir(&self, slot: DentrySlot, ancestor: DentrySlot) -> bool {
        let mut at = slot;
        loop {
            if at == ancestor {
                return true;
            }
            let (parent, _) = self.parent(at);
            if parent == at || parent.is_none() {
                return false;
            }
            at = parent;
        }
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.dentries.bytes(inode::WORDS) + self.inodes.table_bytes() + self.table.bytes()
    }
}

/// A guard whose drop frees the slot of a dead inode. So a panic of the back end in `forget` does
/// not leak the slot.
struct EndOfInode<'a> {
    dcache: &'a Dcache,
    inode: InodeSlot,
}

impl Drop for EndOfInode<'_> {
    fn drop(&mut self) {
        self.dcache.inodes.free(self.inode, &self.dcache.dentries);
    }
}

pub(crate) fn full<T>(slot: Option<T>) -> Result<T, Errno> {
    slot.ok_or(Errno::NOMEM)
}

fn unhashed(body: Body) -> Body {
    body.with_flags(body.flags() - Flags::HASHED).with_inode(InodeSlot::NONE)
}

pub(crate) fn is_attached(flags: Flags) -> bool {
    flags.intersects(Flags::HASHED | Flags::ROOT)
}

#[cfg(all(test, corewalk_loom))]
mod loom_models;
