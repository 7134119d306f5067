//! Benchmark tables `redo-size` and `lock-share`: many threads translate dentries to paths while
//! others rename.
//!
//! Source: Long, February 2013 (document 000 in `documents.md`). Units of `redo-size`: operations
//! per second of wall time, and processor time per operation. The readers (`op=path`) and the
//! writers (`op=rename`) have separate rows. Unit of `lock-share`: seconds in lock sections per
//! second of a thread's wall time.
//!
//! # The document
//! Long measured Oracle SLOB on a DL980 with 80 cores, with data files in a tmpfs. The sessions of
//! SLOB make the kernel translate dentries to paths. The size of the redo log shows how much was
//! written.
//!
//! With the shared side of a seqrwlock instead of the write side of the rename lock, the redo log
//! grew by 8.5 to 21.3 %. A profile gave the share of time in spin locks.
//!
//! # Kept and dropped
//! As in Long's measurement, different numbers of readers and writers run together, with more
//! threads than cores. The numbers are scaled from 80 cores to a small machine.
//!
//! A reader translates the paths of 64 files in turn, which all readers share. A writer renames its
//! own file away and back, as fast as it can. Long's writers rename almost nothing, so this load is
//! harder.
//!
//! Long measured a database, in which his machine spent up to 97 % of the time. The tables run no
//! database, so percentages cannot be compared.
//!
//! # Lock sections
//! Only the table `lock-share` times how long threads wait for locks and hold them
//! (`before::timed`). A path translation of corewalk takes a lock only as a fallback, which
//! corewalk counts. If a slice has a fallback, all its time counts as time in a lock. The locks of
//! corewalk's renames are not timed.
//!
//! # Checks
//! A wrong path fails the run.

use super::prelude::*;
use crate::baseline::Namespace;
use crate::before::timed::Spent;
use crate::before::{Before, Dentries, Design, make_file, make_path};
use crate::race::{self, Outcome, Reader, Writer};

/// Readers and writers of `redo-size`.
const READERS: (&[usize], &[usize]) = (&[1, 2], &[1, 2, 4, 8]);
const WRITERS: (&[usize], &[usize]) = (&[0, 1], &[0, 1, 2, 4]);
/// Readers and writers of `lock-share`: the document's rows, scaled.
const SHARE_READERS: (&[usize], &[usize]) = (&[1, 2], &[1, 2, 4]);
const SHARE_WRITERS: (&[usize], &[usize]) = (&[0, 1], &[0, 2]);
/// The number of designs.
const DESIGNS: usize = 4;
/// The most writers.
const WRITERS_MAX: usize = 4;
/// The directory of the database.
const DATABASE: &str = "/u01/app/oracle/oradata/SLOB/datafile";
/// Number of files whose paths the readers ask for.
const FILES: usize = 64;
/// Number of files that are made after the files of the readers and before those of the writers. So
/// their dentries are far apart in memory.
const FILLERS: usize = 1000;
/// The measuring time per row, as a fraction of the usual time. It is below 1, because there are
/// many rows.
const SHARE_OF_TIME: f64 = 0.4;
/// The variant for which `lock-share` has rows of the readers only.
const OURS: &str = "corewalk";

/// A variant with its reader and its writers.
struct Load {
    racer: Box<dyn Namespace>,
    reader: Reader,
    writers: Vec<Writer>,
}

/// The table.
pub(super) const REDO_SIZE: Table = Table {
    name: "redo-size",
    sweeps: |settings| sweep(settings, READERS, WRITERS),
    run: run_redo_size,
};

fn run_redo_size(run: &Run<'_>, samples: &mut Samples) -> anyhow::Result<()> {
    let (loads, sweep) = (loads(|design| design)?, &run.sweeps[0]);
    run.each(sweep, loads.len(), |visit| {
        let load = &loads[visit.at];
        let outcome = load.run(sweep.slice(run.settings), visit.cell)?;
        for (op, side) in [("path", outcome.reads), ("rename", outcome.renames)] {
            if side.ops > 0 {
                let (variant, params) = (load.racer.variant(), visit.cell.with("op", op).0);
                let (side, baseline) = (side.over_span(), sweep.baseline);
                side.add_to(samples, visit.round, variant, &params, baseline, &params)?;
            }
        }
        Ok(())
    })
}

/// The table.
pub(super) const LOCK_SHARE: Table = Table {
    name: "lock-share",
    sweeps: |settings| sweep(settings, SHARE_READERS, SHARE_WRITERS),
    run: run_lock_share,
};

fn run_lock_share(run: &Run<'_>, samples: &mut Samples) -> anyhow::Result<()> {
    let (loads, sweep) = (loads(Before::timed)?, &run.sweeps[0]);
    run.each(sweep, loads.len(), |visit| {
        let load = &loads[visit.at];
        let outcome = load.run(sweep.slice(run.settings), visit.cell)?;
        for (side, done) in [("readers", &outcome.reads), ("writers", &outcome.renames)] {
            // corewalk counts the locks of its translations, not those of its renames.
            let variant = load.racer.variant();
            if done.ops == 0 || (side == "writers" && variant == OURS) {
                continue;
            }
            let all_ns = done.wall.as_nanos().max(1) as u64;
            let Spent { waiting_ns, mut holding_ns } = done.spent;
            if outcome.fallbacks > 0 {
                holding_ns = all_ns;
            }
            for (of, ns) in [("waiting", waiting_ns), ("holding", holding_ns)] {
                let params = visit.cell.with("side", side).with("of", of).0;
                let share = (Metric::SECONDS, ns as f64 / all_ns as f64);
                samples.add(visit.round, variant, &params, share, sweep.baseline);
            }
        }
        Ok(())
    })
}

type Sized = (&'static [usize], &'static [usize]);

/// Returns the sweep over some numbers of readers and of writers.
fn sweep(settings: &Settings, readers: Sized, writers: Sized) -> Vec<Sweep> {
    let of = |list| values(sized(settings.size, list));
    let cells = cells(&[("readers", of(readers)), ("writers", of(writers))]);
    vec![Sweep::new(cells, DESIGNS, Design::GlobalLock.name(), SHARE_OF_TIME)]
}

impl Load {
    /// Makes the files of the load in the empty namespace `dentries`, and returns the load.
    fn over<D: Dentries + 'static>(dentries: D) -> anyhow::Result<Load> {
        let file = |parent: u64, name: &str| make_file(&dentries, parent, name);
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
            // The files of two writers are not side by side.
            (0..FILES).try_for_each(|at| file(home, &format!("filler_{at}")).map(drop))?;
            let name = |name: &str| (home, name.as_bytes().to_vec());
            anyhow::Ok(Writer { home: name("redo_a.log"), away: name("redo_b.log") })
        };
        let writers = (0..WRITERS_MAX).map(writer).collect::<anyhow::Result<_>>()?;
        Ok(Load { racer: Box::new(dentries), reader: Reader(targets), writers })
    }

    /// Runs a slice with the readers and writers of `cell`.
    ///
    /// # Errors
    /// A wrong path.
    fn run(&self, time: Duration, cell: &Cell) -> anyhow::Result<Outcome> {
        let readers = vec![self.reader.clone(); cell.number("readers")];
        let writers = &self.writers[..cell.number("writers")];
        let racer = &*self.racer;
        let outcome = race::run(racer, &readers, writers, time, Pinning::Free);
        let (variant, Slice { ops, wrong, .. }) = (racer.variant(), outcome.reads);
        ensure!(wrong == 0, "{variant}: {wrong} of {ops} paths were wrong");
        Ok(outcome)
    }
}

/// Returns the load on corewalk and on each old design, which `prepare` may change.
fn loads(prepare: impl Fn(Before) -> Before) -> anyhow::Result<Vec<Load>> {
    let capacity = FILES + FILLERS + WRITERS_MAX * (FILES + 2) + 64;
    let mut loads = vec![Load::over(Ours::empty(capacity)?)?];
    for design in [Design::GlobalLock, Design::SeqRwLock, Design::SeqLock] {
        loads.push(Load::over(prepare(Before::new(design, capacity)))?);
    }
    Ok(loads)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::quick;

    #[test]
    fn quick_run_has_both_sides_of_every_cell_of_the_grid() {
        let variants = ["corewalk", "before-global-lock", "before-seqrwlock", "before-seqlock"];
        let all = &(REDO_SIZE.sweeps)(&quick::settings())[0].cells;
        let with = |op: &'static str| all.iter().map(move |cell| cell.with("op", op));
        let writes = with("rename").filter(|cell| cell.number("writers") > 0);
        let cells: Vec<Cell> = with("path").chain(writes).collect();
        assert_eq!(cells.len(), 6);
        let rows = quick::check(&REDO_SIZE, &variants, &quick::params(&cells));
        let claims = quick::claims(&REDO_SIZE, &rows);
        assert!(
            claims.len() == 2 && claims.iter().all(|claim| claim.contains("held (x")),
            "{claims:?}"
        );
    }

    #[test]
    fn quick_run_has_shares_of_every_design() {
        let rows = LOCK_SHARE.measure(&quick::settings()).expect("all paths are right").rows();
        for (variant, side) in [Design::GlobalLock.name(), Design::SeqRwLock.name()]
            .into_iter()
            .flat_map(|variant| ["readers", "writers"].map(|side| (variant, side)))
        {
            let row = rows.iter().find(|row| {
                row.variant == variant
                    && row.params["side"] == side
                    && row.params["of"] == "holding"
                    && row.params["writers"] == 1
                    && row.params["readers"] == 1
            });
            let row = row.expect("the row is there");
            assert!(row.rounds == 5 && (0.0..=1.0).contains(&row.median), "{variant} {side}");
            assert!(row.median > 0.0, "{variant} {side}");
        }
    }
}
