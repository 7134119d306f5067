//! Table `lookup`: names to inodes, inodes to paths, paths to inodes.
//!
//! Source: what the inode tables of libfuse, SeaweedFS, fuse_mt and mountpoint-s3 are asked by a
//! kernel, on 100,000 real names. Units: operations per second of wall time (all threads together),
//! nanoseconds of processor time per operation, and bytes of resident memory per entry (`memory`).
//!
//! What is asked (`op`): `lookup` is the namespace work of a FUSE LOOKUP, (parent inode number,
//! name) to inode number with one reference for the client; `path` is inode number to full path,
//! owned; `walk` is absolute path to inode number. Targets are uniform random, so most of them miss
//! the processor's caches. With `renamer` another thread moves a directory of about a
//! hundredth of the entries elsewhere and back that often per second.
//!
//! What cannot be reproduced: 16 processors and more, where shared lines cost what they cost. What
//! is not alike: `linux` answers paths from the descriptor of the parent, and its renamer moves
//! another directory.
//!
//! # Checks
//! Every answer is compared with the tree. The variants that promise to be exact fail the run with
//! a wrong one; those that do not are reported. corewalk's back end must not be asked, but by the
//! renamer, once per rename, whether the target exists.

use anyhow::ensure;
use corewalk_sync::primitives::Arc;

use super::{Settings, Size, Table, progress, rotated};
use crate::baseline::{Linux, Namespace, syscall_ns};
use crate::corpus::{Corpus, Move};
use crate::lane::{Lane, Op};
use crate::machine::Disturbance;
use crate::memory;
use crate::samples::{Metric, Params, Samples};
use crate::slice::{self, Plan, Slice};

/// The variant that all are compared with.
const BASELINE: &str = "rwlock-ahash";
/// Variants with a table of their own, in the order of the rows.
const VARIANTS: [&str; 5] = ["corewalk", BASELINE, "dashmap-path", "papaya", "libfuse-node"];
/// Entries of the tree.
const ENTRIES: [(Size, usize); 2] = [(Size::Quick, 3_000), (Size::Full, 100_000)];
/// Questions drawn ahead per thread.
const DRAWS: [(Size, usize); 2] = [(Size::Quick, 4_096), (Size::Full, 131_072)];
/// Rates of the renamer, per second.
const RENAMES_PER_S: [u32; 2] = [0, 1_000];
/// Slices that are tried until a renamer reached its rate.
const TRIES: usize = 4;

/// The table.
pub(super) struct Lookup;

/// What is measured with one set of parameters.
struct Cell {
    op: Op,
    threads: usize,
    renames_per_s: u32,
}

/// A run: everything that stays the same over its cells.
struct Bench<'a> {
    settings: &'a Settings,
    corpus: Arc<Corpus>,
    moved: Move,
    tables: Vec<Box<dyn Namespace>>,
    lanes: Vec<(Op, Vec<Arc<Lane>>)>,
    samples: Samples,
    doubts: Vec<String>,
}

impl Table for Lookup {
    fn name(&self) -> &'static str {
        "lookup"
    }

    fn source(&self) -> &'static str {
        "what inode tables are asked (libfuse, SeaweedFS, fuse_mt): 100,000 real names"
    }

    fn about(&self) -> &'static str {
        "(parent, name) to inode, inode to path, path to inode; undisturbed and beside a renamer"
    }

    fn run(&self, settings: &Settings) -> anyhow::Result<Samples> {
        let mut bench = Bench::new(settings)?;
        let mut cells = Vec::new();
        for op in Op::ALL {
            for renames_per_s in RENAMES_PER_S {
                let cell = |&threads| Cell { op, threads, renames_per_s };
                cells.extend(settings.threads.iter().map(cell));
            }
        }
        let bar = progress(cells.len() * settings.rounds);
        let disturbance = Disturbance::start();
        for round in 0..settings.rounds {
            for cell in &cells {
                bar.set_message(format!("{} threads={}", cell.op.name(), cell.threads));
                bench.measure(cell, round)?;
                bar.inc(1);
            }
            bench.measure_syscall(round);
        }
        bar.finish_and_clear();
        eprintln!(
            "lookup: other processes used {:.0} % of the machine",
            100.0 * disturbance.share()
        );
        bench.measure_memory();
        for doubt in &bench.doubts {
            eprintln!("lookup: {doubt}");
        }
        Ok(bench.samples)
    }
}

impl<'a> Bench<'a> {
    fn new(settings: &'a Settings) -> anyhow::Result<Bench<'a>> {
        let corpus = Arc::new(Corpus::collect(sized(&ENTRIES, settings.size)));
        let moved = corpus.movable();
        eprintln!(
            "lookup: {} entries, {} of them made up; the renamer moves {} with {} entries below it",
            corpus.len(),
            corpus.made_up(),
            corpus.path(moved.ino).escape_ascii(),
            moved.descendants,
        );
        let mut tables = vec![];
        for variant in VARIANTS {
            tables.extend(memory::load(variant, &corpus)?);
        }
        match Linux::open(&corpus) {
            Ok(linux) => tables.push(Box::new(linux)),
            Err(error) => eprintln!("lookup: skipped linux: {error:#}"),
        }
        let threads_max = settings.threads.iter().copied().max().unwrap_or(1);
        let draws = sized(&DRAWS, settings.size);
        let lane = |op, thread: usize| {
            Arc::new(Lane::draw(&corpus, &moved, op, draws, 0x5eed_0001 + 2 * thread as u64))
        };
        let lanes =
            Op::ALL.map(|op| (op, (0..threads_max).map(|thread| lane(op, thread)).collect()));
        Ok(Bench {
            settings,
            moved,
            tables,
            lanes: lanes.into(),
            samples: Samples::default(),
            doubts: vec![],
            corpus,
        })
    }

    /// Measures all variants with the parameters of `cell`, right after each other.
    fn measure(&mut self, cell: &Cell, round: usize) -> anyhow::Result<()> {
        let mut params = Params::from([
            ("op", cell.op.name().into()),
            ("threads", cell.threads.into()),
            ("renamer", cell.renames_per_s.into()),
        ]);
        for at in rotated(self.tables.len(), round) {
            let variant = self.tables[at].variant();
            let Some(slice) = self.slice(&*self.tables[at], cell, round)? else {
                self.doubts.push(format!(
                    "{variant}: the renamer did not run in round {round} of op={} threads={}",
                    cell.op.name(),
                    cell.threads
                ));
                continue;
            };
            if slice.wrong > 0 {
                self.doubts.push(format!(
                    "{variant}: {} of {} answers were wrong (op={} threads={} renamer={:.0})",
                    slice.wrong,
                    slice.ops,
                    cell.op.name(),
                    cell.threads,
                    slice.renames_per_s
                ));
            }
            for (metric, value) in
                [(Metric::OpsPerSecond, slice.ops_per_s), (Metric::NsPerOp, slice.ns_per_op)]
            {
                self.samples.add(round, variant, &params, (metric, value), BASELINE);
            }
            if cell.renames_per_s > 0 {
                let beside = params.insert("op", "rename".into()).unwrap_or_default();
                params.insert("beside", beside.clone());
                let reached = (Metric::OpsPerSecond, slice.renames_per_s);
                self.samples.add(round, variant, &params, reached, BASELINE);
                params.remove("beside");
                params.insert("op", beside);
            }
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
            moved: &self.moved,
            renames_per_s: cell.renames_per_s,
            time: self.settings.time_per_row / self.settings.rounds as u32,
            first: round * 8_191,
        };
        for _ in 0..TRIES {
            let misses = table.misses();
            let slice = slice::run(table, &plan);
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
            if slice.is_valid {
                return Ok(Some(slice));
            }
        }
        Ok(None)
    }

    /// Measures what a system call costs, which `linux` pays in each operation.
    fn measure_syscall(&mut self, round: usize) {
        let params = Params::from([("op", "syscall".into()), ("threads", 1.into())]);
        let calls = if self.settings.size == Size::Quick { 1_000 } else { 100_000 };
        let cost = (Metric::NsPerOp, syscall_ns(calls));
        self.samples.add(round, "linux", &params, cost, "linux");
    }

    /// Measures bytes per entry, each variant in a process of its own.
    fn measure_memory(&mut self) {
        let Some(again) = &self.settings.again else {
            eprintln!("lookup: skipped bytes per entry: there is no program to start again");
            return;
        };
        let entries = self.corpus.len();
        let resident = Params::from([("entries", entries.into())]);
        let mut arenas = resident.clone();
        arenas.insert("of", "arenas".into());
        for round in 0..memory_rounds(self.settings.size) {
            for variant in VARIANTS {
                let bytes = match memory::measure_apart(again, variant, entries) {
                    Ok(bytes) => bytes,
                    Err(error) => {
                        eprintln!("lookup: skipped the memory of {variant}: {error:#}");
                        continue;
                    }
                };
                for (params, bytes) in [(&resident, bytes.resident), (&arenas, bytes.arenas)] {
                    if bytes > 0 {
                        let each = (Metric::BytesPerEntry, bytes as f64 / entries as f64);
                        self.samples.add(round, variant, params, each, BASELINE);
                    }
                }
            }
        }
    }
}

/// Returns how often memory is measured; it hardly varies.
fn memory_rounds(size: Size) -> usize {
    match size {
        Size::Quick => 1,
        Size::Full => 3,
    }
}

fn sized(sizes: &[(Size, usize)], size: Size) -> usize {
    let found = sizes.iter().find(|(candidate, _)| *candidate == size);
    found.map_or(0, |(_, value)| *value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn quick_run_has_every_variant_and_op_with_a_ratio_to_the_baseline() {
        let settings = Settings {
            size: Size::Quick,
            threads: vec![1, 2],
            time_per_row: Duration::from_millis(25),
            rounds: 5,
            again: None,
        };
        let rows = Lookup.run(&settings).expect("all answers are right").rows();
        for op in Op::ALL {
            for variant in VARIANTS {
                for threads in [1, 2] {
                    let row = rows.iter().find(|row| {
                        row.variant == variant
                            && row.metric == "ops_per_s"
                            && row.params["op"] == op.name()
                            && row.params["threads"] == threads
                            && row.params["renamer"] == 0
                    });
                    let row = row.expect("the row is there");
                    assert!(row.median > 0.0 && row.min <= row.median && row.median <= row.max);
                    assert!(row.rounds == 5 && row.baseline == BASELINE);
                    assert!(row.ratio.is_some_and(|ratio| ratio > 0.0));
                }
            }
        }
    }
}
