//! Models of `Lockref`: the life and death of a counted object.
//!
//! Each model takes the operation under test as a function. A control test passes a wrong function
//! to the same model, and the model must fail.

use super::*;
use corewalk_base::{
    primitives::{Arc, thread},
    tally::{Tally, assert_all_reached},
};

/// Runs `get` while the main thread, the killer, marks the object dead if no reference is left.
/// Returns how often the getter succeeded, and how often the killer did.
fn get_against_kill(get: fn(&Lockref) -> bool) -> [usize; 2] {
    Tally::of(move |tally| {
        let lockref = Arc::new(Lockref::new(0));
        let getter = thread::spawn({
            let lockref = Arc::clone(&lockref);
            move || get(&lockref)
        });
        let has_killed = {
            let mut guard = lockref.lock();
            let is_free = guard.count() == 0;
            if is_free {
                guard.mark_dead();
            }
            is_free
        };
        let has_got = getter.join().unwrap();
        assert!(!(has_got && has_killed), "A.2: a dead object was counted");
        assert!(has_got || has_killed);
        assert_eq!(lockref.count(), u64::from(has_got));
        assert_eq!(lockref.is_dead(), has_killed);
        tally.hit(usize::from(has_killed));
    })
}

/// Taking a reference to a dead object must fail. One thread takes a reference, while another
/// thread marks the object dead if no reference is left. Exactly one of the two must succeed. Trap
/// T18 in `traps.md`.
#[test]
fn get_not_dead_against_mark_dead_has_one_winner() {
    assert_all_reached(&get_against_kill(Lockref::get_not_dead));
}

/// Control (a variant with the bug must fail): check and increment are two steps. So the getter may
/// get a reference to an object that the killer has marked dead. Trap T18 in `traps.md`.
#[test]
#[should_panic(expected = "A.2: a dead object was counted")]
fn control_get_not_dead_in_two_steps_is_caught() {
    get_against_kill(|lockref| {
        if lockref.is_dead() {
            return false;
        }
        // ORDERING: AcqRel. This variant of `get_not_dead` is wrong on purpose: it checks `is_dead`
        // in a separate step before the increment. Its ordering is right.
        lockref.word.fetch_add(ONE, Ordering::AcqRel);
        true
    });
}

/// The thread that frees the slot overwrites the payload.
struct Slot {
    lockref: Lockref,
    payload: AtomicU64,
}

/// Runs `get_not_dead` while the main thread drops its reference. If that is the last reference,
/// the main thread frees the object by `retire`. Returns how often the getter failed, and how often
/// it succeeded.
fn get_against_retire(retire: fn(&Slot)) -> [usize; 2] {
    Tally::of(move |tally| {
        let slot = Arc::new(Slot { lockref: Lockref::new(1), payload: AtomicU64::new(0) });
        let getter = thread::spawn({
            let slot = Arc::clone(&slot);
            move || {
                let has_got = slot.lockref.get_not_dead();
                if has_got {
                    // ORDERING: Relaxed. This thread holds a reference, so the main thread must not
                    // overwrite `payload`.
                    let payload = slot.payload.load(Ordering::Relaxed);
                    assert_eq!(payload, 0, "T7: a retired object was counted");
                    slot.lockref.put_return();
                }
                has_got
            }
        });
        if let Some(mut guard) = slot.lockref.put_or_lock() {
            guard.sub(1);
            guard.mark_dead();
            drop(guard);
            // ORDERING: Relaxed. No thread may read the payload any more.
            slot.payload.store(1, Ordering::Relaxed);
            retire(&slot);
        }
        tally.hit(usize::from(getter.join().unwrap()));
    })
}

/// `get_not_dead` on a retired object must fail. So the free list must not use the word of the
/// count for its links. Trap T7 in `traps.md`.
#[test]
fn get_not_dead_on_a_retired_object_fails() {
    assert_all_reached(&get_against_retire(|_slot| {}));
}

/// Control (a variant with the bug must fail): a free list stores a link in the count's word, so
/// `get_not_dead` on a retired object succeeds. Trap T7 in `traps.md`.
#[test]
#[should_panic(expected = "T7: a retired object was counted")]
fn control_count_that_is_reused_as_a_link_is_caught() {
    get_against_retire(|slot| {
        // ORDERING: Release. This free list is wrong on purpose: it stores a link in the word of
        // the reference count. Its ordering is right.
        slot.lockref.word.store(4096, Ordering::Release);
    });
}

/// Each owner writes a word and drops its reference with `put`. The last owner must see both words.
fn put_by_both(put: fn(&Lockref) -> bool) -> [usize; 2] {
    Tally::of(move |tally| {
        let object = Arc::new((Lockref::new(2), [AtomicU64::new(0), AtomicU64::new(0)]));
        let owner = {
            let tally = tally.clone();
            move |object: Arc<(Lockref, [AtomicU64; 2])>, me: usize| {
                // ORDERING: Relaxed. The dropped reference has to publish this store.
                object.1[me].store(1, Ordering::Relaxed);
                let is_last = put(&object.0);
                if is_last {
                    // ORDERING: Relaxed. As above.
                    let theirs = object.1[1 - me].load(Ordering::Relaxed);
                    assert_eq!(theirs, 1, "A.6: the last owner missed a write");
                    tally.hit(me);
                }
                is_last
            }
        };
        let other = thread::spawn({
            let (object, owner) = (Arc::clone(&object), owner.clone());
            move || owner(object, 0)
        });
        let mine = owner(Arc::clone(&object), 1);
        let theirs = other.join().unwrap();
        assert!(mine != theirs, "one of the two is last");
    })
}

#[test]
fn put_or_lock_by_two_owners_gives_one_the_lock() {
    assert_all_reached(&put_by_both(|lockref| match lockref.put_or_lock() {
        None => false,
        Some(mut guard) => {
            assert_eq!(guard.count(), 1);
            guard.sub(1);
            guard.mark_dead();
            true
        }
    }));
}

#[test]
fn put_return_by_two_owners_gives_one_the_zero() {
    assert_all_reached(&put_by_both(|lockref| lockref.put_return() == 0));
}

#[test]
#[should_panic(expected = "A.6: the last owner missed a write")]
fn control_relaxed_put_is_caught() {
    // ORDERING: Relaxed. Wrong on purpose.
    put_by_both(|lockref| lockref.word.fetch_sub(ONE, Ordering::Relaxed) == ONE);
}

/// Runs `get` while the main thread holds the lock and reads the count twice. Returns how often the
/// main thread read the count before the `get`, and how often after it.
fn look_twice(get: fn(&Lockref)) -> [usize; 2] {
    Tally::of(move |tally| {
        let lockref = Arc::new(Lockref::new(1));
        let user = thread::spawn({
            let lockref = Arc::clone(&lockref);
            move || get(&lockref)
        });
        let guard = lockref.lock();
        let first = guard.count();
        thread::yield_now();
        assert_eq!(guard.count(), first, "A.1: the count moved under the lock");
        drop(guard);
        user.join().unwrap();
        assert_eq!(lockref.count(), 2);
        tally.hit(usize::try_from(first - 1).unwrap());
    })
}

#[test]
fn count_under_the_lock_is_stable() {
    assert_all_reached(&look_twice(Lockref::get));
}

#[test]
#[should_panic(expected = "A.1: the count moved under the lock")]
fn control_get_that_ignores_the_lock_is_caught() {
    look_twice(|lockref| {
        // ORDERING: AcqRel. This variant of `get` is wrong on purpose: it ignores the lock bit. Its
        // ordering is right.
        lockref.word.fetch_add(ONE, Ordering::AcqRel);
    });
}

/// Runs `get` while the main thread holds the lock for a short time. Then the main thread must be
/// able to lock again. Returns how often that was before the `get`, and how often after it.
fn transient_locker(get: fn(&Lockref)) -> [usize; 2] {
    Tally::of(move |tally| {
        let lockref = Arc::new(Lockref::new(1));
        let user = thread::spawn({
            let lockref = Arc::clone(&lockref);
            move || get(&lockref)
        });
        drop(lockref.lock());
        let again = lockref.try_lock().expect("A.4: a user that only counts holds the lock");
        tally.hit(usize::try_from(again.count() - 1).unwrap());
        drop(again);
        user.join().unwrap();
    })
}

/// A thread that only counts must not take the lock because another thread holds it for a short
/// time. Trap T52 in `traps.md`.
#[test]
fn transient_locker_leaves_no_locker_behind() {
    assert_all_reached(&transient_locker(Lockref::get));
}

/// Control (a variant with the bug must fail): a thread that only counts takes the lock if it finds
/// the lock held. Trap T52 in `traps.md`.
#[test]
#[should_panic(expected = "A.4: a user that only counts holds the lock")]
fn control_user_that_falls_back_to_the_lock_is_caught() {
    transient_locker(|lockref| {
        if lockref.is_locked() {
            lockref.lock().add(1);
        } else {
            lockref.get();
        }
    });
}

/// Lets two threads take the lock, each once, and increment a word under it. Returns how often the
/// main thread was first, and how often the other thread.
fn two_lockers(unlock: fn(LockrefGuard<'_>)) -> [usize; 2] {
    Tally::of(move |tally| {
        let shared = Arc::new((Lockref::new(0), AtomicU64::new(0)));
        let locker = move |shared: Arc<(Lockref, AtomicU64)>| {
            let guard = shared.0.lock();
            // ORDERING: Relaxed. The model checks that the lock orders this load after the other
            // thread's store.
            let turn = shared.1.load(Ordering::Relaxed);
            // ORDERING: Relaxed. As above.
            shared.1.store(turn + 1, Ordering::Relaxed);
            unlock(guard);
            turn
        };
        let other = thread::spawn({
            let shared = Arc::clone(&shared);
            move || locker(shared)
        });
        let mine = locker(Arc::clone(&shared));
        let theirs = other.join().unwrap();
        assert_eq!(mine + theirs, 1, "a locker missed what the last one wrote");
        tally.hit(usize::try_from(mine).unwrap());
    })
}

#[test]
fn lock_after_unlock_sees_what_was_written() {
    assert_all_reached(&two_lockers(|guard| drop(guard)));
}

#[test]
#[should_panic(expected = "a locker missed what the last one wrote")]
fn control_relaxed_unlock_is_caught() {
    two_lockers(|guard| {
        // ORDERING: Relaxed. Wrong on purpose.
        guard.lockref.word.fetch_and(!(LOCKED | WAITERS), Ordering::Relaxed);
        std::mem::forget(guard);
    });
}
