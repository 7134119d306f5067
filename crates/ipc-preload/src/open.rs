//! Maps the namespace.
//!
//! If the namespace's file is gone, the library creates no new one: other processes may still have
//! the old file mapped.
//!
//! The library uses the inherited descriptor if there is one (`handed`), and otherwise the path of
//! the namespace's file. A namespace without a name is a memfd of the process `corewalk ipc exec`,
//! with a path in that process's `/proc/PID/fd`. Only in that directory does the library follow a
//! symbolic link.
//!
//! Source: open(2), proc(5).

use corewalk_ipc::{Backing, Namespace, NamespaceOptions, NoBacking};
use rustix::fs::{Mode, OFlags, fstat};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use crate::handed;

/// The environment variable with the path of the namespace's file.
const NAMESPACE_ENV: &str = "COREWALK_IPC_NAMESPACE";

/// Maps the namespace, and closes the file.
///
/// # Errors
///
/// The reason, as a text.
pub(crate) fn open() -> Result<Namespace, String> {
    let backing: Box<dyn Backing> = match crate::shm::segments() {
        Some(segments) => Box::new(segments),
        None => Box::new(NoBacking),
    };
    let options = NamespaceOptions { backing: Some(backing), ..NamespaceOptions::default() };
    if let Some(file) = handed::file() {
        return Namespace::open_fd(file, options).map_err(|error| error.to_string());
    }
    let path = std::env::var_os(NAMESPACE_ENV).map(PathBuf::from);
    let path = path.ok_or_else(|| format!("{NAMESPACE_ENV} is not set"))?;
    let file = open_path(&path).map_err(|why| format!("{}: {why}", path.display()))?;
    let opened = Namespace::open_fd(&file, options);
    opened.map_err(|error| format!("{}: {error}", path.display()))
}

fn open_path(path: &Path) -> Result<OwnedFd, String> {
    let follow = if path.starts_with("/proc") { OFlags::empty() } else { OFlags::NOFOLLOW };
    let flags = OFlags::RDWR | OFlags::CLOEXEC | follow;
    let file = rustix::fs::open(path, flags, Mode::empty()).map_err(|errno| errno.to_string())?;
    let owner = fstat(&file).map_err(|errno| errno.to_string())?.st_uid;
    let user = rustix::process::geteuid();
    if !user.is_root() && owner != user.as_raw() {
        return Err("the file of the IPC namespace belongs to another user".to_owned());
    }
    Ok(file)
}
