//! Locks by key: the in-lookup lock of a name, and the attribute lock of an inode.
//!
//! At most one thread at a time calls the back end for a name in a directory. The call looks the
//! name up for the cache, or creates, removes or renames it. That thread holds the in-lookup lock
//! of the name. Other threads that need the back end's answer wait for the lock.
//!
//! A guard releases the lock when its holder returns, fails or panics (trap T24 in `traps.md`).
//! Lookups of cached names use no in-lookup locks.
//!
//! A fill asks the back end about a name and caches the answer. Meanwhile its thread holds the
//! name's in-lookup lock. An invalidation of the name does not wait for this lock. Instead it
//! cancels the fill: the thread may not cache the answer, which may be stale (trap T25 in
//! `traps.md`).
//!
//! # How it works
//! The locks are spread over shards. A shard is an atomic word, and a list under a mutex. The only
//! locked key of a shard is in the word, so one compare-exchange takes the lock, and another
//! releases it.
//!
//! Three operations need the shard's list: locking a second key, waiting for a locked key, and
//! cancelling a fill. (The cancellation forbids the holder to cache an answer.) These operations
//! move the one locked key from the shard's word to the list, and set the word to [`LISTED`]. From
//! then on all changes are made under the mutex, until the list is empty and the word is 0.
//!
//! # Invariants
//! - K.1: a shard's word has one of three values. With 0, no key is locked. With a key and
//!   [`ALONE`], only this key is locked. With [`LISTED`], all locked keys are in the list. The word
//!   changes to [`LISTED`], and from there to 0, only under the mutex.
//! - K.2: to cancel the fill of a lock's holder, an invalidation moves the lock's key to the list.
//!   So if the holder finds its key in the word, its fill is not cancelled. It checks that with a
//!   compare-exchange. A later `cancel_fill` sees everything that the holder did before this
//!   compare-exchange.
//!
//! # Locks
//! Under the mutex of a shard no other lock is taken. In-lookup locks are taken before any dentry
//! lock. A rename takes two in-lookup locks in the order of their keys, so renames do not deadlock
//! with each other (trap P9 in `traps.md`).
//!
//! Source: Linux `d_alloc_parallel`, `d_wait_lookup`; the traps T21 to T25.

use corewalk_base::primitives::IS_MODEL;
use corewalk_base::primitives::atomic::{AtomicU64, Ordering};
use corewalk_base::{Condvar, Mutex, OwnLine};

/// The number of shards for locks that every change of a name takes. It is so large that two
/// threads with different names seldom write to the same cache line.
pub(crate) const SHARDS_MANY: usize = if IS_MODEL { 2 } else { 512 };
/// The number of shards for locks that are taken seldom.
pub(crate) const SHARDS_FEW: usize = if IS_MODEL { 2 } else { 64 };

/// If this bit of a shard's word is set, exactly one lock of the shard is held, whose key is the
/// rest of the word.
const ALONE: u64 = 1;
const LISTED: u64 = 2;
/// The bits of a key that a shard's word cannot store. Two keys that differ only in these bits
/// share a lock.
const NO_KEY: u64 = ALONE | LISTED;

/// A set of locks by key, such as the in-lookup locks of a namespace or its attribute locks. The
/// documentation of the field that contains the set says what its locks protect.
pub(crate) struct KeyLocks {
    shards: Box<[OwnLine<Shard>]>,
}

struct Shard {
    /// 0 if no lock of the shard is held. The key with [`ALONE`] if one lock is held. [`LISTED`] if
    /// the keys of the held locks are in `held` (invariant K.1).
    word: AtomicU64,
    /// The holders while `word` is [`LISTED`]. Protected by its own mutex.
    held: Mutex<Vec<Holder>>,
    /// Waiting threads sleep here, with the mutex of `held`.
    released: Condvar,
}

/// A lock in the list. All fields are protected by `Shard::held`.
struct Holder {
    key: u64,
    is_fill_cancelled: bool,
    waiters: u32,
}

#[must_use]
pub(crate) struct KeyGuard<'a> {
    locks: &'a KeyLocks,
    /// The keys of the held locks. The second key is 0 if only one lock is held.
    keys: [u64; 2],
}

impl KeyLocks {
    pub(crate) fn new(shards: usize) -> KeyLocks {
        let shard = || {
            let (word, held) = (AtomicU64::new(0), Mutex::new(Vec::new()));
            OwnLine::new(Shard { word, held, released: Condvar::new() })
        };
        KeyLocks { shards: (0..shards).map(|_| shard()).collect() }
    }

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

    pub(crate) fn try_lock(&self, key: u64) -> Option<KeyGuard<'_>> {
        let key = key_of(key);
        self.shard(key).try_acquire(key).then(|| KeyGuard { locks: self, keys: [key, 0] })
    }

    /// Cancels the fill of the thread that holds the lock of `key`, if there is such a thread. The
    /// thread may then not cache the back end's answer, even if the back end's call has already
    /// returned.
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

    #[inline]
    fn take_alone(&self, key: u64) -> bool {
        // ORDERING(key-lock): Acquire. The last holder stored 0 with Release in `release` or
        // `unlist`. With Relaxed, the new holder could miss what the last one did.
        // ORDERING: Relaxed on failure. The caller then takes the shard's mutex.
        self.word.compare_exchange(0, key | ALONE, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    #[inline]
    fn release(&self, key: u64) {
        // ORDERING(key-lock): Release. The next holder takes the lock with Acquire in `take_alone`
        // or `list`. With Relaxed, it could miss what this holder did.
        // ORDERING: Relaxed on failure. This thread then takes the shard's mutex.
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
        // This thread holds the lock of `key` and has begun to change the cache. Either it sees the
        // cancellation of its fill, or the cancelling thread sees the change. A plain load could be
        // executed before the change is visible, so use a compare-exchange (invariant K.2).
        // ORDERING(key-lock): Release. A thread that later takes the lock, or cancels this fill in
        // `list`, loads the word with Acquire. With Relaxed, it could miss what this thread did
        // before.
        // ORDERING: Relaxed on failure. This thread then takes the shard's mutex.
        let is_alone = self.word.compare_exchange(
            key | ALONE,
            key | ALONE,
            Ordering::Release,
            Ordering::Relaxed,
        );
        is_alone.is_err() && self.held.lock().iter().any(|h| h.key == key && h.is_fill_cancelled)
    }

    fn list(&self, held: &mut Vec<Holder>) {
        // ORDERING(key-lock): Acquire. Holders store the word with Release in `release` and
        // `is_fill_cancelled`. With Relaxed, this thread could miss what was done under released
        // locks, or what the holder of a listed key has done (invariant K.2).
        let before = self.word.swap(LISTED, Ordering::Acquire);
        if before & ALONE != 0 {
            held.push(Holder { key: before & !NO_KEY, is_fill_cancelled: false, waiters: 0 });
        }
    }

    fn unlist(&self, held: &[Holder]) {
        if held.is_empty() {
            // ORDERING(key-lock): Release. The next holder takes its lock with Acquire in
            // `take_alone`. With Relaxed, it could miss what was done under the released locks of
            // `held`.
            self.word.store(0, Ordering::Release);
        }
    }
}

impl KeyGuard<'_> {
    /// Returns true if an invalidation forbids the holder to cache the back end's answer.
    ///
    /// Call this function inside the critical section that changes the name in the cache. That
    /// section is under the lock of the hash table's stripe, or is a dentry's write section.
    ///
    /// An invalidation that comes later looks the name up, waits until the critical section has
    /// ended, and finds the holder's change.
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
