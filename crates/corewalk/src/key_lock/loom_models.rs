//! Models of locks by key. A lock has one holder at a time, and an invalidation cancels the fill of
//! a holder.
//!
//! The thread whose first step is a load is the spawned one. Otherwise loom, because of a known
//! bug, skips schedules (see `tally` in the base crate).

use corewalk_base::primitives::{Arc, thread};
use corewalk_base::tally::{Tally, assert_all_reached};

use super::*;

/// Two keys of the same shard.
const KEY: u64 = 4;
const NEIGHBOUR: u64 = 8;

/// The locks, and an atomic word that stands for the data that the locks protect.
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
        // ORDERING: Relaxed. The model checks that the lock orders this load after the other
        // holder's store.
        let before = self.word.load(Ordering::Relaxed);
        // ORDERING: Relaxed. As above.
        self.word.store(before + 1, Ordering::Relaxed);
        before
    }
}

/// Runs two threads that change the word under the lock of one key. Meanwhile a third thread runs
/// `beside`. One of the two threads is spawned. Returns how often the spawned thread changed the
/// word first, and how often second.
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

/// Trap T24: a lock must not stay locked. It must have one holder at a time, whether it is in the
/// word or in the list, and leave no state behind.
#[test]
fn key_lock_has_one_holder_beside_a_lock_in_the_same_shard() {
    assert_all_reached(&two_holders(|locks| drop(locks.lock(NEIGHBOUR))));
}

/// Trap T24: a lock must have one holder at a time and must not stay locked, even if another thread
/// cancels fills meanwhile.
#[test]
fn key_lock_has_one_holder_beside_a_cancelled_fill() {
    assert_all_reached(&two_holders(|locks| locks.cancel_fill(KEY)));
}

/// A holder changes the word and then calls `is_fill_cancelled`. Meanwhile another thread cancels
/// the fill and then reads the word. Returns how often the other thread missed the change, and how
/// often it saw it.
fn change_against_cancel(is_fill_cancelled: fn(KeyGuard<'_>) -> bool) -> [usize; 2] {
    Tally::of_bounded(3, move |tally| {
        let shared = Shared::new();
        let guard = shared.locks.lock(KEY);
        let other = thread::spawn({
            let shared = Arc::clone(&shared);
            move || {
                shared.locks.cancel_fill(KEY);
                // ORDERING: Relaxed. The model checks that the lock orders this load after the
                // holder's store.
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

/// Trap T25: if a holder finds its fill not cancelled, a later invalidation must see the change
/// that the holder made before.
#[test]
fn change_that_is_not_cancelled_is_seen_by_the_invalidation() {
    assert_all_reached(&change_against_cancel(|guard| guard.is_fill_cancelled()));
}

/// Trap T25, control (a variant with the bug must fail): the holder loads the word of the shard
/// instead of exchanging it. So the holder may miss the cancellation, and the invalidation may miss
/// the holder's change.
#[test]
#[should_panic(expected = "T25: neither knows of the other")]
fn control_load_instead_of_an_exchange_is_caught() {
    change_against_cancel(|guard| {
        let shard = guard.locks.shard(KEY);
        // ORDERING: SeqCst. The load is wrong on purpose. It has the strongest order that a load
        // can have, and the model still fails.
        shard.word.load(Ordering::SeqCst) == LISTED
    });
}
