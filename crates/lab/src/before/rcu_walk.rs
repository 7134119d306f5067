//! What three of the designs have in common: lookups without a lock, changes under three kinds.
//!
//! Between 2.6.38 and today Linux resolves names by RCU walk: each dentry has a sequence of its own,
//! a step to a child counts if the parent has not changed since it was reached, and only the last
//! dentry is counted. A name that is not found may have been on its way from one chain to another, so
//! a miss counts only if the rename sequence has not moved: that is the global sequence of which
//! document 001 speaks. What differs between the designs ([`Protocol`]) is the rename lock, how a
//! dentry is counted, and how a path is translated.
//!
//! # Locks and their order
//! As `before` lists them. A change of names holds the directory (both, for a rename between two, and
//! then the lock for such moves before them); a rename holds the rename lock and the dentry's lock
//! around the change itself, as `__d_move` does.
//!
//! # What it refuses
//! The reference walk takes no references on the way: directories are never freed here. A kernel
//! pays for them; it is the rare path.
//!
//! Source: Linux `fs/namei.c` (`lookup_fast`, `complete_walk`), `fs/dcache.c` (`__d_lookup_rcu`,
//! `d_lookup`, `__d_move`), `Documentation/filesystems/directory-locking.rst`.

use std::marker::PhantomData;

use corewalk_base::{CachePadded, Mutex, MutexGuard, ShardedCounter};
use corewalk_sync::{SeqLock, SeqRwLock};
use corewalk_sync::{SeqLockWriteGuard, SeqRwLockWriteGuard};

use super::paths::Prepended;
use super::timed::{Timed, timed};
use super::tree::{Dentry, Probe, ROOT, Tree, hash};
use super::{Dentries, Kind, Passes};
use crate::baseline::{Namespace, components};

/// The lock of all renames, and the sequence they bump.
pub(crate) trait RenameLock: Default + Send + Sync {
    /// A section of a rename.
    type Section<'a>
    where
        Self: 'a;

    fn read_begin(&self) -> u64;
    fn read_retry(&self, start: u64) -> bool;
    fn write(&self) -> Timed<Self::Section<'_>>;
}

/// What tells the designs apart.
pub(crate) trait Protocol: Send + Sync + Sized + 'static {
    const VARIANT: &'static str;

    type Rename: RenameLock;

    /// Counts a dentry; returns false if it is dead.
    fn get(dentry: &Dentry) -> bool;

    /// Writes the path of a dentry. Returns false if it has none.
    fn translate(dentries: &RcuWalk<Self>, number: u32, out: &mut Prepended) -> bool;
}

/// A namespace of one of the three designs.
pub(crate) struct RcuWalk<P: Protocol> {
    pub(super) tree: Tree,
    pub(super) rename_lock: CachePadded<P::Rename>,
    pub(super) retries: ShardedCounter,
    pub(super) fallbacks: ShardedCounter,
    /// Held by a rename from one directory to another (`s_vfs_rename_mutex`).
    moves: CachePadded<Mutex<()>>,
    protocol: PhantomData<P>,
}

impl<P: Protocol> RcuWalk<P> {
    /// The name in the rows.
    pub(crate) const VARIANT: &'static str = P::VARIANT;

    /// Returns a namespace with a root and room for `capacity` names.
    pub(crate) fn new(capacity: usize) -> RcuWalk<P> {
        RcuWalk {
            tree: Tree::new(capacity),
            rename_lock: CachePadded::default(),
            retries: ShardedCounter::new(),
            fallbacks: ShardedCounter::new(),
            moves: CachePadded::new(Mutex::new(())),
            protocol: PhantomData,
        }
    }

    /// Returns the dentry of a name; a miss counts if nothing was renamed meanwhile.
    #[inline]
    fn d_lookup(&self, parent: u32, name: &[u8]) -> Option<u32> {
        let hash = hash(parent, name);
        loop {
            let start = self.rename_lock.read_begin();
            match self.tree.probe(parent, hash, name) {
                Probe::Found(number, _) => return Some(number),
                Probe::Absent if !self.rename_lock.read_retry(start) => return None,
                Probe::Absent | Probe::Diverted => {}
            }
        }
    }

    /// Returns the dentry that the components lead to, counted; Err if something changed on the way.
    #[inline]
    fn walk_rcu(&self, path: &[u8]) -> Result<u32, ()> {
        let mut at = (ROOT, self.tree.dentry(ROOT).seq.raw_begin());
        for name in components(path) {
            let found = self.tree.probe(at.0, hash(at.0, name), name);
            let Probe::Found(number, seq) = found else { return Err(()) };
            if self.tree.dentry(at.0).seq.read_retry(at.1) {
                return Err(());
            }
            at = (number, seq);
        }
        let last = self.tree.dentry(at.0);
        if !P::get(last) {
            return Err(());
        }
        if last.seq.read_retry(at.1) {
            self.tree.put(at.0);
            return Err(());
        }
        Ok(at.0)
    }

    /// Returns the same, name by name, each of which is certain when it is found.
    #[cold]
    fn walk_ref(&self, path: &[u8]) -> Option<u32> {
        loop {
            let number = components(path).try_fold(ROOT, |at, name| self.d_lookup(at, name))?;
            if P::get(self.tree.dentry(number)) {
                return Some(number);
            }
        }
    }

    /// Locks the directories of a rename, and the moves between directories if they are two.
    fn lock_names(&self, from: u32, to: u32) -> [Option<MutexGuard<'_, ()>>; 3] {
        let names = |number: u32| Some(self.tree.dentry(number).names.lock());
        if from == to {
            return [None, names(from), None];
        }
        let moves = self.moves.lock();
        [Some(moves), names(from.min(to)), names(from.max(to))]
    }
}

impl<P: Protocol> Namespace for RcuWalk<P> {
    fn variant(&self) -> &'static str {
        P::VARIANT
    }

    #[inline]
    fn lookup(&self, parent: u64, name: &[u8]) -> Option<u64> {
        let parent = self.tree.number(parent)?;
        loop {
            let number = self.d_lookup(parent, name)?;
            if P::get(self.tree.dentry(number)) {
                return Some(u64::from(number));
            }
        }
    }

    #[inline]
    fn path(&self, ino: u64) -> Option<Vec<u8>> {
        let number = self.tree.number(ino)?;
        let mut path = Prepended::new();
        P::translate(self, number, &mut path).then(|| path.to_path())
    }

    #[inline]
    fn walk(&self, path: &[u8]) -> Option<u64> {
        let number = self.walk_rcu(path).ok().or_else(|| self.walk_ref(path))?;
        self.tree.put(number);
        Some(u64::from(number))
    }

    fn rename(&self, from: (u64, &[u8]), to: (u64, &[u8])) -> bool {
        let (Some(old), Some(new)) = (self.tree.number(from.0), self.tree.number(to.0)) else {
            return false;
        };
        let _names = self.lock_names(old, new);
        let Some(number) = self.d_lookup(old, from.1) else { return false };
        let is_loop = old != new
            && self.tree.dentry(number).kind() == Kind::Directory
            && self.tree.is_below(new, number);
        if is_loop || self.d_lookup(new, to.1).is_some() {
            return false;
        }
        let key = (new, hash(new, to.1));
        let _section = self.rename_lock.write();
        let _d_lock = self.tree.dentry(number).lockref.lock();
        self.tree.rekey(number, key, to.1);
        true
    }
}

impl<P: Protocol> Dentries for RcuWalk<P> {
    #[inline]
    fn look(&self, parent: u64, name: &[u8]) -> Option<u64> {
        let found = self.lookup(parent, name)?;
        self.tree.put(found as u32);
        Some(found)
    }

    fn create(&self, parent: u64, name: &[u8], kind: Kind) -> Option<u64> {
        let parent = self.tree.number(parent)?;
        let _names = self.tree.dentry(parent).names.lock();
        if self.d_lookup(parent, name).is_some() {
            return None;
        }
        let number = self.tree.alloc()?;
        self.tree.link(number, (parent, hash(parent, name)), name, kind);
        Some(u64::from(number))
    }

    fn unlink(&self, parent: u64, name: &[u8]) -> bool {
        let Some(parent) = self.tree.number(parent) else { return false };
        let names = self.tree.dentry(parent).names.lock();
        let Some(number) = self.d_lookup(parent, name) else { return false };
        let dentry = self.tree.dentry(number);
        if dentry.kind() == Kind::Directory {
            return false;
        }
        let d_lock = dentry.lockref.lock();
        self.tree.unlink(number);
        drop((d_lock, names));
        self.tree.put(number);
        true
    }

    fn passes(&self) -> Option<Passes> {
        let count = |counter: &ShardedCounter| counter.sum().unsigned_abs();
        Some(Passes { retries: count(&self.retries), fallbacks: count(&self.fallbacks) })
    }
}

impl RenameLock for SeqLock {
    type Section<'a> = SeqLockWriteGuard<'a>;

    #[inline]
    fn read_begin(&self) -> u64 {
        SeqLock::read_begin(self)
    }

    #[inline]
    fn read_retry(&self, start: u64) -> bool {
        SeqLock::read_retry(self, start)
    }

    #[inline]
    fn write(&self) -> Timed<SeqLockWriteGuard<'_>> {
        timed(|| SeqLock::write(self))
    }
}

impl RenameLock for SeqRwLock {
    type Section<'a> = SeqRwLockWriteGuard<'a>;

    #[inline]
    fn read_begin(&self) -> u64 {
        SeqRwLock::read_begin(self)
    }

    #[inline]
    fn read_retry(&self, start: u64) -> bool {
        SeqRwLock::read_retry(self, start)
    }

    #[inline]
    fn write(&self) -> Timed<SeqRwLockWriteGuard<'_>> {
        timed(|| SeqRwLock::write(self))
    }
}

/// Counts a dentry by one compare-exchange, as document 000 and every kernel since 3.12 do.
#[inline]
pub(super) fn get_lockless(dentry: &Dentry) -> bool {
    dentry.lockref.get_not_dead()
}
