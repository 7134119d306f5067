//! Tests of the example `mirror`, a back end that finds its files by path.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use corewalk::{Attr, ByPath, Errno, Make, Name, PathEntry, PathFileSystem, RenameMode, SetAttr};
use corewalk_base::primitives::thread;
use corewalk_base::primitives::unmodelled::{AtomicBool, Ordering};
use corewalk_fuse::Options;
use rustix::fs::{AtFlags, OFlags};

use crate::site::{Host, Site};

#[path = "../../examples/mirror.rs"]
#[expect(dead_code, reason = "the example's own main")]
mod mirror;

const READS: u32 = 300;

struct Slow {
    inner: mirror::Mirror,
    rename: Duration,
}

impl PathFileSystem for Slow {
    type File = File;

    fn getattr(&self, path: &Path) -> Result<Attr, Errno> {
        self.inner.getattr(path)
    }

    fn readdir(&self, path: &Path, sink: &mut dyn FnMut(PathEntry<'_>)) -> Result<(), Errno> {
        self.inner.readdir(path, sink)
    }

    fn open(&self, path: &Path, flags: u32) -> Result<File, Errno> {
        self.inner.open(path, flags)
    }

    fn read(&self, path: &Path, file: &File, at: u64, buf: &mut [u8]) -> Result<usize, Errno> {
        self.inner.read(path, file, at, buf)
    }

    fn write(&self, path: &Path, file: &File, at: u64, bytes: &[u8]) -> Result<usize, Errno> {
        self.inner.write(path, file, at, bytes)
    }

    fn setattr(&self, path: &Path, set: &SetAttr) -> Result<Attr, Errno> {
        self.inner.setattr(path, set)
    }

    fn make(&self, path: &Path, what: &Make<'_>) -> Result<Attr, Errno> {
        self.inner.make(path, what)
    }

    fn unlink(&self, path: &Path) -> Result<(), Errno> {
        self.inner.unlink(path)
    }

    fn rmdir(&self, path: &Path) -> Result<(), Errno> {
        self.inner.rmdir(path)
    }

    fn link(&self, from: &Path, to: &Path) -> Result<Attr, Errno> {
        self.inner.link(from, to)
    }

    fn rename(&self, from: &Path, to: &Path, mode: RenameMode) -> Result<(), Errno> {
        thread::sleep(self.rename / 2);
        let done = self.inner.rename(from, to, mode);
        thread::sleep(self.rename / 2);
        done
    }
}

struct Mirrored {
    site: Site,
    _host: Host,
}

impl Mirrored {
    fn new(options: Options, rename: Duration) -> Option<Mirrored> {
        let host = Host::new();
        let inner = mirror::Mirror(host.path().to_owned());
        let site = Site::with_threads(Arc::new(ByPath::new(Slow { inner, rename })), options, 4)?;
        Some(Mirrored { site, _host: host })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.site.path(name)
    }

    fn host(&self) -> &Path {
        self._host.path()
    }
}

fn modes() -> [Options; 2] {
    [Options::exclusive(), Options::shared()]
}

/// Opens a file with `O_DIRECT`, so that each read reaches the server and not the kernel's cache.
fn open_direct(path: &Path) -> File {
    let flags = OFlags::DIRECT.bits() as i32;
    OpenOptions::new().read(true).custom_flags(flags).open(path).expect("open the file")
}

/// Files must be read and created without an error while the directories above them are renamed.
/// Trap X1.
#[test]
fn open_file_is_read_under_renames_of_directories_above() {
    for (options, rename, reads) in modes().into_iter().flat_map(|options| {
        [(0, READS), (3, 60), (300, 4)]
            .map(|(ms, reads)| (options.clone(), Duration::from_millis(ms), reads))
    }) {
        let Some(mirrored) = Mirrored::new(options, rename) else { return };
        fs::create_dir_all(mirrored.path("a/d")).expect("make the folders");
        fs::write(mirrored.path("a/d/f"), "content").expect("write the file");
        let file = open_direct(&mirrored.path("a/d/f"));
        let dir = File::open(mirrored.path("a/d")).expect("open the folder");
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            let mover = scope.spawn(|| {
                // ORDERING: Relaxed. The stop flag publishes no data.
                while !is_over.load(Ordering::Relaxed) {
                    fs::rename(mirrored.path("a"), mirrored.path("b")).expect("rename the folder");
                    fs::rename(mirrored.path("b"), mirrored.path("a"))
                        .expect("rename the folder back");
                }
            });
            let ending = Ending(&is_over);
            for i in 0..reads {
                let mut buf = [0; 16];
                let count = file.read_at(&mut buf, 0).unwrap_or_else(|e| panic!("read {i}: {e}"));
                assert_eq!(&buf[..count], b"content");
                let made = format!("made{i}");
                let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY;
                rustix::fs::openat(&dir, &*made, flags, 0o644.into()).expect("open the file");
            }
            drop(ending);
            mover.join().expect("the renaming thread ends without a panic");
        });
        for i in 0..reads {
            assert!(mirrored.host().join(format!("a/d/made{i}")).exists(), "file {i} is lost");
        }
    }
}

struct Ending<'a>(&'a AtomicBool);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        // ORDERING: Relaxed. The stop flag publishes no data.
        self.0.store(true, Ordering::Relaxed);
    }
}

/// While a program replaces a file by a rename, as editors and git do, the name must exist at every
/// moment. Trap X1.
#[test]
fn file_replaced_by_rename_always_exists() {
    for (options, rename, reads) in modes()
        .into_iter()
        .flat_map(|options| [(0, READS), (3, 60)].map(|(ms, reads)| (options.clone(), ms, reads)))
    {
        let rename = Duration::from_millis(rename);
        let Some(mirrored) = Mirrored::new(options, rename) else { return };
        let (current, next) = (mirrored.path("current"), mirrored.path("next"));
        fs::write(&current, "version 0").expect("write the file");
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            let publisher = scope.spawn(|| {
                // ORDERING: Relaxed. The stop flag publishes no data.
                for version in (1..).take_while(|_| !is_over.load(Ordering::Relaxed)) {
                    fs::write(&next, format!("version {version}")).expect("write the file");
                    fs::rename(&next, &current).expect("rename the file");
                }
            });
            let ending = Ending(&is_over);
            for i in 0..reads {
                let text = fs::read_to_string(&current).unwrap_or_else(|e| panic!("read {i}: {e}"));
                assert!(text.starts_with("version "), "read {i}: {text:?}");
                assert!(fs::metadata(&current).expect("read the attributes").len() >= 9);
            }
            drop(ending);
            publisher.join().expect("the publishing thread ends without a panic");
        });
    }
}

#[test]
fn file_that_is_removed_while_open_stays_until_it_is_closed() {
    for options in modes() {
        let Some(mirrored) = Mirrored::new(options, Duration::ZERO) else { return };
        fs::create_dir(mirrored.path("d")).expect("make the folder");
        fs::write(mirrored.path("d/f"), "content").expect("write the file");
        let file = open_direct(&mirrored.path("d/f"));
        fs::remove_file(mirrored.path("d/f")).expect("remove the file");
        fs::remove_dir(mirrored.path("d")).expect("remove the folder");
        assert_eq!(fs::read_dir(mirrored.site.root()).expect("list the folder").count(), 0);
        let mut buf = [0; 16];
        assert_eq!(file.read_at(&mut buf, 0).expect("read the file"), 7);
        assert_eq!(file.metadata().expect("read the attributes").nlink(), 0);
        drop(file);
        // Wait, because the kernel sends the release and the forget a moment after close(2).
        while fs::read_dir(mirrored.host()).expect("list the folder").count() > 0 {
            thread::yield_now();
        }
    }
}

/// After another program changes a file, a report of the path to the kernel must make the change
/// visible. With `Options::exclusive` the kernel does not learn of such a change otherwise.
#[test]
fn changes_that_are_reported_by_path_are_seen() {
    let Some(mirrored) = Mirrored::new(Options::exclusive(), Duration::ZERO) else { return };
    fs::create_dir_all(mirrored.path("a/d")).expect("make the folders");
    fs::write(mirrored.path("a/d/f"), "old").expect("write the file");
    assert!(!mirrored.path("a/d/new").exists());
    let kernel = mirrored.site.mount().kernel_cache();
    fs::write(mirrored.host().join("a/d/new"), "text").expect("write on the host");
    assert!(!mirrored.path("a/d/new").exists(), "the kernel was told that it does not exist");
    kernel.invalidate_entry_at(Path::new("a/d/new")).expect("notify the kernel");
    assert_eq!(fs::read_to_string(mirrored.path("a/d/new")).expect("read the file"), "text");
    assert_eq!(fs::read_to_string(mirrored.path("a/d/f")).expect("read the file"), "old");
    fs::write(mirrored.host().join("a/d/f"), "changed").expect("write on the host");
    kernel.invalidate_inode_at(Path::new("/a/d/f")).expect("notify the kernel");
    assert_eq!(fs::read_to_string(mirrored.path("a/d/f")).expect("read the file"), "changed");
    fs::rename(mirrored.host().join("a"), mirrored.host().join("b")).expect("rename on the host");
    for path in ["a", "b"] {
        kernel.invalidate_entry_at(Path::new(path)).expect("notify the kernel");
    }
    assert!(!mirrored.path("a/d/f").exists());
    assert_eq!(fs::read_to_string(mirrored.path("b/d/f")).expect("read the file"), "changed");
    // A report must also succeed if the path is not in the cache.
    for path in ["none/at/all", "b/d/none"] {
        assert_eq!(kernel.invalidate_entry_at(Path::new(path)), Ok(()), "{path}");
        assert_eq!(kernel.invalidate_inode_at(Path::new(path)), Ok(()), "{path}");
    }
    assert_eq!(kernel.invalidate_entry_at(Path::new("/")), Err(Errno::INVAL));
}

/// Another program makes two files. For the first one, the test reports a directory above it. For
/// the second one, it reports the file itself, when the cache has lost the directories of its path.
#[test]
fn report_of_a_directory_covers_what_is_cached_below_it() {
    let Some(mirrored) = Mirrored::new(Options::exclusive(), Duration::ZERO) else { return };
    fs::create_dir_all(mirrored.path("a/d")).expect("make the folders");
    let kernel = mirrored.site.mount().kernel_cache();
    let dir = File::open(mirrored.path("a/d")).expect("open the folder");
    let is_there = |name: &str| rustix::fs::statat(&dir, name, AtFlags::empty()).is_ok();
    let make = |name: &str| {
        assert!(!is_there(name));
        fs::write(mirrored.host().join("a/d").join(name), "").expect("write on the host");
        assert!(!is_there(name), "the mount has heard of no change");
    };
    make("x");
    kernel.invalidate_entry_at(Path::new("a")).expect("report the folder");
    assert!(mirrored.path("a/d/x").exists());
    kernel.invalidate_entry_at(Path::new("a")).expect("report the folder");
    make("y");
    kernel.invalidate_entry_at(Path::new("a/d/y")).expect("report the file");
    assert!(is_there("y"));
}

/// A report has hidden a directory above the one that a client uses. Reports about files below it
/// must not drop everything below it.
#[test]
fn report_below_a_hidden_directory_drops_its_own_name() {
    let Some(mirrored) = Mirrored::new(Options::exclusive(), Duration::ZERO) else { return };
    fs::create_dir_all(mirrored.path("a/d")).expect("make the folders");
    fs::write(mirrored.path("a/d/f"), "").expect("write the file");
    let kernel = mirrored.site.mount().kernel_cache();
    let dir = File::open(mirrored.path("a/d")).expect("open the folder");
    kernel.invalidate_entry_at(Path::new("a")).expect("report the folder");
    rustix::fs::statat(&dir, "f", AtFlags::empty()).expect("look the file up");
    let (vfs, name) = (mirrored.site.server().vfs(), Name::new(b"f").expect("a valid name"));
    let ino = dir.metadata().expect("read the attributes").ino();
    let is_cached = || vfs.cached_child(&vfs.inode(ino).expect("it is in use"), name).is_ok();
    assert!(is_cached());
    kernel.invalidate_entry_at(Path::new("a/d/none")).expect("report another file");
    assert!(is_cached());
    kernel.invalidate_entry_at(Path::new("a/d/f")).expect("report the file");
    assert!(!is_cached(), "control: the report reaches the folder");
}
