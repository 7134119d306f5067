//! The operations of the cache.
//!
//! Source: Linux `fs/mbcache.c`.

use corewalk_base::primitives::thread;
use std::{fmt, io};

use crate::handle::{Busy, Entry};
use crate::hash::Secret;
use crate::index::{Index, LINE_BYTES, Locked, Refused, SLOTS};
use crate::slots::{self, Spare};

/// The index has this many slots for each of the [`Mbcache::entries_max`] entries. Most slots stay
/// free, which keeps searches short.
const SLOTS_PER_ENTRY: u64 = 3;
/// Maximum number of lines (pairs of slots): slots have 32-bit numbers.
const LINES_MAX: u64 = 1 << 30;

/// Options of a cache: the size of its index, and the maximum number of users of one value.
///
/// # Examples
///
/// ```
/// use corewalk_mbcache::{Mbcache, MbcacheOptions};
///
/// let options = MbcacheOptions::default().with_budget_bytes(1 << 20);
/// let cache = Mbcache::new(options)?;
/// assert!(cache.entries_max() > 10_000);
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct MbcacheOptions {
    /// Bytes that the index may take, including free slots; 16 MiB by default.
    pub budget_bytes: u64,
    /// Maximum number of users of one value, such as the files that share one block; 1024 by
    /// default, as in ext4. Searches skip a value with this many users.
    pub users_max: u32,
}

impl MbcacheOptions {
    corewalk_base::setters! {
        with_budget_bytes: budget_bytes = u64;
        with_users_max: users_max = u32;
    }
}

impl Default for MbcacheOptions {
    fn default() -> Self {
        Self { budget_bytes: 16 << 20, users_max: 1024 }
    }
}

/// The reason why an entry was not created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CreateError {
    /// The pair is there already (Linux: EBUSY).
    Exists,
    /// The index has no free slot, and each entry that `create` could drop has a handle.
    Full,
    /// The cache is [off](Mbcache::off).
    Off,
}

impl fmt::Display for CreateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            CreateError::Exists => "the pair is in the cache already",
            CreateError::Full => "the cache is full, and all that could make room is held",
            CreateError::Off => "the cache is off",
        })
    }
}

impl std::error::Error for CreateError {}

/// The numbers of current and of dropped entries. They are exact only if no thread changes the
/// cache meanwhile.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Entries now.
    pub entries: u64,
    /// Entries that were dropped by [`Mbcache::scan`], or by `create` for a free slot.
    pub reclaimed: u64,
}

/// A multimap from keys to values that contains each pair at most once.
///
/// A key is the hash of a blob, and a value says where the blob is stored. The crate's
/// documentation says in which order a store must call this cache.
///
/// # Examples
///
/// A store that stores equal blobs only once:
///
/// ```
/// use corewalk_mbcache::{CreateError, Mbcache, MbcacheOptions};
/// use std::hash::{DefaultHasher, Hash, Hasher};
///
/// struct Blob {
///     content: Vec<u8>,
///     users: u32,
/// }
///
/// struct Store {
///     cache: Mbcache,
///     blobs: Vec<Blob>,
/// }
///
/// fn key(content: &[u8]) -> u64 {
///     let mut hasher = DefaultHasher::new();
///     content.hash(&mut hasher);
///     hasher.finish()
/// }
///
/// impl Store {
///     fn put(&mut self, content: &[u8]) -> usize {
///         let mut found = self.cache.find_first(key(content));
///         while let Some(entry) = found {
///             let blob = &mut self.blobs[entry.value() as usize];
///             if blob.content == content {
///                 blob.users += 1;
///                 entry.note_users(blob.users);
///                 entry.touch();
///                 return entry.value() as usize;
///             }
///             found = self.cache.find_next(&entry);
///         }
///         let number = self.blobs.len();
///         self.blobs.push(Blob { content: content.to_vec(), users: 1 });
///         match self.cache.create(key(content), number as u64) {
///             // A blob that is not entered is not shared.
///             Ok(()) | Err(CreateError::Full | CreateError::Off) => {}
///             Err(error) => panic!("{error}"),
///         }
///         number
///     }
///
///     fn release(&mut self, number: usize) {
///         let blob = &mut self.blobs[number];
///         blob.users -= 1;
///         if blob.users > 0 {
///             self.cache.note_users(key(&blob.content), number as u64, blob.users);
///         } else {
///             // There is one thread here. With more, see "The protocol".
///             assert!(self.cache.delete_or_get(key(&blob.content), number as u64).is_none());
///             blob.content.clear();
///         }
///     }
/// }
///
/// let cache = Mbcache::new(MbcacheOptions::default())?;
/// let mut store = Store { cache, blobs: Vec::new() };
/// let first = store.put(b"system_u:object_r:bin_t");
/// assert_eq!(store.put(b"system_u:object_r:bin_t"), first);
/// assert_ne!(store.put(b"system_u:object_r:etc_t"), first);
/// assert_eq!(store.blobs.len(), 2);
/// store.release(first);
/// store.release(first);
/// assert!(store.cache.find_first(key(b"system_u:object_r:bin_t")).is_none());
/// # Ok::<(), std::io::Error>(())
/// ```
#[doc(alias = "mb_cache")]
pub struct Mbcache {
    pub(crate) index: Index,
    users_max: u32,
}

impl Mbcache {
    /// Returns an empty cache.
    ///
    /// Reserves the address space of the whole index in one step. The system allocates memory as
    /// entries are created.
    ///
    /// # Errors
    ///
    /// - `EINVAL`: `budget_bytes` is too small for one entry.
    /// - `ENOMEM`: the process cannot get the address space for the cache's index.
    ///
    /// # Examples
    ///
    /// ```
    /// use corewalk_mbcache::{Mbcache, MbcacheOptions};
    ///
    /// let cache = Mbcache::new(MbcacheOptions::default())?;
    /// assert_eq!(cache.stats().entries, 0);
    /// let none = MbcacheOptions::default().with_budget_bytes(0);
    /// assert!(Mbcache::new(none).is_err());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[doc(alias = "mb_cache_create")]
    pub fn new(options: MbcacheOptions) -> io::Result<Mbcache> {
        Self::with_secret(options, Secret::random())
    }

    pub(crate) fn with_secret(options: MbcacheOptions, secret: Secret) -> io::Result<Mbcache> {
        let lines = (options.budget_bytes / LINE_BYTES).min(LINES_MAX) as u32;
        if u64::from(lines) * u64::from(SLOTS) < SLOTS_PER_ENTRY {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let index = Index::new(lines, secret)?;
        Ok(Mbcache { index, users_max: options.users_max })
    }

    /// Returns a cache that stays empty, for a store that does not de-duplicate.
    ///
    /// # Errors
    ///
    /// - `ENOMEM`: there is no address space for one page.
    ///
    /// # Examples
    ///
    /// ```
    /// use corewalk_mbcache::{CreateError, Mbcache};
    ///
    /// let cache = Mbcache::off()?;
    /// assert_eq!(cache.create(1, 10), Err(CreateError::Off));
    /// assert!(cache.find_first(1).is_none());
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn off() -> io::Result<Mbcache> {
        Ok(Mbcache { index: Index::new(1, Secret::new(0))?, users_max: 1 })
    }

    /// Returns the number of entries that the cache can have before `create` usually starts to drop
    /// entries. If one key has more than 200 values, `create` may drop entries earlier.
    #[must_use]
    pub fn entries_max(&self) -> u32 {
        (self.index.bytes() / LINE_BYTES * u64::from(SLOTS) / SLOTS_PER_ENTRY) as u32
    }

    /// Returns the maximum number of users of one value. It is 1 if the cache is
    /// [off](Mbcache::off).
    #[must_use]
    pub fn users_max(&self) -> u32 {
        self.users_max
    }

    /// Returns true if the cache contains the pair, and marks it as used.
    ///
    /// `get` takes no lock, and stores nothing if the pair's referenced bit is already set.
    ///
    /// `find_first` skips a value with the maximum number of users. `get` still finds its pair as
    /// long as a thread has a handle of it.
    ///
    /// # Examples
    ///
    /// ```
    /// use corewalk_mbcache::{Mbcache, MbcacheOptions};
    ///
    /// let cache = Mbcache::new(MbcacheOptions::default())?;
    /// cache.create(1, 10)?;
    /// assert!(cache.get(1, 10) && !cache.get(1, 11));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[doc(alias = "mb_cache_entry_get")]
    #[inline]
    #[must_use]
    pub fn get(&self, key: u64, value: u64) -> bool {
        let found = self.index.look_up(self.index.home(key), (key, value));
        if let Some((slot, state)) = found {
            slots::touch(slot.words, state);
        }
        found.is_some()
    }

    /// Returns a handle of an entry with this key. Skips values with [`Mbcache::users_max`] users.
    ///
    /// `None` does not prove that no blob with this key is stored, since the cache may have dropped
    /// its entry.
    ///
    /// # Examples
    ///
    /// ```
    /// use corewalk_mbcache::{Mbcache, MbcacheOptions};
    ///
    /// let cache = Mbcache::new(MbcacheOptions::default())?;
    /// cache.create(1, 10)?;
    /// assert_eq!(cache.find_first(1).map(|entry| entry.value()), Some(10));
    /// assert!(cache.find_first(2).is_none());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[doc(alias = "mb_cache_entry_find_first")]
    #[inline]
    #[must_use]
    pub fn find_first(&self, key: u64) -> Option<Entry<'_>> {
        let found = self.index.find(key);
        found.map(|(slot, state)| Entry { cache: self, slot, state })
    }

    /// Returns a handle of the next entry with the key of `entry`. Skips values with
    /// [`Mbcache::users_max`] users.
    ///
    /// The caller keeps `entry` meanwhile. If `entry` belongs to another cache, the result is
    /// `None`.
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
    /// values.sort_unstable();
    /// assert_eq!(values, [10, 11, 12]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[doc(alias = "mb_cache_entry_find_next")]
    #[must_use]
    pub fn find_next(&self, entry: &Entry<'_>) -> Option<Entry<'_>> {
        if !std::ptr::eq(self, entry.cache) {
            return None;
        }
        let found = self.index.find_behind(entry.key(), entry.slot.number);
        found.map(|(slot, state)| Entry { cache: self, slot, state })
    }

    /// Adds a pair to the cache. A pair can only be in 128 of the index's lines. If all slots of
    /// these lines are in use, drops an entry that was not used recently.
    ///
    /// # Errors
    ///
    /// - [`CreateError::Exists`]: the cache contains the pair already, and does not change.
    /// - [`CreateError::Full`]: each entry that `create` could drop has a handle.
    /// - [`CreateError::Off`]: the cache is off.
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
        if self.users_max <= 1 {
            return Err(CreateError::Off);
        }
        let home = self.index.home(key);
        let locked = self.index.lock(home);
        match self.index.enter_at_home(&locked, home, (key, value)) {
            Some(slot) => {
                drop(locked);
                self.index.note_entered(slot);
                Ok(())
            }
            None => self.create_anywhere(locked, home, (key, value)),
        }
    }

    #[inline(never)]
    fn create_anywhere<'a>(
        &'a self,
        mut locked: Locked<'a>,
        home: u32,
        pair: (u64, u64),
    ) -> Result<(), CreateError> {
        let mut tries = 0;
        loop {
            let entered = self.index.enter_anywhere(&locked, home, pair, tries);
            drop(locked);
            match entered {
                Ok(slot) => {
                    self.index.note_entered(slot);
                    return Ok(());
                }
                Err(Refused::Exists) => return Err(CreateError::Exists),
                Err(Refused::Full) => return Err(CreateError::Full),
                Err(Refused::Locked) => thread::yield_now(),
            }
            tries += 1;
            locked = self.index.lock(home);
        }
    }

    /// Deletes the pair of `key` and `value`. If another thread has a handle of it, deletes
    /// nothing, and returns a [`Busy`] to wait for that thread.
    ///
    /// `None` means that the cache does not contain the pair, and no thread has a handle of it. The
    /// last user of a value may then free it.
    ///
    /// # Examples
    ///
    /// ```
    /// use corewalk_mbcache::{Mbcache, MbcacheOptions};
    ///
    /// let cache = Mbcache::new(MbcacheOptions::default())?;
    /// cache.create(1, 10)?;
    /// let entry = cache.find_first(1).expect("the pair was just created");
    /// let busy = cache.delete_or_get(1, 10).expect("there is a handle");
    /// drop(entry);
    /// busy.wait();
    /// assert!(cache.delete_or_get(1, 10).is_none());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[doc(alias = "mb_cache_entry_delete_or_get")]
    #[inline]
    pub fn delete_or_get(&self, key: u64, value: u64) -> Option<Busy<'_>> {
        let (slot, state) = self.index.look_up(self.index.home(key), (key, value))?;
        match self.index.end(slot, state, Spare::Held) {
            Err(now) if now.is_same_entry(state) => Some(Busy { slot, state: now }),
            // The pair is gone: this call (`Ok`) or another thread (`Err`) has removed it.
            Ok(()) | Err(_) => None,
        }
    }

    /// Tells the cache the current number of users of a value, such as the files that share one
    /// block. Returns true if `find_first` may now return the value.
    ///
    /// A value with [`users_max`](Mbcache::users_max) or more users is full. `note_users` removes
    /// its pair, so that searches never examine full values. If a thread has a handle of the pair,
    /// the drop of the last handle removes the pair. Until then searches skip it.
    ///
    /// If the number falls below the maximum, `note_users` adds the pair again with
    /// [`Mbcache::create`].
    ///
    /// The caller must call `note_users` when the number of users reaches the maximum, and when it
    /// falls below the maximum. The caller must hold the lock under which it counts the users.
    ///
    /// # Examples
    ///
    /// ```
    /// use corewalk_mbcache::{Mbcache, MbcacheOptions};
    ///
    /// let cache = Mbcache::new(MbcacheOptions::default().with_users_max(3))?;
    /// cache.create(1, 10)?;
    /// assert!(!cache.note_users(1, 10, 3));
    /// assert!(cache.find_first(1).is_none() && cache.stats().entries == 0);
    /// assert!(cache.note_users(1, 10, 2));
    /// assert_eq!(cache.find_first(1).map(|entry| entry.value()), Some(10));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[doc(alias = "e_reusable")]
    pub fn note_users(&self, key: u64, value: u64, users: u32) -> bool {
        let is_reusable = users < self.users_max;
        let found = self.index.look_up(self.index.home(key), (key, value));
        if let Some((slot, state)) = found
            && let Some(now) = slots::set_reusable(slot.words, state, is_reusable)
        {
            if !now.is_live() {
                self.index.note_ended(slot.number);
            }
            return is_reusable;
        }
        is_reusable && matches!(self.create(key, value), Ok(()) | Err(CreateError::Exists))
    }

    /// Examines `entries` entries, each at most once. Drops those that have no handle and were not
    /// used since the last examination. Returns how many it has dropped.
    ///
    /// `scan` is the shrinker, a clock algorithm whose hand moves over all slots of the index.
    ///
    /// # Examples
    ///
    /// ```
    /// use corewalk_mbcache::{Mbcache, MbcacheOptions};
    ///
    /// let cache = Mbcache::new(MbcacheOptions::default())?;
    /// cache.create(1, 10)?;
    /// cache.create(1, 11)?;
    /// assert!(cache.get(1, 10), "this marks the pair as used");
    /// assert_eq!(cache.scan(2), 1);
    /// assert!(cache.get(1, 10) && !cache.get(1, 11));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[doc(alias = "mb_cache_scan")]
    pub fn scan(&self, entries: u64) -> u64 {
        self.index.scan(entries)
    }

    /// Returns the counts. Reads the whole index, which takes about 2 ms for 16 MiB.
    ///
    /// # Examples
    ///
    /// ```
    /// use corewalk_mbcache::{Mbcache, MbcacheOptions};
    ///
    /// let cache = Mbcache::new(MbcacheOptions::default())?;
    /// cache.create(1, 10)?;
    /// assert_eq!((cache.stats().entries, cache.stats().reclaimed), (1, 0));
    /// cache.scan(1);
    /// assert_eq!((cache.stats().entries, cache.stats().reclaimed), (0, 1));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[doc(alias = "mb_cache_count")]
    #[must_use]
    pub fn stats(&self) -> Stats {
        let live = self.index.all().filter(|slot| slots::state(slot.words).is_live());
        Stats { entries: live.count() as u64, reclaimed: self.index.reclaimed.sum().unsigned_abs() }
    }
}

impl fmt::Debug for Mbcache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mbcache")
            .field("entries_max", &self.entries_max())
            .field("users_max", &self.users_max)
            .finish_non_exhaustive()
    }
}

#[cfg(all(test, not(any(corewalk_loom, corewalk_shuttle))))]
mod tests;
