//! Listings of directories.
//!
//! A listing opens a descriptor of its own and seeks to the cookie, which is the host's `d_off`. So
//! a cookie stays valid as long as on the host. Disk file systems hash the names or number the
//! entries. The host's tmpfs before Linux 6.6 counts entries. There a removal may hide an entry
//! from a listing that continues.
//!
//! Two offsets are replaced by other cookies. Offset 0 would mean the start. With offset 2^63 - 1
//! ext4 and btrfs mean the end, but a server needs numbers above the largest cookie. No host uses
//! the two numbers below 2^63 - 1 that replace them (ext4's hashes end at 2^63 - 2^32 - 1).
//!
//! Source: getdents64(2); traps T48 and P13, listings that skip or repeat entries while others
//! change the directory.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use corewalk::{DirEntry, DirSink, Errno, FileKind, Name, Node};
use rustix::fs::{FileType, Mode, OFlags, RawDir, SeekFrom, openat, seek};

use crate::beneath::no_follow;
use crate::files::open_with_atime;
use crate::hostfs::{HostFs, reopen};

/// The size of the buffer for entries, in bytes.
const READ_BYTES: usize = 32 << 10;
/// The offset of the end of a directory.
const END: u64 = i64::MAX as u64;
/// The cookie for offset [`END`].
const COOKIE_OF_END: u64 = END - 3;
/// The cookie for offset 0.
const COOKIE_OF_ZERO: u64 = END - 4;

impl HostFs {
    /// Passes the entries of a directory after `cookie` to `sink`.
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
            // `.` and `..` are not valid names.
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

/// Opens a directory again, with an offset of its own.
fn open_to_list(dir: BorrowedFd<'_>, flags: OFlags) -> Result<OwnedFd, Errno> {
    match openat(dir, c".", flags | OFlags::DIRECTORY | no_follow(), Mode::empty()) {
        // A directory may be readable without being searchable.
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

/// Returns corewalk's file type, or `None` if the host does not report it.
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
