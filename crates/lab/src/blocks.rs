//! Stores of extended attributes that share equal blocks. Each can use one of several indexes.
//!
//! A file system can store equal attribute blocks once, and count the users of each. It needs an
//! index from the hash of a content to the blocks with that hash. Kara compared such indexes in
//! 2015 (document 004 in `documents.md`).
//!
//! Each store in this module is generic over the index ([`corewalk_store::ShareIndex`]), so that
//! every design is measured with the same store.
//!
//! | variant | index |
//! |---|---|
//! | `corewalk` | `corewalk_mbcache`: a referenced bit; a find takes no lock |
//! | `off` | none: each file has its own block, and the store hashes nothing |
//! | `before-mbcache`, `plain-lru`, `lru-per-shard` | `before::mbcache` |
//!
//! An [`AttrStore`] is a store with files that have one attribute each. The stores in memory
//! (`memory`) and on disk (`disk`) are measured with each design of the index. The tmpfs (`tmpfs`)
//! shares equal attributes by its own index, or has sharing switched off.
//!
//! Source: document 004 in `documents.md`; Linux `fs/ext4/xattr.c` for the steps.

mod disk;
mod files;
mod memory;
mod tmpfs;

pub(crate) use disk::DiskStore;
pub(crate) use memory::MemoryStore;
pub(crate) use tmpfs::TmpfsStore;

use corewalk_base::primitives::Arc;
use corewalk_mbcache::MbcacheOptions;
use corewalk_store::{MbcacheIndex, NoSharing, ShareIndex};

use crate::before::mbcache::{Lru, OneLock};
use crate::machine::cores;

/// Maximum number of users of a block, as in ext4.
pub(crate) const USERS_MAX: u32 = 1024;
/// Bytes of a block.
pub(crate) const BLOCK_BYTES: usize = 4096;
/// The bytes that corewalk's index may use. The budget is the same as in `corewalk-store`.
const INDEX_BYTES: u64 = 4 << 20;

/// A design of the index: its name in the result rows, and the index.
pub(crate) type Design = (&'static str, Arc<dyn ShareIndex>);

/// Files with one attribute each, which workers set.
pub(crate) trait AttrStore: Sync {
    /// Returns the name of this variant in the result rows.
    fn variant(&self) -> &'static str;

    /// Sets the attribute of a file of a worker.
    fn set(&self, worker: usize, file: usize, value: &[u8]);

    /// Returns true if the file has this attribute.
    fn has(&self, worker: usize, file: usize, value: &[u8]) -> bool;

    /// Removes the attributes of all files of a worker.
    fn clear(&self, worker: usize);

    /// Checks that the user counts of all blocks, and the index, agree with the files. Returns the
    /// number of blocks in use. No worker may run meanwhile.
    ///
    /// # Errors
    /// Counts that do not agree.
    fn audit(&self) -> anyhow::Result<u64>;

    /// Makes all attributes durable. Does nothing in a store without a database.
    fn sync(&self) {}

    /// Closes the store. If it has a database, that must have `blocks` attribute blocks.
    ///
    /// # Errors
    /// The database does not have exactly `blocks` attribute blocks, or the store is not
    /// consistent.
    fn check(self: Box<Self>, _blocks: u64) -> anyhow::Result<()> {
        Ok(())
    }
}

/// Returns the measured designs of the de-duplication index, with room for `entries` blocks, in the
/// order of Kara's figures (document 004 in `documents.md`).
///
/// # Errors
/// If there is no memory for one.
pub(crate) fn designs(entries: usize) -> anyhow::Result<Vec<Design>> {
    let options =
        MbcacheOptions::default().with_users_max(USERS_MAX).with_budget_bytes(INDEX_BYTES);
    Ok(vec![
        ("before-mbcache", Arc::new(OneLock::new(entries))),
        ("plain-lru", Arc::new(Lru::new(entries, 1))),
        ("lru-per-shard", Arc::new(Lru::new(entries, cores().max(2)))),
        ("corewalk", Arc::new(MbcacheIndex::new(options)?)),
        ("off", Arc::new(NoSharing)),
    ])
}
