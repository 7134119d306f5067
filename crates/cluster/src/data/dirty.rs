//! Bytes that were written and are not in an object yet.
//!
//! A file is divided into blocks, each as long as the longest object. The dirty bytes lie in
//! extents. No extent crosses a border of blocks, so each extent becomes one object. Extents do not
//! overlap, and do not touch inside a block.

use std::collections::BTreeMap;
use std::ops::Range;

use bytes::Bytes;

/// The longest object, in bytes. Blocks of this length divide a file.
pub(crate) const OBJECT_BYTES: u64 = 4 << 20;

#[derive(Debug, Default)]
pub(crate) struct Dirty {
    extents: BTreeMap<u64, Vec<u8>>,
    bytes: usize,
}

impl Dirty {
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(crate) fn extents(&self) -> usize {
        self.extents.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.extents.is_empty()
    }

    pub(crate) fn write(&mut self, mut offset: u64, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let room = OBJECT_BYTES - offset % OBJECT_BYTES;
            let (now, later) = bytes.split_at(bytes.len().min(room as usize));
            self.write_in_block(offset, now);
            offset += now.len() as u64;
            bytes = later;
        }
    }

    fn write_in_block(&mut self, offset: u64, bytes: &[u8]) {
        let (end, block) = (offset + bytes.len() as u64, offset / OBJECT_BYTES * OBJECT_BYTES);
        let touched = self.extents.range(block..=end).filter(|(start, extent)| {
            let is_in_block = **start < block + OBJECT_BYTES;
            is_in_block && **start + extent.len() as u64 >= offset
        });
        let touched: Vec<u64> = touched.map(|(start, _)| *start).collect();
        let (first, mut extent) = match touched.first() {
            Some(first) if *first <= offset => {
                (*first, self.extents.remove(first).unwrap_or_default())
            }
            _ => (offset, Vec::new()),
        };
        self.bytes -= extent.len();
        let at = (offset - first) as usize;
        if extent.len() < at + bytes.len() {
            extent.resize(at + bytes.len(), 0);
        }
        extent[at..at + bytes.len()].copy_from_slice(bytes);
        for start in touched {
            let Some(other) = self.extents.remove(&start) else { continue };
            self.bytes -= other.len();
            let known = extent.len() - (start - first) as usize;
            extent.extend_from_slice(other.get(known..).unwrap_or_default());
        }
        self.bytes += extent.len();
        self.extents.insert(first, extent);
    }

    /// Copies the dirty bytes of a part of the file over the bytes in `buf`. The first byte of
    /// `buf` is the byte `offset` of the file.
    pub(crate) fn read(&self, offset: u64, buf: &mut [u8]) {
        let end = offset + buf.len() as u64;
        for (start, extent) in self.in_range(offset..end) {
            let from = start.max(offset);
            let to = (start + extent.len() as u64).min(end);
            let part = &extent[(from - start) as usize..(to - start) as usize];
            buf[(from - offset) as usize..(to - offset) as usize].copy_from_slice(part);
        }
    }

    /// Returns the extents that overlap a range.
    fn in_range(&self, range: Range<u64>) -> impl Iterator<Item = (u64, &Vec<u8>)> {
        let first = range.start.saturating_sub(OBJECT_BYTES);
        self.extents
            .range(first..range.end)
            .map(|(start, extent)| (*start, extent))
            .filter(move |(start, extent)| start + extent.len() as u64 > range.start)
    }

    /// Removes all bytes at `size` and behind it.
    pub(crate) fn cut(&mut self, size: u64) {
        self.extents.split_off(&size);
        if let Some(mut last) = self.extents.last_entry() {
            let keep = size - last.key();
            last.get_mut().truncate(keep as usize);
        }
        self.bytes = self.extents.values().map(Vec::len).sum();
    }

    pub(crate) fn take(&mut self) -> BTreeMap<u64, Bytes> {
        self.bytes = 0;
        let extents = std::mem::take(&mut self.extents);
        extents.into_iter().map(|(start, extent)| (start, extent.into())).collect()
    }

    /// Undoes [`Dirty::take`] after a failed flush. Nothing may be written between the two calls.
    pub(crate) fn put_back(&mut self, extents: BTreeMap<u64, Bytes>) {
        self.bytes = extents.values().map(Bytes::len).sum();
        self.extents = extents.into_iter().map(|(start, extent)| (start, extent.into())).collect();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use corewalk_testkit::rng::{Rng, Seed};

    /// Compares random writes around the border of a block with an array.
    #[test]
    fn random_writes_are_read_back() {
        let mut rng = Rng::new(Seed::parse("0x3").unwrap());
        let base = OBJECT_BYTES - 50;
        for _ in 0..300 {
            let (mut dirty, mut model) = (Dirty::default(), [0_u8; 120]);
            let mut is_dirty = [false; 120];
            for round in 1..10_u8 {
                let from = rng.below(120) as usize;
                let to = from + rng.below(121 - from as u64) as usize;
                dirty.write(base + from as u64, &vec![round; to - from]);
                model[from..to].fill(round);
                is_dirty[from..to].fill(true);
            }
            let mut found = [0; 120];
            dirty.read(base, &mut found);
            assert_eq!(found, model);
            let end = rng.below(121) as usize;
            dirty.cut(base + end as u64);
            is_dirty[end..].fill(false);
            assert_eq!(dirty.bytes(), is_dirty.iter().filter(|dirty| **dirty).count());
            let extents = dirty.take();
            for (start, extent) in &extents {
                let end = start + extent.len() as u64;
                assert_eq!(start / OBJECT_BYTES, (end - 1) / OBJECT_BYTES);
                assert!(!extents.contains_key(&end) || end.is_multiple_of(OBJECT_BYTES));
            }
        }
    }
}
