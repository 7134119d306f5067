//! Questions about few entries at a depth of eight, which stay in the processor's caches.
//!
//! The rows with `targets=hot` of the tables `lookup` and `path`: what a walk or a translation costs when
//! no memory is waited for, and so the one figure in which the host kernel can be compared, net of the
//! system call that it takes to ask it. Rows with `net_of=syscall` have that call taken off `linux`,
//! round by round; the call itself is the row `op=syscall`. The others make none, and stand there as
//! they are.
//!
//! A walk is asked about 64 entries. A path is asked about one directory, since a process has one:
//! `linux` is then getcwd(2) of threads that work there.
//!
//! # What it refuses
//! More threads than processors, which would measure the scheduler.
//!
//! Source: stat(2), getcwd(2).

use anyhow::Context as _;
use corewalk_base::primitives::Arc;
use serde_json::Value;

use super::uniform::{Forest, calm};
use crate::baseline::{Cwd, Namespace, PapayaPath, SccPath, syscall_ns};
use crate::corpus::{Corpus, Move, ROOT};
use crate::lane::{Lane, Op};
use crate::samples::{Metric, Params, Samples};
use crate::slice::{Plan, Slice};
use crate::table::grid::{Grid, Rounds};
use crate::table::{Settings, sized};

/// The variant that all are compared with.
pub(in crate::table) const BASELINE: &str = "linux";
/// Names on the way to what is asked for, or as many as there are.
pub(in crate::table) const DEPTH: usize = 8;
/// Entries that a walk is asked about.
const WALKED: usize = 64;
/// Questions drawn ahead per thread.
const DRAWS: usize = 4_096;
/// Variants there are, of walks: those of the forest with the kernel, and two maps.
const VARIANTS: usize = super::uniform::VARIANTS.len() + 3;

/// Returns what [`run`] measures.
pub(in crate::table) fn grid(settings: &Settings) -> Grid {
    Grid::new(settings, settings.threads_with_processors().len(), VARIANTS, 1.0)
}

/// Returns the parameters of the rows of `op`; what is asked for has `depth` names.
pub(in crate::table) fn params(op: Op, depth: usize) -> [(&'static str, Value); 3] {
    [("op", op.name().into()), ("targets", "hot".into()), ("depth", depth.into())]
}

/// Asks all variants for `op`, and adds the rows.
///
/// # Errors
/// A wrong answer of a variant that promises right ones; a tree without names.
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
    let cells = rounds.threads();
    let lane = |thread: usize| {
        let seed = 0x5eed_0501 + 2 * thread as u64;
        Arc::new(Lane::draw_among(corpus, moved, op, DRAWS, (seed, &pool)))
    };
    let lanes: Vec<Arc<Lane>> =
        (0..cells.iter().map(|threads| threads.0).max().unwrap_or(1)).map(lane).collect();
    let grid = grid(settings);
    let calls = sized(settings.size, (1_000, 100_000));
    let mut bare_ns = 0.0;
    rounds.each(&grid, (&cells, tables.len()), |visit| {
        if visit.is_first {
            bare_ns = syscall_ns(calls);
            let params = Params::from([("op", "syscall".into()), ("threads", 1.into())]);
            samples.add(visit.round, "linux", &params, (Metric::NsPerOp, bare_ns), "linux");
        }
        let plan = Plan {
            op,
            lanes: &lanes[..visit.cell.0],
            moved,
            renames_per_s: 0,
            time: grid.slice,
            first: 0,
        };
        let slice = calm(tables[visit.at], &plan)?;
        let mut params = Params::from(params(op, depth));
        params.insert("threads", visit.cell.0.into());
        add(samples, visit.round, tables[visit.at].variant(), params, (slice, bare_ns));
        Ok(())
    })
}

/// Adds the rows of a slice, and with one thread what is left without the system call.
fn add(
    samples: &mut Samples,
    round: usize,
    variant: &str,
    mut params: Params,
    (slice, bare_ns): (Slice, f64),
) {
    for measured in [(Metric::OpsPerSecond, slice.ops_per_s), (Metric::NsPerOp, slice.ns_per_op)] {
        samples.add(round, variant, &params, measured, BASELINE);
    }
    if params["threads"] == 1 {
        params.insert("net_of", "syscall".into());
        let paid = if variant == BASELINE { bare_ns } else { 0.0 };
        let net = (slice.ns_per_op - paid).max(0.0);
        samples.add(round, variant, &params, (Metric::NsPerOp, net), BASELINE);
    }
}

/// Returns who is measured besides those of the forest.
fn more(op: Op, corpus: &Corpus, pool: &[u64]) -> Vec<Box<dyn Namespace>> {
    match op {
        Op::Walk => vec![Box::new(PapayaPath::load(corpus)), Box::new(SccPath::load(corpus))],
        Op::Lookup => vec![],
        Op::Path => match Cwd::open(&corpus.path(pool[0])) {
            Ok(cwd) => vec![Box::new(cwd)],
            Err(error) => {
                eprintln!("path: skipped getcwd: {error:#}");
                vec![]
            }
        },
    }
}

/// Returns what is asked about, and how deep it is: as deep as is wanted, or as there is.
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
