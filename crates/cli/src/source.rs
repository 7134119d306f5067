//! What can be mounted.
//!
//! A SOURCE is a word (`tmpfs`), later also a host directory or a scheme such as `s3://`. Each
//! becomes a [`FileSystem`] and the promises that the server may make for it.

use std::sync::Arc;

use corewalk::FileSystem;
use corewalk::tmpfs::{Tmpfs, TmpfsOptions};
use corewalk_fuse::Options;

use crate::failure::Failure;

/// What can be mounted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// A file system in memory.
    Tmpfs,
}

impl Source {
    /// Returns the source that `word` names.
    pub(crate) fn parse(word: &str) -> Result<Source, Failure> {
        match word {
            "tmpfs" => Ok(Source::Tmpfs),
            _ => Err(Failure::Usage(format!("unknown source '{word}'; known is: tmpfs"))),
        }
    }

    /// Returns what a server may promise the kernel about it.
    pub(crate) fn promises(self) -> Options {
        match self {
            // Its only door is this mount.
            Source::Tmpfs => Options::exclusive(),
        }
    }

    /// Returns how many threads serve it best on this many processors.
    pub(crate) fn threads(self, processors: usize) -> usize {
        match self {
            // Its requests never wait, so more threads only take turns.
            Source::Tmpfs => processors.max(2),
        }
    }

    /// Returns the file system.
    pub(crate) fn open(self, tmpfs: TmpfsOptions) -> Arc<dyn FileSystem> {
        match self {
            Source::Tmpfs => Arc::new(Tmpfs::new(tmpfs)),
        }
    }
}
