//! The parent key of a dentry: its directory, and the child generation of that directory.

use crate::key_lock::KeyGuard;
use crate::slot::DentrySlot;

/// The key under which the children of a directory are entered: slot and child generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ParentKey(pub(crate) u64);

impl ParentKey {
    #[inline]
    pub(crate) fn new(parent: DentrySlot, child_generation: u64) -> ParentKey {
        ParentKey((u64::from(parent.get()) << 32) | (child_generation & 0xffff_ffff))
    }

    /// Returns a stale key, which no lookup has. Its generation is 0. Child generations start at 1.
    /// They skip 0 when their low 32 bits, which keys contain, wrap around.
    pub(crate) fn stale(parent: DentrySlot) -> ParentKey {
        ParentKey::new(parent, 0)
    }

    pub(crate) fn is_stale(self) -> bool {
        self.0 & 0xffff_ffff == 0
    }

    /// Returns the key, or a stale key if the fill is cancelled. The caller is inside the write
    /// section that makes the entry visible (see `KeyGuard::is_fill_cancelled`).
    pub(crate) fn unless_cancelled(self, in_lookup: &KeyGuard<'_>) -> ParentKey {
        if in_lookup.is_fill_cancelled() { ParentKey::stale(self.parent()) } else { self }
    }

    #[inline]
    pub(crate) fn parent(self) -> DentrySlot {
        DentrySlot::new((self.0 >> 32) as u32)
    }
}
