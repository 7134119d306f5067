//! What can be mounted.
//!
//! A SOURCE is a word (`tmpfs`) or a directory of the host, which is told by a `/` in it: `/srv`,
//! `./tmpfs`; later also a scheme such as `s3://`. Each becomes a [`FileSystem`] and the promises
//! that the server may make for it.

use std::ffi::OsString;
use std::path::Path;
use std::sync::Arc;

use corewalk::FileSystem;
use corewalk::tmpfs::{Tmpfs, TmpfsOptions};
use corewalk_fuse::Options;
use corewalk_hostfs::{HostFs, HostFsOptions};

use crate::failure::Failure;

/// What can be mounted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// A file system in memory.
    Tmpfs,
    /// A directory of the host; the path is kept for as long as the process runs.
    Host(&'static Path),
}

impl Source {
    /// Returns the source that `word` names.
    pub(crate) fn parse(word: &str) -> Result<Source, Failure> {
        match word {
            "tmpfs" => Ok(Source::Tmpfs),
            url if url.contains("://") => {
                Err(Failure::Usage(format!("unknown scheme in source '{url}'; there is none yet")))
            }
            path if path.contains('/') => {
                // Canonical, since a process in the background has another working directory.
                let path = Path::new(path)
                    .canonicalize()
                    .map_err(|error| Failure::of(path, error))?
                    .into_boxed_path();
                Ok(Source::Host(Box::leak(path)))
            }
            _ => Err(Failure::Usage(format!(
                "unknown source '{word}'; known are: tmpfs, and a directory (with a / in its path)"
            ))),
        }
    }

    /// Returns what the mount table shows as the source, as mount(8) has it.
    pub(crate) fn name(self) -> OsString {
        match self {
            Source::Tmpfs => "tmpfs".into(),
            Source::Host(path) => path.into(),
        }
    }

    /// Returns what a server may promise the kernel about it.
    pub(crate) fn promises(self) -> Options {
        match self {
            // Its only door is this mount.
            Source::Tmpfs => Options::exclusive(),
            // The directory is there for others as well.
            Source::Host(_) => Options::shared(),
        }
    }

    /// Returns how many threads serve it best on this many processors.
    pub(crate) fn threads(self, processors: usize) -> usize {
        match self {
            // Its requests never wait, so more threads only take turns. That costs: one alone saves a
            // fifth of the server's time with one client on one processor. But with two busy clients
            // it took up to four times as long while others used the machine as well.
            Source::Tmpfs => processors.max(2),
            // Its requests wait for a disk.
            Source::Host(_) => (processors * 4).max(8),
        }
    }

    /// Returns the file system.
    ///
    /// # Errors
    /// What the host says of the directory.
    pub(crate) fn open(self, tmpfs: TmpfsOptions) -> Result<Arc<dyn FileSystem>, Failure> {
        match self {
            Source::Tmpfs => Ok(Arc::new(Tmpfs::new(tmpfs))),
            Source::Host(path) => HostFs::new(path, HostFsOptions::default())
                .map(|fs| Arc::new(fs) as Arc<dyn FileSystem>)
                .map_err(|error| Failure::of(path.display(), error)),
        }
    }
}
