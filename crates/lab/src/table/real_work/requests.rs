//! Counts the requests that the kernel sends to the server of a mount.
//!
//! The tracepoint `fuse:fuse_request_send` is enabled in a tracing instance of this process, which
//! no other program disturbs. The events themselves are never read. The kernel reports how many it
//! has recorded, and how many of them it has overwritten. A forget has no event.
//!
//! Source: Linux `Documentation/trace/ftrace.rst`, `fs/fuse/fuse_trace.h`.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use rustix::fs::{major, minor, stat};

/// The folder of the kernel's tracing instances. Making a folder in it makes an instance.
const INSTANCES: &str = "/sys/kernel/tracing/instances";
const EVENT: &str = "events/fuse/fuse_request_send";

/// A tracing instance. Dropping the value removes it.
pub(super) struct Requests(PathBuf);

impl Requests {
    /// Makes a tracing instance.
    ///
    /// # Errors
    /// An error without root, and without a mounted tracefs.
    pub(super) fn new() -> anyhow::Result<Requests> {
        let folder = format!("{INSTANCES}/corewalk-lab-{}", std::process::id());
        fs::create_dir(&folder).context(INSTANCES)?;
        let requests = Requests(folder.into());
        fs::write(requests.0.join(EVENT).join("enable"), "1").context(EVENT)?;
        Ok(requests)
    }

    /// Begins to count the requests of the mount that has the file `file`.
    pub(super) fn start(&self, file: &Path) -> anyhow::Result<()> {
        let device = stat(file)?.st_dev;
        // The number of the connection is the device number as the kernel stores it.
        let filter = format!("connection == {}", major(device) << 20 | minor(device));
        fs::write(self.0.join(EVENT).join("filter"), filter)?;
        Ok(fs::write(self.0.join("trace"), "")?)
    }

    /// Returns how many requests the kernel has sent since the start.
    pub(super) fn count(&self) -> io::Result<u64> {
        let mut sum = 0;
        for cpu in fs::read_dir(self.0.join("per_cpu"))? {
            let stats = fs::read_to_string(cpu?.path().join("stats"))?;
            let lines = stats.lines().filter_map(|line| line.split_once(": "));
            let counts = lines.filter(|(name, _)| ["entries", "overrun"].contains(name));
            sum += counts.filter_map(|(_, count)| count.parse::<u64>().ok()).sum::<u64>();
        }
        Ok(sum)
    }
}

impl Drop for Requests {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}
