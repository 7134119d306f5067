//! A file system for many machines: metadata in PostgreSQL, file contents in objects.
//!
//! [`ClusterFs`] is a back end of corewalk. Its metadata is in a PostgreSQL database, with one
//! function, and so one round trip, for each operation. Contents of at most 16 KiB lie in the
//! database too; larger ones in immutable objects ([`objects`]). A directory that was read is
//! cached under a lease, and answers lookups and attributes without a round trip.
//!
//! Several mounts may use a file system at once. Names and attributes are linearizable. An open
//! sees the contents that an earlier close has written.
//!
//! # Terms
//! - A *session* is one mount. A *lease* on a directory lets a session answer from its cache. It
//!   covers the names, absent ones too, and the attributes of the inodes at *home* there.
//! - The home of a file is a directory with a name of it. A directory is its own home.
//! - A *change* alters what leases cover. An *intent* is a change that waits for other sessions.
//!
//! # Guarantees
//! - K.1: a session answers from a cache only while its lease has time left, by its own
//!   CLOCK_BOOTTIME before it sent the last renewal, less a margin.
//! - K.2: a fill takes the lock of the directory shared, then inserts the lease, then reads. If a
//!   change waits, it inserts no lease, and its answer is not cached.
//! - K.3: a change takes the locks of its directories exclusively, in ascending order, and then
//!   looks for leases of others. If there are any, it changes nothing but writes an intent.
//! - K.4: on an intent, a holder drops what it caches of the directories, and deletes its leases.
//! - K.5: the writer sends its change again until no live session has a lease on the directories.
//! - K.6: what a change alters is unknown to the caches of its own mount from before it is sent
//!   until its reply. An answer that was asked for before the change ended is not cached.
//! - K.7: the kernel keeps an answer for at most what is left of the lease. It has dropped the
//!   answer before an own change is sent, and before a foreign one is acknowledged.
//! - K.8: a session whose time is over is marked dead for ever, and its changes are refused.
//! - K.9: a change is made exactly once, however often its request is repeated.
//! - K.10: leases vanish when the database crashes. Changes then wait until each other session has
//!   died or registered again, with empty caches.
//! - K.11: a request without an answer is repeated on a new connection.
//! - K.12: notifications may be lost. Each renewal tells of the intents that wait for the session.
//!
//! # Locks
//! Contents of a file, then the session, then the cache. No statement runs with the cache locked.
//!
//! Source: Gray and Cheriton, "Leases" (SOSP 1989); RFC 8881 (sessions and slots of NFSv4.1).

#![forbid(unsafe_code)]

mod connection;
mod data;
mod directory;
mod filesystem;
mod fsck;
mod intents;
mod meta;
mod mkfs;
mod node;
pub mod objects;
mod options;
mod session;

pub use filesystem::{ClusterFs, OpenError};
pub use fsck::{Finding, Report, fsck};
pub use mkfs::{MakeError, mkfs};
#[doc(hidden)]
pub use options::Flaws;
pub use options::{ClusterOptions, Place, SCHEME, Unreachable, Url, UrlError};
pub use session::Holder;

/// Compiles the example of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
