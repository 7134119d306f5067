//! The host kernel, through the system calls that a server has.
//!
//! A lookup is `fstatat` of one name in an open directory, and a walk is `lstat` of the whole path.
//! A path translation is the `readlink` of `/proc/self/fd/N` of the parent directory, followed by
//! the name. The process has one open descriptor per directory. One per file, as in virtiofsd, is
//! more than a process may have by default.
//!
//! Each operation pays for a system call, so the benchmark also shows the cost of an empty one.
//!
//! # What this variant refuses
//! If the host's `/usr` has too few names, the tree of names (`Corpus`) contains made-up ones,
//! which the host kernel does not have. So this variant refuses such a tree.
//!
//! Source: Linux, `fs/namei.c` and `fs/d_path.c`. virtiofsd also reads the links in
//! `/proc/self/fd`.

use std::io::Write as _;
use std::os::fd::{AsRawFd as _, OwnedFd};

use anyhow::{Context as _, ensure};
use corewalk_base::primitives::Arc;
use rustix::fs::{AtFlags, CWD, Mode, OFlags, openat, readlinkat, renameat, statat};
use rustix::process::{Resource, getrlimit};

use super::Namespace;
use crate::corpus::{Corpus, ROOT, SYNTHETIC};
use crate::machine::thread_cpu_ns;

/// Descriptors that are left for the rest of the process.
const SPARE_DESCRIPTORS: u64 = 512;

/// The kernel's namespace, with a descriptor for each directory.
pub(crate) struct Linux {
    corpus: Arc<Corpus>,
    directories: Vec<Option<OwnedFd>>,
    /// The kernel's inode number of each entry, to check answers.
    numbers: Vec<u64>,
}

impl Linux {
    /// Returns the host kernel as a variant with the names of `corpus`, all of which are in its
    /// dentry cache.
    ///
    /// # Errors
    /// - The tree of names has made-up entries, which the host does not have.
    /// - Entries were removed from the host meanwhile.
    /// - The process may not open a descriptor for each directory.
    pub(crate) fn open(corpus: &Arc<Corpus>) -> anyhow::Result<Linux> {
        ensure!(corpus.made_up == 0, "{} entries are made up", corpus.made_up);
        let count = corpus.inodes().filter(|&ino| corpus.is_directory(ino)).count() as u64;
        let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        let is_enough = count + SPARE_DESCRIPTORS <= limit;
        ensure!(is_enough, "{count} directories need more than the {limit} descriptors allowed");
        let mut linux = Linux {
            corpus: Arc::clone(corpus),
            directories: Vec::with_capacity(corpus.len()),
            numbers: Vec::with_capacity(corpus.len()),
        };
        for ino in corpus.inodes() {
            let path = corpus.path(ino);
            let is_here = ino != SYNTHETIC;
            let stat = is_here.then(|| statat(CWD, &path[..], AtFlags::SYMLINK_NOFOLLOW));
            linux.numbers.push(stat.transpose().context("/usr changed")?.map_or(0, |s| s.st_ino));
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let wants_descriptor = is_here && corpus.is_directory(ino);
            let fd = wants_descriptor.then(|| openat(CWD, &path[..], flags, Mode::empty()));
            linux.directories.push(fd.transpose().context("/usr changed")?);
        }
        Ok(linux)
    }
}

impl Namespace for Linux {
    fn variant(&self) -> &'static str {
        "linux"
    }

    fn lookup(&self, parent: u64, name: &[u8]) -> Option<u64> {
        let directory = self.directories[parent as usize - 1].as_ref()?;
        Some(statat(directory, name, AtFlags::SYMLINK_NOFOLLOW).ok()?.st_ino)
    }

    fn path(&self, ino: u64) -> Option<Vec<u8>> {
        let parent = self.corpus.parent(ino);
        let mut path = path_of_fd(self.directories[parent as usize - 1].as_ref()?)?;
        if parent != ROOT {
            path.push(b'/');
        }
        path.extend_from_slice(self.corpus.name(ino));
        Some(path)
    }

    fn walk(&self, path: &[u8]) -> Option<u64> {
        Some(statat(CWD, path, AtFlags::SYMLINK_NOFOLLOW).ok()?.st_ino)
    }

    fn number(&self, ino: u64) -> u64 {
        self.numbers[ino as usize - 1]
    }
}

/// A variant that measures the host kernel by getcwd(2): each thread asks for its working
/// directory.
pub(crate) struct Cwd {
    directory: OwnedFd,
    /// The directories of renames, in the order of their numbers.
    parents: Vec<OwnedFd>,
}

impl Cwd {
    /// Returns the host kernel as a variant whose threads have the working directory `path`, and
    /// rename files in the directories `parents`.
    ///
    /// # Errors
    /// If a directory cannot be opened.
    pub(crate) fn open(path: &[u8], parents: &[Vec<u8>]) -> anyhow::Result<Cwd> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let open = |path: &[u8]| openat(CWD, path, flags, Mode::empty());
        let parents = parents.iter().map(|path| open(path)).collect::<Result<_, _>>()?;
        Ok(Cwd { directory: open(path)?, parents })
    }
}

impl Namespace for Cwd {
    fn variant(&self) -> &'static str {
        "linux"
    }

    /// Returns where the thread is, whatever it asks for.
    fn path(&self, _ino: u64) -> Option<Vec<u8>> {
        Some(rustix::process::getcwd(Vec::with_capacity(256)).ok()?.into_bytes())
    }

    fn rename(&self, from: (u64, &[u8]), to: (u64, &[u8])) -> bool {
        let parent = |number: u64| &self.parents[number as usize];
        renameat(parent(from.0), from.1, parent(to.0), to.1).is_ok()
    }

    /// Gives the calling thread its own working directory. If that fails, getcwd(2) later returns a
    /// wrong path, and the check of the answers fails the run.
    fn begin(&self) {
        #[expect(deprecated, reason = "the other is unsafe, for the sake of descriptors")]
        let is_apart = rustix::thread::unshare(rustix::thread::UnshareFlags::FS).is_ok();
        if is_apart {
            let _ = rustix::process::fchdir(&self.directory);
        }
    }
}

/// Returns the path of an open file as the kernel reports it.
pub(crate) fn path_of_fd(fd: &OwnedFd) -> Option<Vec<u8>> {
    let mut link = [0_u8; 32];
    let mut rest = &mut link[..];
    write!(rest, "/proc/self/fd/{}", fd.as_raw_fd()).ok()?;
    let unused = rest.len();
    let link = &link[..link.len() - unused];
    Some(readlinkat(CWD, link, Vec::with_capacity(256)).ok()?.into_bytes())
}

/// Returns the cost of an empty system call (getppid) in nanoseconds of processor time: the mean of
/// `calls` calls. On a busy machine a call takes several times as long by wall time.
pub(crate) fn syscall_ns(calls: u32) -> f64 {
    let start = thread_cpu_ns();
    for _ in 0..calls {
        std::hint::black_box(rustix::process::getppid());
    }
    (thread_cpu_ns() - start) as f64 / f64::from(calls)
}
