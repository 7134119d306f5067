//! The content of a regular file: its size, and the extents that hold its bytes.
//!
//! A write puts its bytes straight into the data device, where the host's page cache keeps them
//! until a sync. A transaction contains only the extents, which say in which blocks of the device
//! the bytes are. Holes and reserved blocks behave as in `corewalk::tmpfs`.
//!
//! # After a crash
//! - Blocks that belonged to the file at the last commit are overwritten in place, as in ext4 with
//!   `data=ordered`. So they may have newer bytes than at that commit.
//! - A new block is written before an extent refers to it, and padded with zeros. A freed block is
//!   allocated again only after the commit that frees it. So a file never shows bytes of another
//!   file, nor bytes that were never written.
//!
//! # Invariants
//! - D.1: bytes of the last block behind the end of the file have no meaning. A call that makes the
//!   file longer zeroes them first. So truncation need not zero them.
//! - D.2: a block behind the end of the file never contains data. It may be reserved
//!   (`FALLOC_FL_KEEP_SIZE`).
//! - D.3: every allocated block is charged to the space budget.
//!
//! # Errors
//! A call first checks its arguments and charges the space budget, and then changes the content. If
//! one of these first steps fails, nothing has changed. A write may be short, as write(2) allows.
//!
//! Source: write(2), truncate(2), fallocate(2), lseek(2); `corewalk::tmpfs`, which must behave
//! alike.

use std::ops::Range;

use corewalk::{Errno, Fallocate, Seek};
use corewalk_base::Budget;

use crate::alloc::Run;
use crate::extents::ExtentMap;
use crate::journal::{Journal, View};
use crate::record::Extent;

pub(crate) const BLOCK_BYTES: u64 = 4096;
pub(crate) const SIZE_MAX: u64 = i64::MAX as u64;
/// Maximum number of blocks (1 TiB) that one call of fallocate(2) reserves, as in corewalk's tmpfs.
const RESERVE_BLOCKS_MAX: u64 = (1 << 40) / BLOCK_BYTES;
const ZEROS: [u8; BLOCK_BYTES as usize] = [0; BLOCK_BYTES as usize];

#[derive(Debug, Default)]
pub(crate) struct Content {
    pub(crate) size: u64,
    extents: Option<ExtentMap>,
    is_dead: bool,
    has_moved: bool,
}

#[derive(Clone, Copy)]
pub(crate) struct FileTx<'a> {
    pub(crate) ino: u64,
    pub(crate) journal: &'a Journal,
    pub(crate) view: &'a View,
    pub(crate) space: &'a Budget,
}

impl FileTx<'_> {
    fn free(&self, runs: Vec<Run>) {
        self.space.give_back(runs.iter().map(|run| run.len).sum());
        self.view.free(self.ino, runs);
    }
}

impl Content {
    pub(crate) fn stored(size: u64) -> Content {
        Content { size, extents: None, is_dead: false, has_moved: false }
    }

    pub(crate) fn new() -> Content {
        Content { extents: Some(ExtentMap::default()), ..Content::default() }
    }

    pub(crate) fn is_loaded(&self) -> bool {
        self.extents.is_some()
    }

    /// Returns the extents of the file. The first call reads them from their records. `EIO` if the
    /// extents cannot be read, `ESTALE` if the file was freed.
    pub(crate) fn load(&mut self, ino: u64, view: &View) -> Result<&mut ExtentMap, Errno> {
        if self.is_dead {
            return Err(Errno::STALE);
        }
        match &mut self.extents {
            Some(extents) => Ok(extents),
            extents => Ok(extents.insert(ExtentMap::load(ino, view)?)),
        }
    }

    pub(crate) fn take_moved(&mut self) -> bool {
        std::mem::take(&mut self.has_moved)
    }

    pub(crate) fn blocks(&self) -> Option<u64> {
        self.extents.as_ref().map(ExtentMap::blocks)
    }

    /// Reads bytes at `offset` into `buf`, and returns their number. It is less than `buf.len()`
    /// only at the end of the file. `EIO` if the bytes cannot be read.
    pub(crate) fn read(
        &self,
        journal: &Journal,
        offset: u64,
        buf: &mut [u8],
    ) -> Result<usize, Errno> {
        let len = self.size.saturating_sub(offset).min(buf.len() as u64) as usize;
        let (mut at, mut buf) = (offset, &mut buf[..len]);
        while !buf.is_empty() {
            let within = at % BLOCK_BYTES;
            let span = self.look(at / BLOCK_BYTES);
            let room = span.len.saturating_mul(BLOCK_BYTES) - within;
            let (part, rest) = buf.split_at_mut(room.min(buf.len() as u64) as usize);
            match span.found {
                Some((block, true)) => journal.read_data(block * BLOCK_BYTES + within, part)?,
                _ => part.fill(0),
            }
            at += part.len() as u64;
            buf = rest;
        }
        Ok(len)
    }

    /// Finds the next data or hole from `offset` on, as lseek(2) does. The end of the file counts
    /// as a hole. `ENXIO` at or behind the end, or if no data follows.
    pub(crate) fn seek(&self, offset: u64, what: Seek) -> Result<u64, Errno> {
        if offset >= self.size {
            return Err(Errno::NXIO);
        }
        let block = offset / BLOCK_BYTES;
        let found = match &self.extents {
            Some(extents) => extents.next(block, what == Seek::Data),
            None => (what == Seek::Hole).then_some(block),
        };
        let at = found.ok_or(Errno::NXIO)?.saturating_mul(BLOCK_BYTES);
        if what == Seek::Data && at >= self.size {
            return Err(Errno::NXIO);
        }
        Ok(at.clamp(offset, self.size))
    }

    /// Writes `bytes` at `offset`, and returns how many bytes were written. Fewer than
    /// `bytes.len()` are written if the space runs out or the file reaches its largest size.
    ///
    /// # Errors
    /// `EFBIG` if `offset` is not below the largest size; `ENOSPC` if there is no space for one
    /// byte; `EIO` if the host fails; `ESTALE` if the file was freed.
    pub(crate) fn write(
        &mut self,
        tx: FileTx<'_>,
        offset: u64,
        bytes: &[u8],
    ) -> Result<usize, Errno> {
        self.load(tx.ino, tx.view)?;
        if bytes.is_empty() {
            return Ok(0);
        }
        let room = SIZE_MAX.checked_sub(offset).filter(|&room| room > 0).ok_or(Errno::FBIG)?;
        let bytes = &bytes[..(bytes.len() as u64).min(room) as usize];
        self.zero_end(tx, offset)?;
        let (mut at, mut rest) = (offset, bytes);
        while !rest.is_empty() {
            match self.write_span(tx, at, rest) {
                Ok(0) => break,
                Ok(done) => {
                    at += done as u64;
                    rest = &rest[done..];
                }
                Err(errno) if at == offset => {
                    self.flush(tx);
                    return Err(errno);
                }
                Err(_) => break,
            }
        }
        self.flush(tx);
        if at == offset {
            return Err(Errno::NOSPC);
        }
        self.size = self.size.max(at);
        Ok((at - offset) as usize)
    }

    fn write_span(&mut self, tx: FileTx<'_>, at: u64, bytes: &[u8]) -> Result<usize, Errno> {
        let (block, within) = (at / BLOCK_BYTES, at % BLOCK_BYTES);
        let wanted = (within + bytes.len() as u64).div_ceil(BLOCK_BYTES);
        let span = self.look(block);
        let wanted = wanted.min(span.len);
        let fits = |blocks: u64| (bytes.len() as u64).min(blocks * BLOCK_BYTES - within) as usize;
        let extents = self.load(tx.ino, tx.view)?;
        match span.found {
            Some((physical, true)) => {
                let bytes = &bytes[..fits(wanted)];
                tx.journal.write_data(tx.view, physical * BLOCK_BYTES + within, bytes)?;
                Ok(bytes.len())
            }
            Some((physical, false)) => {
                let bytes = &bytes[..fits(wanted)];
                write_padded(tx, physical, within, bytes)?;
                extents.mark(block..block + wanted, true);
                Ok(bytes.len())
            }
            None => {
                let granted = tx.space.take_up_to(wanted, 1);
                if granted == 0 {
                    return Ok(0);
                }
                let goal = block.checked_sub(1).and_then(|before| extents.look(before).found);
                let run = tx.journal.allocator.take(goal.map(|(before, _)| before + 1), granted);
                tx.space.give_back(granted - run.len);
                let bytes = &bytes[..fits(run.len)];
                if let Err(errno) = write_padded(tx, run.start, within, bytes) {
                    tx.space.give_back(run.len);
                    tx.journal.allocator.give(run);
                    return Err(errno);
                }
                let extent = Extent { physical: run.start, len: run.len, is_written: true };
                extents.insert(block, extent);
                Ok(bytes.len())
            }
        }
    }

    /// Does everything in a change of the size that can fail. After this call,
    /// [`Content::set_size`] cannot fail.
    pub(crate) fn prepare_size(&mut self, tx: FileTx<'_>, size: u64) -> Result<(), Errno> {
        if size > SIZE_MAX {
            return Err(Errno::FBIG);
        }
        self.load(tx.ino, tx.view)?;
        self.zero_end(tx, size)
    }

    /// Sets the size of the file. Unless the file grows, the blocks behind its end are freed, even
    /// if the size stays the same (as on ext4). Cannot fail after [`Content::prepare_size`].
    pub(crate) fn set_size(&mut self, tx: FileTx<'_>, size: u64) -> Result<(), Errno> {
        if size <= self.size {
            self.remove(tx, size.div_ceil(BLOCK_BYTES)..u64::MAX)?;
        }
        self.size = size;
        self.flush(tx);
        Ok(())
    }

    /// Returns how many new blocks [`Content::allocate`] would need, or 0 for arguments that it
    /// refuses.
    ///
    /// # Errors
    /// `EIO` if the extents cannot be read; `ESTALE` if the file was freed.
    pub(crate) fn missing_blocks(
        &mut self,
        tx: FileTx<'_>,
        offset: u64,
        len: u64,
        how: Fallocate,
    ) -> Result<u64, Errno> {
        let extents = self.load(tx.ino, tx.view)?;
        let end = offset.checked_add(len).filter(|&end| end <= SIZE_MAX);
        let is_taking = (how - Fallocate::KEEP_SIZE - Fallocate::ZERO_RANGE).is_empty();
        let Some(end) = end.filter(|_| is_taking) else { return Ok(0) };
        let blocks = touched_blocks(offset..end);
        Ok(blocks.end - blocks.start - extents.allocated_in(blocks))
    }

    /// Changes the allocation as fallocate(2) does.
    ///
    /// # Errors
    /// - `EINVAL` for an empty range, and for an unaligned collapse or insert. Also for a collapse
    ///   that reaches the end of the file, and for an insert at or behind the end.
    /// - `EFBIG` for a range behind the largest size.
    /// - `EOPNOTSUPP` for flags that exclude each other.
    /// - `ENOSPC` if there is not enough space; `EIO` if the host fails; `ESTALE` if the file was
    ///   freed.
    pub(crate) fn allocate(
        &mut self,
        tx: FileTx<'_>,
        offset: u64,
        len: u64,
        how: Fallocate,
    ) -> Result<(), Errno> {
        self.load(tx.ino, tx.view)?;
        if len == 0 {
            return Err(Errno::INVAL);
        }
        let end = offset.checked_add(len).filter(|&end| end <= SIZE_MAX).ok_or(Errno::FBIG)?;
        let is_size_kept = how.contains(Fallocate::KEEP_SIZE);
        let changed = match how - Fallocate::KEEP_SIZE {
            Fallocate::PUNCH_HOLE if is_size_kept => self
                .zero_edges(tx, offset..end)
                .and_then(|()| self.remove(tx, whole_blocks(offset..end))),
            Fallocate::ZERO_RANGE => self
                .reserve(tx, touched_blocks(offset..end))
                .and_then(|()| self.zero_edges(tx, offset..end))
                .and_then(|()| {
                    self.load(tx.ino, tx.view)?.mark(whole_blocks(offset..end), false);
                    self.extend_to(tx, end, is_size_kept)
                }),
            Fallocate::COLLAPSE_RANGE if !is_size_kept => self.collapse(tx, offset..end),
            Fallocate::INSERT_RANGE if !is_size_kept => self.insert(tx, offset..end),
            flags if flags.is_empty() => self
                .reserve(tx, touched_blocks(offset..end))
                .and_then(|()| self.extend_to(tx, end, is_size_kept)),
            Fallocate::COLLAPSE_RANGE | Fallocate::INSERT_RANGE => Err(Errno::INVAL),
            _ => Err(Errno::OPNOTSUPP),
        };
        self.flush(tx);
        changed
    }

    /// Frees all blocks of a file that is being freed. The content cannot be used afterwards.
    pub(crate) fn discard(&mut self, tx: FileTx<'_>) -> Result<(), Errno> {
        self.remove(tx, 0..u64::MAX)?;
        self.flush(tx);
        // If `has_moved` stayed true, the caller would save the record of the file that is being
        // freed.
        (self.size, self.has_moved) = (0, false);
        self.is_dead = true;
        Ok(())
    }

    fn collapse(&mut self, tx: FileTx<'_>, range: Range<u64>) -> Result<(), Errno> {
        if !is_whole_blocks(&range) || range.end >= self.size {
            return Err(Errno::INVAL);
        }
        let blocks = whole_blocks(range.clone());
        self.remove(tx, blocks.clone())?;
        self.load(tx.ino, tx.view)?.shift(blocks.end, blocks.start);
        self.size -= range.end - range.start;
        Ok(())
    }

    fn insert(&mut self, tx: FileTx<'_>, range: Range<u64>) -> Result<(), Errno> {
        if !is_whole_blocks(&range) || range.start >= self.size {
            return Err(Errno::INVAL);
        }
        let size = self.size + (range.end - range.start);
        if size > SIZE_MAX {
            return Err(Errno::FBIG);
        }
        let blocks = whole_blocks(range);
        self.load(tx.ino, tx.view)?.shift(blocks.start, blocks.end);
        self.size = size;
        Ok(())
    }

    fn reserve(&mut self, tx: FileTx<'_>, blocks: Range<u64>) -> Result<(), Errno> {
        let extents = self.load(tx.ino, tx.view)?;
        let missing = blocks.end - blocks.start - extents.allocated_in(blocks.clone());
        if missing > RESERVE_BLOCKS_MAX {
            return Err(Errno::NOSPC);
        }
        tx.space.take(missing)?;
        let mut at = blocks.start;
        while at < blocks.end {
            let span = extents.look(at);
            let mut len = span.len.min(blocks.end - at);
            if span.found.is_none() {
                let run = tx.journal.allocator.take(None, len);
                len = run.len;
                extents.insert(at, Extent { physical: run.start, len, is_written: false });
            }
            at += len;
        }
        Ok(())
    }

    fn remove(&mut self, tx: FileTx<'_>, blocks: Range<u64>) -> Result<(), Errno> {
        let runs = self.load(tx.ino, tx.view)?.remove(blocks);
        tx.free(runs);
        Ok(())
    }

    /// Zeroes the rest of the last block before the file grows (invariant D.1).
    fn zero_end(&mut self, tx: FileTx<'_>, end: u64) -> Result<(), Errno> {
        let block_end = self.size.next_multiple_of(BLOCK_BYTES);
        if end <= self.size {
            return Ok(());
        }
        self.zero_within_block(tx, self.size..end.min(block_end))
    }

    fn zero_edges(&mut self, tx: FileTx<'_>, range: Range<u64>) -> Result<(), Errno> {
        if range.start / BLOCK_BYTES == range.end / BLOCK_BYTES {
            return self.zero_within_block(tx, range);
        }
        self.zero_within_block(tx, range.start..range.start.next_multiple_of(BLOCK_BYTES))?;
        self.zero_within_block(tx, range.end - range.end % BLOCK_BYTES..range.end)
    }

    fn zero_within_block(&mut self, tx: FileTx<'_>, range: Range<u64>) -> Result<(), Errno> {
        if let Some((physical, true)) = self.look(range.start / BLOCK_BYTES).found
            && !range.is_empty()
        {
            let at = physical * BLOCK_BYTES + range.start % BLOCK_BYTES;
            let zeros = &ZEROS[..(range.end - range.start) as usize];
            return tx.journal.write_data(tx.view, at, zeros);
        }
        Ok(())
    }

    fn extend_to(&mut self, tx: FileTx<'_>, end: u64, is_size_kept: bool) -> Result<(), Errno> {
        if !is_size_kept && end > self.size {
            self.zero_end(tx, end)?;
            self.size = end;
        }
        Ok(())
    }

    fn look(&self, block: u64) -> crate::extents::Span {
        match &self.extents {
            Some(extents) => extents.look(block),
            None => crate::extents::Span { found: None, len: u64::MAX - block },
        }
    }

    fn flush(&mut self, tx: FileTx<'_>) {
        if let Some(extents) = &mut self.extents {
            self.has_moved |= extents.flush(tx.ino, tx.view);
        }
    }
}

/// Writes `bytes` to the data device, `within` bytes behind the start of the block `physical`.
/// Fills the rest of the blocks with zeros.
fn write_padded(tx: FileTx<'_>, physical: u64, within: u64, bytes: &[u8]) -> Result<(), Errno> {
    let start = physical * BLOCK_BYTES;
    let end = within + bytes.len() as u64;
    let padding = (end.next_multiple_of(BLOCK_BYTES) - end) as usize;
    if within == 0 && padding == 0 {
        return tx.journal.write_data(tx.view, start, bytes);
    }
    // Nearly all large writes are aligned to blocks and need no copy.
    let zeros = &ZEROS[..];
    let padded = [&zeros[..within as usize], bytes, &zeros[..padding]].concat();
    tx.journal.write_data(tx.view, start, &padded)
}

fn touched_blocks(range: Range<u64>) -> Range<u64> {
    range.start / BLOCK_BYTES..range.end.div_ceil(BLOCK_BYTES)
}

fn whole_blocks(range: Range<u64>) -> Range<u64> {
    let start = range.start.div_ceil(BLOCK_BYTES);
    start..(range.end / BLOCK_BYTES).max(start)
}

fn is_whole_blocks(range: &Range<u64>) -> bool {
    range.start.is_multiple_of(BLOCK_BYTES) && range.end.is_multiple_of(BLOCK_BYTES)
}

#[cfg(test)]
mod tests {
    use corewalk::{FileKind, FileSystem as _, Make, Name, Node};

    use super::*;
    use crate::store::{Store, StoreOptions};

    #[test]
    fn missing_blocks_are_those_that_are_not_there() {
        let path = std::env::temp_dir().join(format!("content-missing-{}", std::process::id()));
        let log_bytes = 64 << 10;
        let options = StoreOptions { commit_every: None, log_bytes, ..StoreOptions::default() };
        let store = Store::open(&path, &options).unwrap();
        let root = Node::detached(store.root().unwrap().ino, FileKind::Directory);
        let made = store.make(root, Name::new(b"file").unwrap(), &Make::new(0o644, 0, 0)).unwrap();
        let file = Node::detached(made.ino, FileKind::Regular);
        store.write(file, 2 * BLOCK_BYTES, &[1; 3 * BLOCK_BYTES as usize]).unwrap();
        store.fallocate(file, 8 * BLOCK_BYTES, 1, Fallocate::KEEP_SIZE).unwrap();
        let view = &*store.journal.view();
        let inode = store.table.get(made.ino, view).unwrap();
        let mut content = inode.content.write();
        let mut missing = |offset, len, how| {
            content.missing_blocks(store.file_tx(made.ino, view), offset, len, how).unwrap()
        };
        for how in [Fallocate::empty(), Fallocate::KEEP_SIZE, Fallocate::ZERO_RANGE] {
            assert_eq!(missing(0, 10 * BLOCK_BYTES, how), 6);
            assert_eq!(missing(2 * BLOCK_BYTES, 3 * BLOCK_BYTES, how), 0);
            assert_eq!(missing(4096, 1 << 40, how), (1 << 28) - 4);
            assert_eq!(missing(u64::MAX, 2, how), 0, "refused");
        }
        let punch = Fallocate::PUNCH_HOLE | Fallocate::KEEP_SIZE;
        for how in [punch, Fallocate::COLLAPSE_RANGE, Fallocate::INSERT_RANGE] {
            assert_eq!(missing(0, 1 << 40, how), 0);
        }
        drop(content);
        std::fs::remove_dir_all(&path).unwrap();
    }
}
