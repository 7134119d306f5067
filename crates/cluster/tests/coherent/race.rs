//! Races of calls on several mounts. Each history of calls must be linearizable, with and without
//! disturbances.
//!
//! A run consists of rounds. In a round, threads of all mounts make random calls in two new
//! directories. Then the checker looks for an order of the calls that explains all results. The
//! share of changes differs between rounds, because caches are used only while changes are rare.
//! `COREWALK_COHERENT_CALLS` sets the number of calls of a run.
//!
//! Disturbances are pauses of connections, crashes of the database and takeovers by a standby.
//! Several protections prevent wrong answers in these cases. Each has a *control*, in which the
//! protection is turned off, and in which the checker must find a violation.

use std::time::Duration;

use corewalk_base::Mutex;
use corewalk_base::primitives::thread;
use corewalk_base::primitives::unmodelled::{AtomicU64, Ordering};
use corewalk_cluster::{ClusterFs, ClusterOptions, Flaws, Url};
use corewalk_testkit::history::{Clock, History, Recorder};
use corewalk_testkit::linearize::{Limit, Verdict, check, report};
use corewalk_testkit::postgres::Postgres;
use corewalk_testkit::rng::{ReportSeed, Rng, Seed};

use crate::fixtures::{Pair, ROOT, Site, counter, mkdir, options, takeovers};
use crate::model::{NAMES, Op, Place, Space};
use corewalk_testkit::proxy::Proxy;

const THREADS: usize = 2;
const CALLS: usize = 50;
const LEASE: Duration = Duration::from_secs(2);

struct Run {
    rounds: usize,
    pace: Duration,
    reader: Option<usize>,
    rng: Rng,
}

impl Run {
    fn new(rounds: usize, pace: Duration, seed: Seed) -> Run {
        Run { rounds, pace, reader: None, rng: Rng::new(seed) }
    }

    /// Runs all rounds, and calls `disturb` in each round while the threads run. Returns the number
    /// of calls, or a report of the first history that is not linearizable.
    fn race(
        &self,
        mounts: &[ClusterFs],
        mut disturb: impl FnMut(usize) + Send,
    ) -> Result<usize, String> {
        let mut count = 0;
        for round in 0..self.rounds {
            let parent = mkdir(&mounts[round % mounts.len()], ROOT, &format!("r{round}")).ino;
            let dirs =
                ["d", "e"].map(|text| mkdir(&mounts[round % mounts.len()], parent, text).ino);
            let place = Place { dirs, known: Mutex::default() };
            let (clock, owners) = (Clock::new(), AtomicU64::new(1));
            let rng = self.rng.fork(round as u64);
            let recorders = thread::scope(|scope| {
                let start = |number: usize| {
                    let (place, clock, owners) = (&place, &clock, &owners);
                    let fs = &mounts[number % mounts.len()];
                    let mut rng = rng.fork(number as u64);
                    let is_reader = self.reader == Some(number % mounts.len());
                    let changes = if is_reader { 0 } else { [3, 15, 60][round % 3] };
                    scope.spawn(move || {
                        let mut recorder = Recorder::new(clock, number, CALLS);
                        for _ in 0..CALLS {
                            let pace = self.pace.as_micros() as u64;
                            if pace > 0 {
                                thread::sleep(Duration::from_micros(rng.below(pace)));
                            }
                            let op = choose(&mut rng, changes, place, owners);
                            recorder.call(op, || place.call(fs, op));
                        }
                        recorder
                    })
                };
                let threads: Vec<_> = (0..mounts.len() * THREADS).map(start).collect();
                disturb(round);
                threads.into_iter().map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
            });
            let history = History::join(recorders);
            count += history.len();
            match check(&Space::default(), &history, Limit::default()) {
                Verdict::Linearizable(_) => {}
                Verdict::Violated => {
                    let text = report(&Space::default(), &history, Limit::default());
                    return Err(format!("round {round}: {text}"));
                }
                Verdict::Undecided => return Err(format!("round {round} was not decided")),
            }
        }
        Ok(count)
    }
}

fn choose(rng: &mut Rng, changes: u64, place: &Place, owners: &AtomicU64) -> Op {
    let known: Vec<u32> = place.known.lock().iter().map(|(owner, _)| *owner).collect();
    // Choose among the last four inodes, because most of the older ones have no name any more.
    let known = &known[known.len().saturating_sub(4)..];
    let at = rng.index(NAMES);
    let other = (at + 1 + rng.index(NAMES - 1)) % NAMES;
    // ORDERING: Relaxed. The addition alone makes the numbers differ.
    let make = || Op::Create(at, owners.fetch_add(1, Ordering::Relaxed) as u32);
    if known.is_empty() {
        return make();
    }
    let owner = *rng.pick(known);
    if !rng.chance(changes, 100) {
        return if rng.chance(1, 2) { Op::Lookup(at) } else { Op::Get(owner) };
    }
    match rng.below(8) {
        0 | 1 => make(),
        2 => Op::Remove(at, owner),
        3 => Op::Rename(at, other),
        4 => Op::Exchange(at, other),
        5 => Op::Link(owner, at),
        _ => Op::SetMode(owner, rng.below(0o1000) as u32),
    }
}

/// `COREWALK_COHERENT_CALLS` overrides `calls`.
fn rounds(mounts: usize, calls: usize) -> usize {
    let calls = match std::env::var("COREWALK_COHERENT_CALLS") {
        Ok(text) => text.parse().expect("COREWALK_COHERENT_CALLS is a number"),
        Err(_) => calls,
    };
    (calls / (mounts * THREADS * CALLS)).max(3)
}

fn short() -> ClusterOptions {
    options().with_lease(LEASE)
}

fn open(url: &Url, options: &ClusterOptions) -> ClusterFs {
    ClusterFs::open(url, options).unwrap()
}

#[test]
fn histories_of_three_mounts_are_linearizable() {
    let Some(site) = Site::new() else { return };
    let seed = ReportSeed::new(Seed::choose());
    let mounts = [(); 3].map(|()| open(&site.parsed(), &short()));
    let run = Run::new(rounds(3, 30_000), Duration::ZERO, seed.seed());
    let count = run.race(&mounts, |_| {}).unwrap_or_else(|text| panic!("{text}"));
    let waits: u64 = mounts.iter().map(|fs| counter(fs, "cluster_waits")).sum();
    let intents: u64 = mounts.iter().map(|fs| counter(fs, "cluster_intents_seen")).sum();
    let statements: u64 = mounts.iter().map(|fs| counter(fs, "cluster_statements")).sum();
    println!("{count} calls, {statements} statements, {waits} waits, {intents} intents");
    assert!(waits > 0 && intents > 0);
    drop(mounts);
    site.assert_clean();
}

#[test]
fn mount_that_hears_nothing_is_late_but_not_wrong() {
    let Some(site) = Site::new() else { return };
    let seed = ReportSeed::new(Seed::choose());
    let deaf = short().with_flaws(Flaws { hears_nothing: true, ..Flaws::default() });
    let mounts = [open(&site.parsed(), &short()), open(&site.parsed(), &deaf)];
    let run = Run::new(9, Duration::ZERO, seed.seed());
    run.race(&mounts, |_| {}).unwrap_or_else(|text| panic!("{text}"));
}

/// Runs a race of two mounts, in which the connections of the second mount stop for longer than its
/// lease time. The second mount makes no changes, so it answers from its cache until the lease is
/// over.
fn race_with_pauses(flaws: Flaws, rounds: usize) -> Option<Result<usize, String>> {
    let site = Site::new()?;
    let seed = ReportSeed::new(Seed::choose());
    let proxy = Proxy::new(&site.url);
    let mounts = [
        open(&site.parsed(), &short()),
        open(&Url::parse(proxy.url()).unwrap(), &short().with_flaws(flaws)),
    ];
    let mut run = Run::new(rounds, Duration::from_millis(120), seed.seed());
    run.reader = Some(1);
    Some(run.race(&mounts, |_| {
        thread::sleep(LEASE / 4);
        proxy.pause(true);
        thread::sleep(LEASE * 3 / 2);
        proxy.pause(false);
    }))
}

#[test]
fn paused_mount_does_not_answer_after_its_lease() {
    let Some(done) = race_with_pauses(Flaws::default(), 6) else { return };
    done.unwrap_or_else(|text| panic!("{text}"));
}

#[test]
fn control_paused_mount_that_ignores_the_clock_is_caught() {
    let flaws = Flaws { ignores_the_clock: true, ..Flaws::default() };
    assert!(is_caught(|| race_with_pauses(flaws, 30)));
}

#[test]
fn control_mount_that_keeps_what_it_should_drop_is_caught() {
    let Some(site) = Site::new() else { return };
    let seed = ReportSeed::new(Seed::choose());
    let flawed = short().with_flaws(Flaws { keeps_after_intent: true, ..Flaws::default() });
    let mounts = [open(&site.parsed(), &short()), open(&site.parsed(), &flawed)];
    assert!(Run::new(200, Duration::ZERO, seed.seed()).race(&mounts, |_| {}).is_err());
}

#[test]
fn control_mount_that_caches_late_answers_is_caught() {
    let Some(site) = Site::new() else { return };
    let seed = ReportSeed::new(Seed::choose());
    let flawed = short().with_flaws(Flaws { caches_late_answers: true, ..Flaws::default() });
    let mounts = [open(&site.parsed(), &short()), open(&site.parsed(), &flawed)];
    assert!(Run::new(400, Duration::ZERO, seed.seed()).race(&mounts, |_| {}).is_err());
}

/// Returns true if a race with a turned-off protection finds a violation. On a busy machine one
/// race may not find it, so up to four are run. Returns true also if PostgreSQL is not installed.
fn is_caught(race: impl Fn() -> Option<Result<usize, String>>) -> bool {
    (0..4).any(|_| race().is_none_or(|done| done.is_err()))
}

fn race_with_kills(
    site: &Site,
    flaws: Flaws,
    rounds: usize,
    mut kill: impl FnMut() + Send,
) -> Result<usize, String> {
    let seed = ReportSeed::new(Seed::choose());
    let flawed = short().with_flaws(flaws);
    let mounts = [open(&site.parsed(), &short()), open(&site.parsed(), &flawed)];
    Run::new(rounds, Duration::from_millis(100), seed.seed()).race(&mounts, |_| {
        thread::sleep(Duration::from_millis(500));
        kill();
    })
}

fn race_with_crashes(flaws: Flaws, rounds: usize) -> Option<Result<usize, String>> {
    let mut postgres = Postgres::start()?;
    let site = Site::on(&postgres);
    Some(race_with_kills(&site, flaws, rounds, || {
        postgres.kill();
        postgres.restart();
    }))
}

#[test]
fn crash_of_the_database_leaves_no_old_answer() {
    let Some(done) = race_with_crashes(Flaws::default(), 6) else { return };
    done.unwrap_or_else(|text| panic!("{text}"));
}

#[test]
fn control_mount_that_keeps_its_cache_over_a_crash_is_caught() {
    let flaws = Flaws { keeps_after_restart: true, ..Flaws::default() };
    assert!(is_caught(|| race_with_crashes(flaws, 30)));
}

fn race_with_takeovers(flaws: Flaws, rounds: usize) -> Option<Result<usize, String>> {
    let (mut pair, site) = Pair::new()?;
    Some(race_with_kills(&site, flaws, rounds, || pair.take_over()))
}

#[test]
fn takeover_by_the_standby_leaves_no_old_answer() {
    let Some(done) = race_with_takeovers(Flaws::default(), takeovers() as usize) else { return };
    done.unwrap_or_else(|text| panic!("{text}"));
}

#[test]
fn control_mount_that_keeps_its_cache_over_a_takeover_is_caught() {
    let flaws = Flaws { keeps_after_restart: true, ..Flaws::default() };
    assert!(is_caught(|| race_with_takeovers(flaws, 30)));
}
