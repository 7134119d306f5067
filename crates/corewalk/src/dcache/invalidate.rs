//! Invalidation of cached names: of one name, or of all names in a directory.

use super::Dcache;
use crate::dentry::{Image, LookupKey, ParentKey};
use crate::slot::{DentrySlot, InodeSlot};

impl Dcache {
    /// Invalidates all names in one step, however large the directory is. Each child's dentry has a
    /// copy of the directory's child generation, which this function increments.
    pub(crate) fn invalidate_directory(&self, slot: DentrySlot) {
        let mut are_retired = false;
        loop {
            let guard = self.dentries.lockref(slot).lock();
            let image = self.dentries.image(slot);
            if !image.body.is_directory() || image.body.is_negative() {
                return;
            }
            let next = next_generation(&image);
            let comes_round = next != image.child_generation() + 1;
            if comes_round && !are_retired {
                drop(guard);
                self.retire_children(slot);
                are_retired = true;
                continue;
            }
            self.write(slot, &guard, |dcache| dcache.dentries.store_child_generation(slot, next));
            drop(guard);
            self.counters.invalidations.add(1);
            return;
        }
    }

    /// Gives all children of a directory stale parent keys, before the low 32 bits of the child
    /// generation wrap around. Dentries contain only these bits, so lookups would otherwise find
    /// old children again.
    #[cold]
    fn retire_children(&self, slot: DentrySlot) {
        for child in self.slots() {
            if self.dentries.snapshot(child).key.parent() != slot || child == slot {
                continue;
            }
            // The dentry was read without a lock, and the slot may hold another dentry by now. So
            // read it again under the dentry's lock.
            let guard = self.dentries.lockref(child).lock();
            let key = self.dentries.image(child).key;
            if !guard.is_dead() && key.parent() == slot && !key.is_stale() {
                self.write(child, &guard, |dcache| {
                    dcache.dentries.store_key(child, ParentKey::stale(slot));
                });
            }
        }
    }

    pub(crate) fn invalidate_name(&self, directory: DentrySlot, lookup_key: &LookupKey<'_>) {
        self.cancel_fills(directory, lookup_key);
        self.counters.invalidations.add(1);
        if let Some(now) = self.directory(directory) {
            self.make_name_stale(now.key, lookup_key);
        }
    }

    /// Returns the dentries of a name: the current one and the stale ones.
    pub(crate) fn dentries_of_name(
        &self,
        directory: DentrySlot,
        lookup_key: &LookupKey<'_>,
    ) -> Vec<DentrySlot> {
        let hash = self.hash(directory, lookup_key.hash);
        let all = self.collect_stale(hash, ParentKey::stale(directory), lookup_key);
        all.into_iter().map(|(slot, _)| slot).collect()
    }

    /// Returns all dentry slots that were ever used.
    pub(crate) fn slots(&self) -> impl Iterator<Item = DentrySlot> + use<> {
        (1..self.dentries.slots_touched()).map(DentrySlot::new)
    }

    pub(crate) fn is_directory(&self, slot: DentrySlot) -> bool {
        self.dentries.snapshot(slot).body.is_directory()
    }

    /// Returns true if the name, or all names of its directory, were invalidated. The caller holds
    /// the in-lookup lock of the name.
    pub(crate) fn is_hidden(&self, slot: DentrySlot) -> bool {
        let key = self.dentries.snapshot(slot).key;
        key != self.key_of_held(key.parent())
    }

    pub(crate) fn has_inode(&self, slot: DentrySlot) -> bool {
        !self.dentries.snapshot(slot).body.inode().is_none()
    }

    /// Searches the dentries of a name for an inode that `test` accepts: first the current dentry,
    /// then the stale ones. The caller holds the in-lookup lock of the name.
    pub(crate) fn inode_of_name(
        &self,
        key: ParentKey,
        lookup_key: &LookupKey<'_>,
        test: impl Fn(InodeSlot) -> bool,
    ) -> Option<InodeSlot> {
        let hash = self.hash(key.parent(), lookup_key.hash);
        'search: loop {
            let mut seen = self.collect_stale(hash, ParentKey::stale(key.parent()), lookup_key);
            seen.sort_by_key(|(_, seen)| seen.key != key);
            for (slot, seen) in seen {
                let inode = seen.body.inode();
                if inode.is_none() {
                    continue;
                }
                if !self.get_inode(slot, seen.seq, inode) {
                    continue 'search;
                }
                if test(inode) {
                    return Some(inode);
                }
                self.put_inode(inode, 1);
            }
            return None;
        }
    }

    pub(crate) fn make_name_stale(&self, key: ParentKey, lookup_key: &LookupKey<'_>) {
        while !key.is_stale()
            && let Some((slot, seen)) = self.find_exact(key, lookup_key)
        {
            if self.get(slot, seen.seq) {
                self.make_stale(slot);
            }
        }
    }
}

/// Returns the child generation after that of `image`. Skips generations whose low 32 bits are 0:
/// dentries contain these bits, and there 0 marks a stale dentry.
pub(super) fn next_generation(image: &Image) -> u64 {
    let next = image.child_generation() + 1;
    next + u64::from(ParentKey::new(DentrySlot::NONE, next).is_stale())
}
