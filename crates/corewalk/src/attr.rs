//! Attributes of an inode, as stat(2) reports them and chmod and chown change them.

mod from_host;

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

/// The usual block size of a file and of a file system, in bytes.
const BLKSIZE: u32 = 4096;
/// The age in seconds (one day) at which an access time counts as old. With `relatime`, a read
/// updates an old access time even if the file has not changed.
const RELATIME_SECS: i64 = 24 * 60 * 60;

/// The rule by which a read updates the access time; see mount(8).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Atime {
    /// Update the access time if it is not newer than the modification time and the change time, or
    /// if it is a day old (`relatime`).
    #[default]
    Relative,
    /// Never (`noatime`).
    Never,
    /// Update the access time at each read that reaches the file system (`strictatime`). A FUSE
    /// kernel answers some reads and directory listings from its own cache. Such a read leaves the
    /// access time as it is.
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

/// The rules by which a read updates the access time, for directories and for other files.
///
/// # Examples
/// ```
/// use corewalk::{Atime, AtimePolicy, FileKind};
///
/// let no_directories = AtimePolicy { directories: Atime::Never, ..AtimePolicy::default() };
/// assert_eq!(no_directories.of(FileKind::Directory), Atime::Never);
/// assert_eq!(no_directories.of(FileKind::Regular), Atime::Relative);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AtimePolicy {
    /// For directories (`nodiratime`).
    pub directories: Atime,
    /// For files and symbolic links.
    pub others: Atime,
}

impl AtimePolicy {
    /// The policy under which reads never update the access time (`noatime`).
    pub const NEVER: AtimePolicy = AtimePolicy { directories: Atime::Never, others: Atime::Never };

    /// Returns the rule for files of `kind`.
    #[inline]
    pub fn of(self, kind: FileKind) -> Atime {
        if kind == FileKind::Directory { self.directories } else { self.others }
    }
}

/// The type of a file.
///
/// # Examples
/// ```
/// use corewalk::FileKind;
///
/// assert_eq!(FileKind::from_mode(0o100_644), Some(FileKind::Regular));
/// assert_eq!(FileKind::from_mode(0o644), Some(FileKind::Regular));
/// assert_eq!(FileKind::Directory.to_mode() | 0o755, 0o040_755);
/// ```
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
    /// Returns the kind of file that the type bits of `mode` stand for. A mode without type bits
    /// stands for a regular file, as mknod(2) says. Returns None if the type bits are unknown.
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
///
/// # Examples
/// ```
/// use corewalk::Timespec;
///
/// let before = Timespec { secs: -1, nanos: 999_999_999 };
/// assert!(before < Timespec::default() && Timespec::default() < Timespec::now());
/// ```
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
///
/// # Examples
/// ```
/// use corewalk::{Attr, Timespec};
///
/// let file = Attr::file(7, 1000).with_uid(1000).with_times(Timespec::now());
/// assert_eq!((file.mode, file.nlink, file.blocks), (0o100_644, 1, 2));
/// assert!(Attr::dir(1).is_dir());
/// ```
#[doc(alias = "kstat")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Attr {
    /// The inode number. No two existing inodes have the same number. A back end that has no
    /// numbers reports 0 for every file, and the cache numbers the files.
    pub ino: u64,
    /// The generation of the inode number. No other file of the mount ever gets the same inode
    /// number with the same generation.
    pub generation: u64,
    /// File type and permission bits.
    pub mode: u32,
    /// Hard links.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number of a device node, in the form of the kernel's `makedev`. 0 for all other
    /// files.
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
    /// True if the inode has an access ACL that the permission bits in `mode` cannot express.
    pub has_acl: bool,
    /// How long a client may use these attributes, and the name under which it found the inode.
    pub ttl: Ttl,
}

/// How long a client, such as the kernel, may use a name or attributes before it asks the server
/// again. `None` means the default in the server's options. The server's own dentry cache keeps
/// names until they change or are invalidated.
///
/// # Examples
/// ```
/// use std::time::Duration;
/// use corewalk::{Attr, Ttl};
///
/// // The size changes often: clients ask for it each time, but keep the name.
/// let log = Attr::file(7, 100).with_ttl(Ttl { attr: Some(Duration::ZERO), ..Ttl::default() });
/// assert_eq!(log.ttl.entry, None);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ttl {
    /// How long a client may use the name under which it found the inode. Only the attributes that
    /// `lookup`, `make`, `link` and `readdir` return need this field, because they belong to a
    /// name.
    pub entry: Option<Duration>,
    /// For the attributes.
    pub attr: Option<Duration>,
}

impl Attr {
    /// Returns the attributes of an empty file with one link. Its user and group are 0, and all its
    /// times are 0. `mode` contains the type bits and the permission bits.
    pub fn new(ino: u64, mode: u32) -> Attr {
        let (generation, nlink, uid, gid, rdev) = (0, 1, 0, 0, 0);
        let (size, blocks, blksize) = (0, 0, BLKSIZE);
        let [atime, mtime, ctime, btime] = [Timespec::default(); 4];
        let has_acl = false;
        Attr {
            ino,
            generation,
            mode,
            nlink,
            uid,
            gid,
            rdev,
            size,
            blocks,
            blksize,
            atime,
            mtime,
            ctime,
            btime,
            has_acl,
            ttl: Ttl::default(),
        }
    }

    /// Returns the attributes of a regular file with `size` bytes and mode 644.
    ///
    /// # Examples
    /// ```
    /// let attr = corewalk::Attr::file(7, 1000).with_uid(1000);
    /// assert_eq!((attr.ino, attr.mode, attr.size, attr.blocks), (7, 0o100_644, 1000, 2));
    /// assert!(!attr.is_dir() && corewalk::Attr::dir(1).is_dir());
    /// ```
    pub fn file(ino: u64, size: u64) -> Attr {
        let blocks = size.div_ceil(512);
        Attr { size, blocks, ..Attr::new(ino, mode::S_IFREG | 0o644) }
    }

    /// Returns the attributes of a directory with mode 755.
    pub fn dir(ino: u64) -> Attr {
        Attr { nlink: 2, ..Attr::new(ino, mode::S_IFDIR | 0o755) }
    }

    corewalk_base::setters! {
        with_ino: ino = u64;
        with_generation: generation = u64;
        with_mode: mode = u32;
        with_nlink: nlink = u32;
        with_uid: uid = u32;
        with_gid: gid = u32;
        with_rdev: rdev = u64;
        with_size: size = u64;
        with_blocks: blocks = u64;
        with_blksize: blksize = u32;
        with_atime: atime = Timespec;
        with_mtime: mtime = Timespec;
        with_ctime: ctime = Timespec;
        with_btime: btime = Timespec;
        with_has_acl: has_acl = bool;
        with_ttl: ttl = Ttl;
    }

    /// Returns `self` with all four times set to `time`.
    #[must_use]
    pub fn with_times(self, time: Timespec) -> Attr {
        Attr { atime: time, mtime: time, ctime: time, btime: time, ..self }
    }

    /// Applies the attribute changes in `set`, at the time `now`. A new size also changes the
    /// blocks and the modification time. Meant for a back end that keeps an `Attr` per file.
    ///
    /// # Examples
    /// ```
    /// use corewalk::{Attr, SetAttr, Timespec};
    ///
    /// let (mut attr, now) = (Attr::file(7, 1000), Timespec::now());
    /// attr.change(&SetAttr::default().with_mode(0o600).with_size(0), now);
    /// assert_eq!((attr.mode, attr.size, attr.blocks), (0o100_600, 0, 0));
    /// assert_eq!((attr.atime, attr.mtime, attr.ctime), (Timespec::default(), now, now));
    /// ```
    pub fn change(&mut self, set: &SetAttr, now: Timespec) {
        if let Some(mode) = set.mode {
            self.mode = self.mode & mode::S_IFMT | mode & !mode::S_IFMT;
        }
        self.uid = set.uid.unwrap_or(self.uid);
        self.gid = set.gid.unwrap_or(self.gid);
        if let Some(size) = set.size {
            (self.size, self.blocks) = (size, size.div_ceil(512));
        }
        [self.atime, self.mtime, self.ctime] = set.times([self.atime, self.mtime], now);
    }

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
///
/// # Examples
/// ```
/// use corewalk::{SetAttr, SetTime};
///
/// let truncate = SetAttr::default().with_size(0).with_mtime(SetTime::Now);
/// assert_eq!((truncate.size, truncate.mode), (Some(0), None));
/// ```
#[doc(alias = "iattr")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
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
    /// The new change time. If it is None, the back end sets the change time itself. A FUSE kernel
    /// with a writeback cache passes a change time, because it keeps change times itself.
    pub ctime: Option<Timespec>,
}

impl SetAttr {
    corewalk_base::setters! {
        with_mode: mode = impl Into<Option<u32>>;
        with_uid: uid = impl Into<Option<u32>>;
        with_gid: gid = impl Into<Option<u32>>;
        with_size: size = impl Into<Option<u64>>;
        with_atime: atime = impl Into<Option<SetTime>>;
        with_mtime: mtime = impl Into<Option<SetTime>>;
        with_ctime: ctime = impl Into<Option<Timespec>>;
    }

    /// Returns the access, modification and change times of a file after the changes in `self`,
    /// made at `now`. `before` contains the earlier access and modification times.
    ///
    /// A new size sets the modification time to `now`, and every change sets the change time to
    /// `now`. If the field `mtime` or `ctime` is set, its time is used instead.
    ///
    /// # Examples
    /// ```
    /// use corewalk::{SetAttr, SetTime, Timespec};
    ///
    /// let [read, written, now] = [10, 20, 30].map(|secs| Timespec { secs, nanos: 0 });
    /// let chmod = SetAttr::default().with_mode(0o600);
    /// assert_eq!(chmod.times([read, written], now), [read, written, now]);
    /// let truncate = SetAttr::default().with_size(0);
    /// assert_eq!(truncate.times([read, written], now), [read, now, now]);
    /// let both = truncate.with_atime(SetTime::Now).with_mtime(SetTime::At(written));
    /// assert_eq!(both.times([read, written], now), [now, written, now]);
    /// ```
    pub fn times(&self, before: [Timespec; 2], now: Timespec) -> [Timespec; 3] {
        let stamp = |time| match time {
            SetTime::Now => now,
            SetTime::At(time) => time,
        };
        let [atime, mtime] = before;
        let mtime = if self.size.is_some() { now } else { mtime };
        let (atime, mtime) = (self.atime.map_or(atime, stamp), self.mtime.map_or(mtime, stamp));
        [atime, mtime, self.ctime.unwrap_or(now)]
    }
}

/// The attributes of a file system, as statfs(2) reports them.
///
/// # Examples
/// ```
/// let full = corewalk::StatFs::default().with_bsize(4096).with_blocks(1 << 20);
/// assert_eq!((full.bfree, full.namelen), (0, 255));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
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

impl Default for StatFs {
    /// Returns the attributes of a file system without blocks and inodes. Its block size is 4096,
    /// and its longest name has 255 bytes.
    fn default() -> StatFs {
        let (blocks, bfree, bavail, files, ffree) = (0, 0, 0, 0, 0);
        let namelen = crate::name::NAME_MAX as u32;
        StatFs { bsize: BLKSIZE, blocks, bfree, bavail, files, ffree, namelen }
    }
}

impl StatFs {
    corewalk_base::setters! {
        with_bsize: bsize = u32;
        with_blocks: blocks = u64;
        with_bfree: bfree = u64;
        with_bavail: bavail = u64;
        with_files: files = u64;
        with_ffree: ffree = u64;
        with_namelen: namelen = u32;
    }
}
