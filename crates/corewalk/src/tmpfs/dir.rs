//! The entries of one directory.
//!
//! A directory finds entries by name, and can be read from any position while it changes. Reading
//! is hard because of the cookie, the position at which a reader continues, perhaps much later. A
//! reader must neither miss nor repeat an entry that exists all the time.
//!
//! A position in a growing hash table cannot serve as a cookie, because entries move when the table
//! grows. A cursor inside the directory would have to move when entries are removed. A wrong move
//! skips entries (trap T48 in `traps.md`).
//!
//! In this module each new entry takes its cookie from a counter and keeps it, so "behind cookie c"
//! never changes its meaning.
//!
//! # Mechanism
//! Entries are in chunks by cookie: chunk n has the cookies 128 n to 128 n + 127, in order. `index`
//! maps the hash of a name to a handle: the index of the entry's chunk in `chunks`, and the cookie
//! within that chunk. Only `readdir` searches by cookie. It uses `order`, a tree that maps n to
//! chunk n.
//!
//! A removed entry leaves a tombstone until a chunk has many; then the chunk is compacted. The
//! directory is never rehashed or compacted as a whole, so operations on millions of entries take
//! about as long as on hundreds. The hash is keyed, so crafted names cannot collide (trap T54 in
//! `traps.md`).
//!
//! # Guarantees
//! - E.1: cookies are never 0, never reused, and ascend in the order of insertion.
//! - E.2: replacing the inode of a name keeps the cookie. So a listing reports a name that exists
//!   throughout exactly once, even if files are renamed onto it (trap P13 in `traps.md`).
//! - E.3: a batch (the entries that `readdir` copies together) visits a bounded number of
//!   positions, however many entries were removed.
//! - E.4: renaming an entry within the directory keeps the cookie. So a listing reports a renamed
//!   file once, and ends even if each reported file is renamed.
//!
//! # Limits
//! `.` and `..` are not entries; the caller adds them. A removed directory takes no new entries
//! (`ENOENT`). The lock of its inode protects a `Directory`.
//!
//! Source: readdir(3), getdents(2); Linux `fs/libfs.c` (stable directory offsets).

use std::collections::BTreeMap;

use super::index::{HashIndex, Position};
use super::table::ROOT_INO;
use crate::Errno;
use crate::attr::FileKind;
use crate::fs::DirEntry;
use crate::hash::HashKeys;
use crate::name::{Name, name_words};

/// Number of cookies per chunk. A chunk is compacted when most of its entries were removed. That
/// moves at most this many entries.
const CHUNK_COOKIES: u64 = 1 << CHUNK_BITS;
/// Number of low bits of a handle that identify the entry within its chunk.
const CHUNK_BITS: u32 = 7;
const CHUNKS_MAX: usize = 1 << (u32::BITS - CHUNK_BITS);
const SPARSE_MIN: usize = 16;
const HASHED_WORDS: usize = 5;
const INLINE_BYTES: usize = 22;

/// A name and its hash, computed before any lock is taken.
#[derive(Clone, Copy)]
pub(super) struct Key<'a> {
    name: Name<'a>,
    hash: u32,
}

impl<'a> Key<'a> {
    #[inline]
    pub(super) fn new(name: Name<'a>, keys: &HashKeys) -> Key<'a> {
        let words: [u64; HASHED_WORDS] = name_words(name.as_bytes());
        Key { name, hash: keys.name(name.as_bytes(), &words).child(0) as u32 }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Link {
    pub(super) ino: u64,
    pub(super) kind: FileKind,
}

/// An entry that was found by its name. It can be used until an entry of the directory is added,
/// renamed or removed.
#[derive(Clone, Copy)]
pub(super) struct FoundEntry {
    pub(super) link: Link,
    position: Position,
    handle: u32,
}

/// The entries of one directory. All fields are protected by the lock of the directory's inode.
pub(super) struct Directory {
    is_removed: bool,
    parent: u64,
    last_cookie: u64,
    len: usize,
    chunks: Vec<Chunk>,
    /// Maps the first cookie of each used chunk to the chunk's index in `chunks`.
    order: BTreeMap<u64, u32>,
    vacant: Vec<u32>,
    last: u32,
    by_hash: HashIndex,
}

/// A group of entries with neighbouring cookies, in the order of the cookies. A removed entry is
/// replaced by a tombstone.
#[derive(Default)]
struct Chunk {
    /// The cookie that an entry with `low` 0 has.
    base: u64,
    len: usize,
    /// The field `low` of the first entry that was added to the chunk.
    first: u8,
    entries: Vec<Entry>,
}

impl Directory {
    pub(super) fn new() -> Directory {
        Directory {
            is_removed: false,
            parent: ROOT_INO,
            last_cookie: 0,
            len: 0,
            chunks: Vec::new(),
            order: BTreeMap::new(),
            vacant: Vec::new(),
            last: 0,
            by_hash: HashIndex::new(),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Returns the inode number of the parent directory. The parent of the root is the root.
    pub(super) fn parent(&self) -> u64 {
        self.parent
    }

    pub(super) fn set_parent(&mut self, parent: u64) {
        self.parent = parent;
    }

    pub(super) fn find(&self, key: Key<'_>) -> Option<FoundEntry> {
        let (position, (handle, link)) = self.by_hash.find(key.hash, |handle| {
            let chunk = &self.chunks[chunk_of(handle)];
            let entry = &chunk.entries[chunk.index_of(low_of(handle))?];
            (entry.name.as_bytes() == key.name.as_bytes()).then(|| (handle, entry.link()))
        })?;
        Some(FoundEntry { link, position, handle })
    }

    pub(super) fn check_alive(&self) -> Result<(), Errno> {
        if self.is_removed { Err(Errno::NOENT) } else { Ok(()) }
    }

    pub(super) fn collect_behind(&self, cookie: u64, count_max: usize, batch: &mut Batch) {
        let Some(next) = cookie.checked_add(1) else { return };
        let mut room = count_max;
        for &id in self.order.range(next & !(CHUNK_COOKIES - 1)..).map(|(_, id)| id) {
            let chunk = &self.chunks[id as usize];
            let first = chunk.entries.partition_point(|e| chunk.base + u64::from(e.low) < next);
            let entries = chunk.entries[first..].iter().filter(|entry| !entry.is_tombstone());
            for entry in entries.take(room) {
                batch.push(chunk.base + u64::from(entry.low), entry);
                room -= 1;
            }
            if room == 0 {
                break;
            }
        }
    }

    pub(super) fn insert(&mut self, key: Key<'_>, link: Link) -> Result<(), Errno> {
        self.check_alive()?;
        match self.find(key) {
            Some(_) => Err(Errno::EXIST),
            None => self.insert_free(key, link),
        }
    }

    /// Adds an entry for a name that is not in the directory.
    pub(super) fn insert_free(&mut self, key: Key<'_>, link: Link) -> Result<(), Errno> {
        self.check_alive()?;
        let low = ((self.last_cookie + 1) % CHUNK_COOKIES) as u8;
        if low == 0 || self.chunks.is_empty() {
            self.start_chunk()?;
        }
        self.last_cookie += 1;
        let name = EntryName::new(key.name);
        let chunk = &mut self.chunks[self.last as usize];
        if chunk.len == 0 {
            chunk.first = low;
        }
        chunk.entries.push(Entry { name, ino: link.ino, kind: link.kind, low });
        chunk.len += 1;
        self.by_hash.insert(key.hash, self.last << CHUNK_BITS | u32::from(low));
        self.len += 1;
        Ok(())
    }

    pub(super) fn replace(&mut self, found: FoundEntry, link: Link) {
        if let Some(entry) = self.entry_mut(found.handle) {
            (entry.ino, entry.kind) = (link.ino, link.kind);
        }
    }

    /// The new name is free.
    #[inline]
    pub(super) fn rename(&mut self, found: FoundEntry, key: Key<'_>) {
        if let Some(entry) = self.entry_mut(found.handle) {
            entry.name = EntryName::new(key.name);
            self.by_hash.rehash(found.position, key.hash);
        }
    }

    pub(super) fn remove(&mut self, found: FoundEntry) {
        let id = chunk_of(found.handle);
        let chunk = &mut self.chunks[id];
        let Some(index) = chunk.index_of(low_of(found.handle)) else { return };
        chunk.entries[index].make_tombstone();
        chunk.len -= 1;
        if chunk.len == 0 {
            chunk.entries.clear();
            if id as u32 != self.last {
                let chunk = std::mem::take(chunk);
                self.order.remove(&chunk.base);
                self.vacant.push(id as u32);
            }
        } else if chunk.entries.len() >= SPARSE_MIN && chunk.len <= chunk.entries.len() / 4 {
            chunk.entries.retain(|entry| !entry.is_tombstone());
            chunk.entries.shrink_to(chunk.len * 2);
        }
        self.by_hash.remove(found.position);
        self.len -= 1;
    }

    pub(super) fn mark_removed(&mut self) -> Result<(), Errno> {
        if self.len > 0 {
            return Err(Errno::NOTEMPTY);
        }
        self.is_removed = true;
        Ok(())
    }

    fn start_chunk(&mut self) -> Result<(), Errno> {
        let base = (self.last_cookie + 1) & !(CHUNK_COOKIES - 1);
        match self.chunks.get_mut(self.last as usize) {
            // The last chunk is empty, so reuse its memory.
            Some(last) if last.len == 0 => {
                self.order.remove(&last.base);
                last.base = base;
            }
            last => {
                // A directory that has filled one chunk will probably fill another.
                let room = if last.is_some() { CHUNK_COOKIES as usize } else { 0 };
                let chunk = Chunk { base, entries: Vec::with_capacity(room), ..Chunk::default() };
                if let Some(id) = self.vacant.pop() {
                    self.chunks[id as usize] = chunk;
                    self.last = id;
                } else if self.chunks.len() < CHUNKS_MAX {
                    self.last = self.chunks.len() as u32;
                    self.chunks.push(chunk);
                } else {
                    return Err(Errno::NOSPC);
                }
            }
        }
        self.order.insert(base, self.last);
        Ok(())
    }

    #[inline]
    fn entry_mut(&mut self, handle: u32) -> Option<&mut Entry> {
        let chunk = &mut self.chunks[chunk_of(handle)];
        let index = chunk.index_of(low_of(handle))?;
        Some(&mut chunk.entries[index])
    }
}

impl Chunk {
    #[inline]
    fn index_of(&self, low: u8) -> Option<usize> {
        // Most chunks were never compacted. In such a chunk, the index of an entry follows from
        // `low`.
        let guess = usize::from(low.wrapping_sub(self.first));
        if self.entries.get(guess).is_some_and(|e| e.low == low) {
            return Some(guess);
        }
        self.entries.binary_search_by_key(&low, |e| e.low).ok()
    }
}

/// Copies of some entries of a directory, so that they can be reported after the directory's lock
/// is released.
#[derive(Default)]
pub(super) struct Batch {
    names: Vec<u8>,
    entries: Vec<(u64, Link, u8)>,
}

impl Batch {
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = DirEntry<'_>> {
        let mut rest = self.names.as_slice();
        self.entries.iter().filter_map(move |&(cookie, link, len)| {
            let (name, after) = rest.split_at(usize::from(len));
            rest = after;
            // Every stored name is valid, so `Name::new` skips none.
            let name = Name::new(name).ok()?;
            Some(DirEntry::new(name, link.ino, link.kind, cookie))
        })
    }

    pub(super) fn clear(&mut self) {
        self.names.clear();
        self.entries.clear();
    }

    fn push(&mut self, cookie: u64, entry: &Entry) {
        let name = entry.name.as_bytes();
        self.names.extend_from_slice(name);
        // A name has at most 255 bytes.
        self.entries.push((cookie, entry.link(), name.len() as u8));
    }
}

/// An entry of a chunk. Its cookie is the chunk's base plus `low`.
struct Entry {
    name: EntryName,
    ino: u64,
    kind: FileKind,
    low: u8,
}

impl Entry {
    fn link(&self) -> Link {
        Link { ino: self.ino, kind: self.kind }
    }

    /// Turns the entry into a tombstone: gives it the inode number 0, which no inode has.
    fn make_tombstone(&mut self) {
        self.name = EntryName::Inline(0, [0; INLINE_BYTES]);
        self.ino = 0;
    }

    fn is_tombstone(&self) -> bool {
        self.ino == 0
    }
}

enum EntryName {
    Inline(u8, [u8; INLINE_BYTES]),
    Heap(Box<[u8]>),
}

impl EntryName {
    fn new(name: Name<'_>) -> EntryName {
        let name = name.as_bytes();
        let mut bytes = [0; INLINE_BYTES];
        match bytes.get_mut(..name.len()) {
            Some(short) => {
                short.copy_from_slice(name);
                EntryName::Inline(name.len() as u8, bytes)
            }
            None => EntryName::Heap(name.into()),
        }
    }

    fn as_bytes(&self) -> &[u8] {
        match self {
            EntryName::Inline(len, bytes) => &bytes[..usize::from(*len)],
            EntryName::Heap(bytes) => bytes,
        }
    }
}

fn chunk_of(handle: u32) -> usize {
    (handle >> CHUNK_BITS) as usize
}

fn low_of(handle: u32) -> u8 {
    handle as u8 & (CHUNK_COOKIES - 1) as u8
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    fn key(bytes: &[u8]) -> Key<'_> {
        let hash = u32::from(bytes[0] & 7);
        Key { name: Name::new(bytes).unwrap(), hash }
    }

    fn link(ino: u64) -> Link {
        Link { ino, kind: FileKind::Regular }
    }

    fn get(directory: &Directory, bytes: &[u8]) -> Option<Link> {
        directory.find(key(bytes)).map(|found| found.link)
    }

    fn remove(directory: &mut Directory, bytes: &[u8]) -> Option<Link> {
        let found = directory.find(key(bytes))?;
        directory.remove(found);
        Some(found.link)
    }

    fn listing(directory: &Directory, from: u64, step: usize) -> Vec<(Vec<u8>, u64, u64)> {
        let (mut all, mut cookie, mut batch) = (Vec::new(), from, Batch::default());
        loop {
            batch.clear();
            directory.collect_behind(cookie, step, &mut batch);
            assert!(batch.len() <= step, "E.3");
            if batch.len() == 0 {
                return all;
            }
            for entry in batch.iter() {
                assert!(entry.cookie > cookie, "E.1");
                cookie = entry.cookie;
                all.push((entry.name.as_bytes().to_vec(), entry.ino, cookie));
            }
        }
    }

    #[test]
    fn entry_is_small() {
        assert_eq!(size_of::<EntryName>(), 24);
        assert_eq!(size_of::<Entry>(), 40);
    }

    #[test]
    fn insert_into_removed_directory_is_enoent() {
        let mut directory = Directory::new();
        directory.insert(key(b"a"), link(2)).unwrap();
        assert_eq!(directory.mark_removed(), Err(Errno::NOTEMPTY));
        assert_eq!(directory.insert(key(b"a"), link(3)), Err(Errno::EXIST));
        assert_eq!(remove(&mut directory, b"a"), Some(link(2)));
        assert_eq!(directory.mark_removed(), Ok(()));
        assert_eq!(directory.insert(key(b"a"), link(4)), Err(Errno::NOENT));
        assert_eq!(get(&directory, b"a"), None);
    }

    #[test]
    fn cookie_at_the_end_of_numbers_lists_nothing() {
        let mut directory = Directory::new();
        directory.insert(key(b"a"), link(2)).unwrap();
        assert!(listing(&directory, u64::MAX, 5).is_empty());
        assert!(listing(&directory, 1, 5).is_empty());
        assert_eq!(listing(&directory, 0, 5).len(), 1);
    }

    #[derive(Clone, Debug)]
    enum Op {
        Insert(u8),
        Remove(u8),
        Replace(u8),
        Rename(u8, u8),
        List(u8, usize),
    }

    fn op() -> impl Strategy<Value = Op> {
        prop_oneof![
            4 => any::<u8>().prop_map(Op::Insert),
            3 => any::<u8>().prop_map(Op::Remove),
            1 => any::<u8>().prop_map(Op::Replace),
            2 => any::<(u8, u8)>().prop_map(|(from, to)| Op::Rename(from, to)),
            1 => (any::<u8>(), 1..40usize).prop_map(|(skip, step)| Op::List(skip, step)),
        ]
    }

    proptest! {
        /// Checks a directory against a map from names to inode numbers and cookies: both must give
        /// the same answers, in the order of the cookies. Some names are short, so they are stored
        /// in the entry. Others are long.
        #[test]
        fn directory_answers_as_a_map(ops in prop::collection::vec(op(), 1..600)) {
            let mut directory = Directory::new();
            let mut model: BTreeMap<Vec<u8>, (u64, u64)> = BTreeMap::new();
            let (mut next_ino, mut next_cookie) = (2, 1);
            let name = |n: u8| vec![b'A' + n % 50; if n.is_multiple_of(3) { 60 } else { 1 + usize::from(n / 50) }];
            for op in ops {
                match op {
                    Op::Insert(n) => {
                        let name = name(n);
                        let taken = model.contains_key(&name);
                        let got = directory.insert(key(&name), link(next_ino));
                        prop_assert_eq!(got, if taken { Err(Errno::EXIST) } else { Ok(()) });
                        if !taken {
                            model.insert(name, (next_ino, next_cookie));
                            next_cookie += 1;
                        }
                        next_ino += 1;
                    }
                    Op::Remove(n) => {
                        let expected = model.remove(&name(n)).map(|(ino, _)| link(ino));
                        prop_assert_eq!(remove(&mut directory, &name(n)), expected);
                    }
                    Op::Replace(n) => {
                        let entry = model.get_mut(&name(n));
                        let expected = entry.map(|e| link(std::mem::replace(&mut e.0, next_ino)));
                        let found = directory.find(key(&name(n)));
                        prop_assert_eq!(found.map(|found| found.link), expected);
                        found.into_iter().for_each(|found| directory.replace(found, link(next_ino)));
                        next_ino += 1;
                    }
                    Op::Rename(from, to) => {
                        let (from, to) = (name(from), name(to));
                        let found = directory.find(key(&from));
                        prop_assert_eq!(found.is_some(), model.contains_key(&from));
                        if let Some(found) = found && !model.contains_key(&to) {
                            directory.rename(found, key(&to));
                            // E.4: the entry keeps its inode number and its cookie.
                            let entry = model.remove(&from).unwrap();
                            model.insert(to, entry);
                        }
                    }
                    Op::List(skip, step) => {
                        let from = u64::from(skip);
                        let mut expected: Vec<_> = model
                            .iter()
                            .filter(|(_, e)| e.1 > from)
                            .map(|(name, e)| (name.clone(), e.0, e.1))
                            .collect();
                        expected.sort_by_key(|e| e.2);
                        prop_assert_eq!(listing(&directory, from, step), expected);
                    }
                }
                prop_assert_eq!(directory.len(), model.len());
            }
            for (name, (ino, _)) in &model {
                prop_assert_eq!(get(&directory, name), Some(link(*ino)));
            }
        }
    }
}
