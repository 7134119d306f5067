//! Changes to the dentry cache. The caller of each function holds the in-lookup lock of every name
//! that the function changes.

use corewalk_sync::{Group, LockrefGuard};

use super::invalidate::next_generation;
use super::{Dcache, full, is_attached, unhashed};
use crate::Errno;
use crate::attr::FileKind;
use crate::dentry::{
    Body, DirectoryWords, Flags, Image, LookupKey, NameCopy, ParentKey, Snapshot, group_of,
    kind_flags,
};
use crate::key_lock::KeyGuard;
use crate::slot::{DentrySlot, InodeSlot, OfDentry, Seq};
use crate::table::Stripe;

struct NewName<'a> {
    hash: u32,
    key: ParentKey,
    lookup_key: &'a LookupKey<'a>,
    in_lookup: &'a KeyGuard<'a>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct DentryInode {
    pub(crate) inode: InodeSlot,
    pub(crate) kind: FileKind,
}

impl Dcache {
    /// Adds a dentry for the root of a file system. The dentry takes over the caller's reference on
    /// `inode`.
    pub(crate) fn publish_root(&self, inode: InodeSlot) -> Result<DentrySlot, Errno> {
        let slot = full(self.dentries.alloc(inode, Group::Few))?;
        let flags = Flags::ROOT | Flags::DIRECTORY;
        let key = ParentKey::new(slot, 0);
        let (superblock, words) = self.superblock_and_words(inode);
        // A root has no name, so `new_image` needs no slot for a long name and cannot fail.
        let image = full(self.dentries.new_image(key, superblock, inode, b"", flags, words))?;
        self.begin_life(slot, &image);
        self.inodes.add_alias(inode, slot, &self.dentries);
        self.sync_searchable(inode);
        Ok(slot)
    }

    /// Adds a name to the cache, and returns its dentry with a reference for the caller. The dentry
    /// is positive if `node` has an inode, otherwise negative. It takes its own reference on the
    /// inode.
    ///
    /// If the name already has a dentry with another inode, that dentry becomes stale. The caller
    /// holds the in-lookup lock of the name.
    ///
    /// # Errors
    /// `ESTALE` if the directory was removed or invalidated after the caller had read `key`.
    /// `ENOMEM` if no slot is left. After an error, the cache has not changed.
    pub(crate) fn publish(
        &self,
        key: ParentKey,
        lookup_key: &LookupKey<'_>,
        node: Option<DentryInode>,
        in_lookup: &KeyGuard<'_>,
    ) -> Result<DentrySlot, Errno> {
        let (parent, hash) = (key.parent(), self.hash(key.parent(), lookup_key.hash));
        // `find` takes no reference, so the dentry may change before this thread takes one: for
        // example, it becomes a mount point. The loop then repeats the lookup. Otherwise the name
        // would get a second dentry.
        let find = || self.find(key, lookup_key).or_else(|| self.find_exact(key, lookup_key));
        // The caller holds the name's in-lookup lock. So if the name is missing now, it stays
        // missing until this thread adds it.
        let is_known = (!key.is_stale() && self.find(key, lookup_key).is_some())
            || self.is_known(hash, parent, lookup_key);
        while is_known
            && !key.is_stale()
            && let Some((slot, seen)) = find()
        {
            let is_counted = match node {
                Some(node) if seen.body.is_negative() => {
                    // The slots of directories are close together, apart from other slots. A
                    // negative dentry is in one of the other slots. So evict it, if possible,
                    // rather than turn it into a directory.
                    if node.kind == FileKind::Directory
                        && let Ok((parent, inode)) = self.evict_locked(slot, seen, hash, in_lookup)
                    {
                        self.put_evicted(parent, inode);
                        break;
                    }
                    self.turn_positive(slot, seen.seq, lookup_key, node)?
                }
                node if seen.body.inode() == node.map_or(InodeSlot::NONE, |node| node.inode) => {
                    self.get(slot, seen.seq)
                }
                _ => {
                    if self.get(slot, seen.seq) {
                        self.make_stale(slot);
                    }
                    false
                }
            };
            if is_counted {
                return Ok(slot);
            }
        }
        if !self.dentries.lockref(parent).get_not_dead() {
            return Err(Errno::STALE);
        }
        let is_current = |now: super::Directory| now.key == key || key.is_stale();
        let directory = self.directory(parent).filter(|now| is_attached(now.flags));
        let result = match directory {
            Some(now) if is_current(now) => {
                let entry = NewName { hash, key, lookup_key, in_lookup };
                let back = if is_known { self.take_back(&entry, node) } else { None };
                match back {
                    Some(slot) => {
                        self.put(parent);
                        Ok(slot)
                    }
                    None => self.publish_new(&entry, node),
                }
            }
            _ => Err(Errno::STALE),
        };
        if result.is_err() {
            self.put(parent);
        }
        result
    }

    /// Adds a name that has no dentry with the parent key of `entry`. The new dentry takes over the
    /// caller's reference on the parent.
    fn publish_new(
        &self,
        entry: &NewName<'_>,
        node: Option<DentryInode>,
    ) -> Result<DentrySlot, Errno> {
        let &NewName { hash, key, lookup_key, in_lookup } = entry;
        let kind = node.map_or(Flags::empty(), |node| kind_flags(node.kind));
        let inode = node.map_or(InodeSlot::NONE, |node| node.inode);
        let group = node.map_or(Group::Many, |node| group_of(node.kind));
        let slot = full(self.dentries.alloc(inode, group).or_else(|| {
            self.prune();
            self.dentries.alloc(inode, group)
        }))?;
        let (superblock, words) = self.superblock_and_words(inode);
        let (name, flags) = (lookup_key.name.as_bytes(), kind | Flags::HASHED);
        let image = self.dentries.new_image(key, superblock, inode, name, flags, words);
        let Some(image) = image else {
            self.dentries.free(slot);
            return Err(Errno::NOMEM);
        };
        self.begin_life(slot, &image);
        match node {
            Some(node) => {
                self.adopt(slot, node);
                self.sync_searchable(node.inode);
            }
            None => self.counters.negatives.add(1),
        }
        // Check for a cancelled fill (the caching of an answer) and insert the entry under one
        // lock.
        //
        // An invalidation that comes later takes the same lock. So it waits for the insertion,
        // finds the entry, and makes it stale. No stale answer stays in the cache (guarantee C.1 of
        // `dcache`).
        if self
            .table
            .insert_if(hash, slot, |_| (!in_lookup.is_fill_cancelled()).then_some(()))
            .is_none()
        {
            let guard = self.dentries.lockref(slot).lock();
            self.write(slot, &guard, |dcache| {
                dcache.dentries.store_key(slot, ParentKey::stale(key.parent()))
            });
            drop(guard);
            self.table.insert(hash, slot);
        }
        if slot.get().is_multiple_of(Self::RECLAIM_EVERY) {
            self.reclaim_over_budget();
        }
        Ok(slot)
    }

    fn superblock_and_words(&self, inode: InodeSlot) -> (u32, DirectoryWords) {
        if inode.is_none() {
            return (0, DirectoryWords::default());
        }
        let words = DirectoryWords { ino: self.inodes.ino(inode), child_generation: 1 };
        (self.inodes.superblock(inode), words)
    }

    /// Searches the stale dentries of a name for a dentry of the inode in `node`, and makes that
    /// dentry current again. So a name has at most one dentry per inode in use, however often it is
    /// invalidated.
    fn take_back(&self, entry: &NewName<'_>, node: Option<DentryInode>) -> Option<DentrySlot> {
        let &NewName { hash, key, lookup_key, in_lookup } = entry;
        'look: loop {
            for (slot, seen) in self.collect_stale(hash, key, lookup_key) {
                let inode = seen.body.inode();
                if !inode.is_none() && node.is_some_and(|node| node.inode == inode) {
                    if self.set_key(slot, seen.seq, key, in_lookup) {
                        self.inodes.prefer_alias(inode, slot, &self.dentries);
                        return Some(slot);
                    }
                    continue 'look;
                }
                if !key.is_stale()
                    && let Ok((parent, inode)) = self.evict_locked(slot, seen, hash, in_lookup)
                {
                    self.put_evicted(parent, inode);
                }
            }
            return None;
        }
    }

    /// Returns the stale dentries of a name, which are those with another parent key than `key`. If
    /// `key` itself is stale, returns all dentries of the name.
    pub(super) fn collect_stale(
        &self,
        hash: u32,
        key: ParentKey,
        lookup_key: &LookupKey<'_>,
    ) -> Vec<(DentrySlot, Snapshot)> {
        let mut stale = Vec::new();
        let _: Option<()> = self.table.lock(hash).find(|slot| {
            let seen = self.snapshot_as(slot, key.parent(), lookup_key)?;
            if seen.key != key || key.is_stale() {
                stale.push((slot, seen));
            }
            None
        });
        stale
    }

    fn is_known(&self, hash: u32, parent: DentrySlot, lookup_key: &LookupKey<'_>) -> bool {
        let seen = self.table.lock(hash).find(|slot| self.snapshot_as(slot, parent, lookup_key));
        seen.is_some()
    }

    /// Returns a snapshot of the dentry if it has this parent and this name, even if the dentry is
    /// stale.
    fn snapshot_as(
        &self,
        slot: DentrySlot,
        parent: DentrySlot,
        lookup_key: &LookupKey<'_>,
    ) -> Option<Snapshot> {
        // If the dentry changes during the read, read it again. Otherwise the caller would miss it
        // and make a second dentry of the name.
        loop {
            let seen = self.dentries.snapshot(slot);
            let is_named = self.dentries.line(slot).is_named(seen, lookup_key, &self.dentries);
            if self.dentries.is_unchanged(slot, seen.seq) {
                return (is_named && seen.key.parent() == parent).then_some(seen);
            }
        }
    }

    /// Gives a dentry the parent key `key` and takes a reference on the dentry. If an invalidation
    /// has cancelled this fill (the caching of an answer), the dentry gets a stale key instead.
    /// Returns false if the dentry has changed since `seq`.
    fn set_key(
        &self,
        slot: DentrySlot,
        seq: Seq,
        key: ParentKey,
        in_lookup: &KeyGuard<'_>,
    ) -> bool {
        let mut guard = self.dentries.lockref(slot).lock();
        if guard.is_dead() || !self.dentries.is_unchanged(slot, seq) {
            return false;
        }
        guard.add(1);
        self.write(slot, &guard, |dcache| {
            dcache.dentries.store_key(slot, key.unless_cancelled(in_lookup));
        });
        true
    }

    fn turn_positive(
        &self,
        slot: DentrySlot,
        seq: Seq,
        lookup_key: &LookupKey<'_>,
        node: DentryInode,
    ) -> Result<bool, Errno> {
        let mut guard = self.dentries.lockref(slot).lock();
        // An invalidation takes no in-lookup lock, so it may have unhashed the dentry since the
        // lookup. The slot may then hold the dentry of another name.
        if guard.is_dead() || !self.dentries.is_unchanged(slot, seq) {
            return Ok(false);
        }
        let before = self.dentries.image(slot);
        let (flags, name) = (kind_flags(node.kind) | Flags::HASHED, lookup_key.name.as_bytes());
        let (superblock, words) = self.superblock_and_words(node.inode);
        let image = self.dentries.new_image(before.key, superblock, node.inode, name, flags, words);
        let image = full(image)?;
        self.adopt(slot, node);
        guard.add(1);
        self.write(slot, &guard, |dcache| {
            dcache.dentries.store(slot, &image);
        });
        drop(guard);
        self.dentries.drop_image(&before);
        self.counters.negatives.add(-1);
        self.sync_searchable(node.inode);
        Ok(true)
    }

    fn adopt(&self, slot: DentrySlot, node: DentryInode) {
        self.inodes.lockref(node.inode).get();
        self.inodes.add_alias(node.inode, slot, &self.dentries);
    }

    /// Updates the cache after the back end has removed a name. Drops the caller's reference on the
    /// dentry.
    pub(crate) fn remove(&self, slot: DentrySlot) {
        let guard = self.dentries.lockref(slot).lock();
        let image = self.dentries.image(slot);
        if !image.body.is_hashed() {
            drop(guard);
            return self.put(slot);
        }
        let inode = image.body.inode();
        if guard.count() == 1 && !inode.is_none() {
            let flags = image.body.flags() & (Flags::HASHED | Flags::LONG);
            if !image.body.is_directory() {
                self.write(slot, &guard, |dcache| {
                    dcache
                        .dentries
                        .store_body(slot, image.body.with_inode(InodeSlot::NONE).with_flags(flags));
                });
                self.inodes.remove_alias(inode, slot, &self.dentries);
                drop(guard);
                self.counters.negatives.add(1);
                self.put_inode(inode, 1);
                return self.put(slot);
            }
        }
        self.unhash(slot, guard, &image);
    }

    fn unhash(&self, slot: DentrySlot, guard: LockrefGuard<'_>, image: &Image) {
        let inode = image.body.inode();
        let hash = self.hash_of(slot, image);
        // Each child holds a reference on the directory's dentry. So the reference count, less the
        // caller's, is an upper bound of the number of children.
        let children = if image.body.is_directory() { guard.count() - 1 } else { 0 };
        self.write(slot, &guard, |dcache| {
            dcache.store_unhashed(slot, image);
        });
        if !inode.is_none() {
            self.inodes.remove_alias(inode, slot, &self.dentries);
        }
        drop(guard);
        self.table.remove(hash, slot);
        self.release_unhashed(inode);
        self.put(slot);
        self.sweep_orphans(children);
    }

    fn release_unhashed(&self, inode: InodeSlot) {
        self.counters.unhashed.add(1);
        if inode.is_none() {
            self.counters.negatives.add(-1);
        } else {
            self.put_inode(inode, 1);
        }
    }

    /// Hides a name from lookups. The dentry itself stays as long as its inode is in use, for
    /// example as the parent of the dentries below it. Drops the caller's reference on the dentry.
    pub(crate) fn make_stale(&self, slot: DentrySlot) {
        let guard = self.dentries.lockref(slot).lock();
        let before = self.dentries.image(slot);
        if !before.body.is_hashed() || before.key.is_stale() {
            drop(guard);
            return self.put(slot);
        }
        if before.body.is_negative() {
            // A stale dentry is kept only for the users of its inode. A negative dentry has no
            // inode, so unhash it instead.
            return self.unhash(slot, guard, &before);
        }
        let stale = ParentKey::stale(before.key.parent());
        self.write(slot, &guard, |dcache| dcache.dentries.store_key(slot, stale));
        drop(guard);
        self.put(slot);
    }

    /// Moves the dentry `moved` to a new name. The dentry replaces `target` or, if `target` is
    /// None, a negative dentry of the new name. If the parent changes, returns the old parent, on
    /// which the caller drops a reference.
    ///
    /// The caller holds the in-lookup locks of both names, and references on both dentries. The
    /// moved dentry takes over the caller's reference on a new parent. To move a directory, the
    /// caller holds `topology` for writing.
    ///
    /// # Errors
    /// `ENOMEM` if no slot is left for a long name. `ESTALE` if `moved` was unhashed meanwhile.
    /// After an error, no name has changed.
    pub(crate) fn d_move(
        &self,
        moved: DentrySlot,
        from: &LookupKey<'_>,
        to: ParentKey,
        lookup_key: &LookupKey<'_>,
        target: Option<DentrySlot>,
        in_lookup: &KeyGuard<'_>,
    ) -> Result<DentrySlot, Errno> {
        let hash = self.hash(to.parent(), lookup_key.hash);
        let entry = NewName { hash, key: to, lookup_key, in_lookup };
        let negative = self.insert_over_negative(&entry, moved, target);
        let moved = self.d_move_listed(moved, from, &entry, target.or(negative));
        negative.into_iter().for_each(|slot| self.put(slot));
        moved
    }

    /// Lists the dentry `slot` in the hash table under its new name. If `target` is None and the
    /// new name has a negative dentry, returns that dentry with a reference. All other dentries of
    /// the new name become stale.
    fn insert_over_negative(
        &self,
        entry: &NewName<'_>,
        slot: DentrySlot,
        target: Option<DentrySlot>,
    ) -> Option<DentrySlot> {
        let &NewName { hash, key, lookup_key, .. } = entry;
        let another = |stripe: &Stripe<'_, OfDentry>, negative: Option<DentrySlot>| {
            let known = [Some(slot), target, negative];
            stripe.find(|other| {
                let seen = self.dentries.compare(other, key, lookup_key)?;
                (!known.contains(&Some(other))).then_some((other, seen))
            })
        };
        let look = |stripe: &Stripe<'_, OfDentry>| Some(another(stripe, None));
        let mut found = self.table.insert_if(hash, slot, look).flatten();
        let mut negative = None;
        while !key.is_stale()
            && let Some((other, seen)) = found
        {
            if self.get(other, seen.seq) {
                if seen.body.is_negative() && target.or(negative).is_none() {
                    negative = Some(other);
                } else {
                    self.make_stale(other);
                }
            }
            // The bucket may contain more dentries of the new name, so search again.
            found = another(&self.table.lock(hash), negative);
        }
        negative
    }

    /// Does the second step of [`Dcache::d_move`]. The hash table already lists the dentry under
    /// its new name, besides the old one.
    fn d_move_listed(
        &self,
        moved: DentrySlot,
        from: &LookupKey<'_>,
        entry: &NewName<'_>,
        target: Option<DentrySlot>,
    ) -> Result<DentrySlot, Errno> {
        let &NewName { hash, key: to, lookup_key, in_lookup } = entry;
        let (guard, target_guard) = self.lock_two(moved, target);
        let before = self.dentries.image(moved);
        if !before.body.is_hashed() {
            // An invalidation takes no in-lookup lock. So it may have removed the dentry from the
            // hash table since the lookup. Then there is nothing to rename.
            drop((guard, target_guard));
            self.table.remove(hash, moved);
            return Err(Errno::STALE);
        }
        let (body, words) = (before.body, before.directory_words());
        let (superblock, inode, name) =
            (body.superblock(), body.inode(), lookup_key.name.as_bytes());
        let image = self.dentries.new_image(to, superblock, inode, name, body.flags(), words);
        let Some(mut image) = image else {
            drop((guard, target_guard));
            self.table.remove(hash, moved);
            return Err(Errno::NOMEM);
        };
        let old_hash = self.hash(before.key.parent(), from.hash);
        debug_assert_eq!(old_hash, self.hash_of(moved, &before), "not the name it has");
        let victim = target.map(|slot| {
            let victim = self.dentries.image(slot);
            // An invalidation may already have removed the replaced dentry from the hash table.
            let victim_hash = victim.body.is_hashed().then(|| self.hash_of(slot, &victim));
            (slot, victim, victim_hash)
        });
        // Guarantee C.2 (a rename appears at one instant): readers of a name wait while its dentry
        // is inside a write section. So they see the whole move or nothing of it.
        self.write(moved, &guard, |dcache| {
            image.key = image.key.unless_cancelled(in_lookup);
            if let (Some((slot, victim, _)), Some(target_guard)) = (&victim, &target_guard) {
                dcache.write(*slot, target_guard, |dcache| {
                    dcache.store_unhashed(*slot, victim);
                    dcache.dentries.store(moved, &image);
                });
            } else {
                dcache.dentries.store(moved, &image);
            }
        });
        drop(guard);
        if let Some((slot, victim, _)) = &victim
            && !victim.body.is_negative()
        {
            self.inodes.remove_alias(victim.body.inode(), *slot, &self.dentries);
        }
        drop(target_guard);
        self.dentries.drop_image(&before);
        self.table.remove(old_hash, moved);
        if let Some((slot, victim, Some(victim_hash))) = &victim {
            self.table.remove(*victim_hash, *slot);
            self.release_unhashed(victim.body.inode());
        }
        self.counters.renames.add(1);
        let old_parent = before.key.parent();
        Ok(if old_parent == to.parent() { DentrySlot::NONE } else { old_parent })
    }

    /// Swaps the names of two dentries, and the references on their parents. The caller holds the
    /// in-lookup locks of both names. If one is a directory, the caller also holds `topology` for
    /// writing.
    ///
    /// # Errors
    /// `ENOMEM` if no slot is left for a long name. `ESTALE` if one of the two names was
    /// invalidated. After an error, neither dentry has changed.
    pub(crate) fn exchange(
        &self,
        a: DentrySlot,
        b: DentrySlot,
        in_lookup: &KeyGuard<'_>,
    ) -> Result<(), Errno> {
        let hash_a = self.hash_now(a);
        let hash_b = self.hash_now(b);
        self.table.insert(hash_b, a);
        self.table.insert(hash_a, b);
        let (guard_a, guard_b) = self.lock_two(a, Some(b));
        let guard_b = guard_b.expect("two dentries were locked");
        let (before_a, before_b) = (self.dentries.image(a), self.dentries.image(b));
        // Since `hash_now`, another thread may have removed or renamed one of the two dentries.
        // Then swap nothing.
        let is_as_before =
            |slot, image: &Image, hash| image.body.is_hashed() && self.hash_of(slot, image) == hash;
        let is_known = is_as_before(a, &before_a, hash_a) && is_as_before(b, &before_b, hash_b);
        let image_a = if is_known { self.renamed_as(&before_a, b, &before_b) } else { None };
        let images = image_a.and_then(|image_a| match self.renamed_as(&before_b, a, &before_a) {
            Some(image_b) => Some((image_a, image_b)),
            None => {
                self.dentries.drop_image(&image_a);
                None
            }
        });
        let swapped = images.is_some();
        if let Some((mut image_a, mut image_b)) = images {
            self.write(a, &guard_a, |dcache| {
                dcache.write(b, &guard_b, |dcache| {
                    image_a.key = image_a.key.unless_cancelled(in_lookup);
                    image_b.key = image_b.key.unless_cancelled(in_lookup);
                    dcache.dentries.store(a, &image_a);
                    dcache.dentries.store(b, &image_b);
                });
            });
        }
        drop((guard_a, guard_b));
        self.table.remove(if swapped { hash_a } else { hash_b }, a);
        self.table.remove(if swapped { hash_b } else { hash_a }, b);
        if !swapped {
            return Err(if is_known { Errno::NOMEM } else { Errno::STALE });
        }
        self.dentries.drop_image(&before_a);
        self.dentries.drop_image(&before_b);
        self.counters.renames.add(1);
        Ok(())
    }

    fn renamed_as(&self, this: &Image, slot: DentrySlot, other: &Image) -> Option<Image> {
        let mut name = NameCopy::new();
        self.dentries.copy_name(slot, other.body, &mut name);
        let (body, words) = (this.body, this.directory_words());
        let (superblock, inode) = (body.superblock(), body.inode());
        let parent = other.key.parent();
        let is_current = self.key_of_held(parent) == other.key;
        let key = if is_current { other.key } else { ParentKey::stale(parent) };
        self.dentries.new_image(key, superblock, inode, name.as_bytes(), body.flags(), words)
    }

    fn hash_now(&self, slot: DentrySlot) -> u32 {
        let guard = self.dentries.lockref(slot).lock();
        let hash = self.hash_of(slot, &self.dentries.image(slot));
        drop(guard);
        hash
    }

    pub(crate) fn sync_searchable(&self, inode: InodeSlot) {
        let slot = self.inodes.alias(inode);
        if slot.is_none() {
            return;
        }
        let guard = self.dentries.lockref(slot).lock();
        let body = self.dentries.image(slot).body;
        if guard.is_dead() || body.inode() != inode || !body.is_directory() {
            return;
        }
        let inode_guard = self.inodes.lockref(inode).lock();
        let wanted = self.inodes.is_searchable(inode, &inode_guard);
        let mut flags = body.flags();
        flags.set(Flags::SEARCHABLE, wanted);
        if flags != body.flags() {
            self.write(slot, &guard, |dcache| {
                dcache.dentries.store_body(slot, body.with_flags(flags));
            });
        }
    }

    pub(crate) fn set_mounted(&self, slot: DentrySlot, mounted: Mounted) {
        let guard = self.dentries.lockref(slot).lock();
        let body = self.dentries.image(slot).body;
        let mut flags = body.flags();
        flags.set(Flags::MOUNTED, mounted == Mounted::Yes);
        self.write(slot, &guard, |dcache| {
            dcache.dentries.store_body(slot, body.with_flags(flags));
        });
    }

    /// Marks a dentry without references as dead. The caller then removes its entry from the hash
    /// table, calls [`Dcache::end_life`], and drops the dentry's references on its parent and its
    /// inode.
    pub(super) fn kill(&self, slot: DentrySlot, mut guard: LockrefGuard<'_>) -> Dead {
        debug_assert_eq!(guard.count(), 0);
        let image = self.dentries.image(slot);
        guard.mark_dead();
        self.write(slot, &guard, |dcache| dcache.dentries.store_body(slot, Body(0)));
        let parent = image.key.parent();
        Dead { parent: if parent == slot { DentrySlot::NONE } else { parent }, image }
    }

    pub(super) fn end_life(&self, slot: DentrySlot, dead: &Dead) {
        self.dentries.drop_image(&dead.image);
        // If the slot has no generation left, do not free it, so that it is never used again.
        if self.dentries.cold(slot).next_generation() {
            self.dentries.free(slot);
        }
    }

    /// Removes the flag of a hashed dentry. If the dentry is a directory, also invalidates all
    /// names in it, so that no lookup finds the negative dentries below it.
    fn store_unhashed(&self, slot: DentrySlot, image: &Image) {
        self.dentries.store_body(slot, unhashed(image.body));
        if image.body.is_directory() {
            self.dentries.store_child_generation(slot, next_generation(image));
        }
    }

    /// Stores the content of a new dentry. The dentry starts with one reference, which belongs to
    /// the caller.
    fn begin_life(&self, slot: DentrySlot, image: &Image) {
        let mut guard = self.dentries.lockref(slot).lock();
        guard.revive();
        guard.add(1);
        self.write(slot, &guard, |dcache| {
            dcache.dentries.store(slot, image);
        });
    }

    /// Locks one or two dentries, in the order of their slots, so that two threads cannot deadlock.
    fn lock_two(
        &self,
        a: DentrySlot,
        b: Option<DentrySlot>,
    ) -> (LockrefGuard<'_>, Option<LockrefGuard<'_>>) {
        let lock = |slot| self.dentries.lockref(slot).lock();
        match b {
            Some(b) if b < a => {
                let guard_b = lock(b);
                (lock(a), Some(guard_b))
            }
            Some(b) => (lock(a), Some(lock(b))),
            None => (lock(a), None),
        }
    }

    /// Runs `change` in a write section of the dentry. The section ends even if `change` panics, so
    /// that no reader waits for ever.
    pub(super) fn write<R>(
        &self,
        slot: DentrySlot,
        _guard: &LockrefGuard<'_>,
        change: impl FnOnce(&Dcache) -> R,
    ) -> R {
        let _section = self.dentries.seq(slot).write();
        change(self)
    }
}

pub(super) struct Dead {
    pub(super) parent: DentrySlot,
    image: Image,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mounted {
    Yes,
    No,
}

#[cfg(all(test, corewalk_loom))]
mod loom_models;

#[cfg(all(test, not(any(corewalk_loom, corewalk_shuttle))))]
mod tests;
