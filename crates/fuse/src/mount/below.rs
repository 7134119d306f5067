//! Watching for file systems that are mounted on directories of a mount.
//!
//! Suppose that a file system is mounted on a directory of a mount. If `FUSE_NOTIFY_INC_EPOCH` has
//! expired the name of this directory, or of one above, the kernel detaches the file system. So the
//! notification is sent only while no such file system exists.
//!
//! Between the check and the notification, a user may mount a file system, which the kernel then
//! detaches. The module sees only the mounts of the mount namespace in which it was started.
//!
//! Source: Linux `fuse_dentry_revalidate`, `d_invalidate` and `mounts_poll`; proc_pid_mountinfo(5).

use std::fs::File;

use corewalk_base::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::table;

/// Tells whether a file system is mounted below a mount.
#[derive(Debug)]
pub(crate) struct MountsBelow {
    /// The mount table, which poll(2) reports as changed.
    table: Option<File>,
    device: (u32, u32),
    /// None if the table could not be read.
    is_any: Mutex<Option<bool>>,
}

impl MountsBelow {
    /// Watches the mount whose device has the major and minor number `device`.
    pub(super) fn watch(device: (u32, u32)) -> MountsBelow {
        let table = File::open(table::MOUNT_TABLE).ok();
        // Read the table after it was opened: poll(2) on the open file reports each later change.
        MountsBelow { table, device, is_any: Mutex::new(table::has_mounts_below(device)) }
    }

    /// Returns true if a file system is mounted on a directory of the mount, or if the mount table
    /// cannot be read.
    pub(crate) fn is_any(&self) -> bool {
        let Some(table) = &self.table else { return true };
        let mut is_any = self.is_any.lock();
        let mut polled = [PollFd::new(table, PollFlags::PRI)];
        // poll(2) reports each change of the table only once. So the lock is held until the table
        // was read, and no other thread uses the old result meanwhile.
        let has_changed = poll(&mut polled, Some(&Timespec::default())) != Ok(0);
        if has_changed || is_any.is_none() {
            *is_any = table::has_mounts_below(self.device);
        }
        is_any.unwrap_or(true)
    }
}
