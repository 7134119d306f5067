//! The inode cache. For each inode it holds the permissions, which path walks check, and the
//! reference count.
//!
//! Analogous to Linux's `struct inode`. An inode has two records on different cache lines:
//! - The permission record has mode, owner, ACL flag and the inode's dentries. Path walks read it;
//!   only changes of attributes and names write it.
//! - The reference record has the reference count and the inode number. Taking and dropping a
//!   reference writes it.
//!
//! Because the permissions and the references of an inode are in two records, taking a reference
//! does not disturb path walks. The reference records are small, so many of them fit the
//! processor's caches.
//!
//! A slot has two halves: one for a dentry, and one for an inode (module `dentry`). The two records
//! of an inode are part of its half.
//!
//! The permission record is a copy of the back end's attributes. A thread that changes attributes
//! marks the record as unknown before it calls the back end.
//!
//! A thread that finds the permission record unknown takes a ticket (the record's version) and asks
//! the back end for the attributes. It stores them only if no change has begun since it took the
//! ticket, and none is in progress.
//!
//! # Invariants
//! - I.1: the table lists at most one live inode for each inode number of a superblock.
//! - I.2: the reference count of an inode is at least the number of dentries that refer to it.
//! - I.3: a reader that takes a reference through a dentry validates the dentry afterwards. A
//!   reader that takes one through the table checks the inode number afterwards.
//!
//! # Locks
//! The lock of an inode (in its lockref) protects the chain of its dentries and all writes to its
//! permission record. A dentry's lock is taken before an inode's.
//!
//! The list of stale generations (inodes whose number another inode has now) has a mutex. A thread
//! that takes this mutex may hold the lock of a stripe of the inode table, but no inode's lock.
//!
//! Source: Linux `struct inode`, `iget5_locked`; trap T16 in `traps.md` (state and pointer in one
//! word).

mod stale_generations;

use corewalk_base::primitives::atomic::{AtomicU64, Ordering, fence};
use corewalk_base::{Condvar, Mutex, ShardedCounter};
use corewalk_sync::{Lockref, LockrefGuard, SlotArena};

use crate::attr::{Attr, FileKind, mode};
use crate::dentry::{Dentries, group_of};
use crate::hash::HashKeys;
use crate::slot::{DentrySlot, InodeSlot, OfInode};
use crate::table::Table;

use stale_generations::StaleGenerations;

const REF_WORDS: usize = 2;
const PERM_WORDS: usize = 4;
pub(crate) const WORDS: usize = REF_WORDS + PERM_WORDS;

/// The first word of the permission record: `version << 18 | lacks_capability << 17 | acl << 16 |
/// mode`. While the attributes are unknown, the version is odd.
const MODE_MASK: u64 = 0xffff;
const HAS_ACL: u64 = 1 << 16;
/// Set if the back end has answered that the inode has no file capabilities. A new version of the
/// record begins without this bit.
const LACKS_CAPABILITY: u64 = 1 << 17;
const VERSION_SHIFT: u32 = 18;
const MODE: usize = 0;
/// Permission record, owner: `uid << 32 | gid`.
const OWNER: usize = 1;

/// The state word of the permission record: `alias << 32 | superblock << 16 | referenced << 15 |
/// changes`. `changes` is the number of attribute changes in progress.
const STATE: usize = 2;
const CHANGES_MASK: u64 = 0x7fff;
const REFERENCED: u64 = 1 << 15;
const GENERATION: usize = 3;

/// The weight of one client lookup in an inode's count. The 28 bits below it count internal
/// references (dentries and `InodeRef`s). The 33 bits above it count lookups. Both lie in one word,
/// so `forget` checks and subtracts in one step.
pub(crate) const LOOKUP: u64 = 1 << 28;
/// The maximum count of internal references; above it, operations fail with `ENFILE`. It is half of
/// what the 28-bit field can count. The other half is for dentries, and for threads that have not
/// yet checked the incremented count.
pub(crate) const REFS_MAX: u64 = LOOKUP / 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Perm {
    pub(crate) mode: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) has_acl: bool,
}

impl Perm {
    pub(crate) fn of(attr: &Attr, has_acl: bool) -> Perm {
        Perm { mode: attr.mode, uid: attr.uid, gid: attr.gid, has_acl }
    }

    fn is_searchable_by_all(&self) -> bool {
        !self.has_acl && self.mode & mode::S_IFMT == mode::S_IFDIR && self.mode & 0o111 == 0o111
    }
}

/// The inodes of one namespace. Analogous to Linux's `inode_hashtable`.
pub(crate) struct Inodes {
    /// For each inode, its lockref (lock and reference count) and its inode number, which changes
    /// only while no other thread uses the slot.
    refs: SlotArena<REF_WORDS>,
    /// For each inode, a record of its permissions, its generation and the slot of its first
    /// dentry. Written under the inode's lock.
    perm: SlotArena<PERM_WORDS>,
    table: Table<OfInode>,
    keys: HashKeys,
    stale_generations: StaleGenerations,
    count: ShardedCounter,
    /// A count that each attribute change increments when it begins and when it ends. Attributes
    /// from the back end are not stored if the count has changed since the back end was asked.
    changes: ShardedCounter,
    /// The mutex of the condition variable `gone`. A thread holds it while it clears the number of
    /// a dead inode.
    dying: Mutex<()>,
    /// Waited on under `dying`.
    gone: Condvar,
}

pub(crate) struct Entered {
    pub(crate) slot: InodeSlot,
    /// The older inode with the same number and another generation, which `slot` has replaced in
    /// the table. None if there was none. The caller gets a reference on it.
    pub(crate) stale_generation: Option<InodeSlot>,
}

/// The version of an inode's attributes when a change began, or when a thread asked the back end
/// for them.
#[must_use]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ticket(u64);

impl Inodes {
    pub(crate) fn new(slots_max: u32, keys: HashKeys) -> std::io::Result<Inodes> {
        Ok(Inodes {
            perm: SlotArena::new("corewalk-inodes", slots_max)?,
            refs: SlotArena::new("corewalk-inode-refs", slots_max)?,
            table: Table::new("corewalk-inode-table", slots_max, 7)?,
            keys,
            stale_generations: StaleGenerations::new(),
            count: ShardedCounter::new(),
            changes: ShardedCounter::new(),
            dying: Mutex::new(()),
            gone: Condvar::new(),
        })
    }

    #[inline]
    fn ref_words(&self, slot: InodeSlot) -> &[AtomicU64; REF_WORDS] {
        self.refs.get(slot.get())
    }

    #[inline]
    fn perm_words(&self, slot: InodeSlot) -> &[AtomicU64; PERM_WORDS] {
        self.perm.get(slot.get())
    }

    #[inline]
    pub(crate) fn prefetch(&self, slot: InodeSlot) {
        self.refs.prefetch(slot.get());
    }

    #[inline]
    pub(crate) fn lockref(&self, slot: InodeSlot) -> &Lockref {
        Lockref::from_word(&self.ref_words(slot)[0])
    }

    #[inline]
    pub(crate) fn get_unless_saturated(&self, slot: InodeSlot) -> bool {
        self.lockref(slot).get_if(1, |count| count % LOOKUP < REFS_MAX)
    }

    #[inline]
    pub(crate) fn ino(&self, slot: InodeSlot) -> u64 {
        // ORDERING: Relaxed. The inode number cannot change while the caller holds a reference. A
        // caller without one validates the dentry that led to the inode, which fails if the slot
        // has been reused.
        self.ref_words(slot)[1].load(Ordering::Relaxed)
    }

    pub(crate) fn generation(&self, slot: InodeSlot) -> u64 {
        // ORDERING: Relaxed. The generation cannot change while the caller holds a reference. A
        // caller without one validates the dentry that led to the inode, which fails if the slot
        // has been reused.
        self.perm_words(slot)[GENERATION].load(Ordering::Relaxed)
    }

    pub(crate) fn superblock(&self, slot: InodeSlot) -> u32 {
        // ORDERING: Relaxed. The superblock cannot change while the caller holds a reference.
        (self.perm_words(slot)[STATE].load(Ordering::Relaxed) >> 16) as u32 & 0xffff
    }

    #[inline]
    pub(crate) fn alias(&self, slot: InodeSlot) -> DentrySlot {
        // ORDERING(alias): Acquire. `set_alias` stores the slot of a filled dentry with Release.
        // With Relaxed, the reader could see the slot before the dentry's content.
        DentrySlot::new((self.perm_words(slot)[STATE].load(Ordering::Acquire) >> 32) as u32)
    }

    #[inline]
    pub(crate) fn touch(&self, slot: InodeSlot) {
        let word = &self.perm_words(slot)[STATE];
        // ORDERING: Relaxed. A hint for reclaim.
        if word.load(Ordering::Relaxed) & REFERENCED == 0 {
            // ORDERING: Relaxed. As above.
            word.fetch_or(REFERENCED, Ordering::Relaxed);
        }
    }

    pub(crate) fn clear_referenced(&self, slot: InodeSlot) -> bool {
        let word = &self.perm_words(slot)[STATE];
        // ORDERING: Relaxed. A hint for reclaim.
        word.load(Ordering::Relaxed) & REFERENCED != 0
            // ORDERING: Relaxed. As above.
            && word.fetch_and(!REFERENCED, Ordering::Relaxed) & REFERENCED != 0
    }

    /// Marks the permissions of an inode as unknown, because another program may have changed them
    /// in the back end.
    pub(crate) fn invalidate(&self, slot: InodeSlot) {
        let ticket = self.begin_change(slot);
        self.end_change(slot, ticket, None);
    }

    /// Looks up an inode by its number and takes a reference on it. The slot may be reused before
    /// the reference is taken. Then the function calls `stray` with the slot, which drops the wrong
    /// reference, and tries again.
    pub(crate) fn get(
        &self,
        superblock: u32,
        ino: u64,
        stray: impl Fn(InodeSlot),
    ) -> Option<InodeSlot> {
        let hash = self.keys.inode(superblock, ino) as u32;
        let probe = |slot: InodeSlot| {
            if !self.is(slot, superblock, ino) || !self.lockref(slot).get_not_dead() {
                return None;
            }
            // Check the inode number again under the reference. The slot may have been reused
            // before the reference was taken.
            Some(if self.is(slot, superblock, ino) { Ok(slot) } else { Err(slot) })
        };
        loop {
            // A lookup without a lock may miss an entry (guarantee T.1 of `table`). So repeat it
            // under the lock.
            let found =
                self.table.find(hash, probe).or_else(|| self.table.lock(hash).find(probe))?;
            match found {
                Ok(slot) => return Some(slot),
                Err(slot) => stray(slot),
            }
        }
    }

    /// Returns the inodes with a stale generation of this number, and takes a reference on each.
    /// The caller first calls [`Inodes::get`], which searches the table. An inode moves from the
    /// table to the list of stale generations, so a search in the other order could miss it.
    #[inline]
    pub(crate) fn stale_generations(&self, superblock: u32, ino: u64) -> Vec<InodeSlot> {
        self.stale_generations.get(superblock, ino, |slot| self.lockref(slot).get_not_dead())
    }

    pub(crate) fn alone<R>(&self, work: impl FnOnce() -> R) -> R {
        self.stale_generations.alone(work)
    }

    /// Returns the slot of an inode without a reference. After its last read, the caller checks
    /// with [`Inodes::is`] that the slot still holds that inode. None does not prove that the inode
    /// is not cached.
    #[inline]
    pub(crate) fn peek(
        &self,
        superblock: u32,
        ino: u64,
        before: impl Fn(InodeSlot),
    ) -> Option<InodeSlot> {
        let hash = self.keys.inode(superblock, ino) as u32;
        self.table.find(hash, |slot| {
            before(slot);
            self.is(slot, superblock, ino).then_some(slot)
        })
    }

    #[inline]
    pub(crate) fn is(&self, slot: InodeSlot, superblock: u32, ino: u64) -> bool {
        !slot.is_none() && self.ino(slot) == ino && self.superblock(slot) == superblock
    }

    /// Adds a missing inode to the cache, if possible in the slot of `beside`, a dentry on which
    /// the caller holds a reference.
    ///
    /// `changes_before` is the value of [`Inodes::changes`] before the back end was asked. If it
    /// has changed, `attr` may be out of date, and the permissions of a new inode count as unknown.
    /// Returns None if no slot is left.
    pub(crate) fn get_or_insert(
        &self,
        dentries: &Dentries,
        superblock: u32,
        beside: DentrySlot,
        attr: &Attr,
        has_acl: bool,
        changes_before: i64,
    ) -> Option<Entered> {
        let (hash, group) = (self.keys.inode(superblock, attr.ino) as u32, group_of(attr.kind()));
        // A dead inode leaves the table under the table's lock, before its slot is freed. So an
        // inode that is found under this lock keeps its slot until the lock is released.
        let (mut stripe, slot, stale_generation) = loop {
            let stripe = self.table.lock(hash);
            let found = stripe.find(|slot| self.is(slot, superblock, attr.ino).then_some(slot));
            let is_same = found.is_some_and(|found| self.generation(found) == attr.generation);
            let fresh =
                if is_same { InodeSlot::NONE } else { dentries.alloc_inode(beside, group)? };
            match found {
                Some(dying) if !self.lockref(dying).get_not_dead() => {
                    drop(stripe);
                    if !fresh.is_none() {
                        dentries.free_inode(fresh);
                    }
                    self.wait_until_gone(dying, superblock, attr.ino);
                }
                Some(slot) if is_same => return Some(Entered { slot, stale_generation: None }),
                stale => break (stripe, fresh, stale),
            }
        };
        if let Some(stale) = stale_generation {
            stripe.remove(stale);
            self.stale_generations.insert(superblock, attr.ino, stale);
        }
        let known = self.changes() == changes_before;
        self.begin_life(superblock, slot, attr, Perm::of(attr, has_acl), known);
        stripe.insert(slot);
        let needs_split = stripe.needs_split();
        drop(stripe);
        if needs_split {
            self.table.grow();
        }
        Some(Entered { slot, stale_generation })
    }

    /// Initializes a new inode. The inode starts with one reference, which belongs to the caller.
    fn begin_life(&self, superblock: u32, slot: InodeSlot, attr: &Attr, perm: Perm, known: bool) {
        self.count.add(1);
        self.refs.extend_to(slot.get());
        self.perm.extend_to(slot.get());
        let mut guard = self.lockref(slot).lock();
        guard.revive();
        guard.add(1);
        // ORDERING: Release fence. A reader may have found this slot in a dentry that has changed
        // since. If it sees the new inode number, stored below, `SeqCount::read_retry` must also
        // see the dentry's changed sequence. Otherwise the reader would take this inode for the old
        // one.
        fence(Ordering::Release);
        // ORDERING: Relaxed. The entry in the table, which is stored later, publishes this word.
        self.ref_words(slot)[1].store(attr.ino, Ordering::Relaxed);
        let state = (u64::from(superblock) << 16) | REFERENCED;
        // ORDERING: Relaxed. As above.
        self.perm_words(slot)[STATE].store(state, Ordering::Relaxed);
        // ORDERING: Relaxed. As above.
        self.perm_words(slot)[GENERATION].store(attr.generation, Ordering::Relaxed);
        self.store_perm(slot, perm, known);
    }

    /// Drops `n` references. Returns true if no reference is left. The caller then tells the back
    /// end to forget the inode, and calls [`Inodes::free`].
    #[must_use]
    pub(crate) fn put(&self, slot: InodeSlot, n: u64) -> bool {
        if n > 1 {
            self.lockref(slot).put_many(n - 1);
        }
        let Some(mut guard) = self.lockref(slot).put_or_lock() else { return false };
        if guard.count() > 1 {
            guard.sub(1);
            return false;
        }
        guard.sub(1);
        guard.mark_dead();
        true
    }

    /// Frees the slot of a dead inode, after the back end's `forget` has returned. Until then, no
    /// inode with the same number can enter the table.
    pub(crate) fn free(&self, slot: InodeSlot, dentries: &Dentries) {
        let (superblock, ino) = (self.superblock(slot), self.ino(slot));
        let was_there = self.table.lock(self.keys.inode(superblock, ino) as u32).remove(slot);
        if !was_there {
            // The table has a newer generation of the number, so this inode is in the list.
            self.stale_generations.remove(superblock, ino, slot);
        }
        let gone = self.dying.lock();
        // ORDERING: Relaxed. `wait_until_gone` reads the number under the mutex `dying`, too. Other
        // readers check the lockref, which says that the inode is dead.
        self.ref_words(slot)[1].store(0, Ordering::Relaxed);
        drop(gone);
        self.gone.notify_all();
        self.count.add(-1);
        dentries.free_inode(slot);
    }

    #[cold]
    fn wait_until_gone(&self, slot: InodeSlot, superblock: u32, ino: u64) {
        let mut dying = self.dying.lock();
        while self.is(slot, superblock, ino) && self.lockref(slot).is_dead() {
            self.gone.wait(&mut dying);
        }
    }

    pub(crate) fn add_alias(&self, slot: InodeSlot, dentry: DentrySlot, dentries: &Dentries) {
        let _guard = self.lockref(slot).lock();
        dentries.cold(dentry).set_next_alias(self.alias(slot));
        self.set_alias(slot, dentry);
    }

    /// Makes a dentry the first of the inode's dentries, from which the inode's path is built. The
    /// caller knows from the back end that the dentry's name exists, while older names may be gone.
    pub(crate) fn prefer_alias(&self, slot: InodeSlot, dentry: DentrySlot, dentries: &Dentries) {
        if self.alias(slot) == dentry {
            return;
        }
        let guard = self.lockref(slot).lock();
        if self.remove_alias_locked(slot, dentry, dentries, &guard) {
            dentries.cold(dentry).set_next_alias(self.alias(slot));
            self.set_alias(slot, dentry);
        }
    }

    /// Returns up to `max` aliases except the first, without references. A caller that takes a
    /// reference on one checks afterwards that it is still an alias.
    pub(crate) fn other_aliases(
        &self,
        slot: InodeSlot,
        max: usize,
        dentries: &Dentries,
    ) -> Vec<DentrySlot> {
        let _guard = self.lockref(slot).lock();
        let next = |&at: &DentrySlot| dentries.cold(at).next_alias().some();
        std::iter::successors(self.alias(slot).some(), next).skip(1).take(max).collect()
    }

    pub(crate) fn has_older_alias(
        &self,
        slot: InodeSlot,
        dentry: DentrySlot,
        dentries: &Dentries,
    ) -> bool {
        let _guard = self.lockref(slot).lock();
        !dentries.cold(dentry).next_alias().is_none()
    }

    pub(crate) fn is_only_alias_in_use(
        &self,
        slot: InodeSlot,
        dentry: DentrySlot,
        dentries: &Dentries,
    ) -> bool {
        let guard = self.lockref(slot).lock();
        self.is_only_alias_in_use_locked(slot, dentry, dentries, &guard)
    }

    /// Removes `dentry` from the inode's dentries. Returns false, and keeps it, if it is the only
    /// dentry of an inode with other users.
    ///
    /// One lock covers the check and the removal. Otherwise two threads could each see the other's
    /// dentry, and remove both.
    pub(crate) fn remove_alias_unless_needed(
        &self,
        slot: InodeSlot,
        dentry: DentrySlot,
        dentries: &Dentries,
    ) -> bool {
        let guard = self.lockref(slot).lock();
        let is_needed = self.is_only_alias_in_use_locked(slot, dentry, dentries, &guard);
        if !is_needed {
            self.remove_alias_locked(slot, dentry, dentries, &guard);
        }
        !is_needed
    }

    fn is_only_alias_in_use_locked(
        &self,
        slot: InodeSlot,
        dentry: DentrySlot,
        dentries: &Dentries,
        guard: &LockrefGuard<'_>,
    ) -> bool {
        guard.count() > 1
            && self.alias(slot) == dentry
            && dentries.cold(dentry).next_alias().is_none()
    }

    pub(crate) fn remove_alias(&self, slot: InodeSlot, dentry: DentrySlot, dentries: &Dentries) {
        let guard = self.lockref(slot).lock();
        self.remove_alias_locked(slot, dentry, dentries, &guard);
    }

    pub(crate) fn remove_alias_locked(
        &self,
        slot: InodeSlot,
        dentry: DentrySlot,
        dentries: &Dentries,
        _guard: &LockrefGuard<'_>,
    ) -> bool {
        let next = dentries.cold(dentry).next_alias();
        let (mut at, mut is_found) = (self.alias(slot), false);
        if at == dentry {
            self.set_alias(slot, next);
            is_found = true;
        }
        while at != dentry && !at.is_none() {
            let after = dentries.cold(at).next_alias();
            if after == dentry {
                dentries.cold(at).set_next_alias(next);
                is_found = true;
            }
            at = after;
        }
        dentries.cold(dentry).set_next_alias(DentrySlot::NONE);
        is_found
    }

    fn set_alias(&self, slot: InodeSlot, dentry: DentrySlot) {
        // ORDERING(alias): Release. `alias` loads the slot with Acquire. Its reader must see the
        // filled dentry, not the words of an earlier one. The update keeps the referenced bit,
        // which another thread may set at the same time.
        let _ = self.perm_words(slot)[STATE].fetch_update(
            Ordering::Release,
            // ORDERING: Relaxed. The inode's lock protects the slot of the first dentry.
            Ordering::Relaxed,
            |word| Some((word & 0xffff_ffff) | (u64::from(dentry.get()) << 32)),
        );
    }

    /// Returns the permissions of an inode, or None if they are unknown. A caller without a
    /// reference on the inode validates the dentry that led to it.
    #[inline]
    pub(crate) fn perm(&self, slot: InodeSlot) -> Option<Perm> {
        let words = self.perm_words(slot);
        // ORDERING(perm): Acquire. `store_perm_version` stores the owner before the version. So the
        // load below sees the owner of this version, or a newer one. With Relaxed, a new mode could
        // be returned with an old owner.
        let first = words[MODE].load(Ordering::Acquire);
        // ORDERING: Relaxed. The version protects this word: the second load of the version, below,
        // detects a change.
        let owner = words[OWNER].load(Ordering::Relaxed);
        // ORDERING(perm-unknown): Acquire fence. `mark_unknown` makes the version odd and has a
        // fence before a new owner is stored. So after a new `owner`, the load of `again` differs
        // from `first`. Without the fence, a new owner could be returned with an old mode.
        fence(Ordering::Acquire);
        // ORDERING: Relaxed. The fence above orders this load after that of the owner.
        let again = words[MODE].load(Ordering::Relaxed);
        (first == again && (first >> VERSION_SHIFT) & 1 == 0).then_some(Perm {
            mode: (first & MODE_MASK) as u32,
            uid: (owner >> 32) as u32,
            gid: owner as u32,
            has_acl: first & HAS_ACL != 0,
        })
    }

    pub(crate) fn kind(&self, slot: InodeSlot) -> FileKind {
        // ORDERING: Relaxed. The caller holds a reference, so the type bits of the mode do not
        // change.
        let mode = self.perm_words(slot)[MODE].load(Ordering::Relaxed) & MODE_MASK;
        FileKind::from_mode(mode as u32).unwrap_or(FileKind::Regular)
    }

    #[inline]
    pub(crate) fn is_directory(&self, slot: InodeSlot) -> bool {
        // ORDERING: Relaxed. The caller holds a reference, so the type bits of the mode do not
        // change.
        let mode = self.perm_words(slot)[MODE].load(Ordering::Relaxed) as u32;
        mode & mode::S_IFMT == mode::S_IFDIR
    }

    pub(crate) fn changes(&self) -> i64 {
        self.changes.sum()
    }

    pub(crate) fn begin_change(&self, slot: InodeSlot) -> Ticket {
        self.changes.add(1);
        let _guard = self.lockref(slot).lock();
        // ORDERING: Relaxed. The inode's lock protects the number of running changes.
        self.perm_words(slot)[STATE].fetch_add(1, Ordering::Relaxed);
        self.mark_unknown(slot)
    }

    /// Ends a change that [`Inodes::begin_change`] has begun. `perm` is the back end's answer, or
    /// None if the call has failed. Afterwards the permissions are known if there is an answer and
    /// no other change overlapped.
    pub(crate) fn end_change(&self, slot: InodeSlot, ticket: Ticket, perm: Option<Perm>) {
        let _guard = self.lockref(slot).lock();
        // ORDERING: Relaxed. The inode's lock protects the number of running changes.
        self.perm_words(slot)[STATE].fetch_sub(1, Ordering::Relaxed);
        // A lookup may have asked the back end before this change. The new value of `changes` keeps
        // it from storing the old attributes.
        self.changes.add(1);
        if !perm.is_some_and(|perm| self.install_locked(slot, ticket, perm)) {
            // The back end has failed, or two changes of this inode overlapped, in an unknown
            // order. So mark the permissions as unknown, and make a thread that asked the back end
            // earlier drop its answer.
            let _ = self.mark_unknown(slot);
        }
    }

    pub(crate) fn ticket(&self, slot: InodeSlot) -> Ticket {
        // ORDERING(perm): Acquire. The ticket is the version of the permission record, loaded
        // before the caller asks the back end. A change that begins later increments the version,
        // so the answer is not stored.
        Ticket(self.perm_words(slot)[MODE].load(Ordering::Acquire) >> VERSION_SHIFT)
    }

    /// Stores the back end's answer `perm`, unless a change has begun since `ticket` was taken. The
    /// caller took the ticket before it asked the back end.
    pub(crate) fn install(&self, slot: InodeSlot, ticket: Ticket, perm: Perm) {
        let _guard = self.lockref(slot).lock();
        self.install_locked(slot, ticket, perm);
    }

    /// Stores the permissions that the back end's `lookup` has returned. The inode was not known
    /// before that call, so there is no [`Ticket`]. Instead the caller passes the value of
    /// [`Inodes::changes`] before the call.
    pub(crate) fn install_unless_changed(&self, slot: InodeSlot, changes_before: i64, perm: Perm) {
        let _guard = self.lockref(slot).lock();
        // A change of attributes increments `changes`, and then takes the inode's lock to mark the
        // permissions as unknown. This thread holds that lock. So a change that the comparison
        // misses marks the permissions as unknown afterwards.
        if self.changes() == changes_before {
            let ticket = self.ticket(slot);
            self.install_locked(slot, ticket, perm);
        }
    }

    /// Returns true if the inode certainly has no file capabilities: the back end has said so, and
    /// no attribute has changed since.
    pub(crate) fn lacks_capability(&self, slot: InodeSlot) -> bool {
        // ORDERING: Relaxed. Only one bit is read. The end of a change of attributes clears the
        // bit. A caller that is ordered after that end sees the bit cleared.
        self.perm_words(slot)[MODE].load(Ordering::Relaxed) & LACKS_CAPABILITY != 0
    }

    pub(crate) fn note_no_capability(&self, slot: InodeSlot, ticket: Ticket) {
        let _guard = self.lockref(slot).lock();
        let word = &self.perm_words(slot)[MODE];
        // ORDERING: Relaxed. This thread holds the inode's lock, like every thread that writes this
        // word.
        let before = word.load(Ordering::Relaxed);
        if before >> VERSION_SHIFT == ticket.0 {
            // ORDERING(perm): Release. `perm` loads this word with Acquire. Its reader must see the
            // owner of this version, which was stored before, and not an older one.
            word.store(before | LACKS_CAPABILITY, Ordering::Release);
        }
    }

    pub(crate) fn is_searchable(&self, slot: InodeSlot, _guard: &LockrefGuard<'_>) -> bool {
        self.perm(slot).is_some_and(|perm| perm.is_searchable_by_all())
    }

    fn install_locked(&self, slot: InodeSlot, ticket: Ticket, perm: Perm) -> bool {
        // ORDERING: Relaxed. This thread holds the inode's lock, like every thread that writes this
        // word.
        let version = self.perm_words(slot)[MODE].load(Ordering::Relaxed) >> VERSION_SHIFT;
        // ORDERING: Relaxed. The inode's lock protects the number of running changes.
        let changes = self.perm_words(slot)[STATE].load(Ordering::Relaxed) & CHANGES_MASK;
        let is_current = version == ticket.0 && version & 1 == 1 && changes == 0;
        if is_current {
            self.store_perm_version(slot, perm, version + 1);
        }
        is_current
    }

    /// Sets the version of the permission record to the next odd number. The caller holds the
    /// inode's lock.
    fn mark_unknown(&self, slot: InodeSlot) -> Ticket {
        let word = &self.perm_words(slot)[MODE];
        // ORDERING: Relaxed. This thread holds the inode's lock, like every thread that writes this
        // word.
        let before = word.load(Ordering::Relaxed);
        let version = ((before >> VERSION_SHIFT) + 1) | 1;
        let rest = before & (MODE_MASK | HAS_ACL);
        // ORDERING: Relaxed. The fence below orders this store before the later store to the word
        // [`OWNER`].
        word.store((version << VERSION_SHIFT) | rest, Ordering::Relaxed);
        // ORDERING(perm-unknown): Release fence. `perm` loads the owner and, after a fence, the
        // version again. A reader of an owner stored after this fence must see the odd version.
        // Otherwise it would use that owner with an old mode.
        fence(Ordering::Release);
        Ticket(version & (u64::MAX >> VERSION_SHIFT))
    }

    /// Stores the permissions of a new inode, as known or as unknown. The version continues that of
    /// the slot's last permission record, so that a slot never has the same version twice.
    fn store_perm(&self, slot: InodeSlot, perm: Perm, known: bool) {
        let Ticket(version) = self.mark_unknown(slot);
        self.store_perm_version(slot, perm, version + u64::from(known));
    }

    fn store_perm_version(&self, slot: InodeSlot, perm: Perm, version: u64) {
        let words = self.perm_words(slot);
        // ORDERING: Relaxed. The store of the version below publishes this word.
        words[OWNER].store((u64::from(perm.uid) << 32) | u64::from(perm.gid), Ordering::Relaxed);
        let acl = if perm.has_acl { HAS_ACL } else { 0 };
        let first = (version << VERSION_SHIFT) | acl | u64::from(perm.mode & 0xffff);
        // ORDERING(perm): Release. `perm` loads the version with Acquire. A reader of this version
        // must also see the owner stored above, and not an older one.
        words[MODE].store(first, Ordering::Release);
    }

    pub(crate) fn in_use(&self) -> u64 {
        self.count.sum().max(0) as u64
    }

    pub(crate) fn table_bytes(&self) -> u64 {
        self.table.bytes()
    }
}

#[cfg(all(test, corewalk_loom))]
mod loom_models;
