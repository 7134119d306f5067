//! Asynchronous locks of names and inodes. Requests that wait for the same lock share results.
//!
//! [`Flights::lock`] locks a key, such as a name in a directory. Requests that need the same answer
//! of the back end lock the same key:
//! - A request that gets the lock and finds no result calls [`Flight::ask`], asks the back end, and
//!   passes the result to [`Flight::complete`].
//! - A request that has waited for the lock may find the result of another request in
//!   [`Flight::shared`]. It finds the result only if the back end was asked after the wait had
//!   begun.
//!
//! However many requests wait for one key, they need at most two calls of the back end.
//!
//! # Invariants
//! - G.1: at most one request has the lock of a key.
//! - G.2: a request gets only a result for which the back end was asked after the request had
//!   called `lock`. So no request gets an answer that is older than itself.
//! - G.3: if the request that has a lock panics or is dropped, the next request gets the lock, and
//!   no result. So no request waits for ever (trap T24 in `traps.md`).
//! - G.4: the map has an entry for a key only while a request uses the key.
//!
//! # Locks
//! The mutex of a shard is held only to read or change the map, never while a future waits. The
//! lock of a key is an asynchronous mutex, which wakes waiting requests in any order. A request
//! that locks several keys locks them in their order, the smallest one first. The server's keys
//! have the order `Key::Topology`, `Key::Name`, `Key::Attributes`. So no two requests wait for each
//! other.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hash};
use std::sync::Arc;

use corewalk_base::Mutex;
use foldhash::fast::RandomState;
use futures_util::lock::{Mutex as AsyncMutex, OwnedMutexGuard};

const SHARDS: usize = 16;

type Last<V> = Option<(u64, V)>;

pub(super) struct Flights<K, V> {
    shards: [Mutex<HashMap<K, Entry<V>, RandomState>>; SHARDS],
    hasher: RandomState,
}

/// The lock of a key, with counters. All fields are protected by the mutex of the shard.
struct Entry<V> {
    lock: Arc<AsyncMutex<Last<V>>>,
    calls: u64,
    invalidated: u64,
    users: u64,
}

struct User<'f, K: Hash + Eq, V> {
    flights: &'f Flights<K, V>,
    key: K,
}

/// A locked key. Dropping the value unlocks the key.
pub(super) struct Flight<'f, K: Hash + Eq, V> {
    /// The lock of the key. It is declared before `user`, so that it is dropped first. Otherwise
    /// the map could lose the entry while the lock is held (invariant G.4).
    guard: OwnedMutexGuard<Last<V>>,
    user: User<'f, K, V>,
    joined: u64,
    call: u64,
}

impl<K: Hash + Eq + Clone, V> Flights<K, V> {
    pub(super) fn new() -> Flights<K, V> {
        let shards = std::array::from_fn(|_| Mutex::new(HashMap::default()));
        Flights { shards, hasher: RandomState::default() }
    }

    pub(super) async fn lock(&self, key: K) -> Flight<'_, K, V> {
        let (lock, joined) = {
            let mut shard = self.shard(&key).lock();
            let entry = shard.entry(key.clone()).or_insert_with(|| Entry {
                lock: Arc::new(AsyncMutex::new(None)),
                calls: 0,
                invalidated: 0,
                users: 0,
            });
            entry.users += 1;
            (Arc::clone(&entry.lock), entry.calls)
        };
        let user = User { flights: self, key };
        Flight { guard: lock.lock_owned().await, user, joined, call: 0 }
    }

    pub(super) async fn lock_both(&self, a: K, b: K) -> (Flight<'_, K, V>, Option<Flight<'_, K, V>>)
    where
        K: Ord,
    {
        let (first, second) = if a <= b { (a, b) } else { (b, a) };
        let is_one = first == second;
        let first = self.lock(first).await;
        let second = if is_one { None } else { Some(self.lock(second).await) };
        (first, second)
    }
}

impl<K: Hash + Eq, V> Flights<K, V> {
    pub(super) fn invalidate(&self, key: &K) {
        if let Some(entry) = self.shard(key).lock().get_mut(key) {
            entry.invalidated = entry.calls;
        }
    }

    pub(super) fn invalidate_all(&self) {
        for shard in &self.shards {
            shard.lock().values_mut().for_each(|entry| entry.invalidated = entry.calls);
        }
    }

    fn shard(&self, key: &K) -> &Mutex<HashMap<K, Entry<V>, RandomState>> {
        &self.shards[self.hasher.hash_one(key) as usize % SHARDS]
    }
}

impl<K: Hash + Eq, V> Flight<'_, K, V> {
    fn entry<T>(&self, read: impl FnOnce(&mut Entry<V>) -> T) -> T {
        let mut shard = self.user.flights.shard(&self.user.key).lock();
        read(shard.get_mut(&self.user.key).expect("G.4: this request uses the entry"))
    }

    pub(super) fn shared(&self) -> Option<&V> {
        let invalidated = self.entry(|entry| entry.invalidated);
        let oldest = self.joined.max(invalidated);
        self.guard.as_ref().filter(|(call, _)| *call > oldest).map(|(_, result)| result)
    }

    /// Notes that a call of the back end begins now. Only requests that already wait for the lock
    /// may share the result of the call.
    pub(super) fn ask(&mut self) {
        self.call = self.entry(|entry| {
            entry.calls += 1;
            entry.calls
        });
    }

    pub(super) fn is_valid(&self) -> bool {
        self.entry(|entry| entry.invalidated) < self.call
    }

    pub(super) fn complete(&mut self, result: V) {
        *self.guard = Some((self.call, result));
    }

    pub(super) fn clear(&mut self) {
        *self.guard = None;
    }
}

impl<K: Hash + Eq, V> Drop for User<'_, K, V> {
    fn drop(&mut self) {
        let mut shard = self.flights.shard(&self.key).lock();
        let is_last = shard.get_mut(&self.key).is_some_and(|entry| {
            entry.users -= 1;
            entry.users == 0
        });
        let entry = if is_last { shard.remove(&self.key) } else { None };
        drop(shard);
        drop(entry);
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use super::*;

    type Names = Flights<&'static str, u32>;

    fn poll<F: Future>(future: std::pin::Pin<&mut F>) -> Poll<F::Output> {
        future.poll(&mut Context::from_waker(Waker::noop()))
    }

    fn now<F: Future>(future: F) -> F::Output {
        match poll(pin!(future)) {
            Poll::Ready(output) => output,
            Poll::Pending => panic!("the future waits"),
        }
    }

    fn is_empty(names: &Names) -> bool {
        names.shards.iter().all(|shard| shard.lock().is_empty())
    }

    #[test]
    fn request_gets_no_result_that_is_older_than_itself() {
        let names = Names::new();
        let mut first = now(names.lock("a"));
        let mut second = pin!(names.lock("a"));
        assert!(poll(second.as_mut()).is_pending());
        first.ask();
        let mut late = pin!(names.lock("a"));
        assert!(poll(late.as_mut()).is_pending());
        first.complete(1);
        drop(first);
        let Poll::Ready(second) = poll(second) else { panic!("the lock is free") };
        assert_eq!(second.shared(), Some(&1));
        drop(second);
        let Poll::Ready(mut late) = poll(late) else { panic!("the lock is free") };
        assert_eq!(late.shared(), None);
        late.ask();
        assert!(late.is_valid());
        names.invalidate(&"a");
        assert!(!late.is_valid());
        late.ask();
        assert!(late.is_valid());
        drop(late);
        names.invalidate(&"a");
        assert!(is_empty(&names));
    }

    #[test]
    fn cleared_or_invalidated_result_is_not_shared() {
        for invalidates in [false, true] {
            let names = Names::new();
            let mut first = now(names.lock("a"));
            let mut second = pin!(names.lock("a"));
            assert!(poll(second.as_mut()).is_pending());
            first.ask();
            first.complete(1);
            if invalidates {
                names.invalidate(&"a");
            } else {
                first.clear();
            }
            drop(first);
            let Poll::Ready(second) = poll(second) else { panic!("the lock is free") };
            assert_eq!(second.shared(), None);
        }
    }

    #[test]
    fn trap_t24_dropped_request_passes_the_lock_on_without_a_result() {
        let names = Names::new();
        let first = now(names.lock("a"));
        let mut second = pin!(names.lock("a"));
        assert!(poll(second.as_mut()).is_pending());
        {
            let mut dropped = Box::pin(names.lock("a"));
            assert!(poll(dropped.as_mut()).is_pending());
        }
        drop(first);
        let Poll::Ready(second) = poll(second) else { panic!("the lock is free") };
        assert_eq!(second.shared(), None);
        drop(second);
        assert!(is_empty(&names));
    }

    #[test]
    fn two_keys_are_locked_in_their_order_and_equal_keys_once() {
        let names = Names::new();
        let held = now(names.lock("a"));
        let mut both = pin!(names.lock_both("b", "a"));
        assert!(poll(both.as_mut()).is_pending());
        drop(now(names.lock("b")));
        drop(held);
        let Poll::Ready((first, second)) = poll(both) else { panic!("the locks are free") };
        assert!(second.is_some());
        drop((first, second));
        assert!(now(names.lock_both("a", "a")).1.is_none());
        assert!(is_empty(&names));
    }
}
