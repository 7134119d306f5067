//! A tmpfs of this project, as a library: what sharing costs where values never reach a disk.
//!
//! The table measures it with sharing and without. The store of `memory` shares at each set. This
//! tmpfs keeps the sets of up to 4096 files private until the end of an epoch, if the files change
//! more than once in it. The sets of other files are shared at once. No server calls `maintain`, so
//! an epoch ends with an audit. The audit first shares all waiting sets
//! ([`Tmpfs::share_xattrs`]), so its counts are those of a file system at rest.
//!
//! Source: `corewalk::tmpfs`; document 004.

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
    /// Returns a file system that shares attributes, or does not, of so many workers with so many
    /// files each.
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
        ensure!(
            stats.shared_sets <= users && (blocks > 0) == (users > 0),
            "{}: {stats:?} of {users} files",
            self.variant()
        );
        Ok(blocks)
    }
}
