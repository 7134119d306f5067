//! Table `msg`: messages that are sent and received again.
//!
//! Source: the messages beside document 002's semaphores; the seed's sibling series by the same author moved
//! their checks out of the lock too. Units: pairs of msgsnd and msgrcv per second of wall time, all threads
//! together, and nanoseconds of processor time per pair.
//!
//! | parameter | meaning |
//! |---|---|
//! | `bytes` | of a message's text, up to the most that there can be |
//! | `queue` | `own`: each worker has one; `same`: all have one, and messages of a type each |
//! | `workers` | `threads` of one process, or `processes`, which share a namespace in a file on a tmpfs |
//! | `cpus` | of `blocked` only: both workers on one processor, or on two |
//!
//! With `queue` = `blocked` two workers exchange messages of 64 bytes on two queues, and each receive blocks until the other has
//! sent (`blocked`). A pair is then a round trip, and the processor time is that of the one who asks.
//!
//! # Claims
//! Four times the host kernel's rate with messages of 64 bytes, twice with 4 KiB, on own queues; what is
//! dearest there is the copying, which no design saves. Each is checked on the worst of its rows, those of threads
//! and of processes. The claim does not reach to two threads on one queue
//! (`same`), which hand its lock to each other: recorded with 64 bytes, 3.87 times. Processes have rows of the
//! two sizes that are claimed, and as many of them as there are threads.
//!
//! A round trip of blocked receivers is to be as fast as with the kernel at least.
//!
//! # Checks
//! What is received has the type, the length, the number and the last byte of what was sent, and the
//! queues are empty at the end.

mod blocked;
pub(crate) mod process;

use std::fmt::{self, Display};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use corewalk_base::sysv::MsgQueue;
use corewalk_ipc::{
    Cred, GetFlags, IPC_PRIVATE, MsgFlags, MsgId, Namespace, NamespaceOptions, Task,
};

use super::grid::Rounds;
use super::{Claim, Grid, Plot, Settings, Table, Text, sized};
use crate::crew::{self, Laps, Slice, Turn};
use crate::samples::{Params, Row, Samples};
use crate::sems::{self, apart};
use process::Workers;

/// The variant that all are compared with.
const BASELINE: &str = "linux";
const OURS: &str = "corewalk";
/// Bytes of a message.
const BYTES: (&[usize], &[usize]) = (&[1, 64, 4096], &[1, 64, 1024, 4096, 8192]);
/// The share of the time per row.
const SHARE_OF_TIME: f64 = 0.2;
/// How many times the rate of the host kernel is claimed, by bytes.
const CLAIMED: [(usize, f64); 2] = [(64, 4.0), (4096, 2.0)];
/// The last byte of each message.
const LAST: u8 = 0x5a;

/// The table.
pub(super) struct Msg;

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Cell {
    threads: usize,
    bytes: usize,
    is_same: bool,
    is_in_processes: bool,
}

/// Queues, numbered from 0.
trait Queues: Sync {
    /// Room for a message.
    type Message;

    fn message(&self, bytes: usize) -> Self::Message;

    /// Sends a message of a type with a number; returns whether that succeeds.
    fn send(&self, queue: usize, kind: u8, number: u64, message: &mut Self::Message) -> bool;

    /// Receives the first message of a type; returns its number, or none if it is not what was sent.
    fn receive(&self, queue: usize, kind: u8, message: &mut Self::Message) -> Option<u64>;

    /// Sends a message of a type with a number, and receives the first of that type; returns whether that is
    /// the same.
    #[inline]
    fn pair(&self, queue: usize, kind: u8, number: u64, message: &mut Self::Message) -> bool {
        self.send(queue, kind, number, message)
            && self.receive(queue, kind, message) == Some(cut(number, self.bytes(message)))
    }

    /// Returns the bytes of a message.
    fn bytes(&self, message: &Self::Message) -> usize;

    /// Returns true if nothing can be received from a queue.
    fn is_empty(&self, queue: usize) -> bool;
}

/// The host kernel's.
struct Linux(Vec<MsgQueue>);

/// Those of `corewalk-ipc`, in this process or in a file that several map.
struct Ours {
    task: Task,
    ids: Vec<MsgId>,
    _namespace: Namespace,
}

/// A text of so many bytes, behind its type in words.
struct Words {
    words: Vec<u64>,
    bytes: usize,
}

impl Table for Msg {
    fn text(&self) -> &'static Text {
        &Text {
            name: "msg",
            source: "message queues, beside the semaphores of document 002 (Bueso, March 2013)",
            about: "messages of 1 B to 8 KiB that are sent and received again",
            claim: "A small message is sent and received in a quarter of the host kernel's time, a page in half.",
            plot: Plot {
                x: "bytes",
                metric: "ops_per_s",
                at: &[("queue", "own"), ("threads", "1"), ("workers", "threads")],
                headline: "64",
            },
        }
    }

    fn claims(&self, rows: &[Row]) -> Vec<Claim> {
        let ours = || rows.iter().filter(|row| row.variant == OURS && row.metric == "ops_per_s");
        let worst = |is_meant: &dyn Fn(&Params) -> bool| {
            let meant = ours().filter(|row| is_meant(&row.params) && row.baseline == BASELINE);
            meant.filter_map(|row| row.ratio).min_by(f64::total_cmp)
        };
        let mut claims = CLAIMED
            .map(|(bytes, least)| {
                let ratio = worst(&|params| params["bytes"] == bytes && params["queue"] == "own");
                let words = format!(
                    "pairs of {bytes} B on own queues, in threads and in processes, corewalk over linux"
                );
                Claim::at_least(&words, ratio, least)
            })
            .to_vec();
        let is_blocked = |params: &Params| params["queue"] == blocked::QUEUE;
        let pairs = worst(&|params| !is_blocked(params));
        claims.push(Claim::at_least("any pairs, corewalk over linux", pairs, 1.0));
        let words = "round trips of blocked receivers, corewalk over linux";
        claims.push(Claim::at_least(words, worst(&is_blocked), 1.0));
        claims
    }

    fn grids(&self, settings: &Settings) -> Vec<Grid> {
        let blocked = blocked::cells(settings).len();
        [cells(settings).len(), blocked]
            .map(|cells| Grid::new(settings, cells, 2, SHARE_OF_TIME))
            .into()
    }

    fn run(&self, settings: &Settings) -> anyhow::Result<Samples> {
        apart(|| run(self, settings))
    }
}

fn run(table: &Msg, settings: &Settings) -> anyhow::Result<Samples> {
    let rounds = Rounds::begin(table.name(), settings)?;
    let (grid, cells) = (table.grids(settings)[0], cells(settings));
    let most = settings.threads_max();
    let (linux, ours) = (Linux::new(most)?, Ours::new()?.with_queues(most)?);
    let folder = sems::process::folder("msg")?;
    let processes = cells.iter().filter(|cell| cell.is_in_processes).map(|cell| cell.threads);
    let mut workers = match (&settings.program, processes.max()) {
        (Some(program), Some(count)) => {
            Some((Workers::linux(program, count)?, Workers::ours(program, folder.path(), count)?))
        }
        _ => None,
    };
    let mut samples = Samples::default();
    rounds.each(&grid, (&cells, 2), |visit| {
        let (cell, time) = (visit.cell, grid.slice);
        let (name, slice) = match (visit.at, workers.as_mut().filter(|_| cell.is_in_processes)) {
            (0, None) => (BASELINE, slice(&linux, cell, time)?),
            (0, Some((linux, _))) => (BASELINE, linux.run(cell, time)?),
            (_, None) => (OURS, slice(&ours, cell, time)?),
            (_, Some((_, ours))) => (OURS, ours.run(cell, time)?),
        };
        slice.add_to(&mut samples, visit.round, name, &visit.cell.params(), BASELINE)
    })?;
    blocked::run(&rounds, table.grids(settings)[1], folder.path(), &mut samples)?;
    Ok(samples)
}

fn slice<Q: Queues>(queues: &Q, cell: &Cell, time: Duration) -> anyhow::Result<Slice> {
    let slice = crew::run(cell.threads, time, |worker, turn| {
        let queue = if cell.is_same { 0 } else { worker };
        work_at(queues, (queue, worker as u8 + 1), cell.bytes, turn)
    });
    are_empty(queues, cell)?;
    Ok(slice)
}

/// Works at a queue, with messages of a type.
fn work_at<Q: Queues>(queues: &Q, (queue, kind): (usize, u8), bytes: usize, turn: Turn) -> Laps {
    let mut message = queues.message(bytes);
    turn.run(|number| queues.pair(queue, kind, number, &mut message))
}

/// Checks that nothing is left in the queues of a cell.
fn are_empty<Q: Queues>(queues: &Q, cell: &Cell) -> anyhow::Result<()> {
    ensure!((0..cell.threads).all(|queue| queues.is_empty(queue)), "a message is left");
    Ok(())
}

fn cells(settings: &Settings) -> Vec<Cell> {
    let own = |threads, bytes| Cell { threads, bytes, is_same: false, is_in_processes: false };
    let mut cells = vec![];
    for &threads in settings.threads.iter().filter(|threads| **threads <= 2) {
        for &bytes in sized(settings.size, BYTES) {
            cells.push(own(threads, bytes));
            if threads > 1 && bytes == CLAIMED[0].0 {
                cells.push(Cell { is_same: true, ..own(threads, bytes) });
            }
        }
    }
    if cells.is_empty() {
        cells.push(own(1, CLAIMED[0].0));
    }
    let most = cells.iter().map(|cell| cell.threads).max().unwrap_or(1);
    if settings.program.is_some() {
        let claimed = CLAIMED.map(|(bytes, _)| Cell { is_in_processes: true, ..own(most, bytes) });
        cells.extend(claimed);
    }
    cells
}

impl Cell {
    fn params(&self) -> Params {
        let queue = if self.is_same { "same" } else { "own" };
        let workers = if self.is_in_processes { "processes" } else { "threads" };
        Params::from([
            ("threads", self.threads.into()),
            ("bytes", self.bytes.into()),
            ("queue", queue.into()),
            ("workers", workers.into()),
        ])
    }
}

impl Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "threads={} bytes={}", self.threads, self.bytes)
    }
}

/// Returns a number cut to what a text of so many bytes has room for.
fn cut(number: u64, bytes: usize) -> u64 {
    if bytes < 8 { number & ((1 << (8 * bytes)) - 1) } else { number }
}

impl Linux {
    fn new(queues: usize) -> anyhow::Result<Linux> {
        let queues = (0..queues).map(|_| MsgQueue::private()).collect::<Result<_, _>>();
        Ok(Linux(queues.context("msgget(2)")?))
    }

    /// Returns the queue that another process has made, and perhaps a second one.
    fn join(id: i32, other: Option<i32>) -> Linux {
        Linux(std::iter::once(id).chain(other).map(MsgQueue::attach).collect())
    }

    fn ids(&self) -> Vec<i32> {
        self.0.iter().map(MsgQueue::id).collect()
    }
}

impl Queues for Linux {
    type Message = Words;

    fn message(&self, bytes: usize) -> Words {
        let mut words = vec![0; 1 + bytes.div_ceil(8)];
        if bytes > 8 {
            words[bytes.div_ceil(8)] = u64::from_le_bytes([LAST; 8]);
        }
        Words { words, bytes }
    }

    #[inline]
    fn send(&self, queue: usize, kind: u8, number: u64, message: &mut Words) -> bool {
        let Words { words, bytes } = message;
        (words[0], words[1]) = (kind.into(), cut(number, *bytes));
        self.0[queue].send(words, *bytes).is_ok()
    }

    #[inline]
    fn receive(&self, queue: usize, kind: u8, message: &mut Words) -> Option<u64> {
        let Words { words, bytes } = message;
        words[1] = 0;
        let got = self.0[queue].receive(words, *bytes, kind.into());
        let has_last = *bytes <= 8 || words[words.len() - 1] == u64::from_le_bytes([LAST; 8]);
        (got == Ok(*bytes) && words[0] == u64::from(kind) && has_last).then_some(words[1])
    }

    #[inline]
    fn bytes(&self, message: &Words) -> usize {
        message.bytes
    }

    fn is_empty(&self, queue: usize) -> bool {
        self.0[queue].is_empty() == Ok(true)
    }
}

impl Ours {
    fn new() -> anyhow::Result<Ours> {
        Ours::of(Namespace::new(NamespaceOptions::default()).context("a namespace")?, 1)
    }

    /// Returns the namespace in a file, which is made if it is not there.
    fn open(file: &Path) -> anyhow::Result<Ours> {
        let namespace = Namespace::open(file, NamespaceOptions::default());
        let namespace = namespace.with_context(|| format!("a namespace in {}", file.display()));
        Ours::of(namespace?, std::process::id())
    }

    fn of(namespace: Namespace, pid: u32) -> anyhow::Result<Ours> {
        let task = namespace.register(Cred::user(1000, 1000), pid)?;
        Ok(Ours { task, ids: vec![], _namespace: namespace })
    }

    fn with_queues(self, count: usize) -> anyhow::Result<Ours> {
        let ids = (0..count)
            .map(|_| self.task.msgget(IPC_PRIVATE, GetFlags::empty(), 0o600))
            .collect::<Result<_, _>>();
        Ok(Ours { ids: ids.context("msgget")?, ..self })
    }

    /// Returns the ids as numbers, for other processes.
    fn ids(&self) -> Vec<i32> {
        self.ids.iter().map(|id| id.raw()).collect()
    }
}

impl Queues for Ours {
    type Message = Vec<u8>;

    fn message(&self, bytes: usize) -> Vec<u8> {
        vec![LAST; bytes]
    }

    #[inline]
    fn send(&self, queue: usize, kind: u8, number: u64, text: &mut Vec<u8>) -> bool {
        let head = text.len().min(8);
        text[..head].copy_from_slice(&number.to_le_bytes()[..head]);
        self.task.msgsnd(self.ids[queue], kind.into(), text, MsgFlags::empty()).is_ok()
    }

    #[inline]
    fn receive(&self, queue: usize, kind: u8, text: &mut Vec<u8>) -> Option<u64> {
        let (bytes, head) = (text.len(), text.len().min(8));
        text[..head].fill(0);
        let got = self.task.msgrcv(self.ids[queue], text, kind.into(), MsgFlags::empty());
        let is_right = got.is_ok_and(|got| got.size_bytes == bytes && got.mtype == i64::from(kind))
            && (bytes <= 8 || text[bytes - 1] == LAST);
        let mut number = [0; 8];
        number[..head].copy_from_slice(&text[..head]);
        is_right.then_some(u64::from_le_bytes(number))
    }

    #[inline]
    fn bytes(&self, text: &Vec<u8>) -> usize {
        text.len()
    }

    fn is_empty(&self, queue: usize) -> bool {
        let mut text = [0; 1];
        self.task
            .msgrcv(self.ids[queue], &mut text, 0, MsgFlags::NOWAIT)
            .is_err_and(|errno| errno == rustix::io::Errno::NOMSG)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::quick;

    #[test]
    fn quick_run_has_messages_of_every_size_and_the_claims() {
        let cells: Vec<Vec<_>> = cells(&quick::settings())
            .into_iter()
            .map(|cell| cell.params().into_iter().collect())
            .collect();
        assert_eq!(cells.len(), 2 * BYTES.0.len() + 1);
        let waits = blocked::cells(&quick::settings()).into_iter();
        let waits = waits.map(|cell| cell.params().into_iter().collect());
        let cells: Vec<Vec<_>> = cells.into_iter().chain(waits).collect();
        let rows = quick::check(&Msg, &[BASELINE, OURS], &cells);
        let claims: Vec<String> = Msg.claims(&rows).iter().map(Claim::to_string).collect();
        assert!(claims.len() == 4 && claims.iter().all(|claim| claim.contains("held (x")));
    }

    #[test]
    fn message_that_is_left_or_another_is_a_wrong_answer() {
        let ours = Ours::new().unwrap().with_queues(1).unwrap();
        let cell = Cell { threads: 1, bytes: 64, is_same: false, is_in_processes: false };
        let time = Duration::from_millis(2);
        assert!(slice(&ours, &cell, time).unwrap().check(OURS).is_ok());
        ours.task.msgsnd(ours.ids[0], 9, b"left", MsgFlags::empty()).unwrap();
        assert!(slice(&ours, &cell, time).is_err());
        ours.task.msgsnd(ours.ids[0], 1, &[LAST; 64], MsgFlags::empty()).unwrap();
        assert!(slice(&ours, &cell, time).is_err());
        // The first of its type comes first, which is another one's from now on.
        let mut text = ours.message(64);
        assert!(!ours.pair(0, 1, 5, &mut text));
    }
}
