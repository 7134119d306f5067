//! The engine of all benchmark tables. It measures every variant with every set of parameters,
//! round by round.
//!
//! A table declares its sweeps. A [`Sweep`] has a list of sets of parameters (cells), the number of
//! variants, its share of the time, and the baseline. So the duration of a run is known before it
//! starts.
//!
//! # How it works
//! In each round, the engine visits each set of parameters (cell), and measures its variants right
//! after each other. Their order changes from round to round. As far as possible, each variant is
//! the first equally often, and follows each other one equally often.
//!
//! [`Run::measure`] adds two result rows per visit: throughput, and processor time per operation.
//! [`Run::files`] does so for the file systems of most workloads. Both call [`Run::each`], which
//! refuses more variants than the sweep declares.
//!
//! An interrupted run ends between two visits, and removes its files.
//!
//! Source: the house rules for measurements in `docs/developing/style.md`, section 7.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use serde_json::Value;

use super::{Settings, sized};
use crate::baseline::syscall_ns;
use crate::before::Design;
use crate::crew::Slice;
use crate::files::{BeforeFiles, Files, Host};
use crate::ours::Ours;
use crate::peer::check_interrupt;
pub(super) use crate::samples::Cell;
use crate::samples::{Metric, Samples};

/// How many system calls are made to compute the mean cost of one, in a quick and in a full run.
const SYSCALLS: (u32, u32) = (1_000, 100_000);

/// The cells that a table measures in the same rounds.
#[derive(Clone, Debug)]
pub(crate) struct Sweep {
    pub(super) cells: Vec<Cell>,
    /// The most variants of a cell.
    pub(super) variants: usize,
    /// The variant that all variants are compared with.
    pub(super) baseline: &'static str,
    /// The measuring time of a variant with one set of parameters, over all rounds, as a fraction
    /// of `time_per_row`.
    pub(super) share: f64,
    /// The factor by which the sweep has more rounds than usual. It is more than 1 if other work on
    /// the machine disturbs a measurement for longer than a time slice.
    pub(super) repeats: usize,
    /// True if the results with one thread also get a row with the parameter `net_of=syscall`, less
    /// the cost of a system call. Only the variant `linux` has this cost.
    pub(super) is_net_of_syscall: bool,
}

/// A run of one table.
pub(crate) struct Run<'a> {
    pub(super) table: &'static str,
    pub(super) settings: &'a Settings,
    /// The sweeps that the table declares.
    pub(super) sweeps: Vec<Sweep>,
}

/// One variant in one cell and one round.
pub(super) struct Visit<'a> {
    pub(super) round: usize,
    pub(super) cell: &'a Cell,
    /// The number of the variant.
    pub(super) at: usize,
}

/// Measures one variant with one set of parameters for the given time.
pub(super) type Measure<'a> = Box<dyn Fn(&Cell, Duration) -> anyhow::Result<Slice> + 'a>;

/// A workload on file systems.
pub(super) trait Workload {
    /// Prepares `files`, and returns the function that measures it.
    ///
    /// # Errors
    /// If something cannot be made in `files`.
    fn enter<'a, F: Files>(&'a self, files: &'a F) -> anyhow::Result<Measure<'a>>;
}

/// Returns every combination of the values of some parameters.
pub(super) fn cells(axes: &[(&'static str, Vec<Value>)]) -> Vec<Cell> {
    axes.iter().fold(vec![Cell::default()], |cells, (key, values)| {
        let with = |cell: &Cell| {
            let with = |value: &Value| cell.with(key, value.clone());
            values.iter().map(with).collect::<Vec<_>>()
        };
        cells.iter().flat_map(with).collect()
    })
}

/// Returns the values of a parameter.
pub(super) fn values<T: Clone + Into<Value>>(list: &[T]) -> Vec<Value> {
    list.iter().cloned().map(Into::into).collect()
}

impl Sweep {
    /// Returns a sweep over `cells`.
    pub(super) fn new(
        cells: Vec<Cell>,
        variants: usize,
        baseline: &'static str,
        share: f64,
    ) -> Sweep {
        Sweep { cells, variants, baseline, share, repeats: 1, is_net_of_syscall: false }
    }

    /// Returns a copy of the sweep with more parameters in each cell.
    pub(super) fn with(&self, params: &[(&'static str, Value)]) -> Sweep {
        let mut sweep = self.clone();
        sweep.cells.iter_mut().for_each(|cell| cell.0.extend(params.iter().cloned()));
        sweep
    }

    /// Returns the time for which one variant is measured in one round with one set of parameters.
    pub(super) fn slice(&self, settings: &Settings) -> Duration {
        (settings.time_per_row / settings.rounds as u32).mul_f64(self.share)
    }

    /// Returns the number of rounds.
    pub(super) fn rounds(&self, settings: &Settings) -> usize {
        settings.rounds * self.repeats
    }

    /// Returns the time of all slices of the sweep.
    pub(crate) fn time(&self, settings: &Settings) -> Duration {
        let slices = self.cells.len() * self.variants * self.rounds(settings);
        self.slice(settings) * slices as u32
    }
}

impl Run<'_> {
    /// Calls `visit` for each variant with each set of parameters in each round. The order of the
    /// variants changes from round to round.
    ///
    /// # Errors
    /// A call of `visit` fails, the user interrupts the run, or `variants` is a larger number than
    /// `sweep` declares.
    pub(super) fn each(
        &self,
        sweep: &Sweep,
        variants: usize,
        mut visit: impl FnMut(Visit<'_>) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let (table, rounds) = (self.table, sweep.rounds(self.settings));
        ensure!(variants <= sweep.variants, "{table}: {variants} variants are too many");
        let time = sweep.time(self.settings).as_secs_f64();
        eprintln!("{table}: measures for about {time:.0} s");
        for round in 0..rounds {
            for cell in &sweep.cells {
                for at in balanced(variants, round) {
                    check_interrupt()?;
                    visit(Visit { round, cell, at })?;
                }
            }
        }
        Ok(())
    }

    /// Measures all variants with all sets of parameters of `sweep`, and adds the result rows.
    ///
    /// # Errors
    /// A wrong answer, an interrupt by the user, or a list `variants` that is longer than `sweep`
    /// declares.
    pub(super) fn measure(
        &self,
        sweep: &Sweep,
        variants: &[(&str, Measure<'_>)],
        samples: &mut Samples,
    ) -> anyhow::Result<()> {
        let (slice, baseline) = (sweep.slice(self.settings), sweep.baseline);
        self.each(sweep, variants.len(), |visit| {
            let (round, cell) = (visit.round, visit.cell);
            let (name, measure) = &variants[visit.at];
            let slice = measure(cell, slice)?;
            slice.add_to(samples, round, name, &cell.0, baseline, &cell.0)?;
            if sweep.is_net_of_syscall && cell.number("threads") == 1 {
                let mut net_ns = slice.ns_per_op();
                if *name == "linux" {
                    let call_ns = syscall_ns(sized(self.settings.size, SYSCALLS));
                    let params = Cell::default().with("threads", 1).with("op", "syscall").0;
                    samples.add(round, name, &params, (Metric::NS_PER_OP, call_ns), name);
                    net_ns = (net_ns - call_ns).max(0.0);
                }
                let params = cell.with("net_of", "syscall").0;
                samples.add(round, name, &params, (Metric::NS_PER_OP, net_ns), baseline);
            }
            Ok(())
        })
    }

    /// Measures `workload` on corewalk's tmpfs and on the host's tmpfs. If `before` is given, also
    /// measures it on this old dentry cache, which gets room for this number of names.
    ///
    /// # Errors
    /// The errors of [`Run::measure`]; a file system cannot be prepared.
    pub(super) fn files<W: Workload>(
        &self,
        sweep: &Sweep,
        before: Option<(Design, usize)>,
        workload: &W,
        samples: &mut Samples,
    ) -> anyhow::Result<()> {
        let (ours, host) = (Ours::on_tmpfs()?, Host::new(self.table));
        let before = before.map(|(design, names)| BeforeFiles::new(design, names)).transpose()?;
        let mut variants = vec![(ours.variant(), workload.enter(&ours)?)];
        if let Some(before) = &before {
            variants.push((before.variant(), workload.enter(before)?));
        }
        match &host {
            Ok(host) => variants.push((host.variant(), workload.enter(host)?)),
            Err(error) => eprintln!("{}: skipped linux: {error:#}", self.table),
        }
        self.measure(sweep, &variants, samples)
    }

    /// Returns the path of this program, which a benchmark starts again as worker or client.
    ///
    /// # Errors
    /// In a unit test, which has no such program.
    pub(super) fn program(&self) -> anyhow::Result<&Path> {
        self.settings.program.as_deref().context("this run cannot start the lab again")
    }
}

/// Returns the numbers from 0 to `count - 1` in an order that depends on `round`.
///
/// The numbers stand for the variants of a round. Over `count` rounds, or `2 * count` if `count` is
/// odd, each number goes first equally often, and follows each other number equally often. A
/// variant finds the caches as the variant before it left them.
///
/// Source: Williams, "Experimental designs balanced for the estimation of residual effects of
/// treatments", 1949.
fn balanced(count: usize, round: usize) -> impl Iterator<Item = usize> {
    // There and back: 0, 1, -1, 2, -2 ...
    let zigzag = move |at: usize| if at % 2 == 1 { at.div_ceil(2) } else { count - at / 2 };
    let is_mirrored = count % 2 == 1 && round % 2 == 1;
    (0..count).map(move |at| {
        let at = if is_mirrored { count - 1 - at } else { at };
        (zigzag(at) + round) % count
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::quick;

    /// Each variant must be the first equally often, and must follow each other variant equally
    /// often. Control: in a rotated order, each variant always follows the same one.
    #[test]
    fn each_variant_goes_first_and_behind_each_other_equally_often() {
        let most_and_least = |count: usize, order: &dyn Fn(usize) -> Vec<usize>| {
            let (mut first, mut behind) = (vec![0; count], vec![vec![0; count]; count]);
            for order in (0..2 * count).map(order) {
                first[order[0]] += 1;
                order.windows(2).for_each(|pair| behind[pair[1]][pair[0]] += 1);
            }
            let pairs = behind.iter().enumerate().flat_map(|(at, before)| {
                before.iter().enumerate().filter(move |(other, _)| *other != at).map(|(_, n)| *n)
            });
            assert_eq!(first, vec![2; count]);
            (pairs.clone().max(), pairs.min())
        };
        for count in 2..8 {
            let balanced = |round| balanced(count, round).collect();
            assert_eq!(most_and_least(count, &balanced), (Some(2), Some(2)), "{count}");
        }
        assert_eq!(balanced(1, 3).collect::<Vec<_>>(), [0]);
        let turned = |round| (0..5).map(|at| (at + round) % 5).collect();
        assert_eq!(most_and_least(5, &turned), (Some(8), Some(0)));
    }

    fn sweep(names: &[&str], variants: usize) -> Sweep {
        Sweep::new(cells(&[("name", values(names))]), variants, "linux", 1.0)
    }

    #[test]
    fn every_variant_is_in_every_cell_once_per_round() {
        let settings = quick::settings();
        let run = Run { table: "engine", settings: &settings, sweeps: vec![] };
        let mut seen = vec![];
        let visited = run.each(&sweep(&["a", "b"], 3), 3, |visit| {
            let name = visit.cell.word("name").to_owned();
            seen.push((visit.round, name, visit.at));
            Ok(())
        });
        assert!(visited.is_ok());
        let order: Vec<_> = seen.iter().map(|(round, name, at)| (*round, &name[..], *at)).collect();
        assert_eq!(order[..4], [(0, "a", 0), (0, "a", 1), (0, "a", 2), (0, "b", 0)]);
        assert_eq!(order[6], (1, "a", 0));
        assert_eq!(seen.len(), 2 * 3 * settings.rounds);
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen.len(), 2 * 3 * settings.rounds, "no visit twice");
    }

    #[test]
    fn more_variants_than_declared_and_a_failed_visit_end_the_run() {
        let settings = quick::settings();
        let run = Run { table: "engine", settings: &settings, sweeps: vec![] };
        let error = run.each(&sweep(&["a"], 1), 2, |_| Ok(())).unwrap_err().to_string();
        assert!(error.contains("2 variants are too many"), "{error}");
        assert!(run.each(&sweep(&["a"], 1), 1, |_| anyhow::bail!("a wrong answer")).is_err());
    }

    #[test]
    fn time_is_that_of_all_slices() {
        let settings = quick::settings();
        let sweep = Sweep { share: 0.5, ..sweep(&["a", "b", "c", "d"], 3) };
        assert_eq!(sweep.time(&settings), settings.time_per_row * 6);
        let twice = Sweep { repeats: 2, ..sweep };
        assert_eq!(twice.time(&settings), settings.time_per_row * 12);
    }

    #[test]
    fn cells_are_every_combination_in_order() {
        let cells = cells(&[("op", values(&["a", "b"])), ("threads", values(&[1, 2]))]);
        let names: Vec<String> = cells.iter().map(Cell::to_string).collect();
        assert_eq!(names, ["op=a threads=1", "op=a threads=2", "op=b threads=1", "op=b threads=2"]);
        assert_eq!((cells[3].word("op"), cells[3].number("threads")), ("b", 2));
    }
}
