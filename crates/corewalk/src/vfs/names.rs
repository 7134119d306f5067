//! Names: looking them up, making and removing them.

use crate::Errno;
use crate::attr::{Attr, FileKind, mode};
use crate::claim::Claim;
use crate::cred::{Caps, Cred, May};
use crate::dcache::Node;
use crate::dentry::{Flags, Glimpse, Key, Needle};
use crate::fs::{AclKind, Make};
use crate::name::Name;

use super::call::KnownPath;
use super::held::{DentryHold, Dir, Found, Place, Unattached};
use super::hidden::LockedName;
use super::{InodeRef, LOOKUP, Vfs};

/// The number of the character device that overlayfs takes for a name that is not there.
const WHITEOUT_DEV: u64 = 0;

/// What kind of file a removal expects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Removal {
    /// Anything but a directory (unlink(2)).
    Unlink,
    /// A directory (rmdir(2)).
    Rmdir,
}

/// What is done with the answer that there is no such name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Missing {
    /// It is cached as a negative dentry.
    Cached,
    /// It is not: the caller is about to give somebody that name.
    Dropped,
}

/// What the cache knows of a name.
pub(super) enum Cached<'v> {
    /// Nothing, or it is missed: that has to be asked for.
    Unknown,
    /// What it refers to, or that there is no such name.
    Known(Option<Found<'v>>),
}

impl Vfs {
    /// Returns the inode that `name` in `dir` refers to.
    ///
    /// # Errors
    /// `ENOENT` if there is no such name, or `dir` has been removed; `ENOTDIR`; `EACCES` without
    /// search permission; `ENFILE` if 2 to the 27th references on what is found are held; what the back
    /// end says.
    pub fn lookup(
        &self,
        cred: &Cred,
        dir: &InodeRef<'_>,
        name: Name<'_>,
    ) -> Result<InodeRef<'_>, Errno> {
        self.may_search(cred, dir.slot)?;
        let needle = self.dcache.needle(name);
        match self.lookup_cached(dir.slot, &needle) {
            Some(found) => found,
            None => self.lookup_slow(dir.slot, &needle),
        }
    }

    /// Checks search permission; a caller who may search every directory is not looked at further.
    #[inline]
    fn may_search(&self, cred: &Cred, dir: u32) -> Result<(), Errno> {
        if cred.has(Caps::DAC_READ_SEARCH) && self.security().is_none() {
            return Ok(());
        }
        self.settled(&[dir], || self.permission(cred, dir, May::EXEC)).map_err(|error| {
            // What else is wrong with what is no directory does not matter.
            if self.dcache.inodes.kind(dir) == FileKind::Directory { error } else { Errno::NOTDIR }
        })
    }

    /// Looks a name up as a FUSE server does: `parent` is the number of an inode in use, `name` what
    /// the client sent (it is checked only if it is not in the cache), and the inode found is given
    /// to somebody outside, who returns it by [`Vfs::forget`]. If the name is cached the only thing
    /// written is that count: the parent needs no reference.
    ///
    /// # Errors
    /// As [`Vfs::lookup`] and [`Name::new`]; `ESTALE` if `parent` is not in use.
    pub fn lookup_number(&self, cred: &Cred, parent: u64, name: &[u8]) -> Result<u64, Errno> {
        if cred.has(Caps::DAC_READ_SEARCH)
            && self.security().is_none()
            && let Some(ino) = self.dcache.count_by_number(parent, name, LOOKUP)
        {
            return Ok(ino);
        }
        self.lookup_number_slow(cred, parent, name)
    }

    #[cold]
    #[inline(never)]
    fn lookup_number_slow(&self, cred: &Cred, parent: u64, name: &[u8]) -> Result<u64, Errno> {
        let dir = self.inode(parent)?;
        Ok(self.lookup(cred, &dir, Name::new(name)?)?.into_lookups())
    }

    /// Returns a path of the inode with this number from the root of its file system, as it was at
    /// one instant. Nothing is written, if no name on the way is changed meanwhile.
    ///
    /// # Errors
    /// `ESTALE` if no inode with this number is in use; `ENOENT` if it has no name left.
    pub fn path_of_number(&self, ino: u64) -> Result<Vec<u8>, Errno> {
        match crate::dpath::path_of_number(&self.dcache, ino) {
            Some(path) => Ok(path),
            None => self.inode(ino)?.path(),
        }
    }

    /// Returns what the cache says of a name. Nothing is written but the reference that is taken.
    fn lookup_cached(&self, dir: u32, needle: &Needle<'_>) -> Option<Result<InodeRef<'_>, Errno>> {
        let now = self.dcache.directory(self.dcache.inodes.alias(dir))?;
        if now.inode != dir {
            return None;
        }
        let (slot, seen) = self.dcache.find(now.key, needle)?;
        // The slot of a directory that was removed meanwhile may serve another by now.
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
        Some(InodeRef { vfs: self, slot: inode }.unless_crowded())
    }

    #[cold]
    fn lookup_slow(&self, dir: u32, needle: &Needle<'_>) -> Result<InodeRef<'_>, Errno> {
        let found = self.settled(&[dir], || {
            let dir = self.dir(dir)?;
            let claim = self.dcache.claims.claim(self.dcache.claim_key(dir.now.slot, needle));
            Ok(self.resolve(&dir, needle, &claim)?.map(Found::into_inode))
        })?;
        found.ok_or(Errno::NOENT)?.unless_crowded()
    }

    /// Returns the counted dentry of a directory inode.
    ///
    /// # Errors
    /// `ENOENT` if it has been removed, `ENOTDIR` if it is none.
    pub(crate) fn dir(&self, inode: u32) -> Result<Dir<'_>, Errno> {
        if !self.dcache.inodes.is_directory(inode) {
            return Err(Errno::NOTDIR);
        }
        let now = self.dcache.get_directory(inode).ok_or(Errno::NOENT)?;
        Ok(Dir { vfs: self, now })
    }

    /// Returns the counted dentry of a directory that the caller may search.
    ///
    /// # Errors
    /// As [`Vfs::dir`]; `EACCES` without search permission.
    pub(super) fn searched(&self, cred: &Cred, dir: &InodeRef<'_>) -> Result<Dir<'_>, Errno> {
        let found = self.dir(dir.slot)?;
        self.permission(cred, dir.slot, May::EXEC)?;
        Ok(found)
    }

    /// Returns what `needle` refers to, from the cache or the back end; the answer is cached. The
    /// caller holds the claim of the name.
    pub(crate) fn resolve(
        &self,
        dir: &Dir<'_>,
        needle: &Needle<'_>,
        claim: &Claim<'_>,
    ) -> Result<Option<Found<'_>>, Errno> {
        self.resolve_or(dir, needle, claim, Missing::Cached)
    }

    /// As [`Vfs::resolve`]; `missing` is what to do with the answer that there is no such name.
    pub(super) fn resolve_or(
        &self,
        dir: &Dir<'_>,
        needle: &Needle<'_>,
        claim: &Claim<'_>,
        missing: Missing,
    ) -> Result<Option<Found<'_>>, Errno> {
        // One that is missed is asked for, and found when the answer is entered.
        match self.cached(dir, needle) {
            Cached::Known(found) => Ok(found),
            Cached::Unknown => self.fill(dir, needle, claim, missing),
        }
    }

    /// Returns what the cache knows of a name that the caller has claimed.
    pub(super) fn cached(&self, dir: &Dir<'_>, needle: &Needle<'_>) -> Cached<'_> {
        while let Some((slot, seen)) = self.dcache.find(dir.key(), needle) {
            if seen.body.is_negative() {
                self.dcache.dentries.cold(slot).touch();
                return Cached::Known(None);
            }
            // A dentry that was evicted or changed in between is looked for again.
            if self.dcache.get(slot, seen.seq) {
                let inode = seen.body.inode();
                return Cached::Known(Some(Found { vfs: self, inode, dentry: Ok(slot) }));
            }
        }
        Cached::Unknown
    }

    /// Takes references on a dentry that was seen, and on its inode. None if it has changed since, or
    /// had no inode.
    pub(crate) fn hold(&self, slot: u32, seen: Glimpse) -> Option<Place<'_>> {
        let inode = seen.body.inode();
        if inode == 0 || !self.dcache.get(slot, seen.seq) {
            return None;
        }
        let dentry = DentryHold { vfs: self, slot };
        if !self.dcache.get_inode(slot, seen.seq, inode) {
            return None;
        }
        self.dcache.inodes.touch(inode);
        Some(Place { dentry, inode: InodeRef { vfs: self, slot: inode } })
    }

    /// Asks the back end for a name and caches the answer, unless what it says may be out of date
    /// by then (traps T25, P12).
    fn fill(
        &self,
        dir: &Dir<'_>,
        needle: &Needle<'_>,
        claim: &Claim<'_>,
        missing: Missing,
    ) -> Result<Option<Found<'_>>, Errno> {
        let key = dir.key();
        let changes = self.dcache.inodes.changes();
        self.dcache.counters.fills.add(1);
        let answer = self.with_node(dir.now.inode, |fs, node| fs.lookup(node, needle.name));
        if missing == Missing::Dropped && matches!(answer, Err(Errno::NOENT)) {
            return Ok(None);
        }
        let is_current = dir.key() == key && !claim.is_doomed();
        if !is_current {
            self.dcache.counters.refused_fills.add(1);
        }
        match answer {
            Ok(attr) => {
                let inode = self.enter(dir.now.inode, &attr, changes, None)?;
                let key = if is_current { key } else { Key::stale(key.parent()) };
                let dentry = self.attach(dir, key, needle, &inode, claim);
                Ok(Some(Found::new(inode, dentry)))
            }
            Err(Errno::NOENT) => {
                if is_current
                    && self.dcache.has_room_for_negative()
                    && let Ok(slot) = self.dcache.publish(key, needle, None, claim)
                {
                    self.dcache.put(slot);
                }
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Returns the inode that `attr` describes, in the file system of `near`, counted; `beside` is
    /// the negative dentry that its name has so far.
    pub(super) fn enter(
        &self,
        near: u32,
        attr: &Attr,
        changes: i64,
        beside: Option<&DentryHold<'_>>,
    ) -> Result<InodeRef<'_>, Errno> {
        let (dentries, inodes) = (&self.dcache.dentries, &self.dcache.inodes);
        let place = (inodes.superblock(near), beside.map_or(0, |dentry| dentry.slot));
        let enter = || inodes.get_or_insert(dentries, place, attr, attr.has_acl, changes);
        let entered = enter().or_else(|| {
            self.dcache.prune();
            enter()
        });
        let Some(entered) = entered else {
            self.fs(near).forget(attr.ino);
            return Err(Errno::NOMEM);
        };
        if let Some(displaced) = entered.displaced {
            // A directory of that number must not be taken for the new one (`count_by_number`).
            if let Some(old) = self.dcache.get_directory(displaced) {
                self.dcache.invalidate_directory(old.slot);
                self.dcache.put(old.slot);
            }
            self.dcache.put_inode(displaced, 1);
        }
        Ok(InodeRef { vfs: self, slot: entered.slot })
    }

    /// Gives an inode its dentry under `key`, which is stale if the answer is not to be found again,
    /// and returns it.
    fn attach(
        &self,
        dir: &Dir<'_>,
        key: Key,
        needle: &Needle<'_>,
        inode: &InodeRef<'_>,
        claim: &Claim<'_>,
    ) -> Result<DentryHold<'_>, Unattached> {
        // Whatever else the name has is wrong then.
        let attached = self.attach_as(dir, key, needle, inode, claim);
        attached.inspect_err(|_| self.make_unknown(dir, needle))
    }

    fn attach_as(
        &self,
        dir: &Dir<'_>,
        key: Key,
        needle: &Needle<'_>,
        inode: &InodeRef<'_>,
        claim: &Claim<'_>,
    ) -> Result<DentryHold<'_>, Unattached> {
        let node = Node { inode: inode.slot, kind: inode.kind() };
        if node.kind == FileKind::Directory
            && let Some(alias) = self.dcache.get_directory(inode.slot)
        {
            let hold = DentryHold { vfs: self, slot: alias.slot };
            // The old parent is let go of here, with no lock held.
            let _old_parent = self.splice(dir, key, needle, &hold, claim)?;
            return Ok(hold);
        }
        // The directory may be invalidated in between: the dentry is then entered under a stale key.
        let slot = self.dcache.publish(key, needle, Some(node), claim).or_else(|_| {
            self.make_unknown(dir, needle);
            self.dcache.publish(Key::stale(key.parent()), needle, Some(node), claim)
        });
        let slot = slot.map_err(|_| Unattached::NoRoom)?;
        let inodes = &self.dcache.inodes;
        if node.kind == FileKind::Directory
            && inodes.has_older_alias(inode.slot, slot, &self.dcache.dentries)
        {
            // Somebody has entered it under another name since there was none, and was first.
            self.dcache.remove(slot);
            return Err(Unattached::Overtaken);
        }
        Ok(DentryHold { vfs: self, slot })
    }

    /// A directory has one dentry. If it is shown under a new name, or again under one that was
    /// invalidated, that dentry moves there, with all that hangs on it. If somebody works on the old
    /// name the dentry stays, and the answer is not cached; no error comes of it (trap T28). Returns
    /// the parent that the caller has to let go of.
    fn splice(
        &self,
        dir: &Dir<'_>,
        key: Key,
        needle: &Needle<'_>,
        hold: &DentryHold<'_>,
        claim: &Claim<'_>,
    ) -> Result<DentryHold<'_>, Unattached> {
        let (old_parent, old_name) = self.dcache.name_of(hold.slot);
        // Only a root has no name, and it is nobody's child.
        let old_name = Name::new(old_name.as_bytes()).map_err(|_| Unattached::Loop)?;
        let old_needle = self.dcache.needle(old_name);
        let old_claim = self.dcache.claim_key(old_parent, &old_needle);
        let _old_claim = if old_claim == self.dcache.claim_key(dir.now.slot, needle) {
            None
        } else {
            Some(self.dcache.claims.try_claim(old_claim).ok_or(Unattached::Overtaken)?)
        };
        let (parent_now, name_now) = self.dcache.name_of(hold.slot);
        if parent_now != old_parent || name_now.as_bytes() != old_name.as_bytes() {
            // It was moved before the claim was taken, which is that of another name now (T21).
            return Err(Unattached::Overtaken);
        }
        let _topology = self.dcache.topology.write();
        if self.dcache.is_subdir(dir.now.slot, hold.slot) {
            return Err(Unattached::Loop);
        }
        self.move_dentry((hold.slot, &old_needle), key, needle, None, claim)
            .map_err(|_| Unattached::NoRoom)
    }

    /// Returns what an operation with `inodes` came to. If it failed because one of them is gone, and
    /// that is because it is just being removed, the cache has yet to be told: nobody must hear of it
    /// before that says so too. Whatever asks a back end in between runs in here as a whole: its look
    /// at permissions may hear of a removal as well as the call itself.
    ///
    /// `operation` lets go of its claims before it returns, and the caller holds none.
    #[inline]
    pub(crate) fn settled<T>(
        &self,
        inodes: &[u32],
        operation: impl FnOnce() -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        operation().inspect_err(|error| {
            if matches!(*error, Errno::NOENT | Errno::STALE) {
                inodes.iter().for_each(|&inode| self.wait_for_name_of(inode));
            }
        })
    }

    /// Waits until nobody works on the name that an inode is cached under; for a directory, that is
    /// what keeps its dentry from following it to another name (trap T28). The caller holds no claim.
    pub(crate) fn wait_for_name_of(&self, inode: u32) {
        let Some(slot) = self.dcache.get_alias(inode) else { return };
        let hold = DentryHold { vfs: self, slot };
        let (parent, name) = self.dcache.name_of(hold.slot);
        if let Ok(name) = Name::new(name.as_bytes()) {
            let key = self.dcache.claim_key(parent, &self.dcache.needle(name));
            drop(self.dcache.claims.claim(key));
        }
    }

    /// Makes a file of any kind and returns it with its attributes. Its permission bits are those of
    /// `what.mode` without `what.umask`; a default ACL of the directory stands in for the umask. A
    /// directory has set-group-ID from the one that it is in, and never set-user-ID, as mkdir(2) has it.
    ///
    /// # Errors
    /// In this order: `ENOTDIR`; `ENOENT` if `dir` has been removed; `EACCES` without search
    /// permission; `EEXIST`; `EACCES` without write permission; `EPERM` without `CAP_MKNOD` for
    /// a device node, but not for a whiteout, the character device 0; what the back end says.
    pub fn make(
        &self,
        cred: &Cred,
        dir: &InodeRef<'_>,
        name: Name<'_>,
        what: Make<'_>,
    ) -> Result<(InodeRef<'_>, Attr), Errno> {
        self.settled(&[dir.slot], || {
            let (parent, dir) = (dir.slot, self.searched(cred, dir)?);
            let needle = self.dcache.needle(name);
            let claim = self.dcache.claims.claim(self.dcache.claim_key(dir.now.slot, &needle));
            let negative = self.free_name(&dir, &needle)?;
            let what = self
                .permission(cred, parent, May::WRITE | May::EXEC)
                .and_then(|()| self.inherit(cred, parent, what))
                .or_else(|error| self.refuse(&dir, &needle, &claim, error))?;
            let (key, changes) = (dir.key(), self.dcache.inodes.changes());
            let made = self.with_node(dir.now.inode, |fs, node| fs.make(node, name, &what));
            let attr = made.or_else(|error| self.refuse(&dir, &needle, &claim, error))?;
            let entered = self.enter(dir.now.inode, &attr, changes, negative.as_ref());
            if attr.kind() == FileKind::Directory {
                // A directory lies among directories instead: nobody needs it now.
                drop(negative);
            }
            let inode = entered.inspect_err(|_| {
                // It exists, so what is cached of the name is wrong.
                self.make_unknown(&dir, &needle);
            })?;
            self.publish_change(&dir, key, &needle, &inode, &claim);
            Ok((inode, attr))
        })
    }

    /// Makes a regular file without a name, which `link` can give it one later (`O_TMPFILE`).
    ///
    /// # Errors
    /// As [`Vfs::make`]; `EOPNOTSUPP` if the back end has no such files.
    pub fn tmpfile(
        &self,
        cred: &Cred,
        dir: &InodeRef<'_>,
        what: Make<'_>,
    ) -> Result<(InodeRef<'_>, Attr), Errno> {
        if dir.kind() != FileKind::Directory {
            return Err(Errno::NOTDIR);
        }
        self.settled(&[dir.slot], || {
            self.permission(cred, dir.slot, May::WRITE | May::EXEC)?;
            let what = self.inherit(cred, dir.slot, what)?;
            let changes = self.dcache.inodes.changes();
            let attr = self.with_node(dir.slot, |fs, node| fs.tmpfile(node, &what))?;
            Ok((self.enter(dir.slot, &attr, changes, None)?, attr))
        })
    }

    /// Gives `inode` another name and returns its attributes.
    ///
    /// # Errors
    /// In this order: `ENOTDIR`, `ENOENT`, `EACCES` for `dir` as [`Vfs::make`]; `EEXIST`; `EXDEV`
    /// across file systems; `EACCES` without write permission; `EPERM` for a directory; `EMLINK` and
    /// whatever else the back end says.
    pub fn link(
        &self,
        cred: &Cred,
        inode: &InodeRef<'_>,
        dir: &InodeRef<'_>,
        name: Name<'_>,
    ) -> Result<Attr, Errno> {
        self.settled(&[dir.slot, inode.slot], || {
            let (parent, dir) = (dir.slot, self.searched(cred, dir)?);
            let needle = self.dcache.needle(name);
            let claim = self.dcache.claims.claim(self.dcache.claim_key(dir.now.slot, &needle));
            self.free_name(&dir, &needle)?;
            let inodes = &self.dcache.inodes;
            let allowed = if inodes.superblock(inode.slot) != inodes.superblock(parent) {
                Err(Errno::XDEV)
            } else {
                self.permission(cred, parent, May::WRITE | May::EXEC).and_then(|()| {
                    match inode.kind() {
                        FileKind::Directory => Err(Errno::PERM),
                        _ => Ok(()),
                    }
                })
            };
            allowed.or_else(|error| self.refuse(&dir, &needle, &claim, error))?;
            let key = dir.key();
            let linked = {
                let call = self.call(dir.now.inode);
                let (file, parent) = (call.node(inode.slot), call.node(dir.now.inode));
                let linked = call.fs().link(file.node(), parent.node(), name);
                linked.map(|attr| self.without_hidden_link(inode.slot, attr))
            };
            let attr = linked.or_else(|error| self.refuse(&dir, &needle, &claim, error))?;
            self.publish_change(&dir, key, &needle, inode, &claim);
            Ok(attr)
        })
    }

    /// Removes a name.
    ///
    /// # Errors
    /// In this order: `ENOTDIR`, `ENOENT`, `EACCES` for `dir` as [`Vfs::make`]; `ENOENT`; `EACCES`
    /// without write permission; `EPERM` in a sticky directory; `EISDIR` (unlink of a directory),
    /// `ENOTDIR` (rmdir of another file); `EBUSY` for a mount point; `ENOTEMPTY` and whatever else the
    /// back end says.
    pub fn remove(
        &self,
        cred: &Cred,
        dir: &InodeRef<'_>,
        name: Name<'_>,
        removal: Removal,
    ) -> Result<(), Errno> {
        self.settled(&[dir.slot], || {
            let dir = self.searched(cred, dir)?;
            let needle = self.dcache.needle(name);
            let claim = self.dcache.claims.claim(self.dcache.claim_key(dir.now.slot, &needle));
            let found = self.resolve(&dir, &needle, &claim)?.ok_or(Errno::NOENT)?;
            self.may_delete(cred, dir.now.inode, &found)?;
            match (removal, found.is_directory()) {
                (Removal::Unlink, true) => return Err(Errno::ISDIR),
                (Removal::Rmdir, false) => return Err(Errno::NOTDIR),
                _ if self.is_mounted_on(&found) => return Err(Errno::BUSY),
                _ => {}
            }
            let lock = self.lock_move(&[dir.now.inode], [found.inode, 0])?;
            let path = KnownPath::above(lock.as_ref(), 0);
            let parent = self.known_node(dir.now.inode, &path);
            let at = LockedName { dir: parent, path: &path, name };
            let removed = self.remove_in_backend(at, &found);
            self.wait_for_crossings(found.directory());
            removed.map_err(|error| self.doubted(Some(&found), error))?;
            if let Ok(dentry) = found.into_dentry() {
                self.dcache.remove(dentry.into_slot());
            }
            drop(lock);
            Ok(())
        })
    }

    /// Makes what the back end is asked about `name` now, and what is cached of it, unknown: to be
    /// called when the name has changed behind the back of this namespace. Waits for nobody.
    ///
    /// # Errors
    /// `ENOTDIR`; `ENOENT` if `dir` has been removed.
    pub fn invalidate(&self, dir: &InodeRef<'_>, name: Name<'_>) -> Result<(), Errno> {
        let dir = self.dir(dir.slot)?;
        self.dcache.invalidate_name(dir.now.slot, &self.dcache.needle(name));
        Ok(())
    }

    /// Makes what is known of the permissions of `inode` unknown: to be called when they have changed
    /// behind the back of this namespace.
    pub fn invalidate_attributes(&self, inode: &InodeRef<'_>) {
        self.dcache.inodes.invalidate(inode.slot);
        self.dcache.sync_searchable(inode.slot);
    }

    /// Makes every name in `dir` unknown, however many there are, in constant time.
    ///
    /// # Errors
    /// As [`Vfs::invalidate`].
    pub fn invalidate_dir(&self, dir: &InodeRef<'_>) -> Result<(), Errno> {
        let dir = self.dir(dir.slot)?;
        self.dcache.invalidate_directory(dir.now.slot);
        Ok(())
    }

    /// Returns the negative dentry of a name, if it has one, or `EEXIST` if the name is known to be
    /// taken. The caller holds its claim.
    fn free_name(
        &self,
        dir: &Dir<'_>,
        needle: &Needle<'_>,
    ) -> Result<Option<DentryHold<'_>>, Errno> {
        // One that is missed is found when the back end has refused, or when the answer is entered.
        match self.dcache.find(dir.key(), needle) {
            Some((_, seen)) if !seen.body.is_negative() => Err(Errno::EXIST),
            Some((slot, seen)) if self.dcache.get(slot, seen.seq) => {
                Ok(Some(DentryHold { vfs: self, slot }))
            }
            _ => Ok(None),
        }
    }

    /// Returns the error that says why a name cannot be given: `EEXIST` if it is taken, which Linux
    /// finds out first, else `error`. The caller holds the claim of the name.
    #[cold]
    fn refuse<T>(
        &self,
        dir: &Dir<'_>,
        needle: &Needle<'_>,
        claim: &Claim<'_>,
        error: Errno,
    ) -> Result<T, Errno> {
        match error {
            Errno::EXIST => Err(error),
            _ => self.resolve(dir, needle, claim)?.map_or(Err(error), |_| Err(Errno::EXIST)),
        }
    }

    /// Gives what has just been made its dentry; one that cannot be found if the name was invalidated
    /// meanwhile.
    fn publish_change(
        &self,
        dir: &Dir<'_>,
        key: Key,
        needle: &Needle<'_>,
        inode: &InodeRef<'_>,
        claim: &Claim<'_>,
    ) {
        let key = if dir.key() == key { key } else { Key::stale(key.parent()) };
        drop(self.attach(dir, key, needle, inode, claim));
    }

    /// Checks that a caller who may search `dir` may take this name away from it.
    pub(super) fn may_delete(
        &self,
        cred: &Cred,
        dir: u32,
        victim: &Found<'_>,
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

    /// Returns `error`, which a back end gave where a directory was to go. If it says that there is
    /// something in it, that may have been made just now, and the cache have yet to be told: whoever
    /// hears of it and looks must ask the back end (and so wait for the claim of the name). To know
    /// which names are being made would take a list that every maker writes to; so all are made unknown.
    pub(super) fn doubted(&self, victim: Option<&Found<'_>>, error: Errno) -> Errno {
        if matches!(error, Errno::NOTEMPTY | Errno::EXIST)
            && let Some(Found { dentry: Ok(slot), .. }) = victim
        {
            self.dcache.invalidate_directory(*slot);
        }
        error
    }

    /// Returns true if something is mounted on what was found.
    pub(super) fn is_mounted_on(&self, found: &Found<'_>) -> bool {
        found.dentry.is_ok_and(|slot| {
            self.dcache.dentries.glimpse(slot).body.flags().contains(Flags::MOUNTED)
        })
    }

    /// Makes what is cached under a name unknown. The caller holds its claim.
    pub(super) fn make_unknown(&self, dir: &Dir<'_>, needle: &Needle<'_>) {
        self.dcache.make_name_stale(dir.key(), needle);
    }

    /// Gives a new file what it inherits from its directory: group and set-group-ID bit, ACLs.
    fn inherit<'a>(&self, cred: &Cred, dir: u32, what: Make<'a>) -> Result<Make<'a>, Errno> {
        let mut what = what;
        let kind = FileKind::from_mode(what.mode).ok_or(Errno::INVAL)?;
        // A whiteout gives access to nothing.
        let is_device = match kind {
            FileKind::CharDevice => what.rdev != WHITEOUT_DEV,
            kind => kind == FileKind::BlockDevice,
        };
        if is_device && !cred.has(Caps::MKNOD) {
            return Err(Errno::PERM);
        }
        let perm = self.perm(dir)?;
        if kind == FileKind::Directory {
            what.mode &= mode::S_IFMT | mode::S_ISVTX | 0o777;
        }
        if perm.mode & mode::S_ISGID != 0 {
            what.gid = perm.gid;
            let marked = mode::S_ISGID | 0o010;
            if kind == FileKind::Directory {
                what.mode |= mode::S_ISGID;
            } else if what.mode & marked == marked
                && !cred.is_in_group(perm.gid)
                && !cred.has(Caps::FSETID)
            {
                what.mode &= !mode::S_ISGID;
            }
        }
        if kind == FileKind::Symlink {
            what.mode = mode::S_IFLNK | 0o777;
            return Ok(what);
        }
        let default = self.with_node(dir, |fs, node| fs.get_acl(node, AclKind::Default))?;
        if let Some(default) = default {
            let (bits, access) = default.inherit(what.mode & 0o777);
            what.mode = (what.mode & !0o777) | bits;
            what.access_acl = access;
            if kind == FileKind::Directory {
                what.default_acl = Some(default);
            }
        } else {
            what.mode &= !(what.umask & 0o777);
        }
        Ok(what)
    }
}
