//! Waits for the last handle of an entry must end.

use corewalk_base::primitives::{
    thread,
    unmodelled::{AtomicBool, Ordering},
};
use corewalk_mbcache::{Mbcache, MbcacheOptions};
use corewalk_testkit::{
    race::{self, Watchdog},
    rng::{ReportSeed, Seed},
};
use std::{sync::mpsc, time::Duration};

const LIMIT: Duration = Duration::from_secs(120);

fn cache() -> Mbcache {
    let cache = Mbcache::new(MbcacheOptions::default()).unwrap();
    cache.create(1, 5).unwrap();
    cache
}

#[test]
fn threads_that_wait_go_on_when_the_last_handle_is_put() {
    let _watchdog = Watchdog::start("threads that wait for a handle", LIMIT);
    let cache = cache();
    let (first, second) = (cache.find_first(1).unwrap(), cache.find_first(1).unwrap());
    let (told, tell) = mpsc::channel();
    thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let busy = cache.delete_or_get(1, 5).expect("it is held");
                told.send(()).unwrap();
                busy.wait();
            });
        }
        (0..3).for_each(|_| tell.recv().unwrap());
        drop(first);
        assert!(cache.delete_or_get(1, 5).is_some(), "the second handle is still there");
        drop(second);
    });
    assert!(cache.delete_or_get(1, 5).is_none());
}

/// A thread that frees a value must wait for the threads that have found it, and the wait must end.
/// Trap T34 in `traps.md`.
#[test]
fn waits_beside_finders_all_end() {
    const ROUNDS_MAX: u64 = 50_000_000;
    const WAITS: u64 = 20;
    let _watchdog = Watchdog::start("waits beside finders", LIMIT);
    let report = ReportSeed::new(Seed::choose());
    let cache = cache();
    let is_done = AtomicBool::new(false);
    let waited = race::run(3, report.seed(), |mut racer| {
        let mut waited = 0;
        for _ in 0..ROUNDS_MAX {
            // ORDERING: Relaxed. The value only tells the thread to stop.
            if waited >= WAITS || is_done.load(Ordering::Relaxed) {
                break;
            }
            if racer.thread > 0 {
                let entry = cache.find_first(1);
                if racer.rng.chance(1, 2) {
                    thread::yield_now();
                }
                drop(entry);
                continue;
            }
            while let Some(busy) = cache.delete_or_get(1, 5) {
                waited += 1;
                busy.wait();
            }
            cache.create(1, 5).unwrap();
        }
        if racer.thread == 0 {
            // ORDERING: Relaxed. The value only tells the other threads to stop.
            is_done.store(true, Ordering::Relaxed);
        }
        waited
    });
    assert!(waited[0] >= WAITS, "no deletion had to wait");
}

/// Guarantee G.1 of `lib.rs`: the wait for the last handle of an entry must end although other
/// threads search for the entry.
#[test]
fn thread_that_waits_is_not_kept_by_a_finder_that_came_later() {
    let _watchdog = Watchdog::start("a thread beside a later finder", LIMIT / 4);
    let cache = cache();
    for _ in 0..50 {
        let first = cache.find_first(1).unwrap();
        let _second = thread::scope(|scope| {
            let busy = cache.delete_or_get(1, 5).expect("it is held");
            let waiter = scope.spawn(move || busy.wait());
            // While a thread waits for the last handle of an entry, a search returns no new handle.
            while cache.find_first(1).is_some() {
                thread::yield_now();
            }
            drop(first);
            let second = cache.find_first(1).expect("the wait is over");
            waiter.join().unwrap();
            second
        });
    }
}
