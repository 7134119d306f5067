//! The watcher: one waiting call that looks for dead tasks on behalf of all.
//!
//! A waiting call sleeps until another process wakes it. If that process is killed, the kernel does
//! not tell the sleeping call. If each waiting call checked for dead tasks ten times a second,
//! hundreds of idle calls would keep a processor busy.
//!
//! # The ladder
//!
//! The namespace has [`RUNGS`] words, its rungs. Each one contains the time at which a waiting call
//! last took the rung. A waiting call sleeps for a span of time, its *turn*. Then it takes the
//! lowest rung that is its own, or whose holder is late. Its next turn lasts [`TURN_NS`] on the
//! lowest rung, and on each higher rung twice as long as on the one below. The holder of the lowest
//! rung is the watcher. A call that finds no rung sleeps for twice the turn of the highest rung.
//!
//! A rung does not name its holder, so the death of a watcher needs no repair. The time in the dead
//! watcher's rung gets old. Then the holder of the next rung takes the lowest one at the end of its
//! turn. The same happens when the watcher's call ends. If all holders are killed at once, the next
//! call whose turn ends becomes the watcher.
//!
//! All waiting calls of a namespace together wake fewer than 20 times a second. A call without a
//! rung wakes once in 12.8 s. A call that is woken within its first turn takes no rung and has no
//! cost.
//!
//! # The look
//!
//! [`look`] does for all waiting calls the checks that each call would have to make for itself:
//! - It wakes calls that were completed. The completing process may have been killed before its
//!   wake-up.
//! - It takes the locks of awaited sets and queues from dead holders, which repairs the objects.
//! - It completes the removal of awaited objects if a dead task has begun it.
//! - It reaps dead tasks that have adjustments of awaited sets, or unacknowledged grants.
//!
//! # Locks
//!
//! The caller holds no lock. The words of the ladder are hints: a wrong one causes a needless check
//! or delays one.
//!
//! Source: none; leases as in Gray and Cheriton, 1989, for roles that expire.

use corewalk_base::futex::{self, Deadline, Scope};
use corewalk_base::primitives::atomic::{AtomicU64, Ordering};
use std::collections::BTreeSet;

use crate::field::get;
use crate::lock::Owner;
use crate::process::Look;
use crate::recover;
use crate::shared::Shared;
use crate::{msg, sem};

/// The time between two checks of the watcher. While there is a watcher, it notices a death within
/// this time.
pub(crate) const TURN_NS: u64 = 100_000_000;

/// The number of rungs.
const RUNGS: usize = 7;

const MS_NS: u64 = 1_000_000;

/// The time between two close checks. Only a close check detects that a pid was reused.
const CLOSE_LOOK_MS: u64 = 1000;

/// The place of a waiting call on the ladder.
pub(crate) struct Turn {
    rung: usize,
    /// The time that this call has stored in its rung (a word of the ladder). By this time, the
    /// call recognizes that it still holds the rung.
    since_ms: u64,
}

impl Turn {
    /// Returns the state of a call that begins to wait: it holds no rung of the ladder, and its
    /// first sleep is as long as the watcher's.
    pub(crate) fn first() -> Self {
        Self { rung: 0, since_ms: u64::MAX }
    }

    /// Returns the time at which a sleep that begins now must end: when the call must look at the
    /// ladder again, or at `deadline` if that is earlier.
    pub(crate) fn end(&self, scope: Scope, deadline: Deadline) -> Deadline {
        match scope {
            Scope::Private => deadline,
            Scope::Shared => {
                let end = futex::now().monotonic_ns.saturating_add(TURN_NS << self.rung);
                deadline.min(Deadline { monotonic_ns: end })
            }
        }
    }

    /// Takes a rung of the ladder if it can. The caller has slept until its time to look at the
    /// ladder. Returns true if the caller is now the watcher. Then the caller must call [`look`].
    #[cold]
    pub(crate) fn is_watcher(&mut self, shared: &Shared) -> bool {
        let now_ms = futex::now().monotonic_ns / MS_NS;
        let ladder = shared.region.line(shared.layout.ladder);
        let free = (0..RUNGS).find(|rung| self.takes(&ladder[*rung], *rung, now_ms));
        (self.rung, self.since_ms) = (free.unwrap_or(RUNGS), now_ms);
        free == Some(0)
    }

    fn takes(&self, word: &AtomicU64, rung: usize, now_ms: u64) -> bool {
        let seen = get(word);
        let is_own = rung == self.rung && seen == self.since_ms;
        let turn_ms = (TURN_NS / MS_NS) << rung;
        // Only a hostile process stores a time in the future. For such a time the subtraction
        // wraps, so the holder of the rung counts as late.
        let is_late = now_ms.wrapping_sub(seen) >= turn_ms + turn_ms / 4;
        // ORDERING: Relaxed. The word only decides which call checks; no data is published with it.
        let exchange = || word.compare_exchange(seen, now_ms, Ordering::Relaxed, Ordering::Relaxed);
        (is_own || is_late) && exchange().is_ok()
    }
}

/// Checks for dead tasks on behalf of all waiting calls. The caller holds no lock.
#[cold]
pub(crate) fn look(shared: &Shared, owner: Owner) {
    let mut suspects = BTreeSet::from_iter(sem::look_at_waits(shared, owner));
    suspects.extend(msg::look_at_waits(shared, owner));
    let now_ms = futex::now().monotonic_ns / MS_NS;
    let is_close = now_ms % CLOSE_LOOK_MS < TURN_NS / MS_NS;
    let look = if is_close { Look::Close } else { Look::Quick };
    for task in suspects.into_iter().filter(|task| shared.is_gone(*task, look)) {
        // If this fails, a later check tries again.
        let _reaped = recover::reap(shared, owner, task);
    }
}

#[cfg(all(test, not(any(miri, corewalk_loom, corewalk_shuttle, corewalk_crash))))]
mod tests {
    use super::*;
    use crate::field::put;
    use crate::sem::dead::{kill, wait_without_sleep};
    use crate::status::STATUS;
    use crate::{
        Capacity, Cred, GetFlags, IPC_PRIVATE, Namespace, NamespaceOptions, SemBuf, SemFlags, Task,
    };
    use corewalk_base::primitives::thread;
    use corewalk_testkit::race::Watchdog;
    use rustix::fs::{MemfdFlags, memfd_create};
    use std::time::Duration;

    const DOWN: SemBuf = SemBuf::new(0, -1, SemFlags::empty());

    fn two() -> (Namespace, Task, Task) {
        let capacity = Capacity {
            sets: 2,
            sems: 8,
            undos: 8,
            waits: 16,
            queues: 1,
            msgs: 16,
            tasks: 4,
            ..Capacity::LEAST
        };
        let options = NamespaceOptions { capacity, ..NamespaceOptions::default() };
        let file = memfd_create("watch", MemfdFlags::CLOEXEC).unwrap();
        let namespace = Namespace::open_fd(&file, options).unwrap();
        let task = |pid| namespace.register(Cred::root(), pid).unwrap();
        let (one, other) = (task(1), task(2));
        (namespace, one, other)
    }

    #[test]
    fn calls_take_rungs_from_the_lowest_and_the_rest_sleep_longest() {
        let (namespace, ..) = two();
        let mut turns: Vec<Turn> = (0..RUNGS + 2).map(|_| Turn::first()).collect();
        let watch: Vec<bool> =
            turns.iter_mut().map(|turn| turn.is_watcher(namespace.shared())).collect();
        assert_eq!(watch.iter().filter(|is_watcher| **is_watcher).count(), 1);
        let rungs: Vec<usize> = turns.iter().map(|turn| turn.rung).collect();
        assert_eq!(rungs, [0, 1, 2, 3, 4, 5, 6, RUNGS, RUNGS]);
        let (now, last) = (futex::now(), turns[RUNGS].end(Scope::Shared, Deadline::NEVER));
        assert!(last.monotonic_ns - now.monotonic_ns >= TURN_NS << RUNGS);
    }

    #[test]
    fn watcher_stays_watcher_and_is_replaced_once_it_is_late() {
        let (namespace, ..) = two();
        let shared = namespace.shared();
        let (mut watcher, mut next) = (Turn::first(), Turn::first());
        assert!(watcher.is_watcher(shared) && watcher.is_watcher(shared));
        assert!(!next.is_watcher(shared), "the watcher is in time");
        // The time 0 means that the watcher is late. A hostile process may store a time in the
        // future.
        for wrong in [0, u64::MAX] {
            let now_ms = || futex::now().monotonic_ns / MS_NS;
            // Wait for the next millisecond, since the watcher recognizes its rung by the time in
            // it. It would take an equal time for its own.
            while now_ms() <= watcher.since_ms {
                thread::yield_now();
            }
            put(&shared.region.line(shared.layout.ladder)[0], wrong);
            assert!(next.is_watcher(shared), "{wrong}");
            assert!(!watcher.is_watcher(shared), "{wrong}");
            std::mem::swap(&mut watcher, &mut next);
        }
    }

    /// If a process completed a call and was killed before it woke the call's task, `look` must
    /// wake that task.
    #[test]
    fn look_wakes_a_call_that_was_completed_and_not_woken() {
        let _watchdog = Watchdog::start("calls that were not woken", Duration::from_secs(300));
        let (_namespace, one, other) = two();
        let id = one.semget(IPC_PRIVATE, 1, GetFlags::empty(), 0o600).unwrap();
        let line = wait_without_sleep(&one, id, &[DOWN]);
        let word = &other.shared.region.line(line)[STATUS];
        let shared = &*other.shared;
        thread::scope(|scope| {
            put(word, 1);
            // The status word does not change, so only a wake-up ends this sleep.
            let sleeps = scope.spawn(|| futex::wait(word, 1, Deadline::NEVER, Scope::Shared));
            while !sleeps.is_finished() {
                look(shared, other.owner);
                thread::yield_now();
            }
        });
    }

    #[test]
    fn look_reaps_the_dead_that_hold_adjustments_of_awaited_sets() {
        for is_awaited in [true, false] {
            let (_namespace, one, other) = two();
            let [held, free] =
                [(); 2].map(|()| other.semget(IPC_PRIVATE, 2, GetFlags::empty(), 0o600).unwrap());
            one.semop(held, &[SemBuf::new(1, 5, SemFlags::UNDO)]).unwrap();
            wait_without_sleep(&other, if is_awaited { held } else { free }, &[DOWN]);
            kill(one);
            look(&other.shared, other.owner);
            // `GETVAL` would reap the task itself, so the test calls it after this check.
            let is_reaped = !crate::task_line::pids(&other.shared).contains(&1);
            assert_eq!(is_reaped, is_awaited);
            assert_eq!(other.sem_getval(held, 1), Ok(0));
        }
    }
}
