//! Benchmark table `ipc-users`: many users call many semaphore sets. Shows how long they wait for
//! each other's locks.
//!
//! Source: the second measurement of Bueso's patches of March 2013 (document 002 in
//! `documents.md`). Units:
//! - calls per second of wall time, all users together;
//! - nanoseconds of processor time per call;
//! - calls that find a lock taken, per million (`of=locks-found-taken`);
//! - the fraction of its time for which a user waits for locks (`of=waiting`).
//!
//! # What the document measured
//! Bueso measured the share of system time in the ipc lock, under Oracle's swingbench with 100, 400
//! and 800 users on eight sockets.
//!
//! # Differences from the document
//! As in Bueso's measurement, there are 100, 400 and 800 users. Each user is a thread, and in
//! corewalk and the designs of `before::sems` a process with its own undo records. A user only
//! makes calls: three quarters semop and the rest semctl, on random semaphores of 400 sets.
//!
//! A small machine runs only few calls at the same time. So a call finds a lock taken mostly when
//! the holder was preempted. Such a machine cannot show the cost of a shared lock on eight sockets.
//!
//! A quick run has 8 and 32 users, since hundreds of threads take longer to start than a quick run
//! lasts.
//!
//! In corewalk, a semop or semctl call of this benchmark takes at most the lock of the set.
//! `SETVAL` always takes it. Other calls take it only if a concurrent call interferes with their
//! attempt without the lock.
//!
//! corewalk counts how often and how long calls wait for a lock (`Namespace::contention`). The host
//! kernel has no such counters, so its rows show only calls per second and processor time.
//!
//! # Checks
//! Every call must succeed and every value must be in range. At its end each user adds one to a
//! semaphore, so that a lost addition is noticed.

use super::prelude::*;
use crate::before::sems::{Protocol, SemArrays};
use crate::sems::{Linux, Ours, Sems, check, made};
use corewalk_ipc::{NamespaceOptions, SemBuf, SemFlags};

/// The variant that all are compared with.
const BASELINE: &str = "linux";
const VARIANTS: usize = 4;
/// Numbers of users.
const USERS: (&[usize], &[usize]) = (&[8, 32], &[100, 400, 800]);
/// Sets, and the semaphores of each.
const SETS: (usize, usize) = (40, 400);
const SEMS: u16 = 16;
/// The semaphore that `SETVAL` sets, and its value. No other call uses it, so `SETVAL` destroys no
/// value that the benchmark checks.
const STEADY: (u16, u16) = (SEMS - 1, 7);
/// The share of the time per row.
const SHARE_OF_TIME: f64 = 0.7;

/// The table.
pub(super) const TABLE: Table = Table { name: "ipc-users", other_claims: STATED, sweeps, run };

fn sweeps(settings: &Settings) -> Vec<Sweep> {
    let cells = cells(&[("users", values(sized(settings.size, USERS)))]);
    vec![Sweep::new(cells, VARIANTS, BASELINE, SHARE_OF_TIME)]
}

fn run(run: &Run<'_>, samples: &mut Samples) -> anyhow::Result<()> {
    let (sweep, sets) = (&run.sweeps[0], sized(run.settings.size, SETS));
    let most = sweep.cells.iter().map(|cell| cell.number("users")).max().unwrap_or(1);
    let counts = &vec![SEMS; sets];
    let (linux, ours) =
        (made(Linux::default(), counts)?, made(Ours::with(most, counting())?, counts)?);
    let lock = made(SemArrays::new(Protocol::IpcLock, most), counts)?;
    let rcu = made(SemArrays::new(Protocol::IpcRcu, most), counts)?;
    let variants =
        [counted(&linux, sets), counted(&ours, sets), counted(&lock, sets), counted(&rcu, sets)];
    run.each(sweep, VARIANTS, |visit| {
        let (name, measure) = &variants[visit.at];
        let slice = measure(visit.cell, sweep.slice(run.settings))?;
        slice.add_to(samples, visit.round, name, &visit.cell.0, BASELINE, &visit.cell.0)?;
        if *name == BASELINE {
            return Ok(());
        }
        let users_s = visit.cell.number("users") as f64 * slice.span.as_secs_f64();
        let waited_s = slice.spent.waiting_ns as f64 * 1e-9;
        let found_taken = slice.spent.sections as f64 * 1e6 / slice.ops as f64;
        let rows = [
            ("waiting", Metric::SECONDS, waited_s / users_s.max(1e-9)),
            ("locks-found-taken", Metric::RETRIES_PER_MILLION, found_taken),
        ];
        for (of, metric, value) in rows {
            let params = visit.cell.with("of", of).0;
            samples.add(visit.round, name, &params, (metric, value), "before-ipc-lock");
        }
        Ok(())
    })
}

fn counting() -> NamespaceOptions {
    NamespaceOptions { is_contention_counted: true, ..NamespaceOptions::default() }
}

/// Returns the function that measures a variant. Its results include waits for locks, if the
/// variant counts them.
fn counted<S: Sems>(sems: &S, sets: usize) -> (&str, Measure<'_>) {
    let measure = move |cell: &super::engine::Cell, time: Duration| {
        let before = sems.waited().unwrap_or_default();
        let mut slice = slice(sems, cell.number("users"), sets, time)?;
        let after = sems.waited().unwrap_or_default();
        slice.spent.waiting_ns = after.0 - before.0;
        slice.spent.sections = after.1 - before.1;
        Ok(slice)
    };
    (sems.variant(), Box::new(measure))
}

/// Runs one slice, and checks what all users leave.
fn slice<S: Sems>(sems: &S, users: usize, sets: usize, time: Duration) -> anyhow::Result<Slice> {
    let slice = crew::run(users, time, |user, turn| work(sems, user, sets, turn));
    for set in 0..sets {
        let marks = |num| (0..users).filter(|user| mark(*user, sets) == (set, num)).count();
        sems.set_value(0, set, STEADY.0, 0);
        check(sems, set, |num| marks(num) as u16)?;
        for num in (0..SEMS).filter(|num| marks(*num) > 0) {
            sems.set_value(0, set, num, 0);
        }
    }
    Ok(slice.over_span())
}

/// Returns where a user leaves its mark.
fn mark(user: usize, sets: usize) -> (usize, u16) {
    (user % sets, (user / sets) as u16 % STEADY.0)
}

/// Works as a user.
fn work<S: Sems>(sems: &S, user: usize, sets: usize, turn: Turn<'_>) -> Laps {
    let mut rng = Rng(user as u64 + 1);
    let (mut set, mut num) = (0, 0);
    let laps = turn.run(|number| {
        let op = if number.is_multiple_of(2) { 1 } else { -1 };
        if op == 1 {
            set = rng.below(sets as u64) as usize;
            num = rng.below(u64::from(STEADY.0) - 1) as u16;
        }
        match number % 8 {
            6 => sems.value(user, set, num).is_some_and(|value| value <= 2 * 1024),
            7 => sems.set_value(user, set, STEADY.0, STEADY.1),
            2 | 3 => sems.op(
                user,
                set,
                [0, 1].map(|next| SemBuf::new(num + next, op, SemFlags::empty())),
            ),
            _ => sems.op(user, set, [SemBuf::new(num, op, SemFlags::empty())]),
        }
    });
    let (set, num) = mark(user, sets);
    let is_marked = sems.op(user, set, [SemBuf::new(num, 1, SemFlags::empty())]);
    assert!(is_marked, "{}: a mark is refused", sems.variant());
    laps
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::quick;

    #[test]
    fn quick_run_has_rates_of_all_and_waits_of_those_that_count() {
        let cells: Vec<_> = USERS.0.iter().map(|users| vec![("users", (*users).into())]).collect();
        let variants = ["linux", "corewalk", "before-ipc-lock", "before-ipc-rcu"];
        let rows = quick::check(&TABLE, &variants, &cells);
        let waits = rows.iter().filter(|row| row.metric == "retries_per_million");
        assert_eq!(waits.count(), 3 * cells.len());
        assert!(TABLE.claims(&rows)[0].to_string().contains("held (x"));
    }

    #[test]
    fn wait_for_a_lock_is_counted() {
        is_counted(&made(SemArrays::new(Protocol::IpcRcu, 2), &[SEMS]).unwrap());
        is_counted(&made(Ours::with(2, counting()).unwrap(), &[SEMS]).unwrap());
        let uncounted = made(Ours::new(2).unwrap(), &[SEMS]).unwrap();
        slice(&uncounted, 2, 1, Duration::from_millis(5)).unwrap();
        assert_eq!(uncounted.waited(), Some((0, 0)));
    }

    fn is_counted<S: Sems>(sems: &S) {
        // Two users (simulated processes) call one semaphore set all the time. So sooner or later,
        // one of them finds the lock taken.
        let is_counted = (0..50).any(|_| {
            slice(sems, 2, 1, Duration::from_millis(5)).unwrap();
            sems.waited().is_some_and(|(ns, waits)| ns > 0 && waits > 0)
        });
        assert!(is_counted, "{}", sems.variant());
    }
}
