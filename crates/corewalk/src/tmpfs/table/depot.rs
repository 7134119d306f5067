//! The free slots of an inode table that no thread has, by segment.
//!
//! A segment of which all slots are here has no inode in it, and no thread can draw one from it. So
//! it can be given back. A few such segments are kept, so that a program that makes and removes
//! some files again and again does not make a segment each time.

use super::SEGMENT_SLOTS;

/// Whole segments that are kept: 256 KiB.
const SPARE_SEGMENTS: u32 = if cfg!(test) { 1 } else { 32 };
const ALL: u64 = u64::MAX;

/// The free slots that no thread has.
#[derive(Default)]
pub(super) struct Depot {
    /// One bit for each slot of a segment, set if the slot is here.
    free: Vec<u64>,
    /// Segments that had a slot here when they were noted.
    partial: Vec<u32>,
    /// Segments of which all slots are here.
    whole: u32,
    /// Segments that have been given back, and can be made anew.
    retired: Vec<u32>,
}

impl Depot {
    /// Takes `slots` in. Calls `retire` with each segment that is to be given back; its slots are
    /// here no more.
    pub(super) fn put(&mut self, slots: impl Iterator<Item = u32>, mut retire: impl FnMut(u32)) {
        for slot in slots {
            let segment = slot / SEGMENT_SLOTS;
            if self.free.len() <= segment as usize {
                self.free.resize(segment as usize + 1, 0);
            }
            let bits = &mut self.free[segment as usize];
            if *bits == 0 {
                self.partial.push(segment);
            }
            *bits |= 1 << (slot % SEGMENT_SLOTS);
            if *bits != ALL {
                continue;
            }
            if self.whole == SPARE_SEGMENTS {
                *bits = 0;
                retire(segment);
            } else {
                self.whole += 1;
            }
        }
    }

    /// Moves the slots of one segment to `slots`, the lowest on top. Moves none if there are none.
    pub(super) fn take(&mut self, slots: &mut Vec<u32>) {
        while let Some(segment) = self.partial.pop() {
            // 0: the segment was given back, or was noted twice.
            let bits = std::mem::take(&mut self.free[segment as usize]);
            if bits != 0 {
                self.whole -= u32::from(bits == ALL);
                let first = segment * SEGMENT_SLOTS;
                let is_here = |at: &u32| bits >> at & 1 != 0;
                slots.extend((0..SEGMENT_SLOTS).rev().filter(is_here).map(|at| first + at));
                return;
            }
        }
    }

    /// Notes that a segment has been given back.
    pub(super) fn note_retired(&mut self, segment: u32) {
        self.retired.push(segment);
    }

    /// Returns a segment that has been given back, to be made anew.
    pub(super) fn take_retired(&mut self) -> Option<u32> {
        self.retired.pop()
    }

    /// Returns how many segments have been given back.
    pub(super) fn retired(&self) -> usize {
        self.retired.len()
    }
}
