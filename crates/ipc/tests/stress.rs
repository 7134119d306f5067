//! Several threads use semaphores at the same time. A semaphore used as a lock must let in one
//! thread at a time. No unit of a semaphore may be lost, and undo must be exact.
//!
//! The seed determines the operations, but not the schedule of the threads; see
//! `docs/developing/testing.md`.

use corewalk_base::primitives::thread;
use corewalk_base::primitives::unmodelled::{AtomicU64, Ordering};
use corewalk_ipc::{
    Cred, GetFlags, IPC_PRIVATE, Namespace, NamespaceOptions, SemBuf, SemFlags, SemId, Task,
};
use corewalk_testkit::race::{self, Watchdog};
use corewalk_testkit::rng::{Rng, Seed};
use rustix::io::Errno;
use std::time::Duration;

const ROUNDS: u64 = 20_000;

fn namespace() -> Namespace {
    Namespace::new(NamespaceOptions::default()).unwrap()
}

fn task(namespace: &Namespace, pid: u32) -> Task {
    namespace.register(Cred::root(), pid).unwrap()
}

fn watchdog(name: &'static str) -> Watchdog {
    Watchdog::start(name, Duration::from_secs(120))
}

/// `enter` takes the lock, and `leave` releases it.
fn exclude(name: &'static str, sems: i32, enter: &[SemBuf], leave: &[SemBuf]) {
    let _watchdog = watchdog(name);
    let namespace = namespace();
    let maker = task(&namespace, 9);
    let id = maker.semget(IPC_PRIVATE, sems, GetFlags::empty(), 0o600).unwrap();
    maker.sem_setall(id, &vec![1; sems as usize]).unwrap();
    let counter = AtomicU64::new(0);
    race::run(2, Seed::choose(), |racer| {
        let task = task(&namespace, 1 + racer.thread as u32);
        for _ in 0..ROUNDS {
            task.semop(id, enter).unwrap();
            // ORDERING: Relaxed. The load and the store are separate, so a semaphore that let in
            // both threads would lose an increment.
            let seen = counter.load(Ordering::Relaxed);
            // ORDERING: Relaxed. As above.
            counter.store(seen + 1, Ordering::Relaxed);
            task.semop(id, leave).unwrap();
        }
    });
    // ORDERING: Relaxed. The threads have ended.
    assert_eq!(counter.load(Ordering::Relaxed), 2 * ROUNDS);
    assert_eq!(maker.sem_getall(id).unwrap(), vec![1; sems as usize]);
    assert_eq!(maker.sem_getncnt(id, 0), Ok(0));
}

#[test]
fn semaphore_as_a_lock_keeps_others_out() {
    exclude(
        "lock",
        1,
        &[SemBuf::new(0, -1, SemFlags::empty())],
        &[SemBuf::new(0, 1, SemFlags::empty())],
    );
}

#[test]
fn semaphore_as_a_lock_with_undo_keeps_others_out() {
    exclude(
        "lock, undo",
        1,
        &[SemBuf::new(0, -1, SemFlags::UNDO)],
        &[SemBuf::new(0, 1, SemFlags::UNDO)],
    );
}

#[test]
fn two_semaphores_as_a_lock_keep_others_out() {
    let both = |op, flags| [SemBuf::new(1, op, flags), SemBuf::new(0, op, SemFlags::empty())];
    exclude("two locks", 2, &both(-1, SemFlags::UNDO), &both(1, SemFlags::UNDO));
}

/// Threads move tokens between semaphores by all kinds of calls. No token may be lost or
/// duplicated.
#[test]
fn tokens_that_are_moved_are_conserved() {
    const SEMS: u16 = 3;
    const TOKENS: u64 = 12;
    let _watchdog = watchdog("tokens");
    let namespace = namespace();
    let maker = task(&namespace, 9);
    let id = maker.semget(IPC_PRIVATE, i32::from(SEMS), GetFlags::empty(), 0o600).unwrap();
    maker.sem_setall(id, &[4; SEMS as usize]).unwrap();
    // The tasks must live until the test has summed up the values. The undo at their end clamps
    // negative values to 0, which would change the sum.
    let tasks = [task(&namespace, 1), task(&namespace, 2)];
    let moved = race::run(2, Seed::choose(), |mut racer| {
        let task = &tasks[racer.thread];
        let mut moved = 0u64;
        for _ in 0..ROUNDS {
            let from = racer.rng.below(u64::from(SEMS)) as u16;
            let to = racer.rng.below(u64::from(SEMS)) as u16;
            let undo = if racer.rng.below(2) == 0 { SemFlags::UNDO } else { SemFlags::empty() };
            let take = SemBuf::new(from, -1, SemFlags::NOWAIT | undo);
            let give = SemBuf::new(to, 1, undo);
            let done = match racer.rng.below(3) {
                0 => task.semop(id, &[take, give]),
                1 => task.semop(id, &[give, take]),
                _ => task.semop(id, &[take]).and_then(|()| task.semop(id, &[give])),
            };
            match done {
                Ok(()) => moved += 1,
                Err(Errno::AGAIN | Errno::RANGE) => {}
                Err(other) => panic!("{other}"),
            }
            if racer.rng.below(100) == 0 {
                let sum: u64 = task.sem_getall(id).unwrap().into_iter().map(u64::from).sum();
                // At this moment, each of the two threads may hold one unit that it has taken from
                // one semaphore and not yet added to another.
                assert!((TOKENS - 2..=TOKENS).contains(&sum), "{sum} tokens");
            }
        }
        moved
    });
    assert!(moved.iter().all(|moved| *moved > ROUNDS / 2), "{moved:?}");
    let sum: u64 = maker.sem_getall(id).unwrap().into_iter().map(u64::from).sum();
    assert_eq!(sum, TOKENS);
}

/// A task may end at any point. Its undo must then restore the values that the semaphores had
/// before the task.
#[test]
fn undo_of_tasks_that_end_is_exact() {
    let _watchdog = watchdog("undo");
    let namespace = namespace();
    let maker = task(&namespace, 9);
    let id = maker.semget(IPC_PRIVATE, 2, GetFlags::empty(), 0o600).unwrap();
    maker.sem_setall(id, &[1000, 1000]).unwrap();
    race::run(2, Seed::choose(), |mut racer| {
        for _ in 0..200 {
            let task = task(&namespace, 1 + racer.thread as u32);
            for _ in 0..racer.rng.below(40) {
                let num = racer.rng.below(2) as u16;
                let op = racer.rng.below(9) as i16 - 4;
                let one = SemBuf::new(num, op, SemFlags::UNDO | SemFlags::NOWAIT);
                let done = match racer.rng.below(3) {
                    0 => task.semop(id, &[one, SemBuf { sem_num: 1 - num, ..one }]),
                    _ => task.semop(id, &[one]),
                };
                assert!(matches!(done, Ok(()) | Err(Errno::AGAIN)), "{done:?}");
            }
        }
    });
    assert_eq!(maker.sem_getall(id).unwrap(), [1000, 1000]);
}

/// The event for which the thread `remover` waits before it removes a set. The sets take turns, so
/// that all outcomes occur.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Awaited {
    /// The thread `user` has carried out an operation.
    Done,
    /// The thread `user` waits in a call, which the removal then ends.
    Waits,
    /// No event: the removal races with the operations.
    Nothing,
}

const AWAITED: [Awaited; 3] = [Awaited::Done, Awaited::Waits, Awaited::Nothing];

/// `remover` publishes one word for each set: its id in the low 32 bits, and an index into
/// [`AWAITED`] in the high 32 bits.
const AWAITED_SHIFT: u32 = 32;

/// The number of calls of the thread `user` with each outcome.
#[derive(Default)]
struct Outcomes {
    done: AtomicU64,
    invalid: AtomicU64,
    removed: AtomicU64,
}

fn get(count: &AtomicU64) -> u64 {
    // ORDERING: Relaxed. Only one thread counts, and the count orders no other memory access.
    count.load(Ordering::Relaxed)
}

fn until(is_reached: impl Fn() -> bool) {
    while !is_reached() {
        thread::yield_now();
    }
}

/// While one thread removes sets, calls of another thread on these sets must end with the right
/// error. Traps I3 and I10 in `traps.md`.
#[test]
fn sets_that_are_removed_under_operations_end_them() {
    const SETS: usize = 600;
    let _watchdog = watchdog("removal");
    let namespace = namespace();
    let (remover, user) = (task(&namespace, 1), task(&namespace, 2));
    // The id of the present set, or 0 before the first.
    let (current, outcomes) = (AtomicU64::new(0), Outcomes::default());
    race::run(2, Seed::choose(), |mut racer| {
        if racer.thread == 1 {
            use_sets(&user, &current, &outcomes, &mut racer.rng);
            return;
        }
        for round in 0..SETS {
            let at = round % AWAITED.len();
            let id = remover.semget(IPC_PRIVATE, 2, GetFlags::empty(), 0o600).unwrap();
            assert_eq!(remover.sem_getall(id).unwrap(), [0, 0], "a new set is not zero");
            let done = get(&outcomes.done);
            // ORDERING: Relaxed. `user` may read the id of any of the sets.
            current.store(id.raw() as u64 | (at as u64) << AWAITED_SHIFT, Ordering::Relaxed);
            for _ in 0..1 + racer.rng.below(30) {
                remover.semop(id, &[SemBuf::new(0, 1, SemFlags::empty())]).unwrap();
            }
            match AWAITED[at] {
                Awaited::Done => until(|| get(&outcomes.done) != done),
                Awaited::Waits => until(|| user.waiting() != 0),
                Awaited::Nothing => (0..racer.rng.below(8)).for_each(|_| thread::yield_now()),
            }
            let (invalid, removed) = (get(&outcomes.invalid), get(&outcomes.removed));
            remover.sem_rmid(id).unwrap();
            if AWAITED[at] == Awaited::Waits {
                until(|| get(&outcomes.removed) != removed);
            }
            // Leave the id of the removed set published until the thread `user` has made a call
            // with it, which fails with `EINVAL`.
            until(|| get(&outcomes.invalid) != invalid);
        }
        // ORDERING: Relaxed. As above.
        current.store(u64::MAX, Ordering::Relaxed);
    });
    let Outcomes { done, invalid, removed } = &outcomes;
    let counts = [done, invalid, removed].map(get);
    println!("done, EINVAL, EIDRM: {counts:?}");
    let third = (SETS / AWAITED.len()) as u64;
    assert!(counts[0] >= third && counts[2] >= third, "not reached: {counts:?}");
}

fn use_sets(user: &Task, current: &AtomicU64, outcomes: &Outcomes, rng: &mut Rng) {
    loop {
        // ORDERING: Relaxed. This thread may read the id of any of the sets.
        let seen = current.load(Ordering::Relaxed);
        if seen == u64::MAX {
            return;
        }
        let undo = if rng.below(2) == 0 { SemFlags::UNDO } else { SemFlags::empty() };
        // `remover` adds units to semaphore 0 only, so an operation on it can succeed.
        let is_given = AWAITED[(seen >> AWAITED_SHIFT) as usize] == Awaited::Done;
        let num = if is_given { 0 } else { rng.below(2) as u16 };
        let (id, one) = (SemId::from_raw(seen as u32 as i32), SemBuf::new(num, -1, undo));
        let done = match rng.below(2) {
            0 => user.semop(id, &[one]),
            _ => user.semop(id, &[one, SemBuf::new(1, 0, SemFlags::empty())]),
        };
        let outcome = match done {
            Ok(()) => &outcomes.done,
            Err(Errno::INVAL) => {
                // Lets the remover make the next set.
                thread::yield_now();
                &outcomes.invalid
            }
            Err(Errno::IDRM) => &outcomes.removed,
            Err(other) => panic!("{other}"),
        };
        // ORDERING: Relaxed. See `get`.
        outcome.fetch_add(1, Ordering::Relaxed);
    }
}
