//! Common test suites for file systems: pjdfstest, fsx and stress-ng.
//!
//! The program `corewalk-conformance` installs and runs pjdfstest and fsx, so the suites judge a
//! mount as that program does for its users.
//!
//! Source: `crates/conformance`, `stress-ng(1)`.

use super::{
    SKIPPED_STATUS, minutes,
    mount::{Mount, OPTIONS, SERVER_PERMISSIONS, Site, Source, WRITEBACK},
};
use crate::{Outcome, process::Ended};
use std::{env, process::Command, time::Duration};

const FSX_OPERATIONS: &str = "COREWALK_FSX_OPERATIONS";
/// Time limit of `corewalk-conformance`, which may have to install the suite.
const KIT_LIMIT: Duration = minutes(14);

/// The lowest number of passed tests. On tmpfs, 382 of 398 pass, and the others are skipped.
const PJDFSTEST_PASSED_MIN: u64 = 370;

/// The excluded stressors. They need devices, other mounts or other kernels.
const STRESS_EXCLUDED: &str = "fiemap,sync-file,io,iomix,revio,hdd,verity,binderfs,loop,dnotify,\
                               fanotify,aiol,aio,secretmem,swap,procfs,sysfs,dev,readahead,seal";

pub(super) fn pjdfstest(site: &Site) -> Outcome {
    check_pjdfstest(site, Source::Tmpfs, OPTIONS).unwrap_or_else(|outcome| outcome)
}

pub(super) fn pjdfstest_server(site: &Site) -> Outcome {
    check_pjdfstest(site, Source::Tmpfs, SERVER_PERMISSIONS).unwrap_or_else(|outcome| outcome)
}

pub(super) fn pjdfstest_writeback(site: &Site) -> Outcome {
    check_pjdfstest(site, Source::Tmpfs, WRITEBACK).unwrap_or_else(|outcome| outcome)
}

pub(super) fn pjdfstest_host(site: &Site) -> Outcome {
    check_pjdfstest(site, Source::Host, OPTIONS).unwrap_or_else(|outcome| outcome)
}

pub(super) fn pjdfstest_store(site: &Site) -> Outcome {
    check_pjdfstest(site, Source::Store, OPTIONS).unwrap_or_else(|outcome| outcome)
}

pub(super) fn pjdfstest_cluster(site: &Site) -> Outcome {
    check_pjdfstest(site, Source::Cluster, OPTIONS).unwrap_or_else(|outcome| outcome)
}

pub(super) fn pjdfstest_by_path(site: &Site) -> Outcome {
    check_pjdfstest(site, Source::Mirror, OPTIONS).unwrap_or_else(|outcome| outcome)
}

pub(super) fn pjdfstest_async(site: &Site) -> Outcome {
    check_pjdfstest(site, Source::AsyncMemory, OPTIONS).unwrap_or_else(|outcome| outcome)
}

fn check_pjdfstest(site: &Site, source: Source, options: &str) -> Result<Outcome, Outcome> {
    let mut mount = Mount::start_with(site, source, options)?;
    let report = run_kit(&mut mount, kit(site, "pjdfstest")?)?;
    enough_passed(&report)?;
    Ok(mount.finish())
}

pub(super) fn enough_passed(report: &str) -> Result<(), Outcome> {
    match pjdfstest_passed(report) {
        Some(passed) if passed >= PJDFSTEST_PASSED_MIN => Ok(()),
        Some(passed) => {
            let least = PJDFSTEST_PASSED_MIN;
            Err(Outcome::Failed(format!("pjdfstest: only {passed} of at least {least} tests ran")))
        }
        None => Err(Outcome::Failed("the report has no number of tests".to_owned())),
    }
}

/// Returns the command that runs `check` of `corewalk-conformance`. The caller appends the path of
/// the mount.
pub(super) fn kit(site: &Site, check: &str) -> Result<Command, Outcome> {
    let program = site.program.with_file_name("corewalk-conformance");
    if !program.exists() {
        let path = program.display();
        let line =
            format!("{path} does not exist; run cargo build --release -p corewalk-conformance");
        return Err(Outcome::Failed(line));
    }
    let mut command = Command::new(program);
    command.args(["--only", check, "--programs"]).arg(&site.tools);
    Ok(command)
}

/// Returns the number of operations of fsx, which is `default` unless `COREWALK_FSX_OPERATIONS` is
/// set.
pub(super) fn fsx_operations(default: &str) -> String {
    env::var(FSX_OPERATIONS).unwrap_or_else(|_| default.to_owned())
}

pub(super) fn run_kit(mount: &mut Mount, mut command: Command) -> Result<String, Outcome> {
    let (ended, report) = mount.run_to_end("conformance", command.arg(&mount.path), KIT_LIMIT);
    println!("{report}");
    match ended {
        Ended::Well => Ok(report),
        Ended::Exit(SKIPPED_STATUS) => {
            Err(Outcome::Skipped("the report has the reason".to_owned()))
        }
        ended => Err(ended.outcome("corewalk-conformance")),
    }
}

fn pjdfstest_passed(report: &str) -> Option<u64> {
    let line = report.lines().find_map(|line| line.strip_prefix("passed   pjdfstest: "))?;
    line.split(' ').next()?.parse().ok()
}

pub(super) fn fsx(site: &Site) -> Outcome {
    check_fsx(site, Source::Tmpfs, OPTIONS).unwrap_or_else(|outcome| outcome)
}

pub(super) fn fsx_server(site: &Site) -> Outcome {
    check_fsx(site, Source::Tmpfs, SERVER_PERMISSIONS).unwrap_or_else(|outcome| outcome)
}

pub(super) fn fsx_writeback(site: &Site) -> Outcome {
    check_fsx(site, Source::Tmpfs, WRITEBACK).unwrap_or_else(|outcome| outcome)
}

pub(super) fn fsx_host(site: &Site) -> Outcome {
    check_fsx(site, Source::Host, OPTIONS).unwrap_or_else(|outcome| outcome)
}

pub(super) fn fsx_store(site: &Site) -> Outcome {
    check_fsx(site, Source::Store, OPTIONS).unwrap_or_else(|outcome| outcome)
}

pub(super) fn fsx_cluster(site: &Site) -> Outcome {
    check_fsx(site, Source::Cluster, OPTIONS).unwrap_or_else(|outcome| outcome)
}

pub(super) fn fsx_async(site: &Site) -> Outcome {
    check_fsx(site, Source::AsyncMemory, OPTIONS).unwrap_or_else(|outcome| outcome)
}

fn check_fsx(site: &Site, source: Source, options: &str) -> Result<Outcome, Outcome> {
    let mut mount = Mount::start_with(site, source, options)?;
    let mut command = kit(site, "fsx")?;
    command.args(["--operations", &fsx_operations("10000")]);
    run_kit(&mut mount, command)?;
    Ok(mount.finish())
}

pub(super) fn stress_ng(site: &Site) -> Outcome {
    check_stress_ng(site).unwrap_or_else(|outcome| outcome)
}

fn check_stress_ng(site: &Site) -> Result<Outcome, Outcome> {
    let mut mount = Mount::start(site, OPTIONS)?;
    let mut command = Command::new("stress-ng");
    command.args(["--class", "filesystem", "--sequential", "1", "-t", "1", "--verify"]);
    command.args(["--exclude", STRESS_EXCLUDED, "--temp-path"]).arg(&mount.path);
    let output = mount.run("stress-ng", &mut command, minutes(4))?;
    if !output.contains("successful run completed") {
        return Err(Outcome::Failed("stress-ng did not complete its run".to_owned()));
    }
    Ok(mount.finish())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passed_tests_are_read_from_a_report() {
        let report = "1 checks: 1 passed, 0 failed, 0 skipped; seed 0x7\n\
                      passed   pjdfstest: 384 of 398 tests passed, 0 failed, 14 skipped\n";
        assert_eq!(pjdfstest_passed(report), Some(384));
        assert_eq!(pjdfstest_passed("skipped  pjdfstest: no cargo"), None);
    }
}
