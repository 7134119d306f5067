//! The cold word of a slot: its generation, its halves in use, the referenced bit, and the alias
//! chain.
//!
//! Source: `dentry`.

use corewalk_base::primitives::atomic::{AtomicU64, Ordering};

use crate::slot::DentrySlot;

pub(super) const GENERATION_SHIFT: u32 = 33;
const REFERENCED: u64 = 1 << 31;
const NEXT_MASK: u64 = (1 << 30) - 1;

/// The cold word: the second word of a cold record, beside the lockref. Its layout is `generation
/// << 33 | dentry half << 32 | referenced << 31 | inode half << 30 | next alias`.
///
/// - The generation counts reuses of the dentry half, so that an identifier (slot and generation)
///   of an earlier dentry is recognised. It changes only between two dentries of the slot.
/// - The bits of the halves tell which parts of the slot are in use.
/// - `next alias` chains the dentries of an inode. Protected by that inode's lock.
/// - Any thread sets the referenced bit; reclaim clears it.
pub(crate) struct Cold<'a>(pub(super) &'a AtomicU64);

/// The dentry half or the inode half of a slot. The value is the bit in the cold word that marks
/// the half as in use.
#[derive(Clone, Copy, Debug)]
#[repr(u64)]
pub(super) enum Half {
    Dentry = 1 << 32,
    Inode = 1 << 30,
}

impl<'a> Cold<'a> {
    /// Returns a view of the word.
    #[inline]
    pub(super) fn of(word: &'a AtomicU64) -> Cold<'a> {
        Cold(word)
    }

    pub(crate) fn generation(&self) -> u32 {
        // ORDERING: Relaxed. The caller holds a reference or validates a sequence.
        (self.0.load(Ordering::Relaxed) >> GENERATION_SHIFT) as u32
    }

    /// Raises the generation of the dentry half, after its dentry has died. Returns false if all
    /// generations are used up. In that case the half must not be used again.
    pub(crate) fn next_generation(&self) -> bool {
        let next = |word: u64| {
            let generation = (word >> GENERATION_SHIFT).wrapping_add(1) << GENERATION_SHIFT;
            generation | (word & (Half::Dentry as u64 | Half::Inode as u64))
        };
        // ORDERING: Relaxed. The caller owns the dentry half. The update keeps the bit of the inode
        // half, which another thread may change.
        let before = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |w| Some(next(w)));
        let before = before.unwrap_or_else(|word| word);
        next(before) >> GENERATION_SHIFT != u64::MAX >> GENERATION_SHIFT
    }

    /// Allocates a half; false if it is in use.
    pub(super) fn take(&self, half: Half) -> bool {
        // ORDERING(half): Acquire. Pairs with `Cold::release`, so that the caller sees everything
        // that the last user of the half stored.
        self.0.fetch_or(half as u64, Ordering::Acquire) & half as u64 == 0
    }

    /// Frees a half. Returns true if the slot is now free.
    pub(super) fn release(&self, half: Half) -> bool {
        // ORDERING(half): AcqRel. Pairs with the acquisition of the half: the next user of the half
        // sees the stores of this thread. The thread that frees the last half of a slot also sees
        // the stores to the half that was freed earlier.
        let before = self.0.fetch_and(!(half as u64), Ordering::AcqRel);
        debug_assert!(before & half as u64 != 0, "a half is given back once");
        before & (Half::Dentry as u64 | Half::Inode as u64) == half as u64
    }

    pub(crate) fn next_alias(&self) -> DentrySlot {
        // ORDERING: Relaxed. Protected by the inode's lock.
        DentrySlot::new((self.0.load(Ordering::Relaxed) & NEXT_MASK) as u32)
    }

    pub(crate) fn set_next_alias(&self, next: DentrySlot) {
        // ORDERING: Relaxed. The lock of the inode protects the link to the next alias. The update
        // does not change the bits that other threads set.
        let _ = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |word| {
            Some((word & !NEXT_MASK) | u64::from(next.get()))
        });
    }

    /// Sets the referenced bit.
    #[inline]
    pub(crate) fn touch(&self) {
        // ORDERING: Relaxed. A hint for reclaim.
        if self.0.load(Ordering::Relaxed) & REFERENCED == 0 {
            // ORDERING: Relaxed. As above.
            self.0.fetch_or(REFERENCED, Ordering::Relaxed);
        }
    }

    /// Clears the referenced bit and returns whether it was set.
    pub(crate) fn clear_referenced(&self) -> bool {
        // ORDERING: Relaxed. A hint for reclaim.
        self.0.load(Ordering::Relaxed) & REFERENCED != 0
            // ORDERING: Relaxed. As above.
            && self.0.fetch_and(!REFERENCED, Ordering::Relaxed) & REFERENCED != 0
    }
}
