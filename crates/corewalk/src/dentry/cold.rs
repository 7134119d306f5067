//! The cold word of a slot: a slot's fields that path walks do not read.
//!
//! Source: `dentry`.

use corewalk_base::primitives::atomic::{AtomicU64, Ordering};

use crate::slot::DentrySlot;

pub(super) const GENERATION_SHIFT: u32 = 33;
const REFERENCED: u64 = 1 << 31;
const NEXT_MASK: u64 = (1 << 30) - 1;

/// The cold word of a slot, next to the slot's lockref. Its layout is `generation << 33 | dentry
/// half << 32 | referenced << 31 | inode half << 30 | next alias`.
///
/// - The generation counts how often the slot was reused for another dentry. A dentry's identifier
///   contains it, so the identifier of an earlier dentry in the slot does not match.
/// - `dentry half` and `inode half` tell whether the slot holds a dentry and an inode.
/// - `next alias` is the slot of the next dentry of the same inode. Protected by that inode's lock.
/// - Any thread sets `referenced`, and reclaim clears it.
pub(crate) struct Cold<'a>(pub(super) &'a AtomicU64);

/// One half of a slot, for a dentry or for an inode. Its value is the bit of the cold word that is
/// set while the half is in use.
#[derive(Clone, Copy, Debug)]
#[repr(u64)]
pub(super) enum Half {
    Dentry = 1 << 32,
    Inode = 1 << 30,
}

impl<'a> Cold<'a> {
    #[inline]
    pub(super) fn of(word: &'a AtomicU64) -> Cold<'a> {
        Cold(word)
    }

    pub(crate) fn generation(&self) -> u32 {
        // ORDERING: Relaxed. The caller holds a reference or validates a sequence.
        (self.0.load(Ordering::Relaxed) >> GENERATION_SHIFT) as u32
    }

    /// Increments the generation of the slot and clears the fields of its last dentry. Returns
    /// false if all generations are used up. The slot must then not hold a dentry again.
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

    pub(super) fn take(&self, half: Half) -> bool {
        // ORDERING(half): Acquire. The last owner freed this half with Release in `Cold::release`.
        // Without Acquire, the new owner could miss the last owner's stores.
        self.0.fetch_or(half as u64, Ordering::Acquire) & half as u64 == 0
    }

    /// Marks a half of the slot as unused. Returns true if the whole slot is now unused.
    pub(super) fn release(&self, half: Half) -> bool {
        // ORDERING(half): AcqRel. Release: the next owner takes the half in `Cold::take` with
        // Acquire, and must see this thread's stores. Acquire: the thread that frees the slot must
        // see the stores to both halves.
        let before = self.0.fetch_and(!(half as u64), Ordering::AcqRel);
        debug_assert!(before & half as u64 != 0, "a half is given back once");
        before & (Half::Dentry as u64 | Half::Inode as u64) == half as u64
    }

    pub(crate) fn next_alias(&self) -> DentrySlot {
        // ORDERING: Relaxed. The inode's lock protects the link to the next alias.
        DentrySlot::new((self.0.load(Ordering::Relaxed) & NEXT_MASK) as u32)
    }

    pub(crate) fn set_next_alias(&self, next: DentrySlot) {
        // ORDERING: Relaxed. The inode's lock protects the link to the next alias. The update keeps
        // the other bits, which other threads may change at the same time.
        let _ = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |word| {
            Some((word & !NEXT_MASK) | u64::from(next.get()))
        });
    }

    #[inline]
    pub(crate) fn touch(&self) {
        // ORDERING: Relaxed. A hint for reclaim.
        if self.0.load(Ordering::Relaxed) & REFERENCED == 0 {
            // ORDERING: Relaxed. As above.
            self.0.fetch_or(REFERENCED, Ordering::Relaxed);
        }
    }

    pub(crate) fn clear_referenced(&self) -> bool {
        // ORDERING: Relaxed. A hint for reclaim.
        self.0.load(Ordering::Relaxed) & REFERENCED != 0
            // ORDERING: Relaxed. As above.
            && self.0.fetch_and(!REFERENCED, Ordering::Relaxed) & REFERENCED != 0
    }
}
