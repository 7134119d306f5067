//! Children by fork(2), without exec(2): to be killed often, they have to start quickly.
//!
//! A forked child has one thread, and whatever another thread of its parent was in the middle of stays so. So
//! the parent must have one thread only, which is checked: a test that forks is a program of its own
//! (`harness = false`).
//!
//! # Guarantees
//!
//! - A.1: a child ends with its body: it runs no destructors and no exit handlers of the parent.
//! - A.2: a child that is dropped is killed and waited for.
//!
//! Source: fork(2), POSIX's list of what a child of a program with threads may call.
#![expect(unsafe_code, reason = "fork is what this is about")]

use rustix::process::{Pid, Signal, WaitOptions, WaitStatus, kill_process, waitpid};
use std::fs;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// A child. It is killed by the drop.
#[derive(Debug)]
pub struct Forked {
    pid: Option<Pid>,
}

impl Forked {
    /// Starts a child that runs `body` and then ends: well if it returns, with status 1 if it panics.
    ///
    /// # Errors
    ///
    /// Those of fork(2).
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
        assert_eq!(threads, 1, "a process with several threads is not to be forked");
        // SAFETY: there is one thread, so nothing is in the middle of anything in the child.
        let pid = unsafe { libc::fork() };
        match pid {
            -1 => Err(io::Error::last_os_error()),
            0 => {
                let is_well = catch_unwind(AssertUnwindSafe(body)).is_ok();
                // SAFETY: it ends this process at once, and nothing after it runs.
                unsafe { libc::_exit(i32::from(!is_well)) }
            }
            _ => Ok(Self { pid: Pid::from_raw(pid) }),
        }
    }

    /// Returns the child's pid.
    ///
    /// # Panics
    ///
    /// Never: the pid goes with the child.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.pid.expect("it is there until it was waited for").as_raw_pid().cast_unsigned()
    }

    /// Kills the child with SIGKILL and waits for it.
    ///
    /// # Errors
    ///
    /// Those of waitpid(2).
    pub fn kill(mut self) -> io::Result<()> {
        self.end().map(|_| ())
    }

    /// Waits for the child; returns true if it ended well.
    ///
    /// # Errors
    ///
    /// Those of waitpid(2).
    pub fn wait(mut self) -> io::Result<bool> {
        let status = wait(self.pid.take())?;
        Ok(status.is_some_and(|status| status.exit_status() == Some(0)))
    }

    /// Returns how the child ended if it has, without waiting: true if it ended well.
    ///
    /// # Errors
    ///
    /// Those of waitpid(2).
    pub fn try_wait(&mut self) -> io::Result<Option<bool>> {
        let ended = waitpid(self.pid, WaitOptions::NOHANG)?;
        if ended.is_some() {
            self.pid = None;
        }
        Ok(ended.map(|(_, status)| status.exit_status() == Some(0)))
    }

    fn end(&mut self) -> io::Result<Option<WaitStatus>> {
        let Some(pid) = self.pid.take() else { return Ok(None) };
        // It may have ended; it stays there until it is waited for.
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
        // There is nobody to tell.
        let _ended = self.end();
    }
}
