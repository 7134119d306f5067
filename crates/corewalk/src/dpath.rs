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
use smallvec::SmallVec;

use crate::Errno;
use crate::dcache::Dcache;
use crate::dentry::{Body, Flags, Glimpse, INLINE_WORDS, NameCopy};

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

/// Steps that a trail has room for without an allocation; most paths are shorter.
const STEPS: usize = 16;

/// The parts of a path, from the leaf to the root.
pub(crate) struct Trail {
    steps: SmallVec<[Step; STEPS]>,
    /// How many steps, from the leaf on, have a name.
    named: usize,
    /// The names that are not in their steps.
    long: Vec<u8>,
    pub(crate) kind: PathKind,
    /// The dentry at which the trail ended.
    pub(crate) top: u32,
}

/// A dentry on the way. A name that is not in its words is in `Trail::long`, at `words[0]`.
#[derive(Clone, Copy)]
struct Step {
    seq: u64,
    slot: u32,
    len: u16,
    is_long: bool,
    words: [u64; INLINE_WORDS],
}

impl Trail {
    pub(crate) fn new() -> Trail {
        Trail { steps: SmallVec::new(), named: 0, long: Vec::new(), kind: PathKind::Linked, top: 0 }
    }

    /// Forgets everything: a pass starts as if it were the first (trap T8).
    pub(crate) fn clear(&mut self) {
        self.steps.clear();
        self.named = 0;
        self.long.clear();
        self.kind = PathKind::Linked;
        self.top = 0;
    }

    /// Collects the names from `slot` up to `root` (or the root of the file system). Returns what the
    /// dentry in `slot` said.
    fn climb(&mut self, dcache: &Dcache, slot: u32, root: u32, pass: Pass) -> Body {
        let mut leaf = None;
        let mut at = slot;
        loop {
            let seen = dcache.dentries.glimpse(at);
            let step = self.step(dcache, at, seen);
            if pass == Pass::Locked && !dcache.dentries.is_unchanged(at, seen.seq) {
                // Names and parents stay, but a mark on a dentry may change.
                continue;
            }
            self.steps.push(step);
            let flags = seen.body.flags();
            let leaf = *leaf.get_or_insert(seen.body);
            self.top = at;
            if at == root || flags.contains(Flags::ROOT) {
                return leaf;
            }
            self.named += 1;
            if !flags.contains(Flags::HASHED) {
                self.kind = PathKind::Unlinked;
            }
            let parent = seen.key.parent();
            // What was read may belong to different instants; a loop that this makes is left when
            // a sequence that has moved is noticed.
            let len = self.steps.len();
            let must_look = pass == Pass::Optimistic && len >= 256 && len.is_power_of_two();
            if parent == 0 || (must_look && !self.is_unchanged(dcache)) {
                return leaf;
            }
            at = parent;
        }
    }

    #[inline]
    fn step(&mut self, dcache: &Dcache, slot: u32, seen: Glimpse) -> Step {
        let len = seen.body.len() as u16;
        let is_long = seen.body.flags().contains(Flags::LONG);
        let mut words = dcache.dentries.name_words(slot);
        if is_long {
            let mut copy = NameCopy::new();
            dcache.dentries.copy_name(slot, seen.body, &mut copy);
            words[0] = self.long.len() as u64;
            self.long.extend_from_slice(copy.as_bytes());
        }
        Step { seq: seen.seq, slot, len, is_long, words }
    }

    /// Returns true if nothing that was collected has changed since.
    pub(crate) fn is_unchanged(&self, dcache: &Dcache) -> bool {
        self.steps.iter().all(|step| dcache.dentries.is_unchanged(step.slot, step.seq))
    }

    /// Appends the collected names in order, each with a `/` before it.
    pub(crate) fn append_to(&self, out: &mut Vec<u8>) {
        let steps = &self.steps[..self.named];
        let start = out.len();
        let end = start + steps.iter().map(|step| usize::from(step.len) + 1).sum::<usize>();
        // Short names are copied with all of their words; what is too much is overwritten by the
        // next, or cut off.
        out.resize(end + 8 * INLINE_WORDS, 0);
        let mut at = start;
        for step in steps.iter().rev() {
            out[at] = b'/';
            at += 1;
            let len = usize::from(step.len);
            if step.is_long {
                let from = step.words[0] as usize;
                out[at..at + len].copy_from_slice(&self.long[from..from + len]);
            } else {
                let bytes = step.words.map(u64::to_le_bytes);
                out[at..at + 8 * INLINE_WORDS].copy_from_slice(bytes.as_flattened());
            }
            at += len;
        }
        out.truncate(end);
    }

    /// Collects a trail that existed at one instant.
    pub(crate) fn collect(&mut self, dcache: &Dcache, slot: u32, root: u32) {
        for _ in 0..OPTIMISTIC_PASSES {
            self.clear();
            self.climb(dcache, slot, root, Pass::Optimistic);
            if self.is_unchanged(dcache) {
                return;
            }
        }
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
    append_whole(&trail, out);
    Ok(())
}

/// Appends the path of the inode numbered `ino` in the first file system to `out`, without a
/// reference on anything. Returns false, and appends nothing, if that needs more than one pass.
pub(crate) fn append_path_of_number(dcache: &Dcache, ino: u64, out: &mut Vec<u8>) -> bool {
    let Some(inode) = dcache.inodes.peek(0, ino) else { return false };
    let alias = dcache.inodes.alias(inode);
    if alias == 0 {
        return false;
    }
    let mut trail = Trail::new();
    let leaf = trail.climb(dcache, alias, 0, Pass::Optimistic);
    // A dentry that has an inode holds it, so the number read here is that of the instant at which
    // nothing had changed.
    let is_it = leaf.inode() == inode && dcache.inodes.is(inode, 0, ino);
    if !is_it || trail.kind != PathKind::Linked || !trail.is_unchanged(dcache) {
        return false;
    }
    append_whole(&trail, out);
    true
}

fn append_whole(trail: &Trail, out: &mut Vec<u8>) {
    if trail.named == 0 {
        out.push(b'/');
    }
    trail.append_to(out);
}

#[cfg(all(test, not(any(corewalk_loom, corewalk_shuttle))))]
mod tests;
