//! A folder with a mount, which goes away with the test however that ends.

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
use corewalk_fuse::{Access, Counters, Mount, MountOptions, Options, Server};
use corewalk_testkit::require::has_fuse;
use rustix::mount::UnmountFlags;

/// How long a test may take before the mount is taken away under it: whoever waits for a server
/// that hangs cannot be ended otherwise.
const TEST_LIMIT: Duration = Duration::from_secs(120);

/// A mounted file system and its folder.
pub(crate) struct Site {
    mount: Option<Mount>,
    folder: Folder,
    _watched: Sender<()>,
}

/// An empty folder, removed when it is dropped.
pub(crate) struct Folder(PathBuf);

impl Site {
    /// Mounts `fs`; None, after saying so, where that is not possible.
    pub(crate) fn new(fs: Arc<dyn FileSystem>, options: Options) -> Option<Site> {
        Site::with_threads(fs, options, MountOptions::default().threads)
    }

    /// As [`Site::new`], with so many threads that read requests.
    pub(crate) fn with_threads(
        fs: Arc<dyn FileSystem>,
        options: Options,
        threads: usize,
    ) -> Option<Site> {
        if !has_fuse() {
            return None;
        }
        let folder = Folder::new();
        let with = MountOptions { threads, ..mount_options() };
        let mount = Mount::new(fs, &folder.0, options, &with).expect("a mount");
        let watched = watch(&mount);
        Some(Site { mount: Some(mount), folder, _watched: watched })
    }

    /// Mounts an empty tmpfs.
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
        self.mount.as_ref().expect("it is there until the site is dropped")
    }

    pub(crate) fn server(&self) -> &Arc<Server> {
        self.mount().server()
    }

    pub(crate) fn counters(&self) -> Counters {
        self.server().counters()
    }

    /// Waits until the counters are as `condition` says; each look is a request, after which the
    /// server has served what came before it.
    pub(crate) fn wait_for(&self, what: &str, condition: impl Fn(&Counters) -> bool) {
        let begin = Instant::now();
        while !condition(&self.counters()) {
            assert!(begin.elapsed() < Duration::from_secs(20), "{what}: {:?}", self.counters());
            rustix::fs::getxattr(self.root(), corewalk_fuse::XATTR_STAT, &mut [0; 4096][..])
                .expect("the counters");
        }
    }

    /// Ends the test with the mount given back.
    pub(crate) fn into_mount(mut self) -> (Mount, Folder) {
        let folder = std::mem::replace(&mut self.folder, Folder::new());
        (self.mount.take().expect("it is there"), folder)
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        // Before the folder.
        drop(self.mount.take());
    }
}

impl Folder {
    pub(crate) fn new() -> Folder {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        // ORDERING: Relaxed. Only the numbers must differ.
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("corewalk-fuse-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir(&path).expect("a folder for the test");
        Folder(path)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // Not if something is mounted on it still.
        let _ = std::fs::remove_dir(&self.0);
    }
}

/// Returns what tests mount with: for everybody if root does.
pub(crate) fn mount_options() -> MountOptions {
    let mut options = MountOptions::default();
    if rustix::process::geteuid().is_root() {
        options.access = Access::Everyone;
    }
    options
}

fn watch(mount: &Mount) -> Sender<()> {
    let (watched, ended) = channel();
    let point = mount.point().clone();
    thread::spawn(move || {
        if ended.recv_timeout(TEST_LIMIT) == Err(RecvTimeoutError::Timeout) {
            eprintln!("a test hangs on {}", point.path().display());
            // Forced: whoever waits for the server gets an error. A thread that waits would keep
            // this process, and with it the connection, for ever.
            let flags = UnmountFlags::FORCE | UnmountFlags::DETACH;
            let _ = rustix::mount::unmount(point.path(), flags);
            std::process::exit(101);
        }
    });
    watched
}
