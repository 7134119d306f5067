//! Looks after a namespace: what processes that end without a word have left is put in order at once.
//!
//! Nobody has to: whoever waits for a dead process finds out by itself, within a tenth of a second. Here
//! every process that is registered has a descriptor, which tells its end as soon as it happens; new
//! processes are looked for every [`LOOK_MS`].
//!
//! Source: pidfd_open(2), poll(2).

use std::collections::HashMap;
use std::os::fd::OwnedFd;

use corewalk_ipc::Namespace;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

/// How often new processes are looked for, in milliseconds.
pub(super) const LOOK_MS: i64 = 50;

/// Descriptors at most; further processes are found by those who wait for them.
const WATCHED_MAX: usize = 512;

/// The processes of a namespace.
#[derive(Default)]
pub(super) struct Watch {
    processes: HashMap<u32, OwnedFd>,
    /// How many tasks of dead processes were cleaned up after.
    pub(super) recovered: usize,
}

impl Watch {
    /// Waits until a process ends, `more` is readable, or it is time to look again.
    pub(super) fn turn(&mut self, namespace: &Namespace, more: Option<&OwnedFd>) {
        if self.look(namespace) {
            self.recover(namespace);
        }
        let watched = self.processes.values().chain(more);
        let mut fds: Vec<PollFd<'_>> = watched.map(|fd| PollFd::new(fd, PollFlags::IN)).collect();
        let timeout = Timespec { tv_sec: 0, tv_nsec: LOOK_MS * 1_000_000 };
        // A signal ends it early; the next turn follows.
        let ready = poll(&mut fds, Some(&timeout)).unwrap_or(0);
        let is_ended = fds[..self.processes.len()].iter().any(|fd| !fd.revents().is_empty());
        if ready > 0 && is_ended {
            self.recover(namespace);
        }
    }

    /// Cleans up after dead processes.
    pub(super) fn recover(&mut self, namespace: &Namespace) {
        // What cannot be done now is tried again.
        self.recovered += namespace.recover().unwrap_or(0);
    }

    /// Watches new processes, and no longer those that are registered no more; returns true if one has
    /// ended already.
    fn look(&mut self, namespace: &Namespace) -> bool {
        let pids = namespace.pids();
        self.processes.retain(|pid, _| pids.contains(pid));
        let mut is_any_gone = false;
        for pid in pids.into_iter().filter(|pid| *pid != 0) {
            if self.processes.contains_key(&pid) || self.processes.len() >= WATCHED_MAX {
                continue;
            }
            let Some(number) = Pid::from_raw(pid.cast_signed()) else { continue };
            match pidfd_open(number, PidfdFlags::empty()) {
                Ok(fd) => drop(self.processes.insert(pid, fd)),
                Err(_) => is_any_gone = true,
            }
        }
        is_any_gone
    }
}
