//! The tree that the designs of `before` share: dentries in type-stable memory and a hash table.
//!
//! A dentry is a slot that is never unmapped and keeps its type. Everything that a reader without a
//! lock can reach is an atomic word, so what it reads may be old, or belong to two instants, but is
//! never a wild pointer; the protocols above say when it counts. A name up to 32 bytes is in the
//! slot (`DNAME_INLINE_LEN` of 2013), a longer one in memory that stays with the slot for good. So
//! a length that belongs to another name reads bytes of a name, and never what is no name (trap
//! T1).
//!
//! # How it works
//! Dentries with the same hash are chained. A reader follows a chain without a lock; the end of
//! each chain says whose it is, so that a reader whose dentry went to another chain under its feet
//! notices (the list of `rculist_nulls`). A new link is always put in front. A thread that changes
//! the chain holds the lock of the chain.
//!
//! A walk and a translation read the first 64 bytes of a dentry; the second 64 bytes hold the count
//! and the locks. So no write to a count slows a walk down.
//!
//! # Invariants
//! - A.1: a slot whose `parent` is 0 has no name and is in no chain.
//! - A.2: key and name of a slot change inside a section of its `seq` only, by the one thread that
//!   holds the lock that the protocol asks for.
//! - A.3: directories are never freed, so the number of a directory stays its own.
//!
//! Source: Linux `include/linux/dcache.h` (the layout), `include/linux/rculist_nulls.h`.

use std::sync::OnceLock;

use corewalk::FileKind;
use corewalk_base::primitives::atomic::{AtomicU32, AtomicU64, Ordering};
use corewalk_base::primitives::{SHARDS, shard_index};
use corewalk_base::{CachePadded, Mutex, MutexGuard};
use corewalk_sync::{Lockref, SeqCount};

use super::paths::Prepended;

/// The number of no dentry.
pub(super) const NONE: u32 = 0;
/// The number of the root.
pub(super) const ROOT: u32 = 1;
/// Set in a link that is the end of a chain; the rest is the number of the chain.
const END: u32 = 1 << 31;
/// Words of a name in its slot.
const INLINE_WORDS: usize = 4;
/// Words of the longest name.
const LONG_WORDS: usize = 32;
/// Set beside the length of the name of a directory.
const DIRECTORY: u32 = 1 << 8;

/// All dentries and the table over them.
pub(super) struct Tree {
    dentries: Box<[Dentry]>,
    chains: Box<[Chain]>,
    /// The first number that was never used.
    fresh: CachePadded<AtomicU32>,
    /// Numbers that were used and are free, by the shard of the thread that freed them.
    free: Box<[CachePadded<Mutex<Vec<u32>>>]>,
}

/// A name and what it is given to.
#[repr(align(64))]
pub(crate) struct Dentry {
    /// Bumped around each change of what follows.
    pub(super) seq: SeqCount,
    hash: AtomicU64,
    parent: AtomicU32,
    next: AtomicU32,
    /// The length of the name, and [`DIRECTORY`].
    shape: AtomicU32,
    name: [AtomicU64; INLINE_WORDS],
    /// The count of the kernel's `d_lockref`, with one for being in the table.
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

/// The result of a look into a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Probe {
    /// The dentry, and the sequence it was seen under.
    Found(u32, u64),
    /// The name was not there.
    Absent,
    /// Something moved, and the reader did not see all.
    Diverted,
}

impl Tree {
    /// Returns a tree with a root and room for `capacity` dentries in all.
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

    /// Returns the number of the dentry with this inode number, which in these trees are the same;
    /// None if there is none.
    #[inline]
    pub(super) fn number(&self, ino: u64) -> Option<u32> {
        let number = u32::try_from(ino).ok()?;
        let dentry = self.dentries.get(number as usize)?;
        (dentry.parent() != NONE).then_some(number)
    }

    /// Returns what a reader without a lock finds.
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

    /// Returns a dentry without a name, counted once; None if there is no room.
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
        // ORDERING: Relaxed. A number; what it stands for is published by a link.
        let fresh = self.fresh.fetch_add(1, Ordering::Relaxed);
        if (fresh as usize) < self.dentries.len() {
            return Some(fresh);
        }
        // ORDERING: Relaxed. As above; it was one too many.
        self.fresh.fetch_sub(1, Ordering::Relaxed);
        self.free.iter().find_map(|shard| shard.lock().pop())
    }

    /// Drops a reference that was the last one, and with it the dentry, if it is.
    pub(super) fn put(&self, number: u32) {
        let Some(mut last) = self.dentry(number).lockref.put_or_lock() else { return };
        last.sub(1);
        last.mark_dead();
        drop(last);
        self.free[shard_index()].lock().push(number);
    }

    /// Gives a key and a name to a dentry that is in no chain, and links it.
    pub(super) fn link(
        &self,
        number: u32,
        (parent, hash): (u32, u64),
        name: &[u8],
        kind: FileKind,
    ) {
        let dentry = self.dentry(number);
        let section = dentry.seq.write();
        dentry.put_key(parent, hash);
        dentry.put_name(name, kind);
        drop(section);
        self.chain(number, hash);
    }

    /// Takes a dentry out of its chain, and its key with it. It keeps its name.
    pub(super) fn unlink(&self, number: u32) {
        let dentry = self.dentry(number);
        let hash = dentry.hash();
        let _section = dentry.seq.write();
        self.unchain(number, hash);
        dentry.put_key(NONE, hash);
    }

    /// Gives another key and name to a dentry that is in a chain.
    pub(super) fn rekey(&self, number: u32, (parent, hash): (u32, u64), name: &[u8]) {
        let dentry = self.dentry(number);
        let _section = dentry.seq.write();
        self.unchain(number, dentry.hash());
        dentry.put_key(parent, hash);
        dentry.put_name(name, dentry.kind());
        self.chain(number, hash);
    }

    /// Returns true if `number` is `ancestor` or below it. The caller keeps directories in place.
    pub(super) fn is_below(&self, number: u32, ancestor: u32) -> bool {
        let mut at = number;
        while at != ROOT && at != ancestor {
            at = self.dentry(at).parent();
        }
        at == ancestor
    }

    /// Puts the names from `number` up to the root in front of `out`; `copy` copies one. Returns
    /// false if what it read was no path.
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
        // ORDERING(chain): Release. A reader that was led here by an old link goes on in this
        // chain.
        self.dentry(number).next.store(head, Ordering::Release);
        // ORDERING(chain): Release. A reader that finds the dentry finds its key and name.
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
                // ORDERING(chain): Release. Other threads linked the dentries behind.
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
        // ORDERING: Relaxed. A sequence or a lock says whether it counts.
        self.parent.load(Ordering::Relaxed)
    }

    /// Returns what the name is given to, which never changes while it has one.
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
        // ORDERING: Relaxed. A sequence or a lock says whether it counts.
        self.shape.load(Ordering::Relaxed)
    }

    fn hash(&self) -> u64 {
        // ORDERING: Relaxed. The caller is the one that changes it.
        self.hash.load(Ordering::Relaxed)
    }

    #[inline]
    fn is_key(&self, parent: u32, hash: u64) -> bool {
        // ORDERING: Relaxed. A sequence or a lock says whether it counts.
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
        // ORDERING: Relaxed. A sequence or a lock says whether it counts.
        words.iter().zip(name.chunks(8)).all(|(a, b)| a.load(Ordering::Relaxed) == word(b))
    }

    fn put_key(&self, parent: u32, hash: u64) {
        // ORDERING: Relaxed. Inside a section of `seq`, or before the dentry is linked.
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

/// Returns the hash of a name in a directory: folded multiplications, eight bytes at a time.
#[inline]
pub(super) fn hash(parent: u32, name: &[u8]) -> u64 {
    const ODD: u64 = 0x9e37_79b9_7f4a_7c15;
    let fold = |state: u64| {
        let product = u128::from(state) * u128::from(ODD);
        (product as u64) ^ ((product >> 64) as u64)
    };
    let start = fold(u64::from(parent) << 8 ^ name.len() as u64 ^ 0x243f_6a88_85a3_08d3);
    name.chunks(8).fold(start, |state, piece| fold(state ^ word(piece)))
}

/// Returns up to eight bytes as a word, with zeros behind them.
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
        tree.link(number, (parent, hash(parent, name)), name, FileKind::Regular);
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
            tree.rekey(number, (ROOT, hash(ROOT, &new)), &new);
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
        // Two chains; the dentry is in one of them, and then in the other.
        let name = |n: u32| format!("name-{n}").into_bytes();
        let chain = |name: &[u8]| tree.chain_of(hash(ROOT, name));
        let first = name(0);
        let other = (1..).map(name).find(|other| chain(other) != chain(&first)).unwrap();
        let number = linked(&tree, ROOT, &first);
        let key = (ROOT, hash(ROOT, &other));
        tree.rekey(number, key, &other);
        // An old link into the dentry, as a reader of the first chain may still have it.
        let head = &tree.chains[chain(&first) as usize].head;
        // ORDERING: Relaxed. One thread.
        head.store(number, Ordering::Relaxed);
        assert_eq!(tree.probe(ROOT, hash(ROOT, &first), &first), Probe::Diverted);
    }
}
