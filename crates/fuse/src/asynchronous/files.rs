//! Requests about open files and their content.

use std::panic::AssertUnwindSafe;

use corewalk::{Errno, Fallocate, Opened};
use futures_util::FutureExt as _;
use rustix::fs::OFlags;

use super::AsyncFileSystem;
use super::answer::Answer;
use super::server::AsyncServer;
use super::under_way::Request;
use crate::dispatch::{FSYNC_DATA, Range, offset};
use crate::mount::Pages;
use crate::wire::{Message, Opcode, OwnedMessage};

/// Maximum number of bytes that one request copies. The kernel asks for the rest of a longer copy
/// with another request.
const COPY_BYTES_MAX: u64 = 128 << 20;

/// Flags of open(2) that the kernel handles itself, so the back end does not get them. For a
/// truncation, for example, the kernel sends a separate request.
pub(super) const CREATION_FLAGS: OFlags =
    OFlags::CREATE.union(OFlags::EXCL).union(OFlags::NOCTTY).union(OFlags::TRUNC);

impl<F: AsyncFileSystem> AsyncServer<F> {
    pub(super) async fn open(
        &self,
        message: &Message<'_>,
        request: &Request,
        flags: u32,
    ) -> Result<Answer, Errno> {
        let node = self.file(message)?;
        let open = message.args().u32()? & !CREATION_FLAGS.bits();
        // After `begin` the future runs to its end, even if the client is killed. So the server
        // learns of each file that the back end opens, and closes it later.
        request.begin(&node, Pages::Keep)?;
        let opened = match self.fs.has_open_state() {
            true => self.fs.open(&node, open).await?,
            false => Opened::default(),
        };
        let mut answer =
            Answer::with_body(|body| body.open_out(opened.handle, opened.flags.bits() | flags))?;
        answer.opened = self.fs.has_open_state().then(|| node.with_handle(opened.handle));
        Ok(answer)
    }

    pub(super) async fn release(
        &self,
        message: &Message<'_>,
        request: &Request,
    ) -> Result<Answer, Errno> {
        let node = self.file(message)?.with_handle(message.args().u64()?);
        request.begin(&node, Pages::Keep)?;
        // The kernel reports the error of a release to no program. So close the file even if the
        // back end could not drop its locks.
        let unlocked = self.end_locks(message, &node).await;
        if self.fs.has_open_state() {
            self.fs.release(&node).await;
        }
        unlocked?;
        Ok(Answer::default())
    }

    pub(super) async fn flush(
        &self,
        message: &Message<'_>,
        request: &Request,
    ) -> Result<Answer, Errno> {
        let node = self.file(message)?.with_handle(message.args().u64()?);
        request.begin(&node, Pages::Keep)?;
        let flush = async { self.fs.flush(&node).await };
        let flushed = AssertUnwindSafe(flush).catch_unwind().await;
        // End the locks after the flush, as the kernel does, and even if the flush fails. If the
        // locks ended before the flush, another machine could read old data under its own lock.
        let unlocked = match self.end_locks(message, &node).await {
            Err(Errno::NOSYS) => Err(Errno::IO),
            unlocked => unlocked,
        };
        match flushed.unwrap_or(Err(Errno::IO)) {
            // Do not answer `ENOSYS`: the kernel would send no more flushes. But each flush must
            // drop the locks of the process that closes the file.
            Err(Errno::NOSYS) if self.fs.has_locks() => unlocked?,
            flushed => flushed.and(unlocked)?,
        }
        Ok(Answer::default())
    }

    pub(super) async fn fsync(&self, message: &Message<'_>) -> Result<Answer, Errno> {
        let mut args = message.args();
        let handle = args.u64()?;
        // The server has assigned the handle of an open directory, so the back end must not get it.
        let handle = if message.header.opcode == Opcode::FSYNC { handle } else { 0 };
        let node = self.file(message)?.with_handle(handle);
        self.fs.fsync(&node, args.u32()? & FSYNC_DATA != 0).await?;
        Ok(Answer::default())
    }

    pub(super) async fn read(&self, message: &Message<'_>) -> Result<Answer, Errno> {
        let Range { handle, offset, size } = Range::of(&mut message.args())?.checked()?;
        let node = self.file(message)?.with_handle(handle);
        let mut data = self.fs.read(&node, offset, size).await?;
        data.truncate(size as usize);
        Ok(Answer::from(data))
    }

    pub(super) async fn write(
        &self,
        owned: &OwnedMessage,
        request: &Request,
    ) -> Result<Answer, Errno> {
        let message = owned.get();
        let mut args = message.args();
        let Range { handle, offset, size } = Range::of(&mut args)?.checked()?;
        let data = owned.bytes_of(args.data(size)?);
        let node = self.file(&message)?.with_handle(handle);
        request.begin(&node, Pages::Drop)?;
        let _change = node.change();
        let count = self.fs.write(&node, offset, data).await?;
        Answer::with_body(|body| {
            body.u32(count.min(size as usize) as u32)?;
            body.u32(0)
        })
    }

    pub(super) async fn fallocate(
        &self,
        message: &Message<'_>,
        request: &Request,
    ) -> Result<Answer, Errno> {
        let mut args = message.args();
        let (handle, start, len) = (args.u64()?, offset(args.u64()?)?, offset(args.u64()?)?);
        let how = Fallocate::from_bits(args.u32()?).ok_or(Errno::OPNOTSUPP)?;
        let node = self.file(message)?.with_handle(handle);
        request.begin(&node, Pages::Drop)?;
        let _change = node.change();
        self.fs.fallocate(&node, start, len, how).await?;
        Ok(Answer::default())
    }

    pub(super) async fn copy_file_range(
        &self,
        message: &Message<'_>,
        request: &Request,
    ) -> Result<Answer, Errno> {
        let mut args = message.args();
        let (handle_in, offset_in) = (args.u64()?, offset(args.u64()?)?);
        let from = self.file(message)?.with_handle(handle_in);
        let to = self.other(message, args.u64()?)?.with_handle(args.u64()?);
        let (offset_out, len) = (offset(args.u64()?)?, args.u64()?.min(COPY_BYTES_MAX));
        request.begin(&to, Pages::Drop)?;
        let _change = to.change();
        let copy = self.fs.copy_file_range((&from, offset_in), (&to, offset_out), len);
        let copied = copy.await?.min(len);
        Answer::with_body(|body| match message.header.opcode {
            Opcode::COPY_FILE_RANGE_64 => body.u64(copied),
            _ => {
                body.u32(copied as u32)?;
                body.u32(0)
            }
        })
    }
}
