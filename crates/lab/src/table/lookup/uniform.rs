//! Questions about uniformly random entries of the whole tree, undisturbed and beside a renamer.
//!
//! The rows with `renamer` and without `targets` of the tables `lookup` and `path`. Every variant has the
//! same tree and the same questions in the same order.
//!
//! # Checks
//! Those of `lookup`.

use std::fmt::{self, Display};

use anyhow::ensure;
use corewalk_base::primitives::Arc;

use super::BASELINE;
use crate::baseline::{Linux, Namespace};
use crate::corpus::{Corpus, Move};
use crate::lane::{Lane, Op};
use crate::memory;
use crate::samples::{Metric, Params, Samples};
use crate::slice::{self, Plan, Slice};
use crate::table::grid::{Grid, Rounds, Visit};
use crate::table::{Settings, sized};

/// Variants that hold their own names, in the order of the rows.
pub(in crate::table) const VARIANTS: [&str; 6] =
    ["corewalk", BASELINE, "dashmap-path", "papaya", "libfuse-node", "easy-fuser"];
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

/// What is measured with one set of parameters.
struct Cell {
    op: Op,
    threads: usize,
    renames_per_s: u32,
}

/// A run over a forest.
struct Bench<'a> {
    forest: &'a Forest,
    grid: Grid,
    lanes: Vec<(Op, Vec<Arc<Lane>>)>,
    doubts: Vec<String>,
}

impl Forest {
    /// Returns the tree in every variant, the kernel's last, if it is there.
    ///
    /// # Errors
    /// What loading says.
    pub(in crate::table) fn load(table: &str, settings: &Settings) -> anyhow::Result<Forest> {
        let corpus = Arc::new(Corpus::collect(sized(settings.size, ENTRIES)));
        let moved = corpus.movable();
        eprintln!(
            "{table}: {} entries, {} of them made up; the renamer moves {} with {} entries below it",
            corpus.len(),
            corpus.made_up(),
            corpus.path(moved.ino).escape_ascii(),
            moved.descendants,
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

/// Returns what [`run`] measures.
pub(in crate::table) fn grid(settings: &Settings, ops: &[Op]) -> Grid {
    Grid::new(settings, cells(settings, ops).len(), VARIANTS.len() + 1, 1.0)
}

/// Asks all variants, and adds the rows.
///
/// # Errors
/// A wrong answer of a variant that promises right ones.
pub(in crate::table) fn run(
    (table, ops): (&str, &[Op]),
    forest: &Forest,
    (rounds, settings): (&Rounds<'_>, &Settings),
    samples: &mut Samples,
) -> anyhow::Result<()> {
    let Forest { corpus, moved, tables } = forest;
    let draws = sized(settings.size, DRAWS);
    let lane = |op, thread: usize| {
        Arc::new(Lane::draw(corpus, moved, op, draws, 0x5eed_0001 + 2 * thread as u64))
    };
    let lanes = ops
        .iter()
        .map(|&op| (op, (0..settings.threads_max()).map(|thread| lane(op, thread)).collect()));
    let grid = grid(settings, ops);
    let mut bench = Bench { forest, grid, lanes: lanes.collect(), doubts: vec![] };
    rounds.each(&grid, (&cells(settings, ops), tables.len()), |visit| {
        bench.measure(&visit, samples)
    })?;
    for doubt in &bench.doubts {
        eprintln!("{table}: {doubt}");
    }
    Ok(())
}

fn cells(settings: &Settings, ops: &[Op]) -> Vec<Cell> {
    let mut cells = vec![];
    for (&op, renames_per_s) in ops.iter().flat_map(|op| RENAMES_PER_S.map(|rate| (op, rate))) {
        cells.extend(settings.threads.iter().map(|&threads| Cell { op, threads, renames_per_s }));
    }
    cells
}

impl Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} threads={} renamer={}", self.op.name(), self.threads, self.renames_per_s)
    }
}

impl Bench<'_> {
    fn measure(&mut self, visit: &Visit<'_, Cell>, samples: &mut Samples) -> anyhow::Result<()> {
        let (table, cell, round) = (&*self.forest.tables[visit.at], visit.cell, visit.round);
        let variant = table.variant();
        let Some(slice) = self.slice(table, cell, round)? else {
            self.doubts
                .push(format!("{variant}: the renamer did not run in round {round} of {cell}"));
            return Ok(());
        };
        if slice.wrong > 0 {
            self.doubts.push(format!(
                "{variant}: {} of {} answers were wrong ({cell}, {:.0} renames per second)",
                slice.wrong, slice.ops, slice.renames_per_s
            ));
        }
        let mut params = Params::from([
            ("op", cell.op.name().into()),
            ("threads", cell.threads.into()),
            ("renamer", cell.renames_per_s.into()),
        ]);
        for measured in
            [(Metric::OpsPerSecond, slice.ops_per_s), (Metric::NsPerOp, slice.ns_per_op)]
        {
            samples.add(round, variant, &params, measured, BASELINE);
        }
        if cell.renames_per_s > 0 {
            params.extend([("op", "rename".into()), ("beside", cell.op.name().into())]);
            let reached = (Metric::OpsPerSecond, slice.renames_per_s);
            samples.add(round, variant, &params, reached, BASELINE);
        }
        Ok(())
    }

    /// Returns one valid slice, or None if the renamer was starved each time.
    fn slice(
        &self,
        table: &dyn Namespace,
        cell: &Cell,
        round: usize,
    ) -> anyhow::Result<Option<Slice>> {
        let (_, lanes) =
            self.lanes.iter().find(|(op, _)| *op == cell.op).expect("every op has lanes");
        let plan = Plan {
            op: cell.op,
            lanes: &lanes[..cell.threads],
            moved: &self.forest.moved,
            renames_per_s: cell.renames_per_s,
            time: self.grid.slice,
            first: round * 8_191,
        };
        for _ in 0..TRIES {
            let slice = checked(table, &plan)?;
            if slice.is_valid {
                return Ok(Some(slice));
            }
        }
        Ok(None)
    }
}

/// Runs one slice and checks it.
///
/// # Errors
/// A wrong answer of a variant that promises right ones, and a back end that was asked.
fn checked(table: &dyn Namespace, plan: &Plan<'_>) -> anyhow::Result<Slice> {
    let misses = table.misses();
    let slice = slice::run(table, plan);
    ensure!(
        slice.wrong == 0 || !table.is_exact(),
        "{}: {} of {} answers were wrong",
        table.variant(),
        slice.wrong,
        slice.ops
    );
    // A rename asks whether its target exists; those who look up find all in the cache.
    let asked = table.misses() - misses;
    ensure!(
        asked <= slice.renames,
        "{}: the back end was asked {asked} times in {} renames",
        table.variant(),
        slice.renames
    );
    Ok(slice)
}

/// Runs one slice in which nothing is renamed, and checks it: then all answers are right.
///
/// # Errors
/// A wrong answer, and a back end that was asked.
pub(super) fn calm(table: &dyn Namespace, plan: &Plan<'_>) -> anyhow::Result<Slice> {
    let slice = checked(table, plan)?;
    let variant = table.variant();
    ensure!(slice.wrong == 0, "{variant}: {} of {} answers were wrong", slice.wrong, slice.ops);
    Ok(slice)
}
