//! One slot of the index: the key, the value and the state word of an entry.
//!
//! All changes of a state are atomic steps on the whole word. So two flags cannot overwrite each
//! other (trap T33), and an entry with a handle cannot end (traps T34, T35). Any thread may read
//! any slot at any time, without a lock. That is right for these reasons:
//!
//! - *No torn pair.* Key and value are written only while the slot is not live, and each use of the
//!   slot has another generation. A reader loads the state, then the words. Then it loads the state
//!   again (`get`), or changes it in one step (`find`, a deletion). If the slot is live with the
//!   same generation both times, the words belong to that generation.
//! - *No mix of removal and reuse.* A step names the generation that the thread has read. If the
//!   entry has ended, the step fails, even if the slot has the same pair again.
//! - *Missed entries.* A search misses an entry only if the entry was not live during all of the
//!   search. Entries do not move, and the reach of a home covers its live entries (I.1 in `index`).
//!   `create` stores the reach before the entry is live. The reach is lowered under the lock of the
//!   home, past lines that have no live entry of this home, and entries come under that lock only.
//! - *Entries that are seen.* A `get` answers for the moment of its second load, a `find` for that
//!   of its step. A handle keeps the entry live from then on.
//! - *A miss by the last user.* A deleter frees the value after a miss, too. It has met a slot that
//!   is not live, words of a later entry in it, or a lower reach. An acquire fence follows each
//!   miss. So the deleter sees the work of each former holder, which the end of the entry released.
//!   If the entry ends between the search and the step of the deleter, that is a miss, too. The
//!   failed step loads the state with Acquire. The deleter does not search again.
//! - *Bound.* A search looks at the lines within the reach that it read at its start, at most 128.
//!   It never begins anew. A step is tried again only if another thread has changed the same entry.
//!
//! The generation has 42 bits. A reader would have to sleep between two loads while one slot is
//! used 2^42 times, which takes two days at 50 ns each (trap T32).
//!
//! # Invariants
//! - S.1: a slot that is not live is changed under the lock of its line only.
//! - S.2: handles and the flag *awaited* need a live slot. A live slot with handles stays live.
//! - S.3: two uses of a slot have two generations.
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
/// | 1 | referenced: used since reclaim came by | set by `touch`, cleared by `age` |
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
    /// Entries with handles, and entries that were used lately.
    Referenced,
}

/// The state before and after the step of a [`put`].
pub(crate) struct Put {
    pub(crate) is_ended: bool,
    /// A thread sleeps until the entry has no handle, and this was the last one.
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

    /// Returns true if both are states of one entry, and it is live.
    #[inline]
    pub(crate) fn is_same_entry(self, other: State) -> bool {
        (self.0 ^ other.0) & (GENERATION | LIVE) == 0 && self.is_live()
    }

    /// Returns true if a find may take a handle: no thread waits until there is none.
    #[inline]
    fn is_findable(self) -> bool {
        let flags = self.0 & (LIVE | REUSABLE | AWAITED);
        flags == LIVE | REUSABLE && self.0 & COUNT != COUNT
    }
}

/// Returns the state, and sees what the threads did that changed it.
#[inline]
pub(crate) fn state(words: &Words) -> State {
    // ORDERING(mbcache-fill): Acquire. See `fill`.
    // ORDERING(mbcache-state): Acquire. See `step`: a slot that is not live any more shows the work
    // of its last holders.
    State(words[STATE].load(Ordering::Acquire))
}

/// Returns the key and the value. They are those of an entry that is held, or of which a later step
/// or [`is_still`] proves that it has not ended.
#[inline]
pub(crate) fn pair_of(words: &Words) -> (u64, u64) {
    // ORDERING: Relaxed. The generation tells whether the two belong together.
    (words[KEY].load(Ordering::Relaxed), words[VALUE].load(Ordering::Relaxed))
}

/// Returns true if the entry of `state` has not ended, after its words were read.
#[inline]
pub(crate) fn is_still(words: &Words, state: State) -> bool {
    // ORDERING(mbcache-refill): Acquire fence. See `fill`.
    fence(Ordering::Acquire);
    // A deleter that finds the entry ended here frees the value, so it has to see the work of the
    // last holder.
    state.is_same_entry(self::state(words))
}

/// Makes a slot that is not live the entry of `pair`, under the lock of its line (S.1).
#[inline]
pub(crate) fn fill(words: &Words, pair: (u64, u64), _locked: &Locked<'_>) {
    let before = state(words);
    debug_assert!(!before.is_live(), "S.1");
    // ORDERING(mbcache-refill): Release fence. A reader that sees a word stored below also sees
    // that the entry before has ended.
    fence(Ordering::Release);
    // ORDERING: Relaxed. See above.
    words[KEY].store(pair.0, Ordering::Relaxed);
    words[VALUE].store(pair.1, Ordering::Relaxed);
    let live = (before.0 & GENERATION).wrapping_add(NEXT) | LIVE | REUSABLE;
    // ORDERING(mbcache-fill): Release. A reader that sees the slot live sees its words.
    words[STATE].store(live, Ordering::Release);
}

/// Ends the entry of `state`, unless it has a handle or `spare` saves it. If the entry stays, or
/// has ended before, `Err` has the state that shows this.
#[inline]
pub(crate) fn end(words: &Words, state: State, spare: Spare) -> Result<(), State> {
    let ended = change(words, state, |now| {
        let is_spared = spare == Spare::Referenced && now.is_referenced();
        let is_idle = now.is_same_entry(state) && now.count() == 0;
        (is_idle && !is_spared).then_some(now.0 & GENERATION)
    });
    ended.map(drop)
}

/// Takes a handle of the entry of `state`, if it is `key`'s and may be found; returns the new
/// state.
#[inline]
pub(crate) fn hold(words: &Words, key: u64) -> Option<State> {
    let seen = state(words);
    // ORDERING: Relaxed. The step below proves that the key belongs to the state.
    if words[KEY].load(Ordering::Relaxed) != key {
        return None;
    }
    let held = change(words, seen, |now| {
        let is_it = now.is_same_entry(seen) && now.is_findable();
        is_it.then_some(now.0.wrapping_add(ONE))
    });
    held.ok()
}

/// Puts a handle of the entry whose state was `state`. The last handle ends an entry that is not
/// reusable, and else clears the flag *awaited*.
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

/// Sets the referenced bit of the entry of `state`; stores nothing if the bit is set.
#[inline]
pub(crate) fn touch(words: &Words, state: State) {
    if !state.is_referenced() {
        // An entry that has ended meanwhile needs no mark.
        let _ = change(words, state, |now| now.is_same_entry(state).then_some(now.0 | REFERENCED));
    }
}

/// Clears the referenced bit of the entry of `state`.
pub(crate) fn age(words: &Words, state: State) {
    // As in `touch`.
    let _ = change(words, state, |now| now.is_same_entry(state).then_some(now.0 & !REFERENCED));
}

/// Sets or clears the reusable flag of the entry of `state`, and returns the new state. An entry
/// that is not reusable ends at once, or with its last handle.
///
/// `None`: the entry has ended before.
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

/// Asks the last handle of the entry of `state` to wake this thread; `None` if there is no handle,
/// or the entry has ended.
pub(crate) fn await_unused(words: &Words, state: State) -> Option<State> {
    let awaited = change(words, state, |now| {
        (now.is_same_entry(state) && now.count() > 0).then_some(now.0 | AWAITED)
    });
    awaited.ok()
}

/// Sleeps until the last handle was put, after [`await_unused`]; may also return early.
///
/// The thread waits for the flag, not for the count. So it does not wait for handles that were
/// taken after the last one was put.
pub(crate) fn sleep_while_awaited(words: &Words, awaited: State) {
    let mask = GENERATION | LIVE | AWAITED;
    corewalk_base::park::wait(&words[STATE], mask, awaited.0 & mask);
}

/// Wakes the threads that sleep in [`sleep_while_awaited`].
#[cold]
pub(crate) fn wake(words: &Words) {
    corewalk_base::park::wake_all(&words[STATE]);
}

/// Replaces the state by `next` of it in one step, and returns the new state. `Err` has the state
/// that `next` refuses. `seen` comes from an acquiring load, or from a step of the caller.
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

/// Replaces the state `seen` by `new`; if the state is another one by now, returns that.
///
/// Words that were read since `seen` was loaded belong to that state if this succeeds. A later
/// entry's words are stored after the end of this entry, which comes after this step.
#[inline(always)]
fn step(words: &Words, seen: State, new: u64) -> Result<(), State> {
    // ORDERING(mbcache-state): AcqRel. Release: the work under a handle happens before the step
    // that ends the entry. Acquire: the other side of that. On failure as for the load in `state`.
    words[STATE]
        .compare_exchange(seen.0, new, Ordering::AcqRel, Ordering::Acquire)
        .map(drop)
        .map_err(State)
}
