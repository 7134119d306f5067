//! Open files of a check.

use corewalk::{Errno, InodeRef, May, SetAttr};

use super::Bench;
use crate::answer::{Answer, Checked, ensure};

const O_RDWR: u32 = 2;
const READ_BYTES: usize = 64 << 10;

pub(crate) struct OpenFile<'b> {
    bench: &'b Bench,
    inode: InodeRef<'b>,
    handle: u64,
}

impl Bench {
    /// Opens a file for reading, and also for writing if the back end permits that.
    pub(crate) fn open<'b>(&'b self, inode: &InodeRef<'b>) -> Checked<OpenFile<'b>> {
        let opened = match self.vfs.open(&self.cred, inode, O_RDWR, May::READ | May::WRITE) {
            Err(Errno::ROFS | Errno::ACCESS | Errno::PERM) => {
                self.vfs.open(&self.cred, inode, 0, May::READ).must("open")?
            }
            opened => opened.must("open")?,
        };
        Ok(OpenFile { bench: self, inode: inode.clone(), handle: opened.handle })
    }

    pub(crate) fn truncate(&self, inode: &InodeRef<'_>, size: u64) -> Checked {
        let set = SetAttr::default().with_size(size);
        let attr = self.vfs.setattr(&self.cred, inode, &set).needs("setattr of the size")?;
        ensure(attr.size == size, || {
            format!("setattr of the size {size} returned the size {}", attr.size)
        })
    }
}

impl OpenFile<'_> {
    pub(crate) fn bench(&self) -> &Bench {
        self.bench
    }

    pub(crate) fn inode(&self) -> &InodeRef<'_> {
        &self.inode
    }

    pub(crate) fn handle(&self) -> u64 {
        self.handle
    }

    pub(crate) fn read(&self, at: u64, len: usize) -> Checked<Vec<u8>> {
        // The buffer is filled with a byte other than zero. So a check notices a byte that the back
        // end counts as read but does not write.
        let mut buf = vec![0xee; len];
        let call = || format!("read of {len} bytes at {at}");
        let count = self.bench.vfs.read(&self.inode, self.handle, at, &mut buf).must(&call())?;
        ensure(count <= len, || format!("{}: {count} bytes returned", call()))?;
        buf.truncate(count);
        Ok(buf)
    }

    pub(crate) fn read_all(&self) -> Checked<Vec<u8>> {
        let size = self.bench.attr(&self.inode)?.size;
        let mut content = Vec::new();
        loop {
            let page = self.read(content.len() as u64, READ_BYTES)?;
            if page.is_empty() {
                return Ok(content);
            }
            content.extend_from_slice(&page);
            // Between these reads, another thread may extend the file to at most twice its size. If
            // the reads return more bytes, the back end reports no end of the file.
            let limit = 2 * size + READ_BYTES as u64;
            ensure(content.len() as u64 <= limit, || {
                format!("reads return more than {limit} bytes of a file of {size} bytes")
            })?;
        }
    }

    pub(crate) fn write(&self, at: u64, bytes: &[u8]) -> Checked {
        self.write_with(bytes, |done, rest| {
            let at = at + done as u64;
            self.bench.vfs.write(&self.bench.cred, &self.inode, self.handle, at, rest)
        })
    }

    pub(crate) fn append(&self, end: u64, bytes: &[u8]) -> Checked {
        self.write_with(bytes, |done, rest| {
            let end = end + done as u64;
            self.bench.vfs.append(&self.bench.cred, &self.inode, self.handle, end, rest)
        })
    }

    fn write_with(
        &self,
        bytes: &[u8],
        write: impl Fn(usize, &[u8]) -> Result<usize, Errno>,
    ) -> Checked {
        let mut done = 0;
        while done < bytes.len() {
            let rest = &bytes[done..];
            let count = write(done, rest).needs("write")?;
            ensure((1..=rest.len()).contains(&count), || {
                format!("write of {} bytes returned {count}", rest.len())
            })?;
            done += count;
        }
        Ok(())
    }
}

impl Drop for OpenFile<'_> {
    fn drop(&mut self) {
        self.bench.vfs.release(&self.inode, self.handle);
    }
}
