//! Blocks of extended attributes that are shared by content, over any index that finds them.
//!
//! A file system that keeps the attributes of a file in a block of its own stores equal blocks once,
//! and counts their users. That takes an index from the hash of a content to the blocks that may have
//! it, and what such indices cost each other is what document 004 is about. So the file system is
//! written once (`memory`), over [`BlockIndex`], and the designs are what is put under it.
//!
//! | variant | index |
//! |---|---|
//! | `corewalk` | `corewalk_mbcache`: a bit for recency, finds without a lock |
//! | `off` | none: each file has a block of its own, and nothing is hashed |
//! | `before-mbcache`, `plain-lru`, `lru-per-shard` | `before::mbcache` |
//!
//! # The seam
//! [`AttrStore`] is what a table sees: files that have one attribute each. The store in memory (`memory`)
//! and that on a disk (`disk`) have the same indices under them; a tmpfs (`tmpfs`) has its own or none.
//!
//! Source: document 004; Linux `fs/ext4/xattr.c` for who asks an index for what.

mod disk;
mod memory;
mod tmpfs;

pub(crate) use disk::{DiskStore, designs, no_design};
pub(crate) use memory::MemoryStore;
pub(crate) use tmpfs::TmpfsStore;

use corewalk_mbcache::{Entry, Mbcache, MbcacheOptions};

/// Users that a block has at most, as in ext4.
pub(crate) const USERS_MAX: u32 = 1024;
/// Bytes of a block.
pub(crate) const BLOCK_BYTES: usize = 4096;

/// A multimap from hashes of contents to blocks.
///
/// The protocol is that of [`corewalk_mbcache`]; an index that has no use for a step does nothing in it.
pub(crate) trait BlockIndex: Sync {
    /// The name in the rows.
    const VARIANT: &'static str;
    /// Whether anything is ever found: if not, nobody has to hash.
    const IS_ON: bool = true;
    /// Whether a block that has as many users as it may have stays in it.
    const KEEPS_FULL: bool = true;
    /// An entry that was found.
    type Held<'a>: Held
    where
        Self: 'a;
    /// What is held while a user leaves a block.
    type Leaving<'a>
    where
        Self: 'a;

    /// Returns an entry under `key`.
    fn find_first(&self, key: u64) -> Option<Self::Held<'_>>;

    /// Returns another entry under the same key.
    fn find_next<'a>(&'a self, held: &Self::Held<'a>) -> Option<Self::Held<'a>>;

    /// Enters a block.
    fn create(&self, key: u64, block: u64);

    /// Begins to take a user off a block. The block is not locked.
    fn leave(&self, block: u64) -> Self::Leaving<'_>;

    /// Says that a block has room for users again. The block is locked.
    fn note_room(&self, _key: u64, _block: u64) {}

    /// Takes the entry of a block out, whose last user is leaving. The block is locked. If somebody holds
    /// the entry it stays, and what is returned waits for that, to be called without the lock.
    fn delete_or_get<'a>(
        &'a self,
        leaving: &mut Self::Leaving<'a>,
        key: u64,
        block: u64,
    ) -> Option<impl FnOnce() + 'a>;

    /// Returns how many entries there are.
    fn entries(&self) -> u64;
}

/// An entry that was found, and stays for as long as this lives if its index promises that.
pub(crate) trait Held {
    /// Returns the block.
    fn block(&self) -> u64;

    /// Says that the block has as many users as it may have. The block is locked.
    fn note_full(&self) {}

    /// Says that the entry was of use.
    fn touch(&self) {}
}

/// Files with one attribute each, which workers set.
pub(crate) trait AttrStore: Sync {
    /// Returns the name in the rows.
    fn variant(&self) -> &'static str;

    /// Sets the attribute of a file of a worker.
    fn set(&self, worker: usize, file: usize, value: &[u8]);

    /// Returns true if that is the attribute of the file.
    fn has(&self, worker: usize, file: usize, value: &[u8]) -> bool;

    /// Takes the attributes of all files of a worker away.
    fn clear(&self, worker: usize);

    /// Returns how many blocks are in use, after counting that the users of each and the entries of the
    /// index are what they must be.
    ///
    /// # Errors
    /// What does not add up. Nobody is at work meanwhile.
    fn audit(&self) -> anyhow::Result<u64>;
}

/// No index.
pub(crate) struct Off;

/// What [`Off`] never finds.
pub(crate) enum Never {}

/// The de-duplication index of this project.
pub(crate) struct Corewalk(Mbcache);

impl Corewalk {
    /// Returns an empty cache with the options that it has by default.
    ///
    /// # Errors
    /// As [`Mbcache::new`].
    pub(crate) fn new() -> std::io::Result<Corewalk> {
        let options = MbcacheOptions { users_max: USERS_MAX, ..MbcacheOptions::default() };
        Ok(Corewalk(Mbcache::new(options)?))
    }
}

impl BlockIndex for Corewalk {
    const VARIANT: &'static str = "corewalk";
    const KEEPS_FULL: bool = false;
    type Held<'a> = Entry<'a>;
    type Leaving<'a> = ();

    #[inline]
    fn find_first(&self, key: u64) -> Option<Entry<'_>> {
        self.0.find_first(key)
    }

    #[inline]
    fn find_next<'a>(&'a self, held: &Entry<'a>) -> Option<Entry<'a>> {
        self.0.find_next(held)
    }

    #[inline]
    fn create(&self, key: u64, block: u64) {
        // What cannot be entered is not shared.
        let _ = self.0.create(key, block);
    }

    #[inline]
    fn leave(&self, _block: u64) {}

    fn note_room(&self, key: u64, block: u64) {
        self.0.note_users(key, block, USERS_MAX - 1);
    }

    #[inline]
    fn delete_or_get<'a>(
        &'a self,
        _leaving: &mut (),
        key: u64,
        block: u64,
    ) -> Option<impl FnOnce() + 'a> {
        self.0.delete_or_get(key, block).map(|busy| || busy.wait())
    }

    fn entries(&self) -> u64 {
        self.0.stats().entries
    }
}

impl Held for Entry<'_> {
    #[inline]
    fn block(&self) -> u64 {
        self.value()
    }

    fn note_full(&self) {
        self.note_users(USERS_MAX);
    }

    #[inline]
    fn touch(&self) {
        Entry::touch(self);
    }
}

impl BlockIndex for Off {
    const VARIANT: &'static str = "off";
    const IS_ON: bool = false;
    type Held<'a> = Never;
    type Leaving<'a> = ();

    fn find_first(&self, _key: u64) -> Option<Never> {
        None
    }

    fn find_next(&self, held: &Never) -> Option<Never> {
        match *held {}
    }

    fn create(&self, _key: u64, _block: u64) {}

    fn leave(&self, _block: u64) {}

    fn delete_or_get<'a>(
        &'a self,
        _leaving: &mut (),
        _key: u64,
        _block: u64,
    ) -> Option<impl FnOnce() + 'a> {
        None::<fn()>
    }

    fn entries(&self) -> u64 {
        0
    }
}

impl Held for Never {
    fn block(&self) -> u64 {
        match *self {}
    }
}
