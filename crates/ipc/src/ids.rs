//! Ids and permissions of the objects of one kind. Lookups and permission checks take no lock.
//!
//! An id consists of a generation and the index of a slot. A slot is a cache line that is never
//! used for anything else, so any thread may read the slot of any id. A lookup stores nothing. It
//! checks two words of the slot:
//! - The sequence count tells whether the fields of the slot belong together.
//! - The generation tells whether the slot still has the object of the id.
//!
//! Another thread may remove the object right after the lookup, and make a new object in its
//! memory. So each object has a tag, which differs from the tags of earlier objects in the same
//! memory.
//!
//! Both the object's own words and the *payload* of the slot (the word that says where the object
//! is) contain the tag. An operation compares the two in the same atomic step that changes a word
//! of the object (trap I10 in `traps.md`).
//!
//! Each kind of objects (sets, queues, segments) has one lock, as Linux's `ipc_ids.rwsem`. This
//! lock protects creation, removal and `IPC_SET`. The store that ends a write section of the slot's
//! sequence count publishes a complete object (traps I7, I11 in `traps.md`).
//!
//! The state words of the slots are authoritative. A task may die with the lock of the kind held.
//! Then `recover` rebuilds from these words the counts of objects, the hash table of keys, and the
//! bitmap of used slots.
//!
//! The slot of a removed object stays marked in the bitmap until all memory of the object is free.
//! Until then, a stopped process may still work on the object.
//!
//! # Guarantees
//!
//! - I.1: a lookup returns the fields of one finished write section (as of a seqlock).
//! - I.2: the id of a removed object comes again only after 65,535 rounds of the search for a free
//!   slot, as in the kernel. A round ends when the search passes the end of the slots.
//! - I.3: new objects get the slots in turn, as in the kernel. So a slot stays free for some time
//!   after a removal, and the old id leads to no object.
//!
//! Source: document 002 (`ipc_obtain_object_check`, `ipc_checkid`); Linux `ipc/util.c`.

#[cfg(all(test, corewalk_crash))]
mod audit;
mod recover;

use corewalk_base::Line;
use corewalk_base::primitives::atomic::{AtomicU64, Ordering};
use corewalk_base::primitives::{IS_MODEL, hint};
use corewalk_sync::SeqCount;
use rustix::io::Errno;

use crate::field::{get, high, low, pair, put, refuse_if};
use crate::layout::Layout;
use crate::lock::{Held, Owner, Wait, lock};
use crate::perm::{Cred, Perm, SecurityHook};
use crate::shared::{Shared, now_s};

/// The bits of an id that hold the index.
pub(crate) const INDEX_BITS: u32 = 15;

/// The largest number of slots of a kind.
pub(crate) const SLOTS_MAX: u32 = 1 << INDEX_BITS;

/// The number of generations. With this limit, ids stay below 2^31.
const SEQ_END: u64 = (1 << (31 - INDEX_BITS)) - 1;

/// The key of objects that cannot be found by key, as Linux's `IPC_PRIVATE`.
pub const IPC_PRIVATE: i32 = 0;

/// The minimum number of indices through which new objects cycle. A large number delays the reuse
/// of an index. Analogous to Linux's `ipc_min_cycle`.
const CYCLE_MIN: u32 = 64;

const SPIN_ROUNDS: u32 = if IS_MODEL { 1 } else { 128 };

/// The maximum number of times that a lookup waits for the lock of the object kind. Only a hostile
/// process can make a lookup wait so often.
const WAITS_MAX: u32 = 1 << 10;

// Words of a slot.
const SEQ: usize = 0;
/// [`LIVE`], [`IS_SECOND`], generation, mode.
const STATE: usize = 1;
/// The owner, if [`IS_SECOND`] is not set in `STATE`.
const OWNER: usize = 2;
const CREATOR: usize = 3;
const PAYLOAD: usize = 4;
const CTIME: usize = 5;
/// A word with the object's key, and the next slot in the hash chain of the key.
const KEY: usize = 6;
/// The owner, if [`IS_SECOND`] is set in `STATE`.
const SECOND_OWNER: usize = 7;

const LIVE: u64 = 1 << 63;
/// The bit of `STATE` that selects the word with the owner: `OWNER` or `SECOND_OWNER`. `IPC_SET`
/// fills the other word. One store of `STATE` then changes owner and mode together.
const IS_SECOND: u64 = 1 << 62;
const STATE_SEQ_SHIFT: u32 = 16;

// Words of a head.
const LOCK: usize = 0;
const IN_USE: usize = 1;
const NEXT_SEQ: usize = 2;
/// The index of the newest object, plus one. The search for a free index begins there.
const NEXT_INDEX: usize = 4;
/// The sum that a limit bounds: the semaphores of all sets, or the pages of all segments.
const USED: usize = 5;

/// The bits of a word of the bitmap.
const BITS: u32 = 64;

/// The line numbers of the id table of one object kind.
#[derive(Clone, Copy, Debug)]
pub(crate) struct IdLayout {
    /// The line of the head.
    pub(crate) head: u32,
    /// The number of slots, a power of two.
    pub(crate) slots: u32,
    /// The first line of the hash table, after the bitmap.
    buckets: u32,
    /// The line of the first slot.
    first_slot: u32,
}

impl IdLayout {
    pub(crate) const fn new(head: u32, slots: u32) -> Self {
        let buckets = head + 1 + slots.div_ceil(BITS).div_ceil(8);
        Self { head, slots, buckets, first_slot: buckets + slots.div_ceil(8) }
    }

    pub(crate) const fn lines(slots: u32) -> u32 {
        Self::new(0, slots).first_slot + slots
    }
}

/// A copy of a slot, as a lookup returns it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Object {
    pub(crate) index: u32,
    /// This field and those below are copies of whole words of the slot. If their halves were
    /// stored one by one, a load of a whole word right afterwards would stall the processor.
    state: u64,
    owner: u64,
    creator: u64,
    key: u64,
    pub(crate) payload: u64,
    pub(crate) ctime: u64,
}

impl Object {
    /// Returns the object's id.
    #[inline]
    pub(crate) fn id(&self) -> i32 {
        let seq = (self.state >> STATE_SEQ_SHIFT & 0xffff) as i32;
        (seq << INDEX_BITS) | self.index.cast_signed()
    }

    /// Returns the object's permissions.
    pub(crate) fn perm(&self) -> Perm {
        Perm {
            key: self.key(),
            uid: low(self.owner),
            gid: high(self.owner),
            cuid: low(self.creator),
            cgid: high(self.creator),
            mode: self.mode(),
            seq: (self.state >> STATE_SEQ_SHIFT & 0xffff) as u16,
        }
    }

    /// Owner and creator, each as a pair of user and group.
    #[inline]
    pub(crate) fn owners(&self) -> [u64; 2] {
        [self.owner, self.creator]
    }

    #[inline]
    pub(crate) fn mode(&self) -> u16 {
        (self.state & 0xffff) as u16
    }

    /// Returns the object's key, or `IPC_PRIVATE`.
    pub(crate) fn key(&self) -> i32 {
        low(self.key).cast_signed()
    }

    #[inline]
    fn is_live(&self) -> bool {
        self.state & LIVE != 0
    }
}

type MayCtl = fn(&dyn SecurityHook, &Cred, Option<&Perm>, i32) -> Result<(), Errno>;

/// The functions in which semaphore sets, message queues and segments differ. All other code for
/// ids is shared.
pub(crate) struct Kind {
    pub(crate) layout: fn(&Layout) -> IdLayout,
    /// Repairs an object after a task has died with the lock of the object's kind held. May
    /// complete the object's removal. Returns the object's share of the total that `Limits` bounds.
    pub(crate) repair: fn(Ids<'_>, &Object) -> u64,
    /// Returns true if all memory of a removed object is free. Until then, no new object gets the
    /// slot of the removed one.
    pub(crate) end: fn(Ids<'_>, u32) -> bool,
    /// Completes the repair after all slots were repaired.
    pub(crate) sweep: fn(Ids<'_>),
    pub(crate) may_ctl: MayCtl,
}

/// The id table of one object kind: semaphore sets, queues or segments. Analogous to Linux's
/// `struct ipc_ids`.
#[derive(Clone, Copy)]
pub(crate) struct Ids<'r> {
    pub(crate) shared: &'r Shared,
    pub(crate) kind: &'static Kind,
    /// The task for which the locks are taken.
    pub(crate) owner: Owner,
}

/// The held lock of a kind.
pub(crate) struct IdsGuard<'r> {
    pub(crate) ids: Ids<'r>,
    _held: Held<'r>,
}

impl<'r> Ids<'r> {
    /// Returns the number of slots.
    pub(crate) fn slots(self) -> u32 {
        self.layout().slots
    }

    #[inline]
    fn layout(self) -> IdLayout {
        (self.kind.layout)(&self.shared.layout)
    }

    /// Locks the object kind. If the last holder of the lock has died, first repairs the protected
    /// data.
    pub(crate) fn lock(self) -> Result<IdsGuard<'r>, Errno> {
        let held = lock(self.shared, &self.head()[LOCK], self.owner, Wait::Long, || {
            recover::recover(self);
            Ok(())
        })?;
        Ok(IdsGuard { ids: self, _held: held })
    }

    /// Finds the object with this id, or returns `EINVAL`. Analogous to Linux's
    /// `ipc_obtain_object_check` and `ipc_checkid`.
    #[inline]
    pub(crate) fn obtain_object_check(self, id: i32) -> Result<Object, Errno> {
        let object = self.obtain_object(id.cast_unsigned() & (SLOTS_MAX - 1))?;
        if object.id() == id { Ok(object) } else { Err(Errno::INVAL) }
    }

    /// Finds the object in a slot, or returns `EINVAL`. Does not check the generation. Analogous to
    /// Linux's `ipc_obtain_object`.
    #[inline]
    pub(crate) fn obtain_object(self, index: u32) -> Result<Object, Errno> {
        if index >= self.layout().slots {
            return Err(Errno::INVAL);
        }
        let slot = self.slot(index);
        let seq = SeqCount::from_word(&slot[SEQ]);
        let start = seq.raw_begin();
        let object = read(slot, index);
        if seq.read_retry(start) {
            return self.obtain_slow(index);
        }
        if object.is_live() { Ok(object) } else { Err(Errno::INVAL) }
    }

    #[cold]
    fn obtain_slow(self, index: u32) -> Result<Object, Errno> {
        let slot = self.slot(index);
        let seq = SeqCount::from_word(&slot[SEQ]);
        for round in 0..SPIN_ROUNDS + WAITS_MAX {
            let start = seq.raw_begin();
            let object = read(slot, index);
            if !seq.read_retry(start) {
                return if object.is_live() { Ok(object) } else { Err(Errno::INVAL) };
            }
            if round < SPIN_ROUNDS {
                hint::spin_loop();
            } else {
                // The thread that is changing the slot holds the lock of the object kind, so wait
                // for that lock.
                drop(self.lock()?);
            }
        }
        Err(Errno::INVAL)
    }

    #[inline]
    fn slot(self, index: u32) -> &'r Line {
        slot(self.shared, self.layout(), index)
    }

    /// Returns the object in a slot, if there is one. The caller holds the lock of the object kind.
    pub(crate) fn live(self, index: u32) -> Option<Object> {
        let is_slot = index < self.layout().slots;
        is_slot.then(|| read(self.slot(index), index)).filter(Object::is_live)
    }

    /// Ends the write section of a dead task, if there is one. The caller holds the lock of the
    /// object kind.
    fn closed(self, index: u32) -> &'r SeqCount {
        let seq = SeqCount::from_word(&self.slot(index)[SEQ]);
        if SeqCount::is_write_in_progress(seq.raw_begin()) {
            seq.write_end();
        }
        seq
    }

    fn head(self) -> &'r Line {
        self.shared.region.line(self.layout().head)
    }

    fn bucket(self, key: i32) -> &'r AtomicU64 {
        let hash = key.cast_unsigned().wrapping_mul(0x9e37_79b9) >> 8;
        self.bucket_at(hash % self.layout().slots)
    }

    fn bucket_at(self, bucket: u32) -> &'r AtomicU64 {
        &self.shared.region.line(self.layout().buckets + bucket / 8)[bucket as usize % 8]
    }

    fn bits(self, word: u32) -> &'r AtomicU64 {
        &self.shared.region.line(self.layout().head + 1 + word / 8)[word as usize % 8]
    }

    /// Returns true if the bitmap marks index `index` as used.
    fn is_taken(self, index: u32) -> bool {
        get(self.bits(index / BITS)) >> (index % BITS) & 1 != 0
    }

    /// Returns the indices that the bitmap marks as used.
    fn taken(self) -> impl DoubleEndedIterator<Item = u32> + use<'r> {
        let words = 0..self.slots().div_ceil(BITS);
        let words = words.filter(move |word| get(self.bits(*word)) != 0);
        let indices = words.flat_map(|word| word * BITS..(word + 1) * BITS);
        indices.filter(move |index| self.is_taken(*index))
    }

    fn set_bit(self, index: u32, is_used: bool) {
        let (bits, bit) = (self.bits(index / BITS), 1 << (index % BITS));
        put(bits, if is_used { get(bits) | bit } else { get(bits) & !bit });
    }
}

#[inline]
fn slot(shared: &Shared, ids: IdLayout, index: u32) -> &Line {
    shared.region.line(ids.first_slot.wrapping_add(index))
}

/// Returns the payload of a slot (the word that says where the object is), if the slot has an
/// object.
///
/// A caller that holds the lock of one object uses this function instead of a full lookup. A full
/// lookup may wait for the lock of the object kind, which comes first in the lock order.
pub(crate) fn payload(shared: &Shared, ids: IdLayout, index: u32) -> Option<u64> {
    let slot = slot(shared, ids, index);
    let payload = get(&slot[PAYLOAD]);
    (index < ids.slots && get(&slot[STATE]) & LIVE != 0).then_some(payload)
}

/// Returns the state word of a slot. Recovery compares this word with a recorded one. If they
/// differ, the `IPC_SET` of a dead task has changed the slot.
pub(crate) fn state(shared: &Shared, ids: IdLayout, index: u32) -> u64 {
    get(&slot(shared, ids, index)[STATE])
}

fn owner_word(state: u64) -> usize {
    if state & IS_SECOND == 0 { OWNER } else { SECOND_OWNER }
}

/// Returns the owner from the word `SECOND_OWNER`.
///
/// The attribute `cold` makes the compiler use a branch, which the processor predicts. Without a
/// branch, the load of the owner would wait for the load of the state word.
#[cold]
fn second_owner(slot: &Line) -> u64 {
    get(&slot[SECOND_OWNER])
}

/// Copies a slot. The caller checks the sequence count afterwards.
#[inline]
fn read(slot: &Line, index: u32) -> Object {
    let state = get(&slot[STATE]);
    Object {
        index,
        state,
        owner: if state & IS_SECOND == 0 { get(&slot[OWNER]) } else { second_owner(slot) },
        creator: get(&slot[CREATOR]),
        key: get(&slot[KEY]),
        payload: get(&slot[PAYLOAD]),
        ctime: get(&slot[CTIME]),
    }
}

impl IdsGuard<'_> {
    pub(crate) fn obtain_object_check(&self, id: i32) -> Result<Object, Errno> {
        let object = self.ids.live(id.cast_unsigned() & (SLOTS_MAX - 1));
        object.filter(|object| object.id() == id).ok_or(Errno::INVAL)
    }

    /// Finds the object with the key `key`, which must not be `IPC_PRIVATE`.
    pub(crate) fn find_key(&self, key: i32) -> Option<Object> {
        let mut next = low(get(self.ids.bucket(key)));
        for _ in 0..self.ids.layout().slots {
            let index = next.checked_sub(1)?;
            let object = read(self.ids.slot(index), index);
            if object.is_live() && object.key() == key {
                return Some(object);
            }
            next = high(object.key);
        }
        None
    }

    /// Returns the number of objects.
    pub(crate) fn in_use(&self) -> u32 {
        low(get(&self.ids.head()[IN_USE]))
    }

    pub(crate) fn index_max(&self) -> Option<u32> {
        self.ids.taken().next_back()
    }

    /// Returns the number of semaphores in all sets, or of pages in all segments. `Limits` bounds
    /// it.
    pub(crate) fn used(&self) -> u64 {
        get(&self.ids.head()[USED])
    }

    /// Sets the number of semaphores in all sets, or of pages in all segments.
    pub(crate) fn set_used(&self, used: u64) {
        put(&self.ids.head()[USED], used);
    }

    /// Adds a new object, and returns its id. If there is no free slot or memory, frees the memory
    /// that removed objects still have, and tries again. For `make` see [`IdsGuard::publish`].
    pub(crate) fn add(
        &self,
        perm: Perm,
        objects_max: u32,
        mut make: impl FnMut(u32) -> Result<u64, Errno>,
    ) -> Result<i32, Errno> {
        let mut publish = || self.publish(perm, now_s(), objects_max, &mut make);
        match publish() {
            Err(Errno::NOSPC | Errno::NOMEM) if self.end_left() => publish(),
            id => id,
        }
    }

    /// Creates an object in a free slot, and returns its id. From then on, lookups find the object.
    /// Ignores the generation in `perm.seq`. Analogous to Linux's `ipc_addid`.
    ///
    /// `make` gets the index of the new object, and returns its payload: the word that says where
    /// the object is.
    pub(crate) fn publish(
        &self,
        perm: Perm,
        ctime: u64,
        objects_max: u32,
        make: impl FnOnce(u32) -> Result<u64, Errno>,
    ) -> Result<i32, Errno> {
        let head = self.ids.head();
        let in_use = self.in_use();
        refuse_if(in_use >= objects_max.min(self.ids.layout().slots), Errno::NOSPC)?;
        let index = self.free_index(in_use).ok_or(Errno::NOSPC)?;
        let payload = make(index)?;
        let mut seq = get(&head[NEXT_SEQ]);
        if u64::from(index) < get(&head[NEXT_INDEX]) {
            seq = seq.saturating_add(1);
        }
        if seq >= SEQ_END {
            seq = 0;
        }
        put(&head[NEXT_SEQ], seq);
        put(&head[NEXT_INDEX], u64::from(index) + 1);
        put(&head[IN_USE], u64::from(in_use) + 1);
        self.ids.set_bit(index, true);
        let slot = self.ids.slot(index);
        {
            let _section = self.ids.closed(index).write();
            let next =
                if perm.key == IPC_PRIVATE { 0 } else { low(get(self.ids.bucket(perm.key))) };
            put(&slot[KEY], pair(perm.key.cast_unsigned(), next));
            put(&slot[OWNER], pair(perm.uid, perm.gid));
            put(&slot[CREATOR], pair(perm.cuid, perm.cgid));
            put(&slot[PAYLOAD], payload);
            put(&slot[CTIME], ctime);
            put(&slot[STATE], LIVE | seq << STATE_SEQ_SHIFT | u64::from(perm.mode));
        }
        if perm.key != IPC_PRIVATE {
            put(self.ids.bucket(perm.key), u64::from(index) + 1);
        }
        Ok(read(slot, index).id())
    }

    /// Removes an object from its slot, the hash table of keys and the bitmap. Analogous to Linux's
    /// `ipc_rmid`.
    pub(crate) fn unpublish(&self, object: &Object) {
        self.ids.forget_slot(object.index);
        self.unlink(object);
        self.ids.set_bit(object.index, false);
        let in_use = &self.ids.head()[IN_USE];
        put(in_use, get(in_use).saturating_sub(1));
    }

    /// Changes the owner and the nine permission bits of an object. Keeps the other bits of the
    /// mode. Analogous to Linux's `ipc_update_perm`.
    pub(crate) fn update_perm(&self, object: &Object, uid: u32, gid: u32, mode: u16, ctime: u64) {
        let slot = self.ids.slot(object.index);
        let state = get(&slot[STATE]) & !0o777 ^ IS_SECOND | u64::from(mode & 0o777);
        let _section = self.ids.closed(object.index).write();
        put(&slot[owner_word(state)], pair(uid, gid));
        // ORDERING(ipc-redo): Release. The owner is stored before the state word. Without this
        // order, a thread could read the new state word but the old owner.
        slot[STATE].store(state, Ordering::Release);
        put(&slot[CTIME], ctime);
    }

    /// Adds `flags` to an object's mode, and then removes the object's key. Used for an object that
    /// stays until its last user detaches. Analogous to Linux's `ipc_set_key_private`.
    ///
    /// If this task dies between the two steps, recovery removes the key ([`Ids::forget_key`]).
    pub(crate) fn set_key_private(&self, object: &Object, flags: u16) {
        let slot = self.ids.slot(object.index);
        let _section = self.ids.closed(object.index).write();
        put(&slot[STATE], get(&slot[STATE]) | u64::from(flags));
        self.unlink(object);
        put(&slot[KEY], pair(IPC_PRIVATE.cast_unsigned(), 0));
    }

    /// Replaces the flags of an object's mode that are in `mask`.
    pub(crate) fn set_mode_flags(&self, object: &Object, mask: u16, flags: u16) {
        let slot = self.ids.slot(object.index);
        let _section = self.ids.closed(object.index).write();
        put(&slot[STATE], get(&slot[STATE]) & !u64::from(mask) | u64::from(flags & mask));
    }

    fn unlink(&self, object: &Object) {
        if object.key() == IPC_PRIVATE {
            return;
        }
        let next = high(get(&self.ids.slot(object.index)[KEY]));
        let bucket = self.ids.bucket(object.key());
        let mut seen = low(get(bucket));
        if seen == object.index + 1 {
            put(bucket, u64::from(next));
            return;
        }
        for _ in 0..self.ids.layout().slots {
            let Some(index) = seen.checked_sub(1) else { return };
            let key = &self.ids.slot(index)[KEY];
            seen = high(get(key));
            if seen == object.index + 1 {
                // Only the link of the hash chain changes, which lookups without a lock do not
                // read. So the sequence count need not change.
                put(key, pair(low(get(key)), next));
                return;
            }
        }
    }

    /// Returns the next free index after that of the newest object. At the end of the range, the
    /// search continues at index 0.
    fn free_index(&self, in_use: u32) -> Option<u32> {
        let slots = self.ids.layout().slots;
        let end = (in_use.saturating_mul(3) / 2).max(CYCLE_MIN).min(slots);
        let next = low(get(&self.ids.head()[NEXT_INDEX])).min(slots);
        let free = |mut index: u32, end: u32| {
            while index < end && self.ids.is_taken(index) {
                index += (get(self.ids.bits(index / BITS)) >> (index % BITS)).trailing_ones();
            }
            (index < end).then_some(index)
        };
        free(next, end).or_else(|| free(0, next.min(end)))
    }
}

/// Sets the time of an object's last change. The caller holds the object's lock.
pub(crate) fn touch_ctime(ids: Ids<'_>, index: u32, ctime: u64) {
    put(&ids.slot(index)[CTIME], ctime);
}
