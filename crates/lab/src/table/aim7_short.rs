//! Table `aim7-short`: jobs of many users at once, from one user on, with the spread of the runs.
//!
//! Source: document 001 (Long, September 2013) and what Stoffel asked in its review. Units: jobs per
//! second of wall time, all users together (`ops_per_s`), and processor time per job (`ns_per_op`);
//! the footer gives jobs per minute.
//!
//! # What the document measured
//! Jobs per minute of the short workload of AIM7 on a DL980 with 80 cores, on top of the lockref
//! patches, in three ranges of users ([`PUBLISHED`]): 11.3 % fewer with the patch up to 100 users, and
//! 6.2 and 6.6 % more above. Stoffel asked whether the loss is real, how much runs vary, and what a
//! machine with four cores sees; the answer was that a run of few users takes 0.02 to 0.11 s, and a
//! picture that is not in the thread. Here is the answer: rows of 1 to 4 users, each with the lowest and
//! the highest run, and the spread beside the median.
//!
//! # What is kept, and what is not
//! Users do jobs, each of which is the same bounded mix (`job`), in directories of their own and on
//! paths that all share. Dropped: processes, pipes, arithmetic and whatever else AIM7 does that a name
//! cache does not see, so differences are larger than in the document; and completion of a fixed number
//! of jobs, since runs of a fixed time are as long for few users as for many. Users are threads; with
//! more of them than cores they take turns, as on any machine. All designs, and corewalk, keep names
//! in memory with no file system below.
//!
//! # Claims
//! The document's: the sequence gives no fewer jobs than the lock, at any number of users. Ours: corewalk
//! gives no fewer than the lock at 1 to 4 users. A row is held to be a loss if it is one by more than
//! its spread, in jobs or in processor time per job. corewalk does what the small designs leave out
//! (permissions, a back end that is asked, inodes that are counted), so it can lose here.
//!
//! # Checks
//! Every answer of every job is compared; a wrong one fails the run.

use std::fmt::Write as _;
use std::sync::Barrier;

use anyhow::ensure;
use corewalk_sync::primitives::{Arc, thread};

use super::{Settings, Size, Table, progress, rotated};
use crate::before::{DcacheLock, Dentries, GlobalLock, RenameSeqLock, RenameSeqRwLock, filled};
use crate::corpus::Corpus;
use crate::job::{self, User};
use crate::lane::Stop;
use crate::machine::Disturbance;
use crate::ours::Ours;
use crate::race::{Lap, Side, lap, side};
use crate::samples::{Metric, Params, Row, Samples};

/// What document 001 printed: users, mean jobs per minute without and with the patch. (It prints the
/// second range as 200-10000, and the third begins at 1100.)
const PUBLISHED: [(&str, u32, u32); 3] = [
    ("10-100", 4_365_114, 3_872_850),
    ("200-10000", 7_211_115, 7_655_958),
    ("1100-2000", 6_964_439, 7_422_598),
];
/// Numbers of users.
const USERS: [(Size, &[usize]); 2] =
    [(Size::Quick, &[1, 2]), (Size::Full, &[1, 2, 3, 4, 8, 16, 32])];
/// Entries of the tree.
const ENTRIES: [(Size, usize); 2] = [(Size::Quick, 2_000), (Size::Full, 20_000)];
/// The share of the time per row that each row of this table gets: there are many.
const SHARE_OF_TIME: f64 = 0.8;
/// The variant that all are compared with.
const BASELINE: &str = GlobalLock::VARIANT;

/// The table.
pub(super) struct Aim7Short;

/// A variant with its users.
struct Shop {
    dentries: Box<dyn Dentries>,
    users: Vec<User>,
}

impl Table for Aim7Short {
    fn name(&self) -> &'static str {
        "aim7-short"
    }

    fn source(&self) -> &'static str {
        "AIM7 short of document 001 (Long, September 2013), with the rows that its review asked for"
    }

    fn about(&self) -> &'static str {
        "jobs of 1 to 32 users: paths, walks, files made and removed; spread of the runs"
    }

    fn footer(&self, rows: &[Row]) -> String {
        footer(rows)
    }

    fn run(&self, settings: &Settings) -> anyhow::Result<Samples> {
        let (_, users) =
            USERS.iter().find(|(size, _)| *size == settings.size).expect("both sizes are there");
        let (_, entries) =
            ENTRIES.iter().find(|(size, _)| *size == settings.size).expect("as above");
        let shops = shops(*entries, users.iter().copied().max().unwrap_or(1))?;
        let mut samples = Samples::default();
        let bar = progress(settings.rounds * users.len());
        let disturbance = Disturbance::start();
        for round in 0..settings.rounds {
            for &users in *users {
                bar.set_message(format!("users={users}"));
                for at in rotated(shops.len(), round) {
                    let done = shops[at].open(settings, users)?;
                    let params = Params::from([("op", "job".into()), ("users", users.into())]);
                    let cost = 1e9 / done.ops_per_cpu_s().max(1e-9);
                    for measured in
                        [(Metric::OpsPerSecond, done.ops_per_s()), (Metric::NsPerOp, cost)]
                    {
                        let variant = shops[at].dentries.variant();
                        samples.add(round, variant, &params, measured, BASELINE);
                    }
                }
                bar.inc(1);
            }
        }
        bar.finish_and_clear();
        eprintln!(
            "aim7-short: other processes used {:.0} % of the machine",
            100.0 * disturbance.share()
        );
        Ok(samples)
    }
}

impl Shop {
    fn new(dentries: Box<dyn Dentries>, corpus: &Corpus, users: usize) -> Shop {
        let users = (0..users).map(|number| User::new(&*dentries, corpus, number)).collect();
        Shop { dentries, users }
    }

    /// Lets so many users work for a slice.
    fn open(&self, settings: &Settings, users: usize) -> anyhow::Result<Side> {
        let stop = Arc::new(Stop::default());
        let start = Arc::new(Barrier::new(users + 1));
        let laps: Vec<Lap> = thread::scope(|scope| {
            let work = |user| {
                let (stop, start) = (Arc::clone(&stop), Arc::clone(&start));
                let dentries = &*self.dentries;
                scope.spawn(move || lap(&start, || dentries.be_user(user, &stop)))
            };
            let threads: Vec<_> = self.users[..users].iter().map(work).collect();
            start.wait();
            thread::sleep((settings.time_per_row / settings.rounds as u32).mul_f64(SHARE_OF_TIME));
            stop.set();
            threads.into_iter().map(|one| one.join().expect("a user panicked")).collect()
        });
        let wrong: u64 = laps.iter().map(|lap| lap.tally.wrong).sum();
        ensure!(wrong == 0, "{}: {wrong} answers were wrong", self.dentries.variant());
        Ok(side(&laps))
    }
}

fn shops(entries: usize, users: usize) -> anyhow::Result<Vec<Shop>> {
    let corpus = Corpus::collect(entries);
    // Two directories per user, the files of a job, and some for names that are being freed.
    let capacity = corpus.len() + users * (2 + 4 * job::FILES) + 1024;
    let designs: Vec<Box<dyn Dentries>> = vec![
        Box::new(filled(Ours::empty(capacity)?, &corpus)),
        Box::new(filled(GlobalLock::new(capacity), &corpus)),
        Box::new(filled(RenameSeqRwLock::new(capacity), &corpus)),
        Box::new(filled(RenameSeqLock::new(capacity), &corpus)),
        Box::new(filled(DcacheLock::new(capacity), &corpus)),
    ];
    Ok(designs.into_iter().map(|design| Shop::new(design, &corpus, users)).collect())
}

fn footer(rows: &[Row]) -> String {
    let mut out =
        String::from("document 001, 80 cores, jobs per minute without and with the patch:\n");
    for (users, without, with) in PUBLISHED {
        let change = 100.0 * (f64::from(with) / f64::from(without) - 1.0);
        let _ = writeln!(out, "  {users:>9} users: {without} {with} ({change:+.1} %)");
    }
    let _ = writeln!(
        out,
        "here, thousands of jobs per minute: median (lowest .. highest), spread in % of the median"
    );
    let jobs = || rows.iter().filter(|row| row.metric == "ops_per_s");
    for row in jobs() {
        let per_minute = |per_s: f64| per_s * 60.0 / 1e3;
        let _ = writeln!(
            out,
            "  {:>2} users {:<20} {:>9.0} ({:.0} .. {:.0}), {:.0} %",
            row.params["users"].to_string(),
            row.variant,
            per_minute(row.median),
            per_minute(row.min),
            per_minute(row.max),
            spread_pct(row)
        );
    }
    let claims = [
        (
            "of the document: the sequence is no slower than the lock",
            RenameSeqLock::VARIANT,
            u64::MAX,
        ),
        ("corewalk is no slower than the lock at 1 to 4 users", "corewalk", 4),
    ];
    for (claim, variant, users_max) in claims {
        let losses: Vec<String> = rows
            .iter()
            .filter(|row| row.variant == variant && row.params["users"].as_u64() <= Some(users_max))
            .filter(|row| is_loss(row))
            .map(|row| {
                let ratio = row.ratio.unwrap_or(0.0);
                format!("{} users x{ratio:.2} {}", row.params["users"], row.metric)
            })
            .collect();
        let verdict = match &losses[..] {
            [] => String::from("holds"),
            losses => format!("DOES NOT HOLD: {}", losses.join(", ")),
        };
        let _ = writeln!(out, "claim {claim}, by more than the spread: {verdict}");
    }
    out
}

/// Returns true if the row is worse than its baseline by more than its own spread.
fn is_loss(row: &Row) -> bool {
    let margin = 1.0 + spread_pct(row) / 100.0;
    row.ratio.is_some_and(|ratio| match row.better {
        "higher" => ratio * margin < 1.0,
        _ => ratio > margin,
    })
}

/// Returns the distance from the lowest to the highest run, in percent of the median.
fn spread_pct(row: &Row) -> f64 {
    if row.median > 0.0 { 100.0 * (row.max - row.min) / row.median } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn quick_run_has_every_design_and_shows_the_spread() {
        let settings = Settings {
            size: Size::Quick,
            threads: vec![1],
            time_per_row: Duration::from_millis(50),
            rounds: 5,
            again: None,
        };
        let rows = Aim7Short.run(&settings).expect("all answers are right").rows();
        let variants =
            ["corewalk", BASELINE, "before-seqrwlock", "before-seqlock", "before-dcache-lock"];
        for (variant, users) in variants.iter().flat_map(|v| [1, 2].map(|users| (*v, users))) {
            for metric in ["ops_per_s", "ns_per_op"] {
                let row = rows.iter().find(|row| {
                    row.variant == variant && row.metric == metric && row.params["users"] == users
                });
                let row = row.expect("the row is there");
                assert!(row.rounds == 5 && row.min > 0.0 && row.ratio.is_some(), "{variant}");
            }
        }
        let footer = footer(&rows);
        assert!(footer.contains("4365114 3872850 (-11.3 %)"), "{footer}");
        assert_eq!(footer.lines().filter(|line| line.starts_with("claim ")).count(), 2, "{footer}");
        assert_eq!(footer.lines().filter(|line| line.contains(" users corewalk ")).count(), 2);
    }

    #[test]
    fn loss_of_more_than_the_spread_is_said() {
        let row = |variant: &str, ratio: f64, (min, max): (f64, f64)| Row {
            variant: variant.to_owned(),
            params: Params::from([("op", "job".into()), ("users", 1.into())]),
            metric: "ops_per_s",
            unit: "1/s",
            better: "higher",
            median: 100.0,
            min,
            max,
            rounds: 5,
            baseline: BASELINE.to_owned(),
            ratio: Some(ratio),
        };
        let calm = footer(&[row("corewalk", 0.95, (97.0, 107.0))]);
        assert!(!calm.contains("DOES NOT HOLD"), "{calm}");
        let loss = footer(&[row("corewalk", 0.8, (97.0, 107.0))]);
        assert!(loss.contains("DOES NOT HOLD: 1 users x0.80 ops_per_s"), "{loss}");
    }
}
