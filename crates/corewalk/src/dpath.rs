//! Path translation: from a dentry to its pathname, as a snapshot.
//!
//! A path translation makes passes over the path. A pass collects the names from the dentry up to
//! the root, and adds each dentry with its sequence to a read set. Then it validates the read set.
//! If no sequence has changed, all names existed together at the instant between the collection and
//! the validation. So the path existed then (traps T1, T8, P8 in `traps.md`).
//!
//! There is no global rename sequence. So a path translation must retry only if the dentry or one
//! of its ancestors changes.
//!
//! After a few failed attempts, the path translation takes the lock `topology` shared, which keeps
//! directories in place, and locks the dentry itself. So a storm of renames cannot make it retry
//! for ever (trap T9 in `traps.md`).
//!
//! The result of a path translation includes the kind of the path: for example, that the path does
//! not begin at the given root. The texts of d_path and getcwd depend on the kind (trap T11 in
//! `traps.md`).
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

const OPTIMISTIC_PASSES: u32 = 4;
/// The number of names in the large read set of a path translation. A translation into a caller's
/// buffer must not allocate memory. So for a path with more than `STEPS` names it uses this read
/// set, which is on the stack.
const DEEP: usize = 1024;

/// The maximum number of names of an inode that are translated to paths, besides the first name.
const OTHER_PATHS_MAX: usize = 8;

/// Tells where a translated path starts, and whether all of its names still exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathKind {
    /// The path leads from the root to the dentry, and every name on it exists.
    Linked,
    /// The dentry has been removed. The path is the last one that it had.
    Unlinked,
    /// The dentry is not below the root that the caller passed, so the path starts at the root of
    /// the namespace instead.
    OutsideRoot,
    /// The dentry is in a tree that is not mounted. The path starts at the root of that tree.
    Unreachable,
}

#[derive(Clone, Copy)]
pub(crate) enum Route<'m> {
    Names(DentrySlot),
    /// The route from a dentry in a mount up to a root, across mount points. The root is a mount
    /// number and a dentry, or None for the root of the namespace.
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
    /// Collects the names on `route`, which all existed at one instant. The caller holds a
    /// reference on the dentry at which `route` begins. If the read set was too small, returns
    /// names that are not validated (see [`PathBuffer::is_truncated`]).
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

/// Writes the path to the end of `buf`. Returns the index at which the path begins, and its kind.
/// All names on it existed at one instant. Allocates no memory.
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

/// Appends a path of an inode to `out`. The path begins at the root of the inode's file system. The
/// path of this root is `/`.
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
            // The first dentry of the inode has no path: for example, its directory was removed. So
            // try the others.
            let other = other_inode_paths(dcache, inode).into_iter().next();
            out.extend_from_slice(&other.ok_or(Errno::NOENT)?);
            return Ok(());
        }
    }
}

pub(crate) fn other_inode_paths(dcache: &Dcache, inode: InodeSlot) -> Vec<Vec<u8>> {
    let aliases = dcache.inodes.other_aliases(inode, OTHER_PATHS_MAX, &dcache.dentries);
    let mut buffer = PathBuffer::new();
    let path = |alias| {
        let is_there = collect_alias(dcache, alias, inode, &mut buffer);
        is_there.then(|| buffer.whole().to_vec())
    };
    aliases.into_iter().filter_map(path).collect()
}

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

/// A path of an inode, and the inodes of all dentries on this path. The list begins with the inode
/// itself and ends with the root.
pub(crate) struct Chain {
    pub(crate) path: Vec<u8>,
    pub(crate) inodes: Vec<InodeSlot>,
}

/// Returns a path of an inode, with the inodes on the path. All names on the path existed at one
/// instant.
///
/// The caller holds a reference on the inode. If the inode is not a directory, the caller also
/// keeps one of its names in the cache (see [`hold_name`]). This function takes no reference on a
/// dentry.
///
/// # Errors
/// `ENOENT` if the inode has no name.
pub(crate) fn chain_of_inode(dcache: &Dcache, inode: InodeSlot) -> Result<Chain, Errno> {
    names_of(dcache, inode, |name| chain_of_name(dcache, name, inode)).ok_or(Errno::NOENT)
}

/// Returns a dentry of the inode that is linked below the root. The caller gets a reference on the
/// dentry, which keeps it in the cache.
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
            // The first dentry of the inode has no path: for example, its directory was removed. So
            // try the others.
            let others = dcache.inodes.other_aliases(inode, OTHER_PATHS_MAX, &dcache.dentries);
            return others.into_iter().find_map(look);
        }
    }
}

pub(crate) fn chain_of_name(dcache: &Dcache, name: DentrySlot, inode: InodeSlot) -> Option<Chain> {
    let mut buffer = PathBuffer::new();
    let mut passes = 0;
    loop {
        let _still = (passes >= OPTIMISTIC_PASSES).then(|| dcache.topology.read_shared());
        buffer.clear();
        buffer.prepend(dcache, name, DentrySlot::NONE, Pass::Optimistic);
        // The slot of a dentry on the path may be reused before its inode is read here. Then
        // `is_unchanged` below returns false.
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

/// Returns a path of the inode with the number `ino` in the root file system, without taking a
/// reference. Returns None if the inode is not cached, or if a name on the path changes meanwhile.
/// The caller then takes a reference on the inode and calls [`append_inode_path`].
pub(crate) fn path_of_ino(dcache: &Dcache, ino: u64) -> Option<Vec<u8>> {
    // An inode's dentry is usually in the same slot as the inode, so prefetch that dentry.
    let inode = dcache.inodes.peek(0, ino, |slot| dcache.dentries.prefetch(slot.dentry_half()))?;
    let alias = dcache.inodes.alias(inode);
    if alias.is_none() {
        return None;
    }
    let mut buffer = PathBuffer::new();
    buffer.prepend(dcache, alias, DentrySlot::NONE, Pass::Optimistic);
    // A hashed dentry holds a reference on its inode. If `is_unchanged` returns true, the dentry
    // was hashed during both reads, so its inode was alive and had the number `ino`.
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
