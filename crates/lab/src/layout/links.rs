//! Names as immutable link objects, published by one store and freed after a grace period.
//!
//! A dentry has its first link inline, which is never written again. Once it has been replaced a
//! flag says so, and the link is the one in the cell. A reader is inside a read section from the
//! first link it looks at to the last byte it uses. A path is a snapshot if every link is still the
//! same object when it is looked at again: inside a section no address is used twice.
//!
//! # How far this goes without unsafe code
//! The design has one pointer, which at first points into the dentry. Here a flag says which link to
//! take: the same load, and a branch that is always predicted while nothing is renamed.
//!
//! # Locks
//! Renames take one lock, then the table's.
//!
//! Source: McKenney, Sarma, Soni, "Scaling dcache with RCU", 2004.

use std::io;

use ahash::RandomState;
use corewalk_base::Mutex;
use corewalk_base::primitives::atomic::{AtomicBool, Ordering, fence};
use corewalk_sync::RcuCell;
use corewalk_sync::rcu::{self, ReadGuard};

use super::Climb;
use super::buckets::Buckets;
use crate::baseline::{Namespace, components};
use crate::corpus::{Corpus, ROOT};
use crate::lane::{Lane, Op, Stop, Tally};

/// Bytes of a name that lie in its link: what a cache line has room for.
const INLINE_BYTES: usize = 38;
/// Operations in one read section of `links-held`.
const HELD: u32 = 64;

/// The dentries.
pub(crate) struct Links {
    dentries: Vec<Dentry>,
    table: Buckets,
    hasher: RandomState,
    renames: Mutex<()>,
}

/// The same, with one read section for many operations.
pub(crate) struct LinksHeld(pub(crate) Links);

/// A dentry, in one cache line.
#[repr(align(64))]
struct Dentry {
    is_replaced: AtomicBool,
    first: Link,
    /// The link since it was replaced. A cell always owns a block of memory, which the design has
    /// not; readers do not go there.
    now: RcuCell<Option<Link>>,
}

/// A name in a directory. Never changed.
#[derive(Clone)]
struct Link {
    parent: u32,
    name: LinkName,
}

#[derive(Clone)]
enum LinkName {
    Short(u8, [u8; INLINE_BYTES]),
    Long(Box<[u8]>),
}

impl Link {
    fn new(parent: u32, name: &[u8]) -> Link {
        let mut bytes = [0; INLINE_BYTES];
        let name = match bytes.get_mut(..name.len()) {
            Some(start) => {
                start.copy_from_slice(name);
                LinkName::Short(name.len() as u8, bytes)
            }
            None => LinkName::Long(name.into()),
        };
        Link { parent, name }
    }

    #[inline]
    fn name(&self) -> &[u8] {
        match &self.name {
            LinkName::Short(len, bytes) => &bytes[..usize::from(*len)],
            LinkName::Long(bytes) => bytes,
        }
    }
}

impl Dentry {
    fn new(parent: u32, name: &[u8]) -> Dentry {
        Dentry {
            is_replaced: AtomicBool::new(false),
            first: Link::new(parent, name),
            now: RcuCell::new(None),
        }
    }

    #[inline]
    fn link<'g>(&'g self, section: &'g ReadGuard) -> &'g Link {
        // ORDERING(lab-link): Acquire. The cell has a link once the flag is set.
        if self.is_replaced.load(Ordering::Acquire) {
            self.now.read(section).as_ref().unwrap_or(&self.first)
        } else {
            &self.first
        }
    }

    fn replace(&self, link: Link) {
        self.now.replace(Some(link));
        // ORDERING(lab-link): Release. See `link`.
        self.is_replaced.store(true, Ordering::Release);
    }
}

impl Links {
    /// Returns the dentries of `corpus`, numbered like its inodes.
    ///
    /// # Errors
    /// `ENOMEM` if the table cannot be mapped.
    pub(crate) fn load(corpus: &Corpus) -> io::Result<Links> {
        let mut links = Links {
            dentries: Vec::with_capacity(corpus.len() + 1),
            table: Buckets::new(corpus.len())?,
            hasher: RandomState::new(),
            renames: Mutex::new(()),
        };
        links.dentries.push(Dentry::new(0, b""));
        for ino in corpus.inodes() {
            let (parent, name) = (corpus.parent(ino) as u32, corpus.name(ino));
            links.dentries.push(Dentry::new(parent, name));
            if ino != ROOT {
                links.table.insert(links.hash(parent, name), ino as u32);
            }
        }
        Ok(links)
    }

    #[inline]
    fn hash(&self, parent: u32, name: &[u8]) -> u64 {
        self.hasher.hash_one((parent, name))
    }

    #[inline]
    fn find(&self, section: &ReadGuard, parent: u32, name: &[u8]) -> Option<u32> {
        self.table.find(self.hash(parent, name), |slot| {
            let link = self.dentries[slot as usize].link(section);
            (link.parent == parent && link.name() == name).then_some(slot)
        })
    }

    #[inline]
    fn find_path(&self, section: &ReadGuard, path: &[u8]) -> Option<u64> {
        components(path)
            .try_fold(ROOT as u32, |parent, name| self.find(section, parent, name))
            .map(u64::from)
    }

    /// Returns the path of `slot`; None if it changed meanwhile.
    #[inline]
    fn snapshot(&self, section: &ReadGuard, slot: u32) -> Option<Vec<u8>> {
        let link = |slot: u32| self.dentries[slot as usize].link(section);
        let mut climb = Climb::new();
        let mut at = slot;
        while u64::from(at) != ROOT {
            let now = link(at);
            climb.add(at, std::ptr::from_ref(now).addr() as u64, now.name().len());
            at = now.parent;
        }
        // A link that is another one by now has another address, which the check below finds.
        let path = climb.path(|slot, len, out| match &link(slot).name {
            LinkName::Short(_, bytes) => out[..INLINE_BYTES].copy_from_slice(bytes),
            LinkName::Long(bytes) => {
                let len = len.min(bytes.len());
                out[..len].copy_from_slice(&bytes[..len]);
            }
        });
        // ORDERING: Acquire fence. The last look comes after all others.
        fence(Ordering::Acquire);
        climb.is_snapshot(|slot| std::ptr::from_ref(link(slot)).addr() as u64).then_some(path)
    }

    #[inline]
    fn translate(&self, section: &ReadGuard, ino: u64) -> Vec<u8> {
        loop {
            if let Some(path) = self.snapshot(section, ino as u32) {
                return path;
            }
        }
    }
}

impl Namespace for Links {
    fn variant(&self) -> &'static str {
        "links"
    }

    #[inline]
    fn lookup(&self, parent: u64, name: &[u8]) -> Option<u64> {
        self.find(&rcu::read_lock(), parent as u32, name).map(u64::from)
    }

    #[inline]
    fn path(&self, ino: u64) -> Option<Vec<u8>> {
        let is_known = ino != 0 && ino < self.dentries.len() as u64;
        is_known.then(|| self.translate(&rcu::read_lock(), ino))
    }

    #[inline]
    fn walk(&self, path: &[u8]) -> Option<u64> {
        self.find_path(&rcu::read_lock(), path)
    }

    fn arena_bytes(&self) -> u64 {
        self.table.bytes_committed()
    }

    fn rename(&self, from: (u64, &[u8]), to: (u64, &[u8])) -> bool {
        let _renames = self.renames.lock();
        let Some(slot) = self.find(&rcu::read_lock(), from.0 as u32, from.1) else { return false };
        self.table.insert(self.hash(to.0 as u32, to.1), slot);
        self.dentries[slot as usize].replace(Link::new(to.0 as u32, to.1));
        self.table.remove(self.hash(from.0 as u32, from.1), slot);
        true
    }
}

impl Namespace for LinksHeld {
    fn variant(&self) -> &'static str {
        "links-held"
    }

    fn lookup(&self, parent: u64, name: &[u8]) -> Option<u64> {
        self.0.lookup(parent, name)
    }

    fn path(&self, ino: u64) -> Option<Vec<u8>> {
        self.0.path(ino)
    }

    fn walk(&self, path: &[u8]) -> Option<u64> {
        self.0.walk(path)
    }

    fn rename(&self, from: (u64, &[u8]), to: (u64, &[u8])) -> bool {
        self.0.rename(from, to)
    }

    fn work(&self, op: Op, lane: &Lane, first: usize, stop: &Stop) -> Tally {
        let links = &self.0;
        let mut section = rcu::read_lock();
        let mut turn = 0_u32;
        let mut renew = move || {
            turn = turn.wrapping_add(1);
            turn.is_multiple_of(HELD)
        };
        match op {
            Op::Lookup => lane.ask(first, stop, |target, name| {
                if renew() {
                    section = rcu::read_lock();
                }
                let found = links.find(&section, target.parent as u32, name);
                found.map(u64::from) == Some(target.ino)
            }),
            Op::Walk => lane.ask(first, stop, |target, path| {
                if renew() {
                    section = rcu::read_lock();
                }
                links.find_path(&section, path) == Some(target.ino)
            }),
            Op::Path => {
                let mut asked = 0_u64;
                lane.ask(first, stop, |target, expected| {
                    asked += 1;
                    if renew() {
                        section = rcu::read_lock();
                    }
                    let path = links.translate(&section, target.ino);
                    lane.is_path(target, expected, Some(&path), asked)
                })
            }
        }
    }
}
