//! Unit tests of `SlotArena`, without a model checker. No slot may be handed out twice at a time.
//! The words of a slot must stay as they are when it is freed and handed out again. The memory must
//! be bounded.

use super::*;
use corewalk_base::primitives::{Arc, thread};
use std::collections::HashSet;

#[test]
fn alloc_until_full_hands_out_every_slot_but_zero_once() {
    let arena: SlotArena<2> = SlotArena::new("full", 300).unwrap();
    let slots: HashSet<u32> = std::iter::from_fn(|| arena.alloc()).collect();
    assert_eq!(slots.len(), 299);
    assert!(slots.iter().all(|slot| (1..300).contains(slot)));
    assert_eq!(arena.in_use(), 299);
    assert_eq!(arena.alloc(), None);
    arena.free(17);
    assert_eq!(arena.in_use(), 298);
    assert_eq!(arena.alloc(), Some(17));
}

/// A free list must not store its links in the slots. `free` and `alloc` must change no word of a
/// slot. Trap T7 in `traps.md`.
#[test]
fn free_and_alloc_leave_every_word_of_the_slot() {
    let arena: SlotArena<8> = SlotArena::new("words", if cfg!(miri) { 150 } else { 400 }).unwrap();
    let slots: Vec<u32> = std::iter::from_fn(|| arena.alloc()).collect();
    let check = |what: &str| {
        for &slot in &slots {
            for (at, word) in arena.get(slot).iter().enumerate() {
                // ORDERING: Relaxed. One thread.
                let seen = word.load(Ordering::Relaxed);
                assert_eq!(seen, u64::from(slot) << 8 | at as u64, "{what}");
            }
        }
    };
    for &slot in &slots {
        for (at, word) in arena.get(slot).iter().enumerate() {
            // ORDERING: Relaxed. One thread.
            assert_eq!(word.load(Ordering::Relaxed), 0, "fresh slots are zero");
            // ORDERING: Relaxed. One thread.
            word.store(u64::from(slot) << 8 | at as u64, Ordering::Relaxed);
        }
    }
    slots.iter().for_each(|&slot| arena.free(slot));
    check("after free");
    assert_eq!(std::iter::from_fn(|| arena.alloc()).count(), slots.len());
    check("after alloc");
}

#[test]
fn slots_of_eight_words_are_cache_lines() {
    let arena: SlotArena<8> = SlotArena::new("lines", 4).unwrap();
    let at = |index| std::ptr::from_ref(arena.get(index)).addr();
    if !cfg!(miri) {
        assert!(at(0).is_multiple_of(64));
    }
    assert_eq!(at(3) - at(0), 3 * 64);
}

#[test]
#[should_panic(expected = "out of range")]
fn get_at_max_slots_panics() {
    let arena: SlotArena<1> = SlotArena::new("range", 4).unwrap();
    assert_eq!(arena.get(3).len(), 1);
    let _ = arena.get(4);
}

#[test]
#[should_panic(expected = "never handed out")]
fn free_of_slot_zero_panics() {
    let arena: SlotArena<1> = SlotArena::new("zero", 4).unwrap();
    arena.free(0);
}

#[test]
#[should_panic(expected = "never handed out")]
fn free_of_a_slot_never_handed_out_panics() {
    let arena: SlotArena<1> = SlotArena::new("fresh", 400).unwrap();
    arena.free(1);
}

#[test]
fn new_without_slots_or_words_is_invalid() {
    let refused = |result: io::Result<()>| {
        assert_eq!(result.unwrap_err().kind(), io::ErrorKind::InvalidInput);
    };
    refused(SlotArena::<8>::new("none", 0).map(drop));
    refused(SlotArena::<0>::new("empty", 8).map(drop));
}

#[test]
fn new_with_every_index_reserves_and_does_not_commit() {
    if cfg!(miri) {
        return;
    }
    let arena: SlotArena<8> = SlotArena::new("all", u32::MAX).unwrap();
    assert_eq!(arena.max_slots(), u32::MAX);
    // ORDERING: Relaxed. One thread.
    assert_eq!(arena.get(u32::MAX - 1)[7].load(Ordering::Relaxed), 0);
    assert!(arena.len_touched() < 64);
}

#[test]
fn alloc_here_and_free_there_touches_no_more_than_the_peak() {
    const ROUNDS: usize = if cfg!(miri) { 200 } else { 100_000 };
    const SLOTS: u32 = if cfg!(miri) { 1 << 10 } else { 1 << 20 };
    let arena: Arc<SlotArena<1>> = Arc::new(SlotArena::new("drift", SLOTS).unwrap());
    let (send, receive) = std::sync::mpsc::sync_channel(16);
    let consumer = thread::spawn({
        let arena = Arc::clone(&arena);
        move || receive.into_iter().for_each(|slot| arena.free(slot))
    });
    for _ in 0..ROUNDS {
        send.send(arena.alloc().expect("far from full")).unwrap();
    }
    drop(send);
    consumer.join().unwrap();
    assert_eq!(arena.in_use(), 0);
    assert!(arena.len_touched() <= 8 * 64, "A.4: touched {}", arena.len_touched());
}

#[test]
fn alloc_by_one_thread_finds_what_others_freed() {
    let arena: Arc<SlotArena<1>> = Arc::new(SlotArena::new("steal", 100).unwrap());
    let slots: Vec<u32> = std::iter::from_fn(|| arena.alloc()).collect();
    let freer = thread::spawn({
        let (arena, slots) = (Arc::clone(&arena), slots.clone());
        move || slots.into_iter().for_each(|slot| arena.free(slot))
    });
    freer.join().unwrap();
    let again: HashSet<u32> = std::iter::from_fn(|| arena.alloc()).collect();
    assert_eq!(again.len(), slots.len(), "A.5");
}

/// No batch may have slots of both groups, even after slots were freed and reused.
#[test]
fn slots_of_the_few_lie_together() {
    const SLOTS: usize = if cfg!(miri) { 2 * BATCH + 8 } else { 1_000 };
    const ROUNDS: u32 = if cfg!(miri) { 1 } else { 3 };
    let arena: SlotArena<1> = SlotArena::new("groups", 10_000).unwrap();
    for round in 0..ROUNDS {
        let take =
            |group| -> Vec<u32> { (0..SLOTS).map(|_| arena.alloc_in(group).unwrap()).collect() };
        let (many, few) = (take(Group::Many), take(Group::Few));
        let batches = |slots: &[u32]| -> HashSet<u32> {
            slots.iter().map(|slot| slot / BATCH as u32).collect()
        };
        assert!(batches(&many).is_disjoint(&batches(&few)), "round {round}");
        // Free slots of both groups alternately, so that they are mixed in the shard and in the
        // depot.
        many.iter()
            .zip(&few)
            .flat_map(|(&many, &few)| [many, few])
            .for_each(|slot| arena.free(slot));
        assert_eq!(arena.len_touched() as usize, 2 * SLOTS.next_multiple_of(BATCH), "A.4");
    }
}

/// Guarantee A.4: an allocation for one [`Group`] uses the free slots of the other group before
/// fresh slots.
#[cfg(not(miri))]
#[test]
fn group_that_has_shrunk_lends_its_slots() {
    const SLOTS: usize = 20_000;
    let arena: SlotArena<1> = SlotArena::new("groups", 6 * SLOTS as u32).unwrap();
    for group in [Group::Many, Group::Few, Group::Many] {
        let mut slots: Vec<u32> = (0..SLOTS).map(|_| arena.alloc_in(group).unwrap()).collect();
        slots.sort_unstable();
        slots.dedup();
        assert_eq!(slots.len(), SLOTS);
        slots.into_iter().for_each(|slot| arena.free(slot));
    }
    let most = SLOTS + SPARE + 6 * BATCH;
    assert!(arena.len_touched() as usize <= most, "A.4: touched {}", arena.len_touched());
}

/// Two slots of `Group::Few` that are handed out in succession are not neighbours, except at the
/// end of a batch.
#[test]
fn few_slots_are_taken_apart() {
    let arena: SlotArena<1> = SlotArena::new("groups", 300).unwrap();
    let mut slots: Vec<u32> = (0..BATCH / 2).map(|_| arena.alloc_in(Group::Few).unwrap()).collect();
    assert!(slots.windows(2).all(|pair| pair[0].abs_diff(pair[1]) >= STRIDE as u32), "{slots:?}");
    slots.extend(std::iter::from_fn(|| arena.alloc_in(Group::Few)));
    slots.sort_unstable();
    assert!(slots.into_iter().eq(1..300), "A.5");
}

/// If one group has no free slot, `alloc` must take a slot of the other group. When that slot is
/// freed, it must return to its own group.
#[test]
fn group_without_slots_takes_the_others() {
    let arena: SlotArena<1> = SlotArena::new("groups", 300).unwrap();
    let few: HashSet<u32> = (0..10).map(|_| arena.alloc_in(Group::Few).unwrap()).collect();
    let many: Vec<u32> = std::iter::from_fn(|| arena.alloc()).collect();
    assert_eq!(few.len() + many.len(), 299, "A.5");
    let taken = *many.iter().find(|&&slot| arena.group_of(slot) == Group::Few).unwrap();
    arena.free(taken);
    assert_eq!(arena.alloc_in(Group::Few), Some(taken));
}

#[test]
fn debug_output_names_the_arena() {
    let arena: SlotArena<8> = SlotArena::new("dentry", 4).unwrap();
    assert!(format!("{arena:?}").contains("dentry"));
}

#[test]
fn extend_to_counts_slots_up_to_the_index_and_alloc_goes_on_behind() {
    let arena: SlotArena<8> = SlotArena::new("array", 1_000).unwrap();
    arena.extend_to(99);
    assert_eq!(arena.len_touched(), 100);
    arena.extend_to(7);
    assert_eq!((arena.len_touched(), arena.in_use()), (100, 0));
    assert_eq!(arena.alloc(), Some(100));
    arena.free(100);
}

#[test]
#[should_panic(expected = "out of range")]
fn extend_to_max_slots_panics() {
    SlotArena::<1>::new("array", 4).unwrap().extend_to(4);
}

#[test]
fn prefetch_of_any_index_changes_nothing() {
    let arena: SlotArena<8> = SlotArena::new("hint", 4).unwrap();
    [0, 3, 4, u32::MAX].into_iter().for_each(|index| arena.prefetch(index));
    assert_eq!(arena.len_touched(), 1);
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
mod pages;
