//! The store of this project over each design's index: values reach blocks of a database.
//!
//! A `corewalk_store::Store` finds equal sets of attributes through a `ShareIndex`; here it uses
//! the designs. The table measures the store as a library: through FUSE a call takes some 20
//! microseconds, which hides the rest. The directory of the store is in the host's memory, as the
//! document's ramdisk was.
//!
//! The document's designs share each set at once, as the document's file system did. `corewalk` is
//! the store as it is: it shares late what changes again and again
//! (`StoreOptions::is_sharing_late`). `off` hashes nothing, and changes blocks in place. No design
//! checks whether a pair is there before it enters the pair (Linux did).
//!
//! # Checks
//! The store's own counts, once all attributes are shared. At the end `corewalk_store::fsck` counts
//! the users of every block again ([`DiskStore::check`]).
//!
//! Source: document 004; `corewalk_store::ShareIndex`.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, ensure};
use corewalk::{FileKind, FileSystem as _, Make, Name, Node, XattrMode};
use corewalk_base::primitives::Arc;
use corewalk_store::{Store, StoreOptions, StoreStats, fsck};

use super::{AttrStore, Design, Index, USERS_MAX};

/// The attribute.
const NAME: &[u8] = b"user.bench";
/// The design of this project.
const OURS: &str = "corewalk";
/// The number of the root directory.
const ROOT_INO: u64 = 1;

/// A store in a directory.
pub(crate) struct DiskStore {
    variant: &'static str,
    path: PathBuf,
    /// None once it is closed.
    store: Option<Store>,
    index: Arc<dyn Index>,
    /// The files of each worker.
    files: Vec<Vec<u64>>,
}

impl DiskStore {
    /// Makes a store in the new folder `path`, with so many workers with so many files each.
    ///
    /// # Errors
    /// If it cannot be made.
    pub(crate) fn new(
        (variant, index): Design,
        path: &Path,
        (workers, files): (usize, usize),
    ) -> anyhow::Result<DiskStore> {
        let store = open(path, variant, &index)?;
        let make = |dir: Node<'_>, name: String, mode| {
            let made = store.make(dir, Name::new(name.as_bytes())?, &Make::new(mode, 0, 0))?;
            anyhow::Ok(made.ino)
        };
        let mut all = vec![];
        for worker in 0..workers {
            let root = Node::detached(ROOT_INO, FileKind::Directory);
            let dir = make(root, format!("worker-{worker}"), 0o040_755)?;
            let dir = Node::detached(dir, FileKind::Directory);
            let files = (0..files).map(|file| make(dir, format!("file-{file:06}"), 0o100_644));
            all.push(files.collect::<anyhow::Result<_>>()?);
        }
        store.sync().context("sync")?;
        Ok(DiskStore { variant, path: path.to_owned(), store: Some(store), index, files: all })
    }

    /// Returns the store's counters.
    pub(crate) fn stats(&self) -> StoreStats {
        self.store().stats()
    }

    /// Closes the store, and returns how many bytes of the host its database takes.
    ///
    /// # Errors
    /// If the host does not say.
    pub(crate) fn close_and_measure(&mut self) -> anyhow::Result<u64> {
        self.store = None;
        let meta = std::fs::metadata(self.path.join("meta")).context("the database")?;
        Ok(meta.blocks() * 512)
    }

    /// Opens the closed store again, with another design.
    ///
    /// # Errors
    /// If it cannot be opened.
    pub(crate) fn reopen(&mut self, (variant, index): Design) -> anyhow::Result<()> {
        self.store = Some(open(&self.path, variant, &index)?);
        (self.variant, self.index) = (variant, index);
        Ok(())
    }

    fn store(&self) -> &Store {
        self.store.as_ref().expect("only its owner closes it")
    }

    fn node(&self, worker: usize, file: usize) -> Node<'static> {
        Node::detached(self.files[worker][file], FileKind::Regular)
    }
}

impl AttrStore for DiskStore {
    fn variant(&self) -> &'static str {
        self.variant
    }

    fn set(&self, worker: usize, file: usize, value: &[u8]) {
        let set = self.store().setxattr(self.node(worker, file), NAME, value, XattrMode::Set);
        set.expect("there is room");
    }

    fn has(&self, worker: usize, file: usize, value: &[u8]) -> bool {
        self.store().getxattr(self.node(worker, file), NAME).is_ok_and(|has| has == value)
    }

    fn clear(&self, worker: usize) {
        for file in 0..self.files[worker].len() {
            // A file without an attribute is not in this cell.
            let _ = self.store().removexattr(self.node(worker, file), NAME);
        }
    }

    fn sync(&self) {
        self.store().sync().expect("the store is in memory");
    }

    fn check(mut self: Box<Self>, blocks: u64) -> anyhow::Result<()> {
        self.store = None;
        let report = fsck(&self.path).context("fsck")?;
        ensure!(report.findings.is_empty(), "{}: fsck: {:?}", self.variant, report.findings);
        ensure!(
            report.xattr_blocks == blocks,
            "{}: {blocks} blocks were counted, and {} are on the disk",
            self.variant,
            report.xattr_blocks
        );
        Ok(())
    }

    fn audit(&self) -> anyhow::Result<u64> {
        self.store().share_xattrs();
        let stats = self.stats();
        let all = self.files.iter().enumerate();
        let has = |worker: usize, file: usize| self.store().getxattr(self.node(worker, file), NAME);
        let users: usize = all
            .map(|(worker, files)| {
                (0..files.len()).filter(|&file| has(worker, file).is_ok()).count()
            })
            .sum();
        ensure!(
            stats.xattr_users == users as u64,
            "{}: {} users are counted and there are {users}",
            self.variant,
            stats.xattr_users
        );
        let (blocks, bound) = (stats.xattr_blocks, u64::from(USERS_MAX));
        ensure!(
            blocks <= users as u64 && blocks * bound >= users as u64,
            "{}: {blocks} blocks for {users} users",
            self.variant
        );
        if self.index.users_max() == 1 {
            return Ok(blocks);
        }
        let entries = self.index.entries();
        // A full block may have none.
        let least = blocks - (users as u64 / bound).min(blocks);
        ensure!(
            (least..=blocks).contains(&entries),
            "{}: {entries} entries for {blocks} blocks",
            self.variant
        );
        Ok(blocks)
    }
}

fn open(path: &Path, variant: &str, index: &Arc<dyn Index>) -> anyhow::Result<Store> {
    let is_sharing_late = variant == OURS;
    let share = Some(Arc::clone(index) as _);
    let options = StoreOptions::default().with_share(share).with_sharing_late(is_sharing_late);
    Store::open(path, &options).with_context(|| format!("{}", path.display()))
}

#[cfg(test)]
mod tests;
