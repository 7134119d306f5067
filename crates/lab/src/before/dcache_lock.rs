//! `before-dcache-lock`: one lock around everything, as in Linux 2.4.
//!
//! Every lookup of a name took `dcache_lock`, found the dentry in its chain, counted it and let go
//! again, once per component of a path; so did the translation of a path, as a whole, and every
//! change. A reference that was dropped took it only if it was the last. It is the kernel that
//! document 003 compares RCU with.
//!
//! # Locks and their order
//! Directories (`i_sem`) as in `rcu_walk`, then `dcache_lock`.
//!
//! Source: document 003; Linux 2.4 `fs/dcache.c` (`d_lookup`, `dput`, `d_move`, `__d_path`) and
//! `fs/namei.c` (`link_path_walk`, `cached_lookup`).

use corewalk_base::{CachePadded, Mutex, MutexGuard};

use super::paths::Prepended;
use super::timed::{Timed, timed};
use super::tree::{Dentry, Probe, ROOT, Tree, hash};
use super::{Dentries, Kind, Passes};
use crate::baseline::{Namespace, components};

/// The design.
pub(crate) struct DcacheLock {
    tree: Tree,
    dcache_lock: CachePadded<Mutex<()>>,
    /// Held by a rename from one directory to another (`s_vfs_rename_sem`).
    moves: CachePadded<Mutex<()>>,
}

impl DcacheLock {
    /// Returns a namespace with a root and room for `capacity` names.
    pub(crate) fn new(capacity: usize) -> DcacheLock {
        DcacheLock {
            tree: Tree::new(capacity),
            dcache_lock: CachePadded::default(),
            moves: CachePadded::default(),
        }
    }

    #[inline]
    fn lock(&self) -> Timed<MutexGuard<'_, ()>> {
        timed(|| self.dcache_lock.lock())
    }

    /// Returns the dentry of a name. The caller holds `dcache_lock`.
    #[inline]
    fn find(&self, parent: u32, name: &[u8]) -> Option<u32> {
        match self.tree.probe(parent, hash(parent, name), name) {
            Probe::Found(number, _) => Some(number),
            Probe::Absent | Probe::Diverted => None,
        }
    }

    /// Returns the dentry of a name, counted.
    #[inline]
    fn d_lookup(&self, parent: u32, name: &[u8]) -> Option<u32> {
        let _lock = self.lock();
        let number = self.find(parent, name)?;
        self.tree.dentry(number).lockref.get();
        Some(number)
    }

    fn lock_names(&self, from: u32, to: u32) -> [Option<MutexGuard<'_, ()>>; 3] {
        let names = |number: u32| Some(self.tree.dentry(number).names.lock());
        if from == to {
            return [None, names(from), None];
        }
        let moves = self.moves.lock();
        [Some(moves), names(from.min(to)), names(from.max(to))]
    }
}

impl Namespace for DcacheLock {
    fn variant(&self) -> &'static str {
        "before-dcache-lock"
    }

    #[inline]
    fn lookup(&self, parent: u64, name: &[u8]) -> Option<u64> {
        self.d_lookup(self.tree.number(parent)?, name).map(u64::from)
    }

    #[inline]
    fn path(&self, ino: u64) -> Option<Vec<u8>> {
        let number = self.tree.number(ino)?;
        let mut path = Prepended::new();
        let lock = self.lock();
        let is_linked = self.tree.climb(number, &mut path, Dentry::copy_name);
        drop(lock);
        is_linked.then(|| path.to_path())
    }

    #[inline]
    fn walk(&self, path: &[u8]) -> Option<u64> {
        self.tree.dentry(ROOT).lockref.get();
        let mut at = ROOT;
        for name in components(path) {
            let found = self.d_lookup(at, name);
            self.tree.put(at);
            at = found?;
        }
        self.tree.put(at);
        Some(u64::from(at))
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
        let key = (new, hash(new, to.1));
        let lock = self.lock();
        let may = !is_loop && self.find(new, to.1).is_none();
        if may {
            self.tree.rekey(number, key, to.1);
        }
        drop(lock);
        self.tree.put(number);
        may
    }
}

impl Dentries for DcacheLock {
    #[inline]
    fn look(&self, parent: u64, name: &[u8]) -> Option<u64> {
        let found = self.lookup(parent, name)?;
        self.tree.put(found as u32);
        Some(found)
    }

    fn create(&self, parent: u64, name: &[u8], kind: Kind) -> Option<u64> {
        let parent = self.tree.number(parent)?;
        let _names = self.tree.dentry(parent).names.lock();
        let number = self.tree.alloc()?;
        let lock = self.lock();
        let is_free = self.find(parent, name).is_none();
        if is_free {
            self.tree.link(number, (parent, hash(parent, name)), name, kind);
        }
        drop(lock);
        if !is_free {
            self.tree.put(number);
            return None;
        }
        Some(u64::from(number))
    }

    fn unlink(&self, parent: u64, name: &[u8]) -> bool {
        let Some(parent) = self.tree.number(parent) else { return false };
        let names = self.tree.dentry(parent).names.lock();
        let lock = self.lock();
        let is_file = |&number: &u32| self.tree.dentry(number).kind() == Kind::File;
        let Some(number) = self.find(parent, name).filter(is_file) else { return false };
        self.tree.unlink(number);
        drop((lock, names));
        self.tree.put(number);
        true
    }

    fn passes(&self) -> Option<Passes> {
        Some(Passes::default())
    }
}
