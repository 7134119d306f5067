//! Records the calls of several threads and their results.
//!
//! A history is a set of calls, each with the times of its invocation and its return, its operation
//! and its result. The times come from a logical [`Clock`], a counter, so that the order of any two
//! events is known. Wall-clock time is too coarse for that.
//!
//! Each thread records its calls in its own [`Recorder`]. [`History::join`] joins the recorders
//! after the threads have ended.
//!
//! # Guarantees
//!
//! `invoked` and `returned` are the times of the invocation and of the return of a call.
//! - A.1: if the return of call `a` happens before the invocation of call `b`, as in one thread,
//!   then `a.returned` is less than `b.invoked`.
//! - A.2: if `a.returned` is less than `b.invoked`, then `a` happens before `b`. So a checker may
//!   demand that `b` sees the effects of `a`.
//! - A.3: a call that panicked stays in the history without a result. It may or may not have taken
//!   effect.
//!
//! # Side effect
//!
//! Each recorded call makes two read-modify-writes of the clock, which order the calls of different
//! threads more strongly than the code under test does. So a missing barrier may go unnoticed. Use
//! a model checker to find weak orderings, and histories to find wrong results.
//!
//! Source: Herlihy and Wing, "Linearizability: a correctness condition for concurrent objects",
//! 1990.

use crate::real::atomic::{AtomicU64, Ordering, fence};
use std::fmt::{self, Debug};

/// The logical clock of a history.
#[derive(Debug, Default)]
pub struct Clock {
    ticks: AtomicU64,
}

impl Clock {
    /// Returns a clock at zero.
    pub const fn new() -> Self {
        Self { ticks: AtomicU64::new(0) }
    }

    /// Returns the current logical time, and advances the clock. So no two calls return the same
    /// time.
    pub fn tick(&self) -> u64 {
        // ORDERING: AcqRel, for other calls of `tick`. Without it, actions before a tick need not
        // happen before those after a later tick of another thread, and guarantee A.2 would fail.
        self.ticks.fetch_add(1, Ordering::AcqRel)
    }

    /// Returns the number of ticks so far, and stores nothing.
    ///
    /// The result counts all calls of [`Clock::tick`] that happen before it. If a writer ticks
    /// before it stores a value, a reader of the value sees the tick. So a reader that stores
    /// nothing can place its read between two ticks of writers.
    pub fn now(&self) -> u64 {
        // ORDERING: Acquire fence, for the AcqRel in `tick`. If the thread has read a value that
        // another thread stored after a `tick`, the load below counts that tick. The fence ensures
        // this even if the value was read with a relaxed load.
        fence(Ordering::Acquire);
        // ORDERING: Acquire, for the AcqRel in `tick`.
        self.ticks.load(Ordering::Acquire)
    }
}

/// One call of a history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call<O, R> {
    /// The number of the calling thread.
    pub thread: usize,
    /// The time just before the call.
    pub invoked: u64,
    /// The time just after the return of the call, or `u64::MAX` if the call never returned.
    pub returned: u64,
    /// The operation.
    pub op: O,
    /// The result, or None if the call never returned.
    pub ret: Option<R>,
}

impl<O, R> Call<O, R> {
    /// Returns a call that has returned, for a history that a test writes by hand.
    pub fn finished(thread: usize, invoked: u64, returned: u64, op: O, ret: R) -> Self {
        Self { thread, invoked, returned, op, ret: Some(ret) }
    }

    /// Returns a call that is pending at the end of a history that a test writes by hand.
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

/// The buffer into which one thread records its calls.
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
    /// Returns an empty buffer for thread number `thread`.
    ///
    /// The buffer has memory for `capacity` calls, so that recording them does not allocate.
    pub fn new(clock: &'c Clock, thread: usize, capacity: usize) -> Self {
        Self { clock, thread, calls: Vec::with_capacity(capacity) }
    }

    /// Runs `call`, records it as the operation `op`, and returns its result.
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
    /// Returns the history of the calls of all `recorders`.
    pub fn join<'c>(recorders: impl IntoIterator<Item = Recorder<'c, O, R>>) -> Self
    where
        O: 'c,
        R: 'c,
    {
        Self::from_calls(recorders.into_iter().flat_map(|recorder| recorder.calls).collect())
    }

    /// Returns the history of `calls`, which may be in any order.
    ///
    /// # Panics
    ///
    /// Panics if a call returned before it was invoked, or if two calls of a thread overlap.
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

    /// Returns the calls in the order of their invocations.
    pub fn calls(&self) -> &[Call<O, R>] {
        &self.calls
    }

    /// Returns the number of calls.
    pub fn len(&self) -> usize {
        self.calls.len()
    }

    /// Returns true if the history has no call.
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
    fn now_counts_ticks_and_does_not_tick() {
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
