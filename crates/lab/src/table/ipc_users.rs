//! Benchmark table `ipc-users`: many users call many semaphore sets. Shows how long they wait for
//! each other's locks.
//!
//! Source: the second measurement of Bueso's patches of March 2013 (document 002 in
//! `documents.md`). Units:
//! - calls per second of wall time, all users together;
//! - nanoseconds of processor time per call;
//! - the fraction of its time for which a user waits for locks (`of=waiting`).
//!
//! # What the document measured
//! Bueso measured the share of system time in the ipc lock, under Oracle's swingbench with 100, 400
//! and 800 users on eight sockets.
//!
//! # Differences from the document
//! As in Bueso's measurement, there are 100, 400 and 800 users. Each user is a thread, and in
//! corewalk a process with its own undo records. A user only makes calls: three quarters semop and
//! the rest semctl, on random semaphores of 400 sets.
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
//! corewalk counts how long calls wait for a lock (`Namespace::contention`). The host
//! kernel has no such counters, so its rows show only calls per second and processor time.
//!
//! # Checks
//! Every call must succeed and every value must be in range. At its end each user adds one to a
//! semaphore, so that a lost addition is noticed.

use super::prelude::*;
use crate::sems::{Linux, Ours, Sems, check, made};
use corewalk_ipc::{NamespaceOptions, SemBuf, SemFlags};

/// The baseline, with which all other variants are compared.
const BASELINE: &str = "linux";
const OURS: &str = "corewalk";
/// Numbers of users.
const USERS: (&[usize], &[usize]) = (&[8, 32], &[100, 400, 800]);
/// Sets, and the semaphores of each.
const SETS: (usize, usize) = (40, 400);
const SEMS: u16 = 16;
/// The semaphore that `SETVAL` sets, and its value. No other call uses it, so `SETVAL` destroys no
/// value that the benchmark checks.
const STEADY: (u16, u16) = (SEMS - 1, 7);
/// The measuring time per row, as a fraction of the usual time.
const SHARE_OF_TIME: f64 = 0.7;

/// The table.
pub(super) const TABLE: Table = Table { name: "ipc-users", sweeps, run };

fn sweeps(settings: &Settings) -> Vec<Sweep> {
    let cells = cells(&[("users", values(sized(settings.size, USERS)))]);
    vec![Sweep::new(cells, 2, BASELINE, SHARE_OF_TIME)]
}

fn run(run: &Run<'_>, samples: &mut Samples) -> anyhow::Result<()> {
    let (sweep, sets) = (&run.sweeps[0], sized(run.settings.size, SETS));
    let most = sweep.cells.iter().map(|cell| cell.number("users")).max().unwrap_or(1);
    let counts = &vec![SEMS; sets];
    let linux = made(Linux::default(), counts)?;
    let ours = made(Ours::with(most, counting())?, counts)?;
    run.each(sweep, 2, |visit| {
        let (users, time) = (visit.cell.number("users"), sweep.slice(run.settings));
        let waited_ns = || ours.namespace.contention().waited_ns;
        let before_ns = waited_ns();
        let (name, slice) = match visit.at {
            0 => (BASELINE, slice(&linux, users, sets, time)?),
            _ => (OURS, slice(&ours, users, sets, time)?),
        };
        slice.add_to(samples, visit.round, name, &visit.cell.0, BASELINE, &visit.cell.0)?;
        if name == OURS {
            // The share is a fraction of the time of all users.
            let all_ns = users as f64 * slice.span.as_nanos() as f64;
            let share = (Metric::SECONDS, (waited_ns() - before_ns) as f64 / all_ns.max(1.0));
            samples.add(visit.round, OURS, &visit.cell.with("of", "waiting").0, share, OURS);
        }
        Ok(())
    })
}

fn counting() -> NamespaceOptions {
    NamespaceOptions { is_contention_counted: true, ..NamespaceOptions::default() }
}

/// Runs one slice, and checks the final values of all semaphores.
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

/// Returns the set and the semaphore to which a user adds one at its end.
fn mark(user: usize, sets: usize) -> (usize, u16) {
    (user % sets, (user / sets) as u16 % STEADY.0)
}

/// Works as a user.
fn work<S: Sems>(sems: &S, user: usize, sets: usize, turn: Turn<'_>) -> Laps {
    let mut rng = Rng::with_seed(user as u64 + 1);
    let (mut set, mut num) = (0, 0);
    let laps = turn.run(|number| {
        let op = if number.is_multiple_of(2) { 1 } else { -1 };
        if op == 1 {
            set = rng.u64(..sets as u64) as usize;
            num = rng.u64(..u64::from(STEADY.0) - 1) as u16;
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
    fn quick_run_has_rates_of_both_and_waits_of_corewalk() {
        let cells: Vec<_> = USERS.0.iter().map(|users| vec![("users", (*users).into())]).collect();
        let rows = quick::check(&TABLE, &[BASELINE, OURS], &cells);
        let waits = rows.iter().filter(|row| row.metric == "seconds" && row.variant == OURS);
        assert_eq!(waits.count(), cells.len());
        assert!(TABLE.claims(&rows)[0].to_string().contains("held (x"));
    }

    #[test]
    fn wait_for_a_lock_is_counted() {
        // Two users (simulated processes) call one semaphore set all the time. So sooner or later,
        // one of them finds the lock taken.
        let ours = made(Ours::with(2, counting()).unwrap(), &[SEMS]).unwrap();
        let is_counted = (0..50).any(|_| {
            slice(&ours, 2, 1, Duration::from_millis(5)).unwrap();
            ours.namespace.contention().waited_ns > 0
        });
        assert!(is_counted);
    }
}
