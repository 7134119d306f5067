//! The one engine of tables whose variants do the same work in the same cells.
//!
//! A table is a list of cells, which are sets of parameters, a list of variants, and a workload.
//! The engine measures each variant in each cell and adds the rows: throughput, and processor time
//! per operation. It also knows the file systems that most workloads run on ([`Bench::run_files`]).
//!
//! Source: `grid`, for the order of the measurements.

use std::fmt::{self, Display};
use std::time::Duration;

use serde_json::Value;

use super::grid::{Grid, Rounds};
use super::sized;
use crate::baseline::syscall_ns;
use crate::before::Design;
use crate::crew::Slice;
use crate::files::{BeforeFiles, Files, Host, Ours};
use crate::samples::{Metric, Params, Samples};
use crate::text::with_names;

/// System calls whose cost is averaged, in a quick and in a full run.
const SYSCALLS: (u32, u32) = (1_000, 100_000);

/// One set of parameters.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Cell(pub(super) Params);

/// Measures one variant in a cell for so long.
pub(super) type Measure<'a> = Box<dyn Fn(&Cell, Duration) -> anyhow::Result<Slice> + 'a>;

/// The cells of a table and the way their rows are compared.
pub(super) struct Bench<'a> {
    pub(super) rounds: &'a Rounds<'a>,
    pub(super) grid: Grid,
    pub(super) cells: &'a [Cell],
    /// The variant that all variants are compared with.
    pub(super) baseline: &'a str,
    /// True if rows of one thread are also shown without the cost of a system call, which `linux`
    /// pays.
    pub(super) is_net_of_syscall: bool,
}

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

impl Cell {
    /// Returns the cell with one more parameter.
    pub(super) fn with(&self, key: &'static str, value: impl Into<Value>) -> Cell {
        let mut cell = self.clone();
        cell.0.insert(key, value.into());
        cell
    }

    /// Returns a parameter that is a number; 0 if the cell does not have it.
    pub(super) fn number(&self, key: &str) -> usize {
        self.0.get(key).and_then(Value::as_u64).unwrap_or(0) as usize
    }

    /// Returns a parameter that is a word; nothing if the cell does not have it.
    pub(super) fn word(&self, key: &str) -> &str {
        self.0.get(key).and_then(Value::as_str).unwrap_or_default()
    }
}

impl Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&with_names(&self.0))
    }
}

impl<'a> Bench<'a> {
    /// Returns the engine for some cells; no row is net of a system call.
    pub(super) fn new(
        rounds: &'a Rounds<'a>,
        grid: Grid,
        cells: &'a [Cell],
        baseline: &'a str,
    ) -> Bench<'a> {
        Bench { rounds, grid, cells, baseline, is_net_of_syscall: false }
    }

    /// Measures all variants and adds the rows.
    ///
    /// # Errors
    /// A wrong answer, an interrupt, or more variants than the grid has.
    pub(super) fn run(
        &self,
        variants: &[(&str, Measure<'_>)],
        samples: &mut Samples,
    ) -> anyhow::Result<()> {
        let calls = sized(self.rounds.settings().size, SYSCALLS);
        let mut call_ns = 0.0;
        self.rounds.each(&self.grid, (self.cells, variants.len()), |visit| {
            let (round, cell) = (visit.round, visit.cell);
            if self.is_net_of_syscall && visit.is_first {
                call_ns = syscall_ns(calls);
                let params = Params::from([("op", "syscall".into()), ("threads", 1.into())]);
                samples.add(round, "linux", &params, (Metric::NsPerOp, call_ns), "linux");
            }
            let (name, measure) = &variants[visit.at];
            let slice = measure(cell, self.grid.slice)?;
            slice.add_to(samples, round, name, &cell.0, self.baseline)?;
            if self.is_net_of_syscall && cell.number("threads") == 1 {
                let paid = if *name == "linux" { call_ns } else { 0.0 };
                let net = (Metric::NsPerOp, (slice.ns_per_op - paid).max(0.0));
                let params = cell.with("net_of", "syscall").0;
                samples.add(round, name, &params, net, self.baseline);
            }
            Ok(())
        })
    }

    /// Measures `workload` on corewalk's tmpfs, on a design from before with room for so many
    /// names, and on the host.
    ///
    /// # Errors
    /// As [`Bench::run`], and if a file system cannot be prepared.
    pub(super) fn run_files<W: Workload>(
        &self,
        before: Option<(Design, usize)>,
        workload: &W,
        samples: &mut Samples,
    ) -> anyhow::Result<()> {
        let table = self.rounds.table();
        let (ours, host) = (Ours::new()?, Host::new(table));
        let before = before.map(|(design, names)| BeforeFiles::new(design, names)).transpose()?;
        let mut variants = vec![(ours.variant(), workload.enter(&ours)?)];
        if let Some(before) = &before {
            variants.push((before.variant(), workload.enter(before)?));
        }
        match &host {
            Ok(host) => variants.push((host.variant(), workload.enter(host)?)),
            Err(error) => eprintln!("{table}: skipped linux: {error:#}"),
        }
        self.run(&variants, samples)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_are_every_combination_in_order() {
        let cells = cells(&[("op", values(&["a", "b"])), ("threads", values(&[1, 2]))]);
        let names: Vec<String> = cells.iter().map(Cell::to_string).collect();
        assert_eq!(names, ["op=a threads=1", "op=a threads=2", "op=b threads=1", "op=b threads=2"]);
        assert_eq!((cells[3].word("op"), cells[3].number("threads")), ("b", 2));
    }
}
