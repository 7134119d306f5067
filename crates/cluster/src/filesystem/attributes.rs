//! Changes of attributes, extended attributes and ACLs, and fallocate(2).

use corewalk::acl::{Acl, XATTR_ACCESS, XATTR_DEFAULT};
use corewalk::xattr::{check_name, check_name_to_read};
use corewalk::{
    AclKind, Attr, Errno, Fallocate, FileKind, Node, SetAttr, SetTime, Timespec, XattrMode,
};

use super::ClusterFs;
use super::names::now;
use crate::data::SIZE_MAX;
use crate::directory::Change;
use crate::node::{HAS_ACCESS_ACL, HAS_DEFAULT_ACL, Inode, to_nanos};

/// The longest value of an extended attribute (`XATTR_SIZE_MAX`).
const VALUE_BYTES_MAX: usize = 65536;
/// The prefix of names that listxattr(2) does not list.
const SYSTEM: &[u8] = b"system.";

const SETATTR: &str = "SELECT * FROM cw_setattr($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, \
                       $12, $13)";
const SETXATTR: &str = "SELECT * FROM cw_setxattr($1, $2, $3, $4, $5, $6, $7, $8)";

#[derive(Debug, Default)]
struct Values {
    mode: Option<i32>,
    uid: Option<i64>,
    gid: Option<i64>,
    size: Option<i64>,
    atime: Option<i64>,
    mtime: Option<i64>,
    ctime: i64,
    /// The new access ACL. An empty value removes the ACL.
    access: Option<Vec<u8>>,
    default: Option<Vec<u8>>,
}

impl ClusterFs {
    pub(crate) fn set_attributes(&self, node: Node<'_>, set: &SetAttr) -> Result<Attr, Errno> {
        let ino = node.ino();
        if set.size.is_some_and(|size| size > SIZE_MAX) {
            return Err(Errno::FBIG);
        }
        let now = Timespec::now();
        let stamp = |time| match time {
            SetTime::Now => to_nanos(now),
            SetTime::At(time) => to_nanos(time),
        };
        let resized = set.size.map(|_| SetTime::Now);
        let mut values = Values {
            mode: set.mode.map(|mode| mode as i32),
            uid: set.uid.map(i64::from),
            gid: set.gid.map(i64::from),
            size: set.size.map(|size| size as i64),
            atime: set.atime.map(stamp),
            mtime: set.mtime.or(resized).map(stamp),
            ctime: to_nanos(set.ctime.unwrap_or(now)),
            ..Values::default()
        };
        if let Some(mode) = set.mode
            && let Some(mut acl) = self.acl(ino, AclKind::Access)?
        {
            acl.chmod(mode);
            values.access = Some(acl.to_xattr());
        }
        let room = &self.meta.session.room;
        let more = match set.size.filter(|_| room.is_limited()) {
            Some(size) => {
                let known = self.meta.inode(ino)?.inode;
                size.saturating_sub(self.data.seen(known.attr, known.version).size)
            }
            None => 0,
        };
        let inode = room.with(0, more, || self.change_attributes((ino, node.handle()), &values))?;
        Ok(self.attr_after(inode, false))
    }

    fn change_attributes(
        &self,
        (ino, handle): (u64, u64),
        values: &Values,
    ) -> Result<Inode, Errno> {
        let change = || {
            // A file that was opened before the loss of its locks must not be used any more. Handle
            // 0 means that the call has no open file, as with truncate(2).
            if handle != 0 {
                self.meta.check_locks(ino, handle)?;
            }
            let Values { mode, uid, gid, size, atime, mtime, ctime, access, default } = values;
            let change = Change { dirs: self.meta.cover(ino), names: Vec::new(), inos: vec![ino] };
            let changed = self.meta.change(
                &change,
                SETATTR,
                &[&(ino as i64), mode, uid, gid, size, atime, mtime, ctime, access, default],
                |_| Vec::new(),
            )?;
            changed.inode(ino)
        };
        match values.size {
            Some(size) => self.data.resize(ino, size as u64, change),
            None => self.data.with_flushed(ino, change),
        }
    }

    pub(crate) fn xattr(&self, node: Node<'_>, name: &[u8]) -> Result<Vec<u8>, Errno> {
        check_name_to_read(node.kind(), name)?;
        let xattrs = self.meta.xattrs(node.ino())?;
        let found = xattrs.iter().find(|(known, _)| known == name);
        found.map(|(_, value)| value.clone()).ok_or(Errno::NODATA)
    }

    pub(crate) fn set_xattr(
        &self,
        node: Node<'_>,
        name: &[u8],
        value: Option<&[u8]>,
        mode: XattrMode,
    ) -> Result<(), Errno> {
        check_name(node.kind(), name)?;
        if value.is_some_and(|value| value.len() > VALUE_BYTES_MAX) {
            return Err(Errno::TOOBIG);
        }
        let number = match mode {
            XattrMode::Set => 0,
            XattrMode::Create => 1,
            XattrMode::Replace => 2,
        };
        let ino = node.ino();
        let change = Change { dirs: self.meta.cover(ino), names: Vec::new(), inos: vec![ino] };
        let params: [crate::connection::Param<'_>; 5] =
            [&(ino as i64), &name, &value, &number, &now()];
        self.meta.change(&change, SETXATTR, &params, |_| Vec::new()).map(drop)
    }

    pub(crate) fn list_xattrs(&self, ino: u64) -> Result<Vec<u8>, Errno> {
        let xattrs = self.meta.xattrs(ino)?;
        let shown = xattrs.iter().filter(|(name, _)| !name.starts_with(SYSTEM));
        Ok(shown.flat_map(|(name, _)| name.iter().copied().chain([0])).collect())
    }

    pub(crate) fn acl(&self, ino: u64, kind: AclKind) -> Result<Option<Acl>, Errno> {
        let (name, flag) = match kind {
            AclKind::Access => (XATTR_ACCESS, HAS_ACCESS_ACL),
            AclKind::Default => (XATTR_DEFAULT, HAS_DEFAULT_ACL),
        };
        if self.meta.inode(ino)?.inode.flags & flag == 0 {
            return Ok(None);
        }
        let xattrs = self.meta.xattrs(ino)?;
        match xattrs.iter().find(|(known, _)| known == name) {
            Some((_, value)) => Acl::from_xattr(value).map_err(|_| Errno::IO),
            None => Ok(None),
        }
    }

    /// Sets or removes an ACL. An access ACL that expresses no more than the mode is not stored.
    pub(crate) fn change_acl(
        &self,
        node: Node<'_>,
        kind: AclKind,
        acl: Option<&Acl>,
        mode: Option<u32>,
    ) -> Result<(), Errno> {
        let ino = node.ino();
        match (node.kind(), kind) {
            (FileKind::Symlink, _) => return Err(Errno::OPNOTSUPP),
            (FileKind::Directory, _) | (_, AclKind::Access) => {}
            (_, AclKind::Default) if acl.is_none() => return Ok(()),
            (_, AclKind::Default) => return Err(Errno::ACCESS),
        }
        let bits = match mode {
            Some(mode) => mode,
            None => self.meta.inode(ino)?.inode.attr.mode,
        } & 0o777;
        let kept =
            acl.filter(|acl| kind == AclKind::Default || acl.equivalent_mode() != Some(bits));
        let stored = Some(kept.map(Acl::to_xattr).unwrap_or_default());
        let (access, default) = match kind {
            AclKind::Access => (stored, None),
            AclKind::Default => (None, stored),
        };
        let mode = mode.map(|mode| mode as i32);
        let values = Values { mode, ctime: now(), access, default, ..Values::default() };
        self.change_attributes((ino, 0), &values).map(drop)
    }

    /// Serves fallocate(2). It changes the size or zeroes bytes, but reserves no disk space. Only
    /// file sizes count for the limits of a file system.
    pub(crate) fn allocate(
        &self,
        file: (u64, u64),
        offset: u64,
        len: u64,
        how: Fallocate,
    ) -> Result<(), Errno> {
        if how.intersects(Fallocate::COLLAPSE_RANGE | Fallocate::INSERT_RANGE) {
            return Err(Errno::OPNOTSUPP);
        }
        let end = offset.checked_add(len).filter(|end| *end <= SIZE_MAX);
        let end = end.ok_or(Errno::FBIG)?;
        // Grow the file first. If this reaches a limit, the call must fail before it has zeroed
        // anything.
        if !how.contains(Fallocate::KEEP_SIZE) {
            self.data.grow(file, end)?;
        }
        match how.intersects(Fallocate::PUNCH_HOLE | Fallocate::ZERO_RANGE) {
            true => self.data.zero(file, offset, len),
            false => Ok(()),
        }
    }
}
