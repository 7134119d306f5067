//! A file system that is kept in a directory of the host.
//!
//! A [`Store`] is a back end of `corewalk`, like its tmpfs, but its files survive a restart. A file
//! is durable once `fsync` has returned. Only one process at a time can mount a store.
//!
//! The design follows ext4 with `data=ordered`. An operation changes inodes in memory and puts
//! their records into the running transaction (`journal`). `fsync` commits that transaction with
//! one write and one sync of a write-ahead log (`log`).
//!
//! A periodic commit writes to a database (`database`) instead and makes the log void, and so does
//! a commit that the log cannot take. A mount after a crash replays the log.
//!
//! | module | contents |
//! |---|---|
//! | `device`, `store_dir` | byte devices; the files in the store's directory |
//! | `mount`, `buffered` | the checks of a mount; the overlay that buffers its writes |
//! | `record`, `layer`, `journal`, `log`, `database` | records, transactions, commits |
//! | `inode`, `inode_table`, `names`, `directory` | inodes in memory, names, lock order |
//! | `content`, `extents`, `alloc`, `dirty` | file data: cache, location, free blocks, new bytes |
//! | `xattr`, `blocks`, `block_ids`, `share`, `late` | attributes and de-duplication |
//! | `fsck`, `overlay` | invariants between records; a check that writes nothing |
//!
//! # Guarantees
//! - S.1: [`Store::sync`] *confirms* all earlier changes: they are durable when it returns. `fsync`
//!   confirms a file and its names, but not the rename of a directory above it.
//! - S.2: after a crash and the replay of the log, the store is in the state of some commit. Only
//!   bytes that were overwritten in place may be newer. No file shows bytes of another file. With
//!   [`StoreOptions::is_dirsync`], a change of a directory is durable when its call returns.
//! - S.3: a full host gives `ENOSPC`, and a failed read `EIO`. Any other failure of a commit makes
//!   the store read-only: `fsync` fails with `EIO`, changes with `EROFS`. No durable file is lost.
//! - S.4: a mount of a mounted directory, or of an unknown format version, is refused.
//! - S.5: a refused mount has changed nothing, except that it may have made the file `lock`. A
//!   failed replay of the log loses no durable data.
//! - S.6: a mount refuses a database with a damaged page, because the page may hide an extent,
//!   whose blocks would look free. A mount also refuses two extents that use the same block.
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
//! store.write(file, 0, b"kept")?;
//! store.fsync(file, false)?;
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
//! Limits: the page `store.md`. Source: Linux `fs/ext4`, `fs/jbd2`; document 004.

#![forbid(unsafe_code)]

mod alloc;
mod block_ids;
mod blocks;
mod buffered;
mod content;
mod database;
mod device;
mod directory;
mod dirty;
mod extents;
mod filesystem;
mod fsck;
mod hash;
mod inode;
mod inode_table;
mod journal;
mod late;
mod layer;
mod log;
mod mount;
mod names;
mod overlay;
mod record;
mod share;
mod store;
mod store_dir;
mod xattr;

pub use device::{Device, FileDevice};
pub use fsck::{Finding, Report, fsck, fsck_devices};
pub use journal::Devices;
pub use share::{MbcacheIndex, NoSharing, Removal, ShareIndex};
pub use store::{Store, StoreOptions, StoreStats};
pub use store_dir::{OpenError, holder};

/// Makes the example in the README a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
