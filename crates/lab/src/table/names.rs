//! Table `names`: two ways to keep a name that cannot be torn.
//!
//! Source: the problem is that of Viro's answer to "dcache: Translating dentry into pathname without
//! taking rename_lock" (Long, September 2013); the two answers are `SLAB_TYPESAFE_BY_RCU` of Linux and
//! the objects of McKenney, Sarma, Soni, "Scaling dcache with RCU", 2004. Units: operations per second
//! of wall time, nanoseconds of processor time per operation.
//!
//! `slots` are type-stable slots with a sequence, `links` immutable objects under RCU with a section
//! per operation, `links-held` the same with a section per 64 operations (`layout`). With
//! `targets=hot` 64 entries are asked for, which stay in the processor's caches, with
//! `targets=uniform` all. Nothing is renamed while this is measured, as a cache is mostly read; that
//! renames are safe is a test.
//!
//! What cannot be reproduced: the cost of a fully fenced section on machines where it is dearer.
//!
//! # Checks
//! Every answer is compared with the tree; a wrong one fails the run.

use std::fmt::{self, Display};

use anyhow::ensure;
use corewalk_base::primitives::Arc;

use super::grid::Rounds;
use super::{Grid, Settings, Table, sized};
use crate::baseline::Namespace;
use crate::corpus::{Corpus, Move};
use crate::lane::{Lane, Op};
use crate::layout::{Links, LinksHeld, Slots};
use crate::samples::{Metric, Params, Samples};
use crate::slice::{self, Plan};

/// The variant that all are compared with.
const BASELINE: &str = "links";
/// Entries that are asked for when they are to stay in the caches.
const HOT: usize = 64;
/// Layouts there are.
const LAYOUTS: usize = 3;

/// The share of the time per row: a layout is not a claim.
const SHARE_OF_TIME: f64 = 0.25;

/// The table.
pub(super) struct Names;

/// Which entries are asked for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Targets {
    Hot,
    Uniform,
}

/// What is measured with one set of parameters.
struct Cell {
    op: Op,
    targets: Targets,
    threads: usize,
}

/// The questions of each thread.
type Lanes = Vec<((Op, Targets), Vec<Arc<Lane>>)>;

impl Table for Names {
    fn name(&self) -> &'static str {
        "names"
    }

    fn source(&self) -> &'static str {
        "names in type-stable slots against immutable links under RCU, after Viro's answer of 2013"
    }

    fn about(&self) -> &'static str {
        "lookup, path and walk with two layouts of a name, hot and over the whole tree"
    }

    fn grids(&self, settings: &Settings) -> Vec<Grid> {
        vec![Grid::new(settings, cells(settings).len(), LAYOUTS, SHARE_OF_TIME)]
    }

    fn run(&self, settings: &Settings) -> anyhow::Result<Samples> {
        let rounds = Rounds::begin(self.name(), settings)?;
        let corpus = Corpus::collect(sized(settings.size, (3_000, 100_000)));
        let moved = corpus.movable();
        let layouts: [Box<dyn Namespace>; LAYOUTS] = [
            Box::new(Slots::load(&corpus)?),
            Box::new(Links::load(&corpus)?),
            Box::new(LinksHeld(Links::load(&corpus)?)),
        ];
        let lanes = lanes(settings, &corpus, &moved);
        let grid = self.grids(settings)[0];
        let mut samples = Samples::default();
        rounds.each(&grid, (&cells(settings), layouts.len()), |visit| {
            let (cell, round) = (visit.cell, visit.round);
            let asked = |((op, targets), _): &&(_, _)| (*op, *targets) == (cell.op, cell.targets);
            let (_, lanes) = lanes.iter().find(asked).expect("every cell has lanes");
            let plan = Plan {
                op: cell.op,
                lanes: &lanes[..cell.threads],
                moved: &moved,
                renames_per_s: 0,
                time: grid.slice,
                first: round * 8_191,
            };
            measure(&*layouts[visit.at], cell, &plan, round, &mut samples)
        })?;
        Ok(samples)
    }
}

impl Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} targets={} threads={}", self.op.name(), self.targets.name(), self.threads)
    }
}

impl Targets {
    const ALL: [Targets; 2] = [Targets::Hot, Targets::Uniform];

    fn name(self) -> &'static str {
        match self {
            Targets::Hot => "hot",
            Targets::Uniform => "uniform",
        }
    }
}

fn cells(settings: &Settings) -> Vec<Cell> {
    let mut cells = vec![];
    for (op, targets) in Op::ALL.into_iter().flat_map(|op| Targets::ALL.map(|to| (op, to))) {
        cells.extend(settings.threads.iter().map(|&threads| Cell { op, targets, threads }));
    }
    cells
}

fn lanes(settings: &Settings, corpus: &Corpus, moved: &Move) -> Lanes {
    let threads = settings.threads_max() as u64;
    let draws = sized(settings.size, (4_096, 131_072));
    let of = |op, targets| {
        let lane = |thread: u64| {
            let seed = 0x5eed_0101 + 2 * thread;
            Arc::new(match targets {
                Targets::Hot => Lane::draw_hot(corpus, moved, op, 4_096, (seed, HOT)),
                Targets::Uniform => Lane::draw(corpus, moved, op, draws, seed),
            })
        };
        ((op, targets), (0..threads).map(lane).collect())
    };
    Op::ALL.into_iter().flat_map(|op| Targets::ALL.map(|targets| of(op, targets))).collect()
}

fn measure(
    layout: &dyn Namespace,
    cell: &Cell,
    plan: &Plan<'_>,
    round: usize,
    samples: &mut Samples,
) -> anyhow::Result<()> {
    let slice = slice::run(layout, plan);
    let variant = layout.variant();
    ensure!(slice.wrong == 0, "{variant}: {} of {} answers were wrong", slice.wrong, slice.ops);
    let params = Params::from([
        ("op", cell.op.name().into()),
        ("targets", cell.targets.name().into()),
        ("threads", cell.threads.into()),
    ]);
    for metric in [(Metric::OpsPerSecond, slice.ops_per_s), (Metric::NsPerOp, slice.ns_per_op)] {
        samples.add(round, variant, &params, metric, BASELINE);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::quick;

    #[test]
    fn quick_run_has_every_layout_op_and_kind_of_target() {
        let cells: Vec<_> = cells(&quick::settings())
            .iter()
            .map(|cell| {
                let (op, targets) = (cell.op.name(), cell.targets.name());
                vec![
                    ("op", op.into()),
                    ("targets", targets.into()),
                    ("threads", cell.threads.into()),
                ]
            })
            .collect();
        assert_eq!(cells.len(), 12);
        quick::check(&Names, &["slots", "links", "links-held"], &cells);
    }
}
