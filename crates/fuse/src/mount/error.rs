//! The errors of mounting. Their messages are sentences for the users of a program that mounts.

use std::fmt;

use corewalk::Errno;

use crate::options::Conflict;

/// Tells why a mount failed. `Debug` prints the same sentence as `Display`, because Rust prints the
/// error of `main` with `Debug`.
///
/// # Examples
/// ```
/// use corewalk_fuse::MountError;
///
/// assert_eq!(format!("{:?}", MountError::Missing), "no such directory");
/// ```
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum MountError {
    /// Two options contradict each other.
    Options(Conflict),
    /// The back end or its cache failed to start.
    FileSystem(Errno),
    /// The mount point does not exist.
    Missing,
    /// The mount point is not a directory.
    NotDirectory,
    /// Another file system is mounted on the mount point.
    Busy,
    /// The mount point has a FUSE mount whose server has ended.
    Dead,
    /// This user may not use the mount point.
    Denied(Errno),
    /// `/dev/fuse` does not exist.
    NoDevice,
    /// The kernel does not offer FUSE over io_uring.
    NoUring,
    /// This user needs fusermount3(1), which is not installed.
    NoFusermount,
    /// fusermount3(1) has failed. The text is the first line that it has printed to stderr.
    Fusermount(Box<str>),
    /// A system call failed. The text names the step that failed.
    System(&'static str, Errno),
}

impl fmt::Debug for MountError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for MountError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MountError::Options(conflict) => conflict.fmt(f),
            MountError::FileSystem(error) => write!(f, "cannot start the file system: {error}"),
            MountError::Missing => f.write_str("no such directory"),
            MountError::NotDirectory => f.write_str("not a directory"),
            MountError::Busy => f.write_str("something is mounted there already"),
            MountError::Dead => {
                f.write_str("a mount whose server has ended is there; remove it with umount -l")
            }
            MountError::Denied(error) => error.fmt(f),
            MountError::NoDevice => {
                f.write_str("no /dev/fuse; load the kernel module with modprobe fuse")
            }
            MountError::NoUring => f.write_str(
                "the kernel offers no io_uring for FUSE; it needs Linux 6.14, and as root: echo Y > \
                 /sys/module/fuse/parameters/enable_uring",
            ),
            MountError::NoFusermount => {
                f.write_str("no fusermount3, which is needed to mount without root; install fuse3")
            }
            MountError::Fusermount(words) => f.write_str(words),
            MountError::System(what, error) => write!(f, "{what}: {error}"),
        }
    }
}

impl std::error::Error for MountError {}
