//! Table `small-loads`: loads of everyday programs, which must not become slower.
//!
//! Long's patches of February 2013 (document 000 in `documents.md`) change Linux's dentry cache.
//! Long ran three loads with several threads, on 80 cores and on a PC with 4: `find $HOME -size
//! 0b`, `cat /proc/*/maps /proc/*/numa_maps` and `git diff`.
//!
//! Long's patches hardly change the speed of the three loads. His figures are in `words.json`.
//! Units: operations per second of wall time, all threads together, and nanoseconds of processor
//! time per operation.
//!
//! Each file system has a tree of 20,000 real names, all of them in its dentry cache. Every thread
//! runs the whole load again and again.
//!
//! - `find-size`: one operation lists an entry and reads its attributes. As in `find`, directories
//!   are opened and listed, and each name in them is looked up.
//! - `cat-maps`: one operation translates one of 64 open files to its path, like a process with
//!   mapped libraries.
//! - `git-diff`: one operation reads the attributes of a known path. The paths are those of all
//!   files in order, as in git's index.
//!
//! `before-global-lock` is the design of Linux 3.8, before Long's patches, over the same tmpfs as
//! corewalk. A path translation takes a global lock, and a lock for each name. `linux` is the host
//! kernel. In `cat-maps` it reads the link of an open file in `/proc/self/fd`.
//!
//! File content, output, and for `cat-maps` the kernel's walk over the mappings of a process are
//! left out.
//!
//! # Checks
//! A listing must have as many names and subdirectories as were made. All files must be empty. Each
//! path must be the one by which the file was opened, and each inode number the one at the start.
//!
//! Source: Long, "dcache: make Oracle more scalable on large systems", February 2013 (document 000
//! in `documents.md`).

use super::prelude::*;
use crate::before::Design;
use crate::corpus::Corpus;
use crate::files::{Files, List, User, fill};

/// The baseline, with which all other variants are compared.
const BASELINE: &str = "before-global-lock";
/// The variants.
const VARIANTS: [&str; 3] = ["corewalk", BASELINE, "linux"];
/// Entries of the tree.
const ENTRIES: (usize, usize) = (1_500, 20_000);
/// Files that are open at the same time in `cat-maps`.
const MAPPED: usize = 64;
/// The loads.
const LOADS: [&str; 3] = ["find-size", "cat-maps", "git-diff"];

/// The tree of names, with the lists that the loads work through.
struct Plan {
    corpus: Corpus,
    /// For each directory: its path, the number of names in it, and how many of these are
    /// directories.
    directories: Vec<(Vec<u8>, usize, usize)>,
    /// Every file, in the order of the paths.
    files: Vec<Vec<u8>>,
}

/// The table.
pub(super) const TABLE: Table = Table { name: "small-loads", sweeps, run };

fn sweeps(settings: &Settings) -> Vec<Sweep> {
    let cells = cells(&[("load", values(&LOADS)), ("threads", values(&settings.threads))]);
    vec![Sweep::new(cells, VARIANTS.len(), BASELINE, 1.0)]
}

fn run(run: &Run<'_>, samples: &mut Samples) -> anyhow::Result<()> {
    let entries = sized(run.settings.size, ENTRIES);
    let plan = Plan::of(Corpus::collect(entries));
    run.files(&run.sweeps[0], Some((Design::GlobalLock, entries)), &plan, samples)
}

impl Plan {
    fn of(corpus: Corpus) -> Plan {
        let (mut directories, mut files) = (vec![], vec![]);
        for ino in corpus.inodes() {
            if corpus.is_directory(ino) {
                let children = || corpus.children(ino);
                let below = children().filter(|&child| corpus.is_directory(child)).count();
                directories.push((corpus.path(ino), children().count(), below));
            } else {
                files.push(corpus.path(ino));
            }
        }
        files.sort_unstable();
        Plan { corpus, directories, files }
    }
}

impl Workload for Plan {
    /// Puts the tree into `files`.
    fn enter<'a, F: Files>(&'a self, files: &'a F) -> anyhow::Result<Measure<'a>> {
        fill(files, &self.corpus)?;
        let user = files.user();
        let numbers: Option<Vec<u64>> = self.files.iter().map(|path| user.resolve(path)).collect();
        let numbers = numbers.with_context(|| format!("{}: a file is missing", files.variant()))?;
        drop(user);
        Ok(Box::new(move |cell, time| {
            Ok(crew::run(cell.number("threads"), time, |thread, turn| {
                let user = files.user();
                match cell.word("load") {
                    "find-size" => find_size(&user, self, thread, turn),
                    "cat-maps" => cat_maps(&user, self, turn),
                    _ => git_diff(&user, self, &numbers, thread, turn),
                }
            }))
        }))
    }
}

/// Returns where a thread begins to go through a list of `of` elements.
fn part(of: usize, thread: usize) -> usize {
    // The fraction of the golden ratio spreads any number of threads.
    ((thread as f64 * 0.618_034).fract() * of as f64) as usize
}

/// Looks at every name in one directory after the other.
fn find_size(user: &impl User, plan: &Plan, thread: usize, turn: Turn<'_>) -> Laps {
    let mut list = List::default();
    let mut next = plan.directories.iter().cycle().skip(part(plan.directories.len(), thread));
    turn.run_jobs(move || {
        let Some((path, names, directories)) = next.next() else { return Tally::default() };
        let Some(dir) = user.open_dir(path) else { return Tally { ops: 1, wrong: 1 } };
        let mut seen = (0, 0);
        let mut wrong = u64::from(!user.list(&dir, &mut list));
        for (name, is_directory) in list.iter() {
            let status = user.stat_at(&dir, name);
            let is_right = status.is_some_and(|status| {
                status.is_dir() == is_directory && (is_directory || status.size == 0)
            });
            wrong += u64::from(!is_right);
            seen = (seen.0 + 1, seen.1 + usize::from(is_directory));
        }
        wrong += u64::from(seen != (*names, *directories));
        // The directory itself counts as one operation, so that an empty directory is also counted.
        Tally { ops: seen.0 as u64 + 1, wrong }
    })
}

/// Translates open files.
fn cat_maps(user: &impl User, plan: &Plan, turn: Turn<'_>) -> Laps {
    let every = (plan.files.len() / MAPPED).max(1);
    let mapped: Vec<_> = plan.files.iter().step_by(every).take(MAPPED).collect();
    let held: Vec<_> = mapped.iter().map(|path| user.hold(path)).collect();
    turn.run(move |number| {
        let at = number as usize % mapped.len();
        held[at].as_ref().and_then(|file| user.path_of(file)).as_ref() == Some(mapped[at])
    })
}

/// Reads the attributes of one known file after the other.
fn git_diff(user: &impl User, plan: &Plan, numbers: &[u64], thread: usize, turn: Turn<'_>) -> Laps {
    let first = part(plan.files.len(), thread);
    turn.run(move |number| {
        let at = (first + number as usize) % plan.files.len();
        user.stat(&plan.files[at]).is_some_and(|status| status.ino == numbers[at])
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ours::Ours;
    use crate::table::engine::Cell;
    use crate::table::quick;

    #[test]
    fn quick_run_has_every_load_and_variant() {
        let cells = quick::params(&sweeps(&quick::settings())[0].cells);
        let rows = quick::check(&TABLE, &VARIANTS, &cells);
        assert!(rows.iter().all(|row| row.baseline == BASELINE));
        let claim = TABLE.claims(&rows)[0].to_string();
        assert!(claim.contains("of 12 rows behind"), "{claim}");
    }

    #[test]
    fn tree_that_has_changed_gives_wrong_answers_in_every_load() {
        let plan = Plan::of(Corpus::collect(500));
        let ours = Ours::on_tmpfs().unwrap();
        let measure = plan.enter(&ours).unwrap();
        let slice = |load: &str| {
            let cell = Cell::default().with("load", load).with("threads", 1);
            measure(&cell, std::time::Duration::from_millis(20)).unwrap()
        };
        for load in LOADS {
            slice(load).check("corewalk").expect("nothing has changed yet");
        }
        let user = ours.user();
        let first = &plan.files[0];
        let slash = first.iter().rposition(|&byte| byte == b'/').unwrap();
        let dir = user.open_dir(&first[..slash.max(1)]).unwrap();
        assert!(user.unlink(&dir, &first[slash + 1..]));
        for load in LOADS {
            // On a busy machine, a worker may not reach the file that the test has removed. So run
            // up to 200 time slices.
            let is_found = |slice: crate::crew::Slice| slice.wrong > 0 && slice.wrong < slice.ops;
            assert!((0..200).any(|_| is_found(slice(load))), "{load}");
        }
    }
}
