//! The operations of the table `cluster-metadata`.

use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::ensure;

use super::super::real_work::{data::blocks, program};
use super::super::{Settings, sized};
use crate::samples::Metric;

/// Files of each directory that `find` lists.
const FILES: usize = 100;
/// The directories that `lookup` uses, and the names that `absent lookup` uses.
const WARM: usize = 10;
const ABSENT: usize = 100;
/// Bytes of a small file, which a cluster file system stores inline.
const SMALL: [u8; 4096] = [7; 4096];

/// The sizes of a run.
#[derive(Clone, Copy)]
pub(super) struct Sizes {
    /// Directories that `find` lists.
    pub(super) directories: usize,
    /// Names in the directory that is renamed.
    pub(super) names: usize,
    /// MiB that are written and read.
    pub(super) mib: usize,
}

pub(super) struct Work<'a> {
    pub(super) op: &'a str,
    pub(super) round: usize,
    pub(super) delay: Duration,
    /// The time for which an operation is repeated.
    pub(super) limit: Duration,
    pub(super) sizes: Sizes,
    pub(super) counters: &'a dyn Fn() -> anyhow::Result<Counters>,
}

/// The values of counters. A row of the table has their growth per operation.
pub(super) type Counters = Vec<(Metric, u64)>;

pub(super) struct Done {
    /// The number of operations, by which the counters are divided.
    pub(super) count: usize,
    pub(super) seconds: f64,
    pub(super) counted: Counters,
}

/// Returns true if the mount must have no caches before the operation.
pub(super) fn is_cold(op: &str) -> bool {
    matches!(op, "find" | "read")
}

/// Returns true if the operation is repeated until the time is over.
pub(super) fn is_repeated(op: &str) -> bool {
    !matches!(op, "find" | "rename" | "write" | "read")
}

impl Sizes {
    /// Returns the numbers of directories, names and MiB, in proportion to the setting
    /// `time_per_row`.
    pub(super) fn new(settings: &Settings) -> Sizes {
        let size = |quick, per_second: f64| {
            let full = (per_second * settings.time_per_row.as_secs_f64()).max(1.0);
            sized(settings.size, (quick, full as usize))
        };
        Sizes { directories: size(2, 50.0), names: size(20, 100.0), mib: size(5, 51.2) }
    }

    /// Makes the directories that `find` and the lookups read, and the directory that is renamed.
    ///
    /// # Errors
    /// An error of a call.
    pub(super) fn make_files(&self, root: &Path) -> io::Result<()> {
        let all = (0..self.directories).map(|number| (tree(root, number), FILES));
        for (directory, files) in all.chain([(root.join("many-0"), self.names)]) {
            fs::create_dir_all(&directory)?;
            for number in 0..files {
                File::create_new(directory.join(name(number)))?;
            }
        }
        Ok(())
    }
}

impl Work<'_> {
    /// Does the operation in the mount at `root`.
    ///
    /// # Errors
    /// An error of a call, or a wrong answer.
    pub(super) fn run(&self, root: &Path) -> anyhow::Result<Done> {
        let Work { op, round, delay, .. } = *self;
        let folder = |op| root.join(format!("{op}-{}-{round}", delay.as_micros()));
        match op {
            "create" | "mkdir" | "small file" => {
                let folder = folder(op);
                fs::create_dir(&folder)?;
                self.repeat(usize::MAX, |number| {
                    let path = folder.join(name(number));
                    Ok(match op {
                        "create" => File::create_new(path).map(drop),
                        "mkdir" => fs::create_dir(path),
                        _ => fs::write(path, SMALL),
                    }?)
                })
            }
            "unlink" => {
                let folder = folder("create");
                let files = fs::read_dir(&folder)?.count();
                self.repeat(files, |number| Ok(fs::remove_file(folder.join(name(number)))?))
            }
            "lookup" => {
                let warm = WARM.min(self.sizes.directories);
                let path = |at| tree(root, at / FILES).join(name(at % FILES));
                let is_right = |found: io::Result<fs::Metadata>| found.is_ok_and(|it| it.is_file());
                self.look_up((0..warm * FILES).map(path).collect(), is_right)
            }
            "absent lookup" => {
                let path = |at| tree(root, 0).join(format!("absent-{at}"));
                let is_right = |found: io::Result<fs::Metadata>| {
                    found.is_err_and(|error| error.kind() == ErrorKind::NotFound)
                };
                self.look_up((0..ABSENT).map(path).collect(), is_right)
            }
            "rename" => self.rename(root),
            "find" => self.find(root),
            _ => self.transfer(op, &root.join(format!("file-{round}"))),
        }
    }

    fn rename(&self, root: &Path) -> anyhow::Result<Done> {
        let [from, to] = [0, 1].map(|more| root.join(format!("many-{}", self.round + more)));
        let done = self.repeat(1, |_| Ok(fs::rename(&from, &to)?))?;
        let names = fs::read_dir(&to)?.count();
        ensure!(names == self.sizes.names && !from.exists(), "{names} names were renamed");
        Ok(done)
    }

    fn find(&self, root: &Path) -> anyhow::Result<Done> {
        let words = ["find", "tree", "-type", "f", "-printf", "%s\n"];
        let directories = self.sizes.directories;
        self.measure(|| {
            let found = program(root, &words, Stdio::null())?.lines().count();
            ensure!(found == FILES * directories, "{found} files were found");
            Ok(directories)
        })
    }

    /// `write` makes the file `path`. `read` reads it, and then removes it. Both check its size.
    fn transfer(&self, op: &str, path: &Path) -> anyhow::Result<Done> {
        let (mib, mut options) = (self.sizes.mib, File::options());
        let done = self.measure(|| {
            let file =
                options.read(true).write(op == "write").create_new(op == "write").open(path)?;
            blocks(&file, op, mib as u64)?;
            ensure!(file.metadata()?.len() == (mib as u64) << 20, "the file has a wrong size");
            Ok(mib)
        })?;
        if op == "read" {
            fs::remove_file(path)?;
        }
        Ok(done)
    }

    /// Looks up each path once unmeasured, and then again and again until the time is over.
    fn look_up(
        &self,
        paths: Vec<PathBuf>,
        is_right: impl Fn(io::Result<fs::Metadata>) -> bool,
    ) -> anyhow::Result<Done> {
        let look = |number: usize| {
            let path = &paths[number % paths.len()];
            ensure!(is_right(fs::symlink_metadata(path)), "{}: a wrong answer", path.display());
            Ok(())
        };
        (0..paths.len()).try_for_each(look)?;
        self.repeat(usize::MAX, look)
    }

    /// Repeats `step` until the time is over, but at most `most` times. `step` gets its number.
    ///
    /// # Errors
    /// An error of `step`, or an error if `most` is 0.
    pub(super) fn repeat(
        &self,
        most: usize,
        mut step: impl FnMut(usize) -> anyhow::Result<()>,
    ) -> anyhow::Result<Done> {
        self.measure(|| {
            let (start, mut number) = (Instant::now(), 0);
            while number < most && (number == 0 || start.elapsed() < self.limit) {
                step(number)?;
                number += 1;
            }
            ensure!(number > 0, "there is nothing to do");
            Ok(number)
        })
    }

    /// Measures `work`, which returns the number of its operations.
    fn measure(&self, work: impl FnOnce() -> anyhow::Result<usize>) -> anyhow::Result<Done> {
        let before = (self.counters)()?;
        let start = Instant::now();
        let count = work()?;
        let seconds = start.elapsed().as_secs_f64();
        let mut counted = (self.counters)()?;
        for ((_, value), (_, old)) in counted.iter_mut().zip(before) {
            *value -= old;
        }
        Ok(Done { count, seconds, counted })
    }
}

/// Returns a directory that `find` lists.
fn tree(root: &Path, number: usize) -> PathBuf {
    root.join(format!("tree/directory-{number:04}"))
}

fn name(number: usize) -> String {
    format!("file-{number:06}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::peer::Scratch;

    #[test]
    fn every_operation_works_in_a_plain_directory_and_checks_its_answers() {
        let scratch = Scratch::in_memory("cluster-ops").unwrap();
        let sizes = Sizes { directories: 2, names: 5, mib: 2 };
        sizes.make_files(scratch.path()).unwrap();
        let work = |op, round| {
            let (delay, limit) = (Duration::ZERO, Duration::from_millis(1));
            let counters = &|| Ok(vec![]);
            Work { op, round, delay, limit, sizes, counters }.run(scratch.path())
        };
        for round in 0..2 {
            for (op, _) in super::super::OPS.iter().filter(|(op, _)| *op != "create delayed") {
                let done = work(op, round).unwrap();
                assert!(done.count > 0 && done.seconds > 0.0, "{op}");
            }
        }
        let files = [tree(scratch.path(), 0).join("absent-3"), scratch.path().join("file-2")];
        files.into_iter().for_each(|file| fs::write(file, "short").unwrap());
        for op in ["absent lookup", "rename", "find", "read"] {
            assert!(work(op, if op == "rename" { 7 } else { 2 }).is_err(), "{op}");
        }
    }
}
