//! Unit tests of `Lockref`, without a model checker: the smallest and the largest count, dead
//! objects, and threads that sleep.

use super::*;
use corewalk_base::primitives::{Arc, thread};

/// Waits until another thread sleeps on the lockref's lock, or has set the bit for waiting threads
/// and is about to sleep.
fn await_waiter(lockref: &Lockref) {
    // ORDERING: Relaxed. The test only waits until the bit is visible.
    while lockref.word.load(Ordering::Relaxed) & WAITERS == 0 {
        thread::yield_now();
    }
}

#[test]
fn zero_word_is_unlocked_alive_and_uncounted() {
    let word = AtomicU64::new(0);
    let lockref = Lockref::from_word(&word);
    assert_eq!(lockref.count(), 0);
    assert!(!lockref.is_dead() && !lockref.is_locked());
    assert!(lockref.get_not_dead());
    // ORDERING: Relaxed. One thread.
    assert_eq!(word.load(Ordering::Relaxed), ONE);
}

#[test]
fn get_and_put_by_one_and_many_add_up() {
    let lockref = Lockref::new(1);
    lockref.get();
    lockref.get_many(5);
    assert!(lockref.get_not_dead());
    assert_eq!(lockref.count(), 8);
    assert_eq!(lockref.put_return(), 7);
    assert_eq!(lockref.put_many(7), 0);
}

/// Taking a reference to a dead object must fail until the object is revived. Trap T18 in
/// `traps.md`.
#[test]
fn get_not_dead_after_mark_dead_fails_until_revive() {
    let lockref = Lockref::new(0);
    assert!(lockref.get_not_dead(), "from zero, while alive");
    lockref.lock().mark_dead();
    assert!(lockref.is_dead());
    assert!(!lockref.get_not_dead());
    lockref.get();
    assert_eq!(lockref.put_many(2), 0, "owners may go on counting a dead object");
    lockref.lock().revive();
    assert!(lockref.get_not_dead());
}

#[test]
fn put_or_lock_locks_only_for_the_last_reference() {
    let lockref = Lockref::new(2);
    assert!(lockref.put_or_lock().is_none());
    assert_eq!(lockref.count(), 1);
    let guard = lockref.put_or_lock().expect("the last reference");
    assert_eq!(guard.count(), 1);
    assert!(lockref.try_lock().is_none());
    drop(guard);
    lockref.put_return();
    let guard = lockref.put_or_lock().expect("no reference at all");
    assert_eq!(guard.count(), 0);
}

#[test]
fn guard_changes_the_count_and_unlocks_on_drop() {
    let lockref = Lockref::new(3);
    let mut guard = lockref.lock();
    assert!(lockref.is_locked());
    guard.add(4);
    guard.sub(2);
    assert_eq!(guard.count(), 5);
    assert!(!guard.is_dead());
    drop(guard);
    assert!(!lockref.is_locked());
    assert_eq!(lockref.count(), 5);
}

/// The lockref must keep counts that do not fit in 32 bits, and a count must not change the flags.
/// Trap T51 in `traps.md`.
#[test]
fn count_above_32_bits_is_exact() {
    let start = u64::from(u32::MAX) - 1;
    let lockref = Lockref::new(start);
    lockref.get_many(4);
    assert_eq!(lockref.count(), start + 4);
    assert!(lockref.put_or_lock().is_none());
    assert_eq!(lockref.count(), start + 3);
    assert!(!lockref.is_dead() && !lockref.is_locked());
}

/// Checks that the count does not overflow. At the maximum, `get_not_dead` must fail and must not
/// change the state word. Trap T51 in `traps.md`.
#[test]
fn get_not_dead_at_count_max_fails_and_keeps_the_word() {
    let lockref = Lockref::new(Lockref::COUNT_MAX - 1);
    assert!(lockref.get_not_dead());
    assert!(!lockref.get_not_dead());
    assert_eq!(lockref.count(), Lockref::COUNT_MAX);
    assert!(!lockref.is_dead() && !lockref.is_locked());
    assert_eq!(lockref.put_return(), Lockref::COUNT_MAX - 1);
}

/// A count must not overflow. At the maximum, `get` must panic, because it cannot fail. Trap T51 in
/// `traps.md`.
#[test]
#[should_panic(expected = "lockref count overflow")]
fn get_at_count_max_panics() {
    Lockref::new(Lockref::COUNT_MAX).get();
}

/// A count must not overflow. The added amount alone does not fit in 61 bits. Trap T51 in
/// `traps.md`.
#[test]
#[should_panic(expected = "lockref count overflow")]
fn get_many_above_count_max_panics() {
    Lockref::new(0).get_many(u64::MAX);
}

#[test]
#[should_panic(expected = "lockref put without a reference")]
fn put_return_without_a_reference_panics() {
    Lockref::new(0).put_return();
}

#[test]
#[should_panic(expected = "lockref count too large")]
fn new_above_count_max_panics() {
    drop(Lockref::new(Lockref::COUNT_MAX + 1));
}

#[test]
fn panic_in_guarded_code_unlocks() {
    let lockref = Arc::new(Lockref::new(1));
    let panicked = thread::spawn({
        let lockref = Arc::clone(&lockref);
        move || {
            let _guard = lockref.lock();
            panic!("in the section");
        }
    });
    assert!(panicked.join().is_err());
    assert!(lockref.try_lock().is_some());
}

#[test]
fn get_on_a_held_lock_sleeps_until_it_is_free() {
    let lockref = Arc::new(Lockref::new(1));
    let guard = lockref.lock();
    let user = thread::spawn({
        let lockref = Arc::clone(&lockref);
        move || lockref.get()
    });
    await_waiter(&lockref);
    assert_eq!(guard.count(), 1);
    drop(guard);
    user.join().unwrap();
    assert_eq!(lockref.count(), 2);
}

#[test]
fn unlock_with_many_sleepers_wakes_them_all() {
    let lockref = Arc::new(Lockref::new(1));
    let guard = lockref.lock();
    let mut threads = Vec::new();
    for _ in 0..4 {
        let ours = Arc::clone(&lockref);
        threads.push(thread::spawn(move || ours.lock().add(1)));
        let ours = Arc::clone(&lockref);
        threads.push(thread::spawn(move || ours.get()));
    }
    await_waiter(&lockref);
    drop(guard);
    for thread in threads {
        thread.join().unwrap();
    }
    assert_eq!(lockref.count(), 9);
    assert!(lockref.try_lock().is_some());
    // ORDERING: Relaxed. Every thread has been joined.
    let word = lockref.word.load(Ordering::Relaxed);
    assert_eq!(word & (LOCKED | WAITERS), 0, "no thread sleeps, so the waiters bit is clear");
}
