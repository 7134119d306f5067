//! Workers of `msg` that are processes: each sends to a queue and receives from it, in the host kernel or in a
//! namespace of corewalk that all of them map.
//!
//! A worker is this program again, as a client of the lab (`client`). It stays for a whole table and does
//! one slice for each line that it reads:
//!
//! ```text
//! table: 64 20     worker: 412345 20000123 19876543   (operations, wall ns, processor ns)
//! ```
//!
//! The words are bytes of a message and milliseconds.
//!
//! # Checks
//! Those of threads. A worker that gets a wrong answer ends, and with it the table.

use std::ffi::OsString;
use std::io::{Write, stdin, stdout};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use clap::Args;
use corewalk_ipc::MsgId;
use rustix::thread::{CpuSet, sched_setaffinity};

use super::blocked;
use super::{Cell, Linux, Ours, Queues, are_empty, work_at};
use crate::client::{Client, Lap};
use crate::crew::{self, Slice};
use crate::sems::process::{cpu_of_each, together};

/// What a worker process is given.
#[derive(Args, Clone, Debug)]
pub(crate) struct Job {
    /// The file of a namespace of corewalk; without one the host kernel's queues are meant.
    #[arg(long)]
    namespace: Option<PathBuf>,
    /// The processor it stays on.
    #[arg(long)]
    cpu: usize,
    /// The number of its queue.
    #[arg(long)]
    queue: i32,
    /// The number of a second queue, to which it sends what it receives from the first.
    #[arg(long)]
    answers: Option<i32>,
}

/// Worker processes, each with a queue.
pub(super) struct Workers<Q> {
    queues: Q,
    clients: Vec<Client>,
}

impl Workers<Linux> {
    /// Makes queues, and starts a process for each.
    ///
    /// # Errors
    /// If that cannot be done.
    pub(super) fn linux(program: &Path, count: usize) -> anyhow::Result<Self> {
        let queues = Linux::new(count)?;
        let clients = start(program, None, &queues.ids())?;
        Ok(Workers { queues, clients })
    }
}

impl Workers<Ours> {
    /// As [`Workers::linux`], in a namespace of corewalk in a new file in `folder`.
    ///
    /// # Errors
    /// If that cannot be done.
    pub(super) fn ours(program: &Path, folder: &Path, count: usize) -> anyhow::Result<Self> {
        let file = folder.join("namespace");
        let queues = Ours::open(&file)?.with_queues(count)?;
        let clients = start(program, Some(&file), &queues.ids())?;
        Ok(Workers { queues, clients })
    }
}

impl<Q: Queues> Workers<Q> {
    /// Runs one slice with as many processes as `cell` has threads.
    ///
    /// # Errors
    /// If a process has ended, or a message is left.
    pub(super) fn run(&mut self, cell: &Cell, time: Duration) -> anyhow::Result<Slice> {
        let line = format!("{} {}", cell.bytes, time.as_millis().max(1));
        ensure!(cell.threads <= self.clients.len(), "there are {} processes", self.clients.len());
        let clients = &mut self.clients[..cell.threads];
        clients.iter_mut().try_for_each(|client| client.say(&line))?;
        let laps = clients.iter_mut().map(Client::lap).collect::<anyhow::Result<Vec<Lap>>>();
        let laps = laps.with_context(|| format!("messages of processes: {line}"))?;
        are_empty(&self.queues, cell)?;
        Ok(together(&laps))
    }
}

/// Starts a process for each queue, each on a processor, going round.
fn start(program: &Path, namespace: Option<&Path>, queues: &[i32]) -> anyhow::Result<Vec<Client>> {
    let cpus = cpu_of_each()?;
    let client = |(worker, queue): (usize, &i32)| {
        spawn(program, namespace, cpus[worker % cpus.len()], &["--queue", &queue.to_string()])
    };
    queues.iter().enumerate().map(client).collect()
}

fn spawn(
    program: &Path,
    namespace: Option<&Path>,
    cpu: usize,
    queues: &[&str],
) -> anyhow::Result<Client> {
    let mut args: Vec<OsString> = vec!["msg-worker".into()];
    if let Some(file) = namespace {
        args.extend(["--namespace".into(), file.into()]);
    }
    args.extend(["--cpu", &cpu.to_string()].map(OsString::from));
    args.extend(queues.iter().map(OsString::from));
    Client::spawn(program, args)
}

/// Starts a process that sends what it receives from the first queue to the second, until it is dropped, and waits until
/// the process is there.
///
/// # Errors
/// If it cannot be started.
pub(super) fn answerer(
    program: &Path,
    namespace: Option<&Path>,
    queues: &[i32],
    cpu: usize,
) -> anyhow::Result<Client> {
    let [asked, answered] = [queues[0].to_string(), queues[1].to_string()];
    let mut client = spawn(program, namespace, cpu, &["--queue", &asked, "--answers", &answered])?;
    client.lap()?;
    Ok(client)
}

/// Works as a process: the other end of [`Workers`].
///
/// # Errors
/// A line that is none, a wrong answer, or a queue that is not there.
pub(crate) fn work(job: &Job) -> anyhow::Result<()> {
    let mut one = CpuSet::new();
    one.set(job.cpu);
    sched_setaffinity(None, &one).context("sched_setaffinity")?;
    match &job.namespace {
        Some(file) => {
            let ids = std::iter::once(job.queue).chain(job.answers).map(MsgId::from_raw).collect();
            serve(job, &Ours { ids, ..Ours::open(file)? })
        }
        None => serve(job, &Linux::join(job.queue, job.answers)),
    }
}

fn serve<Q: Queues>(job: &Job, queues: &Q) -> anyhow::Result<()> {
    if job.answers.is_some() {
        writeln!(stdout(), "0 0 0")?;
        ensure!(blocked::answer(queues, || false), "an answer failed");
    }
    for line in stdin().lines() {
        let (bytes, time) = parse(&line?)?;
        let slice = crew::run(1, time, |_, turn| work_at(queues, (0, 1), bytes, turn));
        slice.check("a process")?;
        let (wall_ns, cpu_ns) = (slice.span.as_nanos(), slice.ns_per_op * slice.ops as f64);
        writeln!(stdout(), "{} {wall_ns} {cpu_ns:.0}", slice.ops)?;
    }
    Ok(())
}

fn parse(line: &str) -> anyhow::Result<(usize, Duration)> {
    let (bytes, ms) = line.split_once(' ').with_context(|| format!("{line} is no load"))?;
    Ok((bytes.parse()?, Duration::from_millis(ms.parse()?)))
}

#[cfg(test)]
mod tests {
    use corewalk_ipc::MsgFlags;

    use super::*;
    use crate::sems::process::folder;

    #[test]
    fn line_of_a_load_is_read_back() {
        assert_eq!(parse("64 20").unwrap(), (64, Duration::from_millis(20)));
        assert!(["", "64", "64 x", "x 20"].into_iter().all(|bad| parse(bad).is_err()));
    }

    #[test]
    fn queue_of_a_namespace_is_the_one_that_another_joins() {
        let folder = folder("msg-test").unwrap();
        let file = folder.path().join("namespace");
        let ours = Ours::open(&file).unwrap().with_queues(2).unwrap();
        let other = Ours { ids: vec![ours.ids[1]], ..Ours::open(&file).unwrap() };
        other.task.msgsnd(other.ids[0], 1, b"left", MsgFlags::empty()).unwrap();
        assert!(ours.is_empty(0) && !ours.is_empty(1));
    }
}
