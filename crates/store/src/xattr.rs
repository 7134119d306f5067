//! The extended attributes of an inode, encoded as one set.
//!
//! All attributes and ACLs of an inode are encoded as one string of bytes, sorted by name. So equal
//! sets have equal bytes and can share a block (`blocks`). An ACL is stored as
//! `system.posix_acl_*`, in the format of user space, but `getxattr` does not return it (see
//! `FileSystem::get_acl`).
//!
//! An attribute is encoded as the length of its name (1 byte), the length of its value (4 bytes,
//! little-endian), its name, and its value.
//!
//! # Limits
//! The limits of xattr(7) hold. A name has at most 255 bytes, a value 64 KiB, and all names of an
//! inode with their NULs 64 KiB. All names and values of an inode have at most 1 MiB, as in tmpfs.
//!
//! An attribute set above these limits, made by an older version, is kept. It may only become
//! smaller.
//!
//! The rules for names are in [`corewalk::xattr`].
//!
//! Source: xattr(7), setxattr(2), getxattr(2), listxattr(2); `corewalk::tmpfs`.

use corewalk::acl::{Acl, XATTR_ACCESS, XATTR_DEFAULT};
use corewalk::xattr::check_name;
use corewalk::{AclKind, Errno, FileKind, XattrMode};

const VALUE_BYTES_MAX: usize = 65536;
const LIST_BYTES_MAX: usize = 65536;
/// Maximum number of bytes of all names and values of an inode, without ACLs. Every change of an
/// attribute copies the whole set, so the set must not be too long.
const SET_BYTES_MAX: usize = 1 << 20;
const SYSTEM: &[u8] = b"system.";

/// Ends early at invalid bytes.
#[derive(Clone)]
pub(crate) struct Attributes<'a>(pub(crate) &'a [u8]);

impl<'a> Iterator for Attributes<'a> {
    type Item = (&'a [u8], &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        let (&[name_len, a, b, c, d], rest) = self.0.split_first_chunk::<5>()?;
        let (name, rest) = rest.split_at_checked(usize::from(name_len))?;
        let (value, rest) = rest.split_at_checked(u32::from_le_bytes([a, b, c, d]) as usize)?;
        self.0 = rest;
        Some((name, value))
    }
}

pub(crate) fn is_set(set: &[u8]) -> bool {
    let (mut attributes, mut last, mut list_bytes) = (Attributes(set), &b""[..], 0);
    for (name, value) in attributes.by_ref() {
        let is_known = check_name(FileKind::Regular, name).is_ok() || acl_kind(name).is_some();
        if name <= last || !is_known || value.len() > VALUE_BYTES_MAX {
            return false;
        }
        last = name;
        list_bytes += if name.starts_with(SYSTEM) { 0 } else { name.len() + 1 };
    }
    attributes.0.is_empty() && !set.is_empty() && list_bytes <= LIST_BYTES_MAX
}

pub(crate) fn find<'a>(set: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    Attributes(set).find(|&(at, _)| at == name).map(|(_, value)| value)
}

fn bytes(set: &[u8]) -> usize {
    let shown = Attributes(set).filter(|(name, _)| !name.starts_with(SYSTEM));
    shown.map(|(name, value)| name.len() + value.len()).sum()
}

pub(crate) fn list(set: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    for (name, _) in Attributes(set).filter(|(name, _)| !name.starts_with(SYSTEM)) {
        out.extend_from_slice(name);
        out.push(0);
    }
    out
}

pub(crate) fn with(set: &[u8], name: &[u8], value: Option<&[u8]>) -> Vec<u8> {
    let mut out = Vec::with_capacity(set.len() + 5 + name.len() + value.map_or(0, <[u8]>::len));
    let mut add = |name: &[u8], value: &[u8]| {
        out.push(name.len() as u8);
        out.extend_from_slice(&(value.len() as u32).to_le_bytes());
        out.extend_from_slice(name);
        out.extend_from_slice(value);
    };
    let mut new = value;
    for (at, old) in Attributes(set) {
        if at >= name
            && let Some(value) = new.take()
        {
            add(name, value);
        }
        if at != name {
            add(at, old);
        }
    }
    if let Some(value) = new {
        add(name, value);
    }
    out
}

/// Returns a copy of the attribute set `set` in which `name` has the value `value`. The caller has
/// checked the name.
///
/// # Errors
/// `E2BIG` for a value that is too long. `EEXIST` or `ENODATA` if `mode` forbids the change.
/// `ENOSPC` for too many names or bytes.
pub(crate) fn changed(
    set: &[u8],
    name: &[u8],
    value: &[u8],
    mode: XattrMode,
) -> Result<Vec<u8>, Errno> {
    if value.len() > VALUE_BYTES_MAX {
        return Err(Errno::TOOBIG);
    }
    let old = find(set, name);
    match (mode, old) {
        (XattrMode::Create, Some(_)) => return Err(Errno::EXIST),
        (XattrMode::Replace, None) => return Err(Errno::NODATA),
        (_, None) if list(set).len() + name.len() + 1 > LIST_BYTES_MAX => {
            return Err(Errno::NOSPC);
        }
        _ => {}
    }
    let before = old.map_or(0, |value| name.len() + value.len());
    let after = name.len() + value.len();
    if after > before && bytes(set) - before + after > SET_BYTES_MAX {
        return Err(Errno::NOSPC);
    }
    Ok(with(set, name, Some(value)))
}

/// Returns the ACL in an attribute set, or None if the set has none. `EIO` if the ACL is invalid.
pub(crate) fn acl(set: &[u8], kind: AclKind) -> Result<Option<Acl>, Errno> {
    match find(set, acl_name(kind)) {
        Some(value) => Acl::from_xattr(value).map_err(|_| Errno::IO),
        None => Ok(None),
    }
}

pub(crate) fn with_acl(set: &[u8], kind: AclKind, acl: Option<&Acl>) -> Vec<u8> {
    with(set, acl_name(kind), acl.map(Acl::to_xattr).as_deref())
}

pub(crate) fn acl_name(kind: AclKind) -> &'static [u8] {
    match kind {
        AclKind::Access => XATTR_ACCESS,
        AclKind::Default => XATTR_DEFAULT,
    }
}

fn acl_kind(name: &[u8]) -> Option<AclKind> {
    [AclKind::Access, AclKind::Default].into_iter().find(|&kind| acl_name(kind) == name)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn set_is_a_sorted_map(
            steps in prop::collection::vec(
                ("user\\.[a-d]{1,2}", prop::option::of(prop::collection::vec(any::<u8>(), 0..9))),
                0..30,
            ),
        ) {
            let (mut set, mut model) = (Vec::new(), BTreeMap::new());
            for (name, value) in steps {
                set = with(&set, name.as_bytes(), value.as_deref());
                match value {
                    Some(value) => drop(model.insert(name.clone(), value)),
                    None => drop(model.remove(&name)),
                }
                let got: Vec<_> = Attributes(&set).collect();
                let expected: Vec<_> =
                    model.iter().map(|(n, v)| (n.as_bytes(), v.as_slice())).collect();
                prop_assert_eq!(got, expected);
                prop_assert_eq!(is_set(&set), !model.is_empty());
                prop_assert_eq!(find(&set, name.as_bytes()), model.get(&name).map(Vec::as_slice));
            }
        }

        #[test]
        fn bytes_that_are_cut_off_are_no_set(value in prop::collection::vec(any::<u8>(), 0..9)) {
            let set = with(&with(b"", b"user.a", Some(&value)), b"user.b", Some(b"x"));
            prop_assert!(is_set(&set));
            for len in 0..set.len() {
                let is_first = len == 5 + 6 + value.len();
                prop_assert_eq!(is_set(&set[..len]), is_first, "{} bytes", len);
            }
        }
    }

    #[test]
    fn unsorted_and_unknown_names_are_no_set() {
        let (a, b) = (with(b"", b"user.a", Some(b"")), with(b"", b"user.b", Some(b"")));
        assert!(is_set(&[a.clone(), b.clone()].concat()));
        assert!(!is_set(&[b, a.clone()].concat()));
        assert!(!is_set(&[a.clone(), a].concat()));
        assert!(!is_set(&with(b"", b"other.a", Some(b""))));
    }
}
