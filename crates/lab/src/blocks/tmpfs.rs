//! A tmpfs of this project, as a library: what sharing costs where values never reach a disk.
//!
//! The table measures it with sharing and without. The store of `memory` shares at each set. This
//! tmpfs keeps a set that replaced another one private until the file was left alone for 100 ms.
//! Then it shares the set with the next changes of attributes, so it never hashes a set that is
//! replaced at once. An audit first shares all waiting sets ([`Tmpfs::share_xattrs`]): its counts
//! are those of a file system at rest.
//!
//! Source: `corewalk::tmpfs`; document 004.

use anyhow::ensure;
use corewalk::tmpfs::{Tmpfs, TmpfsOptions};
use corewalk::{FileKind, FileSystem as _, Make, Name, Node, XattrMode};

use super::AttrStore;

/// The attribute.
const NAME: &[u8] = b"user.bench";
/// The number of the root directory.
const ROOT_INO: u64 = 1;

/// The file system, with the files of each worker.
pub(crate) struct TmpfsStore {
    fs: Tmpfs,
    is_sharing: bool,
    files: Vec<Vec<u64>>,
}

impl TmpfsStore {
    /// Returns a file system that shares attributes, or does not, of so many workers with so many
    /// files each.
    ///
    /// # Errors
    /// If a file cannot be made.
    pub(crate) fn new(
        share_xattrs: bool,
        (workers, files): (usize, usize),
    ) -> anyhow::Result<TmpfsStore> {
        let fs = Tmpfs::new(TmpfsOptions::default().with_share_xattrs(share_xattrs));
        let root = Node::detached(ROOT_INO, FileKind::Directory);
        let make = |worker: usize, file: usize| {
            let name = format!("{worker}-{file:06}");
            let made = fs.make(root, Name::new(name.as_bytes())?, &Make::new(0o100_644, 0, 0))?;
            anyhow::Ok(made.ino)
        };
        let all = (0..workers).map(|worker| (0..files).map(|file| make(worker, file)).collect());
        let files = all.collect::<anyhow::Result<_>>()?;
        Ok(TmpfsStore { fs, is_sharing: share_xattrs, files })
    }

    fn node(&self, worker: usize, file: usize) -> Node<'static> {
        Node::detached(self.files[worker][file], FileKind::Regular)
    }
}

impl AttrStore for TmpfsStore {
    fn variant(&self) -> &'static str {
        if self.is_sharing { "corewalk" } else { "off" }
    }

    fn set(&self, worker: usize, file: usize, value: &[u8]) {
        let set = self.fs.setxattr(self.node(worker, file), NAME, value, XattrMode::Set);
        set.expect("there is no limit");
    }

    fn has(&self, worker: usize, file: usize, value: &[u8]) -> bool {
        self.fs.getxattr(self.node(worker, file), NAME).is_ok_and(|has| has == value)
    }

    fn clear(&self, worker: usize) {
        for file in 0..self.files[worker].len() {
            // Those without one are not in this cell.
            let _ = self.fs.removexattr(self.node(worker, file), NAME);
        }
    }

    fn audit(&self) -> anyhow::Result<u64> {
        self.fs.share_xattrs();
        let all = self.files.iter().enumerate();
        let nodes = all.flat_map(|(worker, files)| (0..files.len()).map(move |at| (worker, at)));
        let has = |&(worker, file): &(usize, usize)| {
            self.fs.getxattr(self.node(worker, file), NAME).is_ok()
        };
        let users = nodes.filter(has).count() as u64;
        let stats = self.fs.xattr_stats();
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
