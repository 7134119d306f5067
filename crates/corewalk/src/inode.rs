//! The inode cache: the permissions of an inode for the walk, and its reference count.
//!
//! Analogous to Linux's `struct inode`. An inode has two records on different cache lines. A walk
//! reads the permission record: mode, owner, ACL flag, dentries. Changes of attributes and of names
//! write that record. Taking and dropping a reference writes the reference record: count and
//! number. So taking a reference does not disturb a walk. The reference record is small, so many of
//! them fit the processor's caches.
//!
//! Inodes have no slots of their own: each takes the inode half of a slot of the dentries.
//!
//! The back end owns the attributes, and the permission record is a copy of them. A change of
//! attributes marks the record unknown before it calls the back end. A thread that finds the record
//! unknown takes a ticket (the version of the record) and asks the back end. It installs the answer
//! only if no change has begun since it took the ticket, and none still runs.
//!
//! # Invariants
//! - I.1: among live inodes, an inode number of a superblock is in the table at most once.
//! - I.2: the reference count is at least the number of dentries that refer to the inode.
//! - I.3: a reader that takes a reference through a dentry validates the dentry afterwards. A
//!   reader that takes one through the table checks the number afterwards.
//!
//! # Locks
//! The lock of an inode (in its lockref) protects the alias chain and the writes to the permission
//! record. It is taken inside a dentry's lock, never around one. The list of stale generations
//! (inodes whose number another inode has now) is locked inside a stripe of the table, and around
//! an inode's lock.
//!
//! Source: Linux `struct inode`, `iget5_locked`; trap T16 (state and pointer in one word).

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

/// Reference record: lockref, number.
const REF_WORDS: usize = 2;
/// Permission record: mode, owner, state, generation.
const PERM_WORDS: usize = 4;
/// Words of the two records.
pub(crate) const WORDS: usize = REF_WORDS + PERM_WORDS;

/// The mode word of the permission record: `version << 17 | acl << 16 | mode`. The version is odd
/// while the attributes are unknown.
const MODE_MASK: u64 = 0xffff;
const HAS_ACL: u64 = 1 << 16;
const VERSION_SHIFT: u32 = 17;
const MODE: usize = 0;
/// Permission record, owner: `uid << 32 | gid`.
const OWNER: usize = 1;

/// The state word of the permission record: `alias << 32 | superblock << 16 | referenced << 15 |
/// changes`. `changes` is the number of running attribute changes.
const STATE: usize = 2;
const CHANGES_MASK: u64 = 0x7fff;
const REFERENCED: u64 = 1 << 15;
const GENERATION: usize = 3;

/// The attributes that a permission check needs.
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

    /// Returns true if every caller may search the directory.
    fn is_searchable_by_all(&self) -> bool {
        !self.has_acl && self.mode & mode::S_IFMT == mode::S_IFDIR && self.mode & 0o111 == 0o111
    }
}

/// The inodes of one namespace. Analogous to Linux's `inode_hashtable`.
pub(crate) struct Inodes {
    /// Reference records. An inode number changes only in a slot that no other thread uses.
    refs: SlotArena<REF_WORDS>,
    /// Permission records, with the head of the alias chain. Written under the lock of the inode's
    /// lockref.
    perm: SlotArena<PERM_WORDS>,
    table: Table<OfInode>,
    keys: HashKeys,
    stale_generations: StaleGenerations,
    count: ShardedCounter,
    /// The number of attribute changes that have begun, plus the number of those that have ended.
    /// If it changes during a fill, the fill does not trust the attributes in its answer.
    changes: ShardedCounter,
    /// A thread holds this mutex while it clears the number of a dead inode. Then the thread
    /// notifies the condition variable `gone`.
    dying: Mutex<()>,
    /// Waited on under `dying`.
    gone: Condvar,
}

/// The answer of [`Inodes::get_or_insert`].
pub(crate) struct Entered {
    /// The inode, with a reference for the caller.
    pub(crate) slot: InodeSlot,
    /// The older inode with the same number and another generation, if `slot` has replaced it in
    /// the table. The caller gets a reference on it.
    pub(crate) stale_generation: Option<InodeSlot>,
}

/// The version of the permission record at which an attribute change, or a question to the back
/// end, began.
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

    // References.

    #[inline]
    fn ref_words(&self, slot: InodeSlot) -> &[AtomicU64; REF_WORDS] {
        self.refs.get(slot.get())
    }

    #[inline]
    fn perm_words(&self, slot: InodeSlot) -> &[AtomicU64; PERM_WORDS] {
        self.perm.get(slot.get())
    }

    /// Prefetches the reference record of a slot.
    #[inline]
    pub(crate) fn prefetch(&self, slot: InodeSlot) {
        self.refs.prefetch(slot.get());
    }

    #[inline]
    pub(crate) fn lockref(&self, slot: InodeSlot) -> &Lockref {
        Lockref::from_word(&self.ref_words(slot)[0])
    }

    /// Returns the inode number of the back end.
    #[inline]
    pub(crate) fn ino(&self, slot: InodeSlot) -> u64 {
        // ORDERING: Relaxed. The number is fixed if the caller holds a reference. Otherwise the
        // caller validates the dentry that led to the inode.
        self.ref_words(slot)[1].load(Ordering::Relaxed)
    }

    pub(crate) fn generation(&self, slot: InodeSlot) -> u64 {
        // ORDERING: Relaxed. The generation is fixed if the caller holds a reference. Otherwise the
        // caller validates the dentry that led to the inode.
        self.perm_words(slot)[GENERATION].load(Ordering::Relaxed)
    }

    pub(crate) fn superblock(&self, slot: InodeSlot) -> u32 {
        // ORDERING: Relaxed. Fixed while a reference is held.
        (self.perm_words(slot)[STATE].load(Ordering::Relaxed) >> 16) as u32 & 0xffff
    }

    /// Returns the slot of a dentry of the inode. The slot is none if the inode has no dentry.
    #[inline]
    pub(crate) fn alias(&self, slot: InodeSlot) -> DentrySlot {
        // ORDERING(alias): Acquire. Pairs with the store in `set_alias`. The dentry was filled
        // before it became an alias, so a reader that sees the alias sees the filled dentry.
        DentrySlot::new((self.perm_words(slot)[STATE].load(Ordering::Acquire) >> 32) as u32)
    }

    /// Sets the referenced bit.
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

    /// Makes the permissions unknown, because another program may have changed them in the back
    /// end.
    pub(crate) fn invalidate(&self, slot: InodeSlot) {
        let ticket = self.begin_change(slot);
        self.end_change(slot, ticket, None);
    }

    /// If the cache has the inode with this number, returns its slot with a reference. If the slot
    /// was reused before the reference was taken, `stray` gets the slot and drops that reference.
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
            // Another inode may have taken the slot before this thread took the reference (trap
            // T55).
            Some(if self.is(slot, superblock, ino) { Ok(slot) } else { Err(slot) })
        };
        loop {
            // A miss without a lock proves nothing (T.1 of `table`). So repeat the lookup under the
            // stripe's lock.
            let found =
                self.table.find(hash, probe).or_else(|| self.table.lock(hash).find(probe))?;
            match found {
                Ok(slot) => return Some(slot),
                Err(slot) => stray(slot),
            }
        }
    }

    /// Returns the slots of the inodes with this number and a stale generation, with a reference on
    /// each. The caller calls [`Inodes::get`] first. Otherwise it could miss an inode that moves
    /// from the table to the list of stale generations in between.
    #[inline]
    pub(crate) fn stale_generations(&self, superblock: u32, ino: u64) -> Vec<InodeSlot> {
        self.stale_generations.get(superblock, ino, |slot| self.lockref(slot).get_not_dead())
    }

    /// Runs `work` under the lock of the stale generations.
    pub(crate) fn alone<R>(&self, work: impl FnOnce() -> R) -> R {
        self.stale_generations.alone(work)
    }

    /// Returns the slot of the inode with this number, without a reference. After reading through
    /// the slot, the caller checks with [`Inodes::is`] that the slot still has that inode. `before`
    /// is called with each slot that may match, before it is read. None does not prove that the
    /// cache lacks the inode.
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

    /// Returns true if the slot holds the inode with this number.
    #[inline]
    pub(crate) fn is(&self, slot: InodeSlot, superblock: u32, ino: u64) -> bool {
        !slot.is_none() && self.ino(slot) == ino && self.superblock(slot) == superblock
    }

    /// Returns the inode that `attr` describes, with a reference for the caller. If the inode is
    /// new, enters it, in the slot of the dentry `beside` if possible. `beside` may be none.
    /// Otherwise the caller holds a reference on that dentry. `changes_before` is
    /// [`Inodes::changes`] from before the back end was asked. Returns None if no slot is left.
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
        // An entry leaves the table before its slot is freed. So a slot that is found under the
        // stripe's lock keeps its inode as long as the lock is held.
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

    /// Fills a slot that no other thread can find, with one reference for the caller.
    fn begin_life(&self, superblock: u32, slot: InodeSlot, attr: &Attr, perm: Perm, known: bool) {
        self.count.add(1);
        self.refs.extend_to(slot.get());
        self.perm.extend_to(slot.get());
        let mut guard = self.lockref(slot).lock();
        guard.revive();
        guard.add(1);
        // ORDERING: Release fence. The former content of a dentry may have referred to this slot. A
        // reader that finds the new number through that content also sees that the dentry's
        // sequence has changed. Pairs with the Acquire fence in `SeqCount::read_retry`.
        fence(Ordering::Release);
        // ORDERING: Relaxed. Published by the table entry.
        self.ref_words(slot)[1].store(attr.ino, Ordering::Relaxed);
        let state = (u64::from(superblock) << 16) | REFERENCED;
        // ORDERING: Relaxed. As above.
        self.perm_words(slot)[STATE].store(state, Ordering::Relaxed);
        // ORDERING: Relaxed. As above.
        self.perm_words(slot)[GENERATION].store(attr.generation, Ordering::Relaxed);
        self.store_perm(slot, perm, known);
    }

    /// Drops `n` references. Returns true if they were the last. The inode is then dead, and the
    /// caller tells the back end and calls [`Inodes::free`].
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

    /// Frees the slot of a dead inode, after the back end has been told. Only then can the number
    /// be entered again. So the back end learns of the death of an inode before its number is used
    /// again.
    pub(crate) fn free(&self, slot: InodeSlot, dentries: &Dentries) {
        let (superblock, ino) = (self.superblock(slot), self.ino(slot));
        let was_there = self.table.lock(self.keys.inode(superblock, ino) as u32).remove(slot);
        if !was_there {
            // A newer generation is in the table.
            self.stale_generations.remove(superblock, ino, slot);
        }
        let gone = self.dying.lock();
        // ORDERING: Relaxed. `wait_until_gone` reads the number under the mutex `dying` too. Other
        // readers check the lockref, which tells them that the inode is dead.
        self.ref_words(slot)[1].store(0, Ordering::Relaxed);
        drop(gone);
        self.gone.notify_all();
        self.count.add(-1);
        dentries.free_inode(slot);
    }

    /// Waits until the back end has been told of the death of an inode.
    #[cold]
    fn wait_until_gone(&self, slot: InodeSlot, superblock: u32, ino: u64) {
        let mut dying = self.dying.lock();
        while self.is(slot, superblock, ino) && self.lockref(slot).is_dead() {
            self.gone.wait(&mut dying);
        }
    }

    // Aliases.

    /// Makes `dentry` a dentry of the inode.
    pub(crate) fn add_alias(&self, slot: InodeSlot, dentry: DentrySlot, dentries: &Dentries) {
        let _guard = self.lockref(slot).lock();
        dentries.cold(dentry).set_next_alias(self.alias(slot));
        self.set_alias(slot, dentry);
    }

    /// Moves a dentry to the head of the inode's aliases, because the back end has just confirmed
    /// its name. Nothing happens if the dentry is not an alias.
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

    /// Returns up to `max` aliases of the inode after its first alias, without references. When the
    /// caller has taken a reference on an alias, it checks that the alias is still valid.
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

    /// Returns true if the inode still has an alias that is older than `dentry`.
    pub(crate) fn has_older_alias(
        &self,
        slot: InodeSlot,
        dentry: DentrySlot,
        dentries: &Dentries,
    ) -> bool {
        let _guard = self.lockref(slot).lock();
        !dentries.cold(dentry).next_alias().is_none()
    }

    /// Returns true if `dentry` is the only alias of the inode, and the inode has other users.
    pub(crate) fn is_only_alias_in_use(
        &self,
        slot: InodeSlot,
        dentry: DentrySlot,
        dentries: &Dentries,
    ) -> bool {
        let guard = self.lockref(slot).lock();
        self.is_only_alias_in_use_locked(slot, dentry, dentries, &guard)
    }

    /// Works like [`Inodes::remove_alias`]. But if the dentry is the only alias of an inode that
    /// has other users, keeps the alias and returns false. The check and the removal are one step.
    /// Otherwise two threads that remove the last two aliases could each see the other alias, and
    /// remove both.
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

    /// Undoes [`Inodes::add_alias`]. Nothing happens if `dentry` is not an alias.
    pub(crate) fn remove_alias(&self, slot: InodeSlot, dentry: DentrySlot, dentries: &Dentries) {
        let guard = self.lockref(slot).lock();
        self.remove_alias_locked(slot, dentry, dentries, &guard);
    }

    /// Does the work of [`Inodes::remove_alias`]. The caller holds the inode's lock. Returns false
    /// if `dentry` is not an alias.
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
        // ORDERING(alias): Release. Pairs with the load in `alias`: a reader that sees the alias
        // sees its filled dentry. The update keeps a referenced bit that another thread sets.
        let _ = self.perm_words(slot)[STATE].fetch_update(
            Ordering::Release,
            // ORDERING: Relaxed. Under the inode's lock.
            Ordering::Relaxed,
            |word| Some((word & 0xffff_ffff) | (u64::from(dentry.get()) << 32)),
        );
    }

    // Permissions.

    /// Returns the permission record, or None if it is unknown. The caller validates the dentry
    /// that led to the inode.
    #[inline]
    pub(crate) fn perm(&self, slot: InodeSlot) -> Option<Perm> {
        let words = self.perm_words(slot);
        // ORDERING(perm): Acquire. Pairs with the store of the version. The owner was stored before
        // the version, so the load below sees that owner or a newer one.
        let first = words[MODE].load(Ordering::Acquire);
        // ORDERING: Relaxed. Data of a section that the version covers.
        let owner = words[OWNER].load(Ordering::Relaxed);
        // ORDERING(perm-unknown): Acquire fence. Pairs with the fence in `mark_unknown`. A reader
        // that has seen a newer owner also sees the odd version that was stored before it.
        fence(Ordering::Acquire);
        // ORDERING: Relaxed. Ordered by the fence.
        let again = words[MODE].load(Ordering::Relaxed);
        (first == again && (first >> VERSION_SHIFT) & 1 == 0).then_some(Perm {
            mode: (first & MODE_MASK) as u32,
            uid: (owner >> 32) as u32,
            gid: owner as u32,
            has_acl: first & HAS_ACL != 0,
        })
    }

    /// Returns the kind of file, which never changes.
    pub(crate) fn kind(&self, slot: InodeSlot) -> FileKind {
        // ORDERING: Relaxed. The type bits of the mode do not change as long as the caller holds a
        // reference.
        let mode = self.perm_words(slot)[MODE].load(Ordering::Relaxed) & MODE_MASK;
        FileKind::from_mode(mode as u32).unwrap_or(FileKind::Regular)
    }

    /// Returns true if the inode is a directory, which never changes.
    #[inline]
    pub(crate) fn is_directory(&self, slot: InodeSlot) -> bool {
        // ORDERING: Relaxed. As for the kind.
        let mode = self.perm_words(slot)[MODE].load(Ordering::Relaxed) as u32;
        mode & mode::S_IFMT == mode::S_IFDIR
    }

    /// Returns a count that each attribute change raises twice: when it begins and when it ends.
    pub(crate) fn changes(&self) -> i64 {
        self.changes.sum()
    }

    /// Marks the attributes unknown, before the back end is asked to change them.
    pub(crate) fn begin_change(&self, slot: InodeSlot) -> Ticket {
        self.changes.add(1);
        let _guard = self.lockref(slot).lock();
        // ORDERING: Relaxed. The inode's lock protects the number of running changes.
        self.perm_words(slot)[STATE].fetch_add(1, Ordering::Relaxed);
        self.mark_unknown(slot)
    }

    /// Ends a change. `perm` is the answer of the back end. Afterwards the permissions are known if
    /// the back end has answered and no other change overlapped this one.
    pub(crate) fn end_change(&self, slot: InodeSlot, ticket: Ticket, perm: Option<Perm>) {
        let _guard = self.lockref(slot).lock();
        // ORDERING: Relaxed. Under the inode's lock.
        self.perm_words(slot)[STATE].fetch_sub(1, Ordering::Relaxed);
        // A fill that overlaps this attribute change may have got its answer from the back end
        // before the change. So raise `changes`: then the fill does not trust its answer.
        self.changes.add(1);
        if !perm.is_some_and(|perm| self.install_locked(slot, ticket, perm)) {
            // The back end gave no answer, or another change overlapped this one. Then the order of
            // the two changes in the back end is unknown. Make all outstanding tickets invalid, so
            // that no older answer is installed.
            let _ = self.mark_unknown(slot);
        }
    }

    /// Returns a ticket. The caller takes it before it asks the back end for the unknown
    /// permissions, and passes it to [`Inodes::install`] with the answer.
    pub(crate) fn ticket(&self, slot: InodeSlot) -> Ticket {
        // ORDERING(perm): Acquire. The question to the back end happens after this load. So a
        // change that begins after the question makes the ticket invalid.
        Ticket(self.perm_words(slot)[MODE].load(Ordering::Acquire) >> VERSION_SHIFT)
    }

    /// Installs the answer of the back end, unless a change has begun since the ticket was taken.
    pub(crate) fn install(&self, slot: InodeSlot, ticket: Ticket, perm: Perm) {
        let _guard = self.lockref(slot).lock();
        self.install_locked(slot, ticket, perm);
    }

    /// Works like [`Inodes::install`], for an answer that came with a name. The caller asked for
    /// the name before it knew the inode, so it could not take a ticket. `changes_before` is
    /// [`Inodes::changes`] from before the back end was asked.
    pub(crate) fn install_unless_changed(&self, slot: InodeSlot, changes_before: i64, perm: Perm) {
        let _guard = self.lockref(slot).lock();
        // A change first raises `changes` and then takes the inode's lock, which this thread holds.
        // So a change that this check misses marks the permissions unknown after the installation.
        if self.changes() == changes_before {
            let ticket = self.ticket(slot);
            self.install_locked(slot, ticket, perm);
        }
    }

    /// Returns true if the permissions are known and let every caller search the directory. The
    /// caller holds the inode's lock.
    pub(crate) fn is_searchable(&self, slot: InodeSlot, _guard: &LockrefGuard<'_>) -> bool {
        self.perm(slot).is_some_and(|perm| perm.is_searchable_by_all())
    }

    fn install_locked(&self, slot: InodeSlot, ticket: Ticket, perm: Perm) -> bool {
        // ORDERING: Relaxed. Under the inode's lock.
        let version = self.perm_words(slot)[MODE].load(Ordering::Relaxed) >> VERSION_SHIFT;
        // ORDERING: Relaxed. Under the inode's lock.
        let changes = self.perm_words(slot)[STATE].load(Ordering::Relaxed) & CHANGES_MASK;
        let is_current = version == ticket.0 && version & 1 == 1 && changes == 0;
        if is_current {
            self.store_perm_version(slot, perm, version + 1);
        }
        is_current
    }

    /// Makes the version odd and different from all earlier ones. The caller holds the inode's
    /// lock.
    fn mark_unknown(&self, slot: InodeSlot) -> Ticket {
        let word = &self.perm_words(slot)[MODE];
        // ORDERING: Relaxed. Under the inode's lock.
        let before = word.load(Ordering::Relaxed);
        let version = ((before >> VERSION_SHIFT) + 1) | 1;
        let rest = before & (MODE_MASK | HAS_ACL);
        // ORDERING: Relaxed. The fence below orders this store of the version before the later
        // store of the owner.
        word.store((version << VERSION_SHIFT) | rest, Ordering::Relaxed);
        // ORDERING(perm-unknown): Release fence. Pairs with the fence in `perm`, so that a reader
        // that sees a newer owner also sees this odd version.
        fence(Ordering::Release);
        Ticket(version & (u64::MAX >> VERSION_SHIFT))
    }

    /// Stores the permissions of an inode that begins its life. The version continues from that of
    /// the last inode in the slot.
    fn store_perm(&self, slot: InodeSlot, perm: Perm, known: bool) {
        let Ticket(version) = self.mark_unknown(slot);
        self.store_perm_version(slot, perm, version + u64::from(known));
    }

    fn store_perm_version(&self, slot: InodeSlot, perm: Perm, version: u64) {
        let words = self.perm_words(slot);
        // ORDERING: Relaxed. Data of a section that the version covers.
        words[OWNER].store((u64::from(perm.uid) << 32) | u64::from(perm.gid), Ordering::Relaxed);
        let acl = if perm.has_acl { HAS_ACL } else { 0 };
        let first = (version << VERSION_SHIFT) | acl | u64::from(perm.mode & 0xffff);
        // ORDERING(perm): Release. Pairs with the load in `perm`, so that a reader that sees this
        // version also sees the owner stored above.
        words[MODE].store(first, Ordering::Release);
    }

    // Statistics.

    pub(crate) fn in_use(&self) -> u64 {
        self.count.sum().max(0) as u64
    }

    /// Returns the bytes of the inode table. [`Dentries::bytes`] counts the bytes of the slots.
    pub(crate) fn table_bytes(&self) -> u64 {
        self.table.bytes()
    }
}

#[cfg(all(test, corewalk_loom))]
mod loom_models;
