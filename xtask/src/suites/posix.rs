//! Common test suites for file systems: pjdfstest, fsx and stress-ng.
//!
//! The suite installs fixed versions of pjdfstest and fsx. Otherwise a new version could make an
//! unrelated change fail. Their exit status is not enough, because a suite that runs no test may
//! exit with 0. So the number of tests is read from the output.
//!
//! Source: the crates `pjdfstest` and `fsx`, `stress-ng(1)`.

use super::{
    INSTALL_TRIES, minutes,
    mount::{Mount, OPTIONS, SERVER_PERMISSIONS, Site, Source, WRITEBACK},
};
use crate::{
    Outcome,
    process::{self, Ended},
};
use std::{env, fs, path::PathBuf, process::Command};

const PJDFSTEST_VERSION: &str = "0.2.2";
const FSX_VERSION: &str = "0.3.2";
/// The environment variable that sets the number of operations of each run of fsx.
const FSX_OPERATIONS: &str = "COREWALK_FSX_OPERATIONS";
/// The number of operations of each run of fsx, unless [`FSX_OPERATIONS`] sets another one.
const FSX_OPERATIONS_DEFAULT: &str = "20000";

/// The user, besides `nobody`, as which pjdfstest makes calls.
const TESTS_USER: &str = "tests";

/// Minimum number of tests of pjdfstest that must pass. On tmpfs, 384 of 398 tests pass, and the
/// others are skipped.
const PJDFSTEST_PASSED_MIN: u64 = 370;

const PJDFSTEST_CONFIG: &str = r#"
[features]
posix_fallocate = {}
rename_ctime = {}
utime_now = {}
utimensat = {}

[settings]
naptime = 0.02

[dummy_auth]
entries = [["nobody", "nogroup"], ["tests", "tests"]]
"#;

/// The configuration of fsx with all kinds of operations, even those on memory mappings. Each
/// operation has at least one byte, because posix_fallocate(3) refuses a length of 0.
const FSX_MAPPED: &str = "
flen = 1048576
[opsize]
min = 1
max = 65536
[weights]
close_open = 1.0
invalidate = 1.0
mapread = 10.0
mapwrite = 10.0
read = 10.0
write = 10.0
truncate = 5.0
fsync = 1.0
fdatasync = 1.0
posix_fallocate = 3.0
punch_hole = 3.0
sendfile = 1.0
posix_fadvise = 1.0
copy_file_range = 3.0
";

/// The stressors of stress-ng that are left out, because they need devices, other mounts or other
/// kernels.
const STRESS_EXCLUDED: &str = "fiemap,sync-file,io,iomix,revio,hdd,verity,binderfs,loop,dnotify,\
                               fanotify,aiol,aio,secretmem,swap,procfs,sysfs,dev,readahead,seal";

/// Runs pjdfstest.
pub(super) fn pjdfstest(site: &Site) -> Outcome {
    check_pjdfstest(site, Source::Tmpfs, OPTIONS).unwrap_or_else(|outcome| outcome)
}

/// Runs pjdfstest on a mount where the server checks permissions.
pub(super) fn pjdfstest_server(site: &Site) -> Outcome {
    check_pjdfstest(site, Source::Tmpfs, SERVER_PERMISSIONS).unwrap_or_else(|outcome| outcome)
}

/// Runs pjdfstest on a mount with `writeback_cache`, where the kernel delays writes and changes of
/// times.
pub(super) fn pjdfstest_writeback(site: &Site) -> Outcome {
    check_pjdfstest(site, Source::Tmpfs, WRITEBACK).unwrap_or_else(|outcome| outcome)
}

/// Runs pjdfstest on a mounted directory of the host.
pub(super) fn pjdfstest_host(site: &Site) -> Outcome {
    check_pjdfstest(site, Source::Host, OPTIONS).unwrap_or_else(|outcome| outcome)
}

/// Runs pjdfstest on a store.
pub(super) fn pjdfstest_store(site: &Site) -> Outcome {
    check_pjdfstest(site, Source::Store, OPTIONS).unwrap_or_else(|outcome| outcome)
}

/// Runs pjdfstest on the example of a back end by path.
pub(super) fn pjdfstest_by_path(site: &Site) -> Outcome {
    check_pjdfstest(site, Source::Mirror, OPTIONS).unwrap_or_else(|outcome| outcome)
}

/// Runs pjdfstest on the example of an asynchronous back end.
pub(super) fn pjdfstest_async(site: &Site) -> Outcome {
    check_pjdfstest(site, Source::AsyncMemory, OPTIONS).unwrap_or_else(|outcome| outcome)
}

fn check_pjdfstest(site: &Site, source: Source, options: &str) -> Result<Outcome, Outcome> {
    let program = installed(site, "pjdfstest", PJDFSTEST_VERSION)?;
    if process::run(Command::new("id").args(["-u", TESTS_USER]), minutes(1)) != Ended::Well {
        let mut command = Command::new("useradd");
        command.args(["--no-create-home", "--user-group", TESTS_USER]);
        site.run("useradd", &mut command)?;
    }
    let config = site.folder.join("pjdfstest.toml");
    write(&config, PJDFSTEST_CONFIG)?;
    let mut mount = Mount::start_with(site, source, options)?;
    // Use a short directory name, because the path of a socket may have at most 107 bytes.
    mount.shell("pjdfstest-folder", "mkdir -m 0755 t")?;
    let mut command = Command::new(program);
    command.arg("-c").arg(config).arg("-p").arg(mount.path.join("t"));
    let (mut ended, mut output) = mount.run_to_end("pjdfstest", &mut command, minutes(12));
    if has_lost_race(&output) {
        println!("pjdfstest: only etxtbsy failed, which has a race with other tests; run it again");
        (ended, output) = mount.run_to_end("pjdfstest-again", &mut command, minutes(12));
    }
    let Some((failed, passed)) = pjdfstest_summary(&output) else {
        println!("{}", crate::checks::tail(&output, 40));
        return Err(match ended.outcome("pjdfstest") {
            Outcome::Passed => Outcome::Failed("pjdfstest printed no summary".to_owned()),
            outcome => outcome,
        });
    };
    println!("pjdfstest: {failed} failed, {passed} passed");
    if failed > 0 || passed < PJDFSTEST_PASSED_MIN || ended != Ended::Well {
        output.lines().filter(|line| line.contains("FAILED")).for_each(|line| println!("{line}"));
        return Err(Outcome::Failed(format!("pjdfstest: {failed} failed, {passed} passed")));
    }
    Ok(mount.finish())
}

/// Returns true if tests failed, and all of them are tests of `ETXTBSY` (`etxtbsy`), which write a
/// program and then run it.
///
/// The tests of `ETXTBSY` have a race on any file system: another thread of pjdfstest may fork
/// between the write and the run of the program. The forked child has the program open for writing
/// until the child calls execve(2). So the run fails with `ETXTBSY`.
fn has_lost_race(output: &str) -> bool {
    let plain = without_colours(output);
    let mut failed = plain.lines().filter(|line| line.ends_with("FAILED")).peekable();
    failed.peek().is_some()
        && failed
            .all(|line| line.split_whitespace().next().is_some_and(|n| n.ends_with("::etxtbsy")))
}

/// Returns how many tests failed and how many passed, from the summary of pjdfstest.
fn pjdfstest_summary(output: &str) -> Option<(u64, u64)> {
    let plain = without_colours(output);
    let line = plain.lines().rev().find(|line| line.starts_with("Summary:"))?;
    let count = |what: &str| -> Option<u64> {
        let before = line.split(what).next()?.trim_end();
        before.rsplit([' ', ',']).next()?.parse().ok()
    };
    Some((count(" failed")?, count(" passed")?))
}

fn without_colours(text: &str) -> String {
    let mut parts = text.split('\u{1b}');
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |plain, part| plain + part.split_once('m').map_or("", |(_, rest)| rest))
}

/// Runs fsx on a tmpfs.
pub(super) fn fsx(site: &Site) -> Outcome {
    check_fsx(site, Source::Tmpfs, OPTIONS).unwrap_or_else(|outcome| outcome)
}

/// Runs fsx on a mount where the server checks permissions.
pub(super) fn fsx_server(site: &Site) -> Outcome {
    check_fsx(site, Source::Tmpfs, SERVER_PERMISSIONS).unwrap_or_else(|outcome| outcome)
}

/// Runs fsx on a mount with `writeback_cache`, where the kernel delays writes and changes of times.
pub(super) fn fsx_writeback(site: &Site) -> Outcome {
    check_fsx(site, Source::Tmpfs, WRITEBACK).unwrap_or_else(|outcome| outcome)
}

/// Runs fsx on a mounted directory of the host.
pub(super) fn fsx_host(site: &Site) -> Outcome {
    check_fsx(site, Source::Host, OPTIONS).unwrap_or_else(|outcome| outcome)
}

/// Runs fsx on a store.
pub(super) fn fsx_store(site: &Site) -> Outcome {
    check_fsx(site, Source::Store, OPTIONS).unwrap_or_else(|outcome| outcome)
}

/// Runs fsx on the example of an asynchronous back end.
pub(super) fn fsx_async(site: &Site) -> Outcome {
    check_fsx(site, Source::AsyncMemory, OPTIONS).unwrap_or_else(|outcome| outcome)
}

/// Runs fsx on a new mount, once with mappings and once without.
fn check_fsx(site: &Site, source: Source, options: &str) -> Result<Outcome, Outcome> {
    let program = installed(site, "fsx", FSX_VERSION)?;
    let operations = env::var(FSX_OPERATIONS).unwrap_or(FSX_OPERATIONS_DEFAULT.to_owned());
    let seed = format!("{}", std::process::id() ^ seconds_now());
    println!("fsx: seed {seed}");
    let mut mount = Mount::start_with(site, source, options)?;
    let unmapped = FSX_MAPPED
        .replace("mapread = 10.0", "mapread = 0.0")
        .replace("mapwrite = 10.0", "mapwrite = 0.0");
    for (name, config) in [("fsx-mapped", FSX_MAPPED), ("fsx-unmapped", unmapped.as_str())] {
        let path = site.folder.join(format!("{name}.toml"));
        write(&path, config)?;
        let mut command = Command::new(&program);
        command.args(["-q", "-N", &operations, "-S", &seed, "-P"]).arg(site.work());
        command.arg("-f").arg(path).arg(mount.path.join(name));
        let output = mount.run(name, &mut command, minutes(6))?;
        if !output.contains("All operations completed") {
            return Err(Outcome::Failed(format!("{name} did not complete: {output}")));
        }
    }
    Ok(mount.finish())
}

/// Runs the stressors of stress-ng for file systems.
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

/// Installs the crate `name` in the version `version` with cargo, if it is missing. Returns the
/// path of the installed program.
fn installed(site: &Site, name: &str, version: &str) -> Result<PathBuf, Outcome> {
    let program = site.tools.join("bin").join(name);
    if program.exists() {
        return Ok(program);
    }
    let mut command = Command::new("cargo");
    command.args(["install", name, "--locked", "--version", version, "--root"]).arg(&site.tools);
    command.env("CARGO_TARGET_DIR", site.tools.join("build"));
    // Build the tools with little optimization, which takes less time. The tools mostly wait for
    // the mount, so optimization would not help.
    command.args(["--profile", "dev"]).env("CARGO_PROFILE_DEV_OPT_LEVEL", "1");
    command.env("CARGO_PROFILE_DEV_DEBUG", "0");
    let log = site.folder.join("install.log");
    // Try several times, because the package registry sometimes does not answer.
    for _ in 0..INSTALL_TRIES {
        if process::run_logged(&mut command, &log, minutes(10)).0 == Ended::Well {
            return Ok(program);
        }
    }
    Err(Outcome::Skipped(format!("{name} {version} cannot be installed")))
}

fn write(path: &std::path::Path, text: &str) -> Result<(), Outcome> {
    fs::write(path, text).map_err(|error| Outcome::Failed(format!("{}: {error}", path.display())))
}

fn seconds_now() -> u32 {
    let since = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
    since.as_secs() as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn summary_of_pjdfstest_is_read_with_and_without_colours() {
        let plain = "x\nSummary: 2 failed, 14 skipped, 384 passed, 0 expected failures, 398 total";
        assert_eq!(pjdfstest_summary(plain), Some((2, 384)));
        let coloured = "\u{1b}[1;32mSummary\u{1b}[0m: 0 \u{1b}[1;31mfailed\u{1b}[0m, 14 \
                        \u{1b}[1;33mskipped\u{1b}[0m, 385 \u{1b}[1;32mpassed\u{1b}[0m, 398 total";
        assert_eq!(pjdfstest_summary(coloured), Some((0, 385)));
        assert_eq!(pjdfstest_summary("error: no such folder"), None);
    }

    #[test]
    fn race_of_forks_is_distinguished_from_other_failures() {
        let busy = "open::etxtbsy      \u{1b}[1;31mFAILED\u{1b}[0m\n";
        assert!(has_lost_race(busy));
        assert!(!has_lost_race("open::eexist     FAILED\n"));
        assert!(!has_lost_race(&format!("{busy}open::eexist     FAILED\n")));
        assert!(!has_lost_race("open::etxtbsy    success\n"));
    }
}
