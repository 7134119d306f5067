//! Attributes of an inode, as stat(2) reports them and as chmod, chown, truncate and utimensat
//! change them.

use std::time::Duration;

/// The file type bits and the twelve permission bits of `st_mode`.
pub mod mode {
    /// The mask of the file type bits.
    pub const S_IFMT: u32 = 0o170000;
    /// A socket.
    pub const S_IFSOCK: u32 = 0o140000;
    /// A symbolic link.
    pub const S_IFLNK: u32 = 0o120000;
    /// A regular file.
    pub const S_IFREG: u32 = 0o100000;
    /// A block device.
    pub const S_IFBLK: u32 = 0o060000;
    /// A directory.
    pub const S_IFDIR: u32 = 0o040000;
    /// A character device.
    pub const S_IFCHR: u32 = 0o020000;
    /// A FIFO.
    pub const S_IFIFO: u32 = 0o010000;
    /// The set-user-ID bit.
    pub const S_ISUID: u32 = 0o4000;
    /// The set-group-ID bit.
    pub const S_ISGID: u32 = 0o2000;
    /// The sticky bit.
    pub const S_ISVTX: u32 = 0o1000;
}

/// The age at which `relatime` updates an access time in any case, in seconds: one day.
const RELATIME_SECS: i64 = 24 * 60 * 60;

/// When a read updates the access time; see mount(8).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Atime {
    /// If it is not newer than the last change, or is a day old (`relatime`).
    #[default]
    Relative,
    /// Never (`noatime`).
    Never,
    /// At each read that reaches the file system (`strictatime`). The kernel of a FUSE server also
    /// answers reads and listings from its cache; these do not reach the server.
    Strict,
}

impl Atime {
    /// Returns true if a read at `now` updates the access time. `times` are the access time, the
    /// modification time and the change time.
    ///
    /// # Examples
    /// ```
    /// use corewalk::{Atime, Timespec};
    ///
    /// let [changed, read, now] = [10, 20, 30].map(|secs| Timespec { secs, nanos: 0 });
    /// assert!(!Atime::Relative.needs_update([read, changed, changed], now));
    /// assert!(Atime::Relative.needs_update([read, changed, read], now));
    /// assert!(Atime::Strict.needs_update([read, changed, changed], now));
    /// assert!(!Atime::Never.needs_update([read, changed, read], now));
    /// ```
    pub fn needs_update(self, times: [Timespec; 3], now: Timespec) -> bool {
        let [atime, mtime, ctime] = times;
        let is_old = now.secs.saturating_sub(atime.secs) >= RELATIME_SECS;
        match self {
            Atime::Relative => atime <= mtime || atime <= ctime || is_old,
            Atime::Never => false,
            Atime::Strict => true,
        }
    }
}

/// When a read updates the access time, for directories and other files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AtimePolicy {
    /// For directories (`nodiratime`).
    pub directories: Atime,
    /// For files and symbolic links.
    pub others: Atime,
}

impl AtimePolicy {
    /// Reads never update the access time.
    pub const NEVER: AtimePolicy = AtimePolicy { directories: Atime::Never, others: Atime::Never };

    /// Returns the setting for files of `kind`.
    #[inline]
    pub fn of(self, kind: FileKind) -> Atime {
        if kind == FileKind::Directory { self.directories } else { self.others }
    }
}

/// The type of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FileKind {
    /// A regular file.
    Regular,
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink,
    /// A FIFO.
    Fifo,
    /// A socket.
    Socket,
    /// A character device.
    CharDevice,
    /// A block device.
    BlockDevice,
}

impl FileKind {
    /// Returns the kind that the type bits of `mode` name. A mode without type bits is a regular
    /// file, as mknod(2) says. Returns None for unknown type bits.
    pub fn from_mode(mode: u32) -> Option<FileKind> {
        Some(match mode & mode::S_IFMT {
            0 | mode::S_IFREG => FileKind::Regular,
            mode::S_IFDIR => FileKind::Directory,
            mode::S_IFLNK => FileKind::Symlink,
            mode::S_IFIFO => FileKind::Fifo,
            mode::S_IFSOCK => FileKind::Socket,
            mode::S_IFCHR => FileKind::CharDevice,
            mode::S_IFBLK => FileKind::BlockDevice,
            _ => return None,
        })
    }

    /// Returns the type bits of `st_mode`.
    pub fn to_mode(self) -> u32 {
        match self {
            FileKind::Regular => mode::S_IFREG,
            FileKind::Directory => mode::S_IFDIR,
            FileKind::Symlink => mode::S_IFLNK,
            FileKind::Fifo => mode::S_IFIFO,
            FileKind::Socket => mode::S_IFSOCK,
            FileKind::CharDevice => mode::S_IFCHR,
            FileKind::BlockDevice => mode::S_IFBLK,
        }
    }
}

/// Seconds and nanoseconds since the epoch. The nanoseconds count forward even if the seconds are
/// negative, as in `struct timespec`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timespec {
    /// Whole seconds.
    pub secs: i64,
    /// Nanoseconds, 0 to 999,999,999.
    pub nanos: u32,
}

impl Timespec {
    /// Returns the time of the realtime clock.
    pub fn now() -> Timespec {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
        Timespec { secs: now.tv_sec, nanos: now.tv_nsec as u32 }
    }
}

/// The attributes of an inode, as stat(2) reports them.
#[doc(alias = "kstat")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attr {
    /// The inode number. No two existing inodes have the same one.
    pub ino: u64,
    /// The generation. The pair of `ino` and generation is never reused within a mount.
    pub generation: u64,
    /// File type and permission bits.
    pub mode: u32,
    /// Hard links.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number of a device node, in the kernel's `makedev` form; 0 otherwise.
    pub rdev: u64,
    /// Size in bytes.
    pub size: u64,
    /// Space used, in 512-byte units.
    pub blocks: u64,
    /// Preferred block size for input and output, in bytes.
    pub blksize: u32,
    /// Last access.
    pub atime: Timespec,
    /// Last change of the content.
    pub mtime: Timespec,
    /// Last change of the inode.
    pub ctime: Timespec,
    /// Creation.
    pub btime: Timespec,
    /// True if the inode has an access ACL that `mode` cannot express.
    pub has_acl: bool,
    /// How long a client may use them.
    pub ttl: Ttl,
}

/// How long a client, such as the kernel, may use an answer before it asks again. `None` means what
/// the server's options say. The namespace itself keeps names until they change or are invalidated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ttl {
    /// For the name under which the inode was found. Only attributes that come with a name
    /// (`lookup`, `make`, `link`, `readdir`) use it.
    pub entry: Option<Duration>,
    /// For the attributes.
    pub attr: Option<Duration>,
}

impl Attr {
    /// Returns the file type.
    pub fn kind(&self) -> FileKind {
        FileKind::from_mode(self.mode).unwrap_or(FileKind::Regular)
    }

    /// Returns true for a directory.
    pub fn is_dir(&self) -> bool {
        self.mode & mode::S_IFMT == mode::S_IFDIR
    }
}

/// A time to set: a given time or the current one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetTime {
    /// The current time when the change is made (`UTIME_NOW`).
    Now,
    /// The given time.
    At(Timespec),
}

/// A change of attributes; `None` leaves a field as it is.
#[doc(alias = "iattr")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SetAttr {
    /// New permission bits (type bits are ignored).
    pub mode: Option<u32>,
    /// New owner.
    pub uid: Option<u32>,
    /// New group.
    pub gid: Option<u32>,
    /// New size in bytes.
    pub size: Option<u64>,
    /// New access time.
    pub atime: Option<SetTime>,
    /// New modification time.
    pub mtime: Option<SetTime>,
    /// New change time, from a kernel that keeps it (writeback cache). With None the back end sets
    /// the change time.
    pub ctime: Option<Timespec>,
}

/// The attributes of a file system, as statfs(2) reports them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StatFs {
    /// Block size in bytes, the unit of the three counts below.
    pub bsize: u32,
    /// Total blocks.
    pub blocks: u64,
    /// Free blocks.
    pub bfree: u64,
    /// Free blocks for unprivileged users.
    pub bavail: u64,
    /// Total inodes.
    pub files: u64,
    /// Free inodes.
    pub ffree: u64,
    /// The longest name, in bytes.
    pub namelen: u32,
}
