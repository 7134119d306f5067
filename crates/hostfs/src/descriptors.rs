//! The descriptors that `HostFs` keeps from one call to the next.
//!
//! | kind | of | kept until | at most |
//! |---|---|---|---|
//! | reusable | recently used inodes | evicted by the clock algorithm | `reusable` |
//! | orphans | inodes that lost their last name | `forget`, or clock eviction | `orphans` |
//! | fresh | files created in order to be opened | the `open` that follows | running creations |
//! | open | files that the client has open | `release` | `open_max`, with the fresh ones |
//!
//! A descriptor keeps its inode alive, so the host does not reuse the inode number. An orphan is an
//! inode without names that the dentry cache still uses.
//!
//! The clock algorithm may evict the descriptor of an orphan that no client has open. The host may
//! then give its inode number to a new file. If the new file becomes an orphan too, the `forget` of
//! the first one drops the descriptor of the second. The reason is that `forget` gets only the
//! inode number.
//!
//! # Locks
//! One mutex protects all kinds of descriptors. While it is held, no other lock is taken, and no
//! descriptor is opened or closed.

use std::collections::{BTreeMap, HashMap};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use corewalk::Errno;
use corewalk_base::Mutex;
use corewalk_base::primitives::atomic::{AtomicU64, Ordering};
use foldhash::fast::RandomState;
use rustix::fs::OFlags;

use crate::hostfs::HostFsOptions;

pub(crate) type SharedFd = Arc<OwnedFd>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shares {
    pub(crate) reusable: usize,
    pub(crate) orphans: usize,
    pub(crate) open_max: usize,
}

impl Shares {
    /// Divides `limit`, the number of descriptors that the process may have (`RLIMIT_NOFILE`),
    /// among the kinds of descriptors. `None` means no limit.
    /// - `options.reserved` descriptors, but at most half of the limit, are set aside for running
    ///   calls.
    /// - Reusable descriptors and orphans (removed files in use) each get at most a quarter of the
    ///   rest.
    /// - The remaining descriptors, at least one, are for files that clients open.
    pub(crate) fn new(options: &HostFsOptions, limit: Option<u64>) -> Shares {
        let limit = limit.and_then(|limit| usize::try_from(limit).ok()).unwrap_or(usize::MAX);
        let rest = limit - options.reserved.min(limit / 2);
        let (reusable, orphans) = (options.reusable.min(rest / 4), options.orphans.min(rest / 4));
        Shares { reusable, orphans, open_max: (rest - reusable - orphans).max(1) }
    }
}

pub(crate) struct Descriptors {
    /// The kept descriptors. Protected by its own mutex. No descriptor is opened or closed while
    /// the mutex is held.
    kept: Mutex<Kept>,
    /// Maximum number of open files. Parallel calls may together exceed it, since each call checks
    /// it before it opens its file.
    open_max: usize,
    next_handle: AtomicU64,
}

struct Kept {
    reusable: Recent,
    orphans: Recent,
    fresh: HashMap<u64, (OFlags, OwnedFd), RandomState>,
    open: BTreeMap<(u64, u64), Open>,
}

struct Open {
    access: OFlags,
    fd: SharedFd,
}

/// A cache of at most `max` descriptors, by inode number. Each use of a descriptor marks its slot.
/// In a full cache, the clock algorithm evicts the first slot without a mark.
struct Recent {
    max: usize,
    hand: usize,
    slots: Vec<Slot>,
    by_ino: HashMap<u64, usize, RandomState>,
}

struct Slot {
    ino: u64,
    fd: SharedFd,
    is_used: bool,
}

impl Descriptors {
    pub(crate) fn new(shares: Shares) -> Descriptors {
        let (reusable, orphans) = (Recent::new(shares.reusable), Recent::new(shares.orphans));
        let (fresh, open) = (HashMap::default(), BTreeMap::new());
        let kept = Kept { reusable, orphans, fresh, open };
        Descriptors {
            kept: Mutex::new(kept),
            open_max: shares.open_max,
            next_handle: AtomicU64::new(1),
        }
    }

    pub(crate) fn get(&self, ino: u64) -> Option<SharedFd> {
        let mut kept = self.kept.lock();
        let found = kept.reusable.get(ino).or_else(|| kept.orphans.get(ino));
        if found.is_some() || kept.open.is_empty() {
            return found;
        }
        let mut open = kept.open.range((ino, 0)..=(ino, u64::MAX));
        open.next().map(|(_, open)| Arc::clone(&open.fd))
    }

    pub(crate) fn keep(&self, ino: u64, fd: SharedFd) {
        let evicted = self.kept.lock().reusable.insert(ino, fd);
        drop(evicted);
    }

    /// Keeps the descriptor of an inode that loses its last name. Calls on the inode use this
    /// descriptor until the cache forgets the inode.
    pub(crate) fn keep_orphan(&self, ino: u64, fd: SharedFd) {
        let mut kept = self.kept.lock();
        let gone = (kept.reusable.remove(ino), kept.orphans.insert(ino, fd));
        drop(kept);
        drop(gone);
    }

    /// Drops the orphan descriptor of an inode that has a name after all: its removal has failed,
    /// or a link to it was made.
    pub(crate) fn adopt_orphan(&self, ino: u64) {
        let orphan = self.kept.lock().orphans.remove(ino);
        drop(orphan);
    }

    /// Drops the descriptors of an inode that the dentry cache has forgotten, except those of open
    /// files.
    pub(crate) fn forget(&self, ino: u64) {
        let mut kept = self.kept.lock();
        let gone = (kept.reusable.remove(ino), kept.orphans.remove(ino), kept.fresh.remove(&ino));
        drop(kept);
        drop(gone);
    }

    /// Closes all reusable descriptors, for a process that has no free descriptor.
    pub(crate) fn drop_reusable(&self) {
        let all = self.kept.lock().reusable.take();
        drop(all);
    }

    /// Keeps the descriptor of a new file for the `open` call of the client that created the file.
    pub(crate) fn keep_fresh(&self, ino: u64, access: OFlags, fd: OwnedFd) {
        let replaced = self.kept.lock().fresh.insert(ino, (access, fd));
        drop(replaced);
    }

    /// Takes the fresh descriptor of a file. Returns `None` if there is none, or if it was opened
    /// with an access mode other than `access`.
    pub(crate) fn take_fresh(&self, ino: u64, access: OFlags) -> Option<OwnedFd> {
        let mut kept = self.kept.lock();
        // Another client may open the new file first, with another access mode. Such a client must
        // not get this descriptor.
        kept.fresh.get(&ino).filter(|(kept, _)| *kept == access)?;
        kept.fresh.remove(&ino).map(|(_, fd)| fd)
    }

    /// Checks that one more file may be opened. `lock_files` is the number of open files that carry
    /// locks.
    ///
    /// # Errors
    /// `ENFILE` if the server has as many open files as the limit allows. `EMFILE` would wrongly
    /// tell the client that its own process has too many descriptors.
    pub(crate) fn check_open_limit(&self, lock_files: usize) -> Result<(), Errno> {
        let kept = self.kept.lock();
        let is_full = kept.open.len() + kept.fresh.len() + lock_files >= self.open_max;
        if is_full { Err(Errno::NFILE) } else { Ok(()) }
    }

    pub(crate) fn add_open(&self, ino: u64, access: OFlags, fd: OwnedFd) -> u64 {
        // ORDERING: Relaxed. The handles only have to differ, which the atomic addition ensures.
        let handle = self.next_handle.fetch_add(1, Ordering::Relaxed);
        let open = Open { access, fd: Arc::new(fd) };
        self.kept.lock().open.insert((ino, handle), open);
        handle
    }

    pub(crate) fn get_open(&self, ino: u64, handle: u64) -> Option<SharedFd> {
        self.kept.lock().open.get(&(ino, handle)).map(|open| Arc::clone(&open.fd))
    }

    pub(crate) fn get_writable(&self, ino: u64) -> Option<SharedFd> {
        let kept = self.kept.lock();
        let mut open = kept.open.range((ino, 0)..=(ino, u64::MAX)).map(|(_, open)| open);
        open.find(|open| matches!(open.access, OFlags::WRONLY | OFlags::RDWR))
            .map(|open| Arc::clone(&open.fd))
    }

    pub(crate) fn close(&self, ino: u64, handle: u64) {
        let open = self.kept.lock().open.remove(&(ino, handle));
        drop(open);
    }
}

impl Recent {
    fn new(max: usize) -> Recent {
        Recent { max, hand: 0, slots: Vec::new(), by_ino: HashMap::default() }
    }

    fn get(&mut self, ino: u64) -> Option<SharedFd> {
        let slot = &mut self.slots[*self.by_ino.get(&ino)?];
        slot.is_used = true;
        Some(Arc::clone(&slot.fd))
    }

    /// Inserts a descriptor, and returns one that is no longer kept, if any. The caller drops the
    /// returned descriptor after it has unlocked the mutex, because closing a file may block.
    fn insert(&mut self, ino: u64, fd: SharedFd) -> Option<SharedFd> {
        if self.max == 0 {
            return Some(fd);
        }
        if let Some(&at) = self.by_ino.get(&ino) {
            return Some(std::mem::replace(&mut self.slots[at].fd, fd));
        }
        let new = Slot { ino, fd, is_used: false };
        if self.slots.len() < self.max {
            self.by_ino.insert(ino, self.slots.len());
            self.slots.push(new);
            return None;
        }
        let at = self.next_unused();
        let evicted = std::mem::replace(&mut self.slots[at], new);
        self.by_ino.remove(&evicted.ino);
        self.by_ino.insert(ino, at);
        Some(evicted.fd)
    }

    fn next_unused(&mut self) -> usize {
        loop {
            let at = self.hand % self.slots.len();
            self.hand = at + 1;
            if !std::mem::take(&mut self.slots[at].is_used) {
                return at;
            }
        }
    }

    fn remove(&mut self, ino: u64) -> Option<SharedFd> {
        let at = self.by_ino.remove(&ino)?;
        let removed = self.slots.swap_remove(at);
        if let Some(moved) = self.slots.get(at) {
            self.by_ino.insert(moved.ino, at);
        }
        Some(removed.fd)
    }

    fn take(&mut self) -> Vec<Slot> {
        self.by_ino.clear();
        std::mem::take(&mut self.slots)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fd() -> SharedFd {
        Arc::new(std::fs::File::open("/dev/null").unwrap().into())
    }

    #[test]
    fn descriptor_that_was_used_stays_for_another_round() {
        let shares = Shares { reusable: 2, orphans: 1, open_max: 1 };
        let descriptors = Descriptors::new(shares);
        descriptors.keep(1, fd());
        descriptors.keep(2, fd());
        assert!(descriptors.get(1).is_some());
        descriptors.keep(3, fd());
        assert!(descriptors.get(2).is_none());
        assert!(descriptors.get(1).is_some() && descriptors.get(3).is_some());
        descriptors.keep(4, fd());
        let kept = [1, 3, 4].map(|ino| descriptors.get(ino).is_some());
        assert_eq!(kept.iter().filter(|kept| **kept).count(), 2);
        assert!(kept[2]);
    }

    #[test]
    fn any_order_of_calls_keeps_the_bound_and_finds_kept_descriptors() {
        let mut recent = Recent::new(5);
        let mut seed = 7_u64;
        for _ in 0..10_000 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let ino = (seed >> 33) % 12;
            match seed >> 60 {
                0..8 => drop(recent.insert(ino, fd())),
                8..12 => assert_eq!(recent.get(ino).is_some(), recent.by_ino.contains_key(&ino)),
                12..15 => drop(recent.remove(ino)),
                _ if seed.is_multiple_of(97) => drop(recent.take()),
                _ => {}
            }
            assert!(recent.slots.len() <= 5 && recent.slots.len() == recent.by_ino.len());
            for (at, slot) in recent.slots.iter().enumerate() {
                assert_eq!(recent.by_ino.get(&slot.ino), Some(&at), "seed 7");
            }
        }
    }

    #[test]
    fn handle_of_another_inode_is_refused() {
        let descriptors = Descriptors::new(Shares { reusable: 1, orphans: 1, open_max: 2 });
        let handle = descriptors.add_open(5, OFlags::RDONLY, fd().try_clone().unwrap());
        assert!(descriptors.get_open(5, handle).is_some());
        assert!(descriptors.get_open(6, handle).is_none());
        assert!(descriptors.get_writable(5).is_none());
        assert_eq!(descriptors.check_open_limit(0), Ok(()));
        assert_eq!(descriptors.check_open_limit(1), Err(Errno::NFILE), "a file that carries locks");
        let writer = descriptors.add_open(5, OFlags::RDWR, fd().try_clone().unwrap());
        assert!(descriptors.get_writable(5).is_some() && descriptors.get_writable(4).is_none());
        assert_eq!(descriptors.check_open_limit(0), Err(Errno::NFILE));
        descriptors.close(5, writer);
        assert_eq!(descriptors.check_open_limit(0), Ok(()));
        descriptors.close(6, handle);
        assert!(descriptors.get(5).is_some() && descriptors.get(6).is_none());
        descriptors.close(5, handle);
        assert!(descriptors.get_open(5, handle).is_none() && descriptors.get(5).is_none());
    }

    #[test]
    fn shares_fit_into_the_limit_and_leave_the_reserve() {
        let options = HostFsOptions { reserved: 32, ..HostFsOptions::default() };
        let of = |limit| {
            let Shares { reusable, orphans, open_max } = Shares::new(&options, limit);
            (reusable, orphans, open_max)
        };
        assert_eq!(of(Some(64)), (8, 8, 16));
        assert_eq!(of(Some(1024)), (64, 128, 800));
        assert_eq!(of(Some(16)), (2, 2, 4));
        assert_eq!(of(Some(0)), (0, 0, 1));
        assert_eq!(of(None), (64, 128, usize::MAX - 224));
    }
}
