//! Starts threads together, counts the outcomes of a race, and detects hangs.
//!
//! Threads that are spawned in a loop often do not overlap. [`run`] makes all threads wait at one
//! barrier, gives each its own random numbers, and collects their results.
//!
//! A thread of a test should end after a fixed number of rounds. Then a slow machine does the same
//! work as a fast one.
//!
//! A race that never happened proves nothing. So a [`Tally`] counts the outcomes, and panics if an
//! expected one was never reached.
//!
//! A deadlock must not hang the whole test run. So a test creates a [`Watchdog`] and drops it at
//! its end. If that takes too long, the watchdog prints the names and states of all threads and
//! aborts the process. It aborts because a blocked thread cannot be unwound, and a core file
//! contains the stacks.
//!
//! # Rejected
//!
//! Rejected: a function that sleeps until another thread is probably ready for a race. A test that
//! needs an order of its threads uses a channel or a barrier.
//!
//! Source: the traps T22 (a livelock) and P9 (deadlocks of rename) of `docs/developing/traps.md`,
//! whose tests must end in bounded time.

use crate::{
    real::{
        atomic::{AtomicU64, Ordering},
        thread,
    },
    rng::{ReportSeed, Rng, Seed},
};
use std::{
    fmt::Write as _,
    fs,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    process,
    sync::{Arc, Barrier, Condvar, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

/// The arguments of one thread of a race.
#[derive(Debug)]
pub struct Racer {
    /// The number of the thread, from zero.
    pub thread: usize,
    /// The thread's own random numbers.
    pub rng: Rng,
}

/// Runs `body` on `threads` threads that start together. Returns their results in the order of the
/// threads' numbers.
///
/// ```
/// use corewalk_testkit::{race, rng::Seed};
///
/// let numbers = race::run(3, Seed(1), |racer| racer.thread);
/// assert_eq!(numbers, [0, 1, 2]);
/// ```
///
/// # Panics
///
/// If a thread panics, prints the seed and panics with the same payload after all threads have
/// ended.
pub fn run<T: Send>(threads: usize, seed: Seed, body: impl Fn(Racer) -> T + Sync) -> Vec<T> {
    let root = Rng::new(seed);
    let start = Barrier::new(threads);
    let outcomes: Vec<thread::Result<T>> = thread::scope(|scope| {
        let racers: Vec<_> = (0..threads)
            .map(|number| {
                let (body, start) = (&body, &start);
                let racer = Racer { thread: number, rng: root.fork(number as u64) };
                let work = move || {
                    start.wait();
                    catch_unwind(AssertUnwindSafe(|| body(racer)))
                };
                thread::Builder::new()
                    .name(format!("racer {number}"))
                    .spawn_scoped(scope, work)
                    .expect("a thread can be created")
            })
            .collect();
        racers.into_iter().map(|racer| racer.join().and_then(|outcome| outcome)).collect()
    });
    let _report = ReportSeed::new(seed);
    outcomes
        .into_iter()
        .map(|outcome| outcome.unwrap_or_else(|payload| resume_unwind(payload)))
        .collect()
}

/// A guard that calls a function if its thread panics. The function may, for example, end other
/// threads that would wait for this one for ever.
///
/// # Examples
/// ```
/// use corewalk_testkit::race::OnPanic;
///
/// let _end = OnPanic(|| eprintln!("this thread has panicked"));
/// ```
#[derive(Debug)]
pub struct OnPanic<F: Fn()>(pub F);

impl<F: Fn()> Drop for OnPanic<F> {
    fn drop(&mut self) {
        if thread::panicking() {
            (self.0)();
        }
    }
}

/// Counts how often each outcome of a fixed list is reached.
///
/// ```
/// use corewalk_testkit::race::Tally;
///
/// let tally = Tally::new(["old", "new"]);
/// tally.hit("old");
/// tally.hit("new");
/// tally.assert_all_reached();
/// assert_eq!(tally.count("new"), 1);
/// ```
#[derive(Debug)]
pub struct Tally<const N: usize> {
    names: [&'static str; N],
    counts: [AtomicU64; N],
}

impl<const N: usize> Tally<N> {
    /// Returns a tally of the outcomes `names`, with all counts zero.
    pub const fn new(names: [&'static str; N]) -> Self {
        Self { names, counts: [const { AtomicU64::new(0) }; N] }
    }

    /// Counts the outcome `name`.
    ///
    /// # Panics
    ///
    /// Panics if `name` is not an outcome of this tally.
    pub fn hit(&self, name: &str) {
        // ORDERING: Relaxed. The count is read after the threads were joined.
        self.counts[self.position(name)].fetch_add(1, Ordering::Relaxed);
    }

    /// Returns how often `name` was reached.
    ///
    /// # Panics
    ///
    /// Panics if `name` is not an outcome of this tally.
    pub fn count(&self, name: &str) -> u64 {
        // ORDERING: Relaxed. The count is read after the threads were joined.
        self.counts[self.position(name)].load(Ordering::Relaxed)
    }

    /// Returns true if each outcome was reached.
    pub fn is_complete(&self) -> bool {
        self.names.iter().all(|name| self.count(name) > 0)
    }

    /// Asserts that each outcome was reached.
    ///
    /// # Panics
    ///
    /// Panics with all counts if one of them is zero.
    pub fn assert_all_reached(&self) {
        assert!(self.is_complete(), "an outcome was never reached: {}", self.counts_text());
    }

    /// Formats the counts as one line.
    pub fn counts_text(&self) -> String {
        let mut text = String::new();
        for name in self.names {
            let _ = write!(text, "{name}={} ", self.count(name));
        }
        text.truncate(text.trim_end().len());
        text
    }

    fn position(&self, name: &str) -> usize {
        self.names
            .iter()
            .position(|known| *known == name)
            .unwrap_or_else(|| panic!("unexpected outcome {name:?}"))
    }
}

/// A guard that aborts the process if it is not dropped within a given time.
///
/// # Locks
///
/// No other lock is taken while `shared.is_done` is locked.
#[derive(Debug)]
pub struct Watchdog {
    shared: Arc<WatchdogState>,
    thread: Option<thread::JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct WatchdogState {
    /// Protected by its own mutex.
    is_done: Mutex<bool>,
    changed: Condvar,
}

impl Watchdog {
    /// Starts a watchdog that aborts the process after `limit`. Its message names `subject`.
    ///
    /// # Panics
    ///
    /// Panics if no thread can be created.
    pub fn start(subject: &'static str, limit: Duration) -> Self {
        let shared = Arc::new(WatchdogState::default());
        let watched = Arc::clone(&shared);
        let thread = thread::Builder::new()
            .name("watchdog".to_owned())
            .spawn(move || {
                if !watched.wait_done(limit) {
                    abort_with_threads(subject, limit);
                }
            })
            .expect("a thread can be created");
        Self { shared, thread: Some(thread) }
    }
}

impl WatchdogState {
    fn wait_done(&self, limit: Duration) -> bool {
        let deadline = Instant::now() + limit;
        let mut is_done = self.lock();
        while !*is_done {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            let woken = self.changed.wait_timeout(is_done, left);
            is_done = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }

    fn lock(&self) -> MutexGuard<'_, bool> {
        self.is_done.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        *self.shared.lock() = true;
        self.shared.changed.notify_all();
        if let Some(thread) = self.thread.take() {
            // Ignore a panic of the watchdog's thread, because a second panic in a drop would abort
            // the process.
            let _ = thread.join();
        }
    }
}

/// Returns a line of text for each thread of this process: its tid, name and state, and the kernel
/// function in which it sleeps.
pub fn threads_text() -> String {
    let mut text = String::new();
    let Ok(tasks) = fs::read_dir("/proc/self/task") else { return text };
    for task in tasks.flatten() {
        let read = |name: &str| fs::read_to_string(task.path().join(name)).unwrap_or_default();
        let status = read("status");
        let state = status.lines().find_map(|line| line.strip_prefix("State:")).unwrap_or("?");
        let _ = writeln!(
            text,
            "  {} {:<16} {} {}",
            task.file_name().to_string_lossy(),
            read("comm").trim_end(),
            state.trim(),
            read("wchan"),
        );
    }
    text
}

/// Waits until the thread `handle`, whose name is `name`, sleeps in the kernel or has ended.
///
/// # Examples
///
/// ```
/// use corewalk_testkit::race::until_asleep;
/// use std::{sync::mpsc, thread};
///
/// let (sender, receiver) = mpsc::channel();
/// thread::scope(|scope| {
///     let builder = thread::Builder::new().name("receiver".to_owned());
///     let handle = builder.spawn_scoped(scope, move || receiver.recv()).unwrap();
///     until_asleep("receiver", &handle);
///     sender.send(1).unwrap();
///     assert_eq!(handle.join().unwrap(), Ok(1));
/// });
/// ```
pub fn until_asleep<T>(name: &str, handle: &thread::ScopedJoinHandle<'_, T>) {
    let is_asleep = |line: &str| line.contains(name) && line.contains(" S (sleeping)");
    while !handle.is_finished() && !threads_text().lines().any(is_asleep) {
        thread::yield_now();
    }
}

fn abort_with_threads(subject: &str, limit: Duration) -> ! {
    eprintln!("watchdog: {subject} did not finish within {limit:?}; threads:\n{}", threads_text());
    process::abort();
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(not(miri))]
    use crate::reexec::{self, Reexec};

    #[test]
    fn racers_get_distinct_numbers_and_streams() {
        let drawn = run(4, Seed(9), |mut racer| (racer.thread, racer.rng.next_u64()));
        assert_eq!(drawn.iter().map(|pair| pair.0).collect::<Vec<_>>(), [0, 1, 2, 3]);
        let again = run(4, Seed(9), |mut racer| (racer.thread, racer.rng.next_u64()));
        assert_eq!(drawn, again);
        assert_ne!(drawn[0].1, drawn[1].1);
    }

    #[test]
    fn racers_run_at_the_same_time() {
        // Each thread waits for the other at a barrier, so the test hangs if they do not run at the
        // same time.
        let _watchdog = Watchdog::start("two racers that meet", Duration::from_secs(60));
        let meet = Barrier::new(2);
        run(2, Seed(0), |_| meet.wait().is_leader());
    }

    #[test]
    #[should_panic(expected = "on purpose")]
    fn panic_of_a_racer_is_the_panic_of_the_race() {
        run(2, Seed(0), |racer| assert!(racer.thread == 0, "on purpose"));
    }

    #[test]
    #[should_panic(expected = "old=2 new=0")]
    fn control_outcome_never_reached_fails() {
        let tally = Tally::new(["old", "new"]);
        run(2, Seed(0), |_| tally.hit("old"));
        tally.assert_all_reached();
    }

    #[test]
    #[should_panic(expected = "unexpected outcome")]
    fn unknown_outcome_fails() {
        Tally::new(["old"]).hit("torn");
    }

    #[test]
    fn dropped_watchdog_does_not_abort() {
        drop(Watchdog::start("nothing", Duration::from_secs(3_600)));
    }

    #[cfg(not(miri))]
    #[test]
    fn deadlock_under_a_watchdog_aborts_and_names_the_threads() {
        const NAME: &str = "race::tests::deadlock_under_a_watchdog_aborts_and_names_the_threads";
        if reexec::role().is_some() {
            let _watchdog = Watchdog::start("a deadlock on purpose", Duration::from_millis(50));
            let never = Barrier::new(3);
            run(2, Seed(0), |_| never.wait().is_leader());
            return;
        }
        let child = Reexec::test(NAME).role("hang").timeout(Duration::from_secs(60)).run();
        assert_eq!(child.signal(), Some(reexec::SIGABRT), "{child}");
        for part in ["a deadlock on purpose did not finish", "racer 0", "racer 1"] {
            assert!(child.stderr.contains(part), "{child}");
        }
    }
}
