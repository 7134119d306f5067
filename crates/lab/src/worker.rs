//! The worker processes of the IPC tables. A worker is this program again (`client`).
//!
//! A worker uses the semaphore sets or message queues of the host kernel, or those of a corewalk
//! namespace in a file that all workers map. Under the preload library a worker calls the host
//! kernel's functions, and the namespace answers (`preload`). A worker serves a whole table. It
//! runs one slice for each line on its input, and writes the operations, the wall time and the
//! processor time in nanoseconds. An input line has the cell of the table and the milliseconds of
//! the slice:
//!
//! ```text
//! table: bytes=64 queue=own threads=2 workers=processes ms=20     worker: 412345 20000123 19876543
//! table: answer                                                   worker: 0 0 0
//! ```
//!
//! After the line `answer` the worker answers round trips. If a call fails, the worker ends and the
//! table fails.
//!
//! Source: semop(2): Linux gives each process its own undo records.

use std::cell::RefCell;
use std::ffi::OsString;
use std::io::{Write, stdin, stdout};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use clap::Args;

use crate::client::Client;
use crate::cpus;
use crate::crew::{self, Slice};
use crate::pingpong::{self, QueuePair, SemPair};
use crate::queues::{self, Queues};
use crate::samples::Cell;
use crate::sems::{self, Load, Sems};

/// The line that makes a worker answer round trips.
const ANSWER: &str = "answer";
/// The file name of the preload library, and the folders beside the lab where it may be.
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
    /// The file of a corewalk namespace. Without it the worker calls the host kernel.
    #[arg(long)]
    namespace: Option<PathBuf>,
    /// The number of the worker.
    #[arg(long)]
    worker: usize,
    /// The processor that it runs on.
    #[arg(long)]
    cpu: usize,
    /// The semaphore sets as `ID:COUNT`: the identifier and the number of semaphores.
    #[arg(long, num_args = 1.., value_parser = parse_set)]
    sets: Vec<(i32, u16)>,
    /// Identifiers of message queues.
    #[arg(long, num_args = 1..)]
    queues: Vec<i32>,
}

/// The processes of one variant.
pub(crate) struct Workers(RefCell<Vec<Client>>);

impl Workers {
    /// Starts `count` workers, each pinned to a processor. `objects` returns the arguments of a
    /// worker that name its sets or queues.
    ///
    /// # Errors
    /// If a process does not start, or the preload library is missing.
    pub(crate) fn start(
        program: &Path,
        place: Place<'_>,
        count: usize,
        objects: impl Fn(usize) -> Vec<String>,
    ) -> anyhow::Result<Workers> {
        let cpus = cpus::each();
        let client = |worker: usize| {
            spawn(program, place, (worker, cpus[worker % cpus.len()]), objects(worker))
        };
        Ok(Workers(RefCell::new((0..count).map(client).collect::<anyhow::Result<_>>()?)))
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
        Ok(Workers(RefCell::new(vec![client])))
    }

    /// Runs one slice of a cell, in as many workers as the cell has threads.
    ///
    /// # Errors
    /// If a call fails in a worker.
    pub(crate) fn run(&self, cell: &Cell, time: Duration) -> anyhow::Result<Slice> {
        let (mut clients, count) = (self.0.borrow_mut(), cell.number("threads"));
        let clients = clients.get_mut(..count).context("there are fewer processes")?;
        let line = format!("{cell} ms={}", time.as_millis().max(1));
        clients.iter_mut().try_for_each(|client| client.say(&line))?;
        let laps = clients.iter_mut().map(Client::lap).collect::<anyhow::Result<Vec<Slice>>>();
        Ok(Slice::together(laps.with_context(|| format!("in processes: {line}"))?.iter()))
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
    Client::spawn(program, args, &environment)
}

/// Works for a table until its input ends.
///
/// # Errors
/// If the objects are missing, or a call fails.
pub(crate) fn work(job: &Job) -> anyhow::Result<()> {
    cpus::pin(job.cpu);
    match (&job.namespace, job.queues.is_empty()) {
        (Some(file), true) => serve_sets(job, &sems::Ours::open(file)?.join(&job.sets)),
        (None, true) => serve_sets(job, &sems::Linux::join(&job.sets)),
        (Some(file), false) => serve_queues(&queues::Ours::open(file)?.join(&job.queues)),
        (None, false) => serve_queues(&queues::Linux::join(&job.queues)),
    }
}

fn serve_sets<S: Sems>(job: &Job, sems: &S) -> anyhow::Result<()> {
    let slice = |line: &str, time| {
        let load = Load::of(&Cell::parse(line, &Load::KEYS));
        let set =
            job.sets.iter().position(|(_, count)| *count == load.sems).context("no such set")?;
        Ok(crew::run(1, time, |_, turn| load.work(sems, set, job.worker, turn)))
    };
    serve(slice, || pingpong::answer(&SemPair(sems), || false))
}

fn serve_queues<Q: Queues>(queues: &Q) -> anyhow::Result<()> {
    let slice = |line: &str, time| {
        let bytes = Cell::parse(line, &["bytes"]).number("bytes");
        ensure!(bytes > 0, "{line} has no bytes");
        Ok(crew::run(1, time, |_, turn| queues::pairs(queues, (0, 1), bytes, turn)))
    };
    serve(slice, || pingpong::answer(&QueuePair(queues), || false))
}

/// Answers the lines of the table, until there are no more.
fn serve(
    slice: impl Fn(&str, Duration) -> anyhow::Result<Slice>,
    answer: impl Fn() -> bool,
) -> anyhow::Result<()> {
    for line in stdin().lines() {
        let line = line?;
        if line == ANSWER {
            writeln!(stdout(), "0 0 0")?;
            ensure!(answer(), "an answer failed");
        }
        let ms = Cell::parse(&line, &["ms"]).number("ms");
        ensure!(ms > 0, "{line} is no load");
        let slice = slice(&line, Duration::from_millis(ms as u64))?;
        slice.check("a process")?;
        writeln!(stdout(), "{} {} {}", slice.ops, slice.span.as_nanos(), slice.cpu_ns)?;
    }
    Ok(())
}

fn parse_set(word: &str) -> Result<(i32, u16), String> {
    let parts =
        word.split_once(':').and_then(|(id, count)| Some((id.parse().ok()?, count.parse().ok()?)));
    parts.ok_or_else(|| format!("{word} is no set"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::peer::Scratch;

    #[test]
    fn set_is_read_from_its_argument() {
        assert_eq!(parse_set("65537:128"), Ok((65_537, 128)));
        assert!(parse_set("7").is_err());
    }

    #[test]
    fn queue_of_a_namespace_is_the_one_that_another_joins() {
        let folder = Scratch::in_memory("msg-test").unwrap();
        let file = folder.path().join("namespace");
        let ours = queues::Ours::open(&file).unwrap().with_queues(2).unwrap();
        let other = queues::Ours::open(&file).unwrap().join(&ours.raw_ids()[1..]);
        other.task.msgsnd(other.ids[0], 1, b"left", corewalk_ipc::MsgFlags::empty()).unwrap();
        assert!(ours.is_empty(0) && !ours.is_empty(1));
    }

    #[test]
    fn semaphores_of_a_namespace_are_those_that_another_joins() {
        let folder = Scratch::in_memory("sems-test").unwrap();
        let file = folder.path().join("namespace");
        let mut ours = sems::Ours::open(&file).unwrap();
        ours.make(3).unwrap();
        let other = sems::Ours::open(&file).unwrap().join(&[(ours.ids()[0], 3)]);
        assert!(other.set_value(0, 0, 2, 5));
        assert_eq!(ours.values(0).unwrap(), [0, 0, 5]);
    }
}
