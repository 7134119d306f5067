//! The development tasks of this repository: `cargo xtask TASK`.
//!
//! The steps of continuous integration are in this program, and not in the configuration of a CI
//! service. So they run in the same way on a developer's machine. Each task is a module, which
//! prints its progress and returns an [`Outcome`].
//!
//! This program uses only the standard library, so that it builds in seconds and adds no
//! dependencies to the workspace.
//!
//! A task that cannot run on this machine prints `skipped: reason`. It counts as skipped and not as
//! passed.
//!
//! Source: the xtask convention, <https://github.com/matklad/cargo-xtask>; TigerBeetle's tidy.zig.
#![forbid(unsafe_code)]

mod check;
mod checks;
mod ci;
mod nightly;
mod process;
mod release;
mod source;
mod suites;
mod tidy;
mod traps;

use std::{env, path::PathBuf, process::ExitCode};

const USAGE: &str = "\
usage: cargo xtask TASK

  check               format, tidy, traps, clippy and unit tests of the changed crates: minutes
  ci [--quick]        all tests and checks; --quick leaves out the suites: half an hour
  nightly             long versions of the randomized tests: hours
  tidy                check the rules of docs/developing/style.md that a program can check
  traps [--strict]    print the tests of each trap in docs/developing/traps.md; --strict: fail if one has none
  loom                run the models under loom
  shuttle             run the models under shuttle
  crash               run the models that stop a task before each store
  miri                run the unit tests of the unsafe crates under miri
  tsan                run the stress tests under ThreadSanitizer
  aarch64             compile the unsafe libraries for 64-bit ARM, and run unit tests in an emulator
  suites [NAME...]    run test suites of other projects and real programs; default: all
  suites --list       print the names of the suites
  help                print this text

exit status: 0 passed or skipped, 1 failed, 2 invalid command line
";

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Passed,
    /// The task has failed. The text gives the reason in one line.
    Failed(String),
    /// The reason why the task cannot run on the machine.
    Skipped(String),
}

impl Outcome {
    fn exit_code(&self) -> ExitCode {
        match self {
            Self::Passed => ExitCode::SUCCESS,
            Self::Failed(why) => {
                eprintln!("failed: {why}");
                ExitCode::FAILURE
            }
            Self::Skipped(why) => {
                println!("skipped: {why}");
                ExitCode::SUCCESS
            }
        }
    }
}

fn main() -> ExitCode {
    let words: Vec<String> = env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let root = repository_root();
    let outcome = match words.as_slice() {
        ["check"] => check::run(&root),
        ["ci"] => ci::run(&root, ci::Extent::Full),
        ["ci", "--quick"] => ci::run(&root, ci::Extent::Quick),
        ["nightly"] => nightly::run(&root),
        ["tidy"] => tidy::run(&root),
        ["traps"] => traps::run(&root, traps::Strictness::Report),
        ["traps", "--strict"] => traps::run(&root, traps::Strictness::Demand),
        ["loom"] => checks::loom(&root),
        ["crash"] => checks::crash(&root),
        ["shuttle"] => checks::shuttle(&root),
        ["miri"] => checks::miri(&root),
        ["tsan"] => checks::tsan(&root),
        ["aarch64"] => checks::aarch64(&root),
        ["suites", "--list"] => suites::list(),
        ["suites", suites::INSIDE, name] => {
            return suites::inside_status(&suites::run_inside(&root, name));
        }
        ["suites", names @ ..] => suites::run(&root, names),
        ["help" | "--help" | "-h"] => {
            print!("{USAGE}");
            Outcome::Passed
        }
        _ => {
            eprint!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    outcome.exit_code()
}

/// The parent directory of this crate.
fn repository_root() -> PathBuf {
    let manifest = env!("CARGO_MANIFEST_DIR");
    PathBuf::from(manifest).parent().map_or_else(|| PathBuf::from("."), PathBuf::from)
}
