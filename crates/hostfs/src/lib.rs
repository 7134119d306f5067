//! A host directory as a corewalk [`FileSystem`](corewalk::FileSystem).
//!
//! A passthrough server usually keeps one descriptor for every inode its client has seen, and dies
//! of `EMFILE` when somebody runs `find` (trap P10). [`HostFs`] works by path instead: a call asks
//! the cache for a path of the inode, resolves it beneath the root, and checks that it leads to the
//! inode that was meant. A handful of descriptors is kept for those who come again.
//!
//! # How it works
//! - `beneath` resolves a path with openat2(2), so that neither a symbolic link nor a rename leads
//!   out of the root; without openat2 it goes component by component.
//! - `descriptors` has the descriptors: of recent inodes (a bounded number), of inodes that were
//!   unlinked while in use (bounded), of open files (one each, as the client opened them).
//! - The path that the cache gives stays true until the call returns (`FileSystem`, F.6): a rename of
//!   a directory above waits for the call, and the call for the rename. A call that has a descriptor
//!   asks for no path and waits for no rename.
//! - `places` remembers directories by path: attributes are asked for by name where no descriptor is
//!   kept, and none is opened for them.
//! - `handles` has the host say what tells a file from a later one of its number, and finds files by number
//!   (trap P11); `generations` does the former where the host has no file handles.
//! - `names`, `files`, `attributes`, `xattrs` and `listing` are the operations. The errors are the
//!   host's.
//!
//! # Guarantees
//! - H.1: never a wrong file: a path is believed only if it leads to an inode of the number and the
//!   generation that were asked for. If it leads elsewhere, or nowhere, the answer is `ESTALE`.
//! - H.2: at most `reusable` + `orphans` descriptors and those of open files are kept; a call uses a
//!   few more while it runs. `ulimit -n 256` is enough for any number of files. Files that clients
//!   have open leave `reserved` descriptors to the calls: beyond that an open is `ENFILE`, and no
//!   other call fails (trap X10).
//! - H.3: no lock is held during a system call that can wait.
//!
//! # What it does not do
//! - Other file systems mounted below the root are not entered: `EXDEV`. Inode numbers are those of
//!   the host, and hold for one file system. They are not asked for anything either, so that a mount may
//!   lie in the directory that it shows, as `/mnt/all` of `/`.
//! - To tell of changes that others make on the host. A cache above it goes on with what it knows until it is told
//!   (`Vfs::invalidate`) or asks (`Vfs::revalidate`, as `corewalk_fuse::Server` does before each use of a name with
//!   `Options::shared`: then names come and go as seen by the next call, up to what the client caches). `remove` and
//!   `rename` look at what a name refers to before they act; a change in that instant is not noticed.
//! - More files unlinked while in use than `orphans`, without being open, get `ESTALE`.
//! - Permission is checked by the caller; here everything is done with the rights of the process.
//!   It needs `/proc`.
//!
//! Source: openat2(2), open(2) on `O_PATH`, proc(5); the issues behind P10: virtiofsd, libkrun 505,
//! fuse-backend-rs 130.
//!
//! # Examples
//! ```
//! use std::sync::Arc;
//! use corewalk::{Cred, Name, Vfs, VfsOptions};
//! use corewalk_hostfs::{HostFs, HostFsOptions};
//!
//! let fs = HostFs::new("/usr".as_ref(), HostFsOptions::default())?;
//! let vfs = Vfs::new(Arc::new(fs), VfsOptions::default())?;
//! assert!(vfs.lookup(&Cred::root(), &vfs.root(), Name::new(b"lib")?).is_ok());
//! # Ok::<(), corewalk::Errno>(())
//! ```

#![forbid(unsafe_code)]

mod attributes;
mod beneath;
mod descriptors;
mod files;
mod generations;
mod handles;
mod hostfs;
mod listing;
mod names;
mod places;
mod xattrs;

pub use hostfs::{HostFs, HostFsOptions};
