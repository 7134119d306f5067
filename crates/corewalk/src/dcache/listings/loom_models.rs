//! Models of a listing that fills a name beside a change of the name.
//!
//! The back end and the cache are a word each, under a mutex. 1 is the old file of the name, and 2
//! the new one. 0 is an empty cache.

use corewalk_base::Mutex;
use corewalk_base::primitives::{Arc, thread};
use corewalk_base::tally::{Tally, assert_all_reached};

use super::*;
use crate::key_lock::{KeyLocks, SHARDS_FEW};

const KEY: u64 = 4;
const DIRECTORY: DentrySlot = DentrySlot::new(1);
const OLD: u64 = 1;
const NEW: u64 = 2;

struct Shared {
    listings: Listings,
    locks: KeyLocks,
    backend: Mutex<u64>,
    cache: Mutex<u64>,
}

impl Shared {
    /// Reads the name in a listing and enters it. Returns what it has entered, or 0.
    fn list(&self) -> u64 {
        let mark = self.listings.begin(DIRECTORY);
        let entry = *self.backend.lock();
        let in_lookup = self.locks.lock(KEY);
        if !mark.is_unchanged() {
            return 0;
        }
        let mut cache = self.cache.lock();
        if in_lookup.is_fill_cancelled() {
            return 0;
        }
        *cache = entry;
        entry
    }
}

/// Runs `change` beside a listing. Returns how often the listing (was refused, entered the old
/// file, entered the new file).
fn list_against(change: fn(&Shared)) -> [usize; 3] {
    Tally::of_bounded(3, move |tally| {
        let shared = Arc::new(Shared {
            listings: Listings::new(),
            locks: KeyLocks::new(SHARDS_FEW),
            backend: Mutex::new(OLD),
            cache: Mutex::new(0),
        });
        let changer = thread::spawn({
            let shared = Arc::clone(&shared);
            move || change(&shared)
        });
        let entered = shared.list();
        changer.join().unwrap();
        assert_ne!(*shared.cache.lock(), OLD, "T25: an older entry was brought back");
        tally.hit(entered as usize);
    })
}

/// Changes the name in the back end and in the cache under its in-lookup lock, and counts the
/// change as `counts` does.
fn change_with(shared: &Shared, counts: fn(&Listings)) {
    let _in_lookup = shared.locks.lock(KEY);
    *shared.backend.lock() = NEW;
    *shared.cache.lock() = NEW;
    counts(&shared.listings);
}

/// Trap T25: a change of a name counts itself before it releases the in-lookup lock (L.1).
#[test]
fn listing_beside_a_change_enters_no_older_entry() {
    assert_all_reached(&list_against(|shared| {
        change_with(shared, |listings| drop(listings.change(DIRECTORY)));
    }));
}

/// Trap T25: the change does not count itself.
#[test]
#[should_panic(expected = "T25: an older entry was brought back")]
fn control_change_that_does_not_count_itself_is_caught() {
    list_against(|shared| change_with(shared, |_| ()));
}

/// Trap T25: the change looks for listings before it calls the back end.
#[test]
#[should_panic(expected = "T25: an older entry was brought back")]
fn control_change_that_counts_itself_before_the_call_is_caught() {
    list_against(|shared| {
        let _in_lookup = shared.locks.lock(KEY);
        drop(shared.listings.change(DIRECTORY));
        *shared.backend.lock() = NEW;
        *shared.cache.lock() = NEW;
    });
}

/// Another program changes the name in the back end. Then the name is invalidated: `first` and
/// `second` run in this order, and the cache drops the name.
fn invalidate_with(shared: &Shared, first: fn(&Shared), second: fn(&Shared)) {
    *shared.backend.lock() = NEW;
    first(shared);
    second(shared);
    *shared.cache.lock() = 0;
}

fn count_change(shared: &Shared) {
    drop(shared.listings.change(DIRECTORY));
}

fn cancel_fill(shared: &Shared) {
    shared.locks.cancel_fill(KEY);
}

/// Traps T25, P12: an invalidation counts itself and then cancels the fill (L.2).
#[test]
fn listing_beside_an_invalidation_enters_no_older_entry() {
    assert_all_reached(&list_against(|shared| invalidate_with(shared, count_change, cancel_fill)));
}

/// Trap P12: an invalidation that only cancels misses a listing that holds no lock yet.
#[test]
#[should_panic(expected = "T25: an older entry was brought back")]
fn control_invalidation_that_only_cancels_is_caught() {
    list_against(|shared| invalidate_with(shared, |_| (), cancel_fill));
}

/// Trap P12: a listing that holds the lock already sees no cancellation before the count.
#[test]
#[should_panic(expected = "T25: an older entry was brought back")]
fn control_invalidation_that_only_counts_is_caught() {
    list_against(|shared| {
        *shared.backend.lock() = NEW;
        *shared.cache.lock() = 0;
        count_change(shared);
    });
}
