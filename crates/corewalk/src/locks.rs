//! Advisory file locks: byte ranges as of fcntl(2), whole files as of flock(2).
//!
//! A server of files must keep locks for its clients: grant, split and merge ranges, say who is in
//! the way, let callers wait, and not let two of them wait for each other for ever. A
//! [`LockTable`] does that for inode numbers and numbered owners, and knows nothing of a protocol.
//!
//! # How it works
//! Locks of a file are two short lists, one of ranges sorted by start and one of flock locks; the
//! two kinds do not see each other. POSIX and open file description (OFD) locks share the ranges
//! and differ in who owns them. A caller that must wait leaves its [`CancelToken`] with the file
//! and sleeps on it; whoever removes a lock wakes all of them, and each tries again.
//!
//! A POSIX owner that waits is an edge to each owner in its way. An edge that would close a circle
//! is refused with `EDEADLK`. Waking drops the edges of those woken, so that no stale edge makes a
//! circle that is none; they are found again when the woken try again.
//!
//! # Invariants
//! - L.1: two locks of different owners overlap only if both are shared.
//! - L.2: ranges of one owner do not overlap, and do not touch if they are of one mode.
//!
//! # Locks and their order
//! A shard of the files; then `waits`; then the word of a token. None while a caller sleeps.
//!
//! # What it refuses
//! Mandatory locks and leases. Waiters are not served in order. Converting a flock lock drops the
//! old one first, as flock(2) warns. No deadlock is looked for among flock and OFD locks, as in
//! Linux.
//!
//! Source: fcntl(2), flock(2); POSIX.1-2024 fcntl; Linux `fs/locks.c` for the behaviour.
//!
//! # Examples
//! ```
//! use corewalk::Errno;
//! use corewalk::locks::{Lock, LockClass, LockMode, LockTable};
//! let table = LockTable::new();
//! let lock = |owner, start, end| {
//!     Lock { class: LockClass::Posix, mode: LockMode::Exclusive, owner, pid: 1, start, end }
//! };
//! table.try_set(7, &lock(1, 0, 99))?;
//! assert_eq!(table.try_set(7, &lock(2, 50, 60)), Err(Errno::AGAIN));
//! table.unlock(7, &lock(1, 40, 69))?;
//! table.try_set(7, &lock(2, 50, 60))?;
//! assert_eq!(table.conflict(7, &lock(2, 0, u64::MAX)), Some(lock(1, 0, 39)));
//! # Ok::<(), Errno>(())
//! ```

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use corewalk_base::primitives::atomic::{AtomicU64, Ordering};
use corewalk_base::{CachePadded, Condvar, Mutex};

use crate::Errno;

/// Shards of the files; a power of two.
const SHARDS: u64 = 32;

type Shard = CachePadded<Mutex<HashMap<u64, FileLocks>>>;

/// The locks of all files. See the module's text.
pub struct LockTable {
    shards: Box<[Shard]>,
    /// (POSIX owner, number of its wait): the owners in its way.
    waits: Mutex<BTreeMap<(u64, u64), Vec<u64>>>,
    next_wait: AtomicU64,
}

impl LockTable {
    /// Returns a table without locks.
    pub fn new() -> LockTable {
        LockTable {
            shards: (0..SHARDS).map(|_| Shard::default()).collect(),
            waits: Mutex::new(BTreeMap::new()),
            next_wait: AtomicU64::new(0),
        }
    }

    /// Returns a lock that is in the way of `lock`, the first by start (`F_GETLK`).
    pub fn conflict(&self, ino: u64, lock: &Lock) -> Option<Lock> {
        self.shard(ino).lock().get(&ino)?.conflicts(lock).next().copied()
    }

    /// Sets a lock; what the owner held of its range is replaced (`F_SETLK`, `LOCK_NB`).
    ///
    /// # Errors
    /// `EAGAIN` if a lock of another owner is in the way; `EINVAL` for a range that ends before it
    /// starts.
    pub fn try_set(&self, ino: u64, lock: &Lock) -> Result<(), Errno> {
        lock.check()?;
        self.attempt(&mut self.shard(ino).lock(), ino, lock).map_err(|_| Errno::AGAIN)
    }

    /// Sets a lock, after waiting until none is in the way (`F_SETLKW`).
    ///
    /// # Errors
    /// `EDEADLK` if an owner in the way waits for this one; `EINTR` once `cancel` is cancelled;
    /// `EINVAL` for a range that ends before it starts.
    pub fn set(&self, ino: u64, lock: &Lock, cancel: &CancelToken) -> Result<(), Errno> {
        lock.check()?;
        // ORDERING: Relaxed. The number only tells waits apart.
        let number = self.next_wait.fetch_add(1, Ordering::Relaxed);
        loop {
            let wakes = cancel.wakes()?;
            {
                let mut shard = self.shard(ino).lock();
                let Err(blockers) = self.attempt(&mut shard, ino, lock) else { return Ok(()) };
                self.begin_wait(lock, number, blockers)?;
                let waiter = Waiter { number, owner: lock.owner, token: cancel.clone() };
                shard.entry(ino).or_default().waiters.push(waiter);
            }
            let woken = cancel.wait(wakes);
            let mut shard = self.shard(ino).lock();
            if let Some(file) = shard.get_mut(&ino) {
                file.waiters.retain(|waiter| waiter.number != number);
            }
            self.waits.lock().remove(&(lock.owner, number));
            forget_if_idle(&mut shard, ino);
            drop(shard);
            woken?;
        }
    }

    /// Removes what the owner of `lock` holds in its range; the mode does not matter.
    ///
    /// # Errors
    /// `EINVAL` for a range that ends before it starts.
    pub fn unlock(&self, ino: u64, lock: &Lock) -> Result<(), Errno> {
        lock.check()?;
        let mut shard = self.shard(ino).lock();
        if let Some(file) = shard.get_mut(&ino)
            && file.replace(lock, None)
        {
            self.wake(file);
        }
        forget_if_idle(&mut shard, ino);
        Ok(())
    }

    /// Removes all locks of one class that `owner` holds on a file, as closing it does.
    pub fn release(&self, ino: u64, class: LockClass, owner: u64) {
        let all = Lock { class, mode: LockMode::Shared, owner, pid: 0, start: 0, end: u64::MAX };
        let released = self.unlock(ino, &all);
        debug_assert_eq!(released, Ok(()), "the range is valid");
    }

    /// Sets a lock or returns the owners that are in the way.
    fn attempt(
        &self,
        shard: &mut HashMap<u64, FileLocks>,
        ino: u64,
        lock: &Lock,
    ) -> Result<(), Vec<Owner>> {
        let file = shard.entry(ino).or_default();
        if lock.class == LockClass::Flock && file.replace(lock, None) {
            self.wake(file);
        }
        let blockers: Vec<Owner> = file.conflicts(lock).map(Lock::owner).collect();
        if !blockers.is_empty() {
            return Err(blockers);
        }
        if file.replace(lock, Some(lock.mode)) {
            self.wake(file);
        }
        Ok(())
    }

    /// Records for whom a POSIX owner waits. `EDEADLK` if one of them waits for it.
    fn begin_wait(&self, lock: &Lock, number: u64, blockers: Vec<Owner>) -> Result<(), Errno> {
        if lock.class != LockClass::Posix {
            return Ok(());
        }
        let is_posix = |&(class, owner): &Owner| (class == LockClass::Posix).then_some(owner);
        let blockers: Vec<u64> = blockers.iter().filter_map(is_posix).collect();
        let mut waits = self.waits.lock();
        let (mut stack, mut seen) = (blockers.clone(), HashSet::new());
        while let Some(owner) = stack.pop() {
            if owner == lock.owner {
                return Err(Errno::DEADLK);
            }
            if seen.insert(owner) {
                let edges = waits.range((owner, 0)..=(owner, u64::MAX));
                stack.extend(edges.flat_map(|(_, blockers)| blockers));
            }
        }
        waits.insert((lock.owner, number), blockers);
        Ok(())
    }

    /// Wakes all who wait for locks of `file`.
    fn wake(&self, file: &mut FileLocks) {
        if file.waiters.is_empty() {
            return;
        }
        let mut waits = self.waits.lock();
        for waiter in file.waiters.drain(..) {
            waits.remove(&(waiter.owner, waiter.number));
            waiter.token.wake();
        }
    }

    fn shard(&self, ino: u64) -> &Shard {
        &self.shards[(ino % SHARDS) as usize]
    }
}

impl Default for LockTable {
    fn default() -> LockTable {
        LockTable::new()
    }
}

/// What a lock is and where its owner's number comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LockClass {
    /// A range, owned by a process (`F_SETLK`).
    Posix,
    /// A range, owned by an open file description (`F_OFD_SETLK`).
    OpenFile,
    /// A whole file, owned by an open file description (flock(2)); the range is not looked at.
    Flock,
}

/// With whom a lock can be shared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LockMode {
    /// With other shared locks (`F_RDLCK`, `LOCK_SH`).
    Shared,
    /// With none (`F_WRLCK`, `LOCK_EX`).
    Exclusive,
}

/// A lock that is held or asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Lock {
    /// What it is.
    pub class: LockClass,
    /// With whom it can be shared.
    pub mode: LockMode,
    /// Who holds it; numbers of different classes are different owners.
    pub owner: u64,
    /// The process to report to others that ask.
    pub pid: u32,
    /// The first byte.
    pub start: u64,
    /// The last byte; `u64::MAX` for a lock to the end, however far.
    pub end: u64,
}

/// An owner among those of all classes.
type Owner = (LockClass, u64);

impl Lock {
    fn owner(&self) -> Owner {
        (self.class, self.owner)
    }

    fn check(&self) -> Result<(), Errno> {
        if self.start > self.end { Err(Errno::INVAL) } else { Ok(()) }
    }

    fn overlaps(&self, other: &Lock) -> bool {
        self.class == LockClass::Flock || self.start <= other.end && other.start <= self.end
    }

    /// Returns true if no byte is between the two.
    fn touches(&self, other: &Lock) -> bool {
        self.start <= other.end.saturating_add(1) && other.start <= self.end.saturating_add(1)
    }
}

/// Ends a wait from outside, for a caller that was interrupted. Clones are the same token.
#[derive(Clone, Default)]
pub struct CancelToken {
    shared: Arc<(Mutex<TokenState>, Condvar)>,
}

impl CancelToken {
    /// Returns a token that is not cancelled.
    pub fn new() -> CancelToken {
        CancelToken::default()
    }

    /// Makes every wait with this token, now and later, fail with `EINTR`.
    pub fn cancel(&self) {
        self.shared.0.lock().is_cancelled = true;
        self.shared.1.notify_all();
    }

    /// Returns how often the token was woken. `EINTR` if it is cancelled.
    fn wakes(&self) -> Result<u64, Errno> {
        let state = self.shared.0.lock();
        if state.is_cancelled { Err(Errno::INTR) } else { Ok(state.wakes) }
    }

    fn wake(&self) {
        self.shared.0.lock().wakes += 1;
        self.shared.1.notify_all();
    }

    /// Sleeps until the token was woken more than `wakes` times. `EINTR` if it is cancelled.
    fn wait(&self, wakes: u64) -> Result<(), Errno> {
        let mut state = self.shared.0.lock();
        while state.wakes == wakes && !state.is_cancelled {
            self.shared.1.wait(&mut state);
        }
        if state.is_cancelled { Err(Errno::INTR) } else { Ok(()) }
    }
}

#[derive(Default)]
struct TokenState {
    wakes: u64,
    is_cancelled: bool,
}

/// The locks of one file, and who waits for them.
#[derive(Default)]
struct FileLocks {
    ranges: Vec<Lock>,
    flocks: Vec<Lock>,
    waiters: Vec<Waiter>,
}

impl FileLocks {
    /// Returns the locks in the way of `lock`.
    fn conflicts(&self, lock: &Lock) -> impl Iterator<Item = &Lock> {
        let locks = if lock.class == LockClass::Flock { &self.flocks } else { &self.ranges };
        locks.iter().filter(move |held| {
            let is_shared = held.mode == LockMode::Shared && lock.mode == LockMode::Shared;
            held.owner() != lock.owner() && held.overlaps(lock) && !is_shared
        })
    }

    /// Replaces what the owner of `lock` holds in its range by `mode`, and returns true if it held
    /// anything there.
    fn replace(&mut self, lock: &Lock, mode: Option<LockMode>) -> bool {
        let locks =
            if lock.class == LockClass::Flock { &mut self.flocks } else { &mut self.ranges };
        let (mut new, mut has_held) = (*lock, false);
        for old in std::mem::take(locks) {
            let has_overlap = old.owner() == lock.owner() && old.overlaps(lock);
            has_held |= has_overlap;
            if old.owner() == lock.owner() && Some(old.mode) == mode && old.touches(lock) {
                new.start = new.start.min(old.start);
                new.end = new.end.max(old.end);
            } else if !has_overlap {
                locks.push(old);
            } else if lock.class != LockClass::Flock {
                if old.start < lock.start {
                    locks.push(Lock { end: lock.start - 1, ..old });
                }
                if old.end > lock.end {
                    locks.push(Lock { start: lock.end + 1, ..old });
                }
            }
        }
        if let Some(mode) = mode {
            locks.push(Lock { mode, ..new });
        }
        locks.sort_by_key(|held| held.start);
        has_held
    }
}

/// A caller that waits for a file's locks to change.
struct Waiter {
    number: u64,
    owner: u64,
    token: CancelToken,
}

/// Drops the record of a file that has no locks and no waiters.
fn forget_if_idle(shard: &mut HashMap<u64, FileLocks>, ino: u64) {
    let is_idle =
        |f: &FileLocks| f.ranges.is_empty() && f.flocks.is_empty() && f.waiters.is_empty();
    if shard.get(&ino).is_some_and(is_idle) {
        shard.remove(&ino);
    }
}

#[cfg(all(test, not(any(corewalk_loom, corewalk_shuttle))))]
mod tests;
