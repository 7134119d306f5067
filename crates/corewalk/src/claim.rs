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
//! # Locks
//! A shard's lock is a leaf. Claims are taken before any dentry lock; two claims in the order of
//! their keys (trap P9).
//!
//! Source: Linux `d_alloc_parallel`, `d_wait_lookup`; the traps T21 to T25.

use corewalk_sync::{CachePadded, Condvar, Mutex};

/// Shards: so many threads can claim different names without meeting.
#[cfg(not(any(corewalk_loom, corewalk_shuttle)))]
const SHARDS: usize = 64;
#[cfg(any(corewalk_loom, corewalk_shuttle))]
const SHARDS: usize = 2;

/// The claims of one namespace.
pub(crate) struct Claims {
    shards: Box<[CachePadded<Shard>]>,
}

struct Shard {
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
    keys: [u64; 2],
}

impl Claims {
    pub(crate) fn new() -> Claims {
        let shard =
            || CachePadded::new(Shard { held: Mutex::new(Vec::new()), released: Condvar::new() });
        Claims { shards: (0..SHARDS).map(|_| shard()).collect() }
    }

    /// Returns the claim of `key`, after waiting until nobody else holds it.
    pub(crate) fn claim(&self, key: u64) -> Claim<'_> {
        self.acquire(key);
        Claim { claims: self, keys: [key; 2] }
    }

    /// Returns the claim of two keys, which may be equal.
    pub(crate) fn claim_both(&self, a: u64, b: u64) -> Claim<'_> {
        let keys = [a.min(b), a.max(b)];
        self.acquire(keys[0]);
        let mut claim = Claim { claims: self, keys: [keys[0]; 2] };
        if keys[0] != keys[1] {
            self.acquire(keys[1]);
            claim.keys = keys;
        }
        claim
    }

    /// Returns the claim of `key` if nobody holds it.
    pub(crate) fn try_claim(&self, key: u64) -> Option<Claim<'_>> {
        let mut held = self.shard(key).held.lock();
        if held.iter().any(|h| h.key == key) {
            return None;
        }
        held.push(Held { key, is_doomed: false, waiters: 0 });
        drop(held);
        Some(Claim { claims: self, keys: [key; 2] })
    }

    /// Dooms the claim of `key`, if somebody holds it.
    pub(crate) fn doom(&self, key: u64) {
        if let Some(held) = self.shard(key).held.lock().iter_mut().find(|h| h.key == key) {
            held.is_doomed = true;
        }
    }

    fn acquire(&self, key: u64) {
        let shard = self.shard(key);
        let mut held = shard.held.lock();
        while let Some(h) = held.iter_mut().find(|h| h.key == key) {
            h.waiters += 1;
            shard.released.wait(&mut held);
        }
        held.push(Held { key, is_doomed: false, waiters: 0 });
    }

    fn release(&self, key: u64) {
        let shard = self.shard(key);
        let mut held = shard.held.lock();
        let at = held.iter().position(|h| h.key == key).expect("a claim is held until released");
        let gone = held.swap_remove(at);
        drop(held);
        if gone.waiters > 0 {
            shard.released.notify_all();
        }
    }

    fn shard(&self, key: u64) -> &Shard {
        &self.shards[(key >> 40) as usize % SHARDS]
    }
}

impl Claim<'_> {
    /// Returns true if what was learnt under the claim must not be cached.
    pub(crate) fn is_doomed(&self) -> bool {
        self.keys.iter().any(|&key| {
            self.claims.shard(key).held.lock().iter().any(|h| h.key == key && h.is_doomed)
        })
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        self.claims.release(self.keys[0]);
        if self.keys[0] != self.keys[1] {
            self.claims.release(self.keys[1]);
        }
    }
}

#[cfg(all(test, not(any(corewalk_loom, corewalk_shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn claim_of_two_equal_keys_is_one_claim() {
        let claims = Claims::new();
        drop(claims.claim_both(5, 5));
        drop(claims.claim(5));
    }

    #[test]
    fn doomed_claim_says_so_and_the_next_does_not() {
        let claims = Claims::new();
        let claim = claims.claim(9);
        assert!(!claim.is_doomed());
        claims.doom(9);
        assert!(claim.is_doomed());
        assert!(claims.try_claim(9).is_none());
        drop(claim);
        assert!(!claims.claim(9).is_doomed());
    }
}
