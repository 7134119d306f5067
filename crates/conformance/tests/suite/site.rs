//! A mounted file system in a temporary directory.

use std::any::Any;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use corewalk::FileSystem;
use corewalk_conformance::Mounted;
use corewalk_fuse::{
    AllowedUsers, AsyncFileSystem, AsyncServer, BoxedFuture, KernelCache, Mount, MountOptions,
    Options, Transport,
};
use corewalk_testkit::race::Watchdog;
use corewalk_testkit::require::has_fuse;
use tempfile::TempDir;
use tokio::runtime::Runtime;

/// Time limit of a test, after which it counts as hanging. A test may have to install programs.
const TEST_LIMIT: Duration = Duration::from_secs(1800);
/// The folder for programs of other projects. `cargo xtask suites` installs programs there, too.
const PROGRAMS: &str = concat!(env!("CARGO_TARGET_TMPDIR"), "/../tools");

/// Fields are dropped in order: first the mount, then its runtime, then its directory.
pub(crate) struct Site {
    _mount: Box<dyn Any>,
    _runtime: Option<Runtime>,
    dir: TempDir,
    kernel: KernelCache,
    _watchdog: Watchdog,
}

impl Site {
    /// Mounts `fs`. If this machine cannot mount, prints a message and returns `None`.
    pub(crate) fn new(fs: Arc<dyn FileSystem>, options: Options) -> Option<Site> {
        if !has_fuse() {
            return None;
        }
        let dir = TempDir::new().expect("make a directory");
        let with = mount_options();
        let mount = Mount::new(fs, dir.path(), options, &with).expect("mount the file system");
        let kernel = mount.kernel_cache().clone();
        Some(Site::of(Box::new(mount), None, dir, kernel))
    }

    /// Like [`Site::new`], for an asynchronous back end.
    pub(crate) fn asynchronous<F>(fs: Arc<F>, options: Options) -> Option<Site>
    where
        F: AsyncFileSystem,
    {
        if !has_fuse() {
            return None;
        }
        let dir = TempDir::new().expect("make a directory");
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        let runtime = builder.worker_threads(2).enable_all().build().expect("start the runtime");
        let handle = runtime.handle().clone();
        let spawn = move |future: BoxedFuture| drop(handle.spawn(future));
        let server = Arc::new(AsyncServer::new(fs, options, spawn).expect("start the server"));
        let mut with = mount_options();
        // fuser cannot serve an asynchronous back end, so use `/dev/fuse` instead.
        if with.transport == Transport::Fuser {
            with = with.with_transport(Transport::Device);
        }
        let mount = Mount::serve_async(server, dir.path(), &with).expect("mount the file system");
        let kernel = mount.kernel_cache().clone();
        Some(Site::of(Box::new(mount), Some(runtime), dir, kernel))
    }

    fn of(
        mount: Box<dyn Any>,
        runtime: Option<Runtime>,
        dir: TempDir,
        kernel: KernelCache,
    ) -> Site {
        let watchdog = Watchdog::start("a suite on a mount", TEST_LIMIT);
        Site { _mount: mount, _runtime: runtime, dir, kernel, _watchdog: watchdog }
    }

    pub(crate) fn path(&self) -> &Path {
        self.dir.path()
    }

    pub(crate) fn suite(&self) -> Mounted {
        let kernel = self.kernel.clone();
        suite(self.dir.path()).with_invalidation(move |path| {
            kernel.invalidate_entry_at(path).expect("notify the kernel");
        })
    }
}

pub(crate) fn suite(dir: &Path) -> Mounted {
    Mounted::new(dir, PROGRAMS)
}

/// Returns the mount options of a test. The variable `COREWALK_TRANSPORT` chooses the transport.
fn mount_options() -> MountOptions {
    let transport = std::env::var("COREWALK_TRANSPORT").map_or(Transport::Auto, |name| {
        Transport::from_name(&name).expect("COREWALK_TRANSPORT is a transport")
    });
    let mut options = MountOptions::default().with_transport(transport);
    if rustix::process::geteuid().is_root() {
        options.users = AllowedUsers::Everyone;
    }
    options
}
