//! Opens the namespace.
//!
//! The file is there already: `corewalk ipc exec` has made it. If it is gone a new one would be a second
//! namespace beside the one that others still have mapped, so none is made.
//!
//! A namespace without a name is a memfd of the process that runs the command, reached through its
//! `/proc/PID/fd`; that is the one place where a link is followed.
//!
//! Source: open(2), proc(5).

use corewalk_ipc::{Backing, Namespace, NamespaceOptions, NoBacking, SegmentFiles};
use rustix::fs::{Mode, OFlags, fstat};
use std::path::Path;

/// Maps the namespace in the file `path`. The file is closed again: the mapping is enough.
pub(crate) fn open(path: &Path) -> Result<Namespace, String> {
    let follow = if path.starts_with("/proc") { OFlags::empty() } else { OFlags::NOFOLLOW };
    let flags = OFlags::RDWR | OFlags::CLOEXEC | follow;
    let file = rustix::fs::open(path, flags, Mode::empty()).map_err(|errno| errno.to_string())?;
    let owner = fstat(&file).map_err(|errno| errno.to_string())?.st_uid;
    let user = rustix::process::geteuid();
    if !user.is_root() && owner != user.as_raw() {
        return Err("the file of the IPC namespace belongs to another user".to_owned());
    }
    let backing: Box<dyn Backing> = match crate::shm::folder() {
        Some(folder) => Box::new(SegmentFiles::new(folder)),
        None => Box::new(NoBacking),
    };
    let options = NamespaceOptions { backing: Some(backing), ..NamespaceOptions::default() };
    let opened = Namespace::open_fd(&file, options);
    opened.map_err(|error| error.to_string())
}
