//! Why a mount failed, in words for whoever typed the command.

use std::fmt;

use corewalk::Errno;

use crate::options::Conflict;

/// Why nothing was mounted.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MountError {
    /// The options do not go together.
    Options(Conflict),
    /// The back end or its cache failed to start.
    FileSystem(Errno),
    /// The mount point does not exist.
    Missing,
    /// The mount point is no directory.
    NotDirectory,
    /// Something is mounted there.
    Busy,
    /// What is mounted there has lost its server.
    Dead,
    /// The mount point may not be used by this user.
    Denied(Errno),
    /// There is no `/dev/fuse`.
    NoDevice,
    /// This user needs fusermount3(1), and there is none.
    NoFusermount,
    /// fusermount3(1) refused; these are its words, which are nobody else's to phrase.
    Fusermount(Box<str>),
    /// A system call failed.
    System(&'static str, Errno),
}

impl fmt::Display for MountError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MountError::Options(conflict) => conflict.fmt(f),
            MountError::FileSystem(error) => write!(f, "the file system does not start: {error}"),
            MountError::Missing => f.write_str("no such directory"),
            MountError::NotDirectory => f.write_str("not a directory"),
            MountError::Busy => f.write_str("something is mounted there already"),
            MountError::Dead => {
                f.write_str("a mount without a server is there; remove it with umount -l")
            }
            MountError::Denied(error) => error.fmt(f),
            MountError::NoDevice => {
                f.write_str("no /dev/fuse; load the kernel module with modprobe fuse")
            }
            MountError::NoFusermount => {
                f.write_str("no fusermount3, which mounting needs without root; install fuse3")
            }
            MountError::Fusermount(words) => f.write_str(words),
            MountError::System(what, error) => write!(f, "{what}: {error}"),
        }
    }
}

impl std::error::Error for MountError {}
