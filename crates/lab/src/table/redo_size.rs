//! Table `redo-size`: throughput of many readers of paths beside many writers.
//!
//! Source: document 000 (Long, February 2013). Units: operations per second of wall time, all readers
//! (`op=path`) or all writers (`op=rename`) together, and processor time per operation.
//!
//! # What the document measured
//! Oracle SLOB on a DL980 with 80 cores, data files in a tmpfs: so many sessions that read and so many
//! that write, each of which has the kernel translate dentries to paths. The size of the redo log
//! stands for how much was written ([`PUBLISHED`]): the shared side of a seqrwlock in place of the
//! write side of the rename lock gave 8.5 to 21.3 % more.
//!
//! # What is kept, and what is not
//! The grid of readers and writers, scaled from 80 cores to what a small machine has, with more
//! threads than cores as there. A reader translates the paths of 64 files in turn, which all readers
//! share, and does nothing else. A writer renames a file of its own there and back as fast as it can:
//! that is harder than the document's writers, who rename next to nothing, and it is what tells the
//! designs of 2013 from those of today. Dropped: the database, its user time (up to 97 % of the
//! document's machine), and so the scale of the percentages.
//!
//! # Claims
//! The document's: sharing the lock is at least as fast as excluding, where nobody renames. Ours: a
//! reader does not slow down because of a writer, by its processor time.
//!
//! # Checks
//! Every path is compared; a wrong one fails the run.

use std::fmt::{self, Display, Write as _};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use serde_json::Value;

use super::grid::Rounds;
use super::{Claim, Grid, Settings, Table, shape, sized};
use crate::before::{Dentries, GlobalLock, Kind, RenameSeqLock, RenameSeqRwLock, make_path};
use crate::ours::Ours;
use crate::race::{self, Outcome, Pinning, Race, Racer, Reader, Writer};
use crate::samples::{Metric, Params, Row, Samples};

/// What document 000 printed: readers, writers, MB/s of redo without and with the patch.
const PUBLISHED: [(u32, u32, u32, u32); 4] =
    [(8, 64, 802, 903), (32, 64, 798, 892), (80, 64, 658, 714), (128, 64, 748, 907)];
/// Readers and writers.
const READERS: (&[usize], &[usize]) = (&[1, 2], &[1, 2, 4, 8]);
const WRITERS: (&[usize], &[usize]) = (&[0, 1], &[0, 1, 2, 4]);
/// Designs there are.
const DESIGNS: usize = 4;
/// The most writers there are.
const WRITERS_MAX: usize = 4;
/// Where the files of the database are.
const DATABASE: &str = "/u01/app/oracle/oradata/SLOB/datafile";
/// Files that are asked for.
const FILES: usize = 64;
/// Files between those that are asked for and those that are renamed.
const FILLERS: usize = 1000;
/// The share of the time per row that each row of this table gets: the grid is large.
const SHARE_OF_TIME: f64 = 0.4;
/// The share of its throughput that a reader is to keep beside a writer.
const KEPT_MIN: f64 = 0.9;

/// The table.
pub(super) struct RedoSize;

/// So many readers beside so many writers.
pub(super) struct Cell {
    pub(super) readers: usize,
    pub(super) writers: usize,
}

/// A variant with what its threads do.
pub(super) struct Load {
    pub(super) racer: Box<dyn Racer>,
    reader: Reader,
    writers: Vec<Writer>,
}

impl Table for RedoSize {
    fn name(&self) -> &'static str {
        "redo-size"
    }

    fn source(&self) -> &'static str {
        "readers and writers of document 000 (Long, February 2013), scaled"
    }

    fn about(&self) -> &'static str {
        "readers that translate paths beside writers that rename: throughput of both"
    }

    fn footer(&self, _rows: &[Row]) -> String {
        footer()
    }

    fn claims(&self, rows: &[Row]) -> Vec<Claim> {
        let at = |readers, writers| {
            [("op", "path".into())].into_iter().chain(Cell { readers, writers }.params()).collect()
        };
        let both: Vec<_> = at(2, 0);
        let shared = shape::ratio(rows, RenameSeqRwLock::VARIANT, "ops_per_s", &both);
        let cost = |writers| shape::median(rows, "corewalk", "ns_per_op", &at(1, writers));
        let kept = cost(0).zip(cost(1)).map(|(alone, beside)| alone / beside);
        vec![
            Claim::at_least(
                "of the document: two readers that share the lock over two that exclude each other",
                shared,
                1.0,
            ),
            Claim::at_least(
                "a reader of corewalk beside a writer over one alone, by its processor time",
                kept,
                KEPT_MIN,
            ),
        ]
    }

    fn grids(&self, settings: &Settings) -> Vec<Grid> {
        vec![Grid::new(settings, cells(settings).len(), DESIGNS, SHARE_OF_TIME)]
    }

    fn run(&self, settings: &Settings) -> anyhow::Result<Samples> {
        let rounds = Rounds::begin(self.name(), settings)?;
        let loads = loads()?;
        let grid = self.grids(settings)[0];
        let mut samples = Samples::default();
        rounds.each(&grid, (&cells(settings), loads.len()), |visit| {
            let load = &loads[visit.at];
            let outcome = load.run(grid.slice, visit.cell)?;
            add(visit.round, load.racer.variant(), visit.cell, &outcome, &mut samples);
            Ok(())
        })?;
        Ok(samples)
    }
}

impl Cell {
    /// Returns the parameters of the rows.
    pub(super) fn params(&self) -> [(&'static str, Value); 2] {
        [("readers", self.readers.into()), ("writers", self.writers.into())]
    }
}

impl Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "readers={} writers={}", self.readers, self.writers)
    }
}

fn cells(settings: &Settings) -> Vec<Cell> {
    let (readers, writers) = (sized(settings.size, READERS), sized(settings.size, WRITERS));
    let with = |&readers| writers.iter().map(move |&writers| Cell { readers, writers });
    readers.iter().flat_map(with).collect()
}

impl Load {
    /// Returns the load over `dentries`, which are empty.
    fn over<D: Dentries + 'static>(dentries: D) -> anyhow::Result<Load> {
        let file = |parent: u64, name: &str| {
            let made = dentries.create(parent, name.as_bytes(), Kind::File);
            made.with_context(|| format!("{}: no room", dentries.variant()))
        };
        let database = make_path(&dentries, DATABASE.as_bytes());
        let target = |at: usize| {
            let name = format!("slob_data_{at:02}.dbf");
            let path = format!("{DATABASE}/{name}").into_bytes();
            anyhow::Ok((file(database, &name)?, vec![path]))
        };
        let targets = (0..FILES).map(target).collect::<anyhow::Result<_>>()?;
        (0..FILLERS).try_for_each(|at| file(database, &format!("filler_{at}")).map(drop))?;
        let writer = |at: usize| {
            let home = make_path(&dentries, format!("/u01/app/oracle/fast/{at}").as_bytes());
            file(home, "redo_a.log")?;
            // Nothing of two writers is side by side.
            (0..FILES).try_for_each(|at| file(home, &format!("filler_{at}")).map(drop))?;
            let name = |name: &str| (home, name.as_bytes().to_vec());
            anyhow::Ok(Writer { home: name("redo_a.log"), away: name("redo_b.log") })
        };
        let writers = (0..WRITERS_MAX).map(writer).collect::<anyhow::Result<_>>()?;
        Ok(Load { racer: Box::new(dentries), reader: Reader { targets }, writers })
    }

    /// Runs a slice with so many readers and writers.
    ///
    /// # Errors
    /// A path that is wrong.
    pub(super) fn run(&self, time: Duration, cell: &Cell) -> anyhow::Result<Outcome> {
        let race = Race {
            readers: &vec![self.reader.clone(); cell.readers],
            writers: &self.writers[..cell.writers],
            time,
            pinning: Pinning::Free,
        };
        let outcome = race::run(&*self.racer, &*self.racer, &race);
        let variant = self.racer.variant();
        let (paths, wrong) = (outcome.reads.ops, outcome.wrong);
        ensure!(wrong == 0, "{variant}: {wrong} of {paths} paths were wrong");
        Ok(outcome)
    }
}

/// Returns the load over every design.
pub(super) fn loads() -> anyhow::Result<Vec<Load>> {
    let capacity = FILES + FILLERS + WRITERS_MAX * (FILES + 2) + 64;
    Ok(vec![
        Load::over(Ours::empty(capacity)?)?,
        Load::over(GlobalLock::new(capacity))?,
        Load::over(RenameSeqRwLock::new(capacity))?,
        Load::over(RenameSeqLock::new(capacity))?,
    ])
}

fn add(round: usize, variant: &str, cell: &Cell, outcome: &Outcome, samples: &mut Samples) {
    for (op, side) in [("path", &outcome.reads), ("rename", &outcome.renames)] {
        if side.ops > 0 {
            let mut params = Params::from(cell.params());
            params.insert("op", op.into());
            let cost = 1e9 / side.ops_per_cpu_s().max(1e-9);
            for measured in [(Metric::OpsPerSecond, side.ops_per_s()), (Metric::NsPerOp, cost)] {
                samples.add(round, variant, &params, measured, GlobalLock::VARIANT);
            }
        }
    }
}

fn footer() -> String {
    let mut out = String::from(
        "document 000, Oracle SLOB on 80 cores, redo MB/s without and with the patch:\n",
    );
    for (readers, writers, without, with) in PUBLISHED {
        let change = 100.0 * (f64::from(with) / f64::from(without) - 1.0);
        let _ = writeln!(
            out,
            "  {readers:>3} readers {writers} writers: {without} {with} ({change:+.1} %)"
        );
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::quick;

    #[test]
    fn quick_run_has_both_sides_of_every_cell_of_the_grid() {
        let variants = ["corewalk", "before-global-lock", "before-seqrwlock", "before-seqlock"];
        let cells: Vec<_> = cells(&quick::settings())
            .iter()
            .flat_map(|cell| {
                let with = |op: &str| [&cell.params()[..], &[("op", op.into())]].concat();
                [Some(with("path")), (cell.writers > 0).then(|| with("rename"))]
            })
            .flatten()
            .collect();
        assert_eq!(cells.len(), 6);
        let rows = quick::check(&RedoSize, &variants, &cells);
        let claims: Vec<String> = RedoSize.claims(&rows).iter().map(Claim::to_string).collect();
        assert!(
            claims.len() == 2 && claims.iter().all(|claim| claim.contains("held (x")),
            "{claims:?}"
        );
        let footer = footer();
        assert!(footer.contains("128 readers 64 writers: 748 907 (+21.3 %)"), "{footer}");
    }
}
