//! One slot of the index: the key, the value and the state word of an entry.
//!
//! Every change of the state word is one atomic step on the whole word. So two changes of different
//! flags cannot overwrite each other (trap T33 in `traps.md`). An entry with a handle cannot be
//! removed (traps T34 and T35). Any thread may read any slot at any time, without a lock.
//!
//! - *No torn pair.* Key and value are written only while the slot has no live entry, and each new
//!   entry gets a new generation. A reader loads the state, then the key and the value. Then it
//!   loads the state again (`get`), or changes it by a compare-exchange (`find`, a deletion). If
//!   the state was live both times, with one generation, key and value belong together.
//! - *Removal and reuse.* A compare-exchange fails if the slot no longer has the generation that
//!   the thread has read, even if it has the same pair again.
//! - *Missed entries.* A search misses an entry only if the entry was not live at some moment of
//!   the search. Entries do not move. A search begins at the home line, which the key's hash
//!   selects, and reads as many lines after it as the home line's *reach* says. `create` raises the
//!   reach before the entry is live. The reach is lowered only if no live entry of this home is
//!   beyond it. Both happen under the home line's lock.
//! - *Found entries.* The result of a `get` is true at its second load of the state. The result of
//!   a `find` is true when it takes the handle, which keeps the entry live.
//! - *A miss by the last user.* The last user of a value deletes its entry and frees the value. If
//!   its search misses the entry, another thread has removed it. An acquire fence follows each
//!   miss, and pairs with the release of that removal. So the last user sees the writes of all
//!   threads that had handles. If the entry is removed after the search, the last user's
//!   compare-exchange fails, and that is an Acquire load.
//! - *Bound.* A search loads the reach once, reads at most 128 lines, and never restarts. A thread
//!   repeats a compare-exchange only if another thread has changed the same entry.
//!
//! The generation has 42 bits. A reader mistakes one entry for another only if the slot is used
//! 2^42 times between two of its loads. At 50 ns each, that takes two days (trap T32 in
//! `traps.md`).
//!
//! # Invariants
//! - S.1: a slot without a live entry is changed only under the lock of the slot's line.
//! - S.2: an entry with handles stays live. Only a live entry has the flag *awaited*: a thread
//!   sleeps until the last handle is dropped.
//! - S.3: successive entries of a slot have different generations.
//!
//! Source: `SLAB_TYPESAFE_BY_RCU` in Linux `include/linux/slab.h`; `struct mb_cache_entry`.

use corewalk_base::primitives::atomic::{AtomicU64, Ordering, fence};

use crate::index::Locked;

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
pub(crate) const NEXT: u64 = 1 << 22;
pub(crate) const GENERATION: u64 = !(NEXT - 1);
pub(crate) const COUNT: u64 = !GENERATION & !(ONE - 1);

pub(crate) type Words = [AtomicU64; WORDS];

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

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Spare {
    Held,
    Referenced,
}

/// The result of [`put`]: whether the entry has ended, and whether the caller must wake waiting
/// threads.
pub(crate) struct Put {
    pub(crate) is_ended: bool,
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

    /// Returns true if both states belong to the same entry: both are live and have the same
    /// generation.
    #[inline]
    pub(crate) fn is_same_entry(self, other: State) -> bool {
        (self.0 ^ other.0) & (GENERATION | LIVE) == 0 && self.is_live()
    }

    /// Returns true if a search may take a handle of the entry. Searches skip full values, and
    /// entries for whose last handle a thread waits.
    #[inline]
    fn is_findable(self) -> bool {
        let flags = self.0 & (LIVE | REUSABLE | AWAITED);
        flags == LIVE | REUSABLE && self.0 & COUNT != COUNT
    }
}

/// Loads the state word. The caller then sees the writes that other threads made before they
/// changed the state word.
#[inline]
pub(crate) fn state(words: &Words) -> State {
    // ORDERING(mbcache-fill): Acquire, for the Release store in `fill`. A thread that loads a live
    // state also sees the entry's key and value.
    // ORDERING(mbcache-state): Acquire, for the compare-exchange in `step`. A thread that sees a
    // removal also sees the writes of all threads that had handles.
    State(words[STATE].load(Ordering::Acquire))
}

/// Loads the key and the value. If the caller has no handle of the entry, another thread may reuse
/// the slot between the two loads. So the caller must afterwards call [`is_still`], or change the
/// state word by a compare-exchange.
#[inline]
pub(crate) fn pair_of(words: &Words) -> (u64, u64) {
    // ORDERING: Relaxed. The caller checks the generation in the state word afterwards, by an
    // ordered operation.
    (words[KEY].load(Ordering::Relaxed), words[VALUE].load(Ordering::Relaxed))
}

/// Returns true if the slot still has the entry that it had in `state`. The key and the value that
/// the caller has read since then belong to that entry.
#[inline]
pub(crate) fn is_still(words: &Words, state: State) -> bool {
    // ORDERING(mbcache-refill): Acquire fence, for the Release fence in `fill`. Without it, a new
    // key could be read together with the old generation.
    fence(Ordering::Acquire);
    // If the result is false, the caller misses the entry and may free its value. So it must first
    // see all writes of threads that had handles. The Acquire load in `state` provides that.
    state.is_same_entry(self::state(words))
}

/// Stores a new entry in the slot. For invariant S.1, the caller holds the lock of the slot's line.
#[inline]
pub(crate) fn fill(words: &Words, pair: (u64, u64), _locked: &Locked<'_>) {
    let before = state(words);
    debug_assert!(!before.is_live(), "S.1");
    // ORDERING(mbcache-refill): Release fence, for the Acquire fences in `is_still` and in
    // searches. A reader that sees the new key or value also sees that the previous entry was
    // removed.
    fence(Ordering::Release);
    // ORDERING: Relaxed. The fence above and the store of the state below order both stores.
    words[KEY].store(pair.0, Ordering::Relaxed);
    words[VALUE].store(pair.1, Ordering::Relaxed);
    let live = (before.0 & GENERATION).wrapping_add(NEXT) | LIVE | REUSABLE;
    // ORDERING(mbcache-fill): Release, for the Acquire load in `state`. A reader that sees the slot
    // live also sees its key and value.
    words[STATE].store(live, Ordering::Release);
}

/// Removes an entry, unless a thread has a handle of it. `Spare::Referenced` also spares an entry
/// that was used recently. The error is the current state.
#[inline]
pub(crate) fn end(words: &Words, state: State, spare: Spare) -> Result<(), State> {
    let ended = change(words, state, |now| {
        let is_spared = spare == Spare::Referenced && now.is_referenced();
        let is_idle = now.is_same_entry(state) && now.count() == 0;
        (is_idle && !is_spared).then_some(now.0 & GENERATION)
    });
    ended.map(drop)
}

/// Takes a handle. Returns `None` if the slot has another key, or an entry that searches must skip.
#[inline]
pub(crate) fn hold(words: &Words, key: u64) -> Option<State> {
    let seen = state(words);
    // ORDERING: Relaxed. The compare-exchange below fails if the slot was reused after `seen` was
    // loaded.
    if words[KEY].load(Ordering::Relaxed) != key {
        return None;
    }
    let held = change(words, seen, |now| {
        let is_it = now.is_same_entry(seen) && now.is_findable();
        is_it.then_some(now.0.wrapping_add(ONE))
    });
    held.ok()
}

/// Drops a handle of an entry. The drop of the last handle removes the entry of a full value, and
/// otherwise clears the flag *awaited*. In both cases the caller wakes the threads that wait until
/// the entry has no handle.
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

/// Sets the referenced bit. If it is set already, stores nothing: a store would take the cache line
/// away from other processors.
#[inline]
pub(crate) fn touch(words: &Words, state: State) {
    if !state.is_referenced() {
        // A removed entry needs no mark.
        let _ = change(words, state, |now| now.is_same_entry(state).then_some(now.0 | REFERENCED));
    }
}

/// Clears the referenced bit.
pub(crate) fn age(words: &Words, state: State) {
    // A removed entry needs no change.
    let _ = change(words, state, |now| now.is_same_entry(state).then_some(now.0 & !REFERENCED));
}

/// Sets or clears the flag *reusable*. Without the flag, an entry ends with its last handle, or
/// immediately if it has none. Returns `None` if the entry had ended before.
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

/// Makes the drop of the last handle wake the caller. Returns `None` if the entry has ended or has
/// no handle.
pub(crate) fn await_unused(words: &Words, state: State) -> Option<State> {
    let awaited = change(words, state, |now| {
        (now.is_same_entry(state) && now.count() > 0).then_some(now.0 | AWAITED)
    });
    awaited.ok()
}

/// Sleeps until the last handle is dropped. May return early.
///
/// A thread sleeps until the drop of the last handle clears the flag *awaited*. So a handle that is
/// taken later does not prolong the sleep.
pub(crate) fn sleep_while_awaited(words: &Words, awaited: State) {
    let mask = GENERATION | LIVE | AWAITED;
    corewalk_base::park::wait(&words[STATE], mask, awaited.0 & mask);
}

#[cold]
pub(crate) fn wake(words: &Words) {
    corewalk_base::park::wake_all(&words[STATE]);
}

/// Replaces the state word by the result of `next`, in one atomic step. If `next` returns `None`,
/// nothing is stored, and the error is the current state.
///
/// `seen` comes from an Acquire load, or from an earlier successful change by the caller.
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

/// Replaces the state word `seen` by `new`. Success proves that the slot has had the same entry
/// since `seen` was loaded. So a key and a value that were read since then belong to that entry.
#[inline(always)]
fn step(words: &Words, seen: State, new: u64) -> Result<(), State> {
    // ORDERING(mbcache-state): AcqRel. Release: what a thread did with a handle happens before
    // another thread removes the entry. Acquire: the removing thread sees it, and may free the
    // value. A failure is an Acquire load for the same reason.
    words[STATE]
        .compare_exchange(seen.0, new, Ordering::AcqRel, Ordering::Acquire)
        .map(drop)
        .map_err(State)
}
