//! A FUSE server for any corewalk file system.
//!
//! The kernel sends a FUSE server requests about numbered inodes. For each number, the kernel
//! counts how often the server has handed it out. Later it returns many of these counts with one
//! forget request. A server must keep the same counts, even if requests run in parallel. corewalk's
//! cache does that.
//!
//! This crate adds the rules of the FUSE protocol, credentials, directory cookies, and mounting.
//!
//! # How it works
//! - [`Server`] has one method per request. A method takes plain arguments and returns an answer or
//!   an errno, so it does not depend on how requests arrive. All rules of the protocol are in
//!   `Server`.
//! - [`Mount`] mounts, runs the threads, and unmounts. If the cache is over its budget, `Mount`
//!   asks the kernel to forget inodes. A [`Transport`] is io_uring or `/dev/fuse`.
//! - [`Adapter`] is a [`fuser::Filesystem`] over a [`Server`], for programs that use fuser.
//!
//! # Guarantees
//! - S.1: each entry that the server hands out counts one lookup, and the kernel returns the count
//!   by a forget request. The server refuses a forget of more lookups than it has counted, and then
//!   changes nothing.
//! - S.2: a request for a node number that the kernel does not hold fails with `ESTALE`.
//! - S.3: a request that panics fails with `EIO`, and the server continues.
//! - S.4: while the server calls the back end, it holds only the locks that rule F.2 of
//!   [`FileSystem`](corewalk::FileSystem) names. So a slow request delays only requests for the
//!   same names, attributes or paths.
//!
//! # Limits
//! - File locks stay in the kernel, unless the back end has
//!   [locks](corewalk::FileSystem::has_locks). In both cases, any signal ends a wait for a lock.
//! - A signal ends no other call of a [`FileSystem`](corewalk::FileSystem). A back end that waits
//!   can ask whether its client was killed ([`is_cancelled`](corewalk::Request::is_cancelled)).
//! - Through fuser 0.18 ([`Adapter`], [`Transport::Fuser`]), `O_TMPFILE` fails with `EOPNOTSUPP`,
//!   and statx(2) shows no birth time. A back end gets no locks and no poll(2), and
//!   `is_cancelled` is always false.
//!
//! Source: Linux `include/uapi/linux/fuse.h`, `Documentation/filesystems/fuse.rst`, fuse(4).
//!
//! # Examples
//! ```no_run
//! use std::{path::Path, sync::Arc};
//! use corewalk::tmpfs::{Tmpfs, TmpfsOptions};
//! use corewalk_fuse::{MountOptions, Options, serve};
//!
//! let fs = Arc::new(Tmpfs::new(TmpfsOptions::default()));
//! serve(fs, Path::new("/mnt"), Options::exclusive(), &MountOptions::default())?;
//! # Ok::<(), corewalk_fuse::MountError>(())
//! ```

#![forbid(unsafe_code)]

mod adapter;
mod asynchronous;
mod credentials;
mod dispatch;
/// A tmpfs into which tests can inject delays and failures. The tests on real mounts use the same
/// file, and call more of its functions than the tests of this crate.
#[cfg(test)]
#[allow(dead_code)]
#[path = "../tests/real/hooked.rs"]
mod hooked;
mod interrupts;
mod leases;
mod lock_owners;
mod mount;
mod notify;
mod offload;
mod options;
mod passthrough;
mod server;
mod service;
mod shrinker;
mod timeouts;
mod transport;
mod wire;

/// Runs the examples in the README as tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

#[cfg(doctest)]
#[doc = include_str!("../../../docs/using/by-path.md")]
struct ByPathGuide;

#[cfg(doctest)]
#[doc = include_str!("../../../docs/using/writing.md")]
struct WritingGuide;

pub use adapter::Adapter;
pub use asynchronous::{
    AsyncFileSystem, AsyncNode, AsyncServer, BoxedFuture, OwnedDirEntry, Spawn, serve_async,
};
pub use corewalk::Caller;
pub use mount::{
    AllowedUsers, EndSignals, Mount, MountError, MountFlags, MountOptions, Mountpoint, Unmounted,
    serve,
};
pub use notify::KernelCache;
pub use options::{Conflict, Options, Ownership, Permissions, ReaddirPlus, WriteCache};
pub use server::{
    Change, Counters, Dirent, EntryOut, NewFile, Server, SetId, WriteOrigin, XATTR_PRUNE,
    XATTR_STAT, XattrAnswer,
};
pub use transport::Transport;
