//! Commits: who makes them, and how a transaction becomes durable.
//!
//! One thread at a time commits, for all who wait. It freezes the running layer, and then either appends
//! it to the log or writes everything to the database; see the module above.
//!
//! # Which of the two
//! The database takes a transaction if the log cannot: its records are many, the log is full, its bytes
//! of files cannot be read, or they are many and J.6 is against a sync of them alone, or a write or a sync of
//! the log fails. It also takes one when time has come, when the store is closed, while the host is full, and
//! when a read of the database has failed: only to open it again helps.
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
use crate::device::errno_of;
use crate::layer::{Layer, Record};
use crate::record::{Key, SuperRecord};

/// The most bytes of records, about, that one entry of the log has.
const LOGGED_RECORDS_MAX: u64 = 256 << 10;
/// How often records are written to the database at most: it has failed to read before, it has no room, and
/// then it has some.
const ATTEMPTS_MAX: u32 = 3;

/// How far what is committed must get.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Goal {
    Durable,
    InDatabase,
}

/// A transaction that is closed.
struct Frozen {
    tid: u64,
    layer: Arc<Layer>,
    /// What is durable, and not in the database.
    logged: Option<Arc<Layer>>,
    /// Where it wrote to files; None for much.
    written: Option<Vec<(u64, u32)>>,
    /// Only to open the database again helps.
    is_sick: bool,
}

impl Journal {
    /// Makes bytes durable that were written to files in the transaction `tid` or before.
    ///
    /// # Errors
    /// `EIO` if that failed, now or ever: what it is about may be lost.
    pub(crate) fn sync_data(&self, tid: u64) -> Result<(), Errno> {
        let state = self.state.lock();
        let (is_committed, has_logged_data) = (state.committed >= tid, state.has_logged_data);
        drop(state);
        if is_committed {
            return self.check();
        }
        // J.6: a commit that has the log take data says so before it reads any, so it reads no older one.
        if self.dirty.is_large() && !has_logged_data {
            return self.sync_data_once().map_err(|_| Errno::IO);
        }
        self.commit_up_to(tid)
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
        count(&self.counts.data_syncs, 1);
        self.devices.data.sync().inspect_err(|_| self.fail())
    }

    /// Makes all that happened before this call durable.
    ///
    /// # Errors
    /// `EIO` if a commit failed, now or ever.
    pub(crate) fn commit_running(&self) -> Result<(), Errno> {
        self.heal();
        let view = self.look();
        let tid = view.tid - u64::from(!view.running.has_begun());
        drop(view);
        self.check()?;
        self.commit_up_to(tid)
    }

    /// Puts all that happened before this call into the database, so that the log is empty.
    ///
    /// # Errors
    /// `EIO` if a commit failed, now or ever.
    pub(crate) fn checkpoint(&self) -> Result<(), Errno> {
        self.heal();
        let view = self.look();
        let tid = view.tid - u64::from(!view.running.has_begun());
        drop(view);
        self.check()?;
        self.commit_with(&mut self.state.lock(), tid, Goal::InDatabase)
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

    /// Opens the database again if a read of it has failed: nothing else helps. If that fails too, it is as
    /// before.
    fn heal(&self) {
        if !self.look().base.is_sick() {
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
            // It may be well by now. What writes of its have lost, to open it again does not bring back.
            if self.look().base.is_sick() && !opened.is_lost() {
                // Nothing is lost by that: the last commit, and what is above it.
                let _ = self.open_again(&mut opened);
                if opened.is_lost() {
                    // It has gone back, or may: what was confirmed is not to be seen as something else.
                    self.fail();
                }
            }
        });
    }

    /// Freezes the running transaction and makes it durable; returns its number and whether it is in the
    /// database, None if that failed.
    fn commit(&self, goal: Goal) -> Option<(u64, Goal)> {
        let frozen = self.freeze();
        // What was aborted before the gate closed is half an operation.
        self.check().ok()?;
        // ORDERING: Relaxed. See `grow`. What the log has needs room of the host later, at once.
        let is_full = self.is_full.load(Ordering::Relaxed);
        let is_logged = goal == Goal::Durable && !frozen.is_sick && !is_full;
        let done = match is_logged.then(|| self.append(&frozen)) {
            Some(Ok(true)) => {
                self.keep_logged(&frozen);
                // What was begun may be in the log by now: it is still to go to the database.
                self.poke();
                Ok(Goal::Durable)
            }
            Some(Err(error)) => Err(error),
            _ => self.write_all(&frozen).map(|()| Goal::InDatabase),
        };
        let Ok(reached) = done else {
            // The frozen layer stays in the views, for reads.
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
            is_sick: first.base.is_sick(),
        };
        for view in &mut views {
            view.running = next.clone();
            view.frozen = Some(frozen.layer.clone());
            view.tid = frozen.tid + 1;
        }
        frozen
    }

    fn close(&self) -> Vec<RwLockWriteGuard<'_, View>> {
        self.gate.iter().map(|shard| shard.write()).collect()
    }

    /// Appends a transaction to the log; returns false if it is for the database.
    ///
    /// # Errors
    /// That of a sync of the data device, after which nothing helps.
    fn append(&self, frozen: &Frozen) -> io::Result<bool> {
        if frozen.layer.bytes() > LOGGED_RECORDS_MAX {
            return Ok(false);
        }
        let ranges = match &frozen.written {
            Some(ranges) => {
                // Before any byte is read; see `sync_data`.
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
            if entry.put_data((offset, len), |bytes| self.read_data(offset, bytes)).is_err() {
                return Ok(false);
            }
        }
        let bytes = match entry.append() {
            Ok(Some(bytes)) => bytes,
            Ok(None) => return Ok(false),
            Err(_) => {
                // Nobody was told of this entry, and the log takes nothing more until it is void.
                count(&self.counts.log_failures, 1);
                return Ok(false);
            }
        };
        count(&self.counts.logged, 1);
        count(&self.counts.logged_bytes, bytes);
        Ok(true)
    }

    /// Puts the records of a transaction that the log has into the logged layer.
    fn keep_logged(&self, frozen: &Frozen) {
        let logged = frozen.all();
        for shard in &self.gate {
            // One after the other: the logged layer says what the frozen one does.
            let mut view = shard.write();
            view.logged = Some(logged.clone());
            view.frozen = None;
        }
    }

    /// Writes everything to the database, and begins the log anew.
    fn write_all(&self, frozen: &Frozen) -> io::Result<()> {
        self.sync_data_once()?;
        let mut log = self.log.lock();
        let superblock = log.next_superblock();
        let mut records = frozen.all().collect_sorted();
        // Also if the log is empty: what comes next into it is told from what came before.
        records.insert(0, super_record(superblock));
        let base = Arc::new(self.write_records(&records, superblock.generation)?);
        log.restart();
        drop(log);
        for shard in &self.gate {
            // One after the other: the new base says what the old one and the layers do.
            let mut view = shard.write();
            view.base = base.clone();
            (view.frozen, view.logged) = (None, None);
            view.based = frozen.tid;
        }
        count(&self.counts.database, 1);
        count(&self.counts.records, records.len() as u64);
        // ORDERING: Relaxed. See `grow`.
        if self.is_full.load(Ordering::Relaxed) {
            self.renew_reserve();
        }
        Ok(())
    }

    /// Makes a superblock durable that differs from the last one in `log_bytes` only.
    pub(super) fn write_super(&self, superblock: SuperRecord) -> io::Result<()> {
        let snapshot = self.write_records(&[super_record(superblock)], superblock.generation)?;
        let base = Arc::new(snapshot);
        for shard in &self.gate {
            shard.write().base = base.clone();
        }
        Ok(())
    }

    /// Makes records durable in the database, and returns that as it is then. They have a superblock of
    /// `generation`.
    fn write_records(&self, records: &[(Key, Record)], generation: u64) -> io::Result<Snapshot> {
        let mut opened = self.opened.lock();
        if !opened.is_open() && !opened.is_lost() {
            // What it says now it says again below.
            let _ = self.open_again(&mut opened);
        }
        let mut done = opened.write(records, generation);
        for _ in 1..ATTEMPTS_MAX {
            let Err(error) = &done else { break };
            if opened.is_lost() {
                break;
            }
            if errno_of(error) == Errno::NOSPC {
                // ORDERING: Relaxed. See `grow`.
                self.is_full.store(true, Ordering::Relaxed);
                self.devices.reserve.set_len(0)?;
            }
            // It refuses everything now, whatever the reason was; nothing is lost by that.
            done = match self.open_again(&mut opened) {
                Ok(()) => opened.write(records, generation),
                Err(error) => Err(error),
            };
        }
        done
    }

    /// Opens the database as the last commit left it.
    fn open_again(&self, opened: &mut Opened) -> io::Result<()> {
        // Nobody may read from the database while it is opened again.
        let mut views = self.close();
        let nothing = Arc::new(Snapshot::closed());
        views.iter_mut().for_each(|view| view.base = nothing.clone());
        let base = Arc::new(opened.open_again()?);
        views.iter_mut().for_each(|view| view.base = base.clone());
        Ok(())
    }
}

impl Frozen {
    /// Returns the logged layer, with the records of this transaction.
    fn all(&self) -> Arc<Layer> {
        let Some(logged) = &self.logged else { return self.layer.clone() };
        logged.absorb(&self.layer);
        logged.clone()
    }
}

/// Returns the record of a superblock.
fn super_record(superblock: SuperRecord) -> (Key, Record) {
    (Key::SUPER, Some(superblock.encode().into()))
}

fn count(counter: &AtomicU64, by: u64) {
    // ORDERING: Relaxed. A statistic.
    counter.fetch_add(by, Ordering::Relaxed);
}

/// The turn of one thread to commit, which ends also with a panic.
struct Turn<'a> {
    journal: &'a Journal,
    /// None if that has failed.
    done: Option<Done>,
    since: Instant,
}

/// What came of a turn.
enum Done {
    Nothing,
    /// A transaction, and those before it, got so far.
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

    /// Lets a thread commit while an operation holds the gate, which ends as `end` says; returns what the
    /// commit said, and what is left of the operation when the store is mounted again.
    fn commit_amid(name: &str, end: impl FnOnce(&Journal)) -> (Result<(), Errno>, bool) {
        let path = std::env::temp_dir().join(format!("commit-{}-{name}", std::process::id()));
        let log_bytes = 64 << 10;
        let options = StoreOptions { commit_every: None, log_bytes, ..StoreOptions::default() };
        let store = Store::open(&path, &options).unwrap();
        let (key, journal) = (Key::of(Kind::Orphan, 99), &*store.journal);
        let done = thread::scope(|scope| {
            let pass = journal.change().unwrap();
            let tid = pass.tid;
            let committer = scope.spawn(move || journal.commit_up_to(tid));
            // It has looked whether something has failed, and closes the gate, or waits for it.
            while !journal.state.lock().is_committing {
                thread::yield_now();
            }
            pass.put(key, b"");
            end(journal);
            drop(pass);
            committer.join().unwrap()
        });
        drop(store);
        let store = Store::open(&path, &options).unwrap();
        let is_there = store.journal.look().get(&key).unwrap().is_some();
        drop(store);
        std::fs::remove_dir_all(&path).unwrap();
        (done, is_there)
    }

    /// An operation that fails when half of it is done, after the committer has looked and before it has
    /// closed the gate, is not committed.
    #[test]
    fn abort_before_the_gate_is_closed_stops_the_commit() {
        assert_eq!(commit_amid("abort", Journal::abort), (Err(Errno::IO), false));
    }

    #[test]
    fn control_operation_that_does_not_abort_is_committed() {
        assert_eq!(commit_amid("whole", |_| ()), (Ok(()), true));
    }
}
