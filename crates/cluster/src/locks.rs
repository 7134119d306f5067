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
//! # Lost locks
//! Locks end with their session (K.8). A change under a lock must not be made after the lock has
//! ended, because another mount may have the lock by then. So a mount changes the contents and
//! attributes of a file that it has locked only under the session of the locks
//! ([`Locks::session_of`]). If that session is dead, the file gives `EIO` until all owners of its
//! locks have dropped them, or have closed the file. Bytes that were not flushed are lost. The next
//! fsync(2) or close(2) reports that too.
//!
//! Source: fcntl(2), flock(2); RFC 8881, section 8.4.2 (loss of locks).

use std::collections::HashMap;

use corewalk::{Errno, FileLock, FileSystem as _, LockKind, Node};
use corewalk_base::Mutex;

use crate::filesystem::ClusterFs;

const LOCK: &str = "SELECT * FROM cw_lock($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)";
const FIND: &str = "SELECT * FROM cw_find_lock($1, $2, $3, $4, $5, $6, $7)";
/// Stands for locks that were taken under several sessions, so that some of them are lost.
const NO_SESSION: i64 = 0;

/// The owners of the locks that this mount has.
#[derive(Debug, Default)]
pub(crate) struct Locks {
    /// The locked files by inode number. No other lock is taken while this one is held.
    files: Mutex<HashMap<u64, Held>>,
}

/// The locks of this mount on a file.
#[derive(Debug)]
struct Held {
    session: i64,
    /// The first and the last byte that an owner may have locked. Only the database has the exact
    /// ranges.
    owners: HashMap<Owner, (u64, u64)>,
}

/// The client's number of an owner, and whether its locks are those of flock(2).
type Owner = (u64, bool);

impl Locks {
    /// Returns the session of this mount's locks on one of some files, if there are any.
    pub(crate) fn session_of(&self, inos: &[u64]) -> Option<i64> {
        let files = self.files.lock();
        if files.is_empty() {
            return None;
        }
        inos.iter().find_map(|ino| files.get(ino)).map(|held| held.session)
    }

    fn has(&self, ino: u64, owner: Owner) -> bool {
        self.files.lock().get(&ino).is_some_and(|held| held.owners.contains_key(&owner))
    }

    /// Notes that `owner` may have a lock.
    fn taken(&self, ino: u64, owner: Owner, (first, last): (u64, u64), session: i64) {
        let mut files = self.files.lock();
        let held = files.entry(ino).or_insert_with(|| Held { session, owners: HashMap::new() });
        if held.session != session {
            held.session = NO_SESSION;
        }
        let range = held.owners.entry(owner).or_insert((first, last));
        *range = (range.0.min(first), range.1.max(last));
    }

    /// Notes that `owner` has no lock of some bytes any more. Returns true if no owner may have a
    /// lock on the file then.
    fn dropped(&self, ino: u64, owner: Owner, (first, last): (u64, u64)) -> bool {
        let mut files = self.files.lock();
        let Some(held) = files.get_mut(&ino) else { return true };
        held.owners.retain(|other, range| *other != owner || range.0 < first || range.1 > last);
        let is_free = held.owners.is_empty();
        if is_free {
            files.remove(&ino);
        }
        is_free
    }
}

impl ClusterFs {
    /// Fails with `EIO` if the session that had the locks on a file is dead.
    pub(crate) fn check_locks(&self, ino: u64) -> Result<(), Errno> {
        match self.meta.locks.session_of(&[ino]) {
            Some(session) if session != self.meta.session.id() => Err(Errno::IO),
            _ => Ok(()),
        }
    }

    /// Returns a lock of another owner that conflicts with `lock`. Processes of other mounts have
    /// the number 0.
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
        let (ino, locks) = (node.ino(), &self.meta.locks);
        let (owner, range) = ((lock.owner, lock.is_flock), (lock.start, lock.end));
        self.flush(node)?;
        // An owner whose earlier locks are lost must drop them before it gets new ones.
        let bound = locks.session_of(&[ino]);
        let session = bound.unwrap_or_else(|| self.meta.session.id());
        match self.send_lock(ino, lock, bound) {
            Ok(session) => locks.taken(ino, owner, range, session),
            Err(Errno::AGAIN) => {
                // Even then the database has dropped the owner's old lock of flock(2).
                if lock.is_flock {
                    locks.dropped(ino, owner, range);
                }
                return Err(Errno::AGAIN);
            }
            // The database may have granted the lock, although the answer was lost.
            Err(errno) => {
                locks.taken(ino, owner, range, session);
                return Err(errno);
            }
        }
        let refreshed = if self.is_nameless(ino) { Ok(()) } else { self.data.refresh(ino) };
        refreshed.inspect_err(|_| {
            let unlock = FileLock { kind: LockKind::Unlock, ..*lock };
            if let Err(errno) = self.drop_lock(node, &unlock) {
                log::warn!("inode {ino}: a lock stays until its owner closes the file: {errno}");
            }
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
        let (ino, owner) = (node.ino(), (lock.owner, lock.is_flock));
        if !self.meta.locks.has(ino, owner) {
            return Ok(());
        }
        let flushed = self.flush(node);
        if flushed.is_err() {
            // Another mount may have the lock when a later flush would write these bytes.
            self.data.revert(ino);
        }
        self.send_lock(ino, lock, None)?;
        self.meta.locks.dropped(ino, owner, (lock.start, lock.end));
        flushed
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

/// Returns the owner, the kind, the first and the last byte of a lock, as the database takes them.
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
    use super::*;

    #[test]
    fn owner_is_known_until_it_drops_all_bytes() {
        let locks = Locks::default();
        locks.taken(1, (7, false), (10, 19), 3);
        locks.taken(1, (7, false), (30, 39), 3);
        locks.taken(1, (7, true), (0, 9), 3);
        assert_eq!((locks.session_of(&[2, 1]), locks.session_of(&[2])), (Some(3), None));
        assert!(!locks.dropped(1, (7, false), (10, 38)));
        assert!(locks.has(1, (7, false)));
        assert!(!locks.dropped(1, (7, false), (10, 39)));
        assert!(!locks.has(1, (7, false)));
        locks.taken(1, (8, false), (0, 0), 4);
        assert_eq!(locks.session_of(&[1]), Some(NO_SESSION));
        assert!(!locks.dropped(1, (8, false), (0, 0)));
        assert!(locks.dropped(1, (7, true), (0, u64::MAX)));
        assert_eq!(locks.session_of(&[1]), None);
    }
}
