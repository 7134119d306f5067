//! The long versions of the randomized checks, for a machine that has the night.
//!
//! `cargo xtask ci` runs each of them for seconds. Here each runs long enough for rare schedules
//! and rare inputs. Every one prints its seed when it fails; `docs/testing.md` says how to repeat
//! a run.
//!
//! Source: `docs/testing.md`.

use crate::{
    Outcome, checks,
    ci::{self, STEP_LIMIT, Tally},
    process, suites,
};
use std::{path::Path, process::Command};

/// A test with the variables that make it long.
struct Long {
    name: &'static str,
    /// The words after `cargo test`.
    words: &'static [&'static str],
    variables: &'static [(&'static str, &'static str)],
}

const STEPS: &[(&str, &str)] = &[("COREWALK_DIFFERENTIAL_OPS", "1000000")];

const LONG: [Long; 6] = [
    Long {
        name: "ipc differential",
        words: &["-p", "corewalk-ipc", "--test", "differential"],
        variables: STEPS,
    },
    Long {
        name: "preload differential",
        words: &["-p", "corewalk-ipc-preload", "--test", "differential"],
        variables: STEPS,
    },
    Long {
        name: "store kills",
        words: &["-p", "corewalk-cli", "--test", "cli", "store"],
        variables: &[("COREWALK_KILLS", "200")],
    },
    Long {
        name: "store damage",
        words: &["-p", "corewalk-store", "--test", "store", "pages"],
        variables: &[("COREWALK_META_MUTATIONS", "20000")],
    },
    Long {
        name: "storm by path",
        words: &["-p", "corewalk", "--test", "by_path"],
        variables: &[("COREWALK_STORM_CALLS", "2000000")],
    },
    Long {
        name: "fuzz",
        words: &["--workspace", "fuzz_"],
        variables: &[("COREWALK_FUZZ_TIMES", "200")],
    },
];

/// Runs all of them and prints how each ended.
pub(crate) fn run(root: &Path) -> Outcome {
    let mut tally = Tally::new();
    for long in &LONG {
        tally.step(long.name, || test(root, long));
    }
    tally.step("ipc-hostile", || ci::hostile(root, 10_000_000));
    tally.step("ipc-torture", || ci::torture(root, 50_000));
    tally.step("miri, 16 seeds", || checks::miri_with(root, "-Zmiri-many-seeds=0..16"));
    // All crates, the lab among them, as they are measured and shipped.
    tally.step("release build", || ci::cargo(root, &["build", "--release", "--workspace"]));
    tally.step("suite ipc-programs", || suites::run_one(root, "ipc-programs"));
    tally.finish()
}

fn test(root: &Path, long: &Long) -> Outcome {
    let mut command = Command::new("cargo");
    command.current_dir(root).arg("test").args(long.words);
    command.envs(long.variables.iter().copied());
    process::run(&mut command, STEP_LIMIT * 2).outcome("cargo test")
}
