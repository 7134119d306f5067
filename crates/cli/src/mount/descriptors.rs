//! How many descriptors a mount may have.
//!
//! Each thread that serves has the device open for itself. That happens as the threads start, when the
//! mount is there and may have been announced, so whether there can be so many is found out before.
//!
//! The soft limit is often 1024, for the sake of programs that use select(2), which cannot take more.
//! This one does not, so the hard limit is what holds, as for other servers.
//!
//! Source: getrlimit(2); fuser 0.18 (`Session::run`).

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::failure::Failure;

/// What a mount has open beside the threads' own, and its standard streams: a store has ten files and
/// the device, and a few more are open for a moment.
const BESIDE: u64 = 24;
/// What a thread has open while it serves a call on a directory of the host: the device, two
/// directories, a file and the directory that is listed.
const PER_THREAD: usize = 5;

/// Returns how many descriptors are not for files that clients open.
pub(super) fn reserved(threads: usize) -> usize {
    BESIDE as usize + threads * PER_THREAD
}

/// Raises the limit as far as it may be, and looks whether so many threads fit.
pub(super) fn allow(threads: usize) -> Result<(), Failure> {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, ..limit };
    let may_be_open = match setrlimit(Resource::Nofile, raised) {
        Ok(()) => raised.current,
        Err(error) => {
            log::debug!("setrlimit: {error}");
            limit.current
        }
    };
    let needed = threads as u64 + BESIDE;
    match may_be_open {
        Some(most) if most < needed => Err(Failure::Usage(format!(
            "threads={threads} needs {needed} open files, and at most {most} are allowed (ulimit -Hn)"
        ))),
        _ => Ok(()),
    }
}
