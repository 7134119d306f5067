//! The tables: what each one measures and where it comes from.
//!
//! A table is a benchmark. It declares ([`Table`]) the sweeps that it measures and a function that
//! measures them. The file `words.json` has the texts of all tables, the figures of their sources,
//! and the claims with their bounds.
//!
//! One engine measures all tables (`engine`). It runs the variants interleaved in one process,
//! round by round, each time in another order. So neither a drift of the machine nor the order
//! favours a variant. `samples` turns the measurements into rows, and `shape` tests the claims.
//!
//! # How long it takes
//! A sweep is a list of sets of parameters. The duration of a run is computed from the sweeps
//! before it starts. By default all tables are measured in less than a third of an hour on two
//! cores, which a test checks.

mod aim7_short;
mod cluster_metadata;
mod create_one_dir;
mod engine;
mod fuse_metadata;
mod hot_leaf;
mod ipc_users;
mod lookup;
mod mbcache;
mod msg;
mod multiuser;
mod names;
mod path;
mod path_under_rename;
mod real_work;
mod redo_size;
mod rename;
mod semop_multi;
pub(crate) mod shape;
mod small_loads;
mod wakeup;
mod xattr;

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::LazyLock;
use std::time::Duration;

pub(crate) use engine::{Run, Sweep};
use serde::Deserialize;
pub(crate) use shape::Claim;
use shape::Stated;

use crate::machine::cores;
use crate::peer::check_interrupt;
use crate::samples::{Row, Samples};
use crate::sems::apart;

/// The items that most tables import.
mod prelude {
    pub(super) use std::time::Duration;

    pub(super) use anyhow::{Context as _, ensure};
    pub(super) use serde_json::Value;

    pub(super) use super::engine::{Cell, Measure, Run, Sweep, Visit, Workload, cells, values};
    pub(super) use super::{Settings, Size, Table, sized};
    pub(super) use crate::cpus;
    pub(super) use crate::crew::{self, Laps, Pinning, Slice, Turn};
    pub(super) use crate::ours::Ours;
    pub(super) use crate::peer::Scratch;
    pub(super) use crate::questions::{Op, Tally};
    pub(super) use crate::samples::{Metric, Samples};
    pub(super) use fastrand::Rng;
}

/// One table.
pub(crate) struct Table {
    /// The name on the command line.
    pub(crate) name: &'static str,
    /// Returns the cells that a run measures.
    pub(crate) sweeps: fn(&Settings) -> Vec<Sweep>,
    /// Runs the measurements of this table: each variant with each set of parameters that `sweeps`
    /// returns. Fails if an answer is wrong, or if something that the measurement needs is missing.
    pub(crate) run: fn(&Run<'_>, &mut Samples) -> anyhow::Result<()>,
}

/// The texts of all tables, by the name of the table.
static WORDS: LazyLock<HashMap<&str, Words>> = LazyLock::new(|| {
    serde_json::from_str(include_str!("table/words.json")).expect("a test reads it")
});

/// The texts and published figures of a table, from `words.json`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Words {
    /// The document whose question the table answers.
    pub(crate) source: &'static str,
    /// The measurement, in one line.
    pub(crate) about: &'static str,
    /// The claim about corewalk, in one sentence.
    pub(crate) claim: &'static str,
    /// The rows that show the claim.
    pub(crate) plot: Plot,
    /// The claims that are tested, with their bounds.
    #[serde(default)]
    pub(crate) claims: Vec<Stated>,
    /// The curves that the source publishes, if it publishes any.
    pub(crate) published: Option<Published>,
    /// Lines that stand below the rows: other figures that the source publishes, or variants that
    /// could not be measured.
    #[serde(borrow, default)]
    pub(crate) note: Vec<&'static str>,
}

/// Selects the rows of a plot: those with the metric `metric` whose parameters are exactly `x` and
/// those in `at`.
#[derive(Deserialize)]
pub(crate) struct Plot {
    /// The parameter along the plot.
    pub(crate) x: &'static str,
    pub(crate) metric: &'static str,
    /// The other parameters of a plotted row, with their values as text. `*` stands for any value.
    pub(crate) at: Vec<(&'static str, &'static str)>,
    /// The value of `x` whose ratio stands on the front page.
    pub(crate) headline: &'static str,
}

/// The curves that the source of a table publishes.
#[derive(Deserialize)]
pub(crate) struct Published {
    /// The parameter along the plot.
    pub(crate) x: &'static str,
    /// The unit.
    pub(crate) unit: &'static str,
    /// The name of each curve, and its points (x, y).
    pub(crate) curves: Vec<(&'static str, Vec<(f64, f64)>)>,
}

impl Words {
    /// Returns the figures that the source of the table has published, as text: a line per curve in
    /// `published`, and the lines of `note`.
    pub(crate) fn figures(&self) -> String {
        let mut lines = vec![];
        if let Some(Published { x, unit, curves }) = &self.published {
            lines.push(format!("Published ({x}; {unit}):"));
            for (name, points) in curves {
                let points: Vec<String> = points.iter().map(|(x, y)| format!("{x}: {y}")).collect();
                lines.push(format!("  {name}: {}", points.join(", ")));
            }
        }
        lines.extend(self.note.iter().map(|line| (*line).to_owned()));
        lines.join("\n")
    }
}

impl Table {
    /// Returns the texts and the published figures of the table.
    pub(crate) fn words(&self) -> &'static Words {
        &WORDS[self.name]
    }

    /// Tests all claims of the table against the result rows.
    pub(crate) fn claims(&self, rows: &[Row]) -> Vec<Claim> {
        self.words().claims.iter().map(|stated| stated.test(rows)).collect()
    }

    /// Runs the table.
    ///
    /// # Errors
    /// As the function `run` of the table.
    pub(crate) fn measure(&self, settings: &Settings) -> anyhow::Result<Samples> {
        let mut samples = Samples::default();
        let run = Run { table: self.name, settings, sweeps: (self.sweeps)(settings) };
        // From this call on, a signal no longer ends the process. It sets a flag that the run
        // checks.
        check_interrupt()?;
        apart(|| (self.run)(&run, &mut samples))?;
        Ok(samples)
    }
}

/// How a table is run.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    /// Small sizes and short slices, for tests.
    pub size: Size,
    /// Thread or process counts.
    pub threads: Vec<usize>,
    /// The time for which a variant is measured for one result row, over all rounds.
    pub time_per_row: Duration,
    /// Rounds.
    pub rounds: usize,
    /// The path of the lab's own program, which some benchmarks start again with hidden
    /// subcommands. None in unit tests, which have no subcommands.
    pub(crate) program: Option<PathBuf>,
}

impl Settings {
    /// Returns those requested thread counts that do not exceed the number of processors, or only
    /// 1.
    pub(crate) fn threads_with_processors(&self) -> Vec<usize> {
        self.threads_where(|threads| threads <= cores())
    }

    /// Returns those requested thread counts for which `is_usable` returns true, or only 1 if there
    /// is none.
    pub(crate) fn threads_where(&self, is_usable: impl Fn(usize) -> bool) -> Vec<usize> {
        let mut usable = self.threads.clone();
        usable.retain(|threads| is_usable(*threads));
        if usable.is_empty() { vec![1] } else { usable }
    }

    /// Returns the largest of the requested thread counts.
    pub(crate) fn threads_max(&self) -> usize {
        self.threads.iter().copied().max().unwrap_or(1)
    }
}

/// How much is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Size {
    /// A run of some seconds, which only shows whether the table works.
    Quick,
    /// A run of some minutes, with numbers that are worth keeping.
    Full,
}

/// Returns all tables, in the order in which they are listed.
pub(crate) fn all() -> &'static [&'static Table] {
    &[
        &lookup::TABLE,
        &path::TABLE,
        &fuse_metadata::TABLE,
        &real_work::TABLE,
        &cluster_metadata::TABLE,
        &rename::TABLE,
        &hot_leaf::TABLE,
        &small_loads::TABLE,
        &multiuser::MULTIUSER,
        &multiuser::ONE_CPU,
        &create_one_dir::TABLE,
        &path_under_rename::TABLE,
        &redo_size::REDO_SIZE,
        &redo_size::LOCK_SHARE,
        &aim7_short::TABLE,
        &xattr::TABLE,
        &mbcache::TABLE,
        &semop_multi::TABLE,
        &ipc_users::TABLE,
        &msg::TABLE,
        &wakeup::TABLE,
    ]
}

/// Returns the table called `name`.
pub(crate) fn find(name: &str) -> Option<&'static Table> {
    all().iter().copied().find(|table| table.name == name)
}

/// Returns the first of two values for a quick run, and the second one for a full run.
pub(crate) fn sized<T: Copy>(size: Size, quick_and_full: (T, T)) -> T {
    match size {
        Size::Quick => quick_and_full.0,
        Size::Full => quick_and_full.1,
    }
}

#[cfg(test)]
pub(crate) use tests::quick;

#[cfg(test)]
pub(crate) mod tests;
