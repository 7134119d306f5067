//! Closes a cluster file system at the end of its mount, and shows the progress of its last upload.
//!
//! When the mount ends, up to about 128 MiB of written bytes may be in memory only. Their upload
//! may take long, so the command shows its progress on a terminal. Without a terminal, it logs one
//! line before the upload.

use std::io::IsTerminal as _;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use corewalk::Errno;
use corewalk_base::primitives::thread;
use corewalk_cluster::ClusterFs;
use indicatif::{ProgressBar, ProgressStyle};

/// The time between two updates of the progress line.
const INTERVAL: Duration = Duration::from_millis(100);
const TEMPLATE: &str = "corewalk: writing {bytes} of {total_bytes} {bar:30} {elapsed}";

pub(super) fn close(cluster: &ClusterFs) -> Result<(), Errno> {
    let total = cluster.dirty_bytes();
    if total == 0 {
        return cluster.close();
    }
    if !std::io::stderr().is_terminal() {
        log::warn!("{total} bytes are written before the mount ends");
        return cluster.close();
    }
    let style = ProgressStyle::with_template(TEMPLATE).expect("the template is valid");
    let bar = ProgressBar::new(total).with_style(style);
    thread::scope(|scope| {
        let (done, ended) = channel::<()>();
        let shown = &bar;
        scope.spawn(move || {
            while ended.recv_timeout(INTERVAL) == Err(RecvTimeoutError::Timeout) {
                shown.set_position(total.saturating_sub(cluster.dirty_bytes()));
            }
            // Show the final position. If writes have failed, some bytes are still dirty.
            shown.set_position(total.saturating_sub(cluster.dirty_bytes()));
            shown.abandon();
        });
        let closed = cluster.close();
        drop(done);
        closed
    })
}
