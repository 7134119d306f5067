//! Table `rename`: files get other names, alone, side by side, and in one directory.
//!
//! Documents 000 and 001 are about the lock that Linux takes for each rename and that everybody who
//! translates a path had to take too; neither publishes a number for renames themselves. Linux today
//! locks the directories of a rename, and the whole file system if they are two
//! (`s_vfs_rename_mutex`). Units: operations per second of wall time, all threads together, and
//! nanoseconds of processor time per operation.
//!
//! # What is done
//! Each thread renames 64 files of its own there and back. `directories` says where:
//!
//! | value | each thread renames |
//! |---|---|
//! | `own` | within a directory of its own |
//! | `own-pair` | between two directories of its own, where Linux takes the lock of the file system |
//! | `one` | different names within one directory, the same for all |
//! | `apart` | within a file system of its own (corewalk only) |
//!
//! Threads that rename in file systems of their own share nothing that a file system could be blamed for:
//! what two of them do, over what one does, is what the machine has to give at that moment. Two processors
//! of a virtual machine may be one core.
//!
//! Rows with `net_of=syscall` have the cost of a system call that does nothing taken off `linux`,
//! round by round; that cost is the row `op=syscall`. corewalk and `rwlock-ahash` make no system
//! calls, and stand there as they are.
//!
//! `before-global-lock` is the kernel of document 000 with its one lock for all renames, over the tmpfs
//! that corewalk stands on; `rwlock-ahash` is one lock over everything. `linux` is a tmpfs of the host,
//! the one on /dev/shm.
//!
//! # The claim, as a shape
//! One thread takes a tenth of the time of the host's rename, net of the system call. Two threads do
//! at least 1.8 times what one does with `own`, and 1.5 times with `one`: rows with `over_threads=1`.
//! A design with one lock stays at what one thread does, or below.
//!
//! # What it drops
//! Renames of directories, targets that exist, and anybody who reads meanwhile: that is the table
//! `path-under-rename`.
//!
//! # Checks
//! Every rename must succeed, which it does only if the one before did, and all names are back where
//! they were at the end of each slice.
//!
//! Source: rename(2); Linux `fs/namei.c` (`lock_rename`); documents 000 (Long, February 2013) and 001
//! (Long, September 2013).

use std::fmt::{self, Display, Write as _};
use std::time::Duration;

use anyhow::ensure;
use serde_json::Value;

use super::grid::Rounds;
use super::{Claim, Grid, Settings, Table, shape, sized};
use crate::baseline::syscall_ns;
use crate::crew::{self, Measure, Slice};
use crate::files::{BeforeFiles, Files, Host, Locked, Ours, User};
use crate::samples::{Metric, Params, Row, Samples};

/// The variant that all are compared with.
const BASELINE: &str = "linux";
/// Files of one thread.
const FILES: u64 = 64;
/// Where each thread renames in a file system of its own.
const APART: &str = "apart";
/// Who is measured.
const VARIANTS: [&str; 4] = ["corewalk", "rwlock-ahash", "before-global-lock", BASELINE];
/// How much faster than the host's rename one is to be.
const FASTER: f64 = 10.0;
/// How two threads are to scale where they rename different names.
const SCALING: [(Directories, &str, f64); 2] =
    [(Directories::Own, "different directories", 1.8), (Directories::One, "one directory", 1.5)];

/// The table.
pub(super) struct Rename;

/// Where the threads rename.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Directories {
    Own,
    OwnPair,
    One,
}

/// What is measured with one set of parameters.
struct Cell {
    directories: Directories,
    threads: usize,
}

impl Table for Rename {
    fn name(&self) -> &'static str {
        "rename"
    }

    fn source(&self) -> &'static str {
        "renames without a global lock, which documents 000 and 001 left in place (Long, 2013)"
    }

    fn about(&self) -> &'static str {
        "files renamed there and back: alone, in different directories, in one directory"
    }

    fn claim(&self) -> &'static str {
        "A rename takes no lock that renames elsewhere take: in different directories they scale."
    }

    fn footer(&self, rows: &[Row]) -> String {
        let mut out = String::from(
            "The documents publish no figure for renames. linux renames on the tmpfs at /dev/shm.\n",
        );
        for variant in VARIANTS {
            let _ = write!(out, "{variant}: two threads over one");
            for directories in Directories::ALL {
                let scaling = shape::times(shape::scaling(rows, variant, &directories.params()));
                let _ = write!(out, " {scaling} ({})", directories.name());
            }
            out.push('\n');
        }
        let apart =
            shape::times(shape::scaling(rows, "corewalk", &[("directories", APART.into())]));
        let _ = writeln!(out, "the machine: {apart}, with a file system for each thread (apart)");
        out
    }

    fn claims(&self, rows: &[Row]) -> Vec<Claim> {
        let one = [("net_of", Value::from("syscall")), ("threads", Value::from(1))];
        let net = [&Directories::Own.params()[..], &one].concat();
        let ahead = shape::ahead(rows, "corewalk", &net);
        let words = "one thread over the host's rename on a tmpfs net of the system call";
        let mut claims = vec![Claim::at_least(words, ahead, FASTER)];
        for (directories, place, least) in SCALING {
            let scaling = shape::scaling(rows, "corewalk", &directories.params());
            let words = format!("two threads over one, renaming different names in {place}");
            claims.push(Claim::at_least(&words, scaling, least));
        }
        claims
    }

    fn grids(&self, settings: &Settings) -> Vec<Grid> {
        let cells = Directories::ALL.len() * settings.threads.len();
        let apart = settings.threads.len();
        vec![Grid::new(settings, cells, VARIANTS.len(), 1.0), Grid::new(settings, apart, 1, 1.0)]
    }

    fn run(&self, settings: &Settings) -> anyhow::Result<Samples> {
        let threads_max = settings.threads_max();
        let rounds = Rounds::begin(self.name(), settings)?;
        let (ours, locked, host) = (Ours::new()?, Locked::new(), Host::new(self.name()));
        let before = BeforeFiles::global_lock(16 + 4 * (FILES as usize) * (threads_max + 1))?;
        let mut variants: Vec<(&str, Measure<'_, Cell>)> = vec![
            variant(&ours, threads_max)?,
            variant(&locked, threads_max)?,
            variant(&before, threads_max)?,
        ];
        match &host {
            Ok(host) => variants.push(variant(host, threads_max)?),
            Err(error) => eprintln!("rename: skipped linux: {error:#}"),
        }
        let cell = |directories| {
            settings.threads.iter().map(move |&threads| Cell { directories, threads })
        };
        let cells: Vec<Cell> = Directories::ALL.into_iter().flat_map(cell).collect();
        let grids = self.grids(settings);
        let (grid, apart) = (grids[0], Apart::new(threads_max)?);
        let calls = sized(settings.size, (1_000, 100_000));
        let (mut samples, mut bare_ns) = (Samples::default(), 0.0);
        rounds.each(&grid, (&cells, variants.len()), |visit| {
            if visit.is_first {
                bare_ns = syscall_ns(calls);
                let params = Params::from([("op", "syscall".into()), ("threads", 1.into())]);
                samples.add(visit.round, "linux", &params, (Metric::NsPerOp, bare_ns), "linux");
                for &threads in &settings.threads {
                    let params =
                        Params::from([("directories", APART.into()), ("threads", threads.into())]);
                    let slice = apart.slice(threads, grids[1].slice);
                    slice.add_to(&mut samples, visit.round, "corewalk", &params, "corewalk")?;
                }
            }
            let (name, measure) = &variants[visit.at];
            let slice = measure(visit.cell, grid.slice);
            record(&mut samples, visit.round, (name, slice), visit.cell, bare_ns)
        })?;
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
    const ALL: [Directories; 3] = [Directories::Own, Directories::OwnPair, Directories::One];

    fn name(self) -> &'static str {
        match self {
            Directories::Own => "own",
            Directories::OwnPair => "own-pair",
            Directories::One => "one",
        }
    }

    fn params(self) -> [(&'static str, Value); 1] {
        [("directories", self.name().into())]
    }

    /// Returns the paths of the directories that a thread renames from and to.
    fn of(self, thread: usize) -> [String; 2] {
        let (own, other) = (format!("/own-{thread}"), format!("/other-{thread}"));
        match self {
            Directories::Own => [own.clone(), own],
            Directories::OwnPair => [own, other],
            Directories::One => ["/one".to_owned(), "/one".to_owned()],
        }
    }
}

/// File systems of which each serves one thread.
struct Apart(Vec<Ours>);

impl Apart {
    fn new(threads: usize) -> anyhow::Result<Apart> {
        let apart = Apart((0..threads).map(|_| Ours::new()).collect::<anyhow::Result<_>>()?);
        for files in &apart.0 {
            make_files(files, threads)?;
        }
        Ok(apart)
    }

    fn slice(&self, threads: usize, time: Duration) -> Slice {
        slice(&|thread| &self.0[thread], &Cell { directories: Directories::Own, threads }, time)
    }
}

/// Makes the files of all threads in every directory, and returns who renames them.
fn variant<'a, F: Files>(
    files: &'a F,
    threads: usize,
) -> anyhow::Result<(&'a str, Measure<'a, Cell>)> {
    make_files(files, threads)?;
    Ok((files.variant(), Box::new(move |cell, time| slice(&|_| files, cell, time))))
}

/// Makes the files of all threads in every directory.
fn make_files<F: Files>(files: &F, threads: usize) -> anyhow::Result<()> {
    let user = files.user();
    let Some(root) = user.open_dir(b"/") else { anyhow::bail!("there is no root") };
    ensure!(user.make_dir(&root, b"one"), "{}: no directory", files.variant());
    for thread in 0..threads {
        for path in [format!("/own-{thread}"), format!("/other-{thread}")] {
            ensure!(user.make_dir(&root, &path.as_bytes()[1..]), "{}: no {path}", files.variant());
        }
        for path in [format!("/own-{thread}"), String::from("/one")] {
            let Some(dir) = user.open_dir(path.as_bytes()) else { anyhow::bail!("no {path}") };
            for file in 0..FILES {
                let is_made = user.create(&dir, name(thread, file, Side::Home).as_bytes());
                ensure!(is_made, "{}: no file in {path}", files.variant());
            }
        }
    }
    Ok(())
}

/// Which of its two names a file has.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    Home,
    Away,
}

fn name(thread: usize, file: u64, side: Side) -> String {
    match side {
        Side::Home => format!("object-{thread}-{file:03}.o"),
        Side::Away => format!("object-{thread}-{file:03}.o.new"),
    }
}

/// Runs one slice, each thread on the files that `files` gives it.
fn slice<'a, F: Files + 'a>(
    files: &(impl Fn(usize) -> &'a F + Sync),
    cell: &Cell,
    time: Duration,
) -> Slice {
    crew::run(cell.threads, time, |thread, turn| {
        let files = files(thread);
        let user = files.user();
        let [home, away] = cell.directories.of(thread);
        let home = user.open_dir(home.as_bytes()).expect("the directory was made");
        let away = user.open_dir(away.as_bytes()).expect("the directory was made");
        let names: Vec<[String; 2]> = (0..FILES)
            .map(|file| [Side::Home, Side::Away].map(|side| name(thread, file, side)))
            .collect();
        let step = |number: u64| {
            let [old, new] = &names[(number % FILES) as usize];
            let (old, new) = ((&home, old.as_bytes()), (&away, new.as_bytes()));
            let is_leaving = (number / FILES).is_multiple_of(2);
            if is_leaving { user.rename(old, new) } else { user.rename(new, old) }
        };
        let mut done = 0;
        let lap = turn.run(|number| {
            done = number + 1;
            step(number)
        });
        let is_back = (done..done.next_multiple_of(2 * FILES)).all(step);
        assert!(is_back, "{}: a name did not come back", files.variant());
        lap
    })
}

/// Adds what one slice gave, and with one thread what is left of it without a system call.
fn record(
    samples: &mut Samples,
    round: usize,
    (variant, slice): (&str, Slice),
    cell: &Cell,
    bare_ns: f64,
) -> anyhow::Result<()> {
    let mut params = Params::from([
        ("directories", cell.directories.name().into()),
        ("threads", cell.threads.into()),
    ]);
    slice.add_to(samples, round, variant, &params, BASELINE)?;
    if cell.threads == 1 {
        params.insert("net_of", "syscall".into());
        let paid = if variant == "linux" { bare_ns } else { 0.0 };
        let net = (slice.ns_per_op - paid).max(0.0);
        samples.add(round, variant, &params, (Metric::NsPerOp, net), BASELINE);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::quick;

    #[test]
    fn quick_run_has_every_place_and_what_a_system_call_costs() {
        let cells: Vec<_> = Directories::ALL
            .into_iter()
            .flat_map(|place| {
                [1, 2].map(|n| [&place.params()[..], &[("threads", n.into())]].concat())
            })
            .collect();
        let rows = quick::check(&Rename, &VARIANTS, &cells);
        let own = [&Directories::Own.params()[..], &[("threads", 1.into())]].concat();
        let net = [&own[..], &[("net_of", "syscall".into())]].concat();
        let cost =
            |variant, params: &[(&str, Value)]| shape::median(&rows, variant, "ns_per_op", params);
        assert!(cost("linux", &net).unwrap() < cost("linux", &own).unwrap());
        assert_eq!(cost("corewalk", &net), cost("corewalk", &own));
        assert!(quick::row(&rows, ("linux", "ns_per_op"), &[("op", "syscall".into())]).is_some());
        let claims: Vec<String> = Rename.claims(&rows).iter().map(Claim::to_string).collect();
        assert_eq!(claims.len(), 3);
        assert!(claims.iter().all(|claim| claim.contains("held (x")), "{claims:?}");
    }

    #[test]
    fn name_that_cannot_be_renamed_is_a_wrong_answer() {
        let ours = Ours::new().unwrap();
        let (_, measure) = variant(&ours, 1).unwrap();
        let user = ours.user();
        let own = user.open_dir(b"/own-0").unwrap();
        let slice = |measure: &Measure<'_, Cell>| {
            measure(&Cell { directories: Directories::Own, threads: 1 }, Duration::from_millis(1))
        };
        assert!(slice(&measure).check("corewalk").is_ok());
        assert!(user.unlink(&own, name(0, 3, Side::Home).as_bytes()));
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| slice(&measure)));
        assert!(outcome.is_err() || outcome.is_ok_and(|slice| slice.check("corewalk").is_err()));
    }
}
