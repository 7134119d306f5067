//! One entry: three words of a line, in memory that is never unmapped while the cache lives.
//!
//! ```text
//! word 0  key
//! word 1  value
//! word 2  state: flags, count of handles, generation
//! ```
//!
//! A reader may look at any slot at any time. What it read belongs together if the slot was live before
//! and after, with one generation: it is not live while its words are written, and has another
//! generation afterwards. A generation is the stamp of the bucket at the creation (see `index`), which
//! grows with each, so that it also says which of two entries is older. It has 42 bits: a reader would
//! have to sleep between two of its loads while the bucket is filled 2^42 times, which takes two days at
//! 50 ns each (trap T32).
//!
//! A reader that is about to change the state need not look a second time: if its step begins with the state
//! that it saw, the slot is still what it was.
//!
//! All changes of a living entry's state are single atomic steps on the whole word, so that no two
//! flags can lose each other (trap T33), a handle is taken only of the entry that was found, and an
//! entry ends only without handles. One whose value may have no more users ends with its last handle, in a
//! step of its own after the put: whoever says in between that there is room again keeps it.
//!
//! # Invariants
//! - S.1: a slot is live from when it is filled, under its bucket's lock, until it is ended, by anybody
//!   in one step. Handles, and the flag "awaited", need a live slot.
//! - S.2: a slot that is not live is changed under its bucket's lock only.
//! - S.3: two contents of a slot have two generations, unless they are one entry that went and came back.
//!
//! Source: `SLAB_TYPESAFE_BY_RCU` in Linux `include/linux/slab.h`; `struct mb_cache_entry`.

use corewalk_base::primitives::atomic::{AtomicU64, Ordering, fence};

/// Words of a slot.
pub(crate) const WORDS: usize = 3;
pub(crate) const KEY: usize = 0;
pub(crate) const VALUE: usize = 1;
pub(crate) const STATE: usize = 2;

const LIVE: u64 = 1 << 0;
const REFERENCED: u64 = 1 << 1;
pub(crate) const REUSABLE: u64 = 1 << 2;
const AWAITED: u64 = 1 << 3;
const COUNT_SHIFT: u32 = 4;
const ONE: u64 = 1 << COUNT_SHIFT;
const GENERATION_SHIFT: u32 = 22;
/// One generation.
pub(crate) const AGE: u64 = 1 << GENERATION_SHIFT;
pub(crate) const GENERATION: u64 = !(AGE - 1);
pub(crate) const COUNT: u64 = !GENERATION & !(ONE - 1);

/// A state word.
///
/// | bits | meaning | who changes it |
/// |---|---|---|
/// | 0 | live | who fills it, under the bucket's lock; who ends it |
/// | 1 | referenced: used since the hand came by | anybody sets, the hand clears |
/// | 2 | reusable: may have more users; without it and without handles an entry ends | the caller |
/// | 3 | awaited: somebody waits until the count is 0 | a waiter sets while it is not, who puts the last handle clears |
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

    #[inline]
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

    /// Returns how much later than this entry's stamp `header` is, in units of the word. Right for
    /// entries of which fewer than 2^41 were created in between.
    #[inline]
    pub(crate) fn age(self, header: u64) -> i64 {
        // The generation stands in the upper bits, so the sign is that of the distance.
        (header & GENERATION).wrapping_sub(self.0 & GENERATION) as i64
    }
}

/// The words of one slot.
pub(crate) type Words = [AtomicU64; WORDS];

/// What became of a handle that was put.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Put {
    /// Nobody waits, or there are other handles. If the entry is full and has none it has ended.
    Quiet,
    /// It was the last one and somebody waits: wake them.
    LastAwaited,
}

/// Which entries are not to be ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Spare {
    /// Those that are held.
    Held,
    /// Those that are held, and those that were used lately.
    Referenced,
}

/// Returns 0 if the slot had this pair when its state was `state`, provided that it still [is](`is_still`)
/// the same entry.
#[inline(always)]
pub(crate) fn difference(words: &Words, state: State, pair: (u64, u64)) -> u64 {
    // ORDERING: Relaxed. The generation tells whether these belong together.
    let (key, value) = (words[KEY].load(Ordering::Relaxed), words[VALUE].load(Ordering::Relaxed));
    (key ^ pair.0) | (value ^ pair.1) | (!state.0 & LIVE)
}

/// Returns the age of an entry if it has this key, and a handle of it may be taken for somebody who looks
/// for values to share; else more than any age. As with `difference`, it may be torn.
#[inline(always)]
pub(crate) fn age_if(words: &Words, state: State, key: u64, header: u64) -> i64 {
    // ORDERING: Relaxed. The generation tells whether it belongs to the state.
    let other = words[KEY].load(Ordering::Relaxed) ^ key;
    let flags = (state.0 ^ (LIVE | REUSABLE)) & (LIVE | REUSABLE | AWAITED);
    let is_full = u64::from(state.0 & COUNT == COUNT);
    if other | flags | is_full == 0 { state.age(header) } else { i64::MAX }
}

/// Returns true if the entry that `state` is of has not ended, after its words were read.
#[inline(always)]
pub(crate) fn is_still(words: &Words, state: State) -> bool {
    // ORDERING(mbcache-refill): Acquire fence. See `store`.
    fence(Ordering::Acquire);
    // ORDERING: Relaxed. The fence orders it.
    state.is_same_entry(State(words[STATE].load(Ordering::Relaxed)))
}

/// Returns key and value of an entry that the caller holds, or whose bucket it has locked.
#[inline]
pub(crate) fn pair_of(words: &Words) -> (u64, u64) {
    // ORDERING: Relaxed. They do not change while there is a handle, or under the lock.
    (words[KEY].load(Ordering::Relaxed), words[VALUE].load(Ordering::Relaxed))
}

/// Returns the state of this moment, and what those who changed it had done.
#[inline]
pub(crate) fn state(words: &Words) -> State {
    // ORDERING(mbcache-fill): Acquire. See `store`; and `step`: a slot that is not live any more shows what
    // its last holders did to whoever does not find the entry.
    State(words[STATE].load(Ordering::Acquire))
}

/// Makes a slot that is not live an entry with the generation `stamp`. The caller has locked the bucket.
#[inline]
pub(crate) fn fill(words: &Words, pair: (u64, u64), stamp: u64) {
    store(words, pair, State((stamp & GENERATION) | LIVE | REUSABLE));
}

/// Makes `to`, which is not live, the entry that was `from`, if nobody holds that: it has the same
/// generation and flags. If it is full it ends instead. The caller has locked the bucket of both, and told
/// readers to look again.
pub(crate) fn relocate(from: &Words, to: &Words) -> bool {
    let mut was = State(0);
    let is_ended = change(from, |now| {
        was = now;
        (now.is_live() && now.count() == 0).then_some(now.0 & GENERATION)
    });
    if is_ended && was.is_reusable() {
        // Who put the last handle, and is about to clear that flag, looks for it at `from`.
        store(to, pair_of(from), State(was.0 & !AWAITED));
    }
    is_ended
}

#[inline]
fn store(words: &Words, pair: (u64, u64), state: State) {
    debug_assert!(!self::state(words).is_live(), "S.1");
    // ORDERING(mbcache-refill): Release fence. A reader that sees a word stored below also sees that
    // the entry which was here before has ended, or what came later.
    fence(Ordering::Release);
    // ORDERING: Relaxed. See above.
    words[KEY].store(pair.0, Ordering::Relaxed);
    words[VALUE].store(pair.1, Ordering::Relaxed);
    // ORDERING(mbcache-fill): Release. Who sees the entry live sees its words.
    words[STATE].store(state.0, Ordering::Release);
}

/// Ends the entry whose state was seen just now, if that has not changed since and nobody holds it.
#[inline(always)]
pub(crate) fn end_seen(words: &Words, state: State) -> bool {
    state.count() == 0 && step(words, state, state.0 & GENERATION).is_ok()
}

/// Ends the entry that `state` is of, if nobody holds it and `spare` does not save it.
pub(crate) fn end(words: &Words, state: State, spare: Spare) -> bool {
    change(words, |now| {
        let is_idle = now.is_same_entry(state) && now.count() == 0;
        let is_spared = spare == Spare::Referenced && now.is_referenced();
        (is_idle && !is_spared).then_some(now.0 & GENERATION)
    })
}

/// Takes a handle of the entry that `state` is of, which was seen just now, if it is still live, may be
/// found, and nobody waits until it has none: a stream of finders must not keep whoever deletes it waiting.
#[inline(always)]
pub(crate) fn hold_seen(words: &Words, state: State) -> bool {
    step(words, state, state.0.wrapping_add(ONE)).is_ok() || hold_again(words, state)
}

#[cold]
fn hold_again(words: &Words, state: State) -> bool {
    change(words, |now| one_more(now, state).filter(|_| now.is_reusable()))
}

/// As `hold_seen`, but the state may be from long ago, and the value need not be reusable.
#[inline]
pub(crate) fn hold(words: &Words, state: State) -> bool {
    // It says which entry is meant, no more.
    change(words, |now| one_more(now, state))
}

#[inline(always)]
fn one_more(now: State, state: State) -> Option<u64> {
    let is_free = now.0 & AWAITED == 0 && now.0 & COUNT != COUNT;
    (now.is_same_entry(state) && is_free).then_some(now.0.wrapping_add(ONE))
}

/// Puts a handle.
#[inline(always)]
pub(crate) fn put(words: &Words) -> Put {
    // ORDERING(mbcache-state): AcqRel. As in `change_from`.
    let before = State(words[STATE].fetch_sub(ONE, Ordering::AcqRel));
    debug_assert!(before.count() > 0, "mbcache entry put without a handle");
    let is_last = before.0 & COUNT == ONE;
    if is_last && before.0 & (AWAITED | REUSABLE) != REUSABLE {
        put_last(words, before)
    } else {
        Put::Quiet
    }
}

/// Lets handles be taken again of the entry that `before` is of, whose last one was put; or ends it, if it is
/// full.
///
/// If it has ended meanwhile, or moved, nobody waits for it under this slot.
#[cold]
fn put_last(words: &Words, before: State) -> Put {
    let _gone = change(words, |now| {
        let is_idle = now.is_same_entry(before) && now.count() == 0;
        is_idle.then_some(if now.is_reusable() { now.0 & !AWAITED } else { now.0 & GENERATION })
    });
    if before.0 & AWAITED == 0 { Put::Quiet } else { Put::LastAwaited }
}

/// Sets the referenced bit of the entry that `state` is of; false if that has ended. Stores nothing if
/// the bit is set.
#[inline]
pub(crate) fn touch(words: &Words, state: State) -> bool {
    let now = self::state(words);
    if now.is_same_entry(state) && now.is_referenced() {
        return true;
    }
    change_from(words, now, |now| now.is_same_entry(state).then_some(now.0 | REFERENCED))
}

/// Clears the referenced bit of the entry that `state` is of.
pub(crate) fn age(words: &Words, state: State) {
    let _gone = change(words, |now| now.is_same_entry(state).then_some(now.0 & !REFERENCED));
}

/// Sets the reusable flag; or clears it, or ends the entry if nobody holds it. False if the entry that
/// `state` is of had ended.
pub(crate) fn set_reusable(words: &Words, state: State, is_reusable: bool) -> bool {
    let now = self::state(words);
    if now.is_same_entry(state) && now.is_reusable() && is_reusable {
        return true;
    }
    change(words, |now| {
        now.is_same_entry(state).then_some(match (is_reusable, now.count()) {
            (true, _) => now.0 | REUSABLE,
            // Whoever may still find it looks at it for nothing.
            (false, 0) => now.0 & GENERATION,
            (false, _) => now.0 & !REUSABLE,
        })
    })
}

/// Asks the last handle to wake somebody; false if there is none, or the entry has ended.
pub(crate) fn await_unused(words: &Words, state: State) -> bool {
    change(words, |now| (now.is_same_entry(state) && now.count() > 0).then_some(now.0 | AWAITED))
}

/// Sleeps until the last handle of the entry that `state` is of was put, after [`await_unused`]; it may also
/// return early.
///
/// Who is woken does not look whether there are handles: those would be later ones.
pub(crate) fn sleep_while_awaited(words: &Words, state: State) {
    let awaited = (state.0 & GENERATION) | LIVE | AWAITED;
    corewalk_base::park::wait(&words[STATE], GENERATION | LIVE | AWAITED, awaited);
}

/// Wakes the threads that sleep until the slot's handles are put.
pub(crate) fn wake(words: &Words) {
    corewalk_base::park::wake_all(&words[STATE]);
}

/// Returns the state after the words were read.
#[inline]
pub(crate) fn state_after(words: &Words) -> State {
    // ORDERING(mbcache-refill): Acquire fence. See `store`.
    fence(Ordering::Acquire);
    state(words)
}

/// Replaces the state by `next` of it in one step; false if `next` refuses.
#[inline]
fn change(words: &Words, next: impl FnMut(State) -> Option<u64>) -> bool {
    // A refusal is an answer, too: who is told that an entry has no handles left goes on as its holders
    // left things. So the load acquires.
    change_from(words, state(words), next)
}

/// As `change`, for a caller that has just seen the state, in an acquiring load.
#[inline]
fn change_from(words: &Words, seen: State, mut next: impl FnMut(State) -> Option<u64>) -> bool {
    let mut now = seen;
    loop {
        let Some(new) = next(now) else { return false };
        match step(words, now, new) {
            Ok(()) => return true,
            Err(seen) => now = seen,
        }
    }
}

/// Replaces the state `seen`, of an acquiring load, by `new`; if it is another one by now, returns that.
///
/// Words that were read since the load belong to that state if this succeeds: had they been stored for a
/// later entry, then the end of this one, which comes after this step, would happen before that.
#[inline(always)]
fn step(words: &Words, seen: State, new: u64) -> Result<(), State> {
    // ORDERING(mbcache-state): AcqRel. Release: what was done under a handle happens before
    // who ends the entry after it was put. Acquire: the other side of that, and what the
    // setter of a flag had done before. On failure as for the load.
    words[STATE]
        .compare_exchange(seen.0, new, Ordering::AcqRel, Ordering::Acquire)
        .map(drop)
        .map_err(State)
}
