//! Requests about names: lookups, and requests that create, remove and rename files.

use corewalk::attr::mode;
use corewalk::{Errno, OpenFlags, Opened, Removal};

use super::{OPEN_KILL_SET_ID, Requests};
use crate::server::{EntryOut, NewFile};
use crate::wire::{Body, Message, Opcode};

impl Requests {
    pub(super) fn lookup(&self, message: &Message<'_>, body: &mut Body<'_>) -> Result<(), Errno> {
        let header = message.header;
        let name = message.args().name()?;
        let arrival = self.arrival();
        let timeouts = match self.server.lookup(header.caller, header.node, name) {
            Ok(entry) => {
                let timeouts = self.timeouts.set_by(&entry.attr).since(arrival);
                return body.entry_out((entry.node, entry.generation), timeouts, &entry.attr);
            }
            Err(Errno::NOENT) => {
                let ttl = arrival.and_then(|_| self.server.absent_ttl(header.node, name));
                let default = self.server.options().negative_timeout;
                self.timeouts.of_absent(ttl, default).since(arrival)
            }
            Err(error) => return Err(error),
        };
        match timeouts.entry.is_zero() {
            true => Err(Errno::NOENT),
            false => body.negative_entry(timeouts.entry),
        }
    }

    pub(super) fn forget(&self, message: &Message<'_>) -> Result<(), Errno> {
        self.server.forget(message.header.node, message.args().u64()?);
        Ok(())
    }

    pub(super) fn batch_forget(&self, message: &Message<'_>) -> Result<(), Errno> {
        let mut args = message.args();
        let count = args.u32()?;
        args.forgets(count).for_each(|(node, n)| self.server.forget(node, n));
        Ok(())
    }

    pub(super) fn symlink(&self, message: &Message<'_>, body: &mut Body<'_>) -> Result<(), Errno> {
        let mut args = message.args();
        let (name, target) = (args.name()?, args.name()?);
        self.make(message, name, &NewFile::new(mode::S_IFLNK | 0o777).with_target(target), body)
    }

    pub(super) fn mknod(&self, message: &Message<'_>, body: &mut Body<'_>) -> Result<(), Errno> {
        let mut args = message.args();
        let (mode, rdev, umask) = (args.u32()?, args.u32()?, args.u32()?);
        let new = NewFile::new(mode).with_umask(umask).with_rdev(u64::from(rdev));
        self.make(message, args.name()?, &new, body)
    }

    pub(super) fn mkdir(&self, message: &Message<'_>, body: &mut Body<'_>) -> Result<(), Errno> {
        let mut args = message.args();
        let (mode, umask) = (args.u32()?, args.u32()?);
        let new = NewFile::new(mode::S_IFDIR | mode & 0o7777).with_umask(umask);
        self.make(message, args.name()?, &new, body)
    }

    fn make(
        &self,
        message: &Message<'_>,
        name: &[u8],
        new: &NewFile<'_>,
        body: &mut Body<'_>,
    ) -> Result<(), Errno> {
        let header = message.header;
        self.entry(&self.server.make(header.caller, header.node, name, new)?, body)
    }

    pub(super) fn create(&self, message: &Message<'_>, body: &mut Body<'_>) -> Result<(), Errno> {
        let header = message.header;
        let mut args = message.args();
        let (flags, mode, umask) = (args.u32()?, args.u32()?, args.u32()?);
        let set_id = self.set_id(args.u32()?, OPEN_KILL_SET_ID);
        let new = NewFile::new(mode).with_umask(umask).with_set_id(set_id);
        let name = args.name()?;
        let (entry, opened) = self.server.create(header.caller, header.node, name, &new, flags)?;
        self.entry(&entry, body)?;
        self.open_out((entry.node, flags), opened, body)
    }

    pub(super) fn tmpfile(&self, message: &Message<'_>, body: &mut Body<'_>) -> Result<(), Errno> {
        let header = message.header;
        let mut args = message.args();
        let (flags, mode, umask) = (args.u32()?, args.u32()?, args.u32()?);
        let new = NewFile::new(mode).with_umask(umask);
        let (entry, opened) = self.server.tmpfile(header.caller, header.node, &new, flags)?;
        self.entry(&entry, body)?;
        self.open_out((entry.node, flags), opened, body)
    }

    pub(super) fn open_flags(&self, opened: Opened) -> u32 {
        // With passthrough, do not let the kernel keep cached pages: writes to the file of the host
        // do not update them.
        let keeps = self.opens_are_free || self.keeps_cache && self.passthrough.is_none();
        let keep = if keeps { OpenFlags::KEEP_CACHE } else { OpenFlags::empty() };
        (opened.flags | keep).bits()
    }

    pub(super) fn link(&self, message: &Message<'_>, body: &mut Body<'_>) -> Result<(), Errno> {
        let header = message.header;
        let mut args = message.args();
        let (node, name) = (args.u64()?, args.name()?);
        self.entry(&self.server.link(header.caller, node, header.node, name)?, body)
    }

    pub(super) fn remove(&self, message: &Message<'_>) -> Result<(), Errno> {
        let header = message.header;
        let removal = match header.opcode {
            Opcode::RMDIR => Removal::Rmdir,
            _ => Removal::Unlink,
        };
        self.server.remove(header.caller, header.node, message.args().name()?, removal)
    }

    pub(super) fn rename(&self, message: &Message<'_>) -> Result<(), Errno> {
        let header = message.header;
        let mut args = message.args();
        let new_parent = args.u64()?;
        let flags = if header.opcode == Opcode::RENAME2 { args.u32()? } else { 0 };
        let (old, new) = (args.name()?, args.name()?);
        self.server.rename(header.caller, (header.node, old), (new_parent, new), flags)
    }

    fn entry(&self, entry: &EntryOut, body: &mut Body<'_>) -> Result<(), Errno> {
        let timeouts = self.timeouts.set_by(&entry.attr);
        body.entry_out((entry.node, entry.generation), timeouts, &entry.attr)
    }
}
