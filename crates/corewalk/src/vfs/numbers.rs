//! Inode numbers for back ends that have none.
//!
//! A back end that knows files only by name reports 0 as the inode number of each file, also of the
//! root. Then the cache numbers the files.
//!
//! A file keeps its inode number as long as the cache has its inode. So the number stays through
//! renames, and while a client holds a lookup of the file. An evicted file gets another number at
//! its next lookup. No number is given out twice.
//!
//! Without inode numbers from the back end, the cache cannot tell whether another program has
//! replaced a file. It assumes that a name still leads to the same file while the kind of file is
//! the same, even after an invalidation. Otherwise a client would lose the file that it has open.
//!
//! A file with two names counts as two files if its back end has no inode numbers.
//!
//! Source: libfuse. Without its option `use_ino`, its node table also gives inode numbers to files.

use corewalk_base::primitives::atomic::{AtomicU64, Ordering};

use super::held::Dir;
use super::{InodeRef, Vfs};
use crate::Errno;
use crate::attr::Attr;
use crate::dentry::LookupKey;
use crate::name::Name;
use crate::slot::InodeSlot;

pub(super) const UNNUMBERED: u64 = 0;
const ROOT: u64 = 1;

pub(super) struct Numbers {
    next: AtomicU64,
}

impl Numbers {
    fn number(&self, attr: Attr) -> Attr {
        // ORDERING: Relaxed. The addition alone makes each number unique.
        let ino = self.next.fetch_add(1, Ordering::Relaxed);
        Attr { ino, generation: 0, ..attr }
    }
}

/// Returns the attributes of a root with its inode number. If the back end has no inode numbers,
/// the root gets `ROOT`, and the second result generates the numbers of all other files.
pub(super) fn of_root(attr: &Attr) -> (Attr, Option<Numbers>) {
    match attr.ino {
        UNNUMBERED => {
            let numbers = Numbers { next: AtomicU64::new(ROOT + 1) };
            (Attr { ino: ROOT, generation: 0, ..*attr }, Some(numbers))
        }
        _ => (*attr, None),
    }
}

impl Vfs {
    /// Returns the generator of inode numbers for the file system of `near`. Returns None if the
    /// back end supplies inode numbers.
    pub(super) fn numbers(&self, near: InodeSlot) -> Option<&Numbers> {
        self.superblock(near).numbers.as_ref()
    }

    pub(super) fn numbered_new(&self, dir: InodeSlot, attr: Attr) -> Attr {
        self.numbers(dir).map_or(attr, |numbers| numbers.number(attr))
    }

    /// Returns `attr` with an inode number. If the back end has no inode numbers, `attr` gets the
    /// number of the name's cached inode, or a new one. The caller holds the in-lookup lock of the
    /// name.
    pub(super) fn numbered(&self, dir: &Dir<'_>, lookup_key: &LookupKey<'_>, attr: Attr) -> Attr {
        let Some(numbers) = self.numbers(dir.now.inode) else { return attr };
        let is_kind = |inode| self.dcache.inodes.kind(inode) == attr.kind();
        match self.dcache.inode_of_name(dir.key(), lookup_key, is_kind) {
            Some(slot) => {
                let inode = InodeRef { vfs: self, slot };
                self.numbered_as(inode.slot, attr)
            }
            None => numbers.number(attr),
        }
    }

    pub(super) fn numbered_as(&self, inode: InodeSlot, attr: Attr) -> Attr {
        match attr.ino {
            UNNUMBERED => {
                let inodes = &self.dcache.inodes;
                Attr { ino: inodes.ino(inode), generation: inodes.generation(inode), ..attr }
            }
            _ => attr,
        }
    }

    /// Returns the number of the inode that the cache has for a name, or 0. Takes no reference,
    /// because dropping one could call the back end.
    pub(super) fn cached_number(&self, dir: &InodeRef<'_>, name: Name<'_>) -> u64 {
        let (dcache, lookup_key) = (&self.dcache, self.dcache.lookup_key(name));
        let number = || {
            let now = dcache.directory(dcache.inodes.alias(dir.slot))?;
            let (slot, seen) = dcache.find(now.key, &lookup_key)?;
            let inode = seen.body.inode();
            let ino = if inode.is_none() { UNNUMBERED } else { dcache.inodes.ino(inode) };
            dcache.dentries.is_unchanged(slot, seen.seq).then_some(ino)
        };
        number().unwrap_or(UNNUMBERED)
    }

    /// Checks that a file has an inode number.
    ///
    /// # Errors
    /// `EIO` if a number is missing.
    pub(super) fn check_number(attr: &Attr) -> Result<(), Errno> {
        if attr.ino == UNNUMBERED { Err(Errno::IO) } else { Ok(()) }
    }
}
