//! Mounts for tests. At the end of a test, its mount and its directory are removed, even if the
//! test fails.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use corewalk::FileSystem;
use corewalk::tmpfs::{Tmpfs, TmpfsOptions};
use corewalk_base::primitives::{
    thread,
    unmodelled::{AtomicU64, Ordering},
};
use corewalk_fuse::{
    AllowedUsers, AsyncFileSystem, AsyncServer, BoxedFuture, Counters, Mount, MountOptions,
    Options, Server, Transport,
};
use corewalk_testkit::require::has_fuse;
use rustix::mount::UnmountFlags;
use tokio::runtime::Runtime;

/// Maximum time of a test. After that its mount is removed and the process ends. Without the
/// removal, a process that waits for a hung server could not be ended.
const TEST_LIMIT: Duration = Duration::from_secs(120);

const PATIENCE: Duration = Duration::from_secs(20);

pub(crate) struct Site {
    mount: Option<Mount>,
    folder: Folder,
    _watched: Sender<()>,
}

pub(crate) struct AsyncSite<F: AsyncFileSystem> {
    mount: Option<Mount<AsyncServer<F>>>,
    folder: Folder,
    runtime: Option<Runtime>,
    _watched: Sender<()>,
}

pub(crate) struct Folder(PathBuf);

pub(crate) struct Host(Folder);

impl Site {
    /// Mounts `fs` on a new directory. If mounting is not possible on this machine, prints a
    /// message and returns `None`.
    pub(crate) fn new(fs: Arc<dyn FileSystem>, options: Options) -> Option<Site> {
        Site::with_threads(fs, options, MountOptions::default().threads)
    }

    pub(crate) fn with_threads(
        fs: Arc<dyn FileSystem>,
        options: Options,
        threads: usize,
    ) -> Option<Site> {
        Site::with_options(fs, options, &mount_options().with_threads(threads))
    }

    pub(crate) fn with_options(
        fs: Arc<dyn FileSystem>,
        options: Options,
        with: &MountOptions,
    ) -> Option<Site> {
        if !has_fuse() {
            return None;
        }
        let folder = Folder::new();
        let mount = Mount::new(fs, &folder.0, options, with).expect("mount the file system");
        let watched = watch(mount.point().path());
        Some(Site { mount: Some(mount), folder, _watched: watched })
    }

    pub(crate) fn tmpfs(options: Options) -> Option<Site> {
        Site::new(Arc::new(Tmpfs::new(TmpfsOptions::default())), options)
    }

    pub(crate) fn root(&self) -> &Path {
        &self.folder.0
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.0.join(name)
    }

    pub(crate) fn mount(&self) -> &Mount {
        self.mount.as_ref().expect("only drop and into_mount take the mount")
    }

    pub(crate) fn server(&self) -> &Arc<Server> {
        self.mount().server()
    }

    pub(crate) fn counters(&self) -> Counters {
        self.server().counters()
    }

    pub(crate) fn wait_for(&self, what: &str, condition: impl Fn(&Counters) -> bool) {
        let begin = Instant::now();
        while !condition(&self.counters()) {
            assert!(begin.elapsed() < Duration::from_secs(20), "{what}: {:?}", self.counters());
            rustix::fs::getxattr(self.root(), corewalk_fuse::XATTR_STAT, &mut [0; 4096][..])
                .expect("read the counters");
        }
    }

    pub(crate) fn into_mount(mut self) -> (Mount, Folder) {
        let folder = std::mem::replace(&mut self.folder, Folder::new());
        (self.mount.take().expect("only drop and into_mount take the mount"), folder)
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        drop(self.mount.take());
    }
}

impl<F: AsyncFileSystem> AsyncSite<F> {
    /// Mounts `fs` on a new directory. If mounting is not possible on this machine, prints a
    /// message and returns `None`.
    pub(crate) fn new(fs: Arc<F>, options: Options, with: &MountOptions) -> Option<AsyncSite<F>> {
        if !has_fuse() {
            return None;
        }
        let folder = Folder::new();
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        let runtime = builder.worker_threads(2).enable_all().build().expect("start the runtime");
        let handle = runtime.handle().clone();
        let spawn = move |future: BoxedFuture| drop(handle.spawn(future));
        let server = Arc::new(AsyncServer::new(fs, options, spawn).expect("start the server"));
        let mount = Mount::serve_async(server, &folder.0, with).expect("mount the file system");
        let watched = watch(mount.point().path());
        Some(AsyncSite { mount: Some(mount), folder, runtime: Some(runtime), _watched: watched })
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.0.join(name)
    }

    pub(crate) fn mount(&self) -> &Mount<AsyncServer<F>> {
        self.mount.as_ref().expect("only drop takes the mount")
    }

    pub(crate) fn end_runtime(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }

    pub(crate) fn wait_for(&self, what: &str, condition: impl Fn(usize) -> bool) {
        let begin = Instant::now();
        while !condition(self.mount().server().under_way()) {
            assert!(begin.elapsed() < PATIENCE, "{what}: {:?}", self.mount().server());
            thread::sleep(Duration::from_millis(1));
        }
    }
}

impl<F: AsyncFileSystem> Drop for AsyncSite<F> {
    fn drop(&mut self) {
        // Drop the mount before its directory is removed, and before its futures are dropped.
        drop(self.mount.take());
        self.end_runtime();
    }
}

impl Folder {
    pub(crate) fn new() -> Folder {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        // ORDERING: Relaxed. The atomic addition alone gives different numbers.
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("corewalk-fuse-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir(&path).expect("make the test's folder");
        Folder(path)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // The directory must stay if a file system is still mounted on it.
        let _ = std::fs::remove_dir(&self.0);
    }
}

impl Host {
    pub(crate) fn new() -> Host {
        Host(Folder::new())
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0.0
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0.0);
    }
}

/// Returns the transport of all mounts, which the environment variable `COREWALK_TRANSPORT` sets.
pub(crate) fn transport() -> Transport {
    std::env::var("COREWALK_TRANSPORT").map_or(Transport::Auto, |name| {
        Transport::from_name(&name).expect("COREWALK_TRANSPORT is a transport")
    })
}

/// Returns the options of a mount. If root runs the tests, all users may use the mount.
pub(crate) fn mount_options() -> MountOptions {
    let mut options = MountOptions::default().with_transport(transport());
    if rustix::process::geteuid().is_root() {
        options.users = AllowedUsers::Everyone;
    }
    options
}

/// Returns the options of a mount with an asynchronous back end. fuser cannot serve such a back
/// end, so the transport is then `/dev/fuse`.
pub(crate) fn async_mount_options() -> MountOptions {
    match mount_options() {
        options if options.transport == Transport::Fuser => {
            options.with_transport(Transport::Device)
        }
        options => options,
    }
}

/// Starts a watchdog that ends this process after [`TEST_LIMIT`]. Dropping the returned value stops
/// the watchdog.
pub(crate) fn watch(point: &Path) -> Sender<()> {
    let (watched, ended) = channel();
    let point = point.to_owned();
    thread::spawn(move || {
        if ended.recv_timeout(TEST_LIMIT) == Err(RecvTimeoutError::Timeout) {
            eprintln!("a test hangs on {}", point.display());
            // Force the unmount. Otherwise a call that waits for the server would keep this process
            // and the connection alive for ever.
            let flags = UnmountFlags::FORCE | UnmountFlags::DETACH;
            let _ = rustix::mount::unmount(&point, flags);
            std::process::exit(101);
        }
    });
    watched
}
