//! Table `lock-share`: how much of their time the threads of `redo-size` spend in locks.
//!
//! Source: document 000 (Long, February 2013), its second table. Unit: seconds in one second of the
//! time of all readers, or of all writers, by wall clock: 0.35 is 35 %. `of=waiting` is the time until
//! a lock was theirs, `of=holding` the time until they gave it back.
//!
//! # What the document measured
//! The share of all processor time in the kernel's spin lock code, with and without the patch
//! ([`PUBLISHED`]), for sessions that read and sessions that write, on 80 cores. It prints two numbers,
//! 6.3(17.4), and says that the one in parentheses is with the patch. The patch would then have made it
//! worse in every row, against all that the document says; so the two are taken for interchanged,
//! and shown as printed.
//!
//! # What is kept, and what is not
//! The load is that of `redo-size`. It needs a build that counts, which is slower: two looks at the
//! clock per section, of about 25 ns each, a part of which is in the shares. So the numbers say where
//! time goes and not how much is done, and no other table is to be kept from such a build. A spin lock
//! of the kernel costs processor time while it waits; the locks here sleep after a while, so waiting
//! is by the wall clock. What a thread waits for a processor while it holds a lock, or wants one, is in
//! the share as well, as it was there.
//!
//! corewalk takes a lock in a translation only after several passes that were disturbed. It counts
//! such fallbacks itself; the whole of a translation in which its count moved is taken for time in a
//! lock. What reading the count costs is taken out of the thread's time.
//!
//! # Claim
//! The document's: sharing the lock takes less of the readers' time for waiting than excluding. Ours:
//! translations are in no lock at all.
//!
//! # Checks
//! Every path is compared. corewalk has rows only if its counters move when an ancestor is renamed
//! under the reader as fast as possible: a counter that never moves proves nothing.

use std::fmt::Write as _;
use std::time::Duration;

use anyhow::ensure;

use super::grid::Rounds;
use super::redo_size::{Cell, Load, loads};
use super::{Claim, Grid, Settings, Table, shape, sized};
use crate::before::timed::{IS_COUNTED, Spent};
use crate::before::{Dentries as _, GlobalLock, RenameSeqRwLock, make_path};
use crate::ours::Ours;
use crate::race::{self, Pinning, Race, Reader, Side, Writer};
use crate::samples::{Metric, Params, Row, Samples};

/// What document 000 printed: readers, writers, percent of the time in spin locks, before and in
/// parentheses.
const PUBLISHED: [(u32, u32, f64, f64); 6] = [
    (32, 0, 6.3, 17.4),
    (80, 0, 2.9, 31.7),
    (128, 0, 43.5, 62.2),
    (32, 64, 9.1, 35.0),
    (80, 64, 4.5, 38.8),
    (128, 64, 34.8, 58.7),
];
/// Readers and writers: the document's rows, scaled.
const CELLS: (Pairs, Pairs) =
    (&[(2, 0), (1, 1)], &[(1, 0), (2, 0), (4, 0), (1, 2), (2, 2), (4, 2)]);
/// Designs there are.
const DESIGNS: usize = 4;
/// The share of the time per row that each row of this table gets.
const SHARE_OF_TIME: f64 = 0.5;
/// For how long corewalk's counters are tried.
const TRIAL: Duration = Duration::from_millis(100);
/// The variant that is measured only if its counters count.
const OURS: &str = "corewalk";

/// Numbers of readers, each with a number of writers.
type Pairs = &'static [(usize, usize)];

/// The table.
pub(super) struct LockShare;

impl Table for LockShare {
    fn name(&self) -> &'static str {
        "lock-share"
    }

    fn source(&self) -> &'static str {
        "share of time in locks of document 000 (Long, February 2013), scaled"
    }

    fn about(&self) -> &'static str {
        "time in lock sections under the load of redo-size; needs a build that counts it"
    }

    fn lacks(&self) -> Option<&'static str> {
        let lack = "this build does not count lock sections; one that does: cargo run --release \
                    -p corewalk-lab --features lock-share -- run lock-share";
        (!IS_COUNTED).then_some(lack)
    }

    fn footer(&self, _rows: &[Row]) -> String {
        footer()
    }

    fn claims(&self, rows: &[Row]) -> Vec<Claim> {
        let params = [
            ("side", "readers".into()),
            ("of", "waiting".into()),
            ("readers", 2.into()),
            ("writers", 0.into()),
        ];
        let waiting = |variant| shape::median(rows, variant, "seconds", &params);
        let [without, with] = [GlobalLock::VARIANT, RenameSeqRwLock::VARIANT].map(waiting);
        let pct = |share: Option<f64>| 100.0 * share.unwrap_or_default();
        let document = Claim::of(
            String::from("of the document: two readers wait less for a lock that they share"),
            with.zip(without).map(|(with, without)| with <= without),
            format!("{:.1} % without, {:.1} % with", pct(without), pct(with)),
        );
        let ours = rows.iter().filter(|row| row.variant == OURS).map(|row| row.median);
        let most = ours.max_by(f64::total_cmp);
        let ours = Claim::of(
            String::from("translations of corewalk are in no lock"),
            most.map(|most| most == 0.0),
            format!("at most {:.3} %", pct(most)),
        );
        vec![document, ours]
    }

    fn grids(&self, settings: &Settings) -> Vec<Grid> {
        let cells = sized(settings.size, CELLS).len();
        vec![Grid::new(settings, cells, DESIGNS, SHARE_OF_TIME)]
    }

    fn run(&self, settings: &Settings) -> anyhow::Result<Samples> {
        let rounds = Rounds::begin(self.name(), settings)?;
        let mut loads = loads()?;
        if !counts_translations()? {
            eprintln!("lock-share: {OURS}: no rows: its counters do not count translations");
            loads.retain(|load| load.racer.variant() != OURS);
        }
        let cells = sized(settings.size, CELLS);
        let cells: Vec<Cell> =
            cells.iter().map(|&(readers, writers)| Cell { readers, writers }).collect();
        let grid = self.grids(settings)[0];
        let mut samples = Samples::default();
        rounds.each(&grid, (&cells, loads.len()), |visit| {
            measure(&loads[visit.at], (grid.slice, visit.cell), visit.round, &mut samples)
        })?;
        Ok(samples)
    }
}

fn measure(
    load: &Load,
    (time, cell): (Duration, &Cell),
    round: usize,
    samples: &mut Samples,
) -> anyhow::Result<()> {
    let outcome = load.run(time, cell)?;
    for (side, done) in [("readers", &outcome.reads), ("writers", &outcome.renames)] {
        // What corewalk's renames lock is not counted.
        if done.ops == 0 || (side == "writers" && load.racer.variant() == OURS) {
            continue;
        }
        let [waiting, holding] = shares(done);
        for (of, share) in [("waiting", waiting), ("holding", holding)] {
            let mut params = Params::from(cell.params());
            params.extend([("side", side.into()), ("of", of.into())]);
            let share = (Metric::Seconds, share);
            samples.add(round, load.racer.variant(), &params, share, GlobalLock::VARIANT);
        }
    }
    Ok(())
}

/// Returns the shares of waiting and of holding.
fn shares(side: &Side) -> [f64; 2] {
    let Spent { waiting_ns, holding_ns, aside_ns, .. } = side.spent;
    let all = (side.wall_s * 1e9 - aside_ns as f64).max(1.0);
    [waiting_ns, holding_ns].map(|spent| spent as f64 / all)
}

/// Returns true if corewalk's counters move when translations are disturbed.
fn counts_translations() -> anyhow::Result<bool> {
    let dentries = Ours::empty(64)?;
    let parent = make_path(&dentries, b"/a");
    let leaf = make_path(&dentries, b"/a/b/c/d");
    let right = vec![b"/a/b/c/d".to_vec(), b"/a/x/c/d".to_vec()];
    let race = Race {
        readers: &[Reader { targets: vec![(leaf, right)] }],
        writers: &[Writer { home: (parent, b"b".to_vec()), away: (parent, b"x".to_vec()) }],
        time: TRIAL,
        pinning: Pinning::OnePerCore,
    };
    let outcome = race::run(&dentries, &dentries, &race);
    ensure!(outcome.wrong == 0, "{OURS}: {} paths were wrong", outcome.wrong);
    Ok(dentries.passes().is_some_and(|passes| passes.retries > 0))
}

fn footer() -> String {
    let mut out = String::from(
        "document 000, Oracle SLOB on 80 cores, percent of time in spin locks, as printed; in \
         parentheses without the patch (it says with):\n",
    );
    for (readers, writers, with, without) in PUBLISHED {
        let _ = writeln!(out, "  {readers:>3} readers {writers:>2} writers: {with}({without})");
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::quick;

    #[test]
    fn build_that_does_not_count_says_how_to_make_one_that_does() {
        let outcome = crate::run_table(&LockShare, &quick::settings());
        if IS_COUNTED {
            assert!(LockShare.lacks().is_none() && outcome.is_ok());
            return;
        }
        let line = outcome.expect_err("it cannot be run").to_string();
        assert!(line.contains("--features lock-share -- run lock-share"), "{line}");
        assert_eq!(line.lines().count(), 1);
    }

    #[test]
    fn quick_run_has_shares_of_every_design_or_says_that_nothing_is_counted() {
        let rows = LockShare.run(&quick::settings()).expect("all paths are right").rows();
        for (variant, side) in [GlobalLock::VARIANT, RenameSeqRwLock::VARIANT]
            .into_iter()
            .flat_map(|variant| ["readers", "writers"].map(|side| (variant, side)))
        {
            let row = rows.iter().find(|row| {
                row.variant == variant
                    && row.params["side"] == side
                    && row.params["of"] == "holding"
                    && row.params["writers"] == 1
            });
            let row = row.expect("the row is there");
            assert!(row.rounds == 5 && (0.0..=1.0).contains(&row.median), "{variant} {side}");
            // Without the feature nothing is counted: that is why such a build refuses.
            assert_eq!(row.median > 0.0, IS_COUNTED, "{variant} {side}");
        }
        assert!(footer().contains("128 readers 64 writers: 34.8(58.7)"));
    }
}
