//! After `new` nothing allocates (guarantee G.5): so no allocator can ask for memory back, and come
//! upon a lock of ours, in the middle of an operation.

use corewalk_mbcache::{Mbcache, MbcacheOptions};
use corewalk_testkit::alloc::{Counting, thread_allocations};
use std::hint::black_box;

#[global_allocator]
static ALLOC: Counting = Counting::new();

/// Every call there is, over a budget that is too small, so that slots move and entries are reclaimed.
fn all_calls(cache: &Mbcache) {
    for value in 0..20_000 {
        let key = value / 3;
        cache.create(key, value).unwrap();
        black_box(cache.get(key, value).is_some());
        if let Some(entry) = cache.find_first(key) {
            entry.note_users(3);
            entry.touch();
            black_box(cache.find_next(&entry).is_some());
            black_box(cache.delete_or_get(key, entry.value()).is_some());
        }
        if value % 5 == 0 {
            assert!(cache.delete_or_get(key, value).is_none());
        }
        if value % 1_000 == 0 {
            cache.scan(100);
            black_box(cache.stats());
        }
    }
    let busy = {
        cache.create(1 << 40, 1).unwrap();
        let entry = cache.find_first(1 << 40).unwrap();
        let busy = cache.delete_or_get(1 << 40, 1).unwrap();
        drop(entry);
        busy
    };
    busy.wait();
    cache.switch_off();
}

fn allocations_of(run: impl FnOnce()) -> u64 {
    // What the thread's first use of a thread-local may allocate is not the cache's.
    drop(black_box(Box::new(1)));
    let before = thread_allocations();
    run();
    thread_allocations() - before
}

/// Trap T41.
#[test]
fn every_call_allocates_nothing() {
    let cache = Mbcache::new(MbcacheOptions { entries_max: 1_000, ..Default::default() }).unwrap();
    assert_eq!(allocations_of(|| all_calls(&cache)), 0, "T41: something was allocated");
    assert!(cache.stats().reclaimed > 1_000, "{:?}", cache.stats());
}

/// Trap T41: one more thing that allocates is counted.
#[test]
fn control_one_allocation_is_counted() {
    let cache = Mbcache::new(MbcacheOptions { entries_max: 1_000, ..Default::default() }).unwrap();
    let run = || {
        all_calls(&cache);
        drop(black_box(vec![1_u8; 10]));
    };
    assert_eq!(allocations_of(run), 1);
}
