//! The host kernel's tmpfs, through system calls.
//!
//! All files are in a new folder on `/dev/shm`. Each user has its own descriptor of the folder,
//! where its paths start. So they have as many components as in the other variants. To translate an
//! open file to its path, this variant calls readlink(2) on `/proc/self/fd/N`.
//!
//! # Limits
//! A host without a tmpfs on `/dev/shm` is refused, since otherwise the run would measure a file
//! system on a disk.
//!
//! Source: openat(2), fstatat(2), getdents64(2), proc_pid_fd(5), statfs(2).

use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, ensure};
use corewalk::{Attr, FileKind};
use rustix::fs::{
    AtFlags, CWD, FileType, Mode, OFlags, RawDir, chmodat, linkat, mkdirat, mknodat, openat,
    renameat, statat, statfs, unlinkat,
};

use super::{Files, List, User};
use crate::baseline::path_of_fd;
use crate::ours::mode_of;
use crate::peer::{Scratch, TMPFS};

/// The type of a tmpfs in statfs(2) (`TMPFS_MAGIC`).
const TMPFS_MAGIC: i64 = 0x0102_1994;
/// Bytes of a buffer for getdents64(2).
const LIST_BYTES: usize = 32 << 10;

/// The flags with which open(2) opens a directory for a listing.
const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// A folder on the host's tmpfs, removed at the end.
pub(crate) struct Host {
    folder: PathBuf,
    _scratch: Scratch,
}

/// A thread's descriptor of the folder.
pub(crate) struct HostUser<'a> {
    folder: &'a Path,
    root: OwnedFd,
}

impl Host {
    /// Makes an empty folder on the host's tmpfs, with `label` in its name.
    ///
    /// # Errors
    /// The folder [`TMPFS`] is missing or is not a tmpfs, or the new folder cannot be made.
    pub(crate) fn new(label: &str) -> anyhow::Result<Host> {
        let status = statfs(TMPFS).with_context(|| format!("there is no {TMPFS}"))?;
        ensure!(status.f_type as i64 == TMPFS_MAGIC, "{TMPFS} is no tmpfs");
        let scratch = Scratch::new(Path::new(TMPFS), label)?;
        Ok(Host { folder: scratch.folder("files")?, _scratch: scratch })
    }
}

impl Files for Host {
    type User<'a> = HostUser<'a>;

    fn variant(&self) -> &'static str {
        "linux"
    }

    fn user(&self) -> HostUser<'_> {
        let bytes = self.folder.as_os_str().as_bytes();
        let root = openat(CWD, bytes, DIRECTORY, Mode::empty());
        HostUser { folder: &self.folder, root: root.expect("the folder was just made") }
    }
}

impl User for HostUser<'_> {
    type Node = OwnedFd;

    fn open_dir(&self, path: &[u8]) -> Option<OwnedFd> {
        openat(&self.root, inside(path), DIRECTORY, Mode::empty()).ok()
    }

    fn make(&self, dir: &OwnedFd, name: &[u8], kind: FileKind) -> Option<()> {
        let mode = Mode::from_raw_mode(mode_of(kind));
        let made = match kind {
            FileKind::Directory => mkdirat(dir, name, mode),
            _ => mknodat(dir, name, FileType::RegularFile, mode, 0),
        };
        made.ok()
    }

    fn unlink(&self, dir: &OwnedFd, name: &[u8]) -> bool {
        unlinkat(dir, name, AtFlags::empty()).is_ok()
    }

    fn link(&self, dir: &OwnedFd, name: &[u8], other: &[u8]) -> bool {
        linkat(dir, name, dir, other, AtFlags::empty()).is_ok()
    }

    fn chmod(&self, dir: &OwnedFd, name: &[u8], mode: u32) -> bool {
        chmodat(dir, name, Mode::from_raw_mode(mode), AtFlags::empty()).is_ok()
    }

    fn rename(&self, from: (&OwnedFd, &[u8]), to: (&OwnedFd, &[u8])) -> bool {
        renameat(from.0, from.1, to.0, to.1).is_ok()
    }

    fn stat(&self, path: &[u8]) -> Option<Attr> {
        self.stat_at(&self.root, inside(path))
    }

    fn stat_at(&self, dir: &OwnedFd, name: &[u8]) -> Option<Attr> {
        let stat = statat(dir, name, AtFlags::SYMLINK_NOFOLLOW).ok()?;
        let mut attr = Attr::new(stat.st_ino, stat.st_mode);
        attr.size = stat.st_size as u64;
        Some(attr)
    }

    fn open_close(&self, path: &[u8]) -> bool {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        openat(&self.root, inside(path), flags, Mode::empty()).is_ok()
    }

    fn list(&self, dir: &OwnedFd, list: &mut List) -> bool {
        list.clear();
        // The descriptor `dir` may be at the end of the directory after an earlier listing, so open
        // the directory again.
        let Ok(fd) = openat(dir, c".", DIRECTORY, Mode::empty()) else { return false };
        let mut buffer = [const { MaybeUninit::<u8>::uninit() }; LIST_BYTES];
        let mut entries = RawDir::new(fd, &mut buffer);
        while let Some(entry) = entries.next() {
            let Ok(entry) = entry else { return false };
            let name = entry.file_name().to_bytes();
            if name != b"." && name != b".." {
                let is_directory = entry.file_type() == FileType::Directory;
                list.push(name, if is_directory { FileKind::Directory } else { FileKind::Regular });
            }
        }
        true
    }

    fn hold(&self, path: &[u8]) -> Option<OwnedFd> {
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        openat(&self.root, inside(path), flags, Mode::empty()).ok()
    }

    fn path_of(&self, file: &OwnedFd) -> Option<Vec<u8>> {
        let mut path = path_of_fd(file)?;
        let folder = self.folder.as_os_str().as_bytes();
        path.starts_with(folder).then(|| path.drain(..folder.len()));
        Some(path)
    }
}

/// Returns the absolute path `path` as a path that starts at the folder.
fn inside(path: &[u8]) -> &[u8] {
    match path {
        b"/" => b".",
        [b'/', rest @ ..] => rest,
        _ => path,
    }
}
