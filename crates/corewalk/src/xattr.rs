//! The rules for names of extended attributes, for back ends that store them.
//!
//! The class of a name is the part before its first dot, such as `user`. The classes `user`,
//! `trusted` and `security` are stored. A name of another class is refused, and so is a name that
//! consists only of a class. `user` attributes are allowed only for regular files and directories.
//!
//! Source: xattr(7), setxattr(2), getxattr(2).

use crate::Errno;
use crate::attr::FileKind;

/// The longest name in bytes (`XATTR_NAME_MAX`).
pub const NAME_BYTES_MAX: usize = 255;
/// The classes of names whose attributes are stored.
const CLASSES: [&[u8]; 3] = [USER, b"trusted.", b"security."];
/// The class of user attributes.
const USER: &[u8] = b"user.";

/// Checks the name of an attribute that is to be changed.
///
/// # Errors
/// `ERANGE` for a name that is empty or too long. `EOPNOTSUPP` for an unknown class. `EINVAL` for a
/// class alone, or for a name that contains a NUL. `EPERM` for a `user` attribute of a file that is
/// neither a regular file nor a directory.
///
/// # Examples
/// ```
/// use corewalk::xattr::check_name;
/// use corewalk::{Errno, FileKind};
///
/// assert_eq!(check_name(FileKind::Regular, b"user.note"), Ok(()));
/// assert_eq!(check_name(FileKind::Symlink, b"user.note"), Err(Errno::PERM));
/// ```
pub fn check_name(kind: FileKind, name: &[u8]) -> Result<(), Errno> {
    if name.is_empty() || name.len() > NAME_BYTES_MAX {
        return Err(Errno::RANGE);
    }
    let class = CLASSES.into_iter().find(|class| name.starts_with(class));
    let class = class.ok_or(Errno::OPNOTSUPP)?;
    if name.len() == class.len() || name.contains(&0) {
        return Err(Errno::INVAL);
    }
    let has_user_class = matches!(kind, FileKind::Regular | FileKind::Directory);
    if class == USER && !has_user_class { Err(Errno::PERM) } else { Ok(()) }
}

/// Checks the name of an attribute that is to be read.
///
/// # Errors
/// Those of [`check_name`], but `ENODATA` instead of `EPERM`.
pub fn check_name_to_read(kind: FileKind, name: &[u8]) -> Result<(), Errno> {
    check_name(kind, name).map_err(|errno| if errno == Errno::PERM { Errno::NODATA } else { errno })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_checked_as_xattr7_says() {
        let long = [b"user.".as_slice(), &[b'x'; 250]].concat();
        let too_long = [b"user.".as_slice(), &[b'x'; 251]].concat();
        for (kind, name, expected) in [
            (FileKind::Regular, b"user.a".as_slice(), Ok(())),
            (FileKind::Directory, b"user.a", Ok(())),
            (FileKind::Regular, &long, Ok(())),
            (FileKind::Regular, &too_long, Err(Errno::RANGE)),
            (FileKind::Regular, b"", Err(Errno::RANGE)),
            (FileKind::Symlink, b"user.a", Err(Errno::PERM)),
            (FileKind::Fifo, b"user.a", Err(Errno::PERM)),
            (FileKind::Symlink, b"trusted.a", Ok(())),
            (FileKind::CharDevice, b"security.selinux", Ok(())),
            (FileKind::Regular, b"user.", Err(Errno::INVAL)),
            (FileKind::Regular, b"user.a\0b", Err(Errno::INVAL)),
            (FileKind::Regular, b"system.posix_acl_access", Err(Errno::OPNOTSUPP)),
            (FileKind::Regular, b"userx.a", Err(Errno::OPNOTSUPP)),
        ] {
            assert_eq!(check_name(kind, name), expected, "{kind:?} {}", name.escape_ascii());
        }
        assert_eq!(check_name_to_read(FileKind::Symlink, b"user.a"), Err(Errno::NODATA));
    }
}
