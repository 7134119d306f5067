//! Walks over a tree of a million entries, which is in no processor's cache.
//!
//! The rows with `entries` and `targets=uniform` of the table `lookup`. A walk of corewalk takes a step
//! per name; a map from whole paths takes one, and so waits for memory once. How much is between them
//! is what a cache that can rename a directory at once costs, where it costs most.
//!
//! All rows are held against `best-path-map`, which is the best of the maps in each round; it is nobody,
//! and never slower than any of them.
//!
//! # What it refuses
//! The host kernel, for which a million files would have to be made.
//!
//! Source: the crates `dashmap`, `papaya` and `scc`.

use std::time::Instant;

use anyhow::Context as _;
use corewalk_base::primitives::Arc;

use super::uniform::calm;
use crate::corpus::Corpus;
use crate::lane::{Lane, Op};
use crate::memory;
use crate::samples::{Metric, Params, Samples};
use crate::slice::{Plan, Slice};
use crate::table::grid::{Grid, Rounds};
use crate::table::{Settings, sized};

/// The best of the maps in a round, which all are compared with.
pub(super) const BASELINE: &str = "best-path-map";
/// Who is measured; the maps behind the first.
pub(super) const VARIANTS: [&str; 4] = ["corewalk", "dashmap-path", "papaya-path", "scc-path"];
/// Entries of the tree.
pub(super) const ENTRIES: (usize, usize) = (5_000, 1_000_000);
/// Questions drawn ahead per thread: more than are asked in a slice.
const DRAWS: (usize, usize) = (4_096, 524_288);

/// What a variant reached in a round with so many threads.
struct Reached {
    round: usize,
    threads: usize,
    variant: &'static str,
    slice: Slice,
}

/// Returns what [`run`] measures.
pub(super) fn grid(settings: &Settings) -> Grid {
    Grid::new(settings, settings.threads_with_processors().len(), VARIANTS.len(), 1.0)
}

/// Asks all variants, and adds the rows.
///
/// # Errors
/// A wrong answer, or a tree that does not fit.
pub(super) fn run(
    (rounds, settings): (&Rounds<'_>, &Settings),
    samples: &mut Samples,
) -> anyhow::Result<()> {
    let began = Instant::now();
    let corpus = Arc::new(Corpus::collect(sized(settings.size, ENTRIES)));
    let moved = corpus.movable();
    let mut tables = vec![];
    for variant in VARIANTS {
        tables.push(memory::load(variant, &corpus)?.context("no such variant")?);
    }
    let cells = rounds.threads();
    let draws = sized(settings.size, DRAWS);
    let lane = |thread: usize| {
        Arc::new(Lane::draw(&corpus, &moved, Op::Walk, draws, 0x5eed_0601 + 2 * thread as u64))
    };
    let lanes: Vec<Arc<Lane>> =
        (0..cells.iter().map(|threads| threads.0).max().unwrap_or(1)).map(lane).collect();
    eprintln!(
        "lookup: a tree of {} entries, {} of them made up, was there after {:.1} s",
        corpus.len(),
        corpus.made_up(),
        began.elapsed().as_secs_f64()
    );
    let grid = grid(settings);
    let mut reached = vec![];
    rounds.each(&grid, (&cells, tables.len()), |visit| {
        let (threads, round, table) = (visit.cell.0, visit.round, &*tables[visit.at]);
        let plan = Plan {
            op: Op::Walk,
            lanes: &lanes[..threads],
            moved: &moved,
            renames_per_s: 0,
            time: grid.slice,
            // Elsewhere in each round: what was asked last time may still be in a cache.
            first: round * (draws / settings.rounds),
        };
        let slice = calm(table, &plan)?;
        reached.push(Reached { round, threads, variant: table.variant(), slice });
        Ok(())
    })?;
    add(&reached, corpus.len(), samples);
    Ok(())
}

/// Adds the rows of all, and those of the best of the maps.
fn add(reached: &[Reached], entries: usize, samples: &mut Samples) {
    for this in reached {
        let beside = reached.iter().filter(|other| {
            (other.round, other.threads) == (this.round, this.threads)
                && VARIANTS[1..].contains(&other.variant)
        });
        let rates = (
            Metric::OpsPerSecond,
            this.slice.ops_per_s,
            beside.clone().map(|o| o.slice.ops_per_s).reduce(f64::max),
        );
        let costs = (
            Metric::NsPerOp,
            this.slice.ns_per_op,
            beside.map(|o| o.slice.ns_per_op).reduce(f64::min),
        );
        let params = Params::from([
            ("op", Op::Walk.name().into()),
            ("targets", "uniform".into()),
            ("entries", entries.into()),
            ("threads", this.threads.into()),
        ]);
        for (metric, value, best) in [rates, costs] {
            samples.add(this.round, this.variant, &params, (metric, value), BASELINE);
            if let (Some(best), "corewalk") = (best, this.variant) {
                samples.add(this.round, BASELINE, &params, (metric, best), BASELINE);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn best_map_is_the_better_one_of_each_round() {
        let mut reached = vec![];
        for (round, costs) in
            [[30.0, 10.0, 20.0, 40.0], [30.0, 60.0, 20.0, 15.0]].into_iter().enumerate()
        {
            for (variant, ns_per_op) in VARIANTS.into_iter().zip(costs) {
                let slice = Slice {
                    ops_per_s: 1e9 / ns_per_op,
                    ns_per_op,
                    ops: 1,
                    wrong: 0,
                    renames: 0,
                    renames_per_s: 0.0,
                    is_valid: true,
                };
                reached.push(Reached { round, threads: 1, variant, slice });
            }
        }
        let mut samples = Samples::default();
        add(&reached, 7, &mut samples);
        let rows = samples.rows();
        let row = |variant: &str, metric: &str| {
            rows.iter().find(|row| row.variant == variant && row.metric == metric).unwrap()
        };
        let best = row(BASELINE, "ns_per_op");
        assert_eq!((best.min, best.max, best.rounds, best.ratio), (10.0, 15.0, 2, Some(1.0)));
        assert_eq!(row("corewalk", "ns_per_op").ratio, Some(2.5));
        let rate = row("corewalk", "ops_per_s").ratio.unwrap();
        assert!((rate - 0.4166).abs() < 1e-3, "{rate}");
    }
}
