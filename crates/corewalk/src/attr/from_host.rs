//! Conversions from the types of `std::fs` and rustix to the attributes of files and file systems.

use std::fs::{FileType, Metadata};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::time::UNIX_EPOCH;

use rustix::fs::{StatVfs, Timestamps, UTIME_NOW, UTIME_OMIT};

use super::{Attr, FileKind, SetAttr, SetTime, StatFs, Timespec};

impl From<FileType> for FileKind {
    fn from(kind: FileType) -> FileKind {
        match kind {
            kind if kind.is_dir() => FileKind::Directory,
            kind if kind.is_symlink() => FileKind::Symlink,
            kind if kind.is_fifo() => FileKind::Fifo,
            kind if kind.is_socket() => FileKind::Socket,
            kind if kind.is_char_device() => FileKind::CharDevice,
            kind if kind.is_block_device() => FileKind::BlockDevice,
            _ => FileKind::Regular,
        }
    }
}

impl From<&Metadata> for Attr {
    /// Returns the attributes of a file of the host, with the host's inode number. The host reuses
    /// inode numbers, so the generation is the file's creation time, or 0 if the host does not
    /// record it.
    ///
    /// # Examples
    /// ```
    /// let attr = corewalk::Attr::from(&std::fs::symlink_metadata("/")?);
    /// assert!(attr.is_dir() && attr.ino != 0);
    /// # Ok::<(), std::io::Error>(())
    /// ```
    fn from(found: &Metadata) -> Attr {
        let born = found.created().ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok());
        let born = born.unwrap_or_default();
        let time = |secs, nanos: i64| Timespec { secs, nanos: nanos as u32 };
        Attr::new(found.ino(), found.mode())
            .with_generation(born.as_nanos() as u64)
            .with_nlink(u32::try_from(found.nlink()).unwrap_or(u32::MAX))
            .with_uid(found.uid())
            .with_gid(found.gid())
            .with_rdev(found.rdev())
            .with_size(found.size())
            .with_blocks(found.blocks())
            .with_blksize(u32::try_from(found.blksize()).unwrap_or(u32::MAX))
            .with_atime(time(found.atime(), found.atime_nsec()))
            .with_mtime(time(found.mtime(), found.mtime_nsec()))
            .with_ctime(time(found.ctime(), found.ctime_nsec()))
            .with_btime(time(born.as_secs() as i64, i64::from(born.subsec_nanos())))
    }
}

impl From<&StatVfs> for StatFs {
    fn from(found: &StatVfs) -> StatFs {
        StatFs::default()
            .with_bsize(found.f_frsize as u32)
            .with_blocks(found.f_blocks)
            .with_bfree(found.f_bfree)
            .with_bavail(found.f_bavail)
            .with_files(found.f_files)
            .with_ffree(found.f_ffree)
            .with_namelen(found.f_namemax as u32)
    }
}

impl SetAttr {
    /// Returns the times to set, in the form that utimensat(2) takes.
    pub fn timestamps(&self) -> Timestamps {
        let timespec = |time| match time {
            None => rustix::fs::Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
            Some(SetTime::Now) => rustix::fs::Timespec { tv_sec: 0, tv_nsec: UTIME_NOW },
            Some(SetTime::At(at)) => {
                rustix::fs::Timespec { tv_sec: at.secs, tv_nsec: at.nanos.into() }
            }
        };
        Timestamps { last_access: timespec(self.atime), last_modification: timespec(self.mtime) }
    }
}
