//! The cached directories of a mount: names, attributes, extended attributes.
//!
//! A directory is cached while the session holds a lease on it. In a *complete* directory, the
//! cache knows all names, so any other name does not exist. In a larger directory, the cache knows
//! the names that were looked up, present or absent. It also knows all names in the *window*: a
//! range of positions that listings move and extend.
//!
//! The lease of a directory also covers the attributes of the directory and of the inodes at home
//! in it. Names may also lead to inodes that other leases cover: subdirectories, and files with
//! another home. The cache keeps the attributes of such inodes as *hints*, which may be old.
//! `getattr` never answers with a hint. A lookup returns a hint with a timeout of 0, so the kernel
//! asks again before it shows the attributes. But for chmod(2) and in sticky directories, the
//! kernel uses the owner and the mode of a hint. So a change of owner or mode also waits for leases
//! on the directories that have a name of the inode (`cw_covers`).
//!
//! # Changes
//! A change begins before it is sent ([`Cache::begin`]) and ends with its reply. Meanwhile the
//! changed names and attributes are unknown, and readers ask the database (guarantee K.6 in
//! `lib.rs`). An answer of the database is cached only if no change of the directory has begun or
//! ended since the question was sent ([`Ticket`]).
//!
//! # Memory
//! The cache counts names and inodes, and extended attributes by their bytes. Above its limit it
//! drops the least recently used directories until a quarter is free. Of a directory that is larger
//! than half of the limit, only the first names of its window are dropped. So a program that lists
//! such a directory and asks for the attributes of the last names finds these in the cache.
//!
//! # Locks
//! One mutex protects everything, and is held for an instant. `filled` wakes the threads that wait
//! for the fill of another thread. `kernel.rs` has a further lock, which is taken before this
//! mutex.

mod kernel;
mod state;

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use corewalk_base::{Condvar, Mutex, MutexGuard, heap};

use self::kernel::{Given, Kernel, Owed};
use self::state::{Names, State};
use crate::node::Inode;
use crate::options::{ClusterOptions, Flaws};
use crate::session::Caches;

/// The estimated memory of a name or an inode, with its share of the hash tables, in bytes.
const ENTRY_BYTES: usize = 500;

pub(crate) type Xattrs = Arc<Vec<(Vec<u8>, Vec<u8>)>>;

/// A name with its position and its inode, as the database lists it.
pub(crate) type Listing = (Box<[u8]>, u64, Inode);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) ino: u64,
    pub(crate) cookie: u64,
}

/// Receives the names of a listing: each with its position, its inode, and whether the attributes
/// are current.
pub(crate) type Sink<'a> = dyn FnMut(&[u8], u64, &Inode, bool) -> ControlFlow<()> + 'a;

/// The answer of the cache to a lookup.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Found {
    /// The inode. The flag tells whether its attributes are current, and not only a hint.
    Inode(Inode, bool),
    Absent,
    /// The cache does not know the name. The database must be asked for the whole directory.
    Fill,
    /// The cache does not know the name. The database must be asked for this name.
    Ask,
}

/// Marks the moment before the database was asked. The answer may be cached if no change of its
/// directory has begun or ended since then, and none is under way.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ticket(u64);

/// Marks the moment before a change was sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Begun {
    era: u64,
    epoch: u64,
}

/// The directories, names and inodes that a change alters.
#[derive(Debug)]
pub(crate) struct Change<'a> {
    pub(crate) dirs: Vec<u64>,
    pub(crate) names: Vec<(u64, &'a [u8])>,
    pub(crate) inos: Vec<u64>,
}

/// The cached directories of a mount.
#[derive(Debug)]
pub(crate) struct Cache {
    state: Mutex<State>,
    filled: Condvar,
    /// The most names and inodes that are cached.
    limit: usize,
    kernel: Kernel,
    /// True if the kernel may keep answers for a time even while there are other mounts.
    pub(crate) gives_times: bool,
    flaws: Flaws,
}

impl Cache {
    /// Returns an empty cache for a mount.
    pub(crate) fn new(options: &ClusterOptions) -> Cache {
        let (lease, flaws) = (options.lease, options.flaws);
        let limit = (options.cache_bytes / ENTRY_BYTES).max(1000);
        let state =
            Mutex::new(State { given: Given::new(lease, flaws.is_never_busy), ..State::default() });
        Cache {
            state,
            filled: Condvar::new(),
            limit,
            kernel: Kernel::default(),
            gives_times: options.kernel_names,
            flaws,
        }
    }

    pub(crate) fn lookup(&self, dir: u64, name: &[u8]) -> Found {
        let mut state = self.state.lock();
        state.clock += 1;
        let clock = state.clock;
        let Some(directory) = state.dirs.get_mut(&dir) else { return Found::Fill };
        directory.used = clock;
        let found = match () {
            () if directory.changing > 0 && !directory.is_leased => return Found::Ask,
            () if !directory.is_leased => return Found::Fill,
            () if directory.names.unknown.contains_key(name) => return Found::Ask,
            () => match directory.names.known.get(name) {
                Some(Some(entry)) => entry.ino,
                Some(None) => return Found::Absent,
                None if directory.names.is_complete() => return Found::Absent,
                None => return Found::Ask,
            },
        };
        match state.inodes.get(&found) {
            Some(cached) => Found::Inode(cached.inode, state.is_current(cached)),
            None => Found::Ask,
        }
    }

    /// Returns the current attributes of an inode. None if the database must be asked.
    pub(crate) fn inode(&self, ino: u64) -> Option<Inode> {
        let mut state = self.state.lock();
        state.clock += 1;
        let clock = state.clock;
        let cached = state.inodes.get(&ino).filter(|cached| state.is_current(cached))?;
        let (inode, holder) = (cached.inode, cached.holder);
        if let Some(directory) = state.dirs.get_mut(&holder) {
            directory.used = clock;
        }
        Some(inode)
    }

    /// Returns true if a change of the inode or its directory is under way. Then an answer of the
    /// database would not be cached.
    pub(crate) fn is_changing(&self, ino: u64) -> bool {
        let state = self.state.lock();
        let dir = state.inodes.get(&ino).map_or(ino, |cached| cached.inode.cover());
        state.busy.contains_key(&ino)
            || state.dirs.get(&dir).is_some_and(|directory| directory.changing > 0)
    }

    /// Returns the extended attributes of an inode, if they are known and current.
    pub(crate) fn xattrs(&self, ino: u64) -> Option<Xattrs> {
        let state = self.state.lock();
        let cached = state.inodes.get(&ino).filter(|cached| state.is_current(cached))?;
        cached.xattrs.clone()
    }

    /// Keeps the extended attributes of an inode, if its version is still `version`.
    pub(crate) fn keep_xattrs(&self, ino: u64, version: i64, xattrs: &Xattrs) {
        let mut state = self.state.lock();
        if !state.busy.contains_key(&ino) {
            state.set_xattrs(ino, version, xattrs);
            self.shrink(state);
        }
    }

    /// Begins a fill of `dir`, which the caller must end with [`Cache::end_fill`]. If another
    /// thread fills `dir`, waits for that fill. If that fill was cached, begins no fill and returns
    /// false.
    pub(crate) fn begin_fill(&self, dir: u64) -> bool {
        let mut state = self.state.lock();
        let mut has_waited = false;
        loop {
            let directory = state.directory(dir);
            if has_waited && directory.is_leased {
                return false;
            }
            if !directory.is_filling {
                directory.is_filling = true;
                return true;
            }
            has_waited = true;
            self.filled.wait(&mut state);
        }
    }

    /// Ends a fill, successful or not.
    pub(crate) fn end_fill(&self, dir: u64) {
        let mut state = self.state.lock();
        if let Some(directory) = state.dirs.get_mut(&dir) {
            directory.is_filling = false;
        }
        self.filled.notify_all();
    }

    /// Returns a ticket for an answer of the database. The caller takes the ticket before it asks
    /// the database.
    pub(crate) fn ticket(&self) -> Ticket {
        Ticket(self.state.lock().epoch)
    }

    /// Caches a directory and a page of its names: those behind the position `after`. `at_end` is
    /// true if there are no further names. Returns false and caches nothing if `ticket` is not
    /// valid any more.
    pub(crate) fn fill(
        &self,
        ticket: Ticket,
        dir: u64,
        inodes: &[Inode],
        after: u64,
        names: &[Listing],
        at_end: bool,
    ) -> bool {
        let Some(mut state) = self.valid(ticket, dir) else { return false };
        state.lease(dir);
        if after == 0 && at_end {
            state.forget_names(dir);
        }
        inodes.iter().for_each(|inode| state.insert(dir, *inode));
        for (name, cookie, inode) in names {
            state.set_name(dir, name, Some(Entry { ino: inode.attr.ino, cookie: *cookie }));
            state.insert(dir, *inode);
        }
        let last = names.last().map_or(after, |(_, cookie, _)| *cookie);
        if let Some(directory) = state.dirs.get_mut(&dir) {
            directory.names.extend(after, last, names, at_end);
        }
        self.shrink(state);
        true
    }

    /// Caches the answer to a lookup.
    pub(crate) fn fill_name(
        &self,
        ticket: Ticket,
        dir: Inode,
        name: &[u8],
        found: Option<(u64, Inode)>,
    ) {
        let ino = dir.attr.ino;
        let Some(mut state) = self.valid(ticket, ino) else { return };
        state.lease(ino);
        state.insert(ino, dir);
        let entry = found.map(|(cookie, inode)| Entry { ino: inode.attr.ino, cookie });
        state.set_name(ino, name, entry);
        if let Some((_, inode)) = found {
            state.insert(ino, inode);
        }
        self.shrink(state);
    }

    /// Reports some of the names after `cookie` to `sink`.
    pub(crate) fn list(&self, dir: u64, cookie: u64, sink: &mut Sink<'_>) -> Listed {
        // The names are collected first, because the sink is code of the caller and runs without
        // the lock.
        let (batch, rest) = {
            let mut state = self.state.lock();
            state.clock += 1;
            let clock = state.clock;
            let Some(directory) = state.dirs.get_mut(&dir) else { return Listed::Unknown };
            let is_inside = (directory.names.window.0..=directory.names.window.1).contains(&cookie);
            let is_known = directory.changing == 0 && directory.names.unknown.is_empty();
            if !directory.is_leased || !is_known || !is_inside {
                return Listed::Unknown;
            }
            directory.used = clock;
            let directory = &state.dirs[&dir];
            let mut batch = Vec::new();
            let mut is_whole = true;
            for (position, name) in directory.names.order.range(cookie + 1..).take(BATCH + 1) {
                let entry = directory.names.known.get(name).copied().flatten();
                let cached = entry.and_then(|entry| state.inodes.get(&entry.ino));
                match cached {
                    Some(cached) if batch.len() < BATCH => {
                        let is_current = state.is_current(cached);
                        batch.push((name.clone(), *position, cached.inode, is_current));
                    }
                    Some(_) => is_whole = false,
                    None => return Listed::Unknown,
                }
            }
            let last = batch.last().map_or(cookie, |(_, position, ..)| *position);
            let rest = match (is_whole, directory.names.at_end) {
                (false, _) => Listed::More(last),
                (true, true) => Listed::End,
                (true, false) => Listed::Unknown,
            };
            (batch, rest)
        };
        let is_empty = batch.is_empty();
        for (name, position, inode, is_current) in &batch {
            if sink(name, *position, inode, *is_current).is_break() {
                return Listed::End;
            }
        }
        // A listing may stop after any entry. The caller continues from there.
        match rest {
            Listed::Unknown if !is_empty => Listed::End,
            rest => rest,
        }
    }

    /// Marks the names and attributes that a change alters as unknown, before the change is sent
    /// (guarantee K.6 in `lib.rs`).
    pub(crate) fn begin(&self, change: &Change<'_>) -> Begun {
        let mut state = self.state.lock();
        for dir in &change.dirs {
            let epoch = state.next_epoch();
            let directory = state.directory(*dir);
            directory.epoch = epoch;
            directory.changing += 1;
        }
        for (dir, name) in &change.names {
            let directory = state.directory(*dir);
            let unknown = directory.names.unknown.entry((*name).into()).or_default();
            unknown.is_mixed = unknown.changes > 0;
            unknown.changes += 1;
        }
        for ino in &change.inos {
            state.busy.entry(*ino).or_default().changes += 1;
        }
        Begun { era: state.era, epoch: state.epoch }
    }

    /// Ends a change that was made. `names` are the new states of names, and `inodes` are inodes
    /// with their new attributes. A changed name that is not in `names` stays unknown until a
    /// lookup asks for it. Only directories that were cached without a break since `begun` get the
    /// new states.
    pub(crate) fn end(
        &self,
        change: &Change<'_>,
        begun: Begun,
        names: &[(u64, &[u8], Option<Entry>)],
        inodes: &[Inode],
    ) {
        let mut state = self.state.lock();
        let newest = |inode: &&Inode| state.is_newest(inode);
        let inodes: Vec<&Inode> = inodes.iter().filter(newest).collect();
        for ino in &change.inos {
            state.settle(*ino);
        }
        state.end_names(change, true);
        if state.era == begun.era {
            for (dir, name, entry) in names {
                if state.is_held(*dir, begun) && !state.is_ambiguous(*dir, name) {
                    state.set_name(*dir, name, *entry);
                }
            }
            for inode in inodes {
                let cover = inode.cover();
                // Make the tickets of this directory invalid. The caller may not have known that it
                // is the home of the inode when the change began.
                let epoch = state.next_epoch();
                match state.dirs.get_mut(&cover) {
                    Some(directory) => directory.epoch = epoch,
                    None => state.removed_epoch = epoch,
                }
                if state.is_held(cover, begun) {
                    state.insert(cover, *inode);
                } else {
                    state.update_hint(*inode);
                }
            }
        }
        state.end_changing(change);
        self.shrink(state);
    }

    /// Ends a change that failed. If `is_unchanged` says that the database has changed nothing, the
    /// old names and attributes are valid again. Otherwise they must be asked for again.
    pub(crate) fn end_failed(&self, change: &Change<'_>, is_unchanged: bool) {
        let mut state = self.state.lock();
        for ino in &change.inos {
            state.settle(*ino);
            if !is_unchanged {
                state.remove_inode(*ino);
            }
        }
        state.end_names(change, !is_unchanged);
        state.end_changing(change);
    }

    /// Returns true if this session caches names of a directory.
    pub(crate) fn is_leased(&self, dir: u64) -> bool {
        self.state.lock().dirs.get(&dir).is_some_and(|directory| directory.is_leased)
    }

    /// Notes that a file is opened. Returns true if only this mount has changed the file since the
    /// last open, so that the kernel may keep its pages of the file.
    pub(crate) fn note_open(&self, ino: u64) -> bool {
        let mut state = self.state.lock();
        let is_current = state.inodes.get(&ino).is_some_and(|cached| state.is_current(cached));
        match state.inodes.get_mut(&ino).filter(|_| is_current) {
            Some(cached) => std::mem::replace(&mut cached.was_opened, true),
            None => false,
        }
    }

    /// Caches a directory that this session has just made, with its lease. The directory is empty.
    /// Does nothing if a lease was dropped for another mount since the change began, because that
    /// may have been the lease of this directory.
    pub(crate) fn add_new_directory(&self, begun: Begun, inode: Inode) {
        let mut state = self.state.lock();
        if state.era != begun.era || state.dropped_epoch > begun.epoch {
            return;
        }
        let dir = inode.attr.ino;
        state.lease(dir);
        state.given.be_busy(dir);
        if let Some(directory) = state.dirs.get_mut(&dir) {
            (directory.names.window, directory.names.at_end) = ((0, 0), true);
        }
        state.insert(dir, inode);
    }

    /// Forgets an inode that does not exist any more. If it was a directory, also forgets its
    /// names.
    pub(crate) fn remove(&self, ino: u64) {
        let mut state = self.state.lock();
        state.remove_dir(ino);
        state.remove_inode(ino);
    }

    /// Returns the size of the cache in entries. A name and an inode are one entry each. Extended
    /// attributes count as many entries as their bytes would fill.
    pub(crate) fn len(&self) -> usize {
        self.state.lock().count
    }

    /// Returns the number of cached directories.
    pub(crate) fn leases(&self) -> usize {
        self.state.lock().dirs.values().filter(|directory| directory.is_leased).count()
    }

    /// Locks and returns the state. Returns None if `ticket` is not valid any more for an answer
    /// about `dir`.
    fn valid(&self, ticket: Ticket, dir: u64) -> Option<MutexGuard<'_, State>> {
        let mut state = self.state.lock();
        let directory = state.directory(dir);
        let is_valid = directory.epoch <= ticket.0 && directory.changing == 0;
        let is_valid = is_valid || self.flaws.caches_late_answers;
        is_valid.then_some(state)
    }

    /// If the cache is above its limit, drops directories until a quarter of the limit is free. The
    /// leases on these directories stay, and so does the record of the answers that the kernel has.
    /// So an intent of another mount still makes the kernel drop these answers.
    fn shrink(&self, mut state: MutexGuard<'_, State>) {
        if state.count <= self.limit {
            return;
        }
        let idle = state.dirs.iter().filter(|(_, directory)| directory.is_idle());
        let mut oldest: Vec<(u64, u64)> = idle.map(|(dir, it)| (it.used, *dir)).collect();
        oldest.sort_unstable();
        let goal = self.limit / 4 * 3;
        for (_, dir) in oldest {
            if state.dirs[&dir].inos.len() > self.limit / 4 {
                state.forget_first_names(dir, goal);
            }
            if state.count <= goal {
                break;
            }
            state.remove_dir(dir);
        }
        drop(state);
        // The allocator keeps freed memory for the threads that allocated it, so return it to the
        // system. Otherwise each group of threads that fills directories could keep as much memory
        // as the limit.
        heap::give_back_freed();
    }
}

/// How many names a listing copies from the cache at a time. The cache is locked meanwhile.
const BATCH: usize = 256;

/// The state of a listing after a batch of names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Listed {
    /// The listing is complete, or its caller wants no more.
    End,
    /// There are more names after this position.
    More(u64),
    /// The database must be asked.
    Unknown,
}

impl Caches for Cache {
    fn drop_all(&self) -> Duration {
        let mut turn = self.kernel.turn.lock();
        let owed = self.drop_state();
        self.kernel.expire(&mut turn, &owed);
        turn.names_end
    }

    /// Drops some directories from this cache, and makes the kernel drop its answers about them.
    /// Answers of the database that are under way are not cached either, because their tickets
    /// become invalid.
    fn drop_directories(&self, dirs: &[u64]) -> Duration {
        let mut turn = self.kernel.turn.lock();
        let mut owed = Owed::default();
        {
            let mut state = self.state.lock();
            for dir in dirs {
                let epoch = state.next_epoch();
                state.dropped_epoch = epoch;
                match state.dirs.get_mut(dir) {
                    Some(directory) => directory.epoch = epoch,
                    None => state.removed_epoch = epoch,
                }
                state.remove_dir(*dir);
                state.given.be_shared(*dir);
                owed.inos.extend(state.given.take_attributes(*dir));
            }
            owed.names = state.given.take_names(dirs.iter().copied());
        }
        if self.flaws.keeps_kernel_names {
            owed.names = None;
        }
        if self.flaws.keeps_kernel_attributes {
            owed.inos.clear();
        }
        self.kernel.expire(&mut turn, &owed);
        turn.names_end
    }
}

impl Cache {
    /// Drops everything from this cache. Returns the answers that the kernel must drop.
    fn drop_state(&self) -> Owed {
        let mut state = self.state.lock();
        let state = &mut *state;
        state.era += 1;
        state.epoch += 1;
        state.inodes.clear();
        state.count = 0;
        for directory in state.dirs.values_mut() {
            state.epoch += 1;
            directory.epoch = state.epoch;
            directory.is_leased = false;
            directory.inos.clear();
            // Changes that are under way decrement the counts of these names when they end.
            directory.names =
                Names { unknown: std::mem::take(&mut directory.names.unknown), ..Names::default() };
        }
        state.removed_epoch = state.epoch;
        state.dirs.retain(|_, directory| !directory.is_idle());
        state.given.take_all()
    }
}

#[cfg(test)]
mod tests {
    use corewalk::Attr;

    use super::*;

    const DIR: u64 = 5;
    const FILE: u64 = 7;

    fn version(version: i64) -> Inode {
        Inode { attr: Attr::file(FILE, version as u64), home: DIR, version, flags: 0 }
    }

    /// Checks that a late reply does not replace newer attributes. Two changes of an inode overlap,
    /// and the first began before the directory was cached. The database makes the second change
    /// first, but the reply to it arrives last.
    #[test]
    fn late_reply_with_an_older_version_is_not_cached() {
        let cache = Cache::new(&ClusterOptions::default());
        let change = |dirs| Change { dirs, names: Vec::new(), inos: vec![FILE] };
        let begun = cache.begin(&change(Vec::new()));
        let dir = Inode { attr: Attr::dir(DIR), home: 1, version: 1, flags: 0 };
        let names: [Listing; 1] = [(b"f"[..].into(), 1, version(4))];
        assert!(cache.fill(cache.ticket(), DIR, &[dir, version(4)], 0, &names, true));
        let second = cache.begin(&change(vec![DIR]));
        cache.end(&change(Vec::new()), begun, &[], &[version(6)]);
        cache.end(&change(vec![DIR]), second, &[], &[version(5)]);
        assert_eq!(cache.inode(FILE).map(|inode| inode.version), None);
    }

    #[test]
    fn extended_attributes_count_in_the_limit_of_the_cache() {
        let cache = Cache::new(&ClusterOptions::default().with_cache_bytes(0));
        let xattrs: Xattrs = Arc::new(vec![(b"user.a".to_vec(), vec![0; 65536])]);
        for number in 0..20 {
            let dir = Inode { attr: Attr::dir(DIR + number), home: 1, version: 1, flags: 0 };
            assert!(cache.fill(cache.ticket(), DIR + number, &[dir], 0, &[], true));
            cache.keep_xattrs(DIR + number, 1, &xattrs);
            assert!(cache.xattrs(DIR + number).is_some());
            assert!(cache.len() <= 1000, "{} entries", cache.len());
        }
        // 1,000 entries are 500 KB.
        let known = (0..20).filter(|number| cache.xattrs(DIR + number).is_some()).count();
        assert!((4..8).contains(&known), "{known} are cached");
        cache.drop_all();
        assert_eq!(cache.len(), 0);
    }
}
