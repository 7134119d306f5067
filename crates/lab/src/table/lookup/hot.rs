//! Questions about few entries at a depth of eight, which stay in the processor's caches.
//!
//! The rows with `targets=hot` of the tables `lookup` and `path`: the cost of a walk or a translation
//! that waits for no memory, so the one figure in which the host kernel can be compared, net of the
//! system call that it takes to ask it. Rows with `net_of=syscall` have that call taken off `linux`,
//! round by round; the call itself is the row `op=syscall`. The others make no system call.
//!
//! A walk is asked about 64 entries. A path is asked about one directory, since a process has one
//! working directory: `linux` is then getcwd(2) of threads that work there.
//!
//! # What it refuses
//! More threads than processors, which would measure the scheduler.
//!
//! Source: stat(2), getcwd(2).

use anyhow::Context as _;
use corewalk_base::primitives::Arc;
use serde_json::Value;

use super::uniform::{Forest, calm};
use crate::baseline::{Cwd, Namespace, dashmap_path, papaya_path, scc_path};
use crate::corpus::{Corpus, Move, ROOT};
use crate::lane::{Lane, Op};
use crate::samples::{Params, Samples};
use crate::slice::Plan;
use crate::table::Settings;
use crate::table::bench::{Bench, Cell, Measure};
use crate::table::grid::{Grid, Rounds, Threads};

/// The variant that all are compared with.
const BASELINE: &str = "linux";
/// Names on the way to the target, or as many as there are.
pub(in crate::table) const DEPTH: usize = 8;
/// Entries that a walk is asked about.
const WALKED: usize = 64;
/// Questions drawn ahead per thread.
const DRAWS: usize = 4_096;
/// The number of variants of walks: the variants of the forest, the kernel, and three maps.
const VARIANTS: usize = super::uniform::VARIANTS.len() + 4;

/// Returns the grid of [`run`].
pub(in crate::table) fn grid(settings: &Settings) -> Grid {
    Grid::new(settings, settings.threads_with_processors().len(), VARIANTS, 1.0)
}

/// Returns the parameters of the rows of `op`, whose targets have `depth` names.
pub(in crate::table) fn params(op: Op, depth: usize) -> [(&'static str, Value); 3] {
    [("op", op.name().into()), ("targets", "hot".into()), ("depth", depth.into())]
}

/// Asks all variants for `op`, and adds the rows.
///
/// # Errors
/// A wrong answer; a tree without names.
pub(in crate::table) fn run(
    op: Op,
    forest: &Forest,
    (rounds, settings): (&Rounds<'_>, &Settings),
    samples: &mut Samples,
) -> anyhow::Result<()> {
    let Forest { corpus, moved, tables } = forest;
    let (depth, pool) = pool(corpus, moved, op).context("the tree has no names")?;
    let more = more(op, corpus, &pool);
    let is_asked = |table: &&dyn Namespace| op == Op::Walk || table.variant() != BASELINE;
    let tables = tables.iter().map(|table| &**table).filter(is_asked);
    let tables: Vec<&dyn Namespace> = tables.chain(more.iter().map(|table| &**table)).collect();
    let threads = rounds.threads();
    let lane = |thread: usize| {
        let seed = 0x5eed_0501 + 2 * thread as u64;
        Arc::new(Lane::draw_among(corpus, moved, op, DRAWS, (seed, &pool)))
    };
    let most = threads.iter().map(|threads| threads.0).max().unwrap_or(1);
    let lanes: Vec<Arc<Lane>> = (0..most).map(lane).collect();
    let cell =
        |Threads(count): &Threads| Cell(Params::from(params(op, depth))).with("threads", *count);
    let cells: Vec<Cell> = threads.iter().map(cell).collect();
    let variant = |table| {
        let lanes = &lanes;
        let measure: Measure<'_> = Box::new(move |cell, time| {
            let lanes = &lanes[..cell.number("threads")];
            calm(table, &Plan { op, lanes, moved, renames_per_s: 0, time, first: 0 })
        });
        (table.variant(), measure)
    };
    let variants: Vec<_> = tables.into_iter().map(variant).collect();
    let bench = Bench {
        rounds,
        grid: grid(settings),
        cells: &cells,
        baseline: BASELINE,
        is_net_of_syscall: true,
    };
    bench.run(&variants, samples)
}

/// Returns the variants besides those of the forest.
fn more(op: Op, corpus: &Corpus, pool: &[u64]) -> Vec<Box<dyn Namespace>> {
    match op {
        Op::Lookup => vec![],
        Op::Walk => vec![
            Box::new(dashmap_path(corpus)),
            Box::new(papaya_path(corpus)),
            Box::new(scc_path(corpus)),
        ],
        Op::Path => match Cwd::open(&corpus.path(pool[0])) {
            Ok(cwd) => vec![Box::new(cwd)],
            Err(error) => {
                eprintln!("path: skipped getcwd: {error:#}");
                vec![]
            }
        },
    }
}

/// Returns the targets, and their depth: as deep as is wanted, or as deep as the tree is.
fn pool(corpus: &Corpus, moved: &Move, op: Op) -> Option<(usize, Vec<u64>)> {
    let is_usable = |&ino: &u64| {
        ![ROOT, corpus.synthetic()].contains(&ino)
            && !corpus.is_below(ino, moved.ino)
            && (op != Op::Path || corpus.is_directory(ino))
    };
    (1..=DEPTH).rev().find_map(|depth| {
        let deep: Vec<u64> =
            corpus.inodes().filter(is_usable).filter(|&ino| corpus.depth(ino) == depth).collect();
        let count = if op == Op::Path { 1 } else { WALKED };
        let every = (deep.len() / count).max(1);
        let pool: Vec<u64> = deep.into_iter().step_by(every).take(count).collect();
        (!pool.is_empty()).then_some((depth, pool))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pool_is_as_deep_as_wanted_and_never_what_moves() {
        let corpus = Corpus::collect(40_000);
        let moved = corpus.movable();
        for (op, most) in [(Op::Walk, WALKED), (Op::Path, 1)] {
            let (depth, pool) = pool(&corpus, &moved, op).unwrap();
            assert_eq!(depth, DEPTH);
            assert!((1..=most).contains(&pool.len()));
            for ino in pool {
                assert_eq!(corpus.path(ino).iter().filter(|&&byte| byte == b'/').count(), DEPTH);
                assert!(!corpus.is_below(ino, moved.ino));
                assert!(op == Op::Walk || corpus.is_directory(ino));
            }
        }
    }
}
