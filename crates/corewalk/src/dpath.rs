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
//! Source: document 001 and its review; Linux `fs/d_path.c`; DESIGN 4.3.

use corewalk_sync::Pass;

use crate::Errno;
use crate::dcache::Dcache;
use crate::dentry::{Flags, NameCopy};

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

/// The parts of a path, from the leaf to the root.
pub(crate) struct Trail {
    /// Names, each behind a `/`, the last one first: `/c/b/a` for `a/b/c`.
    names: Vec<u8>,
    ends: Vec<usize>,
    pub(crate) seen: Vec<(u32, u64)>,
    pub(crate) kind: PathKind,
    /// The dentry at which the trail ended.
    pub(crate) top: u32,
}

impl Trail {
    pub(crate) fn new() -> Trail {
        Trail {
            names: Vec::new(),
            ends: Vec::new(),
            seen: Vec::new(),
            kind: PathKind::Linked,
            top: 0,
        }
    }

    /// Forgets everything: a pass starts as if it were the first (trap T8).
    pub(crate) fn clear(&mut self) {
        self.names.clear();
        self.ends.clear();
        self.seen.clear();
        self.kind = PathKind::Linked;
        self.top = 0;
    }

    /// Collects the names from `slot` up to `root` (or the root of the file system).
    fn climb(&mut self, dcache: &Dcache, slot: u32, root: u32, pass: Pass) {
        let mut copy = NameCopy::new();
        let mut at = slot;
        loop {
            let seen = dcache.dentries.glimpse(at);
            dcache.dentries.copy_name(at, seen.body, &mut copy);
            if pass == Pass::Locked && !dcache.dentries.is_unchanged(at, seen.seq) {
                // Names and parents stay, but a mark on a dentry may change.
                continue;
            }
            self.seen.push((at, seen.seq));
            let flags = seen.body.flags();
            self.top = at;
            if at == root || flags.contains(Flags::ROOT) {
                return;
            }
            if !flags.contains(Flags::HASHED) {
                self.kind = PathKind::Unlinked;
            }
            self.names.extend_from_slice(copy.as_bytes());
            self.ends.push(self.names.len());
            let parent = seen.key.parent();
            // What was read may belong to different instants; a loop that this makes is left when
            // a sequence that has moved is noticed.
            let must_look = pass == Pass::Optimistic && self.seen.len().is_multiple_of(256);
            if parent == 0 || (must_look && !self.is_unchanged(dcache)) {
                return;
            }
            at = parent;
        }
    }

    /// Returns true if nothing that was collected has changed since.
    pub(crate) fn is_unchanged(&self, dcache: &Dcache) -> bool {
        self.seen.iter().all(|&(slot, seq)| dcache.dentries.is_unchanged(slot, seq))
    }

    /// Appends the collected names in order, each with a `/` before it.
    pub(crate) fn append_to(&self, out: &mut Vec<u8>) {
        for i in (0..self.ends.len()).rev() {
            let start = if i == 0 { 0 } else { self.ends[i - 1] };
            out.push(b'/');
            out.extend_from_slice(&self.names[start..self.ends[i]]);
        }
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
    if trail.seen.len() == 1 {
        out.push(b'/');
    }
    trail.append_to(out);
    Ok(())
}

#[cfg(all(test, not(any(corewalk_loom, corewalk_shuttle))))]
mod tests;
