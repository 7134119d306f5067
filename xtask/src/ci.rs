//! All checks that must pass before a change is merged.
//!
//! `cargo xtask ci` runs the steps, cheap ones first. Steps that use less than one processor run
//! beside others. If a step fails, the others still run, so that one run reports all failures. The
//! command prints the time and the processor time of each step. It also prints how many steps
//! passed, failed and were skipped. On two processors all steps take about 38 minutes.
//!
//! A step that cannot run is skipped. If `COREWALK_REQUIRE` contains `all`, as in `.ci/run`, it
//! counts as failed.
//!
//! `nightly` has longer versions of the randomized steps.
//!
//! Source: `docs/developing/testing.md`.

use crate::{
    Outcome, checks,
    process::{self, Ended},
    suites, tidy, traps,
};
use std::{
    env, fs,
    path::Path,
    process::Command,
    time::{Duration, Instant},
};

pub(crate) const STEP_LIMIT: Duration = Duration::from_secs(30 * 60);

/// The steps to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Extent {
    /// All steps.
    Full,
    /// All steps but the suites.
    Quick,
}

/// Tells where the result of `cargo test --workspace` comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tests<'a> {
    /// From a step of this run.
    Run,
    /// The exit status of the workspace's tests, which were run before the start of xtask.
    Ended(&'a str),
}

/// Runs the steps and prints the outcome of each.
pub(crate) fn run(root: &Path, extent: Extent, tests: Tests<'_>) -> Outcome {
    let mut tally = Tally::new();
    tally.step("format", || format(root));
    tally.step("tidy", || tidy::run(root));
    tally.step("traps", || traps::run(root, traps::Strictness::Demand));
    tally.step("tests", || match tests {
        Tests::Run => cargo(root, &["test", "--workspace"]),
        Tests::Ended("0") => Outcome::Passed,
        Tests::Ended(status) => Outcome::Failed(format!("cargo test: exit status {status}")),
    });
    tally.step("clippy", || {
        cargo(root, &["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"])
    });
    tally.step("documentation", || documentation(root));
    // Trap T33, a lost update of a flag: two threads change two flags of one entry 100 million
    // times, which takes about 20 s.
    tally.step("flags", || {
        cargo(root, &["run", "--profile", "models", "-p", "corewalk-mbcache", "--example", "flags"])
    });
    tally.step("ipc-torture", || torture(root, 5_000));
    tally.step("transports", || checks::transports(root));
    // The steps of the second list use less than one processor.
    tally.side_by_side(
        |tally| {
            tally.step("crash", || checks::crash(root));
            tally.step("loom", || checks::loom(root));
            tally.step("shuttle", || checks::shuttle(root));
            tally.step("tsan", || checks::tsan(root));
        },
        |tally| {
            tally.step("miri", || checks::miri(root));
            tally.step("storm", || storm(root));
            tally.step("ipc-hostile", || hostile(root, 1_000_000));
        },
    );
    tally.step("aarch64", || checks::aarch64(root));
    if extent == Extent::Full {
        suites_after_build(&mut tally, root);
    }
    tally.finish()
}

/// Builds the programs in release mode, and runs the test suites with them.
fn suites_after_build(tally: &mut Tally, root: &Path) {
    let mut is_built = false;
    tally.step("release build", || {
        // The suites of back ends by path and of asynchronous ones use these examples. The step
        // `tests` has built them.
        let examples = ["build", "--workspace", "--example", "mirror", "--example", "async_memory"];
        let programs = ["build", "--release", "-p", "corewalk-cli", "-p", "corewalk-conformance"];
        let outcome = match cargo(root, &programs) {
            Outcome::Passed => cargo(root, &examples),
            outcome => outcome,
        };
        is_built = outcome == Outcome::Passed;
        outcome
    });
    for name in suites::CI {
        tally.step(&format!("suite {name}"), || {
            if is_built {
                suites::run_one(root, name)
            } else {
                Outcome::Failed("the release build failed".to_owned())
            }
        });
    }
}

/// Checks that rustfmt would not change a file.
pub(crate) fn format(root: &Path) -> Outcome {
    cargo(root, &["fmt", "--all", "--check"])
}

/// Runs the torture test of the IPC crate, which kills `kills` processes at random moments.
pub(crate) fn torture(root: &Path, kills: u32) -> Outcome {
    let kills = kills.to_string();
    let test = ["test", "--profile", "models", "-p", "corewalk-ipc", "--test", "torture", "--"];
    cargo(root, &[&test[..], &[&kills]].concat())
}

/// Runs the IPC test of damaged memory, which overwrites `words` words of a namespace while other
/// threads make calls.
pub(crate) fn hostile(root: &Path, words: u32) -> Outcome {
    let mut command = workspace_test(root, "hostile");
    command.env("COREWALK_IPC_MUTATIONS", words.to_string());
    checks::tests_ran(&mut command, root, "ipc-hostile")
}

/// Runs the test of trap X1: a back end by path is called 400,000 times, while other threads rename
/// directories on these paths. No path may become invalid during a call.
fn storm(root: &Path) -> Outcome {
    let mut command = workspace_test(root, "by_path");
    // The threads of these tests mostly sleep, so more tests than processors may run.
    command.env("COREWALK_STORM_CALLS", "400000").args(["--", "storm", "--test-threads=4"]);
    checks::tests_ran(&mut command, root, "storm")
}

/// Returns the command that runs the test target `name`. It selects the whole workspace, as the
/// step `tests` does. Then cargo enables the same features in all crates, and need not build them
/// again.
fn workspace_test(root: &Path, name: &str) -> Command {
    let mut command = Command::new("cargo");
    command.current_dir(root).args(["test", "--workspace", "--test", name]);
    command
}

/// Runs cargo with `words`.
pub(crate) fn cargo(root: &Path, words: &[&str]) -> Outcome {
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

/// How a skipped step counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Skips {
    Count,
    Fail,
}

/// The outcomes of the steps of a run.
#[derive(Debug)]
pub(crate) struct Tally {
    start: Instant,
    skips: Skips,
    /// True if steps of another tally run at the same time. Then the processor time of one step is
    /// unknown, since the kernel counts only that of all children together.
    is_beside: bool,
    lines: Vec<String>,
    passed: u32,
    failed: u32,
    skipped: u32,
    /// Names of the steps that were skipped.
    left_out: Vec<String>,
}

impl Tally {
    /// Returns an empty tally of the outcomes of the steps of a run.
    pub(crate) fn new() -> Self {
        let list = env::var("COREWALK_REQUIRE").unwrap_or_default();
        Self::with(if demands_all(&list) { Skips::Fail } else { Skips::Count })
    }

    fn with(skips: Skips) -> Self {
        Self {
            start: Instant::now(),
            skips,
            is_beside: false,
            lines: Vec::new(),
            passed: 0,
            failed: 0,
            skipped: 0,
            left_out: Vec::new(),
        }
    }

    /// Runs `step` and counts its outcome.
    pub(crate) fn step(&mut self, name: &str, step: impl FnOnce() -> Outcome) {
        println!("=== {name}");
        let (start, cpu) = (Instant::now(), children_cpu());
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
        let cpu = (!self.is_beside).then(|| children_cpu().saturating_sub(cpu));
        self.print(name, start.elapsed(), cpu, &text);
    }

    /// Prints a line about a step, and keeps it for the end of the run.
    fn print(&mut self, name: &str, took: Duration, cpu: Option<Duration>, text: &str) {
        let cpu = cpu.map_or(" ".repeat(12), |cpu| format!("{:>6.1} s CPU", cpu.as_secs_f64()));
        let line = format!("{name:<18} {:>6.1} s  {cpu}  {text}", took.as_secs_f64());
        println!("--- {line}");
        self.lines.push(line);
    }

    /// Runs two lists of steps at the same time.
    pub(crate) fn side_by_side(
        &mut self,
        first: impl FnOnce(&mut Tally) + Send,
        second: impl FnOnce(&mut Tally),
    ) {
        let (start, cpu) = (Instant::now(), children_cpu());
        let skips = self.skips;
        let tallies =
            process::side_by_side(|| Tally::beside(skips, first), || Tally::beside(skips, second));
        for tally in tallies {
            self.lines.extend(tally.lines);
            self.passed += tally.passed;
            self.failed += tally.failed;
            self.skipped += tally.skipped;
            self.left_out.extend(tally.left_out);
        }
        let cpu = children_cpu().saturating_sub(cpu);
        self.print("side by side", start.elapsed(), Some(cpu), "the steps without processor time");
    }

    fn beside(skips: Skips, steps: impl FnOnce(&mut Tally)) -> Tally {
        let mut tally = Tally { is_beside: true, ..Tally::with(skips) };
        steps(&mut tally);
        tally
    }

    /// Prints all steps and the counts. Returns the outcome of the run.
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

    /// Prints all steps and the counts, like [`Tally::finish`]. The steps of this tally are
    /// together one step of a larger run, which counts as skipped if one of them was skipped.
    pub(crate) fn finish_as_one(self) -> Outcome {
        let left_out = self.left_out.join(", ");
        match self.finish() {
            Outcome::Passed if !left_out.is_empty() => Outcome::Skipped(left_out),
            outcome => outcome,
        }
    }
}

/// Returns true if the list `COREWALK_REQUIRE` allows no skipped step.
fn demands_all(list: &str) -> bool {
    list.split(',').any(|word| word.trim() == "all")
}

/// Returns the processor time of all child processes that have ended.
fn children_cpu() -> Duration {
    let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    children_ticks(&stat).map_or(Duration::ZERO, |ticks| Duration::from_millis(ticks * 10))
}

/// Returns the processor time of a process's ended children, in clock ticks of 10 ms: the sum of
/// the fields `cutime` and `cstime` of `stat`, the text of `/proc/PID/stat`.
fn children_ticks(stat: &str) -> Option<u64> {
    // Skip the name of the program, which ends at the last parenthesis of the line.
    let (_, rest) = stat.rsplit_once(") ")?;
    let mut fields = rest.split(' ').skip(13).map(str::parse::<u64>);
    Some(fields.next()?.ok()? + fields.next()?.ok()?)
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
    fn outcomes_of_steps_side_by_side_are_counted() {
        let mut tally = Tally::with(Skips::Count);
        let failed = |tally: &mut Tally| tally.step("a", || Outcome::Failed("bad".to_owned()));
        let skipped = |tally: &mut Tally| {
            tally.step("b", || Outcome::Skipped("no reason".to_owned()));
            tally.step("c", || Outcome::Passed);
        };
        tally.side_by_side(failed, skipped);
        assert_eq!((tally.passed, tally.failed, tally.skipped), (1, 1, 1));
        assert_eq!(tally.left_out, ["b"]);
        assert_eq!(tally.lines.len(), 4);
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

    #[test]
    fn processor_time_of_children_is_read_after_the_name() {
        let stat = "7 (a) b) S 1 7 7 0 -1 4194560 100 200 0 0 3 4 50 60 20 0 1 0 9 1 2";
        assert_eq!(children_ticks(stat), Some(110));
        assert_eq!(children_ticks("7 (a"), None);
    }
}
