//! Any corewalk file system as a FUSE server.
//!
//! FUSE hands requests about numbered inodes to a program; the kernel counts how often it was told
//! of each number and forgets them in bulk. Getting that bookkeeping right under concurrency is what
//! every server of its own gets wrong first, and what corewalk's cache does. This crate is the rest:
//! the protocol's rules, credentials, cookies, mounting and unmounting.
//!
//! # How it works
//! - [`Server`] has one method per request and knows no transport: plain arguments in, an answer or
//!   an errno out. All rules are here, once.
//! - [`Adapter`] implements [`fuser::Filesystem`] with it, for programs that run on fuser already.
//!   A transport of our own will stand beside it.
//! - [`Mount`] mounts, runs the threads, answers the cache's wish for room by asking the kernel to
//!   forget, and unmounts.
//!
//! # Guarantees
//! - S.1: each entry that is handed out counts one lookup, which the kernel gives back by forget; a
//!   count that does not fit is refused and changes nothing (trap P5).
//! - S.2: a request for a number that the kernel does not hold fails with `ESTALE`.
//! - S.3: a request that panics fails with `EIO`; the server goes on.
//! - S.4: no lock is held while a back end works, so a slow request delays only who needs its answer
//!   (traps P6, P7).
//!
//! # What it works around in fuser 0.18
//! - It unmounts what stands at the mount point after somebody else has unmounted: [`Mount`] mounts
//!   and unmounts by itself, and only what it mounted.
//! - Times before 1970 with a fraction arrive wrong: the adapter undoes that.
//! - `FUSE_INTERRUPT` is not served: file locks are left to the kernel, where a waiter can be
//!   interrupted.
//! - `FUSE_TMPFILE`, `FUSE_STATX` and `FUSE_HANDLE_KILLPRIV_V2` do not reach a file system, so
//!   `O_TMPFILE` fails with `EOPNOTSUPP` and a creation time is not shown.
//!
//! Source: Linux `include/uapi/linux/fuse.h`, `Documentation/filesystems/fuse.rst`, fuse(4).
//!
//! # Examples
//! ```no_run
//! use std::{path::Path, sync::Arc};
//! use corewalk::tmpfs::{Tmpfs, TmpfsOptions};
//! use corewalk_fuse::{Mount, MountOptions, Options};
//!
//! let fs = Arc::new(Tmpfs::new(TmpfsOptions::default()));
//! let options = Options::exclusive();
//! let mount = Mount::new(fs, Path::new("/mnt"), options, &MountOptions::default())?;
//! mount.wait()?;
//! # Ok::<(), corewalk_fuse::MountError>(())
//! ```

#![forbid(unsafe_code)]

mod adapter;
mod credentials;
mod mount;
mod notify;
mod options;
mod room;
mod server;

pub use adapter::Adapter;
pub use credentials::Caller;
pub use mount::{Access, Mount, MountError, MountFlags, MountOptions, Mountpoint, Unmounted};
pub use notify::KernelCache;
pub use options::{Conflict, Options, Ownership, Permissions, ReaddirPlus, WriteCache};
pub use server::{
    Change, Counters, Dirent, Entry, New, Server, WriteOrigin, XATTR_PRUNE, XATTR_STAT, XattrAnswer,
};
