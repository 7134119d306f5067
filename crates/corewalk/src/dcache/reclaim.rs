//! Reclaim: keeping the cache within its budget of bytes.
//!
//! A clock hand moves over the slots. An unused dentry gets a second chance if it was looked up
//! since the hand last passed; otherwise it is evicted. When the last child of a directory is
//! evicted, the directory is tried next. So one pass evicts a deep tree (trap T44). No list and no
//! lock is shared by all evictions. Several threads share the hand, so that each slot is scanned by
//! one thread per pass. With a hand each, the threads would skip each other's entries again and
//! again, which is trap T45.
//!
//! A dentry stays while it has references, while it has children, and while it is the only name of
//! an inode in use. (A back end by path needs that name.) An entry that only the users of its inode
//! keep is a pinned entry. If only entries in use are left, the cache asks the host to drop pinned
//! entries. A FUSE server then asks the kernel to forget their inodes.
//!
//! A thread that fills the cache also reclaims, a few slots at a time. That does not always
//! suffice: pinned entries stay, and no fill happens without load. So a host with a background
//! thread calls [`Dcache::reclaim`], which reports pinned entries. When the host has stopped using
//! a pinned entry, it calls [`Dcache::evict_entry`].
//!
//! No lookup finds the negative entries below a removed directory, and there is no list of a
//! directory's children. So each removal of a directory scans [`ORPHAN_SCAN`] slots for each entry
//! that it leaves behind. A small cache loses such entries at once, and in any cache they take a
//! small share.
//!
//! Walks write nothing, so they do not mark entries as used; references and fills do. So an entry
//! that only walks use is evicted and filled again at most once per pass.
//!
//! Source: Linux `fs/dcache.c` shrinker; the second-chance algorithm (Corbato 1968).

use corewalk_base::primitives::atomic::{AtomicU32, AtomicU64, Ordering};

use super::{Dcache, unhashed};
use crate::dentry::{NameCopy, Snapshot};
use crate::key_lock::KeyGuard;
use crate::name::Name;
use crate::slot::{DentrySlot, InodeSlot};

/// When a thread adds an entry to a cache over its budget, it scans at most this many slots for
/// entries to evict.
const SCAN_MAX: u32 = 512;
/// Slots scanned between two checks of the progress.
const SCAN_STEP: u32 = 64;
/// For each negative entry that the removal of a directory leaves in the cache, the removal scans
/// this many slots. No lookup finds such entries. At this rate the scans have covered the whole
/// cache before such entries fill 1/32 of it.
const ORPHAN_SCAN: u64 = 32;
/// Minimum number of slots that the removal of a directory scans, if it leaves negative entries in
/// the cache. That takes about a microsecond.
const ORPHAN_SCAN_MIN: u64 = 256;
/// Maximum number of slots that one removal of a directory scans. If more are due, later removals
/// scan them.
const ORPHAN_SCAN_MAX: u64 = 4096;
/// Maximum number of entries that one fill asks the host to drop.
const ASK_MAX: u32 = 16;
/// Negative entries may use the budget divided by this number.
const NEGATIVE_SHARE: u64 = 8;
/// The approximate size of an entry in bytes. It turns the negative entries' share of the budget
/// into a number of entries.
const ENTRY_BYTES: u64 = 96;

/// The clock hand, and the budget.
pub(crate) struct Hand {
    at: AtomicU32,
    budget_bytes: AtomicU64,
    /// The slot at which the next scan for negative entries below removed directories starts.
    orphans_at: AtomicU32,
    /// Slots that this scan still has to visit.
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

/// The unused entries that a scan evicts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Chance {
    /// Those not used since the last pass.
    Second,
    /// All of them.
    None,
    /// Negative entries not used since the last pass.
    NegativesOnly,
    /// Negative entries that no lookup finds any more.
    OrphansOnly,
}

/// The result for one slot.
pub(super) enum Outcome {
    /// The dentry was evicted. Holds the slot of its parent.
    Evicted(DentrySlot),
    /// The dentry is a pinned entry: only users of its inode keep it.
    Pinned,
    /// The dentry stays.
    Kept,
}

impl Dcache {
    /// A thread that fills the cache checks the budget only if it fills a slot whose number is a
    /// multiple of this number. A growing cache uses all slot numbers, so it cannot skip the check.
    /// Other fills pay nothing.
    pub(super) const RECLAIM_EVERY: u32 = 32;

    /// Sets the budget in bytes.
    pub(crate) fn set_budget(&self, bytes: u64) {
        // ORDERING: Relaxed. The limit publishes nothing; the next fill reads it.
        self.hand.budget_bytes.store(bytes, Ordering::Relaxed);
    }

    pub(crate) fn budget(&self) -> u64 {
        // ORDERING: Relaxed. As above.
        self.hand.budget_bytes.load(Ordering::Relaxed)
    }

    /// Returns true if a negative entry may be cached. If there are many negative entries, evicts
    /// some first.
    pub(crate) fn has_room_for_negative(&self) -> bool {
        if self.counters.negatives.sum() < self.negatives_max() {
            return true;
        }
        self.sweep(SCAN_MAX / 4, Chance::NegativesOnly, &mut |_| {}) > 0
    }

    /// Reclaims if the cache is over its budget.
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

    /// Evicts negative entries until they fit their share of the budget. Then evicts unused entries
    /// and reports pinned ones. Stops after `want` evicted and reported entries, or after one scan
    /// of all slots. Returns the number of evictions. `pinned` gets the slot, the inode, the
    /// parent's inode and the name of each pinned entry.
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

    /// Evicts the entry in `slot` and its parents without children, unless they are in use. Returns
    /// the number of evictions. Ignores the referenced bit, because the host has just dropped the
    /// entry at the cache's request.
    pub(crate) fn evict_entry(&self, slot: DentrySlot) -> u64 {
        let evicted = self.evict_upwards(slot, Chance::None, &mut |_| {});
        self.counters.reclaimed.add(evicted as i64);
        evicted
    }

    /// Returns the maximum number of negative entries that the budget allows.
    fn negatives_max(&self) -> i64 {
        (self.budget() / NEGATIVE_SHARE / ENTRY_BYTES).max(1) as i64
    }

    /// Evicts all unused entries and returns their number.
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

    /// Scans for negative entries below removed directories, and evicts them. The caller has
    /// removed a directory with up to `children` entries, and holds no lock.
    pub(crate) fn sweep_orphans(&self, children: u64) {
        if children == 0 {
            return;
        }
        let slots = u64::from(self.dentries.slots_touched().max(2));
        let due = (children.saturating_mul(ORPHAN_SCAN)).max(ORPHAN_SCAN_MIN);
        // ORDERING: Relaxed. This atomic word only counts slots that are still to be scanned. The
        // thread that takes the count scans these slots.
        let owed = self.hand.orphans_owed.swap(0, Ordering::Relaxed);
        let owed = owed.saturating_add(due).min(slots);
        let scan = owed.min(ORPHAN_SCAN_MAX);
        if owed > scan {
            // ORDERING: Relaxed. As above.
            self.hand.orphans_owed.fetch_add(owed - scan, Ordering::Relaxed);
        }
        let mut evicted = 0;
        for _ in 0..scan {
            // ORDERING: Relaxed. The `fetch_add` gives each slot number to one thread. No other
            // memory is published with it.
            let at = self.hand.orphans_at.fetch_add(1, Ordering::Relaxed);
            let slot = DentrySlot::new(at % slots as u32);
            evicted += self.evict_upwards(slot, Chance::OrphansOnly, &mut |_| {});
        }
        self.counters.reclaimed.add(evicted as i64);
    }

    /// Scans `scan` slots and returns the number of evicted entries. Calls `pinned` with the slot
    /// of each pinned entry.
    fn sweep(&self, scan: u32, chance: Chance, pinned: &mut dyn FnMut(DentrySlot)) -> u64 {
        let mut evicted = 0;
        for _ in 0..scan {
            let end = self.dentries.slots_touched().max(2);
            // ORDERING: Relaxed. The `fetch_add` gives each slot number to one thread. No other
            // memory is published with it.
            let at = self.hand.at.fetch_add(1, Ordering::Relaxed);
            evicted += self.evict_upwards(DentrySlot::new(at % end), chance, pinned);
        }
        self.counters.reclaimed.add(evicted as i64);
        evicted
    }

    /// Evicts the dentry in `slot`. Then evicts its parent directory if that has no other child or
    /// user, and so on upwards.
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

    /// Evicts the dentry in `slot` if it is unused.
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
            // `evict_locked` could also find out that an entry is pinned, but it hides the entry's
            // name meanwhile. That would delay lookups: if the kernel caches names too, most
            // entries are pinned. So return early.
            return Outcome::Pinned;
        }
        let lookup_key = self.lookup_key(name);
        // If a lookup misses the name while the eviction hides it, the lookup waits for this
        // in-lookup lock. Then it sees the result of the eviction.
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

    /// Evicts a dentry. The caller holds the in-lookup lock of its name. Returns the parent and the
    /// inode, whose references the caller drops.
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
        // The inode's count now includes each reference that a reader took through this dentry
        // before its body changed. A reader that takes one from now on finds that the dentry has
        // changed, and drops the reference. The lock of the inode's lockref orders the reader and
        // the eviction.
        let is_free =
            inode.is_none() || self.inodes.remove_alias_unless_needed(inode, slot, &self.dentries);
        if !is_free {
            self.write(slot, &guard, |dcache| {
                // An invalidation may have missed the name while the eviction hid it, so check
                // whether the invalidation cancelled the fill.
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

    /// Drops the references that an evicted dentry held.
    pub(super) fn put_evicted(&self, parent: DentrySlot, inode: InodeSlot) {
        if !inode.is_none() {
            self.put_inode(inode, 1);
        }
        self.put(parent);
    }

    /// Asks the host to drop its references on the inode of a dentry.
    fn ask_to_forget(&self, slot: DentrySlot) {
        self.describe(slot, &mut |_, parent, name| {
            let superblock = self.inodes.superblock(parent);
            self.host.ask_to_forget(superblock, self.inodes.ino(parent), name);
        });
    }

    /// Calls `then` with the inode of a dentry, its parent's inode and its name. Does nothing
    /// unless all three were valid at one instant.
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
