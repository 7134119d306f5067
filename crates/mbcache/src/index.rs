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
//! A reader looks at all slots of a bucket. What it reads of a slot proves itself (`slots`); that nothing was
//! *missed* is proved by the header, which is different after entries have moved. Before each step to
//! another line and at the end it looks at the header again, and begins anew if it must, after
//! [`TRIES`] times with the lock.
//!
//! Creation stamps the entry with a number that grows, kept in the header: so it is known which entry of
//! a bucket is older, wherever it stands, which one is the newest of all, and how many there ever were.
//!
//! # Home
//!
//! A value says which slot of the first line is its pair's *home*: an entry is put there if that is free. To
//! get or delete a pair looks at its home first, and to create looks there for a place: nearly always that is
//! all, and the branch is predicted. So a processor that waits for the line of one pair has room to begin with the
//! next one, which is what counts where the index does not fit in its caches: it holds some hundreds of
//! instructions, and a branch that turns out otherwise when the line has come throws them away. Before, both
//! entries were read and picked from by arithmetic, which took more instructions, and had a step on an
//! entry wait until it was known which. Elsewhere that is still so: on a walk both entries of a line are read before
//! either is decided on, as nobody can predict which it is. It is left to the compiler to make no branch of
//! that.
//!
//! A home says nothing of what is *not* there. Values that are all even share one: of two such values of
//! a key one is found on a walk.
//!
//! The number of buckets is fixed.
//!
//! # Invariants
//! - I.1: lines are taken out of a bucket, and entries moved, between `Locked::begin_moves` and the end of
//!   that lock.
//! - I.2: the stamp of a bucket is later than that of every entry that ever was in one of its lines. Of stamps that
//!   are 2^41 apart it is not known which one is later: that takes 30 hours of creations in one bucket, without
//!   pause and at 50 ns each.
//!
//! # Locks
//! The lock of a bucket is a bit of its header. It is held for some 20 ns, unless its holder loses its
//! processor: so who waits spins a little, and then sleeps for [`NAP`] at a time. To be woken instead, it
//! would have to be looked for at each unlock, with a second locked instruction; so the unlock is a
//! store.
//!
//! Source: Linux `include/linux/list_bl.h` for the bit, `include/linux/seqlock.h` for the reader;
//! DLHT (HPDC 2024) for the bucket of one line.

use corewalk_base::CachePadded;
use corewalk_base::primitives::atomic::{AtomicU64, Ordering, fence};
use corewalk_base::primitives::{IS_MODEL, hint, thread, unmodelled};
use corewalk_sync::SlotArena;
use std::time::Duration;

use crate::order::{self, Rank};
use crate::slots::{self, AGE, State, Words};

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

/// Words of a line.
pub(crate) const LINE_WORDS: usize = 8;
/// Entries of a line.
pub(crate) const SLOTS: u32 = 2;
/// Words of a line by what they hold.
pub(crate) const HEADER: usize = 0;
const LINK: usize = 1;
const ENTRIES: usize = 2;

pub(crate) const LOCKED: u64 = 1 << 0;
pub(crate) const MOVING: u64 = 1 << 1;

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
/// So the stamps of all buckets together, less what they were [skipped](`Index::skipped`), are the entries
/// that were created: nobody has to count those.
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
    /// Stamps that no entry got, since something moved, or a line brought a later one.
    skipped: CachePadded<unmodelled::AtomicU64>,
}

/// An entry that was found.
#[derive(Clone, Copy)]
pub(crate) struct Found<'a> {
    pub(crate) words: &'a Words,
    pub(crate) slot: u32,
    pub(crate) state: State,
}

/// What is looked for by `Index::newest`: a key, by ages against this header, of at least so much.
#[derive(Clone, Copy)]
struct Wanted {
    key: u64,
    header: u64,
    least: i64,
}

/// How far a bucket goes, or a part of it from the first line on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Extent {
    pub(crate) lines: u32,
    pub(crate) entries: u32,
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
        Ok(Index { lines, buckets, skipped: CachePadded::default() })
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
    pub(crate) fn walk_lines<'a, R>(
        &'a self,
        bucket: u32,
        mut probe: impl FnMut(&'a Line, u32) -> Option<R>,
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
            is_unmoved(first, before)?;
            if link == 0 {
                return Ok(None);
            }
            (number, line) = (link, self.line(link));
        }
    }

    /// Returns the entry of a pair, if it is there and at home; torn or not, as with `glimpse`.
    ///
    /// Most are, and to look nowhere else takes a third of the instructions.
    #[inline(always)]
    pub(crate) fn at_home(&self, bucket: u32, pair: (u64, u64)) -> Option<Found<'_>> {
        let nth = home(pair.1);
        let words = words(self.line(bucket), nth);
        let state = slots::state(words);
        let is_it = slots::difference(words, state, pair) == 0;
        is_it.then_some(Found { words, slot: SLOTS * bucket + nth, state })
    }

    /// Returns the entry of a pair, if it is there; what it says of the pair may be torn until
    /// [`slots::is_still`] or a change of that very state agrees.
    #[inline(always)]
    pub(crate) fn glimpse(&self, bucket: u32, pair: (u64, u64)) -> Result<Option<Found<'_>>, Torn> {
        self.walk_lines(bucket, |line, number| {
            let (nth, state) = pair_in(line, pair)?;
            Some(Found { words: words(line, nth), slot: SLOTS * number + nth, state })
        })
    }

    /// Returns the entry of a pair, if it is there.
    #[inline(always)]
    pub(crate) fn look_up(&self, bucket: u32, pair: (u64, u64)) -> Result<Option<Found<'_>>, Torn> {
        match self.glimpse(bucket, pair)? {
            Some(found) if !slots::is_still(found.words, found.state) => Err(Torn),
            found => Ok(found),
        }
    }

    /// Returns the newest entry under `key` that may be found, among those `before` some, if there is
    /// one. It may be torn, as with [`Index::glimpse`].
    #[inline(always)]
    pub(crate) fn newest(
        &self,
        bucket: u32,
        key: u64,
        before: Option<State>,
    ) -> Result<Option<Found<'_>>, Torn> {
        let first = self.line(bucket);
        // ORDERING(mbcache-header): Acquire. See `Locked::drop`.
        let header = first[HEADER].load(Ordering::Acquire);
        let wanted = Wanted::new(key, header, before);
        let (age, found) = newest_in(first, bucket, wanted);
        let link = link_of(first);
        is_unmoved(first, header)?;
        // What was created last has nothing newer behind it.
        if link == 0 || age == AGE as i64 {
            return Ok((age != i64::MAX).then_some(found));
        }
        // Handing over what was found so far would cost more than to look again.
        self.newest_of_all(bucket, key, before)
    }

    /// As `newest`, in a bucket of several lines.
    #[inline(never)]
    fn newest_of_all(
        &self,
        bucket: u32,
        key: u64,
        before: Option<State>,
    ) -> Result<Option<Found<'_>>, Torn> {
        let first = self.line(bucket);
        // ORDERING(mbcache-header): Acquire. See `Locked::drop`.
        let header = first[HEADER].load(Ordering::Acquire);
        let wanted = Wanted::new(key, header, before);
        let mut newest = newest_in(first, bucket, wanted);
        let mut link = link_of(first);
        is_unmoved(first, header)?;
        while link != 0 && newest.0 != AGE as i64 {
            let line = self.line(link);
            let other = newest_in(line, link, wanted);
            if other.0 < newest.0 {
                newest = other;
            }
            link = link_of(line);
            is_unmoved(first, header)?;
        }
        Ok((newest.0 != i64::MAX).then_some(newest.1))
    }

    /// Returns the number of entries, and of those that were ever created, by looking at all lines.
    pub(crate) fn census(&self) -> (u64, u64) {
        let (mut entries, mut created) = (0, 0);
        for number in 0..self.lines() {
            let line = self.line(number);
            for nth in 0..SLOTS {
                entries += u64::from(slots::state(words(line, nth)).is_live());
            }
            if number < self.buckets {
                // ORDERING: Relaxed. Statistic; nothing is published through it.
                created += line[HEADER].load(Ordering::Relaxed) / AGE;
            }
        }
        // ORDERING: Relaxed. As above.
        (entries, created.saturating_sub(self.skipped.load(Ordering::Relaxed)))
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

impl Extent {
    /// Returns how many entries more there are than fit in one line less.
    pub(crate) fn too_many(self) -> u32 {
        self.entries.saturating_sub(SLOTS * (self.lines - 1))
    }
}

impl Wanted {
    #[inline(always)]
    fn new(key: u64, header: u64, before: Option<State>) -> Wanted {
        Wanted { key, header, least: before.map_or(i64::MIN, |entry| entry.age(header) + 1) }
    }
}

impl<'a> Locked<'a> {
    /// Returns the home of a pair, if it is free, and the pair not there: in a bucket of one line only.
    #[inline(always)]
    pub(crate) fn seat_at_home(&self, pair: (u64, u64)) -> Option<&'a Words> {
        let home = home(pair.1);
        let [words, other] = [home, home ^ 1].map(|nth| words(self.first, nth));
        let is_free = !slots::state(words).is_live() && link_of(self.first) == 0;
        (is_free && slots::difference(other, slots::state(other), pair) != 0).then_some(words)
    }

    /// Returns where the entry of a pair could be.
    pub(crate) fn seat(&self, pair: (u64, u64)) -> Seat<'a> {
        match (seat_in(self.first, pair), link_of(self.first)) {
            (seat, 0) => seat,
            (Seat::Taken, _) => Seat::Taken,
            (seat, link) => self.seat_behind(pair, seat, link),
        }
    }

    /// Returns where the entry of a pair could be, that is not in the lines before `link`, which have
    /// `seat` for it.
    fn seat_behind(&self, pair: (u64, u64), mut seat: Seat<'a>, mut link: u32) -> Seat<'a> {
        while link != 0 {
            let line = self.index.line(link);
            seat = match (seat_in(line, pair), seat) {
                (Seat::Taken, _) => return Seat::Taken,
                (_, Seat::Free(words)) => Seat::Free(words),
                (seat, _) => seat,
            };
            link = link_of(line);
        }
        seat
    }

    /// Makes a free slot of the bucket an entry, the newest.
    #[inline(always)]
    pub(crate) fn fill(&mut self, words: &Words, pair: (u64, u64)) {
        slots::fill(words, pair, self.header);
        self.header = self.header.wrapping_add(AGE);
    }

    /// Makes the stamp of the next entry `by` later.
    fn skip(&mut self, by: u64) {
        self.header = self.header.wrapping_add(by);
        // ORDERING: Relaxed. Statistic; nothing is published through it.
        self.index.skipped.fetch_add(by / AGE, unmodelled::Ordering::Relaxed);
    }

    /// Links a line of the caller's, whose slots are free, behind the bucket's last; returns a slot of it.
    pub(crate) fn link(&mut self, last: &Line, number: u32) -> &'a Words {
        let line = self.index.line(number);
        set_link(line, 0);
        // What was in the line under another bucket must not come again (I.2).
        // ORDERING: Relaxed. The line is the caller's.
        let ahead = line[HEADER].load(Ordering::Relaxed).wrapping_sub(self.header);
        if (ahead as i64) > 0 {
            self.skip(ahead);
        }
        // ORDERING(mbcache-link): Release. See `link_of`.
        last[LINK].store(u64::from(number), Ordering::Release);
        words(line, 0)
    }

    /// Calls `each` with every living entry of the bucket's first `lines` lines.
    pub(crate) fn each(&self, lines: u32, mut each: impl FnMut(&'a Words)) {
        let mut line = self.first;
        for _ in 0..lines {
            let all = (0..SLOTS).map(|nth| words(line, nth));
            all.filter(|words| slots::state(words).is_live()).for_each(&mut each);
            match link_of(line) {
                0 => return,
                link => line = self.index.line(link),
            }
        }
    }

    /// Returns the extent of the bucket, and of it up to the last line, but the first, in which nothing is
    /// held: that is one that [`Locked::close_ranks`] can empty.
    pub(crate) fn extents(&self) -> (Extent, Option<Extent>) {
        let (mut all, mut to_empty) = (Extent { lines: 0, entries: 0 }, None);
        let mut line = self.first;
        loop {
            let states = [0, 1].map(|nth| slots::state(words(line, nth)));
            all.lines += 1;
            all.entries += states.iter().map(|state| u32::from(state.is_live())).sum::<u32>();
            if all.lines > 1 && states.iter().all(|state| state.count() == 0) {
                to_empty = Some(all);
            }
            match link_of(line) {
                0 => return (all, to_empty),
                link => line = self.index.line(link),
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
                // ORDERING(mbcache-link): Release. See `link_of`.
                before[LINK].store(u64::from(next), Ordering::Release);
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
        self.skip(AGE);
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

/// Returns where the entry of a pair could be, as far as one line says, which nobody else fills.
#[inline(always)]
fn seat_in(line: &Line, pair: (u64, u64)) -> Seat<'_> {
    let [one, two] = [0, 1].map(|nth| {
        let words = words(line, nth);
        let state = slots::state(words);
        (slots::difference(words, state, pair), state.is_live())
    });
    if one.0.min(two.0) == 0 {
        return Seat::Taken;
    }
    if one.1 & two.1 {
        return Seat::Behind(line);
    }
    let home = home(pair.1);
    let is_home_taken = if home == 0 { one.1 } else { two.1 };
    Seat::Free(words(line, home ^ u32::from(is_home_taken)))
}

/// Returns which slot of a line is the home of an entry with this value.
///
/// Values are places, and of places that are given out in a row each has another home than the one before.
#[inline(always)]
fn home(value: u64) -> u32 {
    value as u32 % SLOTS
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

/// Says whether nothing moved in a bucket since its header was `before`, while other words were read.
#[inline(always)]
fn is_unmoved(first: &Line, before: u64) -> Result<(), Torn> {
    // ORDERING(mbcache-moving): Acquire fence. See `Locked::begin_moves`.
    fence(Ordering::Acquire);
    // ORDERING: Relaxed. The fence orders it.
    let after = first[HEADER].load(Ordering::Relaxed);
    let is_same = (before ^ after) & !LOCKED == 0 && before & MOVING == 0;
    if is_same { Ok(()) } else { Err(Torn) }
}

/// Returns the newest entry of a line that is wanted, and its age, which is `i64::MAX` if there is none.
#[inline(always)]
fn newest_in(line: &Line, number: u32, wanted: Wanted) -> (i64, Found<'_>) {
    // All is looked at before anything is decided on, as in `pair_in`.
    let [one, two] = [0, 1].map(|nth| {
        let words = words(line, nth);
        let state = slots::state(words);
        let age = slots::age_if(words, state, wanted.key, wanted.header);
        (if age >= wanted.least { age } else { i64::MAX }, state)
    });
    let nth = u32::from(two.0 < one.0);
    let state = if nth == 0 { one.1 } else { two.1 };
    (one.0.min(two.0), Found { words: words(line, nth), slot: SLOTS * number + nth, state })
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
