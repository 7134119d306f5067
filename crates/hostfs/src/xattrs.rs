//! Extended attributes and ACLs, which the host stores.
//!
//! The system calls for extended attributes take no `O_PATH` descriptor. So this module passes them
//! the path of the descriptor under `/proc`, which leads to the file itself, even to a symbolic
//! link. Resolving this path takes several times as long as the rest of the call.
//!
//! For a directory, `HostFs` often has a readable descriptor. Then a read of an attribute calls
//! fgetxattr(2) and needs no path.
//!
//! Source: xattr(7), acl(5).

use std::os::fd::BorrowedFd;

use corewalk::acl::{Acl, XATTR_ACCESS, XATTR_DEFAULT};
use corewalk::{AclKind, Errno, Name, XattrMode};
use rustix::buffer::spare_capacity;
use rustix::fs::{
    XattrFlags, fgetxattr, getxattr, lgetxattr_query, listxattr, removexattr, setxattr,
};

use crate::attributes::chmod;
use crate::hostfs::{HostFs, magic};

const XATTR_SIZE_MAX: usize = 65536;
/// Size in bytes of the first buffer for a value or a list of names. Most of them fit into it, and
/// the others need a second call with a larger buffer.
const USUAL_BYTES: usize = 256;

impl HostFs {
    pub(crate) fn xattr_of(&self, fd: BorrowedFd<'_>, name: &[u8]) -> Result<Vec<u8>, Errno> {
        match fetch(|buf| fgetxattr(fd, name, spare_capacity(buf))) {
            // The descriptor was opened with `O_PATH`, so use its path instead.
            Err(Errno::BADF) => {}
            done => return done,
        }
        let path = magic(fd);
        fetch(|buf| getxattr(&path, name, spare_capacity(buf)))
    }

    pub(crate) fn set_xattr_of(
        &self,
        fd: BorrowedFd<'_>,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
    ) -> Result<(), Errno> {
        let flags = match mode {
            XattrMode::Set => XattrFlags::empty(),
            XattrMode::Create => XattrFlags::CREATE,
            XattrMode::Replace => XattrFlags::REPLACE,
        };
        setxattr(magic(fd), name, value, flags)
    }

    /// Each name ends with a NUL.
    pub(crate) fn xattrs_of(&self, fd: BorrowedFd<'_>) -> Result<Vec<u8>, Errno> {
        let path = magic(fd);
        let all = match fetch(|buf| listxattr(&path, spare_capacity(buf))) {
            Err(Errno::OPNOTSUPP) => Vec::new(),
            other => other?,
        };
        let is_acl = |name: &[u8]| {
            [XATTR_ACCESS, XATTR_DEFAULT].contains(&name.strip_suffix(b"\0").unwrap_or(name))
        };
        let names = all.split_inclusive(|&b| b == 0).filter(|name| !is_acl(name));
        Ok(names.flatten().copied().collect())
    }

    pub(crate) fn acl_of(&self, fd: BorrowedFd<'_>, kind: AclKind) -> Result<Option<Acl>, Errno> {
        match self.xattr_of(fd, xattr_name(kind)) {
            Ok(bytes) => Acl::from_xattr(&bytes),
            Err(Errno::NODATA) => Ok(None),
            Err(error) => Err(error),
        }
    }

    pub(crate) fn name_has_acl(&self, dir: BorrowedFd<'_>, name: Name<'_>) -> Result<bool, Errno> {
        let path = [magic(dir).as_bytes(), b"/", name.as_bytes()].concat();
        match lgetxattr_query(&path, XATTR_ACCESS) {
            Ok(_) => Ok(true),
            Err(Errno::NODATA | Errno::OPNOTSUPP) => Ok(false),
            Err(error) => Err(error),
        }
    }

    pub(crate) fn set_acl_of(
        &self,
        fd: BorrowedFd<'_>,
        kind: AclKind,
        acl: Option<&Acl>,
        mode: Option<u32>,
    ) -> Result<(), Errno> {
        let (path, name) = (magic(fd), xattr_name(kind));
        match acl {
            Some(acl) => setxattr(&path, name, &acl.to_xattr(), XattrFlags::empty())?,
            None => match removexattr(&path, name) {
                Ok(()) | Err(Errno::NODATA) => {}
                Err(error) => return Err(error),
            },
        }
        // Setting an ACL changes only the permission bits of the mode. Set the other mode bits too.
        mode.map_or(Ok(()), |mode| chmod(fd, mode))
    }
}

fn xattr_name(kind: AclKind) -> &'static [u8] {
    match kind {
        AclKind::Access => XATTR_ACCESS,
        AclKind::Default => XATTR_DEFAULT,
    }
}

fn fetch(call: impl Fn(&mut Vec<u8>) -> Result<usize, Errno>) -> Result<Vec<u8>, Errno> {
    let mut buf = Vec::with_capacity(USUAL_BYTES);
    match call(&mut buf) {
        Err(Errno::RANGE) => {
            buf.clear();
            buf.reserve_exact(XATTR_SIZE_MAX);
            call(&mut buf).map(|_| buf)
        }
        Err(error) => Err(error),
        Ok(_) => Ok(buf),
    }
}
