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

/// A name that is about to be entered. The caller holds its in-lookup lock.
struct NewName<'a> {
    hash: u32,
    key: ParentKey,
    lookup_key: &'a LookupKey<'a>,
    in_lookup: &'a KeyGuard<'a>,
}

/// The inode that a dentry is to refer to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DentryInode {
    pub(crate) inode: InodeSlot,
    pub(crate) kind: FileKind,
}

impl Dcache {
    /// Makes `slot` a root: a directory without a name or a parent. The dentry takes over the
    /// caller's reference on the inode.
    pub(crate) fn publish_root(&self, inode: InodeSlot) -> Result<DentrySlot, Errno> {
        let slot = full(self.dentries.alloc(inode, Group::Few))?;
        let flags = Flags::ROOT | Flags::DIRECTORY;
        let key = ParentKey::new(slot, 0);
        let (superblock, words) = self.superblock_and_words(inode);
        // For a root `new_image` cannot fail: only a long name needs a slot, and a root has no
        // name.
        let image = full(self.dentries.new_image(key, superblock, inode, b"", flags, words))?;
        self.begin_life(slot, &image);
        self.inodes.add_alias(inode, slot, &self.dentries);
        self.sync_searchable(inode);
        Ok(slot)
    }

    /// Enters a name, positive with its inode or negative with None. Returns the dentry with a
    /// reference for the caller. The dentry takes its own reference on the inode. If the name has a
    /// dentry of another inode, that dentry becomes stale. The caller holds the in-lookup lock of
    /// the name.
    ///
    /// # Errors
    /// `ESTALE` if the directory was removed, or was invalidated since the caller read `key`, the
    /// parent key of its children. Then nothing is entered (trap T25). `ENOMEM` if the arena is
    /// full.
    pub(crate) fn publish(
        &self,
        key: ParentKey,
        lookup_key: &LookupKey<'_>,
        node: Option<DentryInode>,
        in_lookup: &KeyGuard<'_>,
    ) -> Result<DentrySlot, Errno> {
        let (parent, hash) = (key.parent(), self.hash(key.parent(), lookup_key.hash));
        // The dentry of the name may change before a reference on it is taken, for example when it
        // becomes a mount point. Then repeat the lookup, so that the name gets no second dentry.
        let find = || self.find(key, lookup_key).or_else(|| self.find_exact(key, lookup_key));
        // Only a holder of the name's in-lookup lock enters the name, so a missing name stays
        // missing.
        let is_known = (!key.is_stale() && self.find(key, lookup_key).is_some())
            || self.is_known(hash, parent, lookup_key);
        while is_known
            && !key.is_stale()
            && let Some((slot, seen)) = find()
        {
            let is_counted = match node {
                Some(node) if seen.body.is_negative() => {
                    // A directory needs a slot of the group for directories, but a negative dentry
                    // has a slot of the group for other files. So evict the negative dentry if
                    // possible.
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
                // The cached dentry has another inode than the back end's answer, so make the
                // dentry stale.
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

    /// Enters a name that has no dentry yet. The new dentry takes over the caller's reference on
    /// the parent.
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
        // Check under the lock of the table's stripe (a group of buckets) whether the fill was
        // cancelled. An invalidation that cancels the fill after this check looks the name up under
        // the same lock. So the invalidation waits until this thread has inserted the entry, finds
        // the entry, and makes it stale. No stale answer stays in the cache (C.1).
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

    /// Returns the superblock of an inode, and the two words that the dentry of a directory stores:
    /// the inode number and a child generation. Returns zeroes if `inode` is none.
    fn superblock_and_words(&self, inode: InodeSlot) -> (u32, DirectoryWords) {
        if inode.is_none() {
            return (0, DirectoryWords::default());
        }
        let words = DirectoryWords { ino: self.inodes.ino(inode), child_generation: 1 };
        (self.inodes.superblock(inode), words)
    }

    /// Finds the dentries that a name still has from the time before an invalidation. If one of
    /// them has the inode `node`, gives it the current parent key, and returns it with a reference
    /// for the caller. Evicts the name's unused dentries of other inodes. So a name has one dentry
    /// per inode in use, however often it is invalidated. The caller holds the in-lookup lock of
    /// the name.
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
                    // `set_key` fails if the dentry has changed, for example into a mount point. So
                    // search for the dentry again.
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

    /// Returns the dentries that a name has under other parent keys than `key`. If `key` is stale,
    /// returns all dentries of the name.
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

    /// Returns true if a name has a dentry, under any key.
    fn is_known(&self, hash: u32, parent: DentrySlot, lookup_key: &LookupKey<'_>) -> bool {
        let seen = self.table.lock(hash).find(|slot| self.snapshot_as(slot, parent, lookup_key));
        seen.is_some()
    }

    /// Returns a validated snapshot of a dentry if it has the name `lookup_key` below `parent`,
    /// whatever child generation its key contains.
    fn snapshot_as(
        &self,
        slot: DentrySlot,
        parent: DentrySlot,
        lookup_key: &LookupKey<'_>,
    ) -> Option<Snapshot> {
        // If the dentry changes while it is read, read it again. Otherwise the caller would miss
        // it, and the name would get a second dentry.
        loop {
            let seen = self.dentries.snapshot(slot);
            let is_named = self.dentries.line(slot).is_named(seen, lookup_key, &self.dentries);
            if self.dentries.is_unchanged(slot, seen.seq) {
                return (is_named && seen.key.parent() == parent).then_some(seen);
            }
        }
    }

    /// Gives a dentry the parent key `key`, or a stale key if an invalidation has cancelled the
    /// fill. Takes a reference on the dentry for the caller. Returns false if the dentry has
    /// changed since `seq`.
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

    /// Makes a negative dentry positive without changing its slot, and takes a reference on it for
    /// the caller. Returns false if the dentry has changed since `seq`.
    fn turn_positive(
        &self,
        slot: DentrySlot,
        seq: Seq,
        lookup_key: &LookupKey<'_>,
        node: DentryInode,
    ) -> Result<bool, Errno> {
        let mut guard = self.dentries.lockref(slot).lock();
        // An invalidation takes no in-lookup lock, so it may have unhashed the dentry. The slot may
        // serve another name by now (trap T55).
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

    /// Lets the dentry take its own reference on its inode, and makes the dentry an alias of the
    /// inode.
    fn adopt(&self, slot: DentrySlot, node: DentryInode) {
        self.inodes.lockref(node.inode).get();
        self.inodes.add_alias(node.inode, slot, &self.dentries);
    }

    /// Removes the dentry of a removed name. The caller holds the in-lookup lock of the name, and a
    /// reference on the dentry, which this call drops.
    pub(crate) fn remove(&self, slot: DentrySlot) {
        let guard = self.dentries.lockref(slot).lock();
        let image = self.dentries.image(slot);
        if !image.body.is_hashed() {
            drop(guard);
            return self.put(slot);
        }
        let inode = image.body.inode();
        if guard.count() == 1 && !inode.is_none() {
            // The dentry has no other user, so make it negative and keep it in the cache.
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

    /// Unhashes a dentry and drops the caller's reference on it.
    fn unhash(&self, slot: DentrySlot, guard: LockrefGuard<'_>, image: &Image) {
        let inode = image.body.inode();
        let hash = self.hash_of(slot, image);
        // Each child holds a reference on its directory. Other users hold references too, so the
        // count without the caller's reference is an upper bound of the number of children.
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

    /// Raises the count of unhashed dentries, and drops the reference of such a dentry on its
    /// inode. Users of a removed file hold their own references on the inode. Negative entries
    /// below a removed directory hold references on the directory's dentry only, so they do not
    /// keep its inode.
    fn release_unhashed(&self, inode: InodeSlot) {
        self.counters.unhashed.add(1);
        if inode.is_none() {
            self.counters.negatives.add(-1);
        } else {
            self.put_inode(inode, 1);
        }
    }

    /// Invalidates a name: its dentry gets a stale key, so lookups miss it. Users of the inode
    /// still know its last name and, for a directory, the entries below it. The caller holds a
    /// reference on the dentry, which this call drops.
    pub(crate) fn make_stale(&self, slot: DentrySlot) {
        let guard = self.dentries.lockref(slot).lock();
        let before = self.dentries.image(slot);
        if !before.body.is_hashed() || before.key.is_stale() {
            drop(guard);
            return self.put(slot);
        }
        if before.body.is_negative() {
            // A negative dentry has no inode, so no user of an inode needs its name. Unhash it.
            return self.unhash(slot, guard, &before);
        }
        let stale = ParentKey::stale(before.key.parent());
        self.write(slot, &guard, |dcache| dcache.dentries.store_key(slot, stale));
        drop(guard);
        self.put(slot);
    }

    /// Moves the dentry `moved` from the name `from` to `to`. Replaces the dentry `target`, or
    /// without a target the negative dentry of the new name. Returns the old parent, on which the
    /// caller drops a reference. Returns none if the parent stays the same.
    ///
    /// The caller holds the in-lookup locks of both names, and references on both dentries. If the
    /// parent changes, the caller also holds a reference on the new parent, which the moved dentry
    /// takes over. To move a directory the caller holds `topology` for writing.
    ///
    /// # Errors
    /// `ENOMEM` if no slot is left for a long name, `ESTALE` if `moved` has lost its name. Then
    /// nothing has changed.
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

    /// Enters `slot`, a renamed dentry, under its new name. `target` is the dentry that the rename
    /// replaces. Without a `target`, returns the negative dentry of the name, with a reference.
    /// Makes any other dentry of the name stale, wherever it is in the bucket.
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
            // The bucket may contain more dentries of the name, so search again. The search skips
            // `other`, which is now stale or is in `negative`. Only if `get` has failed, because
            // `other` changed meanwhile, may the search find `other` again.
            found = another(&self.table.lock(hash), negative);
        }
        negative
    }

    /// Works like [`Dcache::d_move`], for a dentry that is already in the table under its new name.
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
            // An invalidation takes no in-lookup lock, so it may have unhashed the dentry
            // meanwhile. An unhashed dentry has no inode that a rename could move.
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
            // An invalidation may have unhashed the target already. Then the target is not in the
            // table any more.
            let victim_hash = victim.body.is_hashed().then(|| self.hash_of(slot, &victim));
            (slot, victim, victim_hash)
        });
        // Guarantee C.2 (a rename appears at one instant): readers of either name wait while a
        // dentry of that name is inside a write section, so they see the whole move.
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

    /// Swaps the names of two dentries. The caller holds the in-lookup locks of both names and
    /// references on both dentries. If one is a directory, the caller also holds `topology` for
    /// writing. The references on the parent dentries are swapped too.
    ///
    /// # Errors
    /// `ENOMEM` if no slot is left for a long name, `ESTALE` if one name was invalidated. Then
    /// nothing has changed.
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
        // If one of the two names was invalidated meanwhile, the cache does not have it any more.
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

    /// Returns the content that the dentry `this` will have under the name of the dentry `other`,
    /// which is in `slot`.
    fn renamed_as(&self, this: &Image, slot: DentrySlot, other: &Image) -> Option<Image> {
        let mut name = NameCopy::new();
        self.dentries.copy_name(slot, other.body, &mut name);
        let (body, words) = (this.body, this.directory_words());
        let (superblock, inode) = (body.superblock(), body.inode());
        // If the directory of `other` was invalidated, the key of `other` is out of date. Then the
        // dentry that takes over its name gets a stale key.
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

    /// Updates the flag [`Flags::SEARCHABLE`] of the inode's dentry from the inode's permission
    /// record.
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

    /// Sets or clears [`Flags::MOUNTED`] of a dentry. The caller holds a reference on it.
    pub(crate) fn set_mounted(&self, slot: DentrySlot, mounted: Mounted) {
        let guard = self.dentries.lockref(slot).lock();
        let body = self.dentries.image(slot).body;
        let mut flags = body.flags();
        flags.set(Flags::MOUNTED, mounted == Mounted::Yes);
        self.write(slot, &guard, |dcache| {
            dcache.dentries.store_body(slot, body.with_flags(flags));
        });
    }

    /// Marks a dentry as dead. The dentry has no references. The caller removes its entry from the
    /// table, calls [`Dcache::end_life`], and drops the references that the dentry held.
    pub(super) fn kill(&self, slot: DentrySlot, mut guard: LockrefGuard<'_>) -> Dead {
        debug_assert_eq!(guard.count(), 0);
        let image = self.dentries.image(slot);
        guard.mark_dead();
        self.write(slot, &guard, |dcache| dcache.dentries.store_body(slot, Body(0)));
        let parent = image.key.parent();
        Dead { parent: if parent == slot { DentrySlot::NONE } else { parent }, image }
    }

    /// Frees the slot of a dead dentry, after its last use.
    pub(super) fn end_life(&self, slot: DentrySlot, dead: &Dead) {
        self.dentries.drop_image(&dead.image);
        // A slot without unused generations is never used again.
        if self.dentries.cold(slot).next_generation() {
            self.dentries.free(slot);
        }
    }

    /// Unhashes a dentry. The caller is inside a write section. A removed directory also gets a new
    /// child generation, so no lookup finds the negative entries below it.
    fn store_unhashed(&self, slot: DentrySlot, image: &Image) {
        self.dentries.store_body(slot, unhashed(image.body));
        if image.body.is_directory() {
            self.dentries.store_child_generation(slot, next_generation(image));
        }
    }

    /// Fills the slot of a new dentry, which no other thread can find yet. The dentry begins with
    /// one reference, which is the caller's.
    fn begin_life(&self, slot: DentrySlot, image: &Image) {
        let mut guard = self.dentries.lockref(slot).lock();
        guard.revive();
        guard.add(1);
        self.write(slot, &guard, |dcache| {
            dcache.dentries.store(slot, image);
        });
    }

    /// Locks one or two dentries, in the order of their slots (trap P9).
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

    /// Runs `change` inside a write section of the dentry. `_guard` holds the dentry's lock. The
    /// section ends even if `change` panics (trap T30).
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

/// A dead dentry, and the references that it held.
pub(super) struct Dead {
    pub(super) parent: DentrySlot,
    image: Image,
}

/// The state of a dentry as a mount point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mounted {
    /// It is a mount point.
    Yes,
    /// It is not.
    No,
}

#[cfg(all(test, corewalk_loom))]
mod loom_models;

#[cfg(all(test, not(any(corewalk_loom, corewalk_shuttle))))]
mod tests;
