//! The dentry caches that the source documents started from, small and complete.
//! Those of shared attribute blocks are in `mbcache`, those of semaphore sets in `sems`.
//!
//! A table that re-runs a document needs the designs that the document compared. Four designs are
//! here, and nowhere else in the workspace. They share one tree (`tree`), so that a table shows the
//! protocol and not a layout. They differ in the lock that a translation, a lookup and a rename
//! takes, and in the retry of a disturbed reader (`design`).
//!
//! - `before-global-lock`: translation of a path: the rename lock for writing, and each dentry's
//!   lock (Linux 3.8); lookup: RCU walk; a rename: the rename lock.
//! - `before-seqrwlock`: translation of a path: the shared side of the rename lock (document 000);
//!   lookup: RCU walk; a rename: its write side.
//! - `before-seqlock`: translation of a path: the rename sequence, one retry under the lock
//!   (document 001, Linux since 3.12); lookup: RCU walk; a rename: the rename lock.
//! - `before-dcache-lock`: translation of a path: `dcache_lock` (Linux 2.4); lookup: `dcache_lock`
//!   per name; a rename: `dcache_lock`.
//!
//! # How fair they are
//! They are as fast as their protocol allows, and faster than a kernel: no permissions, mounts,
//! symbolic links, negative dentries, eviction or file system below. Locks are those of
//! `corewalk_base`, which sleep when they wait long; the kernels' locks spin. A dentry is
//! type-stable memory, like `SLAB_TYPESAFE_BY_RCU`, so no design pays for a grace period. An inode
//! number is the place of the dentry, so a caller with a number has the dentry at hand, as in a
//! kernel. corewalk looks a number up.
//!
//! # Locks and their order
//! 1. The lock for moves between directories (`s_vfs_rename_mutex`).
//! 2. Locks of directories (`i_mutex`), the lower number first.
//! 3. The rename lock, or `dcache_lock`.
//! 4. The lock of one dentry (`d_lock`).
//! 5. The lock of one chain of the hash table, then a list of free dentries.
//!
//! # What they refuse
//! Replacing a name by a rename, hard links, and removing directories: no table needs them.
//!
//! Source: documents 000 (Long, February 2013), 001 (Long, September 2013) and 003 (McKenney,
//! Sarma, Soni, 2004); Linux `fs/dcache.c`, `fs/d_path.c` and `fs/namei.c` for the protocols.

mod design;
pub(crate) mod mbcache;
mod paths;
pub(crate) mod sems;
pub(crate) mod timed;
mod tree;

pub(crate) use design::{Before, Design};

use corewalk::FileKind;

use crate::baseline::Namespace;
use crate::corpus::{Corpus, ROOT};
use crate::crew::{Laps, Turn};
use crate::job::User;

/// How often renames disturbed translations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Passes {
    /// Discarded passes.
    pub retries: u64,
    /// Translations that then took a lock.
    pub fallbacks: u64,
}

/// A namespace that can be built up and changed.
pub(crate) trait Dentries: Namespace {
    /// Returns the inode number at an absolute path, and counts a reference meanwhile, as open(2)
    /// and close(2) do.
    fn open(&self, path: &[u8]) -> Option<u64> {
        self.walk(path)
    }

    /// Returns the inode number of a name, and counts a reference meanwhile, as fstatat(2) does.
    fn look(&self, parent: u64, name: &[u8]) -> Option<u64>;

    /// Makes an inode with a name. Returns its number; None if the name is taken.
    fn create(&self, parent: u64, name: &[u8], kind: FileKind) -> Option<u64>;

    /// Removes the name of a file. Returns false if there is no such file.
    fn unlink(&self, parent: u64, name: &[u8]) -> bool;

    /// Does jobs as `user` until the slice is over.
    fn be_user(&self, user: &User, turn: Turn) -> Laps {
        user.work(self, turn, |path| self.walk(path), |path| self.open(path))
    }
}

/// Gives the names of `corpus` to `dentries`, which are empty, and returns them.
///
/// # Panics
/// If they are not empty, or have too little room.
pub(crate) fn filled<D: Dentries>(dentries: D, corpus: &Corpus) -> D {
    for ino in corpus.inodes().filter(|&ino| ino != ROOT) {
        let kind = if corpus.is_directory(ino) { FileKind::Directory } else { FileKind::Regular };
        let made = dentries.create(corpus.parent(ino), corpus.name(ino), kind);
        assert_eq!(made, Some(ino), "{}: entries are numbered in turn", dentries.variant());
    }
    dentries
}

/// Makes the directories of an absolute path that do not exist, and returns the number of the last.
///
/// # Panics
/// If there is no room left.
pub(crate) fn make_path(dentries: &dyn Dentries, path: &[u8]) -> u64 {
    crate::baseline::components(path).fold(ROOT, |parent, name| {
        dentries
            .create(parent, name, FileKind::Directory)
            .or_else(|| dentries.lookup(parent, name))
            .expect("a name that cannot be made exists")
    })
}

#[cfg(test)]
pub(crate) mod tests;
