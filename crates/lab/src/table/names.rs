//! The measurements of the tables `lookup` and `path`, in which all variants answer the same
//! questions.
//!
//! There are three measurements. A target is the entry to which a walk goes, or whose path is asked
//! for.
//! - Over the tree ([`over_tree`], `renamer=0`): any of 100,000 entries, most of which miss the
//!   processor's caches. No thread renames.
//! - Hot ([`hot`], `targets=hot`): few entries at a depth of eight, which stay in the caches. So
//!   the results show the cost of a walk or path translation that waits for no memory. Only this
//!   measurement also compares with the host kernel less the cost of a system call. `op=walk` has
//!   64 targets. `op=path` has one directory, since its variant `linux` is getcwd(2).
//! - Cold ([`cold`], `entries=1000000`): any entries of a tree of a million entries. Nearly every
//!   access misses the caches. The baseline in each round is the fastest of three maps that have
//!   whole paths as keys.
//!
//! # Checks
//! Every answer is compared with the tree of names (`Corpus`). corewalk must not call its file
//! system.
//!
//! Source: stat(2), getcwd(2).

use super::prelude::*;
use crate::baseline::{self, Linux, Namespace};
use crate::corpus::{Corpus, ROOT, SYNTHETIC};
use crate::questions::Questions;
use std::cell::Cell as Counter;
use std::time::Instant;

/// The baseline over the tree.
pub(super) const BASELINE: &str = "rwlock-ahash";
/// The baseline of walks in the tree of a million entries. In each round it has the result of the
/// fastest of [`MAPS`].
pub(super) const BEST_MAP: &str = "best-path-map";
/// Variants that hold the names of the tree.
pub(super) const VARIANTS: [&str; 4] = ["corewalk", "corewalk-table", BASELINE, "libfuse-node"];
/// Maps from whole paths.
pub(super) const MAPS: [&str; 3] = ["dashmap-path", "papaya-path", "scc-path"];
/// Number of entries of the tree. `MILLION` is that of the large tree.
const ENTRIES: (usize, usize) = (3_000, 100_000);
pub(super) const MILLION: (usize, usize) = (5_000, 1_000_000);
/// Questions drawn ahead per worker.
const DRAWS: (usize, usize) = (4_096, 131_072);
const DRAWS_COLD: (usize, usize) = (4_096, 524_288);
const DRAWS_HOT: usize = 4_096;
/// Each slice starts this number of questions after the start of the slice before it, so that it
/// asks other questions.
const STEP: usize = 8_191;
/// The depth of the few entries that [`hot`] uses, or the largest depth of the tree if that is
/// less.
pub(super) const DEPTH: usize = 8;
/// Number of entries to which a hot walk may go.
const WALKED: usize = 64;

/// The tree in every variant.
pub(super) struct Forest {
    pub(super) corpus: Corpus,
    tables: Vec<Box<dyn Namespace>>,
}

impl Forest {
    /// Loads the same tree into every implementation.
    ///
    /// # Errors
    /// An error of loading.
    pub(super) fn load(table: &str, settings: &Settings) -> anyhow::Result<Forest> {
        let corpus = Corpus::collect(sized(settings.size, ENTRIES));
        eprintln!("{table}: {} entries, {} of them made up", corpus.len(), corpus.made_up);
        let tables = load(&VARIANTS, &corpus)?;
        Ok(Forest { corpus, tables })
    }
}

fn load(variants: &[&str], corpus: &Corpus) -> anyhow::Result<Vec<Box<dyn Namespace>>> {
    let load = |variant: &&str| baseline::load(variant, corpus);
    variants.iter().map(load).collect()
}

/// Returns the sweep of [`over_tree`].
pub(super) fn tree_sweep(op: Op, settings: &Settings) -> Sweep {
    let threads = values(&settings.threads);
    let axes = [("op", values(&[op.name()])), ("renamer", values(&[0])), ("threads", threads)];
    Sweep::new(cells(&axes), VARIANTS.len(), BASELINE, 1.0)
}

/// Returns the sweep of [`hot`]. The names that its threads look up are chosen later.
pub(super) fn hot_sweep(settings: &Settings) -> Sweep {
    let sweep = with_processors(VARIANTS.len() + 1 + MAPS.len(), "linux", settings);
    Sweep { is_net_of_syscall: true, ..sweep }
}

/// Returns the sweep of [`cold`] without its tree, which is loaded later.
pub(super) fn cold_sweep(settings: &Settings) -> Sweep {
    with_processors(1 + MAPS.len(), BEST_MAP, settings)
}

fn with_processors(variants: usize, baseline: &'static str, settings: &Settings) -> Sweep {
    let cells = cells(&[("threads", values(&settings.threads_with_processors()))]);
    Sweep::new(cells, variants, baseline, 1.0)
}

/// Measures the operation `op` in every variant, for random entries of the whole tree.
///
/// # Errors
/// An answer is wrong, or corewalk called the file system below it.
pub(super) fn over_tree(
    run: &Run<'_>,
    sweep: &Sweep,
    op: Op,
    forest: &Forest,
    samples: &mut Samples,
) -> anyhow::Result<()> {
    let draws = sized(run.settings.size, DRAWS);
    let draw = |seed| Questions::draw(&forest.corpus, op, draws, 0x5eed_0001 + seed, &[]);
    let tables: Vec<_> = forest.tables.iter().map(|table| &**table).collect();
    ask(run, sweep, op, &tables, draw, samples)
}

/// Measures every variant on a few entries, and adds the rows.
///
/// # Errors
/// As [`over_tree`], and a tree without names.
pub(super) fn hot(
    run: &Run<'_>,
    sweep: &Sweep,
    op: Op,
    forest: &Forest,
    samples: &mut Samples,
) -> anyhow::Result<()> {
    let corpus = &forest.corpus;
    let (depth, pool) = pool(corpus, op).context("the tree has no names")?;
    let mut more = if op == Op::Walk { load(&MAPS, corpus)? } else { vec![] };
    match Linux::open(corpus, &pool) {
        Ok(linux) => more.push(Box::new(linux)),
        Err(error) => eprintln!("{}: skipped linux: {error:#}", run.table),
    }
    let tables: Vec<_> = forest.tables.iter().chain(&more).map(|table| &**table).collect();
    let at = [("op", op.name().into()), ("targets", "hot".into()), ("depth", depth.into())];
    let draw = |seed| Questions::draw(corpus, op, DRAWS_HOT, 0x5eed_0501 + seed, &pool);
    ask(run, &sweep.with(&at), op, &tables, draw, samples)
}

/// Measures walks of corewalk and of the path maps in a tree of a million entries.
///
/// # Errors
/// As [`over_tree`].
pub(super) fn cold(run: &Run<'_>, sweep: &Sweep, samples: &mut Samples) -> anyhow::Result<()> {
    let (size, began) = (run.settings.size, Instant::now());
    let corpus = Corpus::collect(sized(size, MILLION));
    let tables = load(&[&["corewalk"][..], &MAPS].concat(), &corpus)?;
    let (entries, made_up) = (corpus.len(), corpus.made_up);
    let seconds = began.elapsed().as_secs_f64();
    eprintln!("lookup: loaded {entries} entries, {made_up} of them made up, in {seconds:.1} s");
    let tree = [("op", "walk".into()), ("targets", "uniform".into()), ("entries", entries.into())];
    let draws = sized(size, DRAWS_COLD);
    let draw = |seed| Questions::draw(&corpus, Op::Walk, draws, 0x5eed_0601 + seed, &[]);
    let tables: Vec<_> = tables.iter().map(|table| &**table).collect();
    ask(run, &sweep.with(&tree), Op::Walk, &tables, draw, samples)?;
    samples.add_best(BEST_MAP, &MAPS);
    Ok(())
}

/// Measures all variants with all sets of parameters. `draw` chooses the random operations of one
/// worker, from a seed.
fn ask(
    run: &Run<'_>,
    sweep: &Sweep,
    op: Op,
    tables: &[&dyn Namespace],
    draw: impl Fn(u64) -> Questions,
    samples: &mut Samples,
) -> anyhow::Result<()> {
    let workers = sweep.cells.iter().map(|cell| cell.number("threads")).max().unwrap_or(1);
    let questions: Vec<Questions> = (0..workers as u64).map(|worker| draw(2 * worker)).collect();
    let mut variants: Vec<(&str, Measure<'_>)> = vec![];
    for &table in tables {
        let (questions, next) = (&questions, Counter::new(0));
        let measure = move |cell: &Cell, time| {
            next.set(next.get() + STEP);
            measure(table, op, &questions[..cell.number("threads")], next.get(), time)
        };
        variants.push((table.variant(), Box::new(measure)));
    }
    run.measure(sweep, &variants, samples)
}

/// Lets each worker do its operations (questions), from number `first` on.
fn measure(
    table: &dyn Namespace,
    op: Op,
    questions: &[Questions],
    first: usize,
    time: Duration,
) -> anyhow::Result<Slice> {
    let misses = table.stats().misses;
    let slice = crew::run(questions.len(), time, |worker, turn| {
        table.begin();
        table.work(op, &questions[worker], first, turn)
    });
    ensure!(table.stats().misses == misses, "{}: the back end was asked", table.variant());
    Ok(slice)
}

/// Returns the few entries that [`hot`] uses again and again, and their depth.
fn pool(corpus: &Corpus, op: Op) -> Option<(usize, Vec<u64>)> {
    let is_usable = |&ino: &u64| {
        ![ROOT, SYNTHETIC].contains(&ino) && (op != Op::Path || corpus.is_directory(ino))
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
    fn pool_is_as_deep_as_wanted() {
        let corpus = Corpus::collect(40_000);
        for (op, most) in [(Op::Walk, WALKED), (Op::Path, 1)] {
            let (depth, pool) = pool(&corpus, op).unwrap();
            assert!(depth == DEPTH && (1..=most).contains(&pool.len()));
            for ino in pool {
                assert_eq!(corpus.path(ino).iter().filter(|&&byte| byte == b'/').count(), DEPTH);
                assert!(op == Op::Walk || corpus.is_directory(ino));
            }
        }
    }

    #[test]
    fn wrong_answers_of_every_op_are_counted() {
        let corpus = Corpus::collect(2000);
        let other = Corpus::collect(2001);
        for table in load(&VARIANTS, &corpus).unwrap() {
            for op in Op::ALL {
                let time = Duration::from_millis(5);
                let questions = [Questions::draw(&corpus, op, 500, 7, &[])];
                let slice = measure(&*table, op, &questions, 10, time).unwrap();
                assert!(slice.ops > 0 && slice.wrong == 0, "{}", table.variant());
                // Control: ask `table` for an entry that only the tree `other` has. Each answer
                // must count as wrong.
                let last = [other.len() as u64];
                let questions = [Questions::draw(&other, op, 10, 7, &last)];
                let outcome = measure(&*table, op, &questions, 0, time);
                let is_found = |slice: Slice| slice.wrong == slice.ops;
                assert!(outcome.map_or(true, is_found), "{}", table.variant());
            }
        }
    }
}
