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
//! - I.1: a search for a key begins at its home line. It reads as many further lines as the *reach*
//!   in the home line says. All live entries of the key are in these lines. The reach changes only
//!   under the lock of the home line.
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

const WINDOW: u32 = 128;
/// Number of times that `create` repeats its search for a free slot because other threads have
/// locked lines. After that it may drop an entry instead.
const TRIES: u32 = 16;
/// Minimum number of lines in the sample from which the load is estimated. In a table with fewer
/// lines, all lines are counted.
const COUNTED: u32 = 512;
/// Maximum distance between two lines of the sample: at least one line in 64 is counted.
const SAMPLE_MAX: u32 = 64;
/// Number of tries to get a lock, at about 10 ns each, before the waiting thread sleeps.
const SPINS: u32 = if IS_MODEL { 0 } else { 64 };
/// A thread that waits for a lock sleeps this long at a time. A preempted holder of the lock runs
/// again only after some milliseconds.
#[cfg_attr(any(corewalk_loom, corewalk_shuttle), expect(dead_code, reason = "no time there"))]
const NAP: Duration = Duration::from_micros(50);

pub(crate) const SLOTS: u32 = 2;
const LINE_WORDS: usize = 8;
pub(crate) const LINE_BYTES: u64 = LINE_WORDS as u64 * 8;
pub(crate) const LOCK: usize = 0;
pub(crate) const REACH: usize = 1;
const ENTRIES: usize = 2;

pub(crate) type Line = [AtomicU64; LINE_WORDS];

pub(crate) struct Index {
    /// The lines of the table. Word 0 of each line is its lock, which protects the reach of the
    /// line. A slot of the line is filled only under this lock.
    lines: SlotArena<LINE_WORDS>,
    count: u32,
    secret: Secret,
    /// The next slot that reclaim examines.
    hand: CachePadded<AtomicU64>,
    /// The load is estimated from each line whose number is a multiple of `sample`, a power of two.
    sample: u32,
    counted: ShardedCounter,
    pub(crate) reclaimed: ShardedCounter,
}

#[derive(Clone, Copy)]
pub(crate) struct Slot<'a> {
    pub(crate) words: &'a Words,
    pub(crate) number: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Look {
    Free,
    Stays,
    Dropped,
}

/// Why a pair was not stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    Exists,
    Full,
    /// Another thread has locked a line that may have a free slot. The caller may try again.
    Locked,
}

/// A guard that holds the lock of a line. Functions that fill a slot take it as an argument, as a
/// proof of the lock.
pub(crate) struct Locked<'a> {
    line: &'a Line,
    _order: Option<order::Held>,
}

impl Index {
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

    pub(crate) fn bytes(&self) -> u64 {
        u64::from(self.count) * LINE_BYTES
    }

    #[inline(always)]
    pub(crate) fn home(&self, key: u64) -> u32 {
        (((self.secret.hash(key) >> 32) * u64::from(self.count)) >> 32) as u32
    }

    #[inline(always)]
    pub(crate) fn line(&self, line: u32) -> &Line {
        self.lines.get(line)
    }

    /// Line n has the slots 2n and 2n + 1.
    #[inline(always)]
    pub(crate) fn slot(&self, number: u32) -> Slot<'_> {
        slot_in(self.line(number / SLOTS), number / SLOTS, number % SLOTS)
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = Slot<'_>> {
        (0..self.count * SLOTS).map(|number| self.slot(number))
    }

    /// Returns the slot and the state of the pair's entry. Most pairs are in the preferred slot of
    /// their home line. A separate branch tests that slot, so the processor predicts a hit and goes
    /// on before the cache line has arrived.
    #[inline(always)]
    pub(crate) fn look_up(&self, home: u32, pair: (u64, u64)) -> Option<(Slot<'_>, State)> {
        let [first, _] = self.both(home, pair.1);
        entry_in(first, pair).or_else(|| self.look_up_further(home, pair))
    }

    #[inline(never)]
    fn look_up_further(&self, home: u32, pair: (u64, u64)) -> Option<(Slot<'_>, State)> {
        let found = self.walk(home, self.reach(home), pair.1, |slot| entry_in(slot, pair));
        if found.is_none() {
            // ORDERING(mbcache-refill): Acquire fence, for the Release fence in `fill`. `fill` may
            // have reused the pair's slot, so the search missed the pair, and the caller may free
            // its value. With the fence, the caller first sees all writes of threads that had
            // handles of the pair.
            fence(Ordering::Acquire);
        }
        found
    }

    #[inline(always)]
    pub(crate) fn find(&self, key: u64) -> Option<(Slot<'_>, State)> {
        let home = self.home(key);
        self.walk(home, self.reach(home), 0, |slot| hold(slot, key))
    }

    /// Takes a handle of the next entry with `key` after slot `after`. The caller must have a
    /// handle of the entry in slot `after`, so that this entry and its key stay.
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

    /// Calls `probe` for the slots of `line` and of the `further` lines after it, until `probe`
    /// returns a result. In each line, the slot that `value` prefers is first.
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

    /// The fast path of `create`. The caller has locked the line `home`.
    ///
    /// Returns `None` if only the slow path can store the pair. Then the preferred slot is in use,
    /// the other slot may have the pair, or searches also read later lines.
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

    /// The slow path of `create`. The caller has locked the line `home`, and has failed `tries`
    /// times before.
    ///
    /// One pass finds the pair, or the first free slot. It also finds out whether the *reach*, the
    /// number of further lines that searches read, may be lowered.
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
                // Only a thread with the lock of `home` creates entries of that home, so the check
                // overlooks none. If another thread reuses the slot meanwhile, the reach merely
                // stays too high.
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

    /// Up to three passes look for a free slot. The second may also drop an entry that was not used
    /// recently, and the third any entry without a handle.
    ///
    /// If a pass had to skip a line that another thread has locked, it ends with
    /// [`Refused::Locked`], and the caller tries again. After [`TRIES`] tries, the next pass begins
    /// instead.
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
                // If all slots of the line are in use, skip it without taking its lock.
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
                        // ORDERING(mbcache-reach): Release. The reason is at the store in `trim`.
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

    /// Lowers the reach of a home line. The caller has locked it, and the last line of the reach
    /// has no entry of this home.
    fn trim(&self, home: u32, reach: u64) {
        // ORDERING(mbcache-refill): Acquire fence, for the Release fence in `fill`. The caller may
        // have read the words of a new entry that `fill` stored. With the fence, it sees the writes
        // of all threads that had handles of the slot's previous entry.
        fence(Ordering::Acquire);
        // ORDERING(mbcache-reach): Release, for the Acquire load in `reach_of`. A search with the
        // lower reach may miss a removed entry, and its caller may free the value. So it must first
        // see the writes of all threads that had handles of the entry.
        self.line(home)[REACH].store(reach, Ordering::Release);
    }

    #[inline(always)]
    pub(crate) fn reach(&self, home: u32) -> u64 {
        reach_of(self.line(home))
    }

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

    #[inline(always)]
    fn both(&self, line: u32, value: u64) -> [Slot<'_>; 2] {
        both_in(self.line(line), line, value)
    }

    /// Like [`slots::end`], and also updates the estimate of the load.
    #[inline]
    pub(crate) fn end(&self, slot: Slot<'_>, state: State, spare: Spare) -> Result<(), State> {
        slots::end(slot.words, state, spare)?;
        self.note_ended(slot.number);
        Ok(())
    }

    #[inline]
    pub(crate) fn note_entered(&self, number: u32) {
        if self.is_counted(number) {
            self.count_entered(number / SLOTS);
        }
    }

    #[cold]
    fn count_entered(&self, line: u32) {
        self.counted.add(1);
        // The sum of a sharded counter reads one cache line per shard. So only one in four counted
        // lines computes the sum.
        let rare = 4 * self.sample;
        let bound = i64::from(self.count * SLOTS / self.sample) * 3 / 4;
        if line & (rare - 1) == 0 && self.counted.sum() > bound {
            self.scan(4 * u64::from(rare));
        }
    }

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

    /// Locks a line unless another thread has locked it. Does not wait, because the caller already
    /// holds the lock of a home line, and a wait for a second lock could deadlock.
    fn try_lock(&self, line: u32) -> Option<Locked<'_>> {
        let line = self.line(line);
        try_lock(line).then(|| Locked { line, _order: None })
    }

    #[inline(always)]
    fn line_at(&self, line: u32, further: u32) -> u32 {
        let at = line + further;
        if at < self.count { at } else { at - self.count }
    }
}

impl Drop for Locked<'_> {
    #[inline]
    fn drop(&mut self) {
        // ORDERING(mbcache-lock): Release, for the Acquire in `try_lock`. The next thread with the
        // lock sees the changes made under it.
        self.line[LOCK].store(0, Ordering::Release);
    }
}

#[inline(always)]
fn reach_of(home: &Line) -> u64 {
    // ORDERING(mbcache-reach): Acquire. The reason is at the store in `trim`.
    home[REACH].load(Ordering::Acquire)
}

#[inline(always)]
fn both_in(words: &Line, line: u32, value: u64) -> [Slot<'_>; 2] {
    [0, 1].map(|nth| slot_in(words, line, nth ^ preferred(value)))
}

#[inline(always)]
fn slot_in(words: &Line, line: u32, nth: u32) -> Slot<'_> {
    let (entries, _) = words[ENTRIES..].as_chunks();
    Slot { words: &entries[(nth % SLOTS) as usize], number: SLOTS * line + nth }
}

#[inline(always)]
fn is_live(slot: Slot<'_>) -> bool {
    slots::state(slot.words).is_live()
}

#[inline(always)]
fn hold(slot: Slot<'_>, key: u64) -> Option<(Slot<'_>, State)> {
    Some((slot, slots::hold(slot.words, key)?))
}

#[inline(always)]
fn entry_in(slot: Slot<'_>, pair: (u64, u64)) -> Option<(Slot<'_>, State)> {
    let state = slots::state(slot.words);
    let (key, value) = slots::pair_of(slot.words);
    let is_it = value == pair.1 && key == pair.0 && state.is_live();
    // Check the state again, because the entry may have been removed since the first load of it.
    (is_it && slots::is_still(slot.words, state)).then_some((slot, state))
}

/// If both slots of a line are free, a new entry gets the one that its value prefers.
///
/// A value is the place of a blob, and places are often consecutive numbers. So the two slots of a
/// line are preferred by even and by odd values.
#[inline(always)]
fn preferred(value: u64) -> u32 {
    value as u32 % SLOTS
}

#[inline(always)]
fn try_lock(line: &Line) -> bool {
    // ORDERING(mbcache-lock): Acquire. The reason is at the store in `Locked::drop`.
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
