//! The tree of dentries, with its hash table, that the four dentry caches in `before` share.
//!
//! The dentries are slots of an array that is never freed. All fields that a reader can reach
//! without a lock are atomic words. So a reader may see old values, or values of two instants, but
//! never an invalid index. The protocol of the design decides whether they are valid.
//!
//! A name of at most 32 bytes is in the slot (`DNAME_INLINE_LEN` of 2013). A longer one is in
//! memory that the slot keeps for good. So a reader that combines the length of one name with the
//! bytes of another still reads bytes of names (trap T1 in `traps.md`).
//!
//! # How it works
//! Dentries with the same hash are in one chain, which readers follow without a lock. The link at
//! its end has the number of the chain. A rename may move a dentry to another chain while a reader
//! is at the dentry. The reader notices that at the end of the wrong chain (as in `rculist_nulls`).
//!
//! A new dentry is put at the head of its chain, under the lock of the chain.
//!
//! Walks and path translations read only the first 64 bytes of a dentry. Reference count and locks
//! are in the second 64 bytes, so their changes do not slow a walk down.
//!
//! # Invariants
//! - A.1: a slot whose `parent` is 0 has no name and is in no chain.
//! - A.2: the key and the name of a slot change only inside a write section of its `seq`. The
//!   writer also holds the lock `names` of each parent directory. For a rename it also holds the
//!   rename lock, or `dcache_lock` in the design of Linux 2.4.
//! - A.3: directories are never freed, so the number of a directory is never used again.
//!
//! Source: Linux `include/linux/dcache.h` (the layout), `include/linux/rculist_nulls.h`.

use std::hash::BuildHasher as _;
use std::sync::OnceLock;

use corewalk::FileKind;
use corewalk_base::primitives::atomic::{AtomicU32, AtomicU64, Ordering};
use corewalk_base::primitives::{SHARDS, shard_index};
use corewalk_base::{CachePadded, Mutex, MutexGuard};
use corewalk_sync::{Lockref, SeqCount};
use foldhash::fast::FixedState;

use super::paths::Prepended;

/// The number of no dentry.
pub(super) const NONE: u32 = 0;
/// The number of the root.
pub(super) const ROOT: u32 = 1;
/// The flag in a link that marks the end of a hash chain. The other bits are the number of the
/// chain.
const END: u32 = 1 << 31;
/// Number of 64-bit words for a name inside its slot. Longer names are outside of it.
const INLINE_WORDS: usize = 4;
/// Words of the longest name.
const LONG_WORDS: usize = 32;
/// The bit in `shape` that marks a directory. The bits below are the length of the name.
const DIRECTORY: u32 = 1 << 8;

/// All dentries, and the hash table that finds them by name.
pub(super) struct Tree {
    dentries: Box<[Dentry]>,
    chains: Box<[Chain]>,
    /// The lowest number that no dentry has had yet.
    fresh: CachePadded<AtomicU32>,
    /// Numbers of freed dentries, in one list per shard of threads.
    free: Box<[CachePadded<Mutex<Vec<u32>>>]>,
}

/// A dentry: a name in a directory. The number of its slot is also the inode number.
#[repr(align(64))]
pub(crate) struct Dentry {
    /// The sequence for the key (hash and parent) and the name. They change only inside its write
    /// sections.
    pub(super) seq: SeqCount,
    hash: AtomicU64,
    parent: AtomicU32,
    next: AtomicU32,
    /// The length of the name, and [`DIRECTORY`].
    shape: AtomicU32,
    name: [AtomicU64; INLINE_WORDS],
    /// The reference count, as the kernel's `d_lockref`. The hash table holds one reference.
    pub(super) lockref: Lockref,
    /// Held by a thread that changes names in the directory (`i_mutex`).
    pub(super) names: Mutex<()>,
    long_name: OnceLock<Box<[AtomicU64; LONG_WORDS]>>,
}

/// The dentries with one hash.
struct Chain {
    lock: Mutex<()>,
    head: AtomicU32,
}

/// The result of a search in a hash chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Probe {
    /// The number of the dentry, and its sequence at the time of the search.
    Found(u32, u64),
    /// The name was not there.
    Absent,
    /// A dentry changed or moved during the search, so the reader may have missed the name.
    Diverted,
}

impl Tree {
    /// Returns a tree that has a root and room for `capacity` dentries.
    pub(super) fn new(capacity: usize) -> Tree {
        let capacity = capacity.max(16);
        let chains = u32::try_from(capacity.next_power_of_two()).unwrap_or(END);
        assert!(chains < END, "a tree has less than 2 to the 31st dentries");
        let chain = |number| Chain { lock: Mutex::new(()), head: AtomicU32::new(END | number) };
        let tree = Tree {
            dentries: (0..capacity + 2).map(|_| Dentry::new()).collect(),
            chains: (0..chains).map(chain).collect(),
            fresh: CachePadded::new(AtomicU32::new(ROOT)),
            free: (0..SHARDS).map(|_| CachePadded::new(Mutex::new(vec![]))).collect(),
        };
        let root = tree.alloc().expect("there is room for the root");
        let dentry = tree.dentry(root);
        dentry.put_key(ROOT, 0);
        dentry.put_name(b"", FileKind::Directory);
        tree
    }

    #[inline]
    pub(super) fn dentry(&self, number: u32) -> &Dentry {
        &self.dentries[number as usize]
    }

    /// Returns the number of the dentry with this inode number, if there is one. Here both numbers
    /// are equal.
    #[inline]
    pub(super) fn number(&self, ino: u64) -> Option<u32> {
        let number = u32::try_from(ino).ok()?;
        let dentry = self.dentries.get(number as usize)?;
        (dentry.parent() != NONE).then_some(number)
    }

    /// Searches a hash chain for a name, without a lock.
    #[inline]
    pub(super) fn probe(&self, parent: u32, hash: u64, name: &[u8]) -> Probe {
        let chain = self.chain_of(hash);
        // ORDERING(chain): Acquire. Pairs with the link of the dentry.
        let mut at = self.chains[chain as usize].head.load(Ordering::Acquire);
        while at & END == 0 {
            let dentry = self.dentry(at);
            if dentry.is_key(parent, hash) {
                let seq = dentry.seq.raw_begin();
                let is_it = dentry.is_key(parent, hash) && dentry.is_name(name);
                if dentry.seq.read_retry(seq) {
                    return Probe::Diverted;
                }
                if is_it {
                    return Probe::Found(at, seq);
                }
            }
            // ORDERING(chain): Acquire. As above.
            at = dentry.next.load(Ordering::Acquire);
        }
        if at == END | chain { Probe::Absent } else { Probe::Diverted }
    }

    /// Returns a new dentry without a name, with one reference, unless all dentries are in use.
    pub(super) fn alloc(&self) -> Option<u32> {
        let number = self.alloc_number()?;
        let mut guard = self.dentry(number).lockref.lock();
        if guard.is_dead() {
            guard.revive();
        }
        guard.add(1);
        Some(number)
    }

    fn alloc_number(&self) -> Option<u32> {
        let own = shard_index();
        if let Some(number) = self.free[own].lock().pop() {
            return Some(number);
        }
        // ORDERING: Relaxed. A reader finds the dentry only through a link in a hash chain, which
        // is stored with Release.
        let fresh = self.fresh.fetch_add(1, Ordering::Relaxed);
        if (fresh as usize) < self.dentries.len() {
            return Some(fresh);
        }
        // ORDERING: Relaxed. As above. No number was left, so undo the addition.
        self.fresh.fetch_sub(1, Ordering::Relaxed);
        self.free.iter().find_map(|shard| shard.lock().pop())
    }

    /// Drops a reference of a dentry. The last one marks the dentry as dead, and frees its number.
    pub(super) fn put(&self, number: u32) {
        let Some(mut last) = self.dentry(number).lockref.put_or_lock() else { return };
        last.sub(1);
        last.mark_dead();
        drop(last);
        self.free[shard_index()].lock().push(number);
    }

    /// Gives an unlinked dentry a key (parent and hash) and a name, and puts it into the hash chain
    /// of the key.
    pub(super) fn link(&self, number: u32, parent: u32, hash: u64, name: &[u8], kind: FileKind) {
        let dentry = self.dentry(number);
        let section = dentry.seq.write();
        dentry.put_key(parent, hash);
        dentry.put_name(name, kind);
        drop(section);
        self.chain(number, hash);
    }

    /// Removes a dentry from its hash chain and clears its parent. The slot keeps its name.
    pub(super) fn unlink(&self, number: u32) {
        let dentry = self.dentry(number);
        let hash = dentry.hash();
        let _section = dentry.seq.write();
        self.unchain(number, hash);
        dentry.put_key(NONE, hash);
    }

    /// Gives a dentry another key (parent and hash) and another name, and moves it to the hash
    /// chain of the new key.
    pub(super) fn rekey(&self, number: u32, parent: u32, hash: u64, name: &[u8]) {
        let dentry = self.dentry(number);
        let _section = dentry.seq.write();
        self.unchain(number, dentry.hash());
        dentry.put_key(parent, hash);
        dentry.put_name(name, dentry.kind());
        self.chain(number, hash);
    }

    /// Returns true if the dentry `number` is `ancestor` or below it. The caller prevents renames
    /// of directories.
    pub(super) fn is_below(&self, number: u32, ancestor: u32) -> bool {
        let mut at = number;
        while at != ROOT && at != ancestor {
            at = self.dentry(at).parent();
        }
        at == ancestor
    }

    /// Writes the path of the dentry `number` to `out` from its end, up to the root. `copy` writes
    /// one name. Returns false if a dentry on the way has no parent, or if the path is too long.
    #[inline]
    pub(super) fn climb(
        &self,
        number: u32,
        out: &mut Prepended,
        copy: impl Fn(&Dentry, &mut Prepended),
    ) -> bool {
        let mut at = number;
        while at != ROOT {
            let dentry = self.dentry(at);
            let parent = dentry.parent();
            if parent == NONE || out.is_too_long() {
                return false;
            }
            copy(dentry, out);
            at = parent;
        }
        true
    }

    fn chain(&self, number: u32, hash: u64) {
        let (_lock, chain) = self.lock_chain(hash);
        // ORDERING: Relaxed. Chains change under their lock.
        let head = chain.head.load(Ordering::Relaxed);
        // ORDERING(chain): Release. A reader may still come to the dentry through a link of its old
        // chain. It then follows `next` into the new chain, and must see the keys and names of the
        // dentries there.
        self.dentry(number).next.store(head, Ordering::Release);
        // ORDERING(chain): Release. A reader that loads this link with Acquire sees key and name of
        // the dentry.
        chain.head.store(number, Ordering::Release);
    }

    fn unchain(&self, number: u32, hash: u64) {
        let (_lock, chain) = self.lock_chain(hash);
        let mut link = &chain.head;
        loop {
            // ORDERING: Relaxed. Chains change under their lock.
            let at = link.load(Ordering::Relaxed);
            assert!(at & END == 0, "a dentry is in the chain of its hash");
            let next = &self.dentry(at).next;
            if at == number {
                // ORDERING: Relaxed. Under the lock of the chain.
                let behind = next.load(Ordering::Relaxed);
                // ORDERING(chain): Release. Other threads linked the dentries from `behind` on. A
                // reader that loads `behind` from this link must see their keys and names.
                link.store(behind, Ordering::Release);
                return;
            }
            link = next;
        }
    }

    fn lock_chain(&self, hash: u64) -> (MutexGuard<'_, ()>, &Chain) {
        let chain = &self.chains[self.chain_of(hash) as usize];
        (chain.lock.lock(), chain)
    }

    #[inline]
    fn chain_of(&self, hash: u64) -> u32 {
        (hash >> 32) as u32 & (self.chains.len() as u32 - 1)
    }
}

impl Dentry {
    fn new() -> Dentry {
        Dentry {
            seq: SeqCount::new(),
            hash: AtomicU64::new(0),
            parent: AtomicU32::new(NONE),
            next: AtomicU32::new(END),
            shape: AtomicU32::new(0),
            name: [const { AtomicU64::new(0) }; INLINE_WORDS],
            lockref: Lockref::new(0),
            names: Mutex::new(()),
            long_name: OnceLock::new(),
        }
    }

    /// Returns the number of the parent.
    #[inline]
    pub(super) fn parent(&self) -> u32 {
        // ORDERING: Relaxed. A sequence or a lock tells whether the value is valid.
        self.parent.load(Ordering::Relaxed)
    }

    /// Returns the file type, which never changes while the dentry has a name.
    #[inline]
    pub(super) fn kind(&self) -> FileKind {
        if self.shape() & DIRECTORY == 0 { FileKind::Regular } else { FileKind::Directory }
    }

    /// Puts the name in front of `out`.
    #[inline]
    pub(super) fn copy_name(&self, out: &mut Prepended) {
        let len = (self.shape() % DIRECTORY) as usize;
        match self.long_name.get() {
            Some(long) if len > 8 * INLINE_WORDS => out.prepend(&long[..], len),
            _ => out.prepend(&self.name, len),
        }
    }

    #[inline]
    fn shape(&self) -> u32 {
        // ORDERING: Relaxed. A sequence or a lock tells whether the value is valid.
        self.shape.load(Ordering::Relaxed)
    }

    fn hash(&self) -> u64 {
        // ORDERING: Relaxed. The caller's locks exclude other changes of the key.
        self.hash.load(Ordering::Relaxed)
    }

    #[inline]
    fn is_key(&self, parent: u32, hash: u64) -> bool {
        // ORDERING: Relaxed. A sequence or a lock tells whether the value is valid.
        self.hash.load(Ordering::Relaxed) == hash && self.parent() == parent
    }

    #[inline]
    fn is_name(&self, name: &[u8]) -> bool {
        if (self.shape() % DIRECTORY) as usize != name.len() {
            return false;
        }
        let words = match self.long_name.get() {
            Some(long) if name.len() > 8 * INLINE_WORDS => &long[..],
            _ => &self.name[..],
        };
        // ORDERING: Relaxed. A sequence or a lock tells whether the value is valid.
        words.iter().zip(name.chunks(8)).all(|(a, b)| a.load(Ordering::Relaxed) == word(b))
    }

    fn put_key(&self, parent: u32, hash: u64) {
        // ORDERING: Relaxed. The store is inside a write section of `seq`, or the dentry is not
        // linked yet.
        self.hash.store(hash, Ordering::Relaxed);
        // ORDERING: Relaxed. As above.
        self.parent.store(parent, Ordering::Relaxed);
    }

    fn put_name(&self, name: &[u8], kind: FileKind) {
        assert!(name.len() < 256, "a name has at most 255 bytes");
        let words = if name.len() > 8 * INLINE_WORDS {
            let long = || Box::new([const { AtomicU64::new(0) }; LONG_WORDS]);
            &self.long_name.get_or_init(long)[..]
        } else {
            &self.name[..]
        };
        for (to, from) in words.iter().zip(name.chunks(8)) {
            // ORDERING: Relaxed. As in `put_key`.
            to.store(word(from), Ordering::Relaxed);
        }
        let flag = if kind == FileKind::Directory { DIRECTORY } else { 0 };
        // ORDERING: Relaxed. As in `put_key`.
        self.shape.store(name.len() as u32 | flag, Ordering::Relaxed);
    }
}

/// Returns the hash of a name in a directory.
#[inline]
pub(super) fn hash(parent: u32, name: &[u8]) -> u64 {
    FixedState::with_seed(4).hash_one((parent, name))
}

/// Returns up to eight bytes of a name as a word, padded with zeros.
#[inline]
fn word(bytes: &[u8]) -> u64 {
    if let Ok(all) = bytes.try_into() {
        return u64::from_le_bytes(all);
    }
    let mut padded = [0; 8];
    padded[..bytes.len()].copy_from_slice(bytes);
    u64::from_le_bytes(padded)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn linked(tree: &Tree, parent: u32, name: &[u8]) -> u32 {
        let number = tree.alloc().unwrap();
        tree.link(number, parent, hash(parent, name), name, FileKind::Regular);
        number
    }

    fn find(tree: &Tree, parent: u32, name: &[u8]) -> Option<u32> {
        match tree.probe(parent, hash(parent, name), name) {
            Probe::Found(number, _) => Some(number),
            Probe::Absent => None,
            Probe::Diverted => panic!("nothing moves"),
        }
    }

    #[test]
    fn names_of_every_length_are_found_renamed_and_gone() {
        let tree = Tree::new(600);
        for len in 1..=255_usize {
            let (old, new) = (vec![b'a'; len], vec![b'b'; 256 - len]);
            let number = linked(&tree, ROOT, &old);
            assert_eq!(find(&tree, ROOT, &old), Some(number));
            tree.rekey(number, ROOT, hash(ROOT, &new), &new);
            assert_eq!(find(&tree, ROOT, &old), None);
            assert_eq!(find(&tree, ROOT, &new), Some(number));
            let mut path = Prepended::new();
            assert!(tree.climb(number, &mut path, Dentry::copy_name));
            assert_eq!(path.to_path(), [b"/", &new[..]].concat());
            tree.unlink(number);
            assert_eq!(find(&tree, ROOT, &new), None);
            tree.put(number);
            assert_eq!(tree.number(u64::from(number)), None);
        }
    }

    #[test]
    fn dentries_that_are_put_are_used_again_until_there_are_none() {
        let tree = Tree::new(16);
        let mut all: Vec<u32> = std::iter::from_fn(|| tree.alloc()).collect();
        assert_eq!(tree.alloc(), None);
        let last = all.pop().unwrap();
        assert!(tree.dentry(last).lockref.get_not_dead());
        tree.put(last);
        assert_eq!(tree.alloc(), None, "it is still counted");
        tree.put(last);
        assert_eq!(tree.alloc(), Some(last));
        assert_eq!(tree.dentry(last).lockref.count(), 1);
    }

    #[test]
    fn reader_that_a_dentry_led_to_another_chain_notices() {
        let tree = Tree::new(64);
        // The dentry moves from one of two chains to the other.
        let name = |n: u32| format!("name-{n}").into_bytes();
        let chain = |name: &[u8]| tree.chain_of(hash(ROOT, name));
        let first = name(0);
        let other = (1..).map(name).find(|other| chain(other) != chain(&first)).unwrap();
        let number = linked(&tree, ROOT, &first);
        let key = (ROOT, hash(ROOT, &other));
        tree.rekey(number, key.0, key.1, &other);
        // Simulate a reader that loaded the head of the old chain before the move: store the
        // dentry's number in that head again. The search must notice that it ends in another chain.
        let head = &tree.chains[chain(&first) as usize].head;
        // ORDERING: Relaxed. One thread.
        head.store(number, Ordering::Relaxed);
        assert_eq!(tree.probe(ROOT, hash(ROOT, &first), &first), Probe::Diverted);
    }
}
