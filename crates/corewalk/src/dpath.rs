//! Path translation: from a dentry to its pathname, as a snapshot.
//!
//! The names up to the root are collected, each with the sequence it was read under; then every
//! sequence is checked once more. If none has moved, all of the names were there together at the
//! instant between the two passes: the path existed (traps T1, T8, P8). There is no sequence that
//! every rename bumps, so only a rename of the dentry itself or of one of its ancestors makes a pass
//! fail. After a few passes the translator keeps directories in place, as a shared reader of
//! `topology`, and locks the leaf, so that no storm of renames can starve it (trap T9).
//!
//! The result says what kind of path it is; the spellings of d_path and getcwd are built on that
//! (trap T11).
//!
//! Source: document 001 and its review; Linux `fs/d_path.c`.

use corewalk_sync::Pass;

use crate::Errno;
use crate::dcache::Dcache;
use crate::dentry::{Body, DIRECTORY_ROOM, Flags, INLINE_WORDS, Line, NameCopy};
use crate::passed::Passed;

/// Passes without a lock.
const OPTIMISTIC_PASSES: u32 = 4;

/// Where a translated path leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathKind {
    /// From the root to the dentry; every name exists.
    Linked,
    /// To a dentry that has been removed: the path it had.
    Unlinked,
    /// From the root of the dentry's file system or mount, which does not lie below the root that
    /// was asked for.
    Unreachable,
}

/// Bytes that a trail has room for without an allocation, and [`WINDOW`] more.
const BYTES: usize = 256 + WINDOW;
/// Bytes before the path that a name which lies in its dentry may be put into: all that its length could
/// be, as far as a compiler sees, and one word.
const WINDOW: usize = LENGTHS + 8;
/// A power of two above the lengths of names that lie in their dentries.
const LENGTHS: usize = (8 * INLINE_WORDS + 1).next_power_of_two();

/// A path as it was read from the leaf to the root.
pub(crate) struct Trail {
    /// The dentries on the way.
    steps: Passed,
    /// The path, from `start` to the end: names come in front of what is there. It is in `more` as soon
    /// as that is not empty.
    first: [u8; BYTES],
    more: Vec<u8>,
    start: usize,
    pub(crate) kind: PathKind,
    /// The dentry at which the trail ended.
    pub(crate) top: u32,
}

impl Trail {
    pub(crate) fn new() -> Trail {
        Trail {
            steps: Passed::new(),
            first: [0; BYTES],
            more: Vec::new(),
            start: BYTES,
            kind: PathKind::Linked,
            top: 0,
        }
    }

    /// Forgets everything: a pass starts as if it were the first (trap T8).
    pub(crate) fn clear(&mut self) {
        self.steps.clear();
        self.start = self.bytes().len();
        self.kind = PathKind::Linked;
        self.top = 0;
    }

    /// Collects the names from `slot` up to `root` (or the root of the file system).
    fn climb(&mut self, dcache: &Dcache, slot: u32, root: u32, pass: Pass) {
        match pass {
            Pass::Optimistic => self.climb_in(dcache, slot, root, Pass::Optimistic),
            Pass::Locked => self.climb_in(dcache, slot, root, Pass::Locked),
        }
    }

    #[inline(always)]
    fn climb_in(&mut self, dcache: &Dcache, slot: u32, root: u32, pass: Pass) {
        let mut at = slot;
        let mut common = Flags::HASHED;
        loop {
            let line = dcache.dentries.line(at);
            let mut seen = line.glimpse_now();
            if seen.seq & 1 != 0 {
                seen = dcache.dentries.glimpse(at);
            }
            let flags = seen.body.flags();
            self.steps.push(at, seen.seq);
            if at == root || flags.contains(Flags::ROOT) {
                break;
            }
            let before = self.path().len();
            if flags.contains(Flags::LONG) {
                self.put_long_name(dcache, at, seen.body);
            } else {
                self.put_name(&line, seen.body);
            }
            if pass == Pass::Locked && !line.is_unchanged(seen.seq) {
                // Names and parents stay, but a mark on a dentry may change.
                self.start = self.bytes().len() - before;
                self.steps.pop();
                continue;
            }
            common &= flags;
            // What was read may belong to different instants; a loop that this makes is left when
            // a sequence that has moved is noticed.
            let len = self.steps.len();
            let must_look = len >= 256 && pass == Pass::Optimistic && len.is_power_of_two();
            if seen.key.parent() == 0 || (must_look && !self.is_unchanged(dcache)) {
                break;
            }
            at = seen.key.parent();
        }
        self.top = at;
        if !common.contains(Flags::HASHED) {
            self.kind = PathKind::Unlinked;
        }
    }

    /// Puts a `/` and a name in front of the path. A name that is in its dentry is put there by words,
    /// as many as there can be, the last one first; if it is shorter than one, all of them are the
    /// first, and what is too much lies before it, where the next name comes.
    #[inline(always)]
    fn put_name(&mut self, line: &Line<'_>, body: Body) {
        if self.start < WINDOW {
            self.grow(WINDOW);
        }
        let (len, words) = (body.len() % LENGTHS, line.name_words());
        let start = self.start;
        self.start = start - len - 1;
        let window = self.bytes()[..start].last_chunk_mut::<WINDOW>().expect("it has been made");
        let from = WINDOW - len.max(8);
        let mut put = |i: usize, word: u64| {
            let at = (from + 8 * i).min(WINDOW - 8);
            window[at..at + 8].copy_from_slice(&word.to_le_bytes());
        };
        if !body.is_directory() {
            (DIRECTORY_ROOM..INLINE_WORDS).rev().for_each(|i| put(i, words[i]));
        }
        (1..DIRECTORY_ROOM).rev().for_each(|i| put(i, words[i]));
        put(0, words[0] << (8 * 8_usize.saturating_sub(len) as u32 % 64));
        window[WINDOW - 1 - len] = b'/';
    }

    #[cold]
    fn put_long_name(&mut self, dcache: &Dcache, slot: u32, body: Body) {
        let mut copy = NameCopy::new();
        dcache.dentries.copy_name(slot, body, &mut copy);
        let name = copy.as_bytes();
        if self.start < name.len() + 1 {
            self.grow(name.len() + 1);
        }
        let end = self.start;
        self.start -= name.len() + 1;
        let start = self.start;
        let bytes = self.bytes();
        bytes[start] = b'/';
        bytes[start + 1..end].copy_from_slice(name);
    }

    /// Makes room for `wanted` bytes more.
    #[cold]
    fn grow(&mut self, wanted: usize) {
        let path = self.path().to_vec();
        let len = (2 * self.bytes().len()).max(path.len() + wanted);
        self.more.resize(len, 0);
        self.start = len - path.len();
        self.more[len - path.len()..].copy_from_slice(&path);
    }

    #[inline]
    fn bytes(&mut self) -> &mut [u8] {
        if self.more.is_empty() { &mut self.first } else { &mut self.more }
    }

    /// Returns the collected names, each with a `/` before it.
    fn path(&self) -> &[u8] {
        if self.more.is_empty() { &self.first[self.start..] } else { &self.more[self.start..] }
    }

    /// Returns the path as one from the root of the file system.
    fn whole(&self) -> &[u8] {
        match self.path() {
            [] => b"/",
            path => path,
        }
    }

    /// Returns true if nothing that was collected has changed since.
    pub(crate) fn is_unchanged(&self, dcache: &Dcache) -> bool {
        self.steps.is_unchanged(&dcache.dentries)
    }

    /// Appends the collected names, each with a `/` before it.
    pub(crate) fn append_to(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(self.path());
    }

    /// Collects a trail that existed at one instant.
    pub(crate) fn collect(&mut self, dcache: &Dcache, slot: u32, root: u32) {
        for _ in 0..OPTIMISTIC_PASSES {
            self.clear();
            self.climb(dcache, slot, root, Pass::Optimistic);
            if self.is_unchanged(dcache) {
                return;
            }
            dcache.counters.retries.add(1);
        }
        dcache.counters.fallbacks.add(1);
        let _still = dcache.topology.read_shared();
        let _leaf = dcache.dentries.lockref(slot).lock();
        self.clear();
        self.climb(dcache, slot, root, Pass::Locked);
    }
}

/// Appends a path of an inode from the root of its file system to `out`, `/` for the root itself.
///
/// # Errors
/// `ENOENT` if the inode has no name.
pub(crate) fn append_inode_path(
    dcache: &Dcache,
    inode: u32,
    out: &mut Vec<u8>,
) -> Result<(), Errno> {
    let mut trail = Trail::new();
    loop {
        let alias = dcache.inodes.alias(inode);
        if alias == 0 {
            return Err(Errno::NOENT);
        }
        if !dcache.dentries.lockref(alias).get_not_dead() {
            continue;
        }
        let is_alias = dcache.dentries.image(alias).body.inode() == inode;
        if is_alias {
            trail.collect(dcache, alias, 0);
        }
        dcache.put(alias);
        if is_alias && trail.kind == PathKind::Linked {
            break;
        }
        if dcache.inodes.alias(inode) == alias {
            return Err(Errno::NOENT);
        }
    }
    out.extend_from_slice(trail.whole());
    Ok(())
}

/// Returns the path of the inode numbered `ino` in the first file system, without a reference on
/// anything; None if that needs more than one pass.
pub(crate) fn path_of_number(dcache: &Dcache, ino: u64) -> Option<Vec<u8>> {
    // The name of an inode lies in its slot whenever it can.
    let inode = dcache.inodes.peek(0, ino, |slot| dcache.dentries.prefetch(slot))?;
    let alias = dcache.inodes.alias(inode);
    if alias == 0 {
        return None;
    }
    let mut trail = Trail::new();
    trail.climb(dcache, alias, 0, Pass::Optimistic);
    // A dentry that has an inode holds it, so the number read here is that of the instant at which
    // nothing had changed.
    let leaf = dcache.dentries.line(alias).glimpse_now().body;
    let is_it = leaf.inode() == inode && dcache.inodes.is(inode, 0, ino);
    if !trail.is_unchanged(dcache) {
        dcache.counters.retries.add(1);
        return None;
    }
    if !is_it || trail.kind != PathKind::Linked {
        return None;
    }
    Some(trail.whole().to_vec())
}

#[cfg(all(test, not(any(corewalk_loom, corewalk_shuttle))))]
mod tests;
