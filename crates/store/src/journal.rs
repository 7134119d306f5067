//! Transactions: how what operations change becomes durable all at once.
//!
//! After jbd2: operations join the *running* transaction, a [`Layer`] of records in memory. A commit
//! closes the gate for an instant, freezes the running layer and begins another; makes the data of files
//! durable; writes the frozen layer in one transaction of the database; and drops it. Reads look in the
//! running layer, then in the frozen one, then in a snapshot of the database.
//!
//! # Guarantees
//! - J.1: an operation is in one transaction as a whole: it holds the gate from its first change to its
//!   last.
//! - J.2: what the database has is what it was at the end of some commit; so after a crash the store is
//!   consistent without a repair of its own.
//! - J.3: data that a file had when the gate closed is durable before the extents that lead to it are
//!   (`data=ordered` of ext4).
//! - J.4: blocks that a transaction lets go of are given out again after it is durable.
//! - J.5: calls of [`Journal::commit_up_to`] that come during a commit share the next one.
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
//! A commit needs room of the host, and there is nobody to refuse any more. So a reserve is kept: a file
//! of [`RESERVE_BYTES`]. A commit that meets `ENOSPC` gives the reserve up, opens the database again (it
//! refuses to go on after an error, also after a read that failed: until the next commit what is not in
//! memory is `EIO` then) and tries once more; then whatever needs more room is refused with
//! `ENOSPC` until the reserve can be had again. If it fails even so, or with any other error, the store
//! is read-only from then on: `EROFS` for changes, `EIO` for fsync. What was confirmed is in the
//! database still.
//!
//! # Locks
//! The gate, before every other lock of the store. `state` is held for moments, and never while the gate
//! is asked for. `data_sync` and `database` are for whoever commits.
//!
//! Source: Linux `fs/jbd2/transaction.c`, `Documentation/filesystems/ext4/journal.rst`.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use corewalk::Errno;
use corewalk_sync::primitives::atomic::{AtomicBool, AtomicU64, Ordering};
use corewalk_sync::primitives::{SHARDS, shard_index};
use corewalk_sync::{
    Condvar, Mutex, MutexGuard, OwnLine, RwLock, RwLockReadGuard, RwLockWriteGuard,
};

use crate::alloc::Allocator;
use crate::database::{Database, Snapshot};
use crate::device::{Device, errno_of};
use crate::layer::{Layer, Record};
use crate::record::{Key, Kind};

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
}

/// What operations see: the layers above a snapshot of the database.
pub(crate) struct View {
    running: Arc<Layer>,
    frozen: Option<Arc<Layer>>,
    base: Arc<Snapshot>,
    /// The number of the running transaction.
    pub(crate) tid: u64,
}

/// A place within the gate: while it lives, no commit freezes the running transaction.
pub(crate) type Pass<'a> = RwLockReadGuard<'a, View>;

/// The transactions of a store. See the module's text.
pub(crate) struct Journal {
    gate: Box<[OwnLine<RwLock<View>>]>,
    state: Mutex<State>,
    changed: Condvar,
    database: Mutex<Option<Database>>,
    devices: Devices,
    cache_bytes: usize,
    pub(crate) allocator: Allocator,
    is_data_dirty: AtomicBool,
    data_sync: Mutex<()>,
    is_failed: AtomicBool,
    is_full: AtomicBool,
    is_slow: AtomicBool,
    commits: AtomicU64,
    poke: Mutex<Option<Sender<()>>>,
}

#[derive(Default)]
struct State {
    /// The last transaction that is durable.
    committed: u64,
    is_committing: bool,
    /// How many are in `commit_up_to`, and how many there were when the last commit ended.
    callers: u32,
    companions: u32,
    /// What the last commit took.
    took: Duration,
}

impl View {
    /// Returns the value of a record. `EIO` if it cannot be read.
    pub(crate) fn get(&self, key: &Key) -> Result<Option<Arc<[u8]>>, Errno> {
        if let Some(record) = self.running.get(key) {
            return Ok(record);
        }
        if let Some(record) = self.frozen.as_ref().and_then(|layer| layer.get(key)) {
            return Ok(record);
        }
        self.base.get(key)
    }

    /// Returns the value of a record that nobody made before the transaction `born`. `EIO` if it cannot
    /// be read.
    pub(crate) fn get_since(&self, key: &Key, born: u64) -> Result<Option<Arc<[u8]>>, Errno> {
        let is_below = born < self.tid - u64::from(self.frozen.is_some());
        if is_below {
            return self.get(key);
        }
        let above = [Some(&self.running), self.frozen.as_ref()];
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

    /// Sets the value of a record, without a copy.
    #[inline]
    pub(crate) fn put_shared(&self, key: Key, value: Arc<[u8]>) {
        self.running.put(key, Some(value));
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
        for layer in self.frozen.iter().chain([&self.running]) {
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
        cache_bytes: usize,
        allocator: Allocator,
    ) -> Result<Journal, Errno> {
        let base = Arc::new(database.snapshot().map_err(|error| errno_of(&error))?);
        let running = Arc::new(Layer::new());
        let view = || View { running: running.clone(), frozen: None, base: base.clone(), tid: 1 };
        let journal = Journal {
            gate: (0..SHARDS).map(|_| OwnLine::new(RwLock::new(view()))).collect(),
            state: Mutex::default(),
            changed: Condvar::new(),
            database: Mutex::new(Some(database)),
            devices,
            cache_bytes,
            allocator,
            is_data_dirty: AtomicBool::new(false),
            data_sync: Mutex::new(()),
            is_failed: AtomicBool::new(false),
            is_full: AtomicBool::new(true),
            is_slow: AtomicBool::new(false),
            commits: AtomicU64::new(0),
            poke: Mutex::new(None),
        };
        journal.renew_reserve();
        Ok(journal)
    }

    /// Sets whom to tell that a transaction has begun.
    pub(crate) fn set_poke(&self, poke: Option<Sender<()>>) {
        *self.poke.lock() = poke;
    }

    /// Returns a pass to look. No other lock of the store may be held, nor a pass.
    #[inline]
    pub(crate) fn look(&self) -> Pass<'_> {
        self.gate[shard_index()].read()
    }

    /// Returns a pass to change. As [`Journal::look`].
    ///
    /// # Errors
    /// `EROFS` after a commit has failed.
    #[inline]
    pub(crate) fn change(&self) -> Result<Pass<'_>, Errno> {
        // ORDERING: Relaxed. What is missed is met at the commit.
        if self.is_failed.load(Ordering::Relaxed) {
            return Err(Errno::ROFS);
        }
        // ORDERING: Relaxed. A hint to slow down.
        if self.is_slow.load(Ordering::Relaxed) {
            // Operations make records faster than the database takes them.
            self.commit_running()?;
        }
        let pass = self.look();
        if pass.running.begin()
            && let Some(poke) = &*self.poke.lock()
        {
            // Nobody listens any more while the store is closed, which commits.
            let _ = poke.send(());
        }
        Ok(pass)
    }

    /// Returns a pass to change what needs more room. As [`Journal::change`].
    ///
    /// # Errors
    /// `ENOSPC` while the host is full; those of [`Journal::change`].
    #[inline]
    pub(crate) fn grow(&self) -> Result<Pass<'_>, Errno> {
        // ORDERING: Relaxed, both. What is missed is met at the commit, for which the reserve is.
        let is_failed = self.is_failed.load(Ordering::Relaxed);
        if !is_failed && self.is_full.load(Ordering::Relaxed) {
            // A commit that has just given the reserve up is not to find it taken again.
            let is_renewed = self.database.try_lock().is_some_and(|_idle| self.renew_reserve());
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
        let written = self.devices.data.write_at(offset, bytes);
        // ORDERING: Relaxed. A commit reads it with the gate closed; `sync_data` promises to those only
        // who wrote before they called.
        if !self.is_data_dirty.load(Ordering::Relaxed) {
            // ORDERING: Relaxed. As above.
            self.is_data_dirty.store(true, Ordering::Relaxed);
        }
        written.map_err(|error| errno_of(&error))
    }

    /// Makes data durable that was written before.
    ///
    /// # Errors
    /// `EIO` if that failed, now or ever: what it is about may be lost.
    pub(crate) fn sync_data(&self) -> Result<(), Errno> {
        self.sync_data_once().map_err(|_| Errno::IO)
    }

    fn sync_data_once(&self) -> io::Result<()> {
        let _turn = self.data_sync.lock();
        // The host tells of a failure once; nobody may take what it was about for durable later.
        if self.check().is_err() {
            return Err(io::ErrorKind::Other.into());
        }
        // ORDERING: Relaxed. Whoever wrote before this call set it before: the lock of the file, the gate
        // or the caller's own order is between.
        if !self.is_data_dirty.swap(false, Ordering::Relaxed) {
            return Ok(());
        }
        self.devices.data.sync().inspect_err(|_| self.fail())
    }

    /// Makes all that happened before this call durable.
    ///
    /// # Errors
    /// `EIO` if a commit failed, now or ever.
    pub(crate) fn commit_running(&self) -> Result<(), Errno> {
        let tid = self.look().tid;
        self.commit_up_to(tid)
    }

    /// Makes the transaction `tid` durable, and those before.
    ///
    /// # Errors
    /// `EIO` if a commit failed, now or ever.
    pub(crate) fn commit_up_to(&self, tid: u64) -> Result<(), Errno> {
        let mut state = self.state.lock();
        if state.committed >= tid {
            return Ok(());
        }
        state.callers += 1;
        self.changed.notify_all();
        let done = self.commit_with(&mut state, tid);
        state.callers -= 1;
        done
    }

    fn commit_with(&self, state: &mut MutexGuard<'_, State>, tid: u64) -> Result<(), Errno> {
        let mut deadline = None;
        loop {
            if state.committed >= tid {
                return Ok(());
            }
            self.check()?;
            let patience = (state.took / 2).min(PATIENCE_MAX);
            if state.is_committing {
                self.changed.wait(state);
            } else if state.callers < state.companions
                && Instant::now() < *deadline.get_or_insert_with(|| Instant::now() + patience)
            {
                self.changed.wait_until(state, deadline.expect("it was just set"));
            } else {
                state.is_committing = true;
                MutexGuard::unlocked(state, || {
                    let mut turn = Turn { journal: self, committed: None, since: Instant::now() };
                    turn.committed = self.commit();
                });
            }
        }
    }

    /// Freezes the running transaction and makes it durable; returns its number, None if it failed.
    fn commit(&self) -> Option<u64> {
        let (frozen, tid) = self.freeze();
        let done = self.write_out(&frozen);
        let base = match done {
            Ok(base) => Arc::new(base),
            Err(error) => {
                // The frozen layer stays in the views, for reads.
                let _ = error;
                self.fail();
                return None;
            }
        };
        for shard in &self.gate {
            // One after the other: the new base says what the old one and the frozen layer do.
            let mut view = shard.write();
            view.base = base.clone();
            view.frozen = None;
        }
        for run in frozen.take_freed() {
            self.allocator.give(run);
        }
        // ORDERING: Relaxed, all. A statistic, and two hints.
        self.commits.fetch_add(1, Ordering::Relaxed);
        self.is_slow.store(false, Ordering::Relaxed);
        if self.is_full.load(Ordering::Relaxed) {
            self.renew_reserve();
        }
        Some(tid)
    }

    fn freeze(&self) -> (Arc<Layer>, u64) {
        let next = Arc::new(Layer::new());
        let mut views = self.close();
        let frozen = views[0].running.clone();
        let tid = views[0].tid;
        for view in &mut views {
            view.running = next.clone();
            view.frozen = Some(frozen.clone());
            view.tid = tid + 1;
        }
        (frozen, tid)
    }

    fn close(&self) -> Vec<RwLockWriteGuard<'_, View>> {
        self.gate.iter().map(|shard| shard.write()).collect()
    }

    /// Makes data and a frozen layer durable, and returns the database as it is then.
    fn write_out(&self, frozen: &Layer) -> io::Result<Snapshot> {
        self.sync_data_once()?;
        let records = frozen.collect_sorted();
        let mut database = self.database.lock();
        let first = match &*database {
            Some(database) => database.write(&records),
            None => Err(io::ErrorKind::Other.into()),
        };
        let is_intact = database.as_ref().is_some_and(Database::is_intact);
        match first {
            Err(error) if is_intact && errno_of(&error) == Errno::NOSPC => {
                // ORDERING: Relaxed. See `grow`.
                self.is_full.store(true, Ordering::Relaxed);
                self.devices.reserve.set_len(0)?;
            }
            // A read that failed once makes the database refuse everything; nothing is lost by that.
            Err(_) if is_intact => {}
            done => return done,
        }
        // Nobody may read from the database while it is opened again.
        let mut views = self.close();
        let nothing = Arc::new(Snapshot::closed());
        views.iter_mut().for_each(|view| view.base = nothing.clone());
        *database = None;
        let again = Database::open(&self.devices.meta, self.cache_bytes)?;
        let base = Arc::new(again.snapshot()?);
        views.iter_mut().for_each(|view| view.base = base.clone());
        drop(views);
        database.insert(again).write(&records)
    }

    /// Takes the reserve from the host, and returns true if it is there.
    fn renew_reserve(&self) -> bool {
        let reserved = match self.devices.reserve.reserve(RESERVE_BYTES) {
            // A host that cannot reserve: a full one is then met at a commit.
            Err(error) if error.kind() == io::ErrorKind::Unsupported => true,
            result => result.is_ok(),
        };
        // ORDERING: Relaxed. See `grow`.
        self.is_full.store(!reserved, Ordering::Relaxed);
        reserved
    }

    /// Returns what the running transaction takes in memory, in bytes.
    pub(crate) fn running_bytes(&self) -> u64 {
        self.look().running.bytes()
    }

    /// Makes operations wait for the next commit.
    pub(crate) fn slow_down(&self) {
        // ORDERING: Relaxed. A hint.
        self.is_slow.store(true, Ordering::Relaxed);
    }

    /// Returns the number of commits since the store was mounted.
    pub(crate) fn commits(&self) -> u64 {
        // ORDERING: Relaxed. A statistic.
        self.commits.load(Ordering::Relaxed)
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

/// The turn of one thread to commit, which ends also with a panic.
struct Turn<'a> {
    journal: &'a Journal,
    committed: Option<u64>,
    since: Instant,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        if self.committed.is_none() {
            self.journal.fail();
        }
        let mut state = self.journal.state.lock();
        state.committed = self.committed.unwrap_or(state.committed);
        state.is_committing = false;
        state.companions = state.callers;
        state.took = self.since.elapsed();
        self.journal.changed.notify_all();
    }
}
