//! The cold word of a slot, which path walks do not read. It has the slot's generation, the
//! referenced bit, a bit for each half in use (for a dentry, for an inode), and the slot of the
//! inode's next dentry.
//!
//! Source: `dentry`.

use corewalk_base::primitives::atomic::{AtomicU64, Ordering};

use crate::slot::DentrySlot;

pub(super) const GENERATION_SHIFT: u32 = 33;
const REFERENCED: u64 = 1 << 31;
const NEXT_MASK: u64 = (1 << 30) - 1;

/// The word of a slot that path walks do not read. It is next to the slot's lockref (lock and
/// reference count). Its layout is `generation << 33 | dentry half << 32 | referenced << 31 | inode
/// half << 30 | next alias`.
///
/// - The generation counts how often the slot was reused for another dentry. An identifier of a
///   dentry contains its slot and its generation, so an identifier of an earlier dentry in the slot
///   is recognised.
/// - The bit `dentry half` tells whether the slot holds a dentry. The bit `inode half` tells
///   whether it holds an inode.
/// - `next alias` is the slot of the next dentry of the same inode. Protected by that inode's lock.
/// - Any thread sets the referenced bit, and reclaim clears it.
pub(crate) struct Cold<'a>(pub(super) &'a AtomicU64);

/// One of the two halves of a slot: the half for a dentry, or the half for an inode. Its value is a
/// bit of the slot's cold word ([`Cold`]). The bit is set while the half is in use.
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

    /// Increments the generation of a slot whose dentry has died. Returns false if all generations
    /// are used up: the slot must not hold a dentry again.
    pub(crate) fn next_generation(&self) -> bool {
        let next = |word: u64| {
            let generation = (word >> GENERATION_SHIFT).wrapping_add(1) << GENERATION_SHIFT;
            generation | (word & (Half::Dentry as u64 | Half::Inode as u64))
        };
        // ORDERING: Relaxed. Only the caller uses the slot's dentry half now. The update keeps the
        // bit of the inode half, which another thread may change at the same time.
        let before = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |w| Some(next(w)));
        let before = before.unwrap_or_else(|word| word);
        next(before) >> GENERATION_SHIFT != u64::MAX >> GENERATION_SHIFT
    }

    /// Allocates a half; false if it is in use.
    pub(super) fn take(&self, half: Half) -> bool {
        // ORDERING(half): Acquire. Pairs with `Cold::release`, so that the new owner of this half
        // of the slot sees all stores of its last owner.
        self.0.fetch_or(half as u64, Ordering::Acquire) & half as u64 == 0
    }

    /// Frees a half. Returns true if the slot is now free.
    pub(super) fn release(&self, half: Half) -> bool {
        // ORDERING(half): AcqRel. Release pairs with `Cold::take`, so that the next owner of this
        // half sees this thread's stores. Acquire pairs with the release of the other half: the
        // thread that frees the slot sees the stores to both halves.
        let before = self.0.fetch_and(!(half as u64), Ordering::AcqRel);
        debug_assert!(before & half as u64 != 0, "a half is given back once");
        before & (Half::Dentry as u64 | Half::Inode as u64) == half as u64
    }

    pub(crate) fn next_alias(&self) -> DentrySlot {
        // ORDERING: Relaxed. Protected by the inode's lock.
        DentrySlot::new((self.0.load(Ordering::Relaxed) & NEXT_MASK) as u32)
    }

    pub(crate) fn set_next_alias(&self, next: DentrySlot) {
        // ORDERING: Relaxed. The inode's lock protects the link to the next alias. The update keeps
        // the other bits, which other threads may change at the same time.
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
