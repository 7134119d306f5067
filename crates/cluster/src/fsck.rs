//! Checks a cluster file system.
//!
//! The check changes nothing. It reads one snapshot of the database, so mounts may work meanwhile.
//! After the snapshot it lists the objects. A file names its objects in *slices*. Each object of a
//! slice must exist and be long enough. A mount may have replaced an object since the snapshot. So
//! a missing object is an error only if a file still uses it after the listing.
//!
//! # Strays
//! A mount records an object in the database before it writes the object. The database knows the
//! object until it is removed. But the store may still write the object later, if the mount has not
//! waited for the end of its request. Such an object is a *stray*: it is in the store, but the
//! database does not know it. The check asks the database after the listing, so a new object is no
//! stray. No file will ever use a stray, because no key is used again.

use std::collections::HashMap;
use std::fmt;

use tokio_postgres::{Client, Error, Row, Transaction};

use crate::connection::DatabaseError;
use crate::filesystem::{OpenError, new_runtime};
use crate::mkfs::VERSION;
use crate::objects::Objects;
use crate::options::{Place, Url};

/// An error of a file system.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Finding {
    /// A name is wrong: its inode does not exist or has another type, or its parent is no
    /// directory.
    Name {
        /// The directory.
        parent: i64,
        /// The name.
        name: Vec<u8>,
        /// The inode.
        ino: i64,
    },
    /// An inode has another number of links than `nlink` says.
    Links {
        /// The inode.
        ino: i64,
        /// The stored number.
        stored: i64,
        /// The number that was counted.
        counted: i64,
    },
    /// An inode without links is no orphan of a session (a file without a name that is in use). Or
    /// an orphan has links.
    Orphan {
        /// The inode.
        ino: i64,
    },
    /// The stored home of an inode is no directory that has a name of it. The home of a directory
    /// is its parent.
    Home {
        /// The inode.
        ino: i64,
        /// The stored home.
        home: i64,
    },
    /// A directory cannot be reached from the root.
    Unreachable {
        /// The directory.
        ino: i64,
    },
    /// Extended attributes or contents belong to an inode that does not exist.
    Unowned {
        /// The inode.
        ino: i64,
    },
    /// An object that a file needs is missing or too short.
    Object {
        /// The file.
        ino: i64,
        /// The key of the object.
        key: String,
    },
    /// A mount may remove an object that a file needs, because the database also lists the object
    /// as new or as unused.
    Doomed {
        /// The file.
        ino: i64,
        /// The key of the object.
        key: String,
    },
    /// The totals of inodes and bytes are wrong.
    Totals {
        /// The stored numbers.
        stored: (i64, i64),
        /// The numbers that were counted.
        counted: (i64, i64),
    },
}

/// The result of a check.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Report {
    /// The errors.
    pub findings: Vec<Finding>,
    /// The number of inodes.
    pub inodes: i64,
    /// The number of inodes without links.
    pub orphans: i64,
    /// The number of bytes of all files and directories.
    pub bytes: i64,
    /// The number of objects that files use.
    pub objects: i64,
    /// The number of objects that no file uses. A mount removes them after a minute, except the
    /// strays.
    pub unused_objects: i64,
    /// The keys of the unused objects that the database does not know.
    pub strays: Vec<String>,
}

const FORMAT: &str = "SELECT version, data, id::text FROM format";
/// Counts the inodes, their bytes, and the inodes without links. The bytes have the same upper
/// bound as in `cw_statfs`.
const TOTALS: &str = "SELECT count(*),
    least(coalesce(sum(size), 0), 9223372036854775807)::bigint, count(*) FILTER (WHERE nlink = 0) FROM node";
const NAMES: &str = "SELECT e.parent, e.name, e.ino FROM edge e
    LEFT JOIN node n ON n.ino = e.ino LEFT JOIN node p ON p.ino = e.parent
    WHERE n.ino IS NULL OR p.ino IS NULL OR n.mode & 61440 <> e.kind OR p.mode & 61440 <> 16384";
const FILE_LINKS: &str = "SELECT n.ino, n.nlink, count(e.ino) FROM node n
    LEFT JOIN edge e ON e.ino = n.ino WHERE n.mode & 61440 <> 16384
    GROUP BY n.ino, n.nlink HAVING n.nlink <> count(e.ino)";
/// Finds directories with a wrong number of links. The links of a directory are its name, its `.`,
/// and the `..` of each subdirectory. The root has no name, but it has a `..` of its own.
const DIR_LINKS: &str = "SELECT n.ino, n.nlink, c.links FROM node n,
    LATERAL (SELECT CASE WHEN n.ino = 1 THEN 2
        ELSE 2 * (SELECT count(*) FROM edge WHERE ino = n.ino) END
        + (SELECT count(*) FROM edge WHERE parent = n.ino AND kind = 16384) AS links) c
    WHERE n.mode & 61440 = 16384 AND n.nlink <> c.links";
const ORPHANS: &str = "SELECT coalesce(n.ino, o.ino) FROM (SELECT ino FROM node WHERE nlink = 0) n
    FULL JOIN orphan o ON o.ino = n.ino WHERE n.ino IS NULL OR o.ino IS NULL";
const HOMES: &str = "SELECT ino, home FROM node n WHERE nlink > 0 AND ino <> 1
    AND NOT EXISTS (SELECT FROM edge e WHERE e.ino = n.ino AND e.parent = n.home)";
const UNREACHABLE: &str = "WITH RECURSIVE reached AS (SELECT 1::bigint AS ino
        UNION SELECT e.ino FROM edge e JOIN reached r ON e.parent = r.ino WHERE e.kind = 16384)
    SELECT ino FROM node WHERE mode & 61440 = 16384 AND nlink > 0
        AND ino NOT IN (SELECT ino FROM reached)";
const UNOWNED: &str = "SELECT DISTINCT ino FROM (SELECT ino FROM slice UNION ALL
    SELECT ino FROM xattr) x WHERE NOT EXISTS (SELECT FROM node n WHERE n.ino = x.ino)";
const DOOMED: &str = "SELECT s.ino, s.object FROM slice s
    WHERE EXISTS (SELECT FROM pending_object p WHERE p.object = s.object)
        OR EXISTS (SELECT FROM dead_object d WHERE d.object = s.object)";
const STORED: &str = "SELECT inodes, bytes FROM cw_statfs(true)";
const SLICES: &str = "SELECT ino, object, len FROM slice WHERE object IS NOT NULL";
const STRAYS: &str = "SELECT o FROM unnest($1::text[]) o
    WHERE NOT EXISTS (SELECT FROM slice s WHERE s.object = o)
        AND NOT EXISTS (SELECT FROM pending_object p WHERE p.object = o)
        AND NOT EXISTS (SELECT FROM dead_object d WHERE d.object = o)";
/// Records strays as unused objects, so that a mount removes them. Checks again that no file uses
/// them, because the check may have read a standby that lags behind.
const RECORD: &str = "INSERT INTO dead_object SELECT o, clock_timestamp() FROM unnest($1::text[]) o
    WHERE NOT EXISTS (SELECT FROM slice s WHERE s.object = o)
        AND NOT EXISTS (SELECT FROM pending_object p WHERE p.object = o)
    ON CONFLICT DO NOTHING";
const STILL: &str = "SELECT DISTINCT ino, object FROM slice WHERE object = ANY($1)";

type Check = (&'static str, fn(&Row) -> Finding);

/// Checks the file system at `url`. `settings` are those of the object store
/// ([`ClusterOptions::settings`](crate::ClusterOptions::settings)).
///
/// # Errors
/// The reason why the file system cannot be checked.
pub fn fsck(url: &Url, settings: &[(String, String)]) -> Result<Report, OpenError> {
    let runtime = new_runtime().map_err(OpenError::Runtime)?;
    runtime.block_on(check(url, settings))
}

/// Records the strays of a report in the database, so that mounts remove them.
///
/// # Errors
/// The reason why the strays cannot be recorded.
pub fn record_strays(url: &Url, report: &Report) -> Result<(), OpenError> {
    let runtime = new_runtime().map_err(OpenError::Runtime)?;
    runtime.block_on(async {
        let (client, _) = url.address.open().await.map_err(OpenError::Database)?;
        let recorded = client.execute(RECORD, &[&report.strays]).await;
        recorded.map_err(|error| OpenError::Database(DatabaseError::Client(error)))?;
        Ok(())
    })
}

async fn check(url: &Url, settings: &[(String, String)]) -> Result<Report, OpenError> {
    let failed = |error: Error| OpenError::Database(DatabaseError::Client(error));
    let (mut client, _) = url.address.open().await.map_err(OpenError::Database)?;
    let snapshot = client
        .build_transaction()
        .isolation_level(tokio_postgres::IsolationLevel::RepeatableRead)
        .read_only(true);
    let snapshot = snapshot.start().await.map_err(failed)?;
    let format = snapshot.query_one(FORMAT, &[]).await.map_err(DatabaseError::Client);
    let format = format.map_err(|error| match error.is_undefined() {
        true => OpenError::NoFileSystem,
        false => OpenError::Database(error),
    })?;
    let (version, data, id): (i32, String, String) = (format.get(0), format.get(1), format.get(2));
    if version != VERSION {
        return Err(OpenError::Version(version));
    }
    let place = Place::parse(&data).map_err(|_| OpenError::UnknownData(data))?;
    let mut report = Report::default();
    check_tables(&snapshot, &mut report).await.map_err(failed)?;
    let slices = snapshot.query(SLICES, &[]).await.map_err(failed)?;
    snapshot.commit().await.map_err(failed)?;
    let place = place.of_file_system(&id).ok_or(OpenError::UnknownIdentity(id))?;
    let objects = Objects::open(&place, settings).map_err(OpenError::Objects)?;
    let listed = objects.list("").await.map_err(OpenError::Objects)?;
    let (missing, unused) = check_objects(&slices, listed, &mut report);
    check_again(&client, missing, &mut report).await.map_err(failed)?;
    let strays = client.query(STRAYS, &[&unused]).await.map_err(failed)?;
    report.strays = strays.iter().map(|row| row.get(0)).collect();
    Ok(report)
}

async fn check_tables(snapshot: &Transaction<'_>, report: &mut Report) -> Result<(), Error> {
    let totals = snapshot.query_one(TOTALS, &[]).await?;
    (report.inodes, report.bytes, report.orphans) = (totals.get(0), totals.get(1), totals.get(2));
    let checks: [Check; 8] = [
        (NAMES, |row| Finding::Name { parent: row.get(0), name: row.get(1), ino: row.get(2) }),
        (FILE_LINKS, links),
        (DIR_LINKS, links),
        (ORPHANS, |row| Finding::Orphan { ino: row.get(0) }),
        (HOMES, |row| Finding::Home { ino: row.get(0), home: row.get(1) }),
        (UNREACHABLE, |row| Finding::Unreachable { ino: row.get(0) }),
        (UNOWNED, |row| Finding::Unowned { ino: row.get(0) }),
        (DOOMED, |row| Finding::Doomed { ino: row.get(0), key: row.get(1) }),
    ];
    for (sql, finding) in checks {
        report.findings.extend(snapshot.query(sql, &[]).await?.iter().map(finding));
    }
    let stored = snapshot.query_one(STORED, &[]).await?;
    let (stored, counted) = ((stored.get(0), stored.get(1)), (report.inodes, report.bytes));
    if stored != counted {
        report.findings.push(Finding::Totals { stored, counted });
    }
    Ok(())
}

fn links(row: &Row) -> Finding {
    Finding::Links { ino: row.get(0), stored: row.get(1), counted: row.get(2) }
}

fn check_objects(
    slices: &[Row],
    listed: Vec<(String, u64)>,
    report: &mut Report,
) -> (Vec<String>, Vec<String>) {
    let mut missing = Vec::new();
    let mut objects: HashMap<String, u64> = listed.into_iter().collect();
    for row in slices {
        let (key, len): (String, i64) = (row.get(1), row.get(2));
        match objects.remove(&key) {
            Some(bytes) if bytes >= len as u64 => report.objects += 1,
            _ => missing.push(key),
        }
    }
    report.unused_objects = objects.len() as i64;
    (missing, objects.into_keys().collect())
}

async fn check_again(
    client: &Client,
    missing: Vec<String>,
    report: &mut Report,
) -> Result<(), Error> {
    if missing.is_empty() {
        return Ok(());
    }
    for row in client.query(STILL, &[&missing]).await? {
        report.findings.push(Finding::Object { ino: row.get(0), key: row.get(1) });
    }
    Ok(())
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Finding::Name { parent, name, ino } => {
                let name = name.escape_ascii();
                write!(f, "directory {parent}: the name '{name}' leads to inode {ino}, ")?;
                f.write_str("which does not exist or has another type")
            }
            Finding::Links { ino, stored, counted } => {
                write!(f, "inode {ino}: {stored} links are stored, {counted} were counted")
            }
            Finding::Orphan { ino } => write!(f, "inode {ino}: links and orphans do not agree"),
            Finding::Home { ino, home } => {
                write!(f, "inode {ino}: its home {home} has no name of it")
            }
            Finding::Unreachable { ino } => {
                write!(f, "directory {ino}: it cannot be reached from the root")
            }
            Finding::Unowned { ino } => {
                write!(f, "inode {ino}: it does not exist, but has attributes or contents")
            }
            Finding::Object { ino, key } => {
                write!(f, "inode {ino}: the object {key} is missing or too short")
            }
            Finding::Doomed { ino, key } => {
                write!(f, "inode {ino}: its object {key} is recorded as one to be removed")
            }
            Finding::Totals { stored, counted } => write!(
                f,
                "totals: {} inodes and {} bytes are stored, {} and {} were counted",
                stored.0, stored.1, counted.0, counted.1
            ),
        }
    }
}
