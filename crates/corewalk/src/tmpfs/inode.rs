//! One inode: its attributes and its content.
//!
//! The inodes are in slots of the table `table`, which finds them by number. The lock of a slot
//! protects everything but the bytes of a regular file, which have their own lock. So a change of
//! names takes one lock per changed inode, and stat(2) takes one lock. A long write delays neither.
//!
//! Memory use matters most for a tmpfs. So a time has 12 bytes, and rare parts (bytes, extended
//! attributes, ACLs) are behind a pointer.
//!
//! An inode and its lock have two cache lines of their own. So a change of a directory, which
//! writes to its lock, does not slow down threads with other inodes.
//!
//! # Times
//! The clock is the coarse real-time clock, as in the kernel's file systems before multigrain
//! times. It advances every 1 to 10 ms and costs a few loads. Times are read under the inode's
//! lock, so later changes of an inode have no earlier time, unless the clock is set back.
//!
//! # Locks
//! - `FileContent`: the bytes of one file. Taken before any slot lock.
//! - The slot lock: everything else. For the order of several slot locks see the module `names`.
//!
//! # Invariants
//! - N.1: the type bits of the mode and the variant of the body never change while a number is
//!   valid.
//! - N.2: `nlink` is the number of directory entries of the inode. For a directory it is 2 plus the
//!   number of its subdirectories, and 0 after removal.
//! - N.3: an access ACL is stored only if the mode cannot express it. Its entries for owner, group
//!   (or mask) and others agree with the mode.
//! - N.4: while the content of a file is unlocked, size and page count in the inode equal those of
//!   the content.
//!
//! # Limits
//! This module neither checks permissions nor clears set-user-ID; the caller of the back end does
//! so.
//!
//! Source: inode(7); POSIX.1-2024 XBD 4.12, File Times Update; mount(8), `relatime`; Linux
//! `ktime_get_coarse_real_ts64`.

use std::sync::Arc;

use corewalk_base::RwLock;
use rustix::time::{ClockId, clock_gettime};

use super::data::FileContent;
use super::dir::Directory;
use super::pages::PAGE_BYTES;
use super::table::NO_NUMBER;
use super::xattr::OwnSet;
use crate::Errno;
use crate::acl::Acl;
use crate::attr::{Atime, Attr, FileKind, SetAttr, Timespec, Ttl, mode};
use crate::fs::{AclKind, Make};

/// The bits of the mode that chmod(2) changes.
const PERMISSION_BITS: u32 = 0o7777;
/// The size that an entry adds to its directory, in bytes (Linux `BOGO_DIRENT_SIZE`).
const ENTRY_BYTES: u64 = 20;
/// The longest link target that costs no page, in bytes, as on Linux.
const SHORT_TARGET_MAX: usize = 127;

#[inline]
pub(super) fn now() -> Timespec {
    let now = clock_gettime(ClockId::RealtimeCoarse);
    Timespec { secs: now.tv_sec, nanos: now.tv_nsec as u32 }
}

/// A file of any kind, or a vacant slot. Protected by the lock of the slot. Analogous to Linux's
/// `struct shmem_inode_info`.
pub(super) struct Inode {
    ino: u64,
    pub(super) attributes: Attributes,
    body: Body,
}

enum Body {
    /// A vacant slot. The number counts the inodes that have used the slot. The next inode number
    /// contains this count, so that no inode number repeats.
    Vacant(u32),
    File(File),
    Directory(Box<Directory>),
    Symlink(Box<[u8]>),
    Special(FileKind, u64),
}

/// A regular file. `size_bytes` and `pages` are copies, so that stat(2) does not wait for the lock
/// of the content.
#[derive(Default)]
struct File {
    size_bytes: u64,
    pages: u64,
    /// The content is None until the first change, because many files are empty. The `RwLock`
    /// protects the bytes, and is taken before the lock of the inode's slot.
    content: Option<Arc<RwLock<FileContent>>>,
}

pub(super) fn target_bytes(target: &[u8]) -> u64 {
    if target.len() > SHORT_TARGET_MAX { PAGE_BYTES } else { 0 }
}

impl Inode {
    /// Initializes a new inode, whose slot already has the inode number. The inode has no links,
    /// except the two of a new directory. The caller sets the ACLs.
    pub(super) fn fill(&mut self, kind: FileKind, what: &Make<'_>, now: Timespec) {
        let (body, nlink) = match kind {
            FileKind::Regular => (Body::File(File::default()), 0),
            FileKind::Directory => (Body::Directory(Box::new(Directory::new())), 2),
            FileKind::Symlink => (Body::Symlink(what.target.into()), 0),
            FileKind::CharDevice | FileKind::BlockDevice => (Body::Special(kind, what.rdev), 0),
            FileKind::Fifo | FileKind::Socket => (Body::Special(kind, 0), 0),
        };
        self.body = body;
        self.attributes = Attributes {
            mode: kind.to_mode() | what.mode & PERMISSION_BITS,
            uid: what.uid,
            gid: what.gid,
            nlink,
            ..Attributes::vacant(now.into())
        };
    }

    pub(super) fn vacant(uses: u32) -> Inode {
        let attributes = Attributes::vacant(Stamp { secs: 0, nanos: 0 });
        Inode { ino: NO_NUMBER, attributes, body: Body::Vacant(uses) }
    }

    pub(super) fn uses_of_vacant(&self) -> u32 {
        debug_assert!(matches!(self.body, Body::Vacant(_)), "the slot is not vacant");
        if let Body::Vacant(uses) = self.body { uses } else { 0 }
    }

    pub(super) fn ino(&self) -> u64 {
        self.ino
    }

    pub(super) fn set_number(&mut self, ino: u64) {
        self.ino = ino;
    }

    pub(super) fn kind(&self) -> FileKind {
        match &self.body {
            // This method is never called on a vacant slot.
            Body::File(_) | Body::Vacant(_) => FileKind::Regular,
            Body::Directory(_) => FileKind::Directory,
            Body::Symlink(_) => FileKind::Symlink,
            Body::Special(kind, _) => *kind,
        }
    }

    #[inline]
    pub(super) fn directory(&self) -> Result<&Directory, Errno> {
        match &self.body {
            Body::Directory(directory) => Ok(directory),
            _ => Err(Errno::NOTDIR),
        }
    }

    #[inline]
    pub(super) fn directory_mut(&mut self) -> Result<&mut Directory, Errno> {
        match &mut self.body {
            Body::Directory(directory) => Ok(directory),
            _ => Err(Errno::NOTDIR),
        }
    }

    pub(super) fn target(&self) -> Result<&[u8], Errno> {
        match &self.body {
            Body::Symlink(target) => Ok(target),
            _ => Err(Errno::INVAL),
        }
    }

    pub(super) fn content(&self) -> Result<Option<&Arc<RwLock<FileContent>>>, Errno> {
        match &self.body {
            Body::File(file) => Ok(file.content.as_ref()),
            Body::Directory(_) => Err(Errno::ISDIR),
            _ => Err(Errno::INVAL),
        }
    }

    pub(super) fn content_mut(&mut self) -> Result<&Arc<RwLock<FileContent>>, Errno> {
        match &mut self.body {
            Body::File(file) => Ok(file.content.get_or_insert_default()),
            Body::Directory(_) => Err(Errno::ISDIR),
            _ => Err(Errno::INVAL),
        }
    }

    /// Copies size and page count from the content of a file into its inode, so that the two agree
    /// (invariant N.4).
    pub(super) fn note_size(&mut self, content: &FileContent) {
        if let Body::File(file) = &mut self.body {
            (file.size_bytes, file.pages) = (content.size(), content.charged_pages());
        }
    }

    /// Returns the attributes as stat(2) reports them, all of one instant.
    #[inline]
    pub(super) fn attr(&self) -> Attr {
        let (size, pages, rdev) = match &self.body {
            Body::File(file) => (file.size_bytes, file.pages, 0),
            Body::Directory(directory) => ((directory.len() as u64 + 2) * ENTRY_BYTES, 0, 0),
            Body::Symlink(target) => (target.len() as u64, 0, 0),
            Body::Special(_, rdev) => (0, 0, *rdev),
            Body::Vacant(_) => (0, 0, 0),
        };
        let attributes = &self.attributes;
        Attr {
            ino: self.ino,
            // Inode numbers are never reused, so generation 0 is enough.
            generation: 0,
            mode: attributes.mode,
            nlink: attributes.nlink,
            uid: attributes.uid,
            gid: attributes.gid,
            rdev,
            size,
            blocks: pages * (PAGE_BYTES / 512),
            blksize: PAGE_BYTES as u32,
            atime: attributes.atime.into(),
            mtime: attributes.mtime.into(),
            ctime: attributes.ctime.into(),
            btime: attributes.btime.into(),
            has_acl: attributes.acl(AclKind::Access).is_some(),
            ttl: Ttl::default(),
        }
    }
}

pub(super) struct Attributes {
    pub(super) mode: u32,
    uid: u32,
    gid: u32,
    /// Link count; see N.2.
    pub(super) nlink: u32,
    atime: Stamp,
    mtime: Stamp,
    ctime: Stamp,
    btime: Stamp,
    /// Extended attributes and ACLs, which few inodes have. Only `Tmpfs::xattrs` changes them.
    pub(super) xattrs: OwnSet,
    /// True if the file was made without a name (`O_TMPFILE`) and may still get one.
    pub(super) is_linkable: bool,
}

impl Attributes {
    fn vacant(now: Stamp) -> Attributes {
        let (atime, mtime, ctime, btime) = (now, now, now, now);
        let (xattrs, is_linkable) = (None, false);
        let (mode, uid, gid, nlink) = (0, 0, 0, 0);
        Attributes { mode, uid, gid, nlink, atime, mtime, ctime, btime, xattrs, is_linkable }
    }

    pub(super) fn is_atime_updated(&self, atime: Atime, now: Timespec) -> bool {
        atime.needs_update([self.atime, self.mtime, self.ctime].map(Timespec::from), now)
    }

    pub(super) fn touch_read(&mut self, now: Timespec) {
        self.atime = now.into();
    }

    #[inline]
    pub(super) fn acl(&self, kind: AclKind) -> Option<&Acl> {
        self.xattrs.as_ref()?.set().acl(kind)
    }

    pub(super) fn changed(&self) -> Timespec {
        self.ctime.into()
    }

    pub(super) fn change(&mut self, set: &SetAttr, now: Timespec) {
        if let Some(mode) = set.mode {
            self.set_permissions(mode);
        }
        self.uid = set.uid.unwrap_or(self.uid);
        self.gid = set.gid.unwrap_or(self.gid);
        let before = [self.atime, self.mtime].map(Timespec::from);
        [self.atime, self.mtime, self.ctime] = set.times(before, now).map(Stamp::from);
    }

    pub(super) fn touch_content(&mut self, now: Timespec) {
        self.mtime = now.into();
        self.ctime = now.into();
    }

    pub(super) fn touch(&mut self, now: Timespec) {
        self.ctime = now.into();
    }

    pub(super) fn set_permissions(&mut self, mode: u32) {
        self.mode = self.mode & mode::S_IFMT | mode & PERMISSION_BITS;
    }
}

/// Returns true if an access ACL must be stored because `mode` cannot express it (invariant N.3).
pub(super) fn is_kept(acl: &Acl, mode: u32) -> bool {
    acl.equivalent_mode() != Some(mode & 0o777)
}

/// A [`Timespec`] without its padding: 12 bytes, not 16.
#[derive(Clone, Copy)]
#[repr(Rust, packed(4))]
pub(super) struct Stamp {
    secs: i64,
    nanos: u32,
}

impl From<Timespec> for Stamp {
    fn from(time: Timespec) -> Stamp {
        Stamp { secs: time.secs, nanos: time.nanos }
    }
}

impl From<Stamp> for Timespec {
    fn from(stamp: Stamp) -> Timespec {
        Timespec { secs: stamp.secs, nanos: stamp.nanos }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inode_is_small() {
        assert_eq!(size_of::<corewalk_base::OwnLine<RwLock<Inode>>>(), 2 * 64);
    }

    #[test]
    fn atime_update_follows_relatime() {
        let at = |secs| Timespec { secs, nanos: 5 };
        let mut attributes = Attributes::vacant(at(1000).into());
        let needs_update =
            |attributes: &Attributes, secs| attributes.is_atime_updated(Atime::Relative, at(secs));
        assert!(
            needs_update(&attributes, 1000),
            "an access time not newer than the change time must be updated"
        );
        attributes.touch_read(at(1001));
        assert!(
            !needs_update(&attributes, 1002),
            "an access time newer than the change time was updated"
        );
        assert!(
            needs_update(&attributes, 1001 + 24 * 60 * 60),
            "an access time of a day ago must be updated"
        );
        attributes.touch(at(1001));
        assert!(
            needs_update(&attributes, 1002),
            "a change after the last read must update the access time"
        );
    }
}
