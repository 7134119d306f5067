//! The answers that the kernel may keep for a time, and how they are taken back (guarantee K.7 in
//! `lib.rs`).
//!
//! The cache records each answer that the kernel may keep for a time ([`Given`]). It looks the
//! answer up and records it under one lock. So, for a change or an intent:
//! - An earlier answer is in the record, so it is taken back.
//! - No later answer is given, because the cache does not know it any more.
//!
//! An expiry may overtake an answer on its way to the kernel. The kernel notices that, and does not
//! keep the answer.
//!
//! # Order
//! A thread that takes answers out of the record holds [`Kernel::turn`] until the kernel has
//! dropped them. So a second thread, which finds the record empty, goes on only after that. `turn`
//! is taken before the lock of the cache's state. No notification waits for a request, or for a
//! lock that a request holds.
//!
//! # Own changes
//! Other mounts see a change of this mount before the kernel has its reply. Until then the kernel
//! would show the old name to other programs of this mount. Such a program may know of the change
//! from another mount. So the kernel drops what an own change alters before the change is sent.
//!
//! While there is no other mount, nothing is taken back. The first change of a later mount waits
//! until the times are over for which the kernel may keep answers.
//!
//! # Mounts below
//! The kernel detaches file systems that are mounted on directories of the mount when it drops the
//! names. So the kernel may keep no names while there is such a file system, or a junction. Names
//! that the kernel got earlier are not dropped: each change waits until their times are over. The
//! functions that drop answers return this instant.
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

/// How long a directory is busy after a change.
const BUSY: Duration = Duration::from_secs(3);

/// The way to the kernel's cache.
#[derive(Debug, Default)]
pub(super) struct Kernel {
    /// None while the kernel cannot be told to drop answers. Then it may keep none while there are
    /// other mounts.
    client: OnceLock<Arc<dyn ClientCache>>,
    pub(super) turn: Mutex<Turn>,
    /// True while there are junctions. `turn` is held to set it.
    has_junctions: AtomicBool,
    /// How often the kernel had to drop all names.
    pub(super) name_expiries: ShardedCounter,
    /// How often the kernel had to drop the attributes of an inode.
    pub(super) attribute_expiries: ShardedCounter,
}

/// The names that the kernel should have dropped, and could not.
#[derive(Debug, Default)]
pub(super) struct Turn {
    /// The instant until which the kernel may keep these names, by [`boot_time`].
    pub(super) names_end: Duration,
}

/// The answers that the kernel must drop.
#[derive(Debug, Default)]
pub(super) struct Owed {
    /// The instant until which the kernel may keep names. None if no names must be dropped.
    pub(super) names: Option<Duration>,
    pub(super) inos: Vec<u64>,
}

/// The answers that the kernel may have. Protected by the lock of the state.
#[derive(Debug, Default)]
pub(super) struct Given {
    young: Record,
    old: Record,
    /// When the last young record became old.
    turned: Duration,
    /// The instant until which the kernel may keep names, by [`boot_time`].
    names_end: Duration,
    lease: Duration,
    busy_time: Duration,
    /// True if the kernel got names while this mount was the only one.
    anywhere: bool,
    busy: HashMap<u64, Busy>,
}

#[derive(Debug, Default)]
struct Record {
    /// The directories in which names were given.
    names: HashSet<u64>,
    /// The inodes whose attributes the kernel got, by the directory whose lease covers them.
    inos: HashMap<u64, HashSet<u64>>,
}

/// The instants until which the kernel may keep no names, and no attributes, of a *busy* directory.
///
/// The kernel can drop names only all together, those of the whole mount. So the first change of a
/// name makes the kernel drop all names, and makes the directory busy. Further changes there find
/// no names to drop. A directory that this mount has just made is busy, too. Otherwise the kernel
/// would drop all names with each directory of an archive that is unpacked. No guarantee depends on
/// the length of the time.
#[derive(Clone, Copy, Debug, Default)]
struct Busy {
    names: Duration,
    attributes: Duration,
}

impl Kernel {
    /// Uses `client`, if it can drop names.
    pub(super) fn attach(&self, client: Arc<dyn ClientCache>) {
        match client.expire_names() {
            Ok(()) => drop(self.client.set(client)),
            Err(errno) => log::info!("the kernel keeps no names beside other mounts: {errno}"),
        }
    }

    pub(super) fn is_attached(&self) -> bool {
        self.client.get().is_some()
    }

    /// Returns true if the kernel can drop the names, and no file system below would be detached.
    fn can_expire_names(&self) -> bool {
        // ORDERING: Relaxed. A name that the kernel gets at the same time is in the record. A later
        // change reads the flag under `turn`.
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
    /// Gives the cache the way to the kernel's cache.
    pub(crate) fn attach(&self, client: Arc<dyn ClientCache>) {
        self.kernel.attach(client);
    }

    /// Notes whether there are junctions. To be called before a junction is opened for its mount.
    pub(crate) fn set_has_junctions(&self, has_junctions: bool) {
        let _turn = self.kernel.turn.lock();
        // ORDERING: Relaxed. The lock orders the store with the notifications to the kernel.
        self.kernel.has_junctions.store(has_junctions, Ordering::Relaxed);
    }

    /// Returns true if the kernel may keep the answer that `name` in `dir` is the inode `found`, or
    /// is absent. The answer is then recorded. Its time is over at `end`, by [`boot_time`].
    /// `is_alone` says that there is no other mount.
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

    /// Makes the kernel drop what an own change alters. To be called between [`Cache::begin`] and
    /// the change. Returns the instant until which the change must wait, by [`boot_time`].
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
        // The attributes are dropped without a look into the record, where they may be under a
        // former home of the inode.
        self.kernel.expire(&mut turn, &Owed { names, inos: change.inos.clone() });
        if change.names.is_empty() { Duration::ZERO } else { turn.names_end }
    }

    /// Makes the kernel drop a name that it got later than the server has assumed, and would keep
    /// for too long.
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

    /// Returns the instant until which the kernel may keep names. None if it has none, because none
    /// were given or their times are over. The kernel counts the time of a name from a later moment
    /// than the server does.
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

    /// Marks a directory in which names change. The names that the kernel has got stay in the
    /// record.
    pub(super) fn be_busy(&mut self, dir: u64) {
        self.busy.entry(dir).or_default().names = boot_time() + self.busy_time;
    }

    /// Marks a directory that other mounts change.
    pub(super) fn be_shared(&mut self, dir: u64) {
        let until = boot_time() + self.busy_time;
        self.busy.insert(dir, Busy { names: until, attributes: until });
    }

    /// Takes all names out of the record, if the kernel may have names of the directories `dirs`,
    /// since the kernel can only drop all names. Returns the instant until which it may keep names.
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

    /// Takes the inodes whose attributes the lease of `dir` covers out of the record, and returns
    /// them.
    pub(super) fn take_attributes(&mut self, dir: u64) -> impl Iterator<Item = u64> + use<> {
        let [young, old] =
            [&mut self.young, &mut self.old].map(|it| it.inos.remove(&dir).unwrap_or_default());
        young.into_iter().chain(old)
    }

    /// Takes everything out of the record.
    pub(super) fn take_all(&mut self) -> Owed {
        let records = [&mut self.young, &mut self.old].map(std::mem::take);
        let inos = records.iter().flat_map(|record| record.inos.values().flatten().copied());
        let names = records.iter().any(|record| !record.names.is_empty()) || self.anywhere;
        self.anywhere = false;
        let names = self.kept_until(names);
        Owed { names, inos: inos.collect() }
    }
}
