//! Locks by key: the in-lookup lock of a name, and the attribute lock of an inode.
//!
//! At most one thread at a time asks the back end about a (directory, name). That thread is a
//! lookup that fills the cache, or an operation that creates, removes or renames the name. The
//! thread holds the in-lookup lock of the name, and the other threads wait for the lock. Readers of
//! cached names never look at the lock, and other names are not affected. The guard releases the
//! lock when its holder returns, fails or panics. Trap T24 is a holder that ends without a release.
//!
//! An invalidation that arrives during the call of the back end must not wait for the call. Instead
//! it cancels the fill: the holder must not cache the answer, which may be stale (trap T25).
//!
//! # How it works
//! A shard is an atomic word, and a list under a mutex. If a shard has only one lock, the word
//! contains its key: one compare-exchange takes the lock, and another one releases it. A thread
//! that finds another key in the word moves that key to the list first, and leaves [`LISTED`] in
//! the word. A thread that must wait, and a thread that cancels a fill, do the same. From then on
//! everything happens under the mutex, until the list is empty and the word is 0 again.
//!
//! # Invariants
//! - K.1: the word is 0 (no lock is held), a key with [`ALONE`] (the only lock), or [`LISTED`] (all
//!   locks are in the list). The word changes to [`LISTED`], and from there to 0, only under the
//!   mutex.
//! - K.2: a lock whose fill is cancelled is in the list. So a compare-exchange of its key in the
//!   word succeeds only if the fill is not cancelled. A later `cancel_fill` sees everything that
//!   the holder did before such an exchange.
//!
//! # Locks
//! The mutex of a shard is a leaf: no other lock is taken under it. In-lookup locks are taken
//! before any dentry lock, two of them in the order of their keys. So renames do not deadlock (trap
//! P9).
//!
//! Source: Linux `d_alloc_parallel`, `d_wait_lookup`; the traps T21 to T25.

use corewalk_base::primitives::IS_MODEL;
use corewalk_base::primitives::atomic::{AtomicU64, Ordering};
use corewalk_base::{Condvar, Mutex, OwnLine};

/// Number of shards for locks that every change takes. It is much larger than the number of
/// threads, so two threads that work on different names seldom write the same cache line.
pub(crate) const SHARDS_MANY: usize = if IS_MODEL { 2 } else { 512 };
/// Shards for locks that are taken seldom.
pub(crate) const SHARDS_FEW: usize = if IS_MODEL { 2 } else { 64 };

/// If this bit of a shard's word is set, the word contains the key of the shard's only lock.
const ALONE: u64 = 1;
/// The locks of the shard are in its list.
const LISTED: u64 = 2;
/// The bits of a key for which a shard's word has no room. Two keys that differ only in these bits
/// share a lock.
const NO_KEY: u64 = ALONE | LISTED;

/// The in-lookup locks of a namespace, or its attribute locks. The owner of a `KeyLocks` says what
/// its locks protect.
pub(crate) struct KeyLocks {
    shards: Box<[OwnLine<Shard>]>,
}

/// The locks of the keys that hash to this shard.
struct Shard {
    /// 0, the key of the shard's only lock, or [`LISTED`] (invariant K.1).
    word: AtomicU64,
    /// The holders while `word` is [`LISTED`]. Protected by its own mutex.
    held: Mutex<Vec<Holder>>,
    /// Notified when a thread releases a lock that other threads wait for. The waiting threads use
    /// this variable with the mutex of `held`.
    released: Condvar,
}

/// A lock in the list. All fields are protected by `Shard::held`.
struct Holder {
    key: u64,
    is_fill_cancelled: bool,
    /// Threads that wait for the lock.
    waiters: u32,
}

/// One or two held locks.
#[must_use]
pub(crate) struct KeyGuard<'a> {
    locks: &'a KeyLocks,
    /// The keys that are locked; 0 is none.
    keys: [u64; 2],
}

impl KeyLocks {
    /// Returns free locks in `shards` shards.
    pub(crate) fn new(shards: usize) -> KeyLocks {
        let shard = || {
            let (word, held) = (AtomicU64::new(0), Mutex::new(Vec::new()));
            OwnLine::new(Shard { word, held, released: Condvar::new() })
        };
        KeyLocks { shards: (0..shards).map(|_| shard()).collect() }
    }

    /// Locks `key`, after waiting for its holder.
    pub(crate) fn lock(&self, key: u64) -> KeyGuard<'_> {
        let key = key_of(key);
        self.shard(key).acquire(key);
        KeyGuard { locks: self, keys: [key, 0] }
    }

    /// Locks two keys, which may be equal.
    pub(crate) fn lock_both(&self, a: u64, b: u64) -> KeyGuard<'_> {
        let mut guard = self.lock(a.min(b));
        let second = key_of(a.max(b));
        if guard.keys[0] != second {
            self.shard(second).acquire(second);
            guard.keys[1] = second;
        }
        guard
    }

    /// Locks `key` if it is free.
    pub(crate) fn try_lock(&self, key: u64) -> Option<KeyGuard<'_>> {
        let key = key_of(key);
        self.shard(key).try_acquire(key).then(|| KeyGuard { locks: self, keys: [key, 0] })
    }

    /// Cancels the fill of the thread that holds the lock of `key`. Does nothing if no thread holds
    /// that lock.
    pub(crate) fn cancel_fill(&self, key: u64) {
        let key = key_of(key);
        let shard = self.shard(key);
        let mut held = shard.held.lock();
        shard.list(&mut held);
        if let Some(held) = held.iter_mut().find(|h| h.key == key) {
            held.is_fill_cancelled = true;
        }
        shard.unlist(&held);
    }

    fn shard(&self, key: u64) -> &Shard {
        &self.shards[(key >> 40) as usize % self.shards.len()]
    }
}

impl Shard {
    #[inline]
    fn acquire(&self, key: u64) {
        if !self.take_alone(key) {
            self.acquire_listed(key);
        }
    }

    #[cold]
    fn acquire_listed(&self, key: u64) {
        let mut held = self.held.lock();
        self.list(&mut held);
        while let Some(h) = held.iter_mut().find(|h| h.key == key) {
            h.waiters += 1;
            self.released.wait(&mut held);
            self.list(&mut held);
        }
        held.push(Holder { key, is_fill_cancelled: false, waiters: 0 });
    }

    fn try_acquire(&self, key: u64) -> bool {
        if self.take_alone(key) {
            return true;
        }
        let mut held = self.held.lock();
        self.list(&mut held);
        let is_free = held.iter().all(|h| h.key != key);
        if is_free {
            held.push(Holder { key, is_fill_cancelled: false, waiters: 0 });
        }
        self.unlist(&held);
        is_free
    }

    /// Takes the lock of `key` if the shard holds no lock.
    #[inline]
    fn take_alone(&self, key: u64) -> bool {
        // ORDERING(key-lock): Acquire. Pairs with the release of the lock, so that the new holder
        // sees everything that the last holder did.
        // ORDERING: Relaxed on failure, because this thread then takes the mutex.
        self.word.compare_exchange(0, key | ALONE, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    /// Releases the lock of `key`.
    #[inline]
    fn release(&self, key: u64) {
        // ORDERING(key-lock): Release. Pairs with the acquisition of the lock, so that the next
        // holder sees everything that this holder did.
        // ORDERING: Relaxed on failure, because this thread then takes the mutex.
        let given =
            self.word.compare_exchange(key | ALONE, 0, Ordering::Release, Ordering::Relaxed);
        if given.is_err() {
            self.release_listed(key);
        }
    }

    #[cold]
    fn release_listed(&self, key: u64) {
        let mut held = self.held.lock();
        let at = held.iter().position(|h| h.key == key).expect("a lock is held until released");
        let gone = held.swap_remove(at);
        self.unlist(&held);
        drop(held);
        if gone.waiters > 0 {
            self.released.notify_all();
        }
    }

    #[inline]
    fn is_fill_cancelled(&self, key: u64) -> bool {
        // Use a compare-exchange and not a load. Then a later `cancel_fill` sees everything that
        // the holder did before the compare-exchange (K.2). So the holder sees the cancellation, or
        // the cancelling thread sees the holder's change.
        // ORDERING(key-lock): Release. A thread that later takes the lock, or cancels its fill,
        // sees everything that the holder did before.
        // ORDERING: Relaxed on failure, because this thread then takes the mutex.
        let is_alone = self.word.compare_exchange(
            key | ALONE,
            key | ALONE,
            Ordering::Release,
            Ordering::Relaxed,
        );
        is_alone.is_err() && self.held.lock().iter().any(|h| h.key == key && h.is_fill_cancelled)
    }

    /// Moves the lock whose key is in the word, if there is one, to the list. Afterwards the word
    /// is [`LISTED`].
    fn list(&self, held: &mut Vec<Holder>) {
        // ORDERING(key-lock): Acquire. Pairs with `release`, so that this thread sees everything
        // done under those locks of the shard that were already released. If this thread moves a
        // lock to the list, it also sees what the holder of that lock did before its last
        // compare-exchange of the word (K.2).
        let before = self.word.swap(LISTED, Ordering::Acquire);
        if before & ALONE != 0 {
            held.push(Holder { key: before & !NO_KEY, is_fill_cancelled: false, waiters: 0 });
        }
    }

    /// Resets the word to 0 if no lock is held.
    fn unlist(&self, held: &[Holder]) {
        if held.is_empty() {
            // ORDERING(key-lock): Release. Pairs with the acquisition of a lock, so that the next
            // holder sees everything done under the locks that were in the list.
            self.word.store(0, Ordering::Release);
        }
    }
}

impl KeyGuard<'_> {
    /// Returns true if the answer to a fill under this lock must not be cached.
    ///
    /// The caller makes this call inside the step that makes its change visible: under a stripe's
    /// lock, or in a dentry's write section. A `cancel_fill` after this call sees everything that
    /// the caller did before, so it sees that the step has begun. So the cancelling thread's lookup
    /// of the name waits for the end of the step, and finds the change.
    #[inline]
    pub(crate) fn is_fill_cancelled(&self) -> bool {
        self.keys.iter().any(|&key| key != 0 && self.locks.shard(key).is_fill_cancelled(key))
    }
}

impl Drop for KeyGuard<'_> {
    fn drop(&mut self) {
        for key in self.keys.into_iter().filter(|&key| key != 0) {
            self.locks.shard(key).release(key);
        }
    }
}

/// Returns the bits of `key` that a shard keeps; never 0.
fn key_of(key: u64) -> u64 {
    (key & !NO_KEY).max(NO_KEY + 1)
}

#[cfg(all(test, not(any(corewalk_loom, corewalk_shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn lock_of_two_equal_keys_is_one_lock() {
        let locks = KeyLocks::new(SHARDS_FEW);
        drop(locks.lock_both(5, 5));
        drop(locks.lock(5));
    }

    #[test]
    fn cancelled_fill_says_so_and_the_next_does_not() {
        let locks = KeyLocks::new(SHARDS_FEW);
        let guard = locks.lock(9);
        assert!(!guard.is_fill_cancelled());
        locks.cancel_fill(9);
        assert!(guard.is_fill_cancelled());
        assert!(locks.try_lock(9).is_none());
        drop(guard);
        assert!(!locks.lock(9).is_fill_cancelled());
    }
}

#[cfg(all(test, corewalk_loom))]
mod loom_models;
