//! Benchmark table `hot-leaf`: several threads resolve the same path, while one more thread, the
//! locker, often takes the lock of the file for a moment.
//!
//! Long's patches of February 2013 (document 000 in `documents.md`) count a reference of a dentry
//! by a compare-exchange. They take the dentry's lock only if another thread holds it. In June 2024
//! Guzik measured 8.40 M stat calls per second of one file by 20 threads. After another thread had
//! taken the lock for a moment, the rate stayed at 1.27 M. Units: operations per second of wall
//! time, all threads together, and nanoseconds of processor time per operation.
//!
//! # The workload
//! With `of=walk` all threads resolve the same path of eight components. One more thread, the
//! locker, changes the permissions of the file, and makes and removes a second name of it, 1,000
//! times per second. With `of=lockref` the threads take and drop references of a
//! `corewalk_sync::Lockref`. Here the locker takes the lock for a microsecond, also 1,000 times per
//! second.
//!
//! The threads run through three phases: `before`, `during` and `after` the work of the locker. The
//! results of the last two are compared with those of the first.
//!
//! # Claims
//! - With `of=walk` two threads do at least 1.9 times the work of one (the row with
//!   `over_threads=1`), since a walk writes nothing.
//! - While the locker takes the lock of the file, an operation takes at most 5 % more processor
//!   time than before.
//! - Once the locker has stopped, no result is worse than before by more than its spread over the
//!   rounds.
//!
//! In Guzik's benchmark of 2024 the rate stays low (trap T52 in `traps.md`) only if the lock's
//! queue of waiting threads never empties. With two threads it empties immediately. The rows
//! `phase=after` are for machines with more processors.
//!
//! # Limits
//! More threads than processors are not measured, since the scheduler would decide the result.
//! `linux` resolves by stat(2), which also copies attributes and pays for a system call.
//!
//! # Checks
//! Every walk must return the inode number of the path's file. All references must be dropped at
//! the end. If the locker took the lock too rarely, the measurement runs again.
//!
//! Source: Long, February 2013; Linux `lib/lockref.c`; Guzik, "lockref: trywait", June 2024.

use super::prelude::*;
use crate::files::{Files, Host, User, make_path};
use corewalk_base::CachePadded;
use corewalk_base::primitives::hint;
use corewalk_sync::Lockref;
use std::time::Instant;

/// The baseline of walks in the phase `before`.
const WALK_BASELINE: &str = "linux";
/// How often the locker takes the lock, per second.
const LOCKS_PER_S: u32 = 1_000;
/// The fraction of this rate that the locker must reach. Otherwise the measurement is repeated.
const RATE_SHARE: f64 = 0.9;
/// For how long the locker holds the lock of the lockref.
const HOLD: Duration = Duration::from_micros(1);
/// Maximum number of measurements until the locker has reached its rate.
const TRIES: usize = 4;
/// The variants, in order.
const VARIANTS: [(&str, &str); 3] =
    [("walk", "corewalk"), ("walk", WALK_BASELINE), ("lockref", "corewalk")];
/// The phases, in order.
const PHASES: [&str; 3] = ["before", "during", "after"];
/// Number of directories above the file. `LEAF` is the name of the file.
const DIRECTORIES: usize = 7;
const LEAF: &[u8] = b"the-hot-leaf";

/// The results of each worker in the phases `before`, `during` and `after`. The second value is how
/// often per second the locker (the disturbing thread) took the lock in `during`.
type Outcome = (Vec<Laps>, f64);

/// A variant. `measure` takes the number of threads and the time of one phase.
struct Variant<'a> {
    of: &'static str,
    name: &'static str,
    baseline: &'static str,
    measure: Box<dyn Fn(usize, Duration) -> Outcome + 'a>,
}

/// The table.
pub(super) const TABLE: Table = Table { name: "hot-leaf", sweeps, run };

fn sweeps(settings: &Settings) -> Vec<Sweep> {
    let cells = cells(&[("threads", values(&settings.threads_with_processors()))]);
    vec![Sweep::new(cells, VARIANTS.len(), WALK_BASELINE, PHASES.len() as f64)]
}

fn run(run: &Run<'_>, samples: &mut Samples) -> anyhow::Result<()> {
    let (ours, host) = (Ours::on_tmpfs()?, Host::new(run.table));
    let mut variants = vec![walkers(&ours)?];
    match &host {
        Ok(host) => variants.push(walkers(host)?),
        Err(error) => eprintln!("hot-leaf: skipped linux: {error:#}"),
    }
    variants.push(counter());
    run.each(&run.sweeps[0], variants.len(), |visit| {
        record(samples, &variants[visit.at], &visit, run.settings)
    })?;
    samples.add_scaling(|_, params| params.contains_key("phase"));
    Ok(())
}

/// Measures a variant, and adds its result rows. If the locker (the disturbing thread) was too
/// slow, measures again.
fn record(
    samples: &mut Samples,
    variant: &Variant<'_>,
    visit: &Visit<'_>,
    settings: &Settings,
) -> anyhow::Result<()> {
    let Variant { of, name, baseline, measure } = variant;
    let (round, threads) = (visit.round, visit.cell.number("threads"));
    for _ in 0..TRIES {
        let (laps, locks_per_s) = measure(threads, settings.time_per_row / settings.rounds as u32);
        let slices = [0, 1, 2].map(|phase| crew::together(&laps, phase));
        let has_worked = slices.iter().all(|slice| slice.ops > 0);
        // A full run checks how often per second the locker (the disturbing thread) took the lock.
        // In a quick run, the locker takes it only about ten times.
        let is_on_time = locks_per_s >= RATE_SHARE * f64::from(LOCKS_PER_S);
        if !has_worked || !(is_on_time || settings.size == Size::Quick) {
            continue;
        }
        let params_in = |phase: &'static str| visit.cell.with("of", *of).with("phase", phase).0;
        let before = params_in(PHASES[0]);
        slices[0].add_to(samples, round, name, &before, baseline, &before)?;
        for (slice, phase) in slices.iter().zip(PHASES).skip(1) {
            slice.add_to(samples, round, name, &params_in(phase), name, &before)?;
        }
        let params = visit.cell.with("of", *of).with("op", "lock").0;
        samples.add(round, name, &params, (Metric::OPS_PER_SECOND, locks_per_s), name);
        return Ok(());
    }
    eprintln!("hot-leaf: {name}: the locker did not run in round {round} with threads={threads}");
    Ok(())
}

/// Makes a path of eight components in `files`. Returns the variant whose threads resolve it.
fn walkers<F: Files>(files: &F) -> anyhow::Result<Variant<'_>> {
    let user = files.user();
    let parent = parent();
    let dir = make_path(&user, &parent)?;
    ensure!(user.create(&dir, LEAF), "{}: no file", files.variant());
    let path = [parent.as_bytes(), b"/", LEAF].concat();
    let leaf = user.resolve(&path).context("the file is missing")?;
    let measure = move |threads, time| {
        let work = |_, turn: crew::Turn<'_>| {
            // Each thread has its own copy of the path, so that threads share no cache line.
            let (user, path) = (files.user(), path.clone());
            turn.run(|_| user.resolve(&path) == Some(leaf))
        };
        crew::run_laps(threads, PHASES.len(), Pinning::of(threads), time, work, |clock| {
            let user = files.user();
            let dir = user.open_dir(parent.as_bytes()).expect("the directory was made");
            clock.paced(1, LOCKS_PER_S, |turn| {
                let mode = if turn.is_multiple_of(2) { 0o600 } else { 0o644 };
                let is_locked = user.chmod(&dir, LEAF, mode)
                    && user.link(&dir, LEAF, b"second-name")
                    && user.unlink(&dir, b"second-name");
                assert!(is_locked, "{}: the file could not be changed", files.variant());
            })
        })
    };
    let (name, baseline) = (files.variant(), WALK_BASELINE);
    Ok(Variant { of: "walk", name, baseline, measure: Box::new(measure) })
}

/// Returns the path of the directory of the file.
fn parent() -> String {
    (1..=DIRECTORIES).map(|nth| format!("/component-{nth}")).collect()
}

/// Returns the variant `of=lockref`: threads take and drop references of one lockref, while one
/// more thread, the locker, takes its lock.
fn counter() -> Variant<'static> {
    let measure = |threads, time| {
        let lockref = CachePadded::new(Lockref::new(1));
        let work = |_, turn: crew::Turn<'_>| {
            turn.run(|_| {
                lockref.get();
                lockref.put_return() > 0
            })
        };
        let outcome =
            crew::run_laps(threads, PHASES.len(), Pinning::of(threads), time, work, |clock| {
                clock.paced(1, LOCKS_PER_S, |_| {
                    let guard = lockref.lock();
                    let start = Instant::now();
                    while start.elapsed() < HOLD {
                        hint::spin_loop();
                    }
                    drop(guard);
                })
            });
        assert_eq!(lockref.count(), 1, "references do not add up");
        outcome
    };
    let name = "corewalk";
    Variant { of: "lockref", name, baseline: name, measure: Box::new(measure) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(of: &'static str, phase: &'static str) -> [(&'static str, Value); 2] {
        [("of", of.into()), ("phase", phase.into())]
    }
    use crate::machine::cores;
    use crate::table::quick;

    #[test]
    fn quick_run_has_every_variant_in_every_phase() {
        for of in ["walk", "lockref"] {
            let names: Vec<&str> =
                VARIANTS.iter().filter(|(what, _)| *what == of).map(|(_, name)| *name).collect();
            let cells = PHASES.map(|phase| [&at(of, phase)[..], &[("threads", 1.into())]].concat());
            let rows = quick::check(&TABLE, &names, &cells);
            let claims = quick::claims(&TABLE, &rows);
            assert_eq!(claims.len(), 5);
            let known = claims.iter().filter(|claim| !claim.contains("not measured")).count();
            // One claim compares two threads with one thread in the same round. On a loaded machine
            // no round may have both results.
            let expected = if cores() > 1 { 4..=5 } else { 2..=2 };
            assert!(expected.contains(&known), "{claims:?}");
            let (after, own) = (at(of, PHASES[2]), "corewalk");
            let row = quick::row(&rows, own, "ns_per_op", &after).expect("it was just there");
            assert_eq!(row.baseline, own);
        }
    }

    #[test]
    fn threads_without_a_processor_are_left_out() {
        let with = |threads: &[usize]| Settings { threads: threads.to_vec(), ..quick::settings() };
        assert_eq!(with(&[1, 100_000]).threads_with_processors(), [1]);
        assert_eq!(with(&[100_000]).threads_with_processors(), [1]);
    }

    #[test]
    fn path_that_leads_elsewhere_is_a_wrong_answer() {
        let ours = Ours::on_tmpfs().unwrap();
        let variant = walkers(&ours).unwrap();
        let user = ours.user();
        let dir = user.open_dir(parent().as_bytes()).unwrap();
        assert!(user.rename((&dir, LEAF), (&dir, b"elsewhere")) && user.create(&dir, LEAF));
        let (laps, _) = (variant.measure)(1, Duration::from_millis(5));
        assert!(laps[0][0].wrong == laps[0][0].ops && laps[0][0].ops > 0);
    }
}
