//! Questions about uniformly random entries of the whole tree, undisturbed and beside a renamer.
//!
//! The rows with `renamer` and without `targets` of the tables `lookup` and `path`. Every variant has the
//! same tree and the same questions in the same order.
//!
//! # Checks
//! Those of `lookup`.

use anyhow::ensure;
use corewalk_base::primitives::Arc;

use super::BASELINE;
use crate::baseline::{Linux, Namespace};
use crate::corpus::{Corpus, Move};
use crate::crew;
use crate::lane::{Lane, Op};
use crate::memory;
use crate::samples::{Metric, Samples};
use crate::slice::{self, Plan, Slice};
use crate::table::bench::{Cell, cells, values};
use crate::table::grid::{Grid, Rounds};
use crate::table::{Settings, sized};

/// Variants that hold their own names, in the order of the rows.
pub(in crate::table) const VARIANTS: [&str; 3] = ["corewalk", BASELINE, "libfuse-node"];
/// Entries of the tree.
const ENTRIES: (usize, usize) = (3_000, 100_000);
/// Questions drawn ahead per thread.
const DRAWS: (usize, usize) = (4_096, 131_072);
/// Rates of the renamer, per second.
const RENAMES_PER_S: [u32; 2] = [0, 1_000];
/// Slices that are tried until a renamer reached its rate.
const TRIES: usize = 4;

/// The tree in every variant.
pub(in crate::table) struct Forest {
    pub(in crate::table) corpus: Arc<Corpus>,
    pub(in crate::table) moved: Move,
    pub(in crate::table) tables: Vec<Box<dyn Namespace>>,
}

impl Forest {
    /// Returns the tree in every variant, the kernel's last, if the tree is real.
    ///
    /// # Errors
    /// An error of loading.
    pub(in crate::table) fn load(table: &str, settings: &Settings) -> anyhow::Result<Forest> {
        let corpus = Arc::new(Corpus::collect(sized(settings.size, ENTRIES)));
        let moved = corpus.movable();
        let (path, below) = (corpus.path(moved.ino), moved.descendants);
        eprintln!(
            "{table}: {} entries, {} of them made up; the renamer moves {} with {below} entries below it",
            corpus.len(),
            corpus.made_up(),
            path.escape_ascii(),
        );
        let mut tables = vec![];
        for variant in VARIANTS {
            tables.extend(memory::load(variant, &corpus)?);
        }
        match Linux::open(&corpus, table) {
            Ok(linux) => tables.push(Box::new(linux)),
            Err(error) => eprintln!("{table}: skipped linux: {error:#}"),
        }
        Ok(Forest { corpus, moved, tables })
    }
}

/// Returns the grid of [`run`].
pub(in crate::table) fn grid(settings: &Settings, ops: &[Op]) -> Grid {
    Grid::new(settings, all_cells(settings, ops).len(), VARIANTS.len() + 1, 1.0)
}

fn all_cells(settings: &Settings, ops: &[Op]) -> Vec<Cell> {
    let ops: Vec<&str> = ops.iter().map(|op| op.name()).collect();
    let (renames, threads) = (values(&RENAMES_PER_S), values(&settings.threads));
    cells(&[("op", values(&ops)), ("renamer", renames), ("threads", threads)])
}

/// Asks all variants, and adds the rows.
///
/// # Errors
/// A wrong answer of a variant that promises right answers.
pub(in crate::table) fn run(
    (table, ops): (&str, &[Op]),
    forest: &Forest,
    (rounds, settings): (&Rounds<'_>, &Settings),
    samples: &mut Samples,
) -> anyhow::Result<()> {
    let Forest { corpus, moved, tables } = forest;
    let lanes = |&op| (op, lanes(corpus, moved, op, settings));
    let lanes: Vec<(Op, Vec<Arc<Lane>>)> = ops.iter().map(lanes).collect();
    let (grid, mut doubts) = (grid(settings, ops), vec![]);
    rounds.each(&grid, (&all_cells(settings, ops), tables.len()), |visit| {
        let (table, cell, round) = (&*tables[visit.at], visit.cell, visit.round);
        let is_asked = |(op, _): &&(Op, _)| op.name() == cell.word("op");
        let (op, lanes) = lanes.iter().find(is_asked).expect("every operation has questions");
        let plan = Plan {
            op: *op,
            lanes: &lanes[..cell.number("threads")],
            moved,
            renames_per_s: cell.number("renamer") as u32,
            time: grid.slice,
            first: round * 8_191,
        };
        let variant = table.variant();
        let Some(slice) = valid(table, &plan)? else {
            doubts.push(format!("{variant}: the renamer did not run in round {round} of {cell}"));
            return Ok(());
        };
        let crew::Slice { ops, wrong, .. } = slice.asked;
        if wrong > 0 {
            let per_s = slice.renames_per_s;
            doubts.push(format!(
                "{variant}: {wrong} of {ops} answers were wrong ({cell}, {per_s:.0} renames per second)"
            ));
        }
        let speed = (slice.asked.ops_per_s, slice.asked.ns_per_op);
        samples.add_speed(round, variant, &cell.0, speed, BASELINE);
        if plan.renames_per_s > 0 {
            let params = cell.with("op", "rename").with("beside", op.name()).0;
            let rate = (Metric::OpsPerSecond, slice.renames_per_s);
            samples.add(round, variant, &params, rate, BASELINE);
        }
        Ok(())
    })?;
    doubts.iter().for_each(|doubt| eprintln!("{table}: {doubt}"));
    Ok(())
}

fn lanes(corpus: &Corpus, moved: &Move, op: Op, settings: &Settings) -> Vec<Arc<Lane>> {
    let draws = sized(settings.size, DRAWS);
    let lane =
        |n: usize| Arc::new(Lane::draw(corpus, moved, op, draws, 0x5eed_0001 + 2 * n as u64));
    (0..settings.threads_max()).map(lane).collect()
}

/// Returns one valid slice, or None if the renamer was starved each time.
fn valid(table: &dyn Namespace, plan: &Plan<'_>) -> anyhow::Result<Option<Slice>> {
    for _ in 0..TRIES {
        let slice = checked(table, plan)?;
        if slice.is_valid {
            return Ok(Some(slice));
        }
    }
    Ok(None)
}

/// Runs one slice and checks it.
///
/// # Errors
/// A wrong answer of a variant that promises right answers, and a back end that was asked.
fn checked(table: &dyn Namespace, plan: &Plan<'_>) -> anyhow::Result<Slice> {
    let misses = table.misses();
    let slice = slice::run(table, plan);
    let (variant, renames) = (table.variant(), slice.renames);
    let crew::Slice { ops, wrong, .. } = slice.asked;
    ensure!(wrong == 0 || !table.is_exact(), "{variant}: {wrong} of {ops} answers were wrong");
    // A rename asks whether its target exists; every lookup finds its name in the cache.
    let asked = table.misses() - misses;
    let line = format!("{variant}: the back end was asked {asked} times in {renames} renames");
    ensure!(asked <= renames, line);
    Ok(slice)
}

/// Runs one slice without a renamer, and checks it: then all answers are right.
///
/// # Errors
/// A wrong answer, and a back end that was asked.
pub(super) fn calm(table: &dyn Namespace, plan: &Plan<'_>) -> anyhow::Result<crew::Slice> {
    let slice = checked(table, plan)?.asked;
    slice.check(table.variant())?;
    Ok(slice)
}
