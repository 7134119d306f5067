//! Operations on content: open files, reading, writing, allocation, holes.
//!
//! Each open file has its own descriptor, with the access mode of the client. A read or write
//! without a suitable handle opens the file for the duration of the call. Example: a writeback
//! cache may write through a read-only handle.
//!
//! # Appending
//! No descriptor is opened with `O_APPEND`, because the client's kernel may also use it to write
//! back pages at fixed offsets. Instead, an append is a separate call, which writes at the current
//! end of the file on the host.

use std::io::IoSlice;
use std::os::fd::{AsFd, OwnedFd};

use corewalk::{Atime, Errno, Fallocate, FileKind, InodeFlags, Node, Opened, Seek};
use rustix::fs::{
    FallocateFlags, IFlags, OFlags, SeekFrom, copy_file_range, fallocate, fcntl_getfl, fcntl_setfl,
    fdatasync, fsync, ioctl_getflags, ioctl_setflags, seek,
};
use rustix::io::{ReadWriteFlags, pread, pwrite, pwritev2};

use crate::descriptors::SharedFd;
use crate::hostfs::{HostFs, reopen};

impl HostFs {
    /// Opens a file for a client. Only a regular file needs an open file on the host. Any other
    /// file gets handle 0.
    pub(crate) fn open_file(&self, node: Node<'_>, flags: u32) -> Result<Opened, Errno> {
        if node.kind() != FileKind::Regular {
            return Ok(Opened::default());
        }
        let access = access_of(flags);
        let file = match self.descriptors.take_fresh(node.ino(), access) {
            Some(file) => file,
            None => {
                self.check_open_limit()?;
                self.reopen_file(&*self.at(node)?, access)?
            }
        };
        if OFlags::from_bits_retain(flags).contains(OFlags::DIRECT) {
            // Try whether the host file permits `O_DIRECT`, and fail the open with `EINVAL` if it
            // does not. With passthrough, the kernel would report a missing `O_DIRECT` as `EIO`.
            let own = fcntl_getfl(&file)?;
            fcntl_setfl(&file, own | OFlags::DIRECT)?;
            fcntl_setfl(&file, own)?;
        }
        Ok(Opened::new(self.descriptors.add_open(node.ino(), access, file)))
    }

    pub(crate) fn reopen_file(&self, fd: impl AsFd, access: OFlags) -> Result<OwnedFd, Errno> {
        self.retry_full(|| {
            open_with_atime(self.atime.others, |flags| reopen(fd.as_fd(), access | flags))
        })
    }

    fn with_file<R>(
        &self,
        node: Node<'_>,
        access: OFlags,
        mut call: impl FnMut(&SharedFd) -> Result<R, Errno>,
    ) -> Result<R, Errno> {
        if let Some(file) = self.descriptors.get_open(node.ino(), node.handle()) {
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
        offset: u64,
        buf: &mut [u8],
    ) -> Result<usize, Errno> {
        self.with_file(node, OFlags::RDONLY, |file| {
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
        offset: u64,
        bytes: &[u8],
    ) -> Result<usize, Errno> {
        self.with_file(node, OFlags::WRONLY, |file| put_all(file, bytes, offset, put_at))
    }

    pub(crate) fn write_at_end(
        &self,
        node: Node<'_>,
        end: u64,
        bytes: &[u8],
    ) -> Result<usize, Errno> {
        self.with_file(node, OFlags::WRONLY, |file| put_all(file, bytes, end, put_at_end))
    }

    /// Copies a range of one file into another file by copy_file_range(2). The host may let both
    /// files share the blocks.
    pub(crate) fn copy_range(
        &self,
        from: (Node<'_>, u64),
        to: (Node<'_>, u64),
        len: u64,
    ) -> Result<u64, Errno> {
        let len = usize::try_from(len).unwrap_or(usize::MAX);
        self.with_file(from.0, OFlags::RDONLY, |source| {
            self.with_file(to.0, OFlags::WRONLY, |target| {
                let (mut at, mut target_at) = (from.1, to.1);
                let copied = rustix::io::retry_on_intr(|| {
                    copy_file_range(source, Some(&mut at), target, Some(&mut target_at), len)
                })?;
                Ok(copied as u64)
            })
        })
    }

    pub(crate) fn sync(&self, node: Node<'_>, data_only: bool) -> Result<(), Errno> {
        if !matches!(node.kind(), FileKind::Regular | FileKind::Directory) {
            return Ok(());
        }
        self.with_file(
            node,
            OFlags::RDONLY,
            |file| {
                if data_only { fdatasync(file) } else { fsync(file) }
            },
        )
    }

    pub(crate) fn allocate(
        &self,
        node: Node<'_>,
        offset: u64,
        len: u64,
        how: Fallocate,
    ) -> Result<(), Errno> {
        let how = FallocateFlags::from_bits_retain(how.bits());
        self.with_file(node, OFlags::WRONLY, |file| fallocate(file, how, offset, len))
    }

    pub(crate) fn flags_of(&self, node: Node<'_>) -> Result<InodeFlags, Errno> {
        let flags = self.with_file(node, OFlags::RDONLY, |file| ioctl_getflags(file))?;
        Ok(InodeFlags::from_bits_retain(flags.bits()))
    }

    pub(crate) fn set_flags(&self, node: Node<'_>, flags: InodeFlags) -> Result<(), Errno> {
        let flags = IFlags::from_bits_retain(flags.bits());
        self.with_file(node, OFlags::RDONLY, |file| ioctl_setflags(file, flags))
    }

    /// Finds the next data or the next hole by lseek(2). The call may move the file offset of the
    /// descriptor, because no other call uses that offset.
    pub(crate) fn find_data(&self, node: Node<'_>, offset: u64, what: Seek) -> Result<u64, Errno> {
        let from = match what {
            Seek::Data => SeekFrom::Data(offset),
            Seek::Hole => SeekFrom::Hole(offset),
        };
        self.with_file(node, OFlags::RDONLY, |file| seek(file, from))
    }
}

/// Writes `bytes` by repeated calls of `put`. Returns fewer than `bytes.len()` only if a call
/// writes nothing, or fails after an earlier one has succeeded.
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

/// Writes at the end of the file. If the host does not know `RWF_APPEND`, writes at `offset`, which
/// the client has sent as the end of the file.
fn put_at_end(file: &SharedFd, bytes: &[u8], offset: u64) -> Result<usize, Errno> {
    match pwritev2(file, &[IoSlice::new(bytes)], offset, ReadWriteFlags::APPEND) {
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => pwrite(file, bytes, offset),
        put => put,
    }
}

/// Calls `open` with `O_NOATIME` if `atime` is `Never`. If the host refuses the flag, because the
/// file belongs to another user, calls `open` without it.
pub(crate) fn open_with_atime<R>(
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

/// Returns the access mode in `flags`. No other flag is used: reads and writes pass their offset,
/// and appending, creation and truncation have calls of their own.
pub(crate) fn access_of(flags: u32) -> OFlags {
    OFlags::from_bits_retain(flags) & OFlags::ACCMODE
}
