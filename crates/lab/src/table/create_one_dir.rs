//! Table `create-one-dir`: several threads make and remove files in one directory.
//!
//! The article "Scaling dcache with RCU" (McKenney, Sarma, Soni, 2004) lists open problems of the
//! RCU dcache. The first is that updates are "still gated by dcache_lock, which means that
//! update-intensive workloads do not scale well". Linux in 2026 takes the lock of the directory for
//! each create and unlink, so operations on different names in it wait for each other. The article
//! has no measurement of updates.
//!
//! Units: operations per second of wall time, all threads together, and nanoseconds of processor
//! time per operation. A create is one operation, and so is an unlink.
//!
//! A directory has 1,000 files that stay. Each thread makes and removes 64 files of its own again
//! and again. With `directories=one` all threads work in one directory, with `directories=own` each
//! in its own. The difference is the cost of sharing a directory.
//!
//! The tmpfs below corewalk has a lock per directory, which protects the list of its names. The
//! cache above has none. The benchmark neither writes nor opens the files, and its directories do
//! not grow.
//!
//! # Checks
//! Every create and every unlink must succeed. At the end of a time slice, each directory must have
//! exactly the 1,000 files that stay.
//!
//! Source: McKenney, Sarma, Soni, 2004 (document 003 in `documents.md`), "Future Directions", 1;
//! Linux `fs/namei.c` (`inode_lock` of the parent). The workload is that of MWCM and MWUM in FxMark
//! (USENIX ATC 2016).

use super::prelude::*;
use crate::files::{Files, List, User, make_path};

/// The baseline, with which all other variants are compared.
const BASELINE: &str = "linux";
/// Files that stay in each directory.
const STANDING: usize = 1_000;
/// Files that a thread makes before it removes them.
const FILES: u64 = 64;
/// The variants.
const VARIANTS: [&str; 2] = ["corewalk", BASELINE];
/// The directories of the threads.
const PLACES: [&str; 2] = ["one", "own"];

/// The table.
pub(super) const TABLE: Table = Table { name: "create-one-dir", sweeps, run };

fn sweeps(settings: &Settings) -> Vec<Sweep> {
    let threads = values(&settings.threads);
    let cells = cells(&[("directories", values(&PLACES)), ("threads", threads)]);
    vec![Sweep::new(cells, VARIANTS.len(), BASELINE, 1.0)]
}

fn run(run: &Run<'_>, samples: &mut Samples) -> anyhow::Result<()> {
    let workload = Creates(run.settings.threads_max());
    run.files(&run.sweeps[0], None, &workload, samples)?;
    samples.add_scaling(|_, _| true);
    Ok(())
}

/// The workload: creates and unlinks by up to this number of threads.
struct Creates(usize);

impl Workload for Creates {
    /// Makes the directories with the files that stay.
    fn enter<'a, F: Files>(&'a self, files: &'a F) -> anyhow::Result<Measure<'a>> {
        let user = files.user();
        let own = (0..self.0).map(|thread| path_of("own", thread));
        let paths: Vec<String> = std::iter::once(path_of("one", 0)).chain(own).collect();
        for path in &paths {
            let dir = make_path(&user, path)?;
            for file in 0..STANDING {
                let name = format!("standing-file-{file:04}.h");
                ensure!(user.create(&dir, name.as_bytes()), "{}: no {name}", files.variant());
            }
        }
        drop(user);
        Ok(Box::new(move |cell, time| {
            let slice = slice(files, cell.word("directories"), cell.number("threads"), time);
            let (user, mut list) = (files.user(), List::default());
            for path in &paths {
                let dir = user.open_dir(path.as_bytes()).context("a directory is missing")?;
                let is_listed = user.list(&dir, &mut list);
                let left = list.iter().count();
                ensure!(is_listed && left == STANDING, "{}: {left} in {path}", files.variant());
            }
            Ok(slice)
        }))
    }
}

/// Returns the path of the directory that a thread works in.
pub(super) fn path_of(place: &str, thread: usize) -> String {
    if place == "one" { String::from("/one") } else { format!("/own-{thread}") }
}

/// Runs one slice.
fn slice<F: Files>(files: &F, place: &str, threads: usize, time: Duration) -> Slice {
    crew::run(threads, time, |thread, turn| {
        let user = files.user();
        let dir = user.open_dir(path_of(place, thread).as_bytes()).expect("it was made");
        let names: Vec<String> =
            (0..FILES).map(|file| format!("cc-{thread}-{file:02}.tmp.o")).collect();
        let step = |number: u64| {
            let name = names[(number % FILES) as usize].as_bytes();
            let is_making = (number / FILES).is_multiple_of(2);
            if is_making { user.create(&dir, name) } else { user.unlink(&dir, name) }
        };
        turn.run_cycles(2 * FILES, step)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ours::Ours;
    use crate::table::engine::Cell;
    use crate::table::quick;

    #[test]
    fn quick_run_has_every_variant_in_one_directory_and_in_own_ones() {
        let cells = quick::params(&sweeps(&quick::settings())[0].cells);
        let rows = quick::check(&TABLE, &VARIANTS, &cells);
        assert!(TABLE.claims(&rows)[0].to_string().contains("held (x"));
    }

    #[test]
    fn file_that_is_in_the_way_is_an_error() {
        let (ours, workload) = (Ours::on_tmpfs().unwrap(), Creates(1));
        let measure = workload.enter(&ours).unwrap();
        let cell = Cell::default().with("directories", "one").with("threads", 1);
        let time = Duration::from_millis(1);
        assert!(measure(&cell, time).and_then(|slice| slice.check("corewalk")).is_ok());
        let user = ours.user();
        let one = user.open_dir(b"/one").unwrap();
        assert!(user.create(&one, b"another"));
        let error = measure(&cell, time).expect_err("a file is too many").to_string();
        assert!(error.contains("1001 in /one"), "{error}");
    }
}
