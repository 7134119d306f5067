//! Requests about open files and their content, and the listing of directories.

use std::ops::ControlFlow;

use corewalk::{Errno, Fsync, OpenFlags, Opened};
use rustix::fs::OFlags;

use super::{FOPEN_CACHE_DIR, Requests};
use crate::server::WriteOrigin;
use crate::wire::{Args, Body, Message, Opcode};

const WRITE_CACHE: u32 = 1;
/// A flag of a write request: the server must clear set-user-ID and set-group-ID of the file
/// (`FUSE_WRITE_KILL_SUIDGID`).
const WRITE_KILL_SET_ID: u32 = 1 << 2;
pub(crate) const FSYNC_DATA: u32 = 1;
/// A flag in the answer to an open: the kernel reads and writes the registered file of the host
/// itself (`passthrough`).
const FOPEN_PASSTHROUGH: u32 = 1 << 7;
/// The flags that are allowed beside `FOPEN_PASSTHROUGH` in the answer to an open. The kernel
/// refuses an answer with any other flag (`FUSE_PASSTHROUGH_MASK`).
const FOPEN_BESIDE: u32 =
    OpenFlags::DIRECT_IO.union(OpenFlags::NOFLUSH).union(OpenFlags::PARALLEL_DIRECT_WRITES).bits();
/// The inode number of a listed entry whose lookup has failed, as in libfuse (`FUSE_UNKNOWN_INO`).
/// The C library skips an entry with the number 0.
pub(crate) const UNKNOWN_INO: u64 = 0xffff_ffff;

impl Requests {
    pub(super) fn open(&self, message: &Message<'_>, body: &mut Body<'_>) -> Result<(), Errno> {
        if self.opens_are_free {
            return Err(Errno::NOSYS);
        }
        let header = message.header;
        let flags = message.args().u32()?;
        let opened = self.server.open(header.caller, header.node, flags)?;
        self.open_out((header.node, flags), opened, body)
    }

    pub(super) fn open_out(
        &self,
        (node, open_flags): (u64, u32),
        opened: Opened,
        body: &mut Body<'_>,
    ) -> Result<(), Errno> {
        let flags = self.open_flags(opened);
        let id = match &self.passthrough {
            Some(passthrough) => passthrough.opened(&self.server, node, opened.handle, open_flags),
            None => None,
        };
        match id {
            Some(id) => {
                body.passed_out(opened.handle, flags & FOPEN_BESIDE | FOPEN_PASSTHROUGH, id)
            }
            None => body.open_out(opened.handle, flags),
        }
    }

    pub(super) fn opendir(&self, message: &Message<'_>, body: &mut Body<'_>) -> Result<(), Errno> {
        if self.opens_are_free {
            return Err(Errno::NOSYS);
        }
        let opened = self.server.opendir(message.header.caller, message.header.node)?;
        let caches = if self.keeps_cache { FOPEN_CACHE_DIR } else { 0 };
        body.open_out(opened.handle, self.open_flags(opened) | caches)
    }

    pub(super) fn releasedir(&self, message: &Message<'_>) -> Result<(), Errno> {
        self.server.releasedir(message.header.node, message.args().u64()?)
    }

    pub(super) fn flush(&self, message: &Message<'_>) -> Result<(), Errno> {
        let (handle, ended) = message.ended_locks()?;
        self.server.flush(message.header.node, handle, ended.map_or(0, |ended| ended.owner))
    }

    pub(super) fn release(&self, message: &Message<'_>) -> Result<(), Errno> {
        let (handle, ended) = message.ended_locks()?;
        let node = message.header.node;
        if let Some(passthrough) = &self.passthrough {
            passthrough.released(&self.server, node);
        }
        self.server.release(node, handle, ended.map(|ended| ended.owner))
    }

    pub(super) fn read(&self, message: &Message<'_>, body: &mut Body<'_>) -> Result<(), Errno> {
        let Range { handle, offset, size } = Range::of(&mut message.args())?.checked()?;
        body.fill(size as usize, |buffer| {
            self.server.read(message.header.node, handle, offset, buffer)
        })
    }

    pub(super) fn write(&self, message: &Message<'_>, body: &mut Body<'_>) -> Result<(), Errno> {
        let header = message.header;
        let mut args = message.args();
        let Range { handle, offset, size } = Range::of(&mut args)?.checked()?;
        let (write_flags, _lock_owner, flags) = (args.u32()?, args.u64()?, args.u32()?);
        // fcntl(2) may have changed `O_APPEND` since open(2), so use the flags of the write
        // request.
        let appends = OFlags::from_bits_retain(flags).contains(OFlags::APPEND);
        let origin = match write_flags & WRITE_CACHE {
            0 if appends => WriteOrigin::Append,
            0 => WriteOrigin::Call,
            _ => WriteOrigin::Cache,
        };
        let data = args.data(size)?;
        let (to, set_id) = ((header.node, handle), self.set_id(write_flags, WRITE_KILL_SET_ID));
        let count = self.server.write_as(header.caller, to, offset, data, origin, set_id)?;
        body.u32(count as u32)?;
        body.u32(0)
    }

    pub(super) fn fsync(&self, message: &Message<'_>) -> Result<(), Errno> {
        let mut args = message.args();
        let (handle, flags) = (args.u64()?, args.u32()?);
        let what = if flags & FSYNC_DATA != 0 { Fsync::Data } else { Fsync::All };
        self.server.fsync(message.header.node, handle, what)
    }

    pub(super) fn readdir(&self, message: &Message<'_>, body: &mut Body<'_>) -> Result<(), Errno> {
        let Range { handle, offset, size } = Range::of(&mut message.args())?;
        let listed = self.server.readdir(message.header.node, handle, offset, &mut |entry| {
            let (ino, cookie) = (entry.node, entry.cookie);
            match body.dirent(size as usize, ino, cookie, entry.kind, entry.name) {
                Ok(()) => ControlFlow::Continue(()),
                Err(_) => ControlFlow::Break(()),
            }
        });
        unless_entries_were_taken(listed, body)
    }

    pub(super) fn readdirplus(
        &self,
        message: &Message<'_>,
        body: &mut Body<'_>,
    ) -> Result<(), Errno> {
        let Range { handle, offset, size } = Range::of(&mut message.args())?;
        let node = message.header.node;
        let listed = self.server.readdirplus(node, handle, offset, &mut |entry, attr| {
            // If the lookup has failed, or the kernel may not keep the entry, report the entry
            // without attributes. The kernel looks the name up when a program uses it.
            let (ino, found) = match entry.node {
                0 if self.server.has_leases() => (attr.ino, None),
                0 => (UNKNOWN_INO, None),
                node => (attr.ino, Some((node, self.timeouts.set_by(attr), attr))),
            };
            let named = (ino, entry.cookie, entry.kind, entry.name);
            match body.direntplus(size as usize, found, named) {
                Ok(()) => ControlFlow::Continue(()),
                Err(_) => ControlFlow::Break(()),
            }
        });
        unless_entries_were_taken(listed, body)
    }

    pub(super) fn fallocate(&self, message: &Message<'_>) -> Result<(), Errno> {
        let header = message.header;
        let mut args = message.args();
        let (handle, range) = (args.u64()?, (offset(args.u64()?)?, offset(args.u64()?)?));
        self.server.fallocate(header.caller, header.node, handle, range, args.u32()?)
    }

    pub(super) fn lseek(&self, message: &Message<'_>, body: &mut Body<'_>) -> Result<(), Errno> {
        let mut args = message.args();
        let (handle, offset, whence) = (args.u64()?, args.u64()? as i64, args.u32()? as i32);
        body.u64(self.server.seek(message.header.node, handle, offset, whence)?)
    }

    pub(super) fn copy_file_range(
        &self,
        message: &Message<'_>,
        body: &mut Body<'_>,
    ) -> Result<(), Errno> {
        let header = message.header;
        let mut args = message.args();
        let (handle_in, offset_in) = (args.u64()?, offset(args.u64()?)?);
        let to = (args.u64()?, args.u64()?, offset(args.u64()?)?);
        let from = (header.node, handle_in, offset_in);
        let copied = self.server.copy_file_range(header.caller, from, to, args.u64()?)?;
        match header.opcode {
            Opcode::COPY_FILE_RANGE_64 => body.u64(copied),
            _ => {
                // The server copies at most 128 MiB in one request, so the number fits 32 bits.
                body.u32(u32::try_from(copied).unwrap_or(u32::MAX))?;
                body.u32(0)
            }
        }
    }
}

pub(crate) struct Range {
    pub(crate) handle: u64,
    pub(crate) offset: u64,
    pub(crate) size: u32,
}

impl Range {
    pub(crate) fn of(args: &mut Args<'_>) -> Result<Range, Errno> {
        Ok(Range { handle: args.u64()?, offset: args.u64()?, size: args.u32()? })
    }

    /// Returns the range, or `EINVAL` if [`offset`] refuses its offset. Do not call this method for
    /// a listing: its offset is a cookie, which may have any value.
    pub(crate) fn checked(self) -> Result<Range, Errno> {
        offset(self.offset).map(|_| self)
    }
}

/// Returns `bytes`, an offset or a length, or `EINVAL` if it does not fit `loff_t`. So the back end
/// can add the length of the data to an offset without an overflow.
pub(crate) fn offset(bytes: u64) -> Result<u64, Errno> {
    if i64::try_from(bytes).is_ok() { Ok(bytes) } else { Err(Errno::INVAL) }
}

/// Turns the error of a listing into success if the answer already has entries. The kernel must get
/// these entries, because the server has counted their lookups.
fn unless_entries_were_taken(listed: Result<(), Errno>, body: &Body<'_>) -> Result<(), Errno> {
    if body.len() > 0 { Ok(()) } else { listed }
}
