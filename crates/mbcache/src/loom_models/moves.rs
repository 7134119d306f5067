//! Models of an entry that moves to the front of its bucket: readers, changes of its flags, and the put of its
//! last handle, beside the move.
//!
//! (KEY, 3) stands in the second line, and (KEY, 1) has ended, or ends: so it moves to the first line, to the
//! slot that is its home.

use super::*;
use crate::index::{HEADER, LOCKED, MOVING, Torn, link_of};

/// A cache in which (KEY, 3) can move.
fn shared_before_move() -> Arc<Shared> {
    let shared = Shared::with(3);
    assert!(shared.cache.delete_or_get(KEY, 1).is_none());
    shared
}

/// Returns the slot to which (KEY, 3) moves.
fn home_of_3(cache: &Mbcache) -> &Words {
    cache.index.slot(SLOTS * bucket(cache) + 1)
}

/// Moves entries to the front; false if (KEY, 3) was held, so that there is no line to be had.
fn close_ranks(cache: &Mbcache) -> bool {
    let line = cache.reclaim_line();
    line.inspect(|&line| cache.room.give(&cache.index, 0, line)).is_some()
}

/// Moves (KEY, 3) in the lock of its bucket and with the sign that [`Mbcache::create`] gives, by `relocate`, which
/// is told from where and where to.
fn move_by(cache: &Mbcache, relocate: fn(&Words, &Words)) {
    let (from, to) = (words_of(cache, 3), home_of_3(cache));
    let mut locked = cache.index.lock(bucket(cache));
    locked.begin_moves();
    relocate(from, to);
}

/// Copies an entry whose state was `state` to `to`, with that state.
fn copy_as_it_was(from: &Words, to: &Words, state: u64) {
    let (key, value) = slots::pair_of(from);
    // ORDERING: Release, all. Strong enough; it is what is copied that is wrong.
    to[slots::KEY].store(key, Ordering::Release);
    to[slots::VALUE].store(value, Ordering::Release);
    to[STATE].store(state, Ordering::Release);
}

/// Outcomes of a look for (KEY, 3).
const WHERE_IT_WAS: usize = 0;
const WHERE_IT_WENT: usize = 1;
const BESIDE: usize = 2;

/// Returns where a look met (KEY, 3).
fn place(cache: &Mbcache, slot: u32) -> usize {
    if slot / SLOTS == bucket(cache) { WHERE_IT_WENT } else { WHERE_IT_WAS }
}

/// Looks for (KEY, 3) with `finds`, which says where it was or that something moved meanwhile, beside somebody who
/// moves it with `moves`, unless it is held. Returns how often it was found (where it was, where it went, beside
/// the move).
fn read_against_move(
    finds: fn(&Mbcache) -> Option<usize>,
    moves: fn(&Mbcache) -> bool,
) -> [usize; 3] {
    Tally::of_bounded(3, move |tally| {
        let shared = shared_before_move();
        let reader = spawn(&shared, move |shared| {
            finds(&shared.cache).expect("G.1: an entry that stayed was missed")
        });
        let is_moved = moves(&shared.cache);
        let outcome = reader.join().unwrap();
        shared.check_counts(3, 1);
        tally.hit(if is_moved { outcome } else { BESIDE });
    })
}

/// Looks for it; if something moved meanwhile, gets it.
fn get_3(cache: &Mbcache) -> Option<usize> {
    match cache.index.look_up(bucket(cache), (KEY, 3)) {
        Ok(found) => found.map(|found| place(cache, found.slot)),
        Err(Torn) => cache.get(KEY, 3).map(|_| BESIDE),
    }
}

fn find_3(cache: &Mbcache) -> Option<usize> {
    let held = cache.find_first(KEY).filter(|held| held.value() == 3)?;
    Some(place(cache, held.slot))
}

/// An entry is found while it moves.
#[test]
fn entry_that_moves_is_got() {
    assert_all_reached(&read_against_move(get_3, close_ranks));
}

/// The newest entry is found while it moves, and not an older one. What is held stays where it is.
#[test]
fn newest_entry_is_found_while_it_moves() {
    assert_all_reached(&read_against_move(find_3, close_ranks));
}

/// Readers are not told of the move.
fn move_without_a_sign(cache: &Mbcache) -> bool {
    let from = words_of(cache, 3);
    let _locked = cache.index.lock(bucket(cache));
    slots::relocate(from, home_of_3(cache))
}

#[test]
#[should_panic(expected = "G.1: an entry that stayed was missed")]
fn control_move_without_a_sign_is_caught() {
    read_against_move(get_3, move_without_a_sign);
}

#[test]
#[should_panic(expected = "G.1: an entry that stayed was missed")]
fn control_move_of_the_newest_without_a_sign_is_caught() {
    read_against_move(find_3, move_without_a_sign);
}

/// Marks (KEY, 3) as used beside somebody who moves it with `moves`. Returns how often that was done (where it
/// was, where it went).
fn touch_against_move(moves: fn(&Mbcache)) -> [usize; 2] {
    Tally::of_bounded(3, move |tally| {
        let shared = shared_before_move();
        let other = spawn(&shared, |shared| {
            let seen = shared.cache.get(KEY, 3).expect("G.1: an entry was missed");
            place(&shared.cache, seen.slot)
        });
        moves(&shared.cache);
        let outcome = other.join().unwrap();
        let found = shared.cache.index.look_up(bucket(&shared.cache), (KEY, 3)).unwrap();
        assert!(found.unwrap().state.is_referenced(), "T33: the flag was lost");
        tally.hit(outcome);
    })
}

/// A change of a flag beside a move is not lost (trap T33).
#[test]
fn flag_of_an_entry_that_moves_is_kept() {
    assert_all_reached(&touch_against_move(|cache| {
        close_ranks(cache);
    }));
}

/// Trap T33: the entry is copied, and then ended where it was.
#[test]
#[should_panic(expected = "T33: the flag was lost")]
fn control_move_in_two_steps_is_caught() {
    touch_against_move(|cache| {
        move_by(cache, |from, to| {
            // ORDERING: Acquire, and AcqRel below. Strong enough; it is the second step that is wrong.
            copy_as_it_was(from, to, from[STATE].load(Ordering::Acquire));
            // ORDERING: AcqRel. As above.
            from[STATE].fetch_and(slots::GENERATION, Ordering::AcqRel);
        });
    });
}

/// Says with `note` that (KEY, 3) is full beside somebody who moves it. Returns how often it (was gone after the
/// move, had moved before it was full).
fn note_against_move(note: fn(&Mbcache)) -> [usize; 2] {
    Tally::of_bounded(2, move |tally| {
        let shared = shared_before_move();
        let other = spawn(&shared, move |shared| note(&shared.cache));
        close_ranks(&shared.cache);
        let has_moved = slots::state(home_of_3(&shared.cache)).is_live();
        other.join().unwrap();
        assert!(shared.cache.get(KEY, 3).is_none(), "T39: a full entry is there");
        shared.check_counts(3, 2);
        tally.hit(usize::from(has_moved));
    })
}

/// Trap T39: what has become full beside a move is not found.
#[test]
fn entry_that_becomes_full_while_it_moves_is_gone() {
    assert_all_reached(&note_against_move(|cache| {
        assert!(!cache.note_users(KEY, 3, u32::MAX));
    }));
}

/// Trap T39: who says it takes an entry that has ended for one that is gone.
#[test]
#[should_panic(expected = "T39: a full entry is there")]
fn control_note_that_looks_once_is_caught() {
    note_against_move(|cache| {
        let bucket = bucket(cache);
        let found = cache.index.retry(bucket, || cache.index.look_up(bucket, (KEY, 3)));
        let found = found.expect("G.1: an entry was missed");
        slots::set_reusable(found.words, found.state, false);
    });
}

/// How far the put of the last handle had come when an entry was about to move.
#[derive(Clone, Copy)]
enum Before {
    Held,
    Idle,
    Ended,
}

/// Puts the last handle of (KEY, 3), which is full, beside somebody who moves that entry with `moves`. Returns
/// how often it was, before the move, (held, not held any more and full, gone).
fn put_full_against_move(moves: fn(&Mbcache)) -> [usize; 3] {
    Tally::of_bounded(3, move |tally| {
        let shared = shared_before_move();
        let cache = &shared.cache;
        let held = std::mem::ManuallyDrop::new(cache.find_first(KEY).unwrap());
        assert_eq!(held.value(), 3);
        held.note_users(u32::MAX);
        let slot = held.slot;
        let holder = spawn(&shared, move |shared| {
            shared.cache.put(shared.cache.index.slot(slot), slot);
        });
        let state = slots::state(cache.index.slot(slot));
        let before = match (state.is_live(), state.count()) {
            (true, 0) => Before::Idle,
            (true, _) => Before::Held,
            (false, _) => Before::Ended,
        };
        moves(cache);
        holder.join().unwrap();
        assert!(cache.get(KEY, 3).is_none(), "T39: a full entry is there that nobody holds");
        shared.check_counts(3, 2);
        tally.hit(before as usize);
    })
}

/// Trap T39: a full entry ends in a second step after its last handle was put: it does not move in between.
#[test]
fn full_entry_that_moves_while_its_last_handle_is_put_is_gone() {
    assert_all_reached(&put_full_against_move(|cache| {
        close_ranks(cache);
    }));
}

/// Trap T39: it moves in between, and nobody looks for it where it went.
#[test]
#[should_panic(expected = "T39: a full entry is there that nobody holds")]
fn control_full_entry_that_moves_is_caught() {
    put_full_against_move(|cache| {
        let from = cache.index.slot(SLOTS * link_of(cache.index.line(bucket(cache))));
        let mut locked = cache.index.lock(bucket(cache));
        locked.begin_moves();
        move_as_it_is(from, home_of_3(cache));
    });
}

/// Moves an entry that nobody holds with the state that it has; false if there is none.
fn move_as_it_is(from: &Words, to: &Words) -> bool {
    // ORDERING: Acquire, and AcqRel below. Strong enough; it is what is copied that is wrong.
    let state = from[STATE].load(Ordering::Acquire);
    // ORDERING: AcqRel. As above.
    let swap = |new| from[STATE].compare_exchange(state, new, Ordering::AcqRel, Ordering::Acquire);
    let seen = slots::state(from);
    let is_idle = seen.is_live() && seen.count() == 0;
    let is_moved = is_idle && swap(state & slots::GENERATION).is_ok();
    if is_moved {
        copy_as_it_was(from, to, state);
    }
    is_moved
}

/// Puts the last handle of (KEY, 3), which somebody waits for, beside somebody who moves that entry to the
/// first line with `moves`, which says whether it did. Returns how often it (stayed, moved).
fn put_against_move(moves: fn(&Mbcache) -> bool) -> [usize; 2] {
    Tally::of_bounded(3, move |tally| {
        let shared = Shared::with(3);
        let cache = &shared.cache;
        let held = std::mem::ManuallyDrop::new(cache.find_first(KEY).unwrap());
        let (slot, state) = (held.slot, held.state);
        assert!(slots::await_unused(held.words, state) && cache.delete_or_get(KEY, 1).is_none());
        let holder = spawn(&shared, move |shared| {
            shared.cache.put(shared.cache.index.slot(slot), slot);
        });
        let is_moved = moves(cache);
        holder.join().unwrap();
        let found =
            cache.find_first(KEY).expect("G.1: an entry that nobody waits for is not found");
        assert_eq!(found.value(), 3, "G.1: an entry that nobody waits for is not found");
        tally.hit(usize::from(is_moved));
    })
}

/// The flag "awaited" is cleared in a second step after the last handle was put: it does not move.
#[test]
fn entry_that_moves_while_its_last_handle_is_put_can_be_found() {
    assert_all_reached(&put_against_move(close_ranks));
}

/// The state moves as it is.
#[test]
#[should_panic(expected = "G.1: an entry that nobody waits for is not found")]
fn control_flag_that_moves_with_its_entry_is_caught() {
    put_against_move(|cache| {
        let (from, to) = (words_of(cache, 3), home_of_3(cache));
        let mut locked = cache.index.lock(bucket(cache));
        locked.begin_moves();
        move_as_it_is(from, to)
    });
}

/// Looks for (KEY, 3) with `finds` beside somebody who takes the line in which it is for another bucket, and its
/// slot for another entry. Returns how often it was found (where it was, where it went, beside the move).
fn read_against_elsewhere(finds: fn(&Mbcache) -> Option<usize>) -> [usize; 3] {
    Tally::of_bounded(2, move |tally| {
        let shared = shared_before_move();
        let reader = spawn(&shared, move |shared| {
            finds(&shared.cache).expect("G.1: an entry that stayed was missed")
        });
        let cache = &shared.cache;
        let elsewhere = (KEY..).find(|&key| cache.bucket(key) != bucket(cache)).unwrap();
        (1..=2).for_each(|value| cache.create(elsewhere, value).unwrap());
        cache.create(elsewhere, 3).unwrap();
        assert_eq!(cache.stats().reclaimed, 0, "G.4: there was room");
        tally.hit(reader.join().unwrap());
    })
}

/// A line that another bucket got meanwhile leads nobody astray.
#[test]
fn entry_behind_a_line_that_goes_elsewhere_is_found() {
    assert_all_reached(&read_against_elsewhere(get_3));
}

/// The reader may see the words of the entry that came into the slot, and not that the bucket lost its line.
#[test]
#[should_panic(expected = "G.1: an entry that stayed was missed")]
fn control_walk_without_a_fence_is_caught() {
    fn walk(cache: &Mbcache) -> Result<Option<u32>, Torn> {
        let first = cache.index.line(bucket(cache));
        // ORDERING: Acquire. As in the walk; it is the fence at the end that is missing.
        let before = first[HEADER].load(Ordering::Acquire);
        let (mut number, mut line) = (bucket(cache), first);
        loop {
            for nth in 0..SLOTS {
                let state = slots::state(words(line, nth));
                if slots::difference(words(line, nth), state, (KEY, 3)) == 0 {
                    return Ok(Some(SLOTS * number + nth));
                }
            }
            let link = link_of(line);
            // ORDERING: Relaxed. Wrong on purpose: nothing orders it after the words.
            let after = first[HEADER].load(Ordering::Relaxed);
            if (before ^ after) & !LOCKED != 0 || before & MOVING != 0 {
                return Err(Torn);
            }
            if link == 0 {
                return Ok(None);
            }
            (number, line) = (link, cache.index.line(link));
        }
    }
    read_against_elsewhere(|cache| {
        let slot = cache.index.retry(bucket(cache), || walk(cache))?;
        Some(place(cache, slot))
    });
}
