//! Extended attributes and ACLs of one inode.
//!
//! Attributes of the classes `user`, `trusted` and `security` are kept as they are given. ACLs
//! are kept parsed, because the mode and the access ACL change each other; the attributes
//! `system.posix_acl_*` are therefore no attributes here (see `FileSystem::get_acl`).
//!
//! # How it works
//! A sorted map, since files have none or a handful. Names and values are charged byte by byte to
//! the same budget as pages, so that attributes cannot take memory without bound where file data
//! cannot.
//!
//! # Invariants
//! - X.1: a name is at most 255 bytes, a value at most 64 KiB, all names with their NULs at most
//!   64 KiB, which are the limits of xattr(7).
//! - X.2: the length of every name and value was taken from the budget.
//!
//! # What it refuses
//! Classes it does not know, and names that are only a class. `user` attributes of anything but a
//! regular file or a directory, as xattr(7) says. No locks: they are part of the attributes.
//!
//! Source: xattr(7), setxattr(2), getxattr(2), listxattr(2).

use std::collections::BTreeMap;

use super::budget::Budget;
use crate::Errno;
use crate::acl::Acl;
use crate::attr::FileKind;
use crate::fs::XattrMode;

/// The longest name in bytes (`XATTR_NAME_MAX`).
const NAME_BYTES_MAX: usize = 255;
/// The longest value in bytes (`XATTR_SIZE_MAX`).
const VALUE_BYTES_MAX: usize = 65536;
/// All names with their NULs, in bytes (`XATTR_LIST_MAX`).
const LIST_BYTES_MAX: usize = 65536;
/// The classes that are kept.
const CLASSES: [&[u8]; 3] = [USER, b"trusted.", b"security."];
/// The class of attributes that belong to users.
const USER: &[u8] = b"user.";

/// The extended attributes and ACLs of an inode.
///
/// # Invariants
/// X.1, X.2.
#[derive(Default)]
pub(super) struct Xattrs {
    values: BTreeMap<Box<[u8]>, Box<[u8]>>,
    /// The ACL that is checked, if it says more than the mode.
    pub(super) access_acl: Option<Acl>,
    /// The ACL that new files of a directory inherit.
    pub(super) default_acl: Option<Acl>,
    /// Set while a file made without a name may still be given one (`O_TMPFILE`).
    pub(super) is_linkable: bool,
}

impl Xattrs {
    /// Returns true if nothing is kept here.
    pub(super) fn is_empty(&self) -> bool {
        self.values.is_empty()
            && self.access_acl.is_none()
            && self.default_acl.is_none()
            && !self.is_linkable
    }

    /// Returns a value. `ENODATA` if there is none.
    pub(super) fn get(&self, name: &[u8]) -> Result<Vec<u8>, Errno> {
        self.values.get(name).map(|value| value.to_vec()).ok_or(Errno::NODATA)
    }

    /// Returns all names, each ended by a NUL.
    pub(super) fn list(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.list_bytes());
        for name in self.values.keys() {
            out.extend_from_slice(name);
            out.push(0);
        }
        out
    }

    /// Sets a value; the name has been checked.
    ///
    /// # Errors
    /// `E2BIG` for a value that is too long; `EEXIST` and `ENODATA` as `mode` says; `ENOSPC` if
    /// there would be too many names or there is no room.
    pub(super) fn set(
        &mut self,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
        space: &Budget,
    ) -> Result<(), Errno> {
        if value.len() > VALUE_BYTES_MAX {
            return Err(Errno::TOOBIG);
        }
        let old_bytes = self.values.get(name).map(|old| charge(name, old));
        match (mode, old_bytes) {
            (XattrMode::Create, Some(_)) => return Err(Errno::EXIST),
            (XattrMode::Replace, None) => return Err(Errno::NODATA),
            (_, None) if self.list_bytes() + name.len() + 1 > LIST_BYTES_MAX => {
                return Err(Errno::NOSPC);
            }
            _ => {}
        }
        let (new_bytes, old_bytes) = (charge(name, value), old_bytes.unwrap_or(0));
        space.take(new_bytes.saturating_sub(old_bytes))?;
        space.give_back(old_bytes.saturating_sub(new_bytes));
        self.values.insert(name.into(), value.into());
        Ok(())
    }

    /// Removes a value. `ENODATA` if there is none.
    pub(super) fn remove(&mut self, name: &[u8], space: &Budget) -> Result<(), Errno> {
        let value = self.values.remove(name).ok_or(Errno::NODATA)?;
        space.give_back(charge(name, &value));
        Ok(())
    }

    /// Drops all values and gives back their room.
    pub(super) fn clear(&mut self, space: &Budget) {
        for (name, value) in std::mem::take(&mut self.values) {
            space.give_back(charge(&name, &value));
        }
    }

    fn list_bytes(&self) -> usize {
        self.values.keys().map(|name| name.len() + 1).sum()
    }
}

/// Checks the name of an attribute that is to be changed.
///
/// # Errors
/// `ERANGE` for a name that is empty or too long; `EOPNOTSUPP` for an unknown class; `EINVAL` for a
/// name that is only a class; `EPERM` for a user attribute of a file that can have none.
pub(super) fn check_name(kind: FileKind, name: &[u8]) -> Result<(), Errno> {
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

/// Checks the name of an attribute that is to be read: as [`check_name`], but `ENODATA` instead of
/// `EPERM`.
pub(super) fn check_name_to_read(kind: FileKind, name: &[u8]) -> Result<(), Errno> {
    check_name(kind, name).map_err(|errno| if errno == Errno::PERM { Errno::NODATA } else { errno })
}

/// Returns what an attribute takes from the budget, in bytes.
fn charge(name: &[u8], value: &[u8]) -> u64 {
    (name.len() + value.len()) as u64
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

    #[test]
    fn set_obeys_mode_and_limits() {
        let (space, mut xattrs) = (Budget::new(Some(200_000)), Xattrs::default());
        let big = vec![0; VALUE_BYTES_MAX + 1];
        assert_eq!(xattrs.set(b"user.a", &big, XattrMode::Set, &space), Err(Errno::TOOBIG));
        assert_eq!(xattrs.set(b"user.a", b"", XattrMode::Replace, &space), Err(Errno::NODATA));
        assert_eq!(xattrs.set(b"user.a", &big[1..], XattrMode::Create, &space), Ok(()));
        assert_eq!(xattrs.set(b"user.a", b"x", XattrMode::Create, &space), Err(Errno::EXIST));
        assert_eq!(space.used(), 65536 + 6);
        assert_eq!(xattrs.set(b"user.a", b"xy", XattrMode::Replace, &space), Ok(()));
        assert_eq!((space.used(), xattrs.get(b"user.a")), (8, Ok(b"xy".to_vec())));
        assert_eq!(xattrs.set(b"user.b", b"", XattrMode::Set, &space), Ok(()));
        assert_eq!(xattrs.list(), b"user.a\0user.b\0");
        assert_eq!(xattrs.remove(b"user.c", &space), Err(Errno::NODATA));
        assert_eq!(xattrs.remove(b"user.a", &space), Ok(()));
        assert_eq!(xattrs.get(b"user.a"), Err(Errno::NODATA));
        xattrs.clear(&space);
        assert_eq!((space.used(), xattrs.is_empty()), (0, true));
    }

    #[test]
    fn set_beyond_list_or_budget_is_enospc() {
        let (space, mut xattrs) = (Budget::new(None), Xattrs::default());
        let name = |n: u32| format!("user.{n:0250}").into_bytes();
        for n in 0..256 {
            assert_eq!(xattrs.set(&name(n), b"", XattrMode::Set, &space), Ok(()));
        }
        assert_eq!(xattrs.list().len(), LIST_BYTES_MAX);
        assert_eq!(xattrs.set(b"user.x", b"", XattrMode::Set, &space), Err(Errno::NOSPC));
        assert_eq!(xattrs.set(&name(0), b"x", XattrMode::Set, &space), Ok(()));
        let (tight, mut xattrs) = (Budget::new(Some(8)), Xattrs::default());
        assert_eq!(xattrs.set(b"user.x", b"123", XattrMode::Set, &tight), Err(Errno::NOSPC));
        assert_eq!((tight.used(), xattrs.is_empty()), (0, true));
    }
}
