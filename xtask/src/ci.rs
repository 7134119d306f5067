//! Everything that must hold before a change lands, as one task.
//!
//! The steps run one after the other, cheapest first, and a failing step does not stop the others:
//! one run tells all that is wrong. Each is timed; the last line counts them. The whole is meant to
//! take at most 25 minutes on two cores.
//!
//! Source: `docs/testing.md`.

use crate::{
    Outcome, checks,
    process::{self, Ended},
    suites, tidy, traps,
};
use std::{
    path::Path,
    process::Command,
    time::{Duration, Instant},
};

const STEP_LIMIT: Duration = Duration::from_secs(30 * 60);

/// How much of it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Extent {
    /// All steps.
    Full,
    /// All but those that need a mount.
    Quick,
}

/// Runs the steps and prints how each ended.
pub(crate) fn run(root: &Path, extent: Extent) -> Outcome {
    let mut tally = Tally::default();
    tally.step("format", || cargo(root, &["fmt", "--all", "--check"]));
    tally.step("tidy", || tidy::run(root));
    tally.step("traps", || traps::run(root, traps::Strictness::Demand));
    tally.step("clippy", || {
        cargo(root, &["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"])
    });
    tally.step("documentation", || documentation(root));
    tally.step("tests", || cargo(root, &["test", "--workspace"]));
    // 100 million changes of two flags by two threads, about 20 s (trap T33).
    tally.step("flags", || {
        cargo(root, &["run", "--release", "-p", "corewalk-mbcache", "--example", "flags"])
    });
    // 20,000 processes are killed in the middle of something.
    tally.step("ipc-torture", || {
        cargo(
            root,
            &["test", "--release", "-p", "corewalk-ipc", "--test", "torture", "--", "20000"],
        )
    });
    // A million words of a namespace are overwritten under its calls, about 50 s.
    tally.step("ipc-hostile", || {
        let mut command = Command::new("cargo");
        command.current_dir(root).env("COREWALK_IPC_MUTATIONS", "1000000");
        command.args(["test", "-p", "corewalk-ipc", "--test", "hostile"]);
        process::run(&mut command, STEP_LIMIT).outcome("cargo test")
    });
    // A million calls of a back end by path beside renames above them, about 40 s (trap X1).
    tally.step("storm", || {
        let mut command = Command::new("cargo");
        command.current_dir(root).env("COREWALK_STORM_CALLS", "1000000");
        command.args(["test", "-p", "corewalk", "--test", "by_path", "--", "storm"]);
        process::run(&mut command, STEP_LIMIT).outcome("cargo test")
    });
    tally.step("crash", || checks::crash(root));
    tally.step("loom", || checks::loom(root));
    tally.step("shuttle", || checks::shuttle(root));
    tally.step("tsan", || checks::tsan(root));
    tally.step("miri", || checks::miri(root));
    tally.step("aarch64", || checks::aarch64(root));
    if extent == Extent::Full {
        let mut is_built = false;
        tally.step("release build", || {
            let outcome = cargo(root, &["build", "--release", "--workspace"]);
            is_built = outcome == Outcome::Passed;
            outcome
        });
        for name in suites::CI {
            tally.step(&format!("suite {name}"), || {
                if is_built {
                    suites::run_one(root, name)
                } else {
                    Outcome::Failed("there is no program to test".to_owned())
                }
            });
        }
    }
    tally.finish()
}

fn cargo(root: &Path, words: &[&str]) -> Outcome {
    let mut command = Command::new("cargo");
    command.current_dir(root).args(words);
    process::run(&mut command, STEP_LIMIT).outcome(&format!("cargo {}", words[0]))
}

fn documentation(root: &Path) -> Outcome {
    let mut command = Command::new("cargo");
    command.current_dir(root).env("RUSTDOCFLAGS", "-D warnings");
    command.args(["doc", "--workspace", "--no-deps"]);
    match process::run(&mut command, STEP_LIMIT) {
        Ended::Well => Outcome::Passed,
        ended => ended.outcome("cargo doc"),
    }
}

/// How the steps of a run ended.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    lines: Vec<String>,
    passed: u32,
    failed: u32,
    skipped: u32,
    /// Names of the steps that were skipped.
    left_out: Vec<String>,
}

impl Tally {
    /// Runs `step` and counts how it ended.
    pub(crate) fn step(&mut self, name: &str, step: impl FnOnce() -> Outcome) {
        println!("=== {name}");
        let start = Instant::now();
        let (count, text) = match step() {
            Outcome::Passed => (&mut self.passed, "passed".to_owned()),
            Outcome::Failed(why) => (&mut self.failed, format!("FAILED: {why}")),
            Outcome::Skipped(why) => {
                self.left_out.push(name.to_owned());
                (&mut self.skipped, format!("skipped: {why}"))
            }
        };
        *count += 1;
        let line = format!("{name:<18} {:>6.1} s  {text}", start.elapsed().as_secs_f64());
        println!("--- {line}");
        self.lines.push(line);
    }

    /// Prints all steps and the line that counts them.
    pub(crate) fn finish(self) -> Outcome {
        println!("\n{}", self.lines.join("\n"));
        let Self { passed, failed, skipped, .. } = self;
        println!("{passed} passed, {failed} failed, {skipped} skipped");
        match (failed, passed) {
            (0, 0) => Outcome::Skipped("nothing ran".to_owned()),
            (0, _) => Outcome::Passed,
            _ => Outcome::Failed(format!("{failed} steps failed")),
        }
    }

    /// As [`Tally::finish`] of steps that are one thing only together: it was skipped if any of them was.
    pub(crate) fn finish_as_one(self) -> Outcome {
        let left_out = self.left_out.join(", ");
        match self.finish() {
            Outcome::Passed if !left_out.is_empty() => Outcome::Skipped(left_out),
            outcome => outcome,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_that_skip_count_neither_as_passed_nor_as_failed() {
        let mut tally = Tally::default();
        tally.step("a", || Outcome::Passed);
        tally.step("b", || Outcome::Skipped("no reason".to_owned()));
        assert_eq!((tally.passed, tally.failed, tally.skipped), (1, 0, 1));
        assert_eq!(tally.finish(), Outcome::Passed);
    }

    #[test]
    fn steps_that_are_one_are_skipped_if_one_is() {
        let of = |outcomes: [Outcome; 3]| {
            let mut tally = Tally::default();
            for (name, outcome) in ["a", "b", "c"].into_iter().zip(outcomes) {
                tally.step(name, || outcome);
            }
            tally.finish_as_one()
        };
        let (skipped, failed) = (|| Outcome::Skipped("x".into()), || Outcome::Failed("y".into()));
        assert_eq!(of([Outcome::Passed, Outcome::Passed, Outcome::Passed]), Outcome::Passed);
        let some = of([skipped(), Outcome::Passed, skipped()]);
        assert_eq!(some, Outcome::Skipped("a, c".to_owned()));
        assert_eq!(
            of([skipped(), failed(), Outcome::Passed]),
            Outcome::Failed("1 steps failed".into())
        );
    }

    #[test]
    fn one_step_that_fails_fails_the_run_and_stops_nothing() {
        let mut tally = Tally::default();
        tally.step("a", || Outcome::Failed("bad".to_owned()));
        tally.step("b", || Outcome::Passed);
        assert_eq!(tally.finish(), Outcome::Failed("1 steps failed".to_owned()));
    }
}
