//! The four designs of a dentry cache: one type over one tree, with the lock rules of the chosen
//! design.
//!
//! # How it works
//! `before-dcache-lock` is Linux 2.4, whose lookups did not use RCU. A lookup of a name takes
//! `dcache_lock`, finds the dentry in its hash chain, takes a reference and releases the lock. A
//! walk does so for each component. A path translation and every change hold the lock from start to
//! end.
//!
//! `before-global-lock`, `before-seqrwlock` and `before-seqlock` resolve names by RCU walk, as
//! Linux has since 2.6.38: each dentry has its own sequence. A step to a child is valid if the
//! sequence of the parent did not change since the walk reached the parent. The walk takes a
//! reference only of the last dentry.
//!
//! A walk may miss a name that a rename moves between two hash chains. So a miss is valid only if
//! the global rename sequence did not change. A rename holds the rename lock and the lock of the
//! dentry, as `__d_move` does.
//!
//! - `GlobalLock`: a path translation excludes renames and other translations, and reads each name
//!   under the lock of its dentry. A walk takes its reference under the lock of the dentry.
//! - `SeqRwLock`: a path translation shares the rename lock. A walk takes its reference without a
//!   lock.
//! - `SeqLock`: a path translation runs without a lock, and is valid if the rename sequence did not
//!   change meanwhile. Otherwise it runs again and excludes renames. A walk takes its reference
//!   without a lock.
//!
//! # Limits
//! If an RCU walk fails, a slow walk follows. It takes no references of the directories on its way,
//! which is safe, since these designs never free a directory. A kernel pays for these references,
//! but slow walks are rare.
//!
//! Source: Linux `fs/namei.c` (`lookup_fast`, `complete_walk`), `fs/dcache.c` (`__d_lookup_rcu`,
//! `d_lookup`, `__d_move`, and in 2.4 `dput` and `__d_path`), directory-locking.rst.

use corewalk::{FileKind, Stats};
use corewalk_base::{CachePadded, Mutex, MutexGuard, ShardedCounter};
use corewalk_sync::{LockrefGuard, SeqLock, SeqRwLock};

use super::Dentries;
use super::paths::Prepended;
use super::timed::{Timed, timed};
use super::tree::{Dentry, Probe, ROOT, Tree, hash};
use crate::baseline::{Namespace, components};

/// The lock rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::enum_variant_names, reason = "each design is named after its lock")]
pub(crate) enum Design {
    DcacheLock,
    GlobalLock,
    SeqRwLock,
    SeqLock,
}

/// A namespace of one design.
pub(crate) struct Before {
    design: Design,
    tree: Tree,
    /// The lock of `DcacheLock`.
    dcache_lock: CachePadded<Mutex<()>>,
    /// The rename lock of `GlobalLock` and `SeqLock`.
    rename_lock: CachePadded<SeqLock>,
    /// The rename lock of `SeqRwLock`.
    shared_lock: CachePadded<SeqRwLock>,
    /// The lock that a rename between two directories holds (`s_vfs_rename_mutex`).
    moves: CachePadded<Mutex<()>>,
    retries: ShardedCounter,
    /// True if lock sections are timed.
    is_timed: bool,
}

impl Design {
    /// Returns the name of this design in the result rows.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Design::DcacheLock => "before-dcache-lock",
            Design::GlobalLock => "before-global-lock",
            Design::SeqRwLock => "before-seqrwlock",
            Design::SeqLock => "before-seqlock",
        }
    }
}

impl Before {
    /// Returns a namespace with a root and room for `capacity` names.
    pub(crate) fn new(design: Design, capacity: usize) -> Before {
        Before {
            design,
            tree: Tree::new(capacity),
            dcache_lock: CachePadded::default(),
            rename_lock: CachePadded::default(),
            shared_lock: CachePadded::default(),
            moves: CachePadded::default(),
            retries: ShardedCounter::new(),
            is_timed: false,
        }
    }

    /// Returns the namespace, from now on with timed lock sections.
    pub(crate) fn timed(self) -> Before {
        Before { is_timed: true, ..self }
    }

    #[inline]
    fn lock_dcache(&self) -> Option<Timed<MutexGuard<'_, ()>>> {
        (self.design == Design::DcacheLock)
            .then(|| timed(self.is_timed, || self.dcache_lock.lock()))
    }

    #[inline]
    fn read_begin(&self) -> u64 {
        match self.design {
            Design::SeqRwLock => self.shared_lock.read_begin(),
            _ => self.rename_lock.read_begin(),
        }
    }

    #[inline]
    fn read_retry(&self, start: u64) -> bool {
        match self.design {
            Design::SeqRwLock => self.shared_lock.read_retry(start),
            _ => self.rename_lock.read_retry(start),
        }
    }

    /// Takes the rename lock of the design. `DcacheLock` has none.
    fn begin_rename(&self) -> impl Sized + '_ {
        match self.design {
            Design::DcacheLock => (None, None),
            Design::SeqRwLock => (None, Some(timed(self.is_timed, || self.shared_lock.write()))),
            _ => (Some(timed(self.is_timed, || self.rename_lock.write())), None),
        }
    }

    /// Returns the inode number of a name. Takes a reference of the dentry and drops it, as
    /// fstatat(2) does.
    #[inline]
    pub(crate) fn look(&self, parent: u64, name: &[u8]) -> Option<u64> {
        let found = self.lookup(parent, name)?;
        self.tree.put(found as u32);
        Some(found)
    }

    /// Takes a reference of a dentry. Returns false if the dentry is dead.
    #[inline]
    fn get(&self, dentry: &Dentry) -> bool {
        if self.design != Design::GlobalLock {
            return dentry.lockref.get_not_dead();
        }
        let mut d_lock = dentry.lockref.lock();
        if d_lock.is_dead() {
            return false;
        }
        d_lock.add(1);
        true
    }

    /// Finds a name.
    #[inline]
    fn d_lookup(&self, parent: u32, name: &[u8]) -> Option<u32> {
        let hash = hash(parent, name);
        loop {
            let start = self.read_begin();
            match self.tree.probe(parent, hash, name) {
                Probe::Found(number, _) => return Some(number),
                Probe::Absent if !self.read_retry(start) => return None,
                Probe::Absent | Probe::Diverted => {}
            }
        }
    }

    /// Finds a name and takes a reference of its dentry.
    #[inline]
    fn d_lookup_get(&self, parent: u32, name: &[u8]) -> Option<u32> {
        let _lock = self.lock_dcache();
        loop {
            let number = self.d_lookup(parent, name)?;
            if self.get(self.tree.dentry(number)) {
                return Some(number);
            }
        }
    }

    /// Walks without a lock and takes a reference of the last dentry. Fails if a name on the path
    /// was moved meanwhile, or is missing.
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
        if !self.get(last) {
            return Err(());
        }
        if last.seq.read_retry(at.1) {
            self.tree.put(at.0);
            return Err(());
        }
        Ok(at.0)
    }

    #[cold]
    fn walk_ref(&self, path: &[u8]) -> Option<u32> {
        loop {
            let number = components(path).try_fold(ROOT, |at, name| self.d_lookup(at, name))?;
            if self.get(self.tree.dentry(number)) {
                return Some(number);
            }
        }
    }

    /// Walks as Linux 2.4 did, with a reference of every dentry on the way.
    fn walk_counted(&self, path: &[u8]) -> Option<u32> {
        self.tree.dentry(ROOT).lockref.get();
        let mut at = ROOT;
        for name in components(path) {
            let found = self.d_lookup_get(at, name);
            self.tree.put(at);
            at = found?;
        }
        Some(at)
    }

    /// Writes the path of a dentry to `out`. Returns false if the dentry is unlinked or the path is
    /// too long.
    #[inline]
    fn translate(&self, number: u32, out: &mut Prepended) -> bool {
        match self.design {
            Design::DcacheLock => {
                let _lock = self.lock_dcache();
                self.tree.climb(number, out, Dentry::copy_name)
            }
            Design::GlobalLock => {
                let _section = timed(self.is_timed, || self.rename_lock.write());
                self.tree.climb(number, out, |dentry, out| {
                    let _d_lock = dentry.lockref.lock();
                    dentry.copy_name(out);
                })
            }
            Design::SeqRwLock => {
                let _shared = timed(self.is_timed, || self.shared_lock.read_shared());
                self.tree.climb(number, out, Dentry::copy_name)
            }
            Design::SeqLock => {
                let start = self.rename_lock.read_begin();
                let is_linked = self.tree.climb(number, out, Dentry::copy_name);
                if !self.rename_lock.read_retry(start) {
                    return is_linked;
                }
                self.translate_locked(number, out)
            }
        }
    }

    #[cold]
    fn translate_locked(&self, number: u32, out: &mut Prepended) -> bool {
        self.retries.add(1);
        let _excl = timed(self.is_timed, || self.rename_lock.read_excl());
        out.clear();
        self.tree.climb(number, out, Dentry::copy_name)
    }

    /// Locks the directories of a rename, the lower number first.
    fn lock_names(&self, from: u32, to: u32) -> [Option<MutexGuard<'_, ()>>; 3] {
        let names = |number: u32| Some(self.tree.dentry(number).names.lock());
        if from == to {
            return [None, names(from), None];
        }
        let moves = self.moves.lock();
        [Some(moves), names(from.min(to)), names(from.max(to))]
    }

    /// Locks a dentry before its name changes. With `Design::DcacheLock` (Linux 2.4), the global
    /// `dcache_lock` already excludes all readers.
    fn lock_dentry<'a>(&self, dentry: &'a Dentry) -> Option<LockrefGuard<'a>> {
        (self.design != Design::DcacheLock).then(|| dentry.lockref.lock())
    }
}

impl Namespace for Before {
    fn variant(&self) -> &'static str {
        self.design.name()
    }

    #[inline]
    fn lookup(&self, parent: u64, name: &[u8]) -> Option<u64> {
        self.d_lookup_get(self.tree.number(parent)?, name).map(u64::from)
    }

    #[inline]
    fn path(&self, ino: u64) -> Option<Vec<u8>> {
        let number = self.tree.number(ino)?;
        let mut path = Prepended::new();
        self.translate(number, &mut path).then(|| path.to_path())
    }

    #[inline]
    fn walk(&self, path: &[u8]) -> Option<u64> {
        let number = match self.design {
            Design::DcacheLock => self.walk_counted(path)?,
            _ => self.walk_rcu(path).ok().or_else(|| self.walk_ref(path))?,
        };
        self.tree.put(number);
        Some(u64::from(number))
    }

    fn rename(&self, from: (u64, &[u8]), to: (u64, &[u8])) -> bool {
        let (Some(old), Some(new)) = (self.tree.number(from.0), self.tree.number(to.0)) else {
            return false;
        };
        let _names = self.lock_names(old, new);
        let _dcache = self.lock_dcache();
        let Some(number) = self.d_lookup(old, from.1) else { return false };
        let dentry = self.tree.dentry(number);
        let is_loop =
            old != new && dentry.kind() == FileKind::Directory && self.tree.is_below(new, number);
        if is_loop || self.d_lookup(new, to.1).is_some() {
            return false;
        }
        let hash = hash(new, to.1);
        let _section = self.begin_rename();
        let _d_lock = self.lock_dentry(dentry);
        self.tree.rekey(number, new, hash, to.1);
        true
    }

    fn stats(&self) -> Stats {
        let mut stats = Stats::default();
        stats.retries = self.retries.sum().unsigned_abs();
        stats
    }
}

impl Dentries for Before {
    fn create(&self, parent: u64, name: &[u8], kind: FileKind) -> Option<u64> {
        let parent = self.tree.number(parent)?;
        let _names = self.tree.dentry(parent).names.lock();
        let _dcache = self.lock_dcache();
        if self.d_lookup(parent, name).is_some() {
            return None;
        }
        let number = self.tree.alloc()?;
        self.tree.link(number, parent, hash(parent, name), name, kind);
        Some(u64::from(number))
    }

    fn unlink(&self, parent: u64, name: &[u8]) -> bool {
        let Some(parent) = self.tree.number(parent) else { return false };
        let names = self.tree.dentry(parent).names.lock();
        let dcache = self.lock_dcache();
        let Some(number) = self.d_lookup(parent, name) else { return false };
        let dentry = self.tree.dentry(number);
        if dentry.kind() == FileKind::Directory {
            return false;
        }
        let d_lock = self.lock_dentry(dentry);
        self.tree.unlink(number);
        drop((d_lock, dcache, names));
        self.tree.put(number);
        true
    }
}
