//! Table `msg`: messages that are sent and received again.
//!
//! Source: the messages beside document 002's semaphores; the seed's sibling series by the same author moved
//! their checks out of the lock too. Units: pairs of msgsnd and msgrcv per second of wall time, all threads
//! together, and nanoseconds of processor time per pair. Nobody waits: table `wakeup` has that.
//!
//! | parameter | meaning |
//! |---|---|
//! | `bytes` | of a message's text, up to the most that there can be |
//! | `queue` | `own`: each thread has one; `same`: all have one, and messages of a type each |
//!
//! # Claims
//! Four times the host kernel's rate with messages of 64 bytes, twice with 4 KiB, on own queues; what is
//! dearest there is the copying, which no design saves. The claim does not reach to two threads on one queue
//! (`same`), which hand its lock to each other: recorded with 64 bytes, 3.87 times. Workers are threads; there is no
//! row for processes.
//!
//! # Checks
//! What is received has the type, the length, the number and the last byte of what was sent, and the
//! queues are empty at the end.

use std::fmt::{self, Display};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use corewalk_ipc::{Cred, IPC_NOWAIT, IPC_PRIVATE, Namespace, NamespaceOptions, Task};
use corewalk_sync::sysv::MsgQueue;

use super::grid::Rounds;
use super::{Claim, Grid, Settings, Table, sized};
use crate::crew::{self, Slice};
use crate::samples::{Params, Row, Samples};
use crate::sems::apart;

/// The variant that all are compared with.
const BASELINE: &str = "linux";
const OURS: &str = "corewalk";
/// Bytes of a message.
const BYTES: (&[usize], &[usize]) = (&[1, 64, 4096], &[1, 64, 1024, 4096, 8192]);
/// The share of the time per row.
const SHARE_OF_TIME: f64 = 0.2;
const SETUP: Duration = Duration::from_secs(1);
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
}

/// Queues, numbered from 0.
trait Queues: Sync {
    /// Room for a message.
    type Message;

    fn message(&self, bytes: usize) -> Self::Message;

    /// Sends a message of a type with a number, and receives the first of that type; returns whether that is
    /// the same.
    fn pair(&self, queue: usize, kind: u8, number: u64, message: &mut Self::Message) -> bool;

    /// Returns true if nothing can be received from a queue.
    fn is_empty(&self, queue: usize) -> bool;
}

/// The host kernel's.
struct Linux(Vec<MsgQueue>);

/// Those of `corewalk-ipc` in this process.
struct Ours {
    task: Task,
    ids: Vec<i32>,
    _namespace: Namespace,
}

/// A text of so many bytes, behind its type in words.
struct Words {
    words: Vec<u64>,
    bytes: usize,
}

impl Table for Msg {
    fn name(&self) -> &'static str {
        "msg"
    }

    fn source(&self) -> &'static str {
        "message queues, beside the semaphores of document 002 (Bueso, March 2013)"
    }

    fn about(&self) -> &'static str {
        "messages of 1 B to 8 KiB that are sent and received again"
    }

    fn claim(&self) -> &'static str {
        "A small message is sent and received in a quarter of the host kernel's time, a page in half."
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
                let words = format!("pairs of {bytes} B on own queues, corewalk over linux");
                Claim::at_least(&words, ratio, least)
            })
            .to_vec();
        claims.push(Claim::at_least("any pairs, corewalk over linux", worst(&|_| true), 1.0));
        claims
    }

    fn grids(&self, settings: &Settings) -> Vec<Grid> {
        vec![Grid::new(settings, cells(settings).len(), 2, SHARE_OF_TIME)]
    }

    fn setup(&self, _settings: &Settings) -> Duration {
        SETUP
    }

    fn run(&self, settings: &Settings) -> anyhow::Result<Samples> {
        apart(|| run(self, settings))
    }
}

fn run(table: &Msg, settings: &Settings) -> anyhow::Result<Samples> {
    let rounds = Rounds::begin(table.name(), settings)?;
    let (grid, cells) = (table.grids(settings)[0], cells(settings));
    let most = settings.threads_max();
    let queues = (0..most).map(|_| MsgQueue::private()).collect::<Result<_, _>>();
    let (linux, ours) = (Linux(queues.context("msgget(2)")?), Ours::new(most)?);
    let mut samples = Samples::default();
    rounds.each(&grid, (&cells, 2), |visit| {
        let (name, slice) = match visit.at {
            0 => (BASELINE, slice(&linux, visit.cell, grid.slice)?),
            _ => (OURS, slice(&ours, visit.cell, grid.slice)?),
        };
        slice.add_to(&mut samples, visit.round, name, &visit.cell.params(), BASELINE)
    })?;
    Ok(samples)
}

fn slice<Q: Queues>(queues: &Q, cell: &Cell, time: Duration) -> anyhow::Result<Slice> {
    let slice = crew::run(cell.threads, time, |worker, turn| {
        let queue = if cell.is_same { 0 } else { worker };
        let kind = worker as u8 + 1;
        let mut message = queues.message(cell.bytes);
        turn.run(|number| queues.pair(queue, kind, number, &mut message))
    });
    ensure!((0..cell.threads).all(|queue| queues.is_empty(queue)), "a message is left");
    Ok(slice)
}

fn cells(settings: &Settings) -> Vec<Cell> {
    let mut cells = vec![];
    for &threads in settings.threads.iter().filter(|threads| **threads <= 2) {
        for &bytes in sized(settings.size, BYTES) {
            cells.push(Cell { threads, bytes, is_same: false });
            if threads > 1 && bytes == CLAIMED[0].0 {
                cells.push(Cell { threads, bytes, is_same: true });
            }
        }
    }
    if cells.is_empty() {
        cells.push(Cell { threads: 1, bytes: CLAIMED[0].0, is_same: false });
    }
    cells
}

impl Cell {
    fn params(&self) -> Params {
        let queue = if self.is_same { "same" } else { "own" };
        Params::from([
            ("threads", self.threads.into()),
            ("bytes", self.bytes.into()),
            ("queue", queue.into()),
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
    fn pair(&self, queue: usize, kind: u8, number: u64, message: &mut Words) -> bool {
        let Words { words, bytes } = message;
        let number = cut(number, *bytes);
        (words[0], words[1]) = (kind.into(), number);
        if self.0[queue].send(words, *bytes).is_err() {
            return false;
        }
        words[1] = 0;
        let got = self.0[queue].receive(words, *bytes, kind.into());
        let has_last = *bytes <= 8 || words[words.len() - 1] == u64::from_le_bytes([LAST; 8]);
        got == Ok(*bytes) && words[0] == u64::from(kind) && words[1] == number && has_last
    }

    fn is_empty(&self, queue: usize) -> bool {
        self.0[queue].is_empty() == Ok(true)
    }
}

impl Ours {
    fn new(queues: usize) -> anyhow::Result<Ours> {
        let namespace = Namespace::new(NamespaceOptions::default()).context("a namespace")?;
        let task = namespace.register(Cred::user(1000, 1000), 1)?;
        let ids = (0..queues).map(|_| task.msgget(IPC_PRIVATE, 0o600)).collect::<Result<_, _>>();
        Ok(Ours { ids: ids.context("msgget")?, task, _namespace: namespace })
    }
}

impl Queues for Ours {
    type Message = Vec<u8>;

    fn message(&self, bytes: usize) -> Vec<u8> {
        vec![LAST; bytes]
    }

    #[inline]
    fn pair(&self, queue: usize, kind: u8, number: u64, text: &mut Vec<u8>) -> bool {
        let (bytes, head) = (text.len(), text.len().min(8));
        let number = number.to_le_bytes();
        text[..head].copy_from_slice(&number[..head]);
        if self.task.msgsnd(self.ids[queue], kind.into(), text, 0).is_err() {
            return false;
        }
        text[..head].fill(0);
        let got = self.task.msgrcv(self.ids[queue], text, kind.into(), 0);
        got.is_ok_and(|got| got.size_bytes == bytes && got.mtype == i64::from(kind))
            && text[..head] == number[..head]
            && (bytes <= 8 || text[bytes - 1] == LAST)
    }

    fn is_empty(&self, queue: usize) -> bool {
        let mut text = [0; 1];
        self.task
            .msgrcv(self.ids[queue], &mut text, 0, i32::from(IPC_NOWAIT))
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
        let rows = quick::check(&Msg, &[BASELINE, OURS], &cells);
        let claims: Vec<String> = Msg.claims(&rows).iter().map(Claim::to_string).collect();
        assert!(claims.len() == 3 && claims.iter().all(|claim| claim.contains("held (x")));
    }

    #[test]
    fn message_that_is_left_or_another_is_a_wrong_answer() {
        let ours = Ours::new(1).unwrap();
        let cell = Cell { threads: 1, bytes: 64, is_same: false };
        let time = Duration::from_millis(2);
        assert!(slice(&ours, &cell, time).unwrap().check(OURS).is_ok());
        ours.task.msgsnd(ours.ids[0], 9, b"left", 0).unwrap();
        assert!(slice(&ours, &cell, time).is_err());
        ours.task.msgsnd(ours.ids[0], 1, &[LAST; 64], 0).unwrap();
        assert!(slice(&ours, &cell, time).is_err());
        // The first of its type comes first, which is another one's from now on.
        let mut text = ours.message(64);
        assert!(!ours.pair(0, 1, 5, &mut text));
    }
}
