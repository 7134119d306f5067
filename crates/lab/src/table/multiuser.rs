//! Benchmark tables `multiuser` and `one-cpu`: users compile, each in its own directory, over one
//! dentry cache.
//!
//! The article "Scaling dcache with RCU" (McKenney, Sarma, Soni, 2004; document 003 in
//! `documents.md`) puts lookups under RCU, where Linux 2.4 took `dcache_lock`. It shows a multiuser
//! benchmark on a NUMA-Q with 16 processors. Its figure 9 is a curve without numbers; other figures
//! are in `words.json`.
//!
//! The last measurement of the article is a kernel build on one processor of 700 MHz, whose times
//! "showed no change". Units: jobs per second of wall time, all users together, and nanoseconds of
//! processor time per job.
//!
//! A user is a thread that does one job after the other. A job (`multiuser::job`) has those
//! operations of a compiler on one source file that concern names:
//! - It opens the source file, and looks up 24 C headers in up to three directories each.
//! - It makes and removes two temporary files in a directory that all users share.
//! - It replaces an object file.
//!
//! `before-dcache-lock` takes one lock around each lookup and change (Linux 2.4), over the same
//! tmpfs as corewalk. `one-cpu` pins all threads to one processor.
//!
//! As in the article of 2004 (Linux Journal), several users look up names in shared directories,
//! some of which are made and removed meanwhile.
//!
//! Unlike the article, the table runs no real compiler, reads no file content, and measures no web
//! server. The table fixes the numbers of users itself, so `--threads` does not change them.
//!
//! # Checks
//! Each C header must be found in the directory that has it, with its inode number, and not in the
//! directories before. Every temporary file must exist from its creation to its removal.
//!
//! Source: document 003 in `documents.md`, "Performance and Complexity Comparisons";
//! sched_setaffinity(2).

mod job;

use super::prelude::*;
use crate::before::Design;
use crate::files::Files;
use job::Sources;

/// The baseline, with which all other variants are compared, as in the document.
const BASELINE: &str = "before-dcache-lock";
/// Numbers of users. Some exceed the number of processors.
const USERS: (&[usize], &[usize]) = (&[1, 2], &[1, 2, 4, 8]);
/// The variants.
const VARIANTS: [&str; 3] = ["corewalk", BASELINE, "linux"];
/// Maximum number of names in `before-dcache-lock`, more than all users make.
const CAPACITY: usize = 1 << 16;

/// The table.
pub(super) const MULTIUSER: Table = Table { name: "multiuser", sweeps, run };

/// The table with one processor.
pub(super) const ONE_CPU: Table = Table {
    name: "one-cpu",
    run: |one_cpu, samples| {
        cpus::pin_to_first()?;
        run(one_cpu, samples)
    },
    ..MULTIUSER
};

fn sweeps(settings: &Settings) -> Vec<Sweep> {
    let cells = cells(&[("users", values(sized(settings.size, USERS)))]);
    vec![Sweep::new(cells, VARIANTS.len(), BASELINE, 1.0)]
}

fn run(run: &Run<'_>, samples: &mut Samples) -> anyhow::Result<()> {
    let users = sized(run.settings.size, USERS).iter().copied().max().unwrap_or(1);
    let before = Some((Design::DcacheLock, CAPACITY));
    run.files(&run.sweeps[0], before, &Compilers(users), samples)
}

/// Users who compile.
struct Compilers(usize);

impl Workload for Compilers {
    /// Makes the directories of all users in `files`.
    fn enter<'a, F: Files>(&'a self, files: &'a F) -> anyhow::Result<Measure<'a>> {
        let sources = Sources::make(files, self.0)?;
        Ok(Box::new(move |cell, time| {
            Ok(crew::run(cell.number("users"), time, |user, turn| {
                sources.compile(&files.user(), user, turn)
            }))
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::quick;

    /// Every variant must have rows of every number of users.
    fn check(table: &Table) {
        quick::check(table, &VARIANTS, &[1, 2].map(|users| vec![("users", users.into())]));
    }

    #[test]
    fn quick_run_has_every_variant_and_number_of_users() {
        check(&MULTIUSER);
    }

    #[test]
    fn quick_run_on_one_cpu_has_every_variant_and_number_of_users() {
        check(&ONE_CPU);
    }
}
