//! Recording what several threads asked and what they were told.
//!
//! A history is a set of calls, each with the time it was invoked, the time it returned, the
//! operation and the answer. Times come from one logical [`Clock`], a counter, so that the order of
//! any two events of the history is known exactly; wall-clock time is too coarse on one machine
//! and differs between cores on others. Each thread writes into a buffer of its own
//! ([`Recorder`]), and the buffers are joined when the threads are done.
//!
//! # Guarantees
//!
//! - A.1: a call that returned before another was invoked, in the sense of happens-before or of
//!   one thread's program order, has `returned < invoked` of the other.
//! - A.2: if `returned` of one call is less than `invoked` of another, then the first happens
//!   before the second. So a checker may demand that the second sees the first.
//! - A.3: a call whose thread panicked inside it stays in the history without an answer; it may
//!   have taken effect or not.
//!
//! # What recording disturbs
//!
//! Two read-modify-writes of one shared line per call. They order the calls of different threads
//! more strongly than the code under test may do by itself, so a missing barrier can hide behind
//! the recording: weak orderings are for the model checker, wrong answers are for this.
//!
//! Source: Herlihy and Wing, "Linearizability: a correctness condition for concurrent objects",
//! 1990.

use crate::real::atomic::{AtomicU64, Ordering, fence};
use std::fmt::{self, Debug};

/// The logical clock that one history is timed by.
#[derive(Debug, Default)]
pub struct Clock {
    ticks: AtomicU64,
}

impl Clock {
    /// Returns a clock at zero.
    pub const fn new() -> Self {
        Self { ticks: AtomicU64::new(0) }
    }

    /// Returns the time and moves the clock on; no two calls return the same time.
    pub fn tick(&self) -> u64 {
        // ORDERING: AcqRel, paired with itself. What a thread did before its tick happens
        // before what any thread does after a later tick; that is guarantee A.2.
        self.ticks.fetch_add(1, Ordering::AcqRel)
    }

    /// Returns how many ticks there have been, and leaves the clock as it is.
    ///
    /// What a thread did before a tick that is counted happens before what follows this call; and a
    /// tick after which another thread did something that is known here by now is counted. So
    /// readers that store nothing can be placed among the ticks of writers.
    pub fn now(&self) -> u64 {
        // ORDERING: Acquire fence. Whatever an earlier read of this thread saw, relaxed ones
        // included, the ticks before the store of it are seen below.
        fence(Ordering::Acquire);
        // ORDERING: Acquire, paired with `tick`.
        self.ticks.load(Ordering::Acquire)
    }
}

/// One call of a history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call<O, R> {
    /// The number of the thread that made the call.
    pub thread: usize,
    /// The time just before the call.
    pub invoked: u64,
    /// The time just after it; `u64::MAX` for a call that never returned.
    pub returned: u64,
    /// What was asked.
    pub op: O,
    /// What was answered; none for a call that never returned.
    pub ret: Option<R>,
}

impl<O, R> Call<O, R> {
    /// Returns a finished call; for histories written by hand.
    pub fn finished(thread: usize, invoked: u64, returned: u64, op: O, ret: R) -> Self {
        Self { thread, invoked, returned, op, ret: Some(ret) }
    }

    /// Returns a call that never returned; for histories written by hand.
    pub fn pending(thread: usize, invoked: u64, op: O) -> Self {
        Self { thread, invoked, returned: u64::MAX, op, ret: None }
    }
}

impl<O: Debug, R: Debug> fmt::Display for Call<O, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.ret {
            Some(ret) => write!(
                f,
                "[{:>6} .. {:>6}] thread {:<3} {:?} -> {:?}",
                self.invoked, self.returned, self.thread, self.op, ret
            ),
            None => {
                write!(f, "[{:>6} ..  never] thread {:<3} {:?}", self.invoked, self.thread, self.op)
            }
        }
    }
}

/// The buffer of one thread.
///
/// ```
/// use corewalk_testkit::history::{Clock, History, Recorder};
///
/// let clock = Clock::new();
/// let mut recorder = Recorder::new(&clock, 0, 16);
/// let sum = recorder.call((2, 3), || 2 + 3);
/// assert_eq!(sum, 5);
/// let history = History::join([recorder]);
/// assert_eq!(history.calls()[0].ret, Some(5));
/// ```
#[derive(Debug)]
pub struct Recorder<'c, O, R> {
    clock: &'c Clock,
    thread: usize,
    calls: Vec<Call<O, R>>,
}

impl<'c, O, R: Clone> Recorder<'c, O, R> {
    /// Returns an empty buffer for thread number `thread`, with room for `capacity` calls.
    ///
    /// The room is taken at once, so that recording does not allocate until it is used up.
    pub fn new(clock: &'c Clock, thread: usize, capacity: usize) -> Self {
        Self { clock, thread, calls: Vec::with_capacity(capacity) }
    }

    /// Runs `call`, which does what `op` says, records it and returns its answer.
    pub fn call(&mut self, op: O, call: impl FnOnce() -> R) -> R {
        let invoked = self.clock.tick();
        self.calls.push(Call::pending(self.thread, invoked, op));
        let ret = call();
        let returned = self.clock.tick();
        let last = self.calls.last_mut().expect("the call was pushed above");
        last.returned = returned;
        last.ret = Some(ret.clone());
        ret
    }
}

/// The calls of all threads, in the order in which they were invoked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct History<O, R> {
    calls: Vec<Call<O, R>>,
}

impl<O, R> History<O, R> {
    /// Returns the history that the recorders hold together.
    pub fn join<'c>(recorders: impl IntoIterator<Item = Recorder<'c, O, R>>) -> Self
    where
        O: 'c,
        R: 'c,
    {
        Self::from_calls(recorders.into_iter().flat_map(|recorder| recorder.calls).collect())
    }

    /// Returns the history of `calls`, given in any order.
    ///
    /// # Panics
    ///
    /// Panics if a call returned before it was invoked, or if a thread made two calls at once:
    /// such a list is not a history.
    pub fn from_calls(mut calls: Vec<Call<O, R>>) -> Self {
        calls.sort_by_key(|call| (call.invoked, call.returned));
        let threads = calls.iter().map(|call| call.thread).max().map_or(0, |last| last + 1);
        let mut free_at = vec![0; threads];
        for call in &calls {
            assert!(call.invoked < call.returned, "a call returned before it was invoked");
            assert!(
                call.invoked >= free_at[call.thread],
                "thread {} made two calls at once",
                call.thread
            );
            free_at[call.thread] = call.returned;
        }
        Self { calls }
    }

    /// Returns the calls, ordered by the time they were invoked.
    pub fn calls(&self) -> &[Call<O, R>] {
        &self.calls
    }

    /// Returns the number of calls.
    pub fn len(&self) -> usize {
        self.calls.len()
    }

    /// Returns true if nothing was recorded.
    pub fn is_empty(&self) -> bool {
        self.calls.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::real::thread;
    use std::panic::{AssertUnwindSafe, catch_unwind};

    #[test]
    fn calls_of_two_threads_joined_have_distinct_times_in_order() {
        let clock = Clock::new();
        let recorders: Vec<_> = thread::scope(|scope| {
            let threads: Vec<_> = (0..2)
                .map(|thread| {
                    let clock = &clock;
                    scope.spawn(move || {
                        let mut recorder = Recorder::new(clock, thread, 100);
                        (0..100).for_each(|number| {
                            recorder.call(number, || number * 2);
                        });
                        recorder
                    })
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
        });
        let history = History::join(recorders);
        assert_eq!(history.len(), 200);
        let mut times: Vec<u64> =
            history.calls().iter().flat_map(|call| [call.invoked, call.returned]).collect();
        times.sort_unstable();
        assert_eq!(times, (0..400).collect::<Vec<_>>());
    }

    #[test]
    fn now_counts_ticks_and_is_none() {
        let clock = Clock::new();
        assert_eq!((clock.now(), clock.tick(), clock.now(), clock.now()), (0, 0, 1, 1));
    }

    #[test]
    fn call_that_panics_stays_pending() {
        let clock = Clock::new();
        let mut recorder: Recorder<'_, &str, u32> = Recorder::new(&clock, 0, 1);
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            recorder.call("boom", || panic!("on purpose"));
        }));
        assert!(outcome.is_err());
        let history = History::join([recorder]);
        assert_eq!(history.calls()[0].ret, None);
        assert_eq!(history.calls()[0].returned, u64::MAX);
    }

    #[test]
    #[should_panic(expected = "two calls at once")]
    fn overlapping_calls_of_one_thread_are_refused() {
        History::from_calls(vec![
            Call::finished(0, 0, 2, 'a', ()),
            Call::finished(0, 1, 3, 'b', ()),
        ]);
    }
}
