//! The limit on open files (`RLIMIT_NOFILE`) of a server.
//!
//! After the mount, each server thread opens `/dev/fuse`, and with io_uring also a ring. With a low
//! limit on open files these calls fail, and the mount exists but does not work. So the program
//! checks the limit before the mount.
//!
//! The soft limit on open files is often 1024, because select(2) accepts no higher descriptors.
//! This program does not use select(2), and raises the soft limit to the hard limit.
//!
//! Source: getrlimit(2).

use std::num::NonZero;

use corewalk_base::primitives::thread;
use corewalk_fuse::{MountOptions, Transport};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::failure::Failure;

/// The number of descriptors that all threads share. They are the standard streams, the FUSE
/// device, ten files of an open store, and some that are open only for a short time.
const SHARED: u64 = 24;
/// The number of descriptors of one thread: the device, and with io_uring also a ring and an
/// eventfd(2).
const DEVICE: u64 = 1;
const DEVICE_AND_RING: u64 = 3;
/// The largest number of descriptors that one call on a directory of the host opens: two
/// directories, a file, and the directory that is listed.
const CALL: u64 = 4;

/// Returns the number of descriptors that the server itself needs. The files that clients open must
/// leave this number free.
pub(super) fn reserved(mount: &MountOptions) -> usize {
    (needed(mount) + CALL * mount.threads as u64) as usize
}

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
