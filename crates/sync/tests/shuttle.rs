//! Random schedules of programs that are too large for loom.
//!
//! Shuttle runs sequentially consistent schedules only, so it finds errors in the order of a
//! protocol's steps. Loom finds memory orderings that are too weak. A failed test prints the
//! schedule to replay. Run with `RUSTFLAGS="--cfg corewalk_shuttle" cargo test -p corewalk-sync
//! --release --test shuttle`.
#![cfg(corewalk_shuttle)]

use corewalk_base::primitives::{
    Arc,
    atomic::{AtomicU64, Ordering},
    thread,
};
use corewalk_sync::{Lockref, RcuCell, SeqRwLock, SlotArena, rcu};

const SCHEDULES: usize = 3_000;

fn join_all(threads: Vec<thread::JoinHandle<()>>) {
    for thread in threads {
        thread.join().unwrap();
    }
}

/// Exactly one owner, the last one, must free the slot.
fn four_owners(put: fn(&Lockref) -> bool) {
    let arena: Arc<SlotArena<2>> = Arc::new(SlotArena::new("shuttle", 4).unwrap());
    let index = arena.alloc().unwrap();
    Lockref::from_word(&arena.get(index)[0]).lock().add(4);
    let threads = (0..4)
        .map(|_| {
            let arena = Arc::clone(&arena);
            thread::spawn(move || {
                let lockref = Lockref::from_word(&arena.get(index)[0]);
                if lockref.get_not_dead() {
                    assert!(!put(lockref), "an owner is left");
                }
                if put(lockref) {
                    arena.free(index);
                }
            })
        })
        .collect();
    join_all(threads);
    assert_eq!(arena.in_use(), 0, "the last owner freed it");
}

fn put_last(lockref: &Lockref) -> bool {
    let Some(mut guard) = lockref.put_or_lock() else { return false };
    guard.sub(1);
    guard.mark_dead();
    true
}

#[test]
fn lockref_with_four_owners_is_freed_once() {
    shuttle::check_pct(|| four_owners(put_last), SCHEDULES, 3);
}

/// Control (a variant with the bug must fail): each owner reads the count and then drops its
/// reference. The last two owners may both read 2, and neither finds that it is the last one.
#[test]
#[should_panic(expected = "the last owner freed it")]
fn control_put_and_look_in_two_steps_is_caught() {
    fn put(lockref: &Lockref) -> bool {
        let is_last = lockref.count() == 1;
        lockref.put_return();
        is_last
    }
    shuttle::check_pct(|| four_owners(put), SCHEDULES, 3);
}

/// Runs two writers, two readers that take the lock if writers have disturbed them, and a reader
/// that always takes the shared lock. Each reader must see words of one write section.
fn readers_and_writers(is_written_whole: fn(&SeqRwLock, &[AtomicU64; 2], u64)) {
    let shared = Arc::new((SeqRwLock::new(), [AtomicU64::new(0), AtomicU64::new(0)]));
    let read = |words: &[AtomicU64; 2]| {
        // ORDERING: Relaxed. Words of a section.
        [words[0].load(Ordering::Relaxed), words[1].load(Ordering::Relaxed)]
    };
    let mut threads = Vec::new();
    for me in 1..3 {
        let ours = Arc::clone(&shared);
        threads.push(thread::spawn(move || is_written_whole(&ours.0, &ours.1, me)));
        let ours = Arc::clone(&shared);
        threads.push(thread::spawn(move || {
            let [a, b] = ours.0.read_or_lock(|_| read(&ours.1));
            assert_eq!(a, b, "torn section");
        }));
    }
    threads.push(thread::spawn(move || {
        let _shared = shared.0.read_shared();
        let [a, b] = read(&shared.1);
        assert_eq!(a, b, "torn section");
    }));
    join_all(threads);
}

fn store(words: &[AtomicU64; 2], value: u64) {
    for word in words {
        // ORDERING: Relaxed. Words of a section.
        word.store(value, Ordering::Relaxed);
    }
}

#[test]
fn seqrwlock_with_five_threads_shows_whole_sections() {
    let write = |lock: &SeqRwLock, words: &[AtomicU64; 2], value| {
        let _section = lock.write();
        store(words, value);
    };
    shuttle::check_pct(move || readers_and_writers(write), SCHEDULES, 3);
}

#[test]
#[should_panic(expected = "torn section")]
fn control_writer_that_shares_is_caught() {
    let write = |lock: &SeqRwLock, words: &[AtomicU64; 2], value| {
        let _shared = lock.read_shared();
        store(words, value);
    };
    shuttle::check_pct(move || readers_and_writers(write), SCHEDULES, 3);
}

#[test]
fn rcu_cell_with_three_updaters_and_readers_loses_nothing() {
    let run = || {
        // Each version holds a clone of `token`. So the count of `token` tells how many versions
        // are alive.
        let token = Arc::new(());
        let cell = Arc::new(RcuCell::new((vec![0_u64; 2], Arc::clone(&token))));
        let mut threads = Vec::new();
        for _ in 0..3 {
            let ours = Arc::clone(&cell);
            threads.push(thread::spawn(move || {
                ours.update(|(old, token)| (vec![old[0] + 1; 2], Arc::clone(token)));
            }));
            let ours = Arc::clone(&cell);
            threads.push(thread::spawn(move || {
                let section = rcu::read_lock();
                let (value, _) = ours.read(&section);
                assert_eq!(value[0], value[1]);
            }));
        }
        join_all(threads);
        assert_eq!(Arc::strong_count(&token), 2, "an old version was not freed");
        assert_eq!(cell.read(&rcu::read_lock()).0[0], 3);
    };
    shuttle::check_pct(run, SCHEDULES, 3);
}
