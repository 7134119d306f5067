//! Requests of ioctl(2) and poll(2).

use corewalk::{Errno, PollEvents};

use super::Requests;
use crate::wire::{Body, Message};

/// A flag of a poll request: the client waits for events (`FUSE_POLL_SCHEDULE_NOTIFY`).
const POLL_SCHEDULE_NOTIFY: u32 = 1;

impl Requests {
    pub(super) fn ioctl(&self, message: &Message<'_>, body: &mut Body<'_>) -> Result<(), Errno> {
        let mut args = message.args();
        let (handle, _flags, command) = (args.u64()?, args.u32()?, args.u32()?);
        let (_address, in_bytes, out_bytes) = (args.u64()?, args.u32()?, args.u32()?);
        let input = args.data(in_bytes)?;
        let header = message.header;
        let (file, out_bytes) = ((header.node, handle), out_bytes as usize);
        let reply = self.server.ioctl(header.caller, file, command, input, out_bytes)?;
        body.u32(reply.result as u32)?;
        // The other fields of `struct fuse_ioctl_out` are 0: flags, and lists that only CUSE
        // supports.
        [0; 3].iter().try_for_each(|word| body.u32(*word))?;
        body.bytes(&reply.output)
    }

    pub(super) fn poll(&self, message: &Message<'_>, body: &mut Body<'_>) -> Result<(), Errno> {
        let mut args = message.args();
        let (handle, kernel_handle) = (args.u64()?, args.u64()?);
        let (flags, wanted) = (args.u32()?, args.u32()?);
        let waits = flags & POLL_SCHEDULE_NOTIFY != 0;
        let waker = if waits { self.server.poll_waker(kernel_handle) } else { None };
        let wanted = PollEvents::from_bits_retain(wanted);
        let events = self.server.poll(message.header.node, handle, wanted, waker)?;
        body.u32(events.bits())?;
        body.u32(0)
    }
}
