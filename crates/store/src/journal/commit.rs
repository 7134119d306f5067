//! Commits: how a transaction becomes durable.
//!
//! One thread at a time commits, on behalf of all waiting threads. It freezes the *layer* (the
//! records in memory) of the running transaction, which then takes no more changes. It appends the
//! frozen layer to the log. Or it writes that layer to the database, together with the logged
//! layer, the records that are only in the log.
//!
//! # Log or database
//! A transaction goes to the database in these cases:
//! - The log cannot take it. The transaction has too many records, the log has no space, file data
//!   cannot be read, or a write or sync of the log fails.
//! - The transaction has written much file data, and the log holds older file data. The new data
//!   must not be synced without a database commit, because a replay of the log would write the
//!   older data over it (J.6).
//! - The commit is a periodic one, or it is the last commit before the store is closed.
//! - The host is full.
//! - A read of the database has failed, so the database must be reopened.
//!
//! # Shared commits
//! A commit serves all threads that wait for it. So a thread first waits for other threads to join,
//! before it starts a commit. This wait ends when as many threads want a commit as there were when
//! the last commit ended. It takes at most half of the duration of the last commit, and at most
//! [`PATIENCE_MAX`]. A thread that commits alone does not wait.
//!
//! Without this wait, two threads that sync in turn would never share a commit.
//!
//! Source: Linux `fs/jbd2/commit.c`; the ZFS intent log.

use std::io;
use std::sync::Arc;
use std::time::Instant;

use corewalk::Errno;
use corewalk_base::primitives::atomic::{AtomicU64, Ordering};
use corewalk_base::{MutexGuard, RwLockWriteGuard};

use super::opened::Opened;
use super::{Journal, PATIENCE_MAX, State, View};
use crate::database::Snapshot;
use crate::device::full_or_io;
use crate::layer::{Layer, Record};
use crate::record::{Key, SuperRecord};

/// Estimated maximum number of bytes of records in one log entry.
const LOGGED_RECORDS_MAX: u64 = 256 << 10;
/// Maximum number of times that one commit tries to write to the database. The first attempt may
/// fail because an earlier read has failed, and the second because the host is full. The third
/// attempt can use the space of the reserve, which was given up after the second.
const ATTEMPTS_MAX: u32 = 3;

/// The place that a commit must reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Goal {
    Durable,
    InDatabase,
}

/// A frozen transaction: it takes no more changes.
struct Frozen {
    tid: u64,
    layer: Arc<Layer>,
    /// Transactions that are in the log but not in the database.
    logged: Option<Arc<Layer>>,
    /// The ranges of the data device that the transaction has written. None if there are too many
    /// for the log.
    written: Option<Vec<(u64, u32)>>,
    /// True if a read of the database has failed, so that this commit must reopen the database.
    has_failed_read: bool,
}

impl Journal {
    /// Makes file data durable: all data that was written to files by the transactions up to number
    /// `tid`.
    ///
    /// # Errors
    /// `EIO` if this or an earlier commit failed. After such a failure the data may be lost.
    pub(crate) fn sync_data(&self, tid: u64) -> Result<(), Errno> {
        let state = self.state.lock();
        let (is_committed, has_logged_data) = (state.committed >= tid, state.has_logged_data);
        drop(state);
        if is_committed {
            return self.check();
        }
        // Guarantee J.6: do not sync file data here while the log holds older data of the files.
        // Otherwise a replay of the log would write the older data over the synced data.
        //
        // A commit sets `has_logged_data` before it reads file data for the log. So if it is false
        // here, later log entries contain data that is at least as new as the synced data.
        if self.dirty.is_large() && !has_logged_data {
            return self.sync_data_once().map_err(|_| Errno::IO);
        }
        self.commit_up_to(tid)
    }

    fn sync_data_once(&self) -> io::Result<()> {
        let _turn = self.data_sync.lock();
        // The host reports a failed write only once, so a second sync could succeed. So after a
        // failed sync, `sync_data_once` always fails.
        if self.check().is_err() {
            return Err(io::ErrorKind::Other.into());
        }
        // ORDERING: Relaxed. Each write that this sync has to cover has set `is_data_dirty` before
        // this call. That store is visible because of the file's data lock, the transaction
        // barrier, or the caller's own order of calls.
        if !self.is_data_dirty.swap(false, Ordering::Relaxed) {
            return Ok(());
        }
        count(&self.counts.data_syncs, 1);
        self.devices.data.sync().inspect_err(|_| self.fail())
    }

    /// Makes all earlier changes durable.
    ///
    /// # Errors
    /// `EIO` if this or an earlier commit failed.
    pub(crate) fn commit_running(&self) -> Result<(), Errno> {
        self.reopen_if_failed();
        let view = self.view();
        let tid = view.tid - u64::from(!view.running.has_begun());
        drop(view);
        self.check()?;
        self.commit_up_to(tid)
    }

    /// Writes all earlier changes to the database, which leaves the log empty.
    ///
    /// # Errors
    /// `EIO` if this or an earlier commit failed.
    pub(crate) fn checkpoint(&self) -> Result<(), Errno> {
        self.reopen_if_failed();
        let view = self.view();
        let tid = view.tid - u64::from(!view.running.has_begun());
        drop(view);
        self.check()?;
        self.commit_with(&mut self.state.lock(), tid, Goal::InDatabase)
    }

    /// Makes the transactions up to `tid` durable.
    ///
    /// # Errors
    /// `EIO` if this or an earlier commit failed.
    pub(crate) fn commit_up_to(&self, tid: u64) -> Result<(), Errno> {
        let mut state = self.state.lock();
        if state.committed >= tid {
            return Ok(());
        }
        state.callers += 1;
        self.changed.notify_all();
        let done = self.commit_with(&mut state, tid, Goal::Durable);
        state.callers -= 1;
        done
    }

    fn commit_with(
        &self,
        state: &mut MutexGuard<'_, State>,
        tid: u64,
        goal: Goal,
    ) -> Result<(), Errno> {
        let (mut deadline, mut has_committed) = (None, false);
        loop {
            let reached = if goal == Goal::Durable { state.committed } else { state.based };
            if reached >= tid {
                count(&self.counts.shared, u64::from(!has_committed));
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
                has_committed = true;
                MutexGuard::unlocked(state, || {
                    let mut turn = Turn { journal: self, done: None, since: Instant::now() };
                    turn.done = self.commit(goal).map(|(tid, reached)| Done::To(tid, reached));
                });
            }
        }
    }

    /// Reopens the database if a read of it has failed. If the database cannot be reopened, a later
    /// call tries again.
    fn reopen_if_failed(&self) {
        if !self.view().base.has_failed_read() {
            return;
        }
        let mut state = self.state.lock();
        while state.is_committing {
            self.changed.wait(&mut state);
        }
        state.is_committing = true;
        MutexGuard::unlocked(&mut state, || {
            let done = Some(Done::Nothing);
            let _turn = Turn { journal: self, done, since: Instant::now() };
            let mut opened = self.opened.lock();
            // Check again whether a read of the database has failed, because another thread may
            // have reopened the database meanwhile. Do not reopen the database if its device has
            // lost writes, because the reopened database would lack them.
            if self.view().base.has_failed_read() && !opened.is_lost() {
                // Reopening the database loses no records. The records of its last commit are on
                // the device, and the records of later transactions are still in memory.
                let _ = self.open_again(&mut opened);
                if opened.is_lost() {
                    // The reopened database may be older than the last commit, so it must not be
                    // read.
                    self.fail();
                }
            }
        });
    }

    /// Freezes the running transaction and makes it durable. Returns the id of the transaction, and
    /// tells whether it is in the database or only in the log. Returns None on failure.
    fn commit(&self, goal: Goal) -> Option<(u64, Goal)> {
        let frozen = self.freeze();
        // An operation that fails halfway aborts the journal. Then the frozen transaction contains
        // only a part of the operation's changes, and must not be committed. `freeze` has waited
        // for all operations of the transaction, so a check after it misses no abort.
        self.check().ok()?;
        // ORDERING: Relaxed. If the host is full, do not use the log. The database might never have
        // space for the transactions in the log. If this load misses that the host is full, a later
        // commit to the database can still use the space of the reserve (space set aside for
        // commits).
        let is_full = self.is_full.load(Ordering::Relaxed);
        let is_logged = goal == Goal::Durable && !frozen.has_failed_read && !is_full;
        let done = match is_logged.then(|| self.append(&frozen)) {
            Some(Ok(true)) => {
                self.keep_logged(&frozen);
                // Some transactions are now only in the log. Wake the committer, the thread that
                // commits periodically, so that it later writes them to the database.
                self.poke();
                Ok(Goal::Durable)
            }
            Some(Err(error)) => Err(error),
            _ => self.write_all(&frozen).map(|()| Goal::InDatabase),
        };
        let Ok(reached) = done else {
            // The commit has failed. Keep the records of the transaction in memory, in each
            // [`View`] as `frozen`, so that reads still find them.
            self.fail();
            return None;
        };
        for run in frozen.layer.take_freed() {
            self.allocator.give(run);
        }
        Some((frozen.tid, reached))
    }

    fn freeze(&self) -> Frozen {
        let next = Arc::new(Layer::new(self.running_max));
        let mut views = self.close();
        let first = &views[0];
        let frozen = Frozen {
            tid: first.tid,
            layer: first.running.clone(),
            logged: first.logged.clone(),
            written: self.dirty.take(),
            has_failed_read: first.base.has_failed_read(),
        };
        for view in &mut views {
            view.running = next.clone();
            view.frozen = Some(frozen.layer.clone());
            view.tid = frozen.tid + 1;
        }
        frozen
    }

    fn close(&self) -> Vec<RwLockWriteGuard<'_, View>> {
        self.barrier.iter().map(|shard| shard.write()).collect()
    }

    /// Appends a transaction to the log. Returns false if the log cannot take the transaction, so
    /// that the caller must write it to the database. See "Log or database" for the reasons.
    ///
    /// # Errors
    /// The error of a sync of the data device, after which the store is read-only.
    fn append(&self, frozen: &Frozen) -> io::Result<bool> {
        if frozen.layer.bytes() > LOGGED_RECORDS_MAX {
            return Ok(false);
        }
        let ranges = match &frozen.written {
            Some(ranges) => {
                // Set `has_logged_data` before any file data is read for the log. Otherwise
                // `sync_data` could meanwhile sync newer data, and a replay would overwrite that
                // data with the older bytes of the log (guarantee J.6).
                self.state.lock().has_logged_data |= !ranges.is_empty();
                &ranges[..]
            }
            None if self.state.lock().has_logged_data => return Ok(false),
            None => {
                self.sync_data_once()?;
                &[]
            }
        };
        let mut log = self.log.lock();
        let mut entry = log.begin();
        frozen.layer.each(|key, record| entry.put(key, record));
        for &(offset, len) in ranges {
            if entry.put_data(offset, len, |bytes| self.read_data(offset, bytes)).is_err() {
                return Ok(false);
            }
        }
        let bytes = match entry.append() {
            Ok(Some(bytes)) => bytes,
            Ok(None) => return Ok(false),
            Err(_) => {
                // The write or the sync has failed, so the entry is not confirmed. The log takes no
                // more entries until a commit to the database has made all entries in the log void.
                count(&self.counts.log_failures, 1);
                return Ok(false);
            }
        };
        count(&self.counts.logged, 1);
        count(&self.counts.logged_bytes, bytes);
        Ok(true)
    }

    /// Adds the records of a logged transaction to the logged layer.
    fn keep_logged(&self, frozen: &Frozen) {
        let logged = frozen.all();
        for shard in &self.barrier {
            // Each shard of threads has its own [`View`] of the records, so the views are updated
            // one after the other. Meanwhile all views show the same records. In an old view, the
            // records of this transaction are in the layer `frozen`. In an updated view they are in
            // the layer `logged`.
            let mut view = shard.write();
            view.logged = Some(logged.clone());
            view.frozen = None;
        }
    }

    /// Writes the records of this transaction, and those of earlier transactions that are only in
    /// the log, to the database. Then starts a new generation of the log, which makes all its
    /// entries void.
    fn write_all(&self, frozen: &Frozen) -> io::Result<()> {
        self.sync_data_once()?;
        let mut log = self.log.lock();
        let superblock = log.next_superblock();
        let mut records = frozen.all().collect_sorted();
        // Increment the generation even if the log has no valid entry. Otherwise an old entry whose
        // bytes are still in the log could be taken for a new one.
        records.insert(0, super_record(superblock));
        let base = Arc::new(self.write_records(&records, superblock.generation)?);
        log.restart();
        drop(log);
        for shard in &self.barrier {
            // Each shard of threads has its own [`View`] of the records, so the views are updated
            // one after the other. Meanwhile all views show the same records. In an old view, the
            // new records are in the layers `frozen` and `logged`. In an updated view they are in
            // the snapshot of the database.
            let mut view = shard.write();
            view.base = base.clone();
            (view.frozen, view.logged) = (None, None);
            view.based = frozen.tid;
        }
        count(&self.counts.database, 1);
        count(&self.counts.records, records.len() as u64);
        // ORDERING: Relaxed. The reserve is space set aside for commits on a full host. If this
        // load misses that the reserve was given up, this thread does not allocate it again. In
        // that case `grow` does so later.
        if self.is_full.load(Ordering::Relaxed) {
            self.renew_reserve();
        }
        Ok(())
    }

    /// Writes a superblock that differs from the current one only in `log_bytes`, and makes it
    /// durable.
    pub(super) fn write_super(&self, superblock: SuperRecord) -> io::Result<()> {
        let snapshot = self.write_records(&[super_record(superblock)], superblock.generation)?;
        let base = Arc::new(snapshot);
        for shard in &self.barrier {
            shard.write().base = base.clone();
        }
        Ok(())
    }

    /// Makes records durable in the database, and returns a snapshot of it. One of `records` is a
    /// superblock record with the generation `generation`.
    fn write_records(&self, records: &[(Key, Record)], generation: u64) -> io::Result<Snapshot> {
        let mut opened = self.opened.lock();
        if !opened.is_open() && !opened.is_lost() {
            // Ignore an error: if the database cannot be reopened, the call of `write` below
            // returns an error.
            let _ = self.open_again(&mut opened);
        }
        let mut done = opened.write(records, generation);
        for _ in 1..ATTEMPTS_MAX {
            let Err(error) = &done else { break };
            if opened.is_lost() {
                break;
            }
            if full_or_io(error) == Errno::NOSPC {
                // ORDERING: Relaxed. A thread that still loads `is_full` as false may use up the
                // free space of the host. It cannot use up the space of the reserve, which this
                // commit is about to use.
                self.is_full.store(true, Ordering::Relaxed);
                self.devices.reserve.set_len(0)?;
            }
            // After an error, the database refuses all calls until it is reopened. The reopened
            // database still has the last commit.
            done = match self.open_again(&mut opened) {
                Ok(()) => opened.write(records, generation),
                Err(error) => Err(error),
            };
        }
        done
    }

    /// Reopens the database at its last commit.
    fn open_again(&self, opened: &mut Opened) -> io::Result<()> {
        // Lock the transaction barrier for writing, so that no thread reads the database while it
        // is reopened.
        let mut views = self.close();
        let nothing = Arc::new(Snapshot::closed());
        views.iter_mut().for_each(|view| view.base = nothing.clone());
        let base = Arc::new(opened.open_again()?);
        views.iter_mut().for_each(|view| view.base = base.clone());
        Ok(())
    }
}

impl Frozen {
    /// Returns one layer with the records of this transaction and of all earlier transactions that
    /// are only in the log. If there are such transactions, adds the records of this one to their
    /// layer `logged`.
    fn all(&self) -> Arc<Layer> {
        let Some(logged) = &self.logged else { return self.layer.clone() };
        logged.absorb(&self.layer);
        logged.clone()
    }
}

/// Returns the key and value of a superblock record.
fn super_record(superblock: SuperRecord) -> (Key, Record) {
    (Key::SUPER, Some(superblock.encode().into()))
}

fn count(counter: &AtomicU64, by: u64) {
    // ORDERING: Relaxed. A statistic.
    counter.fetch_add(by, Ordering::Relaxed);
}

/// The right to commit, which only one thread has at a time. When this guard is dropped, even
/// during a panic, the next thread may commit.
struct Turn<'a> {
    journal: &'a Journal,
    /// None if the commit has failed.
    done: Option<Done>,
    since: Instant,
}

/// The outcome of a turn.
enum Done {
    Nothing,
    /// All transactions up to this id are durable. `Goal::InDatabase` says that all of them are in
    /// the database, and `Goal::Durable` that some may be only in the log.
    To(u64, Goal),
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut state = self.journal.state.lock();
        match self.done {
            None => self.journal.fail(),
            Some(Done::Nothing) => {}
            Some(Done::To(tid, reached)) => {
                state.committed = tid;
                if reached == Goal::InDatabase {
                    state.based = tid;
                    state.has_logged_data = false;
                }
            }
        }
        state.is_committing = false;
        state.companions = state.callers;
        state.took = self.since.elapsed();
        self.journal.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use corewalk_base::primitives::thread;

    use super::*;
    use crate::record::Kind;
    use crate::store::{Store, StoreOptions};

    /// Tests a commit while an operation is still running. This thread begins an operation, and
    /// another thread starts a commit, which must wait for the operation. This thread then makes
    /// one change, calls `end`, and ends the operation. Returns the result of the commit, and true
    /// if the change exists after a remount.
    fn commit_amid(name: &str, end: impl FnOnce(&Journal)) -> (Result<(), Errno>, bool) {
        let path = std::env::temp_dir().join(format!("commit-{}-{name}", std::process::id()));
        let log_bytes = 64 << 10;
        let options = StoreOptions { commit_every: None, log_bytes, ..StoreOptions::default() };
        let store = Store::open(&path, &options).unwrap();
        let (key, journal) = (Key::of(Kind::Orphan, 99), &*store.journal);
        let done = thread::scope(|scope| {
            let handle = journal.change().unwrap();
            let tid = handle.tid;
            let committer = scope.spawn(move || journal.commit_up_to(tid));
            // Wait until the committing thread has checked for failures and is about to wait for
            // the transaction barrier.
            while !journal.state.lock().is_committing {
                thread::yield_now();
            }
            handle.put(key, b"");
            end(journal);
            drop(handle);
            committer.join().unwrap()
        });
        drop(store);
        let store = Store::open(&path, &options).unwrap();
        let is_there = store.journal.view().get(&key).unwrap().is_some();
        drop(store);
        std::fs::remove_dir_all(&path).unwrap();
        (done, is_there)
    }

    /// Checks that a transaction is not committed if one of its operations aborts the journal. The
    /// abort comes at a critical moment. The committing thread has already checked once for
    /// failures, but it still waits for the operation to end.
    #[test]
    fn abort_before_the_barrier_is_closed_stops_the_commit() {
        assert_eq!(commit_amid("abort", Journal::abort), (Err(Errno::IO), false));
    }

    #[test]
    fn control_operation_that_does_not_abort_is_committed() {
        assert_eq!(commit_amid("whole", |_| ()), (Ok(()), true));
    }
}
