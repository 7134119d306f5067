//! Watches the processes of a namespace, and cleans up after each process that ends without leaving
//! the namespace.
//!
//! - The cleanup (`Namespace::recover`) applies semaphore undo and detaches segments.
//! - The watch has a pidfd of each registered process, which becomes readable when the process
//!   ends. So the cleanup begins immediately.
//! - Every [`LOOK_MS`] milliseconds, the watch looks for new processes.
//!
//! Without a watch, the calls that wait in the namespace look for dead processes ten times a second
//! and clean up.
//!
//! Source: pidfd_open(2), poll(2).

use std::collections::HashMap;
use std::os::fd::OwnedFd;

use corewalk_ipc::Namespace;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

/// Time between two searches for new processes, in milliseconds.
pub(super) const LOOK_MS: i64 = 50;

/// Maximum number of processes that are watched, each by an open pidfd. Calls that wait in the
/// namespace clean up after all other processes.
const WATCHED_MAX: usize = 512;

#[derive(Default)]
pub(super) struct Watch {
    /// The watched processes by pid, each with its pidfd. None stands for a process that has ended
    /// but is still registered: a child may still have its segments attached.
    processes: HashMap<u32, Option<OwnedFd>>,
    /// The number of tasks that were cleaned up.
    pub(super) recovered: usize,
}

impl Watch {
    pub(super) fn turn(&mut self, namespace: &Namespace, more: Option<&OwnedFd>) {
        if self.look(namespace) {
            self.recover(namespace);
        }
        let watched: Vec<(u32, &OwnedFd)> =
            self.processes.iter().filter_map(|(pid, fd)| Some((*pid, fd.as_ref()?))).collect();
        let all = watched.iter().map(|(_, fd)| *fd).chain(more);
        let mut fds: Vec<PollFd<'_>> = all.map(|fd| PollFd::new(fd, PollFlags::IN)).collect();
        let timeout = Timespec { tv_sec: 0, tv_nsec: LOOK_MS * 1_000_000 };
        // An error means that a signal has interrupted poll(2). The caller then calls `turn` again.
        let ready = poll(&mut fds, Some(&timeout)).unwrap_or(0);
        let is_over = |(fd, (pid, _)): (&PollFd<'_>, &(u32, _))| {
            (ready > 0 && !fd.revents().is_empty()).then_some(*pid)
        };
        let ended: Vec<u32> = fds.iter().zip(&watched).filter_map(is_over).collect();
        if !ended.is_empty() {
            self.processes.extend(ended.into_iter().map(|pid| (pid, None)));
            self.recover(namespace);
        }
    }

    pub(super) fn recover(&mut self, namespace: &Namespace) {
        // After an error, the next call of `turn` tries again.
        self.recovered += namespace.recover().unwrap_or(0);
    }

    /// Returns true if a registered process has ended.
    fn look(&mut self, namespace: &Namespace) -> bool {
        let pids = namespace.pids();
        self.processes.retain(|pid, _| pids.contains(pid));
        let mut is_any_gone = self.processes.values().any(Option::is_none);
        for pid in pids.into_iter().filter(|pid| *pid != 0) {
            if self.processes.contains_key(&pid) || self.processes.len() >= WATCHED_MAX {
                continue;
            }
            let Some(number) = Pid::from_raw(pid.cast_signed()) else { continue };
            match pidfd_open(number, PidfdFlags::empty()) {
                Ok(fd) => drop(self.processes.insert(pid, Some(fd))),
                Err(_) => is_any_gone = true,
            }
        }
        is_any_gone
    }
}
