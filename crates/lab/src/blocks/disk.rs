//! The store of this project with the designs' indices under it: values reach blocks of a database.
//!
//! A `corewalk_store::Store` finds equal sets of attributes through a `ShareIndex`, and the designs are
//! plugged in there. What is measured is the store as a library: through FUSE a call takes some 20
//! microseconds, which hides all of it. Its directory is in the host's memory, as the document's ramdisk.
//!
//! # How the designs are plugged in
//! - `corewalk`: the store's own [`MbcacheIndex`]; `off`: the store's own [`NoSharing`].
//! - `before-mbcache`: who leaves a block has its entry alone from before the block is locked (rule H.4
//!   of the seam), and who looks for it waits.
//! - `plain-lru`, `lru-per-shard`: who finds an entry that is deleted meanwhile keeps it, against rule
//!   H.2, as in the document: what is then found is no block any more, or has another content, and the
//!   block's lock decides.
//!
//! - The designs of the document share each set at once, as the document's file system did; `corewalk` is the store
//!   as it is, which shares late what is changed again and again (`StoreOptions::is_sharing_late`). `off` hashes
//!   nothing, and changes blocks in place.
//!
//! Nobody looks twice whether a pair is there (Linux did): none of them is asked to enter one that is.
//!
//! # Checks
//! The store's own counts, once what waits is shared; and, once all is measured, `corewalk_store::fsck`, which counts the users of
//! every block anew ([`DiskStore::check`]).
//!
//! Source: document 004; `corewalk_store::ShareIndex`.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, ensure};
use corewalk::{FileKind, FileSystem as _, Make, Name, Node, XattrMode};
use corewalk_base::primitives::Arc;
use corewalk_mbcache::MbcacheOptions;
use corewalk_store::{
    MbcacheIndex, NoSharing, Removal, ShareIndex, Store, StoreOptions, StoreStats, fsck,
};

use super::{AttrStore, BlockIndex, Held, USERS_MAX};
use crate::before::mbcache::{ListPerShard, Lru, OneList, OneLock};

/// The attribute.
const NAME: &[u8] = b"user.bench";
/// Bytes that the cache of this project may take: as much as the store gives it.
const INDEX_BYTES: u64 = 4 << 20;
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
    entries: Entries,
    /// The files of each worker.
    files: Vec<Vec<u64>>,
}

/// Returns how many entries an index has; None if there is no index.
type Entries = Box<dyn Fn() -> Option<u64> + Send + Sync>;

/// A design, by its name in the rows, as what a store finds blocks with.
pub(crate) type Design = (&'static str, Arc<dyn ShareIndex>, Entries);

/// An index without a use for rule H.4.
struct Plugged<I>(I);

/// Returns the designs for so many blocks, in the order of the document.
///
/// # Errors
/// If there is no memory for one.
pub(crate) fn designs(entries: usize) -> anyhow::Result<Vec<Design>> {
    let one_lock = Arc::new(OneLock::new(entries));
    let one_list = Arc::new(Plugged(Lru::<OneList>::new(entries)));
    let lists = Arc::new(Plugged(Lru::<ListPerShard>::new(entries)));
    let options = MbcacheOptions { budget_bytes: INDEX_BYTES, ..MbcacheOptions::default() };
    let ours = Arc::new(MbcacheIndex::new(options)?);
    Ok(vec![
        (OneLock::VARIANT, one_lock.clone() as _, Box::new(move || Some(one_lock.entries()))),
        (
            Lru::<OneList>::VARIANT,
            one_list.clone() as _,
            Box::new(move || Some(one_list.0.entries())),
        ),
        (
            Lru::<ListPerShard>::VARIANT,
            lists.clone() as _,
            Box::new(move || Some(lists.0.entries())),
        ),
        (OURS, ours.clone() as _, Box::new(move || Some(ours.cache().stats().entries))),
        no_design(),
    ])
}

/// Returns what finds nothing.
pub(crate) fn no_design() -> Design {
    ("off", Arc::new(NoSharing), Box::new(|| None))
}

impl DiskStore {
    /// Makes a store in the new folder `path`, with so many workers with so many files each.
    ///
    /// # Errors
    /// If it cannot be made.
    pub(crate) fn new(
        (variant, share, entries): Design,
        path: &Path,
        (workers, files): (usize, usize),
    ) -> anyhow::Result<DiskStore> {
        let store = open(path, variant, share)?;
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
        Ok(DiskStore { variant, path: path.to_owned(), store: Some(store), entries, files: all })
    }

    /// Makes durable what was set.
    ///
    /// # Panics
    /// If the disk does not take it.
    pub(crate) fn sync(&self) {
        self.store().sync().expect("the store is in memory");
    }

    /// Returns what the store counts.
    pub(crate) fn stats(&self) -> StoreStats {
        self.store().stats()
    }

    /// Closes the store, and returns the bytes that the database has of the host.
    ///
    /// # Errors
    /// If the host does not say.
    pub(crate) fn close_and_measure(&mut self) -> anyhow::Result<u64> {
        self.store = None;
        let meta = std::fs::metadata(self.path.join("meta")).context("the database")?;
        Ok(meta.blocks() * 512)
    }

    /// Opens the store, which was closed, with another design.
    ///
    /// # Errors
    /// If it cannot be opened.
    pub(crate) fn reopen(&mut self, (variant, share, entries): Design) -> anyhow::Result<()> {
        self.store = None;
        (self.variant, self.entries) = (variant, entries);
        self.store = Some(open(&self.path, variant, share)?);
        Ok(())
    }

    /// Closes the store and counts the users of every block anew, by what is on the disk.
    ///
    /// # Errors
    /// What `fsck` finds, and another number of blocks than `blocks`.
    pub(crate) fn check(mut self, blocks: u64) -> anyhow::Result<()> {
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

    fn store(&self) -> &Store {
        self.store.as_ref().expect("it is closed only by who owns it")
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
            // Those without one are not in this cell.
            let _ = self.store().removexattr(self.node(worker, file), NAME);
        }
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
        let entries = (self.entries)().unwrap_or(blocks);
        // Those that are full need not be there.
        let least = blocks - (users as u64 / bound).min(blocks);
        ensure!(
            (least..=blocks).contains(&entries),
            "{}: {entries} entries for {blocks} blocks",
            self.variant
        );
        Ok(blocks)
    }
}

impl<L> ShareIndex for Plugged<Lru<L>>
where
    Lru<L>: BlockIndex + Send + 'static,
{
    fn find(&self, key: u64, take: &mut dyn FnMut(u64) -> bool) -> Option<u64> {
        find(&self.0, key, take)
    }

    fn insert(&self, key: u64, block: u64, _: u32) {
        self.0.create(key, block);
    }

    fn note_users(&self, _: u64, _: u64, _: u32) {}

    fn remove(&self, key: u64, block: u64) -> Removal {
        let mut leaving = self.0.leave(block);
        drop(self.0.delete_or_get(&mut leaving, key, block));
        Removal::Done
    }

    fn wait(&self, _: u64, _: u64) {}

    fn users_max(&self) -> u32 {
        USERS_MAX
    }
}

impl ShareIndex for OneLock {
    fn find(&self, key: u64, take: &mut dyn FnMut(u64) -> bool) -> Option<u64> {
        find(self, key, take)
    }

    fn insert(&self, key: u64, block: u64, _: u32) {
        self.create(key, block);
    }

    fn note_users(&self, _: u64, _: u64, _: u32) {}

    fn leave(&self, block: u64) {
        self.take_alone(block);
    }

    fn left(&self, block: u64) {
        self.let_go(block);
    }

    fn remove(&self, _: u64, block: u64) -> Removal {
        self.delete_alone(block);
        Removal::Done
    }

    fn wait(&self, _: u64, _: u64) {}

    fn users_max(&self) -> u32 {
        USERS_MAX
    }
}

fn open(path: &Path, variant: &str, share: Arc<dyn ShareIndex>) -> anyhow::Result<Store> {
    let is_sharing_late = variant == OURS;
    let options = StoreOptions { share: Some(share), is_sharing_late, ..StoreOptions::default() };
    Store::open(path, &options).with_context(|| format!("{}", path.display()))
}

/// Goes over what is found under a key until one is taken.
fn find<I: BlockIndex>(index: &I, key: u64, take: &mut dyn FnMut(u64) -> bool) -> Option<u64> {
    let mut found = index.find_first(key);
    while let Some(entry) = found {
        if take(entry.block()) {
            entry.touch();
            return Some(entry.block());
        }
        found = index.find_next(&entry);
    }
    None
}

#[cfg(test)]
mod tests;
