//! The back end of the example `mirror`. Each call opens, changes or lists the file at its path.

use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use corewalk::attr::mode::{S_IFDIR, S_IFLNK, S_IFMT};
use corewalk::{
    Addressing, Attr, DirEntry, DirSink, Errno, FileKind, FileSystem, Make, Name, Node, RenameMode,
    SetAttr, SetTime, StatFs, Timespec,
};
use rustix::fs::{
    self, AtFlags, CWD, FileType, Gid, Mode, OFlags, RawDir, RenameFlags, StatxFlags, Timestamps,
    Uid,
};

/// A directory of the host.
pub(crate) struct Mirror {
    root: PathBuf,
}

impl Mirror {
    /// Returns the file system whose root is `root`.
    pub(crate) fn new(root: &Path) -> Mirror {
        Mirror { root: root.to_owned() }
    }

    /// Returns the path of a node on the host, which stays valid until the running call of the back
    /// end returns.
    fn at(&self, node: Node<'_>) -> Result<PathBuf, Errno> {
        let path = node.path()?;
        let relative = path.strip_prefix(b"/").unwrap_or(&path);
        Ok(self.root.join(OsStr::from_bytes(relative)))
    }

    fn child(&self, dir: Node<'_>, name: Name<'_>) -> Result<PathBuf, Errno> {
        Ok(self.at(dir)?.join(OsStr::from_bytes(name.as_bytes())))
    }

    fn open(&self, node: Node<'_>, flags: OFlags) -> Result<OwnedFd, Errno> {
        fs::open(self.at(node)?, flags | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())
    }

    fn attr(&self, path: &Path) -> Result<Attr, Errno> {
        let wanted = StatxFlags::BASIC_STATS | StatxFlags::BTIME;
        let found = fs::statx(CWD, path, AtFlags::SYMLINK_NOFOLLOW, wanted)?;
        let time = |at: &fs::StatxTimestamp| Timespec { secs: at.tv_sec, nanos: at.tv_nsec };
        let birth = time(&found.stx_btime);
        // The host reuses inode numbers. Creation times tell two files with the same number apart.
        let generation = birth.secs as u64 * 1_000_000_000 + u64::from(birth.nanos);
        Ok(Attr::new(found.stx_ino, found.stx_mode.into())
            .with_generation(generation)
            .with_nlink(found.stx_nlink)
            .with_uid(found.stx_uid)
            .with_gid(found.stx_gid)
            .with_rdev(fs::makedev(found.stx_rdev_major, found.stx_rdev_minor))
            .with_size(found.stx_size)
            .with_blocks(found.stx_blocks)
            .with_blksize(found.stx_blksize)
            .with_atime(time(&found.stx_atime))
            .with_mtime(time(&found.stx_mtime))
            .with_ctime(time(&found.stx_ctime))
            .with_btime(birth))
    }
}

fn stamp(time: Option<SetTime>) -> fs::Timespec {
    match time {
        None => fs::Timespec { tv_sec: 0, tv_nsec: fs::UTIME_OMIT },
        Some(SetTime::Now) => fs::Timespec { tv_sec: 0, tv_nsec: fs::UTIME_NOW },
        Some(SetTime::At(at)) => fs::Timespec { tv_sec: at.secs, tv_nsec: at.nanos.into() },
    }
}

impl FileSystem for Mirror {
    fn addressing(&self) -> Addressing {
        Addressing::PathOnly
    }

    fn root(&self) -> Result<Attr, Errno> {
        self.attr(&self.root)
    }

    fn lookup(&self, dir: Node<'_>, name: Name<'_>) -> Result<Attr, Errno> {
        self.attr(&self.child(dir, name)?)
    }

    fn getattr(&self, node: Node<'_>) -> Result<Attr, Errno> {
        self.attr(&self.at(node)?)
    }

    fn setattr(&self, node: Node<'_>, set: &SetAttr) -> Result<Attr, Errno> {
        let path = self.at(node)?;
        if set.uid.is_some() || set.gid.is_some() {
            let (uid, gid) = (set.uid.map(Uid::from_raw), set.gid.map(Gid::from_raw));
            fs::chownat(CWD, &path, uid, gid, AtFlags::SYMLINK_NOFOLLOW)?;
        }
        if let Some(mode) = set.mode {
            fs::chmod(&path, Mode::from_raw_mode(mode & !S_IFMT))?;
        }
        if let Some(size) = set.size {
            fs::ftruncate(fs::open(&path, OFlags::WRONLY, Mode::empty())?, size)?;
        }
        if set.atime.is_some() || set.mtime.is_some() {
            let (last_access, last_modification) = (stamp(set.atime), stamp(set.mtime));
            let times = Timestamps { last_access, last_modification };
            fs::utimensat(CWD, &path, &times, AtFlags::SYMLINK_NOFOLLOW)?;
        }
        self.attr(&path)
    }

    fn make(&self, dir: Node<'_>, name: Name<'_>, what: &Make<'_>) -> Result<Attr, Errno> {
        let path = self.child(dir, name)?;
        let mode = Mode::from_raw_mode(what.mode & !S_IFMT);
        match what.mode & S_IFMT {
            S_IFDIR => fs::mkdir(&path, mode)?,
            S_IFLNK => fs::symlink(OsStr::from_bytes(what.target), &path)?,
            kind => fs::mknodat(CWD, &path, FileType::from_raw_mode(kind), mode, what.rdev)?,
        }
        let owner = (Some(Uid::from_raw(what.uid)), Some(Gid::from_raw(what.gid)));
        fs::chownat(CWD, &path, owner.0, owner.1, AtFlags::SYMLINK_NOFOLLOW)?;
        if what.mode & S_IFMT != S_IFLNK {
            // Set the mode again, because the umask of this process may have cleared bits of it.
            fs::chmod(&path, mode)?;
        }
        self.attr(&path)
    }

    fn link(&self, node: Node<'_>, dir: Node<'_>, name: Name<'_>) -> Result<Attr, Errno> {
        let (from, to) = (self.at(node)?, self.child(dir, name)?);
        fs::link(&from, &to)?;
        self.attr(&to)
    }

    fn remove(&self, dir: Node<'_>, name: Name<'_>, node: Node<'_>) -> Result<(), Errno> {
        let path = self.child(dir, name)?;
        match node.kind() {
            FileKind::Directory => fs::rmdir(&path),
            _ => fs::unlink(&path),
        }
    }

    fn rename(
        &self,
        (from_dir, from): (Node<'_>, Name<'_>),
        (to_dir, to): (Node<'_>, Name<'_>),
        mode: RenameMode,
    ) -> Result<(), Errno> {
        let flags = match mode {
            RenameMode::Replace => RenameFlags::empty(),
            RenameMode::NoReplace => RenameFlags::NOREPLACE,
            RenameMode::Exchange => RenameFlags::EXCHANGE,
        };
        let (old, new) = (self.child(from_dir, from)?, self.child(to_dir, to)?);
        fs::renameat_with(CWD, &old, CWD, &new, flags)
    }

    fn readlink(&self, node: Node<'_>) -> Result<Vec<u8>, Errno> {
        Ok(fs::readlink(self.at(node)?, Vec::new())?.into_bytes())
    }

    fn readdir(&self, dir: Node<'_>, cookie: u64, sink: &mut DirSink<'_>) -> Result<(), Errno> {
        let dir = self.open(dir, OFlags::RDONLY | OFlags::DIRECTORY)?;
        fs::seek(&dir, fs::SeekFrom::Start(cookie))?;
        let mut buf = Vec::with_capacity(32 << 10);
        let mut entries = RawDir::new(&dir, buf.spare_capacity_mut());
        while let Some(entry) = entries.next() {
            let entry = entry?;
            // Skip `.` and `..`, which are not valid names. The server itself reports them.
            let Ok(name) = Name::new(entry.file_name().to_bytes()) else { continue };
            let kind = FileKind::from_mode(entry.file_type().as_raw_mode());
            let (ino, kind) = (entry.ino(), kind.unwrap_or(FileKind::Regular));
            let cookie = entry.next_entry_cookie();
            if sink(DirEntry::new(name, ino, kind, cookie)).is_break() {
                break;
            }
        }
        Ok(())
    }

    fn read(&self, node: Node<'_>, _: u64, offset: u64, buf: &mut [u8]) -> Result<usize, Errno> {
        let file = self.open(node, OFlags::RDONLY)?;
        let mut done = 0;
        while done < buf.len() {
            match rustix::io::pread(&file, &mut buf[done..], offset + done as u64)? {
                0 => break,
                count => done += count,
            }
        }
        Ok(done)
    }

    fn write(&self, node: Node<'_>, _: u64, offset: u64, bytes: &[u8]) -> Result<usize, Errno> {
        rustix::io::pwrite(self.open(node, OFlags::WRONLY)?, bytes, offset)
    }

    fn fsync(&self, node: Node<'_>, _: u64, _: bool) -> Result<(), Errno> {
        fs::fsync(self.open(node, OFlags::RDONLY)?)
    }

    fn statfs(&self) -> Result<StatFs, Errno> {
        let all = fs::statvfs(&self.root)?;
        Ok(StatFs::default()
            .with_bsize(all.f_frsize as u32)
            .with_blocks(all.f_blocks)
            .with_bfree(all.f_bfree)
            .with_bavail(all.f_bavail)
            .with_files(all.f_files)
            .with_ffree(all.f_ffree)
            .with_namelen(all.f_namemax as u32))
    }
}
