//! What finds hand out: counted entries, glimpses, and waits for the last handle.
//!
//! Source: Linux `mb_cache_entry_get`, `mb_cache_entry_put`, `mb_cache_entry_wait_unused`.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use crate::cache::Mbcache;
use crate::slots::{self, State, Words};

/// An entry that is held: its pair stays in the index until this is dropped.
///
/// It may be sent to another thread, and kept across an await. To drop the last one runs the wakers of the tasks
/// that wait for it, there and then: so under no lock that such a waker takes.
#[doc(alias = "mb_cache_entry")]
#[must_use = "the entry is let go of when this is dropped"]
pub struct Entry<'c> {
    pub(crate) cache: &'c Mbcache,
    pub(crate) words: &'c Words,
    pub(crate) slot: u32,
    pub(crate) state: State,
}

impl Entry<'_> {
    /// Returns the key, the hash of the content.
    ///
    /// # Examples
    ///
    /// ```
    /// use corewalk_mbcache::{Mbcache, MbcacheOptions};
    ///
    /// let cache = Mbcache::new(MbcacheOptions::default())?;
    /// cache.create(1, 10)?;
    /// let entry = cache.find_first(1).expect("it was just created");
    /// assert_eq!(entry.key(), 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn key(&self) -> u64 {
        slots::pair_of(self.words).0
    }

    /// Returns the value, the place of the content.
    ///
    /// # Examples
    ///
    /// ```
    /// use corewalk_mbcache::{Mbcache, MbcacheOptions};
    ///
    /// let cache = Mbcache::new(MbcacheOptions::default())?;
    /// cache.create(1, 10)?;
    /// let entry = cache.find_first(1).expect("it was just created");
    /// assert_eq!(entry.value(), 10);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn value(&self) -> u64 {
        slots::pair_of(self.words).1
    }

    /// Returns true if the value may have more users, as far as was told.
    ///
    /// # Examples
    ///
    /// ```
    /// use corewalk_mbcache::{Mbcache, MbcacheOptions};
    ///
    /// let cache = Mbcache::new(MbcacheOptions::default())?;
    /// cache.create(1, 10)?;
    /// let entry = cache.find_first(1).expect("it was just created");
    /// assert!(entry.is_reusable());
    /// entry.note_users(cache.users_max());
    /// assert!(!entry.is_reusable());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn is_reusable(&self) -> bool {
        slots::state(self.words).is_reusable()
    }

    /// Says that the entry was of use: it survives the next look of reclaim.
    ///
    /// # Examples
    ///
    /// ```
    /// use corewalk_mbcache::{Mbcache, MbcacheOptions};
    ///
    /// let cache = Mbcache::new(MbcacheOptions::default())?;
    /// cache.create(1, 10)?;
    /// cache.find_first(1).expect("it was just created").touch();
    /// assert_eq!(cache.scan(1), 0, "it was used");
    /// assert_eq!(cache.scan(1), 1, "and not since");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[doc(alias = "mb_cache_entry_touch")]
    pub fn touch(&self) {
        slots::touch(self.words, self.state);
    }

    /// Says how many users the value has now: at [`Mbcache::users_max`] and above it is not found any
    /// more, and its entry goes with the last handle; below it is. See [`Mbcache::note_users`].
    ///
    /// The caller counts users under a lock of its own, and calls this under the same.
    ///
    /// # Examples
    ///
    /// ```
    /// use corewalk_mbcache::{Mbcache, MbcacheOptions};
    ///
    /// let cache = Mbcache::new(MbcacheOptions { users_max: 3, ..MbcacheOptions::default() })?;
    /// cache.create(1, 10)?;
    /// let entry = cache.find_first(1).expect("it was just created");
    /// entry.note_users(3);
    /// assert!(cache.find_first(1).is_none(), "it is full");
    /// entry.note_users(2);
    /// assert!(cache.find_first(1).is_some());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn note_users(&self, users: u32) {
        let is_reusable = users < self.cache.users_max();
        let is_there = slots::set_reusable(self.words, self.state, is_reusable);
        debug_assert!(is_there, "an entry that is held does not end");
    }
}

impl Drop for Entry<'_> {
    #[inline]
    fn drop(&mut self) {
        self.cache.put(self.words, self.slot);
    }
}

impl fmt::Debug for Entry<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Entry")
            .field("key", &self.key())
            .field("value", &self.value())
            .field("is_reusable", &self.is_reusable())
            .finish()
    }
}

/// An entry that was there at one moment, and is not held.
///
/// [`Mbcache::hold`] makes an [`Entry`] of it if it is still there. It is of use only with the cache
/// that gave it.
// With a reference in it an option of it is no larger than without, since that has a value left for `None`.
#[derive(Clone, Copy, Debug)]
pub struct Seen<'c> {
    pub(crate) cache: &'c Mbcache,
    pub(crate) slot: u32,
    pub(crate) state: State,
}

impl Seen<'_> {
    /// Returns true if the value could have more users at that moment.
    ///
    /// # Examples
    ///
    /// ```
    /// use corewalk_mbcache::{Mbcache, MbcacheOptions};
    ///
    /// let cache = Mbcache::new(MbcacheOptions::default())?;
    /// cache.create(1, 10)?;
    /// let seen = cache.get(1, 10).expect("it was just created");
    /// assert!(seen.is_reusable());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn is_reusable(&self) -> bool {
        self.state.is_reusable()
    }
}

/// An entry that could not be deleted, since it is held.
///
/// It counts as no handle itself: any number of threads may wait for the same entry.
#[must_use = "the entry was not deleted: wait, and try again"]
pub struct Busy<'c> {
    pub(crate) cache: &'c Mbcache,
    pub(crate) slot: u32,
    pub(crate) state: State,
}

impl<'c> Busy<'c> {
    /// Returns how many handles there were.
    ///
    /// # Examples
    ///
    /// ```
    /// use corewalk_mbcache::{Mbcache, MbcacheOptions};
    ///
    /// let cache = Mbcache::new(MbcacheOptions::default())?;
    /// cache.create(1, 10)?;
    /// let both = (cache.find_first(1), cache.find_first(1));
    /// let busy = cache.delete_or_get(1, 10).expect("it is held");
    /// assert_eq!(busy.handles(), 2);
    /// # drop(both);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn handles(&self) -> u32 {
        self.state.count()
    }

    /// Sleeps until the last handle was dropped at some moment, or the entry has ended. It may also return
    /// early.
    ///
    /// From when this begins to wait until the last handle is dropped no new one is given out; handles that
    /// are taken afterwards are not waited for. So decide anew, since those who had one may have become
    /// users, and delete again. The caller holds no [`Entry`] of this pair, or it waits for itself.
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
    /// std::thread::scope(|scope| {
    ///     scope.spawn(move || drop(entry));
    ///     busy.wait();
    /// });
    /// assert!(cache.delete_or_get(1, 10).is_none());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[doc(alias = "mb_cache_entry_wait_unused")]
    pub fn wait(self) {
        let words = self.cache.index.slot(self.slot);
        if slots::await_unused(words, self.state) {
            slots::sleep_while_awaited(words, self.state);
        }
    }

    /// Returns a future that is ready when [`Busy::wait`] would return.
    ///
    /// It needs no runtime. From its first poll on it waits, and once it was woken it is ready; dropping it
    /// gives the wait up, and the handles that there are go on to keep new ones out.
    ///
    /// # Examples
    ///
    /// ```
    /// use corewalk_mbcache::{Mbcache, MbcacheOptions};
    /// use std::future::Future;
    /// use std::pin::pin;
    /// use std::task::{Context, Waker};
    ///
    /// let cache = Mbcache::new(MbcacheOptions::default())?;
    /// cache.create(1, 10)?;
    /// let entry = cache.find_first(1).expect("it was just created");
    /// let busy = cache.delete_or_get(1, 10).expect("it is held");
    /// let mut unused = pin!(busy.unused());
    /// let mut task = Context::from_waker(Waker::noop());
    /// assert!(unused.as_mut().poll(&mut task).is_pending());
    /// drop(entry);
    /// assert!(unused.as_mut().poll(&mut task).is_ready());
    /// assert!(cache.delete_or_get(1, 10).is_none());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn unused(self) -> Unused<'c> {
        Unused { cache: self.cache, slot: self.slot, state: self.state, ticket: None }
    }
}

impl fmt::Debug for Busy<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Busy").field("handles", &self.handles()).finish()
    }
}

impl fmt::Display for Busy<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the entry has {} handles", self.handles())
    }
}

impl std::error::Error for Busy<'_> {}

/// A wait of a task for the last handle of an entry.
#[must_use = "futures do nothing unless they are polled"]
pub struct Unused<'c> {
    pub(crate) cache: &'c Mbcache,
    pub(crate) slot: u32,
    pub(crate) state: State,
    pub(crate) ticket: Option<u64>,
}

impl Unused<'_> {
    fn take_back(&mut self) {
        if let Some(ticket) = self.ticket.take() {
            self.cache.sleepers.remove(ticket);
        }
    }
}

impl Future for Unused<'_> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, task: &mut Context<'_>) -> Poll<()> {
        if let Some(ticket) = self.ticket {
            if self.cache.sleepers.renew(ticket, task.waker()) {
                return Poll::Pending;
            }
            // It was woken. Handles that there are by now were taken later.
            self.ticket = None;
            return Poll::Ready(());
        }
        // The waker first, the flag second: who clears the flag then finds the waker.
        self.ticket = Some(self.cache.sleepers.add(self.slot, task.waker().clone()));
        if slots::await_unused(self.cache.index.slot(self.slot), self.state) {
            return Poll::Pending;
        }
        self.take_back();
        Poll::Ready(())
    }
}

impl Drop for Unused<'_> {
    fn drop(&mut self) {
        self.take_back();
    }
}

impl fmt::Debug for Unused<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Unused").finish_non_exhaustive()
    }
}
