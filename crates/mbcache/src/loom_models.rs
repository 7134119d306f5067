//! Models: create, find, delete and reclaim beside each other, in one bucket.
//!
//! The thread whose first step is a load is the spawned one: see `tally` in the sync crate. A model has
//! two buckets, and one line to link behind either, so slots and that line are used again at once.

use corewalk_base::primitives::atomic::{AtomicU64, Ordering};
use corewalk_base::primitives::{Arc, thread, unmodelled};
use corewalk_base::tally::{Tally, assert_all_reached};
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Wake, Waker};

use crate::cache::{Mbcache, MbcacheOptions};
use crate::counts::Event;
use crate::handle::{Busy, Entry, Unused};
use crate::index::{HEADER, SLOTS, Seat, words};
use crate::slots::{self, AGE, COUNT, REUSABLE, STATE, Spare, State, Words};

mod moves;

const KEY: u64 = 1;

/// A cache, and words that say that the value was used, and freed.
struct Shared {
    cache: Mbcache,
    is_used: AtomicU64,
    is_freed: AtomicU64,
}

impl Shared {
    fn new() -> Arc<Shared> {
        let options = MbcacheOptions { entries_max: 2, hash_seed: Some(1), ..Default::default() };
        let cache = Mbcache::new(options).unwrap();
        Arc::new(Shared { cache, is_used: AtomicU64::new(0), is_freed: AtomicU64::new(0) })
    }

    /// A cache with the pairs (KEY, 1) to (KEY, values).
    fn with(values: u64) -> Arc<Shared> {
        let shared = Self::new();
        (1..=values).for_each(|value| shared.cache.create(KEY, value).unwrap());
        shared
    }

    /// The counts are right, of `created` entries of which `ended` have ended; and the index has the others.
    fn check_counts(&self, created: u64, ended: u64) {
        let bucket = bucket(&self.cache);
        let mut entries = 0;
        let walk = self.cache.index.walk_lines(bucket, |line, _| {
            let all = (0..SLOTS).map(|nth| slots::state(words(line, nth)));
            entries += all.filter(|state| state.is_live()).count() as u64;
            None::<()>
        });
        assert!(matches!(walk, Ok(None)), "a bucket at rest is whole");
        let stats = self.cache.stats();
        assert_eq!(stats.entries, entries, "T36: the count is not that of the index");
        assert_eq!(stats.created, created, "T36: not so many were created");
        assert_eq!(entries + ended, created, "T36: an entry has ended twice, or not at all");
        assert_eq!(stats.deleted + stats.reclaimed, ended, "T36: the counts differ");
    }
}

/// Returns the bucket of KEY.
fn bucket(cache: &Mbcache) -> u32 {
    cache.bucket(KEY)
}

/// Returns the words of an entry that is there.
fn words_of(cache: &Mbcache, value: u64) -> &Words {
    let found = cache.index.look_up(bucket(cache), (KEY, value));
    found.unwrap().expect("nobody takes it out yet").words
}

/// Returns another key of that bucket.
fn other_key(cache: &Mbcache) -> u64 {
    let is_there = |key: &u64| cache.bucket(*key) == bucket(cache);
    (KEY + 1..).find(is_there).expect("there are two buckets")
}

fn spawn<R: Send + 'static>(
    shared: &Arc<Shared>,
    run: impl FnOnce(&Shared) -> R + Send + 'static,
) -> thread::JoinHandle<R> {
    let shared = Arc::clone(shared);
    thread::spawn(move || run(&shared))
}

/// Creates an entry with `create` beside somebody who looks for it and then deletes it; returns how
/// often it was (found, not there, found to be there by delete after the look had missed).
fn create_against_delete(create: fn(&Shared)) -> [usize; 3] {
    Tally::of_bounded(3, move |tally| {
        let shared = Shared::new();
        let other = spawn(&shared, move |shared| {
            let is_found = shared.cache.get(KEY, 7).is_some();
            assert!(shared.cache.delete_or_get(KEY, 7).is_none(), "nobody holds it");
            is_found
        });
        create(&shared);
        let is_found = other.join().unwrap();
        let is_left = shared.cache.get(KEY, 7).is_some();
        shared.check_counts(1, u64::from(!is_left));
        assert!(!(is_found && is_left), "T36: an entry that was found could not be deleted");
        tally.hit(if is_found { 0 } else { 1 + usize::from(!is_left) });
    })
}

/// Trap T36: an entry that can be found can be deleted, and is counted.
#[test]
fn entry_that_is_visible_is_counted() {
    assert_all_reached(&create_against_delete(|shared| {
        shared.cache.create(KEY, 7).unwrap();
    }));
}

/// Trap T36: the entry is visible first, and completed in a second step, on what it was before.
#[test]
#[should_panic(expected = "T36")]
fn control_entry_that_is_completed_later_is_caught() {
    create_against_delete(|shared| {
        let cache = &shared.cache;
        let mut locked = cache.index.lock(bucket(cache));
        let Seat::Free(words) = locked.seat((KEY, 7)) else { panic!("the bucket is empty") };
        locked.fill(words, (KEY, 7));
        // ORDERING: Acquire. Strong enough; it is the second step that is wrong.
        let state = words[STATE].load(Ordering::Acquire);
        // ORDERING: Release. As above.
        words[STATE].store(state, Ordering::Release);
    });
}

/// Two threads create one pair with `create`; returns how often the spawned one (did, did not).
fn create_against_create(create: fn(&Mbcache) -> bool) -> [usize; 2] {
    Tally::of_bounded(3, move |tally| {
        let shared = Shared::new();
        let other = spawn(&shared, move |shared| create(&shared.cache));
        let is_mine = create(&shared.cache);
        let is_theirs = other.join().unwrap();
        assert!(is_mine != is_theirs, "a pair was created twice");
        shared.check_counts(1, 0);
        tally.hit(usize::from(is_mine));
    })
}

/// A pair is there once: the lock of its bucket keeps creators apart.
#[test]
fn pair_that_two_create_is_there_once() {
    assert_all_reached(&create_against_create(|cache| cache.create(KEY, 7).is_ok()));
}

/// The look and the creation are two sections of the lock.
#[test]
#[should_panic(expected = "a pair was created twice")]
fn control_look_before_the_lock_is_caught() {
    create_against_create(|cache| {
        let is_there = matches!(cache.index.lock(bucket(cache)).seat((KEY, 7)), Seat::Taken);
        let mut locked = cache.index.lock(bucket(cache));
        if let (false, Seat::Free(words)) = (is_there, locked.seat((KEY, 8))) {
            locked.fill(words, (KEY, 7));
        }
        !is_there
    });
}

/// The bucket is unlocked without an order.
#[test]
#[should_panic(expected = "a pair was created twice")]
fn control_relaxed_unlock_is_caught() {
    create_against_create(|cache| {
        let mut locked = cache.index.lock(bucket(cache));
        let Seat::Free(words) = locked.seat((KEY, 7)) else { return false };
        let header = &cache.index.line(bucket(cache))[HEADER];
        locked.fill(words, (KEY, 7));
        std::mem::forget(locked);
        // ORDERING: Relaxed, both. Wrong on purpose.
        let before = header.load(Ordering::Relaxed);
        // ORDERING: Relaxed. As above.
        header.store((before & slots::GENERATION).wrapping_add(AGE), Ordering::Relaxed);
        true
    });
}

/// Deletes with `delete` beside a finder; returns how often it was (missed and deleted, found and
/// deleted afterwards, found and busy).
fn find_against_delete(delete: fn(&Shared) -> bool) -> [usize; 3] {
    Tally::of_bounded(3, move |tally| {
        let shared = Shared::with(1);
        let finder = spawn(&shared, |shared| {
            let Some(entry) = shared.cache.find_first(KEY) else { return false };
            assert_eq!(entry.value(), 1);
            // ORDERING: Relaxed. The handle has to order it.
            let is_freed = shared.is_freed.load(Ordering::Relaxed);
            assert_eq!(is_freed, 0, "T34: a value was found that is freed");
            // ORDERING: Relaxed. As above.
            shared.is_used.store(1, Ordering::Relaxed);
            true
        });
        let is_deleted = delete(&shared);
        // ORDERING: Relaxed. The deletion has to order it.
        let is_used = shared.is_used.load(Ordering::Relaxed) == 1;
        if is_deleted {
            // ORDERING: Relaxed. As above.
            shared.is_freed.store(1, Ordering::Relaxed);
        }
        let is_found = finder.join().unwrap();
        assert!(is_found || is_deleted, "G.1: an entry that stayed was missed");
        assert!(is_used || !is_found || !is_deleted, "T34: a use was not seen by who deletes");
        tally.hit(match (is_found, is_deleted) {
            (false, _) => 0,
            (true, true) => 1,
            (true, false) => 2,
        });
    })
}

/// Trap T34: a value whose deletion succeeds is not in anybody's hands, and what was done with it is over.
#[test]
fn value_that_is_found_is_not_freed() {
    assert_all_reached(&find_against_delete(|shared| shared.cache.delete_or_get(KEY, 1).is_none()));
}

/// Trap T34: the handles are counted first, and the entry is taken out in a second step.
#[test]
#[should_panic(expected = "T34: ")]
fn control_deletion_in_two_steps_is_caught() {
    find_against_delete(|shared| {
        let words = words_of(&shared.cache, 1);
        if slots::state(words).count() > 0 {
            return false;
        }
        // ORDERING: AcqRel. Strong enough; it is the second step that is wrong.
        words[STATE].fetch_and(!1, Ordering::AcqRel);
        true
    });
}

/// Trap T34: the entry is taken out in one step, which orders nothing.
#[test]
#[should_panic(expected = "T34: a use was not seen by who deletes")]
fn control_relaxed_deletion_is_caught() {
    find_against_delete(|shared| {
        let word = &words_of(&shared.cache, 1)[STATE];
        // ORDERING: Relaxed, all. Wrong on purpose.
        let end = |state| (state & COUNT == 0).then_some(state & slots::GENERATION);
        word.fetch_update(Ordering::Relaxed, Ordering::Relaxed, end).is_ok()
    });
}

/// Reclaims with `scan` beside a finder that holds what it finds while it deletes it; returns how often
/// it (missed, found).
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
        shared.check_counts(1, dropped);
    })
}

/// Trap T35: what is held stays in the index.
#[test]
fn entry_that_is_held_is_not_reclaimed() {
    assert_all_reached(&find_against_shrink(|cache| cache.scan(1)));
}

/// Trap T35: reclaim takes the entry out and leaves it to the holder to free it, as Linux did.
#[test]
#[should_panic(expected = "T35: an entry in use was not in the index")]
fn control_reclaim_of_a_held_entry_is_caught() {
    find_against_shrink(|cache| {
        // ORDERING: AcqRel. Strong enough; it is the handle that is not asked about.
        words_of(cache, 1)[STATE].fetch_and(!1, Ordering::AcqRel);
        cache.counts.add(Event::Reclaimed);
        1
    });
}

/// Takes a pair out that nobody holds, as `delete_or_get` does; true if nobody else has.
fn take_out(cache: &Mbcache, value: u64) -> bool {
    let found = cache.index.look_up(bucket(cache), (KEY, value));
    found.is_ok_and(|found| found.is_some_and(|it| slots::end(it.words, it.state, Spare::Held)))
}

/// Three at once: a creator, a deleter, and reclaim with `scan`. Returns how often the entry that the deleter
/// looks for was taken out (by the deleter, by reclaim), and how often the created one was dropped.
fn create_delete_and_shrink(scan: fn(&Mbcache) -> u64) -> [usize; 3] {
    Tally::of_bounded(2, move |tally| {
        let shared = Shared::with(1);
        let deleter = spawn(&shared, |shared| take_out(&shared.cache, 1));
        let shrinker = spawn(&shared, move |shared| scan(&shared.cache));
        shared.cache.create(KEY, 2).unwrap();
        let is_deleted = deleter.join().unwrap();
        let dropped = shrinker.join().unwrap();
        shared.check_counts(2, dropped + u64::from(is_deleted));
        assert!(shared.cache.get(KEY, 1).is_none(), "nobody held it");
        if shared.cache.get(KEY, 2).is_none() {
            tally.hit(2);
        }
        tally.hit(usize::from(!is_deleted));
    })
}

/// Trap T35: what a deleter and reclaim meet at goes once, and is counted once.
#[test]
fn create_delete_and_shrink_keep_the_counts() {
    assert_all_reached(&create_delete_and_shrink(|cache| cache.scan(2)));
}

/// Trap T35: reclaim looks first, and takes the entry out in a second step.
#[test]
#[should_panic(expected = "T36: an entry has ended twice")]
fn control_reclaim_in_two_steps_is_caught() {
    create_delete_and_shrink(|cache| {
        let words = cache.index.slot(SLOTS * bucket(cache) + 1);
        if !slots::state(words).is_live() {
            return 0;
        }
        // ORDERING: AcqRel. Strong enough; it is the second step that is wrong.
        words[STATE].fetch_and(!1, Ordering::AcqRel);
        cache.counts.add(Event::Reclaimed);
        1
    });
}

/// Two flags are changed at once, one of them with `clear_reusable`.
fn flags(clear_reusable: fn(&Mbcache)) -> [usize; 1] {
    Tally::of_bounded(3, move |tally| {
        let shared = Shared::with(1);
        let other = spawn(&shared, move |shared| clear_reusable(&shared.cache));
        let seen = shared.cache.get(KEY, 1).expect("nobody takes it out");
        other.join().unwrap();
        let state = slots::state(shared.cache.index.slot(seen.slot));
        assert!(state.is_referenced(), "T33: the referenced bit was lost");
        assert!(!state.is_reusable(), "T33: the reusable flag was lost");
        tally.hit(0);
    })
}

/// Trap T33: no flag is lost.
#[test]
fn flags_that_are_changed_at_once_are_both_kept() {
    assert_all_reached(&flags(|cache| {
        // It is held, or it would end.
        let entry = std::mem::ManuallyDrop::new(cache.find_first(KEY).unwrap());
        entry.note_users(u32::MAX);
    }));
}

/// Trap T33: a flag is changed in two steps, as one of a bit field is.
#[test]
#[should_panic(expected = "T33: ")]
fn control_flag_that_is_changed_in_two_steps_is_caught() {
    flags(|cache| {
        let word = &words_of(cache, 1)[STATE];
        // ORDERING: Acquire. Strong enough; it is the second step that is wrong.
        let state = word.load(Ordering::Acquire);
        // ORDERING: Release. As above.
        word.store(state & !REUSABLE, Ordering::Release);
    });
}

/// A reader that is asked for (KEY, value), beside somebody who replaces (KEY, 2), which was used, by (another
/// key, value) with `replace`. Returns how often the reader (found the old one, did not).
fn read_against_reuse(value: u64, replace: fn(&Mbcache, u64)) -> [usize; 2] {
    Tally::of_bounded(3, move |tally| {
        let shared = Shared::with(2);
        assert!(shared.cache.get(KEY, 2).is_some());
        let reader = spawn(&shared, move |shared| {
            let cache = &shared.cache;
            assert!(cache.get(KEY, value).is_none(), "a mix was read");
            let is_found = cache.get(KEY, 2).is_some();
            assert!(cache.get(KEY, 1).is_some(), "G.1: an entry that stayed was missed");
            is_found
        });
        replace(&shared.cache, value);
        tally.hit(usize::from(!reader.join().unwrap()));
    })
}

/// As (KEY, 2), a pair with this value is looked for in one slot first.
const AT_HOME: u64 = 4;
/// The home of a pair with this value is that of (KEY, 1).
const NOT_AT_HOME: u64 = 3;

fn replace(cache: &Mbcache, value: u64) {
    assert!(cache.delete_or_get(KEY, 2).is_none());
    cache.create(other_key(cache), value).unwrap();
}

/// Writes the words while the slot looks as it did before.
fn overwrite(cache: &Mbcache, value: u64) {
    let words = words_of(cache, 2);
    // ORDERING: Release. Strong enough; it is the generation that is missing.
    words[slots::KEY].store(other_key(cache), Ordering::Release);
    words[slots::VALUE].store(value, Ordering::Release);
}

/// A slot that is used again is read whole.
#[test]
fn entry_whose_slot_is_reused_is_read_whole() {
    assert_all_reached(&read_against_reuse(NOT_AT_HOME, replace));
}

/// The same by who looks into that slot only.
#[test]
fn entry_whose_slot_is_reused_is_read_whole_at_home() {
    assert_all_reached(&read_against_reuse(AT_HOME, replace));
}

/// The words are written after the end of the entry, and not for all to see: a fence is missing.
#[test]
#[should_panic(expected = "a mix was read")]
fn control_refill_without_a_fence_is_caught() {
    read_against_reuse(NOT_AT_HOME, |cache, value| {
        let words = words_of(cache, 2);
        assert!(cache.delete_or_get(KEY, 2).is_none());
        let stamp = AGE * 3;
        // ORDERING: Relaxed, both. Wrong on purpose.
        words[slots::KEY].store(other_key(cache), Ordering::Relaxed);
        // ORDERING: Relaxed. As above.
        words[slots::VALUE].store(value, Ordering::Relaxed);
        // ORDERING: Release. Strong enough; it is what comes before it that is seen too early.
        words[STATE].store(stamp | REUSABLE | 1, Ordering::Release);
    });
}

#[test]
#[should_panic(expected = "a mix was read")]
fn control_slot_that_is_filled_without_a_generation_is_caught() {
    read_against_reuse(NOT_AT_HOME, overwrite);
}

#[test]
#[should_panic(expected = "a mix was read")]
fn control_home_that_is_filled_without_a_generation_is_caught() {
    read_against_reuse(AT_HOME, overwrite);
}

/// Puts the last handle of (KEY, 1), which is full, with `put` beside somebody who says that it has room
/// again. Returns how often it (stayed, was entered again).
fn put_against_room(put: fn(&Mbcache, u32)) -> [usize; 2] {
    Tally::of_bounded(3, move |tally| {
        let shared = Shared::with(1);
        let held = std::mem::ManuallyDrop::new(shared.cache.find_first(KEY).unwrap());
        held.note_users(u32::MAX);
        let slot = held.slot;
        let holder = spawn(&shared, move |shared| put(&shared.cache, slot));
        assert!(shared.cache.note_users(KEY, 1, 1), "there is room");
        holder.join().unwrap();
        assert!(shared.cache.find_first(KEY).is_some(), "T39: a value with room is not found");
        let created = shared.cache.stats().created;
        shared.check_counts(created, created - 1);
        tally.hit(usize::from(created == 2));
    })
}

/// Trap T39: who lets go of a full entry does not take out what has room by then.
#[test]
fn entry_that_has_room_again_while_its_last_handle_is_put_is_found() {
    assert_all_reached(&put_against_room(|cache, slot| cache.put(cache.index.slot(slot), slot)));
}

/// Trap T39: the last handle is put, and then the entry taken out as it was.
#[test]
#[should_panic(expected = "T39: a value with room is not found")]
fn control_full_entry_that_is_taken_out_in_two_steps_is_caught() {
    put_against_room(|cache, slot| {
        let words = cache.index.slot(slot);
        // ORDERING: AcqRel, and Release below. Strong enough; it is the second step that is wrong.
        let state = words[STATE].load(Ordering::Acquire);
        if slots::state(words).is_reusable() {
            return cache.put(words, slot);
        }
        // ORDERING: Release. As above.
        words[STATE].store(state & slots::GENERATION, Ordering::Release);
    });
}

/// Goes over three values with `next`, which goes on from an entry, beside somebody who deletes the
/// middle one and enters it again. Returns how often (two, three) were met.
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

/// Trap T40: a loop over the values of a key meets none twice.
#[test]
fn loop_over_values_that_come_and_go_meets_none_twice() {
    assert_all_reached(&iterate_against_reuse(|cache, entry, _| cache.find_next(entry)));
}

/// Trap T40: the loop begins anew at the newest, and skips as many as it has met.
#[test]
#[should_panic(expected = "T40: a value was met twice")]
fn control_loop_that_counts_what_it_met_is_caught() {
    iterate_against_reuse(|cache, _, met| {
        let newest = cache.find_first(KEY)?;
        (0..met).try_fold(newest, |entry, _| cache.find_next(&entry))
    });
}

/// Leaves a waker with `wait` while a handle is put; returns how often the wait was over at once, and
/// how often it was woken.
fn put_against_wait(wait: fn(&mut Unused<'_>, &mut Context<'_>) -> Poll<()>) -> [usize; 2] {
    /// A waker that remembers.
    struct Flag(unmodelled::AtomicBool);
    impl Wake for Flag {
        fn wake(self: std::sync::Arc<Self>) {
            // ORDERING: Relaxed. Read after the thread was joined.
            self.0.store(true, unmodelled::Ordering::Relaxed);
        }
    }
    Tally::of_bounded(3, move |tally| {
        let shared = Shared::with(1);
        let slot = {
            let held = shared.cache.find_first(KEY).unwrap();
            std::mem::ManuallyDrop::new(held).slot
        };
        let holder =
            spawn(&shared, move |shared| shared.cache.put(shared.cache.index.slot(slot), slot));
        let busy = shared.cache.delete_or_get(KEY, 1);
        let flag = std::sync::Arc::new(Flag(unmodelled::AtomicBool::new(false)));
        let waker = Waker::from(std::sync::Arc::clone(&flag));
        let mut unused = busy.map(Busy::unused);
        let is_ready = unused
            .as_mut()
            .is_none_or(|unused| wait(unused, &mut Context::from_waker(&waker)).is_ready());
        holder.join().unwrap();
        // ORDERING: Relaxed. The thread has been joined.
        let is_woken = flag.0.load(unmodelled::Ordering::Relaxed);
        assert!(is_ready || is_woken, "a task sleeps for ever");
        tally.hit(usize::from(!is_ready));
    })
}

/// Trap T34: who waits for the last handle is woken.
#[test]
fn task_that_waits_for_a_handle_is_woken() {
    assert_all_reached(&put_against_wait(|unused, task| Pin::new(unused).poll(task)));
}

/// Trap T34: a task that is polled again, without need, is woken all the same.
#[test]
fn task_that_is_polled_twice_is_woken() {
    assert_all_reached(&put_against_wait(|unused, task| {
        let first = Pin::new(&mut *unused).poll(task);
        if first.is_ready() { first } else { Pin::new(unused).poll(task) }
    }));
}

/// The second poll takes the waker back and leaves it again, and relies on the flag of the first.
#[test]
#[should_panic(expected = "a task sleeps for ever")]
fn control_waker_that_is_taken_back_and_left_again_is_caught() {
    put_against_wait(|unused, task| {
        let first = Pin::new(&mut *unused).poll(task);
        if let Some(ticket) = unused.ticket.take() {
            unused.cache.sleepers.remove(ticket);
            unused.ticket = Some(unused.cache.sleepers.add(unused.slot, task.waker().clone()));
        }
        first
    });
}

/// Goes on with a wait by `wait` while the last handle is put, and another one taken that outlives the wait.
/// Returns how often it was over.
fn wait_against_finder(wait: fn(&Words, State)) -> [usize; 1] {
    Tally::of_bounded(3, move |tally| {
        let shared = Shared::with(1);
        let cache = &shared.cache;
        let first = cache.find_first(KEY).unwrap();
        let busy = cache.delete_or_get(KEY, 1).expect("it is held");
        let (slot, state) = (busy.slot, busy.state);
        assert!(slots::await_unused(first.words, state));
        let waiter = spawn(&shared, move |shared| wait(shared.cache.index.slot(slot), state));
        drop(first);
        let _second = cache.find_first(KEY).expect("nobody waits any more");
        waiter.join().unwrap();
        tally.hit(0);
    })
}

/// G.1: who finds an entry while a wait for it comes to its end does not prolong it.
#[test]
fn wait_is_over_though_another_handle_is_taken() {
    assert_all_reached(&wait_against_finder(slots::sleep_while_awaited));
}

/// Who is woken asks whether there are handles, and waits for those.
#[test]
#[should_panic(expected = "G.1: a handle that was taken later is waited for")]
fn control_wait_that_looks_for_handles_is_caught() {
    wait_against_finder(|words, state| {
        slots::sleep_while_awaited(words, state);
        let is_unused =
            !slots::state(words).is_same_entry(state) || slots::state(words).count() == 0;
        assert!(is_unused, "G.1: a handle that was taken later is waited for");
    });
}

/// The flag is set first, and the waker left afterwards.
#[test]
#[should_panic(expected = "a task sleeps for ever")]
fn control_waker_that_is_left_after_the_flag_is_caught() {
    put_against_wait(|unused, task| {
        if !slots::await_unused(unused.cache.index.slot(unused.slot), unused.state) {
            return Poll::Ready(());
        }
        unused.ticket = Some(unused.cache.sleepers.add(unused.slot, task.waker().clone()));
        Poll::Pending
    });
}
