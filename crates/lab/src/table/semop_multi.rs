//! Table `semop-multi`: workers add to semaphores and subtract again, as fast as they can.
//!
//! Source: document 002 (Bueso, March 2013), which ran Rik van Riel's semop-multi. Units: calls of
//! semop per second of wall time, all workers together, and nanoseconds of processor time per call.
//!
//! # What the document measured
//! 256 threads on 128 semaphores of one set, on 4 processors for 30 seconds: 5,048,409 operations
//! per second before the patches, and 9,105,213 after. The document does not include the program.
//! So the choice of the semaphore is a parameter here.
//!
//! # What is measured here
//! - `threads`: the number of workers.
//! - `workers`: `threads` of one process, or `processes`.
//! - `sems`: the number of semaphores of the set.
//! - `pattern`: `own`: each worker has its own semaphore, as far as there are enough. `random`: a
//!   random semaphore per call. `same`: all workers use one.
//! - `undo`: with or without `SEM_UNDO`.
//! - `ops`: the operations of a call: one, or two on two semaphores.
//!
//! - `linux`: semop(2) of the host kernel.
//! - `corewalk`: `corewalk-ipc`.
//! - `preload`: processes that call semop(2) under the library of `corewalk ipc exec`.
//! - `before-ipc-lock`: the kernel before document 002, in user space: one lock around lookup,
//!   checks and operations.
//! - `before-ipc-rcu`: document 002 in user space: lookup and checks in the read section, and one
//!   lock around the operations.
//!
//! Each worker is pinned to a processor, in turn. If there are more workers than processors, the
//! rate is that of all workers from the first start to the last end. Full runs measure 16 and 256
//! threads, whatever `--threads` is.
//!
//! # Claims
//! The claims with undo cover workers with their own semaphores. The claim about one semaphore
//! covers calls without undo. No claim covers two workers with undo on one semaphore. Their
//! recorded factors over the kernel are 3.57 for processes and 5.41 for threads.
//!
//! # Checks
//! Those of `sems::load`. The kernel's sets are in their own IPC namespace where the process has
//! the privilege.

use super::prelude::*;
use crate::before::sems::{IpcLock, IpcRcu, SemArrays};
use crate::sems::{Linux, Load, Ours, Sems, apart};
use crate::worker::{Place, Workers, of_sets};

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
/// The shares of the time per row: for most rows, and for those with many threads.
const SHARES_OF_TIME: [f64; 2] = [0.1, 0.3];

/// The cited time of gVisor's engine in nanoseconds per call, with one thread on 128 semaphores,
/// and the factor that is claimed over it.
const GVISOR_NS: f64 = 688.0;
const OVER_GVISOR_MIN: f64 = 15.0;

/// The table.
pub(super) const TABLE: Table = Table {
    name: "semop-multi",
    claims,
    sweeps,
    run: |run, samples| apart(|| measure(run, samples)),
};

fn claims(rows: &[Row]) -> Vec<Claim> {
    let least = |words: &str, least, is_meant: &dyn Fn(&Params) -> bool| {
        let words = format!("{words}, corewalk over linux");
        Claim::in_every_cell(&words, &rates(rows, BASELINE, is_meant), Bound::Least(least))
    };
    let is_one_or_own = |load: &Params| is(load, "threads", 1) || is(load, "pattern", "own");
    let is_undo = |load: &Params| is(load, "undo", "on") && is(load, "pattern", "own");
    let pattern =
        |pattern: &'static str| move |load: &Params| is_plain(load) && is(load, "pattern", pattern);
    let undo = |threads: usize| move |load: &Params| is_undo(load) && is(load, "threads", threads);
    let one = [
        ("threads", 1.into()),
        ("sems", SEMS[0].into()),
        ("pattern", "own".into()),
        ("undo", "off".into()),
        ("ops", 1.into()),
        ("workers", "threads".into()),
    ];
    let ns = shape::median(rows, OURS, "ns_per_op", &one);
    let gvisor = "one thread in this process, over the figure that is cited for gVisor's engine";
    vec![
        least("one thread, or own semaphores", 10.0, &|load| is_plain(load) && is_one_or_own(load)),
        least("random semaphores", 5.0, &pattern("random")),
        least("all on one semaphore", 2.0, &pattern("same")),
        least("own semaphores with undo, one worker", 8.0, &undo(1)),
        least("own semaphores with undo, two workers", 6.0, &undo(2)),
        least("two operations as one", 3.0, &|load| is(load, "ops", 2)),
        least("any row", 1.0, &|_| true),
        Claim::at_least(gvisor, ns.map(|ns| GVISOR_NS / ns), OVER_GVISOR_MIN),
    ]
}

fn sweeps(settings: &Settings) -> Vec<Sweep> {
    let [share, share_of_crowds] = SHARES_OF_TIME;
    let crowds = loads(sized(settings.size, CROWDS), (&["own"], SEMS[0], "off", 1), "threads");
    let mut sweeps = vec![
        Sweep::new(all_loads(settings, "threads"), (VARIANTS, BASELINE), share),
        Sweep::new(crowds, (VARIANTS, BASELINE), share_of_crowds),
    ];
    if settings.program.is_some() {
        let cells = all_loads(settings, "processes");
        sweeps.push(Sweep::new(cells, (PROCESSES.len(), BASELINE), share));
    }
    sweeps
}

/// Returns the cells of one kind of load.
fn loads(
    threads: &[usize],
    (patterns, sems, undo, ops): (&[&str], u16, &str, usize),
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

/// Returns all loads except those of many threads. Loads with undo or two operations have at most
/// two threads.
fn all_loads(settings: &Settings, workers: &str) -> Vec<Cell> {
    let few: Vec<usize> = settings.threads.iter().copied().filter(|n| *n <= 2).collect();
    let ([many, one], all) = (SEMS, &settings.threads);
    [
        loads(all, (&["own", "random"], many, "off", 1), workers),
        loads(all, (&["same"], one, "off", 1), workers),
        loads(&few, (&["own", "random"], many, "on", 1), workers),
        loads(&few, (&["same"], one, "on", 1), workers),
        loads(&few, (&["own", "random", "same"], many, "off", 2), workers),
    ]
    .concat()
}

fn measure(run: &Run<'_>, samples: &mut Samples) -> anyhow::Result<()> {
    let (linux, ours) = (made(Linux::default())?, made(Ours::new(1)?)?);
    let (lock, rcu) = (made(SemArrays::<IpcLock>::new(1))?, made(SemArrays::<IpcRcu>::new(1))?);
    for (sweep, is_crowd) in run.sweeps.iter().zip([false, true]) {
        let variants = [
            in_threads(&linux, is_crowd),
            in_threads(&ours, is_crowd),
            in_threads(&lock, is_crowd),
            in_threads(&rcu, is_crowd),
        ];
        run.measure(sweep, &variants, samples)?;
    }
    processes(run, samples)?;
    samples.add_scaling(|_, params| {
        is_plain(params) && is(params, "sems", SEMS[0]) && is(params, "workers", "threads")
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
    let (linux, ours) = (made(Linux::default())?, made(Ours::open(&file)?)?);
    let behind_library = made(Ours::open(&preloaded)?)?;
    let most = run.settings.threads_max();
    let start = |place, ids: &[i32]| Workers::start(program, place, most, |_| of_sets(ids, &SEMS));
    let workers = [
        start(Place::Host, &linux.ids())?,
        start(Place::Namespace(&file), &ours.ids())?,
        start(Place::Preload(&preloaded), &behind_library.ids())?,
    ];
    let variants = [
        (PROCESSES[0], in_processes(&linux, &workers[0])),
        (PROCESSES[1], in_processes(&ours, &workers[1])),
        (PROCESSES[2], in_processes(&behind_library, &workers[2])),
    ];
    run.measure(sweep, &variants, samples)
}

fn made<S: Sems>(mut sems: S) -> anyhow::Result<S> {
    SEMS.into_iter().try_for_each(|count| sems.make(count))?;
    Ok(sems)
}

/// Returns a variant in threads of this process. With more threads than processors the rate is that
/// over the whole span.
fn in_threads<S: Sems>(sems: &S, is_crowd: bool) -> (&str, Measure<'_>) {
    let measure = move |cell: &Cell, time: Duration| {
        let slice = Load::of(cell).run(sems, set_of(cell), time)?;
        Ok(if is_crowd { slice.over_span() } else { slice })
    };
    (sems.variant(), Box::new(measure))
}

/// Returns the measurement in processes, whose sets are those of `sems`.
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

fn is<V: Into<serde_json::Value>>(params: &Params, key: &str, value: V) -> bool {
    params.get(key) == Some(&value.into())
}

/// Returns true for loads of one operation without undo.
fn is_plain(params: &Params) -> bool {
    is(params, "ops", 1) && is(params, "undo", "off")
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
        let variants = ["linux", "corewalk", "before-ipc-lock", "before-ipc-rcu"];
        let rows = quick::check(&TABLE, &variants, &quick::params(&cells));
        let claims: Vec<String> = claims(&rows).iter().map(Claim::to_string).collect();
        assert!(claims.iter().all(|claim| claim.contains("held (x")), "{claims:?}");
        assert!(super::claims(&[])[0].to_string().ends_with("not measured"));
    }
}
