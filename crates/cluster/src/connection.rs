//! Connections to the database.
//!
//! A call of the file system is one statement, and each statement is a transaction. A connection
//! runs its statements one after the other, but they are sent without waiting (pipelining). So few
//! connections serve many threads. A statement may wait for the locks of another connection, and
//! those behind it wait too. No statement waits for one behind it, so this is no deadlock. The
//! renewals of the session have a connection of their own, so that nothing delays them.
//!
//! # Lost connections
//! A statement without an answer is sent again on a new connection (K.11). A change may have been
//! made although its answer was lost, and its request slot then returns the stored result (K.9).
//! [`Reply::was_lost`] tells the caller that a repetition has answered.
//!
//! # Errors of the database
//! | SQLSTATE | what happens |
//! |---|---|
//! | none, with an I/O error; 08, 57P01 to 57P03, 25006 | a new connection, then again |
//! | 40 (serialization, deadlock), 53 but 53100, 57014 | again |
//! | 53100 (disk full) | `ENOSPC` |
//! | others | `EIO`, and a line in the log |
//!
//! Source: PostgreSQL, "PostgreSQL Error Codes"; the message flow of pipelining in
//! "Frontend/Backend Protocol".

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use corewalk::Errno;
use corewalk_base::primitives::shard_index;
use corewalk_base::{RwLock, ShardedCounter};
use tokio::runtime::Handle;
use tokio::sync::Mutex;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Config, Error, NoTls, Row, Statement};

use crate::options::Unreachable;

/// A parameter of a statement.
pub(crate) type Param<'a> = &'a (dyn ToSql + Sync);

/// How long a statement may take before its connection counts as lost.
const STALL: Duration = Duration::from_secs(20);
/// The first and the longest pause before a statement is sent again.
const PAUSES: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(1));
/// The settings of each connection. Sequential scans are wrong for every statement of this crate,
/// and the planner would choose them for tables that it believes to be small.
const SETTINGS: &str = "SET search_path = corewalk; SET enable_seqscan = off; SET jit = off; \
                        SET plan_cache_mode = force_generic_plan; SET client_min_messages = warning; \
                        SET default_transaction_isolation = 'read committed'";

/// The connections of a mount.
pub(crate) struct Database {
    handle: Handle,
    config: Config,
    /// The first one is for the session, the others for calls of the file system.
    lanes: Vec<Lane>,
    /// The behaviour of calls of the file system. The lock is held for an instant.
    unreachable: RwLock<Unreachable>,
    pub(crate) counters: Counters,
}

/// Counters of the connections of a mount.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    /// Statements that were sent, repetitions included.
    pub(crate) statements: ShardedCounter,
    /// Connections that were opened.
    pub(crate) connections: ShardedCounter,
}

/// The answer to a statement.
pub(crate) struct Reply {
    pub(crate) rows: Vec<Row>,
    /// True if an earlier attempt got no answer, so that it may have had its effect.
    pub(crate) was_lost: bool,
}

/// A place for a connection.
#[derive(Default)]
struct Lane {
    open: Mutex<Option<Arc<Open>>>,
}

struct Open {
    client: Client,
    statements: Mutex<HashMap<&'static str, Statement>>,
}

/// The reaction to an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Class {
    /// Repeat the statement on a new connection.
    Reconnect,
    /// Repeat the statement. It had no effect.
    Again,
    Final(Errno),
}

impl Database {
    /// Returns the connections for `config`, which are opened when they are needed.
    pub(crate) fn new(
        handle: Handle,
        config: Config,
        count: usize,
        unreachable: Unreachable,
    ) -> Database {
        let unreachable = RwLock::new(unreachable);
        let lanes = (0..count + 1).map(|_| Lane::default()).collect();
        Database { handle, config, lanes, unreachable, counters: Counters::default() }
    }

    /// Runs a statement for a call of the file system. Must not be called on the runtime.
    pub(crate) fn query(&self, sql: &'static str, params: &[Param<'_>]) -> Result<Reply, Errno> {
        let lane = 1 + shard_index() % (self.lanes.len() - 1);
        self.handle.block_on(self.run(lane, sql, params, None))
    }

    /// Makes all calls fail that the database does not answer within `limit`, also those that wait
    /// already. For the end of a mount.
    pub(crate) fn give_up_after(&self, limit: Duration) {
        let mut unreachable = self.unreachable.write();
        *unreachable = match *unreachable {
            Unreachable::Wait => Unreachable::FailAfter(limit),
            Unreachable::FailAfter(old) => Unreachable::FailAfter(old.min(limit)),
        };
    }

    /// Returns how long a call of the file system may wait. None means for ever.
    pub(crate) fn limit(&self) -> Option<Duration> {
        match *self.unreachable.read() {
            Unreachable::Wait => None,
            Unreachable::FailAfter(limit) => Some(limit),
        }
    }

    /// Runs `future` on the runtime of the mount. Must not be called on the runtime.
    pub(crate) fn block_on<F: Future>(&self, future: F) -> F::Output {
        self.handle.block_on(future)
    }

    pub(crate) fn config(&self) -> &Config {
        &self.config
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
        self.run(0, sql, params, Some(limit)).await
    }

    /// Runs a statement once, on the connection of the session. For statements that must not be
    /// repeated, and for errors that a person reads.
    pub(crate) async fn query_once(
        &self,
        sql: &'static str,
        params: &[Param<'_>],
    ) -> Result<Vec<Row>, Error> {
        self.attempt(0, sql, params).await
    }

    async fn run(
        &self,
        lane: usize,
        sql: &'static str,
        params: &[Param<'_>],
        limit: Option<Duration>,
    ) -> Result<Reply, Errno> {
        let start = Instant::now();
        let (mut was_lost, mut pause) = (false, PAUSES.0);
        loop {
            let class = match tokio::time::timeout(STALL, self.attempt(lane, sql, params)).await {
                Ok(Ok(rows)) => {
                    if was_lost {
                        log::warn!("the database answers again, after {:.1?}", start.elapsed());
                    }
                    return Ok(Reply { rows, was_lost });
                }
                Ok(Err(error)) => {
                    let class = class_of(&error);
                    if class != Class::Again && !was_lost {
                        log::warn!("database: {}", text_of(&error));
                    }
                    class
                }
                Err(_) => Class::Reconnect,
            };
            match class {
                Class::Final(errno) => return Err(errno),
                Class::Again => {}
                Class::Reconnect => {
                    was_lost = true;
                    self.lanes[lane].open.lock().await.take();
                }
            }
            let limit = limit.or(self.limit());
            if limit.is_some_and(|limit| start.elapsed() >= limit) {
                return Err(Errno::IO);
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(PAUSES.1);
        }
    }

    async fn attempt(
        &self,
        lane: usize,
        sql: &'static str,
        params: &[Param<'_>],
    ) -> Result<Vec<Row>, Error> {
        let open = self.open(lane).await?;
        let known = open.statements.lock().await.get(sql).cloned();
        let statement = match known {
            Some(statement) => statement,
            None => {
                let statement = open.client.prepare(sql).await?;
                open.statements.lock().await.insert(sql, statement.clone());
                statement
            }
        };
        self.counters.statements.add(1);
        open.client.query(&statement, params).await
    }

    /// Returns the connection of a lane. Opens it if there is none.
    async fn open(&self, lane: usize) -> Result<Arc<Open>, Error> {
        let mut place = self.lanes[lane].open.lock().await;
        if let Some(open) = place.as_ref().filter(|open| !open.client.is_closed()) {
            return Ok(open.clone());
        }
        let (client, connection) = self.config.connect(NoTls).await?;
        self.handle.spawn(async move {
            // The error also reaches each statement that waits, which reports it.
            let _ = connection.await;
        });
        client.batch_execute(SETTINGS).await?;
        self.counters.connections.add(1);
        let open = Arc::new(Open { client, statements: Mutex::default() });
        *place = Some(open.clone());
        Ok(open)
    }
}

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
        "57P01" | "57P02" | "57P03" | "25006" => Class::Reconnect,
        "57014" => Class::Again,
        code if code.starts_with("08") => Class::Reconnect,
        code if code.starts_with("40") || code.starts_with("53") => Class::Again,
        _ => Class::Final(Errno::IO),
    }
}

/// Returns an error with its cause, which its own text leaves out.
pub(crate) fn text_of(error: &Error) -> String {
    match std::error::Error::source(error) {
        Some(source) => format!("{error}: {source}"),
        None => error.to_string(),
    }
}
