//! Tests of the counting allocator, which is the global allocator of this test binary.

use corewalk_testkit::{
    alloc::{Counting, thread_allocations},
    race,
    rng::Seed,
};
use std::hint::black_box;

#[global_allocator]
static ALLOC: Counting = Counting::new();

#[test]
fn one_box_counts_as_one_allocation() {
    let before = thread_allocations();
    let boxed = black_box(Box::new([1_u8; 100]));
    assert_eq!(thread_allocations() - before, 1);
    drop(boxed);
    assert_eq!(thread_allocations() - before, 1);
}

#[test]
fn arithmetic_counts_as_none() {
    let before = thread_allocations();
    black_box((0..1_000_u64).map(black_box).sum::<u64>());
    assert_eq!(thread_allocations(), before);
}

#[test]
fn allocations_of_other_threads_are_not_counted() {
    let counts = race::run(2, Seed(0), |racer| {
        let before = thread_allocations();
        let boxes: Vec<Box<usize>> = Vec::with_capacity(racer.thread);
        let boxes = (0..racer.thread * 10).map(Box::new).fold(boxes, |mut all, one| {
            all.push(one);
            all
        });
        (boxes.len(), thread_allocations() - before)
    });
    assert_eq!(counts[0], (0, 0));
    assert!(counts[1].1 > 10);
}

#[test]
fn large_block_is_seen_live_and_then_not() {
    const SIZE: usize = 256 << 20;
    let block = black_box(vec![0_u8; SIZE]);
    let with = ALLOC.live().bytes;
    assert!(with >= SIZE as u64);
    drop(block);
    // Other tests of the binary may allocate meanwhile, but far less than half of `SIZE`.
    assert!(ALLOC.live().bytes < with - SIZE as u64 / 2);
}

#[test]
fn grown_vector_counts_each_growth_and_stays_balanced() {
    let before = thread_allocations();
    let mut grown: Vec<u64> = Vec::with_capacity(1);
    for number in 0..1_000 {
        grown.push(black_box(number));
    }
    assert!(thread_allocations() - before >= 5);
}
