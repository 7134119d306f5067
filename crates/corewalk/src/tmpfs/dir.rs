//! The entries of one directory.
//!
//! A directory is asked for a name, and is read through from any place while it changes. What
//! makes the second hard is the cookie: a reader hands back the cookie of the last entry it got,
//! perhaps much later, and must neither miss nor repeat an entry that was there all the time. A
//! position in a table that grows cannot do that, and a cursor inside the directory would itself
//! be moved about (trap T48). Here an entry draws its cookie from a counter when it comes in and
//! keeps it, so "behind cookie c" means the same whatever happens.
//!
//! # How it works
//! Entries lie in chunks by cookie: chunk n holds those with cookies 128 n to 128 n + 127, in
//! order, and is as long as it has entries. A tree maps numbers to chunks, and `index` maps the
//! hash of a name to its cookie. Nothing is ever rehashed or compacted as a whole, so no operation
//! on a directory of millions takes much longer than on one of hundreds. The hash is keyed, so
//! crafted names cannot collide (trap T54).
//!
//! # Guarantees
//! - E.1: cookies are never 0, never used again, and ascend in the order of insertion.
//! - E.2: replacing the inode of a name keeps the cookie: a pass over the directory sees a name
//!   that existed throughout exactly once, even if files were renamed onto it (trap P13).
//! - E.3: a batch visits a bounded number of entries, however many were removed.
//!
//! # What it refuses
//! `.` and `..`, which the caller adds, and new entries once it is removed (`ENOENT`). No locks:
//! the inode has one around this.
//!
//! Source: readdir(3), getdents(2); Linux `fs/libfs.c` (stable directory offsets).

use std::collections::BTreeMap;
use std::hash::BuildHasher;

use foldhash::quality::RandomState;

use super::index::HashIndex;
use crate::Errno;
use crate::attr::FileKind;
use crate::fs::DirEntry;
use crate::name::Name;

/// Cookies of a chunk. Removing an entry moves at most this many.
const CHUNK_COOKIES: u64 = 128;
/// The longest name that an entry holds without an allocation of its own.
const INLINE_BYTES: usize = 22;

/// A name and its hash, computed before any lock is taken.
#[derive(Clone, Copy)]
pub(super) struct Key<'a> {
    name: Name<'a>,
    hash: u64,
}

impl<'a> Key<'a> {
    /// Returns the key of `name`.
    pub(super) fn new(name: Name<'a>, hasher: &RandomState) -> Key<'a> {
        Key { name, hash: hasher.hash_one(name.as_bytes()) }
    }
}

/// What a name refers to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Link {
    /// The inode's number.
    pub(super) ino: u64,
    /// Its kind.
    pub(super) kind: FileKind,
}

/// The entries of one directory.
pub(super) struct Directory {
    is_removed: bool,
    /// How many cookies were drawn; the last one drawn.
    last_cookie: u64,
    len: usize,
    by_cookie: BTreeMap<u64, Vec<Entry>>,
    by_hash: HashIndex,
}

impl Directory {
    /// Returns an empty directory.
    pub(super) fn new() -> Directory {
        Directory {
            is_removed: false,
            last_cookie: 0,
            len: 0,
            by_cookie: BTreeMap::new(),
            by_hash: HashIndex::new(),
        }
    }

    /// Returns the number of entries.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Returns what `key` refers to.
    pub(super) fn get(&self, key: Key<'_>) -> Option<Link> {
        self.find(key).map(|(_, entry)| entry.link())
    }

    /// Checks that entries can be made here. `ENOENT` if the directory is removed.
    pub(super) fn check_alive(&self) -> Result<(), Errno> {
        if self.is_removed { Err(Errno::NOENT) } else { Ok(()) }
    }

    /// Checks that an entry can be made. `ENOENT` if the directory is removed, `EEXIST` if the name
    /// is taken.
    pub(super) fn check_insert(&self, key: Key<'_>) -> Result<(), Errno> {
        self.check_alive()?;
        if self.find(key).is_some() { Err(Errno::EXIST) } else { Ok(()) }
    }

    /// Appends to `batch` up to `count_max` entries behind `cookie`.
    pub(super) fn collect_behind(&self, cookie: u64, count_max: usize, batch: &mut Batch) {
        let Some(next) = cookie.checked_add(1) else { return };
        let mut room = count_max;
        for (&number, chunk) in self.by_cookie.range(next / CHUNK_COOKIES..) {
            let base = number * CHUNK_COOKIES;
            let first = chunk.partition_point(|e| base + u64::from(e.low) < next);
            for entry in chunk[first..].iter().take(room) {
                batch.push(base + u64::from(entry.low), entry);
            }
            room = room.saturating_sub(chunk.len() - first);
            if room == 0 {
                break;
            }
        }
    }

    /// Adds an entry. `EEXIST` if the name is taken, `ENOENT` if the directory is removed.
    pub(super) fn insert(&mut self, key: Key<'_>, link: Link) -> Result<(), Errno> {
        self.check_insert(key)?;
        self.last_cookie += 1;
        let (number, low) = (self.last_cookie / CHUNK_COOKIES, self.last_cookie % CHUNK_COOKIES);
        let Link { ino, kind } = link;
        let entry = Entry { name: EntryName::new(key.name), ino, kind, low: low as u8 };
        self.by_cookie.entry(number).or_default().push(entry);
        self.by_hash.insert(key.hash, self.last_cookie);
        self.len += 1;
        Ok(())
    }

    /// Makes a name that exists refer to `link`, and returns what it referred to.
    pub(super) fn replace(&mut self, key: Key<'_>, link: Link) -> Option<Link> {
        let (cookie, _) = self.find(key)?;
        let chunk = self.by_cookie.get_mut(&(cookie / CHUNK_COOKIES))?;
        let index = index_of(chunk, cookie)?;
        let entry = &mut chunk[index];
        let old = entry.link();
        (entry.ino, entry.kind) = (link.ino, link.kind);
        Some(old)
    }

    /// Removes an entry and returns what it referred to.
    pub(super) fn remove(&mut self, key: Key<'_>) -> Option<Link> {
        let (cookie, _) = self.find(key)?;
        let number = cookie / CHUNK_COOKIES;
        let chunk = self.by_cookie.get_mut(&number)?;
        let entry = chunk.remove(index_of(chunk, cookie)?);
        if chunk.is_empty() {
            self.by_cookie.remove(&number);
        } else if chunk.len() <= chunk.capacity() / 4 {
            chunk.shrink_to(chunk.len() * 2);
        }
        self.by_hash.remove(key.hash, cookie);
        self.len -= 1;
        Some(entry.link())
    }

    /// Marks the directory as removed. `ENOTEMPTY` if it has entries.
    pub(super) fn mark_removed(&mut self) -> Result<(), Errno> {
        if self.len > 0 {
            return Err(Errno::NOTEMPTY);
        }
        self.is_removed = true;
        Ok(())
    }

    fn find(&self, key: Key<'_>) -> Option<(u64, &Entry)> {
        self.by_hash.get(key.hash).find_map(|cookie| {
            let chunk = self.by_cookie.get(&(cookie / CHUNK_COOKIES))?;
            let entry = &chunk[index_of(chunk, cookie)?];
            (entry.name.as_bytes() == key.name.as_bytes()).then_some((cookie, entry))
        })
    }
}

/// Entries that were copied out of a directory, to be reported without its lock.
#[derive(Default)]
pub(super) struct Batch {
    names: Vec<u8>,
    entries: Vec<(u64, Link, u8)>,
}

impl Batch {
    /// Returns the number of entries.
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns the entries in order.
    pub(super) fn iter(&self) -> impl Iterator<Item = DirEntry<'_>> {
        let mut rest = self.names.as_slice();
        self.entries.iter().filter_map(move |&(cookie, link, len)| {
            let (name, after) = rest.split_at(usize::from(len));
            rest = after;
            // Every name was one when it came in, so this leaves none out.
            let name = Name::new(name).ok()?;
            Some(DirEntry { name, ino: link.ino, kind: link.kind, cookie })
        })
    }

    /// Forgets the entries.
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

/// One entry; its cookie is that of its chunk and `low`.
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
}

/// The name of an entry, in 24 bytes if it is short.
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

/// Returns where in its chunk the entry with `cookie` is.
fn index_of(chunk: &[Entry], cookie: u64) -> Option<usize> {
    let low = (cookie % CHUNK_COOKIES) as u8;
    // Most chunks have lost nothing, and then the place is known.
    let guess = usize::from(low);
    if chunk.get(guess).is_some_and(|e| e.low == low) {
        return Some(guess);
    }
    chunk.binary_search_by_key(&low, |e| e.low).ok()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    fn key(bytes: &[u8]) -> Key<'_> {
        // Three bits of hash: nearly all names collide.
        let hash = u64::from(bytes[0] & 7);
        Key { name: Name::new(bytes).unwrap(), hash }
    }

    fn link(ino: u64) -> Link {
        Link { ino, kind: FileKind::Regular }
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
        assert_eq!(directory.remove(key(b"a")), Some(link(2)));
        assert_eq!(directory.mark_removed(), Ok(()));
        assert_eq!(directory.insert(key(b"a"), link(4)), Err(Errno::NOENT));
        assert_eq!(directory.get(key(b"a")), None);
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
        List(u8, usize),
    }

    fn op() -> impl Strategy<Value = Op> {
        prop_oneof![
            4 => any::<u8>().prop_map(Op::Insert),
            3 => any::<u8>().prop_map(Op::Remove),
            1 => any::<u8>().prop_map(Op::Replace),
            1 => (any::<u8>(), 1..40usize).prop_map(|(skip, step)| Op::List(skip, step)),
        ]
    }

    proptest! {
        /// Every answer is that of a map from names to (number, cookie), and the order that of the
        /// cookies. Names of 1 and of 60 bytes, so that some are inline and some are not.
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
                        prop_assert_eq!(directory.remove(key(&name(n))), expected);
                    }
                    Op::Replace(n) => {
                        let entry = model.get_mut(&name(n));
                        let expected = entry.map(|e| link(std::mem::replace(&mut e.0, next_ino)));
                        prop_assert_eq!(directory.replace(key(&name(n)), link(next_ino)), expected);
                        next_ino += 1;
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
                prop_assert_eq!(directory.get(key(name)), Some(link(*ino)));
            }
        }
    }
}
