//! Finds out whether other file systems are mounted on directories of a mount.
//!
//! `FUSE_NOTIFY_INC_EPOCH` makes the kernel drop all names, and detach each file system that is
//! mounted on a directory of the mount. So the server sends this notification only while no such
//! file system exists.
//!
//! Between the check and the notification, a user may mount a file system, which the kernel then
//! detaches. The check sees only mounts in the mount namespace of the server.
//!
//! Source: Linux `fuse_dentry_revalidate`, `d_invalidate` and `mounts_poll`; proc_pid_mountinfo(5).

use std::fs::File;

use corewalk_base::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::table;

#[derive(Debug)]
pub(crate) struct MountsBelow {
    /// The mount table. poll(2) reports changes of this file.
    table: Option<File>,
    device: (u32, u32),
    /// True if a file system was mounted below the mount when the table was last read. `None` if
    /// the table could not be read. Protected by its own mutex.
    is_any: Mutex<Option<bool>>,
}

impl MountsBelow {
    pub(super) fn watch(device: (u32, u32)) -> MountsBelow {
        let table = File::open(table::MOUNT_TABLE).ok();
        // poll(2) reports each change after the open, so read the table after it.
        MountsBelow { table, device, is_any: Mutex::new(table::has_mounts_below(device)) }
    }

    pub(crate) fn is_any(&self) -> bool {
        let Some(table) = &self.table else { return true };
        let mut is_any = self.is_any.lock();
        let mut polled = [PollFd::new(table, PollFlags::PRI)];
        // poll(2) reports each change only once. Hold the lock until the table is read, so that no
        // other thread uses the old result.
        let has_changed = poll(&mut polled, Some(&Timespec::default())) != Ok(0);
        if has_changed || is_any.is_none() {
            *is_any = table::has_mounts_below(self.device);
        }
        is_any.unwrap_or(true)
    }
}
