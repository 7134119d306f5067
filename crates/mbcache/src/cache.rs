//! The cache itself: create, find, get, delete, and the switch.
//!
//! Finds and gets walk the index without a lock, and to delete is one step on the entry's own word. To
//! create takes the lock of one bucket, so a pair is there once. An entry is in the index from when it is
//! live until it is not: there is no list beside it that it could be on too late or too long (trap T36).
//!
//! Source: Linux `fs/mbcache.c`.

use corewalk_base::primitives::atomic::{AtomicBool, AtomicU64, Ordering};
use corewalk_base::{CachePadded, Mutex};
use std::{fmt, io};

use crate::counts::{Counts, Event};
use crate::handle::{Busy, Entry, Seen};
use crate::hash::Secret;
use crate::index::{Found, Index, LINE_WORDS, Locked, SLOTS, Seat, Torn};
use crate::reclaim::Turn;
use crate::room::{self, Room};
use crate::sleepers::Sleepers;
use crate::slots::{self, Put, Spare, State, Words};

/// Entries at most; slots are numbered with 32 bits, and there are three times as many.
const ENTRIES_LIMIT: u32 = 1 << 30;

/// How a cache is set up.
///
/// # Examples
///
/// ```
/// use corewalk_mbcache::{Mbcache, MbcacheOptions};
///
/// let options = MbcacheOptions { budget_bytes: 1 << 20, ..MbcacheOptions::default() };
/// let cache = Mbcache::new(options)?;
/// assert!(cache.entries_max() > 10_000);
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct MbcacheOptions {
    /// Bytes that the index may take, free slots included. 16 MiB by default.
    pub budget_bytes: u64,
    /// Entries that are kept at least before any is dropped, if the budget has room for so many;
    /// else it decides. By default it does.
    pub entries_max: u32,
    /// Users of a value from which on it is not shared any more; as in ext4, 1024 by default. With 1 (or 0) none
    /// is shared, and there is nothing to create.
    pub users_max: u32,
    /// Whether it is switched on from the beginning; it is by default.
    pub is_on: bool,
    /// The secret of the hash, for runs that can be repeated. By default it is random.
    pub hash_seed: Option<u64>,
}

impl Default for MbcacheOptions {
    fn default() -> Self {
        Self {
            budget_bytes: 16 << 20,
            entries_max: ENTRIES_LIMIT,
            users_max: 1024,
            is_on: true,
            hash_seed: None,
        }
    }
}

/// Why an entry was not created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CreateError {
    /// The pair is there already (Linux: EBUSY).
    Exists,
    /// The budget is used up: no other bucket of several lines had one to give, since what is in it is held
    /// or was used, and so is what is in the pair's own bucket.
    Full,
    /// The cache is switched off.
    Off,
}

impl fmt::Display for CreateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            CreateError::Exists => "the pair is in the cache already",
            CreateError::Full => "the cache is full, and what could make room is in use",
            CreateError::Off => "the cache is switched off",
        })
    }
}

impl std::error::Error for CreateError {}

/// What a cache holds and has done; exact while nobody changes it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Entries now.
    pub entries: u64,
    /// Bytes of memory in use, at most [`MbcacheOptions::budget_bytes`], all buckets included; it never
    /// goes down.
    pub bytes: u64,
    /// Entries created.
    pub created: u64,
    /// Creations refused since the pair was there.
    pub duplicates: u64,
    /// Entries deleted by [`Mbcache::delete_or_get`], or since their values had as many users as they may.
    pub deleted: u64,
    /// Deletions refused since the entry was held.
    pub busy: u64,
    /// Entries dropped by [`Mbcache::scan`], or for want of room.
    pub reclaimed: u64,
}

/// A multimap from keys to values, in which pairs are unique.
///
/// See the crate's documentation for the protocol that it is part of.
#[doc(alias = "mb_cache")]
pub struct Mbcache {
    pub(crate) index: Index,
    pub(crate) secret: Secret,
    is_on: AtomicBool,
    users_max: u32,
    entries_max: u32,
    pub(crate) room: Room,
    pub(crate) sleepers: CachePadded<Sleepers>,
    /// The slot that a scan looks at next.
    pub(crate) hand: CachePadded<AtomicU64>,
    /// How far the search for lines has come: protected by its own lock.
    pub(crate) turn: CachePadded<Mutex<Turn>>,
    pub(crate) counts: CachePadded<Counts>,
}

impl Mbcache {
    /// Returns an empty cache.
    ///
    /// The address space for all entries is reserved at once; memory is taken as entries come.
    ///
    /// # Errors
    ///
    /// - `EINVAL`: the budget has no room for one entry, or `entries_max` is 0.
    /// - `ENOMEM`: the address space, or a limit on it, is too small.
    ///
    /// # Examples
    ///
    /// ```
    /// use corewalk_mbcache::{Mbcache, MbcacheOptions};
    ///
    /// let cache = Mbcache::new(MbcacheOptions::default())?;
    /// assert_eq!(cache.count(), 0);
    /// let none = MbcacheOptions { budget_bytes: 0, ..MbcacheOptions::default() };
    /// assert!(Mbcache::new(none).is_err());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[doc(alias = "mb_cache_create")]
    pub fn new(options: MbcacheOptions) -> io::Result<Mbcache> {
        let sizes = Sizes::within(options.budget_bytes, options.entries_max)
            .ok_or(io::ErrorKind::InvalidInput)?;
        let index = Index::new(sizes.buckets, sizes.spare)?;
        Ok(Mbcache {
            room: Room::new(&index, sizes.spare),
            index,
            secret: Secret::new(options.hash_seed),
            is_on: AtomicBool::new(options.is_on),
            users_max: options.users_max,
            entries_max: sizes.entries,
            sleepers: CachePadded::default(),
            hand: CachePadded::new(AtomicU64::new(0)),
            turn: CachePadded::default(),
            counts: CachePadded::default(),
        })
    }

    /// Returns how many entries there may be before any is dropped for want of room.
    ///
    /// # Examples
    ///
    /// ```
    /// use corewalk_mbcache::{Mbcache, MbcacheOptions};
    ///
    /// let cache = Mbcache::new(MbcacheOptions { entries_max: 500, ..MbcacheOptions::default() })?;
    /// assert_eq!(cache.entries_max(), 500);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn entries_max(&self) -> u32 {
        self.entries_max
    }

    /// Returns how many users a value may have.
    ///
    /// # Examples
    ///
    /// ```
    /// use corewalk_mbcache::{Mbcache, MbcacheOptions};
    ///
    /// let cache = Mbcache::new(MbcacheOptions::default())?;
    /// assert_eq!(cache.users_max(), 1024);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn users_max(&self) -> u32 {
        self.users_max
    }

    /// Returns the entry of a pair, if it is there, and marks it as used. It is not held.
    ///
    /// It takes no lock, and stores nothing if the entry was used since reclaim last looked at it; unless its bucket
    /// changes under one look after the other (see the crate's documentation). Whether the value may have more users
    /// does not matter here.
    ///
    /// # Examples
    ///
    /// ```
    /// use corewalk_mbcache::{Mbcache, MbcacheOptions};
    ///
    /// let cache = Mbcache::new(MbcacheOptions::default())?;
    /// cache.create(1, 10)?;
    /// assert!(cache.get(1, 10).is_some() && cache.get(1, 11).is_none());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[doc(alias = "mb_cache_entry_get")]
    #[inline]
    #[must_use]
    pub fn get(&self, key: u64, value: u64) -> Option<Seen<'_>> {
        if !self.is_on() {
            return None;
        }
        let bucket = self.bucket(key);
        match self.index.at_home(bucket, (key, value)) {
            Some(Found { words, slot, state })
                if state.is_referenced() && slots::is_still(words, state) =>
            {
                Some(Seen { cache: self, slot, state })
            }
            _ => self.get_anywhere(bucket, (key, value)),
        }
    }

    /// As `get`, of a pair that is not at home, or was not used.
    #[inline(never)]
    fn get_anywhere(&self, bucket: u32, pair: (u64, u64)) -> Option<Seen<'_>> {
        loop {
            let seen = self.look_up(bucket, pair)?;
            // If not, it has ended, or moved.
            if seen.state.is_referenced() || slots::touch(seen.words, seen.state) {
                return Some(Seen { cache: self, slot: seen.slot, state: seen.state });
            }
        }
    }

    /// Returns a handle of an entry that was seen, if it has not ended since and nobody waits to delete it.
    ///
    /// If the cache was short of room since, the entry may have moved: that counts as an end here. What was seen in
    /// another cache leads nowhere.
    ///
    /// # Examples
    ///
    /// ```
    /// use corewalk_mbcache::{Mbcache, MbcacheOptions};
    ///
    /// let cache = Mbcache::new(MbcacheOptions::default())?;
    /// cache.create(1, 10)?;
    /// let seen = cache.get(1, 10).expect("it was just created");
    /// let held = cache.hold(seen).expect("it is still there");
    /// assert!(cache.delete_or_get(1, 10).is_some(), "it is held");
    /// drop(held);
    /// assert!(cache.delete_or_get(1, 10).is_none() && cache.hold(seen).is_none());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn hold(&self, seen: Seen<'_>) -> Option<Entry<'_>> {
        if !std::ptr::eq(self, seen.cache) {
            return None;
        }
        let words = self.index.slot(seen.slot);
        slots::hold(words, seen.state).then(|| Entry {
            cache: self,
            words,
            slot: seen.slot,
            state: seen.state,
        })
    }

    /// Returns the newest entry under `key` whose value may have more users, held.
    ///
    /// Not found does not mean that there is none: it may have been dropped for want of room.
    ///
    /// # Examples
    ///
    /// ```
    /// use corewalk_mbcache::{Mbcache, MbcacheOptions};
    ///
    /// let cache = Mbcache::new(MbcacheOptions::default())?;
    /// cache.create(1, 10)?;
    /// cache.create(1, 11)?;
    /// assert_eq!(cache.find_first(1).map(|entry| entry.value()), Some(11));
    /// assert!(cache.find_first(2).is_none());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[doc(alias = "mb_cache_entry_find_first")]
    #[inline]
    #[must_use]
    pub fn find_first(&self, key: u64) -> Option<Entry<'_>> {
        if !self.is_on() {
            return None;
        }
        self.find_older(key, None)
    }

    /// Returns the next older entry than `entry` under its key whose value may have more users, held.
    ///
    /// `entry` stays held, and is what the search goes on from: drop it afterwards. From an entry of
    /// another cache it leads nowhere.
    ///
    /// # Examples
    ///
    /// ```
    /// use corewalk_mbcache::{Mbcache, MbcacheOptions};
    ///
    /// let cache = Mbcache::new(MbcacheOptions::default())?;
    /// for value in [10, 11, 12] {
    ///     cache.create(1, value)?;
    /// }
    /// let mut values = Vec::new();
    /// let mut found = cache.find_first(1);
    /// while let Some(entry) = found {
    ///     values.push(entry.value());
    ///     found = cache.find_next(&entry);
    /// }
    /// assert_eq!(values, [12, 11, 10]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[doc(alias = "mb_cache_entry_find_next")]
    #[must_use]
    pub fn find_next(&self, entry: &Entry<'_>) -> Option<Entry<'_>> {
        let is_ours = std::ptr::eq(self, entry.cache);
        if !is_ours || !self.is_on() {
            return None;
        }
        self.find_older(entry.key(), Some(entry.state))
    }

    #[inline(always)]
    fn find_older(&self, key: u64, limit: Option<State>) -> Option<Entry<'_>> {
        let bucket = self.bucket(key);
        let found = match self.find_in(bucket, key, limit) {
            Ok(found) => found,
            Err(Torn) => self.find_again(bucket, key, limit),
        };
        found.map(|Found { words, slot, state }| Entry { cache: self, words, slot, state })
    }

    #[cold]
    fn find_again(&self, bucket: u32, key: u64, limit: Option<State>) -> Option<Found<'_>> {
        self.index.retry(bucket, || self.find_in(bucket, key, limit))
    }

    /// Holds the newest of the entries that may be found and are older than `limit`.
    #[inline(always)]
    fn find_in(
        &self,
        bucket: u32,
        key: u64,
        limit: Option<State>,
    ) -> Result<Option<Found<'_>>, Torn> {
        let newest = self.index.newest(bucket, key, limit)?;
        match newest {
            Some(found) if !slots::hold_seen(found.words, found.state) => Err(Torn),
            newest => Ok(newest),
        }
    }

    /// Says how many users a value has now, and returns whether it may be found from here on.
    ///
    /// With [`Mbcache::users_max`] and more its pair is taken out; if somebody holds it, it is not found any
    /// more, and goes with the last handle. So a find does not walk over values that it could not return, how
    /// many there ever are. With fewer the pair is there, entered again if it was not; unless there is no room
    /// for it ([`Mbcache::create`]). It needs to be told when that number is reached, and when it is left.
    ///
    /// The caller counts users under a lock of its own, and calls this under the same. To be called also
    /// while the cache is switched off, for what is in it.
    ///
    /// # Examples
    ///
    /// ```
    /// use corewalk_mbcache::{Mbcache, MbcacheOptions};
    ///
    /// let cache = Mbcache::new(MbcacheOptions { users_max: 3, ..MbcacheOptions::default() })?;
    /// cache.create(1, 10)?;
    /// assert!(!cache.note_users(1, 10, 3));
    /// assert!(cache.find_first(1).is_none() && cache.count() == 0);
    /// assert!(cache.note_users(1, 10, 2));
    /// assert_eq!(cache.find_first(1).map(|entry| entry.value()), Some(10));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn note_users(&self, key: u64, value: u64, users: u32) -> bool {
        let is_reusable = users < self.users_max;
        let bucket = self.bucket(key);
        while let Some(seen) = self.look_up(bucket, (key, value)) {
            // If not, it has ended, or moved.
            if slots::set_reusable(seen.words, seen.state, is_reusable) {
                return is_reusable;
            }
        }
        is_reusable && self.create(key, value).is_ok()
    }

    /// Enters a pair, whose value may have more users: it is found from here on.
    ///
    /// If the budget is used up, an entry that is neither held nor was used lately is dropped for it: of a
    /// bucket of several lines, or of the pair's own.
    ///
    /// # Errors
    ///
    /// - [`CreateError::Exists`]: the pair is there. It stays as it is.
    /// - [`CreateError::Full`]: the budget is used up, and every entry that could make room is held or was
    ///   used just now. Those that are alone in a bucket, or two, make room in that bucket only.
    /// - [`CreateError::Off`]: the cache is switched off.
    ///
    /// After an error the value is just not shared.
    ///
    /// # Examples
    ///
    /// ```
    /// use corewalk_mbcache::{CreateError, Mbcache, MbcacheOptions};
    ///
    /// let cache = Mbcache::new(MbcacheOptions::default())?;
    /// assert_eq!(cache.create(1, 10), Ok(()));
    /// assert_eq!(cache.create(1, 10), Err(CreateError::Exists));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[doc(alias = "mb_cache_entry_create")]
    #[inline]
    pub fn create(&self, key: u64, value: u64) -> Result<(), CreateError> {
        if !self.is_on() {
            return Err(CreateError::Off);
        }
        let bucket = self.bucket(key);
        let mut locked = self.index.lock(bucket);
        match locked.seat_at_home((key, value)) {
            Some(words) => {
                locked.fill(words, (key, value));
                Ok(())
            }
            None => self.create_anywhere(locked, bucket, (key, value)),
        }
    }

    /// As `create`, of a pair that is there, or cannot be at home.
    #[inline(never)]
    fn create_anywhere(
        &self,
        mut locked: Locked<'_>,
        bucket: u32,
        pair: (u64, u64),
    ) -> Result<(), CreateError> {
        match locked.seat(pair) {
            Seat::Free(words) => {
                locked.fill(words, pair);
                Ok(())
            }
            Seat::Taken => {
                drop(locked);
                self.counts.add(Event::Duplicate);
                Err(CreateError::Exists)
            }
            Seat::Behind(_) => {
                drop(locked);
                self.create_behind(bucket, pair)
            }
        }
    }

    /// As `create`, in a bucket that was full.
    #[cold]
    fn create_behind(&self, bucket: u32, pair: (u64, u64)) -> Result<(), CreateError> {
        let mut in_hand = None;
        let mut has_searched = false;
        loop {
            let mut locked = self.index.lock(bucket);
            let words = match locked.seat(pair) {
                Seat::Free(words) => Some(words),
                Seat::Behind(last) => {
                    let line = in_hand.take().or_else(|| self.room.take(&self.index, bucket));
                    match line {
                        Some(line) => Some(locked.link(last, line)),
                        None if has_searched => self.drop_one(&locked),
                        None => None,
                    }
                }
                Seat::Taken => {
                    drop(locked);
                    self.keep(bucket, in_hand);
                    self.counts.add(Event::Duplicate);
                    return Err(CreateError::Exists);
                }
            };
            if let Some(words) = words {
                locked.fill(words, pair);
                drop(locked);
                self.keep(bucket, in_hand);
                return Ok(());
            }
            drop(locked);
            if has_searched {
                return Err(CreateError::Full);
            }
            // If there is no line to be had, there may be a slot now, or the bucket gives one: one look more.
            in_hand = self.reclaim_line();
            has_searched = in_hand.is_none();
        }
    }

    /// Gives a line back that turned out not to be needed.
    fn keep(&self, bucket: u32, line: Option<u32>) {
        if let Some(line) = line {
            self.room.give(&self.index, bucket, line);
        }
    }

    /// Takes a pair out, unless it is held: then returns it, to be waited for.
    ///
    /// `None`: the pair is not there any more, or was not, and nobody holds it. The value may be freed.
    ///
    /// To be called by the value's last user before it frees the value, and before anything else can
    /// take the value's place; also while the cache is switched off.
    ///
    /// # Examples
    ///
    /// ```
    /// use corewalk_mbcache::{Mbcache, MbcacheOptions};
    ///
    /// let cache = Mbcache::new(MbcacheOptions::default())?;
    /// cache.create(1, 10)?;
    /// let entry = cache.find_first(1).expect("it was just created");
    /// let busy = cache.delete_or_get(1, 10).expect("it is held");
    /// drop(entry);
    /// busy.wait();
    /// assert!(cache.delete_or_get(1, 10).is_none());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[doc(alias = "mb_cache_entry_delete_or_get")]
    #[inline]
    pub fn delete_or_get(&self, key: u64, value: u64) -> Option<Busy<'_>> {
        let bucket = self.bucket(key);
        match self.index.at_home(bucket, (key, value)) {
            Some(found) if slots::end_seen(found.words, found.state) => None,
            _ => self.delete_anywhere(bucket, (key, value)),
        }
    }

    /// As `delete_or_get`, of a pair that is not at home, or held.
    #[inline(never)]
    fn delete_anywhere(&self, bucket: u32, pair: (u64, u64)) -> Option<Busy<'_>> {
        loop {
            let found = match self.index.glimpse(bucket, pair) {
                Ok(found) => found?,
                Err(Torn) => self.look_up_again(bucket, pair)?,
            };
            if slots::end(found.words, found.state, Spare::Held) {
                return None;
            }
            let state = slots::state_after(found.words);
            if state.is_same_entry(found.state) && state.count() > 0 {
                self.counts.add(Event::Busy);
                return Some(Busy { cache: self, slot: found.slot, state });
            }
            // It has ended, moved, or is free by now.
        }
    }

    /// Returns true while the cache is switched on.
    ///
    /// # Examples
    ///
    /// ```
    /// use corewalk_mbcache::{Mbcache, MbcacheOptions};
    ///
    /// let cache = Mbcache::new(MbcacheOptions { is_on: false, ..MbcacheOptions::default() })?;
    /// assert!(!cache.is_on() && cache.create(1, 10).is_err());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    #[must_use]
    pub fn is_on(&self) -> bool {
        // ORDERING: Relaxed. Who is switching and who is looking do not depend on each other.
        self.is_on.load(Ordering::Relaxed)
    }

    /// Switches it on. What is in it, and was found before, is found again.
    ///
    /// # Examples
    ///
    /// ```
    /// use corewalk_mbcache::{Mbcache, MbcacheOptions};
    ///
    /// let cache = Mbcache::new(MbcacheOptions { is_on: false, ..MbcacheOptions::default() })?;
    /// cache.switch_on();
    /// cache.create(1, 10)?;
    /// assert!(cache.is_on() && cache.get(1, 10).is_some());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn switch_on(&self) {
        // ORDERING: Relaxed. As above.
        self.is_on.store(true, Ordering::Relaxed);
    }

    /// Switches it off: nothing is found or created by calls that begin from now on, and what is not held is
    /// dropped.
    ///
    /// [`Mbcache::delete_or_get`] goes on to work, since what is held stays until it is deleted or
    /// scanned. So does what a holder, or a call that had begun, marks as used meanwhile, and what a `create` that
    /// had begun enters, even after this has returned. [`Mbcache::hold`] gives handles of all that.
    ///
    /// # Examples
    ///
    /// ```
    /// use corewalk_mbcache::{Mbcache, MbcacheOptions};
    ///
    /// let cache = Mbcache::new(MbcacheOptions::default())?;
    /// cache.create(1, 10)?;
    /// cache.create(2, 20)?;
    /// let held = cache.find_first(2);
    /// cache.switch_off();
    /// assert!(cache.find_first(2).is_none());
    /// assert_eq!(cache.count(), 1, "what is held stays");
    /// drop(held);
    /// assert!(cache.delete_or_get(2, 20).is_none());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn switch_off(&self) {
        // ORDERING: Relaxed. As above.
        self.is_on.store(false, Ordering::Relaxed);
        // The first turn clears what was used.
        for _ in 0..2 {
            self.scan(u64::MAX);
        }
    }

    /// Returns what the cache holds and has done. It looks at every line: 16 MiB take about 2 ms.
    ///
    /// # Examples
    ///
    /// ```
    /// use corewalk_mbcache::{Mbcache, MbcacheOptions};
    ///
    /// let cache = Mbcache::new(MbcacheOptions::default())?;
    /// cache.create(1, 10)?;
    /// cache.create(1, 11)?;
    /// assert!(cache.create(1, 11).is_err());
    /// assert!(cache.delete_or_get(1, 10).is_none());
    /// let stats = cache.stats();
    /// assert_eq!((stats.entries, stats.created, stats.duplicates, stats.deleted), (1, 2, 1, 1));
    /// assert!(stats.bytes <= MbcacheOptions::default().budget_bytes);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn stats(&self) -> Stats {
        let (entries, created) = self.index.census();
        let reclaimed = self.counts.get(Event::Reclaimed);
        Stats {
            entries,
            bytes: self.index.bytes() + room::bytes(),
            created,
            duplicates: self.counts.get(Event::Duplicate),
            deleted: created.saturating_sub(entries + reclaimed),
            busy: self.counts.get(Event::Busy),
            reclaimed,
        }
    }

    #[inline]
    pub(crate) fn bucket(&self, key: u64) -> u32 {
        self.index.bucket(self.secret.hash(key))
    }

    /// Returns the entry of a pair, if it is there.
    #[inline(always)]
    fn look_up(&self, bucket: u32, pair: (u64, u64)) -> Option<Found<'_>> {
        match self.index.look_up(bucket, pair) {
            Ok(found) => found,
            Err(Torn) => self.look_up_again(bucket, pair),
        }
    }

    #[cold]
    fn look_up_again(&self, bucket: u32, pair: (u64, u64)) -> Option<Found<'_>> {
        self.index.retry(bucket, || self.index.look_up(bucket, pair))
    }

    #[inline(always)]
    pub(crate) fn put(&self, words: &Words, slot: u32) {
        if slots::put(words) == Put::LastAwaited {
            self.wake(words, slot);
        }
    }

    #[cold]
    fn wake(&self, words: &Words, slot: u32) {
        slots::wake(words);
        self.sleepers.wake(slot);
    }
}

impl fmt::Debug for Mbcache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mbcache")
            .field("is_on", &self.is_on())
            .field("entries_max", &self.entries_max())
            .finish_non_exhaustive()
    }
}

/// What is made for a number of entries.
#[derive(Clone, Copy, Debug)]
struct Sizes {
    entries: u32,
    /// Lines that are first in a bucket.
    buckets: u32,
    /// Lines to link behind those.
    spare: u32,
}

impl Sizes {
    fn for_entries(entries: u32) -> Sizes {
        // Should all entries be of one bucket, it needs half as many lines. With as many buckets as
        // entries, at two values per key one key in five has to look at a second line; with half as many
        // two in five have, and what the wrong guess costs is a third of a get.
        Sizes { entries, buckets: entries, spare: entries.div_ceil(SLOTS) }
    }

    /// Returns what fits in `budget_bytes`, for at most `entries_max` entries.
    fn within(budget_bytes: u64, entries_max: u32) -> Option<Sizes> {
        let fits = |entries| Sizes::for_entries(entries).bytes_max() <= budget_bytes;
        let (mut most, mut too_many) = (0, entries_max.min(ENTRIES_LIMIT) + 1);
        while too_many - most > 1 {
            let middle = most + (too_many - most) / 2;
            if fits(middle) { most = middle } else { too_many = middle }
        }
        (most > 0).then(|| Sizes::for_entries(most))
    }

    fn bytes_max(self) -> u64 {
        let lines = u64::from(self.buckets) + u64::from(self.spare);
        room::bytes() + lines * (LINE_WORDS as u64) * 8
    }
}

#[cfg(all(test, not(any(corewalk_loom, corewalk_shuttle))))]
mod tests;
