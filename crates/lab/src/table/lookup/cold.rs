//! Walks over a tree of a million entries, which is in no processor's cache.
//!
//! The rows with `entries` and `targets=uniform` of the table `lookup`. A walk of corewalk takes a step
//! per name; a map from whole paths takes one step, and so waits for memory once. The difference is the
//! price of a cache that can rename a directory at once, where the price is highest.
//!
//! All rows are compared with `best-path-map`: the best of the maps in each round, which is no variant
//! and never slower than one of them.
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
use crate::crew::Slice;
use crate::lane::{Lane, Op};
use crate::memory;
use crate::samples::{Params, Samples};
use crate::slice::Plan;
use crate::table::grid::{Grid, Rounds};
use crate::table::{Settings, sized};

/// The best of the maps in a round.
pub(super) const BASELINE: &str = "best-path-map";
/// The variants; the maps behind the first.
pub(super) const VARIANTS: [&str; 4] = ["corewalk", "dashmap-path", "papaya-path", "scc-path"];
/// Entries of the tree.
pub(super) const ENTRIES: (usize, usize) = (5_000, 1_000_000);
/// Questions drawn ahead per thread: more than are asked in a slice.
const DRAWS: (usize, usize) = (4_096, 524_288);

/// The result of a variant in a round with so many threads.
struct Reached {
    round: usize,
    threads: usize,
    variant: &'static str,
    slice: Slice,
}

/// Returns the grid of [`run`].
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
    let corpus = Corpus::collect(sized(settings.size, ENTRIES));
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
    let most = cells.iter().map(|threads| threads.0).max().unwrap_or(1);
    let lanes: Vec<Arc<Lane>> = (0..most).map(lane).collect();
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
            // Elsewhere in each round: the last questions may still be in a cache.
            first: round * (draws / settings.rounds),
        };
        let slice = calm(table, &plan)?;
        reached.push(Reached { round, threads, variant: table.variant(), slice });
        Ok(())
    })?;
    add(&reached, corpus.len(), samples);
    Ok(())
}

/// Adds the rows of all variants, and those of the best of the maps.
fn add(reached: &[Reached], entries: usize, samples: &mut Samples) {
    for this in reached {
        let maps = || {
            let is_beside = |other: &&Reached| {
                (other.round, other.threads) == (this.round, this.threads)
                    && VARIANTS[1..].contains(&other.variant)
            };
            reached.iter().filter(is_beside).map(|map| map.slice)
        };
        let params = Params::from([
            ("op", Op::Walk.name().into()),
            ("targets", "uniform".into()),
            ("entries", entries.into()),
            ("threads", this.threads.into()),
        ]);
        let speed = (this.slice.ops_per_s, this.slice.ns_per_op);
        samples.add_speed(this.round, this.variant, &params, speed, BASELINE);
        if this.variant == VARIANTS[0] {
            let rate = maps().map(|map| map.ops_per_s).fold(0.0, f64::max);
            let cost = maps().map(|map| map.ns_per_op).fold(f64::INFINITY, f64::min);
            samples.add_speed(this.round, BASELINE, &params, (rate, cost), BASELINE);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn best_map_is_the_better_one_of_each_round() {
        let mut reached = vec![];
        for (round, costs) in
            [[30.0, 10.0, 20.0, 40.0], [30.0, 60.0, 20.0, 15.0]].into_iter().enumerate()
        {
            for (variant, ns_per_op) in VARIANTS.into_iter().zip(costs) {
                let (ops_per_s, span) = (1e9 / ns_per_op, Duration::from_secs(1));
                let slice = Slice { ops_per_s, ns_per_op, ops: 1, wrong: 0, span };
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
