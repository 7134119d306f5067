//! corewalk's tmpfs, called as a library: the cost of shared attributes if values never reach a
//! disk.
//!
//! The tmpfs is measured with and without sharing of attribute sets. It looks for an equal block
//! only at the first change of a file in an epoch (a span of time). A second change makes the
//! file's set private until the epoch ends. So the tmpfs does not hash a set that is soon replaced.
//!
//! Unlike this tmpfs, the store of the module `memory` looks for an equal block at each change.
//!
//! In this benchmark only `audit`, the check of all counts, ends an epoch. It calls
//! [`Tmpfs::share_xattrs`], which shares all waiting attribute sets. So the counts are those of a
//! file system at rest.
//!
//! Source: `corewalk::tmpfs`; document 004 in `documents.md`.

use anyhow::ensure;
use corewalk::tmpfs::{Tmpfs, TmpfsOptions};

use super::AttrStore;
use super::files::AttrFiles;

/// The file system, with the files of each worker.
pub(crate) struct TmpfsStore {
    fs: Tmpfs,
    is_sharing: bool,
    files: AttrFiles,
}

impl TmpfsStore {
    /// Returns a file system with or without shared attributes. `size` is the number of workers,
    /// and of files of each worker.
    ///
    /// # Errors
    /// If a file cannot be made.
    pub(crate) fn new(share_xattrs: bool, size: (usize, usize)) -> anyhow::Result<TmpfsStore> {
        let fs = Tmpfs::new(TmpfsOptions::default().with_share_xattrs(share_xattrs));
        let files = AttrFiles::make(&fs, size)?;
        Ok(TmpfsStore { fs, is_sharing: share_xattrs, files })
    }
}

impl AttrStore for TmpfsStore {
    fn variant(&self) -> &'static str {
        if self.is_sharing { "corewalk" } else { "off" }
    }

    fn set(&self, worker: usize, file: usize, value: &[u8]) {
        self.files.set(&self.fs, (worker, file), value);
    }

    fn has(&self, worker: usize, file: usize, value: &[u8]) -> bool {
        self.files.get(&self.fs, (worker, file)).is_some_and(|has| has == value)
    }

    fn clear(&self, worker: usize) {
        self.files.clear(&self.fs, worker);
    }

    fn audit(&self) -> anyhow::Result<u64> {
        self.fs.share_xattrs();
        let (users, stats) = (self.files.users(&self.fs), self.fs.xattr_stats());
        ensure!(stats.waiting == 0, "{}: {stats:?} after all was shared", self.variant());
        let blocks = if self.is_sharing { stats.shared_sets } else { users };
        let is_right = stats.shared_sets <= users && (blocks > 0) == (users > 0);
        ensure!(is_right, "{}: {stats:?} of {users} files", self.variant());
        Ok(blocks)
    }
}
