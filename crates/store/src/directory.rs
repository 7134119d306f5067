//! The entries of one directory, as records.
//!
//! As in ext4, directory entries are stored by the hash of their names. All entries with the same
//! hash are in one record. Each entry has a slot: its number within the record, below 16.
//!
//! The cookie of an entry consists of the hash and the slot number, and a listing goes through the
//! cookies in ascending order. So an entry that exists during the whole listing is reported exactly
//! once, whatever else is added or removed (traps T48 and P13 in `traps.md`).
//!
//! # Invariants
//! - C.1: a cookie is never 0, and is below 2^62. So a server that adds a small number to a cookie
//!   still gets a valid 64-bit offset.
//!
//! # Limits
//! The seventeenth name with the same 58-bit hash fails with `ENOSPC`. The hash is keyed, so an
//! attacker cannot craft such names (trap T54 in `traps.md`).
//!
//! The caller holds the lock of the directory's inode.
//!
//! Source: readdir(3), getdents(2); Linux `fs/ext4/hash.c`, `fs/ext4/dir.c`.

use std::ops::ControlFlow;
use std::sync::Arc;

use corewalk::{DirEntry, Errno, FileKind, Name};

use crate::hash::Secret;
use crate::inode::State;
use crate::journal::View;
use crate::record::{Entries, Entry, Key, Kind, SLOTS};

const SLOT_BITS: u32 = 4;
const HASH_BITS: u32 = 58;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Link {
    pub(crate) ino: u64,
    pub(crate) kind: FileKind,
}

#[derive(Clone, Copy)]
pub(crate) struct Hashed<'a> {
    name: &'a [u8],
    hash: u64,
}

impl<'a> Hashed<'a> {
    pub(crate) fn new(name: Name<'a>, secret: &Secret) -> Hashed<'a> {
        Hashed { name: name.as_bytes(), hash: hash_of_name(name, secret) }
    }

    #[cfg(test)]
    pub(crate) fn with_hash(name: &'a [u8], hash: u64) -> Hashed<'a> {
        Hashed { name, hash }
    }
}

/// The entries with one hash, as they were at the lookup. The value is outdated once the directory
/// has changed.
pub(crate) struct NameRecord<'a> {
    key: Key,
    name: &'a [u8],
    record: Option<Arc<[u8]>>,
    found: Option<(u8, Link)>,
}

impl<'a> NameRecord<'a> {
    /// Reads the record for the hash of `name` in the directory `dir`, and looks for `name` in it.
    /// The caller has locked `state`. `EIO` if the entries cannot be read.
    pub(crate) fn find(
        dir: u64,
        state: &State,
        name: Hashed<'a>,
        view: &View,
    ) -> Result<NameRecord<'a>, Errno> {
        let key = Key::at(Kind::Name, dir, name.hash);
        let record = view.get_since(&key, state.born)?;
        let name = name.name;
        let mut name_record = NameRecord { key, name, record, found: None };
        for entry in name_record.entries() {
            let Entry { slot, kind, ino, name: at } = entry?;
            if at == name {
                name_record.found = Some((slot, Link { ino, kind }));
                break;
            }
        }
        Ok(name_record)
    }

    pub(crate) fn link(&self) -> Option<Link> {
        self.found.map(|(_, link)| link)
    }

    pub(crate) fn is_beside(&self, other: &NameRecord<'_>) -> bool {
        self.key == other.key
    }

    pub(crate) fn check_room(&self) -> Result<u8, Errno> {
        let is_free = |slot: u8| !self.entries().flatten().any(|entry| entry.slot == slot);
        (0..SLOTS).find(|&slot| is_free(slot)).ok_or(Errno::NOSPC)
    }

    /// Adds the name if the directory does not have it. `ENOSPC` if the record for its hash is
    /// full.
    pub(crate) fn set(&self, link: Link, view: &View) -> Result<(), Errno> {
        let slot = match self.found {
            Some((slot, _)) => slot,
            None => self.check_room()?,
        };
        self.write(slot, Some(link), view);
        Ok(())
    }

    pub(crate) fn remove(&self, view: &View) {
        if let Some((slot, _)) = self.found {
            self.write(slot, None, view);
        }
    }

    fn write(&self, slot: u8, link: Option<Link>, view: &View) {
        let mut out = Vec::with_capacity(64);
        let mut new = link.map(|Link { ino, kind }| Entry { slot, kind, ino, name: self.name });
        for entry in self.entries().flatten() {
            if let Some(new) = new.take_if(|_| entry.slot >= slot) {
                new.encode(&mut out);
            }
            if entry.slot != slot {
                entry.encode(&mut out);
            }
        }
        if let Some(new) = new {
            new.encode(&mut out);
        }
        match (out.is_empty(), &self.record) {
            (true, _) => view.remove(self.key),
            (false, None) => view.put_new(self.key, &out),
            (false, Some(_)) => view.put(self.key, &out),
        }
    }

    fn entries(&self) -> Entries<'_> {
        Entries(self.record.as_deref().unwrap_or_default())
    }
}

/// Checks that the directory `dir` is empty. The caller has locked the `state` of the directory.
///
/// # Errors
/// `ENOTEMPTY` if the count of entries in `state` is not 0. `EIO` if the count is 0 but there are
/// entries, or if the entries cannot be read.
pub(crate) fn check_empty(dir: u64, state: &State, view: &View) -> Result<(), Errno> {
    if state.record.size > 0 {
        return Err(Errno::NOTEMPTY);
    }
    let (mut records, mut from) = (Vec::new(), Some(0));
    while let Some(next) = from.filter(|_| records.is_empty()) {
        from = view.collect_from(Kind::Name, dir, next, &mut records)?;
    }
    if records.is_empty() { Ok(()) } else { Err(Errno::IO) }
}

#[derive(Default)]
pub(crate) struct Batch {
    records: Vec<(u64, Arc<[u8]>)>,
}

impl Batch {
    /// Reads the next entries of the directory `dir`, from the hash `from` on. Returns the hash at
    /// which the next call continues, or None at the end. `EIO` if the entries cannot be read.
    pub(crate) fn fill(&mut self, dir: u64, from: u64, view: &View) -> Result<Option<u64>, Errno> {
        self.records.clear();
        view.collect_from(Kind::Name, dir, from, &mut self.records)
    }

    pub(crate) fn report(
        &self,
        cookie: u64,
        sink: &mut corewalk::DirSink<'_>,
    ) -> Result<ControlFlow<()>, Errno> {
        for (hash, record) in &self.records {
            for entry in Entries(record) {
                let Entry { slot, kind, ino, name } = entry?;
                let at = cookie_of(*hash, slot);
                if at <= cookie {
                    continue;
                }
                let name = Name::new(name).map_err(|_| Errno::IO)?;
                if sink(DirEntry::new(name, ino, kind, at)).is_break() {
                    return Ok(ControlFlow::Break(()));
                }
            }
        }
        Ok(ControlFlow::Continue(()))
    }
}

pub(crate) fn hash_of_name(name: Name<'_>, secret: &Secret) -> u64 {
    let hash = secret.hash(name.as_bytes()) >> (u64::BITS - HASH_BITS);
    // Invariant C.1: a cookie, and so a hash, is never 0.
    hash.max(1)
}

pub(crate) fn hash_of(cookie: u64) -> u64 {
    cookie >> SLOT_BITS
}

fn cookie_of(hash: u64, slot: u8) -> u64 {
    hash << SLOT_BITS | u64::from(slot)
}
