//! corewalk's store on disk, once with each measured design of the de-duplication index (mbcache).
//! Attribute values are blocks of its database.
//!
//! A `corewalk_store::Store` finds equal attribute sets through a `ShareIndex`. The benchmark gives
//! it several implementations of this index, the designs. It calls the store as a library, because
//! a call through FUSE takes about 20 microseconds, which would hide the differences.
//!
//! The store is in the host's tmpfs, since Kara's measurement used a ramdisk (document 004 in
//! `documents.md`).
//!
//! The designs `before-mbcache`, `plain-lru` and `lru-per-shard` share each attribute set as soon
//! as it is written, as in Kara's patches. `corewalk` is the store with its defaults: it delays the
//! sharing of sets that change again and again (`StoreOptions::is_sharing_late`). `off` shares no
//! sets, so it computes no hashes, and changes blocks in place.
//!
//! Linux looks for an entry with the same key and block before it adds one. These designs omit this
//! check.
//!
//! # Checks
//! After all attribute sets are shared, the store's own counts must be consistent. At the end
//! `corewalk_store::fsck` counts the users of every block again ([`DiskStore::check`]).
//!
//! Source: document 004 in `documents.md`; `corewalk_store::ShareIndex`.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, ensure};
use corewalk_base::primitives::Arc;
use corewalk_store::{ShareIndex, Store, StoreOptions, fsck};

use super::files::AttrFiles;
use super::{AttrStore, Design, USERS_MAX};

/// A store in a directory.
pub(crate) struct DiskStore {
    variant: &'static str,
    path: PathBuf,
    /// None once it is closed.
    store: Option<Store>,
    index: Arc<dyn ShareIndex>,
    files: AttrFiles,
}

impl DiskStore {
    /// Makes a store in the new folder `path`, for `size.0` workers with `size.1` files each.
    ///
    /// # Errors
    /// If it cannot be made.
    pub(crate) fn new(
        design: Design,
        path: &Path,
        size: (usize, usize),
    ) -> anyhow::Result<DiskStore> {
        let (variant, index) = design;
        let store = open(path, variant, &index)?;
        let files = AttrFiles::make(&store, size)?;
        store.sync().context("sync")?;
        Ok(DiskStore { variant, path: path.to_owned(), store: Some(store), index, files })
    }

    /// Closes the store, and returns the bytes of its database on the host.
    ///
    /// # Errors
    /// If the host cannot report the size.
    pub(crate) fn close_and_measure(&mut self) -> anyhow::Result<u64> {
        self.store = None;
        let meta = std::fs::metadata(self.path.join("meta")).context("the database")?;
        Ok(meta.blocks() * 512)
    }

    /// Opens the closed store again, with another design.
    ///
    /// # Errors
    /// If it cannot be opened.
    pub(crate) fn reopen(&mut self, design: Design) -> anyhow::Result<()> {
        (self.variant, self.index) = design;
        self.store = Some(open(&self.path, self.variant, &self.index)?);
        Ok(())
    }

    fn store(&self) -> &Store {
        self.store.as_ref().expect("only its owner closes it")
    }
}

impl AttrStore for DiskStore {
    fn variant(&self) -> &'static str {
        self.variant
    }

    fn set(&self, worker: usize, file: usize, value: &[u8]) {
        self.files.set(self.store(), (worker, file), value);
    }

    fn has(&self, worker: usize, file: usize, value: &[u8]) -> bool {
        self.files.get(self.store(), (worker, file)).is_some_and(|has| has == value)
    }

    fn clear(&self, worker: usize) {
        self.files.clear(self.store(), worker);
    }

    fn sync(&self) {
        self.store().sync().expect("the store is in memory");
    }

    fn check(mut self: Box<Self>, blocks: u64) -> anyhow::Result<()> {
        self.store = None;
        let report = fsck(&self.path).context("fsck")?;
        ensure!(report.findings.is_empty(), "{}: fsck: {:?}", self.variant, report.findings);
        let (variant, found) = (self.variant, report.xattr_blocks);
        ensure!(
            found == blocks,
            "{variant}: {blocks} blocks were counted, {found} are on the disk"
        );
        Ok(())
    }

    fn audit(&self) -> anyhow::Result<u64> {
        self.store().share_xattrs();
        let (variant, stats) = (self.variant, self.store().stats());
        let (counted, users) = (stats.xattr_users, self.files.users(self.store()));
        ensure!(counted == users, "{variant}: {counted} users are counted and there are {users}");
        let (blocks, bound) = (stats.xattr_blocks, u64::from(USERS_MAX));
        let is_right = blocks <= users && blocks * bound >= users;
        ensure!(is_right, "{variant}: {blocks} blocks for {users} users");
        if self.index.users_max() == 1 {
            return Ok(blocks);
        }
        let entries = self.index.stats().entries;
        // A full block may have none.
        let least = blocks - (users / bound).min(blocks);
        let is_right = (least..=blocks).contains(&entries);
        ensure!(is_right, "{variant}: {entries} entries for {blocks} blocks");
        Ok(blocks)
    }
}

fn open(path: &Path, variant: &str, index: &Arc<dyn ShareIndex>) -> anyhow::Result<Store> {
    let share = Some(Arc::clone(index));
    let options = StoreOptions::default().with_share(share);
    let options = options.with_sharing_late(variant == "corewalk");
    Store::open(path, &options).with_context(|| format!("{}", path.display()))
}

#[cfg(test)]
mod tests;
