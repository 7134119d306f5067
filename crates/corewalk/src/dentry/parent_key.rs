//! The parent key of a dentry: its directory, and the child generation of that directory. An
//! increment of the child generation invalidates all names in the directory.

use crate::key_lock::KeyGuard;
use crate::slot::DentrySlot;

/// The word of a dentry that names its parent directory: the slot of the directory's dentry, and
/// the directory's child generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ParentKey(pub(crate) u64);

impl ParentKey {
    #[inline]
    pub(crate) fn new(parent: DentrySlot, child_generation: u64) -> ParentKey {
        ParentKey((u64::from(parent.get()) << 32) | (child_generation & 0xffff_ffff))
    }

    /// Returns a parent key that no lookup has, because its child generation is 0. (The low 32 bits
    /// of a directory's child generation start at 1 and skip 0 when they wrap around.)
    pub(crate) fn stale(parent: DentrySlot) -> ParentKey {
        ParentKey::new(parent, 0)
    }

    pub(crate) fn is_stale(self) -> bool {
        self.0 & 0xffff_ffff == 0
    }

    /// Returns a stale key if an invalidation has cancelled the fill (the caching of the back end's
    /// answer). The caller is inside the write section that makes the name visible (see
    /// `KeyGuard::is_fill_cancelled`).
    pub(crate) fn unless_cancelled(self, in_lookup: &KeyGuard<'_>) -> ParentKey {
        if in_lookup.is_fill_cancelled() { ParentKey::stale(self.parent()) } else { self }
    }

    #[inline]
    pub(crate) fn parent(self) -> DentrySlot {
        DentrySlot::new((self.0 >> 32) as u32)
    }
}
