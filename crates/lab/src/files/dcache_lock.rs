//! The dentry cache of Linux 2.4 over the tmpfs that corewalk's own stands on.
//!
//! Document 003 compares two dentry caches over the same file systems, and so does this: names are
//! found by `before::DcacheLock`, and what a dentry refers to is an inode of `corewalk::tmpfs`, which
//! is asked for attributes, and told what is made and removed, as it is below corewalk. No permission
//! is checked, as corewalk checks none for the user that it is asked for here.
//!
//! # How it works
//! A dentry's number leads to the number of its inode in one step, as `d_inode` does.
//!
//! # What it refuses
//! What no workload asks of it: more names for one file, permission bits, lists, renames, looking up
//! one name without a path (that would leave a reference, as for a client of a server), and looking
//! at a file before whoever makes it is done.
//!
//! Source: document 003; `before::dcache_lock`.

use corewalk::attr::mode;
use corewalk::tmpfs::{Tmpfs, TmpfsOptions};
use corewalk::{FileKind, FileSystem as _, Make, Name, Node};
use corewalk_sync::primitives::atomic::{AtomicU64, Ordering};

use super::{Files, List, Status, User};
use crate::baseline::Namespace as _;
use crate::before::{DcacheLock, Dentries as _, Kind};
use crate::corpus::ROOT;

/// Names there is room for: more than any workload makes.
const CAPACITY: usize = 1 << 16;

/// The cache, the file system below it, and what each dentry refers to there.
pub(crate) struct DcacheLockFiles {
    dentries: DcacheLock,
    tmpfs: Tmpfs,
    inodes: Vec<AtomicU64>,
}

impl DcacheLockFiles {
    /// Returns an empty one.
    ///
    /// # Errors
    /// If there is no tmpfs; it has no reason to fail.
    pub(crate) fn new() -> anyhow::Result<DcacheLockFiles> {
        let files = DcacheLockFiles {
            dentries: DcacheLock::new(CAPACITY),
            tmpfs: Tmpfs::new(TmpfsOptions::default()),
            inodes: (0..=CAPACITY).map(|_| AtomicU64::new(0)).collect(),
        };
        files.set_inode(ROOT, files.tmpfs.root()?.ino);
        Ok(files)
    }

    #[inline]
    fn inode(&self, dentry: u64) -> u64 {
        // ORDERING(d-inode): Acquire. What was made is there.
        self.inodes.get(dentry as usize).map_or(0, |inode| inode.load(Ordering::Acquire))
    }

    fn set_inode(&self, dentry: u64, inode: u64) {
        // ORDERING(d-inode): Release. See `inode`.
        self.inodes[dentry as usize].store(inode, Ordering::Release);
    }

    #[inline]
    fn directory(&self, dentry: u64) -> Node<'static> {
        Node::detached(self.inode(dentry), FileKind::Directory)
    }

    fn make(&self, dir: u64, name: &[u8], mode: u32, kind: Kind) -> Option<()> {
        let checked = Name::new(name).ok()?;
        let attr = self.tmpfs.make(self.directory(dir), checked, &Make::new(mode, 0, 0)).ok()?;
        let dentry = self.dentries.create(dir, name, kind)?;
        self.set_inode(dentry, attr.ino);
        Some(())
    }

    fn remove(&self, dir: u64, name: &[u8]) -> Option<()> {
        let (parent, checked) = (self.directory(dir), Name::new(name).ok()?);
        let victim = self.tmpfs.lookup(parent, checked).ok()?;
        let victim = Node::detached(victim.ino, FileKind::Regular);
        self.tmpfs.remove(parent, checked, victim).ok()?;
        self.dentries.unlink(dir, name).then_some(())
    }

    #[inline]
    fn status(&self, dentry: u64) -> Option<Status> {
        let node = Node::detached(self.inode(dentry), FileKind::Regular);
        let attr = self.tmpfs.getattr(node).ok()?;
        Some(Status { ino: attr.ino, mode: attr.mode, size: attr.size })
    }
}

impl Files for DcacheLockFiles {
    type User<'a> = &'a DcacheLockFiles;

    fn variant(&self) -> &'static str {
        self.dentries.variant()
    }

    fn user(&self) -> &DcacheLockFiles {
        self
    }
}

impl User for &DcacheLockFiles {
    type Dir = u64;
    type File = u64;

    fn open_dir(&self, path: &[u8]) -> Option<u64> {
        if path == b"/" { Some(ROOT) } else { self.dentries.walk(path) }
    }

    fn make_dir(&self, dir: &u64, name: &[u8]) -> bool {
        self.make(*dir, name, mode::S_IFDIR | 0o755, Kind::Directory).is_some()
    }

    #[inline]
    fn create(&self, dir: &u64, name: &[u8]) -> bool {
        self.make(*dir, name, mode::S_IFREG | 0o644, Kind::File).is_some()
    }

    #[inline]
    fn unlink(&self, dir: &u64, name: &[u8]) -> bool {
        self.remove(*dir, name).is_some()
    }

    fn link(&self, _dir: &u64, _name: &[u8], _other: &[u8]) -> bool {
        false
    }

    fn chmod(&self, _dir: &u64, _name: &[u8], _mode: u32) -> bool {
        false
    }

    fn rename(&self, _from: (&u64, &[u8]), _to: (&u64, &[u8])) -> bool {
        false
    }

    #[inline]
    fn resolve(&self, path: &[u8]) -> Option<u64> {
        Some(self.inode(self.dentries.walk(path)?))
    }

    #[inline]
    fn stat(&self, path: &[u8]) -> Option<Status> {
        self.status(self.dentries.walk(path)?)
    }

    fn stat_at(&self, _dir: &u64, _name: &[u8]) -> Option<Status> {
        None
    }

    #[inline]
    fn open_close(&self, path: &[u8]) -> bool {
        let Some(dentry) = self.dentries.walk(path) else { return false };
        let node = Node::detached(self.inode(dentry), FileKind::Regular);
        let Ok(handle) = self.tmpfs.open(node, 0) else { return false };
        self.tmpfs.release(node, handle);
        true
    }

    fn list(&self, _dir: &u64, _list: &mut List) -> bool {
        false
    }

    fn hold(&self, path: &[u8]) -> Option<u64> {
        self.dentries.walk(path)
    }

    fn path_of(&self, file: &u64) -> Option<Vec<u8>> {
        self.dentries.path(*file)
    }
}
