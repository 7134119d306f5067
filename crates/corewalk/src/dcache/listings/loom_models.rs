//! Models of a listing that enters a name while another thread changes the name.
//!
//! The back end and the cache are one number each, which a mutex protects. The number 1 is the old
//! file of the name, and 2 is the new file. In the cache, 0 means that the name is not cached.

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
    /// Reads the name as a listing does, and enters it. Returns the file that was entered, or 0 if
    /// none was.
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

/// Runs `change` on one thread and a listing on another. Returns how often the listing was refused,
/// entered the old file, and entered the new file.
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

/// Changes the name in the back end and in the cache under its in-lookup lock, and then calls
/// `counts` to count the change.
fn change_with(shared: &Shared, counts: fn(&Listings)) {
    let _in_lookup = shared.locks.lock(KEY);
    *shared.backend.lock() = NEW;
    *shared.cache.lock() = NEW;
    counts(&shared.listings);
}

/// Trap T25: a change of a name must count itself before it releases the in-lookup lock (L.1).
#[test]
fn listing_beside_a_change_enters_no_older_entry() {
    assert_all_reached(&list_against(|shared| {
        change_with(shared, |listings| drop(listings.change(DIRECTORY)));
    }));
}

/// Trap T25, control (a variant with the bug must fail): the change does not count itself, so the
/// listing enters the old file.
#[test]
#[should_panic(expected = "T25: an older entry was brought back")]
fn control_change_that_does_not_count_itself_is_caught() {
    list_against(|shared| change_with(shared, |_| ()));
}

/// Trap T25, control (a variant with the bug must fail): the change looks for listings before it
/// calls the back end. So it may miss a listing.
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

/// One thread changes the name in a back end that takes no lock, and another thread lists the
/// directory. `begin` begins the listing, and `counts` counts the change. Returns how often the
/// listing was refused, entered the old file, and entered the new file.
fn list_without_locks(
    begin: fn(&Listings) -> ListingMark<'_>,
    counts: fn(&Listings),
) -> [usize; 3] {
    Tally::of_bounded(3, move |tally| {
        // The shared values are the listings, the back end, and the cache in a mutex. That mutex
        // also stands for the in-lookup lock of the name.
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

/// Trap T25: a listing must not enter an old answer, even if the back end has no locks. Such a back
/// end does not order its answers and the counts of changes, so the fences must.
#[test]
fn listing_of_a_back_end_without_locks_enters_no_older_entry() {
    let counts = |listings: &Listings| drop(listings.change(DIRECTORY));
    assert_all_reached(&list_without_locks(|listings| listings.begin(DIRECTORY), counts));
}

/// Trap T25, control (a variant with the bug must fail): the change reads the count of listings
/// without a fence.
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

/// Trap T25, control (a variant with the bug must fail): the listing reads the back end without a
/// fence.
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

/// Another program changes the name in the back end. Then the name is invalidated: `first` runs,
/// then `second`, and then the cache drops the name.
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

/// Traps T25, P12: an invalidation must count itself and then cancel the fill (L.2).
#[test]
fn listing_beside_an_invalidation_enters_no_older_entry() {
    assert_all_reached(&list_against(|shared| invalidate_with(shared, count_change, cancel_fill)));
}

/// Trap P12, control (a variant with the bug must fail): an invalidation only cancels the fill, and
/// does not count itself as a change. So it misses a listing that holds no in-lookup lock yet.
#[test]
#[should_panic(expected = "T25: an older entry was brought back")]
fn control_invalidation_that_only_cancels_is_caught() {
    list_against(|shared| invalidate_with(shared, |_| (), cancel_fill));
}

/// Trap P12, control (a variant with the bug must fail): an invalidation only counts itself as a
/// change, and does not cancel the fill. So a listing that already holds the in-lookup lock does
/// not notice it.
#[test]
#[should_panic(expected = "T25: an older entry was brought back")]
fn control_invalidation_that_only_counts_is_caught() {
    list_against(|shared| {
        *shared.backend.lock() = NEW;
        *shared.cache.lock() = 0;
        count_change(shared);
    });
}
