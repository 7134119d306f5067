//! Runs one slice of a measurement: a timed run of worker threads that start at the same time. One
//! further thread may disturb the workers.
//!
//! # How it works
//! In each slice, each worker gets a [`Turn`]. It opens its files, and passes its work to
//! [`Turn::run`], which waits until all workers are ready. Then `Turn::run` starts to measure, and
//! does one job after the other until the slice is over.
//!
//! The thread that called [`run`] sleeps for the time of the slice, and then tells the workers that
//! the slice is over.
//!
//! The rate of a worker is its number of operations divided by its own wall time. The result of a
//! slice also has the processor time.
//!
//! A slice may have several phases, each with its own counts. The workers do the same work in each
//! phase. Only the thread that disturbs them may act differently.
//!
//! Each of several workers is pinned to a processor of its own, if there are enough. If two workers
//! shared a processor, they would never run at the same time, so the run would show no contention.
//!
//! # Invariants
//! - A worker that ends before it is ready counts as ready. Otherwise the others would wait for
//!   ever.
//! - Each worker counts in its own variables. The only shared cache line has the number of the
//!   phase, and is written once per phase.
//!
//! Source: clock_gettime(2), for a thread's processor time; sched_setaffinity(2).

use std::fs;
use std::time::{Duration, Instant};

use anyhow::ensure;
use corewalk_base::CachePadded;
use corewalk_base::futex::{self, Deadline, Scope};
use corewalk_base::primitives::atomic::{AtomicU64, AtomicUsize, Ordering};
use corewalk_base::primitives::thread;

use crate::before::timed::{Spent, take_spent};
use crate::cpus;
use crate::machine::thread_cpu_ns;
use crate::questions::Tally;
use crate::samples::{Metric, Params, Samples};

/// Number of short operations between two checks whether the phase is over.
const CHUNK: u64 = 16;
/// If [`Clock::paced`] is late by more than this number of calls, it leaves out the late calls.
const BEHIND_MAX: u32 = 100;

/// The result of one or several workers in one phase.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Slice {
    /// Operations.
    pub(crate) ops: u64,
    /// Wrong answers.
    pub(crate) wrong: u64,
    /// Operations per second of wall time, summed over the workers.
    pub(crate) ops_per_s: f64,
    /// The time at which the first worker started.
    start: Option<Instant>,
    /// From the first worker's start to the last one's end.
    pub(crate) span: Duration,
    /// Wall time of all workers.
    pub(crate) wall: Duration,
    /// Nanoseconds of processor time.
    pub(crate) cpu_ns: u64,
    /// Nanoseconds for which the workers were ready to run but waited for a processor.
    pub(crate) delay_ns: u64,
    /// Time in lock sections, if the table measures it.
    pub(crate) spent: Spent,
}

/// The results of one worker, phase by phase.
pub(crate) type Laps = Vec<Slice>;

/// The handle of a worker in one slice. It runs the operations of the worker until the slice is
/// over.
pub(crate) struct Turn<'a> {
    clock: &'a Clock,
    is_ready: bool,
}

/// The start and the phases of a slice.
pub(crate) struct Clock {
    /// The number of threads that are not ready yet.
    missing: AtomicU64,
    /// The number of the current phase of the slice, on a cache line of its own, which only one
    /// thread writes.
    phase: CachePadded<AtomicUsize>,
    phases: usize,
}

/// The processors of the workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pinning {
    /// The kernel chooses.
    Free,
    /// Each worker is pinned to a processor of its own, if there are enough processors.
    OnePerCore,
}

impl Pinning {
    /// Returns the default pinning for `workers` threads. A single worker is not pinned. Several
    /// workers are pinned to a processor each.
    pub(crate) fn of(workers: usize) -> Pinning {
        if workers > 1 { Pinning::OnePerCore } else { Pinning::Free }
    }
}

impl Slice {
    /// Returns the result of one worker from its number of operations and its times.
    pub(crate) fn timed(ops: u64, wall: Duration, cpu_ns: u64) -> Slice {
        let ops_per_s = ops as f64 / wall.as_secs_f64().max(1e-9);
        Slice { ops, ops_per_s, span: wall, wall, cpu_ns, ..Slice::default() }
    }

    /// Returns the sum of the results of several workers. Its `span` is the time from the first
    /// start to the last end, or, for workers in other processes, the longest time of one.
    pub(crate) fn together<'a>(parts: impl Iterator<Item = &'a Slice> + Clone) -> Slice {
        let mut all = Slice::default();
        parts.clone().for_each(|part| all.add(part));
        let first = parts.clone().filter_map(|part| part.start).min();
        let last = parts.clone().filter_map(|part| Some(part.start? + part.span)).max();
        let longest = || parts.map(|part| part.span).max().unwrap_or_default();
        all.span = first.zip(last).map_or_else(longest, |(first, last)| last - first);
        all
    }

    /// Adds the result of a later slice to this one.
    pub(crate) fn add(&mut self, other: &Slice) {
        self.ops += other.ops;
        self.wrong += other.wrong;
        self.ops_per_s += other.ops_per_s;
        self.span += other.span;
        self.wall += other.wall;
        self.cpu_ns += other.cpu_ns;
        self.delay_ns += other.delay_ns;
        self.spent.add(&other.spent);
    }

    /// Returns nanoseconds of processor time per operation.
    pub(crate) fn ns_per_op(&self) -> f64 {
        self.cpu_ns as f64 / self.ops.max(1) as f64
    }

    /// Checks that all answers were right, and adds the speed of `variant` in `round` to `samples`.
    /// The speed is compared with that of the variant `baseline` with the parameters `base_params`.
    ///
    /// # Errors
    /// An answer was wrong, or no operation was done.
    pub(crate) fn add_to(
        &self,
        samples: &mut Samples,
        round: usize,
        variant: &str,
        params: &Params,
        baseline: &str,
        base_params: &Params,
    ) -> anyhow::Result<()> {
        self.check(variant)?;
        let rate = (Metric::OPS_PER_SECOND, self.ops_per_s);
        for value in [rate, (Metric::NS_PER_OP, self.ns_per_op())] {
            samples.add_against(round, variant, params, value, baseline, base_params);
        }
        Ok(())
    }

    /// Returns the same result with another rate: all operations over the time from the first start
    /// to the last end. Workers that share a processor run one after the other, so the sum of their
    /// rates would be too high.
    pub(crate) fn over_span(self) -> Slice {
        let ops_per_s = self.ops as f64 / self.span.as_secs_f64().max(1e-9);
        Slice { ops_per_s, ..self }
    }

    /// Checks that the workers did operations, and that no answer was wrong.
    ///
    /// # Errors
    /// An answer was wrong, or no operation was done.
    pub(crate) fn check(&self, variant: &str) -> anyhow::Result<()> {
        ensure!(self.ops > 0, "{variant} did nothing in a slice");
        ensure!(self.wrong == 0, "{variant}: {} of {} answers were wrong", self.wrong, self.ops);
        Ok(())
    }
}

impl Turn<'_> {
    /// Calls `each` with 0, 1, 2 and so on until the time slice is over. A call does one operation,
    /// and returns true if its answer was right.
    pub(crate) fn run(self, mut each: impl FnMut(u64) -> bool) -> Laps {
        let mut next = 0;
        self.run_jobs(move || {
            let mut wrong = 0;
            for _ in 0..CHUNK {
                wrong += u64::from(!each(next));
                next += 1;
            }
            Tally { ops: CHUNK, wrong }
        })
    }

    /// Like [`Turn::run`], for work whose effects cancel out after every `cycle` calls of `each`,
    /// such as renames there and back. Further calls complete the last cycle, and are not counted.
    ///
    /// # Panics
    /// If a call that completes the last cycle returns false.
    pub(crate) fn run_cycles(self, cycle: u64, mut each: impl FnMut(u64) -> bool) -> Laps {
        let mut done = 0;
        let laps = self.run(|number| {
            done = number + 1;
            each(number)
        });
        let is_whole = (done..done.next_multiple_of(cycle)).all(each);
        assert!(is_whole, "the last operations were not undone");
        laps
    }

    /// Calls `job` until the time slice is over, at least once. A call does some operations, and
    /// returns their number.
    pub(crate) fn run_jobs(mut self, mut job: impl FnMut() -> Tally) -> Laps {
        self.is_ready = true;
        let mut laps = vec![];
        self.clock.wait();
        take_spent();
        let (mut start, mut began) = (Instant::now(), (thread_cpu_ns(), run_delay_ns()));
        let (mut sum, mut phase) = (Tally::default(), 0);
        loop {
            let Tally { ops, wrong } = job();
            sum.ops += ops;
            sum.wrong += wrong;
            let now = self.clock.phase();
            if now != phase {
                let Tally { ops, wrong } = std::mem::take(&mut sum);
                let lap = Slice::timed(ops, start.elapsed(), thread_cpu_ns() - began.0);
                let (delay_ns, spent) = (run_delay_ns() - began.1, take_spent());
                laps.resize(now, Slice::default());
                laps[phase] = Slice { wrong, start: Some(start), delay_ns, spent, ..lap };
                (start, began, phase) = (Instant::now(), (thread_cpu_ns(), run_delay_ns()), now);
            }
            if phase == self.clock.phases {
                return laps;
            }
        }
    }
}

impl Clock {
    /// Waits until all threads of the slice are ready.
    ///
    /// One futex call wakes all waiting workers at the same time. After a usual barrier, each woken
    /// worker must take the barrier's lock before the next one can go on. With hundreds of workers
    /// that would take minutes, because those woken first keep the processors busy.
    fn wait(&self) {
        // ORDERING: AcqRel here, Acquire for the load below. The work of a worker before the
        // barrier happens before any worker leaves it.
        if self.missing.fetch_sub(1, Ordering::AcqRel) == 1 {
            futex::wake(&self.missing, u32::MAX, Scope::Private);
        }
        loop {
            // ORDERING: Acquire. As above.
            let missing = self.missing.load(Ordering::Acquire);
            if missing == 0 {
                return;
            }
            futex::wait(&self.missing, missing as u32, Deadline::NEVER, Scope::Private);
        }
    }

    /// Returns the number of the current phase, from 0 on, or the number of phases after the last
    /// one.
    #[inline]
    pub(crate) fn phase(&self) -> usize {
        // ORDERING: Relaxed. A flag; results come back by joining.
        self.phase.load(Ordering::Relaxed)
    }

    /// Calls `each` `rate` times per second during phase number `phase`. If a call is late, the
    /// next calls follow without a pause. Returns the number of calls per second.
    pub(crate) fn paced(&self, phase: usize, rate: u32, mut each: impl FnMut(u64)) -> f64 {
        let period = Duration::from_secs(1) / rate;
        while self.phase() < phase {
            thread::sleep(period);
        }
        let start = Instant::now();
        let (mut next, mut done) = (start, 0_u64);
        while self.phase() == phase {
            let now = Instant::now();
            if now < next {
                thread::sleep(next - now);
                continue;
            }
            each(done);
            done += 1;
            next += period;
            if next + period * BEHIND_MAX < now {
                next = now;
            }
        }
        done as f64 / start.elapsed().as_secs_f64().max(1e-9)
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        if !self.is_ready {
            self.clock.wait();
        }
    }
}

/// Runs one time slice of `workers` threads. Each thread calls `work` with its number.
///
/// # Panics
/// If a worker panics.
pub(crate) fn run(
    workers: usize,
    time: Duration,
    work: impl Fn(usize, Turn<'_>) -> Laps + Sync,
) -> Slice {
    let (laps, ()) = run_laps(workers, 1, Pinning::of(workers), time, work, |_| ());
    together(&laps, 0)
}

/// Runs a slice (a timed run) of `workers` threads with `phases` phases of `time` each. A further
/// thread calls `beside` once, with the clock that tells the current phase. Returns the counts of
/// each worker for each phase, and the result of `beside`.
///
/// # Panics
/// If a worker or `beside` panics.
pub(crate) fn run_laps<R: Send>(
    workers: usize,
    phases: usize,
    pinning: Pinning,
    time: Duration,
    work: impl Fn(usize, Turn<'_>) -> Laps + Sync,
    beside: impl FnOnce(&Clock) -> R + Send,
) -> (Vec<Laps>, R) {
    let cpus = if pinning == Pinning::OnePerCore { cpus::each() } else { vec![] };
    let clock = &Clock {
        missing: AtomicU64::new(workers as u64 + 2),
        phase: CachePadded::new(AtomicUsize::new(0)),
        phases,
    };
    thread::scope(|scope| {
        let spawn = |worker: usize| {
            let (work, cpu) = (&work, cpus.get(worker % cpus.len().max(1)).copied());
            scope.spawn(move || {
                if let Some(cpu) = cpu {
                    cpus::pin(cpu);
                }
                work(worker, Turn { clock, is_ready: false })
            })
        };
        let handles: Vec<_> = (0..workers).map(spawn).collect();
        let other = scope.spawn(|| {
            clock.wait();
            beside(clock)
        });
        clock.wait();
        for phase in 1..=phases {
            thread::sleep(time);
            // ORDERING: Relaxed. See `Clock::phase`.
            clock.phase.store(phase, Ordering::Relaxed);
        }
        let laps: Vec<Laps> =
            handles.into_iter().map(|worker| worker.join().expect("a worker panicked")).collect();
        (laps, other.join().expect("the one beside the workers panicked"))
    })
}

/// Returns for how many nanoseconds this thread was ready to run but waited for a processor, or 0
/// if the kernel does not report that.
fn run_delay_ns() -> u64 {
    let text = fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    text.split_whitespace().nth(1).and_then(|field| field.parse().ok()).unwrap_or(0)
}

/// Returns the sum of the results of all workers in a phase.
pub(crate) fn together(laps: &[Laps], phase: usize) -> Slice {
    Slice::together(laps.iter().map(|laps| &laps[phase]))
}

#[cfg(test)]
mod tests {
    use rustix::thread::CpuSet;

    use super::*;
    use corewalk_base::primitives::unmodelled::{AtomicU64, Ordering};

    #[test]
    fn slice_counts_what_all_workers_did_and_what_was_wrong() {
        let done = AtomicU64::new(0);
        let slice = run(2, Duration::from_millis(5), |_, turn| {
            turn.run(|number| {
                // ORDERING: Relaxed. A count, read after joining.
                done.fetch_add(1, Ordering::Relaxed);
                !number.is_multiple_of(4)
            })
        });
        // ORDERING: Relaxed. See above.
        assert_eq!(slice.ops, done.load(Ordering::Relaxed));
        assert_eq!(slice.wrong, slice.ops / 4);
        assert!(slice.ops_per_s > 0.0 && slice.ns_per_op() > 0.0);
        let over_span = slice.over_span();
        assert!(slice.span >= Duration::from_millis(5) && over_span.ops_per_s > 0.0);
        assert!(
            over_span.ops_per_s <= 1.001 * slice.ops_per_s,
            "no worker is faster for being late"
        );
    }

    #[test]
    fn worker_that_panics_before_it_is_ready_ends_the_slice_with_a_panic() {
        let outcome = std::panic::catch_unwind(|| {
            run(2, Duration::from_millis(1), |worker, turn| {
                assert!(worker != 1, "worker 1 has no directory");
                turn.run(|_| true)
            })
        });
        assert!(outcome.is_err());
    }

    #[test]
    fn phases_are_told_to_the_one_beside_and_counted_apart() {
        // On a busy machine the scheduler may not run the disturbing thread in phase 1, so try
        // several times.
        let rate = (0..50).find_map(|_| {
            let (laps, rate) = run_laps(
                1,
                3,
                Pinning::Free,
                Duration::from_millis(20),
                |_, turn| turn.run(|_| true),
                |clock| clock.paced(1, 1000, |_| assert!(clock.phase() >= 1)),
            );
            assert!(laps[0].len() == 3 && laps[0][0].ops > 0);
            (rate > 0.0).then_some(rate)
        });
        assert!(rate.is_some_and(|rate| rate < 10_000.0), "{rate:?}");
    }

    #[test]
    fn several_workers_are_on_different_processors_as_far_as_there_are_some() {
        let cpus = cpus::all().unwrap().count() as usize;
        let seen = std::sync::Mutex::new(vec![]);
        run(2, Duration::from_millis(1), |_, turn| {
            let own = cpus::all().unwrap();
            seen.lock().unwrap().push((0..CpuSet::MAX_CPU).find(|&cpu| own.is_set(cpu)));
            assert_eq!(own.count(), 1);
            turn.run(|_| true)
        });
        let seen = seen.into_inner().unwrap();
        assert_eq!(seen[0] != seen[1], cpus > 1, "{seen:?} of {cpus}");
    }
}
