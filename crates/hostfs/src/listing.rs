//! Listings of directories.
//!
//! A `readdir` call opens the directory again, so that it has a file offset of its own, and seeks
//! to the cookie. The cookie is the host's `d_off`, so it stays valid as long as the host keeps it
//! valid.
//! - Disk file systems derive `d_off` from a hash of the name, or give each entry a number.
//! - In tmpfs before Linux 6.6, `d_off` is the position of the entry in the directory. So if an
//!   entry is removed during a listing, the listing may miss another entry.
//!
//! The cookie of an entry is the offset of the host, with two exceptions:
//! - Offset 0, since cookie 0 means the start of the directory.
//! - Offset 2^63 - 1, the end of a directory in ext4 and btrfs, since the FUSE server adds 2 to
//!   each cookie.
//!
//! Instead, these two offsets get cookies just below 2^63 - 1 that no host file system uses. The
//! hashes of ext4 end at 2^63 - 2^32 - 1.
//!
//! Source: getdents64(2). Other servers have listings that skip or repeat entries while the
//! directory changes (traps T48 and P13 in `traps.md`).

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use corewalk::{DirEntry, DirSink, Errno, FileKind, Name, Node};
use rustix::fs::{FileType, Mode, OFlags, RawDir, SeekFrom, openat, seek};

use crate::beneath::no_follow;
use crate::files::open_with_atime;
use crate::hostfs::{HostFs, reopen};

const READ_BYTES: usize = 32 << 10;
const END: u64 = i64::MAX as u64;
const COOKIE_OF_END: u64 = END - 3;
const COOKIE_OF_ZERO: u64 = END - 4;

impl HostFs {
    pub(crate) fn list(
        &self,
        dir: Node<'_>,
        cookie: u64,
        sink: &mut DirSink<'_>,
    ) -> Result<(), Errno> {
        let path_fd = self.at(dir)?;
        let file = self.retry_full(|| {
            open_with_atime(self.atime.directories, |flags| open_to_list(path_fd.as_fd(), flags))
        })?;
        if cookie != 0 {
            seek(&file, SeekFrom::Start(offset_of(cookie)))?;
        }
        let mut buf = vec![MaybeUninit::uninit(); READ_BYTES];
        let mut entries = RawDir::new(&file, &mut buf);
        while let Some(entry) = entries.next() {
            let entry = entry?;
            // Skip `.` and `..`, which are not valid names.
            let Ok(name) = Name::new(entry.file_name().to_bytes()) else { continue };
            let kind = match kind_of(entry.file_type()) {
                Some(kind) => kind,
                None => match self.status(path_fd.as_fd(), name.as_bytes()) {
                    Ok(status) => FileKind::from_mode(u32::from(status.stx_mode)),
                    Err(_) => None,
                }
                .unwrap_or(FileKind::Regular),
            };
            let cookie = cookie_of(entry.next_entry_cookie());
            if sink(DirEntry::new(name, entry.ino(), kind, cookie)).is_break() {
                return Ok(());
            }
        }
        Ok(())
    }
}

fn open_to_list(dir: BorrowedFd<'_>, flags: OFlags) -> Result<OwnedFd, Errno> {
    match openat(dir, c".", flags | OFlags::DIRECTORY | no_follow(), Mode::empty()) {
        // A directory that cannot be searched may still be read. So open it by its path in `/proc`.
        Err(Errno::ACCESS) => reopen(dir, flags | OFlags::DIRECTORY),
        opened => opened,
    }
}

fn cookie_of(offset: u64) -> u64 {
    match offset {
        0 => COOKIE_OF_ZERO,
        END => COOKIE_OF_END,
        offset => offset,
    }
}

fn offset_of(cookie: u64) -> u64 {
    match cookie {
        COOKIE_OF_ZERO => 0,
        COOKIE_OF_END => END,
        cookie => cookie,
    }
}

fn kind_of(kind: FileType) -> Option<FileKind> {
    Some(match kind {
        FileType::RegularFile => FileKind::Regular,
        FileType::Directory => FileKind::Directory,
        FileType::Symlink => FileKind::Symlink,
        FileType::Fifo => FileKind::Fifo,
        FileType::Socket => FileKind::Socket,
        FileType::CharacterDevice => FileKind::CharDevice,
        FileType::BlockDevice => FileKind::BlockDevice,
        FileType::Unknown => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offset_survives_its_cookie_and_leaves_larger_numbers_free() {
        for offset in [0, 1, 2, 1 << 40, END - (1 << 32), END] {
            assert_eq!(offset_of(cookie_of(offset)), offset);
            assert!((1..END - 2).contains(&cookie_of(offset)), "{offset}");
        }
    }
}
