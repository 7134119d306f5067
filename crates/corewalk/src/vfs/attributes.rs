//! Attributes and permissions.
//!
//! A permission check reads the inode's permission record: mode, owner, group, and whether it has
//! an ACL. The check asks the back end only for an unknown record or an ACL. Changes of attributes
//! follow chmod(2), chown(2), utimensat(2), truncate(2) and acl(5).
//!
//! # Changes
//! A change reads the permissions, decides, and then calls the back end. Of two overlapping
//! changes, one could be lost, for example a chmod between a write's check of the set-user-ID bit
//! and its removal. So a change of an inode first takes its attribute lock, and so does a write
//! that must clear set-user-ID or set-group-ID.
//!
//! The attribute lock is a lock by key (`key_lock`), which a panic releases. Linux holds the
//! inode's lock (`i_rwsem`) in these cases, and during every write.
//!
//! # Invariants
//! - P.1: a thread that changes the attributes of an inode holds the attribute lock from its check
//!   of the old attributes to its change. Readers do not take this lock.
//! - P.2: a permission check uses a mode and an ACL that the inode had at the same time. The check
//!   reads both again if a change came in between. After a few repetitions it takes the attribute
//!   lock.
//!
//! # Locks
//! An attribute lock is taken after in-lookup locks and before every other lock. No thread holds
//! two attribute locks.
//!
//! Source: chmod(2), write(2), acl(5); Linux `notify_change`, `file_remove_privs`, `inode_lock`.

use std::borrow::Borrow;

use super::{InodeRef, Vfs};
use crate::Errno;
use crate::acl::{Acl, XATTR_ACCESS, XATTR_DEFAULT};
use crate::attr::{Attr, FileKind, SetAttr, SetTime, mode};
use crate::cred::{Caps, Cred, May};
use crate::fs::{AclKind, XattrMode};
use crate::inode::Perm;
use crate::key_lock::KeyGuard;
use crate::slot::InodeSlot;

/// The factor that turns a slot number into the key of an attribute lock. Two keys that differ only
/// in their two low bits share a lock. So slot numbers themselves would be bad keys. The factor is
/// 2^64 divided by the golden ratio.
const SLOT_SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;
const NANOS: u32 = 1_000_000_000;
/// The number of attempts of a permission check before it takes the attribute lock. An attempt
/// reads the mode and then the ACL of an inode. It fails if they may have changed in between.
const ACL_TRIES: u32 = 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Checked {
    Yes,
    No(Errno),
    /// The check needs the back end, which may block.
    Unknown,
}

impl Vfs {
    /// Checks that `cred` has the permissions `what` for `inode`, as access(2) does.
    ///
    /// # Errors
    /// `EACCES` if `cred` lacks one of the permissions; the errors of the back end.
    ///
    /// # Examples
    /// ```
    /// # use std::sync::Arc;
    /// # use corewalk::tmpfs::{Tmpfs, TmpfsOptions};
    /// # use corewalk::{Cred, Errno, Make, May, Name, Vfs, VfsOptions};
    /// # let fs = Arc::new(Tmpfs::new(TmpfsOptions::default()));
    /// # let vfs = Vfs::new(fs, VfsOptions::default())?;
    /// let new = Make::new(0o600, 1000, 1000);
    /// let (file, _) = vfs.make(&Cred::root(), &vfs.root(), Name::new(b"f")?, new)?;
    /// assert_eq!(vfs.access(&Cred::user(1000, 1000, &[]), &file, May::READ), Ok(()));
    /// assert_eq!(vfs.access(&Cred::user(1001, 1000, &[]), &file, May::READ), Err(Errno::ACCESS));
    /// # Ok::<(), corewalk::Errno>(())
    /// ```
    pub fn access(&self, cred: &Cred, inode: &InodeRef<'_>, what: May) -> Result<(), Errno> {
        self.awaiting_removal(&[inode.slot], || self.permission(cred, inode.slot, what))
    }

    /// Returns the attributes of `inode`.
    ///
    /// # Errors
    /// The errors of the back end.
    ///
    /// # Examples
    /// ```
    /// # use std::sync::Arc;
    /// # use corewalk::tmpfs::{Tmpfs, TmpfsOptions};
    /// # use corewalk::{Cred, Make, Name, Vfs, VfsOptions};
    /// # let fs = Arc::new(Tmpfs::new(TmpfsOptions::default()));
    /// # let vfs = Vfs::new(fs, VfsOptions::default())?;
    /// # let (cred, root, name) = (Cred::root(), vfs.root(), Name::new(b"f")?);
    /// # let (file, _) = vfs.make(&cred, &root, name, Make::new(0o100_644, 1000, 1000))?;
    /// let attr = vfs.getattr(&file)?;
    /// assert_eq!((attr.ino, attr.uid, attr.size), (file.ino(), 1000, 0));
    /// # Ok::<(), corewalk::Errno>(())
    /// ```
    pub fn getattr(&self, inode: &InodeRef<'_>) -> Result<Attr, Errno> {
        self.getattr_through(inode, 0)
    }

    /// Returns attributes, as [`Vfs::getattr`] does, through the open file `handle`.
    ///
    /// # Errors
    /// The errors of [`Vfs::getattr`].
    pub fn getattr_through(&self, inode: &InodeRef<'_>, handle: u64) -> Result<Attr, Errno> {
        let inodes = &self.dcache.inodes;
        let ticket = inodes.ticket(inode.slot);
        // The back end's link count may include the hidden name of an unlinked open file. Subtract
        // it under the path lock, because afterwards another thread may remove the name.
        let attr = self.ask(inode, |fs, node| {
            Ok(self.reported(inode.slot, fs.getattr(node.with_handle(handle))?))
        })?;
        // A client must not get attributes that are newer than the cached mode and owner. So
        // invalidate these if they differ. Ignore a difference in `has_acl` alone: a back end may
        // set it without checking for an ACL.
        let perm = Perm::of(&attr, attr.has_acl);
        match inodes.perm(inode.slot) {
            Some(known) if Perm { has_acl: known.has_acl, ..perm } == known => {}
            Some(_) => self.invalidate_attributes(inode),
            None => {
                inodes.install(inode.slot, ticket, perm);
                self.dcache.sync_searchable(inode.slot);
            }
        }
        Ok(Attr { generation: inode.generation(), ..attr })
    }

    /// Returns the cached mode of an inode, at least as new as the attributes that clients have
    /// got. Asks the back end only if the mode is unknown.
    ///
    /// # Errors
    /// The errors of the back end.
    pub fn mode(&self, inode: &InodeRef<'_>) -> Result<u32, Errno> {
        Ok(self.awaiting_removal(&[inode.slot], || self.perm(inode.slot))?.mode)
    }

    /// Changes attributes and returns the new ones.
    ///
    /// # Errors
    /// `EINVAL` for an invalid time; `EOPNOTSUPP` if the mode of a symbolic link is changed;
    /// `EPERM` and `EACCES` as chmod(2), chown(2), utimensat(2) and truncate(2) say; `EISDIR` or
    /// `EINVAL` if the size of anything but a regular file is changed; the errors of the back end.
    ///
    /// # Examples
    /// ```
    /// # use std::sync::Arc;
    /// # use corewalk::tmpfs::{Tmpfs, TmpfsOptions};
    /// # use corewalk::{Cred, Errno, Make, Name, SetAttr, Vfs, VfsOptions};
    /// # let fs = Arc::new(Tmpfs::new(TmpfsOptions::default()));
    /// # let vfs = Vfs::new(fs, VfsOptions::default())?;
    /// let new = Make::new(0o644, 1000, 1000);
    /// let (file, _) = vfs.make(&Cred::root(), &vfs.root(), Name::new(b"f")?, new)?;
    /// let chmod = SetAttr::default().with_mode(0o600);
    /// assert_eq!(vfs.setattr(&Cred::user(1000, 1000, &[]), &file, &chmod)?.mode, 0o100_600);
    /// assert_eq!(vfs.getattr(&file)?.mode, 0o100_600);
    /// assert_eq!(vfs.setattr(&Cred::user(7, 7, &[]), &file, &chmod), Err(Errno::PERM));
    /// # Ok::<(), corewalk::Errno>(())
    /// ```
    pub fn setattr(&self, cred: &Cred, inode: &InodeRef<'_>, set: &SetAttr) -> Result<Attr, Errno> {
        self.setattr_through(cred, inode, 0, set)
    }

    /// Changes attributes, as [`Vfs::setattr`] does, through the open file `handle` (ftruncate(2)).
    ///
    /// # Errors
    /// The errors of [`Vfs::setattr`].
    pub fn setattr_through(
        &self,
        cred: &Cred,
        inode: &InodeRef<'_>,
        handle: u64,
        set: &SetAttr,
    ) -> Result<Attr, Errno> {
        self.awaiting_removal(&[inode.slot], || {
            let attr_lock = self.lock_attributes(inode.slot);
            self.setattr_locked(cred, inode, handle, set, &attr_lock)
        })
    }

    /// Makes a chown(2) with neither an owner nor a group. Like every chown, it clears set-user-ID
    /// and set-group-ID of anything but a directory.
    ///
    /// # Errors
    /// `EPERM` if it clears a bit, and `cred` is neither the owner nor has `CAP_FOWNER`; the errors
    /// of the back end.
    pub fn chown_without_owner(&self, cred: &Cred, inode: &InodeRef<'_>) -> Result<Attr, Errno> {
        self.awaiting_removal(&[inode.slot], || {
            let attr_lock = self.lock_attributes(inode.slot);
            let perm = self.perm(inode.slot)?;
            let mode = match inode.kind() {
                FileKind::Directory => None,
                _ => left_by_chown(cred, &perm, perm.gid)?,
            };
            let set = SetAttr { mode, ..SetAttr::default() };
            self.setattr_locked(&Cred::root(), inode, 0, &set, &attr_lock)
        })
    }

    /// Changes the size of a file and returns its attributes. `cred` decides whether the caller may
    /// do that. If the file has set-user-ID or set-group-ID, calls `load_cred` for the caller's
    /// groups and capabilities. They decide whether the file keeps these bits. Meant for a server
    /// for which it is expensive to look up groups and capabilities.
    ///
    /// # Errors
    /// The errors of [`Vfs::setattr`].
    pub fn truncate_with_lazy_cred(
        &self,
        cred: &Cred,
        inode: &InodeRef<'_>,
        handle: u64,
        size: u64,
        load_cred: impl FnOnce() -> Cred,
    ) -> Result<Attr, Errno> {
        self.awaiting_removal(&[inode.slot], || {
            let attr_lock = self.lock_attributes(inode.slot);
            let mut cred = cred.clone();
            if self.perm(inode.slot)?.mode & (mode::S_ISUID | mode::S_ISGID) != 0 {
                let caller = load_cred();
                cred.caps.set(Caps::FSETID, caller.has(Caps::FSETID));
                (cred.gid, cred.groups) = (caller.gid, caller.groups);
            }
            let set = SetAttr { size: Some(size), ..SetAttr::default() };
            self.setattr_locked(&cred, inode, handle, &set, &attr_lock)
        })
    }

    /// Takes the attribute lock of an inode. The caller holds no other locks than in-lookup locks.
    pub(super) fn lock_attributes(&self, slot: InodeSlot) -> KeyGuard<'_> {
        self.attr_locks.lock(u64::from(slot.get()).wrapping_mul(SLOT_SPREAD))
    }

    fn setattr_locked(
        &self,
        cred: &Cred,
        inode: &InodeRef<'_>,
        handle: u64,
        set: &SetAttr,
        attr_lock: &KeyGuard<'_>,
    ) -> Result<Attr, Errno> {
        let perm = self.perm(inode.slot)?;
        let set = self.prepare(cred, inode, &perm, set, attr_lock)?;
        let change = || {
            self.with_inode(inode.slot, |fs, node| {
                Ok(self.reported(inode.slot, fs.setattr(node.with_handle(handle), &set)?))
            })
        };
        match set.mode.is_none() && set.uid.is_none() && set.gid.is_none() {
            true => change(),
            false => self.change(inode.slot, change),
        }
    }

    /// Runs `change`, which changes attributes in the back end. The cached mode and owner are
    /// unknown while `change` runs. Afterwards they are set from the back end's answer, unless
    /// another change overlapped.
    pub(super) fn change(
        &self,
        slot: InodeSlot,
        change: impl FnOnce() -> Result<Attr, Errno>,
    ) -> Result<Attr, Errno> {
        let ticket = self.dcache.inodes.begin_change(slot);
        self.dcache.sync_searchable(slot);
        let guard = ChangeGuard { vfs: self, slot, ticket, perm: None };
        let attr = change()?;
        guard.with(Perm::of(&attr, attr.has_acl));
        Ok(attr)
    }

    fn prepare(
        &self,
        cred: &Cred,
        inode: &InodeRef<'_>,
        perm: &Perm,
        set: &SetAttr,
        attr_lock: &KeyGuard<'_>,
    ) -> Result<SetAttr, Errno> {
        let mut set = *set;
        let is_time =
            |time: Option<SetTime>| !matches!(time, Some(SetTime::At(t)) if t.nanos >= NANOS);
        if !is_time(set.atime) || !is_time(set.mtime) {
            return Err(Errno::INVAL);
        }
        if set.mode.is_some() && inode.kind() == FileKind::Symlink {
            return Err(Errno::OPNOTSUPP);
        }
        let is_owner = cred.uid == perm.uid || cred.has(Caps::FOWNER);
        let may_give = |same: bool| cred.has(Caps::CHOWN) || (cred.uid == perm.uid && same);
        if set.uid.is_some_and(|uid| !may_give(uid == perm.uid))
            || set.gid.is_some_and(|gid| !may_give(gid == perm.gid || cred.is_in_group(gid)))
            || (set.mode.is_some() && !is_owner)
        {
            return Err(Errno::PERM);
        }
        let is_given = |time: Option<SetTime>| matches!(time, Some(SetTime::At(_)));
        let is_partial = set.atime.is_some() != set.mtime.is_some();
        if (is_given(set.atime) || is_given(set.mtime) || is_partial) && !is_owner {
            return Err(Errno::PERM);
        }
        if (set.atime.is_some() || set.mtime.is_some()) && !is_owner {
            self.permission_locked(cred, inode.slot, May::WRITE, attr_lock)?;
        }
        if set.size.is_some() {
            match inode.kind() {
                FileKind::Regular => {
                    self.permission_locked(cred, inode.slot, May::WRITE, attr_lock)?;
                }
                FileKind::Directory => return Err(Errno::ISDIR),
                _ => return Err(Errno::INVAL),
            }
        }
        set.mode = match set.mode {
            None if inode.kind() == FileKind::Directory => None,
            None => left_of_set_id(cred, perm, &set)?,
            Some(mode) => {
                // When the owner of a set-user-ID file changes, the kernel also sends a new mode.
                // That mode does not follow the rules for set-group-ID, so apply them.
                let is_given = set.uid.is_some() || set.gid.is_some();
                let mode = match is_given && is_lone_set_group_id(perm.mode) {
                    true => allowed_set_id(cred, perm.gid, mode),
                    false => mode,
                };
                Some(allowed_set_id(cred, set.gid.unwrap_or(perm.gid), mode))
            }
        };
        Ok(set)
    }

    /// Clears set-user-ID and set-group-ID of a file, as a write does. `load_cred` returns the
    /// writer's credentials. It is called only if the file has set-user-ID or set-group-ID.
    ///
    /// The caller holds the returned lock until the content has changed. Otherwise another thread
    /// could set the bits meanwhile.
    pub(super) fn clear_set_id<C: Borrow<Cred>>(
        &self,
        inode: &InodeRef<'_>,
        load_cred: impl FnOnce() -> C,
    ) -> Result<KeyGuard<'_>, Errno> {
        let attr_lock = self.lock_attributes(inode.slot);
        let perm = self.perm(inode.slot)?;
        if perm.mode & (mode::S_ISUID | mode::S_ISGID) == 0 {
            return Ok(attr_lock);
        }
        let caller = load_cred();
        let cred = caller.borrow();
        let cleared = without_set_id(cred, &perm);
        if cleared != perm.mode && !cred.has(Caps::FSETID) {
            let set = SetAttr { mode: Some(cleared), ..SetAttr::default() };
            self.setattr_locked(&Cred::root(), inode, 0, &set, &attr_lock)?;
        }
        Ok(attr_lock)
    }

    /// Checks that `cred` has the permissions `what` for an inode. May call the back end. The
    /// caller holds no attribute lock.
    ///
    /// # Errors
    /// `EACCES`, and the errors of the back end.
    pub(crate) fn permission(&self, cred: &Cred, slot: InodeSlot, what: May) -> Result<(), Errno> {
        match self.permission_now(cred, slot, what) {
            Checked::Yes => return Ok(()),
            Checked::No(error) => return Err(error),
            Checked::Unknown => {}
        }
        for _ in 0..ACL_TRIES {
            let (perm, acl, read) = self.perm_and_acl(slot)?;
            if read == Consistency::Proven {
                return decide(cred, &perm, acl.as_ref(), what);
            }
        }
        let attr_lock = self.lock_attributes(slot);
        let (perm, acl, _) = self.perm_and_acl(slot)?;
        drop(attr_lock);
        decide(cred, &perm, acl.as_ref(), what)
    }

    /// Like [`Vfs::permission`], for a caller that holds the attribute lock.
    fn permission_locked(
        &self,
        cred: &Cred,
        slot: InodeSlot,
        what: May,
        _locked: &KeyGuard<'_>,
    ) -> Result<(), Errno> {
        match self.permission_now(cred, slot, what) {
            Checked::Yes => Ok(()),
            Checked::No(error) => Err(error),
            Checked::Unknown => {
                let (perm, acl, _) = self.perm_and_acl(slot)?;
                decide(cred, &perm, acl.as_ref(), what)
            }
        }
    }

    fn perm_and_acl(&self, slot: InodeSlot) -> Result<(Perm, Option<Acl>, Consistency), Errno> {
        let inodes = &self.dcache.inodes;
        let changes = inodes.changes();
        let perm = self.perm(slot)?;
        if !perm.has_acl {
            return Ok((perm, None, Consistency::Proven));
        }
        let acl = self.with_inode(slot, |fs, node| fs.get_acl(node, AclKind::Access))?;
        // Check that no attribute change came between the two reads: first of the cached mode and
        // owner (the record), then of the ACL. A change takes three steps:
        // 1. It increments the count of changes, and marks the record as unknown.
        // 2. It calls the back end.
        // 3. It increments the count again, and sets the new record.
        //
        // If a change that came in between has not ended, the record is marked as unknown. If it
        // has ended, the count has grown. So comparing the record first and the count last notices
        // both. Changes of other inodes only cause needless repetitions.
        let is_same = inodes.perm(slot) == Some(perm) && inodes.changes() == changes;
        Ok((perm, acl, if is_same { Consistency::Proven } else { Consistency::Unproven }))
    }

    /// Checks a permission without blocking and without writing (trap T58 in `traps.md`: a check
    /// that blocks inside rcu-walk).
    #[inline]
    pub(crate) fn permission_now(&self, cred: &Cred, slot: InodeSlot, what: May) -> Checked {
        // `CAP_DAC_OVERRIDE` allows every access to a directory, whatever its mode.
        if cred.has(Caps::DAC_OVERRIDE) && self.dcache.inodes.is_directory(slot) {
            return Checked::Yes;
        }
        let Some(perm) = self.dcache.inodes.perm(slot) else { return Checked::Unknown };
        if perm.has_acl && !cred.has(Caps::DAC_OVERRIDE) {
            return Checked::Unknown;
        }
        match decide(cred, &perm, None, what) {
            Ok(()) => Checked::Yes,
            Err(error) => Checked::No(error),
        }
    }

    pub(super) fn perm(&self, slot: InodeSlot) -> Result<Perm, Errno> {
        if let Some(perm) = self.dcache.inodes.perm(slot) {
            return Ok(perm);
        }
        let ticket = self.dcache.inodes.ticket(slot);
        let attr = self.with_inode(slot, |fs, node| fs.getattr(node))?;
        let perm = Perm::of(&attr, attr.has_acl);
        self.dcache.inodes.install(slot, ticket, perm);
        self.dcache.sync_searchable(slot);
        Ok(perm)
    }

    pub(super) fn set_acl_xattr(
        &self,
        cred: &Cred,
        inode: &InodeRef<'_>,
        kind: AclKind,
        value: &[u8],
        how: XattrMode,
    ) -> Result<(), Errno> {
        let _locked = self.lock_attributes(inode.slot);
        self.check_acl_mode(inode, kind, how)?;
        let perm = self.perm(inode.slot)?;
        if cred.uid != perm.uid && !cred.has(Caps::FOWNER) {
            return Err(Errno::PERM);
        }
        if inode.kind() == FileKind::Symlink {
            return Err(Errno::OPNOTSUPP);
        }
        let acl = Acl::from_xattr(value)?;
        if kind == AclKind::Default {
            if inode.kind() != FileKind::Directory {
                return if acl.is_some() { Err(Errno::ACCESS) } else { Ok(()) };
            }
            return self
                .with_inode(inode.slot, |fs, node| fs.set_acl(node, kind, acl.as_ref(), None));
        }
        let mode = acl.as_ref().map(|acl| {
            let rest = allowed_set_id(cred, perm.gid, perm.mode);
            (rest & !0o777) | acl.mode()
        });
        // An ACL that is equivalent to a mode is stored only as the mode.
        let stored = acl.as_ref().filter(|acl| acl.equivalent_mode().is_none());
        self.change(inode.slot, || {
            self.with_inode(inode.slot, |fs, node| {
                fs.set_acl(node, kind, stored, mode)?;
                fs.getattr(node)
            })
        })?;
        Ok(())
    }

    pub(super) fn get_acl_xattr(
        &self,
        inode: &InodeRef<'_>,
        kind: AclKind,
    ) -> Result<Vec<u8>, Errno> {
        let acl = self.with_inode(inode.slot, |fs, node| fs.get_acl(node, kind))?;
        acl.map(|acl| acl.to_xattr()).ok_or(Errno::NODATA)
    }

    fn check_acl_mode(
        &self,
        inode: &InodeRef<'_>,
        kind: AclKind,
        mode: XattrMode,
    ) -> Result<(), Errno> {
        if mode == XattrMode::Set {
            return Ok(());
        }
        match (self.get_acl_xattr(inode, kind), mode) {
            (Ok(_), XattrMode::Create) => Err(Errno::EXIST),
            (Err(Errno::NODATA), XattrMode::Replace) => Err(Errno::NODATA),
            (Err(error), _) if error != Errno::NODATA => Err(error),
            _ => Ok(()),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Consistency {
    Proven,
    Unproven,
}

/// A running change of attributes. Its drop ends the change, even if the back end fails or panics.
struct ChangeGuard<'v> {
    vfs: &'v Vfs,
    slot: InodeSlot,
    ticket: crate::inode::Ticket,
    perm: Option<Perm>,
}

impl ChangeGuard<'_> {
    fn with(mut self, perm: Perm) {
        self.perm = Some(perm);
    }
}

impl Drop for ChangeGuard<'_> {
    fn drop(&mut self) {
        self.vfs.dcache.inodes.end_change(self.slot, self.ticket, self.perm);
        self.vfs.dcache.sync_searchable(self.slot);
    }
}

pub(super) fn acl_kind(name: &[u8]) -> Option<AclKind> {
    match name {
        XATTR_ACCESS => Some(AclKind::Access),
        XATTR_DEFAULT => Some(AclKind::Default),
        _ => None,
    }
}

/// Returns the new mode if `set`, a chown or a truncation, clears set-user-ID or set-group-ID. A
/// truncation clears the same bits as a write, without a check of the owner.
///
/// # Errors
/// Those of [`left_by_chown`].
fn left_of_set_id(cred: &Cred, perm: &Perm, set: &SetAttr) -> Result<Option<u32>, Errno> {
    if set.uid.is_some() || set.gid.is_some() {
        return left_by_chown(cred, perm, set.gid.unwrap_or(perm.gid));
    }
    let left = without_set_id(cred, perm);
    if left == perm.mode {
        return Ok(None);
    }
    let clears = set.size.is_some() && !cred.has(Caps::FSETID);
    Ok(clears.then_some(left))
}

/// Returns the mode of a file after a chown, or None if the mode stays. Set-group-ID stays only if
/// two conditions hold. The group may not execute the file. The caller has `CAP_FSETID`, or is in
/// both the old group and the group `gid`.
///
/// # Errors
/// `EPERM` if the chown clears a bit, and the caller may not chmod the file.
fn left_by_chown(cred: &Cred, perm: &Perm, gid: u32) -> Result<Option<u32>, Errno> {
    let left = without_set_id(cred, perm);
    if left == perm.mode {
        return Ok(None);
    }
    if cred.uid != perm.uid && !cred.has(Caps::FOWNER) {
        return Err(Errno::PERM);
    }
    Ok(Some(allowed_set_id(cred, gid, left)))
}

/// Returns the mode without set-user-ID. Also clears set-group-ID if the group may execute the
/// file, or if the caller may not set the bit.
#[doc(alias = "setattr_should_drop_suidgid")]
fn without_set_id(cred: &Cred, perm: &Perm) -> u32 {
    let left = perm.mode & !mode::S_ISUID;
    match left & 0o010 {
        0 => allowed_set_id(cred, perm.gid, left),
        _ => left & !mode::S_ISGID,
    }
}

/// Returns true if a mode has set-group-ID, but does not allow the group to execute the file.
fn is_lone_set_group_id(mode: u32) -> bool {
    mode & (mode::S_ISGID | 0o010) == mode::S_ISGID
}

/// Returns `mode`. Clears set-group-ID if the caller is not in the group `gid` and lacks
/// `CAP_FSETID`.
fn allowed_set_id(cred: &Cred, gid: u32, mode: u32) -> u32 {
    match cred.is_in_group(gid) || cred.has(Caps::FSETID) {
        true => mode,
        false => mode & !mode::S_ISGID,
    }
}

fn decide(cred: &Cred, perm: &Perm, acl: Option<&Acl>, what: May) -> Result<(), Errno> {
    if may(cred, perm, acl, what) { Ok(()) } else { Err(Errno::ACCESS) }
}

fn may(cred: &Cred, perm: &Perm, acl: Option<&Acl>, what: May) -> bool {
    let granted = match acl {
        Some(acl) => {
            acl.check(cred.uid, |gid| cred.is_in_group(gid), perm.uid, perm.gid, what.bits())
        }
        None => {
            let shift = if cred.uid == perm.uid {
                6
            } else if cred.is_in_group(perm.gid) {
                3
            } else {
                0
            };
            (perm.mode >> shift) & what.bits() == what.bits()
        }
    };
    if granted {
        return true;
    }
    let is_dir = perm.mode & mode::S_IFMT == mode::S_IFDIR;
    let is_executable = is_dir || perm.mode & 0o111 != 0;
    if cred.has(Caps::DAC_OVERRIDE) && (is_executable || !what.contains(May::EXEC)) {
        return true;
    }
    let reading = if is_dir { May::READ | May::EXEC } else { May::READ };
    cred.has(Caps::DAC_READ_SEARCH) && reading.contains(what)
}
