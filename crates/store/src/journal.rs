//! Transactions: how what operations change becomes durable all at once.
//!
//! After jbd2: operations join the *running* transaction, a [`Layer`] of records in memory. A commit
//! closes the gate for an instant, freezes the running layer and begins another. A small one is then
//! appended to the log (`log`), with what it wrote to files, and joins the *logged* layer: it is durable,
//! but not in the database. A large one makes the data of files durable, and writes the logged and the
//! frozen layer in one transaction of the database, after which the log is void. So does every commit
//! that is about time, and the last one. Reads look in the running layer, the frozen one, the logged
//! one, and then in a snapshot of the database.
//!
//! # Guarantees
//! - J.1: an operation is in one transaction as a whole: it holds the gate from its first change to its
//!   last.
//! - J.2: what the database and the log have is what it was at the end of some commit; so after a crash the
//!   store is consistent without a repair of its own, once the log is read.
//! - J.3: data that a file had when the gate closed is durable with the extents that lead to it, in one
//!   entry of the log, or before them (`data=ordered` of ext4).
//! - J.4: blocks that a transaction lets go of are given out again after it is durable.
//! - J.5: calls of [`Journal::commit_up_to`] that come during a commit share the next one.
//! - J.6: data becomes durable beside the log only while the log has no data at all. Else the log's, which
//!   is older, would be put over it after a crash.
//!
//! # Commits that are shared
//! Two who sync in turn would each find the other's commit under way and wait for it, and then need one of
//! their own. So whoever is about to commit waits for as many as were there at the end of the last
//! commit, for half of what that took and no more than [`PATIENCE_MAX`]; one alone waits for nobody.
//! (jbd2 does the same by the number of the last process; a server's threads have none.)
//!
//! # The gate
//! One reader-writer lock per shard of threads, each around its own copy of the [`View`]: an operation
//! takes its own shard's, shared, which is a line that few others touch; a commit takes all.
//!
//! # When the host is full
//! A commit of the database needs room of the host, and there is nobody to refuse any more. So a reserve
//! is kept: a file of [`RESERVE_BYTES`], which comes before the room of the log. A commit that meets `ENOSPC` gives the reserve up, opens the
//! database again (it refuses to go on after an error) and tries once more, also where it has been opened again
//! already since it could not read; then whatever needs more room is refused with `ENOSPC` until the reserve can be had again. If it fails even
//! so, or with any other error, the store is read-only from then on: `EROFS` for changes, `EIO` for
//! fsync. What was confirmed is in the database and the log still.
//!
//! # When a read fails
//! The database refuses every read after one that failed, and every transaction: what is not in memory is `EIO`
//! until it is opened again. So do the next sync, also one that finds nothing to commit, the next commit, and
//! whoever commits in time (`heal`). If the host still fails then, a commit of records makes the store
//! read-only; with nothing to commit it is tried again later. What is opened again must not be older than the last
//! commit: a database that is, or may be, makes the store read-only at once (`opened`).
//!
//! # When the log fails
//! A write or a sync of the log that fails is no error to anybody: the transaction goes to the database
//! instead, with all that the log has, which makes the log void. Until that is done the log takes nothing,
//! since what is at its end is not known; then it is begun anew from its first byte, of which nothing is
//! needed any more. If the database cannot take the transaction either, the store is read-only as above.
//!
//! # Locks
//! The gate, before every other lock of the store. `state` is held for moments, and never while the gate
//! is asked for. `data_sync`, `log` and `opened` are for whoever commits, in this order.
//!
//! Source: Linux `fs/jbd2/transaction.c`, `Documentation/filesystems/ext4/journal.rst`.

mod commit;
mod opened;

use std::io;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::Duration;

use corewalk::Errno;
use corewalk_base::primitives::atomic::{AtomicBool, AtomicU64, Ordering};
use corewalk_base::primitives::{SHARDS, shard_index};
use corewalk_base::{Condvar, Mutex, OwnLine, RwLock, RwLockReadGuard};

use self::opened::Opened;
use crate::alloc::Allocator;
use crate::content::BLOCK_BYTES;
use crate::database::{Database, Snapshot};
use crate::device::{Device, errno_of, read_anew};
use crate::dirty::Dirty;
use crate::layer::{Layer, Record};
use crate::log::Log;
use crate::overlay::Overlay;
use crate::record::{Key, Kind};
use crate::store::StoreStats;

/// Bytes that are kept for commits on a host that has run full.
pub(crate) const RESERVE_BYTES: u64 = 32 << 20;
/// How long those who have come before are waited for, at most.
const PATIENCE_MAX: Duration = Duration::from_millis(10);
/// Records that one look at a range takes from a layer at most.
const RANGE_RECORDS: usize = 512;

/// The devices of a store.
#[derive(Clone, Debug)]
pub struct Devices {
    /// The database.
    pub meta: Arc<dyn Device>,
    /// The blocks of files.
    pub data: Arc<dyn Device>,
    /// What takes room of the host until a commit needs it.
    pub reserve: Arc<dyn Device>,
    /// Small transactions that are not in the database yet.
    pub log: Arc<dyn Device>,
}

impl Devices {
    /// Has reads say what is on the disk.
    pub(crate) fn read_anew(&self) {
        [&self.meta, &self.data, &self.log].into_iter().for_each(|device| read_anew(&**device));
    }

    /// Returns devices that have what these have, whose changes stay in memory.
    ///
    /// # Errors
    /// What these say of their lengths.
    pub(crate) fn overlaid(&self) -> io::Result<Devices> {
        let over = |device: &Arc<dyn Device>| -> io::Result<Arc<dyn Device>> {
            Ok(Arc::new(Overlay::new(Some(device.clone()))?))
        };
        let (meta, data) = (over(&self.meta)?, over(&self.data)?);
        Ok(Devices { meta, data, reserve: over(&self.reserve)?, log: over(&self.log)? })
    }

    /// Takes the reserve from the host, and returns true if it is there.
    pub(crate) fn take_reserve(&self) -> bool {
        match self.reserve.reserve(RESERVE_BYTES) {
            // The host cannot reserve, or the limit of `ulimit -f` is below the reserve. A commit on a full host may
            // fail then.
            Err(error) => {
                matches!(error.kind(), io::ErrorKind::Unsupported | io::ErrorKind::FileTooLarge)
            }
            Ok(()) => true,
        }
    }
}

/// What operations see: the layers above a snapshot of the database.
pub(crate) struct View {
    running: Arc<Layer>,
    frozen: Option<Arc<Layer>>,
    /// Transactions that are durable, and not in the database.
    logged: Option<Arc<Layer>>,
    base: Arc<Snapshot>,
    /// The number of the running transaction.
    pub(crate) tid: u64,
    /// The last transaction that is in the database.
    based: u64,
}

/// A place within the gate: while it lives, no commit freezes the running transaction.
pub(crate) type Pass<'a> = RwLockReadGuard<'a, View>;

/// The transactions of a store. See the module's text.
pub(crate) struct Journal {
    gate: Box<[OwnLine<RwLock<View>>]>,
    state: Mutex<State>,
    changed: Condvar,
    opened: Mutex<Opened>,
    devices: Devices,
    /// Bytes of records from which on the running layer is heavy.
    running_max: u64,
    log: Mutex<Log>,
    log_bytes: u64,
    pub(crate) allocator: Allocator,
    dirty: Dirty,
    is_data_dirty: AtomicBool,
    data_sync: Mutex<()>,
    is_failed: AtomicBool,
    is_full: AtomicBool,
    is_read_only: bool,
    counts: Counts,
    poke: Mutex<Option<Sender<()>>>,
    is_poked: AtomicBool,
}

#[derive(Default)]
struct State {
    /// The last transaction that is durable, and the last that is in the database.
    committed: u64,
    based: u64,
    /// The log has bytes of files, or is about to (J.6).
    has_logged_data: bool,
    is_committing: bool,
    /// How many are in `commit_up_to`, and how many there were when the last commit ended.
    callers: u32,
    companions: u32,
    /// What the last commit took.
    took: Duration,
}

/// What a store has done since it was mounted.
#[derive(Default)]
struct Counts {
    /// Commits of the database, and those of the log.
    database: AtomicU64,
    logged: AtomicU64,
    logged_bytes: AtomicU64,
    /// Entries that the log did not take, since the host failed.
    log_failures: AtomicU64,
    /// Calls that found what they wanted in a commit of somebody else.
    shared: AtomicU64,
    /// Syncs of the data device.
    data_syncs: AtomicU64,
    /// Records that the database took.
    records: AtomicU64,
    /// Operations that waited, since the running layer was heavy.
    waits: AtomicU64,
}

impl View {
    /// Returns the value of a record. `EIO` if it cannot be read.
    pub(crate) fn get(&self, key: &Key) -> Result<Option<Arc<[u8]>>, Errno> {
        if let Some(record) = self.running.get(key) {
            return Ok(record);
        }
        for layer in [&self.frozen, &self.logged].into_iter().flatten() {
            if let Some(record) = layer.get(key) {
                return Ok(record);
            }
        }
        self.base.get(key)
    }

    /// Returns the value of a record that nobody made before the transaction `born`. `EIO` if it cannot
    /// be read.
    pub(crate) fn get_since(&self, key: &Key, born: u64) -> Result<Option<Arc<[u8]>>, Errno> {
        if born <= self.based {
            return self.get(key);
        }
        let above = [Some(&self.running), self.frozen.as_ref(), self.logged.as_ref()];
        Ok(above.into_iter().flatten().find_map(|layer| layer.get(key)).flatten())
    }

    /// Returns the number of the last transaction that may have changed this record, and is not durable.
    pub(crate) fn dirty_tid(&self, key: &Key) -> u64 {
        match &self.frozen {
            _ if self.running.get(key).is_some() => self.tid,
            Some(frozen) if frozen.get(key).is_some() => self.tid - 1,
            _ => 0,
        }
    }

    /// Sets the value of a record.
    #[inline]
    pub(crate) fn put(&self, key: Key, value: &[u8]) {
        self.running.put(key, Some(value.into()));
    }

    /// Sets the value of a record of which nothing is to be seen so far.
    #[inline]
    pub(crate) fn put_new(&self, key: Key, value: &[u8]) {
        self.running.put_new(key, value.into());
    }

    /// Sets the value of a record, without a copy.
    #[inline]
    pub(crate) fn put_shared(&self, key: Key, value: Arc<[u8]>) {
        self.running.put(key, Some(value));
    }

    /// As [`View::put_new`], without a copy.
    #[inline]
    pub(crate) fn put_new_shared(&self, key: Key, value: Arc<[u8]>) {
        self.running.put_new(key, value);
    }

    /// Removes a record.
    #[inline]
    pub(crate) fn remove(&self, key: Key) {
        self.running.put(key, None);
    }

    /// Lets go of blocks once this transaction is durable.
    pub(crate) fn free(&self, owner: u64, runs: impl IntoIterator<Item = crate::alloc::Run>) {
        self.running.free(owner, runs);
    }

    /// Appends records of `kind` and `major` in the order of `minor`, from `from` on, to `out`, and
    /// returns where to go on; None at the end. It may append none and not be at the end.
    ///
    /// # Errors
    /// `EIO` if they cannot be read.
    pub(crate) fn collect_from(
        &self,
        (kind, major): (Kind, u64),
        from: u64,
        out: &mut Vec<(u64, Arc<[u8]>)>,
    ) -> Result<Option<u64>, Errno> {
        let mut end = u64::MAX;
        let mut above = std::collections::BTreeMap::new();
        // The running layer last: it wins.
        for layer in self.logged.iter().chain(&self.frozen).chain([&self.running]) {
            let records = layer.collect_from((kind, major), from, RANGE_RECORDS);
            if let (RANGE_RECORDS, Some(&(last, _))) = (records.len(), records.last()) {
                end = end.min(last);
            }
            above.extend(records);
        }
        let mut below = Vec::new();
        let range = Key::at(kind, major, from)..=Key::at(kind, major, end);
        if !self.base.collect(range, RANGE_RECORDS, &mut below)?
            && let Some((last, _)) = below.last()
        {
            end = end.min(*last);
        }
        above.split_off(&end.saturating_add(1));
        if end < u64::MAX {
            above.retain(|&minor, _| minor <= end);
        }
        merge(below, above, out);
        Ok(end.checked_add(1))
    }
}

/// Appends what is in `below`, as far as `above` does not say otherwise, and what is in `above`.
fn merge(
    below: Vec<(u64, Arc<[u8]>)>,
    above: std::collections::BTreeMap<u64, Record>,
    out: &mut Vec<(u64, Arc<[u8]>)>,
) {
    let mut above = above.into_iter().peekable();
    for (minor, value) in below {
        while let Some((at, record)) = above.next_if(|(at, _)| *at < minor) {
            out.extend(record.map(|value| (at, value)));
        }
        match above.next_if(|(at, _)| *at == minor) {
            Some((_, record)) => out.extend(record.map(|value| (minor, value))),
            None => out.push((minor, value)),
        }
    }
    out.extend(above.filter_map(|(at, record)| Some((at, record?))));
}

impl Journal {
    /// Returns the journal above an open database.
    ///
    /// # Errors
    /// `EIO` if the database cannot be read.
    pub(crate) fn new(
        database: Database,
        devices: Devices,
        (cache_bytes, running_max): (usize, u64),
        log: Log,
        allocator: Allocator,
    ) -> Result<Journal, Errno> {
        let base = Arc::new(database.snapshot().map_err(|error| errno_of(&error))?);
        let meta = devices.meta.clone();
        let opened = Opened::new(database, log.generation(), meta, cache_bytes);
        let running = Arc::new(Layer::new(running_max));
        let view = || View {
            running: running.clone(),
            frozen: None,
            logged: None,
            base: base.clone(),
            tid: 1,
            based: 0,
        };
        let journal = Journal {
            gate: (0..SHARDS).map(|_| OwnLine::new(RwLock::new(view()))).collect(),
            state: Mutex::default(),
            changed: Condvar::new(),
            opened: Mutex::new(opened),
            devices,
            running_max,
            log_bytes: log.capacity(),
            log: Mutex::new(log),
            allocator,
            dirty: Dirty::default(),
            is_data_dirty: AtomicBool::new(false),
            data_sync: Mutex::new(()),
            is_failed: AtomicBool::new(false),
            is_full: AtomicBool::new(true),
            is_read_only: false,
            counts: Counts::default(),
            poke: Mutex::new(None),
            is_poked: AtomicBool::new(false),
        };
        journal.renew_reserve();
        Ok(journal)
    }

    /// Refuses all changes from now on.
    pub(crate) fn refuse_changes(&mut self) {
        self.is_read_only = true;
    }

    /// Sets whom to tell that a transaction has begun.
    pub(crate) fn set_poke(&self, poke: Option<Sender<()>>) {
        *self.poke.lock() = poke;
        self.forget_poke();
    }

    /// Returns a pass to look. No other lock of the store may be held, nor a pass.
    #[inline]
    pub(crate) fn look(&self) -> Pass<'_> {
        let pass = self.gate[shard_index()].read();
        if pass.base.is_sick() {
            // Whoever commits in time opens it again.
            self.poke();
        }
        pass
    }

    /// Returns a pass to change. As [`Journal::look`].
    ///
    /// # Errors
    /// `EROFS` after a commit has failed, and where nothing is to be changed.
    #[inline]
    pub(crate) fn change(&self) -> Result<Pass<'_>, Errno> {
        // ORDERING: Relaxed. What is missed is met at the commit.
        if self.is_failed.load(Ordering::Relaxed) || self.is_read_only {
            return Err(Errno::ROFS);
        }
        let mut pass = self.look();
        if pass.running.is_heavy() {
            // Operations make records faster than the database takes them.
            drop(pass);
            // ORDERING: Relaxed. A statistic.
            self.counts.waits.fetch_add(1, Ordering::Relaxed);
            self.commit_running()?;
            pass = self.look();
        }
        if pass.running.begin() {
            self.poke();
        }
        Ok(pass)
    }

    /// Returns true if `tid` is the running transaction.
    pub(crate) fn is_running(&self, tid: u64) -> bool {
        self.look().tid == tid
    }

    /// Tells whoever commits in time that there is something to commit, unless that is known.
    pub(crate) fn poke(&self) {
        // ORDERING(poke): AcqRel. Either the swap in `forget_poke` comes later and sees what has begun, or
        // this one sees that swap, and pokes.
        if self.is_poked.swap(true, Ordering::AcqRel) {
            return;
        }
        if let Some(poke) = &*self.poke.lock() {
            // Nobody listens any more while the store is closed, which commits.
            let _ = poke.send(());
        }
    }

    /// Says that whoever commits in time knows no more of anything to commit.
    pub(crate) fn forget_poke(&self) {
        // ORDERING(poke): AcqRel. See `poke`.
        self.is_poked.swap(false, Ordering::AcqRel);
        let view = self.look();
        let has_work = view.running.has_begun() || view.logged.is_some();
        drop(view);
        if has_work && self.check().is_ok() {
            self.poke();
        }
    }

    /// Returns a pass to change what needs more room. As [`Journal::change`].
    ///
    /// # Errors
    /// `ENOSPC` while the host is full; those of [`Journal::change`].
    #[inline]
    pub(crate) fn grow(&self) -> Result<Pass<'_>, Errno> {
        // ORDERING: Relaxed, both. What is missed is met at the commit, for which the reserve is.
        let is_failed = self.is_failed.load(Ordering::Relaxed);
        if !is_failed && !self.is_read_only && self.is_full.load(Ordering::Relaxed) {
            // A commit that has just given the reserve up is not to find it taken again.
            let is_renewed = self.opened.try_lock().is_some_and(|_idle| self.renew_reserve());
            if !is_renewed {
                return Err(Errno::NOSPC);
            }
        }
        self.change()
    }

    /// Reads blocks of files.
    pub(crate) fn read_data(&self, offset: u64, buf: &mut [u8]) -> Result<(), Errno> {
        self.devices.data.read_at(offset, buf).map_err(|_| Errno::IO)
    }

    /// Writes blocks of files. The pass says that no commit is missed.
    pub(crate) fn write_data(&self, _: &View, offset: u64, bytes: &[u8]) -> Result<(), Errno> {
        self.dirty.note(offset, bytes.len());
        let written = self.devices.data.write_at(offset, bytes);
        // ORDERING: Relaxed. A commit reads it with the gate closed; `sync_data` promises to those only
        // who wrote before they called.
        if !self.is_data_dirty.load(Ordering::Relaxed) {
            // ORDERING: Relaxed. As above.
            self.is_data_dirty.store(true, Ordering::Relaxed);
        }
        written.map_err(|error| match error.kind() {
            // `data` would be larger than a file of this process may be (`ulimit -f`), or than one of the host.
            io::ErrorKind::FileTooLarge => Errno::FBIG,
            _ => errno_of(&error),
        })
    }

    /// Returns how many blocks the host has given to the data device.
    pub(crate) fn given_blocks(&self) -> Result<u64, Errno> {
        let bytes = self.devices.data.given_bytes().map_err(|_| Errno::IO)?;
        Ok(bytes / BLOCK_BYTES)
    }

    #[cfg(test)]
    pub(crate) fn give_up_reserve(&self) {
        // ORDERING: Relaxed. One thread.
        self.is_full.store(true, Ordering::Relaxed);
    }

    /// Returns true if the reserve is there, so that things can grow.
    pub(crate) fn has_reserve(&self) -> bool {
        // ORDERING: Relaxed. It may change at once.
        !self.is_full.load(Ordering::Relaxed)
    }

    /// Takes the reserve from the host, and returns true if it is there.
    fn renew_reserve(&self) -> bool {
        let reserved = self.devices.take_reserve();
        // ORDERING: Relaxed. See `grow`.
        self.is_full.store(!reserved, Ordering::Relaxed);
        reserved
    }

    /// Returns what the running transaction takes in memory, in bytes.
    pub(crate) fn running_bytes(&self) -> u64 {
        self.look().running.bytes()
    }

    /// Sets what of `stats` is about commits.
    pub(crate) fn add_stats(&self, stats: &mut StoreStats) {
        // ORDERING: Relaxed. Statistics.
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let Counts {
            database,
            logged,
            logged_bytes,
            log_failures,
            shared,
            data_syncs,
            records,
            waits,
        } = &self.counts;
        stats.commits = get(database) + get(logged);
        stats.logged_commits = get(logged);
        stats.logged_bytes = get(logged_bytes);
        stats.log_failures = get(log_failures);
        stats.shared_commits = get(shared);
        stats.records = get(records);
        stats.waits = get(waits);
        // One of a commit, be it the database's or the log's, and those of data.
        stats.syncs = stats.commits + get(data_syncs);
        let view = self.look();
        stats.running_bytes = view.running.bytes();
        stats.logged_running_bytes = view.logged.as_ref().map_or(0, |layer| layer.bytes());
        drop(view);
        stats.has_reserve = self.has_reserve();
        stats.is_read_only = self.is_read_only || self.check().is_err();
        stats.log_bytes = self.log_bytes;
    }

    /// Has the superblock say that the log is in use, before the first entry is appended. From then on a mount
    /// refuses the store if the log is shorter.
    ///
    /// # Errors
    /// What the devices say.
    pub(crate) fn begin_log(&self) -> io::Result<()> {
        let mut log = self.log.lock();
        let superblock = log.superblock_with(log.capacity());
        self.write_super(superblock)?;
        log.set_superblock(superblock);
        Ok(())
    }

    /// Says in the superblock and in the log that the store is closed, if all is in the database.
    pub(crate) fn end(&self) {
        if self.check().is_err() || self.is_read_only {
            return;
        }
        let mut log = self.log.lock();
        // Where that fails the next mount needs the log, which is there.
        if log.is_empty() && log.superblock_with(0) != log.superblock() {
            let _ = self.write_super(log.superblock_with(0));
        }
        log.end();
    }

    /// Lets nothing become durable any more: an operation has failed when half of it was done.
    pub(crate) fn abort(&self) {
        self.fail();
    }

    fn fail(&self) {
        // ORDERING: Relaxed. Those who must know ask under `state`, or meet the same error.
        self.is_failed.store(true, Ordering::Relaxed);
    }

    fn check(&self) -> Result<(), Errno> {
        // ORDERING: Relaxed. As above.
        if self.is_failed.load(Ordering::Relaxed) { Err(Errno::IO) } else { Ok(()) }
    }
}
