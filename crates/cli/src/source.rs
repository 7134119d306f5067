//! What can be mounted.
//!
//! A SOURCE is a word (`tmpfs`), a store (`store:DIR`), or a directory of the host, which is told by a
//! `/` in it: `/srv`, `./tmpfs`; later also a scheme such as `s3://`. Each becomes a [`FileSystem`] and
//! the promises that the server may make for it.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use corewalk::FileSystem;
use corewalk::tmpfs::{Tmpfs, TmpfsOptions};
use corewalk_base::primitives::thread;
use corewalk_fuse::Options;
use corewalk_hostfs::{HostFs, HostFsOptions};
use corewalk_store::{OpenError, Store, StoreOptions};

use crate::failure::{Failure, in_silence};

/// What a store begins with.
const STORE: &str = "store:";

/// How long a store is waited for that is in use. The server before makes it durable, and ends, after umount(8) has
/// returned.
const BUSY_MAX: Duration = Duration::from_secs(5);
/// How often it is looked at meanwhile.
const BUSY_LOOK_EVERY: Duration = Duration::from_millis(5);

/// What can be mounted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// A file system in memory.
    Tmpfs,
    /// A directory of the host; the path is kept for as long as the process runs.
    Host(&'static Path),
    /// A store in a directory of the host.
    Store(&'static Path),
}

/// What is open while it is mounted.
pub(crate) struct Opened {
    pub(crate) fs: Arc<dyn FileSystem>,
    /// The same, if it is a store, which is made durable at the end.
    pub(crate) store: Option<Arc<Store>>,
}

impl Source {
    /// Returns the source that `word` names.
    pub(crate) fn parse(word: &OsStr) -> Result<Source, Failure> {
        let bytes = word.as_bytes();
        if bytes == b"tmpfs" {
            return Ok(Source::Tmpfs);
        }
        if let Some(path) = bytes.strip_prefix(STORE.as_bytes()) {
            if path.is_empty() {
                return Err(Failure::Usage("a store needs a directory: store:DIR".to_owned()));
            }
            // It may not be there yet, and a process in the background has another working directory.
            let path = Path::new(OsStr::from_bytes(path));
            let path =
                std::path::absolute(path).map_err(|error| Failure::of(path.display(), error))?;
            return Ok(Source::Store(Box::leak(path.into_boxed_path())));
        }
        if bytes.windows(3).any(|bytes| bytes == b"://") {
            let url = word.display();
            return Err(Failure::Usage(format!(
                "unknown scheme in source '{url}'; there is none yet"
            )));
        }
        if bytes.contains(&b'/') {
            // Canonical, since a process in the background has another working directory.
            let path = Path::new(word)
                .canonicalize()
                .map_err(|error| Failure::of(word.display(), error))?
                .into_boxed_path();
            return Ok(Source::Host(Box::leak(path)));
        }
        let word = word.display();
        Err(Failure::Usage(format!(
            "unknown source '{word}'; known are: tmpfs, store:DIR, and a directory (with a / in its path)"
        )))
    }

    /// Returns what the mount table shows as the source, as mount(8) has it.
    pub(crate) fn name(self) -> OsString {
        match self {
            Source::Tmpfs => "tmpfs".into(),
            Source::Host(path) => path.into(),
            Source::Store(path) => [STORE.as_ref(), path.as_os_str()].into_iter().collect(),
        }
    }

    /// Returns what a server may promise the kernel about it.
    pub(crate) fn promises(self) -> Options {
        match self {
            // Its only door is this mount.
            Source::Tmpfs | Source::Store(_) => Options::exclusive(),
            // The directory is there for others as well.
            Source::Host(_) => Options::shared(),
        }
    }

    /// Returns the file system.
    ///
    /// # Errors
    /// What the host says of the directory, or the store of itself.
    pub(crate) fn open(
        self,
        tmpfs: TmpfsOptions,
        store: &StoreOptions,
        host: HostFsOptions,
    ) -> Result<Opened, Failure> {
        match self {
            Source::Tmpfs => Ok(Opened { fs: Arc::new(Tmpfs::new(tmpfs)), store: None }),
            Source::Host(path) => HostFs::new(path, host)
                .map(|fs| Opened { fs: Arc::new(fs), store: None })
                .map_err(|error| Failure::of(path.display(), error)),
            Source::Store(path) => {
                let store = Arc::new(when_free(path, || Store::open(path, store))?);
                let stats = store.stats();
                if !stats.has_reserve && !stats.is_read_only {
                    let needs = "nothing can be added before its disk has more room: 32 MiB are kept for commits";
                    log::warn!("{}: {needs}", path.display());
                }
                Ok(Opened { fs: store.clone(), store: Some(store) })
            }
        }
    }
}

/// Opens the store in the directory `path`; waits for a while if it is in use.
///
/// # Errors
/// What the store says of itself, and who has it.
pub(crate) fn when_free<R>(
    path: &Path,
    open: impl Fn() -> Result<R, OpenError>,
) -> Result<R, Failure> {
    let begun = Instant::now();
    loop {
        let error = match in_silence(&open)? {
            Ok(opened) => return Ok(opened),
            Err(error) => error,
        };
        let is_busy = matches!(error, OpenError::Busy);
        if is_busy && begun.elapsed() < BUSY_MAX {
            thread::sleep(BUSY_LOOK_EVERY);
            continue;
        }
        let who = if is_busy { corewalk_store::holder(path) } else { None };
        let who = who.map_or(String::new(), |pid| format!(" by process {pid}"));
        return Err(Failure::of(path.display(), format!("{error}{who}")));
    }
}
