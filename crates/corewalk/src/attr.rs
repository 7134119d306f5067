//! What stat(2) says of an inode, and what chmod, chown, truncate and utimensat change.

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

/// How old an access time may get before `relatime` sets it anyway, in seconds: a day.
const RELATIME_SECS: i64 = 24 * 60 * 60;

/// When reading sets the time of the last access, after mount(8).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Atime {
    /// If that is not younger than the last change, or a day old (`relatime`).
    #[default]
    Relative,
    /// Never (`noatime`).
    Never,
    /// At each read that reaches the file system (`strictatime`). A FUSE server's kernel answers reads
    /// and listings from its own cache as well, and tells no server.
    Strict,
}

impl Atime {
    /// Returns true if reading at `now` sets the access time, where `times` are those of access, change of
    /// the content, and any change.
    ///
    /// # Examples
    /// ```
    /// use corewalk::{Atime, Timespec};
    ///
    /// let [changed, read, now] = [10, 20, 30].map(|secs| Timespec { secs, nanos: 0 });
    /// assert!(!Atime::Relative.is_noted([read, changed, changed], now));
    /// assert!(Atime::Relative.is_noted([read, changed, read], now));
    /// assert!(Atime::Strict.is_noted([read, changed, changed], now));
    /// assert!(!Atime::Never.is_noted([read, changed, read], now));
    /// ```
    pub fn is_noted(self, times: [Timespec; 3], now: Timespec) -> bool {
        let [atime, mtime, ctime] = times;
        let is_old = now.secs.saturating_sub(atime.secs) >= RELATIME_SECS;
        match self {
            Atime::Relative => atime <= mtime || atime <= ctime || is_old,
            Atime::Never => false,
            Atime::Strict => true,
        }
    }
}

/// When reading sets the time of the last access, by what is read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AtimePolicy {
    /// Of directories (`nodiratime`).
    pub directories: Atime,
    /// Of files and symbolic links.
    pub others: Atime,
}

impl AtimePolicy {
    /// Reading changes nothing.
    pub const NEVER: AtimePolicy = AtimePolicy { directories: Atime::Never, others: Atime::Never };

    /// Returns what holds for files of `kind`.
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
    /// Returns the kind that `mode` (with its type bits) says; a mode without type bits is a
    /// regular file, as mknod(2) has it. None for type bits that name no kind.
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

/// Seconds and nanoseconds since the epoch; the nanoseconds are below 1,000,000,000 and count
/// forward also when the seconds are negative, as in `struct timespec`.
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
    /// The inode number: names this inode among those that exist now.
    pub ino: u64,
    /// With `ino`, names this inode for ever: the pair is never used again within a mount.
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
    /// Space taken, in 512-byte units.
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
    /// True if the inode has an access ACL that says more than `mode`.
    pub has_acl: bool,
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

/// A time to set: a given one or that of the clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetTime {
    /// The time of the clock when the change is made (`UTIME_NOW`).
    Now,
    /// This time.
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
    /// New change time, only from a kernel that keeps it (a writeback cache); else the back end
    /// sets the change time itself.
    pub ctime: Option<Timespec>,
}

/// What statfs(2) says of a file system.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StatFs {
    /// Block size in bytes, the unit of the three counts below.
    pub bsize: u32,
    /// Blocks in all.
    pub blocks: u64,
    /// Free blocks.
    pub bfree: u64,
    /// Free blocks for those without privilege.
    pub bavail: u64,
    /// Inodes in all.
    pub files: u64,
    /// Free inodes.
    pub ffree: u64,
    /// The longest name, in bytes.
    pub namelen: u32,
}
