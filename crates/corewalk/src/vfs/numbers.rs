//! Inode numbers for back ends that have none.
//!
//! A back end that knows its files only by name reports 0 as the number of each file. Then the
//! cache numbers the files. A file keeps its number as long as the cache has its inode: through
//! renames, and while a client holds a lookup of it. A file that was evicted gets another number at
//! its next lookup. No number is given out twice.
//!
//! The cache cannot tell whether such a back end has replaced a file behind its back. A lookup of a
//! cached name finds the same file, unless the kind of the file has changed.
//!
//! Source: libfuse without `use_ino`, whose node table numbers files in the same way.

use corewalk_base::primitives::atomic::{AtomicU64, Ordering};

use super::{InodeRef, Vfs};
use crate::attr::Attr;
use crate::slot::InodeSlot;

/// The number by which a back end says that it has no number for a file.
const UNNUMBERED: u64 = 0;
/// The number of a root directory whose back end has no numbers.
const ROOT: u64 = 1;

/// The numbers that a file system's cache has given out.
pub(super) struct Numbers {
    next: AtomicU64,
}

impl Numbers {
    pub(super) fn new() -> Numbers {
        Numbers { next: AtomicU64::new(ROOT + 1) }
    }
}

/// Returns the attributes of a root directory with a number.
pub(super) fn of_root(attr: Attr) -> Attr {
    if attr.ino == UNNUMBERED { Attr { ino: ROOT, generation: 0, ..attr } } else { attr }
}

/// Returns true if the back end that reported `attr` has no inode numbers.
pub(super) fn is_unnumbered(attr: &Attr) -> bool {
    attr.ino == UNNUMBERED
}

impl Vfs {
    /// Returns the attributes that the back end has reported for a name, with a number. `near` is
    /// an inode of the same file system. `known` is the inode that the cache has for the name.
    pub(super) fn numbered(&self, near: InodeSlot, attr: Attr, known: Option<InodeSlot>) -> Attr {
        if !is_unnumbered(&attr) {
            return attr;
        }
        match known.filter(|&known| self.dcache.inodes.kind(known) == attr.kind()) {
            Some(known) => self.numbered_as(known, attr),
            None => {
                // ORDERING: Relaxed. The addition alone makes each number unique.
                let ino = self.superblock(near).numbers.next.fetch_add(1, Ordering::Relaxed);
                Attr { ino, generation: 0, ..attr }
            }
        }
    }

    /// Returns the attributes that the back end has reported for `inode`, with its number.
    pub(super) fn numbered_as(&self, inode: InodeSlot, attr: Attr) -> Attr {
        if !is_unnumbered(&attr) {
            return attr;
        }
        let inodes = &self.dcache.inodes;
        Attr { ino: inodes.ino(inode), generation: inodes.generation(inode), ..attr }
    }

    /// Returns a number for a directory entry that the back end has reported without one: the
    /// number of the cached inode, or 0 if the cache does not have the name.
    pub(super) fn cached_number(&self, dir: &InodeRef<'_>, name: crate::Name<'_>) -> u64 {
        let cached = self.lookup_cached(dir.slot, &self.dcache.lookup_key(name));
        cached.and_then(Result::ok).map_or(UNNUMBERED, |inode| inode.ino())
    }
}
