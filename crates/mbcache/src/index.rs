//! The index: lines of two slots each. The search for a key begins at the key's home line.
//!
//! ```text
//! word 0     lock of the line
//! word 1     reach of the home: the largest distance of its entries, in lines
//! words 2..5 a slot
//! words 5..8 another slot
//! ```
//!
//! The hash of a key gives its *home*, a line. An entry is in the first line from its home on that
//! had a free slot, and stays there until it ends. The home line stores its *reach*: a search reads
//! so many lines after the home. For most keys the reach is 0, so a search reads one line. A search
//! never restarts, whatever other threads do. A `create` that searches past the home line lowers
//! the reach by one if no entry needs it any more.
//!
//! A search reads at most [`WINDOW`] lines. A `create` that finds no free slot in that window drops
//! one of its entries.
//!
//! # Load
//! Searches get long in a table that is nearly full. So the index counts the entries of some lines
//! in a sharded counter: one line in [`SAMPLE_MAX`], or more of them in a small table. When three
//! quarters of the slots of these lines are in use, each thread that creates entries also runs
//! reclaim for as many. Both slots of a line are counted, because values that are all even fill one
//! slot of each line first.
//!
//! # Invariants
//! - I.1: a live entry is within the reach of its home. The reach changes under the lock of the
//!   home.
//! - I.2: a pair is live at most once. `create` holds the lock of the home from its search for the
//!   pair until the pair is live.
//!
//! # Locks
//! A thread fills a slot under the lock of its line. `create` takes the lock of the home, and
//! inside it only tries the lock of another line. So no thread waits for a second lock. A lock is
//! held for about 20 ns. A thread that waits for one spins, and then sleeps for [`NAP`] at a time.
//! No thread has to be woken, so an unlock is a plain store.
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
/// How often `create` tries again to find a free slot if other threads have lines locked. After
/// that, it drops an entry.
const TRIES: u32 = 16;
/// The minimum number of lines whose entries are counted. In a table with fewer lines, the entries
/// of all lines are counted.
const COUNTED: u32 = 512;
/// At least one line in so many is counted.
const SAMPLE_MAX: u32 = 64;
/// How often a thread that waits for a lock spins before it sleeps. A spin takes about 10 ns.
const SPINS: u32 = if IS_MODEL { 0 } else { 64 };
/// How long a thread that waits for a lock sleeps at a time. If the thread with the lock was
/// preempted, it runs again after some milliseconds.
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
    /// The lines. Word 0 of a line is a bit lock, which protects the reach of the line and the
    /// filling of its slots.
    lines: SlotArena<LINE_WORDS>,
    count: u32,
    secret: Secret,
    /// The slot that reclaim looks at next.
    hand: CachePadded<AtomicU64>,
    /// Of each `sample` lines, the entries of one line are counted. `sample` is a power of two.
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
    /// Another thread has locked a line, and that line may have a free slot. The caller may try
    /// again.
    Locked,
}

/// The lock of a line. A function that fills a slot takes this value as an argument, as a proof
/// that the caller has the lock.
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

    /// Returns the slot with this number. Slots are numbered line by line.
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
    /// The preferred slot of the value is checked in a branch of its own, because it usually has
    /// the entry. So the processor predicts the branch, and begins the next call while it waits for
    /// the cache line.
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
            // search may have read words of a later entry in a slot. Then the caller sees the work
            // of the last holder of the earlier entry in that slot.
            fence(Ordering::Acquire);
        }
        found
    }

    /// Takes a handle of the first entry under `key`, in the order of slots.
    #[inline(always)]
    pub(crate) fn find(&self, key: u64) -> Option<(Slot<'_>, State)> {
        let home = self.home(key);
        self.walk(home, self.reach(home), 0, |slot| hold(slot, key))
    }

    /// Takes a handle of the next entry under `key` after the slot `after`. That slot has an entry
    /// under `key`, and the caller has a handle of it.
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

    /// Calls `probe` with the slots of `line` and of the `further` lines after it, until `probe`
    /// returns an answer. In each line it calls `probe` with the preferred slot of `value` first.
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

    /// Enters a pair in the preferred slot of its home line, if that slot is free and the reach of
    /// the home is 0. Returns the number of the slot. The caller has locked the home.
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

    /// Enters a pair whose home the caller has locked, and returns the number of its slot. `tries`
    /// is the number of earlier tries.
    ///
    /// One pass over the lines within the reach finds three things: whether the pair exists, the
    /// first free slot, and whether an entry still needs the reach.
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
                // No thread can enter another pair of this home, because the caller has the lock of
                // the home. So if the slot has an entry of this home, key and value belong
                // together. Otherwise they do not matter.
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

    /// Enters a pair that does not exist. No line at a distance below `from` has a free slot.
    ///
    /// The first pass looks for a free slot in the window. The second pass drops an entry that was
    /// not used recently. The third pass drops any entry without a handle. A pass skips a line that
    /// another thread has locked. If a pass finds no slot but has skipped a line, the caller tries
    /// again. Only after [`TRIES`] tries may the next pass drop an entry.
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
                // Skip a full line without taking its lock, which would only cost time.
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

    /// Lowers the reach of a home that the caller has locked. The caller has found that no entry is
    /// as far from the home as the old reach.
    fn trim(&self, home: u32, reach: u64) {
        // ORDERING(mbcache-refill): Acquire fence. Pairs with the Release fence in `fill`. The
        // caller may have read words of a later entry in a slot. Then this thread sees the work of
        // the holders of the earlier entry in that slot.
        fence(Ordering::Acquire);
        // ORDERING(mbcache-reach): Release. Pairs with the load in `reach_of`. A search that ends
        // at the lower reach does not read the slots behind it. But it sees the work of the last
        // holders of the entries that have ended there.
        self.line(home)[REACH].store(reach, Ordering::Release);
    }

    /// Returns the reach of a home: the largest distance of its entries from it, in lines.
    #[inline(always)]
    pub(crate) fn reach(&self, home: u32) -> u64 {
        reach_of(self.line(home))
    }

    /// Returns a free slot of a line. If `spare` is given, first drops those entries of the line
    /// that `spare` does not protect.
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

    /// Returns the slots of a line. The preferred slot of `value` is the first.
    #[inline(always)]
    fn both(&self, line: u32, value: u64) -> [Slot<'_>; 2] {
        both_in(self.line(line), line, value)
    }

    /// Ends the entry of `state` like [`slots::end`]. If it succeeds, subtracts the entry from the
    /// count.
    #[inline]
    pub(crate) fn end(&self, slot: Slot<'_>, state: State, spare: Spare) -> Result<(), State> {
        slots::end(slot.words, state, spare)?;
        self.note_ended(slot.number);
        Ok(())
    }

    /// Counts an entry that was just created in a slot. Drops some entries if the table is too
    /// full. The caller holds no lock.
    #[inline]
    pub(crate) fn note_entered(&self, number: u32) {
        if self.is_counted(number) {
            self.count_entered(number / SLOTS);
        }
    }

    #[cold]
    fn count_entered(&self, line: u32) {
        self.counted.add(1);
        // To sum up the sharded counter is slow, because it reads a cache line of each thread. So
        // compute the sum only if the number of the line is a multiple of `rare`.
        let rare = 4 * self.sample;
        let bound = i64::from(self.count * SLOTS / self.sample) * 3 / 4;
        if line & (rare - 1) == 0 && self.counted.sum() > bound {
            self.scan(4 * u64::from(rare));
        }
    }

    /// Subtracts an ended entry from the count, if entries in the line of the slot are counted.
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

    /// Examines `entries` entries, and drops those that have no handle and were not used since they
    /// were last examined. Returns the number of dropped entries.
    pub(crate) fn scan(&self, entries: u64) -> u64 {
        let (mut looked, mut dropped) = (0, 0);
        let slots = u64::from(self.count * SLOTS);
        for _ in 0..slots {
            if looked >= entries {
                break;
            }
            // ORDERING: Relaxed. `hand` only spreads reclaim over the slots, and orders no other
            // data.
            let at = self.hand.fetch_add(1, Ordering::Relaxed) % slots;
            let look = self.look(self.slot(at as u32));
            looked += u64::from(look != Look::Free);
            dropped += u64::from(look == Look::Dropped);
        }
        dropped
    }

    /// Drops the entry of a slot, unless the entry has a handle or its referenced bit is set.
    /// Clears a referenced bit that is set.
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

    /// Locks a line other than the home line of the caller's key, if the lock is free. Does not
    /// wait.
    fn try_lock(&self, line: u32) -> Option<Locked<'_>> {
        let line = self.line(line);
        try_lock(line).then(|| Locked { line, _order: None })
    }

    /// Returns the line that is `further` lines after `line`. The lines form a ring: line 0 follows
    /// the last line.
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
        // with the lock sees the changes that were made under it.
        self.line[LOCK].store(0, Ordering::Release);
    }
}

/// Returns the reach of a home: the largest distance of its entries from it, in lines.
#[inline(always)]
fn reach_of(home: &Line) -> u64 {
    // ORDERING(mbcache-reach): Acquire. See `trim`.
    home[REACH].load(Ordering::Acquire)
}

/// Returns the slots of a line. The preferred slot of `value` is the first.
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

/// Takes a handle of the entry of a slot if its key is `key`.
#[inline(always)]
fn hold(slot: Slot<'_>, key: u64) -> Option<(Slot<'_>, State)> {
    Some((slot, slots::hold(slot.words, key)?))
}

/// Returns a slot and its state if the slot has the entry of this pair.
#[inline(always)]
fn entry_in(slot: Slot<'_>, pair: (u64, u64)) -> Option<(Slot<'_>, State)> {
    let state = slots::state(slot.words);
    let (key, value) = slots::pair_of(slot.words);
    let is_it = value == pair.1 && key == pair.0 && state.is_live();
    // If the entry has ended since the first load of the state, the pair does not exist any more.
    (is_it && slots::is_still(slot.words, state)).then_some((slot, state))
}

/// Returns the preferred slot of a value: the slot of a line that it gets if both are free.
///
/// Values are places of blobs, and a store often numbers them in a row. So if a key has two values,
/// each is usually in its preferred slot. `get` looks there first, and the processor predicts that
/// the pair is there.
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
