//! Locks of fcntl(2) and flock(2) that hold in all mounts of a file system.
//!
//! The database has the locks (`functions/locks.sql`). A call takes or drops a lock with one
//! statement, and does not wait. The FUSE server repeats the request of a program that waits, every
//! 100 ms at the latest. Deadlocks are not detected, as in NFS.
//!
//! # Contents
//! A call that takes a lock first flushes the file. After it has the lock, the contents are loaded
//! again at their next use. A call that drops a lock flushes the file first. So a program that
//! reads, changes and writes a file under a lock sees all that other programs wrote under their
//! locks.
//!
//! A lock *protects* writes if it is a write lock that was taken through a file open for writing.
//! If the flush before its unlock fails, the owner keeps this lock. Otherwise a later flush would
//! write over the bytes of the next owner. Most programs do not repeat an unlock that failed. So
//! the mount repeats the unlock each second, and before the next lock of the file.
//!
//! # Lost locks
//! Locks end with their session (guarantee K.8 in `lib.rs`). A change under a lock must not be made
//! after the lock has ended, because another mount may have the lock by then. So a mount changes
//! the contents and attributes of a file with locks that protect writes only under the session of
//! these locks ([`Locks::session_of`]). After the death of that session:
//! - The dirty bytes are discarded at the next open or unlock. The next fsync(2) or close(2) of a
//!   writer reports that.
//! - Calls fail with `EIO` on files that were opened before the loss was known. They fail until the
//!   owners of the lost locks have dropped the locks or closed the file. Files that are opened
//!   later can be used immediately.
//!
//! If a lock that protects no writes is lost, calls fail with `EIO` only on the open files through
//! which it was taken. So a user who may only read a file cannot disturb its writers.
//!
//! Source: fcntl(2), flock(2); RFC 8881, section 8.4.2 (loss of locks).

use std::collections::{HashMap, HashSet};
use std::time::Instant;

use corewalk::{Errno, FileLock, LockKind, Node};
use corewalk_base::{Condvar, Mutex};

use crate::filesystem::{ClusterFs, writer};
use crate::meta::Meta;

const LOCK: &str = "SELECT * FROM cw_lock($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)";
const FIND: &str = "SELECT * FROM cw_find_lock($1, $2, $3, $4, $5, $6, $7)";
/// Stands for the session of locks that were taken under several sessions. No session has this
/// number, so these locks count as lost.
const NO_SESSION: i64 = 0;

/// The locks of fcntl(2) and flock(2) that the programs of this mount have.
#[derive(Debug, Default)]
pub(crate) struct Locks {
    /// No other lock is taken while this one is held.
    table: Mutex<Table>,
    /// Wakes the threads that wait for a [`Turn`].
    turn_ended: Condvar,
}

/// The right to take and drop the locks of one owner on one file. A call has the turn until the
/// database has answered. So an unlock that is late, or is sent again, drops no newer lock. Taken
/// before the lock of contents.
///
/// A process is one owner of fcntl(2) locks in all its files. A slow flush of one file must not
/// delay close(2) of the others, so each file has turns of its own.
struct Turn<'a> {
    locks: &'a Locks,
    of: (u64, Owner),
}

#[derive(Debug, Default)]
struct Table {
    /// The owners and their locks for each locked file. The key is the inode number of the file.
    files: HashMap<u64, HashMap<Owner, Held>>,
    /// Unlocks that have failed.
    unlocks: Vec<(u64, Owner, Bytes)>,
    /// The file (by inode number) and the owner of each [`Turn`] that a call has.
    busy: HashSet<(u64, Owner)>,
}

/// An owner of locks: its number from the client, and true if its locks are those of flock(2).
type Owner = (u64, bool);

/// The first and the last byte of a lock.
type Bytes = (u64, u64);

/// The locks of an owner on a file.
#[derive(Clone, Debug)]
struct Held {
    /// The session that has the locks.
    session: i64,
    /// A range that contains all locked bytes. Only the database knows the exact ranges.
    bytes: Bytes,
    /// True if one of the locks protects writes.
    protects: bool,
    /// The open files through which the locks were taken.
    handles: Vec<u64>,
    /// The first handle that may use the file again although the locks are lost. None if no handle
    /// may.
    reopened: Option<u64>,
}

impl Locks {
    /// Returns the session of the locks that protect the files `inos`. None if no locks protect
    /// them, and `NO_SESSION` if the locks have several sessions.
    pub(crate) fn session_of(&self, inos: &[u64]) -> Option<i64> {
        let table = self.table.lock();
        if table.files.is_empty() {
            return None;
        }
        let files = inos.iter().filter_map(|ino| table.files.get(ino));
        one_session(files.flat_map(HashMap::values).filter(|held| held.binds()))
    }

    /// Returns the session under which a new lock of `owner` on a file must be taken. None if any
    /// session will do.
    fn session_for(&self, ino: u64, owner: Owner) -> Option<i64> {
        let table = self.table.lock();
        let owners = table.files.get(&ino)?.iter();
        one_session(owners.filter(|(it, held)| **it == owner || held.binds()).map(|(_, held)| held))
    }

    /// Returns true if an open file must not be used, because locks on it were lost with an earlier
    /// session. `current` is the session of the mount.
    fn is_lost(&self, ino: u64, handle: u64, current: i64) -> bool {
        let table = self.table.lock();
        let Some(owners) = table.files.get(&ino) else { return false };
        owners.values().filter(|held| held.session != current).any(|held| {
            let is_older = held.reopened.is_none_or(|first| handle < first);
            held.protects && is_older || held.handles.contains(&handle)
        })
    }

    /// Makes a file whose locks are lost usable again for handles from `first` on. Returns true if
    /// the dirty bytes must be discarded, because a lost lock protected writes. The caller has
    /// locked the contents of the file.
    pub(crate) fn settle(&self, ino: u64, first: u64, current: i64) -> bool {
        let mut table = self.table.lock();
        let Some(owners) = table.files.get_mut(&ino) else { return false };
        let mut is_any = false;
        for held in owners.values_mut().filter(|held| held.binds() && held.session != current) {
            (held.reopened, is_any) = (Some(first), true);
        }
        is_any
    }

    fn held(&self, ino: u64, owner: Owner) -> Option<Held> {
        self.table.lock().files.get(&ino)?.get(&owner).cloned()
    }

    /// Notes that the owner of `lock` may have got this lock through the open file `node`.
    fn taken(&self, node: Node<'_>, lock: &FileLock, session: i64) {
        let (ino, owner, bytes) = (node.ino(), (lock.owner, lock.is_flock), (lock.start, lock.end));
        let mut table = self.table.lock();
        let held = table.files.entry(ino).or_default().entry(owner).or_insert_with(|| Held {
            session,
            bytes,
            protects: false,
            handles: Vec::new(),
            reopened: None,
        });
        if held.session != session {
            held.session = NO_SESSION;
        }
        held.bytes = (held.bytes.0.min(bytes.0), held.bytes.1.max(bytes.1));
        held.protects |= lock.kind == LockKind::Write && writer(node).is_some();
        if !held.handles.contains(&node.handle()) {
            held.handles.push(node.handle());
        }
    }

    /// Notes that `owner` has no lock of some bytes any more.
    fn dropped(&self, ino: u64, owner: Owner, (first, last): Bytes) {
        let are_all = |bytes: Bytes| bytes.0 >= first && bytes.1 <= last;
        let mut table = self.table.lock();
        let Some(owners) = table.files.get_mut(&ino) else { return };
        owners.retain(|it, held| *it != owner || !are_all(held.bytes));
        let (has_none, is_free) = (!owners.contains_key(&owner), owners.is_empty());
        table.unlocks.retain(|(at, it, unlock)| {
            (*at, *it) != (ino, owner) || !has_none && !are_all(*unlock)
        });
        if is_free {
            table.files.remove(&ino);
        }
    }

    /// Notes that an unlock has failed.
    fn unlock_later(&self, ino: u64, owner: Owner, bytes: Bytes) {
        let mut table = self.table.lock();
        let unlock = (ino, owner, bytes);
        if !table.unlocks.contains(&unlock) {
            table.unlocks.push(unlock);
        }
    }

    /// Returns the unlocks that have failed and that `is_wanted` selects.
    fn unlocks(&self, is_wanted: impl Fn(u64, Owner) -> bool) -> Vec<(u64, Owner, Bytes)> {
        let table = self.table.lock();
        let unlocks = table.unlocks.iter();
        unlocks.filter(|(ino, owner, _)| is_wanted(*ino, *owner)).copied().collect()
    }

    /// Waits until no other call takes or drops locks of `owner` on a file.
    fn turn(&self, ino: u64, owner: Owner) -> Turn<'_> {
        let mut table = self.table.lock();
        while !table.busy.insert((ino, owner)) {
            self.turn_ended.wait(&mut table);
        }
        Turn { locks: self, of: (ino, owner) }
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.locks.table.lock().busy.remove(&self.of);
        self.locks.turn_ended.notify_all();
    }
}

impl Held {
    /// Returns true if the file may only be changed under the session of these locks.
    fn binds(&self) -> bool {
        self.protects && self.reopened.is_none()
    }
}

/// Returns the session of some locks, or `NO_SESSION` if they have several.
fn one_session<'a>(mut locks: impl Iterator<Item = &'a Held>) -> Option<i64> {
    let first = locks.next()?.session;
    Some(if locks.all(|held| held.session == first) { first } else { NO_SESSION })
}

impl Meta {
    /// Fails with `EIO` if an open file must not be used, because locks are lost.
    pub(crate) fn check_locks(&self, ino: u64, handle: u64) -> Result<(), Errno> {
        match self.locks.is_lost(ino, handle, self.session.id()) {
            true => Err(Errno::IO),
            false => Ok(()),
        }
    }

    /// Returns true if the dirty bytes of a file must not be written, because the locks that
    /// protect them are lost.
    pub(crate) fn has_lost_locks(&self, ino: u64) -> bool {
        self.locks.session_of(&[ino]).is_some_and(|session| session != self.session.id())
    }
}

impl ClusterFs {
    /// Returns a lock of another owner that conflicts with `lock`. If that owner is on another
    /// mount, the process ID in the result is 0.
    pub(crate) fn find_lock(&self, ino: u64, lock: &FileLock) -> Result<Option<FileLock>, Errno> {
        let (owner, kind, first, last) = values(lock);
        let session = &self.meta.session;
        let reply = session.database.query(
            FIND,
            &[&session.id(), &(ino as i64), &owner, &lock.is_flock, &kind, &first, &last],
        )?;
        Ok(reply.rows.first().map(|row| FileLock {
            owner: 0,
            kind: if row.get("writes") { LockKind::Write } else { LockKind::Read },
            start: row.get::<_, i64>("first") as u64,
            end: row.get::<_, i64>("last") as u64,
            pid: row.get::<_, i64>("pid") as u32,
            is_flock: lock.is_flock,
        }))
    }

    pub(crate) fn change_lock(&self, node: Node<'_>, lock: &FileLock) -> Result<(), Errno> {
        if lock.kind == LockKind::Unlock {
            return self.drop_lock(node, lock);
        }
        let (ino, owner, locks) = (node.ino(), (lock.owner, lock.is_flock), &self.meta.locks);
        self.meta.check_locks(ino, node.handle())?;
        self.repeat_unlocks(Some(ino))?;
        let _turn = locks.turn(ino, owner);
        // An unlock may have failed while this call waited for the turn.
        self.repeat_unlocks_of(ino, owner)?;
        self.flush_named(ino)?;
        let (known, session) = (locks.held(ino, owner), self.meta.session.id());
        if known.as_ref().is_some_and(|held| held.session != session) {
            // An owner that has lost locks must drop them before it gets a new one.
            return Err(Errno::IO);
        }
        let bound = locks.session_for(ino, owner);
        let session = bound.unwrap_or(session);
        match self.send_lock(ino, lock, bound) {
            Ok(session) => locks.taken(node, lock, session),
            Err(Errno::AGAIN) => {
                // flock(2) drops the owner's old lock before it takes the new one. The database has
                // dropped the old lock, although it refused the new one.
                if let Some(known) = known.filter(|_| lock.is_flock) {
                    locks.dropped(ino, owner, known.bytes);
                }
                return Err(Errno::AGAIN);
            }
            // The database may have granted the lock, although the answer was lost.
            Err(errno) => {
                locks.taken(node, lock, session);
                return Err(errno);
            }
        }
        let refreshed = if self.is_nameless(ino) { Ok(()) } else { self.data.refresh(ino) };
        refreshed.inspect_err(|_| {
            // Ignore an error, because a failed unlock is sent again later.
            let _ = self.drop_lock_now(node, &FileLock { kind: LockKind::Unlock, ..*lock });
        })
    }

    /// Drops all locks of an owner on a file.
    pub(crate) fn drop_locks(
        &self,
        node: Node<'_>,
        owner: u64,
        is_flock: bool,
    ) -> Result<(), Errno> {
        self.drop_lock(node, &FileLock { is_flock, ..FileLock::new(owner, LockKind::Unlock) })
    }

    fn drop_lock(&self, node: Node<'_>, lock: &FileLock) -> Result<(), Errno> {
        let (ino, owner, locks) = (node.ino(), (lock.owner, lock.is_flock), &self.meta.locks);
        if locks.held(ino, owner).is_none() {
            return Ok(());
        }
        let _turn = locks.turn(ino, owner);
        self.drop_lock_now(node, lock)
    }

    /// Drops a lock. The caller has the [`Turn`] of the owner on this file.
    fn drop_lock_now(&self, node: Node<'_>, lock: &FileLock) -> Result<(), Errno> {
        let (ino, owner) = (node.ino(), (lock.owner, lock.is_flock));
        let Some(held) = self.meta.locks.held(ino, owner) else { return Ok(()) };
        match self.send_unlock(ino, lock, &held) {
            Ok(true) => Ok(()),
            Ok(false) => Err(Errno::IO),
            Err(errno) => {
                self.meta.locks.unlock_later(ino, owner, (lock.start, lock.end));
                Err(errno)
            }
        }
    }

    /// Sends failed unlocks again: those of the file `of`, or those of all files. On a soft mount,
    /// all of them together wait for the database at most as long as one call.
    pub(crate) fn repeat_unlocks(&self, of: Option<u64>) -> Result<(), Errno> {
        let (start, mut done) = (Instant::now(), Ok(()));
        for (ino, owner, _) in self.meta.locks.unlocks(|ino, _| of.is_none_or(|of| ino == of)) {
            let _turn = self.meta.locks.turn(ino, owner);
            done = done.and(self.repeat_unlocks_of(ino, owner));
            let left = self.meta.session.database.time_left(start, None);
            if left.is_some_and(|left| left.is_zero()) {
                break;
            }
        }
        done
    }

    /// Sends the failed unlocks of `owner` on a file again. The caller has the [`Turn`] of this
    /// owner on this file.
    fn repeat_unlocks_of(&self, ino: u64, owner: Owner) -> Result<(), Errno> {
        for (_, _, (first, last)) in self.meta.locks.unlocks(|at, it| (at, it) == (ino, owner)) {
            let Some(held) = self.meta.locks.held(ino, owner) else { continue };
            let unlock = FileLock::new(owner.0, LockKind::Unlock).with_range(first, last);
            self.send_unlock(ino, &FileLock { is_flock: owner.1, ..unlock }, &held)?;
        }
        Ok(())
    }

    /// Flushes a file, and then drops a lock on it. Returns false if the lock was lost.
    fn send_unlock(&self, ino: u64, lock: &FileLock, held: &Held) -> Result<bool, Errno> {
        let flushed = self.flush_named(ino);
        // Compare the sessions after the flush, because the flush may find that the old session is
        // dead.
        let is_lost = held.session != self.meta.session.id();
        if is_lost {
            self.data.revert(ino);
        } else if held.protects {
            // If the lock protects no writes, the dirty bytes are those of other programs. So the
            // unlock goes on even if their flush failed.
            flushed?;
        }
        // Send the unlock under any session. If the answer of a lock call was lost, the lock may
        // belong to the new session.
        self.send_lock(ino, lock, None)?;
        let owner = (lock.owner, lock.is_flock);
        self.meta.locks.dropped(ino, owner, (lock.start, lock.end));
        Ok(!is_lost)
    }

    /// Writes the dirty bytes of a file, unless it has no name. No other mount can open such a
    /// file.
    fn flush_named(&self, ino: u64) -> Result<(), Errno> {
        if self.is_nameless(ino) { Ok(()) } else { self.data.flush(ino, None) }
    }

    /// Takes or drops a lock in the database. If `bound` is given, does so only under that session.
    /// Returns the session of the call.
    fn send_lock(&self, ino: u64, lock: &FileLock, bound: Option<i64>) -> Result<i64, Errno> {
        let (owner, kind, first, last) = values(lock);
        let rows = self.meta.session.change(
            bound,
            LOCK,
            &[&(ino as i64), &owner, &lock.is_flock, &kind, &first, &last, &i64::from(lock.pid)],
        )?;
        rows.first().map(|row| row.get(1)).ok_or(Errno::IO)
    }
}

/// Returns the owner, the kind, the first and the last byte of a lock as parameters of the
/// database's functions.
fn values(lock: &FileLock) -> (i64, i32, i64, i64) {
    let kind = match lock.kind {
        LockKind::Unlock => 0,
        LockKind::Read => 1,
        LockKind::Write => 2,
    };
    (lock.owner as i64, kind, lock.start as i64, lock.end as i64)
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, mpsc};
    use std::time::Duration;

    use corewalk::FileKind;
    use corewalk_base::primitives::thread;

    use super::*;

    const WHOLE: Bytes = (0, FileLock::END_MAX);

    /// An open file. The lowest bit of its handle tells whether it is open for writing.
    fn opened(handle: u64) -> Node<'static> {
        Node::detached(1, FileKind::Regular).with_handle(handle)
    }

    fn lock(owner: u64, kind: LockKind, (first, last): Bytes) -> FileLock {
        FileLock::new(owner, kind).with_range(first, last)
    }

    #[test]
    fn turn_delays_the_same_owner_on_the_same_file_only() {
        let (locks, owner) = (Arc::new(Locks::default()), (7, false));
        let first = locks.turn(1, owner);
        let (sender, receiver) = mpsc::channel();
        let waiting = locks.clone();
        let thread = thread::spawn(move || {
            for of in [(2, owner), (1, (8, false)), (1, (7, true)), (1, owner)] {
                let _turn = waiting.turn(of.0, of.1);
                sender.send(of).unwrap();
            }
        });
        let next = || receiver.recv_timeout(Duration::from_secs(20));
        for of in [(2, owner), (1, (8, false)), (1, (7, true))] {
            assert_eq!(next(), Ok(of));
        }
        assert_eq!(receiver.try_recv(), Err(mpsc::TryRecvError::Empty));
        drop(first);
        assert_eq!(next(), Ok((1, owner)));
        thread.join().unwrap();
    }

    #[test]
    fn owner_is_known_until_it_drops_all_bytes() {
        let (locks, owner) = (Locks::default(), (7, false));
        locks.taken(opened(3), &lock(7, LockKind::Write, (10, 19)), 5);
        locks.taken(opened(3), &lock(7, LockKind::Write, (30, 39)), 5);
        assert_eq!((locks.session_of(&[2, 1]), locks.session_of(&[2])), (Some(5), None));
        locks.dropped(1, owner, (10, 38));
        assert!(locks.held(1, owner).is_some());
        locks.dropped(1, owner, (10, 39));
        assert!(locks.held(1, owner).is_none());
        assert!(locks.table.lock().files.is_empty());
        locks.taken(opened(3), &lock(7, LockKind::Write, (0, 0)), 5);
        locks.taken(opened(3), &lock(8, LockKind::Write, (1, 1)), 6);
        assert_eq!(locks.session_of(&[1]), Some(NO_SESSION));
    }

    #[test]
    fn unlock_that_failed_is_known_until_it_is_sent_or_the_owner_has_no_lock() {
        let (locks, owner) = (Locks::default(), (7, false));
        locks.taken(opened(3), &lock(7, LockKind::Write, (0, 99)), 5);
        for bytes in [(0, 9), (20, 29), (20, 29)] {
            locks.unlock_later(1, owner, bytes);
        }
        let count = |of| locks.unlocks(|ino, _| ino == of).len();
        assert_eq!((count(1), count(2)), (2, 0));
        locks.dropped(1, owner, (0, 9));
        assert_eq!(locks.unlocks(|_, _| true), [(1, owner, (20, 29))]);
        locks.dropped(1, owner, (0, 99));
        assert_eq!(locks.unlocks(|_, _| true), []);
    }

    #[test]
    fn lost_lock_disturbs_the_files_that_it_protects_until_they_are_opened_again() {
        let locks = Locks::default();
        let is_lost = |handle| locks.is_lost(1, handle, 6);
        locks.taken(opened(4), &lock(7, LockKind::Write, WHOLE), 5);
        locks.taken(opened(7), &lock(8, LockKind::Read, WHOLE), 5);
        assert_eq!([3, 4, 7].map(is_lost), [false, true, true]);
        assert_eq!(locks.session_of(&[1]), None);
        locks.taken(opened(7), &lock(8, LockKind::Write, WHOLE), 5);
        assert_eq!([3, 11].map(is_lost), [true, true]);
        assert_eq!((locks.settle(1, 10, 6), locks.settle(1, 12, 6)), (true, false));
        assert_eq!([3, 4, 7, 11].map(is_lost), [true, true, true, false]);
        assert_eq!(locks.session_of(&[1]), None);
        assert_eq!(locks.session_for(1, (8, false)), Some(5));
    }
}
