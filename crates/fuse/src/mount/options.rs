//! The options of a mount, without those of the server.

use std::ffi::OsString;

use bitflags::bitflags;
use rustix::mount::MountFlags as Bits;

use crate::transport::Transport;

/// The default number of threads. It suits a back end in which every request has to wait for a disk
/// or a network.
const THREADS: usize = 16;

/// The options of a mount, which follow mount(8) and fuse(8).
///
/// # Examples
/// ```
/// use corewalk_fuse::{AllowedUsers, MountFlags, MountOptions};
///
/// let options = MountOptions::default().with_source("tmpfs").with_threads(4);
/// assert_eq!(options.flags, MountFlags::NOSUID | MountFlags::NODEV);
/// // All users may use this mount. Devices and set-user-ID programs have their effect in it.
/// let options = options.with_users(AllowedUsers::Everyone).with_flags(MountFlags::empty());
/// assert_eq!(options.users, AllowedUsers::Everyone);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MountOptions {
    /// The source in the mount table (`fsname=`). If root mounts, the table shows its first 255
    /// bytes.
    pub source: OsString,
    /// Which users may use the mount.
    pub users: AllowedUsers,
    /// The flags of the mount, such as `nosuid`.
    pub flags: MountFlags,
    /// The number of threads that read and serve requests.
    ///
    /// If requests seldom wait, use one thread per processor: with more threads, parallel clients
    /// take up to three times as long. If each request may wait, use as many threads as the back
    /// end can serve at a time. Requests that are known to wait run on additional threads
    /// ([`FileSystem::fsync_waits`](corewalk::FileSystem::fsync_waits)).
    pub threads: usize,
    /// The way in which requests arrive.
    pub transport: Transport,
}

/// Which users may use a mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AllowedUsers {
    /// Only the user that has mounted the file system may use it. All others get an error, even
    /// root.
    Owner,
    /// All users, as far as permissions allow (`allow_other`).
    Everyone,
}

bitflags! {
    /// Flags of a mount, with the values that they have in mount(2).
    ///
    /// For a FUSE mount the kernel enforces `ro`, `nosuid`, `nodev`, `noexec` and `nosymfollow`. A
    /// back end that writes on its own, such as a store, must be told about `ro` too.
    ///
    /// The flags for access times and for durable changes of directories have no effect in the
    /// kernel. Set them in the back end, too (`StoreOptions` and `TmpfsOptions` have fields for
    /// them).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct MountFlags: u32 {
        /// The mount is read-only (`ro`).
        const RDONLY = Bits::RDONLY.bits();
        /// Set-user-ID and set-group-ID bits have no effect (`nosuid`).
        const NOSUID = Bits::NOSUID.bits();
        /// Device nodes cannot be opened (`nodev`).
        const NODEV = Bits::NODEV.bits();
        /// Programs cannot be executed (`noexec`).
        const NOEXEC = Bits::NOEXEC.bits();
        /// A read does not change the access time (`noatime`). The back end needs the same setting.
        const NOATIME = Bits::NOATIME.bits();
        /// Each write is durable when it returns (`sync`).
        const SYNC = Bits::SYNCHRONOUS.bits();
        /// A change of a directory is durable when its call returns (`dirsync`). The back end needs
        /// the same setting.
        const DIRSYNC = Bits::DIRSYNC.bits();
        /// A read of a directory does not change its access time (`nodiratime`). The back end needs
        /// the same setting.
        const NODIRATIME = Bits::NODIRATIME.bits();
        /// A read always changes the access time (`strictatime`). The back end needs the same
        /// setting.
        const STRICTATIME = Bits::STRICTATIME.bits();
        /// Symbolic links are not followed (`nosymfollow`).
        const NOSYMFOLLOW = Bits::NOSYMFOLLOW.bits();
    }
}

impl MountOptions {
    corewalk_base::setters! {
        with_source: source = impl Into<OsString>;
        with_users: users = AllowedUsers;
        with_flags: flags = MountFlags;
        with_threads: threads = usize;
        with_transport: transport = Transport;
    }
}

impl Default for MountOptions {
    /// By default, only the owner may use the mount. Set-user-ID programs and devices have no
    /// effect in it, and 16 threads serve it.
    fn default() -> MountOptions {
        MountOptions {
            source: "corewalk".into(),
            users: AllowedUsers::Owner,
            flags: MountFlags::NOSUID | MountFlags::NODEV,
            threads: THREADS,
            transport: Transport::default(),
        }
    }
}
