//! The pages of one file, by number.
//!
//! A file may be dense and large or sparse and huge, and both must be cheap. A map with an entry
//! per page makes large writes slow; a flat table makes sparse files expensive.
//!
//! In this module, a tree maps extents of 64 pages (256 KiB). An extent has a bitmap of present
//! pages and a dense list of them; the index of a page is the number of set bits before its bit. So
//! a file of one page costs that page and a few hundred bytes.
//!
//! # Mechanism
//! A page is absent, reserved or present. A reserved page has no memory and reads as zeros, but its
//! space is charged; fallocate(2) promises that. Present and reserved pages are *charged*. The
//! caller charges the budget before it makes a charged page (see `data`), and `charged` counts
//! these pages.
//!
//! # Invariants
//! - C.1: no page is both present and reserved.
//! - C.2: the list of an extent has one page per present bit, in ascending order.
//! - C.3: no extent is empty.
//! - C.4: `charged` is the number of present and reserved bits.
//!
//! # Limits
//! The map knows neither the size of the file nor a limit; the caller checks offsets. The lock of
//! the file's content protects the map.
//!
//! Source: Linux `Documentation/core-api/xarray.rst` (tree of extents); Bagwell, "Ideal Hash Trees"
//! (bitmap index).

use std::collections::BTreeMap;
use std::ops::Range;

/// Bytes of a page, the unit of allocation.
pub(super) const PAGE_BYTES: u64 = 4096;

const PAGE_LEN: usize = PAGE_BYTES as usize;
/// The number of pages in an extent. A word has one bit for each page.
const EXTENT_PAGES: u64 = 64;

type Page = [u8; PAGE_LEN];

/// # Invariants
/// C.1 to C.4.
#[derive(Default)]
pub(super) struct PageMap {
    extents: BTreeMap<u64, Extent>,
    charged: u64,
}

impl PageMap {
    pub(super) fn charged(&self) -> u64 {
        self.charged
    }

    pub(super) fn charged_in(&self, pages: Range<u64>) -> u64 {
        let extents = self.extents.range(extents_of(&pages));
        extents.map(|(&no, e)| count(e.charged() & slots_of(no, &pages))).sum()
    }

    pub(super) fn read(&self, offset: u64, buf: &mut [u8]) {
        let mut rest = buf;
        let mut offset = offset;
        while !rest.is_empty() {
            let (no, slot, within) = locate(offset);
            let bytes_left = (EXTENT_PAGES - slot) as usize * PAGE_LEN - within;
            let (part, after) = rest.split_at_mut(bytes_left.min(rest.len()));
            match self.extents.get(&no) {
                Some(extent) => extent.read(slot, within, part),
                None => part.fill(0),
            }
            offset += part.len() as u64;
            rest = after;
        }
    }

    /// Copies `bytes` to the pages at `offset`, and returns the number of copied bytes. `grants` is
    /// the number of pages that the caller has charged. Each page that was not charged before uses
    /// one of them. The copy ends when no grant is left.
    pub(super) fn write(&mut self, offset: u64, bytes: &[u8], grants: &mut u64) -> usize {
        let mut done = 0;
        while done < bytes.len() {
            let (no, slot, within) = locate(offset + done as u64);
            let bytes_left = (EXTENT_PAGES - slot) as usize * PAGE_LEN - within;
            let part = &bytes[done..bytes.len().min(done + bytes_left)];
            let before = *grants;
            let extent = self.extents.entry(no).or_default();
            let copied = extent.write(slot, within, part, grants);
            if extent.charged() == 0 {
                self.extents.remove(&no);
            }
            self.charged += before - *grants;
            done += copied;
            if copied < part.len() {
                break;
            }
        }
        done
    }

    pub(super) fn zero_within_page(&mut self, offset: u64, len: u64) {
        let (no, slot, within) = locate(offset);
        if let Some(page) = self.extents.get_mut(&no).and_then(|e| e.page_mut(slot)) {
            page[within..within + len as usize].fill(0);
        }
    }

    pub(super) fn remove(&mut self, pages: Range<u64>) -> u64 {
        let mut removed = 0;
        let Range { mut start, end } = extents_of(&pages);
        while start < end {
            let Some((&no, extent)) = self.extents.range_mut(start..end).next() else { break };
            removed += extent.remove(slots_of(no, &pages));
            if extent.charged() == 0 {
                self.extents.remove(&no);
            }
            start = no + 1;
        }
        self.charged -= removed;
        removed
    }

    /// The caller has charged them.
    pub(super) fn reserve(&mut self, pages: Range<u64>) {
        for no in extents_of(&pages) {
            let extent = self.extents.entry(no).or_default();
            let new = slots_of(no, &pages) & !extent.charged();
            extent.reserved |= new;
            self.charged += count(new);
        }
    }

    /// Moves all pages from page `from` on, so that page `from` becomes page `to`. The caller has
    /// removed the pages at the new positions.
    pub(super) fn shift(&mut self, from: u64, to: u64) {
        let mut moving = Vec::new();
        let tail: Vec<u64> = self.extents.range(from / EXTENT_PAGES..).map(|(&no, _)| no).collect();
        for no in tail {
            let Some(mut extent) = self.extents.remove(&no) else { continue };
            let slots = slots_of(no, &(from..u64::MAX));
            extent.take(slots, |slot, page| moving.push((no * EXTENT_PAGES + slot, page)));
            if extent.charged() != 0 {
                self.extents.insert(no, extent);
            }
        }
        for (number, page) in moving {
            let number = number - from + to;
            let extent = self.extents.entry(number / EXTENT_PAGES).or_default();
            extent.put(number % EXTENT_PAGES, page);
        }
    }

    pub(super) fn next_present(&self, page: u64) -> Option<u64> {
        self.extents.range(page / EXTENT_PAGES..).find_map(|(&no, extent)| {
            let found = extent.present & slots_of(no, &(page..u64::MAX));
            (found != 0).then(|| no * EXTENT_PAGES + u64::from(found.trailing_zeros()))
        })
    }

    pub(super) fn next_not_present(&self, page: u64) -> u64 {
        let mut page = page;
        for (&no, extent) in self.extents.range(page / EXTENT_PAGES..) {
            if no != page / EXTENT_PAGES {
                break;
            }
            let found = !extent.present & slots_of(no, &(page..u64::MAX));
            if found != 0 {
                return no * EXTENT_PAGES + u64::from(found.trailing_zeros());
            }
            page = (no + 1) * EXTENT_PAGES;
        }
        page
    }
}

/// # Invariants
/// C.1, C.2.
#[derive(Default)]
struct Extent {
    present: u64,
    reserved: u64,
    pages: Vec<Box<Page>>,
}

impl Extent {
    fn charged(&self) -> u64 {
        self.present | self.reserved
    }

    fn index(&self, slot: u64) -> usize {
        count(self.present & ((1 << slot) - 1)) as usize
    }

    fn page(&self, slot: u64) -> Option<&Page> {
        (self.present >> slot & 1 == 1).then(|| &*self.pages[self.index(slot)])
    }

    fn page_mut(&mut self, slot: u64) -> Option<&mut Page> {
        let index = self.index(slot);
        (self.present >> slot & 1 == 1).then(|| &mut *self.pages[index])
    }

    /// Adds a page at `slot`, which has no page and no reserved space yet. If `page` is None, marks
    /// the slot as reserved (charged, but without memory).
    fn put(&mut self, slot: u64, page: Option<Box<Page>>) {
        match page {
            Some(page) => {
                self.pages.insert(self.index(slot), page);
                self.present |= 1 << slot;
            }
            None => self.reserved |= 1 << slot,
        }
    }

    fn read(&self, slot: u64, within: usize, buf: &mut [u8]) {
        let (mut slot, mut within, mut rest) = (slot, within, buf);
        while !rest.is_empty() {
            let (part, after) = rest.split_at_mut(rest.len().min(PAGE_LEN - within));
            match self.page(slot) {
                Some(page) => part.copy_from_slice(&page[within..within + part.len()]),
                None => part.fill(0),
            }
            (slot, within, rest) = (slot + 1, 0, after);
        }
    }

    fn write(&mut self, slot: u64, within: usize, bytes: &[u8], grants: &mut u64) -> usize {
        let (mut slot, mut within, mut done) = (slot, within, 0);
        while done < bytes.len() {
            let part = &bytes[done..bytes.len().min(done + PAGE_LEN - within)];
            if let Some(page) = self.page_mut(slot) {
                page[within..within + part.len()].copy_from_slice(part);
            } else {
                if self.reserved >> slot & 1 == 1 {
                    self.reserved &= !(1 << slot);
                } else if *grants > 0 {
                    *grants -= 1;
                } else {
                    break;
                }
                self.put(slot, Some(new_page(within, part)));
            }
            done += part.len();
            (slot, within) = (slot + 1, 0);
        }
        done
    }

    fn remove(&mut self, slots: u64) -> u64 {
        let removed = count(self.charged() & slots);
        self.take(slots, |_, _| ());
        removed
    }

    /// Passes each charged page to `sink`, in ascending order: a reserved page, which has no
    /// memory, as None.
    fn take(&mut self, slots: u64, mut sink: impl FnMut(u64, Option<Box<Page>>)) {
        let (present, charged) = (self.present, self.charged());
        let mut kept = Vec::new();
        let mut pages = std::mem::take(&mut self.pages).into_iter();
        for slot in (0..EXTENT_PAGES).filter(|slot| charged >> slot & 1 == 1) {
            // `pages` has one page per bit of `present` (invariant C.2). So a charged page that is
            // not present is a reserved one.
            let page = if present >> slot & 1 == 1 { pages.next() } else { None };
            match (slots >> slot & 1 == 1, page) {
                (true, page) => sink(slot, page),
                (false, Some(page)) => kept.push(page),
                (false, None) => {}
            }
        }
        self.pages = kept;
        self.present &= !slots;
        self.reserved &= !slots;
    }
}

fn new_page(within: usize, bytes: &[u8]) -> Box<Page> {
    let page: Box<[u8]> = if bytes.len() == PAGE_LEN {
        bytes.into()
    } else {
        // Let the allocator zero the page, because the allocator often has memory that is already
        // zero.
        let mut page = vec![0; PAGE_LEN].into_boxed_slice();
        page[within..within + bytes.len()].copy_from_slice(bytes);
        page
    };
    page.try_into().unwrap_or_else(|_| unreachable!("both are one page long"))
}

fn locate(offset: u64) -> (u64, u64, usize) {
    let page = offset / PAGE_BYTES;
    (page / EXTENT_PAGES, page % EXTENT_PAGES, (offset % PAGE_BYTES) as usize)
}

fn extents_of(pages: &Range<u64>) -> Range<u64> {
    if pages.is_empty() {
        return 0..0;
    }
    pages.start / EXTENT_PAGES..(pages.end - 1) / EXTENT_PAGES + 1
}

fn slots_of(no: u64, pages: &Range<u64>) -> u64 {
    let base = no * EXTENT_PAGES;
    let start = pages.start.saturating_sub(base).min(EXTENT_PAGES);
    let end = pages.end.saturating_sub(base).min(EXTENT_PAGES);
    let below = |slot: u64| 1u64.checked_shl(slot as u32).map_or(u64::MAX, |bit| bit - 1);
    below(end) & !below(start)
}

fn count(bits: u64) -> u64 {
    u64::from(bits.count_ones())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(map: &PageMap) {
        for extent in map.extents.values() {
            assert_eq!(extent.present & extent.reserved, 0, "C.1");
            assert_eq!(extent.pages.len() as u64, count(extent.present), "C.2");
            assert_ne!(extent.charged(), 0, "C.3");
        }
        let charged: u64 = map.extents.values().map(|e| count(e.charged())).sum();
        assert_eq!(charged, map.charged, "C.4");
    }

    fn write_page(map: &mut PageMap, page: u64, byte: u8) {
        let mut grants = 1;
        assert_eq!(map.write(page * PAGE_BYTES, &[byte], &mut grants), 1);
        check(map);
    }

    #[test]
    fn slots_of_range_are_those_of_the_extent() {
        assert_eq!(slots_of(0, &(0..64)), u64::MAX);
        assert_eq!(slots_of(0, &(1..3)), 0b110);
        assert_eq!(slots_of(1, &(1..66)), 0b11);
        assert_eq!(slots_of(1, &(127..u64::MAX)), 1 << 63);
        assert_eq!(slots_of(2, &(0..128)), 0);
        assert_eq!(extents_of(&(63..65)), 0..2);
        assert!(extents_of(&(64..64)).is_empty());
    }

    #[test]
    fn write_without_grants_ends_at_the_first_absent_page() {
        let mut map = PageMap::default();
        let bytes = vec![7; 70 * PAGE_LEN];
        let mut grants = 66;
        map.reserve(1..3);
        assert_eq!(map.write(1, &bytes, &mut grants), 68 * PAGE_LEN - 1);
        assert_eq!((grants, map.charged()), (0, 68));
        check(&map);
        let mut nothing = 0;
        assert_eq!(map.write(1 << 40, &bytes, &mut nothing), 0);
        check(&map);
    }

    #[test]
    fn remove_frees_exactly_the_range() {
        let mut map = PageMap::default();
        for page in [0, 1, 63, 64, 65, 500] {
            write_page(&mut map, page, page as u8 + 1);
        }
        map.reserve(62..67);
        assert_eq!(map.charged(), 8);
        assert_eq!(map.remove(1..65), 4);
        check(&map);
        assert_eq!(map.charged_in(0..u64::MAX / 2), 4);
        assert_eq!(map.remove(3..3), 0);
        let mut byte = [0];
        map.read(65 * PAGE_BYTES, &mut byte);
        assert_eq!(byte, [66]);
        assert_eq!(map.remove(0..u64::MAX / PAGE_BYTES), 4);
        assert!(map.extents.is_empty());
    }

    #[test]
    fn shift_keeps_pages_and_reservations() {
        for (from, to) in [(60, 70), (60, 3), (64, 128), (128, 64), (1, 100_000)] {
            let mut map = PageMap::default();
            write_page(&mut map, 0, 99);
            for page in from..from + 130 {
                write_page(&mut map, page, (page - from) as u8);
            }
            map.reserve(from + 130..from + 133);
            map.shift(from, to);
            check(&map);
            assert_eq!(map.charged(), 134);
            for page in to..to + 133 {
                let mut byte = [7];
                map.read(page * PAGE_BYTES, &mut byte);
                assert_eq!(byte, [if page < to + 130 { (page - to) as u8 } else { 0 }]);
            }
            assert_eq!(map.next_not_present(to), to + 130);
            assert_eq!(map.next_present(1), Some(to));
        }
    }
}
