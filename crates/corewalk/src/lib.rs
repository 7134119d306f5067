//! A dentry cache and path walk for user space, with an interface for the file systems below.
//!
//! A file server keeps a table of names and inodes, in which threads look up, forget and rename
//! files at the same time. This crate is that table. Lookups take no lock, renames block no reader,
//! memory is bounded, and a back end implements one trait.
//!
//! - A back end implements [`FileSystem`]. [`tmpfs`] is a back end in memory.
//! - A back end that knows files only by path implements [`PathFileSystem`] instead.
//! - A server calls [`Vfs`], by inode or by path.
//! - A server that stores and finds its files itself needs no back end. It uses an [`InodeTable`].
//! - ARCHITECTURE.md in the repository explains the mechanisms and lists the guarantees.
//!
//! # Lock order
//! Locks are taken in this order: in-lookup locks of names, an inode's attribute lock, path locks,
//! `topology`, dentry locks, an inode's lock. No lock is taken under that of a table's stripe or an
//! arena's shard. During a call of a [`FileSystem`] only the first three kinds are held.

#![forbid(unsafe_code)]

pub mod acl;
pub mod attr;
mod cred;
mod dcache;
mod dentry;
mod dpath;
mod fs;
mod hash;
mod inode;
mod inode_table;
mod key_lock;
mod mount;
mod name;
mod path;
mod path_file_system;
mod read_set;
mod request;
mod slot;
mod table;
pub mod tmpfs;
mod vfs;
mod walk;
pub mod xattr;

pub use attr::{Atime, AtimePolicy, Attr, FileKind, SetAttr, SetTime, StatFs, Timespec, Ttl};
#[doc(inline)]
pub use corewalk_base::errno_of;
pub use cred::{Caps, Cred, May};
pub use dpath::PathKind;
pub use fs::{
    AclKind, Addressing, ClientCache, DirEntry, DirSink, Fallocate, FileLock, FileSystem,
    InodeFlags, IoctlReply, Leases, LockKind, Make, Node, OpenFlags, Opened, PollEvents, PollWaker,
    RenameMode, Seek, XattrMode,
};
pub use inode_table::{InodeTable, OwnedTableNode, TableNode};
pub use name::{NAME_MAX, Name, PATH_MAX};
pub use path::{PathFormat, PathRef};
pub use path_file_system::{ByPath, PathEntry, PathFileSystem};
pub use request::{Caller, Cancel, Request};
pub use rustix::io::Errno;
pub use vfs::{
    EntryId, Fsync, InodeRef, Listing, LookedUp, Pinned, Pressure, Removal, Stats, Vfs, VfsOptions,
};
pub use walk::{FsStruct, Resolved, SYMLINKS_MAX, WalkFlags};

/// Runs the examples of the README as tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

/// Runs the example of the repository's README as a test.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct RepositoryReadme;
