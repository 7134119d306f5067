//! Table `one-cpu`: the same users on one processor, where RCU must not cost anything.
//!
//! Document 003 (McKenney, Sarma, Soni, 2004) ends its measurements with a kernel on one processor of
//! 700 MHz, whose build times "showed no change", and concludes that the RCU dcache "also maintains
//! good performance on low-end machines". It gives no figures. Units: jobs per second of wall time, all
//! users together, and nanoseconds of processor time per job.
//!
//! # What is done
//! The workload and the variants are those of `multiuser`, with the process kept on one of the
//! processors that it may use. Nobody then waits for a line of another processor, and a lock is only
//! contended if its holder loses the processor.
//!
//! # The claim, as a shape
//! corewalk does at least as many jobs as the lock it replaces (`before-dcache-lock`), with any number
//! of users: no ratio is below 1 by more than the rows vary. Both stand on the same tmpfs.
//!
//! # What it keeps and what it drops
//! It keeps one processor; it drops the kernel without SMP, whose locks are compiled away.
//!
//! # Checks
//! Those of `multiuser`.
//!
//! Source: document 003, "Performance and Complexity Comparisons"; sched_setaffinity(2).

use std::fmt::Write as _;

use serde_json::Value;

use super::multiuser::{self, BASELINE, Processors, USERS};
use super::{Claim, Grid, Settings, Table, shape};
use crate::samples::{Row, Samples};

/// The table.
pub(super) struct OneCpu;

impl Table for OneCpu {
    fn name(&self) -> &'static str {
        "one-cpu"
    }

    fn source(&self) -> &'static str {
        "no loss on one processor: document 003 (Linux Journal, 2004)"
    }

    fn about(&self) -> &'static str {
        "the users of multiuser with the process on one processor"
    }

    fn claim(&self) -> &'static str {
        "On one processor nothing is lost against one lock around lookups."
    }

    fn footer(&self, rows: &[Row]) -> String {
        let mut out = multiuser::published();
        for users in USERS.1 {
            let params = [("users", Value::from(*users))];
            let share = shape::times(shape::ratio(rows, "corewalk", "ns_per_op", &params));
            let _ =
                writeln!(out, "{users} users: processor time of corewalk, {share} of {BASELINE}");
        }
        out
    }

    fn claims(&self, rows: &[Row]) -> Vec<Claim> {
        let ours = rows.iter().filter(|row| row.variant == "corewalk");
        vec![Claim::no_loss(&format!("on one processor no row loses against {BASELINE}"), ours)]
    }

    fn grids(&self, settings: &Settings) -> Vec<Grid> {
        vec![multiuser::grid(settings)]
    }

    fn run(&self, settings: &Settings) -> anyhow::Result<Samples> {
        multiuser::measure(self.name(), settings, Processors::One)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::peer::all_cpus;

    #[test]
    fn quick_run_has_every_variant_and_gives_the_processors_back() {
        let before = all_cpus().unwrap().count();
        multiuser::tests::check(&OneCpu);
        assert_eq!(all_cpus().unwrap().count(), before);
    }
}
