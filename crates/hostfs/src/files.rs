//! Data: open files, reading, writing, allocation, holes.
//!
//! An open file has a descriptor of its own, opened as the client opened it. A call without one (a
//! handle of 0, or one whose descriptor is not open for what is asked, as a writeback cache does)
//! opens the file for itself alone.
//!
//! # Appending
//! No descriptor is open with `O_APPEND`: the pages that a kernel writes back through the handle of a
//! client that appends belong where they are. A call that appends says so itself, and the host finds
//! the end, which others may have moved since the client has looked.

use std::io::IoSlice;
use std::os::fd::{AsFd, OwnedFd};

use corewalk::{Atime, Errno, Fallocate, FileKind, Node, Seek};
use rustix::fs::{FallocateFlags, OFlags, SeekFrom, fallocate, fdatasync, fsync, seek};
use rustix::io::{ReadWriteFlags, pread, pwrite, pwritev2};

use crate::descriptors::SharedFd;
use crate::hostfs::{HostFs, reopen};

impl HostFs {
    /// Opens a regular file and returns its handle; 0 for other kinds, which have no open state.
    pub(crate) fn open_file(&self, node: Node<'_>, flags: u32) -> Result<u64, Errno> {
        if node.kind() != FileKind::Regular {
            return Ok(0);
        }
        let access = access_of(flags);
        if let Some(file) = self.descriptors.take_fresh(node.ino(), access) {
            return Ok(self.descriptors.add_open(node.ino(), access, file));
        }
        self.descriptors.check_room()?;
        let file = self.reopen_file(&*self.at(node)?, access)?;
        Ok(self.descriptors.add_open(node.ino(), access, file))
    }

    /// Opens a regular file that `fd` refers to; to read it changes its access time as the options say.
    fn reopen_file(&self, fd: impl AsFd, access: OFlags) -> Result<OwnedFd, Errno> {
        self.retry_full(|| {
            open_noted(self.atime.others, |flags| reopen(fd.as_fd(), access | flags))
        })
    }

    /// Runs `call` on the open file, or on one opened for it if the handle is no good for it.
    fn with_file<R>(
        &self,
        node: Node<'_>,
        handle: u64,
        access: OFlags,
        mut call: impl FnMut(&SharedFd) -> Result<R, Errno>,
    ) -> Result<R, Errno> {
        if let Some(file) = self.descriptors.get_open(node.ino(), handle) {
            match call(&file) {
                Err(Errno::BADF) => {}
                other => return other,
            }
        }
        let file = self.reopen_file(&*self.at(node)?, access)?;
        call(&SharedFd::new(file))
    }

    pub(crate) fn read_at(
        &self,
        node: Node<'_>,
        handle: u64,
        offset: u64,
        buf: &mut [u8],
    ) -> Result<usize, Errno> {
        self.with_file(node, handle, OFlags::RDONLY, |file| {
            let mut done = 0;
            while done < buf.len() {
                match pread(file, &mut buf[done..], offset + done as u64) {
                    Ok(0) => break,
                    Ok(count) => done += count,
                    Err(Errno::INTR) => {}
                    Err(_) if done > 0 => break,
                    Err(error) => return Err(error),
                }
            }
            Ok(done)
        })
    }

    pub(crate) fn write_at(
        &self,
        node: Node<'_>,
        handle: u64,
        offset: u64,
        bytes: &[u8],
    ) -> Result<usize, Errno> {
        self.with_file(node, handle, OFlags::WRONLY, |file| put_all(file, bytes, offset, put_at))
    }

    pub(crate) fn write_at_end(
        &self,
        node: Node<'_>,
        handle: u64,
        end: u64,
        bytes: &[u8],
    ) -> Result<usize, Errno> {
        self.with_file(node, handle, OFlags::WRONLY, |file| put_all(file, bytes, end, put_at_end))
    }

    pub(crate) fn sync(&self, node: Node<'_>, handle: u64, data_only: bool) -> Result<(), Errno> {
        if !matches!(node.kind(), FileKind::Regular | FileKind::Directory) {
            return Ok(());
        }
        self.with_file(node, handle, OFlags::RDONLY, |file| {
            if data_only { fdatasync(file) } else { fsync(file) }
        })
    }

    pub(crate) fn allocate(
        &self,
        node: Node<'_>,
        handle: u64,
        (offset, len): (u64, u64),
        how: Fallocate,
    ) -> Result<(), Errno> {
        let how = FallocateFlags::from_bits_retain(how.bits());
        self.with_file(node, handle, OFlags::WRONLY, |file| fallocate(file, how, offset, len))
    }

    /// Returns the offset of the next data or hole. The offset of the descriptor, which this moves,
    /// is used by nobody.
    pub(crate) fn find_data(
        &self,
        node: Node<'_>,
        handle: u64,
        offset: u64,
        what: Seek,
    ) -> Result<u64, Errno> {
        let from = match what {
            Seek::Data => SeekFrom::Data(offset),
            Seek::Hole => SeekFrom::Hole(offset),
        };
        self.with_file(node, handle, OFlags::RDONLY, |file| seek(file, from))
    }
}

/// Puts as much as fits, piece by piece, and returns how much that is.
fn put_all(
    file: &SharedFd,
    bytes: &[u8],
    offset: u64,
    put: fn(&SharedFd, &[u8], u64) -> Result<usize, Errno>,
) -> Result<usize, Errno> {
    let mut done = 0;
    while done < bytes.len() {
        match put(file, &bytes[done..], offset + done as u64) {
            Ok(0) => break,
            Ok(count) => done += count,
            Err(Errno::INTR) => {}
            Err(_) if done > 0 => break,
            Err(error) => return Err(error),
        }
    }
    Ok(done)
}

fn put_at(file: &SharedFd, bytes: &[u8], offset: u64) -> Result<usize, Errno> {
    pwrite(file, bytes, offset)
}

/// Writes at the end of the file; at `offset`, which was the end, where the host cannot do that.
fn put_at_end(file: &SharedFd, bytes: &[u8], offset: u64) -> Result<usize, Errno> {
    match pwritev2(file, &[IoSlice::new(bytes)], offset, ReadWriteFlags::APPEND) {
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => pwrite(file, bytes, offset),
        put => put,
    }
}

/// Runs `open` with `O_NOATIME` if reading is not to be noted, and without it where the host refuses it,
/// since the file belongs to another user.
pub(crate) fn open_noted<R>(
    atime: Atime,
    open: impl Fn(OFlags) -> Result<R, Errno>,
) -> Result<R, Errno> {
    if atime != Atime::Never {
        return open(OFlags::empty());
    }
    match open(OFlags::NOATIME) {
        Err(Errno::PERM) => open(OFlags::empty()),
        opened => opened,
    }
}

/// Returns what matters of a client's flags. Offsets come with each call; to append, creation and
/// truncation are calls of their own.
pub(crate) fn access_of(flags: u32) -> OFlags {
    OFlags::from_bits_retain(flags) & OFlags::ACCMODE
}
