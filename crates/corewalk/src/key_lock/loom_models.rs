//! Models of locks by key: one holder at a time, and a change beside an invalidation.
//!
//! The thread whose first step is a load is the spawned one, because loom skips schedules otherwise
//! (see `tally` in the base crate).

use corewalk_base::primitives::{Arc, thread};
use corewalk_base::tally::{Tally, assert_all_reached};

use super::*;

/// Two keys of one shard, and one key of the other shard.
const KEY: u64 = 4;
const NEIGHBOUR: u64 = 8;

/// The locks, and a word that stands for the data under them.
struct Shared {
    locks: KeyLocks,
    word: AtomicU64,
}

impl Shared {
    fn new() -> Arc<Shared> {
        Arc::new(Shared { locks: KeyLocks::new(SHARDS_FEW), word: AtomicU64::new(0) })
    }

    /// Adds one in two steps.
    fn add(&self) -> u64 {
        // ORDERING: Relaxed. The lock has to order this load after the other holder's store.
        let before = self.word.load(Ordering::Relaxed);
        // ORDERING: Relaxed. As above.
        self.word.store(before + 1, Ordering::Relaxed);
        before
    }
}

/// Runs two threads that change the word under the lock of one key, while a third thread runs
/// `beside`.
fn two_holders(beside: fn(&KeyLocks)) -> [usize; 2] {
    Tally::of_bounded(2, move |tally| {
        let shared = Shared::new();
        let spawn = |run: fn(&Shared, &Tally<2>)| {
            let (shared, tally) = (Arc::clone(&shared), tally.clone());
            thread::spawn(move || run(&shared, &tally))
        };
        let first = spawn(|shared, tally| {
            let _locked = shared.locks.lock(KEY);
            tally.hit(shared.add() as usize);
        });
        let other = thread::spawn({
            let shared = Arc::clone(&shared);
            move || beside(&shared.locks)
        });
        let guard = shared.locks.lock(KEY);
        shared.add();
        drop(guard);
        first.join().unwrap();
        other.join().unwrap();
        // ORDERING: Relaxed. Both threads have been joined.
        assert_eq!(shared.word.load(Ordering::Relaxed), 2, "T24: two threads held one lock");
        drop(shared.locks.try_lock(KEY).expect("T24: a lock was left behind"));
    })
}

/// Trap T24: a lock must not stay locked. It must have one holder, in the word or in the list, and
/// leave no state behind.
#[test]
fn key_lock_has_one_holder_beside_a_lock_in_the_same_shard() {
    assert_all_reached(&two_holders(|locks| drop(locks.lock(NEIGHBOUR))));
}

/// Trap T24: a lock must have one holder and must not stay locked, also beside a thread that
/// cancels fills.
#[test]
fn key_lock_has_one_holder_beside_a_cancelled_fill() {
    assert_all_reached(&two_holders(|locks| locks.cancel_fill(KEY)));
}

/// A holder changes the word and then calls `is_fill_cancelled`, beside a thread that cancels the
/// fill and then reads the word. Returns how often that thread missed the change, and how often it
/// saw it.
fn change_against_cancel(is_fill_cancelled: fn(KeyGuard<'_>) -> bool) -> [usize; 2] {
    Tally::of_bounded(3, move |tally| {
        let shared = Shared::new();
        let guard = shared.locks.lock(KEY);
        let other = thread::spawn({
            let shared = Arc::clone(&shared);
            move || {
                shared.locks.cancel_fill(KEY);
                // ORDERING: Relaxed. The lock has to order this load after the holder's store.
                shared.word.load(Ordering::Relaxed) == 1
            }
        });
        // ORDERING: Relaxed. As above.
        shared.word.store(1, Ordering::Relaxed);
        let knows = is_fill_cancelled(guard);
        let has_seen = other.join().unwrap();
        assert!(knows || has_seen, "T25: neither knows of the other");
        tally.hit(usize::from(has_seen));
    })
}

/// Trap T25: an invalidation must see a change that was made before the fill was found not
/// cancelled.
#[test]
fn change_that_is_not_cancelled_is_seen_by_the_invalidation() {
    assert_all_reached(&change_against_cancel(|guard| guard.is_fill_cancelled()));
}

/// Control for trap T25: the holder loads the word instead of exchanging it, so neither thread may
/// notice the other.
#[test]
#[should_panic(expected = "T25: neither knows of the other")]
fn control_load_instead_of_an_exchange_is_caught() {
    change_against_cancel(|guard| {
        let shard = guard.locks.shard(KEY);
        // ORDERING: SeqCst. Wrong on purpose: the strongest order that a load can have.
        shard.word.load(Ordering::SeqCst) == LISTED
    });
}
