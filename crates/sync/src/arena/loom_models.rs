//! Models of `SlotArena`: two threads never hold the same slot.
//!
//! Under a model checker all threads share one shard (free list). So the models explore the moves
//! of slots between this shard, the depot (the common list behind all shards) and unused memory.

use super::*;
use corewalk_base::{
    primitives::{Arc, thread},
    tally::{Tally, assert_all_reached},
};

fn fresh_batches(take: fn(&SlotArena<1>, &mut Vec<u32>)) -> [usize; 2] {
    Tally::of(move |tally| {
        // In a model a batch has two slots: slots 0 and 1 (slot 0 is never handed out), then slots
        // 2 and 3.
        let arena: Arc<SlotArena<1>> = Arc::new(SlotArena::new("model", 5).unwrap());
        let taker = move |arena: &SlotArena<1>| {
            let mut slots = Vec::new();
            take(arena, &mut slots);
            slots
        };
        let other = thread::spawn({
            let arena = Arc::clone(&arena);
            move || taker(&arena)
        });
        let mine = taker(&arena);
        let mut all = [mine.clone(), other.join().unwrap()].concat();
        all.sort_unstable();
        assert_eq!(all, [1, 2, 3], "a slot was handed out twice");
        tally.hit(usize::from(mine.contains(&3)));
    })
}

#[test]
fn take_fresh_by_two_threads_hands_out_each_slot_once() {
    assert_all_reached(&fresh_batches(|arena, free| arena.take_fresh(Group::Many, free)));
}

#[test]
#[should_panic(expected = "a slot was handed out twice")]
fn control_take_fresh_in_two_steps_is_caught() {
    fresh_batches(|arena, free| {
        // ORDERING: Relaxed, as in `take_fresh`. This variant is wrong on purpose: it uses a load
        // and a store instead of a compare-exchange.
        let start = arena.next_fresh.load(Ordering::Relaxed);
        let end = end_of_batch(start);
        // ORDERING: Relaxed. As above.
        arena.next_fresh.store(end, Ordering::Relaxed);
        free.extend((start..end).map(|n| u32::try_from(n).unwrap()));
    });
}

#[test]
fn alloc_and_free_by_two_threads_keep_slots_apart() {
    let outcomes = Tally::of(|tally: Tally<2>| {
        let arena: Arc<SlotArena<1>> = Arc::new(SlotArena::new("model", 3).unwrap());
        let user = |arena: &SlotArena<1>, me: u64| {
            let index = arena.alloc().expect("there are two slots");
            let slot = &arena.get(index)[0];
            // ORDERING: Relaxed. Only this thread owns the slot.
            slot.store(me, Ordering::Relaxed);
            thread::yield_now();
            // ORDERING: Relaxed. As above.
            assert_eq!(slot.load(Ordering::Relaxed), me, "a slot has two owners");
            arena.free(index);
            index
        };
        let other = thread::spawn({
            let arena = Arc::clone(&arena);
            move || user(&arena, 1)
        });
        let mine = user(&arena, 2);
        let theirs = other.join().unwrap();
        assert_eq!(arena.in_use(), 0);
        tally.hit(usize::from(mine == theirs));
    });
    assert_all_reached(&outcomes);
}
