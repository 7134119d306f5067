//! The extended attributes and ACLs of one inode, as a comparable content.
//!
//! # Mechanism
//! The attributes are sorted by name. Most files have one or none, so a single one needs no list.
//! An attribute is one allocation: the length of the name in a byte, the name, the value. ACLs are
//! parsed, because they are checked more often than read.
//!
//! The key of a set of attributes (a hash) is the sum of the hashes of its attributes and ACLs.
//! Each attribute keeps its hash, so after a change only new attributes and the ACLs are hashed.
//!
//! Of an attribute over 256 bytes, only the beginning, the end and a few samples are hashed. A full
//! hash would cost more than the comparison of two sets, which follows anyway if their keys are
//! equal.
//!
//! # Invariants
//! - X.1: the limits of xattr(7) hold. A name is at most 255 bytes, a value at most 64 KiB, and all
//!   names with their NULs at most 64 KiB. All names and values are at most 1 MiB, as in
//!   `corewalk-store`.
//!
//! Source: xattr(7), setxattr(2), getxattr(2), listxattr(2).

use crate::Errno;
use crate::acl::Acl;
use crate::fs::{AclKind, XattrMode};
use crate::xattr::NAME_BYTES_MAX;

/// The longest value in bytes (`XATTR_SIZE_MAX`).
const VALUE_BYTES_MAX: usize = 65536;
/// The limit for all names with their NULs, in bytes (`XATTR_LIST_MAX`).
const LIST_BYTES_MAX: usize = 65536;
/// The limit for all names and values of one inode, in bytes. It bounds the cost of copying a
/// shared set.
const SET_BYTES_MAX: u64 = 1 << 20;
/// The largest attribute that is hashed completely, in bytes.
const HASHED_WHOLE_MAX: usize = 256;
const HEAD_BYTES: usize = 128;
const TAIL_BYTES: usize = 64;
const MIDDLE_WORDS: usize = 8;
/// The bytes that are charged for each attribute besides its name and value: about the overhead of
/// the list and the allocator.
pub(super) const ATTR_BYTES: u64 = 48;
const ACL_BYTES: u64 = 4;
const ACL_ENTRY_BYTES: u64 = 8;

#[derive(Clone, Copy, Debug)]
pub(in crate::tmpfs) enum Change<'a> {
    Set(&'a [u8], &'a [u8], XattrMode),
    Remove(&'a [u8]),
    Acl(AclKind, Option<&'a Acl>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Effect {
    Nothing,
    /// The bytes that are charged for the set before and after the change.
    Bytes(u64, u64),
}

/// # Invariants
/// X.1.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::tmpfs) struct Set {
    attrs: Attrs,
    acls: Option<Box<Acls>>,
}

impl Set {
    pub(in crate::tmpfs) fn get(&self, name: &[u8]) -> Result<&[u8], Errno> {
        self.attrs.find(name).map(|at| self.attrs.all()[at].value()).map_err(|_| Errno::NODATA)
    }

    pub(in crate::tmpfs) fn list(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.list_bytes());
        for attr in self.attrs.all() {
            out.extend_from_slice(attr.name());
            out.push(0);
        }
        out
    }

    pub(in crate::tmpfs) fn acl(&self, kind: AclKind) -> Option<&Acl> {
        self.acls.as_ref()?.of(kind)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.attrs.all().is_empty() && self.acls.is_none()
    }

    pub(super) fn bytes(&self) -> u64 {
        let acls = self.acls.as_deref();
        self.attrs.all().iter().map(Attr::charge).sum::<u64>()
            + acls.map_or(0, |acls| acls.0.iter().map(|acl| acl_charge(acl.as_ref())).sum())
    }

    /// Checks a change of this set, without making it.
    ///
    /// # Errors
    /// `E2BIG` for a value that is too long; `EEXIST` and `ENODATA` as the mode of the change
    /// requires; `ENOSPC` for too many names or bytes.
    pub(super) fn effect(&self, change: Change<'_>) -> Result<Effect, Errno> {
        let before = self.bytes();
        let after = match change {
            Change::Set(name, value, mode) => {
                if value.len() > VALUE_BYTES_MAX {
                    return Err(Errno::TOOBIG);
                }
                let old = self.attrs.find(name).map(|at| &self.attrs.all()[at]);
                match (mode, &old) {
                    (XattrMode::Create, Ok(_)) => return Err(Errno::EXIST),
                    (XattrMode::Replace, Err(_)) => return Err(Errno::NODATA),
                    (_, Ok(old)) if old.value() == value => return Ok(Effect::Nothing),
                    (_, Err(_)) if self.list_bytes() + name.len() + 1 > LIST_BYTES_MAX => {
                        return Err(Errno::NOSPC);
                    }
                    _ => {}
                }
                let new = (name.len() + value.len()) as u64;
                let (had, charged) = old.map_or((0, 0), |old| (old.bytes(), old.charge()));
                if new > had && self.attr_bytes() - had + new > SET_BYTES_MAX {
                    return Err(Errno::NOSPC);
                }
                before - charged + new + ATTR_BYTES
            }
            Change::Remove(name) => {
                let at = self.attrs.find(name).map_err(|_| Errno::NODATA)?;
                before - self.attrs.all()[at].charge()
            }
            Change::Acl(kind, acl) => {
                let old = self.acl(kind);
                if old == acl {
                    return Ok(Effect::Nothing);
                }
                before - acl_charge(old) + acl_charge(acl)
            }
        };
        Ok(Effect::Bytes(before, after))
    }

    pub(in crate::tmpfs) fn apply(&mut self, change: Change<'_>) {
        match change {
            Change::Set(name, value, _) => self.attrs.set(name, value),
            Change::Remove(name) => self.attrs.remove(name),
            Change::Acl(kind, acl) => {
                let mut acls = self.acls.take().unwrap_or_default();
                *acls.of_mut(kind) = acl.cloned();
                self.acls = Some(acls).filter(|acls| acls.0.iter().any(Option::is_some));
            }
        }
    }

    pub(super) fn key(&mut self, secret: &Secret) -> u64 {
        let mut key = 0_u64;
        for attr in self.attrs.all_mut() {
            if attr.hash == 0 {
                attr.hash = secret.attr(&attr.bytes);
            }
            key = key.wrapping_add(attr.hash);
        }
        for kind in [AclKind::Access, AclKind::Default] {
            if let Some(acl) = self.acl(kind) {
                key = key.wrapping_add(secret.acl(kind, acl));
            }
        }
        key
    }

    fn attr_bytes(&self) -> u64 {
        self.attrs.all().iter().map(Attr::bytes).sum()
    }

    fn list_bytes(&self) -> usize {
        self.attrs.all().iter().map(|attr| attr.name().len() + 1).sum()
    }
}

/// The secret of the hash. It is random, so that callers cannot craft sets with equal hashes.
#[derive(Clone, Debug)]
pub(super) struct Secret([u64; 8]);

impl Secret {
    pub(super) fn new() -> Secret {
        let state = std::hash::RandomState::new();
        Secret(std::array::from_fn(|n| std::hash::BuildHasher::hash_one(&state, n)))
    }

    fn attr(&self, bytes: &[u8]) -> u64 {
        let len = bytes.len();
        if len <= HASHED_WHOLE_MAX {
            return self.bytes(len as u64, bytes);
        }
        let (head, rest) = bytes.split_at(HEAD_BYTES);
        let (middle, tail) = rest.split_at(rest.len() - TAIL_BYTES);
        let mut some = [0; 8 * MIDDLE_WORDS];
        let step = middle.len() / MIDDLE_WORDS;
        for (nth, word) in some.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            let bytes = &middle[nth * step..];
            word[..8.min(bytes.len())].copy_from_slice(&bytes[..8.min(bytes.len())]);
        }
        let hash = self.bytes(len as u64, head);
        let hash = fold(hash ^ self.0[1], self.bytes(1, &some) ^ self.0[2]);
        fold(hash ^ self.0[3], self.bytes(2, tail) ^ self.0[4])
    }

    fn acl(&self, kind: AclKind, acl: &Acl) -> u64 {
        let word = |e: &crate::acl::Entry| u64::from(e.id) << 32 | (e.tag as u64) << 8;
        acl.entries().iter().fold(self.0[5] ^ kind as u64, |hash, entry| {
            fold(hash ^ self.0[6], (word(entry) | u64::from(entry.perm)) ^ self.0[7])
        })
    }

    /// Returns the hash of `bytes`. Hashes in four lanes, so that the processor overlaps their
    /// multiplications.
    fn bytes(&self, start: u64, bytes: &[u8]) -> u64 {
        let secret = &self.0;
        let mut lanes = [start ^ secret[0], secret[1], secret[2], secret[3]];
        let (blocks, rest) = bytes.as_chunks::<64>();
        for block in blocks {
            let (pairs, _) = block.as_chunks::<16>();
            for (nth, pair) in pairs.iter().enumerate() {
                lanes[nth] = fold_pair(lanes[nth], pair, secret[nth + 4]);
            }
        }
        let (pairs, rest) = rest.as_chunks::<16>();
        for (nth, pair) in pairs.iter().enumerate() {
            lanes[nth] = fold_pair(lanes[nth], pair, secret[nth + 4]);
        }
        let mut last = [0; 16];
        last[..rest.len()].copy_from_slice(rest);
        lanes[3] = fold_pair(lanes[3], &last, secret[7]);
        let halves = fold(lanes[0] ^ secret[6], lanes[1] ^ secret[7]);
        fold(halves ^ lanes[2] ^ secret[5], lanes[3] ^ secret[4])
    }
}

#[derive(Clone, Debug)]
enum Attrs {
    One(Attr),
    Many(Vec<Attr>),
}

impl Attrs {
    #[inline]
    fn all(&self) -> &[Attr] {
        match self {
            Attrs::One(attr) => std::slice::from_ref(attr),
            Attrs::Many(attrs) => attrs,
        }
    }

    #[inline]
    fn all_mut(&mut self) -> &mut [Attr] {
        match self {
            Attrs::One(attr) => std::slice::from_mut(attr),
            Attrs::Many(attrs) => attrs,
        }
    }

    #[inline]
    fn find(&self, name: &[u8]) -> Result<usize, usize> {
        self.all().binary_search_by(|attr| attr.name().cmp(name))
    }

    fn set(&mut self, name: &[u8], value: &[u8]) {
        match self.find(name) {
            Ok(at) => self.all_mut()[at].set_value(value),
            Err(at) => {
                let attr = Attr::new(name, value);
                *self = match std::mem::take(self) {
                    Attrs::Many(attrs) if attrs.is_empty() => Attrs::One(attr),
                    Attrs::Many(mut attrs) => {
                        attrs.insert(at, attr);
                        Attrs::Many(attrs)
                    }
                    Attrs::One(other) if at == 0 => Attrs::Many(vec![attr, other]),
                    Attrs::One(other) => Attrs::Many(vec![other, attr]),
                };
            }
        }
    }

    fn remove(&mut self, name: &[u8]) {
        let Ok(at) = self.find(name) else { return };
        *self = match std::mem::take(self) {
            Attrs::One(_) => Attrs::default(),
            Attrs::Many(mut attrs) => {
                attrs.remove(at);
                match <[Attr; 1]>::try_from(attrs) {
                    Ok([attr]) => Attrs::One(attr),
                    Err(attrs) => Attrs::Many(attrs),
                }
            }
        };
    }
}

impl Default for Attrs {
    fn default() -> Attrs {
        Attrs::Many(Vec::new())
    }
}

impl PartialEq for Attrs {
    fn eq(&self, other: &Attrs) -> bool {
        self.all() == other.all()
    }
}

impl Eq for Attrs {}

#[derive(Clone, Debug)]
struct Attr {
    /// 0 until the hash is computed.
    hash: u64,
    /// The length of the name in one byte, then the name, then the value.
    bytes: Box<[u8]>,
}

impl Attr {
    fn new(name: &[u8], value: &[u8]) -> Attr {
        debug_assert!(name.len() <= NAME_BYTES_MAX, "X.1");
        let mut bytes = Vec::with_capacity(1 + name.len() + value.len());
        bytes.push(name.len() as u8);
        bytes.extend_from_slice(name);
        bytes.extend_from_slice(value);
        Attr { hash: 0, bytes: bytes.into_boxed_slice() }
    }

    #[inline]
    fn name(&self) -> &[u8] {
        &self.bytes[1..=usize::from(self.bytes[0])]
    }

    #[inline]
    fn value(&self) -> &[u8] {
        &self.bytes[1 + usize::from(self.bytes[0])..]
    }

    fn set_value(&mut self, value: &[u8]) {
        let at = 1 + usize::from(self.bytes[0]);
        if self.bytes.len() - at == value.len() {
            self.bytes[at..].copy_from_slice(value);
            self.hash = 0;
        } else {
            *self = Attr::new(&self.bytes[1..at], value);
        }
    }

    fn bytes(&self) -> u64 {
        self.bytes.len() as u64 - 1
    }

    fn charge(&self) -> u64 {
        self.bytes() + ATTR_BYTES
    }
}

impl PartialEq for Attr {
    fn eq(&self, other: &Attr) -> bool {
        self.bytes == other.bytes
    }
}

impl Eq for Attr {}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Acls([Option<Acl>; 2]);

impl Acls {
    fn of(&self, kind: AclKind) -> Option<&Acl> {
        self.0[kind as usize].as_ref()
    }

    fn of_mut(&mut self, kind: AclKind) -> &mut Option<Acl> {
        &mut self.0[kind as usize]
    }
}

fn acl_charge(acl: Option<&Acl>) -> u64 {
    acl.map_or(0, |acl| ACL_BYTES + ACL_ENTRY_BYTES * acl.entries().len() as u64)
}

#[inline]
fn fold(a: u64, b: u64) -> u64 {
    let wide = u128::from(a).wrapping_mul(u128::from(b));
    (wide as u64) ^ ((wide >> 64) as u64)
}

#[inline]
fn fold_pair(lane: u64, pair: &[u8; 16], secret: u64) -> u64 {
    let wide = u128::from_le_bytes(*pair);
    fold(wide as u64 ^ lane, (wide >> 64) as u64 ^ secret)
}
