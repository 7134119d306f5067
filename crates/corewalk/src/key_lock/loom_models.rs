//! Models of locks by key. A lock has one holder at a time, and an invalidation can forbid the
//! holder to cache the back end's answer.
//!
//! In each model, the spawned thread is the one whose first step is a load. If it were the main
//! thread, loom would skip some schedules, because of a bug of loom (see `tally` in
//! `corewalk_base`).

use corewalk_base::primitives::{Arc, thread};
use corewalk_base::tally::{Tally, assert_all_reached};

use super::*;

/// Two keys of the same shard.
const KEY: u64 = 4;
const NEIGHBOUR: u64 = 8;

struct Shared {
    locks: KeyLocks,
    word: AtomicU64,
}

impl Shared {
    fn new() -> Arc<Shared> {
        Arc::new(Shared { locks: KeyLocks::new(SHARDS_FEW), word: AtomicU64::new(0) })
    }

    fn add(&self) -> u64 {
        // ORDERING: Relaxed. Two threads call this function under the lock of a key. The model
        // checks that the lock makes their stores visible to each other.
        let before = self.word.load(Ordering::Relaxed);
        // ORDERING: Relaxed. As above.
        self.word.store(before + 1, Ordering::Relaxed);
        before
    }
}

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

/// A lock has one holder at a time, and is free at the end. A third thread takes another lock of
/// the shard meanwhile, so the held key may move from the shard's word to its list. Trap T24 in
/// `traps.md`.
#[test]
fn key_lock_has_one_holder_beside_a_lock_in_the_same_shard() {
    assert_all_reached(&two_holders(|locks| drop(locks.lock(NEIGHBOUR))));
}

/// A lock has one holder at a time, and is free at the end. A third thread cancels the holder's
/// fill (forbids it to cache an answer) meanwhile. Trap T24 in `traps.md`.
#[test]
fn key_lock_has_one_holder_beside_a_cancelled_fill() {
    assert_all_reached(&two_holders(|locks| locks.cancel_fill(KEY)));
}

fn change_against_cancel(is_fill_cancelled: fn(KeyGuard<'_>) -> bool) -> [usize; 2] {
    Tally::of_bounded(3, move |tally| {
        let shared = Shared::new();
        let guard = shared.locks.lock(KEY);
        let other = thread::spawn({
            let shared = Arc::clone(&shared);
            move || {
                shared.locks.cancel_fill(KEY);
                // ORDERING: Relaxed. The model checks that the lock makes the holder's store
                // visible.
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

/// A lock's holder changes the cache while an invalidation cancels its fill. If the holder does not
/// see the cancellation, the invalidation must see the change. Trap T25 in `traps.md`.
#[test]
fn change_that_is_not_cancelled_is_seen_by_the_invalidation() {
    assert_all_reached(&change_against_cancel(|guard| guard.is_fill_cancelled()));
}

/// Control (a variant with the bug must fail): the lock's holder checks with a load, not a
/// compare-exchange, whether it may cache its answer. So it may miss the cancellation, while the
/// invalidation misses its change. Trap T25 in `traps.md`.
#[test]
#[should_panic(expected = "T25: neither knows of the other")]
fn control_load_instead_of_an_exchange_is_caught() {
    change_against_cancel(|guard| {
        let shard = guard.locks.shard(KEY);
        // ORDERING: SeqCst. The bug is the load instead of a compare-exchange. The model fails even
        // with the strongest order.
        shard.word.load(Ordering::SeqCst) == LISTED
    });
}
