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
use std::time::Duration;

use anyhow::ensure;
use corewalk_base::primitives::{Arc, thread};

use super::grid::Rounds;
use super::{Claim, Grid, Settings, Table, shape, sized};
use crate::before::{DcacheLock, Dentries, GlobalLock, RenameSeqLock, RenameSeqRwLock, filled};
use crate::corpus::Corpus;
use crate::job::{self, User};
use crate::lane::Stop;
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
const USERS: (&[usize], &[usize]) = (&[1, 2], &[1, 2, 3, 4, 8, 16, 32]);
/// Entries of the tree.
const ENTRIES: (usize, usize) = (2_000, 20_000);
/// Designs there are.
const DESIGNS: usize = 5;
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

    fn claims(&self, rows: &[Row]) -> Vec<Claim> {
        let of = |variant: &'static str, users_max: u64| {
            rows.iter().filter(move |row| {
                row.variant == variant && row.params["users"].as_u64() <= Some(users_max)
            })
        };
        let (document, ours) = (of(RenameSeqLock::VARIANT, u64::MAX), of("corewalk", 4));
        vec![
            Claim::no_loss(
                "of the document: the sequence does not lose against the lock",
                document,
            ),
            Claim::no_loss("corewalk does not lose against the lock at 1 to 4 users", ours),
        ]
    }

    fn grids(&self, settings: &Settings) -> Vec<Grid> {
        let cells = sized(settings.size, USERS).len();
        vec![Grid::new(settings, cells, DESIGNS, SHARE_OF_TIME)]
    }

    fn run(&self, settings: &Settings) -> anyhow::Result<Samples> {
        let rounds = Rounds::begin(self.name(), settings)?;
        let users = sized(settings.size, USERS);
        let entries = sized(settings.size, ENTRIES);
        let shops = shops(entries, users.iter().copied().max().unwrap_or(1))?;
        let grid = self.grids(settings)[0];
        let mut samples = Samples::default();
        rounds.each(&grid, (users, shops.len()), |visit| {
            let shop = &shops[visit.at];
            let done = shop.open(grid.slice, *visit.cell)?;
            let params = Params::from([("op", "job".into()), ("users", (*visit.cell).into())]);
            let cost = 1e9 / done.ops_per_cpu_s().max(1e-9);
            for measured in [(Metric::OpsPerSecond, done.ops_per_s()), (Metric::NsPerOp, cost)] {
                samples.add(visit.round, shop.dentries.variant(), &params, measured, BASELINE);
            }
            Ok(())
        })?;
        Ok(samples)
    }
}

impl Shop {
    fn new(dentries: Box<dyn Dentries>, corpus: &Corpus, users: usize) -> Shop {
        let users = (0..users).map(|number| User::new(&*dentries, corpus, number)).collect();
        Shop { dentries, users }
    }

    /// Lets so many users work for a slice.
    fn open(&self, time: Duration, users: usize) -> anyhow::Result<Side> {
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
            thread::sleep(time);
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
            shape::spread_pct(row)
        );
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::quick;

    #[test]
    fn quick_run_has_every_design_and_shows_the_spread() {
        let variants =
            ["corewalk", BASELINE, "before-seqrwlock", "before-seqlock", "before-dcache-lock"];
        let rows =
            quick::check(&Aim7Short, &variants, &[1, 2].map(|users| vec![("users", users.into())]));
        let footer = footer(&rows);
        assert!(footer.contains("4365114 3872850 (-11.3 %)"), "{footer}");
        assert_eq!(footer.lines().filter(|line| line.contains(" users corewalk ")).count(), 2);
        let claims: Vec<String> = Aim7Short.claims(&rows).iter().map(Claim::to_string).collect();
        assert!(claims.iter().all(|claim| claim.contains("of 4 rows behind")), "{claims:?}");
    }
}
