//! Table `aim7-short`: jobs of many users at once, from one user on, with the spread of the runs.
//!
//! Source: document 001 (Long, September 2013) and the questions of Stoffel in its review. Units:
//! jobs per second of wall time, all users together (`ops_per_s`), and processor time per job
//! (`ns_per_op`).
//!
//! The document measured jobs per minute of the short workload of AIM7 on a DL980 with 80 cores, on
//! top of the lockref patches, in three ranges of users. It lost 11.3 % up to 100
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

use super::engine::{Cell, Measure, cells, values};
use super::{Claim, Plot, Published, Run, Settings, Sweep, Table, sized};
use crate::before::{Before, Dentries, Design, filled};
use crate::corpus::Corpus;
use crate::crew::{self, Pinning};
use crate::job::{self, User};
use crate::ours::Ours;
use crate::samples::{Row, Samples};

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
pub(super) const TABLE: Table = Table {
    name: "aim7-short",
    source: "AIM7 short of document 001 (Long, September 2013), with the rows that its review asked for",
    about: "jobs of 1 to 32 users: paths, walks, files made and removed; spread of the runs",
    claim: "Translation under a sequence gives no fewer jobs than translation under a lock, from one user on.",
    plot: Plot { x: "users", metric: "ops_per_s", at: &[("op", "job")], headline: "1" },
    // The document prints the second range as 200-10000, and the third begins at 1100.
    published: || {
        Some(Published {
            x: "users, up to, 80 cores",
            unit: "jobs per minute",
            curves: vec![
                (
                    "without the patch",
                    vec![(100.0, 4_365_114.0), (1e3, 7_211_115.0), (2e3, 6_964_439.0)],
                ),
                (
                    "with the patch",
                    vec![(100.0, 3_872_850.0), (1e3, 7_655_958.0), (2e3, 7_422_598.0)],
                ),
            ],
        })
    },
    claims,
    sweeps,
    run,
    ..Table::PLAIN
};

fn claims(rows: &[Row]) -> Vec<Claim> {
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

fn sweeps(settings: &Settings) -> Vec<Sweep> {
    let users = values(sized(settings.size, USERS));
    let cells = cells(&[("op", vec!["job".into()]), ("users", users)]);
    vec![Sweep::new(cells, (DESIGNS, BASELINE), SHARE_OF_TIME)]
}

fn run(run: &Run<'_>, samples: &mut Samples) -> anyhow::Result<()> {
    let users = sized(run.settings.size, USERS).iter().copied().max().unwrap_or(1);
    let corpus = Corpus::collect(sized(run.settings.size, ENTRIES));
    let capacity = corpus.len() + users * (2 + 4 * job::FILES) + 1024;
    let mut designs: Vec<Box<dyn Dentries>> =
        vec![Box::new(filled(Ours::empty(capacity)?, &corpus))];
    for design in [Design::GlobalLock, Design::SeqRwLock, Design::SeqLock, Design::DcacheLock] {
        designs.push(Box::new(filled(Before::new(design, capacity), &corpus)));
    }
    let variants: Vec<_> = designs.iter().map(|design| shop(&**design, &corpus, users)).collect();
    run.measure(&run.sweeps[0], &variants, samples)
}

/// Returns a variant with its users. The rate is that of all users over the whole span, since
/// there are more users than processors.
fn shop<'a>(dentries: &'a dyn Dentries, corpus: &Corpus, users: usize) -> (&'a str, Measure<'a>) {
    let users: Vec<User> = (0..users).map(|number| User::new(dentries, corpus, number)).collect();
    let measure = move |cell: &Cell, time| {
        let workers = (cell.number("users"), 1, Pinning::Free);
        let work = |user: usize, turn| dentries.be_user(&users[user], turn);
        let (laps, ()) = crew::run_laps(workers, time, work, |_| ());
        Ok(crew::together(&laps, 0).over_span())
    };
    (dentries.variant(), Box::new(measure))
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
            quick::check(&TABLE, &variants, &[1, 2].map(|users| vec![("users", users.into())]));
        let claims: Vec<String> = claims(&rows).iter().map(Claim::to_string).collect();
        assert!(claims.iter().all(|claim| claim.contains("of 4 rows behind")), "{claims:?}");
    }
}
