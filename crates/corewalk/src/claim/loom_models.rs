//! Models of claims: one holder at a time, and of a change and an invalidation one knows of the other.
//!
//! The thread whose first step is a load is the spawned one: see `tally` in the sync crate.

use corewalk_base::primitives::{Arc, thread};
use corewalk_base::tally::{Tally, assert_all_reached};

use super::*;

/// Two names of one shard, and one of the other.
const KEY: u64 = 4;
const NEIGHBOUR: u64 = 8;

/// Claims, and a word that stands for what is changed under them.
struct Shared {
    claims: Claims,
    word: AtomicU64,
}

impl Shared {
    fn new() -> Arc<Shared> {
        Arc::new(Shared { claims: Claims::new(SHARDS_FEW), word: AtomicU64::new(0) })
    }

    /// Adds one in two steps.
    fn add(&self) -> u64 {
        // ORDERING: Relaxed. The claim has to order it.
        let before = self.word.load(Ordering::Relaxed);
        // ORDERING: Relaxed. As above.
        self.word.store(before + 1, Ordering::Relaxed);
        before
    }
}

/// Two threads change something under the claim of one key, while a third does `beside`.
fn two_holders(beside: fn(&Claims)) -> [usize; 2] {
    Tally::of_bounded(2, move |tally| {
        let shared = Shared::new();
        let spawn = |run: fn(&Shared, &Tally<2>)| {
            let (shared, tally) = (Arc::clone(&shared), tally.clone());
            thread::spawn(move || run(&shared, &tally))
        };
        let first = spawn(|shared, tally| {
            let _claim = shared.claims.claim(KEY);
            tally.hit(shared.add() as usize);
        });
        let other = thread::spawn({
            let shared = Arc::clone(&shared);
            move || beside(&shared.claims)
        });
        let claim = shared.claims.claim(KEY);
        shared.add();
        drop(claim);
        first.join().unwrap();
        other.join().unwrap();
        // ORDERING: Relaxed. Both have been joined.
        assert_eq!(shared.word.load(Ordering::Relaxed), 2, "T24: two held one claim");
        drop(shared.claims.try_claim(KEY).expect("T24: a claim was left behind"));
    })
}

/// Trap T24: a claim has one holder, whether it is in the word or in the list, and leaves nothing behind.
#[test]
fn claim_has_one_holder_beside_one_that_shares_the_word() {
    assert_all_reached(&two_holders(|claims| drop(claims.claim(NEIGHBOUR))));
}

/// Trap T24: the same beside somebody who dooms claims.
#[test]
fn claim_has_one_holder_beside_one_that_dooms() {
    assert_all_reached(&two_holders(|claims| claims.doom(KEY)));
}

/// A holder changes something and then asks with `is_doomed`, beside somebody who dooms the claim and then
/// looks; returns how often the other (has not
/// seen the change, has seen it).
fn change_against_doom(is_doomed: fn(Claim<'_>) -> bool) -> [usize; 2] {
    Tally::of_bounded(3, move |tally| {
        let shared = Shared::new();
        let claim = shared.claims.claim(KEY);
        let other = thread::spawn({
            let shared = Arc::clone(&shared);
            move || {
                shared.claims.doom(KEY);
                // ORDERING: Relaxed. The claim has to order it.
                shared.word.load(Ordering::Relaxed) == 1
            }
        });
        // ORDERING: Relaxed. As above.
        shared.word.store(1, Ordering::Relaxed);
        let knows = is_doomed(claim);
        let has_seen = other.join().unwrap();
        assert!(knows || has_seen, "T25: neither knows of the other");
        tally.hit(usize::from(has_seen));
    })
}

/// Trap T25: an invalidation sees what was changed under a claim before it was found to be undoomed.
#[test]
fn undoomed_change_is_seen_by_the_invalidation() {
    assert_all_reached(&change_against_doom(|claim| claim.is_doomed()));
}

/// Trap T25: a plain look at the word.
#[test]
#[should_panic(expected = "T25: neither knows of the other")]
fn control_look_without_an_exchange_is_caught() {
    change_against_doom(|claim| {
        let shard = claim.claims.shard(KEY);
        // ORDERING: SeqCst. Wrong on purpose: as strong as a load can be.
        shard.word.load(Ordering::SeqCst) == LISTED
    });
}
