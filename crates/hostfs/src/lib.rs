//! A host directory as a corewalk [`FileSystem`](corewalk::FileSystem).
//!
//! A passthrough server usually keeps one descriptor for every inode that its client has looked up.
//! So it runs out of descriptors (`EMFILE`) when a user runs `find` (trap P10 in `traps.md`).
//! [`HostFs`] keeps only the descriptors of recently used inodes. A call gets a path of its inode
//! from the dentry cache, resolves it beneath the root, and checks the inode.
//!
//! # How it works
//! - `beneath` resolves a path so that no symbolic link and no rename lead out of the root.
//! - `descriptors` keeps descriptors of recently used inodes, of open files, and of files that were
//!   unlinked while in use. A call with a kept descriptor needs no path.
//! - Any other call uses a path from the cache, which stays valid until the call returns. A rename
//!   of a directory in the path waits for the call (rule F.6 of `FileSystem`).
//! - `directory_paths` maps paths to open directories, to read attributes of their files by name.
//! - `handles` finds a file by its number with the host's file handles, and notices that a number
//!   was reused (trap P11 in `traps.md`). Without file handles, `generations` notices that.
//! - The other modules have the operations, which return the errors of the host.
//!
//! # Guarantees
//! - H.1: a call never uses a wrong file. A path is used only if it leads to an inode with the
//!   wanted number and generation. Otherwise the call fails with `ESTALE`.
//! - H.2: `HostFs` keeps at most `reusable` + `orphans` descriptors, one per open file, and one per
//!   file and owner of fcntl(2) locks. `ulimit -n 256` suffices. At the limit an open fails with
//!   `ENFILE`, and a lock with `ENOLCK`. No other call fails (trap X10 in `traps.md`).
//! - H.3: no lock is held during a system call that may block.
//!
//! # Limits
//! - A call that would enter another file system fails with `EXDEV`, and does not wait for that
//!   file system. So the mount point of this server may be inside the directory that the server
//!   exports.
//! - Changes by other programs are not reported: see [`revalidate`](corewalk::Vfs::revalidate). A
//!   removal first checks which file has the name, and does not notice a later replacement.
//! - `HostFs` keeps descriptors of at most `orphans` files that were unlinked while in use. Calls
//!   on further such files fail with `ESTALE`, unless a client has the file open.
//! - The caller checks permissions. Every call uses the rights of the process, and needs `/proc`.
//!
//! Source: openat2(2), open(2), proc(5); libkrun issue 505, fuse-backend-rs issue 130.
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
mod directory_paths;
mod files;
mod generations;
mod handles;
mod hostfs;
mod listing;
mod locks;
mod names;
mod xattrs;

/// Makes the examples in the README tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

pub use hostfs::{HostFs, HostFsOptions};
