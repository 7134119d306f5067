//! Table `small-loads`: what everyday programs ask a file system, where nothing is to be lost.
//!
//! Document 000 (Long, February 2013) ran three loads with several threads, on 80 cores and on a PC
//! with 4, to show that its patches cost nothing where they gain nothing: `find $HOME -size 0b`,
//! `cat /proc/*/maps /proc/*/numa_maps` and `git diff`. What it published:
//!
//! | load | with the patches |
//! |---|---|
//! | find-size, cat-maps | within a few percentage points, the margin of error; one thread slightly worse, several generally a bit better |
//! | git-diff | no difference; slightly more system time, slightly less user time |
//!
//! Units: operations per second of wall time, all threads together, and nanoseconds of processor time
//! per operation.
//!
//! # What is done
//! A tree of 20,000 real names, all of it cached, is in each file system. Every thread does the whole
//! load by itself, round and round.
//!
//! | load | one operation | kept of the original |
//! |---|---|---|
//! | `find-size` | an entry is listed and its attributes are read | directories are opened, listed, and each name in them is looked at |
//! | `cat-maps` | an open file is translated to its path | 64 files are open, as a process has libraries mapped |
//! | `git-diff` | the attributes of a known path are read | all files of the tree, in the order of their paths, as an index has them |
//!
//! | variant | design |
//! |---|---|
//! | `corewalk` | this dcache over a tmpfs |
//! | `before-global-lock` | the kernel before the patches (3.8), over the same tmpfs: a global lock around each translation, and a lock per name in it |
//! | `rwlock-ahash` | one lock over two maps, without permissions: hard to beat where nobody changes anything |
//! | `linux` | the host kernel through system calls |
//!
//! # The claim, as a shape
//! The document's, of its patches: no row of corewalk is behind the design before them by more than
//! it varies. Where it is behind `rwlock-ahash` or `linux` stands below the rows, in rows like any other.
//!
//! # What it drops
//! Reading file content, writing what was found, and for `cat-maps` the kernel's walk over a process's
//! mappings: `linux` reads the link of a descriptor, which is the same translation.
//!
//! # Checks
//! Each list must have as many names and directories as the tree, all files must be empty, each path
//! and each inode number must be right.
//!
//! Source: document 000 (Long, "dcache: make Oracle more scalable on large systems").

use std::fmt::{self, Display, Write as _};
use std::time::Duration;

use anyhow::Context as _;
use serde_json::Value;

use super::grid::Rounds;
use super::{Claim, Grid, Settings, Table, shape, sized};
use crate::corpus::Corpus;
use crate::crew::{self, Laps, Measure, Slice, Turn};
use crate::files::{BeforeFiles, Files, Host, List, Locked, Ours, User, fill};
use crate::lane::Tally;
use crate::samples::{Params, Row, Samples};

/// The variant that all are compared with.
const BASELINE: &str = "before-global-lock";
/// Who is measured.
const VARIANTS: [&str; 4] = ["corewalk", BASELINE, "rwlock-ahash", "linux"];
/// Entries of the tree.
const ENTRIES: (usize, usize) = (1_500, 20_000);
/// Files that are open at the same time in `cat-maps`.
const MAPPED: usize = 64;

/// What document 000 says of each load with its patches.
const PUBLISHED: [(Load, &str); 3] = [
    (Load::FindSize, "within a few percentage points; one thread slightly worse, several better"),
    (Load::CatMaps, "within a few percentage points; one thread slightly worse, several better"),
    (Load::GitDiff, "no difference; slightly more system time, slightly less user time"),
];

/// The table.
pub(super) struct SmallLoads;

/// What is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Load {
    FindSize,
    CatMaps,
    GitDiff,
}

/// What is measured with one set of parameters.
struct Cell {
    load: Load,
    threads: usize,
}

/// The tree, as the loads know it.
struct Plan {
    /// Every directory with the number of names and of directories in it.
    directories: Vec<(Vec<u8>, usize, usize)>,
    /// Every file, in the order of the paths.
    files: Vec<Vec<u8>>,
}

impl Table for SmallLoads {
    fn name(&self) -> &'static str {
        "small-loads"
    }

    fn source(&self) -> &'static str {
        "find, cat /proc/*/maps and git diff, which must not lose: document 000 (Long, 2013)"
    }

    fn about(&self) -> &'static str {
        "a whole tree listed with attributes, open files to paths, attributes of known paths"
    }

    fn claim(&self) -> &'static str {
        "Everyday loads lose nothing against the kernel before the patches."
    }

    fn footer(&self, rows: &[Row]) -> String {
        let mut out =
            String::from("Published by document 000, patched against unpatched Linux 3.8:\n");
        for (load, words) in PUBLISHED {
            let _ = writeln!(out, "{}: {words}", load.name());
        }
        for load in Load::ALL {
            for other in &VARIANTS[1..] {
                let at = |variant| {
                    let params = [("load", load.name().into()), ("threads", 1.into())];
                    shape::median(rows, variant, "ns_per_op", &params)
                };
                let share = at("corewalk").zip(at(other)).map(|(ours, theirs)| theirs / ours);
                let lost = if share.is_some_and(|share| share < 1.0) { ": a loss" } else { "" };
                let (load, times) = (load.name(), shape::times(share));
                let _ = writeln!(out, "{load}, one thread: corewalk over {other} {times}{lost}");
            }
        }
        out
    }

    fn claims(&self, rows: &[Row]) -> Vec<Claim> {
        let ours = rows.iter().filter(|row| row.variant == "corewalk");
        vec![Claim::no_loss("no load loses against the kernel before the patches", ours)]
    }

    fn grids(&self, settings: &Settings) -> Vec<Grid> {
        let cells = Load::ALL.len() * settings.threads.len();
        vec![Grid::new(settings, cells, VARIANTS.len(), 1.0)]
    }

    fn run(&self, settings: &Settings) -> anyhow::Result<Samples> {
        let entries = sized(settings.size, ENTRIES);
        let corpus = Corpus::collect(entries);
        let plan = Plan::of(&corpus);
        let rounds = Rounds::begin(self.name(), settings)?;
        let (ours, locked, host) = (Ours::new()?, Locked::new(), Host::new(self.name()));
        let before = BeforeFiles::global_lock(entries)?;
        let mut variants = vec![
            variant(&ours, &corpus, &plan)?,
            variant(&before, &corpus, &plan)?,
            variant(&locked, &corpus, &plan)?,
        ];
        match &host {
            Ok(host) => variants.push(variant(host, &corpus, &plan)?),
            Err(error) => eprintln!("small-loads: skipped linux: {error:#}"),
        }
        let cell = |load| settings.threads.iter().map(move |&threads| Cell { load, threads });
        let cells: Vec<Cell> = Load::ALL.into_iter().flat_map(cell).collect();
        let grid = self.grids(settings)[0];
        let mut samples = Samples::default();
        rounds.each(&grid, (&cells, variants.len()), |visit| {
            let (name, measure) = &variants[visit.at];
            let slice = measure(visit.cell, grid.slice);
            let params = Params::from(visit.cell.params());
            slice.add_to(&mut samples, visit.round, name, &params, BASELINE)
        })?;
        Ok(samples)
    }
}

impl Cell {
    fn params(&self) -> [(&'static str, Value); 2] {
        [("load", self.load.name().into()), ("threads", self.threads.into())]
    }
}

impl Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} threads={}", self.load.name(), self.threads)
    }
}

impl Load {
    const ALL: [Load; 3] = [Load::FindSize, Load::CatMaps, Load::GitDiff];

    fn name(self) -> &'static str {
        match self {
            Load::FindSize => "find-size",
            Load::CatMaps => "cat-maps",
            Load::GitDiff => "git-diff",
        }
    }
}

impl Plan {
    fn of(corpus: &Corpus) -> Plan {
        let mut plan = Plan { directories: vec![], files: vec![] };
        for ino in corpus.inodes() {
            if corpus.is_directory(ino) {
                let children = || corpus.children(ino);
                let directories = children().filter(|&child| corpus.is_directory(child)).count();
                plan.directories.push((corpus.path(ino), children().count(), directories));
            } else {
                plan.files.push(corpus.path(ino));
            }
        }
        plan.files.sort_unstable();
        plan
    }
}

/// Puts the tree into `files` and returns who does the loads there.
fn variant<'a, F: Files>(
    files: &'a F,
    corpus: &Corpus,
    plan: &'a Plan,
) -> anyhow::Result<(&'a str, Measure<'a, Cell>)> {
    fill(files, corpus)?;
    let user = files.user();
    let numbers: Option<Vec<u64>> = plan.files.iter().map(|path| user.resolve(path)).collect();
    let numbers = numbers.with_context(|| format!("{}: a file is missing", files.variant()))?;
    drop(user);
    let measure = move |cell: &Cell, time: Duration| -> Slice {
        crew::run(cell.threads, time, |thread, turn| {
            let user = files.user();
            match cell.load {
                Load::FindSize => find_size(&user, plan, thread, turn),
                Load::CatMaps => cat_maps(&user, plan, turn),
                Load::GitDiff => git_diff(&user, plan, &numbers, thread, turn),
            }
        })
    };
    Ok((files.variant(), Box::new(measure)))
}

/// Returns where a thread begins: those who run the same load at the same time are elsewhere in it.
fn part(of: usize, thread: usize) -> usize {
    // The fraction of the golden ratio spreads any number of threads.
    ((thread as f64 * 0.618_034).fract() * of as f64) as usize
}

/// Looks at every name in one directory after the other.
fn find_size<U: User>(user: &U, plan: &Plan, thread: usize, turn: Turn) -> Laps {
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
                status.is_directory() == is_directory && (is_directory || status.size == 0)
            });
            wrong += u64::from(!is_right);
            seen = (seen.0 + 1, seen.1 + usize::from(is_directory));
        }
        wrong += u64::from(seen != (*names, *directories));
        // The directory itself is looked at as well, which is what is left of an empty one.
        Tally { ops: seen.0 as u64 + 1, wrong }
    })
}

/// Translates open files.
fn cat_maps<U: User>(user: &U, plan: &Plan, turn: Turn) -> Laps {
    let every = (plan.files.len() / MAPPED).max(1);
    let mapped: Vec<_> = plan.files.iter().step_by(every).take(MAPPED).collect();
    let held: Vec<_> = mapped.iter().map(|path| user.hold(path)).collect();
    turn.run(move |number| {
        let at = number as usize % mapped.len();
        held[at].as_ref().and_then(|file| user.path_of(file)).as_ref() == Some(mapped[at])
    })
}

/// Reads the attributes of one known file after the other.
fn git_diff<U: User>(user: &U, plan: &Plan, numbers: &[u64], thread: usize, turn: Turn) -> Laps {
    let first = part(plan.files.len(), thread);
    turn.run(move |number| {
        let at = (first + number as usize) % plan.files.len();
        user.stat(&plan.files[at]).is_some_and(|status| status.ino == numbers[at])
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::quick;

    #[test]
    fn quick_run_has_every_load_and_variant() {
        let cells: Vec<_> = Load::ALL
            .into_iter()
            .flat_map(|load| [1, 2].map(|threads| Cell { load, threads }.params().to_vec()))
            .collect();
        let rows = quick::check(&SmallLoads, &VARIANTS, &cells);
        assert!(rows.iter().all(|row| row.baseline == BASELINE));
        let claim = SmallLoads.claims(&rows)[0].to_string();
        assert!(claim.contains("of 12 rows behind"), "{claim}");
        assert_eq!(SmallLoads.footer(&rows).matches("one thread: corewalk over").count(), 9);
    }

    #[test]
    fn tree_that_has_changed_gives_wrong_answers_in_every_load() {
        let corpus = Corpus::collect(500);
        let plan = Plan::of(&corpus);
        let ours = Ours::new().unwrap();
        let (_, measure) = variant(&ours, &corpus, &plan).unwrap();
        let slice = |load| measure(&Cell { load, threads: 1 }, Duration::from_millis(20));
        for load in Load::ALL {
            slice(load).check("corewalk").expect("nothing has changed yet");
        }
        let user = ours.user();
        let first = &plan.files[0];
        let slash = first.iter().rposition(|&byte| byte == b'/').unwrap();
        let dir = user.open_dir(&first[..slash.max(1)]).unwrap();
        assert!(user.unlink(&dir, &first[slash + 1..]));
        for load in Load::ALL {
            let slice = slice(load);
            assert!(slice.wrong > 0 && slice.wrong < slice.ops, "{load:?}: {slice:?}");
        }
    }
}
