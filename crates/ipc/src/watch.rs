//! The watcher: one waiting call that looks for dead tasks on behalf of all.
//!
//! A waiting call sleeps until another process wakes it. If that process is killed, the kernel does
//! not tell the sleeping call. Each waiting call could check for dead tasks ten times a second, but
//! then hundreds of idle calls would keep a processor busy.
//!
//! # The ladder
//! The namespace has a ladder of [`RUNGS`] words, the rungs. A waiting call can hold a rung. The
//! rung then contains the time at which the call last took it.
//!
//! Each waiting call sleeps for a span of time, its *turn*: [`TURN_NS`] on the lowest rung, and
//! twice as long on each higher rung. A call without a rung sleeps twice as long as on the highest
//! rung.
//!
//! After its turn, a call takes a rung again: its own, or a lower one whose holder is late. A
//! holder is late if it has not taken its rung again within 1.25 turns.
//!
//! The watcher is the waiting call that holds the lowest rung. If the watcher dies or its call
//! ends, the time in that rung gets old. The call on the next rung then takes the lowest rung when
//! it wakes up. If all holders of rungs are killed, the next call that wakes up becomes the
//! watcher.
//!
//! The holders of rungs together wake up fewer than 20 times a second. Each call without a rung
//! wakes up once in 12.8 s. A call takes a rung only after it has waited for 100 ms.
//!
//! # The look
//! [`look`] makes all checks that each waiting call would otherwise have to make for itself:
//! - It wakes calls that were completed by a process that died before it woke them.
//! - It repairs a set or queue at which a call waits and whose lock a dead task holds.
//! - It completes the removal of such an object if a dead task has begun it.
//! - It reaps (cleans up after) dead tasks that had a completed call, or have undo adjustments for
//!   a set at which a call waits.
//!
//! # Locks
//! The caller of [`look`] holds no lock. A wrong time in a rung only delays a
//! check or adds one.
//!
//! Source: none. The watcher's role (the search for dead tasks) is a lease (Gray, Cheriton, 1989).

use corewalk_base::futex::{self, Deadline, Scope};
use corewalk_base::primitives::atomic::{AtomicU64, Ordering};
use std::collections::BTreeSet;

use crate::field::get;
use crate::lock::Owner;
use crate::process::Look;
use crate::recover;
use crate::shared::Shared;
use crate::{msg, sem};

/// The time between two checks by the watcher.
pub(crate) const TURN_NS: u64 = 100_000_000;

/// The number of rungs.
const RUNGS: usize = 7;

const MS_NS: u64 = 1_000_000;

/// The time between two close checks for dead tasks, in milliseconds. A close check reads `/proc`
/// to detect reused pids.
const CLOSE_LOOK_MS: u64 = 1000;

/// The turns of a waiting call, and the rung of the ladder that the call holds.
pub(crate) struct Turn {
    rung: usize,
    /// The time that this call last stored in its rung. The call holds the
    /// rung as long as the word contains this time.
    since_ms: u64,
}

impl Turn {
    pub(crate) fn first() -> Self {
        Self { rung: 0, since_ms: u64::MAX }
    }

    /// Returns the time at which the call's sleep must end: after its turn or at `deadline`,
    /// whichever is earlier. In a private namespace the sleep ends at `deadline`.
    pub(crate) fn end(&self, scope: Scope, deadline: Deadline) -> Deadline {
        match scope {
            Scope::Private => deadline,
            Scope::Shared => {
                let end = futex::now().monotonic_ns.saturating_add(TURN_NS << self.rung);
                deadline.min(Deadline { monotonic_ns: end })
            }
        }
    }

    /// Returns true if the caller now holds the lowest rung. It is then the
    /// watcher, and must call [`look`].
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
        // `now_ms - seen` wraps to a large number if `seen` is in the future. So the holder counts
        // as late. Only a hostile process stores such a time.
        let is_late = now_ms.wrapping_sub(seen) >= turn_ms + turn_ms / 4;
        // ORDERING: Relaxed. The word publishes no data.
        let exchange = || word.compare_exchange(seen, now_ms, Ordering::Relaxed, Ordering::Relaxed);
        (is_own || is_late) && exchange().is_ok()
    }
}

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
        // Overwrite the time that the watcher has stored in its rung. With 0,
        // and with a time in the future, the watcher must count as late, so that another call
        // becomes the watcher.
        for wrong in [0, u64::MAX] {
            let now_ms = || futex::now().monotonic_ns / MS_NS;
            // `next` will store the current time in the rung. If `watcher` has
            // stored the same time there, `watcher` would still believe that it holds the rung. So
            // wait until the time has changed.
            while now_ms() <= watcher.since_ms {
                thread::yield_now();
            }
            put(&shared.region.line(shared.layout.ladder)[0], wrong);
            assert!(next.is_watcher(shared), "{wrong}");
            assert!(!watcher.is_watcher(shared), "{wrong}");
            std::mem::swap(&mut watcher, &mut next);
        }
    }

    /// `look` must wake the task of a call that was completed by a process that died before it woke
    /// the task.
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
            // The test changes no status word, so only a wake-up by `look` can end this sleep.
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
            // Check first whether `look` has cleaned up after the dead task, because `GETVAL` would
            // do so, too.
            let is_reaped = !crate::task_line::pids(&other.shared).contains(&1);
            assert_eq!(is_reaped, is_awaited);
            assert_eq!(other.sem_getval(held, 1), Ok(0));
        }
    }
}
