//! Rows of `msg` in which each receive blocks: a worker asks on a queue and waits for the answer on another, a second one answers.
//!
//! As `wakeup` does with semaphores: both are threads, or the one that answers is a process, and they are on one processor or on two.
//!
//! Source: msgop(2); lmbench's `lat_sem` for the shape.

use std::path::Path;
use std::time::Duration;

use anyhow::ensure;
use corewalk_base::primitives::thread;
use corewalk_base::primitives::unmodelled::{AtomicBool, Ordering};

use super::process::answerer;
use super::{BASELINE, Linux, OURS, Ours, Queues};
use crate::crew::{self, Slice};
use crate::samples::{Params, Samples};
use crate::sems::process::cpu_of_each;
use crate::table::grid::Rounds;
use crate::table::wakeup::pin;
use crate::table::{Grid, Settings};

/// The value of the parameter `queue`.
pub(super) const QUEUE: &str = "blocked";
/// Bytes of a message.
const BYTES: usize = 64;
/// The queue of questions, and that of answers.
const ASKED: usize = 0;
const ANSWERED: usize = 1;
const KIND: u8 = 1;

/// Where the two are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cell {
    cpus: usize,
    is_in_processes: bool,
}

impl Cell {
    pub(super) fn params(self) -> Params {
        let workers = if self.is_in_processes { "processes" } else { "threads" };
        Params::from([
            ("threads", 2.into()),
            ("bytes", BYTES.into()),
            ("queue", QUEUE.into()),
            ("workers", workers.into()),
            ("cpus", self.cpus.into()),
        ])
    }
}

impl std::fmt::Display for Cell {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "blocked cpus={}", self.cpus)
    }
}

pub(super) fn cells(settings: &Settings) -> Vec<Cell> {
    let cpus = 1..=cpu_of_each().map_or(1, |cpus| cpus.len().min(2));
    let places = [false, true].into_iter().take(1 + usize::from(settings.program.is_some()));
    let of = |is_in_processes| cpus.clone().map(move |cpus| Cell { cpus, is_in_processes });
    places.flat_map(of).collect()
}

pub(super) fn run(
    rounds: &Rounds<'_>,
    grid: Grid,
    folder: &Path,
    samples: &mut Samples,
) -> anyhow::Result<()> {
    let all = cpu_of_each()?;
    let program = rounds.settings().program.as_deref();
    rounds.each(&grid, (&cells(rounds.settings()), 2), |visit| {
        let (cell, time) = (*visit.cell, grid.slice);
        let cpus = [all[0], all[cell.cpus - 1]];
        let program = program.filter(|_| cell.is_in_processes);
        let (name, slice) = match (visit.at, program) {
            (0, None) => (BASELINE, in_threads(&Linux::new(2)?, cpus, time)?),
            (_, None) => (OURS, in_threads(&Ours::new()?.with_queues(2)?, cpus, time)?),
            (0, Some(program)) => {
                let linux = Linux::new(2)?;
                let answers = answerer(program, None, &linux.ids(), cpus[1])?;
                let slice = ask(&linux, cpus[0], time);
                drop(answers);
                (BASELINE, slice)
            }
            (_, Some(program)) => {
                let file = folder.join(format!("blocked-{}-{}", visit.round, cell.cpus));
                let ours = Ours::open(&file)?.with_queues(2)?;
                let answers = answerer(program, Some(&file), &ours.ids(), cpus[1])?;
                let slice = ask(&ours, cpus[0], time);
                drop(answers);
                (OURS, slice)
            }
        };
        slice.add_to(samples, visit.round, name, &cell.params(), BASELINE)
    })
}

fn in_threads<Q: Queues>(queues: &Q, cpus: [usize; 2], time: Duration) -> anyhow::Result<Slice> {
    let is_over = AtomicBool::new(false);
    let (slice, is_well) = thread::scope(|scope| {
        let answers = scope.spawn(|| {
            pin(cpus[1]);
            answer(queues, || {
                // ORDERING: Relaxed. The message that was just received orders it.
                is_over.load(Ordering::Relaxed)
            })
        });
        let slice = ask(queues, cpus[0], time);
        // ORDERING: Relaxed. See above.
        is_over.store(true, Ordering::Relaxed);
        let mut message = queues.message(BYTES);
        let is_sent = queues.send(ASKED, KIND, 0, &mut message);
        (slice, is_sent && answers.join().expect("who answers does not panic"))
    });
    ensure!(is_well && queues.is_empty(ASKED) && queues.is_empty(ANSWERED), "an answer failed");
    Ok(slice)
}

fn ask<Q: Queues>(queues: &Q, cpu: usize, time: Duration) -> Slice {
    crew::run(1, time, |_, turn| {
        pin(cpu);
        let mut message = queues.message(BYTES);
        turn.run(|number| {
            queues.send(ASKED, KIND, number, &mut message)
                && queues.receive(ANSWERED, KIND, &mut message) == Some(number)
        })
    })
}

/// Answers each question with its number until `is_over` after one; returns false if a call fails.
pub(super) fn answer<Q: Queues>(queues: &Q, is_over: impl Fn() -> bool) -> bool {
    let mut message = queues.message(BYTES);
    loop {
        let Some(number) = queues.receive(ASKED, KIND, &mut message) else { return false };
        if is_over() {
            return true;
        }
        if !queues.send(ANSWERED, KIND, number, &mut message) {
            return false;
        }
    }
}
