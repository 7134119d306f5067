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
//! Searches get long in a table that is nearly full. So the index counts the entries in one of
//! [`SAMPLE`] slots, in a sharded counter. When three quarters of these slots are in use, each
//! thread that enters more runs the hand of reclaim for as many.
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
/// One in so many slots is counted, in a table that is not small.
const SAMPLE: u32 = 16;
/// In a table with fewer slots all are counted.
const SMALL: u32 = 4096;
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
    /// One in so many slots is counted in `counted`.
    sample: u32,
    /// Entries in the slots that are counted.
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
    word: &'a AtomicU64,
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
            sample: if count * SLOTS < SMALL { 1 } else { SAMPLE },
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
        let at = ENTRIES + (number % SLOTS) as usize * slots::WORDS;
        let words = self.line(number / SLOTS)[at..].first_chunk().expect("a line has two slots");
        Slot { words, number }
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
        let found = self.probe(home, preferred(pair.1)).find_map(|slot| entry_in(slot, pair));
        if found.is_none() {
            // ORDERING(mbcache-refill): Acquire fence. A slot may have been missed by the words of
            // a later entry, which are loaded without an order. The caller then sees the work of
            // the last holder of the entry before.
            fence(Ordering::Acquire);
        }
        found
    }

    /// Takes a handle of an entry under `key`, behind the slot `after` if there is one.
    #[inline(always)]
    pub(crate) fn find(&self, key: u64, after: Option<u32>) -> Option<(Slot<'_>, State)> {
        let home = self.home(key);
        let mut probe = self.probe(home, 0);
        if let Some(after) = after {
            probe.go_behind(home, after);
        }
        probe.find_map(|slot| Some((slot, slots::hold(slot.words, key)?)))
    }

    /// Enters a pair, whose home the caller has locked, after so many `tries`; returns its slot.
    #[inline]
    pub(crate) fn enter(
        &self,
        locked: &Locked<'_>,
        home: u32,
        pair: (u64, u64),
        tries: u32,
    ) -> Result<u32, Refused> {
        let [first, second] = self.both(home, pair.1);
        let is_free = !slots::state(first.words).is_live();
        if is_free && self.reach(home) == 0 && slots::pair_of(second.words) != pair {
            slots::fill(first.words, pair, locked);
            return Ok(first.number);
        }
        self.enter_anywhere(locked, home, pair, tries)
    }

    /// As `enter`, of a pair that may be there.
    #[inline(never)]
    fn enter_anywhere(
        &self,
        locked: &Locked<'_>,
        home: u32,
        pair: (u64, u64),
        tries: u32,
    ) -> Result<u32, Refused> {
        if self.look_up_further(home, pair).is_some() {
            return Err(Refused::Exists);
        }
        self.trim(home);
        match self.free_in(home, pair.1, None) {
            Some(slot) => {
                slots::fill(slot.words, pair, locked);
                Ok(slot.number)
            }
            None => self.enter_elsewhere(locked, home, pair, tries),
        }
    }

    /// Enters a pair that is not there, and for which there was no free slot in its home line.
    ///
    /// First the free slots of the window are tried. Then an entry is dropped that was not used
    /// lately, and at last any that is not held. A line is passed over that another thread has
    /// locked; if that leaves no free slot, the caller tries again, some times, before anything is
    /// dropped.
    #[cold]
    fn enter_elsewhere(
        &self,
        locked: &Locked<'_>,
        home: u32,
        pair: (u64, u64),
        tries: u32,
    ) -> Result<u32, Refused> {
        let mut is_locked = false;
        for spare in [None, Some(Spare::Referenced), Some(Spare::Held)] {
            let mut line = home;
            for distance in 0..u64::from(WINDOW.min(self.count)) {
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
                line = self.next(line);
            }
            if is_locked && tries < TRIES {
                return Err(Refused::Locked);
            }
        }
        Err(Refused::Full)
    }

    /// Lowers the reach of a home that the caller has locked, if no entry needs it.
    fn trim(&self, home: u32) {
        let reach = self.reach(home);
        let last = ((u64::from(home) + reach) % u64::from(self.count)) as u32;
        let is_needed = self.both(last, 0).iter().any(|slot| {
            let is_live = slots::state(slot.words).is_live();
            // Entries of this home come only under its lock. Those that are there are read whole.
            is_live && self.home(slots::pair_of(slot.words).0) == home
        });
        if reach > 0 && !is_needed {
            // ORDERING(mbcache-refill): Acquire fence. As in `look_up_further`: the words of a
            // later entry may have shown that the slot is not needed.
            fence(Ordering::Acquire);
            // ORDERING(mbcache-reach): Release. A search that ends here sees the work of the last
            // holders of entries that have ended, as one that sees the slot itself does.
            self.line(home)[REACH].store(reach - 1, Ordering::Release);
        }
    }

    /// Returns how many lines an entry with this home may be away from it.
    #[inline(always)]
    fn reach(&self, home: u32) -> u64 {
        // ORDERING(mbcache-reach): Acquire. See `trim`.
        self.line(home)[REACH].load(Ordering::Acquire)
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
                    if state.is_live() && self.end(*slot, state, Spare::Held) {
                        self.reclaimed.add(1);
                    }
                }
            }
            !slots::state(slot.words).is_live()
        })
    }

    /// Returns the slots of a line, first the preferred one of an entry with this value.
    #[inline(always)]
    fn both(&self, line: u32, value: u64) -> [Slot<'_>; 2] {
        [0, 1].map(|nth| self.slot(SLOTS * line + (nth ^ preferred(value))))
    }

    /// Ends the entry of `state`, as [`slots::end`] does.
    #[inline]
    pub(crate) fn end(&self, slot: Slot<'_>, state: State, spare: Spare) -> bool {
        let is_ended = slots::end(slot.words, state, spare);
        if is_ended {
            self.note_ended(slot.number);
        }
        is_ended
    }

    /// Drops some entries if the table is too full. The caller has just entered one in this slot,
    /// and holds no lock.
    #[inline]
    pub(crate) fn note_entered(&self, number: u32) {
        if number & (self.sample - 1) != 0 {
            return;
        }
        self.counted.add(1);
        // To add up reads a line of each thread, so it is done for one entry in `rare`.
        let rare = 4 * self.sample * self.sample;
        let bound = i64::from(self.count * SLOTS / self.sample) * 3 / 4;
        if number & (rare - 1) == 0 && self.counted.sum() > bound {
            self.scan(4 * u64::from(rare));
        }
    }

    /// Notes that the entry of a slot has ended.
    #[inline]
    pub(crate) fn note_ended(&self, number: u32) {
        if number & (self.sample - 1) == 0 {
            self.counted.add(-1);
        }
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
        if !self.end(slot, state, Spare::Referenced) {
            return Look::Stays;
        }
        self.reclaimed.add(1);
        Look::Dropped
    }

    /// Locks the home of a key.
    #[inline]
    pub(crate) fn lock(&self, home: u32) -> Locked<'_> {
        let _order = Some(order::enter());
        let word = &self.line(home)[LOCK];
        if !try_lock(word) {
            lock_slow(word);
        }
        Locked { word, _order }
    }

    /// Locks a line beside the caller's home, if no thread has it.
    fn try_lock(&self, line: u32) -> Option<Locked<'_>> {
        let word = &self.line(line)[LOCK];
        try_lock(word).then(|| Locked { word, _order: None })
    }

    /// Returns the slots in which an entry with this home can be, by line; in each line first the
    /// `preferred` one. It ends when no such entry can be in a further line.
    #[inline(always)]
    pub(crate) fn probe(&self, home: u32, preferred: u32) -> Probe<'_> {
        Probe { index: self, line: home, nth: 0, preferred, left: self.reach(home) as u32 }
    }

    #[inline(always)]
    fn next(&self, line: u32) -> u32 {
        if line + 1 == self.count { 0 } else { line + 1 }
    }
}

/// A search from the home of a key on.
pub(crate) struct Probe<'a> {
    index: &'a Index,
    line: u32,
    /// Slots of the line that were looked at.
    nth: u32,
    /// The slot of each line that is looked at first.
    preferred: u32,
    /// Lines that may follow.
    left: u32,
}

impl Probe<'_> {
    /// Goes on behind a slot, in which there is an entry with this home that is held.
    fn go_behind(&mut self, home: u32, slot: u32) {
        let line = slot / SLOTS;
        let count = self.index.count;
        let distance = if line < home { line + count - home } else { line - home };
        self.left = self.left.saturating_sub(distance);
        (self.line, self.nth) = (line, slot % SLOTS + 1);
    }
}

impl<'a> Iterator for Probe<'a> {
    type Item = Slot<'a>;

    #[inline(always)]
    fn next(&mut self) -> Option<Slot<'a>> {
        if self.nth == SLOTS {
            if self.left == 0 {
                return None;
            }
            self.left -= 1;
            (self.line, self.nth) = (self.index.next(self.line), 0);
        }
        let nth = self.nth ^ self.preferred;
        self.nth += 1;
        Some(self.index.slot(SLOTS * self.line + nth))
    }
}

impl Drop for Locked<'_> {
    #[inline]
    fn drop(&mut self) {
        // ORDERING(mbcache-lock): Release. The work under the lock happens before the next lock.
        self.word.store(0, Ordering::Release);
    }
}

/// Returns the state of a slot if it has the entry of this pair.
#[inline(always)]
fn entry_in(slot: Slot<'_>, pair: (u64, u64)) -> Option<(Slot<'_>, State)> {
    let state = slots::state(slot.words);
    let is_it = slots::pair_of(slot.words) == pair && state.is_live();
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
fn try_lock(word: &AtomicU64) -> bool {
    // ORDERING(mbcache-lock): Acquire. See `Locked::drop`.
    word.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_ok()
}

#[cold]
fn lock_slow(word: &AtomicU64) {
    let mut spins = 0;
    while !try_lock(word) {
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
