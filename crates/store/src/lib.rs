//! A file system that is kept in a directory of the host.
//!
//! A [`Store`] is a back end of `corewalk`, like its tmpfs, whose files survive: an fsync that returned
//! is durable, and after a crash at any moment the store is what it was at a commit, with all that was
//! confirmed. It is for one process at a time: its directory is locked.
//!
//! # How it works
//! After ext4 with `data=ordered`. An operation changes inodes in memory and puts their records into
//! the running transaction (`journal`). A commit that fsync asks for appends a small transaction, with what
//! it wrote to files, to a log (`log`): one write and one sync. Every few seconds, and where that cannot
//! be, a commit makes the data of files durable and then writes all records to an embedded database as one
//! transaction (`database`), after which the log is void. After a crash what the log holds is put into the
//! database; there is nothing else to repair.
//!
//! | module | what is in it |
//! |---|---|
//! | `device`, `place` | where bytes are kept; the files of the directory |
//! | `mount`, `held` | what a mount looks at before it changes anything; what holds its changes back |
//! | `record`, `layer`, `journal`, `log`, `database` | records, a transaction of them, commits |
//! | `inode`, `table`, `names`, `directory` | inodes in memory, what changes names, entries |
//! | `content`, `extents`, `alloc`, `dirty` | bytes of files, where they are, what is free, what is new |
//! | `xattr`, `blocks`, `numbers`, `share`, `late` | sets of attributes, blocks that hold them, how equal ones are found, and when |
//! | `fsck`, `overlay` | what must hold between records; how that is looked at without a change |
//!
//! # Guarantees
//! - S.1: when [`Store::sync`] returns, what was done before is durable. When `fsync` returns, that is so
//!   for the file, and for its names; a directory above it that was renamed is another file's business,
//!   as in ext4.
//! - S.2: after a crash, once the log is read, the store is at the end of a commit. Only bytes that were
//!   written over older ones of the same file may be newer than that. No file shows bytes of another one, or what nobody wrote.
//!   With [`StoreOptions::is_dirsync`] a change of a directory is durable when its call returns.
//! - S.3: a host that runs full gives `ENOSPC`, one that cannot read `EIO`. If a commit fails for another
//!   reason, or the reserve that is kept for it is not enough, fsync says `EIO` and changes `EROFS` from
//!   then on; what was confirmed is there when the store is mounted again.
//! - S.4: of two mounts of one directory the second is refused; so is a format that is not known.
//! - S.5: a mount that is refused has changed no byte of the store, but for a `lock` that was missing. What
//!   fails once the mount has begun to put the log into the database loses nothing either.
//! - S.6: a mount refuses a store if `fsck` finds damaged pages in its database, or a block that is used twice. The mount
//!   computes which blocks are free from records, so a record that a damaged page hides would cost its file those blocks.
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
//! That is from the projects' documentation. What follows was measured once, by hand, by a program that is not in the
//! tree (an explanation, and no result): 400,000 records of 128 bytes with keys in no order, in transactions of 1,000,
//! on an ext4; redb 4.6, fjall 3.1, heed 0.22, SQLite by rusqlite 0.41 with a write-ahead log.
//!
//! | measured | redb | fjall | heed (LMDB) | SQLite |
//! |---|---|---|---|---|
//! | a durable commit of 8 records, us | 283-318 | 112-132 | 303-308 | 209-219 |
//! | a record of a bulk load, us | 5.3-6.1 | 1.5-1.6 | 13 (each transaction is synced) | 9.7-10.1 |
//! | a random read, ns | 686-798 | 3,642-4,494 | 776-853 | 1,523-1,590 |
//! | to open it after a kill, ms | 67-100 | 404-516 | 0.1 | 0.5 |
//! | bytes on the disk, MB | 142 | 108 | 96 | 63 |
//!
//! How they are kept up, by the index of crates on 23 November 2026, and by the logs of their repositories, each over the
//! year before the copy that was read (open issues were not counted):
//!
//! | kept up | redb | fjall | heed (LMDB) | SQLite |
//! |---|---|---|---|---|
//! | first release | 2018 | 2023 | heed 2019, LMDB 2011 | rusqlite 2014, SQLite 2000 |
//! | last release | 4.6.0, 13 November 2026 | 3.1.13, 25 October 2026 | heed 0.23.1, 26 October 2026, with LMDB 0.9.70 | rusqlite 0.42.0, 11 November 2026, with SQLite 3.54.1 |
//! | releases in a year | 11 | 26, with 7 candidates; 18 of all are withdrawn | heed 4 | rusqlite 8 |
//! | last that broke its interface | 4.0, April 2026 | 3.0, January 2026 | heed 0.23, October 2026 | rusqlite 0.42, November 2026; SQLite's C since 2004 none |
//! | commits in a year, by the first of how many | 312, 247 of 13 (to August 2026) | 480, 462 of 12 (to July 2026) | heed: 21, 6 of 13 (to May 2026) | rusqlite: 130, 107 of 17 (to August 2026) |
//! | what is promised of the format | stable, with a way up if it changes | stable within a major version, then a way up | heed's README says nothing | read through 2050 |
//!
//! (What broke the interface is by the numbers of versions.) One person makes most of the changes of redb, fjall and
//! rusqlite. If redb ends, its part here is one table of keys and values, and `database` is all that knows of it.
//!
//! What decided is that faults can be put under it (`tests/store/cuts.rs`), that it has one file, and
//! that it builds without C. Its price is two passes over all pages for each mount, and its commit, which the log
//! takes out of fsync's way.
//!
//! Its commit writes six to eight pages in four places, which took 190 to 270 us for a new file, where one
//! write and one sync take 75 to 100. So bytes of small files within its records, as with `inline_data` of
//! ext4, would have saved the other sync and no more; the log saves both.
//! `docs/results/fsync-profile.md` has the figures.
//!
//! # What it refuses
//! - Two processes at once, and sharing between machines.
//! - To share sets of attributes above 128 KiB, or to look for equal ones without a bound: the index has 4 MiB
//!   ([`StoreOptions::share`]), which is room for 43,000 different sets and up to half as many more; what it forgets is stored again.
//! - To mount without reading the records of all inodes, extents and blocks of attributes: which blocks are free is stored nowhere.
//! - Snapshots, compression and checksums of file data.
//! - To give blocks of the data file back to the host: what is freed serves other files.
//! - `ioctl`s and quotas by user: `size=` and `nr_inodes=` are for all.
//!
//! # What is known to be weak
//! - The reserve for commits on a full host covers 8,192 pages of the database. A commit that changes
//!   more records than that, far from each other, those of the log included, on a host that has just run
//!   full, ends read-only. What was confirmed is in the log, and is there once the host has room again.
//! - After a read of the database has failed, what is not in memory is `EIO` until it is opened again: by the next
//!   sync or commit, at the latest when time has come for one. If the host still fails when there is something
//!   to commit, the store is read-only.
//! - Where fsyncs of much data and of little take turns, each of much is a commit of the database: its data cannot
//!   be durable beside the log while that has older data, which would be put over it after a crash.
//! - Damage of the last entry of the log is not noticed, since it might be a write that was torn: the entry is lost.
//!   Damage before it is noticed, and so is a log that is missing or shorter than the superblock says: the store
//!   is not mounted, and `fsck` says so. A store that was closed needs no log.
//! - A database that goes back by a commit, since a page of the last one is damaged or `meta` is replaced by an older
//!   file, is refused, since its log is newer. Nobody notices if the host has crashed within the seconds after that commit
//!   in which it has not written the log's end mark, and nothing went to the log since; nor if there is no log, or
//!   the log is replaced too. (The source of the module `log::replay` has all cases.)
//! - sync(2) and syncfs(2) do not reach a mount: only fsync does, of files and directories, and `commit=` seconds.
//!   Linux tells servers of virtiofs and of fuseblk, and no others, since such a server could hold up the host's
//!   sync (2d82ab251ef0, d3906d8f3cee).
//! - Records may be wrong though their pages have the right checksums, in a store that was changed on purpose. `fsck`
//!   finds all that its text names. A mount finds wrong numbers of inodes and of attribute blocks, more blocks than there
//!   can be, and blocks that are used twice.
//! - A mount verifies the pages of the database once. A page that the host damages later, and that is no longer in
//!   memory, is read without a check of its checksum. redb mostly panics then, which is `EIO`, and a commit that meets
//!   one makes the store read-only. A page that leads to itself overflows the stack of a commit, which ends the process.
//!   The next mount is refused.
//! - fallocate(2) keeps room of `size=`, and checks that the host has it, but takes nothing from the host: who has
//!   reserved room may still meet `ENOSPC` if others have filled the host meanwhile.
//! - The host is not given back what removed files had: it is room for others of this store, statfs(2) counts it,
//!   and `data` never gets shorter. (Holes would have to be filled again under fsync, a transaction of the host each.)
//! - An fsync whose bytes go to the log reads them back from the host, and does not hear that the host has
//!   failed to write those of the data file: the next sync of that file does, at the latest the next commit
//!   of the database. The log has them until then.
//! - A host may show what it has failed to write. So a mount has it write what is in its memory and forget that
//!   (posix_fadvise(2)), and goes by what is on the disk: a first read of each page. To a host that does not take
//!   that advice the store believes what it shows; restart it after `EIO` from fsync.
//!
//! # Lock order
//! The turn of those who share sets late; the gate of the journal; the bytes of one file; directories in ascending order of their numbers; one
//! inode that is none; a block of attributes; then leaves: shards of tables, of layers and of the index,
//! windows and tree of free blocks. (The source of the module `names` says more.) A commit holds the gate for an instant, and
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
mod content;
mod database;
mod device;
mod directory;
mod dirty;
mod extents;
mod filesystem;
mod fsck;
mod hash;
mod held;
mod inode;
mod journal;
mod late;
mod layer;
mod log;
mod mount;
mod names;
mod numbers;
mod overlay;
mod place;
mod record;
mod share;
mod store;
mod table;
mod xattr;

pub use device::{Device, FileDevice};
pub use fsck::{Finding, Report, fsck, fsck_devices};
pub use journal::Devices;
pub use place::{OpenError, holder};
pub use share::{MbcacheIndex, NoSharing, Removal, ShareIndex};
pub use store::{Store, StoreOptions, StoreStats};
