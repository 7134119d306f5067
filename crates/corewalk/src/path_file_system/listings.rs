//! Cookies for back ends that only report names.
//!
//! A client reads a directory in pages, each from the cookie of the last entry on. The cookie of an
//! entry is a hash of its name, and entries are listed in the order of their cookies. So a cookie
//! stays valid however the directory changes.
//!
//! An entry that exists during a whole listing, from the first page to the last, is listed exactly
//! once (traps T48, P13 in `traps.md`).
//!
//! A back end by path lists a directory only as a whole. To list it again for each page would take
//! quadratic time. So this module keeps a few large listings for the next pages of clients. A
//! client never gets a page from a listing that is older than that of its first page. Therefore a
//! listing is not kept if a newer one of its directory has ended before it.
//!
//! # Limits
//! Of two names with the same hash in one directory, the second gets the next free cookie. If the
//! first changes during a listing, the second may be listed twice or not at all. In a directory of
//! a million names, the chance of one such pair is about 1 in 9 million.

use std::collections::VecDeque;
use std::collections::hash_map::RandomState;
use std::ffi::{OsStr, OsString};
use std::hash::BuildHasher;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use corewalk_base::Mutex;

use super::PathEntry;
use crate::Errno;
use crate::attr::{Attr, FileKind};
use crate::fs::{DirEntry, DirSink};
use crate::name::Name;

const KEPT: usize = 8;
/// Minimum number of entries of a listing that is kept. A smaller directory is cheap to list again,
/// and many small listings must not evict a large one.
const KEPT_ENTRIES_MIN: usize = 256;
/// A listing is dropped if no client reads it during this many calls of [`Listings::age`], which a
/// server calls about once per second.
const IDLE_MAX: u32 = 30;
/// The number of low bits of a name's hash that the cookie leaves out. This keeps cookies below
/// 2^63 - 2, as a FUSE server needs.
const LOST_BITS: u32 = 2;

pub(super) struct Listings {
    hash: RandomState,
    /// Protected by its own mutex.
    kept: Mutex<Kept>,
}

#[derive(Default)]
struct Kept {
    /// Listings for the next pages of clients, the least recently read first. A directory has at
    /// most one: the newest.
    queue: VecDeque<Listing>,
    begun: u64,
    /// The directory and the number of each running listing that may be kept. A listing that ends
    /// removes the older ones of its directory.
    running: Vec<(Identity, u64)>,
}

/// The inode number and the generation of a directory, which a rename does not change.
type Identity = (u64, Option<u64>);

struct Listing {
    dir: Identity,
    idle: u32,
    entries: Arc<[Listed]>,
}

struct Running<'a> {
    listings: &'a Listings,
    dir: Identity,
    number: u64,
}

struct Listed {
    cookie: u64,
    name: OsString,
    kind: FileKind,
    ino: u64,
    attr: Option<Attr>,
}

pub(super) struct Collector<'a> {
    hash: &'a RandomState,
    entries: Vec<Listed>,
}

impl Listings {
    pub(super) fn new() -> Listings {
        Listings { hash: RandomState::new(), kept: Mutex::default() }
    }

    pub(super) fn read(
        &self,
        (dir, path): (Identity, PathBuf),
        cookie: u64,
        sink: &mut DirSink<'_>,
        list: impl FnOnce(&Path, &mut Collector<'_>) -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        // A client that begins to read must see all earlier changes, so do not use a kept listing.
        let kept = if cookie == 0 { None } else { self.get(dir) };
        let is_new = kept.is_none();
        let entries = match kept {
            Some(entries) => entries,
            None => {
                let running = self.begin(dir);
                let mut all = Collector { hash: &self.hash, entries: Vec::new() };
                list(&path, &mut all)?;
                let entries = all.into_entries();
                self.keep(&running, &entries);
                entries
            }
        };
        let start = entries.partition_point(|entry| entry.cookie <= cookie);
        for entry in &entries[start..] {
            // The attributes in a kept listing are old: a client may have changed the file since.
            // So do not report them, because the cache would take them for current.
            if sink(entry.as_dir_entry(is_new)).is_break() {
                break;
            }
        }
        Ok(())
    }

    fn begin(&self, dir: Identity) -> Running<'_> {
        let mut kept = self.kept.lock();
        kept.begun += 1;
        let number = kept.begun;
        kept.running.push((dir, number));
        Running { listings: self, dir, number }
    }

    fn get(&self, dir: Identity) -> Option<Arc<[Listed]>> {
        let mut kept = self.kept.lock();
        let at = kept.queue.iter().position(|listing| listing.dir == dir)?;
        let listing = kept.queue.remove(at)?;
        let entries = Arc::clone(&listing.entries);
        kept.queue.push_back(Listing { idle: 0, ..listing });
        Some(entries)
    }

    fn keep(&self, running: &Running<'_>, entries: &Arc<[Listed]>) {
        let &Running { dir, number, .. } = running;
        let mut kept = self.kept.lock();
        if !kept.running.contains(&(dir, number)) {
            return;
        }
        kept.running.retain(|other| other.0 != dir || other.1 > number);
        let older = kept.queue.iter().position(|listing| listing.dir == dir);
        let replaced = older.and_then(|at| kept.queue.remove(at));
        let is_kept = entries.len() >= KEPT_ENTRIES_MIN;
        let is_full = is_kept && kept.queue.len() == KEPT;
        let oldest = if is_full { kept.queue.pop_front() } else { None };
        if is_kept {
            kept.queue.push_back(Listing { dir, idle: 0, entries: Arc::clone(entries) });
        }
        drop(kept);
        // Freeing a large listing takes long, so do it after the lock is released.
        drop((replaced, oldest));
    }

    pub(super) fn age(&self) {
        let mut kept = self.kept.lock();
        kept.queue.iter_mut().for_each(|listing| listing.idle += 1);
        let all = std::mem::take(&mut kept.queue);
        let (old, used): (Vec<_>, _) = all.into_iter().partition(|it| it.idle > IDLE_MAX);
        kept.queue = used.into();
        drop(kept);
        drop(old);
    }
}

impl Collector<'_> {
    pub(super) fn add(&mut self, entry: PathEntry<'_>) {
        let PathEntry { name, kind, ino, attr } = entry;
        if Name::new(name.as_bytes()).is_ok() {
            let cookie = (self.hash.hash_one(name.as_bytes()) >> LOST_BITS) + 1;
            self.entries.push(Listed { cookie, name: name.to_owned(), kind, ino, attr });
        }
    }

    fn into_entries(self) -> Arc<[Listed]> {
        let mut entries = self.entries;
        // A back end may report a name twice, for example in the union of two directories. The sort
        // is stable, so the first entry is kept.
        entries.sort_by(|a, b| (a.cookie, &a.name).cmp(&(b.cookie, &b.name)));
        entries.dedup_by(|a, b| a.name == b.name);
        for i in 1..entries.len() {
            entries[i].cookie = entries[i].cookie.max(entries[i - 1].cookie + 1);
        }
        entries.into()
    }
}

impl Listed {
    fn as_dir_entry(&self, has_attr: bool) -> DirEntry<'_> {
        let name = Name::new(OsStr::as_bytes(&self.name)).expect("invalid names are left out");
        match self.attr.filter(|_| has_attr) {
            Some(attr) => DirEntry::from_attr(name, attr, self.cookie),
            None => DirEntry::new(name, self.ino, self.kind, self.cookie),
        }
    }
}

/// The back end may fail or panic, so a listing can end without `keep`.
impl Drop for Running<'_> {
    fn drop(&mut self) {
        let this = (self.dir, self.number);
        self.listings.kept.lock().running.retain(|running| *running != this);
    }
}

#[cfg(all(test, not(any(corewalk_loom, corewalk_shuttle))))]
mod tests {
    use std::ops::ControlFlow;

    use super::*;

    const DIR: Identity = (7, None);

    /// Reads a page of up to 100 entries. Returns its names, and moves the cookie on.
    fn page(
        listings: &Listings,
        cookie: &mut u64,
        list: impl FnOnce() -> (&'static str, usize),
    ) -> Vec<OsString> {
        let mut names = Vec::new();
        let from = *cookie;
        let mut sink = |entry: DirEntry<'_>| {
            if names.len() == 100 {
                return ControlFlow::Break(());
            }
            *cookie = entry.cookie;
            names.push(OsStr::from_bytes(entry.name.as_bytes()).to_owned());
            ControlFlow::Continue(())
        };
        let list = |_: &Path, all: &mut Collector<'_>| {
            let (prefix, count) = list();
            (0..count).for_each(|i| {
                all.add(PathEntry::new(&format!("{prefix}{i}"), FileKind::Regular));
            });
            Ok(())
        };
        listings.read((DIR, PathBuf::new()), from, &mut sink, list).expect("list the directory");
        names
    }

    /// A small listing begins after a large one, ends before it, and is not kept. Its client must
    /// not get the next page from the large one.
    #[test]
    fn client_of_a_small_listing_gets_no_page_of_an_older_large_one() {
        let listings = Listings::new();
        let (mut old, mut new) = (0, 0);
        page(&listings, &mut old, || {
            page(&listings, &mut new, || ("new", 200));
            ("old", KEPT_ENTRIES_MIN)
        });
        let mut is_asked = false;
        let names = page(&listings, &mut new, || {
            is_asked = true;
            ("new", 200)
        });
        assert_eq!(names.len(), 100);
        assert!(is_asked && names.iter().all(|name| name.as_bytes().starts_with(b"new")));
        assert!(listings.kept.lock().running.is_empty());
    }

    #[test]
    fn listing_that_fails_is_no_longer_running() {
        let listings = Listings::new();
        let failed =
            listings.read((DIR, PathBuf::new()), 0, &mut |_| unreachable!(), |_, _| Err(Errno::IO));
        assert_eq!(failed, Err(Errno::IO));
        assert!(listings.kept.lock().running.is_empty());
    }
}
