//! The dentry cache of Linux 2.4 as far as workloads need it: names under `dcache_lock`.
//!
//! The design is `before::DcacheLock`; here it is asked like a file system. It keeps no attributes, so
//! a `stat` is its walk alone, which is in its favour, and opening is finding.
//!
//! # What it refuses
//! What the design does not have: more names for one file, permission bits, lists, and looking up one
//! name without a path (that would leave a reference, as for a client of a server).
//!
//! Source: `before::dcache_lock`.

use super::{Files, List, Status, User};
use crate::baseline::Namespace as _;
use crate::before::{DcacheLock, Dentries as _, Kind};
use crate::corpus::ROOT;

/// Names there is room for: more than any workload makes.
const CAPACITY: usize = 1 << 16;

/// The cache.
pub(crate) struct DcacheLockFiles(DcacheLock);

impl DcacheLockFiles {
    /// Returns an empty one.
    pub(crate) fn new() -> DcacheLockFiles {
        DcacheLockFiles(DcacheLock::new(CAPACITY))
    }
}

impl Files for DcacheLockFiles {
    type User<'a> = &'a DcacheLockFiles;

    fn variant(&self) -> &'static str {
        self.0.variant()
    }

    fn user(&self) -> &DcacheLockFiles {
        self
    }
}

impl User for &DcacheLockFiles {
    type Dir = u64;
    type File = u64;

    fn open_dir(&self, path: &[u8]) -> Option<u64> {
        if path == b"/" { Some(ROOT) } else { self.0.walk(path) }
    }

    fn make_dir(&self, dir: &u64, name: &[u8]) -> bool {
        self.0.create(*dir, name, Kind::Directory).is_some()
    }

    #[inline]
    fn create(&self, dir: &u64, name: &[u8]) -> bool {
        self.0.create(*dir, name, Kind::File).is_some()
    }

    #[inline]
    fn unlink(&self, dir: &u64, name: &[u8]) -> bool {
        self.0.unlink(*dir, name)
    }

    fn link(&self, _dir: &u64, _name: &[u8], _other: &[u8]) -> bool {
        false
    }

    fn chmod(&self, _dir: &u64, _name: &[u8], _mode: u32) -> bool {
        false
    }

    fn rename(&self, from: (&u64, &[u8]), to: (&u64, &[u8])) -> bool {
        self.0.rename((*from.0, from.1), (*to.0, to.1))
    }

    #[inline]
    fn resolve(&self, path: &[u8]) -> Option<u64> {
        self.0.walk(path)
    }

    #[inline]
    fn stat(&self, path: &[u8]) -> Option<Status> {
        Some(Status { ino: self.0.walk(path)?, mode: 0, size: 0 })
    }

    fn stat_at(&self, _dir: &u64, _name: &[u8]) -> Option<Status> {
        None
    }

    #[inline]
    fn open_close(&self, path: &[u8]) -> bool {
        self.0.walk(path).is_some()
    }

    fn list(&self, _dir: &u64, _list: &mut List) -> bool {
        false
    }

    fn hold(&self, path: &[u8]) -> Option<u64> {
        self.0.walk(path)
    }

    fn path_of(&self, file: &u64) -> Option<Vec<u8>> {
        self.0.path(*file)
    }
}
