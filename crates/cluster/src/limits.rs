//! The limits of a file system, and how much of it is used.
//!
//! The database stores the limits, and counts the inodes and the sum of all sizes. A mount reads
//! the limits and the counts when it renews its session, so a change costs no further statement.
//! Until the next renewal, the mount adds its own changes to the counts. It does not know the
//! changes of other mounts, so all mounts together may exceed a limit.
//!
//! A call that makes a file longer reserves the new bytes before it changes anything. While they
//! are in the buffer they are *uncounted*: the database does not count them yet. So a flush never
//! exceeds a limit.
//!
//! If the database answers a renewal between a change and the reply to the change, the mount counts
//! the change twice. So a call that reaches a limit asks the database for the counts, and tries
//! once more (`ClusterFs::with_room`).

use corewalk::Errno;
use corewalk_base::Mutex;
use tokio_postgres::{Error, Row};

use crate::connection::DatabaseError;
use crate::filesystem::{OpenError, new_runtime};
use crate::mkfs::VERSION;
use crate::options::Url;

const FORMAT: &str = "SELECT version FROM format";
/// Changes the limits whose parameters are not NULL. 0 removes a limit.
const SET: &str = "UPDATE format SET max_bytes = nullif(coalesce($1::bigint, max_bytes), 0),
    max_inodes = nullif(coalesce($2::bigint, max_inodes), 0)";
const GET: &str = "SELECT * FROM cw_statfs(true)";

/// The use of a file system, and its limits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Usage {
    /// The number of inodes.
    pub inodes: u64,
    /// The sum of the sizes of all inodes. A directory has 4096 bytes.
    pub bytes: u64,
    /// The most inodes. None if there is no limit.
    pub max_inodes: Option<u64>,
    /// The most bytes. None if there is no limit.
    pub max_bytes: Option<u64>,
}

/// Changes the limits of the file system at `url`: the most bytes, and the most inodes. None leaves
/// a limit as it is, and 0 removes it. Mounts follow when they renew their sessions.
///
/// # Errors
/// The reason why the limits cannot be read or changed.
pub fn limits(url: &Url, bytes: Option<u64>, inodes: Option<u64>) -> Result<Usage, OpenError> {
    let runtime = new_runtime().map_err(OpenError::Runtime)?;
    runtime.block_on(async {
        let failed = |error: Error| OpenError::Database(DatabaseError::Client(error));
        let (client, _) = url.address.open().await.map_err(OpenError::Database)?;
        let format = client.query_one(FORMAT, &[]).await.map_err(DatabaseError::Client);
        let format = format.map_err(|error| match error.is_undefined() {
            true => OpenError::NoFileSystem,
            false => OpenError::Database(error),
        })?;
        let version = format.get(0);
        if version != VERSION {
            return Err(OpenError::Version(version));
        }
        if bytes.is_some() || inodes.is_some() {
            let [bytes, inodes] =
                [bytes, inodes].map(|limit| limit.map(|limit| limit.min(i64::MAX as u64) as i64));
            client.execute(SET, &[&bytes, &inodes]).await.map_err(failed)?;
        }
        Ok(Usage::of(&client.query_one(GET, &[]).await.map_err(failed)?))
    })
}

impl Usage {
    /// Reads a row of `cw_statfs`.
    pub(crate) fn of(row: &Row) -> Usage {
        let count = |name: &str| row.get::<_, i64>(name).max(0) as u64;
        let limit = |name: &str| row.get::<_, Option<i64>>(name).map(|limit| limit.max(0) as u64);
        Usage {
            inodes: count("inodes"),
            bytes: count("bytes"),
            max_inodes: limit("max_inodes"),
            max_bytes: limit("max_bytes"),
        }
    }
}

/// How many inodes and bytes the limits still allow, as far as this mount knows.
#[derive(Debug, Default)]
pub(crate) struct Room(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// The counts that the database returned last, with the changes of this mount since then.
    usage: Usage,
    /// The bytes of file sizes that only this mount knows, because they are not flushed.
    uncounted: u64,
}

impl Room {
    /// Notes an answer of the database.
    pub(crate) fn learn(&self, usage: Usage) {
        self.0.lock().usage = usage;
    }

    pub(crate) fn is_limited(&self) -> bool {
        let usage = self.0.lock().usage;
        usage.max_inodes.is_some() || usage.max_bytes.is_some()
    }

    /// Makes `change` if the limits allow its new inodes and bytes, and counts them.
    ///
    /// # Errors
    /// `ENOSPC` if a limit is reached; the errors of the change.
    pub(crate) fn with<T>(
        &self,
        inodes: u64,
        bytes: u64,
        change: impl FnOnce() -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        {
            let mut state = self.0.lock();
            state.check(inodes, bytes)?;
            state.usage.inodes += inodes;
            state.usage.bytes = state.usage.bytes.saturating_add(bytes);
        }
        change().inspect_err(|_| {
            let usage = &mut self.0.lock().usage;
            usage.inodes = usage.inodes.saturating_sub(inodes);
            usage.bytes = usage.bytes.saturating_sub(bytes);
        })
    }

    /// Reserves bytes of a file's size. The database counts them after the next flush.
    ///
    /// # Errors
    /// `ENOSPC` if a limit is reached.
    pub(crate) fn take_uncounted(&self, bytes: u64) -> Result<(), Errno> {
        let mut state = self.0.lock();
        state.check(0, bytes)?;
        state.uncounted += bytes;
        Ok(())
    }

    /// Notes that the database now counts `bytes` that were reserved before.
    pub(crate) fn count(&self, bytes: u64) {
        let mut state = self.0.lock();
        state.uncounted -= bytes;
        state.usage.bytes = state.usage.bytes.saturating_add(bytes);
    }

    /// Notes that reserved bytes will not be written, because they were discarded or cut off.
    pub(crate) fn release(&self, bytes: u64) {
        self.0.lock().uncounted -= bytes;
    }

    pub(crate) fn uncounted(&self) -> u64 {
        self.0.lock().uncounted
    }
}

impl State {
    fn check(&self, inodes: u64, bytes: u64) -> Result<(), Errno> {
        let fits = |used: u64, more: u64, max: Option<u64>| {
            more == 0 || max.is_none_or(|max| used.saturating_add(more) <= max)
        };
        let usage = self.usage;
        let stored = usage.bytes.saturating_add(self.uncounted);
        let has_room =
            fits(usage.inodes, inodes, usage.max_inodes) && fits(stored, bytes, usage.max_bytes);
        if has_room { Ok(()) } else { Err(Errno::NOSPC) }
    }
}
