//! What changes names: make, remove, rename, link.
//!
//! Each is one step to every observer: it locks the directories it changes, checks, and only then
//! changes anything, so a failure leaves no trace and a name is never seen missing while it is
//! renamed over.
//!
//! # Locks and their order
//! 1. Directories, exclusive, in ascending order of their numbers, all at once: the one or two
//!    that hold the names, and a directory that is removed or renamed over, so that nothing can be
//!    made in it between the check and the removal. As every thread locks in this order, no two
//!    wait for each other, whatever they rename (trap P9).
//! 2. The attributes of one inode at a time, within.
//! 3. A shard of the inode table, within.
//!
//! A name of the target must be looked up before its directory can be locked with the others, and
//! is looked up again afterwards. The two differ only if calls for one name overlap, which rule
//! F.1 of `FileSystem` forbids; then the rename starts again.
//!
//! # Invariants
//! - M.1: links are counted under the lock of the directory that gains or loses the entry, so N.2
//!   of `inode` holds for whoever holds that lock.
//!
//! # What it refuses
//! It checks kinds and the two simplest loops again, which is cheap, but relies on its caller for
//! loops through further directories.
//!
//! Source: rename(2), link(2), unlink(2), rmdir(2); Linux
//! `Documentation/filesystems/directory-locking.rst`.

use std::sync::Arc;

use corewalk_sync::RwLockWriteGuard;

use super::Tmpfs;
use super::dir::{Directory, Key, Link};
use super::inode::{Body, Inode};
use crate::Errno;
use crate::attr::{Attr, FileKind, Timespec};
use crate::fs::{Make, RenameMode};
use crate::name::Name;

impl Tmpfs {
    /// Makes a file and its first name.
    pub(super) fn make_named(
        &self,
        dir: u64,
        name: Name<'_>,
        what: &Make<'_>,
    ) -> Result<Attr, Errno> {
        let (parent, key, now) = (self.inode(dir)?, self.key(name), Timespec::now());
        // Most calls succeed, so the inode is made before the lock is taken. I.1 of `table`: it is
        // in the table before the name is.
        let child = self.new_inode(what, now)?;
        if child.kind() != FileKind::Directory {
            child.attributes().nlink = 1;
        }
        let attr = child.attr();
        let added = parent.directory().and_then(|entries| {
            let mut entries = entries.write();
            entries.insert(key, link_to(&child))?;
            let mut attributes = parent.attributes();
            attributes.touch_content(now);
            attributes.nlink += subdirectories(link_to(&child));
            Ok(attr)
        });
        if added.is_err() {
            self.discard(&child);
        }
        added
    }

    /// Makes a regular file without a name.
    pub(super) fn make_unnamed(&self, dir: u64, what: &Make<'_>) -> Result<Attr, Errno> {
        self.inode(dir)?.directory()?.read().check_alive()?;
        let child = self.new_inode(what, Timespec::now())?;
        child.attributes().xattrs.get_or_insert_default().is_linkable = true;
        Ok(child.attr())
    }

    /// Removes the name of the inode `node`.
    pub(super) fn remove_name(&self, dir: u64, name: Name<'_>, node: u64) -> Result<(), Errno> {
        let (parent, child, key) = (self.inode(dir)?, self.inode(node)?, self.key(name));
        let mut locks = DirectoryLocks::new([&*parent, &*child]);
        let link = locks.get(&parent)?.get(key).ok_or(Errno::NOENT)?;
        if link.ino != child.ino() {
            return Err(Errno::NOENT);
        }
        if child.kind() == FileKind::Directory {
            locks.get(&child)?.mark_removed()?;
        }
        locks.get(&parent)?.remove(key);
        let now = Timespec::now();
        unlink(&child, now);
        let mut attributes = parent.attributes();
        attributes.touch_content(now);
        attributes.nlink -= subdirectories(link);
        Ok(())
    }

    /// Adds a name for the inode `node`.
    pub(super) fn add_name(&self, node: u64, dir: u64, name: Name<'_>) -> Result<Attr, Errno> {
        let (parent, child, key) = (self.inode(dir)?, self.inode(node)?, self.key(name));
        if child.kind() == FileKind::Directory {
            return Err(Errno::PERM);
        }
        let now = Timespec::now();
        let mut entries = parent.directory()?.write();
        entries.check_insert(key)?;
        {
            let mut attributes = child.attributes();
            let is_linkable = attributes.xattrs.as_ref().is_some_and(|x| x.is_linkable);
            if attributes.nlink == 0 && !is_linkable {
                return Err(Errno::NOENT);
            }
            attributes.nlink = attributes.nlink.checked_add(1).ok_or(Errno::MLINK)?;
            if is_linkable {
                attributes.change_xattrs(|xattrs| xattrs.is_linkable = false);
            }
            attributes.touch(now);
        }
        entries.insert(key, link_to(&child))?;
        parent.attributes().touch_content(now);
        drop(entries);
        Ok(child.attr())
    }

    /// Renames as rename(2) and, for the other two modes, renameat2(2) say.
    pub(super) fn rename_name(
        &self,
        from: (u64, Name<'_>),
        to: (u64, Name<'_>),
        mode: RenameMode,
    ) -> Result<(), Errno> {
        let (old_dir, new_dir) = (self.inode(from.0)?, self.inode(to.0)?);
        let (old_key, new_key) = (self.key(from.1), self.key(to.1));
        loop {
            let target = new_dir.directory()?.read().get(new_key);
            let Ok(target) = target.map(|link| self.inode(link.ino)).transpose() else { continue };
            let lockable = [Some(&old_dir), Some(&new_dir), target.as_ref()];
            let locks = DirectoryLocks::new(lockable.into_iter().flatten().map(|inode| &**inode));
            let mut rename =
                Rename { locks, old_dir: &old_dir, old_key, new_dir: &new_dir, new_key };
            let found = rename.locks.get(&new_dir)?.get(new_key);
            if found.map(|link| link.ino) != target.as_ref().map(|inode| inode.ino()) {
                continue;
            }
            let link = rename.locks.get(&old_dir)?.get(old_key).ok_or(Errno::NOENT)?;
            // I.1 of `table`: the directory that names it is locked, so it is there.
            let moved = self.inode(link.ino)?;
            return match (mode, &target) {
                (RenameMode::NoReplace, Some(_)) => Err(Errno::EXIST),
                (RenameMode::Exchange, None) => Err(Errno::NOENT),
                // Two names of one file: rename(2) leaves both.
                (_, Some(target)) if target.ino() == moved.ino() => Ok(()),
                (RenameMode::Exchange, Some(target)) => rename.exchange(&moved, target),
                (_, None) => rename.move_to_free_name(&moved),
                (_, Some(target)) => rename.replace(&moved, target),
            };
        }
    }

    fn key<'a>(&self, name: Name<'a>) -> Key<'a> {
        Key::new(name, &self.hasher)
    }

    /// Returns a new inode that is in the table and paid for.
    fn new_inode(&self, what: &Make<'_>, now: Timespec) -> Result<Arc<Inode>, Errno> {
        self.inodes.take(1)?;
        match Inode::new(self.table.draw_number(), what, now) {
            Ok(inode) => {
                let inode = Arc::new(inode);
                self.table.insert(Arc::clone(&inode));
                Ok(inode)
            }
            Err(errno) => {
                self.inodes.give_back(1);
                Err(errno)
            }
        }
    }
}

/// A rename under way: what it is about, and the locks it holds.
struct Rename<'a> {
    locks: DirectoryLocks<'a>,
    old_dir: &'a Inode,
    old_key: Key<'a>,
    new_dir: &'a Inode,
    new_key: Key<'a>,
}

impl Rename<'_> {
    /// Renames where the target does not exist.
    fn move_to_free_name(&mut self, moved: &Inode) -> Result<(), Errno> {
        self.check_loop(moved)?;
        self.locks.get(self.new_dir)?.insert(self.new_key, link_to(moved))?;
        self.locks.get(self.old_dir)?.remove(self.old_key);
        let now = Timespec::now();
        moved.attributes().touch(now);
        self.touch_directories(now, subdirectories(link_to(moved)), 0);
        Ok(())
    }

    /// Renames over the existing `victim`.
    fn replace(&mut self, moved: &Inode, victim: &Inode) -> Result<(), Errno> {
        self.check_loop(moved)?;
        match (moved.kind(), victim.kind()) {
            (FileKind::Directory, FileKind::Directory) => {
                self.locks.get(victim)?.mark_removed()?;
            }
            (FileKind::Directory, _) => return Err(Errno::NOTDIR),
            (_, FileKind::Directory) => return Err(Errno::ISDIR),
            _ => {}
        }
        self.locks.get(self.new_dir)?.replace(self.new_key, link_to(moved));
        self.locks.get(self.old_dir)?.remove(self.old_key);
        let now = Timespec::now();
        moved.attributes().touch(now);
        unlink(victim, now);
        // The directory that was replaced counts no more, nor does its place.
        self.touch_directories(now, subdirectories(link_to(moved)), 0);
        self.new_dir.attributes().nlink -= subdirectories(link_to(victim));
        Ok(())
    }

    /// Swaps what the two names refer to.
    fn exchange(&mut self, moved: &Inode, other: &Inode) -> Result<(), Errno> {
        self.check_loop(moved)?;
        if other.ino() == self.old_dir.ino() {
            return Err(Errno::INVAL);
        }
        self.locks.get(self.new_dir)?.replace(self.new_key, link_to(moved));
        self.locks.get(self.old_dir)?.replace(self.old_key, link_to(other));
        let now = Timespec::now();
        moved.attributes().touch(now);
        other.attributes().touch(now);
        let (there, back) = (subdirectories(link_to(moved)), subdirectories(link_to(other)));
        self.touch_directories(now, there, back);
        Ok(())
    }

    /// Refuses to move a directory into itself. `EINVAL`.
    fn check_loop(&self, moved: &Inode) -> Result<(), Errno> {
        if moved.ino() == self.new_dir.ino() { Err(Errno::INVAL) } else { Ok(()) }
    }

    /// Says that both directories changed, and moves the links of `there` subdirectories to the
    /// new one and of `back` subdirectories to the old one.
    fn touch_directories(&self, now: Timespec, there: u32, back: u32) {
        {
            let mut attributes = self.old_dir.attributes();
            attributes.touch_content(now);
            attributes.nlink = attributes.nlink - there + back;
        }
        let mut attributes = self.new_dir.attributes();
        attributes.touch_content(now);
        attributes.nlink = attributes.nlink + there - back;
    }
}

/// Up to three directories, locked in the order of their numbers.
struct DirectoryLocks<'a> {
    held: Vec<(u64, RwLockWriteGuard<'a, Directory>)>,
}

impl<'a> DirectoryLocks<'a> {
    /// Returns the locks of those of `inodes` that are directories; one may come twice.
    fn new(inodes: impl IntoIterator<Item = &'a Inode>) -> DirectoryLocks<'a> {
        let mut wanted: Vec<(u64, _)> = inodes
            .into_iter()
            .filter_map(|inode| match inode.body() {
                Body::Directory(entries) => Some((inode.ino(), entries)),
                _ => None,
            })
            .collect();
        wanted.sort_unstable_by_key(|&(ino, _)| ino);
        wanted.dedup_by_key(|&mut (ino, _)| ino);
        let held = wanted.into_iter().map(|(ino, entries)| (ino, entries.write())).collect();
        DirectoryLocks { held }
    }

    /// Returns the entries of a directory that is locked. `ENOTDIR` for any other file.
    fn get(&mut self, directory: &Inode) -> Result<&mut Directory, Errno> {
        let held = self.held.iter_mut().find(|(ino, _)| *ino == directory.ino());
        held.map(|(_, entries)| &mut **entries).ok_or(Errno::NOTDIR)
    }
}

/// Returns what a directory entry for `inode` says.
fn link_to(inode: &Inode) -> Link {
    Link { ino: inode.ino(), kind: inode.kind() }
}

/// Returns how many links an entry adds to its directory.
fn subdirectories(link: Link) -> u32 {
    u32::from(link.kind == FileKind::Directory)
}

/// Says that `inode` lost a name; a directory has only one.
fn unlink(inode: &Inode, now: Timespec) {
    let mut attributes = inode.attributes();
    attributes.nlink = match inode.kind() {
        FileKind::Directory => 0,
        _ => attributes.nlink - 1,
    };
    attributes.touch(now);
}
