//! Tables `multiuser` and `one-cpu`: users who compile, each in a working directory, over one
//! cache.
//!
//! Document 003 (McKenney, Sarma, Soni, 2004) puts lookups under RCU where Linux 2.4 took
//! `dcache_lock`. It shows a multiuser benchmark on a NUMA-Q with 16 processors (figure 9, a curve
//! without figures) and the numbers in [`PUBLISHED`]. It ends with a kernel on one processor of 700
//! MHz, whose build times "showed no change". Units: jobs per second of wall time, all users
//! together, and nanoseconds of processor time per job.
//!
//! A user is a thread. A job (`multiuser::job`) is the questions about names of a compiler and one
//! unit: it opens a source, looks 24 headers up through three directories, where most are not, and
//! opens them. It makes and removes two temporaries in a directory that all users share, and
//! replaces an object file. `before-dcache-lock` is one lock around each lookup and change (Linux
//! 2.4), over the tmpfs that corewalk stands on. `one-cpu` keeps the process on one processor.
//!
//! Kept: lookups by several users through shared directories, with updates among them. Dropped: the
//! compiler, file content, the web server, 8 and 16 processors, and the kernel without SMP. The
//! numbers of users are the table's own: `--threads` does not change them.
//!
//! # Checks
//! Every header must be found in its directory, with its number, and in no directory before it.
//! Every temporary must be there between its making and its removal.
//!
//! Source: document 003, "Performance and Complexity Comparisons"; sched_setaffinity(2).

mod job;

use std::fmt::Write as _;

use serde_json::Value;

use super::bench::{Bench, Cell, Measure, Workload, cells, values};
use super::grid::Rounds;
use super::{Claim, Grid, Plot, Settings, Table, Text, shape, sized};
use crate::before::Design;
use crate::crew::{self, Pinned};
use crate::files::Files;
use crate::samples::{Row, Samples};
use job::Sources;

/// The variant that all are compared with, as in the document.
const BASELINE: &str = "before-dcache-lock";
/// Numbers of users, also more than there are processors.
const USERS: (&[usize], &[usize]) = (&[1, 2], &[1, 2, 4, 8]);
/// The variants.
const VARIANTS: [&str; 3] = ["corewalk", BASELINE, "linux"];
/// Room for names before the patch: more than all users make.
const CAPACITY: usize = 1 << 16;
/// The figures of document 003: measurement, without the patch, with the patch, unit.
const PUBLISHED: [(&str, f64, f64, &str); 2] = [
    ("SPECweb99 without SSL, Linux 2.4.17, 8 processors", 2258.0, 2530.0, "throughput"),
    ("system time of a kernel build, Linux 2.5.40-mm2", 47.548, 42.498, "processor seconds"),
];

/// The table with all processors.
pub(super) struct Multiuser;

/// The table with one processor.
pub(super) struct OneCpu;

impl Table for Multiuser {
    fn text(&self) -> &'static Text {
        &Text {
            name: "multiuser",
            source: "multiuser throughput with dcache_lock and without: document 003 (Linux Journal, 2004)",
            about: "users who compile, each in a working directory, over one cache",
            claim: "Throughput grows with the users up to the number of processors, and one lock around \
                    lookups prevents that.",
            plot: Plot { x: "users", metric: "ops_per_s", at: &[], headline: "1" },
        }
    }

    fn footer(&self, rows: &[Row]) -> String {
        let mut out = published();
        for variant in VARIANTS {
            let rate = |users: u64| {
                let params = [("users", Value::from(users))];
                shape::median(rows, variant, "ops_per_s", &params).filter(|rate| *rate > 0.0)
            };
            let [two, four, eight] = [2, 4, 8]
                .map(|users| shape::times(rate(users).zip(rate(1)).map(|(some, one)| some / one)));
            let _ =
                writeln!(out, "{variant}: over one user, two {two}, four {four}, eight {eight}");
        }
        out
    }

    fn claims(&self, rows: &[Row]) -> Vec<Claim> {
        let words = format!("no number of users loses against {BASELINE}");
        vec![Claim::no_loss(&words, shape::ours(rows))]
    }

    fn grids(&self, settings: &Settings) -> Vec<Grid> {
        grids(settings)
    }

    fn run(&self, settings: &Settings) -> anyhow::Result<Samples> {
        measure(self.name(), settings)
    }
}

impl Table for OneCpu {
    fn text(&self) -> &'static Text {
        &Text {
            name: "one-cpu",
            source: "no loss on one processor: document 003 (Linux Journal, 2004)",
            about: "the users of multiuser with the process on one processor",
            claim: "On one processor nothing is lost against one lock around lookups.",
            plot: Plot { x: "users", metric: "ops_per_s", at: &[], headline: "1" },
        }
    }

    fn footer(&self, rows: &[Row]) -> String {
        let mut out = published();
        for users in USERS.1 {
            let params = [("users", Value::from(*users))];
            let share = shape::times(shape::ratio(rows, "corewalk", "ns_per_op", &params));
            let _ =
                writeln!(out, "{users} users: processor time of corewalk, {share} of {BASELINE}");
        }
        out
    }

    fn claims(&self, rows: &[Row]) -> Vec<Claim> {
        let words = format!("on one processor no row loses against {BASELINE}");
        vec![Claim::no_loss(&words, shape::ours(rows))]
    }

    fn grids(&self, settings: &Settings) -> Vec<Grid> {
        grids(settings)
    }

    fn run(&self, settings: &Settings) -> anyhow::Result<Samples> {
        let _pinned = Pinned::to_one_cpu()?;
        measure(self.name(), settings)
    }
}

/// Returns the figures of the document, as lines.
fn published() -> String {
    let mut out =
        String::from("Published by document 003, without and with RCU (other machines):\n");
    for (name, without, with, unit) in PUBLISHED {
        let change = 100.0 * (with / without - 1.0);
        let _ = writeln!(out, "{name}: {without} and {with} {unit} ({change:+.1} %)");
    }
    out.push_str("one processor of 700 MHz, Linux 2.5.42: no change\n");
    out
}

fn all_cells(settings: &Settings) -> Vec<Cell> {
    cells(&[("users", values(sized(settings.size, USERS)))])
}

fn grids(settings: &Settings) -> Vec<Grid> {
    vec![Grid::new(settings, all_cells(settings).len(), VARIANTS.len(), 1.0)]
}

/// Measures all variants with every number of users.
fn measure(table: &'static str, settings: &Settings) -> anyhow::Result<Samples> {
    let users = sized(settings.size, USERS).iter().copied().max().unwrap_or(1);
    let mut samples = Samples::default();
    let (rounds, cells) = (Rounds::begin(table, settings)?, all_cells(settings));
    let bench = Bench::new(&rounds, grids(settings)[0], &cells, BASELINE);
    bench.run_files(Some((Design::DcacheLock, CAPACITY)), &Compilers { users }, &mut samples)?;
    Ok(samples)
}

/// Users who compile.
struct Compilers {
    users: usize,
}

impl Workload for Compilers {
    /// Makes the directories of all users in `files`.
    fn enter<'a, F: Files>(&'a self, files: &'a F) -> anyhow::Result<Measure<'a>> {
        let sources = Sources::make(files, self.users)?;
        Ok(Box::new(move |cell, time| {
            Ok(crew::run(cell.number("users"), time, |user, turn| {
                let session = files.user();
                let mut desk = sources.desk(&session, user);
                turn.run_jobs(move || desk.compile())
            }))
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::peer::all_cpus;
    use crate::table::quick;

    /// Runs `table` and checks that it has every variant with every number of users.
    fn check(table: &dyn Table) {
        quick::check(table, &VARIANTS, &[1, 2].map(|users| vec![("users", users.into())]));
    }

    #[test]
    fn quick_run_has_every_variant_and_number_of_users() {
        check(&Multiuser);
    }

    #[test]
    fn quick_run_on_one_cpu_gives_the_processors_back() {
        let before = all_cpus().unwrap().count();
        check(&OneCpu);
        assert_eq!(all_cpus().unwrap().count(), before);
    }

    #[test]
    fn footer_has_the_published_figures_and_the_measured_growth() {
        let mut samples = Samples::default();
        for (users, rate) in [(1, 10.0), (2, 19.0)] {
            let cell = Cell::default().with("users", users);
            let rate = (crate::samples::Metric::OpsPerSecond, rate);
            samples.add(0, "corewalk", &cell.0, rate, BASELINE);
        }
        let footer = Multiuser.footer(&samples.rows());
        assert!(footer.contains("2258 and 2530 throughput (+12.0 %)"), "{footer}");
        assert!(footer.contains("corewalk: over one user, two x1.90, four unknown"), "{footer}");
    }
}
