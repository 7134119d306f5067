//! The tables: what each one measures and where it comes from.
//!
//! A table is a declaration ([`Table`]): words, the sweeps that it measures, a function that
//! measures them, and claims about the rows. One engine measures all tables (`engine`). It runs
//! the variants interleaved in one process, round by round, each time in another order, so that
//! neither drift of the machine nor the order favours a variant. Five rounds are the least.
//! `samples` turns the measurements into rows, and `shape` tests the claims.
//!
//! # How long it takes
//! The sweeps say beforehand what is measured. With the default settings the slices of all tables
//! take less than a third of an hour on two cores; a test adds them up.

mod aim7_short;
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
mod redo_size;
mod rename;
mod semop_multi;
mod shape;
mod small_loads;
mod wakeup;
mod xattr;

use std::path::PathBuf;
use std::time::Duration;

pub(crate) use engine::{Run, Sweep};
pub(crate) use shape::Claim;

use crate::machine::cores;
use crate::samples::{Row, Samples};

/// One table.
pub(crate) struct Table {
    /// The name on the command line.
    pub(crate) name: &'static str,
    /// The document that asks the question.
    pub(crate) source: &'static str,
    /// The measurement, in one line.
    pub(crate) about: &'static str,
    /// The claim about corewalk, in one sentence.
    pub(crate) claim: &'static str,
    /// The rows that show the claim.
    pub(crate) plot: Plot,
    /// Returns the curves that the source publishes, if there are any.
    pub(crate) published: fn() -> Option<Published>,
    /// The figures that the source published and that are no curves.
    pub(crate) note: &'static str,
    /// Returns true for a published figure: it is a row of the JSON, and the text has it in `note`.
    pub(crate) is_in_note: fn(&Row) -> bool,
    /// Returns the claims, each with whether the rows show it.
    pub(crate) claims: fn(&[Row]) -> Vec<Claim>,
    /// Returns the cells that a run measures.
    pub(crate) sweeps: fn(&Settings) -> Vec<Sweep>,
    /// Measures the sweeps. An error is a wrong answer, or a part that is needed and missing.
    pub(crate) run: fn(&Run<'_>, &mut Samples) -> anyhow::Result<()>,
}

/// The rows of a plot: those of one metric whose parameters are `x` and `at`, and no more.
pub(crate) struct Plot {
    /// The parameter along the plot.
    pub(crate) x: &'static str,
    pub(crate) metric: &'static str,
    /// The other parameters, with their values as text; `*` is any value.
    pub(crate) at: &'static [(&'static str, &'static str)],
    /// The value of `x` whose ratio stands on the front page.
    pub(crate) headline: &'static str,
}

/// The curves that the source of a table publishes.
pub(crate) struct Published {
    /// The parameter along the plot.
    pub(crate) x: &'static str,
    /// The unit.
    pub(crate) unit: &'static str,
    /// The name of each curve, with its points of x and y.
    pub(crate) curves: Vec<(&'static str, Vec<(f64, f64)>)>,
}

impl Published {
    /// Returns a name, and the points of x and y, for each curve.
    pub(crate) fn lines(&self) -> String {
        let mut out = format!("Published ({}; {}):\n", self.x, self.unit);
        for (name, points) in &self.curves {
            let points: Vec<String> = points.iter().map(|(x, y)| format!("{x}: {y}")).collect();
            out += &format!("  {name}: {}\n", points.join(", "));
        }
        out
    }
}

impl Table {
    /// A table without published figures, from which the tables take their defaults.
    const PLAIN: Table = Table {
        name: "",
        source: "",
        about: "",
        claim: "",
        plot: Plot { x: "threads", metric: "ops_per_s", at: &[], headline: "1" },
        published: || None,
        note: "",
        is_in_note: |_| false,
        claims: |_| vec![],
        sweeps: |_| vec![],
        run: |_, _| Ok(()),
    };

    /// Runs the table.
    ///
    /// # Errors
    /// As the function `run` of the table.
    pub(crate) fn measure(&self, settings: &Settings) -> anyhow::Result<Samples> {
        let mut samples = Samples::default();
        let run = Run::begin(self.name, (self.sweeps)(settings), settings)?;
        (self.run)(&run, &mut samples)?;
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
    /// For how long each variant is measured per row, over all rounds.
    pub time_per_row: Duration,
    /// Rounds.
    pub rounds: usize,
    /// The program of the lab, which is started for hidden subcommands. None in unit tests: their
    /// program has no subcommands.
    pub(crate) program: Option<PathBuf>,
}

impl Settings {
    /// Returns the numbers of threads that each have a processor; one if there is no such number.
    pub(crate) fn threads_with_processors(&self) -> Vec<usize> {
        let has_processors = |threads: &usize| *threads <= cores();
        let usable: Vec<usize> = self.threads.iter().copied().filter(has_processors).collect();
        if usable.is_empty() { vec![1] } else { usable }
    }

    /// Returns the most threads that are asked for.
    pub(crate) fn threads_max(&self) -> usize {
        self.threads.iter().copied().max().unwrap_or(1)
    }
}

/// How much is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Size {
    /// Seconds in all: whether it works.
    Quick,
    /// Minutes: numbers worth keeping.
    Full,
}

/// Returns all tables, in the order in which they are listed.
pub(crate) fn all() -> &'static [&'static Table] {
    &[
        &lookup::TABLE,
        &path::TABLE,
        &fuse_metadata::TABLE,
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

/// Returns the one of two values that is for `size`.
pub(crate) fn sized<T: Copy>(size: Size, (quick, full): (T, T)) -> T {
    match size {
        Size::Quick => quick,
        Size::Full => full,
    }
}

#[cfg(test)]
pub(crate) use tests::quick;

#[cfg(test)]
pub(crate) mod tests;
