//! A file system for many machines: metadata in PostgreSQL, file contents in objects.
//!
//! [`ClusterFs`] keeps metadata, and contents of at most 16 KiB, in a PostgreSQL database. Larger
//! contents are in immutable objects ([`objects`]). Each operation is one SQL function.
//!
//! Several mounts may use a file system at the same time. Names and attributes are linearizable. An
//! open sees the contents that an earlier close has written, as in NFS.
//!
//! # Terms
//! - A *session* is the registration of a mount. It lives for a *lease time* after each renewal.
//! - A *lease* on a directory lets a session answer from its cache. It covers the directory's
//!   names, absent ones too, and the attributes of the inodes at *home* there. The home of a file
//!   is a directory that has a name of it. A directory is at home in itself.
//! - A *change* alters names or attributes. An *intent* records a change that waits for leases.
//!
//! # Guarantees
//! - K.1: a session answers from a cache only within its lease time, which it shortens by a margin.
//!   It counts the time by CLOCK_BOOTTIME, from the moment before it sent the renewal.
//! - K.2: a fill of the cache locks the directory shared, inserts the lease, and then reads. If an
//!   intent waits for leases on the directory, the fill inserts no lease and is not cached.
//! - K.3: a change locks its directories exclusively, in ascending order, and then looks for leases
//!   of other sessions. If there are any, the change only writes an intent.
//! - K.4: on an intent, a session drops its cache of the directories, then deletes its leases.
//! - K.5: a change is repeated until no other live session has a lease on its directories.
//! - K.6: while a mount waits for the reply to its own change, its cache lacks all that the change
//!   alters. An answer that was requested before this reply is not cached.
//! - K.7: the kernel keeps an answer at most for the rest of the lease time. It drops what a change
//!   alters before the mount sends or acknowledges the change (`directory/kernel.rs`).
//! - K.8: a session whose lease time is over is marked dead for ever. Its changes are refused.
//! - K.9: a change is made once, however often its request arrives, and never after it failed.
//! - K.10: a crash of the database deletes all leases. Changes then wait until each other session
//!   has died, or has dropped its caches and registered again.
//! - K.11: a statement without an answer is repeated on a new connection.
//! - K.12: notifications may be lost. Each renewal says whether intents wait for the session.
//! - K.13: a mount changes a file with a write lock only under the lock's session (`locks.rs`).
//!
//! # Locks
//! The order is: contents of a file, session, cache. No statement runs while the cache is locked.
//!
//! Source: Gray and Cheriton, "Leases" (SOSP 1989); RFC 8881 (sessions and slots of NFSv4.1).

#![forbid(unsafe_code)]

mod address;
mod connection;
mod data;
mod directory;
mod filesystem;
mod fsck;
mod intents;
mod junctions;
mod limits;
mod locks;
mod meta;
mod mkfs;
mod node;
pub mod objects;
mod options;
mod session;

pub use connection::DatabaseError;
pub use filesystem::{ClusterFs, OpenError};
pub use fsck::{Finding, Report, fsck, record_strays};
pub use junctions::{JUNCTION, Junction};
pub use limits::{Usage, limits};
pub use mkfs::{MakeError, mkfs};
#[doc(hidden)]
pub use options::Flaws;
pub use options::{ClusterOptions, Place, SCHEME, Unreachable, Url, UrlError};
pub use session::Holder;

/// Compiles the example of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
