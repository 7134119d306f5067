//! Table `semop-multi`: threads that add to semaphores and take that back, as fast as they can.
//!
//! Source: document 002 (Bueso, March 2013), which re-ran Rik van Riel's semop-multi. Units: calls
//! of semop per second of wall time, all workers together, and nanoseconds of processor time per
//! call.
//!
//! # What the document measured
//! 256 threads on 128 semaphores of one set, 4 processors, 30 seconds: 5,048,409 operations per
//! second before, 9,105,213 after ([`published`]). The program itself is not in the document; which
//! semaphore a thread takes, and when, is a parameter here.
//!
//! # What is measured here
//! - `threads`: workers.
//! - `workers`: `threads` of one process, or `processes`.
//! - `sems`: semaphores of the set.
//! - `pattern`: `own`: each worker its own, as far as there are enough; `random`: another one each
//!   time; `same`: all one.
//! - `undo`: with `SEM_UNDO` or without.
//! - `ops`: operations of a call: one, or two on two semaphores as one.
//!
//! - `linux`: semop(2) of the host kernel.
//! - `corewalk`: `corewalk-ipc`.
//! - `preload`: processes that call as `linux` does, under the library of `corewalk ipc exec`.
//! - `before-ipc-lock`: the kernel's design before document 002, in user space: one lock over
//!   lookup, checks and operations.
//! - `before-ipc-rcu`: document 002's: lookup and checks in the read section, one lock over the
//!   operations.
//!
//! Workers run on a processor each, going round. With more workers than processors a rate is the
//! work of all from the first start to the last end. Full runs measure 16 and 256 threads whatever
//! `--threads` says.
//!
//! # Claims
//! Claims with undo are about workers with their own semaphores, and the claim of one semaphore is
//! about calls without undo. No claim covers two workers with undo on one semaphore: recorded are
//! 3.57 times the kernel's rate for processes, and 5.41 for threads.
//!
//! # Checks
//! Those of `sems::load`. The kernel's sets are in their own namespace where possible.

mod published;

use std::time::Duration;

use super::grid::Rounds;
use super::{Claim, Grid, Plot, Published, Settings, Table, Text, shape, sized};
use crate::before::sems::{IpcLock, IpcRcu, SemArrays};
use crate::crew::Slice;
use crate::samples::{Params, Row, Samples};
use crate::sems::{Linux, Load, Ours, Pattern, Sems, apart};
use crate::text::with_names;
use crate::worker::{self, Place, Workers, of_sets};

/// The variant that all are compared with.
const BASELINE: &str = "linux";
const OURS: &str = "corewalk";
/// The variants in threads, and those in processes.
const VARIANTS: usize = 4;
const PROCESSES: [&str; 3] = [BASELINE, OURS, "preload"];
/// Semaphores of the two sets of each variant.
const SEMS: [u16; 2] = [128, 1];
/// More threads than there are processors.
const CROWDS: (&[usize], &[usize]) = (&[16], &[16, 256]);
/// The share of the time per row, for most rows and for those of many threads.
const SHARES_OF_TIME: [f64; 2] = [0.1, 0.3];

/// The table.
pub(super) struct SemopMulti;

/// Does one slice.
type Measure<'a> = Box<dyn Fn(&Load, Duration) -> anyhow::Result<Slice> + 'a>;

impl Table for SemopMulti {
    fn text(&self) -> &'static Text {
        &Text {
            name: "semop-multi",
            source: "semop-multi (Rik van Riel) as document 002 uses it (Bueso, March 2013), scaled",
            about: "workers that add to semaphores and take that back: own, random, the same, with undo, two at once",
            claim: "A semop that nobody else is concerned with takes a tenth of what the host kernel takes for it.",
            plot: Plot {
                x: "threads",
                metric: "ops_per_s",
                at: &[
                    ("pattern", "own"),
                    ("sems", "128"),
                    ("undo", "off"),
                    ("ops", "1"),
                    ("workers", "threads"),
                ],
                headline: "1",
            },
        }
    }

    fn published(&self) -> Option<Published> {
        Some(published::curves())
    }

    fn footer(&self, rows: &[Row]) -> String {
        published::footer(rows)
    }

    fn claims(&self, rows: &[Row]) -> Vec<Claim> {
        let mut claims = vec![
            least(rows, "one thread, or own semaphores", 10.0, |load| {
                is_plain(load) && (is(load, "threads", 1) || is(load, "pattern", "own"))
            }),
            least(rows, "random semaphores", 5.0, |load| {
                is_plain(load) && is(load, "pattern", "random")
            }),
            least(rows, "all on one semaphore", 2.0, |load| {
                is_plain(load) && is(load, "pattern", "same")
            }),
            least(rows, "own semaphores with undo, one worker", 8.0, |load| {
                is_own_undo(load) && is(load, "threads", 1)
            }),
            least(rows, "own semaphores with undo, two workers", 6.0, |load| {
                is_own_undo(load) && is(load, "threads", 2)
            }),
            least(rows, "two operations as one", 3.0, |load| is(load, "ops", 2)),
            least(rows, "any row", 1.0, |_| true),
        ];
        claims.push(published::over_gvisor(rows));
        claims
    }

    fn grids(&self, settings: &Settings) -> Vec<Grid> {
        let [share, share_of_crowds] = SHARES_OF_TIME;
        let loads = loads(settings).len();
        vec![
            Grid::new(settings, loads, VARIANTS, share),
            Grid::new(settings, crowds(settings).len(), VARIANTS, share_of_crowds),
            Grid::new(settings, loads, PROCESSES.len(), share),
        ]
    }

    fn run(&self, settings: &Settings) -> anyhow::Result<Samples> {
        apart(|| run(self, settings))
    }
}

fn run(table: &SemopMulti, settings: &Settings) -> anyhow::Result<Samples> {
    let rounds = Rounds::begin(table.name(), settings)?;
    let mut samples = Samples::default();
    let (linux, ours) = (made(Linux::default())?, made(Ours::new(1)?)?);
    let before = (made(SemArrays::<IpcLock>::new(1))?, made(SemArrays::<IpcRcu>::new(1))?);
    let variants: [(&str, Measure<'_>); VARIANTS] =
        [measure(&linux), measure(&ours), measure(&before.0), measure(&before.1)];
    let loads = [loads(settings), crowds(settings)];
    for ((loads, grid), is_crowd) in loads.iter().zip(table.grids(settings)).zip([false, true]) {
        rounds.each(&grid, (loads, VARIANTS), |visit| {
            let (name, measure) = &variants[visit.at];
            let params = visit.cell.params("threads");
            // A system call without semaphores is the same whatever is asked for.
            let slice = measure(visit.cell, grid.slice)?;
            let slice = if is_crowd { slice.over_span() } else { slice };
            slice.add_to(&mut samples, visit.round, name, &params, BASELINE)
        })?;
    }
    processes(&rounds, table.grids(settings)[2], &mut samples)?;
    samples.add_scaling(|_, params| {
        is_plain(params) && is(params, "sems", SEMS[0]) && is(params, "workers", "threads")
    });
    Ok(samples)
}

/// Measures every load in processes.
fn processes(rounds: &Rounds<'_>, grid: Grid, samples: &mut Samples) -> anyhow::Result<()> {
    let settings = rounds.settings();
    let (Some(program), loads) = (&settings.program, loads(settings)) else { return Ok(()) };
    let most = settings.threads_max();
    let folder = worker::folder("semop-multi")?;
    let [file, preloaded] = ["namespace", "preloaded"].map(|name| folder.path().join(name));
    let start = |place, ids: &[i32]| Workers::start(program, place, most, |_| of_sets(ids, &SEMS));
    let (linux, ours) = (made(Linux::default())?, made(Ours::open(&file)?)?);
    let behind_library = made(Ours::open(&preloaded)?)?;
    let mut workers = [
        start(Place::Host, &linux.ids())?,
        start(Place::Namespace(&file), &ours.ids())?,
        start(Place::Preload(&preloaded), &behind_library.ids())?,
    ];
    rounds.each(&grid, (&loads, PROCESSES.len()), |visit| {
        let (load, set) = (visit.cell, set_of(visit.cell));
        let slice = workers[visit.at].run(&load.line(grid.slice), load.threads)?;
        match visit.at {
            0 => load.end(&linux, set)?,
            1 => load.end(&ours, set)?,
            _ => load.end(&behind_library, set)?,
        }
        let name = PROCESSES[visit.at];
        slice.add_to(samples, visit.round, name, &load.params("processes"), BASELINE)
    })
}

/// Makes the sets of a variant.
fn made<S: Sems>(mut sems: S) -> anyhow::Result<S> {
    SEMS.into_iter().try_for_each(|count| sems.make(count))?;
    Ok(sems)
}

fn measure<S: Sems>(sems: &S) -> (&str, Measure<'_>) {
    (sems.variant(), Box::new(|load, time| load.run(sems, set_of(load), time)))
}

/// Returns the number of the set that has so many semaphores.
fn set_of(load: &Load) -> usize {
    usize::from(load.sems != SEMS[0])
}

/// Returns what is asked of as many threads as `--threads` says.
fn loads(settings: &Settings) -> Vec<Load> {
    let mut loads = vec![];
    for &threads in &settings.threads {
        let load = |pattern, has_undo, ops| {
            let sems = SEMS[usize::from(pattern == Pattern::Same && ops == 1)];
            Load { threads, sems, pattern, has_undo, ops }
        };
        loads.extend(Pattern::ALL.map(|pattern| load(pattern, false, 1)));
        // Threads that only take turns are left out of the more expensive loads.
        if threads <= 2 {
            loads.extend(Pattern::ALL.map(|pattern| load(pattern, true, 1)));
            loads.extend(Pattern::ALL.map(|pattern| load(pattern, false, 2)));
        }
    }
    loads
}

/// Returns what is asked of many threads.
fn crowds(settings: &Settings) -> Vec<Load> {
    let load = |&threads: &usize| {
        let (sems, pattern) = (SEMS[0], Pattern::Own);
        Load { threads, sems, pattern, has_undo: false, ops: 1 }
    };
    sized(settings.size, CROWDS).iter().map(load).collect()
}

fn is<V: Into<serde_json::Value>>(params: &Params, key: &str, value: V) -> bool {
    params.get(key) == Some(&value.into())
}

/// Returns true for one operation without undo.
fn is_plain(params: &Params) -> bool {
    is(params, "ops", 1) && is(params, "undo", "off")
}

fn is_own_undo(params: &Params) -> bool {
    is(params, "undo", "on") && is(params, "pattern", "own")
}

/// Returns the claim that the rates of corewalk are at least `least` times those of the host
/// kernel, wherever `is_meant`. The worst is named.
fn least(rows: &[Row], words: &str, least: f64, is_meant: impl Fn(&Params) -> bool) -> Claim {
    let ours = rows.iter().filter(|row| row.variant == OURS && row.metric == "ops_per_s");
    let meant: Vec<(f64, &Row)> = ours
        .filter(|row| row.baseline == BASELINE && is_meant(&row.params))
        .filter_map(|row| Some((row.ratio?, row)))
        .collect();
    let words = format!("{words}, corewalk over linux, at least x{least}");
    let held = meant.iter().filter(|(ratio, _)| *ratio >= least).count();
    let worst = meant.iter().min_by(|one, other| one.0.total_cmp(&other.0));
    let figure = worst.map_or_else(String::new, |(ratio, row)| {
        let place = with_names(&row.params);
        format!(
            "{}, the worst, at {place}; {held} of {} cells",
            shape::times(Some(*ratio)),
            meant.len()
        )
    });
    Claim::of(words, worst.map(|_| held == meant.len()), figure)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::quick;

    #[test]
    fn quick_run_has_every_load_of_every_variant_and_the_claims() {
        let settings = quick::settings();
        let cells: Vec<Vec<_>> = loads(&settings)
            .into_iter()
            .chain(crowds(&settings))
            .map(|load| load.params("threads").into_iter().collect())
            .collect();
        assert_eq!(cells.len(), 2 * 9 + 1);
        let variants = ["linux", "corewalk", "before-ipc-lock", "before-ipc-rcu"];
        let rows = quick::check(&SemopMulti, &variants, &cells);
        let claims: Vec<String> = SemopMulti.claims(&rows).iter().map(Claim::to_string).collect();
        assert!(claims.iter().all(|claim| claim.contains("held (x")), "{claims:?}");
        assert!(SemopMulti.claims(&[])[0].to_string().ends_with("not measured"));
    }
}
