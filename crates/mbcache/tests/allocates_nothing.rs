//! After `Mbcache::new` no call of the cache may allocate memory, except the first sleep of a
//! thread (guarantee G.5 of `lib.rs`). So no thread allocates under a lock of the index, and an
//! allocator that runs out of memory can call the cache to free some.

use corewalk_base::primitives::thread;
use corewalk_mbcache::{Mbcache, MbcacheOptions};
use corewalk_testkit::alloc::{Counting, thread_allocations};
use corewalk_testkit::race::Watchdog;
use std::{fs, hint::black_box, path::PathBuf, sync::mpsc, time::Duration};

#[global_allocator]
static ALLOC: Counting = Counting::new();

fn all_calls(cache: &Mbcache) {
    for value in 0..20_000 {
        let key = value / 3;
        cache.create(key, value).unwrap();
        black_box(cache.get(key, value));
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
}

fn allocations_of(run: impl FnOnce()) -> u64 {
    drop(black_box(Box::new(1)));
    let before = thread_allocations();
    run();
    thread_allocations() - before
}

/// An allocation under a lock of the cache may call reclaim, which needs the same lock. Trap T41 in
/// `traps.md`.
#[test]
fn every_call_allocates_nothing() {
    let cache = Mbcache::new(MbcacheOptions::default().with_budget_bytes(96_000)).unwrap();
    assert_eq!(allocations_of(|| all_calls(&cache)), 0, "T41: something was allocated");
    assert!(cache.stats().reclaimed > 1_000, "{:?}", cache.stats());
}

/// Control of trap T41: the measurement must count a single allocation.
#[test]
fn control_one_allocation_is_counted() {
    let cache = Mbcache::new(MbcacheOptions::default().with_budget_bytes(96_000)).unwrap();
    let run = || {
        all_calls(&cache);
        drop(black_box(vec![1_u8; 10]));
    };
    assert_eq!(allocations_of(run), 1);
}

fn allocations_of_waits(cache: &Mbcache, waits: u64) -> Vec<u64> {
    let (told, tell) = mpsc::channel();
    (0..waits).for_each(|key| cache.create(key, 1).unwrap());
    let held: Vec<_> = (0..waits).map(|key| cache.find_first(key)).collect();
    thread::scope(|scope| {
        let waiter = scope.spawn(move || {
            let me = PathBuf::from("/proc").join(fs::read_link("/proc/thread-self").unwrap());
            let wait = |key| {
                let busy = cache.delete_or_get(key, 1).expect("it is held");
                told.send(me.join("stat")).unwrap();
                allocations_of(|| busy.wait())
            };
            (0..waits).map(wait).collect()
        });
        for handle in held {
            let stat = tell.recv().unwrap();
            while !fs::read_to_string(&stat).unwrap().contains(") S ") {
                thread::yield_now();
            }
            drop(handle);
        }
        waiter.join().unwrap()
    })
}

/// Guarantee G.5 of `lib.rs`: only the first sleep of a thread may allocate.
#[test]
fn waits_of_a_thread_allocate_the_first_time_only() {
    let _watchdog = Watchdog::start("waits of a thread", Duration::from_secs(120));
    let cache = Mbcache::new(MbcacheOptions::default()).unwrap();
    let allocations = allocations_of_waits(&cache, 5);
    assert!(allocations[0] > 0, "no need to except it: {allocations:?}");
    assert_eq!(allocations[1..], [0; 4], "G.5: a later wait allocated");
}
