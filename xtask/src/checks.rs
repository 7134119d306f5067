//! Checks that build the workspace in a special way: for models, miri, ThreadSanitizer and 64-bit
//! ARM.
//!
//! Each check builds into a target directory of its own. Otherwise a check could discard the build
//! of another one, or wait for the lock of its directory. The checks with loom and shuttle run for
//! each crate that has models for them. A check fails if it runs no test, so that models that are
//! not compiled any more are noticed.
//!
//! `docs/developing/testing.md` describes the limits of each tool.
//!
//! Source: crossbeam's `ci/`. tokio-rs/loom#392 shows why a model that passes proves nothing
//! without a control test.

use crate::{
    Outcome,
    process::{self, Ended},
    source::{self, RustFile},
};
use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

const LIMIT: Duration = Duration::from_secs(30 * 60);

const HOST: &str = "x86_64-unknown-linux-gnu";

const ARM: &str = "aarch64-unknown-linux-gnu";
const ARM_COMPILER: &str = "aarch64-linux-gnu-gcc";
const ARM_EMULATOR: &str = "qemu-aarch64-static";
const ARM_LIBRARIES: &str = "/usr/aarch64-linux-gnu";
/// The crates whose unit tests take only seconds in an emulator.
const ARM_PACKAGES: [&str; 4] =
    ["corewalk-base", "corewalk-sync", "corewalk-fuse-ring", "corewalk-mbcache"];

/// The crate that is only compiled for 64-bit ARM. With [`ARM_PACKAGES`], these are all libraries
/// of the product with unsafe code. `nightly` compiles the whole workspace.
const ARM_COMPILED: &str = "corewalk-ipc-preload";

/// The crates with unsafe code whose unit tests run under miri. Those of `corewalk-fuse-ring` call
/// the kernel, which miri cannot. `nightly` adds `corewalk-testkit`.
const UNSAFE_PACKAGES: [&str; 2] = ["corewalk-base", "corewalk-sync"];
/// The module whose tests are skipped under miri. It has no unsafe code, and would take two fifths
/// of the time.
const SAFE_MODULE: &str = "linearize::tests::";

pub(crate) fn loom(root: &Path) -> Outcome {
    models(root, "corewalk_loom", "loom_")
}

/// Runs the models of the name cache like [`loom`], but with one preemption more per schedule.
pub(crate) fn loom_long(root: &Path) -> Outcome {
    let mut command = models_of(root, "corewalk_loom");
    command.args(["-p", "corewalk", "--lib", "loom_"]).env("COREWALK_LOOM_MORE_PREEMPTIONS", "1");
    tests_ran(&mut command, root, "corewalk_loom long")
}

/// Runs the models of the crate `corewalk` like [`shuttle`], but with five times as many schedules.
pub(crate) fn shuttle_long(root: &Path) -> Outcome {
    let mut command = models_of(root, "corewalk_shuttle");
    command.args(["-p", "corewalk", "--test", "shuttle", "--test", "shuttle_paths"]);
    command.env("COREWALK_SCHEDULES", "3000");
    tests_ran(&mut command, root, "corewalk_shuttle long")
}

pub(crate) fn shuttle(root: &Path) -> Outcome {
    models(root, "corewalk_shuttle", "shuttle_")
}

pub(crate) fn crash(root: &Path) -> Outcome {
    models(root, "corewalk_crash", "crash_")
}

pub(crate) fn miri(root: &Path) -> Outcome {
    miri_with(root, "", &[])
}

/// Runs the unit tests of [`UNSAFE_PACKAGES`] and the testkit under miri, with 16 schedules each.
pub(crate) fn miri_long(root: &Path) -> Outcome {
    miri_with(root, "-Zmiri-many-seeds=0..16", &["corewalk-testkit"])
}

fn miri_with(root: &Path, flags: &str, more: &[&str]) -> Outcome {
    if !is_quiet_success(Command::new("cargo").args(["+nightly", "--version"])) {
        return Outcome::Skipped("miri: no nightly toolchain".to_owned());
    }
    let has_miri =
        || is_quiet_success(Command::new("cargo").args(["+nightly", "miri", "--version"]));
    let add = ["+nightly", "component", "add", "miri", "rust-src"];
    if !has_miri()
        && !is_quiet_success(Command::new("rustup").args(&add[1..]).arg("--toolchain=nightly"))
    {
        return Outcome::Skipped("miri: the nightly toolchain has no miri component".to_owned());
    }
    if !is_quiet_success(Command::new("cargo").args(["+nightly", "miri", "setup"])) {
        return Outcome::Skipped("miri: its standard library cannot be built here".to_owned());
    }
    let mut command = cargo(root, "miri");
    command
        .args(["+nightly", "miri", "test", "--lib"])
        .env("MIRIFLAGS", format!("-Zmiri-disable-isolation {flags}"));
    for package in UNSAFE_PACKAGES.iter().chain(more) {
        command.args(["-p", package]);
    }
    command.args(["--", "--skip", SAFE_MODULE]);
    tests_ran(&mut command, root, "miri")
}

pub(crate) fn tsan(root: &Path) -> Outcome {
    let stress = root.join("crates/sync/tests/stress.rs");
    if !stress.exists() {
        return Outcome::Skipped("tsan: crates/sync/tests/stress.rs does not exist".to_owned());
    }
    let flags = "-Zsanitizer=thread -Cunsafe-allow-abi-mismatch=sanitizer --cfg corewalk_tsan";
    let tsan = |words: &[&str]| {
        let mut command = cargo(root, "tsan");
        command.args(words).args(["--profile", "models", "--target", HOST, "-p", "corewalk-sync"]);
        command.env("RUSTC_BOOTSTRAP", "1").env("RUSTFLAGS", flags);
        let suppressions = root.join("crates/sync/tests/tsan.supp");
        let options = format!("halt_on_error=1 suppressions={}", suppressions.display());
        command.env("TSAN_OPTIONS", options);
        command
    };
    if !is_quiet_success(&mut tsan(&["build"])) {
        return Outcome::Skipped("tsan: the toolchain cannot build with it".to_owned());
    }
    tests_ran(&mut tsan(&["test", "--test", "stress"]), root, "tsan")
}

/// Compiles [`ARM_COMPILED`] for 64-bit ARM, and fails after a compiler warning. If there is an
/// emulator, also runs the unit tests of [`ARM_PACKAGES`].
pub(crate) fn aarch64(root: &Path) -> Outcome {
    let checked = aarch64_check(root, &["-p", ARM_COMPILED]);
    if checked != Outcome::Passed {
        return checked;
    }
    let has_emulator = is_quiet_success(Command::new(ARM_EMULATOR).arg("--version"));
    if !has_emulator || !Path::new(ARM_LIBRARIES).exists() {
        return Outcome::Skipped(format!(
            "aarch64: compiled, but not tested: no {ARM_EMULATOR} or no {ARM_LIBRARIES}"
        ));
    }
    let mut tests = arm(root, &["test", "--lib"]);
    let runner = format!("{ARM_EMULATOR} -L {ARM_LIBRARIES}");
    tests.env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER", runner);
    for package in ARM_PACKAGES {
        tests.args(["-p", package]);
    }
    tests_ran(&mut tests, root, "aarch64")
}

pub(crate) fn aarch64_long(root: &Path) -> Outcome {
    aarch64_check(root, &["--workspace", "--all-targets"])
}

fn aarch64_check(root: &Path, words: &[&str]) -> Outcome {
    let mut add = Command::new("rustup");
    add.current_dir(root).env_remove("RUSTUP_TOOLCHAIN").args(["target", "add", ARM]);
    if !is_quiet_success(&mut add) {
        return Outcome::Skipped("aarch64: its standard library cannot be added".to_owned());
    }
    if !is_quiet_success(Command::new(ARM_COMPILER).arg("--version")) {
        return Outcome::Skipped(format!("aarch64: no {ARM_COMPILER}"));
    }
    let mut check = arm(root, &["check"]);
    logged(check.args(words), root, "aarch64 check").0.outcome("cargo check for aarch64")
}

/// Returns a cargo command for 64-bit ARM. A compiler warning is an error for it.
fn arm(root: &Path, words: &[&str]) -> Command {
    let mut command = cargo(root, "aarch64");
    command.args(words).args(["--target", ARM]).env("RUSTFLAGS", "-D warnings");
    // The tests take seconds, so optimized dependencies would take longer in all.
    command.args(["--config", r#"profile.dev.package."*".opt-level=0"#]);
    command.env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER", ARM_COMPILER);
    command
}

/// Runs the models of all crates that have models under `cfg`. The models of a library are the
/// tests whose names contain `filter`.
fn models(root: &Path, cfg: &str, filter: &str) -> Outcome {
    let found = match model_targets(root, cfg) {
        Ok(found) => found,
        Err(error) => return Outcome::Failed(format!("cannot read the repository: {error}")),
    };
    if found.is_empty() {
        return Outcome::Skipped(format!("no crate has models under {cfg}"));
    }
    // One command for all crates: with separate commands, cargo could enable other features of a
    // dependency, and build it again.
    let mut libraries = models_of(root, cfg);
    let mut tests = models_of(root, cfg);
    let (mut has_libraries, mut has_tests) = (false, false);
    for (package, target) in &found {
        match target {
            ModelTarget::Library => {
                has_libraries = true;
                libraries.args(["-p", package]);
            }
            ModelTarget::Test(name) => {
                has_tests = true;
                tests.args(["-p", package, "--test", name]);
            }
        }
    }
    // Other unit tests panic in this build, because they use the model checker's atomics outside of
    // a model.
    libraries.args(["--lib", filter]);
    let mut outcome = Outcome::Passed;
    if has_libraries {
        outcome = tests_ran(&mut libraries, root, &format!("{cfg} libraries"));
    }
    if has_tests && outcome == Outcome::Passed {
        outcome = tests_ran(&mut tests, root, &format!("{cfg} tests"));
    }
    outcome
}

/// Returns the command that tests packages with `cfg`.
fn models_of(root: &Path, cfg: &str) -> Command {
    let mut command = cargo(root, cfg.trim_start_matches("corewalk_"));
    command.args(["test", "--profile", "models"]);
    command.env("RUSTFLAGS", format!("--cfg {cfg}"));
    command
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum ModelTarget {
    /// A library, whose models are in modules that are named after the model checker.
    Library,
    /// A file in `tests/` with this name, which contains only models.
    Test(String),
}

fn model_targets(root: &Path, cfg: &str) -> std::io::Result<Vec<(String, ModelTarget)>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(root.join("crates"))? {
        let folder = entry?.path();
        let manifest = fs::read_to_string(folder.join("Cargo.toml")).unwrap_or_default();
        let Some((_, package)) = manifest.split_once("[package]") else { continue };
        let Some(package) = package.split('"').nth(1) else { continue };
        for file in source::collect_rust(&folder)?.iter().filter(|file| has_models(file, cfg)) {
            let target = match file.path.strip_prefix("tests/") {
                Some(test) => ModelTarget::Test(test.trim_end_matches(".rs").to_owned()),
                None => ModelTarget::Library,
            };
            found.push((package.to_owned(), target));
        }
    }
    found.sort();
    found.dedup();
    Ok(found)
}

/// Returns true if the file has models under `cfg`. A file that uses `cfg` only to select types has
/// none.
fn has_models(file: &RustFile, cfg: &str) -> bool {
    let code: String = file.code().split_whitespace().collect();
    let inside = format!("#[cfg(all(test,{cfg}");
    code.contains(&inside) || code.contains(&format!("#![cfg({cfg})]"))
}

pub(crate) fn cargo(root: &Path, target: &str) -> Command {
    let mut command = Command::new("cargo");
    command.current_dir(root).env("CARGO_TARGET_DIR", target_folder(root).join(target));
    // `RUSTUP_TOOLCHAIN` would make every check use the toolchain of xtask.
    command.env_remove("RUSTUP_TOOLCHAIN").env_remove("RUSTFLAGS");
    command
}

pub(crate) fn target_folder(root: &Path) -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from)
}

fn is_quiet_success(command: &mut Command) -> bool {
    let command = command.stdout(Stdio::null()).stderr(Stdio::null());
    process::run(command, LIMIT) == Ended::Well
}

/// Runs a test command. If no test has passed, it fails: the tests may not be compiled any more.
pub(crate) fn tests_ran(command: &mut Command, root: &Path, what: &str) -> Outcome {
    let (ended, output) = logged(command, root, what);
    if ended != Ended::Well {
        return ended.outcome(what);
    }
    let passed = passed_tests(&output);
    println!("{what}: {passed} tests passed");
    match passed {
        0 => Outcome::Failed(format!("{what}: no test ran")),
        _ => Outcome::Passed,
    }
}

/// Runs a command, and writes its output to a file that is named after `what`. If the command
/// fails, prints the last lines of the output.
pub(crate) fn logged(command: &mut Command, root: &Path, what: &str) -> (Ended, String) {
    let folder = target_folder(root);
    if let Err(error) = fs::create_dir_all(&folder) {
        eprintln!("{}: {error}", folder.display());
        return (Ended::NotStarted, String::new());
    }
    let log = folder.join(format!("{}.log", what.replace(' ', "-")));
    let (ended, output) = process::run_logged(command, &log, LIMIT);
    if ended != Ended::Well {
        eprintln!("{}", tail(&output, 80));
    }
    (ended, output)
}

fn passed_tests(output: &str) -> u64 {
    let passed: Vec<u64> = output
        .lines()
        .filter_map(|line| line.strip_prefix("test result: ok. "))
        .filter_map(|rest| rest.split(' ').next()?.parse().ok())
        .collect();
    if passed.contains(&0) { 0 } else { passed.iter().sum() }
}

pub(crate) fn tail(text: &str, count: usize) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(count)..].join("\n")
}

/// Allows FUSE over io_uring, which needs root and Linux 6.14. Otherwise mounts use `/dev/fuse`.
pub(crate) fn enable_uring() {
    let _ = fs::write("/sys/module/fuse/parameters/enable_uring", "Y");
}

/// Runs the tests of mounts over io_uring and through fuser. The step `tests` runs them over
/// `/dev/fuse`.
pub(crate) fn transports(root: &Path) -> Outcome {
    enable_uring();
    let file = "/sys/module/fuse/parameters/enable_uring";
    if fs::read_to_string(file).map_or(true, |text| text.trim() != "Y") {
        return Outcome::Skipped(format!("{file} is not Y"));
    }
    for transport in ["uring", "fuser"] {
        let mut command = Command::new("cargo");
        command.current_dir(root).env("COREWALK_TRANSPORT", transport);
        // Like the step `tests`, the command names the whole workspace. Otherwise cargo would
        // enable other features, and build the crates again.
        command.args(["test", "--workspace", "--test", "real"]);
        if transport == "fuser" {
            // fuser cannot serve an asynchronous back end.
            command.args(["--", "--skip", "async"]);
        }
        let ended = process::run(&mut command, LIMIT);
        if ended != Ended::Well {
            return ended.outcome(&format!("cargo test with transport {transport}"));
        }
    }
    Outcome::Passed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passed_tests_are_summed_over_targets() {
        let output = "running 3 tests\ntest result: ok. 3 passed; 0 failed\n\
                      test result: ok. 4 passed; 0 failed\ntest result: FAILED. 9 passed; 1 failed";
        assert_eq!(passed_tests(output), 7);
        assert_eq!(passed_tests("test result: ok. 3 passed;\ntest result: ok. 0 passed;"), 0);
        assert_eq!(passed_tests("test result: ok. 0 passed; 0 failed"), 0);
    }

    #[test]
    fn file_that_only_switches_on_the_cfg_has_no_models() {
        let has = |text: &str| has_models(&RustFile::parse("a.rs", text), "corewalk_loom");
        assert!(has("#[cfg(all(test, corewalk_loom))]\nmod loom_models {}"));
        assert!(has("#![cfg(corewalk_loom)]\n#[test]\nfn f() {}"));
        assert!(!has("#[cfg(corewalk_loom)]\nuse loom::sync;"));
        assert!(!has("#[cfg(all(test, not(corewalk_loom)))]\nmod tests {}"));
    }

    #[test]
    fn tail_keeps_the_last_lines() {
        assert_eq!(tail("a\nb\nc", 2), "b\nc");
        assert_eq!(tail("a", 2), "a");
    }
}
