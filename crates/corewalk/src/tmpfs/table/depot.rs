//! The depot of an inode table: the free slots that are in no shard's free list, by segment (64
//! slots that are allocated together).
//!
//! A segment whose 64 slots are all in the depot (the pool of free slots) has no inodes, and can be
//! freed. A few such segments are kept, for programs that repeatedly make and remove files.

use super::SEGMENT_SLOTS;

/// Number of segments (64 inode slots each) without inodes that the depot (the pool of free slots)
/// keeps. The slots of 32 segments use 256 KiB.
const SPARE_SEGMENTS: u32 = if cfg!(test) { 1 } else { 32 };
const ALL: u64 = u64::MAX;

/// The free slots that are in no shard's free list. All fields are protected by
/// `InodeTable::depot`.
#[derive(Default)]
pub(super) struct Depot {
    /// A bitmap of free slots per segment.
    free: Vec<u64>,
    /// The segments (of 64 inode slots) of which the depot may have free slots. May contain a
    /// segment twice, or one without free slots.
    partial: Vec<u32>,
    /// The number of fully free segments.
    whole: u32,
    /// Segments that are freed and can be allocated again.
    retired: Vec<u32>,
}

impl Depot {
    /// Adds free inode slots to this pool. Of a segment whose 64 slots are all free, the depot
    /// keeps up to `SPARE_SEGMENTS` as spares. It removes the slots of any further such segment,
    /// and passes the segment to `retire`. The caller must then free it.
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

    /// Moves the free slots of one segment (of 64 inode slots) from the depot to the end of
    /// `slots`, the lowest last. Moves nothing if the depot is empty.
    pub(super) fn take(&mut self, slots: &mut Vec<u32>) {
        while let Some(segment) = self.partial.pop() {
            // There is no free slot (a set bit) if the segment was freed, or was in `partial`
            // twice. Then try the next segment.
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

    /// Records that a segment is freed.
    pub(super) fn note_retired(&mut self, segment: u32) {
        self.retired.push(segment);
    }

    /// Takes a freed segment, to allocate it again.
    pub(super) fn take_retired(&mut self) -> Option<u32> {
        self.retired.pop()
    }

    /// Returns the number of freed segments.
    pub(super) fn retired(&self) -> usize {
        self.retired.len()
    }
}
