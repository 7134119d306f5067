//! Workers that are processes: each has the semaphores of the host kernel, or a namespace of corewalk that
//! all of them map, or such a namespace without knowing it (`preload`).
//!
//! A worker is this program again, as a client of the lab (`client`). It stays for a whole table and does
//! one slice for each line that it reads:
//!
//! ```text
//! table: own 128 off 1 2 20     worker: 412345 20000123 19876543   (operations, wall ns, processor ns)
//! ```
//!
//! The words are pattern, semaphores, undo, operations of a call, workers and milliseconds.
//!
//! # Checks
//! Those of `load`. A worker whose call fails ends, and with it the table.
//!
//! Source: semop(2); Linux gives each process undo records of its own.

use std::ffi::OsString;
use std::io::{Write, stdin, stdout};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use clap::Args;
use rustix::thread::{CpuSet, sched_setaffinity};

use super::{Linux, Load, Ours, Pattern, Sems};
use crate::client::{Client, Lap};
use crate::crew::{self, Slice};
use crate::peer::{Scratch, all_cpus};
use crate::table::answer;

/// Where the file of a namespace is made.
const TMPFS: &str = "/dev/shm";

/// The line that makes a worker answer.
const ANSWER: &str = "answer";

/// The variant of processes that the library answers, the library, and where it may be.
const PRELOAD: &str = "preload";
const LIBRARY: &str = "libcorewalk_ipc_preload.so";
const LIBRARY_FOLDERS: [&str; 4] = ["deps", "", "../lib/corewalk", "../lib"];

/// Whose semaphores a process takes.
#[derive(Clone, Copy)]
pub(crate) enum Place<'a> {
    /// Those of the host kernel.
    Host,
    /// Those of the namespace in a file.
    Namespace(&'a Path),
    /// Likewise; calls that have to wait sleep at once.
    Sleeping(&'a Path),
    /// Likewise, without knowing it: a library answers for the host kernel.
    Preload(&'a Path, &'a Path),
}

/// What a worker process is given.
#[derive(Args, Clone, Debug)]
pub(crate) struct Job {
    /// The file of a namespace of corewalk; without one the host kernel's semaphores are meant.
    #[arg(long)]
    namespace: Option<PathBuf>,
    /// Calls that have to wait sleep at once.
    #[arg(long)]
    sleeps: bool,
    /// Its number.
    #[arg(long)]
    worker: usize,
    /// The processor it stays on.
    #[arg(long)]
    cpu: usize,
    /// The sets: number and count of each.
    #[arg(long, num_args = 1.., value_parser = parse_set)]
    sets: Vec<(i32, u16)>,
}

/// Worker processes on the sets of one variant.
pub(crate) struct Workers<S> {
    variant: &'static str,
    sems: S,
    clients: Vec<Client>,
}

impl Workers<Linux> {
    /// Makes sets of so many semaphores each, and starts `count` processes that have them.
    ///
    /// # Errors
    /// If that cannot be done.
    pub(crate) fn linux(program: &Path, sets: &[u16], count: usize) -> anyhow::Result<Self> {
        let mut sems = Linux::default();
        sets.iter().try_for_each(|count| sems.make(*count))?;
        let clients = start(program, Place::Host, (&sems.ids(), sets), count)?;
        Ok(Workers { variant: sems.variant(), sems, clients })
    }
}

impl Workers<Ours> {
    /// As [`Workers::linux`], in a namespace of corewalk in a new file in `folder`.
    ///
    /// # Errors
    /// If that cannot be done.
    pub(crate) fn ours(
        program: &Path,
        folder: &Scratch,
        sets: &[u16],
        count: usize,
    ) -> anyhow::Result<Self> {
        let file = folder.path().join("namespace");
        let mut sems = Ours::open(&file)?;
        sets.iter().try_for_each(|count| sems.make(*count))?;
        let clients = start(program, Place::Namespace(&file), (&sems.ids(), sets), count)?;
        Ok(Workers { variant: sems.variant(), sems, clients })
    }

    /// As [`Workers::ours`], of processes that call the host kernel, and that the library of `corewalk ipc exec` answers.
    ///
    /// # Errors
    /// If that cannot be done.
    pub(crate) fn preload(
        program: &Path,
        folder: &Scratch,
        sets: &[u16],
        count: usize,
    ) -> anyhow::Result<Self> {
        let (file, library) = (folder.path().join("preloaded"), library()?);
        let mut sems = Ours::open_as_self(&file)?;
        sets.iter().try_for_each(|count| sems.make(*count))?;
        let clients = start(program, Place::Preload(&library, &file), (&sems.ids(), sets), count)?;
        Ok(Workers { variant: PRELOAD, sems, clients })
    }
}

/// Returns the library to preload: cargo puts it beside the program, or into a folder there.
fn library() -> anyhow::Result<PathBuf> {
    let program = std::env::current_exe()?;
    let folder = program.parent().context("the program is in no folder")?;
    let candidates = LIBRARY_FOLDERS.map(|name| folder.join(name).join(LIBRARY));
    let found = candidates.into_iter().find(|path| path.is_file());
    found.with_context(|| {
        format!(
            "{LIBRARY} is not beside {}: build it (cargo build --release -p corewalk-ipc-preload)",
            program.display()
        )
    })
}

impl<S: Sems> Workers<S> {
    /// Returns the name in the rows.
    pub(crate) fn variant(&self) -> &'static str {
        self.variant
    }

    /// Runs one slice with as many processes as `load` has threads.
    ///
    /// # Errors
    /// If a process has ended, or a value is wrong at the end.
    pub(crate) fn run(&mut self, load: &Load, set: usize, time: Duration) -> anyhow::Result<Slice> {
        let Load { threads, sems, pattern, has_undo, ops } = load;
        let (pattern, undo) = (pattern.name(), if *has_undo { "on" } else { "off" });
        let ms = time.as_millis().max(1);
        let line = format!("{pattern} {sems} {undo} {ops} {threads} {ms}");
        ensure!(*threads <= self.clients.len(), "there are {} processes", self.clients.len());
        let clients = &mut self.clients[..*threads];
        clients.iter_mut().try_for_each(|client| client.say(&line))?;
        let laps = clients.iter_mut().map(Client::lap).collect::<anyhow::Result<Vec<Lap>>>();
        let laps = laps.with_context(|| format!("{} in processes: {line}", self.variant))?;
        load.end(&self.sems, set)?;
        Ok(together(&laps))
    }
}

/// Returns a folder for the file of a namespace, on a tmpfs if there is one.
///
/// # Errors
/// If it cannot be made.
pub(crate) fn folder(label: &str) -> anyhow::Result<Scratch> {
    let tmpfs = Path::new(TMPFS);
    if tmpfs.is_dir() {
        return Scratch::new(tmpfs, label);
    }
    Scratch::new(&std::env::temp_dir(), label)
}

/// Returns what processes reached together.
pub(crate) fn together(laps: &[Lap]) -> Slice {
    let ops: u64 = laps.iter().map(|lap| lap.ops).sum();
    let cpu_ns: u64 = laps.iter().map(|lap| lap.cpu_ns).sum();
    let rate = |lap: &Lap| lap.ops as f64 * 1e9 / lap.wall_ns.max(1) as f64;
    Slice {
        ops_per_s: laps.iter().map(rate).sum(),
        ns_per_op: cpu_ns as f64 / ops.max(1) as f64,
        ops,
        wrong: 0,
        span: Duration::from_nanos(laps.iter().map(|lap| lap.wall_ns).max().unwrap_or(0)),
    }
}

/// Starts processes, each on a processor, going round.
fn start(
    program: &Path,
    place: Place<'_>,
    (ids, counts): (&[i32], &[u16]),
    count: usize,
) -> anyhow::Result<Vec<Client>> {
    let cpus = cpu_of_each()?;
    let sets: Vec<(i32, u16)> = ids.iter().copied().zip(counts.iter().copied()).collect();
    let client = |worker: usize| spawn(program, place, (worker, cpus[worker % cpus.len()]), &sets);
    (0..count).map(client).collect()
}

/// Returns the processors that there are.
///
/// # Errors
/// If none is known.
pub(crate) fn cpu_of_each() -> anyhow::Result<Vec<usize>> {
    let all = all_cpus()?;
    let cpus: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|&cpu| all.is_set(cpu)).collect();
    ensure!(!cpus.is_empty(), "no processor is known");
    Ok(cpus)
}

fn spawn(
    program: &Path,
    place: Place<'_>,
    (worker, cpu): (usize, usize),
    sets: &[(i32, u16)],
) -> anyhow::Result<Client> {
    let mut args: Vec<OsString> = vec!["semop-worker".into()];
    let environment = match place {
        Place::Host => vec![],
        Place::Namespace(file) => {
            args.extend(["--namespace".into(), file.into()]);
            vec![]
        }
        Place::Sleeping(file) => {
            args.extend(["--sleeps".into(), "--namespace".into(), file.into()]);
            vec![]
        }
        Place::Preload(library, file) => {
            vec![("LD_PRELOAD", library), ("COREWALK_IPC_NAMESPACE", file)]
        }
    };
    let (worker, cpu) = (worker.to_string(), cpu.to_string());
    args.extend(["--worker", &worker, "--cpu", &cpu, "--sets"].map(OsString::from));
    args.extend(sets.iter().map(|(id, count)| format!("{id}:{count}").into()));
    Client::spawn_with(program, args, &environment)
}

/// Starts a process that answers at the two semaphores of a set until it is dropped (`table::wakeup`), on
/// the processor `cpu`, and waits until it is there.
///
/// # Errors
/// If it cannot be started.
pub(crate) fn answerer(
    program: &Path,
    place: Place<'_>,
    set: i32,
    cpu: usize,
) -> anyhow::Result<Client> {
    let mut client = spawn(program, place, (0, cpu), &[(set, 2)])?;
    client.say(ANSWER)?;
    client.lap()?;
    Ok(client)
}

/// Works as a process: the other end of [`Workers`].
///
/// # Errors
/// A line that is none, or a set that is not there.
pub(crate) fn work(job: &Job) -> anyhow::Result<()> {
    let mut one = CpuSet::new();
    one.set(job.cpu);
    sched_setaffinity(None, &one).context("sched_setaffinity")?;
    match &job.namespace {
        Some(file) if job.sleeps => serve(job, &Ours::open_sleeping(file)?.join(&job.sets)),
        Some(file) => serve(job, &Ours::open(file)?.join(&job.sets)),
        None => serve(job, &Linux::join(&job.sets)),
    }
}

fn serve<S: Sems>(job: &Job, sems: &S) -> anyhow::Result<()> {
    for line in stdin().lines() {
        let line = line?;
        if line == ANSWER {
            writeln!(stdout(), "0 0 0")?;
            ensure!(answer(sems, 0, || false), "an answer failed");
        }
        let (load, time) = parse(&line)?;
        let set =
            job.sets.iter().position(|(_, count)| *count == load.sems).context("no such set")?;
        let slice = crew::run(1, time, |_, turn| load.work(sems, set, job.worker, turn));
        slice.check(sems.variant())?;
        let (wall_ns, cpu_ns) = (slice.span.as_nanos(), slice.ns_per_op * slice.ops as f64);
        writeln!(stdout(), "{} {wall_ns} {cpu_ns:.0}", slice.ops)?;
    }
    Ok(())
}

fn parse(line: &str) -> anyhow::Result<(Load, Duration)> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let [pattern, sems, undo, ops, threads, ms] = words[..] else { bail!("{line} is no load") };
    let pattern = Pattern::ALL.into_iter().find(|known| known.name() == pattern);
    let load = Load {
        threads: threads.parse()?,
        sems: sems.parse()?,
        pattern: pattern.context("no such pattern")?,
        has_undo: undo == "on",
        ops: ops.parse()?,
    };
    Ok((load, Duration::from_millis(ms.parse()?)))
}

fn parse_set(word: &str) -> Result<(i32, u16), String> {
    let parts =
        word.split_once(':').and_then(|(id, count)| Some((id.parse().ok()?, count.parse().ok()?)));
    parts.ok_or_else(|| format!("{word} is no set"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_of_a_load_is_read_back() {
        let (load, time) = parse("random 128 on 2 4 20").unwrap();
        let right =
            Load { threads: 4, sems: 128, pattern: Pattern::Random, has_undo: true, ops: 2 };
        assert_eq!((load, time), (right, Duration::from_millis(20)));
        for bad in ["", "random 128 on 2 4", "none 128 on 2 4 20", "own 128 on 2 x 20"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
        assert_eq!(parse_set("65537:128"), Ok((65_537, 128)));
        assert!(parse_set("7").is_err());
    }

    #[test]
    fn semaphores_of_a_namespace_are_those_that_another_joins() {
        let folder = folder("sems-test").unwrap();
        let file = folder.path().join("namespace");
        let mut ours = Ours::open(&file).unwrap();
        ours.make(3).unwrap();
        let other = Ours::open(&file).unwrap().join(&[(ours.ids()[0], 3)]);
        assert!(other.set_value(0, 0, 2, 5));
        assert_eq!(ours.values(0).unwrap(), [0, 0, 5]);
    }
}
