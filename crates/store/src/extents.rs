//! The extents of one file: the runs of blocks on the data device that hold its content.
//!
//! An [`ExtentMap`] finds the extent of a logical block (a block of the file). A logical block
//! without an extent is a hole. A block in an unwritten extent also reads as zeros, but is
//! allocated on the device.
//!
//! The map notes the first logical block of each extent that is changed. [`ExtentMap::flush`] puts
//! the records of these extents into the running transaction.
//!
//! # Invariants
//! - E.1: no extent is empty, and extents do not overlap. Extents that are adjacent both in the
//!   file and on the device are merged if both are written or both unwritten.
//! - E.2: `blocks` is the sum of the lengths of all extents.
//! - E.3: after `flush` the records of the file match the map.
//!
//! Source: Linux `fs/ext4/extents.c`.

use std::collections::BTreeMap;
use std::ops::Range;

use corewalk::Errno;

use crate::alloc::Run;
use crate::journal::View;
use crate::record::{Extent, Key, Kind};

#[derive(Debug, Default)]
pub(crate) struct ExtentMap {
    map: BTreeMap<u64, Extent>,
    blocks: u64,
    touched: Vec<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) found: Option<(u64, bool)>,
    pub(crate) len: u64,
}

impl ExtentMap {
    /// Reads the extents of the file `ino` from their records. `EIO` if the records are invalid.
    pub(crate) fn load(ino: u64, view: &View) -> Result<ExtentMap, Errno> {
        let (mut map, mut records, mut from) = (ExtentMap::default(), Vec::new(), Some(0));
        while let Some(next) = from {
            from = view.collect_from(Kind::Extent, ino, next, &mut records)?;
            for (logical, value) in records.drain(..) {
                let extent = Extent::decode(&value)?;
                let last = map.map.last_key_value().map_or(0, |(at, last)| at + last.len);
                extent.logical_end(logical)?;
                if logical < last {
                    return Err(Errno::IO);
                }
                map.blocks += extent.len;
                map.map.insert(logical, extent);
            }
        }
        Ok(map)
    }

    /// Puts the records of all extents that were changed since the last call into the running
    /// transaction. Returns true if there were any.
    pub(crate) fn flush(&mut self, ino: u64, view: &View) -> bool {
        let has_changed = !self.touched.is_empty();
        self.touched.sort_unstable();
        self.touched.dedup();
        for logical in self.touched.drain(..) {
            let key = Key::at(Kind::Extent, ino, logical);
            match self.map.get(&logical) {
                Some(extent) => view.put(key, &extent.encode()),
                None => view.remove(key),
            }
        }
        has_changed
    }

    pub(crate) fn blocks(&self) -> u64 {
        self.blocks
    }

    pub(crate) fn look(&self, block: u64) -> Span {
        if let Some((&at, extent)) = self.map.range(..=block).next_back()
            && block < at + extent.len
        {
            let skip = block - at;
            let found = Some((extent.physical + skip, extent.is_written));
            return Span { found, len: extent.len - skip };
        }
        let next = self.map.range(block..).next().map_or(u64::MAX, |(&at, _)| at);
        Span { found: None, len: next - block }
    }

    pub(crate) fn allocated_in(&self, blocks: Range<u64>) -> u64 {
        let (mut at, mut count) = (blocks.start, 0);
        while at < blocks.end {
            let span = self.look(at);
            let len = span.len.min(blocks.end - at);
            count += if span.found.is_some() { len } else { 0 };
            at += len;
        }
        count
    }

    pub(crate) fn next(&self, mut block: u64, is_written: bool) -> Option<u64> {
        loop {
            let span = self.look(block);
            if span.found.is_some_and(|(_, written)| written) == is_written {
                return Some(block);
            }
            block = block.checked_add(span.len).filter(|&next| next < u64::MAX)?;
        }
    }

    pub(crate) fn insert(&mut self, logical: u64, extent: Extent) {
        debug_assert!(extent.len > 0 && self.look(logical).len >= extent.len);
        debug_assert_eq!(self.look(logical).found, None);
        self.blocks += extent.len;
        self.join(logical, extent);
    }

    pub(crate) fn remove(&mut self, blocks: Range<u64>) -> Vec<Run> {
        let keys = self.cut_out(blocks);
        let mut runs = Vec::with_capacity(keys.len());
        for key in keys {
            if let Some(extent) = self.map.remove(&key) {
                self.touched.push(key);
                self.blocks -= extent.len;
                runs.push(Run { start: extent.physical, len: extent.len });
            }
        }
        runs
    }

    pub(crate) fn mark(&mut self, blocks: Range<u64>, is_written: bool) {
        let end = blocks.end;
        for key in self.cut_out(blocks) {
            // An earlier iteration of this loop may have merged the extent into the one before it.
            // Then `is_written` is already right.
            if let Some(extent) = self.map.remove(&key) {
                self.touched.push(key);
                self.join(key, Extent { is_written, ..extent });
            }
        }
        if let Some(behind) = self.map.remove(&end) {
            self.touched.push(end);
            self.join(end, behind);
        }
    }

    /// Moves all blocks from the logical block `from` on, so that they begin at `to`. The range
    /// that they move to must be a hole.
    pub(crate) fn shift(&mut self, from: u64, to: u64) {
        self.split(from);
        let moved = self.map.split_off(&from);
        for (at, extent) in moved {
            self.touched.push(at);
            self.join(at - from + to, extent);
        }
    }

    fn cut_out(&mut self, blocks: Range<u64>) -> Vec<u64> {
        if blocks.is_empty() {
            return Vec::new();
        }
        self.split(blocks.start);
        self.split(blocks.end);
        self.map.range(blocks).map(|(&at, _)| at).collect()
    }

    fn split(&mut self, block: u64) {
        let Some((&at, extent)) = self.map.range_mut(..block).next_back() else { return };
        let skip = block - at;
        if skip < extent.len {
            let behind =
                Extent { physical: extent.physical + skip, len: extent.len - skip, ..*extent };
            extent.len = skip;
            self.map.insert(block, behind);
            self.touched.extend([at, block]);
        }
    }

    fn join(&mut self, mut logical: u64, mut extent: Extent) {
        let goes_on = |before: &Extent, after: &Extent| {
            before.physical + before.len == after.physical && before.is_written == after.is_written
        };
        if let Some((&at, before)) = self.map.range(..logical).next_back()
            && at + before.len == logical
            && goes_on(before, &extent)
        {
            extent = Extent { len: before.len + extent.len, ..*before };
            logical = at;
        }
        let end = logical + extent.len;
        if let Some(after) = self.map.get(&end)
            && goes_on(&extent, after)
        {
            extent.len += after.len;
            self.map.remove(&end);
            self.touched.push(end);
        }
        self.map.insert(logical, extent);
        self.touched.push(logical);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    type Model = [Option<(u64, bool)>; 40];

    #[derive(Clone, Debug)]
    enum Op {
        Fill(u64, u64, bool),
        Remove(Range<u64>),
        Mark(Range<u64>, bool),
        Collapse(Range<u64>),
        Insert(u64, u64),
    }

    fn range() -> impl Strategy<Value = Range<u64>> {
        (0..40u64, 0..12u64).prop_map(|(at, len)| at..(at + len).min(40))
    }

    fn op() -> impl Strategy<Value = Op> {
        prop_oneof![
            (0..40u64, 1..9u64, any::<bool>()).prop_map(|(a, l, w)| Op::Fill(a, l, w)),
            range().prop_map(Op::Remove),
            (range(), any::<bool>()).prop_map(|(r, w)| Op::Mark(r, w)),
            range().prop_map(Op::Collapse),
            (0..40u64, 1..5u64).prop_map(|(at, len)| Op::Insert(at, len)),
        ]
    }

    fn fill(map: &mut ExtentMap, model: &mut Model, next: &mut u64, at: u64, end: u64, w: bool) {
        let mut at = at;
        while at < end {
            let span = map.look(at);
            let len = span.len.min(end - at);
            if span.found.is_none() {
                map.insert(at, Extent { physical: *next, len, is_written: w });
                for block in at..at + len {
                    model[block as usize] = Some((*next, w));
                    *next += 1;
                }
                *next += *next % 2;
            }
            at += len;
        }
    }

    proptest! {
        #[test]
        fn extents_are_those_of_the_model(ops in prop::collection::vec(op(), 0..60)) {
            let (mut map, mut model, mut next): (_, Model, _) = (ExtentMap::default(), [None; 40], 1000);
            for op in ops {
                match op {
                    Op::Fill(at, len, written) => {
                        let end = (at + len).min(40);
                        fill(&mut map, &mut model, &mut next, at, end, written);
                    }
                    Op::Remove(range) => {
                        let blocks = &mut model[range.start as usize..range.end as usize];
                        let mut gone: Vec<_> = blocks.iter().filter_map(|b| Some(b.as_ref()?.0)).collect();
                        blocks.fill(None);
                        let runs = map.remove(range);
                        let mut got: Vec<_> = runs.iter().flat_map(|r| r.start..r.start + r.len).collect();
                        gone.sort_unstable();
                        got.sort_unstable();
                        prop_assert_eq!(got, gone);
                    }
                    Op::Mark(range, written) => {
                        for block in model[range.start as usize..range.end as usize].iter_mut().flatten() {
                            block.1 = written;
                        }
                        map.mark(range, written);
                    }
                    Op::Collapse(range) => {
                        map.remove(range.clone());
                        map.shift(range.end, range.start);
                        let len = (range.end - range.start) as usize;
                        model.copy_within(range.end as usize.., range.start as usize);
                        model[40 - len..].fill(None);
                    }
                    Op::Insert(at, len) => {
                        map.remove(40 - len..40);
                        model[40 - len as usize..].fill(None);
                        let end = (at + len).min(40);
                        map.shift(at, at + len);
                        model.copy_within(at as usize..40 - (end - at) as usize, end as usize);
                        model[at as usize..end as usize].fill(None);
                        map.remove(40..u64::MAX);
                    }
                }
                for (at, &block) in model.iter().enumerate() {
                    prop_assert_eq!(map.look(at as u64).found, block, "block {}", at);
                    let next = |w| (at..40).find(|&i| model[i].is_some_and(|b| b.1) == w).map(|i| i as u64);
                    prop_assert_eq!(map.next(at as u64, true), next(true));
                    prop_assert_eq!(map.next(at as u64, false), next(false).or(Some(40)));
                }
                let count = model.iter().flatten().count() as u64;
                prop_assert_eq!((map.blocks(), map.allocated_in(0..40)), (count, count));
                let all: Vec<_> = map.map.iter().collect();
                for pair in all.windows(2) {
                    let ((a, x), (b, y)) = (pair[0], pair[1]);
                    prop_assert!(a + x.len <= *b);
                    let is_one = a + x.len == *b && x.physical + x.len == y.physical;
                    prop_assert!(!is_one || x.is_written != y.is_written);
                }
            }
        }
    }
}
