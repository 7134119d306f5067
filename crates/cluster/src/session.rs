//! The session of a mount: its lease time, its request slots, its inode numbers.
//!
//! A session is renewed three times per lease time. The mount counts the lease time from the moment
//! before it sent a renewal, and subtracts a margin. After that time it answers nothing from a
//! cache (guarantee K.1 in `lib.rs`). The clock is CLOCK_BOOTTIME, which goes on while the machine
//! sleeps.
//!
//! # Changes
//! [`Session::change`] sends a change with a request slot. A slot has one change at a time. If the
//! answer is lost, the request is repeated with the same sequence number, and the database returns
//! the stored result (guarantee K.9 in `lib.rs`).
//!
//! A soft mount gives up a change that gets no answer. A late copy of the request may still be on
//! its way, and would undo newer changes. So the slot is closed before the next change or fill is
//! sent ([`Session::close_unanswered`]).
//!
//! # Death
//! If the database says that a mount's session is dead, the mount drops all caches and opens a new
//! session (guarantee K.8 in `lib.rs`). As a reply to a change, this also means that the old
//! session has not made the change and never will. So the change is sent again under the new
//! session. After ten minutes the database forgets the slots of a dead session. A change whose
//! answer was lost then fails with `EIO`.
//!
//! The new session must belong to the same file system. The database may have another file system
//! by then, from `mkfs --force` or a dump. In that case all later calls of the mount fail.
//!
//! # Other mounts
//! A change waits until other sessions have given up their leases on its directories
//! ([`crate::intents`]). While the session is the only one, the kernel may keep any answer
//! ([`Session::kernel_time`]).
//!
//! # Locks
//! - `reopening`: held while a new session is opened, or while the end of the mount is noted. Taken
//!   before the other locks.
//! - `slots`, then `current`, which is a read-write lock. Both are held for an instant.
//! - `numbers`: no other lock is taken under it.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use corewalk::Errno;
use corewalk_base::primitives::thread;
use corewalk_base::{Mutex, RwLock};
use rustix::rand::{GetRandomFlags, getrandom};
use rustix::time::{ClockId, clock_gettime};
use tokio::time::timeout;
use tokio_postgres::Row;

use crate::connection::{Database, DatabaseError, Param};
use crate::intents::Post;
use crate::limits::{Room, Usage};
use crate::mkfs::VERSION;
use crate::options::Flaws;

/// The part of the lease time that a mount does not use, in percent. It allows for clocks that run
/// at different speeds.
const MARGIN_PERCENT: u32 = 10;
/// How many inode numbers the database gives out at a time.
const INO_RANGE: u64 = 4096;
/// The pause before a change, a renewal or the opening of a session is tried again.
const PAUSE: Duration = Duration::from_millis(50);
/// How long a change with an intent waits before it is sent again: the first and the longest time.
/// A notification that all leases were given up ends the wait earlier.
const POLLS: (Duration, Duration) = (Duration::from_millis(100), Duration::from_millis(400));
/// How many mounts may use a file system at once.
const MOUNTS_MAX: i32 = 1000;
/// How long the database may take to answer a mount that opens a session.
const OPEN_LIMIT: Duration = Duration::from_secs(10);

/// Result codes of the database that are not an errno. `functions/results.sql` lists them.
mod code {
    pub(super) const CONTENDED: i32 = -1;
    pub(super) const DEAD: i32 = -2;
    pub(super) const RESTARTED: i32 = -3;
    pub(super) const GRACE: i32 = -4;
    pub(super) const FORGOTTEN: i32 = -7;
}

const FORMAT: &str = "SELECT version, id::text, data FROM format";
const OPEN: &str = "SELECT * FROM cw_open_session($1, $2, $3, $4, $5, $6)";
const CLOSE: &str = "SELECT cw_close_slot($1, $2, $3)";
const RENEW: &str = "SELECT * FROM cw_renew($1, $2), cw_statfs(false)";
const INOS: &str = "SELECT cw_inos()";
const END: &str = "SELECT cw_end_session($1)";

/// Why a mount cannot open a session.
#[derive(Debug)]
pub(crate) enum Refusal {
    Database(DatabaseError),
    /// There is no file system in the database.
    NoFormat,
    /// The file system has another version of the tables.
    Version(i32),
    /// The database has another file system than before.
    OtherFileSystem,
    Busy(Holder),
}

/// The facts that the database has stored about a file system.
#[derive(Debug)]
pub(crate) struct Stored {
    /// The value of `data=`: where the objects are.
    pub(crate) data: String,
    /// The identity of the file system, which no other file system has.
    pub(crate) id: String,
}

/// A mount that uses a file system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// The name of the machine.
    pub host: String,
    /// The process ID of the mount.
    pub pid: i32,
    /// When it was mounted.
    pub since: String,
}

/// The caches of a mount, whose answers are valid only under a lease.
///
/// Each method also makes the kernel drop its answers. It returns the instant until which the
/// kernel may keep old names all the same, by [`boot_time`]. The caller waits until then.
pub(crate) trait Caches: Send + Sync {
    /// Drops everything that was cached under a lease.
    fn drop_all(&self) -> Duration;
    /// Drops what was cached under the leases of some directories.
    fn drop_directories(&self, dirs: &[u64]) -> Duration;
}

#[derive(Clone, Copy, Debug)]
struct Current {
    id: i64,
    /// CLOCK_BOOTTIME up to which the mount may answer from its caches.
    deadline: Duration,
    /// The number of live sessions, as the last renewal has told.
    sessions: i64,
    /// CLOCK_BOOTTIME up to which the kernel may keep any answer, because this session is the only
    /// one.
    kernel_deadline: Duration,
    /// CLOCK_BOOTTIME after which the kernel has no answer any more that it got while this session
    /// was the only one.
    alone_end: Duration,
    /// How often junctions had changed at the last renewal.
    junctions: i64,
    /// True after the end of the mount, which then opens no new session and uses no caches.
    has_ended: bool,
}

/// The request slots of a session.
#[derive(Debug, Default)]
struct Slots {
    session: i64,
    /// Slots that no change uses, each with the sequence number of its next change.
    free: Vec<(i32, i64)>,
    /// The number of slots of the session.
    count: i32,
    /// Slots whose last change got no answer, each with the sequence number of that change.
    unanswered: Vec<(i32, i64)>,
}

pub(crate) struct Session {
    pub(crate) database: Arc<Database>,
    caches: Weak<dyn Caches>,
    lease: Duration,
    /// The identity of the file system.
    fs: String,
    current: RwLock<Current>,
    slots: Mutex<Slots>,
    /// The next inode number, and the end of the range that the database gave out.
    numbers: Mutex<(u64, u64)>,
    reopening: tokio::sync::Mutex<()>,
    flaws: Flaws,
    /// Tells waiting calls of acknowledgements, and the listener of waiting intents.
    pub(crate) post: Post,
    /// How many inodes and bytes the limits of the file system still allow.
    pub(crate) room: Room,
}

impl Session {
    /// Opens a session. Returns it with what the database has stored about the file system.
    pub(crate) fn open(
        database: Arc<Database>,
        caches: Weak<dyn Caches>,
        lease: Duration,
        flaws: Flaws,
    ) -> Result<(Session, Stored), Refusal> {
        let opened = database.block_on(open_new(&database, lease, new_id(), None));
        let (current, first, stored) = opened?;
        let session = Session {
            database,
            caches,
            lease,
            fs: stored.id.clone(),
            current: RwLock::new(current),
            slots: Mutex::default(),
            numbers: Mutex::new((first, first + INO_RANGE)),
            reopening: tokio::sync::Mutex::default(),
            flaws,
            post: Post::default(),
            room: Room::default(),
        };
        // The first renewal tells how many sessions there are. If it fails, a later renewal tells
        // that.
        let _ = session.database.block_on(session.renew());
        Ok((session, stored))
    }

    pub(crate) fn id(&self) -> i64 {
        self.current.read().id
    }

    /// Returns how long caches may still be used. Zero if they may not.
    pub(crate) fn left(&self) -> Duration {
        if self.flaws.ignores_the_clock {
            return self.lease;
        }
        self.current.read().deadline.saturating_sub(boot_time())
    }

    /// Returns how long the kernel may keep any answer, because this session is the only one. Zero
    /// if there are other sessions.
    pub(crate) fn kernel_time(&self) -> Duration {
        self.current.read().kernel_deadline.saturating_sub(boot_time())
    }

    /// Returns true if the kernel may still have answers that it got while this session was the
    /// only one.
    pub(crate) fn was_alone(&self) -> bool {
        boot_time() < self.current.read().alone_end
    }

    /// Returns the number of live sessions, as the last renewal has told.
    pub(crate) fn sessions(&self) -> u64 {
        self.current.read().sessions.max(0) as u64
    }

    /// Returns how often junctions had changed at the last renewal.
    pub(crate) fn junctions(&self) -> i64 {
        self.current.read().junctions
    }

    /// Returns an inode number that was never used.
    pub(crate) fn new_ino(&self) -> Result<i64, Errno> {
        {
            let mut numbers = self.numbers.lock();
            if numbers.0 < numbers.1 {
                numbers.0 += 1;
                return Ok(numbers.0 as i64 - 1);
            }
        }
        // No lock is held while the database is asked. If two threads get a range at the same time,
        // the rest of one range stays unused.
        let first: i64 = self.database.query(INOS, &[])?.rows[0].get(0);
        *self.numbers.lock() = (first as u64 + 1, first as u64 + INO_RANGE);
        Ok(first)
    }

    /// Makes a change by the statement `sql`. Its parameters are the session, a request slot, the
    /// sequence number of the change, and then `params`. Returns the rows of the result. If `bound`
    /// is given, the change is made under that session only.
    ///
    /// # Errors
    /// The errno of the function; `EIO` if the database fails, or the session `bound` is dead.
    pub(crate) fn change(
        &self,
        bound: Option<i64>,
        sql: &'static str,
        params: &[Param<'_>],
    ) -> Result<Vec<Row>, Errno> {
        self.close_unanswered()?;
        let mut waiting_since = None;
        let mut poll = POLLS.0;
        let (mut taken, mut was_lost) = (self.take_slot(), false);
        let done = loop {
            let (id, slot, seq) = taken;
            if bound.is_some_and(|bound| bound != id) {
                self.free_slot(taken);
                return Err(Errno::IO);
            }
            let mut all: Vec<Param<'_>> = vec![&id, &slot, &seq];
            all.extend_from_slice(params);
            let reply = match self.database.query_change(sql, &all) {
                Ok(reply) => reply,
                // The database has undone the change, and no copy of it is under way. So the slot
                // is free again.
                Err(failure) if !was_lost && !failure.was_lost && waiting_since.is_none() => {
                    self.free_slot(taken);
                    return Err(failure.errno);
                }
                Err(failure) => break Err(failure.errno),
            };
            was_lost |= reply.was_lost;
            let (code, cookie) = match reply.rows.first() {
                Some(row) => (row.get::<_, i32>(0), row.get::<_, i64>(1)),
                None => break Err(Errno::IO),
            };
            match code {
                0.. => {
                    self.free_slot(taken);
                    return match code {
                        0 => Ok(reply.rows),
                        errno => Err(Errno::from_raw_os_error(errno)),
                    };
                }
                code::CONTENDED => {
                    self.post.waits.add(1);
                    self.database.block_on(self.post.wait(cookie, poll));
                    poll = (poll * 2).min(POLLS.1);
                }
                code::DEAD | code::FORGOTTEN => {
                    self.reopen_now(id)?;
                    if code == code::FORGOTTEN && was_lost {
                        return Err(Errno::IO);
                    }
                    (taken, was_lost, waiting_since) = (self.take_slot(), false, None);
                    continue;
                }
                code::RESTARTED => {
                    if let Err(errno) = self.renew_now() {
                        break Err(errno);
                    }
                    waiting_since = None;
                    continue;
                }
                code::GRACE => thread::sleep(PAUSE),
                _ => {}
            }
            if self.has_waited_enough(*waiting_since.get_or_insert_with(Instant::now)) {
                break Err(Errno::IO);
            }
        };
        self.leave_slot(taken);
        done
    }

    /// Returns true if a change that has waited for other mounts since `since` must fail now. A
    /// hard mount waits until the mount ends. A soft mount waits for its time limit, but for at
    /// least three lease times. No wait of the protocol lasts longer than two lease times.
    fn has_waited_enough(&self, since: Instant) -> bool {
        let is_over = |left: Option<Duration>| left.is_some_and(|left| left.is_zero());
        let database = &self.database;
        is_over(database.time_left(since, None))
            && (since.elapsed() > self.lease * 3
                || is_over(database.time_left(Instant::now(), None)))
    }

    /// Closes the slots of unanswered changes, so that late copies of these changes have no effect.
    /// Called before each change, and before each read whose answer may be cached.
    ///
    /// # Errors
    /// `EIO` if the database does not answer.
    pub(crate) fn close_unanswered(&self) -> Result<(), Errno> {
        loop {
            let (id, slot, seq) = {
                let slots = self.slots.lock();
                let Some((slot, seq)) = slots.unanswered.last() else { return Ok(()) };
                (slots.session, *slot, *seq)
            };
            self.database.query(CLOSE, &[&id, &slot, &seq])?;
            let mut slots = self.slots.lock();
            // Another thread may have closed the slot meanwhile.
            let place = slots.unanswered.iter().position(|it| *it == (slot, seq));
            if let Some(place) = place.filter(|_| slots.session == id) {
                slots.unanswered.swap_remove(place);
                slots.free.push((slot, seq + 2));
            }
        }
    }

    /// Renews the session. If the database has crashed, drops the caches and registers.
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
                // The caches are dropped before the session registers. After the registration,
                // changes of other sessions no longer wait for this session.
                code::RESTARTED => {
                    boot = row.get(1);
                    if !self.flaws.keeps_after_restart {
                        self.drop_caches().await;
                    }
                    continue;
                }
                _ => {}
            }
            if row.get("waits") {
                self.post.look();
            }
            self.room.learn(Usage::of(row));
            let mut current = self.current.write();
            if current.id == id && !current.has_ended {
                current.deadline = deadline(sent, self.lease);
                current.sessions = row.get("sessions");
                current.junctions = row.get("junctions");
                current.kernel_deadline = Duration::ZERO;
                // Beside other sessions, the kernel still keeps its earlier answers for a time.
                // Changes of others wait until it is over (guarantee K.7 in `lib.rs`).
                if current.sessions == 1 {
                    current.kernel_deadline = current.deadline;
                    current.alone_end = sent + self.lease;
                }
            }
            return Ok(());
        }
    }

    /// Renews the session for a call of the file system. Opens a new one if this one is dead.
    ///
    /// # Errors
    /// `EIO` if the database does not answer a soft mount; the errors of [`Session::reopen`].
    pub(crate) fn renew_now(&self) -> Result<(), Errno> {
        let start = Instant::now();
        loop {
            // Read the session number before the renewal. Another thread may open a new session
            // meanwhile, which must not be replaced.
            let id = self.id();
            match self.database.block_on(self.renew()) {
                Ok(()) => return Ok(()),
                Err(Errno::STALE) => return self.reopen_now(id),
                Err(errno) => {
                    let left = self.database.time_left(start, None);
                    if left.is_some_and(|left| left.is_zero()) {
                        return Err(errno);
                    }
                    thread::sleep(PAUSE);
                }
            }
        }
    }

    /// Runs [`Session::reopen`] on the thread of a call of the file system.
    pub(crate) fn reopen_now(&self, dead: i64) -> Result<(), Errno> {
        self.database.block_on(self.reopen(dead))
    }

    /// Opens a new session in place of the dead session `dead`, if another task has not done so.
    ///
    /// # Errors
    /// `EIO` if the database refuses, does not answer a soft mount, or has another file system by
    /// now; `EIO` after the end of the mount.
    async fn reopen(&self, dead: i64) -> Result<(), Errno> {
        let (start, id, mut pause) = (Instant::now(), new_id(), PAUSE);
        let turn = self.reopening.lock();
        let _turn = match self.database.time_left(start, None) {
            Some(left) => timeout(left, turn).await.map_err(|_| Errno::IO)?,
            None => turn.await,
        };
        if self.current.read().has_ended {
            return Err(Errno::IO);
        }
        if self.id() != dead {
            return Ok(());
        }
        self.stop_answers();
        self.drop_caches().await;
        let opened = loop {
            let opened = open_new(&self.database, self.lease, id, Some(&self.fs)).await;
            match &opened {
                Err(Refusal::Database(error)) if error.is_temporary() => {
                    let left = self.database.time_left(start, None);
                    if left.is_some_and(|left| left.is_zero()) {
                        break opened;
                    }
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(OPEN_LIMIT / 10);
                }
                _ => break opened,
            }
        };
        let (current, first, _) = opened.map_err(|refusal| {
            log::error!("the session has ended, and a new one is refused: {refusal}");
            if matches!(refusal, Refusal::OtherFileSystem) {
                self.database.end_after(Duration::ZERO);
            }
            Errno::IO
        })?;
        log::warn!("the session had ended; unnamed files that were open are lost");
        *self.numbers.lock() = (first, first + INO_RANGE);
        *self.current.write() = current;
        Ok(())
    }

    /// Ends the session, so that other mounts need not wait until its lease time is over. No new
    /// session is opened afterwards, not even by a renewal that is answered later. A detached mount
    /// may still be in use, so the kernel drops its answers first.
    pub(crate) fn end(&self) -> Result<(), Errno> {
        let limit = self.lease / 3;
        self.database.block_on(async {
            let _turn = timeout(limit, self.reopening.lock()).await.map_err(|_| Errno::IO)?;
            self.current.write().has_ended = true;
            self.stop_answers();
            if let Some(caches) = self.caches.upgrade() {
                caches.drop_all();
            }
            self.database.query_session(END, &[&self.id()], limit).await?;
            Ok(())
        })
    }

    /// Returns true after the end of the mount. Waits while a new session is opened.
    async fn has_ended(&self) -> bool {
        let _turn = self.reopening.lock().await;
        self.current.read().has_ended
    }

    fn stop_answers(&self) {
        let mut current = self.current.write();
        (current.deadline, current.kernel_deadline) = (Duration::ZERO, Duration::ZERO);
    }

    pub(crate) fn lease(&self) -> Duration {
        self.lease
    }

    /// Drops what is cached of some directories, because another mount is about to change them.
    /// Waits until the kernel has no old names of them.
    pub(crate) async fn drop_directories(&self, dirs: &[u64]) {
        let end = self.caches.upgrade().map(|caches| caches.drop_directories(dirs));
        sleep_until(end.unwrap_or_default()).await;
    }

    async fn drop_caches(&self) {
        let end = self.caches.upgrade().map(|caches| caches.drop_all());
        sleep_until(end.unwrap_or_default()).await;
    }

    fn take_slot(&self) -> (i64, i32, i64) {
        let mut slots = self.slots.lock();
        // Read the session number with the lock held. Otherwise a thread could replace the slots of
        // a new session by those of an old one.
        let id = self.id();
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

    /// Frees a slot. Its next change has the next sequence number.
    fn free_slot(&self, (session, slot, seq): (i64, i32, i64)) {
        let mut slots = self.slots.lock();
        if slots.session == session {
            slots.free.push((slot, seq + 1));
        }
    }

    /// Notes that the change of a slot got no answer, so that the slot is closed later.
    fn leave_slot(&self, (session, slot, seq): (i64, i32, i64)) {
        let mut slots = self.slots.lock();
        if slots.session == session {
            slots.unanswered.push((slot, seq));
        }
    }
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session").field("current", &*self.current.read()).finish_non_exhaustive()
    }
}

/// Renews a session periodically, until the session has ended or was dropped. Runs on the runtime
/// of the mount.
pub(crate) async fn keep_alive(session: Weak<Session>, lease: Duration) {
    let mut is_failing = false;
    loop {
        // After a failure, the next attempt must come before the end of the lease.
        tokio::time::sleep(if is_failing { lease / 30 } else { lease / 3 }).await;
        let Some(session) = session.upgrade() else { return };
        if session.has_ended().await {
            return;
        }
        let id = session.id();
        let renewed = match session.renew().await {
            Err(Errno::STALE) => session.reopen(id).await,
            done => done,
        };
        if let Err(errno) = renewed
            && !is_failing
        {
            log::warn!("the session could not be renewed: {errno}");
        }
        is_failing = renewed.is_err();
    }
}

/// Opens the session `id`. If `fs` is given, the database must have the file system with this
/// identity. Returns the session with its first inode number and the stored facts.
async fn open_new(
    database: &Database,
    lease: Duration,
    id: i64,
    fs: Option<&str>,
) -> Result<(Current, u64, Stored), Refusal> {
    let refused = |error: DatabaseError| match error.is_undefined() {
        true => Refusal::NoFormat,
        false => Refusal::Database(error),
    };
    let rows = database.query_once(FORMAT, &[], OPEN_LIMIT).await.map_err(refused)?;
    let row = rows.first().ok_or(Refusal::NoFormat)?;
    let stored = Stored { id: row.get(1), data: row.get(2) };
    if fs.is_some_and(|fs| fs != stored.id) {
        return Err(Refusal::OtherFileSystem);
    }
    match row.get(0) {
        VERSION => {}
        version => return Err(Refusal::Version(version)),
    }
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let pid = rustix::process::getpid().as_raw_nonzero().get();
    let sent = boot_time();
    let params: [Param<'_>; 6] = [&id, &stored.id, &host, &pid, &lease.as_secs_f64(), &MOUNTS_MAX];
    let rows = database.query_once(OPEN, &params, OPEN_LIMIT).await.map_err(refused)?;
    let row = rows.first().ok_or(Refusal::OtherFileSystem)?;
    let first: i64 = row.get("ino");
    if first == 0 {
        let (host, pid, since) = (row.get("host"), row.get("pid"), row.get("since"));
        return Err(Refusal::Busy(Holder { host, pid, since }));
    }
    let deadline = deadline(sent, lease);
    let (kernel_deadline, alone_end) = (Duration::ZERO, Duration::ZERO);
    let (sessions, junctions, has_ended) = (0, -1, false);
    let current =
        Current { id, deadline, sessions, kernel_deadline, alone_end, junctions, has_ended };
    Ok((current, first as u64, stored))
}

/// Returns a random number for a session, which no other session ever has.
fn new_id() -> i64 {
    let mut bytes = [0; 8];
    // Reads of at most 256 bytes are never cut short (getrandom(2)).
    getrandom(&mut bytes, GetRandomFlags::empty()).expect("the kernel has random numbers");
    (u64::from_ne_bytes(bytes) >> 2).max(1) as i64
}

/// Returns the instant up to which caches may be used, if the renewal was sent at `sent`.
fn deadline(sent: Duration, lease: Duration) -> Duration {
    sent + lease * (100 - MARGIN_PERCENT) / 100
}

/// Returns the time of CLOCK_BOOTTIME.
pub(crate) fn boot_time() -> Duration {
    let now = clock_gettime(ClockId::Boottime);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

/// Sleeps until the instant `end` of [`boot_time`]. Returns at once if it has passed.
async fn sleep_until(end: Duration) {
    let left = end.saturating_sub(boot_time());
    if !left.is_zero() {
        tokio::time::sleep(left).await;
    }
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Refusal::Database(error) => error.fmt(f),
            Refusal::NoFormat => f.write_str("there is no file system in this database"),
            Refusal::Version(version) => write!(f, "it has version {version}"),
            Refusal::OtherFileSystem => f.write_str("the database has another file system"),
            Refusal::Busy(Holder { host, pid, since }) => {
                write!(f, "mounted by {host} pid {pid} since {since}")
            }
        }
    }
}
