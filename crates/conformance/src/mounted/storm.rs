//! The check `storm` of a mounted file system: the storm makes system calls in a directory.
//!
//! The tree holds its root and the directory of the files open, and passes their descriptors to
//! calls such as openat(2). So a call finds the files wherever the directory is.

use std::fs::{self, File};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use corewalk::{Errno, RenameMode, errno_of};
use corewalk_base::primitives::atomic::{AtomicBool, Ordering};
use corewalk_base::primitives::thread;
use rustix::fs::{
    AtFlags, CWD, Dir, Mode, OFlags, RenameFlags, linkat, openat, renameat_with, unlinkat,
};

use crate::answer::{Answer, Checked, ensure, ensure_eq};
use crate::plan::Settings;
use crate::storm::{self, DIRS, FileStat, Tree, TreeFile, WORK_DIR};

/// Drops the entry at a path from the caches of the tested server. The path is relative to the
/// directory of the suite.
pub(super) type Invalidate = Arc<dyn Fn(&Path) + Send + Sync>;

/// Maximum size of a file of the storm. If the reads of a file return more bytes, the file system
/// reports no end of the file.
const READ_BYTES_MAX: usize = 4 << 20;
const PAUSE: Duration = Duration::from_millis(1);

struct MountedTree {
    root_path: PathBuf,
    root: OwnedFd,
    dir: OwnedFd,
}

pub(super) fn run(root: &Path, settings: Settings, invalidate: Option<&Invalidate>) -> Checked {
    let tree = MountedTree::new(root)?;
    let has_ended = AtomicBool::new(false);
    thread::scope(|scope| {
        if let Some(invalidate) = invalidate {
            let has_ended = &has_ended;
            scope.spawn(move || invalidate_until(has_ended, root, invalidate));
        }
        let _end = SetOnDrop(&has_ended);
        storm::run(&tree, settings)
    })
}

fn invalidate_until(has_ended: &AtomicBool, root: &Path, invalidate: &Invalidate) {
    let name = Path::new(root.file_name().unwrap_or_default());
    let paths = ["a", "a/d/e/current1", "a/d", "s", "b/d/e/fixed0", "a/d/e"];
    for path in paths.iter().cycle() {
        // ORDERING: Relaxed. A stop flag.
        if has_ended.load(Ordering::Relaxed) {
            return;
        }
        invalidate(&name.join(path));
        thread::sleep(PAUSE);
    }
}

struct SetOnDrop<'a>(&'a AtomicBool);

impl Drop for SetOnDrop<'_> {
    fn drop(&mut self) {
        // ORDERING: Relaxed. A stop flag, as in `invalidate_until`.
        self.0.store(true, Ordering::Relaxed);
    }
}

impl MountedTree {
    fn new(root: &Path) -> Checked<MountedTree> {
        for dir in DIRS {
            fs::create_dir(root.join(dir)).map_err(errno_of).needs("mkdir")?;
        }
        let open = |path: &Path| {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
            openat(CWD, path, flags, Mode::empty()).must("open of a directory")
        };
        let (top, dir) = (open(root)?, open(&root.join(WORK_DIR))?);
        Ok(MountedTree { root_path: root.to_owned(), root: top, dir })
    }

    fn open_with(&self, name: &str, flags: OFlags) -> Result<File, Errno> {
        let flags = flags | OFlags::RDWR | OFlags::CLOEXEC;
        openat(&self.dir, name, flags, Mode::from(0o644)).map(File::from)
    }
}

impl Tree for MountedTree {
    type File<'t>
        = File
    where
        Self: 't;

    // libfuse and NFS rename a removed file that is open. So it may still have a link.
    const HAS_NO_LINKS_WHEN_REMOVED: bool = false;

    fn move_dir(&self, from: &str, to: &str, mode: RenameMode) -> Result<(), Errno> {
        renameat_with(&self.root, from, &self.root, to, flags_of(mode))
    }

    fn rename(&self, from: &str, to: &str, mode: RenameMode) -> Result<(), Errno> {
        renameat_with(&self.dir, from, &self.dir, to, flags_of(mode))
    }

    fn create(&self, name: &str) -> Checked<File> {
        let made = self.open_with(name, OFlags::CREATE | OFlags::EXCL);
        made.needs(&format!("creation of {name:?}"))
    }

    fn open(&self, name: &str) -> Checked<File> {
        self.open_with(name, OFlags::empty()).must(&format!("open of {name:?}"))
    }

    fn unlink(&self, name: &str) -> Result<(), Errno> {
        unlinkat(&self.dir, name, AtFlags::empty())
    }

    fn link(&self, name: &str, new: &str) -> Result<(), Errno> {
        linkat(&self.dir, name, &self.dir, new, AtFlags::empty())
    }

    fn list(&self, _page: usize) -> Checked<Vec<String>> {
        let mut names = Vec::new();
        for entry in Dir::read_from(self.dir.as_fd()).must("open of the directory")? {
            let name = entry.must("readdir")?.file_name().to_string_lossy().into_owned();
            // A name that starts with a dot may belong to a removed file that the server has only
            // renamed.
            if !name.starts_with('.') {
                names.push(name);
            }
        }
        Ok(names)
    }

    // Only the server can drop what the kernel has cached. `invalidate_until` asks it to.
    fn cool(&self) {}

    fn check_dirs(&self) -> Checked {
        let number = |path: &Path| fs::metadata(path).map(|it| it.ino()).map_err(errno_of);
        let by_path = number(&self.root_path.join(WORK_DIR)).must("stat of the directory")?;
        let open = rustix::fs::fstat(&self.dir).must("fstat of the directory")?;
        ensure(by_path == open.st_ino, || format!("/{WORK_DIR} is another directory"))?;
        let mut names = Vec::new();
        for entry in fs::read_dir(&self.root_path).map_err(errno_of).must("open of the root")? {
            let entry = entry.map_err(errno_of).must("readdir of the root")?;
            names.push(entry.file_name().to_string_lossy().into_owned());
        }
        names.sort_unstable();
        ensure_eq("the entries of the root", names, vec!["a".to_owned(), "s".to_owned()])
    }
}

impl TreeFile for File {
    fn read_all(&self) -> Checked<Vec<u8>> {
        let mut content = Vec::new();
        let mut page = vec![0; 64 << 10];
        loop {
            let at = content.len() as u64;
            let count = self.read_at(&mut page, at).map_err(errno_of);
            match count.must(&format!("read at {at}"))? {
                0 => return Ok(content),
                count => content.extend_from_slice(&page[..count]),
            }
            ensure(content.len() <= READ_BYTES_MAX, || {
                format!("reads return more than {READ_BYTES_MAX} bytes")
            })?;
        }
    }

    fn write(&self, at: u64, bytes: &[u8]) -> Checked {
        self.write_all_at(bytes, at).map_err(errno_of).needs("write")
    }

    fn truncate(&self, size: u64) -> Checked {
        self.set_len(size).map_err(errno_of).needs("ftruncate")
    }

    fn stat(&self) -> Checked<FileStat> {
        let stat = self.metadata().map_err(errno_of).must("fstat")?;
        Ok(FileStat { ino: stat.ino(), nlink: stat.nlink(), size: stat.size() })
    }
}

fn flags_of(mode: RenameMode) -> RenameFlags {
    match mode {
        RenameMode::NoReplace => RenameFlags::NOREPLACE,
        RenameMode::Exchange => RenameFlags::EXCHANGE,
        RenameMode::Replace => RenameFlags::empty(),
    }
}
