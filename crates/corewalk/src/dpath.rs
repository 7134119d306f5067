//! Path translation: from a dentry to its pathname, as a snapshot.
//!
//! A pass of a translation collects the names up to the root, each with its sequence in a read set,
//! and then validates the read set. If it is valid, all names existed together at the instant
//! between the collection and the validation, so the path existed (traps T1, T8, P8). There is no
//! global rename sequence, so only a change of the dentry or of an ancestor makes a pass fail.
//! After a few passes the translation takes the lock `topology` shared, which keeps directories in
//! place, and locks the leaf (the dentry that it translates). So no storm of renames can make it
//! retry for ever, which is trap T9.
//!
//! The result includes the kind of path, from which the formattings of d_path and getcwd follow
//! (trap T11).
//!
//! Source: document 001 and its review; Linux `fs/d_path.c`.

mod path_buffer;

use corewalk_sync::Pass;

use crate::Errno;
use crate::dcache::Dcache;
use crate::mount::Mount;
use crate::read_set::STEPS;
use crate::slot::{DentrySlot, InodeSlot};
pub(crate) use path_buffer::PathBuffer;

/// Passes without a lock.
const OPTIMISTIC_PASSES: u32 = 4;
/// A translation into a caller's buffer allocates nothing. If a path has more than `STEPS` names, a
/// second attempt uses a read set of this many names, on the stack.
const DEEP: usize = 1024;

/// Names of an inode that are translated besides the first.
const OTHER_PATHS_MAX: usize = 8;

/// The kind of a translated path: where it starts and whether its names exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathKind {
    /// The path leads from the root to the dentry, and every name on it exists.
    Linked,
    /// The dentry has been removed. The path is the one that it had before.
    Unlinked,
    /// The dentry is not below the root that the caller passed. The path starts at the root of the
    /// namespace.
    OutsideRoot,
    /// The dentry is in a tree that is not mounted. The path starts at the top of that tree.
    Unreachable,
}

/// The route of a translation.
#[derive(Clone, Copy)]
pub(crate) enum Route<'m> {
    /// From the dentry to the root of its file system.
    Names(DentrySlot),
    /// The route from a dentry in a mount up to a root. The root is given as the number of its
    /// mount and its dentry. If no root is given, the route ends at the root of the namespace.
    Mounts((&'m Mount, DentrySlot), Option<(u64, DentrySlot)>),
}

impl Route<'_> {
    fn leaf(self) -> DentrySlot {
        match self {
            Route::Names(slot) | Route::Mounts((_, slot), _) => slot,
        }
    }

    fn prepend<const N: usize>(self, buffer: &mut PathBuffer<'_, N>, dcache: &Dcache, pass: Pass) {
        match self {
            Route::Names(slot) => buffer.prepend(dcache, slot, DentrySlot::NONE, pass),
            Route::Mounts((mount, slot), root) => {
                buffer.prepend_mounts(dcache, mount, slot, root, pass);
            }
        }
    }
}

impl<const N: usize> PathBuffer<'_, N> {
    /// Collects a path that existed at one instant. The caller holds a reference on the leaf, the
    /// dentry at which `route` begins.
    pub(crate) fn collect(&mut self, dcache: &Dcache, route: Route<'_>) {
        for _ in 0..OPTIMISTIC_PASSES {
            self.clear();
            route.prepend(self, dcache, Pass::Optimistic);
            if self.is_truncated() {
                break;
            }
            if self.is_unchanged(dcache) {
                return;
            }
            dcache.counters.retries.add(1);
        }
        if self.is_truncated() && N < DEEP {
            return;
        }
        dcache.counters.fallbacks.add(1);
        let _still = dcache.topology.read_shared();
        let _leaf = dcache.dentries.lockref(route.leaf()).lock();
        self.clear();
        route.prepend(self, dcache, Pass::Locked);
    }
}

/// Writes a path that existed at one instant to the end of `buf`, and returns where it begins. The
/// caller holds a reference on the leaf, the dentry at which `route` begins. The function allocates
/// nothing.
///
/// # Errors
/// `ENAMETOOLONG` if the path does not fit.
pub(crate) fn path_into(
    dcache: &Dcache,
    route: Route<'_>,
    buf: &mut [u8],
) -> Result<(usize, PathKind), Errno> {
    let mut buffer = PathBuffer::<STEPS>::lent(buf);
    buffer.collect(dcache, route);
    if buffer.is_truncated() {
        return deep_path_into(dcache, route, buf);
    }
    let kind = buffer.kind;
    Ok((buffer.into_buffer()?, kind))
}

/// Like [`path_into`], for a path with many names.
#[cold]
#[inline(never)]
fn deep_path_into(
    dcache: &Dcache,
    route: Route<'_>,
    buf: &mut [u8],
) -> Result<(usize, PathKind), Errno> {
    let mut buffer = PathBuffer::<DEEP>::lent(buf);
    buffer.collect(dcache, route);
    let kind = buffer.kind;
    Ok((buffer.into_buffer()?, kind))
}

/// Appends to `out` a path of an inode, which starts at the root of the inode's file system. The
/// path of that root itself is `/`.
///
/// # Errors
/// `ENOENT` if the inode has no name.
pub(crate) fn append_inode_path(
    dcache: &Dcache,
    inode: InodeSlot,
    out: &mut Vec<u8>,
) -> Result<(), Errno> {
    let mut buffer = PathBuffer::new();
    loop {
        let alias = dcache.inodes.alias(inode);
        if alias.is_none() {
            return Err(Errno::NOENT);
        }
        if collect_alias(dcache, alias, inode, &mut buffer) {
            out.extend_from_slice(buffer.whole());
            return Ok(());
        }
        if dcache.inodes.alias(inode) == alias {
            // `alias` may be a name in a removed directory, and such a name has no path. So try the
            // inode's other names.
            let other = other_inode_paths(dcache, inode).into_iter().next();
            out.extend_from_slice(&other.ok_or(Errno::NOENT)?);
            return Ok(());
        }
    }
}

/// Returns paths of an inode by its other names: all but the name that [`append_inode_path`] tries
/// first.
pub(crate) fn other_inode_paths(dcache: &Dcache, inode: InodeSlot) -> Vec<Vec<u8>> {
    let aliases = dcache.inodes.other_aliases(inode, OTHER_PATHS_MAX, &dcache.dentries);
    let mut buffer = PathBuffer::new();
    let path = |alias| {
        let is_there = collect_alias(dcache, alias, inode, &mut buffer);
        is_there.then(|| buffer.whole().to_vec())
    };
    aliases.into_iter().filter_map(path).collect()
}

/// Collects the names from a dentry to the root. Returns false if the dentry is not an alias of the
/// inode, or not below the root.
fn collect_alias(
    dcache: &Dcache,
    alias: DentrySlot,
    inode: InodeSlot,
    buffer: &mut PathBuffer<'static>,
) -> bool {
    if !dcache.dentries.lockref(alias).get_not_dead() {
        return false;
    }
    let is_alias = dcache.dentries.image(alias).body.inode() == inode;
    if is_alias {
        buffer.collect(dcache, Route::Names(alias));
    }
    dcache.put(alias);
    is_alias && buffer.kind == PathKind::Linked
}

/// A path of an inode, together with all inodes on it, from the inode itself to the root.
pub(crate) struct Chain {
    pub(crate) path: Vec<u8>,
    pub(crate) inodes: Vec<InodeSlot>,
}

/// Returns a path of an inode from the root of its file system, together with the inodes on that
/// path. All of them are from one instant. The caller holds a reference on the inode. Unless the
/// inode is a directory, the caller also holds one of its names. The function neither takes nor
/// drops a reference on a dentry.
///
/// # Errors
/// `ENOENT` if the inode has no name.
pub(crate) fn chain_of_inode(dcache: &Dcache, inode: InodeSlot) -> Result<Chain, Errno> {
    names_of(dcache, inode, |name| chain_of_name(dcache, name, inode)).ok_or(Errno::NOENT)
}

/// Returns an alias of an inode that is linked below the root, with a reference. Returns None if
/// the inode has no such alias.
pub(crate) fn hold_name(dcache: &Dcache, inode: InodeSlot) -> Option<DentrySlot> {
    names_of(dcache, inode, |name| {
        if !dcache.dentries.lockref(name).get_not_dead() {
            return None;
        }
        if chain_of_name(dcache, name, inode).is_some() {
            return Some(name);
        }
        dcache.put(name);
        None
    })
}

/// Calls `look` with one dentry of an inode after another, and returns its first result.
fn names_of<T>(
    dcache: &Dcache,
    inode: InodeSlot,
    look: impl Fn(DentrySlot) -> Option<T>,
) -> Option<T> {
    loop {
        let first = dcache.inodes.alias(inode);
        if first.is_none() {
            return None;
        }
        if let Some(found) = look(first) {
            return Some(found);
        }
        if dcache.inodes.alias(inode) == first {
            // `first` may be a name in a removed directory, and such a name has no path. So try the
            // inode's other names.
            let others = dcache.inodes.other_aliases(inode, OTHER_PATHS_MAX, &dcache.dentries);
            return others.into_iter().find_map(look);
        }
    }
}

/// Returns the path to the dentry `name`. Returns None if the dentry is not an alias of the inode,
/// or not below the root.
pub(crate) fn chain_of_name(dcache: &Dcache, name: DentrySlot, inode: InodeSlot) -> Option<Chain> {
    let mut buffer = PathBuffer::new();
    let mut passes = 0;
    loop {
        let _still = (passes >= OPTIMISTIC_PASSES).then(|| dcache.topology.read_shared());
        buffer.clear();
        buffer.prepend(dcache, name, DentrySlot::NONE, Pass::Optimistic);
        // A slot of the path may get another dentry meanwhile. That changes its sequence, so the
        // validation below fails.
        let inode_of = |slot| dcache.dentries.snapshot(slot).body.inode();
        let inodes: Vec<InodeSlot> = buffer.slots().map(inode_of).collect();
        if buffer.is_unchanged(dcache) {
            let is_path = inodes.first() == Some(&inode) && buffer.kind == PathKind::Linked;
            return is_path.then(|| Chain { path: buffer.whole().to_vec(), inodes });
        }
        dcache.counters.retries.add(1);
        passes += 1;
    }
}

/// Returns the path of the inode numbered `ino` in the root's file system. Takes no reference.
/// Returns None if a name on the path changes meanwhile, or the inode is not cached. Then the
/// caller takes a reference on the inode and translates its path with [`append_inode_path`].
pub(crate) fn path_of_ino(dcache: &Dcache, ino: u64) -> Option<Vec<u8>> {
    // The inode's name is usually in the same slot, so prefetch its dentry.
    let inode = dcache.inodes.peek(0, ino, |slot| dcache.dentries.prefetch(slot.dentry_half()))?;
    let alias = dcache.inodes.alias(inode);
    if alias.is_none() {
        return None;
    }
    let mut buffer = PathBuffer::new();
    buffer.prepend(dcache, alias, DentrySlot::NONE, Pass::Optimistic);
    // A dentry holds a reference on its inode. So if the path validates, the inode had the number
    // `ino` at the validated instant.
    let leaf = dcache.dentries.line(alias).snapshot_now().body;
    let is_it = leaf.inode() == inode && dcache.inodes.is(inode, 0, ino);
    if !buffer.is_unchanged(dcache) {
        dcache.counters.retries.add(1);
        return None;
    }
    if !is_it || buffer.kind != PathKind::Linked {
        return None;
    }
    Some(buffer.whole().to_vec())
}

#[cfg(all(test, not(any(corewalk_loom, corewalk_shuttle))))]
mod tests;
