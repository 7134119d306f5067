//! Requests of ioctl(2) and poll(2).
//!
//! ioctl(2) has two pairs of commands that read and set the flags of an inode. One pair passes the
//! flags of ioctl_iflags(2). The other pair passes a `struct fsxattr` (ioctl_xfs_fsgetxattr(2)),
//! which has other numbers for some flags. When a client sets flags with the first pair, the kernel
//! reads the old ones with the second pair.
//!
//! Since Linux 5.13, the kernel checks the owner and the capabilities of a client that sets flags.
//! An older kernel passes the request on without a check. So the server makes the same check.
//!
//! Source: Linux `fs/fuse/ioctl.c`, `fs/file_attr.c`.

use corewalk::{Caller, Caps, Errno, InodeFlags, InodeRef, IoctlReply, PollEvents, PollWaker};

use super::Server;
use crate::credentials::resolve;

/// The commands of ioctl_iflags(2). Their numbers contain the length of a `long`, but their
/// argument is an `int`. For a process with another length of a `long`, the kernel translates the
/// number.
const GET_FLAGS: u32 = 0x8000_6601 | LONG_BYTES << 16;
const SET_FLAGS: u32 = 0x4000_6602 | LONG_BYTES << 16;
const LONG_BYTES: u32 = size_of::<usize>() as u32;
const GET_FSXATTR: u32 = 0x801c_581f;
const SET_FSXATTR: u32 = 0x401c_5820;
/// Length of a `struct fsxattr` in bytes. Only its first word, the flags, is supported.
const FSXATTR_BYTES: usize = 28;
const FSXATTR_FLAGS: [(InodeFlags, u32); 5] = [
    (InodeFlags::IMMUTABLE, 0x8),
    (InodeFlags::APPEND, 0x10),
    (InodeFlags::SYNC, 0x20),
    (InodeFlags::NOATIME, 0x40),
    (InodeFlags::NODUMP, 0x80),
];

impl Server {
    /// Serves an ioctl(2) of `caller`. `input` is the argument of the command. The answer has at
    /// most `output_bytes` bytes.
    ///
    /// # Errors
    /// `ENOTTY` for an unknown command; `EPERM` if the caller may not set inode flags; `EINVAL` for
    /// an argument that is too short; `EIO` if the answer of the back end is too long; the errors
    /// of the back end.
    pub fn ioctl(
        &self,
        caller: Caller,
        (node, handle): (u64, u64),
        command: u32,
        input: &[u8],
        output_bytes: usize,
    ) -> Result<IoctlReply, Errno> {
        let inode = self.inode(node)?;
        let reply = match command {
            GET_FLAGS => {
                let flags = self.vfs.inode_flags(&inode, handle)?;
                IoctlReply::new(flags.bits().to_ne_bytes().to_vec())
            }
            SET_FLAGS => {
                let flags = u32::from_ne_bytes(*input.first_chunk().ok_or(Errno::INVAL)?);
                let flags = InodeFlags::from_bits_retain(flags);
                let old = self.vfs.inode_flags(&inode, handle)?;
                self.set_flags(caller, (&inode, handle), old, flags)?
            }
            GET_FSXATTR => {
                let flags = self.vfs.inode_flags(&inode, handle)?;
                let mut output = vec![0; FSXATTR_BYTES];
                output[..4].copy_from_slice(&to_fsxattr(flags).to_ne_bytes());
                IoctlReply::new(output)
            }
            SET_FSXATTR => {
                let old = self.vfs.inode_flags(&inode, handle)?;
                self.set_flags(caller, (&inode, handle), old, from_fsxattr(old, input)?)?
            }
            _ => self.vfs.ioctl(&inode, handle, command, input)?,
        };
        if reply.output.len() <= output_bytes { Ok(reply) } else { Err(Errno::IO) }
    }

    /// Sets inode flags.
    ///
    /// # Errors
    /// `EPERM` if the caller neither owns the file nor has `CAP_FOWNER`, or if it changes the flags
    /// `IMMUTABLE` and `APPEND` without `CAP_LINUX_IMMUTABLE`; the errors of the back end.
    fn set_flags(
        &self,
        caller: Caller,
        (inode, handle): (&InodeRef<'_>, u64),
        old: InodeFlags,
        new: InodeFlags,
    ) -> Result<IoctlReply, Errno> {
        let cred = resolve(caller, self.namespace);
        let is_owner = || Ok(self.vfs.getattr(inode)?.uid == cred.uid);
        if !cred.has(Caps::FOWNER) && !is_owner()? {
            return Err(Errno::PERM);
        }
        let changed = (old ^ new) & (InodeFlags::IMMUTABLE | InodeFlags::APPEND);
        if !changed.is_empty() && !cred.has(Caps::LINUX_IMMUTABLE) {
            return Err(Errno::PERM);
        }
        self.vfs.set_inode_flags(inode, handle, new)?;
        Ok(IoctlReply::default())
    }

    /// Returns the events that an open file has now. If `waker` is given, the back end wakes it
    /// after the next event.
    ///
    /// # Errors
    /// `ENOSYS` if reads and writes of all files never wait; the other errors of the back end.
    pub fn poll(
        &self,
        node: u64,
        handle: u64,
        wanted: PollEvents,
        waker: Option<PollWaker>,
    ) -> Result<PollEvents, Errno> {
        self.vfs.poll(&self.inode(node)?, handle, wanted, waker)
    }

    /// Returns a waker that tells the kernel of new events of an open file. `kernel_handle` is the
    /// kernel's number of the open file. Returns `None` if the server is not mounted.
    pub(crate) fn poll_waker(&self, kernel_handle: u64) -> Option<PollWaker> {
        let notifier = self.notifier.get()?.clone();
        Some(PollWaker::new(move || notifier.wake_pollers(kernel_handle)))
    }
}

fn to_fsxattr(flags: InodeFlags) -> u32 {
    let has = |(flag, _): &&(InodeFlags, u32)| flags.contains(*flag);
    FSXATTR_FLAGS.iter().filter(has).map(|(_, bit)| bit).sum()
}

fn from_fsxattr(old: InodeFlags, input: &[u8]) -> Result<InodeFlags, Errno> {
    let (word, rest) = input.split_first_chunk().ok_or(Errno::INVAL)?;
    let mut left = u32::from_ne_bytes(*word);
    if input.len() < FSXATTR_BYTES {
        return Err(Errno::INVAL);
    }
    let mut flags = old;
    for (flag, bit) in FSXATTR_FLAGS {
        flags.set(flag, left & bit != 0);
        left &= !bit;
    }
    if left != 0 || rest.iter().any(|&byte| byte != 0) {
        return Err(Errno::OPNOTSUPP);
    }
    Ok(flags)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fsxattr_keeps_the_flags_that_it_does_not_have() {
        let old = InodeFlags::NOCOW | InodeFlags::APPEND;
        let mut input = [0; FSXATTR_BYTES];
        input[..4].copy_from_slice(&to_fsxattr(InodeFlags::NOATIME).to_ne_bytes());
        let new = InodeFlags::NOCOW | InodeFlags::NOATIME;
        assert_eq!(from_fsxattr(old, &input), Ok(new));
        assert_eq!(from_fsxattr(old, &input[..20]), Err(Errno::INVAL));
        input[12] = 1;
        assert_eq!(from_fsxattr(old, &input), Err(Errno::OPNOTSUPP), "a project");
    }
}
