//! Writing of answers.

use std::time::Duration;

use corewalk::{Attr, Errno, FileKind, StatFs, Timespec};

use super::Opcode;
use crate::passthrough::BackingId;
use crate::timeouts::Timeouts;

pub(crate) const OUT_HEADER_BYTES: usize = 16;
const DIRENT_BYTES: usize = 24;
const ENTRY_BYTES: usize = 128;
/// The requests whose answers begin with a `fuse_entry_out`.
const ENTRY_OPCODES: [Opcode; 8] = [
    Opcode::LOOKUP,
    Opcode::SYMLINK,
    Opcode::MKNOD,
    Opcode::MKDIR,
    Opcode::LINK,
    Opcode::CREATE,
    Opcode::TMPFILE,
    Opcode::READDIRPLUS,
];

/// Masks of `statx` attributes: `STATX_BASIC` stands for those that stat(2) has too, and
/// `STATX_BTIME` for the time of creation.
const STATX_BASIC: u32 = 0x7ff;
const STATX_BTIME: u32 = 0x800;

pub(crate) fn out_header(
    unique: u64,
    error: Option<Errno>,
    body_bytes: usize,
) -> [u8; OUT_HEADER_BYTES] {
    let mut bytes = [0; OUT_HEADER_BYTES];
    let error = error.map_or(0, |error| -error.raw_os_error());
    bytes[..4].copy_from_slice(&((OUT_HEADER_BYTES + body_bytes) as u32).to_ne_bytes());
    bytes[4..8].copy_from_slice(&error.to_ne_bytes());
    bytes[8..].copy_from_slice(&unique.to_ne_bytes());
    bytes
}

#[derive(Debug)]
pub(crate) struct Body<'a> {
    buffer: &'a mut [u8],
    len: usize,
}

impl<'a> Body<'a> {
    pub(crate) fn new(buffer: &'a mut [u8]) -> Body<'a> {
        Body { buffer, len: 0 }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn clear(&mut self) {
        self.len = 0;
    }

    /// Sets the times of all entries to 0, so that the kernel keeps nothing of the answer.
    pub(crate) fn clear_entry_times(&mut self, opcode: Opcode) {
        let mut rest = match ENTRY_OPCODES.contains(&opcode) {
            true => &mut self.buffer[..self.len],
            false => return,
        };
        while rest.len() >= ENTRY_BYTES {
            // The times in a `fuse_entry_out`: two words of seconds, and two of nanoseconds.
            rest[16..40].fill(0);
            let mut bytes = rest.len();
            if opcode == Opcode::READDIRPLUS {
                let name = ENTRY_BYTES + 16..ENTRY_BYTES + 20;
                let name = u32::from_ne_bytes(rest[name].try_into().expect("four bytes")) as usize;
                bytes = ENTRY_BYTES + (DIRENT_BYTES + name).next_multiple_of(8);
            }
            rest = rest.split_at_mut(bytes).1;
        }
    }

    /// Adds `bytes` to the body, or returns `EIO` if the buffer is full.
    pub(crate) fn bytes(&mut self, bytes: &[u8]) -> Result<(), Errno> {
        let end = self.len + bytes.len();
        self.buffer.get_mut(self.len..end).ok_or(Errno::IO)?.copy_from_slice(bytes);
        self.len = end;
        Ok(())
    }

    pub(crate) fn fill(
        &mut self,
        max: usize,
        fill: impl FnOnce(&mut [u8]) -> Result<usize, Errno>,
    ) -> Result<(), Errno> {
        let end = self.len.saturating_add(max);
        let filled = fill(self.buffer.get_mut(self.len..end).ok_or(Errno::INVAL)?)?;
        self.len += filled.min(max);
        Ok(())
    }

    pub(crate) fn u32(&mut self, word: u32) -> Result<(), Errno> {
        self.bytes(&word.to_ne_bytes())
    }

    pub(crate) fn u64(&mut self, word: u64) -> Result<(), Errno> {
        self.bytes(&word.to_ne_bytes())
    }

    pub(crate) fn attr(&mut self, attr: &Attr) -> Result<(), Errno> {
        for word in [attr.ino, attr.size, attr.blocks] {
            self.u64(word)?;
        }
        let times = [attr.atime, attr.mtime, attr.ctime];
        times.iter().try_for_each(|time| self.u64(time.secs as u64))?;
        times.iter().try_for_each(|time| self.u32(time.nanos))?;
        // FUSE has 32 bits for a device number, so the major number must have at most 12 bits.
        let words = [attr.mode, attr.nlink, attr.uid, attr.gid, attr.rdev as u32, attr.blksize, 0];
        words.iter().try_for_each(|&word| self.u32(word))
    }

    pub(crate) fn attr_out(&mut self, timeout: Duration, attr: &Attr) -> Result<(), Errno> {
        self.u64(timeout.as_secs())?;
        self.u32(timeout.subsec_nanos())?;
        self.u32(0)?;
        self.attr(attr)
    }

    pub(crate) fn statx_out(&mut self, timeout: Duration, attr: &Attr) -> Result<(), Errno> {
        let has_btime = attr.btime != Timespec::default();
        let mask = if has_btime { STATX_BASIC | STATX_BTIME } else { STATX_BASIC };
        self.u64(timeout.as_secs())?;
        self.u32(timeout.subsec_nanos())?;
        self.bytes(&[0; 20])?;
        for word in [mask, attr.blksize, 0, 0, attr.nlink, attr.uid, attr.gid] {
            self.u32(word)?;
        }
        self.bytes(&(attr.mode as u16).to_ne_bytes())?;
        self.bytes(&[0; 2])?;
        for word in [attr.ino, attr.size, attr.blocks, 0] {
            self.u64(word)?;
        }
        for time in [attr.atime, attr.btime, attr.ctime, attr.mtime] {
            self.u64(time.secs as u64)?;
            self.u32(time.nanos)?;
            self.u32(0)?;
        }
        let device = [rustix::fs::major(attr.rdev), rustix::fs::minor(attr.rdev), 0, 0];
        device.iter().try_for_each(|&word| self.u32(word))?;
        self.bytes(&[0; 112])
    }

    pub(crate) fn entry_out(
        &mut self,
        (node, generation): (u64, u64),
        timeouts: Timeouts,
        attr: &Attr,
    ) -> Result<(), Errno> {
        self.u64(node)?;
        self.u64(generation)?;
        self.u64(timeouts.entry.as_secs())?;
        self.u64(timeouts.attr.as_secs())?;
        self.u32(timeouts.entry.subsec_nanos())?;
        self.u32(timeouts.attr.subsec_nanos())?;
        self.attr(attr)
    }

    pub(crate) fn negative_entry(&mut self, timeout: Duration) -> Result<(), Errno> {
        self.u64(0)?;
        self.u64(0)?;
        self.u64(timeout.as_secs())?;
        self.u64(0)?;
        self.u32(timeout.subsec_nanos())?;
        self.bytes(&[0; ENTRY_BYTES - 36])
    }

    pub(crate) fn open_out(&mut self, handle: u64, flags: u32) -> Result<(), Errno> {
        self.u64(handle)?;
        self.u32(flags)?;
        self.u32(0)
    }

    pub(crate) fn passed_out(
        &mut self,
        handle: u64,
        flags: u32,
        id: BackingId,
    ) -> Result<(), Errno> {
        self.u64(handle)?;
        self.u32(flags)?;
        self.u32(id.get())
    }

    pub(crate) fn statfs_out(&mut self, fs: &StatFs) -> Result<(), Errno> {
        for word in [fs.blocks, fs.bfree, fs.bavail, fs.files, fs.ffree] {
            self.u64(word)?;
        }
        for word in [fs.bsize, fs.namelen, fs.bsize] {
            self.u32(word)?;
        }
        self.bytes(&[0; 28])
    }

    /// Adds a directory entry to the body. If the entry would make the body longer than `limit`
    /// bytes, adds nothing and returns `EIO`.
    pub(crate) fn dirent(
        &mut self,
        limit: usize,
        ino: u64,
        cookie: u64,
        kind: FileKind,
        name: &[u8],
    ) -> Result<(), Errno> {
        let bytes = (DIRENT_BYTES + name.len()).next_multiple_of(8);
        if self.len + bytes > limit.min(self.buffer.len()) {
            return Err(Errno::IO);
        }
        let padding = bytes - DIRENT_BYTES - name.len();
        self.u64(ino)?;
        self.u64(cookie)?;
        self.u32(name.len() as u32)?;
        self.u32(kind_number(kind))?;
        self.bytes(name)?;
        self.bytes(&[0; 8][..padding])
    }

    pub(crate) fn direntplus(
        &mut self,
        limit: usize,
        entry: Option<(u64, Timeouts, &Attr)>,
        (ino, cookie, kind, name): (u64, u64, FileKind, &[u8]),
    ) -> Result<(), Errno> {
        let start = self.len;
        let added = match entry {
            Some((node, timeouts, attr)) => self.entry_out((node, attr.generation), timeouts, attr),
            None => self.bytes(&[0; ENTRY_BYTES]),
        };
        let added = added.and_then(|()| self.dirent(limit, ino, cookie, kind, name));
        if added.is_err() {
            self.len = start;
        }
        added
    }
}

fn kind_number(kind: FileKind) -> u32 {
    match kind {
        FileKind::Fifo => 1,
        FileKind::CharDevice => 2,
        FileKind::Directory => 4,
        FileKind::BlockDevice => 6,
        FileKind::Regular => 8,
        FileKind::Symlink => 10,
        FileKind::Socket => 12,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn structures_have_the_lengths_of_the_protocol() {
        let mut buffer = [0; 512];
        let attr = Attr::file(5, 10);
        let second = Duration::from_secs(1);
        let timeouts = Timeouts::fixed(second);
        let mut length = |write: &dyn Fn(&mut Body<'_>) -> Result<(), Errno>| {
            let mut body = Body::new(&mut buffer);
            write(&mut body).unwrap();
            body.len()
        };
        assert_eq!(length(&|body| body.attr(&attr)), 88);
        assert_eq!(length(&|body| body.attr_out(second, &attr)), 104);
        assert_eq!(length(&|body| body.entry_out((5, 1), timeouts, &attr)), ENTRY_BYTES);
        assert_eq!(length(&|body| body.statx_out(second, &attr)), 288);
        assert_eq!(length(&|body| body.negative_entry(second)), ENTRY_BYTES);
        assert_eq!(length(&|body| body.open_out(1, 2)), 16);
        assert_eq!(length(&|body| body.statfs_out(&StatFs::default())), 80);
        let dirent = |name: &[u8]| {
            let mut buffer = [0; 512];
            let mut body = Body::new(&mut buffer);
            body.dirent(512, 5, 1, FileKind::Regular, name).map(|()| body.len())
        };
        assert_eq!(dirent(b"12345678"), Ok(32));
        assert_eq!(dirent(b"123456789"), Ok(40));
    }

    #[test]
    fn entry_that_does_not_fit_is_left_out_whole() {
        let mut buffer = [0; 512];
        let mut body = Body::new(&mut buffer);
        let attr = Attr::file(5, 10);
        let timeouts = Timeouts::fixed(Duration::ZERO);
        let entry = Some((5, timeouts, &attr));
        let named = |name: &'static [u8]| (5, 1, FileKind::Regular, name);
        body.direntplus(200, entry, named(b"a")).unwrap();
        assert_eq!(body.len(), 160);
        assert_eq!(body.direntplus(319, entry, named(b"b")), Err(Errno::IO));
        assert_eq!(body.len(), 160);
        body.direntplus(320, entry, named(b"b")).unwrap();
        assert_eq!(body.len(), 320);
    }

    #[test]
    fn header_has_a_negative_error() {
        let header = out_header(3, Some(Errno::NOENT), 0);
        assert_eq!(header[..4], 16_u32.to_ne_bytes());
        assert_eq!(header[4..8], (-2_i32).to_ne_bytes());
        assert_eq!(header[8..], 3_u64.to_ne_bytes());
        assert_eq!(out_header(3, None, 8)[..8], [24, 0, 0, 0, 0, 0, 0, 0]);
    }
}
