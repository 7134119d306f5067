//! Rename: changes both names at one instant, and keeps the tree free of loops.
//!
//! A rename changes the back end first, and then the cache. In between, readers get the old
//! answers.
//!
//! If the new name is not cached, the rename does not know whether a file has this name. So it
//! tells the back end not to replace a file. During a rename, other changes of the old or the new
//! name wait. Lookups of either name wait only if it is not cached. Other operations do not wait,
//! except calls by path (`paths`) and a move that would close a loop.
//!
//! Two concurrent moves of directories could put each directory below the other. So a move
//! announces its new parent before it calls the back end, and checks all paths to the root over
//! current and announced parents. A move that would close a loop with an announced move waits for
//! that move.
//!
//! No reader takes the lock of the announced moves, and it is not held while the back end runs
//! (traps T26, T27, P9 in `traps.md`).
//!
//! Source: rename(2); Linux directory-locking.rst.

use std::collections::HashSet;

use corewalk_base::{CachePadded, Condvar, Mutex};

use super::call::KnownPath;
use super::held::{DentryHold, Dir, FoundName};
use super::hidden::LockedName;
use super::names::{Cached, Missing};
use super::{InodeRef, Vfs};
use crate::Errno;
use crate::cred::{Cred, May};
use crate::dcache::Dcache;
use crate::dentry::{LookupKey, ParentKey};
use crate::fs::RenameMode;
use crate::key_lock::KeyGuard;
use crate::name::Name;
use crate::slot::{DentrySlot, InodeSlot};

/// The number of shards in [`InFlightRenames`]. It is so large that renames in different
/// directories seldom share a shard.
const IN_FLIGHT_SHARDS: usize = if cfg!(corewalk_shuttle) { 2 } else { 64 };

impl Vfs {
    /// Renames `from` to `to`. [`RenameMode::Replace`] removes an existing target at the same
    /// instant. If both names refer to one inode, nothing changes, as POSIX says.
    ///
    /// # Errors
    /// In this order:
    /// - For either directory as in [`Vfs::make`]: `ENOTDIR`, `ENOENT`, `EACCES`. `EXDEV` if they
    ///   are in different file systems.
    /// - `ENOENT` if the source does not exist; `EEXIST` if the target exists (no replace).
    /// - `EINVAL` if a directory would move into itself; `ENOTEMPTY` if the target is a directory
    ///   that contains the source.
    /// - `EACCES` if either directory may not be written; `EPERM` in a sticky directory.
    /// - `ENOTDIR`, `EISDIR` if only one of source and target is a directory.
    /// - `EACCES` if a moved directory would get another parent and the caller may not write it.
    /// - `EBUSY` for a mount point; `ENOTEMPTY` and the other errors of the back end.
    ///
    /// # Examples
    /// ```
    /// # use std::sync::Arc;
    /// # use corewalk::tmpfs::{Tmpfs, TmpfsOptions};
    /// # use corewalk::{Cred, Errno, Make, Name, RenameMode, Vfs, VfsOptions};
    /// # let fs = Arc::new(Tmpfs::new(TmpfsOptions::default()));
    /// # let vfs = Vfs::new(fs, VfsOptions::default())?;
    /// let (cred, root) = (Cred::root(), vfs.root());
    /// let (old, new) = (Name::new(b"old")?, Name::new(b"new")?);
    /// let (file, _) = vfs.make(&cred, &root, old, Make::new(0o644, 0, 0))?;
    /// vfs.rename(&cred, (&root, old), (&root, new), RenameMode::NoReplace)?;
    /// assert_eq!(vfs.lookup(&cred, &root, new)?.ino(), file.ino());
    /// assert_eq!(vfs.lookup(&cred, &root, old).err(), Some(Errno::NOENT));
    /// # Ok::<(), corewalk::Errno>(())
    /// ```
    pub fn rename(
        &self,
        cred: &Cred,
        from: (&InodeRef<'_>, Name<'_>),
        to: (&InodeRef<'_>, Name<'_>),
        mode: RenameMode,
    ) -> Result<(), Errno> {
        self.awaiting_removal(&[from.0.slot, to.0.slot], || {
            let old_dir = self.searched(cred, from.0)?;
            let other_dir = match from.0.slot == to.0.slot {
                true => None,
                false => Some(self.searched(cred, to.0)?),
            };
            let (old_dir, new_dir) = (&old_dir, other_dir.as_ref().unwrap_or(&old_dir));
            let inodes = &self.dcache.inodes;
            if inodes.superblock(from.0.slot) != inodes.superblock(to.0.slot) {
                return Err(Errno::XDEV);
            }
            let (old, new) = (&self.dcache.lookup_key(from.1), &self.dcache.lookup_key(to.1));
            let in_lookup = self.dcache.in_lookup.lock_both(
                self.dcache.in_lookup_key(old_dir.now.slot, old),
                self.dcache.in_lookup_key(new_dir.now.slot, new),
            );
            let dirs = [old_dir.now.slot, new_dir.now.slot];
            let changes = dirs.map(|slot| self.dcache.listings.change(slot));
            let source = self.resolve(old_dir, old, &in_lookup)?.ok_or(Errno::NOENT)?;
            let op = Rename { vfs: self, cred, old_dir, new_dir, old, new, mode };
            let target = match self.cached(new_dir, new) {
                Cached::Known(target) => target,
                Cached::Unknown => match op.rename_to_uncached_name(&source, &in_lookup)? {
                    None => return Ok(()),
                    Some(target) => target,
                },
            };
            if op.is_noop(&source, target.as_ref())? {
                return Ok(());
            }
            let done = op.run(&source, target.as_ref(), mode, &in_lookup);
            if let Err(Failed::InBackEnd(_)) = done {
                // Find the replaced directory before the in-lookup locks are released. Afterwards
                // only a reference on its dentry is held.
                let victim = target.as_ref().and_then(FoundName::directory);
                drop((changes, in_lookup));
                self.wait_for_renames(victim);
            }
            done.map_err(|failed| match failed {
                Failed::Before(error) => error,
                Failed::InBackEnd(error) => self.invalidate_if_not_empty(target.as_ref(), error),
            })
        })
    }

    /// Waits until the cache shows all renames into or out of the directory `victim`. Called after
    /// the back end has removed or replaced `victim`, or has refused to, for example because it is
    /// not empty.
    ///
    /// From the result of a removal the caller learns whether `victim` was empty. If a rename has
    /// emptied it, the cache must show that rename before the caller gets the result.
    ///
    /// If the caller's own rename has failed, the caller has already removed it from
    /// `in_flight_renames`, and has released its in-lookup locks. So the caller does not wait for
    /// its own rename.
    pub(super) fn wait_for_renames(&self, victim: Option<DentrySlot>) {
        if let Some(slot) = victim {
            self.in_flight_renames.wait(slot);
        }
    }

    /// Moves a dentry to a new name. The caller holds the dentry and the in-lookup locks of both
    /// names, and `topology` for a directory. It drops the returned old parent when it holds no
    /// lock.
    pub(super) fn move_dentry(
        &self,
        slot: DentrySlot,
        from: &LookupKey<'_>,
        key: ParentKey,
        lookup_key: &LookupKey<'_>,
        target: Option<DentrySlot>,
        in_lookup: &KeyGuard<'_>,
    ) -> Result<DentryHold<'_>, Errno> {
        let is_new_parent = self.dcache.parent(slot).0 != key.parent();
        if is_new_parent && !self.dcache.dentries.lockref(key.parent()).get_not_dead() {
            return Err(Errno::STALE);
        }
        match self.dcache.d_move(slot, from, key, lookup_key, target, in_lookup) {
            Ok(old_parent) => Ok(DentryHold::adopt(self, old_parent)),
            Err(error) => {
                if is_new_parent {
                    // This does not drop the last reference, because the running operation holds
                    // the directory.
                    self.dcache.put(key.parent());
                }
                Err(error)
            }
        }
    }
}

struct Rename<'v, 'a> {
    vfs: &'v Vfs,
    cred: &'a Cred,
    old_dir: &'a Dir<'v>,
    new_dir: &'a Dir<'v>,
    old: &'a LookupKey<'a>,
    new: &'a LookupKey<'a>,
    mode: RenameMode,
}

enum Failed {
    /// A check failed, and the back end was not called.
    Before(Errno),
    /// The back end failed.
    InBackEnd(Errno),
}

impl<'v> Rename<'v, '_> {
    /// Tries to rename to a name that is not cached. Except for an exchange, first asks the back
    /// end to rename without replacing a file. Returns None if that succeeds. Otherwise returns the
    /// file that now has the new name, if any, and the caller renames again.
    fn rename_to_uncached_name(
        &self,
        source: &FoundName<'_>,
        in_lookup: &KeyGuard<'_>,
    ) -> Result<Option<Option<FoundName<'v>>>, Errno> {
        let first = match self.mode {
            RenameMode::Exchange => None,
            _ => match self.run(source, None, RenameMode::NoReplace, in_lookup) {
                Ok(()) => return Ok(None),
                Err(failed) => Some(failed),
            },
        };
        // If the lookup of the target also fails, return its error instead of the error of the
        // attempted rename.
        let target = self.vfs.resolve_or(self.new_dir, self.new, in_lookup, Missing::Dropped)?;
        match (first, target) {
            (Some(Failed::Before(error)), None) => Err(error),
            (Some(Failed::InBackEnd(Errno::EXIST | Errno::INVAL | Errno::NOSYS)), None)
                if self.mode == RenameMode::Replace =>
            {
                Ok(Some(None))
            }
            (Some(Failed::InBackEnd(error)), None) => Err(error),
            (_, target) => Ok(Some(target)),
        }
    }

    /// Checks the rename, makes it in the back end, and then changes the cache. If `run` fails,
    /// nothing has changed.
    fn run(
        &self,
        source: &FoundName<'_>,
        target: Option<&FoundName<'_>>,
        mode: RenameMode,
        in_lookup: &KeyGuard<'_>,
    ) -> Result<(), Failed> {
        let vfs = self.vfs;
        let announced = self.announce(source, target).map_err(Failed::Before)?;
        self.check(source, target).map_err(Failed::Before)?;
        let key = self.new_dir.key();
        let slots = [self.old_dir.now.slot, self.new_dir.now.slot];
        let dirs = [self.old_dir.now.inode, self.new_dir.now.inode];
        let moved = [source.inode, target.map_or(InodeSlot::NONE, |target| target.inode)];
        let lock = vfs.lock_move(&dirs, moved).map_err(Failed::Before)?;
        // Add the rename to `in_flight_renames` only now, with its path locks. So a thread that
        // waits for in-flight renames does not wait for path locks.
        let in_flight = self.changes_parent().then(|| vfs.in_flight_renames.enter(slots));
        let paths = [0, 1].map(|index| KnownPath::above(lock.as_ref(), index));
        let names = [self.old.name, self.new.name];
        let [from, to] = [0, 1].map(|index| LockedName {
            dir: vfs.known_node(dirs[index], &paths[index]),
            path: &paths[index],
            name: names[index],
        });
        let renamed = vfs.rename_in_backend(from, to, source, target, mode);
        renamed.map_err(Failed::InBackEnd)?;
        if mode != RenameMode::Exchange {
            vfs.wait_for_renames(target.and_then(FoundName::directory));
        }
        self.commit(source, target, key, in_lookup);
        drop((in_flight, lock, announced));
        Ok(())
    }

    fn is_noop(
        &self,
        source: &FoundName<'_>,
        target: Option<&FoundName<'_>>,
    ) -> Result<bool, Errno> {
        match (self.mode, target) {
            (RenameMode::NoReplace, Some(_)) => Err(Errno::EXIST),
            (RenameMode::Exchange, None) => Err(Errno::NOENT),
            (_, Some(target)) => Ok(target.inode == source.inode),
            _ => Ok(false),
        }
    }

    fn changes_parent(&self) -> bool {
        self.old_dir.now.slot != self.new_dir.now.slot
    }

    fn check(&self, source: &FoundName<'_>, target: Option<&FoundName<'_>>) -> Result<(), Errno> {
        let (vfs, cred) = (self.vfs, self.cred);
        let is_dir = |found: &FoundName<'_>| found.is_directory();
        vfs.may_delete(cred, self.old_dir.now.inode, source)?;
        match target {
            None => vfs.permission(cred, self.new_dir.now.inode, May::WRITE | May::EXEC)?,
            Some(target) => vfs.may_delete(cred, self.new_dir.now.inode, target)?,
        }
        let (replaced, exchanged) = match self.mode {
            RenameMode::Exchange => (None, target),
            _ => (target, None),
        };
        match replaced.map(|replaced| (is_dir(source), is_dir(replaced))) {
            Some((true, false)) => return Err(Errno::NOTDIR),
            Some((false, true)) => return Err(Errno::ISDIR),
            _ => {}
        }
        if self.changes_parent() {
            // A directory that gets another parent changes its `..`, which needs write permission
            // for the directory.
            for moved in [Some(source), exchanged].into_iter().flatten().filter(|f| is_dir(f)) {
                vfs.permission(cred, moved.inode, May::WRITE)?;
            }
        }
        let is_busy = vfs.is_mounted_on(source) || target.is_some_and(|to| vfs.is_mounted_on(to));
        if is_busy { Err(Errno::BUSY) } else { Ok(()) }
    }

    /// Announces the new parents of the directories that change their parent.
    fn announce(
        &self,
        source: &FoundName<'_>,
        target: Option<&FoundName<'_>>,
    ) -> Result<Option<Announced<'v>>, Errno> {
        let (old_parent, new_parent) = (self.old_dir.now.slot, self.new_dir.now.slot);
        if !self.changes_parent() {
            return Ok(None);
        }
        let mut edges = Vec::new();
        if let Some(slot) = source.directory() {
            edges.push((slot, new_parent));
        }
        if let Some(slot) = target.and_then(FoundName::directory) {
            if self.mode == RenameMode::Exchange {
                edges.push((slot, old_parent));
            } else if self.vfs.dcache.is_subdir(old_parent, slot) {
                // The target contains the source, so it is not empty.
                return Err(Errno::NOTEMPTY);
            }
        }
        if edges.is_empty() {
            return Ok(None);
        }
        self.vfs.in_flight_moves.announce(&self.vfs.dcache, edges).map(Some)
    }

    /// Changes the cache after the back end has made the rename. If one of the names was
    /// invalidated meanwhile, no lookup finds the dentry under its new name.
    fn commit(
        &self,
        source: &FoundName<'_>,
        target: Option<&FoundName<'_>>,
        key: ParentKey,
        in_lookup: &KeyGuard<'_>,
    ) {
        let vfs = self.vfs;
        let moves_directory = source.is_directory() || target.is_some_and(FoundName::is_directory);
        // Dropping the last reference calls the back end. So hold the replaced file's inode until
        // the lock `topology` (of the tree's directories) and the dentry locks are released.
        let _victim = target.map(FoundName::inode_ref);
        let replaced = target.and_then(|target| target.dentry().ok());
        let done = source.dentry().map_err(|_| Errno::STALE).and_then(|moved| {
            let _topology = moves_directory.then(|| vfs.dcache.topology.write());
            // If the back end also moves directories by itself, such a move and this rename may
            // make a loop. Then move no dentry, and invalidate both names.
            if moves_directory && vfs.dcache.is_subdir(self.new_dir.now.slot, moved) {
                return Err(Errno::STALE);
            }
            match (self.mode, replaced) {
                (RenameMode::Exchange, Some(other)) => {
                    vfs.dcache.exchange(moved, other, in_lookup).map(|()| None)
                }
                (RenameMode::Exchange, None) => Err(Errno::STALE),
                (_, target) => {
                    let is_current = self.new_dir.key() == key;
                    let key = if is_current { key } else { ParentKey::stale(key.parent()) };
                    vfs.move_dentry(moved, self.old, key, self.new, target, in_lookup).map(Some)
                }
            }
        });
        if self.mode != RenameMode::Exchange
            && let Some(slot) = target.and_then(FoundName::directory)
        {
            let held = vfs.dcache.dentries.lockref(slot).count();
            vfs.dcache.sweep_orphans(held.saturating_sub(1));
        }
        if done.is_err() {
            // The next lookup of either name asks the back end.
            vfs.invalidate_cached(self.old_dir, self.old);
            vfs.invalidate_cached(self.new_dir, self.new);
        }
    }
}

/// The directories of running renames. A rename between two directories registers both before it
/// calls the back end, until the cache shows the result.
///
/// A rename that replaces a directory waits for other renames into and out of it, but only after
/// the back end has removed the directory. By then the back end has made the other renames, or will
/// refuse them. So none of them waits for this one, and renames never wait in a circle.
pub(super) struct InFlightRenames {
    shards: Box<[CachePadded<InFlightShard>]>,
}

struct InFlightShard {
    /// The directories of running renames in this shard, once per rename. Protected by its own
    /// mutex.
    busy: Mutex<Vec<DentrySlot>>,
    /// Notified when a rename leaves `busy`. Waited on under `busy`.
    left: Condvar,
}

#[must_use]
pub(super) struct InFlightRename<'a> {
    in_flight_renames: &'a InFlightRenames,
    slots: [DentrySlot; 2],
}

impl InFlightRenames {
    pub(super) fn new() -> InFlightRenames {
        let shard = || {
            let busy = Mutex::new(Vec::new());
            CachePadded::new(InFlightShard { busy, left: Condvar::new() })
        };
        InFlightRenames { shards: (0..IN_FLIGHT_SHARDS).map(|_| shard()).collect() }
    }

    fn enter(&self, slots: [DentrySlot; 2]) -> InFlightRename<'_> {
        slots.iter().for_each(|&slot| self.shard(slot).busy.lock().push(slot));
        InFlightRename { in_flight_renames: self, slots }
    }

    fn wait(&self, slot: DentrySlot) {
        let shard = self.shard(slot);
        let mut busy = shard.busy.lock();
        while busy.contains(&slot) {
            shard.left.wait(&mut busy);
        }
    }

    fn shard(&self, slot: DentrySlot) -> &InFlightShard {
        &self.shards[slot.get() as usize % IN_FLIGHT_SHARDS]
    }
}

impl Drop for InFlightRename<'_> {
    fn drop(&mut self) {
        for slot in self.slots {
            let shard = self.in_flight_renames.shard(slot);
            let mut busy = shard.busy.lock();
            let at = busy.iter().position(|&other| other == slot).expect("entered once");
            busy.swap_remove(at);
            drop(busy);
            shard.left.notify_all();
        }
    }
}

pub(super) struct InFlightMoves {
    /// The moves that running renames have announced, each a directory and its new parent. Checked
    /// before each move, so that no two moves make a loop. Protected by its own mutex.
    announced: Mutex<Vec<(DentrySlot, DentrySlot)>>,
    /// Notified when an announcement is withdrawn. Waited on under `announced`.
    withdrawn: Condvar,
}

/// The drop withdraws it.
#[must_use]
pub(super) struct Announced<'a> {
    moves: &'a InFlightMoves,
    edges: Vec<(DentrySlot, DentrySlot)>,
}

#[derive(PartialEq, Eq)]
enum Loop {
    No,
    Yes,
    /// The directory is not an ancestor of its new parent yet, but another announced rename may
    /// make it one. So the caller must wait for that rename.
    Perhaps,
}

impl InFlightMoves {
    pub(super) fn new() -> InFlightMoves {
        InFlightMoves { announced: Mutex::new(Vec::new()), withdrawn: Condvar::new() }
    }

    /// Announces moves of directories. Each edge is a directory and its new parent. First waits
    /// while these moves, together with a move of another thread, could make a loop.
    ///
    /// # Errors
    /// `EINVAL` if a move would put a directory below itself.
    fn announce(
        &self,
        dcache: &Dcache,
        edges: Vec<(DentrySlot, DentrySlot)>,
    ) -> Result<Announced<'_>, Errno> {
        let mut announced = self.announced.lock();
        loop {
            let mut must_wait = false;
            {
                let _still = dcache.topology.read_shared();
                for &(moved, parent) in &edges {
                    match would_loop(dcache, &announced, moved, parent) {
                        Loop::No => {}
                        Loop::Yes => return Err(Errno::INVAL),
                        Loop::Perhaps => must_wait = true,
                    }
                }
            }
            if !must_wait {
                announced.extend(&edges);
                return Ok(Announced { moves: self, edges });
            }
            self.withdrawn.wait(&mut announced);
        }
    }
}

impl Drop for Announced<'_> {
    fn drop(&mut self) {
        let mut announced = self.moves.announced.lock();
        for edge in &self.edges {
            if let Some(at) = announced.iter().position(|other| other == edge) {
                announced.swap_remove(at);
            }
        }
        drop(announced);
        self.moves.withdrawn.notify_all();
    }
}

/// Searches for `moved` among the ancestors of `parent`, over present parents and the new parents
/// of running renames (`announced`). The caller keeps directories from moving.
fn would_loop(
    dcache: &Dcache,
    announced: &[(DentrySlot, DentrySlot)],
    moved: DentrySlot,
    parent: DentrySlot,
) -> Loop {
    if dcache.is_subdir(parent, moved) {
        return Loop::Yes;
    }
    let mut ways = vec![parent];
    let mut seen = HashSet::new();
    while let Some(mut at) = ways.pop() {
        while !at.is_none() && seen.insert(at) {
            if at == moved {
                return Loop::Perhaps;
            }
            ways.extend(announced.iter().filter(|(from, _)| *from == at).map(|(_, to)| *to));
            at = dcache.parent(at).0;
        }
    }
    Loop::No
}
