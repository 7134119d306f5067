//! The journal: makes either all changes of an operation durable or none of them.
//!
//! The design follows jbd2. Operations join the *running* transaction, a [`Layer`] of records in
//! memory. A commit closes the transaction barrier for an instant, freezes the running layer and
//! starts a new one. Then the frozen layer becomes durable in one of two ways:
//! - A small transaction is appended to the log with its file data, and joins the *logged* layer.
//! - For a larger one, and in a periodic commit, the file data is synced. Then both layers are
//!   written to the database, in one transaction that makes the log void.
//!
//! A read searches the three layers in memory, newest first, then a snapshot of the database.
//!
//! # Guarantees
//! - J.1: all changes of an operation are in one transaction, because the operation holds a handle
//!   from its first change to its last.
//! - J.2: database and log together always contain the state at the end of a commit. So after a
//!   crash and the replay of the log, the store is consistent.
//! - J.3: a transaction's file data is durable in one log entry with its extents, or before them.
//! - J.4: blocks are allocated again only once the transaction that frees them is durable.
//! - J.5: calls of [`Journal::commit_up_to`] that arrive during a commit share the next commit.
//! - J.6: file data is synced without a log entry only while the log holds no file data. Otherwise
//!   a replay would write older data from the log over the synced data.
//!
//! # Failures
//! - Full host: a commit that gets `ENOSPC` frees the reserve, a file of [`RESERVE_BYTES`]. It
//!   reopens the database and tries again. Calls that need space then fail with `ENOSPC` until the
//!   host has space for the reserve again.
//! - Failed read: the database refuses all calls until the next sync or commit reopens it
//!   (`reopen_if_failed`). If the reopened database lacks the last commit, it is not used
//!   (`opened`), and the store becomes read-only.
//! - Failed write of the log: the transaction is written to the database instead.
//! - Any other failure of a commit: later changes fail with `EROFS`, and fsync fails with `EIO`.
//!
//! # Locks
//! The transaction barrier is one reader-writer lock per shard of threads. An operation locks its
//! own shard for reading, before every other lock of the store except `turn` (of `late`). A commit
//! locks all shards for writing. A commit also locks `data_sync`, `log` and `opened`, in this
//! order. If it then reopens the database, it locks the barrier once more. No thread waits for the
//! barrier with `state` locked.
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
use crate::device::{Device, full_or_io, read_anew};
use crate::dirty::Dirty;
use crate::layer::{Layer, Record};
use crate::log::Log;
use crate::overlay::Overlay;
use crate::record::{Key, Kind};
use crate::store::StoreStats;

/// Length in bytes of the reserve, a file that occupies space on the host. A commit on a full host
/// truncates it to get its space.
pub(crate) const RESERVE_BYTES: u64 = 32 << 20;
/// Maximum time that a commit waits for other threads. A thread that joins in this time needs no
/// commit of its own.
const PATIENCE_MAX: Duration = Duration::from_millis(10);
const RANGE_RECORDS: usize = 512;

/// The files of a store.
#[derive(Clone, Debug)]
pub struct Devices {
    /// The database.
    pub meta: Arc<dyn Device>,
    /// The file data, in blocks of 4096 bytes. The device contains nothing else.
    pub data: Arc<dyn Device>,
    /// A file that occupies space on the host. A commit on a full host truncates it.
    pub reserve: Arc<dyn Device>,
    /// The write-ahead log, with small transactions that are not in the database yet.
    pub log: Arc<dyn Device>,
}

impl Devices {
    pub(crate) fn read_anew(&self) {
        [&self.meta, &self.data, &self.log].into_iter().for_each(|device| read_anew(&**device));
    }

    pub(crate) fn overlaid(&self) -> io::Result<Devices> {
        let over = |device: &Arc<dyn Device>| -> io::Result<Arc<dyn Device>> {
            Ok(Arc::new(Overlay::new(Some(device.clone()))?))
        };
        let (meta, data) = (over(&self.meta)?, over(&self.data)?);
        Ok(Devices { meta, data, reserve: over(&self.reserve)?, log: over(&self.log)? })
    }

    /// Allocates the reserve on the host. Returns false if the host has no space for it. Returns
    /// true, without a reserve, if the host's file system cannot allocate space in advance.
    pub(crate) fn take_reserve(&self) -> bool {
        match self.reserve.reserve(RESERVE_BYTES) {
            // The host's file system cannot allocate space in advance, or `ulimit -f` is too low. A
            // commit may then fail on a full host.
            Err(error) => {
                matches!(error.kind(), io::ErrorKind::Unsupported | io::ErrorKind::FileTooLarge)
            }
            Ok(()) => true,
        }
    }
}

/// The records that an operation sees: three layers in memory, and below them a snapshot of the
/// database. Protected by `Journal::barrier`.
pub(crate) struct View {
    running: Arc<Layer>,
    frozen: Option<Arc<Layer>>,
    logged: Option<Arc<Layer>>,
    base: Arc<Snapshot>,
    pub(crate) tid: u64,
    based: u64,
}

/// A handle of the running transaction. While any thread holds a handle, no commit freezes that
/// transaction. Analogous to jbd2's `handle_t`.
pub(crate) type Handle<'a> = RwLockReadGuard<'a, View>;

/// The journal of a store. Analogous to Linux's `struct journal_s`.
pub(crate) struct Journal {
    /// The transaction barrier. An operation holds the lock of its shard of threads for reading. A
    /// commit locks all shards for writing while it freezes the running transaction.
    barrier: Box<[OwnLine<RwLock<View>>]>,
    /// Protected by its own mutex.
    state: Mutex<State>,
    /// Wakes the threads that wait for a commit to end, or for other threads to join a commit. Used
    /// with the mutex of `state`.
    changed: Condvar,
    /// Protected by its own mutex.
    opened: Mutex<Opened>,
    devices: Devices,
    /// Maximum size in bytes of the running transaction in memory. While it is exceeded, the next
    /// change waits for a commit.
    running_max: u64,
    /// Protected by its own mutex.
    log: Mutex<Log>,
    log_bytes: u64,
    pub(crate) allocator: Allocator,
    dirty: Dirty,
    is_data_dirty: AtomicBool,
    /// Held during a sync of the data device, so that no sync can succeed after an earlier one has
    /// failed. Protects no data.
    data_sync: Mutex<()>,
    is_failed: AtomicBool,
    is_full: AtomicBool,
    is_read_only: bool,
    counts: Counts,
    /// Wakes the committer, the thread that commits periodically. Protected by its own mutex.
    poke: Mutex<Option<Sender<()>>>,
    is_poked: AtomicBool,
}

/// The progress of commits. All fields are protected by `Journal::state`.
#[derive(Default)]
struct State {
    committed: u64,
    based: u64,
    /// True if the log holds file data, or is about to get some. File data is then synced only as
    /// part of a commit (guarantee J.6).
    has_logged_data: bool,
    is_committing: bool,
    callers: u32,
    companions: u32,
    took: Duration,
}

#[derive(Default)]
struct Counts {
    database: AtomicU64,
    logged: AtomicU64,
    logged_bytes: AtomicU64,
    log_failures: AtomicU64,
    shared: AtomicU64,
    data_syncs: AtomicU64,
    records: AtomicU64,
    waits: AtomicU64,
}

impl View {
    /// Returns the value of the record `key`, or None if there is no such record. `EIO` if the
    /// record cannot be read.
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

    /// Like `get`, for a record that is not older than the transaction `born`. If `born` is not in
    /// the database yet, only the records in memory are searched.
    pub(crate) fn get_since(&self, key: &Key, born: u64) -> Result<Option<Arc<[u8]>>, Errno> {
        if born <= self.based {
            return self.get(key);
        }
        let above = [Some(&self.running), self.frozen.as_ref(), self.logged.as_ref()];
        Ok(above.into_iter().flatten().find_map(|layer| layer.get(key)).flatten())
    }

    pub(crate) fn dirty_tid(&self, key: &Key) -> u64 {
        match &self.frozen {
            _ if self.running.get(key).is_some() => self.tid,
            Some(frozen) if frozen.get(key).is_some() => self.tid - 1,
            _ => 0,
        }
    }

    #[inline]
    pub(crate) fn put(&self, key: Key, value: &[u8]) {
        self.running.put(key, Some(value.into()));
    }

    /// Adds a new record to the running transaction. The caller knows that no record with this key
    /// exists.
    #[inline]
    pub(crate) fn put_new(&self, key: Key, value: &[u8]) {
        self.running.put_new(key, value.into());
    }

    #[inline]
    pub(crate) fn put_shared(&self, key: Key, value: Arc<[u8]>) {
        self.running.put(key, Some(value));
    }

    #[inline]
    pub(crate) fn put_new_shared(&self, key: Key, value: Arc<[u8]>) {
        self.running.put_new(key, value);
    }

    #[inline]
    pub(crate) fn remove(&self, key: Key) {
        self.running.put(key, None);
    }

    /// Frees blocks of the data device. They are allocated again only after the running transaction
    /// is durable.
    pub(crate) fn free(&self, owner: u64, runs: impl IntoIterator<Item = crate::alloc::Run>) {
        self.running.free(owner, runs);
    }

    /// Appends to `out` the records of `kind` with the first number `major`, in ascending order of
    /// `minor`, their second number. The first record is at `from` or behind it. Returns the
    /// `minor` at which the next call continues, or None at the end.
    ///
    /// # Errors
    /// `EIO` if the records cannot be read.
    pub(crate) fn collect_from(
        &self,
        kind: Kind,
        major: u64,
        from: u64,
        out: &mut Vec<(u64, Arc<[u8]>)>,
    ) -> Result<Option<u64>, Errno> {
        let mut end = u64::MAX;
        let mut above = std::collections::BTreeMap::new();
        // Read the layers from the oldest to the newest: a record of a newer layer overrides the
        // same record of an older one.
        for layer in self.logged.iter().chain(&self.frozen).chain([&self.running]) {
            let records = layer.collect_from(kind, major, from, RANGE_RECORDS);
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
    pub(crate) fn new(
        database: Database,
        devices: Devices,
        cache_bytes: usize,
        running_max: u64,
        log: Log,
        allocator: Allocator,
    ) -> Result<Journal, Errno> {
        let base = Arc::new(database.snapshot().map_err(|error| full_or_io(&error))?);
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
            barrier: (0..SHARDS).map(|_| OwnLine::new(RwLock::new(view()))).collect(),
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

    pub(crate) fn refuse_changes(&mut self) {
        self.is_read_only = true;
    }

    /// Sets the channel that wakes the committer.
    pub(crate) fn set_poke(&self, poke: Option<Sender<()>>) {
        *self.poke.lock() = poke;
        self.forget_poke();
    }

    /// Takes a handle of the running transaction, for an operation that only reads. The caller must
    /// hold no lock of the store and no other handle.
    #[inline]
    pub(crate) fn view(&self) -> Handle<'_> {
        let handle = self.barrier[shard_index()].read();
        if handle.base.has_failed_read() {
            self.poke();
        }
        handle
    }

    /// Takes a handle of the running transaction, for an operation that changes the store. The
    /// caller must hold no lock of the store and no other handle.
    ///
    /// # Errors
    /// `EROFS` after a failed commit, and on a read-only mount. `EIO` if this call has to wait for
    /// a commit that fails.
    #[inline]
    pub(crate) fn change(&self) -> Result<Handle<'_>, Errno> {
        // ORDERING: Relaxed. A thread that misses the store in `fail` only makes a change in
        // memory, since the next commit fails.
        if self.is_failed.load(Ordering::Relaxed) || self.is_read_only {
            return Err(Errno::ROFS);
        }
        let mut handle = self.view();
        if handle.running.is_heavy() {
            // Operations make records faster than commits write them, so wait for a commit.
            drop(handle);
            // ORDERING: Relaxed. A statistic; no data is published through it.
            self.counts.waits.fetch_add(1, Ordering::Relaxed);
            self.commit_running()?;
            handle = self.view();
        }
        if handle.running.begin() {
            self.poke();
        }
        Ok(handle)
    }

    pub(crate) fn is_running(&self, tid: u64) -> bool {
        self.view().tid == tid
    }

    pub(crate) fn poke(&self) {
        // ORDERING(poke): AcqRel. `forget_poke` swaps in false and then looks for work. If
        // `forget_poke` swaps later, it sees the new transaction. If it has swapped before, `poke`
        // reads false and wakes the committer. With a weaker ordering both could miss the
        // transaction.
        if self.is_poked.swap(true, Ordering::AcqRel) {
            return;
        }
        if let Some(poke) = &*self.poke.lock() {
            // The send fails only while the store is being closed. The close commits anyway, so the
            // error is ignored.
            let _ = poke.send(());
        }
    }

    /// Allows the next change to wake the committer again. The committer calls this before it
    /// sleeps. If there is something to commit, it is woken immediately.
    pub(crate) fn forget_poke(&self) {
        // ORDERING(poke): AcqRel. If `poke` has swapped before, the [`View`] that is read next
        // shows its transaction. If `poke` swaps later, it reads false and wakes the committer.
        // With a weaker ordering both could miss the transaction, and nothing would commit it.
        self.is_poked.swap(false, Ordering::AcqRel);
        let view = self.view();
        let has_work = view.running.has_begun() || view.logged.is_some();
        drop(view);
        if has_work && self.check().is_ok() {
            self.poke();
        }
    }

    /// Like [`Journal::change`], for a change that needs space on the host.
    ///
    /// # Errors
    /// `ENOSPC` while the host is full; the errors of [`Journal::change`].
    #[inline]
    pub(crate) fn grow(&self) -> Result<Handle<'_>, Errno> {
        // ORDERING: Relaxed, for `is_failed` and `is_full`. A thread that misses a store in `fail`
        // or `renew_reserve` may use up the last space of the host. The commit can still use the
        // reserve, the space set aside for commits.
        let is_failed = self.is_failed.load(Ordering::Relaxed);
        if !is_failed && !self.is_read_only && self.is_full.load(Ordering::Relaxed) {
            // If `opened` is locked, a commit may be using the space of the reserve. Then do not
            // allocate the reserve again.
            let is_renewed = self.opened.try_lock().is_some_and(|_idle| self.renew_reserve());
            if !is_renewed {
                return Err(Errno::NOSPC);
            }
        }
        self.change()
    }

    pub(crate) fn read_data(&self, offset: u64, buf: &mut [u8]) -> Result<(), Errno> {
        self.devices.data.read_at(offset, buf).map_err(|_| Errno::IO)
    }

    /// Writes file data to the data device. The caller passes the `View` of its handle, so no
    /// commit freezes the transaction meanwhile.
    pub(crate) fn write_data(&self, _: &View, offset: u64, bytes: &[u8]) -> Result<(), Errno> {
        self.dirty.note(offset, bytes.len());
        let written = self.devices.data.write_at(offset, bytes);
        // ORDERING: Relaxed. A commit locks the transaction barrier for writing before it loads
        // `is_data_dirty`, so it sees the store of `true`. `sync_data` sees it if the write
        // happened before its call.
        if !self.is_data_dirty.load(Ordering::Relaxed) {
            // ORDERING: Relaxed. The writing thread holds the transaction barrier for reading. A
            // commit locks it for writing, so it sees the store. `sync_data` sees it if the write
            // happened before its call.
            self.is_data_dirty.store(true, Ordering::Relaxed);
        }
        written.map_err(|error| match error.kind() {
            // The host returns this error if the file `data` would exceed `ulimit -f` or the
            // largest file of its file system.
            io::ErrorKind::FileTooLarge => Errno::FBIG,
            _ => full_or_io(&error),
        })
    }

    pub(crate) fn given_blocks(&self) -> Result<u64, Errno> {
        let bytes = self.devices.data.given_bytes().map_err(|_| Errno::IO)?;
        Ok(bytes / BLOCK_BYTES)
    }

    #[cfg(test)]
    pub(crate) fn give_up_reserve(&self) {
        // ORDERING: Relaxed. The test has only one thread.
        self.is_full.store(true, Ordering::Relaxed);
    }

    pub(crate) fn has_reserve(&self) -> bool {
        // ORDERING: Relaxed. The returned value is only a snapshot; `renew_reserve` may change it
        // at any time.
        !self.is_full.load(Ordering::Relaxed)
    }

    /// Returns true on success.
    fn renew_reserve(&self) -> bool {
        let reserved = self.devices.take_reserve();
        // ORDERING: Relaxed. A thread whose load in `grow` misses the value may use up the free
        // space of the host. A commit can still use the reserve, the space set aside for commits.
        self.is_full.store(!reserved, Ordering::Relaxed);
        reserved
    }

    pub(crate) fn running_bytes(&self) -> u64 {
        self.view().running.bytes()
    }

    pub(crate) fn add_stats(&self, stats: &mut StoreStats) {
        // ORDERING: Relaxed. Statistics; no data is published through them.
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
        // Each commit syncs once, either the log or the database. `data_syncs` counts the syncs of
        // the data device.
        stats.syncs = stats.commits + get(data_syncs);
        let view = self.view();
        stats.running_bytes = view.running.bytes();
        stats.logged_running_bytes = view.logged.as_ref().map_or(0, |layer| layer.bytes());
        drop(view);
        stats.has_reserve = self.has_reserve();
        stats.is_read_only = self.is_read_only || self.check().is_err();
        stats.log_bytes = self.log_bytes;
    }

    /// Saves the length of the log in the superblock. From then on, a mount refuses the store if
    /// the log is shorter.
    ///
    /// # Errors
    /// The error of a device.
    pub(crate) fn begin_log(&self) -> io::Result<()> {
        let mut log = self.log.lock();
        let superblock = log.superblock_with(log.capacity());
        self.write_super(superblock)?;
        log.set_superblock(superblock);
        Ok(())
    }

    /// Marks the store as closed in the superblock and in the log, unless some records are only in
    /// the log.
    pub(crate) fn end(&self) {
        if self.check().is_err() || self.is_read_only {
            return;
        }
        let mut log = self.log.lock();
        // Without a mark for a closed store, the next mount reads the log and finds it empty. So an
        // error is ignored.
        if log.is_empty() && log.superblock_with(0) != log.superblock() {
            let _ = self.write_super(log.superblock_with(0));
        }
        log.end();
    }

    /// Makes all later commits fail. An operation that has failed halfway calls this, because the
    /// running transaction must never become durable.
    pub(crate) fn abort(&self) {
        self.fail();
    }

    fn fail(&self) {
        // ORDERING: Relaxed. A thread for which the failure matters loads `is_failed` under the
        // mutex of `state`, or gets an error from its own sync.
        self.is_failed.store(true, Ordering::Relaxed);
    }

    fn check(&self) -> Result<(), Errno> {
        // ORDERING: Relaxed. The load may miss a store in `fail` at the same time. A caller for
        // which the failure matters has locked `state`, or syncs the device itself.
        if self.is_failed.load(Ordering::Relaxed) { Err(Errno::IO) } else { Ok(()) }
    }
}
