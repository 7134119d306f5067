//! The index: a hash table of cache lines with two slots each.
//!
//! ```text
//! word 0     lock of the line
//! word 1     reach of the home: the largest distance of its entries, in lines
//! words 2..5 a slot
//! words 5..8 another slot
//! ```
//!
//! A *line* is one cache line. The hash of a key selects its *home*: the line where a search
//! begins. A new entry gets a free slot in its home, or in the first later line that has one. An
//! entry never moves.
//!
//! The home stores its *reach*: the number of lines after the home that a search must read too. For
//! most lines it is 0. Once the last of these lines has no entry of this home, a `create` lowers
//! the reach by one. A search never restarts, and reads at most [`WINDOW`] lines. If all are full,
//! `create` drops an entry.
//!
//! # Load
//! Searches get long in a table that is nearly full. So a sharded counter counts the entries in a
//! sample of the lines: one line in [`SAMPLE_MAX`], or more in a small table. When three quarters
//! of the sampled slots are in use, `create` also runs reclaim, about four entries per created one.
//! Even and odd values prefer different slots, so both slots are counted.
//!
//! # Invariants
//! - I.1: a search for a key begins at its home line, and reads as many further lines as the
//!   *reach* in the home line says. All live entries of the key are in these lines. The reach
//!   changes only under the lock of the home line.
//! - I.2: at most one slot has a live entry of a pair (a key and a value). `create` holds the lock
//!   of the key's home line from its search for the pair until the new entry is live.
//!
//! # Locks
//! Each line has a lock, under which its slots are filled. `create` waits only for the lock of its
//! key's home line. While it holds that lock, it only tries the locks of other lines. So no thread
//! waits for a second lock. A lock is held for about 20 ns. A waiting thread spins, and then sleeps
//! for [`NAP`] at a time. It is never woken, so an unlock is a plain store.
//!
//! Source: the chunks with an overflow count of Facebook's F14; `include/linux/list_bl.h`.

use corewalk_base::primitives::atomic::{AtomicU64, Ordering, fence};
use corewalk_base::primitives::{IS_MODEL, hint, thread};
use corewalk_base::{CachePadded, ShardedCounter};
use corewalk_sync::SlotArena;
use std::io;
use std::time::Duration;

use crate::hash::Secret;
use crate::order;
use crate::slots::{self, Spare, State, Words};

/// The most lines of a search.
const WINDOW: u32 = 128;
/// How often `create` repeats its search for a free slot if other threads have locked some of the
/// lines. After that it drops an entry and takes its slot.
const TRIES: u32 = 16;
/// Minimum number of lines in the sample for the estimate of the load. A smaller table counts all
/// lines.
const COUNTED: u32 = 512;
/// At least one line in so many is counted.
const SAMPLE_MAX: u32 = 64;
/// How often a thread spins for a lock, at about 10 ns each, before it sleeps.
const SPINS: u32 = if IS_MODEL { 0 } else { 64 };
/// How long a thread that waits for a lock sleeps at a time. If the holder is preempted, it runs
/// again only after some milliseconds.
#[cfg_attr(any(corewalk_loom, corewalk_shuttle), expect(dead_code, reason = "no time there"))]
const NAP: Duration = Duration::from_micros(50);

/// Slots of a line.
pub(crate) const SLOTS: u32 = 2;
/// Words of a line.
const LINE_WORDS: usize = 8;
/// Bytes of a line.
pub(crate) const LINE_BYTES: u64 = LINE_WORDS as u64 * 8;
pub(crate) const LOCK: usize = 0;
pub(crate) const REACH: usize = 1;
const ENTRIES: usize = 2;

/// The words of one line.
pub(crate) type Line = [AtomicU64; LINE_WORDS];

/// All lines of a cache.
pub(crate) struct Index {
    /// The lines of the index. Word 0 of a line is its lock, of which one bit is used. The lock
    /// protects the reach, the number of lines after it that searches read too. A slot is filled
    /// only under the lock of its line.
    lines: SlotArena<LINE_WORDS>,
    count: u32,
    secret: Secret,
    /// The slot that reclaim looks at next.
    hand: CachePadded<AtomicU64>,
    /// To estimate its load, the index counts the entries in every `sample`-th line. `sample` is a
    /// power of two.
    sample: u32,
    /// Entries in the lines that are counted.
    counted: ShardedCounter,
    /// Entries that were dropped.
    pub(crate) reclaimed: ShardedCounter,
}

/// A slot and its number.
#[derive(Clone, Copy)]
pub(crate) struct Slot<'a> {
    pub(crate) words: &'a Words,
    pub(crate) number: u32,
}

/// The answer of [`Index::look`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Look {
    /// The slot has no entry.
    Free,
    Stays,
    Dropped,
}

/// The reason why `enter_anywhere` has not entered a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// The pair is there.
    Exists,
    /// All entries of the window are held.
    Full,
    /// Another thread has locked a line that may have a free slot. The caller may try again.
    Locked,
}

/// The held lock of one line. A function that fills a slot of the line takes it as a proof of the
/// lock.
pub(crate) struct Locked<'a> {
    line: &'a Line,
    _order: Option<order::Held>,
}

impl Index {
    /// Returns `count` empty lines.
    pub(crate) fn new(count: u32, secret: Secret) -> io::Result<Index> {
        let lines = SlotArena::new("mbcache", count)?;
        lines.extend_to(count - 1);
        Ok(Index {
            lines,
            count,
            secret,
            hand: CachePadded::new(AtomicU64::new(0)),
            sample: (1 << (count / COUNTED).max(1).ilog2()).min(SAMPLE_MAX),
            counted: ShardedCounter::new(),
            reclaimed: ShardedCounter::new(),
        })
    }

    /// Returns the bytes of all lines.
    pub(crate) fn bytes(&self) -> u64 {
        u64::from(self.count) * LINE_BYTES
    }

    /// Returns the home of a key.
    #[inline(always)]
    pub(crate) fn home(&self, key: u64) -> u32 {
        (((self.secret.hash(key) >> 32) * u64::from(self.count)) >> 32) as u32
    }

    #[inline(always)]
    pub(crate) fn line(&self, line: u32) -> &Line {
        self.lines.get(line)
    }

    /// Returns the slot with this number. Line n of the index has the slots 2n and 2n + 1.
    #[inline(always)]
    pub(crate) fn slot(&self, number: u32) -> Slot<'_> {
        slot_in(self.line(number / SLOTS), number / SLOTS, number % SLOTS)
    }

    /// Returns all slots.
    pub(crate) fn all(&self) -> impl Iterator<Item = Slot<'_>> {
        (0..self.count * SLOTS).map(|number| self.slot(number))
    }

    /// Returns the entry of a pair, and its state.
    ///
    /// A value prefers one of the two slots of a line. A pair is usually in the preferred slot of
    /// the line where a search for its key begins.
    ///
    /// `look_up` tests the preferred slot first, with a branch of its own. The processor predicts
    /// this branch, and executes ahead while it waits for the cache line.
    #[inline(always)]
    pub(crate) fn look_up(&self, home: u32, pair: (u64, u64)) -> Option<(Slot<'_>, State)> {
        let [first, _] = self.both(home, pair.1);
        entry_in(first, pair).or_else(|| self.look_up_further(home, pair))
    }

    #[inline(never)]
    fn look_up_further(&self, home: u32, pair: (u64, u64)) -> Option<(Slot<'_>, State)> {
        let found = self.walk(home, self.reach(home), pair.1, |slot| entry_in(slot, pair));
        if found.is_none() {
            // ORDERING(mbcache-refill): Acquire fence. Pairs with the Release fence in `fill`. The
            // search may have missed the pair because its slot was reused, and the caller may then
            // free the value. With the fence, it first sees the writes of the last thread that had
            // a handle of the removed entry.
            fence(Ordering::Acquire);
        }
        found
    }

    /// Takes a handle of the first entry with the key `key`.
    #[inline(always)]
    pub(crate) fn find(&self, key: u64) -> Option<(Slot<'_>, State)> {
        let home = self.home(key);
        self.walk(home, self.reach(home), 0, |slot| hold(slot, key))
    }

    /// Takes a handle of the next entry with the key `key` behind slot number `after`. The caller
    /// has a handle of the entry in slot `after`, which has the same key.
    pub(crate) fn find_behind(&self, key: u64, after: u32) -> Option<(Slot<'_>, State)> {
        let (home, line) = (self.home(key), after / SLOTS);
        let distance = if line < home { line + self.count - home } else { line - home };
        if after.is_multiple_of(SLOTS)
            && let Some(found) = hold(self.slot(after + 1), key)
        {
            return Some(found);
        }
        let left = self.reach(home).checked_sub(u64::from(distance) + 1)?;
        self.walk(self.line_at(line, 1), left, 0, |slot| hold(slot, key))
    }

    /// Calls `probe` with the two slots of `line` and of the `further` lines after it, until it
    /// returns a result. In each line, the slot that `value` prefers comes first.
    #[inline(always)]
    pub(crate) fn walk<'a, R>(
        &'a self,
        mut line: u32,
        mut further: u64,
        value: u64,
        mut probe: impl FnMut(Slot<'a>) -> Option<R>,
    ) -> Option<R> {
        loop {
            let [first, second] = self.both(line, value);
            let found = probe(first).or_else(|| probe(second));
            if found.is_some() || further == 0 {
                return found;
            }
            (line, further) = (self.line_at(line, 1), further - 1);
        }
    }

    /// The fast path of `create`: stores a pair in the line `home`, where searches for its key
    /// begin. The caller has locked that line.
    ///
    /// The fast path uses only the slot that the value prefers, and returns its number. It returns
    /// `None` if that slot is in use, the other slot may have the pair, or searches also read later
    /// lines.
    #[inline]
    pub(crate) fn enter_at_home(
        &self,
        locked: &Locked<'_>,
        home: u32,
        pair: (u64, u64),
    ) -> Option<u32> {
        let [first, second] = both_in(locked.line, home, pair.1);
        let is_alone = reach_of(locked.line) == 0 && slots::pair_of(second.words) != pair;
        if is_live(first) || !is_alone {
            return None;
        }
        slots::fill(first.words, pair, locked);
        Some(first.number)
    }

    /// Stores a pair, and returns the number of its slot. The caller has locked the line `home`,
    /// where searches for the key begin. `tries` says how often this function has already failed
    /// for the pair.
    ///
    /// A search for the key reads the line `home` and some lines after it. Their number is the
    /// *reach*.
    ///
    /// One pass over the lines that a search reads finds out three facts: whether the pair exists,
    /// where the first free slot is, and whether the last line has an entry of this home. If it has
    /// none, the reach may be lowered.
    pub(crate) fn enter_anywhere(
        &self,
        locked: &Locked<'_>,
        home: u32,
        pair: (u64, u64),
        tries: u32,
    ) -> Result<u32, Refused> {
        let reach = self.reach(home);
        let (mut line, mut free, mut is_needed) = (home, None, false);
        for distance in 0..=reach {
            for slot in self.both(line, pair.1) {
                let state = slots::state(slot.words);
                if !state.is_live() {
                    free = free.or(Some((distance, slot)));
                    continue;
                }
                let words = slots::pair_of(slot.words);
                if words == pair && slots::is_still(slot.words, state) {
                    return Err(Refused::Exists);
                }
                // The reach (the number of lines after `home` that a search reads) may be lowered
                // only if the last line that a search from `home` reads has no entry of this home.
                //
                // `is_ours` never misses an entry of this home: only a thread with the lock of
                // `home` can create one, and the caller has that lock. If another thread reuses the
                // slot during the check, `is_ours` may be wrongly true. Then the reach only stays
                // too high.
                let is_ours = || words.0 == pair.0 || self.home(words.0) == home;
                is_needed |= distance == reach && is_ours();
            }
            line = self.line_at(line, 1);
        }
        if !is_needed && free.is_some_and(|(distance, _)| distance < reach) {
            self.trim(home, reach - 1);
        }
        match free {
            Some((0, slot)) => {
                slots::fill(slot.words, pair, locked);
                Ok(slot.number)
            }
            Some((from, _)) => self.enter_elsewhere(locked, home, pair, from, tries),
            None => self.enter_elsewhere(locked, home, pair, reach + 1, tries),
        }
    }

    /// Stores a pair that is not in the cache yet. `home` is the line where searches for its key
    /// begin. The first `from` lines have no free slot.
    ///
    /// A new entry may be in the line `home` or in one of the [`WINDOW`] - 1 lines after it. Up to
    /// three passes go over these lines:
    /// 1. The first pass looks for a free slot.
    /// 2. The second may drop an entry that was not used recently.
    /// 3. The third may drop any entry without a handle.
    ///
    /// If a pass has found no slot, and has skipped a line that another thread has locked, the
    /// function returns [`Refused::Locked`], and the caller tries again. After [`TRIES`] tries, the
    /// next pass begins instead.
    fn enter_elsewhere(
        &self,
        locked: &Locked<'_>,
        home: u32,
        pair: (u64, u64),
        from: u64,
        tries: u32,
    ) -> Result<u32, Refused> {
        let mut is_locked = false;
        for spare in [None, Some(Spare::Referenced), Some(Spare::Held)] {
            let first = if spare.is_none() { from } else { 0 };
            for distance in first..u64::from(WINDOW.min(self.count)) {
                let line = self.line_at(home, distance as u32);
                // Skip a line without a free slot before taking its lock.
                if spare.is_none() && self.both(line, 0).iter().all(|slot| is_live(*slot)) {
                    continue;
                }
                let other = (line != home).then(|| self.try_lock(line));
                let lock = match &other {
                    None => Some(locked),
                    Some(other) => other.as_ref(),
                };
                is_locked |= lock.is_none();
                if let Some(lock) = lock
                    && let Some(slot) = self.free_in(line, pair.1, spare)
                {
                    if distance > self.reach(home) {
                        // ORDERING(mbcache-reach): Release. See `reach`.
                        self.line(home)[REACH].store(distance, Ordering::Release);
                    }
                    slots::fill(slot.words, pair, lock);
                    return Ok(slot.number);
                }
            }
            if is_locked && tries < TRIES {
                return Err(Refused::Locked);
            }
        }
        Err(Refused::Full)
    }

    /// Lowers the reach of a home line, the number of lines after it that a search reads. The
    /// caller has locked the home line, and has checked that the last line has no entry of this
    /// home.
    fn trim(&self, home: u32, reach: u64) {
        // ORDERING(mbcache-refill): Acquire fence. Pairs with the Release fence in `fill`. The slot
        // may have been reused, so that the caller has read the words of its new entry. With the
        // fence, the caller sees the writes of all threads that had a handle of the slot's previous
        // entry.
        fence(Ordering::Acquire);
        // ORDERING(mbcache-reach): Release. Pairs with the load in `reach_of`. A search with the
        // lower reach may miss an entry that was removed from the last line, and then free its
        // value. So it must see the writes of the last thread that had a handle of that entry.
        self.line(home)[REACH].store(reach, Ordering::Release);
    }

    /// Returns the reach of a home line: the number of lines after it that a search reads too.
    #[inline(always)]
    pub(crate) fn reach(&self, home: u32) -> u64 {
        reach_of(self.line(home))
    }

    /// Returns a free slot of one line, if there is one. If `spare` is given, first tries to drop
    /// the entry of each slot. `spare` tells which entries must stay: those with a handle, or also
    /// the recently used ones.
    fn free_in(&self, line: u32, value: u64, spare: Option<Spare>) -> Option<Slot<'_>> {
        self.both(line, value).into_iter().find(|slot| {
            match spare {
                None => {}
                Some(Spare::Referenced) => {
                    self.look(*slot);
                }
                Some(Spare::Held) => {
                    let state = slots::state(slot.words);
                    if state.is_live() && self.end(*slot, state, Spare::Held).is_ok() {
                        self.reclaimed.add(1);
                    }
                }
            }
            !is_live(*slot)
        })
    }

    /// Returns the two slots of a line. The slot that `value` prefers comes first.
    #[inline(always)]
    fn both(&self, line: u32, value: u64) -> [Slot<'_>; 2] {
        both_in(self.line(line), line, value)
    }

    /// Removes the entry of a slot like [`slots::end`], and updates the estimate of the load.
    #[inline]
    pub(crate) fn end(&self, slot: Slot<'_>, state: State, spare: Spare) -> Result<(), State> {
        slots::end(slot.words, state, spare)?;
        self.note_ended(slot.number);
        Ok(())
    }

    /// Updates the estimate of how full the table is, after an entry was created in slot `number`.
    /// Drops some entries if it is too full. The caller holds no lock.
    #[inline]
    pub(crate) fn note_entered(&self, number: u32) {
        if self.is_counted(number) {
            self.count_entered(number / SLOTS);
        }
    }

    #[cold]
    fn count_entered(&self, line: u32) {
        self.counted.add(1);
        // The sum of a sharded counter reads a cache line per shard. So it is computed only for new
        // entries in every `rare`-th line.
        let rare = 4 * self.sample;
        let bound = i64::from(self.count * SLOTS / self.sample) * 3 / 4;
        if line & (rare - 1) == 0 && self.counted.sum() > bound {
            self.scan(4 * u64::from(rare));
        }
    }

    /// Updates the estimate of how full the index is, after the entry in slot `number` was removed.
    #[inline]
    pub(crate) fn note_ended(&self, number: u32) {
        if self.is_counted(number) {
            self.count_ended();
        }
    }

    #[cold]
    fn count_ended(&self) {
        self.counted.add(-1);
    }

    #[inline]
    fn is_counted(&self, number: u32) -> bool {
        (number / SLOTS) & (self.sample - 1) == 0
    }

    /// Examines `entries` entries, and drops those without a handle that were not used since the
    /// last examination. Returns how many it has dropped.
    pub(crate) fn scan(&self, entries: u64) -> u64 {
        let (mut looked, mut dropped) = (0, 0);
        let slots = u64::from(self.count * SLOTS);
        for _ in 0..slots {
            if looked >= entries {
                break;
            }
            // ORDERING: Relaxed. The position `hand` orders no data.
            let at = self.hand.fetch_add(1, Ordering::Relaxed) % slots;
            let look = self.look(self.slot(at as u32));
            looked += u64::from(look != Look::Free);
            dropped += u64::from(look == Look::Dropped);
        }
        dropped
    }

    /// Drops the entry of a slot, unless it has a handle or its referenced bit is set. Clears that
    /// bit, so that the next call may drop the entry.
    fn look(&self, slot: Slot<'_>) -> Look {
        let state = slots::state(slot.words);
        if !state.is_live() {
            return Look::Free;
        }
        if state.is_referenced() {
            slots::age(slot.words, state);
            return Look::Stays;
        }
        if self.end(slot, state, Spare::Referenced).is_err() {
            return Look::Stays;
        }
        self.reclaimed.add(1);
        Look::Dropped
    }

    /// Locks the home of a key.
    #[inline]
    pub(crate) fn lock(&self, home: u32) -> Locked<'_> {
        let _order = Some(order::enter());
        let line = self.line(home);
        if !try_lock(line) {
            lock_slow(line);
        }
        Locked { line, _order }
    }

    /// Tries to take the lock of `line`, and does not wait for it. The caller already has the lock
    /// of the line where searches for its key begin, and a wait for a second lock could deadlock.
    fn try_lock(&self, line: u32) -> Option<Locked<'_>> {
        let line = self.line(line);
        try_lock(line).then(|| Locked { line, _order: None })
    }

    /// Returns the number of the line that is `further` lines after `line`. Line 0 follows the last
    /// line.
    #[inline(always)]
    fn line_at(&self, line: u32, further: u32) -> u32 {
        let at = line + further;
        if at < self.count { at } else { at - self.count }
    }
}

impl Drop for Locked<'_> {
    #[inline]
    fn drop(&mut self) {
        // ORDERING(mbcache-lock): Release. Pairs with the Acquire in `try_lock`: the next thread
        // with the lock sees the changes made under it.
        self.line[LOCK].store(0, Ordering::Release);
    }
}

/// Returns the reach of the line `home`: the number of lines after it that a search reads too.
#[inline(always)]
fn reach_of(home: &Line) -> u64 {
    // ORDERING(mbcache-reach): Acquire. See `trim`.
    home[REACH].load(Ordering::Acquire)
}

#[inline(always)]
fn both_in(words: &Line, line: u32, value: u64) -> [Slot<'_>; 2] {
    [0, 1].map(|nth| slot_in(words, line, nth ^ preferred(value)))
}

/// Returns a slot of a line.
#[inline(always)]
fn slot_in(words: &Line, line: u32, nth: u32) -> Slot<'_> {
    let (entries, _) = words[ENTRIES..].as_chunks();
    Slot { words: &entries[(nth % SLOTS) as usize], number: SLOTS * line + nth }
}

#[inline(always)]
fn is_live(slot: Slot<'_>) -> bool {
    slots::state(slot.words).is_live()
}

/// Takes a handle of the entry in `slot` if the entry's key is `key`.
#[inline(always)]
fn hold(slot: Slot<'_>, key: u64) -> Option<(Slot<'_>, State)> {
    Some((slot, slots::hold(slot.words, key)?))
}

/// Returns `slot` and its state if it has the entry of `pair`.
#[inline(always)]
fn entry_in(slot: Slot<'_>, pair: (u64, u64)) -> Option<(Slot<'_>, State)> {
    let state = slots::state(slot.words);
    let (key, value) = slots::pair_of(slot.words);
    let is_it = value == pair.1 && key == pair.0 && state.is_live();
    // The entry may have been removed after `state` was loaded.
    (is_it && slots::is_still(slot.words, state)).then_some((slot, state))
}

/// Returns which slot of a line `value` prefers: 0 or 1. A new entry gets its preferred slot if
/// both slots are free.
///
/// Even values prefer the first slot, and odd values the second. A value is the place of a blob,
/// and places are often consecutive numbers. So of two values of one key, each usually gets its
/// preferred slot.
///
/// `get` looks in the preferred slot first, where the processor predicts a hit.
#[inline(always)]
fn preferred(value: u64) -> u32 {
    value as u32 % SLOTS
}

#[inline(always)]
fn try_lock(line: &Line) -> bool {
    // ORDERING(mbcache-lock): Acquire. See `Locked::drop`.
    line[LOCK].compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_ok()
}

#[cold]
fn lock_slow(line: &Line) {
    let mut spins = 0;
    while !try_lock(line) {
        if spins < SPINS {
            spins += 1;
            hint::spin_loop();
        } else {
            nap();
        }
    }
}

fn nap() {
    // A model checker knows no time.
    #[cfg(not(any(corewalk_loom, corewalk_shuttle)))]
    thread::sleep(NAP);
    #[cfg(any(corewalk_loom, corewalk_shuttle))]
    thread::yield_now();
}
