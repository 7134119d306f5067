//! Table `ipc-users`: many users of many semaphore sets, and what they wait for each other.
//!
//! Source: document 002 (Bueso, March 2013), its second measurement. Units: calls per second of
//! wall time, all users together; nanoseconds of processor time per call; calls that find a lock
//! taken, per million (`of=locks-found-taken`); and seconds for which a user waits for locks in one
//! second of its time (`of=waiting`).
//!
//! # What the document measured
//! The share of system time that went into the ipc lock under Oracle's swingbench with 100, 400 and
//! 800 users on eight sockets ([`PUBLISHED`]).
//!
//! # What is kept, and what is not
//! Users and their numbers are kept: each is a thread here, and to corewalk and the designs before
//! a process of its own. The database is not: a user does nothing but calls, of which three
//! quarters are semop and the rest semctl, on semaphores drawn at random from 400 sets. Two
//! processors never have more than two users inside a call at once, so a lock is found taken mostly
//! when who holds it has lost its processor; what eight sockets make of a shared lock is not to be
//! had here. A run has the document's 100, 400 and 800 users, all three; a quick one has 8 and 32,
//! since it takes longer to start hundreds of threads than it lasts.
//!
//! corewalk has no lock on the way of these calls but the set's for `SETVAL` and for those who were
//! disturbed. It counts likewise what a user finds taken, and the time until it goes on
//! (`Namespace::contention`): the set's lock, and a semaphore in the middle of another's operation.
//! The host kernel has rates only.
//!
//! # Checks
//! Every call succeeds, what is read is in range, and no addition is lost: each user leaves a mark.

use std::fmt::Write as _;
use std::time::Duration;

use corewalk_ipc::SemBuf;

use super::bench::{cells, values};
use super::grid::Rounds;
use super::{Claim, Grid, Plot, Published, Settings, Table, Text, shape, sized};
use crate::before::sems::{IpcLock, IpcRcu, Protocol, SemArrays};
use crate::crew::{self, Laps, Slice, Turn};
use crate::questions::Rng;
use crate::samples::{Metric, Row, Samples};
use crate::sems::{Linux, Ours, Sems, apart, check};

/// The variant that all are compared with.
const BASELINE: &str = "linux";
const OURS: &str = "corewalk";
const VARIANTS: usize = 4;
/// Numbers of users.
const USERS: (&[usize], &[usize]) = (&[8, 32], &[100, 400, 800]);
/// Sets, and the semaphores of each.
const SETS: (usize, usize) = (40, 400);
const SEMS: u16 = 16;
/// The semaphore that is set and not added to, and to what.
const STEADY: (u16, u16) = (SEMS - 1, 7);
/// The figures of document 002: users, and percent of the system time in the ipc lock, before and
/// after.
const PUBLISHED: [(u32, f64, f64); 3] =
    [(100, 8.74, 8.11), (400, 21.86, 19.93), (800, 84.35, 77.69)];
/// The share of the time per row.
const SHARE_OF_TIME: f64 = 0.7;

/// The table.
pub(super) struct IpcUsers;

/// The result of a slice: its speed, and nanoseconds and number of waits for locks, if they are
/// counted.
struct Outcome {
    slice: Slice,
    waited: Option<(u64, u64)>,
}

type Measure<'a> = Box<dyn Fn(usize, Duration) -> anyhow::Result<Outcome> + 'a>;

impl Table for IpcUsers {
    fn text(&self) -> &'static Text {
        &Text {
            name: "ipc-users",
            source: "the swingbench runs of document 002 (Bueso, March 2013), in shape",
            about: "100, 400 and 800 users of 400 semaphore sets, and what they wait for each other's locks",
            claim: "Many users of many sets are served at least twice as fast as by the host kernel.",
            plot: Plot { x: "users", metric: "ops_per_s", at: &[], headline: "100" },
        }
    }

    fn published(&self) -> Option<Published> {
        let before = PUBLISHED.map(|(users, before, _)| (f64::from(users), before)).to_vec();
        let after = PUBLISHED.map(|(users, _, after)| (f64::from(users), after)).to_vec();
        Some(Published {
            x: "users, 8 sockets",
            unit: "% of system time in the ipc lock",
            curves: vec![("before", before), ("after", after)],
        })
    }

    fn footer(&self, rows: &[Row]) -> String {
        let mut out = String::from(
            "document 002, swingbench on 8 sockets: percent of the system time in the ipc lock, before and \
             after;\nhere, percent of the users' time, before-ipc-lock, before-ipc-rcu and corewalk:\n",
        );
        for (users, before, after) in PUBLISHED {
            let _ = write!(out, "  {users:>3} users: {before:.2} and {after:.2}");
            let here = [IpcLock::VARIANT, IpcRcu::VARIANT, OURS].map(|variant| {
                let params = [("users", users.into()), ("of", "waiting".into())];
                shape::median(rows, variant, "seconds", &params).map(|share| 100.0 * share)
            });
            if let [Some(before), Some(after), Some(ours)] = here {
                let _ = write!(out, "; here {before:.2}, {after:.2} and {ours:.2}");
            }
            out.push('\n');
        }
        out
    }

    fn claims(&self, rows: &[Row]) -> Vec<Claim> {
        let rates = |row: &&Row| row.variant == OURS && row.metric == "ops_per_s";
        let ratios = rows.iter().filter(rates).filter_map(|row| row.ratio);
        let worst = ratios.min_by(f64::total_cmp);
        vec![Claim::at_least("calls of any number of users, corewalk over linux", worst, 2.0)]
    }

    fn grids(&self, settings: &Settings) -> Vec<Grid> {
        let cells = sized(settings.size, USERS).len();
        vec![Grid::new(settings, cells, VARIANTS, SHARE_OF_TIME)]
    }

    fn run(&self, settings: &Settings) -> anyhow::Result<Samples> {
        apart(|| run(self, settings))
    }
}

fn run(table: &IpcUsers, settings: &Settings) -> anyhow::Result<Samples> {
    let rounds = Rounds::begin(table.name(), settings)?;
    let (grid, sets) = (table.grids(settings)[0], sized(settings.size, SETS));
    let users = cells(&[("users", values(sized(settings.size, USERS)))]);
    let most = users.iter().map(|cell| cell.number("users")).max().unwrap_or(1);
    let (linux, ours) = (made(Linux::default(), sets)?, made(Ours::counting(most)?, sets)?);
    let lock = made(SemArrays::<IpcLock>::new(most), sets)?;
    let rcu = made(SemArrays::<IpcRcu>::new(most), sets)?;
    let variants: [(&str, Measure<'_>); VARIANTS] = [
        measured(&linux, sets),
        measured(&ours, sets),
        measured(&lock, sets),
        measured(&rcu, sets),
    ];
    let mut samples = Samples::default();
    rounds.each(&grid, (&users, VARIANTS), |visit| {
        let (name, measure) = &variants[visit.at];
        let Outcome { slice, waited } = measure(visit.cell.number("users"), grid.slice)?;
        let params = &visit.cell.0;
        slice.add_to(&mut samples, visit.round, name, params, BASELINE)?;
        let Some((ns, waits)) = waited else { return Ok(()) };
        let users_s = visit.cell.number("users") as f64 * slice.span.as_secs_f64();
        let found_taken = waits as f64 * 1e6 / slice.ops as f64;
        let rows = [
            ("waiting", Metric::Seconds, ns as f64 * 1e-9 / users_s.max(1e-9)),
            ("locks-found-taken", Metric::RetriesPerMillion, found_taken),
        ];
        for (of, metric, value) in rows {
            let params = visit.cell.with("of", of).0;
            samples.add(visit.round, name, &params, (metric, value), IpcLock::VARIANT);
        }
        Ok(())
    })?;
    Ok(samples)
}

fn made<S: Sems>(mut sems: S, sets: usize) -> anyhow::Result<S> {
    (0..sets).try_for_each(|_| sems.make(SEMS))?;
    Ok(sems)
}

fn measured<S: Sems>(sems: &S, sets: usize) -> (&str, Measure<'_>) {
    let measure = move |users, time| {
        let before = sems.waited();
        let slice = slice(sems, (users, sets), time)?;
        let after = sems.waited();
        let waited =
            before.zip(after).map(|(before, after)| (after.0 - before.0, after.1 - before.1));
        Ok(Outcome { slice, waited })
    };
    (sems.variant(), Box::new(measure))
}

/// Runs one slice, and checks what all users leave.
fn slice<S: Sems>(
    sems: &S,
    (users, sets): (usize, usize),
    time: Duration,
) -> anyhow::Result<Slice> {
    let slice = crew::run(users, time, |user, turn| work(sems, (user, sets), turn));
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
fn work<S: Sems>(sems: &S, (user, sets): (usize, usize), turn: Turn) -> Laps {
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
            2 | 3 => sems.op(user, set, [0, 1].map(|next| SemBuf::new(num + next, op, 0))),
            _ => sems.op(user, set, [SemBuf::new(num, op, 0)]),
        }
    });
    let (set, num) = mark(user, sets);
    assert!(sems.op(user, set, [SemBuf::new(num, 1, 0)]), "{}: a mark is refused", sems.variant());
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
        let rows = quick::check(&IpcUsers, &variants, &cells);
        let waits = rows.iter().filter(|row| row.metric == "retries_per_million");
        assert_eq!(waits.count(), 3 * cells.len());
        assert!(IpcUsers.claims(&rows)[0].to_string().contains("held (x"));
        assert!(IpcUsers.footer(&rows).contains("800 users: 84.35 and 77.69\n"));
    }

    #[test]
    fn wait_for_a_lock_is_counted() {
        is_counted(&made(SemArrays::<IpcRcu>::new(2), 1).unwrap());
        is_counted(&made(Ours::counting(2).unwrap(), 1).unwrap());
        let uncounted = made(Ours::new(2).unwrap(), 1).unwrap();
        slice(&uncounted, (2, 1), Duration::from_millis(5)).unwrap();
        assert_eq!(uncounted.waited(), Some((0, 0)));
    }

    fn is_counted<S: Sems>(sems: &S) {
        // Two who never stop meet at the lock of the only set, sooner or later.
        let is_counted = (0..50).any(|_| {
            slice(sems, (2, 1), Duration::from_millis(5)).unwrap();
            sems.waited().is_some_and(|(ns, waits)| ns > 0 && waits > 0)
        });
        assert!(is_counted, "{}", sems.variant());
    }
}
