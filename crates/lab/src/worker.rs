//! The worker processes of the tables of System V IPC: the lab's own program, started again
//! (`client`).
//!
//! A worker uses the semaphore sets or message queues of the host kernel or of a corewalk
//! namespace. The namespace is in a file that all workers map. Under the preload library, a worker
//! calls the C library, and the corewalk namespace answers.
//!
//! A worker serves a whole benchmark table. It runs one time slice for each line on its input, and
//! writes the operations, the wall time and the processor time in nanoseconds. An input line is
//! JSON: the parameters, and the milliseconds of the time slice.
//!
//! ```text
//! table: {"bytes":64,"ms":20,"queue":"own","threads":2}     worker: [412345, 20000123, 19876543]
//! table: answer                                             worker: [0, 0, 0]
//! ```
//!
//! After the input line `answer` the worker only answers the messages or semaphore operations of
//! the benchmark's process (`pingpong`). If a call fails, the worker ends, and the measurement of
//! the table fails.
//!
//! Source: semop(2): Linux gives each process its own undo records.

use std::cell::RefCell;
use std::io::{Write, stdin, stdout};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use serde::{Deserialize, Serialize};

use crate::client::{self, Client};
use crate::cpus;
use crate::crew::{self, Slice};
use crate::pingpong::{self, QueuePair, SemPair};
use crate::queues::{self, Queues};
use crate::samples::Cell;
use crate::sems::{self, Load, Sems};

/// The line that makes a worker answer round trips.
const ANSWER: &str = "answer";
/// The file name of the preload library, and the folders, relative to that of the program, in which
/// `corewalk-lab` looks for it.
const LIBRARY: &str = "libcorewalk_ipc_preload.so";
const LIBRARY_FOLDERS: [&str; 2] = ["deps", ""];

/// The owner of the objects that a worker uses.
#[derive(Clone, Copy)]
pub(crate) enum Place<'a> {
    /// The host kernel.
    Host,
    /// The namespace in a file.
    Namespace(&'a Path),
    /// The namespace in a file, which the worker uses through the preload library.
    Preload(&'a Path),
}

/// The objects that a worker uses.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) enum Objects {
    /// Semaphore sets: the identifier and the number of semaphores of each.
    Sets(Vec<(i32, u16)>),
    /// Identifiers of message queues.
    Queues(Vec<i32>),
}

/// The argument of a worker.
#[derive(Deserialize, Serialize)]
struct Job {
    /// The file of a corewalk namespace; None for the host kernel.
    namespace: Option<PathBuf>,
    /// The number of the worker.
    worker: usize,
    /// The processor that it runs on.
    cpu: usize,
    objects: Objects,
}

/// The processes of one variant.
pub(crate) struct Workers(RefCell<Vec<Client>>);

impl Workers {
    /// Starts `count` workers, each pinned to a processor. `objects` returns the semaphore sets or
    /// message queues of a worker.
    ///
    /// # Errors
    /// A process does not start, or the preload library is missing.
    pub(crate) fn start(
        program: &Path,
        place: Place<'_>,
        count: usize,
        objects: impl Fn(usize) -> Objects,
    ) -> anyhow::Result<Workers> {
        let cpus = cpus::each();
        let client = |worker: usize| {
            spawn(program, place, worker, cpus[worker % cpus.len()], objects(worker))
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
        objects: Objects,
    ) -> anyhow::Result<Workers> {
        let mut client = spawn(program, place, 0, cpu, objects)?;
        client.say(ANSWER)?;
        client.lap()?;
        Ok(Workers(RefCell::new(vec![client])))
    }

    /// Runs one time slice with the set of parameters `cell`. Its parameter `threads` says how many
    /// workers take part.
    ///
    /// # Errors
    /// If a call fails in a worker.
    pub(crate) fn run(&self, cell: &Cell, time: Duration) -> anyhow::Result<Slice> {
        let (mut clients, count) = (self.0.borrow_mut(), cell.number("threads"));
        let clients = clients.get_mut(..count).context("there are fewer processes")?;
        let ms = time.as_millis().max(1) as u64;
        let line = serde_json::to_string(&cell.with("ms", ms).0)?;
        client::run_all(clients, &line).with_context(|| format!("in processes: {line}"))
    }
}

fn library() -> anyhow::Result<PathBuf> {
    let program = std::env::current_exe()?;
    let folder = program.parent().context("the program is in no folder")?;
    let candidates = LIBRARY_FOLDERS.map(|name| folder.join(name).join(LIBRARY));
    let found = candidates.into_iter().find(|path| path.is_file());
    found.with_context(|| format!("no {LIBRARY}: build it (cargo build -p corewalk-ipc-preload)"))
}

fn spawn(
    program: &Path,
    place: Place<'_>,
    worker: usize,
    cpu: usize,
    objects: Objects,
) -> anyhow::Result<Client> {
    let library = if matches!(place, Place::Preload(_)) { library()? } else { PathBuf::new() };
    let (namespace, environment) = match place {
        Place::Host => (None, vec![]),
        Place::Namespace(file) => (Some(file.to_owned()), vec![]),
        Place::Preload(file) => {
            (None, vec![("LD_PRELOAD", &*library), ("COREWALK_IPC_NAMESPACE", file)])
        }
    };
    let job = serde_json::to_string(&Job { namespace, worker, cpu, objects })?;
    Client::spawn(program, vec!["ipc-worker".into(), job.into()], &environment)
}

/// Works for a table until its input ends.
///
/// # Errors
/// If the objects are missing, or a call fails.
pub(crate) fn work(job: &str) -> anyhow::Result<()> {
    let Job { namespace, worker, cpu, objects } = serde_json::from_str(job)?;
    cpus::pin(cpu);
    match (namespace, objects) {
        (Some(file), Objects::Sets(sets)) => {
            serve_sets(worker, &sets, &sems::Ours::open(&file)?.join(&sets))
        }
        (None, Objects::Sets(sets)) => serve_sets(worker, &sets, &sems::Linux::join(&sets)),
        (Some(file), Objects::Queues(queues)) => {
            serve_queues(&sems::Ours::open(&file)?.join_queues(&queues))
        }
        (None, Objects::Queues(queues)) => serve_queues(&queues::Linux::join(&queues)),
    }
}

fn serve_sets<S: Sems>(worker: usize, sets: &[(i32, u16)], sems: &S) -> anyhow::Result<()> {
    let slice = |cell: &Cell, time| {
        let load = Load::of(cell);
        let set = sets.iter().position(|(_, count)| *count == load.sems).context("no such set")?;
        Ok(crew::run(1, time, |_, turn| load.work(sems, set, worker, turn)))
    };
    serve(slice, || pingpong::answer(&SemPair(sems, 0), || false))
}

fn serve_queues<Q: Queues>(queues: &Q) -> anyhow::Result<()> {
    let slice = |cell: &Cell, time| {
        let bytes = cell.number("bytes");
        ensure!(bytes > 0, "{cell} has no bytes");
        Ok(crew::run(1, time, |_, turn| queues::pairs(queues, 0, 1, bytes, turn)))
    };
    serve(slice, || pingpong::answer(&QueuePair(queues), || false))
}

/// Answers the lines of the table, until there are no more.
fn serve(
    slice: impl Fn(&Cell, Duration) -> anyhow::Result<Slice>,
    answer: impl Fn() -> bool,
) -> anyhow::Result<()> {
    for line in stdin().lines() {
        let line = line?;
        if line == ANSWER {
            writeln!(stdout(), "[0, 0, 0]")?;
            ensure!(answer(), "an answer failed");
        }
        // `Cell` borrows the names of its parameters from the line, so the line is leaked. A worker
        // reads only few lines.
        let cell = Cell(serde_json::from_str(line.leak())?);
        let slice = slice(&cell, Duration::from_millis(cell.number("ms") as u64))?;
        slice.check("a process")?;
        writeln!(stdout(), "[{}, {}, {}]", slice.ops, slice.span.as_nanos(), slice.cpu_ns)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::peer::Scratch;

    #[test]
    fn queue_of_a_namespace_is_the_one_that_another_joins() {
        let folder = Scratch::in_memory("msg-test").unwrap();
        let file = folder.path().join("namespace");
        let ours = sems::Ours::open(&file).unwrap().with_queues(2).unwrap();
        let other = sems::Ours::open(&file).unwrap().join_queues(&ours.raw_ids()[1..]);
        other.users[0]
            .msgsnd(other.queues[0], 1, b"left", corewalk_ipc::MsgFlags::empty())
            .unwrap();
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
