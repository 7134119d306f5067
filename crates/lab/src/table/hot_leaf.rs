//! Table `hot-leaf`: several threads at the same path, and somebody who locks it for a moment.
//!
//! Document 000 (Long, February 2013) made counting a reference a compare-exchange that needs no
//! lock, as long as nobody has the lock. It publishes no number for one file alone. What came of it:
//! in June 2024 Guzik measured 8.40 M stat calls per second of one file by 20 threads, and 1.27 M once
//! somebody had taken the lock for a moment, for as long as the threads went on. Those are figures of
//! another machine. Units: operations per second of wall time, all threads together, and nanoseconds
//! of processor time per operation.
//!
//! # What is done
//! With `of=walk` an operation resolves one path of eight components, always the same one. The locker
//! changes the permissions of the file and gives it a second name, which it removes, 1,000 times per
//! second. With `of=lockref` an operation takes a reference and drops it; the locker takes the lock
//! for a microsecond as often. `corewalk` is then `corewalk_sync::Lockref`, `before-lockref-off` the
//! rule of Linux (`lockref_off`).
//!
//! The threads run through three phases without a break: `before` the locker comes, `during` it, and
//! `after` it has gone. In the last two the baseline of each variant is itself in `phase=before`, there
//! it is the usual design.
//!
//! # The claim, as a shape
//! Two threads do twice what one does with `of=walk`, since a walk writes nothing. Nothing is lost
//! during the locker but the time it takes, and nothing after it: the ratio of `phase=after` is 1.
//!
//! Two threads are too few for the shape of 2024: what keeps everybody at the lock is that the queue is
//! never empty, and with two it is as soon as one of them is interrupted. The rows are there for
//! machines with more processors.
//!
//! # What it drops
//! More threads than processors, which would measure the scheduler. `linux` resolves by stat(2), which
//! also copies attributes and pays for a system call.
//!
//! # Checks
//! Every walk must give the file's number; references must add up at the end. A slice in which the
//! locker did not reach its rate is done again.
//!
//! Source: document 000; Linux `lib/lockref.c`; Guzik, "lockref: trywait", June 2024 (trap T52).

mod lockref_off;

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use corewalk_sync::primitives::hint;
use corewalk_sync::{CachePadded, Lockref};
use serde_json::Value;

use super::{Settings, Size, Table, progress, rotated, shape};
use crate::crew::{self, Slice};
use crate::files::{Files, Host, Locked, Ours, User};
use crate::machine::{Disturbance, cores};
use crate::peer::Interrupt;
use crate::samples::{Metric, Params, Row, Samples};
use lockref_off::LockrefOff;

/// The variant that walks are compared with before the locker comes.
const WALK_BASELINE: &str = "rwlock-ahash";
/// The variant that counts are compared with then.
const COUNT_BASELINE: &str = "before-lockref-off";
/// How often somebody takes the lock, per second.
const LOCKS_PER_S: u32 = 1_000;
/// The share of that rate that must be reached.
const RATE_SHARE: f64 = 0.9;
/// For how long the lock of a count is held.
const HOLD: Duration = Duration::from_micros(1);
/// Slices that are tried until the locker reached its rate.
const TRIES: usize = 4;
/// The phases, in order.
const PHASES: [&str; 3] = ["before", "during", "after"];
/// The directories above the file, and the file.
const DIRECTORIES: [&str; 7] = [
    "component-1",
    "component-2",
    "component-3",
    "component-4",
    "component-5",
    "component-6",
    "component-7",
];
const LEAF: &[u8] = b"the-hot-leaf";

/// The table.
pub(super) struct HotLeaf;

/// What three phases gave, and how often the locker was there per second.
type Outcome = (Vec<Slice>, f64);

/// Somebody who is measured with a number of threads, for so long in each phase.
struct Variant<'a> {
    of: &'static str,
    name: &'static str,
    baseline: &'static str,
    measure: Box<dyn Fn(usize, Duration) -> Outcome + 'a>,
}

impl Table for HotLeaf {
    fn name(&self) -> &'static str {
        "hot-leaf"
    }

    fn source(&self) -> &'static str {
        "one path for all threads and a lock taken for a moment: document 000 and Guzik, 2024"
    }

    fn about(&self) -> &'static str {
        "threads that resolve the same path, before, during and after a transient locker"
    }

    fn claim(&self) -> &'static str {
        "Threads that resolve the same path do not slow each other down, and somebody who locks it for \
         a moment costs nothing once gone."
    }

    fn footer(&self, rows: &[Row]) -> String {
        let mut out = String::from(
            "Published by Guzik, June 2024 (20 threads, Linux, stat of one file): 8.40 M/s, and 1.27 M/s \
             for good after the lock was taken for a moment.\n",
        );
        for (of, variant) in [
            ("walk", "corewalk"),
            ("walk", WALK_BASELINE),
            ("walk", "linux"),
            ("lockref", "corewalk"),
            ("lockref", COUNT_BASELINE),
        ] {
            let at = |phase: &str| [("of", Value::from(of)), ("phase", Value::from(phase))];
            let scaling = shape::scaling(rows, variant, &at(PHASES[0]));
            let _ = write!(out, "{of} {variant}: two threads over one {}", shape::times(scaling));
            for phase in &PHASES[1..] {
                let two = [&at(phase)[..], &[("threads", Value::from(2))]].concat();
                let lost = shape::ratio(rows, variant, "ns_per_op", &two);
                let _ = write!(out, ", processor time {phase} the locker {}", shape::times(lost));
            }
            out.push('\n');
        }
        out
    }

    fn run(&self, settings: &Settings) -> anyhow::Result<Samples> {
        let interrupt = Interrupt::watch()?;
        let (ours, locked, host) = (Ours::new()?, Locked::new(), Host::new("hot-leaf"));
        let mut variants = vec![walkers(&ours)?, walkers(&locked)?];
        match &host {
            Ok(host) => variants.push(walkers(host)?),
            Err(error) => eprintln!("hot-leaf: skipped linux: {error:#}"),
        }
        let counts = [counters_of_ours(), counters_before()];
        let threads = usable(&settings.threads);
        let time = settings.time_per_row / settings.rounds as u32;
        let mut samples = Samples::default();
        let bar = progress(settings.rounds * threads.len() * (variants.len() + counts.len()));
        let disturbance = Disturbance::start();
        for round in 0..settings.rounds {
            for &threads in &threads {
                for group in [&variants[..], &counts[..]] {
                    for at in rotated(group.len(), round) {
                        let variant = &group[at];
                        interrupt.check()?;
                        bar.set_message(format!("{} threads={threads}", variant.name));
                        record(&mut samples, round, variant, threads, time, settings.size)?;
                        bar.inc(1);
                    }
                }
            }
        }
        bar.finish_and_clear();
        eprintln!(
            "hot-leaf: other processes used {:.0} % of the machine",
            100.0 * disturbance.share()
        );
        Ok(samples)
    }
}

/// Returns the numbers of threads that each have a processor.
fn usable(threads: &[usize]) -> Vec<usize> {
    let (usable, rest): (Vec<usize>, Vec<usize>) =
        threads.iter().partition(|&&threads| threads <= cores());
    if !rest.is_empty() {
        eprintln!("hot-leaf: skipped {rest:?} threads, which are more than {} cores", cores());
    }
    if usable.is_empty() { vec![1] } else { usable }
}

/// Measures one variant until the locker was there as often as it should, and adds the rows.
fn record(
    samples: &mut Samples,
    round: usize,
    variant: &Variant<'_>,
    threads: usize,
    time: Duration,
    size: Size,
) -> anyhow::Result<()> {
    let Variant { of, name, baseline, measure } = variant;
    for _ in 0..TRIES {
        let (slices, locks_per_s) = measure(threads, time);
        let has_worked = slices.iter().all(|slice| slice.ops > 0);
        // A quick run has time for ten locks, so its rate says nothing.
        let is_on_time = locks_per_s >= RATE_SHARE * f64::from(LOCKS_PER_S);
        ensure!(slices.iter().all(|slice| slice.wrong == 0), "{name}: an answer was wrong");
        if !has_worked || !(is_on_time || size == Size::Quick) {
            continue;
        }
        let params_in = |phase: &'static str| {
            Params::from([
                ("of", (*of).into()),
                ("phase", phase.into()),
                ("threads", threads.into()),
            ])
        };
        let before = params_in(PHASES[0]);
        slices[0].add_to(samples, round, name, &before, baseline)?;
        for (slice, phase) in slices.iter().zip(PHASES).skip(1) {
            slice.add_against(samples, round, name, &params_in(phase), &before)?;
        }
        let mut params = Params::from([("of", (*of).into()), ("op", "lock".into())]);
        params.insert("threads", threads.into());
        samples.add(round, name, &params, (Metric::OpsPerSecond, locks_per_s), name);
        return Ok(());
    }
    eprintln!("hot-leaf: {name}: the locker did not run in round {round} with threads={threads}");
    Ok(())
}

/// Makes the path in `files` and returns who walks it.
fn walkers<F: Files>(files: &F) -> anyhow::Result<Variant<'_>> {
    let user = files.user();
    let mut parent = String::from("/");
    for name in DIRECTORIES {
        let dir = user.open_dir(parent.as_bytes()).context("a directory is missing")?;
        ensure!(user.make_dir(&dir, name.as_bytes()), "{}: no {name}", files.variant());
        parent = format!("{}/{name}", parent.trim_end_matches('/'));
    }
    let dir = user.open_dir(parent.as_bytes()).context("a directory is missing")?;
    ensure!(user.create(&dir, LEAF), "{}: no file", files.variant());
    let path = [parent.as_bytes(), b"/", LEAF].concat();
    let leaf = user.resolve(&path).context("the file is missing")?;
    let measure = move |threads, time| {
        let work = |_, turn: crew::Turn| {
            // Its own copy: nothing that a thread reads lies beside what another one writes.
            let (user, path) = (files.user(), path.clone());
            turn.run(|_| user.resolve(&path) == Some(leaf))
        };
        crew::run_phases((threads, PHASES.len()), time, work, |clock| {
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

/// Returns who counts with corewalk's lockref.
fn counters_of_ours() -> Variant<'static> {
    let measure = |threads, time| {
        let lockref = CachePadded::new(Lockref::new(1));
        let work = |_, turn: crew::Turn| {
            turn.run(|_| {
                lockref.get();
                lockref.put_return() > 0
            })
        };
        let outcome = crew::run_phases((threads, PHASES.len()), time, work, |clock| {
            clock.paced(1, LOCKS_PER_S, |_| {
                let guard = lockref.lock();
                hold();
                drop(guard);
            })
        });
        assert_eq!(lockref.count(), 1, "references do not add up");
        outcome
    };
    let (name, baseline) = ("corewalk", COUNT_BASELINE);
    Variant { of: "lockref", name, baseline, measure: Box::new(measure) }
}

/// Returns who counts by the rule of Linux.
fn counters_before() -> Variant<'static> {
    let measure = |threads, time| {
        let lockref = LockrefOff::new(1);
        let work = |_, turn: crew::Turn| {
            turn.run(|_| {
                lockref.get();
                lockref.put();
                true
            })
        };
        let outcome = crew::run_phases((threads, PHASES.len()), time, work, |clock| {
            clock.paced(1, LOCKS_PER_S, |_| lockref.with_lock(hold))
        });
        assert_eq!(lockref.count(), 1, "references do not add up");
        outcome
    };
    let (name, baseline) = (COUNT_BASELINE, COUNT_BASELINE);
    Variant { of: "lockref", name, baseline, measure: Box::new(measure) }
}

/// Lets a moment pass, as somebody does who looks at what a lock protects.
fn hold() {
    let start = Instant::now();
    while start.elapsed() < HOLD {
        hint::spin_loop();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quick_run_has_every_variant_in_every_phase() {
        let settings = Settings {
            size: Size::Quick,
            threads: vec![1, 2],
            time_per_row: Duration::from_millis(50),
            rounds: 5,
            again: None,
        };
        let rows = HotLeaf.run(&settings).expect("all answers are right").rows();
        let baseline = |of| if of == "walk" { WALK_BASELINE } else { COUNT_BASELINE };
        let expected = [
            ("walk", "corewalk"),
            ("walk", "rwlock-ahash"),
            ("walk", "linux"),
            ("lockref", "corewalk"),
            ("lockref", "before-lockref-off"),
        ];
        for (of, variant) in expected {
            for phase in PHASES {
                let row = rows.iter().find(|row| {
                    row.variant == variant
                        && row.metric == "ns_per_op"
                        && row.params.get("of") == Some(&of.into())
                        && row.params.get("phase") == Some(&phase.into())
                        && row.params["threads"] == 1
                });
                let row = row.expect("the row is there");
                assert!(row.median > 0.0 && row.ratio.is_some_and(|ratio| ratio > 0.0), "{row:?}");
                assert_eq!(row.baseline == variant, phase != "before" || variant == baseline(of));
            }
        }
    }

    #[test]
    fn threads_without_a_processor_are_left_out() {
        assert_eq!(usable(&[1, 100_000]), [1]);
        assert_eq!(usable(&[100_000]), [1]);
    }

    #[test]
    fn path_that_leads_elsewhere_is_a_wrong_answer() {
        let ours = Ours::new().unwrap();
        let variant = walkers(&ours).unwrap();
        let user = ours.user();
        let dir = user.open_dir(format!("/{}", DIRECTORIES.join("/")).as_bytes()).unwrap();
        assert!(user.rename((&dir, LEAF), (&dir, b"elsewhere")) && user.create(&dir, LEAF));
        let (slices, _) = (variant.measure)(1, Duration::from_millis(5));
        assert!(slices[0].wrong == slices[0].ops && slices[0].ops > 0);
    }
}
