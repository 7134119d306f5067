//! Requests about attributes and extended attributes, and requests that read a small value.

use bytes::Bytes;
use corewalk::{Attr, Errno, FileKind, XattrMode};

use super::answer::Answer;
use super::requests::{Cached, Miss};
use super::server::{AsyncServer, Key};
use super::under_way::Request;
use super::{AsyncFileSystem, AsyncNode};
use crate::dispatch::{GETATTR_HANDLE, attributes_to_set};
use crate::mount::Pages;
use crate::server::checked_target;
use crate::wire::{Body, Message, Opcode};

impl<F: AsyncFileSystem> AsyncServer<F> {
    pub(super) fn cached_getattr(&self, message: &Message<'_>, body: &mut Body<'_>) -> Cached {
        if !self.is_exclusive() {
            return Err(Miss::Later);
        }
        let node = self.file(message)?;
        let attr = node.cached().ok_or(Miss::Later)?;
        let timeout = self.timeouts(&attr, true).attr;
        Ok(body.attr_out(timeout, &Self::shown(&node, &attr))?)
    }

    pub(super) async fn getattr(&self, message: &Message<'_>) -> Result<Answer, Errno> {
        let mut args = message.args();
        let (flags, _dummy, handle) = (args.u32()?, args.u32()?, args.u64()?);
        let handle = if flags & GETATTR_HANDLE != 0 { handle } else { 0 };
        let node = self.file(message)?.with_handle(handle);
        let (attr, is_current) = self.attributes(&node).await?;
        self.attr_out(&node, &attr, is_current)
    }

    /// Returns the attributes of `node` from the cache or from the back end. The `bool` is true if
    /// the kernel may cache them. It is false if a change of the inode is under way, or has ended
    /// since the back end was asked.
    pub(super) async fn attributes(&self, node: &AsyncNode) -> Result<(Attr, bool), Errno> {
        let mut flight = self.lock(Key::Attributes(node.number())).await;
        let cached = if self.is_exclusive() { node.cached() } else { None };
        if let Some(attr) = cached {
            return Ok((attr, true));
        }
        if let Some(shared) = flight.shared() {
            let (attr, asked) = shared.as_ref().map_err(|&error| error)?;
            return Ok((*attr, node.store(attr, *asked)));
        }
        flight.ask();
        let asked = self.shared.now();
        let result = self.fs.getattr(node).await.and_then(|attr| checked(attr, node.kind()));
        let is_current = result.as_ref().is_ok_and(|attr| node.store(attr, asked));
        flight.complete(result.map(|attr| (attr, asked)));
        Ok((result?, is_current))
    }

    pub(super) async fn setattr(
        &self,
        message: &Message<'_>,
        request: &Request,
    ) -> Result<Answer, Errno> {
        let (set, handle) = attributes_to_set(message)?;
        let node = self.file(message)?.with_handle(handle.unwrap_or(0));
        let _flight = self.lock(Key::SetAttributes(node.number())).await;
        request.begin(&node, if set.size.is_some() { Pages::Drop } else { Pages::Keep })?;
        let change = node.change();
        let attr = checked(self.fs.setattr(&node, &set).await?, node.kind());
        if attr.is_err() {
            request.set_stale();
        }
        let attr = attr?;
        change.end_with(attr);
        let is_current = node.cached() == Some(attr);
        self.attr_out(&node, &attr, is_current)
    }

    fn attr_out(&self, node: &AsyncNode, attr: &Attr, is_current: bool) -> Result<Answer, Errno> {
        let timeout = self.timeouts(attr, is_current).attr;
        Answer::with_body(|body| body.attr_out(timeout, &Self::shown(node, attr)))
    }

    pub(super) async fn readlink(&self, message: &Message<'_>) -> Result<Answer, Errno> {
        let node = self.file(message)?;
        checked_target(self.fs.readlink(&node).await?).map(Answer::from)
    }

    pub(super) async fn statfs(&self) -> Result<Answer, Errno> {
        let fs = self.fs.statfs().await?;
        Answer::with_body(|body| body.statfs_out(&fs))
    }

    pub(super) async fn read_xattr(&self, message: &Message<'_>) -> Result<Answer, Errno> {
        let mut args = message.args();
        let size = args.u32()? as usize;
        let node = self.file(message)?;
        let value: Bytes = match message.header.opcode {
            Opcode::LISTXATTR => self.fs.listxattr(&node).await?,
            _ => self.fs.getxattr(&node, not_acl(args.name()?)?).await?,
        };
        match size {
            0 => Answer::with_body(|body| {
                body.u32(value.len() as u32)?;
                body.u32(0)
            }),
            _ if value.len() > size => Err(Errno::RANGE),
            _ => Ok(Answer::from(value)),
        }
    }

    pub(super) async fn setxattr(
        &self,
        message: &Message<'_>,
        request: &Request,
    ) -> Result<Answer, Errno> {
        let mut args = message.args();
        let (size, flags) = (args.u32()?, args.u32()?);
        let (name, value) = (not_acl(args.name()?)?, args.data(size)?);
        let mode = match flags {
            0 => XattrMode::Set,
            // The flag `XATTR_CREATE` is 1, and `XATTR_REPLACE` is 2.
            1 => XattrMode::Create,
            2 => XattrMode::Replace,
            _ => return Err(Errno::INVAL),
        };
        let node = self.file(message)?;
        request.begin(&node, Pages::Keep)?;
        let _change = node.change();
        self.fs.setxattr(&node, name, value, mode).await?;
        Ok(Answer::default())
    }

    pub(super) async fn removexattr(
        &self,
        message: &Message<'_>,
        request: &Request,
    ) -> Result<Answer, Errno> {
        let node = self.file(message)?;
        let name = not_acl(message.args().name()?)?;
        request.begin(&node, Pages::Keep)?;
        let _change = node.change();
        self.fs.removexattr(&node, name).await?;
        Ok(Answer::default())
    }
}

/// Checks the attributes that the back end has returned for a file of `kind`. The error is `EIO` if
/// they are those of another kind of file, or if the size exceeds 2^63 - 1.
pub(super) fn checked(attr: Attr, kind: FileKind) -> Result<Attr, Errno> {
    if attr.kind() == kind && i64::try_from(attr.size).is_ok() {
        return Ok(attr);
    }
    log::error!("the back end has returned wrong attributes: {attr:?} of a {kind:?}");
    Err(Errno::IO)
}

/// Returns `name`, or `EOPNOTSUPP` if it is the extended attribute of an ACL. The kernel would let
/// a program set such an ACL, but would not enforce it.
fn not_acl(name: &[u8]) -> Result<&[u8], Errno> {
    if name.starts_with(b"system.posix_acl_") { Err(Errno::OPNOTSUPP) } else { Ok(name) }
}
