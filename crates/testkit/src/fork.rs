//! Child processes by fork(2) without exec(2). They start fast, for tests that start and kill many
//! of them.
//!
//! The child of a process with several threads has only a copy of the forking thread. A lock of
//! another thread stays locked in the child for ever. So [`Forked::start`] panics if the process
//! has a second thread. A test that forks is a program without the test harness (`harness =
//! false`).
//!
//! # Guarantees
//!
//! - A.1: a child ends when its body returns, without destructors or exit handlers of the parent.
//! - A.2: when a [`Forked`] is dropped, its child is killed and waited for.
//!
//! Source: fork(2); POSIX: the child of a process with several threads may call only
//! async-signal-safe functions.
#![expect(unsafe_code, reason = "fork is an unsafe function")]

use rustix::process::{Pid, Signal, WaitOptions, WaitStatus, kill_process, waitpid};
use std::fs;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// A child process. Dropping it kills the process.
#[derive(Debug)]
pub struct Forked {
    pid: Option<Pid>,
}

impl Forked {
    /// Starts a child that runs `body` and then exits. Its exit status is 0, or 1 if `body` panics.
    ///
    /// # Errors
    ///
    /// The errors of fork(2).
    ///
    /// # Panics
    ///
    /// Panics if this process has more than one thread.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use corewalk_testkit::fork::Forked;
    ///
    /// let child = Forked::start(|| assert_eq!(1 + 1, 2))?;
    /// assert!(child.wait()?);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn start(body: impl FnOnce()) -> io::Result<Self> {
        let threads = fs::read_dir("/proc/self/task")?.count();
        assert_eq!(threads, 1, "a process with several threads must not fork");
        // SAFETY: the process has only this thread, so no other thread holds a lock that the child
        // would wait for.
        let pid = unsafe { libc::fork() };
        match pid {
            -1 => Err(io::Error::last_os_error()),
            0 => {
                let has_returned = catch_unwind(AssertUnwindSafe(body)).is_ok();
                // SAFETY: `_exit` ends this process immediately, without exit handlers or
                // destructors.
                unsafe { libc::_exit(i32::from(!has_returned)) }
            }
            _ => Ok(Self { pid: Pid::from_raw(pid) }),
        }
    }

    /// Returns the child's pid.
    ///
    /// # Panics
    ///
    /// Panics if [`Forked::try_wait`] has reported the end of the child, because its pid may belong
    /// to another process then.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.pid.expect("the child was not waited for").as_raw_pid().cast_unsigned()
    }

    /// Kills the child with SIGKILL and waits for it.
    ///
    /// # Errors
    ///
    /// The errors of waitpid(2).
    pub fn kill(mut self) -> io::Result<()> {
        self.end().map(|_| ())
    }

    /// Waits for the child. Returns true if its body returned without a panic.
    ///
    /// # Errors
    ///
    /// The errors of waitpid(2).
    pub fn wait(mut self) -> io::Result<bool> {
        let status = wait(self.pid.take())?;
        Ok(status.is_some_and(|status| status.exit_status() == Some(0)))
    }

    /// Returns None if the child still runs. Otherwise returns true if its body returned without a
    /// panic.
    ///
    /// # Errors
    ///
    /// The errors of waitpid(2).
    pub fn try_wait(&mut self) -> io::Result<Option<bool>> {
        let ended = waitpid(self.pid, WaitOptions::NOHANG)?;
        if ended.is_some() {
            self.pid = None;
        }
        Ok(ended.map(|(_, status)| status.exit_status() == Some(0)))
    }

    fn end(&mut self) -> io::Result<Option<WaitStatus>> {
        let Some(pid) = self.pid.take() else { return Ok(None) };
        // The pid of an ended child is not reused before waitpid(2), so the signal reaches no other
        // process.
        let _killed = kill_process(pid, Signal::KILL);
        wait(Some(pid))
    }
}

fn wait(pid: Option<Pid>) -> io::Result<Option<WaitStatus>> {
    loop {
        match waitpid(pid, WaitOptions::empty()) {
            Err(rustix::io::Errno::INTR) => {}
            ended => return Ok(ended?.map(|(_, status)| status)),
        }
    }
}

impl Drop for Forked {
    fn drop(&mut self) {
        // A drop cannot return the error.
        let _ended = self.end();
    }
}
