//! Table `create-one-dir`: files made and removed in one directory by several threads.
//!
//! McKenney, Sarma and Soni (document 003, 2004) end with what the RCU dcache left open, the first
//! being that updates are "still gated by dcache_lock, which means that update-intensive workloads do
//! not scale well". Linux in 2026 takes the lock of the directory for each create and unlink, so that
//! different names in one directory still wait for each other. The document publishes no number for
//! it. Units: operations per second of wall time, all threads together, and nanoseconds of processor
//! time per operation; a create and an unlink are one operation each.
//!
//! # What is done
//! A directory has 1,000 files that stay. Each thread makes 64 files with names of its own and then
//! removes them, again and again: in `directories=one` all threads in that directory, in
//! `directories=own` each in one like it, which shows what is lost to sharing.
//!
//! # The claim, as a shape
//! Creates and unlinks of different names commute, so two threads in one directory do more than one,
//! and nearly what they do in two directories. The tmpfs below corewalk keeps a lock per directory
//! around its list of names; the cache above it has none.
//!
//! # What it drops
//! Content, opening what was made, and directories that grow.
//!
//! # Checks
//! Every create must find no file and every unlink one; both fail otherwise. The files that stay are
//! counted at the end.
//!
//! Source: document 003, "Future Directions", 1; Linux `fs/namei.c` (`inode_lock` of the parent);
//! the shape is that of MWCM and MWUM in FxMark (USENIX ATC 2016).

use std::fmt::{self, Display, Write as _};
use std::time::Duration;

use anyhow::ensure;
use serde_json::Value;

use super::grid::Rounds;
use super::{Claim, Grid, Settings, Table, shape};
use crate::crew::{self, Measure, Slice};
use crate::files::{Files, Host, List, Locked, Ours, User};
use crate::samples::{Params, Row, Samples};

/// The variant that all are compared with.
const BASELINE: &str = "linux";
/// Files that stay in each directory.
const STANDING: usize = 1_000;
/// Files that a thread makes before it removes them.
const FILES: u64 = 64;
/// Who is measured.
const VARIANTS: [&str; 3] = ["corewalk", "rwlock-ahash", BASELINE];

/// The table.
pub(super) struct CreateOneDir;

/// Where the threads work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Directories {
    One,
    Own,
}

/// What is measured with one set of parameters.
struct Cell {
    directories: Directories,
    threads: usize,
}

/// Counts the files that are left in all directories.
type Count<'a> = Box<dyn Fn() -> usize + 'a>;

impl Table for CreateOneDir {
    fn name(&self) -> &'static str {
        "create-one-dir"
    }

    fn source(&self) -> &'static str {
        "updates that are not gated by one lock: future direction 1 of document 003 (2004)"
    }

    fn about(&self) -> &'static str {
        "files made and removed by several threads, different names in one directory"
    }

    fn claim(&self) -> &'static str {
        "Different names in one directory are made and removed side by side."
    }

    fn footer(&self, rows: &[Row]) -> String {
        let mut out = String::from("The document publishes no figure for updates.\n");
        for variant in VARIANTS {
            let [one, own] = Directories::ALL.map(|directories| {
                shape::times(shape::scaling(rows, variant, &directories.params()))
            });
            let _ = writeln!(
                out,
                "{variant}: two threads over one {one} in one directory, {own} in their own"
            );
        }
        out
    }

    fn claims(&self, rows: &[Row]) -> Vec<Claim> {
        let scaling = shape::scaling(rows, "corewalk", &Directories::One.params());
        vec![Claim::at_least("two threads over one in one directory", scaling, 1.0)]
    }

    fn grids(&self, settings: &Settings) -> Vec<Grid> {
        let cells = Directories::ALL.len() * settings.threads.len();
        vec![Grid::new(settings, cells, VARIANTS.len(), 1.0)]
    }

    fn run(&self, settings: &Settings) -> anyhow::Result<Samples> {
        let threads_max = settings.threads_max();
        let rounds = Rounds::begin(self.name(), settings)?;
        let (ours, locked, host) = (Ours::new()?, Locked::new(), Host::new("create"));
        let mut variants = vec![variant(&ours, threads_max)?, variant(&locked, threads_max)?];
        match &host {
            Ok(host) => variants.push(variant(host, threads_max)?),
            Err(error) => eprintln!("create-one-dir: skipped linux: {error:#}"),
        }
        let cell = |directories| {
            settings.threads.iter().map(move |&threads| Cell { directories, threads })
        };
        let cells: Vec<Cell> = Directories::ALL.into_iter().flat_map(cell).collect();
        let grid = self.grids(settings)[0];
        let mut samples = Samples::default();
        rounds.each(&grid, (&cells, variants.len()), |visit| {
            let cell = visit.cell;
            let mut params = Params::from(cell.directories.params());
            params.insert("threads", cell.threads.into());
            let (name, measure, _) = &variants[visit.at];
            let slice = measure(cell, grid.slice);
            slice.add_to(&mut samples, visit.round, name, &params, BASELINE)
        })?;
        for (name, _, count) in &variants {
            let (left, expected) = (count(), STANDING * (threads_max + 1));
            ensure!(left == expected, "{name}: {left} files are left of {expected}");
        }
        samples.add_scaling(|_, _| true);
        Ok(samples)
    }
}

impl Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} threads={}", self.directories.name(), self.threads)
    }
}

impl Directories {
    const ALL: [Directories; 2] = [Directories::One, Directories::Own];

    fn params(self) -> [(&'static str, Value); 1] {
        [("directories", self.name().into())]
    }

    fn name(self) -> &'static str {
        match self {
            Directories::One => "one",
            Directories::Own => "own",
        }
    }

    fn of(self, thread: usize) -> String {
        match self {
            Directories::One => "/one".to_owned(),
            Directories::Own => format!("/own-{thread}"),
        }
    }
}

/// Makes the directories with the files that stay; returns who works in them, and how what is left
/// there is counted.
fn variant<'a, F: Files>(
    files: &'a F,
    threads: usize,
) -> anyhow::Result<(&'a str, Measure<'a, Cell>, Count<'a>)> {
    let user = files.user();
    let Some(root) = user.open_dir(b"/") else { anyhow::bail!("there is no root") };
    let mut paths = vec![Directories::One.of(0)];
    paths.extend((0..threads).map(|thread| Directories::Own.of(thread)));
    for path in &paths {
        ensure!(user.make_dir(&root, &path.as_bytes()[1..]), "{}: no {path}", files.variant());
        let Some(dir) = user.open_dir(path.as_bytes()) else { anyhow::bail!("no {path}") };
        for file in 0..STANDING {
            let name = format!("standing-file-{file:04}.h");
            ensure!(user.create(&dir, name.as_bytes()), "{}: no {name}", files.variant());
        }
    }
    drop((root, user));
    let count = move || {
        let (user, mut list) = (files.user(), List::default());
        let names = |path: &String| {
            let dir = user.open_dir(path.as_bytes()).expect("the directory was made");
            if user.list(&dir, &mut list) { list.iter().count() } else { 0 }
        };
        paths.iter().map(names).sum()
    };
    let measure = move |cell: &Cell, time: Duration| slice(files, cell, time);
    Ok((files.variant(), Box::new(measure), Box::new(count)))
}

/// Runs one slice.
fn slice<F: Files>(files: &F, cell: &Cell, time: Duration) -> Slice {
    crew::run(cell.threads, time, |thread, turn| {
        let user = files.user();
        let path = cell.directories.of(thread);
        let dir = user.open_dir(path.as_bytes()).expect("the directory was made");
        let names: Vec<String> =
            (0..FILES).map(|file| format!("cc-{thread}-{file:02}.tmp.o")).collect();
        let step = |number: u64| {
            let name = names[(number % FILES) as usize].as_bytes();
            let is_making = (number / FILES).is_multiple_of(2);
            if is_making { user.create(&dir, name) } else { user.unlink(&dir, name) }
        };
        let mut done = 0;
        let lap = turn.run(|number| {
            done = number + 1;
            step(number)
        });
        let is_gone = (done..done.next_multiple_of(2 * FILES)).all(step);
        assert!(is_gone, "{}: a file was left", files.variant());
        lap
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::quick;

    #[test]
    fn quick_run_has_every_variant_in_one_directory_and_in_own_ones() {
        let cells: Vec<_> = Directories::ALL
            .into_iter()
            .flat_map(|place| {
                [1, 2].map(|n| [&place.params()[..], &[("threads", n.into())]].concat())
            })
            .collect();
        let rows = quick::check(&CreateOneDir, &VARIANTS, &cells);
        assert!(CreateOneDir.claims(&rows)[0].to_string().contains("held (x"));
    }

    #[test]
    fn file_that_is_in_the_way_is_a_wrong_answer() {
        let locked = Locked::new();
        let (_, measure, count) = variant(&locked, 1).unwrap();
        let cell = Cell { directories: Directories::One, threads: 1 };
        assert!(measure(&cell, Duration::from_millis(1)).check("rwlock-ahash").is_ok());
        assert_eq!(count(), 2 * STANDING);
        let user = locked.user();
        let one = user.open_dir(b"/one").unwrap();
        assert!(user.create(&one, b"cc-0-05.tmp.o"));
        assert_eq!(count(), 2 * STANDING + 1);
        assert!(measure(&cell, Duration::from_millis(1)).check("rwlock-ahash").is_err());
    }
}
