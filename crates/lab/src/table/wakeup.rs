//! Table `wakeup`: round trips between two that wait for each other at semaphores.
//!
//! Source: the waits that semop-multi of document 002 leaves out; lmbench's `lat_sem` for the shape. Units:
//! round trips per second of wall time, and nanoseconds of processor time per round trip of the one who
//! asks. A round trip is two operations and two waits on either side.
//!
//! | parameter | meaning |
//! |---|---|
//! | `cpus` | both on one processor, or on two |
//! | `workers` | `threads` of one process, or `processes` |
//! | `waiters` | threads that wait at the first semaphore and answer in turn: 1, or a crowd |
//!
//! `corewalk` looks for its turn for at most 20 us before it sleeps, as is the default of
//! `NamespaceOptions::spin_ns_max`; `corewalk-sleeps` sleeps at once, both of the two.
//!
//! # Claim
//! Who has to be woken is woken by the kernel in any case: a wait that is really waited is to take at
//! most 1.05 of the time that it takes with the host kernel's semaphores. The claim is about the default; what
//! it is where both sleep at once stands beside it.
//!
//! With a crowd of waiters a round trip is to take no longer than with the kernel: a wake-up of one waiter must not
//! cost more where others wait.
//!
//! # Checks
//! Every call succeeds, and both semaphores are zero at the end.

use std::fmt::{self, Display};
use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;
use corewalk_base::primitives::thread;
use corewalk_base::primitives::unmodelled::{AtomicBool, Ordering};
use corewalk_ipc::{SemBuf, SemFlags};
use rustix::thread::{CpuSet, sched_setaffinity};

use super::grid::Rounds;
use super::{Claim, Grid, Plot, Settings, Table, Text, shape, sized};
use crate::crew::{self, Slice};
use crate::peer::Scratch;
use crate::samples::{Params, Row, Samples};
use crate::sems::process::Place::{Host, Namespace, Sleeping};
use crate::sems::{Linux, Ours, Sems, apart, check, process};

/// The variant that all are compared with.
const BASELINE: &str = "linux";
const OURS: &str = "corewalk";
/// The same where a call that has to wait sleeps at once.
const SLEEPS: &str = "corewalk-sleeps";
const VARIANTS: usize = 3;
/// The share of the time per row.
const SHARE_OF_TIME: f64 = 0.8;
/// What a round trip may take of the host kernel's time.
const MOST: f64 = 1.05;
/// The same where many wait.
const MOST_OF_CROWD: f64 = 1.0;
/// Threads that wait at one semaphore.
const CROWDS: (&[usize], &[usize]) = (&[8], &[8, 100, 400]);

/// The table.
pub(super) struct Wakeup;

/// Where the two are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Cell {
    cpus: usize,
    is_in_processes: bool,
    waiters: usize,
}

impl Table for Wakeup {
    fn text(&self) -> &'static Text {
        &Text {
            name: "wakeup",
            source: "the waits that document 002's semop-multi leaves out, after lmbench's lat_sem",
            about: "round trips of two that wait for each other at semaphores, on one processor and on two",
            claim: "A wait that is really waited takes no longer than with the host kernel's semaphores.",
            plot: Plot {
                x: "cpus",
                metric: "ns_per_op",
                at: &[("workers", "threads")],
                headline: "1",
            },
        }
    }

    fn claims(&self, rows: &[Row]) -> Vec<Claim> {
        let all = [Cell::in_threads as fn(usize) -> Cell, Cell::in_processes];
        let claim = |cell: Cell| {
            let params: Vec<_> = cell.params().into_iter().collect();
            let time = |variant| {
                let ratio = shape::ratio(rows, variant, "ops_per_s", &params);
                ratio.map(|ratio| 1.0 / ratio)
            };
            let most = if cell.waiters == 1 { MOST } else { MOST_OF_CROWD };
            let (ours, sleeps) = (time(OURS), shape::times(time(SLEEPS)));
            let words = format!("the time of a round trip over linux, {cell}, at most x{most}");
            let figure = format!("{}; {sleeps} asleep at once", shape::times(ours));
            Claim::of(words, ours.map(|ours| ours <= most), figure)
        };
        let crowds =
            CROWDS.1.iter().flat_map(|waiters| [1, 2].map(|cpus| Cell::of_crowd(cpus, *waiters)));
        all.into_iter().flat_map(|of| [1, 2].map(of)).chain(crowds).map(claim).collect()
    }

    fn grids(&self, settings: &Settings) -> Vec<Grid> {
        vec![Grid::new(settings, cells(settings).len(), VARIANTS, SHARE_OF_TIME)]
    }

    fn run(&self, settings: &Settings) -> anyhow::Result<Samples> {
        apart(|| run(self, settings))
    }
}

fn run(table: &Wakeup, settings: &Settings) -> anyhow::Result<Samples> {
    let rounds = Rounds::begin(table.name(), settings)?;
    let grid = table.grids(settings)[0];
    let mut samples = Samples::default();
    let cpus = process::cpu_of_each()?;
    let folder = process::folder("wakeup")?;
    rounds.each(&grid, (&cells(settings), VARIANTS), |visit| {
        let Some(two) = visit.cell.cpus.checked_sub(1).and_then(|other| cpus.get(other)) else {
            return Ok(());
        };
        let place = Place { cpus: [cpus[0], *two], program: settings.program.as_deref() };
        let slice = match (visit.at, visit.cell.is_in_processes) {
            (0, _) => place.measure(Linux::default(), visit.cell, grid.slice, Host)?,
            (1, false) => place.measure(Ours::new(2)?, visit.cell, grid.slice, Host)?,
            (_, false) => place.measure(Ours::sleeping(2)?, visit.cell, grid.slice, Host)?,
            (at, true) => {
                let file = folder.path().join(format!("namespace-{}-{two}-{at}", visit.round));
                let (ours, of) = match at {
                    1 => (Ours::open(&file)?, Namespace(&file)),
                    _ => (Ours::open_sleeping(&file)?, Sleeping(&file)),
                };
                place.measure(ours, visit.cell, grid.slice, of)?
            }
        };
        let name = [BASELINE, OURS, SLEEPS][visit.at];
        slice.add_to(&mut samples, visit.round, name, &visit.cell.params(), BASELINE)
    })?;
    drop::<Scratch>(folder);
    Ok(samples)
}

/// Where a slice runs.
struct Place<'a> {
    cpus: [usize; 2],
    program: Option<&'a Path>,
}

impl Place<'_> {
    /// Asks for `time`, with somebody else who answers; a process takes the semaphores `of` whom is said.
    fn measure<S: Sems>(
        &self,
        mut sems: S,
        cell: &Cell,
        time: Duration,
        of: process::Place<'_>,
    ) -> anyhow::Result<Slice> {
        sems.make(2)?;
        let slice = if cell.is_in_processes {
            let program = self.program.context("this run cannot start the lab again")?;
            let answerer = process::answerer(program, of, sems.ids()[0], self.cpus[1])?;
            let slice = self.ask(&sems, time);
            drop(answerer);
            slice
        } else {
            self.in_threads(&sems, cell.waiters, time)
        };
        check(&sems, 0, |_| 0)?;
        Ok(slice)
    }

    fn in_threads<S: Sems>(&self, sems: &S, waiters: usize, time: Duration) -> Slice {
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            let answers = || {
                pin(self.cpus[1]);
                let user = sems.users() - 1;
                answer(sems, user, || {
                    // ORDERING: Relaxed. The semaphore that was just taken orders it.
                    is_over.load(Ordering::Relaxed)
                })
            };
            let answers: Vec<_> = (0..waiters).map(|_| scope.spawn(answers)).collect();
            let slice = self.ask(sems, time);
            // ORDERING: Relaxed. See above.
            is_over.store(true, Ordering::Relaxed);
            for _ in &answers {
                assert!(sems.op(0, 0, [SemBuf::new(0, 1, SemFlags::empty())]), "the last word");
            }
            for answers in answers {
                assert!(answers.join().expect("who answers does not panic"), "an answer failed");
            }
            slice
        })
    }

    fn ask<S: Sems>(&self, sems: &S, time: Duration) -> Slice {
        crew::run(1, time, |_, turn| {
            pin(self.cpus[0]);
            turn.run(|_| {
                sems.op(0, 0, [SemBuf::new(0, 1, SemFlags::empty())])
                    && sems.op(0, 0, [SemBuf::new(1, -1, SemFlags::empty())])
            })
        })
    }
}

/// Answers each question until `is_over` after one; returns false if a call fails.
pub(crate) fn answer<S: Sems>(sems: &S, user: usize, is_over: impl Fn() -> bool) -> bool {
    loop {
        if !sems.op(user, 0, [SemBuf::new(0, -1, SemFlags::empty())]) {
            return false;
        }
        if is_over() {
            return true;
        }
        if !sems.op(user, 0, [SemBuf::new(1, 1, SemFlags::empty())]) {
            return false;
        }
    }
}

impl Cell {
    fn in_threads(cpus: usize) -> Cell {
        Cell { cpus, is_in_processes: false, waiters: 1 }
    }

    fn in_processes(cpus: usize) -> Cell {
        Cell { cpus, is_in_processes: true, waiters: 1 }
    }

    fn of_crowd(cpus: usize, waiters: usize) -> Cell {
        Cell { waiters, ..Cell::in_threads(cpus) }
    }

    fn params(&self) -> Params {
        let workers = if self.is_in_processes { "processes" } else { "threads" };
        let (cpus, waiters) = (self.cpus.into(), self.waiters.into());
        Params::from([("cpus", cpus), ("workers", workers.into()), ("waiters", waiters)])
    }
}

impl Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let workers = if self.is_in_processes { "processes" } else { "threads" };
        match self.waiters {
            1 => write!(f, "two {workers}, cpus={}", self.cpus),
            crowd => write!(f, "{crowd} waiting {workers}, cpus={}", self.cpus),
        }
    }
}

fn cells(settings: &Settings) -> Vec<Cell> {
    let mut cells: Vec<Cell> = [1, 2].map(Cell::in_threads).into();
    let crowds = sized(settings.size, CROWDS).iter();
    cells.extend(crowds.flat_map(|waiters| [1, 2].map(|cpus| Cell::of_crowd(cpus, *waiters))));
    if settings.program.is_some() {
        cells.extend([1, 2].map(Cell::in_processes));
    }
    cells
}

pub(super) fn pin(cpu: usize) {
    let mut one = CpuSet::new();
    one.set(cpu);
    // A processor that has gone meanwhile is the scheduler's matter.
    let _ = sched_setaffinity(None, &one);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::quick;

    #[test]
    fn quick_run_has_round_trips_on_one_processor_and_on_two() {
        let cpus = process::cpu_of_each().unwrap().len().min(2);
        let cells: Vec<Vec<_>> = cells(&quick::settings())
            .into_iter()
            .filter(|cell| cell.cpus <= cpus)
            .map(|cell| cell.params().into_iter().collect())
            .collect();
        let rows = quick::check(&Wakeup, &[BASELINE, OURS, SLEEPS], &cells);
        let claims = Wakeup.claims(&rows);
        assert_eq!(claims.len(), 4 + 2 * CROWDS.1.len());
        assert!(claims[0].to_string().contains("held (x"), "{}", claims[0]);
        assert!(claims[3].to_string().ends_with("not measured"), "{}", claims[3]);
    }
}
