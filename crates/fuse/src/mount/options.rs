//! How a mount appears to the system, apart from what the server does.

use std::ffi::OsString;

use bitflags::bitflags;

/// Threads of a mount unless told otherwise: for a back end of which nothing is known, and which may wait.
const THREADS: usize = 16;

/// The options of a mount, after mount(8) and fuse(8).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountOptions {
    /// What the mount table shows as the source (`fsname=`).
    pub source: OsString,
    /// Who may use the mount.
    pub access: Access,
    /// What holds for the whole mount.
    pub flags: MountFlags,
    /// How many threads read requests and serve them: as many as processors where requests seldom wait, since more
    /// take turns, and several clients take up to three times as long then; where each may wait, as many as
    /// the back end should have at a time. What is known to wait is not counted
    /// ([`FileSystem::fsync_waits`](corewalk::FileSystem::fsync_waits)).
    pub threads: usize,
}

/// Who may use a mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Only the user who mounted it, not even root.
    Owner,
    /// Everybody, as far as permissions go (`allow_other`).
    Everyone,
}

bitflags! {
    /// Properties of a mount, as mount(2) has them.
    ///
    /// The kernel keeps `ro`, `nosuid`, `nodev`, `noexec` and `nosymfollow`. The others it only shows, for a FUSE
    /// mount: times of access, and what is durable when a change of a directory returns, are the back end's, which
    /// has to be told as well (`StoreOptions` and `TmpfsOptions` have fields for them). So does one that is to
    /// change nothing for itself under `ro`.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct MountFlags: u32 {
        /// Nothing can be changed (`ro`).
        const RDONLY = 1;
        /// Set-user-ID and set-group-ID bits have no effect (`nosuid`).
        const NOSUID = 1 << 1;
        /// Device nodes cannot be opened (`nodev`).
        const NODEV = 1 << 2;
        /// Nothing can be executed (`noexec`).
        const NOEXEC = 1 << 3;
        /// Reading does not change the time of the last access (`noatime`), if the back end keeps that.
        const NOATIME = 1 << 4;
        /// Every write is durable at once (`sync`).
        const SYNC = 1 << 5;
        /// Every change of a directory is durable at once (`dirsync`), if the back end keeps that.
        const DIRSYNC = 1 << 6;
        /// Reading does not change the time of the last access of directories (`nodiratime`), as above.
        const NODIRATIME = 1 << 7;
        /// Reading always changes the time of the last access (`strictatime`), as above.
        const STRICTATIME = 1 << 8;
        /// Symbolic links are not followed (`nosymfollow`).
        const NOSYMFOLLOW = 1 << 9;
    }
}

impl Default for MountOptions {
    /// Returns a mount for its owner without set-user-ID programs and devices, served by 16 threads.
    fn default() -> MountOptions {
        MountOptions {
            source: "corewalk".into(),
            access: Access::Owner,
            flags: MountFlags::NOSUID | MountFlags::NODEV,
            threads: THREADS,
        }
    }
}
