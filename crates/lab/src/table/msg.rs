//! Table `msg`: messages that a worker sends and receives again.
//!
//! Source: the messages beside document 002's semaphores; a sibling series by the same author moved
//! their checks out of the lock, too. Units: pairs of msgsnd and msgrcv per second of wall time,
//! all workers together, and nanoseconds of processor time per pair.
//!
//! - `bytes`: of a message's text, up to the most that there can be.
//! - `queue`: `own`: each worker has one; `same`: all share one, and each has a type of messages;
//!   `blocked`: round trips.
//! - `workers`: `threads` of one process, or `processes`, which share a namespace in a file on a
//!   tmpfs.
//! - `cpus`: of `blocked` only: both workers on one processor, or on two.
//!
//! With `queue` = `blocked` two workers exchange messages of 64 bytes on two queues, and each
//! receive blocks until the other has sent (`pingpong`). A pair is then a round trip, and the
//! processor time is that of the asking worker.
//!
//! # Claims
//! Four times the host kernel's rate with messages of 64 bytes, twice with 4 KiB, on own queues.
//! Copies cost the most there, and no design saves them. Each claim is about the worst of its rows,
//! threads and processes. Two threads on one queue (`same`) pass its lock back and forth: no claim
//! covers them; recorded with 64 bytes, 3.87 times. Round trips of blocked receivers are as fast as
//! the kernel's.
//!
//! # Checks
//! Those of `queues`; at the end the queues are empty.

use std::cell::{Cell as Counter, RefCell};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, ensure};

use super::bench::{Bench, Cell, Measure, cells, values};
use super::grid::Rounds;
use super::{Claim, Grid, Plot, Settings, Table, Text, sized};
use crate::crew::{self, Slice};
use crate::pingpong::{self, QueuePair};
use crate::queues::{Linux, Ours, Queues, pairs};
use crate::samples::{Params, Row, Samples};
use crate::sems::apart;
use crate::worker::{self, Place, Workers, cpu_of_each, of_queues};

/// The baseline of all rows.
const BASELINE: &str = "linux";
const OURS: &str = "corewalk";
/// Bytes of a message.
const BYTES: (&[usize], &[usize]) = (&[1, 64, 4096], &[1, 64, 1024, 4096, 8192]);
/// The share of the time per row.
const SHARE_OF_TIME: f64 = 0.2;
/// How many times the rate of the host kernel is claimed, by bytes.
const CLAIMED: [(usize, f64); 2] = [(64, 4.0), (4096, 2.0)];
/// The value of the parameter `queue` of round trips.
const BLOCKED: &str = "blocked";

/// The table.
pub(super) struct Msg;

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
        let is_blocked = |params: &Params| params["queue"] == BLOCKED;
        let pairs = worst(&|params| !is_blocked(params));
        claims.push(Claim::at_least("any pairs, corewalk over linux", pairs, 1.0));
        let words = "round trips of blocked receivers, corewalk over linux";
        claims.push(Claim::at_least(words, worst(&is_blocked), 1.0));
        claims
    }

    fn grids(&self, settings: &Settings) -> Vec<Grid> {
        [all_pairs(settings).len(), all_blocked(settings).len()]
            .map(|cells| Grid::new(settings, cells, 2, SHARE_OF_TIME))
            .into()
    }

    fn run(&self, settings: &Settings) -> anyhow::Result<Samples> {
        apart(|| run(self, settings))
    }
}

/// Returns the cells of pairs: those of threads, then those of processes.
fn all_pairs(settings: &Settings) -> Vec<Cell> {
    let few = |threads: &usize| *threads <= 2;
    let mut threads: Vec<usize> = settings.threads.iter().copied().filter(few).collect();
    if threads.is_empty() {
        threads.push(1);
    }
    let most = threads.iter().copied().max().unwrap_or(1);
    let sizes = values(sized(settings.size, BYTES));
    let (own, in_threads) = (values(&["own"]), values(&["threads"]));
    let of = |threads: &[usize], bytes, queue, workers| {
        cells(&[
            ("threads", values(threads)),
            ("bytes", bytes),
            ("queue", queue),
            ("workers", workers),
        ])
    };
    let mut all = of(&threads, sizes, own.clone(), in_threads.clone());
    if most > 1 {
        all.extend(of(&[most], values(&[CLAIMED[0].0]), values(&["same"]), in_threads));
    }
    if settings.program.is_some() {
        let bytes = values(&CLAIMED.map(|(bytes, _)| bytes));
        all.extend(of(&[most], bytes, own, values(&["processes"])));
    }
    all
}

/// Returns the cells of round trips.
fn all_blocked(settings: &Settings) -> Vec<Cell> {
    let cpus: Vec<usize> = (1..=cpu_of_each().map_or(1, |cpus| cpus.len().min(2))).collect();
    let workers = ["threads", "processes"];
    let workers = &workers[..1 + usize::from(settings.program.is_some())];
    cells(&[
        ("threads", values(&[2])),
        ("bytes", values(&[pingpong::BYTES])),
        ("queue", values(&[BLOCKED])),
        ("workers", values(workers)),
        ("cpus", values(&cpus)),
    ])
}

fn run(table: &Msg, settings: &Settings) -> anyhow::Result<Samples> {
    let rounds = Rounds::begin(table.name(), settings)?;
    let mut samples = Samples::default();
    let (grids, cells) = (table.grids(settings), all_pairs(settings));
    let most = settings.threads_max();
    let folder = worker::folder("msg")?;
    let file = folder.path().join("namespace");
    let (linux, ours) = (Linux::new(most)?, Ours::new()?.with_queues(most)?);
    // Workers in processes have queues of their own.
    let shared = Ours::open(&file)?.with_queues(most)?;
    let start = |place, ids: &[i32]| -> anyhow::Result<_> {
        let Some(program) = &settings.program else { return Ok(None) };
        let queue = |worker: usize| of_queues(&ids[worker..=worker]);
        Ok(Some(RefCell::new(Workers::start(program, place, most, queue)?)))
    };
    let of_linux = start(Place::Host, &linux.ids())?;
    let of_ours = start(Place::Namespace(&file), &shared.ids)?;
    let in_place = Bench::new(&rounds, grids[0], &cells, BASELINE);
    let variants = [
        (BASELINE, variant(&linux, &linux, of_linux.as_ref())),
        (OURS, variant(&ours, &shared, of_ours.as_ref())),
    ];
    in_place.run(&variants, &mut samples)?;
    let cells = all_blocked(settings);
    let program = settings.program.as_deref();
    let number = Counter::new(0);
    let of_linux: Measure<'_> = Box::new(|cell, time| {
        let queues = Linux::new(2)?;
        round_trips(&queues, cell, time, (program, Place::Host, &queues.ids()))
    });
    let of_ours: Measure<'_> = Box::new(|cell, time| {
        if cell.word("workers") == "threads" {
            return round_trips(
                &Ours::new()?.with_queues(2)?,
                cell,
                time,
                (None, Place::Host, &[]),
            );
        }
        number.set(number.get() + 1);
        let file = folder.path().join(format!("blocked-{}", number.get()));
        let queues = Ours::open(&file)?.with_queues(2)?;
        round_trips(&queues, cell, time, (program, Place::Namespace(&file), &queues.ids))
    });
    let blocked = Bench { grid: grids[1], cells: &cells, ..in_place };
    blocked.run(&[(BASELINE, of_linux), (OURS, of_ours)], &mut samples)?;
    Ok(samples)
}

/// Returns the measure of pairs: in threads with `queues`, in processes with `shared`.
fn variant<'a, Q: Queues>(
    queues: &'a Q,
    shared: &'a Q,
    workers: Option<&'a RefCell<Workers>>,
) -> Measure<'a> {
    Box::new(move |cell, time| {
        let (threads, bytes) = (cell.number("threads"), cell.number("bytes"));
        if let (Some(workers), "processes") = (workers, cell.word("workers")) {
            let line = format!("{bytes} {}", time.as_millis().max(1));
            let slice = workers.borrow_mut().run(&line, threads)?;
            are_empty(shared, threads)?;
            return Ok(slice);
        }
        let is_same = cell.word("queue") == "same";
        slice(queues, (threads, bytes, is_same), time)
    })
}

fn slice<Q: Queues>(
    queues: &Q,
    (threads, bytes, is_same): (usize, usize, bool),
    time: Duration,
) -> anyhow::Result<Slice> {
    let slice = crew::run(threads, time, |worker, turn| {
        let queue = if is_same { 0 } else { worker };
        pairs(queues, (queue, worker as u8 + 1), bytes, turn)
    });
    are_empty(queues, threads)?;
    Ok(slice)
}

fn are_empty<Q: Queues>(queues: &Q, count: usize) -> anyhow::Result<()> {
    ensure!((0..count).all(|queue| queues.is_empty(queue)), "a message is left");
    Ok(())
}

/// Measures round trips; a process with the queues `ids` answers if the cell says so.
fn round_trips<Q: Queues>(
    queues: &Q,
    cell: &Cell,
    time: Duration,
    (program, place, ids): (Option<&Path>, Place<'_>, &[i32]),
) -> anyhow::Result<Slice> {
    let (all, pair) = (cpu_of_each()?, QueuePair(queues));
    let cpus = [all[0], all[cell.number("cpus") - 1]];
    if cell.word("workers") == "threads" {
        let slice = pingpong::in_threads(&pair, cpus, 1, time)?;
        are_empty(queues, 2)?;
        return Ok(slice);
    }
    let program = program.context("this run cannot start the lab again")?;
    let _answers = Workers::answerer(program, place, cpus[1], of_queues(ids))?;
    Ok(pingpong::ask(&pair, cpus[0], time))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::queues::LAST;
    use crate::table::quick;

    #[test]
    fn quick_run_has_messages_of_every_size_and_the_claims() {
        let (settings, mut cells) = (quick::settings(), all_pairs(&quick::settings()));
        assert_eq!(cells.len(), 2 * BYTES.0.len() + 1);
        cells.extend(all_blocked(&settings));
        let rows = quick::check(&Msg, &[BASELINE, OURS], &quick::params(&cells));
        let claims: Vec<String> = Msg.claims(&rows).iter().map(Claim::to_string).collect();
        assert!(claims.len() == 4 && claims.iter().all(|claim| claim.contains("held (x")));
    }

    #[test]
    fn message_that_is_left_or_another_is_a_wrong_answer() {
        let ours = Ours::new().unwrap().with_queues(1).unwrap();
        let (load, time) = ((1, 64, false), Duration::from_millis(2));
        assert!(slice(&ours, load, time).unwrap().check(OURS).is_ok());
        ours.task.msgsnd(ours.ids[0], 9, b"left", 0).unwrap();
        assert!(slice(&ours, load, time).is_err());
        ours.task.msgsnd(ours.ids[0], 1, &[LAST; 64], 0).unwrap();
        assert!(slice(&ours, load, time).is_err());
        // From now on each receive of the type gets the message before its own.
        let mut text = ours.message(64);
        assert!(!ours.pair(0, 1, 5, &mut text));
    }
}
