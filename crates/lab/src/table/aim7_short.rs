//! Table `aim7-short`: jobs of many users at once, from one user on, with the spread of the runs.
//!
//! Source: document 001 (Long, September 2013) and the questions of Stoffel in its review. Units:
//! jobs per second of wall time, all users together (`ops_per_s`), and processor time per job
//! (`ns_per_op`). The footer gives jobs per minute.
//!
//! The document measured jobs per minute of the short workload of AIM7 on a DL980 with 80 cores, on
//! top of the lockref patches, in three ranges of users ([`PUBLISHED`]). It lost 11.3 % up to 100
//! users, and won 6.2 and 6.6 % above. Stoffel asked if the loss is real, how much runs vary, and
//! for a machine with four cores. The rows of 1 to 4 users are the answer, each with its lowest and
//! highest run.
//!
//! Kept: users do jobs, each of which is the same bounded mix (`job`), in directories of their own
//! and on paths that all share. Dropped: processes, pipes and arithmetic, which a name cache does
//! not see, so differences are larger than in the document; and completion of a fixed number of
//! jobs. Users are threads. All designs, and corewalk, keep names in memory with no file system
//! below.
//!
//! corewalk does more than the small designs: permissions, a back end, counted inodes. So it can
//! lose here.
//!
//! # Checks
//! Every answer of every job is compared; a wrong answer fails the run.

use std::fmt::Write as _;

use anyhow::ensure;

use super::bench::{Cell, cells, values};
use super::grid::Rounds;
use super::{Claim, Grid, Plot, Published, Settings, Table, Text, shape, sized};
use crate::before::{Before, Dentries, Design, filled};
use crate::corpus::Corpus;
use crate::crew::{self, Pinning};
use crate::job::{self, User};
use crate::ours::Ours;
use crate::race::Side;
use crate::samples::{Row, Samples};

/// The figures of document 001: users, mean jobs per minute without and with the patch. (It prints
/// the second range as 200-10000, and the third begins at 1100.)
const PUBLISHED: [(&str, u32, u32); 3] = [
    ("10-100", 4_365_114, 3_872_850),
    ("200-10000", 7_211_115, 7_655_958),
    ("1100-2000", 6_964_439, 7_422_598),
];
/// Numbers of users.
const USERS: (&[usize], &[usize]) = (&[1, 2], &[1, 2, 3, 4, 8, 16, 32]);
/// Entries of the tree.
const ENTRIES: (usize, usize) = (2_000, 20_000);
/// The number of designs.
const DESIGNS: usize = 5;
/// The share of the time per row: there are many rows.
const SHARE_OF_TIME: f64 = 0.8;
/// The variant that all are compared with.
const BASELINE: &str = Design::GlobalLock.name();

/// The table.
pub(super) struct Aim7Short;

/// A variant with its users.
type Shop = (Box<dyn Dentries>, Vec<User>);

impl Table for Aim7Short {
    fn text(&self) -> &'static Text {
        &Text {
            name: "aim7-short",
            source: "AIM7 short of document 001 (Long, September 2013), with the rows that its review asked for",
            about: "jobs of 1 to 32 users: paths, walks, files made and removed; spread of the runs",
            claim: "Translation under a sequence gives no fewer jobs than translation under a lock, from one user on.",
            plot: Plot { x: "users", metric: "ops_per_s", at: &[("op", "job")], headline: "1" },
        }
    }

    fn published(&self) -> Option<Published> {
        let rows = || [100.0, 1_000.0, 2_000.0].into_iter().zip(PUBLISHED);
        let without = rows().map(|(users, row)| (users, f64::from(row.1))).collect();
        let with = rows().map(|(users, row)| (users, f64::from(row.2))).collect();
        Some(Published {
            x: "users, up to, 80 cores",
            unit: "jobs per minute",
            curves: vec![("without the patch", without), ("with the patch", with)],
        })
    }

    fn footer(&self, rows: &[Row]) -> String {
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
        for row in rows.iter().filter(|row| row.metric == "ops_per_s") {
            let [median, min, max] = [row.median, row.min, row.max].map(|rate| rate * 60.0 / 1e3);
            let (users, spread) = (row.params["users"].to_string(), shape::spread_pct(row));
            let variant = &row.variant;
            let _ = writeln!(
                out,
                "  {users:>2} users {variant:<20} {median:>9.0} ({min:.0} .. {max:.0}), {spread:.0} %"
            );
        }
        out
    }

    fn claims(&self, rows: &[Row]) -> Vec<Claim> {
        let of = |variant: &'static str, users_max: u64| {
            rows.iter().filter(move |row| {
                row.variant == variant && row.params["users"].as_u64() <= Some(users_max)
            })
        };
        let (document, ours) = (of(Design::SeqLock.name(), u64::MAX), of("corewalk", 4));
        let words = "of the document: the sequence does not lose against the lock";
        vec![
            Claim::no_loss(words, document),
            Claim::no_loss("corewalk does not lose against the lock at 1 to 4 users", ours),
        ]
    }

    fn grids(&self, settings: &Settings) -> Vec<Grid> {
        vec![Grid::new(settings, all_cells(settings).len(), DESIGNS, SHARE_OF_TIME)]
    }

    fn run(&self, settings: &Settings) -> anyhow::Result<Samples> {
        let rounds = Rounds::begin(self.name(), settings)?;
        let users = sized(settings.size, USERS).iter().copied().max().unwrap_or(1);
        let shops = shops(sized(settings.size, ENTRIES), users)?;
        let grid = self.grids(settings)[0];
        let mut samples = Samples::default();
        rounds.each(&grid, (&all_cells(settings), shops.len()), |visit| {
            let ((dentries, users), variant) = (&shops[visit.at], shops[visit.at].0.variant());
            let workers = (visit.cell.number("users"), 1, Pinning::Free);
            let work = |user: usize, turn| dentries.be_user(&users[user], turn);
            let (laps, ()) = crew::run_laps(workers, grid.slice, work, |_| ());
            let done = Side::of(&laps);
            ensure!(done.wrong == 0, "{variant}: {} answers were wrong", done.wrong);
            let speed = (done.ops_per_s(), done.ns_per_op());
            samples.add_speed(visit.round, variant, &visit.cell.0, speed, BASELINE);
            Ok(())
        })?;
        Ok(samples)
    }
}

fn all_cells(settings: &Settings) -> Vec<Cell> {
    let users = values(sized(settings.size, USERS));
    cells(&[("op", vec!["job".into()]), ("users", users)])
}

/// Returns every design with its users.
fn shops(entries: usize, users: usize) -> anyhow::Result<Vec<Shop>> {
    let corpus = Corpus::collect(entries);
    // Two directories per user, the files of a job, and some for names that are being freed.
    let capacity = corpus.len() + users * (2 + 4 * job::FILES) + 1024;
    let mut designs: Vec<Box<dyn Dentries>> =
        vec![Box::new(filled(Ours::empty(capacity)?, &corpus))];
    for design in [Design::GlobalLock, Design::SeqRwLock, Design::SeqLock, Design::DcacheLock] {
        designs.push(Box::new(filled(Before::new(design, capacity), &corpus)));
    }
    let shop = |design: Box<dyn Dentries>| {
        let users = (0..users).map(|number| User::new(&*design, &corpus, number)).collect();
        (design, users)
    };
    Ok(designs.into_iter().map(shop).collect())
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
        let footer = Aim7Short.footer(&rows);
        assert!(footer.contains("4365114 3872850 (-11.3 %)"), "{footer}");
        assert_eq!(footer.lines().filter(|line| line.contains(" users corewalk ")).count(), 2);
        let claims: Vec<String> = Aim7Short.claims(&rows).iter().map(Claim::to_string).collect();
        assert!(claims.iter().all(|claim| claim.contains("of 4 rows behind")), "{claims:?}");
    }
}
