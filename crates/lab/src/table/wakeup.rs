//! Benchmark table `wakeup`: round trips of two sides that wait for each other at semaphores.
//!
//! Source: lmbench's `lat_sem`, which measures calls of semop(2) that block, unlike the program
//! semop-multi of the table `semop-multi`. Units: round trips per second of wall time, and
//! nanoseconds of processor time per round trip, on the side that begins it.
//!
//! In a round trip each side adds to one semaphore, and waits once at the other one (`pingpong`).
//!
//! | parameter | meaning |
//! |---|---|
//! | `cpus` | both sides on one processor, or on two |
//! | `workers` | `threads` of one process, or `processes` |
//! | `waiters` | threads that wait at the first semaphore and answer in turn: 1, or a crowd |
//!
//! `corewalk` spins for at most 20 us before it sleeps, which is the default of
//! `NamespaceOptions::spin_ns_max`.
//!
//! # Claims
//! corewalk also uses the host kernel to wake a sleeping thread, so it can hardly be faster. A
//! round trip takes at most 1.05 times as long as with the kernel's semaphores.
//!
//! With many waiting threads (`waiters`), a round trip takes no longer than with the kernel's
//! semaphores.
//!
//! # Checks
//! Every call must succeed. The two semaphores of a round trip must be zero at the end.

use super::prelude::*;
use crate::pingpong::{self, SemPair};
use crate::sems::{Linux, Ours, Sems, check};
use crate::worker::{Objects, Place, Workers};

/// The baseline of all rows.
const BASELINE: &str = "linux";
const OURS: &str = "corewalk";
/// The measuring time per row, as a fraction of the usual time.
const SHARE_OF_TIME: f64 = 0.8;
/// Threads that wait at one semaphore.
const CROWDS: (&[usize], &[usize]) = (&[8], &[8, 100, 400]);

/// The table.
pub(super) const TABLE: Table = Table { name: "wakeup", sweeps, run };

fn sweeps(settings: &Settings) -> Vec<Sweep> {
    let [workers, cpus] = axes(settings);
    let of = |workers, waiters| cells(&[workers, ("waiters", values(waiters)), cpus.clone()]);
    // One answering thread or process, or a crowd of answering threads.
    let crowds = of(("workers", values(&["threads"])), sized(settings.size, CROWDS));
    let all = [of(workers, &[1]), crowds].concat();
    vec![Sweep::new(all, 2, BASELINE, SHARE_OF_TIME)]
}

/// Returns the values of the parameters `workers` and `cpus` of a benchmark of round trips. Unit
/// tests have no `processes`, since they cannot start the program `corewalk-lab`.
pub(super) fn axes(settings: &Settings) -> [(&'static str, Vec<Value>); 2] {
    let kinds = 1 + usize::from(settings.program.is_some());
    let cpus = cpus::each().len().min(2);
    [("workers", values(&["threads", "processes"][..kinds])), ("cpus", values(&[1, 2][..cpus]))]
}

fn run(run: &Run<'_>, samples: &mut Samples) -> anyhow::Result<()> {
    let folder = Scratch::in_memory(run.table)?;
    let of_linux: Measure<'_> =
        Box::new(|cell, time| round_trips(run, Linux::default(), cell, time, Place::Host));
    let of_ours: Measure<'_> = Box::new(|cell, time| {
        let file = folder.path().join("namespace");
        round_trips(run, Ours::for_slice(cell, &file)?, cell, time, Place::Namespace(&file))
    });
    run.measure(&run.sweeps[0], &[(BASELINE, of_linux), (OURS, of_ours)], samples)
}

/// Runs one slice, with answering threads or an answering process.
fn round_trips<S: Sems>(
    run: &Run<'_>,
    mut sems: S,
    cell: &Cell,
    time: Duration,
    place: Place<'_>,
) -> anyhow::Result<Slice> {
    sems.make(2)?;
    let slice = pingpong::run(&SemPair(&sems, 1), cell, time, |cpu| {
        Workers::answerer(run.program()?, place, cpu, Objects::Sets(vec![(sems.ids()[0], 2)]))
    })?;
    check(&sems, 0, |_| 0)?;
    Ok(slice)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::quick;

    #[test]
    fn quick_run_has_round_trips_on_one_processor_and_on_two() {
        let cells = &sweeps(&quick::settings())[0].cells;
        let rows = quick::check(&TABLE, &[BASELINE, OURS], &quick::params(cells));
        let claims = quick::claims(&TABLE, &rows);
        assert_eq!(claims.len(), 4 + 2 * CROWDS.1.len());
        assert!(claims[0].contains("held (x"), "{}", claims[0]);
        assert!(claims[3].ends_with("not measured"), "{}", claims[3]);
    }
}
