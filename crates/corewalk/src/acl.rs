//! POSIX access control lists.
//!
//! An [`Acl`] says which users and groups may read, write and execute a file, beyond the nine
//! permission bits. New files inherit the default ACL of their directory. Each constructor checks
//! invariants A.1 and A.2 below, so permission checks and inheritance can rely on them.
//!
//! # Mechanism
//! The entries are a small slice, sorted by tag and then by id: the order in which acl(5) checks
//! permissions. The entries of the owner and of others mirror the permission bits of the mode.
//!
//! The group bits of the mode mirror the entry of the owning group or, if the ACL has a mask entry,
//! the mask. The mask limits the permissions of named users, of the owning group and of named
//! groups.
//!
//! The stored form of an ACL is version 2 of the `system.posix_acl_*` attributes. It is a
//! little-endian `u32` version, then per entry `u16` tag, `u16` permission, `u32` id.
//!
//! # Invariants
//! - A.1: there is exactly one entry each for owner, owning group and others. There is at most one
//!   mask, which is required if a user or group is named (acl(5), VALID ACLs).
//! - A.2: no user and no group is named twice, no id is `u32::MAX`, no permission is above 7.
//! - A.3: entries without an id have the id `u32::MAX`, so equal lists compare equal.
//!
//! # Differences
//! Linux accepts an ACL that names the same user twice, and uses the first entry. acl(5) forbids
//! such an ACL, and this type refuses it with `EINVAL`.
//!
//! Source: acl(5); POSIX.1e draft 17; Linux `include/uapi/linux/posix_acl_xattr.h`.
//!
//! # Examples
//! ```
//! use corewalk::acl::{Acl, Entry, Tag};
//! let acl = Acl::new([
//!     Entry::new(Tag::UserObj, 0o6, Entry::NO_ID),
//!     Entry::new(Tag::User, 0o6, 1000),
//!     Entry::new(Tag::GroupObj, 0o4, Entry::NO_ID),
//!     Entry::new(Tag::Mask, 0o4, Entry::NO_ID),
//!     Entry::new(Tag::Other, 0, Entry::NO_ID),
//! ])?;
//! // The mask takes the write permission from user 1000.
//! assert!(acl.check(1000, |_| false, 0, 0, 0o4));
//! assert!(!acl.check(1000, |_| false, 0, 0, 0o2));
//! assert_eq!(Acl::from_xattr(&acl.to_xattr())?, Some(acl));
//! # Ok::<(), corewalk::Errno>(())
//! ```

use crate::Errno;

/// The name of the extended attribute that carries the access ACL.
pub const XATTR_ACCESS: &[u8] = b"system.posix_acl_access";
/// The name of the extended attribute that carries the default ACL.
pub const XATTR_DEFAULT: &[u8] = b"system.posix_acl_default";

/// The only version of the attribute's format that is accepted (`POSIX_ACL_XATTR_VERSION`).
const VERSION: u32 = 2;
const HEADER_BYTES: usize = 4;
const ENTRY_BYTES: usize = 8;

/// A valid ACL; see the module documentation.
///
/// # Invariants
/// The entries are sorted by tag and id. They form a valid list without duplicate users or groups
/// (A.1 to A.3 of the module documentation).
///
/// # Examples
/// ```
/// use corewalk::acl::{Acl, Entry, Tag};
///
/// let mut entries = Acl::from_mode(0o640).entries().to_vec();
/// entries.extend([Entry::new(Tag::User, 6, 1001), Entry::new(Tag::Mask, 6, Entry::NO_ID)]);
/// let acl = Acl::new(entries)?;
/// assert_eq!((acl.mode(), acl.equivalent_mode()), (0o660, None));
/// // The file belongs to user and group 1000. User 1001 may write it, user 1002 may not read it.
/// let in_no_group = |_| false;
/// assert!(acl.check(1001, in_no_group, 1000, 1000, 2));
/// assert!(!acl.check(1002, in_no_group, 1000, 1000, 4));
/// assert_eq!(Acl::from_xattr(&acl.to_xattr())?, Some(acl));
/// # Ok::<(), corewalk::Errno>(())
/// ```
#[doc(alias = "posix_acl")]
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Acl {
    entries: Box<[Entry]>,
}

impl Acl {
    /// Returns the ACL with the given entries, which may come in any order.
    ///
    /// # Errors
    /// `EINVAL` if a required entry is missing, or if an entry is forbidden, occurs twice, or has a
    /// value out of range. See invariants A.1 and A.2 of the module.
    pub fn new(entries: impl IntoIterator<Item = Entry>) -> Result<Acl, Errno> {
        let mut entries: Vec<Entry> =
            entries.into_iter().map(|e| Entry::new(e.tag, e.perm, e.id)).collect();
        entries.sort_unstable_by_key(|e| (e.tag, e.id));
        check_valid(&entries)?;
        Ok(Acl { entries: entries.into_boxed_slice() })
    }

    /// Returns the ACL of three entries that is equivalent to the permission bits of `mode`.
    pub fn from_mode(mode: u32) -> Acl {
        let entry = |tag, shift: u32| Entry::new(tag, (mode >> shift & 7) as u8, Entry::NO_ID);
        let entries = [entry(Tag::UserObj, 6), entry(Tag::GroupObj, 3), entry(Tag::Other, 0)];
        Acl { entries: Box::new(entries) }
    }

    /// Parses the value of a `system.posix_acl_*` attribute. Returns None if the value has no
    /// entries, because such a value means that there is no ACL.
    ///
    /// # Errors
    /// `EOPNOTSUPP` for a version other than 2; `EINVAL` for a truncated value, an unknown tag or
    /// permission, or an invalid ACL.
    ///
    /// # Examples
    /// ```
    /// use corewalk::acl::Acl;
    /// let acl = Acl::from_mode(0o640);
    /// assert_eq!(Acl::from_xattr(&acl.to_xattr())?, Some(acl));
    /// assert_eq!(Acl::from_xattr(b"")?, None);
    /// # Ok::<(), corewalk::Errno>(())
    /// ```
    pub fn from_xattr(bytes: &[u8]) -> Result<Option<Acl>, Errno> {
        if bytes.is_empty() {
            return Ok(None);
        }
        let (version, body) = bytes.split_first_chunk::<HEADER_BYTES>().ok_or(Errno::INVAL)?;
        if u32::from_le_bytes(*version) != VERSION {
            return Err(Errno::OPNOTSUPP);
        }
        let (chunks, rest) = body.as_chunks::<ENTRY_BYTES>();
        if !rest.is_empty() {
            return Err(Errno::INVAL);
        }
        if chunks.is_empty() {
            return Ok(None);
        }
        let entries = chunks.iter().map(Entry::from_bytes).collect::<Result<Vec<_>, _>>()?;
        Acl::new(entries).map(Some)
    }

    /// Returns the value of the `system.posix_acl_*` attribute, which [`Acl::from_xattr`] parses.
    pub fn to_xattr(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(HEADER_BYTES + ENTRY_BYTES * self.entries.len());
        out.extend_from_slice(&VERSION.to_le_bytes());
        for entry in &self.entries {
            out.extend_from_slice(&(entry.tag as u16).to_le_bytes());
            out.extend_from_slice(&u16::from(entry.perm).to_le_bytes());
            out.extend_from_slice(&entry.id.to_le_bytes());
        }
        out
    }

    /// Returns the entries, sorted by tag and id.
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// Returns the nine permission bits of the ACL: those of the owner, of the mask, and of others.
    /// Without a mask, those of the owning group take its place.
    pub fn mode(&self) -> u32 {
        let group = self.perm_of(Tag::Mask).or(self.perm_of(Tag::GroupObj)).unwrap_or(0);
        let user = self.perm_of(Tag::UserObj).unwrap_or(0);
        let other = self.perm_of(Tag::Other).unwrap_or(0);
        u32::from(user) << 6 | u32::from(group) << 3 | u32::from(other)
    }

    /// Returns the permission bits that are equivalent to this ACL. Returns None if the ACL has a
    /// mask, because permission bits alone cannot express a mask.
    #[doc(alias = "posix_acl_equiv_mode")]
    pub fn equivalent_mode(&self) -> Option<u32> {
        match self.perm_of(Tag::Mask) {
            None => Some(self.mode()),
            Some(_) => None,
        }
    }

    /// Changes the ACL as chmod(2) does: the permission bits in `mode` replace the permissions of
    /// the owner, of the mask and of others. Without a mask, the group bits replace the permissions
    /// of the owning group.
    #[doc(alias = "posix_acl_chmod")]
    pub fn chmod(&mut self, mode: u32) {
        let group = self.group_class();
        for entry in &mut self.entries {
            if let Some(shift) = class_shift(entry.tag, group) {
                entry.perm = (mode >> shift & 7) as u8;
            }
        }
    }

    /// Returns the mode and the access ACL of a file made with `mode` in a directory whose default
    /// ACL is `self`. The ACL is None if the mode alone expresses it. The umask is ignored. A new
    /// directory also gets `self` as its default ACL.
    ///
    /// # Examples
    /// ```
    /// use corewalk::acl::Acl;
    /// let default = Acl::from_mode(0o750);
    /// assert_eq!(default.inherit(0o666), (0o640, None));
    /// ```
    #[doc(alias = "posix_acl_create_masq")]
    pub fn inherit(&self, mode: u32) -> (u32, Option<Acl>) {
        let mut acl = self.clone();
        let group = acl.group_class();
        for entry in &mut acl.entries {
            if let Some(shift) = class_shift(entry.tag, group) {
                entry.perm &= (mode >> shift & 7) as u8;
            }
        }
        let mode = mode & !0o777 | acl.mode();
        (mode, acl.equivalent_mode().is_none().then_some(acl))
    }

    /// Returns true if a process with `uid` has the permissions `want` (read 4, write 2, execute 1)
    /// for a file of `owner` and `group`. `is_member` tells whether the process is in a group,
    /// supplementary ones included.
    ///
    /// Follows the access check algorithm of acl(5). Ignores capabilities, which the caller checks.
    ///
    /// # Examples
    /// ```
    /// use corewalk::acl::Acl;
    ///
    /// let owner_only = Acl::from_mode(0o600);
    /// assert!(owner_only.check(7, |_| false, 7, 7, 4 | 2));
    /// assert!(!owner_only.check(8, |group| group == 7, 7, 7, 4));
    /// ```
    #[doc(alias = "posix_acl_permission")]
    pub fn check(
        &self,
        uid: u32,
        mut is_member: impl FnMut(u32) -> bool,
        owner: u32,
        group: u32,
        want: u32,
    ) -> bool {
        let allows = |perm: u8| want & !u32::from(perm) == 0;
        let mask = self.perm_of(Tag::Mask).unwrap_or(7);
        let mut is_in_group_class = false;
        for entry in &self.entries {
            match entry.tag {
                Tag::UserObj if uid == owner => return allows(entry.perm),
                Tag::User if uid == entry.id => return allows(entry.perm & mask),
                Tag::GroupObj | Tag::Group => {
                    let id = if entry.tag == Tag::Group { entry.id } else { group };
                    if is_member(id) {
                        if allows(entry.perm & mask) {
                            return true;
                        }
                        is_in_group_class = true;
                    }
                }
                Tag::Other => return !is_in_group_class && allows(entry.perm),
                Tag::UserObj | Tag::User | Tag::Mask => {}
            }
        }
        false
    }

    fn perm_of(&self, tag: Tag) -> Option<u8> {
        self.entries.iter().find(|e| e.tag == tag).map(|e| e.perm)
    }

    fn group_class(&self) -> Tag {
        self.perm_of(Tag::Mask).map_or(Tag::GroupObj, |_| Tag::Mask)
    }
}

/// One entry of an ACL.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Entry {
    /// The class of users that the entry is for.
    pub tag: Tag,
    /// The permissions: read 4, write 2, execute 1.
    pub perm: u8,
    /// The id of the user or group in an entry with [`Tag::User`] or [`Tag::Group`]. In all other
    /// entries it is [`Entry::NO_ID`].
    pub id: u32,
}

impl Entry {
    /// The id in an entry that names no user and no group (`ACL_UNDEFINED_ID`).
    pub const NO_ID: u32 = u32::MAX;

    /// Returns an entry. `id` is ignored unless `tag` is [`Tag::User`] or [`Tag::Group`].
    pub fn new(tag: Tag, perm: u8, id: u32) -> Entry {
        Entry { tag, perm, id: if tag.has_id() { id } else { Entry::NO_ID } }
    }

    fn from_bytes(bytes: &[u8; ENTRY_BYTES]) -> Result<Entry, Errno> {
        let [tag_low, tag_high, perm_low, perm_high, id @ ..] = *bytes;
        let tag = Tag::from_number(u16::from_le_bytes([tag_low, tag_high])).ok_or(Errno::INVAL)?;
        let perm = u16::from_le_bytes([perm_low, perm_high]);
        let perm = u8::try_from(perm).map_err(|_| Errno::INVAL)?;
        Ok(Entry::new(tag, perm, u32::from_le_bytes(id)))
    }
}

/// The tag of an ACL entry: the class of users to which it applies. The variants have the numbers
/// of the stored form.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u16)]
pub enum Tag {
    /// The owner (`ACL_USER_OBJ`).
    UserObj = 0x01,
    /// A named user (`ACL_USER`).
    User = 0x02,
    /// The owning group (`ACL_GROUP_OBJ`).
    GroupObj = 0x04,
    /// A named group (`ACL_GROUP`).
    Group = 0x08,
    /// The upper bound (`ACL_MASK`) of the permissions of all entries except the owner and others.
    Mask = 0x10,
    /// All other users (`ACL_OTHER`).
    Other = 0x20,
}

impl Tag {
    /// Returns true if an entry with this tag names a user or a group.
    pub fn has_id(self) -> bool {
        matches!(self, Tag::User | Tag::Group)
    }

    fn from_number(number: u16) -> Option<Tag> {
        let all = [Tag::UserObj, Tag::User, Tag::GroupObj, Tag::Group, Tag::Mask, Tag::Other];
        all.into_iter().find(|&tag| tag as u16 == number)
    }
}

fn class_shift(tag: Tag, group: Tag) -> Option<u32> {
    match tag {
        Tag::UserObj => Some(6),
        Tag::Other => Some(0),
        _ if tag == group => Some(3),
        _ => None,
    }
}

fn check_valid(entries: &[Entry]) -> Result<(), Errno> {
    let count = |tag| entries.iter().filter(|e| e.tag == tag).count();
    let has_required = [Tag::UserObj, Tag::GroupObj, Tag::Other].into_iter().all(|t| count(t) == 1);
    let needs_mask = count(Tag::User) + count(Tag::Group) > 0;
    let has_valid_mask = count(Tag::Mask) <= 1 && (count(Tag::Mask) == 1 || !needs_mask);
    let is_unique = entries.windows(2).all(|w| (w[0].tag, w[0].id) != (w[1].tag, w[1].id));
    let has_valid_fields =
        entries.iter().all(|e| e.perm <= 7 && (e.id != Entry::NO_ID || !e.tag.has_id()));
    match has_required && has_valid_mask && is_unique && has_valid_fields {
        true => Ok(()),
        false => Err(Errno::INVAL),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn acl(entries: &[(Tag, u8, u32)]) -> Result<Acl, Errno> {
        Acl::new(entries.iter().map(|&(tag, perm, id)| Entry::new(tag, perm, id)))
    }

    fn named() -> Acl {
        acl(&[
            (Tag::Other, 1, 0),
            (Tag::Group, 6, 30),
            (Tag::Group, 4, 20),
            (Tag::UserObj, 7, 0),
            (Tag::User, 7, 1000),
            (Tag::GroupObj, 5, 0),
            (Tag::Mask, 6, 0),
        ])
        .unwrap()
    }

    #[test]
    fn new_of_invalid_lists_is_einval() {
        use Tag::*;
        let base = [(UserObj, 7, 0), (GroupObj, 5, 0), (Other, 0, 0)];
        assert!(acl(&base).is_ok());
        let with = |more: &[(Tag, u8, u32)]| acl(&[&base, more].concat());
        for missing in 0..3 {
            let mut less = base.to_vec();
            less.remove(missing);
            assert_eq!(acl(&less), Err(Errno::INVAL), "without {:?}", base[missing]);
            assert_eq!(with(&[base[missing]]), Err(Errno::INVAL), "twice {:?}", base[missing]);
        }
        assert_eq!(acl(&[]), Err(Errno::INVAL));
        assert!(with(&[(Mask, 7, 0)]).is_ok());
        assert_eq!(with(&[(User, 7, 1)]), Err(Errno::INVAL), "a named user without a mask");
        assert_eq!(with(&[(Group, 7, 1)]), Err(Errno::INVAL), "a named group without a mask");
        assert_eq!(with(&[(Mask, 7, 0), (Mask, 7, 0)]), Err(Errno::INVAL));
        assert!(with(&[(Mask, 7, 0), (User, 7, 1), (Group, 7, 1), (User, 7, 2)]).is_ok());
        assert_eq!(with(&[(Mask, 7, 0), (User, 7, 1), (User, 3, 1)]), Err(Errno::INVAL));
        assert_eq!(with(&[(Mask, 7, 0), (Group, 7, 1), (Group, 3, 1)]), Err(Errno::INVAL));
        assert_eq!(with(&[(Mask, 8, 0)]), Err(Errno::INVAL));
        assert_eq!(with(&[(Mask, 7, 0), (User, 7, u32::MAX)]), Err(Errno::INVAL));
    }

    #[test]
    fn xattr_form_is_that_of_linux() {
        // The value that `setfacl -m u:1000:rw` stores for a file with mode 0640.
        let bytes = [
            2, 0, 0, 0, 1, 0, 6, 0, 255, 255, 255, 255, 2, 0, 6, 0, 232, 3, 0, 0, 4, 0, 4, 0, 255,
            255, 255, 255, 16, 0, 6, 0, 255, 255, 255, 255, 32, 0, 0, 0, 255, 255, 255, 255,
        ];
        let parsed = Acl::from_xattr(&bytes).unwrap().unwrap();
        assert_eq!(parsed.to_xattr(), bytes);
        assert_eq!(parsed.mode(), 0o660);
        assert_eq!(parsed.equivalent_mode(), None);
    }

    #[test]
    fn from_xattr_of_malformed_values_fails() {
        let good = named().to_xattr();
        assert_eq!(Acl::from_xattr(&[]), Ok(None));
        assert_eq!(Acl::from_xattr(&good[..4]), Ok(None));
        for len in 1..good.len() {
            if len != HEADER_BYTES {
                assert_eq!(Acl::from_xattr(&good[..len]), Err(Errno::INVAL), "{len} bytes");
            }
        }
        let changed = |at: usize, to: u8| {
            let mut bytes = good.clone();
            bytes[at] = to;
            Acl::from_xattr(&bytes)
        };
        assert_eq!(changed(0, 1), Err(Errno::OPNOTSUPP));
        assert_eq!(changed(3, 1), Err(Errno::OPNOTSUPP));
        assert_eq!(changed(4, 3), Err(Errno::INVAL), "unknown tag");
        assert_eq!(changed(5, 1), Err(Errno::INVAL), "unknown tag");
        assert_eq!(changed(6, 8), Err(Errno::INVAL), "unknown permission");
        assert_eq!(changed(7, 1), Err(Errno::INVAL), "unknown permission");
    }

    #[test]
    fn mode_of_minimal_acl_round_trips() {
        for mode in 0..=0o777 {
            let acl = Acl::from_mode(0o7000 | mode);
            assert_eq!(acl.equivalent_mode(), Some(mode));
            assert_eq!(acl.mode(), mode);
        }
    }

    #[test]
    fn chmod_changes_mask_or_group() {
        let mut minimal = Acl::from_mode(0o777);
        minimal.chmod(0o140_651);
        assert_eq!(minimal, Acl::from_mode(0o651));
        let mut with_mask = named();
        with_mask.chmod(0o640);
        assert_eq!(with_mask.mode(), 0o640);
        assert_eq!(
            with_mask.perm_of(Tag::GroupObj),
            Some(5),
            "chmod changed the owning group's entry"
        );
        assert_eq!(with_mask.perm_of(Tag::Mask), Some(4));
        assert_eq!(with_mask.perm_of(Tag::User), Some(7));
    }

    #[test]
    fn inherit_bounds_acl_and_mode_by_each_other() {
        let (mode, acl) = Acl::from_mode(0o751).inherit(0o100_666);
        assert_eq!((mode, acl), (0o100_640, None));
        let (mode, acl) = named().inherit(0o104_644);
        let acl = acl.unwrap();
        assert_eq!(mode, 0o104_640);
        assert_eq!(acl.mode(), 0o640);
        assert_eq!(acl.perm_of(Tag::Mask), Some(4));
        assert_eq!(acl.perm_of(Tag::GroupObj), Some(5), "inherit changed the owning group's entry");
        assert_eq!(acl.perm_of(Tag::User), Some(7));
    }

    #[test]
    fn check_follows_acl5() {
        let acl = named();
        // Each row is a permission check: user id, groups, wanted permissions, and whether the ACL
        // allows them. The file's owner is 1, and its group is 10.
        let table: [(u32, &[u32], u32, bool); 17] = [
            (1, &[], 7, true),
            (1, &[10], 7, true),
            (1000, &[], 6, true),
            (1000, &[], 1, false),
            (1000, &[30], 7, false),
            (2, &[10], 4, true),
            (2, &[10], 1, false),
            (2, &[20], 4, true),
            (2, &[20], 2, false),
            (2, &[30], 6, true),
            (2, &[10, 20, 30], 2, true),
            (2, &[10, 20], 2, false),
            (2, &[10, 20], 1, false),
            (2, &[40], 1, true),
            (2, &[], 1, true),
            (2, &[], 4, false),
            (2, &[20], 0, true),
        ];
        for (uid, groups, want, allowed) in table {
            let got = acl.check(uid, |gid| groups.contains(&gid), 1, 10, want);
            assert_eq!(got, allowed, "uid {uid} groups {groups:?} want {want}");
        }
        let minimal = Acl::from_mode(0o604);
        assert!(
            !minimal.check(2, |gid| gid == 10, 1, 10, 4),
            "a group member got the permissions of others"
        );
        assert!(minimal.check(2, |_| false, 1, 10, 4));
    }

    prop_compose! {
        fn any_acl()(
            perms in any::<[u8; 4]>(),
            users in prop::collection::btree_map(0..u32::MAX, 0..8u8, 0..4),
            groups in prop::collection::btree_map(0..u32::MAX, 0..8u8, 0..4),
            has_mask in any::<bool>(),
        ) -> Acl {
            let needs_mask = has_mask || !users.is_empty() || !groups.is_empty();
            let tags = [Tag::UserObj, Tag::GroupObj, Tag::Other, Tag::Mask];
            let fixed = tags.into_iter().zip(perms).take(if needs_mask { 4 } else { 3 });
            let fixed = fixed.map(|(tag, perm)| Entry::new(tag, perm & 7, 0));
            let users = users.into_iter().map(|(id, perm)| Entry::new(Tag::User, perm, id));
            let groups = groups.into_iter().map(|(id, perm)| Entry::new(Tag::Group, perm, id));
            Acl::new(fixed.chain(groups).chain(users)).unwrap()
        }
    }

    proptest! {
        #[test]
        fn xattr_form_round_trips(acl in any_acl()) {
            prop_assert_eq!(Acl::from_xattr(&acl.to_xattr()), Ok(Some(acl)));
        }

        #[test]
        fn from_xattr_of_any_bytes_is_valid_or_fails(
            has_version in any::<bool>(),
            mut bytes in prop::collection::vec(prop_oneof![0..9u8, any::<u8>()], 0..80),
        ) {
            if has_version && bytes.len() >= HEADER_BYTES {
                bytes[..HEADER_BYTES].copy_from_slice(&VERSION.to_le_bytes());
            }
            if let Ok(Some(acl)) = Acl::from_xattr(&bytes) {
                prop_assert_eq!(check_valid(acl.entries()), Ok(()));
                prop_assert_eq!(Acl::from_xattr(&acl.to_xattr()), Ok(Some(acl)));
            }
        }

        #[test]
        fn chmod_then_mode_is_that_mode(mut acl in any_acl(), mode in 0..=0o777u32) {
            acl.chmod(mode);
            prop_assert_eq!(acl.mode(), mode);
            prop_assert_eq!(check_valid(acl.entries()), Ok(()));
        }

        #[test]
        fn inherit_never_grants_more_than_either(acl in any_acl(), mode in 0..=0o777u32) {
            let (got, access) = acl.inherit(mode);
            prop_assert_eq!(got, mode & acl.mode());
            prop_assert_eq!(access.is_some(), acl.equivalent_mode().is_none());
            if let Some(access) = access {
                prop_assert_eq!(access.mode(), got);
            }
        }

        #[test]
        fn check_of_minimal_acl_is_that_of_the_mode(
            mode in 0..=0o777u32, uid in 0..3u32, is_member in any::<bool>(), want in 0..8u32,
        ) {
            let class = if uid == 1 { mode >> 6 } else if is_member { mode >> 3 } else { mode };
            let got = Acl::from_mode(mode).check(uid, |_| is_member, 1, 10, want);
            prop_assert_eq!(got, want & !class & 7 == 0);
        }
    }
}
