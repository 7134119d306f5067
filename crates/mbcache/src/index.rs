//! The index: buckets of one cache line each, walked without a lock.
//!
//! A line has a header, a link and two entries. A bucket is one line, and further ones linked behind it
//! as far as they are needed: so most operations touch one line of shared memory. Each of these lines
//! costs as much for its header and link as an entry has words less than four.
//!
//! ```text
//! word 0     header of the bucket, in its first line
//! word 1     number of the next line; 0 is none
//! words 2..5 an entry
//! words 5..8 another one
//! ```
//!
//! An entry stays in its slot until it ends, and it ends in one step on its own word, without a lock.
//! To create needs the bucket's lock, a bit of the header: so a pair is there once. What ended leaves a
//! slot that the bucket's next entry takes; lines are given back only when there is none left
//! (`reclaim`), and then entries move to the front of their bucket.
//!
//! A reader looks at all slots of a bucket. Each copy of a slot proves itself (`slots`); that nothing was
//! *missed* is proved by the header, which is different after entries have moved. Before each step to
//! another line and at the end it looks at the header again, and begins anew if it must, after
//! [`TRIES`] times with the lock.
//!
//! Creation stamps the entry with a number that grows, kept in the header: so it is known which entry of
//! a bucket is older, wherever it stands.
//!
//! The number of buckets is fixed.
//!
//! # Invariants
//! - I.1: lines are taken out of a bucket, and entries moved, between `Locked::begin_moves` and the end of
//!   that lock.
//! - I.2: the stamp of a bucket is later than that of every entry that ever was in one of its lines.
//!
//! # Locks
//! The lock of a bucket is a bit of its header. It is held for some 20 ns, unless its holder loses its
//! processor: so who waits spins a little, and then sleeps for [`NAP`] at a time. To be woken instead, it
//! would have to be looked for at each unlock, with a second locked instruction; so the unlock is a
//! store.
//!
//! Source: Linux `include/linux/list_bl.h` for the bit, `include/linux/seqlock.h` for the reader;
//! DLHT (HPDC 2024) for the bucket of one line.

use corewalk_sync::SlotArena;
use corewalk_sync::primitives::atomic::{AtomicU64, Ordering, fence};
use corewalk_sync::primitives::{IS_MODEL, hint, thread};
use std::time::Duration;

use crate::order::{self, Rank};
use crate::slots::{self, AGE, Copied, State, Words};

/// Walks without the lock before one with it.
const TRIES: u32 = if IS_MODEL { 1 } else { 16 };
/// Rounds for which somebody who waits for a lock spins, of about 10 ns each.
const SPINS: u32 = if IS_MODEL { 0 } else { 64 };
/// For how long it sleeps then; a holder that lost its processor gets it back after some milliseconds.
#[cfg_attr(
    any(corewalk_loom, corewalk_shuttle),
    expect(dead_code, reason = "a model knows no time")
)]
const NAP: Duration = Duration::from_micros(50);

/// Entries that a bucket counts before it starts again.
const CREATED_MAX: u64 = if IS_MODEL { 2 } else { 1 << 31 };

/// Words of a line.
pub(crate) const LINE_WORDS: usize = 8;
/// Entries of a line.
pub(crate) const SLOTS: u32 = 2;
/// Words of a line by what they hold.
const HEADER: usize = 0;
const LINK: usize = 1;
const ENTRIES: usize = 2;

const LOCKED: u64 = 1 << 0;
const MOVING: u64 = 1 << 1;

/// The words of one line.
///
/// The header of a bucket, which is that of its first line:
///
/// | bits | meaning | who changes it |
/// |---|---|---|
/// | 0 | locked | who takes and gives the lock |
/// | 1 | moving: a miss proves nothing | who holds the lock |
/// | 22..64 | stamp of the next entry; also grows when entries were moved | who gives the lock |
///
/// In a line that is not the first of a bucket, the header has the stamp that the bucket had when it gave
/// the line away; and the link of a line that is in no bucket leads to the next such line.
///
/// The upper half of the link of a bucket's first line counts the entries that were created in it.
pub(crate) type Line = [AtomicU64; LINE_WORDS];

/// Something moved meanwhile: what was read proves nothing.
#[derive(Debug)]
pub(crate) struct Torn;

/// Where an entry could be.
pub(crate) enum Seat<'a> {
    /// The pair is there.
    Taken,
    /// In this slot.
    Free(&'a Words),
    /// Behind this line, which is the bucket's last.
    Behind(&'a Line),
}

/// All lines of a cache.
pub(crate) struct Index {
    lines: SlotArena<LINE_WORDS>,
    buckets: u32,
}

/// A bucket that is locked: the witness for changes in it.
pub(crate) struct Locked<'a> {
    index: &'a Index,
    first: &'a Line,
    /// The header as it will be when it is unlocked.
    header: u64,
    _order: order::Place,
}

impl Index {
    /// Returns `buckets` empty buckets and `spare` lines to link behind them.
    pub(crate) fn new(buckets: u32, spare: u32) -> std::io::Result<Index> {
        debug_assert!(buckets > 0);
        let lines = SlotArena::new("mbcache", buckets + spare)?;
        lines.extend_to(buckets - 1);
        Ok(Index { lines, buckets })
    }

    /// Returns the number of buckets. Their first lines have the numbers below it.
    pub(crate) fn buckets(&self) -> u32 {
        self.buckets
    }

    /// Returns how many lines are in use, or were; those have the lowest numbers.
    pub(crate) fn lines(&self) -> u32 {
        self.lines.len_touched()
    }

    /// Counts the lines up to `line` as in use.
    pub(crate) fn extend_to(&self, line: u32) {
        self.lines.extend_to(line);
    }

    /// Returns the bytes of lines that are in use, or were.
    pub(crate) fn bytes(&self) -> u64 {
        self.lines.bytes_committed()
    }

    /// Returns the bucket of a hash.
    #[inline(always)]
    pub(crate) fn bucket(&self, hash: u64) -> u32 {
        (((hash >> 32) * u64::from(self.buckets)) >> 32) as u32
    }

    #[inline(always)]
    pub(crate) fn line(&self, line: u32) -> &Line {
        self.lines.get(line)
    }

    /// Returns the words of a slot; slots are numbered line by line.
    #[inline]
    pub(crate) fn slot(&self, slot: u32) -> &Words {
        words(self.line(slot / SLOTS), slot % SLOTS)
    }

    /// Returns true if there is such a slot.
    pub(crate) fn has_slot(&self, slot: u32) -> bool {
        slot / SLOTS < self.lines.max_slots()
    }

    /// Calls `find` until nothing moves meanwhile, in the end with the bucket locked.
    #[inline]
    pub(crate) fn retry<R>(&self, bucket: u32, mut find: impl FnMut() -> Result<R, Torn>) -> R {
        for _ in 0..TRIES {
            if let Ok(found) = find() {
                return found;
            }
        }
        self.retry_locked(bucket, find)
    }

    #[cold]
    fn retry_locked<R>(&self, bucket: u32, mut find: impl FnMut() -> Result<R, Torn>) -> R {
        let _locked = self.lock(bucket);
        loop {
            // Handles come and go in a locked bucket, too; nothing else does but ends.
            if let Ok(found) = find() {
                return found;
            }
            hint::spin_loop();
        }
    }

    /// Calls `probe` with every line of `bucket`, and its number, until it returns something.
    #[inline(always)]
    pub(crate) fn walk_lines<R>(
        &self,
        bucket: u32,
        mut probe: impl FnMut(&Line, u32) -> Option<R>,
    ) -> Result<Option<R>, Torn> {
        let first = self.line(bucket);
        // ORDERING(mbcache-header): Acquire. See `Locked::drop`.
        let before = first[HEADER].load(Ordering::Acquire);
        let (mut number, mut line) = (bucket, first);
        loop {
            if let Some(found) = probe(line, number) {
                return Ok(Some(found));
            }
            let link = link_of(line);
            // ORDERING(mbcache-moving): Acquire fence. See `Locked::begin_moves`.
            fence(Ordering::Acquire);
            // ORDERING: Relaxed. The fence orders it.
            let after = first[HEADER].load(Ordering::Relaxed);
            if (before ^ after) & !LOCKED != 0 || before & MOVING != 0 {
                return Err(Torn);
            }
            if link == 0 {
                return Ok(None);
            }
            (number, line) = (link, self.line(link));
        }
    }

    /// Calls `probe` with every entry of `bucket` until it returns something.
    #[inline(always)]
    pub(crate) fn walk<R>(
        &self,
        bucket: u32,
        mut probe: impl FnMut(&Copied) -> Option<R>,
    ) -> Result<Option<R>, Torn> {
        self.walk_lines(bucket, |line, number| {
            (0..SLOTS).find_map(|nth| {
                slots::copy(words(line, nth), SLOTS * number + nth)
                    .and_then(|copied| probe(&copied))
            })
        })
    }

    /// Returns the slot and the state of a pair.
    #[inline(always)]
    pub(crate) fn look_up(
        &self,
        bucket: u32,
        pair: (u64, u64),
    ) -> Result<Option<(u32, State)>, Torn> {
        let found = self.walk_lines(bucket, |line, number| {
            let (nth, state) = pair_in(line, pair)?;
            Some((SLOTS * number + nth, state, slots::is_still(words(line, nth), state)))
        })?;
        match found {
            Some((_, _, false)) => Err(Torn),
            found => Ok(found.map(|(slot, state, _)| (slot, state))),
        }
    }

    /// Returns the number of entries, and of those that were created and not counted elsewhere, by looking
    /// at all lines.
    pub(crate) fn census(&self) -> (u64, u64) {
        let (mut entries, mut created) = (0, 0);
        for number in 0..self.lines() {
            let line = self.line(number);
            for nth in 0..SLOTS {
                entries += u64::from(slots::state(words(line, nth)).is_live());
            }
            if number < self.buckets {
                // ORDERING: Relaxed. Statistic; nothing is published through it.
                created += line[LINK].load(Ordering::Relaxed) >> 32;
            }
        }
        (entries, created)
    }

    /// Locks `bucket`.
    #[inline]
    pub(crate) fn lock(&self, bucket: u32) -> Locked<'_> {
        let order = order::enter(Rank::Bucket);
        let first = self.line(bucket);
        // ORDERING: Relaxed. The compare-exchange decides.
        let now = first[HEADER].load(Ordering::Relaxed);
        let is_free = now & LOCKED == 0;
        // ORDERING(mbcache-header): Acquire. See `Locked::drop`.
        let header = if is_free
            && first[HEADER]
                .compare_exchange(now, now | LOCKED, Ordering::Acquire, Ordering::Relaxed)
                .is_ok()
        {
            now
        } else {
            lock_slow(&first[HEADER])
        };
        Locked { index: self, first, header, _order: order }
    }
}

impl<'a> Locked<'a> {
    /// Returns where the entry of a pair could be.
    #[inline]
    pub(crate) fn seat(&self, pair: (u64, u64)) -> Seat<'a> {
        let (mut free, mut line) = (None, self.first);
        loop {
            if pair_in(line, pair).is_some() {
                return Seat::Taken;
            }
            if free.is_none() {
                let [one, two] = [0, 1].map(|nth| slots::state(words(line, nth)).is_live());
                free = (!(one & two)).then(|| words(line, u32::from(one)));
            }
            match link_of(line) {
                0 => return free.map_or(Seat::Behind(line), Seat::Free),
                link => line = self.index.line(link),
            }
        }
    }

    /// Makes a free slot of the bucket an entry, the newest. Returns entries to add to those that the
    /// buckets have counted.
    #[inline]
    pub(crate) fn fill(&mut self, words: &Words, pair: (u64, u64), is_reusable: bool) -> u64 {
        slots::fill(words, pair, is_reusable, self.header);
        self.header = self.header.wrapping_add(AGE);
        // ORDERING: Relaxed. Written under the lock only.
        let link = self.first[LINK].load(Ordering::Relaxed);
        let created = (link >> 32) + 1;
        let (left, full) = if created == CREATED_MAX { (0, created) } else { (created, 0) };
        let link = (left << 32) | u64::from(link as u32);
        // ORDERING(mbcache-link): Release. As when it was linked.
        self.first[LINK].store(link, Ordering::Release);
        full
    }

    /// Links a line of the caller's, whose slots are free, behind the bucket's last; returns a slot of it.
    pub(crate) fn link(&mut self, last: &Line, number: u32) -> &'a Words {
        let line = self.index.line(number);
        set_link(line, 0);
        // What was in the line under another bucket must not come again (I.2).
        // ORDERING: Relaxed. The line is the caller's.
        let ahead = line[HEADER].load(Ordering::Relaxed).wrapping_sub(self.header);
        if (ahead as i64) > 0 {
            self.header = self.header.wrapping_add(ahead);
        }
        relink(last, number);
        words(line, 0)
    }

    /// Calls `each` with every living entry of the bucket, and returns how many lines it has.
    pub(crate) fn each(&self, mut each: impl FnMut(&Words)) -> u32 {
        let (mut line, mut lines) = (self.first, 1);
        loop {
            let all = (0..SLOTS).map(|nth| words(line, nth));
            all.filter(|words| slots::state(words).is_live()).for_each(&mut each);
            match link_of(line) {
                0 => return lines,
                link => (line, lines) = (self.index.line(link), lines + 1),
            }
        }
    }

    /// Moves entries to the front, and calls `give` with each line that is empty then and not in the
    /// bucket any more. What is held stays where it is.
    pub(crate) fn close_ranks(&mut self, mut give: impl FnMut(u32)) {
        self.begin_moves();
        let mut front = (self.first, 0);
        let (mut before, mut number) = (self.first, link_of(self.first));
        while number != 0 {
            let line = self.index.line(number);
            let mut is_empty = true;
            for nth in 0..SLOTS {
                let from = words(line, nth);
                if slots::state(from).is_live() {
                    let free = self.next_free(&mut front, line);
                    is_empty &= free.is_some_and(|free| slots::relocate(from, free))
                        || !slots::state(from).is_live();
                }
            }
            let next = link_of(line);
            if is_empty {
                relink(before, next);
                // ORDERING: Relaxed. The line is this thread's now.
                line[HEADER].store(self.header, Ordering::Relaxed);
                give(number);
            } else {
                before = line;
            }
            number = next;
        }
    }

    /// Returns the next free slot from `front` on, if there is one before the line `end`.
    fn next_free(&self, front: &mut (&'a Line, u32), end: &Line) -> Option<&'a Words> {
        loop {
            for nth in front.1..SLOTS {
                let words = words(front.0, nth);
                if !slots::state(words).is_live() {
                    front.1 = nth;
                    return Some(words);
                }
            }
            front.1 = SLOTS;
            let next = self.index.line(link_of(front.0));
            if std::ptr::eq(next, end) {
                // That one may be about to leave the bucket.
                return None;
            }
            *front = (next, 0);
        }
    }

    /// Tells readers that from here on until the end of the lock a miss proves nothing.
    pub(crate) fn begin_moves(&mut self) {
        // ORDERING: Relaxed. The fence below orders it.
        self.first[HEADER].store(self.header | LOCKED | MOVING, Ordering::Relaxed);
        // ORDERING(mbcache-moving): Release fence. A reader that sees a slot or a link changed by a move
        // also sees the bit, or a later header.
        fence(Ordering::Release);
        self.header = self.header.wrapping_add(AGE);
    }
}

impl Drop for Locked<'_> {
    #[inline]
    fn drop(&mut self) {
        // ORDERING(mbcache-header): Release. What was done under the lock happens before the next lock,
        // and before a reader that begins with this header. Nobody else changes it meanwhile.
        self.first[HEADER].store(self.header, Ordering::Release);
    }
}

/// Returns a slot of a line.
#[inline(always)]
pub(crate) fn words(line: &Line, nth: u32) -> &Words {
    line[ENTRIES + nth as usize * slots::WORDS..].first_chunk().expect("a line has two slots")
}

/// Returns which of a line's slots has a pair, and what it said. It says whether the entry lives, but
/// may have changed since.
#[inline(always)]
fn pair_in(line: &Line, pair: (u64, u64)) -> Option<(u32, State)> {
    // Both are looked at before either is decided on: which one it is nobody can predict.
    let [one, two] = [0, 1].map(|nth| {
        let words = words(line, nth);
        let state = slots::state(words);
        (slots::difference(words, state, pair), state)
    });
    if one.0.min(two.0) != 0 {
        return None;
    }
    let nth = u32::from(one.0 != 0);
    Some((nth, if nth == 0 { one.1 } else { two.1 }))
}

/// Returns the number of the next line of the bucket; 0 if there is none.
#[inline(always)]
pub(crate) fn link_of(line: &Line) -> u32 {
    // ORDERING(mbcache-link): Acquire. The linked line is free of what it was before.
    line[LINK].load(Ordering::Acquire) as u32
}

/// Links the lines that are in no bucket; they are the caller's.
pub(crate) fn set_link(line: &Line, next: u32) {
    // ORDERING(mbcache-link): Release. A late reader of the line sees in its bucket's header that it has
    // gone astray: that was changed before.
    line[LINK].store(u64::from(next), Ordering::Release);
}

/// Changes the number of the next line. The caller has locked the bucket.
fn relink(line: &Line, next: u32) {
    // ORDERING: Relaxed. Written under the lock only.
    let created = line[LINK].load(Ordering::Relaxed) & !u64::from(u32::MAX);
    // ORDERING(mbcache-link): Release. See `link_of`.
    line[LINK].store(created | u64::from(next), Ordering::Release);
}

/// Takes a lock that is not free, or was not a moment ago; returns the header from before.
#[cold]
fn lock_slow(header: &AtomicU64) -> u64 {
    let mut spins = 0;
    loop {
        // ORDERING: Relaxed. The compare-exchange decides.
        let now = header.load(Ordering::Relaxed);
        // ORDERING(mbcache-header): Acquire. See `Locked::drop`.
        let take = || {
            header.compare_exchange(now, now | LOCKED, Ordering::Acquire, Ordering::Relaxed).is_ok()
        };
        if now & LOCKED == 0 && take() {
            return now;
        }
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
