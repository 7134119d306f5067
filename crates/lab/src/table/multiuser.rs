//! Table `multiuser`: users who compile, each in a working directory, over one dentry cache.
//!
//! Document 003 (McKenney, Sarma, Soni, 2004) puts lookups under RCU where Linux 2.4 took
//! `dcache_lock`, and shows a multiuser benchmark on a NUMA-Q with 16 processors (figure 9, a curve
//! without figures) and the numbers in [`PUBLISHED`]. Units: jobs per second of wall time, all users
//! together, and nanoseconds of processor time per job.
//!
//! # What is done
//! A user is a thread; a job (`multiuser::job`) is what compiling one unit asks of the names: it opens a
//! source, looks 24 headers up through three directories, where most are not, opens them, makes and
//! removes two temporaries in a directory that all users share, and replaces an object file.
//!
//! | variant | design |
//! |---|---|
//! | `corewalk` | this dcache over a tmpfs |
//! | `before-dcache-lock` | one lock around each lookup and change (Linux 2.4), over the same tmpfs |
//! | `rwlock-ahash` | one lock over two maps, without permissions |
//! | `linux` | the host kernel through system calls |
//!
//! # The claim, as a shape
//! Throughput grows with users up to the number of processors, where that of one lock around lookups
//! does not; more users than processors lose nothing. No row of corewalk is behind the lock by more
//! than it varies.
//!
//! # What it keeps and what it drops
//! It keeps what the document is about: lookups by several users through shared directories, with
//! updates among them. It drops the compiler, the file content and the web server, and 8 and 16
//! processors. The number of users is the table's own: `--threads` does not change it.
//!
//! # Checks
//! Every header must be found in its directory, with its number, and in none before it; every
//! temporary must be there between its making and its removal.
//!
//! Source: document 003, "Performance and Complexity Comparisons".

mod job;

use std::fmt::Write as _;
use std::time::Duration;

use serde_json::Value;

use super::grid::Rounds;
use super::{Claim, Grid, Settings, Table, shape, sized};
use crate::crew::{self, Measure, Pinned};
use crate::files::{BeforeFiles, Files, Host, Locked, Ours};
use crate::samples::{Params, Row, Samples};
use job::Sources;

/// The variant that all are compared with: what the document compares with.
pub(super) const BASELINE: &str = "before-dcache-lock";
/// Users, also more than there are processors.
pub(super) const USERS: (&[usize], &[usize]) = (&[1, 2], &[1, 2, 4, 8]);
/// Who is measured.
const VARIANTS: [&str; 4] = ["corewalk", BASELINE, "rwlock-ahash", "linux"];
/// Names there is room for before the patch: more than all users make.
const CAPACITY: usize = 1 << 16;
/// What document 003 published: what, without the patch, with it, unit.
const PUBLISHED: [(&str, f64, f64, &str); 2] = [
    ("SPECweb99 without SSL, Linux 2.4.17, 8 processors", 2258.0, 2530.0, "throughput"),
    ("system time of a kernel build, Linux 2.5.40-mm2", 47.548, 42.498, "processor seconds"),
];

/// The table.
pub(super) struct Multiuser;

impl Table for Multiuser {
    fn name(&self) -> &'static str {
        "multiuser"
    }

    fn source(&self) -> &'static str {
        "multiuser throughput with dcache_lock and without: document 003 (Linux Journal, 2004)"
    }

    fn about(&self) -> &'static str {
        "users who compile, each in a working directory, over one cache"
    }

    fn claim(&self) -> &'static str {
        "Throughput grows with the users as far as there are processors, and one lock around lookups \
         keeps it from that."
    }

    fn footer(&self, rows: &[Row]) -> String {
        let mut out = published();
        for variant in VARIANTS {
            let rate = |users: u64| {
                let params = [("users", Value::from(users))];
                shape::median(rows, variant, "ops_per_s", &params).filter(|rate| *rate > 0.0)
            };
            let grown =
                |users| shape::times(rate(users).zip(rate(1)).map(|(some, one)| some / one));
            let _ = writeln!(
                out,
                "{variant}: over one user, two {}, four {}, eight {}",
                grown(2),
                grown(4),
                grown(8)
            );
        }
        out
    }

    fn claims(&self, rows: &[Row]) -> Vec<Claim> {
        let ours = rows.iter().filter(|row| row.variant == "corewalk");
        vec![Claim::no_loss(&format!("no number of users loses against {BASELINE}"), ours)]
    }

    fn grids(&self, settings: &Settings) -> Vec<Grid> {
        vec![grid(settings)]
    }

    fn run(&self, settings: &Settings) -> anyhow::Result<Samples> {
        measure(self.name(), settings, Processors::All)
    }
}

/// Returns what is measured, on however many processors.
pub(super) fn grid(settings: &Settings) -> Grid {
    Grid::new(settings, sized(settings.size, USERS).len(), VARIANTS.len(), 1.0)
}

/// Returns what the document published, as lines.
pub(super) fn published() -> String {
    let mut out =
        String::from("Published by document 003, without and with RCU (other machines):\n");
    for (what, without, with, unit) in PUBLISHED {
        let change = 100.0 * (with / without - 1.0);
        let _ = writeln!(out, "{what}: {without} and {with} {unit} ({change:+.1} %)");
    }
    out.push_str("one processor of 700 MHz, Linux 2.5.42: no change\n");
    out
}

/// Which processors the users have.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Processors {
    /// All that the process may use.
    All,
    /// One of them.
    One,
}

/// Measures all variants with every number of users.
pub(super) fn measure(
    table: &'static str,
    settings: &Settings,
    processors: Processors,
) -> anyhow::Result<Samples> {
    let users = sized(settings.size, USERS);
    let users_max = users.iter().copied().max().unwrap_or(1);
    let rounds = Rounds::begin(table, settings)?;
    let (ours, locked, host) = (Ours::new()?, Locked::new(), Host::new(table));
    let before = BeforeFiles::dcache_lock(CAPACITY)?;
    let mut variants = vec![
        variant(&ours, users_max)?,
        variant(&before, users_max)?,
        variant(&locked, users_max)?,
    ];
    match &host {
        Ok(host) => variants.push(variant(host, users_max)?),
        Err(error) => eprintln!("{table}: skipped linux: {error:#}"),
    }
    let grid = grid(settings);
    let mut samples = Samples::default();
    let pinned = (processors == Processors::One).then(Pinned::to_one_cpu).transpose()?;
    rounds.each(&grid, (users, variants.len()), |visit| {
        let params = Params::from([("users", (*visit.cell).into())]);
        let (name, measure) = &variants[visit.at];
        let slice = measure(visit.cell, grid.slice);
        slice.add_to(&mut samples, visit.round, name, &params, BASELINE)
    })?;
    drop(pinned);
    Ok(samples)
}

/// Makes the directories of all users in `files` and returns who works there.
fn variant<F: Files>(files: &F, users: usize) -> anyhow::Result<(&str, Measure<'_, usize>)> {
    let sources = Sources::make(files, users)?;
    let measure = move |users: &usize, time: Duration| {
        crew::run(*users, time, |user, turn| {
            let session = files.user();
            let mut desk = sources.desk(&session, user);
            turn.run_jobs(move || desk.compile())
        })
    };
    Ok((files.variant(), Box::new(measure)))
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::table::quick;

    /// Runs `table` and checks that it has every variant with every number of users.
    pub(in crate::table) fn check(table: &dyn Table) {
        quick::check(table, &VARIANTS, &[1, 2].map(|users| vec![("users", users.into())]));
    }

    #[test]
    fn quick_run_has_every_variant_and_number_of_users() {
        check(&Multiuser);
    }

    #[test]
    fn footer_has_what_was_published_and_the_growth_that_was_measured() {
        let mut samples = Samples::default();
        for (users, rate) in [(1, 10.0), (2, 19.0)] {
            let params = Params::from([("users", users.into())]);
            let rate = (crate::samples::Metric::OpsPerSecond, rate);
            samples.add(0, "corewalk", &params, rate, BASELINE);
        }
        let footer = Multiuser.footer(&samples.rows());
        assert!(footer.contains("2258 and 2530 throughput (+12.0 %)"), "{footer}");
        assert!(footer.contains("corewalk: over one user, two x1.90, four unknown"), "{footer}");
    }
}
