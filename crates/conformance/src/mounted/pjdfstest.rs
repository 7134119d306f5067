//! The check `pjdfstest`: the test suite for POSIX file systems, and how its output is read.
//!
//! A run of pjdfstest without any test exits with 0, so the check reads the outcome of each test
//! from the output.
//!
//! Source: the crate `pjdfstest`.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use corewalk::errno_of;

use super::Task;
use super::programs::{Program, run};
use crate::answer::{Answer, Checked, Stop, ensure};

pub(super) const PROGRAM: Program = Program { name: "pjdfstest", version: "0.2.2" };

/// Maximum length of the tested directory's path in bytes. The path of a socket may have 107 bytes,
/// and pjdfstest adds two directories and two names.
const PATH_BYTES_MAX: usize = 107 - (11 + 11 + 33 + 5);
const FAILED_MAX: usize = 40;
const USERS: [&str; 5] = ["nobody", "daemon", "bin", "sys", "mail"];

const CONFIG: &str = r#"
[features]
posix_fallocate = {}
rename_ctime = {}
utime_now = {}
utimensat = {}

[settings]
naptime = 0.02

[dummy_auth]
entries = [["USER0", "GROUP0"], ["USER1", "GROUP1"]]
"#;

struct User {
    name: String,
    uid: u32,
    gid: u32,
    group: String,
}

#[derive(Debug, Default, PartialEq, Eq)]
struct Tests {
    passed: usize,
    failed: Vec<(String, String)>,
    skipped: BTreeMap<String, Vec<String>>,
}

/// Runs the tests whose names contain a word of `only`, or all tests if `only` is empty. Accepts
/// failures of tests whose names contain a word of `except`.
pub(super) fn check(task: &Task) -> Checked<String> {
    let program = &task.program;
    let users = users()?;
    let length = task.folder.as_os_str().len();
    if length > PATH_BYTES_MAX {
        let path = task.folder.display();
        let why = format!("{path} has {length} bytes; for sockets, at most {PATH_BYTES_MAX} work");
        return Stop::skipped(why);
    }
    let open_to_all = fs::Permissions::from_mode(0o755);
    fs::set_permissions(&task.folder, open_to_all).map_err(errno_of).must("chmod")?;
    let is_root = rustix::process::geteuid().is_root();
    if is_root {
        is_reachable(task, &users[0])?;
    }
    let mut config = CONFIG.to_owned();
    for (number, user) in users.iter().enumerate() {
        config = config.replace(&format!("USER{number}"), &user.name);
        config = config.replace(&format!("GROUP{number}"), &user.group);
    }
    let path = task.work.join("pjdfstest.toml");
    fs::write(&path, config).map_err(errno_of).must("write of the configuration")?;
    let mut command = Command::new(program);
    command.arg("-c").arg(path).arg("-p").arg(&task.folder).args(&task.only);
    let tests = tests_of(task, &mut command, "pjdfstest.log")?;
    let mut failed = tests.failed.clone();
    if !failed.is_empty() && failed.iter().all(|(name, _)| name.ends_with("::etxtbsy")) {
        // A test of `ETXTBSY` may fail on any file system: until execve(2), a child forked by
        // another test has the program open. So these tests run once more, alone.
        let mut again = Command::new(program);
        again.args(command.get_args().take(4)).arg("etxtbsy");
        failed = tests_of(task, &mut again, "pjdfstest-again.log")?.failed;
    }
    judge(task, &tests, failed, is_root)
}

fn tests_of(task: &Task, command: &mut Command, log: &str) -> Checked<Tests> {
    let log = task.work.join(log);
    let ended = run(command.env("NO_COLOR", "1").env_remove("CLICOLOR_FORCE"), &log, task.limit)?;
    match Tests::of(&ended.output) {
        Some(tests) => Ok(tests),
        None => {
            let text = ended.last_lines();
            Stop::failed(format!("pjdfstest has ended early, {}: {text}", ended.status))
        }
    }
}

fn judge(
    task: &Task,
    tests: &Tests,
    failed: Vec<(String, String)>,
    is_root: bool,
) -> Checked<String> {
    let is_excepted =
        |(name, _): &(String, String)| task.except.iter().any(|(word, _)| name.contains(word));
    let (excepted, failed): (Vec<_>, Vec<_>) = failed.into_iter().partition(is_excepted);
    let skipped: usize = tests.skipped.values().map(Vec::len).sum();
    let count = tests.passed + tests.failed.len() + skipped;
    let mut lines = Vec::new();
    if !is_root {
        lines.push("run it as root: most of the skipped tests need that".to_owned());
    }
    for (name, why) in failed.iter().take(FAILED_MAX) {
        lines.push(format!("failed: {name}: {why}"));
    }
    if failed.len() > FAILED_MAX {
        lines.push(format!("failed: {} more", failed.len() - FAILED_MAX));
    }
    for (name, why) in &excepted {
        lines.push(format!("failed, but excepted: {name}: {why}"));
    }
    for (why, names) in &tests.skipped {
        lines.push(format!("skipped: {}: {why}", names.join(", ")));
    }
    let passed = tests.passed;
    let head =
        format!("{passed} of {count} tests passed, {} failed, {skipped} skipped", failed.len());
    let text = [vec![head], lines].concat().join("\n    ");
    ensure(failed.is_empty(), || text.clone())?;
    ensure(passed > 0, || format!("no test passed: {text}"))?;
    Ok(text)
}

impl Tests {
    fn of(output: &str) -> Option<Tests> {
        let (lines, _) = output.split_once("\nSummary: ")?;
        let mut tests = Tests::default();
        let mut lines = lines.lines().peekable();
        while let Some(line) = lines.next() {
            let Some((name, outcome)) = line.split_once(' ') else { continue };
            let mut reasons = Vec::new();
            while let Some(reason) = lines.next_if(|line| line.starts_with('\t')) {
                reasons.push(reason.trim());
            }
            let (name, reason) = (name.to_owned(), reasons.join(" "));
            match outcome.trim() {
                "ok" => tests.passed += 1,
                "FAILED" => tests.failed.push((name, reason)),
                "skipped" => tests.skipped.entry(reason).or_default().push(name),
                _ => {}
            }
        }
        Some(tests)
    }
}

fn users() -> Checked<[User; 2]> {
    let read = |path: &str| fs::read_to_string(path).map_err(errno_of).must(path);
    let (users, groups) = (read("/etc/passwd")?, read("/etc/group")?);
    let find = |name: &&str| -> Option<User> {
        let line = users.lines().find(|line| line.split(':').next() == Some(*name))?;
        let numbers: Vec<u32> = line.split(':').skip(2).take(2).flat_map(str::parse).collect();
        let [uid, gid] = *numbers else { return None };
        let group = groups.lines().find(|line| line.split(':').nth(2) == Some(&gid.to_string()))?;
        let group = group.split(':').next()?.to_owned();
        Some(User { name: (*name).to_owned(), uid, gid, group })
    };
    let mut found: Vec<User> = Vec::new();
    for user in USERS.iter().filter_map(find) {
        if user.gid != 0 && found.iter().all(|other| other.gid != user.gid) {
            found.push(user);
        }
    }
    found.truncate(2);
    let none = |_| Stop::Skipped(format!("this machine needs two of the users {USERS:?}"));
    found.try_into().map_err(none)
}

/// Checks that `user` can access the tested directory. Otherwise most tests would fail without
/// naming the reason.
fn is_reachable(task: &Task, user: &User) -> Checked {
    let mut command = Command::new("stat");
    command.arg(&task.folder).current_dir("/").uid(user.uid).gid(user.gid);
    let ended = run(&mut command, &task.work.join("stat.log"), task.limit)?;
    ensure(ended.status.success(), || {
        format!(
            "the user {} cannot reach {}: mount with allow_other, below directories that all users \
             may enter",
            user.name,
            task.folder.display()
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_is_read_with_reasons() {
        let output = "open::eexist      ok\n\
                      link::exdev_target   skipped\n\tNo secondary file-system\n\
                      rmdir::enotempty     FAILED\n\tassertion failed\n\tat line 3\n\
                      \nSummary: 1 failed, 1 skipped, 1 passed, 0 expected failures, 3 total\n";
        let tests = Tests::of(output).expect("there is a summary");
        assert_eq!(tests.passed, 1);
        let why = "assertion failed at line 3";
        assert_eq!(tests.failed, [("rmdir::enotempty".to_owned(), why.to_owned())]);
        assert_eq!(tests.skipped["No secondary file-system"], ["link::exdev_target"]);
        assert_eq!(Tests::of("error: no such folder"), None);
    }
}
