//! One inode: what stat(2) says of it and where its content is.
//!
//! An inode is found by number (see `table`), is shared by whoever works on it, and has two locks:
//! one around its content, which readers share, and one around its attributes, which is held for a
//! few instructions only. A long write thus holds up neither a chmod nor, what matters more, the
//! directory operations that count links.
//!
//! Memory is what a tmpfs is judged by, so the inode is packed: 12 bytes per time, and everything
//! that most files lack (extended attributes, ACLs) is behind one pointer. An empty file takes 136
//! bytes here.
//!
//! # Locks
//! - `Body::File`, `Body::Directory`: the content. Directories are locked in ascending order of
//!   their numbers (see `names`), files never while another content lock is held.
//! - `attributes`: within the content lock if both are taken; one at a time.
//!
//! # Invariants
//! - N.1: the type bits of the mode and the variant of the body never change.
//! - N.2: `nlink` is the number of directory entries for the inode; for a directory it is 2 and
//!   the number of its subdirectories, and 0 once it is removed.
//! - N.3: an access ACL that is kept says more than the mode, and agrees with it.
//!
//! # What it refuses
//! It does not check permissions nor clear set-user-ID bits: the caller of a back end does.
//!
//! Source: inode(7); POSIX.1-2024 XBD 4.12, File Times Update; mount(8), `relatime`.

use corewalk_sync::{Mutex, MutexGuard, RwLock};

use super::data::FileContent;
use super::dir::Directory;
use super::pages::PAGE_BYTES;
use super::xattr::Xattrs;
use crate::Errno;
use crate::acl::Acl;
use crate::attr::{Attr, FileKind, SetAttr, SetTime, Timespec, mode};
use crate::fs::{AclKind, Make};

/// The bits of the mode that chmod(2) changes.
const PERMISSION_BITS: u32 = 0o7777;
/// How old an access time may get before `relatime` sets it anyway, in seconds: a day.
const RELATIME_SECS: i64 = 24 * 60 * 60;
/// What a directory entry adds to the size of its directory, in bytes (Linux `BOGO_DIRENT_SIZE`).
const ENTRY_BYTES: u64 = 20;

/// A file of any kind.
pub(super) struct Inode {
    ino: u64,
    attributes: Mutex<Attributes>,
    body: Body,
}

/// What an inode holds.
pub(super) enum Body {
    /// The bytes of a regular file.
    File(RwLock<FileContent>),
    /// The entries of a directory.
    Directory(Box<RwLock<Directory>>),
    /// The target of a symbolic link.
    Symlink(Box<[u8]>),
    /// Nothing but a kind and a device number.
    Special(FileKind, u64),
}

impl Inode {
    /// Returns a new inode without links, except that a directory has the two it starts with.
    ///
    /// # Errors
    /// `EINVAL` for type bits that name no kind.
    pub(super) fn new(ino: u64, what: &Make<'_>, now: Timespec) -> Result<Inode, Errno> {
        let kind = FileKind::from_mode(what.mode).ok_or(Errno::INVAL)?;
        let (body, nlink) = match kind {
            FileKind::Regular => (Body::File(RwLock::new(FileContent::default())), 0),
            FileKind::Directory => (Body::Directory(Box::new(RwLock::new(Directory::new()))), 2),
            FileKind::Symlink => (Body::Symlink(what.target.into()), 0),
            FileKind::CharDevice | FileKind::BlockDevice => (Body::Special(kind, what.rdev), 0),
            FileKind::Fifo | FileKind::Socket => (Body::Special(kind, 0), 0),
        };
        let now = Stamp::from(now);
        let mut attributes = Attributes {
            mode: kind.to_mode() | what.mode & PERMISSION_BITS,
            uid: what.uid,
            gid: what.gid,
            nlink,
            atime: now,
            mtime: now,
            ctime: now,
            btime: now,
            xattrs: None,
        };
        for (kind, acl) in
            [(AclKind::Access, &what.access_acl), (AclKind::Default, &what.default_acl)]
        {
            if acl.is_some() {
                attributes.set_acl(kind, acl.as_ref(), None);
            }
        }
        Ok(Inode { ino, attributes: Mutex::new(attributes), body })
    }

    /// Returns the number.
    pub(super) fn ino(&self) -> u64 {
        self.ino
    }

    /// Returns the kind of file.
    pub(super) fn kind(&self) -> FileKind {
        match &self.body {
            Body::File(_) => FileKind::Regular,
            Body::Directory(_) => FileKind::Directory,
            Body::Symlink(_) => FileKind::Symlink,
            Body::Special(kind, _) => *kind,
        }
    }

    /// Returns the content.
    pub(super) fn body(&self) -> &Body {
        &self.body
    }

    /// Returns the attributes, locked.
    pub(super) fn attributes(&self) -> MutexGuard<'_, Attributes> {
        self.attributes.lock()
    }

    /// Returns the content of a directory. `ENOTDIR` for another file.
    pub(super) fn directory(&self) -> Result<&RwLock<Directory>, Errno> {
        match &self.body {
            Body::Directory(directory) => Ok(directory),
            _ => Err(Errno::NOTDIR),
        }
    }

    /// Returns the content of a regular file. `EISDIR` for a directory, `EINVAL` for another file.
    pub(super) fn file(&self) -> Result<&RwLock<FileContent>, Errno> {
        match &self.body {
            Body::File(file) => Ok(file),
            Body::Directory(_) => Err(Errno::ISDIR),
            _ => Err(Errno::INVAL),
        }
    }

    /// Returns what stat(2) reports, at one instant.
    pub(super) fn attr(&self) -> Attr {
        match &self.body {
            Body::File(file) => {
                let file = file.read();
                self.attributes().attr(self, file.size(), file.charged_pages())
            }
            Body::Directory(directory) => {
                let entries = directory.read().len() as u64;
                self.attributes().attr(self, (entries + 2) * ENTRY_BYTES, 0)
            }
            Body::Symlink(target) => self.attributes().attr(self, target.len() as u64, 0),
            Body::Special(..) => self.attributes().attr(self, 0, 0),
        }
    }

    /// Says that the content was read: sets the access time as `relatime` does.
    pub(super) fn touch_read(&self) {
        let now = Timespec::now();
        let mut attributes = self.attributes();
        let [atime, mtime, ctime] =
            [attributes.atime, attributes.mtime, attributes.ctime].map(Timespec::from);
        let is_old = now.secs.saturating_sub(atime.secs) >= RELATIME_SECS;
        if atime <= mtime || atime <= ctime || is_old {
            attributes.atime = now.into();
        }
    }
}

/// What the attribute lock protects: all that stat(2) says but the size.
pub(super) struct Attributes {
    /// Type and permission bits.
    pub(super) mode: u32,
    uid: u32,
    gid: u32,
    /// Links, see N.2.
    pub(super) nlink: u32,
    atime: Stamp,
    mtime: Stamp,
    ctime: Stamp,
    btime: Stamp,
    /// What few inodes have.
    pub(super) xattrs: Option<Box<Xattrs>>,
}

impl Attributes {
    /// Makes every change of `set` but that of the size.
    pub(super) fn change(&mut self, set: &SetAttr, now: Timespec) {
        if let Some(mode) = set.mode {
            self.set_permissions(mode);
            if let Some(acl) = self.xattrs.as_mut().and_then(|x| x.access_acl.as_mut()) {
                acl.chmod(mode);
            }
        }
        self.uid = set.uid.unwrap_or(self.uid);
        self.gid = set.gid.unwrap_or(self.gid);
        if set.size.is_some() {
            self.mtime = now.into();
        }
        let stamp = |time| match time {
            SetTime::Now => Stamp::from(now),
            SetTime::At(time) => Stamp::from(time),
        };
        self.atime = set.atime.map_or(self.atime, stamp);
        self.mtime = set.mtime.map_or(self.mtime, stamp);
        self.ctime = set.ctime.unwrap_or(now).into();
    }

    /// Says that the content was changed.
    pub(super) fn touch_content(&mut self, now: Timespec) {
        self.mtime = now.into();
        self.ctime = now.into();
    }

    /// Says that something else than the content was changed.
    pub(super) fn touch(&mut self, now: Timespec) {
        self.ctime = now.into();
    }

    /// Changes extended attributes with `change`; what is left empty takes no memory.
    pub(super) fn change_xattrs<R>(&mut self, change: impl FnOnce(&mut Xattrs) -> R) -> R {
        let mut xattrs = self.xattrs.take().unwrap_or_default();
        let result = change(&mut xattrs);
        self.xattrs = Some(xattrs).filter(|xattrs| !xattrs.is_empty());
        result
    }

    /// Sets an ACL and, if given, the permission bits that go with it.
    pub(super) fn set_acl(&mut self, kind: AclKind, acl: Option<&Acl>, mode: Option<u32>) {
        if let Some(mode) = mode {
            self.set_permissions(mode);
        }
        let permissions = self.mode & 0o777;
        self.change_xattrs(|xattrs| match kind {
            // N.3: one that says what the mode says is not kept.
            AclKind::Access => {
                let acl = acl.filter(|acl| acl.equivalent_mode() != Some(permissions));
                xattrs.access_acl = acl.cloned();
            }
            AclKind::Default => xattrs.default_acl = acl.cloned(),
        });
    }

    /// Replaces the twelve permission bits.
    fn set_permissions(&mut self, mode: u32) {
        self.mode = self.mode & mode::S_IFMT | mode & PERMISSION_BITS;
    }

    fn attr(&self, inode: &Inode, size: u64, pages: u64) -> Attr {
        Attr {
            ino: inode.ino,
            // Numbers are never used again, so they need no generation (trap P11).
            generation: 0,
            mode: self.mode,
            nlink: self.nlink,
            uid: self.uid,
            gid: self.gid,
            rdev: if let Body::Special(_, rdev) = inode.body { rdev } else { 0 },
            size,
            blocks: pages * (PAGE_BYTES / 512),
            blksize: PAGE_BYTES as u32,
            atime: self.atime.into(),
            mtime: self.mtime.into(),
            ctime: self.ctime.into(),
            btime: self.btime.into(),
            has_acl: self.xattrs.as_ref().is_some_and(|xattrs| xattrs.access_acl.is_some()),
        }
    }
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
        // With the two counts of its `Arc`, 136 bytes.
        assert_eq!(size_of::<Inode>() + 2 * size_of::<usize>(), 136);
    }

    #[test]
    fn touch_read_follows_relatime() {
        let start = Timespec { secs: 1000, nanos: 5 };
        let inode = Inode::new(2, &Make::new(0o644, 0, 0), start).unwrap();
        inode.touch_read();
        let read = inode.attr().atime;
        assert!(read > start, "the access time was not younger than the change time");
        inode.touch_read();
        assert_eq!(inode.attr().atime, read, "now it is, and is left alone");
        let yesterday = Timespec { secs: read.secs - RELATIME_SECS, nanos: 0 };
        let set = SetAttr { atime: Some(SetTime::At(yesterday)), ..SetAttr::default() };
        inode.attributes().change(&SetAttr { ctime: Some(start), ..set }, start);
        inode.touch_read();
        assert!(inode.attr().atime >= read, "a day has passed");
    }
}
