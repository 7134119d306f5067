//! Worker processes of the IPC tables: this program again, as a client of the lab (`client`).
//!
//! A worker uses the semaphore sets or message queues of the host kernel, or of a corewalk
//! namespace in a file that all workers map. Under the preload library the namespace answers the
//! calls for the host kernel (`preload`). A worker stays for a whole table. It runs one slice for
//! each line on its input, and answers with operations, wall time and processor time in
//! nanoseconds:
//!
//! ```text
//! table: own 128 off 1 2 20     worker: 412345 20000123 19876543
//! table: answer                 worker: 0 0 0     (from now on it answers round trips)
//! ```
//!
//! A line for semaphores has pattern, semaphores, undo, operations of a call, workers and
//! milliseconds; a line for queues has bytes and milliseconds. A worker whose call fails ends, and
//! the table fails.
//!
//! Source: semop(2): Linux gives each process its own undo records.

use std::ffi::OsString;
use std::io::{Write, stdin, stdout};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use clap::Args;
use rustix::thread::CpuSet;

use crate::client::{Client, Lap};
use crate::crew::{self, Slice};
use crate::peer::{Scratch, all_cpus};
use crate::pingpong::{self, QueuePair, SemPair};
use crate::queues::{self, Queues};
use crate::sems::{self, Load, Sems};

/// Where the file of a namespace is made.
const TMPFS: &str = "/dev/shm";
/// The line that makes a worker answer round trips.
const ANSWER: &str = "answer";
/// The preload library, and the folders beside the lab where it may be.
const LIBRARY: &str = "libcorewalk_ipc_preload.so";
const LIBRARY_FOLDERS: [&str; 4] = ["deps", "", "../lib/corewalk", "../lib"];

/// The owner of the objects that a worker uses.
#[derive(Clone, Copy)]
pub(crate) enum Place<'a> {
    /// The host kernel.
    Host,
    /// The namespace in a file.
    Namespace(&'a Path),
    /// The namespace in a file, behind the preload library.
    Preload(&'a Path),
}

/// The objects that a worker uses.
#[derive(Args, Clone, Debug)]
pub(crate) struct Job {
    /// The file of a corewalk namespace; without it the worker calls the host kernel.
    #[arg(long)]
    namespace: Option<PathBuf>,
    /// The number of the worker.
    #[arg(long)]
    worker: usize,
    /// The processor that it runs on.
    #[arg(long)]
    cpu: usize,
    /// Identifiers of semaphore sets, each with its number of semaphores, as `ID:COUNT`.
    #[arg(long, num_args = 1.., value_parser = parse_set)]
    sets: Vec<(i32, u16)>,
    /// Identifiers of message queues.
    #[arg(long, num_args = 1..)]
    queues: Vec<i32>,
}

/// The processes of one variant.
pub(crate) struct Workers(Vec<Client>);

impl Workers {
    /// Starts so many workers, each on a processor of its own where there are enough. `objects` is
    /// the arguments of a worker that name its objects.
    ///
    /// # Errors
    /// If a process does not start, or the preload library is missing.
    pub(crate) fn start(
        program: &Path,
        place: Place<'_>,
        count: usize,
        objects: impl Fn(usize) -> Vec<String>,
    ) -> anyhow::Result<Workers> {
        let cpus = cpu_of_each()?;
        let client = |worker: usize| {
            spawn(program, place, (worker, cpus[worker % cpus.len()]), objects(worker))
        };
        Ok(Workers((0..count).map(client).collect::<anyhow::Result<_>>()?))
    }

    /// Starts one worker that answers round trips until it is dropped.
    ///
    /// # Errors
    /// If it does not start.
    pub(crate) fn answerer(
        program: &Path,
        place: Place<'_>,
        cpu: usize,
        objects: Vec<String>,
    ) -> anyhow::Result<Workers> {
        let mut client = spawn(program, place, (0, cpu), objects)?;
        client.say(ANSWER)?;
        client.lap()?;
        Ok(Workers(vec![client]))
    }

    /// Runs one slice in the first `count` workers.
    ///
    /// # Errors
    /// If a call fails in a worker.
    pub(crate) fn run(&mut self, line: &str, count: usize) -> anyhow::Result<Slice> {
        ensure!(count <= self.0.len(), "there are {} processes", self.0.len());
        let clients = &mut self.0[..count];
        clients.iter_mut().try_for_each(|client| client.say(line))?;
        let laps = clients.iter_mut().map(Client::lap).collect::<anyhow::Result<Vec<Lap>>>();
        Ok(together(&laps.with_context(|| format!("in processes: {line}"))?))
    }
}

/// Returns the arguments that name semaphore sets.
pub(crate) fn of_sets(ids: &[i32], counts: &[u16]) -> Vec<String> {
    let sets = ids.iter().zip(counts).map(|(id, count)| format!("{id}:{count}"));
    std::iter::once(String::from("--sets")).chain(sets).collect()
}

/// Returns the arguments that name message queues.
pub(crate) fn of_queues(ids: &[i32]) -> Vec<String> {
    std::iter::once(String::from("--queues")).chain(ids.iter().map(i32::to_string)).collect()
}

/// Returns a folder for the files of namespaces, in memory where the host has a tmpfs.
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

/// Returns the numbers of the processors of this process.
///
/// # Errors
/// If none is known.
pub(crate) fn cpu_of_each() -> anyhow::Result<Vec<usize>> {
    let all = all_cpus()?;
    let cpus: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|&cpu| all.is_set(cpu)).collect();
    ensure!(!cpus.is_empty(), "no processor is known");
    Ok(cpus)
}

/// Returns the sum of several laps.
fn together(laps: &[Lap]) -> Slice {
    let ops: u64 = laps.iter().map(|lap| lap.ops).sum();
    let cpu_ns: u64 = laps.iter().map(|lap| lap.cpu_ns).sum();
    Slice {
        ops_per_s: laps.iter().map(Lap::ops_per_s).sum(),
        ns_per_op: cpu_ns as f64 / ops.max(1) as f64,
        ops,
        wrong: 0,
        span: Duration::from_nanos(laps.iter().map(|lap| lap.wall_ns).max().unwrap_or(0)),
    }
}

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

fn spawn(
    program: &Path,
    place: Place<'_>,
    (worker, cpu): (usize, usize),
    objects: Vec<String>,
) -> anyhow::Result<Client> {
    let mut args: Vec<OsString> = vec!["ipc-worker".into()];
    let library = if matches!(place, Place::Preload(_)) { library()? } else { PathBuf::new() };
    let environment = match place {
        Place::Host => vec![],
        Place::Namespace(file) => {
            args.extend(["--namespace".into(), file.into()]);
            vec![]
        }
        Place::Preload(file) => {
            vec![("LD_PRELOAD", &*library), ("COREWALK_IPC_NAMESPACE", file)]
        }
    };
    let (worker, cpu) = (worker.to_string(), cpu.to_string());
    args.extend(["--worker", &worker, "--cpu", &cpu].map(OsString::from));
    args.extend(objects.into_iter().map(OsString::from));
    Client::spawn_with(program, args, &environment)
}

/// Works for a table until its input ends.
///
/// # Errors
/// If the objects are missing, or a call fails.
pub(crate) fn work(job: &Job) -> anyhow::Result<()> {
    pingpong::pin(job.cpu);
    match (&job.namespace, job.queues.is_empty()) {
        (Some(file), true) => serve_sets(job, &sems::Ours::open(file)?.join(&job.sets)),
        (None, true) => serve_sets(job, &sems::Linux::join(&job.sets)),
        (Some(file), false) => serve_queues(&queues::Ours::open(file)?.join(&job.queues)),
        (None, false) => serve_queues(&queues::Linux::join(&job.queues)),
    }
}

fn serve_sets<S: Sems>(job: &Job, sems: &S) -> anyhow::Result<()> {
    let slice = |line: &str| {
        let (load, time) = Load::parse(line)?;
        let set =
            job.sets.iter().position(|(_, count)| *count == load.sems).context("no such set")?;
        Ok(crew::run(1, time, |_, turn| load.work(sems, set, job.worker, turn)))
    };
    serve(slice, || pingpong::answer(&SemPair(sems), || false))
}

fn serve_queues<Q: Queues>(queues: &Q) -> anyhow::Result<()> {
    let slice = |line: &str| {
        let (bytes, time) = parse_queues(line)?;
        Ok(crew::run(1, time, |_, turn| queues::pairs(queues, (0, 1), bytes, turn)))
    };
    serve(slice, || pingpong::answer(&QueuePair(queues), || false))
}

fn serve(
    slice: impl Fn(&str) -> anyhow::Result<Slice>,
    answer: impl Fn() -> bool,
) -> anyhow::Result<()> {
    for line in stdin().lines() {
        let line = line?;
        if line == ANSWER {
            writeln!(stdout(), "0 0 0")?;
            ensure!(answer(), "an answer failed");
        }
        let slice = slice(&line)?;
        slice.check("a process")?;
        let (wall_ns, cpu_ns) = (slice.span.as_nanos(), slice.ns_per_op * slice.ops as f64);
        writeln!(stdout(), "{} {wall_ns} {cpu_ns:.0}", slice.ops)?;
    }
    Ok(())
}

fn parse_queues(line: &str) -> anyhow::Result<(usize, Duration)> {
    let (bytes, ms) = line.split_once(' ').with_context(|| format!("{line} is no load"))?;
    Ok((bytes.parse()?, Duration::from_millis(ms.parse()?)))
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
        assert_eq!(parse_queues("64 20").unwrap(), (64, Duration::from_millis(20)));
        assert!(["", "64", "64 x", "x 20"].into_iter().all(|bad| parse_queues(bad).is_err()));
        assert_eq!(parse_set("65537:128"), Ok((65_537, 128)));
        assert!(parse_set("7").is_err());
    }

    #[test]
    fn queue_of_a_namespace_is_the_one_that_another_joins() {
        let folder = folder("msg-test").unwrap();
        let file = folder.path().join("namespace");
        let ours = queues::Ours::open(&file).unwrap().with_queues(2).unwrap();
        let other = queues::Ours::open(&file).unwrap().join(&ours.raw_ids()[1..]);
        other.task.msgsnd(other.ids[0], 1, b"left", corewalk_ipc::MsgFlags::empty()).unwrap();
        assert!(ours.is_empty(0) && !ours.is_empty(1));
    }

    #[test]
    fn semaphores_of_a_namespace_are_those_that_another_joins() {
        let folder = folder("sems-test").unwrap();
        let file = folder.path().join("namespace");
        let mut ours = sems::Ours::open(&file).unwrap();
        ours.make(3).unwrap();
        let other = sems::Ours::open(&file).unwrap().join(&[(ours.ids()[0], 3)]);
        assert!(other.set_value(0, 0, 2, 5));
        assert_eq!(ours.values(0).unwrap(), [0, 0, 5]);
    }
}
