//! A file system that is kept in a directory of the host.
//!
//! A [`Store`] is a back end of `corewalk`, like its tmpfs, whose files survive: an fsync that returned
//! is durable, and after a crash at any moment the store is what it was at a commit, with all that was
//! confirmed. It is for one process at a time: its directory is locked.
//!
//! # How it works
//! After ext4 with `data=ordered`. An operation changes inodes in memory and puts their records into
//! the running transaction (`journal`); a commit, asked for by fsync or every few seconds, makes the
//! data of files durable and then writes all records of the transaction to an embedded database as one
//! (`database`). So there is no log of our own to replay, and nothing to repair after a crash.
//!
//! | module | what is in it |
//! |---|---|
//! | `device`, `place` | where bytes are kept; the files of the directory |
//! | `record`, `layer`, `journal`, `database` | records, a transaction of them, commits |
//! | `inode`, `table`, `names`, `directory` | inodes in memory, what changes names, entries |
//! | `content`, `extents`, `alloc`, `budget` | bytes of files, where they are, what is free |
//! | `xattr`, `blocks`, `share` | sets of attributes, blocks that hold them, how equal ones are found |
//! | `fsck` | what must hold between records |
//!
//! # Guarantees
//! - S.1: when [`Store::sync`] returns, what was done before is durable. When `fsync` returns, that is so
//!   for the file, and for its names; a directory above it that was renamed is another file's business,
//!   as in ext4.
//! - S.2: after a crash the store is at the end of a commit. Only bytes that were written over older ones
//!   of the same file may be newer than that. No file shows bytes of another one, or what nobody wrote.
//! - S.3: a host that runs full gives `ENOSPC`, one that cannot read `EIO`. If a commit fails for another
//!   reason, or the reserve that is kept for it is not enough, fsync says `EIO` and changes `EROFS` from
//!   then on; what was confirmed is there when the store is mounted again.
//! - S.4: of two mounts of one directory the second is refused; so is a format that is not known.
//!
//! # Why redb
//! | | redb 4 | fjall 3 | heed (LMDB) | SQLite |
//! |---|---|---|---|---|
//! | form | copy-on-write B-tree, one file | log-structured tree, many files | copy-on-write B-tree, mapped | B-tree and log |
//! | a durable commit | one sync, checksums | one sync of its log | two syncs | one sync of its log, later a checkpoint |
//! | after a crash | the last commit; reads all pages once | replays its log | the last commit | replays its log |
//! | storage can be replaced by a test | yes, a trait | no | no | yes, through C |
//! | language, licence | Rust, MIT or Apache-2.0 | Rust, MIT or Apache-2.0 | C and bindings, OpenLDAP | C, public domain |
//!
//! What decided is that faults can be put under it (`tests/store/cuts.rs`), that it has one file, and
//! that it builds without C. Its price is the pass over all pages after a crash. This table is from the
//! projects' documentation; speeds were not compared.
//!
//! # What it refuses
//! - Two processes at once, and sharing between machines.
//! - Snapshots, compression and checksums of file data.
//! - To give blocks of the data file back to the host: what is freed serves other files.
//! - `ioctl`s and quotas by user: `size=` and `nr_inodes=` are for all.
//!
//! # What is known to be weak
//! - The reserve for commits on a full host covers 8,192 pages of the database. A transaction that changes
//!   more records than that, far from each other, on a host that is full, ends read-only.
//! - While a commit is slow, what comes after it grows in memory without a bound of its own.
//! - After a read of the database has failed, what is not in memory is `EIO` until the next commit, which
//!   opens it again.
//! - A store whose pages were changed by somebody who knows how is detected by `fsck`, and by a mount only
//!   in part.
//! - To mount again right after `EIO` from fsync, on a host that then says nothing more about the pages
//!   that it lost, may show what is not on the disk: restart the host first.
//!
//! # Lock order
//! The gate of the journal; the bytes of one file; directories in ascending order of their numbers; one
//! inode that is none; a block of attributes; then leaves: shards of tables, of layers and of the index,
//! windows and tree of free blocks. `names` says more. A commit holds the gate for an instant, and
//! nothing of the others.
//!
//! # Examples
//! ```
//! use corewalk::{Errno, FileKind, FileSystem, Make, Name, Node};
//! use corewalk_store::{Store, StoreOptions, fsck};
//!
//! let dir = std::env::temp_dir().join(format!("store-example-{}", std::process::id()));
//! let store = Store::open(&dir, &StoreOptions::default())?;
//! let root = Node::detached(store.root()?.ino, FileKind::Directory);
//! let made = store.make(root, Name::new(b"file")?, &Make::new(0o644, 0, 0))?;
//! let file = Node::detached(made.ino, FileKind::Regular);
//! store.write(file, 0, 0, b"kept")?;
//! store.fsync(file, 0, false)?;
//! drop(store);
//!
//! assert!(fsck(&dir)?.findings.is_empty());
//! let store = Store::open(&dir, &StoreOptions::default())?;
//! assert_eq!(store.lookup(root, Name::new(b"file")?)?.size, 4);
//! # drop(store);
//! # std::fs::remove_dir_all(&dir)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Source: Linux `fs/ext4`, `fs/jbd2`; Kara, "ext\[24\]: MBCache rewrite", December 2015.

#![forbid(unsafe_code)]

mod alloc;
mod blocks;
mod budget;
mod content;
mod database;
mod device;
mod directory;
mod extents;
mod filesystem;
mod fsck;
mod hash;
mod inode;
mod journal;
mod layer;
mod names;
mod place;
mod record;
mod share;
mod store;
mod table;
mod xattr;

pub use device::{Device, FileDevice};
pub use fsck::{Finding, Report, fsck, fsck_devices};
pub use journal::Devices;
pub use place::OpenError;
pub use share::{MbcacheIndex, NoSharing, Removal, ShareIndex};
pub use store::{Store, StoreOptions, StoreStats};
