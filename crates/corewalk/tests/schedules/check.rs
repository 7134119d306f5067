//! Runs a program of shuttle under two schedulers.

use corewalk_testkit::rng::{ReportSeed, Seed};
use shuttle::scheduler::{PctScheduler, RandomScheduler};
use shuttle::{Config, Runner};

/// Number of schedules per scheduler, unless `COREWALK_SCHEDULES` is set. It is large enough for
/// each control test (a test with a bug on purpose) to fail.
const SCHEDULES: usize = 600;
/// The number of preemptions in a PCT schedule.
const DEPTH: usize = 3;

/// Runs `program` under two schedulers: PCT, which has a known probability of finding a bug that
/// needs few preemptions, and a random one.
pub fn check(program: impl Fn() + Copy + Send + Sync + 'static) {
    let schedules = std::env::var("COREWALK_SCHEDULES").map_or(SCHEDULES, |n| n.parse().unwrap());
    let seed = Seed::choose();
    let _report = ReportSeed::new(seed);
    let mut config = Config::new();
    config.stack_size = 0x4_0000;
    let pct = PctScheduler::new_from_seed(seed.0, DEPTH, schedules);
    Runner::new(pct, config.clone()).run(program);
    let random = RandomScheduler::new_from_seed(seed.0, schedules);
    Runner::new(random, config).run(program);
}
