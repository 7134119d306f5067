//! Reclaim: keeping the cache within its budget of bytes.
//!
//! A clock hand moves over the slots of the cache, and evicts unused dentries. A dentry that was
//! looked up since the hand's last visit gets a second chance.
//!
//! When the last child of a directory is evicted, the directory is tried next. So one round of the
//! clock hand evicts a deep tree (trap T44 in `traps.md`).
//!
//! All threads share one clock hand, so each slot is scanned by one thread per round. With a hand
//! per thread, all threads would scan the same slots (trap T45 in `traps.md`).
//!
//! A dentry is not evicted while it has references or children. It also stays while it is the only
//! name of an inode in use, because some back ends find their files by name. Such a dentry is
//! called a pinned entry.
//!
//! If all entries are in use, the cache asks its owner (`Host`) to drop its references on the
//! inodes of pinned entries. A FUSE server asks the kernel to forget these inodes.
//!
//! While the cache is over its budget, each thread that adds an entry scans a few slots and evicts
//! unused entries. Nothing is evicted while no entries are added, and a pinned entry is never
//! evicted in this way. So an owner with a background thread calls [`Dcache::reclaim`], which also
//! reports pinned entries. Once the owner has dropped its references on the inode of a pinned
//! entry, it calls [`Dcache::evict_entry`].
//!
//! When a directory is removed, the negative dentries below it stay in the cache as orphans: no
//! lookup finds them any more.
//!
//! The cache has no list of a directory's children. So each removal of a directory scans slots of
//! the whole cache for orphans: [`ORPHAN_SCAN`] slots per orphan that it leaves. In a small cache,
//! one scan evicts all orphans. In any cache, orphans take only a small share.
//!
//! A path walk without locks writes nothing, so it does not mark dentries as used. A dentry is
//! marked only when a thread takes a reference on it or adds it. So a dentry that only lock-free
//! walks use may be evicted and added again, at most once per round of the clock hand.
//!
//! Source: Linux `fs/dcache.c` shrinker; the second-chance algorithm (Corbato 1968).

use corewalk_base::primitives::atomic::{AtomicU32, AtomicU64, Ordering};

use super::{Dcache, unhashed};
use crate::dentry::{NameCopy, Snapshot};
use crate::key_lock::KeyGuard;
use crate::name::Name;
use crate::slot::{DentrySlot, InodeSlot};

/// The maximum number of slots that a thread scans for entries to evict, each time it adds an entry
/// to a cache over its budget.
const SCAN_MAX: u32 = 512;
const SCAN_STEP: u32 = 64;
/// The number of slots that the removal of a directory scans for each orphan that it leaves. An
/// orphan is a negative entry that no lookup finds any more. The whole cache is scanned before
/// orphans fill 1/32 of it.
const ORPHAN_SCAN: u64 = 32;
/// The minimum number of slots that the removal of a directory with negative entries scans for such
/// entries. That takes about a microsecond.
const ORPHAN_SCAN_MIN: u64 = 256;
/// The maximum number of slots that one removal of a directory scans for negative entries below
/// removed directories. If more slots are due, later removals scan them.
const ORPHAN_SCAN_MAX: u64 = 4096;
/// The maximum number of inodes that the cache asks its owner to drop, each time a thread adds an
/// entry over the budget.
const ASK_MAX: u32 = 16;
/// The divisor that yields the share of the budget for negative entries. Without such a limit,
/// lookups of missing names could fill the cache.
const NEGATIVE_SHARE: u64 = 8;
/// The approximate size of a cache entry in bytes.
const ENTRY_BYTES: u64 = 96;

pub(crate) struct Hand {
    at: AtomicU32,
    budget_bytes: AtomicU64,
    orphans_at: AtomicU32,
    orphans_owed: AtomicU64,
}

impl Hand {
    pub(crate) fn new() -> Hand {
        Hand {
            at: AtomicU32::new(1),
            budget_bytes: AtomicU64::new(u64::MAX),
            orphans_at: AtomicU32::new(1),
            orphans_owed: AtomicU64::new(0),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Chance {
    /// Evict entries that were not used since the last pass.
    Second,
    None,
    /// Evict negative entries that were not used since the last pass.
    NegativesOnly,
    /// Evict negative entries that no lookup finds any more.
    OrphansOnly,
}

pub(super) enum Outcome {
    /// The dentry was evicted. The value is its parent, on which the caller drops a reference.
    Evicted(DentrySlot),
    /// The dentry is a pinned entry: it has no user, but it is the only name of an inode in use.
    Pinned,
    Kept,
}

impl Dcache {
    /// How often additions check the budget: once per this many slot numbers. A growing cache uses
    /// every slot number, so the check happens regularly, and most additions skip its cost.
    pub(super) const RECLAIM_EVERY: u32 = 32;

    pub(crate) fn set_budget(&self, bytes: u64) {
        // ORDERING: Relaxed. The limit publishes nothing; the next fill reads it.
        self.hand.budget_bytes.store(bytes, Ordering::Relaxed);
    }

    pub(crate) fn budget(&self) -> u64 {
        // ORDERING: Relaxed. As above.
        self.hand.budget_bytes.load(Ordering::Relaxed)
    }

    pub(crate) fn has_room_for_negative(&self) -> bool {
        if self.counters.negatives.sum() < self.negatives_max() {
            return true;
        }
        self.sweep(SCAN_MAX / 4, Chance::NegativesOnly, &mut |_| {}) > 0
    }

    pub(super) fn reclaim_over_budget(&self) {
        if self.bytes() > self.budget() {
            let mut asked = 0;
            self.sweep(SCAN_MAX, Chance::Second, &mut |slot| {
                if asked < ASK_MAX {
                    asked += 1;
                    self.ask_to_forget(slot);
                }
            });
        }
    }

    /// Evicts entries until `want` entries were evicted or found pinned, or all slots were scanned
    /// once. Returns the number of evicted entries. Calls `pinned` for each pinned entry, with its
    /// slot, its inode, its parent's inode and its name.
    pub(crate) fn reclaim(
        &self,
        want: u64,
        pinned: &mut dyn FnMut(DentrySlot, InodeSlot, InodeSlot, Name<'_>),
    ) -> u64 {
        let mut left = self.dentries.slots_touched();
        let mut evicted = 0;
        while left > 0 && self.counters.negatives.sum() > self.negatives_max() {
            let scan = left.min(SCAN_MAX);
            left -= scan;
            evicted += self.sweep(scan, Chance::NegativesOnly, &mut |_| {});
        }
        let (mut found, mut left) = (0, self.dentries.slots_touched());
        while left > 0 && evicted + found < want {
            let scan = left.min(SCAN_STEP);
            left -= scan;
            evicted += self.sweep(scan, Chance::Second, &mut |slot| {
                self.describe(slot, &mut |inode, parent, name| {
                    found += 1;
                    pinned(slot, inode, parent, name);
                });
            });
        }
        evicted
    }

    /// Evicts an entry that was pinned, after the owner has dropped its references on the inode.
    /// The entry gets no second chance, even if it was used recently.
    pub(crate) fn evict_entry(&self, slot: DentrySlot) -> u64 {
        let evicted = self.evict_upwards(slot, Chance::None, &mut |_| {});
        self.counters.reclaimed.add(evicted as i64);
        evicted
    }

    fn negatives_max(&self) -> i64 {
        (self.budget() / NEGATIVE_SHARE / ENTRY_BYTES).max(1) as i64
    }

    pub(crate) fn prune(&self) -> u64 {
        let mut evicted = 0;
        loop {
            let now = self.sweep(self.dentries.slots_touched(), Chance::None, &mut |_| {});
            evicted += now;
            if now == 0 {
                return evicted;
            }
        }
    }

    /// Evicts negative entries below removed directories. The caller holds no lock.
    pub(crate) fn sweep_orphans(&self, children: u64) {
        if children == 0 {
            return;
        }
        let slots = u64::from(self.dentries.slots_touched().max(2));
        let due = (children.saturating_mul(ORPHAN_SCAN)).max(ORPHAN_SCAN_MIN);
        // ORDERING: Relaxed. `orphans_owed` is a number of slots that are due for a scan. The
        // thread that swaps it to 0 scans them.
        let owed = self.hand.orphans_owed.swap(0, Ordering::Relaxed);
        let owed = owed.saturating_add(due).min(slots);
        let scan = owed.min(ORPHAN_SCAN_MAX);
        if owed > scan {
            // ORDERING: Relaxed. As above.
            self.hand.orphans_owed.fetch_add(owed - scan, Ordering::Relaxed);
        }
        let mut evicted = 0;
        for _ in 0..scan {
            // ORDERING: Relaxed. The `fetch_add` gives each slot of this scan to one thread. No
            // other memory is published with it.
            let at = self.hand.orphans_at.fetch_add(1, Ordering::Relaxed);
            let slot = DentrySlot::new(at % slots as u32);
            evicted += self.evict_upwards(slot, Chance::OrphansOnly, &mut |_| {});
        }
        self.counters.reclaimed.add(evicted as i64);
    }

    fn sweep(&self, scan: u32, chance: Chance, pinned: &mut dyn FnMut(DentrySlot)) -> u64 {
        let mut evicted = 0;
        for _ in 0..scan {
            let end = self.dentries.slots_touched().max(2);
            // ORDERING: Relaxed. The `fetch_add` gives each position of the clock hand to one
            // thread. No other memory is published with it.
            let at = self.hand.at.fetch_add(1, Ordering::Relaxed);
            evicted += self.evict_upwards(DentrySlot::new(at % end), chance, pinned);
        }
        self.counters.reclaimed.add(evicted as i64);
        evicted
    }

    fn evict_upwards(
        &self,
        slot: DentrySlot,
        chance: Chance,
        pinned: &mut dyn FnMut(DentrySlot),
    ) -> u64 {
        let (mut slot, mut evicted) = (slot, 0);
        while !slot.is_none() {
            match self.evict(slot, chance) {
                Outcome::Evicted(parent) => {
                    evicted += 1;
                    let is_free = !parent.is_none() && self.dentries.lockref(parent).count() == 1;
                    self.put(parent);
                    slot = if is_free { parent } else { DentrySlot::NONE };
                }
                Outcome::Pinned => {
                    pinned(slot);
                    break;
                }
                Outcome::Kept => break,
            }
        }
        evicted
    }

    fn evict(&self, slot: DentrySlot, chance: Chance) -> Outcome {
        let seen = self.dentries.snapshot(slot);
        let body = seen.body;
        let is_meant = chance != Chance::OrphansOnly || body.is_negative();
        if !body.is_hashed() || !is_meant || self.dentries.lockref(slot).count() > 0 {
            return Outcome::Kept;
        }
        let is_stale = self.directory(seen.key.parent()).is_none_or(|now| now.key != seen.key);
        let stays = match chance {
            Chance::None => false,
            _ if is_stale => false,
            Chance::OrphansOnly => true,
            Chance::NegativesOnly if !body.is_negative() => true,
            _ if body.is_negative() => self.dentries.cold(slot).clear_referenced(),
            _ => self.inodes.clear_referenced(body.inode()),
        };
        let mut copy = NameCopy::new();
        self.dentries.copy_name(slot, body, &mut copy);
        if stays || !self.dentries.is_unchanged(slot, seen.seq) {
            return Outcome::Kept;
        }
        let Ok(name) = Name::new(copy.as_bytes()) else { return Outcome::Kept };
        if !body.is_negative()
            && self.inodes.is_only_alias_in_use(body.inode(), slot, &self.dentries)
        {
            // The entry is pinned, so return early. `evict_locked` would find that out too, but it
            // hides the name from lookups for a moment. Under a FUSE mount most entries are pinned,
            // because the kernel caches the names too.
            return Outcome::Pinned;
        }
        let lookup_key = self.lookup_key(name);
        // While a dentry is being evicted, lookups do not find it. They wait for the name's
        // in-lookup lock, which the evicting thread therefore holds.
        let Some(in_lookup) =
            self.in_lookup.try_lock(self.in_lookup_key(seen.key.parent(), &lookup_key))
        else {
            return Outcome::Kept;
        };
        let hash = self.hash(seen.key.parent(), lookup_key.hash);
        let outcome = self.evict_locked(slot, seen, hash, &in_lookup);
        drop(in_lookup);
        match outcome {
            Ok((parent, inode)) => {
                if !inode.is_none() {
                    self.put_inode(inode, 1);
                }
                Outcome::Evicted(parent)
            }
            Err(outcome) => outcome,
        }
    }

    /// Evicts a dentry if it has not changed since `seen` and has no users. The caller holds the
    /// in-lookup lock of the dentry's name. It drops the references on the returned parent and
    /// inode, which the dentry held.
    pub(super) fn evict_locked(
        &self,
        slot: DentrySlot,
        seen: Snapshot,
        hash: u32,
        in_lookup: &KeyGuard<'_>,
    ) -> Result<(DentrySlot, InodeSlot), Outcome> {
        let guard = self.dentries.lockref(slot).lock();
        if guard.is_dead() || guard.count() > 0 || !self.dentries.is_unchanged(slot, seen.seq) {
            return Err(Outcome::Kept);
        }
        let inode = seen.body.inode();
        self.write(slot, &guard, |dcache| dcache.dentries.store_body(slot, unhashed(seen.body)));
        // No lookup finds the dentry any more. `remove_alias_unless_needed` reads the inode's
        // reference count under the inode's lock. The count includes every reference that was taken
        // through this dentry before. A thread that takes one afterwards sees that the dentry has
        // changed, and drops it.
        let is_free =
            inode.is_none() || self.inodes.remove_alias_unless_needed(inode, slot, &self.dentries);
        if !is_free {
            self.write(slot, &guard, |dcache| {
                // The inode is in use, so make the hidden dentry visible again. If the name was
                // invalidated meanwhile, give it a stale key, so that no lookup finds it.
                dcache.dentries.store_key(slot, seen.key.unless_cancelled(in_lookup));
                dcache.dentries.store_body(slot, seen.body);
            });
            return Err(Outcome::Pinned);
        }
        if inode.is_none() {
            self.counters.negatives.add(-1);
        }
        let dead = self.kill(slot, guard);
        self.table.remove(hash, slot);
        self.end_life(slot, &dead);
        Ok((dead.parent, inode))
    }

    pub(super) fn put_evicted(&self, parent: DentrySlot, inode: InodeSlot) {
        if !inode.is_none() {
            self.put_inode(inode, 1);
        }
        self.put(parent);
    }

    fn ask_to_forget(&self, slot: DentrySlot) {
        self.describe(slot, &mut |_, parent, name| {
            let superblock = self.inodes.superblock(parent);
            self.host.ask_to_forget(superblock, self.inodes.ino(parent), name);
        });
    }

    fn describe(&self, slot: DentrySlot, then: &mut dyn FnMut(InodeSlot, InodeSlot, Name<'_>)) {
        let seen = self.dentries.snapshot(slot);
        let mut copy = NameCopy::new();
        self.dentries.copy_name(slot, seen.body, &mut copy);
        let Some(parent) = self.directory(seen.key.parent()) else { return };
        if self.dentries.is_unchanged(slot, seen.seq)
            && self.dentries.is_unchanged(parent.slot, parent.seq)
            && !seen.body.is_negative()
            && let Ok(name) = Name::new(copy.as_bytes())
        {
            then(seen.body.inode(), parent.inode, name);
        }
    }
}

#[cfg(all(test, corewalk_loom))]
mod loom_models;
