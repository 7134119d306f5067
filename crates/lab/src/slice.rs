//! One slice of measuring: threads that ask, and a renamer beside them.
//!
//! # How it works
//! Each thread owns its lane, its tally and its clock; they share the table under test and a flag
//! that is only read. A slice ends by wall time. What a thread reached is divided by its own wall
//! time, and its processor time is kept beside it, since on a disturbed machine wall time says how
//! much of the machine there was.
//!
//! # The renamer
//! It moves one directory there and back at a fixed rate and catches up when it was late. A slice
//! counts only if the renamer really reached its rate, or if renames themselves took more than half
//! of the time, so that it is the design that is slow and not the renamer that was starved: a
//! renamer that does not run flatters every design. It puts the directory back at the end.
//!
//! # What went wrong before
//! Two earlier versions of this benchmark printed nonsense: in one other jobs kept the renamer from
//! running, and everything looked undisturbed; in the other the threads' counters shared cache lines,
//! and good designs looked slow.
//!
//! Source: clock_gettime(2), for a thread's processor time.

use std::time::{Duration, Instant};

use corewalk_base::primitives::Arc;
use corewalk_base::primitives::thread;

use crate::baseline::Namespace;
use crate::corpus::Move;
use crate::lane::{Lane, Op, Stop, Tally};
use crate::machine::thread_cpu_ns;

/// The share of its rate that a renamer must reach.
const RATE_SHARE: f64 = 0.9;
/// The share of the time in renames above which the design is what limits the rate.
const SLOW_SHARE: f64 = 0.5;
/// Renames that a late renamer catches up with, before it gives them up.
const BEHIND_MAX: u32 = 100;

/// What a slice is made of.
pub(crate) struct Plan<'a> {
    /// What is asked.
    pub op: Op,
    /// The questions, one list per thread.
    pub lanes: &'a [Arc<Lane>],
    /// The directory that is moved.
    pub moved: &'a Move,
    /// How often it is moved per second; 0 for never.
    pub renames_per_s: u32,
    /// For how long.
    pub time: Duration,
    /// Where in the lanes to begin.
    pub first: usize,
}

/// What a slice gave.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Slice {
    /// Operations per second of wall time, all threads together.
    pub ops_per_s: f64,
    /// Processor time per operation.
    pub ns_per_op: f64,
    /// Operations.
    pub ops: u64,
    /// Wrong answers.
    pub wrong: u64,
    /// Renames that were made, the way home included.
    pub(crate) renames: u64,
    /// Renames per second that were made.
    pub renames_per_s: f64,
    /// True if the renamer reached its rate, or the design is what kept it from that.
    pub is_valid: bool,
}

/// What one thread gave.
struct Lap {
    tally: Tally,
    wall: Duration,
    cpu_ns: u64,
}

/// What the renamer did.
#[derive(Clone, Copy)]
struct Renames {
    done: u64,
    per_s: f64,
    share_of_time: f64,
}

/// Runs one slice.
///
/// # Panics
/// If a rename fails, or a thread panics.
pub(crate) fn run(table: &dyn Namespace, plan: &Plan<'_>) -> Slice {
    let stop = Arc::new(Stop::default());
    let (laps, renames) = thread::scope(|scope| {
        let workers: Vec<_> = plan
            .lanes
            .iter()
            .map(|lane| {
                let (lane, stop) = (Arc::clone(lane), Arc::clone(&stop));
                let (op, first) = (plan.op, plan.first);
                scope.spawn(move || lap(table, op, &lane, first, &stop))
            })
            .collect();
        let renamer = (plan.renames_per_s > 0).then(|| {
            let stop = Arc::clone(&stop);
            let (moved, rate) = (plan.moved.clone(), plan.renames_per_s);
            scope.spawn(move || rename(table, &moved, rate, &stop))
        });
        thread::sleep(plan.time);
        stop.set();
        let laps: Vec<Lap> =
            workers.into_iter().map(|worker| worker.join().expect("a thread panicked")).collect();
        (laps, renamer.map(|renamer| renamer.join().expect("the renamer panicked")))
    });
    let ops: u64 = laps.iter().map(|lap| lap.tally.ops).sum();
    let cpu_ns: u64 = laps.iter().map(|lap| lap.cpu_ns).sum();
    let is_valid = renames.is_none_or(|renames| {
        renames.per_s >= RATE_SHARE * f64::from(plan.renames_per_s)
            || renames.share_of_time >= SLOW_SHARE
    });
    Slice {
        ops_per_s: laps
            .iter()
            .map(|lap| lap.tally.ops as f64 / lap.wall.as_secs_f64().max(1e-9))
            .sum(),
        ns_per_op: cpu_ns as f64 / ops.max(1) as f64,
        ops,
        wrong: laps.iter().map(|lap| lap.tally.wrong).sum(),
        renames: renames.map_or(0, |renames| renames.done),
        renames_per_s: renames.map_or(0.0, |renames| renames.per_s),
        is_valid: is_valid && ops > 0,
    }
}

fn lap(table: &dyn Namespace, op: Op, lane: &Lane, first: usize, stop: &Stop) -> Lap {
    table.begin();
    let (start, cpu_start) = (Instant::now(), thread_cpu_ns());
    let tally = table.work(op, lane, first, stop);
    Lap { tally, wall: start.elapsed(), cpu_ns: thread_cpu_ns() - cpu_start }
}

/// Moves the directory there and back at `rate`, until `stop`; leaves it at home.
fn rename(table: &dyn Namespace, moved: &Move, rate: u32, stop: &Stop) -> Renames {
    let period = Duration::from_secs(1) / rate;
    let start = Instant::now();
    let (mut next, mut done, mut busy) = (start, 0_u64, Duration::ZERO);
    let step = |to_away: bool| {
        let (home, away) = ((moved.home.0, &moved.home.1[..]), (moved.away.0, &moved.away.1[..]));
        let (from, to) = if to_away { (home, away) } else { (away, home) };
        assert!(table.rename(from, to), "{}: the rename failed", table.variant());
    };
    while !stop.is_set() {
        let now = Instant::now();
        if now < next {
            thread::sleep(next - now);
            continue;
        }
        step(done.is_multiple_of(2));
        busy += now.elapsed();
        done += 1;
        next += period;
        if next + period * BEHIND_MAX < now {
            next = now;
        }
    }
    let elapsed = start.elapsed().as_secs_f64();
    let (per_s, share_of_time) = (done as f64 / elapsed, busy.as_secs_f64() / elapsed);
    if !done.is_multiple_of(2) {
        step(false);
        done += 1;
    }
    Renames { done, per_s, share_of_time }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::corpus::Corpus;

    #[test]
    fn slice_of_every_variant_and_op_gives_right_answers_beside_a_renamer() {
        let corpus = Arc::new(Corpus::collect(2000));
        let moved = corpus.movable();
        for table in crate::baseline::tests::all(&corpus) {
            for op in Op::ALL {
                let lanes =
                    [1, 2].map(|seed| Arc::new(Lane::draw(&corpus, &moved, op, 1000, seed)));
                let plan = Plan {
                    op,
                    lanes: &lanes,
                    moved: &moved,
                    renames_per_s: 500,
                    time: Duration::from_millis(20),
                    first: 10,
                };
                let misses = table.misses();
                let slice = run(&*table, &plan);
                assert!(slice.ops > 0, "{}", table.variant());
                assert!(slice.wrong == 0 || !table.is_exact(), "{}", table.variant());
                assert!(table.misses() - misses <= slice.renames, "{}", table.variant());
                assert!(table.walk(&corpus.path(moved.ino)).is_some(), "not back at home");
            }
        }
    }

    #[test]
    fn slice_counts_wrong_answers() {
        let corpus = Arc::new(Corpus::collect(2000));
        let moved = corpus.movable();
        let table = crate::ours::Ours::load(&corpus).unwrap();
        let away = (moved.away.0, &moved.away.1[..]);
        // The lanes are drawn for a tree in which it is at home.
        assert!(table.rename((1, b"usr"), away));
        let lanes = [Arc::new(Lane::draw(&corpus, &moved, Op::Walk, 1000, 7))];
        let plan = Plan {
            op: Op::Walk,
            lanes: &lanes,
            moved: &moved,
            renames_per_s: 0,
            time: Duration::from_millis(10),
            first: 0,
        };
        assert!(run(&table, &plan).wrong > 0);
    }
}
