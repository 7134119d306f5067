//! One slice of the tables `lookup` and `path`: workers that ask, and a renamer beside them.
//!
//! # The renamer
//! The renamer moves one directory there and back at a fixed rate, and catches up when it was late.
//! A renamer that does not run flatters every design. So a slice counts only if the renamer reached
//! its rate, or if renames took more than half of the time: then the design is slow, and not the
//! machine. The renamer puts the directory back at the end.
//!
//! Source: `crew`.

use std::time::{Duration, Instant};

use corewalk_base::primitives::Arc;

use crate::baseline::Namespace;
use crate::corpus::Move;
use crate::crew::{self, Clock};
use crate::lane::{Lane, Op};

/// The share of its rate that a renamer must reach.
const RATE_SHARE: f64 = 0.9;
/// The share of the time in renames above which the design limits the rate.
const SLOW_SHARE: f64 = 0.5;

/// The plan of a slice.
pub(crate) struct Plan<'a> {
    /// The operation.
    pub(crate) op: Op,
    /// The questions, one list per worker.
    pub(crate) lanes: &'a [Arc<Lane>],
    /// The directory that the renamer moves.
    pub(crate) moved: &'a Move,
    /// Moves per second; 0 for no renamer.
    pub(crate) renames_per_s: u32,
    /// The length of the slice.
    pub(crate) time: Duration,
    /// The question to begin with.
    pub(crate) first: usize,
}

/// The result of a slice.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Slice {
    /// The work of the workers.
    pub(crate) asked: crew::Slice,
    /// Renames that were made, the way home included.
    pub(crate) renames: u64,
    /// Renames per second.
    pub(crate) renames_per_s: f64,
    /// True if the renamer reached its rate, or the design kept the renamer from it.
    pub(crate) is_valid: bool,
}

/// Runs one slice.
///
/// # Panics
/// If a rename fails, or a thread panics.
pub(crate) fn run(table: &dyn Namespace, plan: &Plan<'_>) -> Slice {
    let work = |worker: usize, turn| {
        table.begin();
        table.work(plan.op, &plan.lanes[worker], plan.first, turn)
    };
    let beside = |clock: &Clock| rename(table, plan, clock);
    let (slices, (renames, renames_per_s, share)) =
        crew::run_phases((plan.lanes.len(), 1), plan.time, work, beside);
    let is_on_time = renames_per_s >= RATE_SHARE * f64::from(plan.renames_per_s);
    let is_valid = (is_on_time || share >= SLOW_SHARE) && slices[0].ops > 0;
    Slice { asked: slices[0], renames, renames_per_s, is_valid }
}

/// Moves the directory there and back until the slice is over. Returns the number of renames, their
/// rate, and the share of the time in them.
fn rename(table: &dyn Namespace, plan: &Plan<'_>, clock: &Clock) -> (u64, f64, f64) {
    if plan.renames_per_s == 0 {
        return (0, 0.0, 0.0);
    }
    let moved = plan.moved;
    let (home, away) = ((moved.home.0, &moved.home.1[..]), (moved.away.0, &moved.away.1[..]));
    let (mut done, mut busy, start) = (0_u64, Duration::ZERO, Instant::now());
    let mut step = || {
        let (from, to) = if done.is_multiple_of(2) { (home, away) } else { (away, home) };
        let began = Instant::now();
        assert!(table.rename(from, to), "{}: the rename failed", table.variant());
        busy += began.elapsed();
        done += 1;
        done
    };
    let mut count = 0;
    let per_s = clock.paced(0, plan.renames_per_s, |_| count = step());
    let elapsed = start.elapsed();
    if !count.is_multiple_of(2) {
        step();
    }
    (done, per_s, busy.as_secs_f64() / elapsed.as_secs_f64().max(1e-9))
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
                assert!(slice.asked.ops > 0, "{}", table.variant());
                assert!(slice.asked.wrong == 0 || !table.is_exact(), "{}", table.variant());
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
        // The questions are drawn for a tree in which the directory is at home.
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
        assert!(run(&table, &plan).asked.wrong > 0);
    }
}
