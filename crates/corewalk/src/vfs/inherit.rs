//! The properties that a new file inherits from its directory.
//!
//! Source: mkdir(2), mknod(2), acl(5); Linux `inode_init_owner`, `posix_acl_create`.

use super::Vfs;
use crate::Errno;
use crate::attr::{FileKind, mode};
use crate::cred::{Caps, Cred};
use crate::fs::{AclKind, Make};
use crate::slot::InodeSlot;

/// The device number of a whiteout, the character device with which overlayfs marks a removed name.
const WHITEOUT_DEV: u64 = 0;

impl Vfs {
    pub(super) fn inherit<'a>(
        &self,
        cred: &Cred,
        dir: InodeSlot,
        what: Make<'a>,
    ) -> Result<Make<'a>, Errno> {
        let mut what = what;
        let kind = FileKind::from_mode(what.mode).ok_or(Errno::INVAL)?;
        // A whiteout gives access to no device.
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
