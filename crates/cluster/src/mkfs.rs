//! Makes a file system in a database.
//!
//! All tables and functions are in the schema `corewalk`, so the database may also have other
//! schemas. One transaction makes all of them. [`mkfs`] refuses a schema `corewalk` that has tables
//! of another program.

use tokio_postgres::Error;

use crate::connection::DatabaseError;
use crate::filesystem::new_runtime;
use crate::options::{Place, Url};
use crate::session::Holder;

const SCHEMA: &str = include_str!("schema.sql");
/// The SQL functions of the file system. Each file comes after the files whose functions it calls.
const FUNCTIONS: [&str; 8] = [
    include_str!("functions/results.sql"),
    include_str!("functions/sessions.sql"),
    include_str!("functions/changes.sql"),
    include_str!("functions/junctions.sql"),
    include_str!("functions/locks.sql"),
    include_str!("functions/names.sql"),
    include_str!("functions/contents.sql"),
    include_str!("functions/attributes.sql"),
];
pub(crate) const VERSION: i32 = 1;

const EXISTS: &str = "SELECT to_regclass('corewalk.format') IS NOT NULL";
/// Returns a table or view in the schema that is not in the list $1. Such a table belongs to
/// another program.
const FOREIGN: &str = "SELECT c.relname::text FROM pg_class c
    WHERE c.relnamespace = to_regnamespace('corewalk') AND c.relkind IN ('r', 'p', 'f', 'v', 'm')
    AND c.relname::text <> ALL ($1) LIMIT 1";
const LIVE: &str = "SELECT host, pid, to_char(since, 'YYYY-MM-DD HH24:MI:SS TZ')
    FROM corewalk.session WHERE NOT dead AND until > clock_timestamp() LIMIT 1";
const ROOT: &str = "INSERT INTO corewalk.node SELECT 1, 1, 16384 | 493, $1, $2, 2, 4096, 0,
    t, t, t, t, 1, 0, NULL, NULL
    FROM (SELECT (extract(epoch FROM clock_timestamp()) * 1e9)::bigint AS t) AS now";
const FORMAT: &str = "INSERT INTO corewalk.format (version, data) VALUES ($1, $2)";
const USAGE: &str = "INSERT INTO corewalk.usage VALUES (1, 4096)";

/// The reason why no file system was made. The database has not changed.
#[derive(Debug)]
#[non_exhaustive]
pub enum MakeError {
    /// The database has a file system already.
    Exists,
    /// The schema `corewalk` has tables of another program. The value is the name of one of them.
    Foreign(String),
    /// A mount uses the file system that would be replaced.
    Busy(Holder),
    /// The URL has no `data=`.
    NoData,
    /// The database cannot be reached, or reports an error.
    Database(DatabaseError),
    /// The runtime cannot be started.
    Runtime(std::io::Error),
}

/// Makes a file system in the database at `url`. `owner` is the user and the group of the root
/// directory. If `replaces` is true, an existing file system in the database is removed, but its
/// objects stay in the store.
///
/// # Errors
/// The reason why no file system was made.
pub fn mkfs(url: &Url, owner: (u32, u32), replaces: bool) -> Result<(), MakeError> {
    let place = url.data().ok_or(MakeError::NoData)?;
    let runtime = new_runtime().map_err(MakeError::Runtime)?;
    runtime.block_on(make(url, place, owner, replaces))
}

async fn make(
    url: &Url,
    place: &Place,
    owner: (u32, u32),
    replaces: bool,
) -> Result<(), MakeError> {
    let failed = |error: Error| MakeError::Database(DatabaseError::Client(error));
    let (mut client, _) = url.address.open().await.map_err(MakeError::Database)?;
    let transaction = client.transaction().await.map_err(failed)?;
    if transaction.query_one(EXISTS, &[]).await.map_err(failed)?.get(0) {
        if !replaces {
            return Err(MakeError::Exists);
        }
        if let Some(row) = transaction.query_opt(LIVE, &[]).await.map_err(failed)? {
            let (host, pid, since) = (row.get(0), row.get(1), row.get(2));
            return Err(MakeError::Busy(Holder { host, pid, since }));
        }
    }
    if let Some(row) = transaction.query_opt(FOREIGN, &[&tables()]).await.map_err(failed)? {
        return Err(MakeError::Foreign(row.get(0)));
    }
    let clean = "DROP SCHEMA IF EXISTS corewalk CASCADE";
    transaction.batch_execute(clean).await.map_err(failed)?;
    transaction.batch_execute(SCHEMA).await.map_err(failed)?;
    for functions in FUNCTIONS {
        transaction.batch_execute(functions).await.map_err(failed)?;
    }
    let (uid, gid) = (i64::from(owner.0), i64::from(owner.1));
    transaction.execute(FORMAT, &[&VERSION, &place.to_string()]).await.map_err(failed)?;
    transaction.execute(ROOT, &[&uid, &gid]).await.map_err(failed)?;
    transaction.execute(USAGE, &[]).await.map_err(failed)?;
    transaction.commit().await.map_err(failed)
}

fn tables() -> Vec<&'static str> {
    let name = |line: &'static str| {
        let rest = line.strip_prefix("CREATE ")?;
        rest.strip_prefix("UNLOGGED ").unwrap_or(rest).strip_prefix("TABLE ")?.split(' ').next()
    };
    SCHEMA.lines().filter_map(name).collect()
}

impl std::fmt::Display for MakeError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            MakeError::Exists => f.write_str("the database has a file system already"),
            MakeError::Foreign(table) => {
                write!(f, "its schema corewalk has a table of another program: {table}")
            }
            MakeError::Busy(Holder { host, pid, since }) => {
                write!(f, "mounted by {host} pid {pid} since {since}")
            }
            MakeError::NoData => f.write_str("the URL has no data=file:DIR, the place of contents"),
            MakeError::Database(error) => error.fmt(f),
            MakeError::Runtime(error) => write!(f, "cannot start threads: {error}"),
        }
    }
}

impl std::error::Error for MakeError {}
