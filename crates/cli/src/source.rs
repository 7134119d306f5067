//! The file systems that `corewalk mount` can mount.
//!
//! A SOURCE is `tmpfs`, a store (`store:DIR`), a cluster file system (`pg://USER@HOST/DATABASE`),
//! or a directory of the host. A directory of the host is given by a path with a `/` in it, such as
//! `/srv` or `./tmpfs`. Other schemes such as `s3://` are reserved. For each source, this module
//! chooses the [`FileSystem`], and server options that are safe for it.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use corewalk::FileSystem;
use corewalk::tmpfs::Tmpfs;
use corewalk_base::heap;
use corewalk_base::primitives::thread;
use corewalk_cluster::{ClusterFs, SCHEME, Url};
use corewalk_fuse::Options;
use corewalk_hostfs::HostFs;
use corewalk_store::{OpenError, Store};

use crate::failure::{Failure, without_panic_messages};
use crate::mount::Plan;

const STORE_PREFIX: &str = "store:";

/// How long a mount waits for a store that is in use: umount(8) may return before the server has
/// written its last commit.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);
const BUSY_RETRY: Duration = Duration::from_millis(5);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    Tmpfs,
    /// A directory of the host. The memory of the path is never freed, so the path stays valid.
    Host(&'static Path),
    Store(&'static Path),
    /// The URL was parsed successfully.
    Cluster(&'static str),
}

pub(crate) struct Opened {
    pub(crate) fs: Arc<dyn FileSystem>,
    /// The store, if the source is one. The server syncs it when the mount ends.
    pub(crate) store: Option<Arc<Store>>,
    /// The cluster file system, if the source is one. The server closes it when the mount ends.
    pub(crate) cluster: Option<Arc<ClusterFs>>,
}

impl Source {
    /// Parses the SOURCE of a command line.
    ///
    /// # Errors
    /// [`Failure::Usage`] for an unknown source. [`Failure::Failed`] for a host directory that does
    /// not exist.
    pub(crate) fn parse(word: &OsStr) -> Result<Source, Failure> {
        let bytes = word.as_bytes();
        if bytes == b"tmpfs" {
            return Ok(Source::Tmpfs);
        }
        if let Some(path) = bytes.strip_prefix(STORE_PREFIX.as_bytes()) {
            if path.is_empty() {
                let line = "'store:' names no directory; name a store as store:DIR";
                return Err(Failure::Usage(line.to_owned()));
            }
            // The background process changes its working directory, so the path must be absolute.
            // Symbolic links are not resolved, since the store need not exist yet.
            let path = Path::new(OsStr::from_bytes(path));
            let path =
                std::path::absolute(path).map_err(|error| Failure::of(path.display(), error))?;
            return Ok(Source::Store(Box::leak(path.into_boxed_path())));
        }
        if bytes.starts_with(SCHEME.as_bytes()) {
            let text = word.to_str().ok_or_else(|| {
                Failure::Usage(format!("source '{}' is not UTF-8", word.display()))
            })?;
            parse_url(text)?;
            return Ok(Source::Cluster(Box::leak(text.to_owned().into_boxed_str())));
        }
        if bytes.windows(3).any(|bytes| bytes == b"://") {
            let url = word.display();
            return Err(Failure::Usage(format!(
                "unknown scheme in source '{url}'; only {SCHEME} is supported"
            )));
        }
        if bytes.contains(&b'/') {
            let path = Path::new(word)
                .canonicalize()
                .map_err(|error| Failure::of(word.display(), error))?
                .into_boxed_path();
            return Ok(Source::Host(Box::leak(path)));
        }
        let word = word.display();
        Err(Failure::Usage(format!(
            "unknown source '{word}'; use tmpfs, store:DIR, {SCHEME}USER@HOST/DATABASE, or a directory \
             with a / in its path"
        )))
    }

    pub(crate) fn name(self) -> OsString {
        match self {
            Source::Tmpfs => "tmpfs".into(),
            Source::Host(path) => path.into(),
            Source::Store(path) => [STORE_PREFIX.as_ref(), path.as_os_str()].into_iter().collect(),
            Source::Cluster(url) => url.into(),
        }
    }

    pub(crate) fn server_options(self) -> Options {
        match self {
            // Only this mount changes the files, so the kernel may cache for long.
            Source::Tmpfs | Source::Store(_) => Options::exclusive(),
            // Other programs may change the directory on the host, so the kernel may cache only for
            // a short time.
            Source::Host(_) => Options::shared(),
            // For each answer, the back end decides how long the kernel may cache it. So there are
            // no fixed timeouts.
            Source::Cluster(_) => Options::shared(),
        }
    }

    /// Opens the file system of this source.
    ///
    /// # Errors
    /// The errno of opening a host directory, or the error of a store or a cluster file system.
    pub(crate) fn open(self, plan: &Plan) -> Result<Opened, Failure> {
        let opened = |fs| Opened { fs, store: None, cluster: None };
        match self {
            Source::Tmpfs => Ok(opened(Arc::new(Tmpfs::new(plan.tmpfs)))),
            Source::Host(path) => HostFs::new(path, plan.host)
                .map(|fs| opened(Arc::new(fs)))
                .map_err(|error| Failure::of(path.display(), error)),
            Source::Store(path) => {
                let store = Arc::new(open_when_free(path, || Store::open(path, &plan.store))?);
                let stats = store.stats();
                if !stats.has_reserve && !stats.is_read_only {
                    let why = "the disk is too full to reserve 32 MiB for commits; \
                               nothing can be added to the store until space is freed";
                    log::warn!("{}: {why}", path.display());
                }
                Ok(Opened { store: Some(store.clone()), ..opened(store) })
            }
            Source::Cluster(url) => {
                let options = plan.cluster.clone().with_settings(object_settings());
                let options = options.with_cache_bytes(plan.server.vfs.cache_bytes as usize);
                // Fewer heaps use less memory. A thread often frees cache entries that another
                // thread has allocated, and the freed memory is reused only in its own heap.
                heap::limit_heaps();
                let fs = ClusterFs::open(&parse_url(url)?, &options);
                let fs = Arc::new(fs.map_err(|error| Failure::of(url, error))?);
                Ok(Opened { cluster: Some(fs.clone()), ..opened(fs) })
            }
        }
    }
}

/// Parses the URL of a cluster file system. The password is read from `PGPASSWORD`. If the URL has
/// no `sslmode` or `sslrootcert`, the value is read from `PGSSLMODE` or `PGSSLROOTCERT`.
pub(crate) fn parse_url(text: &str) -> Result<Url, Failure> {
    let mut full = text.to_owned();
    for (variable, name) in [("PGSSLMODE", "sslmode="), ("PGSSLROOTCERT", "sslrootcert=")] {
        if let Ok(value) = std::env::var(variable)
            && !text.contains(name)
        {
            let before = if full.contains('?') { '&' } else { '?' };
            full = format!("{full}{before}{name}{value}");
        }
    }
    let url = Url::parse(&full).map_err(|error| Failure::Usage(format!("{text}: {error}")))?;
    Ok(match std::env::var_os("PGPASSWORD") {
        Some(password) => url.with_password(password.as_bytes()),
        None => url,
    })
}

/// Returns the environment variables `AWS_*`, which other programs for S3 use as well.
pub(crate) fn object_settings() -> Vec<(String, String)> {
    std::env::vars().filter(|(name, _)| name.starts_with("AWS_")).collect()
}

/// Opens a store with `open`. If another process has the store open, waits up to [`BUSY_TIMEOUT`].
///
/// # Errors
/// The error of the store. If another process still has the store open, the message contains the
/// pid of that process.
pub(crate) fn open_when_free<R>(
    path: &Path,
    open: impl Fn() -> Result<R, OpenError>,
) -> Result<R, Failure> {
    let start = Instant::now();
    loop {
        let error = match without_panic_messages(&open)? {
            Ok(opened) => return Ok(opened),
            Err(error) => error,
        };
        let is_busy = matches!(error, OpenError::Busy);
        if is_busy && start.elapsed() < BUSY_TIMEOUT {
            thread::sleep(BUSY_RETRY);
            continue;
        }
        let holder = if is_busy { corewalk_store::holder(path) } else { None };
        let by = holder.map_or(String::new(), |pid| format!(" by process {pid}"));
        return Err(Failure::of(path.display(), format!("{error}{by}")));
    }
}
