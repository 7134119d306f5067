//! Models of concurrent creation, search, deletion and reclaim.
//!
//! If one thread of a model begins with a load, the model spawns that thread. If the main thread
//! began with the load, a known bug of loom would skip schedules (see `tally` in the base crate).
//!
//! The index of a model has four lines, and a freed slot is used again immediately.

use corewalk_base::primitives::atomic::{AtomicU64, Ordering};
use corewalk_base::primitives::{Arc, thread};
use corewalk_base::tally::{Tally, assert_all_reached};

use crate::cache::{Mbcache, MbcacheOptions};
use crate::handle::Entry;
use crate::hash::Secret;
use crate::index::{LOCK, REACH, SLOTS, Slot};
use crate::slots::{self, COUNT, LIVE, NEXT, REUSABLE, STATE, Spare, State, Words};

const KEY: u64 = 1;
const LINES: u64 = 4;

/// The cache of a model, and two flags that show a use of a freed value. A thread that uses a found
/// value sets `is_used`, and the thread that frees the value sets `is_freed`.
struct Shared {
    cache: Mbcache,
    is_used: AtomicU64,
    is_freed: AtomicU64,
}

impl Shared {
    fn new() -> Arc<Shared> {
        let options = MbcacheOptions { budget_bytes: LINES * 64, ..Default::default() };
        let cache = Mbcache::with_secret(options, Secret::new(1)).unwrap();
        Arc::new(Shared { cache, is_used: AtomicU64::new(0), is_freed: AtomicU64::new(0) })
    }

    fn with(values: u64) -> Arc<Shared> {
        let shared = Self::new();
        (1..=values).for_each(|value| shared.cache.create(KEY, value).unwrap());
        shared
    }

    /// Asserts that the index has `entries` entries, and that searches for each of them read its
    /// line (invariant I.1 of `index.rs`).
    fn check_counts(&self, entries: u64) {
        assert_eq!(
            self.cache.stats().entries,
            entries,
            "T36: the index has another number of entries"
        );
        for slot in self.cache.index.all() {
            if slots::state(slot.words).is_live() {
                let home = u64::from(self.cache.index.home(slots::pair_of(slot.words).0));
                let distance = (u64::from(slot.number / SLOTS) + LINES - home) % LINES;
                // ORDERING: Relaxed. The threads have been joined.
                let reach = self.cache.index.line(home as u32)[REACH].load(Ordering::Relaxed);
                assert!(distance <= reach, "I.1");
            }
        }
    }
}

fn home(cache: &Mbcache) -> u32 {
    cache.index.home(KEY)
}

fn slot_of(cache: &Mbcache, value: u64) -> Slot<'_> {
    cache.index.look_up(home(cache), (KEY, value)).expect("the pair stays").0
}

fn key_of(cache: &Mbcache, home: u32) -> u64 {
    let is_there = |key: &u64| cache.index.home(*key) == home;
    (KEY + 1..).find(is_there).expect("there are four homes")
}

fn spawn<R: Send + 'static>(
    shared: &Arc<Shared>,
    run: impl FnOnce(&Shared) -> R + Send + 'static,
) -> thread::JoinHandle<R> {
    let shared = Arc::clone(shared);
    thread::spawn(move || run(&shared))
}

fn create_against_delete(create: fn(&Shared)) -> [usize; 3] {
    Tally::of_bounded(3, move |tally| {
        let shared = Shared::new();
        let other = spawn(&shared, move |shared| {
            let is_found = shared.cache.get(KEY, 7);
            assert!(shared.cache.delete_or_get(KEY, 7).is_none(), "there is no handle");
            is_found
        });
        create(&shared);
        let is_found = other.join().unwrap();
        let is_left = shared.cache.get(KEY, 7);
        shared.check_counts(u64::from(is_left));
        assert!(!(is_found && is_left), "T36: an entry that was found could not be deleted");
        tally.hit(if is_found { 0 } else { 1 + usize::from(!is_left) });
    })
}

/// An entry must be complete before a search can find it. Trap T36 in `traps.md`.
#[test]
fn entry_that_is_visible_is_counted() {
    assert_all_reached(&create_against_delete(|shared| {
        shared.cache.create(KEY, 7).unwrap();
    }));
}

/// Control test: a search finds an entry before its state word is complete. The later store of that
/// word undoes changes by other threads.
#[test]
#[should_panic(expected = "T36")]
fn control_entry_that_is_completed_later_is_caught() {
    create_against_delete(|shared| {
        let cache = &shared.cache;
        let locked = cache.index.lock(home(cache));
        let entered = cache.index.enter_at_home(&locked, home(cache), (KEY, 7));
        let number = entered.expect("the index is empty");
        let words = cache.index.slot(number).words;
        // ORDERING: Acquire, which is strong enough. The planted bug is the separate store below.
        let state = words[STATE].load(Ordering::Acquire);
        // ORDERING: Release, which is strong enough. The planted bug is that the entry is completed
        // in a second step.
        words[STATE].store(state | LIVE, Ordering::Release);
    });
}

fn create_against_create(create: fn(&Mbcache) -> bool) -> [usize; 2] {
    Tally::of_bounded(3, move |tally| {
        let shared = Shared::new();
        let other = spawn(&shared, move |shared| create(&shared.cache));
        let is_mine = create(&shared.cache);
        let is_theirs = other.join().unwrap();
        assert!(is_mine != is_theirs, "a pair was created twice");
        shared.check_counts(1);
        tally.hit(usize::from(is_mine));
    })
}

/// Invariant I.2 of `index.rs`: if two threads create the same pair at the same time, the cache
/// contains it once.
#[test]
fn pair_that_two_create_is_there_once() {
    assert_all_reached(&create_against_create(|cache| cache.create(KEY, 7).is_ok()));
}

/// Control test of invariant I.2 of `index.rs`: each thread unlocks the home line of the key
/// between its search for the pair and the creation.
#[test]
#[should_panic(expected = "a pair was created twice")]
fn control_look_before_the_lock_is_caught() {
    create_against_create(|cache| {
        let is_there = {
            let _locked = cache.index.lock(home(cache));
            cache.index.look_up(home(cache), (KEY, 7)).is_some()
        };
        let locked = cache.index.lock(home(cache));
        let free = (0..SLOTS).map(|nth| cache.index.slot(SLOTS * home(cache) + nth));
        let free = free.into_iter().find(|slot| !slots::state(slot.words).is_live());
        if let (false, Some(slot)) = (is_there, free) {
            slots::fill(slot.words, (KEY, 7), &locked);
        }
        !is_there
    });
}

#[test]
#[should_panic(expected = "a pair was created twice")]
fn control_relaxed_unlock_is_caught() {
    create_against_create(|cache| {
        let locked = cache.index.lock(home(cache));
        let is_created = cache.index.enter_at_home(&locked, home(cache), (KEY, 7)).is_some();
        std::mem::forget(locked);
        // ORDERING: Relaxed. Wrong on purpose.
        cache.index.line(home(cache))[LOCK].store(0, Ordering::Relaxed);
        is_created
    });
}

fn create_against_neighbour(other: fn(&Mbcache, u32)) -> [usize; 2] {
    Tally::of_bounded(3, move |tally| {
        let shared = Shared::with(2);
        let cache = &shared.cache;
        let next = (home(cache) + 1) % LINES as u32;
        let theirs = key_of(cache, next);
        cache.create(theirs, 1).unwrap();
        let thread = spawn(&shared, move |shared| other(&shared.cache, next));
        cache.create(KEY, 3).unwrap();
        thread.join().unwrap();
        assert!(cache.get(KEY, 3) && cache.get(theirs, 2), "S.1: two entries were put in a slot");
        shared.check_counts(5);
        let (slot, _) = cache.index.look_up(next, (theirs, 2)).unwrap();
        tally.hit(usize::from(slot.number / SLOTS != next));
    })
}

/// Invariant S.1 of `slots.rs`: two threads with different home lines must not fill the same slot.
#[test]
fn slot_that_two_homes_want_is_filled_once() {
    assert_all_reached(&create_against_neighbour(|cache, home| {
        cache.create(key_of(cache, home), 2).unwrap();
    }));
}

/// Control test of invariant S.1 of `slots.rs`: one thread fills a slot without the lock of its
/// line.
#[test]
#[should_panic(expected = "S.1: two entries were put in a slot")]
fn control_slot_that_is_filled_without_the_lock_is_caught() {
    create_against_neighbour(|cache, home| {
        // The planted bug: the thread fills the slot under the lock of another line.
        let locked = cache.index.lock((home + 1) % LINES as u32);
        let mut both = (0..SLOTS).map(|nth| cache.index.slot(SLOTS * home + nth));
        let free = both.find(|slot| !slots::state(slot.words).is_live());
        let pair = (key_of(cache, home), 2);
        match free {
            Some(slot) => slots::fill(slot.words, pair, &locked),
            None => {
                drop(locked);
                cache.create(pair.0, pair.1).unwrap();
            }
        }
    });
}

fn search_against_change(change: fn(&Mbcache)) -> [usize; 2] {
    Tally::of_bounded(3, move |tally| {
        let shared = Shared::with(3);
        let other = spawn(&shared, move |shared| {
            assert!(shared.cache.get(KEY, 3), "G.1: an entry that stayed was missed");
            shared.cache.get(KEY, 4)
        });
        change(&shared.cache);
        tally.hit(usize::from(other.join().unwrap()));
    })
}

/// Guarantee G.1 of `lib.rs` and invariant I.1 of `index.rs`: an entry behind its full home line
/// must be found. This holds even if other entries of its key come and go.
#[test]
fn entry_behind_its_home_is_found_while_others_come_and_go() {
    assert_all_reached(&search_against_change(|cache| {
        assert!(cache.delete_or_get(KEY, 1).is_none());
        cache.create(KEY, 4).unwrap();
    }));
}

/// Control test of invariant I.1 of `index.rs`: the reach of a line is lowered although an entry is
/// still in its last line. So a search misses the entry.
#[test]
#[should_panic(expected = "G.1: an entry that stayed was missed")]
fn control_reach_that_is_lowered_too_soon_is_caught() {
    search_against_change(|cache| {
        let word = &cache.index.line(home(cache))[REACH];
        // ORDERING: Release, for both stores, which is strong enough. The planted bug is the stored
        // value: it tells searches to read too few lines.
        word.store(0, Ordering::Release);
        cache.create(KEY, 4).unwrap();
        // ORDERING: Release, which is strong enough. The planted bug is the stored value.
        word.store(1, Ordering::Release);
    });
}

type LookUp = fn(&Mbcache, u64) -> Option<(u32, State)>;

const LOOK_UP: LookUp = |cache, value| {
    let found = cache.index.look_up(home(cache), (KEY, value));
    found.map(|(slot, state)| (slot.number, state))
};

fn handle_of(cache: &Mbcache, value: u64) -> Entry<'_> {
    let mut entry = cache.find_first(KEY).expect("the pair was created");
    while entry.value() != value {
        entry = cache.find_next(&entry).expect("the pair was created");
    }
    entry
}

fn create_against_last_user(value: u64, look_up: LookUp, create: fn(&Mbcache)) -> [usize; 3] {
    Tally::of_bounded(3, move |tally| {
        let shared = Shared::with(value);
        let cache = &shared.cache;
        let held = handle_of(cache, value);
        (1..value - 1).for_each(|value| assert!(cache.delete_or_get(KEY, value).is_none()));
        let deleter = spawn(&shared, move |shared| {
            let index = &shared.cache.index;
            let end = |(number, state)| index.end(index.slot(number), state, Spare::Held).is_ok();
            let outcome = match look_up(&shared.cache, value).map(end) {
                None => 0,
                Some(true) => 1,
                Some(false) => return 2,
            };
            // ORDERING: Relaxed. The search or the removal of the entry must order the load after
            // the store of `is_used`.
            let is_used = shared.is_used.load(Ordering::Relaxed) == 1;
            assert!(is_used, "T34: a use was not seen by the deleter");
            outcome
        });
        // ORDERING: Relaxed. The handle must order this store before the deletion.
        shared.is_used.store(1, Ordering::Relaxed);
        drop(held);
        cache.scan(u64::MAX);
        create(cache);
        tally.hit(deleter.join().unwrap());
    })
}

/// The last user of a value may miss its entry because `create` has lowered the reach. It must see
/// the writes of all former users before it frees the value. Trap T34 in `traps.md`.
#[test]
fn entry_that_is_missed_behind_the_reach_is_over() {
    assert_all_reached(&create_against_last_user(3, LOOK_UP, |cache| {
        cache.create(KEY, 5).unwrap();
    }));
}

/// Control test: a Relaxed store lowers the reach, so the last user of a value may miss writes of
/// former users.
#[test]
#[should_panic(expected = "T34: a use was not seen by the deleter")]
fn control_reach_that_is_lowered_without_an_order_is_caught() {
    create_against_last_user(3, LOOK_UP, |cache| {
        // ORDERING: Relaxed. Wrong on purpose.
        cache.index.line(home(cache))[REACH].store(0, Ordering::Relaxed);
    });
}

/// The last user of a value may miss its entry because another entry has its slot. It must see the
/// writes of all former users before it frees the value. Trap T34 in `traps.md`.
#[test]
fn entry_that_is_missed_by_later_words_is_over() {
    assert_all_reached(&create_against_last_user(1, LOOK_UP, |cache| {
        cache.create(KEY, 3).unwrap();
    }));
}

#[test]
#[should_panic(expected = "T34: a use was not seen by the deleter")]
fn control_miss_by_later_words_without_a_fence_is_caught() {
    let look_up: LookUp = |cache, value| {
        cache.index.all().find_map(|slot| {
            let state = slots::state(slot.words);
            let is_it = slots::pair_of(slot.words) == (KEY, value) && state.is_live();
            is_it.then_some((slot.number, state))
        })
    };
    create_against_last_user(1, look_up, |cache| cache.create(KEY, 3).unwrap());
}

fn find_against_delete(value: u64, delete: fn(&Shared) -> bool) -> [usize; 3] {
    Tally::of_bounded(3, move |tally| {
        let shared = Shared::with(value);
        (1..value).for_each(|value| assert!(shared.cache.delete_or_get(KEY, value).is_none()));
        let finder = spawn(&shared, move |shared| {
            let Some(entry) = shared.cache.find_first(KEY) else { return false };
            assert_eq!(entry.value(), value);
            // ORDERING: Relaxed. The handle must order this load before the deletion.
            let is_freed = shared.is_freed.load(Ordering::Relaxed);
            assert_eq!(is_freed, 0, "T34: a value was found that is freed");
            // ORDERING: Relaxed. The handle must order the store before the deletion.
            shared.is_used.store(1, Ordering::Relaxed);
            true
        });
        let is_deleted = delete(&shared);
        // ORDERING: Relaxed. The step of the deletion must order this load.
        let is_used = shared.is_used.load(Ordering::Relaxed) == 1;
        if is_deleted {
            // ORDERING: Relaxed. The step of the deletion must order the store after all uses of
            // the value.
            shared.is_freed.store(1, Ordering::Relaxed);
        }
        let is_found = finder.join().unwrap();
        assert!(is_found || is_deleted, "G.1: an entry that stayed was missed");
        assert!(is_used || !is_found || !is_deleted, "T34: a use was not seen by the deleter");
        tally.hit(match (is_found, is_deleted) {
            (false, _) => 0,
            (true, true) => 1,
            (true, false) => 2,
        });
    })
}

/// A value must not be freed while it is in use. Trap T34 in `traps.md`.
#[test]
fn value_that_is_found_is_not_freed() {
    assert_all_reached(&find_against_delete(1, |shared| {
        shared.cache.delete_or_get(KEY, 1).is_none()
    }));
}

/// A value whose entry is behind its home line must not be freed while it is in use. Trap T34 in
/// `traps.md`.
#[test]
fn value_that_is_found_behind_its_home_is_not_freed() {
    assert_all_reached(&find_against_delete(3, |shared| {
        shared.cache.delete_or_get(KEY, 3).is_none()
    }));
}

/// Control test: a deletion first checks for handles, and removes the entry in a second step. In
/// between, another thread takes a handle.
#[test]
#[should_panic(expected = "T34: ")]
fn control_deletion_in_two_steps_is_caught() {
    find_against_delete(1, |shared| {
        let words = slot_of(&shared.cache, 1).words;
        if slots::state(words).count() > 0 {
            return false;
        }
        // ORDERING: AcqRel, which is strong enough. The planted bug is that the count was checked
        // in an earlier step.
        words[STATE].fetch_and(!LIVE, Ordering::AcqRel);
        true
    });
}

#[test]
#[should_panic(expected = "T34: a use was not seen by the deleter")]
fn control_relaxed_deletion_is_caught() {
    find_against_delete(1, |shared| {
        let word = &slot_of(&shared.cache, 1).words[STATE];
        // ORDERING: Relaxed, for success and failure. Wrong on purpose: this is the planted bug.
        let end = |state| (state & COUNT == 0).then_some(state & slots::GENERATION);
        word.fetch_update(Ordering::Relaxed, Ordering::Relaxed, end).is_ok()
    });
}

fn find_against_shrink(scan: fn(&Mbcache) -> u64) -> [usize; 2] {
    Tally::of_bounded(3, move |tally| {
        let shared = Shared::with(1);
        let finder = spawn(&shared, |shared| {
            let Some(entry) = shared.cache.find_first(KEY) else { return false };
            let is_busy = shared.cache.delete_or_get(KEY, entry.value()).is_some();
            assert!(is_busy, "T35: an entry in use was not in the index");
            true
        });
        let dropped = scan(&shared.cache);
        tally.hit(usize::from(finder.join().unwrap()));
        shared.check_counts(1 - dropped);
    })
}

/// Reclaim must not remove an entry with a handle, or a deletion would not wait for the handle.
/// Trap T35 in `traps.md`.
#[test]
fn entry_that_is_held_is_not_reclaimed() {
    assert_all_reached(&find_against_shrink(|cache| cache.scan(1)));
}

/// Control test: reclaim removes an entry that has a handle, as in an old Linux.
#[test]
#[should_panic(expected = "T35: an entry in use was not in the index")]
fn control_reclaim_of_a_held_entry_is_caught() {
    find_against_shrink(|cache| {
        // ORDERING: AcqRel, which is strong enough. The planted bug is that reclaim does not check
        // for handles.
        slot_of(cache, 1).words[STATE].fetch_and(!LIVE, Ordering::AcqRel);
        1
    });
}

fn create_delete_and_shrink(scan: fn(&Mbcache) -> u64) -> [usize; 2] {
    Tally::of_bounded(2, move |tally| {
        let shared = Shared::with(3);
        (1..3).for_each(|value| assert!(shared.cache.get(KEY, value)));
        let deleter = spawn(&shared, |shared| {
            let (slot, state) = shared.cache.index.look_up(home(&shared.cache), (KEY, 3))?;
            shared.cache.index.end(slot, state, Spare::Held).ok()
        });
        let shrinker = spawn(&shared, move |shared| scan(&shared.cache));
        shared.cache.create(KEY, 4).unwrap();
        let is_deleted = deleter.join().unwrap().is_some();
        let dropped = shrinker.join().unwrap();
        assert!(dropped + u64::from(is_deleted) >= 1, "there was no handle");
        shared.check_counts(4 - dropped - u64::from(is_deleted));
        tally.hit(usize::from(!is_deleted));
    })
}

/// If a deletion and reclaim reach one entry at the same time, only one of them may count it as
/// removed. Trap T35 in `traps.md`.
#[test]
fn create_delete_and_shrink_keep_the_counts() {
    assert_all_reached(&create_delete_and_shrink(|cache| cache.scan(6)));
}

#[test]
#[should_panic(expected = "T36: the index has another number of entries")]
fn control_reclaim_in_two_steps_is_caught() {
    create_delete_and_shrink(|cache| {
        let Some((slot, state)) = cache.index.look_up(home(cache), (KEY, 3)) else { return 0 };
        // ORDERING: AcqRel, which is strong enough. The planted bug is that the state was loaded in
        // an earlier step.
        slot.words[STATE].fetch_and(!LIVE, Ordering::AcqRel);
        assert!(state.is_live());
        cache.index.note_ended(slot.number);
        1
    });
}

fn flags(clear_reusable: fn(&Mbcache)) -> [usize; 1] {
    Tally::of_bounded(3, move |tally| {
        let shared = Shared::with(1);
        let other = spawn(&shared, move |shared| clear_reusable(&shared.cache));
        assert!(shared.cache.get(KEY, 1), "the pair stays");
        other.join().unwrap();
        let words = slot_of(&shared.cache, 1).words;
        assert!(slots::state(words).is_referenced(), "T33: the referenced bit was lost");
        // ORDERING: Relaxed. The thread has been joined.
        let state = words[STATE].load(Ordering::Relaxed);
        assert_eq!(state & REUSABLE, 0, "T33: the reusable flag was lost");
        tally.hit(0);
    })
}

/// If two flags of one word change at the same time, both changes must be kept. Trap T33 in
/// `traps.md`.
#[test]
fn flags_that_are_changed_at_once_are_both_kept() {
    assert_all_reached(&flags(|cache| {
        // The handle keeps the full entry in the cache.
        let entry = std::mem::ManuallyDrop::new(cache.find_first(KEY).unwrap());
        entry.note_users(u32::MAX);
    }));
}

#[test]
#[should_panic(expected = "T33: ")]
fn control_flag_that_is_changed_in_two_steps_is_caught() {
    flags(|cache| {
        let word = &slot_of(cache, 1).words[STATE];
        // ORDERING: Acquire, which is strong enough. The planted bug is the separate store below.
        let state = word.load(Ordering::Acquire);
        // ORDERING: Release, which is strong enough. The planted bug is that a load and a store
        // replace one atomic operation.
        word.store(state & !REUSABLE, Ordering::Release);
    });
}

fn read_against_reuse(replace: fn(&Mbcache)) -> [usize; 2] {
    Tally::of_bounded(3, move |tally| {
        let shared = Shared::with(2);
        assert!(shared.cache.get(KEY, 2));
        let reader = spawn(&shared, move |shared| {
            let cache = &shared.cache;
            assert!(!cache.get(KEY, 4), "a mix was read");
            let is_found = cache.get(KEY, 2);
            assert!(cache.get(KEY, 1), "G.1: an entry that stayed was missed");
            is_found
        });
        replace(&shared.cache);
        tally.hit(usize::from(!reader.join().unwrap()));
    })
}

/// A reader must not combine the key of one entry with the value of another, even if the slot is
/// reused meanwhile.
#[test]
fn entry_whose_slot_is_reused_is_read_whole() {
    assert_all_reached(&read_against_reuse(|cache| {
        assert!(cache.delete_or_get(KEY, 2).is_none());
        cache.create(key_of(cache, home(cache)), 4).unwrap();
    }));
}

#[test]
#[should_panic(expected = "a mix was read")]
fn control_refill_without_a_fence_is_caught() {
    read_against_reuse(|cache| {
        let words = slot_of(cache, 2).words;
        assert!(cache.delete_or_get(KEY, 2).is_none());
        // ORDERING: Relaxed. Wrong on purpose: no fence stands before the store.
        words[slots::KEY].store(key_of(cache, home(cache)), Ordering::Relaxed);
        // ORDERING: Relaxed. Wrong on purpose: no fence stands before the store.
        words[slots::VALUE].store(4, Ordering::Relaxed);
        // ORDERING: Release, which is strong enough. The planted bug is the missing fence before
        // the stores of key and value.
        words[STATE].store(2 * NEXT | REUSABLE | LIVE, Ordering::Release);
    });
}

#[test]
#[should_panic(expected = "a mix was read")]
fn control_slot_that_is_filled_without_a_generation_is_caught() {
    read_against_reuse(|cache| {
        let words = slot_of(cache, 2).words;
        // ORDERING: Release for both stores, which is strong enough. The planted bug is the missing
        // generation.
        words[slots::VALUE].store(4, Ordering::Release);
        words[slots::KEY].store(key_of(cache, home(cache)), Ordering::Release);
    });
}

fn put_against_room(put: fn(Entry<'_>)) -> [usize; 2] {
    Tally::of_bounded(3, move |tally| {
        let shared = Shared::with(1);
        let held = std::mem::ManuallyDrop::new(shared.cache.find_first(KEY).unwrap());
        held.note_users(u32::MAX);
        let state = held.state;
        let holder = spawn(&shared, move |shared| {
            let slot = slot_of(&shared.cache, 1);
            put(Entry { cache: &shared.cache, slot, state });
        });
        assert!(shared.cache.note_users(KEY, 1, 1), "there is room");
        holder.join().unwrap();
        assert!(shared.cache.find_first(KEY).is_some(), "T39: a value with room is not found");
        shared.check_counts(1);
        // ORDERING: Relaxed. The thread has been joined.
        let state = slot_of(&shared.cache, 1).words[STATE].load(Ordering::Relaxed);
        tally.hit(usize::from(state & slots::GENERATION == 2 * NEXT));
    })
}

/// A full value may lose a user while its last handle is dropped. The value is then not full any
/// more, and the cache must still contain its entry. Trap T39 in `traps.md`.
#[test]
fn entry_that_has_room_again_while_its_last_handle_is_put_is_found() {
    assert_all_reached(&put_against_room(|entry| drop(entry)));
}

/// Control test: the drop of the last handle removes the entry of a full value in a second step. If
/// the value loses a user in between, the entry is lost.
#[test]
#[should_panic(expected = "T39: a value with room is not found")]
fn control_full_entry_that_is_taken_out_in_two_steps_is_caught() {
    put_against_room(|entry| {
        let word = &entry.slot.words[STATE];
        // ORDERING: Acquire here and Release for the store below, which is strong enough. The
        // planted bug is that a load and a later store replace one atomic operation.
        let state = word.load(Ordering::Acquire);
        if state & REUSABLE != 0 {
            return drop(entry);
        }
        // ORDERING: Release, which is strong enough. The planted bug is that a load and a store
        // replace one atomic operation.
        word.store(state & slots::GENERATION, Ordering::Release);
        std::mem::forget(entry);
    });
}

fn iterate_against_reuse(
    next: for<'c> fn(&'c Mbcache, &Entry<'c>, usize) -> Option<Entry<'c>>,
) -> [usize; 2] {
    Tally::of_bounded(3, move |tally| {
        let shared = Shared::with(3);
        let reader = spawn(&shared, move |shared| {
            let mut met = Vec::new();
            let mut found = shared.cache.find_first(KEY);
            while let Some(entry) = found {
                assert!(!met.contains(&entry.value()), "T40: a value was met twice");
                met.push(entry.value());
                found = next(&shared.cache, &entry, met.len());
            }
            assert!(met.contains(&1) && met.contains(&3), "G.1: an entry that stayed was missed");
            met.len()
        });
        if shared.cache.delete_or_get(KEY, 2).is_none() {
            shared.cache.create(KEY, 2).unwrap();
        }
        tally.hit(reader.join().unwrap() - 2);
    })
}

/// A loop must not return a value twice if other threads delete entries. Trap T40 in `traps.md`.
#[test]
fn loop_over_values_that_come_and_go_meets_none_twice() {
    assert_all_reached(&iterate_against_reuse(|cache, entry, _| cache.find_next(entry)));
}

/// Control test: the loop counts the values that it has met, and searches from the start each time.
/// After a deletion, it may meet a value twice.
#[test]
#[should_panic(expected = "T40: a value was met twice")]
fn control_loop_that_counts_what_it_met_is_caught() {
    iterate_against_reuse(|cache, _, met| {
        let first = cache.find_first(KEY)?;
        (0..met).try_fold(first, |entry, _| cache.find_next(&entry))
    });
}

fn wait_against_finder(wait: fn(&Words, State)) -> [usize; 1] {
    Tally::of_bounded(3, move |tally| {
        let shared = Shared::with(1);
        let cache = &shared.cache;
        let first = cache.find_first(KEY).unwrap();
        let busy = cache.delete_or_get(KEY, 1).expect("there is a handle");
        let awaited = slots::await_unused(first.slot.words, busy.state).expect("as above");
        let number = busy.slot.number;
        let waiter =
            spawn(&shared, move |shared| wait(shared.cache.index.slot(number).words, awaited));
        assert!(cache.find_first(KEY).is_none(), "G.1: no handle while a thread waits");
        drop(first);
        let _second = cache.find_first(KEY).expect("no thread waits any more");
        waiter.join().unwrap();
        tally.hit(0);
    })
}

/// A thread waits until an entry has no handle. A handle that is taken later must not prolong the
/// wait (guarantee G.1 of `lib.rs`). Trap T34 in `traps.md`.
#[test]
fn wait_is_over_though_another_handle_is_taken() {
    assert_all_reached(&wait_against_finder(slots::sleep_while_awaited));
}

/// Control test of guarantee G.1 of `lib.rs`: a thread that waits for a count of 0 also waits for
/// later handles.
#[test]
#[should_panic(expected = "G.1: a handle that was taken later is waited for")]
fn control_wait_that_looks_for_handles_is_caught() {
    wait_against_finder(|words, awaited| {
        slots::sleep_while_awaited(words, awaited);
        let now = slots::state(words);
        let is_unused = !now.is_same_entry(awaited) || now.count() == 0;
        assert!(is_unused, "G.1: a handle that was taken later is waited for");
    });
}
