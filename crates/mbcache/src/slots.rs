//! One slot of the index: the key, the value and the state word of an entry.
//!
//! All changes of a state are atomic steps on the whole word. So two flags cannot overwrite each
//! other (trap T33), and an entry with a handle cannot end (traps T34, T35). Any thread may read
//! any slot at any time, without a lock. That is correct for these reasons:
//!
//! - *No torn pair.* Key and value are written only while the slot is not live, and each use of the
//!   slot has a new generation. A reader loads the state, then the key and the value. Then it loads
//!   the state again (`get`), or changes the state in one step (`find`, a deletion). If the slot is
//!   live with the same generation both times, the words belong to that generation.
//! - *Removal and reuse.* A step (a change of the state word) succeeds only if the slot still has
//!   the generation that the thread has read. If the entry has ended, the step fails, even if the
//!   slot has the same pair again.
//! - *Missed entries.* A search misses an entry only if there was a moment during the search at
//!   which the entry was not live. Entries do not move, and the reach of a home covers its live
//!   entries (I.1 in `index`). `create` stores the reach before the entry is live. A thread lowers
//!   the reach under the lock of the home, and only if the lines beyond it have no live entry of
//!   this home. A new entry of the home is created under that lock too.
//! - *Found entries.* The result of a `get` is true at the time of its second load of the state.
//!   That of a `find` is true at its step, which takes a handle. The handle then keeps the entry
//!   live.
//! - *A miss by the last user.* A deleter (the thread of the last user) frees the value also if its
//!   search misses the entry. Then it has read that the slot is not live, or words of a later entry
//!   in the slot, or a reach that excludes the slot. An acquire fence follows each miss. So the
//!   deleter sees the work of each thread that had a handle, which the end of the entry released.
//!   The entry may also end between the search and the step of the deleter. That is a miss, too:
//!   the failed step loads the state with Acquire, and the deleter does not search again.
//! - *Bound.* A search loads the reach at its start, and reads the lines within it, at most 128. It
//!   never restarts. A thread repeats a step only if another thread has changed the same entry.
//!
//! The generation has 42 bits. A reader mistakes one entry for another only if the slot is used
//! 2^42 times between two of its loads. That takes two days at 50 ns each (trap T32).
//!
//! # Invariants
//! - S.1: a slot that is not live is changed only under the lock of its line.
//! - S.2: only a live slot has handles or the flag *awaited*. A live slot with handles stays live.
//! - S.3: two uses of a slot have different generations.
//!
//! Source: `SLAB_TYPESAFE_BY_RCU` in Linux `include/linux/slab.h`; `struct mb_cache_entry`.

use corewalk_base::primitives::atomic::{AtomicU64, Ordering, fence};

use crate::index::Locked;

/// Words of a slot.
pub(crate) const WORDS: usize = 3;
pub(crate) const KEY: usize = 0;
pub(crate) const VALUE: usize = 1;
pub(crate) const STATE: usize = 2;

pub(crate) const LIVE: u64 = 1 << 0;
const REFERENCED: u64 = 1 << 1;
pub(crate) const REUSABLE: u64 = 1 << 2;
const AWAITED: u64 = 1 << 3;
const COUNT_SHIFT: u32 = 4;
const ONE: u64 = 1 << COUNT_SHIFT;
/// One generation.
pub(crate) const NEXT: u64 = 1 << 22;
pub(crate) const GENERATION: u64 = !(NEXT - 1);
pub(crate) const COUNT: u64 = !GENERATION & !(ONE - 1);

/// The words of one slot.
pub(crate) type Words = [AtomicU64; WORDS];

/// A state word.
///
/// | bits | meaning | changed by |
/// |---|---|---|
/// | 0 | live | set by `fill`; cleared by the step that ends the entry |
/// | 1 | referenced: used since reclaim last examined it | set by `touch`, cleared by `age` |
/// | 2 | reusable: the value may get more users | `set_reusable` |
/// | 3 | awaited: a thread sleeps until the count is 0 | `await_unused`; cleared by `put` |
/// | 4..22 | handles | `hold`, `put` |
/// | 22..64 | generation | `fill` |
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct State(u64);

/// The entries that a step must not end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Spare {
    /// Entries with handles.
    Held,
    /// Entries with handles, and entries whose referenced bit is set.
    Referenced,
}

/// The effects of a [`put`] on the entry.
pub(crate) struct Put {
    pub(crate) is_ended: bool,
    /// True if the last handle was given up while a thread slept until the entry has no handle.
    pub(crate) wakes: bool,
}

impl State {
    #[inline]
    pub(crate) fn is_live(self) -> bool {
        self.0 & LIVE != 0
    }

    #[inline]
    pub(crate) fn is_referenced(self) -> bool {
        self.0 & REFERENCED != 0
    }

    pub(crate) fn count(self) -> u64 {
        (self.0 & COUNT) >> COUNT_SHIFT
    }

    /// Returns true if both states, `self` and `other`, belong to the same entry, and `self` is
    /// live.
    #[inline]
    pub(crate) fn is_same_entry(self, other: State) -> bool {
        (self.0 ^ other.0) & (GENERATION | LIVE) == 0 && self.is_live()
    }

    /// Returns true if a search may take a handle of the entry: the value is not full, and no
    /// thread waits until the entry has no handle.
    #[inline]
    fn is_findable(self) -> bool {
        let flags = self.0 & (LIVE | REUSABLE | AWAITED);
        flags == LIVE | REUSABLE && self.0 & COUNT != COUNT
    }
}

/// Loads the state. After that the caller sees the work of the threads that had changed the state
/// before.
#[inline]
pub(crate) fn state(words: &Words) -> State {
    // ORDERING(mbcache-fill): Acquire. Pairs with the store in `fill`: a thread that sees the slot
    // live also sees its key and value.
    // ORDERING(mbcache-state): Acquire. Pairs with `step`: a thread that sees that the entry has
    // ended also sees the work of its last holders.
    State(words[STATE].load(Ordering::Acquire))
}

/// Returns the key and the value in a slot. They certainly belong to one entry if the caller has a
/// handle of that entry. Without a handle, the caller must check that afterwards: by a step (a
/// change of the state word) that succeeds, or by [`is_still`].
#[inline]
pub(crate) fn pair_of(words: &Words) -> (u64, u64) {
    // ORDERING: Relaxed. The caller finds out by the generation in the state whether the key and
    // the value belong together.
    (words[KEY].load(Ordering::Relaxed), words[VALUE].load(Ordering::Relaxed))
}

/// Returns true if the entry of `state` has not ended. Then the key and the value that the caller
/// has read from the slot since it loaded `state` belong to that entry.
#[inline]
pub(crate) fn is_still(words: &Words, state: State) -> bool {
    // ORDERING(mbcache-refill): Acquire fence. See `fill`.
    fence(Ordering::Acquire);
    // The caller may be a deleter, which frees the value if the entry has ended. Then it must see
    // the work of the last holder. The Acquire load in `state` provides that.
    state.is_same_entry(self::state(words))
}

/// Makes the slot the entry of `pair`. The slot is not live, and the caller has the lock of its
/// line (invariant S.1).
#[inline]
pub(crate) fn fill(words: &Words, pair: (u64, u64), _locked: &Locked<'_>) {
    let before = state(words);
    debug_assert!(!before.is_live(), "S.1");
    // ORDERING(mbcache-refill): Release fence. Pairs with the Acquire fences in `is_still` and in
    // searches. A reader that sees the key or the value that is stored below also sees that the
    // previous entry has ended.
    fence(Ordering::Release);
    // ORDERING: Relaxed. See above.
    words[KEY].store(pair.0, Ordering::Relaxed);
    words[VALUE].store(pair.1, Ordering::Relaxed);
    let live = (before.0 & GENERATION).wrapping_add(NEXT) | LIVE | REUSABLE;
    // ORDERING(mbcache-fill): Release. Pairs with the load in `state`: a reader that sees the slot
    // live also sees its key and value.
    words[STATE].store(live, Ordering::Release);
}

/// Ends the entry of `state`, unless it has a handle or `spare` protects it. If this call does not
/// end the entry, returns the current state of the slot as the error.
#[inline]
pub(crate) fn end(words: &Words, state: State, spare: Spare) -> Result<(), State> {
    let ended = change(words, state, |now| {
        let is_spared = spare == Spare::Referenced && now.is_referenced();
        let is_idle = now.is_same_entry(state) && now.count() == 0;
        (is_idle && !is_spared).then_some(now.0 & GENERATION)
    });
    ended.map(drop)
}

/// Takes a handle of the entry in a slot, if its key is `key` and a search may find it. Returns the
/// new state.
#[inline]
pub(crate) fn hold(words: &Words, key: u64) -> Option<State> {
    let seen = state(words);
    // ORDERING: Relaxed. If the step below succeeds, this key belongs to the same entry as the
    // state.
    if words[KEY].load(Ordering::Relaxed) != key {
        return None;
    }
    let held = change(words, seen, |now| {
        let is_it = now.is_same_entry(seen) && now.is_findable();
        is_it.then_some(now.0.wrapping_add(ONE))
    });
    held.ok()
}

/// Gives up a handle of the entry of `state`. If the handle is the last one, ends the entry if it
/// is not reusable, and otherwise clears its flag *awaited*.
#[inline]
pub(crate) fn put(words: &Words, state: State) -> Put {
    let mut put = Put { is_ended: false, wakes: false };
    let done = change(words, state, |now| {
        debug_assert!(now.count() > 0, "an entry is put that has no handle");
        let is_last = now.0 & COUNT == ONE;
        put.wakes = is_last && now.0 & AWAITED != 0;
        put.is_ended = is_last && now.0 & REUSABLE == 0;
        Some(match (is_last, put.is_ended) {
            (true, true) => now.0 & GENERATION,
            (true, false) => now.0.wrapping_sub(ONE) & !AWAITED,
            (false, _) => now.0.wrapping_sub(ONE),
        })
    });
    debug_assert!(done.is_ok(), "S.2");
    put
}

/// Sets the referenced bit of the entry of `state`. Stores nothing if the bit is set already.
#[inline]
pub(crate) fn touch(words: &Words, state: State) {
    if !state.is_referenced() {
        // If the entry has ended meanwhile, there is nothing to mark.
        let _ = change(words, state, |now| now.is_same_entry(state).then_some(now.0 | REFERENCED));
    }
}

/// Clears the referenced bit of the entry of `state`.
pub(crate) fn age(words: &Words, state: State) {
    // As in `touch`.
    let _ = change(words, state, |now| now.is_same_entry(state).then_some(now.0 & !REFERENCED));
}

/// Sets or clears the reusable flag of the entry of `state`, and returns the new state. Without
/// that flag the entry ends: at once if it has no handle, and otherwise with its last handle.
///
/// Returns `None` if the entry had ended before.
pub(crate) fn set_reusable(words: &Words, state: State, is_reusable: bool) -> Option<State> {
    let flagged = change(words, state, |now| {
        let next = match (is_reusable, now.count()) {
            (true, _) => now.0 | REUSABLE,
            (false, 0) => now.0 & GENERATION,
            (false, _) => now.0 & !REUSABLE,
        };
        now.is_same_entry(state).then_some(next)
    });
    flagged.ok()
}

/// Sets the flag *awaited*, so that the last handle of the entry of `state` wakes this thread.
/// Returns `None` if there is no handle, or the entry has ended.
pub(crate) fn await_unused(words: &Words, state: State) -> Option<State> {
    let awaited = change(words, state, |now| {
        (now.is_same_entry(state) && now.count() > 0).then_some(now.0 | AWAITED)
    });
    awaited.ok()
}

/// Sleeps until the last handle of the entry was given up. The caller has called [`await_unused`]
/// before. The sleep may also end early.
///
/// The thread waits until the flag *awaited* is cleared, and not for a count of 0. So handles that
/// are taken after the last one was given up do not prolong the wait.
pub(crate) fn sleep_while_awaited(words: &Words, awaited: State) {
    let mask = GENERATION | LIVE | AWAITED;
    corewalk_base::park::wait(&words[STATE], mask, awaited.0 & mask);
}

/// Wakes the threads that sleep in [`sleep_while_awaited`].
#[cold]
pub(crate) fn wake(words: &Words) {
    corewalk_base::park::wake_all(&words[STATE]);
}

/// Replaces the current state in one step by the result of `next`, which gets the current state,
/// and returns the new state. If `next` returns `None`, returns the current state as the error.
/// `seen` must come from an acquiring load, or from a step of the caller.
#[inline]
fn change(
    words: &Words,
    seen: State,
    mut next: impl FnMut(State) -> Option<u64>,
) -> Result<State, State> {
    let mut now = seen;
    loop {
        let new = next(now).ok_or(now)?;
        match step(words, now, new) {
            Ok(()) => return Ok(State(new)),
            Err(other) => now = other,
        }
    }
}

/// Replaces the state `seen` by `new`. If the current state is another one, returns that as the
/// error.
///
/// If the step succeeds, the key and the value that the caller has read since it loaded `seen`
/// belong to that state. The reason: the words of a later entry are stored only after this entry
/// has ended, and so after this step.
#[inline(always)]
fn step(words: &Words, seen: State, new: u64) -> Result<(), State> {
    // ORDERING(mbcache-state): AcqRel. Release: all work of a thread under its handle happens
    // before the step that ends the entry. Acquire: the thread that ends the entry sees this work.
    // A failed step is an Acquire load, as in `state`.
    words[STATE]
        .compare_exchange(seen.0, new, Ordering::AcqRel, Ordering::Acquire)
        .map(drop)
        .map_err(State)
}
