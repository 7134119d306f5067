//! Handles of entries, and how a thread waits until an entry has no handle.
//!
//! Source: Linux `mb_cache_entry_get`, `mb_cache_entry_put`, `mb_cache_entry_wait_unused`.

use std::fmt;

use crate::cache::Mbcache;
use crate::index::Slot;
use crate::slots::{self, State};

/// A handle of an entry (a pair of a key and a value). The cache keeps the pair until the handle is
/// dropped.
///
/// A handle can be sent to another thread, and can be kept across an await.
#[doc(alias = "mb_cache_entry")]
#[must_use = "the handle is put when this is dropped"]
pub struct Entry<'c> {
    pub(crate) cache: &'c Mbcache,
    pub(crate) slot: Slot<'c>,
    /// The state of the slot when this handle was taken.
    pub(crate) state: State,
}

impl Entry<'_> {
    /// Returns the key, which is the hash of the content.
    #[must_use]
    pub fn key(&self) -> u64 {
        slots::pair_of(self.slot.words).0
    }

    /// Returns the value, which says where the content is stored.
    #[must_use]
    pub fn value(&self) -> u64 {
        slots::pair_of(self.slot.words).1
    }

    /// Marks the entry as used, so that it survives the next examination by reclaim.
    ///
    /// # Examples
    ///
    /// ```
    /// use corewalk_mbcache::{Mbcache, MbcacheOptions};
    ///
    /// let cache = Mbcache::new(MbcacheOptions::default())?;
    /// cache.create(1, 10)?;
    /// cache.find_first(1).expect("the pair was just created").touch();
    /// assert_eq!(cache.scan(1), 0, "the entry was used");
    /// assert_eq!(cache.scan(1), 1, "the entry was not used since");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[doc(alias = "mb_cache_entry_touch")]
    pub fn touch(&self) {
        slots::touch(self.slot.words, slots::state(self.slot.words));
    }

    /// Sets the current number of users of the value.
    ///
    /// If the value has [`Mbcache::users_max`] users or more, searches skip its entry, and the drop
    /// of the last handle removes the entry. The caller counts the users of each value under a lock
    /// of its own, and calls `note_users` under that lock. See [`Mbcache::note_users`].
    ///
    /// # Examples
    ///
    /// ```
    /// use corewalk_mbcache::{Mbcache, MbcacheOptions};
    ///
    /// let cache = Mbcache::new(MbcacheOptions::default().with_users_max(3))?;
    /// cache.create(1, 10)?;
    /// let entry = cache.find_first(1).expect("the pair was just created");
    /// entry.note_users(3);
    /// assert!(cache.find_first(1).is_none(), "the value is full");
    /// entry.note_users(2);
    /// assert!(cache.find_first(1).is_some());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[doc(alias = "e_reusable")]
    pub fn note_users(&self, users: u32) {
        let is_reusable = users < self.cache.users_max();
        let is_there = slots::set_reusable(self.slot.words, self.state, is_reusable);
        debug_assert!(is_there.is_some(), "an entry with a handle does not end");
    }
}

impl Drop for Entry<'_> {
    #[inline]
    fn drop(&mut self) {
        let put = slots::put(self.slot.words, self.state);
        if put.is_ended {
            self.cache.index.note_ended(self.slot.number);
        }
        if put.wakes {
            slots::wake(self.slot.words);
        }
    }
}

impl fmt::Debug for Entry<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (key, value) = slots::pair_of(self.slot.words);
        f.debug_struct("Entry").field("key", &key).field("value", &value).finish()
    }
}

/// An entry that could not be deleted, because another thread has a handle of it.
///
/// A `Busy` does not keep the entry in the cache. It only lets its owner wait until the entry has
/// no handle. Several threads may wait for the same entry.
#[must_use = "the entry was not deleted: wait, and try again"]
pub struct Busy<'c> {
    pub(crate) slot: Slot<'c>,
    pub(crate) state: State,
}

impl Busy<'_> {
    /// Sleeps until the last handle is dropped or the entry is removed. It may also return early.
    ///
    /// While a thread sleeps in `wait`, searches return no handle of the entry. The thread wakes
    /// when the last handle is dropped.
    ///
    /// In one case a thread in `wait` also waits for a later handle. The last handle may be dropped
    /// before the thread sleeps. If another thread then takes a handle and a third one calls
    /// `wait`, the first waits for that handle too.
    ///
    /// The caller must have no handle of the entry itself, or `wait` never returns. Afterwards it
    /// must check the value's number of users again: a thread that had a handle may have added a
    /// user.
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
    /// std::thread::scope(|scope| {
    ///     scope.spawn(move || drop(entry));
    ///     busy.wait();
    /// });
    /// assert!(cache.delete_or_get(1, 10).is_none());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[doc(alias = "mb_cache_entry_wait_unused")]
    pub fn wait(self) {
        if let Some(awaited) = slots::await_unused(self.slot.words, self.state) {
            slots::sleep_while_awaited(self.slot.words, awaited);
        }
    }
}

impl fmt::Debug for Busy<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Busy").field("handles", &self.state.count()).finish()
    }
}
