//! Cookies for back ends that only report names.
//!
//! A client reads a directory in pages, and continues behind a cookie. An entry's cookie is a hash
//! of its name, and entries are listed in the order of their cookies. So a cookie stays valid
//! however the directory changes. An entry that exists during a whole pass is listed exactly once
//! (traps T48, P13).
//!
//! The back end reports all names at once. If they do not fit into one page, a few listings are
//! kept for the next pages. Otherwise each page would list the directory again, which takes
//! quadratic time. A dropped listing is only read again.
//!
//! # Limits
//! Two names of one directory may have the same hash. Then the second one gets the next free
//! cookie, and a change of the first one during a pass may list the second one twice or not at all.
//! At a million names the chance of one such pair is about 1 in 9 million.

use std::collections::VecDeque;
use std::collections::hash_map::RandomState;
use std::ffi::{OsStr, OsString};
use std::hash::BuildHasher;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;

use corewalk_base::Mutex;

use super::PathEntry;
use crate::Errno;
use crate::attr::{Attr, FileKind};
use crate::fs::{DirEntry, DirSink};
use crate::name::Name;

/// Number of listings that are kept for their next pages.
const KEPT: usize = 8;
/// Number of bits by which a hash is shortened to become a cookie. A FUSE server needs cookies
/// below 2^63 - 2.
const LOST_BITS: u32 = 2;

/// The listings of directories that clients have not read to the end.
pub(super) struct Listings {
    hash: RandomState,
    /// For each directory, its inode number and its entries, the newest listing at the back.
    /// Protected by its own mutex.
    kept: Mutex<VecDeque<(u64, Arc<[Listed]>)>>,
}

/// An entry of a listing.
struct Listed {
    cookie: u64,
    name: OsString,
    kind: FileKind,
    ino: u64,
    attr: Option<Attr>,
}

/// Collects the entries that a back end reports.
pub(super) struct Collector<'a> {
    hash: &'a RandomState,
    entries: Vec<Listed>,
}

impl Listings {
    pub(super) fn new() -> Listings {
        Listings { hash: RandomState::new(), kept: Mutex::new(VecDeque::with_capacity(KEPT)) }
    }

    /// Reports the entries of the directory `ino` behind `cookie`. `list` asks the back end for all
    /// entries.
    pub(super) fn read(
        &self,
        ino: u64,
        cookie: u64,
        sink: &mut DirSink<'_>,
        list: impl FnOnce(&mut Collector<'_>) -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        // A pass (one reading of a directory from its start) must see all changes before it began.
        // So it uses no kept listing.
        let kept = self.take(ino).filter(|_| cookie != 0);
        let entries = match kept {
            Some(entries) => entries,
            None => {
                let mut all = Collector { hash: &self.hash, entries: Vec::new() };
                list(&mut all)?;
                all.into_entries()
            }
        };
        let start = entries.partition_point(|entry| entry.cookie <= cookie);
        let rest = &entries[start..];
        let is_full = rest.iter().any(|entry| sink(entry.as_dir_entry()).is_break());
        if is_full {
            self.keep(ino, entries);
        }
        Ok(())
    }

    fn take(&self, ino: u64) -> Option<Arc<[Listed]>> {
        let mut kept = self.kept.lock();
        let at = kept.iter().position(|(dir, _)| *dir == ino)?;
        kept.remove(at).map(|(_, entries)| entries)
    }

    fn keep(&self, ino: u64, entries: Arc<[Listed]>) {
        let mut kept = self.kept.lock();
        let older = if kept.len() == KEPT { kept.pop_front() } else { None };
        kept.push_back((ino, entries));
        drop(kept);
        // A large listing takes long to free. So free it without the lock.
        drop(older);
    }
}

impl Collector<'_> {
    /// Adds an entry, unless its name is `.`, `..` or invalid.
    pub(super) fn add(&mut self, entry: PathEntry<'_>) {
        let PathEntry { name, kind, ino, attr } = entry;
        if Name::new(name.as_bytes()).is_ok() {
            let cookie = (self.hash.hash_one(name.as_bytes()) >> LOST_BITS) + 1;
            self.entries.push(Listed { cookie, name: name.to_owned(), kind, ino, attr });
        }
    }

    fn into_entries(self) -> Arc<[Listed]> {
        let mut entries = self.entries;
        entries.sort_unstable_by(|a, b| (a.cookie, &a.name).cmp(&(b.cookie, &b.name)));
        // A back end may report a name twice, for example from two directories that it unites.
        entries.dedup_by(|a, b| a.name == b.name);
        for i in 1..entries.len() {
            entries[i].cookie = entries[i].cookie.max(entries[i - 1].cookie + 1);
        }
        entries.into()
    }
}

impl Listed {
    fn as_dir_entry(&self) -> DirEntry<'_> {
        let name = Name::new(OsStr::as_bytes(&self.name)).expect("invalid names are left out");
        let entry = DirEntry::new(name, self.ino, self.kind, self.cookie);
        self.attr.map_or(entry, |attr| DirEntry::from_attr(name, attr, self.cookie))
    }
}
