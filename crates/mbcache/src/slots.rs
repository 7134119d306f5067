//! One entry: four words in memory that is never unmapped while the cache lives.
//!
//! ```text
//! word 0  key
//! word 1  value
//! word 2  state: flags, count of handles, generation
//! word 3  links: next of its bucket (lower half), next free slot (upper half)
//! ```
//!
//! A reader may look at any slot at any time. What it read belongs together if the slot was live before
//! and after, with one generation: it is not live while its words are written, and has another
//! generation afterwards. That has 42 bits: a reader would have to sleep between two of its loads while
//! the one slot is filled 2^42 times, which takes two days at 50 ns each (trap T32).
//!
//! All changes of a living entry's state are single atomic steps on the whole word, so that no two
//! flags can lose each other (trap T33), a handle is taken only of the entry that was found, and an
//! entry ends only without handles. The links are changed by who holds the lock of the stripe that the
//! slot is in, whether it is in a bucket or free.
//!
//! # Invariants
//! - S.1: a slot is live from when it is filled until it is ended, both under its stripe's lock. In
//!   between it is in exactly the bucket of its key. Handles, and the flag "awaited", need a live slot.
//! - S.2: a slot that is not live is changed by its owner only: who has ended it, or taken it from a
//!   free list.
//! - S.3: an entry in a bucket was filled before all that stand in front of it: fresh ones come first.
//!
//! Source: `SLAB_TYPESAFE_BY_RCU` in Linux `include/linux/slab.h`; `struct mb_cache_entry`.

use corewalk_sync::SlotArena;
use corewalk_sync::primitives::atomic::{AtomicU64, Ordering, fence};

/// Words of a slot.
pub(crate) const WORDS: usize = 4;
pub(crate) const KEY: usize = 0;
pub(crate) const VALUE: usize = 1;
pub(crate) const STATE: usize = 2;
const LINKS: usize = 3;

const LIVE: u64 = 1 << 0;
const REFERENCED: u64 = 1 << 1;
pub(crate) const REUSABLE: u64 = 1 << 2;
const AWAITED: u64 = 1 << 3;
const COUNT_SHIFT: u32 = 4;
const ONE: u64 = 1 << COUNT_SHIFT;
const GENERATION_SHIFT: u32 = 22;
/// One generation.
const AGE: u64 = 1 << GENERATION_SHIFT;
const GENERATION: u64 = !(AGE - 1);
const COUNT: u64 = !GENERATION & !(ONE - 1);

/// A state word.
///
/// | bits | meaning | who changes it |
/// |---|---|---|
/// | 0 | live | who fills and ends it, under the stripe's lock |
/// | 1 | referenced: used since the hand came by | anybody sets, the hand clears |
/// | 2 | reusable: may have more users | the caller |
/// | 3 | awaited: somebody waits until the count is 0; so it is not 0 | a waiter sets, the last handle clears |
/// | 4..22 | handles | who finds, and who drops |
/// | 22..64 | generation | who fills |
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct State(u64);

impl State {
    #[inline]
    pub(crate) fn is_live(self) -> bool {
        self.0 & LIVE != 0
    }

    #[inline]
    pub(crate) fn is_reusable(self) -> bool {
        self.0 & REUSABLE != 0
    }

    pub(crate) fn is_referenced(self) -> bool {
        self.0 & REFERENCED != 0
    }

    pub(crate) fn count(self) -> u32 {
        ((self.0 & COUNT) >> COUNT_SHIFT) as u32
    }

    /// Returns true if both are of one living entry.
    #[inline]
    pub(crate) fn is_same_entry(self, other: State) -> bool {
        (self.0 ^ other.0) & (GENERATION | LIVE) == 0 && self.is_live()
    }
}

/// The words of one slot.
pub(crate) type Words = [AtomicU64; WORDS];

/// What a reader copied out of a slot.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Copied {
    pub(crate) slot: u32,
    pub(crate) key: u64,
    pub(crate) value: u64,
    pub(crate) next: u32,
    pub(crate) state: State,
}

/// What became of a handle that was put.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Put {
    /// Nobody waits, or there are other handles.
    Quiet,
    /// It was the last one and somebody waits: wake them.
    LastAwaited,
}

/// All slots of a cache.
pub(crate) struct Slots {
    arena: SlotArena<WORDS>,
}

impl Slots {
    /// Returns `slots` slots besides slot 0, which is none.
    pub(crate) fn new(slots: u32) -> std::io::Result<Slots> {
        Ok(Slots { arena: SlotArena::new("mbcache", slots + 1)? })
    }

    /// Counts the slots up to `slot` as handed out.
    pub(crate) fn extend_to(&self, slot: u32) {
        self.arena.extend_to(slot);
    }

    /// Returns the bytes of slots handed out.
    pub(crate) fn bytes(&self) -> u64 {
        self.arena.bytes_committed()
    }

    /// Returns the words of a slot.
    #[inline]
    pub(crate) fn words(&self, slot: u32) -> &Words {
        self.arena.get(slot)
    }

    #[inline]
    fn state_word(&self, slot: u32) -> &AtomicU64 {
        &self.arena.get(slot)[STATE]
    }

    /// Returns a copy of a living slot, if it stayed what it was meanwhile.
    #[inline]
    pub(crate) fn copy(&self, slot: u32) -> Option<Copied> {
        copy(self.words(slot), slot)
    }

    /// Returns the state of this moment.
    #[inline]
    pub(crate) fn state(&self, slot: u32) -> State {
        // ORDERING: Relaxed. What is decided on it is decided by a compare-exchange, or checked by
        // the generation.
        State(self.state_word(slot).load(Ordering::Relaxed))
    }

    /// Returns the state, and what its last holders did.
    pub(crate) fn state_acquire(&self, slot: u32) -> State {
        // ORDERING(mbcache-state): Acquire. See `change`.
        State(self.state_word(slot).load(Ordering::Acquire))
    }

    /// Links `next` behind `slot`. The caller holds the stripe's lock.
    pub(crate) fn set_next(&self, slot: u32, next: u32) {
        let links = &self.arena.get(slot)[LINKS];
        // ORDERING: Relaxed. Written under the stripe's lock only; see `next`.
        let others = links.load(Ordering::Relaxed) & !u64::from(u32::MAX);
        // ORDERING: Relaxed. As above.
        links.store(others | u64::from(next), Ordering::Relaxed);
    }

    /// Returns the free slot behind this free one. The caller holds the lock of the list.
    pub(crate) fn next_free(&self, slot: u32) -> u32 {
        // ORDERING: Relaxed. Written under the list's lock only.
        (self.arena.get(slot)[LINKS].load(Ordering::Relaxed) >> 32) as u32
    }

    /// Links the free slot `next` behind the free `slot`. The caller owns `slot`.
    pub(crate) fn set_next_free(&self, slot: u32, next: u32) {
        let links = &self.arena.get(slot)[LINKS];
        // The lower half stays: a late reader may still be on its way through.
        // ORDERING: Relaxed. The slot is the caller's (S.2).
        let chain = links.load(Ordering::Relaxed) & u64::from(u32::MAX);
        // ORDERING: Relaxed. As above.
        links.store(chain | (u64::from(next) << 32), Ordering::Relaxed);
    }

    /// Makes a free slot of the caller's an entry that stands before `next`. The caller holds the
    /// stripe's lock and makes the slot visible afterwards.
    pub(crate) fn fill(&self, slot: u32, pair: (u64, u64), reusable: bool, next: u32) {
        let words = self.arena.get(slot);
        // ORDERING: Relaxed. The slot is the caller's (S.2).
        let before = words[STATE].load(Ordering::Relaxed) & GENERATION;
        // ORDERING(mbcache-refill): Release fence. A reader that sees a word stored below also sees that
        // the entry which was here before has ended, or what came later.
        fence(Ordering::Release);
        // ORDERING: Relaxed. See above.
        words[KEY].store(pair.0, Ordering::Relaxed);
        words[VALUE].store(pair.1, Ordering::Relaxed);
        words[LINKS].store(u64::from(next), Ordering::Relaxed);
        let flags = if reusable { LIVE | REUSABLE } else { LIVE };
        let state = before.wrapping_add(AGE) | flags;
        // ORDERING(mbcache-fill): Release. Who sees the entry live sees its words, and that the slot is
        // in no other bucket any more.
        words[STATE].store(state, Ordering::Release);
    }

    /// Ends the entry that `state` is of, if nobody holds it and `spare` does not save it. The caller holds the stripe's lock.
    pub(crate) fn end(&self, slot: u32, state: State, spare: Spare) -> bool {
        self.change(slot, |now| {
            let is_idle = now.is_same_entry(state) && now.count() == 0;
            let is_spared = spare == Spare::Referenced && now.is_referenced();
            (is_idle && !is_spared).then_some(now.0 & GENERATION)
        })
    }

    /// Takes a handle of the entry that `state` is of, if it is still live, `may` agrees and nobody waits
    /// until it has none: a stream of finders must not keep whoever deletes it waiting.
    #[inline]
    pub(crate) fn hold(&self, slot: u32, state: State, may: impl Fn(State) -> bool) -> bool {
        self.change(slot, |now| {
            let is_it = now.is_same_entry(state) && may(now);
            let is_free = now.0 & AWAITED == 0 && now.0 & COUNT != COUNT;
            (is_it && is_free).then_some(now.0.wrapping_add(ONE))
        })
    }

    /// Puts a handle.
    #[inline]
    pub(crate) fn put(&self, slot: u32) -> Put {
        let mut outcome = Put::Quiet;
        let is_put = self.change(slot, |now| {
            let is_last = now.0 & COUNT == ONE;
            outcome = if is_last && now.0 & AWAITED != 0 { Put::LastAwaited } else { Put::Quiet };
            let left = now.0.checked_sub(ONE).filter(|_| now.0 & COUNT != 0)?;
            Some(if is_last { left & !AWAITED } else { left })
        });
        assert!(is_put, "mbcache entry put without a handle");
        outcome
    }

    /// Sets the referenced bit of the entry that `state` is of. Stores nothing if it is set.
    #[inline]
    pub(crate) fn touch(&self, slot: u32, state: State) {
        if !self.state(slot).is_referenced() {
            let _gone =
                self.change(slot, |now| now.is_same_entry(state).then_some(now.0 | REFERENCED));
        }
    }

    /// Clears the referenced bit of the entry that `state` is of.
    pub(crate) fn age(&self, slot: u32, state: State) {
        let _gone =
            self.change(slot, |now| now.is_same_entry(state).then_some(now.0 & !REFERENCED));
    }

    /// Sets or clears the reusable flag; false if the entry that `state` is of has ended.
    pub(crate) fn set_reusable(&self, slot: u32, state: State, reusable: bool) -> bool {
        if self.state(slot).is_same_entry(state) && self.state(slot).is_reusable() == reusable {
            return true;
        }
        let flag = if reusable { REUSABLE } else { 0 };
        self.change(slot, |now| now.is_same_entry(state).then_some(now.0 & !REUSABLE | flag))
    }

    /// Asks the last handle to wake somebody; false if there is none, or the entry has ended.
    pub(crate) fn await_unused(&self, slot: u32, state: State) -> bool {
        self.change(slot, |now| {
            (now.is_same_entry(state) && now.count() > 0).then_some(now.0 | AWAITED)
        })
    }

    /// Sleeps until the last handle of the entry that `state` is of was put, or for a shorter time.
    pub(crate) fn sleep_until_unused(&self, slot: u32, state: State) {
        if self.await_unused(slot, state) {
            let awaited = (state.0 & GENERATION) | LIVE | AWAITED;
            corewalk_sync::park::wait(self.state_word(slot), GENERATION | LIVE | AWAITED, awaited);
        }
    }

    /// Wakes the threads that sleep until the slot's handles are put.
    pub(crate) fn wake(&self, slot: u32) {
        corewalk_sync::park::wake_all(self.state_word(slot));
    }

    /// Replaces the state by `next` of it in one step; false if `next` refuses.
    #[inline]
    fn change(&self, slot: u32, mut next: impl FnMut(State) -> Option<u64>) -> bool {
        let word = self.state_word(slot);
        // ORDERING(mbcache-state): Acquire. A refusal is an answer, too: who is told that an entry has no
        // handles left goes on as its holders left things.
        let mut now = word.load(Ordering::Acquire);
        loop {
            let Some(new) = next(State(now)) else { return false };
            // ORDERING(mbcache-state): AcqRel. Release: what was done under a handle happens before
            // who ends the entry after it was put. Acquire: the other side of that, and what the
            // setter of a flag had done before. On failure as for the load.
            match word.compare_exchange_weak(now, new, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return true,
                Err(seen) => now = seen,
            }
        }
    }
}

/// See [`Slots::copy`].
#[inline]
pub(crate) fn copy(words: &Words, slot: u32) -> Option<Copied> {
    // ORDERING(mbcache-fill): Acquire. See `fill`.
    let state = State(words[STATE].load(Ordering::Acquire));
    // ORDERING: Relaxed. The generation tells whether these belong together.
    let (key, value) = (words[KEY].load(Ordering::Relaxed), words[VALUE].load(Ordering::Relaxed));
    // ORDERING: Relaxed. As above.
    let next = words[LINKS].load(Ordering::Relaxed) as u32;
    // ORDERING(mbcache-refill): Acquire fence. See `fill`. It also orders the looks of
    // `Index::leads_to` behind these.
    fence(Ordering::Acquire);
    // ORDERING: Relaxed. The fence orders it.
    let after = State(words[STATE].load(Ordering::Relaxed));
    state.is_same_entry(after).then_some(Copied { slot, key, value, next, state })
}

/// Returns true if the entry that `state` is of has not ended and `next` stands behind it.
#[inline]
pub(crate) fn leads_to(words: &Words, state: State, next: u32) -> bool {
    // ORDERING: Relaxed. The fence of the last copy orders both; see `Index::walk`.
    let now = State(words[STATE].load(Ordering::Relaxed));
    next_of(words) == next && now.is_same_entry(state)
}

/// Returns the slot behind this one in its bucket.
#[inline]
pub(crate) fn next_of(words: &Words) -> u32 {
    // ORDERING: Relaxed. What stands behind was filled before (S.3), which the reader of this slot
    // has acquired; the reader checks afterwards that the link still holds.
    words[LINKS].load(Ordering::Relaxed) as u32
}

/// Returns key and value of an entry that the caller holds, or whose stripe it has locked.
#[inline]
pub(crate) fn pair_of(words: &Words) -> (u64, u64) {
    // ORDERING: Relaxed. They do not change while there is a handle, or under the lock.
    (words[KEY].load(Ordering::Relaxed), words[VALUE].load(Ordering::Relaxed))
}

/// Which entries are not to be ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Spare {
    /// Those that are held.
    Held,
    /// Those that are held, and those that were used lately.
    Referenced,
}
