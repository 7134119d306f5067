//! The session of a mount: its lease time, its request slots, its inode numbers.
//!
//! A session renews every third of the lease. It counts the lease from its own clock before it
//! sent the renewal, less a margin, and answers nothing from a cache after that (K.1). The clock is
//! CLOCK_BOOTTIME, which goes on while the machine sleeps.
//!
//! # Changes
//! [`Session::change`] sends a change with a request slot. A slot has one change at a time. A lost
//! answer is asked for again with the same sequence number, and the database returns the stored
//! result (K.9).
//!
//! # Death
//! A session that the database calls dead drops every cache and opens a new session (K.8). Dead
//! means that the slot does not know the change, so the old session never made it and never will.
//! The change is then sent again under the new session. After ten minutes the database has
//! forgotten the slots of a dead session. A change without an answer then fails with `EIO`.
//!
//! # Other mounts
//! A change that concerns leases of others waits until they have let go of them
//! ([`crate::intents`]). While the session is the only one, the kernel may keep any answer
//! ([`Session::kernel_time`]).
//!
//! # Locks
//! - `current`: the session, protected by a read-write lock. Readers hold it for an instant.
//! - `slots`, `numbers`: leaves.
//! - `reopening`: held while a new session is opened. Taken before the others.

use std::sync::{Arc, Weak};
use std::time::Duration;

use corewalk::Errno;
use corewalk_base::primitives::thread;
use corewalk_base::{Mutex, RwLock};
use rustix::time::{ClockId, clock_gettime};
use tokio_postgres::Row;

use crate::connection::{Database, Param};
use crate::intents::Post;
use crate::options::Flaws;

/// The part of the lease that is left unused, so that clocks may run at different speeds.
const MARGIN_PERCENT: u32 = 10;
/// How many inode numbers the database gives out at a time.
const INO_RANGE: u64 = 4096;
/// How long a change that must wait sleeps before it is sent again.
const PAUSE: Duration = Duration::from_millis(50);
/// The first and the longest time after which a change is sent again without the news that all
/// holders have let go of their leases.
const POLLS: (Duration, Duration) = (Duration::from_millis(100), Duration::from_millis(400));
/// How many mounts may use a file system at once.
const MOUNTS_MAX: i32 = 1000;

/// How often a new session is tried if the database does not answer.
const REOPEN_TRIES: u32 = 20;

/// Codes of results that are no errno. `functions/results.sql` lists them.
mod code {
    pub(super) const CONTENDED: i32 = -1;
    pub(super) const DEAD: i32 = -2;
    pub(super) const RESTARTED: i32 = -3;
    pub(super) const GRACE: i32 = -4;
    pub(super) const MOVED: i32 = -5;
    pub(super) const FORGOTTEN: i32 = -7;
}

const OPEN: &str = "SELECT * FROM cw_open_session($1, $2, $3, $4)";
const RENEW: &str = "SELECT * FROM cw_renew($1, $2)";
const INOS: &str = "SELECT cw_inos()";
const END: &str = "SELECT cw_end_session($1)";

/// Why a mount cannot open a session.
#[derive(Debug)]
pub(crate) enum Refusal {
    Database(tokio_postgres::Error),
    /// There is no file system in the database.
    NoFormat,
    Busy(Holder),
}

/// The facts that the database has stored about a file system.
#[derive(Debug)]
pub(crate) struct Stored {
    /// The place for data.
    pub(crate) data: String,
    /// The identity of the file system, which no other file system has.
    pub(crate) id: String,
}

/// A mount that uses a file system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// The name of its machine.
    pub host: String,
    /// Its process.
    pub pid: i32,
    /// When it was mounted.
    pub since: String,
}

/// The caches that must not outlive a lease.
pub(crate) trait Caches: Send + Sync {
    /// Drops everything that was cached under a lease.
    fn drop_all(&self);
    /// Drops what was cached under the leases of some directories.
    fn drop_directories(&self, dirs: &[u64]);
}

#[derive(Clone, Copy, Debug)]
struct Current {
    id: i64,
    /// CLOCK_BOOTTIME up to which caches may be used.
    deadline: Duration,
    /// The number of live sessions, as the last renewal has told.
    sessions: i64,
    /// CLOCK_BOOTTIME up to which the kernel may keep answers.
    kernel_deadline: Duration,
}

/// The request slots of a session.
#[derive(Debug, Default)]
struct Slots {
    session: i64,
    /// Slots that no change uses, with the next sequence number.
    free: Vec<(i32, i64)>,
    /// The number of slots of the session.
    count: i32,
}

/// A session.
pub(crate) struct Session {
    pub(crate) database: Arc<Database>,
    caches: Weak<dyn Caches>,
    lease: Duration,
    current: RwLock<Current>,
    slots: Mutex<Slots>,
    /// The next inode number, and the end of the range.
    numbers: Mutex<(u64, u64)>,
    reopening: Mutex<()>,
    flaws: Flaws,
    /// The news from other mounts, and for them.
    pub(crate) post: Post,
}

impl Session {
    /// Opens a session. Returns it with what the database has stored about the file system.
    pub(crate) fn open(
        database: Arc<Database>,
        caches: Weak<dyn Caches>,
        lease: Duration,
        flaws: Flaws,
    ) -> Result<(Session, Stored), Refusal> {
        let (current, first, stored) = database.block_on(open_new(&database, lease))?;
        let session = Session {
            database,
            caches,
            lease,
            current: RwLock::new(current),
            slots: Mutex::default(),
            numbers: Mutex::new((first, first + INO_RANGE)),
            reopening: Mutex::new(()),
            flaws,
            post: Post::default(),
        };
        // The first renewal tells how many sessions there are. If it fails, the next one does.
        let _ = session.database.block_on(session.renew());
        Ok((session, stored))
    }

    /// Returns the number of the session.
    pub(crate) fn id(&self) -> i64 {
        self.current.read().id
    }

    /// Returns how long answers of caches may still be used. Zero if they may not.
    pub(crate) fn left(&self) -> Duration {
        if self.flaws.ignores_the_clock {
            return self.lease;
        }
        self.current.read().deadline.saturating_sub(boot_time())
    }

    /// Returns how long the kernel may keep an answer. Zero if other mounts use the file system.
    pub(crate) fn kernel_time(&self) -> Duration {
        self.current.read().kernel_deadline.saturating_sub(boot_time())
    }

    /// Returns the number of live sessions, as the last renewal has told.
    pub(crate) fn sessions(&self) -> u64 {
        self.current.read().sessions.max(0) as u64
    }

    /// Returns an inode number that was never used.
    pub(crate) fn new_ino(&self) -> Result<i64, Errno> {
        let mut numbers = self.numbers.lock();
        if numbers.0 == numbers.1 {
            let first: i64 = self.database.query(INOS, &[])?.rows[0].get(0);
            *numbers = (first as u64, first as u64 + INO_RANGE);
        }
        numbers.0 += 1;
        Ok(numbers.0 as i64 - 1)
    }

    /// Makes a change: calls the function of `sql` with the session, a slot, its sequence number,
    /// and `params`. Returns the rows of its result.
    ///
    /// # Errors
    /// The errno of the function; `EIO` if the database fails.
    pub(crate) fn change(
        &self,
        sql: &'static str,
        params: &[Param<'_>],
    ) -> Result<Vec<Row>, Errno> {
        let mut start = boot_time();
        let mut poll = POLLS.0;
        let mut taken = self.take_slot();
        let done = loop {
            let (id, slot, seq) = taken;
            let mut all: Vec<Param<'_>> = vec![&id, &slot, &seq];
            all.extend_from_slice(params);
            let reply = match self.database.query(sql, &all) {
                Ok(reply) => reply,
                Err(errno) => break Err(errno),
            };
            if reply.was_lost {
                start = boot_time();
            }
            let (code, cookie) = match reply.rows.first() {
                Some(row) => (row.get::<_, i32>(0), row.get::<_, i64>(1)),
                None => break Err(Errno::IO),
            };
            match code {
                0 => break Ok(reply.rows),
                code::CONTENDED => {
                    self.post.waits.add(1);
                    self.database.block_on(self.post.wait(cookie, poll));
                    poll = (poll * 2).min(POLLS.1);
                }
                code::FORGOTTEN if reply.was_lost => {
                    self.reopen(id)?;
                    break Err(Errno::IO);
                }
                code::DEAD | code::FORGOTTEN => {
                    self.reopen(id)?;
                    taken = self.take_slot();
                }
                code::RESTARTED => self.renew_now()?,
                code::GRACE => thread::sleep(PAUSE),
                code::MOVED => {}
                errno => break Err(Errno::from_raw_os_error(errno)),
            }
            // No wait of the protocol lasts longer than two leases.
            if boot_time().saturating_sub(start) > self.lease * 3 {
                break Err(Errno::IO);
            }
        };
        self.free_slot(taken);
        done
    }

    /// Calls a function that repeats safely by its slot, but returns no result of a change.
    pub(crate) fn purge(&self, sql: &'static str, params: &[Param<'_>]) -> Result<(), Errno> {
        let taken = self.take_slot();
        let mut all: Vec<Param<'_>> = vec![&taken.0, &taken.1, &taken.2];
        all.extend_from_slice(params);
        let done = self.database.query(sql, &all);
        self.free_slot(taken);
        done.map(drop)
    }

    /// Renews the session. If the database has started again, drops the caches and registers.
    ///
    /// # Errors
    /// `ESTALE` if the session is dead; `EIO` if the database does not answer.
    pub(crate) async fn renew(&self) -> Result<(), Errno> {
        let (id, limit) = (self.id(), self.lease / 3);
        let mut boot = String::new();
        loop {
            let sent = boot_time();
            let reply = self.database.query_session(RENEW, &[&id, &boot], limit).await?;
            let row = reply.rows.first().ok_or(Errno::IO)?;
            match row.get(0) {
                code::DEAD => return Err(Errno::STALE),
                // The caches go before the session registers. From then on, changes of others no
                // longer wait for it.
                code::RESTARTED => {
                    boot = row.get(1);
                    if !self.flaws.keeps_after_restart {
                        self.drop_caches();
                    }
                    continue;
                }
                _ => {}
            }
            if row.get("waits") {
                self.post.look();
            }
            let mut current = self.current.write();
            if current.id == id {
                current.deadline = deadline(sent, self.lease);
                current.sessions = row.get("sessions");
                current.kernel_deadline = match current.sessions {
                    1 => current.deadline,
                    // The kernel keeps what it has already. Other sessions wait until that is over.
                    _ => Duration::ZERO,
                };
            }
            return Ok(());
        }
    }

    /// Renews the session for a call of the file system. Opens a new one if it is dead.
    pub(crate) fn renew_now(&self) -> Result<(), Errno> {
        match self.database.block_on(self.renew()) {
            Err(Errno::STALE) => self.reopen(self.id()),
            done => done,
        }
    }

    /// Opens a new session in place of the dead session `dead`, if another thread has not done so.
    ///
    /// # Errors
    /// `EIO` if another mount holds the file system, or the database fails.
    pub(crate) fn reopen(&self, dead: i64) -> Result<(), Errno> {
        let _turn = self.reopening.lock();
        if self.id() != dead {
            return Ok(());
        }
        self.stop_answers();
        self.drop_caches();
        let mut opened = Err(Refusal::NoFormat);
        for _ in 0..REOPEN_TRIES {
            opened = self.database.block_on(open_new(&self.database, self.lease));
            if !matches!(opened, Err(Refusal::Database(_))) {
                break;
            }
            thread::sleep(PAUSE);
        }
        let (current, first, _) = opened.map_err(|refusal| {
            log::error!("the session has ended, and a new one is refused: {refusal}");
            Errno::IO
        })?;
        log::warn!("the session had ended; unnamed files that were open are lost");
        *self.numbers.lock() = (first, first + INO_RANGE);
        *self.current.write() = current;
        Ok(())
    }

    /// Ends the session, so that the next mount need not wait for its lease.
    pub(crate) fn end(&self) -> Result<(), Errno> {
        let id = self.id();
        self.stop_answers();
        let limit = self.lease / 3;
        self.database.block_on(self.database.query_session(END, &[&id], limit)).map(drop)
    }

    fn stop_answers(&self) {
        let mut current = self.current.write();
        (current.deadline, current.kernel_deadline) = (Duration::ZERO, Duration::ZERO);
    }

    /// Returns the lease time.
    pub(crate) fn lease(&self) -> Duration {
        self.lease
    }

    /// Drops what is cached of some directories, because another mount is about to change them.
    pub(crate) fn drop_directories(&self, dirs: &[u64]) {
        if let Some(caches) = self.caches.upgrade() {
            caches.drop_directories(dirs);
        }
    }

    fn drop_caches(&self) {
        if let Some(caches) = self.caches.upgrade() {
            caches.drop_all();
        }
    }

    fn take_slot(&self) -> (i64, i32, i64) {
        let id = self.id();
        let mut slots = self.slots.lock();
        if slots.session != id {
            *slots = Slots { session: id, ..Slots::default() };
        }
        match slots.free.pop() {
            Some((slot, seq)) => (id, slot, seq),
            None => {
                slots.count += 1;
                (id, slots.count - 1, 1)
            }
        }
    }

    /// Gives a slot back, whose next change has the next sequence number.
    fn free_slot(&self, (session, slot, seq): (i64, i32, i64)) {
        let mut slots = self.slots.lock();
        if slots.session == session {
            slots.free.push((slot, seq + 1));
        }
    }
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session").field("current", &*self.current.read()).finish_non_exhaustive()
    }
}

/// Renews the session until it is dropped. Runs on the runtime of the mount.
pub(crate) async fn keep_alive(session: Weak<Session>, lease: Duration) {
    loop {
        tokio::time::sleep(lease / 3).await;
        let Some(session) = session.upgrade() else { return };
        // A dead session is replaced by the next call that the database refuses.
        if let Err(errno) = session.renew().await {
            log::warn!("the session could not be renewed: {errno}");
        }
    }
}

/// Opens a session. Returns it with its first inode number, and what the database has stored.
async fn open_new(database: &Database, lease: Duration) -> Result<(Current, u64, Stored), Refusal> {
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let pid = rustix::process::getpid().as_raw_nonzero().get();
    let sent = boot_time();
    let seconds = lease.as_secs_f64();
    let rows = database.query_once(OPEN, &[&host, &pid, &seconds, &MOUNTS_MAX]).await;
    let rows = rows.map_err(|error| match error.code().map(|code| code.code()) {
        // An undefined function, table or schema.
        Some("42883" | "42P01" | "3F000") => Refusal::NoFormat,
        _ => Refusal::Database(error),
    })?;
    let row = rows.first().ok_or(Refusal::NoFormat)?;
    let id: i64 = row.get("id");
    if id == 0 {
        let (host, pid, since) = (row.get("host"), row.get("pid"), row.get("since"));
        return Err(Refusal::Busy(Holder { host, pid, since }));
    }
    let first: i64 = row.get("ino");
    let stored = Stored { data: row.get("data"), id: row.get("fs") };
    let deadline = deadline(sent, lease);
    let current = Current { id, deadline, sessions: 0, kernel_deadline: Duration::ZERO };
    Ok((current, first as u64, stored))
}

/// Returns when a lease ends whose renewal was sent at `sent`.
fn deadline(sent: Duration, lease: Duration) -> Duration {
    sent + lease * (100 - MARGIN_PERCENT) / 100
}

/// Returns the time of CLOCK_BOOTTIME.
pub(crate) fn boot_time() -> Duration {
    let now = clock_gettime(ClockId::Boottime);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Refusal::Database(error) => f.write_str(&crate::connection::text_of(error)),
            Refusal::NoFormat => f.write_str("there is no file system in this database"),
            Refusal::Busy(Holder { host, pid, since }) => {
                write!(f, "mounted by {host} pid {pid} since {since}")
            }
        }
    }
}
