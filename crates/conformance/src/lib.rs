//! Test suites for file systems: [`Suite`] for back ends of corewalk, and [`Mounted`] for any
//! mounted file system. The program `corewalk-conformance` runs the second one.
//!
//! An author of a [`FileSystem`](corewalk::FileSystem) makes a [`Suite`] and runs it. The suite
//! makes a fresh back end for each check. A check calls the back end through a
//! [`Vfs`](corewalk::Vfs), as a server does. Before a call that the cache could answer, the check
//! evicts all unused entries. If a back end finds files by inode number, a few checks call it
//! directly.
//!
//! [`Mounted`] makes system calls in a directory: pjdfstest, fsx and a storm. Both suites have the
//! same storm.
//!
//! # Outcomes
//! - A check *passes* if all answers are those that the documentation of `FileSystem`, or POSIX,
//!   demands.
//! - A check is *skipped* if the back end answers `EROFS`, `EOPNOTSUPP` or `ENOSYS` to a call that
//!   the check needs. Some checks also accept another answer for a missing feature, such as `EPERM`
//!   for a hard link.
//! - A check *fails* after a wrong answer, after a panic of the back end, or if it does not end
//!   within the time limit.
//!
//! # Limits
//! - No process is killed, so durability after a crash is not tested.
//! - Changes by other programs are not tested.
//! - A seed repeats the calls of each thread, but not the order of calls from different threads.
//!
//! # Examples
//! ```
//! use std::sync::Arc;
//! use corewalk::tmpfs::{Tmpfs, TmpfsOptions};
//! use corewalk_conformance::Suite;
//!
//! Suite::new(|| Arc::new(Tmpfs::new(TmpfsOptions::default()))).run().assert();
//! ```

#![forbid(unsafe_code)]

mod answer;
mod bench;
mod checks;
mod mounted;
mod plan;
mod report;
mod storm;
mod suite;

pub use mounted::Mounted;
pub use report::{Outcome, Report};
pub use suite::Suite;

/// Runs the examples of the README as tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
