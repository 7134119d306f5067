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

use super::engine::{Measure, Workload, cells, values};
use super::{Claim, Plot, Run, Settings, Sweep, Table, shape, sized};
use crate::before::Design;
use crate::cpus::Pinned;
use crate::crew;
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
/// The figures of document 003.
const PUBLISHED: &str = "Published by document 003, without and with RCU (other machines):
SPECweb99 without SSL, Linux 2.4.17, 8 processors: 2258 and 2530 throughput (+12.0 %)
system time of a kernel build, Linux 2.5.40-mm2: 47.548 and 42.498 processor seconds (-10.6 %)
one processor of 700 MHz, Linux 2.5.42: no change";

/// The table.
pub(super) const MULTIUSER: Table = Table {
    name: "multiuser",
    source: "multiuser throughput with dcache_lock and without: document 003 (Linux Journal, 2004)",
    about: "users who compile, each in a working directory, over one cache",
    claim: "Throughput grows with the users up to the number of processors, and one lock around \
            lookups prevents that.",
    plot: Plot { x: "users", metric: "ops_per_s", at: &[], headline: "1" },
    note: PUBLISHED,
    claims: |rows| no_loss("no number of users loses", rows),
    sweeps,
    run,
    ..Table::PLAIN
};

/// The table with one processor.
pub(super) const ONE_CPU: Table = Table {
    name: "one-cpu",
    source: "no loss on one processor: document 003 (Linux Journal, 2004)",
    about: "the users of multiuser with the process on one processor",
    claim: "On one processor nothing is lost against one lock around lookups.",
    claims: |rows| no_loss("on one processor no row loses", rows),
    run: |one_cpu, samples| {
        let _pinned = Pinned::to_one_cpu()?;
        run(one_cpu, samples)
    },
    ..MULTIUSER
};

fn no_loss(words: &str, rows: &[Row]) -> Vec<Claim> {
    vec![Claim::no_loss(&format!("{words} against {BASELINE}"), shape::ours(rows))]
}

fn sweeps(settings: &Settings) -> Vec<Sweep> {
    let cells = cells(&[("users", values(sized(settings.size, USERS)))]);
    vec![Sweep::new(cells, (VARIANTS.len(), BASELINE), 1.0)]
}

fn run(run: &Run<'_>, samples: &mut Samples) -> anyhow::Result<()> {
    let users = sized(run.settings.size, USERS).iter().copied().max().unwrap_or(1);
    let before = Some((Design::DcacheLock, CAPACITY));
    run.files(&run.sweeps[0], before, &Compilers { users }, samples)
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
    use crate::cpus;
    use crate::table::quick;

    /// Runs `table` and checks that it has every variant with every number of users.
    fn check(table: &Table) {
        quick::check(table, &VARIANTS, &[1, 2].map(|users| vec![("users", users.into())]));
    }

    #[test]
    fn quick_run_has_every_variant_and_number_of_users() {
        check(&MULTIUSER);
    }

    #[test]
    fn quick_run_on_one_cpu_gives_the_processors_back() {
        let before = cpus::all().unwrap().count();
        check(&ONE_CPU);
        assert_eq!(cpus::all().unwrap().count(), before);
    }
}
