//! Reading attributes with statx(2), and changing them with chmod, chown, truncate and utimensat.
//!
//! A call changes several attributes one after the other. If a change fails, the call restores the
//! owner and the mode. A truncation cannot be undone, so it comes after owner and mode. The times
//! are set last, since a truncation changes them.
//!
//! # When ACLs are read
//! Neither statx(2) nor the mode shows whether a file has an ACL, and reading it takes longer than
//! reading all other attributes. So `HostFs` reads it only in lookups, creations and changes, whose
//! attributes the cache uses for permission checks.
//!
//! Attributes from any other call say that the file may have an ACL. Before the cache checks a
//! permission with such attributes, it reads the ACL itself.

use std::os::fd::{AsFd, BorrowedFd};

use corewalk::attr::mode::{S_IFMT, S_ISGID, S_ISUID};
use corewalk::{AclKind, Attr, Errno, FileKind, Node, SetAttr, Timespec};
use rustix::fs::{
    AtFlags, CWD, Gid, Mode, OFlags, Statx, StatxTimestamp, Uid, chmodat, chownat, fchmod,
    ftruncate, makedev, utimensat,
};

use crate::descriptors::SharedFd;
use crate::hostfs::{AclSupport, HostFs, magic, reopen};

const SET_ID: u32 = S_ISUID | S_ISGID;

impl HostFs {
    /// Returns the attributes of a file without reading its ACL. So `has_acl` may be true for a
    /// file without an ACL.
    pub(crate) fn attr_maybe_acl(&self, fd: BorrowedFd<'_>) -> Result<Attr, Errno> {
        let status = self.status(fd, b"")?;
        let may_have_acl = self.has_acl(&status, || Ok(true))?;
        Ok(self.attr(&status, may_have_acl))
    }

    pub(crate) fn attr_of(&self, fd: BorrowedFd<'_>) -> Result<Attr, Errno> {
        let status = self.status(fd, b"")?;
        let has_acl =
            self.has_acl(&status, || self.acl_of(fd, AclKind::Access).map(|a| a.is_some()))?;
        Ok(self.attr(&status, has_acl))
    }

    /// Returns true if the file may have an ACL. Calls `ask`, which may read the ACL, unless the
    /// file's type or the host file system excludes ACLs.
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

    #[inline]
    pub(crate) fn attr(&self, status: &Statx, has_acl: bool) -> Attr {
        Attr::new(status.stx_ino, u32::from(status.stx_mode))
            .with_nlink(status.stx_nlink)
            .with_uid(status.stx_uid)
            .with_gid(status.stx_gid)
            .with_rdev(makedev(status.stx_rdev_major, status.stx_rdev_minor))
            .with_size(status.stx_size)
            .with_blocks(status.stx_blocks)
            .with_blksize(status.stx_blksize)
            .with_atime(time(&status.stx_atime))
            .with_mtime(time(&status.stx_mtime))
            .with_ctime(time(&status.stx_ctime))
            .with_btime(time(&status.stx_btime))
            .with_has_acl(has_acl)
    }

    pub(crate) fn change_attr(&self, node: Node<'_>, set: &SetAttr) -> Result<Attr, Errno> {
        let shared = self.at(node)?;
        let fd = shared.as_fd();
        let before = self.status(fd, b"")?;
        // Open the file for writing before any attribute is changed, so that a failed open changes
        // nothing.
        let writable = match set.size {
            Some(_) => Some(self.writable(node, fd)?),
            None => None,
        };
        if let Err(error) = change(node, fd, &before, set, writable) {
            // Ignore errors: if restoring the owner or the mode fails, another program has changed
            // the file.
            let changes_owner = set.uid.is_some() || set.gid.is_some();
            if changes_owner {
                let _ = chown(fd, Some(before.stx_uid), Some(before.stx_gid));
            }
            // Also restore the mode after chown(2), which may have cleared bits of it.
            if (changes_owner || set.mode.is_some()) && node.kind() != FileKind::Symlink {
                let _ = chmod(fd, u32::from(before.stx_mode));
            }
            return Err(error);
        }
        self.attr_of(fd)
    }

    /// Returns a descriptor for truncating the file. If a client has the file open for writing,
    /// returns the descriptor of that open file. For example, the client may have created the file
    /// with mode 0400, so that a new open for writing would fail.
    fn writable(&self, node: Node<'_>, fd: BorrowedFd<'_>) -> Result<SharedFd, Errno> {
        if let Some(open) = self.descriptors.get_writable(node.ino()) {
            return Ok(open);
        }
        Ok(SharedFd::new(self.retry_full(|| reopen(fd, OFlags::WRONLY))?))
    }
}

fn change(
    node: Node<'_>,
    fd: BorrowedFd<'_>,
    before: &Statx,
    set: &SetAttr,
    writable: Option<SharedFd>,
) -> Result<(), Errno> {
    if set.uid.is_some() || set.gid.is_some() {
        chown(fd, set.uid, set.gid)?;
    }
    if let Some(mode) = set.mode
        && node.kind() != FileKind::Symlink
    {
        let changed = chmod(fd, mode);
        // chmod(2) fails for a caller that does not own the file. Ignore that if the new mode only
        // clears set-user-ID and set-group-ID, because the truncation below clears these bits too.
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
        utimensat(CWD, magic(fd), &set.timestamps(), AtFlags::empty())?;
    }
    Ok(())
}

pub(crate) fn chown(fd: BorrowedFd<'_>, uid: Option<u32>, gid: Option<u32>) -> Result<(), Errno> {
    let (uid, gid) = (uid.map(Uid::from_raw), gid.map(Gid::from_raw));
    chownat(fd, c"", uid, gid, AtFlags::EMPTY_PATH)
}

/// Sets the mode of a file that is not a symbolic link. `fd` may be an `O_PATH` descriptor.
pub(crate) fn chmod(fd: BorrowedFd<'_>, mode: u32) -> Result<(), Errno> {
    let mode = Mode::from_raw_mode(mode & !S_IFMT);
    match fchmod(fd, mode) {
        Err(Errno::BADF) => chmodat(CWD, magic(fd), mode, AtFlags::empty()),
        done => done,
    }
}

pub(crate) fn time(from: &StatxTimestamp) -> Timespec {
    Timespec { secs: from.tv_sec, nanos: from.tv_nsec }
}
