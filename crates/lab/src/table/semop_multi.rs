//! Benchmark table `semop-multi`: workers add to semaphores and subtract again, without a pause.
//!
//! Source: Bueso's patches of March 2013 (document 002 in `documents.md`), for which he ran Rik van
//! Riel's semop-multi. Units: calls of semop per second of wall time, all workers together, and
//! nanoseconds of processor time per call.
//!
//! # What the document measured
//! Bueso measured 256 threads on 128 semaphores of one set, on 4 processors for 30 seconds. They
//! made 5,048,409 operations per second before the patches, and 9,105,213 after. The source of the
//! program is not known, nor which semaphores its threads used. Here `pattern` selects them.
//!
//! # What is measured here
//! - `threads`: the number of workers.
//! - `workers`: `threads` of one process, or `processes`.
//! - `sems`: the number of semaphores of the set.
//! - `pattern`: with `own` each worker has its own semaphore, if there are enough. With `random`
//!   each call uses a random one. With `same` all workers use one.
//! - `undo`: with or without `SEM_UNDO`.
//! - `ops`: the number of operations in one call of semop: 1, or 2 on different semaphores.
//!
//! The variants:
//! - `linux`: semop(2) of the host kernel.
//! - `corewalk`: `corewalk-ipc`.
//! - `preload`: processes that call semop(2) under the library of `corewalk ipc exec`.
//!
//! The workers are pinned, spread over the processors. With more workers than processors, the rate
//! is the number of all calls over the time from the first start to the last end. Full runs always
//! measure 16 and 256 threads too.
//!
//! # Claims
//! No claim covers workers that share a semaphore and also use `SEM_UNDO`.
//!
//! # Checks
//! Every call must succeed. At the end each worker adds one to its own semaphore, and each value
//! must be the number of its workers (`sems::load`). The kernel's sets are in an IPC namespace of
//! their own, if the process may make one.

use super::prelude::*;
use crate::sems::{Linux, Load, Ours, Sems, made};
use crate::worker::{Objects, Place, Workers};

/// The baseline, with which all other variants are compared.
const BASELINE: &str = "linux";
/// Number of variants with threads. `PROCESSES` are the variants with processes.
const VARIANTS: usize = 2;
const PROCESSES: [&str; 3] = [BASELINE, "corewalk", "preload"];
/// Semaphores of the two sets of each variant.
const SEMS: [u16; 2] = [128, 1];
/// Numbers of threads that exceed the number of processors.
const CROWDS: (&[usize], &[usize]) = (&[16], &[16, 256]);
/// The measuring time of a set of parameters, as a fraction of the usual one: for most sets, and
/// for those with many threads.
const SHARES_OF_TIME: [f64; 2] = [0.1, 0.3];

/// The table.
pub(super) const TABLE: Table = Table { name: "semop-multi", sweeps, run };

fn sweeps(settings: &Settings) -> Vec<Sweep> {
    let [share, share_of_crowds] = SHARES_OF_TIME;
    let crowds = loads(sized(settings.size, CROWDS), &["own"], SEMS[0], "off", 1, "threads");
    let mut sweeps = vec![
        Sweep::new(all_loads(settings, "threads"), VARIANTS, BASELINE, share),
        Sweep::new(crowds, VARIANTS, BASELINE, share_of_crowds),
    ];
    if settings.program.is_some() {
        let cells = all_loads(settings, "processes");
        sweeps.push(Sweep::new(cells, PROCESSES.len(), BASELINE, share));
    }
    sweeps
}

/// Returns the cells of one kind of load.
fn loads(
    threads: &[usize],
    patterns: &[&str],
    sems: u16,
    undo: &str,
    ops: usize,
    workers: &str,
) -> Vec<Cell> {
    cells(&[
        ("threads", values(threads)),
        ("pattern", values(patterns)),
        ("sems", values(&[sems])),
        ("undo", values(&[undo])),
        ("ops", values(&[ops])),
        ("workers", values(&[workers])),
    ])
}

/// Returns all sets of parameters without those of `CROWDS`, which have more threads than
/// processors. Sets with `SEM_UNDO`, or with two operations per call, are only for at most two
/// threads.
fn all_loads(settings: &Settings, workers: &str) -> Vec<Cell> {
    let few: Vec<usize> = settings.threads.iter().copied().filter(|n| *n <= 2).collect();
    let ([many, one], all) = (SEMS, &settings.threads);
    [
        loads(all, &["own", "random"], many, "off", 1, workers),
        loads(all, &["same"], one, "off", 1, workers),
        loads(&few, &["own", "random"], many, "on", 1, workers),
        loads(&few, &["same"], one, "on", 1, workers),
        loads(&few, &["own", "random", "same"], many, "off", 2, workers),
    ]
    .concat()
}

fn run(run: &Run<'_>, samples: &mut Samples) -> anyhow::Result<()> {
    let (linux, ours) = (made(Linux::default(), &SEMS)?, made(Ours::new(1)?, &SEMS)?);
    for (sweep, is_crowd) in run.sweeps.iter().zip([false, true]) {
        let variants = [in_threads(&linux, is_crowd), in_threads(&ours, is_crowd)];
        run.measure(sweep, &variants, samples)?;
    }
    processes(run, samples)?;
    let is_meant: [(_, Value); 3] =
        [("ops", 1.into()), ("undo", "off".into()), ("sems", SEMS[0].into())];
    samples.add_scaling(|_, params| {
        params["workers"] == "threads" && is_meant.iter().all(|(key, value)| params[key] == *value)
    });
    Ok(())
}

/// Measures the loads in processes.
fn processes(run: &Run<'_>, samples: &mut Samples) -> anyhow::Result<()> {
    let (Some(program), Some(sweep)) = (&run.settings.program, run.sweeps.get(2)) else {
        return Ok(());
    };
    let folder = Scratch::in_memory(run.table)?;
    let [file, preloaded] = ["namespace", "preloaded"].map(|name| folder.path().join(name));
    let (linux, ours) = (made(Linux::default(), &SEMS)?, made(Ours::open(&file)?, &SEMS)?);
    let behind_library = made(Ours::open(&preloaded)?, &SEMS)?;
    let most = run.settings.threads_max();
    let start = |place, ids: Vec<i32>| {
        let sets: Vec<_> = ids.into_iter().zip(SEMS).collect();
        Workers::start(program, place, most, |_| Objects::Sets(sets.clone()))
    };
    let workers = [
        start(Place::Host, linux.ids())?,
        start(Place::Namespace(&file), ours.ids())?,
        start(Place::Preload(&preloaded), behind_library.ids())?,
    ];
    let variants = [
        (PROCESSES[0], in_processes(&linux, &workers[0])),
        (PROCESSES[1], in_processes(&ours, &workers[1])),
        (PROCESSES[2], in_processes(&behind_library, &workers[2])),
    ];
    run.measure(sweep, &variants, samples)
}

/// Returns a variant that runs in threads of this process. `is_crowd` is true if there are more
/// threads than processors. Then the rate is the number of all calls over the time from the first
/// start to the last end.
fn in_threads<S: Sems>(sems: &S, is_crowd: bool) -> (&str, Measure<'_>) {
    let measure = move |cell: &Cell, time: Duration| {
        let slice = Load::of(cell).run(sems, set_of(cell), time)?;
        Ok(if is_crowd { slice.over_span() } else { slice })
    };
    (sems.variant(), Box::new(measure))
}

/// Returns the function that measures a variant with processes. It uses the sets of `sems`.
fn in_processes<'a, S: Sems>(sems: &'a S, workers: &'a Workers) -> Measure<'a> {
    Box::new(move |cell, time| {
        let slice = workers.run(cell, time)?;
        Load::of(cell).end(sems, set_of(cell))?;
        Ok(slice)
    })
}

/// Returns the set of a load.
fn set_of(cell: &Cell) -> usize {
    usize::from(cell.number("sems") != usize::from(SEMS[0]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::quick;

    #[test]
    fn quick_run_has_every_load_of_every_variant_and_the_claims() {
        let sweeps = sweeps(&quick::settings());
        let cells = [&sweeps[0].cells[..], &sweeps[1].cells].concat();
        assert_eq!(cells.len(), 2 * 9 + 1);
        let rows = quick::check(&TABLE, &["linux", "corewalk"], &quick::params(&cells));
        let claims = quick::claims(&TABLE, &rows);
        assert!(claims.iter().all(|claim| claim.contains("held (x")), "{claims:?}");
        assert!(TABLE.claims(&[])[0].to_string().ends_with("not measured"));
    }
}
