//! The index: lines of two slots, searched from the home line of a key on.
//!
//! ```text
//! word 0     lock of the line
//! word 1     reach of the home: how many lines further its entries stand at most
//! words 2..5 a slot
//! words 5..8 another slot
//! ```
//!
//! The hash of a key gives its *home*, a line. An entry stands in the first line from its home on
//! that has a free slot, and stays there until it ends. The home knows its *reach*: a search looks
//! at so many lines more. So a look at one line is enough for most keys. A search never begins
//! anew, whatever other threads do meanwhile. A `create` that looks further than the home line
//! lowers the reach by one if no entry needs it any more.
//!
//! A search goes at most [`WINDOW`] lines far. A `create` that finds no free slot in that window
//! drops an entry of it.
//!
//! # Load
//! Searches get long in a table that is nearly full. So the index counts the entries of some lines
//! in a sharded counter: of one line in [`SAMPLE_MAX`], or of more in a small table. When three
//! quarters of their slots are in use, each thread that enters more runs the hand of reclaim for as
//! many. Both slots of such a line are counted, since values that are all even fill one slot first.
//!
//! # Invariants
//! - I.1: a live entry is within the reach of its home. The reach changes under the lock of the
//!   home.
//! - I.2: a pair is live at most once: `create` holds the lock of the home from the search for the
//!   pair until the pair is live.
//!
//! # Locks
//! The lock of a line is needed to fill its slots. `create` takes that of the home, and inside it
//! tries that of another line. No thread waits for a second lock. A lock is held for some 20 ns. A
//! thread that waits for one spins, and then sleeps for [`NAP`] at a time: so to unlock is a plain
//! store.
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
/// Tries to enter a pair beside locked lines before an entry is dropped.
const TRIES: u32 = 16;
/// The least lines whose entries are counted. All lines of a smaller table are counted.
const COUNTED: u32 = 512;
/// At least one in so many lines is counted.
const SAMPLE_MAX: u32 = 64;
/// Rounds for which a thread spins that waits for a lock, of about 10 ns each.
const SPINS: u32 = if IS_MODEL { 0 } else { 64 };
/// The sleep of a thread that waits for a lock. A holder that lost its processor gets it back after
/// some milliseconds.
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
    /// The lines. Word 0 of a line is a bit lock, which protects its reach and the filling of its
    /// slots.
    lines: SlotArena<LINE_WORDS>,
    count: u32,
    secret: Secret,
    /// The slot that reclaim looks at next.
    hand: CachePadded<AtomicU64>,
    /// The entries of one in so many lines are counted, a power of two.
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

/// The reason why a pair was not entered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// The pair is there.
    Exists,
    /// All entries of the window are held.
    Full,
    /// A line that may have a free slot is locked.
    Locked,
}

/// The lock of a line: the witness for filling its slots.
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

    /// Returns a slot by its number; slots are numbered line by line.
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
    /// The first slot is looked at apart from the others, since it mostly has the entry. So the
    /// processor predicts the branch, and begins the next call while it waits for the line.
    #[inline(always)]
    pub(crate) fn look_up(&self, home: u32, pair: (u64, u64)) -> Option<(Slot<'_>, State)> {
        let [first, _] = self.both(home, pair.1);
        entry_in(first, pair).or_else(|| self.look_up_further(home, pair))
    }

    #[inline(never)]
    fn look_up_further(&self, home: u32, pair: (u64, u64)) -> Option<(Slot<'_>, State)> {
        let found = self.walk(home, self.reach(home), pair.1, |slot| entry_in(slot, pair));
        if found.is_none() {
            // ORDERING(mbcache-refill): Acquire fence. A slot may have been missed by the words of
            // a later entry, which are loaded without an order. The caller then sees the work of
            // the last holder of the entry before.
            fence(Ordering::Acquire);
        }
        found
    }

    /// Takes a handle of an entry under `key`.
    #[inline(always)]
    pub(crate) fn find(&self, key: u64) -> Option<(Slot<'_>, State)> {
        let home = self.home(key);
        self.walk(home, self.reach(home), 0, |slot| hold(slot, key))
    }

    /// Takes a handle of an entry under `key` behind the slot `after`, which has an entry under
    /// `key` that is held.
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

    /// Calls `probe` with the slots of `line` and of `further` lines behind it, until `probe`
    /// returns an answer. In each line the preferred slot of `value` comes first.
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

    /// Enters a pair in its preferred slot, and returns that, if all entries of the home are in its
    /// line. The caller has locked the home.
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

    /// Enters a pair, whose home the caller has locked, after so many `tries`; returns its slot.
    ///
    /// One pass over the lines within the reach looks for the pair, for the first line with a free
    /// slot, and for a reason to keep the reach.
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
                // Entries of this home come only under its lock. Those that stay are read whole.
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

    /// Enters a pair that is not there, and for which there was no free slot in the lines before
    /// the distance `from`.
    ///
    /// First the free slots of the window are tried. Then an entry is dropped that was not used
    /// lately, and at last any that is not held. A line is passed over that another thread has
    /// locked; if that leaves no free slot, the caller tries again, some times, before anything is
    /// dropped.
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
                // To try the lock of a full line would only cost time.
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

    /// Lowers the reach of a home that the caller has locked. No entry needs the reach from before.
    fn trim(&self, home: u32, reach: u64) {
        // ORDERING(mbcache-refill): Acquire fence. As in `look_up_further`: the words of a later
        // entry may have shown that the reach is not needed.
        fence(Ordering::Acquire);
        // ORDERING(mbcache-reach): Release. A search that ends here sees the work of the last
        // holders of entries that have ended, as one that sees the slot itself does.
        self.line(home)[REACH].store(reach, Ordering::Release);
    }

    /// Returns how many lines an entry with this home may be away from it.
    #[inline(always)]
    pub(crate) fn reach(&self, home: u32) -> u64 {
        reach_of(self.line(home))
    }

    /// Returns a free slot of a line. With `spare` it first drops entries, all but the spared ones.
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

    /// Returns the slots of a line, first the preferred one of an entry with this value.
    #[inline(always)]
    fn both(&self, line: u32, value: u64) -> [Slot<'_>; 2] {
        both_in(self.line(line), line, value)
    }

    /// Ends the entry of `state`, as [`slots::end`] does.
    #[inline]
    pub(crate) fn end(&self, slot: Slot<'_>, state: State, spare: Spare) -> Result<(), State> {
        slots::end(slot.words, state, spare)?;
        self.note_ended(slot.number);
        Ok(())
    }

    /// Drops some entries if the table is too full. The caller has just entered one in this slot,
    /// and holds no lock.
    #[inline]
    pub(crate) fn note_entered(&self, number: u32) {
        if self.is_counted(number) {
            self.count_entered(number / SLOTS);
        }
    }

    #[cold]
    fn count_entered(&self, line: u32) {
        self.counted.add(1);
        // To add up reads a line of each thread, so it is done for one entry in `rare`.
        let rare = 4 * self.sample;
        let bound = i64::from(self.count * SLOTS / self.sample) * 3 / 4;
        if line & (rare - 1) == 0 && self.counted.sum() > bound {
            self.scan(4 * u64::from(rare));
        }
    }

    /// Notes that the entry of a slot has ended.
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

    /// Looks at `entries` entries, and drops those that are not held and were not used since the
    /// last look; returns how many were dropped.
    pub(crate) fn scan(&self, entries: u64) -> u64 {
        let (mut looked, mut dropped) = (0, 0);
        let slots = u64::from(self.count * SLOTS);
        for _ in 0..slots {
            if looked >= entries {
                break;
            }
            // ORDERING: Relaxed. The hand only spreads looks over the slots.
            let at = self.hand.fetch_add(1, Ordering::Relaxed) % slots;
            let look = self.look(self.slot(at as u32));
            looked += u64::from(look != Look::Free);
            dropped += u64::from(look == Look::Dropped);
        }
        dropped
    }

    /// Drops the entry of a slot, unless it is held or was used since the last look.
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

    /// Locks a line beside the caller's home, if no thread has it.
    fn try_lock(&self, line: u32) -> Option<Locked<'_>> {
        let line = self.line(line);
        try_lock(line).then(|| Locked { line, _order: None })
    }

    /// Returns the line that is `further` lines behind another, at most once around.
    #[inline(always)]
    fn line_at(&self, line: u32, further: u32) -> u32 {
        let at = line + further;
        if at < self.count { at } else { at - self.count }
    }
}

impl Drop for Locked<'_> {
    #[inline]
    fn drop(&mut self) {
        // ORDERING(mbcache-lock): Release. The work under the lock happens before the next lock.
        self.line[LOCK].store(0, Ordering::Release);
    }
}

/// Returns how many lines an entry with this home may be away from it.
#[inline(always)]
fn reach_of(home: &Line) -> u64 {
    // ORDERING(mbcache-reach): Acquire. See `trim`.
    home[REACH].load(Ordering::Acquire)
}

/// Returns the slots of a line, first the preferred one of an entry with this value.
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

/// Takes a handle of the entry of a slot if it is under `key`.
#[inline(always)]
fn hold(slot: Slot<'_>, key: u64) -> Option<(Slot<'_>, State)> {
    Some((slot, slots::hold(slot.words, key)?))
}

/// Returns the state of a slot if it has the entry of this pair.
#[inline(always)]
fn entry_in(slot: Slot<'_>, pair: (u64, u64)) -> Option<(Slot<'_>, State)> {
    let state = slots::state(slot.words);
    let (key, value) = slots::pair_of(slot.words);
    let is_it = value == pair.1 && key == pair.0 && state.is_live();
    // If the entry has ended meanwhile it is not there.
    (is_it && slots::is_still(slot.words, state)).then_some((slot, state))
}

/// Returns the slot of a line that an entry with this value is put into if both are free.
///
/// Values are places, which are often given out in a row. So a get of one of two values of a key
/// mostly finds it with its first look, and the processor predicts that.
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
