//! Unmodified programs that use System V IPC, under `corewalk ipc exec`.
//!
//! | program | test |
//! |---|---|
//! | `sysv_ipc` 1.2.0 of PyPI | its own tests |
//! | `ctypes` of Python | a set and a queue through `ctypes.CDLL("libc.so.6")` |
//! | stress-ng | `--sem-sysv --msg --verify`, for `COREWALK_STRESS_SECONDS` (10; at most 600) |
//! | fakeroot | an archive of 5,000 files with owners equals that of a run without corewalk |
//! | `IPC::SysV` of Perl | its own tests, or `sysv.pl` if they cannot be downloaded |
//! | Perl under strace(1) | 100,000 semop(2) and at least 500 other calls: no system calls |
//!
//! All programs run in a *closed* IPC namespace of the kernel, whose limits are 0. So an IPC call
//! that reaches the kernel fails, and so does the program. Two controls check that the namespace is
//! closed, and that strace(1) counts the system calls.
//!
//! If a program is missing and cannot be installed, the suite counts as skipped, not as passed.
//!
//! Source: the manuals of the programs; `ipc_namespaces(7)`, `proc_sys_kernel(5)`.

use super::{INSTALL_TRIES, install, is_available, minutes, mount::Site};
use crate::{
    Outcome,
    ci::Tally,
    process::{self, Ended},
};
use std::{
    collections::BTreeMap,
    fs,
    path::PathBuf,
    process::{Command, Stdio},
};

const SYSV_IPC: &str = "sysv_ipc==1.2.0";
/// Minimum number of passed tests of `sysv_ipc`. It has one more test, which it skips.
const SYSV_IPC_TESTS_MIN: u32 = 136;

const IPC_SYSV: &str = "https://github.com/mhx/IPC-SysV";
/// The environment variable with the path of a copy of the repository of `IPC::SysV`. Without it,
/// the repository is cloned.
const IPC_SYSV_ENV: &str = "COREWALK_PERL_IPC_SYSV";
const IPC_SYSV_TESTS_MIN: u32 = 70;
const OWN_PERL: &str = include_str!("programs/sysv.pl");

const SEMOPS: usize = 100_000;

/// The number of semtimedop(2). Perl has no function for this system call, and calls it by number.
const SEMTIMEDOP: u32 = if cfg!(target_arch = "aarch64") { 192 } else { 220 };

/// The system calls of System V IPC. The C library may use semtimedop(2) for semop(2).
const CALLS: [&str; 12] = [
    "semget",
    "semop",
    "semtimedop",
    "semctl",
    "msgget",
    "msgsnd",
    "msgrcv",
    "msgctl",
    "shmget",
    "shmat",
    "shmdt",
    "shmctl",
];

const ALL_CALLS: &str = r#"
my ($rounds, $semtimedop) = @ARGV;
my $set = semget(0, 1, 0600) // die $!;
my $queue = msgget(0, 0600) // die $!;
my $segment = shmget(0, 4096, 0600) // die $!;
my ($up, $down) = map { pack 's3', 0, $_, 0 } (1, -1);
for my $round (1 .. $rounds) {
    semop($set, $up) && semop($set, $down) or die $!;
    next if $round % 10 != 1;
    my ($message, $stat) = (pack('l! a*', 1, 'hello'), '');
    msgsnd($queue, $message, 0) && msgrcv($queue, $message, 100, 0, 0) or die $!;
    semctl($set, 0, 2, $stat) && msgctl($queue, 2, $stat) && shmctl($segment, 2, $stat) or die $!;
    my $timed = $up;
    syscall($semtimedop, $set, $timed, 1, 0) == 0 && semop($set, $down) or die $!;
    next if $round % 100 != 1;
    shmwrite($segment, 'hello', 0, 5) or die $!;
}
semctl($set, 0, 0, 0) && msgctl($queue, 0, 0) && shmctl($segment, 0, 0) or die $!;
"#;

/// Before it first writes to a page of the caller, the preload library checks the page with one
/// futex(2) call. A long run may use this many more pages than a short one.
const PAGES_MAX: usize = 8;

const TRACED: &str = "trace=semget,semop,semtimedop,semctl,msgget,msgsnd,msgrcv,msgctl,\
                      shmget,shmat,shmdt,shmctl,futex";

pub(super) fn programs(site: &Site) -> Outcome {
    let closed = Closed::new(site);
    let mut tally = Tally::new();
    type Part = fn(&Closed<'_>) -> Result<Outcome, Outcome>;
    let parts: [(&str, Part); 7] = [
        ("closed namespace", control),
        ("system calls", system_calls),
        ("perl IPC::SysV", perl),
        ("fakeroot", fakeroot),
        ("python sysv_ipc", sysv_ipc),
        ("python ctypes", ctypes),
        ("stress-ng", stress_ng),
    ];
    for (name, part) in parts {
        tally.step(name, || part(&closed).unwrap_or_else(|outcome| outcome));
    }
    tally.finish_as_one()
}

/// Runs commands in an IPC namespace of the kernel whose limits are 0. There the kernel creates no
/// IPC objects, so an IPC call that reaches it fails.
struct Closed<'s> {
    site: &'s Site,
    has_shm: bool,
}

impl<'s> Closed<'s> {
    fn new(site: &'s Site) -> Self {
        let help = Command::new(&site.program).args(["ipc", "exec", "--help"]).output();
        let has_shm =
            help.is_ok_and(|help| String::from_utf8_lossy(&help.stdout).contains("--shm"));
        Self { site, has_shm }
    }

    /// Returns a command that runs without corewalk. It cannot create IPC objects in the kernel.
    fn without_corewalk(&self) -> Command {
        let shm = if self.has_shm { "echo 0 > /proc/sys/kernel/shmmni;" } else { "" };
        let script = format!(
            "set -e; echo 0 0 0 0 > /proc/sys/kernel/sem; echo 0 > /proc/sys/kernel/msgmni; {shm} \
             exec \"$@\""
        );
        let mut command = Command::new("unshare");
        command.args(["--ipc", "--", "sh", "-c", &script, "sh"]);
        command
    }

    fn with_corewalk(&self) -> Command {
        let mut command = self.without_corewalk();
        command.arg(&self.site.program).args(["ipc", "exec"]);
        if self.has_shm {
            command.arg("--shm");
        }
        command.arg("--");
        command
    }
}

fn open() -> Command {
    let mut command = Command::new("unshare");
    command.args(["--ipc", "--"]);
    command
}

fn control(closed: &Closed<'_>) -> Result<Outcome, Outcome> {
    const SCRIPT: &str = "defined semget(0, 1, 0600) or exit 3; defined msgget(0, 0600) or exit 4;";
    let log = closed.site.folder.join("closed.log");
    let mut command = closed.without_corewalk();
    match process::run_logged(command.args(["perl", "-e", SCRIPT]), &log, minutes(1)) {
        (Ended::Exit(3), _) => {}
        (Ended::NotStarted | Ended::Exit(1 | 2), output) => {
            return Err(Outcome::Failed(format!("cannot set up a closed namespace: {output}")));
        }
        (ended, _) => {
            return Err(Outcome::Failed(format!("the namespace is not closed: {ended:?}")));
        }
    }
    closed.site.run("open", closed.with_corewalk().args(["perl", "-e", SCRIPT]))?;
    Ok(Outcome::Passed)
}

/// The program makes 100,000 semop(2) calls and some others.
///
/// With corewalk, no call of [`CALLS`] may reach the kernel, and more rounds may not need more
/// futex(2) calls. As a control, strace(1) must show the calls of a run without corewalk.
fn system_calls(closed: &Closed<'_>) -> Result<Outcome, Outcome> {
    needed("strace")?;
    let kernel = trace(closed, "calls-kernel", open(), SEMOPS)?;
    let few = trace(closed, "calls-few", closed.with_corewalk(), 2)?;
    let many = trace(closed, "calls-many", closed.with_corewalk(), SEMOPS)?;
    println!("{SEMOPS} semop and other calls; system calls without corewalk: {kernel:?}");
    println!("with corewalk: {many:?}; with corewalk, one round: {few:?}");
    let seen = |counts: &Counts, name: &str| counts.get(name).copied().unwrap_or(0);
    let semops = seen(&kernel, "semop") + seen(&kernel, "semtimedop");
    let is_seen = |name: &str| matches!(name, "semop" | "semtimedop") || seen(&kernel, name) > 0;
    if semops < SEMOPS || !CALLS.iter().all(|name| is_seen(name)) {
        return Err(Outcome::Failed("strace did not show the calls without corewalk".to_owned()));
    }
    // Without `--shm`, the `shm` calls reach the kernel.
    let ours = CALLS.iter().filter(|name| closed.has_shm || !name.starts_with("shm"));
    let is_more = seen(&many, "futex") > seen(&few, "futex") + PAGES_MAX;
    if ours.into_iter().any(|name| seen(&many, name) > 0) || is_more {
        return Err(Outcome::Failed("calls with corewalk reached the kernel".to_owned()));
    }
    Ok(Outcome::Passed)
}

type Counts = BTreeMap<String, usize>;

fn trace(
    closed: &Closed<'_>,
    what: &str,
    mut command: Command,
    semops: usize,
) -> Result<Counts, Outcome> {
    let trace = closed.site.folder.join(format!("{what}.trace"));
    command.args(["strace", "-f", "-qq", "-e", TRACED, "-o"]).arg(&trace);
    command.args(["perl", "-e", ALL_CALLS, &(semops / 2).to_string(), &SEMTIMEDOP.to_string()]);
    closed.site.run(what, &mut command)?;
    Ok(counted(&fs::read_to_string(&trace).unwrap_or_default()))
}

fn counted(trace: &str) -> Counts {
    let mut counts = Counts::new();
    for line in trace.lines().filter(|line| !line.contains("resumed>")) {
        let Some((before, _)) = line.split_once('(') else { continue };
        let name = before.rsplit(' ').next().unwrap_or(before);
        *counts.entry(name.to_owned()).or_default() += 1;
    }
    counts
}

fn perl(closed: &Closed<'_>) -> Result<Outcome, Outcome> {
    let site = closed.site;
    if !is_well("perl", &["-MIPC::SysV", "-MTest::More", "-e", "1"]) && !install("perl") {
        return Err(Outcome::Skipped("there is no Perl with IPC::SysV".to_owned()));
    }
    let mut command = closed.with_corewalk();
    let (what, least) = match perl_tests(site) {
        Some(folder) => {
            command.current_dir(folder);
            ("of the module", IPC_SYSV_TESTS_MIN)
        }
        None => {
            println!("{IPC_SYSV} cannot be cloned: sysv.pl runs instead of its tests");
            let folder = site.work().join("perl");
            fs::create_dir_all(folder.join("t"))
                .and_then(|()| fs::write(folder.join("t/sysv.t"), OWN_PERL))
                .map_err(|error| Outcome::Failed(format!("{}: {error}", folder.display())))?;
            command.current_dir(folder);
            ("of sysv.pl", 30)
        }
    };
    let output = site.run("perl", command.args(["prove", "t"]))?;
    let tests = number_after(&output, "Tests=");
    println!("perl: {tests} tests {what} passed");
    if !output.contains("Result: PASS") || tests < least {
        let line = format!("perl: a test failed, or fewer than {least} ran: {output}");
        return Err(Outcome::Failed(line));
    }
    Ok(Outcome::Passed)
}

fn perl_tests(site: &Site) -> Option<PathBuf> {
    if let Some(path) = std::env::var_os(IPC_SYSV_ENV) {
        return Some(PathBuf::from(path));
    }
    let folder = site.tools.join("IPC-SysV");
    if !folder.join("t/sem.t").exists() {
        let mut command = Command::new("git");
        command.args(["clone", "-q", "--depth", "1", IPC_SYSV]).arg(&folder);
        command.env("GIT_TERMINAL_PROMPT", "0");
        let log = site.folder.join("clone.log");
        process::run_logged(&mut command, &log, minutes(2));
    }
    folder.join("t/sem.t").exists().then_some(folder)
}

fn fakeroot(closed: &Closed<'_>) -> Result<Outcome, Outcome> {
    const SCRIPT: &str = r#"
mkdir -p "$1/tree"
cd "$1"
i=0
while test $i -lt 5000; do
    folder=tree/$((i / 100))
    test $((i % 100)) != 0 || mkdir $folder
    echo $i > $folder/$i
    i=$((i + 1))
done
chown -R 12:34 tree
chown 56:78 tree/7/*
mknod tree/null c 1 3
tar --numeric-owner --sort=name --mtime=@0 -cf tree.tar tree
"#;
    needed("fakeroot")?;
    let site = closed.site;
    let make = |what: &str, mut command: Command| {
        let folder = site.work().join(what);
        command.args(["fakeroot", "sh", "-euc", SCRIPT, "sh"]).arg(&folder);
        site.run(what, &mut command)?;
        let path = folder.join("tree.tar");
        fs::read(&path).map_err(|error| Outcome::Failed(format!("{}: {error}", path.display())))
    };
    let expected = make("fakeroot-kernel", open())?;
    let seen = make("fakeroot-ours", closed.with_corewalk())?;
    let has_owners = seen.windows(8).any(|bytes| bytes == b"0000070\0");
    println!("fakeroot: archives of {} and {} bytes", expected.len(), seen.len());
    if expected != seen || seen.len() < 5000 * 512 || !has_owners {
        return Err(Outcome::Failed("the archives differ, or lack files or owners".into()));
    }
    Ok(Outcome::Passed)
}

fn sysv_ipc(closed: &Closed<'_>) -> Result<Outcome, Outcome> {
    let site = closed.site;
    let folder = python_tests(site)?;
    let mut command = closed.with_corewalk();
    command.arg(folder.join("venv/bin/python")).args(["-m", "unittest", "discover", "-s", "tests"]);
    command.args(["-t", "."]).current_dir(folder.join("source"));
    let output = site.run("sysv_ipc", &mut command)?;
    let (ran, skipped) = (number_after(&output, "Ran "), number_after(&output, "skipped="));
    let passed = ran.saturating_sub(skipped);
    println!("sysv_ipc: {passed} tests passed, {skipped} skipped");
    if !output.lines().any(|line| line.starts_with("OK")) || passed < SYSV_IPC_TESTS_MIN {
        let least = SYSV_IPC_TESTS_MIN;
        let line = format!("sysv_ipc: a test failed, or fewer than {least} passed: {output}");
        return Err(Outcome::Failed(line));
    }
    Ok(Outcome::Passed)
}

fn ctypes(closed: &Closed<'_>) -> Result<Outcome, Outcome> {
    const SCRIPT: &str = r#"
import ctypes
libc = ctypes.CDLL("libc.so.6", use_errno=True)
def check(result):
    if result < 0:
        raise OSError(ctypes.get_errno(), "call of ctypes")
    return result
set = check(libc.semget(0, 1, 0o600))
up = (ctypes.c_short * 3)(0, 1, 0)
for _ in range(1000):
    check(libc.semop(set, up, 1))
assert check(libc.semctl(set, 0, 12, 0)) == 1000
queue = check(libc.msgget(0, 0o600))
message = ctypes.create_string_buffer(b"\1\0\0\0\0\0\0\0hello", 13)
check(libc.msgsnd(queue, message, 5, 0))
received = ctypes.create_string_buffer(13)
assert check(libc.msgrcv(queue, received, 5, 0, 0)) == 5
assert received.raw == message.raw
check(libc.semctl(set, 0, 0, 0))
check(libc.msgctl(queue, 0, 0))
"#;
    needed("python3")?;
    closed.site.run("ctypes", closed.with_corewalk().args(["python3", "-c", SCRIPT]))?;
    Ok(Outcome::Passed)
}

fn python_tests(site: &Site) -> Result<PathBuf, Outcome> {
    const SCRIPT: &str = r#"
rm -rf "$1"
mkdir -p "$1/source"
cd "$1"
python3 -m venv venv
venv/bin/pip install -q --upgrade setuptools
venv/bin/pip download -q --no-deps --no-binary :all: "$2"
tar -xzf sysv_ipc-*.tar.gz --strip-components 1 -C source
venv/bin/pip install -q ./source
rm -rf source/build source/src/*.so
venv/bin/python -c 'import sysv_ipc'
touch complete
"#;
    // Without the headers of Python, or without ensurepip for virtual environments, this program
    // fails.
    const PYTHON_CHECK: &str = "import ensurepip, os, sysconfig; \
        os.stat(os.path.join(sysconfig.get_paths()['include'], 'Python.h'))";
    let folder = site.tools.join("sysv_ipc");
    if folder.join("complete").exists() {
        return Ok(folder);
    }
    needed("python3")?;
    if !is_well("python3", &["-c", PYTHON_CHECK]) {
        // If the packages are missing and cannot be installed, the shell script below fails with a
        // message.
        let _installed = install("python3-dev") && install("python3-venv");
    }
    let mut command = Command::new("sh");
    command.args(["-euc", SCRIPT, "sh"]).arg(&folder).arg(SYSV_IPC);
    let log = site.folder.join("pip.log");
    let mut last = String::new();
    for _ in 0..INSTALL_TRIES {
        let (ended, output) = process::run_logged(&mut command, &log, minutes(5));
        if ended == Ended::Well {
            return Ok(folder);
        }
        output.lines().last().unwrap_or_default().clone_into(&mut last);
    }
    Err(Outcome::Skipped(format!("{SYSV_IPC} cannot be installed: {last}")))
}

fn stress_ng(closed: &Closed<'_>) -> Result<Outcome, Outcome> {
    needed("stress-ng")?;
    let asked = std::env::var("COREWALK_STRESS_SECONDS").ok();
    let seconds = asked.unwrap_or_else(|| "10".to_owned());
    let mut command = closed.with_corewalk();
    // stress-ng ends with status 7 if a stressor was ended while it counted an operation, which is
    // likely. So the line "successful run completed" decides.
    command.args(["sh", "-c", "stress-ng \"$@\" || test $? = 7", "sh"]);
    command.args(["--sem-sysv", "2", "--msg", "2", "--verify", "--metrics-brief"]);
    command.args(["-t", &seconds]).current_dir(closed.site.work());
    let output = closed.site.run("stress-ng", &mut command)?;
    let counts = ["sem-sysv", "msg"].map(|name| bogo_ops(&output, name));
    println!("stress-ng: {counts:?} operations of sem-sysv and msg in {seconds} s");
    if !output.contains("successful run completed") || counts.contains(&0) {
        return Err(Outcome::Failed(format!("stress-ng did not complete its run: {output}")));
    }
    Ok(Outcome::Passed)
}

fn bogo_ops(output: &str, name: &str) -> u64 {
    let lines = output.lines().filter_map(|line| line.rsplit_once("] ").map(|(_, rest)| rest));
    let words = lines.map(|line| line.split_whitespace().collect::<Vec<_>>());
    let counts = words.filter(|words| words.first() == Some(&name) && words.len() > 4);
    counts.filter_map(|words| words[1].parse::<u64>().ok()).next().unwrap_or(0)
}

fn number_after(output: &str, mark: &str) -> u32 {
    let rest = output.split_once(mark).map_or("", |(_, rest)| rest);
    let digits = rest.split(|letter: char| !letter.is_ascii_digit()).next();
    digits.and_then(|digits| digits.parse().ok()).unwrap_or(0)
}

fn is_well(program: &str, words: &[&str]) -> bool {
    let mut command = Command::new(program);
    command.args(words).stderr(Stdio::null());
    process::run(&mut command, minutes(1)) == Ended::Well
}

fn needed(name: &str) -> Result<(), Outcome> {
    if is_available(name) || install(name) {
        return Ok(());
    }
    Err(Outcome::Skipped(format!("{name} is missing and cannot be installed")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_the_programs_are_read() {
        let output =
            "Files=6, Tests=82,  2 wallclock secs\nRan 137 tests in 9.6s\n\nOK (skipped=1)\n";
        assert_eq!(number_after(output, "Tests="), 82);
        assert_eq!((number_after(output, "Ran "), number_after(output, "skipped=")), (137, 1));
        assert_eq!(number_after(output, "failures="), 0);
    }

    #[test]
    fn calls_of_a_trace_are_counted_by_name() {
        let trace = "7 semget(IPC_PRIVATE, 1, 0600) = 3\n7 semop(3, [{0, 1, 0}], 1) = 0\n\
                     8 semop(3, [{0, -1, 0}], 1 <unfinished ...>\n8 <... semop resumed>) = 0\n\
                     8 +++ exited with 0 +++\n";
        let wanted = [("semget".to_owned(), 1), ("semop".to_owned(), 2)];
        assert_eq!(counted(trace), Counts::from(wanted));
    }

    #[test]
    fn operations_of_a_stressor_are_read() {
        let output = "stress-ng: info:  [7] stressor       bogo ops real time  usr time\n\
                    stress-ng: info:  [7] sem-sysv         108000      3.00      1.00      2.0\n\
                    stress-ng: info:  [7] msg             2700000      3.00      1.00      2.0\n";
        assert_eq!((bogo_ops(output, "sem-sysv"), bogo_ops(output, "msg")), (108_000, 2_700_000));
        assert_eq!(bogo_ops("stress-ng: fail: [7] sem-sysv: semop failed", "sem-sysv"), 0);
    }
}
