//! Reclaim: keeping the cache within its budget of bytes.
//!
//! A clock hand goes over the slots. An unused dentry that was looked up since the hand passed gets
//! a second chance; the others die, and a parent that is left without children is looked at next, so
//! a deep tree falls in one pass (trap T44). There is no list and no lock that every eviction takes;
//! several reclaimers share the hand and never look at the same slot in one pass (trap T45).
//!
//! A dentry stays while somebody holds it, while it has children, and while its inode is in use and
//! this is its only name: a back end that works by path needs that name. When only such entries are
//! left, the host is asked to let go of some (a FUSE server asks the kernel to forget).
//!
//! Who fills the cache makes room as it goes, a few slots at a time. That does not always suffice: what
//! is pinned stays, and nothing is filled any more once the load ends. A host with a thread to spare
//! calls [`Dcache::reclaim`] then, which reports what is pinned, and [`Dcache::evict_entry`] for what
//! has been let go of.
//!
//! The negative entries below a removed directory cannot be found any more. Nothing lists the children
//! of a directory, so each removal of a directory looks at some slots for such entries, in turn: at
//! [`ORPHAN_SCAN`] slots for each entry that it leaves behind. So in a small cache they go at once,
//! and in any cache they take a small share of the slots.
//!
//! What the walk hits is not recorded, since a walk writes nothing; taking a reference and filling
//! are. An entry that is only ever walked through is therefore filled again once per pass at worst.
//!
//! Source: Linux `fs/dcache.c` shrinker; the second-chance algorithm (Corbato 1968).

use corewalk_base::primitives::atomic::{AtomicU32, AtomicU64, Ordering};

use super::{Dcache, unhashed};
use crate::claim::Claim;
use crate::dentry::{Glimpse, NameCopy};
use crate::name::Name;

/// Slots looked at, at most, each time the cache is found over its budget.
const SCAN_MAX: u32 = 512;
/// Slots looked at between two looks at whether there is room enough.
const SCAN_STEP: u32 = 64;
/// Slots looked at for each entry that a removed directory leaves behind, so that a full turn is paid
/// for by one entry per 32 slots.
const ORPHAN_SCAN: u64 = 32;
/// Slots looked at, at least, when a removed directory leaves an entry behind: about a microsecond.
const ORPHAN_SCAN_MIN: u64 = 256;
/// Slots looked at, at most, by one removal. Later removals look at the rest.
const ORPHAN_SCAN_MAX: u64 = 4096;
/// Entries a host is asked to let go of, at most, each time.
const ASK_MAX: u32 = 16;
/// One in so many bytes of the budget may be taken by negative entries.
const NEGATIVE_SHARE: u64 = 8;
/// What one entry takes, roughly: for turning the negative share into a count.
const ENTRY_BYTES: u64 = 96;

/// Where the clock hand is, and the budget it works for.
pub(crate) struct Hand {
    at: AtomicU32,
    budget_bytes: AtomicU64,
    /// Where the look for entries of removed directories is.
    orphans_at: AtomicU32,
    /// Slots that this look still has to go over.
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

/// How hard reclaim looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Chance {
    /// What was used lately stays.
    Second,
    /// What is not in use goes.
    None,
    /// Only negative entries go, with a second chance.
    NegativesOnly,
    /// Only negative entries that no lookup finds any more go.
    OrphansOnly,
}

/// What became of one slot.
pub(super) enum Outcome {
    /// The dentry is gone; its parent's slot.
    Evicted(u32),
    /// Only its inode's users keep it.
    Pinned,
    /// It stays.
    Kept,
}

impl Dcache {
    /// The budget is looked at when a slot with a multiple of this number is filled: growth cannot
    /// miss one, and filling others costs nothing.
    pub(super) const RECLAIM_EVERY: u32 = 32;

    /// Sets the budget in bytes.
    pub(crate) fn set_budget(&self, bytes: u64) {
        // ORDERING: Relaxed. A limit read at the next fill.
        self.hand.budget_bytes.store(bytes, Ordering::Relaxed);
    }

    pub(crate) fn budget(&self) -> u64 {
        // ORDERING: Relaxed. As above.
        self.hand.budget_bytes.load(Ordering::Relaxed)
    }

    /// Returns true if a negative entry may be cached, after making room if there are many.
    pub(crate) fn has_room_for_negative(&self) -> bool {
        if self.counters.negatives.sum() < self.negatives_max() {
            return true;
        }
        self.sweep(SCAN_MAX / 4, Chance::NegativesOnly, &mut |_| {}) > 0
    }

    /// Makes some room if the cache is over its budget.
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

    /// Brings the negative entries down to their share; then evicts what is not in use, and reports
    /// what only its inode's users keep, until both together are `want` or each slot was looked at
    /// once. Returns how many were evicted. `pinned` gets slot, inode, the parent's inode, and name.
    pub(crate) fn reclaim(
        &self,
        want: u64,
        pinned: &mut dyn FnMut(u32, u32, u32, Name<'_>),
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

    /// Evicts what is in `slot` now, unless it is in use; and the parents that are left without
    /// children. Returns how many entries that were. That it was used lately is no reason to keep it:
    /// whoever used it has let it go because it was asked to.
    pub(crate) fn evict_entry(&self, slot: u32) -> u64 {
        let evicted = self.evict_upwards(slot, Chance::None, &mut |_| {});
        self.counters.reclaimed.add(evicted as i64);
        evicted
    }

    /// Returns how many negative entries there may be.
    fn negatives_max(&self) -> i64 {
        (self.budget() / NEGATIVE_SHARE / ENTRY_BYTES).max(1) as i64
    }

    /// Evicts everything that is not in use and returns how much that was.
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

    /// Makes up for a directory that was removed with up to `children` entries, all of them negative:
    /// looks at some slots for entries below removed directories, and evicts those. The caller holds
    /// no lock.
    pub(crate) fn sweep_orphans(&self, children: u64) {
        if children == 0 {
            return;
        }
        let slots = u64::from(self.dentries.slots_touched().max(2));
        let due = (children.saturating_mul(ORPHAN_SCAN)).max(ORPHAN_SCAN_MIN);
        // ORDERING: Relaxed. A count of work; the thread that takes a part does it.
        let owed = self.hand.orphans_owed.swap(0, Ordering::Relaxed);
        let owed = owed.saturating_add(due).min(slots);
        let scan = owed.min(ORPHAN_SCAN_MAX);
        if owed > scan {
            // ORDERING: Relaxed. As above.
            self.hand.orphans_owed.fetch_add(owed - scan, Ordering::Relaxed);
        }
        let mut evicted = 0;
        for _ in 0..scan {
            // ORDERING: Relaxed. Each value is handed to one thread; nothing else is implied.
            let at = self.hand.orphans_at.fetch_add(1, Ordering::Relaxed);
            evicted += self.evict_upwards(at % slots as u32, Chance::OrphansOnly, &mut |_| {});
        }
        self.counters.reclaimed.add(evicted as i64);
    }

    /// Looks at `scan` slots and returns how many dentries were evicted; `pinned` gets the slots of
    /// those that only their inode's users keep.
    fn sweep(&self, scan: u32, chance: Chance, pinned: &mut dyn FnMut(u32)) -> u64 {
        let mut evicted = 0;
        for _ in 0..scan {
            let end = self.dentries.slots_touched().max(2);
            // ORDERING: Relaxed. Each value is handed to one reclaimer; nothing else is implied.
            let slot = self.hand.at.fetch_add(1, Ordering::Relaxed) % end;
            evicted += self.evict_upwards(slot, chance, pinned);
        }
        self.counters.reclaimed.add(evicted as i64);
        evicted
    }

    /// Evicts the dentry in `slot`, and goes upwards as long as the parent is free then.
    fn evict_upwards(&self, slot: u32, chance: Chance, pinned: &mut dyn FnMut(u32)) -> u64 {
        let (mut slot, mut evicted) = (slot, 0);
        while slot != 0 {
            match self.evict(slot, chance) {
                Outcome::Evicted(parent) => {
                    evicted += 1;
                    let is_free = parent != 0 && self.dentries.lockref(parent).count() == 1;
                    self.put(parent);
                    slot = if is_free { parent } else { 0 };
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

    /// Evicts the dentry in `slot` if nobody needs it.
    fn evict(&self, slot: u32, chance: Chance) -> Outcome {
        let seen = self.dentries.glimpse(slot);
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
            // Looked at again below; but most entries are pinned where a kernel caches, and a name
            // that is out of sight for a moment costs those who look it up.
            return Outcome::Pinned;
        }
        let needle = self.needle(name);
        // With the claim, a lookup that misses waits until it is decided whether the name stays.
        let Some(claim) = self.claims.try_claim(self.claim_key(seen.key.parent(), &needle)) else {
            return Outcome::Kept;
        };
        let hash = self.hash(seen.key.parent(), needle.hash);
        let outcome = self.evict_claimed(slot, seen, hash, &claim);
        drop(claim);
        match outcome {
            Ok((parent, inode)) => {
                if inode != 0 {
                    self.put_inode(inode, 1);
                }
                Outcome::Evicted(parent)
            }
            Err(outcome) => outcome,
        }
    }

    /// Evicts a dentry whose name the caller has claimed. Returns the parent and the inode whose
    /// references have to be dropped.
    pub(super) fn evict_claimed(
        &self,
        slot: u32,
        seen: Glimpse,
        hash: u32,
        claim: &Claim<'_>,
    ) -> Result<(u32, u32), Outcome> {
        let guard = self.dentries.lockref(slot).lock();
        if guard.is_dead() || guard.count() > 0 || !self.dentries.is_unchanged(slot, seen.seq) {
            return Err(Outcome::Kept);
        }
        let inode = seen.body.inode();
        self.write(slot, &guard, |dcache| dcache.dentries.store_body(slot, unhashed(seen.body)));
        // Whoever took a reference on the inode through this dentry before the count is read here
        // is counted, and whoever takes one later finds the dentry changed: both go through the
        // inode's lockref (see `Dcache::get_inode`).
        let is_free =
            inode == 0 || self.inodes.remove_alias_unless_needed(inode, slot, &self.dentries);
        if !is_free {
            self.write(slot, &guard, |dcache| {
                // An invalidation may have looked while the name was out of sight.
                dcache.dentries.store_key(slot, seen.key.unless_doomed(claim));
                dcache.dentries.store_body(slot, seen.body);
            });
            return Err(Outcome::Pinned);
        }
        if inode == 0 {
            self.counters.negatives.add(-1);
        }
        let dead = self.kill(slot, guard);
        self.table.remove(hash, slot);
        self.end_life(slot, &dead);
        Ok((dead.parent, inode))
    }

    /// Drops the references that an evicted dentry had.
    pub(super) fn let_go(&self, parent: u32, inode: u32) {
        if inode != 0 {
            self.put_inode(inode, 1);
        }
        self.put(parent);
    }

    /// Asks the host to drop its references on the inode of a dentry.
    fn ask_to_forget(&self, slot: u32) {
        self.describe(slot, &mut |_, parent, name| {
            let superblock = self.inodes.superblock(parent);
            self.host.ask_to_forget(superblock, self.inodes.ino(parent), name);
        });
    }

    /// Tells `then` the inode of a dentry, its parent's inode and its name, if it can be told what
    /// they were at one instant.
    fn describe(&self, slot: u32, then: &mut dyn FnMut(u32, u32, Name<'_>)) {
        let seen = self.dentries.glimpse(slot);
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
