//! File handles of the host. With them, `HostFs` distinguishes a file from a later one with the
//! same inode number, and finds a file by its number.
//!
//! The host gives each file a handle that no later file ever gets (name_to_handle_at(2)). A handle
//! contains the inode number and a generation, in a layout that depends on the file system.
//!
//! [`Handles`] knows four layouts of handles. From such a handle it reads the generation, and it
//! can build a handle from an inode number and a generation. In any other layout, a hash of the
//! handle serves as the generation.
//!
//! # Beneath the root
//! An inode number may belong to a file outside of the root directory, on the same file system.
//! - For a directory, `HostFs` follows the parents up to the root directory.
//! - For any other file, `HostFs` asks the host kernel for a path, and resolves that path beneath
//!   the root directory. The kernel has one only if it has the file's name in its dentry cache.
//! - A file without such a path is used only if the root directory is the root of the whole file
//!   system. Otherwise the call fails with `ESTALE`.
//!
//! # Refused calls
//! - Opening a handle fails with `ESTALE` if the process has no `CAP_DAC_READ_SEARCH`, or if the
//!   layout of the handles is unknown.
//! - On tmpfs and XFS, finding a file by its inode number without a generation fails with `ESTALE`.
//!   These file systems check the generation in a handle.
//!
//! Source: open_by_handle_at(2); Linux `fs/libfs.c` (`generic_encode_ino32_fh`), `mm/shmem.c`
//! (`shmem_encode_fh`), `fs/xfs/xfs_export.c`, `fs/btrfs/export.c`, `fs/inode.c` (`iget_locked`
//! returns no inode while one is being made).

use std::collections::HashMap;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::Arc;

use corewalk::{Attr, Errno, FileKind, Node};
use corewalk_base::Mutex;
use corewalk_base::file_handle::FileHandle;
use corewalk_base::primitives::thread;
use foldhash::fast::RandomState;
use rustix::fs::{
    AtFlags, CWD, Mode, OFlags, Statx, StatxAttributes, StatxFlags, openat, readlinkat, statx,
};

use crate::attributes::time;
use crate::beneath::no_follow;
use crate::descriptors::SharedFd;
use crate::hostfs::{HostFs, magic, stat_fd};

/// Maximum number of times that the status and the generation of a file are read. They take two
/// system calls, and another program may replace the file between them.
const TRIES_MAX: u32 = 16;
/// Maximum number of times that a handle is opened again after `ENOMEM`. The host may really have
/// no memory, so the number has a limit.
const NUMBER_TRIES_MAX: u32 = 1000;
const DEPTH_MAX: u32 = 1 << 16;
const PARENT: &[u8] = b"..";

pub(crate) struct Handles {
    /// The handle of the root directory. The handle of another file is a copy of it with another
    /// inode number and generation.
    root: FileHandle,
    layout: Option<Layout>,
    /// True if the root directory is the root of the whole host file system. Then every file is
    /// beneath it.
    is_whole: bool,
    /// The number and the generation of each inode that `attr_by_number` has found. A call needs
    /// the generation if the dentry cache has no path of the inode. Protected by its own mutex.
    nameless: Mutex<HashMap<u64, u32, RandomState>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Layout {
    /// The inode number (32 bits), then the generation (32 bits), as in ext4, f2fs and most other
    /// file systems.
    Short,
    /// A handle of tmpfs: the generation (32 bits), then the inode number (64 bits).
    Tmpfs,
    /// The inode number (64 bits), then the generation (32 bits), as in XFS.
    Xfs,
    /// The inode number (64 bits), then the subvolume (64 bits), then the generation (32 bits), as
    /// in btrfs.
    Btrfs,
}

impl Layout {
    fn of(handle: &FileHandle, ino: u64) -> Option<Layout> {
        let layout = match (handle.kind(), handle.bytes().len()) {
            (0x01, 8) => Layout::Short,
            (0x01, 12) => Layout::Tmpfs,
            (0x81, 12) => Layout::Xfs,
            (0x4d, 20) => Layout::Btrfs,
            _ => return None,
        };
        (layout.number(handle) == ino).then_some(layout)
    }

    fn number(self, handle: &FileHandle) -> u64 {
        match self {
            Layout::Short => u64::from(word(handle, 0)),
            Layout::Tmpfs => long(handle, 4),
            Layout::Xfs | Layout::Btrfs => long(handle, 0),
        }
    }

    fn generation_at(self) -> usize {
        match self {
            Layout::Short => 4,
            Layout::Tmpfs => 0,
            Layout::Xfs => 8,
            Layout::Btrfs => 16,
        }
    }

    /// Builds the handle of inode `ino` from the handle of the root directory. Returns `None` if
    /// `ino` is too large for the layout. Also returns `None` if the host checks the generation in
    /// a handle and `generation` is `None`.
    ///
    /// Ext4-like file systems and btrfs do not check generation 0. So a handle with generation 0
    /// opens the inode with any generation.
    fn handle(self, root: &FileHandle, ino: u64, generation: Option<u32>) -> Option<FileHandle> {
        let any = matches!(self, Layout::Short | Layout::Btrfs).then_some(0);
        let mut bytes = root.bytes().to_vec();
        match self {
            Layout::Short => bytes[..4].copy_from_slice(&u32::try_from(ino).ok()?.to_ne_bytes()),
            Layout::Tmpfs => bytes[4..12].copy_from_slice(&ino.to_ne_bytes()),
            Layout::Xfs | Layout::Btrfs => bytes[..8].copy_from_slice(&ino.to_ne_bytes()),
        }
        let at = self.generation_at();
        bytes[at..at + 4].copy_from_slice(&generation.or(any)?.to_ne_bytes());
        Some(root.with_bytes(&bytes))
    }
}

impl Handles {
    pub(crate) fn new(fd: BorrowedFd<'_>, ino: u64) -> Option<Handles> {
        let root = FileHandle::of(fd, b"").ok()?;
        let layout = Layout::of(&root, ino);
        Some(Handles { root, layout, is_whole: is_whole(fd), nameless: Mutex::default() })
    }

    /// Returns the generation in `handle`, or `None` if the handle belongs to an inode other than
    /// `ino`.
    fn generation(&self, handle: &FileHandle, ino: u64) -> Option<u32> {
        let layout = self.layout.filter(|_| {
            handle.kind() == self.root.kind() && handle.bytes().len() == self.root.bytes().len()
        });
        match layout {
            Some(layout) => {
                (layout.number(handle) == ino).then(|| word(handle, layout.generation_at()))
            }
            // The layout of the handle is unknown, so use a hash of the handle. For two inodes with
            // the same number, the hashes are equal with a probability of 1 in 2^32.
            None => Some(handle.bytes().iter().fold(handle.kind() as u32, |hash, &byte| {
                (hash.rotate_left(8) ^ u32::from(byte)).wrapping_mul(0x9e37_79b1)
            })),
        }
    }

    pub(crate) fn forget(&self, ino: u64) {
        self.nameless.lock().remove(&ino);
    }
}

impl HostFs {
    /// Returns the status and the generation of the file `name`, or of `dir` if `name` is empty.
    ///
    /// The lower 32 bits of the generation are those of the host, since the client's kernel keeps
    /// only the lower half. The upper 32 bits come from the file's time of creation.
    pub(crate) fn status_and_generation(
        &self,
        dir: BorrowedFd<'_>,
        name: &[u8],
    ) -> Result<(Statx, u64), Errno> {
        for _ in 0..TRIES_MAX {
            let status = self.status(dir, name)?;
            if let Some(generation) = self.generation(dir, name, &status)? {
                return Ok((status, generation));
            }
        }
        Err(Errno::STALE)
    }

    pub(crate) fn generation(
        &self,
        dir: BorrowedFd<'_>,
        name: &[u8],
        status: &Statx,
    ) -> Result<Option<u64>, Errno> {
        let (ino, birth) = (status.stx_ino, time(&status.stx_btime));
        let known = || Ok(Some(self.generations.of(ino, birth)));
        let Some(handles) = &self.handles else { return known() };
        match FileHandle::of(dir, name) {
            Ok(handle) => {
                let generation = handles.generation(&handle, ino).map(u64::from);
                Ok(generation.map(|generation| birth_half(status) | generation))
            }
            Err(Errno::OPNOTSUPP | Errno::OVERFLOW) => known(),
            Err(error) => Err(error),
        }
    }

    /// Returns true if the file `name`, or `dir` if `name` is empty, is the inode of `node`. A
    /// later inode with the same number has another generation, so it is not.
    pub(crate) fn is_node(
        &self,
        node: Node<'_>,
        dir: BorrowedFd<'_>,
        name: &[u8],
        status: &Statx,
    ) -> bool {
        let is_number = status.stx_ino == node.ino();
        let Some(wanted) = node.generation().filter(|_| is_number) else { return is_number };
        let may_be = self.handles.is_none() || birth_half(status) == wanted & !u64::from(u32::MAX);
        may_be && self.generation(dir, name, status) == Ok(Some(wanted))
    }

    pub(crate) fn attr_by_number(&self, ino: u64, wanted: Option<u64>) -> Result<Attr, Errno> {
        let handles = self.handles.as_ref().ok_or(Errno::STALE)?;
        if ino == self.root_ino {
            return corewalk::FileSystem::root(self);
        }
        let fd = self.open_number(ino, wanted.map(|wanted| wanted as u32))?;
        let (status, generation) = self.status_and_generation(fd.as_fd(), b"")?;
        let is_it = status.stx_ino == ino && status.stx_nlink > 0;
        if !is_it || wanted.is_some_and(|wanted| wanted != generation) {
            return Err(Errno::STALE);
        }
        let kind = FileKind::from_mode(u32::from(status.stx_mode)).ok_or(Errno::IO)?;
        if !self.is_beneath(fd.as_fd(), kind)? {
            return Err(Errno::STALE);
        }
        handles.nameless.lock().insert(ino, generation as u32);
        self.descriptors.keep(ino, Arc::new(fd));
        let has_acl = self.has_acl(&status, || Ok(true))?;
        Ok(self.attr(&status, has_acl).with_generation(generation))
    }

    /// Opens an inode by its number, for a call without a path of the inode. Fails with `ESTALE`
    /// unless `attr_by_number` has found the inode before.
    pub(crate) fn open_nameless(&self, ino: u64) -> Result<OwnedFd, Errno> {
        let handles = self.handles.as_ref().ok_or(Errno::STALE)?;
        let generation = handles.nameless.lock().get(&ino).copied();
        self.open_number(ino, Some(generation.ok_or(Errno::STALE)?))
    }

    /// Opens an inode that another program has moved, by its file handle. Returns `None` if the
    /// inode is not found beneath the root directory.
    ///
    /// # Errors
    /// `ENFILE`, `ENOMEM`, `EIO`.
    pub(crate) fn open_renamed(&self, node: Node<'_>) -> Result<Option<SharedFd>, Errno> {
        let Some(generation) = node.generation() else { return Ok(None) };
        let fd = match self.open_number(node.ino(), Some(generation as u32)) {
            Ok(fd) => fd,
            Err(Errno::STALE) => return Ok(None),
            Err(error) => return Err(error),
        };
        let status = stat_fd(fd.as_fd())?;
        let is_it = self.is_node(node, fd.as_fd(), b"", &status) && status.stx_nlink > 0;
        if !is_it || !self.is_beneath(fd.as_fd(), node.kind())? {
            return Ok(None);
        }
        let fd = Arc::new(fd);
        self.descriptors.keep(node.ino(), Arc::clone(&fd));
        Ok(Some(fd))
    }

    fn open_number(&self, ino: u64, generation: Option<u32>) -> Result<OwnedFd, Errno> {
        let handles = self.handles.as_ref().ok_or(Errno::STALE)?;
        let layout = handles.layout.ok_or(Errno::STALE)?;
        let handle = layout.handle(&handles.root, ino, generation).ok_or(Errno::STALE)?;
        let open = |flags| self.retry_full(|| handle.open(self.root.as_fd(), flags));
        let mut tries = 0;
        let opened = loop {
            let opened = match open(OFlags::DIRECTORY) {
                Err(Errno::NOTDIR | Errno::ACCESS) => open(OFlags::PATH),
                opened => opened,
            };
            // ext4 also fails with `ENOMEM` while it gives the number of a removed inode to a new
            // one. That takes microseconds, and then the call fails with `ESTALE`.
            if opened.as_ref().err() != Some(&Errno::NOMEM) || tries == NUMBER_TRIES_MAX {
                break opened;
            }
            tries += 1;
            thread::yield_now();
        };
        opened.map_err(|error| match error {
            Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::IO => error,
            _ => Errno::STALE,
        })
    }

    pub(crate) fn parent_of(&self, dir: Node<'_>) -> Result<u64, Errno> {
        if dir.ino() == self.root_ino {
            return Ok(dir.ino());
        }
        let fd = self.at(dir)?;
        let status = self.status(fd.as_fd(), b"")?;
        match status.stx_nlink {
            0 => Err(Errno::STALE),
            _ => Ok(self.status(fd.as_fd(), PARENT)?.stx_ino),
        }
    }

    fn is_beneath(&self, fd: BorrowedFd<'_>, kind: FileKind) -> Result<bool, Errno> {
        match kind {
            FileKind::Directory => self.is_directory_beneath(fd),
            _ => {
                let is_whole = self.handles.as_ref().is_some_and(|handles| handles.is_whole);
                Ok(is_whole || self.has_path_beneath(fd)?)
            }
        }
    }

    fn is_directory_beneath(&self, fd: BorrowedFd<'_>) -> Result<bool, Errno> {
        let mut at = fd.try_clone_to_owned().map_err(|_| Errno::MFILE)?;
        let mut ino = stat_fd(at.as_fd())?.stx_ino;
        for _ in 0..DEPTH_MAX {
            if ino == self.root_ino {
                return Ok(true);
            }
            let above =
                openat(&at, PARENT, OFlags::PATH | OFlags::DIRECTORY | no_follow(), Mode::empty())?;
            let status = stat_fd(above.as_fd())?;
            let is_top = status.stx_ino == ino;
            if is_top || (status.stx_dev_major, status.stx_dev_minor) != self.device {
                return Ok(false);
            }
            (at, ino) = (above, status.stx_ino);
        }
        Ok(false)
    }

    /// Returns true if the path that `/proc` shows for the open file leads to the same inode
    /// number, beneath the root directory.
    fn has_path_beneath(&self, fd: BorrowedFd<'_>) -> Result<bool, Errno> {
        let shown = |fd| readlinkat(CWD, magic(fd), Vec::new()).map(std::ffi::CString::into_bytes);
        let (path, root) = (shown(fd)?, shown(self.root.as_fd())?);
        let root = root.strip_suffix(b"/").unwrap_or(&root);
        let Some(rest) = path.strip_prefix(root).filter(|rest| rest.starts_with(b"/")) else {
            return Ok(false);
        };
        let found = self.open_beneath(rest, FileKind::Regular);
        let ino = found.and_then(|found| stat_fd(found.as_fd())).map(|status| status.stx_ino);
        Ok(ino == Ok(stat_fd(fd)?.stx_ino))
    }
}

fn is_whole(root: BorrowedFd<'_>) -> bool {
    let flags = AtFlags::EMPTY_PATH | AtFlags::NO_AUTOMOUNT;
    let Ok(status) = statx(root, c"", flags, StatxFlags::MNT_ID) else { return false };
    let is_known = status.stx_mask & StatxFlags::MNT_ID.bits() != 0;
    if !is_known || !status.stx_attributes.contains(StatxAttributes::MOUNT_ROOT) {
        return false;
    }
    let id = status.stx_mnt_id.to_string();
    // Read `mountinfo` as bytes, because its paths need not be UTF-8.
    let table = std::fs::read("/proc/self/mountinfo").unwrap_or_default();
    table.split(|&b| b == b'\n').any(|line| {
        let mut fields = line.split(|&b| b == b' ');
        fields.next() == Some(id.as_bytes()) && fields.nth(2) == Some(b"/")
    })
}

fn birth_half(status: &Statx) -> u64 {
    let birth = time(&status.stx_btime);
    let micros = (birth.secs as u64).wrapping_mul(1_000_000) + u64::from(birth.nanos / 1000);
    micros << 32
}

fn word(handle: &FileHandle, at: usize) -> u32 {
    handle.bytes()[at..].first_chunk().map_or(0, |bytes| u32::from_ne_bytes(*bytes))
}

fn long(handle: &FileHandle, at: usize) -> u64 {
    handle.bytes()[at..].first_chunk().map_or(0, |bytes| u64::from_ne_bytes(*bytes))
}
