//! File systems with the dentry caches of old kernels: the designs of `before` on top of a tmpfs.
//!
//! Each file system of this module is a design of `before` as dentry cache over a
//! `corewalk::tmpfs`, which the variant `corewalk` uses too. Each dentry refers to an inode of the
//! tmpfs.
//!
//! These file systems differ from corewalk only in how they find, translate and change names. A
//! kernel reads attributes faster than this tmpfs, so compare with `linux` too. These variants
//! check no permissions.
//!
//! An array has the inode number of each dentry, like the field `d_inode` in Linux.
//!
//! # Limits
//! These file systems have no hard links and no permission bits. A thread must not look up a file
//! that another thread is still making.
//!
//! Source: documents 000 and 003 in `documents.md`; `before`.

use std::ops::ControlFlow;

use corewalk::tmpfs::{Tmpfs, TmpfsOptions};
use corewalk::{Attr, FileKind, FileSystem as _, Make, Name, Node, RenameMode};
use corewalk_base::primitives::atomic::{AtomicU64, Ordering};

use super::{Files, List, User};
use crate::baseline::Namespace as _;
use crate::before::{Before, Dentries as _, Design};
use crate::corpus::ROOT;
use crate::ours::mode_of;

/// A dentry cache over a tmpfs. `inodes` has the inode number in the tmpfs for each dentry.
pub(crate) struct BeforeFiles {
    dentries: Before,
    tmpfs: Tmpfs,
    inodes: Vec<AtomicU64>,
}

impl BeforeFiles {
    /// Returns an empty file system with room for `capacity` names.
    ///
    /// # Errors
    /// The tmpfs cannot return the attributes of its root.
    pub(crate) fn new(design: Design, capacity: usize) -> anyhow::Result<BeforeFiles> {
        let dentries = Before::new(design, capacity);
        // Dentry numbers begin at 1, and the cache may use some more numbers than `capacity`.
        let inodes = (0..capacity + 64).map(|_| AtomicU64::new(0)).collect();
        let files = BeforeFiles { dentries, tmpfs: Tmpfs::new(TmpfsOptions::default()), inodes };
        files.set_inode(ROOT, files.tmpfs.root()?.ino);
        Ok(files)
    }

    fn inode(&self, dentry: u64) -> u64 {
        // ORDERING(d-inode): Acquire. Pairs with `set_inode`.
        self.inodes.get(dentry as usize).map_or(0, |inode| inode.load(Ordering::Acquire))
    }

    fn set_inode(&self, dentry: u64, inode: u64) {
        // ORDERING(d-inode): Release. See `inode`.
        self.inodes[dentry as usize].store(inode, Ordering::Release);
    }

    fn node(&self, dentry: u64, kind: FileKind) -> Node<'static> {
        Node::detached(self.inode(dentry), kind)
    }

    fn remove(&self, dir: u64, name: &[u8]) -> Option<()> {
        let (parent, checked) = (self.node(dir, FileKind::Directory), Name::new(name).ok()?);
        let victim = self.node(self.dentries.look(dir, name)?, FileKind::Regular);
        self.tmpfs.remove(parent, checked, victim).ok()?;
        self.dentries.unlink(dir, name).then_some(())
    }

    fn move_name(&self, from: (u64, &[u8]), to: (u64, &[u8])) -> Option<()> {
        let place =
            |(dir, name)| Some((self.node(dir, FileKind::Directory), Name::new(name).ok()?));
        // As in a kernel, look the old name up in the dentry cache first.
        self.dentries.look(from.0, from.1)?;
        self.tmpfs.rename(place(from)?, place(to)?, RenameMode::NoReplace).ok()?;
        self.dentries.rename(from, to).then_some(())
    }

    fn status(&self, dentry: u64) -> Option<Attr> {
        self.tmpfs.getattr(self.node(dentry, FileKind::Regular)).ok()
    }
}

impl Files for BeforeFiles {
    type User<'a> = &'a BeforeFiles;

    fn variant(&self) -> &'static str {
        self.dentries.variant()
    }

    fn user(&self) -> &BeforeFiles {
        self
    }
}

impl User for &BeforeFiles {
    type Node = u64;

    fn open_dir(&self, path: &[u8]) -> Option<u64> {
        let dentry = if path == b"/" { ROOT } else { self.dentries.walk(path)? };
        self.status(dentry)?.is_dir().then_some(dentry)
    }

    fn make(&self, dir: &u64, name: &[u8], kind: FileKind) -> Option<()> {
        let (parent, checked) = (self.node(*dir, FileKind::Directory), Name::new(name).ok()?);
        let attr = self.tmpfs.make(parent, checked, &Make::new(mode_of(kind), 0, 0)).ok()?;
        let dentry = self.dentries.create(*dir, name, kind)?;
        self.set_inode(dentry, attr.ino);
        Some(())
    }

    fn unlink(&self, dir: &u64, name: &[u8]) -> bool {
        self.remove(*dir, name).is_some()
    }

    fn rename(&self, from: (&u64, &[u8]), to: (&u64, &[u8])) -> bool {
        self.move_name((*from.0, from.1), (*to.0, to.1)).is_some()
    }

    fn resolve(&self, path: &[u8]) -> Option<u64> {
        Some(self.inode(self.dentries.walk(path)?))
    }

    fn stat(&self, path: &[u8]) -> Option<Attr> {
        self.status(self.dentries.walk(path)?)
    }

    fn stat_at(&self, dir: &u64, name: &[u8]) -> Option<Attr> {
        self.status(self.dentries.look(*dir, name)?)
    }

    fn open_close(&self, path: &[u8]) -> bool {
        let Some(dentry) = self.dentries.walk(path) else { return false };
        let node = self.node(dentry, FileKind::Regular);
        let Ok(handle) = self.tmpfs.open(node, 0) else { return false };
        self.tmpfs.release(node.with_handle(handle.handle));
        true
    }

    fn list(&self, dir: &u64, list: &mut List) -> bool {
        list.clear();
        let listed = self.tmpfs.readdir(self.node(*dir, FileKind::Directory), 0, &mut |entry| {
            list.push(entry.name.as_bytes(), entry.kind);
            ControlFlow::Continue(())
        });
        listed.is_ok()
    }

    fn hold(&self, path: &[u8]) -> Option<u64> {
        self.dentries.walk(path)
    }

    fn path_of(&self, file: &u64) -> Option<Vec<u8>> {
        self.dentries.path(*file)
    }
}
