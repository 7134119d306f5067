//! Operations that change names: make, remove, rename, link.
//!
//! Each operation is atomic: it locks the directories, checks, and only then changes anything. So a
//! failure leaves no trace, and a name that is renamed over is never missing. An operation searches
//! a directory once per name, because the position stays valid under the directory's lock.
//!
//! # Lock order
//! 1. The content of one file. A thread that takes this lock holds no other one.
//! 2. Directories, exclusive, in ascending order of their slots, all in one step ([`Locks`]). They
//!    are those that contain the names, and each directory that is moved, removed or replaced.
//! 3. One inode that is not a directory. Its holder waits only for a lock of kind 4.
//! 4. A free list of slots.
//!
//! A removal or a rename checks that the removed or replaced directory is empty. The lock of that
//! directory keeps it empty afterwards. Directories are locked in the order of their slots, which
//! prevents deadlocks of renames (trap P9 in `traps.md`). The order of inode numbers would not:
//! after the reuse of a slot, an old and a new number lead to one lock.
//!
//! Under the lock of its directory, an entry tells whether its inode is a directory. Suppose that
//! the inode to move, remove or replace is a directory that is not locked yet. Then the operation
//! releases all locks. It takes them again together with the lock of that directory, and searches
//! the entries again.
//!
//! After the entries were searched a second time, they may lead to other inodes than before. That
//! happens only if another caller breaks rule F.1 of `FileSystem`: calls for one name do not
//! overlap. Then the operation tries again, or fails with `ESTALE` if the directory was forgotten.
//!
//! # Invariants
//! - M.1: a link is counted under the lock of the directory that gains or loses the entry. So while
//!   that lock is held, link counts agree with the entries (invariant N.2 of `inode`).
//! - M.2: the kind of file that an entry stores is that of its inode. So the entry tells whether
//!   the inode is locked as a directory (step 2 of the lock order) or as another file (step 3).
//!
//! # Limits
//! This module checks that no directory replaces a file, no file replaces a directory, and no
//! directory becomes its own parent. The caller must exclude loops through several directories.
//!
//! Source: rename(2), link(2), unlink(2), rmdir(2); Linux
//! `Documentation/filesystems/directory-locking.rst`.

use corewalk_base::RwLockWriteGuard;

use super::Tmpfs;
use super::dir::{Directory, FoundEntry, Key, Link};
use super::inode::{Attributes, Inode, is_kept, now, target_bytes};
use super::table::{Entered, rank};
use super::xattr::{Change, OwnSet, Set};
use crate::Errno;
use crate::attr::{Attr, FileKind, Timespec};
use crate::fs::{AclKind, Make, RenameMode};
use crate::name::Name;

/// Maximum number of directories that one call locks: the two that contain the names, and the two
/// that a rename moves, replaces or exchanges.
const LOCKS_MAX: usize = 4;

impl Tmpfs {
    pub(super) fn make_named(
        &self,
        dir: u64,
        name: Name<'_>,
        what: &Make<'_>,
    ) -> Result<Attr, Errno> {
        let key = self.key(name);
        // Make the inode before locking the directory, so that it is in its slot before its name
        // exists (invariant I.1 of `table`). If the call fails later, which is rare, it discards
        // the inode.
        let attr = self.insert_new(what, |inode| match inode.directory_mut() {
            Ok(directory) => directory.set_parent(dir),
            Err(_) => inode.attributes.nlink = 1,
        })?;
        let link = Link { ino: attr.ino, kind: attr.kind() };
        let added = self.table.enter().write(dir).and_then(|mut parent| {
            parent.directory_mut()?.insert(key, link)?;
            parent.attributes.touch_content(now());
            parent.attributes.nlink += subdirectories(link);
            Ok(())
        });
        if let Err(errno) = added {
            self.discard(attr.ino, |_| true);
            return Err(errno);
        }
        Ok(attr)
    }

    pub(super) fn make_unnamed(&self, dir: u64, what: &Make<'_>) -> Result<Attr, Errno> {
        self.table.enter().read(dir)?.directory()?.check_alive()?;
        self.insert_new(what, |inode| inode.attributes.is_linkable = true)
    }

    pub(super) fn remove_name(&self, dir: u64, name: Name<'_>, node: u64) -> Result<(), Errno> {
        let key = self.key(name);
        let table = self.table.enter();
        let mut locks = Locks::pair(&table, dir, dir)?;
        loop {
            let found = locks.directory(dir)?.find(key).ok_or(Errno::NOENT)?;
            let link = found.link;
            if link.ino != node {
                return Err(Errno::NOENT);
            }
            if link.kind == FileKind::Directory {
                if !locks.has(node) {
                    drop(locks);
                    locks = Locks::pair(&table, dir, node)?;
                    continue;
                }
                locks.directory(node)?.mark_removed()?;
            }
            let parent = locks.inode(dir)?;
            parent.directory_mut()?.remove(found);
            parent.attributes.touch_content(now());
            parent.attributes.nlink -= subdirectories(link);
            return self.unlink(&table, &mut locks, link);
        }
    }

    pub(super) fn add_name(&self, node: u64, dir: u64, name: Name<'_>) -> Result<Attr, Errno> {
        let (key, table) = (self.key(name), self.table.enter());
        if rank(node) == rank(dir) {
            // `node` and `dir` are in the same slot. Either both are the same directory, or one of
            // the two numbers is that of an earlier inode of the slot.
            let kind = table.read(node)?.kind();
            return Err(if kind == FileKind::Directory { Errno::PERM } else { Errno::STALE });
        }
        // The kind of an inode never changes, so it can be used after the inode's lock is released.
        let kind = table.read(node)?.kind();
        if kind == FileKind::Directory {
            return Err(Errno::PERM);
        }
        let mut parent = table.write(dir)?;
        let entries = parent.directory_mut()?;
        entries.check_alive()?;
        if entries.find(key).is_some() {
            return Err(Errno::EXIST);
        }
        let mut child = table.write(node)?;
        if child.attributes.nlink == 0 && !child.attributes.is_linkable {
            return Err(Errno::NOENT);
        }
        let nlink = child.attributes.nlink.checked_add(1).ok_or(Errno::MLINK)?;
        // Charge one inode for each name except the first (invariant S.2 of `Tmpfs`).
        let price = u64::from(nlink > 1);
        self.inodes.take(price)?;
        let entered = entries.insert_free(key, Link { ino: node, kind });
        entered.inspect_err(|_| self.inodes.give_back(price))?;
        let now = now();
        child.attributes.nlink = nlink;
        child.attributes.is_linkable = false;
        child.attributes.touch(now);
        parent.attributes.touch_content(now);
        Ok(child.attr())
    }

    pub(super) fn rename_name(
        &self,
        from: (u64, Name<'_>),
        to: (u64, Name<'_>),
        mode: RenameMode,
    ) -> Result<(), Errno> {
        let (old_key, new_key) = (self.key(from.1), self.key(to.1));
        let ((old_dir, _), (new_dir, _)) = (from, to);
        let table = &self.table.enter();
        let mut locks = Locks::pair(table, old_dir, new_dir)?;
        loop {
            let target = locks.directory(new_dir)?.find(new_key);
            let moved = locks.directory(old_dir)?.find(old_key).ok_or(Errno::NOENT)?;
            match (mode, &target) {
                (RenameMode::NoReplace, Some(_)) => return Err(Errno::EXIST),
                (RenameMode::Exchange, None) => return Err(Errno::NOENT),
                // If both names are of one file, rename(2) leaves both.
                (_, Some(target)) if target.link.ino == moved.link.ino => return Ok(()),
                _ => {}
            }
            let subdirectory = |found: &FoundEntry, dir| match found.link.kind {
                FileKind::Directory => found.link.ino,
                _ => dir,
            };
            let there = target.as_ref().map_or(new_dir, |target| subdirectory(target, new_dir));
            let back = subdirectory(&moved, old_dir);
            if !locks.has(there) || !locks.has(back) {
                drop(locks);
                locks = Locks::all(table, [old_dir, new_dir, there, back])?;
                continue;
            }
            let mut rename = Rename { fs: self, table, locks: &mut locks, old_dir, new_dir, moved };
            return match (mode, target) {
                (_, None) => rename.move_to_free_name(new_key),
                (RenameMode::Exchange, Some(target)) => rename.exchange(target),
                (_, Some(target)) => rename.replace(target),
            };
        }
    }

    #[inline]
    pub(super) fn key<'a>(&self, name: Name<'a>) -> Key<'a> {
        Key::new(name, &self.keys)
    }

    fn insert_new(&self, what: &Make<'_>, finish: impl FnOnce(&mut Inode)) -> Result<Attr, Errno> {
        let kind = FileKind::from_mode(what.mode).ok_or(Errno::INVAL)?;
        let target = if kind == FileKind::Symlink { target_bytes(what.target) } else { 0 };
        self.inodes.take(1)?;
        let paid = if target == 0 { Ok(()) } else { self.space.take(target) };
        let made = paid.and_then(|()| {
            let table = self.table.enter();
            let mut inode = table.alloc().inspect_err(|_| self.space.give_back(target))?;
            inode.fill(kind, what, now());
            match self.inherited_acls(&inode.attributes, what) {
                Ok(acls) => inode.attributes.xattrs = acls,
                Err(errno) => {
                    table.remove(inode);
                    self.space.give_back(target);
                    return Err(errno);
                }
            }
            finish(&mut inode);
            Ok(inode.attr())
        });
        made.inspect_err(|_| self.inodes.give_back(1))
    }

    fn inherited_acls(&self, attributes: &Attributes, what: &Make<'_>) -> Result<OwnSet, Errno> {
        let access = what.access_acl.as_ref().filter(|acl| is_kept(acl, attributes.mode));
        if access.is_none() && what.default_acl.is_none() {
            return Ok(None);
        }
        let mut set = Set::default();
        set.apply(Change::Acl(AclKind::Access, access));
        set.apply(Change::Acl(AclKind::Default, what.default_acl.as_ref()));
        self.xattrs.first(set, &self.space)
    }

    /// Lowers the link count of an inode after its directory entry `link` was removed. The count of
    /// a file drops by 1. That of a directory drops to 0, since it has only one name.
    fn unlink(&self, table: &Entered<'_>, locks: &mut Locks<'_>, link: Link) -> Result<(), Errno> {
        change(table, locks, link, |attributes| {
            attributes.nlink = match link.kind {
                FileKind::Directory => 0,
                _ => attributes.nlink - 1,
            };
            if attributes.nlink > 0 {
                // Uncharge the name. The last name is uncharged together with its inode (invariant
                // S.2 of `Tmpfs`).
                self.inodes.give_back(1);
            }
            attributes.touch(now());
        })
    }
}

struct Rename<'a, 'b> {
    fs: &'a Tmpfs,
    table: &'a Entered<'a>,
    locks: &'b mut Locks<'a>,
    old_dir: u64,
    new_dir: u64,
    moved: FoundEntry,
}

impl Rename<'_, '_> {
    #[inline]
    fn move_to_free_name(&mut self, new_key: Key<'_>) -> Result<(), Errno> {
        self.check_loop()?;
        let link = self.moved.link;
        let new = self.locks.directory(self.new_dir)?;
        if self.old_dir == self.new_dir {
            new.rename(self.moved, new_key);
        } else {
            new.insert_free(new_key, link)?;
            self.locks.directory(self.old_dir)?.remove(self.moved);
        }
        self.note_parent(link, self.new_dir)?;
        self.touch_directories(now(), subdirectories(link), 0)?;
        change(self.table, self.locks, link, |attributes| attributes.touch(now()))
    }

    fn replace(&mut self, victim: FoundEntry) -> Result<(), Errno> {
        self.check_loop()?;
        let (moved, victim_link) = (self.moved.link, victim.link);
        match (moved.kind, victim_link.kind) {
            (FileKind::Directory, FileKind::Directory) => {
                self.locks.directory(victim_link.ino)?.mark_removed()?;
            }
            (FileKind::Directory, _) => return Err(Errno::NOTDIR),
            (_, FileKind::Directory) => return Err(Errno::ISDIR),
            _ => {}
        }
        // `Directory::replace` moves no entry, so the position in `self.moved` stays valid.
        self.locks.directory(self.new_dir)?.replace(victim, moved);
        self.locks.directory(self.old_dir)?.remove(self.moved);
        self.note_parent(moved, self.new_dir)?;
        self.touch_directories(now(), subdirectories(moved), 0)?;
        // The replaced directory no longer counts as a subdirectory.
        self.locks.inode(self.new_dir)?.attributes.nlink -= subdirectories(victim_link);
        change(self.table, self.locks, moved, |attributes| attributes.touch(now()))?;
        self.fs.unlink(self.table, self.locks, victim_link)
    }

    fn exchange(&mut self, other: FoundEntry) -> Result<(), Errno> {
        self.check_loop()?;
        let (moved, other_link) = (self.moved.link, other.link);
        if other_link.ino == self.old_dir {
            return Err(Errno::INVAL);
        }
        self.locks.directory(self.new_dir)?.replace(other, moved);
        self.locks.directory(self.old_dir)?.replace(self.moved, other_link);
        self.note_parent(moved, self.new_dir)?;
        self.note_parent(other_link, self.old_dir)?;
        self.touch_directories(now(), subdirectories(moved), subdirectories(other_link))?;
        change(self.table, self.locks, moved, |attributes| attributes.touch(now()))?;
        change(self.table, self.locks, other_link, |attributes| attributes.touch(now()))
    }

    fn note_parent(&mut self, link: Link, dir: u64) -> Result<(), Errno> {
        if link.kind == FileKind::Directory {
            self.locks.directory(link.ino)?.set_parent(dir);
        }
        Ok(())
    }

    /// Fails with `EINVAL` if a directory would move into itself.
    fn check_loop(&self) -> Result<(), Errno> {
        if self.moved.link.ino == self.new_dir { Err(Errno::INVAL) } else { Ok(()) }
    }

    #[inline]
    fn touch_directories(&mut self, now: Timespec, there: u32, back: u32) -> Result<(), Errno> {
        let new = &mut self.locks.inode(self.new_dir)?.attributes;
        new.touch_content(now);
        if self.old_dir != self.new_dir {
            new.nlink = new.nlink + there - back;
            let old = &mut self.locks.inode(self.old_dir)?.attributes;
            old.touch_content(now);
            old.nlink = old.nlink + back - there;
        }
        Ok(())
    }
}

/// Locked directories, stored without an allocation.
struct Locks<'a> {
    first: RwLockWriteGuard<'a, Inode>,
    more: [Option<RwLockWriteGuard<'a, Inode>>; LOCKS_MAX - 1],
}

impl<'a> Locks<'a> {
    /// Locks the directories `a` and `b`. They may have the same slot, which is then locked once.
    /// Slots are reused, so one number may be that of a removed directory. The outdated number
    /// leads to `ESTALE`, here or in a later call of `inode`.
    ///
    /// If a number is that of a file, this function locks the file before it fails. That cannot
    /// deadlock, because a thread that holds the lock of a file waits for no other inode.
    ///
    /// # Errors
    /// `ESTALE` for an inode that is gone, `ENOTDIR` for one that is not a directory.
    #[inline]
    fn pair(table: &'a Entered<'_>, a: u64, b: u64) -> Result<Locks<'a>, Errno> {
        let (low, high) = if rank(a) <= rank(b) { (a, b) } else { (b, a) };
        let first = write_directory(table, low)?;
        let is_one = rank(low) == rank(high);
        let second = if is_one { None } else { Some(write_directory(table, high)?) };
        Ok(Locks { first, more: [second, None, None] })
    }

    #[cold]
    fn all(table: &'a Entered<'_>, mut wanted: [u64; LOCKS_MAX]) -> Result<Locks<'a>, Errno> {
        wanted.sort_unstable_by_key(|&ino| rank(ino));
        let mut locks =
            Locks { first: write_directory(table, wanted[0])?, more: Default::default() };
        for n in 1..LOCKS_MAX {
            if rank(wanted[n]) != rank(wanted[n - 1]) {
                locks.more[n - 1] = Some(write_directory(table, wanted[n])?);
            }
        }
        Ok(locks)
    }

    #[inline]
    fn has(&mut self, ino: u64) -> bool {
        self.inode(ino).is_ok()
    }

    #[inline]
    fn inode(&mut self, ino: u64) -> Result<&mut Inode, Errno> {
        if self.first.ino() == ino {
            return Ok(&mut self.first);
        }
        let mut more = self.more.iter_mut().flatten();
        more.find(|inode| inode.ino() == ino).map(|inode| &mut **inode).ok_or(Errno::STALE)
    }

    #[inline]
    fn directory(&mut self, ino: u64) -> Result<&mut Directory, Errno> {
        self.inode(ino)?.directory_mut()
    }
}

/// Changes the attributes of the inode to which the entry `link` leads. If the inode is a
/// directory, the caller has locked it. This function locks any other inode. `change` reads the
/// clock itself, under the inode's lock.
#[inline]
fn change(
    table: &Entered<'_>,
    locks: &mut Locks<'_>,
    link: Link,
    change: impl FnOnce(&mut Attributes),
) -> Result<(), Errno> {
    match link.kind {
        FileKind::Directory => change(&mut locks.inode(link.ino)?.attributes),
        // The inode exists, because its entry exists (invariant I.1 of `table`). The entry is not
        // that of a directory, so neither is the inode (invariant M.2).
        _ => change(&mut table.write(link.ino)?.attributes),
    }
    Ok(())
}

#[inline]
fn write_directory<'a>(
    table: &'a Entered<'_>,
    ino: u64,
) -> Result<RwLockWriteGuard<'a, Inode>, Errno> {
    let inode = table.write(ino)?;
    inode.directory()?;
    Ok(inode)
}

fn subdirectories(link: Link) -> u32 {
    u32::from(link.kind == FileKind::Directory)
}
