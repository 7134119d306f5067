//! Inode flags, other ioctl(2) commands, and poll(2).
//!
//! Source: ioctl_iflags(2), poll(2).

use super::{InodeRef, Vfs};
use crate::Errno;
use crate::attr::FileKind;
use crate::fs::{InodeFlags, IoctlReply, PollEvents, PollWaker};

impl Vfs {
    /// Returns the inode flags of a file.
    ///
    /// # Errors
    /// `ENOTTY` if the back end has no inode flags, or for anything but a regular file or a
    /// directory; the other errors of the back end.
    ///
    /// # Examples
    /// ```
    /// # use std::sync::Arc;
    /// # use corewalk::tmpfs::{Tmpfs, TmpfsOptions};
    /// # use corewalk::{Errno, Vfs, VfsOptions};
    /// # let vfs = Vfs::new(Arc::new(Tmpfs::new(TmpfsOptions::default())), VfsOptions::default())?;
    /// // A tmpfs of corewalk has no inode flags.
    /// assert_eq!(vfs.inode_flags(&vfs.root(), 0), Err(Errno::NOTTY));
    /// # Ok::<(), Errno>(())
    /// ```
    pub fn inode_flags(&self, inode: &InodeRef<'_>, handle: u64) -> Result<InodeFlags, Errno> {
        has_commands(inode)?;
        self.ask(inode, |fs, node| fs.inode_flags(node.with_handle(handle)))
    }

    /// Sets the inode flags of a file. Makes no check: the caller has checked that the client owns
    /// the file, and that it may change the flags `IMMUTABLE` and `APPEND`.
    ///
    /// # Errors
    /// `EOPNOTSUPP` for a flag that the back end does not have; the errors of
    /// [`Vfs::inode_flags`].
    pub fn set_inode_flags(
        &self,
        inode: &InodeRef<'_>,
        handle: u64,
        flags: InodeFlags,
    ) -> Result<(), Errno> {
        has_commands(inode)?;
        self.ask(inode, |fs, node| fs.set_inode_flags(node.with_handle(handle), flags))
    }

    /// Passes an ioctl(2) to the back end. `input` is the argument of the client.
    ///
    /// # Errors
    /// `ENOTTY` for a command that the back end does not know, or for anything but a regular file
    /// or a directory; the other errors of the back end.
    pub fn ioctl(
        &self,
        inode: &InodeRef<'_>,
        handle: u64,
        command: u32,
        input: &[u8],
    ) -> Result<IoctlReply, Errno> {
        has_commands(inode)?;
        self.ask(inode, |fs, node| fs.ioctl(node.with_handle(handle), command, input))
    }

    /// Returns the events that an open file has now. If `waker` is given, the back end wakes it
    /// after the next event.
    ///
    /// # Errors
    /// `ENOSYS` if reads and writes of all files of the back end never wait; the other errors of
    /// the back end.
    pub fn poll(
        &self,
        inode: &InodeRef<'_>,
        handle: u64,
        wanted: PollEvents,
        waker: Option<PollWaker>,
    ) -> Result<PollEvents, Errno> {
        self.ask(inode, |fs, node| fs.poll(node.with_handle(handle), wanted, waker))
    }
}

fn has_commands(inode: &InodeRef<'_>) -> Result<(), Errno> {
    let has = matches!(inode.kind(), FileKind::Regular | FileKind::Directory);
    if has { Ok(()) } else { Err(Errno::NOTTY) }
}
