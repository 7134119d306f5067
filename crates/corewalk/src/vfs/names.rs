//! Operations on names: lookup, creation, removal.

use crate::Errno;
use crate::attr::{Attr, FileKind, mode};
use crate::cred::{Caps, Cred, May};
use crate::dcache::DentryInode;
use crate::dentry::{Flags, LookupKey, ParentKey, Snapshot};
use crate::fs::Make;
use crate::key_lock::KeyGuard;
use crate::name::Name;
use crate::slot::{DentrySlot, InodeSlot};

use super::call::KnownPath;
use super::held::{DentryAndInode, DentryHold, Dir, FoundName, Unattached};
use super::hidden::LockedName;
use super::{InodeRef, LookedUp, Vfs};

/// The kind of file that a removal expects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Removal {
    /// Anything but a directory (unlink(2)).
    Unlink,
    /// A directory (rmdir(2)).
    Rmdir,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Missing {
    Cached,
    /// A negative answer must not be cached, because the caller is about to give the name to a
    /// file.
    Dropped,
}

pub(super) struct Answer {
    /// The parent key that the directory had before the back end was asked.
    key: ParentKey,
    /// The count of attribute changes before the back end was asked.
    pub(super) changes: i64,
    pub(super) attr: Result<Attr, Errno>,
}

pub(super) enum Cached<'v> {
    /// The cache has no dentry of the name, or a concurrent change hid it. The caller asks the back
    /// end.
    Unknown,
    Known(Option<FoundName<'v>>),
}

impl Vfs {
    /// Looks up `name` in `dir` and returns its inode.
    ///
    /// # Errors
    /// `ENOENT` if there is no such name, or `dir` was removed; `ENOTDIR`; `EACCES` without search
    /// permission; `ENFILE` at more than 2^27 references to the inode; the errors of the back end.
    ///
    /// # Examples
    /// ```
    /// # use std::sync::Arc;
    /// # use corewalk::tmpfs::{Tmpfs, TmpfsOptions};
    /// # use corewalk::{Cred, Errno, Make, Name, Vfs, VfsOptions};
    /// # let vfs = Vfs::new(Arc::new(Tmpfs::new(TmpfsOptions::default())), VfsOptions::default())?;
    /// # let (cred, root, name) = (Cred::root(), vfs.root(), Name::new(b"f")?);
    /// # let (file, _) = vfs.make(&cred, &root, name, Make::new(0o100_644, 1000, 1000))?;
    /// let user = Cred::user(1000, 1000, &[]);
    /// assert_eq!(vfs.lookup(&user, &root, name)?.ino(), file.ino());
    /// assert_eq!(vfs.lookup(&user, &root, Name::new(b"g")?).err(), Some(Errno::NOENT));
    /// # Ok::<(), corewalk::Errno>(())
    /// ```
    pub fn lookup(
        &self,
        cred: &Cred,
        dir: &InodeRef<'_>,
        name: Name<'_>,
    ) -> Result<InodeRef<'_>, Errno> {
        self.may_search(cred, dir.slot)?;
        let lookup_key = self.dcache.lookup_key(name);
        match self.lookup_cached(dir.slot, &lookup_key) {
            Some(found) => found,
            None => self
                .lookup_slow(dir.slot, &lookup_key, Vfs::resolve_with_attr)
                .map(|found| found.inode),
        }
    }

    /// Checks that the caller may search a directory. A caller with `CAP_DAC_READ_SEARCH` may
    /// search every directory, so the check is skipped.
    #[inline]
    pub(super) fn may_search(&self, cred: &Cred, dir: InodeSlot) -> Result<(), Errno> {
        if cred.has(Caps::DAC_READ_SEARCH) {
            return Ok(());
        }
        self.awaiting_removal(&[dir], || self.permission(cred, dir, May::EXEC)).map_err(|error| {
            // For an inode that is not a directory, `ENOTDIR` takes precedence.
            if self.dcache.inodes.kind(dir) == FileKind::Directory { error } else { Errno::NOTDIR }
        })
    }

    /// Looks up a name in the cache. Writes no shared memory except the found inode's reference
    /// count. Returns None if the caller must ask the back end.
    pub(super) fn lookup_cached(
        &self,
        dir: InodeSlot,
        lookup_key: &LookupKey<'_>,
    ) -> Option<Result<InodeRef<'_>, Errno>> {
        let now = self.dcache.directory(self.dcache.inodes.alias(dir))?;
        if now.inode != dir {
            return None;
        }
        let (slot, seen) = self.dcache.find(now.key, lookup_key)?;
        // Check that the directory's dentry has not changed since it was read. The slot of a
        // removed directory may belong to another directory by now.
        let is_still_parent = || self.dcache.dentries.is_unchanged(now.slot, now.seq);
        if seen.body.is_negative() {
            self.dcache.dentries.cold(slot).touch();
            return is_still_parent().then_some(Err(Errno::NOENT));
        }
        let inode = seen.body.inode();
        if !self.dcache.get_inode(slot, seen.seq, inode) {
            return None;
        }
        if !is_still_parent() {
            self.dcache.put_inode(inode, 1);
            return None;
        }
        self.dcache.inodes.touch(inode);
        Some(InodeRef { vfs: self, slot: inode }.unless_saturated())
    }

    /// Returns the dentry of a directory, with a reference on the dentry.
    ///
    /// # Errors
    /// `ENOENT` for a removed directory, `ENOTDIR` for another kind.
    pub(crate) fn dir(&self, inode: InodeSlot) -> Result<Dir<'_>, Errno> {
        if !self.dcache.inodes.is_directory(inode) {
            return Err(Errno::NOTDIR);
        }
        let now = self.dcache.get_directory(inode).ok_or(Errno::NOENT)?;
        Ok(Dir { vfs: self, now })
    }

    /// Returns the dentry of a directory that the caller may search.
    ///
    /// # Errors
    /// The errors of [`Vfs::dir`]; `EACCES` without search permission.
    pub(super) fn searched(&self, cred: &Cred, dir: &InodeRef<'_>) -> Result<Dir<'_>, Errno> {
        let found = self.dir(dir.slot)?;
        self.permission(cred, dir.slot, May::EXEC)?;
        Ok(found)
    }

    /// Looks up a name in the cache or in the back end. Returns None for a missing name. The caller
    /// holds the name's in-lookup lock.
    pub(crate) fn resolve(
        &self,
        dir: &Dir<'_>,
        lookup_key: &LookupKey<'_>,
        in_lookup: &KeyGuard<'_>,
    ) -> Result<Option<FoundName<'_>>, Errno> {
        self.resolve_or(dir, lookup_key, in_lookup, Missing::Cached)
    }

    /// Like [`Vfs::resolve`], but `missing` tells whether to cache a negative answer.
    pub(super) fn resolve_or(
        &self,
        dir: &Dir<'_>,
        lookup_key: &LookupKey<'_>,
        in_lookup: &KeyGuard<'_>,
        missing: Missing,
    ) -> Result<Option<FoundName<'_>>, Errno> {
        // `cached` searches without a lock, and may miss a dentry that is changing. `fill` then
        // asks the back end, and finds the dentry when it enters the answer.
        match self.cached(dir, lookup_key) {
            Cached::Known(found) => Ok(found),
            Cached::Unknown => {
                Ok(self.fill(dir, lookup_key, in_lookup, missing)?.map(|(found, _)| found))
            }
        }
    }

    /// Looks up a name in the cache. The caller holds the in-lookup lock of the name.
    pub(super) fn cached(&self, dir: &Dir<'_>, lookup_key: &LookupKey<'_>) -> Cached<'_> {
        while let Some((slot, seen)) = self.dcache.find(dir.key(), lookup_key) {
            if seen.body.is_negative() {
                self.dcache.dentries.cold(slot).touch();
                return Cached::Known(None);
            }
            if self.dcache.get(slot, seen.seq) {
                let inode = seen.body.inode();
                return Cached::Known(Some(FoundName { vfs: self, inode, dentry: Ok(slot) }));
            }
        }
        Cached::Unknown
    }

    pub(crate) fn hold(&self, slot: DentrySlot, seen: Snapshot) -> Option<DentryAndInode<'_>> {
        let inode = seen.body.inode();
        if inode.is_none() || !self.dcache.get(slot, seen.seq) {
            return None;
        }
        let dentry = DentryHold { vfs: self, slot };
        if !self.dcache.get_inode(slot, seen.seq, inode) {
            return None;
        }
        self.dcache.inodes.touch(inode);
        Some(DentryAndInode { dentry, inode: InodeRef { vfs: self, slot: inode } })
    }

    /// Looks up a name in the back end and caches the answer. An answer that an invalidation during
    /// the call may have made stale is not cached.
    pub(super) fn fill(
        &self,
        dir: &Dir<'_>,
        lookup_key: &LookupKey<'_>,
        in_lookup: &KeyGuard<'_>,
        missing: Missing,
    ) -> Result<Option<(FoundName<'_>, Option<Attr>)>, Errno> {
        self.dcache.counters.fills.add(1);
        let answer = self.ask_for_name(dir, lookup_key);
        if missing == Missing::Dropped && matches!(answer.attr, Err(Errno::NOENT)) {
            return Ok(None);
        }
        self.take_answer(dir, lookup_key, in_lookup, answer, None)
    }

    /// Looks up a name in the back end. The caller holds the in-lookup lock of the name.
    pub(super) fn ask_for_name(&self, dir: &Dir<'_>, lookup_key: &LookupKey<'_>) -> Answer {
        let (key, changes) = (dir.key(), self.dcache.inodes.changes());
        let attr = self.with_node(dir.now.inode, |fs, node| fs.lookup(node, lookup_key.name));
        Answer { key, changes, attr }
    }

    /// Caches the back end's answer for a name, unless an invalidation has made it stale.
    /// Invalidates `known`, the earlier cached answer, if the new one is another inode.
    pub(super) fn take_answer<'v>(
        &'v self,
        dir: &Dir<'_>,
        lookup_key: &LookupKey<'_>,
        in_lookup: &KeyGuard<'_>,
        answer: Answer,
        known: Option<FoundName<'v>>,
    ) -> Result<Option<(FoundName<'v>, Option<Attr>)>, Errno> {
        let Answer { key, changes, attr } = answer;
        let is_current = dir.key() == key && !in_lookup.is_fill_cancelled();
        if !is_current {
            self.dcache.counters.refused_fills.add(1);
        }
        let entered = attr.and_then(|attr| {
            let attr = self.numbered(dir, lookup_key, attr);
            let inode = self.enter(dir.now.inode, &attr, changes, None)?;
            Ok(self.looked_up(inode, &attr, changes))
        });
        let is_same = |known: &FoundName<'_>| {
            entered.as_ref().is_ok_and(|found| found.inode.slot == known.inode)
        };
        let is_known = known.is_some();
        let same = known.filter(is_same);
        if is_known && same.is_none() {
            self.invalidate_cached(dir, lookup_key);
        }
        match entered {
            Ok(LookedUp { inode, attr, .. }) => {
                let dentry = match same {
                    Some(same) => {
                        self.prefer(&same);
                        same.into_dentry()
                    }
                    None => {
                        let key = if is_current { key } else { ParentKey::stale(key.parent()) };
                        self.attach(dir, key, lookup_key, &inode, in_lookup)
                    }
                };
                Ok(Some((FoundName::new(inode, dentry), attr)))
            }
            Err(Errno::NOENT) => {
                if is_current
                    && self.dcache.has_room_for_negative()
                    && let Ok(slot) = self.dcache.publish(key, lookup_key, None, in_lookup)
                {
                    self.dcache.put(slot);
                }
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Returns the inode that `attr` describes, with a reference. Enters a missing inode in the
    /// file system of the inode `near`, if possible in the slot of `beside`, a negative dentry of
    /// its name.
    pub(super) fn enter(
        &self,
        near: InodeSlot,
        attr: &Attr,
        changes: i64,
        beside: Option<&DentryHold<'_>>,
    ) -> Result<InodeRef<'_>, Errno> {
        Vfs::check_number(attr)?;
        let (dentries, inodes) = (&self.dcache.dentries, &self.dcache.inodes);
        let superblock = inodes.superblock(near);
        let beside = beside.map_or(DentrySlot::NONE, |dentry| dentry.slot);
        let enter =
            || inodes.get_or_insert(dentries, superblock, beside, attr, attr.has_acl, changes);
        let entered = enter().or_else(|| {
            self.dcache.prune();
            enter()
        });
        let Some(entered) = entered else {
            self.fs(near).forget(attr.ino, attr.generation);
            return Err(Errno::NOMEM);
        };
        if let Some(stale) = entered.stale_generation {
            // The back end has reused the inode number of a directory. The cache may still have
            // names below the earlier directory. Invalidate them, so that `get_by_ino` does not
            // find them.
            if let Some(old) = self.dcache.get_directory(stale) {
                self.dcache.invalidate_directory(old.slot);
                self.dcache.put(old.slot);
            }
            self.dcache.put_inode(stale, 1);
        }
        Ok(InodeRef { vfs: self, slot: entered.slot })
    }

    /// Gives the inode a dentry with this name in the directory. If `key` is stale because the
    /// directory was invalidated, no lookup finds the dentry.
    pub(super) fn attach(
        &self,
        dir: &Dir<'_>,
        key: ParentKey,
        lookup_key: &LookupKey<'_>,
        inode: &InodeRef<'_>,
        in_lookup: &KeyGuard<'_>,
    ) -> Result<DentryHold<'_>, Unattached> {
        // If the inode gets no dentry, any cached dentry of the name is wrong.
        let attached = self.attach_as(dir, key, lookup_key, inode, in_lookup);
        attached.inspect_err(|_| self.invalidate_cached(dir, lookup_key))
    }

    fn attach_as(
        &self,
        dir: &Dir<'_>,
        key: ParentKey,
        lookup_key: &LookupKey<'_>,
        inode: &InodeRef<'_>,
        in_lookup: &KeyGuard<'_>,
    ) -> Result<DentryHold<'_>, Unattached> {
        let node = DentryInode { inode: inode.slot, kind: inode.kind() };
        if node.kind == FileKind::Directory
            && let Some(alias) = self.dcache.get_directory(inode.slot)
        {
            let hold = DentryHold { vfs: self, slot: alias.slot };
            // Drop the old parent here, where no `topology` lock is held.
            let _old_parent = self.splice(dir, key, lookup_key, &hold, in_lookup)?;
            return Ok(hold);
        }
        // `publish` fails if the directory was invalidated since `key` was read. Then enter a
        // dentry that no lookup finds.
        let slot = self.dcache.publish(key, lookup_key, Some(node), in_lookup).or_else(|_| {
            self.invalidate_cached(dir, lookup_key);
            self.dcache.publish(ParentKey::stale(key.parent()), lookup_key, Some(node), in_lookup)
        });
        let slot = slot.map_err(|_| Unattached::NoRoom)?;
        let inodes = &self.dcache.inodes;
        if node.kind == FileKind::Directory
            && inodes.has_older_alias(inode.slot, slot, &self.dcache.dentries)
        {
            // Another thread has entered a dentry of this directory since `get_directory` found
            // none. A directory has only one dentry, so remove the new one.
            self.dcache.remove(slot);
            return Err(Unattached::Overtaken);
        }
        Ok(DentryHold { vfs: self, slot })
    }

    /// Moves a directory's dentry to the name under which the back end has now reported the
    /// directory. Both names are equal if the old one was invalidated. The caller drops the
    /// returned reference on the old parent.
    ///
    /// An invalidated name may also differ from the new one: another program has moved the
    /// directory. Invalidations below the new name have missed the directory since then. So the
    /// names below it are invalidated now.
    ///
    /// The move needs the in-lookup lock of the dentry's old name. If another operation holds it,
    /// the dentry stays, and the back end's answer is not cached. This is no error.
    fn splice(
        &self,
        dir: &Dir<'_>,
        key: ParentKey,
        lookup_key: &LookupKey<'_>,
        hold: &DentryHold<'_>,
        in_lookup: &KeyGuard<'_>,
    ) -> Result<DentryHold<'_>, Unattached> {
        let (old_parent, old_name) = self.dcache.name_of(hold.slot);
        // A dentry without a name is a root. A root cannot move below `dir`, because the move would
        // make a loop.
        let old_name = Name::new(old_name.as_bytes()).map_err(|_| Unattached::Loop)?;
        let old_lookup_key = self.dcache.lookup_key(old_name);
        let old_key = self.dcache.in_lookup_key(old_parent, &old_lookup_key);
        let old_locked = if old_key == self.dcache.in_lookup_key(dir.now.slot, lookup_key) {
            None
        } else {
            Some(self.dcache.in_lookup.try_lock(old_key).ok_or(Unattached::Overtaken)?)
        };
        let _change = self.dcache.listings.change(old_parent);
        let (parent_now, name_now) = self.dcache.name_of(hold.slot);
        if parent_now != old_parent || name_now.as_bytes() != old_name.as_bytes() {
            // Another thread has moved the dentry, so the in-lookup lock does not cover its current
            // name.
            return Err(Unattached::Overtaken);
        }
        let was_missed = old_locked.is_some() && self.dcache.is_hidden(hold.slot);
        if was_missed {
            // No lookup may find the old names at the new place before `invalidate_below` is done.
            self.dcache.invalidate_directory(hold.slot);
        }
        let topology = self.dcache.topology.write();
        if self.dcache.is_subdir(dir.now.slot, hold.slot) {
            return Err(Unattached::Loop);
        }
        let old_parent = self
            .move_dentry(hold.slot, &old_lookup_key, key, lookup_key, None, in_lookup)
            .map_err(|_| Unattached::NoRoom)?;
        drop(topology);
        if was_missed {
            self.invalidate_below(hold);
        }
        Ok(old_parent)
    }

    /// Runs `operation`. It fails if the back end has removed one of `inodes`, although the cache
    /// may still have that inode.
    ///
    /// A caller must not learn that an inode is gone before the cache shows it. So if `operation`
    /// fails, this method waits for the operation that removes the inode. All calls of the back
    /// end, the permission check included, must be made in `operation`.
    ///
    /// The operation that removes the inode may need an in-lookup lock. So this method holds none
    /// while it waits: `operation` has released its own, and the caller holds none.
    #[inline]
    pub(crate) fn awaiting_removal<T>(
        &self,
        inodes: &[InodeSlot],
        operation: impl FnOnce() -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        operation().inspect_err(|error| {
            if matches!(*error, Errno::NOENT | Errno::STALE) {
                inodes.iter().for_each(|&inode| self.wait_for_name_of(inode));
            }
        })
    }

    /// Waits until no other thread holds the in-lookup lock of an inode's cached name. Only the
    /// holder of that lock may move a directory's dentry to another name.
    pub(crate) fn wait_for_name_of(&self, inode: InodeSlot) {
        let Some(slot) = self.dcache.get_alias(inode) else { return };
        let hold = DentryHold { vfs: self, slot };
        let (parent, name) = self.dcache.name_of(hold.slot);
        if let Ok(name) = Name::new(name.as_bytes()) {
            let key = self.dcache.in_lookup_key(parent, &self.dcache.lookup_key(name));
            drop(self.dcache.in_lookup.lock(key));
        }
    }

    /// Makes a file of any kind and returns it with its attributes. Its permission bits are those
    /// of `what.mode` without `what.umask`. If the directory has a default ACL, the ACL replaces
    /// the umask. A new directory inherits set-group-ID from its parent and never has set-user-ID,
    /// as mkdir(2) says.
    ///
    /// # Errors
    /// In this order: `ENOTDIR`; `ENOENT` if `dir` was removed; `EACCES` if `dir` may not be
    /// searched; `EEXIST`; `EACCES` if `dir` may not be written; `EPERM` for a device node without
    /// `CAP_MKNOD`, except for a whiteout (character device 0); the errors of the back end.
    ///
    /// # Examples
    /// ```
    /// # use std::sync::Arc;
    /// # use corewalk::tmpfs::{Tmpfs, TmpfsOptions};
    /// # use corewalk::{Cred, Errno, Make, Name, Vfs, VfsOptions};
    /// # let fs = Arc::new(Tmpfs::new(TmpfsOptions::default()));
    /// # let vfs = Vfs::new(fs, VfsOptions::default())?;
    /// let (cred, root, name) = (Cred::root(), vfs.root(), Name::new(b"f")?);
    /// let (file, attr) = vfs.make(&cred, &root, name, Make::new(0o666, 0, 0).with_umask(0o022))?;
    /// assert_eq!((attr.ino, attr.mode), (file.ino(), 0o100_644));
    /// assert_eq!(vfs.lookup(&cred, &root, name)?.ino(), file.ino());
    /// # Ok::<(), corewalk::Errno>(())
    /// ```
    pub fn make(
        &self,
        cred: &Cred,
        dir: &InodeRef<'_>,
        name: Name<'_>,
        what: Make<'_>,
    ) -> Result<(InodeRef<'_>, Attr), Errno> {
        self.awaiting_removal(&[dir.slot], || {
            let (parent, dir) = (dir.slot, self.searched(cred, dir)?);
            let lookup_key = self.dcache.lookup_key(name);
            let in_lookup =
                self.dcache.in_lookup.lock(self.dcache.in_lookup_key(dir.now.slot, &lookup_key));
            let _change = self.dcache.listings.change(dir.now.slot);
            let negative = self.free_name(&dir, &lookup_key)?;
            let what = self
                .permission(cred, parent, May::WRITE | May::EXEC)
                .and_then(|()| self.inherit(cred, parent, what))
                .or_else(|error| self.eexist_or(&dir, &lookup_key, &in_lookup, error))?;
            let (key, changes) = (dir.key(), self.dcache.inodes.changes());
            let made = self.with_node(dir.now.inode, |fs, node| fs.make(node, name, &what));
            let attr =
                made.or_else(|error| self.eexist_or(&dir, &lookup_key, &in_lookup, error))?;
            let attr = self.numbered_new(dir.now.inode, attr);
            let entered = self.enter(dir.now.inode, &attr, changes, negative.as_ref());
            if attr.kind() == FileKind::Directory {
                // A new directory gets a slot on pages that only directories use, not that of the
                // name's negative dentry. So release the negative dentry.
                drop(negative);
            }
            let inode = entered.inspect_err(|_| {
                // The file exists in the back end but could not be cached. So a negative dentry of
                // the name is wrong.
                self.invalidate_cached(&dir, &lookup_key);
            })?;
            self.publish_change(&dir, key, &lookup_key, &inode, &in_lookup);
            Ok((inode, attr))
        })
    }

    /// Makes a regular file without a name (`O_TMPFILE`). [`Vfs::link`] can give it a name later.
    ///
    /// # Errors
    /// The errors of [`Vfs::make`]; `EOPNOTSUPP` if the back end cannot make a file without a name.
    pub fn tmpfile(
        &self,
        cred: &Cred,
        dir: &InodeRef<'_>,
        what: Make<'_>,
    ) -> Result<(InodeRef<'_>, Attr), Errno> {
        if dir.kind() != FileKind::Directory {
            return Err(Errno::NOTDIR);
        }
        self.awaiting_removal(&[dir.slot], || {
            self.permission(cred, dir.slot, May::WRITE | May::EXEC)?;
            let what = self.inherit(cred, dir.slot, what)?;
            let changes = self.dcache.inodes.changes();
            let attr = self.with_node(dir.slot, |fs, node| fs.tmpfile(node, &what))?;
            let attr = self.numbered_new(dir.slot, attr);
            Ok((self.enter(dir.slot, &attr, changes, None)?, attr))
        })
    }

    /// Gives `inode` another name and returns its attributes.
    ///
    /// # Errors
    /// In this order: `ENOTDIR`, `ENOENT`, `EACCES` (no search permission) for `dir` as in
    /// [`Vfs::make`]; `EEXIST`; `EXDEV` across file systems; `EACCES` if `dir` may not be written;
    /// `EPERM` if `inode` is a directory; `EMLINK` and the other errors of the back end.
    ///
    /// # Examples
    /// ```
    /// # use std::sync::Arc;
    /// # use corewalk::tmpfs::{Tmpfs, TmpfsOptions};
    /// # use corewalk::{Cred, Make, Name, Vfs, VfsOptions};
    /// # let vfs = Vfs::new(Arc::new(Tmpfs::new(TmpfsOptions::default())), VfsOptions::default())?;
    /// # let (cred, root, name) = (Cred::root(), vfs.root(), Name::new(b"f")?);
    /// # let (file, _) = vfs.make(&cred, &root, name, Make::new(0o100_644, 1000, 1000))?;
    /// assert_eq!(vfs.link(&cred, &file, &root, Name::new(b"g")?)?.nlink, 2);
    /// assert_eq!(vfs.lookup(&cred, &root, Name::new(b"g")?)?.ino(), file.ino());
    /// # Ok::<(), corewalk::Errno>(())
    /// ```
    pub fn link(
        &self,
        cred: &Cred,
        inode: &InodeRef<'_>,
        dir: &InodeRef<'_>,
        name: Name<'_>,
    ) -> Result<Attr, Errno> {
        self.awaiting_removal(&[dir.slot, inode.slot], || {
            let (parent, dir) = (dir.slot, self.searched(cred, dir)?);
            let lookup_key = self.dcache.lookup_key(name);
            let in_lookup =
                self.dcache.in_lookup.lock(self.dcache.in_lookup_key(dir.now.slot, &lookup_key));
            let _change = self.dcache.listings.change(dir.now.slot);
            self.free_name(&dir, &lookup_key)?;
            let inodes = &self.dcache.inodes;
            let allowed = if inodes.superblock(inode.slot) != inodes.superblock(parent) {
                Err(Errno::XDEV)
            } else {
                self.permission(cred, parent, May::WRITE | May::EXEC).and_then(|()| {
                    match inode.kind() {
                        FileKind::Directory => Err(Errno::PERM),
                        // Without numbers, nothing tells that two names are one file.
                        _ if self.numbers(parent).is_some() => Err(Errno::PERM),
                        _ => Ok(()),
                    }
                })
            };
            allowed.or_else(|error| self.eexist_or(&dir, &lookup_key, &in_lookup, error))?;
            let key = dir.key();
            let linked = {
                let call = self.call(dir.now.inode);
                let (file, parent) = (call.node(inode.slot), call.node(dir.now.inode));
                let linked = call.fs().link(file.node(), parent.node(), name);
                linked.map(|attr| self.reported(inode.slot, attr))
            };
            let attr =
                linked.or_else(|error| self.eexist_or(&dir, &lookup_key, &in_lookup, error))?;
            self.publish_change(&dir, key, &lookup_key, inode, &in_lookup);
            Ok(attr)
        })
    }

    /// Removes a name.
    ///
    /// # Errors
    /// In this order: `ENOTDIR`, `ENOENT`, `EACCES` for `dir` as in [`Vfs::make`]; `ENOENT` if the
    /// name does not exist; `EACCES` without write permission; `EPERM` if the sticky bit of `dir`
    /// forbids the removal; `EISDIR` for an unlink of a directory; `ENOTDIR` for an rmdir of
    /// another file; `EBUSY` for a mount point; `ENOTEMPTY` for a directory with entries; the other
    /// errors of the back end.
    ///
    /// # Examples
    /// ```
    /// # use std::sync::Arc;
    /// # use corewalk::tmpfs::{Tmpfs, TmpfsOptions};
    /// # use corewalk::{Cred, Errno, Make, Name, Removal, Vfs, VfsOptions};
    /// # let fs = Arc::new(Tmpfs::new(TmpfsOptions::default()));
    /// # let vfs = Vfs::new(fs, VfsOptions::default())?;
    /// let (cred, root, name) = (Cred::root(), vfs.root(), Name::new(b"f")?);
    /// vfs.make(&cred, &root, name, Make::new(0o644, 0, 0))?;
    /// assert_eq!(vfs.remove(&cred, &root, name, Removal::Rmdir), Err(Errno::NOTDIR));
    /// vfs.remove(&cred, &root, name, Removal::Unlink)?;
    /// assert_eq!(vfs.lookup(&cred, &root, name).err(), Some(Errno::NOENT));
    /// # Ok::<(), corewalk::Errno>(())
    /// ```
    pub fn remove(
        &self,
        cred: &Cred,
        dir: &InodeRef<'_>,
        name: Name<'_>,
        removal: Removal,
    ) -> Result<(), Errno> {
        self.remove_if(cred, dir, name, removal, |_| true)
    }

    /// Removes a name as [`Vfs::remove`] does, but only if `is_wanted` accepts its inode.
    ///
    /// # Errors
    /// Those of [`Vfs::remove`]; `ENOENT` if `is_wanted` rejects the inode.
    pub(crate) fn remove_if(
        &self,
        cred: &Cred,
        dir: &InodeRef<'_>,
        name: Name<'_>,
        removal: Removal,
        is_wanted: impl Fn(InodeSlot) -> bool,
    ) -> Result<(), Errno> {
        self.awaiting_removal(&[dir.slot], || {
            let dir = self.searched(cred, dir)?;
            let lookup_key = self.dcache.lookup_key(name);
            let in_lookup =
                self.dcache.in_lookup.lock(self.dcache.in_lookup_key(dir.now.slot, &lookup_key));
            let _change = self.dcache.listings.change(dir.now.slot);
            let found = self.resolve(&dir, &lookup_key, &in_lookup)?;
            let found = found.filter(|found| is_wanted(found.inode)).ok_or(Errno::NOENT)?;
            self.may_delete(cred, dir.now.inode, &found)?;
            match (removal, found.is_directory()) {
                (Removal::Unlink, true) => return Err(Errno::ISDIR),
                (Removal::Rmdir, false) => return Err(Errno::NOTDIR),
                _ if self.is_mounted_on(&found) => return Err(Errno::BUSY),
                _ => {}
            }
            let lock = self.lock_move(&[dir.now.inode], [found.inode, InodeSlot::NONE])?;
            let path = KnownPath::above(lock.as_ref(), 0);
            let parent = self.known_node(dir.now.inode, &path);
            let at = LockedName { dir: parent, path: &path, name };
            let removed = self.remove_in_backend(at, &found);
            self.wait_for_renames(found.directory());
            removed.map_err(|error| self.invalidate_if_not_empty(Some(&found), error))?;
            if let Ok(dentry) = found.into_dentry() {
                self.dcache.remove(dentry.into_slot());
            }
            drop(lock);
            Ok(())
        })
    }

    /// Checks that the cache has no file with this name (`EEXIST`). Returns the negative dentry of
    /// the name, if it finds one. The caller holds the in-lookup lock of the name.
    fn free_name(
        &self,
        dir: &Dir<'_>,
        lookup_key: &LookupKey<'_>,
    ) -> Result<Option<DentryHold<'_>>, Errno> {
        // A lookup without a lock may miss a dentry that is changing. If it misses a positive one,
        // the back end refuses to make the file. If it misses a negative one, `attach` finds it
        // later.
        match self.dcache.find(dir.key(), lookup_key) {
            Some((_, seen)) if !seen.body.is_negative() => Err(Errno::EXIST),
            Some((slot, seen)) if self.dcache.get(slot, seen.seq) => {
                Ok(Some(DentryHold { vfs: self, slot }))
            }
            _ => Ok(None),
        }
    }

    /// Returns the error to report when `error` has prevented a name from being made: `EEXIST` if
    /// the name is taken, as on Linux, otherwise `error`. The caller holds the in-lookup lock of
    /// the name.
    #[cold]
    fn eexist_or<T>(
        &self,
        dir: &Dir<'_>,
        lookup_key: &LookupKey<'_>,
        in_lookup: &KeyGuard<'_>,
        error: Errno,
    ) -> Result<T, Errno> {
        match error {
            Errno::EXIST => Err(error),
            _ => {
                self.resolve(dir, lookup_key, in_lookup)?.map_or(Err(error), |_| Err(Errno::EXIST))
            }
        }
    }

    /// Adds a name to the cache that the back end has just given to `inode`. If the name was
    /// invalidated meanwhile, no lookup finds the dentry.
    fn publish_change(
        &self,
        dir: &Dir<'_>,
        key: ParentKey,
        lookup_key: &LookupKey<'_>,
        inode: &InodeRef<'_>,
        in_lookup: &KeyGuard<'_>,
    ) {
        let key = if dir.key() == key { key } else { ParentKey::stale(key.parent()) };
        drop(self.attach(dir, key, lookup_key, inode, in_lookup));
    }

    /// Checks that the caller may remove the name of `victim` from the directory `dir`.
    pub(super) fn may_delete(
        &self,
        cred: &Cred,
        dir: InodeSlot,
        victim: &FoundName<'_>,
    ) -> Result<(), Errno> {
        self.permission(cred, dir, May::WRITE | May::EXEC)?;
        if cred.has(Caps::FOWNER) {
            return Ok(());
        }
        let perm = self.perm(dir)?;
        let is_sticky = perm.mode & mode::S_ISVTX != 0
            && perm.uid != cred.uid
            && self.perm(victim.inode)?.uid != cred.uid;
        if is_sticky { Err(Errno::PERM) } else { Ok(()) }
    }

    /// If `error` says that the directory is not empty, invalidates all names in the directory.
    ///
    /// Another thread may have made an entry of the directory in the back end, while the cache
    /// still has a negative dentry. This function invalidates the negative dentry. A later lookup
    /// of the entry then waits for the other thread.
    ///
    /// Rejected: a list of names that are being made, because every creation would have to write
    /// it.
    pub(super) fn invalidate_if_not_empty(
        &self,
        victim: Option<&FoundName<'_>>,
        error: Errno,
    ) -> Errno {
        if matches!(error, Errno::NOTEMPTY | Errno::EXIST)
            && let Some(FoundName { dentry: Ok(slot), .. }) = victim
        {
            self.dcache.invalidate_directory(*slot);
        }
        error
    }

    pub(super) fn is_mounted_on(&self, found: &FoundName<'_>) -> bool {
        found.dentry.is_ok_and(|slot| {
            self.dcache.dentries.snapshot(slot).body.flags().contains(Flags::MOUNTED)
        })
    }
}
