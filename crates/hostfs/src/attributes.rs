//! Attributes: what statx(2) says, and chmod, chown, truncate and utimensat.
//!
//! A change of several attributes is made one after the other. If one fails, the owner and the mode
//! are put back as they were, if they were to change; the size is changed last but for the times, since
//! it cannot be put back.
//!
//! # Who asks for ACLs
//! Neither statx(2) nor the mode says whether a file has an ACL, and asking takes longer than all
//! else about attributes. What the cache checks permissions by is asked for: what a name turns out
//! to be, what was made, and what was changed. Whoever only wants to know the attributes hears that
//! there may be an ACL. If the cache uses that, it asks for the ACL itself, and is told that there
//! is none: the answer is right, and takes longer.

use std::os::fd::{AsFd, BorrowedFd};

use corewalk::attr::mode::{S_IFMT, S_ISGID, S_ISUID};
use corewalk::{AclKind, Attr, Errno, FileKind, Node, SetAttr, SetTime, Timespec};
use rustix::fs::{
    AtFlags, CWD, Gid, Mode, OFlags, Statx, StatxTimestamp, Timestamps, UTIME_NOW, UTIME_OMIT, Uid,
    chmodat, chownat, fchmod, ftruncate, makedev, utimensat,
};

use crate::descriptors::SharedFd;
use crate::hostfs::{AclSupport, HostFs, magic, reopen};

/// The bits that who writes to a file takes from it.
const SET_ID: u32 = S_ISUID | S_ISGID;

impl HostFs {
    /// Returns the attributes of what a descriptor refers to, which may have an ACL.
    pub(crate) fn attr_of_any(&self, fd: BorrowedFd<'_>) -> Result<Attr, Errno> {
        let status = self.status(fd, b"")?;
        let may_have_acl = self.has_acl(&status, || Ok(true))?;
        Ok(self.attr(&status, may_have_acl))
    }

    /// Returns the attributes of what a descriptor refers to.
    pub(crate) fn attr_of(&self, fd: BorrowedFd<'_>) -> Result<Attr, Errno> {
        let status = self.status(fd, b"")?;
        let has_acl =
            self.has_acl(&status, || self.acl_of(fd, AclKind::Access).map(|a| a.is_some()))?;
        Ok(self.attr(&status, has_acl))
    }

    /// Returns whether a file has an ACL, which `ask` finds out where that is possible.
    pub(crate) fn has_acl(
        &self,
        status: &Statx,
        ask: impl FnOnce() -> Result<bool, Errno>,
    ) -> Result<bool, Errno> {
        let kind = FileKind::from_mode(u32::from(status.stx_mode));
        if self.acls == AclSupport::No || kind == Some(FileKind::Symlink) {
            Ok(false)
        } else {
            ask()
        }
    }

    /// Returns what a status says; the generation is 0.
    #[inline]
    pub(crate) fn attr(&self, status: &Statx, has_acl: bool) -> Attr {
        Attr {
            ino: status.stx_ino,
            generation: 0,
            mode: u32::from(status.stx_mode),
            nlink: status.stx_nlink,
            uid: status.stx_uid,
            gid: status.stx_gid,
            rdev: makedev(status.stx_rdev_major, status.stx_rdev_minor),
            size: status.stx_size,
            blocks: status.stx_blocks,
            blksize: status.stx_blksize,
            atime: time(&status.stx_atime),
            mtime: time(&status.stx_mtime),
            ctime: time(&status.stx_ctime),
            btime: time(&status.stx_btime),
            has_acl,
        }
    }

    /// Changes attributes and returns the new ones.
    pub(crate) fn change_attr(&self, node: Node<'_>, set: &SetAttr) -> Result<Attr, Errno> {
        let shared = self.at(node)?;
        let fd = shared.as_fd();
        let before = self.status(fd, b"")?;
        // Opened first, so that a file that cannot be truncated is not changed at all.
        let writable = match set.size {
            Some(_) => Some(self.writable(node, fd)?),
            None => None,
        };
        if let Err(error) = change(node, fd, (&before, set), writable) {
            // Best effort: what cannot be put back was changed by somebody else meanwhile.
            let changes_owner = set.uid.is_some() || set.gid.is_some();
            if changes_owner {
                let _ = chown(fd, Some(before.stx_uid), Some(before.stx_gid));
            }
            // A change of owner changes the mode too.
            if (changes_owner || set.mode.is_some()) && node.kind() != FileKind::Symlink {
                let _ = chmod(fd, u32::from(before.stx_mode));
            }
            return Err(error);
        }
        self.attr_of(fd)
    }

    /// Returns a descriptor to truncate the file by. One that a client has open is taken first: who
    /// made a file of mode 0400 may truncate it for as long as it is open, and could not open it again.
    fn writable(&self, node: Node<'_>, fd: BorrowedFd<'_>) -> Result<SharedFd, Errno> {
        if let Some(open) = self.descriptors.get_writable(node.ino()) {
            return Ok(open);
        }
        Ok(SharedFd::new(self.retry_full(|| reopen(fd, OFlags::WRONLY))?))
    }
}

/// Changes one attribute after the other; the size by `writable`.
fn change(
    node: Node<'_>,
    fd: BorrowedFd<'_>,
    (before, set): (&Statx, &SetAttr),
    writable: Option<SharedFd>,
) -> Result<(), Errno> {
    if set.uid.is_some() || set.gid.is_some() {
        chown(fd, set.uid, set.gid)?;
    }
    if let Some(mode) = set.mode
        && node.kind() != FileKind::Symlink
    {
        let changed = chmod(fd, mode);
        // Who may write but is not the owner: the host takes the bits from what is truncated itself.
        let before = u32::from(before.stx_mode);
        let takes_set_id = (before ^ mode) & !S_IFMT & !SET_ID == 0 && mode & !before & SET_ID == 0;
        match changed {
            Err(Errno::PERM) if takes_set_id && set.size.is_some() => {}
            changed => changed?,
        }
    }
    if let (Some(size), Some(file)) = (set.size, writable) {
        ftruncate(&file, size)?;
    }
    if set.atime.is_some() || set.mtime.is_some() {
        let times =
            Timestamps { last_access: to_set(set.atime), last_modification: to_set(set.mtime) };
        utimensat(CWD, magic(fd), &times, AtFlags::empty())?;
    }
    Ok(())
}

/// Changes the owner of what a descriptor refers to.
pub(crate) fn chown(fd: BorrowedFd<'_>, uid: Option<u32>, gid: Option<u32>) -> Result<(), Errno> {
    let (uid, gid) = (uid.map(Uid::from_raw), gid.map(Gid::from_raw));
    chownat(fd, c"", uid, gid, AtFlags::EMPTY_PATH)
}

/// Changes the mode of what a descriptor refers to, which is no symbolic link.
pub(crate) fn chmod(fd: BorrowedFd<'_>, mode: u32) -> Result<(), Errno> {
    let mode = Mode::from_raw_mode(mode & !S_IFMT);
    match fchmod(fd, mode) {
        // It has been opened with `O_PATH`.
        Err(Errno::BADF) => chmodat(CWD, magic(fd), mode, AtFlags::empty()),
        done => done,
    }
}

pub(crate) fn time(from: &StatxTimestamp) -> Timespec {
    Timespec { secs: from.tv_sec, nanos: from.tv_nsec }
}

fn to_set(time: Option<SetTime>) -> rustix::fs::Timespec {
    match time {
        None => rustix::fs::Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
        Some(SetTime::Now) => rustix::fs::Timespec { tv_sec: 0, tv_nsec: UTIME_NOW },
        Some(SetTime::At(at)) => rustix::fs::Timespec { tv_sec: at.secs, tv_nsec: at.nanos.into() },
    }
}
