//! The contents of the cache: directories with their names, and inodes.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::kernel::Given;
use super::{Begun, Change, ENTRY_BYTES, Entry, Listing, Xattrs};
use crate::node::Inode;

/// A name whose state is unknown.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Unknown {
    /// The number of changes of the name that are under way.
    pub(super) changes: u32,
    /// True if two changes of the name have overlapped. Their replies do not tell which change the
    /// database has made last.
    pub(super) is_mixed: bool,
}

#[derive(Debug, Default)]
pub(super) struct Names {
    /// The known names. The value is None for a name that does not exist.
    pub(super) known: HashMap<Box<[u8]>, Option<Entry>>,
    /// Names that changes are altering. Their entries in `known` may be old.
    pub(super) unknown: HashMap<Box<[u8]>, Unknown>,
    /// The names inside the window, by position.
    pub(super) order: BTreeMap<u64, Box<[u8]>>,
    /// The range of positions in which the cache knows all names: above the first number, and up to
    /// the second one. These names are in `order`.
    pub(super) window: (u64, u64),
    /// True if there is no name behind the window.
    pub(super) at_end: bool,
}

#[derive(Debug, Default)]
pub(super) struct Directory {
    pub(super) names: Names,
    pub(super) is_leased: bool,
    /// The epoch in which `is_leased` became true.
    pub(super) leased_since: u64,
    /// The epoch in which a change last began or ended here, or the directory was last dropped.
    pub(super) epoch: u64,
    /// The number of changes in this directory that are under way.
    pub(super) changing: u32,
    pub(super) is_filling: bool,
    /// The inodes that were cached with this directory. They are dropped with it.
    pub(super) inos: HashSet<u64>,
    pub(super) used: u64,
}

#[derive(Clone, Debug)]
pub(super) struct Cached {
    pub(super) inode: Inode,
    /// The directory with which the inode was cached. The inode is dropped with it.
    pub(super) holder: u64,
    pub(super) xattrs: Option<Xattrs>,
    /// True if the file was opened since the inode is cached. A change by another mount clears
    /// this.
    pub(super) was_opened: bool,
}

#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) dirs: HashMap<u64, Directory>,
    /// The cached inodes. They are boxed, so that free entries of the table are small. At least
    /// half of the entries may be free after directories were dropped and others were added.
    pub(super) inodes: HashMap<u64, Box<Cached>>,
    /// The inodes that changes are altering.
    pub(super) busy: HashMap<u64, Altering>,
    /// Counts how often everything was dropped.
    pub(super) era: u64,
    /// Counts the begins and ends of changes, and the drops.
    pub(super) epoch: u64,
    /// The highest epoch of all directories that were removed from `dirs`. A directory that is
    /// added to `dirs` begins with this epoch, so that older tickets are not valid for it.
    pub(super) removed_epoch: u64,
    /// The epoch of the last drop of a directory for another mount.
    pub(super) dropped_epoch: u64,
    pub(super) clock: u64,
    pub(super) count: usize,
    /// The answers that the kernel may still have.
    pub(super) given: Given,
}

impl Cached {
    /// Returns how many entries the inode counts as in the size of the cache. Extended attributes
    /// count by their bytes, because they may be much larger than an entry.
    fn weight(&self) -> usize {
        let bytes = |xattrs: &Xattrs| {
            xattrs.iter().map(|(name, value)| name.len() + value.len()).sum::<usize>()
        };
        1 + self.xattrs.as_ref().map_or(0, |xattrs| 1 + bytes(xattrs) / ENTRY_BYTES)
    }
}

/// The changes that are altering an inode.
#[derive(Debug, Default)]
pub(super) struct Altering {
    pub(super) changes: u32,
    /// The newest version that replies to these changes have brought.
    newest: i64,
}

impl Directory {
    /// Returns true if no change and no fill of the directory is under way.
    pub(super) fn is_idle(&self) -> bool {
        self.changing == 0 && !self.is_filling
    }
}

impl Names {
    pub(super) fn is_complete(&self) -> bool {
        self.window.0 == 0 && self.at_end
    }

    /// Adds a page of names to the window. If the page does not continue the window, it becomes the
    /// new window.
    pub(super) fn extend(&mut self, after: u64, last: u64, names: &[Listing], at_end: bool) {
        let continues = self.window.0 <= after && after <= self.window.1;
        if !continues {
            self.order.clear();
            self.window = (after, after);
            self.at_end = false;
        }
        self.window.1 = self.window.1.max(last);
        for (name, cookie, _) in names {
            self.order.insert(*cookie, name.clone());
        }
        self.at_end |= at_end;
        if after == 0 && at_end {
            // The page has all names of the directory, and no change is under way.
            self.unknown.clear();
        }
    }
}

impl State {
    /// Returns true if a lease covers the attributes of a cached inode, and no change alters them.
    pub(super) fn is_current(&self, cached: &Cached) -> bool {
        let cover = cached.inode.cover();
        cached.holder == cover
            && !self.busy.contains_key(&cached.inode.attr.ino)
            && self.dirs.get(&cover).is_some_and(|directory| directory.is_leased)
    }

    /// Returns true if the cache knows that a name is the inode `found`, or that it is absent.
    pub(super) fn knows(&self, dir: u64, name: &[u8], found: Option<u64>) -> bool {
        let Some(directory) = self.dirs.get(&dir).filter(|it| it.is_leased) else { return false };
        let names = &directory.names;
        if names.unknown.contains_key(name) {
            return false;
        }
        match names.known.get(name) {
            Some(entry) => entry.map(|entry| entry.ino) == found,
            None => found.is_none() && names.is_complete(),
        }
    }

    pub(super) fn end_changing(&mut self, change: &Change<'_>) {
        for dir in &change.dirs {
            let epoch = self.next_epoch();
            if let Some(directory) = self.dirs.get_mut(dir) {
                directory.changing = directory.changing.saturating_sub(1);
                directory.epoch = epoch;
            }
        }
        // Remove directories without a lease, because the cache knows nothing about them.
        for dir in &change.dirs {
            if self.dirs.get(dir).is_some_and(|it| !it.is_leased && it.inos.is_empty()) {
                self.remove_dir(*dir);
            }
        }
    }

    /// Notes that a change of names has ended. A name stays unknown if `stays` is true, or if two
    /// changes of the name overlapped.
    pub(super) fn end_names(&mut self, change: &Change<'_>, stays: bool) {
        for (dir, name) in &change.names {
            let Some(directory) = self.dirs.get_mut(dir) else { continue };
            let Some(unknown) = directory.names.unknown.get_mut(*name) else { continue };
            unknown.changes = unknown.changes.saturating_sub(1);
            let is_known = unknown.changes == 0 && !unknown.is_mixed && !stays;
            if is_known || unknown.changes == 0 && !directory.is_leased {
                directory.names.unknown.remove(*name);
            }
        }
    }

    /// Returns true if another change of a name has overlapped with a change. Then the reply to the
    /// change does not tell the current state of the name.
    pub(super) fn is_ambiguous(&self, dir: u64, name: &[u8]) -> bool {
        let unknown = self.dirs.get(&dir).and_then(|directory| directory.names.unknown.get(name));
        unknown.is_some_and(|unknown| unknown.changes > 0 || unknown.is_mixed)
    }

    /// Returns true if a directory was cached without a break since a change began.
    pub(super) fn is_held(&self, dir: u64, begun: Begun) -> bool {
        let held = |it: &Directory| it.is_leased && it.leased_since <= begun.epoch;
        self.dirs.get(&dir).is_some_and(held)
    }

    /// Forgets the names of a directory, because the caller is about to add all of its names.
    pub(super) fn forget_names(&mut self, dir: u64) {
        let Some(directory) = self.dirs.get_mut(&dir) else { return };
        let unknown = std::mem::take(&mut directory.names.unknown);
        self.count -= directory.names.known.len();
        directory.names = Names { unknown, ..Names::default() };
    }

    pub(super) fn next_epoch(&mut self) -> u64 {
        self.epoch += 1;
        self.epoch
    }

    /// Returns the cached state of a directory. Adds an empty state if the directory has none.
    pub(super) fn directory(&mut self, dir: u64) -> &mut Directory {
        let new = || Directory { epoch: self.removed_epoch, ..Directory::default() };
        self.dirs.entry(dir).or_insert_with(new)
    }

    pub(super) fn lease(&mut self, dir: u64) {
        self.clock += 1;
        let (clock, epoch) = (self.clock, self.next_epoch());
        let directory = self.directory(dir);
        if !directory.is_leased {
            (directory.is_leased, directory.leased_since) = (true, epoch);
        }
        directory.used = clock;
    }

    /// Caches an inode with the directory `holder`. Keeps a newer version that is cached already,
    /// and does not replace current attributes by a hint.
    pub(super) fn insert(&mut self, holder: u64, inode: Inode) {
        let ino = inode.attr.ino;
        let (mut xattrs, mut was_opened) = (None, false);
        if let Some(old) = self.inodes.get(&ino) {
            let is_newer = inode.version > old.inode.version;
            if !is_newer && (self.is_current(old) || inode.version < old.inode.version) {
                return;
            }
            let keeps_holder = self.is_current(old) && holder != inode.cover();
            if keeps_holder {
                self.renew(inode);
                return;
            }
            if !is_newer {
                xattrs = old.xattrs.clone();
            }
            // While the lease is held, only changes of this mount make a newer version.
            was_opened = old.was_opened && self.is_current(old);
            self.remove_inode(ino);
        }
        let cached = Cached { inode, holder, xattrs, was_opened };
        self.count += cached.weight();
        self.inodes.insert(ino, Box::new(cached));
        self.directory(holder).inos.insert(ino);
    }

    /// Replaces the attributes of a cached inode by those of a newer version. Forgets the extended
    /// attributes, which may have changed.
    fn renew(&mut self, inode: Inode) {
        if let Some(cached) = self.inodes.get_mut(&inode.attr.ino) {
            self.count -= cached.weight();
            (cached.inode, cached.xattrs) = (inode, None);
            self.count += cached.weight();
        }
    }

    /// Caches the extended attributes of an inode, if its cached version is `version`.
    pub(super) fn set_xattrs(&mut self, ino: u64, version: i64, xattrs: &Xattrs) {
        let cached = self.inodes.get_mut(&ino).filter(|cached| cached.inode.version == version);
        if let Some(cached) = cached {
            self.count -= cached.weight();
            cached.xattrs = Some(xattrs.clone());
            self.count += cached.weight();
        }
    }

    /// If the inode is cached as a hint, replaces older attributes. Otherwise removes the inode.
    pub(super) fn update_hint(&mut self, inode: Inode) {
        let ino = inode.attr.ino;
        match self.inodes.get(&ino).filter(|cached| cached.holder != inode.cover()) {
            Some(cached) if cached.inode.version < inode.version => self.renew(inode),
            Some(_) => {}
            None => self.remove_inode(ino),
        }
    }

    pub(super) fn remove_inode(&mut self, ino: u64) {
        if let Some(old) = self.inodes.remove(&ino) {
            self.count -= old.weight();
            if let Some(directory) = self.dirs.get_mut(&old.holder) {
                directory.inos.remove(&ino);
            }
        }
    }

    /// Notes that one change of an inode has ended.
    pub(super) fn settle(&mut self, ino: u64) {
        if let Some(altering) = self.busy.get_mut(&ino) {
            altering.changes -= 1;
            if altering.changes == 0 {
                self.busy.remove(&ino);
            }
        }
    }

    /// Notes the version of an inode in the reply to a change. Returns false if the reply to an
    /// overlapping change has brought a newer version. The newer version may not be cached any
    /// more, so a comparison with the cached inode would not suffice.
    pub(super) fn is_newest(&mut self, inode: &Inode) -> bool {
        let Some(altering) = self.busy.get_mut(&inode.attr.ino) else { return true };
        altering.newest = altering.newest.max(inode.version);
        altering.newest == inode.version
    }

    /// Sets what is known of a name in a directory with a lease.
    pub(super) fn set_name(&mut self, dir: u64, name: &[u8], entry: Option<Entry>) {
        let Some(directory) = self.dirs.get_mut(&dir).filter(|directory| directory.is_leased)
        else {
            return;
        };
        let names = &mut directory.names;
        names.unknown.remove(name);
        let old = match entry {
            None if names.is_complete() => {
                let old = names.known.remove(name);
                self.count -= usize::from(old.is_some());
                old
            }
            _ => {
                let old = names.known.insert(name.into(), entry);
                self.count += usize::from(old.is_none());
                old
            }
        };
        if let Some(Some(old)) = old {
            names.order.remove(&old.cookie);
        }
        if let Some(entry) = entry
            && entry.cookie > names.window.0
            && (names.at_end || entry.cookie <= names.window.1)
        {
            names.window.1 = names.window.1.max(entry.cookie);
            names.order.insert(entry.cookie, name.into());
        }
    }

    /// Forgets the first names of a directory's window and their inodes, until at most `goal`
    /// entries are cached or the window is empty.
    pub(super) fn forget_first_names(&mut self, dir: u64, goal: usize) {
        while self.count > goal {
            let Some(directory) = self.dirs.get_mut(&dir) else { return };
            let names = &mut directory.names;
            let Some((cookie, name)) = names.order.pop_first() else { return };
            names.window.0 = cookie;
            let known = names.known.remove(&name);
            self.count -= usize::from(known.is_some());
            if let Some(entry) = known.flatten().filter(|entry| directory.inos.contains(&entry.ino))
            {
                self.remove_inode(entry.ino);
            }
        }
    }

    pub(super) fn remove_dir(&mut self, dir: u64) {
        let Some(directory) = self.dirs.get_mut(&dir) else { return };
        directory.is_leased = false;
        let names = std::mem::take(&mut directory.names);
        let inos = std::mem::take(&mut directory.inos);
        directory.names.unknown = names.unknown;
        self.count -= names.known.len();
        for ino in inos {
            self.count -= self.inodes.remove(&ino).map_or(0, |cached| cached.weight());
        }
        let idle = |it: &&Directory| it.is_idle() && it.names.unknown.is_empty();
        if let Some(directory) = self.dirs.get(&dir).filter(idle) {
            self.removed_epoch = self.removed_epoch.max(directory.epoch);
            self.dirs.remove(&dir);
        }
    }
}
