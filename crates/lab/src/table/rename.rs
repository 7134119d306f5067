//! Benchmark table `rename`: renames of files by one thread and by several, in one and in different
//! directories.
//!
//! Long's patches of 2013 (documents 000 and 001 in `documents.md`) are about the lock that Linux
//! took for each rename and every path translation. They have no figures for renames. Linux today
//! locks the directory of a rename. A rename between two directories also locks the whole file
//! system (`s_vfs_rename_mutex`).
//!
//! Units: operations per second of wall time, all threads together, and nanoseconds of processor
//! time per operation.
//!
//! Each thread has 64 files of its own. It renames each to another name, and later back. The
//! parameter `directories` selects the old and the new directory:
//!
//! | value | each thread renames |
//! |---|---|
//! | `own` | within a directory of its own |
//! | `own-pair` | between two directories of its own, where Linux locks the file system |
//! | `one` | different names within one directory, the same for all threads |
//!
//! Two processors of a virtual machine may be one core. `linux` is the host's tmpfs at /dev/shm.
//!
//! # Checks
//! Every rename must succeed. It can succeed only if the previous rename of the same file has taken
//! effect. At the end of each time slice, all files have their original names.
//!
//! Source: rename(2); Linux `fs/namei.c` (`lock_rename`); Long, February and September 2013
//! (documents 000 and 001 in `documents.md`).

use super::create_one_dir::path_of;
use super::prelude::*;
use crate::files::{Files, User, make_path};

/// The baseline, with which all other variants are compared.
const BASELINE: &str = "linux";
/// Files of one thread.
const FILES: u64 = 64;
/// The directories of a thread.
const PLACES: [&str; 3] = ["own", PAIR, "one"];
const PAIR: &str = "own-pair";
/// The variants.
const VARIANTS: [&str; 2] = ["corewalk", BASELINE];
/// The table.
pub(super) const TABLE: Table = Table { name: "rename", sweeps, run };

fn sweeps(settings: &Settings) -> Vec<Sweep> {
    let threads = values(&settings.threads);
    let cells = cells(&[("directories", values(&PLACES)), ("threads", threads)]);
    let sweep = Sweep::new(cells, VARIANTS.len(), BASELINE, 1.0);
    vec![Sweep { is_net_of_syscall: true, ..sweep }]
}

fn run(run: &Run<'_>, samples: &mut Samples) -> anyhow::Result<()> {
    run.files(&run.sweeps[0], None, &Renames(run.settings.threads_max()), samples)?;
    samples.add_scaling(|_, _| true);
    Ok(())
}

/// The workload: renames by up to this number of threads.
struct Renames(usize);

impl Workload for Renames {
    fn enter<'a, F: Files>(&'a self, files: &'a F) -> anyhow::Result<Measure<'a>> {
        make_files(files, self.0)?;
        Ok(Box::new(move |cell, time| {
            Ok(slice(files, cell.word("directories"), cell.number("threads"), time))
        }))
    }
}

/// Makes the files of all threads in every directory.
fn make_files<F: Files>(files: &F, threads: usize) -> anyhow::Result<()> {
    let user = files.user();
    for thread in 0..threads {
        make_path(&user, &format!("/other-{thread}"))?;
        for path in [format!("/own-{thread}"), String::from("/one")] {
            let dir = make_path(&user, &path)?;
            for file in 0..FILES {
                let is_made = user.create(&dir, names(thread, file)[0].as_bytes());
                ensure!(is_made, "{}: no file in {path}", files.variant());
            }
        }
    }
    Ok(())
}

/// Returns the two names of a file.
fn names(thread: usize, file: u64) -> [String; 2] {
    ["", ".new"].map(|end| format!("object-{thread}-{file:03}.o{end}"))
}

/// Runs one slice.
fn slice<F: Files>(files: &F, place: &str, threads: usize, time: Duration) -> Slice {
    crew::run(threads, time, |thread, turn| {
        let user = files.user();
        let open = |path: String| user.open_dir(path.as_bytes()).expect("it was made");
        let home = path_of(place, thread);
        let away = if place == PAIR { format!("/other-{thread}") } else { home.clone() };
        let (home, away) = (open(home), open(away));
        let names: Vec<[String; 2]> = (0..FILES).map(|file| names(thread, file)).collect();
        let step = |number: u64| {
            let [old, new] = &names[(number % FILES) as usize];
            let (old, new) = ((&home, old.as_bytes()), (&away, new.as_bytes()));
            let is_leaving = (number / FILES).is_multiple_of(2);
            if is_leaving { user.rename(old, new) } else { user.rename(new, old) }
        };
        turn.run_cycles(2 * FILES, step)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::quick;

    #[test]
    fn quick_run_has_every_place_and_the_cost_of_a_system_call() {
        let cells = quick::params(&sweeps(&quick::settings())[0].cells);
        let rows = quick::check(&TABLE, &VARIANTS, &cells);
        let own = [("directories", "own".into()), ("threads", 1.into())];
        let net = [&own[..], &[("net_of", "syscall".into())]].concat();
        let cost = |variant, params: &[(&str, Value)]| {
            let len = params.len();
            let row = rows.iter().find(|row| {
                row.variant == variant
                    && row.metric == "ns_per_op"
                    && row.params.len() == len
                    && params.iter().all(|(key, value)| row.params.get(key) == Some(value))
            });
            row.map(|row| row.median)
        };
        assert!(cost("linux", &net).unwrap() < cost("linux", &own).unwrap());
        assert_eq!(cost("corewalk", &net), cost("corewalk", &own));
        assert!(quick::row(&rows, "linux", "ns_per_op", &[("op", "syscall".into())]).is_some());
        let claims = quick::claims(&TABLE, &rows);
        assert_eq!(claims.len(), 3);
        assert!(claims.iter().all(|claim| claim.contains("held (x")), "{claims:?}");
    }

    #[test]
    fn name_that_cannot_be_renamed_is_a_wrong_answer() {
        let ours = Ours::on_tmpfs().unwrap();
        make_files(&ours, 1).unwrap();
        let user = ours.user();
        let own = user.open_dir(b"/own-0").unwrap();
        let slice = || slice(&ours, "own", 1, Duration::from_millis(1));
        assert!(slice().check("corewalk").is_ok());
        assert!(user.unlink(&own, names(0, 3)[0].as_bytes()));
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(slice));
        assert!(outcome.is_err() || outcome.is_ok_and(|slice| slice.check("corewalk").is_err()));
    }
}
