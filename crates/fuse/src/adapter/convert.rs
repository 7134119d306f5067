//! Conversions between the types of corewalk and those of fuser.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use corewalk::{Attr, Errno, FileKind, SetTime, Timespec};
use fuser::{FileAttr, FileType, INodeNo, TimeOrNow};

pub(super) fn errno(error: Errno) -> fuser::Errno {
    fuser::Errno::from_i32(error.raw_os_error())
}

pub(super) fn attr(attr: &Attr) -> FileAttr {
    FileAttr {
        ino: INodeNo(attr.ino),
        size: attr.size,
        blocks: attr.blocks,
        atime: system_time(attr.atime),
        mtime: system_time(attr.mtime),
        ctime: system_time(attr.ctime),
        crtime: UNIX_EPOCH,
        kind: kind(attr.kind()),
        perm: (attr.mode & 0o7777) as u16,
        nlink: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        // FUSE has 32 bits for a device number, so the major number must have at most 12 bits.
        rdev: attr.rdev as u32,
        blksize: attr.blksize,
        flags: 0,
    }
}

/// Returns the attributes in an answer for a missing name. The kernel recognises such an answer by
/// the inode number 0.
pub(super) fn no_attr() -> FileAttr {
    FileAttr {
        ino: INodeNo(0),
        size: 0,
        blocks: 0,
        atime: UNIX_EPOCH,
        mtime: UNIX_EPOCH,
        ctime: UNIX_EPOCH,
        crtime: UNIX_EPOCH,
        kind: FileType::RegularFile,
        perm: 0,
        nlink: 0,
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize: 0,
        flags: 0,
    }
}

pub(super) fn kind(kind: FileKind) -> FileType {
    match kind {
        FileKind::Regular => FileType::RegularFile,
        FileKind::Directory => FileType::Directory,
        FileKind::Symlink => FileType::Symlink,
        FileKind::Fifo => FileType::NamedPipe,
        FileKind::Socket => FileType::Socket,
        FileKind::CharDevice => FileType::CharDevice,
        FileKind::BlockDevice => FileType::BlockDevice,
    }
}

pub(super) fn set_time(time: TimeOrNow) -> SetTime {
    match time {
        TimeOrNow::Now => SetTime::Now,
        TimeOrNow::SpecificTime(time) => SetTime::At(timespec(time)),
    }
}

/// Returns the time that the kernel has sent. fuser 0.18 adds the nanoseconds of a time before 1970
/// with the wrong sign, which this function corrects. If the kernel sends -1.5 s (as -2 s plus
/// 0.5e9 ns), fuser passes on -2.5 s.
pub(super) fn timespec(time: SystemTime) -> Timespec {
    let (secs, nanos) = match time.duration_since(UNIX_EPOCH) {
        Ok(since) => (i64::try_from(since.as_secs()).unwrap_or(i64::MAX), since.subsec_nanos()),
        Err(before) => {
            let before = before.duration();
            (0_i64.saturating_sub_unsigned(before.as_secs()), before.subsec_nanos())
        }
    };
    Timespec { secs, nanos }
}

fn system_time(time: Timespec) -> SystemTime {
    let since_second = Duration::from_nanos(u64::from(time.nanos));
    let time = match u64::try_from(time.secs) {
        Ok(secs) => UNIX_EPOCH.checked_add(Duration::from_secs(secs) + since_second),
        Err(_) => UNIX_EPOCH
            .checked_sub(Duration::from_secs(time.secs.unsigned_abs()))
            .and_then(|second| second.checked_add(since_second)),
    };
    time.unwrap_or(UNIX_EPOCH)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_survive_both_conversions() {
        for secs in [0, 1, -1, 1 << 40, -(1 << 40)] {
            for nanos in [0, 1, 500_000_000, 999_999_999] {
                let there = system_time(Timespec { secs, nanos });
                let sent = match there.duration_since(UNIX_EPOCH) {
                    Ok(since) => (since.as_secs() as i64, since.subsec_nanos()),
                    Err(before) => {
                        let before = before.duration();
                        match before.subsec_nanos() {
                            0 => (-(before.as_secs() as i64), 0),
                            nanos => (-(before.as_secs() as i64) - 1, 1_000_000_000 - nanos),
                        }
                    }
                };
                assert_eq!(sent, (secs, nanos));
                let back = match sent.0 >= 0 {
                    true => UNIX_EPOCH + Duration::new(sent.0 as u64, sent.1),
                    false => UNIX_EPOCH - Duration::new(-sent.0 as u64, sent.1),
                };
                assert_eq!(timespec(back), Timespec { secs, nanos });
            }
        }
    }

    #[test]
    fn errors_keep_their_numbers() {
        for error in [Errno::NOENT, Errno::STALE, Errno::NODATA, Errno::NOSYS, Errno::OVERFLOW] {
            assert_eq!(i32::from(errno(error)), error.raw_os_error());
        }
    }
}
