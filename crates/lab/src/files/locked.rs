//! One lock over two flat hash maps, as a whole file system.
//!
//! (parent, name) to inode number, and inode number to attributes, primary name and, for a
//! directory, the names in it. It is what `baseline/rwlock_ahash.rs` becomes when files are made,
//! listed and removed: the strongest simple design that is known here, and hard to beat on few
//! cores, since every question is one probe per name under one lock.
//!
//! # How it works
//! A directory's names are a vector; each name knows its place in it, and a name that goes is
//! replaced by the last one, so that making and removing take constant time.
//!
//! # Locks
//! One, shared by readers. It is that of the standard library, the faster one here.
//!
//! # What it refuses
//! Permissions, times, eviction, removing directories, and removing the name that a file with
//! several names was made with.
//!
//! Source: `std::sync::RwLock`, and the crates `hashbrown` and `ahash`.

use std::hash::Hash;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use ahash::RandomState;
use corewalk::attr::mode;
use corewalk::{Attr, Timespec};
use corewalk_base::CachePadded;
use hashbrown::{Equivalent, HashMap};

use super::{Files, Kind, List, Status, User};
use crate::baseline::{components, join};
use crate::corpus::ROOT;

/// The two maps.
pub(crate) struct Locked {
    maps: CachePadded<RwLock<Maps>>,
}

struct Maps {
    by_name: HashMap<Key, Entry, RandomState>,
    by_ino: HashMap<u64, Inode, RandomState>,
    next_ino: u64,
}

/// A name in a directory.
#[derive(Hash, PartialEq, Eq)]
struct Key {
    parent: u64,
    name: Arc<[u8]>,
}

/// The same, borrowed.
#[derive(Hash)]
struct Probe<'a> {
    parent: u64,
    name: &'a [u8],
}

/// What a name refers to, and its place among the names of its directory.
struct Entry {
    ino: u64,
    place: usize,
}

struct Inode {
    attr: Attr,
    parent: u64,
    name: Arc<[u8]>,
    names: Vec<(Arc<[u8]>, u64)>,
}

impl Equivalent<Key> for Probe<'_> {
    #[inline]
    fn equivalent(&self, key: &Key) -> bool {
        self.parent == key.parent && *self.name == *key.name
    }
}

impl Locked {
    /// Returns an empty one.
    pub(crate) fn new() -> Locked {
        let mut maps = Maps {
            by_name: HashMap::with_hasher(RandomState::new()),
            by_ino: HashMap::with_hasher(RandomState::new()),
            next_ino: ROOT + 1,
        };
        let root = Inode::new(ROOT, mode::S_IFDIR | 0o755, ROOT, Arc::from(&b""[..]));
        maps.by_ino.insert(ROOT, root);
        Locked { maps: CachePadded::new(RwLock::new(maps)) }
    }

    #[inline]
    fn read(&self) -> RwLockReadGuard<'_, Maps> {
        self.maps.read().unwrap_or_else(PoisonError::into_inner)
    }

    #[inline]
    fn write(&self) -> RwLockWriteGuard<'_, Maps> {
        self.maps.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Files for Locked {
    type User<'a> = &'a Locked;

    fn variant(&self) -> &'static str {
        "rwlock-ahash"
    }

    fn user(&self) -> &Locked {
        self
    }
}

impl User for &Locked {
    type Dir = u64;
    type File = u64;

    fn open_dir(&self, path: &[u8]) -> Option<u64> {
        let maps = self.read();
        let ino = maps.walk(path)?;
        maps.by_ino.get(&ino).filter(|inode| inode.attr.is_dir())?;
        Some(ino)
    }

    fn make_dir(&self, dir: &u64, name: &[u8]) -> bool {
        self.write().make(*dir, name, mode::S_IFDIR | 0o755)
    }

    fn create(&self, dir: &u64, name: &[u8]) -> bool {
        self.write().make(*dir, name, mode::S_IFREG | 0o644)
    }

    fn unlink(&self, dir: &u64, name: &[u8]) -> bool {
        self.write().unlink(*dir, name).is_some()
    }

    fn link(&self, dir: &u64, name: &[u8], other: &[u8]) -> bool {
        let mut maps = self.write();
        let Some(ino) = maps.find(*dir, name) else { return false };
        if maps.find(*dir, other).is_some() || maps.enter(*dir, other.into(), ino).is_none() {
            return false;
        }
        maps.by_ino.get_mut(&ino).is_some_and(|inode| {
            inode.attr.nlink += 1;
            true
        })
    }

    fn chmod(&self, dir: &u64, name: &[u8], mode: u32) -> bool {
        let mut maps = self.write();
        let Some(ino) = maps.find(*dir, name) else { return false };
        maps.by_ino.get_mut(&ino).is_some_and(|inode| {
            inode.attr.mode = inode.attr.mode & mode::S_IFMT | mode;
            true
        })
    }

    fn rename(&self, from: (&u64, &[u8]), to: (&u64, &[u8])) -> bool {
        self.write().rename((*from.0, from.1), (*to.0, to.1)).is_some()
    }

    #[inline]
    fn resolve(&self, path: &[u8]) -> Option<u64> {
        self.read().walk(path)
    }

    #[inline]
    fn stat(&self, path: &[u8]) -> Option<Status> {
        let maps = self.read();
        maps.status(maps.walk(path)?)
    }

    #[inline]
    fn stat_at(&self, dir: &u64, name: &[u8]) -> Option<Status> {
        let maps = self.read();
        maps.status(maps.find(*dir, name)?)
    }

    #[inline]
    fn open_close(&self, path: &[u8]) -> bool {
        // What is opened is known by its number, and there is nothing to close.
        self.stat(path).is_some_and(|status| status.mode & 0o444 != 0)
    }

    fn list(&self, dir: &u64, list: &mut List) -> bool {
        list.clear();
        let maps = self.read();
        let Some(inode) = maps.by_ino.get(dir) else { return false };
        for (name, ino) in &inode.names {
            let is_directory = maps.by_ino.get(ino).is_some_and(|inode| inode.attr.is_dir());
            list.push(name, if is_directory { Kind::Directory } else { Kind::Other });
        }
        true
    }

    fn hold(&self, path: &[u8]) -> Option<u64> {
        self.resolve(path)
    }

    #[inline]
    fn path_of(&self, file: &u64) -> Option<Vec<u8>> {
        let maps = self.read();
        let mut names: Vec<&[u8]> = Vec::with_capacity(16);
        let mut at = *file;
        while at != ROOT {
            let inode = maps.by_ino.get(&at)?;
            names.push(&inode.name);
            at = inode.parent;
        }
        Some(join(&names))
    }
}

impl Maps {
    #[inline]
    fn find(&self, parent: u64, name: &[u8]) -> Option<u64> {
        Some(self.by_name.get(&Probe { parent, name })?.ino)
    }

    #[inline]
    fn walk(&self, path: &[u8]) -> Option<u64> {
        components(path).try_fold(ROOT, |parent, name| self.find(parent, name))
    }

    #[inline]
    fn status(&self, ino: u64) -> Option<Status> {
        let attr = self.by_ino.get(&ino)?.attr;
        Some(Status { ino: attr.ino, mode: attr.mode, size: attr.size })
    }

    fn make(&mut self, parent: u64, name: &[u8], mode: u32) -> bool {
        if self.find(parent, name).is_some() {
            return false;
        }
        let (ino, name): (u64, Arc<[u8]>) = (self.next_ino, name.into());
        if self.enter(parent, Arc::clone(&name), ino).is_none() {
            return false;
        }
        self.next_ino += 1;
        self.by_ino.insert(ino, Inode::new(ino, mode, parent, name));
        true
    }

    fn unlink(&mut self, parent: u64, name: &[u8]) -> Option<()> {
        let ino = self.find(parent, name)?;
        let inode = self.by_ino.get_mut(&ino)?;
        let is_primary = inode.parent == parent && *inode.name == *name;
        if inode.attr.is_dir() || (is_primary && inode.attr.nlink > 1) {
            return None;
        }
        inode.attr.nlink -= 1;
        if inode.attr.nlink == 0 {
            self.by_ino.remove(&ino);
        }
        self.leave(parent, name)?;
        Some(())
    }

    fn rename(&mut self, from: (u64, &[u8]), to: (u64, &[u8])) -> Option<()> {
        if self.find(to.0, to.1).is_some() {
            return None;
        }
        let ino = self.leave(from.0, from.1)?;
        let name: Arc<[u8]> = to.1.into();
        self.enter(to.0, Arc::clone(&name), ino)?;
        let inode = self.by_ino.get_mut(&ino)?;
        (inode.parent, inode.name) = (to.0, name);
        Some(())
    }

    /// Adds a name that is not there to a directory.
    fn enter(&mut self, parent: u64, name: Arc<[u8]>, ino: u64) -> Option<()> {
        let directory = self.by_ino.get_mut(&parent)?;
        let place = directory.names.len();
        directory.names.push((Arc::clone(&name), ino));
        self.by_name.insert(Key { parent, name }, Entry { ino, place });
        Some(())
    }

    /// Takes a name out of a directory and returns what it referred to.
    fn leave(&mut self, parent: u64, name: &[u8]) -> Option<u64> {
        let Entry { ino, place } = self.by_name.remove(&Probe { parent, name })?;
        let names = &mut self.by_ino.get_mut(&parent)?.names;
        names.swap_remove(place);
        if let Some((moved, _)) = names.get(place) {
            self.by_name.get_mut(&Probe { parent, name: moved })?.place = place;
        }
        Some(ino)
    }
}

impl Inode {
    fn new(ino: u64, mode: u32, parent: u64, name: Arc<[u8]>) -> Inode {
        let zero = Timespec::default();
        let attr = Attr {
            ino,
            generation: 0,
            mode,
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            size: 0,
            blocks: 0,
            blksize: 4096,
            atime: zero,
            mtime: zero,
            ctime: zero,
            btime: zero,
            has_acl: false,
        };
        Inode { attr, parent, name, names: vec![] }
    }
}
