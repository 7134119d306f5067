//! Runs other programs with a time limit.
//!
//! Each command runs in a new process group, which gets SIGKILL after the time limit. A process
//! that waits for a hung FUSE server may be blocked in the kernel (state D) and not die. Then the
//! task reports that and continues. The output of a command goes to the terminal or to a file,
//! since a program blocks on a full pipe.
//!
//! Source: `kill(1)`, `setpgid(2)`.

use crate::Outcome;
use std::{
    cell::Cell,
    fs::{self, File},
    io,
    os::unix::process::{CommandExt as _, ExitStatusExt as _},
    path::Path,
    process::{Child, Command, ExitStatus, Stdio},
    thread,
    time::{Duration, Instant},
};

const POLL: Duration = Duration::from_millis(20);

const KILL_TIMEOUT: Duration = Duration::from_secs(10);

/// The nice value of commands that give way to others. With a higher value, a command could get so
/// little of a busy processor that the watchdog of a test ends it.
const NICE: u32 = 10;

thread_local! {
    static CPU: Cell<Duration> = const { Cell::new(Duration::ZERO) };
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    Well,
    Exit(i32),
    Signal(i32),
    TimedOut,
    Stuck,
    NotStarted,
}

impl Ended {
    fn of(status: ExitStatus) -> Self {
        match (status.code(), status.signal()) {
            (Some(0), _) => Self::Well,
            (Some(code), _) => Self::Exit(code),
            (None, signal) => Self::Signal(signal.unwrap_or_default()),
        }
    }

    pub(crate) fn outcome(self, what: &str) -> Outcome {
        match self {
            Self::Well => Outcome::Passed,
            Self::Exit(code) => Outcome::Failed(format!("{what}: exit status {code}")),
            Self::Signal(signal) => Outcome::Failed(format!("{what}: killed by signal {signal}")),
            Self::TimedOut => Outcome::Failed(format!("{what}: killed after its time limit")),
            Self::Stuck => Outcome::Failed(format!("{what}: hangs and cannot be killed")),
            Self::NotStarted => Outcome::Failed(format!("{what}: cannot be started")),
        }
    }
}

pub(crate) fn run(command: &mut Command, limit: Duration) -> Ended {
    match command.stdin(Stdio::null()).process_group(0).spawn() {
        Ok(mut child) => wait(&mut child, limit),
        Err(error) => {
            eprintln!("{}: {error}", command.get_program().to_string_lossy());
            Ended::NotStarted
        }
    }
}

pub(crate) fn run_logged(command: &mut Command, log: &Path, limit: Duration) -> (Ended, String) {
    let redirected = File::create(log).and_then(|file| Ok((file.try_clone()?, file)));
    let ended = match redirected {
        Ok((out, err)) => run(command.stdout(out).stderr(err), limit),
        Err(error) => {
            eprintln!("{}: {error}", log.display());
            Ended::NotStarted
        }
    };
    let output = fs::read(log).unwrap_or_default();
    (ended, String::from_utf8_lossy(&output).into_owned())
}

pub(crate) fn side_by_side<T: Send, const COUNT: usize>(
    tasks: [impl FnOnce() -> T + Send; COUNT],
) -> [T; COUNT] {
    thread::scope(|scope| {
        let threads = tasks.map(|task| scope.spawn(task));
        threads.map(|thread| thread.join().expect("a task panicked"))
    })
}

pub(crate) fn thread_cpu() -> Duration {
    CPU.get()
}

/// Gives a low priority to the commands that this thread starts later. They get only a small share
/// of a busy processor.
pub(crate) fn give_way() {
    let task = fs::read_link("/proc/thread-self").unwrap_or_default();
    if let Some(task) = task.file_name() {
        // A child inherits the nice value of the thread that starts it.
        let mut renice = Command::new("renice");
        renice.args(["-n", &NICE.to_string(), "-p"]).arg(task).stdout(Stdio::null());
        run(&mut renice, KILL_TIMEOUT);
    }
}

pub(crate) fn wait(child: &mut Child, limit: Duration) -> Ended {
    match poll(child, limit) {
        Some(ended) => ended,
        None => match kill(child) {
            Ended::Stuck => Ended::Stuck,
            _ => Ended::TimedOut,
        },
    }
}

/// Waits for the end of `child`. Returns None if it has not ended within `limit`.
pub(crate) fn poll(child: &mut Child, limit: Duration) -> Option<Ended> {
    let deadline = Instant::now() + limit;
    loop {
        // Read the processor time first, because the wait removes the process with its times.
        let cpu = cpu_of(child.id());
        match child.try_wait() {
            Ok(Some(status)) => {
                CPU.set(CPU.get() + cpu);
                return Some(Ended::of(status));
            }
            Ok(None) if Instant::now() < deadline => thread::sleep(POLL),
            Ok(None) => return None,
            Err(_) => return Some(Ended::Stuck),
        }
    }
}

/// Returns the processor time of a process, with that of its children that have ended.
fn cpu_of(pid: u32) -> Duration {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    ticks(&stat).map_or(Duration::ZERO, |ticks| Duration::from_millis(ticks * 10))
}

/// Sums the fields `utime`, `stime`, `cutime` and `cstime` of `/proc/PID/stat`. A clock tick is 10
/// ms.
fn ticks(stat: &str) -> Option<u64> {
    // The name of the program ends at the last parenthesis, and may contain spaces.
    let (_, rest) = stat.rsplit_once(") ")?;
    rest.split(' ').skip(11).take(4).map(|field| field.parse::<u64>().ok()).sum()
}

pub(crate) fn kill(child: &mut Child) -> Ended {
    signal(&format!("-{}", child.id()), "KILL");
    // If the child leads no process group, the first signal did not reach it. So signal its pid,
    // too.
    let _ = child.kill();
    poll(child, KILL_TIMEOUT).unwrap_or(Ended::Stuck)
}

/// Sends the signal `name` to `target`: a pid, or a process group with a `-` before its number.
pub(crate) fn signal(target: &str, name: &str) {
    let sent = Command::new("kill").args(["-s", name, "--", target]).stderr(Stdio::null()).status();
    // An error means that the target has already ended.
    drop::<io::Result<ExitStatus>>(sent);
}

/// Calls `is_done` until it returns true. Returns false if it does not within `limit`.
pub(crate) fn wait_until(limit: Duration, mut is_done: impl FnMut() -> bool) -> bool {
    let deadline = Instant::now() + limit;
    loop {
        if is_done() {
            return true;
        }
        if Instant::now() >= deadline {
            return false;
        }
        thread::sleep(POLL);
    }
}

pub(crate) fn is_installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(30);

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn command_ends_with_its_status_or_signal() {
        assert_eq!(run(&mut shell("exit 0"), LONG), Ended::Well);
        assert_eq!(run(&mut shell("exit 3"), LONG), Ended::Exit(3));
        assert_eq!(run(&mut shell("kill -9 $$"), LONG), Ended::Signal(9));
        assert_eq!(run(&mut Command::new("/nonexistent"), LONG), Ended::NotStarted);
    }

    #[test]
    fn command_that_hangs_is_killed_with_its_children() {
        let ended = run(&mut shell("sleep 1000 & wait"), Duration::from_millis(100));
        assert_eq!(ended, Ended::TimedOut);
    }

    #[test]
    fn processor_time_is_that_of_a_command_and_its_children() {
        let stat = "7 (a) b) S 1 7 7 0 -1 4194560 100 200 0 0 3 4 50 60 20 0 1 0 9 1 2";
        assert_eq!(ticks(stat), Some(117));
        assert_eq!(ticks("7 (a"), None);
        let script = "i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done; exit 0";
        run(&mut shell(&format!("sh -c '{script}'")), LONG);
        assert!(thread_cpu() > Duration::ZERO);
    }

    #[test]
    fn thread_that_gives_way_starts_commands_that_do() {
        give_way();
        assert_eq!(run(&mut shell(&format!("test $(nice) -ge {NICE}")), LONG), Ended::Well);
    }

    #[test]
    fn logged_command_returns_its_output() {
        let log = std::env::temp_dir().join(format!("xtask-process-{}", std::process::id()));
        let (ended, output) = run_logged(&mut shell("echo out; echo err >&2"), &log, LONG);
        assert_eq!((ended, output.as_str()), (Ended::Well, "out\nerr\n"));
        let _ = fs::remove_file(log);
    }
}
