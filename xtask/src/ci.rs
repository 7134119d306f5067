//! All checks that must pass before a change is merged.
//!
//! `cargo xtask ci` first builds all tests, then runs clippy and rustdoc, which share the tests'
//! build scripts and macros. The other steps run in four lanes side by side, since the tests mostly
//! wait. Two lanes run tests and the suites. The other two only compute: they build, or run models.
//! They give way to the tests, whose answers may depend on time.
//!
//! If a step fails, the others still run, so that one run reports all failures. The command prints
//! the time and the processor time of each step, and how many passed, failed and were skipped.
//!
//! A step that cannot run is skipped. If `COREWALK_REQUIRE` contains `all`, as in `.ci/run`, it
//! counts as failed.
//!
//! `nightly` has longer versions of the randomized steps.
//!
//! Source: `docs/developing/testing.md`.

use crate::{Outcome, checks, process, suites, tidy, traps};
use std::{
    env,
    path::Path,
    process::Command,
    time::{Duration, Instant},
};

pub(crate) const STEP_LIMIT: Duration = Duration::from_secs(30 * 60);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Extent {
    Full,
    Quick,
}

/// Steps that run one after another, beside those of other lanes.
type Lane<'a> = Box<dyn FnOnce(&mut Tally) + Send + 'a>;

pub(crate) fn run(root: &Path, extent: Extent) -> Outcome {
    let mut tally = Tally::new();
    tally.step("format", || format(root));
    tally.step("tidy", || tidy::run(root));
    tally.step("traps", || traps::run(root, traps::Strictness::Demand));
    tally.step("test build", || cargo(root, &["test", "--workspace", "--no-run"]));
    tally.step("clippy", || clippy(root));
    tally.step("documentation", || documentation(root));
    tally.side_by_side([
        // With `--no-fail-fast`, one run reports all failures.
        Box::new(|tally| {
            tally.step("tests", || cargo(root, &["test", "--workspace", "--no-fail-fast"]));
        }),
        Box::new(|tally| run_calls(tally, root, extent)),
        Box::new(|tally| {
            process::give_way();
            tally.step("flags", || flags(root));
            tally.step("aarch64", || checks::aarch64(root));
            tally.step("shuttle", || checks::shuttle(root));
        }),
        Box::new(|tally| {
            process::give_way();
            tally.step("miri", || checks::miri(root));
            tally.step("loom", || checks::loom(root));
            tally.step("crash", || checks::crash(root));
            tally.step("tsan", || checks::tsan(root));
        }),
    ]);
    tally.finish()
}

fn run_calls(tally: &mut Tally, root: &Path, extent: Extent) {
    tally.step("storm", || storm(root));
    tally.step("ipc-hostile", || hostile(root, 1_000_000));
    tally.step("ipc-torture", || torture(root, 5_000));
    tally.step("transports", || checks::transports(root));
    // The suites use the programs of the step `test build`, which have debug assertions, unlike
    // those of a release.
    if extent == Extent::Full {
        for name in suites::CI {
            tally.step(&format!("suite {name}"), || suites::run_one(root, "debug", name));
        }
    }
}

/// Runs the example `flags`, which the step `test build` has built. Two threads change two flags of
/// one entry 100 million times, and no change may be lost (trap T33 in `traps.md`).
fn flags(root: &Path) -> Outcome {
    let program = checks::target_folder(root).join("debug/examples/flags");
    process::run(&mut Command::new(program), STEP_LIMIT).outcome("flags")
}

fn clippy(root: &Path) -> Outcome {
    let mut command = Command::new("cargo");
    command.current_dir(root).args(["clippy", "--workspace", "--all-targets"]);
    command.args(["--", "-D", "warnings"]);
    checks::logged(&mut command, root, "clippy").0.outcome("cargo clippy")
}

fn documentation(root: &Path) -> Outcome {
    let mut command = Command::new("cargo");
    command.current_dir(root).args(["doc", "--workspace", "--no-deps"]);
    command.env("RUSTDOCFLAGS", "-D warnings");
    checks::logged(&mut command, root, "documentation").0.outcome("cargo doc")
}

pub(crate) fn format(root: &Path) -> Outcome {
    cargo(root, &["fmt", "--all", "--check"])
}

pub(crate) fn torture(root: &Path, kills: u32) -> Outcome {
    let mut command = workspace_test(root, "torture");
    command.args(["--", &kills.to_string()]);
    process::run(&mut command, STEP_LIMIT).outcome("torture")
}

pub(crate) fn hostile(root: &Path, words: u32) -> Outcome {
    let mut command = workspace_test(root, "hostile");
    command.env("COREWALK_IPC_MUTATIONS", words.to_string());
    checks::tests_ran(&mut command, root, "ipc-hostile")
}

/// Runs storms in which directories are renamed during 400,000 calls of a back end by path. No path
/// may become invalid during a call (trap X1 in `traps.md`).
fn storm(root: &Path) -> Outcome {
    let mut command = workspace_test(root, "by_path");
    // The threads of these tests mostly sleep, so more tests than processors run at the same time.
    command.env("COREWALK_STORM_CALLS", "400000").args(["--", "storm", "--test-threads=4"]);
    checks::tests_ran(&mut command, root, "storm")
}

/// Returns the command that runs the test program `name`. Like the step `tests`, it selects the
/// whole workspace. So cargo enables the same features, and need not build the crates again.
fn workspace_test(root: &Path, name: &str) -> Command {
    let mut command = Command::new("cargo");
    command.current_dir(root).args(["test", "--workspace", "--test", name]);
    command
}

pub(crate) fn cargo(root: &Path, words: &[&str]) -> Outcome {
    let mut command = Command::new("cargo");
    command.current_dir(root).args(words);
    process::run(&mut command, STEP_LIMIT).outcome(&format!("cargo {}", words[0]))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Skips {
    Count,
    Fail,
}

#[derive(Debug)]
pub(crate) struct Tally {
    start: Instant,
    skips: Skips,
    lines: Vec<String>,
    passed: u32,
    failed: u32,
    skipped: u32,
    left_out: Vec<String>,
}

impl Tally {
    pub(crate) fn new() -> Self {
        let list = env::var("COREWALK_REQUIRE").unwrap_or_default();
        Self::with(if demands_all(&list) { Skips::Fail } else { Skips::Count })
    }

    fn with(skips: Skips) -> Self {
        Self {
            start: Instant::now(),
            skips,
            lines: Vec::new(),
            passed: 0,
            failed: 0,
            skipped: 0,
            left_out: Vec::new(),
        }
    }

    pub(crate) fn step(&mut self, name: &str, step: impl FnOnce() -> Outcome) {
        println!("=== {name}");
        let (start, cpu) = (Instant::now(), process::thread_cpu());
        let (count, text) = match step() {
            Outcome::Passed => (&mut self.passed, "passed".to_owned()),
            Outcome::Failed(why) => (&mut self.failed, format!("FAILED: {why}")),
            Outcome::Skipped(why) if self.skips == Skips::Fail => {
                let text = format!("FAILED: COREWALK_REQUIRE forbids a skip: {why}");
                (&mut self.failed, text)
            }
            Outcome::Skipped(why) => {
                self.left_out.push(name.to_owned());
                (&mut self.skipped, format!("skipped: {why}"))
            }
        };
        *count += 1;
        let (took, cpu) = (start.elapsed().as_secs_f64(), process::thread_cpu() - cpu);
        let line = format!("{name:<18} {took:>6.1} s  {:>6.1} s CPU  {text}", cpu.as_secs_f64());
        println!("--- {line}");
        self.lines.push(line);
    }

    fn side_by_side<const LANES: usize>(&mut self, lanes: [Lane<'_>; LANES]) {
        let skips = self.skips;
        let tallies = process::side_by_side(lanes.map(|lane| {
            move || {
                let mut tally = Tally::with(skips);
                lane(&mut tally);
                tally
            }
        }));
        for tally in tallies {
            self.lines.extend(tally.lines);
            self.passed += tally.passed;
            self.failed += tally.failed;
            self.skipped += tally.skipped;
            self.left_out.extend(tally.left_out);
        }
    }

    pub(crate) fn finish(self) -> Outcome {
        let took = self.start.elapsed().as_secs_f64();
        println!("\n{}\nall steps{took:>16.1} s", self.lines.join("\n"));
        let Self { passed, failed, skipped, .. } = self;
        println!("{passed} passed, {failed} failed, {skipped} skipped");
        match (failed, passed) {
            (0, 0) => Outcome::Skipped("nothing ran".to_owned()),
            (0, _) => Outcome::Passed,
            _ => Outcome::Failed(format!("{failed} steps failed")),
        }
    }

    /// Returns one outcome for all steps, as for one step of a larger run. It is skipped if none
    /// has failed and one of the steps was skipped.
    pub(crate) fn finish_as_one(self) -> Outcome {
        let left_out = self.left_out.join(", ");
        match self.finish() {
            Outcome::Passed if !left_out.is_empty() => Outcome::Skipped(left_out),
            outcome => outcome,
        }
    }
}

fn demands_all(list: &str) -> bool {
    list.split(',').any(|word| word.trim() == "all")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn skipped_step_counts_neither_as_passed_nor_as_failed() {
        let mut tally = Tally::with(Skips::Count);
        tally.step("a", || Outcome::Passed);
        tally.step("b", || Outcome::Skipped("no reason".to_owned()));
        assert_eq!((tally.passed, tally.failed, tally.skipped), (1, 0, 1));
        assert_eq!(tally.finish(), Outcome::Passed);
    }

    #[test]
    fn parts_of_a_step_are_skipped_if_one_part_is() {
        let of = |outcomes: [Outcome; 3]| {
            let mut tally = Tally::with(Skips::Count);
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
    fn failed_step_fails_the_run_and_does_not_stop_it() {
        let mut tally = Tally::with(Skips::Count);
        tally.step("a", || Outcome::Failed("bad".to_owned()));
        tally.step("b", || Outcome::Passed);
        assert_eq!(tally.finish(), Outcome::Failed("1 steps failed".to_owned()));
    }

    #[test]
    fn outcomes_of_all_lanes_are_counted() {
        let mut tally = Tally::with(Skips::Count);
        let failed = |tally: &mut Tally| tally.step("a", || Outcome::Failed("bad".to_owned()));
        let skipped = |tally: &mut Tally| {
            tally.step("b", || Outcome::Skipped("no reason".to_owned()));
            tally.step("c", || Outcome::Passed);
        };
        tally.side_by_side([Box::new(failed), Box::new(skipped)]);
        assert_eq!((tally.passed, tally.failed, tally.skipped), (1, 1, 1));
        assert_eq!(tally.left_out, ["b"]);
        assert_eq!(tally.lines.len(), 3);
        assert_eq!(tally.finish(), Outcome::Failed("1 steps failed".to_owned()));
    }

    #[test]
    fn forbidden_skip_counts_as_failed() {
        let mut tally = Tally::with(Skips::Fail);
        tally.step("a", || Outcome::Skipped("no reason".to_owned()));
        tally.step("b", || Outcome::Passed);
        assert_eq!((tally.passed, tally.failed, tally.skipped), (1, 1, 0));
        assert_eq!(tally.finish_as_one(), Outcome::Failed("1 steps failed".to_owned()));
    }

    #[test]
    fn only_the_word_all_forbids_a_skipped_step() {
        let demands = ["all", "machine, all", "", "root", "alls"].map(demands_all);
        assert_eq!(demands, [true, true, false, false, false]);
    }
}
