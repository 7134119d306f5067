//! Models of a directory listing that adds a name to the cache while another thread changes the
//! name.
//!
//! The models of the back end and of the cache are one number each, protected by a mutex. The
//! number tells which file the name refers to: 1 is the old file, and 2 the new one. In the cache,
//! 0 means that the name is not cached.

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

fn change_with(shared: &Shared, counts: fn(&Listings)) {
    let _in_lookup = shared.locks.lock(KEY);
    *shared.backend.lock() = NEW;
    *shared.cache.lock() = NEW;
    counts(&shared.listings);
}

/// A listing must not add the old file of a name that another thread changes (invariant L.1 of
/// `listings`). Trap T25 in `traps.md`.
#[test]
fn listing_beside_a_change_enters_no_older_entry() {
    assert_all_reached(&list_against(|shared| {
        change_with(shared, |listings| drop(listings.change(DIRECTORY)));
    }));
}

/// Control (a variant with the bug must fail): the changing thread does not increment the
/// directory's count of changes. So the listing misses the change, and adds the old file to the
/// cache. Trap T25 in `traps.md`.
#[test]
#[should_panic(expected = "T25: an older entry was brought back")]
fn control_change_that_does_not_count_itself_is_caught() {
    list_against(|shared| change_with(shared, |_| ()));
}

/// Control (a variant with the bug must fail): the changing thread looks for listings in progress
/// before it calls the back end. So it may miss a listing. Trap T25 in `traps.md`.
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

fn list_without_locks(
    begin: fn(&Listings) -> ListingMark<'_>,
    counts: fn(&Listings),
) -> [usize; 3] {
    Tally::of_bounded(3, move |tally| {
        // The cache's mutex also serves as the in-lookup lock of the name.
        let backend = AtomicU64::new(OLD);
        let shared = Arc::new((Listings::new(), backend, Mutex::new(0)));
        let changer = thread::spawn({
            let shared = Arc::clone(&shared);
            move || {
                let (listings, backend, cache) = &*shared;
                let mut cache = cache.lock();
                // ORDERING(lock-free): Release. The back end publishes the file.
                backend.store(NEW, Ordering::Release);
                *cache = NEW;
                counts(listings);
            }
        });
        let (listings, backend, cache) = &*shared;
        let mark = begin(listings);
        // ORDERING(lock-free): Acquire. As above.
        let entry = backend.load(Ordering::Acquire);
        let mut cached = cache.lock();
        let is_unchanged = mark.is_unchanged();
        if is_unchanged {
            *cached = entry;
        }
        drop(cached);
        drop(mark);
        changer.join().unwrap();
        assert_ne!(*cache.lock(), OLD, "T25: an older entry was brought back");
        tally.hit(if is_unchanged { entry as usize } else { 0 });
    })
}

/// A listing must not add an old file to the cache, even if the back end has no locks. Then only
/// the fences in `begin` and in the drop of `NameChange` order the back end's answers and the
/// counts. Trap T25 in `traps.md`.
#[test]
fn listing_of_a_back_end_without_locks_enters_no_older_entry() {
    let counts = |listings: &Listings| drop(listings.change(DIRECTORY));
    assert_all_reached(&list_without_locks(|listings| listings.begin(DIRECTORY), counts));
}

/// Control (a variant with the bug must fail): the changing thread lacks a fence. The fence belongs
/// between its change of the back end and its load of the count of listings. Trap T25 in
/// `traps.md`.
#[test]
#[should_panic(expected = "T25: an older entry was brought back")]
fn control_change_without_a_fence_is_caught() {
    list_without_locks(
        |listings| listings.begin(DIRECTORY),
        |listings| {
            let word = listings.word(DIRECTORY);
            // ORDERING: Relaxed. Wrong on purpose.
            if word.load(Ordering::Relaxed) & LISTINGS_MASK != 0 {
                // ORDERING: Relaxed. As in the original.
                word.fetch_add(CHANGE, Ordering::Relaxed);
            }
        },
    );
}

/// Control (a variant with the bug must fail): the listing lacks a fence. The fence belongs between
/// its increment of the count of listings and its read from the back end. Trap T25 in `traps.md`.
#[test]
#[should_panic(expected = "T25: an older entry was brought back")]
fn control_listing_without_a_fence_is_caught() {
    fn begin(listings: &Listings) -> ListingMark<'_> {
        let word = listings.word(DIRECTORY);
        // ORDERING: Relaxed. Wrong on purpose.
        let before = word.fetch_add(1, Ordering::Relaxed);
        ListingMark { word, changes: before / CHANGE }
    }
    list_without_locks(begin, |listings| drop(listings.change(DIRECTORY)));
}

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

/// A listing must not add an old file while another thread invalidates the name (invariant L.2 of
/// `listings`). Traps T25 and P12 in `traps.md`.
#[test]
fn listing_beside_an_invalidation_enters_no_older_entry() {
    assert_all_reached(&list_against(|shared| invalidate_with(shared, count_change, cancel_fill)));
}

/// Control (a variant with the bug must fail): the invalidation does not increment the directory's
/// count of changes. It only forbids the current holder of the in-lookup lock to cache its answer.
/// A listing that takes the lock later adds the old file. Trap P12 in `traps.md`.
#[test]
#[should_panic(expected = "T25: an older entry was brought back")]
fn control_invalidation_that_only_cancels_is_caught() {
    list_against(|shared| invalidate_with(shared, |_| (), cancel_fill));
}

/// Control (a variant with the bug must fail): the invalidation does not forbid the holder of the
/// in-lookup lock to cache its answer. It only increments the directory's count of changes. A
/// listing that has already compared the count adds the old file. Trap P12 in `traps.md`.
#[test]
#[should_panic(expected = "T25: an older entry was brought back")]
fn control_invalidation_that_only_counts_is_caught() {
    list_against(|shared| {
        *shared.backend.lock() = NEW;
        *shared.cache.lock() = 0;
        count_change(shared);
    });
}
