//! Requests about attributes and extended attributes, and requests that read a small value.

use corewalk::attr::SetTime;
use corewalk::{Errno, SetAttr, Timespec};

use super::Requests;
use crate::server::{Change, SetId, XattrAnswer};
use crate::wire::{Body, Message, Opcode};

pub(crate) const GETATTR_HANDLE: u32 = 1;

/// A flag of a request that sets an ACL: the server must clear set-group-ID of the file
/// (`FUSE_SETXATTR_ACL_KILL_SGID`).
const ACL_KILL_SET_GROUP_ID: u32 = 1;

/// The bits that say which fields of a `struct fuse_setattr_in` are valid (`FATTR_MODE` and so on).
struct Valid(u32);

impl Valid {
    const MODE: u32 = 1;
    const UID: u32 = 1 << 1;
    const GID: u32 = 1 << 2;
    const SIZE: u32 = 1 << 3;
    const ATIME: u32 = 1 << 4;
    const MTIME: u32 = 1 << 5;
    const HANDLE: u32 = 1 << 6;
    const ATIME_NOW: u32 = 1 << 7;
    const MTIME_NOW: u32 = 1 << 8;
    const CTIME: u32 = 1 << 10;
    const KILL_SET_ID: u32 = 1 << 11;

    fn has(&self, bit: u32) -> bool {
        self.0 & bit != 0
    }

    fn field<T>(&self, bit: u32, value: T) -> Option<T> {
        self.has(bit).then_some(value)
    }

    fn time(&self, bit: u32, now: u32, time: Timespec) -> Option<SetTime> {
        let time = if self.has(now) { SetTime::Now } else { SetTime::At(time) };
        self.field(bit, time)
    }
}

impl Requests {
    pub(super) fn getattr(&self, message: &Message<'_>, body: &mut Body<'_>) -> Result<(), Errno> {
        let mut args = message.args();
        let (flags, _dummy, handle) = (args.u32()?, args.u32()?, args.u64()?);
        let handle = if flags & GETATTR_HANDLE != 0 { handle } else { 0 };
        let arrival = self.arrival();
        let attr = self.server.getattr_through(message.header.node, handle)?;
        body.attr_out(self.timeouts.set_by(&attr).since(arrival).attr, &attr)
    }

    pub(super) fn statx(&self, message: &Message<'_>, body: &mut Body<'_>) -> Result<(), Errno> {
        let mut args = message.args();
        let (flags, _reserved, handle) = (args.u32()?, args.u32()?, args.u64()?);
        let handle = if flags & GETATTR_HANDLE != 0 { handle } else { 0 };
        let arrival = self.arrival();
        let attr = self.server.getattr_through(message.header.node, handle)?;
        body.statx_out(self.timeouts.set_by(&attr).since(arrival).attr, &attr)
    }

    pub(super) fn setattr(&self, message: &Message<'_>, body: &mut Body<'_>) -> Result<(), Errno> {
        let header = message.header;
        let (set, handle) = attributes_to_set(message)?;
        let set_id = self.set_id(message.args().u32()?, Valid::KILL_SET_ID);
        let mut change = Change::new(set).with_handle(handle).with_set_id(set_id);
        if change.is_empty() && self.passthrough.as_ref().is_some_and(|all| all.has(header.node)) {
            change.set_id = SetId::Clear;
        }
        let attr = self.server.setattr(header.caller, header.node, change)?;
        body.attr_out(self.timeouts.set_by(&attr).attr, &attr)
    }

    pub(super) fn readlink(&self, message: &Message<'_>, body: &mut Body<'_>) -> Result<(), Errno> {
        body.bytes(&self.server.readlink(message.header.node)?)
    }

    pub(super) fn statfs(&self, message: &Message<'_>, body: &mut Body<'_>) -> Result<(), Errno> {
        body.statfs_out(&self.server.statfs(message.header.node)?)
    }

    pub(super) fn access(&self, message: &Message<'_>) -> Result<(), Errno> {
        let header = message.header;
        self.server.access(header.caller, header.node, message.args().u32()?)
    }

    pub(super) fn setxattr(&self, message: &Message<'_>) -> Result<(), Errno> {
        let header = message.header;
        let mut args = message.args();
        let (size, flags) = (args.u32()?, args.u32()?);
        let set_id = match self.server.has_acl_flags() {
            false => SetId::Unsaid,
            true if args.u32()? & ACL_KILL_SET_GROUP_ID != 0 => SetId::Clear,
            true => SetId::Keep,
        };
        let (name, value) = (args.name()?, args.data(size)?);
        self.server.setxattr_as(header.caller, header.node, name, value, flags, set_id)
    }

    pub(super) fn removexattr(&self, message: &Message<'_>) -> Result<(), Errno> {
        let header = message.header;
        self.server.removexattr(header.caller, header.node, message.args().name()?)
    }

    pub(super) fn read_xattr(
        &self,
        message: &Message<'_>,
        body: &mut Body<'_>,
    ) -> Result<(), Errno> {
        let header = message.header;
        let mut args = message.args();
        let size = args.u32()?;
        let answer = match header.opcode {
            Opcode::LISTXATTR => self.server.listxattr(header.caller, header.node, size)?,
            _ => self.server.getxattr(header.caller, header.node, args.name()?, size)?,
        };
        match answer {
            XattrAnswer::Length(length) => {
                body.u32(length)?;
                body.u32(0)
            }
            XattrAnswer::Value(value) => body.bytes(&value),
        }
    }
}

pub(crate) fn attributes_to_set(message: &Message<'_>) -> Result<(SetAttr, Option<u64>), Errno> {
    let mut args = message.args();
    let (valid, _padding) = (Valid(args.u32()?), args.u32()?);
    let (handle, size, _lock_owner) = (args.u64()?, args.u64()?, args.u64()?);
    let secs = [args.u64()?, args.u64()?, args.u64()?];
    let nanos = [args.u32()?, args.u32()?, args.u32()?];
    let time = |index: usize| Timespec { secs: secs[index] as i64, nanos: nanos[index] };
    let (mode, _unused) = (args.u32()?, args.u32()?);
    let (uid, gid) = (args.u32()?, args.u32()?);
    let set = SetAttr::default()
        .with_mode(valid.field(Valid::MODE, mode & 0o7777))
        .with_uid(valid.field(Valid::UID, uid))
        .with_gid(valid.field(Valid::GID, gid))
        .with_size(valid.field(Valid::SIZE, size))
        .with_atime(valid.time(Valid::ATIME, Valid::ATIME_NOW, time(0)))
        .with_mtime(valid.time(Valid::MTIME, Valid::MTIME_NOW, time(1)))
        .with_ctime(valid.field(Valid::CTIME, time(2)));
    Ok((set, valid.field(Valid::HANDLE, handle)))
}
