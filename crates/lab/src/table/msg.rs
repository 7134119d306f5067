//! Table `msg`: messages that a worker sends and receives again.
//!
//! Source: Bueso's patches of March 2013 (document 002 in `documents.md`), which moved the
//! permission checks of semaphore calls out of the lock of the set. The same author did so for
//! message queues. Units: pairs of msgsnd and msgrcv per second of wall time, all workers together,
//! and nanoseconds of processor time per pair.
//!
//! Parameters of a result row:
//! - `bytes`: the length of a message's text.
//! - `queue`: with `own` each worker has its own queue. With `same` all workers share one queue,
//!   and each has its own message type. With `blocked` two workers send each other messages in
//!   turn.
//! - `workers`: `threads` of one process, or `processes` that share a namespace in a file on a
//!   tmpfs.
//! - `cpus` (only with `blocked`): both workers on one processor, or on two.
//!
//! With `queue=blocked` one worker sends questions of 64 bytes over one queue, and another answers
//! over a second one. Each receive blocks (`pingpong`). In these rows the unit is a round trip, and
//! the processor time is that of the worker that asks.
//!
//! # Claims
//! Each claim must hold for threads and for processes.
//! - If each worker has its own queue, corewalk has at least four times the host kernel's rate with
//!   messages of 64 bytes. With 4 KiB it has twice the rate, since the copies cost the most.
//! - Round trips of blocked receivers are at least as fast as the kernel's.
//!
//! Two threads on one queue (`same`) have no claim, because they wait for its lock in turn. In the
//! recorded results, corewalk had 3.87 times the kernel's rate there, with 64 bytes.
//!
//! # Checks
//! Each receive checks the type of the message, its length, its last byte, and its serial number
//! (`queues`). All queues must be empty at the end.

use super::prelude::*;
use super::wakeup::axes;
use crate::pingpong::{self, QueuePair};
use crate::queues::{Linux, Queues, pairs};
use crate::sems::Ours;
use crate::worker::{Objects, Place, Workers};

/// The baseline of all rows.
const BASELINE: &str = "linux";
const OURS: &str = "corewalk";
/// Bytes of a message.
const BYTES: (&[usize], &[usize]) = (&[1, 64, 4096], &[1, 64, 1024, 4096, 8192]);
/// The measuring time per row, as a fraction of the usual time.
const SHARE_OF_TIME: f64 = 0.2;

/// The table.
pub(super) const TABLE: Table = Table { name: "msg", sweeps, run };

fn sweeps(settings: &Settings) -> Vec<Sweep> {
    let sweep = |cells| Sweep::new(cells, 2, BASELINE, SHARE_OF_TIME);
    vec![sweep(all_pairs(settings)), sweep(all_blocked(settings))]
}

/// Returns the sets of parameters of pairs of send and receive, first those with threads, then
/// those with processes.
fn all_pairs(settings: &Settings) -> Vec<Cell> {
    let threads = settings.threads_where(|threads| threads <= 2);
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
        all.extend(of(&[most], values(&[BYTES.0[1]]), values(&["same"]), in_threads));
    }
    if settings.program.is_some() {
        let bytes = values(&BYTES.0[1..]);
        all.extend(of(&[most], bytes, own, values(&["processes"])));
    }
    all
}

/// Returns the cells of round trips.
fn all_blocked(settings: &Settings) -> Vec<Cell> {
    let [workers, cpus] = axes(settings);
    let (threads, bytes) = (values(&[2]), values(&[pingpong::BYTES]));
    let queue = ("queue", values(&["blocked"]));
    cells(&[("threads", threads), ("bytes", bytes), queue, workers, cpus])
}

fn run(run: &Run<'_>, samples: &mut Samples) -> anyhow::Result<()> {
    let most = run.settings.threads_max();
    let folder = Scratch::in_memory(run.table)?;
    let file = folder.path().join("namespace");
    let (linux, ours) = (Linux::new(most)?, Ours::new(1)?.with_queues(most)?);
    let shared = Ours::open(&file)?.with_queues(most)?;
    let start = |place, ids: &[i32]| -> anyhow::Result<_> {
        let Some(program) = &run.settings.program else { return Ok(None) };
        let queue = |worker: usize| Objects::Queues(vec![ids[worker]]);
        Workers::start(program, place, most, queue).map(Some)
    };
    let of_linux = start(Place::Host, &linux.ids())?;
    let of_ours = start(Place::Namespace(&file), &shared.raw_ids())?;
    let variants = [
        (BASELINE, all_send(&linux, &linux, of_linux.as_ref())),
        (OURS, all_send(&ours, &shared, of_ours.as_ref())),
    ];
    run.measure(&run.sweeps[0], &variants, samples)?;
    let of_linux: Measure<'_> = Box::new(|cell, time| {
        let queues = Linux::new(2)?;
        round_trips(run, &queues, cell, time, Place::Host, &queues.ids())
    });
    let of_ours: Measure<'_> = Box::new(|cell, time| {
        let file = folder.path().join("blocked");
        let queues = Ours::for_slice(cell, &file)?.with_queues(2)?;
        round_trips(run, &queues, cell, time, Place::Namespace(&file), &queues.raw_ids())
    });
    run.measure(&run.sweeps[1], &[(BASELINE, of_linux), (OURS, of_ours)], samples)
}

/// Returns the function that measures pairs of send and receive with one set of parameters. Threads
/// use `queues`, and processes use `shared`.
fn all_send<'a, Q: Queues>(
    queues: &'a Q,
    shared: &'a Q,
    workers: Option<&'a Workers>,
) -> Measure<'a> {
    Box::new(move |cell, time| {
        if let (Some(workers), "processes") = (workers, cell.word("workers")) {
            let slice = workers.run(cell, time)?;
            are_empty(shared, cell.number("threads"))?;
            return Ok(slice);
        }
        slice(queues, cell, time)
    })
}

/// Runs one time slice with threads of this process. On a shared queue, each thread has its own
/// message type.
fn slice<Q: Queues>(queues: &Q, cell: &Cell, time: Duration) -> anyhow::Result<Slice> {
    let (threads, is_same) = (cell.number("threads"), cell.word("queue") == "same");
    let slice = crew::run(threads, time, |worker, turn| {
        let queue = if is_same { 0 } else { worker };
        pairs(queues, queue, worker as u8 + 1, cell.number("bytes"), turn)
    });
    are_empty(queues, threads)?;
    Ok(slice)
}

fn are_empty<Q: Queues>(queues: &Q, count: usize) -> anyhow::Result<()> {
    ensure!((0..count).all(|queue| queues.is_empty(queue)), "a message is left");
    Ok(())
}

/// Runs one time slice of round trips over two queues, one for requests and one for answers. The
/// answering side is a thread of this process, or another process.
fn round_trips<Q: Queues>(
    run: &Run<'_>,
    queues: &Q,
    cell: &Cell,
    time: Duration,
    place: Place<'_>,
    ids: &[i32],
) -> anyhow::Result<Slice> {
    let slice = pingpong::run(&QueuePair(queues), cell, time, |cpu| {
        Workers::answerer(run.program()?, place, cpu, Objects::Queues(ids.to_vec()))
    })?;
    are_empty(queues, 2)?;
    Ok(slice)
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
        let rows = quick::check(&TABLE, &[BASELINE, OURS], &quick::params(&cells));
        let claims = quick::claims(&TABLE, &rows);
        assert!(claims.len() == 4 && claims.iter().all(|claim| claim.contains("held (x")));
    }

    #[test]
    fn message_that_is_left_or_another_is_a_wrong_answer() {
        let ours = Ours::new(1).unwrap().with_queues(1).unwrap();
        let cell = &Cell::default().with("threads", 1).with("bytes", 64);
        let time = Duration::from_millis(2);
        assert!(slice(&ours, cell, time).unwrap().check(OURS).is_ok());
        ours.users[0].msgsnd(ours.queues[0], 9, b"left", corewalk_ipc::MsgFlags::empty()).unwrap();
        assert!(slice(&ours, cell, time).is_err());
        ours.users[0]
            .msgsnd(ours.queues[0], 1, &[LAST; 64], corewalk_ipc::MsgFlags::empty())
            .unwrap();
        assert!(slice(&ours, cell, time).is_err());
        // The queue still has an older message. The next receive must return that one, and not the
        // message number 5.
        let mut text = ours.message(64);
        assert!(ours.send(0, 1, 5, &mut text));
        assert_ne!(ours.receive(0, 1, &mut text), Some(5));
    }
}
