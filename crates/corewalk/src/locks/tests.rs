//! Tests of the lock table, against a model that keeps a mode per byte and owner.

use std::time::Duration;

use corewalk_base::primitives::thread;
use corewalk_testkit::race::Watchdog;
use proptest::prelude::*;

use super::*;

const INO: u64 = 5;

fn posix(owner: u64, mode: LockMode, start: u64, end: u64) -> Lock {
    Lock { class: LockClass::Posix, mode, owner, pid: owner as u32 + 100, start, end }
}

fn flock(owner: u64, mode: LockMode) -> Lock {
    Lock { class: LockClass::Flock, ..posix(owner, mode, 0, u64::MAX) }
}

fn wait_for_waiters(table: &LockTable, ino: u64, count: usize) {
    let waiters = || table.shard(ino).lock().get(&ino).map_or(0, |file| file.waiters.len());
    while waiters() != count {
        thread::yield_now();
    }
}

use LockMode::{Exclusive, Shared};

#[test]
fn set_within_own_range_splits_and_again_merges() {
    let table = LockTable::new();
    table.try_set(INO, &posix(1, Exclusive, 0, 99)).unwrap();
    table.try_set(INO, &posix(1, Shared, 40, 59)).unwrap();
    let ranges = || table.shard(INO).lock().get(&INO).unwrap().ranges.clone();
    let spans = |locks: Vec<Lock>| locks.iter().map(|l| (l.start, l.end)).collect::<Vec<_>>();
    assert_eq!(spans(ranges()), [(0, 39), (40, 59), (60, 99)]);
    table.try_set(INO, &posix(2, Shared, 45, 50)).unwrap();
    assert_eq!(table.try_set(INO, &posix(2, Shared, 45, 60)), Err(Errno::AGAIN));
    table.release(INO, LockClass::Posix, 2);
    table.try_set(INO, &posix(1, Exclusive, 40, 59)).unwrap();
    assert_eq!(spans(ranges()), [(0, 99)]);
    table.unlock(INO, &posix(1, Shared, 0, u64::MAX)).unwrap();
    assert!(table.shard(INO).lock().is_empty(), "a file without locks takes no memory");
}

#[test]
fn conflict_reports_owner_and_pid() {
    let table = LockTable::new();
    let held = posix(1, Exclusive, 10, u64::MAX);
    table.try_set(INO, &held).unwrap();
    assert_eq!(table.conflict(INO, &posix(2, Shared, 0, 10)), Some(held));
    assert_eq!(table.conflict(INO, &posix(2, Shared, 0, 9)), None);
    assert_eq!(table.conflict(INO, &posix(1, Shared, 0, 10)), None);
    assert_eq!(table.conflict(INO + 32, &posix(2, Shared, 0, 10)), None);
    let open_file = Lock { class: LockClass::OpenFile, ..held };
    assert_eq!(table.conflict(INO, &open_file), Some(held), "the same number, another owner");
    assert_eq!(table.conflict(INO, &flock(2, Exclusive)), None, "flock is apart");
    assert_eq!(table.try_set(INO, &posix(1, Shared, 2, 1)), Err(Errno::INVAL));
}

#[test]
fn flock_conversion_drops_the_old_lock_first() {
    let table = LockTable::new();
    table.try_set(INO, &flock(1, Shared)).unwrap();
    table.try_set(INO, &flock(2, Shared)).unwrap();
    assert_eq!(table.try_set(INO, &flock(1, Exclusive)), Err(Errno::AGAIN));
    table.try_set(INO, &flock(2, Exclusive)).unwrap();
    table.release(INO, LockClass::Flock, 2);
    assert!(table.shard(INO).lock().is_empty());
}

#[test]
fn set_waits_until_unlock() {
    let _watchdog = Watchdog::start("set_waits_until_unlock", Duration::from_secs(60));
    let table = LockTable::new();
    table.try_set(INO, &posix(1, Exclusive, 0, 9)).unwrap();
    thread::scope(|scope| {
        for owner in 2..5 {
            let lock = posix(owner, Shared, 5, 5);
            let table = &table;
            scope.spawn(move || table.set(INO, &lock, &CancelToken::new()).unwrap());
        }
        wait_for_waiters(&table, INO, 3);
        table.unlock(INO, &posix(1, Shared, 0, 4)).unwrap();
        table.unlock(INO, &posix(1, Shared, 5, 5)).unwrap();
    });
    let shard = table.shard(INO).lock();
    assert_eq!((shard[&INO].ranges.len(), shard[&INO].waiters.len()), (4, 0));
    assert!(table.waits.lock().is_empty());
}

#[test]
fn cancelled_wait_is_eintr_and_leaves_nothing() {
    let _watchdog =
        Watchdog::start("cancelled_wait_is_eintr_and_leaves_nothing", Duration::from_secs(60));
    let table = LockTable::new();
    table.try_set(INO, &flock(1, Exclusive)).unwrap();
    table.try_set(INO, &posix(1, Exclusive, 0, 9)).unwrap();
    let cancel = CancelToken::new();
    thread::scope(|scope| {
        let flocks = scope.spawn(|| table.set(INO, &flock(2, Shared), &cancel));
        let ranges = scope.spawn(|| table.set(INO, &posix(2, Shared, 0, 0), &cancel));
        wait_for_waiters(&table, INO, 2);
        cancel.cancel();
        assert_eq!(flocks.join().unwrap(), Err(Errno::INTR));
        assert_eq!(ranges.join().unwrap(), Err(Errno::INTR));
    });
    assert_eq!(table.set(INO, &flock(2, Shared), &cancel), Err(Errno::INTR));
    assert!(table.waits.lock().is_empty());
    table.release(INO, LockClass::Flock, 1);
    table.release(INO, LockClass::Posix, 1);
    assert!(table.shard(INO).lock().is_empty());
}

#[test]
fn circle_of_posix_waits_is_edeadlk() {
    let _watchdog = Watchdog::start("circle_of_posix_waits_is_edeadlk", Duration::from_secs(60));
    for owners in 2..5 {
        let table = LockTable::new();
        for owner in 0..owners {
            table.try_set(owner, &posix(owner, Exclusive, 0, 0)).unwrap();
        }
        let token = CancelToken::new();
        thread::scope(|scope| {
            for owner in 0..owners - 1 {
                let (table, token) = (&table, token.clone());
                scope.spawn(move || {
                    table.set(owner + 1, &posix(owner, Shared, 0, 0), &token).unwrap();
                    table.release(owner + 1, LockClass::Posix, owner);
                    table.release(owner, LockClass::Posix, owner);
                });
                wait_for_waiters(table, owner + 1, 1);
            }
            let last = posix(owners - 1, Exclusive, 0, 0);
            assert_eq!(table.set(0, &last, &token), Err(Errno::DEADLK), "{owners} owners");
            table.release(owners - 1, LockClass::Posix, owners - 1);
        });
        assert!(table.waits.lock().is_empty());
        assert!((0..owners).all(|ino| table.shard(ino).lock().is_empty()));
    }
}

#[test]
fn woken_waiter_makes_no_false_circle() {
    let table = LockTable::new();
    table.try_set(1, &posix(1, Exclusive, 0, 0)).unwrap();
    // Owner 2 waits for owner 1, who unlocks; nothing waits for owner 1 from then on.
    let blockers = vec![(LockClass::Posix, 1)];
    table.begin_wait(&posix(2, Shared, 0, 0), 77, blockers).unwrap();
    let waiter = Waiter { number: 77, owner: 2, token: CancelToken::new() };
    table.shard(1).lock().get_mut(&1).unwrap().waiters.push(waiter);
    let blockers = vec![(LockClass::Posix, 2)];
    let circle = table.begin_wait(&posix(1, Shared, 0, 0), 78, blockers.clone());
    assert_eq!(circle, Err(Errno::DEADLK));
    table.release(1, LockClass::Posix, 1);
    assert_eq!(table.begin_wait(&posix(1, Shared, 0, 0), 79, blockers), Ok(()));
}

#[test]
fn exclusive_locks_exclude_threads() {
    let _watchdog = Watchdog::start("exclusive_locks_exclude_threads", Duration::from_secs(60));
    let (table, inside) = (LockTable::new(), AtomicU64::new(0));
    thread::scope(|scope| {
        for owner in 0..4 {
            let (table, inside) = (&table, &inside);
            scope.spawn(move || {
                let lock = posix(owner, Exclusive, owner % 2, 2);
                for _ in 0..500 {
                    table.set(INO, &lock, &CancelToken::new()).unwrap();
                    // ORDERING: Relaxed, both. The lock under test orders them.
                    assert_eq!(inside.fetch_add(1, Ordering::Relaxed), 0);
                    assert_eq!(inside.fetch_sub(1, Ordering::Relaxed), 1);
                    table.unlock(INO, &lock).unwrap();
                }
            });
        }
    });
    assert!(table.shard(INO).lock().is_empty());
}

const BYTES: u64 = 24;
const OWNERS: usize = 3;

proptest! {
    /// L.1 and L.2, and that every answer is that of a model of `BYTES` separate bytes.
    #[test]
    fn table_answers_as_separate_bytes(
        ops in prop::collection::vec(
            (0..OWNERS, 0..3u8, 0..BYTES, 0..BYTES), 1..120,
        ),
    ) {
        let table = LockTable::new();
        let mut model = [[None::<LockMode>; BYTES as usize]; OWNERS];
        for (owner, what, a, b) in ops {
            let range = a.min(b) as usize..=a.max(b) as usize;
            let mode = [Some(Shared), Some(Exclusive), None][usize::from(what)];
            let lock = posix(owner as u64, mode.unwrap_or(Shared), a.min(b), a.max(b));
            if let Some(mode) = mode {
                let is_blocked = (0..OWNERS).filter(|&other| other != owner).any(|other| {
                    model[other][range.clone()].iter().flatten().any(|&held| {
                        held == Exclusive || mode == Exclusive
                    })
                });
                prop_assert_eq!(table.conflict(INO, &lock).is_some(), is_blocked);
                let expected = if is_blocked { Err(Errno::AGAIN) } else { Ok(()) };
                prop_assert_eq!(table.try_set(INO, &lock), expected);
                if is_blocked {
                    continue;
                }
            } else {
                table.unlock(INO, &lock).unwrap();
            }
            model[owner][range].fill(mode);
            let mut held = [[None; BYTES as usize]; OWNERS];
            let ranges = table.shard(INO).lock().get(&INO).map_or(Vec::new(), |f| f.ranges.clone());
            for lock in &ranges {
                let bytes = &mut held[lock.owner as usize][lock.start as usize..=lock.end as usize];
                prop_assert!(bytes.iter().all(Option::is_none), "L.2: {:?}", ranges);
                bytes.fill(Some(lock.mode));
            }
            prop_assert_eq!(&held, &model);
            let pieces = model.iter().flat_map(|bytes| bytes.chunk_by(|a, b| a == b));
            prop_assert_eq!(ranges.len(), pieces.filter(|piece| piece[0].is_some()).count(), "L.2");
        }
    }
}
