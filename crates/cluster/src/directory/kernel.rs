//! The answers that the kernel may keep for a time, and how the kernel is made to drop them
//! (guarantee K.7 in `lib.rs`).
//!
//! The cache records each answer that the kernel may keep for a time ([`Given`]). It looks up the
//! answer and records it under one lock. A change or an intent first makes the cache forget what it
//! alters, and then makes the kernel drop the recorded answers. So the kernel keeps no old answer:
//! - An answer that was given before is in the record, so the kernel drops it.
//! - Afterwards the cache does not know the answer any more, so the kernel does not get it again.
//!
//! The request to the kernel to drop answers is an *expiry*. It may overtake an answer on its way
//! to the kernel. The kernel notices that, and does not keep the answer.
//!
//! # Order
//! A thread that removes answers from the record holds [`Kernel::turn`] until the kernel has
//! dropped them. So if a second thread finds the record empty, the kernel has dropped the answers
//! already. `turn` is taken before the lock of the cache's state. An expiry waits neither for a
//! request of the kernel nor for a lock that such a request holds.
//!
//! # Own changes
//! Other mounts see a change of this mount before the kernel has the reply. Until then the kernel
//! would show the old name to other programs on this mount. Such a program may know of the change
//! from another mount. So the kernel drops what a change of this mount alters before the change is
//! sent.
//!
//! While there is no other mount, the kernel need not drop anything. The first change of a later
//! mount waits until the timeouts of the kernel's answers are over.
//!
//! # Mounts below
//! When the kernel drops names, it detaches the file systems that are mounted on them. So the
//! kernel may keep no names while there is such a file system, or a junction. Names that it got
//! earlier are not dropped. Instead, each change waits until their timeouts are over. The functions
//! that drop answers return this instant.
//!
//! # Memory
//! The record of an answer is dropped between one and two lease times after it was given.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use corewalk::{ClientCache, Errno};
use corewalk_base::primitives::atomic::{AtomicBool, Ordering};
use corewalk_base::{Mutex, ShardedCounter};

use super::{Cache, Change};
use crate::session::boot_time;

/// How long a directory counts as *busy* after a change ([`Busy`]).
const BUSY: Duration = Duration::from_secs(3);

/// Makes the kernel drop answers from its cache.
#[derive(Debug, Default)]
pub(super) struct Kernel {
    /// None until [`Kernel::attach`] finds that the kernel can drop names. Until then, the kernel
    /// may keep no answers while there are other mounts.
    client: OnceLock<Arc<dyn ClientCache>>,
    pub(super) turn: Mutex<Turn>,
    /// True while there are junctions. `turn` is held to set it.
    has_junctions: AtomicBool,
    /// How often the kernel had to drop all names.
    pub(super) name_expiries: ShardedCounter,
    /// How often the kernel had to drop the attributes of an inode.
    pub(super) attribute_expiries: ShardedCounter,
}

/// Held by a thread until the kernel has dropped the answers that the thread took from the record.
#[derive(Debug, Default)]
pub(super) struct Turn {
    /// The instant until which the kernel may keep names that it could not drop, by [`boot_time`].
    pub(super) names_end: Duration,
}

/// The answers that the kernel must drop.
#[derive(Debug, Default)]
pub(super) struct Owed {
    /// The instant until which the kernel may keep names. None if no names must be dropped.
    pub(super) names: Option<Duration>,
    pub(super) inos: Vec<u64>,
}

/// The record of the answers that the kernel may have. Protected by the lock of the cache's state.
#[derive(Debug, Default)]
pub(super) struct Given {
    young: Record,
    old: Record,
    /// When `young` last became `old`.
    turned: Duration,
    /// The instant until which the kernel may keep names, by [`boot_time`].
    names_end: Duration,
    lease: Duration,
    busy_time: Duration,
    /// True if the kernel may have names from the time when this mount was the only one. Their
    /// directories are not recorded.
    anywhere: bool,
    busy: HashMap<u64, Busy>,
}

#[derive(Debug, Default)]
struct Record {
    /// The directories whose names the kernel got.
    names: HashSet<u64>,
    /// The inodes whose attributes the kernel got. The key is the directory whose lease covers
    /// them.
    inos: HashMap<u64, HashSet<u64>>,
}

/// A directory is *busy* for a short time after a change. The fields are the instants until which
/// the kernel may keep no names of the directory, and no attributes of its inodes.
///
/// The kernel can only drop all names of the whole mount at once. So the first change of a name
/// makes the kernel drop all names, and makes the directory busy. Further changes in this directory
/// then find no names that the kernel would have to drop. A directory that this mount has just made
/// is busy, too. Otherwise the kernel would drop all names for each new directory while an archive
/// is unpacked. No guarantee depends on how long a directory is busy.
#[derive(Clone, Copy, Debug, Default)]
struct Busy {
    names: Duration,
    attributes: Duration,
}

impl Kernel {
    /// Stores `client` if the kernel can drop names through it.
    pub(super) fn attach(&self, client: Arc<dyn ClientCache>) {
        match client.expire_names() {
            Ok(()) => drop(self.client.set(client)),
            Err(errno) => log::info!("the kernel keeps no names beside other mounts: {errno}"),
        }
    }

    pub(super) fn is_attached(&self) -> bool {
        self.client.get().is_some()
    }

    /// Returns true if the kernel can drop names now without detaching a file system that is
    /// mounted below.
    fn can_expire_names(&self) -> bool {
        // ORDERING: Relaxed. If the flag is set at the same time, the name that the kernel gets is
        // in the record. A later change reads the flag under `turn`.
        !self.has_junctions.load(Ordering::Relaxed)
            && self.client.get().is_some_and(|client| client.can_expire_names())
    }

    fn expire_names(&self, client: &dyn ClientCache) -> Result<(), Errno> {
        self.name_expiries.add(1);
        match self.can_expire_names() {
            true => client.expire_names(),
            false => Err(Errno::BUSY),
        }
    }

    /// Makes the kernel drop answers.
    pub(super) fn expire(&self, turn: &mut Turn, owed: &Owed) {
        let Some(client) = self.client.get() else { return };
        let mut expired = Ok(());
        if let Some(end) = owed.names {
            match self.expire_names(&**client) {
                Ok(()) => turn.names_end = Duration::ZERO,
                Err(Errno::NODEV | Errno::NOTCONN) => {}
                Err(errno) => {
                    turn.names_end = turn.names_end.max(end);
                    if errno != Errno::BUSY {
                        expired = Err(errno);
                    }
                }
            }
        }
        self.attribute_expiries.add(owed.inos.len() as i64);
        for ino in &owed.inos {
            expired = expired.and(client.expire_attributes(*ino));
        }
        match expired {
            Ok(()) | Err(Errno::NODEV | Errno::NOTCONN) => {}
            Err(errno) => log::error!("the kernel may keep old answers: {errno}"),
        }
    }
}

impl Cache {
    /// Stores the client through which the kernel is asked to drop answers.
    pub(crate) fn attach(&self, client: Arc<dyn ClientCache>) {
        self.kernel.attach(client);
    }

    /// Stores whether there are junctions. Must be called before a file system is mounted on a new
    /// junction.
    pub(crate) fn set_has_junctions(&self, has_junctions: bool) {
        let _turn = self.kernel.turn.lock();
        // ORDERING: Relaxed. Expiries read the flag under `turn`, which this thread holds.
        self.kernel.has_junctions.store(has_junctions, Ordering::Relaxed);
    }

    /// Returns true if the kernel may keep an answer: `name` in `dir` leads to the inode `found`,
    /// or does not exist. Records that the kernel may keep this answer until `end`, by
    /// [`boot_time`]. `is_alone` is true if there is no other mount.
    pub(crate) fn give_name(
        &self,
        (dir, name): (u64, &[u8]),
        found: Option<u64>,
        end: Duration,
        is_alone: bool,
    ) -> bool {
        let can_be_taken_back = || self.gives_times && self.kernel.can_expire_names();
        if !(is_alone || can_be_taken_back()) {
            return false;
        }
        let mut state = self.state.lock();
        if !state.knows(dir, name, found) {
            return false;
        }
        if is_alone {
            state.given.give_names_alone(end);
            return true;
        }
        state.given.give_name(dir, end)
    }

    /// Records that the kernel gets names while this mount is the only one. It may keep them until
    /// `end`.
    pub(crate) fn give_names_alone(&self, end: Duration) {
        self.state.lock().given.give_names_alone(end);
    }

    /// Returns true if the kernel may keep the attributes of an inode, which have the version
    /// `version`. The answer is then recorded.
    pub(crate) fn give_attributes(&self, ino: u64, version: i64) -> bool {
        if !self.gives_times || !self.kernel.is_attached() {
            return false;
        }
        let mut state = self.state.lock();
        let Some(cached) = state.inodes.get(&ino) else { return false };
        let (cover, is_same) = (cached.inode.cover(), cached.inode.version == version);
        is_same && state.is_current(cached) && state.given.give_attributes(cover, ino)
    }

    /// Makes the kernel drop what a change of this mount alters. Must be called after
    /// [`Cache::begin`] and before the change is sent. Returns the instant until which the change
    /// must wait, by [`boot_time`].
    pub(crate) fn expire_changed(&self, change: &Change<'_>) -> Duration {
        if !self.kernel.is_attached() || self.flaws.keeps_kernel_before_change {
            return Duration::ZERO;
        }
        let mut turn = self.kernel.turn.lock();
        let dirs = || change.names.iter().map(|(dir, _)| *dir);
        let names = {
            let mut state = self.state.lock();
            dirs().for_each(|dir| state.given.be_busy(dir));
            state.given.take_names(dirs())
        };
        // Drop the attributes even if the record does not have them under this home. It may have
        // them under a former home of the inode.
        self.kernel.expire(&mut turn, &Owed { names, inos: change.inos.clone() });
        if change.names.is_empty() { Duration::ZERO } else { turn.names_end }
    }

    /// Makes the kernel drop all names, because it got one later than the server has assumed. The
    /// kernel would keep that name for too long.
    pub(crate) fn expire_late_name(&self) {
        let mut turn = self.kernel.turn.lock();
        let end = boot_time() + self.state.lock().given.lease;
        self.kernel.expire(&mut turn, &Owed { names: Some(end), inos: Vec::new() });
    }

    /// Reports how often the kernel had to drop all names, and the attributes of an inode.
    pub(crate) fn expiries(&self) -> (u64, u64) {
        let count = |counter: &ShardedCounter| counter.sum().max(0) as u64;
        (count(&self.kernel.name_expiries), count(&self.kernel.attribute_expiries))
    }
}

impl Given {
    pub(super) fn new(lease: Duration, is_never_busy: bool) -> Given {
        let busy_time = if is_never_busy { Duration::ZERO } else { BUSY };
        Given { lease, busy_time, ..Given::default() }
    }

    /// Records that the kernel may keep a name in `dir` until `end`. Returns false if it must not
    /// keep one.
    fn give_name(&mut self, dir: u64, end: Duration) -> bool {
        let now = boot_time();
        if self.busy.get(&dir).is_some_and(|busy| busy.names > now) {
            return false;
        }
        self.turn(now);
        self.young.names.insert(dir);
        self.names_end = self.names_end.max(end);
        true
    }

    /// Records that the kernel gets names, to be kept until `end`, while this mount is the only
    /// one.
    fn give_names_alone(&mut self, end: Duration) {
        self.anywhere = true;
        self.names_end = self.names_end.max(end);
    }

    /// Records that the kernel gets the attributes of an inode, which the lease of `dir` covers.
    /// Returns false if it must not keep them.
    pub(super) fn give_attributes(&mut self, dir: u64, ino: u64) -> bool {
        let now = boot_time();
        if self.busy.get(&dir).is_some_and(|busy| busy.attributes > now) {
            return false;
        }
        self.turn(now);
        self.young.inos.entry(dir).or_default().insert(ino);
        true
    }

    /// Returns the instant until which the kernel may keep names. None if it got none
    /// (`are_given`), or if their timeouts are over. The kernel counts a timeout from a later
    /// moment than the server, so a part of the lease time is added.
    fn kept_until(&self, are_given: bool) -> Option<Duration> {
        let end = self.names_end + self.lease / 10;
        (are_given && end > boot_time()).then_some(end)
    }

    fn turn(&mut self, now: Duration) {
        if now.saturating_sub(self.turned) > self.lease {
            self.old = std::mem::take(&mut self.young);
            self.turned = now;
            self.busy.retain(|_, busy| busy.names.max(busy.attributes) > now);
        }
    }

    /// Makes a directory busy, because names in it change. The record of the kernel's names stays.
    pub(super) fn be_busy(&mut self, dir: u64) {
        self.busy.entry(dir).or_default().names = boot_time() + self.busy_time;
    }

    /// Makes a directory busy, because another mount changes it.
    pub(super) fn be_shared(&mut self, dir: u64) {
        let until = boot_time() + self.busy_time;
        self.busy.insert(dir, Busy { names: until, attributes: until });
    }

    /// If the kernel may have names of the directories `dirs`, removes all names from the record,
    /// because the kernel can only drop all at once. Returns the instant until which the kernel may
    /// keep names, or None if it has none of `dirs`.
    pub(super) fn take_names(&mut self, mut dirs: impl Iterator<Item = u64>) -> Option<Duration> {
        let records = [&self.young, &self.old];
        let is_given = |dir| records.iter().any(|record| record.names.contains(&dir));
        let is_owed = self.anywhere || dirs.any(is_given);
        if is_owed {
            self.anywhere = false;
            self.young.names.clear();
            self.old.names.clear();
        }
        self.kept_until(is_owed)
    }

    /// Removes from the record the inodes whose attributes the lease of `dir` covers, and returns
    /// them.
    pub(super) fn take_attributes(&mut self, dir: u64) -> impl Iterator<Item = u64> + use<> {
        let [young, old] =
            [&mut self.young, &mut self.old].map(|it| it.inos.remove(&dir).unwrap_or_default());
        young.into_iter().chain(old)
    }

    /// Removes all answers from the record, and returns those that the kernel must drop.
    pub(super) fn take_all(&mut self) -> Owed {
        let records = [&mut self.young, &mut self.old].map(std::mem::take);
        let inos = records.iter().flat_map(|record| record.inos.values().flatten().copied());
        let names = records.iter().any(|record| !record.names.is_empty()) || self.anywhere;
        self.anywhere = false;
        let names = self.kept_until(names);
        Owed { names, inos: inos.collect() }
    }
}
