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

use std::fmt::Write as _;

use anyhow::{Context as _, ensure};

use super::{Settings, Size, Table, progress, rotated};
use crate::before::{Dentries, GlobalLock, Kind, RenameSeqLock, RenameSeqRwLock, make_path};
use crate::machine::Disturbance;
use crate::ours::Ours;
use crate::race::{self, Outcome, Pinning, Race, Racer, Reader, Writer};
use crate::samples::{Metric, Params, Row, Samples};

/// What document 000 printed: readers, writers, MB/s of redo without and with the patch.
const PUBLISHED: [(u32, u32, u32, u32); 4] =
    [(8, 64, 802, 903), (32, 64, 798, 892), (80, 64, 658, 714), (128, 64, 748, 907)];
/// Readers and writers.
const GRID: [(Size, &[usize], &[usize]); 2] =
    [(Size::Quick, &[1, 2], &[0, 1]), (Size::Full, &[1, 2, 4, 8], &[0, 1, 2, 4])];
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

    fn footer(&self, rows: &[Row]) -> String {
        footer(rows)
    }

    fn run(&self, settings: &Settings) -> anyhow::Result<Samples> {
        let loads = loads()?;
        let (_, readers, writers) =
            GRID.iter().find(|(size, ..)| *size == settings.size).expect("both sizes are there");
        let mut samples = Samples::default();
        let bar = progress(settings.rounds * readers.len() * writers.len());
        let disturbance = Disturbance::start();
        for round in 0..settings.rounds {
            for (&readers, &writers) in
                readers.iter().flat_map(|r| writers.iter().map(move |w| (r, w)))
            {
                for at in rotated(loads.len(), round) {
                    let outcome = loads[at].run(settings, SHARE_OF_TIME, (readers, writers))?;
                    add(
                        round,
                        loads[at].racer.variant(),
                        (readers, writers),
                        &outcome,
                        &mut samples,
                    );
                }
                bar.inc(1);
            }
        }
        bar.finish_and_clear();
        eprintln!(
            "redo-size: other processes used {:.0} % of the machine",
            100.0 * disturbance.share()
        );
        Ok(samples)
    }
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
    pub(super) fn run(
        &self,
        settings: &Settings,
        share_of_time: f64,
        (readers, writers): (usize, usize),
    ) -> anyhow::Result<Outcome> {
        let race = Race {
            readers: &vec![self.reader.clone(); readers],
            writers: &self.writers[..writers],
            time: (settings.time_per_row / settings.rounds as u32).mul_f64(share_of_time),
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

fn add(
    round: usize,
    variant: &str,
    (readers, writers): (usize, usize),
    outcome: &Outcome,
    samples: &mut Samples,
) {
    for (op, side) in [("path", &outcome.reads), ("rename", &outcome.renames)] {
        if side.ops > 0 {
            let params = Params::from([
                ("op", op.into()),
                ("readers", readers.into()),
                ("writers", writers.into()),
            ]);
            let cost = 1e9 / side.ops_per_cpu_s().max(1e-9);
            for measured in [(Metric::OpsPerSecond, side.ops_per_s()), (Metric::NsPerOp, cost)] {
                samples.add(round, variant, &params, measured, GlobalLock::VARIANT);
            }
        }
    }
}

fn footer(rows: &[Row]) -> String {
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
    let find = |variant: &str, metric: &str, readers: usize, writers: usize| {
        rows.iter().find(|row| {
            row.variant == variant
                && row.metric == metric
                && row.params["op"] == "path"
                && row.params["readers"] == readers
                && row.params["writers"] == writers
        })
    };
    let verdict = |holds: bool| if holds { "holds" } else { "DOES NOT HOLD" };
    if let Some(ratio) = find(RenameSeqRwLock::VARIANT, "ops_per_s", 2, 0).and_then(|row| row.ratio)
    {
        let _ = writeln!(
            out,
            "claim of the document: two readers that share the lock are no slower than two that \
             exclude each other: x{ratio:.2}: {}",
            verdict(ratio >= 1.0)
        );
    }
    let cost = |writers: usize| find("corewalk", "ns_per_op", 1, writers);
    if let (Some(alone), Some(beside)) = (cost(0), cost(1)) {
        let kept = alone.median / beside.median;
        let _ = writeln!(
            out,
            "claim: a reader of corewalk beside a writer keeps {:.0} % (at least {:.0} %) by its processor \
             time: {}",
            100.0 * kept,
            100.0 * KEPT_MIN,
            verdict(kept >= KEPT_MIN)
        );
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn quick_run_has_both_sides_of_every_cell_of_the_grid() {
        let settings = Settings {
            size: Size::Quick,
            threads: vec![1],
            time_per_row: Duration::from_millis(50),
            rounds: 5,
            again: None,
        };
        let rows = RedoSize.run(&settings).expect("all paths are right").rows();
        let variants = ["corewalk", "before-global-lock", "before-seqrwlock", "before-seqlock"];
        for (variant, readers, writers, op) in variants.iter().flat_map(|variant| {
            [(1, 0), (1, 1), (2, 0), (2, 1)]
                .into_iter()
                .flat_map(move |(r, w)| ["path", "rename"].map(|op| (variant, r, w, op)))
        }) {
            let row = rows.iter().find(|row| {
                row.variant == *variant
                    && row.params["op"] == op
                    && row.params["readers"] == readers
                    && row.params["writers"] == writers
            });
            assert_eq!(row.is_some(), op == "path" || writers > 0);
            let is_whole = |row: &Row| row.rounds == 5 && row.min > 0.0 && row.ratio.is_some();
            assert!(row.is_none_or(is_whole), "{variant} {readers} {writers} {op}");
        }
        let footer = footer(&rows);
        assert_eq!(footer.matches("claim").count(), 2, "{footer}");
        assert!(footer.contains("128 readers 64 writers: 748 907 (+21.3 %)"), "{footer}");
    }
}
