//! The cache itself: create, find, get, delete, and the switch.
//!
//! Finds and gets walk the index without a lock. To create and to delete take the lock of one stripe,
//! under which the chain of a bucket is exact: so a pair is there once, and an entry ends and leaves
//! its bucket in one section. There is no moment at which an entry can be found and is not yet
//! counted, or the other way round (trap T36).
//!
//! Source: Linux `fs/mbcache.c`.

use corewalk_sync::CachePadded;
use corewalk_sync::primitives::IS_MODEL;
use corewalk_sync::primitives::atomic::{AtomicBool, AtomicU64, Ordering};
use std::{fmt, io};

use crate::handle::{Busy, Entry, Seen};
use crate::hash::Secret;
use crate::index::{Index, Place};
use crate::room::{KEEP, Room};
use crate::sleepers::Sleepers;
use crate::slots::{Copied, Put, Slots, Spare, State, WORDS};

/// Stripes at most: so many threads can change different entries without meeting.
const STRIPES_MAX: u32 = if IS_MODEL { 1 } else { 256 };
/// Entries per stripe at least.
const ENTRIES_PER_STRIPE: u32 = 64;
/// Entries at most; slots are numbered with 32 bits.
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
/// assert!(cache.entries_max() > 20_000);
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct MbcacheOptions {
    /// Bytes that the index may take, free slots and locks included. 16 MiB by default.
    pub budget_bytes: u64,
    /// Entries that are kept at least before any is dropped, if the budget has room for so many;
    /// else it decides. By default it does.
    pub entries_max: u32,
    /// Users of a value from which on it is not shared any more; as in ext4, 1024 by default.
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

/// Whether a value may have more users.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reusable {
    /// It may.
    Yes,
    /// It has as many as it may have, or is not to be shared: it is entered, but not found.
    No,
}

/// Why an entry was not created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CreateError {
    /// The pair is there already (Linux: EBUSY).
    Exists,
    /// The budget is used up and every entry is held.
    Full,
    /// The cache is switched off.
    Off,
}

impl fmt::Display for CreateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            CreateError::Exists => "the pair is in the cache already",
            CreateError::Full => "the cache is full, and every entry is in use",
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
    /// Bytes of memory in use, at most [`MbcacheOptions::budget_bytes`]; it never goes down.
    pub bytes: u64,
    /// Entries created.
    pub created: u64,
    /// Creations refused since the pair was there.
    pub duplicates: u64,
    /// Entries deleted by [`Mbcache::delete_or_get`].
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
    pub(crate) slots: Slots,
    pub(crate) index: Index,
    pub(crate) secret: Secret,
    is_on: AtomicBool,
    users_max: u32,
    sizes: Sizes,
    pub(crate) room: Room,
    pub(crate) sleepers: CachePadded<Sleepers>,
    pub(crate) hand: CachePadded<AtomicU64>,
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
    #[doc(alias = "mb_cache_create")]
    pub fn new(options: MbcacheOptions) -> io::Result<Mbcache> {
        let sizes = Sizes::within(options.budget_bytes, options.entries_max)
            .ok_or(io::ErrorKind::InvalidInput)?;
        Ok(Mbcache {
            slots: Slots::new(sizes.slots)?,
            index: Index::new(sizes.buckets, sizes.stripes)?,
            secret: Secret::new(options.hash_seed),
            is_on: AtomicBool::new(options.is_on),
            users_max: options.users_max,
            room: Room::new(sizes.slots),
            sizes,
            sleepers: CachePadded::default(),
            hand: CachePadded::new(AtomicU64::new(0)),
        })
    }

    /// Returns how many entries there may be before any is dropped for want of room.
    #[must_use]
    pub fn entries_max(&self) -> u32 {
        self.sizes.entries
    }

    /// Returns how many users a value may have.
    #[must_use]
    pub fn users_max(&self) -> u32 {
        self.users_max
    }

    /// Returns the entry of a pair, if it is there, and marks it as used. It is not held.
    ///
    /// It takes no lock, and stores nothing if the entry was used since reclaim last looked at it.
    /// Whether the value may have more users does not matter here.
    #[doc(alias = "mb_cache_entry_get")]
    #[inline]
    #[must_use]
    pub fn get(&self, key: u64, value: u64) -> Option<Seen> {
        if !self.is_on() {
            return None;
        }
        let seen = self.look_up(key, value)?;
        if !seen.state.is_referenced() {
            self.slots.touch(seen.slot, seen.state);
        }
        Some(seen)
    }

    /// Returns a handle of an entry that was seen, if it has not ended since and nobody waits to delete it.
    #[must_use]
    pub fn hold(&self, seen: Seen) -> Option<Entry<'_>> {
        // Also a glimpse from another cache leads nowhere worse than to another entry.
        let is_slot = seen.slot < self.room.len_touched();
        let is_held = is_slot && self.slots.hold(seen.slot, seen.state, |_| true);
        is_held.then(|| Entry { cache: self, slot: seen.slot, state: seen.state })
    }

    /// Returns the newest entry under `key` whose value may have more users, held.
    ///
    /// Not found does not mean that there is none: it may have been dropped for want of room.
    #[doc(alias = "mb_cache_entry_find_first")]
    #[must_use]
    pub fn find_first(&self, key: u64) -> Option<Entry<'_>> {
        if !self.is_on() {
            return None;
        }
        let bucket = self.bucket(key);
        self.find_from(bucket, Place::Bucket(bucket), key)
    }

    /// Returns the next older entry than `entry` under its key whose value may have more users, held.
    ///
    /// `entry` stays held, and is what the search goes on from: drop it afterwards. From an entry of
    /// another cache it leads nowhere.
    #[doc(alias = "mb_cache_entry_find_next")]
    #[must_use]
    pub fn find_next<'c>(&'c self, entry: &Entry<'c>) -> Option<Entry<'c>> {
        if !std::ptr::eq(self, entry.cache) {
            return None;
        }
        let key = entry.key();
        let from = Place::Slot(self.slots.words(entry.slot), entry.state);
        self.find_from(self.bucket(key), from, key)
    }

    fn find_from(&self, bucket: u32, from: Place<'_>, key: u64) -> Option<Entry<'_>> {
        let hold = |found: &Copied| {
            let is_it = found.key == key
                && found.state.is_reusable()
                && self.slots.hold(found.slot, found.state, State::is_reusable);
            is_it.then(|| Entry { cache: self, slot: found.slot, state: found.state })
        };
        self.index.find(&self.slots, bucket, from, hold)
    }

    /// Says how many users a value has now; false if the pair is not there. See [`Entry::note_users`].
    ///
    /// To be called also while the cache is switched off, for what is in it.
    pub fn note_users(&self, key: u64, value: u64, users: u32) -> bool {
        let seen = self.look_up(key, value);
        let is_reusable = users < self.users_max;
        seen.is_some_and(|seen| self.slots.set_reusable(seen.slot, seen.state, is_reusable))
    }

    /// Enters a pair.
    ///
    /// If the budget is used up, an entry that is not held is dropped for it.
    ///
    /// # Errors
    ///
    /// - [`CreateError::Exists`]: the pair is there. It stays as it is, its flag too.
    /// - [`CreateError::Full`]: the budget is used up, and every entry is held or was used just now.
    /// - [`CreateError::Off`]: the cache is switched off.
    ///
    /// After an error the value is just not shared.
    #[doc(alias = "mb_cache_entry_create")]
    pub fn create(&self, key: u64, value: u64, reusable: Reusable) -> Result<(), CreateError> {
        if !self.is_on() {
            return Err(CreateError::Off);
        }
        let bucket = self.bucket(key);
        let mut in_hand = None;
        loop {
            let mut stripe = self.index.lock(bucket);
            let pair = (key, value);
            if self.index.position(&self.slots, &stripe, bucket, pair).is_some() {
                stripe.counts.duplicates += 1;
                if let Some(slot) = in_hand {
                    self.room.give(&self.slots, &mut stripe.free, slot);
                }
                return Err(CreateError::Exists);
            }
            if let Some(slot) = in_hand.or_else(|| self.room.take(&self.slots, &mut stripe.free)) {
                let is_reusable = reusable == Reusable::Yes;
                self.index.enter(&self.slots, &mut stripe, bucket, slot, pair, is_reusable);
                stripe.counts.created += 1;
                return Ok(());
            }
            drop(stripe);
            in_hand = Some(self.reclaim_slot().ok_or(CreateError::Full)?);
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
    /// use corewalk_mbcache::{Mbcache, MbcacheOptions, Reusable};
    ///
    /// let cache = Mbcache::new(MbcacheOptions::default())?;
    /// cache.create(1, 10, Reusable::Yes)?;
    /// let entry = cache.find_first(1).expect("it was just created");
    /// let busy = cache.delete_or_get(1, 10).expect("it is held");
    /// drop(entry);
    /// busy.wait();
    /// assert!(cache.delete_or_get(1, 10).is_none());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[doc(alias = "mb_cache_entry_delete_or_get")]
    pub fn delete_or_get(&self, key: u64, value: u64) -> Option<Busy<'_>> {
        let bucket = self.bucket(key);
        if self.index.first(bucket) == 0 {
            return None;
        }
        let mut stripe = self.index.lock(bucket);
        let at @ (_, slot) = self.index.position(&self.slots, &stripe, bucket, (key, value))?;
        let state = self.slots.state(slot);
        if !self.slots.end(slot, state, Spare::Held) {
            stripe.counts.busy += 1;
            return Some(Busy { cache: self, slot, state });
        }
        self.index.unlink(&self.slots, &mut stripe, bucket, at);
        stripe.counts.deleted += 1;
        self.room.give(&self.slots, &mut stripe.free, slot);
        None
    }

    /// Returns true while the cache is switched on.
    #[inline]
    #[must_use]
    pub fn is_on(&self) -> bool {
        // ORDERING: Relaxed. Who is switching and who is looking do not depend on each other.
        self.is_on.load(Ordering::Relaxed)
    }

    /// Switches it on. What is in it, and was found before, is found again.
    pub fn switch_on(&self) {
        // ORDERING: Relaxed. As above.
        self.is_on.store(true, Ordering::Relaxed);
    }

    /// Switches it off: nothing is found or created from now on, and what is not held is dropped.
    ///
    /// [`Mbcache::delete_or_get`] goes on to work, since what is held stays until it is deleted or
    /// scanned.
    pub fn switch_off(&self) {
        // ORDERING: Relaxed. As above.
        self.is_on.store(false, Ordering::Relaxed);
        // The first turn clears what was used.
        for _ in 0..2 {
            self.scan(u64::MAX);
        }
    }

    /// Returns what the cache holds and has done. It locks every stripe in turn.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let mut stats =
            Stats { bytes: self.slots.bytes() + self.sizes.fixed_bytes(), ..Stats::default() };
        self.index.each_stripe(|stripe| {
            stats.entries += u64::from(stripe.entries);
            stats.created += stripe.counts.created;
            stats.duplicates += stripe.counts.duplicates;
            stats.deleted += stripe.counts.deleted;
            stats.busy += stripe.counts.busy;
            stats.reclaimed += stripe.counts.reclaimed;
        });
        stats
    }

    #[inline]
    fn bucket(&self, key: u64) -> u32 {
        self.index.bucket(self.secret.hash(key))
    }

    #[inline]
    fn look_up(&self, key: u64, value: u64) -> Option<Seen> {
        let bucket = self.bucket(key);
        self.index.find(&self.slots, bucket, Place::Bucket(bucket), |found| {
            let seen = Seen { slot: found.slot, state: found.state };
            (found.key == key && found.value == value).then_some(seen)
        })
    }

    pub(crate) fn put(&self, slot: u32) {
        if self.slots.put(slot) == Put::LastAwaited {
            self.slots.wake(slot);
            self.sleepers.wake(slot);
        }
    }

    /// Returns true if the entry that `state` is of has no handles, or has ended.
    pub(crate) fn is_unused(&self, slot: u32, state: State) -> bool {
        let now = self.slots.state_acquire(slot);
        !now.is_same_entry(state) || now.count() == 0
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
    slots: u32,
    buckets: u32,
    stripes: u32,
}

impl Sizes {
    fn for_entries(entries: u32) -> Sizes {
        let stripes = (entries / ENTRIES_PER_STRIPE).clamp(1, STRIPES_MAX);
        let stripes = 1 << stripes.ilog2();
        let buckets = entries.next_power_of_two().max(2 * stripes);
        Sizes { entries, slots: entries + stripes * KEEP, buckets, stripes }
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

    /// Bytes of buckets and stripes.
    fn fixed_bytes(self) -> u64 {
        4 * u64::from(self.buckets) + 64 * u64::from(self.stripes)
    }

    fn bytes_max(self) -> u64 {
        self.fixed_bytes() + (u64::from(self.slots) + 1) * WORDS as u64 * 8
    }
}

#[cfg(all(test, not(any(corewalk_loom, corewalk_shuttle))))]
mod tests;
