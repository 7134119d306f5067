//! The limit on open files (`RLIMIT_NOFILE`) of a server.
//!
//! Each server thread opens `/dev/fuse` for itself, and maybe a ring, after the file system is
//! mounted. A failure at that point would leave a mount that does not work. So the limit is checked
//! before the mount.
//!
//! The soft limit is often 1024, because select(2) takes no higher descriptors. This program does
//! not use select(2). So it raises the soft limit to the hard limit, as other servers do.
//!
//! Source: getrlimit(2).

use std::num::NonZero;

use corewalk_base::primitives::thread;
use corewalk_fuse::{MountOptions, Transport};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::failure::Failure;

/// Descriptors of a mount that belong to no thread. They are the standard streams, ten files of a
/// store, the device, and a few short-lived ones.
const SHARED: u64 = 24;
/// Descriptors that one thread uses to read requests: the device, and with io_uring also a ring and
/// an eventfd(2).
const DEVICE: u64 = 1;
const DEVICE_AND_RING: u64 = 3;
/// Descriptors that one thread uses for a call on a directory of the host. They are two
/// directories, a file, and the directory that it lists.
const CALL: u64 = 4;

/// Returns the number of descriptors that the server keeps for itself, so that open files of
/// clients do not use them up.
pub(super) fn reserved(mount: &MountOptions) -> usize {
    (needed(mount) + CALL * mount.threads as u64) as usize
}

/// Returns the number of descriptors without which the mount does not work.
fn needed(mount: &MountOptions) -> u64 {
    let cpus = thread::available_parallelism().map_or(1, NonZero::get);
    let may_have_rings = match mount.transport {
        Transport::Uring => true,
        Transport::Auto => mount.threads <= cpus,
        _ => false,
    };
    let each = if may_have_rings { DEVICE_AND_RING } else { DEVICE };
    SHARED + each * mount.threads as u64
}

/// Raises the soft limit to the hard limit.
///
/// # Errors
/// A usage error if even the hard limit is too low for the threads of the mount.
pub(super) fn raise_limit(mount: &MountOptions) -> Result<(), Failure> {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, ..limit };
    let open_max = match setrlimit(Resource::Nofile, raised) {
        Ok(()) => raised.current,
        Err(error) => {
            log::debug!("setrlimit: {error}");
            limit.current
        }
    };
    let (needed, threads) = (needed(mount), mount.threads);
    match open_max {
        Some(most) if most < needed => Err(Failure::Usage(format!(
            "threads={threads} needs {needed} open files, but the limit is {most} (ulimit -Hn); \
             raise the limit or reduce threads"
        ))),
        _ => Ok(()),
    }
}
