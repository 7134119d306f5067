//! Long versions of the randomized tests, which take some hours.
//!
//! `cargo xtask ci` runs each randomized test for seconds, and `nightly` long enough to reach rare
//! schedules and rare inputs. A test that fails prints its seed. `docs/developing/testing.md`
//! describes how to repeat a run.
//!
//! Source: `docs/developing/testing.md`.

use crate::{
    Outcome, checks,
    ci::{self, STEP_LIMIT, Tally},
    process, release,
};
use std::{path::Path, process::Command};

/// A test, and the environment variables that make it run long.
struct Long {
    name: &'static str,
    words: &'static [&'static str],
    variables: &'static [(&'static str, &'static str)],
}

const STEPS: &[(&str, &str)] = &[("COREWALK_DIFFERENTIAL_OPS", "1000000")];

/// The suites that run over each transport. In other runs, some of them run over io_uring, and
/// others over `/dev/fuse`.
const POSIX_SUITES: &[&str] = &[
    "xtask",
    "suites",
    "xattr",
    "pjdfstest",
    "pjdfstest-server",
    "pjdfstest-writeback",
    "pjdfstest-host",
    "pjdfstest-store",
    "stress-ng",
    "git",
    "rsync",
    "tar",
    "sqlite",
    "postgres",
];

const LONG: [Long; 20] = [
    Long { name: "suites of a release", words: &["xtask", "suites"], variables: &[] },
    Long {
        name: "suites over io_uring",
        words: POSIX_SUITES,
        variables: &[("COREWALK_TRANSPORT", "uring")],
    },
    Long {
        name: "suites over /dev/fuse",
        words: POSIX_SUITES,
        variables: &[("COREWALK_TRANSPORT", "dev")],
    },
    Long {
        name: "suites through fuser",
        words: POSIX_SUITES,
        variables: &[("COREWALK_TRANSPORT", "fuser")],
    },
    Long {
        name: "cluster histories",
        words: &["test", "-p", "corewalk-cluster", "--test", "coherent", "histories"],
        variables: &[("COREWALK_COHERENT_CALLS", "1000000")],
    },
    Long {
        name: "takeovers by a standby",
        words: &["test", "-p", "corewalk-cluster", "standby"],
        variables: &[("COREWALK_TAKEOVERS", "20")],
    },
    Long {
        name: "cluster locks",
        words: &["test", "-p", "corewalk-cli", "--test", "cli", "cluster_locks"],
        variables: &[("COREWALK_LOCK_ADDITIONS", "10000")],
    },
    Long {
        name: "cluster histories through the kernel",
        words: &["test", "-p", "corewalk-conformance", "--test", "cluster", "histories"],
        variables: &[("COREWALK_COHERENT_CALLS", "1000000")],
    },
    Long {
        name: "long disturbances of a cluster",
        words: &["test", "-p", "corewalk-conformance", "--test", "cluster", "disturbed"],
        variables: &[("COREWALK_COHERENT_STOP", "30")],
    },
    Long {
        name: "two mounts",
        words: &["xtask", "suites", "pjdfstest-two-mounts", "fsx-two-mounts"],
        variables: &[("COREWALK_ALTERNATIONS", "8"), ("COREWALK_FSX_OPERATIONS", "10000")],
    },
    Long {
        name: "ipc differential",
        words: &["test", "-p", "corewalk-ipc", "--test", "differential"],
        variables: STEPS,
    },
    Long {
        name: "preload differential",
        words: &["test", "-p", "corewalk-ipc-preload", "--test", "differential"],
        variables: STEPS,
    },
    Long {
        name: "store kills",
        words: &["test", "-p", "corewalk-cli", "--test", "cli", "store"],
        variables: &[("COREWALK_KILLS", "200")],
    },
    Long {
        name: "store damage",
        words: &["test", "-p", "corewalk-store", "--test", "store", "pages"],
        variables: &[("COREWALK_META_MUTATIONS", "20000")],
    },
    Long {
        name: "storm by path",
        words: &["test", "-p", "corewalk", "--test", "by_path"],
        variables: &[("COREWALK_STORM_CALLS", "2000000")],
    },
    Long {
        name: "storms on a mount",
        words: &["test", "-p", "corewalk-conformance", "--test", "suite", "storm_"],
        variables: &[("COREWALK_STORM_CALLS", "2000000")],
    },
    Long {
        // The test sends this number of requests to each of three mounts, about 100 million in all.
        name: "growth",
        words: &["test", "--release", "-p", "corewalk-cli", "--test", "cli", "growth"],
        variables: &[("COREWALK_GROWTH_REQUESTS", "34000000")],
    },
    Long {
        name: "fuzz",
        words: &["test", "--workspace", "fuzz_"],
        variables: &[("COREWALK_FUZZ_TIMES", "200")],
    },
    Long {
        name: "fsx",
        words: &["xtask", "suites", "fsx", "fsx-server", "fsx-writeback", "fsx-host", "fsx-store"],
        variables: &[("COREWALK_FSX_OPERATIONS", "100000")],
    },
    Long {
        name: "ipc-programs",
        words: &["xtask", "suites", "ipc-programs"],
        variables: &[("COREWALK_STRESS_SECONDS", "60")],
    },
];

pub(crate) fn run(root: &Path) -> Outcome {
    let mut tally = Tally::new();
    tally.step("release build", || ci::cargo(root, &["build", "--release", "--workspace"]));
    for long in &LONG {
        tally.step(long.name, || run_long(root, long));
    }
    tally.step("ipc-hostile", || ci::hostile(root, 10_000_000));
    tally.step("ipc-torture", || ci::torture(root, 50_000));
    tally.step("loom, long", || checks::loom_long(root));
    tally.step("shuttle, long", || checks::shuttle_long(root));
    tally.step("aarch64, long", || checks::aarch64_long(root));
    tally.step("miri, 16 seeds", || checks::miri_long(root));
    tally.step("oldest compiler", || release::oldest_compiler(root));
    tally.step("licences", || release::licences(root));
    tally.step("interfaces", || release::interfaces(root));
    tally.step("packages", || release::packages(root));
    tally.finish()
}

fn run_long(root: &Path, long: &Long) -> Outcome {
    let mut command = Command::new("cargo");
    command.current_dir(root).args(long.words);
    command.envs(long.variables.iter().copied());
    process::run(&mut command, STEP_LIMIT * 4).outcome(long.name)
}
