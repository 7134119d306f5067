//! One component of a path.

use std::borrow::Cow;
use std::sync::Arc;

use super::{Mode, SYMLINKS_MAX, Stop, Walk, WalkFlags};
use crate::Errno;
use crate::cred::May;
use crate::dcache::Dcache;
use crate::dentry::{Flags, ParentKey, Snapshot};
use crate::name::Name;
use crate::slot::DentrySlot;
use crate::vfs::{Checked, DentryAndInode, InodeRef, Unattached};

impl<'v> Walk<'v, '_> {
    /// Walks one component. If it is a symbolic link that must be followed, returns the link's
    /// target; the walk is then at the directory at which the target starts.
    pub(super) fn step(
        &mut self,
        component: &[u8],
        follows: bool,
    ) -> Result<Option<Vec<u8>>, Stop> {
        self.may_search()?;
        match component {
            b"." => return Ok(None),
            b".." => return self.step_up().map(|()| None),
            _ => {}
        }
        let name = Name::new(component).map_err(|error| self.validated(error))?;
        let parent = (self.dentry, self.seen, self.hold.take());
        let hold = self.child(name, parent.2.as_ref())?;
        let flags = self.seen.body.flags();
        if flags.contains(Flags::SYMLINK) && follows {
            return self.read_link(hold, parent).map(Some);
        }
        self.hold = hold;
        self.record();
        if flags.contains(Flags::MOUNTED) {
            self.cross_mounts()?;
        }
        Ok(None)
    }

    #[inline]
    fn may_search(&mut self) -> Result<(), Stop> {
        let flags = self.seen.body.flags();
        if self.seen.body.is_negative() {
            return Err(self.validated(Errno::NOENT));
        }
        if !flags.contains(Flags::DIRECTORY) {
            return Err(self.validated(Errno::NOTDIR));
        }
        if flags.contains(Flags::SEARCHABLE) {
            return Ok(());
        }
        let inode = self.seen.body.inode();
        match self.vfs.permission_now(self.cred, inode, May::EXEC) {
            Checked::Yes => Ok(()),
            Checked::No(error) => Err(self.validated(error)),
            Checked::Unknown => {
                self.must_not_block()?;
                self.legitimize()?;
                let permission = || self.vfs.permission(self.cred, inode, May::EXEC);
                Ok(self.vfs.awaiting_removal(&[inode], permission)?)
            }
        }
    }

    fn child(
        &mut self,
        name: Name<'_>,
        parent: Option<&DentryAndInode<'v>>,
    ) -> Result<Option<DentryAndInode<'v>>, Stop> {
        let dcache = &self.vfs.dcache;
        let key = ParentKey::new(self.dentry, dcache.dentries.child_generation(self.dentry));
        let lookup_key = dcache.lookup_key(name);
        if let Some((slot, seen)) = dcache.find(key, &lookup_key) {
            if self.mode == Mode::Rcu {
                (self.dentry, self.seen) = (slot, seen);
                return Ok(None);
            }
            if seen.body.is_negative() {
                return Err(Stop::Fail(Errno::NOENT));
            }
            if let Some(hold) = self.vfs.hold(slot, seen) {
                (self.dentry, self.seen) = (slot, seen);
                return Ok(Some(hold));
            }
        }
        self.child_slow(name, parent)
    }

    #[cold]
    fn child_slow(
        &mut self,
        name: Name<'_>,
        parent: Option<&DentryAndInode<'v>>,
    ) -> Result<Option<DentryAndInode<'v>>, Stop> {
        self.must_not_block()?;
        let vfs = self.vfs;
        // The parent's dentry needs a reference during the call of the back end. If the caller
        // holds none, take one.
        let _hold = match parent {
            Some(_) => None,
            None => {
                self.legitimize()?;
                self.hold.take()
            }
        };
        self.validate()?;
        let inode = self.seen.body.inode();
        let dir = vfs.dir(inode).map_err(|error| self.validated(error))?;
        let lookup_key = vfs.dcache.lookup_key(name);
        let (in_lookup, found) = vfs.awaiting_removal(&[inode], || {
            let in_lookup =
                vfs.dcache.in_lookup.lock(vfs.dcache.in_lookup_key(dir.now.slot, &lookup_key));
            vfs.resolve(&dir, &lookup_key, &in_lookup).map(|found| (in_lookup, found))
        })?;
        // The back end has reported that the name is missing. This thread still holds the name's
        // in-lookup lock, so `ENOENT` is still true.
        let found = found.ok_or_else(|| self.validated(Errno::NOENT))?;
        let inode = found.inode_ref();
        let dentry = match found.into_dentry() {
            Ok(dentry) => dentry,
            Err(why) => {
                drop(in_lookup);
                return Err(self.unattached(&inode, why));
            }
        };
        let hold = DentryAndInode { dentry, inode };
        let slot = hold.dentry.slot();
        let seen = vfs.dcache.dentries.snapshot(slot);
        if !vfs.dcache.dentries.is_unchanged(slot, seen.seq) {
            return Err(Stop::Retry);
        }
        (self.dentry, self.seen) = (slot, seen);
        Ok(Some(hold))
    }

    /// Decides how a walk continues at an inode without a dentry. If another operation is changing
    /// the inode's name, waits for that operation, and the walk begins again. Otherwise the walk
    /// fails.
    fn unattached(&self, inode: &InodeRef<'_>, why: Unattached) -> Stop {
        match why {
            Unattached::Overtaken => {
                self.vfs.wait_for_name_of(inode.slot);
                Stop::Retry
            }
            Unattached::Loop => Stop::Fail(Errno::LOOP),
            Unattached::NoRoom => Stop::Fail(Errno::NOMEM),
        }
    }

    fn step_up(&mut self) -> Result<(), Stop> {
        loop {
            if self.mount.id == self.root.mount.id && self.dentry == self.root.dentry {
                if self.flags.contains(WalkFlags::BENEATH) {
                    return Err(self.validated(Errno::XDEV));
                }
                return Ok(());
            }
            if self.dentry != self.mount.root {
                break;
            }
            let Some((mount, point)) = self.mount.point.clone() else { return Ok(()) };
            if self.flags.contains(WalkFlags::NO_XDEV) {
                return Err(self.validated(Errno::XDEV));
            }
            let left = std::mem::replace(&mut self.mount, Cow::Owned(mount));
            // A dead mount does not keep its mount point, so the slot of `point` may hold another
            // dentry by now. Check that `left` is alive (invariant M.1 of `mount`).
            self.move_to(point, |_| !left.is_dead())?;
        }
        let (child, parent) = (self.dentry, self.seen.key.parent());
        self.validate()?;
        match self.mode {
            // The child's dentry, which contains its parent, is in the read set. So a validation
            // also confirms `parent`.
            Mode::Rcu => self.move_to(parent, |_| true)?,
            // The child may have moved since its snapshot, and its old parent's slot may have been
            // reused. So take a reference on `parent`, and check again that it is the child's
            // parent.
            Mode::Ref => {
                let _child = self.hold.take();
                self.move_to(parent, |dcache| dcache.parent(child).0 == parent)?;
            }
        }
        if self.seen.body.flags().contains(Flags::MOUNTED) {
            self.cross_mounts()?;
        }
        Ok(())
    }

    /// Moves the walk to the dentry in `slot`, which a mount, a child dentry, or the root of the
    /// walk keeps alive. A ref-walk takes a reference of its own, and then checks with `is_kept`
    /// that the dentry was still alive at that time.
    fn move_to(
        &mut self,
        slot: DentrySlot,
        is_kept: impl FnOnce(&Dcache) -> bool,
    ) -> Result<(), Stop> {
        let dcache = &self.vfs.dcache;
        let seen: Snapshot = loop {
            let seen = dcache.dentries.snapshot(slot);
            if dcache.dentries.is_unchanged(slot, seen.seq) {
                break seen;
            }
        };
        // A directory that has been removed has no inode to hold.
        let is_removed = seen.body.is_negative();
        let hold = match self.mode {
            Mode::Ref if !is_removed => Some(self.vfs.hold(slot, seen).ok_or(Stop::Retry)?),
            _ => None,
        };
        if !is_kept(dcache) {
            return Err(Stop::Retry);
        }
        if self.mode == Mode::Rcu {
            self.validate()?;
        } else if is_removed {
            return match dcache.dentries.is_unchanged(slot, seen.seq) {
                true => Err(Stop::Fail(Errno::NOENT)),
                false => Err(Stop::Retry),
            };
        }
        (self.dentry, self.seen, self.hold) = (slot, seen, hold);
        self.record();
        Ok(())
    }

    /// If a file system is mounted on the current dentry, moves the walk to the root of this mount.
    /// Repeats that while the root is itself a mount point.
    fn cross_mounts(&mut self) -> Result<(), Stop> {
        let vfs = self.vfs;
        let guard = corewalk_sync::rcu::read_lock();
        while let Some(mount) = vfs.mounts.on(&self.mount, self.dentry, &guard) {
            if self.flags.contains(WalkFlags::NO_XDEV) {
                return Err(self.validated(Errno::XDEV));
            }
            self.validate()?;
            self.mount = Cow::Owned(Arc::clone(mount));
            self.move_to(self.mount.root, |_| true)?;
        }
        Ok(())
    }

    /// Reads a symbolic link and returns its target. Moves the walk to the directory that contains
    /// the link, or to the root if the target is absolute.
    #[cold]
    fn read_link(
        &mut self,
        hold: Option<DentryAndInode<'v>>,
        parent: (DentrySlot, Snapshot, Option<DentryAndInode<'v>>),
    ) -> Result<Vec<u8>, Stop> {
        if self.flags.contains(WalkFlags::NO_SYMLINKS) || self.links >= SYMLINKS_MAX {
            return Err(self.validated(Errno::LOOP));
        }
        self.links += 1;
        self.must_not_block()?;
        let (slot, seen) = (self.dentry, self.seen);
        let link = match hold {
            Some(hold) => hold,
            None => self.vfs.hold(slot, seen).ok_or(Stop::Retry)?,
        };
        self.record();
        (self.dentry, self.seen, self.hold) = parent;
        if self.hold.is_none() {
            self.legitimize()?;
        }
        let target = self.vfs.readlink(&link.inode)?;
        if target.first() == Some(&b'/') {
            if self.flags.contains(WalkFlags::BENEATH) {
                return Err(Stop::Fail(Errno::XDEV));
            }
            if self.flags.contains(WalkFlags::NO_XDEV) && self.mount.id != self.root.mount.id {
                return Err(Stop::Fail(Errno::XDEV));
            }
            self.mount = Cow::Borrowed(&self.root.mount);
            self.move_to(self.root.dentry, |_| true)?;
        }
        match target.len() {
            0 => Err(Stop::Fail(Errno::NOENT)),
            _ => Ok(target),
        }
    }

    fn must_not_block(&self) -> Result<(), Stop> {
        if self.flags.contains(WalkFlags::CACHED) {
            return Err(self.validated(Errno::AGAIN));
        }
        Ok(())
    }
}
