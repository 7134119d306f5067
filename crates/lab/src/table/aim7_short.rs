//! Benchmark table `aim7-short`: 1 to 32 users run jobs at the same time. The table also shows how
//! much the runs vary.
//!
//! Source: Long's patch of September 2013 (document 001 in `documents.md`), and Stoffel's questions
//! in its review. Units: jobs per second of wall time, all users together (`ops_per_s`), and
//! processor time per job (`ns_per_op`).
//!
//! Long measured jobs per minute of AIM7's short workload on a DL980 with 80 cores. He measured his
//! lockref patches alone, and with the later patch too. With the later patch the rate was 11.3 %
//! lower up to 100 users, and with more users 6.2 and 6.6 % higher.
//!
//! In the review of Long's patch, Stoffel asked whether the loss is real, and how much runs vary.
//! He also asked for figures of a machine with four cores. This table answers for 1 to 4 users,
//! with minimum and maximum.
//!
//! As in Long's measurement, all users do the same mix of operations (`job`), in their own
//! directories and on shared paths. There are no processes, pipes and arithmetic, which do not use
//! the dentry cache. So differences are larger than in his measurement.
//!
//! Unlike in Long's measurement, the number of jobs is not fixed, and users are threads. All
//! designs keep names in memory without a file system below.
//!
//! corewalk does more work than the designs of `before`: it checks permissions, calls a file
//! system, and counts references of inodes. So it can lose here.
//!
//! # Checks
//! Each job checks the answers of all its operations. A wrong answer fails the run.

use super::prelude::*;
use crate::before::{Before, Dentries, Design, filled};
use crate::corpus::Corpus;
use crate::job::{self, User};

/// Numbers of users.
const USERS: (&[usize], &[usize]) = (&[1, 2], &[1, 2, 3, 4, 8, 16, 32]);
/// Entries of the tree.
const ENTRIES: (usize, usize) = (2_000, 20_000);
/// The number of designs.
const DESIGNS: usize = 5;
/// The measuring time per row, as a fraction of the usual time. It is below 1, because there are
/// many rows.
const SHARE_OF_TIME: f64 = 0.8;
/// The baseline, with which all other variants are compared.
const BASELINE: &str = Design::GlobalLock.name();

/// The table.
pub(super) const TABLE: Table = Table { name: "aim7-short", sweeps, run };

fn sweeps(settings: &Settings) -> Vec<Sweep> {
    let users = values(sized(settings.size, USERS));
    let cells = cells(&[("op", vec!["job".into()]), ("users", users)]);
    vec![Sweep::new(cells, DESIGNS, BASELINE, SHARE_OF_TIME)]
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

/// Returns the variant `dentries` with its measuring function. The users (threads) share
/// processors, so the rate is the number of all jobs over the time from the first start to the last
/// end.
fn shop<'a>(dentries: &'a dyn Dentries, corpus: &Corpus, users: usize) -> (&'a str, Measure<'a>) {
    let users: Vec<User> = (0..users).map(|number| User::new(dentries, corpus, number)).collect();
    let measure = move |cell: &Cell, time| {
        let work = |user: usize, turn: Turn<'_>| dentries.be_user(&users[user], turn);
        let workers = cell.number("users");
        let (laps, ()) = crew::run_laps(workers, 1, Pinning::Free, time, work, |_| ());
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
        let claims = quick::claims(&TABLE, &rows);
        assert!(claims.iter().all(|claim| claim.contains("of 4 rows behind")), "{claims:?}");
    }
}
