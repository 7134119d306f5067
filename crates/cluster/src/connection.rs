//! Connections to the database.
//!
//! Each call of the file system sends one SQL statement, and each statement is a transaction. A
//! connection runs its statements in order. A statement is sent before the one before it is
//! answered (pipelining), so a few connections serve many threads. A statement that waits for a
//! lock delays the later statements of its connection. No statement waits for a later one of its
//! connection, so there is no deadlock. The renewals of the session have a connection of their own,
//! so that nothing delays them.
//!
//! # Threads
//! Each connection for calls has a runtime without threads. The thread that makes a call drives the
//! runtime. So it sends the statement and receives the answer itself, and wakes no other thread. A
//! call takes an idle connection if there is one. Otherwise several calls share a connection, and
//! the thread of one of them drives the runtime for all. No thread drives an idle connection. So
//! the next call first checks whether the server has closed the connection meanwhile.
//!
//! # Lost connections
//! A statement without an answer is sent again on a new connection (guarantee K.11 in `lib.rs`). A
//! change may have been made although its answer was lost. Then its repetition returns the stored
//! result of its request slot (guarantee K.9). [`Reply::was_lost`] tells the caller that the
//! statement was repeated.
//!
//! A connection counts as lost if a statement gets no answer for some time. The next attempt waits
//! twice as long, so that a slow statement ends at last. A statement of the session gets a second
//! connection within its limit, so one lost connection does not end a session.
//!
//! # Errors of the database
//! | SQLSTATE | what happens |
//! |---|---|
//! | none, with an I/O error; 08, 57P01 to 57P03, 57P05, 25006 | a new connection, then again |
//! | 40 (serialization, deadlock), 53 but 53100, 57014 | again |
//! | 53100 (disk full) | `ENOSPC` |
//! | others | `EIO`, and a line in the log |
//!
//! Source: PostgreSQL, "PostgreSQL Error Codes"; the message flow of pipelining in
//! "Frontend/Backend Protocol".

use std::collections::HashMap;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use corewalk::Errno;
use corewalk_base::ShardedCounter;
use futures_util::future::{Either, select};
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::sync::{Mutex, watch};
use tokio::task::{JoinHandle, yield_now};
use tokio::time::timeout;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Error, Row, Statement};

use crate::address::Address;
use crate::options::Unreachable;

pub(crate) type Param<'a> = &'a (dyn ToSql + Sync);

/// How long the first attempt of a statement may take before its connection counts as lost. The
/// second value is the longest time that a later attempt may take.
const STALLS: (Duration, Duration) = (Duration::from_secs(20), Duration::from_secs(3600));
/// The first and the longest pause before a statement is sent again. Each pause is twice as long as
/// the one before, so that a failing database is not overloaded.
const PAUSES: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(1));
/// The settings of the planner. Sequential scans are wrong for every statement of a mount, and the
/// planner would choose them for tables that it believes to be small.
pub(crate) const PLANS: &str =
    "SET enable_seqscan = off; SET jit = off; SET plan_cache_mode = force_generic_plan";

/// The reason why a statement or a connection failed.
#[derive(Debug)]
#[non_exhaustive]
pub enum DatabaseError {
    /// The database reports an error, or the connection fails.
    Client(Error),
    /// The database does not answer.
    NoAnswer,
}

/// The connections of a mount.
pub(crate) struct Database {
    /// The runtime of the mount, which drives the connection of the session.
    handle: Handle,
    address: Address,
    /// One lane for each connection. The first lane is for the session, and the others are for
    /// calls of the file system.
    lanes: Vec<Lane>,
    /// The runtimes of the lanes for calls: `drivers[i]` belongs to `lanes[i + 1]`.
    drivers: Vec<Runtime>,
    use_of_drivers: corewalk_base::Mutex<UseOfDrivers>,
    /// Tells whether calls of the file system wait or fail while the database cannot be reached.
    unreachable: Unreachable,
    /// Set at the end of the mount: the instant at which all unanswered calls fail.
    end: watch::Sender<Option<Instant>>,
    pub(crate) counters: Counters,
}

/// The number of calls that use each runtime in `Database::drivers`. The mutex of this value is not
/// held during a call.
struct UseOfDrivers {
    /// The number of calls that use each runtime.
    calls: Vec<usize>,
    /// The indices of the runtimes that no call uses, in the order of their last use.
    idle: Vec<usize>,
}

impl UseOfDrivers {
    /// Returns the index of a runtime for a call. Prefers the idle runtime that was used last,
    /// because the server process of its connection has the warmest caches. If none is idle, shares
    /// the runtime with the fewest calls.
    fn take(&mut self) -> usize {
        let shared = || (0..self.calls.len()).min_by_key(|at| self.calls[*at]).unwrap_or(0);
        let at = self.idle.pop().unwrap_or_else(shared);
        self.calls[at] += 1;
        at
    }

    fn give_back(&mut self, at: usize) {
        self.calls[at] -= 1;
        if self.calls[at] == 0 {
            self.idle.push(at);
        }
    }
}

/// Counters of the connections of a mount.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    /// Statements that were sent, repetitions included.
    pub(crate) statements: ShardedCounter,
    /// Connections that were opened.
    pub(crate) connections: ShardedCounter,
}

pub(crate) struct Reply {
    pub(crate) rows: Vec<Row>,
    /// True if an earlier attempt of the statement got no answer. That attempt may have had its
    /// effect.
    pub(crate) was_lost: bool,
}

/// The failure of a statement.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Failure {
    pub(crate) errno: Errno,
    /// True if an attempt of the statement got no answer. The database may still run that attempt.
    /// If false, the database has undone all attempts.
    pub(crate) was_lost: bool,
}

/// Has at most one connection, which is opened when a statement needs it.
#[derive(Default)]
struct Lane {
    open: Mutex<Option<Arc<Open>>>,
}

struct Open {
    client: Client,
    task: JoinHandle<()>,
    statements: Mutex<HashMap<&'static str, Statement>>,
}

impl Drop for Open {
    fn drop(&mut self) {
        // Stop the task of the connection. On a lost connection, the task would run until TCP gives
        // up.
        self.task.abort();
    }
}

/// The reaction to an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Class {
    /// Send the statement again on a new connection, because this connection is lost.
    Reconnect,
    /// Send the statement again. The database has undone this attempt.
    Again,
    Final(Errno),
}

impl Database {
    /// Returns the connections to `address`, which are opened when they are needed.
    ///
    /// # Errors
    /// An error of the system, if it has no file descriptors left.
    pub(crate) fn new(
        handle: Handle,
        address: Address,
        count: usize,
        unreachable: Unreachable,
    ) -> io::Result<Database> {
        let lanes = (0..count + 1).map(|_| Lane::default()).collect();
        let driver = |_| Builder::new_current_thread().enable_all().build();
        let drivers = (0..count).map(driver).collect::<io::Result<_>>()?;
        let unused = UseOfDrivers { calls: vec![0; count], idle: (0..count).collect() };
        Ok(Database {
            handle,
            address,
            lanes,
            drivers,
            use_of_drivers: corewalk_base::Mutex::new(unused),
            unreachable,
            end: watch::Sender::new(None),
            counters: Counters::default(),
        })
    }

    /// Runs a statement for a call of the file system. Must not be called on a thread of the
    /// runtime.
    pub(crate) fn query(&self, sql: &'static str, params: &[Param<'_>]) -> Result<Reply, Errno> {
        self.query_change(sql, params).map_err(|failure| failure.errno)
    }

    /// Runs a statement as [`Database::query`] does. If this fails, [`Failure::was_lost`] tells
    /// whether the statement may still have its effect.
    pub(crate) fn query_change(
        &self,
        sql: &'static str,
        params: &[Param<'_>],
    ) -> Result<Reply, Failure> {
        let at = self.use_of_drivers.lock().take();
        let reply = self.drivers[at].block_on(self.run(1 + at, sql, params, None));
        self.use_of_drivers.lock().give_back(at);
        reply
    }

    /// Called at the end of a mount: when `limit` is over, all unanswered calls fail. All later
    /// calls fail, too.
    pub(crate) fn end_after(&self, limit: Duration) {
        let end = Instant::now() + limit;
        self.end.send_modify(|old| *old = Some(old.map_or(end, |old| old.min(end))));
    }

    /// Returns true after [`Database::end_after`].
    pub(crate) fn is_ending(&self) -> bool {
        self.end.borrow().is_some()
    }

    /// Returns how much longer a call that began at `start` may take. None if there is no limit.
    /// `limit` replaces the limit of a soft mount.
    pub(crate) fn time_left(&self, start: Instant, limit: Option<Duration>) -> Option<Duration> {
        let limit = limit.or(match self.unreachable {
            Unreachable::Wait => None,
            Unreachable::FailAfter(limit) => Some(limit),
        });
        let ends = [limit.map(|limit| start + limit), *self.end.borrow()];
        let end = ends.into_iter().flatten().min()?;
        Some(end.saturating_duration_since(Instant::now()))
    }

    /// Runs `future` on the runtime of the mount. Must not be called on a thread of the runtime.
    pub(crate) fn block_on<F: Future>(&self, future: F) -> F::Output {
        self.handle.block_on(future)
    }

    pub(crate) fn address(&self) -> &Address {
        &self.address
    }

    pub(crate) fn handle(&self) -> &Handle {
        &self.handle
    }

    /// Runs a statement of the session. Fails with `EIO` if it is not answered within `limit`.
    pub(crate) async fn query_session(
        &self,
        sql: &'static str,
        params: &[Param<'_>],
        limit: Duration,
    ) -> Result<Reply, Errno> {
        self.run(0, sql, params, Some(limit)).await.map_err(|failure| failure.errno)
    }

    /// Runs a statement of the session once. Returns the error of the database, so that a message
    /// can show it.
    ///
    /// # Errors
    /// The error of the database; `NoAnswer` after `limit`.
    pub(crate) async fn query_once(
        &self,
        sql: &'static str,
        params: &[Param<'_>],
        limit: Duration,
    ) -> Result<Vec<Row>, DatabaseError> {
        let mut used = None;
        let done = timeout(limit, self.attempt(0, sql, params, &mut used)).await;
        let done = done.unwrap_or(Err(DatabaseError::NoAnswer));
        if done.as_ref().is_err_and(|error| error.class() == Class::Reconnect) {
            self.close(0, used).await;
        }
        done
    }

    async fn run(
        &self,
        lane: usize,
        sql: &'static str,
        params: &[Param<'_>],
        limit: Option<Duration>,
    ) -> Result<Reply, Failure> {
        let start = Instant::now();
        let (mut was_lost, mut pause) = (false, PAUSES.0);
        let mut stall = limit.map_or(STALLS.0, |limit| STALLS.0.min(limit / 2));
        loop {
            let left = self.time_left(start, limit);
            if left.is_some_and(|left| left.is_zero()) {
                return Err(Failure { errno: Errno::IO, was_lost });
            }
            let mut used = None;
            let attempt = self.attempt(lane, sql, params, &mut used);
            let patience = left.map_or(stall, |left| left.min(stall));
            let class = match self.in_time(patience, attempt).await {
                Some(Ok(rows)) => {
                    if was_lost {
                        log::warn!("the database answers again, after {:.1?}", start.elapsed());
                    }
                    return Ok(Reply { rows, was_lost });
                }
                Some(Err(error)) => {
                    let class = error.class();
                    if class != Class::Again && !was_lost {
                        log::warn!("database: {error}");
                    }
                    // An error without an SQLSTATE is not from the server, which may have run the
                    // statement.
                    was_lost |= !error.has_code();
                    class
                }
                None => {
                    stall = (stall * 2).min(STALLS.1);
                    Class::Reconnect
                }
            };
            match class {
                Class::Final(errno) => return Err(Failure { errno, was_lost }),
                Class::Again => {}
                Class::Reconnect => {
                    was_lost = true;
                    self.close(lane, used).await;
                }
            }
            let left = self.time_left(start, limit);
            tokio::time::sleep(left.map_or(pause, |left| left.min(pause))).await;
            pause = (pause * 2).min(PAUSES.1);
        }
    }

    /// Runs `attempt`. Returns None if it takes longer than `patience`, or if
    /// [`Database::end_after`] ends all calls first.
    async fn in_time<T>(&self, patience: Duration, attempt: impl Future<Output = T>) -> Option<T> {
        let mut end = self.end.subscribe();
        let ended = async {
            // `wait_for` and `changed` never fail here, because the sender lives as long as `self`.
            let mut instant = end.wait_for(Option::is_some).await.map_or(None, |end| *end);
            while let Some(at) = instant {
                match timeout(at.saturating_duration_since(Instant::now()), end.changed()).await {
                    Ok(_) => instant = *end.borrow_and_update(),
                    Err(_) => return,
                }
            }
        };
        let attempt = timeout(patience, attempt);
        match select(pin!(attempt), pin!(ended)).await {
            Either::Left((done, _)) => done.ok(),
            Either::Right(_) => None,
        }
    }

    /// Runs a statement once. Stores its connection in `used`, so that the caller can close it.
    async fn attempt(
        &self,
        lane: usize,
        sql: &'static str,
        params: &[Param<'_>],
        used: &mut Option<Arc<Open>>,
    ) -> Result<Vec<Row>, DatabaseError> {
        let open = used.insert(self.open(lane).await?);
        let known = open.statements.lock().await.get(sql).cloned();
        let statement = match known {
            Some(statement) => statement,
            None => {
                let statement = open.client.prepare(sql).await.map_err(DatabaseError::Client)?;
                open.statements.lock().await.insert(sql, statement.clone());
                statement
            }
        };
        self.counters.statements.add(1);
        open.client.query(&statement, params).await.map_err(DatabaseError::Client)
    }

    /// Returns the connection of the lane `lane`. Opens it if there is none.
    async fn open(&self, lane: usize) -> Result<Arc<Open>, DatabaseError> {
        let known = self.lanes[lane].open.lock().await.clone();
        if known.is_some() {
            // The server may have closed an idle connection. A statement on it would count as lost,
            // although the server never got the statement. So let the runtime run twice. First it
            // receives the server's last message, and then the task of the connection ends.
            for _ in 0..2 {
                yield_now().await;
            }
        }
        if let Some(open) = known.filter(|open| !open.client.is_closed()) {
            return Ok(open);
        }
        let mut place = self.lanes[lane].open.lock().await;
        if let Some(open) = place.as_ref().filter(|open| !open.client.is_closed()) {
            return Ok(open.clone());
        }
        let (client, task) = self.address.open().await?;
        client.batch_execute(PLANS).await.map_err(DatabaseError::Client)?;
        self.counters.connections.add(1);
        let open = Arc::new(Open { client, task, statements: Mutex::default() });
        *place = Some(open.clone());
        Ok(open)
    }

    /// Closes the lost connection `lost` of a lane. All other statements on it are then sent again,
    /// too.
    async fn close(&self, lane: usize, lost: Option<Arc<Open>>) {
        let Some(lost) = lost else { return };
        lost.task.abort();
        // The lane may have another connection by now.
        let mut place = self.lanes[lane].open.lock().await;
        place.take_if(|open| Arc::ptr_eq(open, &lost));
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        // This thread may be a thread of the mount's runtime, which must not block. So do not wait
        // until the runtimes of the connections have ended.
        self.drivers.drain(..).for_each(Runtime::shutdown_background);
    }
}

impl DatabaseError {
    fn class(&self) -> Class {
        match self {
            DatabaseError::Client(error) => class_of(error),
            DatabaseError::NoAnswer => Class::Reconnect,
        }
    }

    /// Returns true if the error is an answer of the server. Then the server has undone the
    /// statement.
    fn has_code(&self) -> bool {
        matches!(self, DatabaseError::Client(error) if error.code().is_some())
    }

    /// Returns true if the statement may succeed later.
    pub(crate) fn is_temporary(&self) -> bool {
        !matches!(self.class(), Class::Final(_))
    }

    /// Returns true if a table, a function or the schema of the statement does not exist.
    pub(crate) fn is_undefined(&self) -> bool {
        let DatabaseError::Client(error) = self else { return false };
        matches!(error.code().map(|code| code.code()), Some("42883" | "42P01" | "3F000"))
    }
}

impl std::fmt::Display for DatabaseError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            DatabaseError::Client(error) => f.write_str(&text_of(error)),
            DatabaseError::NoAnswer => f.write_str("the database does not answer"),
        }
    }
}

impl std::error::Error for DatabaseError {}

impl std::fmt::Debug for Database {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Database").field("counters", &self.counters).finish_non_exhaustive()
    }
}

/// Returns what to do after `error`.
fn class_of(error: &Error) -> Class {
    let Some(code) = error.code() else {
        let is_io = std::error::Error::source(error).is_some_and(|source| source.is::<io::Error>());
        let is_connection = is_io || error.is_closed();
        return if is_connection { Class::Reconnect } else { Class::Final(Errno::IO) };
    };
    match code.code() {
        "53100" => Class::Final(Errno::NOSPC),
        "57P01" | "57P02" | "57P03" | "57P05" | "25006" => Class::Reconnect,
        "57014" => Class::Again,
        code if code.starts_with("08") => Class::Reconnect,
        code if code.starts_with("40") || code.starts_with("53") => Class::Again,
        _ => Class::Final(Errno::IO),
    }
}

/// Returns the text of an error with its cause, which `Display` leaves out.
fn text_of(error: &Error) -> String {
    match std::error::Error::source(error) {
        Some(source) => format!("{error}: {source}"),
        None => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use corewalk_base::primitives::thread;

    use super::*;
    use crate::filesystem::new_runtime;

    #[test]
    fn shared_driver_is_idle_when_its_last_call_has_ended() {
        let mut uses = UseOfDrivers { calls: vec![0; 2], idle: vec![0, 1] };
        assert_eq!([uses.take(), uses.take(), uses.take()], [1, 0, 0]);
        uses.give_back(0);
        // The first runtime still serves the other of its two calls.
        uses.give_back(1);
        assert_eq!([uses.take(), uses.take()], [1, 0]);
    }

    #[test]
    fn attempt_that_is_under_way_ends_with_the_mount() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("u@{}/d", listener.local_addr().unwrap());
        let address = Address::parse(&address, &["connect_timeout=60"]).unwrap();
        let runtime = new_runtime().unwrap();
        let database =
            Database::new(runtime.handle().clone(), address, 1, Unreachable::Wait).unwrap();
        thread::scope(|scope| {
            let call = scope.spawn(|| database.query("SELECT 1", &[]).map(drop));
            // The server accepts the connection, and then never answers.
            let _connection = listener.accept().unwrap();
            let start = Instant::now();
            database.end_after(Duration::from_millis(100));
            assert_eq!(call.join().unwrap(), Err(Errno::IO));
            assert!(start.elapsed() < STALLS.0 / 2, "{:?}", start.elapsed());
        });
    }
}
