//! Claims: who is changing or loading a name.
//!
//! At most one thread at a time asks the back end about a (directory, name): a loader, or an
//! operation that creates, removes or renames it. The claim is what the others wait for. It is not
//! a lock around the tree: readers never look at it, other names are not affected, and a claim is
//! released when its holder returns, fails or panics (trap T24).
//!
//! A claim can be doomed: an invalidation that arrives while the back end works must not wait for
//! it, but what the back end answers must not be cached any more (trap T25).
//!
//! # One word, and a list behind it
//! A shard is a word and a list under a lock. A claim that is alone in its shard is a key in the word:
//! one exchange takes it and one gives it back. Whoever meets another key there, has to wait, or
//! dooms a claim, first moves the key into the list and leaves [`LISTED`] in the word; from then on all
//! is done under the lock, until the list is empty and the word is 0 again.
//!
//! # Invariants
//! - K.1: the word is 0 (nobody has a claim here), a key with [`ALONE`] (the only claim), or
//!   [`LISTED`] (the list has all of them). It becomes [`LISTED`], and 0 from there, under the lock only.
//! - K.2: a claim that is doomed is in the list. So an exchange of its key in the word succeeds only if it
//!   is not doomed; what its holder did before such an exchange is seen by whoever dooms it later.
//!
//! # Locks
//! A shard's lock is a leaf. Claims are taken before any dentry lock; two claims in the order of
//! their keys (trap P9).
//!
//! Source: Linux `d_alloc_parallel`, `d_wait_lookup`; the traps T21 to T25.

use corewalk_base::primitives::IS_MODEL;
use corewalk_base::primitives::atomic::{AtomicU64, Ordering};
use corewalk_base::{Condvar, Mutex, OwnLine};

/// Shards for what is claimed on every path: many more than threads, so that two who work on different
/// names seldom write the same line one after the other.
pub(crate) const SHARDS_MANY: usize = if IS_MODEL { 2 } else { 512 };
/// Shards for what is claimed seldom.
pub(crate) const SHARDS_FEW: usize = if IS_MODEL { 2 } else { 64 };

/// The word has a key, of the only claim there is in the shard.
const ALONE: u64 = 1;
/// The claims of the shard are in its list.
const LISTED: u64 = 2;
/// The bits of a key that the word has no room for. Keys that differ in them only are one.
const NO_KEY: u64 = ALONE | LISTED;

/// The claims of one namespace.
pub(crate) struct Claims {
    shards: Box<[OwnLine<Shard>]>,
}

struct Shard {
    word: AtomicU64,
    held: Mutex<Vec<Held>>,
    released: Condvar,
}

struct Held {
    key: u64,
    is_doomed: bool,
    waiters: u32,
}

/// The right to ask the back end about one name, or about two.
#[must_use]
pub(crate) struct Claim<'a> {
    claims: &'a Claims,
    /// 0 is none.
    keys: [u64; 2],
}

impl Claims {
    /// Returns claims in so many shards.
    pub(crate) fn new(shards: usize) -> Claims {
        let shard = || {
            let (word, held) = (AtomicU64::new(0), Mutex::new(Vec::new()));
            OwnLine::new(Shard { word, held, released: Condvar::new() })
        };
        Claims { shards: (0..shards).map(|_| shard()).collect() }
    }

    /// Returns the claim of `key`, after waiting until nobody else holds it.
    pub(crate) fn claim(&self, key: u64) -> Claim<'_> {
        let key = key_of(key);
        self.shard(key).acquire(key);
        Claim { claims: self, keys: [key, 0] }
    }

    /// Returns the claim of two keys, which may be equal.
    pub(crate) fn claim_both(&self, a: u64, b: u64) -> Claim<'_> {
        let mut claim = self.claim(a.min(b));
        let second = key_of(a.max(b));
        if claim.keys[0] != second {
            self.shard(second).acquire(second);
            claim.keys[1] = second;
        }
        claim
    }

    /// Returns the claim of `key` if nobody holds it.
    pub(crate) fn try_claim(&self, key: u64) -> Option<Claim<'_>> {
        let key = key_of(key);
        self.shard(key).try_acquire(key).then(|| Claim { claims: self, keys: [key, 0] })
    }

    /// Dooms the claim of `key`, if somebody holds it.
    pub(crate) fn doom(&self, key: u64) {
        let key = key_of(key);
        let shard = self.shard(key);
        let mut held = shard.held.lock();
        shard.list(&mut held);
        if let Some(held) = held.iter_mut().find(|h| h.key == key) {
            held.is_doomed = true;
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
        held.push(Held { key, is_doomed: false, waiters: 0 });
    }

    fn try_acquire(&self, key: u64) -> bool {
        if self.take_alone(key) {
            return true;
        }
        let mut held = self.held.lock();
        self.list(&mut held);
        let is_free = held.iter().all(|h| h.key != key);
        if is_free {
            held.push(Held { key, is_doomed: false, waiters: 0 });
        }
        self.unlist(&held);
        is_free
    }

    /// Takes the claim of `key` if nobody has one here.
    #[inline]
    fn take_alone(&self, key: u64) -> bool {
        // ORDERING(claim): Acquire. What the last holder did is seen by the next.
        // ORDERING: Relaxed on failure. The lock is taken then.
        self.word.compare_exchange(0, key | ALONE, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    /// Gives the claim of `key` back.
    #[inline]
    fn release(&self, key: u64) {
        // ORDERING(claim): Release. See `take_alone`.
        // ORDERING: Relaxed on failure. The lock is taken then.
        let given =
            self.word.compare_exchange(key | ALONE, 0, Ordering::Release, Ordering::Relaxed);
        if given.is_err() {
            self.release_listed(key);
        }
    }

    #[cold]
    fn release_listed(&self, key: u64) {
        let mut held = self.held.lock();
        let at = held.iter().position(|h| h.key == key).expect("a claim is held until released");
        let gone = held.swap_remove(at);
        self.unlist(&held);
        drop(held);
        if gone.waiters > 0 {
            self.released.notify_all();
        }
    }

    #[inline]
    fn is_doomed(&self, key: u64) -> bool {
        // An exchange, not a load: whoever dooms the claim after this sees what its holder did before
        // (K.2), so that one of the two knows of the other.
        // ORDERING(claim): Release, as for giving it back.
        // ORDERING: Relaxed on failure. The lock is taken then.
        let is_alone = self.word.compare_exchange(
            key | ALONE,
            key | ALONE,
            Ordering::Release,
            Ordering::Relaxed,
        );
        is_alone.is_err() && self.held.lock().iter().any(|h| h.key == key && h.is_doomed)
    }

    /// Moves a claim from the word into the list. The word says afterwards that they are there.
    fn list(&self, held: &mut Vec<Held>) {
        // ORDERING(claim): Acquire. What a claim that is given back already came to is seen by who lists.
        // It says so by its key; what a claim that is listed here did is seen with it (K.2).
        let before = self.word.swap(LISTED, Ordering::Acquire);
        if before & ALONE != 0 {
            held.push(Held { key: before & !NO_KEY, is_doomed: false, waiters: 0 });
        }
    }

    /// Puts the word back to 0 if nobody holds a claim.
    fn unlist(&self, held: &[Held]) {
        if held.is_empty() {
            // ORDERING(claim): Release. See `take_alone`.
            self.word.store(0, Ordering::Release);
        }
    }
}

impl Claim<'_> {
    /// Returns true if what was learnt under the claim must not be cached. What the caller did before is
    /// seen by whoever dooms the claim after that: so it asks inside of what makes a change visible,
    /// which whoever dooms waits for (a stripe's lock, a dentry's write section).
    #[inline]
    pub(crate) fn is_doomed(&self) -> bool {
        self.keys.iter().any(|&key| key != 0 && self.claims.shard(key).is_doomed(key))
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        for key in self.keys.into_iter().filter(|&key| key != 0) {
            self.claims.shard(key).release(key);
        }
    }
}

/// Returns what a shard keeps of a key; never 0.
fn key_of(key: u64) -> u64 {
    (key & !NO_KEY).max(NO_KEY + 1)
}

#[cfg(all(test, not(any(corewalk_loom, corewalk_shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn claim_of_two_equal_keys_is_one_claim() {
        let claims = Claims::new(SHARDS_FEW);
        drop(claims.claim_both(5, 5));
        drop(claims.claim(5));
    }

    #[test]
    fn doomed_claim_says_so_and_the_next_does_not() {
        let claims = Claims::new(SHARDS_FEW);
        let claim = claims.claim(9);
        assert!(!claim.is_doomed());
        claims.doom(9);
        assert!(claim.is_doomed());
        assert!(claims.try_claim(9).is_none());
        drop(claim);
        assert!(!claims.claim(9).is_doomed());
    }
}

#[cfg(all(test, corewalk_loom))]
mod loom_models;
