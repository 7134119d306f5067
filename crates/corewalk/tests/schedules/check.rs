//! Runs a program of shuttle under two schedulers.

use corewalk_testkit::rng::{ReportSeed, Seed};
use shuttle::scheduler::{PctScheduler, RandomScheduler};
use shuttle::{Config, Runner};

/// The number of schedules of each scheduler, if `COREWALK_SCHEDULES` is not set. This number of
/// schedules catches each control.
const SCHEDULES: usize = 600;
/// The number of preemptions in a PCT schedule.
const DEPTH: usize = 3;

/// Runs `program` under PCT, which finds bugs of few preemptions with a known probability, and
/// under a random scheduler.
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
