//! The key of a dentry: which directory it is in, and in which of its lives.

use crate::key_lock::KeyGuard;

/// What a dentry's children are entered under: its slot and its child generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Key(pub(crate) u64);

impl Key {
    #[inline]
    pub(crate) fn new(parent: u32, child_generation: u64) -> Key {
        Key((u64::from(parent) << 32) | (child_generation & 0xffff_ffff))
    }

    /// Returns the key of a name that is not to be found: directories never have generation 0 (they
    /// start at 1 and skip it when the half of it that keys hold comes round).
    pub(crate) fn stale(parent: u32) -> Key {
        Key::new(parent, 0)
    }

    pub(crate) fn is_stale(self) -> bool {
        self.0 & 0xffff_ffff == 0
    }

    /// Returns the key, or a stale one if what is entered under it is out of date already: asked inside
    /// of the write section that makes it visible (see `KeyGuard::is_fill_cancelled`).
    pub(crate) fn unless_cancelled(self, in_lookup: &KeyGuard<'_>) -> Key {
        if in_lookup.is_fill_cancelled() { Key::stale(self.parent()) } else { self }
    }

    #[inline]
    pub(crate) fn parent(self) -> u32 {
        (self.0 >> 32) as u32
    }
}
