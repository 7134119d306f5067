//! The checks of a mounted file system. They make system calls, so they can check any file system.
//! It may be a back end of corewalk, another FUSE server, or a file system of the kernel.
//!
//! Each check works in a new directory of the file system, which it removes at the end. If a check
//! fails, the directory stays.
//!
//! # The end of a hung server
//! A call to a hung server cannot be interrupted in all states. So only the threads and programs of
//! the checks access the file system. A check that exceeds the time limit fails, and its threads
//! stay behind. To end their calls, kill the server, or write `1` to the file `abort` of its
//! connection in `/sys/fs/fuse/connections`.

mod fsx;
mod pjdfstest;
mod programs;
mod storm;

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use corewalk::errno_of;

use crate::answer::{Answer, Checked, Stop};
use crate::plan::{Plan, Settings, plan_setters, run_within};
use crate::report::{Outcome, Report};
use programs::{KILL_LIMIT, Program};
use storm::Invalidate;

const CHECKS: [(&str, &str); 3] = [
    ("pjdfstest", "the calls of POSIX have the right results and errors"),
    ("fsx", "random reads, writes and mappings of a file find the right bytes"),
    ("storm", "threads that rename, remove, read and write lose nothing"),
];
const WITH_PARTS: [&str; 2] = ["pjdfstest", "fsx"];

/// A test suite for a mounted file system.
///
/// The checks `pjdfstest` and `fsx` run programs of other projects. The suite installs them with
/// `cargo install` into the folder for programs, which takes some minutes the first time.
///
/// `pjdfstest` needs root: without it, a third of its tests are skipped. The tests make calls as
/// several users, so mount with `allow_other`. Also mount with `dev` and `suid`, if the file system
/// has devices and set-user-ID programs.
///
/// # Examples
/// ```no_run
/// use corewalk_conformance::Mounted;
///
/// // In an integration test, `env!("CARGO_TARGET_TMPDIR")` is a folder for programs.
/// Mounted::new("/mnt/mine", "target/tmp")
///     .except("pjdfstest:link::", "there are no hard links")
///     .run()
///     .assert();
/// ```
pub struct Mounted {
    dir: PathBuf,
    programs: PathBuf,
    plan: Plan,
    invalidate: Option<Invalidate>,
}

struct Task {
    program: PathBuf,
    folder: PathBuf,
    /// The folder with the logs of the check, outside of the tested file system.
    work: PathBuf,
    limit: Duration,
    settings: Settings,
    only: Vec<String>,
    except: Vec<(String, String)>,
}

impl Mounted {
    /// Returns the suite for the directory `dir` of a mounted file system. `programs` is the folder
    /// for programs and their logs. It must be on another file system.
    pub fn new(dir: impl Into<PathBuf>, programs: impl Into<PathBuf>) -> Mounted {
        Mounted { dir: dir.into(), programs: programs.into(), plan: Plan::new(), invalidate: None }
    }

    /// Returns the name and the description of each check, in the order in which the checks run.
    ///
    /// `pjdfstest:WORD` names the tests of pjdfstest whose names contain the word. `fsx:mapped` and
    /// `fsx:unmapped` name the runs of fsx with memory mappings and without.
    ///
    /// # Examples
    /// ```
    /// assert!(corewalk_conformance::Mounted::checks().any(|(name, _)| name == "pjdfstest"));
    /// ```
    pub fn checks() -> impl Iterator<Item = (&'static str, &'static str)> {
        CHECKS.into_iter()
    }

    plan_setters!();

    /// Sets a function that drops the entry at a path from the caches of the kernel and of the
    /// server. The path begins at the directory of the suite. During the check `storm`, a thread
    /// calls the function again and again, even for paths that do not exist.
    ///
    /// # Examples
    /// ```no_run
    /// use corewalk_conformance::Mounted;
    /// use corewalk_fuse::Mount;
    ///
    /// fn conforms(mount: &Mount) {
    ///     let kernel = mount.kernel_cache().clone();
    ///     Mounted::new(mount.point().path(), "target/tmp")
    ///         .with_invalidation(move |path| {
    ///             kernel.invalidate_entry_at(path).expect("notify the kernel");
    ///         })
    ///         .run()
    ///         .assert();
    /// }
    /// ```
    #[must_use]
    pub fn with_invalidation(
        mut self,
        invalidate: impl Fn(&Path) + Send + Sync + 'static,
    ) -> Mounted {
        self.invalidate = Some(Arc::new(invalidate));
        self
    }

    /// Runs the checks, one after the other, and returns their outcomes. The logs of a failed check
    /// stay until the next run with the same folder for programs.
    ///
    /// # Panics
    /// If `only` or `except` names a check that does not exist.
    pub fn run(self) -> Report {
        let names = CHECKS.iter().map(|(name, _)| *name);
        // While a run holds these locks, no other run removes its logs.
        let mut locks = Vec::new();
        self.plan.run(names, &WITH_PARTS, |name| match name {
            "pjdfstest" => {
                self.run_program(name, &pjdfstest::PROGRAM, pjdfstest::check, &mut locks)
            }
            "fsx" => self.run_program(name, &fsx::PROGRAM, fsx::check, &mut locks),
            _ => self.run_storm(name),
        })
    }

    fn run_storm(&self, name: &str) -> (Outcome, String) {
        let (dir, settings) = (self.dir.clone(), self.plan.settings);
        let invalidate = self.invalidate.clone();
        run_within(self.plan.time_limit, name, move || {
            in_new_folder(&dir, |folder| storm::run(folder, settings, invalidate.as_ref()))?;
            Ok(format!("{} calls, {} threads", settings.operations, settings.threads))
        })
    }

    fn run_program(
        &self,
        name: &'static str,
        program: &Program,
        check: fn(&Task) -> Checked<String>,
        locks: &mut Vec<File>,
    ) -> (Outcome, String) {
        let prepared = program.installed(&self.programs).and_then(|program| {
            let made = new_work_folder(&self.programs).map_err(errno_of);
            Ok((program, made.must("making a folder for logs")?))
        });
        let (program, work) = match prepared {
            Ok((program, (work, lock))) => {
                locks.push(lock);
                (program, work)
            }
            Err(Stop::Skipped(why)) => return (Outcome::Skipped(why), String::new()),
            Err(Stop::Failed(why)) => return (Outcome::Failed(why), String::new()),
        };
        let (dir, limit, settings) = (self.dir.clone(), self.plan.time_limit, self.plan.settings);
        let (only, except) = (self.plan.only_parts(name), self.plan.except_parts(name));
        let logs = work.clone();
        // The check gets more time than the program, so that it can kill the program.
        let check = move || {
            in_new_folder(&dir, |folder| {
                let folder = folder.to_owned();
                check(&Task { program, folder, work, limit, settings, only, except })
            })
        };
        match run_within(3 * (limit + KILL_LIMIT), name, check) {
            (Outcome::Failed(why), note) => {
                (Outcome::Failed(format!("{why}\n    logs: {}", logs.display())), note)
            }
            done => {
                // The logs of a passed check are of no use, so an error of the removal is ignored.
                let _ = fs::remove_dir_all(&logs);
                done
            }
        }
    }
}

impl std::fmt::Debug for Mounted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Mounted").field("dir", &self.dir).finish_non_exhaustive()
    }
}

/// Makes a new folder, whose name is `prefix` and a number. The name is short, because the path of
/// a socket has a limited length.
fn new_folder(dir: &Path, prefix: &str) -> io::Result<PathBuf> {
    let mut number = 0;
    loop {
        let folder = dir.join(format!("{prefix}{number}"));
        match fs::create_dir(&folder) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => number += 1,
            made => return made.map(|()| folder),
        }
    }
}

/// Makes a folder for the logs of this run, and locks it until the run ends. Removes the folders of
/// ended runs, whose locks are free. A process id could not tell whether a run has ended, since
/// several pid namespaces may use `programs`.
fn new_work_folder(programs: &Path) -> io::Result<(PathBuf, File)> {
    let locked = |path: PathBuf| {
        let file = File::create(path)?;
        file.lock().map(|()| file)
    };
    let _turn = locked(programs.join("lock"))?;
    for entry in fs::read_dir(programs)? {
        let entry = entry?;
        let is_run = entry.file_name().to_string_lossy().starts_with("run");
        if is_run && File::open(entry.path().join("lock")).is_ok_and(|it| it.try_lock().is_ok()) {
            fs::remove_dir_all(entry.path())?;
        }
    }
    let folder = new_folder(programs, "run")?;
    let lock = locked(folder.join("lock"))?;
    Ok((folder, lock))
}

fn in_new_folder<T>(dir: &Path, check: impl FnOnce(&Path) -> Checked<T>) -> Checked<T> {
    let folder = new_folder(dir, "k").map_err(errno_of).needs("mkdir")?;
    let done = check(&folder);
    if !matches!(done, Err(Stop::Failed(_))) {
        fs::remove_dir_all(&folder).map_err(errno_of).must("removal of the files of the check")?;
    }
    done
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readme_has_the_versions_of_the_programs() {
        let (pjdfstest, fsx) = (pjdfstest::PROGRAM.version, fsx::PROGRAM.version);
        let text = format!("pjdfstest {pjdfstest} and fsx {fsx}");
        assert!(include_str!("../README.md").contains(&text), "{text}");
    }
}
