//! Changes of names: make, remove, rename and link.
//!
//! Each change is atomic for every observer, and all of it is in one transaction. A call locks the
//! directories, checks everything, and only then changes them.
//!
//! A record may be damaged, so a call checks counts of entries and file types. If a count is too
//! small, or the file types of an entry and its inode differ, the call fails with `EIO` and changes
//! nothing.
//!
//! # Locks and their order
//! 1. The mutex `turn` of the de-duplication queue (`late`). Then the transaction barrier, which a
//!    thread has locked for reading while it has a handle of the journal.
//! 2. The data lock of one file, while no directory is locked.
//! 3. All directories of the call, for writing, in ascending order of inode number ([`Locks`]), and
//!    each directory that is itself moved, removed or replaced. So no entry can be made in a
//!    directory between the check that it is empty and its removal.
//! 4. One inode that is not a directory.
//! 5. An attribute block. Then the locks of the shards of the block table and of the journal's
//!    layers. Then the locks of the block allocator.
//!
//! A thread finds out which directories it has to lock by looking the names up. If a lock is
//! missing, it releases all locks, takes them again together with the missing one, and repeats the
//! lookup. So renames cannot deadlock with each other (trap P9 in `traps.md`).
//!
//! The caller ensures that no directory is moved into one of its descendants. `names` itself
//! refuses only the move of a directory into itself.
//!
//! Source: rename(2), link(2), unlink(2), rmdir(2); `corewalk::tmpfs`; Linux
//! `Documentation/filesystems/directory-locking.rst`.

use std::sync::Arc;

use corewalk::{AclKind, Attr, Errno, FileKind, Make, Name, RenameMode, Timespec};
use corewalk_base::RwLockWriteGuard;

use crate::directory::{Hashed, Link, NameRecord, check_empty};
use crate::inode::{Inode, PERMISSION_BITS, State, now};
use crate::journal::View;
use crate::record::InodeRecord;
use crate::store::Store;
use crate::xattr;

impl Store {
    pub(crate) fn make_named(
        &self,
        dir: u64,
        name: Name<'_>,
        what: &Make<'_>,
    ) -> Result<Attr, Errno> {
        let kind = FileKind::from_mode(what.mode).ok_or(Errno::INVAL)?;
        let view = &*self.journal.grow()?;
        let parent = self.table.get(dir, view)?;
        let mut state = write_directory(&parent)?;
        state.check_alive()?;
        let name_record = NameRecord::find(dir, &state, self.hashed(name), view)?;
        if name_record.link().is_some() {
            return Err(Errno::EXIST);
        }
        name_record.check_room()?;
        let is_directory = kind == FileKind::Directory;
        let mut record = state.record;
        record.count((1, u32::from(is_directory)), (0, 0))?;
        let nlink = if is_directory { 2 } else { 1 };
        let attr = self.insert_new(what, kind, nlink, dir, view)?;
        name_record.set(Link { ino: attr.ino, kind }, view)?;
        state.record = record;
        state.touch_content(now());
        parent.save(&state, view);
        Ok(attr)
    }

    pub(crate) fn make_unnamed(&self, dir: u64, what: &Make<'_>) -> Result<Attr, Errno> {
        let view = &*self.journal.grow()?;
        let parent = self.table.get(dir, view)?;
        check_directory(&parent)?;
        parent.state.read().check_alive()?;
        self.insert_new(what, FileKind::Regular, 0, dir, view)
    }

    pub(crate) fn remove_name(&self, dir: u64, name: Name<'_>, node: u64) -> Result<(), Errno> {
        let view = &*self.journal.change()?;
        let hashed = self.hashed(name);
        let parent = self.table.get(dir, view)?;
        let child = self.table.get(node, view)?;
        let is_directory = child.kind == FileKind::Directory;
        let mut locks = Locks::new([Some(&parent), Some(&child).filter(|_| is_directory)])?;
        let name_record = NameRecord::find(dir, locks.state(dir)?, hashed, view)?;
        let link = name_record.link().filter(|link| link.ino == node).ok_or(Errno::NOENT)?;
        check_kind(&child, link)?;
        if is_directory {
            check_empty(node, locks.state(node)?, view)?;
        }
        let mut record = locks.state(dir)?.record;
        record.count((0, 0), (1, subdirectories(link)))?;
        name_record.remove(view);
        self.change_directory(&mut locks, &parent, now(), view, record)?;
        self.unlink(&mut locks, &child, view)
    }

    pub(crate) fn add_name(&self, node: u64, dir: u64, name: Name<'_>) -> Result<Attr, Errno> {
        let view = &*self.journal.grow()?;
        let (parent, child) = (self.table.get(dir, view)?, self.table.get(node, view)?);
        if child.kind == FileKind::Directory {
            return Err(Errno::PERM);
        }
        let mut state = write_directory(&parent)?;
        state.check_alive()?;
        let name_record = NameRecord::find(dir, &state, self.hashed(name), view)?;
        if name_record.link().is_some() {
            return Err(Errno::EXIST);
        }
        name_record.check_room()?;
        let mut of_child = child.state.write();
        of_child.check()?;
        if of_child.record.nlink == 0 && !of_child.record.is_linkable {
            return Err(Errno::NOENT);
        }
        let nlink = of_child.record.nlink.checked_add(1).ok_or(Errno::MLINK)?;
        let mut record = state.record;
        record.count((1, 0), (0, 0))?;
        name_record.set(Link { ino: node, kind: child.kind }, view)?;
        let now = now();
        let had_links = of_child.record.nlink > 0;
        of_child.record.nlink = nlink;
        of_child.record.is_linkable = false;
        of_child.record.ctime = now;
        child.save_links(&of_child, had_links, view);
        state.record = record;
        state.touch_content(now);
        parent.save(&state, view);
        Ok(of_child.attr(node))
    }

    pub(crate) fn rename_name(
        &self,
        from: (u64, Name<'_>),
        to: (u64, Name<'_>),
        mode: RenameMode,
    ) -> Result<(), Errno> {
        let view = &*match mode {
            // The new name needs space before the commit frees the space of the old name, so a full
            // host refuses the rename.
            RenameMode::Replace | RenameMode::NoReplace => self.journal.grow()?,
            RenameMode::Exchange => self.journal.change()?,
        };
        let (old_name, new_name) = (self.hashed(from.1), self.hashed(to.1));
        let ((old_dir, _), (new_dir, _)) = (from, to);
        let old = self.table.get(old_dir, view)?;
        let new = self.table.get(new_dir, view)?;
        let mut more: [Option<Arc<Inode>>; 2] = [None, None];
        loop {
            let [moved_dir, target_dir] = &more;
            let mut locks =
                Locks::new([Some(&old), Some(&new), moved_dir.as_ref(), target_dir.as_ref()])?;
            let target = NameRecord::find(new_dir, locks.state(new_dir)?, new_name, view)?.link();
            let moved = NameRecord::find(old_dir, locks.state(old_dir)?, old_name, view)?.link();
            let moved = moved.ok_or(Errno::NOENT)?;
            match (mode, target) {
                (RenameMode::NoReplace, Some(_)) => return Err(Errno::EXIST),
                (RenameMode::Exchange, None) => return Err(Errno::NOENT),
                // Both names lead to one inode, so rename(2) changes nothing.
                (_, Some(target)) if target.ino == moved.ino => return Ok(()),
                _ => {}
            }
            let is_missing = |link: Link, locks: &mut Locks<'_>| {
                link.kind == FileKind::Directory && locks.state(link.ino).is_err()
            };
            let wanted =
                [Some(moved), target].map(|link| link.filter(|&link| is_missing(link, &mut locks)));
            if wanted.iter().any(Option::is_some) {
                drop(locks);
                for (link, slot) in [Some(moved), target].into_iter().zip(&mut more) {
                    let directory = link.filter(|link| link.kind == FileKind::Directory);
                    *slot = directory.map(|link| self.linked(link, view)).transpose()?;
                }
                continue;
            }
            let mut rename = Rename {
                store: self,
                view,
                locks: &mut locks,
                old: (&old, old_name),
                new: (&new, new_name),
                moved,
            };
            return match (mode, target) {
                (_, None) => rename.move_to_free_name(),
                (RenameMode::Exchange, Some(target)) => rename.exchange(target),
                (_, Some(target)) => rename.replace(target),
            };
        }
    }

    pub(crate) fn hashed<'a>(&self, name: Name<'a>) -> Hashed<'a> {
        Hashed::new(name, &self.secret)
    }

    fn linked(&self, link: Link, view: &View) -> Result<Arc<Inode>, Errno> {
        let inode = self.table.get(link.ino, view)?;
        check_kind(&inode, link)?;
        Ok(inode)
    }

    fn insert_new(
        &self,
        what: &Make<'_>,
        kind: FileKind,
        nlink: u32,
        dir: u64,
        view: &View,
    ) -> Result<Attr, Errno> {
        self.inodes.take(1)?;
        let ino = self.draw_ino().inspect_err(|_| self.inodes.give_back(1))?;
        let now = now();
        let is_device = matches!(kind, FileKind::CharDevice | FileKind::BlockDevice);
        let target = if kind == FileKind::Symlink { what.target } else { b"" };
        let record = InodeRecord {
            mode: kind.to_mode() | what.mode & PERMISSION_BITS,
            nlink,
            uid: what.uid,
            gid: what.gid,
            rdev: if is_device { what.rdev } else { 0 },
            size: target.len() as u64,
            blocks: 0,
            xattr: 0,
            atime: now,
            mtime: now,
            ctime: now,
            btime: now,
            parent: if kind == FileKind::Directory { dir } else { 0 },
            is_linkable: nlink == 0,
            has_acl: false,
        };
        let inode = Arc::new(Inode::new(ino, record, target, view.tid));
        let mut state = inode.state.write();
        let mut set = Vec::new();
        for (kind, acl) in
            [(AclKind::Access, &what.access_acl), (AclKind::Default, &what.default_acl)]
        {
            if let Some(acl) = state.kept_acl(kind, acl.as_ref()) {
                set = xattr::with_acl(&set, kind, Some(acl));
            }
        }
        if !set.is_empty() {
            let changed = self.change_set(inode.ino, &mut state, &set, view);
            changed.inspect_err(|_| self.inodes.give_back(1))?;
        }
        // A new inode has no orphan record that `save_links` would have to remove, so pass true as
        // `had_links`.
        inode.save_links(&state, true, view);
        let attr = state.attr(inode.ino);
        drop(state);
        self.table.insert(inode);
        Ok(attr)
    }

    /// Removes one link of `inode`. A directory has only one name, so its link count becomes 0.
    fn unlink(&self, locks: &mut Locks<'_>, inode: &Inode, view: &View) -> Result<(), Errno> {
        let change = |state: &mut State| {
            state.record.nlink = match inode.kind {
                FileKind::Directory => 0,
                _ => state.record.nlink.saturating_sub(1),
            };
            state.record.ctime = now();
            inode.save_links(state, true, view);
        };
        match inode.kind {
            FileKind::Directory => change(locks.state(inode.ino)?),
            _ => change(&mut inode.state.write()),
        }
        Ok(())
    }

    fn change_directory(
        &self,
        locks: &mut Locks<'_>,
        dir: &Inode,
        now: Timespec,
        view: &View,
        counted: InodeRecord,
    ) -> Result<(), Errno> {
        let state = locks.state(dir.ino)?;
        state.record = counted;
        state.touch_content(now);
        dir.save(state, view);
        Ok(())
    }
}

type Entries = (u64, u32);

struct Rename<'a, 'b> {
    store: &'a Store,
    view: &'a View,
    locks: &'b mut Locks<'a>,
    old: (&'a Arc<Inode>, Hashed<'a>),
    new: (&'a Arc<Inode>, Hashed<'a>),
    moved: Link,
}

impl Rename<'_, '_> {
    fn move_to_free_name(&mut self) -> Result<(), Errno> {
        self.check_loop()?;
        self.locks.state(self.new.0.ino)?.check_alive()?;
        let child = self.child(self.moved)?;
        let moved = (1, subdirectories(self.moved));
        let counted = self.count((moved, (0, 0)), ((0, 0), moved))?;
        self.set_names(None)?;
        let rest = self.save_directories(counted).and_then(|()| self.touch(&child, self.new.0.ino));
        self.whole(rest)
    }

    fn replace(&mut self, victim: Link) -> Result<(), Errno> {
        self.check_loop()?;
        match (self.moved.kind, victim.kind) {
            (FileKind::Directory, FileKind::Directory) => {
                check_empty(victim.ino, self.locks.state(victim.ino)?, self.view)?;
            }
            (FileKind::Directory, _) => return Err(Errno::NOTDIR),
            (_, FileKind::Directory) => return Err(Errno::ISDIR),
            _ => {}
        }
        let (child, gone) = (self.child(self.moved)?, self.child(victim)?);
        let moved = (1, subdirectories(self.moved));
        let counted = self.count((moved, (1, subdirectories(victim))), ((0, 0), moved))?;
        self.set_names(None)?;
        let rest = self.save_directories(counted).and_then(|()| {
            self.touch(&child, self.new.0.ino)?;
            self.store.unlink(self.locks, &gone, self.view)
        });
        self.whole(rest)
    }

    fn exchange(&mut self, other: Link) -> Result<(), Errno> {
        self.check_loop()?;
        if other.ino == self.old.0.ino {
            return Err(Errno::INVAL);
        }
        let (child, swapped) = (self.child(self.moved)?, self.child(other)?);
        let (there, back) = ((1, subdirectories(self.moved)), (1, subdirectories(other)));
        let counted = self.count((there, back), (back, there))?;
        self.set_names(Some(other))?;
        let rest = self.save_directories(counted).and_then(|()| {
            self.touch(&child, self.new.0.ino)?;
            self.touch(&swapped, self.old.0.ino)
        });
        self.whole(rest)
    }

    /// Returns `rest`, the result of the steps after the first change of a rename. If one of them
    /// has failed, aborts the journal: half a rename must never become durable.
    fn whole(&self, rest: Result<(), Errno>) -> Result<(), Errno> {
        rest.inspect_err(|_| self.store.journal.abort())
    }

    fn check_loop(&self) -> Result<(), Errno> {
        if self.moved.ino == self.new.0.ino { Err(Errno::INVAL) } else { Ok(()) }
    }

    fn child(&self, link: Link) -> Result<Arc<Inode>, Errno> {
        self.store.linked(link, self.view)
    }

    /// Makes the new name lead to the moved inode, and the old name to `other`. Removes the old
    /// name if `other` is None. An error comes only before the first change.
    fn set_names(&mut self, other: Option<Link>) -> Result<(), Errno> {
        let (new, old) = (self.name_record(self.new)?, self.name_record(self.old)?);
        new.set(self.moved, self.view)?;
        // Both names may be in the same record, which `new.set` has replaced. So read it again, or
        // the change of the old name would undo that of the new one.
        let old = if old.is_beside(&new) { self.name_record(self.old)? } else { old };
        match other {
            Some(other) => old.set(other, self.view),
            None => {
                old.remove(self.view);
                Ok(())
            }
        }
    }

    fn name_record<'n>(&mut self, at: (&Arc<Inode>, Hashed<'n>)) -> Result<NameRecord<'n>, Errno> {
        NameRecord::find(at.0.ino, self.locks.state(at.0.ino)?, at.1, self.view)
    }

    /// Returns the records of the new and the old directory, with their counts after the rename.
    /// `EIO` if a count is too small, `EMLINK` if a count overflows.
    fn count(
        &mut self,
        of_new: (Entries, Entries),
        of_old: (Entries, Entries),
    ) -> Result<[InodeRecord; 2], Errno> {
        let (old, new) = (self.old.0.ino, self.new.0.ino);
        let mut in_new = self.locks.state(new)?.record;
        in_new.count(of_new.0, of_new.1)?;
        let mut in_old = if old == new { in_new } else { self.locks.state(old)?.record };
        in_old.count(of_old.0, of_old.1)?;
        Ok([in_new, in_old])
    }

    /// Saves the records of the new and the old directory. If both are the same directory, only the
    /// second record has all changes, so it is saved last.
    fn save_directories(&mut self, counted: [InodeRecord; 2]) -> Result<(), Errno> {
        let now = now();
        for (dir, counted) in [self.new.0, self.old.0].into_iter().zip(counted) {
            self.store.change_directory(self.locks, dir, now, self.view, counted)?;
        }
        Ok(())
    }

    /// Sets the change time of an inode that was moved to the directory `dir`. If the inode is a
    /// directory, also sets its parent.
    fn touch(&mut self, inode: &Inode, dir: u64) -> Result<(), Errno> {
        let view = self.view;
        let change = |state: &mut State| {
            if inode.kind == FileKind::Directory {
                state.record.parent = dir;
            }
            state.record.ctime = now();
            inode.save(state, view);
        };
        match inode.kind {
            FileKind::Directory => change(self.locks.state(inode.ino)?),
            _ => change(&mut inode.state.write()),
        }
        Ok(())
    }
}

struct Locks<'a>([Option<(u64, RwLockWriteGuard<'a, State>)>; 4]);

impl<'a> Locks<'a> {
    fn new<const N: usize>(wanted: [Option<&'a Arc<Inode>>; N]) -> Result<Locks<'a>, Errno> {
        let mut order: [Option<&'a Arc<Inode>>; 4] = [None; 4];
        order[..N].copy_from_slice(&wanted);
        order.sort_unstable_by_key(|inode| inode.map(|inode| inode.ino));
        let mut locks = Locks([const { None }; 4]);
        let mut last = None;
        for (inode, slot) in order.into_iter().flatten().zip(&mut locks.0) {
            if last.replace(inode.ino) != Some(inode.ino) {
                let state = write_directory(inode)?;
                state.check()?;
                *slot = Some((inode.ino, state));
            }
        }
        Ok(locks)
    }

    /// Returns the state of a locked directory. `ESTALE` if [`Locks::new`] has not locked the
    /// directory.
    fn state(&mut self, ino: u64) -> Result<&mut State, Errno> {
        let mut all = self.0.iter_mut().flatten();
        all.find(|(at, _)| *at == ino).map(|(_, state)| &mut **state).ok_or(Errno::STALE)
    }
}

/// `ENOTDIR` for another kind.
fn write_directory(inode: &Inode) -> Result<RwLockWriteGuard<'_, State>, Errno> {
    check_directory(inode)?;
    Ok(inode.state.write())
}

pub(crate) fn check_directory(inode: &Inode) -> Result<(), Errno> {
    if inode.kind == FileKind::Directory { Ok(()) } else { Err(Errno::NOTDIR) }
}

/// Returns `EIO` if an inode has another file type than its directory entry. The type in the entry
/// decides which inodes are locked, so a call must not continue with a wrong type.
fn check_kind(inode: &Inode, link: Link) -> Result<(), Errno> {
    if inode.kind == link.kind { Ok(()) } else { Err(Errno::IO) }
}

fn subdirectories(link: Link) -> u32 {
    u32::from(link.kind == FileKind::Directory)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::StoreOptions;

    fn rename_in_one_record(
        store: &Store,
        before: [Option<Link>; 2],
        rename: impl FnOnce(&mut Rename<'_, '_>) -> Result<(), Errno>,
    ) -> [Option<Link>; 2] {
        let names = [&b"one"[..], b"two"].map(|name| Hashed::with_hash(name, 7));
        let view = &*store.journal.change().unwrap();
        let root = store.table.get(1, view).unwrap();
        let mut locks = Locks::new([Some(&root)]).unwrap();
        let name_record = |name, locks: &mut Locks<'_>| {
            NameRecord::find(1, locks.state(1).unwrap(), name, view).unwrap()
        };
        for (name, link) in names.into_iter().zip(before) {
            let name_record = name_record(name, &mut locks);
            match link {
                Some(link) => name_record.set(link, view).unwrap(),
                None => name_record.remove(view),
            }
        }
        let moved = before[0].expect("the source of the rename");
        let [old, new] = names.map(|name| (&root, name));
        let done = rename(&mut Rename { store, view, locks: &mut locks, old, new, moved });
        assert_eq!(done, Ok(()));
        names.map(|name| name_record(name, &mut locks).link())
    }

    /// In a rename within one record, the change of the old name must not undo that of the new one.
    #[test]
    fn rename_within_one_record_is_whole() {
        let path = std::env::temp_dir().join(format!("names-{}", std::process::id()));
        let store = Store::open(&path, &StoreOptions::default()).unwrap();
        let root = corewalk::Node::detached(1, FileKind::Directory);
        let [one, two] = ["x", "y"].map(|name| {
            let (name, what) = (Name::new(name.as_bytes()).unwrap(), Make::new(0o100_644, 0, 0));
            let made = corewalk::FileSystem::make(&store, root, name, &what).unwrap();
            Some(Link { ino: made.ino, kind: FileKind::Regular })
        });
        let target = two.expect("just made");
        let moved = rename_in_one_record(&store, [one, None], |it| it.move_to_free_name());
        assert_eq!(moved, [None, one]);
        let moved = rename_in_one_record(&store, [one, two], |it| it.replace(target));
        assert_eq!(moved, [None, one]);
        let swapped = rename_in_one_record(&store, [one, two], |it| it.exchange(target));
        assert_eq!(swapped, [two, one]);
        drop(store);
        std::fs::remove_dir_all(&path).unwrap();
    }
}
