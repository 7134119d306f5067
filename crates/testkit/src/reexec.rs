//! Runs a test again in a child process with limits, and checks how the child ends.
//!
//! Some tests need their own process, for example to run on one processor or with few open files,
//! or let the process die or hang.
//!
//! A test that needs its own process runs twice. In the parent, [`role`] is None, and the test
//! starts itself again with [`Reexec`]. In the child, [`role`] is the word that the parent has set,
//! and the test does its work.
//!
//! ```no_run
//! use corewalk_testkit::reexec::{self, Reexec, Resource};
//! use std::time::Duration;
//!
//! // #[test]
//! fn walk_with_few_descriptors_succeeds() {
//!     if reexec::role().is_some() {
//!         // The work, under the limit.
//!         return;
//!     }
//!     Reexec::test("walk_with_few_descriptors_succeeds")
//!         .role("walk")
//!         .limit(Resource::Nofile, 256)
//!         .timeout(Duration::from_secs(60))
//!         .run()
//!         .assert_success();
//! }
//! ```
//!
//! # Guarantees
//!
//! - A.1: the child and its process group are killed when the timeout of the child ends, or when
//!   [`Reexec::run`] returns.
//! - A.2: [`Reexec::run`] panics if no test has the given name. libtest itself would report
//!   success, so a renamed test would pass without being run.
//! - A.3: a child that dies leaves no core file.
//!
//! Source: libtest's `--exact`; `pidfd_open(2)`, `setrlimit(2)`, `sched_setaffinity(2)`.
#![expect(unsafe_code, reason = "limits are set between fork and exec")]

pub use rustix::process::Resource;

use crate::real::thread;
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
    process::{Pid, PidfdFlags, Rlimit, Signal, kill_process_group, pidfd_open, setrlimit},
    thread::{CpuSet, sched_getaffinity, sched_setaffinity},
};
use std::{
    env, fmt,
    io::{self, Read},
    os::unix::process::{CommandExt as _, ExitStatusExt as _},
    process::{Child, Command, ExitStatus, Stdio},
    time::{Duration, Instant},
};

/// The environment variable with the role of a child.
pub const ROLE_VARIABLE: &str = "COREWALK_TESTKIT_ROLE";

/// The signal that `abort` raises.
pub const SIGABRT: i32 = 6;

/// The signal that a store to protected memory raises.
pub const SIGSEGV: i32 = 11;

const DEFAULT_TIMEOUT: Duration = Duration::from_secs(120);

/// Returns the word that the parent of this process has set, or None if this process is no child of
/// [`Reexec`].
pub fn role() -> Option<String> {
    env::var(ROLE_VARIABLE).ok()
}

/// A child process to be started.
#[derive(Debug)]
pub struct Reexec {
    test: String,
    role: String,
    variables: Vec<(String, String)>,
    limits: Vec<(Resource, u64)>,
    cpus: Cpus,
    timeout: Duration,
}

#[derive(Clone, Copy, Debug)]
enum Cpus {
    Inherited,
    One,
}

impl Reexec {
    /// Returns a child that runs `test`. The name is in the form that libtest prints,
    /// `module::tests::name`.
    pub fn test(test: &str) -> Self {
        Self {
            test: test.to_owned(),
            role: "child".to_owned(),
            variables: Vec::new(),
            limits: Vec::new(),
            cpus: Cpus::Inherited,
            timeout: DEFAULT_TIMEOUT,
        }
    }

    /// Sets the word that [`role`] returns in the child. The default is the word `child`.
    #[must_use]
    pub fn role(mut self, role: &str) -> Self {
        role.clone_into(&mut self.role);
        self
    }

    /// Sets an environment variable of the child.
    #[must_use]
    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.variables.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Sets the soft and the hard limit of `resource`, as `ulimit` does.
    #[must_use]
    pub fn limit(mut self, resource: Resource, value: u64) -> Self {
        self.limits.push((resource, value));
        self
    }

    /// Restricts the child to one processor.
    #[must_use]
    pub fn on_one_cpu(mut self) -> Self {
        self.cpus = Cpus::One;
        self
    }

    /// Sets the time after which the child is killed. The default is two minutes.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Runs the child and waits for its end.
    ///
    /// # Panics
    ///
    /// Panics if the child cannot be started, or if the binary has no test of that name.
    pub fn run(self) -> Finished {
        let mut command = self.command();
        let mut child = command.spawn().expect("this binary can be started again");
        let pid = Pid::from_child(&child);
        let stdout = drain(child.stdout.take().expect("stdout is piped"));
        let stderr = drain(child.stderr.take().expect("stderr is piped"));
        let has_ended = wait_until(&child, Instant::now() + self.timeout);
        // A grandchild would keep the pipes open, so the whole process group is killed. An error
        // means that the group is empty.
        let _ = kill_process_group(pid, Signal::KILL);
        let status = child.wait().expect("a child can be waited for");
        let finished = Finished {
            test: self.test,
            role: self.role,
            status,
            timed_out: !has_ended,
            stdout: stdout.join().expect("the reader does not panic"),
            stderr: stderr.join().expect("the reader does not panic"),
        };
        let has_test = finished.stdout.contains("running 1 test");
        assert!(has_test, "no such test in this binary: {finished}");
        finished
    }

    fn command(&self) -> Command {
        let mut command = Command::new(env::current_exe().expect("this binary has a path"));
        command
            .args([self.test.as_str(), "--exact", "--nocapture", "--test-threads=1"])
            .env(ROLE_VARIABLE, &self.role)
            .envs(self.variables.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0);
        let mut limits = self.limits.clone();
        limits.push((Resource::Core, 0));
        let cpus = match self.cpus {
            Cpus::Inherited => None,
            Cpus::One => Some(first_cpu()),
        };
        let confine = move || -> io::Result<()> {
            for &(resource, value) in &limits {
                setrlimit(resource, Rlimit { current: Some(value), maximum: Some(value) })?;
            }
            if let Some(cpus) = &cpus {
                sched_setaffinity(None, cpus)?;
            }
            Ok(())
        };
        // SAFETY: between fork and exec, the closure only makes system calls and reads its captured
        // variables.
        unsafe { command.pre_exec(confine) };
        command
    }
}

/// A child that has ended.
#[derive(Debug)]
pub struct Finished {
    test: String,
    role: String,
    /// The exit status.
    pub status: ExitStatus,
    /// True if the child was killed after its timeout.
    pub timed_out: bool,
    /// The standard output.
    pub stdout: String,
    /// The standard error.
    pub stderr: String,
}

impl Finished {
    /// Returns the signal that ended the child, or None if the child exited by itself.
    pub fn signal(&self) -> Option<i32> {
        self.status.signal()
    }

    /// Asserts that the test passed in the child.
    ///
    /// # Panics
    ///
    /// Panics with the output of the child if the test did not pass.
    pub fn assert_success(&self) {
        let is_passed = self.status.success() && self.stdout.contains("1 passed");
        assert!(is_passed && !self.timed_out, "{self}");
    }
}

impl fmt::Display for Finished {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let why = if self.timed_out { " (killed after its timeout)" } else { "" };
        writeln!(f, "child {} in role {}: {}{why}", self.test, self.role, self.status)?;
        writeln!(f, "stdout of the child:\n{}\nstderr:\n{}", self.stdout, self.stderr)
    }
}

/// Reads the output of a child on a new thread, so that the child never blocks on a full pipe.
fn drain(mut pipe: impl Read + Send + 'static) -> thread::JoinHandle<String> {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        // If the read fails, the bytes that were read before are returned.
        let _ = pipe.read_to_end(&mut bytes);
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

fn wait_until(child: &Child, deadline: Instant) -> bool {
    let pidfd = pidfd_open(Pid::from_child(child), PidfdFlags::empty())
        .expect("the child was not waited for yet");
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let left = Timespec::try_from(left).expect("the timeout fits into a timespec");
        match poll(&mut [PollFd::new(&pidfd, PollFlags::IN)], Some(&left)) {
            Ok(0) => return false,
            Ok(_) => return true,
            Err(Errno::INTR) => {}
            Err(error) => panic!("poll on a pidfd: {error}"),
        }
    }
}

fn first_cpu() -> CpuSet {
    let allowed = sched_getaffinity(None).expect("the affinity of this process can be read");
    let first = (0..CpuSet::MAX_CPU)
        .find(|&cpu| allowed.is_set(cpu))
        .expect("a running process has a processor");
    let mut one = CpuSet::new();
    one.set(first);
    one
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;
    use rustix::process::getrlimit;

    #[test]
    fn child_sees_its_role_limits_and_processor() {
        const NAME: &str = "reexec::tests::child_sees_its_role_limits_and_processor";
        if let Some(role) = role() {
            assert_eq!(role, "confined");
            assert_eq!(env::var("EXTRA").as_deref(), Ok("value"));
            assert_eq!(getrlimit(Resource::Nofile).current, Some(64));
            let cpus = sched_getaffinity(None).expect("the affinity can be read");
            assert_eq!((0..CpuSet::MAX_CPU).filter(|&cpu| cpus.is_set(cpu)).count(), 1);
            return;
        }
        let child = Reexec::test(NAME)
            .role("confined")
            .env("EXTRA", "value")
            .limit(Resource::Nofile, 64)
            .on_one_cpu()
            .run();
        child.assert_success();
    }

    #[test]
    fn control_child_that_panics_is_not_a_success() {
        const NAME: &str = "reexec::tests::control_child_that_panics_is_not_a_success";
        assert!(role().is_none(), "on purpose");
        let child = Reexec::test(NAME).run();
        assert!(!child.status.success());
        assert!(child.stderr.contains("on purpose"), "{child}");
    }

    #[test]
    fn child_that_hangs_is_killed() {
        const NAME: &str = "reexec::tests::child_that_hangs_is_killed";
        if role().is_some() {
            loop {
                thread::park();
            }
        }
        let child = Reexec::test(NAME).timeout(Duration::from_secs(1)).run();
        assert!(child.timed_out, "{child}");
        assert_eq!(child.signal(), Some(9));
    }

    #[test]
    #[should_panic(expected = "no such test")]
    fn name_that_fits_no_test_panics() {
        Reexec::test("reexec::tests::no_test_has_this_name").run();
    }
}
