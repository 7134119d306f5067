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

use anyhow::ensure;
use corewalk_sync::primitives::Arc;

use super::{Settings, Size, Table, progress, rotated};
use crate::baseline::Namespace;
use crate::corpus::{Corpus, Move};
use crate::lane::{Lane, Op};
use crate::layout::{Links, LinksHeld, Slots};
use crate::machine::Disturbance;
use crate::samples::{Metric, Params, Samples};
use crate::slice::{self, Plan};

/// The variant that all are compared with.
const BASELINE: &str = "links";
/// Entries that are asked for when they are to stay in the caches.
const HOT: usize = 64;

/// The table.
pub(super) struct Names;

/// Which entries are asked for.
#[derive(Clone, Copy)]
enum Targets {
    Hot,
    Uniform,
}

/// What is measured with one set of parameters.
struct Cell {
    op: Op,
    targets: Targets,
    lanes: Vec<Arc<Lane>>,
}

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

    fn run(&self, settings: &Settings) -> anyhow::Result<Samples> {
        let corpus = Corpus::collect(match settings.size {
            Size::Quick => 3_000,
            Size::Full => 100_000,
        });
        let moved = corpus.movable();
        let layouts: [Box<dyn Namespace>; 3] = [
            Box::new(Slots::load(&corpus)?),
            Box::new(Links::load(&corpus)?),
            Box::new(LinksHeld(Links::load(&corpus)?)),
        ];
        let cells = cells(settings, &corpus, &moved);
        let mut samples = Samples::default();
        let bar = progress(cells.len() * settings.threads.len() * settings.rounds);
        let disturbance = Disturbance::start();
        for round in 0..settings.rounds {
            for cell in &cells {
                for &threads in &settings.threads {
                    let plan = Plan {
                        op: cell.op,
                        lanes: &cell.lanes[..threads],
                        moved: &moved,
                        renames_per_s: 0,
                        time: settings.time_per_row / settings.rounds as u32,
                        first: round * 8_191,
                    };
                    for at in rotated(layouts.len(), round) {
                        measure(&*layouts[at], cell, &plan, round, &mut samples)?;
                    }
                    bar.inc(1);
                }
            }
        }
        bar.finish_and_clear();
        eprintln!(
            "names: other processes used {:.0} % of the machine",
            100.0 * disturbance.share()
        );
        Ok(samples)
    }
}

fn cells(settings: &Settings, corpus: &Corpus, moved: &Move) -> Vec<Cell> {
    let threads = settings.threads.iter().copied().max().unwrap_or(1) as u64;
    let draws = if settings.size == Size::Quick { 4_096 } else { 131_072 };
    let mut cells = vec![];
    for op in Op::ALL {
        for targets in [Targets::Hot, Targets::Uniform] {
            let lane = |thread: u64| {
                let seed = 0x5eed_0101 + 2 * thread;
                Arc::new(match targets {
                    Targets::Hot => Lane::draw_hot(corpus, moved, op, 4_096, (seed, HOT)),
                    Targets::Uniform => Lane::draw(corpus, moved, op, draws, seed),
                })
            };
            cells.push(Cell { op, targets, lanes: (0..threads).map(lane).collect() });
        }
    }
    cells
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
    let targets = match cell.targets {
        Targets::Hot => "hot",
        Targets::Uniform => "uniform",
    };
    let params = Params::from([
        ("op", cell.op.name().into()),
        ("targets", targets.into()),
        ("threads", plan.lanes.len().into()),
    ]);
    for metric in [(Metric::OpsPerSecond, slice.ops_per_s), (Metric::NsPerOp, slice.ns_per_op)] {
        samples.add(round, variant, &params, metric, BASELINE);
    }
    Ok(())
}
