//! The tables: what each one measures and where it comes from.
//!
//! A table runs its variants interleaved in one process, round by round, and rotates who goes first,
//! so that neither drift of the machine nor the order favours anybody. Five rounds are the least. It
//! gives samples; what becomes of them is the same for all (`samples`).

mod aim7_short;
mod create_one_dir;
mod fuse_metadata;
mod hot_leaf;
mod lock_share;
mod lookup;
mod multiuser;
mod names;
mod one_cpu;
mod path_under_rename;
mod redo_size;
mod rename;
mod shape;
mod small_loads;

use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

use crate::samples::{Row, Samples};

/// One table.
pub trait Table: Sync {
    /// Returns the name it is run by.
    fn name(&self) -> &'static str;

    /// Returns whose question it asks, for those who read only the result.
    fn source(&self) -> &'static str;

    /// Returns what it measures, in one line.
    fn about(&self) -> &'static str;

    /// Returns what is claimed of corewalk, in one sentence.
    fn claim(&self) -> &'static str {
        self.about()
    }

    /// Returns what stands below the rows for people to read: figures that the source published, and
    /// whether what it claims shows in `rows`. Nothing of it is a row.
    fn footer(&self, _rows: &[Row]) -> String {
        String::new()
    }

    /// Returns what this build lacks to run it, in one line; such a table is left out of a run of all
    /// tables.
    fn lacks(&self) -> Option<&'static str> {
        None
    }

    /// Measures.
    ///
    /// # Errors
    /// A wrong answer, or something that is needed and not there.
    fn run(&self, settings: &Settings) -> anyhow::Result<Samples>;
}

/// How a table is run.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Small sizes and short slices, for tests.
    pub size: Size,
    /// Thread or process counts.
    pub threads: Vec<usize>,
    /// For how long each variant is measured per row, over all rounds.
    pub time_per_row: Duration,
    /// Rounds.
    pub rounds: usize,
    /// What starts this program's lab again, before a hidden subcommand; None if nothing does.
    pub again: Option<Vec<String>>,
}

/// How much is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Size {
    /// Seconds in all: whether it works.
    Quick,
    /// Minutes: numbers worth keeping.
    Full,
}

/// Returns all tables, in the order in which they are listed.
pub fn all() -> &'static [&'static dyn Table] {
    &[
        &lookup::Lookup,
        &names::Names,
        &fuse_metadata::FuseMetadata,
        &rename::Rename,
        &hot_leaf::HotLeaf,
        &small_loads::SmallLoads,
        &multiuser::Multiuser,
        &one_cpu::OneCpu,
        &create_one_dir::CreateOneDir,
        &path_under_rename::PathUnderRename,
        &redo_size::RedoSize,
        &lock_share::LockShare,
        &aim7_short::Aim7Short,
    ]
}

/// Returns the table called `name`.
pub fn find(name: &str) -> Option<&'static dyn Table> {
    all().iter().copied().find(|table| table.name() == name)
}

/// Returns a bar on a terminal for `steps` steps; nothing is shown elsewhere.
pub(crate) fn progress(steps: usize) -> ProgressBar {
    let bar = ProgressBar::new(steps as u64);
    if let Ok(style) = ProgressStyle::with_template("{wide_bar} {pos}/{len} {eta} {msg}") {
        bar.set_style(style);
    }
    bar
}

/// Returns the numbers below `count`, beginning with `round`: who is measured when.
pub(crate) fn rotated(count: usize, round: usize) -> impl Iterator<Item = usize> {
    (0..count).map(move |at| (at + round) % count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rotation_lets_everybody_go_first_once() {
        let first: Vec<usize> =
            (0..3).map(|round| rotated(3, round).next().expect("three variants")).collect();
        assert_eq!(first, [0, 1, 2]);
        assert_eq!(rotated(3, 4).collect::<Vec<_>>(), [1, 2, 0]);
    }

    #[test]
    fn tables_have_different_names_and_are_found_by_them() {
        for table in all() {
            assert_eq!(find(table.name()).map(Table::source), Some(table.source()));
        }
        assert!(find("no-such-table").is_none());
    }
}
