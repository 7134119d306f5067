//! Looks after a namespace: what processes that end without a word have left is put in order at once.
//!
//! This is not necessary: one of the waiting calls looks for the dead ten times a second. Here
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
    /// Those that have ended have none: they are still registered if a child of theirs has what they had attached.
    processes: HashMap<u32, Option<OwnedFd>>,
    /// How many tasks of dead processes were cleaned up after.
    pub(super) recovered: usize,
}

impl Watch {
    /// Waits until a process ends, `more` is readable, or it is time to look again.
    pub(super) fn turn(&mut self, namespace: &Namespace, more: Option<&OwnedFd>) {
        if self.look(namespace) {
            self.recover(namespace);
        }
        let watched: Vec<(u32, &OwnedFd)> =
            self.processes.iter().filter_map(|(pid, fd)| Some((*pid, fd.as_ref()?))).collect();
        let all = watched.iter().map(|(_, fd)| *fd).chain(more);
        let mut fds: Vec<PollFd<'_>> = all.map(|fd| PollFd::new(fd, PollFlags::IN)).collect();
        let timeout = Timespec { tv_sec: 0, tv_nsec: LOOK_MS * 1_000_000 };
        // A signal ends it early; the next turn follows.
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

    /// Cleans up after dead processes.
    pub(super) fn recover(&mut self, namespace: &Namespace) {
        // What cannot be done now is tried again.
        self.recovered += namespace.recover().unwrap_or(0);
    }

    /// Watches new processes, and no longer those that are registered no more; returns true if one has
    /// ended already, or has and could not be cleaned up after.
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
