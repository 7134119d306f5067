//! The answers that the kernel may still have, and how they are taken back (K.7).
//!
//! The kernel keeps a name, the absence of a name, or attributes for at most what is left of the
//! lease. The cache records each answer to which it gave such a time ([`Given`]). An answer is
//! given and recorded under one lock with the look at the cache, so:
//! - An answer that is given before a change or an intent marks the cache is in the record, and is
//!   taken back.
//! - Afterwards the cache does not know the answer, so none is given.
//!
//! An answer that is under way to the kernel meanwhile does no harm. The kernel compares it with
//! the expiry that has overtaken it, and does not keep it.
//!
//! # Order
//! [`Kernel::turn`] is held from the instant at which a thread takes records until the kernel has
//! dropped the answers. So a second thread, which finds the records empty, goes on only after that.
//! `turn` is taken before the state. Neither notification waits for a request or for a lock that a
//! request holds.
//!
//! # Own changes
//! A change of this mount is visible to other mounts before the kernel gets the reply. The kernel
//! corrects its own entries only with that reply. Until then it would answer a third program with
//! the old name from its cache, without a request and without a lock of the directory. If that
//! program already knows of the change from another mount, it sees time go backwards (K.6). So what
//! an own change alters is taken back before the change is sent, like that of a foreign one.
//!
//! While there is no other mount, nothing is taken back. The first change of a later mount waits
//! until the kernel's times are over.
//!
//! # Busy directories
//! The kernel can only drop the names of the whole mount at once. So while names in a directory
//! change again and again, no times are given in it: it is *busy*. The first change expires the
//! kernel's names, the following ones find nothing to expire. A directory that this mount has just
//! made is busy from its birth. Otherwise unpacking an archive would expire all names with each
//! directory. How long a directory stays busy is tuning; no guarantee depends on it.
//!
//! # Memory
//! The records of an answer are dropped between one and two leases after it was given.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use corewalk::{ClientCache, Errno};
use corewalk_base::{Mutex, ShardedCounter};

use super::{Cache, Change};
use crate::session::boot_time;

/// How long a directory is busy after a change.
const BUSY: Duration = Duration::from_secs(3);

/// The way to the kernel's cache.
#[derive(Debug, Default)]
pub(super) struct Kernel {
    /// None while the kernel cannot be told anything. Then it keeps nothing beside other mounts.
    client: OnceLock<Arc<dyn ClientCache>>,
    pub(super) turn: Mutex<()>,
    /// How often the kernel had to drop all names.
    pub(super) name_expiries: ShardedCounter,
    /// How often the kernel had to drop the attributes of an inode.
    pub(super) attribute_expiries: ShardedCounter,
}

/// The answers that the kernel must drop.
#[derive(Debug, Default)]
pub(super) struct Owed {
    pub(super) names: bool,
    pub(super) inos: Vec<u64>,
}

/// The answers that the kernel may have. Protected by the lock of the state.
#[derive(Debug, Default)]
pub(super) struct Given {
    young: Record,
    old: Record,
    /// When the last young record became old.
    turned: Duration,
    lease: Duration,
    busy_time: Duration,
    /// True if names were given while this mount was the only one.
    pub(super) anywhere: bool,
    busy: HashMap<u64, Busy>,
}

#[derive(Debug, Default)]
struct Record {
    /// The directories in which names were given.
    names: HashSet<u64>,
    /// The inodes whose attributes were given, by the directory whose lease covers them.
    inos: HashMap<u64, HashSet<u64>>,
}

/// Until when no times are given in a directory.
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

    /// Makes the kernel drop answers. The caller holds `turn`.
    pub(super) fn expire(&self, owed: &Owed) {
        let Some(client) = self.client.get() else { return };
        let mut expired = Ok(());
        if owed.names {
            self.name_expiries.add(1);
            expired = client.expire_names();
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

    /// Returns true if the kernel may keep the answer that `name` in `dir` is the inode `found`, or
    /// is absent. The answer is then recorded.
    pub(crate) fn give_name(&self, dir: u64, name: &[u8], found: Option<u64>) -> bool {
        if !self.kernel.is_attached() {
            return false;
        }
        let mut state = self.state.lock();
        state.knows(dir, name, found) && state.given.give_name(dir)
    }

    /// As [`Cache::give_name`], while this mount is the only one.
    pub(crate) fn give_name_alone(&self, dir: u64, name: &[u8], found: Option<u64>) -> bool {
        let mut state = self.state.lock();
        let is_known = state.knows(dir, name, found);
        state.given.anywhere |= is_known;
        is_known
    }

    /// Records that names are given while this mount is the only one.
    pub(crate) fn give_names_alone(&self) {
        self.state.lock().given.anywhere = true;
    }

    /// Returns true if the kernel may keep the attributes of an inode, which have the version
    /// `version`. The answer is then recorded.
    pub(crate) fn give_attributes(&self, ino: u64, version: i64) -> bool {
        if !self.kernel.is_attached() {
            return false;
        }
        let mut state = self.state.lock();
        let Some(cached) = state.inodes.get(&ino) else { return false };
        let (cover, is_same) = (cached.inode.cover(), cached.inode.version == version);
        is_same && state.is_current(cached) && state.given.give_attributes(cover, ino)
    }

    /// Makes the kernel drop what an own change alters. To be called between [`Cache::begin`] and
    /// the change.
    pub(crate) fn expire_changed(&self, change: &Change<'_>) {
        if !self.kernel.is_attached() || self.flaws.keeps_kernel_before_change {
            return;
        }
        let _turn = self.kernel.turn.lock();
        let dirs = || change.names.iter().map(|(dir, _)| *dir);
        let names = {
            let mut state = self.state.lock();
            dirs().for_each(|dir| state.given.be_busy(dir));
            state.given.take_names(dirs())
        };
        // The attributes of an inode may be in the record of a former home. So they are not looked
        // up there.
        self.kernel.expire(&Owed { names, inos: change.inos.clone() });
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

    /// Records that a name in `dir` is given. Returns false if it must not be given.
    pub(super) fn give_name(&mut self, dir: u64) -> bool {
        let now = boot_time();
        if self.busy.get(&dir).is_some_and(|busy| busy.names > now) {
            return false;
        }
        self.turn(now);
        self.young.names.insert(dir);
        true
    }

    /// Records that the attributes of an inode are given, which the lease of `dir` covers. Returns
    /// false if they must not be given.
    pub(super) fn give_attributes(&mut self, dir: u64, ino: u64) -> bool {
        let now = boot_time();
        if self.busy.get(&dir).is_some_and(|busy| busy.attributes > now) {
            return false;
        }
        self.turn(now);
        self.young.inos.entry(dir).or_default().insert(ino);
        true
    }

    fn turn(&mut self, now: Duration) {
        if now.saturating_sub(self.turned) > self.lease {
            self.old = std::mem::take(&mut self.young);
            self.turned = now;
            self.busy.retain(|_, busy| busy.names.max(busy.attributes) > now);
        }
    }

    /// Marks a directory in which names change. The names that were given stay in the record.
    pub(super) fn be_busy(&mut self, dir: u64) {
        self.busy.entry(dir).or_default().names = boot_time() + self.busy_time;
    }

    /// Marks a directory that other mounts change.
    pub(super) fn be_shared(&mut self, dir: u64) {
        let until = boot_time() + self.busy_time;
        self.busy.insert(dir, Busy { names: until, attributes: until });
    }

    /// Takes the names out of the record, if any were given in the directories `dirs`. The kernel
    /// can only drop all.
    pub(super) fn take_names(&mut self, mut dirs: impl Iterator<Item = u64>) -> bool {
        let records = [&self.young, &self.old];
        let is_given = |dir| records.iter().any(|record| record.names.contains(&dir));
        let is_owed = self.anywhere || dirs.any(is_given);
        if is_owed {
            self.anywhere = false;
            self.young.names.clear();
            self.old.names.clear();
        }
        is_owed
    }

    /// Takes the attributes under the lease of `dir` out of the record.
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
        Owed { names, inos: inos.collect() }
    }
}
