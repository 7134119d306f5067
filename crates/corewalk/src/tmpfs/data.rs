//! The content of a regular file: its size and its bytes.
//!
//! This module reads, writes, truncates and moves the bytes of a file, in pages of the module
//! `pages`. The budget is charged in whole pages, as in the kernel's tmpfs: a file of one byte
//! costs 4096.
//!
//! # Invariants
//! - D.1: bytes behind the size are zeros in every present page. So a file that grows shows zeros,
//!   never its truncated content.
//! - D.2: no page behind the size is present. Reserved pages may be behind the size
//!   (`FALLOC_FL_KEEP_SIZE`).
//! - D.3: the budget has been charged for every page that the page map counts as charged.
//! - D.4: the size is at most [`SIZE_MAX`].
//! - D.5: after `discard` no page is charged, even if other threads still hold the content.
//!
//! # Errors
//! Each call checks its arguments and charges the budget before it changes anything. Only a write
//! may do part of its work, as write(2) says: it fails with `ENOSPC` only if not even one byte can
//! be written.
//!
//! # Limits
//! Ranges that are shifted must be whole pages (`EINVAL`), as fallocate(2) allows. One call
//! reserves at most 1 TiB. A reservation uses no memory, so without a size limit nothing else
//! bounds it.
//!
//! Source: write(2), truncate(2), fallocate(2), lseek(2).

use std::ops::Range;

use corewalk_base::Budget;

use super::pages::{PAGE_BYTES, PageMap};
use crate::Errno;
use crate::fs::{Fallocate, Seek};

/// The largest size of a file in bytes: the maximum of `off_t`.
const SIZE_MAX: u64 = i64::MAX as u64;
/// Maximum number of pages that one fallocate(2) reserves: 1 TiB.
const RESERVE_PAGES_MAX: u64 = (1 << 40) / PAGE_BYTES;

/// The content of a regular file. All fields are protected by the lock of the content
/// (`inode::File::content`).
///
/// # Invariants
/// Invariants D.1 to D.4 of the module documentation.
#[derive(Default)]
pub(super) struct FileContent {
    size: u64,
    /// The pages of the file. None until the first page, because many files are empty.
    map: Option<Box<PageMap>>,
    is_discarded: bool,
}

impl FileContent {
    pub(super) fn size(&self) -> u64 {
        self.size
    }

    pub(super) fn charged_pages(&self) -> u64 {
        self.map.as_ref().map_or(0, |map| map.charged())
    }

    /// Reads at `offset` into `buf` and returns the number of bytes. The number is smaller than the
    /// length of `buf` only at the end of the file.
    pub(super) fn read(&self, offset: u64, buf: &mut [u8]) -> usize {
        let len = self.size.saturating_sub(offset).min(buf.len() as u64) as usize;
        match &self.map {
            Some(map) => map.read(offset, &mut buf[..len]),
            None => buf[..len].fill(0),
        }
        len
    }

    /// Returns the offset of the next data or hole, at `offset` or after it. The end of the file
    /// counts as a hole. `ENXIO` if `offset` is at or behind the end, or no data follows for
    /// `Seek::Data`.
    pub(super) fn seek(&self, offset: u64, what: Seek) -> Result<u64, Errno> {
        if offset >= self.size {
            return Err(Errno::NXIO);
        }
        let page = offset / PAGE_BYTES;
        let found = match (what, &self.map) {
            (Seek::Hole, None) => Some(page),
            (Seek::Hole, Some(map)) => Some(map.next_not_present(page)),
            (Seek::Data, None) => None,
            (Seek::Data, Some(map)) => map.next_present(page),
        };
        let found = found.ok_or(Errno::NXIO)?;
        Ok((found * PAGE_BYTES).clamp(offset, self.size))
    }

    /// Writes `bytes` at `offset` and returns the number of bytes written. The number is smaller
    /// than the length of `bytes` if space runs out or the largest size is reached.
    ///
    /// # Errors
    /// `EFBIG` if `offset` is at or behind the largest size; `ENOSPC` if there is no space for the
    /// first byte.
    pub(super) fn write(
        &mut self,
        offset: u64,
        bytes: &[u8],
        space: &Budget,
    ) -> Result<usize, Errno> {
        if bytes.is_empty() {
            return Ok(0);
        }
        let room = SIZE_MAX.checked_sub(offset).filter(|&room| room > 0).ok_or(Errno::FBIG)?;
        let bytes = &bytes[..(bytes.len() as u64).min(room) as usize];
        let end = offset + bytes.len() as u64;
        let pages = offset / PAGE_BYTES..end.div_ceil(PAGE_BYTES);
        let mut grants = space.take_up_to(self.missing_in(&pages), PAGE_BYTES);
        let done = self.map_mut().write(offset, bytes, &mut grants);
        debug_assert_eq!(grants, 0, "a write with grants left ended early");
        match done {
            0 => Err(Errno::NOSPC),
            _ => {
                self.size = self.size.max(offset + done as u64);
                Ok(done)
            }
        }
    }

    pub(super) fn check_size(size: u64) -> Result<(), Errno> {
        if size > SIZE_MAX { Err(Errno::FBIG) } else { Ok(()) }
    }

    /// Sets the size of the file. A larger size adds a hole, and a smaller one removes bytes.
    ///
    /// # Errors
    /// The errors of [`FileContent::check_size`].
    pub(super) fn set_size(&mut self, size: u64, space: &Budget) -> Result<(), Errno> {
        FileContent::check_size(size)?;
        if size <= self.size {
            self.remove(size.div_ceil(PAGE_BYTES)..u64::MAX, space);
            self.zero_within_page(size..size.next_multiple_of(PAGE_BYTES));
        }
        self.size = size;
        Ok(())
    }

    /// Allocates or frees pages of the file, as fallocate(2) does.
    ///
    /// # Errors
    /// - `EINVAL` for an empty range. `EFBIG` for a range behind the largest size.
    /// - `EINVAL` for a collapse or an insert with `KEEP_SIZE`, or with a range that is not whole
    ///   pages.
    /// - `EINVAL` if a collapse reaches the end of the file, or an insert does not begin before the
    ///   end.
    /// - `EOPNOTSUPP` for flags that exclude each other. `ENOSPC`.
    pub(super) fn allocate(
        &mut self,
        offset: u64,
        len: u64,
        how: Fallocate,
        space: &Budget,
    ) -> Result<(), Errno> {
        if len == 0 {
            return Err(Errno::INVAL);
        }
        let end = offset.checked_add(len).filter(|&end| end <= SIZE_MAX).ok_or(Errno::FBIG)?;
        let is_size_kept = how.contains(Fallocate::KEEP_SIZE);
        match how - Fallocate::KEEP_SIZE {
            Fallocate::PUNCH_HOLE if is_size_kept => {
                self.zero_edges(offset..end);
                self.remove(whole_pages(offset..end), space);
            }
            Fallocate::ZERO_RANGE => {
                self.take_missing(touched_pages(offset..end), space)?;
                self.zero_edges(offset..end);
                // The range must read as zeros and stay allocated. So remove its pages and reserve
                // them. They stay charged meanwhile, so no other writer takes their space.
                self.map_mut().remove(whole_pages(offset..end));
                self.map_mut().reserve(touched_pages(offset..end));
                self.extend_to(end, is_size_kept);
            }
            Fallocate::COLLAPSE_RANGE if !is_size_kept => self.collapse(offset..end, space)?,
            Fallocate::INSERT_RANGE if !is_size_kept => self.insert(offset..end)?,
            flags if flags.is_empty() => {
                self.take_missing(touched_pages(offset..end), space)?;
                self.map_mut().reserve(touched_pages(offset..end));
                self.extend_to(end, is_size_kept);
            }
            Fallocate::COLLAPSE_RANGE | Fallocate::INSERT_RANGE => return Err(Errno::INVAL),
            _ => return Err(Errno::OPNOTSUPP),
        }
        Ok(())
    }

    pub(super) fn discard(&mut self, space: &Budget) {
        self.remove(0..u64::MAX, space);
        self.size = 0;
        self.is_discarded = true;
    }

    /// Checks that the content was not discarded. `ESTALE` after `discard`, because no page of a
    /// discarded content may be charged (invariant D.5).
    pub(super) fn check_kept(&self) -> Result<(), Errno> {
        if self.is_discarded { Err(Errno::STALE) } else { Ok(()) }
    }

    fn collapse(&mut self, range: Range<u64>, space: &Budget) -> Result<(), Errno> {
        if !is_whole_pages(&range) || range.end >= self.size {
            return Err(Errno::INVAL);
        }
        let pages = whole_pages(range.clone());
        self.remove(pages.clone(), space);
        if let Some(map) = &mut self.map {
            map.shift(pages.end, pages.start);
        }
        self.size -= range.end - range.start;
        Ok(())
    }

    fn insert(&mut self, range: Range<u64>) -> Result<(), Errno> {
        if !is_whole_pages(&range) || range.start >= self.size {
            return Err(Errno::INVAL);
        }
        let size = self.size + (range.end - range.start);
        if size > SIZE_MAX {
            return Err(Errno::FBIG);
        }
        if let Some(map) = &mut self.map {
            let pages = whole_pages(range);
            map.shift(pages.start, pages.end);
        }
        self.size = size;
        Ok(())
    }

    fn map_mut(&mut self) -> &mut PageMap {
        self.map.get_or_insert_default()
    }

    fn missing_in(&self, pages: &Range<u64>) -> u64 {
        let charged = self.map.as_ref().map_or(0, |map| map.charged_in(pages.clone()));
        pages.end - pages.start - charged
    }

    fn take_missing(&self, pages: Range<u64>, space: &Budget) -> Result<(), Errno> {
        match self.missing_in(&pages) {
            0..=RESERVE_PAGES_MAX => {}
            _ => return Err(Errno::NOSPC),
        }
        space.take(self.missing_in(&pages) * PAGE_BYTES)
    }

    fn remove(&mut self, pages: Range<u64>, space: &Budget) {
        if let Some(map) = &mut self.map {
            space.give_back(map.remove(pages) * PAGE_BYTES);
            if map.charged() == 0 {
                self.map = None;
            }
        }
    }

    fn zero_edges(&mut self, range: Range<u64>) {
        if range.start / PAGE_BYTES == range.end / PAGE_BYTES {
            return self.zero_within_page(range);
        }
        self.zero_within_page(range.start..range.start.next_multiple_of(PAGE_BYTES));
        self.zero_within_page(range.end - range.end % PAGE_BYTES..range.end);
    }

    fn zero_within_page(&mut self, range: Range<u64>) {
        if let Some(map) = &mut self.map
            && !range.is_empty()
        {
            map.zero_within_page(range.start, range.end - range.start);
        }
    }

    fn extend_to(&mut self, end: u64, is_size_kept: bool) {
        if !is_size_kept {
            self.size = self.size.max(end);
        }
    }
}

fn touched_pages(range: Range<u64>) -> Range<u64> {
    range.start / PAGE_BYTES..range.end.div_ceil(PAGE_BYTES)
}

fn whole_pages(range: Range<u64>) -> Range<u64> {
    let start = range.start.div_ceil(PAGE_BYTES);
    start..(range.end / PAGE_BYTES).max(start)
}

fn is_whole_pages(range: &Range<u64>) -> bool {
    range.start.is_multiple_of(PAGE_BYTES) && range.end.is_multiple_of(PAGE_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limited(pages: u64) -> Budget {
        Budget::new(Some(pages * PAGE_BYTES), 0)
    }

    #[test]
    fn write_beyond_the_budget_is_short_then_enospc() {
        let (space, mut file) = (limited(3), FileContent::default());
        let bytes = vec![1; 5 * 4096];
        assert_eq!(file.write(100, &bytes, &space), Ok(3 * 4096 - 100));
        assert_eq!(file.size(), 3 * 4096);
        assert_eq!(file.write(3 * 4096, b"x", &space), Err(Errno::NOSPC));
        assert_eq!(file.write(0, &bytes, &space), Ok(3 * 4096), "a write that needs no new page");
        file.set_size(4097, &space).unwrap();
        assert_eq!(space.used(), 2 * 4096);
        assert_eq!(file.check_kept(), Ok(()));
        file.discard(&space);
        assert_eq!((space.used(), file.charged_pages()), (0, 0));
        assert_eq!(file.check_kept(), Err(Errno::STALE));
    }

    #[test]
    fn sizes_beyond_the_largest_are_efbig() {
        let (space, mut file) = (Budget::new(None, 0), FileContent::default());
        assert_eq!(file.write(SIZE_MAX, b"x", &space), Err(Errno::FBIG));
        assert_eq!(file.write(u64::MAX, b"x", &space), Err(Errno::FBIG));
        assert_eq!(file.write(SIZE_MAX - 2, b"xyz", &space), Ok(2));
        assert_eq!(file.set_size(SIZE_MAX + 1, &space), Err(Errno::FBIG));
        assert_eq!(file.allocate(1, SIZE_MAX, Fallocate::empty(), &space), Err(Errno::FBIG));
        assert_eq!(file.allocate(0, SIZE_MAX, Fallocate::empty(), &space), Err(Errno::NOSPC));
        assert_eq!(file.allocate(0, 4096, Fallocate::INSERT_RANGE, &space), Err(Errno::FBIG));
        let mut byte = [0];
        assert_eq!((file.read(SIZE_MAX - 1, &mut byte), byte), (1, *b"y"));
        assert_eq!(file.read(u64::MAX, &mut byte), 0);
    }

    #[test]
    fn allocate_without_room_changes_nothing() {
        let (space, mut file) = (limited(4), FileContent::default());
        file.write(0, b"abc", &space).unwrap();
        for how in [Fallocate::empty(), Fallocate::KEEP_SIZE, Fallocate::ZERO_RANGE] {
            assert_eq!(file.allocate(1, 5 * 4096, how, &space), Err(Errno::NOSPC));
            assert_eq!((file.size(), file.charged_pages(), space.used()), (3, 1, 4096));
        }
        let mut buf = [0; 3];
        file.read(0, &mut buf);
        assert_eq!(&buf, b"abc");
    }

    #[test]
    fn reserved_pages_are_holes_with_guaranteed_space() {
        let (space, mut file) = (limited(4), FileContent::default());
        file.allocate(0, 4 * 4096, Fallocate::KEEP_SIZE, &space).unwrap();
        assert_eq!((file.size(), file.charged_pages(), space.used()), (0, 4, 4 * 4096));
        let mut other = FileContent::default();
        assert_eq!(other.write(0, b"x", &space), Err(Errno::NOSPC));
        assert_eq!(file.write(3 * 4096, b"x", &space), Ok(1));
        assert_eq!(file.seek(0, Seek::Hole), Ok(0));
        assert_eq!(file.seek(0, Seek::Data), Ok(3 * 4096));
        assert_eq!(file.seek(3 * 4096, Seek::Hole), Ok(3 * 4096 + 1));
    }

    #[test]
    fn allocate_with_bad_arguments_fails() {
        let (space, mut file) = (Budget::new(None, 0), FileContent::default());
        file.write(0, &[1; 3 * 4096], &space).unwrap();
        use Fallocate as F;
        for (offset, len, how, errno) in [
            (0, 0, F::empty(), Errno::INVAL),
            (0, 4096, F::PUNCH_HOLE, Errno::OPNOTSUPP),
            (0, 4096, F::PUNCH_HOLE | F::ZERO_RANGE | F::KEEP_SIZE, Errno::OPNOTSUPP),
            (0, 4096, F::COLLAPSE_RANGE | F::KEEP_SIZE, Errno::INVAL),
            (0, 4096, F::INSERT_RANGE | F::KEEP_SIZE, Errno::INVAL),
            (1, 4096, F::COLLAPSE_RANGE, Errno::INVAL),
            (0, 4095, F::COLLAPSE_RANGE, Errno::INVAL),
            (4096, 8192, F::COLLAPSE_RANGE, Errno::INVAL),
            (1, 4096, F::INSERT_RANGE, Errno::INVAL),
            (3 * 4096, 4096, F::INSERT_RANGE, Errno::INVAL),
            (0, 4096, Fallocate::from_bits_retain(0x40), Errno::OPNOTSUPP),
        ] {
            let got = file.allocate(offset, len, how, &space);
            assert_eq!(got, Err(errno), "{offset} {len} {how:?}");
            assert_eq!((file.size(), file.charged_pages()), (3 * 4096, 3));
        }
    }

    #[test]
    fn truncated_and_grown_file_reads_zeros() {
        let (space, mut file) = (Budget::new(None, 0), FileContent::default());
        file.write(0, &[1; 5000], &space).unwrap();
        file.set_size(4100, &space).unwrap();
        file.set_size(10, &space).unwrap();
        file.set_size(9000, &space).unwrap();
        let mut buf = vec![9; 9000];
        assert_eq!(file.read(0, &mut buf), 9000);
        assert!(buf[..10].iter().all(|&b| b == 1) && buf[10..].iter().all(|&b| b == 0));
        assert_eq!(file.charged_pages(), 1);
    }
}
