//! The index: lines of two slots each. The search for a key begins at the key's home line.
//!
//! ```text
//! word 0     lock of the line
//! word 1     reach of the home: the largest distance of its entries, in lines
//! words 2..5 a slot
//! words 5..8 another slot
//! ```
//!
//! The hash of a key gives its *home*, a line. When an entry is created, it gets a free slot of the
//! first line that has one, from its home on. It stays there until it ends. The home line stores
//! its *reach*: the number of lines after the home that a search reads. For most keys the reach is
//! 0, so a search reads one line. A search never restarts, whatever other threads do. A `create`
//! that searches past the home line lowers the reach by one if no entry needs it any more.
//!
//! A search reads at most [`WINDOW`] lines. A `create` that finds no free slot in that window drops
//! an entry from it.
//!
//! # Load
//! Searches get long in a table that is nearly full. So the index counts the entries of some lines
//! in a sharded counter: one line in [`SAMPLE_MAX`], or more of them in a small table. When three
//! quarters of the slots of the counted lines are in use, each thread that creates entries also
//! lets reclaim examine as many. Both slots of a line are counted, because values that are all even
//! fill one slot of each line first.
//!
//! # Invariants
//! - I.1: a live entry is within the reach of its home. The reach changes under the lock of the
//!   home.
//! - I.2: at most one slot has a live entry of a pair. `create` holds the lock of the home from its
//!   search for the pair until the pair is live.
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
/// How often `create` looks again for a free slot in its window of lines, if other threads have
/// locked some of them. After that, `create` drops an entry.
const TRIES: u32 = 16;
/// The minimum number of lines whose entries are counted in the sample of the load. In a table with
/// fewer lines, the entries of all lines are counted.
const COUNTED: u32 = 512;
/// At least one line in so many is counted.
const SAMPLE_MAX: u32 = 64;
/// How often a thread that waits for a lock spins before it sleeps. A spin takes about 10 ns.
const SPINS: u32 = if IS_MODEL { 0 } else { 64 };
/// How long a thread that waits for a lock sleeps at a time. The thread that holds the lock may
/// have been preempted. Then it runs again only after some milliseconds.
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
    /// The lines. Word 0 of a line is its lock, one bit. The lock protects the reach of the line,
    /// and a slot of the line is filled only under it.
    lines: SlotArena<LINE_WORDS>,
    count: u32,
    secret: Secret,
    /// The slot that reclaim looks at next.
    hand: CachePadded<AtomicU64>,
    /// In each `sample` lines, the entries of one line are counted. `sample` is a power of two.
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
    /// A line in which the pair may be stored has perhaps a free slot, but another thread has
    /// locked that line. The caller may try again.
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

    /// Returns the slot with this number. The slots of line n have the numbers 2n and 2n + 1.
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
    /// The preferred slot of the value in its home line is checked in a branch of its own, because
    /// it usually has the entry. So the processor predicts the branch, and begins the next call
    /// while it waits for the cache line.
    #[inline(always)]
    pub(crate) fn look_up(&self, home: u32, pair: (u64, u64)) -> Option<(Slot<'_>, State)> {
        let [first, _] = self.both(home, pair.1);
        entry_in(first, pair).or_else(|| self.look_up_further(home, pair))
    }

    #[inline(never)]
    fn look_up_further(&self, home: u32, pair: (u64, u64)) -> Option<(Slot<'_>, State)> {
        let found = self.walk(home, self.reach(home), pair.1, |slot| entry_in(slot, pair));
        if found.is_none() {
            // ORDERING(mbcache-refill): Acquire fence. Pairs with the Release fence in `fill`. This
            // search may have missed the pair because a slot has words of a later entry. With the
            // fence, the caller sees the work of the last holder of the earlier entry in that slot.
            fence(Ordering::Acquire);
        }
        found
    }

    /// Takes a handle of the first entry under `key`, in the order of slots from the home line of
    /// `key` on.
    #[inline(always)]
    pub(crate) fn find(&self, key: u64) -> Option<(Slot<'_>, State)> {
        let home = self.home(key);
        self.walk(home, self.reach(home), 0, |slot| hold(slot, key))
    }

    /// Takes a handle of the next entry under `key` behind the slot with the number `after`. The
    /// caller has a handle of the entry in that slot, which is under `key` too.
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

    /// Enters a pair in the preferred slot of its value in the pair's home line, and returns the
    /// number of the slot. Returns `None` if that slot is in use, the reach of the home line is not
    /// 0, or the other slot may have the pair. The caller has locked the home line.
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

    /// Enters a pair whose home line the caller has locked, and returns the number of its slot.
    /// `tries` tells how often the caller has tried that before.
    ///
    /// One pass over the lines within the reach of the home line finds three things. These are
    /// whether the pair exists, the first free slot, and whether an entry in the last of these
    /// lines still needs the present reach.
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
                // The caller has locked `home`, so no thread can enter another pair of `home`. So
                // if the slot has an entry of `home`, the key and the value that were read belong
                // together. Otherwise they may be of two entries. Then a wrong result can only keep
                // the reach longer than needed.
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

    /// Enters a pair that does not exist yet. No line at a distance below `from` from its home line
    /// has a free slot.
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

    /// Lowers the reach of a home line to `reach`. The caller has locked the line, and has found
    /// that no entry is as far from it as the old reach.
    fn trim(&self, home: u32, reach: u64) {
        // ORDERING(mbcache-refill): Acquire fence. Pairs with the Release fence in `fill`. The
        // caller may have read words of a later entry in a slot. With the fence, this thread sees
        // the work of the holders of the earlier entry in that slot.
        fence(Ordering::Acquire);
        // ORDERING(mbcache-reach): Release. Pairs with the load in `reach_of`. A search that reads
        // the lower reach does not read the slots beyond it. It must see the work of the last
        // holders of the entries that have ended there.
        self.line(home)[REACH].store(reach, Ordering::Release);
    }

    /// Returns the reach of a home line: the largest distance of an entry of its keys from it, in
    /// lines.
    #[inline(always)]
    pub(crate) fn reach(&self, home: u32) -> u64 {
        reach_of(self.line(home))
    }

    /// Returns a free slot of a line. If `spare` is given, first tries to drop the entries of the
    /// line. `spare` tells which entries must stay: those with a handle, or also the recently used
    /// ones.
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

    /// Returns both slots of a line. The preferred slot of `value` comes first.
    #[inline(always)]
    fn both(&self, line: u32, value: u64) -> [Slot<'_>; 2] {
        both_in(self.line(line), line, value)
    }

    /// Ends the entry of `state` like [`slots::end`]. If that succeeds, also subtracts the entry
    /// from the sampled count of entries.
    #[inline]
    pub(crate) fn end(&self, slot: Slot<'_>, state: State, spare: Spare) -> Result<(), State> {
        slots::end(slot.words, state, spare)?;
        self.note_ended(slot.number);
        Ok(())
    }

    /// Counts an entry that was just created in slot `number`, if the line of the slot is counted.
    /// If the table is too full then, drops some entries. The caller holds no lock.
    #[inline]
    pub(crate) fn note_entered(&self, number: u32) {
        if self.is_counted(number) {
            self.count_entered(number / SLOTS);
        }
    }

    #[cold]
    fn count_entered(&self, line: u32) {
        self.counted.add(1);
        // A sum of the sharded counter is slow, because it reads a cache line of each thread. So
        // compute it only for each line whose number is a multiple of `rare`.
        let rare = 4 * self.sample;
        let bound = i64::from(self.count * SLOTS / self.sample) * 3 / 4;
        if line & (rare - 1) == 0 && self.counted.sum() > bound {
            self.scan(4 * u64::from(rare));
        }
    }

    /// Subtracts an ended entry from the count, if the entries in the line of slot `number` are
    /// counted.
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

    /// Drops the entry of a slot, unless it has a handle or its referenced bit is set. If the bit
    /// is set, clears it, so that the next call may drop the entry.
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

    /// Locks a line if its lock is free. Does not wait. The line is not the home line of the
    /// caller's key, which the caller has locked already.
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

/// Returns the reach of the line `home`: the largest distance of an entry of its keys from it, in
/// lines.
#[inline(always)]
fn reach_of(home: &Line) -> u64 {
    // ORDERING(mbcache-reach): Acquire. See `trim`.
    home[REACH].load(Ordering::Acquire)
}

/// Returns both slots of a line. The preferred slot of `value` comes first.
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
    // If the entry has ended since its state was loaded, the pair does not exist any more.
    (is_it && slots::is_still(slot.words, state)).then_some((slot, state))
}

/// Returns the preferred slot of a value: the slot of a line that the value gets if both slots are
/// free.
///
/// Values are places of blobs, and a store often numbers them in a row. So if a key has two values,
/// each is usually in its preferred slot. `get` looks in the preferred slot first, and the
/// processor predicts that the pair is there.
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
