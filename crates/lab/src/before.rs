//! Small, complete dentry caches with the lock designs of Linux 2.4 to 3.12, and with a design that
//! was only proposed. The module `mbcache` has old designs of the de-duplication index.
//!
//! A benchmark that repeats a published measurement needs the designs that were compared there. The
//! four designs share one tree (`tree`), so a benchmark compares lock protocols and not memory
//! layouts.
//!
//! - `before-global-lock` (Linux 3.8): a path translation takes the rename lock for writing, and
//!   the lock of each dentry. A lookup is an RCU walk. A rename takes the rename lock.
//! - `before-seqrwlock` (Long's patches of February 2013): a path translation takes the rename lock
//!   shared. A lookup is an RCU walk. A rename takes the rename lock for writing.
//! - `before-seqlock` (Long's patch of September 2013, Linux since 3.12): a path translation reads
//!   the rename sequence and retries once under the rename lock. A lookup is an RCU walk. A rename
//!   takes the rename lock.
//! - `before-dcache-lock` (Linux 2.4): a path translation, each name of a lookup, and a rename take
//!   `dcache_lock`.
//!
//! # How fair they are
//! The designs are faster than a kernel. They have no permissions, mounts, symbolic links, negative
//! dentries, eviction or file system below.
//! - The locks are those of `corewalk_base`, which sleep when a wait is long; the kernel's locks
//!   spin.
//! - The memory of a dentry is type-stable, like `SLAB_TYPESAFE_BY_RCU`, so no design waits for a
//!   grace period.
//! - The inode number is the index of the dentry, like a pointer in a kernel. corewalk has to look
//!   it up.
//!
//! # Locks and their order
//! 1. The lock for moves between directories (`s_vfs_rename_mutex`).
//! 2. Locks of directories (`i_mutex`), the lower number first.
//! 3. The rename lock, or `dcache_lock`.
//! 4. The lock of one dentry (`d_lock`).
//! 5. The lock of one chain of the hash table, then a list of free dentries.
//!
//! # Not implemented
//! No design replaces an existing name, makes hard links or removes directories.
//!
//! Source: Long, February and September 2013; McKenney, Sarma, Soni, 2004 (documents 000, 001 and
//! 003 in `documents.md`). The protocols are those of Linux `fs/dcache.c`, `fs/d_path.c` and
//! `fs/namei.c`.

mod design;
pub(crate) mod mbcache;
mod paths;
pub(crate) mod timed;
mod tree;

pub(crate) use design::{Before, Design};

use anyhow::Context as _;
use corewalk::FileKind;

use crate::baseline::Namespace;
use crate::corpus::{Corpus, ROOT};
use crate::crew::{Laps, Turn};
use crate::job::User;

/// A namespace in which names can be made, removed and renamed.
pub(crate) trait Dentries: Namespace {
    /// Makes an inode with a name, and returns its number, or None if the name exists.
    fn create(&self, parent: u64, name: &[u8], kind: FileKind) -> Option<u64>;

    /// Removes the name of a file. Returns false if the directory has no such file.
    fn unlink(&self, parent: u64, name: &[u8]) -> bool;

    /// Does the jobs of the simulated user `user` until the slice is over.
    fn be_user(&self, user: &User, turn: Turn<'_>) -> Laps {
        user.work(self, turn, |path| self.walk(path), |path| self.walk(path))
    }
}

/// Makes all names of the tree `corpus` in the empty cache `dentries`, and returns the cache.
///
/// # Panics
/// If `dentries` is not empty, or has too few free dentries.
pub(crate) fn filled<D: Dentries>(dentries: D, corpus: &Corpus) -> D {
    for ino in corpus.inodes().filter(|&ino| ino != ROOT) {
        let made = dentries.create(corpus.parent(ino), corpus.name(ino), corpus.kind(ino));
        assert_eq!(made, Some(ino), "{}: entries are numbered in turn", dentries.variant());
    }
    dentries
}

/// Makes the missing directories of an absolute path, and returns the inode number of the last one.
///
/// # Panics
/// If a directory cannot be made, because no dentry is free.
pub(crate) fn make_path(dentries: &dyn Dentries, path: &[u8]) -> u64 {
    crate::baseline::components(path).fold(ROOT, |parent, name| {
        dentries
            .create(parent, name, FileKind::Directory)
            .or_else(|| dentries.lookup(parent, name))
            .expect("a name that cannot be made exists")
    })
}

/// Makes a file in a directory, and returns its number.
pub(crate) fn make_file(dentries: &dyn Dentries, parent: u64, name: &str) -> anyhow::Result<u64> {
    let made = dentries.create(parent, name.as_bytes(), FileKind::Regular);
    made.with_context(|| format!("{}: no room", dentries.variant()))
}

#[cfg(test)]
pub(crate) mod tests;
