//! Waiting for the last handle: threads, tasks, and wakers that call back into the cache.

use corewalk_base::primitives::{
    thread,
    unmodelled::{AtomicBool, Ordering},
};
use corewalk_mbcache::{CreateError, Mbcache, MbcacheOptions};
use corewalk_testkit::{
    race::{self, Watchdog},
    rng::{ReportSeed, Seed},
};
use std::{
    future::Future,
    panic::{self, AssertUnwindSafe},
    pin::pin,
    sync::{Arc, Mutex, mpsc},
    task::{Context, Poll, Wake, Waker},
    time::Duration,
};

const LIMIT: Duration = Duration::from_secs(120);

fn cache() -> Arc<Mbcache> {
    let cache = Mbcache::new(MbcacheOptions::default()).unwrap();
    cache.create(1, 5).unwrap();
    Arc::new(cache)
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

/// Trap T34: finders and a freer, until it had to wait a few times; it never waits for ever.
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
            // ORDERING: Relaxed. It only says that there is nothing more to do.
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
            // ORDERING: Relaxed. As above.
            is_done.store(true, Ordering::Relaxed);
        }
        waited
    });
    assert!(waited[0] >= WAITS, "nobody had to wait");
}

/// A task by hand: a waker that does something, and says so.
struct Woken<F>(F, Mutex<u32>);

impl<F: Fn() + Send + Sync + 'static> Wake for Woken<F> {
    fn wake(self: Arc<Self>) {
        (self.0)();
        *self.1.lock().unwrap() += 1;
    }
}

fn woken<F: Fn() + Send + Sync + 'static>(run: F) -> (Arc<Woken<F>>, Waker) {
    let woken = Arc::new(Woken(run, Mutex::new(0)));
    (Arc::clone(&woken), Waker::from(woken))
}

#[test]
fn task_that_waits_is_woken_by_the_last_handle_only() {
    let cache = cache();
    let (first, second) = (cache.find_first(1).unwrap(), cache.find_first(1).unwrap());
    let (count, waker) = woken(|| {});
    let mut task = Context::from_waker(&waker);
    let mut unused = pin!(cache.delete_or_get(1, 5).unwrap().unused());
    assert_eq!(unused.as_mut().poll(&mut task), Poll::Pending);
    drop(first);
    assert_eq!(*count.1.lock().unwrap(), 0);
    assert_eq!(unused.as_mut().poll(&mut task), Poll::Pending);
    drop(second);
    assert_eq!(*count.1.lock().unwrap(), 1);
    assert_eq!(unused.as_mut().poll(&mut task), Poll::Ready(()));
}

#[test]
fn entry_that_somebody_waits_to_delete_is_not_found_until_it_is_free() {
    let cache = cache();
    let entry = cache.find_first(1).unwrap();
    let (_, waker) = woken(|| {});
    let mut unused = pin!(cache.delete_or_get(1, 5).unwrap().unused());
    assert!(cache.find_first(1).is_some(), "nobody waits yet");
    assert!(unused.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    assert!(cache.find_first(1).is_none());
    let seen = cache.get(1, 5).expect("it is there");
    assert!(cache.hold(seen).is_none());
    drop(entry);
    assert!(cache.find_first(1).is_some() && cache.hold(seen).is_some());
}

/// G.1: a wait is for the handles that there are, not for those that come later.
#[test]
fn task_that_was_woken_is_ready_though_a_finder_came_first() {
    let cache = cache();
    let first = cache.find_first(1).unwrap();
    let (count, waker) = woken(|| {});
    let mut task = Context::from_waker(&waker);
    let mut unused = pin!(cache.delete_or_get(1, 5).unwrap().unused());
    assert!(unused.as_mut().poll(&mut task).is_pending());
    drop(first);
    let _second = cache.find_first(1).expect("the wait is over");
    assert_eq!(*count.1.lock().unwrap(), 1);
    assert_eq!(unused.as_mut().poll(&mut task), Poll::Ready(()), "G.1: it waits on");
}

/// G.1: as above, with a thread, which the second handle outlives.
#[test]
fn thread_that_waits_is_not_kept_by_a_finder_that_came_later() {
    let _watchdog = Watchdog::start("a thread beside a later finder", LIMIT / 4);
    let cache = cache();
    for _ in 0..50 {
        let first = cache.find_first(1).unwrap();
        let _second = thread::scope(|scope| {
            let busy = cache.delete_or_get(1, 5).expect("it is held");
            let waiter = scope.spawn(move || busy.wait());
            // Nothing is found from when it waits.
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

#[test]
fn task_that_is_polled_again_has_its_last_waker_woken() {
    let cache = cache();
    let entry = cache.find_first(1).unwrap();
    let ((old, old_waker), (new, new_waker)) = (woken(|| {}), woken(|| {}));
    let mut unused = pin!(cache.delete_or_get(1, 5).unwrap().unused());
    assert!(unused.as_mut().poll(&mut Context::from_waker(&old_waker)).is_pending());
    assert!(unused.as_mut().poll(&mut Context::from_waker(&new_waker)).is_pending());
    drop(entry);
    assert_eq!((*old.1.lock().unwrap(), *new.1.lock().unwrap()), (0, 1));
    assert!(unused.as_mut().poll(&mut Context::from_waker(&old_waker)).is_ready());
}

/// A waker that panics, first, in the middle and last, leaves no other task asleep.
#[test]
fn waker_that_panics_does_not_keep_others_asleep() {
    const TASKS: usize = 20;
    let cache = cache();
    let entry = cache.find_first(1).unwrap();
    let wakers: Vec<_> = (0..TASKS)
        .map(|nth| woken(move || assert!(![0, 9, TASKS - 1].contains(&nth), "by intention")))
        .collect();
    let mut waits: Vec<_> = wakers
        .iter()
        .map(|(_, waker)| {
            let mut wait = Box::pin(cache.delete_or_get(1, 5).unwrap().unused());
            assert!(wait.as_mut().poll(&mut Context::from_waker(waker)).is_pending());
            wait
        })
        .collect();
    let put = panic::catch_unwind(AssertUnwindSafe(|| drop(entry)));
    assert!(put.is_err(), "the panic is not kept back");
    let count: u32 = wakers.iter().map(|(woken, _)| *woken.1.lock().unwrap()).sum();
    assert_eq!(count as usize, TASKS - 3, "somebody sleeps for ever");
    let mut task = Context::from_waker(&wakers[1].1);
    assert!(waits.iter_mut().all(|wait| wait.as_mut().poll(&mut task).is_ready()));
    assert!(cache.delete_or_get(1, 5).is_none());
}

#[test]
fn task_that_gives_up_is_not_woken() {
    let cache = cache();
    let entry = cache.find_first(1).unwrap();
    let (count, waker) = woken(|| {});
    {
        let mut unused = pin!(cache.delete_or_get(1, 5).unwrap().unused());
        assert!(unused.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    }
    drop(entry);
    assert_eq!(*count.1.lock().unwrap(), 0);
    assert_eq!(Arc::strong_count(&count), 2, "the cache keeps no waker");
}

/// Traps T41, T42: a waker is called with no lock held, so it may call whatever it likes.
#[test]
fn waker_that_calls_the_cache_meets_no_lock() {
    let _watchdog = Watchdog::start("a waker that calls the cache", LIMIT);
    let cache = cache();
    let entry = cache.find_first(1).unwrap();
    let (count, waker) = woken({
        let cache = Arc::clone(&cache);
        move || {
            for value in 0..1_000 {
                cache.create(value, value).unwrap();
            }
            assert_eq!(cache.create(1, 1), Err(CreateError::Exists));
            assert!(cache.delete_or_get(1, 5).is_none());
            let held = cache.find_first(1).unwrap();
            let (_, waker) = woken(|| {});
            let mut again = pin!(cache.delete_or_get(1, 1).unwrap().unused());
            assert!(again.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
            drop(held);
            assert_eq!(cache.scan(u64::MAX), 1_000);
        }
    });
    let mut unused = pin!(cache.delete_or_get(1, 5).unwrap().unused());
    assert!(unused.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    drop(entry);
    assert_eq!(*count.1.lock().unwrap(), 1);
    assert!(unused.as_mut().poll(&mut Context::from_waker(&waker)).is_ready());
}
