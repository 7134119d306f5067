//! The host kernel, through system calls. A walk is lstat of the whole path. A path translation is
//! getcwd(2), for which each thread has a working directory.
//!
//! Each operation pays for a system call, so the benchmark also shows the cost of an empty one.
//!
//! Source: Linux, `fs/namei.c` and `fs/d_path.c`.

use std::collections::HashMap;
use std::io::Write as _;
use std::os::fd::{AsRawFd as _, OwnedFd};

use anyhow::Context as _;
use rustix::fs::{AtFlags, CWD, Mode, OFlags, openat, readlinkat, statat};

use super::Namespace;
use crate::corpus::Corpus;
use crate::machine::thread_cpu_ns;

/// The kernel's namespace.
pub(crate) struct Linux {
    /// The kernel's inode number of each entry, to check answers.
    numbers: HashMap<u64, u64>,
    /// The working directory of each thread. Path translations return its path.
    directory: OwnedFd,
}

impl Linux {
    /// Returns the host kernel as a variant, for the entries in `pool`. Loads these entries into
    /// the kernel's dentry cache. Path translations return the path of the first entry in `pool`.
    ///
    /// # Errors
    /// The host does not have an entry, because it is made up or was removed meanwhile.
    pub(crate) fn open(corpus: &Corpus, pool: &[u64]) -> anyhow::Result<Linux> {
        let number = |&ino: &u64| Some((ino, stat(&corpus.path(ino))?));
        let numbers = pool.iter().map(number).collect::<Option<_>>();
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        let directory = openat(CWD, &corpus.path(pool[0])[..], flags, Mode::empty());
        Ok(Linux { numbers: numbers.context("not on the host")?, directory: directory? })
    }
}

impl Namespace for Linux {
    fn variant(&self) -> &'static str {
        "linux"
    }

    /// Returns the path of the thread's working directory, for any inode number.
    fn path(&self, _ino: u64) -> Option<Vec<u8>> {
        Some(rustix::process::getcwd(Vec::with_capacity(256)).ok()?.into_bytes())
    }

    fn walk(&self, path: &[u8]) -> Option<u64> {
        stat(path)
    }

    fn number(&self, ino: u64) -> u64 {
        self.numbers[&ino]
    }

    /// Gives the calling thread its own working directory. If that fails, getcwd(2) later returns a
    /// wrong path, which the benchmark notices.
    fn begin(&self) {
        #[expect(deprecated, reason = "the other is unsafe, for the sake of descriptors")]
        let is_apart = rustix::thread::unshare(rustix::thread::UnshareFlags::FS).is_ok();
        if is_apart {
            let _ = rustix::process::fchdir(&self.directory);
        }
    }
}

/// Returns the kernel's inode number of the entry at a path.
fn stat(path: &[u8]) -> Option<u64> {
    Some(statat(CWD, path, AtFlags::SYMLINK_NOFOLLOW).ok()?.st_ino)
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
