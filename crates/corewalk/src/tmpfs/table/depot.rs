//! The depot: free slots of an inode table that are in no shard's free list, grouped by segment (64
//! slots that are allocated together).
//!
//! A segment whose 64 slots are all in the depot (the pool of free slots) has no inodes, and can be
//! freed. A few such segments are kept, for programs that repeatedly make and remove files.

use super::SEGMENT_SLOTS;

/// Number of fully free segments that the depot keeps. The slots of 32 segments use 256 KiB.
const SPARE_SEGMENTS: u32 = if cfg!(test) { 1 } else { 32 };
const ALL: u64 = u64::MAX;

/// The free slots in the depot, and the segments that can be allocated again. All fields are
/// protected by `InodeTable::depot`.
#[derive(Default)]
pub(super) struct Depot {
    free: Vec<u64>,
    /// Segments that may have free slots. A segment may occur twice, or have no free slots.
    partial: Vec<u32>,
    whole: u32,
    retired: Vec<u32>,
}

impl Depot {
    /// Adds free slots to the depot. The depot keeps up to `SPARE_SEGMENTS` fully free segments.
    /// Further ones are passed to `retire`, and the caller must then free them.
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

    pub(super) fn take(&mut self, slots: &mut Vec<u32>) {
        while let Some(segment) = self.partial.pop() {
            // If the segment was freed, or was in `partial` twice, it has no free slot (no set
            // bit). Then try the next segment.
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

    pub(super) fn note_retired(&mut self, segment: u32) {
        self.retired.push(segment);
    }

    pub(super) fn take_retired(&mut self) -> Option<u32> {
        self.retired.pop()
    }

    pub(super) fn retired(&self) -> usize {
        self.retired.len()
    }
}
