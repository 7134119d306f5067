//! The chores of this repository as one program: `cargo xtask TASK`.
//!
//! What continuous integration does is written in Rust here and not in a configuration file of a
//! service, so that every step runs on a developer's machine in the same way. Each task is one
//! module; it prints what it does and returns whether it went well.
//!
//! It uses the standard library only, because a chore must build in seconds and must not bring in
//! dependencies that the product does not have.
//!
//! A task that cannot run here says `skipped: why` and is counted as skipped, never as passed.
//!
//! Source: the xtask convention, <https://github.com/matklad/cargo-xtask>; TigerBeetle's tidy.zig.
#![forbid(unsafe_code)]

mod check;
mod checks;
mod ci;
mod nightly;
mod process;
mod source;
mod suites;
mod tidy;
mod traps;

use std::{env, path::PathBuf, process::ExitCode};

const USAGE: &str = "\
usage: cargo xtask TASK

  check               format, tidy, traps, clippy and unit tests of what changed: minutes
  ci [--quick]        everything below; --quick leaves out the suites on a mount
  ci --tested STATUS  the same after a `cargo test --workspace` that ended with STATUS
  nightly             the long versions of the randomized checks: hours
  tidy                the rules of docs/style.md that a program can check
  traps [--strict]    which test covers which trap of docs/traps.md
  loom                the models under loom
  shuttle             the models under shuttle
  crash               the models that stop a task before every store
  miri                the unit tests of the unsafe crates under miri
  tsan                the stress tests under ThreadSanitizer
  aarch64             everything compiled for 64-bit ARM, some unit tests in an emulator
  suites [NAME...]    suites and real work on a mount; without names all of them
  suites --list       their names
  help                this text

exit status: 0 passed, 1 failed, 2 wrong usage
";

/// How a task ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Everything that was to be checked was checked and is right.
    Passed,
    /// Something is wrong; the text says what, in one line.
    Failed(String),
    /// It could not run here; the text says why.
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
        ["ci"] => ci::run(&root, ci::Extent::Full, ci::Tests::Run),
        ["ci", "--quick"] => ci::run(&root, ci::Extent::Quick, ci::Tests::Run),
        ["ci", "--tested", status] => ci::run(&root, ci::Extent::Full, ci::Tests::Ended(status)),
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

/// Returns the root of the repository, which is where this crate's parent lies.
fn repository_root() -> PathBuf {
    let manifest = env!("CARGO_MANIFEST_DIR");
    PathBuf::from(manifest).parent().map_or_else(|| PathBuf::from("."), PathBuf::from)
}
