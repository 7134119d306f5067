//! The tables: what each one measures and where it comes from.
//!
//! A table runs its variants interleaved in one process, round by round, each time in another
//! order, so that neither drift of the machine nor the order favours anybody (`table::grid`). Five
//! rounds are the least. It gives samples; what becomes of them is the same for all (`samples`),
//! and so is how a claim is said to hold or not (`table::shape`).
//!
//! # How long it takes
//! Each table says beforehand what it measures ([`Table::grids`]). With the default settings the
//! slices of all tables take less than a third of an hour on two cores; a test adds them up.

mod aim7_short;
mod bench;
mod create_one_dir;
mod fuse_metadata;
mod grid;
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

pub(crate) use grid::Grid;
pub(crate) use shape::Claim;

use crate::machine::cores;
use crate::samples::{Row, Samples};

/// The words about one table.
pub(crate) struct Text {
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

/// One table.
pub(crate) trait Table: Sync {
    /// Returns the words about it.
    fn text(&self) -> &'static Text;

    /// Returns the name on the command line.
    fn name(&self) -> &'static str {
        self.text().name
    }

    /// Returns the curves that the source publishes, if there are any.
    fn published(&self) -> Option<Published> {
        None
    }

    /// Returns what stands below the rows for people to read: figures that the source published,
    /// and what follows from several rows.
    fn footer(&self, _rows: &[Row]) -> String {
        String::new()
    }

    /// Returns true for a row that the footer shows: it is in the JSON, and in no other place of
    /// the text.
    fn is_in_footer(&self, _row: &Row) -> bool {
        false
    }

    /// Returns what is claimed, each with whether it shows in `rows`.
    fn claims(&self, _rows: &[Row]) -> Vec<Claim> {
        vec![]
    }

    /// Returns what it is going to measure. A run that measures more fails.
    fn grids(&self, settings: &Settings) -> Vec<Grid>;

    /// Measures.
    ///
    /// # Errors
    /// A wrong answer, or something that is needed and not there.
    fn run(&self, settings: &Settings) -> anyhow::Result<Samples>;
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
pub(crate) fn all() -> &'static [&'static dyn Table] {
    &[
        &lookup::Lookup,
        &path::Path,
        &fuse_metadata::FuseMetadata,
        &rename::Rename,
        &hot_leaf::HotLeaf,
        &small_loads::SmallLoads,
        &multiuser::Multiuser,
        &multiuser::OneCpu,
        &create_one_dir::CreateOneDir,
        &path_under_rename::PathUnderRename,
        &redo_size::RedoSize,
        &redo_size::LockShare,
        &aim7_short::Aim7Short,
        &xattr::Xattr,
        &mbcache::MbcacheTable,
        &semop_multi::SemopMulti,
        &ipc_users::IpcUsers,
        &msg::Msg,
        &wakeup::Wakeup,
    ]
}

/// Returns the table called `name`.
pub(crate) fn find(name: &str) -> Option<&'static dyn Table> {
    all().iter().copied().find(|table| table.name() == name)
}

/// Returns the one of two values that is for `size`.
pub(crate) fn sized<T: Copy>(size: Size, (quick, full): (T, T)) -> T {
    match size {
        Size::Quick => quick,
        Size::Full => full,
    }
}

/// Quick runs, which all tables are tested with.
#[cfg(test)]
pub(crate) mod quick {
    use super::*;
    use serde_json::Value;

    /// Returns settings of a run of about a second.
    pub(crate) fn settings() -> Settings {
        Settings {
            size: Size::Quick,
            threads: vec![1, 2],
            time_per_row: Duration::from_millis(25),
            rounds: 5,
            program: None,
        }
    }

    /// Returns the first row of `variant` with these parameters, among others.
    pub(crate) fn row<'a>(
        rows: &'a [Row],
        (variant, metric): (&str, &str),
        params: &[(&str, Value)],
    ) -> Option<&'a Row> {
        rows.iter().find(|row| {
            row.variant == variant
                && row.metric == metric
                && params.iter().all(|(key, value)| row.params.get(key) == Some(value))
        })
    }

    /// Returns the parameters of cells.
    pub(super) fn params(cells: &[bench::Cell]) -> Vec<Vec<(&'static str, Value)>> {
        cells.iter().map(|cell| cell.0.clone().into_iter().collect()).collect()
    }

    /// Runs a table. Checks that each of `variants` has a whole row with a ratio, in every metric
    /// of speed and with each of `cells`. Checks that the table measured no more than it announced.
    pub(crate) fn check(
        table: &dyn Table,
        variants: &[&str],
        cells: &[Vec<(&'static str, Value)>],
    ) -> Vec<Row> {
        let samples = table.run(&settings()).expect("all answers are right");
        let rows = samples.rows();
        for (variant, params) in variants.iter().flat_map(|v| cells.iter().map(move |c| (v, c))) {
            for metric in ["ops_per_s", "ns_per_op"] {
                let row = row(&rows, (variant, metric), params);
                let row = row.unwrap_or_else(|| panic!("no {metric} of {variant} at {params:?}"));
                assert!(row.median > 0.0 && row.min <= row.median && row.median <= row.max);
                // A slice in which no worker got a processor does not count.
                assert!(
                    (1..=5).contains(&row.rounds) && row.ratio.is_some_and(|ratio| ratio > 0.0),
                    "{row:?}"
                );
            }
        }
        assert!(!table.grids(&settings()).is_empty());
        rows
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_have_different_names_and_are_found_by_them() {
        for table in all() {
            let found = find(table.name()).map(|table| table.text().source);
            assert_eq!(found, Some(table.text().source));
        }
        assert!(find("no-such-table").is_none());
    }

    /// The settings of a run without options, on two cores.
    fn default_settings() -> Settings {
        crate::settings(&crate::Pace { quick: false, threads: vec![], seconds: None })
            .expect("they make sense")
    }

    #[test]
    fn whole_set_fits_in_a_third_of_an_hour() {
        let settings = default_settings();
        assert!(settings.rounds >= 5);
        let mut sum = Duration::ZERO;
        for table in all() {
            let slices: Duration = table.grids(&settings).iter().map(Grid::time).sum();
            eprintln!("{:<17} {:>4.0} s", table.name(), slices.as_secs_f64());
            assert!(slices > Duration::ZERO, "{} measures nothing", table.name());
            sum += slices;
        }
        eprintln!("all of them take {:.1} minutes", sum.as_secs_f64() / 60.0);
        assert!(sum < Duration::from_secs(20 * 60), "{sum:?}");
    }

    #[test]
    fn time_follows_what_is_asked_for() {
        let once = default_settings();
        let twice = Settings { time_per_row: 2 * once.time_per_row, ..once.clone() };
        for table in all() {
            let time = |settings| table.grids(settings).iter().map(Grid::time).sum::<Duration>();
            let factor = time(&twice).as_secs_f64() / time(&once).as_secs_f64();
            assert!((1.9..=2.1).contains(&factor), "{}: x{factor}", table.name());
        }
    }
}
