//! Rename: two names change at one instant, and the tree stays a tree.
//!
//! The back end renames first, then the cache; until then readers are answered as before, since what has
//! either name is in the cache by then: for a new name that the cache does not know, the back end is told
//! to replace nothing. Nobody waits but who wants to change one of the two names, or asks for one that the
//! cache does not know.
//!
//! A directory that changes its parent could end up below itself if two such moves ran side by
//! side. So each announces its new parent before the back end is called, and checks its way to the
//! root over parents as they are and as announced; a move that would close a loop with one that is
//! only announced waits for it. The lock of that list is not held while the back end works, and no
//! reader takes it (traps T26, T27, P9).
//!
//! Source: rename(2); Linux directory-locking.rst.

use std::collections::HashSet;

use corewalk_base::{CachePadded, Condvar, Mutex};

use super::call::KnownPath;
use super::held::{DentryHold, Dir, Found};
use super::hidden::LockedName;
use super::names::{Cached, Missing};
use super::{InodeRef, Vfs};
use crate::Errno;
use crate::claim::Claim;
use crate::cred::{Cred, May};
use crate::dcache::Dcache;
use crate::dentry::{Key, Needle};
use crate::fs::RenameMode;
use crate::name::Name;

/// Shards of the crossings: so many renames enter directories without meeting.
const CROSSING_SHARDS: usize = if cfg!(corewalk_shuttle) { 2 } else { 64 };

impl Vfs {
    /// Renames `from` to `to`. With [`RenameMode::Replace`] an existing target goes in the same
    /// instant; two names of one inode are left alone, as POSIX has it.
    ///
    /// # Errors
    /// In this order: `ENOTDIR`, `ENOENT`, `EACCES` for either directory as [`Vfs::make`]; `EXDEV`;
    /// `ENOENT`; `EEXIST` (no replace); `EINVAL` (a directory into itself), `ENOTEMPTY` (onto one that it
    /// is in); `EACCES` without write permission, `EPERM` (a sticky directory); `ENOTDIR`, `EISDIR`
    /// (kinds that do not fit); `EACCES` for a directory that gets another parent and cannot be written
    /// to; `EBUSY` (a mount point); `ENOTEMPTY` and whatever else the back end says.
    pub fn rename(
        &self,
        cred: &Cred,
        from: (&InodeRef<'_>, Name<'_>),
        to: (&InodeRef<'_>, Name<'_>),
        mode: RenameMode,
    ) -> Result<(), Errno> {
        self.settled(&[from.0.slot, to.0.slot], || {
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
            let (old, new) = (&self.dcache.needle(from.1), &self.dcache.needle(to.1));
            let claim = self.dcache.claims.claim_both(
                self.dcache.claim_key(old_dir.now.slot, old),
                self.dcache.claim_key(new_dir.now.slot, new),
            );
            let source = self.resolve(old_dir, old, &claim)?.ok_or(Errno::NOENT)?;
            let op = Rename { vfs: self, cred, old_dir, new_dir, old, new, mode };
            let target = match self.cached(new_dir, new) {
                Cached::Known(target) => target,
                Cached::Unknown => match op.take_unknown_name(&source, &claim)? {
                    None => return Ok(()),
                    Some(target) => target,
                },
            };
            if op.is_nothing_to_do(&source, target.as_ref())? {
                return Ok(());
            }
            let done = op.run(&source, target.as_ref(), mode, &claim);
            if let Err(Failed::InBackEnd(_)) = done {
                // Once the claim is gone, the dentry alone is held.
                let victim = target.as_ref().and_then(Found::directory);
                drop(claim);
                self.wait_for_crossings(victim);
            }
            done.map_err(|failed| match failed {
                Failed::Before(error) => error,
                Failed::InBackEnd(error) => self.doubted(target.as_ref(), error),
            })
        })
    }

    /// Waits until no rename is on its way out of, or into, a directory that the back end has just
    /// removed, or has found not to be empty: what such a rename has done there, the cache must say
    /// before anybody hears of its consequences. The caller waits for no claim and, if its own
    /// operation has failed, has left what it was crossing.
    pub(super) fn wait_for_crossings(&self, victim: Option<u32>) {
        if let Some(slot) = victim {
            self.crossings.wait(slot);
        }
    }

    /// Moves a dentry that the caller holds, with its claims, from the name `from` to one under `key`. With a
    /// directory the caller holds `topology`. Returns the parent that the caller has to let go of
    /// once it holds no lock.
    pub(super) fn move_dentry(
        &self,
        (slot, from): (u32, &Needle<'_>),
        key: Key,
        needle: &Needle<'_>,
        target: Option<u32>,
        claim: &Claim<'_>,
    ) -> Result<DentryHold<'_>, Errno> {
        let is_new_parent = self.dcache.parent(slot).0 != key.parent();
        if is_new_parent && !self.dcache.dentries.lockref(key.parent()).get_not_dead() {
            return Err(Errno::STALE);
        }
        match self.dcache.d_move((slot, from), key, needle, target, claim) {
            Ok(old_parent) => Ok(DentryHold::adopt(self, old_parent)),
            Err(error) => {
                if is_new_parent {
                    // Not the last one: the directory is held for the operation.
                    self.dcache.put(key.parent());
                }
                Err(error)
            }
        }
    }
}

/// One rename: what it is about, with both names claimed.
struct Rename<'v, 'a> {
    vfs: &'v Vfs,
    cred: &'a Cred,
    old_dir: &'a Dir<'v>,
    new_dir: &'a Dir<'v>,
    old: &'a Needle<'a>,
    new: &'a Needle<'a>,
    mode: RenameMode,
}

/// Why a rename did not take place.
enum Failed {
    /// It may not, or cannot, by what the cache knows.
    Before(Errno),
    /// The back end says so.
    InBackEnd(Errno),
}

impl<'v> Rename<'v, '_> {
    /// Renames to a name of which the cache does not know whether it is free, as if it were: the back
    /// end, which has to look anyway, is told to replace nothing, and not asked for the name first.
    /// Returns None if that was it, or what the name refers to.
    fn take_unknown_name(
        &self,
        source: &Found<'_>,
        claim: &Claim<'_>,
    ) -> Result<Option<Option<Found<'v>>>, Errno> {
        let first = match self.mode {
            RenameMode::Exchange => None,
            _ => match self.run(source, None, RenameMode::NoReplace, claim) {
                Ok(()) => return Ok(None),
                Err(failed) => Some(failed),
            },
        };
        // Whatever it was, an error because of a target would come before.
        let target = self.vfs.resolve_or(self.new_dir, self.new, claim, Missing::Dropped)?;
        match (first, target) {
            (Some(Failed::Before(error)), None) => Err(error),
            // A target that has gone since, or a back end that cannot do that.
            (Some(Failed::InBackEnd(Errno::EXIST | Errno::INVAL | Errno::NOSYS)), None)
                if self.mode == RenameMode::Replace =>
            {
                Ok(Some(None))
            }
            (Some(Failed::InBackEnd(error)), None) => Err(error),
            (_, target) => Ok(Some(target)),
        }
    }

    /// Renames, in the back end as `mode` says, and then in the cache. Nothing has happened if it fails.
    fn run(
        &self,
        source: &Found<'_>,
        target: Option<&Found<'_>>,
        mode: RenameMode,
        claim: &Claim<'_>,
    ) -> Result<(), Failed> {
        let vfs = self.vfs;
        let announced = self.announce(source, target).map_err(Failed::Before)?;
        self.check(source, target).map_err(Failed::Before)?;
        let key = self.new_dir.key();
        let slots = [self.old_dir.now.slot, self.new_dir.now.slot];
        let dirs = [self.old_dir.now.inode, self.new_dir.now.inode];
        let moved = [source.inode, target.map_or(0, |target| target.inode)];
        let lock = vfs.lock_move(&dirs, moved).map_err(Failed::Before)?;
        // Entered with the path locks: a rename that waits for them crosses nothing yet.
        let crossing = self.changes_parent().then(|| vfs.crossings.enter(slots));
        let paths = [0, 1].map(|index| KnownPath::above(lock.as_ref(), index));
        let names = [self.old.name, self.new.name];
        let [from, to] = [0, 1].map(|index| LockedName {
            dir: vfs.known_node(dirs[index], &paths[index]),
            path: &paths[index],
            name: names[index],
        });
        let renamed = vfs.rename_in_backend(from, to, (source, target), mode);
        renamed.map_err(Failed::InBackEnd)?;
        if mode != RenameMode::Exchange {
            vfs.wait_for_crossings(target.and_then(Found::directory));
        }
        self.commit(source, target, key, claim);
        drop((crossing, lock, announced));
        Ok(())
    }

    fn is_nothing_to_do(
        &self,
        source: &Found<'_>,
        target: Option<&Found<'_>>,
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

    fn check(&self, source: &Found<'_>, target: Option<&Found<'_>>) -> Result<(), Errno> {
        let (vfs, cred) = (self.vfs, self.cred);
        let is_dir = |found: &Found<'_>| found.is_directory();
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
            // The `..` of a directory is rewritten.
            for moved in [Some(source), exchanged].into_iter().flatten().filter(|f| is_dir(f)) {
                vfs.permission(cred, moved.inode, May::WRITE)?;
            }
        }
        let is_busy = vfs.is_mounted_on(source) || target.is_some_and(|to| vfs.is_mounted_on(to));
        if is_busy { Err(Errno::BUSY) } else { Ok(()) }
    }

    /// Announces the directories that change their parent.
    fn announce(
        &self,
        source: &Found<'_>,
        target: Option<&Found<'_>>,
    ) -> Result<Option<Announced<'v>>, Errno> {
        let (old_parent, new_parent) = (self.old_dir.now.slot, self.new_dir.now.slot);
        if !self.changes_parent() {
            return Ok(None);
        }
        let mut edges = Vec::new();
        if let Some(slot) = source.directory() {
            edges.push((slot, new_parent));
        }
        if let Some(slot) = target.and_then(Found::directory) {
            if self.mode == RenameMode::Exchange {
                edges.push((slot, old_parent));
            } else if self.vfs.dcache.is_subdir(old_parent, slot) {
                // It holds the source, so it is not empty.
                return Err(Errno::NOTEMPTY);
            }
        }
        if edges.is_empty() {
            return Ok(None);
        }
        self.vfs.moves.announce(&self.vfs.dcache, edges).map(Some)
    }

    /// Makes the cache say what the back end says now. If one of the names was invalidated
    /// meanwhile, the dentries still get their new names, but cannot be found by them.
    fn commit(&self, source: &Found<'_>, target: Option<&Found<'_>>, key: Key, claim: &Claim<'_>) {
        let vfs = self.vfs;
        let moves_directory = source.is_directory() || target.is_some_and(Found::is_directory);
        // The victim's inode is held until all locks are released: its last reference goes to the
        // back end.
        let _victim = target.map(Found::inode_ref);
        let replaced = target.and_then(|target| target.dentry().ok());
        let done = source.dentry().map_err(|_| Errno::STALE).and_then(|moved| {
            let _topology = moves_directory.then(|| vfs.dcache.topology.write());
            // A back end that moves directories by itself could have made a loop of what is
            // announced and what is not.
            if moves_directory && vfs.dcache.is_subdir(self.new_dir.now.slot, moved) {
                return Err(Errno::STALE);
            }
            match (self.mode, replaced) {
                (RenameMode::Exchange, Some(other)) => {
                    vfs.dcache.exchange(moved, other, claim).map(|()| None)
                }
                (RenameMode::Exchange, None) => Err(Errno::STALE),
                (_, target) => {
                    let is_current = self.new_dir.key() == key;
                    let key = if is_current { key } else { Key::stale(key.parent()) };
                    vfs.move_dentry((moved, self.old), key, self.new, target, claim).map(Some)
                }
            }
        });
        if self.mode != RenameMode::Exchange
            && let Some(slot) = target.and_then(Found::directory)
        {
            let held = vfs.dcache.dentries.lockref(slot).count();
            vfs.dcache.sweep_orphans(held.saturating_sub(1));
        }
        if done.is_err() {
            // The next lookup of either name asks the back end.
            vfs.make_unknown(self.old_dir, self.old);
            vfs.make_unknown(self.new_dir, self.new);
        }
    }
}

/// Directories that a rename is just taking a name out of, or into: from before the back end is asked
/// until the cache says what came of it.
///
/// Whoever waits for one after its own success waits for renames that the back end made before, or
/// refuses; so nobody waits in a circle.
pub(super) struct Crossings {
    shards: Box<[CachePadded<CrossingShard>]>,
}

struct CrossingShard {
    busy: Mutex<Vec<u32>>,
    left: Condvar,
}

/// A rename between two directories that runs.
#[must_use]
pub(super) struct Crossing<'a> {
    crossings: &'a Crossings,
    slots: [u32; 2],
}

impl Crossings {
    pub(super) fn new() -> Crossings {
        let shard = || {
            let busy = Mutex::new(Vec::new());
            CachePadded::new(CrossingShard { busy, left: Condvar::new() })
        };
        Crossings { shards: (0..CROSSING_SHARDS).map(|_| shard()).collect() }
    }

    fn enter(&self, slots: [u32; 2]) -> Crossing<'_> {
        slots.iter().for_each(|&slot| self.shard(slot).busy.lock().push(slot));
        Crossing { crossings: self, slots }
    }

    fn wait(&self, slot: u32) {
        let shard = self.shard(slot);
        let mut busy = shard.busy.lock();
        while busy.contains(&slot) {
            shard.left.wait(&mut busy);
        }
    }

    fn shard(&self, slot: u32) -> &CrossingShard {
        &self.shards[slot as usize % CROSSING_SHARDS]
    }
}

impl Drop for Crossing<'_> {
    fn drop(&mut self) {
        for slot in self.slots {
            let shard = self.crossings.shard(slot);
            let mut busy = shard.busy.lock();
            let at = busy.iter().position(|&other| other == slot).expect("entered once");
            busy.swap_remove(at);
            drop(busy);
            shard.left.notify_all();
        }
    }
}

/// Directories that are about to get a new parent.
pub(super) struct Moves {
    announced: Mutex<Vec<(u32, u32)>>,
    settled: Condvar,
}

/// An announcement, taken back when it is dropped.
#[must_use]
pub(super) struct Announced<'a> {
    moves: &'a Moves,
    edges: Vec<(u32, u32)>,
}

/// Whether a directory would come to lie below itself.
#[derive(PartialEq, Eq)]
enum Loop {
    No,
    /// It is an ancestor of its new parent.
    Yes,
    /// It would be, if a move that is only announced took place.
    Perhaps,
}

impl Moves {
    pub(super) fn new() -> Moves {
        Moves { announced: Mutex::new(Vec::new()), settled: Condvar::new() }
    }

    /// Announces that each first slot moves below the second.
    ///
    /// # Errors
    /// `EINVAL` if one would come to lie below itself.
    fn announce(&self, dcache: &Dcache, edges: Vec<(u32, u32)>) -> Result<Announced<'_>, Errno> {
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
            self.settled.wait(&mut announced);
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
        self.moves.settled.notify_all();
    }
}

/// Looks for `moved` on the ways from `parent` to the root, over parents as they are and as
/// announced. No directory moves meanwhile.
fn would_loop(dcache: &Dcache, announced: &[(u32, u32)], moved: u32, parent: u32) -> Loop {
    if dcache.is_subdir(parent, moved) {
        return Loop::Yes;
    }
    let mut ways = vec![parent];
    let mut seen = HashSet::new();
    while let Some(mut at) = ways.pop() {
        while at != 0 && seen.insert(at) {
            if at == moved {
                return Loop::Perhaps;
            }
            ways.extend(announced.iter().filter(|(from, _)| *from == at).map(|(_, to)| *to));
            at = dcache.parent(at).0;
        }
    }
    Loop::No
}
