//! Commits: how a transaction becomes durable.
//!
//! One thread at a time commits, on behalf of all waiting threads. It freezes the running layer.
//! Then it appends that layer to the log, or writes all records to the database.
//!
//! # Log or database
//! A transaction goes to the database in these cases:
//! - The log cannot take it. The transaction has too many records, the log has no space, file data
//!   cannot be read, or a write or sync of the log fails.
//! - The transaction has written much file data, while the log holds older file data. Then the new
//!   data must not be synced alone, because a replay would write the older data over it (J.6).
//! - The commit is a periodic one, or the last one before the store is closed.
//! - The host is full.
//! - A read of the database has failed, so that the database must be reopened.
//!
//! # Shared commits
//! A thread that is about to commit first waits until as many threads want a commit as when the
//! last commit ended. The wait takes at most half of the duration of the last commit, and at most
//! [`PATIENCE_MAX`]. Without the wait, two threads that sync in turn would never share a commit. A
//! thread that is alone does not wait.
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
/// Maximum number of attempts of one commit to write to the database. The first attempt may fail
/// because a read has failed earlier, and the second because the host is full. The third attempt
/// can use the space of the reserve, which the second has given up.
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
    /// The ranges of the data device that the transaction has written. None if their data is too
    /// large for the log.
    written: Option<Vec<(u64, u32)>>,
    /// True if a read of the database has failed, so that the commit must reopen it.
    has_failed_read: bool,
}

impl Journal {
    /// Makes the file data durable that transactions up to `tid` have written.
    ///
    /// # Errors
    /// `EIO` if this or an earlier commit failed. The data may be lost in that case.
    pub(crate) fn sync_data(&self, tid: u64) -> Result<(), Errno> {
        let state = self.state.lock();
        let (is_committed, has_logged_data) = (state.committed >= tid, state.has_logged_data);
        drop(state);
        if is_committed {
            return self.check();
        }
        // Guarantee J.6: a replay must not write older data from the log over synced data. A commit
        // sets `has_logged_data` before it reads file data for the log. So if `has_logged_data` is
        // false here, each later commit logs data at least as new as the data that this call has to
        // sync.
        if self.dirty.is_large() && !has_logged_data {
            return self.sync_data_once().map_err(|_| Errno::IO);
        }
        self.commit_up_to(tid)
    }

    fn sync_data_once(&self) -> io::Result<()> {
        let _turn = self.data_sync.lock();
        // The host reports a failed write only once. So after a failed sync, `sync_data_once` must
        // always fail.
        if self.check().is_err() {
            return Err(io::ErrorKind::Other.into());
        }
        // ORDERING: Relaxed. Each write that this call has to cover has set `is_data_dirty` before
        // this call. The data lock of the file, the transaction barrier, or the caller's own order
        // of calls makes that store visible.
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

    /// Puts all earlier changes into the database, so that the log is empty.
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

    /// Reopens the database if a read of it has failed. If the reopening fails, a later call tries
    /// again.
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
            // Check again, because another thread may have reopened the database meanwhile. If the
            // device has lost writes, do not reopen the database, because it would lack these
            // writes.
            if self.view().base.has_failed_read() && !opened.is_lost() {
                // A reopening loses no records. The records of the last commit are in the database,
                // and later ones are in the layers in memory.
                let _ = self.open_again(&mut opened);
                if opened.is_lost() {
                    // The reopened database may be older than the last commit, so do not read it.
                    self.fail();
                }
            }
        });
    }

    /// Freezes the running transaction and makes it durable. Returns its id, and `Goal::InDatabase`
    /// if it is in the database and not only in the log. Returns None on failure.
    fn commit(&self, goal: Goal) -> Option<(u64, Goal)> {
        let frozen = self.freeze();
        // Check for an abort only now, after the barrier was closed. If an operation has aborted,
        // the frozen layer has only a part of its changes and must not be committed.
        self.check().ok()?;
        // ORDERING: Relaxed. If this value of `is_full` is stale, the commit can still use the
        // reserve. On a full host do not use the log, since the logged transaction might never fit
        // into the database.
        let is_full = self.is_full.load(Ordering::Relaxed);
        let is_logged = goal == Goal::Durable && !frozen.has_failed_read && !is_full;
        let done = match is_logged.then(|| self.append(&frozen)) {
            Some(Ok(true)) => {
                self.keep_logged(&frozen);
                // Wake the committer, which may be asleep. It has to write the logged layer to the
                // database later.
                self.poke();
                Ok(Goal::Durable)
            }
            Some(Err(error)) => Err(error),
            _ => self.write_all(&frozen).map(|()| Goal::InDatabase),
        };
        let Ok(reached) = done else {
            // The commit has failed. Keep the frozen layer in the views, so that reads still find
            // its records.
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

    /// Appends a transaction to the log. Returns false if the database has to take it.
    ///
    /// # Errors
    /// The error of a sync of the data device, after which the store is read-only.
    fn append(&self, frozen: &Frozen) -> io::Result<bool> {
        if frozen.layer.bytes() > LOGGED_RECORDS_MAX {
            return Ok(false);
        }
        let ranges = match &frozen.written {
            Some(ranges) => {
                // Set `has_logged_data` before any byte is read for the log. Otherwise `sync_data`
                // could sync newer data, and a replay would put the older bytes of the log over it
                // (guarantee J.6).
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
                // more entries until a commit of the database makes its entries void.
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
            // Change the view of one shard after the other. Meanwhile a reader finds the same
            // records in each view: the new logged layer has those of the old logged layer and of
            // the frozen layer.
            let mut view = shard.write();
            view.logged = Some(logged.clone());
            view.frozen = None;
        }
    }

    /// Writes the logged and the frozen layer to the database. Then starts a new generation of the
    /// log, so that its entries are void.
    fn write_all(&self, frozen: &Frozen) -> io::Result<()> {
        self.sync_data_once()?;
        let mut log = self.log.lock();
        let superblock = log.next_superblock();
        let mut records = frozen.all().collect_sorted();
        // Increment the generation even if the log has no valid entry. Otherwise an old entry whose
        // bytes are still in the log could look like a new one.
        records.insert(0, super_record(superblock));
        let base = Arc::new(self.write_records(&records, superblock.generation)?);
        log.restart();
        drop(log);
        for shard in &self.barrier {
            // Change the view of one shard after the other. Meanwhile a reader finds the same
            // records in each view, because the new snapshot has all records of the frozen and the
            // logged layer.
            let mut view = shard.write();
            view.base = base.clone();
            (view.frozen, view.logged) = (None, None);
            view.based = frozen.tid;
        }
        count(&self.counts.database, 1);
        count(&self.counts.records, records.len() as u64);
        // ORDERING: Relaxed. If this thread still reads `is_full` as false, it does not allocate
        // the reserve. Then `grow` allocates it later.
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

    /// Makes records durable in the database and returns a snapshot. One of `records` is a
    /// superblock whose generation is `generation`.
    fn write_records(&self, records: &[(Key, Record)], generation: u64) -> io::Result<Snapshot> {
        let mut opened = self.opened.lock();
        if !opened.is_open() && !opened.is_lost() {
            // Ignore an error of the reopening. The database is closed then, so the call of `write`
            // below returns an error.
            let _ = self.open_again(&mut opened);
        }
        let mut done = opened.write(records, generation);
        for _ in 1..ATTEMPTS_MAX {
            let Err(error) = &done else { break };
            if opened.is_lost() {
                break;
            }
            if full_or_io(error) == Errno::NOSPC {
                // ORDERING: Relaxed. A thread that still reads `is_full` as false may use up the
                // space of the host, but not the space of the reserve that this commit uses.
                self.is_full.store(true, Ordering::Relaxed);
                self.devices.reserve.set_len(0)?;
            }
            // The database refuses all calls after an error, so reopen it. The reopened database
            // still has the last commit.
            done = match self.open_again(&mut opened) {
                Ok(()) => opened.write(records, generation),
                Err(error) => Err(error),
            };
        }
        done
    }

    /// Reopens the database at its last commit.
    fn open_again(&self, opened: &mut Opened) -> io::Result<()> {
        // Close the barrier, so that no thread reads while the database is reopened.
        let mut views = self.close();
        let nothing = Arc::new(Snapshot::closed());
        views.iter_mut().for_each(|view| view.base = nothing.clone());
        let base = Arc::new(opened.open_again()?);
        views.iter_mut().for_each(|view| view.base = base.clone());
        Ok(())
    }
}

impl Frozen {
    /// Adds the records of this transaction to the logged layer, and returns that layer. Without a
    /// logged layer, returns the layer of this transaction.
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

/// The right to commit, which only one thread has at a time. The drop of this guard lets the next
/// thread commit, also during a panic.
struct Turn<'a> {
    journal: &'a Journal,
    /// None if the commit has failed.
    done: Option<Done>,
    since: Instant,
}

/// The outcome of a turn.
enum Done {
    Nothing,
    /// All transactions up to this id are durable in the log or the database. With
    /// `Goal::InDatabase`, all of them are in the database.
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

    /// Commits in another thread while this thread has a handle with one change. Calls `end` before
    /// the handle is dropped. Returns the result of the commit, and true if the change exists after
    /// a remount.
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
            // Wait until the committing thread has checked for failures, and waits for the
            // transaction barrier.
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

    /// An operation aborts after the committing thread has checked for failures, but before it has
    /// closed the transaction barrier. The transaction of that operation must not be committed.
    #[test]
    fn abort_before_the_barrier_is_closed_stops_the_commit() {
        assert_eq!(commit_amid("abort", Journal::abort), (Err(Errno::IO), false));
    }

    #[test]
    fn control_operation_that_does_not_abort_is_committed() {
        assert_eq!(commit_amid("whole", |_| ()), (Ok(()), true));
    }
}
