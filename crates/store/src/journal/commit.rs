//! Commits: how a transaction becomes durable.
//!
//! One thread at a time commits, on behalf of all waiting threads. It freezes the *layer* (the
//! records in memory) of the running transaction, which then takes no more changes. It appends that
//! layer to the log, or writes it to the database together with the records that are only in the
//! log.
//!
//! # Log or database
//! A transaction goes to the database in these cases:
//! - It has too many records for the log, or the log has no space.
//! - File data cannot be read, or a write or sync of the log fails.
//! - It has written much file data, and the log holds older file data. A replay of the log would
//!   write the older data over the new (guarantee J.6 of `journal`).
//! - The commit is a periodic one, or the last one before the store is closed.
//! - The host is full.
//! - A read of the database has failed, so the database must be reopened.
//!
//! # Shared commits
//! A commit serves all threads that wait for it. So a thread first waits for others to join before
//! it starts a commit. The wait has three limits:
//! - It ends when as many threads want a commit as at the end of the last commit.
//! - It takes at most half as long as the last commit took.
//! - It takes at most [`PATIENCE_MAX`].
//!
//! Without the wait for other threads, two threads that sync in turn would never share a commit.
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

const LOGGED_RECORDS_MAX: u64 = 256 << 10;
/// Maximum number of attempts to write a transaction to the database. The first attempt may fail
/// because a read has failed before, and the second because the host is full. The third can use the
/// space of the reserve.
const ATTEMPTS_MAX: u32 = 3;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Goal {
    Durable,
    InDatabase,
}

struct Frozen {
    tid: u64,
    layer: Arc<Layer>,
    logged: Option<Arc<Layer>>,
    /// The ranges of the data device that the transaction has written. The field is None if the
    /// ranges are too long or too many for the log.
    written: Option<Vec<(u64, u32)>>,
    /// If true, this commit must reopen the database.
    has_failed_read: bool,
}

impl Journal {
    /// Makes the file data that was written up to the transaction `tid` durable. `EIO` after a
    /// failed commit, because the data may be lost then.
    pub(crate) fn sync_data(&self, tid: u64) -> Result<(), Errno> {
        let state = self.state.lock();
        let (is_committed, has_logged_data) = (state.committed >= tid, state.has_logged_data);
        drop(state);
        if is_committed {
            return self.check();
        }
        // Guarantee J.6: while the log holds older data of the files, a replay would write it over
        // newly synced data. So only a commit may sync.
        //
        // A commit sets `has_logged_data` before it reads file data for the log. If it is still
        // false, later log entries are at least as new as the synced data.
        if self.dirty.is_large() && !has_logged_data {
            return self.sync_data_once().map_err(|_| Errno::IO);
        }
        self.commit_up_to(tid)
    }

    fn sync_data_once(&self) -> io::Result<()> {
        let _turn = self.data_sync.lock();
        // The host reports a failed write only once, so a second sync could wrongly succeed.
        if self.check().is_err() {
            return Err(io::ErrorKind::Other.into());
        }
        // ORDERING: Relaxed. A sync must cover each write that ended before the call of the sync,
        // and `write_data` sets the flag by then. The file's data lock, the transaction barrier or
        // the order in the caller's thread makes the store visible.
        if !self.is_data_dirty.swap(false, Ordering::Relaxed) {
            return Ok(());
        }
        count(&self.counts.data_syncs, 1);
        self.devices.data.sync().inspect_err(|_| self.fail())
    }

    pub(crate) fn commit_running(&self) -> Result<(), Errno> {
        self.reopen_if_failed();
        let view = self.view();
        let tid = view.tid - u64::from(!view.running.has_begun());
        drop(view);
        self.check()?;
        self.commit_up_to(tid)
    }

    pub(crate) fn checkpoint(&self) -> Result<(), Errno> {
        self.reopen_if_failed();
        let view = self.view();
        let tid = view.tid - u64::from(!view.running.has_begun());
        drop(view);
        self.check()?;
        self.commit_with(&mut self.state.lock(), tid, Goal::InDatabase)
    }

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
            // Another thread may have reopened the database. If its device has lost writes, it must
            // stay closed.
            if self.view().base.has_failed_read() && !opened.is_lost() {
                // No record is lost: all transactions that the database lacks are still in memory.
                // After an error, a later call tries again.
                let _ = self.open_again(&mut opened);
                if opened.is_lost() {
                    // The reopened database may be older than the last commit, so it must not be
                    // read.
                    self.fail();
                }
            }
        });
    }

    /// Returns None on failure.
    fn commit(&self, goal: Goal) -> Option<(u64, Goal)> {
        let frozen = self.freeze();
        // An operation that has failed halfway aborts the journal. `freeze` has waited for all
        // operations, so no abort is missed here.
        self.check().ok()?;
        // ORDERING: Relaxed. On a full host the log is not used, since the database might never get
        // space for its transactions. If the load misses a store in `write_records`, a later commit
        // can still use the reserve (space for commits).
        let is_full = self.is_full.load(Ordering::Relaxed);
        let is_logged = goal == Goal::Durable && !frozen.has_failed_read && !is_full;
        let done = match is_logged.then(|| self.append(&frozen)) {
            Some(Ok(true)) => {
                self.keep_logged(&frozen);
                // The committer writes the transaction from the log to the database later.
                self.poke();
                Ok(Goal::Durable)
            }
            Some(Err(error)) => Err(error),
            _ => self.write_all(&frozen).map(|()| Goal::InDatabase),
        };
        let Ok(reached) = done else {
            // Keep the records of the failed transaction in `View::frozen`, so that reads still
            // find them.
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

    fn append(&self, frozen: &Frozen) -> io::Result<bool> {
        if frozen.layer.bytes() > LOGGED_RECORDS_MAX {
            return Ok(false);
        }
        let ranges = match &frozen.written {
            Some(ranges) => {
                // Set `has_logged_data` before the file data is read. Otherwise `sync_data` could
                // sync newer data meanwhile, and a replay would write the older bytes over it
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
                // The log takes no more entries until a commit to the database has made all its
                // entries void.
                count(&self.counts.log_failures, 1);
                return Ok(false);
            }
        };
        count(&self.counts.logged, 1);
        count(&self.counts.logged_bytes, bytes);
        Ok(true)
    }

    fn keep_logged(&self, frozen: &Frozen) {
        let logged = frozen.all();
        for shard in &self.barrier {
            // The views may be updated one after the other, because old and new ones show the same
            // records: either in `frozen` or in `logged`.
            let mut view = shard.write();
            view.logged = Some(logged.clone());
            view.frozen = None;
        }
    }

    fn write_all(&self, frozen: &Frozen) -> io::Result<()> {
        self.sync_data_once()?;
        let mut log = self.log.lock();
        let superblock = log.next_superblock();
        let mut records = frozen.all().collect_sorted();
        // Increment the generation even if the log is empty: old entries that are still on disk
        // could otherwise look valid.
        records.insert(0, super_record(superblock));
        let base = Arc::new(self.write_records(&records, superblock.generation)?);
        log.restart();
        drop(log);
        for shard in &self.barrier {
            // The views may be updated one after the other, because old and new ones show the same
            // records. They show them either in two layers or in the snapshot of the database.
            let mut view = shard.write();
            view.base = base.clone();
            (view.frozen, view.logged) = (None, None);
            view.based = frozen.tid;
        }
        count(&self.counts.database, 1);
        count(&self.counts.records, records.len() as u64);
        // ORDERING: Relaxed. If the load misses the store of `true` in `write_records`, `grow`
        // allocates the reserve later.
        if self.is_full.load(Ordering::Relaxed) {
            self.renew_reserve();
        }
        Ok(())
    }

    pub(super) fn write_super(&self, superblock: SuperRecord) -> io::Result<()> {
        let snapshot = self.write_records(&[super_record(superblock)], superblock.generation)?;
        let base = Arc::new(snapshot);
        for shard in &self.barrier {
            shard.write().base = base.clone();
        }
        Ok(())
    }

    fn write_records(&self, records: &[(Key, Record)], generation: u64) -> io::Result<Snapshot> {
        let mut opened = self.opened.lock();
        if !opened.is_open() && !opened.is_lost() {
            // If the database cannot be reopened, `write` below fails.
            let _ = self.open_again(&mut opened);
        }
        let mut done = opened.write(records, generation);
        for _ in 1..ATTEMPTS_MAX {
            let Err(error) = &done else { break };
            if opened.is_lost() {
                break;
            }
            if full_or_io(error) == Errno::NOSPC {
                // ORDERING: Relaxed. A thread whose load in `grow` misses the value may use up the
                // free space of the host. It cannot use the space of the reserve, which the commit
                // is about to use.
                self.is_full.store(true, Ordering::Relaxed);
                self.devices.reserve.set_len(0)?;
            }
            // After an error, the database refuses all calls until it is reopened.
            done = match self.open_again(&mut opened) {
                Ok(()) => opened.write(records, generation),
                Err(error) => Err(error),
            };
        }
        done
    }

    fn open_again(&self, opened: &mut Opened) -> io::Result<()> {
        // No thread may read the database while it is reopened.
        let mut views = self.close();
        let nothing = Arc::new(Snapshot::closed());
        views.iter_mut().for_each(|view| view.base = nothing.clone());
        let base = Arc::new(opened.open_again()?);
        views.iter_mut().for_each(|view| view.base = base.clone());
        Ok(())
    }
}

impl Frozen {
    fn all(&self) -> Arc<Layer> {
        let Some(logged) = &self.logged else { return self.layer.clone() };
        logged.absorb(&self.layer);
        logged.clone()
    }
}

fn super_record(superblock: SuperRecord) -> (Key, Record) {
    (Key::SUPER, Some(superblock.encode().into()))
}

fn count(counter: &AtomicU64, by: u64) {
    // ORDERING: Relaxed. A statistic; no data is published through it.
    counter.fetch_add(by, Ordering::Relaxed);
}

/// The right to commit. Its drop, even by a panic, lets the next thread commit.
struct Turn<'a> {
    journal: &'a Journal,
    done: Option<Done>,
    since: Instant,
}

enum Done {
    Nothing,
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

    /// Starts a commit while an operation still runs. The operation then calls `end`, and ends.
    /// Returns the result of the commit, and whether the operation's change survives a remount.
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

    /// An operation aborts the journal while a commit already waits for the operation. The commit
    /// must then fail.
    #[test]
    fn abort_before_the_barrier_is_closed_stops_the_commit() {
        assert_eq!(commit_amid("abort", Journal::abort), (Err(Errno::IO), false));
    }

    #[test]
    fn control_operation_that_does_not_abort_is_committed() {
        assert_eq!(commit_amid("whole", |_| ()), (Ok(()), true));
    }
}
